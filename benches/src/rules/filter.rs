//! One ClassBench filter, `@src/len dst/len lo : hi lo : hi proto/mask flags/mask`: read, written, compared.

use std::fmt;
use std::net::Ipv4Addr;

/// The lowest and the highest port.
pub type Ports = (u16, u16);

/// All ports.
const ANY: Ports = (0, u16::MAX);

/// A filter of ClassBench, IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    /// Address and prefix length.
    pub src: (u32, u32),
    /// Address and prefix length.
    pub dst: (u32, u32),
    /// From and to.
    pub src_port: Ports,
    /// From and to.
    pub dst_port: Ports,
    /// `None`: any.
    pub protocol: Option<u8>,
    /// The flags byte of TCP, value and mask, in the upper byte of ClassBench's column.
    pub flags: (u16, u16),
}

impl Filter {
    /// Parses one line; `None` if it is not a filter.
    #[must_use]
    pub fn read(line: &str) -> Option<Self> {
        let columns: Vec<&str> = line.trim_start_matches('@').split_whitespace().collect();
        let &[src, dst, src_low, _, src_high, dst_low, _, dst_high, protocol, flags, ..] = &columns[..]
        else {
            return None;
        };
        let ports = |low: &str, high: &str| Some((low.parse().ok()?, high.parse().ok()?));
        let (protocol, mask) = masked(protocol)?;
        Some(Self {
            src: prefix(src)?,
            dst: prefix(dst)?,
            src_port: ports(src_low, src_high)?,
            dst_port: ports(dst_low, dst_high)?,
            protocol: (mask == 0xff).then_some(protocol as u8),
            flags: masked(flags)?,
        })
    }

    /// Whether all its packets have ports: TCP and UDP.
    #[must_use]
    pub fn has_ports(&self) -> bool {
        matches!(self.protocol, None | Some(6 | 17))
    }

    /// The ports that it requires; `None`: any.
    #[must_use]
    pub fn required_ports(&self) -> [Option<Ports>; 2] {
        [self.src_port, self.dst_port].map(|ports| (self.has_ports() && ports != ANY).then_some(ports))
    }

    /// The TCP flags that it requires.
    #[must_use]
    pub fn tcp_flags(&self) -> Option<(u8, u8)> {
        let (value, mask) = ((self.flags.0 >> 8) as u8, (self.flags.1 >> 8) as u8);
        (self.protocol == Some(6) && self.flags.1 & 0xff == 0 && mask != 0).then_some((value & mask, mask))
    }

    /// Whether a packet may match both; flags are ignored, so the result may be true without such a packet.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let prefixes = |a: (u32, u32), b: (u32, u32)| {
            let mask = mask(a.1.min(b.1));
            a.0 & mask == b.0 & mask
        };
        let ranges = |a: Ports, b: Ports| a.0 <= b.1 && b.0 <= a.1;
        let protocols = match (self.protocol, other.protocol) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        protocols
            && prefixes(self.src, other.src)
            && prefixes(self.dst, other.dst)
            && ranges(self.src_port, other.src_port)
            && ranges(self.dst_port, other.dst_port)
    }

    /// Whether a packet of these addresses, ports and this protocol matches. Flags are ignored, and ports of
    /// all protocols count.
    #[must_use]
    pub(crate) fn matches(&self, [src, dst]: [u32; 2], [src_port, dst_port]: [u16; 2], protocol: u8) -> bool {
        let prefix = |(address, length): (u32, u32), packet: u32| (address ^ packet) & mask(length) == 0;
        let range = |(low, high): Ports, port: u16| low <= port && port <= high;
        prefix(self.src, src)
            && prefix(self.dst, dst)
            && range(self.src_port, src_port)
            && range(self.dst_port, dst_port)
            && self.protocol.is_none_or(|own| own == protocol)
    }

    /// The two halves of its source prefix; `None` for a host.
    #[must_use]
    pub fn source_halves(&self) -> Option<[Self; 2]> {
        let (address, length) = self.src;
        let address = address & mask(length);
        let half = 1_u32.checked_shl(31_u32.checked_sub(length)?)?;
        Some([address, address | half].map(|address| Self { src: (address, length + 1), ..*self }))
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (src, dst) = (Ipv4Addr::from(self.src.0), Ipv4Addr::from(self.dst.0));
        write!(f, "@{src}/{}\t{dst}/{}", self.src.1, self.dst.1)?;
        for (low, high) in [self.src_port, self.dst_port] {
            write!(f, "\t{low} : {high}")?;
        }
        let (protocol, mask) = self.protocol.map_or((0, 0), |protocol| (protocol, 0xff));
        write!(f, "\t0x{protocol:02x}/0x{mask:02X}\t0x{:04x}/0x{:04X}", self.flags.0, self.flags.1)
    }
}

/// The mask of a prefix.
pub(crate) fn mask(length: u32) -> u32 {
    u32::MAX.checked_shl(32 - length).unwrap_or(0)
}

fn prefix(text: &str) -> Option<(u32, u32)> {
    let (address, length) = text.split_once('/')?;
    let length = length.parse().ok().filter(|length| *length <= 32)?;
    Some((u32::from(address.parse::<Ipv4Addr>().ok()?) & mask(length), length))
}

fn masked(text: &str) -> Option<(u16, u16)> {
    let number = |text: &str| u16::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let (value, mask) = text.split_once('/')?;
    Some((number(value)?, number(mask)?))
}

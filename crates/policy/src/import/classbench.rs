//! ClassBench filter sets: `@src/len dst/len lo : hi lo : hi proto/mask flags/mask`, one filter per line, the
//! first that matches decides. Sets of both IP versions are read, and sets without the last column, such as
//! those of DPDK's test-acl. Filters have no actions, so every rule steers to one group.

use std::net::IpAddr;

use packet::{IpProtocol, TCP_FLAGS, flag_pattern};
use program::MAX_RULES;

use super::{Imported, Keys, Note, WrongFormat, line_number, masked_addresses, masked_ranges, quoted, rule};

/// Options for reading a filter set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassBench {
    /// Whether the flags column becomes TCP flags and ICMP types, which devices cannot match and workers
    /// evaluate.
    pub tcp_flags: bool,
}

impl Default for ClassBench {
    fn default() -> Self {
        Self { tcp_flags: true }
    }
}

const HEAD: &str =
    "# Converted from a ClassBench filter set; its filters have no actions, so every rule steers to one group.
version = 1
default = \"kernel\"
";
/// No device matches TCP flags or types of ICMP messages.
const ALLOW: &str = "# Workers decide about TCP flags and types of ICMP messages. They also receive the packets of such filters
# that have other flags or types.
allow_lost_exceptions = true
";
const LOST: &str = "workers decide about TCP flags and types of ICMP messages: packets with others that the policy leaves to the kernel are lost, which it allows; a sink of kind \"kernel\" instead of `allow_lost_exceptions` returns them";
const GROUP: &str = "\n[groups.workers]\nworkers = \"all\"\n";
const ACTION: &str = "{ steer = \"workers\" }";

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Converts a filter set; filter `n`, from 0, becomes the rule `rn`.
///
/// # Errors
/// No line is a filter.
pub fn classbench(text: &str) -> Result<Imported, WrongFormat> {
    classbench_with(text, ClassBench::default())
}

/// Imports filters as [`classbench`] does, with options.
///
/// # Errors
/// As [`classbench`].
pub fn classbench_with(text: &str, options: ClassBench) -> Result<Imported, WrongFormat> {
    let mut imported = Imported { policy_toml: String::new(), notes: Vec::new() };
    let mut loses_exceptions = false;
    let mut count = 0usize;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut note = |message: String| {
            imported.notes.push(Note { line: line_number(index), message });
        };
        match Filter::read(line) {
            Ok(filter) => {
                let keys = filter.keys(options, &mut note);
                let needs_workers =
                    filter.message_types(options).is_some() || filter.tcp_flags(options).is_some();
                if needs_workers && !loses_exceptions {
                    loses_exceptions = true;
                    note(LOST.to_owned());
                }
                imported.policy_toml.push_str(&rule(&format!("r{count}"), &keys, ACTION));
            }
            Err(problem) => note(format!("left out: {problem}")),
        }
        if count + 1 == MAX_RULES {
            let message = format!("from here on left out: a policy has at most {MAX_RULES} rules");
            imported.notes.push(Note { line: line_number(index + 1), message });
            break;
        }
        // Filters that are left out count, so that a rule has the number of its filter.
        count += 1;
    }
    let allow = if loses_exceptions { ALLOW } else { "" };
    if imported.policy_toml.is_empty() {
        let (line, why) = match imported.notes.first() {
            Some(note) => (note.line, format!(": {}", note.message)),
            None => (0, String::new()),
        };
        let message = format!("not a ClassBench filter set, as no line is a filter{why}");
        return Err(WrongFormat { line, message });
    }
    imported.policy_toml.insert_str(0, &format!("{HEAD}{allow}{GROUP}"));
    Ok(imported)
}

/// One filter.
struct Filter {
    src: (IpAddr, u32),
    dst: (IpAddr, u32),
    src_port: (u16, u16),
    dst_port: (u16, u16),
    /// Value and mask.
    protocol: (u8, u8),
    flags: (u16, u16),
}

/// The first column of a line, and the rest.
fn column(line: &str) -> (&str, &str) {
    let line = line.trim_start();
    line.split_once(char::is_whitespace).unwrap_or((line, ""))
}

impl Filter {
    fn read(line: &str) -> Result<Self, String> {
        let line = line.strip_prefix('@').unwrap_or(line);
        let (src, rest) = column(line);
        let (dst, rest) = column(rest);
        if dst.is_empty() {
            return Err("it has too few columns".to_owned());
        }
        let (src, dst) = (prefix(src)?, prefix(dst)?);
        if src.0.is_ipv4() != dst.0.is_ipv4() {
            return Err("its addresses have different IP versions".to_owned());
        }
        let numbers: Vec<&str> =
            rest.split(|c: char| c.is_whitespace() || c == ':').filter(|word| !word.is_empty()).collect();
        let [src_low, src_high, dst_low, dst_high, protocol, rest @ ..] = &*numbers else {
            return Err("it has too few columns".to_owned());
        };
        let flags = rest.first().map_or(Ok((0, 0)), |flags| masked_number(flags, 0xffff))?;
        let protocol = masked_number(protocol, 0xff)?;
        Ok(Self {
            src,
            dst,
            src_port: ports(src_low, src_high)?,
            dst_port: ports(dst_low, dst_high)?,
            protocol: (protocol.0 as u8, protocol.1 as u8),
            flags,
        })
    }

    fn keys(&self, options: ClassBench, note: &mut dyn FnMut(String)) -> Keys {
        let mut keys = Keys::default();
        keys.text("family", if self.src.0.is_ipv4() { "ipv4" } else { "ipv6" });
        for (key, (address, length)) in [("src", self.src), ("dst", self.dst)] {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            // Generators may set bits after the prefix; they have no meaning.
            if let Some([prefix]) = masked_addresses(address, ones(address, length, bits)).as_deref() {
                keys.text(key, prefix);
            }
        }
        let (protocol, mask) = self.protocol;
        match masked_ranges(protocol.into(), mask.into(), u8::BITS) {
            Some(ranges) => keys.ranges("protocol", &ranges),
            None => note(format!("the protocol mask {mask:#04x} is left out: the rule matches more")),
        }
        let only = (mask == u8::MAX).then_some(protocol);
        self.port_keys(only, &mut keys, note);
        self.flag_keys(only, options, &mut keys, note);
        keys
    }

    fn port_keys(&self, only: Option<u8>, keys: &mut Keys, note: &mut dyn FnMut(String)) {
        for (key, (low, high)) in [("src_port", self.src_port), ("dst_port", self.dst_port)] {
            if (low, high) == (0, u16::MAX) {
                continue;
            }
            match only {
                Some(TCP | UDP) => {}
                Some(other) => {
                    note(format!(
                        "`{key}` is left out: protocol {other} has no ports, the rule matches more"
                    ));
                    continue;
                }
                None => {
                    note(format!("`{key}` applies to TCP and UDP only: the rule matches no other protocol"));
                }
            }
            keys.ranges(key, &[(low.into(), high.into())]);
        }
    }

    /// The types of ICMP messages that the flags column is about, with the protocol of the IP version.
    fn message_types(&self, options: ClassBench) -> Option<(IpProtocol, Vec<(u128, u128)>)> {
        let protocol = if self.src.0.is_ipv4() { ICMP } else { ICMPV6 };
        let (value, mask) = self.flags;
        let is_type = self.protocol == (protocol, u8::MAX) && mask & 0xff == 0 && mask != 0;
        let ranges = masked_ranges((value >> 8).into(), (mask >> 8).into(), u8::BITS)?;
        (is_type && options.tcp_flags).then_some((IpProtocol(protocol), ranges))
    }

    /// The value and mask of the TCP flags that the flags column is about.
    fn tcp_flags(&self, options: ClassBench) -> Option<(u8, u8)> {
        let (value, mask) = self.flags;
        let is_flags = self.protocol == (TCP, u8::MAX) && mask & 0xff == 0 && mask != 0;
        (is_flags && options.tcp_flags).then_some(((value >> 8) as u8, (mask >> 8) as u8))
    }

    /// The upper byte is that of the TCP flags or the ICMP type.
    fn flag_keys(
        &self,
        only: Option<u8>,
        options: ClassBench,
        keys: &mut Keys,
        note: &mut dyn FnMut(String),
    ) {
        let (value, mask) = self.flags;
        if mask == 0 {
            return;
        }
        if let Some((protocol, ranges)) = self.message_types(options) {
            return keys.ranges(&format!("{protocol}_type"), &ranges);
        }
        if let Some((value, mask)) = self.tcp_flags(options) {
            return keys.text("tcp_flags", flag_pattern(&TCP_FLAGS, value, mask));
        }
        let what = match only {
            Some(TCP) => "the TCP flags are",
            Some(ICMP | ICMPV6) => "the ICMP type is",
            _ => "the flags column is",
        };
        note(format!("{what} left out ({value:#06x}/{mask:#06x}): the rule matches more"));
    }
}

fn prefix(text: &str) -> Result<(IpAddr, u32), String> {
    let wrong = || format!("`{}` is not a prefix", quoted(text));
    let (address, length) = text.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let length: u32 = length.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    if length > most { Err(wrong()) } else { Ok((address, length)) }
}

/// The mask of a prefix, as an address.
fn ones(address: IpAddr, length: u32, bits: u32) -> IpAddr {
    let host = bits - length;
    match address {
        IpAddr::V4(_) => IpAddr::from(u32::MAX.checked_shl(host).unwrap_or(0).to_be_bytes()),
        IpAddr::V6(_) => IpAddr::from(u128::MAX.checked_shl(host).unwrap_or(0).to_be_bytes()),
    }
}

fn ports(low: &str, high: &str) -> Result<(u16, u16), String> {
    let port = |text: &str| {
        let port = number(text).and_then(|number| u16::try_from(number).ok());
        port.ok_or_else(|| format!("`{}` is not a port", quoted(text)))
    };
    match (port(low)?, port(high)?) {
        (low, high) if low > high => Err(format!("the port range {low} : {high} is reversed")),
        ports => Ok(ports),
    }
}

/// `0x06/0xFF`, or in decimal.
fn masked_number(text: &str, most: u32) -> Result<(u16, u16), String> {
    let wrong = || format!("`{}` is not a value with a mask up to {most:#x}", quoted(text));
    let (value, mask) = text.split_once('/').ok_or_else(wrong)?;
    let part = |text: &str| number(text).filter(|number| *number <= most).and_then(|n| u16::try_from(n).ok());
    Ok((part(value).ok_or_else(wrong)?, part(mask).ok_or_else(wrong)?))
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

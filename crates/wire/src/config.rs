//! The settings of the wires, as in the settings file: plain data, checked as far as one value can be
//! checked.
//!
//! What depends on several values (a v4 source with a v6 destination) or on the machine (a file, an
//! interface) is found when the wire is opened. Nothing here opens anything.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;

use packet::MacAddr;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::interface::{Interface, Link, link_of, question_socket};
use super::{LinkConfig, SOFT_MAC};

/// The source and destination of a port's frames.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum WireConfig {
    /// Generated traffic.
    Generator(GeneratorConfig),
    /// Recorded captures.
    Pcap(PcapConfig),
    /// A live interface.
    AfPacket(AfPacketConfig),
    /// A live interface, of which claimed packets are taken away from the kernel.
    AfXdp(AfXdpConfig),
    /// A link to a soft NIC in another process.
    Link(super::LinkConfig),
    /// The port itself: what it sends it receives.
    Loopback {},
    /// Nothing. With braces, because serde takes unknown keys beside a unit variant without a word.
    Null {},
}

/// Traffic made up from a description. The same description gives the same frames in the same order.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeneratorConfig {
    /// The seed of everything that is drawn.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// How fast the frames come.
    #[serde(default)]
    pub rate: Rate,
    /// How many frames come before the wire is finished; without it they never end.
    #[serde(default)]
    pub total: Option<u64>,
    /// The ingredients of the traffic.
    pub flows: Vec<TrafficConfig>,
}

/// One ingredient of generated traffic.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficConfig {
    /// Named in errors.
    #[serde(default)]
    pub name: String,
    /// The part of the frames, relative to the other flows' shares.
    #[serde(default = "one")]
    pub share: u32,
    /// Source addresses: `10.1.0.0/16`, `2001:db8::/48`, or one address.
    #[serde(default = "default_source")]
    pub src: AddressRange,
    /// Destination addresses.
    #[serde(default = "default_destination")]
    pub dst: AddressRange,
    /// `udp`, `tcp`, `icmp`, `arp`, or an IP protocol number.
    #[serde(default)]
    pub protocol: TrafficProtocol,
    /// Source ports of TCP and UDP: `53` or `1024-65535`.
    #[serde(default = "default_source_ports")]
    pub src_ports: PortRange,
    /// Destination ports of TCP and UDP.
    #[serde(default = "default_destination_ports")]
    pub dst_ports: PortRange,
    /// The VLAN id of an 802.1Q tag.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// The frame's length without FCS: `64`, `"64-1518"`, `"imix"`, or `[[64, 7], [594, 4], [1518, 1]]`
    /// (length, weight). 64 means as short as the headers allow where they need more; other lengths have to
    /// hold them.
    #[serde(default)]
    pub frame_bytes: FrameSizes,
    /// How many distinct address and port combinations there are; without it 64, or all if there are fewer.
    #[serde(default)]
    pub count: Option<u32>,
    /// Flags of TCP segments: `syn,ack`; without it `ack`.
    #[serde(default)]
    pub tcp_flags: Option<String>,
    /// The destination MAC address; without it the wire's own.
    #[serde(default)]
    pub dst_mac: Option<String>,
}

/// Captures that are replayed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapConfig {
    /// A pcap or pcapng file, or a folder of them, replayed in the order of their names.
    pub path: PathBuf,
    /// How they are replayed.
    #[serde(default)]
    pub mode: PcapMode,
    /// With `paced`: 2.0 is twice as fast as recorded.
    #[serde(default = "default_speed")]
    pub speed: f64,
    /// Where sent packets are written, as pcap with nanoseconds.
    #[serde(default)]
    pub output: Option<PathBuf>,
}

/// How captures are replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PcapMode {
    /// Once, as fast as they are taken.
    #[default]
    Once,
    /// Over and over, as fast as they are taken.
    Loop,
    /// Once, with the gaps between packets that were recorded.
    Paced,
}

/// The attributes of a live interface, as the kernel has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveInterface {
    /// The MAC address of the interface.
    pub mac: MacAddr,
    /// The MTU of the interface in bytes.
    pub mtu_bytes: u32,
    /// The index of the interface (`ifindex`).
    pub index: u32,
}

/// A live interface.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfPacketConfig {
    /// The name of the interface: `eth0`.
    pub interface: String,
    /// Whether frames for other stations are taken too.
    #[serde(default)]
    pub promiscuous: bool,
    /// How many received frames the kernel may hold for the engine; in blocks, as much memory as these take,
    /// and 8 MiB at least.
    #[serde(default = "default_ring_frames")]
    pub ring_frames: u32,
    /// The treatment of frames that the kernel merged.
    #[serde(default)]
    pub merged: MergedFrames,
    /// How the kernel hands received frames over.
    #[serde(default)]
    pub hand_over: HandOver,
    /// Whether the engine polls the ring for some time before it waits in the kernel. It does not let frames
    /// gather: that takes a core at a moderate rate, and saves some hundred microseconds.
    #[serde(default)]
    pub busy_poll: bool,
}

/// A live interface through AF_XDP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfXdpConfig {
    /// The name of the interface: `eth0`.
    pub interface: String,
    /// Whether frames for other stations are taken too.
    #[serde(default)]
    pub promiscuous: bool,
    /// How many received frames each queue may hold for the engine: a power of two.
    #[serde(default = "default_queue_frames")]
    pub ring_frames: u32,
    /// Where the kernel runs the XDP program.
    #[serde(default)]
    pub mode: XdpMode,
    /// Whether the driver receives into the memory of the port.
    #[serde(default)]
    pub zero_copy: ZeroCopy,
    /// Whether the engine polls for some time before it waits in the kernel, as for `af_packet`.
    #[serde(default)]
    pub busy_poll: bool,
}

/// Where the kernel runs the XDP program of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// In the driver ([`xdp::AttachMode::Native`]); the wire is not opened if that cannot.
    #[default]
    Native,
    /// In the network stack ([`xdp::AttachMode::Generic`]).
    Generic,
    /// In the driver if it can, else in the network stack. It is decided when the wire is opened, and stays
    /// so if another interface takes the place of this one.
    Auto,
}

/// Whether the driver of an interface receives into the memory of the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroCopy {
    /// If it can. The frames that the host receives are in this memory too.
    Auto,
    /// The wire is not opened if it cannot.
    Always,
    /// The kernel copies each frame.
    #[default]
    Never,
}

/// The treatment of frames that consist of several packets of a stream: merged by the kernel on arrival
/// (GRO, LRO), or not yet cut by a local sender (TSO, GSO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergedFrames {
    /// Splits them into the packets that they were merged from.
    #[default]
    Split,
    /// Takes them whole, whatever the MTU; receive buffers need room for
    /// [`MAX_MERGED_BYTES`](super::MAX_MERGED_BYTES).
    Whole,
}

/// How the kernel hands the frames of a live interface over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandOver {
    /// Each as it comes (TPACKET_V2): a lone frame does not wait.
    #[default]
    Frames,
    /// In blocks (TPACKET_V3): a frame takes much less processor time, and waits for up to a millisecond, or
    /// a tick of the kernel's clock if that is longer.
    Blocks,
}

/// How fast generated frames come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// The rate at which they are taken.
    #[default]
    FlatOut,
    /// This many per second.
    FramesPerSecond(u64),
}

/// A block of addresses of one family, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// The first address of the block.
    pub network: IpAddr,
    /// How many leading bits are fixed.
    pub prefix_len: u8,
}

/// TCP or UDP ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port, not below the first.
    pub last: u16,
}

/// The protocol of generated frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficProtocol {
    /// UDP datagrams.
    #[default]
    Udp,
    /// TCP segments.
    Tcp,
    /// SCTP packets with arbitrary chunks.
    Sctp,
    /// ICMP echo requests, ICMPv6 between IPv6 addresses.
    Icmp,
    /// ARP requests from and for the IPv4 addresses.
    Arp,
    /// IP packets of this protocol with an arbitrary payload.
    Ip(u8),
}

/// The lengths of generated frames, without FCS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameSizes {
    /// Always the same.
    Fixed(u16),
    /// Evenly spread, both ends included.
    Range(u16, u16),
    /// Pairs of a length and its weight.
    Mix(Vec<(u16, u32)>),
}

impl FrameSizes {
    /// The simple Internet mix: 7 of 64, 4 of 594 and 1 of 1518 bytes.
    #[must_use]
    pub fn imix() -> Self {
        Self::Mix(vec![(64, 7), (594, 4), (1518, 1)])
    }
}

impl Default for FrameSizes {
    fn default() -> Self {
        Self::Fixed(64)
    }
}

const fn default_seed() -> u64 {
    1
}
const fn one() -> u32 {
    1
}
const fn default_source() -> AddressRange {
    AddressRange { network: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 0)), prefix_len: 8 }
}
const fn default_destination() -> AddressRange {
    AddressRange { network: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), prefix_len: 32 }
}
const fn default_source_ports() -> PortRange {
    PortRange { first: 1024, last: u16::MAX }
}
const fn default_destination_ports() -> PortRange {
    PortRange { first: 9, last: 9 }
}
const fn default_speed() -> f64 {
    1.0
}
const fn default_ring_frames() -> u32 {
    4096
}
const fn default_queue_frames() -> u32 {
    2048
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "flat-out" {
            return Ok(Self::FlatOut);
        }
        match text.replace('_', "").parse() {
            Ok(0) | Err(_) => Err(format!("`{text}` is neither `flat-out` nor frames per second above 0")),
            Ok(rate) => Ok(Self::FramesPerSecond(rate)),
        }
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let network: IpAddr = address.parse().map_err(|_| format!("`{address}` is not an IP address"))?;
        let bits: u8 = if network.is_ipv4() { 32 } else { 128 };
        let prefix_len = match length {
            None => bits,
            Some(length) => length
                .parse()
                .ok()
                .filter(|&len: &u8| len <= bits)
                .ok_or_else(|| format!("`/{length}` is not a prefix length of 0 to {bits}"))?,
        };
        Ok(Self { network, prefix_len })
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) =
            number_range(text).ok_or_else(|| format!("`{text}` is not a port or a range `1024-65535`"))?;
        Ok(Self { first, last })
    }
}

impl FromStr for TrafficProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "udp" => Self::Udp,
            "tcp" => Self::Tcp,
            "icmp" => Self::Icmp,
            "arp" => Self::Arp,
            "igmp" => Self::Ip(2),
            "gre" => Self::Ip(47),
            "esp" => Self::Ip(50),
            "sctp" => Self::Sctp,
            number => Self::Ip(number.parse().map_err(|_| {
                format!(
                    "`{number}` is not udp, tcp, icmp, arp, igmp, gre, esp, sctp or an IP protocol number"
                )
            })?),
        })
    }
}

impl FromStr for FrameSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "imix" {
            return Ok(Self::imix());
        }
        match number_range(text) {
            Some((first, last)) if first == last => Ok(Self::Fixed(first)),
            Some((first, last)) => Ok(Self::Range(first, last)),
            None => Err(format!("`{text}` is not a frame length, a range `64-1518`, or `imix`")),
        }
    }
}

/// `7` or `7-9`.
fn number_range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some((first, last))
}

/// Reads a value written as a string or as a bare number through its [`FromStr`].
struct Textual<T>(std::marker::PhantomData<T>, &'static str);

impl<'de, T: FromStr<Err = String>> Visitor<'de> for Textual<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

macro_rules! deserialize_textual {
    ($($type:ty: $expecting:literal),+ $(,)?) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Textual(std::marker::PhantomData, $expecting))
            }
        }
    )+};
}

deserialize_textual! {
    Rate: "`flat-out` or frames per second",
    AddressRange: "an address or an address block",
    PortRange: "a port or a range of ports",
    TrafficProtocol: "a protocol name or number",
}

struct FrameSizesVisitor;

impl<'de> Visitor<'de> for FrameSizesVisitor {
    type Value = FrameSizes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a frame length, a range, `imix`, or a list of [length, weight]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<FrameSizes, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<FrameSizes, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<FrameSizes, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FrameSizes, A::Error> {
        let mut mix = Vec::new();
        while let Some(pair) = list.next_element()? {
            mix.push(pair);
        }
        Ok(FrameSizes::Mix(mix))
    }
}

impl<'de> Deserialize<'de> for FrameSizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FrameSizesVisitor)
    }
}

// A wire in one word, for command lines and environment variables: `link:x:a`, `af_packet:eth0`,
// `pcap:day.pcap`.
//
// Settings without a short form are written as in the settings file: `{ kind = "pcap", path = "day.pcap",
// mode = "loop" }`.

/// The generator without a word about its traffic: UDP packets from 64 senders.
const PLAIN_GENERATOR: &str = "{ kind = \"generator\", rate = 100000, flows = [{}] }";

/// How wires are written in one word.
pub const SHORT_FORMS: [(&str, &str); 7] = [
    ("null", "nothing arrives, what is sent vanishes"),
    ("loopback", "what is sent is received, as with a loopback plug"),
    ("generator[:RATE]", "made-up UDP packets, RATE per second or `flat-out`"),
    ("pcap:FILE", "a capture, or a folder of them, once"),
    ("af_packet:INTERFACE", "a live interface; the kernel still sees every packet"),
    ("af_xdp:INTERFACE", "a live interface; the kernel sees the packets that no flow takes"),
    ("link:NAME:a|b", "the end `a` or `b` of a link to a soft NIC in another process"),
];

impl FromStr for WireConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim_start().starts_with('{') {
            return from_table(text);
        }
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        match (kind, rest) {
            ("null", None) => Ok(Self::Null {}),
            ("loopback", None) => Ok(Self::Loopback {}),
            ("generator", rate) => {
                let mut wire = from_table(PLAIN_GENERATOR)?;
                if let (Self::Generator(generator), Some(rate)) = (&mut wire, rate) {
                    generator.rate = rate.parse()?;
                }
                Ok(wire)
            }
            ("pcap", Some(path)) if !path.is_empty() => {
                let path = PathBuf::from(path);
                Ok(Self::Pcap(PcapConfig { path, mode: PcapMode::Once, speed: 1.0, output: None }))
            }
            ("af_packet", Some(interface)) if !interface.is_empty() => Ok(Self::AfPacket(AfPacketConfig {
                interface: interface.to_owned(),
                promiscuous: false,
                ring_frames: 4096,
                merged: MergedFrames::Split,
                hand_over: HandOver::Frames,
                busy_poll: false,
            })),
            ("af_xdp", Some(interface)) if !interface.is_empty() => Ok(Self::AfXdp(AfXdpConfig {
                interface: interface.to_owned(),
                promiscuous: false,
                ring_frames: default_queue_frames(),
                mode: XdpMode::Native,
                zero_copy: ZeroCopy::Never,
                busy_poll: false,
            })),
            ("link", Some(rest)) => {
                let (name, end) =
                    rest.rsplit_once(':').ok_or("a link is written `link:NAME:a` or `link:NAME:b`")?;
                Ok(Self::Link(LinkConfig { name: name.parse()?, end: end.parse()? }))
            }
            _ => {
                let forms = SHORT_FORMS.map(|(form, _)| form).join(", ");
                Err(format!("write {forms}, or a table as in the settings file, {{ kind = .. }}"))
            }
        }
    }
}

impl WireConfig {
    /// The station address of the wire as far as it is known before it is opened.
    #[must_use]
    pub fn station(&self) -> MacAddr {
        match self {
            Self::Link(link) => link.station(),
            Self::AfPacket(_) | Self::AfXdp(_) => self.live_interface().map_or(SOFT_MAC, |live| live.mac),
            _ => SOFT_MAC,
        }
    }

    /// The live interface below the wire as it is now; `None` if the wire has none, or if it could not be
    /// opened. Asks the kernel.
    #[must_use]
    pub fn live_interface(&self) -> Option<LiveInterface> {
        match self {
            Self::AfPacket(live) => live.live_interface(),
            Self::AfXdp(live) => live.live_interface(),
            _ => None,
        }
    }

    /// Whether frames can pass the live interface now; true of a wire without one, and of one whose interface
    /// [`WireConfig::check`] refuses. Asks the kernel.
    #[must_use]
    pub fn has_carrier(&self) -> bool {
        let name = match self {
            Self::AfPacket(AfPacketConfig { interface, .. }) | Self::AfXdp(AfXdpConfig { interface, .. }) => {
                interface
            }
            _ => return true,
        };
        let found = Interface::find(name).and_then(|found| Ok((question_socket(name)?, found.index)));
        found.map_or(true, |(socket, index)| link_of(socket.as_fd(), index).0 == Link::Up)
    }

    /// A description of the wire for a log line, as far as it is known before it is opened
    /// ([`Wire::describe`](super::Wire::describe)).
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Generator(_) => "generator".to_owned(),
            Self::Pcap(pcap) => format!("{} (pcap)", pcap.path.display()),
            Self::AfPacket(live) => format!("{} (af_packet)", live.interface),
            Self::AfXdp(live) => format!("{} (af_xdp)", live.interface),
            Self::Link(link) => link.describe(),
            Self::Loopback {} => "loopback".to_owned(),
            Self::Null {} => "null".to_owned(),
        }
    }
}

fn from_table(text: &str) -> Result<WireConfig, String> {
    let value = toml::de::ValueDeserializer::parse(text).map_err(|error| error.message().to_owned())?;
    WireConfig::deserialize(value).map_err(|error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkEnd, Rate};

    fn wire(text: &str) -> WireConfig {
        text.parse().unwrap()
    }

    #[test]
    fn a_wire_is_described_before_it_is_opened() {
        for (text, description) in [
            ("null", "null"),
            ("generator:100", "generator"),
            ("pcap:/var/a.pcap", "/var/a.pcap (pcap)"),
            ("af_packet:eth0", "eth0 (af_packet)"),
            ("af_xdp:eth0", "eth0 (af_xdp)"),
            ("link:lab:b", "lab (link, end b)"),
        ] {
            assert_eq!(wire(text).describe(), description);
        }
    }

    #[test]
    fn every_short_form_is_parsed() {
        assert_eq!(wire("null"), WireConfig::Null {});
        assert_eq!(wire("loopback"), WireConfig::Loopback {});
        let WireConfig::Pcap(pcap) = wire("pcap:/var/a:b.pcap") else { panic!("a capture") };
        assert_eq!(pcap.path, PathBuf::from("/var/a:b.pcap"));
        let WireConfig::AfPacket(live) = wire("af_packet:eth0") else { panic!("an interface") };
        assert_eq!(live.interface, "eth0");
        assert_eq!(wire("af_xdp:eth0"), wire("{ kind = \"af_xdp\", interface = \"eth0\" }"));
        let WireConfig::Generator(traffic) = wire("generator:flat-out") else { panic!("a generator") };
        assert_eq!((traffic.rate, traffic.flows.len()), (Rate::FlatOut, 1));
        let WireConfig::Link(link) = wire("link:left-right:b") else { panic!("a link") };
        assert_eq!((&*link.name, link.end), ("left-right", LinkEnd::B));
    }

    #[test]
    fn the_table_form_has_the_other_settings() {
        let WireConfig::Pcap(pcap) = wire(r#"{ kind = "pcap", path = "x", mode = "loop" }"#) else {
            panic!("a capture")
        };
        assert_eq!(pcap.mode, PcapMode::Loop);
    }

    #[test]
    fn a_live_interface_has_its_own_address_before_it_is_opened() {
        assert_eq!(wire("af_packet:lo").station(), MacAddr([0; 6]));
        assert_eq!(wire("af_packet:no-such-interface").station(), SOFT_MAC);
    }

    #[test]
    fn errors_contain_a_valid_form() {
        for (text, hint) in [
            ("", "null"),
            ("carrier-pigeon", "af_packet:INTERFACE"),
            ("pcap:", "pcap:FILE"),
            ("generator:0", "above 0"),
            ("link:x", "link:NAME:a"),
            ("link:x:c", "`a` or `b`"),
            ("link::a", "1 to"),
            ("{ kind = \"pcap\" }", "path"),
            ("{ kind", "expected"),
        ] {
            let problem = text.parse::<WireConfig>().unwrap_err();
            assert!(problem.contains(hint), "{text}: {problem}");
        }
    }
}

//! What a rule asks of a packet, field by field: sets of values, negation worked out. The output of `parse`, the
//! input of `compiler`, of the software matcher and of the analysis; it knows no device.

use std::net::IpAddr;

use packet::MacAddr;

use crate::byte_set::ByteSet;
use crate::ranges::RangeSet;

/// A conjunction: every field that is given must match; `None` is any packet.
///
/// Negation is already worked out: a set holds the values that do match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Destination MAC.
    pub dst_mac: Option<Macs>,
    /// Source MAC.
    pub src_mac: Option<Macs>,
    /// The type behind the VLAN tags; up to 1500 the length of an 802.3 frame.
    pub ethertype: Option<RangeSet<u16>>,
    /// The outer VLAN tag.
    pub vlan: Option<VlanMatch>,
    /// Its priority, 0 to 7.
    pub vlan_priority: Option<RangeSet<u8>>,
    /// Its tag protocol.
    pub vlan_tpid: Option<RangeSet<u16>>,
    /// The second VLAN tag.
    pub inner_vlan: Option<VlanMatch>,
    /// Its tag protocol.
    pub inner_vlan_tpid: Option<RangeSet<u16>>,
    /// IPv4 or IPv6, with a well-formed header.
    pub family: Option<Family>,
    /// Source address.
    pub src: Option<Addresses>,
    /// Destination address.
    pub dst: Option<Addresses>,
    /// IPv4 protocol or first IPv6 next header.
    pub protocol: Option<RangeSet<u8>>,
    /// The whole IPv4 type of service or IPv6 traffic class.
    pub tos: Option<ByteSet>,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: Option<RangeSet<u8>>,
    /// IPv6 flow label, 20 bits.
    pub flow_label: Option<RangeSet<u32>>,
    /// The three IPv4 flag bits, 0 to 7: reserved 4, don't fragment 2, more fragments 1.
    pub ip_flags: Option<ByteSet>,
    /// TCP or UDP source port.
    pub src_port: Option<RangeSet<u16>>,
    /// TCP or UDP destination port.
    pub dst_port: Option<RangeSet<u16>>,
    /// Whether TCP and UDP packets without a readable header (later fragments, cut headers) match whatever the
    /// ports are. Set by the parser for rules that leave packets to the kernel; see [`Match::may_ignore_ports`].
    pub or_no_ports: bool,
    /// Fragmentation of an IP packet.
    pub fragment: Option<Fragments>,
    /// The TCP flags byte.
    pub tcp_flags: Option<ByteSet>,
    /// Whether an IPv4 header has options.
    pub ip_options: Option<bool>,
    /// Security parameters index of an ESP header right behind the IP header.
    pub esp_spi: Option<RangeSet<u32>>,
    /// Its sequence number.
    pub esp_seq: Option<RangeSet<u32>>,
    /// Network identifier of VXLAN (UDP port 4789), 24 bits.
    pub vxlan_vni: Option<RangeSet<u32>>,
    /// EtherType of what a GRE header (version 0) carries.
    pub gre_protocol: Option<RangeSet<u16>>,
    /// Its key; there must be one.
    pub gre_key: Option<RangeSet<u32>>,
    /// The upper byte of its first word: checksum 0x80, key 0x20, sequence number 0x10.
    pub gre_flags: Option<ByteSet>,
    /// The MPLS label stack from the top; there must be at least as many entries. Never more than
    /// [`MAX_MPLS_LABELS`](packet::MAX_MPLS_LABELS), and one at most within `inner`; empty: any stack.
    pub mpls: Option<Vec<MplsEntry>>,
    /// The packet inside the first tunnel, where there must be one; itself without `inner`.
    pub inner: Option<Box<Match>>,
}

/// One entry of an MPLS label stack; `None` is any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MplsEntry {
    /// 20 bits.
    pub label: Option<RangeSet<u32>>,
    /// Traffic class, 3 bits.
    pub tc: Option<RangeSet<u8>>,
    /// Whether it is the last of the stack.
    pub bottom: Option<bool>,
    /// Time to live.
    pub ttl: Option<RangeSet<u8>>,
}

/// MAC addresses: those under some mask and under none of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Macs {
    /// At least one of these, sorted, whole addresses last; a mask of zeros is every address.
    pub any_of: Vec<MaskedMac>,
    /// None of these, in the same order.
    pub none_of: Vec<MaskedMac>,
}

/// A MAC address with a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaskedMac {
    /// The value under the mask.
    pub value: MacAddr,
    /// The bits that count.
    pub mask: MacAddr,
}

/// What a rule asks of a VLAN tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanMatch {
    /// There is no such tag.
    None,
    /// There is one.
    Any,
    /// There is one with such an id.
    Ids(RangeSet<u16>),
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Addresses of both versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// IPv4, as numbers.
    pub v4: RangeSet<u32>,
    /// IPv6, as numbers.
    pub v6: RangeSet<u128>,
}

bitflags::bitflags! {
    /// Which of the three an IP packet may be.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Fragments: u8 {
        /// Not a fragment.
        const WHOLE = 1;
        /// The first one of several.
        const FIRST = 2;
        /// Any but the first.
        const LATER = 4;
    }
}

impl Match {
    /// Whether a TCP or UDP header is needed.
    #[must_use]
    pub fn needs_transport(&self) -> bool {
        self.src_port.is_some() || self.dst_port.is_some() || self.tcp_flags.is_some()
    }

    /// Whether the ports are the only thing asked for that a packet without a readable TCP or UDP header lacks, and
    /// nothing is asked for that says how such packets are to be treated.
    #[must_use]
    pub fn may_ignore_ports(&self) -> bool {
        (self.src_port.is_some() || self.dst_port.is_some())
            && self.tcp_flags.is_none()
            && self.fragment.is_none()
            && !self.needs_tunnel()
    }

    /// The part of an [`or_no_ports`](Self::or_no_ports) match that is about packets without a header: the same
    /// without ports, of TCP and UDP; `None` if there is none.
    #[must_use]
    pub fn no_ports(&self) -> Option<Self> {
        let transports = RangeSet::of(vec![(TCP, TCP), (UDP, UDP)]);
        let protocol = self.protocol.as_ref().map_or(transports.clone(), |own| own.intersect(&transports));
        let is_one = self.or_no_ports && !protocol.is_empty();
        is_one.then(|| Self {
            src_port: None,
            dst_port: None,
            or_no_ports: false,
            protocol: Some(protocol),
            ..self.clone()
        })
    }

    /// Whether an IP header is needed.
    #[must_use]
    pub fn needs_ip(&self) -> bool {
        self.needs_transport()
            || self.implied_family().is_some()
            || self.src.is_some()
            || self.dst.is_some()
            || self.protocol.is_some()
            || self.tos.is_some()
            || self.ttl.is_some()
            || self.fragment.is_some()
    }

    /// Whether a field behind the outer packet is asked for, which takes a [`DeepKey`](packet::DeepKey).
    #[must_use]
    pub fn needs_tunnel(&self) -> bool {
        self.esp_spi.is_some()
            || self.esp_seq.is_some()
            || self.vxlan_vni.is_some()
            || self.gre_protocol.is_some()
            || self.gre_key.is_some()
            || self.gre_flags.is_some()
            || self.mpls.is_some()
            || self.inner.is_some()
    }

    /// Whether an Ethernet header is needed, which a packet inside a tunnel may lack.
    #[must_use]
    pub fn needs_ethernet(&self) -> bool {
        self.dst_mac.is_some()
            || self.src_mac.is_some()
            || self.ethertype.is_some()
            || self.vlan.is_some()
            || self.vlan_priority.is_some()
            || self.vlan_tpid.is_some()
            || self.inner_vlan.is_some()
            || self.inner_vlan_tpid.is_some()
    }

    /// The IP version that `family` says, or else a field that only one version has.
    #[must_use]
    pub fn implied_family(&self) -> Option<Family> {
        self.family
            .or_else(|| (self.ip_flags.is_some() || self.ip_options.is_some()).then_some(Family::V4))
            .or_else(|| self.flow_label.is_some().then_some(Family::V6))
    }

    /// The TPIDs that the outer tag must have; `None` if the rule does not care.
    ///
    /// An id or a priority means an 802.1Q tag unless the rule says otherwise.
    #[must_use]
    pub fn outer_tpid(&self) -> Option<RangeSet<u16>> {
        let names_a_tag = matches!(self.vlan, Some(VlanMatch::Ids(_))) || self.vlan_priority.is_some();
        self.vlan_tpid.clone().or_else(|| names_a_tag.then(|| RangeSet::single(C_TAG)))
    }

    /// The same for the second tag.
    #[must_use]
    pub fn inner_tpid(&self) -> Option<RangeSet<u16>> {
        let names_a_tag = matches!(self.inner_vlan, Some(VlanMatch::Ids(_)));
        self.inner_vlan_tpid.clone().or_else(|| names_a_tag.then(|| RangeSet::single(C_TAG)))
    }
}

const TCP: u8 = packet::IpProtocol::TCP.0;
const UDP: u8 = packet::IpProtocol::UDP.0;

/// The TPID of an 802.1Q tag, which is also what a device means by "VLAN".
pub const C_TAG: u16 = packet::EtherType::VLAN.0;

impl Macs {
    /// These addresses.
    #[must_use]
    pub fn of(mut any_of: Vec<MaskedMac>) -> Self {
        any_of.sort_unstable_by_key(|mac| (mac.mask == MacAddr::BROADCAST, *mac));
        any_of.dedup();
        Self { any_of, none_of: Vec::new() }
    }

    /// Whether the address is one of them.
    #[must_use]
    #[inline]
    pub fn contains(&self, address: MacAddr) -> bool {
        Self::finds(&self.any_of, address) && !Self::finds(&self.none_of, address)
    }

    /// Looks for an address in a list that `of` has sorted.
    fn finds(list: &[MaskedMac], address: MacAddr) -> bool {
        let (masked, whole) = list.split_at(list.partition_point(|mac| mac.mask != MacAddr::BROADCAST));
        whole.binary_search_by_key(&address, |mac| mac.value).is_ok()
            || masked.iter().any(|mac| mac.matches(address))
    }
}

impl MaskedMac {
    /// Every group address.
    pub const MULTICAST: Self =
        Self { value: MacAddr([1, 0, 0, 0, 0, 0]), mask: MacAddr([1, 0, 0, 0, 0, 0]) };

    /// Whether every address of `other` is one of these.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        (0..6).all(|i| self.mask.0[i] & !other.mask.0[i] == 0) && self.matches(other.value)
    }

    /// Every address.
    pub const ANY: Self = Self { value: MacAddr([0; 6]), mask: MacAddr([0; 6]) };

    /// Whether the address agrees with the value under the mask.
    #[must_use]
    #[inline]
    pub fn matches(&self, address: MacAddr) -> bool {
        (0..6).all(|i| (address.0[i] ^ self.value.0[i]) & self.mask.0[i] == 0)
    }
}

impl Fragments {
    /// Any fragment.
    pub const PIECES: Self = Self::FIRST.union(Self::LATER);
}

impl Addresses {
    /// Every address of both versions.
    #[must_use]
    pub fn all() -> Self {
        Self { v4: RangeSet::of(vec![(0, u32::MAX)]), v6: RangeSet::of(vec![(0, u128::MAX)]) }
    }

    /// The addresses that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self {
            v4: self.v4.intersect(&other.v4.complement(u32::MAX)),
            v6: self.v6.intersect(&other.v6.complement(u128::MAX)),
        }
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether the address is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.v4.contains(u32::from(v4)),
            IpAddr::V6(v6) => self.v6.contains(u128::from(v6)),
        }
    }
}

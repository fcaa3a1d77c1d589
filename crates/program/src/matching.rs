//! The match of a rule: for each field, the set of values that a packet may have. The parser of the language
//! makes it; the compiler, [`Predicate`](crate::Predicate) and the analysis read it. It does not depend on a
//! device.

use std::net::IpAddr;

use packet::{Field, Header, Layers, MacAddr};

use crate::ranges::RangeSet;

/// A conjunction of conditions, one per field; the default has none and matches every packet.
///
/// Sets hold the values that match: the parser has resolved negation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The conditions on fields that are numbers. A packet without the field's header does not match.
    pub fields: FieldValues,
    /// Destination MAC.
    pub dst_mac: Option<Macs>,
    /// Source MAC.
    pub src_mac: Option<Macs>,
    /// Whether there is a VLAN tag.
    pub vlan: Option<bool>,
    /// Whether there is a second one.
    pub inner_vlan: Option<bool>,
    /// IPv4 or IPv6, with a well-formed header.
    pub family: Option<Family>,
    /// Source address.
    pub src: Option<Addresses>,
    /// Destination address.
    pub dst: Option<Addresses>,
    /// Whether TCP and UDP packets whose ports cannot be read (later fragments, truncated headers) match
    /// whatever the conditions on ports are. Set by the parser for rules that leave packets to the kernel;
    /// see [`Match::may_ignore_ports`].
    pub or_no_ports: bool,
    /// Fragmentation of an IP packet.
    pub fragment: Option<Fragments>,
    /// Whether an IPv4 header has options.
    pub ip_options: Option<bool>,
    /// The MPLS label stack from the top; a packet must have at least as many entries. At most
    /// [`MAX_MPLS_LABELS`](packet::MAX_MPLS_LABELS), and within `inner` at most one; empty: any stack.
    pub mpls: Option<Vec<MplsEntry>>,
    /// The packet inside the first tunnel, which must exist; it has no `inner` itself.
    pub inner: Option<Box<Match>>,
}

/// Conditions on fields that are numbers, sorted by field. Read and changed through the methods of [`Match`];
/// public only so that matches can be written with `..Match::default()`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldValues(Vec<(Field, RangeSet<u32>)>);

/// Conditions on one entry of an MPLS label stack; `None` matches any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MplsEntry {
    /// The label, 20 bits.
    pub label: Option<RangeSet<u32>>,
    /// Traffic class, 3 bits.
    pub tc: Option<RangeSet<u32>>,
    /// Whether it is the last of the stack.
    pub bottom: Option<bool>,
    /// Time to live.
    pub ttl: Option<RangeSet<u32>>,
}

/// A set of MAC addresses: those of some masked addresses, except those of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Macs {
    /// An address must be one of these. Sorted, full masks last; a mask of zeros matches every address.
    pub any_of: Vec<MaskedMac>,
    /// The patterns that the address must match none of, in the same order.
    pub none_of: Vec<MaskedMac>,
}

/// A MAC address with a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaskedMac {
    /// The value.
    pub value: MacAddr,
    /// The bits that are compared.
    pub mask: MacAddr,
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
    /// A set of kinds of IP packets by fragmentation.
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
    /// The conditions on fields that are numbers, in the order of [`packet::FIELDS`].
    pub fn values(&self) -> impl Iterator<Item = (Field, &RangeSet<u32>)> {
        self.fields.0.iter().map(|(field, set)| (*field, set))
    }

    /// The values that a field may have; `None` if there is no condition on it.
    #[must_use]
    pub fn get(&self, field: Field) -> Option<&RangeSet<u32>> {
        let index = self.fields.0.binary_search_by_key(&field, |(field, _)| *field).ok()?;
        Some(&self.fields.0[index].1)
    }

    /// Whether there is a condition on a field that is a number.
    #[must_use]
    pub fn has(&self, field: Field) -> bool {
        self.get(field).is_some()
    }

    /// Sets the condition on a field, which [is a number](Field::is_number).
    pub fn set(&mut self, field: Field, values: RangeSet<u32>) {
        debug_assert!(field.is_number(), "addresses have conditions of their own");
        match self.fields.0.binary_search_by_key(&field, |(field, _)| *field) {
            Ok(index) => self.fields.0[index].1 = values,
            Err(index) => self.fields.0.insert(index, (field, values)),
        }
    }

    /// Returns the match with a further condition on a field.
    #[must_use]
    pub fn with(mut self, field: Field, values: RangeSet<u32>) -> Self {
        self.set(field, values);
        self
    }

    /// Requires the field's header, with any value, unless there is a condition on the field already.
    pub fn require(&mut self, field: Field) {
        if !self.has(field) {
            // The values of numbers have at most 32 bits.
            self.set(field, RangeSet::of(vec![(0, field.max() as u32)]));
        }
    }

    /// Drops the conditions on some fields.
    pub fn remove(&mut self, fields: &[Field]) {
        self.fields.0.retain(|(field, _)| !fields.contains(field));
    }

    /// The conditions on MAC addresses.
    #[must_use]
    pub fn macs(&self) -> [(Field, Option<&Macs>); 2] {
        [(Field::DstMac, self.dst_mac.as_ref()), (Field::SrcMac, self.src_mac.as_ref())]
    }

    /// The conditions on IP addresses, each with its IPv4 and its IPv6 field.
    #[must_use]
    pub fn addresses(&self) -> [([Field; 2], Option<&Addresses>); 2] {
        [([Field::SrcV4, Field::SrcV6], self.src.as_ref()), ([Field::DstV4, Field::DstV6], self.dst.as_ref())]
    }

    /// Whether a condition is on a field of such a header.
    fn needs(&self, is_one: impl Fn(Header) -> bool) -> bool {
        self.fields.0.iter().any(|(field, _)| is_one(field.row().header))
    }

    /// Whether a condition is on a field of this header.
    #[must_use]
    pub fn needs_header(&self, header: Header) -> bool {
        self.needs(|needed| needed == header)
    }

    /// Whether a condition is on a field whose header only packets of this IP version have.
    #[must_use]
    pub fn needs_version(&self, version: Layers) -> bool {
        self.needs(|needed| needed.version() == Some(version))
    }

    /// Whether a header right behind the IP header is needed, which later fragments lack.
    #[must_use]
    pub fn needs_payload(&self) -> bool {
        self.needs(|header| header.is_behind_ip() && !header.is_extended())
    }

    /// Whether a condition is on what follows IPv6 extension headers.
    #[must_use]
    pub fn needs_extended(&self) -> bool {
        self.needs(Header::is_extended)
    }

    /// Whether a TCP or UDP header is needed.
    #[must_use]
    pub fn needs_transport(&self) -> bool {
        self.needs(Header::is_transport)
    }

    /// Whether conditions on ports are the only ones that need a readable TCP or UDP header, and no condition
    /// on fragments decides about packets without one.
    #[must_use]
    pub fn may_ignore_ports(&self) -> bool {
        self.needs(Header::has_ports)
            && !self.needs(|header| matches!(header, Header::Tcp | Header::ExtendedTcp))
            && self.fragment.is_none()
            && !self.needs_tunnel()
    }

    /// The part of an [`or_no_ports`](Self::or_no_ports) match for packets whose ports cannot be read: the
    /// same match without ports, of TCP and UDP packets; `None` if no packet can match it.
    #[must_use]
    pub fn no_ports(&self) -> Option<Self> {
        let transports = RangeSet::of(vec![(TCP, TCP), (UDP, UDP)]);
        let [field, src_port, dst_port] = self.transport_fields();
        let protocol = self.get(field).map_or(transports.clone(), |own| own.intersect(&transports));
        if !self.or_no_ports || protocol.is_empty() {
            return None;
        }
        let mut part = Self { or_no_ports: false, ..self.clone() }.with(field, protocol);
        part.remove(&[src_port, dst_port]);
        Some(part)
    }

    /// The fields of protocol and ports: those behind IPv6 extension headers if there is a condition on one.
    #[must_use]
    pub fn transport_fields(&self) -> [Field; 3] {
        match self.needs_extended() {
            false => [Field::Protocol, Field::SrcPort, Field::DstPort],
            true => [Field::ExtProtocol, Field::ExtSrcPort, Field::ExtDstPort],
        }
    }

    /// Whether an IP header is needed.
    #[must_use]
    pub fn needs_ip(&self) -> bool {
        self.needs(Header::needs_ip)
            || self.implied_family().is_some()
            || self.src.is_some()
            || self.dst.is_some()
            || self.fragment.is_some()
    }

    /// Whether a condition is on a tunnel header or the packet inside, which takes a
    /// [`DeepKey`](packet::DeepKey).
    #[must_use]
    pub fn needs_tunnel(&self) -> bool {
        self.needs(Header::is_tunnel) || self.mpls.is_some() || self.inner.is_some()
    }

    /// Whether an Ethernet header is needed, which a packet inside a tunnel may lack.
    #[must_use]
    pub fn needs_ethernet(&self) -> bool {
        self.needs(Header::is_link)
            || self.dst_mac.is_some()
            || self.src_mac.is_some()
            || self.vlan.is_some()
            || self.inner_vlan.is_some()
    }

    /// The IP version that `family` gives, or else a field that only one version has.
    #[must_use]
    pub fn implied_family(&self) -> Option<Family> {
        let v4 = self.ip_options.is_some() || self.needs_version(Layers::IPV4);
        self.family
            .or_else(|| v4.then_some(Family::V4))
            .or_else(|| self.needs_version(Layers::IPV6).then_some(Family::V6))
    }

    /// The TPIDs that the outer tag may have; `None` if any.
    ///
    /// A condition on the id or the priority implies an 802.1Q tag unless there is a condition on the TPID.
    #[must_use]
    pub fn outer_tpid(&self) -> Option<RangeSet<u32>> {
        let names_a_tag = self.has(Field::VlanId) || self.has(Field::VlanPriority);
        self.get(Field::VlanTpid).cloned().or_else(|| names_a_tag.then(|| RangeSet::single(C_TAG.into())))
    }

    /// The TPIDs that the second tag may have; `None` if any.
    #[must_use]
    pub fn inner_tpid(&self) -> Option<RangeSet<u32>> {
        let names_a_tag = self.has(Field::InnerVlanId);
        self.get(Field::InnerVlanTpid)
            .cloned()
            .or_else(|| names_a_tag.then(|| RangeSet::single(C_TAG.into())))
    }
}

const TCP: u32 = packet::IpProtocol::TCP.0 as u32;
const UDP: u32 = packet::IpProtocol::UDP.0 as u32;

/// The TPID of an 802.1Q tag, the only one that a device matches as a VLAN tag.
pub const C_TAG: u16 = packet::EtherType::VLAN.0;

impl Macs {
    /// The set of these addresses.
    #[must_use]
    pub fn of(mut any_of: Vec<MaskedMac>) -> Self {
        any_of.sort_unstable_by_key(|mac| (mac.mask == MacAddr::BROADCAST, *mac));
        any_of.dedup();
        Self { any_of, none_of: Vec::new() }
    }

    /// Whether the address is in the set.
    #[must_use]
    #[inline]
    pub fn contains(&self, address: MacAddr) -> bool {
        Self::finds(&self.any_of, address) && !Self::finds(&self.none_of, address)
    }

    /// Whether a list sorted as by [`of`](Self::of) has the address.
    fn finds(list: &[MaskedMac], address: MacAddr) -> bool {
        let (masked, whole) = list.split_at(list.partition_point(|mac| mac.mask != MacAddr::BROADCAST));
        whole.binary_search_by_key(&address, |mac| mac.value).is_ok()
            || masked.iter().any(|mac| mac.matches(address))
    }
}

impl MaskedMac {
    /// All multicast addresses, broadcast included.
    pub const MULTICAST: Self =
        Self { value: MacAddr([1, 0, 0, 0, 0, 0]), mask: MacAddr([1, 0, 0, 0, 0, 0]) };

    /// Whether every address of `other` is one of these.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        (0..6).all(|i| self.mask.0[i] & !other.mask.0[i] == 0) && self.matches(other.value)
    }

    /// All addresses.
    pub const ANY: Self = Self { value: MacAddr([0; 6]), mask: MacAddr([0; 6]) };

    /// Whether the address equals the value in the bits of the mask.
    #[must_use]
    #[inline]
    pub fn matches(&self, address: MacAddr) -> bool {
        (0..6).all(|i| (address.0[i] ^ self.value.0[i]) & self.mask.0[i] == 0)
    }
}

impl Fragments {
    /// First and later fragments.
    pub const PIECES: Self = Self::FIRST.union(Self::LATER);
}

impl Addresses {
    /// All addresses of both versions.
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

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether the address is in the set.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.v4.contains(u32::from(v4)),
            IpAddr::V6(v6) => self.v6.contains(u128::from(v6)),
        }
    }
}

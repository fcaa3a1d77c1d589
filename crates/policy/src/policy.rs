//! What the operator wrote, checked and resolved, but not yet cut to any device: the output of `parse`,
//! the input of `compile`. Sets are already expanded into their values and group names into ids.

use std::net::IpAddr;
use std::sync::Arc;

use packet::{HashFields, MacAddr, RssKey};

use crate::diagnostics::Place;
use crate::ids::GroupId;
use crate::ranges::RangeSet;
use crate::source::Source;

/// The most rules of one policy; with one class per rule it keeps flow tags far below their 22 bits.
pub const MAX_RULES: usize = 65_536;
/// The most groups of one policy.
pub const MAX_GROUPS: usize = 1024;
/// The most values of one set, or of one list.
pub const MAX_SET_VALUES: usize = 1 << 20;
/// The longest name of a rule, group or set, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The longest indirection table that the language admits, in entries.
pub const MAX_TABLE_SIZE: u32 = 1 << 16;
/// The length of a group's indirection table unless it says otherwise, in entries.
pub const DEFAULT_TABLE_SIZE: u32 = 128;

/// A policy whose every name is known and every value in range.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Its text, for diagnostics.
    pub source: Arc<Source>,
    /// In the order of the text.
    pub groups: Vec<GroupDefinition>,
    /// In the order of the text, which is their precedence.
    pub rules: Vec<RuleDefinition>,
    /// What happens to packets that no rule claims.
    pub default: Action,
    /// Where `default` stands, or the start of the file.
    pub default_place: Place,
    /// Whether `default` was written.
    pub default_given: bool,
}

/// `[groups.NAME]`.
#[derive(Clone, Debug)]
pub struct GroupDefinition {
    /// The name.
    pub name: String,
    /// The workers and their shares.
    pub workers: Workers,
    /// What is hashed.
    pub fields: HashFields,
    /// The Toeplitz key.
    pub key: RssKey,
    /// Whether both directions of a connection meet.
    pub symmetric: bool,
    /// Entries of the indirection table, a power of two; `None`: what the workers and the device suggest.
    pub table_size: Option<u32>,
    /// Where its name stands.
    pub place: Place,
}

/// Who is in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workers {
    /// Every configured worker, equally.
    All,
    /// These, with a share each, and where each is written.
    Listed(Vec<WorkerShare>),
}

/// One worker of a group.
#[derive(Clone, Debug)]
pub struct WorkerShare {
    /// The worker's number in the settings.
    pub worker: u32,
    /// Its share of the table, relative to the others'.
    pub weight: u32,
    /// Where it stands.
    pub place: Place,
}

impl PartialEq for WorkerShare {
    fn eq(&self, other: &Self) -> bool {
        (self.worker, self.weight) == (other.worker, other.weight)
    }
}

impl Eq for WorkerShare {}

/// One `[[rules]]`.
#[derive(Clone, Debug)]
pub struct RuleDefinition {
    /// The name, unique.
    pub name: String,
    /// Which packets it claims.
    pub matches: Match,
    /// What it does with them.
    pub action: Action,
    /// Whether its counters are exported.
    pub count: bool,
    /// Where its match stands.
    pub place: Place,
    /// Where its name stands.
    pub name_place: Place,
}

/// What a rule, or the default, does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Spread over a group's workers.
    Steer(GroupId),
    /// Drop.
    Drop,
    /// Leave to the host (the default only).
    Kernel,
}

/// A conjunction: every field that is given must match; `None` is any packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Destination MAC, any of these.
    pub dst_mac: Option<Vec<MaskedMac>>,
    /// Source MAC, any of these.
    pub src_mac: Option<Vec<MaskedMac>>,
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
    pub tos: Option<RangeSet<u8>>,
    /// TCP or UDP source port.
    pub src_port: Option<RangeSet<u16>>,
    /// TCP or UDP destination port.
    pub dst_port: Option<RangeSet<u16>>,
    /// Fragmentation of an IP packet.
    pub fragment: Option<Fragment>,
    /// TCP flags.
    pub tcp_flags: Option<TcpFlags>,
    /// Whether an IPv4 header has options.
    pub ip_options: Option<bool>,
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

/// Fragmentation of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// Any fragment.
    Any,
    /// Not a fragment.
    None,
    /// The first one of several.
    First,
    /// Any but the first.
    Later,
}

/// TCP flag bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFlags {
    /// The bits that are asked about.
    pub mask: u8,
    /// What they must be.
    pub value: u8,
}

impl Match {
    /// Whether a TCP or UDP header is needed.
    #[must_use]
    pub fn needs_transport(&self) -> bool {
        self.src_port.is_some() || self.dst_port.is_some() || self.tcp_flags.is_some()
    }

    /// Whether an IP header is needed.
    #[must_use]
    pub fn needs_ip(&self) -> bool {
        self.needs_transport()
            || self.family.is_some()
            || self.src.is_some()
            || self.dst.is_some()
            || self.protocol.is_some()
            || self.tos.is_some()
            || self.fragment.is_some()
            || self.ip_options.is_some()
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

/// The TPID of an 802.1Q tag, which is also what a device means by "VLAN".
pub(crate) const C_TAG: u16 = packet::EtherType::VLAN.0;

impl Addresses {
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

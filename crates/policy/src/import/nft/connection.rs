//! Conditions on connections. A policy does not know the state of a connection, but some packets show a part
//! of it: connection tracking takes packets of a class ([`PacketClass`]) for few states, whatever it knows.

use packet::IpProtocol;
use program::RangeSet;
use serde_json::Value;

use super::condition::Condition;
use super::ruleset::{Ruleset, ZONE};
use super::values::{Constraint, Kind, flags_equal, flags_other};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const URG: u8 = 32;
/// The flags by which a connection request differs from other packets.
const REQUEST_MASK: u8 = FIN | SYN | RST | ACK;
/// The flags that decide whether a combination is valid, and the valid combinations (`tcp_valid_flags` in
/// net/netfilter/nf_conntrack_proto_tcp.c).
const VALIDITY_MASK: u8 = FIN | SYN | RST | ACK | URG;
const VALID_FLAGS: [u8; 9] =
    [SYN, SYN | URG, SYN | ACK, RST, RST | ACK, FIN | ACK, FIN | ACK | URG, ACK, ACK | URG];
/// Types of ICMP that are no request or reply of a connection and no error, so that the packet is invalid
/// (net/netfilter/nf_conntrack_proto_icmp.c).
const INVALID_ICMP: [(u128, u128); 4] = [(1, 2), (6, 7), (9, 10), (19, 255)];
/// Types of ICMPv6 that are no request or reply of a connection and no error
/// (net/netfilter/nf_conntrack_proto_icmpv6.c). Redirects (137) are errors for some kernels.
const INVALID_ICMPV6: [(u128, u128); 3] = [(138, 138), (141, 142), (144, 255)];
/// Neighbour discovery and MLD, which are not tracked.
const UNTRACKED_ICMPV6: [(u128, u128); 2] = [(130, 136), (143, 143)];

/// Packets of which connection tracking knows some states without their connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketClass {
    /// Packets that belong to no connection, such as TCP packets with SYN and FIN.
    Invalid = 1,
    /// ICMPv6 messages that are not tracked.
    Untracked = 2,
    /// TCP connection requests: SYN without ACK, RST and FIN.
    Request = 4,
}

/// A set of classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketClasses(u8);

impl PacketClasses {
    pub(super) const ALL: [PacketClass; 3] =
        [PacketClass::Invalid, PacketClass::Untracked, PacketClass::Request];

    pub(super) fn of(classes: impl IntoIterator<Item = PacketClass>) -> Self {
        Self(classes.into_iter().fold(0, |bits, class| bits | class as u8))
    }

    pub(super) fn contains(self, class: PacketClass) -> bool {
        self.0 & class as u8 != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn is_within(self, other: Self) -> bool {
        self.and(other) == self
    }

    /// The classes that have all packets of a condition; `None`: it has other packets as well.
    fn with_all(condition: &Condition) -> Option<Self> {
        let values = |key| condition.values(key);
        if let Some(flags) = values("tcp_flags") {
            let classes = flags.ranges().iter().flat_map(|(low, high)| *low..=*high).map(class_of_flags);
            return classes.collect::<Option<Vec<_>>>().map(Self::of);
        }
        let is_within = |values: &RangeSet<u128>, ranges: &[(u128, u128)]| {
            values.intersect(&RangeSet::of(ranges.to_vec())) == *values
        };
        if let Some(types) = values("icmp_type") {
            return is_within(types, &INVALID_ICMP).then(|| Self::of([PacketClass::Invalid]));
        }
        let types = values("icmpv6_type")?;
        if is_within(types, &UNTRACKED_ICMPV6) {
            return Some(Self::of([PacketClass::Untracked]));
        }
        is_within(types, &INVALID_ICMPV6).then(|| Self::of([PacketClass::Invalid]))
    }
}

fn class_of_flags(flags: u128) -> Option<PacketClass> {
    let flags = u8::try_from(flags).ok()?;
    if flags & REQUEST_MASK == SYN {
        return Some(PacketClass::Request);
    }
    (!VALID_FLAGS.contains(&(flags & VALIDITY_MASK))).then_some(PacketClass::Invalid)
}

/// States of `ct state` as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConnectionStates(u8);

impl ConnectionStates {
    const ESTABLISHED: Self = Self(1);
    const RELATED: Self = Self(2);
    const NEW: Self = Self(4);
    const INVALID: Self = Self(8);
    const UNTRACKED: Self = Self(16);
    const ANY: Self = Self(31);

    fn named(name: &Value) -> Option<Self> {
        match name.as_str()? {
            "established" => Some(Self::ESTABLISHED),
            "related" => Some(Self::RELATED),
            "new" => Some(Self::NEW),
            "invalid" => Some(Self::INVALID),
            "untracked" => Some(Self::UNTRACKED),
            _ => None,
        }
    }

    /// The states that a comparison holds for.
    fn compared(op: &str, right: &Value) -> Option<Self> {
        let all = |list: &[Value]| {
            list.iter().try_fold(Self(0), |all, name| {
                Some(all.or(Self::named(name.pointer("/elem/val").unwrap_or(name))?))
            })
        };
        let choices = right.get("set").and_then(Value::as_array);
        match (op, right) {
            // A list is one mask, which no packet equals.
            ("in", Value::Array(list)) => all(list),
            ("in" | "==", _) => choices.map_or_else(|| Self::named(right), |list| all(list)),
            ("!=", _) => {
                let states = choices.map_or_else(|| Self::named(right), |list| all(list))?;
                Some(Self(Self::ANY.0 & !states.0))
            }
            _ => None,
        }
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn has_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The facts of a rule set and of a chain that states depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tracking {
    /// Connection requests are taken for packets of no connection.
    is_syn_new: bool,
    /// A rule excludes packets from tracking.
    has_untracked: bool,
    /// A rule sets a helper, which expects further connections.
    has_helper: bool,
    /// A flow table forwards packets before the chains behind it.
    has_flow_table: bool,
    /// A rule sets the zone, by which packets without a connection get the state `new`
    /// (`nft_ct_set_zone_eval` in net/netfilter/nft_ct.c).
    has_zone: bool,
    /// The chain comes after connection tracking.
    is_after: bool,
}

impl Tracking {
    pub(super) fn of(ruleset: &Ruleset<'_>, is_syn_new: bool) -> Self {
        Self {
            is_syn_new,
            has_untracked: ruleset.uses(&["notrack"]),
            has_helper: ruleset.uses(&["ct helper", "ct expectation"]),
            has_flow_table: ruleset.uses(&["flow"]),
            has_zone: ruleset.uses(&[ZONE]),
            is_after: false,
        }
    }

    /// The facts for a chain, which comes after connection tracking or not.
    pub(super) fn in_chain(self, is_after: bool) -> Self {
        Self { is_after, ..self }
    }

    /// The states that packets of a class may have.
    fn states(self, class: PacketClass) -> ConnectionStates {
        let untracked = if self.has_untracked { ConnectionStates::UNTRACKED } else { ConnectionStates(0) };
        match class {
            _ if self.has_zone => ConnectionStates::ANY,
            PacketClass::Invalid => ConnectionStates::INVALID.or(untracked),
            // The checksum is verified first.
            PacketClass::Untracked => ConnectionStates::INVALID.or(ConnectionStates::UNTRACKED),
            PacketClass::Request if !self.is_syn_new => ConnectionStates::ANY,
            PacketClass::Request => {
                let related = if self.has_helper { ConnectionStates::RELATED } else { ConnectionStates(0) };
                // Before connection tracking all packets are invalid.
                let before = if self.is_after { ConnectionStates(0) } else { ConnectionStates::INVALID };
                ConnectionStates::NEW.or(before).or(related).or(untracked)
            }
        }
    }

    /// Whether a flow table forwards packets of connections.
    pub(super) fn has_flow_table(self) -> bool {
        self.has_flow_table
    }

    /// The classes whose packets are never of a connection that is translated or in a flow table.
    pub(super) fn unconnected(self) -> PacketClasses {
        let connected = ConnectionStates::ESTABLISHED.or(ConnectionStates::RELATED);
        let tracking = self.in_chain(true);
        PacketClasses::of(PacketClasses::ALL.into_iter().filter(|class| {
            // A flow table does not look at flags.
            let is_forwarded = self.has_flow_table && *class == PacketClass::Invalid;
            !tracking.states(*class).meets(connected) && !is_forwarded
        }))
    }

    /// Whether a comparison holds for no connection request. `dnat` counts, as requests whose destination is
    /// translated stay with the kernel by the rule that translates it, unless a helper does so.
    fn excludes_requests(self, key: &str, op: &str, right: &Value) -> bool {
        let is_excluding = |name: &Value| match key {
            "direction" => name == "reply",
            "status" => name == "seen-reply" || name == "assured" || (name == "dnat" && !self.has_helper),
            _ => false,
        };
        let list = right.get("set").unwrap_or(right).as_array();
        self.is_syn_new
            && matches!(op, "==" | "in")
            && list.map_or_else(|| is_excluding(right), |list| list.iter().all(is_excluding))
    }
}

/// The result of a comparison on connections.
pub(super) enum ConnectionMatch {
    Always,
    Never,
    /// It holds for some packets.
    Sometimes {
        /// The classes that it does not hold for.
        excluded: PacketClasses,
        /// It holds for all connection requests.
        has_requests: bool,
    },
}

/// The result of a comparison of `ct` with a value, for packets of a condition.
pub(super) fn connection_match(
    op: &str,
    left: &Value,
    right: &Value,
    packets: &Condition,
    tracking: Tracking,
) -> ConnectionMatch {
    let key = left.pointer("/ct/key").and_then(Value::as_str).unwrap_or_default();
    let own = PacketClasses::with_all(packets);
    if key != "state" && tracking.has_zone {
        return ConnectionMatch::Sometimes { excluded: PacketClasses::default(), has_requests: false };
    }
    if key != "state" {
        // Packets of no connection have no other property of one, and the rule ends.
        let without = PacketClasses::of([PacketClass::Invalid, PacketClass::Untracked]);
        if own.is_some_and(|own| own.is_within(without)) {
            return ConnectionMatch::Never;
        }
        let is_without_requests = tracking.excludes_requests(key, op, right);
        let requests = PacketClasses::of(is_without_requests.then_some(PacketClass::Request));
        return ConnectionMatch::Sometimes { excluded: without.or(requests), has_requests: false };
    }
    let Some(states) = ConnectionStates::compared(op, right) else {
        return ConnectionMatch::Sometimes { excluded: PacketClasses::default(), has_requests: false };
    };
    let of = |classes: PacketClasses| {
        let each = PacketClasses::ALL.into_iter().filter(|class| classes.contains(*class));
        each.fold(ConnectionStates(0), |all, class| all.or(tracking.states(class)))
    };
    match own.map(of) {
        Some(own) if states.has_all(own) => return ConnectionMatch::Always,
        Some(own) if !states.meets(own) => return ConnectionMatch::Never,
        _ => {}
    }
    let is_excluded = |class: &PacketClass| !states.meets(tracking.states(*class));
    ConnectionMatch::Sometimes {
        excluded: PacketClasses::of(PacketClasses::ALL.into_iter().filter(is_excluded)),
        has_requests: states.has_all(tracking.states(PacketClass::Request)),
    }
}

impl Condition {
    /// The packets of these classes; `None`: there are none for certain.
    pub(super) fn only(&self, classes: PacketClasses) -> Option<Self> {
        if PacketClasses::with_all(self).is_some_and(|own| own.is_within(classes)) {
            return Some(self.clone());
        }
        classes.contains(PacketClass::Request).then(|| self.requests())?
    }

    /// The connection requests; `None`: there are none.
    pub(super) fn requests(&self) -> Option<Self> {
        let mut requests = self.clone();
        requests.is_on_transport = true;
        let is_exact = requests.narrow_all(&[tcp(), ("tcp_flags", flags_equal(REQUEST_MASK, SYN))])?;
        is_exact.then_some(requests)
    }

    /// At least all packets but connection requests, in parts.
    pub(super) fn without_requests(&self) -> Vec<Self> {
        // Other packets than those of IP have no protocol.
        if self.values("family").is_none() {
            return vec![self.clone()];
        }
        let other_protocols = Constraint::not_in(Kind::Protocol, &tcp().1.values, None);
        let other_flags = flags_other(REQUEST_MASK, SYN);
        let parts = [vec![("protocol", other_protocols)], vec![tcp(), ("tcp_flags", other_flags)]];
        let part = |keys: Vec<(&'static str, Constraint)>| {
            let mut part = self.clone();
            part.is_on_transport = true;
            part.narrow_all(&keys)?;
            Some(part)
        };
        parts.into_iter().filter_map(part).collect()
    }
}

fn tcp() -> (&'static str, Constraint) {
    ("protocol", Constraint::of(Kind::Protocol, RangeSet::single(IpProtocol::TCP.0.into())))
}

//! The matches of a rule of nftables as keys of a match.
//!
//! A comparison that the language cannot express is approximated from both sides: [`Packets::upper`] has all
//! packets that a rule may match and [`Packets::lower`] those that it matches for certain. Rules that accept
//! use the first, rules that drop the second.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use packet::IpProtocol;
use program::RangeSet;
use serde_json::Value;

use super::super::{Keys, quoted};
use super::connection::{ConnectionMatch, PacketClasses, Tracking, connection_match};
use super::ruleset::Sets;
use super::values::{
    Constraint, Kind, Left, flags_of, fragments_of, is_on_transport, left_of, payload, version,
};

/// The reason why a comparison is not exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The condition is on the state of connections.
    Connection,
    /// The condition is on an interface, and that of the port is not known.
    Interface,
    Other(String),
}

impl Doubt {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Connection => {
                "`ct` cannot be matched: a policy does not know the state of connections".to_owned()
            }
            Self::Interface => "the interface of the port is not known (hint: --interface)".to_owned(),
            Self::Other(text) => text.clone(),
        }
    }
}

/// The meaning of a comparison.
enum Compared {
    Always,
    Never,
    /// These keys, exactly.
    Keys(Vec<(&'static str, Constraint)>),
    /// At most these keys; for certain, if they are given, the second ones.
    Between(Vec<(&'static str, Constraint)>, Option<Vec<(&'static str, Constraint)>>, Doubt),
    /// It depends on connections; not for packets of these classes, and for all connection requests or not.
    Connection {
        excluded: PacketClasses,
        has_requests: bool,
    },
}

/// Facts that comparisons depend on.
pub(super) struct Context<'c, 'v> {
    pub(super) sets: &'c Sets<'v>,
    /// The interface of the port.
    pub(super) interface: Option<&'c str>,
    /// Whether the chain may get packets that the kernel has put together from fragments.
    pub(super) is_reassembled: bool,
    pub(super) tracking: Tracking,
    /// The addresses of the host.
    pub(super) addresses: &'c [IpAddr],
}

/// Keys whose values differ between the packets of a connection.
const PACKET_KEYS: [&str; 8] =
    ["tcp_flags", "ttl", "hop_limit", "dscp", "fragment", "src_mac", "dst_mac", "vlan"];

/// All matches of a rule, and of those that lead to its chain.
#[derive(Clone, Debug, Default)]
pub(super) struct Condition {
    keys: BTreeMap<&'static str, Constraint>,
    /// Whether one is on the transport protocol or its header, which nft finds behind IPv6 extension headers.
    pub(super) is_on_transport: bool,
    /// Sets whose elements expire.
    pub(super) expiring: BTreeSet<String>,
}

/// Conditions are equal if they hold for the same packets of the policy.
impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.keys == other.keys
    }
}

impl Eq for Condition {}

impl Condition {
    /// The packets that tables of a family see.
    pub(super) fn of_family(family: &str) -> Result<Self, String> {
        let mut condition = Self::default();
        let versions: &[u128] = match family {
            "ip" => &[4],
            "ip6" => &[6],
            "inet" => &[4, 6],
            "netdev" | "bridge" => return Ok(condition),
            other => return Err(format!("tables of the family {} are not supported", quoted(other))),
        };
        let versions = RangeSet::each(versions.iter().copied());
        condition.keys.insert("family", Constraint::of(Kind::Family, versions));
        Ok(condition)
    }

    /// The packets to these addresses, by IP version; an IPv4-mapped address stands for the IPv4 address.
    pub(super) fn to_any_of(addresses: &[IpAddr]) -> Vec<Self> {
        let addresses = addresses.iter().map(IpAddr::to_canonical);
        let v4 = addresses.clone().filter_map(|address| match address {
            IpAddr::V4(address) => Some(u32::from(address).into()),
            IpAddr::V6(_) => None,
        });
        let v6 = addresses.filter_map(|address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(u128::from(address)),
        });
        let of = |kind, version, addresses: RangeSet<u128>| {
            let family = ("family", Constraint::of(Kind::Family, RangeSet::single(version)));
            let keys = BTreeMap::from([family, ("dst", Constraint::of(kind, addresses.clone()))]);
            (!addresses.is_empty()).then(|| Self { keys, ..Self::default() })
        };
        let versions = [of(Kind::V4, 4, RangeSet::each(v4)), of(Kind::V6, 6, RangeSet::each(v6))];
        versions.into_iter().flatten().collect()
    }

    /// The packets of all connections that have a packet of this condition.
    pub(super) fn of_connections(&self) -> Self {
        let mut condition = self.clone();
        PACKET_KEYS.iter().for_each(|key| drop(condition.keys.remove(key)));
        condition
    }

    /// The match, and the sets that it names.
    pub(super) fn keys(&self) -> (Keys, BTreeSet<String>) {
        let mut keys = Keys::default();
        self.keys.iter().for_each(|(key, constraint)| keys.push(key, &constraint.shown));
        (keys, self.keys.values().filter_map(|constraint| constraint.set.clone()).collect())
    }

    /// The values of a key, if they are not any.
    pub(super) fn values(&self, key: &str) -> Option<&RangeSet<u128>> {
        self.keys.get(key).map(|constraint| &*constraint.values)
    }

    /// Narrows a key. `None`: no packet is left; `Some(false)`: the language cannot express it, and nothing
    /// is changed.
    fn narrow(&mut self, key: &'static str, new: &Constraint) -> Option<bool> {
        let Some(before) = self.keys.get(key) else {
            self.keys.insert(key, new.clone());
            return (!new.values.is_empty()).then_some(true);
        };
        let both = before.values.intersect(&new.values);
        if both.is_empty() {
            return None;
        }
        if both == *before.values {
            return Some(true);
        }
        let narrowed =
            if both == *new.values { Some(new.clone()) } else { Constraint::computed(new.kind, both) };
        let Some(narrowed) = narrowed else { return Some(false) };
        self.keys.insert(key, narrowed);
        Some(true)
    }

    /// Narrows several keys; the same answers as of one.
    pub(super) fn narrow_all(&mut self, keys: &[(&'static str, Constraint)]) -> Option<bool> {
        keys.iter()
            .try_fold(true, |is_exact, (key, constraint)| Some(self.narrow(key, constraint)? && is_exact))
    }
}

/// Packets that reach a place of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packets {
    /// All packets that may reach it, and perhaps others.
    pub(super) upper: Condition,
    /// Only packets that reach it for certain, perhaps not all of these; `None`: none.
    pub(super) lower: Option<Condition>,
    /// The last reason why the two differ, and the number of reasons.
    pub(super) doubt: Option<Doubt>,
    pub(super) doubts: u32,
    /// Classes of packets that are in `upper` but do not reach the place.
    pub(super) excluded: PacketClasses,
}

impl Packets {
    pub(super) fn of(condition: Condition) -> Self {
        let lower = Some(condition.clone());
        Self { lower, upper: condition, doubt: None, doubts: 0, excluded: PacketClasses::default() }
    }

    /// The rule may match fewer packets.
    pub(super) fn doubt(&mut self, doubt: Doubt) {
        self.lower = None;
        self.doubt = Some(doubt);
        self.doubts += 1;
    }

    /// The packets that are also in this family; `None`: there are none.
    pub(super) fn and(&self, family: &Condition) -> Option<Self> {
        let mut both = self.clone();
        let keys: Vec<_> = family.keys.iter().map(|(key, constraint)| (*key, constraint.clone())).collect();
        both.apply(Compared::Keys(keys), false).then_some(both)
    }

    /// Adds a `match` statement. Returns whether packets are left.
    pub(super) fn add(&mut self, body: &Value, context: &Context<'_, '_>) -> bool {
        let (Some(left), Some(right)) = (body.get("left"), body.get("right")) else {
            self.doubt(Doubt::Other("an incomplete match".to_owned()));
            return true;
        };
        self.compare(body.get("op").and_then(Value::as_str).unwrap_or("=="), left, right, context)
    }

    /// Adds a comparison. Returns whether packets are left.
    pub(super) fn compare(
        &mut self,
        op: &str,
        left: &Value,
        right: &Value,
        context: &Context<'_, '_>,
    ) -> bool {
        if let (Some(lefts), Some(rights)) = (concat_of(left), concat_of(right))
            && op != "!="
            && lefts.len() == rights.len()
        {
            return lefts.iter().zip(rights).all(|(left, right)| self.compare("==", left, right, context));
        }
        let compared = compared(op, left, right, &self.upper, context);
        let expiring = context.sets.expiring(right);
        let is_left = self.apply(compared, is_on_transport(left));
        if let (Some(set), Some(lower)) = (expiring, &mut self.lower) {
            lower.expiring.insert(set.to_owned());
        }
        is_left
    }

    fn apply(&mut self, compared: Compared, is_on_transport: bool) -> bool {
        let (upper, lower, doubt) = match compared {
            Compared::Always => return true,
            Compared::Never => return false,
            Compared::Keys(keys) => (keys.clone(), Some(keys), None),
            Compared::Between(upper, lower, doubt) => (upper, lower, Some(doubt)),
            Compared::Connection { excluded, has_requests } => {
                let requests = self.lower.take().filter(|_| has_requests);
                self.doubt(Doubt::Connection);
                self.lower = requests.and_then(|lower| lower.requests());
                self.excluded = self.excluded.or(excluded);
                return true;
            }
        };
        let Some(is_exact) = self.upper.narrow_all(&upper) else { return false };
        self.upper.is_on_transport |= is_on_transport;
        let narrowed = self.lower.take().zip(lower).and_then(|(mut before, keys)| {
            before.is_on_transport |= is_on_transport;
            before.narrow_all(&keys)?.then_some(before)
        });
        self.lower = narrowed;
        if let Some(doubt) = doubt {
            self.doubt = Some(doubt);
            self.doubts += 1;
        } else if !is_exact {
            self.doubt(Doubt::Other("it tests a key in two ways".to_owned()));
        }
        true
    }
}

/// The parts of a concatenation.
pub(super) fn concat_of(value: &Value) -> Option<&Vec<Value>> {
    value.pointer("/elem/val").unwrap_or(value).get("concat")?.as_array()
}

/// The meaning of a comparison for packets of a condition.
fn compared(
    op: &str,
    left: &Value,
    right: &Value,
    packets: &Condition,
    context: &Context<'_, '_>,
) -> Compared {
    if let Some(key) = left.pointer("/meta/key").and_then(Value::as_str)
        && matches!(key, "iif" | "iifname")
    {
        return interface(op, right, context);
    }
    if left.get("ct").is_some() {
        return match connection_match(op, left, right, packets, context.tracking) {
            ConnectionMatch::Always => Compared::Always,
            ConnectionMatch::Never => Compared::Never,
            ConnectionMatch::Sometimes { excluded, has_requests } => {
                Compared::Connection { excluded, has_requests }
            }
        };
    }
    if let Some(is_equal) = is_local(op, left, right, packets, context.addresses) {
        return if is_equal { Compared::Always } else { Compared::Never };
    }
    let tcp = || ("protocol", Constraint::of(Kind::Protocol, RangeSet::single(IpProtocol::TCP.0.into())));
    match flags_of(op, left, right) {
        None => {}
        Some(Ok(flags)) => return Compared::Keys(vec![tcp(), ("tcp_flags", flags)]),
        Some(Err(why)) => return Compared::Between(vec![tcp()], None, Doubt::Other(why)),
    }
    if let Some(fragments) = fragments_of(op, left, right) {
        return fragments_compared(fragments, context);
    }
    // With an interface, tagged frames stay with the kernel.
    if payload(left) == Some(("ether", "type"))
        && !packets.keys.contains_key("family")
        && context.interface.is_none()
    {
        let why = "of a tagged frame the kernel compares the type of its tag (hint: --interface NAME)";
        return Compared::Between(Vec::new(), None, Doubt::Other(why.to_owned()));
    }
    if let Some(versions) = versions_of(left, right) {
        let named = match op {
            "==" | "in" => Some(Constraint::of(Kind::Family, versions)),
            "!=" if packets.keys.contains_key("family") => {
                Some(Constraint::not_in(Kind::Family, &versions, None))
            }
            _ => None,
        };
        if let Some(named) = named {
            return if named.values.is_empty() {
                Compared::Never
            } else {
                Compared::Keys(vec![("family", named)])
            };
        }
    }
    let (left, mut implied) = match left_of(left) {
        (Ok(left), implied) => (left, implied),
        (Err(why), implied) => return Compared::Between(implied, None, Doubt::Other(why)),
    };
    let (values, is_certain) = match values(op, &left, right, context.sets) {
        Ok(found) => found,
        Err(why) => return Compared::Between(implied, None, Doubt::Other(why)),
    };
    let Some(constraint) = values else { return Compared::Between(implied, None, expires()) };
    if constraint.values.is_empty() {
        return if is_certain { Compared::Never } else { Compared::Between(implied, None, expires()) };
    }
    let upper = implied.clone();
    let protocols = packets.keys.get("protocol").map(|constraint| &*constraint.values);
    let of_sctp = left.sctp_key.filter(|_| {
        protocols.is_some_and(|protocols| *protocols == RangeSet::single(IpProtocol::SCTP.0.into()))
    });
    implied.push((of_sctp.unwrap_or(left.key), constraint));
    if left.sctp_key.is_some() && of_sctp.is_none() {
        let with_ports = RangeSet::each([IpProtocol::TCP, IpProtocol::UDP].map(|one| one.0.into()));
        if protocols.is_none_or(|protocols| protocols.intersect(&with_ports) != *protocols) {
            implied.push(("protocol", Constraint::of(Kind::Protocol, with_ports)));
            let why = "it tests ports of every protocol (hint: add meta l4proto { tcp, udp })".to_owned();
            return Compared::Between(upper, Some(implied), Doubt::Other(why));
        }
    }
    match is_certain {
        true => Compared::Keys(implied),
        false => Compared::Between(upper, Some(implied), expires()),
    }
}

/// The meaning of a comparison of the offset of fragments.
fn fragments_compared(fragments: Constraint, context: &Context<'_, '_>) -> Compared {
    let family = ("family", Constraint::of(Kind::Family, RangeSet::single(4)));
    if !context.is_reassembled {
        return Compared::Keys(vec![family, ("fragment", fragments)]);
    }
    let why = "the kernel puts fragments together before this chain".to_owned();
    Compared::Between(vec![family], None, Doubt::Other(why))
}

/// The result of a comparison of `fib daddr type` for packets to addresses of the host, whose type is
/// `local`.
fn is_local(
    op: &str,
    left: &Value,
    right: &Value,
    packets: &Condition,
    addresses: &[IpAddr],
) -> Option<bool> {
    let fib = left.get("fib").filter(|fib| fib["result"] == "type")?;
    let flags = fib.get("flags")?;
    if flags != "daddr" && flags.as_array().is_none_or(|flags| *flags != ["daddr"]) {
        return None;
    }
    let (family, dst) = (packets.values("family")?, packets.values("dst")?);
    let is_own = |own: &Condition| {
        own.values("family") == Some(family)
            && own.values("dst").is_some_and(|own| own.intersect(dst) == *dst)
    };
    if !Condition::to_any_of(addresses).iter().any(is_own) {
        return None;
    }
    let types = right.get("set").and_then(Value::as_array).map_or(std::slice::from_ref(right), Vec::as_slice);
    let types: Vec<&str> = types.iter().map(Value::as_str).collect::<Option<_>>()?;
    match op {
        "==" | "in" => Some(types.contains(&"local")),
        "!=" => Some(!types.contains(&"local")),
        _ => None,
    }
}

/// The IP versions that ethertypes stand for, if all of them do.
fn versions_of(left: &Value, right: &Value) -> Option<RangeSet<u128>> {
    let is_type = left.pointer("/meta/key").and_then(Value::as_str) == Some("protocol")
        || payload(left) == Some(("ether", "type"));
    let one = |value: &Value| version(value.as_str()?);
    let versions: Option<Vec<u128>> = match right.get("set").and_then(Value::as_array) {
        Some(items) => items.iter().map(one).collect(),
        None => one(right).map(|version| vec![version]),
    };
    versions.filter(|_| is_type).map(RangeSet::each)
}

fn expires() -> Doubt {
    Doubt::Other("its set gets elements while nft runs, or loses them".to_owned())
}

/// The values of a comparison, and whether they stay the same; no values: any may be compared.
fn values(
    op: &str,
    left: &Left,
    right: &Value,
    sets: &Sets<'_>,
) -> Result<(Option<Constraint>, bool), String> {
    if let Some(set) = right.as_str().and_then(|text| text.strip_prefix('@')) {
        let (name, ranges, is_constant) = sets.named(set, left)?;
        let constraint = match op {
            "!=" if !is_constant => return Ok((None, false)),
            "!=" if ranges.is_empty() => Constraint::of(left.kind, RangeSet::of(vec![(0, left.kind.most())])),
            "!=" => Constraint::not_in(left.kind, &ranges, Some(name)),
            "==" | "in" => Constraint::in_set(left.kind, ranges, name),
            _ => return Err(format!("the comparison `{}` of a set", quoted(op))),
        };
        return Ok((Some(constraint), is_constant));
    }
    let ranges = match right.get("set").and_then(Value::as_array) {
        Some(items) => left.items(items)?,
        None => left.items([right])?,
    };
    let number = || ranges.only().ok_or("not a number".to_owned());
    let most = left.kind.most();
    let constraint = match op {
        "==" | "in" => Constraint::of(left.kind, ranges),
        "!=" if ranges.is_empty() => Constraint::of(left.kind, RangeSet::of(vec![(0, most)])),
        "!=" => Constraint::not_in(left.kind, &ranges, None),
        "<" => match number()?.checked_sub(1) {
            Some(last) => Constraint::of(left.kind, RangeSet::of(vec![(0, last)])),
            None => Constraint::of(left.kind, RangeSet::default()),
        },
        "<=" => Constraint::of(left.kind, RangeSet::of(vec![(0, number()?)])),
        ">" => Constraint::of(left.kind, RangeSet::of(vec![(number()?.saturating_add(1), most)])),
        ">=" => Constraint::of(left.kind, RangeSet::of(vec![(number()?, most)])),
        other => return Err(format!("the comparison `{}` of `{}`", quoted(other), left.key)),
    };
    Ok((Some(constraint), true))
}

/// A comparison of the interface that packets come from; never that of the host's own packets.
fn interface(op: &str, right: &Value, context: &Context<'_, '_>) -> Compared {
    if context.sets.expiring(right).is_some() {
        return Compared::Between(Vec::new(), None, expires());
    }
    let named = right.as_str().and_then(|text| text.strip_prefix('@'));
    let items: Vec<&Value> = match (named, right.get("set").and_then(Value::as_array)) {
        (Some(set), _) => match context.sets.elements(set) {
            Some(elements) => elements,
            None => return Compared::Between(Vec::new(), None, Doubt::Interface),
        },
        (None, Some(items)) => items.iter().collect(),
        (None, None) => vec![right],
    };
    let mut is_member = Some(false);
    for item in items {
        match is_interface(item.pointer("/elem/val").unwrap_or(item), context.interface) {
            Some(true) => is_member = Some(true),
            None if is_member == Some(false) => is_member = None,
            _ => {}
        }
    }
    match (is_member, op) {
        (Some(is_member), "==" | "in") if is_member => Compared::Always,
        (Some(is_member), "!=") if !is_member => Compared::Always,
        (Some(_), "==" | "in" | "!=") => Compared::Never,
        _ => Compared::Between(Vec::new(), None, Doubt::Interface),
    }
}

/// Whether the port's interface is this one; `None`: not known.
pub(super) fn is_interface(item: &Value, interface: Option<&str>) -> Option<bool> {
    let name = item.as_str()?;
    match (name, interface) {
        ("lo", Some(own)) => Some(own == "lo"),
        ("lo", None) => Some(false),
        ("*", _) => Some(true),
        (name, Some(own)) => Some(match name.strip_suffix('*') {
            Some(start) => own.starts_with(start),
            None => own == name,
        }),
        (_, None) => None,
    }
}

/// The alternatives of a match on a concatenation: the elements of its set.
pub(super) fn alternatives<'v>(body: &'v Value, sets: &Sets<'v>) -> Option<Vec<&'v Value>> {
    concat_of(body.get("left")?)?;
    let op = body.get("op").and_then(Value::as_str).unwrap_or("==");
    if !matches!(op, "==" | "in") {
        return None;
    }
    let right = body.get("right")?;
    let elements = match right.as_str().and_then(|text| text.strip_prefix('@')) {
        Some(set) if sets.expiring(right).is_none() => sets.elements(set)?,
        Some(_) => return None,
        None => right.get("set")?.as_array()?.iter().collect(),
    };
    (elements.len() <= 256).then_some(elements)
}

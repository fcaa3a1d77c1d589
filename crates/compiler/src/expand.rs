//! One match to the cubes that cover it: lists and ranges become prefix masks, their combinations one
//! cube each. Where the device has no words for a key, or the masks would be too many, the cubes cover more
//! than the match and the key is named, for the worker to finish.

use device_model::DeviceProfile;
use packet::IpProtocol;
use policy::policy::Direction;
use program::{
    Addresses, ByteSet, C_TAG, Family, Fragments, Macs, Match, RangeSet, Unfinished, VlanMatch, Why, Word,
};

use super::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_MAC, DST_PORT, ETHER_TYPE, FLOW_LABEL, Field, HAS_IPV4, HAS_IPV6,
    HAS_TCP, HAS_UDP, IP_FLAGS, PROTOCOL, SENT, SRC_HIGH, SRC_IPV4, SRC_LOW, SRC_MAC, SRC_PORT, TOS, TTL,
    VLAN_TCI,
};
use super::fit::fit;
use super::tunnel;

/// The most cubes of one rule. A rule beyond it would take longer to install than anyone wants to wait.
pub(super) const MAX_CUBES_PER_RULE: usize = 1 << 17;
/// The most combinations of the ranges and negations of one rule, its lists of addresses not counted.
/// Beyond it the widest of them are left to the worker.
pub(super) const MAX_RANGE_CUBES: usize = 1 << 12;
/// The most cubes that ranges and negations may make of a rule together with its lists: with more, and more
/// than a few for each list entry, they are left to the worker as well.
const MAX_LISTED_RANGE_CUBES: usize = 1 << 14;
/// So few for each list entry are always told the device.
const FEW_RANGE_CUBES: usize = 1 << 4;
/// The most combinations tried for one rule, also those that no packet can meet.
const MAX_COMBINATIONS: usize = 1 << 24;

/// The two flavours of a C-tag: the drop-eligible bit, which every tag has. Together they say "any tag".
const DEI: u64 = 0x1000;

/// What covers a match.
pub(super) struct Expansion {
    /// None: no packet can match.
    pub(super) cubes: Vec<Cube>,
    /// The keys that the cubes do not say exactly.
    pub(super) software: Vec<Unfinished>,
}

impl Expansion {
    pub(super) const NOTHING: Self = Self { cubes: Vec::new(), software: Vec::new() };
}

/// A rule with too many combinations.
pub(super) struct Explosion {
    pub(super) excess: Excess,
    /// The keys with their numbers of alternatives, most first.
    pub(super) keys: Vec<(String, usize)>,
}

/// More combinations than there may be.
#[derive(Clone, Copy)]
pub(super) struct Excess {
    /// How many there are, those that no packet can meet included.
    pub(super) combinations: usize,
    /// The limit that they exceed.
    pub(super) most: usize,
    /// Whether lists are counted among them, or ranges alone.
    with_lists: bool,
}

/// One key of a match as the cubes that it may be.
pub(super) struct Factor {
    key: String,
    cubes: Vec<Cube>,
    /// Whether a worker can take it over without the rule taking all traffic: not so for addresses.
    is_range: bool,
}

/// The factors of a match on their way to cubes.
#[derive(Default)]
pub(super) struct Factors {
    list: Vec<Factor>,
    pub(super) software: Vec<Unfinished>,
}

impl Factors {
    pub(super) fn range(&mut self, key: impl Into<String>, cubes: Vec<Cube>) {
        self.list.push(Factor { key: key.into(), cubes, is_range: true });
    }

    pub(super) fn list(&mut self, key: impl Into<String>, cubes: Vec<Cube>) {
        self.list.push(Factor { key: key.into(), cubes, is_range: false });
    }

    /// The worker finishes this key: the device has no words for it.
    pub(super) fn finish(&mut self, key: impl Into<String>) {
        self.software.push(Unfinished { key: key.into(), why: Why::NoWords });
    }

    /// Leaves the range with the most masks to the worker, for that reason; false if there is none.
    fn give_up_widest(&mut self, excess: Excess) -> bool {
        let wide = self.list.iter().enumerate().filter(|(_, f)| f.is_range && f.cubes.len() > 1);
        let Some((widest, _)) = wide.max_by_key(|(index, factor)| (factor.cubes.len(), *index)) else {
            return false;
        };
        let Factor { key, cubes, .. } = self.list.remove(widest);
        let Excess { combinations, most, with_lists } = excess;
        let why = Why::TooMany { masks: cubes.len(), combinations, most, with_lists };
        if !self.software.iter().any(|known| known.key == key) {
            self.software.push(Unfinished { key, why });
        }
        true
    }

    /// By which limit ranges make too many combinations, if they do.
    fn excess_of_ranges(&self) -> Option<Excess> {
        let ranges = combinations(self.list.iter().filter(|factor| factor.is_range));
        let all = combinations(self.list.iter());
        if ranges > MAX_RANGE_CUBES {
            Some(Excess { combinations: ranges, most: MAX_RANGE_CUBES, with_lists: false })
        } else if ranges > FEW_RANGE_CUBES && all > MAX_LISTED_RANGE_CUBES {
            Some(Excess { combinations: all, most: MAX_LISTED_RANGE_CUBES, with_lists: true })
        } else {
            None
        }
    }
}

/// Covers a match as far as the device can say it. Packets without a readable TCP or UDP header have cubes of their
/// own: no flow can be told those, but flows can leave them out.
pub(super) fn expand(
    matches: &Match,
    direction: Direction,
    profile: &DeviceProfile,
) -> Result<Expansion, Explosion> {
    let expansion = cover(matches, direction, profile)?;
    let Some(no_ports) = matches.no_ports() else { return Ok(expansion) };
    let Expansion { cubes: with_ports, mut software } = expansion;
    // A worker finishes a rule that is not exact: its flows take these packets with all of their protocol.
    let is_exact = software.is_empty();
    let exactly = DeviceProfile::ideal();
    let others = cover(&no_ports, direction, if is_exact { &exactly } else { profile })?;
    for note in others.software {
        if !software.contains(&note) {
            software.push(note);
        }
    }
    let without = |cube: Cube| cube.layer(HAS_TCP, false)?.layer(HAS_UDP, false)?.closed();
    let no_ports =
        others.cubes.into_iter().filter_map(|cube| if is_exact { without(cube) } else { Some(cube) });
    // These come first: what is left of a flow without them has the headers that the others ask for.
    Ok(Expansion { cubes: no_ports.chain(with_ports).collect(), software })
}

fn cover(matches: &Match, direction: Direction, profile: &DeviceProfile) -> Result<Expansion, Explosion> {
    let mut factors = Factors::default();
    let sent = u64::from(direction == Direction::Egress);
    factors.list("direction", Cube::ANY.with(SENT, sent, 1).into_iter().collect());
    let outer = Level { inside: false, has_ethernet: true };
    packet_factors(matches, outer, matches.needs_ip() || tunnel::needs_ip(matches), &mut factors);
    tunnel::factors(matches, &mut factors);
    while factors.excess_of_ranges().is_some_and(|excess| factors.give_up_widest(excess)) {}
    let cubes = loop {
        match product(&factors.list) {
            Ok(cubes) => break cubes,
            Err(excess) if factors.give_up_widest(excess) => {}
            Err(excess) => return Err(explosion(&factors.list, excess)),
        }
    };
    let mut expansion = Expansion { cubes, software: factors.software };
    fit(&mut expansion, matches, profile);
    Ok(expansion)
}

/// Every combination that some packet meets, or why there are too many.
fn product(factors: &[Factor]) -> Result<Vec<Cube>, Excess> {
    let excess = |tried: usize, most| Excess {
        combinations: combinations(factors.iter()).max(tried),
        most,
        with_lists: true,
    };
    let (single, several): (Vec<&Factor>, Vec<&Factor>) =
        factors.iter().partition(|factor| factor.cubes.len() == 1);
    let mut single = single.into_iter().flat_map(|factor| &factor.cubes);
    let start = single.try_fold(Cube::ANY, |all, cube| all.and(cube));
    let mut cubes: Vec<Cube> = start.into_iter().collect();
    let mut tried = 0usize;
    for Factor { cubes: alternatives, .. } in several {
        tried = tried.saturating_add(cubes.len().saturating_mul(alternatives.len()));
        if tried > MAX_COMBINATIONS {
            return Err(excess(tried, MAX_COMBINATIONS));
        }
        let mut next = Vec::with_capacity(alternatives.len().saturating_mul(cubes.len()).min(1 << 10));
        for cube in &cubes {
            next.extend(alternatives.iter().filter_map(|alternative| cube.and(alternative)));
            if next.len() > MAX_CUBES_PER_RULE {
                return Err(excess(0, MAX_CUBES_PER_RULE));
            }
        }
        cubes = next;
    }
    Ok(cubes)
}

fn combinations<'f>(factors: impl Iterator<Item = &'f Factor>) -> usize {
    factors.fold(1usize, |all, factor| all.saturating_mul(factor.cubes.len().max(1)))
}

fn explosion(factors: &[Factor], excess: Excess) -> Explosion {
    let mut keys: Vec<_> = factors
        .iter()
        .map(|factor| (factor.key.clone(), factor.cubes.len()))
        .filter(|(_, count)| *count > 1)
        .collect();
    keys.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Explosion { excess, keys }
}

/// Which packet a match is about.
#[derive(Clone, Copy)]
pub(super) struct Level {
    /// The one inside the tunnel.
    pub(super) inside: bool,
    /// Whether it surely has an Ethernet header.
    pub(super) has_ethernet: bool,
}

impl Level {
    fn at(self, field: Field) -> Field {
        if self.inside { field.inside() } else { field }
    }

    fn key(self, key: &str) -> String {
        if self.inside { format!("inner.{key}") } else { key.to_owned() }
    }
}

/// What a match asks of one packet's own headers.
pub(super) fn packet_factors(matches: &Match, level: Level, needs_ip: bool, factors: &mut Factors) {
    if needs_ip {
        factors.list(level.key("family"), families(matches, level));
    }
    if matches.needs_transport() {
        factors.list(level.key("protocol"), transports(matches, level));
    }
    link_factors(matches, level, factors);
    let pieces = matches.fragment.is_some_and(|set| set != Fragments::all());
    for (key, given) in [
        ("fragment", pieces),
        ("tcp_flags", matches.tcp_flags.is_some()),
        ("ip_options", matches.ip_options.is_some()),
    ] {
        if given {
            factors.finish(level.key(key));
        }
    }
    let mut field = |key: &str, field: Field, cover: Option<Vec<(u64, u64)>>| {
        if let Some(cover) = cover {
            factors.range(level.key(key), one_field(level.at(field), cover));
        }
    };
    field("protocol", PROTOCOL, matches.protocol.as_ref().map(|set| prefixes(set, 8)));
    field("tos", TOS, matches.tos.as_ref().map(|set| patterns(set, 8)));
    field("ttl", TTL, matches.ttl.as_ref().map(|set| prefixes(set, 8)));
    field("ip_flags", IP_FLAGS, matches.ip_flags.as_ref().map(|set| patterns(set, 3)));
    field("flow_label", FLOW_LABEL, matches.flow_label.as_ref().map(|set| prefixes(set, 20)));
    field("src_port", SRC_PORT, matches.src_port.as_ref().map(|set| prefixes(set, 16)));
    field("dst_port", DST_PORT, matches.dst_port.as_ref().map(|set| prefixes(set, 16)));
    if let Some(set) = &matches.src {
        factors.list(level.key("src"), addresses([SRC_IPV4, SRC_HIGH, SRC_LOW], set, level));
    }
    if let Some(set) = &matches.dst {
        factors.list(level.key("dst"), addresses([DST_IPV4, DST_HIGH, DST_LOW], set, level));
    }
}

/// What a match asks of the Ethernet header and its tags.
fn link_factors(matches: &Match, level: Level, factors: &mut Factors) {
    for (key, field, macs) in [("src_mac", SRC_MAC, &matches.src_mac), ("dst_mac", DST_MAC, &matches.dst_mac)]
    {
        let Some(macs) = macs else { continue };
        if !level.has_ethernet {
            factors.finish(level.key(key));
            continue;
        }
        if !macs.none_of.is_empty() {
            factors.finish(level.key(key));
        }
        factors.list(level.key(key), mac_cubes(level.at(field), macs));
    }
    if level.inside {
        // A packet inside need not have an Ethernet header, and the device does not say whether it has.
        let tags = matches.vlan.is_some() || matches.vlan_priority.is_some() || matches.vlan_tpid.is_some();
        let second = matches.inner_vlan.is_some() || matches.inner_vlan_tpid.is_some();
        for (key, given) in
            [("vlan", tags), ("inner_vlan", second), ("ethertype", matches.ethertype.is_some())]
        {
            if given {
                factors.finish(level.key(key));
            }
        }
        return;
    }
    if let Some(alternatives) = vlan(matches, factors) {
        factors.range("vlan", alternatives);
    }
    if matches.inner_vlan.is_some() || matches.inner_vlan_tpid.is_some() {
        factors.finish("inner_vlan");
    }
    if let Some(set) = &matches.ethertype {
        factors.range("ethertype", one_field(ETHER_TYPE, prefixes(set, 16)));
    }
}

/// IPv4, IPv6, or either.
fn families(matches: &Match, level: Level) -> Vec<Cube> {
    let family = matches.implied_family();
    let addresses = || [&matches.src, &matches.dst].into_iter().flatten();
    let no_v4 = family == Some(Family::V6)
        || matches.flow_label.is_some()
        || addresses().any(|set| set.v4.is_empty());
    let no_v6 = family == Some(Family::V4)
        || matches.ip_options.is_some()
        || matches.ip_flags.is_some()
        || addresses().any(|set| set.v6.is_empty());
    let v4 = (!no_v4).then(|| Cube::ANY.layer(level.at(HAS_IPV4), true)).flatten();
    let v6 = (!no_v6).then(|| Cube::ANY.layer(level.at(HAS_IPV6), true)).flatten();
    // An IPv6 fragment shows itself: the fragment header comes first, or `packet::parse` does not see it.
    let v6 = match matches.fragment {
        Some(set) if !set.contains(Fragments::WHOLE) => {
            v6.and_then(|v6| v6.with(level.at(PROTOCOL), u64::from(IpProtocol::FRAGMENT.0), PROTOCOL.ones()))
        }
        _ => v6,
    };
    v4.into_iter().chain(v6).filter_map(Cube::closed).collect()
}

/// TCP, UDP, or either.
fn transports(matches: &Match, level: Level) -> Vec<Cube> {
    let layers = [(HAS_TCP, IpProtocol::TCP), (HAS_UDP, IpProtocol::UDP)];
    let layers = layers.into_iter().filter(|(layer, protocol)| {
        let is_meant = matches.protocol.as_ref().is_none_or(|set| set.contains(protocol.0));
        is_meant && (*layer == HAS_TCP || matches.tcp_flags.is_none())
    });
    layers.filter_map(|(layer, _)| Cube::ANY.layer(level.at(layer), true)?.closed()).collect()
}

/// What the device can say of the outer tag; `None` for nothing.
fn vlan(matches: &Match, factors: &mut Factors) -> Option<Vec<Cube>> {
    let Some(tpids) = matches.outer_tpid() else {
        if matches.vlan.is_some() {
            factors.finish("vlan");
        }
        return None;
    };
    if tpids.only() != Some(C_TAG) {
        factors.finish("vlan_tpid");
        return None;
    }
    let ids = match &matches.vlan {
        Some(VlanMatch::Ids(ids)) => ids.prefixes(12),
        _ => vec![(0, 0)],
    };
    let priorities = matches.vlan_priority.as_ref().map_or(vec![(0, 0)], |set| set.prefixes(3));
    let mut alternatives = Vec::new();
    for (id, id_mask) in &ids {
        for (priority, priority_mask) in &priorities {
            let value = u64::from(*id) | u64::from(*priority) << 13;
            let mask = u64::from(*id_mask) | u64::from(*priority_mask) << 13;
            match mask {
                0 => alternatives.extend([(0, DEI), (DEI, DEI)]),
                _ => alternatives.push((value, mask)),
            }
        }
    }
    Some(one_field(VLAN_TCI, alternatives))
}

/// The fewest aligned masks that cover a set of numbers of so many bits.
pub(super) fn prefixes<T: Word + Into<u64>>(set: &RangeSet<T>, bits: u32) -> Vec<(u64, u64)> {
    set.prefixes(bits).into_iter().map(|(value, mask)| (value.into(), mask.into())).collect()
}

/// The same for sets that are not ranges.
pub(super) fn patterns(set: &ByteSet, bits: u32) -> Vec<(u64, u64)> {
    set.patterns(bits).into_iter().map(|(value, mask)| (value.into(), mask.into())).collect()
}

fn mac_cubes(field: Field, macs: &Macs) -> Vec<Cube> {
    let number = |mac: packet::MacAddr| mac.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    one_field(field, macs.any_of.iter().map(|mac| (number(mac.value), number(mac.mask))))
}

/// A cube for each (value, mask) of a field.
pub(super) fn one_field(field: Field, pairs: impl IntoIterator<Item = (u64, u64)>) -> Vec<Cube> {
    pairs.into_iter().filter_map(|(value, mask)| Cube::ANY.with(field, value, mask)?.closed()).collect()
}

fn addresses(fields: [Field; 3], set: &Addresses, level: Level) -> Vec<Cube> {
    let [v4, high, low] = fields.map(|field| level.at(field));
    let v4_cubes = set.v4.prefixes(u32::BITS).into_iter().filter_map(|(value, mask)| {
        let cube = Cube::ANY.layer(level.at(HAS_IPV4), true)?;
        cube.with(v4, u64::from(value), u64::from(mask))?.closed()
    });
    let v6_cubes = set.v6.prefixes(u128::BITS).into_iter().filter_map(|(value, mask)| {
        let cube = Cube::ANY.layer(level.at(HAS_IPV6), true)?;
        let cube = cube.with(high, (value >> 64) as u64, (mask >> 64) as u64)?;
        cube.with(low, value as u64, mask as u64)?.closed()
    });
    v4_cubes.chain(v6_cubes).collect()
}

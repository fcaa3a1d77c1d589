//! One match to the cubes that cover it. Lists and ranges become prefix masks, and each combination of these
//! becomes a cube. A range of n-bit numbers needs at most 2n - 2 prefixes, and the prefixes of one set are
//! disjoint. If the device cannot match a key, or there would be too many masks, the cubes cover more than
//! the match and the key is listed for the worker to test.

use device_model::DeviceModel;
use packet::cube::{
    Cube, DST_PORT, ETHER_TYPE, GRE_FLAGS, GRE_PROTOCOL, HAS_GRE, HAS_INNER, HAS_IPV4, HAS_IPV6, HAS_MPLS,
    HAS_TCP, HAS_UDP, MPLS_TOP, PROTOCOL, SENT, Slot, VLAN_TCI,
};
use packet::{EtherType, Field, Form, GRE_HAS_KEY, Header, IpProtocol, Layers, MPLS_UDP_PORT};
use policy::policy::Direction;
use program::{
    Addresses, ByteSet, C_TAG, Family, Fragments, Macs, Match, MplsEntry, RangeSet, UndecidedKey,
    UndecidedReason,
};

use crate::cover::legalize::{Expansion, legalize};

/// The most cubes of one rule. More would take minutes to install.
pub(crate) const MAX_CUBES_PER_RULE: usize = 1 << 17;
/// The most combinations of the ranges and negations of one rule, its lists of addresses not counted.
/// Beyond it the widest of them are left to the worker.
pub(crate) const MAX_RANGE_CUBES: usize = 1 << 12;
/// The most cubes that ranges and negations may make of a rule together with its lists: with more, and more
/// than a few for each list entry, they are left to the worker as well.
const MAX_LISTED_RANGE_CUBES: usize = 1 << 14;
/// Up to this number for each list entry, ranges are always matched by the device.
const FEW_RANGE_CUBES: usize = 1 << 4;
/// The most combinations tried for one rule, contradictory ones included.
const MAX_COMBINATIONS: usize = 1 << 24;

/// The drop-eligible bit of a tag. A cube with the bit and one without together match any tag.
const DEI: u64 = 0x1000;

/// A rule with too many combinations.
#[derive(Debug)]
pub(crate) struct Explosion {
    pub(crate) excess: Excess,
    /// The keys with their numbers of alternatives, most first.
    pub(crate) keys: Vec<(String, usize)>,
}

/// More combinations than there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Excess {
    /// How many there are, contradictory ones included.
    pub(crate) combinations: usize,
    /// The limit that they exceed.
    pub(crate) most: usize,
    /// Whether lists are counted among them, or ranges alone.
    with_lists: bool,
}

/// One key of a match, as alternative cubes.
struct Factor {
    key: String,
    cubes: Vec<Cube>,
    /// Whether it may be left to a worker. Addresses may not: the flows would match nearly all traffic.
    is_range: bool,
}

/// The factors of a match; their product is its cubes.
#[derive(Default)]
struct Factors {
    list: Vec<Factor>,
    pub(crate) software: Vec<UndecidedKey>,
}

impl Factors {
    fn range(&mut self, key: impl Into<String>, cubes: Vec<Cube>) {
        self.list.push(Factor { key: key.into(), cubes, is_range: true });
    }

    fn list(&mut self, key: impl Into<String>, cubes: Vec<Cube>) {
        self.list.push(Factor { key: key.into(), cubes, is_range: false });
    }

    /// Leaves a key to the worker, because the device cannot match it.
    fn finish(&mut self, key: impl Into<String>) {
        self.software.push(UndecidedKey { key: key.into(), why: UndecidedReason::NoSpec });
    }

    /// Leaves the range with the most masks to the worker, for that reason; false if there is none.
    fn give_up_widest(&mut self, excess: Excess) -> bool {
        let wide = self.list.iter().enumerate().filter(|(_, f)| f.is_range && f.cubes.len() > 1);
        let Some((widest, _)) = wide.max_by_key(|(index, factor)| (factor.cubes.len(), *index)) else {
            return false;
        };
        let Factor { key, cubes, .. } = self.list.remove(widest);
        let Excess { combinations, most, with_lists } = excess;
        let why = UndecidedReason::TooMany { masks: cubes.len(), combinations, most, with_lists };
        if !self.software.iter().any(|known| known.key == key) {
            self.software.push(UndecidedKey { key, why });
        }
        true
    }

    /// The limit by which ranges make too many combinations, if they do.
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

/// Covers a match as exactly as the device can. Packets without a complete TCP or UDP header have cubes of
/// their own, which no flow can match but which can be subtracted from flows.
pub(crate) fn expand(
    matches: &Match,
    direction: Direction,
    profile: &DeviceModel,
) -> Result<Expansion, Explosion> {
    let expansion = cover(matches, direction, profile)?;
    let Some(no_ports) = matches.no_ports() else { return Ok(expansion) };
    let Expansion { cubes: with_ports, mut software } = expansion;
    // A worker decides a rule that is not exact, so its flows match these packets together with all of their
    // protocol. Excluding the headers here would widen those flows: the cubes could no longer be cut to the
    // flows of later rules.
    let is_exact = software.is_empty();
    let exactly = DeviceModel::ideal();
    let others = cover(&no_ports, direction, if is_exact { &exactly } else { profile })?;
    for note in others.software {
        if !software.contains(&note) {
            software.push(note);
        }
    }
    let without = |cube: Cube| cube.layer(HAS_TCP, false)?.layer(HAS_UDP, false)?.closed();
    // Ports behind extension headers are no part of the cubes.
    if others.cubes == with_ports {
        return Ok(Expansion { cubes: with_ports, software });
    }
    let no_ports =
        others.cubes.into_iter().filter_map(|cube| if is_exact { without(cube) } else { Some(cube) });
    // These come first: once they are subtracted from a flow, the rest of it has the headers that the other
    // cubes match.
    Ok(Expansion { cubes: no_ports.chain(with_ports).collect(), software })
}

fn cover(matches: &Match, direction: Direction, profile: &DeviceModel) -> Result<Expansion, Explosion> {
    let mut factors = Factors::default();
    let sent = u64::from(direction == Direction::Egress);
    factors.list("direction", Cube::ANY.with(SENT, sent, 1).into_iter().collect());
    packet_factors(matches, Level::OUTER, matches.needs_ip() || tunnel_needs_ip(matches), &mut factors);
    tunnel_factors(matches, &mut factors);
    while factors.excess_of_ranges().is_some_and(|excess| factors.give_up_widest(excess)) {}
    let cubes = loop {
        match product(&factors.list) {
            Ok(cubes) => break cubes,
            Err(excess) if factors.give_up_widest(excess) => {}
            Err(excess) => return Err(explosion(&factors.list, excess)),
        }
    };
    let mut expansion = Expansion { cubes, software: factors.software };
    legalize(&mut expansion, matches, profile);
    Ok(expansion)
}

/// Every combination that is not contradictory, or why there are too many.
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
struct Level {
    /// The one inside the tunnel.
    inside: bool,
    /// Whether it surely has an Ethernet header.
    has_ethernet: bool,
}

impl Level {
    /// The outermost packet, which always has an Ethernet header.
    const OUTER: Self = Self { inside: false, has_ethernet: true };

    fn at(self, field: Slot) -> Slot {
        if self.inside { field.inside() } else { field }
    }

    fn key(self, key: &str) -> String {
        if self.inside { format!("inner.{key}") } else { key.to_owned() }
    }
}

/// The factors of one packet's own headers. The order of the factors is the order of the cubes: headers
/// first, then numbers, then addresses, whose lists are the longest.
fn packet_factors(matches: &Match, level: Level, needs_ip: bool, factors: &mut Factors) {
    if needs_ip {
        factors.list(level.key("family"), families(matches, level));
    }
    if matches.needs_transport() {
        factors.list(level.key("protocol"), transports(matches, level));
    }
    let extended = matches.values().map(|(field, _)| field).find(|field| field.row().header.is_extended());
    for (field, _) in matches.values() {
        let header = field.row().header;
        // All fields behind extension headers need the same protocols.
        let is_known = header.is_extended() && Some(field) != extended;
        if header.is_behind_ip() && !header.is_transport() && !is_known {
            let announced = header.protocols().iter().map(|protocol| (protocol.0.into(), PROTOCOL.ones()));
            factors.list(level.key(field.name()), one_slot(level.at(PROTOCOL), announced));
        }
    }
    link_factors(matches, level, factors);
    let is_fragment = matches.fragment.is_some_and(|set| set != Fragments::all());
    for (key, given) in [("fragment", is_fragment), ("ip_options", matches.ip_options.is_some())] {
        if given {
            factors.finish(level.key(key));
        }
    }
    for (field, set) in matches.values().filter(|(field, _)| field.row().header.needs_ip()) {
        number(field, set, level, factors);
    }
    for ([v4, v6], set) in matches.addresses() {
        if let Some(set) = set {
            factors.list(level.key(v4.name()), addresses(v4, v6, set, level));
        }
    }
}

/// The factor of one field that is a number.
fn number(field: Field, set: &RangeSet<u32>, level: Level, factors: &mut Factors) {
    match field.row().slots {
        [slot] => factors.range(level.key(field.name()), one_slot(level.at(*slot), masks(field, set))),
        _ => factors.finish(level.key(field.name())),
    }
}

/// The factors of the Ethernet header and its tags.
fn link_factors(matches: &Match, level: Level, factors: &mut Factors) {
    for (field, macs) in matches.macs() {
        let (Some(macs), [slot]) = (macs, field.row().slots) else { continue };
        let key = level.key(field.name());
        if !level.has_ethernet || !macs.none_of.is_empty() {
            factors.finish(key.clone());
        }
        if level.has_ethernet {
            factors.list(key, mac_cubes(level.at(*slot), macs));
        }
    }
    let has_tag = matches.vlan.is_some() || matches.needs_header(Header::Vlan);
    let has_second = matches.inner_vlan.is_some() || matches.needs_header(Header::InnerVlan);
    if level.inside {
        // A packet in a tunnel may lack an Ethernet header, and no spec can match its presence.
        let has_type = matches.has(Field::EtherType);
        for (key, given) in [("vlan", has_tag), ("inner_vlan", has_second), ("ethertype", has_type)] {
            if given {
                factors.finish(level.key(key));
            }
        }
        return;
    }
    if let Some(alternatives) = vlan(matches, factors) {
        factors.range("vlan", alternatives);
    }
    if has_second {
        factors.finish("inner_vlan");
    }
    if let Some(set) = matches.get(Field::EtherType) {
        number(Field::EtherType, set, level, factors);
    }
}

/// IPv4, IPv6, or either.
fn families(matches: &Match, level: Level) -> Vec<Cube> {
    let family = matches.implied_family();
    let is_empty =
        |of: fn(&Addresses) -> bool| matches.addresses().into_iter().any(|(_, set)| set.is_some_and(of));
    let no_v4 = family == Some(Family::V6)
        || matches.needs_version(Layers::IPV6)
        || is_empty(|set| set.v4.is_empty());
    let no_v6 = family == Some(Family::V4)
        || matches.ip_options.is_some()
        || matches.needs_version(Layers::IPV4)
        || is_empty(|set| set.v6.is_empty());
    let v4 = (!no_v4).then(|| Cube::ANY.layer(level.at(HAS_IPV4), true)).flatten();
    let v6 = (!no_v6).then(|| Cube::ANY.layer(level.at(HAS_IPV6), true)).flatten();
    // `packet::parse` sees an IPv6 fragment header only if it is the first extension header.
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
        let is_meant = matches.get(Field::Protocol).is_none_or(|set| set.contains(protocol.0.into()));
        is_meant && (*layer == HAS_TCP || !matches.needs_header(Header::Tcp))
    });
    layers.filter_map(|(layer, _)| Cube::ANY.layer(level.at(layer), true)?.closed()).collect()
}

/// The cubes of the outer tag; `None`: the device cannot match it.
fn vlan(matches: &Match, factors: &mut Factors) -> Option<Vec<Cube>> {
    let Some(tpids) = matches.outer_tpid() else {
        if matches.vlan.is_some() {
            factors.finish("vlan");
        }
        return None;
    };
    if tpids.only() != Some(C_TAG.into()) {
        factors.finish("vlan_tpid");
        return None;
    }
    let pairs = |field: Field| matches.get(field).map_or(vec![(0, 0)], |set| set.prefixes(field.row().bits));
    let (ids, priorities) = (pairs(Field::VlanId), pairs(Field::VlanPriority));
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
    Some(one_slot(VLAN_TCI, alternatives))
}

/// Values and masks that cover a field's values exactly: aligned prefixes, or patterns of bits where bits
/// have meanings of their own.
fn masks(field: Field, set: &RangeSet<u32>) -> Vec<(u64, u64)> {
    match field.row().form {
        Form::Bits | Form::Flags(_) => {
            let patterns = ByteSet::of(set).patterns(field.row().bits);
            patterns.into_iter().map(|(value, mask)| (value.into(), mask.into())).collect()
        }
        _ => prefixes(set, field.row().bits),
    }
}

/// The fewest aligned masks that cover a set of numbers of so many bits.
fn prefixes(set: &RangeSet<u32>, bits: u32) -> Vec<(u64, u64)> {
    set.prefixes(bits).into_iter().map(|(value, mask)| (value.into(), mask.into())).collect()
}

fn mac_cubes(slot: Slot, macs: &Macs) -> Vec<Cube> {
    let number = |mac| packet::mac_number(mac) as u64;
    one_slot(slot, macs.any_of.iter().map(|mac| (number(mac.value), number(mac.mask))))
}

/// A cube for each (value, mask) of a slot.
fn one_slot(slot: Slot, pairs: impl IntoIterator<Item = (u64, u64)>) -> Vec<Cube> {
    pairs.into_iter().filter_map(|(value, mask)| Cube::ANY.with(slot, value, mask)?.closed()).collect()
}

/// The cubes of a list of addresses of both families.
fn addresses(v4: Field, v6: Field, set: &Addresses, level: Level) -> Vec<Cube> {
    let cubes = |layer, field: Field, pairs: Vec<(u128, u128)>| {
        let cube = |(value, mask): (u128, u128)| {
            // Slots hold a value from its most significant bits on.
            let mut left = field.row().bits;
            let start = Cube::ANY.layer(level.at(layer), true)?;
            let all = field.row().slots.iter().try_fold(start, |cube, slot| {
                left -= slot.bits();
                cube.with(
                    level.at(*slot),
                    (value >> left) as u64 & slot.ones(),
                    (mask >> left) as u64 & slot.ones(),
                )
            });
            all?.closed()
        };
        pairs.into_iter().filter_map(cube).collect::<Vec<_>>()
    };
    let wide = |(value, mask): (u32, u32)| (value.into(), mask.into());
    let v4 = cubes(HAS_IPV4, v4, set.v4.prefixes(u32::BITS).into_iter().map(wide).collect());
    [v4, cubes(HAS_IPV6, v6, set.v6.prefixes(u128::BITS))].concat()
}

/// Whether the tunnel header itself is behind an IP header.
fn tunnel_needs_ip(matches: &Match) -> bool {
    matches.values().any(|(field, _)| field.row().header.is_tunnel())
}

/// The factors of a match's tunnel fields, `inner` included.
fn tunnel_factors(matches: &Match, factors: &mut Factors) {
    for (field, set) in matches.values() {
        let Some(layer) = field.row().header.tunnel_layer() else { continue };
        factors.list(field.name(), layer_cube(layer));
        if field.row().header == Header::GreKey {
            factors.list(field.name(), one_slot(GRE_FLAGS, [(GRE_HAS_KEY.into(), GRE_HAS_KEY.into())]));
        }
        number(field, set, Level::OUTER, factors);
    }
    if let Some(stack) = &matches.mpls {
        mpls(stack, factors);
    }
    if let Some(inner) = &matches.inner {
        factors.list("inner", layer_cube(HAS_INNER));
        if inner.mpls.is_some() {
            factors.finish("inner.mpls");
        }
        // Only VXLAN surely carries an Ethernet header.
        let level = Level { inside: true, has_ethernet: matches.needs_header(Header::Vxlan) };
        packet_factors(inner, level, inner.needs_ip(), factors);
    }
}

/// A label stack follows an Ethernet, GRE or UDP header; the device matches its top entry.
fn mpls(stack: &[MplsEntry], factors: &mut Factors) {
    factors.list("mpls", mpls_places());
    if let Some(top) = stack.first() {
        mpls_entry(top, factors);
    }
    if stack.len() > 1 {
        factors.finish("mpls");
    }
}

fn mpls_places() -> Vec<Cube> {
    let types = [EtherType::MPLS, EtherType::MPLS_MULTICAST];
    let ethernet =
        types.map(|ether_type| Cube::ANY.with(ETHER_TYPE, u64::from(ether_type.0), ETHER_TYPE.ones()));
    let over_ip = [HAS_IPV4, HAS_IPV6].into_iter().flat_map(|ip| {
        let udp = Cube::ANY.layer(ip, true).and_then(|cube| cube.layer(HAS_UDP, true));
        let udp = udp.and_then(|cube| cube.with(DST_PORT, u64::from(MPLS_UDP_PORT), DST_PORT.ones()));
        let gre = types.map(|carried| {
            let gre = Cube::ANY.layer(ip, true)?.layer(HAS_GRE, true)?;
            gre.with(GRE_PROTOCOL, u64::from(carried.0), GRE_PROTOCOL.ones())
        });
        gre.into_iter().chain([udp])
    });
    let places = ethernet.into_iter().chain(over_ip);
    places.filter_map(|cube| cube?.layer(HAS_MPLS, true)?.closed()).collect()
}

/// The parts of an entry multiply: each is a factor, so that they are counted before there are too many.
fn mpls_entry(entry: &MplsEntry, factors: &mut Factors) {
    let bottom = entry.bottom.map(|bottom| vec![(u64::from(bottom), 1)]);
    for (shift, part) in [
        (12, entry.label.as_ref().map(|set| prefixes(set, 20))),
        (9, entry.tc.as_ref().map(|set| prefixes(set, 3))),
        (8, bottom),
        (0, entry.ttl.as_ref().map(|set| prefixes(set, 8))),
    ] {
        if let Some(pairs) = part {
            let shifted = pairs.into_iter().map(|(value, mask)| (value << shift, mask << shift));
            factors.range("mpls", one_slot(MPLS_TOP, shifted));
        }
    }
}

fn layer_cube(field: Slot) -> Vec<Cube> {
    Cube::ANY.layer(field, true).and_then(Cube::closed).into_iter().collect()
}

//! One match to the cubes that cover it: lists and ranges become prefix masks, their combinations one
//! cube each. Where the device has no words for a key the cubes cover more than the match and the key is
//! named, for the worker to finish.

use packet::IpProtocol;

use crate::byte_set::ByteSet;
use crate::policy::{Addresses, C_TAG, Family, Fragments, Macs, Match, VlanMatch};
use crate::ranges::{RangeSet, Word};

use super::cube::{
    Cube, DST_HIGH, DST_IPV4, DST_LOW, DST_MAC, DST_PORT, ETHER_TYPE, Field, HAS_IPV4, HAS_IPV6, HAS_TCP,
    HAS_UDP, PROTOCOL, SRC_HIGH, SRC_IPV4, SRC_LOW, SRC_MAC, SRC_PORT, TOS, VLAN_TCI,
};

/// The most cubes of one rule. A rule beyond it would take longer to install than anyone wants to wait.
pub(super) const MAX_CUBES_PER_RULE: usize = 1 << 16;
/// The most combinations tried for one rule, also those that no packet can meet.
const MAX_COMBINATIONS: usize = 1 << 24;

/// The two flavours of a C-tag: the drop-eligible bit, which every tag has. Together they say "any tag".
const DEI: u64 = 0x1000;

/// What covers a match.
pub(super) struct Expansion {
    /// None: no packet can match.
    pub(super) cubes: Vec<Cube>,
    /// The keys that the cubes do not say exactly.
    pub(super) software: Vec<&'static str>,
}

/// A rule with too many combinations.
pub(super) struct Explosion {
    /// How many there would be, at most.
    pub(super) combinations: usize,
    /// The keys with their numbers of alternatives, most first.
    pub(super) keys: Vec<(&'static str, usize)>,
}

/// Covers a match.
pub(super) fn expand(matches: &Match) -> Result<Expansion, Explosion> {
    let mut software = Vec::new();
    let mut factors = vec![("family", families(matches))];
    if matches.needs_transport() {
        factors.push(("protocol", transports(matches)));
    }
    factors.extend(vlan(matches, &mut software).map(|alternatives| ("vlan", alternatives)));
    if matches.inner_vlan.is_some() || matches.inner_vlan_tpid.is_some() {
        software.push("inner_vlan");
    }
    let finished_in_software = [
        ("fragment", matches.fragment.is_some()),
        ("tcp_flags", matches.tcp_flags.is_some()),
        ("ip_options", matches.ip_options.is_some()),
        ("ttl", matches.ttl.is_some()),
        ("flow_label", matches.flow_label.is_some()),
        ("ip_flags", matches.ip_flags.is_some()),
        ("src_mac", matches.src_mac.as_ref().is_some_and(|macs| !macs.none_of.is_empty())),
        ("dst_mac", matches.dst_mac.as_ref().is_some_and(|macs| !macs.none_of.is_empty())),
    ];
    software.extend(finished_in_software.iter().filter(|(_, given)| *given).map(|(key, _)| *key));
    factors.extend(matches.ethertype.as_ref().map(|set| ("ethertype", prefixes(ETHER_TYPE, set))));
    factors.extend(matches.protocol.as_ref().map(|set| ("protocol", prefixes(PROTOCOL, set))));
    factors.extend(matches.tos.as_ref().map(|set| ("tos", patterns(TOS, set))));
    factors.extend(matches.src_mac.as_ref().map(|list| ("src_mac", macs(SRC_MAC, list))));
    factors.extend(matches.dst_mac.as_ref().map(|list| ("dst_mac", macs(DST_MAC, list))));
    factors.extend(matches.src_port.as_ref().map(|set| ("src_port", prefixes(SRC_PORT, set))));
    factors.extend(matches.dst_port.as_ref().map(|set| ("dst_port", prefixes(DST_PORT, set))));
    factors.extend(matches.src.as_ref().map(|set| ("src", addresses([SRC_IPV4, SRC_HIGH, SRC_LOW], set))));
    factors.extend(matches.dst.as_ref().map(|set| ("dst", addresses([DST_IPV4, DST_HIGH, DST_LOW], set))));
    match product(&factors) {
        Some(cubes) => Ok(Expansion { cubes, software }),
        None => Err(explosion(&factors)),
    }
}

/// Every combination that some packet meets; `None` beyond the limits.
fn product(factors: &[(&'static str, Vec<Cube>)]) -> Option<Vec<Cube>> {
    let mut cubes = vec![Cube::ANY];
    let mut tried = 0usize;
    for (_, alternatives) in factors {
        let mut next = Vec::new();
        for cube in &cubes {
            tried = tried.saturating_add(alternatives.len());
            if tried > MAX_COMBINATIONS {
                return None;
            }
            next.extend(alternatives.iter().filter_map(|alternative| cube.and(alternative)));
            if next.len() > MAX_CUBES_PER_RULE {
                return None;
            }
        }
        cubes = next;
    }
    Some(cubes)
}

fn explosion(factors: &[(&'static str, Vec<Cube>)]) -> Explosion {
    let mut keys: Vec<_> =
        factors.iter().map(|(key, list)| (*key, list.len())).filter(|(_, count)| *count > 1).collect();
    keys.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let combinations = factors.iter().fold(1usize, |all, (_, list)| all.saturating_mul(list.len()));
    Explosion { combinations, keys }
}

/// IPv4, IPv6, either, or no matter which.
fn families(matches: &Match) -> Vec<Cube> {
    if !matches.needs_ip() {
        return vec![Cube::ANY];
    }
    let no_v4 = matches.family == Some(Family::V6) || matches.flow_label.is_some();
    let v4 = (!no_v4).then(|| Cube::ANY.layer(HAS_IPV4, true)).flatten();
    let no_v6 =
        matches.family == Some(Family::V4) || matches.ip_options.is_some() || matches.ip_flags.is_some();
    let v6 = (!no_v6).then(|| Cube::ANY.layer(HAS_IPV6, true)).flatten();
    // An IPv6 fragment shows itself: the fragment header comes first, or `packet::parse` does not see it.
    let v6 = match matches.fragment {
        Some(set) if !set.contains(Fragments::WHOLE) => {
            v6.and_then(|v6| v6.with(PROTOCOL, u64::from(IpProtocol::FRAGMENT.0), PROTOCOL.ones()))
        }
        _ => v6,
    };
    v4.into_iter().chain(v6).filter_map(Cube::closed).collect()
}

fn transports(matches: &Match) -> Vec<Cube> {
    let layers: &[Field] = if matches.tcp_flags.is_some() { &[HAS_TCP] } else { &[HAS_TCP, HAS_UDP] };
    layers.iter().filter_map(|layer| Cube::ANY.layer(*layer, true)?.closed()).collect()
}

/// What the device can say of the outer tag; `None` for nothing.
fn vlan(matches: &Match, software: &mut Vec<&'static str>) -> Option<Vec<Cube>> {
    let Some(tpids) = matches.outer_tpid() else {
        if matches.vlan.is_some() {
            software.push("vlan");
        }
        return None;
    };
    if tpids.only() != Some(C_TAG) {
        software.push("vlan_tpid");
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

fn prefixes<T: Word + Into<u64>>(field: Field, set: &RangeSet<T>) -> Vec<Cube> {
    let cover = set.prefixes(T::BITS);
    one_field(field, cover.into_iter().map(|(value, mask)| (value.into(), mask.into())))
}

fn patterns(field: Field, set: &ByteSet) -> Vec<Cube> {
    let cover = set.patterns(u8::BITS);
    one_field(field, cover.into_iter().map(|(value, mask)| (value.into(), mask.into())))
}

fn macs(field: Field, macs: &Macs) -> Vec<Cube> {
    let number = |mac: packet::MacAddr| mac.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    one_field(field, macs.any_of.iter().map(|mac| (number(mac.value), number(mac.mask))))
}

fn one_field(field: Field, pairs: impl IntoIterator<Item = (u64, u64)>) -> Vec<Cube> {
    pairs.into_iter().filter_map(|(value, mask)| Cube::ANY.with(field, value, mask)?.closed()).collect()
}

fn addresses([v4, high, low]: [Field; 3], set: &Addresses) -> Vec<Cube> {
    let v4_cubes = set.v4.prefixes(u32::BITS).into_iter().filter_map(|(value, mask)| {
        Cube::ANY.layer(HAS_IPV4, true)?.with(v4, u64::from(value), u64::from(mask))?.closed()
    });
    let v6_cubes = set.v6.prefixes(u128::BITS).into_iter().filter_map(|(value, mask)| {
        let cube = Cube::ANY.layer(HAS_IPV6, true)?.with(high, (value >> 64) as u64, (mask >> 64) as u64)?;
        cube.with(low, value as u64, mask as u64)?.closed()
    });
    v4_cubes.chain(v6_cubes).collect()
}

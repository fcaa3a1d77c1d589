//! Matches in the language: what a region is printed as, and what parses back to the same match. Whichever of a
//! list and its `{ not = ... }` is shorter is written.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::{EtherType, Flag, GRE_FLAGS, IP_FLAGS, IpProtocol, MacAddr, TCP_FLAGS, flag_pattern};
use program::{
    Addresses, ByteSet, Family, Fragments, Macs, MaskedMac, Match, MplsEntry, RangeSet, VlanMatch, Word,
};

/// A match as the inline table that the language reads.
#[must_use]
pub fn match_text(matches: &Match) -> String {
    let mut keys: Vec<String> = Vec::new();
    packet_keys(matches, &mut keys);
    tunnel_keys(matches, &mut keys);
    if let Some(inner) = &matches.inner {
        keys.push(format!("inner = {}", match_text(inner)));
    }
    if keys.is_empty() {
        keys.push("any = true".to_owned());
    }
    format!("{{ {} }}", keys.join(", "))
}

fn packet_keys(matches: &Match, keys: &mut Vec<String>) {
    let mut put =
        |key: &str, value: Option<String>| keys.extend(value.map(|value| format!("{key} = {value}")));
    let types = |set: &Option<RangeSet<u16>>| set.as_ref().map(|set| numbers(set, u16::MAX, ether_type));
    put("dst_mac", matches.dst_mac.as_ref().map(macs));
    put("src_mac", matches.src_mac.as_ref().map(macs));
    put("vlan", matches.vlan.as_ref().map(vlan));
    put("vlan_priority", matches.vlan_priority.as_ref().map(|set| numbers(set, 7, decimal)));
    put("vlan_tpid", types(&matches.vlan_tpid));
    put("inner_vlan", matches.inner_vlan.as_ref().map(vlan));
    put("inner_vlan_tpid", types(&matches.inner_vlan_tpid));
    put("ethertype", types(&matches.ethertype));
    let family = matches.family.map(|family| match family {
        Family::V4 => quoted("ipv4"),
        Family::V6 => quoted("ipv6"),
    });
    put("family", family);
    put("src", matches.src.as_ref().map(addresses));
    put("dst", matches.dst.as_ref().map(addresses));
    put("protocol", matches.protocol.as_ref().map(|set| numbers(set, u8::MAX, protocol)));
    put("tos", matches.tos.map(|set| numbers(&set.ranges(), u8::MAX, decimal)));
    put("ttl", matches.ttl.as_ref().map(|set| numbers(set, u8::MAX, decimal)));
    put("flow_label", matches.flow_label.as_ref().map(|set| numbers(set, 0xf_ffff, decimal)));
    put("ip_flags", matches.ip_flags.map(|set| flags(&set, 3, &IP_FLAGS)));
    put("ip_options", matches.ip_options.map(|has| has.to_string()));
    put("fragment", matches.fragment.map(fragments));
    put("src_port", matches.src_port.as_ref().map(|set| numbers(set, u16::MAX, decimal)));
    put("dst_port", matches.dst_port.as_ref().map(|set| numbers(set, u16::MAX, decimal)));
    put("tcp_flags", matches.tcp_flags.map(|set| flags(&set, 8, &TCP_FLAGS)));
}

fn tunnel_keys(matches: &Match, keys: &mut Vec<String>) {
    let mut put =
        |key: &str, value: Option<String>| keys.extend(value.map(|value| format!("{key} = {value}")));
    let words = |set: &Option<RangeSet<u32>>, most| set.as_ref().map(|set| numbers(set, most, decimal));
    put("esp_spi", words(&matches.esp_spi, u32::MAX));
    put("esp_seq", words(&matches.esp_seq, u32::MAX));
    put("vxlan_vni", words(&matches.vxlan_vni, 0xff_ffff));
    put("gre_protocol", matches.gre_protocol.as_ref().map(|set| numbers(set, u16::MAX, ether_type)));
    put("gre_key", words(&matches.gre_key, u32::MAX));
    put("gre_flags", matches.gre_flags.map(|set| flags(&set, 8, &GRE_FLAGS)));
    let stack = matches.mpls.as_ref().map(|stack| match stack[..] {
        [] => quoted("any"),
        _ => format!("[{}]", stack.iter().map(label).collect::<Vec<_>>().join(", ")),
    });
    put("mpls", stack);
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

fn decimal<T: Word>(value: T) -> String {
    value.wide().to_string()
}

fn ether_type(value: u16) -> String {
    quoted(&EtherType(value).to_string())
}

fn protocol(value: u8) -> String {
    match IpProtocol(value).name() {
        Some(name) => quoted(name),
        None => value.to_string(),
    }
}

/// Numbers from 0 to `most`; single ones are written by `name`.
fn numbers<T: Word>(set: &RangeSet<T>, most: T, name: fn(T) -> String) -> String {
    let write = |set: &RangeSet<T>| -> Vec<String> {
        let one = |(low, high): &(T, T)| match low == high {
            true => name(*low),
            false => quoted(&format!("{}-{}", low.wide(), high.wide())),
        };
        set.ranges().iter().map(one).collect()
    };
    let rest = set.complement(most);
    either(&write(set), None, &write(&rest))
}

/// The values, or what includes them and those that are excluded from it; the shorter of the two.
fn either(values: &[String], around: Option<&str>, excluded: &[String]) -> String {
    let list = |values: &[String]| match values {
        [one] => one.clone(),
        _ => format!("[{}]", values.join(", ")),
    };
    let is_shorter = excluded.len() < values.len() || values.is_empty();
    match around {
        _ if excluded.is_empty() || !is_shorter => list(values),
        None => format!("{{ not = {} }}", list(excluded)),
        Some(around) => format!("[{around}, {{ not = {} }}]", list(excluded)),
    }
}

fn addresses(set: &Addresses) -> String {
    let v4 = |set: &RangeSet<u32>| -> Vec<String> {
        set.ranges().iter().flat_map(|range| range_v4(*range)).collect()
    };
    let v6 = |set: &RangeSet<u128>| -> Vec<String> {
        set.ranges().iter().flat_map(|range| range_v6(*range)).collect()
    };
    let mut values = v4(&set.v4);
    values.extend(v6(&set.v6));
    let (without_v4, without_v6) = (set.v4.complement(u32::MAX), set.v6.complement(u128::MAX));
    let (around, mut excluded) = match (set.v4.is_empty(), set.v6.is_empty()) {
        (false, false) => (None, v4(&without_v4)),
        (false, true) => (Some("\"0.0.0.0/0\""), v4(&without_v4)),
        (true, _) => (Some("\"::/0\""), Vec::new()),
    };
    if !set.v6.is_empty() {
        excluded.extend(v6(&without_v6));
    }
    either(&values, around, &excluded)
}

/// A range of addresses as a prefix where it is one.
fn range_v4((low, high): (u32, u32)) -> Option<String> {
    let size = u64::from(high - low) + 1;
    let (first, last) = (Ipv4Addr::from(low), Ipv4Addr::from(high));
    Some(quoted(&match size {
        1 => first.to_string(),
        _ if size.is_power_of_two() && u64::from(low) % size == 0 => {
            format!("{first}/{}", 32 - size.trailing_zeros())
        }
        _ => format!("{first}-{last}"),
    }))
}

fn range_v6((low, high): (u128, u128)) -> Option<String> {
    // One less than the size, which may be 2 to the 128.
    let host = high - low;
    let (first, last) = (Ipv6Addr::from(low), Ipv6Addr::from(high));
    Some(quoted(&match host {
        0 => first.to_string(),
        _ if host & host.wrapping_add(1) == 0 && low & host == 0 => {
            format!("{first}/{}", host.leading_zeros())
        }
        _ => format!("{first}-{last}"),
    }))
}

fn macs(macs: &Macs) -> String {
    let one = |mac: &MaskedMac| {
        quoted(&match *mac {
            MaskedMac { value, mask: MacAddr::BROADCAST } => value.to_string(),
            MaskedMac { value, mask } => format!("{value}/{mask}"),
        })
    };
    let wanted: Vec<String> = macs.any_of.iter().map(one).collect();
    let unwanted: Vec<String> = macs.none_of.iter().map(one).collect();
    match (&wanted[..], &unwanted[..]) {
        ([one], []) => one.clone(),
        (_, []) => format!("[{}]", wanted.join(", ")),
        _ if macs.any_of[..] == [MaskedMac::ANY] => format!("{{ not = [{}] }}", unwanted.join(", ")),
        _ => format!("[{}, {{ not = [{}] }}]", wanted.join(", "), unwanted.join(", ")),
    }
}

fn vlan(vlan: &VlanMatch) -> String {
    match vlan {
        VlanMatch::None => quoted("none"),
        VlanMatch::Any => quoted("any"),
        VlanMatch::Ids(ids) => numbers(ids, 0x0fff, decimal),
    }
}

fn fragments(set: Fragments) -> String {
    let words = [(Fragments::WHOLE, "none"), (Fragments::FIRST, "first"), (Fragments::LATER, "later")];
    let words: Vec<String> =
        words.iter().filter(|(class, _)| set.contains(*class)).map(|(_, word)| quoted(word)).collect();
    match set {
        Fragments::PIECES => quoted("any"),
        _ if words.len() == 1 => words.join(""),
        _ => format!("[{}]", words.join(", ")),
    }
}

/// Combinations of flags; all of them are "one set" or "it not set".
fn flags(set: &ByteSet, bits: u32, names: &[Flag]) -> String {
    let patterns: Vec<String> =
        set.patterns(bits).into_iter().map(|(value, mask)| flag_pattern(names, value, mask)).collect();
    let first = names.first().map_or("", |(name, _)| *name);
    match &patterns[..] {
        [one] if one.is_empty() => format!("[\"{first}\", \"!{first}\"]"),
        [one] => quoted(one),
        _ => format!("[{}]", patterns.iter().map(|one| quoted(one)).collect::<Vec<_>>().join(", ")),
    }
}

fn label(entry: &MplsEntry) -> String {
    let mut keys: Vec<String> = Vec::new();
    let mut put =
        |key: &str, value: Option<String>| keys.extend(value.map(|value| format!("{key} = {value}")));
    put("label", entry.label.as_ref().map(|set| numbers(set, 0xf_ffff, decimal)));
    put("tc", entry.tc.as_ref().map(|set| numbers(set, 7, decimal)));
    put("bottom", entry.bottom.map(|bottom| bottom.to_string()));
    put("ttl", entry.ttl.as_ref().map(|set| numbers(set, u8::MAX, decimal)));
    match keys.is_empty() {
        true => quoted("any"),
        false => format!("{{ {} }}", keys.join(", ")),
    }
}

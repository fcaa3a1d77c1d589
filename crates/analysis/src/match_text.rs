//! Matches as text in the policy language, which parses back to an equivalent match. Of a list and its
//! complement behind `not` the shorter is written.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::{FIELDS, Field, Flag, Form, Header, MacAddr, Row, flag_pattern};
use program::{Addresses, ByteSet, Family, Fragments, Macs, MaskedMac, Match, MplsEntry, RangeSet};

/// A match as an inline table of the policy language.
#[must_use]
pub fn match_text(matches: &Match) -> String {
    let family = matches.family.map(|family| match family {
        Family::V4 => quoted("ipv4"),
        Family::V6 => quoted("ipv6"),
    });
    let is_ip = |header: Header| header.needs_ip() && !header.is_transport() && !header.is_extended();
    let mut keys: Vec<String> = field_keys(matches, Header::is_link).collect();
    keys.extend(key("family", family));
    keys.extend(field_keys(matches, is_ip));
    keys.extend(key("ip_options", matches.ip_options.map(|has| has.to_string())));
    keys.extend(key("fragment", matches.fragment.map(fragments)));
    keys.extend(field_keys(matches, Header::is_transport));
    keys.extend(field_keys(matches, Header::is_extended));
    keys.extend(field_keys(matches, Header::is_tunnel));
    let stack = matches.mpls.as_ref().map(|stack| match stack[..] {
        [] => quoted("any"),
        _ => format!("[{}]", stack.iter().map(label).collect::<Vec<_>>().join(", ")),
    });
    keys.extend(key("mpls", stack));
    keys.extend(key("inner", matches.inner.as_deref().map(match_text)));
    if keys.is_empty() {
        keys.push("any = true".to_owned());
    }
    format!("{{ {} }}", keys.join(", "))
}

fn key(name: &str, value: Option<String>) -> Option<String> {
    value.map(|value| format!("{name} = {value}"))
}

/// The keys of the fields of some headers.
fn field_keys(matches: &Match, is_one: impl Fn(Header) -> bool) -> impl Iterator<Item = String> {
    let rows = FIELDS.iter().filter(move |row| is_one(row.header));
    rows.filter_map(|row| key(row.name, condition(matches, row)))
}

/// The condition on a field; none for the IPv6 field of an address, whose key is that of the IPv4 field.
fn condition(matches: &Match, row: &Row) -> Option<String> {
    if let Some(set) = matches.get(row.field) {
        return Some(match row.form {
            Form::Flags(names) => flags(&ByteSet::of(set), row.bits, names),
            _ => numbers(set, row.field.max() as u32, |value| value_text(row.field, value)),
        });
    }
    match row.form {
        Form::Mac => {
            let (_, own) = matches.macs().into_iter().find(|(field, _)| *field == row.field)?;
            own.map(macs)
        }
        Form::Address => {
            let (_, own) = matches.addresses().into_iter().find(|([v4, _], _)| *v4 == row.field)?;
            own.map(addresses)
        }
        Form::VlanId => {
            let is_there = if row.header == Header::Vlan { matches.vlan } else { matches.inner_vlan };
            is_there.map(|is_there| quoted(if is_there { "any" } else { "none" }))
        }
        _ => None,
    }
}

/// A value by name where it has one; an EtherType always as text.
fn value_text(field: Field, value: u32) -> String {
    let text = field.text(value.into());
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text } else { quoted(&text) }
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// Numbers from 0 to `most`; single ones are written by `name`.
fn numbers(set: &RangeSet<u32>, most: u32, name: impl Fn(u32) -> String) -> String {
    let write = |set: &RangeSet<u32>| -> Vec<String> {
        let one = |(low, high): &(u32, u32)| match low == high {
            true => name(*low),
            false => quoted(&format!("{low}-{high}")),
        };
        set.ranges().iter().map(one).collect()
    };
    either(&write(set), None, &write(&set.complement(most)))
}

/// The values, or `around` without the excluded ones; the shorter of the two.
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
        set.ranges().iter().flat_map(|(low, high)| range_v4(*low, *high)).collect()
    };
    let v6 = |set: &RangeSet<u128>| -> Vec<String> {
        set.ranges().iter().flat_map(|(low, high)| range_v6(*low, *high)).collect()
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
fn range_v4(low: u32, high: u32) -> Option<String> {
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

fn range_v6(low: u128, high: u128) -> Option<String> {
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
    let set = |set: &Option<RangeSet<u32>>, most| {
        set.as_ref().map(|set| numbers(set, most, |value| value.to_string()))
    };
    let keys = [
        key("label", set(&entry.label, 0xf_ffff)),
        key("tc", set(&entry.tc, 7)),
        key("bottom", entry.bottom.map(|bottom| bottom.to_string())),
        key("ttl", set(&entry.ttl, 0xff)),
    ];
    match keys.iter().any(Option::is_some) {
        false => quoted("any"),
        true => format!("{{ {} }}", keys.into_iter().flatten().collect::<Vec<_>>().join(", ")),
    }
}

//! Reading `match`, one key at a time. `conflicts` checks the keys in combination.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use packet::{Field, MAX_MPLS_LABELS};
use program::{Addresses, ByteSet, Family, Fragments, Macs, MaskedMac, Match, MplsEntry, RangeSet};

use crate::hint::ProblemHint;
use crate::keys;

use super::conflicts;
use super::reader::{Reader, Value, entries, integer_of};
use super::sets::{Parts, Sets, shortened};
use super::synonyms;
use super::values::{self, Flags, Kind, Numbers};

/// The spans of the keys of a match.
pub(super) type Spans = BTreeMap<&'static str, Range<usize>>;

/// Reads `match = { ... }`.
pub(super) fn read(reader: &mut Reader, value: &Value<'_>, sets: &mut Sets) -> Option<Match> {
    let mut fields = Fields { reader, sets, is_inner: false };
    fields.table(value)
}

/// Reads the tag of `[protect]`, as `vlan` of a match.
pub(super) fn vlan(reader: &mut Reader, value: &Value<'_>, sets: &mut Sets, matches: &mut Match) {
    Fields { reader, sets, is_inner: false }.vlan(value, Field::VlanId, matches);
}

/// Reads addresses, as `src` and `dst` of a match; messages name `key`.
pub(super) fn addresses(
    reader: &mut Reader,
    value: &Value<'_>,
    key: &str,
    sets: &mut Sets,
) -> Option<Addresses> {
    Fields { reader, sets, is_inner: false }.addresses(value, key)
}

/// Reads one match, or the `inner` of one.
struct Fields<'r> {
    reader: &'r mut Reader,
    sets: &'r mut Sets,
    is_inner: bool,
}

impl Fields<'_> {
    fn table(&mut self, value: &Value<'_>) -> Option<Match> {
        let what = if self.is_inner { "`inner`" } else { "`match`" };
        let table = self.reader.table(value, what)?;
        self.reader.refuse_unknown_keys(table, &keys::MATCH, "a match");
        if table.is_empty() {
            let message = if self.is_inner { "`inner` is empty" } else { "the match is empty" };
            let hint = match self.is_inner {
                false => "write match = { any = true } to match every packet",
                true => "write inner = { any = true } to match every packet that carries another",
            };
            self.reader.error_with(value.span(), message, "no conditions", hint);
            return None;
        }
        let before = self.reader.diagnostics.error_count();
        let mut matches = Match::default();
        let mut spans = Spans::new();
        for (key, value) in entries(table) {
            let Some(known) = keys::MATCH.iter().find(|known| known.name == key.get_ref().as_ref()) else {
                continue;
            };
            spans.insert(known.name, value.span());
            if self.is_inner && !known.inner {
                let message = format!("`{}` is a field of the outer packet", known.name);
                let hint = "only the first tunnel is parsed: write it next to `inner`";
                self.reader.error_with(key.span(), message, "not available inside a tunnel", hint);
            } else {
                self.field(known.name, value, &mut matches);
            }
        }
        self.repetitions(&spans);
        if spans.contains_key("family") && matches.family.is_none() && !matches.needs_ip() {
            // Both versions: any packet with an IP header has a protocol.
            matches.set(Field::Protocol, RangeSet::of(vec![(0, u8::MAX.into())]));
        }
        if self.reader.diagnostics.error_count() == before {
            conflicts::check(self.reader, &matches, &spans);
            conflicts::warn(self.reader, &matches, &spans);
        }
        conflicts::imply_family(&mut matches, &spans);
        (self.reader.diagnostics.error_count() == before).then_some(matches)
    }

    /// Reports keys that match the same bits, and `any` in combination with other keys.
    fn repetitions(&mut self, spans: &Spans) {
        if let (Some(any), true) = (spans.get("any"), spans.len() > 1) {
            let hint = "remove `any`, or the other keys";
            self.reader.error_with(
                any.clone(),
                "`any` cannot be combined with other keys",
                "next to other keys",
                hint,
            );
        }
        for (one, other, hint) in [
            ("tos", "dscp", "the DSCP is the upper six bits of the type of service"),
            ("tos", "ecn", "the ECN codepoint is the lower two bits of the type of service"),
            ("tos", "traffic_class", "a traffic class is the type of service of IPv6"),
            ("traffic_class", "dscp", "the DSCP is the upper six bits of the traffic class"),
            ("traffic_class", "ecn", "the ECN codepoint is the lower two bits of the traffic class"),
            ("ttl", "hop_limit", "a hop limit is the time to live of IPv6"),
        ] {
            if let (Some(span), true) = (spans.get(one), spans.contains_key(other)) {
                let message = format!("`{one}` and `{other}` match the same bits");
                self.reader.error_with(span.clone(), message, "write one of them", hint);
            }
        }
    }

    /// Reads one key into `matches`; after a problem, which is reported, `matches` stays as it is.
    fn field(&mut self, key: &'static str, value: &Value<'_>, matches: &mut Match) {
        match key {
            "any" => self.any(value),
            "src_mac" => matches.src_mac = self.macs(value, key),
            "dst_mac" => matches.dst_mac = self.macs(value, key),
            "vlan" => self.vlan(value, Field::VlanId, matches),
            "inner_vlan" => self.vlan(value, Field::InnerVlanId, matches),
            "family" => matches.family = self.family(value, key),
            "src" => matches.src = self.addresses(value, key),
            "dst" => matches.dst = self.addresses(value, key),
            "traffic_class" => self.number(value, key, Field::Tos, matches),
            "hop_limit" => self.number(value, key, Field::Ttl, matches),
            "dscp" => self.also_tos(value, key, &values::DSCP, matches),
            "ecn" => self.also_tos(value, key, &values::ECN, matches),
            "ip_options" => matches.ip_options = self.reader.boolean(value, "`ip_options`"),
            "fragment" => matches.fragment = self.fragments(value, key),
            "mpls" => matches.mpls = label_stack(self.reader, value, self.sets, self.is_inner),
            "inner" => {
                let mut inside = Fields { reader: self.reader, sets: self.sets, is_inner: true };
                matches.inner = inside.table(value).map(Box::new);
            }
            // All other keys (`dst_port`, `tcp_flags`, ...) are rows of the field table. A test checks that
            // every key of the schema is read.
            _ => {
                if let Some(field) = Field::all().find(|field| field.name() == key) {
                    self.number(value, key, field, matches);
                }
            }
        }
    }

    /// One IP version, or a list; `None` also for both.
    fn family(&mut self, value: &Value<'_>, key: &str) -> Option<Family> {
        let words = [("ipv4", Family::V4), ("ipv6", Family::V6)];
        let Some(array) = value.get_ref().as_array() else { return word(self.reader, value, key, &words) };
        if array.is_empty() {
            let hint = format!("leave `{key}` out for any packet");
            self.reader.error_with(value.span(), format!("`{key}` is an empty list"), "no values", hint);
        }
        let mut versions = array.iter().filter_map(|item| word(self.reader, item, key, &words));
        let first = versions.next();
        let is_only = versions.all(|version| Some(version) == first);
        first.filter(|_| is_only)
    }

    /// Reads a field whose values are numbers or named bits.
    fn number(&mut self, value: &Value<'_>, key: &str, field: Field, matches: &mut Match) {
        let set = match Flags::of(field) {
            Some(flags) => self.bytes(value, key, &flags, flags.all).map(|set| set.ranges()),
            None => numbers(self.reader, value, key, &Numbers::of(field), self.sets),
        };
        if let Some(set) = set {
            matches.set(field, set);
        }
    }

    fn any(&mut self, value: &Value<'_>) {
        if self.reader.boolean(value, "`any`") == Some(false) {
            let hint = "remove the rule";
            self.reader.error_with(value.span(), "`any` can only be true", "matches no packet", hint);
        }
    }

    /// Reads a set of bytes; exclusions are taken out of `all`.
    fn bytes(
        &mut self,
        value: &Value<'_>,
        key: &str,
        kind: &impl Kind<Value = ByteSet>,
        all: ByteSet,
    ) -> Option<ByteSet> {
        let parts = self.sets.values(self.reader, value, key, kind)?;
        let union = |sets: &[ByteSet]| sets.iter().fold(ByteSet::EMPTY, |all, set| all.union(set));
        let included = parts.included.as_deref().map_or(all, union);
        let set = included.intersect(&union(&parts.excluded).complement());
        leaves_some(self.reader, value, key, included.is_empty() || !set.is_empty())?;
        Some(set)
    }

    /// Reads `dscp` or `ecn`, which are bits of the type of service.
    fn also_tos(
        &mut self,
        value: &Value<'_>,
        key: &str,
        kind: &impl Kind<Value = ByteSet>,
        matches: &mut Match,
    ) {
        if let Some(set) = self.bytes(value, key, kind, ByteSet::ALL) {
            let set = matches.get(Field::Tos).map_or(set, |other| ByteSet::of(other).intersect(&set));
            matches.set(Field::Tos, set.ranges());
        }
    }

    fn fragments(&mut self, value: &Value<'_>, key: &str) -> Option<Fragments> {
        let parts = self.sets.values(self.reader, value, key, &values::FRAGMENT)?;
        let included: Fragments = match parts.included {
            Some(words) => words.into_iter().collect(),
            None => Fragments::all(),
        };
        let set = included - parts.excluded.into_iter().collect();
        leaves_some(self.reader, value, key, included.is_empty() || !set.is_empty())?;
        Some(set)
    }

    fn macs(&mut self, value: &Value<'_>, key: &str) -> Option<Macs> {
        let parts = self.sets.values(self.reader, value, key, &values::MAC)?;
        let mut macs = Macs::of(parts.included.unwrap_or_else(|| vec![MaskedMac::ANY]));
        macs.none_of = Macs::of(parts.excluded).any_of;
        let is_covered = |mac: &MaskedMac| macs.none_of.iter().any(|none| none.contains(mac));
        let is_small = macs.any_of.len().saturating_mul(macs.none_of.len()) <= MAX_COMPARISONS;
        let is_empty = !macs.any_of.is_empty() && is_small && macs.any_of.iter().all(is_covered);
        leaves_some(self.reader, value, key, !is_empty)?;
        Some(macs)
    }

    fn addresses(&mut self, value: &Value<'_>, key: &str) -> Option<Addresses> {
        let Parts { included, excluded } = self.sets.values(self.reader, value, key, &values::ADDRESS)?;
        let included = included.map_or_else(Addresses::all, of_ranges);
        if excluded.is_empty() {
            return Some(included);
        }
        let set = included.without(&of_ranges(excluded));
        leaves_some(self.reader, value, key, included.is_empty() || !set.is_empty())?;
        Some(set)
    }

    fn vlan(&mut self, value: &Value<'_>, field: Field, matches: &mut Match) {
        let is_there = match value.get_ref().as_str() {
            Some("none") => Some(false),
            Some("any") => Some(true),
            _ => None,
        };
        match field {
            _ if is_there.is_none() => {
                // In a list these words are not ids, though the hint for ids names them.
                if !self.listed_word(value, field.name()) {
                    self.number(value, field.name(), field, matches);
                }
            }
            Field::VlanId => matches.vlan = is_there,
            _ => matches.inner_vlan = is_there,
        }
    }

    /// Reports `none` or `any` in a list of VLAN ids or behind `not`.
    fn listed_word(&mut self, value: &Value<'_>, key: &str) -> bool {
        let word_of = |item: &Value<'_>| {
            let word = match item.get_ref().as_str() {
                Some("none") => "none",
                Some("any") => "any",
                _ => return None,
            };
            Some((word, item.span()))
        };
        if let Some(not) = value.get_ref().as_table().and_then(|table| table.get("not"))
            && let Some((word, span)) = word_of(not)
        {
            let other = if word == "none" { "any" } else { "none" };
            let hint = format!("write {key} = \"{other}\"");
            self.reader.error_with(
                span,
                format!("`{word}` is not an id and cannot be excluded"),
                "not an id",
                hint,
            );
            return true;
        }
        let Some(array) = value.get_ref().as_array() else { return false };
        let Some((word, span)) = array.iter().find_map(word_of) else { return false };
        let hint = format!("write a separate rule with {key} = \"{word}\"");
        self.reader.error_with(
            span,
            format!("`{word}` cannot be an item of a list"),
            "in a list of ids",
            hint,
        );
        true
    }
}

/// The most comparisons for finding out whether a list of MACs excludes all of its addresses.
const MAX_COMPARISONS: usize = 1 << 20;

/// Reads numbers of a field and takes exclusions out.
fn numbers(
    reader: &mut Reader,
    value: &Value<'_>,
    key: &str,
    numbers: &Numbers,
    sets: &mut Sets,
) -> Option<RangeSet<u32>> {
    let Parts { included, excluded } = sets.values(reader, value, key, numbers)?;
    let included = included.unwrap_or_else(|| vec![(0, numbers.most)]);
    let included = RangeSet::of(included);
    if excluded.is_empty() {
        return Some(included);
    }
    let set = included.intersect(&RangeSet::of(excluded).complement(numbers.most));
    leaves_some(reader, value, key, included.is_empty() || !set.is_empty())?;
    Some(set)
}

/// Reports exclusions that leave no value.
fn leaves_some(reader: &mut Reader, value: &Value<'_>, key: &str, does: bool) -> Option<()> {
    if !does {
        let message = format!("`{key}` excludes all of its values");
        let hint = "remove the rule, or exclude fewer values";
        reader.error_with(value.span(), message, "matches no packet", hint);
    }
    does.then_some(())
}

/// Reads `mpls`, a label stack from the top; a list is the stack, not a choice: alternatives of one label are
/// a list within it. `is_inner` for the one behind an inner Ethernet header, of which only the top is known.
fn label_stack(
    reader: &mut Reader,
    value: &Value<'_>,
    sets: &mut Sets,
    is_inner: bool,
) -> Option<Vec<MplsEntry>> {
    if value.get_ref().as_str() == Some("any") {
        return Some(Vec::new());
    }
    let items = match value.get_ref().as_array() {
        Some(array) => &**array,
        None => std::slice::from_ref(value),
    };
    let most = if is_inner { 1 } else { MAX_MPLS_LABELS };
    if items.is_empty() {
        reader.error_with(value.span(), "`mpls` is an empty list", "no labels", "write mpls = \"any\"");
        return None;
    }
    if items.len() > most {
        let message = match is_inner {
            true => "only the top label can be matched inside a tunnel".to_owned(),
            false => format!("at most {most} labels can be matched, from the top"),
        };
        let hint = "a list is the stack from the top; write [[100, 101]] for a choice of one label";
        reader.error_with(value.span(), message, format!("{} labels", items.len()), hint);
        return None;
    }
    // Entries after a wrong one are read, too, so that all problems are reported at once.
    let stack: Vec<Option<MplsEntry>> = items.iter().map(|item| stack_entry(reader, item, sets)).collect();
    let mut above = items.iter().zip(&stack).take(items.len() - 1);
    let is_bottom =
        |entry: &Option<MplsEntry>| entry.as_ref().is_some_and(|entry| entry.bottom == Some(true));
    if let Some((item, _)) = above.find(|(_, entry)| is_bottom(entry)) {
        let hint = "leave out the labels below it";
        reader.error_with(item.span(), "no label can follow the bottom of the stack", "not the last", hint);
        return None;
    }
    stack.into_iter().collect()
}

fn stack_entry(reader: &mut Reader, value: &Value<'_>, sets: &mut Sets) -> Option<MplsEntry> {
    let mut entry = MplsEntry::default();
    let table = value.get_ref().as_table().filter(|table| !table.contains_key("not"));
    let Some(table) = table else {
        if value.get_ref().as_str() != Some("any") {
            entry.label = Some(numbers(reader, value, "mpls", &values::LABEL, sets)?);
        }
        return Some(entry);
    };
    reader.refuse_unknown_keys(table, keys::MPLS, "a label");
    if table.is_empty() {
        let hint = "write \"any\", or { label = 100 }";
        reader.error_with(value.span(), "the label is empty", "no conditions", hint);
        return None;
    }
    let before = reader.diagnostics.error_count();
    if let Some(value) = table.get("label") {
        entry.label = numbers(reader, value, "label", &values::LABEL, sets);
    }
    if let Some(value) = table.get("tc") {
        entry.tc = numbers(reader, value, "tc", &values::TRAFFIC_CLASS, sets);
    }
    if let Some(value) = table.get("bottom") {
        entry.bottom = reader.boolean(value, "`bottom`");
    }
    if let Some(value) = table.get("ttl") {
        entry.ttl = numbers(reader, value, "ttl", &values::Numbers::of(Field::Ttl), sets);
    }
    (reader.diagnostics.error_count() == before).then_some(entry)
}

fn of_ranges(values: Vec<(IpAddr, IpAddr)>) -> Addresses {
    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    for range in values {
        match range {
            (IpAddr::V4(low), IpAddr::V4(high)) => v4.push((u32::from(low), u32::from(high))),
            (IpAddr::V6(low), IpAddr::V6(high)) => v6.push((u128::from(low), u128::from(high))),
            // `values::ADDRESS` gives both ends of the same version.
            _ => {}
        }
    }
    Addresses { v4: RangeSet::of(v4), v6: RangeSet::of(v6) }
}

/// Reads one of a few words.
pub(super) fn word<T: Copy>(
    reader: &mut Reader,
    value: &Value<'_>,
    key: &str,
    words: &[(&str, T)],
) -> Option<T> {
    let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    // Some operators write `4` instead of `ipv4`.
    let text = match value.get_ref().as_str() {
        Some(text) => text.to_owned(),
        None => integer_of(value).map(|number| number.to_string()).unwrap_or_default(),
    };
    if text.is_empty() {
        let wanted = format!("one of {}", known.join(", "));
        let hint = format!("leave `{key}` out for all of them");
        let label = format!("this is of type {}", value.get_ref().type_str());
        reader.error_with(value.span(), format!("`{key}` must be {wanted}"), label, hint);
        return None;
    }
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
    if found.is_none() {
        let hint = match synonyms::of_word(&text, &known) {
            // A number needs quotes as well.
            Some(word) if value.get_ref().is_str() => {
                ProblemHint::word(format!("did you mean \"{word}\"?"), &text, word)
            }
            Some(word) => ProblemHint::whole(format!("did you mean \"{word}\"?"), format!("\"{word}\"")),
            None => format!("write {}", known.join(" or ")).into(),
        };
        let message = format!("`{key}` must be one of {}, not `{}`", known.join(", "), shortened(&text));
        reader.error_with(value.span(), message, "not known", hint);
    }
    found
}

//! A match: each key on its own. What the keys mean together is checked in `conflicts`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use program::{Addresses, ByteSet, Family, Fragments, Macs, MaskedMac, Match, RangeSet, VlanMatch, Word};

use crate::schema::keys;

use super::reader::{Reader, Value, entries, integer_of};
use super::sets::{Parts, Sets, shortened};
use super::synonyms;
use super::values::{self, Numbers, Plain};
use super::{conflicts, mpls};

/// Where each key of a match stands.
pub(super) type Spans = BTreeMap<&'static str, Range<usize>>;

/// Reads `match = { ... }`.
pub(super) fn read(reader: &mut Reader, value: &Value<'_>, sets: &mut Sets) -> Option<Match> {
    let mut fields = Fields { reader, sets, is_inner: false };
    fields.table(value)
}

/// The reading of one match, or of the `inner` of one.
struct Fields<'r> {
    reader: &'r mut Reader,
    sets: &'r mut Sets,
    is_inner: bool,
}

impl Fields<'_> {
    fn table(&mut self, value: &Value<'_>) -> Option<Match> {
        let what = if self.is_inner { "`inner`" } else { "`match`" };
        let table = self.reader.table(value, what)?;
        self.reader.refuse_unknown_keys(table, keys::MATCH, "a match");
        if table.is_empty() {
            let message = if self.is_inner { "`inner` is empty" } else { "the match is empty" };
            let hint = match self.is_inner {
                false => "write match = { any = true } to match every packet",
                true => "write inner = { any = true } to match every packet that has another inside",
            };
            self.reader.error_with(value.span(), message, "matches what?", hint);
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
                let message = format!("`{}` is of the outer packet", known.name);
                let hint = "only the first tunnel is looked into: write it beside `inner`";
                self.reader.error_with(key.span(), message, "not inside a tunnel", hint);
            } else {
                self.field(known.name, value, &mut matches);
            }
        }
        self.repetitions(&spans);
        if self.reader.diagnostics.error_count() == before {
            conflicts::check(self.reader, &matches, &spans);
            conflicts::warn(self.reader, &matches, &spans);
        }
        conflicts::imply_family(&mut matches, &spans);
        (self.reader.diagnostics.error_count() == before).then_some(matches)
    }

    /// Keys that say the same, or that leave no room for others.
    fn repetitions(&mut self, spans: &Spans) {
        if let (Some(any), true) = (spans.get("any"), spans.len() > 1) {
            let hint = "leave `any` out, or everything else";
            self.reader.error_with(any.clone(), "`any` stands alone", "beside other keys", hint);
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
                let message = format!("`{one}` and `{other}` say the same");
                self.reader.error_with(span.clone(), message, "give one of them", hint);
            }
        }
    }

    /// Reads one key; what is wrong with it is reported, and then the field stays as it is.
    fn field(&mut self, key: &'static str, value: &Value<'_>, matches: &mut Match) {
        match key {
            "any" => self.any(value),
            "src_mac" => matches.src_mac = self.macs(value, key),
            "dst_mac" => matches.dst_mac = self.macs(value, key),
            "ethertype" => matches.ethertype = self.numbers(value, key, &values::ETHER_TYPE),
            "vlan" => matches.vlan = self.vlan(value, key),
            "vlan_priority" => matches.vlan_priority = self.numbers(value, key, &values::VLAN_PRIORITY),
            "vlan_tpid" => matches.vlan_tpid = self.numbers(value, key, &values::ETHER_TYPE),
            "inner_vlan" => matches.inner_vlan = self.vlan(value, key),
            "inner_vlan_tpid" => matches.inner_vlan_tpid = self.numbers(value, key, &values::ETHER_TYPE),
            "family" => {
                let words = [("ipv4", Family::V4), ("ipv6", Family::V6)];
                matches.family = word(self.reader, value, key, &words);
            }
            "src" => matches.src = self.addresses(value, key),
            "dst" => matches.dst = self.addresses(value, key),
            "protocol" => matches.protocol = self.numbers(value, key, &values::PROTOCOL),
            "tos" | "traffic_class" => matches.tos = self.bytes(value, key, &values::TOS, ByteSet::ALL),
            "dscp" => self.also_tos(value, key, &values::DSCP, matches),
            "ecn" => self.also_tos(value, key, &values::ECN, matches),
            "ttl" | "hop_limit" => matches.ttl = self.numbers(value, key, &values::TTL),
            "flow_label" => matches.flow_label = self.numbers(value, key, &values::FLOW_LABEL),
            "ip_flags" => {
                matches.ip_flags = self.bytes(value, key, &values::IP_FLAGS, ByteSet::range(0, 7));
            }
            "ip_options" => matches.ip_options = self.reader.boolean(value, "`ip_options`"),
            "fragment" => matches.fragment = self.fragments(value, key),
            "src_port" => matches.src_port = self.numbers(value, key, &values::PORT),
            "dst_port" => matches.dst_port = self.numbers(value, key, &values::PORT),
            "tcp_flags" => matches.tcp_flags = self.bytes(value, key, &values::TCP_FLAGS, ByteSet::ALL),
            "esp_spi" => matches.esp_spi = self.numbers(value, key, &values::SPI),
            "esp_seq" => matches.esp_seq = self.numbers(value, key, &values::SEQUENCE),
            "vxlan_vni" => matches.vxlan_vni = self.numbers(value, key, &values::VNI),
            "gre_protocol" => matches.gre_protocol = self.numbers(value, key, &values::ETHER_TYPE),
            "gre_key" => matches.gre_key = self.numbers(value, key, &values::GRE_KEY),
            "gre_flags" => matches.gre_flags = self.bytes(value, key, &values::GRE_FLAGS, ByteSet::ALL),
            "mpls" => matches.mpls = mpls::read(self.reader, value, self.sets, self.is_inner),
            "inner" => {
                let mut inside = Fields { reader: self.reader, sets: self.sets, is_inner: true };
                matches.inner = inside.table(value).map(Box::new);
            }
            // A test holds that no key of the table comes here.
            _ => {}
        }
    }

    fn any(&mut self, value: &Value<'_>) {
        if self.reader.boolean(value, "`any`") == Some(false) {
            let hint = "leave the rule out";
            self.reader.error_with(value.span(), "`any` can only be true", "matches no packet", hint);
        }
    }

    fn numbers<T: Word>(&mut self, value: &Value<'_>, key: &str, kind: &Numbers<T>) -> Option<RangeSet<T>> {
        numbers(self.reader, value, key, kind, self.sets)
    }

    /// Sets of bytes within `all`.
    fn bytes(
        &mut self,
        value: &Value<'_>,
        key: &str,
        kind: &Plain<ByteSet>,
        all: ByteSet,
    ) -> Option<ByteSet> {
        let parts = self.sets.values(self.reader, value, key, kind)?;
        let union = |sets: &[ByteSet]| sets.iter().fold(ByteSet::EMPTY, |all, set| all.union(set));
        let included = parts.included.as_deref().map_or(all, union);
        let set = included.intersect(&union(&parts.excluded).complement());
        leaves_some(self.reader, value, key, included.is_empty() || !set.is_empty())?;
        Some(set)
    }

    /// `dscp` and `ecn` are of the same byte, each with bits of its own.
    fn also_tos(&mut self, value: &Value<'_>, key: &str, kind: &Plain<ByteSet>, matches: &mut Match) {
        if let Some(set) = self.bytes(value, key, kind, ByteSet::ALL) {
            matches.tos = Some(matches.tos.map_or(set, |other| other.intersect(&set)));
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
        let included = included.map_or_else(Addresses::all, addresses);
        if excluded.is_empty() {
            return Some(included);
        }
        let set = included.without(&addresses(excluded));
        leaves_some(self.reader, value, key, included.is_empty() || !set.is_empty())?;
        Some(set)
    }

    fn vlan(&mut self, value: &Value<'_>, key: &str) -> Option<VlanMatch> {
        match value.get_ref().as_str() {
            Some("none") => return Some(VlanMatch::None),
            Some("any") => return Some(VlanMatch::Any),
            _ => {}
        }
        // In a list these words are not ids, and the hint of ids would say to write them.
        if self.listed_word(value, key) {
            return None;
        }
        self.numbers(value, key, &values::VLAN_ID).map(VlanMatch::Ids)
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
            self.reader.error_with(span, format!("`{word}` is no id to exclude"), "not an id", hint);
            return true;
        }
        let Some(array) = value.get_ref().as_array() else { return false };
        let Some((word, span)) = array.iter().find_map(word_of) else { return false };
        let hint = format!("write a rule of its own with {key} = \"{word}\"");
        self.reader.error_with(span, format!("`{word}` stands alone, not in a list"), "beside ids", hint);
        true
    }
}

/// Lists of MACs that take more comparisons than this are not looked through for being excluded one by one.
const MAX_COMPARISONS: usize = 1 << 20;

/// Numbers of a field, exclusions taken out.
pub(super) fn numbers<T: Word>(
    reader: &mut Reader,
    value: &Value<'_>,
    key: &str,
    numbers: &Numbers<T>,
    sets: &mut Sets,
) -> Option<RangeSet<T>> {
    let Parts { included, excluded } = sets.values(reader, value, key, numbers)?;
    let included = included.unwrap_or_else(|| vec![(T::narrow(0), numbers.most)]);
    let included = RangeSet::of(included);
    if excluded.is_empty() {
        return Some(included);
    }
    let set = included.intersect(&RangeSet::of(excluded).complement(numbers.most));
    leaves_some(reader, value, key, included.is_empty() || !set.is_empty())?;
    Some(set)
}

/// Reports exclusions that leave nothing.
fn leaves_some(reader: &mut Reader, value: &Value<'_>, key: &str, does: bool) -> Option<()> {
    if !does {
        let message = format!("`{key}` excludes every value that it has");
        let hint = "leave the rule out, or exclude less";
        reader.error_with(value.span(), message, "matches no packet", hint);
    }
    does.then_some(())
}

fn addresses(values: Vec<(IpAddr, IpAddr)>) -> Addresses {
    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    for range in values {
        match range {
            (IpAddr::V4(low), IpAddr::V4(high)) => v4.push((u32::from(low), u32::from(high))),
            (IpAddr::V6(low), IpAddr::V6(high)) => v6.push((u128::from(low), u128::from(high))),
            // `values::ADDRESS` gives both ends of one family.
            _ => {}
        }
    }
    Addresses { v4: RangeSet::of(v4), v6: RangeSet::of(v6) }
}

/// One of a few words.
pub(super) fn word<T: Copy>(
    reader: &mut Reader,
    value: &Value<'_>,
    key: &str,
    words: &[(&str, T)],
) -> Option<T> {
    let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    // A number is no word, and yet a person's way to say one.
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
            Some(word) => format!("did you mean \"{word}\"?"),
            None => format!("write {}", known.join(" or ")),
        };
        let message = format!("`{key}` is one of {}, not `{}`", known.join(", "), shortened(&text));
        reader.error_with(value.span(), message, "not known", hint);
    }
    found
}

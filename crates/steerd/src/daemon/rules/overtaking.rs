//! Rules that a rule in the device would overtake: the device decides a packet before a worker looks it up,
//! so a rule of an earlier form that stays with the workers would lose its packets to one of a later form.
//!
//! A set of rules is *closed* if no rule of it overtakes one outside of it that has another action. Packets
//! of a closed set in the device meet the same actions as if all rules were in the workers: if a rule of the
//! set matches a packet, then so does, of all rules that match it and precede that one, none with another
//! action that is outside of the set; and the device has the rules of the set in the order of their forms.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use control::{RuntimeRule, RuntimeStore, StoredRule};
use program::{RuntimeForm, RuntimeKey};

/// A rule in each of its directions: the index of the form, and the key.
fn directions(rule: &RuntimeRule, forms: &[RuntimeForm]) -> impl Iterator<Item = (usize, RuntimeKey)> {
    let reverse = rule.both_directions.then(|| rule.matches.reversed());
    [Some(rule.matches), reverse].into_iter().flatten().filter_map(|matches| {
        let fields = matches.fields().ok()?;
        let form = forms.iter().position(|form| form.fields() == fields)?;
        Some((form, matches.key().ok()?))
    })
}

/// The number of an action as a bit of a set.
fn bit(rule: &RuntimeRule) -> u64 {
    1u64.checked_shl(rule.action.into()).unwrap_or(0)
}

const _: () = assert!(program::RUNTIME_ACTIONS_MAX <= 64);

/// The rules in the device with one value in the fields that two forms share.
#[derive(Clone, Copy, Debug, Default)]
struct CommonValue {
    /// The actions of the rules, which are of the later form.
    actions: u64,
    /// The actions of rules of the earlier form that are outside of the device.
    overtaken: u64,
}

/// The rules that a set overtakes.
struct Overtaking<'f> {
    forms: &'f [RuntimeForm],
    /// The rules by the earlier and the later form, and by what keys of both share.
    values: HashMap<(usize, usize, RuntimeKey), CommonValue>,
}

impl<'f> Overtaking<'f> {
    fn by<'r>(chosen: impl Iterator<Item = &'r StoredRule>, forms: &'f [RuntimeForm]) -> Self {
        let mut values: HashMap<_, CommonValue> = HashMap::new();
        for stored in chosen {
            for (later, key) in directions(&stored.rule, forms) {
                for earlier in 0..later {
                    if let Some(part) = forms[earlier].common_part(&forms[later], &key) {
                        values.entry((earlier, later, part)).or_default().actions |= bit(&stored.rule);
                    }
                }
            }
        }
        Self { forms, values }
    }

    /// Whether the set overtakes a rule outside of it.
    fn takes_from(&mut self, stored: &StoredRule) -> bool {
        let (own, mut found) = (bit(&stored.rule), false);
        for (earlier, key) in directions(&stored.rule, self.forms) {
            for later in earlier + 1..self.forms.len() {
                let part = self.forms[earlier].common_part(&self.forms[later], &key);
                let value = part.and_then(|part| self.values.get_mut(&(earlier, later, part)));
                if let Some(value) = value.filter(|value| value.actions & !own != 0) {
                    value.overtaken |= own;
                    found = true;
                }
            }
        }
        found
    }

    /// Whether a rule of the set overtakes one of those that were asked for.
    fn is_taking(&self, stored: &StoredRule) -> bool {
        directions(&stored.rule, self.forms).any(|(later, key)| {
            (0..later).any(|earlier| {
                let part = self.forms[earlier].common_part(&self.forms[later], &key);
                let value = part.and_then(|part| self.values.get(&(earlier, later, part)));
                value.is_some_and(|value| value.overtaken & !bit(&stored.rule) != 0)
            })
        })
    }
}

/// Rules of a store by their forms, of which some are to be in the device.
pub(super) struct Precedence<'s> {
    pub(super) store: &'s RuntimeStore,
    /// In order; rules of other forms are left out of account.
    pub(super) forms: &'s [RuntimeForm],
}

impl Precedence<'_> {
    fn rules_of(&self, ids: &HashSet<Arc<str>>) -> impl Iterator<Item = &StoredRule> {
        ids.iter().filter_map(|id| self.store.get(id))
    }

    /// Rules that are withheld decide nothing, so they are not overtaken.
    fn outside(&self, chosen: &HashSet<Arc<str>>) -> impl Iterator<Item = &StoredRule> {
        let is_outside = |stored: &&StoredRule| !stored.is_withheld() && !chosen.contains(&stored.rule.id);
        self.store.rules().filter(is_outside)
    }

    /// Whether a set that was closed before these rules were added still is.
    pub(super) fn is_closed_with(&self, chosen: &HashSet<Arc<str>>, added: &[Arc<str>]) -> bool {
        if chosen.is_empty() || added.is_empty() {
            return true;
        }
        let mut overtaking = Overtaking::by(self.rules_of(chosen), self.forms);
        let added = added.iter().filter(|id| !chosen.contains(*id));
        !added.filter_map(|id| self.store.get(id)).any(|stored| overtaking.takes_from(stored))
    }

    /// The smallest closed set with these rules.
    pub(super) fn closed(&self, mut chosen: HashSet<Arc<str>>) -> HashSet<Arc<str>> {
        while !chosen.is_empty() {
            let mut overtaking = Overtaking::by(self.rules_of(&chosen), self.forms);
            let missing: Vec<Arc<str>> = self
                .outside(&chosen)
                .filter(|stored| overtaking.takes_from(stored))
                .map(|stored| Arc::clone(&stored.rule.id))
                .collect();
            if missing.is_empty() {
                break;
            }
            chosen.extend(missing);
        }
        chosen
    }

    /// A closed set of at most `room` rules, or of those that `needed`, which is closed, has already: with
    /// the first of `ranked` that have room with all that they would overtake.
    pub(super) fn filled(
        &self,
        needed: &HashSet<Arc<str>>,
        ranked: &[Arc<str>],
        room: usize,
    ) -> HashSet<Arc<str>> {
        let others = ranked.iter().filter(|id| !needed.contains(*id));
        let mut optional: HashSet<Arc<str>> =
            others.take(room.saturating_sub(needed.len())).cloned().collect();
        // Each turn leaves out a rule or is the last.
        while !optional.is_empty() {
            let chosen: HashSet<Arc<str>> = needed.union(&optional).cloned().collect();
            let closed = self.closed(chosen.clone());
            if closed.len() <= room {
                return closed;
            }
            let mut overtaking = Overtaking::by(self.rules_of(&chosen), self.forms);
            for stored in self.outside(&chosen) {
                overtaking.takes_from(stored);
            }
            let before = optional.len();
            optional.retain(|id| self.store.get(id).is_none_or(|stored| !overtaking.is_taking(stored)));
            if optional.len() == before {
                break;
            }
        }
        needed.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use control::{RuntimeOwner, RuntimeRequest};
    use packet::FlowKey;
    use packet::build::FrameBuilder;
    use program::{
        Predicate, ProtocolNumber, RuleId, RuntimeAction, RuntimeFields, RuntimeMatch, RuntimeRules, Verdict,
    };
    use proptest::prelude::*;

    use super::*;

    /// The forms of the tests: a source with a port, a port, a source, a prefix of it, and a protocol.
    fn forms() -> Vec<RuntimeForm> {
        let v4 = |src: u8| RuntimeFields { src, is_v6: Some(false), ..RuntimeFields::default() };
        let port = RuntimeFields { dst_port: true, ..RuntimeFields::default() };
        let protocol = RuntimeFields { protocol: true, ..RuntimeFields::default() };
        [RuntimeFields { dst_port: true, ..v4(32) }, port, v4(32), v4(24), protocol]
            .map(RuntimeForm::of)
            .to_vec()
    }

    fn matches(form: usize, host: u8, port: u16) -> RuntimeMatch {
        let src = |text: String| Some(text.parse().expect("an address"));
        let whole = || src(format!("192.0.{}.{host}", 2 + host % 2));
        let none = RuntimeMatch::default();
        match form {
            0 => RuntimeMatch { src: whole(), dst_port: Some(port), ..none },
            1 => RuntimeMatch { dst_port: Some(port), ..none },
            2 => RuntimeMatch { src: whole(), ..none },
            3 => RuntimeMatch { src: src(format!("192.0.{}.0/24", 2 + host % 2)), ..none },
            _ => RuntimeMatch { protocol: Some(ProtocolNumber(if port == 1 { 6 } else { 17 })), ..none },
        }
    }

    fn store(rules: &[(usize, u8, u16, u8)]) -> RuntimeStore {
        let action = |text: &str| {
            let (text, verdict, sinks) = (text.to_owned(), Verdict::Drop, Vec::new());
            Some(RuntimeAction { text, verdict, sinks, by_workers: vec![true; 5] })
        };
        let allowed = RuntimeRules {
            before: RuleId(0),
            forms: forms(),
            actions: ["drop", "steer a", "steer b"].map(action).to_vec(),
            subject: Vec::new(),
            rules_max: 100,
            device_rules_max: 100,
        };
        let owner = RuntimeOwner { uid: 0, rules_max: None };
        let mut store = RuntimeStore::default();
        for (number, (form, host, port, action)) in rules.iter().enumerate() {
            let rule = RuntimeRule {
                id: format!("r{number}").into(),
                matches: matches(*form, *host, *port),
                action: *action,
                ..RuntimeRule::default()
            };
            // One with the packets of another rule is left out.
            let _ = store.apply(vec![RuntimeRequest::Add(rule)], &allowed, owner, Instant::now());
        }
        store
    }

    /// The action of the first rule among these that matches a packet.
    fn decides<'r>(rules: impl Iterator<Item = &'r StoredRule>, packet: &FlowKey) -> Option<u8> {
        let forms = forms();
        let place = |stored: &StoredRule| directions(&stored.rule, &forms).next().expect("a form").0;
        let matching = rules.filter(|stored| Predicate::of(&stored.rule.matches.to_match()).matches(packet));
        matching.min_by_key(|stored| place(stored)).map(|stored| stored.rule.action)
    }

    proptest! {
        /// The linear reference: the device decides first, then the workers.
        #[test]
        fn rules_in_the_device_change_no_decision(
            rules in prop::collection::vec((0usize..5, 0u8..4, 1u16..3, 0u8..3), 1..12),
            chosen in prop::collection::vec(0usize..12, 0..6),
            room in 0usize..12,
        ) {
            let store = store(&rules);
            let ids: Vec<Arc<str>> = chosen
                .iter()
                .filter_map(|number| Some(Arc::clone(&store.get(&format!("r{number}"))?.rule.id)))
                .collect();
            let forms = forms();
            let precedence = Precedence { store: &store, forms: &forms };
            let closed = precedence.closed(ids.iter().cloned().collect());
            let filled = precedence.filled(&HashSet::new(), &ids, room);
            prop_assert!(filled.len() <= room && ids.iter().all(|id| closed.contains(id)));
            let packets = |host| [(host, 1, true), (host, 2, true), (host, 1, false)];
            for (host, port, is_tcp) in (0..4).flat_map(packets) {
                let (src, dst) = ([192, 0, 2 + host % 2, host], [10, 0, 0, 1]);
                let frame = FrameBuilder::new().ipv4(src.into(), dst.into());
                let frame = if is_tcp { frame.tcp(9, port, 0x10) } else { frame.udp(9, port) };
                let packet = FlowKey::of(&frame.build());
                let wanted = decides(store.rules(), &packet);
                for device in [&closed, &filled] {
                    let found = decides(precedence.rules_of(device), &packet);
                    let found = found.or_else(|| decides(precedence.outside(device), &packet));
                    prop_assert_eq!(found, wanted, "{:?} of {:?}", device, rules);
                }
            }
        }
    }

    #[test]
    fn a_rule_takes_the_rules_that_it_would_overtake_along() {
        // One flow is steered, all others of the source are dropped.
        let store = store(&[(0, 1, 1, 1), (2, 1, 1, 0), (0, 2, 1, 1), (0, 1, 2, 0)]);
        let set = |ids: &[&str]| ids.iter().map(|id| Arc::<str>::from(*id)).collect::<HashSet<_>>();
        let forms = forms();
        let precedence = Precedence { store: &store, forms: &forms };
        assert_eq!(precedence.closed(set(&["r1"])), set(&["r0", "r1"]), "not r3, which has the same action");
        let ranked = ["r1", "r2"].map(Arc::<str>::from);
        assert_eq!(precedence.filled(&set(&[]), &ranked, 3), set(&["r0", "r1", "r2"]));
        assert_eq!(precedence.filled(&set(&[]), &ranked, 2), set(&["r2"]), "no room for r0");
        assert_eq!(precedence.filled(&set(&["r0"]), &ranked, 2), set(&["r0", "r1"]), "r0 is there already");
        assert!(!precedence.is_closed_with(&set(&["r1"]), &[Arc::from("r0")]));
        assert!(precedence.is_closed_with(&set(&["r1"]), &[Arc::from("r2"), Arc::from("r3")]));
    }
}

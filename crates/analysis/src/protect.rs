//! Whether protected packets reach the host: under a policy, on any device, and with a compiled program, on
//! one device. Both questions are about sets of packets and are answered exactly, or as not decided.
//!
//! **Policy.** A protected packet misses the host if the first final rule that matches it, or else the
//! default, does something else than leave it to the host or deliver it to the sink of kind `kernel`. The
//! rules are gone through in order. For each that takes packets, its share of the protected ones without
//! those that earlier rules leave to the host is computed; earlier rules that take packets need not be
//! subtracted, because the search ends at the first of them whose share is not empty.
//!
//! **Program.** With a sink of kind `kernel`, workers return what the policy leaves to the host, and nothing
//! is to be asked. Without one: no flow leaves a packet to the host: packets that match no flow do. So a
//! packet that the policy leaves to the host misses it exactly if some flow matches it. That is a question
//! about pairs, a protected match and a flow, each a product of sets: it takes an intersection and no search,
//! and a flow for which every class decides otherwise than "left to the host" cannot contain such a packet
//! and is skipped. Each witness is confirmed by [`Program::explain_deep`].

use std::collections::BTreeSet;
use std::sync::Arc;

use policy::policy::{Action, Direction, RuleDefinition};
use policy::protect::{Kind, ProtectedMatch};
use policy::{Policy, Witness};
use program::{FlowPackets, Match, Predicate, Program, RuleId, SinkId, SinkKind};

use crate::dimensions::Dimensions;
use crate::product::Product;
use crate::rule_list::{Entry, RuleList, is_final};
use crate::search::{Cover, Free, Space, Undecided};
use crate::suspects::{FLOWS_AT_ONCE, suspects};

/// The outcome of the packets of one protected match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protected {
    /// All of them reach the host.
    Safe,
    /// A part of the packets may miss the host.
    Missed(Missed),
    /// Not decided within the limits; the reason.
    NotDecided(String),
}

/// A protected packet that misses the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The rule that takes it, or the default; of a program, the rule of the flow.
    pub taken_by: RuleId,
    /// The packet.
    pub witness: Witness,
}

/// For each match of `[protect]`, whether the policy leaves all of its packets to the host.
#[must_use]
pub fn protection(policy: &Policy) -> Vec<Protected> {
    let Some(protected) = policy.protect.as_deref().filter(|protected| !protected.is_empty()) else {
        return Vec::new();
    };
    let view = RuleView::of(policy, protected.iter().map(|protected| &protected.matches));
    protected.iter().map(|protected| view.missed(&protected.matches)).collect()
}

/// By form, whether workers receive every packet that a rule at run time of that form, with this action,
/// changes something for, so that they can enforce it without the device. A packet of an earlier rule never
/// meets it, one that the device drops needs no other drop, and one that the device leaves to the host no
/// worker sees. Workers leave a packet to the host by a sink of kind `kernel` only. `false` also if that is
/// not decided within the limits.
#[must_use]
pub fn forms_of_workers(policy: &Policy, action: Action) -> Vec<bool> {
    let Some(runtime) = &policy.runtime else { return Vec::new() };
    let returns = policy.sinks.iter().any(|sink| matches!(sink.sink.kind, SinkKind::Kernel(_)));
    if action == Action::Kernel && !returns {
        return vec![false; runtime.forms.len()];
    }
    let reaches_worker = |decided: Action| match decided {
        Action::Steer(_) => true,
        Action::Drop => action == Action::Drop,
        Action::Kernel | Action::Copy(_) | Action::Sniff(_) | Action::Pass => false,
    };
    forms_left(policy, |index, decided| index < runtime.before || reaches_worker(decided))
}

/// As [`protection`], with a rule at run time in its place that takes all packets which match, and behind it
/// none.
#[must_use]
pub fn protection_from_rule(policy: &Policy, matches: Match) -> Vec<Protected> {
    let Some(runtime) = &policy.runtime else { return Vec::new() };
    let place = policy.default_place.clone();
    let mut rules: Vec<RuleDefinition> = policy.rules.iter().take(runtime.before).cloned().collect();
    rules.push(RuleDefinition { action: Action::Drop, ..RuleDefinition::for_host(matches, place) });
    protection(&Policy {
        source: Arc::clone(&policy.source),
        groups: policy.groups.clone(),
        sinks: policy.sinks.clone(),
        rules,
        default: Action::Kernel,
        default_place: policy.default_place.clone(),
        default_given: true,
        allow_lost_exceptions: false,
        protect: policy.protect.clone(),
        set_sizes: Vec::new(),
        runtime: None,
        recorder: None,
        tests: Vec::new(),
    })
}

/// By form of rules at run time, whether all packets that such a rule can match belong to rules, by index and
/// action, for which `is_left`; the default has the index behind the rules.
fn forms_left(policy: &Policy, is_left: impl Fn(usize, Action) -> bool) -> Vec<bool> {
    let forms: Vec<Match> =
        policy.runtime.iter().flat_map(|runtime| &runtime.forms).map(|fields| fields.to_match()).collect();
    let actions = policy.rules.iter().map(|rule| rule.action).chain([policy.default]);
    let left = actions.enumerate().map(|(index, action)| is_left(index, action)).collect();
    let view = RuleView::with(policy, Direction::Ingress, forms.iter(), left);
    forms.iter().map(|form| view.missed(form) == Protected::Safe).collect()
}

/// A kind of packets that hosts need, of which the policy leaves none to the host.
#[derive(Clone, Debug)]
pub struct UnreachableKind {
    /// The kind.
    pub kind: &'static Kind,
    /// An example, and the rule that takes it, or the default.
    pub missed: Missed,
}

/// The kinds of packets, of those that hosts need, of which the policy leaves none to the host. A kind that
/// only rules take which match nothing else is left out: the policy says so itself.
#[must_use]
pub fn unreachable_kinds(policy: &Policy) -> Vec<UnreachableKind> {
    let kinds: Vec<(&Kind, Match)> =
        policy::protect::needed_by_hosts().map(|kind| (kind, kind.matches())).collect();
    let view = RuleView::of(policy, kinds.iter().map(|(_, matches)| matches));
    let unreachable = |(kind, matches): &(&'static Kind, Match)| {
        Some(UnreachableKind { kind, missed: view.missed_if_none_is_left(matches)? })
    };
    kinds.iter().filter_map(unreachable).collect()
}

/// For each match of `[protect]`, whether the program leaves all of its packets to the host. Matches of which
/// the policy itself takes packets (see [`protection`]) have the same result.
#[must_use]
pub fn protection_on_device(policy: &Policy, program: &Program, by_policy: &[Protected]) -> Vec<Protected> {
    let protected = policy.protect.as_deref().unwrap_or_default();
    let mut found = by_policy.to_vec();
    if program.kernel_sink().is_some() || !found.contains(&Protected::Safe) {
        return found;
    }
    let flows = suspects(program).map(|suspect| (suspect.flow.rule, suspect.flow.packets()));
    let flows: Vec<(RuleId, FlowPackets)> = flows.collect();
    for flows in flows.chunks(FLOWS_AT_ONCE) {
        let open = found.iter().zip(protected).filter(|(found, _)| **found == Protected::Safe);
        let open = open.map(|(_, protected)| &protected.matches);
        let matches = flows.iter().map(|(_, packets)| &packets.matches);
        let dimensions = Dimensions::of(open.chain(matches));
        let products: Vec<Vec<Product>> =
            flows.iter().map(|(_, packets)| dimensions.products(&packets.matches)).collect();
        for (found, protected) in found.iter_mut().zip(protected) {
            if *found == Protected::Safe {
                *found = in_flows(program, &dimensions, protected, flows, &products);
            }
        }
    }
    found
}

/// Whether one of the flows contains a packet of a protected match.
fn in_flows(
    program: &Program,
    dimensions: &Dimensions,
    protected: &ProtectedMatch,
    flows: &[(RuleId, FlowPackets)],
    products: &[Vec<Product>],
) -> Protected {
    let own = dimensions.products(&protected.matches);
    let predicate = Predicate::of(&protected.matches);
    let mut open = None;
    for ((rule, packets), of_flow) in flows.iter().zip(products) {
        let shared = own.iter().flat_map(|own| of_flow.iter().map(|flow| own.and(flow, dimensions)));
        for shared in shared.filter(|shared| !shared.is_empty()) {
            let Some(witness) = shared.witness(dimensions) else {
                open = Some(Undecided::NoExample.to_string());
                continue;
            };
            let key = witness.key();
            let explained = program.explain_deep(&key);
            if !explained.reaches_host() && predicate.matches_deep(&key) {
                return Protected::Missed(Missed { taken_by: explained.rule, witness });
            }
            // A set that is not exact contains more packets than the flow or the match, and the witness is
            // one of them.
            let is_exact = packets.is_exact && !shared.is_rough;
            debug_assert!(!is_exact, "{witness} is in a flow of {rule:?} and reaches the host");
            open = Some("the masks of a flow, or of MAC addresses, do not form few ranges".to_owned());
        }
    }
    open.map_or(Protected::Safe, Protected::NotDecided)
}

/// The rules of one direction in the space of some matches.
pub(super) struct RuleView<'p> {
    pub(super) policy: &'p Policy,
    direction: Direction,
    pub(super) space: Space,
    pub(super) rules: RuleList,
    /// The rules that leave their packets to the host, the default last.
    pub(super) leaves: Vec<bool>,
}

impl<'p> RuleView<'p> {
    fn of(policy: &'p Policy, protected: impl Iterator<Item = &'p Match>) -> Self {
        let leaves = (0..=policy.rules.len()).map(|rule| host_sees(policy, rule) == Some(true)).collect();
        Self::with(policy, Direction::Ingress, protected, leaves)
    }

    /// A view of the rules of one direction, with other rules in place of those that leave packets to the
    /// host.
    pub(super) fn with(
        policy: &'p Policy,
        direction: Direction,
        matches: impl Iterator<Item = &'p Match>,
        leaves: Vec<bool>,
    ) -> Self {
        let space = Space::with(&[policy], matches);
        let rules = RuleList::of(&space.dimensions, policy, direction, &|group, _| group);
        Self { policy, direction, space, rules, leaves }
    }

    /// Whether a rule leaves its packets to the host.
    fn leaves(&self, entry: &Entry) -> bool {
        is_final(entry.action) && self.leaves.get(entry.rule as usize).copied().unwrap_or(false)
    }

    /// Whether a rule takes its packets from the host.
    fn takes(&self, entry: &Entry) -> bool {
        is_final(entry.action) && !self.leaves(entry)
    }

    /// Whether all packets of a match are left to the host.
    pub(super) fn missed(&self, matches: &Match) -> Protected {
        let mut open = None;
        for product in self.space.dimensions.products(matches) {
            let near = self.rules.near(&self.space, &product);
            for (place, taker) in near.iter().enumerate().filter(|(_, entry)| self.takes(entry)) {
                let target = self.space.both(&product, &taker.product);
                let left = covers(&near[..place], |entry| self.leaves(entry));
                match self.space.free_of(&target, &left, &mut BTreeSet::new()) {
                    Free::None => {}
                    Free::NotDecided(why) => open = Some(why),
                    Free::Product(free) => {
                        let Some(witness) = free.witness(&self.space.dimensions) else {
                            open = Some(Undecided::NoExample);
                            continue;
                        };
                        // An earlier rule of which the share was not decided may be the one.
                        let taken_by = self.decided_by(&witness);
                        return Protected::Missed(Missed { taken_by, witness });
                    }
                }
            }
        }
        open.map_or(Protected::Safe, |why| Protected::NotDecided(why.to_string()))
    }

    /// A packet of a match, if no packet of it is left to the host, and a rule that matches other packets as
    /// well takes some; `None` also if that is not decided.
    fn missed_if_none_is_left(&self, matches: &Match) -> Option<Missed> {
        let products = self.space.dimensions.products(matches);
        let is_named =
            |entry: &Entry| products.iter().any(|product| self.space.contains(product, &entry.product));
        let mut example = None;
        for product in &products {
            let near = self.rules.near(&self.space, product);
            for (place, entry) in near.iter().enumerate().filter(|(_, entry)| is_final(entry.action)) {
                let is_left = self.leaves(entry);
                if !is_left && (example.is_some() || is_named(entry)) {
                    continue;
                }
                let target = self.space.both(product, &entry.product);
                let before = covers(&near[..place], |entry| is_final(entry.action));
                match self.space.free_of(&target, &before, &mut BTreeSet::new()) {
                    Free::None => {}
                    _ if is_left => return None,
                    Free::Product(free) => example = free.witness(&self.space.dimensions),
                    Free::NotDecided(_) => example = target.witness(&self.space.dimensions),
                }
            }
        }
        let witness = example?;
        Some(Missed { taken_by: self.decided_by(&witness), witness })
    }

    /// The first final rule that matches a packet, or the default.
    fn decided_by(&self, witness: &Witness) -> RuleId {
        let key = witness.key();
        let decides = |rule: &RuleDefinition| {
            rule.direction == self.direction
                && is_final(rule.action)
                && Predicate::of(&rule.matches).matches_deep(&key)
        };
        let rules = &self.policy.rules;
        RuleId::of(rules.iter().position(decides).unwrap_or(rules.len()))
    }
}

/// Whether the host sees the packets that a rule decides, or the default for the index behind the rules.
/// `None`: it sees a part of them.
#[must_use]
pub fn host_sees(policy: &Policy, rule: usize) -> Option<bool> {
    match policy.rules.get(rule) {
        Some(rule) => {
            let leaves = leaves(policy, rule.action, rule.sinks.as_deref());
            // A rule that does not let all packets through may drop any of them.
            (rule.policing.passes_all() || !leaves).then_some(leaves)
        }
        None => Some(leaves(policy, policy.default, None)),
    }
}

/// Whether packets of a rule with this action and these sinks reach the host.
fn leaves(policy: &Policy, action: Action, sinks: Option<&[SinkId]>) -> bool {
    let is_kernel = |id: &SinkId| {
        policy.sinks.get(id.index()).is_some_and(|sink| matches!(sink.sink.kind, SinkKind::Kernel(_)))
    };
    action == Action::Kernel || policy.sinks_of(action, sinks).iter().any(is_kernel)
}

/// The entries for which `is_wanted`, as covers.
pub(super) fn covers<'e>(entries: &[&'e Entry], is_wanted: impl Fn(&Entry) -> bool) -> Vec<Cover<'e>> {
    entries.iter().filter(|entry| is_wanted(entry)).map(|entry| entry.cover()).collect()
}

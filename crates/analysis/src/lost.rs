//! Lost exceptions: packets that a policy leaves to the kernel and that a worker receives which cannot give
//! them back.
//!
//! No flow leaves a packet to the host: packets that match no flow do. So a packet that the policy leaves to
//! the kernel is lost exactly if some flow matches it, whichever is the first, since the first one leads to a
//! class that decides as the policy does. The question is therefore asked of each flow, as a product of sets,
//! and each rule that leaves packets to the kernel: is there a packet of both that no earlier rule matches?
//! Flows of classes that decide otherwise for every packet contain none and are skipped. Each witness is
//! confirmed by [`Program::explain_deep`].
//!
//! Frames with [cut headers](crate::cut_headers) are left out: a host cannot use them.

use std::collections::{BTreeMap, BTreeSet};

use policy::policy::{Action, Direction};
use policy::{Policy, Witness};
use program::{FlowPackets, FlowSpec, Program, RuleId, Verdict};

use crate::cut_headers::CutHeader;
use crate::dimensions::Dimensions;
use crate::product::Product;
use crate::rule_list::{Entry, RuleList, is_final};
use crate::search::{Cover, Free, MAX_COMPARISONS_IN_ALL, Space, Undecided};
use crate::suspects::{FLOWS_AT_ONCE, Suspect, suspects};

/// A packet that the policy leaves to the kernel and that a worker receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostException {
    /// The rule that leaves it to the kernel, or the default.
    pub rule: RuleId,
    /// The rule whose flow matches it.
    pub taken_by: RuleId,
    /// The packet.
    pub witness: Witness,
}

/// A rule of which it is not decided whether packets that it leaves to the kernel are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenException {
    /// The rule that leaves packets to the kernel, or the default.
    pub rule: RuleId,
    /// The first rule whose flows may match some of them.
    pub taken_by: RuleId,
    /// The limit that was reached.
    pub why: String,
}

/// The lost exceptions of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostExceptions {
    /// One packet for each rule that leaves packets to the kernel, the default among them, of which some are
    /// lost.
    pub found: Vec<LostException>,
    /// The rules that exceed a limit of the analysis.
    pub not_decided: Vec<OpenException>,
}

/// Which rules of a policy, the default among them, leave packets to the kernel that the flows of its program
/// take.
#[must_use]
pub fn lost_exceptions(policy: &Policy, program: &Program) -> LostExceptions {
    // With a kernel sink, workers give these packets back.
    if program.kernel_sink().is_some() {
        return LostExceptions::default();
    }
    let mut search = LossSearch {
        policy,
        program,
        open: leaving(policy).collect(),
        found: Vec::new(),
        not_decided: BTreeMap::new(),
        comparisons_left: MAX_COMPARISONS_IN_ALL,
    };
    let mut suspects: Vec<Suspect<'_>> = suspects(program).collect();
    // Wide flows contain most packets: after the first of them few rules are open.
    suspects.sort_by_cached_key(|suspect| {
        let fields = suspect.flow.specs.iter().flat_map(FlowSpec::masked_fields);
        fields.map(|field| field.mask.count_ones()).sum::<u32>()
    });
    for suspects in suspects.chunks(FLOWS_AT_ONCE) {
        search.flows(suspects);
    }
    let LossSearch { mut found, not_decided, .. } = search;
    found.sort_by_key(|lost| lost.rule);
    LostExceptions { found, not_decided: not_decided.into_values().collect() }
}

/// The rules that leave received packets to the kernel, the default last.
fn leaving(policy: &Policy) -> impl Iterator<Item = RuleId> {
    let is_here = |direction, action| direction == Direction::Ingress && action == Action::Kernel;
    let own = policy.rules.iter().map(move |rule| is_here(rule.direction, rule.action));
    let all = own.chain([policy.default == Action::Kernel]).enumerate();
    all.filter(|(_, leaves)| *leaves).map(|(index, _)| RuleId::of(index))
}

struct LossSearch<'p> {
    policy: &'p Policy,
    program: &'p Program,
    /// The rules that leave packets to the kernel and of which no packet is known to be lost.
    open: BTreeSet<RuleId>,
    found: Vec<LostException>,
    /// The first question of each rule that was not decided.
    not_decided: BTreeMap<RuleId, OpenException>,
    comparisons_left: u64,
}

/// The space of the rules and of some flows.
struct FlowSpace {
    space: Space,
    rules: RuleList,
    cut: Vec<Product>,
}

impl LossSearch<'_> {
    fn flows(&mut self, suspects: &[Suspect<'_>]) {
        if self.open.is_empty() {
            return;
        }
        if self.comparisons_left == 0 {
            return suspects.iter().for_each(|suspect| self.give_up(suspect));
        }
        let packets: Vec<FlowPackets> = suspects.iter().map(|suspect| suspect.flow.packets()).collect();
        let rules = self.policy.rules.iter().filter(|rule| rule.direction == Direction::Ingress);
        let matches = rules.map(|rule| &rule.matches).chain(packets.iter().map(|packets| &packets.matches));
        let cut = CutHeader::all(matches.clone());
        let dimensions = Dimensions::with_ranges(matches, &CutHeader::ranges(&cut));
        let flow_space = FlowSpace {
            rules: RuleList::of(&dimensions, self.policy, Direction::Ingress, &|group, _| group),
            cut: cut.iter().map(|cut| cut.product(&dimensions)).collect(),
            space: Space::new(dimensions, self.comparisons_left),
        };
        for (suspect, packets) in suspects.iter().zip(&packets) {
            if self.open.is_empty() {
                break;
            }
            if flow_space.space.is_spent() {
                self.give_up(suspect);
                continue;
            }
            for product in flow_space.space.dimensions.products(&packets.matches) {
                self.flow(&flow_space, suspect, packets.is_exact, &product);
            }
        }
        self.comparisons_left = flow_space.space.comparisons_left();
    }

    /// Looks for packets of a flow that a rule leaves to the kernel, for each open rule.
    fn flow(&mut self, flow_space: &FlowSpace, suspect: &Suspect<'_>, is_exact: bool, product: &Product) {
        let FlowSpace { space, rules, cut } = flow_space;
        let near = rules.near(space, product);
        let mut covers: Vec<Cover<'_>> =
            cut.iter().map(|product| Cover { rule: u32::MAX, product }).collect();
        for entry in near.into_iter().filter(|entry| is_final(entry.action)) {
            if entry.action == Action::Kernel && self.open.contains(&RuleId(entry.rule)) {
                let target = space.both(product, &entry.product);
                match space.free_of(&target, &covers, &mut BTreeSet::new()) {
                    Free::None => {}
                    Free::NotDecided(why) => self.leave_open(RuleId(entry.rule), suspect, why.to_string()),
                    Free::Product(free) => {
                        self.confirm(&space.dimensions, suspect, entry, is_exact, &free);
                    }
                }
            }
            if space.contains(&entry.product, product) {
                break;
            }
            covers.push(entry.cover());
        }
    }

    /// Adds a packet of a product, which a rule leaves to the kernel and which is in a flow, if it is lost.
    fn confirm(
        &mut self,
        dimensions: &Dimensions,
        suspect: &Suspect<'_>,
        entry: &Entry,
        is_exact: bool,
        free: &Product,
    ) {
        let Some(witness) = free.witness(dimensions) else { return };
        let explained = self.program.explain_deep(&witness.key());
        let (rule, taken_by) = (explained.outcome.rule, explained.rule);
        let is_lost = explained.is_lost_exception();
        if rule != RuleId(entry.rule) || !is_lost {
            // A set that is not exact contains more packets than the flow or the match, and the witness is
            // one of them.
            debug_assert!(!is_exact || free.is_rough, "{witness} is in a flow, and {rule} decides it");
            let why = "the masks of a flow, or of MAC addresses, do not form few ranges";
            self.leave_open(RuleId(entry.rule), suspect, why.to_owned());
        }
        if is_lost && self.open.remove(&rule) {
            self.not_decided.remove(&rule);
            self.found.push(LostException { rule, taken_by, witness });
        }
    }

    /// Records that nothing is known about the packets of a flow that its class may leave to the kernel.
    fn give_up(&mut self, suspect: &Suspect<'_>) {
        let why = Undecided::AllQuestions.to_string();
        for outcome in suspect.class.decide.outcomes().filter(|outcome| outcome.verdict == Verdict::Kernel) {
            if self.open.contains(&outcome.rule) {
                self.leave_open(outcome.rule, suspect, why.clone());
            }
        }
    }

    fn leave_open(&mut self, rule: RuleId, suspect: &Suspect<'_>, why: String) {
        let taken_by = suspect.flow.rule;
        self.not_decided.entry(rule).or_insert(OpenException { rule, taken_by, why });
    }
}

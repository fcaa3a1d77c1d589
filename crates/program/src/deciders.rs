//! Who decides the packets of each rule where a policy is enforced on a network interface by an XDP program,
//! and whether the host receives them. Computed from flows and classes, for whole rules; [`Program::decider`]
//! answers for one packet, without that code.

use std::collections::{BTreeSet, HashSet};

use packet::DeepKey;
use packet::cube::Cube;
use serde::Serialize;

use crate::ids::RuleId;
use crate::outcome::Verdict;
use crate::program::{Decide, Flow, FlowAction, FlowKind, Program, Rule};
use crate::xdp_verdict::XdpVerdict;

/// The most comparisons of flows and exceptions with wide claims. Beyond it they are taken to share packets.
const MAX_COMPARISONS: usize = 1 << 22;

/// The part of the system that decides a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decider {
    /// A filter of the NIC drops it, before a core sees it. A program alone does not show that.
    Nic,
    /// The XDP program passes it to the host or drops it.
    XdpProgram,
    /// The flow table of the port: a worker only receives the packet, or the engine drops it or gives it
    /// back to the host.
    Engine,
    /// A worker compares it with rules.
    Worker,
}

impl Decider {
    /// The name as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::XdpProgram => "xdp_program",
            Self::Engine => "engine",
            Self::Worker => "worker",
        }
    }

    /// The name in English.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Nic => "NIC",
            Self::XdpProgram => "XDP program",
            Self::Engine => "engine",
            Self::Worker => "worker",
        }
    }
}

/// Whether the host receives the packets of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostReception {
    /// All of them; those that a worker receives, by the kernel sink.
    Yes,
    /// None of them.
    No,
    /// The policy leaves them to the host, but workers receive some of them and cannot return them.
    Partly,
    /// The rule copies packets, and other rules decide them.
    OtherRules,
    /// The rule is about packets that the host sends.
    Sent,
}

impl HostReception {
    /// The name as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Partly => "partly",
            Self::OtherRules => "other_rules",
            Self::Sent => "sent",
        }
    }

    /// The name in English.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::OtherRules => "other rules",
            other => other.name(),
        }
    }
}

/// The deciders of a rule's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleDeciders {
    /// All that decide packets of the rule, or may; empty if no packet reaches the rule.
    pub decided_by: BTreeSet<Decider>,
    /// Whether the host receives the packets.
    pub host: HostReception,
}

/// A claim whose packets are not all those of a flow that takes them: the engine gets packets of other rules
/// by it.
struct WideClaim {
    packets: Cube,
    precedence: u16,
}

impl WideClaim {
    /// `None`: the flow takes all that it claims.
    fn of(flow: &Flow) -> Option<Self> {
        let precedence = match flow.kind {
            FlowKind::Egress => return None,
            FlowKind::Normal if !flow.is_of_tunnel() => return None,
            FlowKind::Normal | FlowKind::Copy => flow.priority,
            FlowKind::Sniffer => 0,
        };
        Some(Self { packets: flow.claim()?.closed()?, precedence })
    }
}

impl Program {
    /// The decider of a received packet, under the conditions of [`Program::xdp_verdict`].
    #[must_use]
    pub fn decider(&self, key: &DeepKey) -> Decider {
        if self.xdp_verdict(key) != XdpVerdict::Redirect {
            return Decider::XdpProgram;
        }
        let class = self.explain_deep(key).class.and_then(|class| self.class(class));
        if class.is_some_and(|class| !class.is_exact()) { Decider::Worker } else { Decider::Engine }
    }

    /// The deciders of the packets of each rule, and of the default, under the conditions of
    /// [`Program::xdp_verdict`]. A decider that is not among them decides no packet of the rule, but for rules
    /// at run time, by which workers compare packets of any class.
    #[must_use]
    pub fn deciders(&self) -> Vec<RuleDeciders> {
        let mut found = Found::of(self);
        let mut kinds = vec![FlowKind::Normal; self.rules.len()];
        // The classes in use, by the priorities of their flows.
        let mut classes = BTreeSet::new();
        for flow in &self.flows {
            kinds.get_mut(flow.rule.index()).into_iter().for_each(|kind| *kind = flow.kind);
            match flow.action {
                FlowAction::Pass | FlowAction::Drop => {}
                FlowAction::Steer { .. } if flow.kind == FlowKind::Sniffer => {
                    classes.extend(self.untagged.map(|class| (class, 0)));
                }
                FlowAction::Steer { class, .. } => _ = classes.insert((class, flow.priority)),
            }
        }
        for (class, priority) in classes {
            match self.class(class).map(|class| &class.decide) {
                None => {}
                Some(Decide::Exact(outcome)) => found.note_received(outcome.rule, Decider::Engine),
                Some(Decide::Software(steps, otherwise)) => {
                    let outcomes = steps.iter().map(|step| step.outcome).chain([*otherwise]);
                    for outcome in outcomes {
                        found.note_received(outcome.rule, Decider::Worker);
                        found.compared.insert((outcome.rule, priority));
                    }
                }
            }
        }
        for flow in &self.flows {
            match flow.action {
                FlowAction::Pass => found.note(flow.rule, Decider::Engine),
                FlowAction::Drop => found.add_drops(flow),
                FlowAction::Steer { .. } => {}
            }
        }
        for exception in &self.exceptions {
            found.add_unmatched(exception.rule, |claim| exception.predicate.may_match_in(claim));
        }
        if self.default == Verdict::Kernel {
            found.add_unmatched(self.default_rule(), |_| true);
        }
        let rules = self.rules.iter().zip(found.rules).zip(kinds);
        let of_rule = |((rule, found), kind): ((&Rule, FoundOfRule), FlowKind)| RuleDeciders {
            host: self.host_reception(rule, kind, &found),
            decided_by: found.deciders,
        };
        rules.map(of_rule).collect()
    }

    /// Whether the host receives the packets of a rule, which has flows of this kind.
    fn host_reception(&self, rule: &Rule, kind: FlowKind, found: &FoundOfRule) -> HostReception {
        let kernel_sink = self.kernel_sink();
        let is_returned = kernel_sink.is_some_and(|sink| rule.sinks.contains(&sink));
        match (kind, rule.action) {
            (FlowKind::Egress, _) => HostReception::Sent,
            (FlowKind::Copy | FlowKind::Sniffer, _) => HostReception::OtherRules,
            (FlowKind::Normal, Verdict::Kernel) => {
                match (found.is_received && kernel_sink.is_none(), found.is_unmatched) {
                    (false, _) => HostReception::Yes,
                    (true, false) => HostReception::No,
                    (true, true) => HostReception::Partly,
                }
            }
            (FlowKind::Normal, Verdict::Deliver(_)) if is_returned => HostReception::Yes,
            (FlowKind::Normal, Verdict::Deliver(_) | Verdict::Drop | Verdict::Filtered) => HostReception::No,
        }
    }
}

/// The findings about a rule.
#[derive(Clone, Default)]
struct FoundOfRule {
    deciders: BTreeSet<Decider>,
    /// Workers receive packets of it.
    is_received: bool,
    /// No flow takes some packets of it.
    is_unmatched: bool,
}

/// The findings about a program.
struct Found {
    rules: Vec<FoundOfRule>,
    /// The rules that workers compare packets with, and the priorities of the flows by which these packets
    /// come. A flow of such a rule may share packets with one of the same priority.
    compared: HashSet<(RuleId, u16)>,
    wide: Vec<WideClaim>,
    comparisons: usize,
}

impl Found {
    fn of(program: &Program) -> Self {
        Self {
            rules: vec![FoundOfRule::default(); program.rules.len()],
            compared: HashSet::new(),
            wide: program.flows.iter().filter_map(WideClaim::of).collect(),
            comparisons: 0,
        }
    }

    fn note(&mut self, rule: RuleId, decider: Decider) {
        if let Some(found) = self.rules.get_mut(rule.index()) {
            found.deciders.insert(decider);
        }
    }

    /// Notes the decider of packets that a worker receives.
    fn note_received(&mut self, rule: RuleId, decider: Decider) {
        self.note(rule, decider);
        self.rules.get_mut(rule.index()).into_iter().for_each(|found| found.is_received = true);
    }

    /// Returns whether one more flow or exception may be compared with all wide claims.
    fn may_compare(&mut self) -> bool {
        self.comparisons += self.wide.len();
        self.comparisons <= MAX_COMPARISONS
    }

    /// Adds the deciders of a flow that drops: the XDP program, but for packets of wide claims and of
    /// compared flows that do not come after the flow.
    fn add_drops(&mut self, flow: &Flow) {
        if !flow.xdp_may_drop() {
            return self.note(flow.rule, Decider::Engine);
        }
        let Some(packets) = flow.cube() else { return };
        let may_compare = self.may_compare();
        let mut first = self.wide.iter().filter(|claim| claim.precedence <= flow.priority);
        let (by_program, by_engine) = if may_compare {
            let mut shared = first.filter(|claim| claim.packets.overlaps(packets)).peekable();
            let is_shared = shared.peek().is_some();
            (!shared.any(|claim| claim.packets.contains(packets)), is_shared)
        } else {
            (true, first.next().is_some())
        };
        if by_program {
            self.note(flow.rule, Decider::XdpProgram);
        }
        if by_engine || self.compared.contains(&(flow.rule, flow.priority)) {
            self.note(flow.rule, Decider::Engine);
        }
    }

    /// Adds the deciders of packets that no flow takes: the XDP program passes them, but for those of wide
    /// claims, which the engine gives back.
    fn add_unmatched(&mut self, rule: RuleId, may_match_in: impl Fn(&Cube) -> bool) {
        let may_compare = self.may_compare();
        let mut wide = self.wide.iter();
        let by_engine = wide.any(|claim| !may_compare || may_match_in(&claim.packets));
        self.rules.get_mut(rule.index()).into_iter().for_each(|found| found.is_unmatched = true);
        let takes_all = self.wide.iter().any(|claim| claim.packets == Cube::ANY);
        if !takes_all {
            self.note(rule, Decider::XdpProgram);
        }
        if by_engine {
            self.note(rule, Decider::Engine);
        }
    }
}

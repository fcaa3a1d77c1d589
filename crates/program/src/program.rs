//! What a device and its workers run: flows, groups, queues and classes, all plain data. The compiler makes
//! it, `control` installs it on a device, workers run its classes. It does not refer to the policy's text,
//! and equal policies give equal programs.

use std::collections::HashSet;

use flow_spec::FlowSpec;
use packet::cube::Cube;
use packet::{DeepKey, FlowKey, HashFields, RssKey};
use serde::Serialize;

use crate::description::DescriptionText;
use crate::flow_cube::claim_of;
use crate::ids::{ClassId, GroupId, QueueId, RuleId, SinkId, WorkerId};
use crate::outcome::{Outcome, Verdict};
use crate::policing::Policing;
use crate::predicate::Predicate;
use crate::recorder::RecorderSpec;
use crate::rule_name::RuleName;
use crate::runtime::RuntimeRules;
use crate::sink::{SinkKind, SinkSpec};
use crate::spec_chain::{FlowFront, SpecChain};
use crate::steps::Steps;
use crate::undecided::UndecidedKey;

/// The name of the pseudo rule for unmatched packets, the policy's `default`.
pub const DEFAULT_RULE: &str = "default";
/// The name under which the counters of rules that are no longer in the policy are summed. No rule can have
/// it, because names have no brackets.
pub const RETIRED_RULES: &str = "(retired rules)";

/// The most rules of one policy. With one class per rule, classes stay far below
/// [`CLASSES_MAX`](crate::CLASSES_MAX).
pub const MAX_RULES: usize = 65_536;

/// A compiled policy. Every id is an index into the vector of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The policy's rules in order, then the pseudo rule [`DEFAULT_RULE`].
    pub rules: Vec<Rule>,
    /// The policy's groups in order, used or not.
    pub groups: Vec<Group>,
    /// The policy's sinks in order.
    pub sinks: Vec<SinkSpec>,
    /// One RSS queue pair for every group and hash variant that a flow needs.
    pub queues: Vec<RssQueue>,
    /// Highest precedence first.
    pub flows: Vec<Flow>,
    /// The classes, by the number in the flow tag. `None` is a class of the previous program only: a
    /// rule that stays keeps its class, and a class is not used for another rule in the very next program.
    pub classes: Vec<Option<Class>>,
    /// The class of packets without a flow tag: all packets on a device without tags, otherwise the copies of
    /// sniffers.
    pub untagged: Option<ClassId>,
    /// The rules that leave packets to the host and need no flow for it. A packet that matches no flow
    /// belongs to the first of them that matches it.
    pub exceptions: Vec<Exception>,
    /// The rules at run time that the policy allows, if it does.
    pub runtime: Option<RuntimeRules>,
    /// The packets that workers keep in memory, if the policy has a recorder.
    pub recorder: Option<RecorderSpec>,
    /// The verdict for unmatched packets.
    pub default: Verdict,
    /// How many hardware priorities the flows occupy, counted from 0.
    pub priorities_used: u16,
}

/// One line of policy as the program knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique; what counters are named after.
    pub name: RuleName,
    /// The description in the policy.
    pub description: Option<DescriptionText>,
    /// The verdict on the rule's packets.
    pub action: Verdict,
    /// Line of the policy file, from 1 (the pseudo rule: the line of `default`, or 0).
    pub line: u32,
    /// Whether the device decides alone.
    pub placement: Placement,
    /// Whether its counters are exported.
    pub count: bool,
    /// How many flows it has; 0 for a rule that earlier flows cover entirely.
    pub flows: u32,
    /// The keys of its match that the device does not decide.
    pub undecided: Vec<UndecidedKey>,
    /// Where the packets go that workers deliver for it: its own sinks, or those of its group.
    pub sinks: Vec<SinkId>,
    /// The part of these packets that workers let through.
    pub policing: Policing,
}

impl Rule {
    /// A rule that the device decides alone, with one flow, an exported counter, no sink and no policing.
    #[must_use]
    pub fn in_hardware(name: impl Into<RuleName>, action: Verdict, line: u32) -> Self {
        Self {
            name: name.into(),
            description: None,
            action,
            line,
            placement: Placement::Hardware,
            count: true,
            flows: 1,
            undecided: Vec::new(),
            sinks: Vec::new(),
            policing: Policing::default(),
        }
    }
}

/// A rule that leaves packets to the host: no flow matches them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The rule.
    pub rule: RuleId,
    /// The whole match of the rule.
    pub predicate: Predicate,
    /// The outcome if it matches.
    pub outcome: Outcome,
    /// The later rules whose flows were split to exclude its packets; the default counts as one.
    pub left_out_of: Vec<RuleId>,
    /// How many more pieces they were split into; each piece is a flow for every hash variant that it
    /// overlaps.
    pub pieces: u32,
}

/// Where it is decided whether a packet matches a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Placement {
    /// The device decides alone.
    Hardware,
    /// The device matches a superset, and the worker evaluates the whole match.
    Hybrid {
        /// The conditions that the device cannot match, by the keys of the policy.
        reason: String,
    },
}

/// Workers that share the traffic of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name in the policy.
    pub name: String,
    /// The description in the policy.
    pub description: Option<DescriptionText>,
    /// The indirection table; its length is a power of two.
    pub table: Vec<WorkerId>,
    /// The Toeplitz key of every queue of the group.
    pub key: RssKey,
    /// The hashed fields, over all variants.
    pub fields: HashFields,
    /// Whether both directions of a connection reach the same worker.
    pub symmetric: bool,
}

/// Which packets a queue pair receives; some devices accept the hash fields of only one kind of packet per
/// queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HashVariant {
    /// IPv4 with a TCP header.
    V4Tcp,
    /// IPv4 with a UDP header.
    V4Udp,
    /// Other IPv4, including later fragments.
    V4,
    /// IPv6 with a TCP header directly after it.
    V6Tcp,
    /// IPv6 with a UDP header directly after it.
    V6Udp,
    /// Other IPv6.
    V6,
    /// Packets without a field to hash; they always use the first entry of the table.
    Other,
    /// All packets, on devices whose queue pairs accept all hash fields together.
    All,
}

/// One RSS queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssQueue {
    /// The group, which also has the key.
    pub group: GroupId,
    /// The packets it receives.
    pub variant: HashVariant,
    /// The group's fields that apply to the variant.
    pub fields: HashFields,
    /// The group's table, or only its first entry where nothing is hashed.
    pub table: Vec<WorkerId>,
}

/// One `ibv_flow` to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The rule that the flow belongs to.
    pub rule: RuleId,
    /// 0 is the highest precedence.
    pub priority: u16,
    /// The kind of the flow.
    pub kind: FlowKind,
    /// Outer headers first; empty only for sniffers.
    pub specs: SpecChain,
    /// The device's action for matching packets.
    pub action: FlowAction,
}

/// The device's action for a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum FlowAction {
    /// Tag it with the class and spread it over the queue's indirection table.
    Steer {
        /// The RSS queue pair.
        queue: QueueId,
        /// The class in the flow tag.
        class: ClassId,
    },
    /// Drop it in hardware; all flows of the rule share a counter.
    Drop,
    /// Let a sent packet pass, counted in the same way.
    Pass,
}

/// The packets that a flow applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowKind {
    /// Received packets, which meet no later flow.
    #[default]
    Normal,
    /// Copies of received packets (`IBV_FLOW_ATTR_FLAGS_DONT_TRAP`); applied before other flows of its
    /// priority.
    Copy,
    /// Copies of all packets of the port in both directions (`IBV_FLOW_ATTR_SNIFFER`). It has no specs,
    /// priority or tag, because devices ignore them.
    Sniffer,
    /// Packets that the host sends (`IBV_FLOW_ATTR_FLAGS_EGRESS`).
    Egress,
}

impl Program {
    /// Makes the indexes by which workers look up classes ([`Class::make_index`]), so that none is left to be
    /// made while the program is put in force.
    pub fn make_indexes(&self) {
        self.classes.iter().flatten().filter(|class| class.has_index()).for_each(Class::make_index);
    }

    /// Shares the specs of flows that `previous` has too, so that the two programs are compared quickly.
    pub fn share_specs(&mut self, previous: &Self) {
        let known: HashSet<&SpecChain> = previous.flows.iter().map(|flow| &flow.specs).collect();
        for flow in &mut self.flows {
            if let Some(same) = known.get(&flow.specs) {
                flow.specs = SpecChain::clone(same);
            }
        }
    }
}

impl Flow {
    /// Whether a packet matches every spec.
    #[must_use]
    pub fn matches(&self, key: &DeepKey) -> bool {
        self.specs.matches(key)
    }

    /// The parts of the flow by which a device finds it: it takes each once for a priority.
    #[must_use]
    pub fn match_key(&self) -> (FlowKind, &SpecChain) {
        (self.kind, &self.specs)
    }

    /// The part of the match that tells most pairs of flows apart.
    #[must_use]
    pub fn front(&self) -> FlowFront {
        self.specs.front()
    }

    /// The packets that the flow matches, with everything implied; `None` if no packet has these headers.
    #[must_use]
    pub fn cube(&self) -> Option<&Cube> {
        self.specs.cube()
    }

    /// The received packets that the flow claims of a network interface: those that match its conditions on
    /// outer headers, with nothing implied but the IP protocol. `None`: it claims none.
    #[must_use]
    pub fn claim(&self) -> Option<Cube> {
        let is_received = self.kind != FlowKind::Egress;
        claim_of(&self.specs, self.specs.inner_from()).filter(|_| is_received)
    }

    /// Whether a spec is about a tunnel, or the packet inside it.
    #[must_use]
    pub fn is_of_tunnel(&self) -> bool {
        self.specs.inner_from() < self.specs.len() || self.specs.iter().any(|spec| spec.kind().is_tunnel())
    }

    /// The flow without its values: devices keep flows of equal shape in one table.
    #[must_use]
    pub fn shape(&self) -> (FlowKind, usize, Vec<FlowSpec>) {
        (self.kind, self.specs.inner_from(), self.specs.iter().map(FlowSpec::shape).collect())
    }

    /// Whether it takes packets and matches multicast only, as mlx5 decides it: by the first spec, never by
    /// one of the packet inside.
    #[must_use]
    pub fn is_multicast_only(&self) -> bool {
        self.specs.begins_with_multicast() && matches!(self.kind, FlowKind::Normal | FlowKind::Egress)
    }
}

/// A class: how a worker decides packets that have one number in their flow tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The rule whose flows have the tag.
    pub rule: RuleId,
    /// How the outcome is found.
    pub decide: Decide,
}

/// How a class finds its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decide {
    /// The device has decided.
    Exact(Outcome),
    /// The device matches a superset of the rule: the first step that matches decides, else the outcome
    /// beside them.
    Software(Steps, Outcome),
}

impl Decide {
    /// Returns every outcome that the class may decide.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        let (steps, last) = match self {
            Self::Exact(outcome) => (None, outcome),
            Self::Software(steps, otherwise) => (Some(steps), otherwise),
        };
        steps.into_iter().flatten().map(|step| step.outcome).chain([*last])
    }
}

impl Class {
    /// The outcome for a packet of which only the outer headers are parsed. Does not allocate; an exact class
    /// does not read `key`.
    #[must_use]
    #[inline]
    pub fn resolve(&self, key: &FlowKey) -> Outcome {
        self.first(|predicate| predicate.matches(key))
    }

    /// The outcome for one packet. Does not allocate; an exact class does not read `key`.
    #[must_use]
    #[inline]
    pub fn resolve_deep(&self, key: &DeepKey) -> Outcome {
        self.first(|predicate| predicate.matches_deep(key))
    }

    #[inline]
    fn first(&self, matches: impl Fn(&Predicate) -> bool) -> Outcome {
        match &self.decide {
            Decide::Exact(outcome) => *outcome,
            Decide::Software(steps, otherwise) => {
                steps.iter().find(|step| matches(&step.predicate)).map_or(*otherwise, |step| step.outcome)
            }
        }
    }

    /// The number of rules that a worker compares a packet with until one decides, without an index; `None`:
    /// the device has decided.
    #[must_use]
    pub fn comparisons(&self, key: &DeepKey) -> Option<u64> {
        let Decide::Software(steps, _) = &self.decide else { return None };
        let decided = steps.iter().position(|step| step.predicate.matches_deep(key));
        Some(decided.map_or(steps.len(), |place| place + 1) as u64)
    }

    /// Whether the outcome is the same for all packets of the class.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self.decide, Decide::Exact(_))
    }

    /// Whether the outcome takes [`resolve_deep`](Self::resolve_deep). It looks at every step: not for the
    /// packet path.
    #[must_use]
    pub fn needs_tunnel(&self) -> bool {
        match &self.decide {
            Decide::Exact(_) => false,
            Decide::Software(steps, _) => steps.needs_tunnel(),
        }
    }
}

impl Program {
    /// The class whose number is the tag of a flow's packets; `None`: they have no tag. The tag of a sniffer
    /// is never read, and a device without tags refuses them.
    #[must_use]
    pub fn tagged_class(&self, flow: &Flow) -> Option<ClassId> {
        match flow.action {
            FlowAction::Steer { class, .. } => {
                Some(class).filter(|_| self.untagged != Some(class) && flow.kind != FlowKind::Sniffer)
            }
            FlowAction::Drop | FlowAction::Pass => None,
        }
    }

    /// A class; `None` if the program does not have it.
    #[must_use]
    #[inline]
    pub fn class(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(id.index()).and_then(Option::as_ref)
    }

    /// A sink; `None` if the program does not have it.
    #[must_use]
    pub fn sink(&self, id: SinkId) -> Option<&SinkSpec> {
        self.sinks.get(id.index())
    }

    /// The sink that returns packets to the kernel, if the policy has one.
    #[must_use]
    pub fn kernel_sink(&self) -> Option<SinkId> {
        self.sinks.iter().position(|sink| matches!(sink.kind, SinkKind::Kernel(_))).map(SinkId::of)
    }

    /// The sinks that also get the packets that workers drop: those that export flows.
    pub fn sinks_of_dropped(&self) -> impl Iterator<Item = SinkId> {
        let exports =
            |sink: &SinkSpec| matches!(&sink.kind, SinkKind::Count(count) if count.export.is_some());
        self.sinks
            .iter()
            .enumerate()
            .filter(move |(_, sink)| exports(sink))
            .map(|(index, _)| SinkId::of(index))
    }

    /// The pseudo rule `default`.
    #[must_use]
    pub fn default_rule(&self) -> RuleId {
        RuleId::of(self.rules.len().saturating_sub(1))
    }

    /// The text of a verdict: `deliver to dns`, `drop`, `kernel`.
    #[must_use]
    pub fn describe(&self, verdict: Verdict) -> String {
        match verdict {
            Verdict::Deliver(group) => {
                let name = self.groups.get(group.index()).map_or("?", |group| group.name.as_str());
                format!("deliver to {name}")
            }
            Verdict::Drop => "drop".to_owned(),
            Verdict::Kernel => "kernel".to_owned(),
            Verdict::Filtered => "filtered out".to_owned(),
        }
    }
}

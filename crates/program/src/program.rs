//! What a device and its workers run: flow rules, groups, queues and classes, all plain data.
//! Made by `compiler`; put on a device by `control`; the classes are run by `worker`. A program never
//! refers back to the policy's text, and equal policies give equal programs.

mod why;

use packet::{DeepKey, FlowKey, HashFields, RssKey};
use serde::Serialize;

use crate::ids::{ClassId, GroupId, QueueId, RuleId, WorkerId};
use crate::predicate::Predicate;
use crate::spec::Spec;

pub use why::{Unfinished, Untold, Why};

/// The name of the pseudo rule that stands for the policy's `default`.
pub const DEFAULT_RULE: &str = "default";
/// The name under which counters of rules that left the policy long ago are summed. No rule can have it: names
/// have no brackets.
pub const RETIRED_RULES: &str = "(retired rules)";

/// The most rules of one policy; with one class per rule it keeps flow tags far below their 22 bits.
pub const MAX_RULES: usize = 65_536;

/// A compiled policy. Every id is an index into the vector of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The policy's rules in order, then the pseudo rule [`DEFAULT_RULE`].
    pub rules: Vec<Rule>,
    /// The policy's groups in order, used or not.
    pub groups: Vec<Group>,
    /// One RSS queue pair for every group and hash variant that a flow needs.
    pub queues: Vec<RssQueue>,
    /// Highest precedence first.
    pub flows: Vec<Flow>,
    /// What workers do by flow tag. Holes are tags that the program before has used: a rule that stays
    /// keeps its class, and a tag changes its meaning no sooner than one program later.
    pub classes: Vec<Option<Class>>,
    /// What packets are that come without a tag: all of them on a device that has none, otherwise those
    /// that a sniffer has heard.
    pub untagged: Option<ClassId>,
    /// The rules that leave packets to the host, as far as no flow is needed for it: whose packet is left
    /// there is theirs, by the first that matches.
    pub exceptions: Vec<Exception>,
    /// What happens to packets that no rule claims.
    pub default: Verdict,
    /// How many hardware priorities the flows occupy, counted from 0.
    pub priorities_used: u16,
}

/// One line of policy as the program knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Unique; what counters are named after.
    pub name: String,
    /// What the rule does with its packets.
    pub action: Verdict,
    /// Line of the policy file, from 1 (the pseudo rule: the line of `default`, or 0).
    pub line: u32,
    /// Where the decision falls.
    pub placement: Placement,
    /// Whether the operator wants its counters exported.
    pub count: bool,
    /// How many flows carry it; 0 for one that earlier flows cover whole.
    pub flows: u32,
    /// The keys that a worker finishes.
    pub unfinished: Vec<Unfinished>,
}

/// A rule that leaves packets to the host: they meet no flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The rule.
    pub rule: RuleId,
    /// Its whole match.
    pub predicate: Predicate,
    /// What follows if it matches.
    pub outcome: Outcome,
    /// The later rules whose flows were cut for it; the default is one.
    pub left_out_of: Vec<RuleId>,
    /// Into how many pieces more; each is a flow for every hash variant that it meets.
    pub pieces: u32,
}

/// Where a rule is decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Placement {
    /// The device decides alone.
    Hardware,
    /// The device matches more coarsely and the worker finishes.
    Hybrid {
        /// What the device cannot say, in the policy's words.
        reason: String,
    },
}

/// Workers that share a rule's traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name in the policy.
    pub name: String,
    /// The indirection table; its length is a power of two.
    pub table: Vec<WorkerId>,
    /// The Toeplitz key of every queue of the group.
    pub key: RssKey,
    /// What is hashed, over all variants.
    pub fields: HashFields,
    /// Whether both directions of a connection meet on one worker.
    pub symmetric: bool,
}

/// Which packets a queue pair hashes; real NICs take the fields of one variant only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HashVariant {
    /// IPv4 with a TCP header.
    V4Tcp,
    /// IPv4 with a UDP header.
    V4Udp,
    /// Other IPv4, later fragments included.
    V4,
    /// IPv6 with a TCP header right behind.
    V6Tcp,
    /// IPv6 with a UDP header right behind.
    V6Udp,
    /// Other IPv6.
    V6,
    /// What has nothing to hash: always the first entry of the table.
    Other,
    /// Everything, on devices whose queue pairs take all fields together.
    All,
}

/// One RSS queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssQueue {
    /// The group it serves; its key is the group's.
    pub group: GroupId,
    /// The packets it serves.
    pub variant: HashVariant,
    /// The group's fields that apply to the variant.
    pub fields: HashFields,
    /// The group's table, or its first entry alone where nothing is hashed.
    pub table: Vec<WorkerId>,
}

/// One `ibv_flow` to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The rule that caused it.
    pub rule: RuleId,
    /// 0 is the highest precedence.
    pub priority: u16,
    /// What kind it is.
    pub kind: FlowKind,
    /// Outer layers first; empty for a sniffer alone.
    pub specs: Vec<Spec>,
    /// Where in `specs` those about the packet inside a tunnel begin; their number if there are none.
    pub inner_from: usize,
    /// What the device does.
    pub action: FlowAction,
}

/// What the device does with a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum FlowAction {
    /// Tag with the class and spread over the queue's table.
    Steer {
        /// The RSS queue pair.
        queue: QueueId,
        /// The flow tag.
        class: ClassId,
    },
    /// Drop in hardware; counted by a counter shared by all flows of the rule.
    Drop,
    /// Let out what the host sends, counted in the same way.
    Pass,
}

/// What a flow takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowKind {
    /// What the port receives; it goes no further.
    #[default]
    Normal,
    /// A copy of what the port receives (`IBV_FLOW_ATTR_FLAGS_DONT_TRAP`); before others of its priority.
    Copy,
    /// A copy of all that passes the port, both ways (`IBV_FLOW_ATTR_SNIFFER`). Without specs, priority and
    /// tag: devices read none of them.
    Sniffer,
    /// What the host sends (`IBV_FLOW_ATTR_FLAGS_EGRESS`).
    Egress,
}

impl Flow {
    /// Whether a received packet meets every spec.
    #[must_use]
    pub fn matches(&self, key: &DeepKey) -> bool {
        self.specs.iter().enumerate().all(|(index, spec)| spec.matches_deep(key, index >= self.inner_from))
    }

    /// The masks by which devices store it.
    #[must_use]
    pub fn shape(&self) -> (FlowKind, usize, Vec<Spec>) {
        (self.kind, self.inner_from, self.specs.iter().map(Spec::shape).collect())
    }

    /// Whether it takes packets and matches multicast only, as an mlx5 asks (kernel fs.c, `flow_is_multicast_only`):
    /// by the first spec alone, of an Ethernet address value and mask, of an IPv4 address the value; not by one about
    /// the packet inside.
    #[must_use]
    pub fn is_multicast_only(&self) -> bool {
        let is_multicast = match self.specs.first() {
            _ if self.inner_from == 0 => false,
            Some(Spec::Ethernet { value, mask }) => {
                value.dst_mac.is_multicast() && mask.dst_mac.is_multicast()
            }
            Some(Spec::Ipv4 { value, .. }) => value.dst.is_multicast(),
            _ => false,
        };
        is_multicast && matches!(self.kind, FlowKind::Normal | FlowKind::Egress)
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "group")]
pub enum Verdict {
    /// To a worker of the group.
    Deliver(GroupId),
    /// Nowhere, counted.
    Drop,
    /// To the host's network stack.
    Kernel,
    /// Nowhere: a copy of a packet that its rule does not match, made because the device matches more coarsely
    /// than the rule. The worker discards it; what becomes of the packet itself is decided elsewhere.
    Filtered,
}

/// A verdict and the rule that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Outcome {
    /// The rule (or the pseudo rule `default`).
    pub rule: RuleId,
    /// Its verdict.
    pub verdict: Verdict,
}

/// What a worker does with packets of one flow tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The rule whose flows lead here.
    pub rule: RuleId,
    /// How the outcome is found.
    pub decide: Decide,
}

/// How a class finds its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decide {
    /// The device has decided.
    Exact(Outcome),
    /// The device matched more coarsely: the first step that matches decides.
    Software(Vec<Step>, Outcome),
}

/// One question of a software class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The rule asked about.
    pub rule: RuleId,
    /// Its whole match.
    pub predicate: Predicate,
    /// What follows if it matches.
    pub outcome: Outcome,
}

impl Class {
    /// The outcome for a packet of which no more than the outer headers is known. Does not allocate; for an
    /// exact class it does not look at `key`.
    #[must_use]
    #[inline]
    pub fn resolve(&self, key: &FlowKey) -> Outcome {
        self.first(|predicate| predicate.matches(key))
    }

    /// The outcome for one packet. Does not allocate; for an exact class it does not look at `key`.
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

    /// Whether the outcome needs the packet's headers at all.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self.decide, Decide::Exact(_))
    }

    /// Whether it takes [`resolve_deep`](Self::resolve_deep). Looks at every step: to be asked beforehand.
    #[must_use]
    pub fn needs_tunnel(&self) -> bool {
        match &self.decide {
            Decide::Exact(_) => false,
            Decide::Software(steps, _) => steps.iter().any(|step| step.predicate.needs_tunnel()),
        }
    }
}

impl Program {
    /// The class of a tag; `None` for a hole, and beyond the program.
    #[must_use]
    #[inline]
    pub fn class(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(id.index()).and_then(Option::as_ref)
    }

    /// The pseudo rule `default`.
    #[must_use]
    pub fn default_rule(&self) -> RuleId {
        RuleId::of(self.rules.len().saturating_sub(1))
    }

    /// A verdict in words: `deliver to dns`, `drop`, `kernel`.
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

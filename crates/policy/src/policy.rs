//! A checked policy: the output of the parser and the input of the compiler and the analysis. Sets are
//! replaced by their values and group names by ids; it does not depend on a device.

use std::collections::BTreeMap;
use std::sync::Arc;

use packet::{HashFields, RssKey};
use program::{
    DescriptionText, GroupId, Match, Policing, RecorderSpec, RuntimeFields, RuntimeMatch, SinkId, SinkSpec,
    Verdict,
};

use crate::diagnostics::Place;
use crate::policy_test::PolicyTest;
use crate::protect::ProtectedMatch;
use crate::source::Source;

/// The most groups of one policy.
pub const MAX_GROUPS: usize = 1024;
/// The most entries of `matches` in one `[protect]`.
pub const MAX_PROTECTED_MATCHES: usize = 1024;
/// The most tests of one policy.
pub const MAX_TESTS: usize = 10_000;
/// The most values of one set, or of one list.
pub const MAX_SET_VALUES: usize = 1 << 20;
/// The most values that all rules of a policy have in total; a set counts wherever a rule names it.
pub const MAX_TOTAL_VALUES: usize = 1 << 24;
/// The largest `max_change` of a set, in percent.
pub(crate) const MAX_CHANGE: u32 = 1_000_000;
/// The longest name of a rule, group or set, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 64;
/// The highest number of a worker: above the cores of any machine, below the entries of a table.
pub(crate) const MAX_WORKER: u32 = 4095;
/// The largest weight of a worker.
pub(crate) const MAX_WEIGHT: u32 = 65_535;
/// The longest indirection table that a group may have, in entries.
pub const MAX_TABLE_SIZE: u32 = 1 << 16;
/// The length of the indirection table of a group without `table_size`, in entries.
pub const DEFAULT_TABLE_SIZE: u32 = 128;

/// The version of the language.
pub(crate) const VERSION: u32 = 1;
/// The bounds of `priority`.
pub(crate) const PRIORITIES: (i32, i32) = (i16::MIN as i32, i16::MAX as i32);
/// The largest MPLS label.
pub(crate) const MAX_LABEL: u32 = 0xf_ffff;
/// The largest traffic class of an MPLS label.
pub(crate) const MAX_LABEL_CLASS: u32 = 7;

/// The name of the rule that `default_multicast` becomes.
pub(crate) const DEFAULT_MULTICAST: &str = "default_multicast";

/// A policy in which all names are resolved and all values are in range.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The text of the policy, for diagnostics.
    pub source: Arc<Source>,
    /// In the order of the text.
    pub groups: Vec<GroupDefinition>,
    /// In the order of the text.
    pub sinks: Vec<SinkDefinition>,
    /// The first match wins: by `priority`, and within one in the order of the text.
    pub rules: Vec<RuleDefinition>,
    /// The action for unmatched packets.
    pub default: Action,
    /// The place of `default`, or the start of the file.
    pub default_place: Place,
    /// Whether the text has `default`.
    pub default_given: bool,
    /// Whether packets that it leaves to the kernel may reach workers, where they are lost.
    pub allow_lost_exceptions: bool,
    /// The packets that must reach the host; `None`: the text has no `[protect]`.
    pub protect: Option<Vec<ProtectedMatch>>,
    /// The sets that may change only by so much at once.
    pub set_sizes: Vec<SetSize>,
    /// The rules that may be added while it is in force; `None`: the text has no `[runtime]`.
    pub runtime: Option<RuntimeDefinition>,
    /// The packets that workers keep in memory; `None`: the text has no `[recorder]`.
    pub recorder: Option<RecorderDefinition>,
    /// In the order of the text, those of included files first.
    pub tests: Vec<PolicyTest>,
}

impl Policy {
    /// Whether it carves queues: its groups have receive queues of an interface in the place of workers.
    #[must_use]
    pub fn carves_queues(&self) -> bool {
        self.groups.iter().any(|group| group.has_queues)
    }

    /// The sinks of a rule's packets: its own, or those of its group. `own`: [`RuleDefinition::sinks`]; of
    /// the default, `None`.
    #[must_use]
    pub fn sinks_of<'p>(&'p self, action: Action, own: Option<&'p [SinkId]>) -> &'p [SinkId] {
        match action {
            Action::Steer(group) | Action::Copy(group) | Action::Sniff(group) => own.unwrap_or_else(|| {
                self.groups.get(group.index()).map(|group| &*group.sinks).unwrap_or_default()
            }),
            Action::Drop | Action::Kernel | Action::Pass => &[],
        }
    }

    /// Makes rules at run time rules of the policy, in the place that it gives them and in the order of their
    /// forms, in which workers look them up. Does nothing if the policy allows no rules at run time.
    pub fn insert_at_run_time(&mut self, rules: Vec<InsertedRule>) {
        let Some(runtime) = &mut self.runtime else { return };
        let before = runtime.before.min(self.rules.len());
        let neighbour = self.rules.get(before).or(self.rules.last());
        let priority = neighbour.map_or(0, |rule| rule.priority);
        let form = |matches: &RuntimeMatch| {
            let fields = matches.fields().ok();
            runtime.forms.iter().position(|form| Some(*form) == fields)
        };
        let mut rules: Vec<(Option<usize>, InsertedRule)> =
            rules.into_iter().map(|rule| (form(&rule.matches), rule)).collect();
        rules.sort_by_key(|(form, _)| *form);
        let definition = |InsertedRule { name, matches, action }| RuleDefinition {
            name,
            action,
            priority,
            ..RuleDefinition::for_host(matches.to_match(), runtime.place.clone())
        };
        let rules: Vec<RuleDefinition> = rules.into_iter().map(|(_, rule)| definition(rule)).collect();
        runtime.before = before + rules.len();
        self.rules.splice(before..before, rules);
    }
}

/// A rule at run time that becomes a rule of the policy.
#[derive(Clone, Debug)]
pub struct InsertedRule {
    /// The name, which no other rule has.
    pub name: String,
    /// The packets, of a form that the policy allows.
    pub matches: RuntimeMatch,
    /// The action, which the policy allows.
    pub action: Action,
}

/// `[runtime]`: the rules that may be added while the policy is in force.
#[derive(Clone, Debug)]
pub struct RuntimeDefinition {
    /// The index of the rule that they stand before; the number of rules: before the default.
    pub before: usize,
    /// The fields that a rule compares, all of one form; of two rules that match a packet the one of the
    /// first form decides.
    pub forms: Vec<RuntimeFields>,
    /// The actions that they may have, each with its text.
    pub actions: Vec<(String, Action)>,
    /// The most rules.
    pub rules_max: u32,
    /// The most of them that act in the device.
    pub device_rules_max: u32,
    /// Whether the text has `device_rules`; else a device that has no room for so many gets fewer.
    pub device_rules_given: bool,
    /// The users that may add rules, beside those that may change what runs, each with its most rules.
    pub owners: BTreeMap<u32, u32>,
    /// The place of its name.
    pub place: Place,
}

/// `[recorder]`: the packets that workers keep in memory.
#[derive(Clone, Debug)]
pub struct RecorderDefinition {
    /// The options.
    pub recorder: RecorderSpec,
    /// The place of its name.
    pub place: Place,
}

/// A set with `max_change`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSize {
    /// The name.
    pub name: String,
    /// How many values it has, those of the sets that it names included.
    pub values: usize,
    /// By how many percent of its values their number may change from one policy to the next.
    pub max_change_percent: u32,
}

impl SetSize {
    /// Whether the step from so many values to those of this set is larger than allowed.
    #[must_use]
    pub fn changes_too_much(&self, before: usize) -> bool {
        let change = self.values.abs_diff(before) as u128;
        change * 100 > before as u128 * u128::from(self.max_change_percent)
    }
}

/// `[groups.NAME]`.
#[derive(Clone, Debug)]
pub struct GroupDefinition {
    /// The name.
    pub name: String,
    /// A text for people.
    pub description: Option<DescriptionText>,
    /// The workers and their shares.
    pub workers: Workers,
    /// Whether the text has `queues`: the numbers are those of receive queues of the interface, from which
    /// other programs take the packets.
    pub has_queues: bool,
    /// The hashed fields.
    pub fields: HashFields,
    /// The Toeplitz key.
    pub key: RssKey,
    /// Whether both directions of a connection reach the same worker.
    pub symmetric: bool,
    /// Entries of the indirection table, a power of two; `None`: chosen for the workers and the device.
    pub table_size: Option<u32>,
    /// Where its packets go; each sink gets all of them.
    pub sinks: Vec<SinkId>,
    /// The place of its name.
    pub place: Place,
}

/// `[sinks.NAME]`.
#[derive(Clone, Debug)]
pub struct SinkDefinition {
    /// The name, the kind and its options.
    pub sink: SinkSpec,
    /// The place of its name.
    pub place: Place,
}

/// The workers of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workers {
    /// Every configured worker, equally.
    All,
    /// These, each with its weight and place.
    Listed(Vec<WorkerShare>),
}

/// One worker of a group.
#[derive(Clone, Debug)]
pub struct WorkerShare {
    /// The worker's number in the settings.
    pub worker: u32,
    /// The share of the table in proportion to the weights of the others.
    pub weight: u32,
    /// The place in the text.
    pub place: Place,
}

impl PartialEq for WorkerShare {
    fn eq(&self, other: &Self) -> bool {
        (self.worker, self.weight) == (other.worker, other.weight)
    }
}

impl Eq for WorkerShare {}

/// One `[[rules]]`.
#[derive(Clone, Debug)]
pub struct RuleDefinition {
    /// The name, unique.
    pub name: String,
    /// A text for people.
    pub description: Option<DescriptionText>,
    /// The packets that it applies to.
    pub matches: Match,
    /// The action of the rule.
    pub action: Action,
    /// Whether it applies to received or sent packets.
    pub direction: Direction,
    /// Rules with lower numbers come first; `Policy::rules` is sorted by it.
    pub priority: i32,
    /// Whether its counters are exported.
    pub count: bool,
    /// Where its packets go instead of the group's sinks.
    pub sinks: Option<Vec<SinkId>>,
    /// The part of its packets that workers let through to these sinks.
    pub policing: Policing,
    /// Whether it is the policy's `default_multicast`: the last rule, for multicast packets that match no
    /// other.
    pub multicast_default: bool,
    /// The place of its match.
    pub place: Place,
    /// The place of its name.
    pub name_place: Place,
}

impl RuleDefinition {
    /// An uncounted rule without a name that leaves received packets to the host.
    #[must_use]
    pub fn for_host(matches: Match, place: Place) -> Self {
        Self {
            name: String::new(),
            description: None,
            matches,
            action: Action::Kernel,
            direction: Direction::Ingress,
            priority: 0,
            count: false,
            sinks: None,
            policing: Policing::default(),
            multicast_default: false,
            name_place: place.clone(),
            place,
        }
    }
}

/// The action of a rule or of the default: what the operator wrote. What a worker or the device then does
/// with one packet is a [`Verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Deliver the packet to a worker of the group.
    Steer(GroupId),
    /// Drop it.
    Drop,
    /// Leave it to the host.
    Kernel,
    /// Deliver a copy to the group (`IBV_FLOW_ATTR_FLAGS_DONT_TRAP`); later rules apply to the packet.
    Copy(GroupId),
    /// Deliver copies of all packets of the port, in both directions, to the group (`IBV_FLOW_ATTR_SNIFFER`).
    Sniff(GroupId),
    /// Let it pass, counted: only in egress rules, as an exception to a later drop.
    Pass,
}

impl Action {
    /// Whether a rule of this direction decides received packets that it matches.
    #[must_use]
    pub fn decides(self, direction: Direction) -> bool {
        direction == Direction::Ingress && matches!(self, Self::Steer(_) | Self::Drop | Self::Kernel)
    }

    /// The action as a verdict on packets.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        match self {
            Self::Steer(group) | Self::Copy(group) | Self::Sniff(group) => Verdict::Deliver(group),
            Self::Drop => Verdict::Drop,
            Self::Kernel | Self::Pass => Verdict::Kernel,
        }
    }
}

/// Whether a rule applies to received or sent packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Packets that the port receives.
    #[default]
    Ingress,
    /// Packets that the host sends (`IBV_FLOW_ATTR_FLAGS_EGRESS`).
    Egress,
}

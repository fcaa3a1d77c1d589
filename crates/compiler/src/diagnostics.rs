//! The English text of each reason why a policy does not compile for a device: a [`Diagnostic`] with the line
//! in the policy, and, where a limit of the device is the cause, an [`Obstacle`] with limit, errno and remedy
//! for reports.

use device_model::{DeviceModel, Limit, PriorityTable};
use policy::policy::{Action, GroupDefinition, RuleDefinition, Workers};
use policy::{Diagnostic, Diagnostics, Place, Policy, Severity};
use program::{DEFAULT_RULE, Errno, Feature, Inseparable, Program, RuleId, UndecidedKey, UndecidedReason};
use serde::Serialize;

use crate::capacity::{CapacityRow, Conflict, Shortage, conflict};
use crate::cover::expand::Explosion;
use crate::cover::{CoverProblem, MAX_FLOWS};
use crate::except::overlaps::{MAX_STEPS_IN_ALL, TooManySteps};
use crate::except::place::{PlaceProblem, RuleProblem};
use crate::fit::flow_problems::{FlowProblem, PriorityCause};
use crate::groups::{GroupProblem, RefusedGroup, TableFault, TableProblem};
use crate::problem::{Problem, Problems};
use crate::rank::lower::{LowerProblem, MAX_MASKS};

/// Why a device cannot run a policy, or one rule of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// The rule; `None`: the default, or the policy as a whole.
    pub rule: Option<RuleId>,
    /// The problem.
    pub reason: String,
    /// The limit that is exceeded.
    pub limit: String,
    /// The error of the device; `None`: only the compiler has this limit.
    pub errno: Option<Errno>,
    /// The remedy.
    pub remedy: String,
}

impl Problems {
    /// All as diagnostics, by their places in the policy.
    #[must_use]
    pub fn diagnostics(&self, policy: &Policy, profile: &DeviceModel) -> Diagnostics {
        let context = Context { policy, profile };
        let mut diagnostics = Diagnostics::default();
        for problem in self.iter() {
            diagnostics.push_with(Severity::Error, || context.text(problem).diagnostic());
        }
        diagnostics.sort();
        diagnostics
    }

    /// The problems that are about the device, in the order in which they were found.
    #[must_use]
    pub fn obstacles(&self, policy: &Policy, profile: &DeviceModel) -> Vec<Obstacle> {
        let context = Context { policy, profile };
        let about_device = self.iter().filter(|problem| problem.is_about_device());
        about_device.map(|problem| context.text(problem).obstacle).collect()
    }
}

/// Returns why `after` cannot be on a device beside `before`, beyond what [`Capacity`](crate::Capacity)
/// counts; `None`: nothing is known. Devices that apply flows that match only multicast after all others keep
/// those of both programs in one table, whatever their priority. The named rule is one of `after`.
#[must_use]
pub fn reload_conflict(before: &Program, after: &Program, profile: &DeviceModel) -> Option<Obstacle> {
    conflict(before, after, profile).map(|conflict| conflict.obstacle(after, profile))
}

impl Conflict {
    /// In English; the rule is named by its program.
    fn obstacle(self, after: &Program, profile: &DeviceModel) -> Obstacle {
        let name = |rule: RuleId| after.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str());
        let device = &profile.name;
        match self {
            Self::SameMatch(rule) => Obstacle {
                rule: Some(rule),
                reason: format!(
                    "`{}` matches only multicast, and `{device}` keeps such flows of the old and the new program in one \
                     table",
                    name(rule)
                ),
                limit: "a match is in it once, with one action and one tag".to_owned(),
                errno: Some(Errno::Eexist),
                remedy: "match groups by `dst`, or restart steerd in place of a reload".to_owned(),
            },
            Self::TableFull(rule) => Obstacle {
                rule: Some(rule),
                reason: format!(
                    "the flows that match only multicast of the old and the new program share one table of `{device}`, which \
                     has no room for all of `{}`",
                    name(rule)
                ),
                limit: table_limit(profile),
                errno: Some(profile.errno(Limit::PriorityTable)),
                remedy: "use fewer ranges in the rules on multicast MAC addresses, or restart steerd in place of a \
                         reload"
                    .to_owned(),
            },
        }
    }
}

impl CapacityRow {
    /// The texts after the number and after the limit, if a program has half of what the device has.
    #[must_use]
    pub fn for_one_program(&self) -> (&'static str, &'static str) {
        match self.is_halved() {
            true => (" for it", ": half of what the device has, because a reload has two programs there"),
            false => ("", ""),
        }
    }
}

/// A problem in English, and its place in the policy.
struct Text<'p> {
    obstacle: Obstacle,
    place: &'p Place,
    /// The note at the marked text; `None`: the limit.
    label: Option<&'static str>,
}

impl Text<'_> {
    fn diagnostic(self) -> Diagnostic {
        let Obstacle { reason, limit, errno, remedy, .. } = self.obstacle;
        let errno = errno.map_or_else(String::new, |errno| format!(" ({errno})"));
        self.place.error(format!("{reason}{errno}"), self.label.unwrap_or(&limit)).hint(remedy)
    }

    fn labelled(self, label: &'static str) -> Self {
        Self { label: Some(label), ..self }
    }
}

/// The policy and the device, for names and places.
struct Context<'p> {
    policy: &'p Policy,
    profile: &'p DeviceModel,
}

impl<'p> Context<'p> {
    fn rule(&self, rule: RuleId) -> Option<&'p RuleDefinition> {
        self.policy.rules.get(rule.index())
    }

    fn name(&self, rule: RuleId) -> &'p str {
        self.rule(rule).map_or(DEFAULT_RULE, |rule| rule.name.as_str())
    }

    fn text(&self, problem: &Problem) -> Text<'p> {
        match problem {
            Problem::Group(RefusedGroup { group, problem }) => {
                self.group(&self.policy.groups[group.index()], problem)
            }
            Problem::Cover(CoverProblem::Combinations(rule, explosion)) => {
                self.too_many_combinations(*rule, explosion)
            }
            Problem::Cover(CoverProblem::Flows(rule)) | Problem::Lower(LowerProblem::Flows(rule)) => {
                self.too_many_flows(*rule)
            }
            Problem::Lower(LowerProblem::Masks(rule)) => self.too_many_masks(*rule),
            Problem::Place(PlaceProblem::Rule(rule, problem)) => self.rule_problem(*rule, problem),
            Problem::Place(PlaceProblem::DefaultCannotDrop) => self.of_rule(
                None,
                format!("the default drops, which `{}` cannot", self.profile.name),
                "no flow drops",
                self.profile.refusal(Feature::Drop).map(|refusal| refusal.errno),
                "add a group: its workers drop unmatched packets",
            ),
            Problem::Steps(TooManySteps(rule)) => self.too_many_steps(*rule),
            Problem::Flows(problem) => self.flow_problem(problem),
            Problem::Shortage(Shortage { rule, row }) => self.shortage(*rule, row),
            Problem::NoSteering => {
                let refusal = self.profile.refusal(Feature::Normal);
                let source = refusal.map_or("", |refusal| refusal.source.as_str());
                self.of_rule(
                    None,
                    format!("`{}` cannot steer: it has no flows that match packets ({source})", self.profile.name),
                    "no flows",
                    refusal.map(|refusal| refusal.errno),
                    "no policy can run on this device: use one whose driver has ibv_create_flow, or the software NIC",
                )
            }
        }
    }

    /// `None`, or the default: the policy as a whole.
    fn of_rule(
        &self,
        rule: Option<RuleId>,
        reason: String,
        limit: impl Into<String>,
        errno: Option<Errno>,
        remedy: impl Into<String>,
    ) -> Text<'p> {
        let rule = rule.filter(|rule| rule.index() < self.policy.rules.len());
        let definition = rule.and_then(|rule| self.rule(rule));
        let place = definition.map_or(&self.policy.default_place, |rule| &rule.place);
        let obstacle = Obstacle { rule, reason, limit: limit.into(), errno, remedy: remedy.into() };
        Text { obstacle, place, label: None }
    }

    fn group(&self, definition: &'p GroupDefinition, problem: &GroupProblem) -> Text<'p> {
        let (name, device) = (&definition.name, &self.profile.name);
        let mut place = &definition.place;
        let (reason, limit, errno, remedy) = match problem {
            GroupProblem::UnknownWorker { share, workers } => {
                let mut unknown = 0;
                if let Workers::Listed(listed) = &definition.workers {
                    (place, unknown) = (&listed[*share].place, listed[*share].worker);
                }
                let reason = format!("the group `{name}` names worker {unknown}");
                (reason, "no such worker".to_owned(), None, configured(*workers))
            }
            GroupProblem::NoWorkers => {
                (format!("the group `{name}` has no workers"), "empty".to_owned(), None, configured(0))
            }
            GroupProblem::OnlyAbsent => (
                format!("the group `{name}` has no worker that serves"),
                "all of its workers are spare or stalled".to_owned(),
                None,
                "add one with `steerd worker add`, or let the group name others".to_owned(),
            ),
            GroupProblem::HalfHash => (
                format!("the group `{name}` hashes source or destination alone"),
                format!("`{device}` hashes both or none"),
                Some(self.profile.errno(Limit::Queues)),
                "write hash = \"l3l4\", \"l3\" or \"none\"".to_owned(),
            ),
            GroupProblem::Table(problem) => self.table_of_group(definition, problem),
        };
        Text { obstacle: Obstacle { rule: None, reason, limit, errno, remedy }, place, label: None }
    }

    /// The texts about problems of a group's indirection table: reason, limit, errno and remedy.
    fn table_of_group(
        &self,
        definition: &GroupDefinition,
        problem: &TableProblem,
    ) -> (String, String, Option<Errno>, String) {
        let (name, device) = (&definition.name, &self.profile.name);
        match problem {
            TableProblem::NotConsecutive(fault) => {
                let reason = match fault {
                    TableFault::Gap => format!("the workers of the group `{name}` do not follow each other"),
                    TableFault::Weights => {
                        format!("the workers of the group `{name}` have different weights")
                    }
                    TableFault::Count(count) => format!("the group `{name}` has {count} workers"),
                    TableFault::Size => {
                        format!("the group `{name}` wants a table of another size than its workers")
                    }
                };
                let limit = format!("a table of `{device}` names workers in a row, each once");
                let remedy = "name 1, 2, 4, 8, ... workers that follow each other, of equal weight, without table_size";
                (reason, limit, Some(self.profile.errno(Limit::Tables)), remedy.to_owned())
            }
            TableProblem::TooLarge { entries, most } => (
                format!("the table of the group `{name}` needs {entries} entries"),
                format!("`{device}` has tables of at most {most} entries"),
                Some(self.profile.errno(Limit::Tables)),
                match definition.table_size {
                    Some(_) => format!("write table_size = {most}, or leave it out"),
                    None => format!("name {most} workers at most"),
                },
            ),
            TableProblem::TooSmall { entries, workers, needed } => (
                format!("the table of the group `{name}` has {entries} entries for {workers} workers"),
                "some would receive nothing".to_owned(),
                None,
                format!("write table_size = {needed}"),
            ),
            TableProblem::StarvedWorker { worker, weight, entries, needed } => (
                format!("worker {worker} of weight {weight} gets no entry in a table of {entries}"),
                "would receive nothing".to_owned(),
                None,
                match needed {
                    Some(needed) => format!("write table_size = {needed}, or weights less far apart"),
                    None => {
                        format!("no table that `{device}` has is large enough: write weights less far apart")
                    }
                },
            ),
        }
    }

    fn rule_problem(&self, id: RuleId, problem: &RuleProblem) -> Text<'p> {
        let (name, device) = (self.name(id), &self.profile.name);
        let (reason, limit, errno, remedy) = match problem {
            RuleProblem::NeedsWorker { keys, errno } => {
                let drops = self.rule(id).is_some_and(|rule| rule.action == Action::Drop);
                let does = if drops { "drops" } else { "leaves packets to the host" };
                let remedy = "add a group: its workers look at these packets and drop them";
                (
                    format!("`{name}` {does} by {}, which needs a worker", keys.join(", ")),
                    "the device cannot match this alone".to_owned(),
                    *errno,
                    remedy.to_owned(),
                )
            }
            RuleProblem::UnsupportedFlow(feature) => (
                format!("`{name}` needs {}, which `{device}` does not support", feature.name()),
                "no such flows".to_owned(),
                self.profile.refusal(*feature).map(|refusal| refusal.errno),
                "remove the rule, or use another device".to_owned(),
            ),
            RuleProblem::SecondSniffer => (
                format!("`{name}` is a second rule that sniffs"),
                "one sniffer".to_owned(),
                Some(self.profile.errno(Limit::Sniffers)),
                "packets of a sniffer carry no tag, so two cannot be distinguished: use one rule".to_owned(),
            ),
            RuleProblem::HybridEgress { keys, errno } => (
                format!("`{name}` matches what the host sends by {}", keys.join(", ")),
                "no worker sees what is sent".to_owned(),
                *errno,
                "leave these keys out".to_owned(),
            ),
            RuleProblem::HiddenCopy { earlier, why } => self.hidden_copy(id, *earlier, why.as_ref()),
            RuleProblem::CopiedTwice => (
                format!("`{name}` covers some packets more than once, and would copy them twice"),
                "one copy per rule".to_owned(),
                None,
                "write addresses and masks that do not overlap".to_owned(),
            ),
            RuleProblem::OvertakenMulticast(by) => (
                format!("`{}` would take packets that are sent by `{name}` before it", self.name(*by)),
                format!("`{device}` applies flows that match only multicast after all others"),
                None,
                format!(
                    "leave `dst_mac` out and match groups by `dst`, or move `{name}` behind `{}`",
                    self.name(*by)
                ),
            ),
        };
        self.of_rule(Some(id), reason, limit, errno, remedy)
    }

    /// Reason, limit, errno and remedy of a copy of packets that a worker receives by an earlier rule.
    fn hidden_copy(
        &self,
        copy: RuleId,
        earlier: RuleId,
        why: Option<&UndecidedKey>,
    ) -> (String, String, Option<Errno>, String) {
        let (name, first) = (self.name(copy), self.name(earlier));
        let because = why.map_or_else(String::new, |note| format!(": {}: {}", note.key, note.why.words()));
        let remedy = match why.map(|note| note.why) {
            Some(UndecidedReason::KernelException { by, inseparable }) => {
                let later = self.rule(by).map(|rule| rule.name.as_str());
                exclusion_remedy(later, inseparable, false)
            }
            _ => format!("write `{first}` with keys that the device matches"),
        };
        (
            format!("packets that `{name}` copies go to the worker by `{first}` first{because}"),
            "copies are made by the device, not by workers".to_owned(),
            why.and_then(|note| note.why.errno()),
            format!(
                "{remedy}; or move `{name}` before `{first}`, if it may copy the packets of `{first}` as well"
            ),
        )
    }

    fn too_many_combinations(&self, rule: RuleId, explosion: &Explosion) -> Text<'p> {
        let Explosion { excess, keys } = explosion;
        let keys = keys.iter().take(3).map(|(key, count)| format!("`{key}` ({count})"));
        let reason =
            format!("the rule `{}` takes up to {} combinations", self.name(rule), excess.combinations);
        let remedy = format!(
            "most come from {}, ranges counted as their prefixes: write fewer values, or end ranges at powers of two",
            keys.collect::<Vec<_>>().join(" times "),
        );
        self.of_rule(Some(rule), reason, format!("a rule may take {}", excess.most), None, remedy)
    }

    fn too_many_flows(&self, rule: RuleId) -> Text<'p> {
        let upto =
            self.rule(rule).map_or_else(String::new, |rule| format!(" up to the rule `{}`", rule.name));
        let reason = format!("the policy needs more than {MAX_FLOWS} flows{upto}");
        let remedy = "use shorter lists or wider prefixes";
        self.of_rule(Some(rule), reason, format!("{MAX_FLOWS} flows"), None, remedy).labelled("up to here")
    }

    fn too_many_masks(&self, rule: RuleId) -> Text<'p> {
        let reason = format!(
            "the policy needs more than {MAX_MASKS} different masks up to the rule `{}`",
            self.name(rule)
        );
        let remedy = "use fewer different prefix lengths, port ranges, masks of addresses and keys";
        self.of_rule(Some(rule), reason, format!("{MAX_MASKS} masks"), None, remedy).labelled("up to here")
    }

    fn too_many_steps(&self, rule: RuleId) -> Text<'p> {
        self.of_rule(
            Some(rule),
            format!(
                "workers would hold more than {MAX_STEPS_IN_ALL} rule tests up to the rule `{}`",
                self.name(rule)
            ),
            format!("{MAX_STEPS_IN_ALL} rule tests in a program"),
            None,
            "each hybrid rule is followed by those that share packets with it: add exact keys beside the hybrid \
             ones, so that fewer do",
        )
        .labelled("decided by the worker")
    }

    fn flow_problem(&self, problem: &FlowProblem) -> Text<'p> {
        let (profile, device) = (self.profile, &self.profile.name);
        match problem {
            FlowProblem::Priorities { rule, needed, cause } => self.too_few_priorities(*rule, *needed, cause),
            FlowProblem::MulticastTable(rule) => {
                let reason = format!(
                    "`{device}` has no room for all flows that match only multicast: they share one priority"
                );
                let errno = Some(profile.errno(Limit::PriorityTable));
                let remedy =
                    "use fewer ranges in the rules on multicast MAC addresses, or match groups by `dst`";
                self.of_rule(Some(*rule), reason, table_limit(profile), errno, remedy)
                    .labelled("up to here they fit")
            }
            FlowProblem::DeviceFlows { rule, flows, most } => {
                let (on_ports, of_ports) = match profile.ports {
                    1 => (String::new(), String::new()),
                    ports => (format!(" on each of {ports} ports"), format!(" on {ports} ports")),
                };
                let reason =
                    format!("the policy needs {flows} flows{on_ports}, `{device}` has {most} for it");
                let limit = profile.max_flows.map_or_else(
                    || format!("{most} flows"),
                    |all| format!("{most} flows: of {all}{of_ports} a reload takes two programs"),
                );
                let errno = Some(profile.errno(Limit::Flows));
                let remedy = match profile.ports {
                    1 => "use shorter lists or wider prefixes",
                    _ => "use shorter lists or wider prefixes, or fewer ports in `device.ports`",
                };
                self.of_rule(Some(*rule), reason, limit, errno, remedy).labelled("up to here they fit")
            }
            FlowProblem::Specs { rule, specs } => self.of_rule(
                Some(*rule),
                format!("a flow of the rule `{}` takes {specs} specs and two actions", self.name(*rule)),
                format!("`{device}` takes {} together", profile.max_specs),
                Some(profile.errno(Limit::Specs)),
                "match fewer layers in one rule",
            ),
        }
    }

    fn too_few_priorities(&self, rule: RuleId, needed: u32, cause: &PriorityCause) -> Text<'p> {
        let (device, offered) = (&self.profile.name, self.profile.priorities_per_program());
        let mut limit = format!("{offered} priorities");
        let (remedy, label) = match cause {
            PriorityCause::Masks { masks, priorities } => {
                if let Some(table) = self.profile.flow_table() {
                    limit = format!(
                        "{} masks of {} flows each in one priority",
                        table.groups, table.group_entries
                    );
                }
                let remedy = format!(
                    "{masks} masks in one place take {priorities} priorities: use fewer prefix lengths and port ranges"
                );
                (remedy, "one of its masks is the rarest")
            }
            PriorityCause::Variants => {
                let remedy = "its hash variants (TCP, UDP, other IP, the rest) take a priority each: \
                              hash = \"l3\" takes fewer, \"none\" one";
                (remedy.to_owned(), "has too many flows that overlap")
            }
            PriorityCause::Chain { above, below, rules, shared, has_variants } => {
                let example =
                    shared.as_ref().map_or(String::new(), |packet| format!(", because both match {packet}"));
                let in_turn = match rules.len() {
                    2 => String::new(),
                    _ => format!("; the chain of such rules is {}", self.shortened_chain(rules)),
                };
                let variants = match has_variants {
                    true => "; hash = \"l3\" or \"none\" takes fewer priorities for each of them",
                    false => "",
                };
                let remedy = format!(
                    "`{}` must precede `{}`{example}{in_turn}: narrow one of them until it shares no packet with the \
                     next{variants}",
                    self.name(*above),
                    self.name(*below),
                );
                (remedy, "no priority is left for this rule")
            }
        };
        let reason = format!("the policy needs {needed} priorities, `{device}` has {offered} for it");
        let errno = Some(self.profile.errno(Limit::Priorities));
        self.of_rule(Some(rule), reason, limit, errno, remedy).labelled(label)
    }

    fn shortened_chain(&self, rules: &[RuleId]) -> String {
        const SHOWN: usize = 6;
        let names: Vec<&str> = rules.iter().take(SHOWN).map(|rule| self.name(*rule)).collect();
        match rules.len() {
            length if length > SHOWN => format!("{}, ... {length} rules", names.join(", ")),
            _ => names.join(", "),
        }
    }

    fn shortage(&self, rule: Option<RuleId>, row: &CapacityRow) -> Text<'p> {
        let CapacityRow { limit, what, used, previous, most, errno } = row;
        let most = most.unwrap_or(0);
        let beside = match previous {
            0 => String::new(),
            previous => format!(" beside {previous} of the previous program"),
        };
        let remedy = match limit {
            Limit::Queues => "hash = \"l3\" takes three queue pairs per group, \"none\" one",
            Limit::Shapes => "use fewer different prefix lengths, port ranges and keys",
            Limit::Tables => "give groups the same workers and table sizes, so that they share tables",
            Limit::Copies => "copy by fewer values: each takes a flow",
            Limit::Counters => "write fewer rules that drop",
            _ => "write fewer rules",
        };
        let (for_it, two) = row.for_one_program();
        let reason =
            format!("the policy needs {used} {what}{beside}, `{}` has {most}{for_it}", self.profile.name);
        let text = self.of_rule(rule, reason, format!("{most} {what}{two}"), Some(*errno), remedy);
        match (rule, limit) {
            (None, _) => text,
            (Some(_), Limit::Copies) => text.labelled("up to here they fit"),
            (Some(_), _) => text.labelled("one of its masks is the rarest"),
        }
    }
}

/// The remedy by which an exception can be subtracted from the flows of a later rule, the default if it has
/// no name. `lacks_ipv6`: the flows of that rule match every frame, because the device steers no IPv6.
#[must_use]
pub fn exclusion_remedy(name: Option<&str>, inseparable: Inseparable, lacks_ipv6: bool) -> String {
    let later = name.map_or("the default".to_owned(), |name| format!("`{name}`"));
    let (ports, others) = ("`dst_port = \"1-65535\"`", "`protocol = { not = [\"tcp\", \"udp\"] }`");
    // A host without ARP is lost.
    let (in_place, not_ip, no_arp) = match name {
        Some(_) => {
            (format!("write, in place of {later}, rules"), "`ethertype = { not = [\"ipv4\", \"ipv6\"] }`", "")
        }
        None => (
            "make the default \"kernel\" and give its action to new last rules".to_owned(),
            "`ethertype = { not = [\"ipv4\", \"ipv6\", \"arp\"] }`",
            ", no ARP",
        ),
    };
    match inseparable {
        Inseparable::Header { .. } if lacks_ipv6 => {
            format!("write family = \"ipv4\" in {later}: for its IPv6 packets the flows match every frame")
        }
        Inseparable::Header { ip: true, ports: true } => {
            format!("{in_place} on {ports}, on {others} and on {not_ip}: these match no fragments, no broken headers{no_arp}")
        }
        Inseparable::Header { ip: true, .. } => {
            format!("{in_place} on `protocol = \"0-255\"` and on {not_ip}: these match no broken headers{no_arp}")
        }
        Inseparable::Header { .. } => {
            format!("{in_place} with its keys, on {ports} and on {others}: these match no fragments")
        }
        Inseparable::Tag => format!("{in_place} on `vlan = \"0-4095\"`: these match no untagged frames"),
        Inseparable::Tunnel => format!("{in_place} that match the same headers"),
        Inseparable::TooMany { .. } | Inseparable::NoCapacity => {
            "write fewer exceptions, on wider values, and all on the same keys: those on different keys multiply"
                .to_owned()
        }
        Inseparable::Inexact | Inseparable::NoSpec | Inseparable::Refused { .. } | Inseparable::Multicast => {
            format!("narrow {later}, so that it does not match these packets")
        }
    }
}

/// Which workers there are.
fn configured(workers: usize) -> String {
    match workers {
        0 => "the settings configure no workers".to_owned(),
        1 => "the settings configure one worker: 0".to_owned(),
        _ => format!("the settings configure {workers} workers: 0 to {}", workers - 1),
    }
}

/// The limits of one table of a priority.
fn table_limit(profile: &DeviceModel) -> String {
    profile.flow_table().map_or_else(String::new, |table| {
        let PriorityTable { entries, groups, group_entries } = table;
        let single = table.single_entries();
        format!("{entries} flows: {groups} masks of {group_entries} each, and {single} beside them")
    })
}

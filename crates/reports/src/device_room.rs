//! Whether a device has room for the rules at run time that `device_rules` of `[runtime]` lets into it,
//! beside the flows of the policy, before there is any such rule.
//!
//! The policy is compiled with a few [samples](samples) of each form and action, for the same device without
//! limits. From the flows of that program it is counted what any number of rules needs:
//!
//! - flows: those of the rules of the policy, and those of the samples that have most, each as often as rules
//!   can have values like it;
//! - masks: those of the samples and of the policy, because rules of one form have the masks of each other;
//! - priorities: those of the samples and of the policy, because rules of one form share no packet, so that
//!   their number makes no chain of overlapping rules longer; but each priority has room for so many flows
//!   only, if the device limits them.
//!
//! What a device has less of is tried with as many rules as that, up to [`COMPILED_MAX`]: the compiler can
//! save masks and priorities. These rules have the form, values and action with most flows; if the policy
//! allows rules that leave packets to the kernel, for which other flows are split, as many of these are tried
//! too. Rules have room if all rules, those of the policy too, are then decided as without limits.

mod message;
mod samples;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use compiler::{Capacity, CapacityRow, Job, MAX_FLOWS, Obstacle, priorities_for};
use device_model::{DeviceModel, Limit, PriorityTable};
use policy::{Diagnostic, Policy, Severity};
use program::{Flow, FlowKind, Inseparable, Program, RuleId, RuntimeFields, UndecidedReason};
use serde::Serialize;

use samples::{Sample, SampleKind, Samples};

/// The most rules with which a policy is compiled to find out whether they fit.
const COMPILED_MAX: u32 = 1024;
/// The numbers of rules that are compiled at most, each a fraction of the one before.
const TRIES: u32 = 3;
const TRY_SHIFT: u32 = 4;
/// The samples of a form by which forms are compared whose rules leave packets to the kernel.
const LEAVING_SAMPLES: usize = 16;
/// A policy with more flows is not compiled again for each form.
const FLOWS_OF_FORMS_MAX: usize = 1 << 13;

/// The room of a device for rules at run time, and the need of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceRoom {
    /// The most rules by the policy.
    pub rules: u32,
    /// The number that has room, whatever forms, values and actions the rules have; at most `rules`.
    pub fit: u32,
    /// The need of the policy with `rules` of them, of forms that need most.
    pub rows: Vec<CapacityRow>,
    /// The need of each form alone; empty for a large policy, and where it was not wanted and all have room.
    pub forms: Vec<FormRoom>,
    /// The forms of which any one has to be left out for room for `rules` rules of the others.
    pub spare_forms: Vec<String>,
    /// Why no rule can be in the device, if that is not a matter of its limits.
    pub obstacle: Option<Obstacle>,
}

/// The need of rules of one form on a device, beside the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FormRoom {
    /// The fields.
    pub form: String,
    /// The number of rules: as many as there may be, or as the form has values.
    pub rules: u64,
    /// The flows of these rules, on each port.
    pub flows: u64,
    /// The masks of these rules that the policy has not.
    pub masks: u64,
    /// The priorities that the policy needs more with these rules.
    pub priorities: u64,
}

impl DeviceRoom {
    /// The row of the first limit that `rules` rules exceed.
    fn shortage(&self) -> Option<&CapacityRow> {
        self.rows.iter().find(|row| row.exceeds())
    }
}

impl DeviceRoom {
    /// The room for the rules at run time of the job's policy; `None`: it allows none in the device.
    /// `program` is that of the policy without such rules. The program on the device is not considered,
    /// because each program may use half of what two programs cannot share. `wants_forms`: whether the result
    /// has the need of each form.
    #[must_use]
    pub fn of(job: &Job<'_>, program: &Program, wants_forms: bool) -> Option<Self> {
        let rules = job.policy.runtime.as_ref().map_or(0, |runtime| runtime.device_rules_max);
        let samples = Samples::of(job.policy, job.profile).filter(|_| rules > 0)?;
        let search = Search { job: Job { previous: None, weights: None, ..*job }, samples, program };
        Some(search.room(rules, wants_forms))
    }
}

/// The search for the number of rules that have room.
struct Search<'j> {
    job: Job<'j>,
    samples: Samples<'j>,
    /// The program without them.
    program: &'j Program,
}

impl Search<'_> {
    fn room(&self, rules: u32, wants_forms: bool) -> DeviceRoom {
        let none = DeviceRoom {
            rules,
            fit: 0,
            rows: Vec::new(),
            forms: Vec::new(),
            spare_forms: Vec::new(),
            obstacle: None,
        };
        let need = match self.need(&|_| true) {
            Ok(need) => need,
            Err(obstacle) => return DeviceRoom { obstacle: obstacle.map(|obstacle| *obstacle), ..none },
        };
        let fit = self.most(&need, rules);
        let is_small = self.program.flows.len() <= FLOWS_OF_FORMS_MAX;
        let forms = if is_small && (wants_forms || fit < rules) { self.forms(rules) } else { Vec::new() };
        let spare_forms = if fit < rules && is_small { self.spare_forms(rules) } else { Vec::new() };
        DeviceRoom { fit, rows: need.rows(rules.into(), self.job.profile), forms, spare_forms, ..none }
    }

    /// The most rules that have room, up to this number. Where the compiler has to save something for them,
    /// a number that has room, and not always the most.
    fn most(&self, need: &Need, rules: u32) -> u32 {
        let counted = if need.is_linear { self.counted(need, rules) } else { 0 };
        let exceeded = need.rows(rules.into(), self.job.profile).into_iter().filter(CapacityRow::exceeds);
        let can_be_saved = |row: CapacityRow| matches!(row.limit, Limit::Priorities | Limit::Shapes);
        if counted == rules || !exceeded.into_iter().all(can_be_saved) {
            return counted;
        }
        let is_possible = |rules: &u32| *rules > counted && *rules <= COMPILED_MAX;
        let tried = (0..TRIES).map(|shift| rules >> (TRY_SHIFT * shift)).filter(is_possible);
        tried.into_iter().find(|rules| self.compiles(need, *rules)).unwrap_or(counted)
    }

    /// The most rules, up to this number, that exceed no limit.
    fn counted(&self, need: &Need, rules: u32) -> u32 {
        let fits = |rules: u32| !need.rows(rules.into(), self.job.profile).iter().any(CapacityRow::exceeds);
        if fits(rules) {
            return rules;
        }
        // Fewer rules need no more.
        let (mut fit, mut too_many) = (0, rules);
        while too_many - fit > 1 {
            let middle = u32::midpoint(fit, too_many);
            *(if fits(middle) { &mut fit } else { &mut too_many }) = middle;
        }
        fit
    }

    /// Whether the policy compiles for the device with so many rules of the form that needs most, beside
    /// samples of all, and no rule is decided by workers because something of the device runs out. Rules that
    /// take packets and rules that leave them to the kernel are tried apart, with as many of each.
    fn compiles(&self, need: &Need, rules: u32) -> bool {
        let leaving = (0..self.samples.actions()).find(|action| self.samples.leaves_packets(*action));
        let kinds = need.worst().into_iter().chain(leaving.and_then(|action| self.worst_leaving(action)));
        kinds.into_iter().all(|kind| self.compiles_with(kind, rules))
    }

    fn compiles_with(&self, kind: SampleKind, rules: u32) -> bool {
        let many = self.samples.many(kind, rules as usize);
        if (many.len() as u64) < self.samples.values(kind.form).min(rules.into()) {
            return false;
        }
        let mut samples = self.samples.few(&|other| other != kind.form, 1);
        samples.extend(many);
        let (policy, _) = self.samples.insert(samples);
        let known = short_rules(self.program);
        let compiled = Job { policy: &policy, ..self.job }.program();
        compiled.is_ok_and(|program| short_rules(&program).is_subset(&known))
    }

    /// Returns the form whose rules that leave packets to the kernel add most masks and flows to the policy's
    /// rules, among the forms of which there can be many rules.
    fn worst_leaving(&self, action: usize) -> Option<SampleKind> {
        let profile = without_limits(self.job.profile);
        let kinds = (0..self.samples.forms()).filter_map(|form| {
            let seed = (0..self.samples.seeds_of(form))
                .find(|seed| self.samples.rules_of_seed(form, *seed) >= COMPILED_MAX.into())?;
            Some(SampleKind { form, seed, action })
        });
        kinds.max_by_key(|kind| {
            let (policy, _) = self.samples.insert(self.samples.many(*kind, LEAVING_SAMPLES));
            let compiled = Job { policy: &policy, profile: &profile, ..self.job }.program();
            // A form that does not compile even without limits shows that best when it is tried.
            let size = |program: Program| {
                let masks: HashSet<_> = program.flows.iter().map(Flow::shape).collect();
                (masks.len(), program.flows.len())
            };
            (compiled.map_or((usize::MAX, usize::MAX), size), std::cmp::Reverse(kind.form))
        })
    }

    /// The need of rules of the wanted forms, or why the policy does not compile with them even without
    /// limits.
    fn need(&self, is_wanted: &dyn Fn(usize) -> bool) -> Result<Need, Option<Box<Obstacle>>> {
        let profile = without_limits(self.job.profile);
        let measure = |rounds: usize| {
            let (policy, samples) = self.samples.insert(self.samples.few(is_wanted, rounds));
            match (Job { policy: &policy, profile: &profile, ..self.job }).program() {
                Ok(program) => {
                    let is_linear = short_rules(&program).is_subset(&short_rules(self.program));
                    Ok(Need { is_linear, ..Need::of(&self.samples, &samples, &self.job, &program) })
                }
                Err(problems) => {
                    let obstacle = problems.obstacles(&policy, self.job.profile).into_iter().next();
                    Err(obstacle.map(|obstacle| Box::new(Obstacle { rule: None, ..obstacle })))
                }
            }
        };
        let need = measure(1)?;
        if need.own_flows <= self.program.flows.len() as u64 || !need.is_linear {
            return Ok(need);
        }
        // Flows of the policy may have been split for rules that leave packets to the kernel.
        let more = measure(2)?;
        let (flows, rules) = (more.own_flows.saturating_sub(need.own_flows), more.rules - need.rules);
        let growth = flows.div_ceil(rules.max(1));
        Ok(Need { growth, is_linear: growth == 0, ..more })
    }

    /// The need of each form alone.
    fn forms(&self, rules: u32) -> Vec<FormRoom> {
        let table = self.job.profile.flow_table();
        let Ok(own) = self.need(&|_| false) else { return Vec::new() };
        let all = self.job.policy.runtime.iter().flat_map(|runtime| &runtime.forms);
        let forms = all.enumerate().filter_map(|(index, form)| {
            let need = self.need(&|other| other == index).ok()?;
            let rules = self.samples.values(index).min(rules.into());
            Some(FormRoom {
                form: form.to_string(),
                rules,
                flows: need.flows(rules).saturating_sub(own.own_flows),
                masks: need.masks().saturating_sub(own.masks()),
                priorities: need.priorities(rules, table).saturating_sub(own.priorities(0, table)),
            })
        });
        forms.collect()
    }

    /// The forms without any one of which rules of the others have room.
    fn spare_forms(&self, rules: u32) -> Vec<String> {
        let Some(runtime) = self.job.policy.runtime.as_ref().filter(|runtime| runtime.forms.len() > 1) else {
            return Vec::new();
        };
        let fits = |index: usize| {
            let need = self.need(&|other| other != index);
            need.is_ok_and(|need| need.is_linear && self.counted(&need, rules) == rules)
        };
        let spare = runtime.forms.iter().enumerate().filter(|(index, _)| fits(*index));
        spare.map(|(_, form)| form.to_string()).collect()
    }
}

/// The errors, and the warnings, about the room of a device for the policy's rules at run time.
#[must_use]
pub fn room_findings(
    room: Option<&DeviceRoom>,
    policy: &Policy,
    profile: &DeviceModel,
) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
    let found = room.and_then(|room| room.diagnostic(policy, profile));
    found.into_iter().partition(|found| found.severity == Severity::Error)
}

/// The names of the rules that workers decide because something of the device runs out.
fn short_rules(program: &Program) -> BTreeSet<&str> {
    let is_short = |why: &UndecidedReason| match why {
        UndecidedReason::NoCapacity | UndecidedReason::Order { .. } => true,
        UndecidedReason::KernelException { inseparable, .. } => {
            matches!(inseparable, Inseparable::TooMany { .. } | Inseparable::NoCapacity)
        }
        _ => false,
    };
    let rules = program.rules.iter().filter(|rule| rule.undecided.iter().any(|note| is_short(&note.why)));
    rules.map(|rule| rule.name.as_str()).collect()
}

/// The device with as many flows, masks, priorities and queues as a program wants.
fn without_limits(profile: &DeviceModel) -> DeviceModel {
    DeviceModel {
        priorities: 1 << 16,
        max_flows: None,
        max_shapes: None,
        priority_table: None,
        max_groups: None,
        ns_per_group: None,
        max_queues: None,
        max_tables: None,
        ..profile.clone()
    }
}

/// The flows of one mask in one priority.
#[derive(Default)]
struct MaskFlows {
    /// The flows of the policy's rules.
    own: u64,
    /// The most that one sample of a form and seed has.
    of_samples: BTreeMap<(usize, usize), u64>,
}

/// The need of a policy and its rules at run time.
struct Need {
    /// The need of each form; empty for one that is left out.
    forms: Vec<FormNeed>,
    /// The flows of the policy's rules.
    own_flows: u64,
    /// The flows that these have more for each rule at run time.
    growth: u64,
    /// Whether samples have shown that the number of rules at run time changes nothing about the policy's
    /// rules.
    is_linear: bool,
    /// The number of samples.
    rules: u64,
    /// The masks by priority without limits and kind of flow; last those that the device applies last.
    tables: BTreeMap<(u32, FlowKind), Vec<MaskFlows>>,
    /// The rows of what does not depend on the number of rules.
    rows: Vec<CapacityRow>,
}

/// The need of the rules of one form.
#[derive(Clone, Default)]
struct FormNeed {
    /// The most rules.
    values: u64,
    seeds: Vec<SeedNeed>,
    /// The form of the other direction, if the policy has it: a rule can have both, and is two then.
    reversed: Option<usize>,
}

/// The need of a rule of one form that has values like a seed.
#[derive(Clone, Default)]
struct SeedNeed {
    /// The most such rules, about.
    rules: u64,
    /// The most flows of a sample.
    flows: u64,
    /// The action of that sample.
    action: usize,
}

/// The place in the order of priorities of the flows that the device applies last.
const LAST: u32 = u32::MAX;

impl Need {
    fn of(samples: &Samples<'_>, inserted: &[Sample], job: &Job<'_>, program: &Program) -> Self {
        let runtime = job.policy.runtime.as_ref();
        let fields: Vec<RuntimeFields> = runtime.iter().flat_map(|runtime| runtime.forms.clone()).collect();
        let before = runtime.map_or(0, |runtime| runtime.before.min(job.policy.rules.len()));
        let sample = |rule: RuleId| inserted.get(rule.index().checked_sub(before)?);
        let mut masks: HashMap<_, usize> = HashMap::new();
        let mut tables: BTreeMap<(u32, FlowKind), BTreeMap<usize, MaskFlows>> = BTreeMap::new();
        let mut of_samples: BTreeMap<RuleId, u64> = BTreeMap::new();
        let mut by_mask: BTreeMap<(RuleId, u32, FlowKind, usize), u64> = BTreeMap::new();
        let mut own_flows = 0;
        for flow in &program.flows {
            let is_last = job.profile.multicast_ignores_priority && flow.is_multicast_only();
            let priority = if is_last { LAST } else { flow.priority.into() };
            let next = masks.len();
            let mask = *masks.entry(flow.shape()).or_insert(next);
            if sample(flow.rule).is_some() {
                *of_samples.entry(flow.rule).or_default() += 1;
                *by_mask.entry((flow.rule, priority, flow.kind, mask)).or_default() += 1;
                continue;
            }
            own_flows += 1;
            if flow.kind != FlowKind::Sniffer {
                tables.entry((priority, flow.kind)).or_default().entry(mask).or_default().own += 1;
            }
        }
        for ((rule, priority, kind, mask), flows) in by_mask {
            let Some(Sample { form, seed, .. }) = sample(rule) else { continue };
            let of_mask = tables.entry((priority, kind)).or_default().entry(mask).or_default();
            let most = of_mask.of_samples.entry((*form, *seed)).or_default();
            *most = flows.max(*most);
        }
        let mut forms = forms(samples, inserted, &fields);
        for (rule, flows) in of_samples {
            let Some(Sample { form, seed, action, .. }) = sample(rule) else { continue };
            let most = &mut forms[*form].seeds[*seed];
            if flows > most.flows {
                (most.flows, most.action) = (flows, *action);
            }
        }
        let tables = tables.into_iter().map(|(key, masks)| (key, masks.into_values().collect())).collect();
        let rows = Capacity::of(program, job.profile, None).rows;
        let rules = inserted.len() as u64;
        Self { forms, own_flows, growth: 0, is_linear: true, rules, tables, rows }
    }

    /// The form, values and action of the rules with most flows of their own, of those of which there can be
    /// many.
    fn worst(&self) -> Option<SampleKind> {
        let seeds = self.forms.iter().enumerate().flat_map(|(form, need)| {
            let seeds = need.seeds.iter().enumerate();
            seeds.map(move |(seed, of)| {
                let kind = SampleKind { form, seed, action: of.action };
                (of.flows * need.rules_at_once(), kind, of.rules)
            })
        });
        let many = seeds.filter(|(flows, _, rules)| *flows > 0 && *rules >= COMPILED_MAX.into());
        many.max_by_key(|(flows, kind, _)| (*flows, std::cmp::Reverse(kind.form))).map(|(_, kind, _)| kind)
    }

    /// The most flows of the policy and so many rules: those that have most flows, as many as can have such
    /// values, then those that have less. Where a rule can have both directions it counts once for two.
    fn flows(&self, rules: u64) -> u64 {
        let seeds = self.forms.iter().enumerate().flat_map(|(index, form)| {
            form.seeds.iter().map(move |seed| (seed.flows * form.rules_at_once(), seed, index))
        });
        let mut seeds: Vec<(u64, &SeedNeed, usize)> = seeds.collect();
        seeds.sort_by_key(|(flows, ..)| std::cmp::Reverse(*flows));
        let mut values: Vec<u64> = self.forms.iter().map(|form| form.values).collect();
        // Halves of rules, so that one direction of a rule for both is a number.
        let (mut left, mut flows) = (2 * rules, self.own_flows);
        for (_, seed, form) in seeds {
            let halves = 2 / self.forms[form].rules_at_once();
            let taken = (left / halves).min(seed.rules).min(values[form]);
            values[form] -= taken;
            left -= taken * halves;
            flows += taken * (seed.flows + self.growth);
        }
        flows
    }

    fn masks(&self) -> u64 {
        self.rows.iter().find(|row| row.limit == Limit::Shapes).map_or(0, |row| row.used)
    }

    /// The most priorities that the policy and so many rules need: rules of any one form, and a few of each
    /// other.
    fn priorities(&self, rules: u64, table: Option<PriorityTable>) -> u64 {
        let Some(table) = table else {
            let numbers = || self.tables.keys().map(|(priority, _)| *priority);
            let last = numbers().filter(|priority| *priority < LAST).max();
            return last.map_or(0, |last| u64::from(last) + 1) + u64::from(numbers().any(|one| one == LAST));
        };
        let needed = (0..self.forms.len()).map(|form| self.priorities_with(form, rules, table));
        needed.max().unwrap_or(0)
    }

    /// The priorities with so many rules of one form. The flows of one priority without limits may be at
    /// several, because none of them needs an order.
    fn priorities_with(&self, form: usize, rules: u64, table: PriorityTable) -> u64 {
        let reversed = self.forms[form].reversed;
        let rules_of = |other: usize| match (other == form, reversed == Some(other)) {
            (true, true) => 2 * rules,
            (true, false) | (false, true) => rules,
            (false, false) => 1,
        };
        let mut priorities: BTreeMap<u32, u32> = BTreeMap::new();
        for ((priority, _), masks) in &self.tables {
            let flows = masks.iter().map(|mask| {
                let of_rules =
                    (0..self.forms.len()).map(|other| self.flows_of_mask(mask, other, rules_of(other)));
                usize::try_from(mask.own + of_rules.sum::<u64>()).unwrap_or(usize::MAX).min(4 * MAX_FLOWS)
            });
            let needed = if *priority == LAST { 1 } else { priorities_for(flows, table) };
            let known = priorities.entry(*priority).or_default();
            *known = needed.max(*known);
        }
        priorities.into_values().map(u64::from).sum()
    }

    /// The most flows of a mask in one priority that so many rules of a form have.
    fn flows_of_mask(&self, mask: &MaskFlows, form: usize, rules: u64) -> u64 {
        let own = mask.of_samples.iter().filter(|((other, _), _)| *other == form);
        let mut seeds: Vec<(u64, u64)> =
            own.map(|((_, seed), flows)| (*flows, self.forms[form].seeds[*seed].rules)).collect();
        seeds.sort_unstable_by(|a, b| b.cmp(a));
        let (mut left, mut all) = (rules.min(self.forms[form].values), 0);
        for (flows, most) in seeds {
            let taken = left.min(most);
            left -= taken;
            all += taken * flows;
        }
        all
    }

    /// The need of the policy and so many rules, by limit.
    fn rows(&self, rules: u64, profile: &DeviceModel) -> Vec<CapacityRow> {
        let rows = self.rows.iter().cloned().map(|row| match row.limit {
            Limit::Priorities => CapacityRow { used: self.priorities(rules, profile.flow_table()), ..row },
            Limit::Flows => {
                let most = row.most.unwrap_or(u64::MAX).min(MAX_FLOWS as u64);
                CapacityRow { used: self.flows(rules), most: Some(most), ..row }
            }
            _ => row,
        });
        rows.filter(|row| !matches!(row.limit, Limit::Counters | Limit::Copies | Limit::Sniffers)).collect()
    }
}

impl FormNeed {
    /// The rules that one is: two if it can be for both directions.
    fn rules_at_once(&self) -> u64 {
        1 + u64::from(self.reversed.is_some())
    }
}

/// The forms of samples, before their flows are counted.
fn forms(samples: &Samples<'_>, inserted: &[Sample], fields: &[RuntimeFields]) -> Vec<FormNeed> {
    let has_samples = |form: &usize| inserted.iter().any(|sample| sample.form == *form);
    let form = |(index, form): (usize, &RuntimeFields)| {
        if !has_samples(&index) {
            return FormNeed::default();
        }
        let other = reversed(*form);
        let seed = |seed| SeedNeed { rules: samples.rules_of_seed(index, seed), ..SeedNeed::default() };
        FormNeed {
            values: samples.values(index),
            seeds: (0..samples.seeds_of(index)).map(seed).collect(),
            reversed: fields.iter().position(|form| *form == other).filter(has_samples),
        }
    };
    fields.iter().enumerate().map(form).collect()
}

/// The form of the other direction of a connection.
fn reversed(form: RuntimeFields) -> RuntimeFields {
    RuntimeFields { src: form.dst, dst: form.src, src_port: form.dst_port, dst_port: form.src_port, ..form }
}

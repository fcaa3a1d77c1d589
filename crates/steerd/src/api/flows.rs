//! The flows of the program in force with their counts.

use std::collections::{BTreeSet, HashMap};

use program::{ClassId, DEFAULT_RULE, Decide, Flow, FlowAction, FlowKind, Program, RuleId};

use super::model;
use super::request::Refused;
use super::router::InForce;
use crate::effects::Effect;
use crate::outcome::PacketOutcome;
use crate::state::{RuleState, State};

/// The most flows of one answer; the request can name a rule.
pub(crate) const FLOWS_MAX: usize = 65_536;

/// The most rules of a flow that an answer names.
const RULES_MAX: usize = 16;

/// All flows, or those whose packets can be of one rule.
pub(super) fn of(in_force: &InForce, state: &State, rule: Option<&str>) -> Result<model::Flows, Refused> {
    let program = &*in_force.program;
    let wanted = match rule {
        Some(name) => {
            let place = program.rules.iter().position(|rule| rule.name == name);
            let missing = || Refused::new(404, format!("the policy in force has no rule `{name}`"));
            Some(RuleId::of(place.ok_or_else(missing)?))
        }
        None => None,
    };
    let deciders = Deciders::of(program, state);
    let wanted =
        || program.flows.iter().filter(|flow| wanted.is_none_or(|rule| deciders.rules(flow).contains(&rule)));
    let flows = wanted().take(FLOWS_MAX).map(|flow| one(program, flow, &deciders));
    Ok(model::Flows { generation: in_force.generation, flows: flows.collect(), count: wanted().count() })
}

/// The rules that decide the packets of flows, and their counts.
struct Deciders<'s> {
    /// The rules by class: workers compare the packets of some classes with several rules.
    classes: HashMap<ClassId, BTreeSet<RuleId>>,
    /// The rules by rule, for flows without a class.
    alone: HashMap<RuleId, BTreeSet<RuleId>>,
    /// How many flows can have packets of a rule.
    flows: HashMap<RuleId, usize>,
    counts: HashMap<RuleId, &'s RuleState>,
}

impl<'s> Deciders<'s> {
    fn of(program: &Program, state: &'s State) -> Self {
        let by_name: HashMap<&str, &RuleState> =
            state.rules.iter().filter(|rule| rule.current).map(|rule| (rule.name.as_str(), rule)).collect();
        let rules = program.rules.iter().enumerate();
        let counts =
            rules.filter_map(|(index, rule)| Some((RuleId::of(index), *by_name.get(rule.name.as_str())?)));
        let mut deciders = Self {
            classes: HashMap::new(),
            alone: HashMap::new(),
            flows: HashMap::new(),
            counts: counts.collect(),
        };
        let mut class_flows: HashMap<ClassId, usize> = HashMap::new();
        for flow in &program.flows {
            match flow.action {
                FlowAction::Steer { class, .. } => {
                    deciders.classes.entry(class).or_insert_with(|| rules_of(program, class, flow.rule));
                    *class_flows.entry(class).or_default() += 1;
                }
                FlowAction::Drop | FlowAction::Pass => {
                    deciders.alone.entry(flow.rule).or_insert_with(|| BTreeSet::from([flow.rule]));
                    *deciders.flows.entry(flow.rule).or_default() += 1;
                }
            }
        }
        for (class, flows) in class_flows {
            for rule in &deciders.classes[&class] {
                *deciders.flows.entry(*rule).or_default() += flows;
            }
        }
        deciders
    }

    fn rules(&self, flow: &Flow) -> &BTreeSet<RuleId> {
        match flow.action {
            FlowAction::Steer { class, .. } => &self.classes[&class],
            FlowAction::Drop | FlowAction::Pass => &self.alone[&flow.rule],
        }
    }

    /// The packets of the rules of a flow, and which packets these are.
    fn count(&self, rules: &BTreeSet<RuleId>) -> (u64, &'static str) {
        let counts = rules.iter().map(|rule| self.packets_of(self.counts.get(rule)?));
        let Some(packets) = counts.sum::<Option<u64>>() else {
            return (0, "none");
        };
        let is_only_flow = |rule: &RuleId| self.flows.get(rule) == Some(&1);
        match rules.len() {
            1 if rules.iter().all(is_only_flow) => (packets, "flow"),
            1 => (packets, "rule"),
            _ => (packets, "rules"),
        }
    }

    /// The packets of a rule that flows can have had; `None`: they are not counted. Packets that the default
    /// leaves to the kernel met no flow, and not every device counts them.
    fn packets_of(&self, count: &RuleState) -> Option<u64> {
        match count.name == DEFAULT_RULE && count.effect == Effect::Kernel {
            true => Some(count.packets() - count.outcomes[PacketOutcome::Kernel].packets.unwrap_or(0)),
            false => (!count.uncounted).then(|| count.packets()),
        }
    }
}

/// The rules that can decide a packet of a class.
fn rules_of(program: &Program, class: ClassId, rule: RuleId) -> BTreeSet<RuleId> {
    match program.class(class).map(|class| &class.decide) {
        Some(Decide::Exact(outcome)) => BTreeSet::from([outcome.rule]),
        Some(Decide::Software(steps, otherwise)) => {
            steps.iter().map(|step| step.rule).chain([otherwise.rule]).collect()
        }
        None => BTreeSet::from([rule]),
    }
}

fn one(program: &Program, flow: &Flow, deciders: &Deciders<'_>) -> model::Flow {
    let name =
        |rule: RuleId| program.rules.get(rule.index()).map_or("", |rule| rule.name.as_str()).to_owned();
    let description = program.rules.get(flow.rule.index()).and_then(|rule| rule.description.as_ref());
    let rules = deciders.rules(flow);
    let (packets, counted) = deciders.count(rules);
    let queue = match flow.action {
        FlowAction::Steer { queue, .. } => Some(queue.index()),
        FlowAction::Drop | FlowAction::Pass => None,
    };
    let pair = queue.and_then(|queue| program.queues.get(queue));
    let group = pair.and_then(|pair| program.groups.get(pair.group.index()));
    model::Flow {
        rule: name(flow.rule),
        description: description.map(ToString::to_string),
        rules: rules.iter().take(RULES_MAX).map(|rule| name(*rule)).collect(),
        rule_count: rules.len(),
        kind: match flow.kind {
            FlowKind::Normal => "normal",
            FlowKind::Copy => "copy",
            FlowKind::Sniffer => "sniffer",
            FlowKind::Egress => "egress",
        }
        .to_owned(),
        priority: flow.priority,
        specs: flow.to_string(),
        action: match flow.action {
            FlowAction::Steer { .. } => "steer",
            FlowAction::Drop => "drop",
            FlowAction::Pass => "pass",
        }
        .to_owned(),
        queue,
        variant: pair.map(|pair| pair.variant.to_string()),
        group: group.map(|group| group.name.clone()),
        packets,
        counted: counted.to_owned(),
    }
}

//! The flows of the program in force with their counts.

use std::collections::HashMap;

use program::{Flow, FlowAction, FlowKind, Program};

use super::model;
use super::request::Refused;
use super::router::InForce;
use crate::telemetry::state::{RuleState, State};

/// The most flows of one answer; the request can name a rule.
pub(crate) const FLOWS_MAX: usize = 65_536;

/// All flows, or those of one rule.
pub(super) fn of(in_force: &InForce, state: &State, rule: Option<&str>) -> Result<model::Flows, Refused> {
    let program = &*in_force.program;
    if let Some(name) = rule
        && !program.rules.iter().any(|rule| rule.name == name)
    {
        return Err(Refused::new(404, format!("the policy in force has no rule `{name}`")));
    }
    let counts: HashMap<&str, &RuleState> =
        state.rules.iter().filter(|rule| rule.current).map(|rule| (rule.name.as_str(), rule)).collect();
    let name = |flow: &Flow| program.rules.get(flow.rule.index()).map_or("", |rule| rule.name.as_str());
    let wanted = || program.flows.iter().filter(|flow| rule.is_none_or(|rule| rule == name(flow)));
    let flows = wanted().take(FLOWS_MAX).map(|flow| one(program, flow, &counts));
    Ok(model::Flows { generation: in_force.generation, flows: flows.collect(), count: wanted().count() })
}

fn one(program: &Program, flow: &Flow, counts: &HashMap<&str, &RuleState>) -> model::Flow {
    let rule = program.rules.get(flow.rule.index());
    let name = rule.map_or("", |rule| rule.name.as_str());
    let count = counts.get(name);
    let counted = match (count, rule) {
        (Some(count), _) if count.uncounted => "none",
        (Some(_), Some(rule)) if rule.flows == 1 => "flow",
        (Some(_), _) => "rule",
        (None, _) => "none",
    };
    let queue = match flow.action {
        FlowAction::Steer { queue, .. } => Some(queue.index()),
        FlowAction::Drop | FlowAction::Pass => None,
    };
    let pair = queue.and_then(|queue| program.queues.get(queue));
    let group = pair.and_then(|pair| program.groups.get(pair.group.index()));
    model::Flow {
        rule: name.to_owned(),
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
        packets: if counted == "none" { 0 } else { count.map_or(0, |count| count.packets()) },
        counted: counted.to_owned(),
    }
}

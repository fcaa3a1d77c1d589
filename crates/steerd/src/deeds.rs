//! What a rule does, in one word for counters and in an operator's words. A program's verdicts alone do not
//! say it: a copy is delivered, too. `plant` asks for the state, `check` for its report; decides nothing.

use policy::policy::{Action, Direction, Policy};
use program::{FlowAction, FlowKind, Program, Rule, Verdict};
use serde::Serialize;

/// What a rule does with its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Deed {
    #[default]
    Deliver,
    Drop,
    Kernel,
    /// A copy goes to a group, the packet goes on.
    Copy,
    /// A group hears what passes, both ways.
    Sniff,
    /// Of what the host sends.
    DropSent,
    /// An exception to that, counted.
    PassSent,
}

impl Deed {
    /// Of all rules of a program: by their flows, and where there is none by their verdicts alone.
    pub(crate) fn all(program: &Program) -> Vec<Self> {
        let by_verdict = |rule: &Rule| match rule.action {
            Verdict::Deliver(_) => Self::Deliver,
            Verdict::Drop => Self::Drop,
            // Of a rule only its copies can be filtered out.
            Verdict::Kernel | Verdict::Filtered => Self::Kernel,
        };
        let mut deeds: Vec<Self> = program.rules.iter().map(by_verdict).collect();
        for flow in &program.flows {
            let deed = match (flow.kind, flow.action) {
                (FlowKind::Normal, _) => continue,
                (FlowKind::Copy, _) => Self::Copy,
                (FlowKind::Sniffer, _) => Self::Sniff,
                (FlowKind::Egress, FlowAction::Pass) => Self::PassSent,
                (FlowKind::Egress, _) => Self::DropSent,
            };
            if let Some(of_rule) = deeds.get_mut(flow.rule.index()) {
                *of_rule = deed;
            }
        }
        deeds
    }

    /// `copy to tap`
    pub(crate) fn words(self, program: &Program, verdict: Verdict) -> String {
        let group = match verdict {
            Verdict::Deliver(group) => program.groups.get(group.index()).map_or("?", |group| &group.name),
            Verdict::Drop | Verdict::Kernel | Verdict::Filtered => "?",
        };
        match self {
            Self::Deliver | Self::Drop | Self::Kernel => program.describe(verdict),
            Self::Copy => format!("copy to {group}"),
            Self::Sniff => format!("sniffed by {group}"),
            Self::DropSent => "drop when sent".to_owned(),
            Self::PassSent => "pass when sent".to_owned(),
        }
    }
}

/// The same of a rule as it is written, or of the default behind the last rule.
pub(crate) fn written(policy: &Policy, index: usize) -> String {
    let group = |id: program::GroupId| policy.groups.get(id.index()).map_or("?", |group| group.name.as_str());
    let (action, direction) = policy
        .rules
        .get(index)
        .map_or((policy.default, Direction::Ingress), |rule| (rule.action, rule.direction));
    match (action, direction) {
        (Action::Steer(id), _) => format!("deliver to {}", group(id)),
        (Action::Copy(id), _) => format!("copy to {}", group(id)),
        (Action::Sniff(id), _) => format!("sniffed by {}", group(id)),
        (Action::Drop, Direction::Ingress) => "drop".to_owned(),
        (Action::Drop, Direction::Egress) => "drop when sent".to_owned(),
        (Action::Kernel, Direction::Ingress) => "kernel".to_owned(),
        (Action::Pass, _) | (Action::Kernel, Direction::Egress) => "pass when sent".to_owned(),
    }
}

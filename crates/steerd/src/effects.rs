//! The effect of a rule: one word for counters, a phrase for operators. A program's verdicts alone do not
//! determine it, as a copy is delivered, too.

use program::{FlowAction, FlowKind, Program, Rule, Verdict};
use serde::Serialize;

/// The effect of a rule on packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Effect {
    #[default]
    Deliver,
    Drop,
    Kernel,
    /// A copy goes to a group; the packet is matched by later rules.
    Copy,
    /// A group gets copies of received and sent packets.
    Sniff,
    /// Drops packets that the host sends.
    DropSent,
    /// Lets packets that the host sends pass, and counts them.
    PassSent,
}

impl Effect {
    /// The effect of every rule, from its flows if it has any, else from its verdict.
    pub(crate) fn all(program: &Program) -> Vec<Self> {
        let by_verdict = |rule: &Rule| match rule.action {
            Verdict::Deliver(_) => Self::Deliver,
            Verdict::Drop => Self::Drop,
            // Only copies of a rule's packets are filtered.
            Verdict::Kernel | Verdict::Filtered => Self::Kernel,
        };
        let mut effects: Vec<Self> = program.rules.iter().map(by_verdict).collect();
        for flow in &program.flows {
            let effect = match (flow.kind, flow.action) {
                (FlowKind::Normal, _) => continue,
                (FlowKind::Copy, _) => Self::Copy,
                (FlowKind::Sniffer, _) => Self::Sniff,
                (FlowKind::Egress, FlowAction::Pass) => Self::PassSent,
                (FlowKind::Egress, _) => Self::DropSent,
            };
            if let Some(of_rule) = effects.get_mut(flow.rule.index()) {
                *of_rule = effect;
            }
        }
        effects
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
            Self::Sniff => format!("sniff to {group}"),
            Self::DropSent => "drop when sent".to_owned(),
            Self::PassSent => "pass when sent".to_owned(),
        }
    }
}

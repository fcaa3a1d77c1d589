//! The flows of a program that may take packets which the policy leaves to the host.

use std::collections::HashMap;

use program::{Class, Flow, FlowAction, FlowKind, Program, Verdict};

/// The most flows that are converted to products at once: memory grows with their different values.
pub(super) const FLOWS_AT_ONCE: usize = 1 << 14;

/// A flow that takes packets and leads to a class that may leave some to the host.
#[derive(Clone, Copy)]
pub(super) struct Suspect<'p> {
    pub(super) flow: &'p Flow,
    pub(super) class: &'p Class,
}

/// All of them, highest precedence first. The packets of any other flow have another outcome.
pub(super) fn suspects(program: &Program) -> impl Iterator<Item = Suspect<'_>> {
    let mut may_return = HashMap::new();
    program.flows.iter().filter(|flow| flow.kind == FlowKind::Normal).filter_map(move |flow| {
        let FlowAction::Steer { class: id, .. } = flow.action else { return None };
        let class = program.class(id)?;
        let returns = may_return
            .entry(id)
            .or_insert_with(|| class.decide.outcomes().any(|one| one.verdict == Verdict::Kernel));
        returns.then_some(Suspect { flow, class })
    })
}

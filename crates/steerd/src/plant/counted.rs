//! What the device counts for each rule: drops of what is received, drops and passes of what is sent. The
//! controller keeps one total per name over all programs, so this remembers what each name stood for, and which
//! rules are to have no series of their own. Asked for the state; decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use program::{FlowAction, FlowKind, MAX_RULES, Program};

use crate::deeds::Deed;

/// As many names as two policies can have.
const MAX_NAMES: usize = 2 * MAX_RULES;

#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    deeds: BTreeMap<String, Deed>,
    /// Rules with `count = false`, also of earlier policies: their totals stay.
    unexported: BTreeSet<String>,
    /// A name has stood for different things, or there were too many names: totals cannot be told apart any
    /// more, and are held against nothing.
    pub(super) mixed: bool,
}

impl Counted {
    /// A program is about to be installed.
    pub(super) fn learn(&mut self, program: &Program) {
        for rule in &program.rules {
            if rule.count {
                self.unexported.remove(&rule.name);
            } else if self.unexported.len() < MAX_NAMES {
                self.unexported.insert(rule.name.clone());
            }
        }
        let mut last = None;
        for flow in &program.flows {
            let is_counted = matches!(flow.action, FlowAction::Drop | FlowAction::Pass);
            if !is_counted || last == Some(flow.rule) {
                continue;
            }
            last = Some(flow.rule);
            let Some(rule) = program.rules.get(flow.rule.index()) else { continue };
            let deed = match (flow.kind, flow.action) {
                (FlowKind::Egress, FlowAction::Pass) => Deed::PassSent,
                (FlowKind::Egress, _) => Deed::DropSent,
                _ => Deed::Drop,
            };
            match self.deeds.get(&rule.name) {
                Some(known) => self.mixed |= *known != deed,
                None if self.deeds.len() >= MAX_NAMES => self.mixed = true,
                None => {
                    self.deeds.insert(rule.name.clone(), deed);
                }
            }
        }
    }

    pub(super) fn is_unexported(&self, rule: &str) -> bool {
        self.unexported.contains(rule)
    }

    pub(super) fn deed(&self, rule: &str) -> Deed {
        self.deeds.get(rule).copied().unwrap_or(Deed::Drop)
    }
}

//! What a plan costs, without carrying it out.

use std::collections::HashSet;

use program::{FlowKind, Program};

use super::{FlowChanges, PlacedProgram, Plan, PlanStep, PlannedChange};

/// The cost of a change, and the most that the device holds meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanSummary {
    /// The flows that it touches, on each port.
    pub flows: FlowChanges,
    /// The most flows that are on a port at once.
    pub peak_flows: usize,
    /// The flows of a port before and after.
    pub flows_before: usize,
    /// The same afterwards.
    pub flows_after: usize,
    /// The priorities of the device that flows of either program have.
    pub priorities: usize,
    /// The different masks of both programs, on each port.
    pub masks: usize,
    /// The indirection tables that are created.
    pub tables: usize,
    /// The RSS queue pairs that are created.
    pub queue_pairs: usize,
    /// The counters that are created or kept by name.
    pub counters: usize,
    /// The copying flows and sniffers that change: while both the old and the new one are there a packet is
    /// copied by both, and between two sniffers none is.
    pub changed_copies: usize,
    /// `ibv_create_flow` and `ibv_destroy_flow` calls on all ports.
    pub flow_calls: usize,
    /// All calls that change the device.
    pub calls: usize,
}

impl PlanSummary {
    /// Returns the cost of a change from what is on the device, on so many ports.
    #[must_use]
    pub fn of(change: &PlannedChange, installed: Option<&PlacedProgram<'_>>, ports: usize) -> Self {
        let PlannedChange { compaction, program, plan } = change;
        let (Some(old), Some(compaction)) = (installed, compaction) else {
            return Self::of_plan(plan.plan(), installed, program, ports);
        };
        let first = Self::of_plan(compaction.plan(), installed, old.program, ports);
        let compact = PlacedProgram { levels: compaction.plan().levels(), ..*old };
        let second = Self::of_plan(plan.plan(), Some(&compact), program, ports);
        Self {
            flows: first.flows.then(second.flows),
            peak_flows: first.peak_flows.max(second.peak_flows),
            priorities: first.priorities.max(second.priorities),
            changed_copies: first.changed_copies + second.changed_copies,
            flow_calls: first.flow_calls + second.flow_calls,
            calls: first.calls + second.calls,
            flows_before: first.flows_before,
            ..second
        }
    }

    fn of_plan(plan: &Plan, installed: Option<&PlacedProgram<'_>>, new: &Program, ports: usize) -> Self {
        let before = installed.map_or(0, |old| old.program.flows.len());
        let (mut now, mut peak) = (before, before);
        let mut summary = Self { flows: plan.changes(), flows_before: before, ..Self::default() };
        let is_copy = |program: &Program, flow: usize| {
            matches!(program.flows[flow].kind, FlowKind::Copy | FlowKind::Sniffer)
        };
        for step in plan.steps() {
            match step {
                PlanStep::Begin | PlanStep::Enforce => {}
                PlanStep::CreateTable { .. } => summary.tables += 1,
                PlanStep::CreateQueue { .. } => summary.queue_pairs += 1,
                PlanStep::CreateCounter { .. } => summary.counters += 1,
                PlanStep::InstallFlow { flow } => {
                    now += 1;
                    peak = peak.max(now);
                    summary.changed_copies += usize::from(is_copy(new, flow));
                }
                PlanStep::RemoveFlow { flow } => {
                    now -= 1;
                    let old = installed.map(|old| old.program);
                    summary.changed_copies += usize::from(old.is_some_and(|old| is_copy(old, flow)));
                }
            }
        }
        let old_levels = installed.map_or(&[][..], |old| old.levels);
        let levels: HashSet<u16> = plan.levels().iter().chain(old_levels).copied().collect();
        let of_old = installed.iter().flat_map(|old| &old.program.flows);
        let masks: HashSet<_> = of_old.chain(&new.flows).map(program::Flow::shape).collect();
        summary.flow_calls = (summary.flows.installed + summary.flows.removed) * ports;
        Self {
            peak_flows: peak,
            flows_after: now,
            priorities: levels.len(),
            masks: masks.len(),
            calls: summary.flow_calls + summary.tables + summary.queue_pairs + summary.counters,
            ..summary
        }
    }
}

//! The steps from one program to the next, in order, as data that the controller carries out.
//!
//! At every moment, each packet must be decided by the old program or by the new one, never by a mixture.
//! Both are in one space of priorities, and the flows that both have are not touched. Then two rules suffice:
//! - New flows are installed from the highest precedence to the lowest.
//! - Then old flows are removed from the lowest precedence to the highest.
//!
//! Take any packet, and the highest priority at which a flow on the device matches it. While flows are being
//! installed, all of the old program is there. If a flow of the old program is at that priority, it decides
//! the packet there as well, since nothing above it matches. If a new one is, all of the new program above it
//! is there and does not match, so it decides the packet in the new program. If both are, the device may take
//! either. While flows are being removed, all of the new program is there, and what is left of the old one is
//! all that is above what was removed: the same argument holds in reverse.
//!
//! An old flow may go earlier, as soon as a new one is there that matches all of its packets: [`replace`] has
//! the conditions. So a change of many flows needs little more room than the larger program.
//!
//! No two flows may ever have the same match and priority: a device refuses the second one, or delivers
//! the packet twice. A flow whose action changes gets another priority ([`levels`]).
//!
//! Workers get the new classes before the first new flow; they count once all new flows are there. Workers
//! keep the old ones until the caller releases them, because a device may still deliver packets by a flow
//! that was just removed. So no tag is ever unknown. A number that both programs have means the same in both,
//! or belongs to flows only that both have.
//!
//! A new flow has a class of the new program, with a number that fits into a tag: [`DigestedProgram`] has no
//! others.
//!
//! `Plan::check` examines every plan by the other rules; the controller carries out no other
//! ([`CheckedPlan`]).

mod check;
mod levels;
mod replace;
mod runs;
mod summary;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use program::{Correspondence, FlowDigest, FlowKind, Program, QueueId, RuleId, WorkerId};

use crate::plan_fault::PlanFault;
use crate::tables::distinct_tables;
use crate::{Counted, DigestedProgram, Limits, classes};
use levels::Strategy;
use replace::Replacements;

pub use check::CheckedPlan;
pub use summary::PlanSummary;

/// A program on a device.
#[derive(Clone, Copy, Debug)]
pub struct PlacedProgram<'p> {
    /// The program.
    pub program: &'p DigestedProgram,
    /// The device's priorities of its flows.
    pub levels: &'p [u16],
}

/// One step. Indices are into the program's vectors, tables into [`Plan::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// Workers learn the new classes ([`ChangeStage::Begin`](program::ChangeStage::Begin)).
    Begin,
    /// An indirection table is created.
    CreateTable {
        /// The index of the table in [`Plan::tables`].
        table: usize,
    },
    /// An RSS queue pair is created.
    CreateQueue {
        /// Which one.
        queue: QueueId,
    },
    /// A counter for a rule whose packets no worker sees is created, or the existing one of that name kept.
    CreateCounter {
        /// The rule.
        rule: RuleId,
        /// The counted quantity.
        kind: Counted,
    },
    /// A new flow is installed on every port.
    InstallFlow {
        /// The index of the flow in the program.
        flow: usize,
    },
    /// The new classes count for workers ([`ChangeStage::Enforce`](program::ChangeStage::Enforce)).
    Enforce,
    /// An old flow is removed from every port.
    RemoveFlow {
        /// The index of the flow in the program.
        flow: usize,
    },
}

/// An ordered list of steps, and the parts of the old program that stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<PlanStep>,
    /// By new flow.
    levels: Vec<u16>,
    /// By new flow, the old one that it is.
    kept: Vec<Option<usize>>,
    tables: Vec<Vec<WorkerId>>,
    table_of_queue: Vec<usize>,
    /// By new queue pair, the old one that it is.
    kept_queues: Vec<Option<QueueId>>,
}

impl Plan {
    /// The steps in order.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = PlanStep> + '_ {
        self.steps.iter().copied()
    }

    /// The device's priorities of the new flows.
    #[must_use]
    pub fn levels(&self) -> &[u16] {
        &self.levels
    }

    /// By new flow, the flow of the old program that it is, if it stays as it is.
    #[must_use]
    pub fn kept(&self) -> &[Option<usize>] {
        &self.kept
    }

    /// The distinct indirection tables of the new program.
    #[must_use]
    pub fn tables(&self) -> &[Vec<WorkerId>] {
        &self.tables
    }

    /// Which of them a queue spreads over.
    #[must_use]
    pub fn table_of(&self, queue: QueueId) -> Option<usize> {
        self.table_of_queue.get(queue.index()).copied()
    }

    /// The queue pair of the old program that a new one is.
    #[must_use]
    pub fn kept_queue(&self, queue: QueueId) -> Option<QueueId> {
        self.kept_queues.get(queue.index()).copied().flatten()
    }

    /// How many flows are installed, and how many removed, on each port.
    #[must_use]
    pub fn changes(&self) -> FlowChanges {
        let count = |is: fn(&PlanStep) -> bool| self.steps.iter().filter(|step| is(step)).count();
        FlowChanges {
            installed: count(|step| matches!(step, PlanStep::InstallFlow { .. })),
            removed: count(|step| matches!(step, PlanStep::RemoveFlow { .. })),
            kept: self.kept.iter().flatten().count(),
        }
    }
}

impl FlowChanges {
    /// The flows that this change and one after it touch.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        Self {
            installed: self.installed + next.installed,
            removed: self.removed + next.removed,
            kept: self.kept.min(next.kept),
        }
    }
}

/// The flows that a change touches, on each port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowChanges {
    /// Flows that are installed.
    pub installed: usize,
    /// Flows that are removed.
    pub removed: usize,
    /// Flows that stay as they are.
    pub kept: usize,
}

/// The way from what is on a device to another program.
#[derive(Debug)]
pub struct PlannedChange {
    /// Steps that come first and move flows of the program that is on the device, and nothing else. Where
    /// flows overlap in chains as long as there are priorities, those of changed action find a free one only
    /// if the gaps that former changes left are together.
    pub compaction: Option<CheckedPlan>,
    /// The new program, with other numbers for classes that the program before uses for something else.
    pub program: DigestedProgram,
    /// The steps to it.
    pub plan: CheckedPlan,
}

impl PlannedChange {
    /// The flows that are touched, those that the compaction moves included.
    #[must_use]
    pub fn changes(&self) -> FlowChanges {
        let changes = self.plan.plan().changes();
        self.compaction.as_ref().map_or(changes, |first| first.plan().changes().then(changes))
    }

    /// The new program as it is on the device afterwards.
    #[must_use]
    pub fn placed(&self) -> PlacedProgram<'_> {
        PlacedProgram { program: &self.program, levels: self.plan.plan().levels() }
    }
}

/// Plans the change from what is on the device to `program`, and examines the plan.
///
/// # Errors
/// The plan breaks a rule: a fault of this program, or flows that the device has no room for beside those
/// that are there.
pub fn plan(
    installed: Option<PlacedProgram<'_>>,
    program: Arc<Program>,
    limits: &Limits,
) -> Result<PlannedChange, PlanFault> {
    plan_digested(installed, DigestedProgram::new(program, limits)?, limits)
}

/// Plans the change to a program with its digests, and examines the plan, as [`plan()`] does.
pub(crate) fn plan_digested(
    installed: Option<PlacedProgram<'_>>,
    mut program: DigestedProgram,
    limits: &Limits,
) -> Result<PlannedChange, PlanFault> {
    let direct = with_any_strategy(installed, &mut program, limits, &Strategy::ALL);
    let (Some(old), Err(PlanFault::NoLevels | PlanFault::NoRoom(_))) = (installed, &direct) else {
        return direct.map(|plan| PlannedChange { compaction: None, program, plan });
    };
    let mut same = old.program.clone();
    let compaction = with_any_strategy(installed, &mut same, limits, &[Strategy::From(0)])?;
    let compact = PlacedProgram { levels: compaction.plan().levels(), ..old };
    let plan = with_any_strategy(Some(compact), &mut program, limits, &Strategy::ALL)?;
    Ok(PlannedChange { compaction: Some(compaction), program, plan })
}

/// The plan of the first strategy that finds one without a fault.
fn with_any_strategy(
    installed: Option<PlacedProgram<'_>>,
    new: &mut DigestedProgram,
    limits: &Limits,
    strategies: &[Strategy],
) -> Result<CheckedPlan, PlanFault> {
    let mut fault = PlanFault::NoLevels;
    for strategy in strategies {
        let Some(plan) = make(installed, new, limits, *strategy)? else { continue };
        match plan.check(installed, new, limits) {
            // Flows of equal masks have room together, and may have none in the order in which they come.
            Err(no_room @ PlanFault::NoRoom(_)) => fault = no_room,
            checked => return checked,
        }
    }
    Err(fault)
}

/// The plan of a strategy. The program is copied only if it gets other numbers and somebody else has it too.
fn make(
    installed: Option<PlacedProgram<'_>>,
    new: &mut DigestedProgram,
    limits: &Limits,
    strategy: Strategy,
) -> Result<Option<Plan>, PlanFault> {
    let Some(plan) = steps(installed, new, limits, strategy) else { return Ok(None) };
    let Some(old) = installed.map(|installed| installed.program) else { return Ok(Some(plan)) };
    let common = Correspondence::of(old, new);
    if !classes::must_change(old, new, &common, &plan.kept) {
        return Ok(Some(plan));
    }
    let changed = classes::changed(old, new, &common);
    // Those that could stay as they are may have to move for the others, so all get a number of their own.
    let all_come = !classes::have_kept_flows(&changed, new, &plan.kept);
    new.change(|new| classes::renumber(old, new, &changed))?;
    Ok(if all_come { Some(plan) } else { steps(installed, new, limits, strategy) })
}

/// The steps to a program whose classes have their numbers.
fn steps(
    installed: Option<PlacedProgram<'_>>,
    new: &DigestedProgram,
    limits: &Limits,
    strategy: Strategy,
) -> Option<Plan> {
    let levels::Levels { levels, kept } = levels::assign(installed.as_ref(), new, limits, strategy)?;
    let old: Option<&Program> = installed.map(|old| &**old.program);
    let common = old.map(|old| Correspondence::of(old, new));
    let (tables, table_of_queue) = distinct_tables(new);
    let kept_queues = kept_queues(old, new, common.as_ref());
    let mut steps = vec![PlanStep::Begin];
    steps.extend(missing_tables(old, new, &table_of_queue, &kept_queues, &tables));
    let queues = (0..new.queues.len()).filter(|queue| kept_queues[*queue].is_none());
    steps.extend(queues.map(|queue| PlanStep::CreateQueue { queue: QueueId::of(queue) }));
    let fresh: Vec<usize> = (0..new.flows.len()).filter(|flow| kept[*flow].is_none()).collect();
    let counted = counted_rules(new, &fresh);
    steps.extend(counted.into_iter().map(|(rule, kind)| PlanStep::CreateCounter { rule, kind }));
    let install = |flow| PlanStep::InstallFlow { flow };
    let fresh = in_precedence(fresh, new.digests(), &levels, limits).into_iter();
    let (sniffers, others): (Vec<usize>, Vec<usize>) =
        fresh.partition(|flow| new.flows[*flow].kind == FlowKind::Sniffer);
    let mut stays = vec![false; old.map_or(0, |old| old.flows.len())];
    kept.iter().flatten().for_each(|flow| stays[*flow] = true);
    let replaced = installed.zip(common).filter(|_| others.len() > limits.spare_flows);
    let mut replaced =
        replaced.map(|(old, common)| Replacements::of(old, new, &common, &levels, (&kept, &others), limits));
    for flow in others {
        steps.push(install(flow));
        for gone in replaced.as_mut().map_or_else(Vec::new, |replaced| replaced.after(flow)) {
            stays[gone] = true;
            steps.push(PlanStep::RemoveFlow { flow: gone });
        }
    }
    steps.push(PlanStep::Enforce);
    let mut sniffers = Some(sniffers);
    if let Some(placed) = installed {
        let leaving = (0..stays.len()).filter(|flow| !stays[*flow]).collect();
        for flow in in_precedence(leaving, placed.program.digests(), placed.levels, limits).into_iter().rev()
        {
            // A port has one sniffer (drivers/infiniband/hw/mlx5/fs.c, `mlx5_ib_create_flow`): the old one is
            // removed first.
            if placed.program.flows[flow].kind != FlowKind::Sniffer {
                steps.extend(sniffers.take().into_iter().flatten().map(install));
            }
            steps.push(PlanStep::RemoveFlow { flow });
        }
    }
    steps.extend(sniffers.take().into_iter().flatten().map(install));
    Some(Plan { steps, levels, kept, tables, table_of_queue, kept_queues })
}

/// Flows from the highest precedence to the lowest; behind them those that the device applies last, and
/// sniffers.
pub(crate) fn by_precedence(digests: &[FlowDigest], levels: &[u16], limits: &Limits) -> Vec<usize> {
    in_precedence((0..digests.len()).collect(), digests, levels, limits)
}

fn in_precedence(
    mut flows: Vec<usize>,
    digests: &[FlowDigest],
    levels: &[u16],
    limits: &Limits,
) -> Vec<usize> {
    // Of one level, copies are made first.
    flows.sort_by_key(|&index| {
        let flow = &digests[index];
        let is_last = !levels::has_order(flow, limits);
        (flow.kind == FlowKind::Sniffer, is_last, levels[index], flow.kind != FlowKind::Copy)
    });
    flows
}

/// The queue pairs of the old program that those of the new one are.
fn kept_queues(
    old: Option<&Program>,
    new: &Program,
    common: Option<&Correspondence<'_>>,
) -> Vec<Option<QueueId>> {
    let Some((old, common)) = old.zip(common) else { return vec![None; new.queues.len()] };
    let same = |queue: usize| {
        let of_old = (0..old.queues.len()).map(QueueId::of);
        of_old.into_iter().find(|known| common.is_same_queue(*known, QueueId::of(queue)))
    };
    (0..new.queues.len()).map(same).collect()
}

/// The tables that new queue pairs need and the old program does not have.
fn missing_tables(
    old: Option<&Program>,
    new: &Program,
    table_of_queue: &[usize],
    kept_queues: &[Option<QueueId>],
    tables: &[Vec<WorkerId>],
) -> Vec<PlanStep> {
    let is_there = |workers: &Vec<WorkerId>| {
        old.is_some_and(|old| old.queues.iter().any(|queue| queue.table == *workers))
    };
    let is_needed = |table: &usize| {
        let queues = (0..new.queues.len()).filter(|queue| table_of_queue[*queue] == *table);
        queues.into_iter().any(|queue| kept_queues[queue].is_none())
    };
    let missing = (0..tables.len()).filter(|table| is_needed(table) && !is_there(&tables[*table]));
    missing.map(|table| PlanStep::CreateTable { table }).collect()
}

/// The rules of flows that the device counts, each once for what it counts, in the program's order.
fn counted_rules(program: &Program, flows: &[usize]) -> Vec<(RuleId, Counted)> {
    let flows = flows.iter().map(|index| &program.flows[*index]);
    let counted = flows.filter_map(|flow| Some((flow.rule, Counted::of(flow)?)));
    let mut rules: Vec<(RuleId, Counted)> = counted.collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

pub(crate) fn rule_name(program: &Program, rule: RuleId) -> &str {
    program.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str())
}

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
//! So no two flows may ever have the same match and priority: a device refuses the second one, or delivers
//! the packet twice. A flow whose action changes gets another priority ([`levels`]).
//!
//! Workers get the new classes before the first new flow; they count from when all new flows are there until
//! the first old one goes. They keep the old ones until the caller releases them, because a device may still
//! deliver packets by a flow that was just removed. So no tag is ever unknown. A number that both programs
//! have means the same in both, or belongs to flows only that both have.
//!
//! [`Plan::check`] examines a plan by these rules, whoever has made it; the controller carries out no other.

mod check;
mod levels;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use program::{Correspondence, FlowKind, Program, QueueId, RuleId, WorkerId};

use crate::{Counted, Limits, classes};

pub use check::{CheckedPlan, PlanFault};
pub use summary::PlanSummary;

/// A program on a device.
#[derive(Clone, Copy, Debug)]
pub struct PlacedProgram<'p> {
    /// The program.
    pub program: &'p Program,
    /// The device's priorities of its flows.
    pub levels: &'p [u16],
    /// The first priority of the half that it has.
    pub base: u16,
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
    base: u16,
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

    /// The first priority of the half that the new program has.
    #[must_use]
    pub fn base(&self) -> u16 {
        self.base
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

/// The steps from what is on the device to `new`, examined, and that program, with other numbers for classes
/// that the program before uses for something else.
///
/// # Errors
/// The plan breaks a rule: a fault of this program, or flows that the device has no room for.
pub fn plan(
    installed: Option<PlacedProgram<'_>>,
    mut new: Arc<Program>,
    limits: &Limits,
) -> Result<(Arc<Program>, CheckedPlan), PlanFault> {
    let plan = make(installed, &mut new, limits, false);
    match plan.check(installed, &new, limits) {
        // Flows of equal masks have room together, and may have none in the order in which they come.
        Err(PlanFault::NoRoom(_)) if installed.is_some() => {}
        checked => return Ok((new, checked?)),
    }
    let plan = make(installed, &mut new, limits, true);
    let checked = plan.check(installed, &new, limits)?;
    Ok((new, checked))
}

/// Makes a plan; in the other half of the priorities if `is_apart`. The program is copied only if it gets
/// other numbers and somebody else has it too.
fn make(
    installed: Option<PlacedProgram<'_>>,
    new: &mut Arc<Program>,
    limits: &Limits,
    is_apart: bool,
) -> Plan {
    let plan = steps(installed, new, limits, is_apart);
    let Some(old) = installed.map(|installed| installed.program) else { return plan };
    let changed = classes::changed(old, new, &Correspondence::of(old, new));
    let moved = classes::with_changed_flows(&changed, old, new, &plan.kept);
    if moved.is_empty() {
        return plan;
    }
    // Those that could stay as they are may have to move for the others, so all get a number of their own.
    classes::renumber(old, Arc::make_mut(new), &changed);
    steps(installed, new, limits, is_apart)
}

/// The steps to a program whose classes have their numbers.
fn steps(installed: Option<PlacedProgram<'_>>, new: &Program, limits: &Limits, is_apart: bool) -> Plan {
    let levels::Levels { levels, kept, base } = levels::assign(installed.as_ref(), new, limits, is_apart);
    let old = installed.map(|old| old.program);
    let (tables, table_of_queue) = distinct_tables(new);
    let kept_queues = kept_queues(old, new);
    let mut steps = vec![PlanStep::Begin];
    steps.extend(missing_tables(old, new, &table_of_queue, &kept_queues, &tables));
    let queues = (0..new.queues.len()).filter(|queue| kept_queues[*queue].is_none());
    steps.extend(queues.map(|queue| PlanStep::CreateQueue { queue: QueueId::of(queue) }));
    let is_new = |flow: &usize| kept[*flow].is_none();
    let counted = counted_rules(new, (0..new.flows.len()).filter(is_new));
    steps.extend(counted.into_iter().map(|(rule, kind)| PlanStep::CreateCounter { rule, kind }));
    let install = |flow| PlanStep::InstallFlow { flow };
    let fresh = by_precedence(new, &levels, limits).into_iter().filter(is_new);
    let (sniffers, others): (Vec<usize>, Vec<usize>) =
        fresh.partition(|flow| new.flows[*flow].kind == FlowKind::Sniffer);
    steps.extend(others.into_iter().map(install));
    steps.push(PlanStep::Enforce);
    let mut sniffers = Some(sniffers);
    if let Some(placed) = installed {
        let mut stays = vec![false; placed.program.flows.len()];
        kept.iter().flatten().for_each(|flow| stays[*flow] = true);
        let order = by_precedence(placed.program, placed.levels, limits);
        for flow in order.into_iter().rev().filter(|flow| !stays[*flow]) {
            // A port has one sniffer (drivers/infiniband/hw/mlx5/fs.c, `mlx5_ib_create_flow`): the old one is
            // removed first.
            if placed.program.flows[flow].kind != FlowKind::Sniffer {
                steps.extend(sniffers.take().into_iter().flatten().map(install));
            }
            steps.push(PlanStep::RemoveFlow { flow });
        }
    }
    steps.extend(sniffers.take().into_iter().flatten().map(install));
    Plan { steps, levels, base, kept, tables, table_of_queue, kept_queues }
}

/// Flows from the highest precedence to the lowest; behind them those that the device applies last, and
/// sniffers.
pub(crate) fn by_precedence(program: &Program, of: &[u16], limits: &Limits) -> Vec<usize> {
    let mut order: Vec<usize> = (0..program.flows.len()).collect();
    order.sort_by_key(|&index| precedence(program, of, limits, index));
    order
}

fn precedence(program: &Program, of: &[u16], limits: &Limits, index: usize) -> (bool, bool, u16) {
    let flow = &program.flows[index];
    (flow.kind == FlowKind::Sniffer, !levels::has_order(flow, limits), of[index])
}

/// The queue pairs of the old program that those of the new one are.
fn kept_queues(old: Option<&Program>, new: &Program) -> Vec<Option<QueueId>> {
    let Some(old) = old else { return vec![None; new.queues.len()] };
    let common = Correspondence::of(old, new);
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
fn counted_rules(program: &Program, flows: impl Iterator<Item = usize>) -> Vec<(RuleId, Counted)> {
    let flows = flows.map(|index| &program.flows[index]);
    let counted = flows.filter_map(|flow| Some((flow.rule, Counted::of(flow)?)));
    let mut rules: Vec<(RuleId, Counted)> = counted.collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

pub(crate) fn rule_name(program: &Program, rule: RuleId) -> &str {
    program.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str())
}

/// The tables that a program's queue pairs need, each once, and which of them each queue pair has.
pub(crate) fn distinct_tables(program: &Program) -> (Vec<Vec<WorkerId>>, Vec<usize>) {
    let mut tables = Vec::new();
    let mut known: HashMap<&[WorkerId], usize> = HashMap::new();
    let mut of_queue = Vec::with_capacity(program.queues.len());
    for queue in &program.queues {
        let table = *known.entry(&queue.table).or_insert_with(|| {
            tables.push(queue.table.clone());
            tables.len() - 1
        });
        of_queue.push(table);
    }
    (tables, of_queue)
}

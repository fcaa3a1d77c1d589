//! The steps from one program to the next, in order, as data that the controller carries out.
//!
//! At every moment, each packet must be decided by the old program or by the new one, never by a mixture. Two
//! rules suffice, whichever of the two bands of priorities is above the other:
//! - New flows are installed from the highest precedence to the lowest. Let F be the flow that decides a
//!   packet in the new program. Before F is installed, no flow below it is, and those above it do not match,
//!   so the old program decides the packet. From then on F decides it, if the new band is above.
//! - Old flows are removed from the lowest precedence to the highest; the same argument holds in reverse.
//!
//! If the new band is below, the old program decides the packets that its flows match until the flow is
//! removed; the packets that it leaves to the kernel are decided by the new program as soon as that is
//! installed. Workers get the new classes before the first new flow, and keep the old ones until the caller
//! clears their band, because a device may still deliver packets by a flow that was just removed. So no tag
//! is ever unknown.

use std::collections::HashMap;

use program::{FlowKind, Program, QueueId, RuleId, WorkerId};

use crate::Counted;

/// One step. Indices are into the program's vectors, tables into [`Plan::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// The new classes are published to the workers.
    Publish,
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
    /// An old flow is removed from every port.
    RemoveFlow {
        /// The index of the flow in the program.
        flow: usize,
    },
    /// The old queue pairs and tables are released.
    ReleaseQueues,
}

/// An ordered list of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<PlanStep>,
    tables: Vec<Vec<WorkerId>>,
    table_of_queue: Vec<usize>,
}

impl Plan {
    /// The steps in order.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = PlanStep> + '_ {
        self.steps.iter().copied()
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
}

/// The steps from `installed` to `new`.
#[must_use]
pub fn plan(installed: Option<&Program>, new: &Program) -> Plan {
    let (tables, table_of_queue) = distinct_tables(new);
    let mut steps = vec![PlanStep::Publish];
    steps.extend((0..tables.len()).map(|table| PlanStep::CreateTable { table }));
    steps.extend((0..new.queues.len()).map(|queue| PlanStep::CreateQueue { queue: QueueId::of(queue) }));
    steps.extend(counted_rules(new).into_iter().map(|(rule, kind)| PlanStep::CreateCounter { rule, kind }));
    let install = |flow| PlanStep::InstallFlow { flow };
    let (sniffers, others): (Vec<usize>, Vec<usize>) =
        by_precedence(new).into_iter().partition(|flow| new.flows[*flow].kind == FlowKind::Sniffer);
    steps.extend(others.into_iter().map(install));
    let mut sniffers = Some(sniffers);
    if let Some(old) = installed {
        for flow in by_precedence(old).into_iter().rev() {
            // A port has one sniffer (drivers/infiniband/hw/mlx5/fs.c, `mlx5_ib_create_flow`): the old one is
            // removed first.
            if old.flows[flow].kind != FlowKind::Sniffer {
                steps.extend(sniffers.take().into_iter().flatten().map(install));
            }
            steps.push(PlanStep::RemoveFlow { flow });
        }
    }
    steps.extend(sniffers.take().into_iter().flatten().map(install));
    if installed.is_some() {
        steps.push(PlanStep::ReleaseQueues);
    }
    Plan { steps, tables, table_of_queue }
}

/// Flows from the highest precedence to the lowest; those without precedence, the sniffers, last.
pub(crate) fn by_precedence(program: &Program) -> Vec<usize> {
    let mut order: Vec<usize> = (0..program.flows.len()).collect();
    order.sort_by_key(|&index| {
        let flow = &program.flows[index];
        (flow.kind == FlowKind::Sniffer, flow.priority)
    });
    order
}

/// The rules whose flows the device counts, each once for what it counts, in the program's order.
pub(crate) fn counted_rules(program: &Program) -> Vec<(RuleId, Counted)> {
    let counted = program.flows.iter().filter_map(|flow| Some((flow.rule, Counted::of(flow)?)));
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

//! The steps from one program to the next, in order, as data: printed by `steerd`, walked by the
//! controller. Pure; knows no device.
//!
//! Each packet must meet the old program or the new one, never a mixture, at every moment. Two rules
//! suffice, whichever band is above the other:
//! - new flows go in from the highest precedence to the lowest. Let F be the flow that decides a packet
//!   in the new program: before F is in, none below it is, and those above it do not match, so the
//!   packet meets the old program; from then on F decides it, if the new band is above.
//! - old flows go out from the lowest precedence to the highest, by the same argument backwards.
//!
//! If the new band is below, the old program goes on deciding what it claims until its flow goes; what
//! it leaves to the kernel meets the new program already, as a whole. Workers get the new classes before
//! the first new flow, and keep the old ones for a while, or until the next program takes their band: a device may
//! still deliver a packet or two by a flow that is gone, so no tag is ever unknown.

use std::collections::HashMap;
use std::fmt;

use program::{FlowAction, FlowKind, Program, QueueId, RuleId, WorkerId};

use crate::Counted;
use crate::translate::SpecChain;

/// One step. Indices are into the program's vectors, tables into [`Plan::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Workers learn the new classes.
    Publish,
    /// An indirection table is made.
    CreateTable {
        /// Its place in [`Plan::tables`].
        table: usize,
    },
    /// An RSS queue pair is made.
    CreateQueue {
        /// Which one.
        queue: QueueId,
    },
    /// A counter for a rule that no worker sees is made, or the installed one of that name kept.
    CreateCounter {
        /// The rule.
        rule: RuleId,
        /// What it counts.
        kind: Counted,
    },
    /// A new flow goes in, on every port.
    InstallFlow {
        /// Its place in the program.
        flow: usize,
    },
    /// An old flow goes, on every port.
    RemoveFlow {
        /// Its place in the program.
        flow: usize,
    },
    /// The old queue pairs and tables go.
    ReleaseQueues,
}

/// An ordered list of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<'p> {
    installed: Option<&'p Program>,
    new: &'p Program,
    steps: Vec<Step>,
    tables: Vec<Vec<WorkerId>>,
    table_of_queue: Vec<usize>,
}

impl Plan<'_> {
    /// The steps in order.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = Step> + '_ {
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

impl fmt::Display for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>4}. {}", number + 1, self.describe(*step))?;
        }
        Ok(())
    }
}

impl Plan<'_> {
    fn describe(&self, step: Step) -> String {
        let new = self.new;
        match step {
            Step::Publish => {
                format!("publish {} classes to the workers", new.classes.iter().flatten().count())
            }
            Step::CreateTable { table } => {
                format!("create table t{table}: {}", describe_table(&self.tables[table]))
            }
            Step::CreateQueue { queue } => {
                let (id, table) = (queue, self.table_of_queue[queue.index()]);
                let queue = &new.queues[queue.index()];
                let group = new.groups.get(queue.group.index()).map_or("?", |group| group.name.as_str());
                format!("create queue {id} over t{table}: group {group}, {}", queue.variant)
            }
            Step::CreateCounter { rule, .. } => {
                format!("create or keep the counter of rule {}", rule_name(new, rule))
            }
            Step::InstallFlow { flow } => format!("install {}", describe_flow(new, flow)),
            Step::RemoveFlow { flow } => {
                let old =
                    self.installed.map_or_else(|| format!("flow {flow}"), |old| describe_flow(old, flow));
                format!("remove {old}")
            }
            Step::ReleaseQueues => {
                format!("release {} old queues", self.installed.map_or(0, |old| old.queues.len()))
            }
        }
    }
}

/// How to get from `installed` to `new`.
#[must_use]
pub fn plan<'p>(installed: Option<&'p Program>, new: &'p Program) -> Plan<'p> {
    let (tables, table_of_queue) = distinct_tables(new);
    let mut steps = vec![Step::Publish];
    steps.extend((0..tables.len()).map(|table| Step::CreateTable { table }));
    steps.extend((0..new.queues.len()).map(|queue| Step::CreateQueue { queue: QueueId::of(queue) }));
    steps.extend(counted_rules(new).into_iter().map(|(rule, kind)| Step::CreateCounter { rule, kind }));
    let install = |flow| Step::InstallFlow { flow };
    let (sniffers, others): (Vec<usize>, Vec<usize>) =
        by_precedence(new).into_iter().partition(|flow| new.flows[*flow].kind == FlowKind::Sniffer);
    steps.extend(others.into_iter().map(install));
    let mut sniffers = Some(sniffers);
    if let Some(old) = installed {
        for flow in by_precedence(old).into_iter().rev() {
            // A port has one sniffer (facts, mlx5): the old one goes, then the new one comes.
            if old.flows[flow].kind != FlowKind::Sniffer {
                steps.extend(sniffers.take().into_iter().flatten().map(install));
            }
            steps.push(Step::RemoveFlow { flow });
        }
    }
    steps.extend(sniffers.take().into_iter().flatten().map(install));
    if installed.is_some() {
        steps.push(Step::ReleaseQueues);
    }
    Plan { installed, new, steps, tables, table_of_queue }
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

fn describe_table(workers: &[WorkerId]) -> String {
    let mut distinct = workers.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let names: Vec<String> = distinct.iter().map(ToString::to_string).collect();
    format!("{} entries over {}", workers.len(), names.join(" "))
}

fn describe_flow(program: &Program, index: usize) -> String {
    let Some(flow) = program.flows.get(index) else { return format!("flow {index}") };
    let (kind, inner_from) = (flow.kind, flow.inner_from);
    let chain = SpecChain { kind, specs: &flow.specs, inner_from, tag: None, drop: false };
    let action = match flow.action {
        FlowAction::Steer { queue, class } => format!("{queue} class {class}"),
        FlowAction::Drop => "drop".to_owned(),
        FlowAction::Pass => "pass".to_owned(),
    };
    format!(
        "flow {index} of rule {} at priority {}: {chain} -> {action}",
        rule_name(program, flow.rule),
        flow.priority
    )
}

//! A change from one program to the next, step by step, and the way back when a step fails. The steps
//! and their order come from [`crate::plan()`]; this file only carries them out.

use std::sync::Arc;

use program::{Band, Program, QueueId, RuleId};
use verbs::{HashConfig, HashFields};

use crate::controller::{Controller, Publish};
use crate::installer::Installer;
use crate::plan::rule_name;
use crate::{Counted, Error, Installed, Plan, Step};

/// A program on the device, whole or on its way in or out.
pub(crate) struct Placed<I: Installer> {
    pub(crate) program: Arc<Program>,
    pub(crate) band: Band,
    /// In the order of installation: the last is the lowest in precedence.
    pub(crate) flows: Vec<PlacedFlow<I::Flow>>,
    pub(crate) queues: Vec<I::Queue>,
    pub(crate) tables: Vec<I::Table>,
}

pub(crate) struct PlacedFlow<F> {
    /// Its place in the program.
    index: usize,
    port: u8,
    flow: F,
}

impl<I: Installer> Placed<I> {
    fn new(program: Arc<Program>, band: Band) -> Self {
        Self { program, band, flows: Vec::new(), queues: Vec::new(), tables: Vec::new() }
    }
}

impl<I: Installer> Drop for Placed<I> {
    /// Lowest precedence first, also when nobody took the time to remove them one by one.
    fn drop(&mut self) {
        while self.flows.pop().is_some() {}
    }
}

/// What a change has done so far.
pub(crate) struct Change<I: Installer> {
    pub(crate) new: Placed<I>,
    old: Option<Placed<I>>,
    /// Old flows that are gone, in the order of their going.
    removed: Vec<(usize, u8)>,
}

impl<I: Installer> Change<I> {
    pub(crate) fn new(program: Arc<Program>, band: Band, old: Option<Placed<I>>) -> Self {
        Self { new: Placed::new(program, band), old, removed: Vec::new() }
    }
}

impl<I: Installer> Controller<I> {
    pub(crate) fn perform(
        &mut self,
        step: Step,
        plan: &Plan<'_>,
        change: &mut Change<I>,
        publish: &mut Publish<'_>,
    ) -> Result<(), Error> {
        match step {
            Step::Publish => publish(change.new.band, Arc::clone(&change.new.program)),
            Step::CreateTable { table } => self.create_table(plan, table, &mut change.new),
            Step::CreateQueue { queue } => self.create_queue(plan, queue, &mut change.new),
            Step::CreateCounter { rule, kind } => self.create_counter(rule, kind, &change.new.program),
            Step::InstallFlow { flow } => self.install_flow(flow, &mut change.new),
            Step::RemoveFlow { flow } => self.remove_flow(flow, change),
            Step::ReleaseQueues => {
                if let Some(old) = &mut change.old {
                    old.queues.clear();
                    old.tables.clear();
                }
                Ok(())
            }
        }
    }

    fn create_table(&mut self, plan: &Plan<'_>, table: usize, new: &mut Placed<I>) -> Result<(), Error> {
        let workers = &plan.tables()[table];
        let made = self.installer_mut().create_table(workers).map_err(|source| {
            let queue = new.program.queues.iter().find(|queue| queue.table == *workers);
            let group = queue.and_then(|queue| new.program.groups.get(queue.group.index()));
            Error::Table {
                group: group.map_or_else(String::new, |group| group.name.clone()),
                entries: workers.len(),
                source,
            }
        })?;
        new.tables.push(made);
        Ok(())
    }

    fn create_queue(&mut self, plan: &Plan<'_>, queue: QueueId, new: &mut Placed<I>) -> Result<(), Error> {
        let spec = &new.program.queues[queue.index()];
        let group = &new.program.groups[spec.group.index()];
        let fields = HashFields::from_bits_truncate(u64::from(spec.fields.bits()));
        let table = plan.table_of(queue).and_then(|table| new.tables.get(table));
        let table = table.ok_or_else(|| Error::Inconsistent { what: format!("{queue} has no table") })?;
        let made = self.installer_mut().create_queue(table, &HashConfig { key: group.key.0, fields });
        let made = made.map_err(|source| Error::Queue {
            group: group.name.clone(),
            variant: spec.variant.to_string(),
            source,
        })?;
        new.queues.push(made);
        Ok(())
    }

    fn create_counter(&mut self, rule: RuleId, kind: Counted, program: &Program) -> Result<(), Error> {
        self.open_counter(kind, rule_name(program, rule), program.rules[rule.index()].line)
    }

    fn install_flow(&mut self, index: usize, new: &mut Placed<I>) -> Result<(), Error> {
        for port in self.ports() {
            let flow = self.create_flow(new, index, port)?;
            new.flows.push(PlacedFlow { index, port, flow });
        }
        Ok(())
    }

    fn remove_flow(&mut self, index: usize, change: &mut Change<I>) -> Result<(), Error> {
        let Some(old) = &mut change.old else { return Ok(()) };
        while old.flows.last().is_some_and(|placed| placed.index == index) {
            let port = self.remove_last(old)?;
            change.removed.push((index, port));
        }
        Ok(())
    }

    /// Removes the lowest flow and tells its port; if the device will not, it stays where it was.
    fn remove_last(&mut self, placed: &mut Placed<I>) -> Result<u8, Error> {
        let Some(PlacedFlow { index, port, flow }) = placed.flows.pop() else { return Ok(0) };
        self.destroy_flow(&placed.program, index, flow).map(|()| port).map_err(|(flow, source)| {
            placed.flows.push(PlacedFlow { index, port, flow });
            let flow = &placed.program.flows[index];
            let request = self.request(&placed.program, flow, placed.band, port);
            Error::RemoveFlow {
                rule: rule_name(&placed.program, flow.rule).to_owned(),
                line: placed.program.rules[flow.rule.index()].line,
                port,
                priority: request.priority,
                specs: request.chain().to_string(),
                source,
            }
        })
    }

    /// Removes all flows, lowest precedence first, up to the first that will not go.
    pub(crate) fn remove_all(&mut self, placed: &mut Placed<I>) -> Result<(), Error> {
        while !placed.flows.is_empty() {
            self.remove_last(placed)?;
        }
        placed.queues.clear();
        placed.tables.clear();
        Ok(())
    }

    /// The way back: old flows that went come again, highest precedence first; then the new flows go,
    /// lowest first; then what they hung on. If the old program cannot be had back, the new one, which is
    /// in as a whole, stays instead. Packets without a tag are judged by what was published last, which is
    /// the old program again then.
    pub(crate) fn take_back(
        &mut self,
        change: Change<I>,
        first: Error,
        publish: &mut Publish<'_>,
    ) -> Result<Installed, Error> {
        let Change { mut new, mut old, removed } = change;
        for (index, port) in removed.into_iter().rev() {
            let Some(old) = &mut old else { break };
            match self.create_flow(old, index, port) {
                Ok(flow) => old.flows.push(PlacedFlow { index, port, flow }),
                Err(second) => {
                    let rest = std::mem::replace(old, Placed::new(Arc::clone(&old.program), old.band));
                    let (first, second, left) = (Box::new(first), Box::new(second), rest.flows.len());
                    let warning = Error::WayOn { first, second, left };
                    return Ok(self.in_force(new, Some(rest), Some(warning)));
                }
            }
        }
        if let Err(second) = self.remove_all(&mut new) {
            let left = new.flows.len();
            self.settle(old, Some(new));
            return Err(Error::WayBack { first: Box::new(first), second: Box::new(second), left });
        }
        self.close_unused_counters();
        if let Some(old) = old.as_ref().filter(|old| old.program.untagged.is_some())
            && let Err(second) = publish(old.band, Arc::clone(&old.program))
        {
            self.warn(format!("workers may judge packets without a tag by the refused program: {second}"));
        }
        self.settle(old, None);
        Err(first)
    }
}

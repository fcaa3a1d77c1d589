//! The controller: what is installed on a device, and the change from one program to the next, whose steps
//! and order come from [`plan()`]. `steerd` owns it, and calls it when the policy changes and when counters
//! are scraped.
//!
//! Invariant: after any failure the device is as before, or the error or warning names what is left over and
//! the next change removes it first.

use std::collections::HashSet;
use std::sync::Arc;

use program::{Band, ClassTag, Flow, FlowAction, FlowKind, FlowSpec, Program, QueueId, RuleId, WorkerId};
use verbs::{EthernetMatch, HashConfig, HashFields, WorkQueue};

use crate::counters::{Counted, DropTotals, RuleCounters};
use crate::installer::{FlowRequest, Installer, VerbsInstaller};
use crate::plan::{Plan, PlanStep, distinct_tables, plan, rule_name};
use crate::{ControlError, Device, DeviceRefusal, Limits};

/// The number of an installed program, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

impl std::fmt::Display for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "generation {}", self.0)
    }
}

/// The result of installing a program.
#[derive(Debug)]
pub struct Installed {
    /// The number of the program.
    pub generation: Generation,
    /// Why flows of the program before are still on the device, if some are: they decide their packets
    /// as before until the next change removes them.
    pub warning: Option<ControlError>,
}

/// Hands a program to every worker for a band, and returns when all have acknowledged. An error undoes
/// the change. The workers keep a published program until their caller clears its band.
pub type Publish<'p> = dyn FnMut(Band, Arc<Program>) -> Result<(), ControlError> + 'p;

/// The key of the queue pair of flows that drop; nothing is hashed with it.
const DROP_QUEUE_KEY: [u8; 40] = [0x6d; 40];

/// Puts programs on one device. It must be dropped before the workers: the table of `drop_queue` refers to a
/// worker's queue even when no program is installed.
pub struct Controller<I: Installer = VerbsInstaller> {
    /// Declared, and so dropped, before everything that its flows refer to.
    installed: Option<Placed<I>>,
    /// Flows that a failed rollback has left on the device.
    leftover: Option<Placed<I>>,
    /// A flow that kept a counter readable, and that the device did not remove. There is at most one: no
    /// other is installed while it stays.
    holder: Option<CounterHolder<I::Flow>>,
    /// For flows that drop: every flow needs a queue pair (drivers/infiniband/core/uverbs_cmd.c,
    /// `ib_uverbs_ex_create_flow`).
    drop_queue: I::Queue,
    _drop_table: I::Table,
    /// The counters, by [`Counted`].
    counters: [RuleCounters<I::Counter>; Counted::ALL.len()],
    /// Whether the device can count the packets of a flow, as far as known.
    counts: bool,
    /// How many counters could not be read after the removal of their last flow.
    early_readings: u64,
    installer: I,
    limits: Limits,
    ports: Vec<u8>,
    workers: usize,
    generation: Generation,
    /// The abilities that the device lacks.
    warnings: Vec<String>,
}

impl Controller<VerbsInstaller> {
    /// For a device's ports and the workers' queues, in the order of the workers' ids.
    ///
    /// # Errors
    /// A port that is down or missing, or no permission to make queue pairs.
    pub fn new(device: &Device, ports: Vec<u8>, queues: Vec<Arc<WorkQueue>>) -> Result<Self, ControlError> {
        ports.iter().try_for_each(|&port| device.check_port(port))?;
        let workers = queues.len();
        let installer = VerbsInstaller::new(device, queues)?;
        Self::over(installer, device.limits(), ports, workers)
    }
}

impl<I: Installer> Controller<I> {
    /// A controller over any installer.
    ///
    /// # Errors
    /// No workers or ports, or the device refuses the controller's own queue pair.
    pub fn over(
        mut installer: I,
        limits: Limits,
        ports: Vec<u8>,
        workers: usize,
    ) -> Result<Self, ControlError> {
        if workers == 0 || ports.is_empty() {
            return Err(ControlError::NothingToSteer { workers, ports: ports.len() });
        }
        let device = &limits.device;
        let refused = |what| move |source| ControlError::Setup { device: device.clone(), what, source };
        let table =
            installer.create_table(&[WorkerId(0)]).map_err(refused("an indirection table of one entry"))?;
        let hash = HashConfig { key: DROP_QUEUE_KEY, fields: HashFields::empty() };
        let drop_queue = installer.create_queue(&table, &hash).map_err(refused("a raw packet queue pair"))?;
        Ok(Self {
            installed: None,
            leftover: None,
            holder: None,
            drop_queue,
            _drop_table: table,
            counters: Default::default(),
            counts: true,
            early_readings: 0,
            installer,
            limits,
            ports,
            workers,
            generation: Generation::default(),
            warnings: Vec::new(),
        })
    }

    /// Replaces what is installed by `program`, make before break; see [`plan()`] for the order and why
    /// no packet meets half a policy.
    ///
    /// # Errors
    /// What was refused, for which rule, and what to do. The program before is still installed; only
    /// [`ControlError::RollbackFailed`] leaves new flows on the device, which the next call removes first.
    pub fn install(
        &mut self,
        program: Arc<Program>,
        publish: &mut Publish<'_>,
    ) -> Result<Installed, ControlError> {
        self.check(&program)?;
        self.remove_leftover()?;
        let old = self.installed.take();
        let band = old.as_ref().map_or(Band::A, |old| old.band.other());
        let (before, after) = (old.as_ref().map(|old| Arc::clone(&old.program)), Arc::clone(&program));
        let steps = plan(before.as_deref(), &after);
        let mut change = Change::new(program, band, old);
        for step in steps.steps() {
            if let Err(error) = self.perform(step, &steps, &mut change, publish) {
                return self.roll_back(change, error, publish);
            }
        }
        Ok(self.replaced(change.new, None, None))
    }

    /// Records that the new program has replaced the old one, except for what is left over.
    fn replaced(
        &mut self,
        new: Placed<I>,
        leftover: Option<Placed<I>>,
        warning: Option<ControlError>,
    ) -> Installed {
        (self.installed, self.leftover) = (Some(new), leftover);
        self.generation.0 += 1;
        Installed { generation: self.generation, warning }
    }

    /// Removes every flow, lowest precedence first; workers then receive nothing new.
    ///
    /// # Errors
    /// The first flow that the device did not remove.
    pub fn clear(&mut self) -> Result<(), ControlError> {
        self.remove_leftover()?;
        if let Some(mut old) = self.installed.take()
            && let Err(error) = self.remove_all(&mut old)
        {
            self.installed = Some(old);
            return Err(error);
        }
        self.close_unused_counters();
        Ok(())
    }

    /// Reads the counters of the rules that drop in hardware. Returns the totals by name, which never go
    /// backwards.
    pub fn drop_counters(&mut self) -> Vec<DropTotals> {
        let Self { counters, installer, .. } = self;
        counters.iter_mut().for_each(|book| book.read_all(installer));
        let books = counters.iter().zip(Counted::ALL);
        books.flat_map(|(book, kind)| book.totals(kind)).collect()
    }

    /// How many counters could not be read after the removal of their last flow, because the device refused
    /// the reading, or the flow that would have kept them readable. Packets that the device counted after the
    /// reading before are in no total.
    #[must_use]
    pub fn early_readings(&self) -> u64 {
        self.early_readings
    }

    /// Sums up what rules have counted that are neither in `keep` nor on the device, under the name
    /// [`program::RETIRED_RULES`]. Totals by name stay in memory until this is called.
    pub fn retire_rules(&mut self, keep: &HashSet<&str>) {
        self.counters.iter_mut().for_each(|book| book.retire(keep));
    }

    /// Whether flows of an earlier program are still on the device, because it did not remove them.
    #[must_use]
    pub fn has_leftover(&self) -> bool {
        self.leftover.is_some()
    }

    /// The program that is installed, and its band.
    #[must_use]
    pub fn installed(&self) -> Option<(&Arc<Program>, Band)> {
        self.installed.as_ref().map(|placed| (&placed.program, placed.band))
    }

    /// How many programs were installed.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The functions that the device does not have, as text.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    /// Checks a program before anything is done on the device.
    fn check(&self, program: &Program) -> Result<(), ControlError> {
        let needed = program.flows.iter().map(|flow| u32::from(flow.priority) + 1).max().unwrap_or(0);
        if needed > self.limits.priorities {
            let (device, offered) = (self.limits.device.clone(), self.limits.priorities);
            return Err(ControlError::Priorities { device, needed, offered });
        }
        let needed = distinct_tables(program).0.len();
        if let Some(offered) = self.limits.tables.filter(|offered| needed > *offered) {
            return Err(ControlError::Tables { device: self.limits.device.clone(), needed, offered });
        }
        for queue in &program.queues {
            let group = program.groups.get(queue.group.index());
            let group =
                group.ok_or_else(|| inconsistent(format!("a queue of missing group {}", queue.group)))?;
            if let Some(&worker) = queue.table.iter().find(|worker| worker.index() >= self.workers) {
                return Err(ControlError::UnknownWorker {
                    group: group.name.clone(),
                    worker,
                    workers: self.workers,
                });
            }
        }
        for flow in &program.flows {
            if program.rules.get(flow.rule.index()).is_none() {
                return Err(inconsistent(format!("a flow of missing rule {}", flow.rule)));
            }
            if let FlowAction::Steer { queue, class } = flow.action {
                let tag = ClassTag { band: Band::A, class };
                if program.queues.get(queue.index()).is_none()
                    || program.class(class).is_none()
                    || tag.encode().is_none()
                {
                    return Err(inconsistent(format!("a flow to missing queue {queue} or class {class}")));
                }
            }
        }
        Ok(())
    }

    fn warn(&mut self, warning: String) {
        tracing::warn!(device = self.limits.device, "{warning}");
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The first priority of a band.
    fn base(&self, band: Band) -> u32 {
        self.limits.priorities * u32::from(band == Band::B)
    }

    /// The request to the device for a flow of `program` in `band`.
    fn request<'r>(&self, program: &'r Program, flow: &'r Flow, band: Band, port: u8) -> FlowRequest<'r> {
        // A sniffer has no priority.
        let base = if flow.kind == FlowKind::Sniffer { 0 } else { self.base(band) };
        // Checked in `check`; the device refuses what saturates.
        let priority = u16::try_from(base + u32::from(flow.priority)).unwrap_or(u16::MAX);
        // The tag of a sniffer is never read, and a device without tags refuses them.
        let is_tagged = |class| program.untagged != Some(class) && flow.kind != FlowKind::Sniffer;
        let tag = match flow.action {
            FlowAction::Steer { class, .. } if is_tagged(class) => ClassTag { band, class }.encode(),
            FlowAction::Steer { .. } | FlowAction::Drop | FlowAction::Pass => None,
        };
        FlowRequest { port, priority, flow, tag }
    }

    /// Installs one flow of a placed program on one port.
    fn create_flow(&mut self, placed: &Placed<I>, index: usize, port: u8) -> Result<I::Flow, ControlError> {
        let flow = &placed.program.flows[index];
        let request = self.request(&placed.program, flow, placed.band, port);
        let rule = rule_name(&placed.program, flow.rule);
        let line = placed.program.rules[flow.rule.index()].line;
        let kind = Counted::of(flow);
        if let Some(kind) = kind {
            self.open_counter(kind, rule, line)?;
        }
        let (queue, counter) = match flow.action {
            FlowAction::Steer { queue, .. } => {
                (placed.queues.get(queue.index()).unwrap_or(&self.drop_queue), None)
            }
            FlowAction::Drop | FlowAction::Pass => {
                (&self.drop_queue, kind.and_then(|kind| self.counters[kind as usize].counter(rule)))
            }
        };
        let counted = counter.is_some();
        let mut made = self.installer.create_flow(&request, queue, counter);
        let unsupported = made.as_ref().is_err_and(DeviceRefusal::is_unsupported);
        if counted && unsupported {
            made = self.installer.create_flow(&request, queue, None);
            if let (Some(kind), Ok(_)) = (kind, &made) {
                self.counters[kind as usize].uncount(&mut self.installer, rule);
                self.counts = false;
                self.warn(cannot_count());
            }
        }
        if let (Some(kind), Ok(_)) = (kind, &made) {
            self.counters[kind as usize].flow_installed(rule);
        }
        made.map_err(|source| ControlError::InstallFlow {
            rule: rule.to_owned(),
            line,
            port,
            priority: request.priority,
            specs: request.text(),
            source,
        })
    }

    /// Removes one flow of a program; if the device refuses, the flow is returned.
    fn destroy_flow(
        &mut self,
        placed: &Placed<I>,
        removed: PlacedFlow<I::Flow>,
    ) -> Result<(), (PlacedFlow<I::Flow>, DeviceRefusal)> {
        let PlacedFlow { index, port, flow } = removed;
        let counted = Counted::of(&placed.program.flows[index]);
        let holder = counted.and_then(|kind| self.hold_counter(placed, index, port, kind));
        let destroyed = self.installer.destroy_flow(flow);
        if let (Ok(()), Some(kind)) = (&destroyed, counted) {
            let rule = rule_name(&placed.program, placed.program.flows[index].rule);
            if let Err(refusal) = self.counters[kind as usize].flow_removed(&mut self.installer, rule) {
                tracing::warn!(
                    rule,
                    "the drop counter could not be read after its last flow was removed: {refusal}; the packets since \
                     its last reading are in no total"
                );
                self.early_readings += 1;
            }
        }
        if let Some(holder) = holder {
            self.holder = Some(holder);
            self.remove_holder();
        }
        destroyed.map_err(|(flow, refusal)| (PlacedFlow { index, port, flow }, refusal))
    }

    /// Keeps the counter of a rule in use while its last flow is removed, by a flow that no packet matches: a
    /// device like mlx5 refuses to read a counter without a flow
    /// (drivers/infiniband/core/uverbs_std_types_counters.c), and what is counted between a reading and the
    /// removal would be lost. If the device refuses that flow, or still has an earlier one, the counter is
    /// read before the removal.
    fn hold_counter(
        &mut self,
        placed: &Placed<I>,
        index: usize,
        port: u8,
        kind: Counted,
    ) -> Option<CounterHolder<I::Flow>> {
        if self.limits.reads_idle_counters {
            return None;
        }
        let flow = &placed.program.flows[index];
        let rule = rule_name(&placed.program, flow.rule);
        self.counters[kind as usize].of_last_flow(rule)?;
        self.remove_holder();
        let counter = self.counters[kind as usize].of_last_flow(rule);
        if self.holder.is_none() {
            let unmatched = unmatched(flow);
            let request = self.request(&placed.program, &unmatched, placed.band, port);
            match self.installer.create_flow(&request, &self.drop_queue, counter) {
                Ok(flow) => return Some(CounterHolder { flow, rule: rule.to_owned(), port }),
                Err(refusal) => {
                    tracing::debug!(rule, "the counter is read before its last flow is removed: {refusal}");
                }
            }
        }
        self.counters[kind as usize].refresh(&mut self.installer, rule);
        None
    }

    /// Removes the flow that has kept a counter readable. If the device refuses, the flow stays until the
    /// next change: it matches no packet, so the change goes on.
    fn remove_holder(&mut self) {
        let Some(CounterHolder { flow, rule, port }) = self.holder.take() else { return };
        if let Err((flow, refusal)) = self.installer.destroy_flow(flow) {
            tracing::warn!(
                rule,
                port,
                "the device did not remove a flow that kept the rule's drop counter readable: {refusal}; it matches no \
                 packet, and the next reload removes it first"
            );
            self.holder = Some(CounterHolder { flow, rule, port });
        }
    }

    /// Creates the counter of a rule that no worker sees, unless it has one.
    fn open_counter(&mut self, kind: Counted, rule: &str, line: u32) -> Result<(), ControlError> {
        if self.counters[kind as usize].has(rule) {
            return Ok(());
        }
        let counter = match self.counts.then(|| self.installer.create_counter()) {
            None => None,
            Some(Ok(counter)) => Some(counter),
            Some(Err(refusal)) if refusal.is_unsupported() => {
                self.counts = false;
                self.warn(cannot_count());
                None
            }
            Some(Err(source)) => return Err(ControlError::Counter { rule: rule.to_owned(), line, source }),
        };
        self.counters[kind as usize].open(rule, counter);
        Ok(())
    }

    /// Releases the counters of rules that have no installed flow.
    fn close_unused_counters(&mut self) {
        self.counters.iter_mut().for_each(RuleCounters::close_unused);
    }

    /// Removes what an earlier change has left on the device.
    fn remove_leftover(&mut self) -> Result<(), ControlError> {
        self.remove_holder();
        let Some(mut leftover) = self.leftover.take() else { return Ok(()) };
        if let Err(error) = self.remove_all(&mut leftover) {
            self.leftover = Some(leftover);
            return Err(error);
        }
        Ok(())
    }
}

/// The steps of a change, and their rollback.
impl<I: Installer> Controller<I> {
    fn perform(
        &mut self,
        step: PlanStep,
        plan: &Plan,
        change: &mut Change<I>,
        publish: &mut Publish<'_>,
    ) -> Result<(), ControlError> {
        match step {
            PlanStep::Publish => publish(change.new.band, Arc::clone(&change.new.program)),
            PlanStep::CreateTable { table } => self.create_table(plan, table, &mut change.new),
            PlanStep::CreateQueue { queue } => self.create_queue(plan, queue, &mut change.new),
            PlanStep::CreateCounter { rule, kind } => self.create_counter(rule, kind, &change.new.program),
            PlanStep::InstallFlow { flow } => self.install_flow(flow, &mut change.new),
            PlanStep::RemoveFlow { flow } => self.remove_flow(flow, change),
            PlanStep::ReleaseQueues => {
                if let Some(old) = &mut change.old {
                    old.queues.clear();
                    old.tables.clear();
                }
                Ok(())
            }
        }
    }

    fn create_table(&mut self, plan: &Plan, table: usize, new: &mut Placed<I>) -> Result<(), ControlError> {
        let workers = &plan.tables()[table];
        let made = self.installer.create_table(workers).map_err(|source| {
            let queue = new.program.queues.iter().find(|queue| queue.table == *workers);
            let group = queue.and_then(|queue| new.program.groups.get(queue.group.index()));
            ControlError::Table {
                group: group.map_or_else(String::new, |group| group.name.clone()),
                entries: workers.len(),
                source,
            }
        })?;
        new.tables.push(made);
        Ok(())
    }

    fn create_queue(&mut self, plan: &Plan, queue: QueueId, new: &mut Placed<I>) -> Result<(), ControlError> {
        let spec = &new.program.queues[queue.index()];
        let group = &new.program.groups[spec.group.index()];
        let fields = HashFields::from_bits_truncate(u64::from(spec.fields.bits()));
        let table = plan.table_of(queue).and_then(|table| new.tables.get(table));
        let table =
            table.ok_or_else(|| ControlError::Inconsistent { what: format!("{queue} has no table") })?;
        let made = self.installer.create_queue(table, &HashConfig { key: group.key.0, fields });
        let made = made.map_err(|source| ControlError::Queue {
            group: group.name.clone(),
            variant: spec.variant.to_string(),
            source,
        })?;
        new.queues.push(made);
        Ok(())
    }

    fn create_counter(&mut self, rule: RuleId, kind: Counted, program: &Program) -> Result<(), ControlError> {
        self.open_counter(kind, rule_name(program, rule), program.rules[rule.index()].line)
    }

    fn install_flow(&mut self, index: usize, new: &mut Placed<I>) -> Result<(), ControlError> {
        for port in self.ports.clone() {
            let flow = self.create_flow(new, index, port)?;
            new.flows.push(PlacedFlow { index, port, flow });
        }
        Ok(())
    }

    fn remove_flow(&mut self, index: usize, change: &mut Change<I>) -> Result<(), ControlError> {
        let Some(old) = &mut change.old else { return Ok(()) };
        while old.flows.last().is_some_and(|placed| placed.index == index) {
            let port = self.remove_last(old)?;
            change.removed.push((index, port));
        }
        Ok(())
    }

    /// Removes the flow of the lowest precedence and returns its port; a flow that the device does not remove
    /// stays.
    fn remove_last(&mut self, placed: &mut Placed<I>) -> Result<u8, ControlError> {
        let Some(removed) = placed.flows.pop() else { return Ok(0) };
        let (index, port) = (removed.index, removed.port);
        self.destroy_flow(placed, removed).map(|()| port).map_err(|(removed, source)| {
            placed.flows.push(removed);
            let flow = &placed.program.flows[index];
            let request = self.request(&placed.program, flow, placed.band, port);
            ControlError::RemoveFlow {
                rule: rule_name(&placed.program, flow.rule).to_owned(),
                line: placed.program.rules[flow.rule.index()].line,
                port,
                priority: request.priority,
                specs: request.text(),
                source,
            }
        })
    }

    /// Removes all flows, lowest precedence first, up to the first that the device does not remove.
    fn remove_all(&mut self, placed: &mut Placed<I>) -> Result<(), ControlError> {
        while !placed.flows.is_empty() {
            self.remove_last(placed)?;
        }
        placed.queues.clear();
        placed.tables.clear();
        Ok(())
    }

    /// Rolls back: removed flows of the old program are installed again, highest precedence first; then the
    /// new flows are removed, lowest first; then the queues and tables that they used. If an old flow cannot
    /// be installed again, the new program stays: old flows are removed only after all new ones are
    /// installed, so it is complete.
    ///
    /// This is the change run backwards, so the argument of [`plan()`] applies to each step: a packet is
    /// decided by one of the two programs, never by a mixture. Nothing is removed before all old flows are
    /// installed again, so a failure at any step leaves at least one complete program. Workers keep the
    /// classes of both bands throughout.
    ///
    /// Workers classify packets without a tag by the program published last, so the old one is published
    /// again.
    fn roll_back(
        &mut self,
        change: Change<I>,
        first: ControlError,
        publish: &mut Publish<'_>,
    ) -> Result<Installed, ControlError> {
        let Change { mut new, mut old, removed } = change;
        for (index, port) in removed.into_iter().rev() {
            let Some(old) = &mut old else { break };
            match self.create_flow(old, index, port) {
                Ok(flow) => old.flows.push(PlacedFlow { index, port, flow }),
                Err(second) => {
                    let rest = std::mem::replace(old, Placed::new(Arc::clone(&old.program), old.band));
                    let (first, second, left) = (Box::new(first), Box::new(second), rest.flows.len());
                    let warning = ControlError::OldFlowsLeft { first, second, left };
                    return Ok(self.replaced(new, Some(rest), Some(warning)));
                }
            }
        }
        if let Err(second) = self.remove_all(&mut new) {
            let left = new.flows.len();
            (self.installed, self.leftover) = (old, Some(new));
            return Err(ControlError::RollbackFailed {
                first: Box::new(first),
                second: Box::new(second),
                left,
            });
        }
        self.close_unused_counters();
        if let Some(old) = old.as_ref().filter(|old| old.program.untagged.is_some())
            && let Err(second) = publish(old.band, Arc::clone(&old.program))
        {
            self.warn(format!("workers may classify packets without a tag by the refused program: {second}"));
        }
        (self.installed, self.leftover) = (old, None);
        Err(first)
    }
}

/// A program on the device, whole or on its way in or out.
struct Placed<I: Installer> {
    program: Arc<Program>,
    band: Band,
    /// In the order of installation: the last is the lowest in precedence.
    flows: Vec<PlacedFlow<I::Flow>>,
    queues: Vec<I::Queue>,
    tables: Vec<I::Table>,
}

struct PlacedFlow<F> {
    /// The index of the flow in the program.
    index: usize,
    port: u8,
    flow: F,
}

/// A flow that no packet matches. It keeps a rule's counter readable while the rule's last flow is removed.
struct CounterHolder<F> {
    flow: F,
    rule: String,
    port: u8,
}

impl<I: Installer> Placed<I> {
    fn new(program: Arc<Program>, band: Band) -> Self {
        Self { program, band, flows: Vec::new(), queues: Vec::new(), tables: Vec::new() }
    }
}

impl<I: Installer> Drop for Placed<I> {
    /// Lowest precedence first, also if they were not removed one by one.
    fn drop(&mut self) {
        while self.flows.pop().is_some() {}
    }
}

/// A change in progress.
struct Change<I: Installer> {
    new: Placed<I>,
    old: Option<Placed<I>>,
    /// Old flows that were removed, in the order of their removal: place in the program, and port.
    removed: Vec<(usize, u8)>,
}

impl<I: Installer> Change<I> {
    fn new(program: Arc<Program>, band: Band, old: Option<Placed<I>>) -> Self {
        Self { new: Placed::new(program, band), old, removed: Vec::new() }
    }
}

/// A flow like `flow` that no packet matches: no frame has a group address as its source (IEEE 802.3, clause
/// 3.2.3), nor the reserved EtherType 0xffff (RFC 1701).
fn unmatched(flow: &Flow) -> Flow {
    let value = EthernetMatch { src_mac: [0xff; 6], ether_type: 0xffff, ..EthernetMatch::default() };
    let mask = EthernetMatch { dst_mac: [0xff; 6], ..value };
    let kind = if flow.kind == FlowKind::Egress { FlowKind::Egress } else { FlowKind::Normal };
    Flow { kind, specs: vec![FlowSpec::Ethernet { value, mask }], inner_from: 1, ..flow.clone() }
}

fn cannot_count() -> String {
    "the device cannot count dropped packets: rules that drop in hardware have no packet counts".to_owned()
}

fn inconsistent(what: String) -> ControlError {
    ControlError::Inconsistent { what }
}

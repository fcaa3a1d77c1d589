//! The controller: what is installed on a device, and the change from one program to the next, whose steps
//! and order come from [`plan()`]. `steerd` owns it, and calls it when the policy changes and when counters
//! are scraped.
//!
//! Invariant: after any failure the device is as before, or the error or warning names what is left over and
//! the next change removes it first.

use std::collections::HashSet;
use std::sync::Arc;

use program::{
    ChangeStage, ClassId, Flow, FlowAction, FlowKind, FlowSpec, Program, QueueId, RuleId, SpecChain, WorkerId,
};
use verbs::{EthernetMatch, HashConfig, HashFields, WorkQueue};

use crate::counters::{Counted, DropTotals, RuleCounters};
use crate::installer::{FlowRequest, Installer, VerbsInstaller};
use crate::plan::{
    FlowChanges, PlacedProgram, Plan, PlanStep, PlanSummary, PlannedChange, by_precedence, plan_digested,
    rule_name,
};
use crate::progress::{ChangeMeter, ChangeProgress};
use crate::tables::distinct_tables;
use crate::{ControlError, Device, DeviceRefusal, DigestedProgram, Limits};

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
    /// The program, with other numbers for classes that the program before used for something else: a number
    /// that both have means the same in both.
    pub program: Arc<Program>,
    /// The flows that were touched.
    pub changes: FlowChanges,
    /// Why flows of the program before are still on the device, if some are: they decide their packets
    /// as before until the next change removes them.
    pub warning: Option<ControlError>,
}

/// Hands a stage of a change to every worker, and returns when all have acknowledged. An error undoes the
/// change. The workers keep the program that is not in force until their caller has them release it.
pub type Publish<'p> = dyn FnMut(&ChangeStage) -> Result<(), ControlError> + 'p;

/// The key of the queue pair of flows that drop; nothing is hashed with it.
const DROP_QUEUE_KEY: [u8; 40] = [0x6d; 40];

/// Puts programs on one device. It must be dropped before the workers: the table of `drop_queue` refers to a
/// worker's queue even when no program is installed.
pub struct Controller<I: Installer = VerbsInstaller> {
    /// Declared, and so dropped, before everything that its flows refer to.
    installed: Option<Placed<I>>,
    /// Flows that a failed rollback has left on the device.
    leftover: Option<Placed<I>>,
    /// Flows of the installed program that a failed rollback has not installed again, by index and port;
    /// those left over decide their packets. The last one is to be installed first.
    missing: Vec<(usize, u8)>,
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
    limits: Arc<Limits>,
    ports: Vec<u8>,
    workers: usize,
    generation: Generation,
    meter: ChangeMeter,
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
            missing: Vec::new(),
            holder: None,
            drop_queue,
            _drop_table: table,
            counters: Default::default(),
            counts: true,
            early_readings: 0,
            installer,
            limits: Arc::new(limits),
            ports,
            workers,
            generation: Generation::default(),
            meter: ChangeMeter::new(),
            warnings: Vec::new(),
        })
    }

    /// Replaces what is installed by `program`, make before break; see [`plan()`](crate::plan()) for the
    /// order and why no packet meets half a policy.
    ///
    /// # Errors
    /// What was refused, for which rule, and what to do. The program before is still installed; only
    /// [`ControlError::RollbackFailed`] leaves new flows on the device, which the next call removes first.
    pub fn install(
        &mut self,
        program: Arc<Program>,
        publish: &mut Publish<'_>,
    ) -> Result<Installed, ControlError> {
        self.install_digested(DigestedProgram::new(program, &self.limits)?, publish)
    }

    /// Like [`Controller::install`], with digests that were made before.
    ///
    /// # Errors
    /// The errors of [`Controller::install`].
    pub fn install_digested(
        &mut self,
        program: DigestedProgram,
        publish: &mut Publish<'_>,
    ) -> Result<Installed, ControlError> {
        self.check(&program)?;
        self.remove_leftover()?;
        let planned = self.plan(program)?;
        let FlowChanges { installed, removed, .. } = planned.changes();
        self.meter.begin((installed + removed) * self.ports.len());
        let outcome = self.carry_out(planned, publish);
        self.meter.end();
        outcome
    }

    fn carry_out(
        &mut self,
        planned: PlannedChange,
        publish: &mut Publish<'_>,
    ) -> Result<Installed, ControlError> {
        let changes = planned.changes();
        let PlannedChange { compaction, program, plan } = planned;
        if let (Some(compaction), Some(placed)) = (compaction, &self.installed) {
            let same = placed.program.clone();
            // Workers have its classes, which stay as they are.
            if let Some(first) = self.apply(same, compaction.plan(), &mut |_stage| Ok(()))? {
                self.remove_leftover().map_err(|second| ControlError::RollbackFailed {
                    first: Box::new(first),
                    second: Box::new(second),
                    left: self.leftover.as_ref().map_or(0, Placed::count),
                    missing: 0,
                })?;
            }
        }
        let warning = self.apply(program.clone(), plan.plan(), publish)?;
        self.generation.0 += 1;
        let program = Arc::clone(program.program());
        Ok(Installed { generation: self.generation, program, changes, warning })
    }

    /// What [`Controller::install`] would cost, without doing it.
    ///
    /// # Errors
    /// The program cannot be installed.
    pub fn preview(&self, program: Arc<Program>) -> Result<PlanSummary, ControlError> {
        let program = DigestedProgram::new(program, &self.limits)?;
        self.check(&program)?;
        let change = self.plan(program)?;
        let placement = self.installed.as_ref().map(Placed::placement);
        Ok(PlanSummary::of(&change, placement.as_ref(), self.ports.len()))
    }

    fn plan(&self, program: DigestedProgram) -> Result<PlannedChange, ControlError> {
        let placement = self.installed.as_ref().map(Placed::placement);
        let planned = plan_digested(placement, program, &self.limits);
        planned.map_err(|fault| ControlError::of_plan(fault, &self.limits.device))
    }

    /// Carries out a plan from what is installed. Returns why flows of the program before are left, if some
    /// are.
    fn apply(
        &mut self,
        program: DigestedProgram,
        plan: &Plan,
        publish: &mut Publish<'_>,
    ) -> Result<Option<ControlError>, ControlError> {
        let mut new = Placed::new(program, plan, Arc::clone(&self.limits));
        if let Some(old) = &self.installed {
            new.share_queues(old, plan);
        }
        let mut change = Change { new, old: self.installed.take(), removed: Vec::new(), is_enforced: false };
        for step in plan.steps() {
            if let Err(error) = self.perform(step, plan, &mut change, publish) {
                return self.roll_back(change, plan, error, publish).map(Some);
            }
        }
        let Change { mut new, old, .. } = change;
        if let Some(mut old) = old {
            // All others were removed. Without the list of them, no flow is looked for when the old one is
            // dropped.
            new.adopt(&mut std::mem::take(&mut old.flows), plan);
        }
        (self.installed, self.leftover) = (Some(new), None);
        Ok(None)
    }

    /// Removes every flow, lowest precedence first; workers then receive nothing new.
    ///
    /// # Errors
    /// The first flow that the device did not remove.
    pub fn clear(&mut self) -> Result<(), ControlError> {
        self.meter.begin(self.installed.iter().chain(&self.leftover).map(Placed::count).sum());
        let outcome = self.clear_all();
        self.meter.end();
        outcome
    }

    fn clear_all(&mut self) -> Result<(), ControlError> {
        self.remove_holder();
        // Without a flow that is missing, its packets meet those that are left until they are removed.
        let _ = self.install_missing();
        self.remove_left()?;
        if let Some(mut old) = self.installed.take()
            && let Err(error) = self.remove_all(&mut old)
        {
            self.installed = Some(old);
            return Err(error);
        }
        self.missing.clear();
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
    /// [`program::RETIRED_RULES`]; returns their totals. Totals by name stay in memory until this is called.
    pub fn retire_rules(&mut self, keep: &HashSet<&str>) -> Vec<DropTotals> {
        let books = self.counters.iter_mut().zip(Counted::ALL);
        books.flat_map(|(book, kind)| book.retire(keep, kind)).collect()
    }

    /// Whether flows of an earlier program are still on the device, because it did not remove them.
    #[must_use]
    pub fn has_leftover(&self) -> bool {
        self.leftover.is_some()
    }

    /// The program that is installed.
    #[must_use]
    pub fn installed(&self) -> Option<&Arc<Program>> {
        self.installed.as_ref().map(|placed| placed.program.program())
    }

    /// How many programs were installed.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// How far the change of the device is that goes on, for other threads.
    #[must_use]
    pub fn progress(&self) -> Arc<ChangeProgress> {
        self.meter.shown()
    }

    /// The limits of the device, by which digests are made.
    #[must_use]
    pub fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    /// The functions that the device does not have, as text.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    /// Checks a program before anything is done on the device.
    fn check(&self, program: &DigestedProgram) -> Result<(), ControlError> {
        let last = program.digests().iter().map(|flow| flow.priority).max();
        let needed = last.map_or(0, |last| u32::from(last) + 1);
        let offered = self.limits.priorities_per_program();
        if needed > offered {
            let device = self.limits.device.clone();
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
        Ok(())
    }

    fn warn(&mut self, warning: String) {
        tracing::warn!(device = self.limits.device, "{warning}");
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The request to the device for a flow of a placed program.
    fn request<'r>(&self, placed: &'r Placed<I>, flow: &'r Flow, priority: u16, port: u8) -> FlowRequest<'r> {
        let tag = placed.program.tagged_class(flow).and_then(ClassId::tag);
        FlowRequest { port, priority, flow, tag }
    }

    /// Installs one flow of a placed program on one port.
    fn create_flow(&mut self, placed: &Placed<I>, index: usize, port: u8) -> Result<I::Flow, ControlError> {
        let flow = &placed.program.flows[index];
        let request = self.request(placed, flow, placed.levels[index], port);
        let rule = rule_name(&placed.program, flow.rule);
        let line = placed.program.rules[flow.rule.index()].line;
        let kind = Counted::of(flow);
        if let Some(kind) = kind {
            self.open_counter(kind, rule, line)?;
        }
        let (queue, counter) = match flow.action {
            FlowAction::Steer { queue, .. } => {
                let there = placed.queues.get(queue.index()).and_then(Option::as_ref);
                let there = there.ok_or_else(|| inconsistent(format!("{queue} is not on the device")))?;
                (&*there.queue, None)
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
        if made.is_ok() {
            self.meter.count();
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
        index: usize,
        removed: PlacedFlow<I::Flow>,
    ) -> Result<(), (PlacedFlow<I::Flow>, DeviceRefusal)> {
        let PlacedFlow { port, flow } = removed;
        let counted = Counted::of(&placed.program.flows[index]);
        let holder = counted.and_then(|kind| self.hold_counter(placed, index, port, kind));
        let destroyed = self.installer.destroy_flow(flow);
        if destroyed.is_ok() {
            self.meter.count();
        }
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
        destroyed.map_err(|(flow, refusal)| (PlacedFlow { port, flow }, refusal))
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
            let request = self.request(placed, &unmatched, placed.levels[index], port);
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
        self.install_missing()?;
        self.remove_left()
    }

    fn remove_left(&mut self) -> Result<(), ControlError> {
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
            PlanStep::Begin => publish(&ChangeStage::Begin(Arc::clone(change.new.program.program()))),
            PlanStep::Enforce => {
                change.is_enforced = true;
                publish(&ChangeStage::Enforce)
            }
            PlanStep::CreateTable { table } => self.create_table(plan, table, &mut change.new),
            PlanStep::CreateQueue { queue } => self.create_queue(queue, change),
            PlanStep::CreateCounter { rule, kind } => self.create_counter(rule, kind, &change.new.program),
            PlanStep::InstallFlow { flow } => self.install_flow(flow, &mut change.new),
            PlanStep::RemoveFlow { flow } => self.remove_flow(flow, change),
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
        new.tables.push((workers.clone(), Arc::new(made)));
        Ok(())
    }

    /// Creates a queue pair over a new table, or one of the old program.
    fn create_queue(&mut self, queue: QueueId, change: &mut Change<I>) -> Result<(), ControlError> {
        let Change { new, old, .. } = change;
        let spec = &new.program.queues[queue.index()];
        let group = &new.program.groups[spec.group.index()];
        let fields = HashFields::from_bits_truncate(u64::from(spec.fields.bits()));
        let table = new.table(&spec.table).or_else(|| old.as_ref()?.table(&spec.table));
        let table = table.ok_or_else(|| inconsistent(format!("{queue} has no table")))?;
        let made = self.installer.create_queue(&table, &HashConfig { key: group.key.0, fields });
        let made = made.map_err(|source| ControlError::Queue {
            group: group.name.clone(),
            variant: spec.variant.to_string(),
            source,
        })?;
        new.queues[queue.index()] = Some(PlacedQueue { queue: Arc::new(made), table });
        Ok(())
    }

    fn create_counter(&mut self, rule: RuleId, kind: Counted, program: &Program) -> Result<(), ControlError> {
        self.open_counter(kind, rule_name(program, rule), program.rules[rule.index()].line)
    }

    fn install_flow(&mut self, index: usize, new: &mut Placed<I>) -> Result<(), ControlError> {
        for port in self.ports.clone() {
            let flow = self.create_flow(new, index, port)?;
            new.flows[index].push(PlacedFlow { port, flow });
        }
        Ok(())
    }

    fn remove_flow(&mut self, index: usize, change: &mut Change<I>) -> Result<(), ControlError> {
        let Some(old) = &mut change.old else { return Ok(()) };
        while let Some(port) = self.remove_one(old, index)? {
            change.removed.push((index, port));
        }
        Ok(())
    }

    /// Removes a flow from one of its ports, which it returns, if it is on any; a flow that the device does
    /// not remove stays.
    fn remove_one(&mut self, placed: &mut Placed<I>, index: usize) -> Result<Option<u8>, ControlError> {
        let Some(removed) = placed.flows[index].pop() else { return Ok(None) };
        let port = removed.port;
        self.destroy_flow(placed, index, removed).map(|()| Some(port)).map_err(|(removed, source)| {
            placed.flows[index].push(removed);
            let flow = &placed.program.flows[index];
            let request = self.request(placed, flow, placed.levels[index], port);
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

    /// Lets the classes of the old program count again.
    fn go_back(&mut self, publish: &mut Publish<'_>) {
        if let Err(error) = publish(&ChangeStage::GoBack) {
            self.warn(format!("workers may decide packets by the classes of the refused program: {error}"));
        }
    }

    /// Installs the flows that a failed rollback has not, while those left over still decide their packets.
    fn install_missing(&mut self) -> Result<(), ControlError> {
        let Some(mut placed) = self.installed.take() else { return Ok(()) };
        let mut outcome = Ok(());
        while let Some((index, port)) = self.missing.pop() {
            match self.create_flow(&placed, index, port) {
                Ok(flow) => placed.flows[index].push(PlacedFlow { port, flow }),
                Err(error) => {
                    self.missing.push((index, port));
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.installed = Some(placed);
        outcome
    }

    /// Removes all flows, lowest precedence first, up to the first that the device does not remove.
    fn remove_all(&mut self, placed: &mut Placed<I>) -> Result<(), ControlError> {
        for index in placed.order().into_iter().rev() {
            while self.remove_one(placed, index)?.is_some() {}
        }
        placed.queues.clear();
        placed.tables.clear();
        Ok(())
    }

    /// Rolls back: removed flows of the old program are installed again, in reverse; then the new flows are
    /// removed, lowest first; then the queues and tables that they used.
    ///
    /// This is the change run backwards, so the argument of [`plan()`] applies to each step: a packet is
    /// decided by one of the two programs, never by a mixture. Workers know the classes of both throughout;
    /// those of the old one count again once all of its flows are installed. If an old flow cannot be
    /// installed again, the device stays as it is at that point: the new program is in force if it is
    /// complete, else the old one, of which flows are then missing whose packets the new ones decide.
    fn roll_back(
        &mut self,
        change: Change<I>,
        plan: &Plan,
        first: ControlError,
        publish: &mut Publish<'_>,
    ) -> Result<ControlError, ControlError> {
        let Change { mut new, mut old, mut removed, is_enforced } = change;
        let ports = self.ports.len();
        self.meter.extend(removed.len() + new.count());
        while let Some((index, port)) = removed.pop() {
            let Some(placed) = &mut old else { break };
            match self.create_flow(placed, index, port) {
                Ok(flow) => placed.flows[index].push(PlacedFlow { port, flow }),
                Err(second) if is_enforced && new.is_complete(plan, ports) => {
                    new.adopt(&mut placed.flows, plan);
                    let (first, second, left) = (Box::new(first), Box::new(second), placed.count());
                    (self.installed, self.leftover) = (Some(new), old);
                    return Ok(ControlError::OldFlowsLeft { first, second, left });
                }
                Err(second) => {
                    removed.push((index, port));
                    if is_enforced {
                        self.go_back(publish);
                    }
                    let (first, second, left) = (Box::new(first), Box::new(second), new.count());
                    let missing = removed.len();
                    (self.installed, self.leftover, self.missing) = (old, Some(new), removed);
                    return Err(ControlError::RollbackFailed { first, second, left, missing });
                }
            }
        }
        if is_enforced {
            self.go_back(publish);
        }
        if let Err(second) = self.remove_all(&mut new) {
            let left = new.count();
            (self.installed, self.leftover) = (old, Some(new));
            return Err(ControlError::RollbackFailed {
                first: Box::new(first),
                second: Box::new(second),
                left,
                missing: 0,
            });
        }
        self.close_unused_counters();
        (self.installed, self.leftover) = (old, None);
        Err(first)
    }
}

/// A program on the device, whole or on its way in or out.
struct Placed<I: Installer> {
    program: DigestedProgram,
    /// The device's priorities of the flows.
    levels: Vec<u16>,
    limits: Arc<Limits>,
    /// By flow, where it is on the device: a port for each.
    flows: Vec<Vec<PlacedFlow<I::Flow>>>,
    /// By queue pair.
    queues: Vec<Option<PlacedQueue<I>>>,
    /// The tables that were created for it.
    tables: Vec<(Vec<WorkerId>, Arc<I::Table>)>,
}

/// A flow on a port.
struct PlacedFlow<F> {
    port: u8,
    flow: F,
}

/// A queue pair with its table, which programs share.
struct PlacedQueue<I: Installer> {
    /// Declared, and so dropped, before its table.
    queue: Arc<I::Queue>,
    table: Arc<I::Table>,
}

impl<I: Installer> Clone for PlacedQueue<I> {
    fn clone(&self) -> Self {
        Self { queue: Arc::clone(&self.queue), table: Arc::clone(&self.table) }
    }
}

/// A flow that no packet matches. It keeps a rule's counter readable while the rule's last flow is removed.
struct CounterHolder<F> {
    flow: F,
    rule: String,
    port: u8,
}

impl<I: Installer> Placed<I> {
    /// Nothing of the program is on the device yet.
    fn new(program: DigestedProgram, plan: &Plan, limits: Arc<Limits>) -> Self {
        Self {
            levels: plan.levels().to_vec(),
            limits,
            flows: program.flows.iter().map(|_| Vec::new()).collect(),
            queues: vec![None; program.queues.len()],
            tables: Vec::new(),
            program,
        }
    }

    /// The flows from the highest precedence to the lowest.
    fn order(&self) -> Vec<usize> {
        by_precedence(self.program.digests(), &self.levels, &self.limits)
    }

    fn placement(&self) -> PlacedProgram<'_> {
        PlacedProgram { program: &self.program, levels: &self.levels }
    }

    /// A table of its queue pairs over these workers.
    fn table(&self, workers: &[WorkerId]) -> Option<Arc<I::Table>> {
        let created = self.tables.iter().find(|(known, _)| known == workers).map(|(_, table)| table);
        let queues = self.program.queues.iter().zip(&self.queues);
        let used =
            || queues.filter(|(queue, _)| queue.table == workers).find_map(|(_, placed)| placed.as_ref());
        created.or_else(|| used().map(|placed| &placed.table)).map(Arc::clone)
    }

    /// Uses the queue pairs of the old program that are its own too.
    fn share_queues(&mut self, old: &Self, plan: &Plan) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let kept = plan.kept_queue(QueueId::of(index));
            *queue = kept.and_then(|kept| old.queues.get(kept.index())?.clone());
        }
    }

    /// Takes over the flows of the old program that stay.
    fn adopt(&mut self, old: &mut [Vec<PlacedFlow<I::Flow>>], plan: &Plan) {
        for (flows, kept) in self.flows.iter_mut().zip(plan.kept()) {
            if let Some(kept) = kept {
                *flows = std::mem::take(&mut old[*kept]);
            }
        }
    }

    /// Whether all flows are on so many ports of the device, those included that the old program still has.
    fn is_complete(&self, plan: &Plan, ports: usize) -> bool {
        self.flows.iter().zip(plan.kept()).all(|(flows, kept)| kept.is_some() || flows.len() == ports)
    }

    /// How many flows are on the device, on all ports together.
    fn count(&self) -> usize {
        self.flows.iter().map(Vec::len).sum()
    }
}

impl<I: Installer> Drop for Placed<I> {
    /// Lowest precedence first, also if they were not removed one by one.
    fn drop(&mut self) {
        if self.count() > 0 {
            for index in self.order().into_iter().rev() {
                self.flows[index].clear();
            }
        }
    }
}

/// A change in progress. The flows that stay are with the old program until it is over.
struct Change<I: Installer> {
    new: Placed<I>,
    old: Option<Placed<I>>,
    /// Old flows that were removed, in the order of their removal: place in the program, and port.
    removed: Vec<(usize, u8)>,
    /// Some worker may have the new classes in force.
    is_enforced: bool,
}

/// A flow like `flow` that no packet matches: no frame has a group address as its source (IEEE 802.3, clause
/// 3.2.3), nor the reserved EtherType 0xffff (RFC 1701).
fn unmatched(flow: &Flow) -> Flow {
    let value = EthernetMatch { src_mac: [0xff; 6], ether_type: 0xffff, ..EthernetMatch::default() };
    let mask = EthernetMatch { dst_mac: [0xff; 6], ..value };
    let kind = if flow.kind == FlowKind::Egress { FlowKind::Egress } else { FlowKind::Normal };
    Flow { kind, specs: SpecChain::outer(vec![FlowSpec::Ethernet { value, mask }]), ..flow.clone() }
}

fn cannot_count() -> String {
    "the device cannot count dropped packets: rules that drop in hardware have no packet counts".to_owned()
}

fn inconsistent(what: String) -> ControlError {
    ControlError::Inconsistent { what }
}

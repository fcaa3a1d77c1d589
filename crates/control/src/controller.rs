//! The controller: what is installed on a device, and the way from one program to the next. Owned by
//! `steerd`, called when the policy changes and when counters are scraped. It keeps invariant 2 of the
//! design: after any failure the device is as before, or says what is left over.

use std::collections::HashSet;
use std::sync::Arc;

use program::{Band, ClassTag, Flow, FlowAction, FlowKind, Program, WorkerId};
use verbs::{HashConfig, HashFields, WorkQueue};

use crate::counters::{Counted, CounterBook, DropTotals, Reading};
use crate::installer::{FlowRequest, Installer, VerbsInstaller};
use crate::multicast;
use crate::plan::{distinct_tables, plan, rule_name};
use crate::transaction::{Change, Placed};
use crate::{Device, Error, Limits, Refusal};

/// Counts the programs that a controller has installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

impl std::fmt::Display for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "generation {}", self.0)
    }
}

/// A program that has come into force.
#[derive(Debug)]
pub struct Installed {
    /// Its number.
    pub generation: Generation,
    /// Why flows of the program before are still on the device, if some are: they decide their packets
    /// as before until the next change removes them.
    pub warning: Option<Error>,
}

/// Hands a program to every worker for a band, and returns when all have acknowledged. An error undoes
/// the change. What is published stays with the workers until the next program for the same band.
pub type Publish<'p> = dyn FnMut(Band, Arc<Program>) -> Result<(), Error> + 'p;

/// The key of the queue pair that flows which drop hang on; nothing is hashed with it.
const ANCHOR_KEY: [u8; 40] = [0x6d; 40];

/// Puts programs on one device. To be dropped before the workers: one of its tables, the anchor's, refers
/// to a worker's queue even when no program is installed.
pub struct Controller<I: Installer = VerbsInstaller> {
    /// Before everything that its flows refer to.
    installed: Option<Placed<I>>,
    /// Flows that a failed way back has left on the device.
    leftover: Option<Placed<I>>,
    /// Every flow needs a queue pair, even one that drops (facts: uverbs).
    anchor: I::Queue,
    _anchor_table: I::Table,
    /// By [`Counted`].
    counters: [CounterBook<I::Counter>; Counted::ALL.len()],
    counts: bool,
    installer: I,
    limits: Limits,
    ports: Vec<u8>,
    workers: usize,
    generation: Generation,
    /// What the device does without.
    warnings: Vec<String>,
    /// What it makes of the program in force.
    remark: Option<String>,
}

impl Controller<VerbsInstaller> {
    /// For a device's ports and the workers' queues, in the order of the workers' ids.
    ///
    /// # Errors
    /// A port that is down or missing, or no permission to make queue pairs.
    pub fn new(device: &Device, ports: Vec<u8>, queues: Vec<Arc<WorkQueue>>) -> Result<Self, Error> {
        ports.iter().try_for_each(|&port| device.check_port(port))?;
        let workers = queues.len();
        let installer = VerbsInstaller::new(device, queues)?;
        Self::over(installer, device.limits(), ports, workers)
    }
}

impl<I: Installer> Controller<I> {
    /// Over anything that can install.
    ///
    /// # Errors
    /// No workers or ports, or the device refuses the controller's own queue pair.
    pub fn over(mut installer: I, limits: Limits, ports: Vec<u8>, workers: usize) -> Result<Self, Error> {
        if workers == 0 || ports.is_empty() {
            return Err(Error::NothingToSteer { workers, ports: ports.len() });
        }
        let device = &limits.device;
        let refused = |what| move |source| Error::Setup { device: device.clone(), what, source };
        let table =
            installer.create_table(&[WorkerId(0)]).map_err(refused("an indirection table of one entry"))?;
        let hash = HashConfig { key: ANCHOR_KEY, fields: HashFields::empty() };
        let anchor = installer.create_queue(&table, &hash).map_err(refused("a raw packet queue pair"))?;
        Ok(Self {
            installed: None,
            leftover: None,
            anchor,
            _anchor_table: table,
            counters: Default::default(),
            counts: true,
            installer,
            limits,
            ports,
            workers,
            generation: Generation::default(),
            warnings: Vec::new(),
            remark: None,
        })
    }

    /// Replaces what is installed by `program`, make before break; see [`plan()`] for the order and why
    /// no packet meets half a policy.
    ///
    /// # Errors
    /// What was refused, for which rule, and what to do. What was installed before still is, and is in
    /// force; only [`Error::WayBack`] leaves something over, which the next call removes first.
    pub fn install(&mut self, program: Arc<Program>, publish: &mut Publish<'_>) -> Result<Installed, Error> {
        self.check(&program)?;
        self.remove_leftover()?;
        let old = self.installed.take();
        let band = old.as_ref().map_or(Band::A, |old| old.band.other());
        let (before, after) = (old.as_ref().map(|old| Arc::clone(&old.program)), Arc::clone(&program));
        let steps = plan(before.as_deref(), &after);
        let mut change = Change::new(program, band, old);
        for step in steps.steps() {
            if let Err(error) = self.perform(step, &steps, &mut change, publish) {
                return self.take_back(change, error, publish);
            }
        }
        Ok(self.in_force(change.new, None, None))
    }

    /// The new program has taken the old one's place, but for what is left over.
    pub(crate) fn in_force(
        &mut self,
        new: Placed<I>,
        leftover: Option<Placed<I>>,
        warning: Option<Error>,
    ) -> Installed {
        self.remark =
            self.limits.multicast_ignores_priority.then(|| multicast::remark(&new.program)).flatten();
        if let Some(remark) = &self.remark {
            tracing::warn!(device = self.limits.device, "{remark}");
        }
        self.settle(Some(new), leftover);
        self.generation.0 += 1;
        Installed { generation: self.generation, warning }
    }

    /// Removes every flow, lowest precedence first; workers then receive nothing new.
    ///
    /// # Errors
    /// The first flow that the device did not remove.
    pub fn clear(&mut self) -> Result<(), Error> {
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

    /// Totals of the rules that drop in hardware, by name, never going backwards.
    pub fn drop_counters(&mut self) -> Vec<DropTotals> {
        let mut reading = Reading::default();
        while self.read_counters(&mut reading, usize::MAX) {}
        self.drop_totals()
    }

    /// Reads at most `max` counters from the device, from where `reading` has got to; `false`: those were the
    /// last. So a caller that shares the controller need not keep it from others while thousands are read.
    pub fn read_counters(&mut self, reading: &mut Reading, max: usize) -> bool {
        let Some(book) = self.counters.get_mut(reading.kind) else { return false };
        if !book.read_some(&mut self.installer, reading, max) {
            reading.kind += 1;
        }
        reading.kind < self.counters.len()
    }

    /// The totals as last read; asks no device.
    #[must_use]
    pub fn drop_totals(&self) -> Vec<DropTotals> {
        let books = self.counters.iter().zip(Counted::ALL);
        books.flat_map(|(book, kind)| book.totals(kind)).collect()
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

    /// What the device does without, and otherwise than the program in force means, in words.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().chain(&self.remark).map(String::as_str)
    }

    /// Nothing of a program that fails here has touched the device.
    fn check(&self, program: &Program) -> Result<(), Error> {
        let needed = program.flows.iter().map(|flow| u32::from(flow.priority) + 1).max().unwrap_or(0);
        if needed > self.limits.priorities {
            let (device, offered) = (self.limits.device.clone(), self.limits.priorities);
            return Err(Error::Priorities { device, needed, offered });
        }
        let needed = distinct_tables(program).0.len();
        if let Some(offered) = self.limits.tables.filter(|offered| needed > *offered) {
            return Err(Error::Tables { device: self.limits.device.clone(), needed, offered });
        }
        for queue in &program.queues {
            let group = program.groups.get(queue.group.index());
            let group =
                group.ok_or_else(|| inconsistent(format!("a queue of missing group {}", queue.group)))?;
            if let Some(&worker) = queue.table.iter().find(|worker| worker.index() >= self.workers) {
                return Err(Error::UnknownWorker {
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

    /// The installer, for the steps of a change.
    pub(crate) fn installer_mut(&mut self) -> &mut I {
        &mut self.installer
    }

    pub(crate) fn ports(&self) -> Vec<u8> {
        self.ports.clone()
    }

    pub(crate) fn settle(&mut self, installed: Option<Placed<I>>, leftover: Option<Placed<I>>) {
        self.installed = installed;
        self.leftover = leftover;
    }

    pub(crate) fn warn(&mut self, warning: String) {
        tracing::warn!(device = self.limits.device, "{warning}");
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The first priority of a band.
    fn base(&self, band: Band) -> u32 {
        self.limits.priorities * u32::from(band == Band::B)
    }

    /// What the device is asked for a flow of `program` in `band`.
    pub(crate) fn request<'r>(
        &self,
        program: &'r Program,
        flow: &'r Flow,
        band: Band,
        port: u8,
    ) -> FlowRequest<'r> {
        // A sniffer has no priority.
        let base = if flow.kind == FlowKind::Sniffer { 0 } else { self.base(band) };
        // Checked in `check`; the device refuses what saturates.
        let priority = u16::try_from(base + u32::from(flow.priority)).unwrap_or(u16::MAX);
        // A sniffer's tag is never read, and a device without tags refuses them.
        let is_tagged = |class| program.untagged != Some(class) && flow.kind != FlowKind::Sniffer;
        let tag = match flow.action {
            FlowAction::Steer { class, .. } if is_tagged(class) => ClassTag { band, class }.encode(),
            FlowAction::Steer { .. } | FlowAction::Drop | FlowAction::Pass => None,
        };
        FlowRequest { port, priority, flow, tag }
    }

    /// Installs one flow of a placed program on one port.
    pub(crate) fn create_flow(
        &mut self,
        placed: &Placed<I>,
        index: usize,
        port: u8,
    ) -> Result<I::Flow, Error> {
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
                (placed.queues.get(queue.index()).unwrap_or(&self.anchor), None)
            }
            FlowAction::Drop | FlowAction::Pass => {
                (&self.anchor, kind.and_then(|kind| self.counters[kind as usize].counter(rule)))
            }
        };
        let counted = counter.is_some();
        let mut made = self.installer.create_flow(&request, queue, counter);
        let unsupported = made.as_ref().is_err_and(Refusal::is_unsupported);
        if counted && unsupported {
            made = self.installer.create_flow(&request, queue, None);
            if let (Some(kind), Ok(_)) = (kind, &made) {
                self.counters[kind as usize].uncount(&mut self.installer, rule);
                self.counts = false;
                self.warn(cannot_count());
            }
        }
        if let (Some(kind), Ok(_)) = (kind, &made) {
            self.counters[kind as usize].flow_came(rule);
        }
        made.map_err(|source| Error::InstallFlow {
            rule: rule.to_owned(),
            line,
            port,
            priority: request.priority,
            specs: request.chain().to_string(),
            source,
        })
    }

    /// Removes one flow of a program; a device that will not gives it back.
    pub(crate) fn destroy_flow(
        &mut self,
        program: &Program,
        index: usize,
        flow: I::Flow,
    ) -> Result<(), (I::Flow, Refusal)> {
        let placed = &program.flows[index];
        let counted = Counted::of(placed).map(|kind| (kind as usize, rule_name(program, placed.rule)));
        if let Some((kind, rule)) = counted {
            self.counters[kind].flow_goes(&mut self.installer, rule);
        }
        self.installer.destroy_flow(flow)?;
        if let Some((kind, rule)) = counted {
            self.counters[kind].flow_went(&mut self.installer, rule);
        }
        Ok(())
    }

    /// Makes the counter of a rule that drops, unless it has one.
    pub(crate) fn open_counter(&mut self, kind: Counted, rule: &str, line: u32) -> Result<(), Error> {
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
            Some(Err(source)) => return Err(Error::Counter { rule: rule.to_owned(), line, source }),
        };
        self.counters[kind as usize].open(rule, counter);
        Ok(())
    }

    /// Ends the counters of rules whose flows never came.
    pub(crate) fn close_unused_counters(&mut self) {
        self.counters.iter_mut().for_each(|book| book.close_unused(&mut self.installer));
    }

    fn remove_leftover(&mut self) -> Result<(), Error> {
        let Some(mut leftover) = self.leftover.take() else { return Ok(()) };
        if let Err(error) = self.remove_all(&mut leftover) {
            self.leftover = Some(leftover);
            return Err(error);
        }
        Ok(())
    }
}

fn cannot_count() -> String {
    "the device cannot count dropped packets: rules that drop in hardware have no packet counts".to_owned()
}

fn inconsistent(what: String) -> Error {
    Error::Inconsistent { what }
}

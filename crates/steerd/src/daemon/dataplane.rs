//! The thread that changes the dataplane: it alone puts programs on the device, hands them to the workers and
//! opens and closes sinks. It takes [`Commands`], one at a time, and publishes the outcome on the [`Board`].
//!
//! Nothing here is on the packet path. Readers have the counters in shared memory, which an [`Observer`]
//! reads on any thread. Only the counters of drop rules are the device's, and read here: a reader waits for
//! them a short time, and else shows what was read last.
//!
//! [`Board`]: super::board::Board

mod commands;
mod start;
mod stop;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use control::{
    ChangeStage, ControlError, Controller, Counted, DigestedProgram, DropTotals, FlowChanges, Installed,
};
use crossbeam::channel;
use program::{Program, WorkerId};
use softnic::PortStats;
use wire::BURST_FRAMES;
use worker::{Disposition, Publication, RuleSnapshot, SharedStage, SinkMap, Traffic};

use crate::daemon::Error;
use crate::daemon::board::{PolicyInForce, Published, Warnings};
use crate::daemon::health::Part;
use crate::daemon::nic_drops::{NicDrops, PublishedDrops};
use crate::daemon::observer::{self, Observer, WorkerEntry, unix_seconds};
use crate::daemon::sinks::Sinks;
use crate::policy_file::{Compiled, is_quoted};
pub(crate) use commands::{Cause, Commands, DropReader};
use commands::{Command, Detach, Taken};
pub(crate) use start::{Builder, Steering, worker_config};
pub(crate) use stop::Stopped;

/// How long workers may take to acknowledge a program. They check once per iteration, and are woken for it. A
/// wait that is itself starved, on a machine that is busy with other things, is longer
/// ([`worker::WorkerControl::wait`]).
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the filters of NICs are compared with those that should be there.
const FILTER_COMPARISON: Duration = Duration::from_secs(5);

/// How long after a change workers keep the other program: a device may still deliver packets by flows that
/// were just removed.
pub(in crate::daemon) const LATE_PACKET_GRACE: Duration = Duration::from_secs(1);

pub(crate) struct Dataplane {
    /// Before the flows that drop the same packets.
    nic_drops: NicDrops,
    /// Before the rest, so that flows and queue pairs are destroyed before the objects that they refer to.
    controller: Controller,
    /// Before the device, whose queues they may use.
    sinks: Sinks,
    observer: Arc<Observer>,
    /// The names of the previous policy's rules: their counters are still shown by name.
    before: Vec<String>,
    /// The time from which workers may free the program that is not in force.
    free_at: Option<Instant>,
}

impl Dataplane {
    /// Carries out commands until [`Command::Stop`]. The channels do not end before: the observer has a
    /// sender.
    fn run(mut self, taken: &Taken) -> Self {
        let no_filters = self.nic_drops.is_empty();
        let comparisons = if no_filters { channel::never() } else { channel::tick(FILTER_COMPARISON) };
        loop {
            let timer = self.free_at.map_or_else(channel::never, channel::at);
            channel::select! {
                recv(taken.commands) -> command => {
                    if !command.is_ok_and(|command| self.carry_out(command, &taken.is_reading)) {
                        return self;
                    }
                }
                recv(taken.detached) -> detach => detach.into_iter().for_each(|detach| self.detach(&detach)),
                recv(timer) -> _ => self.free_previous(),
                recv(comparisons) -> _ => {
                    self.nic_drops.restore();
                    self.publish_drops();
                }
            }
        }
    }

    /// Returns `false` for [`Command::Stop`]. An answer that cannot be sent is one that nobody waits for any
    /// more.
    fn carry_out(&mut self, command: Command, is_reading: &AtomicBool) -> bool {
        match command {
            Command::Install { compiled, digested, cause, done } => {
                let _ = done.send(self.install(compiled, digested, cause));
                // The answer does not wait for it.
                self.free_unreachable();
            }
            Command::Preview { program, done } => {
                let _ = done.send(self.controller.preview(program).map_err(Error::Install));
            }
            Command::Attach { sink, packets, opened, done } => {
                let attached = self.sinks.attach(&sink, &packets, opened);
                match attached {
                    Ok(_) => self.publish_sinks(),
                    Err(_) => self.close_sinks(),
                }
                let _ = done.send(attached);
            }
            Command::ReadDrops { done } => {
                is_reading.store(true, Ordering::Relaxed);
                let drops = read_drops(&mut self.controller, &self.observer);
                is_reading.store(false, Ordering::Relaxed);
                let _ = done.send(drops);
            }
            Command::Stop => return false,
        }
        true
    }

    fn detach(&mut self, Detach { slot, done }: &Detach) {
        let hub = self.sinks.detach(*slot);
        self.publish_sinks();
        hub.into_iter().for_each(|hub| {
            let _ = done.send(hub);
        });
    }

    /// Replaces the program in force. All or nothing: after an error the device and the workers are as
    /// before.
    fn install(
        &mut self,
        compiled: Compiled,
        digested: DigestedProgram,
        cause: Cause,
    ) -> Result<FlowChanges, Error> {
        let replaced = self.replace(compiled, digested, cause);
        self.free_at = Some(Instant::now() + LATE_PACKET_GRACE);
        replaced
    }

    fn replace(
        &mut self,
        compiled: Compiled,
        digested: DigestedProgram,
        cause: Cause,
    ) -> Result<FlowChanges, Error> {
        let Compiled {
            program,
            policy,
            inputs,
            protected,
            past,
            set_sizes,
            weights,
            warnings,
            extended_by,
            ..
        } = compiled;
        debug_assert!(Arc::ptr_eq(&program, digested.program()), "the digests are those of the program");
        let opened = &self.observer.opened;
        let generation = self.controller.generation().0 + 1;
        let map = match self.sinks.prepare(opened, &program, generation, &inputs.sha256) {
            Ok(map) => map,
            Err(error) => {
                self.close_sinks();
                return Err(Error::Sink(error));
            }
        };
        // Packets may arrive at new sinks before the change is over.
        self.publish_sinks();
        let installed = self.change_flows(digested, &map)?;
        let program = installed.program;
        if let Some(warning) = &installed.warning {
            tracing::warn!("{warning}");
        }
        let last = self.observer.board.read();
        // The other causes put no other policy in force.
        if installed.generation.0 > 1 && cause == Cause::Policy {
            self.before = last.policy.program.rules.iter().map(|rule| rule.name.to_string()).collect();
        }
        self.retire_rules(&program);
        let policy = PolicyInForce {
            source: last.policy.source.clone(),
            unexported: unexported(&last.policy.program, &program),
            inputs,
            program,
            policy,
            protected,
            past: match cause {
                Cause::Policy | Cause::Priorities => past,
                Cause::Rules | Cause::Workers => last.policy.past,
            },
            set_sizes,
            weights,
            extended_by,
            generation: installed.generation.0,
            loaded_at_seconds: match cause {
                Cause::Policy => unix_seconds(),
                Cause::Priorities | Cause::Rules | Cause::Workers => last.policy.loaded_at_seconds,
            },
            warnings: match cause {
                Cause::Policy | Cause::Priorities | Cause::Workers => {
                    Warnings::of(&warnings, self.controller.warnings().map(ToOwned::to_owned))
                }
                Cause::Rules => last.policy.warnings.clone(),
            },
            deciders: OnceLock::new(),
        };
        let (sinks, nic_drops) = (Arc::new(self.sinks.list()), self.published_drops());
        self.update(|published| {
            published.policy = Arc::new(policy);
            published.nic_drops = nic_drops;
            published.sinks = sinks;
            if matches!(cause, Cause::Policy | Cause::Priorities) {
                published.reloads.last_error = installed.warning.as_ref().map(ToString::to_string);
                published.reloads.last_successful = true;
            }
            published.changes += 1;
        });
        Ok(installed.changes)
    }

    /// Changes the flows on the device, and the filters of NICs around that: those that the new program does
    /// not want go before, and those that it wants come after.
    fn change_flows(&mut self, digested: DigestedProgram, map: &Arc<SinkMap>) -> Result<Installed, Error> {
        let unused = self.stalled_without(digested.program());
        let workers = &self.observer.workers;
        let sinks = &mut self.sinks;
        let mut publish = |stage: &ChangeStage| {
            if let ChangeStage::Begin(program) = stage {
                sinks.begin(program, map);
            }
            publish(workers, &unused, &SharedStage::new(stage, map))
        };
        let begun = self.nic_drops.begin(digested.program().as_ref());
        let install = |controller: &mut Controller| controller.install_digested(digested, &mut publish);
        let installed = begun.and_then(|()| {
            change_device(&mut self.controller, &self.observer, install).map_err(Error::Install)
        });
        match installed {
            Ok(installed) => {
                self.nic_drops.finish();
                self.sinks.installed(map);
                Ok(installed)
            }
            Err(error) => {
                self.nic_drops.abandon(!self.controller.has_leftover());
                self.publish_drops();
                self.sinks.abandon();
                Err(error)
            }
        }
    }

    /// The stalled workers that get no packets by a program. Nobody waits for them: each follows when it goes
    /// on, after it has taken what was in its queue by the programs of before.
    fn stalled_without(&self, program: &Program) -> Vec<WorkerId> {
        let stalled = self.observer.health.stalled();
        let ids = self.observer.workers.iter().map(|entry| entry.control.id());
        let is_used = |worker: &WorkerId| program.queues.iter().any(|queue| queue.table.contains(worker));
        ids.filter(|worker| stalled.contains(&Part::Worker(worker.0)) && !is_used(worker)).collect()
    }

    fn publish_drops(&self) {
        let nic_drops = self.published_drops();
        self.update(|published| published.nic_drops = nic_drops);
    }

    /// The filters of NICs as they are now; a fault of them is one of the daemon's health.
    fn published_drops(&self) -> Arc<[PublishedDrops]> {
        let nic_drops = self.nic_drops.published();
        let faults: Vec<String> = nic_drops.iter().filter_map(PublishedDrops::fault).collect();
        self.observer.health.set_filters_fault((!faults.is_empty()).then(|| faults.join(", ")));
        nic_drops
    }

    /// Sums the counters of rules that neither this program, which is in force, nor the previous policy has
    /// under one name. Otherwise every reload that renames rules would add series that never go away.
    fn retire_rules(&mut self, program: &Program) {
        let now = program.rules.iter().map(|rule| &*rule.name);
        // Rules at run time keep their count where they are listed.
        let before = self.before.iter().map(String::as_str).filter(|name| !is_quoted(name));
        let keep: HashSet<&str> = now.chain(before).collect();
        let mut has_left = false;
        for entry in &self.observer.workers {
            let gone = entry.control.retire_rules(&keep).into_iter().filter(|rule| is_quoted(&rule.name));
            for RuleSnapshot { name, disposition, traffic } in gone {
                if disposition != Disposition::Filtered {
                    self.observer.note_left_device(name, traffic);
                    has_left = true;
                }
            }
        }
        let gone = self.controller.retire_rules(&keep).into_iter().filter(|total| is_quoted(&total.rule));
        for DropTotals { rule, packets, bytes, .. } in gone {
            self.observer.note_left_device(rule, Traffic { packets, bytes });
            has_left = true;
        }
        if has_left {
            // States from before have the same packets by the names of these rules.
            self.update(|published| published.changes += 1);
        }
    }

    /// Frees what workers kept of the program that a reload has replaced or refused, after
    /// [`LATE_PACKET_GRACE`]. Does nothing if flows could not be removed.
    fn free_previous(&mut self) {
        self.free_at = None;
        if self.clear_previous() {
            self.sinks.release_unused();
            self.close_sinks();
        }
        self.retire_released();
    }

    /// Frees what is not needed any more right after a reload; on a soft device that is all that workers kept
    /// of the other program. Its flows are removed between two bursts, so no packet can arrive by them any
    /// more.
    fn free_unreachable(&mut self) {
        if self.observer.soft_nic().is_some() {
            if self.clear_previous() {
                self.sinks.release_previous();
            }
            self.retire_released();
        }
    }

    /// Retires the rules that workers have released with the other program.
    fn retire_released(&mut self) {
        let last = self.observer.board.read();
        self.retire_rules(&last.policy.program);
    }

    /// Closes the sinks that are marked, which are not shown meanwhile.
    fn close_sinks(&mut self) {
        self.publish_sinks();
        self.sinks.close_marked();
        self.publish_sinks();
    }

    /// Has the workers release the program that is not installed, if there is one. `false`: it may still be
    /// in use.
    fn clear_previous(&self) -> bool {
        if self.controller.has_leftover() {
            return false;
        }
        let unused = self.stalled_without(&self.observer.board.read().policy.program);
        let late = late_worker(&self.observer.workers, &unused, |entry| entry.control.release());
        if let Some(entry) = late {
            tracing::warn!("worker {} still keeps the previous program", entry.control.id().0);
        }
        late.is_none()
    }

    fn publish_sinks(&self) {
        let sinks = Arc::new(self.sinks.list());
        self.update(|published| published.sinks = sinks);
    }

    fn update(&self, change: impl FnOnce(&mut Published)) {
        self.observer.board.update(change);
    }
}

fn publish(workers: &[WorkerEntry], unused: &[WorkerId], stage: &SharedStage) -> Result<(), ControlError> {
    let late = late_worker(workers, unused, |entry| entry.control.publish_shared(stage));
    late.map_or(Ok(()), |entry| {
        Err(ControlError::Workers(format!(
            "worker {} did not acknowledge the program within {} s, or longer on a busy machine",
            entry.control.id().0,
            PUBLISH_TIMEOUT.as_secs()
        )))
    })
}

/// Gives each worker a publication; returns a worker, not of `unused`, that has not acknowledged it in time.
fn late_worker<'w>(
    workers: &'w [WorkerEntry],
    unused: &[WorkerId],
    publish: impl Fn(&WorkerEntry) -> Publication,
) -> Option<&'w WorkerEntry> {
    let published: Vec<_> = workers.iter().map(|entry| (entry, publish(entry))).collect();
    let awaited = published.into_iter().filter(|(entry, _)| !unused.contains(&entry.control.id()));
    let late =
        awaited.into_iter().find(|(entry, publication)| !entry.control.wait(*publication, PUBLISH_TIMEOUT));
    late.map(|(entry, _)| entry)
}

/// The names of rules without counters in the new program, or that had none in the old one and are gone.
fn unexported(old: &Program, new: &Program) -> HashSet<String> {
    let uncounted = old.rules.iter().chain(&new.rules).filter(|rule| !rule.count);
    let mut names: HashSet<String> = uncounted.map(|rule| rule.name.to_string()).collect();
    new.rules.iter().filter(|rule| rule.count).for_each(|rule| {
        names.remove(&*rule.name);
    });
    names
}

/// Reads the counters of drop rules, and publishes them.
fn read_drops(controller: &mut Controller, observer: &Observer) -> Arc<[DropTotals]> {
    let drops: Arc<[DropTotals]> = controller.drop_counters().into();
    observer.board.update(|published| published.drops = Some(Arc::clone(&drops)));
    drops
}

/// Changes what is installed on the device. If counters of removed drop rules could not be read after
/// their flows, publishes how many dropped packets may be in no rule's counter.
fn change_device<T>(
    controller: &mut Controller,
    observer: &Observer,
    change: impl FnOnce(&mut Controller) -> T,
) -> T {
    let early_readings = controller.early_readings();
    let outcome = change(controller);
    if controller.early_readings() > early_readings {
        // The ports are read after the rules: what is dropped in between makes the limit larger.
        let totals = controller.drop_counters();
        let limit = uncounted_limit(observer.port_stats().as_deref(), &totals);
        observer.board.update(|published| published.uncounted_drops = limit);
        tracing::warn!(
            "the device did not let the counters of removed drop rules be read after their flows: packets may be \
             missing in `{}`, since the start at most {limit}",
            program::RETIRED_RULES
        );
    }
    outcome
}

/// The most packets that rules of the device have dropped, received or sent, and that are in none of
/// `totals`. Totals never decrease, so it includes the packets that were missing before.
fn uncounted_limit(ports: Option<&[PortStats]>, totals: &[DropTotals]) -> u64 {
    let dropped = observer::dropped(ports) + observer::sent_dropped(ports);
    let drops = totals.iter().filter(|total| total.kind != Counted::SentPassed);
    let counted: u64 = drops.map(|total| total.packets).sum();
    // A port counts a burst after it has dropped it.
    let bursts = ports.map_or(0, <[_]>::len) * BURST_FRAMES;
    dropped.saturating_sub(counted) + bursts as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_uncounted_drops_is_what_no_total_has_and_a_burst_of_each_port() {
        let port = |flow_dropped, tx_flow_dropped| PortStats {
            flow_dropped,
            tx_flow_dropped,
            ..PortStats::default()
        };
        let total =
            |kind, packets| DropTotals { rule: "bad".to_owned(), kind, packets, bytes: 0, counted: true };
        let ports = [port(1000, 0), port(500, 30)];
        let totals =
            [total(Counted::Dropped, 1400), total(Counted::SentDropped, 20), total(Counted::SentPassed, 7)];
        let bursts = 2 * BURST_FRAMES as u64;
        assert_eq!(uncounted_limit(Some(&ports), &totals), 110 + bursts);
        // A rule may have counted a burst that the port has not yet.
        assert_eq!(uncounted_limit(Some(&ports), &[total(Counted::Dropped, 1540)]), bursts);
        assert_eq!(uncounted_limit(None, &totals), 0);
    }
}

//! The commands to the thread of the dataplane. It takes one at a time: a caller hands its command over, or
//! gives up, so none but the end of a capture waits in a queue behind a change of the device that takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use control::{ControlError, DigestedProgram, DropTotals, FlowChanges, Limits, PlanSummary};
use crossbeam::channel::{self, Receiver, SendTimeoutError, Sender};
use program::{Program, SinkSpec};
use worker::Slot;
use worker::sinks::Opened;

use crate::daemon::Error;
use crate::daemon::sinks::{self, AttachedTo, SharedHub};
use crate::policy_file::Compiled;

/// How long a reader of the counters waits for a change of the device: most take less.
const READER_PATIENCE: Duration = Duration::from_millis(200);
/// How long it waits for the device, another reader's turn included.
const READING_PATIENCE: Duration = Duration::from_secs(3);
/// How long the start and the end of a capture wait for a change of the device.
const CAPTURE_PATIENCE: Duration = Duration::from_secs(10);

/// Why a program is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The policy is read: at the start, or again.
    Policy,
    /// The policy in force gets all priorities of the device, after it was installed with half of them.
    Priorities,
    /// Rules at run time move into the device or out of it; the policy stays.
    Rules,
    /// Other workers serve the groups of the policy in force, which stays.
    Workers,
}

pub(super) enum Command {
    Install {
        compiled: Compiled,
        digested: DigestedProgram,
        cause: Cause,
        done: Sender<Result<FlowChanges, Error>>,
    },
    Preview {
        program: Arc<Program>,
        done: Sender<Result<PlanSummary, Error>>,
    },
    Attach {
        sink: SinkSpec,
        packets: AttachedTo,
        opened: Opened,
        done: Sender<Result<Slot, sinks::Error>>,
    },
    ReadDrops {
        done: Sender<Arc<[DropTotals]>>,
    },
    Stop,
}

/// A sink is to be taken away again. Such commands wait in a queue: they must not be lost.
pub(super) struct Detach {
    pub(super) slot: Slot,
    pub(super) done: Sender<SharedHub>,
}

/// The end of the channels at the thread.
pub(super) struct Taken {
    pub(super) commands: Receiver<Command>,
    pub(super) detached: Receiver<Detach>,
    /// The thread sets it while it reads the counters of drop rules.
    pub(super) is_reading: Arc<AtomicBool>,
}

/// Gives commands to the thread of the dataplane.
#[derive(Clone)]
pub(crate) struct Commands {
    commands: Sender<Command>,
    detached: Sender<Detach>,
    limits: Arc<Limits>,
}

/// Reads the counters of drop rules.
#[derive(Clone)]
pub(crate) struct DropReader {
    commands: Sender<Command>,
    is_reading: Arc<AtomicBool>,
}

/// Why a capture does not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    Sink(#[from] sinks::Error),
    #[error("the device or its sinks are being changed (hint: try again later)")]
    Busy,
    #[error("the daemon is ending")]
    Ending,
}

impl Commands {
    /// The commands to a thread that changes a device of these limits.
    pub(super) fn new(limits: Arc<Limits>) -> (Self, DropReader, Taken) {
        let (commands, taken) = channel::bounded(0);
        let (detached, taken_away) = channel::unbounded();
        let is_reading = Arc::<AtomicBool>::default();
        let drops = DropReader { commands: commands.clone(), is_reading: Arc::clone(&is_reading) };
        let taken = Taken { commands: taken, detached: taken_away, is_reading };
        (Self { commands, detached, limits }, drops, taken)
    }

    /// Waits until the program is installed; all or nothing. Returns the flows that have changed.
    ///
    /// # Errors
    /// The errors of the installation. [`Error::Stopping`]: the daemon is ending; [`Error::DataplaneDied`]:
    /// the installation has panicked.
    pub(crate) fn install(&self, compiled: Compiled, cause: Cause) -> Result<FlowChanges, Error> {
        let (done, result) = channel::bounded(1);
        // On the thread of the caller: the one that carries commands out has others to look after.
        compiled.program.make_indexes();
        let digested = DigestedProgram::new(Arc::clone(&compiled.program), &self.limits)
            .map_err(|fault| Error::Install(ControlError::from(fault)))?;
        let command = Command::Install { compiled, digested, cause, done };
        self.commands.send(command).map_err(|_| Error::Stopping)?;
        result.recv().map_err(|_| Error::DataplaneDied)?
    }

    /// What the installation of a program would cost.
    ///
    /// # Errors
    /// As [`Commands::install`].
    pub(crate) fn preview(&self, program: Arc<Program>) -> Result<PlanSummary, Error> {
        let (done, result) = channel::bounded(1);
        self.commands.send(Command::Preview { program, done }).map_err(|_| Error::Stopping)?;
        result.recv().map_err(|_| Error::DataplaneDied)?
    }

    /// Lets an open sink get packets beside the sinks of the policy. Waits for the workers.
    pub(crate) fn attach(
        &self,
        sink: SinkSpec,
        packets: AttachedTo,
        opened: Opened,
    ) -> Result<Slot, AttachError> {
        let (done, result) = channel::bounded(1);
        let command = Command::Attach { sink, packets, opened, done };
        self.commands.send_timeout(command, CAPTURE_PATIENCE).map_err(|refused| match refused {
            SendTimeoutError::Timeout(_) => AttachError::Busy,
            SendTimeoutError::Disconnected(_) => AttachError::Ending,
        })?;
        Ok(result.recv().map_err(|_| AttachError::Ending)??)
    }

    /// Takes an attached sink away again. Waits for the workers and for the threads of the sink, but not
    /// longer for the thread of the dataplane than [`CAPTURE_PATIENCE`]: that does it later.
    pub(crate) fn detach(&self, slot: Slot) {
        let (done, result) = channel::bounded(1);
        // A thread that has ended has left all sinks to the shutdown.
        if self.detached.send(Detach { slot, done }).is_ok()
            && let Ok(hub) = result.recv_timeout(CAPTURE_PATIENCE)
        {
            hub.end();
        }
    }

    /// `false`: the thread does not take it within `timeout`, because it waits for the device.
    pub(super) fn stop(&self, timeout: Duration) -> bool {
        !matches!(self.commands.send_timeout(Command::Stop, timeout), Err(SendTimeoutError::Timeout(_)))
    }
}

impl DropReader {
    /// The counters as the device has them now; `None`: the device or its sinks are being changed, the device
    /// does not answer, as an engine that is stalled, or the thread has ended.
    pub(crate) fn read(&self) -> Option<Arc<[DropTotals]>> {
        let (done, result) = channel::bounded(1);
        let begun = Instant::now();
        let mut command = Command::ReadDrops { done };
        loop {
            command = match self.commands.send_timeout(command, READER_PATIENCE) {
                Ok(()) => return result.recv_timeout(READING_PATIENCE.saturating_sub(begun.elapsed())).ok(),
                // Another reader's turn: it is over as soon as the device has answered.
                Err(SendTimeoutError::Timeout(command))
                    if self.is_reading.load(Ordering::Relaxed) && begun.elapsed() < READING_PATIENCE =>
                {
                    command
                }
                Err(_) => return None,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use device_model::DeviceModel;

    use super::*;

    fn new() -> (Commands, DropReader, Taken) {
        Commands::new(Arc::new(Limits::of_model(&DeviceModel::ideal())))
    }

    #[test]
    fn a_reader_gives_up_while_the_device_is_changed() {
        let (commands, drops, taken) = new();
        assert_eq!(drops.read(), None, "nobody takes it");
        assert!(taken.commands.is_empty(), "and nothing is left behind");
        assert!(!commands.stop(Duration::from_millis(1)));
        drop(taken);
        assert!(commands.stop(Duration::ZERO), "the thread has ended");
        assert_eq!(drops.read(), None);
    }

    #[test]
    fn a_reader_waits_for_another_one() {
        let (_commands, drops, taken) = new();
        taken.is_reading.store(true, Ordering::Relaxed);
        let thread = std::thread::spawn(move || drops.read());
        std::thread::sleep(READER_PATIENCE * 2);
        let Ok(Command::ReadDrops { done }) = taken.commands.recv() else { panic!("a reader") };
        done.send(Arc::new([])).expect("it waits");
        assert_eq!(thread.join().expect("no panic"), Some(Arc::from([])));
    }

    #[test]
    fn a_reader_leaves_a_device_that_hangs() {
        let (_commands, drops, taken) = new();
        let thread = std::thread::spawn(move || drops.read());
        let _unanswered = taken.commands.recv().expect("a reader");
        assert_eq!(thread.join().expect("no panic"), None);
    }

    #[test]
    fn a_capture_is_not_lost_behind_a_thread_that_hangs() {
        let (commands, _drops, taken) = new();
        let slot = Slot::of(3).expect("a place");
        let thread = std::thread::spawn(move || commands.detach(slot));
        let Detach { slot: taken_away, done } = taken.detached.recv().expect("it is queued");
        drop(done);
        thread.join().expect("no panic");
        assert_eq!(taken_away, slot);
    }

    #[test]
    fn a_command_that_is_dropped_is_answered() {
        let (_commands, drops, taken) = new();
        let thread = std::thread::spawn(move || drop(taken.commands.recv()));
        assert_eq!(drops.read(), None, "the thread has ended without an answer");
        thread.join().expect("no panic");
    }
}

//! The commands to the thread of the dataplane. It takes one at a time: a caller hands its command over, or
//! gives up, so none waits in a queue behind a change of the device that takes long.

use std::sync::Arc;
use std::time::Duration;

use control::DropTotals;
use crossbeam::channel::{self, Receiver, SendTimeoutError, Sender};
use program::SinkSpec;
use worker::Slot;
use worker::sinks::Opened;

use crate::daemon::Error;
use crate::daemon::sinks::{self, SharedHub, end_hub};
use crate::policy_file::Compiled;

/// How long a reader of the counters waits for a change of the device: most take less.
const READER_PATIENCE: Duration = Duration::from_millis(200);
/// How long the start of a capture waits for one.
const CAPTURE_PATIENCE: Duration = Duration::from_secs(10);

pub(super) enum Command {
    Install { compiled: Compiled, done: Sender<Result<(), Error>> },
    Attach { sink: SinkSpec, rule: String, opened: Opened, done: Sender<Result<Slot, sinks::Error>> },
    Detach { slot: Slot, done: Sender<Option<SharedHub>> },
    ReadDrops { done: Sender<Arc<[DropTotals]>> },
    Stop,
}

/// The side of those who give commands. The thread has ended when a command is answered with
/// [`Error::Stopping`].
#[derive(Clone)]
pub(crate) struct Commands(Sender<Command>);

/// Why a capture does not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    Sink(#[from] sinks::Error),
    #[error("the device is being changed (hint: try again later)")]
    Busy,
    #[error("the daemon is ending")]
    Ending,
}

impl Commands {
    pub(super) fn new() -> (Self, Receiver<Command>) {
        let (sender, receiver) = channel::bounded(0);
        (Self(sender), receiver)
    }

    /// Waits until the program is installed; all or nothing.
    pub(crate) fn install(&self, compiled: Compiled) -> Result<(), Error> {
        let (done, result) = channel::bounded(1);
        self.0.send(Command::Install { compiled, done }).map_err(|_| Error::Stopping)?;
        result.recv().map_err(|_| Error::Stopping)?
    }

    /// Lets an open sink get the packets of a rule beside the rule's own sinks. Waits for the workers.
    pub(crate) fn attach(&self, sink: SinkSpec, rule: &str, opened: Opened) -> Result<Slot, AttachError> {
        let (done, result) = channel::bounded(1);
        let command = Command::Attach { sink, rule: rule.to_owned(), opened, done };
        self.0.send_timeout(command, CAPTURE_PATIENCE).map_err(|refused| match refused {
            SendTimeoutError::Timeout(_) => AttachError::Busy,
            SendTimeoutError::Disconnected(_) => AttachError::Ending,
        })?;
        Ok(result.recv().map_err(|_| AttachError::Ending)??)
    }

    /// Takes it away again. Waits for the workers, and for the threads of the sink.
    pub(crate) fn detach(&self, slot: Slot) {
        let (done, result) = channel::bounded(1);
        // A thread that has ended has left all sinks to the shutdown.
        if self.0.send(Command::Detach { slot, done }).is_ok() {
            result.iter().flatten().for_each(end_hub);
        }
    }

    /// The counters of drop rules as the device has them now; `None`: the device is being changed, or the
    /// thread has ended.
    pub(crate) fn read_drops(&self) -> Option<Arc<[DropTotals]>> {
        let (done, result) = channel::bounded(1);
        self.0.send_timeout(Command::ReadDrops { done }, READER_PATIENCE).ok()?;
        result.recv().ok()
    }

    /// `false`: the thread does not take it within `timeout`, because it waits for the device.
    pub(super) fn stop(&self, timeout: Duration) -> bool {
        !matches!(self.0.send_timeout(Command::Stop, timeout), Err(SendTimeoutError::Timeout(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gives_up_while_the_device_is_changed() {
        let (commands, receiver) = Commands::new();
        assert_eq!(commands.read_drops(), None, "nobody takes it");
        assert!(receiver.is_empty(), "and nothing is left behind");
        assert!(!commands.stop(Duration::from_millis(1)));
        drop(receiver);
        assert!(commands.stop(Duration::ZERO), "the thread has ended");
        assert_eq!(commands.read_drops(), None);
    }

    #[test]
    fn a_command_that_is_dropped_is_answered() {
        let (commands, receiver) = Commands::new();
        let thread = std::thread::spawn(move || drop(receiver.recv()));
        assert_eq!(commands.read_drops(), None, "the thread has ended without an answer");
        thread.join().expect("no panic");
    }
}

//! Signals as events: SIGHUP reloads, SIGUSR1 asks for a record, SIGTERM and Ctrl-C end, a second Ctrl-C ends
//! at once.
//!
//! They are held back from the first statement of `main` ([`hold`]) until the daemon listens, also over
//! its second execution for libmlx5 (a mask and pending signals survive execve(2)). So a SIGHUP that comes
//! early does not end the process, and a mask or an ignored signal of whoever started the process has no
//! effect.
//!
//! A thread turns signals into flags and a wake-up (signal-hook's iterator, no work in a handler); the daemon
//! takes the events between the stages of its start and in the run loop. If a part hangs, the process still
//! ends [`STOP_LIMIT`] after it was asked to.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam::channel::{self, Receiver};
use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};

use crate::daemon::shutdown::within;
use crate::terminal::hang_up::Terminals;
use crate::terminal::output;
use crate::terminal::screen;

/// 128 + SIGINT, as a shell reports a program that an interrupt ended.
pub(crate) const EXIT_INTERRUPTED: i32 = 130;

/// How long after the first signal to end the process exits in any case. It must be less than TimeoutStopSec=
/// of systemd/steerd.service, after which the service is killed without a message, and more than all limits
/// of the regular shutdown.
const STOP_LIMIT: Duration = Duration::from_secs(28);
/// The exit code of a failure while running, sysexits.h's EX_SOFTWARE.
pub(crate) const EXIT_FAILED: i32 = 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Reload,
    /// The packets that the recorder has kept are to be written.
    Record,
    Stop {
        why: &'static str,
    },
}

/// Pending requests, one flag per kind: a second signal of a kind requests nothing new.
#[derive(Debug, Default)]
struct Pending {
    reload: AtomicBool,
    record: AtomicBool,
    terminate: AtomicBool,
    interrupt: AtomicBool,
    hang_up: AtomicBool,
}

impl Pending {
    /// An end takes precedence over a reload.
    fn take(&self) -> Option<Event> {
        let asked = |flag: &AtomicBool, event| flag.swap(false, Ordering::AcqRel).then_some(event);
        self.stop()
            .or_else(|| asked(&self.reload, Event::Reload))
            .or_else(|| asked(&self.record, Event::Record))
    }

    /// Does not clear the flag.
    fn stop(&self) -> Option<Event> {
        let reasons = [
            (&self.terminate, "SIGTERM"),
            (&self.interrupt, "Ctrl-C"),
            (&self.hang_up, "the terminal is gone"),
        ];
        let asked = reasons.iter().find(|(flag, _)| flag.load(Ordering::Acquire));
        asked.map(|(_, why)| Event::Stop { why })
    }
}

/// The receiving side, held by the daemon.
#[derive(Debug)]
pub(crate) struct Signals {
    pending: Arc<Pending>,
    wake: Receiver<()>,
    terminals: Terminals,
}

/// The signals that are events.
fn events() -> SigSet {
    [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1].into_iter().collect()
}

/// Holds the events back until [`release`], and lets a write beyond the limit of file sizes (RLIMIT_FSIZE)
/// fail with EFBIG instead of ending the process by SIGXFSZ. SIGPIPE is ignored by the standard library. To
/// be called first in `main`.
pub(crate) fn hold() {
    // Fails only for a wrong argument.
    let _ = events().thread_block();
    // A handler and not SIG_IGN, which programs that this one starts would inherit. It fails for no valid
    // signal.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Lets events come, by default to the end of the process; so also if whoever started it had blocked them.
pub(crate) fn release() {
    let _ = events().thread_unblock();
}

/// Starts to listen, and releases the events. One that came before counts, and a SIGHUP is kept until there
/// is a policy to reload.
pub(crate) fn listen() -> io::Result<Signals> {
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGTERM, SIGINT, SIGUSR1])?;
    let pending = Arc::new(Pending::default());
    let terminals = Terminals::open();
    // One wake-up is enough for any number of flags.
    let (waker, wake) = channel::bounded(1);
    let flags = Arc::clone(&pending);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut limited = false;
        for signal in signals.forever() {
            let flag = match signal {
                SIGHUP if terminals.hung_up() => &flags.hang_up,
                SIGHUP => &flags.reload,
                SIGUSR1 => &flags.record,
                SIGINT => &flags.interrupt,
                _ => &flags.terminate,
            };
            if flag.swap(true, Ordering::AcqRel) && signal == SIGINT {
                // The kernel destroys flows and queues with the process.
                screen::leave_at_once();
                signal_hook::low_level::exit(EXIT_INTERRUPTED)
            }
            if flags.stop().is_some() && !std::mem::replace(&mut limited, true) {
                limit_end();
            }
            if let Err(channel::TrySendError::Disconnected(())) = waker.try_send(()) {
                return;
            }
        }
    })?;
    release();
    Ok(Signals { pending, wake, terminals })
}

/// Exits at the limit if the process has not ended by then.
fn limit_end() {
    let end = || {
        std::thread::sleep(STOP_LIMIT);
        let text =
            format!("steerd: not ended {} s after the signal to end: exiting now", STOP_LIMIT.as_secs());
        let report = move || {
            screen::leave_at_once();
            output::print_error(&text);
        };
        let _ = within("stderr", Duration::from_secs(1), report);
        signal_hook::low_level::exit(EXIT_FAILED)
    };
    // Without the thread there is no limit.
    let _ = std::thread::Builder::new().name("stop limit".into()).spawn(end);
}

impl Signals {
    /// Receives a message when an event may be pending.
    pub(crate) fn wake(&self) -> &Receiver<()> {
        &self.wake
    }

    pub(crate) fn take(&self) -> Option<Event> {
        self.pending.take()
    }

    /// Why the daemon must end, if it must; a pending reload stays pending.
    pub(crate) fn stop(&self) -> Option<&'static str> {
        match self.pending.stop() {
            Some(Event::Stop { why }) => Some(why),
            _ => None,
        }
    }

    /// Whether the terminal that the process was started on has hung up.
    pub(crate) fn terminal_is_gone(&self) -> bool {
        self.terminals.hung_up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_precedes_a_reload_and_stays_pending() {
        let pending = Pending::default();
        assert_eq!(pending.take(), None);
        pending.reload.store(true, Ordering::Release);
        pending.terminate.store(true, Ordering::Release);
        assert_eq!(pending.take(), Some(Event::Stop { why: "SIGTERM" }));
        assert_eq!(pending.take(), Some(Event::Stop { why: "SIGTERM" }));
    }

    #[test]
    fn many_reloads_are_one() {
        let pending = Pending::default();
        pending.reload.store(true, Ordering::Release);
        pending.reload.store(true, Ordering::Release);
        assert_eq!(pending.take(), Some(Event::Reload));
        assert_eq!(pending.take(), None);
    }
}

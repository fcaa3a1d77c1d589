//! The end of the daemon, in steps that each take a limited time.
//!
//! Without a free thread (TasksMax=, RLIMIT_NPROC, RLIMIT_AS) a step runs on the thread of its caller,
//! without a limit: a process at that limit must still report and end.
//!
//! A thread that hangs cannot be ended, but the process must end. So each step that may block runs on a
//! thread of its own and is given up after a time; the error names the parts that did not end. The exit
//! status is that of the first failure.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::cli::Format;
use crate::daemon::Error;
use crate::daemon::dataplane::{Steering, Stopped};
use crate::daemon::servers::Servers;
use crate::daemon::signals::Signals;
use crate::daemon::{Background, notify};
use crate::state::Accounting;
use crate::telemetry::logging::Log;
use crate::terminal::screen::Screen;
use crate::terminal::summary;

/// How long the shutdown waits for a page that is being rendered, for the threads of ports and view, and for
/// the log. The limits of the other steps are in `dataplane`.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const LOG_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs `step` on a thread called `name`, or here if there is none. `None`: it was not done after `timeout`,
/// or panicked; its thread then keeps what it owns until the process ends.
pub(crate) fn within<T: Send + 'static>(
    name: &str,
    timeout: Duration,
    step: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    within_by(Builder::spawn, name, timeout, step)
}

/// Starts a thread; tests have one that fails.
type Spawn = fn(Builder, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;

fn within_by<T: Send + 'static>(
    spawn: Spawn,
    name: &str,
    timeout: Duration,
    step: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = mpsc::sync_channel(1);
    // A thread that cannot be started drops its closure, so the step is in a place that both can take it
    // from.
    let place = Arc::new(Mutex::new(Some(step)));
    let on_thread = Arc::clone(&place);
    let run = move || {
        if let Some(step) = taken(&on_thread) {
            // An error means that the caller has given up.
            let _ = done.send(step());
        }
    };
    match spawn(Builder::new().name(name.to_owned()), Box::new(run)) {
        Ok(_) => result.recv_timeout(timeout).ok(),
        Err(_) => taken(&place).map(|step| step()),
    }
}

fn taken<S>(place: &Mutex<Option<S>>) -> Option<S> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The parts that report on the running daemon.
pub(super) struct Reporting<'d> {
    pub(super) servers: Servers,
    pub(super) ports: Background,
    pub(super) view: Background,
    pub(super) screen: &'d Screen,
    pub(super) log: &'d Log,
    pub(super) signals: &'d Signals,
}

pub(super) fn stop(
    format: Format,
    steering: Steering,
    reporting: Reporting<'_>,
    ended: Result<(), Error>,
) -> Result<(), Error> {
    let Reporting { servers, ports, view, screen, log, signals } = reporting;
    notify::stopping();
    let Stopped { state, ran_for, mut errors, mut hung, is_device_lost, remains } = steering.stop();
    // The thread of the dataplane is missing at the end, too.
    errors.retain(|error| !matches!((error, &ended), (Error::DataplaneDied, Err(Error::DataplaneDied))));
    if !servers.stop(SERVER_TIMEOUT) {
        hung.push("the HTTP server or the API".into());
    }
    for (background, name) in [(ports, "the check of the ports"), (view, "the view")] {
        if !background.stop(BACKGROUND_TIMEOUT) {
            hung.push(name.into());
        }
    }
    let is_exact = hung.is_empty() && !is_device_lost;
    if !is_exact {
        // Threads that still run use the device: its objects must outlive them, so they are never dropped.
        // Nor are those of a lost device, which would refuse to release each of them.
        std::mem::forget(remains);
    }
    log.flush(LOG_TIMEOUT);
    let drawn = screen.clone();
    let _ = within("clear screen", BACKGROUND_TIMEOUT, move || drawn.clear());
    // Writing to a terminal that has hung up is an error.
    let printed = match &state {
        Some(state) if !signals.terminal_is_gone() => summary::print(format, state, ran_for),
        _ => Ok(()),
    };
    let mismatch = state.as_ref().filter(|_| is_exact).and_then(|state| mismatch(&state.accounting));
    let hung = (!hung.is_empty()).then(|| Error::StillRunning(hung.join(", ")));
    first_of(
        ended
            .err()
            .into_iter()
            .chain(hung)
            .chain(errors)
            .chain(mismatch)
            .chain(printed.err().map(Error::from)),
    )
}

/// An accounting mismatch is a fault of steerd, so the exit status reports it even if nothing else failed.
fn mismatch(accounting: &Accounting) -> Option<Error> {
    (accounting.matches == Some(false)).then(|| Error::AccountingMismatch(accounting.verdict()))
}

/// Returns the first failure and logs the others.
fn first_of(mut failures: impl Iterator<Item = Error>) -> Result<(), Error> {
    let first = failures.next();
    failures.for_each(|error| tracing::error!("{error}"));
    first.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_step_returns_its_result_or_is_given_up() {
        assert_eq!(within("quick", Duration::from_secs(60), || 7), Some(7));
        let (release, held) = mpsc::channel::<()>();
        let begun = Instant::now();
        let hung = within("hung", Duration::from_millis(20), move || held.recv());
        assert!(hung.is_none() && begun.elapsed() < Duration::from_secs(30));
        drop(release);
        assert_eq!(within("panicking", Duration::from_secs(60), || -> u8 { panic!("a test's panic") }), None);
    }

    #[test]
    fn a_step_without_a_thread_runs_on_that_of_its_caller() {
        let own = std::thread::current().id();
        let no_thread: Spawn = |_, _| Err(io::ErrorKind::WouldBlock.into());
        let ran_on = within_by(no_thread, "step", Duration::ZERO, || std::thread::current().id());
        assert_eq!(ran_on, Some(own));
    }

    #[test]
    fn an_accounting_mismatch_is_a_failure() {
        let accounting = Accounting { matches: Some(false), ..Accounting::default() };
        let error = first_of(mismatch(&accounting).into_iter()).expect_err("a failure");
        assert!(error.to_string().starts_with("packet accounting mismatch"), "{error}");
        let earlier = [Error::WorkerDied(1)].into_iter().chain(mismatch(&accounting));
        assert!(matches!(first_of(earlier), Err(Error::WorkerDied(1))), "the first is the cause");
        let accounting = Accounting { matches: Some(true), ..Accounting::default() };
        assert!(first_of(mismatch(&accounting).into_iter()).is_ok());
    }
}

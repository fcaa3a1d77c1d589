//! Signals as events: SIGHUP reloads, SIGTERM and Ctrl-C end, a second Ctrl-C ends at once.
//!
//! The daemon takes its events from the channel given here. A thread turns signals into events
//! (signal-hook's iterator, no work in a handler); nothing else in the program listens to signals.

use std::io;

use crossbeam::channel::{self, Receiver};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// 128 + SIGINT, as a shell reports a program that an interrupt ended.
pub(crate) const EXIT_INTERRUPTED: i32 = 130;
/// More signals than this between two looks of the run loop say nothing new.
const MAX_PENDING: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Reload,
    Stop { signal: &'static str },
}

/// Starts to listen; must be called before anything is put on a device.
pub(crate) fn listen() -> io::Result<Receiver<Event>> {
    let mut signals = Signals::new([SIGHUP, SIGTERM, SIGINT])?;
    let (sender, receiver) = channel::bounded(MAX_PENDING);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut interrupted = false;
        for signal in signals.forever() {
            let event = match signal {
                SIGHUP => Event::Reload,
                SIGINT if interrupted => {
                    // The kernel destroys flows and queues with the process; the terminal is left as is.
                    signal_hook::low_level::exit(EXIT_INTERRUPTED)
                }
                SIGINT => {
                    interrupted = true;
                    Event::Stop { signal: "Ctrl-C" }
                }
                _ => Event::Stop { signal: "SIGTERM" },
            };
            // A full channel already holds what this event would ask for.
            if let Err(channel::TrySendError::Disconnected(_)) = sender.try_send(event) {
                return;
            }
        }
    })?;
    Ok(receiver)
}

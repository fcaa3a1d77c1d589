//! How an application that posts a send wakes a sleeping engine. Each engine has a [`Wakeup`]; a send wakes
//! the engine of its port, a control call all of them. Sends to queues in foreign formats wake none: the
//! engine polls these ([`crate::engine`]'s `rest`).
//!
//! No send is missed: the engine announces its sleep and then looks at the send rings; the application
//! publishes its requests and then notifies (`parking` has the proof). Control calls notify while they hold
//! the device's mutex, and the engine looks at the state under the same mutex after it has announced its
//! sleep: the later one of the two sees what the earlier one did.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use parking::Wakeup;

/// Wakes the engine that sends what is posted to one queue pair. Shared by both sides of its send queue.
#[derive(Debug)]
pub struct SendBell {
    wakeups: Arc<[Wakeup]>,
    /// The engine of its port. An application posts nothing before the call that sets the port has returned.
    engine: AtomicUsize,
}

impl SendBell {
    /// Makes the bell of a queue pair without a port.
    pub(crate) fn new(wakeups: &Arc<[Wakeup]>) -> Arc<Self> {
        Arc::new(Self { wakeups: Arc::clone(wakeups), engine: AtomicUsize::new(0) })
    }

    /// The queue pair has a port of this engine.
    pub(crate) fn set_engine(&self, engine: usize) {
        self.engine.store(engine, Relaxed);
    }

    /// Wakes the engine if it sleeps; called after requests were published.
    #[inline]
    pub fn ring(&self) {
        if let Some(wakeup) = self.wakeups.get(self.engine.load(Relaxed)) {
            wakeup.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_send_wakes_the_engine_of_its_port_only() {
        let wakeups: Arc<[Wakeup]> = (0..2).map(|_| Wakeup::new().unwrap()).collect();
        let bell = SendBell::new(&wakeups);
        let sleeps = |engine: usize| {
            let begun = Instant::now();
            wakeups[engine].sleep([], Duration::from_millis(20));
            begun.elapsed() >= Duration::from_millis(20)
        };
        wakeups.iter().for_each(Wakeup::announce_sleep);
        bell.set_engine(1);
        bell.ring();
        assert!(!sleeps(1) && sleeps(0));
        bell.set_engine(0);
        bell.ring();
        assert!(!sleeps(0));
    }
}

//! The one way from control to a worker: a short queue of commands with a generation in front.
//! The worker looks at one atomic per batch and opens the queue only when that moved; it never
//! waits for the lock, and pushes happen (and allocate) on control's side only.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::utils::CachePadded;
use policy::Band;

use crate::ClassTable;

/// Counts the publications to one worker: the n-th has generation n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

impl std::fmt::Display for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "generation {}", self.0)
    }
}

/// One publication: what stands in `band` from now on.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) generation: Generation,
    pub(crate) band: Band,
    pub(crate) table: Option<Arc<ClassTable>>,
}

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    published: CachePadded<AtomicU64>,
    acknowledged: CachePadded<AtomicU64>,
    commands: Mutex<VecDeque<Command>>,
}

impl Mailbox {
    /// Queues a publication. The caller holds the ledger's lock, so generations arrive in order.
    pub(crate) fn push(&self, band: Band, table: Option<Arc<ClassTable>>) -> Generation {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = Generation(self.published.load(Ordering::Relaxed) + 1);
        commands.push_back(Command { generation, band, table });
        self.published.store(generation.0, Ordering::Release);
        generation
    }

    /// Whether something was published after `seen`.
    #[inline]
    pub(crate) fn newer_than(&self, seen: Generation) -> bool {
        self.published.load(Ordering::Acquire) != seen.0
    }

    /// The oldest command, if there is one and control is not adding another this instant.
    pub(crate) fn take(&self) -> Option<Command> {
        match self.commands.try_lock() {
            Ok(mut commands) => commands.pop_front(),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner().pop_front(),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The worker is done with everything up to `generation`: what it counted for a table retired
    /// there is visible to whoever then sees [`Mailbox::acknowledged`].
    pub(crate) fn acknowledge(&self, generation: Generation) {
        self.acknowledged.store(generation.0, Ordering::Release);
    }

    pub(crate) fn acknowledged(&self) -> Generation {
        Generation(self.acknowledged.load(Ordering::Acquire))
    }
}

//! The mailbox by which programs reach a worker: a short queue of commands with their count in front. The
//! worker reads one atomic per batch and opens the queue only when that changed; it never waits for the lock,
//! and only the publisher allocates.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::utils::CachePadded;
use program::Band;

use crate::class_table::ClassTable;

/// Counts the programs published to one worker: the n-th is publication n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Publication(pub u64);

impl std::fmt::Display for Publication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "publication {}", self.0)
    }
}

/// The new program of `band`; `None` empties it.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) publication: Publication,
    pub(crate) band: Band,
    pub(crate) table: Option<Arc<ClassTable>>,
}

/// Commands that can wait: one for each band, because a later one replaces an earlier one.
pub(crate) const COMMANDS_MAX: usize = Band::ALL.len();

/// Commands from handles to the worker.
///
/// No command is lost: `published` is stored (Release) after the command is queued, so a worker that loads
/// the new number (Acquire) finds the command, and it advances its own number only by commands that it took.
/// If the lock is held, the numbers still differ and the next iteration tries again. Commands are numbered in
/// the order of the queue, and removing a replaced one keeps that order, so an acknowledged number covers
/// every command up to it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    published: CachePadded<AtomicU64>,
    acknowledged: CachePadded<AtomicU64>,
    commands: Mutex<VecDeque<Command>>,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            published: CachePadded::default(),
            acknowledged: CachePadded::default(),
            commands: Mutex::new(VecDeque::with_capacity(COMMANDS_MAX + 1)),
        }
    }
}

impl Mailbox {
    /// Queues a publication, and returns the waiting one of the same band that it replaces. The caller holds
    /// the ledger's lock, so publications arrive in order.
    pub(crate) fn push(
        &self,
        band: Band,
        table: Option<Arc<ClassTable>>,
    ) -> (Publication, Option<Publication>) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let publication = Publication(self.published.load(Ordering::Relaxed) + 1);
        let void = commands.iter().position(|command| command.band == band);
        let void = void.and_then(|place| commands.remove(place)).map(|command| command.publication);
        commands.push_back(Command { publication, band, table });
        debug_assert!(commands.len() <= COMMANDS_MAX);
        self.published.store(publication.0, Ordering::Release);
        (publication, void)
    }

    /// Whether something was published after `seen`.
    #[inline]
    pub(crate) fn newer_than(&self, seen: Publication) -> bool {
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

    /// The worker has applied every command up to `publication`. What it counted in tables that these
    /// replaced is visible to a thread that sees this in [`Mailbox::acknowledged`].
    pub(crate) fn acknowledge(&self, publication: Publication) {
        self.acknowledged.store(publication.0, Ordering::Release);
    }

    pub(crate) fn acknowledged(&self) -> Publication {
        Publication(self.acknowledged.load(Ordering::Acquire))
    }
}

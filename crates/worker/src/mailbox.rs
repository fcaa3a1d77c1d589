//! The mailbox by which programs reach a worker: the last map of classes that the worker has not taken, with
//! a count in front. The worker reads one atomic per batch and opens the mailbox only when that changed; it
//! never waits for the lock, and only the publisher allocates.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::utils::CachePadded;

use crate::class_map::ClassMap;

/// Counts the programs published to one worker: the n-th is publication n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Publication(pub u64);

impl std::fmt::Display for Publication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "publication {}", self.0)
    }
}

/// A map, and its number.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) publication: Publication,
    pub(crate) map: Arc<ClassMap>,
}

/// Commands from handles to the worker. One waits at most: it says all, so a later one replaces it.
///
/// No command is lost: `published` is stored (Release) after the command is there, so a worker that loads
/// the new number (Acquire) finds it or a later one, and it advances its own number only by commands that it
/// took. If the lock is held, the numbers still differ and the next iteration tries again.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    published: CachePadded<AtomicU64>,
    acknowledged: CachePadded<AtomicU64>,
    command: Mutex<Option<Command>>,
}

impl Mailbox {
    /// Leaves a map for the worker, and returns the number of the waiting one that it replaces. The caller
    /// holds the ledger's lock, so publications arrive in order.
    pub(crate) fn push(&self, map: Arc<ClassMap>) -> (Publication, Option<Publication>) {
        let mut command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        let publication = Publication(self.published.load(Ordering::Relaxed) + 1);
        let void = command.replace(Command { publication, map }).map(|command| command.publication);
        self.published.store(publication.0, Ordering::Release);
        (publication, void)
    }

    /// Whether something was published after `seen`.
    #[inline]
    pub(crate) fn newer_than(&self, seen: Publication) -> bool {
        self.published.load(Ordering::Acquire) != seen.0
    }

    /// The waiting command, if there is one and control is not leaving another this instant.
    pub(crate) fn take(&self) -> Option<Command> {
        match self.command.try_lock() {
            Ok(mut command) => command.take(),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The worker has applied every command up to `publication`. What it counted in tables that
    /// are no longer in its map is visible to a thread that sees this in [`Mailbox::acknowledged`].
    pub(crate) fn acknowledge(&self, publication: Publication) {
        self.acknowledged.store(publication.0, Ordering::Release);
    }

    pub(crate) fn acknowledged(&self) -> Publication {
        Publication(self.acknowledged.load(Ordering::Acquire))
    }
}

//! Closes files that came from another process, on a thread of its own.
//!
//! close(2) of a file waits as long as its kind wants: a TCP socket with SO_LINGER until its data is sent
//! (socket(7)), a file of FUSE until its server answers. Another process chooses the kind, so whoever
//! receives files must not close them itself. The same holds for the unix socket: closing it releases the
//! files of its unread messages (unix(7)).
//!
//! No other thread waits for this one: it ends after the last [`Closer`] is dropped and the last file is
//! closed.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

/// Files that wait to be closed. More are left open.
const WAITING_MAX: usize = 1024;
/// From here on nothing is accepted and received, so that the files of the clients that exist still have a
/// place.
const WAITING_BUSY: usize = 64;

/// The thread that closes files.
#[derive(Clone, Debug)]
pub struct Closer {
    files: SyncSender<OwnedFd>,
    waiting: Arc<AtomicUsize>,
    left_open: Arc<AtomicUsize>,
}

impl Closer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start() -> std::io::Result<Self> {
        let (files, queue) = sync_channel::<OwnedFd>(WAITING_MAX);
        let waiting = Arc::new(AtomicUsize::new(0));
        let closer = Self { files, waiting: Arc::clone(&waiting), left_open: Arc::default() };
        let run = move || {
            for file in queue {
                drop(file);
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("close-files".to_owned()).spawn(run)?;
        Ok(closer)
    }

    /// Whether so many files wait that channels and listeners with this closer accept and receive nothing.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.waiting() >= WAITING_BUSY
    }

    /// Files that wait to be closed.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Files that stay open because too many waited.
    #[must_use]
    pub fn left_open(&self) -> usize {
        self.left_open.load(Ordering::Relaxed)
    }

    fn close(&self, file: OwnedFd) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.files.try_send(file) {
            let (TrySendError::Full(file) | TrySendError::Disconnected(file)) = error;
            let _ = file.into_raw_fd();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.left_open.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A file whose close may wait. Dropping it passes it to its [`Closer`]; one without closer is closed at
/// once.
#[derive(Debug)]
pub struct ForeignFile {
    file: ManuallyDrop<OwnedFd>,
    closer: Option<Closer>,
}

impl ForeignFile {
    pub(crate) fn new(file: OwnedFd, closer: Option<Closer>) -> Self {
        Self { file: ManuallyDrop::new(file), closer }
    }

    pub(crate) fn set_closer(&mut self, closer: &Closer) {
        self.closer = Some(closer.clone());
    }

    pub(crate) fn closer(&self) -> Option<&Closer> {
        self.closer.as_ref()
    }
}

impl From<OwnedFd> for ForeignFile {
    fn from(file: OwnedFd) -> Self {
        Self::new(file, None)
    }
}

impl AsFd for ForeignFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for ForeignFile {
    fn drop(&mut self) {
        // SAFETY: only here the file is taken out, and `self` is not used afterwards.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        match &self.closer {
            Some(closer) => closer.close(file),
            None => drop(file),
        }
    }
}

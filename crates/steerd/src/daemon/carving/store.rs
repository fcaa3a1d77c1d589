//! The file with the filters of an interface that are, or may be, ours, and the lock that one process holds
//! for each interface.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use nic_filters::{Ledger, LedgerStore};
use serde::{Deserialize, Serialize};

use crate::state_file;

/// Where the files are if the settings name no folder for the state: filters do not outlive the machine's run
/// either.
const RUN_FOLDER: &str = "/run/steerd";
/// A number that is another one after each start of the kernel (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{}: {source} (hint: filters are noted in state.folder, else in {RUN_FOLDER}: STEERD_STATE__FOLDER names another folder)", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("another steerd carves the queues of {interface} (hint: end it first; it holds {})", path.display())]
    Held { interface: String, path: PathBuf },
}

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct NotedFilters {
    /// The start of the kernel since which they are there.
    boot: String,
    /// The number of the interface: another one may have got its name.
    index: u32,
    ledger: Ledger,
}

/// The file of an interface. The lock goes with the process.
#[derive(Debug)]
pub(crate) struct FilterStore {
    path: PathBuf,
    boot: String,
    index: u32,
    _lock: File,
}

impl FilterStore {
    /// Opens the file of an interface and takes its lock. `folder`: that of the state.
    pub(crate) fn open(folder: Option<PathBuf>, interface: &str, index: u32) -> Result<Self, StoreError> {
        let folder = folder.unwrap_or_else(|| RUN_FOLDER.into());
        let of_folder = |source| StoreError::Folder { path: folder.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(of_folder)?;
        let held = folder.join(format!("filters-{interface}.lock"));
        let lock = File::options().create(true).truncate(false).write(true).open(&held).map_err(of_folder)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Held { interface: interface.to_owned(), path: held });
            }
            Err(TryLockError::Error(source)) => return Err(of_folder(source)),
        }
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        Ok(Self { path: folder.join(format!("filters-{interface}.json")), boot, index, _lock: lock })
    }

    /// The filters that an earlier process may have left.
    pub(crate) fn left(&self) -> Ledger {
        match state_file::read::<NotedFilters>(&self.path) {
            Ok(noted) if noted.content.boot == self.boot && noted.content.index == self.index => {
                noted.content.ledger
            }
            // Another start of the kernel, or another interface: its filters are gone.
            Ok(_) => Ledger::default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ledger::default(),
            Err(error) => {
                tracing::error!(
                    "{}: {error}: filters of an earlier process, if there are any, are taken for those of others \
                     (hint: `ethtool -n` lists them)",
                    self.path.display()
                );
                state_file::keep_unreadable(&self.path);
                Ledger::default()
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl LedgerStore for FilterStore {
    fn save(&mut self, ledger: &Ledger) -> io::Result<()> {
        if ledger.is_empty() {
            return remove(&self.path);
        }
        let noted = NotedFilters { boot: self.boot.clone(), index: self.index, ledger: ledger.clone() };
        state_file::replace(&self.path, &noted)
    }
}

/// Removes a file that may not be there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

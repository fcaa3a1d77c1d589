//! The file with the filters of an interface that are, or may be, ours, and the lock that one process holds
//! for each interface.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nic_filters::{Ledger, LedgerStore};
use serde::{Deserialize, Serialize};

use crate::state_file;

/// The folder of the locks, and of the files if the settings name no folder for the state: filters do not
/// outlive the machine's run either.
const RUN_FOLDER: &str = "/run/steerd";
/// The network namespace: numbers of interfaces are unique within one.
const NETWORK_NAMESPACE: &str = "/proc/thread-self/ns/net";
/// A number that is another one after each start of the kernel (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{}: {source} (hint: filters are noted in state.folder, else in {RUN_FOLDER}: STEERD_STATE__FOLDER names another folder)", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("{}: {source} (hint: the lock of an interface is in {RUN_FOLDER}, which this user must be able to write)", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("another steerd has the filters of {interface} (hint: end it first; it holds {})", path.display())]
    Held { interface: String, path: PathBuf },
}

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct NotedFilters {
    /// The start of the kernel since which they are there.
    boot: String,
    /// The number of the interface: another one may have got its name.
    index: u32,
    /// The use of the filters. A record without it is of carved queues.
    #[serde(default)]
    purpose: FilterPurpose,
    ledger: Ledger,
}

/// The use of the filters on an interface. There is one at a time, as one process holds the lock, and each
/// takes over and removes what another one has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FilterPurpose {
    /// A policy carves queues.
    #[default]
    Queues,
    /// The filters drop packets of drop rules, before an XDP program would.
    Drops,
}

/// The file of an interface. The lock goes with the process.
#[derive(Debug)]
pub(crate) struct FilterStore {
    path: PathBuf,
    boot: String,
    index: u32,
    purpose: FilterPurpose,
    _lock: File,
}

/// The folders of the files and of the locks.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) records: PathBuf,
    /// One folder for all processes, so that neither the settings nor the name of an interface are a way
    /// around the lock.
    pub(crate) locks: PathBuf,
}

impl Places {
    /// The places for this folder of the state.
    pub(crate) fn of(folder: Option<PathBuf>) -> Self {
        Self { records: folder.unwrap_or_else(|| RUN_FOLDER.into()), locks: RUN_FOLDER.into() }
    }

    fn record(&self, interface: &str) -> PathBuf {
        self.records.join(format!("filters-{interface}.json"))
    }
}

impl FilterStore {
    /// Opens the file of an interface and takes its lock.
    pub(crate) fn open(
        places: &Places,
        interface: &str,
        index: u32,
        purpose: FilterPurpose,
    ) -> Result<Self, StoreError> {
        let lock = lock(&places.locks, interface, index)?;
        let folder = &places.records;
        make_folder(folder).map_err(|source| StoreError::Folder { path: folder.clone(), source })?;
        let (path, boot) = (places.record(interface), boot().unwrap_or_default());
        Ok(Self { path, boot, index, purpose, _lock: lock })
    }

    /// Checks that the lock is free, and that the folders of the file and of the lock are there or could be
    /// made; makes none. The lock is held for a moment, shared with other checks.
    pub(crate) fn check(places: &Places, interface: &str, index: u32) -> Result<(), StoreError> {
        let rights = |folder: &Path| {
            // That of a relative path is the current one, whose name is empty here.
            let is_there = |folder: &&Path| folder.as_os_str().is_empty() || folder.exists();
            regular_file::check_folder(folder.ancestors().find(is_there).unwrap_or(folder))
        };
        let Places { records, locks } = places;
        rights(locks).map_err(|source| StoreError::Lock { path: locks.clone(), source })?;
        let path = lock_path(locks, index)?;
        match File::options().write(true).open(&path) {
            Ok(lock) => acquired(lock.try_lock_shared(), interface, &path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(StoreError::Lock { path, source }),
        }
        rights(records).map_err(|source| StoreError::Folder { path: records.clone(), source })
    }

    /// The filters that an earlier process may have left.
    pub(crate) fn left(&self) -> Ledger {
        match read(&self.path, Some(self.index)) {
            Ok(noted) => noted.map(|noted| noted.ledger).unwrap_or_default(),
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
        let Self { index, purpose, .. } = *self;
        let noted = NotedFilters { boot: self.boot.clone(), index, purpose, ledger: ledger.clone() };
        state_file::replace(&self.path, &noted)
    }
}

/// The filters that are noted for an interface; nothing is changed. An unreadable file has none.
pub(crate) fn noted(folder: Option<PathBuf>, interface: &str, index: u32) -> Ledger {
    let noted = read(&Places::of(folder).record(interface), Some(index)).ok().flatten();
    noted.map(|noted| noted.ledger).unwrap_or_default()
}

/// Returns whether an earlier process has carved the queues of an interface and may have left filters there.
pub(crate) fn is_carved(folder: Option<PathBuf>, interface: &str) -> bool {
    // A file that cannot be read may have some.
    let is_of_queues =
        |noted: Option<NotedFilters>| noted.is_some_and(|noted| noted.purpose == FilterPurpose::Queues);
    read(&Places::of(folder).record(interface), None).map_or(true, is_of_queues)
}

/// The contents of a file; `None`: there is no file, or it is of another start of the kernel or another
/// interface, so that its filters are gone. An index that is not given may be any.
fn read(path: &Path, index: Option<u32>) -> io::Result<Option<NotedFilters>> {
    let noted = match state_file::read::<NotedFilters>(path) {
        Ok(noted) => noted.content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_of_boot = boot().is_some_and(|boot| boot == noted.boot);
    let is_of_interface = index.is_none_or(|index| index == noted.index);
    Ok((is_of_boot && is_of_interface).then_some(noted))
}

/// The start of the kernel; `None`: it cannot be read, and equals no other one.
fn boot() -> Option<String> {
    let text = fs::read_to_string(BOOT_ID).ok()?.trim().to_owned();
    Some(text).filter(|text| !text.is_empty())
}

/// Takes the lock of an interface.
fn lock(folder: &Path, interface: &str, index: u32) -> Result<File, StoreError> {
    let of_folder = |source| StoreError::Lock { path: folder.to_owned(), source };
    make_folder(folder).map_err(of_folder)?;
    let path = lock_path(folder, index)?;
    // Who can open the file can hold its lock.
    let lock = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let lock = lock.map_err(|source| StoreError::Lock { path: path.clone(), source })?;
    acquired(lock.try_lock(), interface, &path)?;
    Ok(lock)
}

/// The file of the lock of an interface.
fn lock_path(folder: &Path, index: u32) -> Result<PathBuf, StoreError> {
    let of_namespace = |source| StoreError::Lock { path: NETWORK_NAMESPACE.into(), source };
    let namespace = fs::metadata(NETWORK_NAMESPACE).map_err(of_namespace)?.ino();
    Ok(folder.join(format!("filters-{namespace}-{index}.lock")))
}

/// Whether the lock was acquired.
fn acquired(tried: Result<(), TryLockError>, interface: &str, path: &Path) -> Result<(), StoreError> {
    let path = path.to_owned();
    tried.map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::Held { interface: interface.to_owned(), path },
        TryLockError::Error(source) => StoreError::Lock { path, source },
    })
}

/// Creates a folder that may be there. The one in /run has the socket of the API as well.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mode = if folder == Path::new(RUN_FOLDER) { 0o755 } else { 0o700 };
    fs::DirBuilder::new().recursive(true).mode(mode).create(folder)
}

/// Removes a file that may not be there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

//! The socket's path: its default, and claiming it so that no two daemons serve the same one.
//!
//! A daemon holds a lock (flock(2)) on the file beside the socket, `api.sock.lock`, while it has the socket.
//! So a socket without a locked file belongs to a daemon that has died, and is replaced; whoever gets the
//! lock is alone. Both files are removed at the end, the socket only if it is still the one that was made.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketType, sockopt};
use shm::BindError;

use super::Error;

/// The folder of a daemon that root runs.
const SYSTEM_FOLDER: &str = "/run/steerd";
const FILE_NAME: &str = "api.sock";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How often a lock file is opened again after its daemon has removed it.
const LOCK_ATTEMPTS: u32 = 8;

/// The socket of a daemon with the same user and environment.
pub(crate) fn default_path() -> PathBuf {
    default_folder(rustix::process::geteuid().is_root(), |name| std::env::var_os(name)).join(FILE_NAME)
}

fn default_folder(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // Several folders of a service are separated by colons (systemd.exec(5), RUNTIME_DIRECTORY).
    let of_service = variable("RUNTIME_DIRECTORY").and_then(|list| {
        let list = list.into_string().ok()?;
        list.split(':').next().map(PathBuf::from).filter(|path| path.is_absolute())
    });
    if let Some(of_service) = of_service {
        return of_service;
    }
    match folder("XDG_RUNTIME_DIR").filter(|_| !is_root) {
        Some(of_user) => of_user.join("steerd"),
        None => SYSTEM_FOLDER.into(),
    }
}

/// Where a client looks for the daemon: its own user's, else the system's.
pub(crate) fn path_of_daemon() -> PathBuf {
    let own = default_path();
    let of_system = Path::new(SYSTEM_FOLDER).join(FILE_NAME);
    if !own.exists() && of_system.exists() { of_system } else { own }
}

/// Makes the default folder if it is missing. If that fails, so does claiming the socket.
pub(super) fn make_folder(path: &Path) {
    let Some(folder) = path.parent() else { return };
    let mode = if folder == Path::new(SYSTEM_FOLDER) { 0o755 } else { 0o700 };
    let _ = fs::DirBuilder::new().mode(mode).create(folder);
}

pub(super) fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (hint: its folder does not exist)",
        io::ErrorKind::PermissionDenied => " (hint: use a path in a folder that steerd may write)",
        _ if error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error()) => {
            " (hint: a socket's path has at most 107 bytes)"
        }
        _ => "",
    }
}

/// A socket's file and its lock; both files are removed when this is dropped, the lock last.
#[derive(Debug)]
pub(crate) struct SocketFile {
    file: shm::SocketFile,
    _lock: Lock,
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// The system call that failed for this path.
fn failed(path: &Path, operation: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Bind { path: path.to_owned(), operation, source }
}

/// Binds `path` and listens, with these permissions.
pub(super) fn claim(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), Error> {
    // Before a lock file is made.
    SocketAddrUnix::new(path).map_err(|error| failed(path, "bind")(error.into()))?;
    let lock = Lock::take(path)?;
    remove_stale(path)?;
    let listening = shm::listen_at(path, SocketType::STREAM, BACKLOG, mode, false);
    let (socket, file) = listening.map_err(|error| match error {
        BindError::System { operation, errno } => failed(path, operation)(errno.into()),
        BindError::NamesTaken { .. } => Error::Names { path: path.to_owned(), source: error },
        // Made since it was looked for, without the lock.
        BindError::Exists => Error::InUse { path: path.to_owned(), owner: "another process".to_owned() },
    })?;
    Ok((UnixListener::from(socket), SocketFile { file, _lock: lock }))
}

/// Removes the socket of a daemon that has died. A program that listens there without the lock is left alone.
fn remove_stale(path: &Path) -> Result<(), Error> {
    if is_stale(path)? { fs::remove_file(path).map_err(failed(path, "unlink")) } else { Ok(()) }
}

/// Whether there is the socket of a daemon that has died.
///
/// # Errors
/// There is something else.
fn is_stale(path: &Path) -> Result<bool, Error> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(path, "lstat")(error)),
    };
    if !found.file_type().is_socket() {
        return Err(Error::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Ok(stream) => Err(Error::InUse { path: path.to_owned(), owner: owner(&stream) }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) => Err(failed(path, "connect")(error)),
    }
}

/// Checks that [`claim`] would succeed, and makes nothing. `makes_folder`: a folder that is missing would be
/// made.
pub(super) fn check(path: &Path, makes_folder: bool) -> Result<(), Error> {
    SocketAddrUnix::new(path).map_err(|error| failed(path, "bind")(error.into()))?;
    Lock::check(path)?;
    is_stale(path)?;
    let lock = lock_of(path);
    let folder = path.parent().unwrap_or(Path::new(""));
    let outer = folder.parent().filter(|_| makes_folder && !folder.exists());
    regular_file::check_folder(outer.unwrap_or(folder)).map_err(failed(&lock, "open"))
}

/// The path of the lock beside a socket.
fn lock_of(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

/// The process that listens at the other end.
fn owner(stream: &UnixStream) -> String {
    match sockopt::socket_peercred(stream) {
        Ok(credentials) => format!("process {}", credentials.pid.as_raw_nonzero()),
        Err(_) => "another process".to_owned(),
    }
}

/// A locked file beside a socket, removed when dropped.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    const FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

    /// Checks that no process has the lock, and makes no file. The lock is held for a moment, shared with
    /// other checks.
    fn check(socket: &Path) -> Result<(), Error> {
        let path = lock_of(socket);
        match rustix::fs::open(&path, Self::FLAGS, Mode::empty()) {
            Ok(file) => Self::acquire(&File::from(file), FlockOperation::NonBlockingLockShared, socket),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed(&path, "open")(error.into())),
        }
    }

    /// # Errors
    /// Another process has the lock, or flock(2) failed.
    fn acquire(file: &File, operation: FlockOperation, socket: &Path) -> Result<(), Error> {
        flock(file, operation).map_err(|error| match error {
            Errno::WOULDBLOCK => {
                let owner = UnixStream::connect(socket)
                    .map_or_else(|_| "another process".to_owned(), |stream| owner(&stream));
                Error::InUse { path: socket.to_owned(), owner }
            }
            error => failed(&lock_of(socket), "flock")(error.into()),
        })
    }

    fn take(socket: &Path) -> Result<Self, Error> {
        let path = lock_of(socket);
        for _ in 0..LOCK_ATTEMPTS {
            let file = rustix::fs::open(&path, Self::FLAGS | OFlags::CREATE, Mode::RUSR | Mode::WUSR);
            let file = File::from(file.map_err(|error| failed(&path, "open")(error.into()))?);
            Self::acquire(&file, FlockOperation::NonBlockingLockExclusive, socket)?;
            // A daemon that ended in between has removed the file that was opened: the lock on it excludes
            // nobody.
            let opened = file.metadata().map_err(failed(&path, "fstat"))?;
            if identity(&path).is_ok_and(|named| named == (opened.dev(), opened.ino())) {
                return Ok(Self { path, _file: file });
            }
        }
        Err(failed(&path, "flock")(io::Error::other("the lock file is being replaced")))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is locked, so that the file of another daemon is never removed.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(path: &Path) -> (UnixListener, SocketFile) {
        claim(path, 0o600).expect("claimed")
    }

    #[test]
    fn the_default_folder_follows_service_user_and_environment() {
        let of = |is_root, set: &[(&str, &str)]| {
            default_folder(is_root, |name| {
                set.iter().find(|(one, _)| *one == name).map(|(_, value)| value.into())
            })
            .display()
            .to_string()
        };
        assert_eq!(of(true, &[]), "/run/steerd");
        assert_eq!(of(true, &[("XDG_RUNTIME_DIR", "/run/user/0")]), "/run/steerd");
        assert_eq!(of(false, &[("XDG_RUNTIME_DIR", "/run/user/7")]), "/run/user/7/steerd");
        assert_eq!(of(false, &[]), "/run/steerd");
        assert_eq!(of(false, &[("XDG_RUNTIME_DIR", "relative")]), "/run/steerd");
        assert_eq!(of(false, &[("RUNTIME_DIRECTORY", "/run/a:/run/b")]), "/run/a");
    }

    #[test]
    fn a_check_makes_nothing_and_finds_what_claiming_finds() {
        let folder = tempfile::tempdir().expect("folder");
        let at = |name: &str| folder.path().join(name);
        check(&at("api.sock"), false).expect("it can be claimed");
        check(&at("new/api.sock"), true).expect("the folder would be made");
        drop(UnixListener::bind(at("stale.sock")).expect("bound"));
        check(&at("stale.sock"), false).expect("it would be replaced");
        let _other = UnixListener::bind(at("other.sock")).expect("bound");
        fs::write(at("file"), "").expect("written");
        // The lock of a daemon that has not made its socket yet.
        let _lock = Lock::take(&at("locked.sock")).expect("free");
        for name in ["other.sock", "file", "none/api.sock", "locked.sock", &"x".repeat(200)] {
            let claimed = claim(&at(name), 0o600).expect_err(name).to_string();
            assert_eq!(check(&at(name), false).expect_err(name).to_string(), claimed);
        }
        // Claiming takes the lock first.
        let mut names: Vec<_> = fs::read_dir(folder.path()).expect("folder").flatten().collect();
        names.retain(|entry| !entry.file_name().to_string_lossy().ends_with(".lock"));
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn two_daemons_do_not_share_a_socket() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("api.sock");
        let first = claimed(&path);
        let error = claim(&path, 0o600).expect_err("in use").to_string();
        let owner = format!("process {}", std::process::id());
        assert!(error.contains(&owner) && error.contains("api.sock"), "{error}");
        assert!(UnixStream::connect(&path).is_ok(), "the first one still has it");
        drop(first);
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 0, "both files are removed");
        drop(claimed(&path));
    }

    #[test]
    fn the_socket_of_a_dead_daemon_is_replaced() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("api.sock");
        // A process that is killed leaves both files, without a lock.
        drop(UnixListener::bind(&path).expect("bound"));
        fs::write(folder.path().join("api.sock.lock"), "").expect("written");
        let (_listener, _file) = claimed(&path);
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn what_somebody_else_listens_on_or_wrote_is_left_alone() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("api.sock");
        let other = UnixListener::bind(&path).expect("bound");
        assert!(matches!(claim(&path, 0o600), Err(Error::InUse { .. })));
        drop(other);
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "precious").expect("written");
        assert!(matches!(claim(&path, 0o600), Err(Error::NotASocket { .. })));
        assert_eq!(fs::read(&path).expect("read"), b"precious");
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).expect("linked");
        assert!(matches!(claim(&path, 0o600), Err(Error::NotASocket { .. })));
    }

    #[test]
    fn a_socket_that_replaced_ours_is_not_removed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("api.sock");
        let ours = claimed(&path);
        fs::remove_file(&path).expect("removed");
        let _other = UnixListener::bind(&path).expect("bound");
        drop(ours);
        assert!(path.exists());
    }

    #[test]
    fn permissions_are_those_of_the_settings() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("api.sock");
        let (_listener, _file) = claim(&path, 0o620).expect("claimed");
        assert_eq!(fs::metadata(&path).expect("socket").mode() & 0o777, 0o620);
    }

    #[test]
    fn a_path_that_cannot_be_used_is_named_with_the_remedy() {
        let long = Path::new("/tmp").join("x".repeat(200));
        let error = claim(&long, 0o600).expect_err("too long").to_string();
        assert!(error.contains("107 bytes"), "{error}");
        let error = claim(Path::new("/nonexistent/api.sock"), 0o600).expect_err("no folder").to_string();
        assert!(error.contains("its folder does not exist"), "{error}");
    }
}

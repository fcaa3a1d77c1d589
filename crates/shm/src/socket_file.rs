//! Listening on a unix socket whose file has the right permissions and is connectable from the moment that it
//! has its name.
//!
//! The socket is bound to another name in the same folder, with its permissions, and listens there; then the
//! file gets its name at once. So a client that finds the file can connect, and nobody connects with other
//! permissions.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, RenameFlags, Stat, chmod, fchmod, fstat, link, lstat, open, rename,
    renameat_with, unlink,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{geteuid, umask};

/// Names that are tried for the file before it gets its own.
const NAMES_MAX: u32 = 64;

/// The file of a socket that listens. It is removed when this is dropped, unless somebody has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Device and inode.
type Identity = (u64, u64);

impl SocketFile {
    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path) == Ok(self.identity) {
            let _ = unlink(&self.path);
        }
    }
}

/// Why there is no socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// There is a file of that name.
    #[error("there is a file of that name")]
    Exists,
    /// Processes that were killed have left their temporary names.
    #[error(
        "all of the temporary names {}.0 to {}.{} are in use; remove those files",
        prefix.display(), prefix.display(), NAMES_MAX - 1
    )]
    NamesTaken {
        /// The common start of the names, with their folder.
        prefix: PathBuf,
    },
    /// A system call failed.
    #[error("{operation}: {errno}")]
    System {
        /// The system call.
        operation: &'static str,
        /// The reason.
        errno: Errno,
    },
}

fn failed(operation: &'static str) -> impl Fn(Errno) -> BindError {
    move |errno| BindError::System { operation, errno }
}

/// Listens at `path` with a non-blocking socket of this type and length of the queue, and these permissions
/// of the file. With `replaces`, a file that is there is replaced.
///
/// # Errors
/// There is a file of that name, or a system call failed. No file is left, unless removing it fails as well.
pub fn listen_at(
    path: &Path,
    kind: SocketType,
    backlog: i32,
    permissions: u32,
    replaces: bool,
) -> Result<(OwnedFd, SocketFile), BindError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None).map_err(failed("socket"))?;
    // bind(2) gives the file the permissions of the socket's inode without those of the umask (unix(7)).
    let permissions = Mode::from_raw_mode(permissions);
    fchmod(&socket, permissions).map_err(failed("fchmod"))?;
    let bound = match bind_beside(&socket, path) {
        // Only the path itself is short enough.
        Err(BindError::System { errno: Errno::NAMETOOLONG, .. }) if !replaces => bind_at(&socket, path),
        bound => bound,
    };
    let Bound { path: bound_at, umask } = bound?;
    let identity = identity(&bound_at).map_err(|errno| {
        let _ = unlink(&bound_at);
        failed("lstat")(errno)
    })?;
    // From here on an error removes the file.
    let mut file = SocketFile { path: bound_at, identity };
    if umask == Umask::OfProcess {
        restore_permissions(&file, permissions)?;
    }
    listen(&socket, backlog).map_err(failed("listen"))?;
    if file.path != path {
        let renamed = match replaces {
            true => rename(&file.path, path),
            false => rename_to_new(&file.path, path, |from, to| {
                renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
            }),
        };
        renamed.map_err(|errno| match errno {
            Errno::EXIST => BindError::Exists,
            errno => failed("rename")(errno),
        })?;
        path.clone_into(&mut file.path);
    }
    Ok((socket, file))
}

/// Gives a file a name that no file has. Not all file systems can rename in this way (EINVAL); there the file
/// gets a second name (link(2) replaces nothing either), and where that is not possible, it is renamed after
/// a look at the name.
fn rename_to_new(
    from: &Path,
    to: &Path,
    rename_only: impl Fn(&Path, &Path) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    match rename_only(from, to) {
        Err(Errno::INVAL | Errno::NOSYS) => {}
        renamed => return renamed,
    }
    match link(from, to) {
        Ok(()) => {
            let _ = unlink(from);
            Ok(())
        }
        Err(Errno::EXIST) => Err(Errno::EXIST),
        Err(_) if identity(to) == Err(Errno::NOENT) => rename(from, to),
        Err(_) => Err(Errno::EXIST),
    }
}

/// Where a socket is bound.
struct Bound {
    path: PathBuf,
    umask: Umask,
}

/// Which umask the permissions of the file were reduced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Umask {
    None,
    OfProcess,
}

/// Binds to a new name in the folder of `path`.
fn bind_beside(socket: &OwnedFd, path: &Path) -> Result<Bound, BindError> {
    // Short, because the path of a socket has at most 107 bytes.
    let prefix = path.with_file_name(format!(".{}", std::process::id()));
    for number in 0..NAMES_MAX {
        match bind_at(socket, &prefix.with_extension(number.to_string())) {
            // Another listener of this process, or what one left that was killed.
            Err(BindError::Exists) => {}
            bound => return bound,
        }
    }
    Err(BindError::NamesTaken { prefix })
}

/// Binds without a umask where that is possible. A container's seccomp profile may refuse unshare(2), such as
/// that of Docker to processes without CAP_SYS_ADMIN.
fn bind_at(socket: &OwnedFd, path: &Path) -> Result<Bound, BindError> {
    let address = SocketAddrUnix::new(path).map_err(failed("bind"))?;
    let bind = || match bind(socket, &address) {
        Err(Errno::ADDRINUSE) => Err(BindError::Exists),
        bound => bound.map_err(failed("bind")),
    };
    let umask = match without_umask(bind) {
        Err(BindError::System { operation: UNSHARE, errno: Errno::PERM | Errno::NOSYS }) => {
            bind()?;
            Umask::OfProcess
        }
        bound => {
            bound?;
            Umask::None
        }
    };
    Ok(Bound { path: path.to_owned(), umask })
}

const UNSHARE: &str = "unshare";

/// Runs on a thread that has a umask of its own, because the umask of the process concerns its other threads
/// too.
fn without_umask(run: impl FnOnce() -> Result<(), BindError> + Send) -> Result<(), BindError> {
    let run_here = || {
        // SAFETY: no memory is concerned; only this thread, which ends below, gets a umask and a folder of
        // its own.
        if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
            let errno = Errno::from_io_error(&std::io::Error::last_os_error());
            return Err(failed(UNSHARE)(errno.unwrap_or(Errno::INVAL)));
        }
        umask(Mode::empty());
        run()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("bind".to_owned()).spawn_scoped(scope, run_here);
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        let ended = thread.map_err(|error| failed("clone")(errno(error)))?.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Gives the file the permissions that the umask has removed. Nobody can connect yet, because the socket does
/// not listen.
///
/// chmod(2) of the name would follow a symbolic link that somebody puts there, so the file is opened first,
/// and changed only if it is the one that was bound: a socket of this user, of that inode, without a second
/// name.
fn restore_permissions(file: &SocketFile, permissions: Mode) -> Result<(), BindError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(&file.path, flags, Mode::empty()).map_err(failed("open"))?;
    let stat = fstat(&opened).map_err(failed("fstat"))?;
    let is_own = FileType::from_raw_mode(stat.st_mode) == FileType::Socket
        && identity_of(&stat) == file.identity
        && stat.st_uid == geteuid().as_raw()
        && stat.st_nlink == 1;
    if !is_own {
        return Err(failed("fstat")(Errno::STALE));
    }
    if Mode::from_raw_mode(stat.st_mode) == permissions {
        return Ok(());
    }
    // fchmod(2) refuses such a descriptor.
    chmod(format!("/proc/self/fd/{}", opened.as_raw_fd()), permissions).map_err(failed("chmod"))
}

fn identity(path: &Path) -> rustix::io::Result<Identity> {
    lstat(path).map(|stat| identity_of(&stat))
}

fn identity_of(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn stream_at(path: &Path, replaces: bool) -> Result<(OwnedFd, SocketFile), BindError> {
        listen_at(path, SocketType::STREAM, 4, 0o640, replaces)
    }

    #[test]
    fn a_file_is_replaced_only_if_that_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = stream_at(&path, false).unwrap();
        assert_eq!(lstat(&path).unwrap().st_mode & 0o777, 0o640);
        assert_eq!(stream_at(&path, false).unwrap_err(), BindError::Exists);
        let second = stream_at(&path, true).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        drop(first);
        assert!(path.exists(), "that of the second");
        drop(second);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no file is left");
    }

    #[test]
    fn a_file_system_without_renames_that_replace_nothing_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        let refuse = |_: &Path, _: &Path| Err(Errno::INVAL);
        let (socket, file) = stream_at(&from, false).unwrap();
        std::fs::write(&to, "precious").unwrap();
        assert_eq!(rename_to_new(&from, &to, refuse), Err(Errno::EXIST));
        assert_eq!(std::fs::read(&to).unwrap(), b"precious");
        std::fs::remove_file(&to).unwrap();
        rename_to_new(&from, &to, refuse).unwrap();
        assert!(UnixStream::connect(&to).is_ok() && !from.exists());
        drop((socket, file));
        // Other errors are not hidden.
        let denied = |_: &Path, _: &Path| Err(Errno::ACCESS);
        assert_eq!(rename_to_new(&to, &from, denied), Err(Errno::ACCESS));
    }
    /// Runs on a thread with this umask, and a seccomp filter that answers unshare(2) with `errno`, as in a
    /// container.
    fn without_unshare(errno: Errno, mask: u32, test: impl FnOnce() + Send) {
        const OFFSET_OF_NUMBER: u32 = 0;
        let refusal = libc::SECCOMP_RET_ERRNO | errno.raw_os_error().cast_unsigned();
        let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut filter = [
            statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, OFFSET_OF_NUMBER),
            statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, libc::SYS_unshare as u32),
            statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, refusal),
            statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let install = move || {
            // SAFETY: no memory is concerned; only this thread is changed.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0, "needs no privilege");
            umask(Mode::from_raw_mode(mask));
            // SAFETY: no memory is concerned.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            let (option, mode) = (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER);
            // SAFETY: `program` points to `len` statements of `filter`, which lives to the end of the call;
            // the kernel copies them.
            let rc = unsafe { libc::prctl(option, mode, &raw const program) };
            assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
            test();
        };
        std::thread::scope(|scope| scope.spawn(install).join().unwrap());
    }

    #[test]
    fn where_unshare_is_refused_the_file_has_its_permissions_as_well() {
        for errno in [Errno::PERM, Errno::NOSYS] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s");
            without_unshare(errno, 0o077, || {
                let refused = without_umask(|| Ok(()));
                assert_eq!(refused, Err(failed(UNSHARE)(errno)), "the filter works");
                let (socket, file) = stream_at(&path, false).unwrap();
                assert_eq!(lstat(&path).unwrap().st_mode & 0o777, 0o640);
                assert!(UnixStream::connect(&path).is_ok());
                drop((socket, file));
                assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no file is left");
            });
        }
        let folder = tempfile::tempdir().unwrap();
        without_unshare(Errno::NOMEM, 0o077, || {
            let error = stream_at(&folder.path().join("s"), false).unwrap_err();
            assert_eq!(error, failed(UNSHARE)(Errno::NOMEM), "the failing call is named");
        });
    }

    #[test]
    fn permissions_of_what_replaced_the_file_are_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let [bound, secret, link] = ["bound", "secret", "link"].map(|name| folder.path().join(name));
        let (_socket, file) = stream_at(&bound, false).unwrap();
        let (_other, other) = stream_at(&secret, false).unwrap();
        chmod(&secret, Mode::from_raw_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let stale = Err(failed("fstat")(Errno::STALE));
        for replacement in [&link, &secret] {
            rename(replacement, &bound).unwrap();
            assert_eq!(restore_permissions(&file, Mode::from_raw_mode(0o666)), stale, "{replacement:?}");
        }
        assert_eq!(lstat(&bound).unwrap().st_mode & 0o777, 0o600);
        drop(other);
    }

    #[test]
    fn names_that_are_all_taken_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join(format!(".{}", std::process::id()));
        let names: Vec<_> = (0..NAMES_MAX).map(|number| prefix.with_extension(number.to_string())).collect();
        names.iter().for_each(|name| std::fs::write(name, "").unwrap());
        let path = folder.path().join("s");
        let error = stream_at(&path, false).unwrap_err();
        assert_eq!(error, BindError::NamesTaken { prefix });
        let text = error.to_string();
        assert!([0, 63].iter().all(|&name: &usize| text.contains(names[name].to_str().unwrap())), "{text}");
        std::fs::remove_file(&names[63]).unwrap();
        assert!(stream_at(&path, false).is_ok());
    }
}

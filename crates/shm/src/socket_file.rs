//! Listening on a unix socket whose file has the right permissions and is connectable from the moment that it has its name.
//!
//! The socket is bound to another name in the same folder, with its permissions, and listens there; then the file gets its
//! name at once. So a client that finds the file can connect, and nobody connects with other permissions.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, RenameFlags, fchmod, link, lstat, rename, renameat_with, unlink};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::umask;

/// Names that are tried for the file before it gets its own.
const NAMES_MAX: u32 = 64;

/// The file of a socket that listens. It is removed when this is dropped, unless somebody has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Its name.
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

/// A system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindError {
    /// The system call.
    pub operation: &'static str,
    /// The reason; EADDRINUSE or EEXIST if there is a file of that name already.
    pub errno: Errno,
}

/// Listens at `path` with a non-blocking socket of this type and length of the queue, and these permissions of the file.
/// With `replaces`, a file that is there is replaced.
///
/// # Errors
/// There is a file of that name, or a system call failed. No file is left.
pub fn listen_at(
    path: &Path,
    (kind, backlog): (SocketType, i32),
    permissions: u32,
    replaces: bool,
) -> Result<(OwnedFd, SocketFile), BindError> {
    let failed = |operation| move |errno| BindError { operation, errno };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None).map_err(failed("socket"))?;
    // bind(2) gives the file the permissions of the socket's inode without those of the umask (unix(7)). chmod(2)
    // afterwards would follow a symbolic link that somebody puts there.
    fchmod(&socket, Mode::from_raw_mode(permissions)).map_err(failed("fchmod"))?;
    let bound_at = match bind_beside(&socket, path) {
        // Only the path itself is short enough.
        Err(Errno::NAMETOOLONG) if !replaces => bind_without_umask(&socket, path),
        bound => bound,
    };
    let bound_at = bound_at.map_err(failed("bind"))?;
    let identity = identity(&bound_at).map_err(failed("stat"))?;
    // From here on an error removes the file.
    let mut file = SocketFile { path: bound_at, identity };
    listen(&socket, backlog).map_err(failed("listen"))?;
    if file.path != path {
        let renamed = match replaces {
            true => rename(&file.path, path),
            false => rename_to_new(&file.path, path, |from, to| {
                renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
            }),
        };
        renamed.map_err(failed("rename"))?;
        path.clone_into(&mut file.path);
    }
    Ok((socket, file))
}

/// Gives a file a name that no file has. Not all file systems can rename in this way (EINVAL); there the file gets a second
/// name (link(2) replaces nothing either), and where that is not possible, it is renamed after a look at the name.
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

/// Binds to a new name in the folder of `path`, and returns it.
fn bind_beside(socket: &OwnedFd, path: &Path) -> rustix::io::Result<PathBuf> {
    // Short, because the path of a socket has at most 107 bytes.
    let mut names =
        (0..NAMES_MAX).map(|number| path.with_file_name(format!(".{}.{number}", std::process::id())));
    let bound = names.find_map(|name| match bind_without_umask(socket, &name) {
        // Another listener of this process, or what one left that was killed.
        Err(Errno::ADDRINUSE) => None,
        bound => Some(bound),
    });
    bound.unwrap_or(Err(Errno::ADDRINUSE))
}

/// Binds on a thread that has a umask of its own, because the umask of the process concerns its other threads too.
fn bind_without_umask(socket: &OwnedFd, path: &Path) -> rustix::io::Result<PathBuf> {
    let address = SocketAddrUnix::new(path)?;
    let bind_here = || {
        // SAFETY: no memory is concerned; only this thread, which ends below, gets a umask and a folder of its own.
        if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
        }
        umask(Mode::empty());
        bind(socket, &address)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("bind".to_owned()).spawn_scoped(scope, bind_here);
        let bound = thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?.join();
        bound.unwrap_or(Err(Errno::INVAL)).map(|()| path.to_owned())
    })
}

fn identity(path: &Path) -> rustix::io::Result<(u64, u64)> {
    lstat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn stream_at(path: &Path, replaces: bool) -> Result<(OwnedFd, SocketFile), BindError> {
        listen_at(path, (SocketType::STREAM, 4), 0o640, replaces)
    }

    #[test]
    fn a_file_is_replaced_only_if_that_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = stream_at(&path, false).unwrap();
        assert_eq!(lstat(&path).unwrap().st_mode & 0o777, 0o640);
        assert_eq!(stream_at(&path, false).unwrap_err().errno, Errno::EXIST);
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
}

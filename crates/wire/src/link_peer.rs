//! The process at the other end of a link, for its handshake and for errors that name it.

use std::fmt;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::io::Errno;

/// A process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPeer {
    /// The process; 0 if it is in a process namespace that is not visible here.
    pub process: i32,
    /// The user of the peer.
    pub user: u32,
}

impl LinkPeer {
    /// The process that has the other end of a connection of a unix socket.
    pub(crate) fn of(connection: &OwnedFd) -> rustix::io::Result<Self> {
        // Not rustix's `socket_peercred`, which fails for process 0.
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: `credentials` has room for `len` bytes, and any bytes are a valid `ucred`.
        let rc = unsafe {
            let place = (&raw mut credentials).cast();
            libc::getsockopt(connection.as_raw_fd(), level, option, place, &raw mut len)
        };
        if rc != 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
        }
        Ok(Self { process: credentials.pid, user: credentials.uid })
    }

    /// Returns whether it runs as this user or as root.
    pub(crate) fn is_trusted_by(self, user: u32) -> bool {
        self.user == user || self.user == 0
    }
}

impl fmt::Display for LinkPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.process, self.user)
    }
}

/// The user whose rights on files this thread has: that of the process, unless the thread checks what another
/// user could do (setfsuid(2)).
pub(crate) fn user_of_thread() -> u32 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    // Real, effective, saved set, and file system id (proc_pid_status(5)).
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let of_files = ids.and_then(|ids| ids.split_whitespace().nth(3)?.parse().ok());
    of_files.unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_trusts_own_processes_and_those_of_root() {
        let of = |user| LinkPeer { process: 1, user };
        assert_eq!([of(7), of(0), of(8)].map(|peer| peer.is_trusted_by(7)), [true, true, false]);
    }

    /// Only root can become another user.
    #[test]
    fn a_thread_checks_for_the_user_whose_rights_it_has() {
        let own = rustix::process::geteuid();
        assert_eq!(user_of_thread(), own.as_raw());
        if !own.is_root() {
            return;
        }
        let of_other = std::thread::spawn(|| {
            // SAFETY: the call has no preconditions; it changes an id of this thread, which then ends.
            unsafe { libc::setfsuid(65_534) };
            user_of_thread()
        });
        assert_eq!(of_other.join().ok(), Some(65_534));
    }
}

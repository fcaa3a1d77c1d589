//! The process at the other end of a link, for its handshake and for errors that name it.

use std::fmt;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::process::geteuid;

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

    /// Returns whether it runs as the same user or as root.
    pub(crate) fn is_trusted(self) -> bool {
        self.user == geteuid().as_raw() || self.user == 0
    }
}

impl fmt::Display for LinkPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.process, self.user)
    }
}

//! The control channel: a unix socket of whole messages (SOCK_SEQPACKET), each with at most one file.
//!
//! Nothing here blocks. A message with more than one file keeps the first; the kernel closes the others, because there
//! is no room for them (unix(7), MSG_CTRUNC).

use std::fmt;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, chmodat, lstat, rename, unlink};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};

use crate::memif::message::{MESSAGE_BYTES, Message};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// The most supplementary groups of a process (`NGROUPS_MAX`, limits.h), of which as many are read.
const GROUPS_MAX: usize = 65_536;

/// The process at the other end, as the kernel knows it since the connection was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process; 0 if it is in a process namespace that is not visible here.
    pub process: i32,
    /// Its user.
    pub user: u32,
    /// Its groups, the primary one first.
    pub groups: Vec<u32>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.process, self.user)
    }
}

/// One end of a control channel.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// What arrived on a channel.
#[derive(Debug)]
pub enum Received {
    /// A message and the file that came with it.
    Message(Message, Option<OwnedFd>),
    /// Bytes that are no message.
    Invalid,
    /// The other process has closed the channel, or exited.
    End,
    /// Nothing yet.
    Nothing,
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl Channel {
    /// Connects to a server.
    ///
    /// # Errors
    /// The errno; EAGAIN if too many connections wait already.
    pub fn connect(path: &Path) -> rustix::io::Result<Self> {
        let socket = new_socket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self { socket })
    }

    /// Sends a message, with a file if there is one.
    ///
    /// # Errors
    /// The errno; EAGAIN if the other process does not read.
    pub fn send(&self, message: &Message, file: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.socket, &[IoSlice::new(&message.encode())], &mut control, flags)?;
        Ok(())
    }

    /// The next message.
    #[must_use]
    pub fn receive(&self) -> Received {
        // One more, so that a longer message is noticed.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        match received {
            Ok(received) if received.bytes == 0 => Received::End,
            Ok(received) => match bytes.get(..received.bytes).and_then(Message::decode) {
                Some(message) => Received::Message(message, file),
                None => Received::Invalid,
            },
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// The errno of getsockopt(2).
    pub fn peer(&self) -> rustix::io::Result<Peer> {
        // Not rustix's `socket_peercred`, which fails for process 0.
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let place = (&raw mut credentials).cast();
        // SAFETY: `credentials` has room for `len` bytes, and any bytes are a valid `ucred`.
        unsafe { self.option(libc::SO_PEERCRED, place, &mut len) }?;
        let mut groups = vec![credentials.gid];
        groups.extend(self.supplementary_groups()?);
        Ok(Peer { process: credentials.pid, user: credentials.uid, groups })
    }

    fn supplementary_groups(&self) -> rustix::io::Result<Vec<u32>> {
        let mut groups: Vec<u32> = vec![0; 64];
        loop {
            let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
            let place = groups.as_mut_ptr().cast();
            // SAFETY: `groups` has room for `len` bytes, and any bytes are valid numbers.
            match unsafe { self.option(libc::SO_PEERGROUPS, place, &mut len) } {
                Err(Errno::RANGE) if groups.len() < GROUPS_MAX => groups.resize(GROUPS_MAX, 0),
                result => {
                    result?;
                    groups.truncate(len as usize / size_of::<u32>());
                    return Ok(groups);
                }
            }
        }
    }

    /// getsockopt(2).
    ///
    /// # Safety
    /// `place` has room for `len` bytes, of which any values are valid.
    unsafe fn option(
        &self,
        option: i32,
        place: *mut libc::c_void,
        len: &mut libc::socklen_t,
    ) -> rustix::io::Result<()> {
        let socket = self.socket.as_raw_fd();
        // SAFETY: the caller promises the room behind `place`; the socket is open.
        let rc = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, place, len) };
        if rc == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Why a listener was not created.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("another process listens on {}; choose another path or stop it", path.display())]
    Taken {
        /// The path of the socket.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{} exists and is not a socket; choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("listening on {}: {operation} failed", path.display())]
    System {
        /// The path of the socket.
        path: PathBuf,
        /// The system call.
        operation: &'static str,
        /// The reason.
        #[source]
        source: Errno,
    },
}

/// A socket that clients connect to. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file: another server may have replaced it.
    file: (u64, u64),
}

impl Listener {
    /// Listens at `path` with these permissions of the file. A socket file that nobody listens on is replaced, and so is
    /// that of another listener of this process, which then gets no further connections.
    ///
    /// # Errors
    /// The path is in use, or a system call failed.
    pub fn bind(path: &Path, permissions: u32) -> Result<Self, ListenError> {
        let failed =
            |operation| move |source| ListenError::System { path: path.to_owned(), operation, source };
        let in_use = match occupant(path)? {
            Occupant::None => false,
            Occupant::Stale => {
                unlink(path).map_err(failed("unlink"))?;
                false
            }
            Occupant::ThisProcess => true,
        };
        // The new file takes the place of the old one at once, so that a client always finds one.
        let bound_at = if in_use { path.with_extension("new") } else { path.to_owned() };
        let address = SocketAddrUnix::new(&bound_at).map_err(failed("naming the socket"))?;
        let socket = new_socket().map_err(failed("socket"))?;
        if in_use {
            let _ = unlink(&bound_at);
        }
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => return Err(ListenError::Taken { path: path.to_owned() }),
            bound => bound.map_err(failed("bind"))?,
        }
        let mode = Mode::from_raw_mode(permissions);
        chmodat(CWD, &bound_at, mode, AtFlags::empty()).map_err(failed("chmod"))?;
        listen(&socket, BACKLOG).map_err(failed("listen"))?;
        if in_use {
            rename(&bound_at, path).map_err(failed("rename"))?;
        }
        let file = identity(path).map_err(failed("stat"))?;
        Ok(Self { socket, path: path.to_owned(), file })
    }

    /// The next connection that waits.
    #[must_use]
    pub fn accept(&self) -> Option<Channel> {
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
        Some(Channel { socket })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if identity(&self.path) == Ok(self.file) {
            let _ = unlink(&self.path);
        }
    }
}

fn identity(path: &Path) -> rustix::io::Result<(u64, u64)> {
    lstat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Who uses a path.
enum Occupant {
    None,
    /// A server that has exited.
    Stale,
    ThisProcess,
}

fn occupant(path: &Path) -> Result<Occupant, ListenError> {
    let Ok(stat) = lstat(path) else { return Ok(Occupant::None) };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    let own = std::process::id().cast_signed();
    match Channel::connect(path).and_then(|channel| channel.peer()) {
        Err(Errno::CONNREFUSED) => Ok(Occupant::Stale),
        Err(Errno::NOENT) => Ok(Occupant::None),
        Ok(peer) if peer.process == own => Ok(Occupant::ThisProcess),
        // Somebody listens, or it is a socket of another type.
        _ => Err(ListenError::Taken { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (tempfile::TempDir, Listener, Channel, Channel) {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&folder.path().join("s"), 0o600).unwrap();
        let client = Channel::connect(listener.path()).unwrap();
        let server = listener.accept().unwrap();
        (folder, listener, client, server)
    }

    #[test]
    fn messages_arrive_with_their_file() {
        let (_folder, listener, client, server) = pair();
        let message = Message::Connect("a".to_owned());
        client.send(&message, Some(client.as_fd())).unwrap();
        client.send(&Message::Ack, None).unwrap();
        assert!(matches!(server.receive(), Received::Message(got, Some(_)) if got == message));
        assert!(matches!(server.receive(), Received::Message(Message::Ack, None)));
        assert!(matches!(server.receive(), Received::Nothing));
        for bytes in [&[0; 128][..], &[1; 127], &[1, 0]] {
            rustix::net::send(&client, bytes, SendFlags::empty()).unwrap();
            assert!(matches!(server.receive(), Received::Invalid), "{}", bytes.len());
        }
        rustix::net::send(&client, &[1; 129], SendFlags::empty()).unwrap();
        assert!(matches!(server.receive(), Received::Invalid));
        drop(client);
        assert!(matches!(server.receive(), Received::End));
        drop(listener);
    }

    #[test]
    fn the_peer_is_this_process() {
        let (_folder, _listener, _client, server) = pair();
        let peer = server.peer().unwrap();
        assert_eq!(peer.process, std::process::id() as i32);
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
        assert_eq!(peer.groups.first(), Some(&rustix::process::getegid().as_raw()));
        let groups = rustix::process::getgroups().unwrap();
        assert_eq!(peer.groups[1..], groups.iter().map(|group| group.as_raw()).collect::<Vec<_>>());
    }

    #[test]
    fn a_stale_socket_and_one_of_this_process_are_replaced_and_other_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let live = Listener::bind(&path, 0o600).unwrap();
        let next = Listener::bind(&path, 0o600).unwrap();
        let _client = Channel::connect(&path).unwrap();
        assert!(next.accept().is_some(), "the second listener of this process has replaced the first");
        drop(live);
        assert!(path.exists(), "the first does not remove the file of the second");
        let stale = new_socket().unwrap();
        let other = folder.path().join("stale");
        bind(&stale, &SocketAddrUnix::new(&other).unwrap()).unwrap();
        drop(stale);
        let replaced = Listener::bind(&other, 0o640).unwrap();
        let mode = lstat(&other).unwrap().st_mode & 0o777;
        assert_eq!(mode, 0o640);
        drop((next, replaced));
        assert!(!path.exists() && !other.exists(), "the files are removed");
        let foreign = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path, 0o600), Err(ListenError::Taken { .. })), "of another type");
        drop(foreign);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "text").unwrap();
        assert!(matches!(Listener::bind(&path, 0o600), Err(ListenError::NotASocket { .. })));
        let long = folder.path().join("a".repeat(120));
        assert!(matches!(Listener::bind(&long, 0o600), Err(ListenError::System { .. })));
    }
}

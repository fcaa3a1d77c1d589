//! The control channel: a unix socket of whole messages (SOCK_SEQPACKET), each with at most one file.
//!
//! Nothing here blocks. Files that arrive, and the sockets themselves, are closed by a [`Closer`]. All files
//! of a message are received, because the kernel would close those without room in the calling thread
//! (unix(7), MSG_CTRUNC); a message with more than one is invalid.

use std::fmt;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FileType, accessat, lstat, unlink};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, recvmsg,
    sendmsg, socket_with,
};

use super::message::{MESSAGE_BYTES, Message};
use crate::closer::{Closer, ForeignFile};
use crate::socket_file::{BindError, SocketFile, listen_at};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// The most files of one message (`SCM_MAX_FD`, unix(7)).
const FILES_MAX: usize = 253;
/// The most supplementary groups of a process (`NGROUPS_MAX`, limits.h), of which as many are read.
const GROUPS_MAX: usize = 65_536;

/// The process at the other end, as the kernel knows it since the connection was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process; 0 if it is in a process namespace that is not visible here.
    pub process: i32,
    /// The user id of the peer.
    pub user: u32,
    /// The group ids of the peer, the primary one first.
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
    socket: ForeignFile,
}

/// The result of receiving on a channel.
#[derive(Debug)]
pub enum Received {
    /// A message and the file that came with it.
    Message(Message, Option<ForeignFile>),
    /// Bytes that are no message, or more than one file.
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
        Ok(Self { socket: socket.into() })
    }

    fn closed_by(mut self, closer: &Closer) -> Self {
        self.socket.set_closer(closer);
        self
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

    /// The next message. Nothing while the [`Closer`] of this channel is busy.
    #[must_use]
    pub fn receive(&self) -> Received {
        let closer = self.socket.closer();
        if closer.is_some_and(Closer::is_busy) {
            return Received::Nothing;
        }
        // One more, so that a longer message is noticed.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        let (mut file, mut extra) = (None, false);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                for each in files {
                    extra |= file.replace(ForeignFile::new(each, closer.cloned())).is_some();
                }
            }
        }
        match received {
            Ok(received) if received.bytes == 0 => Received::End,
            Ok(_) if extra => Received::Invalid,
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
        let socket = self.socket.as_fd().as_raw_fd();
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
        Self { socket: socket.into() }
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
    /// There is no name for the file before it gets its own.
    #[error("listening on {}", path.display())]
    Names {
        /// The path of the socket.
        path: PathBuf,
        /// The names.
        #[source]
        source: BindError,
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
    socket: ForeignFile,
    file: SocketFile,
}

impl Listener {
    /// Listens at `path` with these permissions of the file. A socket file that nobody listens on is
    /// replaced, and so is that of another listener of this process, which then gets no further connections.
    /// `closer` closes what comes from clients.
    ///
    /// # Errors
    /// The path is in use, or a system call failed.
    pub fn bind(path: &Path, permissions: u32, closer: &Closer) -> Result<Self, ListenError> {
        let failed =
            |operation| move |source| ListenError::System { path: path.to_owned(), operation, source };
        // A file can have a longer path than a socket that clients can name.
        SocketAddrUnix::new(path).map_err(failed("bind"))?;
        let in_use = match occupant(path, closer)? {
            Occupant::None => false,
            Occupant::Stale => {
                unlink(path).map_err(failed("unlink"))?;
                false
            }
            Occupant::ThisProcess => true,
        };
        let listening = listen_at(path, SocketType::SEQPACKET, BACKLOG, permissions, in_use);
        let (socket, file) = listening.map_err(|error| match error {
            BindError::Exists => ListenError::Taken { path: path.to_owned() },
            BindError::NamesTaken { .. } => ListenError::Names { path: path.to_owned(), source: error },
            BindError::System { operation, errno: source } => {
                ListenError::System { path: path.to_owned(), operation, source }
            }
        })?;
        Ok(Self { socket: ForeignFile::new(socket, Some(closer.clone())), file })
    }

    /// Checks that [`Listener::bind`] would succeed, and changes nothing. A socket at the path that somebody
    /// listens on is connected to, and closed by `closer`.
    ///
    /// # Errors
    /// The path is in use, or its folder does not take a file.
    pub fn check(path: &Path, closer: &Closer) -> Result<(), ListenError> {
        let failed =
            |operation| move |source| ListenError::System { path: path.to_owned(), operation, source };
        SocketAddrUnix::new(path).map_err(failed("bind"))?;
        occupant(path, closer)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let access = Access::WRITE_OK | Access::EXEC_OK;
        accessat(CWD, folder.unwrap_or(Path::new(".")), access, AtFlags::EACCESS).map_err(failed("bind"))
    }

    /// The next connection that waits. None while the [`Closer`] is busy.
    ///
    /// # Errors
    /// The errno of accept(2). With EMFILE, ENFILE, ENOBUFS and ENOMEM the connection keeps waiting and
    /// poll(2) reports it, so the caller should pause.
    pub fn accept(&self) -> rustix::io::Result<Option<Channel>> {
        if self.socket.closer().is_some_and(Closer::is_busy) {
            return Ok(None);
        }
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                Ok(Some(Channel { socket: ForeignFile::new(socket, self.socket.closer().cloned()) }))
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Who uses a path.
enum Occupant {
    None,
    /// A server that has exited.
    Stale,
    ThisProcess,
}

fn occupant(path: &Path, closer: &Closer) -> Result<Occupant, ListenError> {
    let Ok(stat) = lstat(path) else { return Ok(Occupant::None) };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    let own = std::process::id().cast_signed();
    // Who listens may send files too.
    let connected = Channel::connect(path).map(|channel| channel.closed_by(closer));
    match connected.and_then(|channel| channel.peer()) {
        Err(Errno::CONNREFUSED) => Ok(Occupant::Stale),
        Err(Errno::NOENT) => Ok(Occupant::None),
        Ok(peer) if peer.process == own => Ok(Occupant::ThisProcess),
        // Somebody listens, or it is a socket of another type.
        _ => Err(ListenError::Taken { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::net::bind;

    use super::*;

    fn pair() -> (tempfile::TempDir, Listener, Channel, Channel) {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&folder.path().join("s"), 0o600, &Closer::start().unwrap()).unwrap();
        let client = Channel::connect(listener.path()).unwrap();
        let server = listener.accept().unwrap().unwrap();
        (folder, listener, client, server)
    }

    #[test]
    fn a_check_makes_nothing_and_finds_what_binding_finds() {
        let folder = tempfile::tempdir().unwrap();
        let closer = Closer::start().unwrap();
        let at = |name: &str| folder.path().join(name);
        let check = |name: &str| Listener::check(&at(name), &closer);
        check("s").unwrap();
        assert!(!at("s").exists());
        // A server of another type listens.
        let _other = std::os::unix::net::UnixListener::bind(at("other")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        for name in ["other", "file", "none/s", &"x".repeat(200)] {
            let bound = Listener::bind(&at(name), 0o600, &closer).unwrap_err();
            assert_eq!(check(name).unwrap_err().to_string(), bound.to_string(), "{name}");
        }
        // Nobody listens any more.
        drop(std::os::unix::net::UnixListener::bind(at("stale")).unwrap());
        check("stale").unwrap();
        assert!(at("stale").exists());
    }

    #[test]
    fn messages_arrive_with_their_file() {
        let (_folder, listener, client, server) = pair();
        let message = Message::Connect("a".to_owned());
        let file = std::fs::File::open("/dev/null").unwrap();
        client.send(&message, Some(file.as_fd())).unwrap();
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
        let live = Listener::bind(&path, 0o600, &Closer::start().unwrap()).unwrap();
        let next = Listener::bind(&path, 0o600, &Closer::start().unwrap()).unwrap();
        let _client = Channel::connect(&path).unwrap();
        assert!(
            next.accept().unwrap().is_some(),
            "the second listener of this process has replaced the first"
        );
        drop(live);
        assert!(path.exists(), "the first does not remove the file of the second");
        let stale = new_socket().unwrap();
        let other = folder.path().join("stale");
        bind(&stale, &SocketAddrUnix::new(&other).unwrap()).unwrap();
        drop(stale);
        let replaced = Listener::bind(&other, 0o640, &Closer::start().unwrap()).unwrap();
        let mode = lstat(&other).unwrap().st_mode & 0o777;
        assert_eq!(mode, 0o640);
        drop((next, replaced));
        assert!(!path.exists() && !other.exists(), "the files are removed");
        let foreign = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(
            matches!(Listener::bind(&path, 0o600, &Closer::start().unwrap()), Err(ListenError::Taken { .. })),
            "of another type"
        );
        drop(foreign);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "text").unwrap();
        assert!(matches!(
            Listener::bind(&path, 0o600, &Closer::start().unwrap()),
            Err(ListenError::NotASocket { .. })
        ));
        let long = folder.path().join("a".repeat(120));
        assert!(matches!(
            Listener::bind(&long, 0o600, &Closer::start().unwrap()),
            Err(ListenError::System { .. })
        ));
    }

    #[test]
    fn replacing_a_socket_keeps_other_files_and_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let closer = Closer::start().unwrap();
        let foreign =
            [folder.path().join("s.new"), path.with_file_name(format!(".{}.0", std::process::id()))];
        foreign.iter().for_each(|path| std::fs::write(path, "text").unwrap());
        let mut listeners = Vec::new();
        for permissions in [0o600, 0o666, 0o622] {
            listeners.push(Listener::bind(&path, permissions, &closer).unwrap());
            assert_eq!(lstat(&path).unwrap().st_mode & 0o777, permissions);
        }
        for path in &foreign {
            assert_eq!(std::fs::read(path).unwrap(), b"text");
        }
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, foreign.len() + 1, "no other file is left");
        drop(listeners);
        assert!(!path.exists());
    }

    /// A TCP socket whose close waits as long as the other end, which is returned too, takes nothing.
    fn slow_to_close() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other_end, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(30))).unwrap();
        sender.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut sender, &[0; 65_536]).is_ok() {}
        (sender.into(), other_end)
    }

    /// Whether `act`, which may close files, ends in time.
    fn is_prompt(act: impl FnOnce() + Send + 'static) -> bool {
        let thread = std::thread::spawn(act);
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.is_finished()
    }

    fn send_files(client: &Channel, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        sendmsg(client, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn files_that_close_slowly_delay_nobody() {
        type Act = fn(Listener, Channel);
        let message = Message::Ack.encode();
        let cases: [(&str, &[u8], usize, Act); 5] = [
            ("with a message", &message, 1, |_, server| {
                assert!(matches!(server.receive(), Received::Message(_, Some(_))));
            }),
            ("two with a message", &message, 2, |_, server| {
                assert!(matches!(server.receive(), Received::Invalid));
            }),
            ("with other bytes", &[1], 1, |_, server| assert!(matches!(server.receive(), Received::Invalid))),
            ("unread", &message, 1, |_, server| drop(server)),
            ("not accepted", &message, 1, |listener, _| drop(listener)),
        ];
        for (what, bytes, count, act) in cases {
            let (_folder, listener, client, server) = pair();
            let waits = Channel::connect(listener.path()).unwrap();
            let to = if what == "not accepted" { &waits } else { &client };
            let (slow, other_end) = slow_to_close();
            let file = std::fs::File::open("/dev/null").unwrap();
            let files = [slow.as_fd(), file.as_fd()];
            // The slow one last, so that it is one of those that a receiver without room would lose.
            send_files(to, bytes, &files.iter().rev().copied().skip(2 - count).collect::<Vec<_>>());
            if count == 1 {
                send_files(to, bytes, &files[..1]);
            }
            drop((slow, file));
            assert!(is_prompt(move || act(listener, server)), "{what}");
            drop(other_end);
        }
    }

    #[test]
    fn nothing_is_received_while_files_wait_to_be_closed_and_afterwards_it_goes_on() {
        let (_folder, listener, client, server) = pair();
        let closer = listener.socket.closer().unwrap().clone();
        let (slow, other_end) = slow_to_close();
        client.send(&Message::Ack, Some(slow.as_fd())).unwrap();
        drop(slow);
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut received = 0;
        while !matches!(server.receive(), Received::Nothing) {
            received += 1;
            assert!(received < 1000);
            client.send(&Message::Ack, Some(file.as_fd())).unwrap();
        }
        let _waits = Channel::connect(listener.path()).unwrap();
        assert!(closer.is_busy() && listener.accept().unwrap().is_none(), "{received}");
        drop(other_end);
        let begun = Instant::now();
        while closer.is_busy() {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(server.receive(), Received::Message(..)) && listener.accept().unwrap().is_some());
        assert_eq!(closer.left_open(), 0);
    }
}

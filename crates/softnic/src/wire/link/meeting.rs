//! How the two ends of a link find each other, and how one learns that the other is gone.
//!
//! Each end binds an abstract socket of its own name: its seat, which no other process can take, and which goes with the
//! process however that ends, so that nothing is ever left behind. Both seats listen: who connects learns from the kernel
//! whose seat it is (SO_PEERCRED, unix(7)). End `b` connects to `a` and greets; `a` makes the memory, seals it and hands
//! it over. The connection then carries nothing more: that it breaks is the news. Who connects and does not greet only
//! wanted to know whose seat it is.
//!
//! Abstract names know no permissions, so any user can take one first. Only processes of the same user, and root, are
//! dealt with; a seat of anybody else's is an error that names them. Nothing here blocks.

use std::fmt;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, recvmsg, send, sendmsg, socket_with,
};
use rustix::process::geteuid;

use super::config::{LinkConfig, LinkEnd};
use super::lane::{LaneReceiver, LaneSender, MEMORY_BYTES, SharedMemory};
use crate::wire::WireError;

/// What both ends greet with: the layout, so that two builds that differ in it do not meet.
const HELLO: [u8; 16] = *b"softnic link 2\0\0";
/// Connections that may wait to greet, and that are let in or turned away at one look.
const VISITORS_MAX: usize = 8;

/// A process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPeer {
    /// The process; 0 if it is in a process namespace that is not visible here.
    pub process: i32,
    /// Its user.
    pub user: u32,
}

impl LinkPeer {
    fn of(connection: &OwnedFd) -> rustix::io::Result<Self> {
        // Not rustix's `socket_peercred`, which does not know of the process 0.
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

    /// Whether it runs as the same user or as root, who can do anything anyway.
    pub(super) fn is_trusted(self) -> bool {
        self.user == geteuid().as_raw() || self.user == 0
    }
}

impl fmt::Display for LinkPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.process, self.user)
    }
}

/// The place of an end, held until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    config: LinkConfig,
    socket: OwnedFd,
    /// The other end's place.
    peer: SocketAddrUnix,
    /// At end `a`: connections that have not greeted yet. At end `b`: one that has, and is not answered yet.
    pending: Vec<OwnedFd>,
    /// Whether a stranger was turned away: said once until the ends have met.
    met_stranger: bool,
}

/// Two ends that have met.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) sender: LaneSender,
    pub(super) receiver: LaneReceiver,
    connection: OwnedFd,
}

impl Seat {
    pub(super) fn take(config: &LinkConfig) -> Result<Self, WireError> {
        let failed = |operation| {
            move |errno: Errno| WireError::Link {
                link: config.name.to_string(),
                operation,
                source: errno.into(),
            }
        };
        let own = address(config, config.end).map_err(failed("naming the socket"))?;
        let peer = address(config, config.end.other()).map_err(failed("naming the socket"))?;
        let socket = new_socket().map_err(failed("socket"))?;
        match bind(&socket, &own) {
            Err(Errno::ADDRINUSE) => return Err(taken(config, config.end, knock(&own).holder())),
            bound => bound.map_err(failed("bind"))?,
        }
        listen(&socket, VISITORS_MAX as i32).map_err(failed("listen"))?;
        if let Some(stranger) = knock(&peer).holder().filter(|holder| !holder.is_trusted()) {
            return Err(taken(config, config.end.other(), Some(stranger)));
        }
        Ok(Self { config: config.clone(), socket, peer, pending: Vec::new(), met_stranger: false })
    }

    /// Whether the other end's place is taken, met or not.
    pub(super) fn peer_is_there(&self) -> bool {
        !self.pending.is_empty() || knock(&self.peer) != Knock::Nobody
    }

    /// Looks once whether the other end is there.
    pub(super) fn meet(&mut self) -> Option<Session> {
        let session = match self.config.end {
            LinkEnd::A => self.receive_peer(),
            LinkEnd::B => self.visit_peer(),
        }?;
        self.met_stranger = false;
        self.pending.clear();
        Some(session)
    }

    fn receive_peer(&mut self) -> Option<Session> {
        self.let_in();
        let mut met = None;
        let pending = std::mem::take(&mut self.pending);
        for connection in pending {
            let mut hello = [0; HELLO.len() + 1];
            match recv(&connection, &mut hello, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => self.pending.push(connection),
                Ok((bytes, _)) if hello.get(..bytes) == Some(HELLO.as_slice()) => {
                    met = hand_over(connection).ok().or(met);
                }
                // It is gone, or does not know how to greet.
                _ => {}
            }
        }
        met
    }

    /// Accepts whoever waits, and turns strangers away.
    fn let_in(&mut self) {
        for _ in 0..VISITORS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(connection) = accept_with(&self.socket, flags) else { return };
            match LinkPeer::of(&connection) {
                Ok(peer) if peer.is_trusted() => {
                    // Those that have been here longest without a greeting make room.
                    if self.pending.len() == VISITORS_MAX {
                        self.pending.remove(0);
                    }
                    self.pending.push(connection);
                }
                Ok(stranger) => self.turn_away(stranger),
                Err(_) => {}
            }
        }
    }

    fn visit_peer(&mut self) -> Option<Session> {
        // Who connects here only wants to know whose seat it is.
        for _ in 0..VISITORS_MAX {
            if accept_with(&self.socket, SocketFlags::CLOEXEC).is_err() {
                break;
            }
        }
        if self.pending.is_empty() {
            let connection = new_socket().ok()?;
            connect(&connection, &self.peer).ok()?;
            match LinkPeer::of(&connection).ok()? {
                peer if peer.is_trusted() => {}
                stranger => {
                    self.turn_away(stranger);
                    return None;
                }
            }
            send(&connection, &HELLO, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).ok()?;
            self.pending.push(connection);
        }
        let connection = self.pending.pop()?;
        match receive_memory(&connection) {
            Ok(memory) => Some(Session::new(memory, LinkEnd::B, connection)),
            Err(Errno::AGAIN) => {
                self.pending.push(connection);
                None
            }
            Err(_) => None,
        }
    }

    fn turn_away(&mut self, stranger: LinkPeer) {
        if !std::mem::replace(&mut self.met_stranger, true) {
            let LinkConfig { name, end } = &self.config;
            tracing::warn!("link `{name}`: end `{}` turns away {stranger}: not of this user", end.letter());
        }
    }
}

impl LinkConfig {
    /// Who has the other end now, if anybody has.
    #[must_use]
    pub fn peer(&self) -> Option<LinkPeer> {
        knock(&address(self, self.end.other()).ok()?).holder()
    }
}

/// Who was found behind a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knock {
    /// Nobody listens there.
    Nobody,
    /// Somebody does, and is too busy to say who.
    Unknown,
    Holder(LinkPeer),
}

impl Knock {
    fn holder(self) -> Option<LinkPeer> {
        match self {
            Self::Holder(peer) => Some(peer),
            Self::Nobody | Self::Unknown => None,
        }
    }
}

/// Connects, looks who is there, and goes.
fn knock(address: &SocketAddrUnix) -> Knock {
    let connected = new_socket().and_then(|socket| connect(&socket, address).map(|()| socket));
    match connected.and_then(|socket| LinkPeer::of(&socket)) {
        Ok(peer) => Knock::Holder(peer),
        Err(Errno::AGAIN) => Knock::Unknown,
        Err(_) => Knock::Nobody,
    }
}

/// Whoever has this end's name: it may only be in use, or be kept from this user.
fn taken(config: &LinkConfig, end: LinkEnd, holder: Option<LinkPeer>) -> WireError {
    let (link, end) = (config.name.to_string(), end.letter());
    match holder {
        Some(holder) if !holder.is_trusted() => {
            WireError::LinkForeign { link, end, holder, user: geteuid().as_raw() }
        }
        holder => {
            let holder = holder.map_or_else(|| "another process".to_owned(), |holder| holder.to_string());
            WireError::LinkTaken { link, end, holder }
        }
    }
}

/// Makes the memory and hands it over.
fn hand_over(connection: OwnedFd) -> rustix::io::Result<Session> {
    let (memory, file) = SharedMemory::create("softnic-link")?;
    let handed = [std::os::fd::AsFd::as_fd(&file)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&handed));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(&connection, &[IoSlice::new(&HELLO)], &mut control, flags)?;
    Ok(Session::new(memory, LinkEnd::A, connection))
}

fn receive_memory(connection: &OwnedFd) -> rustix::io::Result<SharedMemory> {
    let mut hello = [0; HELLO.len() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(
        connection,
        &mut [IoSliceMut::new(&mut hello)],
        &mut control,
        RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let file = files.next().ok_or(Errno::PROTO)?;
    if hello.get(..message.bytes) != Some(HELLO.as_slice()) {
        return Err(Errno::PROTO);
    }
    // Only a memfd has seals: what cannot shrink cannot raise SIGBUS here.
    let sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
    if !sealed || u64::try_from(fstat(&file)?.st_size) != Ok(MEMORY_BYTES as u64) {
        return Err(Errno::PROTO);
    }
    SharedMemory::map(&file)
}

impl Session {
    pub(super) fn new(memory: SharedMemory, end: LinkEnd, connection: OwnedFd) -> Self {
        let memory = Arc::new(memory);
        let (out, back) = match end {
            LinkEnd::A => (0, 1),
            LinkEnd::B => (1, 0),
        };
        let sender = LaneSender::new(Arc::clone(&memory), out);
        Self { sender, receiver: LaneReceiver::new(memory, back), connection }
    }

    /// The process at the other end.
    pub(super) fn peer(&self) -> Option<LinkPeer> {
        LinkPeer::of(&self.connection).ok()
    }

    /// Whether the other end still stands. Makes a system call.
    pub(super) fn is_alive(&self) -> bool {
        // Nothing is ever sent on it: a byte is as wrong as the end.
        let mut byte = [0];
        matches!(recv(&self.connection, &mut byte, RecvFlags::DONTWAIT), Err(Errno::AGAIN | Errno::INTR))
    }
}

/// The abstract address of an end. The user is part of it, so that users do not take each other's names.
fn address(config: &LinkConfig, end: LinkEnd) -> rustix::io::Result<SocketAddrUnix> {
    let user = geteuid().as_raw();
    let name = format!("softnic/link/{user}/{}/{}", config.name, end.letter());
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

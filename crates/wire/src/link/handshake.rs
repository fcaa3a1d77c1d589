//! How the two ends of a link find each other, and how one detects that the other is gone.
//!
//! Each end binds an abstract socket to its name, which no other process can bind while it exists; the kernel
//! releases the name when the process exits. Both sockets listen, so a process that connects gets the
//! credentials of their owner from the kernel (SO_PEERCRED, unix(7)). End `b` connects to `a` and sends a
//! greeting; `a` creates the shared memory, seals it and passes its descriptor. Nothing more is sent on the
//! connection; its end is the end of the session. A connection without a greeting only queried the owner.
//!
//! Abstract names have no permissions, so any user can bind one first. Only processes of the same user, and
//! of root, are accepted; a socket of another user is an error that names the user. Nothing here blocks.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, recvmsg, send, sendmsg, socket_with,
};
use rustix::process::geteuid;

use super::ring::{MEMORY_BYTES, RingReceiver, RingSender, SharedMemory};
use super::{LinkConfig, LinkEnd};
use crate::WireError;
use crate::link_peer::{LinkPeer, user_of_thread};

/// The first message of both ends. It names the layout, so that builds with different layouts do not connect.
const GREETING: [u8; 16] = *b"softnic link 2\0\0";
/// The most connections without a greeting, and the most that are accepted at once.
const MAX_PENDING: usize = 8;

/// The bound socket of an end.
#[derive(Debug)]
pub(super) struct Endpoint {
    config: LinkConfig,
    socket: OwnedFd,
    /// The socket of the other end.
    peer: SocketAddrUnix,
    /// At end `a`: connections without a greeting yet. At end `b`: the connection whose greeting is not
    /// answered yet.
    pending: Vec<OwnedFd>,
    /// Whether a process of another user was rejected: logged once until the handshake is complete.
    logged_stranger: bool,
}

/// An established link.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) sender: RingSender,
    pub(super) receiver: RingReceiver,
    connection: OwnedFd,
}

/// The error of a system call.
fn failed(config: &LinkConfig, operation: &'static str) -> impl Fn(Errno) -> WireError {
    let link = config.name.to_string();
    move |errno| WireError::Link { link: link.clone(), operation, source: errno.into() }
}

impl Endpoint {
    /// Checks that the end is free, and that the other one is not another user's, for the user whose rights
    /// this thread has.
    pub(super) fn check(config: &LinkConfig) -> Result<(), WireError> {
        let user = user_of_thread();
        let named = |end| address(config, end).map_err(failed(config, "naming the socket"));
        let own = probe(&named(config.end)?);
        if own != Probe::Free {
            return Err(taken(config, config.end, own.holder(), user));
        }
        match probe(&named(config.end.other())?).holder().filter(|holder| !holder.is_trusted_by(user)) {
            Some(stranger) => Err(taken(config, config.end.other(), Some(stranger), user)),
            None => Ok(()),
        }
    }

    pub(super) fn take(config: &LinkConfig) -> Result<Self, WireError> {
        let failed = |operation| failed(config, operation);
        let own = address(config, config.end).map_err(failed("naming the socket"))?;
        let peer = address(config, config.end.other()).map_err(failed("naming the socket"))?;
        let socket = new_socket().map_err(failed("socket"))?;
        match bind(&socket, &own) {
            Err(Errno::ADDRINUSE) => {
                return Err(taken(config, config.end, probe(&own).holder(), own_user()));
            }
            bound => bound.map_err(failed("bind"))?,
        }
        listen(&socket, MAX_PENDING as i32).map_err(failed("listen"))?;
        if let Some(stranger) = probe(&peer).holder().filter(|holder| !holder.is_trusted_by(own_user())) {
            return Err(taken(config, config.end.other(), Some(stranger), own_user()));
        }
        Ok(Self { config: config.clone(), socket, peer, pending: Vec::new(), logged_stranger: false })
    }

    /// Whether the other end is open, with or without a handshake.
    pub(super) fn peer_exists(&self) -> bool {
        !self.pending.is_empty() || probe(&self.peer) != Probe::Free
    }

    /// Makes one attempt at the handshake.
    pub(super) fn connect_once(&mut self) -> Option<Session> {
        let session = match self.config.end {
            LinkEnd::A => self.accept_peer(),
            LinkEnd::B => self.connect_to_peer(),
        }?;
        self.logged_stranger = false;
        self.pending.clear();
        Some(session)
    }

    fn accept_peer(&mut self) -> Option<Session> {
        self.accept_peers();
        let mut met = None;
        let pending = std::mem::take(&mut self.pending);
        for connection in pending {
            let mut greeting = [0; GREETING.len() + 1];
            match recv(&connection, &mut greeting, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => self.pending.push(connection),
                Ok((bytes, _)) if greeting.get(..bytes) == Some(GREETING.as_slice()) => {
                    met = hand_over(connection).ok().or(met);
                }
                // The peer is gone, or sent another greeting.
                _ => {}
            }
        }
        met
    }

    /// Accepts waiting connections, and rejects processes of other users.
    fn accept_peers(&mut self) {
        for _ in 0..MAX_PENDING {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(connection) = accept_with(&self.socket, flags) else { return };
            match LinkPeer::of(&connection) {
                Ok(peer) if peer.is_trusted_by(own_user()) => {
                    // The oldest connection without a greeting is dropped.
                    if self.pending.len() == MAX_PENDING {
                        self.pending.remove(0);
                    }
                    self.pending.push(connection);
                }
                Ok(stranger) => self.reject(stranger),
                Err(_) => {}
            }
        }
    }

    fn connect_to_peer(&mut self) -> Option<Session> {
        // Connections to this end only query its owner.
        for _ in 0..MAX_PENDING {
            if accept_with(&self.socket, SocketFlags::CLOEXEC).is_err() {
                break;
            }
        }
        if self.pending.is_empty() {
            let connection = new_socket().ok()?;
            connect(&connection, &self.peer).ok()?;
            match LinkPeer::of(&connection).ok()? {
                peer if peer.is_trusted_by(own_user()) => {}
                stranger => {
                    self.reject(stranger);
                    return None;
                }
            }
            send(&connection, &GREETING, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).ok()?;
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

    fn reject(&mut self, stranger: LinkPeer) {
        if !std::mem::replace(&mut self.logged_stranger, true) {
            let LinkConfig { name, end } = &self.config;
            tracing::warn!(
                "link `{name}`: end `{}` rejects {stranger}: it runs as another user",
                end.letter()
            );
        }
    }
}

impl LinkConfig {
    /// The process that has the other end open, if any.
    #[must_use]
    pub fn peer(&self) -> Option<LinkPeer> {
        probe(&address(self, self.end.other()).ok()?).holder()
    }
}

/// The owner of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// No socket has the name.
    Free,
    /// A socket has the name, but its backlog is full.
    Unknown,
    Holder(LinkPeer),
}

impl Probe {
    fn holder(self) -> Option<LinkPeer> {
        match self {
            Self::Holder(peer) => Some(peer),
            Self::Free | Self::Unknown => None,
        }
    }
}

/// Connects to query the owner, and disconnects.
fn probe(address: &SocketAddrUnix) -> Probe {
    let connected = new_socket().and_then(|socket| connect(&socket, address).map(|()| socket));
    match connected.and_then(|socket| LinkPeer::of(&socket)) {
        Ok(peer) => Probe::Holder(peer),
        Err(Errno::AGAIN) => Probe::Unknown,
        Err(_) => Probe::Free,
    }
}

/// The user of this process.
fn own_user() -> u32 {
    geteuid().as_raw()
}

/// The error for a name in use, by `user` or another one.
fn taken(config: &LinkConfig, end: LinkEnd, holder: Option<LinkPeer>, user: u32) -> WireError {
    let (link, end) = (config.name.to_string(), end.letter());
    match holder {
        Some(holder) if !holder.is_trusted_by(user) => WireError::LinkForeign { link, end, holder, user },
        holder => {
            let holder = holder.map_or_else(|| "another process".to_owned(), |holder| holder.to_string());
            WireError::LinkTaken { link, end, holder }
        }
    }
}

/// Creates the shared memory and passes its descriptor.
fn hand_over(connection: OwnedFd) -> rustix::io::Result<Session> {
    let (memory, file) = SharedMemory::create("softnic-link")?;
    let handed = [std::os::fd::AsFd::as_fd(&file)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&handed));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(&connection, &[IoSlice::new(&GREETING)], &mut control, flags)?;
    Ok(Session::new(memory, LinkEnd::A, connection))
}

fn receive_memory(connection: &OwnedFd) -> rustix::io::Result<SharedMemory> {
    let mut greeting = [0; GREETING.len() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(
        connection,
        &mut [IoSliceMut::new(&mut greeting)],
        &mut control,
        RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let file = files.next().ok_or(Errno::PROTO)?;
    if greeting.get(..message.bytes) != Some(GREETING.as_slice()) {
        return Err(Errno::PROTO);
    }
    // A sealed memfd cannot shrink, so an access cannot raise SIGBUS.
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
        let sender = RingSender::new(Arc::clone(&memory), out);
        Self { sender, receiver: RingReceiver::new(memory, back), connection }
    }

    /// The process at the other end.
    pub(super) fn peer(&self) -> Option<LinkPeer> {
        LinkPeer::of(&self.connection).ok()
    }

    /// Whether the peer is alive. Makes a system call.
    pub(super) fn is_alive(&self) -> bool {
        // Nothing is sent after the handshake, so a byte is an error like the end of the connection.
        let mut byte = [0];
        matches!(recv(&self.connection, &mut byte, RecvFlags::DONTWAIT), Err(Errno::AGAIN | Errno::INTR))
    }
}

/// The abstract address of an end. It contains the user, so that users do not use each other's names by
/// accident.
fn address(config: &LinkConfig, end: LinkEnd) -> rustix::io::Result<SocketAddrUnix> {
    let user = geteuid().as_raw();
    let name = format!("softnic/link/{user}/{}/{}", config.name, end.letter());
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

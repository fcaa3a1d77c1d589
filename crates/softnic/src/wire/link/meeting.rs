//! How the two ends of a link find each other, and how one learns that the other is gone.
//!
//! Each end binds an abstract socket of its own name: its seat, which no other process can take, and which goes with the
//! process however that ends, so that nothing is ever left behind. End `a` listens, end `b` connects; `a` makes the
//! memory, seals it and hands it over. The connection then carries nothing more: that it breaks is the news. Only
//! processes of the same user are let in. Nothing here blocks.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, recvmsg, sendmsg, socket_with,
};

use super::config::{LinkConfig, LinkEnd};
use super::lane::{LaneReceiver, LaneSender, MEMORY_BYTES, SharedMemory};
use crate::wire::WireError;

/// What the listening end says with the memory: the layout, so that two builds that differ in it do not meet.
const HELLO: [u8; 16] = *b"softnic link 1\0\0";

/// The place of an end, held until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    socket: OwnedFd,
    end: LinkEnd,
    /// The other end's place.
    peer: SocketAddrUnix,
    /// At end `b`: a connection whose hello has not come yet.
    pending: Option<OwnedFd>,
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
        let address = |end| address(config, end).map_err(failed("naming the socket"));
        let socket = new_socket().map_err(failed("socket"))?;
        match bind(&socket, &address(config.end)?) {
            Err(Errno::ADDRINUSE) => {
                let (link, end) = (config.name.to_string(), config.end.letter());
                return Err(WireError::LinkTaken { link, end });
            }
            bound => bound.map_err(failed("bind"))?,
        }
        // End `b` listens so that `a` can knock, and lets nobody in.
        listen(&socket, 1).map_err(failed("listen"))?;
        let other = match config.end {
            LinkEnd::A => LinkEnd::B,
            LinkEnd::B => LinkEnd::A,
        };
        Ok(Self { socket, end: config.end, peer: address(other)?, pending: None })
    }

    /// Whether the other end's place is taken, met or not.
    pub(super) fn peer_is_there(&self) -> bool {
        let knock = || new_socket().and_then(|socket| connect(&socket, &self.peer));
        self.pending.is_some() || matches!(knock(), Ok(()) | Err(Errno::AGAIN))
    }

    /// Looks once whether the other end is there.
    pub(super) fn meet(&mut self) -> Option<Session> {
        let met = match self.end {
            LinkEnd::A => self.receive_peer(),
            LinkEnd::B => self.visit_peer(),
        };
        met.ok()
    }

    fn receive_peer(&self) -> rustix::io::Result<Session> {
        let connection = accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        check_user(&connection)?;
        let (memory, file) = SharedMemory::create("softnic-link")?;
        let handed = [std::os::fd::AsFd::as_fd(&file)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&handed));
        sendmsg(&connection, &[IoSlice::new(&HELLO)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(Session::new(memory, LinkEnd::A, connection))
    }

    fn visit_peer(&mut self) -> rustix::io::Result<Session> {
        if self.pending.is_none() {
            let connection = new_socket()?;
            connect(&connection, &self.peer)?;
            check_user(&connection)?;
            self.pending = Some(connection);
        }
        let connection = self.pending.take().ok_or(Errno::NOTCONN)?;
        match receive_memory(&connection) {
            Ok(memory) => Ok(Session::new(memory, LinkEnd::B, connection)),
            Err(Errno::AGAIN) => {
                self.pending = Some(connection);
                Err(Errno::AGAIN)
            }
            Err(errno) => Err(errno),
        }
    }
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

    /// Whether the other end still stands. Makes a system call.
    pub(super) fn is_alive(&self) -> bool {
        // Nothing is ever sent on it: a byte is as wrong as the end.
        let mut byte = [0];
        matches!(recv(&self.connection, &mut byte, RecvFlags::DONTWAIT), Err(Errno::AGAIN | Errno::INTR))
    }
}

/// The abstract address of an end. The user is part of it, so that users do not take each other's names.
fn address(config: &LinkConfig, end: LinkEnd) -> rustix::io::Result<SocketAddrUnix> {
    let user = rustix::process::getuid().as_raw();
    let name = format!("softnic/link/{user}/{}/{}", config.name, end.letter());
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Lets only processes of the same user in (SO_PEERCRED, unix(7)): abstract names know no permissions.
fn check_user(connection: &OwnedFd) -> rustix::io::Result<()> {
    let same = socket_peercred(connection)?.uid == rustix::process::getuid();
    if same { Ok(()) } else { Err(Errno::ACCESS) }
}

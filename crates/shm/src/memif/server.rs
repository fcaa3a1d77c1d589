//! The server's side of the handshake, without input and output: a message in, a reply or the end out.
//!
//! The client announces its regions and rings one by one; each is checked when it arrives, against the limits
//! of the server and against the memory. After [`Negotiation::receive`] has returned a [`HandshakeRefusal`],
//! the connection must be closed: nothing of it is used.

use std::sync::Arc;

use super::message::{AddRing, Hello, Init, Message, RingDirection};
use super::ring::{LOG2_RING_SIZE_MAX, Regions, ServerReceiver, ServerSender, Violation};
use super::{ETHERNET, VERSION};
use crate::{ForeignFile, Memory, MemoryError};

/// The most regions of one client: libmemif uses one or two, a client with memory of its own some more.
pub const REGIONS_MAX: u16 = 16;
/// The most rings of one client in each direction.
pub const RINGS_MAX: u16 = 64;

/// The limits of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Rings in each direction, 1 to [`RINGS_MAX`].
    pub rings: u16,
    /// The binary logarithm of the largest ring, at most [`LOG2_RING_SIZE_MAX`].
    pub log2_ring_size: u8,
    /// Bytes of all regions together.
    pub bytes: u64,
}

/// Why a server closes a connection during the handshake. The text is sent to the client.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeRefusal {
    /// The message is not one of a client, or came at the wrong time.
    #[error("unexpected message {kind}")]
    Unexpected {
        /// The kind of the message.
        kind: &'static str,
    },
    /// The client speaks another version.
    #[error("memif version {version:#x} is not supported, only {VERSION:#x}")]
    Version {
        /// The version of the client.
        version: u16,
    },
    /// The client wants no Ethernet frames.
    #[error("interface mode {mode} is not supported, only 0 (Ethernet)")]
    Mode {
        /// The mode of the client.
        mode: u8,
    },
    /// A message came without its file.
    #[error("{kind} without a file descriptor")]
    NoFile {
        /// The kind of the message.
        kind: &'static str,
    },
    /// Indices of regions and rings count from 0.
    #[error("index {index} of a {object} where {expected} was expected")]
    Index {
        /// `region` or `ring`.
        object: &'static str,
        /// The index in the message.
        index: u16,
        /// The next one.
        expected: u16,
    },
    /// Too many regions or rings.
    #[error("more than {limit} {objects}")]
    TooMany {
        /// `regions` or `rings`.
        objects: &'static str,
        /// The limit.
        limit: u16,
    },
    /// The regions are too large.
    #[error("{bytes} bytes of shared memory where {limit} are allowed")]
    TooLarge {
        /// The size of the client's memory with the refused region, in bytes.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The ring is too large.
    #[error("a ring of 2^{log2_size} descriptors where 2^{limit} are allowed")]
    RingSize {
        /// The size in the message.
        log2_size: u8,
        /// The limit.
        limit: u8,
    },
    /// The memory is not usable.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The ring is not inside its region.
    #[error("ring {index}: {violation}")]
    Ring {
        /// The index.
        index: u16,
        /// The violation of the protocol.
        violation: Violation,
    },
    /// The magic number of a ring is missing.
    #[error("ring {index} has not the magic number of memif")]
    Cookie {
        /// The index.
        index: u16,
    },
    /// The client has no ring to receive from.
    #[error("the client has no ring to receive from")]
    NoRing,
    /// The client ended the handshake.
    #[error("the client closed the connection: {reason}")]
    Closed {
        /// The reason that the client gave.
        reason: String,
    },
}

/// The next thing that the server does.
#[derive(Debug)]
pub enum HandshakeStep {
    /// Send this and wait for the next message.
    Reply(Message),
    /// Send this; the connection is established.
    Established(Message, Box<Connection>),
}

/// An established connection.
#[derive(Debug)]
pub struct Connection {
    /// The name of the client's application.
    pub name: String,
    /// The name of the client's interface.
    pub interface: String,
    /// The number of the interface that the client asked for.
    pub id: u32,
    /// Rings to the client.
    pub senders: Vec<ServerSender>,
    /// For each of them the eventfd of the client; see [`crate::Signaller`].
    pub interrupts: Vec<ForeignFile>,
    /// Rings from the client.
    pub receivers: Vec<ServerReceiver>,
    /// Bytes of shared memory.
    pub bytes: u64,
}

/// A handshake.
#[derive(Debug)]
pub struct Negotiation {
    limits: ClientLimits,
    init: Option<Init>,
    regions: Vec<Memory>,
    bytes: u64,
    to_client: Vec<(AddRing, ForeignFile)>,
    to_server: Vec<AddRing>,
}

impl Negotiation {
    /// A new handshake. `limits` beyond those of the protocol are lowered to them.
    #[must_use]
    pub fn new(limits: ClientLimits) -> Self {
        let rings = limits.rings.clamp(1, RINGS_MAX);
        let log2_ring_size = limits.log2_ring_size.min(LOG2_RING_SIZE_MAX);
        Self {
            limits: ClientLimits { rings, log2_ring_size, ..limits },
            init: None,
            regions: Vec::new(),
            bytes: 0,
            to_client: Vec::new(),
            to_server: Vec::new(),
        }
    }

    /// The first message of the server, sent when a client has connected.
    #[must_use]
    pub fn hello(&self, name: &str) -> Message {
        Message::Hello(Hello {
            name: name.to_owned(),
            min_version: VERSION,
            max_version: VERSION,
            max_region: REGIONS_MAX - 1,
            max_s2c_ring: self.limits.rings - 1,
            max_c2s_ring: self.limits.rings - 1,
            max_log2_ring_size: self.limits.log2_ring_size,
        })
    }

    /// Handles a message of the client. `interface` is the name of the server's interface.
    ///
    /// # Errors
    /// The connection must be closed.
    pub fn receive(
        &mut self,
        message: Message,
        file: Option<ForeignFile>,
        interface: &str,
    ) -> Result<HandshakeStep, HandshakeRefusal> {
        let kind = message.kind();
        match message {
            Message::Init(init) if self.init.is_none() => {
                check_init(&init)?;
                self.init = Some(init);
            }
            Message::AddRegion { index, bytes } if self.init.is_some() => {
                self.add_region(index, bytes, &file.ok_or(HandshakeRefusal::NoFile { kind })?)?;
            }
            Message::AddRing(ring) if self.init.is_some() => {
                self.add_ring(ring, file.ok_or(HandshakeRefusal::NoFile { kind })?)?;
            }
            Message::Connect(name) => {
                let Some(init) = self.init.take() else { return Err(HandshakeRefusal::Unexpected { kind }) };
                let reply = Message::Connected(interface.to_owned());
                return Ok(HandshakeStep::Established(reply, Box::new(self.connect(init, name)?)));
            }
            Message::Disconnect(_, reason) => return Err(HandshakeRefusal::Closed { reason }),
            _ => return Err(HandshakeRefusal::Unexpected { kind }),
        }
        Ok(HandshakeStep::Reply(Message::Ack))
    }

    fn add_region(&mut self, index: u16, bytes: u64, file: &ForeignFile) -> Result<(), HandshakeRefusal> {
        check_index("region", index, self.regions.len())?;
        if index >= REGIONS_MAX {
            return Err(HandshakeRefusal::TooMany { objects: "regions", limit: REGIONS_MAX });
        }
        let total = self.bytes.saturating_add(bytes);
        if total > self.limits.bytes {
            return Err(HandshakeRefusal::TooLarge { bytes: total, limit: self.limits.bytes });
        }
        self.regions.push(Memory::map(file, bytes)?);
        self.bytes = total;
        Ok(())
    }

    fn add_ring(&mut self, ring: AddRing, interrupt: ForeignFile) -> Result<(), HandshakeRefusal> {
        let (limit, known) = match ring.direction {
            RingDirection::C2s => (self.limits.rings, self.to_server.len()),
            RingDirection::S2c => (self.limits.rings, self.to_client.len()),
        };
        check_index("ring", ring.index, known)?;
        if ring.index >= limit {
            return Err(HandshakeRefusal::TooMany { objects: "rings", limit });
        }
        if ring.log2_size > self.limits.log2_ring_size {
            let limit = self.limits.log2_ring_size;
            return Err(HandshakeRefusal::RingSize { log2_size: ring.log2_size, limit });
        }
        match ring.direction {
            RingDirection::C2s => self.to_server.push(ring),
            RingDirection::S2c => self.to_client.push((ring, interrupt)),
        }
        Ok(())
    }

    /// The client has announced everything.
    fn connect(&mut self, init: Init, interface: String) -> Result<Connection, HandshakeRefusal> {
        if self.to_client.is_empty() {
            return Err(HandshakeRefusal::NoRing);
        }
        let regions = Regions(Arc::from(std::mem::take(&mut self.regions)));
        let (mut senders, mut interrupts, mut receivers) = (Vec::new(), Vec::new(), Vec::new());
        for (ring, interrupt) in std::mem::take(&mut self.to_client) {
            let sender = ServerSender::new(regions.clone(), &ring);
            senders.push(checked(ring, sender, ServerSender::has_cookie)?);
            interrupts.push(interrupt);
        }
        for ring in std::mem::take(&mut self.to_server) {
            let receiver = ServerReceiver::new(regions.clone(), &ring);
            receivers.push(checked(ring, receiver, ServerReceiver::has_cookie)?);
        }
        let (name, id, bytes) = (init.name, init.id, self.bytes);
        Ok(Connection { name, interface, id, senders, interrupts, receivers, bytes })
    }
}

fn check_init(init: &Init) -> Result<(), HandshakeRefusal> {
    match (init.version, init.mode) {
        (VERSION, ETHERNET) => Ok(()),
        (VERSION, mode) => Err(HandshakeRefusal::Mode { mode }),
        (version, _) => Err(HandshakeRefusal::Version { version }),
    }
}

fn check_index(object: &'static str, index: u16, known: usize) -> Result<(), HandshakeRefusal> {
    // Fewer than 2^16 are known, because each passed this check and the limits.
    let expected = known as u16;
    if index == expected { Ok(()) } else { Err(HandshakeRefusal::Index { object, index, expected }) }
}

fn checked<R>(
    AddRing { index, .. }: AddRing,
    ring: Result<R, Violation>,
    has_cookie: impl Fn(&R) -> bool,
) -> Result<R, HandshakeRefusal> {
    let ring = ring.map_err(|violation| HandshakeRefusal::Ring { index, violation })?;
    if has_cookie(&ring) { Ok(ring) } else { Err(HandshakeRefusal::Cookie { index }) }
}

#[cfg(test)]
mod tests;

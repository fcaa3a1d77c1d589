//! The client's side: connects, allocates memory for rings and buffers, and announces it.
//!
//! The client does not trust the server with more than the contents of frames: regions and offsets of buffers
//! are its own, and indices and lengths of the server are checked ([`super::ring`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::channel::{Channel, Received};
use super::message::{AddRing, Hello, Init, Message, RingDirection};
use super::ring::{
    BUFFER_BYTES_MIN, Buffers, ClientReceiver, ClientSender, LOG2_RING_SIZE_MAX, Regions, Violation,
    ring_bytes,
};
use super::server::RINGS_MAX;
use super::{ETHERNET, VERSION};
use crate::interrupt::{Interrupt, wait_readable};
use crate::{Memory, MemoryError};

/// The largest memory of a connection: offsets have 32 bits.
const REGION_BYTES_MAX: u64 = 1 << 32;
/// How long to wait before connecting again to a server with too many waiting connections.
const RETRY: Duration = Duration::from_millis(5);

/// The settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The name of the application.
    pub name: String,
    /// The name of its interface.
    pub interface: String,
    /// The number of the interface at the server.
    pub id: u32,
    /// Rings in each direction; the server may allow fewer.
    pub rings: u16,
    /// The binary logarithm of the number of descriptors in a ring; the server may allow fewer.
    pub log2_ring_size: u8,
    /// Bytes of one buffer. A longer frame takes several.
    pub buffer_bytes: u32,
    /// The longest time for the handshake.
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "steerd-client".to_owned(),
            interface: "memif0".to_owned(),
            id: 0,
            rings: 1,
            log2_ring_size: 10,
            buffer_bytes: 2048,
            timeout: Duration::from_secs(5),
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens, or the file permissions forbid it.
    #[error("connecting to {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The reason.
        #[source]
        source: Errno,
    },
    /// A value of [`Config`] is not possible.
    #[error("{what} is {value}; possible are {least} to {most}")]
    Config {
        /// The field of [`Config`].
        what: &'static str,
        /// The refused value.
        value: u64,
        /// The least possible value.
        least: u64,
        /// The greatest possible value.
        most: u64,
    },
    /// A system call failed.
    #[error("{operation} failed")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The reason.
        #[source]
        source: Errno,
    },
    /// The memory could not be created.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The server does not answer.
    #[error("the server did not answer in time")]
    Timeout,
    /// The server closed the connection.
    #[error("the server closed the connection: {reason}")]
    Closed {
        /// The reason that the peer gave.
        reason: String,
    },
    /// The server speaks another version.
    #[error("the server supports memif versions {min:#x} to {max:#x}, not {VERSION:#x}")]
    Version {
        /// The lowest version.
        min: u16,
        /// The highest version.
        max: u16,
    },
    /// The server does not follow the protocol.
    #[error("the server sent {got} where {expected} was expected")]
    Unexpected {
        /// The message that the peer sent.
        got: &'static str,
        /// The message that the protocol demands.
        expected: &'static str,
    },
    /// The server broke a rule of the rings.
    #[error("the server broke the protocol: {0}")]
    Violation(#[from] Violation),
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    /// The name of the server's application.
    pub server: String,
    /// The name of the server's interface.
    pub interface: String,
    /// Rings from the server.
    pub receivers: Vec<ClientReceiver>,
    /// Rings to the server.
    pub senders: Vec<ClientSender>,
    receiver_interrupts: Vec<Interrupt>,
    sender_interrupts: Vec<Interrupt>,
    regions: Regions,
}

impl Client {
    /// Connects and waits until the connection is established, at most [`Config::timeout`].
    ///
    /// # Errors
    /// There is no server, it refuses the client, or the memory cannot be created.
    pub fn connect(path: &Path, config: &Config) -> Result<Self, ClientError> {
        check(config)?;
        let deadline = Instant::now() + config.timeout;
        let channel = open(path, deadline)?;
        let hello = expect(&channel, deadline, "HELLO", |message| match message {
            Message::Hello(hello) => Ok(hello),
            other => Err(other),
        })?;
        let layout = Layout::new(config, &hello)?;
        let mut client = layout.build(channel, hello.name)?;
        let init = Init {
            version: VERSION,
            id: config.id,
            mode: ETHERNET,
            secret: [0; 24],
            name: config.name.clone(),
        };
        client.call(&Message::Init(init), None, deadline)?;
        let bytes = layout.bytes as u64;
        client.call(&Message::AddRegion { index: 0, bytes }, Some(client.file.as_fd()), deadline)?;
        for direction in [RingDirection::C2s, RingDirection::S2c] {
            for index in 0..layout.rings {
                let interrupt = client.interrupt(direction, index).map(AsFd::as_fd);
                client.call(&Message::AddRing(layout.ring(direction, index)), interrupt, deadline)?;
            }
        }
        client.send(&Message::Connect(config.interface.clone()), None)?;
        client.client.interface =
            expect(&client.client.channel, deadline, "CONNECTED", |message| match message {
                Message::Connected(name) => Ok(name),
                other => Err(other),
            })?;
        for receiver in &mut client.client.receivers {
            receiver.publish()?;
        }
        Ok(client.client)
    }

    /// Whether the server is still there; the reason why not if it gave one. Makes a system call.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn check(&self) -> Result<(), ClientError> {
        let reason = match self.channel.receive() {
            Received::Nothing => return Ok(()),
            Received::Message(Message::Disconnect(_, reason), _) => reason,
            Received::Message(..) | Received::Invalid => "unexpected message".to_owned(),
            Received::End => "the process has exited".to_owned(),
        };
        Err(ClientError::Closed { reason })
    }

    /// Waits until a frame has arrived in any ring, the server has closed the connection, or `timeout` is
    /// over.
    ///
    /// # Errors
    /// The server broke a rule; the connection must end.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), ClientError> {
        let mut ready = false;
        for receiver in &mut self.receivers {
            ready |= receiver.arm()?;
        }
        if !ready {
            let interrupts = self.receiver_interrupts.iter().map(AsFd::as_fd);
            let files: Vec<BorrowedFd<'_>> = interrupts.chain([self.channel.as_fd()]).collect();
            wait_readable(&files, timeout);
        }
        self.receivers.iter().for_each(ClientReceiver::disarm);
        self.receiver_interrupts.iter().for_each(Interrupt::clear);
        Ok(())
    }

    /// Makes the frames of a ring to the server visible to it, and interrupts it if it waits.
    pub fn publish(&mut self, ring: usize) {
        if let (Some(sender), Some(interrupt)) =
            (self.senders.get_mut(ring), self.sender_interrupts.get(ring))
            && sender.publish()
        {
            interrupt.raise();
        }
    }

    /// Ends the connection and gives the server the reason.
    pub fn close(self, reason: &str) {
        let _ = self.channel.send(&Message::Disconnect(0, reason.to_owned()), None);
    }

    /// The shared memory, as the server sees it: rings to the server, rings from the server, buffers. For
    /// tests of servers; what is written here breaks the protocol.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.regions.0[0]
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A client during the handshake.
struct Connecting {
    client: Client,
    file: OwnedFd,
}

impl Connecting {
    fn interrupt(&self, direction: RingDirection, index: u16) -> Option<&Interrupt> {
        let interrupts = match direction {
            RingDirection::C2s => &self.client.sender_interrupts,
            RingDirection::S2c => &self.client.receiver_interrupts,
        };
        interrupts.get(usize::from(index))
    }

    fn send(&self, message: &Message, file: Option<BorrowedFd<'_>>) -> Result<(), ClientError> {
        let failed = |source| ClientError::System { operation: "sending a message", source };
        match self.client.channel.send(message, file) {
            // The server may have given a reason before it closed the connection.
            Err(Errno::PIPE | Errno::CONNRESET) => {
                self.client.check()?;
                Err(failed(Errno::PIPE))
            }
            sent => sent.map_err(failed),
        }
    }

    /// Sends a message and waits for its ACK.
    fn call(
        &self,
        message: &Message,
        file: Option<BorrowedFd<'_>>,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        self.send(message, file)?;
        expect(&self.client.channel, deadline, "ACK", |message| match message {
            Message::Ack => Ok(()),
            other => Err(other),
        })
    }
}

/// Where rings and buffers are in the region.
struct Layout {
    rings: u16,
    log2_size: u8,
    buffer_bytes: u32,
    bytes: usize,
}

impl Layout {
    fn new(config: &Config, hello: &Hello) -> Result<Self, ClientError> {
        if hello.min_version > VERSION || hello.max_version < VERSION {
            return Err(ClientError::Version { min: hello.min_version, max: hello.max_version });
        }
        let allowed = hello.max_s2c_ring.min(hello.max_c2s_ring).saturating_add(1);
        let rings = config.rings.min(allowed);
        let log2_size = config.log2_ring_size.min(hello.max_log2_ring_size);
        let buffer_bytes = config.buffer_bytes;
        let buffers = 2 * (u64::from(rings) << log2_size) * u64::from(buffer_bytes);
        let bytes = 2 * u64::from(rings) * ring_bytes(log2_size) as u64 + buffers;
        let possible = usize::try_from(bytes).ok().filter(|_| bytes < REGION_BYTES_MAX);
        let most = REGION_BYTES_MAX - 1;
        let bytes = possible.ok_or(ClientError::Config { what: "memory", value: bytes, least: 0, most })?;
        Ok(Self { rings, log2_size, buffer_bytes, bytes })
    }

    /// The number of a ring among all.
    fn number(&self, direction: RingDirection, index: u16) -> u32 {
        let before = if direction == RingDirection::C2s { 0 } else { self.rings };
        u32::from(before + index)
    }

    fn ring(&self, direction: RingDirection, index: u16) -> AddRing {
        // Below `REGION_BYTES_MAX`, as the whole region is.
        let offset = self.number(direction, index) * ring_bytes(self.log2_size) as u32;
        AddRing { direction, index, region: 0, offset, log2_size: self.log2_size }
    }

    fn buffers(&self, direction: RingDirection, index: u16) -> Buffers {
        let rings = 2 * u32::from(self.rings) * ring_bytes(self.log2_size) as u32;
        let before = (self.number(direction, index) << self.log2_size) * self.buffer_bytes;
        Buffers { region: 0, offset: rings + before, buffer_bytes: self.buffer_bytes }
    }

    fn build(&self, channel: Channel, server: String) -> Result<Connecting, ClientError> {
        let (memory, file) = Memory::create("memif", self.bytes)?;
        let regions = Regions(Arc::new([memory]));
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for index in 0..self.rings {
            let (to_server, to_client) =
                (self.ring(RingDirection::C2s, index), self.ring(RingDirection::S2c, index));
            let buffers = |direction| self.buffers(direction, index);
            senders.push(ClientSender::new(regions.clone(), &to_server, buffers(RingDirection::C2s))?);
            receivers.push(ClientReceiver::new(regions.clone(), &to_client, buffers(RingDirection::S2c))?);
        }
        let interrupts = || {
            let each = (0..self.rings).map(|_| Interrupt::new()).collect::<Result<_, _>>();
            each.map_err(|source| ClientError::System { operation: "eventfd", source })
        };
        let client = Client {
            channel,
            server,
            interface: String::new(),
            receivers,
            senders,
            receiver_interrupts: interrupts()?,
            sender_interrupts: interrupts()?,
            regions,
        };
        Ok(Connecting { client, file })
    }
}

fn check(config: &Config) -> Result<(), ClientError> {
    let longest = u64::from(u16::MAX);
    for (what, value, least, most) in [
        ("rings", u64::from(config.rings), 1, u64::from(RINGS_MAX)),
        ("log2_ring_size", u64::from(config.log2_ring_size), 1, u64::from(LOG2_RING_SIZE_MAX)),
        ("buffer_bytes", u64::from(config.buffer_bytes), u64::from(BUFFER_BYTES_MIN), longest),
    ] {
        if !(least..=most).contains(&value) {
            return Err(ClientError::Config { what, value, least, most });
        }
    }
    Ok(())
}

fn open(path: &Path, deadline: Instant) -> Result<Channel, ClientError> {
    loop {
        match Channel::connect(path) {
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY),
            connected => {
                let failed = |source| ClientError::Connect { path: path.to_owned(), source };
                return connected.map_err(failed);
            }
        }
    }
}

/// Waits for a message of one kind.
fn expect<T>(
    channel: &Channel,
    deadline: Instant,
    expected: &'static str,
    accept: impl Fn(Message) -> Result<T, Message>,
) -> Result<T, ClientError> {
    loop {
        match channel.receive() {
            Received::Message(Message::Disconnect(_, reason), _) => {
                return Err(ClientError::Closed { reason });
            }
            Received::Message(message, _) => {
                return accept(message)
                    .map_err(|other| ClientError::Unexpected { got: other.kind(), expected });
            }
            Received::Invalid => return Err(ClientError::Unexpected { got: "no message", expected }),
            Received::End => {
                return Err(ClientError::Closed { reason: format!("no {expected} was received") });
            }
            Received::Nothing => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ClientError::Timeout);
                }
                wait_readable(&[channel.as_fd()], left);
            }
        }
    }
}

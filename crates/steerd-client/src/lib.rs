//! Receives packets from a `steerd` sink of kind `app`, and sends packets back, through shared memory. With
//! the feature `api`, the module `api` calls the local API: rules at run time, reloads.
//!
//! [`SinkClient`] connects to the socket of the sink and waits for packets. When the server restarts, it connects
//! again. The protocol is memif, so it works with other servers too.
//!
//! ```
//! use std::time::Duration;
//!
//! use steerd_client::{Options, PacketBatch, SinkClient};
//! # use shm::memif::server::{ClientLimits, HandshakeStep, Negotiation};
//! # use shm::{Closer, Listener, Received};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("app.sock");
//! # let listener = Listener::bind(&path, 0o600, &Closer::start()?)?;
//! # let _server = std::thread::spawn(move || {
//! #     let channel = loop {
//! #         let Some(channel) = listener.accept().unwrap() else { continue };
//! #         break channel;
//! #     };
//! #     let mut negotiation = Negotiation::new(ClientLimits { rings: 1, log2_ring_size: 10, bytes: 64 << 20 });
//! #     channel.send(&negotiation.hello("server"), None).unwrap();
//! #     loop {
//! #         let Received::Message(message, file) = channel.receive() else { continue };
//! #         match negotiation.receive(message, file, "if0").unwrap() {
//! #             HandshakeStep::Reply(reply) => channel.send(&reply, None).unwrap(),
//! #             HandshakeStep::Established(reply, mut connection) => {
//! #                 channel.send(&reply, None).unwrap();
//! #                 loop {
//! #                     let _ = connection.senders[0].put(&[7; 60]).unwrap();
//! #                     let _ = connection.senders[0].publish();
//! #                     std::thread::sleep(Duration::from_millis(1));
//! #                 }
//! #             }
//! #         }
//! #     }
//! # });
//! let mut client = SinkClient::new(&path, Options { name: "example".to_owned(), ..Options::default() })?;
//! let mut batch = PacketBatch::new(64);
//! while batch.is_empty() {
//!     client.receive(&mut batch, Duration::from_millis(100));
//! }
//! for packet in batch.iter() {
//!     println!("{} bytes", packet.len());
//!     client.send(packet);
//! }
//! client.flush();
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "api")]
pub mod api;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shm::memif::client::{Client as Connection, Config};
use shm::memif::ring::{Put, TakenFrame, Violation};

pub use shm::memif::client::ClientError;

/// The longest packet; longer ones are counted as [`Counts::too_long`].
pub const PACKET_BYTES_MAX: usize = 16 << 10;
/// The least time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);
/// How often a busy client checks that the server is there, in calls of [`SinkClient::receive`]. An idle one
/// learns it at once.
const CALLS_PER_CHECK: u32 = 256;

/// The options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of the application, for the status of the server.
    pub name: String,
    /// Rings in each direction; the server may allow fewer. As many as the server has workers is best.
    pub rings: u16,
    /// Descriptors in a ring, rounded up to a power of two; the server may allow fewer.
    pub ring_size: u32,
    /// Bytes of one buffer; a longer packet takes several.
    pub buffer_bytes: u32,
    /// The longest time of an attempt to connect.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let Config { name, rings, log2_ring_size, buffer_bytes, timeout, .. } = Config::default();
        Self { name, rings, ring_size: 1 << log2_ring_size, buffer_bytes, timeout }
    }
}

/// The totals of a client since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets received.
    pub received: u64,
    /// Packets longer than [`PACKET_BYTES_MAX`], which were skipped.
    pub too_long: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets that were not sent, because the ring was full, they were too long, or there was no connection.
    pub not_sent: u64,
    /// Connections that were established.
    pub connections: u64,
}

/// Packets that were received together, copied out of shared memory.
#[derive(Clone, Debug)]
pub struct PacketBatch {
    bytes: Vec<u8>,
    /// Where each packet ends in `bytes`.
    ends: Vec<usize>,
    limit: usize,
}

impl PacketBatch {
    /// An empty batch of at most `limit` packets.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let limit = limit.max(1);
        Self { bytes: vec![0; limit * 2048 + PACKET_BYTES_MAX], ends: Vec::with_capacity(limit), limit }
    }

    /// The packets in order of reception.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(&start, &end)| &self.bytes[start..end])
    }

    /// The number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn clear(&mut self) {
        self.ends.clear();
    }

    /// The rest of the memory, if another packet of any length fits.
    fn room(&mut self) -> Option<&mut [u8]> {
        let used = self.ends.last().copied().unwrap_or_default();
        let fits = self.ends.len() < self.limit && self.bytes.len() - used >= PACKET_BYTES_MAX;
        fits.then(|| &mut self.bytes[used..used + PACKET_BYTES_MAX])
    }

    fn push(&mut self, bytes: usize) {
        self.ends.push(self.ends.last().copied().unwrap_or_default() + bytes);
    }
}

/// A client of a sink. It reconnects when the server restarts.
#[derive(Debug)]
pub struct SinkClient {
    path: PathBuf,
    config: Config,
    connection: Option<Connection>,
    /// When the last attempt to connect was made.
    attempt: Instant,
    /// The ring that the next packet is received from, and the one that it is sent to.
    ring: usize,
    calls: u32,
    counts: Counts,
    last_error: Option<ClientError>,
}

impl SinkClient {
    /// Connects to the socket of a sink.
    ///
    /// # Errors
    /// There is no server, or it refuses the client; the message has its reason.
    pub fn new(path: &Path, options: Options) -> Result<Self, ClientError> {
        let Options { name, rings, ring_size, buffer_bytes, timeout } = options;
        let log2 = ring_size.checked_next_power_of_two().map_or(u8::MAX, |size| size.ilog2() as u8);
        let config = Config { name, rings, log2_ring_size: log2, buffer_bytes, timeout, ..Config::default() };
        let mut client = Self {
            path: path.to_owned(),
            config,
            connection: None,
            attempt: Instant::now(),
            ring: 0,
            calls: 0,
            counts: Counts::default(),
            last_error: None,
        };
        client.connect()?;
        Ok(client)
    }

    fn connect(&mut self) -> Result<(), ClientError> {
        self.attempt = Instant::now();
        self.connection = Some(Connection::connect(&self.path, &self.config)?);
        self.counts.connections += 1;
        Ok(())
    }

    /// Replaces the packets of `batch` by those that have arrived; waits for the first at most `timeout`.
    /// Without a connection, it tries to connect, and the batch stays empty; [`SinkClient::last_error`] has
    /// the reason.
    pub fn receive(&mut self, batch: &mut PacketBatch, timeout: Duration) {
        batch.clear();
        if let Err(error) = self.try_receive(batch, timeout) {
            self.connection = None;
            self.last_error = Some(error);
        }
    }

    fn try_receive(&mut self, batch: &mut PacketBatch, timeout: Duration) -> Result<(), ClientError> {
        if self.connection.is_none() {
            let pause = RETRY.saturating_sub(self.attempt.elapsed());
            std::thread::sleep(pause.min(timeout));
            if pause > timeout {
                return Ok(());
            }
            self.connect()?;
        }
        let Some(connection) = &mut self.connection else { return Ok(()) };
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CALLS_PER_CHECK) {
            connection.check()?;
        }
        self.ring = take(connection, self.ring, batch, &mut self.counts)?;
        if batch.is_empty() && !timeout.is_zero() {
            connection.wait(timeout)?;
            self.ring = take(connection, self.ring, batch, &mut self.counts)?;
            if batch.is_empty() {
                connection.check()?;
            }
        }
        Ok(())
    }

    /// Sends a packet back; it leaves with [`SinkClient::flush`]. Returns whether there was room for it.
    pub fn send(&mut self, packet: &[u8]) -> bool {
        let sent = self.connection.as_mut().is_some_and(|connection| {
            let ring = self.ring % connection.senders.len();
            connection.senders[ring].put(packet) == Ok(Put::Done)
        });
        let count = if sent { &mut self.counts.sent } else { &mut self.counts.not_sent };
        *count += 1;
        sent
    }

    /// Makes the sent packets visible to the server.
    pub fn flush(&mut self) {
        if let Some(connection) = &mut self.connection {
            for ring in 0..connection.senders.len() {
                connection.publish(ring);
            }
        }
    }

    /// Whether there is a connection, as far as is known.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Why the last connection ended, or the last attempt failed.
    #[must_use]
    pub fn last_error(&self) -> Option<&ClientError> {
        self.last_error.as_ref()
    }

    /// Returns the totals since the client was made.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Ends the connection and gives the server the reason.
    pub fn close(mut self, reason: &str) {
        if let Some(connection) = self.connection.take() {
            connection.close(reason);
        }
    }
}

/// Takes packets from all rings in turns, beginning with `first`. Returns the ring to begin with next time.
fn take(
    connection: &mut Connection,
    first: usize,
    batch: &mut PacketBatch,
    counts: &mut Counts,
) -> Result<usize, Violation> {
    let rings = connection.receivers.len();
    for offset in 0..rings {
        let ring = (first + offset) % rings;
        let receiver = &mut connection.receivers[ring];
        while let Some(room) = batch.room() {
            match receiver.take(room)? {
                TakenFrame::Empty => break,
                TakenFrame::Frame(bytes) => {
                    batch.push(bytes);
                    counts.received += 1;
                }
                TakenFrame::TooLong(_) => counts.too_long += 1,
            }
        }
        receiver.publish()?;
    }
    Ok((first + 1) % rings)
}

//! Memory shared with processes that are not trusted, and the memif protocol over it, in both roles.
//!
//! [`Memory`] is a memfd that cannot shrink. [`memif`] has the messages, the handshake and the rings.
//! [`Channel`] and [`Listener`] are the unix socket, with the credentials of the peer; a [`Closer`] closes
//! what comes with them; [`listen_at`] makes the file of any unix socket. [`Interrupt`] and [`Signaller`]
//! wake processes.
//!
//! Whatever a peer writes, into memory or messages, is read once, checked and then used from the copy. Every
//! `unsafe` block of the crate is behind a safe function that checks its arguments, so code that uses the
//! crate needs none.
//!
//! ```
//! use std::time::Duration;
//!
//! use shm::memif::client::{Client, Config};
//! use shm::memif::ring::{Put, TakenFrame};
//! use shm::memif::server::{ClientLimits, HandshakeStep, Negotiation};
//! use shm::{Closer, Listener, Received};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("app.sock");
//! let listener = Listener::bind(&path, 0o600, &Closer::start()?)?;
//! let client = std::thread::spawn(move || Client::connect(&path, &Config::default()));
//!
//! let channel = loop {
//!     let Some(channel) = listener.accept()? else { continue };
//!     break channel;
//! };
//! let mut negotiation = Negotiation::new(ClientLimits { rings: 1, log2_ring_size: 10, bytes: 64 << 20 });
//! channel.send(&negotiation.hello("server"), None)?;
//! let mut connection = loop {
//!     let Received::Message(message, file) = channel.receive() else { continue };
//!     match negotiation.receive(message, file, "if0")? {
//!         HandshakeStep::Reply(reply) => channel.send(&reply, None)?,
//!         HandshakeStep::Established(reply, connection) => {
//!             channel.send(&reply, None)?;
//!             break connection;
//!         }
//!     }
//! };
//! let mut client = client.join().expect("no panic")?;
//!
//! assert_eq!(connection.senders[0].put(b"a frame")?, Put::Done);
//! let _ = connection.senders[0].publish();
//! let mut frame = [0; 2048];
//! assert_eq!(client.receivers[0].take(&mut frame)?, TakenFrame::Frame(7));
//! assert_eq!(&frame[..7], b"a frame");
//! # Ok(())
//! # }
//! ```

mod closer;
mod interrupt;
pub mod memif;
mod memory;
mod socket_file;

pub use closer::{Closer, ForeignFile};
pub use interrupt::{Interrupt, Signaller};
pub use memif::channel::{Channel, ListenError, Listener, Peer, Received};
pub use memory::{Memory, MemoryError};
pub use socket_file::{BindError, SocketFile, listen_at};

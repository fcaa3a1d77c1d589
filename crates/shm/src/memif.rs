//! The memif protocol, version 2.0: packets between two processes through memory that both map.
//!
//! The *server* listens on a unix socket; the *client* connects, allocates the memory and announces it with
//! the messages of [`message`]. After that, frames go through [`ring`]s and the socket is only watched for
//! its end. The protocol is that of libmemif and of DPDK's `net_memif` (there also: "master" and "slave");
//! its specification is the documentation of both (`doc/guides/nics/memif.rst` of DPDK, `extras/libmemif` of
//! VPP).
//!
//! Implemented are Ethernet mode, several regions and rings, chains of descriptors, and interrupts. Not
//! implemented are IP and punt/inject mode, secrets (the server checks the credentials of the peer instead),
//! private headers, and memory in huge pages, which includes `zero-copy=yes` of `net_memif`.

pub mod channel;
pub mod client;
pub mod message;
pub mod ring;
pub mod server;

/// The version of the protocol: 2.0.
pub const VERSION: u16 = 0x200;
/// Interface mode of Ethernet frames.
const ETHERNET: u8 = 0;

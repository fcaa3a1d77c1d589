//! Takes claimed packets from an interface by XDP, and leaves all others to the host.
//!
//! An XDP program (`program/steer.c`) runs for each packet that an interface receives, before the host's
//! network stack does. It reads the packed image of the outer headers ([`packet::cube`]) and looks it up in
//! decision trees, in memory that it shares with this process: a packet that a [`Claim`] matches is
//! redirected to the AF_XDP socket of its queue, all others are passed to the host. [`ClaimTable`] adds and
//! removes claims while the program runs, without a system call for most of them.
//!
//! # What is promised
//! - A packet that arrives after [`ClaimTable::add`] returned is not passed if the claim matches it, until
//!   the claim is removed.
//! - A packet that arrives after [`ClaimTable::remove`] returned is not redirected for that claim.
//! - Where the trees have no room for a claim, more packets are redirected than are claimed
//!   ([`ClaimReport::widened`]), never fewer.
//!
//! The argument is in `tree`. The program ends with the [`Attachment`], which is a `bpf_link`, so also when
//! the process is killed.
//!
//! # Privileges
//! CAP_BPF and CAP_NET_ADMIN.
//!
//! ```no_run
//! use std::os::fd::AsFd;
//! use xdp::{Claim, ProgramOptions};
//!
//! # fn socket() -> std::fs::File { unimplemented!() }
//! let (mut program, mut claims) = xdp::load(&ProgramOptions::default())?;
//! // Everything over UDP (`packet::cube` describes the image).
//! let udp = 1 << packet::cube::HAS_UDP.shift();
//! claims.add(&Claim::new([udp, 0, 0, 0, 0, 0, 0, 0], [udp, 0, 0, 0, 0, 0, 0, 0]))?;
//! program.set_socket(0, socket().as_fd())?;
//! let attachment = program.attach("eth0", 2)?;
//! # Ok::<(), xdp::XdpError>(())
//! ```

mod blocks;
mod claims;
mod error;
mod grace;
mod map_in_map;
mod memory;
mod occupant;
mod program;
mod tree;

pub use claims::{ClaimReport, ClaimTable};
pub use error::{PRIVILEGES, XdpError};
pub use program::{
    AttachMode, Attachment, ForwardingCounters, FrameTrial, MAX_CLAIMS, ProgramOptions, SteeringProgram,
    Unserved, check_free, load,
};
pub use tree::Claim;

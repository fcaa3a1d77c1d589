//! Takes claimed packets from an interface by XDP, or drops them, and leaves all others to the host.
//!
//! An XDP program (`program/steer.c`) runs for each packet that an interface receives, before the host's
//! network stack does. It reads the packed image of the outer headers ([`packet::cube`]) and looks it up in
//! decision trees, in memory that it shares with this process: a packet that a [`Claim`] matches is
//! redirected to the AF_XDP socket of its queue, all others are passed to the host. [`ClaimTable`] adds and
//! removes claims while the program runs, without a system call for most of them. Packets of
//! claims that are to be dropped are dropped and counted there ([`DropCounter`]), unless a claim that comes
//! first matches them.
//!
//! # What is promised
//! - A packet that arrives after [`ClaimTable::add`] returned is not passed if the claim matches it, until
//!   the claim is removed.
//! - A packet that arrives after [`ClaimTable::remove`] returned is neither redirected nor dropped for that
//!   claim.
//! - A packet is dropped only if all claims that come first of those that match it drop; it is counted for
//!   one of them. Redirected instead are packets longer than [`ProgramOptions::drop_bytes_max`], and all
//!   while drops are not allowed ([`AllDrops::allow`]).
//! - While claims change, a packet that would be passed or dropped may be redirected.
//! - On processors that reorder loads (ARM), with kernels before Linux 5.18, a packet that arrives while
//!   claims change may be passed by a mixture of the claims before and after.
//! - Where the trees have no room for a claim, more packets are redirected than are claimed
//!   ([`ClaimReport::widened`]), never fewer.
//!
//! The arguments are in `tree`, `claims` and `drops`. The program ends with the [`Attachment`], which is a
//! `bpf_link`, so also when the process is killed.
//!
//! # Privileges
//! Those of [`privileges`].
//!
//! ```no_run
//! use std::os::fd::AsFd;
//! use xdp::{Claim, ClaimAction, ProgramOptions};
//!
//! # fn socket() -> std::fs::File { unimplemented!() }
//! let (mut program, mut claims) = xdp::load(&ProgramOptions::default())?;
//! // Everything over UDP (`packet::cube` describes the image).
//! let udp = 1 << packet::cube::HAS_UDP.shift();
//! let claim = Claim::new([udp, 0, 0, 0, 0, 0, 0, 0], [udp, 0, 0, 0, 0, 0, 0, 0]);
//! claims.add(&claim, 0, ClaimAction::Redirect)?;
//! program.set_socket(0, socket().as_fd())?;
//! let attachment = program.attach("eth0", 2)?;
//! # Ok::<(), xdp::XdpError>(())
//! ```

mod blocks;
mod claims;
mod drops;
mod error;
mod grace;
mod link;
mod map_in_map;
mod memory;
mod offline;
mod program;
mod tree;

pub use claims::{ClaimAction, ClaimReport, ClaimTable};
pub use drops::{AllDrops, DropCounter, Dropped};
pub use error::{CAPABILITIES, XdpError, privileges};
pub use link::attached_program;
pub use program::{
    AttachMode, Attachment, ForwardingCounters, FrameTrial, MAX_CLAIMS, ProgramOptions, SteeringProgram,
    Unserved, check_free, check_stacking, load,
};
pub use tree::Claim;

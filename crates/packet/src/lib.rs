//! What a frame says, without touching the network: flow keys, receive-side hashing, and a small write side.
//!
//! softnic's engine calls [`parse`] once per frame and the worker where a class needs a look at the packet, policy
//! matches on [`FlowKey`]s and [`DeepKey`]s and shares [`RssKey`] and [`HashFields`] with softnic, `steerd explain` reads and prints the
//! names, and tests and the generator build frames with [`build::FrameBuilder`]. It does no I/O, reads no clock, and
//! neither panics nor allocates on the packet path.
#![forbid(unsafe_code)]

mod anomaly;
pub mod build;
pub mod checksum;
mod error;
mod flags;
mod flow_key;
mod hash_fields;
mod mac;
mod numbers;
mod parse;
mod toeplitz;
mod tunnel;

pub use anomaly::Anomaly;
pub use error::Error;
pub use flags::{Flag, GRE_FLAGS, IP_FLAGS, TCP_FLAGS, flag_pattern};
pub use flow_key::{FlowKey, Layers};
pub use hash_fields::{HASH_INPUT_BYTES, HashFields};
pub use mac::MacAddr;
pub use numbers::{EtherType, IpProtocol};
pub use parse::{Parsed, parse};
pub use toeplitz::{RSS_KEY_BYTES, RssKey, Toeplitz};
pub use tunnel::{
    DeepKey, MAX_MPLS_LABELS, MPLS_UDP_PORT, TunnelKey, TunnelLayers, VXLAN_UDP_PORT, parse_tunnel,
};

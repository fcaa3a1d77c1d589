//! Frames: the table of header fields ([`FIELDS`]), packed images of matches ([`cube`]), the parser, RSS
//! hashing, checksums and a frame builder. No I/O; nothing on the packet path panics or allocates.
//!
//! [`parse`] and [`parse_tunnel`] read the headers of a frame; [`FlowKey`] and [`TunnelKey`] are what matches
//! are compared with. Code that needs a list of fields iterates over [`FIELDS`] and asks each row for its
//! properties.
//!
//! ```
//! use packet::{Field, FlowKey, build::FrameBuilder};
//!
//! let frame = FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 7].into()).udp(1024, 53).build();
//! let key = FlowKey::of(&frame);
//! assert_eq!(Field::DstPort.in_packet(&key), 53);
//! let text: Vec<String> = key.fields(false).map(|(field, value)| field.text(value)).collect();
//! assert!(text.contains(&"198.51.100.7".to_owned()));
//! ```
#![forbid(unsafe_code)]

mod anomaly;
pub mod build;
pub mod checksum;
pub mod cube;
mod error;
mod field;
mod flow_key;
mod hash_fields;
mod head;
mod image;
mod lengths;
mod mac;
mod numbers;
pub mod offload;
mod packet_flow;
mod parse;
pub mod rewrite;
pub mod segment;
#[allow(missing_docs)] // the slots are documented by the table at the top of the module
mod slots;
pub mod stack;
mod toeplitz;
mod tunnel;

pub use anomaly::Anomaly;
pub use error::PacketTextError;
pub use field::{FIELDS, Field, Flag, Form, GRE_FLAGS, Header, IP_FLAGS, Row, TCP_FLAGS, flag_pattern};
pub use flow_key::{ExtendedKey, FlowKey, Layers};
pub use hash_fields::{HASH_INPUT_BYTES, HashFields};
pub use head::FrameHead;
pub use image::read_image;
pub use mac::{MacAddr, mac_address, mac_number};
pub use numbers::{EtherType, IpProtocol};
pub use packet_flow::PacketFlow;
pub use parse::{Parsed, parse};
pub use toeplitz::{RSS_KEY_BYTES, RssKey, Toeplitz};
pub use tunnel::{
    BOTTOM_OF_STACK, BRIDGED_ETHERNET, DeepKey, GRE_HAS_KEY, MAX_MPLS_LABELS, MPLS_UDP_PORT, TunnelKey,
    TunnelLayers, VXLAN_UDP_PORT, parse_tunnel,
};

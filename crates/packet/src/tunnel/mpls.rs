//! MPLS label stacks (RFC 3032): behind Ethernet, in GRE (RFC 4023), in UDP (RFC 7510).

use super::{TunnelKey, TunnelLayers};
use crate::Layers;

/// How much of a stack is read; behind a deeper one nothing is.
pub const MAX_MPLS_LABELS: usize = 4;
/// The destination port that says MPLS in UDP (IANA).
pub const MPLS_UDP_PORT: u16 = 6635;

const ENTRY_BYTES: usize = 4;
/// Set in the last entry of the stack.
const BOTTOM: u32 = 1 << 8;

/// The first entry of a stack.
pub(super) fn top(stack: &[u8]) -> Option<u32> {
    stack.first_chunk::<ENTRY_BYTES>().map(|entry| u32::from_be_bytes(*entry))
}

pub(super) fn read(key: &mut TunnelKey, mut stack: &[u8]) {
    for place in 0..MAX_MPLS_LABELS {
        let Some((entry, rest)) = stack.split_first_chunk::<ENTRY_BYTES>() else { return };
        let entry = u32::from_be_bytes(*entry);
        stack = rest;
        key.layers |= TunnelLayers::MPLS;
        key.mpls[place] = entry;
        key.mpls_depth += 1;
        if entry & BOTTOM != 0 {
            return payload(key, stack);
        }
    }
}

/// Nothing says what the labels are about; routers look at the first nibble (RFC 4928, 2), and so does this.
fn payload(key: &mut TunnelKey, packet: &[u8]) {
    let version = match packet.first().map(|first| first >> 4) {
        Some(4) => Layers::IPV4,
        Some(6) => Layers::IPV6,
        _ => return,
    };
    key.inner_ip(packet, version);
}

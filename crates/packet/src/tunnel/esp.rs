//! Encapsulating Security Payload (RFC 4303): who the peers agreed to be, in clear; the rest is theirs.

use super::{TunnelKey, TunnelLayers};

/// Index and sequence number.
const HEADER_BYTES: usize = 8;

pub(super) fn read(key: &mut TunnelKey, packet: &[u8]) {
    let Some(&[i0, i1, i2, i3, s0, s1, s2, s3]) = packet.first_chunk::<HEADER_BYTES>() else { return };
    key.layers |= TunnelLayers::ESP;
    key.esp_spi = u32::from_be_bytes([i0, i1, i2, i3]);
    key.esp_seq = u32::from_be_bytes([s0, s1, s2, s3]);
}

//! Virtual eXtensible LAN (RFC 7348): an Ethernet frame in a UDP datagram, with a 24-bit network identifier.

use super::{TunnelKey, TunnelLayers};

/// The destination port that says VXLAN (IANA).
pub const VXLAN_UDP_PORT: u16 = 4789;
/// Flags, reserved bits and the identifier.
const HEADER_BYTES: usize = 8;
/// The I flag: the identifier is valid; without it a receiver drops the packet (RFC 7348, 5).
const VNI_VALID: u8 = 0x08;

pub(super) fn read(key: &mut TunnelKey, datagram: &[u8]) {
    let Some((header, frame)) = datagram.split_first_chunk::<HEADER_BYTES>() else { return };
    let [flags, _, _, _, n0, n1, n2, _] = *header;
    if flags & VNI_VALID == 0 {
        return;
    }
    key.layers |= TunnelLayers::VXLAN;
    key.vxlan_vni = u32::from_be_bytes([0, n0, n1, n2]);
    key.inner_ethernet(frame);
}

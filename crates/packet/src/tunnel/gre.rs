//! Generic Routing Encapsulation, version 0 (RFC 2784, with the key and sequence number of RFC 2890).

use super::{TunnelKey, TunnelLayers, mpls};
use crate::{EtherType, Layers};

/// The flags and the protocol: what every header has.
const HEADER_BYTES: usize = 4;

/// Bits of the first word.
const CHECKSUM_PRESENT: u16 = 0x8000;
/// RFC 1701: a source route of any length follows, which no receiver must understand (RFC 2784, 2.3).
const ROUTING_PRESENT: u16 = 0x4000;
const KEY_PRESENT: u16 = 0x2000;
const SEQUENCE_PRESENT: u16 = 0x1000;
const VERSION: u16 = 0x0007;

/// Each optional field: a checksum with reserved bits, the key, the sequence number.
const FIELD_BYTES: usize = 4;

/// Transparent Ethernet bridging.
const BRIDGED_ETHERNET: EtherType = EtherType(0x6558);

pub(super) fn read(key: &mut TunnelKey, packet: &[u8]) {
    let Some((&[f0, f1, p0, p1], mut rest)) = packet.split_first_chunk::<HEADER_BYTES>() else { return };
    let flags = u16::from_be_bytes([f0, f1]);
    let protocol = u16::from_be_bytes([p0, p1]);
    if flags & (VERSION | ROUTING_PRESENT) != 0 {
        return;
    }
    let mut found = None;
    for field in [CHECKSUM_PRESENT, KEY_PRESENT, SEQUENCE_PRESENT] {
        if flags & field != 0 {
            let Some((value, after)) = rest.split_first_chunk::<FIELD_BYTES>() else { return };
            if field == KEY_PRESENT {
                found = Some(u32::from_be_bytes(*value));
            }
            rest = after;
        }
    }
    key.layers |= TunnelLayers::GRE;
    key.gre_flags = flags;
    key.gre_protocol = protocol;
    if let Some(value) = found {
        key.layers |= TunnelLayers::GRE_KEY;
        key.gre_key = value;
    }
    match EtherType(protocol) {
        BRIDGED_ETHERNET => key.inner_ethernet(rest),
        EtherType::IPV4 => _ = key.inner_ip(rest, Layers::IPV4),
        EtherType::IPV6 => _ = key.inner_ip(rest, Layers::IPV6),
        EtherType::MPLS | EtherType::MPLS_MULTICAST => mpls::read(key, rest),
        _ => {}
    }
}

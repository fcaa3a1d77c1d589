//! IP in IP (RFC 2003, RFC 2473, RFC 4213): the header says which version is inside, and that must be true.

use super::{TunnelKey, TunnelLayers};
use crate::Layers;

pub(super) fn read(key: &mut TunnelKey, packet: &[u8], version: Layers) {
    if key.inner_ip(packet, version) {
        key.layers |= TunnelLayers::IP_IN_IP;
    }
}

//! The tables of a port that sysfs shows, GIDs and partition keys, and the EUI-64 that GUIDs and GIDs hold.

use std::ffi::c_int;

use packet::MacAddr;

/// The GIDs of a port in the plugin's sysfs tree; all but the first are zero.
pub const GIDS: c_int = 2;
/// The upper half of the first GID: the link-local prefix.
pub const LINK_LOCAL: u64 = 0xfe80 << 48;
/// The partition keys of a port: the default one.
pub const PKEYS: u16 = 1;
/// The default partition key, full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// The modified EUI-64 of a station address (RFC 4291, appendix A).
pub(crate) fn eui64(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

//! Destructions that the library refuses: they are logged, and the parents of the object stay alive for good.

use std::ffi::c_int;
use std::mem;

use crate::error::from_code;

/// Logs a refused destruction. True if it was refused.
pub(crate) fn log(verb: &'static str, device: &str, code: c_int) -> bool {
    if code == 0 {
        return false;
    }
    let error = from_code(code);
    tracing::error!(device, verb, %error, "the device refused to release an object; it is leaked");
    true
}

/// Logs a refused destruction and then keeps `parents` alive for good: an object that still exists may use
/// them. `parents` are further references (`Arc` clones), so forgetting one means they are never released.
pub(crate) fn keep<P>(verb: &'static str, device: &str, code: c_int, parents: impl FnOnce() -> P) {
    if log(verb, device, code) {
        mem::forget(parents());
    }
}

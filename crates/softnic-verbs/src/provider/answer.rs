//! How ops answer: an errno as the return value, or NULL with errno set. No panic crosses into C.

use std::ffi::c_int;

use softnic::errno::{EIO, Verb, guard};

/// Returns 0 or the errno, which is also set.
pub(crate) fn answer_status(body: impl FnOnce() -> Verb<()>) -> c_int {
    match guard(Err(EIO), body) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno.number()
        }
    }
}

/// Returns a handle, or NULL with errno set.
pub(crate) fn answer_handle<T>(body: impl FnOnce() -> Verb<*mut T>) -> *mut T {
    match guard(Err(EIO), body) {
        Ok(handle) => handle,
        Err(errno) => {
            errno.set();
            std::ptr::null_mut()
        }
    }
}

//! Keeps signals away from the threads that a soft NIC starts in a foreign process.
//!
//! A program that takes its signals in one place (sigwait, signalfd) blocks them in its own threads. A thread it does not
//! know of, with the mask of whenever the device was opened, would get them instead, and end the process. Used by `door`
//! while it makes the NIC; the program's own mask is as before afterwards.

use std::mem::MaybeUninit;

/// While this exists, its thread has all signals blocked, and threads that it starts begin with that mask
/// (pthread_sigmask(3)). To be dropped on the thread that made it.
pub(super) struct Blocked {
    /// `None` where the mask could not be changed; nothing is to be put back then.
    before: Option<libc::sigset_t>,
}

impl Blocked {
    pub(super) fn all() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: room for a set, which it fills.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `all` was filled above; there is room for the old mask.
        let code = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: written when the call succeeded.
        Self { before: (code == 0).then(|| unsafe { before.assume_init() }) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: a mask that this thread had; no room for another is given.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}

//! The errors of operations: an errno, and whether the operation also sets it.

use std::ffi::c_int;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbErrno {
    /// Never 0.
    number: c_int,
    /// Whether a failing op also sets errno.
    is_set: bool,
}

/// The object is in use.
pub const EBUSY: VerbErrno = VerbErrno::new(libc::EBUSY);
/// There is such an object already.
pub const EEXIST: VerbErrno = VerbErrno::new(libc::EEXIST);
/// Memory is not mapped with the necessary rights.
pub const EFAULT: VerbErrno = VerbErrno::new(libc::EFAULT);
/// An argument makes no sense, or there is no such object.
pub const EINVAL: VerbErrno = VerbErrno::new(libc::EINVAL);
/// The device has failed.
pub const EIO: VerbErrno = VerbErrno::new(libc::EIO);
/// There is no entry at an index.
pub const ENODATA: VerbErrno = VerbErrno::new(libc::ENODATA);
/// There is no device.
pub const ENODEV: VerbErrno = VerbErrno::new(libc::ENODEV);
/// There is no memory, or no more objects of the kind.
pub const ENOMEM: VerbErrno = VerbErrno::new(libc::ENOMEM);
/// No port has the address.
pub const ENETUNREACH: VerbErrno = VerbErrno::new(libc::ENETUNREACH);
/// There is no room.
pub const ENOSPC: VerbErrno = VerbErrno::new(libc::ENOSPC);
/// The device does not have it.
pub const EOPNOTSUPP: VerbErrno = VerbErrno::new(libc::EOPNOTSUPP);
/// The calling thread lacks a capability.
pub const EPERM: VerbErrno = VerbErrno::new(libc::EPERM);

/// The result of a verb.
pub type Verb<T> = Result<T, VerbErrno>;

impl From<io::Error> for VerbErrno {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().filter(|number| *number != 0).map_or(EIO, Self::new)
    }
}

impl From<rustix::io::Errno> for VerbErrno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::new(errno.raw_os_error())
    }
}

impl From<device_model::Errno> for VerbErrno {
    fn from(errno: device_model::Errno) -> Self {
        match errno {
            device_model::Errno::Einval => EINVAL,
            device_model::Errno::Enomem => ENOMEM,
            device_model::Errno::Enospc => ENOSPC,
            device_model::Errno::Eexist => EEXIST,
            device_model::Errno::Enosys => Self::new(libc::ENOSYS),
            device_model::Errno::Ebusy => EBUSY,
            device_model::Errno::Eio => EIO,
            device_model::Errno::Eproto => Self::new(libc::EPROTO),
            device_model::Errno::Eremoteio => Self::new(libc::EREMOTEIO),
            // What is ignored in silence is not refused; callers filter it out.
            device_model::Errno::Eopnotsupp | device_model::Errno::Silent => EOPNOTSUPP,
        }
    }
}

impl VerbErrno {
    /// An error number, which the op also sets errno to. It is not 0.
    #[must_use]
    pub const fn new(number: c_int) -> Self {
        assert!(number != 0, "0 is success");
        Self { number, is_set: true }
    }

    /// Returns the answer of an op that leaves errno as it was.
    pub(crate) const fn without_setting_errno(self) -> Self {
        Self { is_set: false, ..self }
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> c_int {
        self.number
    }

    /// Sets this thread's errno, unless the operation leaves it as it was.
    pub fn set(self) {
        if !self.is_set {
            return;
        }
        // SAFETY: returns this thread's errno, always a valid address.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above; no one else writes to this thread's errno.
        unsafe { errno.write(self.number) };
    }
}

/// Refuses bits that are not known.
///
/// # Errors
/// `errno` for such bits.
#[inline]
pub fn known_bits(value: u32, known: u32, errno: VerbErrno) -> Verb<()> {
    if value & !known == 0 { Ok(()) } else { Err(errno) }
}

/// Runs the body of a call from C; a panic in it becomes `fallback`, and is a bug.
pub fn guard<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        tracing::error!("a call of a front end panicked");
        fallback
    })
}

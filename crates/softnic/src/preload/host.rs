//! What a program that knows the preloaded library asks of it: to open and close the wires of its device, and
//! what the engine has done.
//!
//! Such a program has a copy of this crate of its own, which knows nothing of the device. The library exports
//! two functions with C's calling convention, which the dynamic linker finds by name. Counters are only added
//! at the end of [`PortStats`], which stays the last field of the structure, and the caller gives its size,
//! because the library and the program may be of different releases.

use std::ffi::{CStr, c_int, c_void};

use packet::MacAddr;

use crate::stats::PortStats;

/// The names of the functions.
pub const SET_WIRES: &CStr = c"softnic_set_wires";
/// The name of the function that reads the status.
pub const READ_STATUS: &CStr = c"softnic_read_status";

/// How the device of the preloaded library is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Passes that the engine has made; also without traffic it makes about fifty each second.
    pub passes: u64,
    /// Not 0: every wire has come to its end, and everything received was handled.
    pub finished: u32,
    /// Not 0: the engine's thread has ended.
    pub died: u32,
    /// The address of its port, the first byte in bits 40 to 47; 0 before the device was opened.
    pub mac: u64,
    /// The outcomes of the frames of its port. The last field: it grows.
    pub port: PortStats,
}

impl Status {
    /// The address of its port, if the device was opened.
    #[must_use]
    pub fn mac(&self) -> Option<MacAddr> {
        let [_, _, address @ ..] = self.mac.to_be_bytes();
        (self.mac != 0).then_some(MacAddr(address))
    }

    /// The address as a number, as in the field.
    pub(super) fn number_of(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

type SetWires = extern "C" fn(open: c_int);
type ReadStatus = unsafe extern "C" fn(into: *mut Status, bytes: usize);

/// The preloaded library of this process.
#[derive(Clone, Copy, Debug)]
pub struct Preloaded {
    set_wires: SetWires,
    read_status: ReadStatus,
}

impl Preloaded {
    /// The library, if the process was started with it.
    #[must_use]
    pub fn find() -> Option<Self> {
        let (set_wires, read_status) = (symbol(SET_WIRES)?, symbol(READ_STATUS)?);
        Some(Self {
            // SAFETY: only the preloaded library has a function of that name, and this is its type.
            set_wires: unsafe { std::mem::transmute::<*mut c_void, SetWires>(set_wires) },
            // SAFETY: as above.
            read_status: unsafe { std::mem::transmute::<*mut c_void, ReadStatus>(read_status) },
        })
    }

    /// Whether the wires receive.
    pub fn set_wires(&self, open: bool) {
        (self.set_wires)(open.into());
    }

    /// How the device is; zeros before it was opened.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status = Status::default();
        // SAFETY: room for so many bytes.
        unsafe { (self.read_status)(&raw mut status, size_of::<Status>()) };
        status
    }
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a name up in what the program was started with.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_number_and_back() {
        let mac = MacAddr([0x02, 0, 0, 0x5e, 0, 1]);
        assert_eq!(Status { mac: Status::number_of(mac), ..Status::default() }.mac(), Some(mac));
        assert_eq!(Status::default().mac(), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no dlsym(3)")]
    fn a_process_without_the_library_has_none() {
        assert!(Preloaded::find().is_none());
    }
}

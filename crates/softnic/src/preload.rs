//! The soft NIC for unmodified programs.
//!
//! Used by the shared library of `softnic-preload`, never by `steerd`, which hands its own devices to the
//! stock `ibv_open_device`. *Plugin*: the stock library finds the device in a sysfs tree and asks the
//! registered provider for it. *Preload*: the program's `ibv_get_device_list` is interposed and returns
//! [`LazyNic::device_list`]. *mlx5*: rdma-core's own provider talks to the crate `softnic-mlx5` as if it were
//! the kernel. In every case the NIC is made when the device is first opened and lives as long as the
//! process; nothing of it outlives that.

use std::ffi::{CStr, c_int, c_void};

use ibverbs_sys::{ibv_context, ibv_device};

use crate::SoftNicError;
use crate::device::{self, Backing};
pub use crate::lazy_nic::{LazyNic, METHOD_MLX5, Settings, WIRES_CLOSED, print_error, variable};
use crate::library::Library;
use crate::nic::SoftNic;
pub use crate::port_tables::{DEFAULT_PKEY, PKEYS};

pub mod host;
pub mod launch;
pub mod sysfs;
#[cfg(test)]
mod tests;

/// The only port.
const PORT: u8 = 1;

impl LazyNic {
    /// How the device is; zeros before it was opened. Does not wait for a thread that opens it.
    #[must_use]
    pub fn status(&self) -> host::Status {
        let Some(nic) = self.made() else { return host::Status::default() };
        host::Status {
            passes: nic.engine_passes().iter().sum(),
            finished: nic.wires_finished().into(),
            died: nic.engine_died().into(),
            mac: nic.port_mac(PORT).map_or(0, host::Status::number_of),
            port: nic.port_stats(PORT),
        }
    }

    /// Whether this process has loaded libibverbs, so that [`LazyNic::register`] would not be what pulls it
    /// in.
    #[must_use]
    pub fn library_is_present() -> bool {
        Library::is_present()
    }

    /// Offers the device to the library of this process, which makes it where its sysfs tree names it. Only
    /// the first device of a process is registered.
    ///
    /// # Errors
    /// There is no libibverbs, or none whose private layout is known.
    pub fn register(&'static self) -> Result<(), SoftNicError> {
        device::register(self)
    }

    /// A list of the device, for `ibv_free_device_list`, as `ibv_get_device_list` returns it; NULL with errno
    /// set where there is no memory.
    ///
    /// # Errors
    /// There is no libibverbs, or none whose private layout is known.
    pub fn device_list(&'static self, count: &mut c_int) -> Result<*mut *mut ibv_device, SoftNicError> {
        *count = 0;
        Library::load()?;
        Ok(device::list(self.name(), Backing::Lazy(self), count))
    }

    /// The function that makes a completion channel for a context of this provider, if the NIC was made.
    #[must_use]
    pub fn channel_maker(&self) -> Option<ibv_provider::CreateChannel> {
        use ibv_provider::Provider as _;
        self.made().and_then(SoftNic::channel_maker)
    }
}

/// Whether a device is a soft NIC; with `without_sysfs`, whether it is one of [`LazyNic::device_list`].
///
/// # Safety
/// `device` is NULL or a live device of libibverbs.
#[must_use]
pub unsafe fn is_soft(device: *mut ibv_device, without_sysfs: bool) -> bool {
    // SAFETY: by the contract of this function.
    unsafe { device::is_ours(device, without_sysfs) }
}

/// Whether a context is one of a soft NIC; `without_sysfs` as for [`is_soft`].
///
/// # Safety
/// `context` is NULL or a live context of libibverbs.
#[must_use]
pub unsafe fn is_soft_context(context: *mut ibv_context, without_sysfs: bool) -> bool {
    // SAFETY: by the contract of this function.
    let Some(context) = (unsafe { context.as_ref() }) else { return false };
    // SAFETY: a live context holds its device.
    unsafe { device::is_ours(context.device, without_sysfs) }
}

/// The stock library's function of a name and version, even if another library defines one of that name.
///
/// # Errors
/// There is no libibverbs, or it has no such function.
pub fn stock_function(name: &'static CStr, version: &CStr) -> Result<*mut c_void, SoftNicError> {
    Library::function(name, version)
}

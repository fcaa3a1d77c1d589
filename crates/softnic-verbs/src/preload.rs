//! The soft NIC for unmodified programs.
//!
//! Used by the shared library of `softnic-preload`, never by `steerd`, which hands its own devices to the
//! stock `ibv_open_device`. *Plugin*: the stock library finds the device in a sysfs tree and asks the
//! registered provider for it. *Preload*: the program's `ibv_get_device_list` is interposed and returns
//! [`device_list`]. *mlx5*: rdma-core's own provider talks to the crate `softnic-mlx5` as if it were
//! the kernel. In every case the NIC is made when the device is first opened and lives as long as the
//! process; nothing of it outlives that.

use std::ffi::{CStr, c_int, c_void};

use ibv_provider::CreateChannel;
use ibverbs_sys::{ibv_context, ibv_device};
use softnic::lazy_nic::LazyNic;

use crate::ProviderError;
use crate::device::{self, Backing};
use crate::library::Library;
use crate::provider::cq::create_comp_channel;

pub mod host;
pub mod launch;
pub mod sysfs;

/// Whether this process has loaded libibverbs, so that [`register`] would not be what pulls it in.
#[must_use]
pub fn library_is_present() -> bool {
    Library::is_present()
}

/// Offers the device to the library of this process, which makes it where its sysfs tree names it. Only the
/// first device of a process is registered.
///
/// # Errors
/// There is no libibverbs, or none whose private layout is known.
pub fn register(nic: &'static LazyNic) -> Result<(), ProviderError> {
    device::register(nic)
}

/// A list of the device, for `ibv_free_device_list`, as `ibv_get_device_list` returns it; NULL with errno set
/// where there is no memory.
///
/// # Errors
/// There is no libibverbs, or none whose private layout is known.
pub fn device_list(nic: &'static LazyNic, count: &mut c_int) -> Result<*mut *mut ibv_device, ProviderError> {
    *count = 0;
    Library::load()?;
    Ok(device::list(nic.name(), Backing::Lazy(nic), count))
}

/// The function that makes a completion channel for a context of this provider, if the NIC was made.
#[must_use]
pub fn channel_maker(nic: &LazyNic) -> Option<CreateChannel> {
    nic.made().map(|_| create_comp_channel as CreateChannel)
}

/// Whether a device is a soft NIC; with `without_sysfs`, whether it is one of [`device_list`].
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
pub fn stock_function(name: &'static CStr, version: &CStr) -> Result<*mut c_void, ProviderError> {
    Library::function(name, version)
}

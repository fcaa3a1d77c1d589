//! The devices of this machine or of a provider in this process.
//!
//! Called at start-up. A list is only needed until its devices are opened: a [`Context`] outlives it.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use ibv_provider::{CreateChannel, Provider};
use ibverbs_sys::ibv_device;

use crate::error::created;
use crate::{Context, Result, VerbsError};

/// A list of devices; released on drop. Opened devices live on.
pub struct DeviceList {
    raw: NonNull<*mut ibv_device>,
    count: usize,
    channel_maker: Option<CreateChannel>,
}

// SAFETY: the list is never written after its creation; the library's reference counts of devices are atomic.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// The devices that libibverbs discovers (`ibv_get_device_list`).
    pub fn system() -> Result<Self> {
        // SAFETY: `count` is writable.
        Self::adopt(None, |count| unsafe { ibverbs_sys::ibv_get_device_list(count) })
    }

    /// The devices of `provider`.
    pub fn of(provider: &dyn Provider) -> Result<Self> {
        Self::adopt(provider.channel_maker(), |count| provider.device_list(count))
    }

    fn adopt(
        channel_maker: Option<CreateChannel>,
        list: impl FnOnce(&mut c_int) -> *mut *mut ibv_device,
    ) -> Result<Self> {
        let mut count = 0;
        let raw = created(|| list(&mut count)).map_err(|source| VerbsError::ListDevices { source })?;
        Ok(Self { raw, count: usize::try_from(count).unwrap_or(0), channel_maker })
    }

    /// The devices, in the order the library or the provider gives them.
    pub fn iter(&self) -> impl Iterator<Item = ListedDevice<'_>> {
        // SAFETY: the library or the provider guarantees `count` entries; they stay until `drop`.
        let entries = unsafe { std::slice::from_raw_parts(self.raw.as_ptr(), self.count) };
        entries.iter().copied().filter_map(NonNull::new).map(|raw| ListedDevice {
            raw,
            channel_maker: self.channel_maker,
            _list: PhantomData,
        })
    }

    /// The device of that name.
    pub fn find(&self, name: &str) -> Option<ListedDevice<'_>> {
        self.iter().find(|device| device.name() == name)
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: `raw` came from a function whose lists this releases, once; `ListedDevice` borrows from
        // `self`.
        unsafe { ibverbs_sys::ibv_free_device_list(self.raw.as_ptr()) };
    }
}

/// A device that can be opened.
#[derive(Clone, Copy)]
pub struct ListedDevice<'list> {
    /// Valid as long as the list.
    raw: NonNull<ibv_device>,
    channel_maker: Option<CreateChannel>,
    _list: PhantomData<&'list DeviceList>,
}

impl<'list> ListedDevice<'list> {
    /// The kernel's name for it, such as `mlx5_0`.
    pub fn name(&self) -> &'list str {
        // SAFETY: the device lives as long as the list it came from.
        let name = unsafe { ibverbs_sys::ibv_get_device_name(self.raw.as_ptr()) };
        if name.is_null() {
            return "";
        }
        // SAFETY: the name is NUL-terminated text inside the device, which the list keeps.
        let name: &'list CStr = unsafe { CStr::from_ptr(name) };
        name.to_str().unwrap_or("")
    }

    /// The node GUID; zero for a device without sysfs entries.
    pub fn guid(&self) -> Guid {
        // SAFETY: as for the name.
        Guid(u64::from_be(unsafe { ibverbs_sys::ibv_get_device_guid(self.raw.as_ptr()) }))
    }

    /// Opens the device.
    pub fn open(&self) -> Result<Arc<Context>> {
        let name = self.name();
        // SAFETY: as for the name.
        let raw = created(|| unsafe { ibverbs_sys::ibv_open_device(self.raw.as_ptr()) })
            .map_err(|source| VerbsError::OpenDevice { device: name.into(), source })?;
        Ok(Arc::new(Context::adopt(raw, name, self.channel_maker)?))
    }
}

/// A global identifier of a device, in host byte order. Prints as `ibv_devinfo` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (self.0 >> shift) & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoDevices;
    // SAFETY: always NULL with `errno` set.
    unsafe impl Provider for NoDevices {
        fn device_list(&self, _: &mut c_int) -> *mut *mut ibv_device {
            // SAFETY: the location of this thread's errno is always valid.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: as above.
            unsafe { errno.write(libc::ENODEV) };
            std::ptr::null_mut()
        }
    }

    #[test]
    fn a_provider_without_a_list_is_an_error_with_its_errno() {
        let error = DeviceList::of(&NoDevices).err().expect("no list");
        assert_eq!(error.errno(), Some(libc::ENODEV));
    }

    #[test]
    fn guids_print_in_four_groups() {
        assert_eq!(Guid(0x0002_c903_00ab_cdef).to_string(), "0002:c903:00ab:cdef");
    }
}

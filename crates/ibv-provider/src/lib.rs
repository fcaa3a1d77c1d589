//! The trait of libibverbs providers inside a process: implemented by `softnic`, used by `verbs`, so that
//! neither depends on the other.
//!
//! ```
//! use std::ffi::c_int;
//!
//! /// A provider without devices, which fails with ENOMEM.
//! struct Empty;
//!
//! // SAFETY: NULL with `errno` set is an allowed answer.
//! unsafe impl ibv_provider::Provider for Empty {
//!     fn device_list(&self, count: &mut c_int) -> *mut *mut ibverbs_sys::ibv_device {
//!         *count = 0; // and errno = ENOMEM
//!         std::ptr::null_mut()
//!     }
//! }
//! ```

use std::ffi::c_int;

use ibverbs_sys::{ibv_comp_channel, ibv_context, ibv_device};

/// Makes a completion channel of a context, or returns NULL with `errno` set ([`Provider::channel_maker`]).
pub type CreateChannel = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;

/// A source of devices other than the library's own discovery, like `mlx5dv_get_vfio_device_list`.
///
/// # Safety
/// `device_list` returns NULL with `errno` set, or a NULL-terminated array of `count` devices that
/// `ibv_free_device_list` may release and `ibv_open_device` may open, with operations that keep the contracts
/// of `infiniband/verbs.h`. Each device stays valid until its list is released and every context opened from
/// it is closed, and each context until it is closed, even if the provider itself is dropped before. So does
/// the function that makes channels, whose channels `ibv_get_cq_event` can read and
/// `ibv_destroy_comp_channel` release: destroying a queue takes its unread events out of its channel.
pub unsafe trait Provider: Send + Sync {
    /// A new list; its length goes to `count`.
    fn device_list(&self, count: &mut c_int) -> *mut *mut ibv_device;

    /// How completion channels are made of contexts of these devices. `None`: as `ibv_create_comp_channel`
    /// does, which asks the kernel behind the context's descriptor (libibverbs/verbs.c), not the provider.
    fn channel_maker(&self) -> Option<CreateChannel> {
        None
    }

    /// The model of device that these devices imitate, by its name in `device-model` ("mlx5"); `None`: none.
    fn model(&self) -> Option<&'static str> {
        None
    }
}

//! The addresses of mlx5 queues, from the provider itself.
//!
//! libmlx5 gives them by `mlx5dv_init_obj` (mlx5dv_init_obj(3)). This crate does not link it: the function is
//! looked up in the copy that libibverbs has loaded for the device.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use ibverbs_sys::{ibv_context, ibv_cq, ibv_device, ibv_wq};

use super::DirectRefusal;

/// The file name under which the dynamic linker knows libmlx5, whatever the name it was loaded by.
const LIBRARY: &CStr = c"libmlx5.so.1";

/// `MLX5DV_OBJ_CQ` and `MLX5DV_OBJ_RWQ`.
const COMPLETION_QUEUE: u64 = 1 << 1;
const WORK_QUEUE: u64 = 1 << 3;

/// `struct mlx5dv_cq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CompletionQueueLayout {
    pub(crate) buffer: *mut u8,
    pub(crate) record: *mut u8,
    pub(crate) entries: u32,
    pub(crate) entry_bytes: u32,
    pub(crate) doorbells: *mut u8,
    pub(crate) number: u32,
    comp_mask: u64,
}

/// `struct mlx5dv_rwq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct WorkQueueLayout {
    pub(crate) buffer: *mut u8,
    pub(crate) record: *mut u8,
    pub(crate) entries: u32,
    pub(crate) entry_bytes: u32,
    comp_mask: u64,
}

/// An object and where its layout goes, as in `struct mlx5dv_obj`.
#[repr(C)]
struct ObjectPlace<I, O> {
    object: *mut I,
    layout: *mut O,
}

impl<I, O> ObjectPlace<I, O> {
    const NONE: Self = Self { object: ptr::null_mut(), layout: ptr::null_mut() };
}

/// `struct mlx5dv_obj`: the objects of which layouts are asked for.
#[repr(C)]
struct Objects {
    queue_pair: ObjectPlace<c_void, c_void>,
    completion_queue: ObjectPlace<ibv_cq, CompletionQueueLayout>,
    shared_receive_queue: ObjectPlace<c_void, c_void>,
    work_queue: ObjectPlace<ibv_wq, WorkQueueLayout>,
    /// Memory of the device, address handles, protection domains, and what later releases add.
    others: [ObjectPlace<c_void, c_void>; 8],
}

type InitObjects = unsafe extern "C" fn(*mut Objects, u64) -> c_int;
type IsSupported = unsafe extern "C" fn(*mut ibv_device) -> bool;

/// The functions of the loaded libmlx5.
pub(crate) struct DirectVerbs {
    init_objects: InitObjects,
    is_supported: IsSupported,
}

impl DirectVerbs {
    /// Looks the functions up in the library that is loaded.
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "both functions have one argument")]
    pub(crate) fn find() -> Result<Self, DirectRefusal> {
        // SAFETY: the name is NUL-terminated; RTLD_NOLOAD runs no code of a library. The handle is kept for
        // ever, as the process keeps its providers.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return Err(DirectRefusal::NoLibrary);
        }
        let symbol = |name: &'static CStr| {
            // SAFETY: the handle is open, the name NUL-terminated.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() { Err(DirectRefusal::NoFunction(name)) } else { Ok(found) }
        };
        let (init_objects, is_supported) = (symbol(c"mlx5dv_init_obj")?, symbol(c"mlx5dv_is_supported")?);
        // SAFETY: the functions of these names in libmlx5.so.1 have these types (mlx5dv.h); a pointer to a
        // function has the size of one to data.
        Ok(unsafe {
            Self {
                init_objects: std::mem::transmute::<*mut c_void, InitObjects>(init_objects),
                is_supported: std::mem::transmute::<*mut c_void, IsSupported>(is_supported),
            }
        })
    }

    /// Whether the device of `context` is libmlx5's.
    ///
    /// # Safety
    /// The context is live, and its device part of a `struct verbs_device`, as every device of a provider is.
    pub(crate) unsafe fn is_device_of(&self, context: *mut ibv_context) -> bool {
        // SAFETY: live, by contract; the device lives as long as it.
        let device = unsafe { (*context).device };
        // SAFETY: forwarded contract.
        unsafe { (self.is_supported)(device) }
    }

    /// The layouts of two queues. From then on the library leaves the completion queue to its user: it
    /// neither polls nor removes completions (`MLX5_CQ_FLAGS_DV_OWNED`).
    ///
    /// # Safety
    /// Both objects are live, and of a device of libmlx5.
    pub(crate) unsafe fn layouts(
        &self,
        completions: *mut ibv_cq,
        queue: *mut ibv_wq,
    ) -> Result<(CompletionQueueLayout, WorkQueueLayout), DirectRefusal> {
        let mut completion_layout = CompletionQueueLayout {
            buffer: ptr::null_mut(),
            record: ptr::null_mut(),
            entries: 0,
            entry_bytes: 0,
            doorbells: ptr::null_mut(),
            number: 0,
            comp_mask: 0,
        };
        let mut queue_layout = WorkQueueLayout {
            buffer: ptr::null_mut(),
            record: ptr::null_mut(),
            entries: 0,
            entry_bytes: 0,
            comp_mask: 0,
        };
        let mut objects = Objects {
            queue_pair: ObjectPlace::NONE,
            completion_queue: ObjectPlace { object: completions, layout: &raw mut completion_layout },
            shared_receive_queue: ObjectPlace::NONE,
            work_queue: ObjectPlace { object: queue, layout: &raw mut queue_layout },
            others: [const { ObjectPlace::NONE }; 8],
        };
        // SAFETY: both objects are live by contract, their layouts writable, and no other part of the
        // structure is asked for.
        let code = unsafe { (self.init_objects)(&raw mut objects, COMPLETION_QUEUE | WORK_QUEUE) };
        if code != 0 {
            return Err(DirectRefusal::Layouts(std::io::Error::from_raw_os_error(code)));
        }
        Ok((completion_layout, queue_layout))
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    // mlx5dv.h, by the C compiler.
    #[test]
    fn structures_are_laid_out_as_in_c() {
        assert_eq!(size_of::<CompletionQueueLayout>(), 48);
        assert_eq!(offset_of!(CompletionQueueLayout, doorbells), 24);
        assert_eq!(offset_of!(CompletionQueueLayout, number), 32);
        assert_eq!(size_of::<WorkQueueLayout>(), 32);
        assert_eq!(offset_of!(WorkQueueLayout, entry_bytes), 20);
        assert_eq!(offset_of!(Objects, completion_queue), 16);
        assert_eq!(offset_of!(Objects, work_queue), 48);
    }
}

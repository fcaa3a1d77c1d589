//! The device and its contexts as libibverbs sees them.
//!
//! `list` hands devices without sysfs to the application (in-process and preloaded); `register` lets the
//! library itself make devices out of a sysfs tree (the plugin). The library calls `alloc_context` from
//! `ibv_open_device`. Everything else is in `provider`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::OpenOptions;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use ibverbs_sys::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_context, ibv_device};
use softnic::Nic;
use softnic::errno::{EINVAL, ENODEV, ENOMEM, Verb, guard};
use softnic::lazy_nic::LazyNic;
use softnic::objects::attributes::{GIDS, PKEYS};
use softnic::objects::contexts::{self, OpenedContext};

use crate::ProviderError;
use crate::abi::{
    CORE_SUPPORT_OPTIONAL_MR_ACCESS, SysfsDevice, VERBS_CONTEXT_BYTES, VerbsDevice, VerbsDeviceOps,
    context_offset, op_names,
};
use crate::library::Library;
use crate::nic::SoftNic;
use crate::provider;
use crate::provider::answer::answer_handle;
use crate::soft_context::{PortTables, SoftContext, VERBS_CONTEXT_OFFSET};

/// The ABI that the plugin's sysfs tree gives for the device.
pub(crate) const SYSFS_ABI: u32 = 1;

/// The name of this provider in `struct verbs_device_ops`.
const PROVIDER_NAME: &CStr = c"softnic";
/// `RDMA_DRIVER_UNKNOWN` (rdma/ib_user_ioctl_verbs.h).
const DRIVER_ID: u32 = 0;

static DEVICE_OPS: VerbsDeviceOps = VerbsDeviceOps {
    name: PROVIDER_NAME.as_ptr(),
    match_min_abi_version: SYSFS_ABI,
    match_max_abi_version: SYSFS_ABI,
    match_table: std::ptr::null(),
    static_providers: std::ptr::null(),
    match_device,
    alloc_context,
    import_context: std::ptr::null(),
    alloc_device,
    uninit_device,
};

/// The NIC whose devices the library creates when it discovers providers. The callbacks for that have no
/// context pointer.
static REGISTERED: OnceLock<&'static LazyNic> = OnceLock::new();

/// The soft NIC that a device represents.
#[derive(Clone)]
pub(crate) enum Backing {
    /// A NIC of this process's own.
    Nic(Arc<Nic>),
    /// A NIC that is made when the device is first opened.
    Lazy(&'static LazyNic),
}

impl Backing {
    fn nic(&self) -> Verb<Arc<Nic>> {
        match self {
            Self::Nic(nic) => Ok(Arc::clone(nic)),
            Self::Lazy(lazy) => lazy.nic().ok_or(ENODEV),
        }
    }
}

/// One device of a list. Every list has its own; they share the NIC.
#[repr(C)]
struct SoftDevice {
    verbs: VerbsDevice,
    backing: Backing,
}

/// A list of the one device, for `ibv_free_device_list`.
pub(crate) fn list(name: &str, backing: Backing, count: &mut c_int) -> *mut *mut ibv_device {
    *count = 0;
    answer_handle(|| {
        // SAFETY: plain calloc of two pointers.
        let list = unsafe { libc::calloc(2, size_of::<*mut ibv_device>()) }.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(ENOMEM);
        }
        let device = Box::into_raw(Box::new(SoftDevice { verbs: verbs_device(name), backing }));
        // SAFETY: the list has two entries; the second stays NULL.
        unsafe { list.write(device.cast()) };
        *count = 1;
        Ok(list)
    })
}

// SAFETY: the list is calloc'ed and NULL-terminated, and its devices are counted and released through their
// `uninit_device`, which is what `ibv_free_device_list` expects.
unsafe impl ibv_provider::Provider for SoftNic {
    fn device_list(&self, count: &mut c_int) -> *mut *mut ibv_device {
        list(self.nic().name(), Backing::Nic(Arc::clone(self.nic())), count)
    }

    fn channel_maker(&self) -> Option<ibv_provider::CreateChannel> {
        Some(provider::cq::create_comp_channel)
    }

    fn model(&self) -> Option<&'static str> {
        Some(self.nic().personality().name())
    }
}

impl SoftDevice {
    fn tables(&self) -> PortTables {
        match &self.backing {
            _ if !self.verbs.sysfs.is_null() => PortTables { gids: GIDS, pkeys: PKEYS },
            Backing::Lazy(_) => PortTables { gids: 0, pkeys: PKEYS },
            Backing::Nic(_) => PortTables { gids: 0, pkeys: 0 },
        }
    }
}

fn verbs_device(name: &str) -> VerbsDevice {
    let mut device = ibv_device {
        _ops: ibverbs_sys::_ibv_device_ops { _dummy1: None, _dummy2: None },
        node_type: IBV_NODE_CA,
        transport_type: IBV_TRANSPORT_IB,
        name: [0; 64],
        dev_name: [0; 64],
        dev_path: [0; 256],
        ibdev_path: [0; 256],
    };
    for field in [&mut device.name, &mut device.dev_name] {
        // The name was checked to leave room for the NUL.
        for (to, from) in field[..63].iter_mut().zip(name.bytes()) {
            *to = c_char::from_ne_bytes([from]);
        }
    }
    VerbsDevice {
        device,
        ops: &raw const DEVICE_OPS,
        refcount: 1,
        entry: [std::ptr::null_mut(); 2],
        sysfs: std::ptr::null_mut(),
        core_support: CORE_SUPPORT_OPTIONAL_MR_ACCESS,
    }
}

/// Lets the library make devices for `lazy` wherever its sysfs tree names one.
pub(crate) fn register(lazy: &'static LazyNic) -> Result<(), ProviderError> {
    let register = Library::load()?.register_driver()?;
    if REGISTERED.set(lazy).is_ok() {
        // SAFETY: the ops are static and laid out as in every release that `Library::load` lets through.
        unsafe { register(&raw const DEVICE_OPS) };
    }
    Ok(())
}

/// Whether a device is one of this provider's; with `without_sysfs`, whether the library can answer nothing
/// about it from sysfs.
///
/// # Safety
/// `device` is NULL or a live device of the library.
pub(crate) unsafe fn is_ours(device: *mut ibv_device, without_sysfs: bool) -> bool {
    // SAFETY: every `ibv_device` of the library is the first member of a `verbs_device`.
    let Some(device) = (unsafe { device.cast::<VerbsDevice>().as_ref() }) else { return false };
    std::ptr::eq(device.ops, &raw const DEVICE_OPS) && (!without_sysfs || device.sysfs.is_null())
}

/// Returns whether a device of the library's sysfs tree is the registered one.
unsafe extern "C" fn match_device(found: *const SysfsDevice) -> bool {
    guard(false, || {
        // SAFETY: the library passes what it read of one device.
        let (Some(lazy), Some(found)) = (REGISTERED.get(), unsafe { found.as_ref() }) else { return false };
        let name = found.ibdev_name.map(c_char::to_ne_bytes);
        let name = name.as_flattened().split(|byte| *byte == 0).next();
        name == Some(lazy.name().as_bytes())
    })
}

/// Makes the device; the library fills in what is in sysfs.
unsafe extern "C" fn alloc_device(_: *const SysfsDevice) -> *mut VerbsDevice {
    guard(std::ptr::null_mut(), || {
        let Some(lazy) = REGISTERED.get() else { return std::ptr::null_mut() };
        let soft = SoftDevice { verbs: verbs_device(lazy.name()), backing: Backing::Lazy(lazy) };
        Box::into_raw(Box::new(soft)).cast()
    })
}

unsafe extern "C" fn uninit_device(device: *mut VerbsDevice) {
    guard((), || {
        // SAFETY: the library calls this once, when the count that began at 1 is back at 0; the device is the
        // first member of the box made in `list` or `alloc_device`.
        drop(unsafe { Box::from_raw(device.cast::<SoftDevice>()) });
    });
}

/// Called by `ibv_open_device`: returns the `verbs_context`, or NULL with errno set.
unsafe extern "C" fn alloc_context(device: *mut ibv_device, cmd_fd: c_int, _: *mut c_void) -> *mut c_void {
    answer_handle(|| {
        if cmd_fd >= 0 {
            // Devices with sysfs have one; every device of this provider brings its own.
            // SAFETY: the library hands over the ownership of `cmd_fd`.
            unsafe { libc::close(cmd_fd) };
        }
        let library = Library::loaded().ok_or(ENODEV)?;
        // SAFETY: the library opens devices of `list` only through their own ops, and holds a count
        // meanwhile.
        let soft = unsafe { device.cast::<SoftDevice>().as_ref() }.ok_or(EINVAL)?;
        // `ioctl` on it fails with ENOTTY, which lets the library fall back, and `write` with ENOSPC.
        let commands = OpenOptions::new().read(true).write(true).open("/dev/full")?;
        let nic = soft.backing.nic()?;
        let OpenedContext { slot, events } = contexts::open(&nic)?;
        let alloc_bytes = VERBS_CONTEXT_OFFSET + VERBS_CONTEXT_BYTES;
        let offset = std::ptr::without_provenance_mut(VERBS_CONTEXT_OFFSET);
        let commands = commands.into_raw_fd();
        // SAFETY: `device` is the library's argument; it takes over `commands`, and `offset` is one by its
        // contract.
        let base =
            unsafe { (library.init_and_alloc_context)(device, commands, alloc_bytes, offset, DRIVER_ID) };
        if base.is_null() {
            contexts::close(&nic, slot);
            return Err(ENOMEM);
        }
        let vectors = nic.completion_vectors();
        let head = SoftContext::new(nic, slot, soft.tables());
        // SAFETY: the allocation begins with the head and is aligned for anything.
        unsafe { base.cast::<SoftContext>().write(head) };
        let verbs_context = base.cast::<u8>().wrapping_add(VERBS_CONTEXT_OFFSET);
        let Some(context) = find_context(verbs_context) else {
            // The layout is not as in any release: nothing in it can be trusted, so it is leaked, not
            // unwound.
            tracing::error!(release = library.release, "libibverbs' verbs_context has an unknown layout");
            return Err(ENODEV);
        };
        prepare(library, verbs_context, context, events, vectors);
        Ok(verbs_context.cast())
    })
}

fn find_context(verbs_context: *mut u8) -> Option<*mut ibv_context> {
    let mut words = [0usize; VERBS_CONTEXT_BYTES / size_of::<usize>()];
    let from = verbs_context.cast::<usize>();
    // SAFETY: the allocation holds `VERBS_CONTEXT_BYTES` from here, zeroed or initialised by the library.
    unsafe { from.copy_to_nonoverlapping(words.as_mut_ptr(), words.len()) };
    let offset = context_offset(&words)?;
    (offset + size_of::<ibv_context>() <= VERBS_CONTEXT_BYTES)
        .then(|| verbs_context.wrapping_add(offset).cast())
}

/// Fills in what a provider fills in: its ops, in the release's order, and the event descriptor.
fn prepare(
    library: &Library,
    verbs_context: *mut u8,
    context: *mut ibv_context,
    events: OwnedFd,
    vectors: u32,
) {
    let ops: Vec<*const c_void> = op_names(library.release).into_iter().map(provider::op).collect();
    // SAFETY: the array has an entry for each member of this release's `verbs_context_ops`; the library
    // copies it.
    unsafe { (library.set_ops)(verbs_context.cast(), ops.as_ptr()) };
    // SAFETY: `context` lies inside the allocation and was initialised by the library.
    let context = unsafe { &mut *context };
    context.async_fd = events.into_raw_fd();
    context.num_comp_vectors = c_int::try_from(vectors).unwrap_or(1);
}

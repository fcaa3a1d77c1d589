//! The functions of libibverbs that come before the library's own where this one is preloaded.
//!
//! They are exported without a symbol version: rustc writes the version script of a cdylib itself, and the
//! dynamic linker accepts an unversioned definition for any version that a program wants (`check_match` in
//! glibc's elf/dl-lookup.c). All have had one signature since `IBVERBS_1.1` of 2007. The stock ones are asked
//! for by version.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ibverbs_sys::{ibv_comp_channel, ibv_context, ibv_device};
use softnic::lazy_nic::print_error;
use softnic::objects::attributes::{DEFAULT_PKEY, PKEYS};
use softnic_verbs::preload::sysfs::COMMAND_DEVICE;
use softnic_verbs::preload::{self, is_soft, is_soft_context};

use crate::Kind;

const V1_0: &CStr = c"IBVERBS_1.0";
const V1_1: &CStr = c"IBVERBS_1.1";
const V1_10: &CStr = c"IBVERBS_1.10";

/// The only port of the device.
const PORT: u8 = 1;

type DeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
type FreeDeviceList = unsafe extern "C" fn(*mut *mut ibv_device);
type OpenDevice = unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
type DeviceGuid = unsafe extern "C" fn(*mut ibv_device) -> u64;
type QueryPkey = unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
type CreateChannel = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;
type ImportDevice = unsafe extern "C" fn(c_int) -> *mut ibv_context;

/// The stock function of a name, version and type; if there is none, the reason is written to stderr and
/// errno is ENOSYS.
macro_rules! stock {
    ($name:literal, $version:expr, $type:ty) => {
        match preload::stock_function($name, $version) {
            // SAFETY: the signature is that of infiniband/verbs.h, which a symbol version pins.
            Ok(address) => Some(unsafe { std::mem::transmute::<*mut c_void, $type>(address) }),
            Err(error) => {
                print_error(&error);
                set_errno(libc::ENOSYS);
                None
            }
        }
    };
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: answers this thread's errno, always a valid address.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above; no one else writes to this thread's errno.
    unsafe { at.write(errno) };
}

/// Keeps panics out of C; a panic is a bug.
fn guard<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// # Safety
/// As the stock function: `count` is NULL or points to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    guard(std::ptr::null_mut(), || {
        if crate::kind() == Kind::Preload {
            let (list, devices) = own_list();
            if !count.is_null() {
                // SAFETY: not NULL, so the application's int.
                unsafe { count.write(devices) };
            }
            return list;
        }
        if !crate::register() {
            set_errno(libc::ENOSYS);
            return std::ptr::null_mut();
        }
        let Some(stock) = stock!(c"ibv_get_device_list", V1_1, DeviceList) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the caller's argument, passed on.
        unsafe { stock(count) }
    })
}

fn own_list() -> (*mut *mut ibv_device, c_int) {
    let mut devices = 0;
    let Some(nic) = crate::nic() else {
        set_errno(libc::EINVAL);
        return (std::ptr::null_mut(), 0);
    };
    match preload::device_list(nic, &mut devices) {
        Ok(list) => (list, devices),
        Err(error) => {
            print_error(&error);
            set_errno(libc::ENOSYS);
            (std::ptr::null_mut(), 0)
        }
    }
}

/// # Safety
/// As the stock function: `device` is a live device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    guard(0, || {
        // SAFETY: by the contract of this function.
        if unsafe { is_soft(device, true) } {
            return crate::nic().map_or(0, |nic| nic.guid().to_be());
        }
        let Some(stock) = stock!(c"ibv_get_device_guid", V1_1, DeviceGuid) else { return 0 };
        // SAFETY: the caller's argument, passed on.
        unsafe { stock(device) }
    })
}

/// # Safety
/// As the stock function: `context` is a live context, `pkey` points to room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    guard(-1, || {
        // SAFETY: by the contract of this function.
        if unsafe { is_soft_context(context, true) } {
            if port != PORT || index < 0 || index >= c_int::from(PKEYS) || pkey.is_null() {
                set_errno(libc::EINVAL);
                return -1;
            }
            // SAFETY: not NULL, so room for a key.
            unsafe { pkey.write(DEFAULT_PKEY.to_be()) };
            return 0;
        }
        let Some(stock) = stock!(c"ibv_query_pkey", V1_1, QueryPkey) else { return -1 };
        // SAFETY: the caller's arguments, passed on.
        unsafe { stock(context, port, index, pkey) }
    })
}

/// # Safety
/// As the stock function: `context` is a live context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    guard(std::ptr::null_mut(), || {
        // SAFETY: by the contract of this function.
        let soft = unsafe { is_soft_context(context, false) };
        let make: Option<CreateChannel> = if soft {
            set_errno(libc::EOPNOTSUPP);
            crate::nic().and_then(preload::channel_maker)
        } else {
            stock!(c"ibv_create_comp_channel", V1_0, CreateChannel)
        };
        let Some(make) = make else { return std::ptr::null_mut() };
        // SAFETY: the caller's argument, passed on to the maker of that kind of context.
        unsafe { make(context) }
    })
}

/// # Safety
/// As the stock function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    guard(std::ptr::null_mut(), || {
        if crate::kind() != Kind::Mlx5 && is_command_channel(cmd_fd) {
            return import(cmd_fd);
        }
        let Some(stock) = stock!(c"ibv_import_device", V1_10, ImportDevice) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the caller's argument, passed on.
        unsafe { stock(cmd_fd) }
    })
}

/// Whether a descriptor is of the file that represents a device's command channel.
pub(crate) fn is_command_channel(fd: c_int) -> bool {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: asks about a number, which need be no descriptor; there is room for the answer.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: fstat succeeded and has written it.
    let stat = unsafe { stat.assume_init() };
    let numbers = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    stat.st_mode & libc::S_IFMT == libc::S_IFCHR && numbers == COMMAND_DEVICE
}

/// Another context of the process's device. It shares the NIC and no objects; those cannot be imported.
fn import(cmd_fd: c_int) -> *mut ibv_context {
    let Some(open) = stock!(c"ibv_open_device", V1_1, OpenDevice) else { return std::ptr::null_mut() };
    let Some(free) = stock!(c"ibv_free_device_list", V1_1, FreeDeviceList) else {
        return std::ptr::null_mut();
    };
    let (list, _) = own_list();
    if list.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: a list of one device and NULL.
    let device = unsafe { list.read() };
    // SAFETY: a device of that list.
    let context = unsafe { open(device) };
    // SAFETY: the list's only owner; the context holds the device.
    unsafe { free(list) };
    if !context.is_null() {
        // SAFETY: an imported context owns the descriptor (man ibv_import_device); this one has its own.
        unsafe { libc::close(cmd_fd) };
    }
    context
}

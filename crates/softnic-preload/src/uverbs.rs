//! The functions of libc through which libibverbs and libmlx5 reach the kernel: sysfs, the command descriptor
//! and its doorbell pages.
//!
//! They come before libc's own where this library is preloaded, and pass every call on unless the method is
//! mlx5 and the call is about the device: a path below the root of its sysfs tree, its node in /dev, the link
//! that names its driver, or a descriptor that was opened at one of these. There are no files behind these
//! paths, so nothing is left behind: a file of sysfs is a memfd(2), and the command descriptor is /dev/full,
//! whose numbers the library checks.
//!
//! A child of fork(2) leaves its parent's device alone: `close` and `openat` look at a few atomics (`own`)
//! and take no lock there, and commands reach /dev/full, which refuses them with ENOTTY. A child can open the
//! device itself, unless the NIC was made before the fork: its engine is a thread of the parent's. Commands
//! on a descriptor that dup(2) made are refused like those of a child. What closes a command descriptor
//! without `close` (dup2(2), close_range(2)) is found out when another file has its number.

mod libc_next;
mod own;
mod tree;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use libc_next::Next;
use own::{Own, entry, process};
use softnic::lazy_nic::print_error;
use softnic_mlx5::{CommandDescriptors, Mapping, MappingRequest};
use softnic_verbs::preload::sysfs::MLX5_ROOT as SYSFS;
use tree::Tree;

use crate::Kind;
use crate::interpose::is_command_channel;

/// The device's node, and what is opened in its place.
const NODE: &CStr = c"/dev/infiniband/uverbs0";
const COMMAND_DEVICE: &CStr = c"/dev/full";

/// `NETLINK_RDMA` of linux/netlink.h: where it answers, the library asks it for devices and never looks at
/// sysfs.
const NETLINK_RDMA: c_int = 20;

/// Whether calls are looked at at all.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// The open command descriptors.
static OPEN: Own = Own::new();
/// The process that made the NIC; 0 before.
static NIC_PROCESS: AtomicI32 = AtomicI32::new(0);

/// Why a process cannot open the device.
#[derive(Debug, thiserror::Error)]
#[error(
    "process {process} is a copy of process {owner}, which has opened the device: the software NIC does not run in a child \
     of fork(2). Open the device after the fork only, or start the child with exec(2)"
)]
struct ForkedError {
    process: c_int,
    owner: c_int,
}

static DESCRIPTORS: OnceLock<Option<CommandDescriptors>> = OnceLock::new();

/// Called by the library's constructor: resolves libc's functions and, if the method is mlx5, begins to look
/// at calls.
pub(crate) fn begin() {
    libc_next::resolve();
    let active = catch_unwind(|| crate::kind() == Kind::Mlx5).unwrap_or(false);
    ACTIVE.store(active, Ordering::Relaxed);
}

fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// The commands' other side; `None` if the settings are invalid, which was reported.
fn descriptors() -> Option<&'static CommandDescriptors> {
    DESCRIPTORS.get_or_init(|| crate::nic().map(CommandDescriptors::new)).as_ref()
}

/// Whether a descriptor is a command descriptor of this process, not one of its parent's. Takes no lock,
/// unless another file has the number of one: then that one is gone.
fn is_command(descriptor: c_int) -> bool {
    if !OPEN.has(entry(descriptor)) {
        return false;
    }
    if !is_command_channel(descriptor) {
        release(descriptor);
        return false;
    }
    true
}

/// A command descriptor is about to be closed, or was.
fn release(descriptor: c_int) {
    OPEN.remove(entry(descriptor));
    if let Some(commands) = DESCRIPTORS.get().and_then(Option::as_ref) {
        guard((), || commands.close(descriptor));
    }
}

fn fail(errno: c_int) -> c_int {
    crate::interpose::set_errno(errno);
    -1
}

/// Keeps panics out of C; a panic is a bug.
fn guard<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// A path of the device, as a program gives it.
enum Path {
    /// Below the root of the sysfs tree: the rest, without a slash at its ends.
    Sysfs(String),
    Node,
    Other,
}

impl Path {
    /// # Safety
    /// `path` is NULL or a string.
    unsafe fn of(path: *const c_char) -> Self {
        if path.is_null() || !is_active() {
            return Self::Other;
        }
        // SAFETY: by the contract of this function.
        let path = unsafe { CStr::from_ptr(path) };
        if path == NODE {
            return Self::Node;
        }
        let Some(rest) = path.to_bytes().strip_prefix(SYSFS.as_bytes()) else { return Self::Other };
        match rest.first() {
            None | Some(b'/') => Self::Sysfs(String::from_utf8_lossy(rest).trim_matches('/').to_owned()),
            Some(_) => Self::Other,
        }
    }
}

/// Opens the command descriptor.
fn open_node() -> c_int {
    let descriptor = Next::open_own(COMMAND_DEVICE, libc::O_RDWR | libc::O_CLOEXEC);
    if descriptor < 0 {
        return descriptor;
    }
    if let Err(errno) = make_command(descriptor) {
        release(descriptor);
        Next::close(descriptor);
        return fail(errno);
    }
    descriptor
}

/// Makes a descriptor a command descriptor.
fn make_command(descriptor: c_int) -> Result<(), c_int> {
    let (process, owner) = (process(), NIC_PROCESS.load(Ordering::Relaxed));
    if owner != 0 && owner != process {
        print_error(&ForkedError { process, owner });
        return Err(libc::ENODEV);
    }
    descriptors().ok_or(libc::ENODEV)?.open(descriptor)?;
    NIC_PROCESS.store(process, Ordering::Relaxed);
    if OPEN.add(entry(descriptor)) { Ok(()) } else { Err(libc::EMFILE) }
}

/// # Safety
/// As open(2). `mode` is only looked at if the flags demand one: the function of libc has variable arguments,
/// which x86-64 and AArch64 pass as others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    if is_active() {
        // SAFETY: by the contract of this function.
        let found = guard(None, || unsafe { open_own(libc::AT_FDCWD, path, flags) });
        if let Some(descriptor) = found {
            return descriptor;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { Next::open(path, flags, mode) }
}

/// # Safety
/// As [`open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { open(path, flags | libc::O_LARGEFILE, mode) }
}

/// # Safety
/// As openat(2), and [`open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    if is_active() {
        // SAFETY: by the contract of this function.
        let found = guard(None, || unsafe { open_own(folder, path, flags) });
        if let Some(descriptor) = found {
            return descriptor;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { Next::openat(folder, path, flags, mode) }
}

/// # Safety
/// As [`openat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { openat(folder, path, flags | libc::O_LARGEFILE, mode) }
}

/// Opens what is the device's.
///
/// # Safety
/// `path` is NULL or a string.
unsafe fn open_own(folder: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: by the contract of this function.
    let path = match unsafe { Path::of(path) } {
        Path::Node => return Some(open_node()),
        Path::Sysfs(path) => path,
        Path::Other => {
            if path.is_null() {
                return None;
            }
            // SAFETY: by the contract of this function.
            let name = unsafe { CStr::from_ptr(path) };
            let is_absolute = name.to_bytes().first() == Some(&b'/');
            let folder = if is_absolute { None } else { tree::folder(folder) }?;
            format!("{folder}/{}", name.to_string_lossy())
        }
    };
    let opened = Tree::get().ok_or(libc::ENODEV).and_then(|tree| tree.open(&path, flags));
    Some(opened.unwrap_or_else(fail))
}

/// # Safety
/// As stat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, into: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    match unsafe { Path::of(path) } {
        Path::Other => {
            // SAFETY: the caller's arguments, passed on.
            unsafe { Next::stat(path, into) }
        }
        Path::Node => {
            // SAFETY: another path; the rest as the caller gave it.
            unsafe { Next::stat(COMMAND_DEVICE.as_ptr(), into) }
        }
        Path::Sysfs(path) => {
            let kind = guard(None, || Tree::get()?.kind(&path));
            let Some(kind) = kind else { return fail(libc::ENOENT) };
            // SAFETY: all zeros are a value of the struct, whose members are numbers.
            let mut found = unsafe { std::mem::zeroed::<libc::stat>() };
            found.st_mode = kind;
            found.st_nlink = 1;
            // SAFETY: room for the struct, by the contract of this function.
            unsafe { into.write(found) };
            0
        }
    }
}

/// # Safety
/// As [`stat`]; on the 64-bit systems that this runs on it is the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, into: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { stat(path, into) }
}

/// The function that programs call that were linked with a glibc before 2.33.
///
/// # Safety
/// As [`stat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat(_: c_int, path: *const c_char, into: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { stat(path, into) }
}

/// # Safety
/// As readlink(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlink(path: *const c_char, into: *mut c_char, room: usize) -> isize {
    if is_active() && !path.is_null() {
        // SAFETY: by the contract of this function.
        let name = unsafe { CStr::from_ptr(path) };
        let found = guard(None, || Some(Tree::get()?.link(&name.to_string_lossy())?.as_bytes()));
        if let Some(target) = found {
            let bytes = target.len().min(room);
            // SAFETY: room for so many bytes, by the contract of this function.
            unsafe { into.cast::<u8>().copy_from_nonoverlapping(target.as_ptr(), bytes) };
            return bytes.cast_signed();
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { Next::readlink(path, into, room) }
}

/// # Safety
/// As opendir(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: by the contract of this function.
    let Path::Sysfs(path) = (unsafe { Path::of(path) }) else {
        // SAFETY: the caller's argument, passed on.
        return unsafe { Next::opendir(path) };
    };
    guard(std::ptr::null_mut(), || tree::open_stream(&path)).cast()
}

/// # Safety
/// As readdir(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir(stream: *mut libc::DIR) -> *mut libc::dirent {
    if let Some(entry) = guard(None, || tree::next_entry(stream.addr())) {
        return entry;
    }
    // SAFETY: the caller's argument, passed on.
    unsafe { Next::readdir(stream) }
}

/// # Safety
/// As [`readdir`]; on the 64-bit systems that this runs on it is the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64(stream: *mut libc::DIR) -> *mut libc::dirent {
    // SAFETY: by the contract of this function.
    unsafe { readdir(stream) }
}

/// # Safety
/// As closedir(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(stream: *mut libc::DIR) -> c_int {
    guard((), || tree::close_stream(stream.addr()));
    // SAFETY: the caller's argument, passed on: also behind a stream of the tree is one of libc's.
    unsafe { Next::closedir(stream) }
}

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    if is_active() {
        if is_command(descriptor) {
            release(descriptor);
        }
        tree::forget(descriptor);
    }
    Next::close(descriptor)
}

/// # Safety
/// As ioctl(2); the argument is passed like that of [`open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if !is_active() || !is_command(descriptor) {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { Next::ioctl(descriptor, request, argument) };
    }
    let Some(commands) = DESCRIPTORS.get().and_then(Option::as_ref) else { return fail(libc::ENODEV) };
    match commands.ioctl(descriptor, request, argument.expose_provenance()) {
        Ok(()) => 0,
        Err(errno) => fail(errno),
    }
}

/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    if !is_active() || !is_command(descriptor) {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { Next::mmap(address, bytes, protection, flags, descriptor, offset) };
    }
    let is_written = protection & (libc::PROT_WRITE | libc::PROT_EXEC) != 0;
    let request = MappingRequest { offset, bytes, is_written };
    let found = guard(Err(libc::EIO), || {
        let commands = DESCRIPTORS.get().and_then(Option::as_ref).ok_or(libc::ENODEV)?;
        commands.mapping(descriptor, &request)
    });
    let (flags, file, offset) = match found {
        Ok(Mapping::Doorbell) => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        Ok(Mapping::Clock { file, offset }) => (libc::MAP_SHARED, file, offset),
        Err(errno) => {
            fail(errno);
            return libc::MAP_FAILED;
        }
    };
    // SAFETY: a new mapping where the kernel likes it.
    unsafe { Next::mmap(std::ptr::null_mut(), bytes, protection, flags, file, offset) }
}

/// # Safety
/// As [`mmap`]; on the 64-bit systems that this runs on it is the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: by the contract of this function.
    unsafe { mmap(address, bytes, protection, flags, descriptor, offset) }
}

/// # Safety
/// As socket(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if is_active() && domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return fail(libc::EPROTONOSUPPORT);
    }
    Next::socket(domain, kind, protocol)
}

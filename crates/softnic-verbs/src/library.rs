//! The libibverbs in this process: its private symbols and which release it is.
//!
//! The symbols are looked up at run time, so that nothing links against one `IBVERBS_PRIVATE_NN` version.
//! Used by `device`; resolved once, when the first soft NIC is created.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use ibverbs_sys::ibv_device;

use crate::ProviderError;
use crate::abi::{NEWEST_RELEASE, OLDEST_RELEASE, REGISTER_SYMBOLS, VerbsDeviceOps, release_of};

type InitAndAllocContext =
    unsafe extern "C" fn(*mut ibv_device, c_int, usize, *mut c_void, u32) -> *mut c_void;
type SetOps = unsafe extern "C" fn(*mut c_void, *const *const c_void);
type UninitContext = unsafe extern "C" fn(*mut c_void);
type RegisterDriver = unsafe extern "C" fn(*const VerbsDeviceOps);

/// The private side of the loaded library.
pub(crate) struct Library {
    pub(crate) init_and_alloc_context: InitAndAllocContext,
    pub(crate) set_ops: SetOps,
    pub(crate) uninit_context: UninitContext,
    pub(crate) release: u32,
    handle: Handle,
}

/// The handle of dlopen(3); never closed.
struct Handle(*mut c_void);

// SAFETY: a handle may be used by every thread, and so may what it represents.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

static LIBRARY: OnceLock<Library> = OnceLock::new();

impl Library {
    /// The library, once [`Library::load`] succeeded.
    pub(crate) fn loaded() -> Option<&'static Self> {
        LIBRARY.get()
    }

    /// Resolves the library's private symbols.
    pub(crate) fn load() -> Result<&'static Self, ProviderError> {
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        let handle = open()?;
        let set_ops = symbol(handle, c"verbs_set_ops")?;
        let init = symbol(handle, c"_verbs_init_and_alloc_context")?;
        let uninit = symbol(handle, c"verbs_uninit_context")?;
        let release = release(set_ops)?;
        // SAFETY: the signature is that of driver.h in every release that `release` lets through.
        let init_and_alloc_context = unsafe { std::mem::transmute::<*mut c_void, InitAndAllocContext>(init) };
        // SAFETY: as above; `verbs_context_ops` is passed as what it is, an array of function pointers.
        let set_ops = unsafe { std::mem::transmute::<*mut c_void, SetOps>(set_ops) };
        // SAFETY: as above.
        let uninit_context = unsafe { std::mem::transmute::<*mut c_void, UninitContext>(uninit) };
        let library =
            Self { init_and_alloc_context, set_ops, uninit_context, release, handle: Handle(handle) };
        Ok(LIBRARY.get_or_init(|| library))
    }

    /// Whether this process has loaded the library.
    pub(crate) fn is_present() -> bool {
        !already_open().is_null()
    }

    /// The function that takes a provider, under whichever name this release has it.
    pub(crate) fn register_driver(&self) -> Result<RegisterDriver, ProviderError> {
        let missing =
            ProviderError::LibrarySymbol { symbol: "verbs_register_driver_34, _57, _59, _64 or _65" };
        let found = REGISTER_SYMBOLS.into_iter().find_map(|name| symbol(self.handle.0, name).ok());
        // SAFETY: the signature is that of driver.h in every release that has one of these names.
        found.ok_or(missing).map(|at| unsafe { std::mem::transmute::<*mut c_void, RegisterDriver>(at) })
    }

    /// The library's own public function of a name and version, even if another library defines one of that
    /// name. It is found in releases of an unknown private layout, too.
    pub(crate) fn function(name: &'static CStr, version: &CStr) -> Result<*mut c_void, ProviderError> {
        let handle = LIBRARY.get().map_or_else(open, |library| Ok(library.handle.0))?;
        // SAFETY: the handle came from dlopen and is never closed; both strings are NUL-terminated.
        let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
        if address.is_null() { Err(missing(name)) } else { Ok(address) }
    }
}

const NAME: &CStr = c"libibverbs.so.1";

/// The handle of the library that this process already uses, or NULL.
fn already_open() -> *mut c_void {
    // SAFETY: a NUL-terminated name; RTLD_NOLOAD runs no constructors.
    unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }
}

/// The handle of the library that this process already uses, or a fresh one where nothing pulled it in yet.
fn open() -> Result<*mut c_void, ProviderError> {
    let loaded = already_open();
    if !loaded.is_null() {
        return Ok(loaded);
    }
    // SAFETY: a NUL-terminated name; the library's constructors are those of any verbs program.
    let opened = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW) };
    if opened.is_null() { Err(ProviderError::LibraryMissing { reason: linker_error() }) } else { Ok(opened) }
}

fn linker_error() -> String {
    // SAFETY: takes nothing; returns NULL or a string that stays until this thread's next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown reason".to_owned();
    }
    // SAFETY: not NULL, so a NUL-terminated string; copied before any other dl call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn symbol(handle: *mut c_void, name: &'static CStr) -> Result<*mut c_void, ProviderError> {
    // SAFETY: `handle` came from dlopen and is never closed; the name is NUL-terminated.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(missing(name));
    }
    Ok(address)
}

fn missing(name: &'static CStr) -> ProviderError {
    ProviderError::LibrarySymbol { symbol: name.to_str().unwrap_or("?") }
}

/// The release, from the real name of the file that `address` was loaded from.
fn release(address: *mut c_void) -> Result<u32, ProviderError> {
    let unknown = |found: String| ProviderError::LibraryRelease {
        found,
        oldest: OLDEST_RELEASE,
        newest: NEWEST_RELEASE,
    };
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `info` is a valid Dl_info to write to.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return Err(unknown("of unknown origin".to_owned()));
    }
    // SAFETY: dladdr succeeded, so the name is a NUL-terminated string that lives as long as the library.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    let file = Path::new(OsStr::from_bytes(file.to_bytes()));
    let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    real.file_name()
        .and_then(OsStr::to_str)
        .and_then(release_of)
        .ok_or_else(|| unknown(real.display().to_string()))
}

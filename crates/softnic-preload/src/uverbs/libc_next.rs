//! libc's own functions behind the interposed ones: those of the next library that has them (dlsym(3),
//! RTLD_NEXT), or the system call itself until the constructor has looked for them.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next functions.
pub(super) struct Next;

/// A function of libc: its name, and its address once it was found.
struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn resolve(&self) {
        // SAFETY: looks a name up in the libraries behind this one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
    }

    fn address(&self) -> *mut c_void {
        self.address.load(Ordering::Relaxed)
    }

    /// The address; looks for it if that was not done yet.
    fn find(&self) -> *mut c_void {
        if self.address().is_null() {
            self.resolve();
        }
        self.address()
    }
}

static OPEN: Symbol = Symbol::new(c"open");
static OPENAT: Symbol = Symbol::new(c"openat");
static STAT: Symbol = Symbol::new(c"stat");
static READLINK: Symbol = Symbol::new(c"readlink");
static OPENDIR: Symbol = Symbol::new(c"opendir");
static READDIR: Symbol = Symbol::new(c"readdir");
static CLOSEDIR: Symbol = Symbol::new(c"closedir");
static CLOSE: Symbol = Symbol::new(c"close");
static IOCTL: Symbol = Symbol::new(c"ioctl");
static MMAP: Symbol = Symbol::new(c"mmap");
static SOCKET: Symbol = Symbol::new(c"socket");

/// Finds all of them.
pub(super) fn resolve() {
    for symbol in
        [&OPEN, &OPENAT, &STAT, &READLINK, &OPENDIR, &READDIR, &CLOSEDIR, &CLOSE, &IOCTL, &MMAP, &SOCKET]
    {
        symbol.resolve();
    }
}

/// The function of a symbol as the type that it has in libc; `None` until it was found.
macro_rules! function {
    ($address:expr, $type:ty) => {{
        let address = $address;
        if address.is_null() {
            None
        } else {
            // SAFETY: found under the name of the function, whose type this is.
            Some(unsafe { std::mem::transmute::<*mut c_void, $type>(address) })
        }
    }};
}

type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
type Openat = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
type Readlink = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
type Opendir = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
type Readdir = unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent;
type Closedir = unsafe extern "C" fn(*mut libc::DIR) -> c_int;
type Close = unsafe extern "C" fn(c_int) -> c_int;
type Ioctl = unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;
type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;
type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;

fn int(answer: c_long) -> c_int {
    c_int::try_from(answer).unwrap_or(-1)
}

impl Next {
    /// Opens a path of this library's.
    pub(super) fn open_own(path: &CStr, flags: c_int) -> c_int {
        // SAFETY: a string, and no flags that want a mode.
        unsafe { Self::open(path.as_ptr(), flags, 0) }
    }

    /// # Safety
    /// Opens a file as open(2) does.
    pub(super) unsafe fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        match function!(OPEN.address(), Open) {
            // SAFETY: by the contract of this function.
            Some(open) => unsafe { open(path, flags, mode) },
            // SAFETY: as above.
            None => int(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) }),
        }
    }

    /// # Safety
    /// As openat(2).
    pub(super) unsafe fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        match function!(OPENAT.address(), Openat) {
            // SAFETY: by the contract of this function.
            Some(openat) => unsafe { openat(folder, path, flags, mode) },
            // SAFETY: as above.
            None => int(unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) }),
        }
    }

    /// # Safety
    /// As stat(2).
    pub(super) unsafe fn stat(path: *const c_char, into: *mut libc::stat) -> c_int {
        match function!(STAT.address(), Stat) {
            // SAFETY: by the contract of this function.
            Some(stat) => unsafe { stat(path, into) },
            // Not in libc before glibc 2.33.
            // SAFETY: as above; the kernel's struct is libc's on 64-bit systems.
            None => int(unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, into, 0) }),
        }
    }

    /// # Safety
    /// As readlink(2).
    pub(super) unsafe fn readlink(path: *const c_char, into: *mut c_char, room: usize) -> isize {
        match function!(READLINK.address(), Readlink) {
            // SAFETY: by the contract of this function.
            Some(readlink) => unsafe { readlink(path, into, room) },
            None => {
                // SAFETY: as above.
                let bytes = unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path, into, room) };
                isize::try_from(bytes).unwrap_or(-1)
            }
        }
    }

    /// # Safety
    /// As opendir(3).
    pub(super) unsafe fn opendir(path: *const c_char) -> *mut libc::DIR {
        // SAFETY: by the contract of this function.
        function!(OPENDIR.find(), Opendir).map_or(std::ptr::null_mut(), |opendir| unsafe { opendir(path) })
    }

    /// # Safety
    /// As readdir(3).
    pub(super) unsafe fn readdir(stream: *mut libc::DIR) -> *mut libc::dirent {
        // SAFETY: by the contract of this function.
        function!(READDIR.find(), Readdir).map_or(std::ptr::null_mut(), |readdir| unsafe { readdir(stream) })
    }

    /// # Safety
    /// As closedir(3).
    pub(super) unsafe fn closedir(stream: *mut libc::DIR) -> c_int {
        // SAFETY: by the contract of this function.
        function!(CLOSEDIR.find(), Closedir).map_or(-1, |closedir| unsafe { closedir(stream) })
    }

    pub(super) fn close(descriptor: c_int) -> c_int {
        match function!(CLOSE.address(), Close) {
            // SAFETY: takes any number; whoever closes owns the descriptor.
            Some(close) => unsafe { close(descriptor) },
            // SAFETY: as above.
            None => int(unsafe { libc::syscall(libc::SYS_close, descriptor) }),
        }
    }

    /// # Safety
    /// As ioctl(2).
    pub(super) unsafe fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        match function!(IOCTL.address(), Ioctl) {
            // SAFETY: by the contract of this function.
            Some(ioctl) => unsafe { ioctl(descriptor, request, argument) },
            // SAFETY: as above.
            None => int(unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) }),
        }
    }

    /// # Safety
    /// As mmap(2).
    pub(super) unsafe fn mmap(
        address: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        descriptor: c_int,
        offset: libc::off_t,
    ) -> *mut c_void {
        match function!(MMAP.address(), Mmap) {
            // SAFETY: by the contract of this function.
            Some(mmap) => unsafe { mmap(address, bytes, protection, flags, descriptor, offset) },
            None => {
                let call = libc::SYS_mmap;
                // SAFETY: as above; the call's offset is in bytes on 64-bit systems.
                let mapped =
                    unsafe { libc::syscall(call, address, bytes, protection, flags, descriptor, offset) };
                std::ptr::with_exposed_provenance_mut(mapped.cast_unsigned() as usize)
            }
        }
    }

    pub(super) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        match function!(SOCKET.address(), Socket) {
            // SAFETY: takes any numbers.
            Some(socket) => unsafe { socket(domain, kind, protocol) },
            // SAFETY: as above.
            None => int(unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) }),
        }
    }
}

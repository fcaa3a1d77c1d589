//! The sysfs tree that exists only in the answers of this library: its files, the folders that are open in it, and the
//! streams that list one.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use softnic::preload::Settings;
use softnic::preload::sysfs::{self, Provider};

use super::libc_next::Next;

/// The files, by their paths from the root, with their contents.
pub(super) struct Tree {
    files: Vec<(String, String)>,
    device: String,
}

/// Where programs look for the kernel driver of a device, and what they find.
const KERNEL_SYSFS: &str = "/sys/class/infiniband/";
const DRIVER_LINK: &str = "/device/driver";
const DRIVER: &str = "../../../../bus/pci/drivers/mlx5_core";

/// What a path names.
enum Node<'t> {
    File(&'t str),
    Folder,
}

/// An open folder of the tree.
struct Folder {
    descriptor: c_int,
    path: String,
}

/// A stream that lists a folder.
struct Stream {
    /// The address of libc's stream, which the program holds.
    address: usize,
    names: Vec<String>,
    next: usize,
    entry: Box<libc::dirent>,
}

/// What is open. The count is to be read without the lock.
#[derive(Default)]
struct Opened {
    folders: Vec<Folder>,
    streams: Vec<Stream>,
}

static OPENED: Mutex<Opened> = Mutex::new(Opened { folders: Vec::new(), streams: Vec::new() });
static OPENED_COUNT: AtomicU32 = AtomicU32::new(0);

/// What is open, if anything is. The library has folders open for the time of one call only, so other callers seldom meet
/// a lock here.
fn opened() -> Option<MutexGuard<'static, Opened>> {
    (OPENED_COUNT.load(Ordering::Acquire) != 0).then(lock)
}

fn lock() -> MutexGuard<'static, Opened> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tree {
    /// The tree of this process's device; `None` if its settings are invalid, which is reported.
    pub(super) fn get() -> Option<&'static Self> {
        static TREE: OnceLock<Option<Tree>> = OnceLock::new();
        let make = || {
            crate::nic()?;
            let settings = Settings::from_environment().ok()?;
            let files = sysfs::files(&settings, Provider::Mlx5);
            let files = files.into_iter().map(|(path, line)| (path, format!("{line}\n"))).collect();
            Some(Self { files, device: settings.name })
        };
        TREE.get_or_init(make).as_ref()
    }

    fn find(&self, path: &str) -> Option<Node<'_>> {
        if let Some((_, text)) = self.files.iter().find(|(file, _)| file == path) {
            return Some(Node::File(text));
        }
        self.names(path).next().map(|_| Node::Folder)
    }

    /// What is in a folder; a name may come several times.
    fn names<'t>(&'t self, folder: &'t str) -> impl Iterator<Item = &'t str> {
        self.files.iter().filter_map(move |(file, _)| {
            let rest = if folder.is_empty() { file } else { file.strip_prefix(folder)?.strip_prefix('/')? };
            rest.split('/').next()
        })
    }

    /// What a link names: there is one, from the device to its driver.
    pub(super) fn link(&self, path: &str) -> Option<&'static str> {
        let device = path.strip_prefix(KERNEL_SYSFS)?.strip_suffix(DRIVER_LINK)?;
        (device == self.device).then_some(DRIVER)
    }

    /// The type and rights of what a path names, as in `st_mode`.
    pub(super) fn kind(&self, path: &str) -> Option<libc::mode_t> {
        Some(match self.find(path)? {
            Node::File(_) => libc::S_IFREG | 0o444,
            Node::Folder => libc::S_IFDIR | 0o555,
        })
    }

    /// Opens a path for reading.
    pub(super) fn open(&self, path: &str, flags: c_int) -> Result<c_int, c_int> {
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(libc::EACCES);
        }
        match self.find(path).ok_or(libc::ENOENT)? {
            Node::File(_) if flags & libc::O_DIRECTORY != 0 => Err(libc::ENOTDIR),
            Node::File(text) => file(text),
            Node::Folder => {
                let descriptor = root()?;
                note_folder(descriptor, path);
                Ok(descriptor)
            }
        }
    }
}

/// The last error of libc.
fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A descriptor that reads a text.
fn file(text: &str) -> Result<c_int, c_int> {
    // SAFETY: a string and a flag.
    let descriptor = unsafe { libc::memfd_create(c"softnic-sysfs".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(errno());
    }
    // At an offset: the descriptor is to be read from the beginning.
    // SAFETY: a descriptor of this function's, and bytes of the text.
    let written = unsafe { libc::pwrite(descriptor, text.as_ptr().cast::<c_void>(), text.len(), 0) };
    if usize::try_from(written) != Ok(text.len()) {
        let errno = errno();
        Next::close(descriptor);
        return Err(errno);
    }
    Ok(descriptor)
}

/// A descriptor that stands for a folder: that of a folder that is always there.
fn root() -> Result<c_int, c_int> {
    let descriptor = Next::open_own(c"/", libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
    if descriptor < 0 { Err(errno()) } else { Ok(descriptor) }
}

fn note_folder(descriptor: c_int, path: &str) {
    let mut opened = lock();
    opened.folders.push(Folder { descriptor, path: path.to_owned() });
    OPENED_COUNT.fetch_add(1, Ordering::Release);
}

/// The path of an open folder of the tree.
pub(super) fn folder(descriptor: c_int) -> Option<String> {
    let opened = opened()?;
    opened.folders.iter().find(|folder| folder.descriptor == descriptor).map(|folder| folder.path.clone())
}

/// A descriptor is about to be closed.
pub(super) fn forget(descriptor: c_int) {
    let Some(mut opened) = opened() else { return };
    let before = opened.folders.len();
    opened.folders.retain(|folder| folder.descriptor != descriptor);
    let closed = before - opened.folders.len();
    OPENED_COUNT.fetch_sub(u32::try_from(closed).unwrap_or(0), Ordering::Release);
}

/// A stream of libc's that stands for one of the tree; NULL with errno set if the path is no folder.
pub(super) fn open_stream(path: &str) -> *mut libc::DIR {
    let folder = Tree::get().filter(|tree| matches!(tree.find(path), Some(Node::Folder)));
    let Some(tree) = folder else {
        crate::interpose::set_errno(libc::ENOENT);
        return std::ptr::null_mut();
    };
    // SAFETY: a string.
    let stream = unsafe { Next::opendir(c"/".as_ptr()) };
    if stream.is_null() {
        return stream;
    }
    // SAFETY: a live stream.
    let descriptor = unsafe { libc::dirfd(stream) };
    let mut names: Vec<String> = tree.names(path).map(str::to_owned).collect();
    names.dedup();
    // SAFETY: all zeros are a value of the struct, whose members are numbers.
    let entry = Box::new(unsafe { std::mem::zeroed::<libc::dirent>() });
    note_folder(descriptor, path);
    let mut opened = lock();
    opened.streams.push(Stream { address: stream.addr(), names, next: 0, entry });
    OPENED_COUNT.fetch_add(1, Ordering::Release);
    stream
}

/// The next entry of a stream of the tree, NULL at its end; `None` if the stream is libc's own.
pub(super) fn next_entry(address: usize) -> Option<*mut libc::dirent> {
    let mut opened = opened()?;
    let stream = opened.streams.iter_mut().find(|stream| stream.address == address)?;
    let Some(name) = stream.names.get(stream.next) else { return Some(std::ptr::null_mut()) };
    stream.next += 1;
    let entry = &mut *stream.entry;
    entry.d_ino = stream.next as libc::ino64_t;
    entry.d_type = libc::DT_UNKNOWN;
    let Some((last, places)) = entry.d_name.split_last_mut() else { return Some(std::ptr::null_mut()) };
    *last = 0;
    for (place, byte) in places.iter_mut().zip(name.bytes().chain(std::iter::repeat(0))) {
        *place = c_char::from_ne_bytes([byte]);
    }
    Some(entry)
}

/// A stream is about to be closed, and the descriptor below it.
pub(super) fn close_stream(address: usize) {
    let Some(mut opened) = opened() else { return };
    let before = opened.streams.len();
    opened.streams.retain(|stream| stream.address != address);
    if opened.streams.len() == before {
        return;
    }
    OPENED_COUNT.fetch_sub(1, Ordering::Release);
    drop(opened);
    let stream = std::ptr::with_exposed_provenance_mut::<libc::DIR>(address);
    // SAFETY: the stream is still open: its owner is about to close it. libc then closes the descriptor without `close`.
    forget(unsafe { libc::dirfd(stream) });
}

//! The sysfs tree that exists only in the answers of this library: its files, the folders that are open in
//! it, and the streams that list one.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use softnic::lazy_nic::Settings;
use softnic_verbs::preload::sysfs::{self, Provider};

use super::libc_next::Next;
use super::own::{Own, entry};

/// The files, by their paths from the root, with their contents.
pub(super) struct Tree {
    files: Vec<(String, String)>,
    device: String,
}

/// Where programs look for the kernel driver of a device, and what they find.
const KERNEL_SYSFS: &str = "/sys/class/infiniband/";
const DRIVER_LINK: &str = "/device/driver";
const DRIVER: &str = "../../../../bus/pci/drivers/mlx5_core";

/// A node of the tree that a path names.
enum Node<'t> {
    File(&'t str),
    Folder,
}

/// An open folder of the tree.
struct Folder {
    descriptor: c_int,
    path: String,
    /// The identity of the file that stands for it: whether the descriptor is still the one that was opened.
    file: (libc::dev_t, libc::ino_t),
}

/// A stream that lists a folder.
struct Stream {
    /// The address of libc's stream, which the program holds.
    address: usize,
    names: Vec<String>,
    next: usize,
    entry: Box<libc::dirent>,
}

/// The open descriptors.
#[derive(Default)]
struct Opened {
    folders: Vec<Folder>,
    streams: Vec<Stream>,
}

static OPENED: Mutex<Opened> = Mutex::new(Opened { folders: Vec::new(), streams: Vec::new() });
/// The open folders, to be found without the lock.
static FOLDERS: Own = Own::new();
static STREAMS: Own = Own::new();

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

    /// The names in a folder; a name may come several times.
    fn names<'t>(&'t self, folder: &'t str) -> impl Iterator<Item = &'t str> {
        self.files.iter().filter_map(move |(file, _)| {
            let rest = if folder.is_empty() { file } else { file.strip_prefix(folder)?.strip_prefix('/')? };
            rest.split('/').next()
        })
    }

    /// The target of a link: there is one, from the device to its driver.
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
                if let Err(errno) = note_folder(descriptor, path) {
                    Next::close(descriptor);
                    return Err(errno);
                }
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

/// The device and the number of the file that a descriptor is of.
fn identity(descriptor: c_int) -> Option<(libc::dev_t, libc::ino_t)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: asks about a number, which need be no descriptor; there is room for the answer.
    let code = unsafe { libc::fstat(descriptor, stat.as_mut_ptr()) };
    // SAFETY: written when the call succeeded.
    (code == 0).then(|| unsafe { stat.assume_init() }).map(|stat| (stat.st_dev, stat.st_ino))
}

fn note_folder(descriptor: c_int, path: &str) -> Result<(), c_int> {
    let file = identity(descriptor).ok_or_else(errno)?;
    let mut opened = lock();
    if !FOLDERS.add(entry(descriptor)) {
        return Err(libc::EMFILE);
    }
    opened.folders.retain(|folder| folder.descriptor != descriptor);
    opened.folders.push(Folder { descriptor, path: path.to_owned(), file });
    Ok(())
}

/// The path of an open folder of the tree.
pub(super) fn folder(descriptor: c_int) -> Option<String> {
    if !FOLDERS.has(entry(descriptor)) {
        return None;
    }
    let is_this = |folder: &&Folder| folder.descriptor == descriptor;
    let known = lock().folders.iter().find(is_this).map(|folder| (folder.path.clone(), folder.file));
    let (path, file) = known?;
    if identity(descriptor) != Some(file) {
        // It was closed without `close`, and another file has its number.
        forget(descriptor);
        return None;
    }
    Some(path)
}

/// A descriptor is about to be closed, or was.
pub(super) fn forget(descriptor: c_int) {
    if FOLDERS.has(entry(descriptor)) {
        let mut opened = lock();
        opened.folders.retain(|folder| folder.descriptor != descriptor);
        FOLDERS.remove(entry(descriptor));
    }
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
    names.sort_unstable();
    names.dedup();
    if let Err(errno) = note_stream(stream.addr(), descriptor, path, names) {
        // SAFETY: a live stream, which no one else knows.
        unsafe { Next::closedir(stream) };
        crate::interpose::set_errno(errno);
        return std::ptr::null_mut();
    }
    stream
}

fn note_stream(address: usize, descriptor: c_int, path: &str, names: Vec<String>) -> Result<(), c_int> {
    note_folder(descriptor, path)?;
    // SAFETY: all zeros are a value of the struct, whose members are numbers.
    let mut entry = Box::new(unsafe { std::mem::zeroed::<libc::dirent>() });
    entry.d_reclen = size_of::<libc::dirent>() as u16;
    let mut opened = lock();
    if !STREAMS.add(address) {
        drop(opened);
        forget(descriptor);
        return Err(libc::EMFILE);
    }
    opened.streams.retain(|stream| stream.address != address);
    opened.streams.push(Stream { address, names, next: 0, entry });
    Ok(())
}

/// The next entry of a stream of the tree, NULL at its end; `None` if the stream is libc's own.
pub(super) fn next_entry(address: usize) -> Option<*mut libc::dirent> {
    if !STREAMS.has(address) {
        return None;
    }
    let mut opened = lock();
    let stream = opened.streams.iter_mut().find(|stream| stream.address == address)?;
    let Some(name) = stream.names.get(stream.next) else { return Some(std::ptr::null_mut()) };
    stream.next += 1;
    let entry = &mut *stream.entry;
    entry.d_ino = stream.next as libc::ino64_t;
    entry.d_off = stream.next as libc::off_t;
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
    if !STREAMS.has(address) {
        return;
    }
    let mut opened = lock();
    opened.streams.retain(|stream| stream.address != address);
    STREAMS.remove(address);
    drop(opened);
    let stream = std::ptr::with_exposed_provenance_mut::<libc::DIR>(address);
    // SAFETY: the stream is still open: its owner is about to close it. libc then closes the descriptor
    // without `close`.
    forget(unsafe { libc::dirfd(stream) });
}

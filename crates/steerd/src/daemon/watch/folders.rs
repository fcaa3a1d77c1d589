//! The folders through which paths lead to files, and the kernel's reports of changes in them (inotify(7)).
//!
//! A path is followed component by component, as the kernel does it (path_resolution(7)). The folder of each
//! component is watched for a change of that name, and so are those of the targets of symbolic links. So it
//! makes no difference whether a file, a link or a folder on the way is replaced. What does not exist is
//! reported when it is made, because the last folder that exists is watched for its name.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::PipeReader;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// The most links of a path that are followed, as in the kernel (MAXSYMLINKS).
const LINKS_MAX: usize = 40;
/// The buffer for reports; the longest has the length of a name, and 16 bytes.
const BUFFER_BYTES: usize = 16 << 10;
/// File systems whose files others change without a report: those of networks, and of programs (FUSE). The
/// numbers are those of statfs(2).
const REMOTE: [(u32, &str); 8] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x5346_414f, "AFS"),
];

/// The names in a folder that paths lead through; `true`: a file that is read.
type Names = BTreeMap<OsString, bool>;

/// The kernel's reports of the watched folders.
pub(super) struct Folders {
    /// An error: the kernel makes no reports for this process.
    inotify: Result<OwnedFd, Errno>,
    /// The folders and names that are wanted.
    wanted: BTreeMap<PathBuf, Names>,
    /// The names that are watched, by the number that reports have.
    watched: HashMap<i32, BTreeSet<OsString>>,
    /// The files that somebody has written to and not closed.
    written: BTreeSet<(i32, OsString)>,
}

/// The result of taking all reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reports {
    pub(super) has_changes: bool,
    /// Whether there were more than the kernel lists.
    pub(super) has_lost_some: bool,
}

impl Folders {
    pub(super) fn open() -> Self {
        Self::with(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK))
    }

    fn with(inotify: Result<OwnedFd, Errno>) -> Self {
        Self { inotify, wanted: BTreeMap::new(), watched: HashMap::new(), written: BTreeSet::new() }
    }

    /// Makes a watch without reports, as in a process that has reached a limit.
    #[cfg(test)]
    pub(super) fn refused() -> Self {
        Self::with(Err(Errno::MFILE))
    }

    /// Watches the folders of these files, and no others. Returns why changes are not reported, if they are
    /// not.
    pub(super) fn watch(&mut self, files: &[PathBuf]) -> Option<String> {
        self.wanted = names_on_the_way(files);
        let inotify = match &self.inotify {
            Ok(inotify) => inotify,
            Err(errno) => return Some(refused("the kernel reports no changes of files", *errno)),
        };
        let mut watched: HashMap<i32, BTreeSet<OsString>> = HashMap::new();
        let mut fault = None;
        for (folder, names) in &self.wanted {
            match inotify::add_watch(inotify, folder, events_of(names)) {
                // Two paths may lead to the same folder.
                Ok(watch) => watched.entry(watch).or_default().extend(names.keys().cloned()),
                // It has gone since, which the folder above reports.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => {
                    let what = format!("changes in {} are not reported", folder.display());
                    fault.get_or_insert_with(|| refused(&what, errno));
                }
            }
            if let Some(kind) = remote(folder) {
                let folder = folder.display();
                fault.get_or_insert_with(|| {
                    format!("{folder} is on {kind}, where changes by others are not reported")
                });
            }
        }
        for (watch, _) in self.watched.iter().filter(|(watch, _)| !watched.contains_key(watch)) {
            // The folder may be gone, and its watch with it.
            let _ = inotify::remove_watch(inotify, *watch);
        }
        self.written.retain(|(watch, name)| watched.get(watch).is_some_and(|names| names.contains(name)));
        self.watched = watched;
        fault
    }

    /// Returns whether the watched folders are still those that lead to these files.
    pub(super) fn are_current(&self, files: &[PathBuf]) -> bool {
        self.wanted == names_on_the_way(files)
    }

    /// The name of a file that somebody has open and has written to.
    pub(super) fn written(&self) -> Option<&OsStr> {
        self.written.first().map(|(_, name)| name.as_os_str())
    }

    /// Waits for a report. Returns `false` if the writer of `stop` is closed.
    pub(super) fn wait(&self, stop: &PipeReader, timeout: Option<Duration>) -> bool {
        super::wait_for(stop, self.inotify.as_ref().ok(), timeout)
    }

    /// Takes all reports.
    pub(super) fn reports(&mut self) -> Reports {
        let mut found = Reports::default();
        let Ok(inotify) = &self.inotify else { return found };
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(inotify, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                // None is left.
                Err(_) => return found,
            };
            let (flags, watch) = (event.events(), event.wd());
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                found.has_lost_some = true;
                self.written.clear();
            }
            let Some(names) = self.watched.get(&watch) else { continue };
            let Some(name) = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes())) else {
                // The folder itself has gone.
                found.has_changes |=
                    flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT);
                continue;
            };
            if !names.contains(name) {
                continue;
            }
            found.has_changes = true;
            let file = (watch, name.to_owned());
            if flags.contains(ReadFlags::MODIFY) {
                self.written.insert(file);
            } else if !flags.contains(ReadFlags::ATTRIB) {
                self.written.remove(&file);
            }
        }
    }
}

/// The reports that are wanted of a folder. Writes are many in some folders, and matter only for files that
/// are read.
fn events_of(names: &Names) -> WatchFlags {
    let of_names = WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    let of_contents = WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE;
    let has_files = names.values().any(|is_file| *is_file);
    let events = if has_files { of_names | of_contents } else { of_names };
    // What was a folder may be a link by now. Writes to a file that was replaced do not change the new one.
    events | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW | WatchFlags::MASK_ADD | WatchFlags::EXCL_UNLINK
}

fn refused(what: &str, errno: Errno) -> String {
    let hint = match errno {
        Errno::NOSPC => " (hint: raise fs.inotify.max_user_watches)",
        Errno::MFILE | Errno::NFILE => {
            " (hint: raise fs.inotify.max_user_instances, or LimitNOFILE= of the service)"
        }
        Errno::ACCESS | Errno::PERM => " (hint: the daemon needs the right to list the folder)",
        _ => "",
    };
    format!("{what}: {}{hint}", std::io::Error::from(errno))
}

/// The kind of a file system whose changes are not all reported.
fn remote(folder: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(folder).ok()?.f_type as u32;
    REMOTE.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

/// A step of a path.
enum PathStep {
    Root,
    Up,
    Name(OsString),
}

/// The steps of a path.
fn steps(path: &Path) -> impl DoubleEndedIterator<Item = PathStep> {
    path.components().filter_map(|component| match component {
        Component::RootDir => Some(PathStep::Root),
        Component::ParentDir => Some(PathStep::Up),
        Component::Normal(name) => Some(PathStep::Name(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    })
}

/// The names through which these paths lead, by folder. A folder has no link in its path.
fn names_on_the_way(files: &[PathBuf]) -> BTreeMap<PathBuf, Names> {
    let mut found: BTreeMap<PathBuf, Names> = BTreeMap::new();
    for file in files {
        // The current folder may be gone; an absolute path needs none.
        let Ok(file) = std::path::absolute(file) else { continue };
        let mut folder = PathBuf::from("/");
        let mut rest: VecDeque<PathStep> = steps(&file).collect();
        let mut links = 0;
        while let Some(step) = rest.pop_front() {
            let name = match step {
                PathStep::Root => {
                    folder = PathBuf::from("/");
                    continue;
                }
                PathStep::Up => {
                    folder.pop();
                    continue;
                }
                PathStep::Name(name) => name,
            };
            let path = folder.join(&name);
            let is_file = rest.is_empty();
            *found.entry(folder.clone()).or_default().entry(name).or_default() |= is_file;
            match fs::read_link(&path) {
                Ok(target) if links < LINKS_MAX => {
                    links += 1;
                    steps(&target).rev().for_each(|step| rest.push_front(step));
                }
                // It is no link.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => folder = path,
                // It does not exist, or cannot be followed.
                Ok(_) | Err(_) => break,
            }
        }
    }
    found
}

/// The metadata that shows whether files have changed, without reading them: inode, length, and times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<Option<FileStamp>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: [i64; 2],
    changed: [i64; 2],
}

impl Fingerprint {
    pub(super) fn of(files: &[PathBuf]) -> Self {
        let stamp = |file: &PathBuf| {
            let found = fs::metadata(file).ok()?;
            Some(FileStamp {
                device: found.dev(),
                inode: found.ino(),
                bytes: found.len(),
                modified: [found.mtime(), found.mtime_nsec()],
                changed: [found.ctime(), found.ctime_nsec()],
            })
        };
        Self(files.iter().map(stamp).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn each_link_and_folder_on_the_way_is_watched() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path().canonicalize().expect("it exists");
        fs::create_dir_all(root.join("real/..2026")).expect("made");
        fs::write(root.join("real/..2026/policy.toml"), "").expect("written");
        symlink("..2026", root.join("real/..data")).expect("made");
        symlink("..data/policy.toml", root.join("real/policy.toml")).expect("made");
        symlink(root.join("real"), root.join("etc")).expect("made");
        let found = names_on_the_way(&[root.join("etc/../etc/policy.toml")]);
        let names = |folder: &str| {
            let names = found.get(&root.join(folder));
            names
                .map(|names| names.keys().map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>())
        };
        assert_eq!(names("").expect("watched"), ["etc", "real"]);
        assert_eq!(names("real").expect("watched"), ["..2026", "..data", "policy.toml"]);
        assert_eq!(names("real/..2026").expect("watched"), ["policy.toml"]);
        assert_eq!(names("real/..data"), None, "it is a link");
        assert!(found[&root.join("real/..2026")][OsStr::new("policy.toml")]);
        assert!(!found[&root][OsStr::new("etc")]);
    }

    #[test]
    fn a_loop_of_links_ends() {
        let root = tempfile::tempdir().expect("a folder");
        symlink("b", root.path().join("a")).expect("made");
        symlink("a", root.path().join("b")).expect("made");
        let found = names_on_the_way(&[root.path().join("a"), root.path().join("missing/policy.toml")]);
        let names: Vec<_> = found[&root.path().canonicalize().expect("it exists")].keys().collect();
        assert_eq!(names, ["a", "b", "missing"]);
    }
}

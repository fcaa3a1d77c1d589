//! The functions of libc that the library for `softnic exec --method mlx5` comes before, called as by any
//! program.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};
use std::panic::catch_unwind;

use crate::support::{self, is_client};
use verbs::{DeviceList, ProtectionDomain};

const NULL_WIRE: &str = "null";
const NODE: &CStr = c"/dev/infiniband/uverbs0";
const FOLDER: &CStr = c"/sys/softnic-mlx5/class/infiniband/mlx5_0";

/// Runs a function in a child of fork(2) and returns its exit code; 101 if it panics.
fn in_child(body: impl FnOnce() -> c_int + std::panic::UnwindSafe) -> c_int {
    // SAFETY: the child runs `body`, which needs no other thread of this process, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = catch_unwind(body).unwrap_or(101);
        // SAFETY: ends the child without what the test's process would do at its end.
        unsafe { libc::_exit(code) };
    }
    let mut status = -1;
    // SAFETY: the child of this process, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

fn open_device() -> bool {
    let list = DeviceList::system().unwrap();
    let context = list.find("mlx5_0").unwrap().open();
    context.is_ok_and(|context| ProtectionDomain::new(&context).is_ok())
}

#[test]
fn a_child_opens_the_device_only_if_its_parent_has_not() {
    if !is_client("a_child_opens_the_device_only_if_its_parent_has_not", NULL_WIRE) {
        return;
    }
    assert_eq!(DeviceList::system().unwrap().iter().count(), 1);
    assert_eq!(in_child(|| c_int::from(open_device())), 1);
    let list = DeviceList::system().unwrap();
    let context = list.find("mlx5_0").unwrap().open().unwrap();
    let refused = in_child(|| {
        assert_eq!(support::try_open(NODE, libc::O_RDWR), -1);
        std::io::Error::last_os_error().raw_os_error().unwrap()
    });
    assert_eq!(refused, libc::ENODEV);
    assert!(ProtectionDomain::new(&context).is_ok(), "the parent goes on");
}

/// A descriptor of a file with this text.
fn file(text: &[u8]) -> c_int {
    // SAFETY: a string and no flags.
    let descriptor = unsafe { libc::memfd_create(c"test".as_ptr(), 0) };
    // SAFETY: the bytes of the text.
    let written = unsafe { libc::pwrite(descriptor, text.as_ptr().cast(), text.len(), 0) };
    assert_eq!(written, text.len().cast_signed());
    descriptor
}

/// Puts another file in the place of a descriptor, without close(2).
fn replace(descriptor: c_int, by: c_int) {
    // SAFETY: descriptors of this process that nothing else uses.
    assert_eq!(unsafe { libc::dup2(by, descriptor) }, descriptor);
    support::close(by);
}

#[test]
fn a_file_that_has_the_number_of_a_command_descriptor_is_left_alone() {
    if !is_client("a_file_that_has_the_number_of_a_command_descriptor_is_left_alone", NULL_WIRE) {
        return;
    }
    let command = support::open(NODE, libc::O_RDWR);
    replace(command, file(b"text"));
    // SAFETY: a new mapping of the file.
    let page =
        unsafe { libc::mmap(std::ptr::null_mut(), 4_096, libc::PROT_READ, libc::MAP_PRIVATE, command, 0) };
    assert_ne!(page, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    // SAFETY: mapped above, of a file with as many bytes.
    assert_eq!(unsafe { page.cast::<[u8; 4]>().read() }, *b"text");
    let mut left: c_int = 0;
    // SAFETY: room for a number.
    assert_eq!(unsafe { libc::ioctl(command, libc::FIONREAD, &raw mut left) }, 0);
    support::close(command);
    assert!(open_device());
}

#[test]
fn a_folder_that_has_the_number_of_one_of_the_tree_is_left_alone() {
    if !is_client("a_folder_that_has_the_number_of_one_of_the_tree_is_left_alone", NULL_WIRE) {
        return;
    }
    let folder = support::open(FOLDER, libc::O_DIRECTORY);
    assert_eq!(support::read(support::open_at(folder, c"node_type")), "1: CA\n");
    let absolute = support::read(support::open_at(folder, c"/proc/self/comm"));
    replace(folder, support::open(c"/proc/self", libc::O_DIRECTORY));
    assert_eq!(support::read(support::open_at(folder, c"comm")), absolute);
    support::close(folder);
}

#[test]
fn a_folder_lists_each_name_once() {
    if !is_client("a_folder_lists_each_name_once", NULL_WIRE) {
        return;
    }
    let mut names = Vec::new();
    // SAFETY: a string.
    let stream = unsafe { libc::opendir(c"/sys/softnic-mlx5/class/infiniband/mlx5_0/ports/1".as_ptr()) };
    assert!(!stream.is_null());
    loop {
        // SAFETY: an open stream.
        let entry = unsafe { libc::readdir(stream) };
        // SAFETY: NULL or an entry, until the next call.
        let Some(entry) = (unsafe { entry.as_ref() }) else { break };
        assert!(usize::from(entry.d_reclen) > std::mem::offset_of!(libc::dirent, d_name));
        // SAFETY: names end with 0.
        let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) };
        names.push(name.to_str().unwrap().to_owned());
    }
    // SAFETY: an open stream, which is not used again.
    assert_eq!(unsafe { libc::closedir(stream) }, 0);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    assert!(names.iter().any(|name| name == "gids") && names.iter().any(|name| name == "pkeys"), "{names:?}");
}

/// mmap(2) of a page of the command descriptor; the errno if it fails.
fn map(descriptor: c_int, page: i64, bytes: usize, protection: c_int) -> Result<*mut libc::c_void, c_int> {
    let offset = page * 4_096;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, descriptor, offset) };
    if address == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
    }
    Ok(address)
}

/// The command descriptor of the only open context: /dev/full is open in its place.
fn command_descriptor() -> c_int {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_full = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target == std::path::Path::new("/dev/full"))
    };
    let found: Vec<_> = entries.filter(is_full).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// `MLX5_IB_MMAP_CORE_CLOCK` and `MLX5_IB_MMAP_CLOCK_INFO`, in the bits of a command.
const CLOCK_PAGES: [i64; 2] = [5 << 8, 7 << 8];

#[test]
fn the_pages_of_the_clock_are_only_to_be_read() {
    if !is_client("the_pages_of_the_clock_are_only_to_be_read", NULL_WIRE) {
        return;
    }
    let descriptor = support::open(NODE, libc::O_RDWR);
    for page in CLOCK_PAGES {
        assert_eq!(map(descriptor, page, 4_096, libc::PROT_READ), Err(libc::EINVAL), "there is no context");
    }
    support::close(descriptor);
    let list = DeviceList::system().unwrap();
    let context = list.find("mlx5_0").unwrap().open().unwrap();
    let descriptor = command_descriptor();
    for page in CLOCK_PAGES {
        let address = map(descriptor, page, 4_096, libc::PROT_READ).unwrap();
        // SAFETY: the mapping was just made, and nothing refers to it.
        assert_eq!(unsafe { libc::mprotect(address, 4_096, libc::PROT_READ | libc::PROT_WRITE) }, -1);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munmap(address, 4_096) }, 0);
        for protection in [libc::PROT_WRITE, libc::PROT_READ | libc::PROT_WRITE, libc::PROT_EXEC] {
            assert_eq!(map(descriptor, page, 4_096, protection), Err(libc::EPERM));
        }
        assert_eq!(map(descriptor, page, 8_192, libc::PROT_READ), Err(libc::EINVAL));
        assert_eq!(map(descriptor, page + 1, 4_096, libc::PROT_READ), Err(libc::EINVAL));
    }
    assert!(context.raw_clock().is_ok());
}

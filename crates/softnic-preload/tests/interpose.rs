//! The functions that come before the library's own, called as a program would that has them preloaded.

use std::ffi::{CStr, c_int};
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};

use ibverbs_sys::ibv_context;
use softnic_preload::interpose::{
    ibv_create_comp_channel, ibv_get_device_guid, ibv_import_device, ibv_query_pkey,
};

/// The file that represents a device's command channel.
fn command_channel() -> c_int {
    OpenOptions::new().read(true).write(true).open("/dev/full").expect("/dev/full").into_raw_fd()
}

fn import(fd: c_int) -> *mut ibv_context {
    // SAFETY: takes any number.
    unsafe { ibv_import_device(fd) }
}

#[test]
fn an_imported_device_is_the_soft_nic_and_takes_the_descriptor() {
    let fd = command_channel();
    let context = import(fd);
    assert!(!context.is_null());
    // SAFETY: asks about a number.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1, "closed, man ibv_import_device");
    // SAFETY: a live context.
    let device = unsafe { (*context).device };
    // SAFETY: its device, as live.
    let name = unsafe { ibverbs_sys::ibv_get_device_name(device) };
    // SAFETY: a name, which the device holds.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"softnic0");
    // SAFETY: as above.
    assert_ne!(unsafe { ibv_get_device_guid(device) }, 0);

    let key = |port, index| {
        let mut key = 0;
        // SAFETY: a live context, and room for a key.
        let code = unsafe { ibv_query_pkey(context, port, index, &raw mut key) };
        (code, u16::from_be(key))
    };
    assert_eq!(key(1, 0), (0, 0xffff));
    for (port, index) in [(0, 0), (2, 0), (1, -1), (1, 1)] {
        assert_eq!(key(port, index).0, -1, "port {port}, index {index}");
    }

    // SAFETY: a live context.
    let channel = unsafe { ibv_create_comp_channel(context) };
    assert!(!channel.is_null());
    // SAFETY: made just now, of this context.
    assert_eq!(unsafe { ibverbs_sys::ibv_destroy_comp_channel(channel) }, 0);
    // SAFETY: a live context without objects.
    assert_eq!(unsafe { ibverbs_sys::ibv_close_device(context) }, 0);
}

#[test]
fn other_files_than_command_channels_are_left_to_the_library() {
    let plain = tempfile::tempfile().expect("a file");
    assert!(import(plain.as_raw_fd()).is_null());
    let channel = command_channel();
    // Not even where standard input is one.
    // SAFETY: two numbers; nothing here reads standard input.
    assert_eq!(unsafe { libc::dup2(channel, 0) }, 0);
    assert!(import(-1).is_null());
    // SAFETY: asks about a number.
    assert_ne!(unsafe { libc::fcntl(0, libc::F_GETFD) }, -1, "and nothing is closed");
}

use std::os::unix::net::UnixListener;

use rustix::fs::Mode;

use super::*;

#[test]
fn what_could_be_made_is_found_without_making_it() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("new.pcap");
    check_create(&path).expect("the folder takes it");
    assert!(!path.exists());
    std::fs::write(&path, "content").expect("written");
    check_create(&path).expect("it can be written");
    assert_eq!(std::fs::read(&path).expect("read"), b"content");
    assert!(matches!(check_create(folder.path()), Err(FileError::NotRegular("a directory"))));
    let inside = path.join("x");
    for missing in [folder.path().join("none").join("x"), inside] {
        let error = check_create(&missing).expect_err("no folder");
        let made = create(&missing).expect_err("no folder");
        assert_eq!(error.to_string(), made.to_string());
    }
}

/// Nobody opens the other end of the FIFO, and the device has no end: a test that hangs is a failed one.
#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().expect("folder");
    let (fifo, socket) = (folder.path().join("fifo"), folder.path().join("socket"));
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("a FIFO");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    for (path, name) in [
        (folder.path(), "a directory"),
        (&fifo, "a FIFO"),
        (&socket, "a socket"),
        (Path::new("/dev/zero"), "a device"),
    ] {
        for opened in [open(path), create(path)] {
            assert!(
                matches!(opened, Err(FileError::NotRegular(found)) if found == name),
                "{name}: {opened:?}"
            );
        }
    }
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&fifo, &link).expect("a link");
    assert!(matches!(open(&link), Err(FileError::NotRegular("a FIFO"))), "what a link names counts");
    let missing = open(&folder.path().join("missing"));
    assert!(matches!(missing, Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound));
}

#[test]
fn a_file_is_read_up_to_its_bound() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("file");
    std::fs::write(&path, [7; 100]).expect("written");
    assert_eq!(read(&path, 100).expect("read"), [7; 100]);
    assert!(matches!(read(&path, 99), Err(FileError::TooLarge(99))));
    // Its length is 0, as far as the file system tells.
    assert!(!read(Path::new("/proc/self/status"), 1 << 20).expect("read").is_empty());
    assert!(matches!(read_bounded(io::repeat(0), 9), Err(FileError::TooLarge(9))));
}

#[test]
fn a_created_file_is_empty() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("file");
    for _ in 0..2 {
        create(&path).expect("created");
        assert_eq!(read(&path, 10).expect("read"), b"");
        std::fs::write(&path, "old").expect("written");
    }
}

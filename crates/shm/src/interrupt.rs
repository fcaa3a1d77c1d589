//! Interrupts between processes: eventfds (eventfd(2)).
//!
//! A server writes to eventfds that clients created. write(2) to an eventfd waits if the counter is at its
//! maximum and the file is not O_NONBLOCK, and the client can set both whenever it wants, so a server must
//! not call it. [`Signaller`] lets the kernel add to the counter, as the notification of a finished
//! asynchronous read (io_submit(2), IOCB_FLAG_RESFD). That never waits, and fails with EINVAL if the file is
//! not an eventfd.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};

/// An eventfd of this process.
#[derive(Debug)]
pub struct Interrupt(OwnedFd);

impl Interrupt {
    /// A new one.
    ///
    /// # Errors
    /// The errno of eventfd(2).
    pub fn new() -> rustix::io::Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Wakes who waits for it.
    pub fn raise(&self) {
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Ends the interrupt.
    pub fn clear(&self) {
        let _ = read(&self.0, &mut [0u8; 8]);
    }

    /// Waits until it is raised, or `timeout` is over, and clears it. Returns whether it was raised.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let raised = wait_readable(&[self.0.as_fd()], timeout);
        if raised {
            self.clear();
        }
        raised
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the files is readable, or `timeout` is over. Returns whether one is.
pub(crate) fn wait_readable(files: &[BorrowedFd<'_>], timeout: Duration) -> bool {
    let mut files: Vec<_> = files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).ok();
    matches!(poll(&mut files, timeout.as_ref()), Ok(ready) if ready > 0)
}

/// The read operation of `struct iocb` (linux/aio_abi.h).
const IOCB_CMD_PREAD: u16 = 0;
/// The flag for an eventfd in `struct iocb`.
const IOCB_FLAG_RESFD: u32 = 1;
/// Requests that can be under way; each is finished before `io_submit` returns.
const REQUESTS: usize = 8;

/// `struct iocb` of linux/aio_abi.h on a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion([u64; 4]);

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Completion>() == 32);

/// Raises eventfds of other processes without ever waiting.
#[derive(Debug)]
pub struct Signaller {
    context: libc::c_ulong,
    /// Read of, 0 bytes, by each request.
    null: File,
}

impl Signaller {
    /// # Errors
    /// The kernel has no asynchronous I/O, or the system has no more of it (`fs.aio-max-nr`).
    pub fn new() -> std::io::Result<Self> {
        let null = File::open("/dev/null")?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: `context` is zero, as required, and has room for the result.
        let rc = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut context) };
        if rc == 0 { Ok(Self { context, null }) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Adds 1 to the counter of an eventfd.
    ///
    /// # Errors
    /// EINVAL if the file is not an eventfd.
    pub fn signal(&self, eventfd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let mut request = Request {
            opcode: IOCB_CMD_PREAD,
            file: self.null.as_raw_fd().cast_unsigned(),
            flags: IOCB_FLAG_RESFD,
            eventfd: eventfd.as_raw_fd().cast_unsigned(),
            ..Request::default()
        };
        let mut requests = [&raw mut request];
        // SAFETY: the context is alive until `Drop`; there is one request, which reads 0 bytes and needs no
        // buffer. A read of /dev/null is finished when the call returns, so the kernel keeps no pointer to
        // it.
        let rc = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, requests.as_mut_ptr()) };
        let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        let result = if rc == 1 { Ok(()) } else { Err(failed()) };
        self.reap();
        result
    }

    /// Takes the completions, which would fill the context otherwise.
    fn reap(&self) {
        let mut completions = [MaybeUninit::<Completion>::uninit(); REQUESTS];
        let mut timeout = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let place = completions.as_mut_ptr();
        // SAFETY: the context is alive until `Drop`, and there is room for `REQUESTS` completions, which are
        // not read.
        let _ = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, 0, REQUESTS, place, &raw mut timeout)
        };
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        // SAFETY: the context came from `io_setup`, and no call uses it any more.
        let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn a_signal_raises_the_eventfd_of_another_process() {
        let signaller = Signaller::new().unwrap();
        let interrupt = Interrupt::new().unwrap();
        assert!(!interrupt.wait(Duration::ZERO));
        for _ in 0..10 * REQUESTS {
            signaller.signal(interrupt.as_fd()).unwrap();
            assert!(interrupt.wait(SOON));
        }
        assert!(!interrupt.wait(Duration::ZERO), "it is cleared");
    }

    /// write(2) would wait here for ever.
    #[test]
    fn a_full_blocking_eventfd_does_not_block_the_signaller() {
        let signaller = Signaller::new().unwrap();
        let hostile = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        write(&hostile, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..3 {
            signaller.signal(hostile.as_fd()).unwrap();
        }
    }

    #[test]
    fn a_file_that_is_no_eventfd_is_refused() {
        let signaller = Signaller::new().unwrap();
        let other = File::open("/dev/null").unwrap();
        assert_eq!(signaller.signal(other.as_fd()), Err(Errno::INVAL));
        let interrupt = Interrupt::new().unwrap();
        assert_eq!(signaller.signal(interrupt.as_fd()), Ok(()), "it still works");
    }
}

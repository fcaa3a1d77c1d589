//! Errors, one variant per verb, each with what to do about it.
//!
//! Returned by every fallible function of this crate. The packet path never makes one.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::NonNull;

use crate::{CounterPoint, HashFields, PortNumber, QueueNumber, VerbsErrno};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, VerbsError>;

/// A verb that failed, or an argument no verb would take. `device` is the name `ibv_get_device_name` gives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // each variant's text describes it; the fields are the ids it prints
pub enum VerbsError {
    #[error("cannot list RDMA devices: {}", Hint(Verb::List, .source))]
    ListDevices { source: io::Error },
    #[error("cannot open RDMA device {device}: {}", Hint(Verb::Open, .source))]
    OpenDevice { device: String, source: io::Error },
    #[error("cannot query {device}: {}", Hint(Verb::Query, .source))]
    QueryDevice { device: String, source: io::Error },
    #[error("cannot query port {port} of {device}: {}", Hint(Verb::Port, .source))]
    QueryPort { device: String, port: PortNumber, source: io::Error },
    #[error("cannot read the clock of {device}: {}", Hint(Verb::Query, .source))]
    QueryClock { device: String, source: io::Error },
    #[error("cannot read asynchronous events of {device}: {}", Hint(Verb::Query, .source))]
    AsyncEvent { device: String, source: io::Error },
    #[error("cannot allocate a protection domain on {device}: {}", Hint(Verb::Object, .source))]
    AllocProtectionDomain { device: String, source: io::Error },
    #[error("cannot allocate a thread domain on {device}: {}", Hint(Verb::Object, .source))]
    AllocThreadDomain { device: String, source: io::Error },
    #[error("cannot allocate a parent domain on {device}: {}", Hint(Verb::Object, .source))]
    AllocParentDomain { device: String, source: io::Error },
    #[error("cannot register {bytes} bytes of memory with {device}: {}", Hint(Verb::Register, .source))]
    RegisterMemory { device: String, bytes: usize, source: io::Error },
    #[error("cannot create a completion queue of {entries} entries on {device}: {}", Hint(Verb::Queue, .source))]
    CreateCompletionQueue { device: String, entries: u32, source: io::Error },
    #[error("cannot create a completion channel on {device}: {}", Hint(Verb::Object, .source))]
    CreateChannel { device: String, source: io::Error },
    #[error("cannot read completion events of {device}: {}", Hint(Verb::Query, .source))]
    ReadChannel { device: String, source: io::Error },
    #[error("cannot request completion events of {device}: {}", Hint(Verb::Object, .source))]
    RequestNotification { device: String, source: io::Error },
    #[error("cannot moderate completion events of {device}: {}", Hint(Verb::Object, .source))]
    ModerateCompletionQueue { device: String, source: io::Error },
    #[error("cannot resize a completion queue of {device} to {entries} entries: {}", Hint(Verb::Queue, .source))]
    ResizeCompletionQueue { device: String, entries: u32, source: io::Error },
    #[error("cannot create a work queue of {max_receives} receives on {device}: {}", Hint(Verb::Queue, .source))]
    CreateWorkQueue { device: String, max_receives: u32, source: io::Error },
    #[error("cannot move work queue {number} of {device} to {to}: {}", Hint(Verb::Object, .source))]
    ModifyWorkQueue { device: String, number: QueueNumber, to: &'static str, source: io::Error },
    #[error("cannot create an indirection table of {size} entries on {device}: {}", Hint(Verb::Table, .source))]
    CreateIndirectionTable { device: String, size: usize, source: io::Error },
    #[error("cannot create an RSS queue pair on {device} hashing {fields}: {}", Hint(Verb::Rss, .source))]
    CreateRssQueuePair { device: String, fields: HashFields, source: io::Error },
    #[error("cannot create a raw packet queue pair on {device}: {}", Hint(Verb::QueuePair, .source))]
    CreateRawQueuePair { device: String, source: io::Error },
    #[error("cannot query a queue pair of {device}: {}", Hint(Verb::Query, .source))]
    QueryQueuePair { device: String, source: io::Error },
    #[error("cannot create a shared receive queue on {device}: {}", Hint(Verb::Queue, .source))]
    CreateSharedReceiveQueue { device: String, source: io::Error },
    #[error("cannot move queue pair {number} of {device} to {state}: {}", Hint(Verb::QueuePair, .source))]
    ModifyQueuePair { device: String, number: QueueNumber, state: &'static str, source: io::Error },
    #[error(
        "cannot create a flow on port {port} of {device} at priority {priority}: {}",
        Hint(Verb::Flow, .source)
    )]
    CreateFlow { device: String, port: PortNumber, priority: u16, source: io::Error },
    #[error("cannot remove a flow from {device}: {}", Hint(Verb::Object, .source))]
    DestroyFlow { device: String, source: io::Error },
    #[error("cannot create a flow action on {device}: {}", Hint(Verb::Object, .source))]
    CreateFlowAction { device: String, source: io::Error },
    #[error("cannot create counters on {device}: {}", Hint(Verb::Counters, .source))]
    CreateCounters { device: String, source: io::Error },
    #[error("cannot attach the {counter} counter on {device}: {}", Hint(Verb::Counters, .source))]
    AttachCounters { device: String, counter: CounterPoint, source: io::Error },
    #[error("cannot read counters of {device}: {}", Hint(Verb::Counters, .source))]
    ReadCounters { device: String, source: io::Error },
    #[error("objects of two contexts, of {device} and of {other}, cannot be used together")]
    MixedContexts { device: String, other: String },
    #[error("an indirection table has a power of two of entries, not {size}; repeat queues to fill it")]
    TableSize { size: usize },
    #[error("a flow takes at most {most} specs, not {count}")]
    TooManySpecs { count: usize, most: usize },
    #[error("{bytes} bytes of memory cannot be cut into 1 to {most} frames of {frame_bytes} bytes")]
    FrameSize { bytes: usize, frame_bytes: u32, most: usize },
    #[error("this process has made 2^32 frame pools; frames could no longer be distinguished")]
    FramePoolIds,
}

impl VerbsError {
    /// The errno the verb gave, if it gave one; EINVAL for an argument refused before any verb was called.
    pub fn errno(&self) -> Option<i32> {
        match std::error::Error::source(self) {
            Some(source) => source.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error),
            None => Some(libc::EINVAL),
        }
    }
}

/// A value that a verb has just returned as its error: an errno, which some providers negate, or -1 with the
/// reason in `errno`, which is no EPERM.
pub(crate) fn from_code(code: c_int) -> io::Error {
    match code {
        -1 => last(),
        code => io::Error::from_raw_os_error(code.checked_abs().unwrap_or(libc::EIO)),
    }
}

/// The errno behind [`from_code`], for the packet path to keep.
#[cold]
pub(crate) fn errno_of(code: c_int) -> c_int {
    from_code(code).raw_os_error().unwrap_or(libc::EIO)
}

/// The object that a verb makes. Every call that returns an object or NULL goes through here: some providers
/// return NULL without setting `errno` (providers/mlx5/verbs.c: `create_qp` for an unknown `comp_mask`,
/// `create_cq` when the domain's allocator refuses), and an errno left over from an earlier call would then
/// read as this one's.
pub(crate) fn created<T>(create: impl FnOnce() -> *mut T) -> io::Result<NonNull<T>> {
    forget_last();
    NonNull::new(create()).ok_or_else(|| match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => io::Error::other(NO_ERRNO),
        error => error,
    })
}

/// The text for a refusal without a number.
const NO_ERRNO: &str = "the provider refused without giving an error number (errno 0)";

/// Clears `errno`, before a call that may fail without setting it.
pub(crate) fn forget_last() {
    // SAFETY: the location of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; the pointer is this thread's own.
    unsafe { errno.write(0) };
}

/// The error of a call that has just failed and sets `errno`. One that did not set it must not read as
/// success.
pub(crate) fn last() -> io::Error {
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => io::Error::from_raw_os_error(libc::EIO),
        error => error,
    }
}

/// The attempted verb, as far as it changes what an errno means.
#[derive(Clone, Copy)]
enum Verb {
    List,
    Open,
    Query,
    Port,
    Object,
    Register,
    Queue,
    Table,
    Rss,
    QueuePair,
    Flow,
    Counters,
}

/// An OS error followed by what to do about it.
struct Hint<'a>(Verb, &'a io::Error);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.fmt(f)?;
        match self.1.raw_os_error().and_then(|errno| remedy(self.0, errno)) {
            Some(text) => write!(f, "; {text}"),
            None => Ok(()),
        }
    }
}

/// The usual meaning of a verb's errno, by the kernel's checks (uverbs_cmd.c) and those of the mlx5 driver,
/// and what to do about it.
fn remedy(verb: Verb, errno: i32) -> Option<&'static str> {
    Some(match (verb, errno) {
        (Verb::Flow, errno) => return VerbsErrno(errno).flow_remedy(),
        (Verb::List, libc::ENOSYS | libc::ENOENT) => {
            "the kernel has no RDMA support loaded (modprobe ib_uverbs and the NIC's RDMA driver)"
        }
        (Verb::Open, libc::ENODEV | libc::ENOENT | libc::ENXIO) => {
            "no driver answers for this device (is its RDMA driver loaded, is /dev/infiniband present?)"
        }
        (Verb::Open, libc::EACCES | libc::EPERM) => "this user may not open /dev/infiniband/uverbs*",
        (_, libc::EPERM | libc::EACCES) => "raw packet steering needs CAP_NET_RAW",
        (_, libc::ENODEV | libc::EIO) => "the device was removed or reset; see the kernel log",
        (Verb::Register, libc::ENOMEM) => {
            "the locked-memory limit is too low (ulimit -l, LimitMEMLOCK=infinity) or memory is short"
        }
        (Verb::Register, libc::EFAULT | libc::EINVAL) => "the memory or the access flags are not registrable",
        (Verb::Queue | Verb::QueuePair, libc::ENOMEM) => {
            "the domain's allocator refused the memory, the locked-memory limit is too low, or the device is full"
        }
        (Verb::Object, libc::ENOMEM) => "the device has no more of these objects",
        (Verb::Queue, libc::EINVAL) => "more entries than the device allows, or a flag or field it lacks",
        (Verb::Port, libc::EINVAL) => "the device has no such port",
        (Verb::Table, libc::EINVAL) => "larger than the device's maximum, or queues that are not its own",
        (Verb::Rss, libc::EINVAL) => {
            "the device does not hash this set of fields on one queue pair (IPv4 with IPv6, or TCP with UDP?)"
        }
        (Verb::Counters, libc::EINVAL | libc::EBUSY) => {
            "counters take points only before they are bound to a flow"
        }
        (_, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) => {
            "the device or its driver does not have this verb"
        }
        (_, libc::EBUSY) => "something else still uses it",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(errno: i32) -> VerbsError {
        let source = io::Error::from_raw_os_error(errno);
        VerbsError::CreateFlow { device: "mlx5_0".into(), port: PortNumber(1), priority: 3, source }
    }

    #[test]
    fn a_refused_flow_names_its_place_and_the_capability() {
        let text = flow(libc::EPERM).to_string();
        assert!(text.starts_with("cannot create a flow on port 1 of mlx5_0 at priority 3: "), "{text}");
        assert!(text.contains("; steering needs CAP_NET_RAW"), "{text}");
    }

    #[test]
    fn the_same_errno_means_another_thing_to_another_verb() {
        let source = io::Error::from_raw_os_error(libc::ENOMEM);
        let region = VerbsError::RegisterMemory { device: "d".into(), bytes: 4096, source };
        assert!(region.to_string().contains("locked-memory limit"), "{region}");
        assert!(flow(libc::ENOMEM).to_string().contains("above the device's highest"));
    }

    #[test]
    fn an_unexplained_errno_still_prints() {
        let text = flow(libc::EDOM).to_string();
        assert!(text.contains("os error 33"), "{text}");
        assert!(!text.contains(';'), "{text}");
    }

    #[test]
    fn errno_is_the_verbs_or_einval() {
        assert_eq!(flow(libc::EEXIST).errno(), Some(libc::EEXIST));
        assert_eq!(VerbsError::TableSize { size: 3 }.errno(), Some(libc::EINVAL));
    }

    fn set_errno(errno: c_int) {
        // SAFETY: the location of this thread's errno is always valid.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: as above; the pointer is this thread's own.
        unsafe { place.write(errno) };
    }

    #[test]
    fn an_errno_from_before_the_call_is_not_the_reason_of_a_null() {
        set_errno(libc::EOPNOTSUPP);
        let error = created(std::ptr::null_mut::<u8>).expect_err("NULL");
        assert_eq!(error.raw_os_error(), None, "{error}");
        let refused = VerbsError::CreateCounters { device: "mlx5_0".into(), source: error };
        assert_eq!(refused.errno(), None);
        assert!(refused.to_string().contains("without giving an error number"), "{refused}");
    }

    #[test]
    fn the_errno_of_the_call_is_the_reason_of_a_null() {
        set_errno(libc::EOPNOTSUPP);
        let refuse = || {
            set_errno(libc::ENOMEM);
            std::ptr::null_mut::<u8>()
        };
        assert_eq!(created(refuse).expect_err("NULL").raw_os_error(), Some(libc::ENOMEM));
        let mut made = 7_u8;
        assert_eq!(created(|| &raw mut made).expect("made").as_ptr(), &raw mut made);
    }

    #[test]
    fn negated_and_impossible_codes_become_errnos() {
        assert_eq!(from_code(-libc::EBUSY).raw_os_error(), Some(libc::EBUSY));
        assert_eq!(from_code(c_int::MIN).raw_os_error(), Some(libc::EIO));
        for (reason, read) in [(libc::ENOSPC, libc::ENOSPC), (0, libc::EIO)] {
            set_errno(reason);
            assert_eq!(from_code(-1).raw_os_error(), Some(read), "-1 means that errno has the reason");
        }
    }
}

//! The XDP program in the kernel: loaded, attached, given its sockets, asked for its counters.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{Array, IterableMap, MapData, PerCpuArray, XskMap};
use aya::programs::links::{FdLink, LinkError};
use aya::programs::{ProgramError, TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfError, EbpfLoader, TestRunResult};
use packet::cube::LEVEL_WORDS;

use crate::XdpError;
use crate::blocks::{BLOCK_ENTRIES, BLOCKS_PER_CLAIM, MAX_PLACES, ROOT_WORDS, RULE_WORDS, TreeMemory};
use crate::claims::ClaimTable;
use crate::drops::{DROP_WORDS, DropMemory};
use crate::grace::KernelGrace;
use crate::link::{StackedLink, attached_program, stacked_link};
use crate::memory::SharedWords;
use crate::tree::Trees;

/// The program, compiled by `program/build`. It is shipped rather than compiled by each build, because the
/// kernel's verifier judges the instructions: what was tested is what runs, whatever compiler builds the
/// rest. A test compiles the source again.
const OBJECT: &[u8] = aya::include_bytes_aligned!("../program/steer.o");
/// The program that is attached.
const STEER: &str = "steer";
/// The program that makes the host receive frames.
const LEAVE: &str = "leave";
/// Words of the program's `struct scratch`: four counters, three words of a search and an image.
const SCRATCH_WORDS: usize = 7 + LEVEL_WORDS;
/// Purposes of dropping that are counted apart, and two slots that have none; 64 KiB for each processor.
pub(crate) const DROP_SLOTS: usize = 4096;

/// Whether the processors may load words in another order than a program has.
const REORDERS_LOADS: bool = !cfg!(any(target_arch = "x86_64", target_arch = "x86"));

/// The most claims of a program.
pub const MAX_CLAIMS: u32 = MAX_PLACES / BLOCKS_PER_CLAIM;

/// The sizes of a program's tables, and what it does where it cannot redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramOptions {
    /// The most different claims, those that drop and others, up to [`MAX_CLAIMS`]; 448 bytes of kernel
    /// memory each, with the blocks of the trees. Beside them, 64 KiB for each processor that there may be
    /// count what is dropped.
    pub claims: u32,
    /// The queues of the interface.
    pub queues: u32,
    /// The longest frame, in bytes, that the program drops itself; 0: it drops none.
    pub drop_bytes_max: u32,
    /// The fate of claimed packets of a queue that has no socket.
    pub unserved: Unserved,
    /// Where the program is to run.
    pub mode: AttachMode,
}

impl Default for ProgramOptions {
    fn default() -> Self {
        Self {
            claims: 1 << 16,
            queues: 64,
            drop_bytes_max: u32::MAX,
            unserved: Unserved::Pass,
            mode: AttachMode::Native,
        }
    }
}

/// The fate of claimed packets of a queue that has no socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unserved {
    /// The host receives them.
    #[default]
    Pass,
    /// The program drops them.
    Drop,
}

/// Where the kernel runs the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver; the program is not attached if that cannot.
    #[default]
    Native,
    /// In the network stack, for every driver; slower, as the packet has been copied already.
    Generic,
}

/// The counters of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardingCounters {
    /// Packets that no claim matched, left to the host.
    pub passed: u64,
    /// Packets that were redirected to a socket, which may have lost them.
    pub redirected: u64,
    /// Packets, redirected or unserved, for which a tree led beyond its bounds, or claims changed during
    /// every search. Whether a claim matches them is not known.
    pub beyond_bounds: u64,
    /// Claimed packets of queues without a socket ([`Unserved`]).
    pub unserved: u64,
}

/// The loaded program.
pub struct SteeringProgram {
    /// Keeps the program and those of its maps that are not below.
    ebpf: Ebpf,
    scratch: PerCpuArray<MapData, [u64; SCRATCH_WORDS]>,
    sockets: XskMap<MapData>,
    left: LeftFrames,
    queues: u32,
    mode: AttachMode,
}

impl std::fmt::Debug for SteeringProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SteeringProgram").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// The program on an interface, until this is dropped or the process ends.
#[derive(Debug)]
pub struct Attachment {
    _link: FdLink,
    index: u32,
    program: u32,
}

impl Attachment {
    /// Returns whether the program is still attached: a `bpf_link` can be detached by force, and an interface
    /// removed. Asks the kernel.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        // Without an answer nothing has changed.
        attached_program(self.index).map_or(true, |attached| attached == Some(self.program))
    }
}

/// Loads the program. The table of claims is its other half, for the thread that knows the flows.
///
/// # Errors
/// A privilege is missing, or the kernel refuses the program or its maps.
pub fn load(options: &ProgramOptions) -> Result<(SteeringProgram, ClaimTable), XdpError> {
    // Kernels that lack the one may lack the exchange that orders loads (arm64 before Linux 5.18).
    load_object(OBJECT, options, REORDERS_LOADS && has_frame_length())
}

/// Loads an object, whose searches order their loads if `orders_loads`.
fn load_object(
    object: &[u8],
    options: &ProgramOptions,
    orders_loads: bool,
) -> Result<(SteeringProgram, ClaimTable), XdpError> {
    // One more rule, which matches nothing.
    let claims = options.claims.clamp(1, MAX_CLAIMS);
    let rules = claims + 1;
    let blocks = claims * BLOCKS_PER_CLAIM;
    let queues = options.queues.max(1);
    let unserved: u32 = match options.unserved {
        Unserved::Drop => 1,
        Unserved::Pass => 2,
    };
    let processors =
        aya::util::nr_cpus().map_err(|(file, source)| XdpError::System { operation: file, source })?;
    let can_drop = has_frame_length() && !is_real_time();
    let slots = if can_drop && options.drop_bytes_max > 0 { DROP_SLOTS } else { 0 };
    if !can_drop {
        tracing::info!(
            "the XDP program redirects packets that are to be dropped: it drops none before Linux 5.18 and with \
             PREEMPT_RT"
        );
    }
    let mut ebpf = EbpfLoader::new()
        .btf(None)
        .map_max_entries("RULE_MAP", rules)
        .map_max_entries("BLOCK_MAP", blocks)
        .map_max_entries("SOCKET_MAP", queues)
        .map_max_entries("DROP_MAP", (processors * slots).max(1) as u32)
        .override_global("WITHOUT_SOCKET", &unserved, true)
        .override_global("DROP_SLOTS", &(slots as u32), true)
        .override_global("MAX_DROP_BYTES", &options.drop_bytes_max, true)
        .override_global("ORDERS_LOADS", &u32::from(orders_loads), true)
        .override_global("IS_GENERIC", &u32::from(options.mode == AttachMode::Generic), true)
        .load(object)
        .map_err(|error| not_loaded(&error))?;
    for name in [STEER, LEAVE] {
        program(&mut ebpf, name)?.load().map_err(|error| not_loaded(&EbpfError::from(error)))?;
    }

    let roots: Array<MapData, [u32; ROOT_WORDS]> = map(&mut ebpf, "ROOT_MAP")?;
    let blocks_map: Array<MapData, [u32; BLOCK_ENTRIES]> = map(&mut ebpf, "BLOCK_MAP")?;
    let rules_map: Array<MapData, [u64; RULE_WORDS]> = map(&mut ebpf, "RULE_MAP")?;
    let mapped =
        |source: rustix::io::Errno| XdpError::System { operation: "mmap of a map", source: source.into() };
    let grace = KernelGrace::new()
        .map_err(|source| XdpError::System { operation: "bpf(2) of a map in a map", source })?;
    let memory = TreeMemory::new(
        SharedWords::map(fd(&roots), ROOT_WORDS).map_err(mapped)?,
        SharedWords::map(fd(&blocks_map), blocks as usize * BLOCK_ENTRIES).map_err(mapped)?,
        SharedWords::map(fd(&rules_map), rules as usize * RULE_WORDS).map_err(mapped)?,
        Box::new(grace),
    );
    let scratch = map(&mut ebpf, "SCRATCH_MAP")?;
    let sockets = map(&mut ebpf, "SOCKET_MAP")?;
    let drops_map: Array<MapData, [u64; DROP_WORDS]> = map(&mut ebpf, "DROP_MAP")?;
    let words = processors * slots * DROP_WORDS;
    let drops = SharedWords::map(fd(&drops_map), words.max(DROP_WORDS)).map_err(mapped)?;
    let claims = ClaimTable::new(Trees::new(memory), DropMemory::new(drops, slots), claims);
    let left_map: Array<MapData, [u64; LEFT_WORDS]> = map(&mut ebpf, "LEFT_MAP")?;
    let left = LeftFrames::new(SharedWords::map(fd(&left_map), LEFT_WORDS).map_err(mapped)?)
        .map_err(|source| XdpError::System { operation: "read of /dev/urandom", source })?;
    Ok((SteeringProgram { ebpf, scratch, sockets, left, queues, mode: options.mode }, claims))
}

/// Whether the kernel tells programs the length of a frame: `bpf_xdp_get_buff_len`, since Linux 5.18.
fn has_frame_length() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= (5, 18))
}

/// Whether programs can interrupt each other on a processor, so that one may count with the packet of another
/// (PREEMPT_RT; Documentation/ABI/testing/sysfs-kernel-realtime).
fn is_real_time() -> bool {
    std::fs::read_to_string("/sys/kernel/realtime").is_ok_and(|text| text.trim() == "1")
}

/// A program of the object.
fn program<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Xdp, XdpError> {
    let program = ebpf.program_mut(name).ok_or_else(|| lacks(name))?;
    program.try_into().map_err(|error: ProgramError| not_loaded(&EbpfError::from(error)))
}

/// A map of the object, as what it is.
fn map<M: TryFrom<aya::maps::Map, Error = aya::maps::MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<M, XdpError> {
    let map = ebpf.take_map(name).ok_or_else(|| lacks(name))?;
    map.try_into().map_err(|error| not_loaded(&EbpfError::MapError(error)))
}

fn lacks(what: &str) -> XdpError {
    XdpError::Load { problem: format!("its object lacks {what}") }
}

fn not_loaded(error: &EbpfError) -> XdpError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut problem = error.to_string();
    while let Some(error) = cause {
        if let Some(ProgramError::LoadError { verifier_log, .. }) = error.downcast_ref() {
            let log = verifier_log.to_string();
            tracing::debug!("the kernel's verifier: {log}");
            // The verifier refuses a program by EACCES, also for want of CAP_PERFMON.
            match verdict(&log) {
                Some(verdict) if verdict.contains(WITHOUT_PERFMON) => return NOT_PERMITTED,
                Some(verdict) => {
                    problem = format!("{verdict} (hint: the level debug logs the verifier's steps)");
                }
                None => {}
            }
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            if error.raw_os_error() == Some(libc::EPERM) {
                return NOT_PERMITTED;
            }
            problem = format!("{problem} ({error})");
        }
        cause = error.source();
    }
    XdpError::Load { problem }
}

const NOT_PERMITTED: XdpError = XdpError::NotPermitted { operation: "load an XDP program" };

/// The part of the verifier's reason that names a privilege (kernel/bpf/verifier.c).
const WITHOUT_PERFMON: &str = "prohibited for !root";

/// The verifier's reason: the last line of its log but for the statistics.
fn verdict(log: &str) -> Option<&str> {
    let is_reason = |line: &&str| {
        !line.is_empty()
            && !["verification time", "stack depth", "processed"].iter().any(|start| line.starts_with(start))
    };
    log.lines().map(str::trim).rfind(is_reason)
}

impl SteeringProgram {
    /// Where the kernel is to run the program.
    #[must_use]
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Attaches the program to an interface by a `bpf_link`.
    ///
    /// # Errors
    /// The interface has an XDP program, its driver refuses this one, or a privilege is missing.
    pub fn attach(&mut self, interface: &str, index: u32) -> Result<Attachment, XdpError> {
        self.left.forget();
        let mode = self.mode;
        let kernel_mode = match mode {
            AttachMode::Native => XdpMode::Driver,
            AttachMode::Generic => XdpMode::Skb,
        };
        let program = program(&mut self.ebpf, STEER)?;
        let number = program.info().map_err(|error| not_attached(interface, index, mode, &error))?.id();
        let link = program
            .attach_to_if_index(index, kernel_mode)
            .and_then(|id| program.take_link(id))
            .map_err(|error| not_attached(interface, index, mode, &error))?;
        let link = FdLink::try_from(link).map_err(|error: LinkError| XdpError::System {
            operation: "bpf_link_create (needs Linux 5.9)",
            source: io::Error::other(error),
        })?;
        Ok(Attachment { _link: link, index, program: number })
    }

    /// Gives claimed packets of a queue to an AF_XDP socket that is bound to it.
    ///
    /// # Errors
    /// The program was loaded for fewer queues, or the kernel refuses the socket.
    pub fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), XdpError> {
        if queue >= self.queues {
            return Err(XdpError::NoSuchQueue { queue, queues: self.queues });
        }
        self.sockets.set(queue, socket.as_raw_fd(), 0).map_err(|error| XdpError::System {
            operation: "bpf(BPF_MAP_UPDATE_ELEM) of a socket",
            source: io::Error::other(error),
        })
    }

    /// The counters of the program, summed over all processors.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn counters(&self) -> Result<ForwardingCounters, XdpError> {
        let values = self.scratch.get(&0, 0).map_err(|error| XdpError::System {
            operation: "bpf(BPF_MAP_LOOKUP_ELEM) of the counters",
            source: io::Error::other(error),
        })?;
        let mut sum = ForwardingCounters::default();
        for [passed, redirected, beyond_bounds, unserved, ..] in values.iter() {
            sum.passed += passed;
            sum.redirected += redirected;
            sum.beyond_bounds += beyond_bounds;
            sum.unserved += unserved;
        }
        Ok(sum)
    }

    /// Runs the program over a frame as if queue 0 of an interface had received it, `times` times, and
    /// returns whether the frame is left to the host and the nanoseconds of a run. Redirects nothing.
    ///
    /// # Errors
    /// The kernel refuses to run it.
    pub fn try_frame(&self, frame: &[u8], times: u32) -> Result<FrameTrial, XdpError> {
        let options = TestRunOptions { data_in: Some(frame), repeat: times, ..TestRunOptions::new() };
        let result = self.run(STEER, options)?;
        Ok(FrameTrial {
            is_passed: result.return_value == XDP_PASS,
            run_ns: u64::try_from(result.duration.as_nanos()).unwrap_or(u64::MAX),
        })
    }

    /// Makes the host receive a frame that was redirected, as if its interface received it now. In generic
    /// mode the kernel runs the attached program over it once more, which lets it pass by a mark
    /// (`is_given_back` in program/steer.c).
    ///
    /// # Errors
    /// In generic mode: too many of the last frames did not pass ([`XdpError::NotPassed`]).
    /// The frame is too long ([`XdpError::FrameTooLong`]), or the kernel refuses it: before Linux 5.18, or
    /// because the interface is gone.
    pub fn leave_frame(&mut self, interface_index: u32, frame: &[u8]) -> Result<(), XdpError> {
        if frame.len() > MAX_LEFT_BYTES {
            return Err(XdpError::FrameTooLong { bytes: frame.len(), limit: MAX_LEFT_BYTES });
        }
        if self.mode == AttachMode::Generic {
            self.left.give()?;
        }
        let mut context = [0u8; 4 * CONTEXT_WORDS];
        // Data, its end, metadata, the interface, the queue (the first), the interface for sending.
        context[4..8].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
        context[12..16].copy_from_slice(&interface_index.to_ne_bytes());
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            attrs: TestRunAttrs::new().xdp_live_frames(1),
            ..TestRunOptions::new()
        };
        let run = self.run(LEAVE, options).map(drop);
        if run.is_err() && self.mode == AttachMode::Generic {
            self.left.take_back();
        }
        run
    }

    fn run(&self, name: &'static str, options: TestRunOptions<'_>) -> Result<TestRunResult, XdpError> {
        let refused = |error: ProgramError| XdpError::System {
            operation: "bpf(BPF_PROG_TEST_RUN)",
            source: io::Error::other(error),
        };
        let program = self.ebpf.program(name).ok_or_else(|| lacks(name))?;
        let program: &Xdp = program.try_into().map_err(refused)?;
        program.test_run(options).map_err(refused)
    }
}

/// Refuses an interface that gets its packets from other interfaces. One that does not answer is left to
/// [`SteeringProgram::attach`].
///
/// # Errors
/// [`XdpError::Stacked`].
pub fn check_stacking(interface: &str, index: u32) -> Result<(), XdpError> {
    match stacked_link(index) {
        Ok(Some(StackedLink { kind, below })) => {
            Err(XdpError::Stacked { interface: interface.to_owned(), kind, below })
        }
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Refuses an interface that has an XDP program, before anything of it is changed. An interface that does
/// not answer is left to [`SteeringProgram::attach`].
///
/// # Errors
/// [`XdpError::Occupied`].
pub fn check_free(interface: &str, index: u32) -> Result<(), XdpError> {
    match attached_program(index) {
        Ok(Some(program)) => {
            Err(XdpError::Occupied { interface: interface.to_owned(), program: Some(program) })
        }
        Ok(None) | Err(_) => Ok(()),
    }
}

/// The longest frame that [`SteeringProgram::leave_frame`] passes to the host: a page of 4096 bytes less what
/// the kernel keeps in it beside the frame (`TEST_MAX_PKT_SIZE` in net/bpf/test_run.c; longer ones: EINVAL).
const MAX_LEFT_BYTES: usize = 3408;

/// Words of the program's `struct left`.
const LEFT_WORDS: usize = 3;
/// The numbers that may not have passed. Frames pass before the kernel returns, or a little later where it
/// spreads packets over processors (RPS).
const MAX_UNPASSED: u64 = 1024;

/// The frames that are given back in generic mode: the program's `struct left`. This process is the only
/// writer of the first two words.
struct LeftFrames(SharedWords<AtomicU64>);

impl LeftFrames {
    /// Takes words that are zero, and chooses a key that no sender of packets can guess.
    fn new(words: SharedWords<AtomicU64>) -> io::Result<Self> {
        let mut key = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        // Zero is what the program leaves where a mark was.
        words[0].store(u64::from_ne_bytes(key) | 1, Ordering::Relaxed);
        Ok(Self(words))
    }

    /// Numbers the next frame.
    fn give(&mut self) -> Result<(), XdpError> {
        let (given, passed) = (self.0[1].load(Ordering::Relaxed), self.0[2].load(Ordering::Relaxed));
        if given.saturating_sub(passed) >= MAX_UNPASSED {
            return Err(XdpError::NotPassed);
        }
        self.0[1].store(given + 1, Ordering::Release);
        Ok(())
    }

    /// Takes back the number of a frame that the kernel refused.
    fn take_back(&mut self) {
        self.0[1].store(self.0[1].load(Ordering::Relaxed).saturating_sub(1), Ordering::Release);
    }

    /// Lets no frame pass that was given back so far: while the program was detached they passed without it.
    fn forget(&mut self) {
        self.0[2].store(self.0[1].load(Ordering::Relaxed), Ordering::Release);
    }
}

/// The part of the kernel's `struct xdp_md` that a run needs: the numbers of the interface and of a queue.
const CONTEXT_WORDS: usize = 6;

/// The action of the kernel for packets that the host receives.
const XDP_PASS: u32 = 2;

/// The action of the program for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTrial {
    /// Whether the frame is left to the host. A claimed frame is only distinguished from others if its queue
    /// has a socket, or with [`Unserved::Drop`].
    pub is_passed: bool,
    /// The mean time of a run.
    pub run_ns: u64,
}

/// The file descriptor of a typed map.
fn fd<T>(array: &Array<MapData, T>) -> BorrowedFd<'_>
where
    T: aya::Pod,
{
    array.map().fd().as_fd()
}

fn not_attached(interface: &str, index: u32, mode: AttachMode, error: &ProgramError) -> XdpError {
    let ProgramError::SyscallError(system) = error else {
        return XdpError::System { operation: "attach", source: io::Error::other(error.to_string()) };
    };
    let source = io::Error::from_raw_os_error(system.io_error.raw_os_error().unwrap_or(0));
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => XdpError::NotPermitted { operation: "attach an XDP program" },
        Some(libc::EBUSY | libc::EEXIST) => XdpError::Occupied {
            interface: interface.to_owned(),
            program: attached_program(index).ok().flatten(),
        },
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE | libc::ENOSPC | libc::ENOMEM)
            if mode == AttachMode::Native =>
        {
            XdpError::Unsupported {
                interface: interface.to_owned(),
                remedy: "use generic mode, or lower the MTU of the interface (and of a veth's peer) to 3498 or less, \
                         or change its number of queues",
                source,
            }
        }
        _ => XdpError::System { operation: "bpf(BPF_LINK_CREATE)", source },
    }
}

#[cfg(test)]
mod tests;

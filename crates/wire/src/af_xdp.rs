//! A live interface through AF_XDP sockets: claimed packets leave the kernel, all others never leave it.
//!
//! The XDP program of crate `xdp` runs for each packet that the interface receives. It redirects those that a
//! claim matches to the socket of their queue, where they end as far as the host is concerned, or drops them,
//! and passes all others to the host's network stack. Whoever knows the flows takes the table of claims
//! ([`Wire::claims`]); until then nothing is claimed. Received frames stay in memory that is shared with the
//! kernel until the next burst; sent frames are copied once, into the socket of the first queue.
//!
//! The program and the claims outlive the interface: when it is removed the wire is down until there is one
//! of its name, and the program is attached to that with new sockets. Another program cannot take the place
//! of this one while the `bpf_link` exists; should somebody detach it, it is attached again.
//!
//! Packets come as the program sees them. Offloads that strip VLAN tags or merge packets before that are
//! switched off while the wire is open ([`offloads`]); if they are switched on meanwhile that is an error in
//! the log. They stay off if the process is killed. Where the sender keeps VLAN tags beside the packet, or
//! leaves checksums to be completed by the receiver, as a veth does, the sender has to be told (`ethtool -K
//! PEER txvlan off tx off`).

mod queue;
mod rings;
#[cfg(test)]
mod tests;
mod umem;

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use packet::MacAddr;
use rustix::event::epoll;
use xdp::{
    AttachMode, Attachment, ClaimTable, ForwardingCounters, ProgramOptions, SteeringProgram, Unserved,
    XdpError,
};

use self::queue::{FlushOutcome, LastAnswer, NoQueueSocket, QueueLosses, QueueSocket};
use self::umem::{MAX_PACKET_BYTES, umem_frame_bytes};
use crate::af_packet::Promiscuous;
use crate::interface::offloads::{self, DisabledOffloads};
use crate::interface::{Interface, Link, failed, link_of, question_socket};
use crate::{
    AfXdpConfig, Burst, ETHERNET_BYTES, GivenBack, LiveInterface, ReceiveCounters, RxFrame, SleepHint,
    TAG_BYTES, TransmitError, VLAN_TAGS_BYTES, Wire, WireError, WireState, XdpMode,
};

/// The type of the VLAN tag that a frame may have beyond the MTU.
const C_VLAN_TPID: [u8; 2] = [0x81, 0x00];
/// How the interface is, is asked after this many bursts without a frame.
const EMPTY_BURSTS_PER_CHECK: u32 = 1024;
/// An engine that sleeps asks how the interface is after this time.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How often it is asked whether the program is still attached.
const PROGRAM_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// For how long frames gather while the engine sleeps ([`SleepHint::Readable`]).
const GATHER: Duration = Duration::from_micros(500);
/// When the engine is to come back for frames that the interface could not take.
const FLUSH_INTERVAL: Duration = Duration::from_micros(50);
/// How long after a look for an interface that was removed the next one comes, at the earliest.
const ATTACH_INTERVAL: Duration = Duration::from_millis(250);
/// How long a queue may be taken by a socket that was closed, and how often it is tried meanwhile.
const RELEASE_PATIENCE: Duration = Duration::from_secs(1);
const RELEASE_INTERVAL: Duration = Duration::from_millis(10);
/// The most queues of an interface.
pub const MAX_QUEUES: u32 = 128;
/// The most frames that a queue can hold: 64 MiB of memory for frames of 4 KiB.
const MAX_RING_FRAMES: u32 = 1 << 14;

impl AfXdpConfig {
    /// The interface, if it is one that could be opened now; asks the kernel, and opens nothing.
    pub(super) fn live_interface(&self) -> Option<LiveInterface> {
        let Interface { mac, mtu_bytes, index, .. } = Interface::find(&self.interface).ok()?;
        Some(LiveInterface { mac, mtu_bytes, index: index.cast_unsigned() })
    }
}

/// A port that is a live interface, of which claimed packets are taken.
#[derive(Debug)]
pub struct AfXdpWire {
    config: AfXdpConfig,
    program: SteeringProgram,
    /// Until somebody takes it.
    claims: Option<ClaimTable>,
    attached: Attached,
    /// The offloads of the interface that are off; they are switched on again after the program is detached.
    disabled: DisabledOffloads,
    state: WireState,
    /// The interface was removed, and is looked for.
    gone: Option<Gone>,
    /// The queue that is asked first for the next burst.
    first_queue: usize,
    empty_bursts: u32,
    next_check: Instant,
    /// When the kernel is asked next whether the program is still attached.
    next_program_check: Instant,
    /// The frames that the sockets of interfaces before this one lost.
    former_losses: QueueLosses,
    /// The frames that left through interfaces before this one.
    former_sent: u64,
    unserved_noted: Cell<u64>,
    last_counters: LastAnswer<ForwardingCounters>,
    /// The offloads that hide parts of packets, if some were switched on since.
    hidden: Option<String>,
    /// Why the program could not be attached again; each reason is logged once.
    obstacle: String,
    /// Why frames that nobody wanted were lost so far; each reason is logged once.
    noted_losses: ArrayVec<NotGivenBack, { NotGivenBack::COUNT }>,
}

/// Why a frame that nobody wants cannot be given back to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotGivenBack {
    /// In generic mode frames do not pass the program when they are given back.
    Generic,
    /// It is longer than the kernel accepts.
    Long,
    /// The kernel refuses it.
    Refused,
}

impl NotGivenBack {
    /// The number of reasons.
    const COUNT: usize = 3;
}

impl From<&XdpError> for NotGivenBack {
    fn from(error: &XdpError) -> Self {
        match error {
            XdpError::NotPassed => Self::Generic,
            XdpError::FrameTooLong { .. } => Self::Long,
            _ => Self::Refused,
        }
    }
}

/// The kernel's side of an interface that was found.
#[derive(Debug)]
struct Attached {
    interface: Interface,
    /// `None` while it has to be attached again. It ends before the sockets, which packets are redirected to.
    attachment: Option<Attachment>,
    queues: Vec<QueueSocket>,
    /// Answers questions about interfaces, which AF_XDP sockets do not.
    questions: OwnedFd,
    /// Readable when one of the sockets is.
    readable: OwnedFd,
    _promiscuous: Option<Promiscuous>,
}

/// The search for an interface that was removed.
#[derive(Debug)]
struct Gone {
    /// When it is looked for again.
    next: Instant,
    /// The last obstacle, apart from an interface that is missing or down; each obstacle is logged once.
    obstacle: String,
}

/// The longest packet of an interface, with two tags.
fn packet_bytes(interface: &Interface) -> usize {
    interface.mtu_bytes as usize + ETHERNET_BYTES + VLAN_TAGS_BYTES
}

impl Attached {
    /// Opens a socket for each queue of the interface, and switches off what hides parts of packets from the
    /// program.
    fn open(config: &AfXdpConfig, disabled: &mut DisabledOffloads) -> Result<Self, WireError> {
        let (interface, frame_bytes) = usable(config)?;
        let index = interface.index.cast_unsigned();
        let refused = |problem| WireError::InterfaceSetting { interface: interface.name.clone(), problem };
        let queues = open_queues(&interface, config, frame_bytes)?;
        // Nothing is changed on an interface that will be refused for its program.
        xdp::check_free(&interface.name, index)?;
        let questions = question_socket(&interface.name)?;
        // Before the program takes packets: a driver that switches offloads off when it is attached does so
        // too late for packets that are on their way.
        disabled.disable(&interface).map_err(refused)?;
        let readable = readable(&queues).map_err(|error| failed(&interface.name, "epoll", error.into()))?;
        let promiscuous = config.promiscuous.then(|| Promiscuous::hold(&interface.name)).transpose()?;
        Ok(Self { interface, queues, questions, readable, attachment: None, _promiscuous: promiscuous })
    }

    /// Opens sockets as [`Attached::open`] does, and waits for queues that may just become free: the kernel
    /// releases them some time after a socket was closed (net/xdp/xsk_buff_pool.c, `xp_put_pool`).
    fn open_free(config: &AfXdpConfig, disabled: &mut DisabledOffloads) -> Result<Self, WireError> {
        let begun = Instant::now();
        loop {
            match Self::open(config, disabled) {
                Err(WireError::QueueTaken { .. }) if begun.elapsed() < RELEASE_PATIENCE => {
                    std::thread::sleep(RELEASE_INTERVAL);
                }
                opened => return opened,
            }
        }
    }

    /// Gives the sockets to the program and attaches it.
    fn attach(&mut self, program: &mut SteeringProgram) -> Result<(), WireError> {
        for (number, queue) in self.queues.iter().enumerate() {
            program.set_socket(number as u32, queue.as_fd())?;
        }
        let Interface { name, index, .. } = &self.interface;
        self.attachment = Some(program.attach(name, index.cast_unsigned())?);
        Ok(())
    }

    /// Loads the program for a mode and attaches it.
    fn load(&mut self, mode: AttachMode) -> Result<(SteeringProgram, ClaimTable), WireError> {
        // Longer frames go to the engine, which counts them as oversized.
        let options = program_options(mode, packet_bytes(&self.interface) as u32);
        let (mut program, claims) = xdp::load(&options)?;
        self.attach(&mut program)?;
        Ok((program, claims))
    }

    /// The frames that all sockets lost.
    fn losses(&self) -> QueueLosses {
        let all = self.queues.iter().map(QueueSocket::losses);
        all.fold(QueueLosses::default(), |sum, losses| QueueLosses {
            received: sum.received + losses.received,
            sent: sum.sent + losses.sent,
        })
    }
}

/// The interface of the settings and the bytes of a frame, if it can be used with them.
fn usable(config: &AfXdpConfig) -> Result<(Interface, usize), WireError> {
    let interface = Interface::find(&config.interface)?;
    xdp::check_stacking(&interface.name, interface.index.cast_unsigned())?;
    let refused = |problem| WireError::InterfaceSetting { interface: interface.name.clone(), problem };
    let Some(frame_bytes) = umem_frame_bytes(packet_bytes(&interface)) else {
        let most = MAX_PACKET_BYTES - ETHERNET_BYTES - VLAN_TAGS_BYTES;
        let (name, mtu) = (&interface.name, interface.mtu_bytes);
        return Err(refused(format!(
            "its MTU of {mtu} bytes is more than AF_XDP takes in one piece: `ip link set dev {name} mtu {most}`"
        )));
    };
    if !config.ring_frames.is_power_of_two() || !(64..=MAX_RING_FRAMES).contains(&config.ring_frames) {
        return Err(refused(format!("ring_frames has to be a power of two from 64 to {MAX_RING_FRAMES}")));
    }
    Ok((interface, frame_bytes))
}

/// The options of the program for frames of so many bytes.
fn program_options(mode: AttachMode, drop_bytes_max: u32) -> ProgramOptions {
    ProgramOptions {
        queues: MAX_QUEUES,
        unserved: Unserved::Drop,
        drop_bytes_max,
        mode,
        ..ProgramOptions::default()
    }
}

/// Opens sockets for queue 0, 1, ... until the interface has no more.
fn open_queues(
    interface: &Interface,
    config: &AfXdpConfig,
    frame_bytes: usize,
) -> Result<Vec<QueueSocket>, WireError> {
    let mut queues = Vec::new();
    for queue in 0..=MAX_QUEUES {
        match QueueSocket::open(interface, queue, config, frame_bytes, queue == 0) {
            Ok(socket) => queues.push(socket),
            Err(NoQueueSocket::NoSuchQueue) if queue > 0 => return Ok(queues),
            Err(NoQueueSocket::NoSuchQueue) => {
                let problem = "it takes no AF_XDP socket: attach to the interface below it".to_owned();
                return Err(WireError::InterfaceSetting { interface: interface.name.clone(), problem });
            }
            Err(NoQueueSocket::Failed(error)) => return Err(error),
        }
    }
    let problem = format!(
        "it has more than {MAX_QUEUES} queues: `ethtool -L {} combined {MAX_QUEUES}`",
        interface.name
    );
    Err(WireError::InterfaceSetting { interface: interface.name.clone(), problem })
}

/// Whether the driver cannot run the program at all. Memory that is missing may be there later.
fn is_without_native_mode(error: &WireError) -> bool {
    let WireError::Xdp { source: XdpError::Unsupported { source, .. } } = error else { return false };
    matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE))
}

/// A descriptor that is readable when one of the sockets is.
fn readable(queues: &[QueueSocket]) -> rustix::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for queue in queues {
        epoll::add(&epoll, queue, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

impl AfXdpWire {
    /// Checks what [`AfXdpWire::open`] needs: the program is loaded and not attached, and no socket is bound.
    pub(crate) fn check(config: &AfXdpConfig) -> Result<(), WireError> {
        let (interface, _) = usable(config)?;
        QueueSocket::check(&interface.name)?;
        // Before the program, for which other privileges are needed.
        xdp::check_free(&interface.name, interface.index.cast_unsigned())?;
        let mode = if config.mode == XdpMode::Generic { AttachMode::Generic } else { AttachMode::Native };
        xdp::load(&program_options(mode, packet_bytes(&interface) as u32))?;
        Ok(())
    }

    /// Loads the program, opens the sockets and attaches the program.
    ///
    /// # Errors
    /// Which interface, and why: unknown, down, not permitted, a longer MTU than fits, another XDP program.
    pub fn open(config: &AfXdpConfig) -> Result<Self, WireError> {
        // The interface first: its errors are more frequent, and loading takes some 100 ms.
        let mut disabled = DisabledOffloads::none(question_socket(&config.interface)?);
        let mut attached = Attached::open_free(config, &mut disabled)?;
        let (program, claims) = match config.mode {
            XdpMode::Native => attached.load(AttachMode::Native)?,
            XdpMode::Generic => attached.load(AttachMode::Generic)?,
            XdpMode::Auto => match attached.load(AttachMode::Native) {
                Err(error) if is_without_native_mode(&error) => {
                    tracing::warn!("the XDP program runs in the network stack, which is slower: {error}");
                    attached.load(AttachMode::Generic)?
                }
                loaded => loaded?,
            },
        };
        let interface = &config.interface;
        if let Some(command) = disabled.undo_command(interface) {
            tracing::info!(
                interface,
                "offloads that hide parts of packets are off while the port is open; should steerd not end in \
                 order: `{command}`"
            );
        }
        let mut wire = Self {
            config: config.clone(),
            program,
            claims: Some(claims),
            attached,
            disabled,
            state: WireState::Live,
            gone: None,
            first_queue: 0,
            empty_bursts: 0,
            next_check: Instant::now() + CHECK_INTERVAL,
            next_program_check: Instant::now() + PROGRAM_CHECK_INTERVAL,
            former_losses: QueueLosses::default(),
            former_sent: 0,
            unserved_noted: Cell::new(0),
            last_counters: LastAnswer::default(),
            obstacle: String::new(),
            hidden: None,
            noted_losses: ArrayVec::new(),
        };
        wire.check_link();
        Ok(wire)
    }

    /// The counters of the program, on all interfaces of this wire.
    #[must_use]
    pub fn counters(&self) -> ForwardingCounters {
        self.last_counters.after(self.program.counters(), "the counters of the XDP program")
    }

    /// The number of queues, each with a socket.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.attached.queues.len()
    }

    /// Frames that left through the interface, as the kernel has reported so far.
    pub fn sent(&mut self) -> u64 {
        self.former_sent + self.attached.queues[0].sent()
    }

    fn count_empty_burst(&mut self) {
        self.empty_bursts += 1;
        if self.empty_bursts >= EMPTY_BURSTS_PER_CHECK {
            self.empty_bursts = 0;
            self.check_link();
        }
    }

    fn check_link(&mut self) {
        let index = self.attached.interface.index;
        let (link, name) = link_of(self.attached.questions.as_fd(), index);
        if let Some(name) = name
            && name != self.attached.interface.name
        {
            tracing::warn!(interface = %self.attached.interface.name, now = %name, "the interface was renamed");
            self.attached.interface.name = name;
        }
        self.state = if link == Link::Up { WireState::Live } else { WireState::Down };
        match link {
            Link::Gone => self.look_for_interface(),
            Link::Up if Instant::now() >= self.next_program_check => self.check_program(),
            Link::Up if self.attached.attachment.is_none() => self.state = WireState::Down,
            Link::Up | Link::Down => {}
        }
    }

    /// Attaches the program again if somebody has detached it.
    fn check_program(&mut self) {
        self.next_program_check = Instant::now() + PROGRAM_CHECK_INTERVAL;
        self.check_offloads();
        let Some(attachment) = &self.attached.attachment else { return self.attach_again() };
        if attachment.is_attached() {
            return;
        }
        let interface = &self.attached.interface.name;
        tracing::error!(%interface, "the XDP program was detached: the host receives all packets");
        self.attached.attachment = None;
        self.attach_again();
    }

    /// Logs each change of the offloads to such that hide parts of packets.
    fn check_offloads(&mut self) {
        let Attached { interface: Interface { name, .. }, questions, .. } = &self.attached;
        let problem = offloads::problem(name, &offloads::active(questions.as_fd(), name));
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.hidden) {
            tracing::error!(interface = %name, "packets are not seen as they arrived: {problem}");
        }
        self.hidden = problem;
    }

    fn attach_again(&mut self) {
        self.state = WireState::Down;
        let attached = self.attached.attach(&mut self.program);
        let interface = &self.attached.interface;
        match attached {
            Ok(()) => {
                tracing::warn!(interface = %interface.name, "the XDP program is attached again");
                self.state = WireState::Live;
                self.obstacle.clear();
            }
            Err(error) => {
                let obstacle = error.to_string();
                if obstacle != self.obstacle {
                    tracing::error!(
                        interface = %interface.name,
                        "the XDP program cannot be attached again, the host receives all packets: {obstacle}"
                    );
                    self.obstacle = obstacle;
                }
            }
        }
    }

    /// The kernel has unbound the sockets for good: an interface of the same name is another one to it.
    fn look_for_interface(&mut self) {
        let now = Instant::now();
        let interface = self.config.interface.as_str();
        let gone = self.gone.get_or_insert_with(|| {
            tracing::error!(
                interface,
                "the interface was removed or moved away: nothing is received until there is one of this name again"
            );
            // An interface in another namespace would go on redirecting to sockets that are unbound.
            self.attached.attachment = None;
            Gone { next: now, obstacle: String::new() }
        });
        if now < gone.next {
            return;
        }
        gone.next = now + ATTACH_INTERVAL;
        let opened = Attached::open(&self.config, &mut self.disabled);
        let attached = opened.and_then(|mut attached| {
            attached.attach(&mut self.program)?;
            Ok(attached)
        });
        match attached {
            Ok(attached) => {
                let losses = self.attached.losses();
                self.former_losses.received += losses.received;
                self.former_losses.sent += losses.sent + self.attached.queues[0].unsent();
                self.former_sent += self.attached.queues[0].sent();
                self.attached = attached;
                (self.gone, self.first_queue, self.state) = (None, 0, WireState::Live);
                let Interface { name, mac, mtu_bytes, .. } = &self.attached.interface;
                tracing::warn!(interface = %name, %mac, mtu_bytes, "attached to the interface again");
            }
            Err(WireError::UnknownInterface { .. } | WireError::InterfaceDown { .. }) => {}
            Err(error) => {
                let obstacle = error.to_string();
                if obstacle != gone.obstacle {
                    tracing::error!(interface, "the interface is back and cannot be attached to: {obstacle}");
                    gone.obstacle = obstacle;
                }
            }
        }
    }

    /// The longest frame that the interface sends.
    fn longest(&self, frame: &[u8]) -> usize {
        let tagged = frame.get(12..14).is_some_and(|tpid| tpid == C_VLAN_TPID);
        self.attached.interface.mtu_bytes as usize + ETHERNET_BYTES + if tagged { TAG_BYTES } else { 0 }
    }

    fn note_unserved(&self, unserved: u64) {
        if unserved > self.unserved_noted.replace(unserved) {
            let (name, queues) = (&self.attached.interface.name, self.queues());
            tracing::warn!(
                interface = %name,
                unserved,
                "claimed packets were dropped in queues beyond the {queues} that there were: start again, or \
                 `ethtool -L {name} combined {queues}`"
            );
        }
    }
}

impl Wire for AfXdpWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let queues = self.attached.queues.len();
        let mut room = burst.capacity_left();
        let mut count = 0;
        // Each queue is asked first in turn, so that none is starved by a burst that another one fills.
        self.first_queue = (self.first_queue + 1) % queues;
        for nth in 0..queues {
            let queue = &mut self.attached.queues[(self.first_queue + nth) % queues];
            queue.release();
            if room > 0 {
                queue.take(room);
                let taken = queue.packets().count();
                (room, count) = (room - taken, count + taken);
            }
        }
        if count == 0 {
            return self.count_empty_burst();
        }
        self.empty_bursts = 0;
        let first = self.first_queue;
        for nth in 0..queues {
            for packet in self.attached.queues[(first + nth) % queues].packets() {
                burst.push(RxFrame::new(packet));
            }
        }
    }

    fn claims(&mut self) -> Option<ClaimTable> {
        self.claims.take()
    }

    fn takes_away(&self) -> bool {
        true
    }

    fn leave_to_host(&mut self, frames: u64) -> GivenBack {
        let queues = self.attached.queues.len();
        let order = (0..queues).map(|nth| (self.first_queue + nth) % queues);
        let packets = order.flat_map(|queue| self.attached.queues[queue].packets());
        let left = packets.enumerate().filter(|(place, _)| frames >> place & 1 == 1);
        let mut given = GivenBack::default();
        let index = self.attached.interface.index;
        for (_, packet) in left {
            let Err(error) = self.program.leave_frame(index.cast_unsigned(), packet) else {
                given.frames += 1;
                continue;
            };
            let reason = NotGivenBack::from(&error);
            *match reason {
                NotGivenBack::Generic => &mut given.lost_generic,
                NotGivenBack::Long => &mut given.lost_long,
                NotGivenBack::Refused => &mut given.lost_refused,
            } += 1;
            if !self.noted_losses.contains(&reason) {
                self.noted_losses.push(reason);
                tracing::warn!(
                    interface = %self.attached.interface.name,
                    "packets that no flow wants are lost instead of given back to the host: {error}"
                );
            }
        }
        given
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, self.longest(frame))?;
        if self.state == WireState::Down {
            return Err(TransmitError::Down);
        }
        if !self.attached.queues[0].has_room() {
            self.flush();
        }
        self.attached.queues[0].push(frame)
    }

    fn has_room(&mut self) -> bool {
        if !self.attached.queues[0].has_room() {
            self.flush();
        }
        self.attached.queues[0].has_room()
    }

    fn flush(&mut self) {
        if self.attached.queues[0].has_queued() && self.attached.queues[0].flush() == FlushOutcome::Down {
            // `receive` finds out whether it is down or gone.
            self.state = WireState::Down;
        }
    }

    fn state(&self) -> WireState {
        self.state
    }

    fn sleep_hint(&mut self) -> SleepHint {
        let now = Instant::now();
        if now >= self.next_check {
            self.next_check = now + CHECK_INTERVAL;
            self.check_link();
        }
        SleepHint::Readable {
            descriptor: self.attached.readable.as_raw_fd(),
            within: if self.attached.queues[0].has_queued() { FLUSH_INTERVAL } else { CHECK_INTERVAL },
            gather: if self.config.busy_poll { None } else { Some(GATHER) },
        }
    }

    fn describe(&self) -> String {
        let Attached { interface: Interface { name, .. }, queues, .. } = &self.attached;
        if self.gone.is_some() {
            return format!("{name} (af_xdp; the interface is gone, to be attached to when it is back)");
        }
        let mode = match self.program.mode() {
            AttachMode::Native => "native",
            AttachMode::Generic => "generic",
        };
        let copies = if queues.iter().all(QueueSocket::is_zero_copy) { "zero-copy" } else { "copy mode" };
        let (number, plural) = (queues.len(), if queues.len() == 1 { "" } else { "s" });
        format!("{name} (af_xdp, {mode}, {copies}, {number} queue{plural})")
    }

    fn mac(&self) -> MacAddr {
        self.attached.interface.mac
    }

    fn mtu_bytes(&self) -> u32 {
        self.attached.interface.mtu_bytes
    }

    fn receive_counters(&self) -> ReceiveCounters {
        let ForwardingCounters { passed, beyond_bounds, unserved, .. } = self.counters();
        self.note_unserved(unserved);
        let lost = self.former_losses.received + self.attached.losses().received + unserved;
        ReceiveCounters { lost, beyond_claims: beyond_bounds, passed }
    }

    fn transmit_losses(&self) -> u64 {
        self.former_losses.sent + self.attached.losses().sent
    }
}

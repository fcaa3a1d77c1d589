//! The soft NIC as its owner sees it: created from a configuration, pumped or self-driven, asked for its
//! counters.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flow_table::{FlowTable, LeftRight, LeftRightWriter};
use ibverbs_sys::ibv_device;
use packet::MacAddr;
use wire::{MAX_MTU_BYTES, Wire, WireState};

use crate::clock_pages::ClockPages;
use crate::device::Backing;
use crate::doorbell::Doorbell;
use crate::engine::profile::EngineProfile;
use crate::engine::{EngineCell, engine_of};
use crate::library::Library;
use crate::limits::{MAX_NAME_BYTES, MAX_PORTS, MIN_MTU_BYTES};
use crate::personality::{ClockRules, Personality, Rules};
use crate::preload::{LINK_LOCAL, eui64};
use crate::state::State;
use crate::stats::PortCounters;
use crate::{Error, PortStats};

/// Who runs the engines. Each port belongs to one engine, so each queue gets the frames of a port in the
/// order of their arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drive {
    /// A thread of the device's own.
    Thread {
        /// The core the thread is pinned to.
        core: Option<usize>,
    },
    /// Several of them, at most one for each port. Ports are assigned to them round-robin.
    Threads {
        /// The core that each is pinned to.
        cores: Vec<Option<usize>>,
    },
    /// The owner, by [`SoftNic::pump`].
    Manual,
    /// The threads of this process that poll completion queues: a poll that finds its queue empty makes a
    /// pass over each port, unless another thread is making one there, and looks again. Frames move only
    /// while somebody polls; a thread that waits for completion events without polling waits for ever.
    Inline,
}

impl Drive {
    /// The core of each engine thread.
    fn threads(&self) -> &[Option<usize>] {
        match self {
            Self::Thread { core } => std::slice::from_ref(core),
            Self::Threads { cores } => cores,
            Self::Manual | Self::Inline => &[],
        }
    }

    /// How many engines serve the ports.
    fn engines(&self, ports: usize) -> usize {
        match self {
            Self::Thread { .. } | Self::Manual => 1,
            Self::Threads { cores } => cores.len(),
            Self::Inline => ports,
        }
    }
}

/// One port of the device.
pub struct PortConfig {
    /// Where its frames come from and go to.
    pub wire: Box<dyn Wire>,
    /// Payload bytes of the largest frame (without the Ethernet header and VLAN tags).
    pub mtu_bytes: u32,
}

/// The parts of a soft NIC to be made.
pub struct SoftNicConfig {
    /// The device's name, e.g. `softnic0`.
    pub name: String,
    /// The personality of the device.
    pub personality: Personality,
    /// The ports; port numbers count from 1 in this order.
    pub ports: Vec<PortConfig>,
    /// Who runs its engines.
    pub drive: Drive,
}

/// A software NIC. Dropping it stops the engines; open contexts stay valid and see no more traffic.
pub struct SoftNic {
    nic: Arc<Nic>,
    drive: Drive,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The part of a soft NIC that the owner, the open contexts and the engines share.
///
/// Locks are taken in this order: an engine, `flows`, `turn`, `state`. Who changes `flows` waits for engines
/// that look frames up, and therefore holds neither `turn` nor `state` meanwhile.
pub(crate) struct Nic {
    pub(crate) name: String,
    personality: Personality,
    /// The clock of the personality, perhaps at another rate.
    pub(crate) clock: ClockRules,
    pub(crate) ports: Box<[Port]>,
    /// Engines look frames up together; what a verdict names stays as it is while they hold it.
    pub(crate) flows: LeftRight<FlowTable>,
    state: Mutex<State>,
    /// The packets that each work queue lost for lack of a buffer, by its number. Never locked by the engine.
    queue_losses: Mutex<BTreeMap<u32, Weak<AtomicU64>>>,
    /// Held by the one who is next to lock `state`, until then.
    turn: Mutex<()>,
    /// Control calls that wait for it.
    waiting: AtomicU32,
    /// At least one.
    pub(crate) engines: Box<[EngineCell]>,
    /// Wake the engines' own threads, by index.
    pub(crate) doorbells: Arc<[Doorbell]>,
    /// From which rdma-core's mlx5 provider reads the clock, once a context of it exists.
    pub(crate) clock_pages: OnceLock<ClockPages>,
    /// [`Drive::Inline`].
    is_inline: bool,
    pub(crate) stopping: AtomicBool,
}

/// The part of a port that is known without the engine.
pub(crate) struct Port {
    mac: AtomicU64,
    pub(crate) mtu_bytes: u32,
    pub(crate) counters: PortCounters,
    pub(crate) down: AtomicBool,
    pub(crate) finished: AtomicBool,
}

impl Port {
    /// The station address. An interface that was made anew may have another one.
    pub(crate) fn mac(&self) -> MacAddr {
        let [_, _, octets @ ..] = self.mac.load(Ordering::Relaxed).to_be_bytes();
        MacAddr(octets)
    }

    /// Notes the address of the wire as it is now; returns whether it is another one.
    pub(crate) fn note_mac(&self, mac: MacAddr) -> bool {
        self.mac.swap(packed(mac), Ordering::Relaxed) != packed(mac)
    }

    /// The only GID of the port, the link-local one (RFC 4291, 2.5.6), as the plugin's sysfs tree has it.
    pub(crate) fn gid(&self) -> [u8; 16] {
        let words = u128::from(LINK_LOCAL) << 64 | u128::from(eui64(self.mac()));
        words.to_be_bytes()
    }

    /// The largest MTU of `enum ibv_mtu` that it can carry: what a datagram can hold.
    pub(crate) fn path_mtu_bytes(&self) -> u32 {
        [4096, 2048, 1024, 512].into_iter().find(|bytes| self.mtu_bytes >= *bytes).unwrap_or(256)
    }
}

/// An address as a number, for an atomic.
fn packed(mac: MacAddr) -> u64 {
    mac.0.iter().fold(0, |packed, octet| packed << 8 | u64::from(*octet))
}

/// How long [`SoftNic::stop`] waits for the engines' threads, and how long it rests between looks.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
const STOP_STEP: Duration = Duration::from_millis(1);

/// Frames of a pass that a poll makes: they are still in the cache when they are polled.
const INLINE_FRAMES: usize = wire::BURST_FRAMES;

/// The fastest clock: its ticks are the nanoseconds of the system's.
pub(crate) const MAX_CLOCK_KILOHERTZ: u64 = 1_000_000;

impl Nic {
    /// The rules of this device: what it refuses, and how it orders things.
    pub(crate) fn rules(&self) -> &'static Rules {
        self.personality.rules()
    }

    /// The device's state, for a control call. Wakes the engines, which may have something to do after it.
    pub(crate) fn control(&self) -> MutexGuard<'_, State> {
        let state = self.control_without_wakeup();
        self.doorbells.iter().for_each(Doorbell::ring);
        state
    }

    /// The device's state, for a control call that changes nothing for the engines, which sleep on.
    pub(crate) fn control_without_wakeup(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock_state();
        drop(turn);
        // An engine unlocks the state between its sends and their completions' publication.
        state.publish();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        state
    }

    /// The right to change the flow table.
    pub(crate) fn flow_writer(&self) -> LeftRightWriter<'_, FlowTable> {
        self.flows.writer()
    }

    /// The device's state, for one burst of an engine. If control calls wait, it takes its turn among them: a
    /// thread that unlocks a mutex and locks it again at once would otherwise nearly always get it.
    #[inline]
    pub(crate) fn burst(&self) -> MutexGuard<'_, State> {
        let is_waited_for = self.waiting.load(Ordering::Relaxed) != 0;
        let _turn = is_waited_for.then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        self.lock_state()
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the losses of a new work queue known.
    pub(crate) fn note_queue(&self, number: u32, losses: Weak<AtomicU64>) {
        let mut queues = self.queue_losses();
        queues.retain(|_, losses| losses.strong_count() > 0);
        queues.insert(number, losses);
    }

    fn queue_losses(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<AtomicU64>>> {
        self.queue_losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port with a number, from 1.
    pub(crate) fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }

    /// The index of the engine that a port (from 1) belongs to.
    #[inline]
    pub(crate) fn engine_of(&self, port: u8) -> usize {
        engine_of(port, self.engines.len())
    }

    /// Runs one pass of each engine, after the one that another thread may be in.
    pub(crate) fn pass(&self, max_frames: usize) -> usize {
        self.engines.iter().map(|engine| engine.pass(self, max_frames)).sum()
    }

    /// Called by a poll that has found its queue empty, which holds no lock: runs a pass of each engine that
    /// no other thread runs, if polls drive the engines. Returns whether the queue may have something now.
    #[inline]
    pub(crate) fn pass_inline(&self) -> bool {
        self.is_inline && self.try_passes(INLINE_FRAMES) > 0
    }

    fn try_passes(&self, max_frames: usize) -> usize {
        self.engines.iter().map(|engine| engine.try_pass(self, max_frames)).sum()
    }
}

impl SoftNic {
    /// Makes the device and starts its engine threads, if it is to have some.
    ///
    /// # Errors
    /// A configuration out of range, or a libibverbs whose private layout is not known.
    pub fn create(config: SoftNicConfig) -> Result<Self, Error> {
        let clock = config.personality.rules().objects.clock;
        Self::create_with(config, clock)
    }

    /// Makes a soft NIC as [`SoftNic::create`] does, with a clock behind the raw timestamps of completions
    /// that ticks at another rate than the personality's: devices of one driver differ in it
    /// (`hca_core_clock`). At 78,125 kHz a tick is 12.8 ns.
    ///
    /// # Errors
    /// As [`SoftNic::create`], and for a rate of 0 or above 1 GHz.
    pub fn create_with_clock(config: SoftNicConfig, kilohertz: u64) -> Result<Self, Error> {
        if !(1..=MAX_CLOCK_KILOHERTZ).contains(&kilohertz) {
            return Err(Error::Clock { kilohertz });
        }
        let clock = ClockRules { kilohertz, ..config.personality.rules().objects.clock };
        Self::create_with(config, clock)
    }

    fn create_with(config: SoftNicConfig, clock: ClockRules) -> Result<Self, Error> {
        check(&config)?;
        Library::load()?;
        Self::start(config, clock)
    }

    /// Makes a soft NIC as [`SoftNic::create`] does, for clients that do not reach the device through this
    /// crate's provider: the release of libibverbs does not matter.
    pub(crate) fn create_without_provider(config: SoftNicConfig) -> Result<Self, Error> {
        check(&config)?;
        let clock = config.personality.rules().objects.clock;
        Self::start(config, clock)
    }

    fn start(config: SoftNicConfig, clock: ClockRules) -> Result<Self, Error> {
        let SoftNicConfig { name, personality, ports, drive } = config;
        let shared = ports.iter().map(|port| Port {
            mac: AtomicU64::new(packed(port.wire.mac())),
            mtu_bytes: port.mtu_bytes,
            counters: PortCounters::default(),
            down: AtomicBool::new(port.wire.state() == WireState::Down),
            finished: AtomicBool::new(false),
        });
        let count = drive.engines(ports.len());
        let doorbells = (0..count).map(|_| Doorbell::new()).collect::<Result<_, _>>();
        let nic = Arc::new(Nic {
            doorbells: doorbells.map_err(|source| Error::Doorbell { name: name.clone(), source })?,
            clock_pages: OnceLock::new(),
            is_inline: drive == Drive::Inline,
            ports: shared.collect(),
            flows: LeftRight::new([(); 2].map(|()| FlowTable::new(personality.rules().flow.table))),
            state: Mutex::new(State::new(personality.rules())),
            queue_losses: Mutex::default(),
            turn: Mutex::new(()),
            waiting: AtomicU32::new(0),
            engines: EngineCell::for_ports(ports, count),
            stopping: AtomicBool::new(false),
            personality,
            clock,
            name,
        });
        // Dropped, and so stopped, if a thread cannot be started.
        let soft = Self { nic, drive, threads: Mutex::default() };
        for (index, core) in soft.drive.threads().iter().enumerate() {
            let thread = crate::engine::spawn(Arc::clone(&soft.nic), index, *core)?;
            soft.threads().push(thread);
        }
        Ok(soft)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one engine pass over all ports on the caller's thread: at most `max_frames` received frames, and
    /// whatever is in the send rings. Returns the frames handled, received and sent. 0 if the device has
    /// threads, and after [`SoftNic::stop`]. With [`Drive::Inline`] the limit is for each port, and ports
    /// where another thread makes a pass are left out.
    pub fn pump(&self, max_frames: usize) -> usize {
        match self.drive {
            Drive::Thread { .. } | Drive::Threads { .. } => 0,
            Drive::Inline => self.nic.try_passes(max_frames),
            Drive::Manual if self.nic.stopping.load(Ordering::Relaxed) => 0,
            Drive::Manual => self.nic.pass(max_frames),
        }
    }

    /// Begins to measure what the engines spend their time on, which costs less than a hundredth of it.
    pub fn start_profile(&self) {
        self.nic.engines.iter().for_each(|engine| engine.profile.start());
    }

    /// The time of each engine by stage since [`SoftNic::start_profile`]; empty before. With
    /// [`Drive::Inline`] each port has an engine.
    #[must_use]
    pub fn profiles(&self) -> Vec<EngineProfile> {
        self.nic.engines.iter().filter_map(|engine| engine.profile.read()).collect()
    }

    /// The counters of a port (from 1); all zero for a port that does not exist.
    #[must_use]
    pub fn port_stats(&self, port: u8) -> PortStats {
        self.nic.port(port).map(|port| port.counters.read()).unwrap_or_default()
    }

    /// Frames and copies for a work queue that met no posted buffer, by the queue's number (`ibv_wq.wq_num`);
    /// `None` if there is no such queue. Frames among them that met no other queue either are in the port's
    /// `out_of_buffer`, copies are in its `copies_lost`. Does not wait for the engine.
    #[must_use]
    pub fn out_of_buffer(&self, work_queue: u32) -> Option<u64> {
        let losses = self.nic.queue_losses().get(&work_queue)?.upgrade()?;
        Some(losses.load(Ordering::Relaxed))
    }

    /// The station address of a port (from 1): whom frames to this device are addressed to.
    #[must_use]
    pub fn port_mac(&self, port: u8) -> Option<MacAddr> {
        self.nic.port(port).map(Port::mac)
    }

    /// The MTU of a port (from 1).
    #[must_use]
    pub fn port_mtu_bytes(&self, port: u8) -> Option<u32> {
        self.nic.port(port).map(|port| port.mtu_bytes)
    }

    /// Whether every wire has come to its end and everything received was handled.
    #[must_use]
    pub fn wires_finished(&self) -> bool {
        self.nic.ports.iter().all(|port| port.finished.load(Ordering::Acquire))
    }

    /// Whether an engine's thread has ended although it was not stopped: then no frame of its ports moves any
    /// more.
    #[must_use]
    pub fn engine_died(&self) -> bool {
        // Looked at before `stopping` is: `stop` sets it before it joins.
        let ended = self.threads().iter().any(JoinHandle::is_finished);
        ended && !self.nic.stopping.load(Ordering::Relaxed)
    }

    /// How many passes each engine thread has made. Also without traffic one makes about fifty each second,
    /// so a count that does not change is a stalled engine: no frame of its ports moves, and control calls
    /// may wait for it. Locks nothing. Empty without threads.
    #[must_use]
    pub fn engine_passes(&self) -> Vec<u64> {
        self.nic.engines.iter().map(EngineCell::passes).take(self.drive.threads().len()).collect()
    }

    /// The part of the device that its contexts share.
    pub(crate) fn shared(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// Stops the engines for good, after the bursts they are in, and waits for that at most some seconds.
    /// Open contexts stay valid.
    pub fn stop(&self) {
        if !self.stop_within(STOP_PATIENCE) {
            tracing::error!(device = %self.nic.name, "an engine thread does not end; it is left running");
        }
    }

    /// Like [`SoftNic::stop`], and waits at most for `patience`. `false`: a thread is still running. It keeps
    /// what it uses alive, so that nothing is freed under it.
    pub fn stop_within(&self, patience: Duration) -> bool {
        self.nic.stopping.store(true, Ordering::Relaxed);
        self.nic.doorbells.iter().for_each(Doorbell::wake);
        if self.drive == Drive::Inline {
            // After the passes that other threads may be in.
            self.nic.engines.iter().for_each(|engine| engine.lock().count_wire_losses(&self.nic));
        }
        let threads = std::mem::take(&mut *self.threads());
        let deadline = Instant::now() + patience;
        while !threads.iter().all(JoinHandle::is_finished) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(STOP_STEP);
        }
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!(device = %self.nic.name, "an engine thread panicked");
            }
        }
        true
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        self.stop();
    }
}

// SAFETY: the list is calloc'ed and NULL-terminated, and its devices are counted and released through their
// `uninit_device`, which is what `ibv_free_device_list` expects (see `device`).
unsafe impl ibv_provider::Provider for SoftNic {
    fn device_list(&self, count: &mut c_int) -> *mut *mut ibv_device {
        crate::device::list(&self.nic.name, Backing::Nic(Arc::clone(&self.nic)), count)
    }

    fn channel_maker(&self) -> Option<ibv_provider::CreateChannel> {
        Some(crate::provider::cq::create_comp_channel)
    }

    fn model(&self) -> Option<&'static str> {
        Some(self.nic.personality.name())
    }
}

/// Whether a device can have this name.
pub(crate) fn is_device_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(plain)
}

fn check(config: &SoftNicConfig) -> Result<(), Error> {
    let name = &config.name;
    if !is_device_name(name) {
        return Err(Error::DeviceName { name: name.clone(), max: MAX_NAME_BYTES });
    }
    if config.ports.is_empty() || config.ports.len() > MAX_PORTS {
        return Err(Error::PortCount { ports: config.ports.len(), max: MAX_PORTS });
    }
    let threads = config.drive.engines(config.ports.len());
    if !(1..=config.ports.len()).contains(&threads) {
        return Err(Error::ThreadCount { threads, ports: config.ports.len() });
    }
    for (port, PortConfig { mtu_bytes, .. }) in (1u8..).zip(&config.ports) {
        if !(MIN_MTU_BYTES..=MAX_MTU_BYTES).contains(mtu_bytes) {
            let (min, max) = (MIN_MTU_BYTES, MAX_MTU_BYTES);
            return Err(Error::Mtu { port, mtu_bytes: *mtu_bytes, min, max });
        }
    }
    Ok(())
}

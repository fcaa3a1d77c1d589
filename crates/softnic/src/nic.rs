//! The soft NIC as its owner sees it: created from a configuration, pumped or self-driven, asked for its
//! counters.

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use packet::MacAddr;
use parking::{Wakeup, join_within};
use wire::MAX_MTU_BYTES;
use xdp::ClaimReport;

use crate::clock::{ClockView, check_rate};
use crate::engine::profile::EngineProfile;
use crate::engine::{self, EngineCell};
use crate::limits::{MAX_NAME_BYTES, MAX_PORTS, MIN_MTU_BYTES};
use crate::personality::{ClockRules, ObjectRules, Personality};
use crate::send_bell::SendBell;
use crate::shared::{NicShared, Port, PortConfig};
use crate::watch::{WatchFilter, WatchedFrames};
use crate::{PortStats, SoftNicError};

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
    /// The owner, by [`OwnedNic::pump`].
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

impl SoftNicConfig {
    /// Refuses a configuration out of range. [`OwnedNic::create`] makes the same check.
    ///
    /// # Errors
    /// The first value that is out of range.
    pub fn check(&self) -> Result<(), SoftNicError> {
        let name = &self.name;
        if !is_device_name(name) {
            return Err(SoftNicError::DeviceName { name: name.clone(), max: MAX_NAME_BYTES });
        }
        if self.ports.is_empty() || self.ports.len() > MAX_PORTS {
            return Err(SoftNicError::PortCount { ports: self.ports.len(), max: MAX_PORTS });
        }
        let threads = self.drive.engines(self.ports.len());
        if !(1..=self.ports.len()).contains(&threads) {
            return Err(SoftNicError::ThreadCount { threads, ports: self.ports.len() });
        }
        for (port, PortConfig { mtu_bytes, .. }) in (1u8..).zip(&self.ports) {
            if !(MIN_MTU_BYTES..=MAX_MTU_BYTES).contains(mtu_bytes) {
                let (min, max) = (MIN_MTU_BYTES, MAX_MTU_BYTES);
                return Err(SoftNicError::Mtu { port, mtu_bytes: *mtu_bytes, min, max });
            }
        }
        Ok(())
    }
}

/// A software NIC as its owner has it. Dropping it stops the engines; open contexts stay valid and see no
/// more traffic.
pub struct OwnedNic {
    nic: Arc<Nic>,
    drive: Drive,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A soft NIC as its contexts have it: the shared part, and the engines, which polls may run.
pub struct Nic {
    /// At least one. They are dropped before the shared part, which has what they use.
    engines: Box<[EngineCell]>,
    shared: NicShared,
    /// [`Drive::Inline`].
    is_inline: bool,
}

impl Deref for Nic {
    type Target = NicShared;

    #[inline]
    fn deref(&self) -> &NicShared {
        &self.shared
    }
}

/// The time for which [`OwnedNic::stop`] waits for the engines' threads.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Frames of a pass that a poll makes: they are still in the cache when they are polled.
const INLINE_FRAMES: usize = wire::BURST_FRAMES;

impl Nic {
    /// The clock behind the raw timestamps of completions.
    #[must_use]
    pub fn clock(&self) -> ClockRules {
        self.clock
    }

    /// The place from which clients read the clock, if there is one.
    #[must_use]
    pub fn clock_view(&self) -> Option<&dyn ClockView> {
        self.clock_view.get().map(|view| &**view)
    }

    /// Has the first engine write the clock to a place from which clients read it. A place that is there
    /// already stays.
    pub fn show_clock(&self, view: Box<dyn ClockView>) {
        // Another context may have been faster.
        drop(self.clock_view.set(view));
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The personality of the device.
    #[must_use]
    pub fn personality(&self) -> Personality {
        self.personality
    }

    /// The attributes that the device refuses or changes when objects are made.
    #[must_use]
    pub fn object_rules(&self) -> &'static ObjectRules {
        self.personality.object_rules()
    }

    /// The number of ports.
    #[must_use]
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// The number of completion vectors.
    #[must_use]
    pub fn completion_vectors(&self) -> u32 {
        self.rules().objects.completion.vectors
    }

    /// The most work requests of a queue.
    #[must_use]
    pub fn max_requests(&self) -> u32 {
        self.rules().max_requests
    }

    /// The most entries of an indirection table.
    #[must_use]
    pub fn max_table_entries(&self) -> u32 {
        self.rules().hash.max_entries
    }

    /// Makes what wakes the engine when something is posted to a send queue.
    #[must_use]
    pub fn send_bell(&self) -> Arc<SendBell> {
        SendBell::new(&self.wakeups)
    }

    /// Runs one pass of each engine, after the one that another thread may be in.
    pub fn pass(&self, max_frames: usize) -> usize {
        self.engines.iter().map(|engine| engine.pass(&self.shared, max_frames)).sum()
    }

    /// Called by a poll that has found its queue empty, which holds no lock: runs a pass of each engine that
    /// no other thread runs, if polls drive the engines. Returns whether the queue may have something now.
    #[inline]
    pub fn pass_inline(&self) -> bool {
        self.is_inline && self.try_passes(INLINE_FRAMES) > 0
    }

    fn try_passes(&self, max_frames: usize) -> usize {
        self.engines.iter().map(|engine| engine.try_pass(&self.shared, max_frames)).sum()
    }
}

impl OwnedNic {
    /// Makes the device and starts its engine threads, if it is to have some.
    ///
    /// # Errors
    /// A configuration out of range.
    pub fn create(config: SoftNicConfig) -> Result<Self, SoftNicError> {
        let clock = config.personality.rules().objects.clock;
        Self::start(config, clock)
    }

    /// Makes a soft NIC as [`OwnedNic::create`] does, with a clock behind the raw timestamps of completions
    /// that ticks at another rate than the personality's: devices of one driver differ in it
    /// (`hca_core_clock`). At 78,125 kHz a tick is 12.8 ns.
    ///
    /// # Errors
    /// The errors of [`OwnedNic::create`], and a rate of 0 or above 1 GHz.
    pub fn create_with_clock(config: SoftNicConfig, kilohertz: u64) -> Result<Self, SoftNicError> {
        check_rate(kilohertz)?;
        let clock = ClockRules { kilohertz, ..config.personality.rules().objects.clock };
        Self::start(config, clock)
    }

    fn start(config: SoftNicConfig, clock: ClockRules) -> Result<Self, SoftNicError> {
        config.check()?;
        let SoftNicConfig { name, personality, mut ports, drive } = config;
        let engines = drive.engines(ports.len());
        let nic = Arc::new(Nic {
            shared: NicShared::new(name, personality, clock, &mut ports, engines)?,
            engines: EngineCell::for_ports(ports, engines),
            is_inline: drive == Drive::Inline,
        });
        // Dropped, and so stopped, if a thread cannot be started.
        let soft = Self { nic, drive, threads: Mutex::default() };
        for (index, core) in soft.drive.threads().iter().enumerate() {
            soft.threads().push(soft.spawn(index, *core)?);
        }
        Ok(soft)
    }

    /// Starts the thread of an engine, by its index.
    fn spawn(&self, index: usize, core: Option<usize>) -> Result<JoinHandle<()>, SoftNicError> {
        let nic = Arc::clone(&self.nic);
        let name = engine::thread_name(&nic.name, index, nic.engines.len());
        engine::spawn(name, core, move || engine::run(&nic, &nic.engines[index], index))
            .map_err(|source| SoftNicError::EngineThread { name: self.nic.name.clone(), source })
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one engine pass over all ports on the caller's thread: at most `max_frames` received frames, and
    /// whatever is in the send rings. Returns the frames handled, received and sent. 0 if the device has
    /// threads, and after [`OwnedNic::stop`]. With [`Drive::Inline`] the limit is for each port, and ports
    /// where another thread makes a pass are left out.
    pub fn pump(&self, max_frames: usize) -> usize {
        match self.drive {
            Drive::Thread { .. } | Drive::Threads { .. } => 0,
            Drive::Inline => self.nic.try_passes(max_frames),
            Drive::Manual if self.nic.stopping.load(Ordering::Relaxed) => 0,
            Drive::Manual => self.nic.pass(max_frames),
        }
    }

    /// Lets creating or destroying a flow take as long as on a device that does so many a second; 0, as at
    /// first: no longer than it takes.
    pub fn set_flow_rate(&self, per_second: u32) {
        self.nic.flow_pace.set(per_second);
    }

    /// How many groups of flows received frames have passed, on a device whose model has `ns_per_group`; else
    /// 0. Frames that a wire drops for flows pass none.
    #[must_use]
    pub fn groups_passed(&self) -> u64 {
        self.nic.group_pace.passed()
    }

    /// Begins to measure what the engines spend their time on, which costs less than a hundredth of it.
    pub fn start_profile(&self) {
        self.nic.engines.iter().for_each(|engine| engine.profile.start());
    }

    /// The time of each engine by stage since [`OwnedNic::start_profile`]; empty before. With
    /// [`Drive::Inline`] each port has an engine.
    #[must_use]
    pub fn profiles(&self) -> Vec<EngineProfile> {
        self.nic.engines.iter().filter_map(|engine| engine.profile.read()).collect()
    }

    /// The counters of a port (from 1); all zero for a port that does not exist.
    #[must_use]
    pub fn port_stats(&self, port: u8) -> PortStats {
        self.nic.port(port).map(Port::stats).unwrap_or_default()
    }

    /// Begins to watch the frames of a port (from 1) that no receive queue gets, as far as `filter` chooses
    /// them, and to keep the first `frame_bytes` bytes of each. `false`: somebody does already, or there is
    /// no such port. Until [`OwnedNic::end_watch`] the wires drop no frames for flows, as those would not be
    /// seen.
    #[must_use]
    pub fn watch(&self, port: u8, filter: WatchFilter, frame_bytes: u32) -> bool {
        self.nic.port(port).is_some_and(|port| port.watch.begin(filter, frame_bytes, &port.claims))
    }

    /// Puts the watched frames since the last call into `frames`, in their order, and returns how many others
    /// were missed at most. Does not wait for the engine.
    pub fn watched(&self, port: u8, frames: &mut WatchedFrames) -> u64 {
        self.nic.port(port).map_or(0, |port| port.watch.take(frames))
    }

    /// Ends [`OwnedNic::watch`].
    pub fn end_watch(&self, port: u8) {
        if let Some(port) = self.nic.port(port) {
            port.watch.end(&port.claims);
        }
    }

    /// Lets the wires drop frames for flows before the engine has them, as they do at first, or not. When
    /// this has returned, the frames that they have dropped are counted.
    pub fn allow_drops(&self, is_allowed: bool) {
        self.nic.ports.iter().for_each(|port| port.watch.allow_drops(is_allowed, &port.claims));
    }

    /// The claims of the flows of a port (from 1) on its wire; `None` if the wire receives all frames. Waits
    /// for a flow that is being created.
    #[must_use]
    pub fn port_claims(&self, port: u8) -> Option<ClaimReport> {
        self.nic.port(port)?.claims.report()
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

    /// The interrupt that each completion queue has chosen (`comp_vector`), in the order of the device's
    /// table of queues.
    #[must_use]
    pub fn completion_vectors(&self) -> Vec<u32> {
        self.nic.control_without_wakeup().cqs.iter().map(|(_, queue)| queue.vector).collect()
    }

    /// The part of the device that its contexts share.
    #[must_use]
    pub fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// Stops the engines for good, after the bursts they are in, and waits for that at most some seconds.
    /// Open contexts stay valid.
    pub fn stop(&self) {
        if !self.stop_within(STOP_PATIENCE) {
            tracing::error!(device = %self.nic.name, "an engine thread does not end; it is left running");
        }
    }

    /// Like [`OwnedNic::stop`], and waits at most for `patience`. `false`: a thread is still running. It
    /// keeps what it uses alive, so that nothing is freed under it.
    pub fn stop_within(&self, patience: Duration) -> bool {
        self.nic.stopping.store(true, Ordering::Relaxed);
        self.nic.wakeups.iter().for_each(Wakeup::wake);
        if self.drive == Drive::Inline {
            // After the passes that other threads may be in.
            self.nic.engines.iter().for_each(|engine| engine.lock().read_wire_counters(&self.nic.shared));
        }
        let threads = std::mem::take(&mut *self.threads());
        let deadline = Instant::now() + patience;
        let mut have_ended = true;
        for thread in threads {
            match join_within(thread, deadline.saturating_duration_since(Instant::now())) {
                Some(Ok(())) => {}
                Some(Err(_)) => tracing::error!(device = %self.nic.name, "an engine thread panicked"),
                None => have_ended = false,
            }
        }
        have_ended
    }
}

impl Drop for OwnedNic {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a device can have this name.
pub(crate) fn is_device_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(plain)
}

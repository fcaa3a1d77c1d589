//! The engines: take bursts from the wires, put frames into posted buffers, and send what was posted.
//!
//! A device has one or several; each port belongs to one of them ([`NicShared::engine_of`]), which takes the
//! frames of the port in the order of their arrival. So each queue gets the frames of a port in that order.
//!
//! Run by threads of the device's own, by the thread that pumps, or by those that poll completion queues. An
//! engine takes the device's mutex once per burst, and again when sent frames have left, lets waiting control
//! calls go first, and neither allocates, locks nor logs per frame. It never waits for an application. The
//! threads of an idle device sleep (`rest`).

mod datagram;
pub(crate) mod deliver;
pub(crate) mod profile;
mod receive;
mod rest;
mod tap;
pub(crate) mod transmit;
mod v3;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

use wire::{
    ETHERNET_BYTES, MAX_FRAME_BYTES, MAX_MERGED_BYTES, ReceiveCounters, Splits, VLAN_TAGS_BYTES, Wire,
    WireState,
};

use crate::clock;
use crate::shared::{NicShared, PortConfig, engine_of};
use crate::state::QueueOwner;
use crate::stats::PortStats;

/// Frames of one turn of the thread.
const THREAD_FRAMES: usize = 256;
/// Passes between two readings of the wires' counters: for some that is a system call.
const COUNTER_PASSES: u32 = 256;

/// An engine, and what others read of it without locking it. Engines share no cache line, nor a pair that is
/// fetched together.
#[repr(align(128))]
pub(crate) struct EngineCell {
    engine: Mutex<Engine>,
    /// Passes that it has made; written by the holder of `engine`.
    passes: AtomicU64,
    /// The time of the engine, by stage.
    pub(crate) profile: profile::Totals,
}

impl EngineCell {
    fn new(ports: Vec<EnginePort>) -> Self {
        let engine = Mutex::new(Engine::new(ports));
        Self { engine, passes: AtomicU64::new(0), profile: profile::Totals::default() }
    }

    /// One engine for each of `count`, at most as many as there are ports, which are assigned to them
    /// round-robin.
    pub(crate) fn for_ports(ports: Vec<PortConfig>, count: usize) -> Box<[Self]> {
        let mut ports_of: Vec<Vec<EnginePort>> = (0..count).map(|_| Vec::new()).collect();
        for (number, port) in (1..).zip(ports) {
            ports_of[engine_of(number, count)].push(EnginePort::new(number, port));
        }
        ports_of.into_iter().map(Self::new).collect()
    }

    /// The engine; its own thread holds it for one pass at a time.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Runs one pass, after the one that another thread may be in.
    pub(crate) fn pass(&self, nic: &NicShared, max_frames: usize) -> usize {
        self.pass_with(&mut self.lock(), nic, max_frames)
    }

    /// Runs one pass, unless another thread is in one.
    pub(crate) fn try_pass(&self, nic: &NicShared, max_frames: usize) -> usize {
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        // With the lock, which is taken after the device was stopped: then this is the last pass, or none.
        if nic.stopping.load(Ordering::Relaxed) { 0 } else { self.pass_with(&mut engine, nic, max_frames) }
    }

    fn pass_with(&self, engine: &mut Engine, nic: &NicShared, max_frames: usize) -> usize {
        let frames = engine.pass(nic, &self.profile, max_frames);
        self.passes.store(self.passes().wrapping_add(1), Ordering::Relaxed);
        frames
    }
}

/// The wires of its ports, and what a pass works with.
pub(crate) struct Engine {
    ports: Vec<EnginePort>,
    plan: receive::Plan,
    tap: tap::Tap,
    /// Where sends are gathered.
    gather: Box<[u8; MAX_FRAME_BYTES]>,
    /// Counts passes; the first port of each is another one.
    passes: u32,
}

/// A port as the engine has it.
struct EnginePort {
    number: u8,
    wire: Box<dyn Wire>,
    /// Bytes of the longest frame.
    max_frame_bytes: usize,
    /// Bytes of the longest received frame: merged ones are longer than the MTU.
    max_received_bytes: usize,
    state: WireState,
    /// The link was taken down on purpose.
    is_unplugged: bool,
    /// Whether unmatched frames have to be left to the host ([`Wire::takes_away`]).
    takes_away: bool,
    /// The merged frames that the wire split so far.
    splits: Splits,
    /// The counters of the wire as they were read last.
    received: ReceiveCounters,
    transmit_losses: u64,
    /// The lost frames that are still counted as sent.
    counted_losses: u64,
}

impl EnginePort {
    fn new(number: u8, port: PortConfig) -> Self {
        let max_frame_bytes = port.mtu_bytes as usize + ETHERNET_BYTES + VLAN_TAGS_BYTES;
        let merged_bytes = if port.wire.takes_merged() { MAX_MERGED_BYTES } else { 0 };
        Self {
            number,
            max_frame_bytes,
            max_received_bytes: max_frame_bytes.max(merged_bytes),
            state: port.wire.state(),
            is_unplugged: false,
            takes_away: port.wire.takes_away(),
            splits: Splits::default(),
            wire: port.wire,
            received: ReceiveCounters::default(),
            transmit_losses: 0,
            counted_losses: 0,
        }
    }

    fn note_receive_counters(&mut self, stats: &mut PortStats) {
        let now = self.wire.receive_counters();
        let before = std::mem::replace(&mut self.received, now);
        stats.wire_lost += now.lost.saturating_sub(before.lost);
        stats.beyond_claims += now.beyond_claims.saturating_sub(before.beyond_claims);
        stats.passed += now.passed.saturating_sub(before.passed);
    }

    /// Moves the frames that the wire took and could not send since the last call from those that were sent
    /// to the errors; returns their number.
    fn note_transmit_losses(&mut self, stats: &mut PortStats) -> u64 {
        let losses = self.wire.transmit_losses();
        let lost = losses.saturating_sub(self.transmit_losses);
        stats.tx_errors += lost;
        // Frames of earlier bursts may be among them, and counters never go back: the rest is taken off the
        // next frames.
        self.counted_losses += lost;
        let taken_off = self.counted_losses.min(stats.tx_frames);
        stats.tx_frames -= taken_off;
        self.counted_losses -= taken_off;
        self.transmit_losses = losses;
        lost
    }

    fn note_splits(&mut self, stats: &mut PortStats) {
        let splits = self.wire.splits();
        stats.split_frames += splits.frames.saturating_sub(self.splits.frames);
        stats.split_segments += splits.segments.saturating_sub(self.splits.segments);
        self.splits = splits;
    }
}

impl Engine {
    fn new(ports: Vec<EnginePort>) -> Self {
        Self {
            ports,
            plan: receive::Plan::new(),
            tap: tap::Tap::new(),
            gather: Box::new([0; MAX_FRAME_BYTES]),
            passes: 0,
        }
    }

    /// One turn over its ports: at most `max_frames` received frames, and what was posted to be sent.
    fn pass(&mut self, nic: &NicShared, profile: &profile::Totals, max_frames: usize) -> usize {
        if nic.is_lost.load(Ordering::Relaxed) {
            return 0;
        }
        let first = self.passes as usize % self.ports.len().max(1);
        self.passes = self.passes.wrapping_add(1);
        self.ports.rotate_left(first);
        self.plan.probe.begin(profile);
        let received = self.receive(nic, max_frames);
        let mut sent = 0;
        for port in &mut self.ports {
            let mut stats = PortStats::default();
            sent += transmit::drain(nic, port, &mut self.gather, &mut self.tap, &mut self.plan, &mut stats);
            if self.passes.is_multiple_of(COUNTER_PASSES) {
                port.note_receive_counters(&mut stats);
            }
            publish(nic, port, &mut stats);
            watch(nic, port);
        }
        self.ports.rotate_right(first);
        self.plan.probe.mark(profile::EngineStage::Send);
        self.plan.probe.end(received, sent, profile);
        if let Some(faults) = nic.faults.get() {
            faults.carry_out(nic);
        }
        received + sent
    }

    /// The engine's own thread has rested after a pass.
    fn rested(&mut self, profile: &profile::Totals) {
        self.plan.probe.rested(profile);
    }

    /// A burst from each port in turn, until none has more: a busy port cannot keep the others waiting.
    fn receive(&mut self, nic: &NicShared, max_frames: usize) -> usize {
        let mut received = 0;
        loop {
            let before = received;
            for port in &mut self.ports {
                if received == max_frames {
                    return received;
                }
                if port.is_unplugged {
                    continue;
                }
                let mut stats = PortStats::default();
                received += receive::burst(nic, port, &mut self.plan, max_frames - received, &mut stats);
                port.note_splits(&mut stats);
                // Readers see the counters after each burst.
                publish(nic, port, &mut stats);
            }
            if received == before {
                return received;
            }
        }
    }

    /// Adds what the wires have counted since it was last read.
    pub(crate) fn read_wire_counters(&mut self, nic: &NicShared) {
        for port in &mut self.ports {
            let mut stats = PortStats::default();
            port.note_receive_counters(&mut stats);
            publish(nic, port, &mut stats);
        }
    }
}

/// Adds to the port's counters.
fn publish(nic: &NicShared, port: &EnginePort, stats: &mut PortStats) {
    if let Some(shared) = nic.port(port.number).filter(|_| *stats != PortStats::default()) {
        shared.counters.add(stats);
        *stats = PortStats::default();
    }
}

/// Notes what became of the wire; a link that comes or goes is reported to every context.
fn watch(nic: &NicShared, port: &mut EnginePort) {
    let Some(shared) = nic.port(port.number) else { return };
    port.is_unplugged = shared.is_unplugged.load(Ordering::Relaxed);
    let state = if port.is_unplugged { WireState::Down } else { port.wire.state() };
    if state == port.state && state != WireState::Finished {
        return;
    }
    shared.finished.store(state == WireState::Finished, Ordering::Release);
    let (was_down, down) = (port.state == WireState::Down, state == WireState::Down);
    port.state = state;
    if was_down != down {
        shared.down.store(down, Ordering::Relaxed);
        let event = if down { ibverbs_sys::IBV_EVENT_PORT_ERR } else { ibverbs_sys::IBV_EVENT_PORT_ACTIVE };
        let is_readdressed = !down && shared.note_mac(port.wire.mac());
        let state = nic.burst();
        for (slot, _) in state.contexts.iter() {
            // The port's GID is made of its address.
            if is_readdressed {
                state.notify(slot, ibverbs_sys::IBV_EVENT_GID_CHANGE, u64::from(port.number));
            }
            state.notify(slot, event, u64::from(port.number));
        }
    }
}

/// Flushes what was posted to queues in the error state. The list is nearly always empty.
#[cold]
fn flush_failed(state: &mut crate::state::State) {
    for index in 0..state.failed_queues.len() {
        let Some(&slot) = state.failed_queues.get(index) else { break };
        state.flush_queue(slot);
        let kind = state.queues.get(slot).map(|queue| queue.kind);
        if let Some(QueueOwner::QueuePair(qp)) = kind {
            state.flush_sends(qp);
        }
    }
    state.publish();
}

/// The kernel cuts thread names at 15 bytes.
const THREAD_NAME_BYTES: usize = 15;

/// Starts the thread of an engine, on a core if one is given.
pub(crate) fn spawn(
    name: String,
    core: Option<usize>,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(move || {
        if let Some(core) = core {
            pin(core);
        }
        run();
    })
}

/// The name of an engine's thread: the device's, and of several threads the number from 1.
pub(crate) fn thread_name(device: &str, index: usize, threads: usize) -> String {
    let number = if threads > 1 { format!("/{}", index + 1) } else { String::new() };
    // Names of devices are ASCII.
    format!("{device:.*}{number}", THREAD_NAME_BYTES - number.len())
}

fn pin(core: usize) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        set.set(core);
    }
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(core, %error, "the engine cannot be pinned to its core");
    }
}

/// Runs the engine with this index until the device is stopped.
pub(crate) fn run(nic: &NicShared, cell: &EngineCell, index: usize) {
    // The kernel may lengthen sleeps by the timer slack, by default 50 us (prctl(2)): as long as the shortest
    // nap. SAFETY: takes a number and touches nothing but this thread's slack; if it fails sleeps stay long.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
    let mut rest = rest::Rest::new(nic, cell, index);
    while !nic.stopping.load(Ordering::Relaxed) {
        let frames = cell.pass(nic, THREAD_FRAMES);
        if index == 0
            && let Some(view) = nic.clock_view.get()
        {
            view.update(clock::now_ns());
        }
        rest.after(frames);
        if cell.profile.is_on() {
            cell.lock().rested(&cell.profile);
        }
    }
    cell.lock().read_wire_counters(nic);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_threads_keep_their_number_when_they_are_cut() {
        assert_eq!(thread_name("softnic0", 0, 1), "softnic0");
        assert_eq!(thread_name("softnic0", 1, 2), "softnic0/2");
        assert_eq!(thread_name("a-very-long-device-name", 0, 1), "a-very-long-dev");
        assert_eq!(thread_name("a-very-long-device-name", 7, 8), "a-very-long-d/8");
    }
}

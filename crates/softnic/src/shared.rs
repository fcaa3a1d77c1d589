//! The part of a soft NIC below its engines: ports, flow table, and state with the order of their locks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use flow_table::{FlowId, FlowTable, LeftRight, LeftRightWriter};
use packet::MacAddr;
use parking::Wakeup;
use wire::{Wire, WireState};

use crate::SoftNicError;
use crate::claims::FlowClaims;
use crate::clock::ClockView;
use crate::faults::PendingFaults;
use crate::flow_pace::FlowPace;
use crate::group_pace::GroupPace;
use crate::personality::{ClockRules, Personality, Rules};
use crate::port_tables::{LINK_LOCAL, eui64};
use crate::state::State;
use crate::stats::{PortCounters, PortStats};
use crate::watch::PortWatch;

/// One port of the device.
pub struct PortConfig {
    /// Where its frames come from and go to.
    pub wire: Box<dyn Wire>,
    /// Payload bytes of the largest frame (without the Ethernet header and VLAN tags).
    pub mtu_bytes: u32,
}

/// The part of a soft NIC that its owner, its open contexts and its engines share.
///
/// Locks are taken in this order: an engine, `flows`, claims of a port, `turn`, `state`. Who changes `flows`
/// waits for engines that look frames up, and therefore holds neither `turn` nor `state` meanwhile.
pub struct NicShared {
    pub(crate) name: String,
    pub(crate) personality: Personality,
    /// The clock of the personality, perhaps at another rate.
    pub(crate) clock: ClockRules,
    pub(crate) ports: Box<[Port]>,
    /// Engines look frames up together; what a verdict names stays as it is while they hold it.
    pub(crate) flows: LeftRight<FlowTable>,
    pub(crate) flow_pace: FlowPace,
    pub(crate) group_pace: GroupPace,
    state: Mutex<State>,
    /// The packets that each work queue lost for lack of a buffer, by its number. Never locked by the engine.
    queue_losses: Mutex<BTreeMap<u32, Weak<AtomicU64>>>,
    /// Held by the one who is next to lock `state`, until then.
    turn: Mutex<()>,
    /// Control calls that wait for it.
    waiting: AtomicU32,
    /// Wake the engines' own threads; one for each engine.
    pub(crate) wakeups: Arc<[Wakeup]>,
    /// From which clients read the clock, once there is one that does.
    pub(crate) clock_view: OnceLock<Box<dyn ClockView>>,
    pub(crate) stopping: AtomicBool,
    /// The device has failed for good.
    pub(crate) is_lost: AtomicBool,
    /// Faults that are to be made on purpose.
    pub(crate) faults: OnceLock<PendingFaults>,
}

/// The part of a port that is known without the engine.
pub(crate) struct Port {
    mac: AtomicU64,
    pub(crate) mtu_bytes: u32,
    pub(crate) counters: PortCounters,
    pub(crate) watch: PortWatch,
    pub(crate) down: AtomicBool,
    /// A fault that was made on purpose: the link is down whatever the wire's state.
    pub(crate) is_unplugged: AtomicBool,
    pub(crate) finished: AtomicBool,
    /// The frames that the wire is to take, if it does not take all.
    pub(crate) claims: FlowClaims,
}

impl Port {
    fn new(config: &mut PortConfig) -> Self {
        Self {
            claims: FlowClaims::new(config.wire.claims()),
            mac: AtomicU64::new(packed(config.wire.mac())),
            mtu_bytes: config.mtu_bytes,
            counters: PortCounters::default(),
            watch: PortWatch::default(),
            down: AtomicBool::new(config.wire.state() == WireState::Down),
            is_unplugged: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        }
    }

    /// The counters of the engine, and those of the wire that others read.
    pub(crate) fn stats(&self) -> PortStats {
        let mut stats = self.counters.read();
        self.claims.add_drops(&mut stats);
        stats
    }

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

impl NicShared {
    /// The shared part of a device with these ports, which `engines` engines serve.
    ///
    /// # Errors
    /// An eventfd could not be opened.
    pub(crate) fn new(
        name: String,
        personality: Personality,
        clock: ClockRules,
        ports: &mut [PortConfig],
        engines: usize,
    ) -> Result<Self, SoftNicError> {
        let wakeups = (0..engines).map(|_| Wakeup::new()).collect::<Result<_, _>>();
        Ok(Self {
            wakeups: wakeups.map_err(|source| SoftNicError::Wakeup { name: name.clone(), source })?,
            clock_view: OnceLock::new(),
            ports: ports.iter_mut().map(Port::new).collect(),
            flow_pace: FlowPace::default(),
            group_pace: GroupPace::new(personality.rules().flow.ns_per_group),
            flows: LeftRight::new([(); 2].map(|()| FlowTable::new(personality.rules().flow.table))),
            state: Mutex::new(State::new(personality.rules())),
            queue_losses: Mutex::default(),
            turn: Mutex::new(()),
            waiting: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            faults: OnceLock::new(),
            personality,
            clock,
            name,
        })
    }

    /// The rules of this device: what it refuses, and how it orders things.
    pub(crate) fn rules(&self) -> &'static Rules {
        self.personality.rules()
    }

    /// The device's state, for a control call. Wakes the engines, which may have something to do after it.
    pub fn control(&self) -> MutexGuard<'_, State> {
        let state = self.control_without_wakeup();
        self.wakeups.iter().for_each(Wakeup::notify);
        state
    }

    /// The device's state, for a control call that changes nothing for the engines, which sleep on.
    pub fn control_without_wakeup(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock_state();
        drop(turn);
        // An engine unlocks the state between its sends and their completions' publication.
        state.publish();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        state
    }

    /// Whether a wire may drop the frames of a flow.
    pub(crate) fn may_drop(&self, flow: FlowId) -> bool {
        self.ports.iter().any(|port| port.claims.may_drop(flow))
    }

    /// Withdraws the claims of a flow on every port; before it leaves the flow table.
    pub(crate) fn withdraw_claims(&self, flow: FlowId) {
        self.ports.iter().for_each(|port| port.claims.withdraw(flow));
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

    pub(crate) fn queue_losses(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<AtomicU64>>> {
        self.queue_losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port with a number, from 1.
    pub(crate) fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }

    /// The index of the engine that a port (from 1) belongs to.
    #[inline]
    pub(crate) fn engine_of(&self, port: u8) -> usize {
        engine_of(port, self.wakeups.len())
    }
}

/// Which of `count` engines a port (from 1) belongs to.
#[inline]
pub(crate) fn engine_of(port: u8, count: usize) -> usize {
    usize::from(port.saturating_sub(1)) % count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_assigned_round_robin() {
        let engines = |count| (1..=5).map(|port| engine_of(port, count)).collect::<Vec<_>>();
        assert_eq!(engines(1), [0; 5]);
        assert_eq!(engines(2), [0, 1, 0, 1, 0]);
        assert_eq!(engines(5), [0, 1, 2, 3, 4]);
    }
}

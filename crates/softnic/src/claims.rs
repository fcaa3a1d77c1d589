//! The claims of the flows of a port, for a wire that receives only claimed frames ([`wire::Wire::claims`]).
//!
//! A flow claims the frames that its matcher matches; its conditions on tunnels are left to the flow table,
//! so more may be claimed than the flow gets. A claim is made after the flow is in the flow table and
//! withdrawn before it leaves it: a frame that the wire takes finds its flow, but for those on their way when
//! the flow is destroyed. Flows of sent frames claim nothing.
//!
//! The wire itself drops and counts frames of flows that drop, unless a flow before claims them
//! ([`xdp::ClaimAction`]). A counter of the device is then the sum of what the engine counts and of a counter
//! for each such port.
//!
//! A claim is made quickly, and the trees of claims are built anew by a thread of their own once no flow has
//! changed for a while.
//!
//! The lock is taken with that of `flows` held, or none, and no other while it is held. Engines never take
//! it.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flow_table::{FlowId, FlowKind, FlowRule};
use xdp::{AllDrops, Claim, ClaimAction, ClaimReport, ClaimTable, DropCounter, XdpError};

use crate::PortStats;

/// The claims of a port; nothing for wires that receive all frames.
#[derive(Debug, Default)]
pub(crate) struct FlowClaims(Option<Claims>);

#[derive(Debug)]
struct Claims {
    flows: Arc<Mutex<ClaimedFlows>>,
    /// The frames that the wire drops for flows, and does not take.
    drops: AllDrops,
    /// `None` if there can be no thread: then the wire needs more time for a packet.
    improver: Option<Improver>,
}

/// How long no flow has changed when the trees are built anew, and how long that is put off at most.
const QUIET: Duration = Duration::from_millis(50);
const QUIET_MAX: Duration = Duration::from_secs(1);
/// How long the end of the thread is waited for: it may be building a tree.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The thread that builds the trees of claims anew. It ends with this.
#[derive(Debug)]
struct Improver {
    /// Gets an entry when claims have changed, unless there is one.
    changes: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Improver {
    fn new(flows: Arc<Mutex<ClaimedFlows>>) -> io::Result<Self> {
        let (changes, changed) = sync_channel(1);
        let thread = std::thread::Builder::new().name("claims".to_owned());
        let thread = thread.spawn(move || improve(&flows, &changed))?;
        Ok(Self { changes: Some(changes), thread: Some(thread) })
    }

    fn note_change(&self) {
        // A full channel has what the thread needs to know.
        if let Some(changes) = &self.changes {
            let _ = changes.try_send(());
        }
    }
}

impl Drop for Improver {
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            parking::join_within(thread, END_PATIENCE);
        }
    }
}

/// Improves the trees after each series of changes, until there can be no more. Holds the lock while a tree
/// is built, some microseconds for each of its claims.
fn improve(flows: &Mutex<ClaimedFlows>, changed: &Receiver<()>) {
    let mut has_changed = changed.recv().is_ok();
    while has_changed {
        let begun = Instant::now();
        while begun.elapsed() < QUIET_MAX {
            match changed.recv_timeout(QUIET) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        // Flows that change between two trees come first.
        has_changed = loop {
            if !locked(flows).table.improve() {
                break changed.recv().is_ok();
            }
            match changed.try_recv() {
                Ok(()) => break true,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
        };
    }
}

fn locked(flows: &Mutex<ClaimedFlows>) -> MutexGuard<'_, ClaimedFlows> {
    flows.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct ClaimedFlows {
    table: ClaimTable,
    of_flow: HashMap<FlowId, (Claim, u32, ClaimAction)>,
    /// For flows that drop without counting.
    uncounted: Option<DropCounter>,
}

impl ClaimedFlows {
    /// The fate of the claimed frames of a flow. The wire may drop them if the claim is all that the flow
    /// asks for, and the flow no copy and no default.
    fn action(&mut self, rule: &FlowRule, counter: Option<DropCounter>) -> ClaimAction {
        let can_drop =
            rule.actions.drop && rule.kind == FlowKind::Normal && !rule.dont_trap && rule.tunnel.is_none();
        if !can_drop {
            return ClaimAction::Redirect;
        }
        let counter = counter.or_else(|| match rule.actions.counter {
            Some(_) => self.table.drop_counter(),
            None => {
                self.uncounted = self.uncounted.take().or_else(|| self.table.drop_counter());
                self.uncounted.clone()
            }
        });
        counter.map_or(ClaimAction::Redirect, ClaimAction::Drop)
    }
}

/// Where a flow stands among those that share frames with it: by kind and priority, as normal flows do in the
/// flow table, which alone may drop. A sniffer gets a copy whatever comes before it.
fn precedence(rule: &FlowRule) -> u32 {
    match rule.kind {
        FlowKind::Sniffer => 0,
        kind => (kind as u32) << 16 | u32::from(rule.priority),
    }
}

impl FlowClaims {
    /// No flow claims anything yet.
    pub(crate) fn new(table: Option<ClaimTable>) -> Self {
        Self(table.map(|table| {
            let drops = table.all_drops();
            let flows = ClaimedFlows { table, of_flow: HashMap::new(), uncounted: None };
            let flows = Arc::new(Mutex::new(flows));
            let improver = Improver::new(Arc::clone(&flows));
            let improver = improver.inspect_err(|error| tracing::warn!("no thread for claims: {error}"));
            Claims { flows, drops, improver: improver.ok() }
        }))
    }

    /// Claims the frames of a flow, if it is one of received frames. When this has returned, the wire leaves
    /// none of them to the host. `counter`: that of the frames which the wire drops for the flow's counter,
    /// if there is one already. Returns it, or a new one, if the wire may drop frames of this flow.
    ///
    /// # Errors
    /// The wire takes no more claims.
    pub(crate) fn claim(
        &self,
        rule: &FlowRule,
        counter: Option<DropCounter>,
    ) -> Result<Option<DropCounter>, XdpError> {
        let Some(mut flows) = self.lock().filter(|_| !rule.egress) else { return Ok(None) };
        let claim = Claim::new(*rule.matcher.value().words(), *rule.matcher.mask().words());
        let action = flows.action(rule, counter);
        let precedence = precedence(rule);
        flows.table.add(&claim, precedence, action.clone())?;
        flows.of_flow.insert(rule.id, (claim, precedence, action.clone()));
        self.note_change();
        match action {
            ClaimAction::Drop(counter) => Ok(Some(counter)),
            ClaimAction::Redirect => Ok(None),
        }
    }

    /// Lets the wire drop frames for flows, or hand over those too.
    pub(crate) fn allow_drops(&self, is_allowed: bool) {
        self.0.iter().for_each(|claims| claims.drops.allow(is_allowed));
    }

    /// Whether the wire may drop the frames of a flow.
    pub(crate) fn may_drop(&self, flow: FlowId) -> bool {
        self.lock().is_some_and(|flows| matches!(flows.of_flow.get(&flow), Some((.., ClaimAction::Drop(_)))))
    }

    /// Withdraws the claim of a flow, if it has one. Of frames that arrive when this has returned, the wire
    /// takes and drops none for this flow.
    pub(crate) fn withdraw(&self, flow: FlowId) {
        let Some(mut flows) = self.lock() else { return };
        if let Some((claim, precedence, action)) = flows.of_flow.remove(&flow) {
            flows.table.remove(&claim, precedence, &action);
            self.note_change();
        }
    }

    fn note_change(&self) {
        self.0.iter().filter_map(|claims| claims.improver.as_ref()).for_each(Improver::note_change);
    }

    /// Adds the frames that the wire has dropped to those that the engine has received. Takes no lock.
    pub(crate) fn add_drops(&self, stats: &mut PortStats) {
        let Some(claims) = &self.0 else { return };
        let dropped = claims.drops.read();
        stats.rx_frames += dropped.packets;
        stats.rx_bytes += dropped.bytes;
        stats.flow_dropped += dropped.packets;
        stats.dropped_by_wire = dropped.packets;
    }

    /// How exactly the wire represents the claims; `None` for wires that receive all frames.
    pub(crate) fn report(&self) -> Option<ClaimReport> {
        Some(self.lock()?.table.report())
    }

    fn lock(&self) -> Option<MutexGuard<'_, ClaimedFlows>> {
        self.0.as_ref().map(|claims| locked(&claims.flows))
    }
}

#[cfg(test)]
mod tests {
    use flow_table::{Actions, CounterId, Matcher, QpSlot, TunnelMatcher};
    use packet::Layers;
    use packet::cube::DST_PORT;
    use test_support::not_run;
    use xdp::ProgramOptions;

    use super::*;

    /// A flow that drops and counts UDP to a port.
    fn dropping(id: u32, port: u128) -> FlowRule {
        let mut matcher = Matcher::any();
        matcher.require(Layers::UDP).field(&[DST_PORT], port, 0xffff);
        FlowRule {
            id: FlowId(id),
            kind: FlowKind::Normal,
            port: 1,
            egress: false,
            priority: 0,
            dont_trap: false,
            order: u64::from(id),
            matcher,
            tunnel: None,
            actions: Actions { tag: None, drop: true, counter: Some(CounterId(0)), target: QpSlot(0) },
        }
    }

    #[test]
    fn the_wire_drops_for_flows_that_ask_for_nothing_else() {
        let table = match xdp::load(&ProgramOptions::default()) {
            Ok((_program, table)) => table,
            Err(error @ XdpError::NotPermitted { .. }) => {
                return not_run("claims of flows", &error.to_string());
            }
            Err(error) => panic!("{error}"),
        };
        let claims = FlowClaims::new(Some(table));
        let dropped = || claims.report().map(|report| report.dropping);
        let counter = claims.claim(&dropping(1, 1), None).expect("there is room").expect("a counter");
        let same = claims.claim(&dropping(2, 2), Some(counter.clone())).expect("there is room");
        assert_eq!((same, dropped()), (Some(counter), Some(2)), "two flows of one counter");
        let uncounted = Actions { counter: None, ..dropping(0, 0).actions };
        let of_uncounted = |id, port| FlowRule { actions: uncounted, ..dropping(id, port) };
        let first = claims.claim(&of_uncounted(3, 3), None).expect("there is room");
        assert_eq!(claims.claim(&of_uncounted(4, 4), None).expect("there is room"), first);
        assert_eq!(dropped(), Some(4));
        let delivering = Actions { drop: false, ..dropping(0, 0).actions };
        for (id, other) in (5..).zip([
            FlowRule { actions: delivering, ..dropping(5, 5) },
            FlowRule { dont_trap: true, ..dropping(6, 6) },
            FlowRule { tunnel: Some(Box::new(TunnelMatcher::default())), ..dropping(7, 7) },
            FlowRule { kind: FlowKind::AllDefault, ..dropping(8, 8) },
            FlowRule { egress: true, ..dropping(9, 9) },
        ]) {
            assert_eq!(claims.claim(&other, None).expect("there is room"), None, "flow {id}");
        }
        assert_eq!((dropped(), claims.report().map(|report| report.claims)), (Some(4), Some(8)));
        (1..=4).for_each(|id| claims.withdraw(FlowId(id)));
        assert_eq!(dropped(), Some(0));
    }

    #[test]
    fn trees_are_improved_when_flows_have_changed() {
        let claims = FlowClaims::new(Some(ClaimTable::offline(1 << 10)));
        for port in 0..100 {
            claims.claim(&dropping(port, u128::from(port)), None).expect("there is room");
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while claims.lock().expect("a table").table.can_improve() {
            assert!(Instant::now() < deadline, "nothing is improved");
            std::thread::sleep(QUIET);
        }
    }
}

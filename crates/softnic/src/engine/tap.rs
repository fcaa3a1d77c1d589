//! The effect of flows on sent frames: EGRESS flows drop or count them, sniffers get copies.
//!
//! [`super::transmit`] asks before each frame goes to the wire, and only on ports that have such flows.
//! Sniffers cannot be served while a request is being carried out, so copies wait here until it is done.
//! Nothing is allocated after the engine was made.

use arrayvec::ArrayVec;
use flow_table::{FlowTable, Matches};
use wire::{BURST_FRAMES, RxFrame};

use super::receive::{Plan, copy_sent};
use crate::limits::MAX_TSO_BYTES;
use crate::slab::Slab;
use crate::state::{CounterState, State};
use crate::stats::PortStats;

/// Bytes of copies that can wait: a whole stream in segments of the usual size, headers included.
const TAP_BYTES: usize = 2 * MAX_TSO_BYTES as usize;
/// Copies that can wait.
const TAP_FRAMES: usize = 1 << 10;

/// The effect of a port's flows on sent frames.
pub(super) struct Tap {
    /// Whether some flow is about them.
    filtered: bool,
    /// How many flows want copies.
    sniffers: u64,
    matches: Matches,
    bytes: Vec<u8>,
    /// Where each copy ends.
    ends: Vec<usize>,
}

/// The part of the state that an EGRESS flow touches.
pub(super) struct EgressFlows<'s> {
    pub(super) flows: &'s FlowTable,
    pub(super) counters: &'s mut Slab<CounterState>,
}

impl Tap {
    pub(super) fn new() -> Self {
        Self {
            filtered: false,
            sniffers: 0,
            matches: Matches::new(),
            bytes: Vec::with_capacity(TAP_BYTES),
            ends: Vec::with_capacity(TAP_FRAMES),
        }
    }

    /// Turns to a port. `sniffs_sent` is the device's rule.
    pub(super) fn turn_to(&mut self, flows: &FlowTable, port: u8, sniffs_sent: bool) {
        self.filtered = flows.has_egress(port);
        self.sniffers = if sniffs_sent { flows.sniffer_count(port) as u64 } else { 0 };
    }

    /// Whether any flow is about the sent frames.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.filtered || self.sniffers != 0
    }

    /// Whether a frame may not be sent; counts it either way.
    #[inline]
    pub(super) fn drops(&mut self, egress: &mut EgressFlows<'_>, port: u8, frame: &[u8]) -> bool {
        self.filtered && self.judge(egress, port, frame)
    }

    #[inline(never)]
    fn judge(&mut self, egress: &mut EgressFlows<'_>, port: u8, frame: &[u8]) -> bool {
        let parsed = packet::parse(frame);
        let tunnel = || packet::parse_tunnel(frame, &parsed);
        egress.flows.lookup_sent(port, &parsed.key, tunnel, &mut self.matches);
        let mut dropped = false;
        for hit in self.matches.as_slice() {
            if let Some(set) = hit.actions.counter.and_then(|counter| egress.counters.get_mut(counter.0)) {
                set.packets += 1;
                set.bytes += frame.len() as u64;
            }
            dropped |= hit.actions.drop;
        }
        dropped
    }

    /// Keeps a copy of a frame that was sent, if a sniffer wants one and there is space.
    #[inline]
    pub(super) fn keep(&mut self, frame: &[u8], stats: &mut PortStats) {
        if self.sniffers == 0 {
            return;
        }
        if self.bytes.len() + frame.len() > TAP_BYTES || self.ends.len() == TAP_FRAMES {
            stats.copies_lost += self.sniffers;
            return;
        }
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
    }

    /// Whether copies wait.
    #[inline]
    pub(super) fn has_copies(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Hands the copies out.
    pub(super) fn hand_out(
        &mut self,
        flows: &FlowTable,
        state: &mut State,
        port: u8,
        plan: &mut Plan,
        stats: &mut PortStats,
    ) {
        let Self { bytes, ends, .. } = self;
        for first in (0..ends.len()).step_by(BURST_FRAMES) {
            let frames = (first..ends.len()).take(BURST_FRAMES).map(|at| {
                let start = at.checked_sub(1).map_or(0, |before| ends[before]);
                RxFrame::new(&bytes[start..ends[at]])
            });
            let frames: ArrayVec<_, BURST_FRAMES> = frames.collect();
            copy_sent(flows, state, port, plan, &frames, stats);
        }
        bytes.clear();
        ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_table::{Actions, FlowId, FlowKind, FlowRule, Matcher, QpSlot};

    fn sniffer(id: u32) -> FlowRule {
        FlowRule {
            id: FlowId(id),
            kind: FlowKind::Sniffer,
            port: 1,
            egress: false,
            priority: 0,
            dont_trap: false,
            order: id.into(),
            matcher: Matcher::any(),
            tunnel: None,
            actions: Actions { tag: None, drop: false, counter: None, target: QpSlot(id) },
        }
    }

    #[test]
    fn a_frame_without_room_is_lost_to_each_sniffer() {
        let (mut flows, mut tap, mut stats) = (FlowTable::default(), Tap::new(), PortStats::default());
        for id in 0..3 {
            flows.insert(sniffer(id)).unwrap();
        }
        tap.turn_to(&flows, 1, true);
        (0..TAP_FRAMES + 2).for_each(|_| tap.keep(&[0; 60], &mut stats));
        assert_eq!((tap.ends.len(), stats.copies_lost), (TAP_FRAMES, 2 * 3));
        tap.turn_to(&flows, 1, false);
        tap.keep(&[0; 60], &mut stats);
        assert_eq!(stats.copies_lost, 2 * 3, "a device that sniffs only what is received loses nothing");
    }
}

//! The flows of one worker until they are exported, in fixed memory.
//!
//! A flow has a place in the set of [`WAYS`] entries that its hash selects. If all are taken, the flow that
//! has been without packets for longest is exported early, for lack of resources. So a packet costs one
//! look at a set, whatever the number of flows. Entries whose time is over are found by looking at all sets
//! about once in [`SCAN_MS`], a part at each poll.
//!
//! Only the worker's thread uses this. Records leave by a ring to the thread that sends them; what finds no
//! room there is counted as not sent. Times are milliseconds since an origin of the monotonic clock.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use packet::{Layers, Parsed};
use program::FlowExport;

use super::super::flow::{self, FlowHasher, Packed};
use super::message::FlowSums;
use super::{FlowEndReason, FlowRecord, NotSent, RuleOfFlow};

/// Entries in a set.
const WAYS: usize = 8;
/// The time in which all sets are looked at.
const SCAN_MS: u64 = 1000;
/// The most sets that one poll looks at, so that a poll after a pause does not delay packets.
const SETS_PER_POLL: usize = 256;
/// The polls that read the clock once: a poll may come after each packet.
const POLLS_PER_LOOK: u32 = 16;
/// The time after which a TCP connection that was closed is exported: its last segments still belong to it.
const CLOSED_MS: u64 = 1000;
/// The most flows that are exported in one poll at the end.
const FLUSH_MAX: usize = 1024;
/// The TCP flags FIN and RST.
const CLOSING_FLAGS: u8 = 0x05;

#[derive(Clone, Copy, Default)]
struct FlowEntry {
    flow: Packed,
    rule: RuleOfFlow,
    /// 0: not in use.
    packets: u64,
    octets: u64,
    first_ms: u64,
    last_ms: u64,
    control_bits: u8,
}

impl FlowEntry {
    fn record(&self, end_reason: FlowEndReason) -> FlowRecord {
        let Self { flow, rule, packets, octets, first_ms, last_ms, control_bits } = *self;
        FlowRecord { flow, rule, packets, octets, first_ms, last_ms, control_bits, end_reason }
    }
}

/// The flows of a worker.
pub(in super::super) struct FlowCache {
    /// Sets side by side; their number is a power of two.
    entries: Box<[FlowEntry]>,
    hasher: FlowHasher,
    active_ms: u64,
    idle_ms: u64,
    origin: Instant,
    /// The time of the last look at the clock.
    now_ms: u64,
    polls: u32,
    /// The next set to be looked at, and the number of sets that are due since `scanned_ms` or before.
    next_set: usize,
    due_sets: usize,
    scanned_ms: u64,
    /// At the end: the next entry to be exported.
    flushed: Option<usize>,
    ring: rtrb::Producer<FlowRecord>,
    not_sent: Arc<NotSent>,
}

/// The number of flows that a cache has room for.
fn places(options: &FlowExport) -> usize {
    (options.flows as usize).div_ceil(WAYS).next_power_of_two() * WAYS
}

/// The memory of the cache of one worker, in bytes.
pub(crate) fn cache_bytes(options: &FlowExport) -> u64 {
    (places(options) * size_of::<FlowEntry>()) as u64
}

impl FlowCache {
    /// A cache with the options of the sink; nothing is allocated later. Fails if there is no memory for it.
    pub(super) fn new(
        options: &FlowExport,
        origin: Instant,
        ring: rtrb::Producer<FlowRecord>,
        not_sent: Arc<NotSent>,
    ) -> io::Result<Self> {
        let places = places(options);
        let mut entries = Vec::new();
        let reserved = entries.try_reserve_exact(places);
        reserved.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        entries.resize(places, FlowEntry::default());
        Ok(Self {
            entries: entries.into(),
            hasher: FlowHasher::new(),
            active_ms: u64::from(options.active_seconds) * 1000,
            idle_ms: u64::from(options.idle_seconds) * 1000,
            origin,
            now_ms: 0,
            polls: 0,
            next_set: 0,
            due_sets: 0,
            scanned_ms: 0,
            flushed: None,
            ring,
            not_sent,
        })
    }

    /// Reads the clock, once for all packets of an iteration.
    #[inline]
    pub(in super::super) fn begin(&mut self) {
        self.now_ms = self.origin.elapsed().as_millis() as u64;
    }

    /// Counts a packet of a rule.
    #[inline]
    pub(in super::super) fn count(&mut self, frame: &[u8], parsed: &Parsed, rule: RuleOfFlow) {
        let flow = flow::pack(&parsed.key);
        let octets = octets(frame, parsed);
        // The layers tell whether the flags are those of TCP.
        let is_tcp = parsed.key.layers.contains(Layers::TCP);
        let control_bits = if is_tcp { parsed.key.tcp_flags } else { 0 };
        let now_ms = self.now_ms;
        let sets = self.entries.len() / WAYS;
        let first = (self.hasher.hash(&flow) as usize & (sets - 1)) * WAYS;
        let set = &mut self.entries[first..first + WAYS];
        let mut victim = 0;
        for place in 0..WAYS {
            let entry = &mut set[place];
            if entry.packets > 0 && entry.flow == flow && entry.rule == rule {
                entry.packets += 1;
                entry.octets += octets;
                entry.last_ms = now_ms;
                entry.control_bits |= control_bits;
                return;
            }
            let is_better = |entry: &FlowEntry, than: &FlowEntry| {
                than.packets > 0 && (entry.packets == 0 || entry.last_ms < than.last_ms)
            };
            if is_better(&set[place], &set[victim]) {
                victim = place;
            }
        }
        let entry =
            FlowEntry { flow, rule, packets: 1, octets, first_ms: now_ms, last_ms: now_ms, control_bits };
        let evicted = std::mem::replace(&mut set[victim], entry);
        if evicted.packets > 0 {
            self.export(&evicted, FlowEndReason::LackOfResources);
        }
    }

    /// Exports the flows whose time is over. Returns whether there is work that does not wait: sets that are
    /// due, or the flows at the end.
    #[inline]
    pub(in super::super) fn poll(&mut self) -> bool {
        if self.flushed.is_some() {
            return self.flush();
        }
        self.polls = self.polls.wrapping_add(1);
        if self.due_sets > 0 || self.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.begin();
            self.scan();
        }
        self.due_sets > 0
    }

    /// Looks at as many sets as the time since the last look is a part of [`SCAN_MS`], at most
    /// [`SETS_PER_POLL`]; the others stay due.
    pub(super) fn scan(&mut self) {
        let sets = self.entries.len() / WAYS;
        let passed_ms = self.now_ms - self.scanned_ms;
        let newly_due = (sets as u64 * passed_ms / SCAN_MS).min(sets as u64) as usize;
        if newly_due > 0 {
            self.scanned_ms = self.now_ms;
            self.due_sets = (self.due_sets + newly_due).min(sets);
        }
        let looked_at = self.due_sets.min(SETS_PER_POLL);
        self.due_sets -= looked_at;
        for _ in 0..looked_at {
            let first = self.next_set * WAYS;
            self.next_set = (self.next_set + 1) & (sets - 1);
            for place in first..first + WAYS {
                let entry = self.entries[place];
                if let Some(reason) = self.end_of(&entry) {
                    self.entries[place].packets = 0;
                    self.export(&entry, reason);
                }
            }
        }
    }

    /// The reason to export a flow now, if there is one.
    fn end_of(&self, entry: &FlowEntry) -> Option<FlowEndReason> {
        let idle_ms = self.now_ms - entry.last_ms;
        match () {
            () if entry.packets == 0 => None,
            () if entry.control_bits & CLOSING_FLAGS != 0 && idle_ms >= CLOSED_MS.min(self.idle_ms) => {
                Some(FlowEndReason::EndOfFlow)
            }
            () if idle_ms >= self.idle_ms => Some(FlowEndReason::IdleTimeout),
            () if self.now_ms - entry.first_ms >= self.active_ms => Some(FlowEndReason::ActiveTimeout),
            () => None,
        }
    }

    fn export(&mut self, entry: &FlowEntry, reason: FlowEndReason) {
        if self.ring.push(entry.record(reason)).is_err() {
            self.not_sent.add(FlowSums { flows: 1, packets: entry.packets, octets: entry.octets });
        }
    }

    /// Ends the counting: no packets follow, and all flows are exported by the next polls.
    pub(in super::super) fn retire(&mut self) {
        self.flushed.get_or_insert(0);
    }

    /// Returns whether flows are still to be exported at the end.
    pub(in super::super) fn is_flushing(&self) -> bool {
        self.flushed.is_some_and(|flushed| flushed < self.entries.len())
    }

    /// Exports some of the flows at the end, as far as the ring has room. Returns whether there were any.
    fn flush(&mut self) -> bool {
        let begin = self.flushed.unwrap_or(0);
        let mut next = begin;
        for _ in 0..FLUSH_MAX {
            let Some(entry) = self.entries.get(next).copied() else { break };
            if entry.packets > 0 {
                if self.ring.is_full() && !self.ring.is_abandoned() {
                    break;
                }
                self.entries[next].packets = 0;
                self.export(&entry, FlowEndReason::ForcedEnd);
            }
            next += 1;
        }
        self.flushed = Some(next);
        next > begin
    }
}

#[cfg(test)]
impl FlowCache {
    /// Sets the time of the packets and polls that follow.
    pub(super) fn set_now_ms(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Takes packets again after the end.
    pub(super) fn resume(&mut self) {
        self.flushed = None;
    }
}

/// The flows that are left when the worker gives up are not sent.
impl Drop for FlowCache {
    fn drop(&mut self) {
        for entry in self.entries.iter().filter(|entry| entry.packets > 0) {
            self.not_sent.add(FlowSums { flows: 1, packets: entry.packets, octets: entry.octets });
        }
    }
}

/// The octets of a packet: of IP its length without the padding of the frame, else those of the frame.
#[inline]
fn octets(frame: &[u8], parsed: &Parsed) -> u64 {
    let begin = usize::from(parsed.l3_offset);
    let word = |at: usize| {
        frame.get(begin + at..begin + at + 2).map_or(0, |word| u64::from(word[0]) << 8 | u64::from(word[1]))
    };
    let there = frame.len().saturating_sub(begin) as u64;
    let length = match parsed.key.layers {
        layers if layers.contains(Layers::IPV4) => word(2),
        // The header is not in the length.
        layers if layers.contains(Layers::IPV6) && word(4) > 0 => word(4) + IPV6_HEADER_OCTETS,
        layers if layers.contains(Layers::IPV6) => 0,
        _ => return frame.len() as u64,
    };
    // A length of 0 is that of a jumbogram, or of a frame that is to be cut.
    if length > 0 { length.min(there) } else { there }
}

const IPV6_HEADER_OCTETS: u64 = 40;

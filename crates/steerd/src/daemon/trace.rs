//! Traces: the ways that packets really took through device and worker, each beside the way that `explain`
//! computes for it. A difference is logged and counted. Of a soft NIC the packets are shown too that no
//! worker receives; other devices only count these.

mod way;

use std::io::Write;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Instant;

use softnic::{FrameEnd, WatchedFrame};
use worker::sinks::trace::{KnownProgram, TraceFilter, TraceOptions, TracedPacket, Tracer};

use crate::api::model::TraceLine;
use crate::daemon::observer::Observer;
use way::Way;

/// The most differences of one trace that are logged.
const LOGGED_MAX: u64 = 5;

/// The counts of all traces since the start.
#[derive(Debug, Default)]
pub(crate) struct TraceTotals {
    packets: AtomicU64,
    differing: AtomicU64,
}

impl TraceTotals {
    /// Returns the number of packets that were shown.
    pub(crate) fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// Returns how many of them took another way than `explain` computes.
    pub(crate) fn differing(&self) -> u64 {
        self.differing.load(Relaxed)
    }
}

/// Writes a line for each packet.
pub(super) struct TraceWriter {
    name: String,
    totals: Arc<TraceTotals>,
    only_dropped: bool,
    /// Dropped before the stream: a client that sees the stream end may begin another trace at once.
    watch: Option<Watch>,
    stream: Box<dyn Write + Send>,
    lines: u64,
    differing: u64,
    /// The packets that were left out since the last line.
    left_out: u64,
    /// From when on packets are shown: the first program is known.
    since: Option<Instant>,
}

/// Somebody watches the frames of the device already.
#[derive(Debug, thiserror::Error)]
#[error(
    "another trace is running: one at a time can see the packets that no worker receives (hint: try again later)"
)]
pub(super) struct AlreadyWatched;

impl TraceWriter {
    /// A trace with this name in the log.
    ///
    /// # Errors
    /// On a soft NIC: another trace is running.
    pub(super) fn new(
        name: &str,
        stream: Box<dyn Write + Send>,
        observer: &Arc<Observer>,
        options: &TraceOptions,
    ) -> Result<Self, AlreadyWatched> {
        let watch = observer.soft_nic().is_some().then(|| Watch::begin(observer, options)).transpose()?;
        Ok(Self {
            name: name.to_owned(),
            totals: Arc::clone(&observer.traces),
            only_dropped: options.only_dropped,
            watch,
            stream,
            lines: 0,
            differing: 0,
            left_out: 0,
            since: None,
        })
    }

    /// Writes a line; `false`: nobody reads it. `None`: it is not known by which program the packet came.
    fn write(&mut self, line: Option<TraceLine>) -> bool {
        let Some(mut line) = line else {
            self.left_out += 1;
            return true;
        };
        self.lines += 1;
        line.number = self.lines;
        line.left_out = std::mem::take(&mut self.left_out);
        self.totals.packets.fetch_add(1, Relaxed);
        if !line.differences.is_empty() {
            self.totals.differing.fetch_add(1, Relaxed);
            self.differing += 1;
            if self.differing <= LOGGED_MAX {
                let differences: Vec<String> = line.differences.iter().map(ToString::to_string).collect();
                tracing::error!(
                    "{}: packet {} took another way than computed: {}",
                    self.name,
                    line.packet,
                    differences.join("; ")
                );
            }
        }
        let Ok(mut text) = serde_json::to_vec(&line) else { return false };
        text.push(b'\n');
        self.stream.write_all(&text).is_ok()
    }
}

/// The line of a packet. One that was on its way while a policy was replaced may have come to its worker by
/// one program and been decided by the other.
fn line_of_packet(packet: &TracedPacket, programs: &[KnownProgram]) -> Option<TraceLine> {
    let possible = || programs.iter().rev().filter(|known| known.can_have(packet.decided_at));
    // The number of a program that was not installed is used again.
    let decided = possible().filter(|known| known.map.generation() == packet.generation);
    first_as_computed(decided.map(|decided| {
        let others = possible().filter(|known| !Arc::ptr_eq(&known.map, &decided.map));
        let ways = std::iter::once(decided).chain(others).map(|known| Way::of(&known.program, packet));
        let way = first_of(ways, |way| way.differences.is_empty());
        way.map_or_else(TraceLine::default, |way| way.line(&decided.program, &decided.map, packet))
    }))
}

fn first_as_computed(lines: impl Iterator<Item = TraceLine>) -> Option<TraceLine> {
    first_of(lines, |line| line.differences.is_empty())
}

/// The first that is right, or the first of all.
fn first_of<T>(mut all: impl Iterator<Item = T>, is_right: impl Fn(&T) -> bool) -> Option<T> {
    let first = all.next()?;
    if is_right(&first) { Some(first) } else { all.find(is_right).or(Some(first)) }
}

/// The line of a frame that no worker received, by the newest program that has it so.
fn line_of_frame(frame: &WatchedFrame, programs: &[KnownProgram]) -> Option<TraceLine> {
    let possible = programs.iter().rev().filter(|known| known.can_have(frame.noted_at));
    first_as_computed(possible.map(|known| way::line_of_frame(&known.program, known.map.generation(), frame)))
}

impl Tracer for TraceWriter {
    fn collect(&mut self) {
        if let Some(watch) = &mut self.watch {
            self.left_out += watch.collect();
        }
    }

    fn show_collected(&mut self, programs: &[KnownProgram]) -> bool {
        if self.since.is_none() {
            self.since = programs.first().map(|known| known.since);
            // The watch began before.
            self.left_out = 0;
        }
        let Some(mut watch) = self.watch.take() else { return true };
        let since = self.since;
        let mut shown =
            watch.frames.drain(..).filter(|frame| since.is_some_and(|since| since <= frame.noted_at));
        let wants_more = shown.all(|frame| self.write(line_of_frame(&frame, programs)));
        drop(shown);
        self.watch = Some(watch);
        wants_more
    }

    fn show(&mut self, packet: &TracedPacket, programs: &[KnownProgram]) -> bool {
        let line = line_of_packet(packet, programs);
        // The worker cannot know whether a kernel sink gets a packet that is left to the kernel.
        let is_wanted = !self.only_dropped || line.as_ref().is_none_or(|line| line.dropped.is_some());
        !is_wanted || self.write(line)
    }

    fn left_out(&mut self, packets: u64) {
        self.left_out += packets;
    }
}

/// The frames of a soft NIC that no worker receives. Dropping it ends the watch.
struct Watch {
    /// Weak, because a trace whose client does not read may outlive the device.
    observer: Weak<Observer>,
    /// The ports that are watched.
    ports: Vec<u8>,
    frames: Vec<WatchedFrame>,
    /// The frames of one port, on their way to the others.
    taken: Vec<WatchedFrame>,
}

impl Watch {
    fn begin(observer: &Arc<Observer>, options: &TraceOptions) -> Result<Self, AlreadyWatched> {
        let observer_of_watch = Arc::downgrade(observer);
        let (ports, frames, taken) = (Vec::new(), Vec::new(), Vec::new());
        let mut watch = Self { observer: observer_of_watch, ports, frames, taken };
        for port in &observer.opened.ports {
            let filter = TraceFilter::new(options);
            let choose = move |frame: &[u8], end| filter.choose(frame, end != FrameEnd::Unmatched);
            if !observer.soft_nic().is_some_and(|nic| nic.watch(*port, Box::new(choose))) {
                return Err(AlreadyWatched);
            }
            watch.ports.push(*port);
        }
        Ok(watch)
    }

    /// Takes the frames since the last call; returns how many were left out.
    fn collect(&mut self) -> u64 {
        let Some(observer) = self.observer.upgrade() else { return 0 };
        let mut left_out = 0;
        for port in &self.ports {
            left_out += observer.soft_nic().map_or(0, |nic| nic.watched(*port, &mut self.taken));
            self.frames.append(&mut self.taken);
        }
        left_out
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(observer) = self.observer.upgrade() else { return };
        self.ports.iter().for_each(|port| observer.soft_nic().iter().for_each(|nic| nic.end_watch(*port)));
    }
}

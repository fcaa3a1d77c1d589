//! Traces: the ways that packets really took through device and worker, each beside the way that `explain`
//! computes for it. A difference is logged and counted. Of a soft NIC the packets are shown too that no
//! worker receives; other devices only count these. A trace is written as lines of JSON, or as pcapng with
//! the reason of each dropped packet.

mod way;

use std::io::Write;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Instant;

use softnic::{FrameEnd, WatchedFrame, WatchedFrames};
use worker::sinks::capture::{CommentedPacket, CommentedSection};
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

/// The form in which a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceForm {
    /// A line of JSON for each packet.
    Lines,
    /// A pcapng section, in which each packet has the reason for which it was dropped.
    Pcapng,
}

/// Writes each packet.
pub(super) struct TraceWriter {
    name: String,
    form: TraceForm,
    /// The most bytes of a packet in a pcapng section.
    snap_bytes: u32,
    /// For its header.
    hardware: String,
    /// `None`: it has not begun, or there is none.
    section: Option<CommentedSection>,
    blocks: Vec<u8>,
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
        form: TraceForm,
        stream: Box<dyn Write + Send>,
        observer: &Arc<Observer>,
        options: &TraceOptions,
    ) -> Result<Self, AlreadyWatched> {
        let watch = observer.soft_nic().is_some().then(|| Watch::begin(observer, options)).transpose()?;
        Ok(Self {
            name: name.to_owned(),
            form,
            snap_bytes: options.frame_bytes,
            hardware: format!("RDMA device {}", observer.opened.device.name()),
            section: None,
            blocks: Vec::new(),
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

    /// Begins a pcapng section, unless it has begun; `false`: nobody reads it.
    fn begin_section(&mut self) -> bool {
        if self.form == TraceForm::Lines || self.section.is_some() {
            return true;
        }
        self.blocks.clear();
        let comment = "packets that were dropped or lost, each with the reason";
        self.section =
            Some(CommentedSection::begin(&self.hardware, self.snap_bytes, comment, &mut self.blocks));
        self.stream.write_all(&self.blocks).is_ok()
    }

    /// Writes a line with the bytes of its packet; `false`: nobody reads it. `None`: it is not known by which
    /// program the packet came.
    fn write(&mut self, line: Option<TraceLine>, frame: &[u8]) -> bool {
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
        match &mut self.section {
            Some(section) => {
                let place = match line.line {
                    0 => String::new(),
                    number => format!(" (line {number})"),
                };
                let reason = line.dropped.as_deref().unwrap_or("none");
                let packet = CommentedPacket {
                    rule: &line.rule,
                    timestamp_ns: line.received_ns.or(line.decided_ns).unwrap_or(0),
                    original_bytes: line.bytes,
                    bytes: frame,
                    comment: &format!("dropped: {reason}, rule {}{place}", line.rule),
                    missing: line.left_out,
                };
                self.blocks.clear();
                section.packet(&packet, &mut self.blocks);
                self.stream.write_all(&self.blocks).is_ok()
            }
            None => {
                let Ok(mut text) = serde_json::to_vec(&line) else { return false };
                text.push(b'\n');
                self.stream.write_all(&text).is_ok()
            }
        }
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
        if !self.begin_section() {
            return false;
        }
        if self.since.is_none() {
            self.since = programs.first().map(|known| known.since);
            // The watch began before.
            self.left_out = 0;
        }
        let Some(mut watch) = self.watch.take() else { return true };
        let since = self.since;
        let is_known = |frame: &WatchedFrame| since.is_some_and(|since| since <= frame.noted_at);
        let wants_more = watch
            .ports
            .iter()
            .flat_map(|port| port.frames.iter())
            .filter(|(frame, _)| is_known(frame))
            .all(|(frame, bytes)| self.write(line_of_frame(frame, programs), bytes));
        watch.ports.iter_mut().for_each(|port| port.frames.clear());
        self.watch = Some(watch);
        wants_more
    }

    fn show(&mut self, packet: &TracedPacket, frame: &[u8], programs: &[KnownProgram]) -> bool {
        let line = line_of_packet(packet, programs);
        // The worker cannot know whether a kernel sink gets a packet that is left to the kernel.
        let is_wanted = !self.only_dropped || line.as_ref().is_none_or(|line| line.dropped.is_some());
        !is_wanted || self.write(line, frame)
    }

    fn left_out(&mut self, packets: u64) {
        self.left_out += packets;
    }
}

/// The frames of a soft NIC that no worker receives. Dropping it ends the watch.
struct Watch {
    /// Weak, because a trace whose client does not read may outlive the device.
    observer: Weak<Observer>,
    ports: Vec<WatchedPort>,
}

/// A port that is watched, with the frames since the last look.
struct WatchedPort {
    port: u8,
    frames: WatchedFrames,
}

impl Watch {
    fn begin(observer: &Arc<Observer>, options: &TraceOptions) -> Result<Self, AlreadyWatched> {
        let mut watch = Self { observer: Arc::downgrade(observer), ports: Vec::new() };
        for port in &observer.opened.ports {
            let filter = TraceFilter::new(options);
            let choose = move |frame: &[u8], end| filter.choose(frame, end != FrameEnd::Unmatched);
            let bytes = options.frame_bytes;
            if !observer.soft_nic().is_some_and(|nic| nic.watch(*port, Box::new(choose), bytes)) {
                return Err(AlreadyWatched);
            }
            watch.ports.push(WatchedPort { port: *port, frames: WatchedFrames::default() });
        }
        Ok(watch)
    }

    /// Takes the frames since the last call; returns how many were left out.
    fn collect(&mut self) -> u64 {
        let Some(observer) = self.observer.upgrade() else { return 0 };
        let mut left_out = 0;
        for WatchedPort { port, frames } in &mut self.ports {
            left_out += observer.soft_nic().map_or(0, |nic| nic.watched(*port, frames));
        }
        left_out
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(observer) = self.observer.upgrade() else { return };
        let ports = self.ports.iter().map(|watched| watched.port);
        ports.for_each(|port| observer.soft_nic().iter().for_each(|nic| nic.end_watch(port)));
    }
}

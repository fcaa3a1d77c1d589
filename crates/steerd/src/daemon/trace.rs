//! Traces: the ways that packets really took through device and worker, each beside the way that `explain`
//! computes for it. A difference is logged and counted. Of a soft NIC the packets are shown too that no
//! worker receives; other devices only count these.

mod way;

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use packet::DeepKey;
use program::Program;
use softnic::{FrameEnd, SoftNic, WatchedFrame};
use worker::SinkMap;
use worker::sinks::trace::{TraceOptions, TracedPacket, Tracer};

use crate::api::model::TraceLine;
use crate::daemon::observer::Observer;
use way::Way;

/// The most programs that packets of a trace can be of: those that workers have.
const PROGRAMS_MAX: usize = 4;
/// The most differences of one trace that are logged.
const LOGGED_MAX: u64 = 5;

/// What all traces have shown.
#[derive(Debug, Default)]
pub(crate) struct TraceTotals {
    packets: AtomicU64,
    differing: AtomicU64,
}

impl TraceTotals {
    /// The packets that were shown.
    pub(crate) fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// Those of them that took another way than `explain` computes.
    pub(crate) fn differing(&self) -> u64 {
        self.differing.load(Relaxed)
    }
}

/// A program that workers may have, and the places of its sinks.
struct Announced {
    map: Arc<SinkMap>,
    program: Arc<Program>,
}

/// Writes a line for each packet.
pub(super) struct TraceWriter {
    name: String,
    stream: Box<dyn Write + Send>,
    /// The newest last.
    programs: VecDeque<Announced>,
    observer: Arc<Observer>,
    watch: Option<Watch>,
    lines: u64,
    differing: u64,
}

/// Somebody watches the frames of the device already.
#[derive(Debug, thiserror::Error)]
#[error(
    "another trace is running: one at a time can see the packets that no worker receives (hint: try again later)"
)]
pub(super) struct AlreadyWatched;

impl TraceWriter {
    pub(super) fn new(
        name: &str,
        stream: Box<dyn Write + Send>,
        observer: &Arc<Observer>,
        options: &TraceOptions,
    ) -> Result<Self, AlreadyWatched> {
        let watch = observer.soft_nic().is_some().then(|| Watch::begin(observer, options)).transpose()?;
        let (programs, observer) = (VecDeque::new(), Arc::clone(observer));
        Ok(Self { name: name.to_owned(), stream, programs, observer, watch, lines: 0, differing: 0 })
    }

    /// The line of a packet. A packet that was on its way while a policy was replaced may have come to its
    /// worker by one program and been decided by the other.
    fn line(&self, packet: &TracedPacket) -> Option<TraceLine> {
        let decided = self.programs.iter().find(|known| known.map.generation() == packet.generation)?;
        let others = self.programs.iter().rev().filter(|known| !Arc::ptr_eq(&known.map, &decided.map));
        let ways = std::iter::once(decided).chain(others).map(|known| Way::of(&known.program, packet));
        let way = ways.min_by_key(|way| way.differences.len())?;
        Some(way.line(&decided.program, &decided.map, packet))
    }

    /// The line of a frame that no worker received, by the program that has it so, or the newest.
    fn line_of_frame(&self, frame: &WatchedFrame) -> Option<TraceLine> {
        let lines = self.programs.iter().rev();
        let lines = lines.map(|known| way::line_of_frame(&known.program, known.map.generation(), frame));
        lines.min_by_key(|line| line.differences.len())
    }

    /// Writes a line; `false`: nobody reads it.
    fn write(&mut self, line: Option<TraceLine>) -> bool {
        let Some(mut line) = line else { return true };
        self.lines += 1;
        line.number = self.lines;
        let totals = &self.observer.traces;
        totals.packets.fetch_add(1, Relaxed);
        if !line.differences.is_empty() {
            totals.differing.fetch_add(1, Relaxed);
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

impl Tracer for TraceWriter {
    fn announce(&mut self, map: &Arc<SinkMap>, program: &Arc<Program>) {
        self.programs.retain(|known| known.map.generation() != map.generation());
        self.programs.push_back(Announced { map: Arc::clone(map), program: Arc::clone(program) });
        if self.programs.len() > PROGRAMS_MAX {
            self.programs.pop_front();
        }
    }

    fn trace(&mut self, packet: &TracedPacket) -> bool {
        let line = self.line(packet);
        self.write(line)
    }

    fn poll(&mut self) -> bool {
        let Some(mut watch) = self.watch.take() else { return true };
        let mut is_read = true;
        watch.take(|frame| {
            let line = self.line_of_frame(frame);
            is_read = self.write(line);
            is_read
        });
        self.watch = Some(watch);
        is_read
    }
}

/// The frames of a soft NIC that no worker receives. Dropping it ends the watch.
struct Watch {
    observer: Arc<Observer>,
    /// The ports that are watched.
    ports: Vec<u8>,
    frames: Vec<WatchedFrame>,
}

impl Watch {
    fn begin(observer: &Arc<Observer>, options: &TraceOptions) -> Result<Self, AlreadyWatched> {
        let mut watch = Self { observer: Arc::clone(observer), ports: Vec::new(), frames: Vec::new() };
        for port in &observer.opened.ports {
            let (options, mut left) = (options.clone(), 0);
            let filter = move |key: &DeepKey, end: FrameEnd| {
                let is_wanted = !(options.only_dropped && end == FrameEnd::Unmatched)
                    && options.matches.as_ref().is_none_or(|matches| matches.matches_deep(key));
                if is_wanted {
                    left = if left == 0 { options.one_in } else { left } - 1;
                }
                is_wanted && left + 1 == options.one_in
            };
            if !watch.nic().is_some_and(|nic| nic.watch(*port, Box::new(filter))) {
                return Err(AlreadyWatched);
            }
            watch.ports.push(*port);
        }
        Ok(watch)
    }

    fn nic(&self) -> Option<&SoftNic> {
        self.observer.soft_nic()
    }

    /// Passes the frames since the last call on, until `each` returns `false`.
    fn take(&mut self, mut each: impl FnMut(&WatchedFrame) -> bool) {
        let mut frames = std::mem::take(&mut self.frames);
        for port in &self.ports {
            self.nic().iter().for_each(|nic| _ = nic.watched(*port, &mut frames));
            if !frames.iter().all(&mut each) {
                break;
            }
        }
        self.frames = frames;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ports.iter().for_each(|port| self.nic().iter().for_each(|nic| nic.end_watch(*port)));
    }
}

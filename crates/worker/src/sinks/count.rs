//! The kind `count`: packets are counted by size, and on request by flow; flows are exported on request.
//! Counting drops nothing, and flows that cannot be exported are counted as such.

mod export;
mod flow;
mod sizes;
mod sketch;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use packet::PacketFlow;
use program::{CountSink, FlowExport, Program, Verdict};

pub use export::ExportStatistics;
pub(crate) use export::cache_bytes;
pub use sizes::PacketSizes;

use self::export::{ExportHub, FlowCache, RuleOfFlow};
use self::flow::Packed;
use self::sizes::{BatchSizes, SizeCounters};
use self::sketch::{Counted, Counters, Sketch};
use super::{Environment, Hub, Opened, SinkError, SinkMap, SinkStatus};
use crate::sink::{Deliveries, FramesBack, Sink, SinkCounters};

/// A flow with many packets. Its packets are at most `packets` and at least `packets - error`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopFlow {
    /// The addresses of the flow.
    pub flow: PacketFlow,
    /// The packets of the flow, or up to `error` more.
    pub packets: u64,
    /// The number of the packets that may be of other flows.
    pub error: u64,
    /// The bytes of the flow, or less: without those of packets that came before a worker began to count the
    /// flow.
    pub bytes: u64,
}

struct Count {
    counters: Arc<SinkCounters>,
    sizes: Arc<SizeCounters>,
    sketch: Option<Sketch>,
}

impl Sink for Count {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        let (mut count, mut bytes, mut sizes) = (0, 0, BatchSizes::default());
        for delivery in packets.iter() {
            count += 1;
            bytes += delivery.bytes.len() as u64;
            sizes.add(delivery.bytes.len());
        }
        self.counters.offered(count, bytes);
        self.sizes.add(&sizes, count, bytes);
        if let Some(sketch) = &mut self.sketch {
            for delivery in packets.iter() {
                let flow = flow::pack(&packet::parse(delivery.bytes).key);
                sketch.count(&flow, delivery.bytes.len() as u64);
            }
        }
        self.counters.worker.delivered(count, bytes);
    }
}

/// The endpoint with an export. It also gets the packets that the worker drops, and counts them in flows
/// only.
struct ExportingCount {
    count: Count,
    flows: FlowCache,
}

impl Sink for ExportingCount {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        self.flows.begin();
        let (mut count, mut bytes, mut sizes) = (0, 0, BatchSizes::default());
        for delivery in packets.iter() {
            let is_dropped = match delivery.outcome.verdict {
                Verdict::Deliver(_) => false,
                Verdict::Drop => true,
                Verdict::Kernel | Verdict::Filtered => continue,
            };
            let (frame, generation) = (delivery.bytes, delivery.generation);
            let parsed = packet::parse(frame);
            self.flows.count(
                frame,
                &parsed,
                RuleOfFlow { generation, rule: delivery.outcome.rule.0, is_dropped },
            );
            if is_dropped {
                continue;
            }
            count += 1;
            bytes += frame.len() as u64;
            sizes.add(frame.len());
            if let Some(sketch) = &mut self.count.sketch {
                sketch.count(&flow::pack(&parsed.key), frame.len() as u64);
            }
        }
        let Count { counters, sizes: size_counters, .. } = &self.count;
        counters.offered(count, bytes);
        size_counters.add(&sizes, count, bytes);
        counters.worker.delivered(count, bytes);
    }

    fn poll(&mut self, _frames: &mut FramesBack<'_>) -> bool {
        self.flows.poll()
    }

    fn needs_poll(&self) -> bool {
        true
    }

    /// The sink has no frames, but is polled until its flows are exported.
    fn holds_frames(&self) -> bool {
        self.flows.is_flushing()
    }

    fn retire(&mut self) {
        self.flows.retire();
    }
}

struct CountHub {
    sizes: Vec<Arc<SizeCounters>>,
    export: Option<ExportHub>,
    /// The counters by worker; `None` without `top_flows`.
    flows: Option<Vec<Arc<Counters>>>,
}

impl Hub for CountHub {
    fn announce(&self, map: &Arc<SinkMap>, program: &Arc<Program>) {
        if let Some(export) = &self.export {
            export.announce(map, program);
        }
    }

    fn release_others(&self, map: &Arc<SinkMap>) {
        if let Some(export) = &self.export {
            export.release_others(map);
        }
    }

    fn status(&self) -> SinkStatus {
        self.export.as_ref().map(ExportHub::status).unwrap_or_default()
    }

    fn export(&self) -> Option<ExportStatistics> {
        self.export.as_ref().map(ExportHub::statistics)
    }

    fn packet_sizes(&self) -> Option<PacketSizes> {
        Some(PacketSizes::sum(self.sizes.iter().map(AsRef::as_ref)))
    }

    fn top_flows(&self) -> Option<Vec<TopFlow>> {
        let workers = self.flows.as_ref()?;
        let read: Vec<_> = workers.iter().map(|counters| (counters.read(), counters.len())).collect();
        Some(merge(&read))
    }
}

/// The flows of all workers, those with most packets first.
///
/// A worker without a counter for a flow has received at most as many of its packets as the lowest of its
/// counters shows, or none if it has unused counters. So this number is added to packets and error, and the
/// promise of the sketch holds for the sum. Every flow with more than `n / m` of all `n` packets, `m`
/// counters per worker, is in the result: it has more than `n_w / m` on some worker `w`.
fn merge(workers: &[(Vec<Counted>, usize)]) -> Vec<TopFlow> {
    let unseen = |(counted, counters): &(Vec<Counted>, usize)| {
        let lowest = counted.iter().map(|counted| counted.packets).min();
        lowest.filter(|_| counted.len() == *counters).unwrap_or(0)
    };
    let unseen: Vec<u64> = workers.iter().map(unseen).collect();
    let all_unseen: u64 = unseen.iter().sum();
    let most = workers.iter().map(|(counted, _)| counted.len()).max().unwrap_or(0);
    let mut sums: HashMap<Packed, TopFlow> = HashMap::with_capacity(most);
    for ((counted, _), unseen) in workers.iter().zip(&unseen) {
        for Counted { flow, packets, error, bytes } in counted {
            let sum = sums.entry(*flow).or_insert_with(|| TopFlow {
                flow: flow::unpack(*flow),
                packets: all_unseen,
                error: all_unseen,
                bytes: 0,
            });
            sum.packets += packets - unseen.min(packets);
            sum.error = sum.error - unseen + error;
            sum.bytes += bytes;
        }
    }
    let mut flows: Vec<TopFlow> = sums.into_values().collect();
    flows.sort_unstable_by_key(|flow| (Reverse((flow.packets, flow.bytes)), flow.flow));
    flows
}

/// Warns if the collector's host is not known now: it is looked up again and again.
pub(super) fn check(name: &str, options: &CountSink) {
    if let Some(FlowExport { collector, .. }) = &options.export
        && let Err(error) = export::look_up(collector)
    {
        tracing::warn!("sink `{name}`: flows could not be exported to {collector} now: {error}");
    }
}

pub(super) fn open(
    name: &str,
    options: &CountSink,
    environment: &Environment<'_>,
) -> Result<Opened, SinkError> {
    let mut opened = open_without_export(options, environment.workers());
    let Some(wanted) = &options.export else { return Ok(opened.into()) };
    // With several ports a worker does not know which one a packet has come by.
    let ingress_interface = match environment.stations {
        [station] => station.interface_index.unwrap_or(0),
        _ => 0,
    };
    let (hub, caches) = export::start(name, wanted, ingress_interface, environment.workers())
        .map_err(|source| SinkError::Export { sink: name.to_owned(), source })?;
    opened.hub.export = Some(hub);
    opened.caches = caches.into_iter().map(Some).collect();
    Ok(opened.into())
}

/// An open sink before its endpoints are made.
struct OpenedCount {
    hub: CountHub,
    counts: Vec<Count>,
    /// The flows to be exported, by worker.
    caches: Vec<Option<FlowCache>>,
}

impl From<OpenedCount> for Opened {
    fn from(OpenedCount { hub, counts, caches }: OpenedCount) -> Self {
        let counters = counts.iter().map(|count| Arc::clone(&count.counters)).collect();
        let endpoint = |(count, flows): (Count, Option<FlowCache>)| match flows {
            Some(flows) => Box::new(ExportingCount { count, flows }) as Box<dyn Sink>,
            None => Box::new(count),
        };
        let endpoints = counts.into_iter().zip(caches).map(endpoint).collect();
        Self { endpoints, hub: Box::new(hub), counters, transmit: Vec::new() }
    }
}

fn open_without_export(options: &CountSink, workers: usize) -> OpenedCount {
    let counters: Vec<Arc<SinkCounters>> = (0..workers).map(|_| Arc::default()).collect();
    let sizes: Vec<Arc<SizeCounters>> = (0..workers).map(|_| Arc::default()).collect();
    let has_flows = options.top_flows > 0;
    let sketches: Vec<Option<Sketch>> =
        (0..workers).map(|_| has_flows.then(|| Sketch::new(options.top_flows))).collect();
    let flows = has_flows.then(|| sketches.iter().flatten().map(Sketch::counters).collect());
    let count = |((counters, sizes), sketch): ((Arc<SinkCounters>, &Arc<SizeCounters>), _)| Count {
        counters,
        sizes: Arc::clone(sizes),
        sketch,
    };
    let counts = counters.into_iter().zip(&sizes).zip(sketches).map(count).collect();
    let hub = CountHub { sizes, export: None, flows };
    OpenedCount { hub, counts, caches: (0..workers).map(|_| None).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(flow: u64, packets: u64, error: u64) -> Counted {
        Counted { flow: [flow << 32, 0, 0, 0, 1], packets, error, bytes: 100 * (packets - error) }
    }

    #[test]
    fn flows_of_several_workers_are_added_up_with_their_errors() {
        let workers = [
            (vec![counted(1, 50, 0), counted(2, 10, 4)], 2),
            (vec![counted(1, 30, 7), counted(3, 20, 20)], 2),
            (vec![counted(2, 5, 0)], 2),
        ];
        let merged = merge(&workers);
        let flow = |flow: u64| flow::unpack(counted(flow, 0, 0).flow);
        let expected = [
            // 20 packets of flow 2 may have been on the second worker.
            (1, 80, 7, 7300),
            (2, 10 + 20 + 5, 4 + 20, 1100),
            // 10 of flow 3 on the first; the third has an unused counter.
            (3, 20 + 10, 20 + 10, 0),
        ];
        let expected: Vec<TopFlow> = expected
            .into_iter()
            .map(|(id, packets, error, bytes)| TopFlow { flow: flow(id), packets, error, bytes })
            .collect();
        assert_eq!(merged, expected);
    }
}

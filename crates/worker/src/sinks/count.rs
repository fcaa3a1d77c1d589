//! The kind `count`: packets are counted by size, and on request by flow. Nothing leaves the worker, so
//! nothing is dropped.

mod flow;
mod sizes;
mod sketch;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use program::CountSink;

pub use flow::FlowId;
pub use sizes::PacketSizes;

use self::flow::Packed;
use self::sizes::{BatchSizes, SizeCounters};
use self::sketch::{Counted, Counters, Sketch};
use super::{Hub, Opened};
use crate::sink::{Deliveries, Sink, SinkCounters};

/// A flow with many packets. Its packets are at most `packets` and at least `packets - error`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopFlow {
    /// The addresses of the flow.
    pub flow: FlowId,
    /// The packets of the flow, or up to `error` more.
    pub packets: u64,
    /// How many of the packets may be of other flows.
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

struct CountHub {
    sizes: Vec<Arc<SizeCounters>>,
    /// The counters by worker; `None` without `top_flows`.
    flows: Option<Vec<Arc<Counters>>>,
}

impl Hub for CountHub {
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
                flow: FlowId::unpack(*flow),
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

pub(super) fn open(options: &CountSink, workers: usize) -> Opened {
    let counters: Vec<Arc<SinkCounters>> = (0..workers).map(|_| Arc::default()).collect();
    let sizes: Vec<Arc<SizeCounters>> = (0..workers).map(|_| Arc::default()).collect();
    let has_flows = options.top_flows > 0;
    let sketches: Vec<Option<Sketch>> =
        (0..workers).map(|_| has_flows.then(|| Sketch::new(options.top_flows))).collect();
    let flows = has_flows.then(|| sketches.iter().flatten().map(Sketch::counters).collect());
    let endpoint = |((counters, sizes), sketch): ((&Arc<SinkCounters>, &Arc<SizeCounters>), _)| {
        Box::new(Count { counters: Arc::clone(counters), sizes: Arc::clone(sizes), sketch }) as Box<dyn Sink>
    };
    Opened {
        endpoints: counters.iter().zip(&sizes).zip(sketches).map(endpoint).collect(),
        hub: Box::new(CountHub { sizes, flows }),
        counters,
        transmit: Vec::new(),
    }
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
        let flow = |flow: u64| FlowId::unpack(counted(flow, 0, 0).flow);
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

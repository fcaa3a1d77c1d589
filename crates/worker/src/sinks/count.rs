//! The kind `count`: packets are counted only.

use std::sync::Arc;

use program::CountSink;

use super::{NoHub, Opened};
use crate::sink::{Deliveries, Sink, SinkCounters};

struct Count(Arc<SinkCounters>);

impl Sink for Count {
    fn run(&mut self, packets: &mut Deliveries<'_>) {
        let (mut count, mut bytes) = (0, 0);
        for delivery in packets.iter() {
            count += 1;
            bytes += delivery.bytes.len() as u64;
        }
        self.0.offered(count, bytes);
        self.0.worker.delivered(count, bytes);
    }
}

pub(super) fn open(_options: &CountSink, workers: usize) -> Opened {
    let counters: Vec<Arc<SinkCounters>> = (0..workers).map(|_| Arc::default()).collect();
    let endpoint = |counters: &Arc<SinkCounters>| Box::new(Count(Arc::clone(counters))) as Box<dyn Sink>;
    Opened { hub: Box::new(NoHub), endpoints: counters.iter().map(endpoint).collect(), counters }
}

//! Where packets go once their rule is known. A worker without a sink only counts. Sinks run on the
//! worker's thread, a batch at a time, and keep its rules: no lock, allocation, system call or log
//! line per packet.

use program::Outcome;
use verbs::{FlowTag, FramePool};

use crate::batch::Batch;

/// Takes a worker's packets.
pub trait Sink: Send {
    /// Called once per turn that received something, with the packets that a rule has decided.
    fn run(&mut self, deliveries: Deliveries<'_>);
}

/// One decided packet.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'b> {
    /// Which rule, and what it says.
    pub outcome: Outcome,
    /// The tag that its flow gave it; 0 where it has none, or the device knows no tags.
    pub tag: FlowTag,
    /// The packet; its buffer is posted again when the sink returns.
    pub bytes: &'b [u8],
    /// The device's clock at reception, where timestamps were asked for.
    pub timestamp: Option<u64>,
}

/// The decided packets of one turn.
#[derive(Clone, Copy)]
pub struct Deliveries<'b> {
    pub(crate) batch: &'b Batch,
    pub(crate) pool: &'b FramePool,
}

impl<'b> Deliveries<'b> {
    /// In order of reception.
    pub fn iter(&self) -> impl Iterator<Item = Delivery<'b>> + use<'b> {
        let Self { batch, pool } = *self;
        batch.packets.iter().filter_map(move |packet| {
            Some(Delivery {
                outcome: packet.outcome?,
                tag: packet.tag.unwrap_or(FlowTag(0)),
                bytes: batch.bytes(pool, packet),
                timestamp: packet.timestamp,
            })
        })
    }
}

//! Deliveries to queues in foreign formats. The rules are those of [`super::fill`]; only requests and
//! completions are read and written otherwise.

use std::sync::atomic::Ordering;

use packet::Layers;

use super::{Buffers, Delivery, Work, edit};
use crate::formats::{Completions, Requests};
use crate::state::{FrameEdits, State};
use crate::stats::FrameEnd;

/// How many deliveries ahead their requests are fetched.
const LOOKAHEAD: u32 = 4;

/// Makes deliveries of a queue in order: as many as meet a buffer and have room for their completion, or up
/// to one that fails the queue. A doorbell record that makes no sense fails it too. Returns how many it made.
#[inline(never)]
pub(super) fn fill(state: &mut State, slot: u32, deliveries: &[Delivery], work: &mut Work<'_, '_>) -> usize {
    let State { queues, cqs, memory, unpublished_cqs, .. } = state;
    let Some(queue) = queues.get_mut(slot).filter(|queue| queue.ready) else { return 0 };
    let Some(cq) = cqs.get_mut(queue.cq).filter(|cq| !cq.failed) else { return 0 };
    let (Requests::Foreign(requests), Completions::Foreign(completions)) =
        (&mut queue.consumer, &mut cq.producer)
    else {
        // All queues of one context are own or foreign.
        return 0;
    };
    let wanted = deliveries.len() as u32;
    let count = wanted.min(requests.published()).min(completions.room_for(wanted));
    let mut buffers = Buffers { regions: memory.of_domain(queue.domain, true), max_sge: queue.max_sge };
    let is_edited = queue.edits != FrameEdits::default();
    let checksums = cq.wants_checksums.load(Ordering::Relaxed);
    let (mut made, mut faulty) = (0, requests.is_corrupt());
    for delivery in &deliveries[..count as usize] {
        if faulty {
            break;
        }
        requests.prefetch(made + LOOKAHEAD);
        let Some(frame) = work.frames.get(usize::from(delivery.frame)) else { break };
        let bytes = if is_edited { edit(frame.bytes, queue.edits, work.edited) } else { frame.bytes };
        let request = requests.read(made);
        let (status, end) = buffers.scatter(request.as_slot(), bytes);
        let mut cqe = delivery.completion(request.id, status, queue.number, frame, bytes.len(), work.now_ns);
        let parsed = packet::parse(frame.bytes);
        if checksums {
            cqe.set_checksum_ok(super::checksums_hold(frame, &parsed));
        }
        completions.write(&cqe, parsed.key.layers.contains(Layers::IPV4));
        work.settle(delivery, end);
        made += 1;
        faulty = end == FrameEnd::MemoryFault;
    }
    requests.advance_by(made);
    if made > 0 && !cq.unpublished {
        cq.unpublished = true;
        unpublished_cqs.push(queue.cq);
    }
    if faulty {
        state.fail_queue(slot);
    }
    made as usize
}

//! One delivery: a frame copied into the buffers of a receive request, and its completion.
//!
//! [`super::receive`] decides which queues get a frame, and [`super::datagram`] puts datagrams into buffers by the same
//! rules. Every buffer is checked before a byte is written.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use packet::checksum::{Check, verify_ip, verify_l4};

use super::receive::{C_VLAN_TPID, Delivery};
use crate::memory::MemoryTable;
use crate::prefetch::prefetch_write;
use crate::state::{FrameEdits, QueueState, State};
use crate::stats::Disposition;
use crate::wire::{Checksum, MAX_MERGED_BYTES, RxFrame};
use crate::work::{Cqe, Element, Opcode, RECEIVE_HEADER_BYTES, Status};

/// How many completions ahead their lines are taken over from the application's core: two to a line.
const COMPLETION_LOOKAHEAD: u32 = 8;

/// A frame that a queue wants otherwise than it came.
pub(super) type EditedFrame = ArrayVec<u8, { MAX_MERGED_BYTES + FCS_BYTES }>;

/// Takes over the buffer that a delivery will probably be copied to. The address is not checked yet: a prefetch of a
/// wrong one does nothing.
#[inline]
pub(super) fn prefetch_buffer(state: &State, delivery: &Delivery) {
    let Some(queue) = state.queues.get(delivery.queue) else { return };
    if queue.consumer.is_published(delivery.position) {
        // SAFETY: the request was published, so its slot is this side's; it holds at least one element.
        let element = unsafe { first_element(queue.consumer.peek(delivery.position)).read() };
        prefetch_write(std::ptr::without_provenance_mut(element.address as usize));
    }
}

/// Carries out one delivery.
#[inline]
pub(super) fn deliver(
    state: &mut State,
    delivery: &Delivery,
    frame: &RxFrame<'_>,
    now_ns: u64,
    edited: &mut EditedFrame,
) -> Disposition {
    let State { queues, cqs, memory, unpublished_cqs, .. } = state;
    let Some(queue) = queues.get_mut(delivery.queue) else { return Disposition::QueueNotReady };
    if !queue.ready {
        return Disposition::QueueNotReady;
    }
    if !queue.consumer.is_published(queue.consumer.position()) {
        let lost = queue.out_of_buffer.load(Ordering::Relaxed);
        queue.out_of_buffer.store(lost.wrapping_add(1), Ordering::Relaxed);
        return Disposition::OutOfBuffer;
    }
    let Some(cq) = cqs.get_mut(queue.cq) else { return Disposition::CqOverrun };
    // The completion's place comes first: without it the buffer must stay posted.
    if cq.failed || !cq.producer.has_room(1) {
        let slot = queue.cq;
        state.overrun(slot);
        return Disposition::CqOverrun;
    }
    cq.producer.prefetch(COMPLETION_LOOKAHEAD);
    let slot = queue.consumer.slot();
    // SAFETY: the request was published, so its slot is this side's, and slots begin with the id.
    let wr_id = unsafe { slot.cast::<u64>().read() };
    let bytes = if queue.edits == FrameEdits::default() {
        frame.bytes
    } else {
        edit(frame.bytes, queue.edits, edited)
    };
    let (status, end) = scatter(memory, queue, slot, bytes);
    queue.consumer.advance();
    let mut cqe = Cqe::new(wr_id, Opcode::Receive, status, queue.number);
    cqe.timestamp_ns = if frame.timestamp_ns == 0 { now_ns } else { frame.timestamp_ns };
    cqe.byte_len = bytes.len() as u32;
    cqe.flow_tag = delivery.tag;
    cqe.cvlan = delivery.cvlan;
    if cq.wants_checksums.load(Ordering::Relaxed) {
        cqe.set_checksum_ok(checksums_hold(frame));
    }
    // SAFETY: room was found above, so the slot is the producer's; completion slots are aligned `Cqe`s.
    unsafe { cq.producer.slot().cast::<Cqe>().write(cqe) };
    cq.producer.advance();
    if !cq.unpublished {
        cq.unpublished = true;
        unpublished_cqs.push(queue.cq);
    }
    if end == Disposition::MemoryFault {
        state.fail_queue(delivery.queue);
    }
    end
}

/// Makes of a frame what a queue wants. The check sequence is that of the frame on the medium, tag included.
#[cold]
fn edit<'e>(frame: &[u8], edits: FrameEdits, edited: &'e mut EditedFrame) -> &'e [u8] {
    /// Bytes of a tag, and where it is: behind the two addresses.
    const TAG_BYTES: usize = 4;
    const TAG_AT: usize = 12;
    const ETHER_TYPE_BYTES: usize = 2;
    edited.clear();
    let tagged = frame.get(TAG_AT..TAG_AT + 2) == Some(&C_VLAN_TPID.to_be_bytes());
    let (head, rest) = match frame.get(TAG_AT + TAG_BYTES..) {
        // A tag with nothing behind it is none, as `packet::parse` has it: the completion does not tell it.
        Some(rest) if edits.strip_cvlan && tagged && rest.len() >= ETHER_TYPE_BYTES => {
            (&frame[..TAG_AT], rest)
        }
        _ => (frame, &[][..]),
    };
    let fcs = edits.append_fcs.then(|| fcs(frame));
    for part in [head, rest, fcs.as_ref().map_or(&[][..], |fcs| fcs)] {
        // There is room for every frame that a port takes, and its check sequence.
        let taken = edited.try_extend_from_slice(part);
        debug_assert!(taken.is_ok());
    }
    edited
}

/// The first element of a receive request.
fn first_element(slot: NonNull<u8>) -> NonNull<Element> {
    // SAFETY: receive slots hold at least one element behind the id.
    unsafe { slot.add(RECEIVE_HEADER_BYTES) }.cast::<Element>()
}

/// Copies a frame into the buffers of a receive request, after all of them were checked.
#[inline]
pub(super) fn scatter(
    memory: &MemoryTable,
    queue: &QueueState,
    slot: NonNull<u8>,
    frame: &[u8],
) -> (Status, Disposition) {
    let elements = first_element(slot);
    // SAFETY: the request was published, so its slot is this side's; it holds at least one element.
    let first = unsafe { elements.read() };
    if (first.bytes as usize) < frame.len() {
        return scatter_list(memory, queue, elements, frame);
    }
    // By far the most frequent case: one buffer takes it all.
    let Some(address) = memory.resolve(first.key, queue.domain, first.address, first.bytes, true) else {
        return (Status::LocalProtection, Disposition::MemoryFault);
    };
    // SAFETY: `resolve` found the buffer inside a writable region of the queue's domain, which stays registered while the
    // state is locked; it holds the frame, which is in memory of the wire or the engine: the application cannot register that.
    unsafe { address.copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
    (Status::Success, Disposition::Delivered)
}

/// The general case of [`scatter`].
#[cold]
fn scatter_list(
    memory: &MemoryTable,
    queue: &QueueState,
    elements: NonNull<Element>,
    frame: &[u8],
) -> (Status, Disposition) {
    const FAULT: (Status, Disposition) = (Status::LocalProtection, Disposition::MemoryFault);
    let mut targets = ArrayVec::<(*mut u8, usize), { crate::limits::MAX_SGE as usize }>::new();
    let mut room = 0;
    for index in 0..queue.max_sge as usize {
        // SAFETY: receive slots hold `max_sge` elements.
        let element = unsafe { elements.add(index) };
        // SAFETY: the request was published, so its slot is this side's.
        let element = unsafe { element.read() };
        if element.key == 0 {
            break;
        }
        let Some(address) = memory.resolve(element.key, queue.domain, element.address, element.bytes, true)
        else {
            return FAULT;
        };
        room += element.bytes as usize;
        if targets.try_push((address, element.bytes as usize)).is_err() {
            return FAULT;
        }
        // Elements that the frame does not reach are not looked at, as a device would not.
        if room >= frame.len() {
            break;
        }
    }
    if room < frame.len() {
        return (Status::LocalLength, Disposition::Oversize);
    }
    let mut rest = frame;
    for (address, bytes) in targets {
        let (part, later) = rest.split_at(bytes.min(rest.len()));
        rest = later;
        // SAFETY: as in `scatter`; `part` is no longer than the element.
        unsafe { address.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
    }
    (Status::Success, Disposition::Delivered)
}

/// IBV_WC_IP_CSUM_OK: the IPv4 header's checksum and the TCP or UDP checksum are right (`ibv_poll_cq(3)`).
#[cold]
fn checksums_hold(frame: &RxFrame<'_>) -> bool {
    let parsed = packet::parse(frame.bytes);
    let l4 = match frame.checksum {
        Checksum::Valid => true,
        Checksum::Partial => false,
        Checksum::Unknown => verify_l4(frame.bytes, &parsed) == Check::Good,
    };
    l4 && verify_ip(frame.bytes, &parsed) == Check::Good
}

// The frame check sequence, for queues that want it (`IBV_WQ_FLAGS_SCATTER_FCS`).
//
// The wires carry frames without it, as network interfaces hand them over, so the engine computes what the medium
// would have carried. It is never verified: a medium drops what does not hold before this device could see it.

/// Bytes of a frame check sequence.
const FCS_BYTES: usize = 4;

/// The generator polynomial of IEEE 802.3, 3.2.9, lowest bit first.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The remainder of every byte.
const REMAINDERS: [u32; 256] = remainders();

const fn remainders() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < u8::BITS {
            remainder = (remainder >> 1) ^ if remainder & 1 == 0 { 0 } else { POLYNOMIAL };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

/// The check sequence of a frame, in the order in which it follows the frame.
fn fcs(frame: &[u8]) -> [u8; FCS_BYTES] {
    let remainder = frame
        .iter()
        .fold(u32::MAX, |remainder, byte| (remainder >> 8) ^ REMAINDERS[usize::from(remainder as u8 ^ byte)]);
    (!remainder).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_hold() {
        // The check value of CRC-32/ISO-HDLC in the catalogue of parametrised CRC algorithms.
        assert_eq!(fcs(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
        assert_eq!(fcs(b""), [0; FCS_BYTES]);
    }

    #[test]
    fn a_frame_with_its_check_sequence_leaves_the_magic_remainder() {
        for length in [1, 14, 60, 1514] {
            let mut frame: Vec<u8> = (0..length).map(|index| (index * 31) as u8).collect();
            frame.extend(fcs(&frame));
            // IEEE 802.3, 3.2.9: what a receiver's shift register holds after a frame without errors.
            assert_eq!(fcs(&frame), 0x2144_df1c_u32.to_le_bytes());
            frame[0] ^= 1;
            assert_ne!(fcs(&frame), 0x2144_df1c_u32.to_le_bytes());
        }
    }
}

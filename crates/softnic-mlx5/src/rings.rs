//! mlx5's receive and completion queues, as the device sees them: in the client's memory. Send queues are in
//! `sends`.
//!
//! A receive queue is a cyclic array of requests, each a list of scatter entries, and a doorbell record that
//! counts the posted ones modulo 2^16. A completion queue is an array of completions of 64 or 128 bytes,
//! whose owner bit changes with every turn, and a doorbell record with the consumer's index modulo 2^24 and
//! the word that arms the queue (rdma-core providers/mlx5/{mlx5dv.h,wqe.h,cq.c,qp.c}; ConnectX Programmer's
//! Reference Manual, "Work Queue Structure" and "Completion Queues").
//!
//! Nothing that the client writes is believed: indices that make no sense fail the queue, and scatter entries
//! are checked like those of any queue. The memory was found mapped and writable when the queue was made.
//! Hardware pins it; here a client that unmaps it before it destroys the queue ends its own process.

pub(crate) mod sends;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hugemem::prefetch_read;
use ibverbs_sys::ibv_wc_opcode::{IBV_WC_RECV, IBV_WC_TSO};
use softnic::clock::ClockRules;
use softnic::errno::{EINVAL, Verb};
use softnic::formats::{Arm, CompletionFormat, PostedFormat, ReceiveFormat, ReceiveRequest};
use softnic::formats::{Cqe, Element, Status};
use softnic::limits::MAX_SGE;
use softnic::objects::regions::populate;

use self::sends::{SEGMENTS, SEND};

/// The bytes of a scatter entry, as a power of two.
pub(crate) const LOG_ENTRY_BYTES: u32 = 4;
/// The most requests of a receive queue: more than half of the doorbell's range could not be told from fewer.
pub(crate) const MAX_REQUESTS: u32 = 1 << 15;
/// The most completions of a queue (`log_max_cq_sz` of 22).
pub(crate) const MAX_COMPLETIONS: u32 = 1 << 22;

/// `MLX5_INVALID_LKEY`, with which a list ends that has room for more.
const INVALID_LKEY: u32 = 0x100;
/// A key that no region has, for one of 0: that ends a list in this crate's own format.
const UNKNOWN_KEY: u32 = u32::MAX;

/// The bits of a consumer index.
const INDEX_MASK: u32 = 0x00ff_ffff;
/// The value of the arm word after it was read. No client writes it: bits 27 to 25 of the word are never set.
const NOT_ARMED: u32 = u32::MAX;
/// `MLX5_CQ_DB_REQ_NOT_SOL`.
const SOLICITED_ONLY: u32 = 1 << 24;

/// `enum` of completion opcodes in mlx5dv.h.
const REQ: u8 = 0;
const RESP_SEND: u8 = 2;
const RESIZE_CQ: u8 = 5;
const REQ_ERR: u8 = 13;
const RESP_ERR: u8 = 14;

/// Bytes of a completion that are in use; one of 128 bytes has them in its second half.
const CQE_BYTES: usize = 64;
/// The eight words of 8 bytes; the last one has the owner bit.
const CQE_WORDS: usize = CQE_BYTES / size_of::<u64>();

/// Memory of the client that this side uses as long as a queue exists.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    address: NonNull<u8>,
}

// SAFETY: an address in memory of the process, which any thread may use; what is there is only read and
// written as atomics, because the client does both at any time.
unsafe impl Send for ClientMemory {}

impl ClientMemory {
    /// Memory that the client named; EINVAL if it is misaligned, EFAULT if it is not mapped writable
    /// throughout.
    pub(crate) fn pin(address: u64, bytes: usize, align: usize) -> Verb<Self> {
        let address = usize::try_from(address).map_err(|_| EINVAL)?;
        let place = std::ptr::with_exposed_provenance_mut::<u8>(address);
        let non_null = NonNull::new(place).ok_or(EINVAL)?;
        if !address.is_multiple_of(align) || address.checked_add(bytes).is_none() || bytes == 0 {
            return Err(EINVAL);
        }
        populate(place.cast(), bytes, true)?;
        Ok(Self { address: non_null })
    }

    /// The word of 4 bytes at an offset, which is a multiple of 4 within the memory.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        let place = self.address.as_ptr().wrapping_add(offset).cast::<u32>();
        // SAFETY: within the pinned range and aligned, by the contracts of `pin` and of this function; all
        // uses are atomic.
        unsafe { AtomicU32::from_ptr(place) }
    }

    /// The word of 8 bytes at an offset, which is a multiple of 8 within the memory.
    #[inline]
    fn long(&self, offset: usize) -> &AtomicU64 {
        let place = self.address.as_ptr().wrapping_add(offset).cast::<u64>();
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(place) }
    }
}

/// Bytes of a doorbell record: two words in network byte order.
const DOORBELL_BYTES: usize = 8;

/// The doorbell record of a queue.
#[derive(Debug)]
struct Doorbell(ClientMemory);

impl Doorbell {
    const FIRST: usize = 0;
    const SECOND: usize = 4;

    fn pin(address: u64) -> Verb<Self> {
        ClientMemory::pin(address, DOORBELL_BYTES, DOORBELL_BYTES).map(Self)
    }

    #[inline]
    fn load(&self, word: usize) -> u32 {
        u32::from_be(self.0.word(word).load(Ordering::Acquire))
    }
}

/// The layout of a receive queue to be made: fields of `struct mlx5_ib_create_wq`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveLayout {
    pub(crate) buffer: u64,
    pub(crate) doorbell: u64,
    /// Requests; a power of two.
    pub(crate) requests: u32,
    /// The bytes of a request, as a power of two.
    pub(crate) log_request_bytes: u32,
    /// The number by which completions name the queue.
    pub(crate) user_index: u32,
}

/// A receive queue.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    buffer: ClientMemory,
    doorbell: Doorbell,
    requests: u32,
    log_request_bytes: u32,
    user_index: u32,
    /// Consumed requests, and the posted ones by the last look; both count modulo 2^32.
    next: u32,
    posted: u32,
    /// The doorbell counted more requests than the queue has.
    is_corrupt: bool,
}

impl ReceiveRing {
    pub(crate) fn new(layout: &ReceiveLayout) -> Verb<Self> {
        let ReceiveLayout { buffer, doorbell, requests, log_request_bytes, user_index } = *layout;
        let sizes = LOG_ENTRY_BYTES..=LOG_ENTRY_BYTES + MAX_SGE.ilog2();
        if !requests.is_power_of_two() || requests > MAX_REQUESTS || !sizes.contains(&log_request_bytes) {
            return Err(EINVAL);
        }
        let bytes = (requests as usize) << log_request_bytes;
        Ok(Self {
            // Entries are read as words of 8 bytes. The kernel wants more: libmlx5 gives whole pages.
            buffer: ClientMemory::pin(buffer, bytes, 1 << LOG_ENTRY_BYTES)?,
            doorbell: Doorbell::pin(doorbell)?,
            requests,
            log_request_bytes,
            user_index: user_index & INDEX_MASK,
            next: 0,
            posted: 0,
            is_corrupt: false,
        })
    }

    /// The requests that can be posted at once.
    pub(crate) fn capacity(&self) -> u32 {
        self.requests
    }

    /// The scatter entries of a request.
    pub(crate) fn entries(&self) -> u32 {
        1 << (self.log_request_bytes - LOG_ENTRY_BYTES)
    }

    #[inline]
    fn offset(&self, nth: u32) -> usize {
        ((self.next.wrapping_add(nth) & (self.requests - 1)) as usize) << self.log_request_bytes
    }

    /// The id from which the completion of a request is made: the queue's index and the request's counter.
    #[inline]
    fn id(&self, nth: u32) -> u64 {
        u64::from(self.user_index) << u16::BITS | u64::from(self.next.wrapping_add(nth) as u16)
    }
}

impl PostedFormat for ReceiveRing {
    fn take(&mut self) -> Option<u64> {
        self.refresh(1);
        let id = (self.published() > 0).then(|| self.id(0))?;
        self.advance_by(1);
        Some(id)
    }

    /// The client sets the doorbell record to 0 before it leaves RESET.
    fn reset(&mut self) {
        (self.next, self.posted, self.is_corrupt) = (0, 0, false);
    }
}

impl ReceiveFormat for ReceiveRing {
    /// Looks at the doorbell record.
    fn refresh(&mut self, wanted: u32) {
        if self.published() >= wanted || self.is_corrupt {
            return;
        }
        let counter = self.doorbell.load(Doorbell::FIRST) as u16;
        let ahead = u32::from(counter.wrapping_sub(self.next as u16));
        if ahead > self.requests {
            self.is_corrupt = true;
        } else {
            self.posted = self.next.wrapping_add(ahead);
        }
    }

    fn published(&self) -> u32 {
        self.posted.wrapping_sub(self.next)
    }

    fn is_corrupt(&self) -> bool {
        self.is_corrupt
    }

    fn prefetch(&self, ahead: u32) {
        if ahead < self.published() {
            prefetch_read(self.buffer.address.as_ptr().wrapping_add(self.offset(ahead)));
        }
    }

    fn read(&self, nth: u32) -> ReceiveRequest {
        let mut elements = [Element::END; MAX_SGE as usize];
        let first = self.offset(nth);
        for (index, element) in elements.iter_mut().take(self.entries() as usize).enumerate() {
            let place = first + (index << LOG_ENTRY_BYTES);
            let counts = u64::from_be(self.buffer.long(place).load(Ordering::Relaxed));
            let address = u64::from_be(self.buffer.long(place + 8).load(Ordering::Relaxed));
            let (bytes, key) = ((counts >> 32) as u32, counts as u32);
            if bytes == 0 && key == INVALID_LKEY {
                break;
            }
            *element = Element { address, bytes, key: if key == 0 { UNKNOWN_KEY } else { key } };
        }
        ReceiveRequest { id: self.id(nth), elements }
    }

    fn advance_by(&mut self, requests: u32) {
        self.next = self.next.wrapping_add(requests);
    }
}

/// The layout of a completion queue to be made: fields of `struct mlx5_ib_create_cq`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionLayout {
    pub(crate) buffer: u64,
    pub(crate) doorbell: u64,
    /// Completions; a power of two.
    pub(crate) completions: u32,
    /// 64 or 128.
    pub(crate) completion_bytes: u32,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    buffer: ClientMemory,
    doorbell: Doorbell,
    completions: u32,
    completion_bytes: usize,
    /// Completions written, and those that the client had consumed by the last look; both count modulo 2^32.
    next: u32,
    consumed: u32,
    clock: ClockRules,
}

/// The buffer of a completion queue. To be made without a lock: many pages may have to be there.
#[derive(Debug)]
pub(crate) struct CompletionBuffer {
    memory: ClientMemory,
    completions: u32,
    completion_bytes: usize,
}

impl CompletionBuffer {
    /// EINVAL for sizes that no device has, and as [`ClientMemory::pin`].
    pub(crate) fn pin(address: u64, completions: u32, completion_bytes: u32) -> Verb<Self> {
        let is_size = completions.is_power_of_two() && completions <= MAX_COMPLETIONS;
        if !is_size || !matches!(completion_bytes, 64 | 128) {
            return Err(EINVAL);
        }
        let completion_bytes = completion_bytes as usize;
        let memory = ClientMemory::pin(address, completions as usize * completion_bytes, CQE_BYTES)?;
        Ok(Self { memory, completions, completion_bytes })
    }
}

impl CompletionRing {
    pub(crate) fn new(layout: &CompletionLayout, clock: ClockRules) -> Verb<Self> {
        let CompletionLayout { buffer, doorbell, completions, completion_bytes } = *layout;
        let CompletionBuffer { memory, completions, completion_bytes } =
            CompletionBuffer::pin(buffer, completions, completion_bytes)?;
        let ring = Self {
            buffer: memory,
            doorbell: Doorbell::pin(doorbell)?,
            completions,
            completion_bytes,
            next: 0,
            consumed: 0,
            clock,
        };
        // The first arm word is 0, which the client has put there already: from now on only a new one differs
        // from this.
        ring.arm_word().store(NOT_ARMED, Ordering::Relaxed);
        Ok(ring)
    }

    fn arm_word(&self) -> &AtomicU32 {
        self.doorbell.0.word(Doorbell::SECOND)
    }

    #[inline]
    fn room(&self) -> u32 {
        self.completions.saturating_sub(self.next.wrapping_sub(self.consumed))
    }

    /// Where the 64 bytes of the completion at `index` are.
    #[inline]
    fn offset(&self, index: u32) -> usize {
        (index & (self.completions - 1)) as usize * self.completion_bytes
            + (self.completion_bytes - CQE_BYTES)
    }

    #[inline]
    fn put(&mut self, words: [u64; CQE_WORDS], opcode: u8) {
        let place = self.offset(self.next);
        let turn = u64::from(self.next & self.completions != 0);
        let (&last, others) = words.split_last().unwrap_or((&0, &[]));
        for (index, word) in others.iter().enumerate() {
            self.buffer.long(place + index * size_of::<u64>()).store(word.to_be(), Ordering::Relaxed);
        }
        let last = last | u64::from(opcode) << 4 | turn;
        let place = place + (CQE_WORDS - 1) * size_of::<u64>();
        self.buffer.long(place).store(last.to_be(), Ordering::Release);
        self.next = self.next.wrapping_add(1);
    }

    /// Goes on in another buffer, after a completion in the old one that says so (rdma-core cq.c,
    /// `mlx5_cq_resize_copy_cqes`). EINVAL if there is no room for that one, or if the new buffer cannot hold
    /// what was not consumed yet.
    pub(crate) fn resize(&mut self, to: CompletionBuffer) -> Verb<()> {
        let CompletionBuffer { memory, completions, completion_bytes } = to;
        if self.room_for(u32::MAX) == 0 || self.next.wrapping_sub(self.consumed) >= completions {
            return Err(EINVAL);
        }
        self.put([0; CQE_WORDS], RESIZE_CQ);
        (self.buffer, self.completions, self.completion_bytes) = (memory, completions, completion_bytes);
        Ok(())
    }
}

impl CompletionFormat for CompletionRing {
    /// None can be written if the client wrote an index that it cannot have reached.
    fn room_for(&mut self, wanted: u32) -> u32 {
        if self.room() < wanted {
            let used = self.next.wrapping_sub(self.doorbell.load(Doorbell::FIRST)) & INDEX_MASK;
            self.consumed = self.next.wrapping_sub(used);
        }
        self.room()
    }

    /// The last word, which has the owner bit, is written last.
    fn write(&mut self, cqe: &Cqe, is_ipv4: bool) {
        let succeeded = cqe.status() == u32::from(Status::Success as u8);
        let user_index = (cqe.wr_id >> u16::BITS) & u64::from(INDEX_MASK);
        let mut words = [0_u64; CQE_WORDS];
        words[4] = user_index << 32;
        // Of sends the operation and the queue's number; of receives the tag of the flow.
        let (good, bad, origin) = match cqe.opcode() {
            IBV_WC_RECV => (RESP_SEND, RESP_ERR, if succeeded { cqe.flow_tag & INDEX_MASK } else { 0 }),
            IBV_WC_TSO => (REQ, REQ_ERR, u32::from(SEGMENTS) << 24 | cqe.queue_number),
            _ => (REQ, REQ_ERR, u32::from(SEND) << 24 | cqe.queue_number),
        };
        if succeeded {
            if good == RESP_SEND {
                words[3] = header_word(cqe, is_ipv4);
                words[5] = u64::from(cqe.byte_len);
            }
            words[6] = self.clock.ticks(cqe.timestamp_ns);
        } else {
            // struct mlx5_err_cqe: the syndromes of these errors are the statuses of verbs.h.
            words[6] = u64::from(cqe.status());
        }
        words[7] = u64::from(origin) << 32 | (cqe.wr_id & 0xffff) << 16;
        self.put(words, if succeeded { good } else { bad });
    }

    fn position(&self) -> u32 {
        self.next
    }

    fn is_error(&self, index: u32) -> bool {
        let place = self.offset(index) + (CQE_WORDS - 1) * size_of::<u64>();
        let last = u64::from_be(self.buffer.long(place).load(Ordering::Relaxed));
        matches!((last as u8) >> 4, REQ_ERR | RESP_ERR)
    }

    fn take_arm(&self) -> Option<Arm> {
        let word = self.arm_word();
        if word.load(Ordering::Relaxed) == NOT_ARMED {
            return None;
        }
        let word = u32::from_be(word.swap(NOT_ARMED, Ordering::Acquire));
        let unseen = self.next.wrapping_sub(word) & INDEX_MASK;
        // An index that the client cannot have reached: no completion counts but those to come.
        let unseen = if unseen > self.completions { 0 } else { unseen };
        (word != NOT_ARMED)
            .then(|| Arm { solicited_only: word & SOLICITED_ONLY != 0, from: self.next.wrapping_sub(unseen) })
    }
}

/// The word with the kind of headers, the checksums and the VLAN tag. `slid` and `flags_rqpn` mean nothing
/// for raw packets.
fn header_word(cqe: &Cqe, is_ipv4: bool) -> u64 {
    /// `MLX5_CQE_L2_OK`, `_L3_OK` and `_L4_OK` of `hds_ip_ext`.
    const L2_OK: u64 = 1;
    const L3_L4_OK: u64 = 6;
    /// The bits of `l4_hdr_type_etc`: there is a VLAN tag, and `MLX5_CQE_L3_HDR_TYPE_IPV4`.
    const HAS_VLAN: u64 = 1;
    const L3_IPV4: u64 = 2 << 2;
    let checksums = if cqe.is_checksum_ok() { L2_OK | L3_L4_OK } else { L2_OK };
    let headers = if is_ipv4 { L3_IPV4 } else { 0 } | if cqe.cvlan == 0 { 0 } else { HAS_VLAN };
    checksums << 24 | headers << 16 | u64::from(cqe.cvlan)
}

#[cfg(test)]
mod tests;

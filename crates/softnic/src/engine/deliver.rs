//! Deliveries: frames copied into the buffers of receive requests, and their completions.
//!
//! [`super::receive`] decides which queues get a frame and lists the deliveries of each queue; a list is
//! carried out here in one go, so that the queue, its completion queue and its memory are looked up once.
//! [`super::datagram`] puts datagrams into buffers by the same rules. Every buffer is checked before a byte
//! is written. Queues in foreign formats are served by [`foreign`].

mod foreign;

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use hugemem::prefetch_write;
use packet::Parsed;
use packet::checksum::{ChecksumStatus, verify_ip, verify_l4};
use wire::{BURST_FRAMES, Checksum, MAX_MERGED_BYTES, RxFrame};

use super::receive::C_VLAN_TPID;
#[cfg(target_arch = "x86_64")]
use super::v3::Inline;
use super::v3::{Avx2Movbe, Copies, Portable, copy};
use crate::formats::{Completions, Requests};
use crate::memory::Regions;
use crate::paths;
use crate::ring::Slots;
use crate::slab::Slab;
use crate::state::{FrameEdits, Planned, QueueOwner, QueueState, State};
use crate::stats::{FrameEnd, PortStats};
use crate::work::{Cqe, Element, RECEIVE_HEADER_BYTES, Status, WorkOpcode};

/// How many deliveries ahead the lines of buffers are taken over from the application's core.
const LOOKAHEAD: u32 = 16;
/// The lookahead for the lines of completions: so a burst begins with lines that the burst before it has
/// fetched.
const COMPLETION_LOOKAHEAD: u32 = 24;
/// How many of its first buffers are fetched before a queue's turn comes.
const APPROACHED: u32 = 8;
/// The number of completions that share a line.
const COMPLETIONS_PER_LINE: u32 = 2;
/// The most deliveries of a burst.
const MAX_DELIVERIES: usize = BURST_FRAMES * flow_table::MAX_MATCHES;

/// A frame that a queue wants otherwise than it came.
pub(super) type EditedFrame = ArrayVec<u8, { MAX_MERGED_BYTES + FCS_BYTES }>;

/// One copy of one frame for one queue.
#[derive(Clone, Copy)]
pub(super) struct Delivery {
    pub(super) tag: u32,
    pub(super) queue: u32,
    pub(super) cvlan: u16,
    /// Which frame of the burst.
    pub(super) frame: u8,
    pub(super) kind: DeliveryKind,
}

const _: () = assert!(BURST_FRAMES <= 1 << u8::BITS, "a delivery has room for the place of its frame");

/// The relation of a delivery to its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum DeliveryKind {
    /// The only one, and no copy. The frame counts as delivered from when it is planned; what becomes of it
    /// if that fails is what becomes of the frame.
    Only,
    /// One of several.
    Shared,
    /// Made by a flow that lets the frame go on: whatever becomes of it, it is not what becomes of the frame.
    Copy,
}

impl Delivery {
    /// The place of its frame in the burst, if it is the only delivery of that; otherwise beyond all frames.
    #[inline]
    fn only(&self) -> usize {
        usize::from(self.frame) | usize::from(self.kind as u8) << u8::BITS
    }

    /// The completion by the queue with this number, of which `bytes` bytes of the frame are reported.
    #[inline]
    fn completion(
        &self,
        wr_id: u64,
        status: Status,
        number: u32,
        frame: &RxFrame<'_>,
        bytes: usize,
        now_ns: u64,
    ) -> Cqe {
        let mut cqe = Cqe::new(wr_id, WorkOpcode::Receive, status, number);
        cqe.timestamp_ns = if frame.timestamp_ns == 0 { now_ns } else { frame.timestamp_ns };
        cqe.byte_len = bytes as u32;
        cqe.flow_tag = self.tag;
        cqe.cvlan = self.cvlan;
        cqe
    }
}

/// The deliveries of a burst: while they are planned in the order of their frames, afterwards queue by queue.
pub(super) struct Deliveries {
    list: Box<[Delivery]>,
    /// How many there are.
    count: usize,
    /// The deliveries while they are put into the other order.
    sorted: Box<[Delivery]>,
}

impl Deliveries {
    pub(super) fn new() -> Self {
        let none = Delivery { tag: 0, queue: 0, cvlan: 0, frame: 0, kind: DeliveryKind::Copy };
        let room = || vec![none; MAX_DELIVERIES].into_boxed_slice();
        Self { list: room(), count: 0, sorted: room() }
    }

    /// Begins a burst. Queues that get deliveries are added to `touched`.
    pub(super) fn planner<'p>(
        &'p mut self,
        queues: &'p mut Slab<QueueState>,
        touched: &'p mut Vec<u32>,
    ) -> Planner<'p> {
        self.count = 0;
        Planner { deliveries: self, queues, touched, queue: None, before: 0 }
    }

    pub(super) fn as_slice(&self) -> &[Delivery] {
        &self.list[..self.count]
    }
}

/// Plans the deliveries of a burst.
pub(super) struct Planner<'p> {
    deliveries: &'p mut Deliveries,
    queues: &'p mut Slab<QueueState>,
    touched: &'p mut Vec<u32>,
    /// The queue of the last deliveries, and how many there were before those.
    queue: Option<u32>,
    before: usize,
}

impl Planner<'_> {
    /// Adds a delivery, unless its queue is gone; returns whether it has.
    #[inline]
    pub(super) fn plan(&mut self, delivery: Delivery) -> bool {
        let is_there = self.queue == Some(delivery.queue) || self.turn_to(delivery.queue);
        let Some(place) = self.deliveries.list.get_mut(self.deliveries.count).filter(|_| is_there) else {
            return false;
        };
        *place = delivery;
        self.deliveries.count += 1;
        true
    }

    /// The queue of the last delivery, and the places of further ones for it, which are to be counted
    /// ([`add`](Self::add)).
    #[inline]
    pub(super) fn places(&mut self) -> (Option<u32>, &mut [Delivery]) {
        (self.queue, &mut self.deliveries.list[self.deliveries.count..])
    }

    /// Adds the first `count` of the [`places`](Self::places).
    #[inline]
    pub(super) fn add(&mut self, count: usize) {
        self.deliveries.count += count;
    }

    /// Counts the deliveries of the queue so far, and goes on with another one; returns whether it exists.
    #[inline(never)]
    fn turn_to(&mut self, slot: u32) -> bool {
        self.count();
        self.queue = None;
        let Some(queue) = self.queues.get_mut(slot) else { return false };
        self.queue = Some(slot);
        if !queue.unpublished {
            queue.unpublished = true;
            self.touched.push(slot);
        }
        // What is posted to a queue that is not ready need not make sense: mlx5's clients clear the doorbell
        // record of one in RESET only before it becomes ready.
        if queue.ready && queue.planned.count == 0 {
            queue.consumer.fetch(BURST_FRAMES as u32);
        }
        true
    }

    fn count(&mut self) {
        let end = self.deliveries.count;
        if let Some(queue) = self.queue.and_then(|slot| self.queues.get_mut(slot)) {
            queue.planned.count += (end - self.before) as u32;
        }
        self.before = end;
    }

    /// Puts the deliveries of each queue next to each other, in the order of their frames.
    pub(super) fn finish(mut self) {
        self.count();
        let Self { deliveries: Deliveries { list, count, sorted }, queues, touched, .. } = self;
        // Of one queue they are in order; then its first is 0.
        if touched.len() < 2 {
            return;
        }
        let mut first = 0;
        for slot in touched.iter() {
            let Some(queue) = queues.get_mut(*slot) else { continue };
            let count = std::mem::take(&mut queue.planned.count);
            queue.planned.first = first;
            first += count;
        }
        sorted[..*count].copy_from_slice(&list[..*count]);
        for delivery in &list[..*count] {
            let Some(queue) = queues.get_mut(delivery.queue) else { continue };
            let Planned { first, count } = &mut queue.planned;
            if let Some(place) = sorted.get_mut((*first + *count) as usize) {
                *place = *delivery;
            }
            *count += 1;
        }
        std::mem::swap(list, sorted);
    }
}

/// The parts that carry out a burst's deliveries.
pub(super) struct Work<'b, 'w> {
    pub(super) v3: Option<Avx2Movbe>,
    pub(super) deliveries: &'b [Delivery],
    pub(super) frames: &'b [RxFrame<'w>],
    pub(super) now_ns: u64,
    pub(super) edited: &'b mut EditedFrame,
    /// The outcome of each frame.
    pub(super) ends: &'b mut [FrameEnd; BURST_FRAMES],
    pub(super) stats: &'b mut PortStats,
}

impl Work<'_, '_> {
    /// Notes how a delivery ended.
    #[inline]
    fn settle(&mut self, delivery: &Delivery, end: FrameEnd) {
        let so_far = &mut self.ends[usize::from(delivery.frame) % BURST_FRAMES];
        match delivery.kind {
            DeliveryKind::Only => *so_far = end,
            DeliveryKind::Shared => self.stats.settle(so_far, end, false),
            DeliveryKind::Copy => self.stats.settle(so_far, end, true),
        }
    }
}

/// Takes over the first buffers that a queue's deliveries will be copied to.
#[inline]
pub(super) fn approach(state: &State, slot: u32) {
    let Some(queue) = state.queues.get(slot) else { return };
    let Requests::Own(consumer) = &queue.consumer else { return };
    let requests = consumer.slots();
    for nth in 0..queue.planned.count.min(APPROACHED).min(consumer.published()) {
        prefetch_buffer(requests.at(nth));
    }
}

/// Takes over the buffer of a request. The address is not checked yet: a prefetch of a wrong one does
/// nothing.
#[inline]
fn prefetch_buffer(request: NonNull<u8>) {
    // SAFETY: callers pass published requests only, whose slots are this side's; they hold at least one
    // element.
    let element = unsafe { first_element(request).read() };
    prefetch_write(std::ptr::without_provenance_mut(element.address as usize));
}

/// Carries out the deliveries of a queue.
pub(super) fn serve(state: &mut State, slot: u32, work: &mut Work<'_, '_>) {
    let Some(queue) = state.queues.get_mut(slot) else { return };
    let Planned { count, first } = std::mem::take(&mut queue.planned);
    // The last look at the application's index in this burst: a dry queue must not be asked for every
    // delivery.
    if queue.ready {
        queue.consumer.refresh(count);
    }
    let mut left = work.deliveries.get(first as usize..).unwrap_or_default();
    left = &left[..left.len().min(count as usize)];
    while !left.is_empty() {
        left = &left[fill(state, slot, left, work)..];
        if !left.is_empty() {
            left = &left[refuse(state, slot, left, work)..];
        }
    }
}

/// Makes deliveries of a queue in order: as many as meet a buffer and have room for their completion, or up
/// to one that fails the queue. Returns how many it made.
fn fill(state: &mut State, slot: u32, deliveries: &[Delivery], work: &mut Work<'_, '_>) -> usize {
    let State { queues, cqs, memory, unpublished_cqs, .. } = state;
    let Some(queue) = queues.get_mut(slot).filter(|queue| queue.ready) else { return 0 };
    // The completions' place comes first: without it the buffers must stay posted.
    let Some(cq) = cqs.get_mut(queue.cq).filter(|cq| !cq.failed) else { return 0 };
    let (Requests::Own(consumer), Completions::Own(producer)) = (&mut queue.consumer, &mut cq.producer)
    else {
        return foreign::fill(state, slot, deliveries, work);
    };
    let wanted = deliveries.len() as u32;
    let room = producer.room_for(wanted);
    let count = wanted.min(consumer.published()).min(room);
    if count == 0 {
        return 0;
    }
    let mut filling = Filling {
        requests: consumer.slots(),
        completions: producer.slots(),
        buffers: Buffers { regions: memory.of_domain(queue.domain, true), max_sge: queue.max_sge },
        number: queue.number,
        edits: queue.edits,
        checksums: cq.wants_checksums.load(Ordering::Relaxed)
            && (cq.checksums_of_work_queues || queue.kind != QueueOwner::WorkQueue),
        room,
        made: 0,
        fetched: 0,
    };
    let deliveries = &deliveries[..count as usize];
    let is_plain = queue.edits == FrameEdits::default() && !filling.checksums;
    let mut faulty = false;
    while let Some(next) = deliveries.get(filling.made as usize)
        && !faulty
    {
        if !is_plain {
            filling.fetch(count.min(filling.made + LOOKAHEAD));
        }
        // The first one finds the region that the others are in.
        faulty = filling.make(next, work) == FrameEnd::MemoryFault;
        if is_plain && !faulty && !paths::are_general() {
            filling.make_plain(&deliveries[filling.made as usize..], work);
        }
    }
    let made = filling.made;
    consumer.advance_by(made);
    producer.advance_by(made);
    if !cq.unpublished {
        cq.unpublished = true;
        unpublished_cqs.push(queue.cq);
    }
    if faulty {
        state.fail_queue(slot);
    }
    made as usize
}

/// The deliveries that are made of one queue in a row.
struct Filling<'f> {
    /// The slots of requests; as many are published as there are deliveries.
    requests: Slots<'f>,
    /// The slots of completions; `room` of them are the producer's, at least as many.
    completions: Slots<'f>,
    buffers: Buffers<'f>,
    number: u32,
    edits: FrameEdits,
    checksums: bool,
    room: u32,
    /// Deliveries made so far, and those whose buffers were fetched.
    made: u32,
    fetched: u32,
}

impl Filling<'_> {
    /// Makes the next delivery, and returns how it ended.
    fn make(&mut self, delivery: &Delivery, work: &mut Work<'_, '_>) -> FrameEnd {
        let frame = &work.frames[usize::from(delivery.frame)];
        let is_edited = self.edits != FrameEdits::default();
        let bytes = if is_edited { edit(frame.bytes, self.edits, work.edited) } else { frame.bytes };
        let request = self.requests.at(self.made);
        // SAFETY: the request was published, so its slot is this side's, and slots begin with the id.
        let wr_id = unsafe { request.cast::<u64>().read() };
        let (status, end) = self.buffers.scatter(request, bytes);
        let mut cqe = delivery.completion(wr_id, status, self.number, frame, bytes.len(), work.now_ns);
        if self.checksums {
            cqe.set_checksum_ok(checksums_hold(frame, &packet::parse(frame.bytes)));
        }
        // SAFETY: `made` is below the room, so the slot is the producer's; completion slots are aligned
        // `Cqe`s (`check_slots` in `completion_queues`).
        unsafe { self.completions.at(self.made).cast::<Cqe>().write(cqe) };
        work.settle(delivery, end);
        self.made += 1;
        end
    }

    /// Makes those of the next deliveries that are as most are: the frame as it came, delivered once, into
    /// one buffer of the region found last and as long as the next one, where the rings do not start again.
    /// Stops at the first other one. The same as [`make`](Self::make) for each, with as little as possible in
    /// the loop.
    #[inline]
    fn make_plain(&mut self, deliveries: &[Delivery], work: &Work<'_, '_>) {
        match work.v3 {
            // SAFETY: an `Avx2Movbe` is made only where the processor has what the function asks for.
            #[cfg(target_arch = "x86_64")]
            Some(_) => unsafe { self.make_plain_v3(deliveries, work) },
            _ => self.make_run::<Portable>(deliveries, work),
        }
    }

    /// Makes deliveries as [`make_run`](Self::make_run) does.
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    fn make_plain_v3(&mut self, deliveries: &[Delivery], work: &Work<'_, '_>) {
        self.make_run::<Inline>(deliveries, work);
    }

    /// The body of [`make_plain`](Self::make_plain).
    #[inline(always)]
    fn make_run<C: Copies>(&mut self, deliveries: &[Delivery], work: &Work<'_, '_>) {
        let run = self.requests.run(self.made).min(self.completions.run(self.made));
        let deliveries = &deliveries[..deliveries.len().min(run as usize)];
        let count = deliveries.len() as u32;
        self.fetch(self.made + count.min(LOOKAHEAD));
        // Of the others each fetches one that is as far ahead, as long as there is one.
        let left = self.room.saturating_sub(self.made + COMPLETION_LOOKAHEAD);
        let ahead = left.min(run.saturating_sub(COMPLETION_LOOKAHEAD)).min(count.saturating_sub(LOOKAHEAD));
        let (ahead, last) = deliveries.split_at(ahead as usize);
        if self.make_part::<C, true>(ahead, work) {
            self.make_part::<C, false>(last, work);
        }
    }

    /// A part of [`make_run`](Self::make_run); returns whether all of it was made. With `FETCH` there are as
    /// many requests and completions behind it as are to be fetched ahead.
    #[inline(always)]
    fn make_part<C: Copies, const FETCH: bool>(
        &mut self,
        deliveries: &[Delivery],
        work: &Work<'_, '_>,
    ) -> bool {
        let (mut request, stride) = (self.requests.at(self.made), self.requests.stride());
        let mut completion = self.completions.at(self.made).cast::<Cqe>();
        if deliveries.is_empty() {
            return true;
        }
        // SAFETY: the request was published, so its slot is this side's; it holds at least one element.
        let first = unsafe { first_element(request).read() };
        let Some(window) = self.buffers.regions.last().window(first.key, first.bytes) else { return false };
        let (frames, number, now_ns) = (work.frames, self.number, work.now_ns);
        for delivery in deliveries {
            // SAFETY: as above.
            let element = unsafe { first_element(request).read() };
            let Some(frame) = frames.get(delivery.only()) else { break };
            let bytes = frame.bytes.len();
            if element.shape() != first.shape() || bytes > first.bytes as usize {
                break;
            }
            let Some(address) = window.resolve(element.address) else { break };
            if FETCH {
                // SAFETY: by the contract of `FETCH` as above.
                prefetch_buffer(unsafe { request.add(LOOKAHEAD as usize * stride) });
                prefetch_write(completion.as_ptr().wrapping_add(COMPLETION_LOOKAHEAD as usize).cast());
            }
            // SAFETY: as in `Buffers::scatter`.
            if !unsafe { C::copy(frame.bytes.as_ptr(), address, bytes) } {
                break;
            }
            // SAFETY: as above, and slots begin with the id.
            let wr_id = unsafe { request.cast::<u64>().read() };
            let cqe = delivery.completion(wr_id, Status::Success, number, frame, bytes, now_ns);
            // SAFETY: as in `make`.
            unsafe { completion.write(cqe) };
            // SAFETY: at most the end of the ring's slots, since the run does not reach beyond it.
            request = unsafe { request.add(stride) };
            // SAFETY: as above.
            completion = unsafe { completion.add(1) };
        }
        let first = self.completions.at(self.made).cast::<Cqe>();
        let made = (completion.addr().get() - first.addr().get()) / size_of::<Cqe>();
        self.made += made as u32;
        if FETCH {
            self.fetched = self.fetched.max(self.made + LOOKAHEAD);
        }
        made == deliveries.len()
    }

    /// Takes over the buffers of the deliveries up to one, and the lines of completions that are farther
    /// ahead, as far as there is room.
    #[inline]
    fn fetch(&mut self, until: u32) {
        for nth in self.fetched..until {
            prefetch_buffer(self.requests.at(nth));
            let ahead = nth + (COMPLETION_LOOKAHEAD - LOOKAHEAD);
            if nth.is_multiple_of(COMPLETIONS_PER_LINE) && ahead < self.room {
                prefetch_write(self.completions.at(ahead).as_ptr());
            }
        }
        self.fetched = self.fetched.max(until);
    }
}

/// Settles deliveries that cannot be made: all that are left of a queue that does not receive or has no
/// buffer, the next one where there is no room for its completion. Returns how many these are, at least one.
#[cold]
fn refuse(state: &mut State, slot: u32, left: &[Delivery], work: &mut Work<'_, '_>) -> usize {
    let Some(queue) = state.queues.get_mut(slot) else { return left.len() };
    let cq = queue.cq;
    let (end, refused) = if !queue.ready {
        (FrameEnd::QueueNotReady, left.len())
    } else if queue.consumer.published() == 0 {
        let lost = queue.out_of_buffer.load(Ordering::Relaxed);
        queue.out_of_buffer.store(lost.wrapping_add(left.len() as u64), Ordering::Relaxed);
        (FrameEnd::OutOfBuffer, left.len())
    } else {
        (FrameEnd::CqOverrun, 1)
    };
    for delivery in &left[..refused] {
        work.settle(delivery, end);
    }
    if end == FrameEnd::CqOverrun {
        state.overrun(cq);
    }
    refused
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
        // A tag with nothing behind it is none, as `packet::parse` has it: the completion does not report it.
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
    // SAFETY: receive slots hold at least one element behind the id: making a queue checks it (`NewQueue` of
    // `OwnReceives`).
    unsafe { slot.add(RECEIVE_HEADER_BYTES) }.cast::<Element>()
}

/// The memory that a queue's requests may name.
pub(super) struct Buffers<'m> {
    pub(super) regions: Regions<'m>,
    /// Elements of a request.
    pub(super) max_sge: u32,
}

impl Buffers<'_> {
    /// Copies a frame into the buffers of a receive request, after all of them were checked.
    #[inline]
    pub(super) fn scatter(&mut self, request: NonNull<u8>, frame: &[u8]) -> (Status, FrameEnd) {
        let elements = first_element(request);
        // SAFETY: the request was published, so its slot is this side's; it holds at least one element.
        let first = unsafe { elements.read() };
        if (first.bytes as usize) < frame.len() {
            return self.scatter_list(elements, frame);
        }
        // By far the most frequent case: one buffer takes it all.
        let Some(address) = self.regions.resolve(first.key, first.address, first.bytes) else {
            return (Status::LocalProtection, FrameEnd::MemoryFault);
        };
        // SAFETY: `resolve` found the buffer inside a writable region of the queue's domain, which stays
        // registered while the state is locked; it holds the frame, which is in memory of the wire or the
        // engine: the application cannot register that.
        unsafe { copy(frame.as_ptr(), address, frame.len()) };
        (Status::Success, FrameEnd::Delivered)
    }

    /// The general case of [`Buffers::scatter`].
    #[cold]
    fn scatter_list(&mut self, elements: NonNull<Element>, frame: &[u8]) -> (Status, FrameEnd) {
        const FAULT: (Status, FrameEnd) = (Status::LocalProtection, FrameEnd::MemoryFault);
        let mut targets = ArrayVec::<(*mut u8, usize), { crate::limits::MAX_SGE as usize }>::new();
        let mut room = 0;
        for index in 0..self.max_sge as usize {
            // SAFETY: receive slots hold `max_sge` elements: making a queue checks it (`NewQueue` of
            // `OwnReceives`).
            let element = unsafe { elements.add(index) };
            // SAFETY: the request was published, so its slot is this side's.
            let element = unsafe { element.read() };
            if element.key == 0 {
                break;
            }
            let Some(address) = self.regions.resolve(element.key, element.address, element.bytes) else {
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
            return (Status::LocalLength, FrameEnd::Oversize);
        }
        let mut rest = frame;
        for (address, bytes) in targets {
            let (part, later) = rest.split_at(bytes.min(rest.len()));
            rest = later;
            // SAFETY: as in `scatter`; `part` is no longer than the element.
            unsafe { address.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
        }
        (Status::Success, FrameEnd::Delivered)
    }
}

/// IBV_WC_IP_CSUM_OK: the IPv4 header's checksum and the TCP or UDP checksum are right (`ibv_poll_cq(3)`).
#[cold]
fn checksums_hold(frame: &RxFrame<'_>, parsed: &Parsed) -> bool {
    let l4 = match frame.checksum {
        Checksum::Valid => true,
        Checksum::Partial => false,
        Checksum::Unknown => verify_l4(frame.bytes, parsed) == ChecksumStatus::Good,
    };
    l4 && verify_ip(frame.bytes, parsed) == ChecksumStatus::Good
}

// The frame check sequence, for queues that want it (`IBV_WQ_FLAGS_SCATTER_FCS`).
//
// The wires carry frames without it, as network interfaces hand them over, so the engine computes what the
// medium would have carried. It is never verified: a medium drops what does not hold before this device could
// see it.

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

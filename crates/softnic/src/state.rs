//! The device behind its mutex: every object that an engine or another object can name. Only the flow table
//! is apart ([`crate::shared::NicShared`]).
//!
//! Front ends create, change and remove objects here on the caller's thread (`objects`); the engine reads
//! them once per burst. What the application holds (`ibv_cq`, `ibv_wq`, ...) are objects of its front end
//! that name their slot here. User counts are the number of users of an object; its removal is EBUSY while
//! there are any.

pub(crate) mod completion;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use xdp::DropCounter;

use self::completion::{ChannelState, CqState};
use crate::events::EventChannel;
use crate::formats::{Requests, Sends};
use crate::limits;
use crate::memory::MemoryTable;
use crate::pace::Pace;
use crate::personality::{LimitErrnos, ObjectLimits, Rules};
use crate::rss::Rss;
use crate::send_bell::SendBell;
use crate::slab::Slab;
use crate::work::{Cqe, MAX_TAGGED_NUMBER, SendShape, Status, WorkOpcode};

/// Everything that belongs to no port.
pub struct State {
    /// The errno beyond each limit.
    pub(crate) limits: LimitErrnos,
    pub(crate) contexts: Slab<ContextState>,
    pub(crate) domains: Slab<DomainState>,
    pub(crate) thread_domains: Slab<ThreadDomainState>,
    pub(crate) memory: MemoryTable,
    pub(crate) channels: Slab<ChannelState>,
    pub(crate) cqs: Slab<CqState>,
    pub(crate) queues: Slab<QueueState>,
    pub(crate) tables: Slab<TableState>,
    pub(crate) qps: Slab<QpState>,
    pub(crate) counters: Slab<CounterState>,
    pub(crate) flow_objects: Slab<FlowState>,
    /// Queue pairs with a send side, in the order they came up.
    pub(crate) senders: Vec<u32>,
    /// Queues in the error state: what is posted to them is flushed.
    pub(crate) failed_queues: Vec<u32>,
    /// Completion queues, receive queues and queue pairs with indices to publish at the end of the burst.
    pub(crate) unpublished_cqs: Vec<u32>,
    pub(crate) unpublished_sends: Vec<u32>,
    pub(crate) unpublished_queues: Vec<u32>,
    /// Completion queues with an event to come.
    pub(crate) waiting_cqs: Vec<u32>,
    /// Completion queues with a channel that are armed by a write to memory, which has to be looked for.
    pub(crate) watched_cqs: Vec<u32>,
    next_flow_order: u64,
}

/// An open context: where its asynchronous events go.
pub(crate) struct ContextState {
    pub(crate) events: EventChannel,
}

/// A protection domain, or a parent domain.
pub(crate) struct DomainState {
    pub(crate) owner: u32,
    pub(crate) users: u32,
}

/// A thread domain.
pub(crate) struct ThreadDomainState {
    pub(crate) owner: u32,
    pub(crate) users: u32,
}

/// Who owns a receive queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueOwner {
    WorkQueue,
    QueuePair(u32),
}

/// How a receive queue wants its frames to differ from what came over the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameEdits {
    /// Without the outer C-VLAN tag, which is in the completion.
    pub(crate) strip_cvlan: bool,
    /// With the frame check sequence behind it.
    pub(crate) append_fcs: bool,
}

/// The place of the deliveries to one queue that a burst has planned and not carried out yet.
#[derive(Clone, Copy, Default)]
pub(crate) struct Planned {
    pub(crate) count: u32,
    pub(crate) first: u32,
}

/// The engine's side of a receive queue: a WQ's, or a plain queue pair's.
pub(crate) struct QueueState {
    pub(crate) owner: u32,
    pub(crate) users: u32,
    pub(crate) kind: QueueOwner,
    pub(crate) consumer: Requests,
    pub(crate) max_sge: u32,
    pub(crate) cq: u32,
    /// The protection domain that its buffers must be registered in.
    pub(crate) domain: u32,
    /// The number completions carry.
    pub(crate) number: u32,
    pub(crate) ready: bool,
    pub(crate) edits: FrameEdits,
    pub(crate) unpublished: bool,
    pub(crate) planned: Planned,
    /// Frames and copies for this queue that met no posted buffer. Written with the state locked, read
    /// without.
    pub(crate) out_of_buffer: Arc<AtomicU64>,
    /// Shared with the posting side: an `ibv_wq_state` or `ibv_qp_state`.
    pub(crate) native_state: Arc<AtomicU32>,
    /// The application's `ibv_wq` or `ibv_qp`, for events, and how many were sent.
    pub(crate) native: u64,
    pub(crate) events: u32,
}

/// The parts of a receive queue to be made.
pub(crate) struct NewQueue {
    pub(crate) owner: u32,
    pub(crate) domain: u32,
    pub(crate) cq: u32,
    pub(crate) consumer: Requests,
    pub(crate) max_sge: u32,
    pub(crate) edits: FrameEdits,
    pub(crate) native_state: Arc<AtomicU32>,
    pub(crate) native: u64,
}

impl QueueState {
    /// A queue in RESET, without a number.
    pub(crate) fn new(kind: QueueOwner, new: NewQueue) -> Self {
        let NewQueue { owner, domain, cq, consumer, max_sge, edits, native_state, native } = new;
        Self {
            owner,
            users: 0,
            kind,
            consumer,
            max_sge,
            cq,
            domain,
            number: 0,
            ready: false,
            edits,
            unpublished: false,
            planned: Planned::default(),
            out_of_buffer: Arc::default(),
            native_state,
            native,
            events: 0,
        }
    }
}

/// An indirection table.
pub(crate) struct TableState {
    pub(crate) owner: u32,
    pub(crate) users: u32,
    pub(crate) queues: Box<[u32]>,
}

/// Where a queue pair's frames go.
pub(crate) enum QpKind {
    Rss {
        table: u32,
        rss: Box<Rss<u32>>,
    },
    /// With rings of its own: for raw packets, or for datagrams.
    Raw {
        queue: u32,
        send: SendState,
    },
}

/// The engine's side of a send queue.
pub(crate) struct SendState {
    pub(crate) consumer: Sends,
    pub(crate) cq: u32,
    pub(crate) signal_all: bool,
    pub(crate) shape: SendShape,
    pub(crate) pace: Pace,
    /// Wakes the engine of its port.
    pub(crate) bell: Arc<SendBell>,
}

/// A queue pair.
pub(crate) struct QpState {
    pub(crate) owner: u32,
    /// Flows that point here.
    pub(crate) users: u32,
    pub(crate) domain: u32,
    pub(crate) number: u32,
    pub(crate) port: u8,
    /// Most of these mean nothing here and are only returned by queries; the Q_Key is that of a datagram
    /// queue pair.
    pub(crate) attributes: QpAttributes,
    pub(crate) kind: QpKind,
}

/// Attributes that `ibv_modify_qp` sets and `ibv_query_qp` returns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpAttributes {
    pub(crate) pkey_index: u16,
    pub(crate) qkey: u32,
    pub(crate) sq_psn: u32,
    /// Kilobits per second.
    pub(crate) rate_limit: u32,
}

impl QpState {
    pub(crate) fn new(owner: u32, domain: u32, kind: QpKind) -> Self {
        Self { owner, users: 0, domain, number: 0, port: 0, attributes: QpAttributes::default(), kind }
    }

    /// Whether what it sends are datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        matches!(&self.kind, QpKind::Raw { send, .. } if send.shape.datagram)
    }
}

/// The quantity that a counter point counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterPoint {
    /// The packets of the flows.
    Packets,
    /// Their bytes.
    Bytes,
}

/// A counter set.
pub(crate) struct CounterState {
    pub(crate) owner: u32,
    pub(crate) users: u32,
    /// Once a flow was bound nothing can be attached, even after the flow is gone.
    pub(crate) bound: bool,
    /// Index in the application's array, and what goes there.
    pub(crate) points: Vec<(u32, CounterPoint)>,
    /// The packets that the engine has counted.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// The counters of the wires, by port.
    pub(crate) of_wires: Vec<(u8, DropCounter)>,
}

/// A flow: what it keeps in use.
pub(crate) struct FlowState {
    pub(crate) owner: u32,
    pub(crate) qp: u32,
    pub(crate) counter: Option<u32>,
}

impl State {
    pub(crate) fn new(rules: &Rules) -> Self {
        let ObjectLimits { queues, tables, counters } = rules.most;
        Self {
            limits: rules.flow.limits.clone(),
            contexts: Slab::new(limits::MAX_CONTEXTS),
            domains: Slab::new(limits::MAX_DOMAINS),
            thread_domains: Slab::new(limits::MAX_DOMAINS),
            memory: MemoryTable::new(),
            channels: Slab::new(limits::MAX_CHANNELS),
            cqs: Slab::new(limits::MAX_CQS),
            queues: Slab::new(limits::MAX_QUEUES),
            tables: Slab::new(tables),
            qps: Slab::new(queues),
            counters: Slab::new(counters),
            flow_objects: Slab::new(flow_table::MAX_FLOWS),
            senders: Vec::new(),
            failed_queues: Vec::new(),
            unpublished_cqs: Vec::new(),
            unpublished_sends: Vec::new(),
            unpublished_queues: Vec::new(),
            waiting_cqs: Vec::new(),
            watched_cqs: Vec::new(),
            next_flow_order: 0,
        }
    }

    /// Adds a receive queue, with room to note it as unpublished or failed without allocating.
    pub(crate) fn insert_queue(&mut self, queue: QueueState) -> Option<u32> {
        let slot = self.queues.insert(queue)?;
        let wanted = self.queues.slot_count();
        self.unpublished_queues.reserve(wanted.saturating_sub(self.unpublished_queues.len()));
        self.failed_queues.reserve(wanted.saturating_sub(self.failed_queues.len()));
        Some(slot)
    }

    /// The creation number of the next flow.
    pub(crate) fn flow_order(&mut self) -> u64 {
        self.next_flow_order += 1;
        self.next_flow_order
    }

    /// Sends an event to a context; returns 1 if it went.
    pub(crate) fn notify(&self, owner: u32, event_type: u32, element: u64) -> u32 {
        let sent = self.contexts.get(owner).is_some_and(|context| context.events.send(event_type, element));
        u32::from(sent)
    }

    /// Takes back an object's unread events; of `sent`, returns how many the application has read.
    pub(crate) fn retract_events(&self, owner: u32, element: u64, sent: u32) -> u32 {
        let unread = self.contexts.get(owner).map_or(0, |context| context.events.retract(element));
        sent.saturating_sub(unread)
    }

    /// Puts a receive queue into the error state. What is posted is flushed at the end of the pass.
    #[cold]
    pub(crate) fn fail_queue(&mut self, slot: u32) {
        let Some(queue) = self.queues.get_mut(slot) else { return };
        queue.ready = false;
        let (owner, native, kind) = (queue.owner, queue.native, queue.kind);
        let event = match kind {
            QueueOwner::WorkQueue => {
                queue.native_state.store(ibverbs_sys::IBV_WQS_ERR, Ordering::Relaxed);
                ibverbs_sys::IBV_EVENT_WQ_FATAL
            }
            QueueOwner::QueuePair(qp) => {
                queue.native_state.store(ibverbs_sys::ibv_qp_state::IBV_QPS_ERR, Ordering::Relaxed);
                self.senders.retain(|sender| *sender != qp);
                ibverbs_sys::IBV_EVENT_QP_FATAL
            }
        };
        let sent = self.notify(owner, event, native);
        if let Some(queue) = self.queues.get_mut(slot) {
            queue.events += sent;
        }
        if !self.failed_queues.contains(&slot) {
            self.failed_queues.push(slot);
        }
    }

    /// Completes everything posted to a failed queue with WR_FLUSH_ERR, as far as its completion queue has
    /// room.
    pub(crate) fn flush_queue(&mut self, slot: u32) {
        loop {
            let Some(queue) = self.queues.get_mut(slot) else { return };
            let (cq, number) = (queue.cq, queue.number);
            let room = self.cqs.get_mut(cq).is_some_and(|cq| !cq.failed && cq.producer.has_room(1));
            if !room {
                break;
            }
            let Some(wr_id) = queue.consumer.take() else { break };
            self.complete(cq, &Cqe::failed(wr_id, WorkOpcode::Receive, Status::WorkRequestFlush, number));
        }
        if let Some(queue) = self.queues.get(slot) {
            queue.consumer.publish();
        }
    }

    /// Completes everything posted to the send side of a failed queue pair with WR_FLUSH_ERR.
    pub(crate) fn flush_sends(&mut self, slot: u32) {
        loop {
            let Some(QpState { kind: QpKind::Raw { send, .. }, number, .. }) = self.qps.get_mut(slot) else {
                return;
            };
            let (number, cq) = (*number, send.cq);
            let room = self.cqs.get_mut(cq).is_some_and(|cq| !cq.failed && cq.producer.has_room(1));
            let next = if room { send.consumer.take() } else { None };
            let Some(wr_id) = next else {
                send.consumer.publish();
                return;
            };
            self.complete(cq, &Cqe::failed(wr_id, WorkOpcode::Send, Status::WorkRequestFlush, number));
        }
    }

    /// A number for the next queue pair or work queue in `slot`: never 0, within 24 bits.
    pub(crate) fn number(slot: u32, base: u32) -> u32 {
        (base + slot) & MAX_TAGGED_NUMBER
    }

    /// Removes everything that a closed context left behind, users first.
    pub(crate) fn remove_owned(&mut self, owner: u32) {
        for slot in owned(&self.qps, |object| object.owner == owner) {
            self.senders.retain(|sender| *sender != slot);
            self.qps.remove(slot);
        }
        for slot in owned(&self.tables, |object| object.owner == owner) {
            self.tables.remove(slot);
        }
        for slot in owned(&self.queues, |object| object.owner == owner) {
            self.failed_queues.retain(|failed| *failed != slot);
            self.queues.remove(slot);
        }
        for slot in owned(&self.cqs, |object| object.owner == owner) {
            self.remove_cq(slot);
        }
        for slot in owned(&self.channels, |object| object.owner == owner) {
            self.channels.remove(slot);
        }
        for slot in owned(&self.counters, |object| object.owner == owner) {
            self.counters.remove(slot);
        }
        self.memory.remove_owned(owner);
        for slot in owned(&self.domains, |object| object.owner == owner) {
            self.domains.remove(slot);
        }
        for slot in owned(&self.thread_domains, |object| object.owner == owner) {
            self.thread_domains.remove(slot);
        }
        self.contexts.remove(owner);
    }

    /// Takes a flow that is in the table no more, or not yet, out of use of its queue pair and counters.
    pub(crate) fn remove_flow(&mut self, slot: u32) {
        let Some(flow) = self.flow_objects.remove(slot) else { return };
        if let Some(qp) = self.qps.get_mut(flow.qp) {
            qp.users -= 1;
        }
        if let Some(counter) = flow.counter.and_then(|counter| self.counters.get_mut(counter)) {
            counter.users -= 1;
        }
    }
}

pub(crate) fn owned<T>(slab: &Slab<T>, is_owned: impl Fn(&T) -> bool) -> Vec<u32> {
    slab.iter().filter(|(_, object)| is_owned(object)).map(|(slot, _)| slot).collect()
}

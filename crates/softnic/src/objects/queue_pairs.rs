//! Queue pairs: their states, by the kernel's table (`qp_state_table` in drivers/infiniband/core/verbs.c),
//! and their rates. RSS queue pairs are made in [`super::rss`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device_model::Limit;
use ibverbs_sys::ibv_qp_state::{
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE,
};
use ibverbs_sys::{
    IBV_QP_CREATE_CVLAN_STRIPPING, IBV_QP_CREATE_SCATTER_FCS, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
};

use super::domains::use_domain;
use super::work_queues::{ForeignReceives, NumberedQueue, OwnReceives};
use crate::errno::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, Verb, known_bits};
use crate::formats::{ReceiveFormat, Requests, SendFormat, Sends};
use crate::nic::Nic;
use crate::pace::Pace;
use crate::personality::{QueuePairRules, Rules};
use crate::port_tables::PKEYS;
use crate::ring::RingConsumer;
pub use crate::send_bell::SendBell;
use crate::state::{FrameEdits, NewQueue, QpKind, QpState, QueueOwner, QueueState, SendState, State};
use crate::work::{SendShape, qp_number};

/// Refuses flags that a raw packet queue pair of the device does not have.
///
/// # Errors
/// The errno of the device.
pub fn check_create_flags(nic: &Nic, flags: u32) -> Verb<()> {
    nic.rules().objects.queue_pair.create_flags.check(flags)
}

/// The edits of received frames that flags of a queue pair ask for.
#[must_use]
pub fn edits(create_flags: u32) -> FrameEdits {
    FrameEdits {
        strip_cvlan: create_flags & IBV_QP_CREATE_CVLAN_STRIPPING != 0,
        append_fcs: create_flags & IBV_QP_CREATE_SCATTER_FCS != 0,
    }
}

/// The send queue in a foreign format of a queue pair, to be made.
pub struct ForeignSends {
    /// The completion queue.
    pub cq: u32,
    /// The queue itself; a queue pair may have none.
    pub ring: Option<Box<dyn SendFormat>>,
    /// Whether each request has a completion. The engine asks the format; this is for queries.
    pub signal_all: bool,
}

/// Adds a raw packet queue pair with queues in foreign formats, and counts what they use.
///
/// # Errors
/// EINVAL if there is no such domain, and the errno of the device if it has no more queue pairs.
pub fn insert_foreign(
    nic: &Nic,
    state: &mut State,
    receives: ForeignReceives,
    sends: ForeignSends,
) -> Verb<NumberedQueue> {
    let domain = receives.domain;
    let ForeignSends { cq, ring, signal_all } = sends;
    let sends = SendState {
        consumer: ring.map_or(Sends::None, Sends::Foreign),
        cq,
        signal_all,
        shape: SendShape { max_sge: 0, max_inline: 0, max_tso_header: 0, datagram: false },
        pace: Pace::default(),
        bell: nic.send_bell(),
    };
    let slot = insert_plain(state, receives.into(), sends)?;
    use_domain(state, domain)?;
    Ok(NumberedQueue { slot, number: qp_number(slot) })
}

/// The send queue of a queue pair on a ring of this crate's, to be made.
pub struct OwnSends {
    /// The completion queue.
    pub cq: u32,
    /// The engine's end of the ring.
    pub consumer: RingConsumer,
    /// Whether each request has a completion.
    pub signal_all: bool,
    /// The room in each request of the ring.
    pub shape: SendShape,
    /// Wakes the engine; shared with who posts.
    pub bell: Arc<SendBell>,
}

/// Adds a queue pair on rings of this crate's, for raw packets or for datagrams, and counts what they use;
/// `domain` is the one that it was made in.
///
/// # Errors
/// EINVAL if the slots of a ring are no requests of the queue or there is no such domain, and the errno of
/// the device if it has no more queue pairs.
pub fn insert(state: &mut State, receives: OwnReceives, sends: OwnSends, domain: u32) -> Verb<NumberedQueue> {
    let OwnSends { cq, consumer, signal_all, shape, bell } = sends;
    consumer.check_slots(shape.slot_bytes())?;
    let sends =
        SendState { consumer: Sends::Own(consumer), cq, signal_all, shape, pace: Pace::default(), bell };
    let slot = insert_plain(state, receives.try_into()?, sends)?;
    use_domain(state, domain)?;
    Ok(NumberedQueue { slot, number: qp_number(slot) })
}

/// Returns whether a slot is that of a queue pair of the context.
#[must_use]
pub fn is_owned(state: &State, owner: u32, slot: u32) -> bool {
    state.qps.get(slot).is_some_and(|qp| qp.owner == owner)
}

/// A raw packet queue pair with queues of its own.
pub struct RawQueuePair<'s> {
    /// The receive queue, if it is in a foreign format.
    pub receives: Option<&'s dyn ReceiveFormat>,
    /// Its state, an `ibv_qp_state`.
    pub native_state: &'s Arc<AtomicU32>,
    /// Its port, 0 if it has none yet.
    pub port: u8,
    /// Whether each send request has a completion.
    pub signal_all: bool,
}

/// The raw packet queue pair of a context in a slot.
///
/// # Errors
/// EINVAL if there is none, and EOPNOTSUPP for an RSS queue pair.
pub fn raw(state: &State, owner: u32, slot: u32) -> Verb<RawQueuePair<'_>> {
    let qp = state.qps.get(slot).filter(|qp| qp.owner == owner).ok_or(EINVAL)?;
    let QpKind::Raw { queue, send } = &qp.kind else { return Err(EOPNOTSUPP) };
    let queue = state.queues.get(*queue).ok_or(EINVAL)?;
    let receives: Option<&dyn ReceiveFormat> = match &queue.consumer {
        Requests::Foreign(ring) => Some(&**ring),
        Requests::None | Requests::Own(_) => None,
    };
    Ok(RawQueuePair {
        receives,
        native_state: &queue.native_state,
        port: qp.port,
        signal_all: send.signal_all,
    })
}

/// Adds a queue pair with queues of its own, and counts what they use, but their domain. Returns its slot.
fn insert_plain(state: &mut State, receives: NewQueue, send: SendState) -> Verb<u32> {
    let (owner, domain, cqs) = (receives.owner, receives.domain, [send.cq, receives.cq]);
    let receives = QueueState::new(QueueOwner::QueuePair(u32::MAX), receives);
    let queue = state.insert_queue(receives).ok_or(ENOMEM)?;
    let Some(slot) = state.qps.insert(QpState::new(owner, domain, QpKind::Raw { queue, send })) else {
        state.queues.remove(queue);
        return Err(state.limits.of(Limit::Queues));
    };
    let number = qp_number(slot);
    if let Some(qp) = state.qps.get_mut(slot) {
        qp.number = number;
    }
    if let Some(queue) = state.queues.get_mut(queue) {
        (queue.kind, queue.number) = (QueueOwner::QueuePair(slot), number);
    }
    for cq in cqs {
        if let Some(cq) = state.cqs.get_mut(cq) {
            cq.users += 1;
        }
    }
    // Room to note the queue pair without allocating: as a sender, and as one with requests to give back.
    let wanted = state.qps.slot_count();
    for list in [&mut state.senders, &mut state.unpublished_sends] {
        list.reserve(wanted.saturating_sub(list.len()));
    }
    Ok(slot)
}

/// A queue pair that was taken out, with its receive queue: their memory may be the application's.
pub struct RemovedQueuePair {
    /// The protection domain of its buffers.
    pub domain: u32,
    /// The number of its events that the application has read.
    pub events_read: u32,
    _qp: QpState,
    _receives: Option<QueueState>,
}

/// Takes a queue pair out to which no flow points. Its domain is still in use.
///
/// # Errors
/// EINVAL if there is no such queue pair, and EBUSY if a flow points to it.
pub fn remove(state: &mut State, slot: u32) -> Verb<RemovedQueuePair> {
    if state.qps.get(slot).ok_or(EINVAL)?.users != 0 {
        return Err(EBUSY);
    }
    let qp = state.qps.remove(slot).ok_or(EINVAL)?;
    state.senders.retain(|sender| *sender != slot);
    let mut receives = None;
    match &qp.kind {
        QpKind::Rss { table, .. } => {
            if let Some(table) = state.tables.get_mut(*table) {
                table.users -= 1;
            }
        }
        QpKind::Raw { queue, send } => {
            state.failed_queues.retain(|failed| failed != queue);
            receives = state.queues.remove(*queue);
            let cqs = [Some(send.cq), receives.as_ref().map(|queue| queue.cq)];
            for cq in cqs.into_iter().flatten() {
                if let Some(cq) = state.cqs.get_mut(cq) {
                    cq.users -= 1;
                }
            }
        }
    }
    let events_read =
        receives.as_ref().map_or(0, |queue| state.retract_events(queue.owner, queue.native, queue.events));
    Ok(RemovedQueuePair { domain: qp.domain, events_read, _qp: qp, _receives: receives })
}

const STATE: u32 = ibv_qp_attr_mask::IBV_QP_STATE.0;
const CUR_STATE: u32 = ibv_qp_attr_mask::IBV_QP_CUR_STATE.0;
const SQD_NOTIFY: u32 = ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
const PKEY_INDEX: u32 = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0;
const PORT: u32 = ibv_qp_attr_mask::IBV_QP_PORT.0;
const QKEY: u32 = ibv_qp_attr_mask::IBV_QP_QKEY.0;
const SQ_PSN: u32 = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0;
/// `IBV_QP_RATE_LIMIT` of the attributes that are to be changed.
pub const RATE_LIMIT: u32 = ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0;

/// The attributes a queue pair must and may be given for a transition; `None` if there is no such one.
type Attributes = Option<(u32, u32)>;

/// The attributes for a transition of a raw packet queue pair.
fn raw_transition(from: ibv_qp_state::Type, to: ibv_qp_state::Type) -> Attributes {
    match (from, to) {
        (IBV_QPS_RESET..=IBV_QPS_ERR, IBV_QPS_RESET | IBV_QPS_ERR) => Some((0, 0)),
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((PORT, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, PORT)),
        (IBV_QPS_RTR | IBV_QPS_RTS, IBV_QPS_RTS) => Some((0, RATE_LIMIT)),
        (IBV_QPS_INIT, IBV_QPS_RTR)
        | (IBV_QPS_SQD | IBV_QPS_SQE, IBV_QPS_RTS)
        | (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_SQD) => Some((0, 0)),
        _ => None,
    }
}

/// The attributes for a transition of a datagram queue pair.
fn datagram_transition(from: ibv_qp_state::Type, to: ibv_qp_state::Type) -> Attributes {
    match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((PKEY_INDEX | PORT | QKEY, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, PKEY_INDEX | PORT | QKEY)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => Some((0, PKEY_INDEX | QKEY)),
        (IBV_QPS_RTR, IBV_QPS_RTS) => Some((SQ_PSN, CUR_STATE | QKEY)),
        (IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE, IBV_QPS_RTS) => Some((0, CUR_STATE | QKEY)),
        (IBV_QPS_RTS, IBV_QPS_SQD) => Some((0, SQD_NOTIFY)),
        (IBV_QPS_SQD, IBV_QPS_SQD) => Some((0, PKEY_INDEX | QKEY)),
        _ => raw_transition(from, to).filter(|attributes| *attributes == (0, 0)),
    }
}

/// The properties that decide which states a queue pair has.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairKind {
    /// It has an indirection table and no queues of its own.
    pub is_rss: bool,
    /// It sends datagrams.
    pub is_datagram: bool,
}

/// A request to change a queue pair: the attributes that the mask names, and the bytes of a burst, which
/// belong to a rate.
#[derive(Clone, Copy)]
pub struct AttributeChange<'a> {
    /// The new values.
    pub attr: &'a ibv_qp_attr,
    /// The attributes to be changed, as bits of `enum ibv_qp_attr_mask`.
    pub mask: u32,
    /// The bytes of a burst; 0 for the device's choice.
    pub burst_bytes: u32,
}

/// Changes a queue pair, everything in the request or nothing. `native` is its state.
///
/// # Errors
/// EINVAL if there is no such queue pair, port or transition, or the errno of the device.
pub fn modify(
    nic: &Nic,
    state: &mut State,
    slot: u32,
    kind: QueuePairKind,
    native: &AtomicU32,
    change: AttributeChange<'_>,
) -> Verb<()> {
    let AttributeChange { attr, mask, burst_bytes } = change;
    let rules = nic.rules();
    let from = native.load(Ordering::Relaxed);
    let to = if mask & STATE == 0 { from } else { attr.qp_state };
    check(kind, rules, from, to, change)?;
    if mask & PORT != 0 {
        nic.port(attr.port_num).ok_or(EINVAL)?;
    }
    let paced = || pace(attr.rate_limit, burst_bytes, &rules.objects.queue_pair);
    let pace = (mask & RATE_LIMIT != 0).then(paced).transpose()?;
    // Nothing is refused from here on.
    let known = state.qps.get_mut(slot).ok_or(EINVAL)?;
    let attributes = &mut known.attributes;
    let note = |bit: u32, place: &mut u32, value: u32| {
        if mask & bit != 0 {
            *place = value;
        }
    };
    note(QKEY, &mut attributes.qkey, attr.qkey);
    note(SQ_PSN, &mut attributes.sq_psn, attr.sq_psn);
    note(RATE_LIMIT, &mut attributes.rate_limit, attr.rate_limit);
    if mask & PKEY_INDEX != 0 {
        attributes.pkey_index = attr.pkey_index;
    }
    if mask & PORT != 0 {
        known.port = attr.port_num;
        if let QpKind::Raw { send, .. } = &known.kind {
            send.bell.set_engine(nic.engine_of(attr.port_num));
        }
    }
    if let (Some(pace), QpKind::Raw { send, .. }) = (pace, &mut known.kind) {
        send.pace = pace;
    }
    enter(state, slot, kind, native, to)
}

/// The attributes that a queue pair with queues of its own was given. Its state is not among them.
///
/// # Errors
/// EINVAL if there is no such queue pair.
pub fn query(state: &State, slot: u32) -> Verb<ibv_qp_attr> {
    let QpState { port, attributes, .. } = state.qps.get(slot).ok_or(EINVAL)?;
    Ok(ibv_qp_attr {
        port_num: *port,
        pkey_index: attributes.pkey_index,
        qkey: attributes.qkey,
        sq_psn: attributes.sq_psn,
        rate_limit: attributes.rate_limit,
        ..ibv_qp_attr::default()
    })
}

/// Changes the rate of a raw packet queue pair in the state RTS, outside a transition. `native` is its state.
///
/// # Errors
/// EINVAL if there is no such queue pair or state, or the errno of the device.
pub fn set_rate(nic: &Nic, slot: u32, native: &AtomicU32, rate_kbps: u32, burst_bytes: u32) -> Verb<()> {
    let pace = pace(rate_kbps, burst_bytes, &nic.rules().objects.queue_pair)?;
    let mut state = nic.control();
    // The states in which IBV_QP_RATE_LIMIT is an attribute of the transition to the same state.
    if native.load(Ordering::Relaxed) != IBV_QPS_RTS {
        return Err(EINVAL);
    }
    let known = state.qps.get_mut(slot).ok_or(EINVAL)?;
    known.attributes.rate_limit = rate_kbps;
    if let QpKind::Raw { send, .. } = &mut known.kind {
        send.pace = pace;
    }
    Ok(())
}

/// Refuses a call that cannot be carried out.
fn check(
    kind: QueuePairKind,
    rules: &Rules,
    from: ibv_qp_state::Type,
    to: ibv_qp_state::Type,
    AttributeChange { attr, mask, .. }: AttributeChange<'_>,
) -> Verb<()> {
    if kind.is_rss && !rules.objects.rss.states {
        // The work queues of an RSS queue pair are what has states.
        return Err(EOPNOTSUPP);
    }
    let transition = if kind.is_datagram { datagram_transition } else { raw_transition };
    let (required, optional) = transition(from, to).ok_or(EINVAL)?;
    known_bits(mask, STATE | required | optional, EINVAL)?;
    if mask & required != required {
        return Err(EINVAL);
    }
    // As mlx5's: only an index in the port's table.
    if mask & PKEY_INDEX != 0 && attr.pkey_index >= PKEYS {
        return Err(EINVAL);
    }
    if mask & CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(EINVAL);
    }
    if to == IBV_QPS_SQD && !rules.objects.queue_pair.drains {
        return Err(EINVAL);
    }
    Ok(())
}

fn pace(rate_kbps: u32, burst_bytes: u32, rules: &QueuePairRules) -> Verb<Pace> {
    match rules.max_rate_kbps {
        0 => Err(EOPNOTSUPP),
        max if rate_kbps > max => Err(EINVAL),
        _ => Ok(Pace::new(rate_kbps, burst_bytes)),
    }
}

fn enter(
    state: &mut State,
    slot: u32,
    kind: QueuePairKind,
    native: &AtomicU32,
    to: ibv_qp_state::Type,
) -> Verb<()> {
    let qp = state.qps.get_mut(slot).ok_or(EINVAL)?;
    if to == IBV_QPS_RESET {
        (qp.port, qp.attributes) = Default::default();
    }
    let from = native.swap(to, Ordering::Relaxed);
    let QpKind::Raw { queue, send } = &mut qp.kind else { return Ok(()) };
    let queue = *queue;
    if to == IBV_QPS_RESET {
        send.consumer.discard();
        send.pace = Pace::default();
    }
    if let Some(receives) = state.queues.get_mut(queue) {
        // No frame from a wire is a datagram; `engine::datagram` asks for the state.
        receives.ready = !kind.is_datagram && matches!(to, IBV_QPS_RTR..=IBV_QPS_SQE);
        if [from, to].contains(&IBV_QPS_RESET) {
            receives.consumer.discard();
        }
    }
    if to != IBV_QPS_RTS {
        state.senders.retain(|sender| *sender != slot);
    } else if !state.senders.contains(&slot) {
        state.senders.push(slot);
    }
    state.failed_queues.retain(|failed| *failed != queue);
    if to == IBV_QPS_ERR {
        state.failed_queues.push(queue);
        state.flush_queue(queue);
        state.flush_sends(slot);
        state.publish();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_up_needs_the_port_once() {
        assert_eq!(raw_transition(IBV_QPS_RESET, IBV_QPS_INIT), Some((PORT, 0)));
        assert_eq!(raw_transition(IBV_QPS_INIT, IBV_QPS_RTR), Some((0, 0)));
        assert_eq!(raw_transition(IBV_QPS_RTR, IBV_QPS_RTS), Some((0, RATE_LIMIT)));
        assert_eq!(datagram_transition(IBV_QPS_RESET, IBV_QPS_INIT), Some((PKEY_INDEX | PORT | QKEY, 0)));
        assert_eq!(datagram_transition(IBV_QPS_INIT, IBV_QPS_RTR), Some((0, PKEY_INDEX | QKEY)));
        assert_eq!(datagram_transition(IBV_QPS_RTR, IBV_QPS_RTS), Some((SQ_PSN, CUR_STATE | QKEY)));
    }

    #[test]
    fn steps_cannot_be_skipped_nor_states_invented() {
        assert_eq!(raw_transition(IBV_QPS_RESET, IBV_QPS_RTS), None);
        assert_eq!(raw_transition(IBV_QPS_RESET, IBV_QPS_RTR), None);
        assert_eq!(raw_transition(IBV_QPS_INIT, IBV_QPS_RTS), None);
        assert_eq!(raw_transition(IBV_QPS_ERR, IBV_QPS_RTS), None);
        assert_eq!(raw_transition(IBV_QPS_RTS, IBV_QPS_INIT), None);
        assert_eq!(raw_transition(IBV_QPS_RTS, 17), None);
        assert_eq!(raw_transition(IBV_QPS_RTS, IBV_QPS_ERR), Some((0, 0)));
        assert_eq!(raw_transition(IBV_QPS_ERR, IBV_QPS_RESET), Some((0, 0)));
    }

    #[test]
    fn both_types_have_the_same_ways() {
        for from in 0..9 {
            for to in 0..9 {
                let (raw, datagram) = (raw_transition(from, to), datagram_transition(from, to));
                assert_eq!(raw.is_some(), datagram.is_some(), "{from} to {to}");
            }
        }
    }
}

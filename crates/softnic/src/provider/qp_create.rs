//! Making queue pairs: RAW_PACKET only, plain ones with rings of their own, and RSS ones over an indirection table.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ibverbs_sys::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH,
    IBV_RX_HASH_FUNC_TOEPLITZ, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type, ibv_rx_hash_conf,
};
use packet::{HashFields, RssKey};

use super::Object;
use super::answer::{EINVAL, ENOMEM, EOPNOTSUPP, Verb, answer_handle, known_bits};
use super::context::HASH_FIELDS;
use super::cq::SoftCq;
use super::pd::{SoftPd, make_ring, use_domain};
use super::qp::{Plain, SoftQp};
use super::qp_send::SendPoster;
use super::receive::ReceivePoster;
use super::spin::Spin;
use super::table::SoftTable;
use crate::device::SoftContext;
use crate::limits::{MAX_INLINE_BYTES, MAX_SGE, MAX_WR, RSS_KEY_BYTES};
use crate::ring::{Consumer, Producer};
use crate::rss::Rss;
use crate::state::{QpKind, QpState, QueueOwner, QueueState, SendState, State};
use crate::work::{receive_slot_bytes, send_slot_bytes};

/// Queue pairs are numbered from here, away from QP 0 and 1 and from the numbers of work queues.
const FIRST_NUMBER: u32 = 0x11;

/// What is asked of a plain queue pair.
struct PlainRequest {
    context: *mut ibv_context,
    qp_context: *mut std::ffi::c_void,
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    cap: ibv_qp_cap,
    signal_all: bool,
}

pub(crate) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    answer_handle(|| {
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        // SAFETY: NULL or a domain of this provider, by the verb's contract.
        let context = unsafe { SoftPd::of(pd) }?.context();
        check_type(attr.qp_type, attr.srq.is_null())?;
        let request = PlainRequest {
            context,
            qp_context: attr.qp_context,
            pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            cap: attr.cap,
            signal_all: attr.sq_sig_all != 0,
        };
        let (qp, cap) = create_plain(&request)?;
        attr.cap = cap;
        Ok(qp)
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    answer_handle(|| {
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_IND_TABLE
            | IBV_QP_INIT_ATTR_RX_HASH;
        known_bits(attr.comp_mask, known, EOPNOTSUPP)?;
        let given = |bit: u32| attr.comp_mask & bit != 0;
        if given(IBV_QP_INIT_ATTR_CREATE_FLAGS) {
            known_bits(attr.create_flags, 0, EOPNOTSUPP)?;
        }
        check_type(attr.qp_type, attr.srq.is_null())?;
        if !given(IBV_QP_INIT_ATTR_PD) || given(IBV_QP_INIT_ATTR_IND_TABLE) != given(IBV_QP_INIT_ATTR_RX_HASH)
        {
            return Err(EINVAL);
        }
        if given(IBV_QP_INIT_ATTR_IND_TABLE) {
            return create_rss(context, attr);
        }
        let request = PlainRequest {
            context,
            qp_context: attr.qp_context,
            pd: attr.pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            cap: attr.cap,
            signal_all: attr.sq_sig_all != 0,
        };
        let (qp, cap) = create_plain(&request)?;
        attr.cap = cap;
        Ok(qp)
    })
}

fn check_type(qp_type: ibv_qp_type::Type, no_srq: bool) -> Verb<()> {
    if qp_type == ibv_qp_type::IBV_QPT_RAW_PACKET && no_srq { Ok(()) } else { Err(EOPNOTSUPP) }
}

fn check_cap(cap: &ibv_qp_cap) -> Verb<()> {
    let fits = cap.max_send_wr <= MAX_WR
        && cap.max_recv_wr <= MAX_WR
        && cap.max_send_sge <= MAX_SGE
        && cap.max_recv_sge <= MAX_SGE
        && cap.max_inline_data <= MAX_INLINE_BYTES;
    if fits { Ok(()) } else { Err(EINVAL) }
}

fn create_plain(request: &PlainRequest) -> Verb<(*mut ibv_qp, ibv_qp_cap)> {
    // SAFETY: the library passes a live context of this provider.
    let soft = unsafe { SoftContext::of(request.context) }?;
    // SAFETY: NULL or a domain of this provider, by the verb's contract.
    let pd = unsafe { SoftPd::of(request.pd) }?;
    // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
    let send_cq = unsafe { SoftCq::of(request.send_cq.cast()) }?;
    // SAFETY: as above.
    let recv_cq = unsafe { SoftCq::of(request.recv_cq.cast()) }?;
    if [pd.context(), send_cq.context(), recv_cq.context()] != [request.context; 3] {
        return Err(EINVAL);
    }
    check_cap(&request.cap)?;
    let mut cap = request.cap;
    cap.max_send_sge = cap.max_send_sge.max(1);
    cap.max_recv_sge = cap.max_recv_sge.max(1);
    let send_bytes = send_slot_bytes(cap.max_send_sge, cap.max_inline_data);
    let resources = &soft.nic().rules().domain.resources;
    let sends = make_ring(resources, Some(pd), cap.max_send_wr, send_bytes, resources.queue_pair)?;
    let receive_bytes = receive_slot_bytes(cap.max_recv_sge);
    let receives = make_ring(resources, Some(pd), cap.max_recv_wr, receive_bytes, resources.queue_pair)?;
    cap.max_send_wr = sends.0.limit();
    cap.max_recv_wr = receives.0.limit();
    let base = base(request.context, request.pd, request.qp_context, [request.send_cq, request.recv_cq]);
    let single_threaded = pd.single_threaded();
    let mut object = new_object(base, pd.slot, cap, request.signal_all);
    let (engine_sends, engine_receives) = split(&mut object, sends, receives, &cap, single_threaded);
    let queues = PlainQueues {
        owner: soft.slot,
        base_domain: pd.base,
        sends: engine_sends,
        receives: engine_receives,
        send_cq: send_cq.slot,
        recv_cq: recv_cq.slot,
    };
    register_plain(&mut soft.nic().control(), queues, &mut object)?;
    Ok((Box::into_raw(object).cast(), cap))
}

/// The engine's sides of a plain queue pair's rings, and what they belong to.
struct PlainQueues {
    owner: u32,
    base_domain: u32,
    sends: Consumer,
    receives: Consumer,
    send_cq: u32,
    recv_cq: u32,
}

/// Gives the object its posting sides; answers the engine's.
fn split(
    object: &mut SoftQp,
    sends: (Producer, Consumer),
    receives: (Producer, Consumer),
    cap: &ibv_qp_cap,
    single_threaded: bool,
) -> (Consumer, Consumer) {
    let receive = ReceivePoster { producer: receives.0, max_sge: cap.max_recv_sge };
    let send = SendPoster { producer: sends.0, max_sge: cap.max_send_sge, max_inline: cap.max_inline_data };
    object.plain = Some(Plain {
        receives: Spin::new(receive, single_threaded),
        sends: Spin::new(send, single_threaded),
    });
    (sends.1, receives.1)
}

fn register_plain(state: &mut State, queues: PlainQueues, object: &mut Box<SoftQp>) -> Verb<()> {
    let native = (&raw const **object).addr() as u64;
    let queue = QueueState {
        owner: queues.owner,
        users: 0,
        kind: QueueOwner::QueuePair(u32::MAX),
        consumer: queues.receives,
        max_sge: object.cap.max_recv_sge,
        cq: queues.recv_cq,
        domain: queues.base_domain,
        number: 0,
        ready: false,
        unpublished: false,
        planned: 0,
        native_state: Arc::clone(&object.state),
        native,
        events: 0,
    };
    let queue = state.insert_queue(queue).ok_or(ENOMEM)?;
    let send = SendState {
        consumer: queues.sends,
        cq: queues.send_cq,
        signal_all: object.signal_all,
        max_sge: object.cap.max_send_sge,
        max_inline: object.cap.max_inline_data,
    };
    let qp = new_state(queues.owner, queues.base_domain, QpKind::Raw { queue, send });
    let Some(slot) = state.qps.insert(qp) else {
        state.queues.remove(queue);
        return Err(ENOMEM);
    };
    let number = finish(state, slot, object)?;
    if let Some(queue) = state.queues.get_mut(queue) {
        queue.kind = QueueOwner::QueuePair(slot);
        queue.number = number;
    }
    for cq in [queues.send_cq, queues.recv_cq] {
        if let Some(cq) = state.cqs.get_mut(cq) {
            cq.users += 1;
        }
    }
    // Room to note the queue pair as a sender without allocating.
    let wanted = state.qps.slot_count();
    state.senders.reserve(wanted.saturating_sub(state.senders.len()));
    Ok(())
}

fn new_state(owner: u32, domain: u32, kind: QpKind) -> QpState {
    QpState { owner, users: 0, domain, number: 0, port: 0, kind }
}

/// Numbers a registered queue pair and counts its domain.
fn finish(state: &mut State, slot: u32, object: &mut SoftQp) -> Verb<u32> {
    let number = State::number(slot, FIRST_NUMBER);
    if let Some(qp) = state.qps.get_mut(slot) {
        qp.number = number;
    }
    use_domain(state, object.domain)?;
    object.slot = slot;
    let native = &mut object.qp.get_mut().qp_base;
    native.handle = slot;
    native.qp_num = number;
    Ok(number)
}

fn base(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    qp_context: *mut std::ffi::c_void,
    [send_cq, recv_cq]: [*mut ibv_cq; 2],
) -> ibv_qp {
    ibv_qp {
        context,
        qp_context,
        pd,
        send_cq,
        recv_cq,
        state: ibv_qp_state::IBV_QPS_RESET,
        qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET,
        ..ibv_qp::default()
    }
}

fn new_object(qp_base: ibv_qp, domain: u32, cap: ibv_qp_cap, signal_all: bool) -> Box<SoftQp> {
    Box::new(SoftQp {
        context: qp_base.context,
        qp: UnsafeCell::new(ibv_qp_ex { qp_base, ..ibv_qp_ex::default() }),
        slack: SoftQp::NO_SLACK,
        slot: 0,
        domain,
        state: Arc::new(AtomicU32::new(ibv_qp_state::IBV_QPS_RESET)),
        cap,
        signal_all,
        plain: None,
    })
}

fn create_rss(context: *mut ibv_context, attr: &ibv_qp_init_attr_ex) -> Verb<*mut ibv_qp> {
    // SAFETY: the library passes a live context of this provider.
    let soft = unsafe { SoftContext::of(context) }?;
    // SAFETY: NULL or a domain of this provider, by the verb's contract.
    let pd = unsafe { SoftPd::of(attr.pd) }?;
    // SAFETY: NULL or a table of this provider, by the verb's contract.
    let table = unsafe { SoftTable::of(attr.rwq_ind_tbl) }?;
    if pd.context() != context || table.context() != context {
        return Err(EINVAL);
    }
    let (key, fields) = hash(&attr.rx_hash_conf)?;
    let base = base(context, attr.pd, attr.qp_context, [attr.send_cq, attr.recv_cq]);
    let mut object = new_object(base, pd.slot, ibv_qp_cap::default(), false);
    let mut state = soft.nic().control();
    let entries = state.tables.get(table.slot).ok_or(EINVAL)?;
    let rss = Rss::new(&key, fields, &entries.queues).map_err(|_| EINVAL)?;
    let kind = QpKind::Rss { table: table.slot, rss: Box::new(rss) };
    let qp = new_state(soft.slot, pd.base, kind);
    let slot = state.qps.insert(qp).ok_or(ENOMEM)?;
    finish(&mut state, slot, &mut object)?;
    if let Some(table) = state.tables.get_mut(table.slot) {
        table.users += 1;
    }
    drop(state);
    Ok(Box::into_raw(object).cast())
}

fn hash(conf: &ibv_rx_hash_conf) -> Verb<(RssKey, HashFields)> {
    if u32::from(conf.rx_hash_function) != IBV_RX_HASH_FUNC_TOEPLITZ
        || conf.rx_hash_key_len != RSS_KEY_BYTES
        || conf.rx_hash_key.is_null()
    {
        return Err(EINVAL);
    }
    // No INNER (no tunnels here), no SPI.
    if conf.rx_hash_fields_mask & !HASH_FIELDS != 0 {
        return Err(EOPNOTSUPP);
    }
    let mut key = [0; RSS_KEY_BYTES as usize];
    // SAFETY: the application's key has `rx_hash_key_len` bytes, and that is the array's length.
    unsafe { key.as_mut_ptr().copy_from_nonoverlapping(conf.rx_hash_key, key.len()) };
    let fields = u32::try_from(conf.rx_hash_fields_mask).map_err(|_| EOPNOTSUPP)?;
    Ok((RssKey(key), HashFields::from_bits_truncate(fields)))
}

//! Making queue pairs: with rings of their own, for raw packets and for datagrams; and RSS queue pairs, which
//! have none.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ibverbs_sys::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_CREATE_CVLAN_STRIPPING, IBV_QP_CREATE_PCI_WRITE_END_PADDING,
    IBV_QP_CREATE_SCATTER_FCS, IBV_QP_CREATE_SOURCE_QPN, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, ibv_context, ibv_cq, ibv_pd, ibv_qp,
    ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type,
    ibv_rx_hash_conf,
};
use softnic::errno::{EINVAL, EOPNOTSUPP, Verb, known_bits};
use softnic::limits::{MAX_INLINE_BYTES, MAX_SGE, MAX_TSO_HEADER_BYTES};
use softnic::objects::domains::use_domain;
use softnic::objects::queue_pairs::{self, OwnSends, edits};
use softnic::objects::rss::{HashRequest, hash, insert_rss};
use softnic::objects::work_queues::{NumberedQueue, OwnReceives};
use softnic::personality::{QueuePairRules, RssRules};
use softnic::work::{SendShape, qp_number, receive_slot_bytes};

use super::Object;
use super::answer::answer_handle;
use super::cq::SoftCq;
use super::held::Held;
use super::pd::{SoftPd, make_ring};
use super::qp::{Plain, SoftQp};
use super::qp_send;
use super::qp_send::{Batch, SendPoster};
use super::spin::Spin;
use super::wq::ReceivePoster;
use super::wq::SoftTable;
use crate::library::Library;
use crate::soft_context::SoftContext;

/// All of `enum ibv_qp_create_flags`.
const CREATE_FLAGS: u32 = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
    | IBV_QP_CREATE_SCATTER_FCS
    | IBV_QP_CREATE_CVLAN_STRIPPING
    | IBV_QP_CREATE_SOURCE_QPN
    | IBV_QP_CREATE_PCI_WRITE_END_PADDING;

/// A request for a queue pair with rings of its own.
struct Request {
    context: *mut ibv_context,
    qp_context: *mut std::ffi::c_void,
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    cap: ibv_qp_cap,
    qp_type: ibv_qp_type::Type,
    has_srq: bool,
    signal_all: bool,
    extras: Extras,
}

/// The attributes that only `ibv_create_qp_ex` has.
#[derive(Default)]
struct Extras {
    create_flags: u32,
    /// Bytes of headers of a stream to be segmented, if there are to be any.
    tso_header: Option<u16>,
    /// Operations of `ibv_qp_ex`, if it is wanted.
    send_operations: Option<u64>,
}

pub(crate) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    answer_handle(|| {
        // SAFETY: NULL or the application's struct.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        // SAFETY: NULL or a domain of this provider, by the verb's contract.
        let context = unsafe { SoftPd::of(pd) }?.context();
        let request = Request {
            context,
            qp_context: attr.qp_context,
            pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            has_srq: !attr.srq.is_null(),
            signal_all: attr.sq_sig_all != 0,
            extras: Extras::default(),
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
        // SAFETY: the library passes a live context of this provider.
        let soft = unsafe { SoftContext::of(context) }?;
        soft.nic().object_rules().queue_pair.attributes.check(attr.comp_mask)?;
        let given = |bit: u32| attr.comp_mask & bit != 0;
        let request = Request {
            context,
            qp_context: attr.qp_context,
            pd: attr.pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            has_srq: !attr.srq.is_null(),
            signal_all: attr.sq_sig_all != 0,
            extras: Extras {
                create_flags: if given(IBV_QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 },
                tso_header: given(IBV_QP_INIT_ATTR_MAX_TSO_HEADER).then_some(attr.max_tso_header),
                send_operations: given(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags),
            },
        };
        let rss = given(IBV_QP_INIT_ATTR_IND_TABLE);
        if !given(IBV_QP_INIT_ATTR_PD) || rss != given(IBV_QP_INIT_ATTR_RX_HASH) {
            return Err(EINVAL);
        }
        if rss {
            check_receives(attr)?;
            check_type(&request, false)?;
            return create_rss(context, attr);
        }
        let (qp, cap) = create_plain(&request)?;
        attr.cap = cap;
        Ok(qp)
    })
}

/// There are no shared receive queues, and raw packets cannot have one (ibv_create_qp(3)).
fn check_type(request: &Request, datagrams: bool) -> Verb<()> {
    match request.qp_type {
        _ if request.has_srq => Err(EOPNOTSUPP),
        ibv_qp_type::IBV_QPT_RAW_PACKET => Ok(()),
        ibv_qp_type::IBV_QPT_UD if datagrams => Ok(()),
        _ => Err(EOPNOTSUPP),
    }
}

fn check_cap(cap: &ibv_qp_cap, max_requests: u32) -> Verb<()> {
    let fits = cap.max_send_wr <= max_requests
        && cap.max_recv_wr <= max_requests
        && cap.max_send_sge <= MAX_SGE
        && cap.max_recv_sge <= MAX_SGE
        && cap.max_inline_data <= MAX_INLINE_BYTES;
    if fits { Ok(()) } else { Err(EINVAL) }
}

fn check_extras(extras: &Extras, datagram: bool, rules: &QueuePairRules) -> Verb<()> {
    // kernel uverbs_cmd.c, `create_qp`: flags that no device has are EINVAL.
    known_bits(extras.create_flags, CREATE_FLAGS, EINVAL)?;
    if extras.create_flags & IBV_QP_CREATE_SOURCE_QPN != 0 && !datagram {
        // "supported only on UD QP" (ibv_create_qp_ex(3)); rdma-core's mlx5 as well.
        return Err(EINVAL);
    }
    let known = if datagram { &rules.datagram_flags } else { &rules.create_flags };
    known.check(extras.create_flags)?;
    match extras.tso_header {
        Some(_) if rules.max_tso_bytes == 0 => return Err(EOPNOTSUPP),
        Some(bytes) if datagram || bytes > MAX_TSO_HEADER_BYTES => return Err(EINVAL),
        _ => {}
    }
    let operations = if datagram { rules.datagram_send_operations } else { rules.send_operations };
    match extras.send_operations {
        Some(wanted) if wanted & !operations != 0 || operations == 0 => Err(EOPNOTSUPP),
        _ => Ok(()),
    }
}

fn create_plain(request: &Request) -> Verb<(*mut ibv_qp, ibv_qp_cap)> {
    // SAFETY: the library passes a live context of this provider.
    let soft = unsafe { SoftContext::of(request.context) }?;
    let rules = soft.nic().object_rules();
    check_type(request, true)?;
    // SAFETY: NULL or a domain of this provider, by the verb's contract.
    let pd = unsafe { SoftPd::of(request.pd) }?;
    // SAFETY: NULL or a completion queue of this provider, by the verb's contract.
    let send_cq = unsafe { SoftCq::of(request.send_cq.cast()) }?;
    // SAFETY: as above.
    let recv_cq = unsafe { SoftCq::of(request.recv_cq.cast()) }?;
    if [pd.context(), send_cq.context(), recv_cq.context()] != [request.context; 3] {
        return Err(EINVAL);
    }
    check_cap(&request.cap, soft.nic().max_requests())?;
    let datagram = request.qp_type == ibv_qp_type::IBV_QPT_UD;
    check_extras(&request.extras, datagram, &rules.queue_pair)?;
    let mut cap = request.cap;
    cap.max_send_sge = cap.max_send_sge.max(1);
    cap.max_recv_sge = cap.max_recv_sge.max(1);
    let shape = SendShape {
        max_sge: cap.max_send_sge,
        max_inline: cap.max_inline_data,
        max_tso_header: request.extras.tso_header.map_or(0, u32::from),
        datagram,
    };
    let resources = &rules.domain.resources;
    let (resource, refusal) = (resources.queue_pair, rules.domain.allocator_refusal);
    let sends = make_ring(resources, Some(pd), cap.max_send_wr, shape.slot_bytes(), resource, refusal)?;
    let receive_bytes = receive_slot_bytes(cap.max_recv_sge);
    let receives = make_ring(resources, Some(pd), cap.max_recv_wr, receive_bytes, resource, refusal)?;
    cap.max_send_wr = sends.0.limit();
    cap.max_recv_wr = receives.0.limit();
    let cqs = [request.send_cq, request.recv_cq];
    let base = base(request.context, request.pd, request.qp_context, cqs, request.qp_type);
    let mut object = new_object(base, pd.slot, cap, request.signal_all);
    object.datagram = datagram;
    if request.extras.send_operations.is_some() {
        let release = Library::loaded().ok_or(EOPNOTSUPP)?.release;
        qp_send::extend(&mut object, release);
    }
    let receives_of = OwnReceives {
        owner: soft.slot,
        domain: pd.base,
        cq: recv_cq.slot,
        consumer: receives.1,
        max_sge: cap.max_recv_sge,
        edits: edits(request.extras.create_flags),
        native_state: Arc::clone(&object.state),
        native: (&raw const *object).addr() as u64,
    };
    let bell = soft.nic().send_bell();
    let sends_of = OwnSends {
        cq: send_cq.slot,
        consumer: sends.1,
        signal_all: request.signal_all,
        shape,
        bell: Arc::clone(&bell),
    };
    let send = SendPoster {
        producer: sends.0,
        shape,
        max_tso_bytes: rules.queue_pair.max_tso_bytes,
        batch: Batch::default(),
        bell,
    };
    let receive = ReceivePoster { producer: receives.0, max_sge: cap.max_recv_sge };
    object.plain = Some(Plain {
        receives: Spin::new(receive, pd.single_threaded()),
        sends: Spin::new(send, pd.single_threaded()),
    });
    let numbered = queue_pairs::insert(&mut soft.nic().control(), receives_of, sends_of, pd.slot)?;
    number(&mut object, numbered);
    Ok((Box::into_raw(object).cast(), cap))
}

/// Puts the slot and the number of a queue pair into its handle.
fn number(object: &mut SoftQp, NumberedQueue { slot, number }: NumberedQueue) {
    object.slot = slot;
    let native = &mut object.qp.get_mut().qp_base;
    native.handle = slot;
    native.qp_num = number;
}

pub(crate) fn base(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    qp_context: *mut std::ffi::c_void,
    [send_cq, recv_cq]: [*mut ibv_cq; 2],
    qp_type: ibv_qp_type::Type,
) -> ibv_qp {
    ibv_qp {
        context,
        qp_context,
        pd,
        send_cq,
        recv_cq,
        state: ibv_qp_state::IBV_QPS_RESET,
        qp_type,
        ..ibv_qp::default()
    }
}

pub(crate) fn new_object(
    qp_base: ibv_qp,
    domain: u32,
    cap: ibv_qp_cap,
    signal_all: bool,
) -> Box<Held<SoftQp>> {
    Held::boxed(SoftQp {
        context: qp_base.context,
        qp: UnsafeCell::new(ibv_qp_ex { qp_base, ..ibv_qp_ex::default() }),
        slack: SoftQp::NO_SLACK,
        slot: 0,
        domain,
        state: Arc::new(AtomicU32::new(ibv_qp_state::IBV_QPS_RESET)),
        cap,
        signal_all,
        datagram: false,
        plain: None,
    })
}

// Making RSS queue pairs.

pub(crate) fn create_rss(context: *mut ibv_context, attr: &ibv_qp_init_attr_ex) -> Verb<*mut ibv_qp> {
    // SAFETY: the library passes a live context of this provider.
    let soft = unsafe { SoftContext::of(context) }?;
    let rules = soft.nic().object_rules();
    check(attr, &rules.rss)?;
    // SAFETY: NULL or a domain of this provider, by the verb's contract.
    let pd = unsafe { SoftPd::of(attr.pd) }?;
    // SAFETY: NULL or a table of this provider, by the verb's contract.
    let table = unsafe { SoftTable::of(attr.rwq_ind_tbl) }?;
    if pd.context() != context || table.context() != context {
        return Err(EINVAL);
    }
    // SAFETY: NULL or the application's key of the length that it states.
    let (key, fields) = hash(soft.nic(), &unsafe { hash_request(&attr.rx_hash_conf) })?;
    let base = base(context, attr.pd, attr.qp_context, [attr.send_cq, attr.recv_cq], attr.qp_type);
    let mut object = new_object(base, pd.slot, ibv_qp_cap::default(), false);
    let mut state = soft.nic().control();
    let slot = insert_rss(&mut state, soft.slot, pd.base, table.slot, &key, fields)?;
    use_domain(&mut state, pd.slot)?;
    drop(state);
    number(&mut object, NumberedQueue { slot, number: if rules.rss.numbered { qp_number(slot) } else { 0 } });
    Ok(Box::into_raw(object).cast())
}

/// The hash that an application asks for; without a key if it gives NULL.
///
/// # Safety
/// The key is NULL or has as many bytes as its length says, which do not change while the request is used.
unsafe fn hash_request(conf: &ibv_rx_hash_conf) -> HashRequest<'_> {
    let (start, bytes) = (conf.rx_hash_key.cast_const(), usize::from(conf.rx_hash_key_len));
    let key = if start.is_null() {
        &[]
    } else {
        // SAFETY: by the contract of this function.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    };
    let (function, fields) = (conf.rx_hash_function, conf.rx_hash_fields_mask);
    HashRequest { function, key_bytes: conf.rx_hash_key_len, key, fields }
}

/// Refuses attributes of a receive queue beside a table of them, as every device does (libibverbs/cmd_qp.c,
/// `ibv_icmd_create_qp`, and kernel core/uverbs_cmd.c, `create_qp`).
pub(super) fn check_receives(attr: &ibv_qp_init_attr_ex) -> Verb<()> {
    let receives = attr.cap.max_recv_wr > 0 || attr.cap.max_recv_sge > 0;
    if receives || !attr.recv_cq.is_null() || !attr.srq.is_null() { Err(EINVAL) } else { Ok(()) }
}

/// Refuses attributes of queues that an RSS queue pair does not have.
fn check(attr: &ibv_qp_init_attr_ex, rules: &RssRules) -> Verb<()> {
    if attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 {
        known_bits(attr.create_flags, 0, rules.create_flags_refusal)?;
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
        return Err(rules.send_operations_refusal);
    }
    match rules.send_queue_refusal {
        Some(errno) if attr.cap.max_send_wr > 0 => Err(errno),
        _ => Ok(()),
    }
}

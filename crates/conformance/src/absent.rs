//! Names of verbs.h that the safe crate does not say, and why: rows without a case.

use crate::Verb;

/// A name that is not offered.
#[derive(Clone, Copy, Debug)]
pub struct Absent {
    /// The verb it belongs to.
    pub verb: Verb,
    /// `structure.member`, a function, or a constant.
    pub name: &'static str,
    /// Why nobody misses it.
    pub why: &'static str,
}

const XRC: &str = "of XRC transports: ibv_create_qp_ex(3) has it for IBV_QPT_XRC_RECV only";
const MEMORY: &str = "of connected transports: in the table of ibv_wr_post(3), raw packets have sends and segments only; what a device answers to its flag is above";
const RESERVED: &str = "reserved: marks the first bit that has no meaning";
const ONE: &str = "one value, which the safe crate always says";
const ZERO: &str = "no bits are defined: always 0";
const SIZES: &str = "worked out from the specs that are given: `FlowAttr` cannot lie about them";

/// All of them.
pub const ABSENT: &[Absent] = &[
    absent(
        Verb::AllocParentDomain,
        "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC",
        "for confidential guests, since rdma-core 64: queue memory comes from the worker's own arena, which is never shared with the host",
    ),
    absent(Verb::CreateQpEx, "ibv_qp_init_attr_ex.xrcd", XRC),
    absent(Verb::CreateQpEx, "IBV_QP_INIT_ATTR_XRCD", XRC),
    absent(Verb::WrPost, "ibv_qp_ex.wr_atomic_cmp_swp", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_atomic_fetch_add", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_bind_mw", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_local_inv", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_rdma_read", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_rdma_write", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_rdma_write_imm", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_send_imm", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_send_inv", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_atomic_write", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_flush", MEMORY),
    absent(Verb::WrPost, "ibv_qp_ex.wr_set_ud_addr", "of datagrams: a raw packet brings its own addresses"),
    absent(Verb::WrPost, "ibv_qp_ex.wr_set_xrc_srqn", XRC),
    absent(
        Verb::WrPost,
        "IBV_SEND_FENCE",
        "of RC: ibv_post_send(3), \"valid only for QPs with Transport Service Type RC\"",
    ),
    absent(
        Verb::WrPost,
        "IBV_SEND_SOLICITED",
        "of RC, UC and UD: ibv_post_send(3), \"valid only for Send and RDMA Write with immediate\": a frame carries no such bit",
    ),
    absent(Verb::RxHash, "ibv_rwq_ind_table_init_attr.comp_mask", ZERO),
    absent(Verb::RxHash, "IBV_CREATE_IND_TABLE_RESERVED", RESERVED),
    absent(Verb::CreateWq, "IBV_WQ_INIT_ATTR_RESERVED", RESERVED),
    absent(Verb::CreateWq, "IBV_WQ_FLAGS_RESERVED", RESERVED),
    absent(Verb::CreateWq, "IBV_WQ_ATTR_RESERVED", RESERVED),
    absent(
        Verb::CreateWq,
        "ibv_wq_attr.curr_wq_state",
        "a check of what the caller believes; `WorkQueue` knows the state it is in",
    ),
    absent(
        Verb::CreateWq,
        "IBV_WQ_ATTR_CURR_STATE",
        "a check of what the caller believes; `WorkQueue` knows the state it is in",
    ),
    absent(
        Verb::CreateWq,
        "IBV_WQS_UNKNOWN",
        "answered by queries of a queue pair's halves, never asked for",
    ),
    absent(Verb::CreateWq, "ibv_wq_init_attr.wq_type", ONE),
    absent(Verb::CreateWq, "IBV_WQT_RQ", ONE),
    absent(Verb::CreateCqEx, "IBV_CQ_ATTR_RESERVED", RESERVED),
    absent(Verb::CreateCqEx, "ibv_modify_cq_attr.attr_mask", ONE),
    absent(Verb::PollCq, "IBV_VALUES_MASK_RESERVED", RESERVED),
    absent(Verb::CreateFlow, "ibv_flow_attr.comp_mask", ZERO),
    absent(Verb::CreateFlow, "ibv_flow_attr.size", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_tag.type", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_tag.size", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_drop.type", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_drop.size", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_handle.type", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_action_handle.size", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_counter_action.type", SIZES),
    absent(Verb::CreateFlow, "ibv_flow_spec_counter_action.size", SIZES),
    absent(Verb::Counters, "ibv_counters_init_attr.comp_mask", ZERO),
    absent(Verb::Counters, "ibv_counter_attach_attr.comp_mask", ZERO),
];

const fn absent(verb: Verb, name: &'static str, why: &'static str) -> Absent {
    Absent { verb, name, why }
}

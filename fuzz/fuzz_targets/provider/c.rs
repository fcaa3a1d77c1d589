//! The verbs API: the functions of libibverbs, and those that `inlines.c` makes from the header's inline
//! functions.
//!
//! All are declared safe, because that is the property under test: with any arguments a call returns, if
//! structs and arrays have their claimed length and handles are live or destroyed ones of an open context.

use std::ffi::{c_int, c_void};

use ibverbs_sys::*;

unsafe extern "C" {
    pub safe fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub safe fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub safe fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub safe fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub safe fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    pub safe fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        address: *mut c_void,
        bytes: usize,
        iova: u64,
        access: c_int,
    ) -> *mut ibv_mr;
    pub safe fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        address: *mut c_void,
        bytes: usize,
        access: c_int,
    ) -> c_int;
    pub safe fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub safe fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub safe fn ibv_create_cq(
        context: *mut ibv_context,
        entries: c_int,
        token: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    pub safe fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int;
    pub safe fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub safe fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        token: *mut *mut c_void,
    ) -> c_int;
    pub safe fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32);
    pub safe fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    pub safe fn ibv_ack_async_event(event: *mut ibv_async_event);
    pub safe fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub safe fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub safe fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: c_int,
        init: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub safe fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub safe fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;

    pub safe fn inline_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td;
    pub safe fn inline_dealloc_td(td: *mut ibv_td) -> c_int;
    pub safe fn inline_alloc_parent_domain(
        context: *mut ibv_context,
        attr: *mut ibv_parent_domain_init_attr,
    ) -> *mut ibv_pd;
    pub safe fn inline_create_cq_ex(
        context: *mut ibv_context,
        attr: *mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex;
    pub safe fn inline_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq;
    pub safe fn inline_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int;
    pub safe fn inline_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int;
    pub safe fn inline_poll_cq(cq: *mut ibv_cq, count: c_int, completions: *mut c_void) -> c_int;
    pub safe fn inline_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int;
    pub safe fn inline_next_poll(cq: *mut ibv_cq_ex) -> c_int;
    pub safe fn inline_end_poll(cq: *mut ibv_cq_ex);
    pub safe fn inline_read_all(cq: *mut ibv_cq_ex) -> u64;
    pub safe fn inline_create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex)
    -> *mut ibv_qp;
    pub safe fn inline_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int;
    pub safe fn inline_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int;
    pub safe fn inline_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int;
    pub safe fn inline_create_wq(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq;
    pub safe fn inline_modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int;
    pub safe fn inline_destroy_wq(wq: *mut ibv_wq) -> c_int;
    pub safe fn inline_post_wq_recv(
        wq: *mut ibv_wq,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int;
    pub safe fn inline_create_rwq_ind_table(
        context: *mut ibv_context,
        attr: *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table;
    pub safe fn inline_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int;
    pub safe fn inline_create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow;
    pub safe fn inline_destroy_flow(flow: *mut ibv_flow) -> c_int;
    pub safe fn inline_create_counters(
        context: *mut ibv_context,
        attr: *mut ibv_counters_init_attr,
    ) -> *mut ibv_counters;
    pub safe fn inline_destroy_counters(counters: *mut ibv_counters) -> c_int;
    pub safe fn inline_attach_counters_point_flow(
        counters: *mut ibv_counters,
        attr: *mut ibv_counter_attach_attr,
        flow: *mut ibv_flow,
    ) -> c_int;
    pub safe fn inline_read_counters(
        counters: *mut ibv_counters,
        values: *mut u64,
        count: u32,
        flags: u32,
    ) -> c_int;
    pub safe fn inline_query_device_ex(
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int;
    pub safe fn inline_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int;
    pub safe fn inline_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    pub safe fn inline_wr_start(qp: *mut ibv_qp_ex);
    pub safe fn inline_wr_complete(qp: *mut ibv_qp_ex) -> c_int;
    pub safe fn inline_wr_abort(qp: *mut ibv_qp_ex);
    pub safe fn inline_wr_send(qp: *mut ibv_qp_ex);
    pub safe fn inline_wr_send_imm(qp: *mut ibv_qp_ex, imm: u32);
    pub safe fn inline_wr_send_tso(qp: *mut ibv_qp_ex, headers: *mut c_void, bytes: u16, mss: u16);
    pub safe fn inline_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32);
    pub safe fn inline_wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge);
    pub safe fn inline_wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize);
}

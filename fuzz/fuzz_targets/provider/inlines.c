/* The static inline half of the verbs API, under names that can be linked to: the header itself, nothing around it. */
#include <infiniband/verbs.h>

#define HANDLE(type, name, params, args) \
	type *inline_##name params { return ibv_##name args; }
#define STATUS(name, params, args) \
	int inline_##name params { return ibv_##name args; }

HANDLE(struct ibv_td, alloc_td, (struct ibv_context *c, struct ibv_td_init_attr *a), (c, a))
STATUS(dealloc_td, (struct ibv_td *td), (td))
HANDLE(struct ibv_pd, alloc_parent_domain, (struct ibv_context *c, struct ibv_parent_domain_init_attr *a), (c, a))
HANDLE(struct ibv_cq_ex, create_cq_ex, (struct ibv_context *c, struct ibv_cq_init_attr_ex *a), (c, a))
STATUS(modify_cq, (struct ibv_cq *cq, struct ibv_modify_cq_attr *a), (cq, a))
STATUS(req_notify_cq, (struct ibv_cq *cq, int solicited), (cq, solicited))
STATUS(poll_cq, (struct ibv_cq *cq, int count, struct ibv_wc *wc), (cq, count, wc))
HANDLE(struct ibv_qp, create_qp_ex, (struct ibv_context *c, struct ibv_qp_init_attr_ex *a), (c, a))
STATUS(modify_qp_rate_limit, (struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *a), (qp, a))
STATUS(post_send, (struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad), (qp, wr, bad))
STATUS(post_recv, (struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad), (qp, wr, bad))
HANDLE(struct ibv_wq, create_wq, (struct ibv_context *c, struct ibv_wq_init_attr *a), (c, a))
STATUS(modify_wq, (struct ibv_wq *wq, struct ibv_wq_attr *a), (wq, a))
STATUS(destroy_wq, (struct ibv_wq *wq), (wq))
STATUS(post_wq_recv, (struct ibv_wq *wq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad), (wq, wr, bad))
HANDLE(struct ibv_rwq_ind_table, create_rwq_ind_table,
       (struct ibv_context *c, struct ibv_rwq_ind_table_init_attr *a), (c, a))
STATUS(destroy_rwq_ind_table, (struct ibv_rwq_ind_table *table), (table))
HANDLE(struct ibv_flow, create_flow, (struct ibv_qp *qp, struct ibv_flow_attr *a), (qp, a))
STATUS(destroy_flow, (struct ibv_flow *flow), (flow))
HANDLE(struct ibv_counters, create_counters, (struct ibv_context *c, struct ibv_counters_init_attr *a), (c, a))
STATUS(destroy_counters, (struct ibv_counters *counters), (counters))
STATUS(attach_counters_point_flow,
       (struct ibv_counters *counters, struct ibv_counter_attach_attr *a, struct ibv_flow *flow), (counters, a, flow))
STATUS(read_counters, (struct ibv_counters *counters, uint64_t *values, uint32_t count, uint32_t flags),
       (counters, values, count, flags))
STATUS(query_device_ex,
       (struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a), (c, in, a))
STATUS(query_rt_values_ex, (struct ibv_context *c, struct ibv_values_ex *values), (c, values))
STATUS(query_port, (struct ibv_context *c, uint8_t port, struct ibv_port_attr *a), (c, port, a))
STATUS(start_poll, (struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *a), (cq, a))
STATUS(next_poll, (struct ibv_cq_ex *cq), (cq))

void inline_end_poll(struct ibv_cq_ex *cq)
{
	ibv_end_poll(cq);
}

struct ibv_cq *inline_cq_ex_to_cq(struct ibv_cq_ex *cq)
{
	return ibv_cq_ex_to_cq(cq);
}

/* Every reader that the queue was made with; what it was not made with is NULL, as the manual page warns. */
uint64_t inline_read_all(struct ibv_cq_ex *cq)
{
	uint64_t sum = ibv_wc_read_opcode(cq) + ibv_wc_read_vendor_err(cq) + ibv_wc_read_wc_flags(cq);

	sum += cq->read_byte_len ? ibv_wc_read_byte_len(cq) : 0;
	sum += cq->read_imm_data ? ibv_wc_read_imm_data(cq) : 0;
	sum += cq->read_qp_num ? ibv_wc_read_qp_num(cq) : 0;
	sum += cq->read_src_qp ? ibv_wc_read_src_qp(cq) : 0;
	sum += cq->read_slid ? ibv_wc_read_slid(cq) : 0;
	sum += cq->read_sl ? ibv_wc_read_sl(cq) : 0;
	sum += cq->read_dlid_path_bits ? ibv_wc_read_dlid_path_bits(cq) : 0;
	sum += cq->read_completion_ts ? ibv_wc_read_completion_ts(cq) : 0;
	sum += cq->read_completion_wallclock_ns ? ibv_wc_read_completion_wallclock_ns(cq) : 0;
	sum += cq->read_cvlan ? ibv_wc_read_cvlan(cq) : 0;
	sum += cq->read_flow_tag ? ibv_wc_read_flow_tag(cq) : 0;
	return sum + cq->wr_id + cq->status;
}

void inline_wr_start(struct ibv_qp_ex *qp) { ibv_wr_start(qp); }
int inline_wr_complete(struct ibv_qp_ex *qp) { return ibv_wr_complete(qp); }
void inline_wr_abort(struct ibv_qp_ex *qp) { ibv_wr_abort(qp); }
void inline_wr_send(struct ibv_qp_ex *qp) { ibv_wr_send(qp); }
void inline_wr_send_imm(struct ibv_qp_ex *qp, uint32_t imm) { ibv_wr_send_imm(qp, imm); }
void inline_wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t bytes, uint16_t mss)
{
	ibv_wr_send_tso(qp, hdr, bytes, mss);
}
void inline_wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	ibv_wr_set_sge(qp, lkey, addr, length);
}
void inline_wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list)
{
	ibv_wr_set_sge_list(qp, count, list);
}
void inline_wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	ibv_wr_set_inline_data(qp, addr, length);
}

// Arms a completion queue while a poll of it is open, on the first device, which must be one with the limits of an mlx5:
// from the index of the consumer on, an event for what was not polled (rdma-core mlx5 cq.c, `mlx5_arm_cq`).
// The argument `exact`: the completion that is being polled is none of these. Other providers do not know of it before the
// poll ends, and then give an event too many.
// Exits with 0 if all is as expected; a signal ends it if a call never returns.
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void need(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

static unsigned char frame[60] = { 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5 };

static void send_one(struct ibv_qp *pair) {
    struct ibv_sge piece = { .addr = (uintptr_t)frame, .length = sizeof(frame) };
    struct ibv_send_wr request = { .wr_id = 1, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
                                   .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
    struct ibv_send_wr *bad;
    need(!ibv_post_send(pair, &request, &bad), "ibv_post_send");
}

// Whether an event comes within so many milliseconds; it is read and acknowledged.
static int has_event(struct ibv_comp_channel *channel, int patience_ms) {
    struct pollfd descriptor = { .fd = channel->fd, .events = POLLIN };
    struct ibv_cq *queue;
    void *context;
    if (poll(&descriptor, 1, patience_ms) != 1)
        return 0;
    need(!ibv_get_cq_event(channel, &queue, &context), "ibv_get_cq_event");
    ibv_ack_cq_events(queue, 1);
    return 1;
}

// Polls one completion, waited for, and perhaps arms the queue before the poll ends.
static void poll_one(struct ibv_cq_ex *queue, int arms) {
    struct ibv_poll_cq_attr attributes = {};
    int code = ENOENT;
    for (int tries = 0; tries < 10000 && code == ENOENT; tries++) {
        code = ibv_start_poll(queue, &attributes);
        if (code == ENOENT)
            usleep(1000);
    }
    need(!code, "ibv_start_poll");
    need(queue->status == IBV_WC_SUCCESS, "the status of the completion");
    need(!arms || !ibv_req_notify_cq(ibv_cq_ex_to_cq(queue), 0), "ibv_req_notify_cq in an open poll");
    ibv_end_poll(queue);
}

int main(int count, char **arguments) {
    int exact = count > 1 && !strcmp(arguments[1], "exact");
    alarm(60);
    struct ibv_device **list = ibv_get_device_list(NULL);
    need(list && list[0], "a device");
    struct ibv_context *context = ibv_open_device(list[0]);
    need(context != NULL, "ibv_open_device");
    struct ibv_pd *domain = ibv_alloc_pd(context);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    need(domain && channel, "a protection domain and a channel");
    struct ibv_cq_init_attr_ex wanted = { .cqe = 16, .channel = channel, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
    struct ibv_cq_ex *queue = ibv_create_cq_ex(context, &wanted);
    need(queue != NULL, "ibv_create_cq_ex");
    struct ibv_cq *both = ibv_cq_ex_to_cq(queue);
    struct ibv_qp_init_attr pair_wanted = { .send_cq = both, .recv_cq = both, .qp_type = IBV_QPT_RAW_PACKET,
                                            .cap = { .max_send_wr = 8, .max_send_sge = 1, .max_inline_data = 128 } };
    struct ibv_qp *pair = ibv_create_qp(domain, &pair_wanted);
    need(pair != NULL, "ibv_create_qp");
    struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    need(!ibv_modify_qp(pair, &state, IBV_QP_STATE | IBV_QP_PORT), "INIT");
    state.qp_state = IBV_QPS_RTR;
    need(!ibv_modify_qp(pair, &state, IBV_QP_STATE), "RTR");
    state.qp_state = IBV_QPS_RTS;
    need(!ibv_modify_qp(pair, &state, IBV_QP_STATE), "RTS");

    for (int round = 0; round < 100; round++) {
        send_one(pair);
        send_one(pair);
        poll_one(queue, 1);
        need(has_event(channel, 10000), "an event for the completion that was not polled");
        poll_one(queue, 1);
        if (exact && round % 20 == 0)
            need(!has_event(channel, 20), "no event, as nothing is left");
        send_one(pair);
        need(has_event(channel, 10000), "an event for the next completion");
        poll_one(queue, 0);
    }
    need(!ibv_destroy_qp(pair) && !ibv_destroy_cq(both) && !ibv_destroy_comp_channel(channel), "destroyed");
    need(!ibv_dealloc_pd(domain) && !ibv_close_device(context), "closed");
    puts("as expected");
    return 0;
}

//! `send_ops_flags` of `ibv_create_qp_ex`: which operations the sending interface is to have.

use verbs::{CompletionQueue, RawQueuePair, SendOperations};

use crate::bench::unprepared;
use crate::{Answer, Bench, Case, Expected, Outcome, Verb};

const FIELD: &str = "ibv_qp_init_attr_ex.send_ops_flags";
const NOT_THERE: Answer = Answer::Refused(libc::EOPNOTSUPP);

pub(crate) fn cases() -> Vec<Case> {
    const SEND: u64 = SendOperations::SEND.bits();
    const TSO: u64 = SendOperations::TSO.bits();
    vec![
        possible::<SEND>("IBV_QP_INIT_ATTR_SEND_OPS_FLAGS", "verbs::RawQueuePairBuilder::send_operations"),
        possible::<SEND>("IBV_QP_EX_WITH_SEND", "verbs::SendOperations::SEND"),
        possible::<TSO>("IBV_QP_EX_WITH_TSO", "verbs::SendOperations::TSO"),
        possible::<{ SEND | TSO }>("IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO", "verbs::SendOperations"),
        refused::<{ SendOperations::RDMA_WRITE.bits() }>(
            "IBV_QP_EX_WITH_RDMA_WRITE",
            "verbs::SendOperations::RDMA_WRITE",
        ),
        refused::<{ SendOperations::RDMA_WRITE_WITH_IMM.bits() }>(
            "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM",
            "verbs::SendOperations::RDMA_WRITE_WITH_IMM",
        ),
        refused::<{ SendOperations::SEND_WITH_IMM.bits() }>(
            "IBV_QP_EX_WITH_SEND_WITH_IMM",
            "verbs::SendOperations::SEND_WITH_IMM",
        ),
        refused::<{ SendOperations::RDMA_READ.bits() }>(
            "IBV_QP_EX_WITH_RDMA_READ",
            "verbs::SendOperations::RDMA_READ",
        ),
        refused::<{ SendOperations::ATOMIC_CMP_AND_SWP.bits() }>(
            "IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP",
            "verbs::SendOperations::ATOMIC_CMP_AND_SWP",
        ),
        refused::<{ SendOperations::ATOMIC_FETCH_AND_ADD.bits() }>(
            "IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD",
            "verbs::SendOperations::ATOMIC_FETCH_AND_ADD",
        ),
        refused::<{ SendOperations::LOCAL_INV.bits() }>(
            "IBV_QP_EX_WITH_LOCAL_INV",
            "verbs::SendOperations::LOCAL_INV",
        ),
        refused::<{ SendOperations::BIND_MW.bits() }>(
            "IBV_QP_EX_WITH_BIND_MW",
            "verbs::SendOperations::BIND_MW",
        ),
        refused::<{ SendOperations::SEND_WITH_INV.bits() }>(
            "IBV_QP_EX_WITH_SEND_WITH_INV",
            "verbs::SendOperations::SEND_WITH_INV",
        ),
        refused::<{ SendOperations::FLUSH.bits() }>("IBV_QP_EX_WITH_FLUSH", "verbs::SendOperations::FLUSH"),
        refused::<{ SendOperations::ATOMIC_WRITE.bits() }>(
            "IBV_QP_EX_WITH_ATOMIC_WRITE",
            "verbs::SendOperations::ATOMIC_WRITE",
        ),
    ]
}

const fn possible<const BITS: u64>(value: &'static str, offered: &'static str) -> Case {
    let expected = Expected::WORKS
        .mlx4(NOT_THERE)
        .because("rdma-core mlx4 verbs.c: MLX4_CREATE_QP_SUP_COMP_MASK has no send_ops_flags");
    Case::new(Verb::CreateQpEx, [FIELD, value, offered, "it is made, with the functions"], operations::<BITS>)
        .expect(expected)
}

const fn refused<const BITS: u64>(value: &'static str, offered: &'static str) -> Case {
    let source =
        "ibv_wr_post(3): not for raw packets; rdma-core mlx5 qp.c: MLX5_SUPPORTED_SEND_OPS_FLAGS_RAW_PACKET";
    Case::new(Verb::CreateQpEx, [FIELD, value, offered, "not for raw packets"], operations::<BITS>)
        .expect(Expected::refused(libc::EOPNOTSUPP, source))
}

fn operations<const BITS: u64>(bench: &Bench<'_>) -> Outcome {
    let cq = CompletionQueue::builder(&bench.context, 16).build().map_err(unprepared)?;
    let builder = RawQueuePair::builder(&bench.domain(), &cq.handle(), &cq.handle());
    let builder = builder.send_operations(SendOperations::from_bits_retain(BITS));
    if BITS & SendOperations::TSO.bits() != 0 {
        builder.max_tso_header(64).build()?;
    } else {
        builder.build()?;
    }
    Ok(())
}

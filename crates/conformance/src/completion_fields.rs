//! `wc_flags` of `ibv_create_cq_ex`; what their readers tell is in `completion_reads`.

use verbs::{CompletionFields, CompletionQueue};

use crate::{Answer, Bench, Case, Expected, Outcome, Verb};

const NOT_THERE: Answer = Answer::Refused(libc::EOPNOTSUPP);
const FIELD: &str = "ibv_cq_init_attr_ex.wc_flags";
/// A flag, where it is offered, and the case.
type Wanted = (&'static str, &'static str, fn(&Bench<'_>) -> Outcome);

pub(crate) fn cases() -> Vec<Case> {
    let mlx4 =
        Expected::WORKS.mlx4(NOT_THERE).because("rdma-core mlx4 verbs.c: CREATE_CQ_SUPPORTED_WC_FLAGS");
    const IB: [Wanted; 5] = [
        ("IBV_WC_EX_WITH_IMM", "verbs::CompletionFields::IMM", field::<{ CompletionFields::IMM.bits() }>),
        (
            "IBV_WC_EX_WITH_SRC_QP",
            "verbs::CompletionFields::SRC_QP",
            field::<{ CompletionFields::SRC_QP.bits() }>,
        ),
        ("IBV_WC_EX_WITH_SLID", "verbs::CompletionFields::SLID", field::<{ CompletionFields::SLID.bits() }>),
        ("IBV_WC_EX_WITH_SL", "verbs::CompletionFields::SL", field::<{ CompletionFields::SL.bits() }>),
        (
            "IBV_WC_EX_WITH_DLID_PATH_BITS",
            "verbs::CompletionFields::DLID_PATH_BITS",
            field::<{ CompletionFields::DLID_PATH_BITS.bits() }>,
        ),
    ];
    let mut all: Vec<Case> = IB
        .into_iter()
        .map(|(value, offered, run)| {
            Case::new(
                Verb::CreateCqEx,
                [FIELD, value, offered, "the queue is made; raw packets have no such thing, it reads as 0"],
                run,
            )
        })
        .collect();
    all.extend([
        wanted(
            "IBV_WC_EX_WITH_BYTE_LEN",
            "verbs::CompletionFields::BYTE_LEN",
            field::<{ CompletionFields::BYTE_LEN.bits() }>,
        ),
        wanted(
            "IBV_WC_EX_WITH_QP_NUM",
            "verbs::CompletionFields::QP_NUM",
            field::<{ CompletionFields::QP_NUM.bits() }>,
        ),
        wanted(
            "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP",
            "verbs::CompletionFields::COMPLETION_TIMESTAMP",
            field::<{ CompletionFields::COMPLETION_TIMESTAMP.bits() }>,
        ),
        wanted(
            "IBV_WC_EX_WITH_CVLAN",
            "verbs::CompletionFields::CVLAN",
            field::<{ CompletionFields::CVLAN.bits() }>,
        )
        .expect(mlx4),
        wanted(
            "IBV_WC_EX_WITH_FLOW_TAG",
            "verbs::CompletionFields::FLOW_TAG",
            field::<{ CompletionFields::FLOW_TAG.bits() }>,
        )
        .expect(mlx4),
        wanted(
            "IBV_WC_EX_WITH_TM_INFO",
            "verbs::CompletionFields::TM_INFO",
            field::<{ CompletionFields::TM_INFO.bits() }>,
        )
        .expect(mlx4),
        wanted(
            "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK",
            "verbs::CompletionFields::COMPLETION_TIMESTAMP_WALLCLOCK",
            field::<{ CompletionFields::COMPLETION_TIMESTAMP_WALLCLOCK.bits() }>,
        )
        .expect(mlx4),
        wanted("a bit without a name", "verbs::CompletionFields", field::<{ 1 << 40 }>).expect(
            Expected::all(NOT_THERE)
                .ideal(Answer::Refused(libc::EOPNOTSUPP))
                .because("rdma-core mlx5 and mlx4 verbs.c: CREATE_CQ_SUPPORTED_WC_FLAGS"),
        ),
    ]);
    all
}

const fn wanted(value: &'static str, offered: &'static str, run: fn(&Bench<'_>) -> Outcome) -> Case {
    Case::new(Verb::CreateCqEx, [FIELD, value, offered, "a queue is made that knows it"], run)
}

fn field<const BITS: u64>(bench: &Bench<'_>) -> Outcome {
    CompletionQueue::builder(&bench.context, 16).fields(CompletionFields::from_bits_retain(BITS)).build()?;
    Ok(())
}

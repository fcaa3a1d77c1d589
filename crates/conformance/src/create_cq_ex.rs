//! `ibv_create_cq_ex`: every member and flag of `ibv_cq_init_attr_ex`. The readers of completions, which
//! `wc_flags` enables, are tested in `completion_reads`.

use verbs::{
    CompletionFields, CompletionQueue, CompletionQueueBuilder, Context, EventKind, ParentDomain,
    ThreadDomain, WorkQueueFlags,
};

use crate::bench::{udp, unprepared};
use crate::endpoints::{FRAMES, Receiver};
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

/// Completions of the queues that are made to overrun.
const FEW: u32 = 4;

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateCqEx, row, run);
    let flags = "ibv_cq_init_attr_ex.flags";
    let no_domains = Expected::WORKS
        .mlx4(Answer::UNSUPPORTED)
        .because("rdma-core mlx4 mlx4.c: no parent domains, and verbs.c: CREATE_CQ_SUPPORTED_COMP_MASK");
    vec![
        case(
            ["ibv_cq_init_attr_ex.cqe", "1", "verbs::CompletionQueue::builder", "at least that many"],
            entries::<1>,
        ),
        case(
            ["ibv_cq_init_attr_ex.cqe", "1000", "verbs::CompletionQueue::builder", "at least that many"],
            entries::<1000>,
        ),
        case(["ibv_cq_init_attr_ex.cqe", "0", "verbs::CompletionQueue::builder", "refused"], no_entries)
            .expect(Expected::refused(
                libc::EINVAL,
                "ibv_create_cq_ex(3); rdma-core mlx5 verbs.c, `create_cq`: !cqe",
            )),
        case(
            ["ibv_cq_init_attr_ex.cqe", "more than max_cqe", "verbs::CompletionQueue::builder", "refused"],
            too_many,
        )
        .expect(Expected::refused(
            libc::EINVAL,
            "ibv_create_cq(3): max_cqe; rdma-core mlx5 and mlx4 verbs.c, `create_cq`",
        )),
        case(
            [
                "ibv_cq_init_attr_ex.comp_vector",
                "the last",
                "verbs::CompletionQueueBuilder::completion_vector",
                "the object is created",
            ],
            last_vector,
        ),
        case(
            [
                "ibv_cq_init_attr_ex.comp_vector",
                "num_comp_vectors",
                "verbs::CompletionQueueBuilder::completion_vector",
                "refused",
            ],
            vector_beyond,
        )
        .expect(Expected::refused(
            libc::EINVAL,
            "kernel uverbs_cmd.c, `create_cq`: comp_vector >= num_comp_vectors",
        )),
        case(
            [
                "ibv_cq_init_attr_ex.comp_mask",
                "0",
                "verbs::CompletionQueue::builder",
                "the object is created",
            ],
            entries::<16>,
        ),
        case(
            [
                flags,
                "IBV_CQ_INIT_ATTR_MASK_FLAGS",
                "verbs::CompletionQueueBuilder::single_threaded",
                "the flags are checked",
            ],
            single_threaded,
        ),
        case(
            [
                flags,
                "IBV_CREATE_CQ_ATTR_SINGLE_THREADED",
                "verbs::CompletionQueueBuilder::single_threaded",
                "the object is created",
            ],
            single_threaded,
        ),
        case(
            [
                flags,
                "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN",
                "verbs::CompletionQueueBuilder::ignore_overrun",
                "it keeps as many completions as it can hold, and the queue does not fail",
            ],
            ignored_overrun,
        )
        .needs(Needs::Frames)
        .expect(
            Expected::WORKS
                .mlx4(Answer::UNSUPPORTED)
                .because("rdma-core mlx4 verbs.c: CREATE_CQ_SUPPORTED_FLAGS"),
        ),
        case(
            [
                flags,
                "0, and one completion too many",
                "verbs::EventKind::CompletionQueueError",
                "the queue fails, and an event reports it",
            ],
            overrun,
        )
        .needs(Needs::Frames),
        case(
            [
                "ibv_cq_init_attr_ex.parent_domain",
                "IBV_CQ_INIT_ATTR_MASK_PD",
                "verbs::CompletionQueueBuilder::domain",
                "the object is created in the domain",
            ],
            in_domain,
        )
        .expect(no_domains),
        case(
            [
                "ibv_cq_init_attr_ex.parent_domain",
                "of a thread domain, single-threaded",
                "verbs::CompletionQueueBuilder::domain",
                "the object is created in the domain",
            ],
            in_thread_domain,
        )
        .expect(no_domains),
        case(
            [
                "ibv_resize_cq",
                "twice as many",
                "verbs::CompletionQueue::resize",
                "it grows and keeps its completions",
            ],
            grows,
        )
        .needs(Needs::Frames),
        case(
            [
                "ibv_resize_cq",
                "fewer than it holds",
                "verbs::CompletionQueue::resize",
                "refused, and the completions are kept",
            ],
            shrinks,
        )
        .needs(Needs::Frames)
        .expect(Expected::refused(
            libc::EINVAL,
            "ibv_resize_cq(3); kernel mlx4 cq.c, `mlx4_ib_resize_cq`: outstanding + 1",
        )),
        case(
            ["ibv_resize_cq", "more than max_cqe", "verbs::CompletionQueue::resize", "refused"],
            resized_too_large,
        )
        .expect(Expected::refused(libc::EINVAL, "ibv_resize_cq(3); rdma-core mlx5 and mlx4 verbs.c")),
        case(
            [
                "ibv_destroy_cq",
                "destroyed while in use (EBUSY in C)",
                "verbs::CompletionQueueHandle",
                "a work queue keeps it",
            ],
            kept,
        ),
    ]
}

fn build(
    bench: &Bench<'_>,
    entries: u32,
    set: impl FnOnce(CompletionQueueBuilder) -> CompletionQueueBuilder,
) -> verbs::Result<CompletionQueue> {
    set(CompletionQueue::builder(&bench.context, entries)).build()
}

fn entries<const ENTRIES: u32>(bench: &Bench<'_>) -> Outcome {
    let mut cq = build(bench, ENTRIES, |cq| cq)?;
    ensure!(cq.entries() >= ENTRIES, "{} entries instead of {ENTRIES}", cq.entries());
    ensure!(cq.poll().is_none(), "a new queue has something");
    Ok(())
}

fn no_entries(bench: &Bench<'_>) -> Outcome {
    build(bench, 0, |cq| cq)?;
    Ok(())
}

fn too_many(bench: &Bench<'_>) -> Outcome {
    build(bench, bench.attributes.max_cqe.saturating_add(1), |cq| cq)?;
    Ok(())
}

fn last_vector(bench: &Bench<'_>) -> Outcome {
    let vectors = bench.context.completion_vectors();
    ensure!(vectors > 0, "the device has none");
    build(bench, 16, |cq| cq.completion_vector(vectors - 1))?;
    Ok(())
}

fn vector_beyond(bench: &Bench<'_>) -> Outcome {
    let vectors = bench.context.completion_vectors();
    build(bench, 16, |cq| cq.completion_vector(vectors))?;
    Ok(())
}

fn single_threaded(bench: &Bench<'_>) -> Outcome {
    build(bench, 16, |cq| cq.single_threaded(true))?;
    Ok(())
}

fn in_domain(bench: &Bench<'_>) -> Outcome {
    let domain = ParentDomain::new(&bench.pd, None, None)?;
    build(bench, 16, |cq| cq.domain(&domain))?;
    Ok(())
}

fn in_thread_domain(bench: &Bench<'_>) -> Outcome {
    let thread = ThreadDomain::new(&bench.context)?;
    let domain = ParentDomain::new(&bench.pd, Some(&thread), None)?;
    build(bench, 16, |cq| cq.domain(&domain).single_threaded(true))?;
    Ok(())
}

/// A receiver over a queue of a few entries.
fn short(
    bench: &Bench<'_>,
    set: impl FnOnce(CompletionQueueBuilder) -> CompletionQueueBuilder,
) -> Result<Receiver, Failure> {
    let cq = build(bench, FEW, |cq| set(cq.fields(CompletionFields::BYTE_LEN)))?;
    Receiver::with(bench, &bench.domain(), cq, WorkQueueFlags::empty())
}

/// More packets than a queue holds: with mlx5 it holds one more than it reports.
fn flood(bench: &Bench<'_>, receiver: &Receiver) -> Outcome {
    let count = receiver.cq.entries() + 2;
    ensure!(count <= FRAMES, "the queue has {} entries", receiver.cq.entries());
    bench.deliver((0..count as u16).map(|i| udp(i, 7)));
    Ok(())
}

/// The events of the device since the last call.
fn events(context: &Context) -> Result<Vec<EventKind>, Failure> {
    let mut kinds = Vec::new();
    while let Some(event) = context.async_event()? {
        kinds.push(event.kind);
    }
    Ok(kinds)
}

fn ignored_overrun(bench: &Bench<'_>) -> Outcome {
    let mut receiver = short(bench, |cq| cq.ignore_overrun(true))?;
    let _flow = receiver.flow(&bench.flow())?;
    events(&bench.context)?;
    flood(bench, &receiver)?;
    let seen = events(&bench.context)?;
    ensure!(!seen.contains(&EventKind::CompletionQueueError), "{seen:?}");
    let most = receiver.cq.entries() as usize;
    // Which completions are there is anybody's guess.
    let mut list = Vec::new();
    let count = receiver.cq.poll_classic(&mut list, 2 * most);
    ensure!(count <= most + 1, "{count} completions of {most}");
    Ok(())
}

fn overrun(bench: &Bench<'_>) -> Outcome {
    let receiver = short(bench, |cq| cq)?;
    let _flow = receiver.flow(&bench.flow())?;
    events(&bench.context)?;
    flood(bench, &receiver)?;
    let seen = events(&bench.context)?;
    ensure!(seen.contains(&EventKind::CompletionQueueError), "{seen:?}");
    Ok(())
}

fn grows(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow())?;
    bench.deliver([udp(1, 7), udp(2, 7)]);
    let before = receiver.cq.entries();
    receiver.cq.resize(2 * before)?;
    ensure!(receiver.cq.entries() >= 2 * before, "{} entries after {before}", receiver.cq.entries());
    bench.deliver([udp(3, 7)]);
    let came = receiver.frames()?;
    ensure!(came == [udp(1, 7), udp(2, 7), udp(3, 7)], "{} frames came, or others", came.len());
    Ok(())
}

fn shrinks(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow()).map_err(|failure| Failure::Differs(format!("{failure:?}")))?;
    bench.deliver((0..20).map(|i| udp(i, 7)));
    let resized = receiver.cq.resize(2);
    let came = receiver.frames()?.len();
    ensure!(came == 20, "{came} packets of 20 are left");
    Ok(resized?)
}

fn resized_too_large(bench: &Bench<'_>) -> Outcome {
    let mut cq = build(bench, 16, |cq| cq).map_err(unprepared)?;
    cq.resize(bench.attributes.max_cqe.saturating_add(1))?;
    Ok(())
}

fn kept(bench: &Bench<'_>) -> Outcome {
    let receiver = Receiver::new(bench)?;
    let Receiver { cq, queue, receives, pool, .. } = receiver;
    let weak = std::sync::Arc::downgrade(&cq.handle());
    drop(cq);
    ensure!(weak.upgrade().is_some(), "it went before the work queue");
    drop((queue, receives, pool));
    ensure!(weak.upgrade().is_none(), "it stayed behind the work queue");
    Ok(())
}

const FIELD: &str = "ibv_cq_init_attr_ex.wc_flags";
/// A flag, where it is offered, and the case.
type Wanted = (&'static str, &'static str, fn(&Bench<'_>) -> Outcome);

pub(crate) fn completion_fields() -> Vec<Case> {
    let mlx4 = Expected::WORKS
        .mlx4(Answer::UNSUPPORTED)
        .because("rdma-core mlx4 verbs.c: CREATE_CQ_SUPPORTED_WC_FLAGS");
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
                [FIELD, value, offered, "the queue is created; the field reads as 0 for raw packets"],
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
            Expected::all(Answer::UNSUPPORTED)
                .ideal(Answer::Refused(libc::EOPNOTSUPP))
                .because("rdma-core mlx5 and mlx4 verbs.c: CREATE_CQ_SUPPORTED_WC_FLAGS"),
        ),
    ]);
    all
}

const fn wanted(value: &'static str, offered: &'static str, run: fn(&Bench<'_>) -> Outcome) -> Case {
    Case::new(Verb::CreateCqEx, [FIELD, value, offered, "the queue is created with the field"], run)
}

fn field<const BITS: u64>(bench: &Bench<'_>) -> Outcome {
    CompletionQueue::builder(&bench.context, 16).fields(CompletionFields::from_bits_retain(BITS)).build()?;
    Ok(())
}

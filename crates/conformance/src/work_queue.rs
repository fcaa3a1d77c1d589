//! `ibv_create_wq` and `ibv_modify_wq`: the queues behind an indirection table.

use verbs::{
    CompletionFields, CompletionQueue, CompletionStatus, WorkQueue, WorkQueueBuilder, WorkQueueFlags,
    WorkQueueState,
};

use crate::bench::{frame, udp, unprepared};
use crate::endpoints::{FRAMES, Receiver};
use crate::independent::frame_check_sequence;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

const FLAGS: &str = "ibv_wq_init_attr.create_flags";

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateWq, row, run);
    let mlx4 = Expected::WORKS
        .mlx4(Answer::UNSUPPORTED)
        .because("kernel mlx4 qp.c, `mlx4_ib_create_wq`: only SCATTER_FCS");
    let fixed = Expected::all(Answer::UNSUPPORTED).mlx5(Answer::Ignored).because(
        "kernel mlx5 qp.c, `mlx5_ib_modify_wq`: looks at two other flags; mlx4 qp.c, `mlx4_ib_modify_wq`: no flags",
    );
    let attr = "ibv_wq_attr.wq_state";
    vec![
        case(["ibv_wq_init_attr.wq_context", "0xbeef", "verbs::WorkQueueBuilder::token", "the object is created"], token),
        case(["ibv_wq_init_attr.max_wr", "20", "verbs::WorkQueueBuilder::max_receives", "at least that many"], max_receives),
        case(["ibv_wq_init_attr.max_wr", "more than max_qp_wr", "verbs::WorkQueueBuilder::max_receives", "refused"], too_many)
            .expect(Expected::refused(libc::EINVAL, "ibv_query_device(3): max_qp_wr; rdma-core verbs.c of mlx5 and mlx4")),
        case(["ibv_wq_init_attr.max_sge", "2", "verbs::WorkQueueBuilder::max_parts", "the object is created"], max_parts),
        case(["ibv_wq_init_attr.pd", "a protection domain", "verbs::WorkQueue::builder", "the object is created in it"], token),
        case(["ibv_wq_init_attr.cq", "a completion queue", "verbs::WorkQueue::builder", "received packets complete there"], completes).needs(Needs::Frames),
        case(["ibv_wq_init_attr.comp_mask", "IBV_WQ_INIT_ATTR_FLAGS", "verbs::WorkQueueBuilder::flags", "the flags are checked"], scatter_fcs).needs(Needs::Frames),
        case([FLAGS, "IBV_WQ_FLAGS_CVLAN_STRIPPING", "verbs::WorkQueueFlags::CVLAN_STRIPPING", "the tag is removed and reported in the completion"], strip)
            .needs(Needs::Frames)
            .expect(mlx4),
        case([FLAGS, "IBV_WQ_FLAGS_SCATTER_FCS", "verbs::WorkQueueFlags::SCATTER_FCS", "packets end with the frame check sequence computed by the suite"], scatter_fcs).needs(Needs::Frames),
        case([FLAGS, "IBV_WQ_FLAGS_DELAY_DROP", "verbs::WorkQueueFlags::DELAY_DROP", "refused: the device cannot delay drops"], delay_drop)
            .expect(Expected::all(Answer::UNSUPPORTED)
                .mlx5_varies("works with RAW_PACKET_CAP_DELAY_DROP; EPERM without CAP_SYS_RAWIO")
                .because("kernel mlx5 qp.c, `mlx5_ib_create_wq` and `create_rq`; mlx4 qp.c, `mlx4_ib_create_wq`")),
        case([FLAGS, "IBV_WQ_FLAGS_PCI_WRITE_END_PADDING", "verbs::WorkQueueFlags::PCI_WRITE_END_PADDING", "the queue is created and receives as without the flag"], padding)
            .expect(Expected::all(Answer::Ignored).mlx4(Answer::UNSUPPORTED).because("kernel mlx5 qp.c, `create_rq`: only how the device writes cache lines; mlx4 qp.c, `mlx4_ib_create_wq`: only SCATTER_FCS")),
        case(["ibv_wq_attr.attr_mask", "IBV_WQ_ATTR_STATE", "verbs::WorkQueue::ready", "the queue moves to RDY"], states),
        case([attr, "IBV_WQS_RESET", "verbs::WorkQueue::reset", "the state after creation; after ERR, RESET empties the queue"], states),
        case([attr, "IBV_WQS_RDY", "verbs::WorkQueue::ready", "from then on, not before, frames can be posted"], states),
        case([attr, "IBV_WQS_ERR", "verbs::WorkQueue::to_error", "posted receives are flushed, and no more can be posted"], flushes),
        case([attr, "IBV_WQS_ERR, IBV_WQS_RESET, IBV_WQS_RDY with a table and a flow", "verbs::ReceiveQueue::restart", "each frame comes back once, and packets arrive again by the same flow"], restarts)
            .needs(Needs::Frames),
        case(["ibv_wq_attr.flags", "IBV_WQ_ATTR_FLAGS", "verbs::WorkQueue::change_flags", "stripping is enabled while packets arrive"], switch).needs(Needs::Frames).expect(
            Expected::WORKS.mlx4(Answer::UNSUPPORTED).because("kernel mlx4 qp.c, `mlx4_ib_modify_wq`: no flags"),
        ),
        case(["ibv_wq_attr.flags_mask", "IBV_WQ_FLAGS_SCATTER_FCS", "verbs::WorkQueue::change_flags", "refused after creation"], switch_fcs).expect(fixed),
    ]
}

fn make(
    bench: &Bench<'_>,
    set: impl FnOnce(WorkQueueBuilder) -> WorkQueueBuilder,
) -> Result<verbs::ReceiveQueue, crate::Failure> {
    let cq = CompletionQueue::builder(&bench.context, 64).build().map_err(unprepared)?;
    Ok(set(WorkQueue::builder(&bench.domain(), &cq.handle())).build()?.1)
}

fn token(bench: &Bench<'_>) -> Outcome {
    make(bench, |queue| queue.token(0xbeef)).map(|_| ())
}

fn max_receives(bench: &Bench<'_>) -> Outcome {
    let receives = make(bench, |queue| queue.max_receives(20))?;
    ensure!(receives.max_receives() >= 20, "{}", receives.max_receives());
    Ok(())
}

fn too_many(bench: &Bench<'_>) -> Outcome {
    make(bench, |queue| queue.max_receives(bench.attributes.max_qp_wr.saturating_add(1))).map(|_| ())
}

fn max_parts(bench: &Bench<'_>) -> Outcome {
    make(bench, |queue| queue.max_parts(2)).map(|_| ())
}

/// EPERM is accepted: the kernel checks CAP_SYS_RAWIO first, so the answer of the device is unknown.
fn delay_drop(bench: &Bench<'_>) -> Outcome {
    let made = make(bench, |queue| queue.flags(WorkQueueFlags::DELAY_DROP)).map(|_| ());
    match made {
        Err(Failure::Refused(libc::EPERM)) if !has_raw_io() => Err(Failure::Refused(libc::EOPNOTSUPP)),
        made => made,
    }
}

/// CAP_SYS_RAWIO is effective (capabilities(7): number 17; proc(5): CapEff).
fn has_raw_io() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits >> 17 & 1 != 0)
}

fn padding(bench: &Bench<'_>) -> Outcome {
    make(bench, |queue| queue.flags(WorkQueueFlags::PCI_WRITE_END_PADDING))?;
    Err(Failure::Ignored)
}

fn completes(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow()).map_err(as_preparation)?;
    let sent = [udp(1, 2), udp(3, 4)];
    bench.deliver(sent.clone());
    let came = receiver.frames()?;
    ensure!(came == sent, "{} frames came, or others", came.len());
    Ok(())
}

#[allow(clippy::needless_pass_by_value)] // as a function of `map_err`
fn as_preparation(failure: crate::Failure) -> crate::Failure {
    crate::Failure::Differs(format!("not prepared: {failure:?}"))
}

fn with_flags(bench: &Bench<'_>, flags: WorkQueueFlags) -> Result<Receiver, crate::Failure> {
    let cq = |fields| CompletionQueue::builder(&bench.context, 128).fields(fields).build();
    let most = CompletionFields::BYTE_LEN | CompletionFields::CVLAN;
    let cq = cq(most).or_else(|_| cq(CompletionFields::BYTE_LEN)).map_err(unprepared)?;
    Receiver::with(bench, &bench.domain(), cq, flags)
}

fn tagged() -> Vec<u8> {
    frame().vlan(packet::EtherType(0x8100), 0x6064).payload(&[7; 60]).build()
}

fn without_tag(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &frame[16..]].concat()
}

fn strip(bench: &Bench<'_>) -> Outcome {
    let mut receiver = with_flags(bench, WorkQueueFlags::CVLAN_STRIPPING)?;
    let _flow = receiver.flow(&bench.flow()).map_err(as_preparation)?;
    let sent = tagged();
    bench.deliver([sent.clone(), udp(1, 2)]);
    let came = receiver.drain()?;
    ensure!(came.len() == 2, "{} packets of 2", came.len());
    ensure!(came[0].bytes == without_tag(&sent), "the tag is not just gone: {:x?}", came[0].bytes);
    ensure!(came[0].cvlan == Some(0x6064), "the completion has {:x?}", came[0].cvlan);
    ensure!(came[1].bytes == udp(1, 2), "a packet without a tag is changed");
    Ok(())
}

fn scatter_fcs(bench: &Bench<'_>) -> Outcome {
    let mut receiver = with_flags(bench, WorkQueueFlags::SCATTER_FCS)?;
    let _flow = receiver.flow(&bench.flow()).map_err(as_preparation)?;
    let sent = udp(1, 2);
    bench.deliver([sent.clone()]);
    let expected = [&sent[..], &frame_check_sequence(&sent)].concat();
    let came = receiver.frames()?;
    ensure!(came == [expected], "{came:x?}");
    Ok(())
}

fn switch(bench: &Bench<'_>) -> Outcome {
    let mut receiver = with_flags(bench, WorkQueueFlags::empty())?;
    let _flow = receiver.flow(&bench.flow()).map_err(as_preparation)?;
    let (sent, strip) = (tagged(), WorkQueueFlags::CVLAN_STRIPPING);
    bench.deliver([sent.clone()]);
    receiver.queue.change_flags(strip, strip)?;
    bench.deliver([sent.clone()]);
    receiver.queue.change_flags(WorkQueueFlags::empty(), strip)?;
    bench.deliver([sent.clone()]);
    let came = receiver.frames()?;
    ensure!(came == [sent.clone(), without_tag(&sent), sent], "{came:x?}");
    Ok(())
}

fn switch_fcs(bench: &Bench<'_>) -> Outcome {
    let receives = make(bench, |queue| queue)?;
    let flag = WorkQueueFlags::SCATTER_FCS;
    receives.work_queue().change_flags(flag, flag)?;
    Err(Failure::Ignored)
}

fn states(bench: &Bench<'_>) -> Outcome {
    let mut receives = make(bench, |queue| queue.max_receives(4))?;
    let queue = std::sync::Arc::clone(receives.work_queue());
    ensure!(queue.state() == WorkQueueState::Reset, "a new queue is {:?}", queue.state());
    let mut pool = bench.pool(&bench.domain(), 4)?;
    let mut frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    ensure!(receives.post(&mut pool, &mut frames) == 0, "frames were taken in RESET");
    queue.ready()?;
    ensure!(receives.post(&mut pool, &mut frames) == 4, "frames are left in RDY");
    queue.to_error()?;
    queue.reset()?;
    ensure!(queue.state() == WorkQueueState::Reset, "it is {:?}", queue.state());
    queue.ready()?;
    ensure!(queue.state() == WorkQueueState::Ready, "it is {:?}", queue.state());
    Ok(())
}

fn flushes(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    receiver.queue.to_error()?;
    let mut list = Vec::new();
    receiver.cq.poll_classic(&mut list, 2 * FRAMES as usize);
    ensure!(list.len() == FRAMES as usize, "{} completions of {FRAMES}", list.len());
    for completion in list {
        ensure!(completion.status() == CompletionStatus::Flushed, "{:?}", completion.status());
        if let Ok(frame) = receiver.pool.reclaim_classic(completion) {
            receiver.spare.push(frame);
        }
    }
    let taken = receiver.receives.post(&mut receiver.pool, &mut receiver.spare);
    ensure!(taken == 0, "{taken} frames were taken in ERR");
    Ok(())
}

fn restarts(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow()).map_err(as_preparation)?;
    bench.deliver([udp(1, 2)]);
    receiver.queue.to_error()?;
    let mut statuses = Vec::new();
    let mut flushed = Vec::new();
    let Receiver { receives, cq, pool, spare, .. } = &mut receiver;
    let taken = receives.restart(cq, pool, spare, |completion, pool| {
        statuses.push(completion.status());
        flushed.extend(pool.reclaim(completion).ok());
    })?;
    spare.append(&mut flushed);
    let received = statuses.iter().filter(|status| **status == CompletionStatus::Success).count();
    ensure!(received == 1, "{received} packets of the 1 before the failure");
    ensure!(
        spare.len() == FRAMES as usize,
        "{} frames of {FRAMES}, {taken} without a completion",
        spare.len()
    );
    receives.post(pool, spare);
    ensure!(spare.is_empty(), "{} frames are left in RDY", spare.len());
    let sent = [udp(3, 4), udp(5, 6)];
    bench.deliver(sent.clone());
    let came = receiver.frames()?;
    ensure!(came == sent, "{} frames came, or others", came.len());
    Ok(())
}

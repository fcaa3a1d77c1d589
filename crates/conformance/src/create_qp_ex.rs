//! `ibv_create_qp_ex` for a queue pair with rings of its own: every member of `ibv_qp_init_attr_ex`, and `ibv_qp_cap`.
//! Its `create_flags` are in `create_flags`.

use verbs::{
    CompletionQueue, IdleRawQueuePair, QueueNumber, QueuePairFlags, QueuePairKind, QueuePairState,
    RawQueuePair, RawQueuePairBuilder, SharedReceiveQueue,
};

use crate::bench::{udp, unprepared};
use crate::create_flags;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::{Bench, Case, Expected, Failure, Needs, Outcome, Verb};

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateQpEx, row, run);
    let mut all = fields();
    all.extend(create_flags::cases());
    all.extend([
        case(
            [
                "ibv_qp_init_attr_ex.qp_type",
                "IBV_QPT_RAW_PACKET",
                "verbs::QueuePairKind::RawPacket",
                "it is what it says it is, through its states to RTS",
            ],
            raw_packet,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.qp_type",
                "IBV_QPT_UD",
                "verbs::QueuePairKind::Datagram",
                "it is made and asked about",
            ],
            datagram,
        ),
        kind::<2>("IBV_QPT_RC"),
        kind::<3>("IBV_QPT_UC"),
        kind::<9>("IBV_QPT_XRC_SEND"),
        kind::<10>("IBV_QPT_XRC_RECV"),
        kind::<0xff>("IBV_QPT_DRIVER"),
    ]);
    all
}

/// Connected transports, and those of vendors.
fn kind<const NUMBER: u32>(name: &'static str) -> Case {
    let row = ["ibv_qp_init_attr_ex.qp_type", name, "verbs::QueuePairKind::Unknown", "no such queue pair"];
    let source = "connected transports are another device's business: an Ethernet port without RoCE";
    Case::new(Verb::CreateQpEx, row, other_kind::<NUMBER>).expect(Expected::refused(libc::EOPNOTSUPP, source))
}

fn fields() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateQpEx, row, run);
    vec![
        case(
            [
                "ibv_qp_init_attr_ex.qp_context",
                "0xbeef",
                "verbs::RawQueuePairBuilder::token",
                "query tells it",
            ],
            token,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.send_cq",
                "a queue of its own",
                "verbs::RawQueuePair::builder",
                "sends complete there, and only there",
            ],
            send_cq,
        )
        .needs(Needs::Sends),
        case(
            [
                "ibv_qp_init_attr_ex.recv_cq",
                "a queue of its own",
                "verbs::RawQueuePair::builder",
                "receives complete there, and only there",
            ],
            recv_cq,
        )
        .needs(Needs::Frames),
        case(
            [
                "ibv_qp_init_attr_ex.srq",
                "a shared receive queue",
                "verbs::RawQueuePairBuilder::shared_receive_queue",
                "raw packet queue pairs have none",
            ],
            shared,
        )
        .expect(
            Expected::refused(
                libc::EOPNOTSUPP,
                "the soft NIC has no shared receive queues; kernel mlx5 qp.c, `qp_has_rq`: no receive side beside one",
            )
            .mlx5_varies("ignored: the queue pair has no receive side"),
        ),
        case(
            [
                "ibv_qp_init_attr_ex.cap",
                "all",
                "verbs::RawQueuePair::caps",
                "what was given is written back and is what query tells",
            ],
            caps,
        ),
        case(
            ["ibv_qp_cap.max_send_wr", "10", "verbs::RawQueuePairBuilder::max_sends", "at least so many"],
            caps,
        ),
        case(
            ["ibv_qp_cap.max_recv_wr", "20", "verbs::RawQueuePairBuilder::max_receives", "at least so many"],
            caps,
        ),
        case(
            [
                "ibv_qp_cap.max_send_sge",
                "2",
                "verbs::RawQueuePairBuilder::max_send_parts",
                "at least so many",
            ],
            caps,
        ),
        case(
            [
                "ibv_qp_cap.max_recv_sge",
                "2",
                "verbs::RawQueuePairBuilder::max_receive_parts",
                "at least so many",
            ],
            caps,
        ),
        case(
            [
                "ibv_qp_cap.max_inline_data",
                "64",
                "verbs::RawQueuePairBuilder::max_inline_bytes",
                "at least so many",
            ],
            caps,
        ),
        case(
            [
                "ibv_qp_cap.max_send_wr",
                "more than max_qp_wr",
                "verbs::RawQueuePairBuilder::max_sends",
                "refused",
            ],
            too_many_sends,
        )
        .expect(Expected::refused(
            libc::EINVAL,
            "ibv_query_device(3): max_qp_wr; rdma-core verbs.c of mlx5 and mlx4",
        )),
        case(
            [
                "ibv_qp_cap.max_send_sge",
                "more than max_sge",
                "verbs::RawQueuePairBuilder::max_send_parts",
                "refused",
            ],
            too_many_parts,
        )
        .expect(Expected::refused(
            libc::EINVAL,
            "ibv_query_device(3): max_sge; rdma-core verbs.c of mlx5 and mlx4",
        )),
        case(
            [
                "ibv_qp_init_attr_ex.sq_sig_all",
                "1",
                "verbs::RawQueuePairBuilder::signal_all",
                "a send that asks for no completion has one; query tells",
            ],
            signal_all,
        )
        .needs(Needs::Sends),
        case(
            [
                "ibv_qp_init_attr_ex.comp_mask",
                "0 besides IBV_QP_INIT_ATTR_PD",
                "verbs::RawQueuePair::builder",
                "it is made",
            ],
            raw_packet,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.pd",
                "IBV_QP_INIT_ATTR_PD",
                "verbs::RawQueuePair::builder",
                "it is made in the domain",
            ],
            raw_packet,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.max_tso_header",
                "IBV_QP_INIT_ATTR_MAX_TSO_HEADER",
                "verbs::RawQueuePairBuilder::max_tso_header",
                "it is made",
            ],
            tso_header,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.source_qpn",
                "a number",
                "verbs::RawQueuePairBuilder::source_number",
                "only datagram queue pairs of IPoIB have it",
            ],
            source_number,
        )
        .expect(Expected::refused(
            libc::EINVAL,
            "ibv_create_qp_ex(3): \"supported only on UD QP\"; rdma-core mlx5 verbs.c, `create_qp`",
        )),
    ]
}

/// A queue pair in RESET, with this asked for besides.
pub(crate) fn make(
    bench: &Bench<'_>,
    set: impl FnOnce(RawQueuePairBuilder) -> RawQueuePairBuilder,
) -> Result<IdleRawQueuePair, Failure> {
    let cq = CompletionQueue::builder(&bench.context, 64).build().map_err(unprepared)?;
    Ok(set(RawQueuePair::builder(&bench.domain(), &cq.handle(), &cq.handle())).build()?)
}

fn raw_packet(bench: &Bench<'_>) -> Outcome {
    let idle = make(bench, |pair| pair)?;
    let seen = idle.handle().query()?;
    ensure!(seen.state == QueuePairState::Reset && seen.kind == QueuePairKind::RawPacket, "{seen:?}");
    let seen = idle.to_rts(bench.port)?.handle().query()?;
    ensure!(seen.state == QueuePairState::ReadyToSend && seen.port == bench.port, "{seen:?}");
    Ok(())
}

fn datagram(bench: &Bench<'_>) -> Outcome {
    let seen = make(bench, |pair| pair.kind(QueuePairKind::Datagram))?.handle().query()?;
    ensure!(seen.kind == QueuePairKind::Datagram, "{seen:?}");
    Ok(())
}

fn other_kind<const NUMBER: u32>(bench: &Bench<'_>) -> Outcome {
    make(bench, |pair| pair.kind(QueuePairKind::Unknown(NUMBER)))?;
    Ok(())
}

fn token(bench: &Bench<'_>) -> Outcome {
    let seen = make(bench, |pair| pair.token(0xbeef))?.handle().query()?;
    ensure!(seen.token == 0xbeef, "{seen:?}");
    Ok(())
}

fn caps(bench: &Bench<'_>) -> Outcome {
    let idle = make(bench, |pair| {
        pair.max_sends(10).max_receives(20).max_send_parts(2).max_receive_parts(2).max_inline_bytes(64)
    })?;
    let caps = idle.handle().caps();
    ensure!(caps.max_sends >= 10 && caps.max_receives >= 20, "{caps:?}");
    ensure!(caps.max_send_parts >= 2 && caps.max_receive_parts >= 2, "{caps:?}");
    ensure!(caps.max_inline_bytes >= 64, "{caps:?}");
    let told = idle.handle().query()?.caps;
    ensure!(told == caps, "{told:?} instead of {caps:?}");
    Ok(())
}

fn too_many_sends(bench: &Bench<'_>) -> Outcome {
    make(bench, |pair| pair.max_sends(bench.attributes.max_qp_wr.saturating_add(1)))?;
    Ok(())
}

fn too_many_parts(bench: &Bench<'_>) -> Outcome {
    make(bench, |pair| pair.max_send_parts(bench.attributes.max_sge.saturating_add(1)))?;
    Ok(())
}

fn shared(bench: &Bench<'_>) -> Outcome {
    let shared = SharedReceiveQueue::new(&bench.domain(), 16, 1)?;
    make(bench, |pair| pair.shared_receive_queue(&shared))?;
    Ok(())
}

fn tso_header(bench: &Bench<'_>) -> Outcome {
    make(bench, |pair| pair.max_tso_header(128))?;
    Ok(())
}

fn source_number(bench: &Bench<'_>) -> Outcome {
    make(bench, |pair| pair.source_number(QueueNumber(5)))?;
    Ok(())
}

/// Sends without asking for a completion: only `sq_sig_all` gives one.
fn signal_all(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::new(bench, |pair| pair.signal_all(true).max_inline_bytes(128))?;
    ensure!(sender.pair.handle().query()?.signal_all, "query does not tell");
    if !sender.pair.send_inline(3, &udp(1, 2), verbs::SendFlags::UNSIGNALLED) {
        return Err(sender.refusal());
    }
    let seen = sender.completions(bench, 1)?;
    ensure!(seen[0].2 == Some(3), "{seen:?}");
    Ok(())
}

fn send_cq(bench: &Bench<'_>) -> Outcome {
    let mut other = CompletionQueue::builder(&bench.context, 16).build().map_err(unprepared)?;
    let mut sender = Sender::new(bench, |pair| pair)?;
    let builder = RawQueuePair::builder(&bench.domain(), &sender.cq.handle(), &other.handle());
    sender.pair = builder.max_receives(4).build()?.to_rts(bench.port).map_err(unprepared)?;
    sender.send(&udp(1, 2), verbs::SendFlags::empty())?;
    sender.completions(bench, 1)?;
    ensure!(other.poll().is_none(), "the other queue has something, too");
    Ok(())
}

/// What a queue pair with a receive side receives of these frames.
pub(crate) fn received(
    bench: &Bench<'_>,
    flags: QueuePairFlags,
    frames: Vec<Vec<u8>>,
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut receiver = Receiver::new(bench)?;
    let unused = CompletionQueue::builder(&bench.context, 16).build().map_err(unprepared)?;
    let builder = RawQueuePair::builder(&bench.domain(), &unused.handle(), &receiver.cq.handle());
    let mut pair = builder.max_receives(16).flags(flags).build()?.to_rts(bench.port).map_err(unprepared)?;
    receiver.pool = bench.pool(&bench.domain(), 8)?;
    let mut spare: Vec<_> = std::iter::from_fn(|| receiver.pool.take()).collect();
    pair.post_receives(&mut receiver.pool, &mut spare);
    ensure!(spare.is_empty(), "receives were refused: {:?}", pair.last_receive_refusal());
    let _flow = verbs::Flow::create(&pair.handle().into(), &bench.flow()).map_err(unprepared)?;
    bench.deliver(frames);
    let mut unused = unused;
    ensure!(unused.poll().is_none(), "the queue for sends has something");
    receiver.frames()
}

fn recv_cq(bench: &Bench<'_>) -> Outcome {
    let sent = vec![udp(1, 2), udp(3, 4)];
    let came = received(bench, QueuePairFlags::empty(), sent.clone())?;
    ensure!(came == sent, "{} frames came, or others", came.len());
    Ok(())
}

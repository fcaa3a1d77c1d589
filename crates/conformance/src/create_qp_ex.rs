//! `ibv_create_qp_ex`: every member and flag of `ibv_qp_init_attr_ex`, with `create_flags` and
//! `send_ops_flags`.

use verbs::{
    CompletionQueue, IdleRawQueuePair, QueueNumber, QueuePairFlags, QueuePairKind, QueuePairState,
    RawQueuePair, RawQueuePairBuilder, SendOperations, SharedReceiveQueue,
};

use crate::bench::{frame, udp, unprepared};
use crate::endpoints::Receiver;
use crate::endpoints::Sender;
use crate::independent::frame_check_sequence;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateQpEx, row, run);
    let mut all = fields();
    all.extend(create_flags());
    all.extend([
        case(
            [
                "ibv_qp_init_attr_ex.qp_type",
                "IBV_QPT_RAW_PACKET",
                "verbs::QueuePairKind::RawPacket",
                "the query returns the type and each state up to RTS",
            ],
            raw_packet,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.qp_type",
                "IBV_QPT_UD",
                "verbs::QueuePairKind::Datagram",
                "the object is created and queried",
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
    let row = ["ibv_qp_init_attr_ex.qp_type", name, "verbs::QueuePairKind::Unknown", "refused"];
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
                "the query returns it",
            ],
            token,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.send_cq",
                "a queue of its own",
                "verbs::RawQueuePair::builder",
                "sends complete there only",
            ],
            send_cq,
        )
        .needs(Needs::Sends),
        case(
            [
                "ibv_qp_init_attr_ex.recv_cq",
                "a queue of its own",
                "verbs::RawQueuePair::builder",
                "receives complete there only",
            ],
            recv_cq,
        )
        .needs(Needs::Frames),
        case(
            [
                "ibv_qp_init_attr_ex.srq",
                "a shared receive queue",
                "verbs::RawQueuePairBuilder::shared_receive_queue",
                "refused for raw packet queue pairs",
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
                "the granted capacities are written back, and the query returns them",
            ],
            caps,
        ),
        case(
            ["ibv_qp_cap.max_send_wr", "10", "verbs::RawQueuePairBuilder::max_sends", "at least that many"],
            caps,
        ),
        case(
            ["ibv_qp_cap.max_recv_wr", "20", "verbs::RawQueuePairBuilder::max_receives", "at least that many"],
            caps,
        ),
        case(
            [
                "ibv_qp_cap.max_send_sge",
                "2",
                "verbs::RawQueuePairBuilder::max_send_parts",
                "at least that many",
            ],
            caps,
        ),
        case(
            [
                "ibv_qp_cap.max_recv_sge",
                "2",
                "verbs::RawQueuePairBuilder::max_receive_parts",
                "at least that many",
            ],
            caps,
        ),
        case(
            [
                "ibv_qp_cap.max_inline_data",
                "64",
                "verbs::RawQueuePairBuilder::max_inline_bytes",
                "at least that many",
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
                "a send without the signalled flag has a completion; the query returns the setting",
            ],
            signal_all,
        )
        .needs(Needs::Sends),
        case(
            [
                "ibv_qp_init_attr_ex.comp_mask",
                "0 besides IBV_QP_INIT_ATTR_PD",
                "verbs::RawQueuePair::builder",
                "the object is created",
            ],
            raw_packet,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.pd",
                "IBV_QP_INIT_ATTR_PD",
                "verbs::RawQueuePair::builder",
                "the object is created in the domain",
            ],
            raw_packet,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.max_tso_header",
                "IBV_QP_INIT_ATTR_MAX_TSO_HEADER",
                "verbs::RawQueuePairBuilder::max_tso_header",
                "the object is created",
            ],
            tso_header,
        ),
        case(
            [
                "ibv_qp_init_attr_ex.source_qpn",
                "a number",
                "verbs::RawQueuePairBuilder::source_number",
                "refused: for datagram queue pairs of IPoIB only",
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
    let queried = idle.handle().query()?.caps;
    ensure!(queried == caps, "{queried:?} instead of {caps:?}");
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
    ensure!(sender.pair.handle().query()?.signal_all, "the query does not return it");
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

/// The frames that a queue pair with a receive side receives of these.
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
    let _flow = verbs::FlowHandle::create(&pair.handle().into(), &bench.flow()).map_err(unprepared)?;
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

fn create_flags() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateQpEx, row, run);
    let field = "ibv_qp_init_attr_ex.create_flags";
    let ignored = Expected::all(Answer::Ignored).because(
        "kernel mlx5 qp.c, `create_raw_packet_qp`: takes no `block_lb_mc` from the context; nothing of it is seen by a \
         receiver",
    );
    let mlx4 = Expected::WORKS
        .mlx4(Answer::UNSUPPORTED)
        .because("kernel mlx4 qp.c, `_mlx4_ib_create_qp`: only BLOCK_SELF_MCAST_LB");
    vec![
        case(
            [
                field,
                "IBV_QP_INIT_ATTR_CREATE_FLAGS",
                "verbs::RawQueuePairBuilder::flags",
                "the flags are checked",
            ],
            block_loopback,
        )
        .expect(ignored),
        case(
            [
                field,
                "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB",
                "verbs::QueuePairFlags::BLOCK_SELF_MCAST_LB",
                "the queue is created and receives as without the flag",
            ],
            block_loopback,
        )
        .expect(ignored),
        case(
            [
                field,
                "IBV_QP_CREATE_SCATTER_FCS",
                "verbs::QueuePairFlags::SCATTER_FCS",
                "packets end with their frame check sequence",
            ],
            scatter_fcs,
        )
        .needs(Needs::Frames)
        .expect(mlx4),
        case(
            [
                field,
                "IBV_QP_CREATE_CVLAN_STRIPPING",
                "verbs::QueuePairFlags::CVLAN_STRIPPING",
                "packets are received without their tag",
            ],
            strip,
        )
        .needs(Needs::Frames)
        .expect(mlx4),
        case(
            [
                field,
                "IBV_QP_CREATE_SOURCE_QPN",
                "verbs::QueuePairFlags::SOURCE_QPN",
                "refused: for datagram queue pairs of IPoIB only",
            ],
            source_flag,
        )
        .expect(Expected::refused(
            libc::EINVAL,
            "ibv_create_qp_ex(3): \"supported only on UD QP\"; rdma-core mlx5 verbs.c, `create_qp`",
        )),
        case(
            [
                field,
                "IBV_QP_CREATE_PCI_WRITE_END_PADDING",
                "verbs::QueuePairFlags::PCI_WRITE_END_PADDING",
                "the queue is created and receives as without the flag",
            ],
            padding,
        )
        .expect(Expected::all(Answer::Ignored).mlx4(Answer::UNSUPPORTED).because(
            "kernel mlx5 qp.c, `create_raw_packet_qp_rq`: only how the device writes cache lines; mlx4 qp.c, \
                 `_mlx4_ib_create_qp`: only BLOCK_SELF_MCAST_LB",
        )),
        case([field, "a bit without a name", "verbs::QueuePairFlags", "refused"], unknown_flag).expect(
            Expected::refused(libc::EINVAL, "kernel uverbs_cmd.c, `create_qp`: flags that no device has"),
        ),
    ]
}

fn source_flag(bench: &Bench<'_>) -> Outcome {
    make(bench, |pair| pair.flags(QueuePairFlags::SOURCE_QPN))?;
    Ok(())
}

fn block_loopback(bench: &Bench<'_>) -> Outcome {
    make(bench, |pair| pair.flags(QueuePairFlags::BLOCK_SELF_MCAST_LB))?;
    Err(Failure::Ignored)
}

fn padding(bench: &Bench<'_>) -> Outcome {
    make(bench, |pair| pair.flags(QueuePairFlags::PCI_WRITE_END_PADDING))?;
    Err(Failure::Ignored)
}

fn unknown_flag(bench: &Bench<'_>) -> Outcome {
    make(bench, |pair| pair.flags(QueuePairFlags::from_bits_retain(1 << 30)))?;
    Ok(())
}

fn scatter_fcs(bench: &Bench<'_>) -> Outcome {
    let sent = udp(1, 2);
    let came = received(bench, QueuePairFlags::SCATTER_FCS, vec![sent.clone()])?;
    let expected = [&sent[..], &frame_check_sequence(&sent)].concat();
    ensure!(came == [expected], "{came:x?}");
    Ok(())
}

fn strip(bench: &Bench<'_>) -> Outcome {
    let tagged = frame().vlan(packet::EtherType(0x8100), 0x2064).payload(&[7; 60]).build();
    let came = received(bench, QueuePairFlags::CVLAN_STRIPPING, vec![tagged.clone()])?;
    let expected = [&tagged[..12], &tagged[16..]].concat();
    ensure!(came == [expected], "{came:x?}");
    Ok(())
}

const SEND_OPS_FLAGS: &str = "ibv_qp_init_attr_ex.send_ops_flags";

pub(crate) fn send_operations() -> Vec<Case> {
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
        .mlx4(Answer::UNSUPPORTED)
        .because("rdma-core mlx4 verbs.c: MLX4_CREATE_QP_SUP_COMP_MASK has no send_ops_flags");
    Case::new(
        Verb::CreateQpEx,
        [SEND_OPS_FLAGS, value, offered, "the queue pair is created with the functions"],
        operations::<BITS>,
    )
    .expect(expected)
}

const fn refused<const BITS: u64>(value: &'static str, offered: &'static str) -> Case {
    let source =
        "ibv_wr_post(3): not for raw packets; rdma-core mlx5 qp.c: MLX5_SUPPORTED_SEND_OPS_FLAGS_RAW_PACKET";
    Case::new(
        Verb::CreateQpEx,
        [SEND_OPS_FLAGS, value, offered, "refused for raw packets"],
        operations::<BITS>,
    )
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

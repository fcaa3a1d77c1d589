//! `create_flags` of `ibv_create_qp_ex`; called by `create_qp_ex`, which has the other members.

use verbs::QueuePairFlags;

use crate::bench::{frame, udp};
use crate::create_qp_ex::{make, received};
use crate::independent::frame_check_sequence;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

const NOT_THERE: Answer = Answer::Refused(libc::EOPNOTSUPP);

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateQpEx, row, run);
    let field = "ibv_qp_init_attr_ex.create_flags";
    let ignored = Expected::all(Answer::Ignored).because(
        "kernel mlx5 qp.c, `create_raw_packet_qp`: takes no `block_lb_mc` from the context; nothing of it is seen by a \
         receiver",
    );
    let mlx4 = Expected::WORKS
        .mlx4(NOT_THERE)
        .because("kernel mlx4 qp.c, `_mlx4_ib_create_qp`: only BLOCK_SELF_MCAST_LB");
    vec![
        case(
            [
                field,
                "IBV_QP_INIT_ATTR_CREATE_FLAGS",
                "verbs::RawQueuePairBuilder::flags",
                "flags are looked at",
            ],
            block_loopback,
        )
        .expect(ignored),
        case(
            [
                field,
                "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB",
                "verbs::QueuePairFlags::BLOCK_SELF_MCAST_LB",
                "it is made, and receives as without it",
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
                "packets come without their tag",
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
                "only datagram queue pairs of IPoIB have it",
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
                "it is made, and receives as without it",
            ],
            padding,
        )
        .expect(Expected::all(Answer::Ignored).mlx4(NOT_THERE).because(
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

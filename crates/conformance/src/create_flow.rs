//! `ibv_create_flow`: the members of `ibv_flow_attr`, and combinations that every device refuses.

use verbs::{
    ActionSpec, FlowAttr, FlowHandle, FlowKind, FlowSpec, FlowTag, PortMatch, PortNumber, VxlanMatch,
};

use crate::bench::{frame, to_us, udp};
use crate::endpoints::Receiver;
use crate::endpoints::Sender;
use crate::filters::{any_ipv4, any_udp};
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

const TYPE: &str = "ibv_flow_attr.type";
const FLAGS: &str = "ibv_flow_attr.flags";
/// To everybody in a group: locally administered.
pub(crate) const MULTICAST: [u8; 6] = [0x03, 0x73, 0x74, 0x65, 0x65, 0x72];

const SNIFFER: Expected = Expected::WORKS
    .mlx5_varies("EOPNOTSUPP without allow_sniffer_and_nic_rx_shared_tir")
    .because("kernel mlx5 fs.c, `get_flow_table`");

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateFlow, row, run);
    let mut all = vec![
        case([TYPE, "IBV_FLOW_ATTR_NORMAL", "verbs::FlowKind::Normal", "the object is created"], made),
        case(
            [
                TYPE,
                "IBV_FLOW_ATTR_NORMAL, with packets",
                "verbs::FlowKind::Normal",
                "matching packets are received, others are not",
            ],
            normal,
        )
        .needs(Needs::Frames),
        case(
            [
                TYPE,
                "IBV_FLOW_ATTR_ALL_DEFAULT",
                "verbs::FlowKind::AllDefault",
                "packets that no normal flow matches are received",
            ],
            all_default,
        )
        .needs(Needs::Frames),
        case(
            [
                TYPE,
                "IBV_FLOW_ATTR_MC_DEFAULT",
                "verbs::FlowKind::MulticastDefault",
                "multicast that no normal flow matches is received, unicast is not",
            ],
            multicast_default,
        )
        .needs(Needs::Frames),
        case(
            [
                TYPE,
                "IBV_FLOW_ATTR_SNIFFER",
                "verbs::FlowKind::Sniffer",
                "a copy of each received packet; its normal flow still receives it",
            ],
            sniffer,
        )
        .needs(Needs::Frames)
        .expect(SNIFFER),
        case(
            [
                TYPE,
                "IBV_FLOW_ATTR_SNIFFER, and a frame sent",
                "verbs::FlowKind::Sniffer",
                "a copy of each sent packet, which is sent all the same",
            ],
            sniffs_sent,
        )
        .needs(Needs::Peer)
        .expect(SNIFFER),
        case(["ibv_flow_attr.port", "1", "verbs::FlowAttr::new", "the object is created"], made),
        case(["ibv_flow_attr.port", "0", "verbs::FlowAttr::new", "refused"], port::<0>).expect(
            Expected::refused(libc::EINVAL, "kernel uverbs_cmd.c, `ib_uverbs_ex_create_flow`: no such port"),
        ),
        case(
            ["ibv_flow_attr.num_of_specs", "0", "verbs::FlowAttr::new", "a default flow without specs is created"],
            no_specs,
        )
        .needs(Needs::Port),
        case(
            [
                "ibv_flow_attr.num_of_specs",
                "9: a tunnel, the inner packet, two actions",
                "verbs::FlowAttr::spec",
                "the object is created",
            ],
            nine,
        )
        .expect(
            Expected::WORKS
                .mlx4(Answer::INVALID)
                .because("kernel mlx4 main.c, `parse_flow_attr`: no tunnels, no actions"),
        ),
        case(["ibv_flow_attr.num_of_specs", "11", "verbs::FlowAttr::spec", "refused"], eleven).expect(
            Expected::refused(libc::EINVAL, "kernel uverbs_cmd.c: IB_FLOW_SPEC_SUPPORT_LAYERS is 10"),
        ),
        case([FLAGS, "0", "verbs::FlowAttr::new", "the object is created"], made),
        case(
            [
                FLAGS,
                "IBV_FLOW_ATTR_FLAGS_EGRESS, DROP",
                "verbs::FlowAttr::egress",
                "matching sent packets are dropped, others are sent",
            ],
            egress,
        )
        .needs(Needs::Peer)
        .expect(
            Expected::WORKS
                .mlx4(Answer::UNSUPPORTED)
                .mlx5_varies("EOPNOTSUPP without NIC transmit flow tables")
                .because("kernel mlx5 fs.c, `get_flow_table`: no namespace; mlx4 main.c, `mlx4_ib_create_flow`: only DONT_TRAP"),
        ),
        case(
            [
                "ibv_destroy_flow",
                "while packets arrive",
                "verbs::Flow::destroy",
                "after it returns, the flow delivers no packet",
            ],
            destroyed,
        )
        .needs(Needs::Frames),
        case(
            [
                "ibv_destroy_flow",
                "its queue pair destroyed first (EBUSY in C)",
                "verbs::Flow::target",
                "the flow keeps it and continues to deliver",
            ],
            kept,
        )
        .needs(Needs::Frames),
    ];
    all.extend(priorities());
    all.extend(forbidden());
    all
}

fn priorities() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateFlow, row, run);
    let (field, offered) = ("ibv_flow_attr.priority", "verbs::FlowAttr::priority");
    let fifteen = Expected::WORKS
        .mlx5(Answer::Refused(libc::ENOMEM))
        .because("kernel mlx5 fs.c, `mlx5_ib_create_flow`: MLX5_IB_FLOW_LAST_PRIO, and ENOMEM beyond");
    vec![
        case([field, "0", offered, "the object is created"], priority::<0>),
        case([field, "15", offered, "the object is created"], priority::<15>),
        case([field, "16", offered, "the first priority above mlx5's highest"], priority::<16>)
            .expect(fifteen),
        case([field, "4095", offered, "the highest priority of mlx4"], priority::<4095>).expect(fifteen),
        case([field, "4096", offered, "above mlx4's highest priority"], priority::<4096>).expect(
            fifteen
                .mlx4(Answer::INVALID)
                .because("as above; kernel mlx4 main.c, `__mlx4_ib_create_flow`: MLX4_IB_FLOW_MAX_PRIO"),
        ),
    ]
}

fn forbidden() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateFlow, row, run);
    let default = "kernel uverbs_cmd.c: DONT_TRAP with a default is EINVAL";
    let egress = Expected::all(Answer::INVALID)
        .mlx4(Answer::UNSUPPORTED)
        .because("kernel mlx5 fs.c, `mlx5_ib_create_flow`; mlx4 main.c: no EGRESS");
    let dont_trap = "verbs::FlowAttr::dont_trap";
    vec![
        case([FLAGS, "IBV_FLOW_ATTR_FLAGS_DONT_TRAP with ALL_DEFAULT", dont_trap, "refused"], |bench| {
            refuse(bench, FlowAttr::new(FlowKind::AllDefault, bench.port).dont_trap(true))
        })
        .expect(Expected::refused(libc::EINVAL, default)),
        case([FLAGS, "IBV_FLOW_ATTR_FLAGS_DONT_TRAP with MC_DEFAULT", dont_trap, "refused"], |bench| {
            refuse(bench, FlowAttr::new(FlowKind::MulticastDefault, bench.port).dont_trap(true))
        })
        .expect(Expected::refused(libc::EINVAL, default)),
        case([FLAGS, "IBV_FLOW_ATTR_FLAGS_DONT_TRAP with SNIFFER", dont_trap, "no additional effect: a sniffer only copies"], |bench| {
            refuse(bench, FlowAttr::new(FlowKind::Sniffer, bench.port).dont_trap(true))
        })
        .needs(Needs::Port)
        .expect(Expected::WORKS.ideal(Answer::INVALID).mlx4(Answer::UNSUPPORTED).because("ibv_create_flow(3), note 4: only NORMAL; kernel mlx5 fs.c does not look; mlx4 main.c, `mlx4_ib_create_flow`")),
        case([FLAGS, "IBV_FLOW_ATTR_FLAGS_EGRESS with ALL_DEFAULT", "verbs::FlowAttr::egress", "refused"], |bench| {
            refuse(bench, FlowAttr::new(FlowKind::AllDefault, bench.port).egress(true))
        })
        .expect(egress),
        case([FLAGS, "IBV_FLOW_ATTR_FLAGS_EGRESS with MC_DEFAULT", "verbs::FlowAttr::egress", "refused"], |bench| {
            refuse(bench, FlowAttr::new(FlowKind::MulticastDefault, bench.port).egress(true))
        })
        .expect(egress),
        case(["ibv_create_flow", "on a datagram queue pair", "verbs::Flow::create", "refused: Ethernet frames are not datagrams"], on_datagrams)
            .expect(Expected::refused(libc::EINVAL, "kernel uverbs_cmd.c, `ib_uverbs_ex_create_flow`, lets it pass; mlx5 fs.c, `mlx5_ib_create_flow`: to a receive side that is not there")
                .mlx5_varies("the firmware decides")),
    ]
}

fn on_datagrams(bench: &Bench<'_>) -> Outcome {
    let pair = crate::create_qp_ex::make(bench, |pair| pair.kind(verbs::QueuePairKind::Datagram))?;
    drop(verbs::FlowHandle::create(&pair.handle().into(), &bench.flow())?);
    Ok(())
}

/// A flow that is made and goes at once.
#[allow(clippy::needless_pass_by_value)] // made for this call
pub(crate) fn refuse(bench: &Bench<'_>, attr: FlowAttr) -> Outcome {
    drop(Receiver::new(bench)?.flow(&attr)?);
    Ok(())
}

fn made(bench: &Bench<'_>) -> Outcome {
    refuse(bench, bench.flow())
}

fn priority<const PRIORITY: u16>(bench: &Bench<'_>) -> Outcome {
    refuse(bench, bench.flow().priority(PRIORITY))
}

fn port<const PORT: u8>(bench: &Bench<'_>) -> Outcome {
    refuse(bench, FlowAttr::new(FlowKind::Normal, PortNumber(PORT)).spec(to_us()))
}

fn no_specs(bench: &Bench<'_>) -> Outcome {
    refuse(bench, FlowAttr::new(FlowKind::AllDefault, bench.port))
}

fn long(bench: &Bench<'_>) -> Result<FlowAttr, Failure> {
    let vni = VxlanMatch { vni: 0x00ff_ffff };
    let ports = PortMatch { src_port: 0, dst_port: 0xffff };
    let tunnel = FlowSpec::Udp { value: PortMatch { src_port: 0, dst_port: 4789 }, mask: ports };
    Ok(bench
        .flow()
        .spec(any_ipv4())
        .spec(tunnel)
        .spec(FlowSpec::VxlanTunnel { value: VxlanMatch { vni: 7 }, mask: vni })
        .inner(to_us())
        .inner(any_ipv4())
        .inner(any_udp())
        .action(ActionSpec::Tag(FlowTag(3))))
}

fn nine(bench: &Bench<'_>) -> Outcome {
    let counters = verbs::Counters::new(&bench.context);
    let attr = long(bench)?;
    refuse(
        bench,
        match counters {
            Ok(counters) => attr.action(ActionSpec::Count(counters)),
            // Where there are none, the tunnel is refused before.
            Err(_) => attr.action(ActionSpec::Drop),
        },
    )
}

fn eleven(bench: &Bench<'_>) -> Outcome {
    let attr = (0..3).fold(long(bench)?, |attr, _| attr.action(ActionSpec::Drop));
    ensure!(attr.spec_count() == 11, "{} specs", attr.spec_count());
    refuse(bench, attr)
}

fn normal(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow())?;
    let other = frame().ethernet(packet::MacAddr([2, 0, 0, 0, 0, 9]), packet::MacAddr([2; 6])).build();
    bench.deliver([udp(1, 2), other]);
    let came = receiver.frames()?;
    ensure!(came == [udp(1, 2)], "{} frames came, or others", came.len());
    Ok(())
}

/// A multicast packet.
pub(crate) fn multicast() -> Vec<u8> {
    let from = packet::MacAddr(crate::bench::OTHER_MAC);
    crate::bench::ipv4().ethernet(packet::MacAddr(MULTICAST), from).udp(5, 6).payload(&[1; 30]).build()
}

/// A unicast packet that no flow of the bench's is for.
fn stray() -> Vec<u8> {
    let from = packet::MacAddr(crate::bench::OTHER_MAC);
    crate::bench::ipv4()
        .ethernet(packet::MacAddr([2, 0, 0, 0, 0, 9]), from)
        .udp(7, 8)
        .payload(&[2; 30])
        .build()
}

fn all_default(bench: &Bench<'_>) -> Outcome {
    let (mut ours, mut rest) = (Receiver::new(bench)?, Receiver::new(bench)?);
    let _normal = ours.flow(&bench.flow())?;
    let _default = rest.flow(&FlowAttr::new(FlowKind::AllDefault, bench.port))?;
    bench.deliver([udp(1, 2), stray(), multicast()]);
    let (ours, rest) = (ours.frames()?, rest.frames()?);
    ensure!(ours == [udp(1, 2)], "the normal flow has {} frames, or others", ours.len());
    ensure!(rest == [stray(), multicast()], "the default has {} frames, or others", rest.len());
    Ok(())
}

fn multicast_default(bench: &Bench<'_>) -> Outcome {
    let mut rest = Receiver::new(bench)?;
    let _default = rest.flow(&FlowAttr::new(FlowKind::MulticastDefault, bench.port))?;
    bench.deliver([udp(1, 2), stray(), multicast()]);
    let rest = rest.frames()?;
    ensure!(rest == [multicast()], "the default has {} frames, or others", rest.len());
    Ok(())
}

fn sniffer(bench: &Bench<'_>) -> Outcome {
    let (mut ours, mut nose) = (Receiver::new(bench)?, Receiver::new(bench)?);
    let _normal = ours.flow(&bench.flow())?;
    let _sniffer = nose.flow(&FlowAttr::new(FlowKind::Sniffer, bench.port))?;
    bench.deliver([udp(1, 2), stray()]);
    let (ours, sniffed) = (ours.frames()?, nose.frames()?);
    ensure!(ours == [udp(1, 2)], "the normal flow has {} frames, or others", ours.len());
    ensure!(sniffed == [udp(1, 2), stray()], "the sniffer has {} frames, or others", sniffed.len());
    Ok(())
}

fn sniffs_sent(bench: &Bench<'_>) -> Outcome {
    let mut nose = Receiver::new(bench)?;
    let _sniffer = nose.flow(&FlowAttr::new(FlowKind::Sniffer, bench.port))?;
    let mut sender = Sender::new(bench, |pair| pair)?;
    sender.send(&stray(), verbs::SendFlags::empty())?;
    ensure!(bench.sent() == [stray()], "the frame did not leave");
    let sniffed = nose.frames()?;
    ensure!(sniffed == [stray()], "the sniffer has {} frames, or others", sniffed.len());
    Ok(())
}

fn egress(bench: &Bench<'_>) -> Outcome {
    let receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow().egress(true).action(ActionSpec::Drop))?;
    let mut sender = Sender::new(bench, |pair| pair)?;
    sender.send(&udp(1, 2), verbs::SendFlags::empty())?;
    sender.send(&stray(), verbs::SendFlags::empty())?;
    let sent = bench.sent();
    ensure!(sent == [stray()], "{} frames left, or others", sent.len());
    sender.completions(bench, 2)?;
    Ok(())
}

fn destroyed(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let flow = receiver.flow(&bench.flow())?;
    bench.deliver([udp(1, 2)]);
    flow.destroy().map_err(|(_, error)| error)?;
    bench.deliver([udp(3, 4)]);
    let came = receiver.frames()?;
    ensure!(came == [udp(1, 2)], "{} frames came, or others", came.len());
    Ok(())
}

fn kept(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let target = receiver.target()?;
    let flow = FlowHandle::create(&target, &bench.flow())?;
    drop(target);
    bench.deliver([udp(1, 2)]);
    ensure!(receiver.frames()?.len() == 1, "nothing came");
    drop(flow);
    Ok(())
}

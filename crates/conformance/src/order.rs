//! Which of several flows receives a packet: priorities, overlap, equal flows, DONT_TRAP.

use verbs::{ActionSpec, EthernetMatch, FlowAttr, FlowHandle, FlowKind, FlowSpec, FlowTag, PortMatch};

use crate::bench::{OTHER_MAC, to_us, udp};
use crate::create_flow::{MULTICAST, multicast};
use crate::endpoints::Receiver;
use crate::filters::any_ipv4;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

const PRIORITY: &str = "ibv_flow_attr.priority";
const OFFERED: &str = "verbs::FlowAttr::priority";

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateFlow, row, run).needs(Needs::Frames);
    let dont_trap = "verbs::FlowAttr::dont_trap";
    let flags = "ibv_flow_attr.flags";
    let promiscuous = Expected::WORKS
        .mlx4(Answer::Refused(libc::EOPNOTSUPP))
        .because("kernel mlx4 main.c, `mlx4_ib_add_dont_trap_rule`: priority 0, one filter");
    let promiscuous = promiscuous
        .mlx5_varies("EOPNOTSUPP without nic_rx_multi_path_tirs (fs_core.c, `fwd_next_prio_supported`)");
    let twice = Expected::WORKS
        .mlx5(Answer::Refused(libc::EEXIST))
        .mlx4(Answer::INVALID)
        .because("kernel mlx5 core/fs_core.c, `check_conflicting_ftes`; mlx4 main.c: no actions");
    let never = twice.ideal(Answer::Refused(libc::EEXIST));
    vec![
        case(
            [
                PRIORITY,
                "a general flow at 0, a specific one at 1",
                OFFERED,
                "the flow with the smaller priority receives the packet",
            ],
            general_first,
        ),
        case(
            [
                PRIORITY,
                "a specific flow at 0, a general one at 1",
                OFFERED,
                "the general flow receives what the specific one does not match",
            ],
            special_first,
        ),
        case([PRIORITY, "the first flow is destroyed", OFFERED, "the second flow receives its packets"], falls_back),
        case(
            [
                PRIORITY,
                "specific and general, created in the other order",
                OFFERED,
                "the priority decides, not the order of creation",
            ],
            order_of_making,
        ),
        case(
            [PRIORITY, "equal, and the same match, on two queue pairs", OFFERED, "each receives a copy"],
            replicated,
        ),
        case(
            [
                PRIORITY,
                "equal, and the same match, with different tags",
                OFFERED,
                "each receives a copy with its tag",
            ],
            two_tags,
        )
        .expect(twice),
        case(
            [
                PRIORITY,
                "equal, and the same match, DROP beside delivery",
                OFFERED,
                "refused: no packet matches both",
            ],
            drop_and_not,
        )
        .needs(Needs::Objects)
        .expect(never),
        case(
            [
                PRIORITY,
                "equal, and the same match, once more on the same queue pair",
                OFFERED,
                "one flow is destroyed, and the packets are still received",
            ],
            same_again,
        ),
        case(
            [
                PRIORITY,
                "multicast at 0, everything from a sender at 5",
                OFFERED,
                "the multicast flow receives the packet",
            ],
            multicast_first,
        )
        .expect(
            Expected::WORKS.mlx5(Answer::Ignored).because(
                "kernel mlx5 fs.c, `flow_is_multicast_only`, MLX5_IB_FLOW_MCAST_PRIO: after all others",
            ),
        ),
        case(
            [
                flags,
                "IBV_FLOW_ATTR_FLAGS_DONT_TRAP",
                dont_trap,
                "a copy, and the next flow receives the packet too",
            ],
            copies,
        )
        .expect(promiscuous),
        case(
            [
                flags,
                "IBV_FLOW_ATTR_FLAGS_DONT_TRAP at two priorities",
                dont_trap,
                "a copy for each, and the next flow receives the packet too",
            ],
            copies_twice,
        )
        .expect(promiscuous),
        case(
            [
                flags,
                "IBV_FLOW_ATTR_FLAGS_DONT_TRAP twice at one priority",
                dont_trap,
                "a copy for each matching flow",
            ],
            copies_at_once,
        )
        .expect(promiscuous.mlx5(Answer::Ignored).because(
            "kernel mlx5 core/fs_core.c, `find_next_fwd_ft`: a copy goes on in the next table, and that only one entry \
             of a table matches is inferred; mlx4 main.c, `mlx4_ib_add_dont_trap_rule`",
        )),
        case(
            [
                "ibv_flow_attr.type",
                "IBV_FLOW_ATTR_MC_DEFAULT beside IBV_FLOW_ATTR_ALL_DEFAULT",
                "verbs::FlowKind::MulticastDefault",
                "the flow on the multicast address receives it, the other does not",
            ],
            both_defaults,
        )
        .expect(Expected::WORKS.mlx5(Answer::Ignored).because(
            "kernel mlx5 fs.c, `create_leftovers_rule`: LEFTOVERS_MC of both is one entry; mlx4's order is inferred",
        )),
        case(
            [
                flags,
                "IBV_FLOW_ATTR_FLAGS_DONT_TRAP behind a flow that takes",
                dont_trap,
                "no copy: the first flow takes the packet",
            ],
            taken_before,
        )
        .expect(promiscuous),
    ]
}

/// To the bench's address, IPv4, UDP from anywhere to a port.
fn specific(bench: &Bench<'_>) -> FlowAttr {
    let port = |dst_port| PortMatch { src_port: 0, dst_port };
    bench.flow().spec(any_ipv4()).spec(FlowSpec::Udp { value: port(7), mask: port(0xffff) })
}

fn general(bench: &Bench<'_>) -> FlowAttr {
    bench.flow()
}

/// Makes a flow to each of two receivers, the first first, sends, and counts.
#[allow(clippy::needless_pass_by_value)] // made for this call
fn counts(bench: &Bench<'_>, attrs: [FlowAttr; 2], frames: &[Vec<u8>]) -> Result<[usize; 2], Failure> {
    let mut receivers = [Receiver::new(bench)?, Receiver::new(bench)?];
    let _flows = [receivers[0].flow(&attrs[0])?, receivers[1].flow(&attrs[1])?];
    bench.deliver(frames.iter().cloned());
    Ok([receivers[0].frames()?.len(), receivers[1].frames()?.len()])
}

fn expect(seen: [usize; 2], expected: [usize; 2]) -> Outcome {
    ensure!(seen == expected, "{seen:?} packets instead of {expected:?}");
    Ok(())
}

fn both() -> Vec<Vec<u8>> {
    vec![udp(1, 7), udp(1, 8)]
}

fn general_first(bench: &Bench<'_>) -> Outcome {
    let attrs = [general(bench).priority(0), specific(bench).priority(1)];
    expect(counts(bench, attrs, &both())?, [2, 0])
}

fn special_first(bench: &Bench<'_>) -> Outcome {
    let attrs = [specific(bench).priority(0), general(bench).priority(1)];
    expect(counts(bench, attrs, &both())?, [1, 1])
}

fn order_of_making(bench: &Bench<'_>) -> Outcome {
    let attrs = [general(bench).priority(1), specific(bench).priority(0)];
    expect(counts(bench, attrs, &both())?, [1, 1])
}

fn falls_back(bench: &Bench<'_>) -> Outcome {
    let mut receivers = [Receiver::new(bench)?, Receiver::new(bench)?];
    let first = receivers[0].flow(&general(bench).priority(3))?;
    let _second = receivers[1].flow(&general(bench).priority(4))?;
    bench.deliver(both());
    drop(first);
    bench.deliver(both());
    expect([receivers[0].frames()?.len(), receivers[1].frames()?.len()], [2, 2])
}

fn replicated(bench: &Bench<'_>) -> Outcome {
    expect(counts(bench, [specific(bench), specific(bench)], &both())?, [1, 1])
}

fn tagged(bench: &Bench<'_>, tag: u32) -> FlowAttr {
    specific(bench).action(ActionSpec::Tag(FlowTag(tag)))
}

fn two_tags(bench: &Bench<'_>) -> Outcome {
    let mut receivers = [Receiver::new(bench)?, Receiver::new(bench)?];
    let _flows = [receivers[0].flow(&tagged(bench, 1))?, receivers[1].flow(&tagged(bench, 2))?];
    bench.deliver(both());
    for (receiver, tag) in receivers.iter_mut().zip([1, 2]) {
        let tags: Vec<_> = receiver.drain()?.iter().map(|packet| packet.tag).collect();
        ensure!(tags == [Some(tag)], "{tags:?} instead of {tag}");
    }
    Ok(())
}

fn drop_and_not(bench: &Bench<'_>) -> Outcome {
    let receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&specific(bench))?;
    drop(receiver.flow(&specific(bench).action(ActionSpec::Drop))?);
    Ok(())
}

fn same_again(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let target = receiver.target()?;
    let first = FlowHandle::create(&target, &specific(bench))?;
    let _second = FlowHandle::create(&target, &specific(bench))?;
    drop(first);
    bench.deliver(both());
    let count = receiver.frames()?.len();
    ensure!(count == 1, "{count} packets");
    Ok(())
}

fn multicast_first(bench: &Bench<'_>) -> Outcome {
    let none = EthernetMatch::default();
    let group = FlowSpec::Ethernet {
        value: EthernetMatch { dst_mac: MULTICAST, ..none },
        mask: EthernetMatch { dst_mac: [0xff; 6], ..none },
    };
    let sender = FlowSpec::Ethernet {
        value: EthernetMatch { src_mac: OTHER_MAC, ..none },
        mask: EthernetMatch { src_mac: [0xff; 6], ..none },
    };
    let normal = FlowAttr::new(FlowKind::Normal, bench.port);
    let attrs = [normal.clone().spec(group), normal.spec(sender).priority(5)];
    match counts(bench, attrs, &[multicast()])? {
        [1, 0] => Ok(()),
        [0, 1] => Err(Failure::Ignored),
        other => Err(Failure::Differs(format!("{other:?} packets"))),
    }
}

fn copies(bench: &Bench<'_>) -> Outcome {
    let attrs = [specific(bench).dont_trap(true), general(bench).priority(1)];
    expect(counts(bench, attrs, &both())?, [1, 2])
}

fn copies_twice(bench: &Bench<'_>) -> Outcome {
    let mut receivers = [Receiver::new(bench)?, Receiver::new(bench)?, Receiver::new(bench)?];
    let _flows = [
        receivers[0].flow(&specific(bench).dont_trap(true))?,
        receivers[1].flow(&general(bench).dont_trap(true).priority(1))?,
        receivers[2].flow(&general(bench).priority(2))?,
    ];
    bench.deliver(both());
    let mut seen = Vec::new();
    for receiver in &mut receivers {
        seen.push(receiver.frames()?.len());
    }
    ensure!(seen == [1, 2, 2], "{seen:?} packets instead of [1, 2, 2]");
    Ok(())
}

/// A case: of two flows that both match a packet, whichever the device asks first has the only copy.
fn copies_at_once(bench: &Bench<'_>) -> Outcome {
    let attrs = [specific(bench).dont_trap(true), general(bench).dont_trap(true)];
    match counts(bench, attrs, &both())? {
        [1, 2] => Ok(()),
        [1, 1] | [0, 2] => Err(Failure::Ignored),
        other => Err(Failure::Differs(format!("{other:?} packets"))),
    }
}

fn both_defaults(bench: &Bench<'_>) -> Outcome {
    let attrs =
        [FlowKind::AllDefault, FlowKind::MulticastDefault].map(|kind| FlowAttr::new(kind, bench.port));
    match counts(bench, attrs, &[udp(1, 7), multicast()])? {
        [1, 1] => Ok(()),
        [2, 1] => Err(Failure::Ignored),
        other => Err(Failure::Differs(format!("{other:?} packets"))),
    }
}

fn taken_before(bench: &Bench<'_>) -> Outcome {
    let attrs = [
        general(bench),
        FlowAttr::new(FlowKind::Normal, bench.port).spec(to_us()).dont_trap(true).priority(1),
    ];
    expect(counts(bench, attrs, &both())?, [2, 0])
}

//! Filters of `ibv_create_flow` without a bit in their masks: whether an empty filter requires its header.

use packet::IpProtocol;
use verbs::{EspMatch, EthernetMatch, FlowSpec, GreMatch, MplsMatch, PortMatch};

use crate::bench::{ipv4, udp};
use crate::filters::{any_ipv4, any_udp, case, decides};
use crate::tunnels::{esp_of, gre_of, inside, mpls_of, network, vxlan_of};
use crate::{Answer, Bench, Case, Expected, Outcome};

const SPEC: &str = "ibv_flow_spec.type";

pub(crate) fn cases() -> Vec<Case> {
    let protocol = Expected::WORKS.mlx5(Answer::Ignored).because(
        "kernel mlx5 fs.c, `parse_flow_attr`: only `ip_protocol` is set; that a later fragment has one is inferred",
    );
    let nothing = Expected::WORKS.mlx5(Answer::Ignored).mlx4(Answer::INVALID).because(
        "kernel mlx5 fs.c, `parse_flow_attr`: only fields are set, each with its mask; mlx4 main.c: no tunnels",
    );
    let fragment = "packets with the header are received; later fragments of the protocol are not";
    let other = "packets with the header are received, others are not";
    vec![
        case([SPEC, "IBV_FLOW_SPEC_TCP without masks", "verbs::FlowSpec::Tcp", fragment], tcp)
            .expect(protocol),
        case([SPEC, "IBV_FLOW_SPEC_UDP without masks", "verbs::FlowSpec::Udp", fragment], any_port)
            .expect(protocol),
        case([SPEC, "IBV_FLOW_SPEC_GRE without masks", "verbs::FlowSpec::Gre", fragment], gre)
            .expect(protocol.mlx4(Answer::INVALID)),
        case([SPEC, "IBV_FLOW_SPEC_ESP without masks", "verbs::FlowSpec::Esp", other], esp).expect(nothing),
        case(
            [SPEC, "IBV_FLOW_SPEC_VXLAN_TUNNEL without masks", "verbs::FlowSpec::VxlanTunnel", other],
            vxlan,
        )
        .expect(nothing),
        case([SPEC, "IBV_FLOW_SPEC_MPLS without masks", "verbs::FlowSpec::Mpls", other], mpls)
            .expect(nothing),
        case(
            [
                SPEC,
                "IBV_FLOW_SPEC_INNER of IBV_FLOW_SPEC_ETH without masks",
                "verbs::FlowAttr::inner",
                "tunnelled packets with an inner Ethernet header are received, others are not",
            ],
            inner,
        )
        .expect(nothing),
    ]
}

/// A fragment that is not the first: the protocol, and no header of it.
fn later(protocol: IpProtocol) -> Vec<u8> {
    ipv4().protocol(protocol).fragment(64, false).payload(&[4; 40]).build()
}

fn tcp(bench: &Bench<'_>) -> Outcome {
    let any = FlowSpec::Tcp { value: PortMatch::default(), mask: PortMatch::default() };
    let attr = bench.flow().spec(any_ipv4()).spec(any);
    decides(bench, &attr, &[ipv4().tcp(1, 53, 2).build()], &[later(IpProtocol::TCP)])
}

fn any_port(bench: &Bench<'_>) -> Outcome {
    let attr = bench.flow().spec(any_ipv4()).spec(any_udp());
    decides(bench, &attr, &[udp(1, 53)], &[later(IpProtocol::UDP)])
}

fn gre(bench: &Bench<'_>) -> Outcome {
    let any = FlowSpec::Gre { value: GreMatch::default(), mask: GreMatch::default() };
    let attr = bench.flow().spec(any_ipv4()).spec(any);
    decides(bench, &attr, &[gre_of(0x6558, None)], &[later(IpProtocol::GRE)])
}

fn esp(bench: &Bench<'_>) -> Outcome {
    let any = FlowSpec::Esp { value: EspMatch::default(), mask: EspMatch::default() };
    decides(bench, &bench.flow().spec(any_ipv4()).spec(any), &[esp_of(4, 1)], &[udp(1, 2)])
}

fn vxlan(bench: &Bench<'_>) -> Outcome {
    let attr = bench.flow().spec(any_ipv4()).spec(any_udp()).spec(network(0, 0));
    decides(bench, &attr, &[vxlan_of(7, &inside(5))], &[udp(1, 2)])
}

fn mpls(bench: &Bench<'_>) -> Outcome {
    let any = FlowSpec::Mpls { value: MplsMatch::default(), mask: MplsMatch::default() };
    decides(bench, &bench.flow().spec(any), &[mpls_of(9, 0)], &[udp(1, 2)])
}

fn inner(bench: &Bench<'_>) -> Outcome {
    let any = FlowSpec::Ethernet { value: EthernetMatch::default(), mask: EthernetMatch::default() };
    decides(bench, &bench.flow().inner(any), &[vxlan_of(7, &inside(5))], &[udp(1, 2)])
}

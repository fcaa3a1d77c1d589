//! Filters of `ibv_create_flow` on tunnel headers and on the inner packet.

use packet::EtherType;
use packet::build::{FrameBuilder, label_stack, mpls_label};
use verbs::{
    EspMatch, EthernetMatch, FlowAttr, FlowSpec, GreMatch, Ipv4ExtMatch, Ipv4Match, Ipv6Match, MplsMatch,
    PortMatch, VxlanMatch,
};

use crate::bench::{frame, ipv4, udp, v4, v6};
use crate::create_flow::refuse;
use crate::filters::{any_ipv4, any_ipv6, any_udp, decides};
use crate::{Answer, Bench, Case, Expected, Needs, Outcome, Verb};

const SPEC: &str = "ibv_flow_spec.type";

pub(crate) fn cases() -> Vec<Case> {
    let none =
        Expected::WORKS.mlx4(Answer::INVALID).because("kernel mlx4 main.c, `parse_flow_attr`: no tunnels");
    let not_mlx5 = none.mlx5(Answer::UNSUPPORTED).because("kernel mlx5 fs.c, `parse_flow_attr`: `esp.mask.seq`, `gre.mask.c_ks_res0_ver`; mlx4 main.c: no tunnels");
    let case = |row, run| Case::new(Verb::CreateFlow, row, run).needs(Needs::Frames).expect(none);
    let matched = "packets with the value are received, others are not";
    let inner = |value, offered, run| {
        case([SPEC, value, offered, "what has it inside comes; not outside, not another"], run)
    };
    let refused = |row, run, errno, source| {
        Case::new(Verb::CreateFlow, row, run).expect(Expected::refused(errno, source))
    };
    vec![
        case([SPEC, "IBV_FLOW_SPEC_ESP", "verbs::FlowSpec::Esp", "only ESP is received"], esp),
        case(["ibv_flow_esp_filter.spi", "4", "verbs::EspMatch::spi", matched], esp),
        case(["ibv_flow_esp_filter.seq", "9", "verbs::EspMatch::seq", matched], esp_sequence)
            .expect(not_mlx5),
        case([SPEC, "IBV_FLOW_SPEC_VXLAN_TUNNEL", "verbs::FlowSpec::VxlanTunnel", matched], vxlan),
        case(["ibv_flow_tunnel_filter.tunnel_id", "77", "verbs::VxlanMatch::vni", matched], vxlan),
        refused(
            ["ibv_flow_tunnel_filter.tunnel_id", "more than 24 bits", "verbs::VxlanMatch::vni", "refused"],
            vni_too_large,
            libc::EINVAL,
            "kernel uverbs_cmd.c: tunnel_id beyond 24 bits",
        ),
        case([SPEC, "IBV_FLOW_SPEC_GRE", "verbs::FlowSpec::Gre", "only GRE is received"], gre),
        case(
            ["ibv_flow_gre_filter.c_ks_res0_ver", "the key flag", "verbs::GreMatch::c_ks_res0_ver", matched],
            gre_flags,
        )
        .expect(not_mlx5),
        case(["ibv_flow_gre_filter.protocol", "0x0800", "verbs::GreMatch::protocol", matched], gre_protocol),
        case(["ibv_flow_gre_filter.key", "5", "verbs::GreMatch::key", matched], gre_key),
        case([SPEC, "IBV_FLOW_SPEC_MPLS", "verbs::FlowSpec::Mpls", matched], mpls),
        case(["ibv_flow_mpls_filter.label", "label 9", "verbs::MplsMatch::label", matched], mpls),
        case(
            ["ibv_flow_mpls_filter.label", "traffic class 5", "verbs::MplsMatch::label", matched],
            mpls_class,
        ),
        case(
            [SPEC, "IBV_FLOW_SPEC_INNER", "verbs::FlowAttr::inner", "the same filter on the inner packet"],
            inner_udp,
        ),
        inner("IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_INNER", "verbs::FlowAttr::inner", inner_eth),
        inner("IBV_FLOW_SPEC_IPV4 | IBV_FLOW_SPEC_INNER", "verbs::FlowAttr::inner", inner_ipv4),
        inner("IBV_FLOW_SPEC_IPV4_EXT | IBV_FLOW_SPEC_INNER", "verbs::FlowAttr::inner", inner_ipv4_ext),
        inner("IBV_FLOW_SPEC_IPV6 | IBV_FLOW_SPEC_INNER", "verbs::FlowAttr::inner", inner_ipv6),
        inner("IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_INNER", "verbs::FlowAttr::inner", inner_tcp),
        inner("IBV_FLOW_SPEC_UDP | IBV_FLOW_SPEC_INNER", "verbs::FlowAttr::inner", inner_udp),
        refused(
            [SPEC, "IBV_FLOW_SPEC_VXLAN_TUNNEL | IBV_FLOW_SPEC_INNER", "verbs::FlowAttr::inner", "refused"],
            vxlan_inside,
            libc::EINVAL,
            "kernel uverbs_cmd.c, `kern_spec_to_ib_spec_filter`: not inside a tunnel",
        ),
        refused(
            [SPEC, "IBV_FLOW_SPEC_GRE | IBV_FLOW_SPEC_INNER", "verbs::FlowAttr::inner", "refused"],
            gre_inside,
            libc::EINVAL,
            "kernel uverbs_cmd.c, `kern_spec_to_ib_spec_filter`: not inside a tunnel",
        ),
    ]
}

/// The packet inside: UDP from 11 to `port`.
pub(crate) fn inside(port: u16) -> Vec<u8> {
    FrameBuilder::new().ipv4(v4(11), v4(12)).udp(11, port).payload(&[3; 20]).build()
}

pub(crate) fn vxlan_of(vni: u32, inner: &[u8]) -> Vec<u8> {
    ipv4().vxlan(vni, inner).build()
}

pub(crate) fn esp_of(spi: u32, sequence: u32) -> Vec<u8> {
    ipv4().esp(spi, sequence, &[0; 40]).build()
}

pub(crate) fn gre_of(protocol: u16, key: Option<u32>) -> Vec<u8> {
    let inner = if protocol == 0x0800 { inside(5).split_off(14) } else { inside(5) };
    ipv4().gre(EtherType(protocol), key, &inner).build()
}

pub(crate) fn mpls_of(label: u32, class: u8) -> Vec<u8> {
    let stack = label_stack(&[mpls_label(label, class)], &inside(5)[14..]);
    frame().ether_type(EtherType::MPLS).payload(&stack).build()
}

fn esp_flow(bench: &Bench<'_>, value: EspMatch, mask: EspMatch) -> FlowAttr {
    bench.flow().spec(any_ipv4()).spec(FlowSpec::Esp { value, mask })
}

fn esp(bench: &Bench<'_>) -> Outcome {
    let attr = esp_flow(bench, EspMatch { spi: 4, seq: 0 }, EspMatch { spi: u32::MAX, seq: 0 });
    decides(bench, &attr, &[esp_of(4, 1), esp_of(4, 2)], &[esp_of(5, 1), udp(1, 2)])
}

fn esp_sequence(bench: &Bench<'_>) -> Outcome {
    let attr = esp_flow(bench, EspMatch { spi: 0, seq: 9 }, EspMatch { spi: 0, seq: u32::MAX });
    decides(bench, &attr, &[esp_of(4, 9)], &[esp_of(9, 4)])
}

/// UDP to the port of VXLAN, any network.
fn to_vxlan(bench: &Bench<'_>) -> FlowAttr {
    let port = |dst_port| PortMatch { src_port: 0, dst_port };
    bench.flow().spec(any_ipv4()).spec(FlowSpec::Udp { value: port(4789), mask: port(0xffff) })
}

pub(crate) fn network(vni: u32, mask: u32) -> FlowSpec {
    FlowSpec::VxlanTunnel { value: VxlanMatch { vni }, mask: VxlanMatch { vni: mask } }
}

fn vxlan(bench: &Bench<'_>) -> Outcome {
    let attr = to_vxlan(bench).spec(network(77, 0x00ff_ffff));
    decides(bench, &attr, &[vxlan_of(77, &inside(5))], &[vxlan_of(78, &inside(5)), udp(1, 2)])
}

fn vni_too_large(bench: &Bench<'_>) -> Outcome {
    refuse(bench, to_vxlan(bench).spec(network(1 << 24, 1 << 24)))
}

const GRE: GreMatch = GreMatch { c_ks_res0_ver: 0, protocol: 0, key: 0 };

fn gre_flow(bench: &Bench<'_>, value: GreMatch, mask: GreMatch) -> FlowAttr {
    bench.flow().spec(any_ipv4()).spec(FlowSpec::Gre { value, mask })
}

fn gre(bench: &Bench<'_>) -> Outcome {
    let hits = [gre_of(0x6558, None), gre_of(0x0800, Some(5))];
    decides(bench, &gre_flow(bench, GRE, GRE), &hits, &[udp(1, 2), esp_of(1, 1)])
}

fn gre_flags(bench: &Bench<'_>) -> Outcome {
    let flags = GreMatch { c_ks_res0_ver: 0x2000, ..GRE };
    decides(bench, &gre_flow(bench, flags, flags), &[gre_of(0x6558, Some(5))], &[gre_of(0x6558, None)])
}

fn gre_protocol(bench: &Bench<'_>) -> Outcome {
    let attr = gre_flow(bench, GreMatch { protocol: 0x0800, ..GRE }, GreMatch { protocol: 0xffff, ..GRE });
    decides(bench, &attr, &[gre_of(0x0800, None)], &[gre_of(0x6558, None)])
}

fn gre_key(bench: &Bench<'_>) -> Outcome {
    let attr = gre_flow(bench, GreMatch { key: 5, ..GRE }, GreMatch { key: u32::MAX, ..GRE });
    decides(bench, &attr, &[gre_of(0x6558, Some(5))], &[gre_of(0x6558, Some(6)), gre_of(0x6558, None)])
}

fn mpls_flow(bench: &Bench<'_>, value: u32, mask: u32) -> FlowAttr {
    let spec = FlowSpec::Mpls { value: MplsMatch { label: value }, mask: MplsMatch { label: mask } };
    bench.flow().spec(spec)
}

fn mpls(bench: &Bench<'_>) -> Outcome {
    let attr = mpls_flow(bench, 9 << 12, 0xffff_f000);
    decides(bench, &attr, &[mpls_of(9, 0), mpls_of(9, 5)], &[mpls_of(10, 0), udp(1, 2)])
}

fn mpls_class(bench: &Bench<'_>) -> Outcome {
    let attr = mpls_flow(bench, 5 << 9, 7 << 9);
    decides(bench, &attr, &[mpls_of(9, 5), mpls_of(8, 5)], &[mpls_of(9, 4)])
}

/// A flow about what is inside network 7.
fn inner(bench: &Bench<'_>, specs: impl IntoIterator<Item = FlowSpec>) -> FlowAttr {
    specs.into_iter().fold(to_vxlan(bench).spec(network(7, 0x00ff_ffff)), FlowAttr::inner)
}

/// A case: of these inner packets only the hit comes; the hit as a packet of its own does not.
#[allow(clippy::needless_pass_by_value)] // made for this call
fn inner_decides(bench: &Bench<'_>, attr: &FlowAttr, hit: FrameBuilder, miss: FrameBuilder) -> Outcome {
    let outside = hit.build();
    decides(bench, attr, &[vxlan_of(7, &hit.build())], &[vxlan_of(7, &miss.build()), outside])
}

fn inner_eth(bench: &Bench<'_>) -> Outcome {
    let none = EthernetMatch::default();
    let dst_mac = [2, 0, 0, 0, 7, 7];
    let value = EthernetMatch { dst_mac, ..none };
    let mask = EthernetMatch { dst_mac: [0xff; 6], ..none };
    let attr = inner(bench, [FlowSpec::Ethernet { value, mask }]);
    let to = |mac| {
        FrameBuilder::new()
            .ethernet(packet::MacAddr(mac), packet::MacAddr([2; 6]))
            .ipv4(v4(1), v4(2))
            .udp(1, 2)
    };
    inner_decides(bench, &attr, to(dst_mac), to([2, 0, 0, 0, 7, 8]))
}

/// To the bench's address, so that it would come if the filter were about the outside.
fn from4(last: u8) -> FrameBuilder {
    frame().ipv4(v4(last), v4(2)).udp(1, 2)
}

fn inner_ipv4(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4Match { src: v4(21).into(), dst: 0 }, Ipv4Match { src: u32::MAX, dst: 0 });
    inner_decides(bench, &inner(bench, [FlowSpec::Ipv4 { value, mask }]), from4(21), from4(22))
}

fn inner_ipv4_ext(bench: &Bench<'_>) -> Outcome {
    let none = Ipv4ExtMatch::default();
    let (value, mask) = (Ipv4ExtMatch { tos: 0xb8, ..none }, Ipv4ExtMatch { tos: 0xff, ..none });
    let attr = inner(bench, [FlowSpec::Ipv4Ext { value, mask }]);
    inner_decides(bench, &attr, from4(21).tos(0xb8), from4(21))
}

fn inner_ipv6(bench: &Bench<'_>) -> Outcome {
    let none = Ipv6Match::default();
    let value = Ipv6Match { src: v6(21).octets(), ..none };
    let mask = Ipv6Match { src: [0xff; 16], ..none };
    let attr = inner(bench, [FlowSpec::Ipv6 { value, mask }]);
    let from = |last| frame().ipv6(v6(last), v6(2)).udp(1, 2);
    inner_decides(bench, &attr, from(21), from(22))
}

fn inner_tcp(bench: &Bench<'_>) -> Outcome {
    let port = |dst_port| PortMatch { src_port: 0, dst_port };
    let spec = FlowSpec::Tcp { value: port(443), mask: port(0xffff) };
    let attr = inner(bench, [any_ipv6(), spec]);
    let to = |port| frame().ipv6(v6(1), v6(2)).tcp(1, port, 2);
    inner_decides(bench, &attr, to(443), to(444))
}

fn inner_udp(bench: &Bench<'_>) -> Outcome {
    let port = |dst_port| PortMatch { src_port: 0, dst_port };
    let spec = FlowSpec::Udp { value: port(53), mask: port(0xffff) };
    let attr = inner(bench, [any_ipv4(), spec]);
    let to = |port| frame().ipv4(v4(1), v4(2)).udp(1, port);
    inner_decides(bench, &attr, to(53), to(54))
}

fn vxlan_inside(bench: &Bench<'_>) -> Outcome {
    refuse(bench, bench.flow().spec(any_ipv4()).spec(any_udp()).inner(network(7, 0x00ff_ffff)))
}

fn gre_inside(bench: &Bench<'_>) -> Outcome {
    refuse(bench, bench.flow().spec(any_ipv4()).inner(FlowSpec::Gre { value: GRE, mask: GRE }))
}

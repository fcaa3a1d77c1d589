//! The IPv4 and IPv6 filters of `ibv_create_flow` about the outermost packet; called by `filters`, which has the others.

use packet::build::FrameBuilder;
use verbs::{FlowAttr, FlowSpec, Ipv4ExtMatch, Ipv4Match, Ipv6Match};

use crate::bench::{frame, ipv4, ipv6, udp, v4, v6};
use crate::filters::{SPEC, any_ipv4, case, decides};
use crate::{Answer, Bench, Case, Expected, Needs, Outcome};

const NONSENSE: Answer = Answer::Refused(libc::EINVAL);
const NOT_THERE: Answer = Answer::Refused(libc::EOPNOTSUPP);

pub(crate) fn cases() -> Vec<Case> {
    let plain = Expected::WORKS
        .mlx4(NONSENSE)
        .because("kernel mlx4 main.c, `parse_flow_attr`: LAST_IPV4_FIELD is the destination address");
    let not_mlx5 = plain.mlx5(NOT_THERE).because(
        "kernel mlx5 fs.c: LAST_IPV4_FIELD is tos, EOPNOTSUPP; mlx4 main.c: the destination address, EINVAL",
    );
    let six = Expected::WORKS.mlx4(NONSENSE).because("kernel mlx4 main.c, `parse_flow_attr`: no IPv6");
    let six_not_mlx5 = six
        .mlx5(NOT_THERE)
        .because("kernel mlx5 fs.c: LAST_IPV6_FIELD is the traffic class; mlx4 main.c: no IPv6");
    let says = "what has it comes, nothing else";
    vec![
        case([SPEC, "IBV_FLOW_SPEC_IPV4", "verbs::FlowSpec::Ipv4", "IPv4 comes, nothing else"], is_ipv4),
        case(["ibv_flow_ipv4_filter.src_ip", "an address", "verbs::Ipv4Match::src", says], ipv4_src),
        case(["ibv_flow_ipv4_filter.dst_ip", "an address", "verbs::Ipv4Match::dst", says], ipv4_dst),
        case(
            ["ibv_flow_ipv4_filter.dst_ip", "a prefix of 25 bits", "verbs::Ipv4Match::dst", says],
            ipv4_prefix,
        ),
        case(
            [SPEC, "IBV_FLOW_SPEC_IPV4_EXT", "verbs::FlowSpec::Ipv4Ext", "IPv4 comes, nothing else"],
            is_ipv4_ext,
        ),
        case(["ibv_flow_ipv4_ext_filter.src_ip", "an address", "verbs::Ipv4ExtMatch::src", says], ext_src),
        case(["ibv_flow_ipv4_ext_filter.dst_ip", "an address", "verbs::Ipv4ExtMatch::dst", says], ext_dst),
        case(["ibv_flow_ipv4_ext_filter.proto", "17", "verbs::Ipv4ExtMatch::proto", says], ext_proto)
            .expect(plain),
        case(["ibv_flow_ipv4_ext_filter.tos", "0xb8", "verbs::Ipv4ExtMatch::tos", says], ext_tos)
            .expect(plain),
        case(["ibv_flow_ipv4_ext_filter.ttl", "3", "verbs::Ipv4ExtMatch::ttl", says], ext_ttl)
            .expect(not_mlx5),
        case(
            ["ibv_flow_ipv4_ext_filter.flags", "don't fragment", "verbs::Ipv4ExtMatch::flags", says],
            ext_flags,
        )
        .expect(not_mlx5),
        case(
            ["ibv_flow_ipv4_ext_filter.flags", "more fragments", "verbs::Ipv4ExtMatch::flags", says],
            ext_fragments,
        )
        .expect(not_mlx5),
        case([SPEC, "IBV_FLOW_SPEC_IPV6", "verbs::FlowSpec::Ipv6", "IPv6 comes, nothing else"], is_ipv6)
            .expect(six),
        case(["ibv_flow_ipv6_filter.src_ip", "an address", "verbs::Ipv6Match::src", says], ipv6_src)
            .expect(six),
        case(["ibv_flow_ipv6_filter.dst_ip", "an address", "verbs::Ipv6Match::dst", says], ipv6_dst)
            .expect(six),
        case(
            ["ibv_flow_ipv6_filter.flow_label", "0x12345", "verbs::Ipv6Match::flow_label", says],
            flow_label,
        )
        .expect(six),
        case(
            [
                "ibv_flow_ipv6_filter.flow_label",
                "more than 20 bits",
                "verbs::Ipv6Match::flow_label",
                "refused",
            ],
            flow_label_too_large,
        )
        .needs(Needs::Objects)
        .expect(Expected::refused(libc::EINVAL, "kernel uverbs_cmd.c: flow_label beyond 20 bits")),
        case(["ibv_flow_ipv6_filter.next_hdr", "6", "verbs::Ipv6Match::next_hdr", says], next_header)
            .expect(six),
        case(
            ["ibv_flow_ipv6_filter.traffic_class", "0xb8", "verbs::Ipv6Match::traffic_class", says],
            traffic_class,
        )
        .expect(six),
        case(["ibv_flow_ipv6_filter.hop_limit", "3", "verbs::Ipv6Match::hop_limit", says], hop_limit)
            .expect(six_not_mlx5),
    ]
}

/// What a builder gives as a UDP packet.
fn packet(builder: FrameBuilder) -> Vec<u8> {
    builder.udp(1, 2).payload(&[1; 30]).build()
}

fn arp() -> Vec<u8> {
    frame().arp_request(v4(1), v4(2)).build()
}

fn is_ipv4(bench: &Bench<'_>) -> Outcome {
    let attr = bench.flow().spec(any_ipv4());
    decides(bench, &attr, &[udp(1, 2)], &[packet(ipv6()), arp()])
}

fn ipv4_of(
    bench: &Bench<'_>,
    value: Ipv4Match,
    mask: Ipv4Match,
    hit: (u8, u8),
    misses: [(u8, u8); 2],
) -> Outcome {
    let of = |(src, dst): (u8, u8)| packet(frame().ipv4(v4(src), v4(dst)));
    let attr = bench.flow().spec(FlowSpec::Ipv4 { value, mask });
    decides(bench, &attr, &[of(hit)], &misses.map(of))
}

fn ipv4_src(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4Match { src: v4(1).into(), dst: 0 }, Ipv4Match { src: u32::MAX, dst: 0 });
    ipv4_of(bench, value, mask, (1, 2), [(2, 1), (3, 2)])
}

fn ipv4_dst(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4Match { src: 0, dst: v4(2).into() }, Ipv4Match { src: 0, dst: u32::MAX });
    ipv4_of(bench, value, mask, (1, 2), [(2, 1), (1, 3)])
}

fn ipv4_prefix(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4Match { src: 0, dst: v4(128).into() }, Ipv4Match { src: 0, dst: u32::MAX << 7 });
    ipv4_of(bench, value, mask, (1, 200), [(200, 1), (1, 127)])
}

pub(crate) const EXT: Ipv4ExtMatch = Ipv4ExtMatch { src: 0, dst: 0, proto: 0, tos: 0, ttl: 0, flags: 0 };

pub(crate) fn ext(bench: &Bench<'_>, value: Ipv4ExtMatch, mask: Ipv4ExtMatch) -> FlowAttr {
    bench.flow().spec(FlowSpec::Ipv4Ext { value, mask })
}

fn is_ipv4_ext(bench: &Bench<'_>) -> Outcome {
    decides(bench, &ext(bench, EXT, EXT), &[udp(1, 2)], &[packet(ipv6()), arp()])
}

fn ext_src(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4ExtMatch { src: v4(1).into(), ..EXT }, Ipv4ExtMatch { src: u32::MAX, ..EXT });
    decides(bench, &ext(bench, value, mask), &[udp(1, 2)], &[packet(frame().ipv4(v4(3), v4(2)))])
}

fn ext_dst(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4ExtMatch { dst: v4(2).into(), ..EXT }, Ipv4ExtMatch { dst: u32::MAX, ..EXT });
    decides(bench, &ext(bench, value, mask), &[udp(1, 2)], &[packet(frame().ipv4(v4(1), v4(3)))])
}

fn ext_proto(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4ExtMatch { proto: 17, ..EXT }, Ipv4ExtMatch { proto: 0xff, ..EXT });
    decides(bench, &ext(bench, value, mask), &[udp(1, 2)], &[ipv4().tcp(1, 2, 2).build()])
}

fn ext_tos(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4ExtMatch { tos: 0xb8, ..EXT }, Ipv4ExtMatch { tos: 0xff, ..EXT });
    decides(
        bench,
        &ext(bench, value, mask),
        &[packet(ipv4().tos(0xb8))],
        &[packet(ipv4().tos(0xb9)), udp(1, 2)],
    )
}

fn ext_ttl(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4ExtMatch { ttl: 3, ..EXT }, Ipv4ExtMatch { ttl: 0xff, ..EXT });
    decides(bench, &ext(bench, value, mask), &[packet(ipv4().ttl(3))], &[packet(ipv4().ttl(4))])
}

fn ext_flags(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4ExtMatch { flags: 2, ..EXT }, Ipv4ExtMatch { flags: 2, ..EXT });
    decides(bench, &ext(bench, value, mask), &[packet(ipv4().ip_flags(2))], &[packet(ipv4().ip_flags(0))])
}

/// 4 in `enum ib_ipv4_flags`, and 1 in the header.
fn ext_fragments(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4ExtMatch { flags: 4, ..EXT }, Ipv4ExtMatch { flags: 4, ..EXT });
    let misses = [packet(ipv4().ip_flags(2)), packet(ipv4().ip_flags(0))];
    decides(bench, &ext(bench, value, mask), &[packet(ipv4().ip_flags(1))], &misses)
}

const V6: Ipv6Match =
    Ipv6Match { src: [0; 16], dst: [0; 16], flow_label: 0, next_hdr: 0, traffic_class: 0, hop_limit: 0 };

fn six(bench: &Bench<'_>, value: Ipv6Match, mask: Ipv6Match) -> FlowAttr {
    bench.flow().spec(FlowSpec::Ipv6 { value, mask })
}

fn is_ipv6(bench: &Bench<'_>) -> Outcome {
    decides(bench, &six(bench, V6, V6), &[packet(ipv6())], &[udp(1, 2), arp()])
}

fn ipv6_src(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv6Match { src: v6(1).octets(), ..V6 }, Ipv6Match { src: [0xff; 16], ..V6 });
    decides(bench, &six(bench, value, mask), &[packet(ipv6())], &[packet(frame().ipv6(v6(3), v6(2)))])
}

fn ipv6_dst(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv6Match { dst: v6(2).octets(), ..V6 }, Ipv6Match { dst: [0xff; 16], ..V6 });
    decides(bench, &six(bench, value, mask), &[packet(ipv6())], &[packet(frame().ipv6(v6(1), v6(3)))])
}

fn flow_label(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv6Match { flow_label: 0x12345, ..V6 }, Ipv6Match { flow_label: 0xf_ffff, ..V6 });
    let label = |label| packet(ipv6().flow_label(label));
    decides(bench, &six(bench, value, mask), &[label(0x12345)], &[label(0x12346), label(0)])
}

fn flow_label_too_large(bench: &Bench<'_>) -> Outcome {
    let label = Ipv6Match { flow_label: 1 << 20, ..V6 };
    crate::create_flow::refuse(bench, six(bench, label, label))
}

fn next_header(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv6Match { next_hdr: 6, ..V6 }, Ipv6Match { next_hdr: 0xff, ..V6 });
    decides(bench, &six(bench, value, mask), &[ipv6().tcp(1, 2, 2).build()], &[packet(ipv6())])
}

fn traffic_class(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv6Match { traffic_class: 0xb8, ..V6 }, Ipv6Match { traffic_class: 0xff, ..V6 });
    decides(bench, &six(bench, value, mask), &[packet(ipv6().tos(0xb8))], &[packet(ipv6())])
}

fn hop_limit(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv6Match { hop_limit: 3, ..V6 }, Ipv6Match { hop_limit: 0xff, ..V6 });
    decides(bench, &six(bench, value, mask), &[packet(ipv6().ttl(3))], &[packet(ipv6().ttl(4))])
}

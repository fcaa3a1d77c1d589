//! Filters of `ibv_create_flow` on the outermost headers: each field on its own, with packets that match and
//! packets that do not.

use packet::EtherType;
use packet::build::FrameBuilder;
use verbs::{EthernetMatch, FlowAttr, FlowSpec, Ipv4ExtMatch, Ipv4Match, Ipv6Match, PortMatch};

use crate::bench::{MAC, OTHER_MAC, frame, ipv4, ipv6, udp, v4, v6};
use crate::endpoints::Receiver;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

pub(crate) const SPEC: &str = "ibv_flow_spec.type";
const NONE: EthernetMatch = EthernetMatch { dst_mac: [0; 6], src_mac: [0; 6], ether_type: 0, vlan_tag: 0 };
const US: EthernetMatch = EthernetMatch { dst_mac: MAC, ..NONE };
const TO_US: EthernetMatch = EthernetMatch { dst_mac: [0xff; 6], ..NONE };

pub(crate) fn cases() -> Vec<Case> {
    let mut all = ethernet();
    all.extend(ip());
    all.extend(transport());
    all
}

pub(crate) fn case(row: [&'static str; 4], run: fn(&Bench<'_>) -> Outcome) -> Case {
    Case::new(Verb::CreateFlow, row, run).needs(Needs::Frames)
}

fn ethernet() -> Vec<Case> {
    let forgets = Expected::WORKS
        .mlx4(Answer::Ignored)
        .because("kernel mlx4 main.c, `parse_flow_attr`: only destination and VLAN tag are copied");
    vec![
        case(
            [SPEC, "IBV_FLOW_SPEC_ETH", "verbs::FlowSpec::Ethernet", "packets to the address are received"],
            dst_mac,
        ),
        case(
            [
                "ibv_flow_eth_filter.dst_mac",
                "an address",
                "verbs::EthernetMatch::dst_mac",
                "packets with the value are received, others are not",
            ],
            dst_mac,
        ),
        case(
            [
                "ibv_flow_eth_filter.dst_mac",
                "a mask of some bits",
                "verbs::EthernetMatch::dst_mac",
                "packets with those bits are received",
            ],
            dst_mac_bits,
        ),
        case(
            [
                "ibv_flow_eth_filter.src_mac",
                "an address",
                "verbs::EthernetMatch::src_mac",
                "packets with the value are received, others are not",
            ],
            src_mac,
        )
        .expect(forgets),
        case(
            [
                "ibv_flow_eth_filter.ether_type",
                "0x88b5",
                "verbs::EthernetMatch::ether_type",
                "packets with the value are received, others are not",
            ],
            ether_type,
        )
        .expect(forgets),
        case(
            [
                "ibv_flow_eth_filter.vlan_tag",
                "a VLAN",
                "verbs::EthernetMatch::vlan_tag",
                "packets with the tag are received; packets with another tag or none are not",
            ],
            vlan,
        ),
        case(
            [
                "ibv_flow_eth_filter.vlan_tag",
                "a priority, any VLAN",
                "verbs::EthernetMatch::vlan_tag",
                "packets with the value are received, others are not",
            ],
            vlan_priority,
        ),
        case(
            [
                "ibv_flow_eth_filter.ether_type",
                "0x0800 beside IBV_FLOW_SPEC_IPV6",
                "verbs::EthernetMatch::ether_type",
                "refused, or nothing can match",
            ],
            contradiction,
        )
        .needs(Needs::Objects)
        .expect(
            Expected::WORKS
                .mlx5(Answer::INVALID)
                .mlx4(Answer::INVALID)
                .because("kernel mlx5 fs.c, `is_valid_ethertype`; mlx4 main.c: no IPv6"),
        ),
    ]
}

fn transport() -> Vec<Case> {
    let matched = "packets with the value are received, others are not";
    vec![
        case(
            [
                SPEC,
                "IBV_FLOW_SPEC_TCP",
                "verbs::FlowSpec::Tcp",
                "TCP is received, UDP to the same port is not",
            ],
            is_tcp,
        ),
        case(
            [
                SPEC,
                "IBV_FLOW_SPEC_UDP",
                "verbs::FlowSpec::Udp",
                "UDP is received, TCP to the same port is not",
            ],
            is_udp,
        ),
        case(["ibv_flow_tcp_udp_filter.src_port", "53", "verbs::PortMatch::src_port", matched], src_port),
        case(["ibv_flow_tcp_udp_filter.dst_port", "53", "verbs::PortMatch::dst_port", matched], dst_port),
        case(
            [
                "ibv_flow_tcp_udp_filter.dst_port",
                "a mask of some bits",
                "verbs::PortMatch::dst_port",
                matched,
            ],
            port_bits,
        ),
        case(
            [
                "ibv_flow_ipv4_ext_filter.proto",
                "6 beside IBV_FLOW_SPEC_UDP",
                "verbs::Ipv4ExtMatch::proto",
                "refused",
            ],
            protocol_contradiction,
        )
        .needs(Needs::Objects)
        .expect(Expected::refused(
            libc::EINVAL,
            "kernel mlx5 fs.c, `set_proto`; mlx4 main.c: no protocol field",
        )),
    ]
}

/// Creates a flow, sends packets that match and packets that do not, and compares what was received.
pub(crate) fn decides(bench: &Bench<'_>, attr: &FlowAttr, hits: &[Vec<u8>], misses: &[Vec<u8>]) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(attr)?;
    bench.needs_peer()?;
    bench.deliver(hits.iter().chain(misses).cloned());
    let came = receiver.frames()?;
    if !misses.is_empty() && came.len() == hits.len() + misses.len() {
        return Err(Failure::Ignored);
    }
    ensure!(came == hits, "{} frames came instead of {}, or others", came.len(), hits.len());
    Ok(())
}

/// A flow with this Ethernet filter instead of the bench's own.
fn eth(bench: &Bench<'_>, value: EthernetMatch, mask: EthernetMatch) -> FlowAttr {
    FlowAttr::new(verbs::FlowKind::Normal, bench.port).spec(FlowSpec::Ethernet { value, mask })
}

fn from(dst: [u8; 6], src: [u8; 6]) -> Vec<u8> {
    ipv4().ethernet(packet::MacAddr(dst), packet::MacAddr(src)).udp(1, 2).payload(&[1; 30]).build()
}

fn dst_mac(bench: &Bench<'_>) -> Outcome {
    let mut near = MAC;
    near[5] ^= 1;
    decides(bench, &eth(bench, US, TO_US), &[udp(1, 2)], &[from(near, OTHER_MAC)])
}

fn dst_mac_bits(bench: &Bench<'_>) -> Outcome {
    let mask = EthernetMatch { dst_mac: [0xff, 0xff, 0xff, 0xff, 0xff, 0xf0], ..NONE };
    let (mut near, mut far) = (MAC, MAC);
    near[5] ^= 1;
    far[5] ^= 0x10;
    let value = EthernetMatch { dst_mac: [MAC[0], MAC[1], MAC[2], MAC[3], MAC[4], MAC[5] & 0xf0], ..NONE };
    decides(bench, &eth(bench, value, mask), &[udp(1, 2), from(near, OTHER_MAC)], &[from(far, OTHER_MAC)])
}

fn src_mac(bench: &Bench<'_>) -> Outcome {
    let (value, mask) =
        (EthernetMatch { src_mac: OTHER_MAC, ..US }, EthernetMatch { src_mac: [0xff; 6], ..TO_US });
    decides(bench, &eth(bench, value, mask), &[udp(1, 2)], &[from(MAC, [2, 9, 9, 9, 9, 9])])
}

fn ether_type(bench: &Bench<'_>) -> Outcome {
    let (value, mask) =
        (EthernetMatch { ether_type: 0x88b5, ..US }, EthernetMatch { ether_type: 0xffff, ..TO_US });
    let experiment = |number| frame().ether_type(EtherType(number)).payload(&[1; 60]).build();
    decides(bench, &eth(bench, value, mask), &[experiment(0x88b5)], &[experiment(0x88b6), udp(1, 2)])
}

fn tagged(tag: u16) -> Vec<u8> {
    ipv4().vlan(EtherType(0x8100), tag).udp(1, 2).payload(&[1; 30]).build()
}

fn vlan(bench: &Bench<'_>) -> Outcome {
    let (value, mask) =
        (EthernetMatch { vlan_tag: 0x064, ..US }, EthernetMatch { vlan_tag: 0x0fff, ..TO_US });
    let hits = [tagged(0x0064), tagged(0x6064)];
    decides(bench, &eth(bench, value, mask), &hits, &[tagged(0x0065), udp(1, 2)])
}

fn vlan_priority(bench: &Bench<'_>) -> Outcome {
    let (value, mask) =
        (EthernetMatch { vlan_tag: 0x6000, ..US }, EthernetMatch { vlan_tag: 0xe000, ..TO_US });
    decides(bench, &eth(bench, value, mask), &[tagged(0x6064), tagged(0x6001)], &[tagged(0x4064)])
}

fn contradiction(bench: &Bench<'_>) -> Outcome {
    let (value, mask) =
        (EthernetMatch { ether_type: 0x0800, ..US }, EthernetMatch { ether_type: 0xffff, ..TO_US });
    crate::create_flow::refuse(bench, eth(bench, value, mask).spec(any_ipv6()))
}

/// IPv4, any addresses.
pub(crate) fn any_ipv4() -> FlowSpec {
    FlowSpec::Ipv4 { value: Ipv4Match::default(), mask: Ipv4Match::default() }
}

/// IPv6, any addresses.
pub(crate) fn any_ipv6() -> FlowSpec {
    FlowSpec::Ipv6 { value: Ipv6Match::default(), mask: Ipv6Match::default() }
}

/// UDP, any ports.
pub(crate) fn any_udp() -> FlowSpec {
    FlowSpec::Udp { value: PortMatch::default(), mask: PortMatch::default() }
}

fn ports(src_port: u16, dst_port: u16) -> PortMatch {
    PortMatch { src_port, dst_port }
}

fn tcp(src_port: u16, dst_port: u16) -> Vec<u8> {
    ipv4().tcp(src_port, dst_port, 2).build()
}

fn to_udp(bench: &Bench<'_>, value: PortMatch, mask: PortMatch) -> FlowAttr {
    bench.flow().spec(any_ipv4()).spec(FlowSpec::Udp { value, mask })
}

fn is_tcp(bench: &Bench<'_>) -> Outcome {
    let spec = FlowSpec::Tcp { value: ports(0, 53), mask: ports(0, 0xffff) };
    let attr = bench.flow().spec(any_ipv4()).spec(spec);
    decides(bench, &attr, &[tcp(1, 53)], &[udp(1, 53), tcp(53, 1)])
}

fn is_udp(bench: &Bench<'_>) -> Outcome {
    let attr = to_udp(bench, ports(0, 53), ports(0, 0xffff));
    decides(bench, &attr, &[udp(1, 53)], &[tcp(1, 53), udp(53, 1)])
}

fn src_port(bench: &Bench<'_>) -> Outcome {
    let attr = to_udp(bench, ports(53, 0), ports(0xffff, 0));
    decides(bench, &attr, &[udp(53, 1), udp(53, 2)], &[udp(1, 53), udp(54, 1)])
}

fn dst_port(bench: &Bench<'_>) -> Outcome {
    let attr = to_udp(bench, ports(0, 53), ports(0, 0xffff));
    decides(bench, &attr, &[udp(1, 53), udp(2, 53)], &[udp(53, 1), udp(1, 54)])
}

fn port_bits(bench: &Bench<'_>) -> Outcome {
    let attr = to_udp(bench, ports(0, 0x1000), ports(0, 0xff00));
    decides(bench, &attr, &[udp(1, 0x1000), udp(1, 0x10ff)], &[udp(1, 0x1100)])
}

fn protocol_contradiction(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4ExtMatch { proto: 6, ..EXT }, Ipv4ExtMatch { proto: 0xff, ..EXT });
    crate::create_flow::refuse(bench, ext(bench, value, mask).spec(any_udp()))
}

fn ip() -> Vec<Case> {
    let plain = Expected::WORKS
        .mlx4(Answer::INVALID)
        .because("kernel mlx4 main.c, `parse_flow_attr`: LAST_IPV4_FIELD is the destination address");
    let not_mlx5 = plain.mlx5(Answer::UNSUPPORTED).because(
        "kernel mlx5 fs.c: LAST_IPV4_FIELD is tos, EOPNOTSUPP; mlx4 main.c: the destination address, EINVAL",
    );
    let six = Expected::WORKS.mlx4(Answer::INVALID).because("kernel mlx4 main.c, `parse_flow_attr`: no IPv6");
    let six_not_mlx5 = six
        .mlx5(Answer::UNSUPPORTED)
        .because("kernel mlx5 fs.c: LAST_IPV6_FIELD is the traffic class; mlx4 main.c: no IPv6");
    let matched = "packets with the value are received, others are not";
    vec![
        case([SPEC, "IBV_FLOW_SPEC_IPV4", "verbs::FlowSpec::Ipv4", "only IPv4 is received"], is_ipv4),
        case(["ibv_flow_ipv4_filter.src_ip", "an address", "verbs::Ipv4Match::src", matched], ipv4_src),
        case(["ibv_flow_ipv4_filter.dst_ip", "an address", "verbs::Ipv4Match::dst", matched], ipv4_dst),
        case(
            ["ibv_flow_ipv4_filter.dst_ip", "a prefix of 25 bits", "verbs::Ipv4Match::dst", matched],
            ipv4_prefix,
        ),
        case(
            [SPEC, "IBV_FLOW_SPEC_IPV4_EXT", "verbs::FlowSpec::Ipv4Ext", "only IPv4 is received"],
            is_ipv4_ext,
        ),
        case(["ibv_flow_ipv4_ext_filter.src_ip", "an address", "verbs::Ipv4ExtMatch::src", matched], ext_src),
        case(["ibv_flow_ipv4_ext_filter.dst_ip", "an address", "verbs::Ipv4ExtMatch::dst", matched], ext_dst),
        case(["ibv_flow_ipv4_ext_filter.proto", "17", "verbs::Ipv4ExtMatch::proto", matched], ext_proto)
            .expect(plain),
        case(["ibv_flow_ipv4_ext_filter.tos", "0xb8", "verbs::Ipv4ExtMatch::tos", matched], ext_tos)
            .expect(plain),
        case(["ibv_flow_ipv4_ext_filter.ttl", "3", "verbs::Ipv4ExtMatch::ttl", matched], ext_ttl)
            .expect(not_mlx5),
        case(
            ["ibv_flow_ipv4_ext_filter.flags", "don't fragment", "verbs::Ipv4ExtMatch::flags", matched],
            ext_flags,
        )
        .expect(not_mlx5),
        case(
            ["ibv_flow_ipv4_ext_filter.flags", "more fragments", "verbs::Ipv4ExtMatch::flags", matched],
            ext_fragments,
        )
        .expect(not_mlx5),
        case([SPEC, "IBV_FLOW_SPEC_IPV6", "verbs::FlowSpec::Ipv6", "only IPv6 is received"], is_ipv6)
            .expect(six),
        case(["ibv_flow_ipv6_filter.src_ip", "an address", "verbs::Ipv6Match::src", matched], ipv6_src)
            .expect(six),
        case(["ibv_flow_ipv6_filter.dst_ip", "an address", "verbs::Ipv6Match::dst", matched], ipv6_dst)
            .expect(six),
        case(
            ["ibv_flow_ipv6_filter.flow_label", "0x12345", "verbs::Ipv6Match::flow_label", matched],
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
        case(["ibv_flow_ipv6_filter.next_hdr", "6", "verbs::Ipv6Match::next_hdr", matched], next_header)
            .expect(six),
        case(
            ["ibv_flow_ipv6_filter.traffic_class", "0xb8", "verbs::Ipv6Match::traffic_class", matched],
            traffic_class,
        )
        .expect(six),
        case(["ibv_flow_ipv6_filter.hop_limit", "3", "verbs::Ipv6Match::hop_limit", matched], hop_limit)
            .expect(six_not_mlx5),
    ]
}

/// The frame of a builder as a UDP packet.
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

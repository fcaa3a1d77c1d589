//! The filters of `ibv_create_flow` about the outermost packet: each field by itself, with a packet that has its value and
//! packets that have not. Those of IP are in `ip_filters`.

use packet::EtherType;
use verbs::{EthernetMatch, FlowAttr, FlowSpec, Ipv4ExtMatch, Ipv4Match, Ipv6Match, PortMatch};

use crate::bench::{MAC, OTHER_MAC, frame, ipv4, udp};
use crate::ip_filters::{self, EXT, ext};
use crate::receiver::Receiver;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

const NONSENSE: Answer = Answer::Refused(libc::EINVAL);
pub(crate) const SPEC: &str = "ibv_flow_spec.type";
const NONE: EthernetMatch = EthernetMatch { dst_mac: [0; 6], src_mac: [0; 6], ether_type: 0, vlan_tag: 0 };
const US: EthernetMatch = EthernetMatch { dst_mac: MAC, ..NONE };
const TO_US: EthernetMatch = EthernetMatch { dst_mac: [0xff; 6], ..NONE };

pub(crate) fn cases() -> Vec<Case> {
    let mut all = ethernet();
    all.extend(ip_filters::cases());
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
        case([SPEC, "IBV_FLOW_SPEC_ETH", "verbs::FlowSpec::Ethernet", "what has the address comes"], dst_mac),
        case(
            [
                "ibv_flow_eth_filter.dst_mac",
                "an address",
                "verbs::EthernetMatch::dst_mac",
                "what has it comes, nothing else",
            ],
            dst_mac,
        ),
        case(
            [
                "ibv_flow_eth_filter.dst_mac",
                "a mask of some bits",
                "verbs::EthernetMatch::dst_mac",
                "what has those bits comes",
            ],
            dst_mac_bits,
        ),
        case(
            [
                "ibv_flow_eth_filter.src_mac",
                "an address",
                "verbs::EthernetMatch::src_mac",
                "what has it comes, nothing else",
            ],
            src_mac,
        )
        .expect(forgets),
        case(
            [
                "ibv_flow_eth_filter.ether_type",
                "0x88b5",
                "verbs::EthernetMatch::ether_type",
                "what has it comes, nothing else",
            ],
            ether_type,
        )
        .expect(forgets),
        case(
            [
                "ibv_flow_eth_filter.vlan_tag",
                "a VLAN",
                "verbs::EthernetMatch::vlan_tag",
                "what has the tag comes; not another, not none",
            ],
            vlan,
        ),
        case(
            [
                "ibv_flow_eth_filter.vlan_tag",
                "a priority, whatever the VLAN",
                "verbs::EthernetMatch::vlan_tag",
                "what has it comes, nothing else",
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
                .mlx5(NONSENSE)
                .mlx4(NONSENSE)
                .because("kernel mlx5 fs.c, `is_valid_ethertype`; mlx4 main.c: no IPv6"),
        ),
    ]
}

fn transport() -> Vec<Case> {
    let says = "what has it comes, nothing else";
    vec![
        case(
            [SPEC, "IBV_FLOW_SPEC_TCP", "verbs::FlowSpec::Tcp", "TCP comes, UDP to the same port does not"],
            is_tcp,
        ),
        case(
            [SPEC, "IBV_FLOW_SPEC_UDP", "verbs::FlowSpec::Udp", "UDP comes, TCP to the same port does not"],
            is_udp,
        ),
        case(["ibv_flow_tcp_udp_filter.src_port", "53", "verbs::PortMatch::src_port", says], src_port),
        case(["ibv_flow_tcp_udp_filter.dst_port", "53", "verbs::PortMatch::dst_port", says], dst_port),
        case(
            ["ibv_flow_tcp_udp_filter.dst_port", "a mask of some bits", "verbs::PortMatch::dst_port", says],
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

/// Makes a flow, sends what should come and what should not, and sees.
pub(crate) fn decides(bench: &Bench<'_>, attr: &FlowAttr, hits: &[Vec<u8>], misses: &[Vec<u8>]) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(attr)?;
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

/// IPv4, whatever the addresses.
pub(crate) fn any_ipv4() -> FlowSpec {
    FlowSpec::Ipv4 { value: Ipv4Match::default(), mask: Ipv4Match::default() }
}

/// IPv6, whatever the addresses.
pub(crate) fn any_ipv6() -> FlowSpec {
    FlowSpec::Ipv6 { value: Ipv6Match::default(), mask: Ipv6Match::default() }
}

/// UDP, whatever the ports.
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

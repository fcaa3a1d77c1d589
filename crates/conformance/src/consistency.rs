//! Checks of `ibv_create_flow` that involve several parts of a flow, or several flows: values outside their
//! masks, filters that contradict each other, combinations of flags and tags.
//!
//! These checks are documented only by drivers' sources, so each case uses objects only and runs without a
//! peer as well.

use verbs::{
    ActionSpec, EspMatch, EthernetMatch, FlowAttr, FlowKind, FlowSpec, FlowTag, GreMatch, Ipv4ExtMatch,
    Ipv4Match, Ipv6Match, MplsMatch, PortMatch, VxlanMatch,
};

use crate::bench::{MAC, to_us, v4, v6};
use crate::create_flow::refuse;
use crate::endpoints::Receiver;
use crate::filters::{any_ipv4, any_udp};
use crate::{Answer, Bench, Case, Expected, Needs, Outcome, Verb};

const THERE: Answer = Answer::Refused(libc::EEXIST);
const NONE: EthernetMatch = EthernetMatch { dst_mac: [0; 6], src_mac: [0; 6], ether_type: 0, vlan_tag: 0 };
const TO_US: EthernetMatch = EthernetMatch { dst_mac: [0xff; 6], ..NONE };
const US: EthernetMatch = EthernetMatch { dst_mac: MAC, ..NONE };

pub(crate) fn cases() -> Vec<Case> {
    [values(), filters(), flags()].concat()
}

fn case(row: [&'static str; 4], run: fn(&Bench<'_>) -> Outcome) -> Case {
    Case::new(Verb::CreateFlow, row, run)
}

/// Values with a bit that their mask leaves out.
fn values() -> Vec<Case> {
    let within = Expected::WORKS.mlx5(Answer::INVALID).because(
        "kernel mlx5 core/fs_core.c, `check_valid_spec`; that mlx4's firmware ignores such a bit is inferred",
    );
    let beyond = within.mlx4(Answer::INVALID).because(
        "kernel mlx5 core/fs_core.c, `check_valid_spec`; mlx4 main.c, `parse_flow_attr`: no such filter",
    );
    let (value, outside) = ("a bit outside its mask", "the bit has no effect, or is refused");
    vec![
        case(["ibv_flow_eth_filter.dst_mac", value, "verbs::EthernetMatch::dst_mac", outside], dst_mac)
            .expect(within),
        case(["ibv_flow_ipv4_filter.dst_ip", value, "verbs::Ipv4Match::dst", outside], ipv4).expect(within),
        case(["ibv_flow_ipv6_filter.dst_ip", value, "verbs::Ipv6Match::dst", outside], ipv6).expect(beyond),
        case(["ibv_flow_tcp_udp_filter.dst_port", value, "verbs::PortMatch::dst_port", outside], port)
            .expect(within),
        case(["ibv_flow_esp_filter.spi", value, "verbs::EspMatch::spi", outside], esp).expect(beyond),
        case(["ibv_flow_tunnel_filter.tunnel_id", value, "verbs::VxlanMatch::vni", outside], vxlan)
            .expect(beyond),
        case(["ibv_flow_gre_filter.key", value, "verbs::GreMatch::key", outside], gre).expect(beyond),
        case(["ibv_flow_mpls_filter.label", value, "verbs::MplsMatch::label", outside], mpls).expect(beyond),
        case(
            [
                "ibv_flow_eth_filter.vlan_tag",
                "a value without a mask",
                "verbs::EthernetMatch::vlan_tag",
                "the value has no effect, even where bits outside a mask are refused",
            ],
            open_vlan,
        ),
        case(
            [
                "ibv_flow_ipv4_ext_filter.proto",
                "a value without a mask",
                "verbs::Ipv4ExtMatch::proto",
                "the value has no effect, even where bits outside a mask are refused",
            ],
            open_protocol,
        ),
    ]
}

/// Filters that imply something of each other.
fn filters() -> Vec<Case> {
    let whole_type = Expected::WORKS.mlx5(Answer::INVALID).because("kernel mlx5 fs.c, `is_valid_ethertype`");
    let whole_protocol = Expected::all(Answer::INVALID)
        .ideal(Answer::Works)
        .because("kernel mlx5 fs.c, `set_proto`; mlx4 main.c: no protocol field");
    let specs = Expected::WORKS
        .ideal(Answer::INVALID)
        .mlx4(Answer::INVALID)
        .because("kernel mlx5 fs.c, `create_leftovers_rule`: specs are not looked at; that mlx4 refuses them is inferred");
    vec![
        case(
            [
                "ibv_flow_eth_filter.ether_type",
                "some bits of 0x0800 beside IBV_FLOW_SPEC_IPV4",
                "verbs::EthernetMatch::ether_type",
                "created, or refused",
            ],
            half_type,
        )
        .expect(whole_type),
        case(
            [
                "ibv_flow_ipv4_ext_filter.proto",
                "some bits of 17 beside IBV_FLOW_SPEC_UDP",
                "verbs::Ipv4ExtMatch::proto",
                "created, or refused",
            ],
            half_protocol,
        )
        .expect(whole_protocol),
        case(
            [
                "ibv_flow_attr.type",
                "IBV_FLOW_ATTR_ALL_DEFAULT with a filter",
                "verbs::FlowAttr::spec",
                "refused, or the filter has no effect",
            ],
            default_with_filter,
        )
        .needs(Needs::Port)
        .expect(specs),
    ]
}

/// Flags and tags.
fn flags() -> Vec<Case> {
    let (flags, dont_trap) = ("ibv_flow_attr.flags", "verbs::FlowAttr::dont_trap");
    vec![
        case(
            [
                flags,
                "IBV_FLOW_ATTR_FLAGS_DONT_TRAP with IBV_FLOW_ATTR_FLAGS_EGRESS",
                dont_trap,
                "created, or refused",
            ],
            copies_of_sent,
        )
        .expect(Expected::WORKS.mlx5(Answer::UNSUPPORTED).mlx4(Answer::UNSUPPORTED).because(
            "kernel mlx5 core/fs_core.c, `fwd_next_prio_supported`: only of what is received; mlx4 main.c: no EGRESS",
        )),
        case(
            [
                flags,
                "IBV_FLOW_ATTR_FLAGS_DONT_TRAP twice, the same match, with different tags",
                dont_trap,
                "both are created, or the second is refused",
            ],
            copies_with_two_tags,
        )
        .expect(Expected::WORKS.mlx5(THERE).mlx4(Answer::UNSUPPORTED).because(
            "kernel mlx5 core/fs_core.c, `check_conflicting_ftes`; mlx4 main.c, `mlx4_ib_add_dont_trap_rule`: one spec",
        )),
        case(
            [
                "ibv_flow_attr.priority",
                "equal, and the same match, without a tag and then with one",
                "verbs::ActionSpec::Tag",
                "both are created, or the second is refused",
            ],
            tag_beside_none,
        )
        .expect(Expected::WORKS.mlx5(THERE).mlx4(Answer::INVALID).because(
            "kernel mlx5 core/fs_core.c, `check_conflicting_ftes`: no tag is tag 0; mlx4 main.c: no actions",
        )),
    ]
}

fn eth(bench: &Bench<'_>, value: EthernetMatch, mask: EthernetMatch) -> FlowAttr {
    FlowAttr::new(FlowKind::Normal, bench.port).spec(FlowSpec::Ethernet { value, mask })
}

fn dst_mac(bench: &Bench<'_>) -> Outcome {
    let mask = EthernetMatch { dst_mac: [0xff, 0xff, 0xff, 0xff, 0xff, !(MAC[5] & 2)], ..NONE };
    refuse(bench, eth(bench, US, mask))
}

fn ipv4(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (Ipv4Match { src: 0, dst: v4(1).into() }, Ipv4Match { src: 0, dst: 0xffff_ff00 });
    refuse(bench, bench.flow().spec(FlowSpec::Ipv4 { value, mask }))
}

fn ipv6(bench: &Bench<'_>) -> Outcome {
    let none = Ipv6Match::default();
    let mut dst = [0xff; 16];
    dst[15] = 0;
    let (value, mask) = (Ipv6Match { dst: v6(1).octets(), ..none }, Ipv6Match { dst, ..none });
    refuse(bench, bench.flow().spec(FlowSpec::Ipv6 { value, mask }))
}

fn port(bench: &Bench<'_>) -> Outcome {
    let port = |dst_port| PortMatch { src_port: 0, dst_port };
    refuse(bench, bench.flow().spec(any_ipv4()).spec(FlowSpec::Udp { value: port(53), mask: port(0xfff0) }))
}

fn esp(bench: &Bench<'_>) -> Outcome {
    let spi = |spi| EspMatch { spi, seq: 0 };
    refuse(bench, bench.flow().spec(any_ipv4()).spec(FlowSpec::Esp { value: spi(5), mask: spi(4) }))
}

fn vxlan(bench: &Bench<'_>) -> Outcome {
    let (value, mask) = (VxlanMatch { vni: 5 }, VxlanMatch { vni: 4 });
    let attr = bench.flow().spec(any_ipv4()).spec(any_udp());
    refuse(bench, attr.spec(FlowSpec::VxlanTunnel { value, mask }))
}

fn gre(bench: &Bench<'_>) -> Outcome {
    let key = |key| GreMatch { key, ..GreMatch::default() };
    refuse(bench, bench.flow().spec(any_ipv4()).spec(FlowSpec::Gre { value: key(5), mask: key(4) }))
}

fn mpls(bench: &Bench<'_>) -> Outcome {
    let label = |label: u32| MplsMatch { label: label << 12 };
    refuse(bench, bench.flow().spec(FlowSpec::Mpls { value: label(5), mask: label(4) }))
}

fn open_vlan(bench: &Bench<'_>) -> Outcome {
    refuse(bench, eth(bench, EthernetMatch { vlan_tag: 0x64, ..US }, TO_US))
}

/// A filter about the protocol alone.
fn protocol(value: u8, mask: u8) -> FlowSpec {
    let of = |proto| Ipv4ExtMatch { proto, ..Ipv4ExtMatch::default() };
    FlowSpec::Ipv4Ext { value: of(value), mask: of(mask) }
}

fn open_protocol(bench: &Bench<'_>) -> Outcome {
    refuse(bench, bench.flow().spec(protocol(17, 0)))
}

fn half_type(bench: &Bench<'_>) -> Outcome {
    let of_type = |of: EthernetMatch, ether_type| EthernetMatch { ether_type, ..of };
    refuse(bench, eth(bench, of_type(US, 0x0800), of_type(TO_US, 0xff00)).spec(any_ipv4()))
}

fn half_protocol(bench: &Bench<'_>) -> Outcome {
    refuse(bench, bench.flow().spec(protocol(17, 0x1f)).spec(any_udp()))
}

fn default_with_filter(bench: &Bench<'_>) -> Outcome {
    refuse(bench, FlowAttr::new(FlowKind::AllDefault, bench.port).spec(to_us()))
}

fn copies_of_sent(bench: &Bench<'_>) -> Outcome {
    refuse(bench, bench.flow().egress(true).dont_trap(true))
}

/// Two flows to two queue pairs, at one time.
#[allow(clippy::needless_pass_by_value)] // made for this call
fn both(bench: &Bench<'_>, first: FlowAttr, second: FlowAttr) -> Outcome {
    let receivers = [Receiver::new(bench)?, Receiver::new(bench)?];
    let _first = receivers[0].flow(&first)?;
    drop(receivers[1].flow(&second)?);
    Ok(())
}

fn tagged(bench: &Bench<'_>, tag: u32) -> FlowAttr {
    bench.flow().action(ActionSpec::Tag(FlowTag(tag)))
}

fn copies_with_two_tags(bench: &Bench<'_>) -> Outcome {
    both(bench, tagged(bench, 1).dont_trap(true), tagged(bench, 2).dont_trap(true))
}

fn tag_beside_none(bench: &Bench<'_>) -> Outcome {
    both(bench, bench.flow(), tagged(bench, 1))
}

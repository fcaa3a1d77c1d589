//! Filters about tunnels and what is inside: what they match, and where labels may be.

use flow_table::{Actions, FlowId, FlowRule, FlowTable, Matches, QpSlot};
use ibverbs_sys::{
    ibv_flow_esp_filter, ibv_flow_gre_filter, ibv_flow_mpls_filter, ibv_flow_spec_esp, ibv_flow_spec_gre,
    ibv_flow_spec_mpls, ibv_flow_spec_tunnel, ibv_flow_tunnel_filter,
};
use packet::build::{FrameBuilder, label_stack, mpls_label};
use packet::{DeepKey, EtherType, IpProtocol};

use super::*;

fn inner<T: Copy>(mut spec: T) -> T {
    // SAFETY: every spec begins with its type.
    unsafe { *(&raw mut spec).cast::<u32>() |= IBV_FLOW_SPEC_INNER };
    spec
}

fn vxlan_spec(vni: u32, mask: u32) -> ibv_flow_spec_tunnel {
    ibv_flow_spec_tunnel {
        type_: IBV_FLOW_SPEC_VXLAN_TUNNEL,
        size: size_of::<ibv_flow_spec_tunnel>() as u16,
        val: ibv_flow_tunnel_filter { tunnel_id: vni.to_be() },
        mask: ibv_flow_tunnel_filter { tunnel_id: mask.to_be() },
    }
}

fn gre_spec(val: ibv_flow_gre_filter, mask: ibv_flow_gre_filter) -> ibv_flow_spec_gre {
    ibv_flow_spec_gre { type_: IBV_FLOW_SPEC_GRE, size: size_of::<ibv_flow_spec_gre>() as u16, val, mask }
}

fn gre_key_spec(key: u32) -> ibv_flow_spec_gre {
    let key_only = |key: u32| ibv_flow_gre_filter { key: key.to_be(), ..Default::default() };
    gre_spec(key_only(key), key_only(!0))
}

fn label_spec(label: u32) -> ibv_flow_spec_mpls {
    ibv_flow_spec_mpls {
        type_: IBV_FLOW_SPEC_MPLS,
        size: size_of::<ibv_flow_spec_mpls>() as u16,
        val: ibv_flow_mpls_filter { label: mpls_label(label, 0).to_be() },
        mask: ibv_flow_mpls_filter { label: 0xffff_f000u32.to_be() },
    }
}

fn esp_spec(spi: u32, seq_mask: u32) -> ibv_flow_spec_esp {
    ibv_flow_spec_esp {
        type_: IBV_FLOW_SPEC_ESP,
        size: size_of::<ibv_flow_spec_esp>() as u16,
        val: ibv_flow_esp_filter { spi: spi.to_be(), seq: 0 },
        mask: ibv_flow_esp_filter { spi: !0, seq: seq_mask.to_be() },
    }
}

/// Whether a flow takes a frame.
fn takes(block: Block, frame: &FrameBuilder) -> bool {
    let request = block.read().unwrap();
    let rule = FlowRule {
        id: FlowId(1),
        kind: request.kind,
        port: 1,
        egress: request.egress,
        priority: request.priority,
        dont_trap: request.dont_trap,
        order: 1,
        matcher: request.matcher,
        tunnel: request.tunnel,
        actions: Actions { tag: None, drop: false, counter: None, target: QpSlot(1) },
    };
    let mut table = FlowTable::default();
    table.insert(rule).unwrap();
    let (key, mut matches) = (DeepKey::of(&frame.build()), Matches::new());
    table.lookup(1, &key.outer, || key.tunnel, &mut matches);
    !matches.as_slice().is_empty()
}

fn v4() -> FrameBuilder {
    FrameBuilder::new().ipv4([198, 51, 100, 1].into(), [198, 51, 100, 2].into())
}

/// A packet to go inside.
fn inside(port: u16) -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(9, port)
}

#[test]
fn vxlan_by_network_and_by_what_is_inside() {
    let frame = |vni, port| v4().vxlan(vni, &inside(port).build());
    let network = |block: Block| block.spec(vxlan_spec(7, 0xff_ffff));
    assert!(takes(network(Block::new()), &frame(7, 53)));
    assert!(!takes(network(Block::new()), &frame(8, 53)));
    assert!(!takes(network(Block::new()), &inside(53)), "no tunnel");
    let both = || {
        let outer = Block::new().spec(ethernet_spec()).spec(ipv4_spec(17));
        network(outer.spec(port_spec(IBV_FLOW_SPEC_UDP, 4789)))
            .spec(inner(ethernet_spec()))
            .spec(inner(ipv4_spec(17)))
            .spec(inner(port_spec(IBV_FLOW_SPEC_UDP, 53)))
    };
    assert!(takes(both(), &frame(7, 53)));
    assert!(!takes(both(), &frame(7, 54)));
    let only_inside = || Block::new().spec(inner(port_spec(IBV_FLOW_SPEC_UDP, 53)));
    assert!(takes(only_inside(), &frame(1, 53)));
    assert!(takes(only_inside(), &v4().ip_in_ip(&inside(53).build_packet())));
    assert!(!takes(only_inside(), &inside(53)), "an outer port is not an inner one");
}

#[test]
fn networks_have_twenty_four_bits() {
    assert!(Block::new().spec(vxlan_spec(0xff_ffff, 0xff_ffff)).read().is_ok());
    assert_eq!(refused(Block::new().spec(vxlan_spec(1 << 24, 0xff_ffff))), EINVAL);
    assert_eq!(refused(Block::new().spec(vxlan_spec(0, 1 << 24))), EINVAL);
}

#[test]
fn gre_by_key_protocol_and_flags() {
    let keyed = |key| v4().gre(EtherType::IPV4, key, &inside(53).build_packet());
    assert!(takes(Block::new().spec(gre_key_spec(5)), &keyed(Some(5))));
    assert!(!takes(Block::new().spec(gre_key_spec(5)), &keyed(Some(6))));
    assert!(!takes(Block::new().spec(gre_key_spec(0)), &keyed(None)), "no key is not key 0");
    let protocol = |protocol: u16| {
        let filter = |protocol: u16| ibv_flow_gre_filter { protocol: protocol.to_be(), ..Default::default() };
        Block::new().spec(gre_spec(filter(protocol), filter(!0)))
    };
    assert!(takes(protocol(0x0800), &keyed(None)) && !takes(protocol(0x86dd), &keyed(None)));
    let flags = |flags: u16| {
        let filter = |flags: u16| ibv_flow_gre_filter { c_ks_res0_ver: flags.to_be(), ..Default::default() };
        Block::new().spec(gre_spec(filter(flags), filter(!0)))
    };
    assert!(takes(flags(0x2000), &keyed(Some(1))) && !takes(flags(0x2000), &keyed(None)));
    assert!(takes(Block::new().spec(gre_key_spec(5)).spec(inner(ipv4_spec(17))), &keyed(Some(5))));
    assert!(!takes(Block::new().spec(gre_key_spec(5)).spec(inner(ipv4_spec(6))), &keyed(Some(5))));
    assert_eq!(refused(Block::new().spec(ipv4_spec(17)).spec(gre_key_spec(5))), EINVAL, "another protocol");
}

#[test]
fn esp_by_index_and_number() {
    let frame = |spi, seq| v4().esp(spi, seq, &[0; 8]);
    assert!(takes(Block::new().spec(ipv4_spec(50)).spec(esp_spec(7, 0)), &frame(7, 3)));
    assert!(!takes(Block::new().spec(esp_spec(7, 0)), &frame(8, 3)));
    assert!(takes(Block::new().spec(esp_spec(7, !0)), &frame(7, 0)));
    assert!(!takes(Block::new().spec(esp_spec(7, !0)), &frame(7, 1)));
    assert_eq!(refused(Block::new().spec(inner(esp_spec(7, 0)))), EOPNOTSUPP);
}

/// A filter without a bit in its masks takes a packet with the header, a later fragment that only names the
/// protocol, and another packet.
#[test]
fn filters_that_leave_all_open_ask_for_a_header_but_on_mlx5() {
    let later = |protocol| v4().protocol(protocol).fragment(64, false).payload(&[0; 16]);
    let ports = |type_| ibv_flow_spec_tcp_udp { mask: Default::default(), ..port_spec(type_, 0) };
    let open = ibv_flow_gre_filter::default();
    let esp = ibv_flow_spec_esp { mask: Default::default(), ..esp_spec(0, 0) };
    let label = ibv_flow_spec_mpls { val: Default::default(), mask: Default::default(), ..label_spec(0) };
    let other = FrameBuilder::new().arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let asks = |spec: &dyn Fn(Block) -> Block, whole: &FrameBuilder, protocol| {
        [Personality::Ideal, Personality::Mlx5].map(|personality| {
            [whole, &later(protocol), &other].map(|frame| takes(spec(Block::new().on(personality)), frame))
        })
    };
    let by_protocol = [[true, false, false], [true, true, false]];
    let tcp = asks(&|block| block.spec(ports(IBV_FLOW_SPEC_TCP)), &v4().tcp(1, 2, 2), IpProtocol::TCP);
    let udp = asks(&|block| block.spec(ports(IBV_FLOW_SPEC_UDP)), &v4().udp(1, 2), IpProtocol::UDP);
    let in_gre = v4().gre(EtherType::IPV4, None, &inside(53).build_packet());
    let gre = asks(&|block| block.spec(gre_spec(open, open)), &in_gre, IpProtocol::GRE);
    assert_eq!([tcp, udp, gre], [by_protocol; 3]);
    let by_nothing = [[true, false, false], [true, true, true]];
    let esp = asks(&|block| block.spec(esp), &v4().esp(1, 2, &[0; 8]), IpProtocol::ESP);
    let in_vxlan = v4().vxlan(7, &inside(53).build());
    let vxlan = asks(&|block| block.spec(vxlan_spec(0, 0)), &in_vxlan, IpProtocol::UDP);
    let behind_label = FrameBuilder::new().mpls(&[mpls_label(9, 0)], &inside(53).build_packet());
    let mpls = asks(&|block| block.spec(label), &behind_label, IpProtocol::UDP);
    let within = asks(&|block| block.spec(inner(ethernet_spec())), &in_vxlan, IpProtocol::UDP);
    assert_eq!([esp, vxlan, mpls, within], [by_nothing; 4]);
}

#[test]
fn ports_of_the_packet_inside_ask_for_its_protocol_on_every_device() {
    let open = || ibv_flow_spec_tcp_udp { mask: Default::default(), ..port_spec(IBV_FLOW_SPEC_UDP, 0) };
    let later = FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let later = later.protocol(IpProtocol::UDP).fragment(64, false).payload(&[0; 16]);
    for (personality, cut) in [(Personality::Ideal, false), (Personality::Mlx5, true)] {
        let takes = |frame: &FrameBuilder| takes(Block::new().on(personality).spec(inner(open())), frame);
        assert!(takes(&v4().vxlan(7, &inside(53).build())), "{personality}");
        assert_eq!(takes(&v4().vxlan(7, &later.build())), cut, "{personality}");
        assert!(!takes(&inside(53)), "{personality}: no packet is inside");
    }
}

#[test]
fn labels_are_matched_where_the_order_puts_them() {
    let (first, second) = (mpls_label(100, 3), mpls_label(200, 0));
    let packet = inside(53).build_packet();
    let native = FrameBuilder::new().mpls(&[first, second], &packet);
    let in_gre = v4().gre(EtherType::MPLS, None, &label_stack(&[first, second], &packet));
    let in_udp = v4().mpls(&[first, second], &packet);
    let any_gre = || gre_spec(ibv_flow_gre_filter::default(), ibv_flow_gre_filter::default());
    let udp = || port_spec(IBV_FLOW_SPEC_UDP, 6635);
    let behind_ethernet = || Block::new().spec(ethernet_spec()).spec(label_spec(100));
    let behind_gre = || Block::new().spec(any_gre()).spec(label_spec(100));
    let behind_udp = || Block::new().spec(udp()).spec(label_spec(100));
    for (block, expected) in [
        (&behind_ethernet as &dyn Fn() -> Block, [true, false, false]),
        (&behind_gre, [false, true, false]),
        (&behind_udp, [false, false, true]),
    ] {
        let found = [&native, &in_gre, &in_udp].map(|frame| takes(block(), frame));
        assert_eq!(found, expected);
    }
    assert!(takes(behind_ethernet().spec(label_spec(200)), &native), "the second label");
    assert!(!takes(behind_ethernet().spec(label_spec(201)), &native));
    // What follows the labels is said with INNER or, as it belongs to no tunnel, without.
    for port in [53, 54] {
        let ports = || port_spec(IBV_FLOW_SPEC_UDP, port);
        assert_eq!(takes(behind_ethernet().spec(ipv4_spec(17)).spec(ports()), &native), port == 53);
        let inside = behind_ethernet().spec(inner(ipv4_spec(17))).spec(inner(ports()));
        assert_eq!(takes(inside, &native), port == 53);
    }
}

#[test]
fn labels_inside_a_tunnel_are_inner_ones() {
    let labelled = |label| FrameBuilder::new().mpls(&[mpls_label(label, 0)], &[]).build();
    let block =
        || Block::new().spec(vxlan_spec(0, 0)).spec(inner(ethernet_spec())).spec(inner(label_spec(9)));
    assert!(takes(block(), &v4().vxlan(3, &labelled(9))));
    assert!(!takes(block(), &v4().vxlan(3, &labelled(8))));
    assert!(!takes(block(), &FrameBuilder::new().mpls(&[mpls_label(9, 0)], &[])));
    assert_eq!(refused(block().spec(inner(ipv4_spec(17)))), EOPNOTSUPP, "not read so deep");
}

#[test]
fn labels_out_of_place_are_refused() {
    let udp = || port_spec(IBV_FLOW_SPEC_UDP, 6635);
    for block in [
        Block::new().spec(ipv4_spec(137)).spec(label_spec(1)),
        Block::new().spec(port_spec(IBV_FLOW_SPEC_TCP, 1)).spec(label_spec(1)),
        Block::new().spec(label_spec(1)).spec(ethernet_spec()),
        Block::new().spec(udp()).spec(ipv4_spec(17)).spec(label_spec(1)),
        Block::new().spec(udp()).spec(label_spec(1)).spec(ipv4_spec(17)),
        Block::new().spec(vxlan_spec(1, 0xff)).spec(label_spec(1)),
        Block::new().spec(inner(ipv4_spec(17))).spec(inner(label_spec(1))),
    ] {
        assert_eq!(refused(block), EINVAL);
    }
    let deep = (0..5).fold(Block::new(), |block, label| block.spec(label_spec(label)));
    assert_eq!(refused(deep), EOPNOTSUPP, "more labels than are read");
}

#[test]
fn tunnels_are_not_nested() {
    assert_eq!(refused(Block::new().spec(inner(vxlan_spec(1, 0xff)))), EINVAL);
    assert_eq!(refused(Block::new().spec(inner(gre_key_spec(1)))), EINVAL);
    assert_eq!(refused(Block::new().spec(vxlan_spec(1, 0xff)).spec(vxlan_spec(1, 0xff))), EINVAL);
}

#[test]
fn a_chain_reaches_from_ethernet_to_the_inner_port() {
    let block = Block::new()
        .spec(ethernet_spec())
        .spec(ipv4_spec(17))
        .spec(port_spec(IBV_FLOW_SPEC_UDP, 4789))
        .spec(vxlan_spec(1, 0xff))
        .spec(inner(ethernet_spec()))
        .spec(inner(ipv6_spec()))
        .spec(inner(port_spec(IBV_FLOW_SPEC_TCP, 80)))
        .spec(tag_spec(1))
        .spec(drop_spec());
    assert!(block.read().is_ok());
}

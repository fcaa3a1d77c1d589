//! The bytes of flows, against the layouts that `sizeof` and `offsetof` of verbs.h give.

use std::mem::{offset_of, size_of};

use flow_spec::{
    EspMatch, EthernetMatch, FlowSpec, GreMatch, Ipv4ExtMatch, Ipv4Match, Ipv6Match, MplsMatch, PortMatch,
    VxlanMatch,
};
use ibverbs_sys::{
    self as sys, ibv_flow_attr, ibv_flow_spec_action_drop, ibv_flow_spec_action_handle,
    ibv_flow_spec_action_tag, ibv_flow_spec_counter_action,
};

use super::attr::{LEAD, MAX_SPECS};
use super::{ActionSpec, FlowAttr, FlowKind};
use crate::{FlowTag, PortNumber};

/// Header and specs, of the length in the header.
fn block(attr: &FlowAttr) -> Vec<u8> {
    let mut block = attr.block().expect("few specs");
    let header = block.as_mut_ptr().addr();
    assert_eq!((header + size_of::<ibv_flow_attr>()) % 8, 0, "specs are aligned");
    let bytes: Vec<u8> = block.0.iter().flat_map(|word| word.to_ne_bytes()).skip(LEAD).collect();
    let at = offset_of!(ibv_flow_attr, size);
    let size = usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
    assert!(bytes.len() - size < 8, "nothing but padding behind it");
    bytes[..size].to_vec()
}

const fn ports(src_port: u16, dst_port: u16) -> PortMatch {
    PortMatch { src_port, dst_port }
}

#[test]
fn a_flow_without_specs_is_a_bare_header() {
    let attr = FlowAttr::new(FlowKind::Sniffer, PortNumber(2)).priority(0x0102).dont_trap(true);
    #[rustfmt::skip]
    let expected = [
        0, 0, 0, 0,  3, 0, 0, 0,  20, 0,  2, 1,  0, 2, 0, 0,  2, 0, 0, 0,
    ];
    assert_eq!(block(&attr), expected);
}

#[test]
fn ethernet_ipv4_and_udp_are_packed_in_network_order() {
    let value = EthernetMatch {
        dst_mac: [1, 2, 3, 4, 5, 6],
        src_mac: [7, 8, 9, 10, 11, 12],
        ether_type: 0x0800,
        vlan_tag: 0x2064,
    };
    let mask = EthernetMatch { dst_mac: [0xff; 6], vlan_tag: 0x0fff, ..EthernetMatch::default() };
    let attr = FlowAttr::new(FlowKind::Normal, PortNumber(1))
        .priority(7)
        .spec(FlowSpec::Ethernet { value, mask })
        .spec(FlowSpec::Ipv4 {
            value: Ipv4Match { src: 0x0a000001, dst: 0xc0000200 },
            mask: Ipv4Match { src: u32::MAX, dst: 0xffffff00 },
        })
        .spec(FlowSpec::Udp { value: ports(53, 0x1234), mask: ports(0xffff, 0xff00) });
    #[rustfmt::skip]
    let expected = [
        0, 0, 0, 0,  0, 0, 0, 0,  100, 0,  7, 0,  3, 1, 0, 0,  0, 0, 0, 0,
        0x20, 0, 0, 0,  40, 0,
            1, 2, 3, 4, 5, 6,  7, 8, 9, 10, 11, 12,  0x08, 0x00,  0x20, 0x64,
            255, 255, 255, 255, 255, 255,  0, 0, 0, 0, 0, 0,  0, 0,  0x0f, 0xff,  0, 0,
        0x30, 0, 0, 0,  24, 0, 0, 0,
            10, 0, 0, 1,  192, 0, 2, 0,  255, 255, 255, 255,  255, 255, 255, 0,
        0x41, 0, 0, 0,  16, 0,
            0x12, 0x34, 0, 53,  0xff, 0x00, 0xff, 0xff,  0, 0,
    ];
    assert_eq!(block(&attr), expected);
}

#[test]
fn ipv4_ext_and_ipv6_have_every_field_in_its_place() {
    let v4 = Ipv4ExtMatch { src: 0x01020304, dst: 0x05060708, proto: 17, tos: 0xb8, ttl: 64, flags: 2 };
    let v6 = Ipv6Match {
        src: [0x20; 16],
        dst: [0xfe; 16],
        flow_label: 0xabcde,
        next_hdr: 58,
        traffic_class: 3,
        hop_limit: 255,
    };
    let attr = FlowAttr::new(FlowKind::AllDefault, PortNumber(1))
        .spec(FlowSpec::Ipv4Ext { value: v4, mask: Ipv4ExtMatch::default() })
        .spec(FlowSpec::Ipv6 { value: Ipv6Match::default(), mask: v6 });
    let mut expected = vec![0, 0, 0, 0, 1, 0, 0, 0, 140, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
    expected.extend([0x32, 0, 0, 0, 32, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 17, 0xb8, 64, 2]);
    expected.extend([0; 12]);
    expected.extend([0x31, 0, 0, 0, 88, 0, 0, 0]);
    expected.extend([0; 40]);
    expected.extend([0x20; 16]);
    expected.extend([0xfe; 16]);
    expected.extend([0, 0x0a, 0xbc, 0xde, 58, 3, 255, 0]);
    assert_eq!(block(&attr), expected);
}

#[test]
fn actions_follow_matches_and_the_tag_is_last() {
    let attr = FlowAttr::new(FlowKind::Normal, PortNumber(1))
        .action(ActionSpec::Tag(FlowTag(0x00fe_dcba)))
        .action(ActionSpec::Drop)
        .spec(FlowSpec::Tcp { value: ports(0, 443), mask: ports(0, 0xffff) });
    #[rustfmt::skip]
    let expected = [
        0x40, 0, 0, 0,  16, 0,  0x01, 0xbb, 0, 0,  0xff, 0xff, 0, 0,  0, 0,
        0x01, 0x10, 0, 0,  8, 0, 0, 0,
        0x00, 0x10, 0, 0,  12, 0, 0, 0,  0xba, 0xdc, 0xfe, 0,
    ];
    let bytes = block(&attr);
    assert_eq!(&bytes[20..], expected);
    assert_eq!(bytes[8..14], [56, 0, 0, 0, 3, 1]);
}

#[test]
fn the_count_of_specs_is_a_byte() {
    let full = (0..MAX_SPECS)
        .fold(FlowAttr::new(FlowKind::Normal, PortNumber(1)), |attr, _| attr.action(ActionSpec::Drop));
    assert!(full.block().is_ok());
    let error = full.action(ActionSpec::Drop).block().err().expect("one too many");
    assert!(error.to_string().contains("at most 255 specs, not 256"), "{error}");
}

#[test]
fn tunnel_specs_are_in_network_order_and_inner_ones_say_so() {
    let attr = FlowAttr::new(FlowKind::Normal, PortNumber(1))
        .egress(true)
        .spec(FlowSpec::Esp {
            value: EspMatch { spi: 0x01020304, seq: 5 },
            mask: EspMatch { spi: u32::MAX, seq: 0 },
        })
        .spec(FlowSpec::VxlanTunnel {
            value: VxlanMatch { vni: 0x00abcdef },
            mask: VxlanMatch { vni: 0x00ffffff },
        })
        .spec(FlowSpec::Gre {
            value: GreMatch { c_ks_res0_ver: 0x2000, protocol: 0x6558, key: 7 },
            mask: GreMatch { c_ks_res0_ver: 0xb000, protocol: 0xffff, key: u32::MAX },
        })
        .spec(FlowSpec::Mpls {
            value: MplsMatch { label: 0x1234_5140 },
            mask: MplsMatch { label: 0xffff_f000 },
        })
        .inner(FlowSpec::Udp { value: ports(1, 2), mask: ports(3, 4) })
        .action(ActionSpec::Tag(FlowTag(9)));
    #[rustfmt::skip]
    let expected = [
        0x34, 0, 0, 0,  24, 0, 0, 0,  1, 2, 3, 4,  0, 0, 0, 5,  255, 255, 255, 255,  0, 0, 0, 0,
        0x50, 0, 0, 0,  16, 0, 0, 0,  0, 0xab, 0xcd, 0xef,  0, 255, 255, 255,
        0x51, 0, 0, 0,  24, 0, 0, 0,  0x20, 0, 0x65, 0x58, 0, 0, 0, 7,  0xb0, 0, 255, 255, 255, 255, 255, 255,
        0x60, 0, 0, 0,  16, 0, 0, 0,  0x12, 0x34, 0x51, 0x40,  0xff, 0xff, 0xf0, 0,
        0x41, 1, 0, 0,  16, 0,  0, 2, 0, 1,  0, 4, 0, 3,  0, 0,
        0x00, 0x10, 0, 0,  12, 0, 0, 0,  9, 0, 0, 0,
    ];
    let bytes = block(&attr);
    assert_eq!(&bytes[20..], expected);
    assert_eq!(bytes[16..20], [4, 0, 0, 0], "egress");
}

#[test]
fn every_spec_has_the_size_and_places_of_the_header() {
    // sizeof and offsetof(val), offsetof(mask) as gcc gives them for rdma-core's verbs.h on a 64-bit machine.
    macro_rules! layout {
        ($spec:ident) => {
            (size_of::<sys::$spec>(), offset_of!(sys::$spec, val), offset_of!(sys::$spec, mask))
        };
    }
    assert_eq!(layout!(ibv_flow_spec_eth), (40, 6, 22));
    assert_eq!(layout!(ibv_flow_spec_ipv4), (24, 8, 16));
    assert_eq!(layout!(ibv_flow_spec_ipv4_ext), (32, 8, 20));
    assert_eq!(layout!(ibv_flow_spec_ipv6), (88, 8, 48));
    assert_eq!(layout!(ibv_flow_spec_esp), (24, 8, 16));
    assert_eq!(layout!(ibv_flow_spec_tcp_udp), (16, 6, 10));
    assert_eq!(layout!(ibv_flow_spec_tunnel), (16, 8, 12));
    assert_eq!(layout!(ibv_flow_spec_gre), (24, 8, 16));
    assert_eq!(layout!(ibv_flow_spec_mpls), (16, 8, 12));
    assert_eq!(size_of::<ibv_flow_spec_action_tag>(), 12);
    assert_eq!(size_of::<ibv_flow_spec_action_drop>(), 8);
    assert_eq!(size_of::<ibv_flow_spec_action_handle>(), 16);
    assert_eq!(size_of::<ibv_flow_spec_counter_action>(), 16);
}

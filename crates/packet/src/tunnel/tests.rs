//! Tunnels, built, cut at every byte, and damaged.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::build::{FrameBuilder, label_stack, mpls_label};
use crate::{MacAddr, RssKey, Toeplitz};

const OUTER: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2));

fn v4() -> FrameBuilder {
    FrameBuilder::new().ipv4(OUTER.0, OUTER.1)
}

fn v6() -> FrameBuilder {
    FrameBuilder::new().ip("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap())
}

/// The packet that the tunnels of these tests carry.
fn inside() -> FrameBuilder {
    FrameBuilder::new()
        .ethernet(MacAddr([2, 0, 0, 0, 9, 2]), MacAddr([2, 0, 0, 0, 9, 1]))
        .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        .tcp(4001, 443, 0x10)
}

fn inside6() -> FrameBuilder {
    FrameBuilder::new()
        .ip("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())
        .udp(7, 8)
        .flow_label(0x12345)
}

/// The key of what is inside, without its Ethernet header.
fn bare(builder: &FrameBuilder) -> FlowKey {
    let key = FlowKey::of(&builder.build());
    FlowKey { dst_mac: MacAddr::default(), src_mac: MacAddr::default(), ether_type: 0, ..key }
}

fn tunnel(builder: &FrameBuilder) -> TunnelKey {
    DeepKey::of(&builder.build()).tunnel
}

#[test]
fn vxlan_has_an_identifier_and_a_whole_frame() {
    for outer in [v4(), v6(), v4().vlan(EtherType::VLAN, 7)] {
        let key = tunnel(&outer.vxlan(0x00ab_cdef, &inside().build()));
        let expected = TunnelKey {
            layers: TunnelLayers::VXLAN | TunnelLayers::INNER | TunnelLayers::INNER_ETHERNET,
            vxlan_vni: 0x00ab_cdef,
            inner: FlowKey::of(&inside().build()),
            ..TunnelKey::default()
        };
        assert_eq!(key, expected);
    }
}

#[test]
fn vxlan_without_a_valid_identifier_or_on_another_port_is_none() {
    let mut frame = v4().vxlan(5, &inside().build()).build();
    frame[14 + 20 + 8] = 0;
    assert_eq!(DeepKey::of(&frame).tunnel, TunnelKey::default());
    let elsewhere = v4().udp(4789, 4790).payload(&[8, 0, 0, 0, 0, 0, 5, 0]);
    assert_eq!(tunnel(&elsewhere), TunnelKey::default());
}

#[test]
fn gre_carries_what_its_protocol_says() {
    let key = tunnel(&v4().gre(EtherType::IPV4, None, &inside().build_packet()));
    assert_eq!(key.layers, TunnelLayers::GRE | TunnelLayers::INNER);
    assert_eq!((key.gre_flags, key.gre_protocol, key.gre_key), (0, 0x0800, 0));
    assert_eq!(key.inner, bare(&inside()));

    let key = tunnel(&v6().gre(EtherType::IPV6, Some(0xdead_beef), &inside6().build_packet()));
    assert_eq!(key.layers, TunnelLayers::GRE | TunnelLayers::GRE_KEY | TunnelLayers::INNER);
    assert_eq!((key.gre_flags, key.gre_protocol, key.gre_key), (0x2000, 0x86dd, 0xdead_beef));
    assert_eq!(key.inner, bare(&inside6()));

    let key = tunnel(&v4().gre(EtherType(0x6558), Some(77), &inside().build()));
    assert!(key.layers.contains(TunnelLayers::INNER_ETHERNET));
    assert_eq!(key.inner, FlowKey::of(&inside().build()));

    let lies = tunnel(&v4().gre(EtherType::IPV6, None, &inside().build_packet()));
    assert_eq!((lies.layers, lies.inner), (TunnelLayers::GRE, FlowKey::default()));
}

#[test]
fn gre_fields_stand_in_their_order_and_other_versions_are_not_read() {
    let header = |flags: u16, rest: &[u8]| {
        let mut payload = flags.to_be_bytes().to_vec();
        payload.extend(0x0800u16.to_be_bytes());
        payload.extend(rest);
        tunnel(&v4().protocol(IpProtocol::GRE).payload(&payload))
    };
    let fields: Vec<u8> = (1..=12).collect();
    assert_eq!(header(0xb000, &fields).gre_key, 0x0506_0708, "checksum, key, sequence");
    assert_eq!(header(0x3000, &fields).gre_key, 0x0102_0304, "key, sequence");
    assert_eq!(header(0xb000, &fields[..11]), TunnelKey::default(), "the last field is cut");
    for flags in [0x0001, 0x2001, 0x4000] {
        assert_eq!(header(flags, &fields), TunnelKey::default(), "{flags:#x}");
    }
}

#[test]
fn label_stacks_are_read_behind_ethernet_gre_and_udp() {
    let labels = [mpls_label(100, 5), mpls_label(200, 0)];
    let bottom = 1 << 8;
    let packet = inside().build_packet();
    for (frame, beside) in [
        (FrameBuilder::new().mpls(&labels, &packet), TunnelLayers::empty()),
        (FrameBuilder::new().vlan(EtherType::VLAN, 3).mpls(&labels, &packet), TunnelLayers::empty()),
        (v4().gre(EtherType::MPLS, None, &label_stack(&labels, &packet)), TunnelLayers::GRE),
        (v6().mpls(&labels, &packet), TunnelLayers::empty()),
    ] {
        let key = tunnel(&frame);
        assert_eq!(key.layers, TunnelLayers::MPLS | TunnelLayers::INNER | beside);
        assert_eq!((key.mpls, key.mpls_depth), ([labels[0], labels[1] | bottom, 0, 0], 2));
        assert_eq!(key.mpls[0] >> 12, 100);
        assert_eq!(key.inner, bare(&inside()));
    }
}

#[test]
fn nothing_is_read_behind_a_stack_that_is_too_deep_or_carries_no_ip() {
    let labels = [mpls_label(1, 0); MAX_MPLS_LABELS + 1];
    let key = tunnel(&FrameBuilder::new().mpls(&labels, &inside().build_packet()));
    assert_eq!((key.layers, usize::from(key.mpls_depth)), (TunnelLayers::MPLS, MAX_MPLS_LABELS));
    let key = tunnel(&FrameBuilder::new().mpls(&labels[..1], &[0x00; 40]));
    assert_eq!(key.layers, TunnelLayers::MPLS, "a pseudowire's control word");
    let key = tunnel(&FrameBuilder::new().mpls(&labels[..1], &[]));
    assert_eq!((key.layers, key.mpls_depth), (TunnelLayers::MPLS, 1));
}

#[test]
fn the_label_inside_an_inner_ethernet_header_is_told_apart() {
    let inner = FrameBuilder::new().mpls(&[mpls_label(42, 1)], &inside().build_packet()).build();
    let key = tunnel(&v4().vxlan(9, &inner));
    assert_eq!((key.mpls_depth, key.inner_mpls >> 12), (0, 42));
    assert_eq!(key.inner.ether_type, EtherType::MPLS.0);
}

#[test]
fn esp_tells_its_index_and_number_and_nothing_inside() {
    for outer in [v4(), v6()] {
        let key = tunnel(&outer.esp(0x1122_3344, 9, &[0x45; 60]));
        let expected =
            TunnelKey { layers: TunnelLayers::ESP, esp_spi: 0x1122_3344, esp_seq: 9, ..TunnelKey::default() };
        assert_eq!(key, expected);
    }
}

#[test]
fn ip_in_ip_must_be_the_version_that_is_announced() {
    for (outer, inner) in [(v4(), inside()), (v4(), inside6()), (v6(), inside()), (v6(), inside6())] {
        let key = tunnel(&outer.ip_in_ip(&inner.build_packet()));
        assert_eq!((key.layers, key.inner), (TunnelLayers::IP_IN_IP | TunnelLayers::INNER, bare(&inner)));
    }
    let lies = v4().protocol(IpProtocol::IPV6).payload(&inside().build_packet());
    assert_eq!(tunnel(&lies), TunnelKey::default());
}

#[test]
fn fragments_and_trailers_are_not_taken_for_tunnels() {
    let whole = v4().gre(EtherType::IPV4, None, &inside().build_packet());
    assert!(
        tunnel(&whole.clone().fragment(0, true)).layers.contains(TunnelLayers::GRE),
        "the first has the header"
    );
    assert_eq!(tunnel(&whole.fragment(3, true)), TunnelKey::default());
    // Ethernet padding behind a short packet is no ESP header.
    let mut padded = v4().protocol(IpProtocol::ESP).payload(&[1, 2, 3, 4]).build();
    padded.resize(60, 7);
    assert_eq!(DeepKey::of(&padded).tunnel, TunnelKey::default());
}

fn samples() -> Vec<FrameBuilder> {
    let (frame, packet, packet6) = (inside().build(), inside().build_packet(), inside6().build_packet());
    let labels = [mpls_label(1, 0), mpls_label(2, 0)];
    vec![
        v4().vxlan(1, &frame),
        v6().vxlan(2, &FrameBuilder::new().mpls(&labels, &packet).build()),
        v4().gre(EtherType::IPV6, Some(3), &packet6),
        v4().gre(EtherType(0x6558), None, &frame),
        v6().gre(EtherType::MPLS, Some(4), &label_stack(&labels, &packet)),
        FrameBuilder::new().mpls(&labels, &packet6),
        v4().mpls(&labels, &packet),
        v6().esp(5, 6, &[0; 16]),
        v4().ip_in_ip(&packet6),
    ]
}

#[test]
fn a_cut_tunnel_has_no_layer_that_the_whole_one_lacks() {
    for builder in samples() {
        let frame = builder.build();
        let whole = DeepKey::of(&frame).tunnel;
        assert!(!whole.layers.is_empty());
        for length in 0..frame.len() {
            let cut = DeepKey::of(&frame[..length]).tunnel;
            assert!(whole.layers.contains(cut.layers), "{length} bytes of {whole:?} are {cut:?}");
            assert!(whole.inner.layers.contains(cut.inner.layers), "{length} bytes of {whole:?} are {cut:?}");
        }
    }
}

#[test]
fn hashes_are_of_the_packet_inside_or_of_the_index() {
    let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
    let deep = DeepKey::of(&v4().vxlan(1, &inside().build()).build());
    let inner = FlowKey::of(&inside().build());
    let fields = HashFields::L3L4 | HashFields::INNER;
    assert_eq!(toeplitz.hash_deep(&deep, fields), toeplitz.hash_key(&inner, HashFields::L3L4));
    assert_eq!(toeplitz.hash_deep(&deep, HashFields::L3L4), toeplitz.hash_key(&deep.outer, HashFields::L3L4));
    assert_eq!(toeplitz.hash_deep(&DeepKey::of(&inside().build()), fields), 0, "nothing inside");

    let esp = DeepKey::of(&v6().esp(0x0102_0304, 0, &[]).build());
    let mut input = [0; HASH_INPUT_BYTES];
    assert_eq!(esp.hash_input(HashFields::L3 | HashFields::IPSEC_SPI, &mut input), 36);
    assert_eq!((&input[..16], &input[32..]), (&esp.outer.src_ip[..], &[1, 2, 3, 4][..]));
    assert_eq!(esp.hash_input(HashFields::L3, &mut input), 32);
    assert_eq!(deep.hash_input(HashFields::IPSEC_SPI, &mut input), 0);
}

proptest! {
    #[test]
    fn any_bytes_have_a_tunnel_key(frame in prop::collection::vec(any::<u8>(), 0..160)) {
        let key = DeepKey::of(&frame).tunnel;
        prop_assert_eq!(key.layers.contains(TunnelLayers::MPLS), key.mpls_depth > 0);
        prop_assert!(key.layers.contains(TunnelLayers::INNER) || key.inner == FlowKey::default());
    }

    /// Damage reaches deeper than arbitrary bytes do.
    #[test]
    fn damaged_tunnels_are_read_as_far_as_they_go(
        which in 0usize..9, changes in prop::collection::vec((0usize..120, any::<u8>()), 1..6), length in 14usize..150,
    ) {
        let mut frame = samples()[which].build();
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(length);
        let key = DeepKey::of(&frame).tunnel;
        prop_assert!(usize::from(key.mpls_depth) <= MAX_MPLS_LABELS);
        prop_assert!(key.vxlan_vni < 1 << 24);
        prop_assert!(!key.layers.contains(TunnelLayers::GRE_KEY) || key.gre_flags & 0x2000 != 0);
    }
}

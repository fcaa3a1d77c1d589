//! Intersection, containment and implications of cubes, and images of packets.

use super::*;
use crate::Layers;
use crate::TunnelKey;
use proptest::prelude::*;

fn cube(fields: &[(Slot, u64)]) -> Option<Cube> {
    let mut cube = Cube::ANY;
    for (field, value) in fields {
        cube = cube.with(*field, *value, field.ones())?;
    }
    cube.closed()
}

#[test]
fn layers_exclude_each_other() {
    let v4 = cube(&[(HAS_IPV4, 1)]).unwrap();
    let v6 = cube(&[(HAS_IPV6, 1)]).unwrap();
    let tcp = cube(&[(HAS_IPV4, 1), (HAS_TCP, 1)]).unwrap();
    let udp = cube(&[(HAS_IPV4, 1), (HAS_UDP, 1)]).unwrap();
    assert!(!v4.overlaps(&v6) && !tcp.overlaps(&udp));
    assert!(v4.contains(&tcp) && !tcp.contains(&v4));
    assert_eq!(cube(&[(HAS_IPV4, 1), (HAS_IPV6, 1)]), None);
    assert_eq!(cube(&[(HAS_TCP, 1), (HAS_UDP, 1)]), None);
}

#[test]
fn implications_make_overlap_exact() {
    let arp = cube(&[(ETHER_TYPE, 0x0806)]).unwrap();
    let tcp = cube(&[(HAS_IPV4, 1), (HAS_TCP, 1)]).unwrap();
    let icmp = cube(&[(HAS_IPV4, 1), (PROTOCOL, 1)]).unwrap();
    let ipv4_type = cube(&[(ETHER_TYPE, 0x0800)]).unwrap();
    assert!(!arp.overlaps(&tcp));
    assert!(!icmp.overlaps(&tcp));
    assert!(ipv4_type.contains(&tcp));
    assert_eq!(cube(&[(ETHER_TYPE, 0x0806), (HAS_TCP, 1)]), None);
    assert_eq!(cube(&[(PROTOCOL, 17), (HAS_IPV6, 1), (HAS_TCP, 1)]), None);
}

#[test]
fn masks_on_parts_of_a_field_are_combined() {
    let tagged = Cube::ANY.with(VLAN_TCI, 5, 0x0fff).and_then(Cube::closed).unwrap();
    assert_eq!(tagged.and(&cube(&[(VLAN_TCI, 0x6005)]).unwrap()), cube(&[(VLAN_TCI, 0x6005)]));
    assert_eq!(tagged.and(&cube(&[(VLAN_TCI, 6)]).unwrap()), None);
}

proptest! {
    #[test]
    fn the_intersection_lies_in_both_cubes_and_is_closed(one in some_cube(), other in some_cube()) {
        let both = one.and(&other);
        prop_assert_eq!(both, other.and(&one));
        let Some(both) = both else { return Ok(()) };
        prop_assert!(one.contains(&both) && other.contains(&both));
        prop_assert_eq!(both.closed(), Some(both));
    }
}

fn some_cube() -> impl Strategy<Value = Cube> {
    let fields = [ETHER_TYPE, PROTOCOL, PROTOCOL.inside(), DST_PORT, DST_PORT.inside(), TTL, VLAN_TCI];
    let values = prop::sample::select(vec![0x0800, 0x86dd, 0x8847, 6, 17, 47, 50, 4789, 0]);
    let layer = (prop::sample::select(LAYERS.to_vec()), Just(1), Just(1));
    let field = (prop::sample::select(fields.to_vec()), values, prop::sample::select(vec![!0, 0xff00, 17]));
    prop::collection::vec(prop_oneof![layer, field], 1..5).prop_filter_map("no packet", |parts| {
        let mut parts = parts.into_iter();
        let add =
            |cube: Cube, (field, value, mask): (Slot, _, _)| cube.with(field, value, mask & field.ones());
        parts.try_fold(Cube::ANY, add)?.closed()
    })
}

/// The straight-line images agree with the rows of the fields.
#[test]
fn images_of_packets_have_the_values_of_their_fields() {
    use crate::build::FrameBuilder;
    use crate::{DeepKey, FIELDS, Header};
    let ipv6 = FrameBuilder::new()
        .vlan(EtherType::VLAN, 0x6123)
        .ipv6("2001:db8::1".parse().unwrap(), "2001:db8:0:1::2".parse().unwrap())
        .flow_label(0xa_beef)
        .udp(53, 1024);
    let ipv4 = FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 2].into()).udp(7, 4789);
    for frame in [ipv6.build(), ipv4.build()] {
        let key = DeepKey::of(&frame);
        let tunnel = TunnelKey {
            esp_spi: 0x1234_5678,
            esp_seq: 0x9abc_def0,
            gre_flags: 0xb07f,
            gre_protocol: 0x6558,
            gre_key: 0xdead_beef,
            vxlan_vni: 0xab_cdef,
            ..key.tunnel
        };
        let mut image = [0; WORDS];
        image[..LEVEL_WORDS].copy_from_slice(&key.outer.image());
        image[TUNNEL..].copy_from_slice(&tunnel.image());
        for row in FIELDS.iter().filter(|row| !row.slots.is_empty()) {
            let found = row.slots.iter().fold(0, |number, slot| {
                number << slot.bits() | u128::from(image[slot.word()] >> slot.shift() & slot.ones())
            });
            let is_there = match row.header {
                Header::Ipv4 => key.outer.layers.contains(Layers::IPV4),
                Header::Vlan => key.outer.layers.contains(Layers::VLAN),
                _ => true,
            };
            let expected = row.field.in_packet(&key.outer) | row.field.in_tunnel(&tunnel);
            assert!(!is_there || found == expected, "{}: {found:#x} is not {expected:#x}", row.name);
        }
    }
}

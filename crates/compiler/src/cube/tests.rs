//! What cubes share, hold and imply.

use super::*;
use proptest::prelude::*;

fn cube(fields: &[(Field, u64)]) -> Option<Cube> {
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
fn parts_of_a_field_meet_where_they_agree() {
    let tagged = Cube::ANY.with(VLAN_TCI, 5, 0x0fff).and_then(Cube::closed).unwrap();
    assert_eq!(tagged.and(&cube(&[(VLAN_TCI, 0x6005)]).unwrap()), cube(&[(VLAN_TCI, 0x6005)]));
    assert_eq!(tagged.and(&cube(&[(VLAN_TCI, 6)]).unwrap()), None);
}

proptest! {
    #[test]
    fn what_two_cubes_share_lies_in_both_and_implies_no_more(one in some_cube(), other in some_cube()) {
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
            |cube: Cube, (field, value, mask): (Field, _, _)| cube.with(field, value, mask & field.ones());
        parts.try_fold(Cube::ANY, add)?.closed()
    })
}

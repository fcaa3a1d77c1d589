//! Values as they are written.

use super::net::{address, mac};
use super::*;

fn v4(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn addresses_are_first_and_last() {
    assert_eq!(address("10.0.0.0/8"), Ok((v4("10.0.0.0"), v4("10.255.255.255"))));
    assert_eq!(address("0.0.0.0/0"), Ok((v4("0.0.0.0"), v4("255.255.255.255"))));
    assert_eq!(address("10.1.2.3/32"), Ok((v4("10.1.2.3"), v4("10.1.2.3"))));
    assert_eq!(address("::/0"), Ok((v4("::"), IpAddr::from([0xffu8; 16]))));
    assert_eq!(address("fe80::/10").unwrap().1, v4("febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
    assert_eq!(address("10.0.0.9-10.0.0.12"), Ok((v4("10.0.0.9"), v4("10.0.0.12"))));
}

#[test]
fn bad_addresses_say_why() {
    let why = |text| address(text).unwrap_err().0.unwrap_or_default();
    assert_eq!(why("10.0.0.1/8"), "it has bits beyond its prefix: write 10.0.0.0/8");
    assert_eq!(why("10.0.0.0/33"), "a prefix here has at most 32 bits");
    assert_eq!(why("10.0.0.2-10.0.0.1"), "the range runs backwards: write 10.0.0.1-10.0.0.2");
    assert_eq!(why("10.0.0.2-::1"), "both ends of a range must be IPv4, or both IPv6");
    for text in ["", "10.0.0", "10.0.0.0/", "10.0.0.0/+8", "/8", "-", "10.0.0.0/8/8", "example.org"] {
        assert_eq!(address(text), Err(Refused(None)), "{text}");
    }
}

#[test]
fn numbers_stay_in_their_fields() {
    assert_eq!((PORT.kind.parse)("1024 - 65535"), Ok((1024, 65535)));
    assert_eq!((PORT.kind.parse)("0x35"), Ok((53, 53)));
    assert_eq!((VLAN_ID.kind.parse)("4096"), Err(Refused(None)));
    for text in ["", "-", "65536", "+5", "-5", "5-", "1-2-3", "99999999999999999999", "0x", "٥"] {
        assert_eq!((PORT.kind.parse)(text), Err(Refused(None)), "{text}");
    }
}

#[test]
fn code_points_have_names() {
    assert_eq!(dscp("ef"), Ok(ByteSet::pattern(46 << 2, 0xfc)));
    assert_eq!(dscp("af41"), Ok(ByteSet::pattern(34 << 2, 0xfc)));
    assert_eq!(dscp("cs1-cs2"), Ok(ByteSet::range(8 << 2, 16 << 2 | 3)));
    assert_eq!(ecn("ce"), Ok(ByteSet::pattern(3, 3)));
    assert_eq!(ecn("ect1-ect0").unwrap().patterns(8), [(1, 3), (2, 3)]);
    assert_eq!(ecn("4"), Err(Refused(None)));
    assert_eq!(dscp("af14"), Err(Refused(None)));
    assert_eq!(dscp("64"), Err(Refused(None)));
}

#[test]
fn masks_hold_their_macs() {
    assert_eq!(mac("multicast").unwrap().mask.to_string(), "01:00:00:00:00:00");
    assert!(mac("02:00:5e:00:00:01/ff:ff:00:00:00:00").is_err());
    assert!(mac("02:00:00:00:00:00/ff:ff:00:00:00:00").is_ok());
}

#[test]
fn flags_are_set_or_clear() {
    assert_eq!(flags::tcp("syn, !ACK"), Ok(ByteSet::pattern(0x02, 0x12)));
    assert_eq!(flags::tcp("syn,!syn"), Err(Refused(Some("syn is named twice".to_owned()))));
    assert_eq!(flags::tcp(""), Err(Refused(None)));
}

#[test]
fn flags_of_other_headers_lie_where_the_wire_has_them() {
    assert_eq!(flags::ip("df,!mf").unwrap().patterns(3), [(2, 3)]);
    assert_eq!(flags::ip("!reserved").unwrap().patterns(3), [(0, 4)]);
    assert_eq!(flags::gre("key,!checksum"), Ok(ByteSet::pattern(0x20, 0xa0)));
    assert_eq!(flags::gre("routing"), Err(Refused(None)));
}

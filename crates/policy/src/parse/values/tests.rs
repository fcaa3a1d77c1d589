//! Tests of values and of the hints for texts that are not values.

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
fn bad_addresses_give_the_reason() {
    let why = |text| address(text).unwrap_err().0.map(String::from).unwrap_or_default();
    assert_eq!(why("10.0.0.1/8"), "it has bits beyond its prefix: write 10.0.0.0/8");
    assert_eq!(why("10.0.0.0/33"), "a prefix has at most 32 bits");
    assert_eq!(why("10.0.0.2-10.0.0.1"), "the range is reversed: write 10.0.0.1-10.0.0.2");
    assert_eq!(why("10.0.0.2-::1"), "both ends of a range must be IPv4, or both IPv6");
    let mapped = |written: &str| {
        format!(
            "no packet has an IPv4-mapped address, which stands for IPv4 in programs only: write {written}"
        )
    };
    assert_eq!(why("::ffff:198.51.100.1"), mapped("198.51.100.1"));
    assert_eq!(why("::ffff:c633:6401/128"), mapped("198.51.100.1"));
    assert_eq!(why("::ffff:198.51.100.0/120"), mapped("198.51.100.0/24"));
    assert_eq!(why("::ffff:198.51.100.1 - ::ffff:198.51.100.9"), mapped("198.51.100.1-198.51.100.9"));
    // Lists of addresses that must not be on a wire name the whole of them.
    assert!(address("::ffff:0:0/96").is_ok() && address("::/64").is_ok() && address("::1.2.3.4").is_ok());
    for text in ["", "10.0.0", "10.0.0.0/", "10.0.0.0/+8", "/8", "-", "10.0.0.0/8/8", "example.org"] {
        assert_eq!(address(text), Err(Refused(None)), "{text}");
    }
}

#[test]
fn numbers_stay_in_their_fields() {
    assert_eq!(Numbers::of(Field::SrcPort).parse("1024 - 65535"), Ok((1024, 65535)));
    assert_eq!(Numbers::of(Field::SrcPort).parse("0x35"), Ok((53, 53)));
    assert_eq!(Numbers::of(Field::VlanId).parse("4096"), Err(Refused(None)));
    for text in ["", "-", "65536", "+5", "-5", "5-", "1-2-3", "99999999999999999999", "0x", "٥"] {
        assert_eq!(Numbers::of(Field::SrcPort).parse(text), Err(Refused(None)), "{text}");
    }
}

#[test]
fn dscp_and_ecn_have_names() {
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
fn mac_addresses_have_no_bits_outside_their_masks() {
    assert_eq!(mac("multicast").unwrap().mask.to_string(), "01:00:00:00:00:00");
    assert!(mac("02:00:5e:00:00:01/ff:ff:00:00:00:00").is_err());
    assert!(mac("02:00:00:00:00:00/ff:ff:00:00:00:00").is_ok());
}

fn flags_of(field: Field, text: &str) -> Parsed<ByteSet> {
    Flags::of(field).expect("it has flags").parse(text)
}

#[test]
fn flags_are_set_or_clear() {
    assert_eq!(flags_of(Field::TcpFlags, "syn, !ACK"), Ok(ByteSet::pattern(0x02, 0x12)));
    assert_eq!(flags_of(Field::TcpFlags, "syn,!syn"), Err(Refused(Some("syn is given twice".into()))));
    assert_eq!(flags_of(Field::TcpFlags, ""), Err(Refused(None)));
}

#[test]
fn flags_of_other_headers_have_their_bits_on_the_wire() {
    assert_eq!(flags_of(Field::IpFlags, "df,!mf").unwrap().patterns(3), [(2, 3)]);
    assert_eq!(flags_of(Field::IpFlags, "!reserved").unwrap().patterns(3), [(0, 4)]);
    assert_eq!(flags_of(Field::GreFlags, "key,!checksum"), Ok(ByteSet::pattern(0x20, 0xa0)));
    assert_eq!(flags_of(Field::GreFlags, "routing"), Err(Refused(None)));
}

#[test]
fn notations_of_other_tools_get_hints() {
    let address = |text| hints::address(text).map(String::from).unwrap_or_default();
    assert_eq!(address("10.1.2.3/255.255.255.0"), "write 10.1.2.0/24");
    assert_eq!(address("10.0.0.1/255.0.0.255"), "a mask must be a prefix: write prefixes or ranges");
    assert_eq!(address("10.1/16"), "write all four octets: 10.1.0.0/16");
    assert_eq!(address("10.0.0.9-20"), "write 10.0.0.9-10.0.0.20");
    assert_eq!(address("10.2.*"), "write 10.2.0.0/16");
    assert_eq!(address("010.0.0.1"), "octets have no leading zeros: write 10.0.0.1");
    assert_eq!(address("10.0.0.256"), "an octet is at most 255");
    assert_eq!(address("www.example.org"), "host names are not resolved: write addresses");
    assert_eq!(address("10.0.0.1:80"), "write 10.0.0.1; match ports with `src_port` and `dst_port`");
    assert_eq!(address("[2001:db8::1]:80"), "write 2001:db8::1; match ports with `src_port` and `dst_port`");
    assert!(address("fe80::1%eth0").starts_with("write fe80::1:"));
    assert_eq!(address("..."), "");
    let number = |text| hints::number(text, 65_535).map(String::from).unwrap_or_default();
    assert_eq!(
        ["80:90", "80..90", ">1023", ">=1024", "<1024", "1024-"].map(number),
        [
            "write 80-90",
            "write 80-90",
            "write 1024-65535",
            "write 1024-65535",
            "write 0-1023",
            "write 1024-65535",
        ]
    );
    assert_eq!(number(">65535"), "");
    assert_eq!(number("0X1F"), "write 0x1f");
    let flags = |text| hints::flags(text, &packet::TCP_FLAGS).map(String::from).unwrap_or_default();
    assert_eq!(
        ["syn+ack", "SYN|ACK", "syn/syn,ack", "not ack", "syn,akc"].map(flags),
        ["write syn,ack", "write syn,ack", "write syn,!ack", "write !ack", "did you mean `ack`?",]
    );
    let mac = |text| hints::mac(text).map(String::from).unwrap_or_default();
    assert_eq!(mac("0200.5e00.0001"), "write 02:00:5e:00:00:01");
    assert_eq!(mac("02:00:5e:00:00:00/24"), "write the mask in full: 02:00:5e:00:00:00/ff:ff:ff:00:00:00");
    assert_eq!(mac("02:00:5e:00:00:00/0"), "write the mask in full: 02:00:5e:00:00:00/00:00:00:00:00:00");
    assert_eq!(hints::ether_type("0800").map(String::from).unwrap_or_default(), "write 0x0800");
    assert_eq!(hints::protocol("icmp6").map(String::from).unwrap_or_default(), "did you mean `icmpv6`?");
    assert_eq!(
        hints::protocol("tcp/udp").map(String::from).unwrap_or_default(),
        "write a list: [\"tcp\", \"udp\"]"
    );
    assert_eq!(hints::port("HTTPS").map(String::from).unwrap_or_default(), "ports are numbers: https is 443");
}

#[test]
fn suggested_names_are_names() {
    assert!(hints::ETHER_TYPES.iter().all(|name| name.parse::<EtherType>().is_ok()));
}

/// No text makes a hint panic.
#[test]
fn hints_do_not_panic() {
    let parts = [
        "",
        "/",
        "-",
        ".",
        "1",
        "255",
        "256",
        ":",
        "[",
        "]",
        "%",
        "*",
        "é",
        "0",
        "!",
        "not ",
        ",",
        ">",
        "99999999999999999999999999999999999999999",
    ];
    for a in parts {
        for b in parts {
            for c in parts {
                let text = format!("{a}{b}{c}");
                for hint in [hints::address, hints::mac, hints::protocol, hints::ether_type, hints::port] {
                    let _ = hint(&text);
                }
                let _ = (
                    hints::flags(&text, &packet::TCP_FLAGS),
                    hints::number(&text, u128::MAX),
                    hints::of_any_kind(&text, false),
                    hints::of_any_kind(&text, true),
                );
            }
        }
    }
}

#[test]
fn leading_zeros_are_refused() {
    assert_eq!(
        Numbers::of(Field::EtherType).parse("0800"),
        Err(Refused(Some("write 0x0800 in hexadecimal, or 800".into())))
    );
    assert_eq!(Numbers::of(Field::EtherType).parse("0x0800"), Ok((0x0800, 0x0800)));
    assert_eq!(Numbers::of(Field::SrcPort).parse("0-7"), Ok((0, 7)));
}

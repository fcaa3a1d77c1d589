//! Fields and hexadecimal digits as keys, and what makes no sense.

use packet::{Layers, MacAddr};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::Union;

use super::*;

#[test]
fn fields_make_the_key_that_parsing_the_frame_makes() {
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    let address = |text: &str| text.parse::<IpAddr>().expect("address");
    let frame = packet::build::FrameBuilder::new()
        .ethernet(mac(2), mac(1))
        .vlan(EtherType::VLAN, 5 << 13 | 42)
        .ip(address("10.0.0.1"), address("192.0.2.53"))
        .udp(1024, 53)
        .build();
    let fields =
        "src=10.0.0.1, dst=192.0.2.53, protocol=udp, src_port=1024, dst_port=53, vlan=42, vlan_priority=5";
    assert_eq!(key_of_text(fields), Ok(DeepKey::of(&frame)));
    let frame = packet::build::FrameBuilder::new()
        .ethernet(mac(2), mac(1))
        .ip(address("2001:db8::1"), address("2001:db8::2"))
        .tcp(1, 443, 0x12)
        .build();
    let fields = "src=2001:db8::1,dst=2001:db8::2,protocol=tcp,src_port=1,dst_port=443,tcp_flags=syn+ack";
    assert_eq!(key_of_text(fields), Ok(DeepKey::of(&frame)));
    let frame = packet::build::FrameBuilder::new()
        .ethernet(mac(2), mac(1))
        .ip(address("2001:db8::1"), address("2001:db8::2"))
        .icmp(135, 0)
        .build();
    let fields = "src=2001:db8::1,dst=2001:db8::2,protocol=icmpv6,icmpv6_type=135,icmpv6_code=0";
    assert_eq!(key_of_text(fields), Ok(DeepKey::of(&frame)));
}

#[test]
fn ipv6_has_names_of_its_own_and_tags_are_of_several_protocols() {
    let key = |text: &str| key_of_text(text).expect(text).outer;
    assert_eq!(key("hop_limit=1,traffic_class=0xb8"), key("family=ipv6,ttl=1,tos=0xb8"));
    assert_eq!(key("protocol=udp,dscp=46,ecn=3").tos, 46 << 2 | 3);
    let tags = key("ethertype=arp,vlan=1,vlan_tpid=0x88a8,inner_vlan=2,inner_vlan_tpid=0x9100");
    assert_eq!((tags.vlan_tpid, tags.inner_vlan_tpid, tags.inner_vlan_tci), (0x88a8, 0x9100, 2));
}

#[test]
fn later_fragments_have_no_ports() {
    let key = key_of_text("src=10.0.0.1,protocol=udp,fragment=later").expect("key").outer;
    assert!(key.layers.contains(Layers::LATER_FRAGMENT) && !key.layers.contains(Layers::UDP));
    assert!(key_of_text("protocol=udp,fragment=later,dst_port=53").is_err());
    let key = key_of_text("src=2001:db8::1,protocol=udp,fragment=first").expect("key").outer;
    assert_eq!(key.protocol, IpProtocol::FRAGMENT.0);
}

#[test]
fn headers_behind_extension_headers_have_fields() {
    let key = |text: &str| key_of_text(text).expect(text).outer;
    let found = key("src=2001:db8::1,protocol=hop_by_hop,ext_protocol=tcp,ext_dst_port=22,ext_tcp_flags=syn");
    assert_eq!((found.protocol, found.extended.dst_port, found.extended.tcp_flags), (0, 22, 2));
    let found = key("family=ipv6,protocol=fragment,fragment=first,ext_protocol=udp,ext_dst_port=53");
    assert_eq!((found.protocol, found.extended.dst_port), (44, 53));
    assert!(found.layers.contains(Layers::FRAGMENT));
    assert_eq!(key("protocol=ah,ext_protocol=icmpv6,ext_icmpv6_type=128").extended.icmp_type, 128);
    let refused = |text: &str| key_of_text(text).expect_err(text);
    assert!(refused("ext_dst_port=22").contains("needs protocol=hop_by_hop or protocol=routing"));
    assert!(refused("protocol=hop_by_hop,ext_dst_port=22").contains("give protocol and ext_protocol"));
    assert!(refused("protocol=tcp,ext_protocol=udp").contains("give protocol and ext_protocol"));
    assert!(refused("src=10.0.0.1,protocol=ah,ext_protocol=udp").contains("ext_protocol needs IPv6"));
}

#[test]
fn what_makes_no_sense_is_refused_with_the_field_named() {
    for (fields, named) in [
        ("", "needed"),
        ("colour=red", "colour"),
        ("src", "field=value"),
        ("src=10.0.0.1,src=10.0.0.2", "twice"),
        ("src=10.0.0.256", "src"),
        ("src=10.0.0.1,dst=2001:db8::1", "mix"),
        ("dst_port=53", "protocol"),
        ("protocol=icmp,dst_port=53", "dst_port"),
        ("src=10.0.0.1,icmp_type=8", "protocol=icmp"),
        ("family=ipv6,protocol=icmpv6,icmp_type=8", "icmp_type"),
        ("protocol=icmp,icmp_type=256", "icmp_type"),
        ("protocol=udp,tcp_flags=syn", "tcp_flags"),
        ("protocol=tcp,tcp_flags=sin", "sin"),
        ("protocol=udp,dst_port=65536", "dst_port"),
        ("ethertype=arp,vlan=4096", "4096"),
        ("ethertype=arp,vlan_priority=1", "vlan"),
        ("ethertype=arp,protocol=udp", "IP"),
        ("src=10.0.0.1,tos=4,dscp=1", "tos"),
        ("src=10.0.0.1,tos=4,ecn=1", "ecn"),
        ("src=10.0.0.1,hop_limit=4", "hop_limit"),
        ("hop_limit=4,ttl=4", "ttl"),
        ("ethertype=arp,vlan=1,vlan_tpid=arp", "vlan_tpid"),
        ("ethertype=arp,vlan=1,inner_vlan_tpid=0x88a8", "inner_vlan"),
        ("ethertype=0x8100", "vlan"),
        ("src=2001:db8::1,ip_options=true", "IPv4"),
        ("src=10.0.0.1,flow_label=7", "IPv6"),
        ("src=10.0.0.1,ip_flags=mf", "fragment"),
        ("vxlan_vni=1,protocol=tcp", "protocol"),
        ("vxlan_vni=16777216", "vxlan_vni"),
        ("vxlan_vni=1,gre_key=2", "gre_key"),
        ("esp_spi=1,inner.dst=10.0.0.1", "inner"),
        ("inner.colour=red", "inner.colour"),
        ("mpls=1+2+3+4+5", "mpls"),
        ("mpls=pop", "mpls"),
        ("gre_key=1,fragment=later", "fragment"),
        ("protocol=hop_by_hop,ext_protocol=tcp,fragment=later", "fragment"),
        ("family=ipv6,fragment=first,inner.src=10.0.0.1", "extension header"),
        ("vxlan_vni=1,inner.protocol=ah,inner.ext_protocol=tcp", "inner.ext_protocol"),
    ] {
        let error = key_of_text(fields).expect_err(fields);
        assert!(error.contains(named), "{fields}: {error}");
    }
}

#[test]
fn hexadecimal() {
    assert_eq!(frame_of_hex("02:00 0a-FF\n"), Ok(vec![2, 0, 10, 255]));
    for bad in ["", "0", "0g"] {
        assert!(frame_of_hex(bad).is_err(), "{bad:?}");
    }
}

/// Values of some fields of a packet and of one inside it, of which not all go together.
fn fields() -> impl Strategy<Value = Vec<String>> {
    let address = || prop_oneof!["10\\.0\\.0\\.[0-9]", "2001:db8::[0-9]"];
    let number = |most: u32| (0..=most).prop_map(|number| number.to_string());
    let protocol =
        || select(vec!["tcp", "udp", "icmp", "icmpv6", "gre", "esp", "hop_by_hop", "fragment", "132"]);
    let flags =
        |names: &[&'static str]| subsequence(names.to_vec(), 0..=names.len()).prop_map(|set| set.join("+"));
    let own: Vec<(&str, BoxedStrategy<String>)> = vec![
        ("src", address().boxed()),
        ("dst", address().boxed()),
        ("protocol", protocol().prop_map(str::to_owned).boxed()),
        ("ext_protocol", select(vec!["tcp", "udp", "icmpv6"]).prop_map(str::to_owned).boxed()),
        ("src_port", number(65_535).boxed()),
        ("dst_port", number(65_535).boxed()),
        ("ext_dst_port", number(65_535).boxed()),
        ("ext_icmpv6_type", number(255).boxed()),
        ("icmp_code", number(2).boxed()),
        ("tcp_flags", flags(&["fin", "syn", "ack", "cwr"]).boxed()),
        ("ip_flags", flags(&["df", "reserved"]).boxed()),
        ("icmp_type", number(255).boxed()),
        ("icmpv6_type", number(255).boxed()),
        ("tos", number(255).boxed()),
        ("ttl", number(255).boxed()),
        ("flow_label", number(0xf_ffff).boxed()),
        ("fragment", select(vec!["none", "first", "later"]).prop_map(str::to_owned).boxed()),
        ("ip_options", Just("true".to_owned()).boxed()),
        ("src_mac", "02:00:00:00:00:0[1-9]".boxed()),
        ("ethertype", select(vec!["arp", "ipv4", "ipv6", "0x88cc"]).prop_map(str::to_owned).boxed()),
        ("vlan", number(4095).boxed()),
        ("vlan_priority", number(7).boxed()),
        ("inner_vlan", number(4095).boxed()),
    ];
    let tunnel: Vec<(&str, BoxedStrategy<String>)> = vec![
        ("vxlan_vni", number(0xff_ffff).boxed()),
        ("gre_key", number(u32::MAX).boxed()),
        ("gre_flags", flags(&["sequence", "checksum"]).boxed()),
        ("esp_spi", number(u32::MAX).boxed()),
        ("mpls", prop::collection::vec(0u32..=0xf_ffff, 1..4).prop_map(|labels| joined(&labels)).boxed()),
    ];
    let one = |prefix: &'static str, rows: &[(&'static str, BoxedStrategy<String>)]| {
        let rows = rows.iter().map(move |(name, value)| {
            let name = format!("{prefix}{name}");
            value.clone().prop_map(move |value| format!("{name}={value}"))
        });
        Union::new(rows)
    };
    let some = |row: BoxedStrategy<String>, most| prop::collection::vec(row, 0..most);
    let (outer, tunnels, inner) =
        (one("", &own).boxed(), one("", &tunnel).boxed(), one("inner.", &own).boxed());
    (some(outer, 8), some(tunnels, 2), some(inner, 5))
        .prop_map(|(outer, tunnels, inner)| [outer, tunnels, inner].concat())
}

fn joined(labels: &[u32]) -> String {
    labels.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
}

/// The packet of the fields without those that contradict the ones before them.
fn of_fields(fields: &[String]) -> Option<DeepKey> {
    let mut kept: Vec<&str> = Vec::new();
    // A port needs a protocol, which may come behind it.
    for field in fields.iter().chain(fields) {
        kept.push(field);
        if key_of_text(&kept.join(",")).is_err() {
            kept.pop();
        }
    }
    key_of_text(&kept.join(",")).ok()
}

proptest! {
    #[test]
    fn a_printed_packet_is_read_as_the_same(fields in fields()) {
        let Some(key) = of_fields(&fields) else { return Ok(()) };
        let texts = [key.describe(), short_packet_with_macs(&key)];
        let has_inner_macs = key.tunnel.inner.src_mac != MacAddr::default() && key.tunnel.inner.src_addr().is_some();
        for text in texts.iter().take(if has_inner_macs { 1 } else { 2 }) {
            prop_assert_eq!(key_of_text(text), Ok(key), "{}", text);
        }
        prop_assert!(!texts[1].contains("..."), "{}", texts[1]);
    }

    #[test]
    fn no_text_panics(
        text in "((inner.)?(src|dst|vxlan_vni|gre_key|gre_flags|mpls|esp_spi|protocol|fragment|tos|tcp_flags|[a-z_]{2,9})=[a-z0-9.:+]{0,12},?){0,6}|\\PC{0,40}",
    ) {
        let _ = (key_of_text(&text), frame_of_hex(&text));
    }
}

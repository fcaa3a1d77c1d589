//! The parser and the hash against independent tools: published vectors, hashes computed elsewhere, and what
//! tshark and libpcap count in real captures, which the environment variable STEERD_CORPORA names.

#![allow(
    clippy::unwrap_used,
    reason = "clippy's allowance for tests does not reach helpers of integration tests"
)]

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use packet::{Anomaly, DeepKey, FlowKey, HashFields, Layers, RssKey, Toeplitz, TunnelLayers, parse};
use test_support::{captures, corpora, frames};

/// The rows of a table as maps from column to cell; cells that are not there are empty.
fn rows(text: &str) -> Vec<BTreeMap<&str, &str>> {
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap().split('\t').collect();
    lines
        .map(|line| columns.iter().copied().zip(line.split('\t').chain(std::iter::repeat(""))).collect())
        .collect()
}

#[derive(serde::Deserialize)]
struct KnownAnswers {
    ms_key: String,
    sym_key: String,
    vectors: Vec<KnownAnswer>,
}

#[derive(serde::Deserialize)]
struct KnownAnswer {
    src: IpAddr,
    sport: u16,
    dst: IpAddr,
    dport: u16,
    ms_l3: String,
    ms_l3l4: String,
    sym6d5a_l3: String,
    sym6d5a_l3l4: String,
}

fn udp_key(answer: &KnownAnswer) -> FlowKey {
    let frame =
        packet::build::FrameBuilder::new().ip(answer.src, answer.dst).udp(answer.sport, answer.dport).build();
    FlowKey::of(&frame)
}

#[test]
fn toeplitz_gives_the_known_answers() {
    let Some(folder) = corpora("rss") else { return };
    let text = fs::read_to_string(folder.join("toeplitz_kat.json")).unwrap();
    let known: KnownAnswers = serde_json::from_str(&text).unwrap();
    assert_eq!(known.ms_key.parse(), Ok(RssKey::MICROSOFT));
    assert_eq!(known.sym_key.parse(), Ok(RssKey::SYMMETRIC));
    assert!(!known.vectors.is_empty());
    let microsoft = Toeplitz::new(&RssKey::MICROSOFT);
    let symmetric = Toeplitz::new(&RssKey::SYMMETRIC);
    for answer in &known.vectors {
        let key = udp_key(answer);
        let hex = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        assert_eq!(microsoft.hash_key(&key, HashFields::L3), hex(&answer.ms_l3), "{}", answer.src);
        assert_eq!(microsoft.hash_key(&key, HashFields::L3L4), hex(&answer.ms_l3l4), "{}", answer.src);
        assert_eq!(symmetric.hash_key(&key, HashFields::L3), hex(&answer.sym6d5a_l3), "{}", answer.src);
        assert_eq!(symmetric.hash_key(&key, HashFields::L3L4), hex(&answer.sym6d5a_l3l4), "{}", answer.src);
    }
}

/// One line of FLOWS.tsv, without what is computed from it. It names no ports of fragments and of packets
/// with IPv4 options, and hashes those on addresses only.
type Tuple = (String, String, String, u8, Option<(u16, u16)>);

fn tuple(key: &FlowKey) -> Option<Tuple> {
    let family = if key.layers.contains(Layers::IPV4) { "ipv4" } else { "ipv6" };
    let ports = key.layers.intersects(Layers::TCP | Layers::UDP)
        && !key.layers.intersects(Layers::FRAGMENT | Layers::IP_OPTIONS);
    let text = |address: Option<IpAddr>| address.map(|address| address.to_string());
    let (src, dst) = (text(key.src_addr())?, text(key.dst_addr())?);
    Some((family.to_owned(), src, dst, key.protocol, ports.then_some((key.src_port, key.dst_port))))
}

#[test]
fn flows_and_their_hashes_are_those_computed_elsewhere() {
    let Some(folder) = corpora("pcaps") else { return };
    let text = fs::read_to_string(folder.join("FLOWS.tsv")).unwrap();
    let table = rows(&text);
    let captures = captures(&folder);
    let microsoft = Toeplitz::new(&RssKey::MICROSOFT);
    for (name, contents) in &captures {
        let mut flows: BTreeMap<Tuple, (usize, FlowKey)> = BTreeMap::new();
        let keys = frames(contents).into_iter().map(FlowKey::of);
        for key in keys.filter(|key| !key.layers.contains(Layers::VLAN)) {
            if let Some(tuple) = tuple(&key) {
                flows.entry(tuple).or_insert((0, key)).0 += 1;
            }
        }
        for row in table.iter().filter(|row| row["file"] == name) {
            let number = |column: &str| row[column].parse::<u16>().ok();
            let tuple = (
                row["l3"].to_owned(),
                row["src"].to_owned(),
                row["dst"].to_owned(),
                row["proto"].parse().unwrap(),
                number("sport").zip(number("dport")),
            );
            let (packets, key) = flows.remove(&tuple).unwrap_or_else(|| panic!("{name}: no {tuple:?}"));
            assert_eq!(packets.to_string(), row["packets"], "{name}: {tuple:?}");
            let hash = microsoft.hash_key(&key, HashFields::L3);
            assert_eq!(format!("{hash:08x}"), row["rss_ms_l3"], "{name}: {tuple:?}");
            let hash = microsoft.hash_key(&key, HashFields::L3L4);
            assert_eq!(format!("{hash:08x}"), row["rss_ms_l3l4"], "{name}: {tuple:?}");
        }
        assert!(flows.is_empty(), "{name}: FLOWS.tsv does not have {flows:?}");
    }
}

/// The rules of RULES.tsv that are about tunnels.
fn tunnel_rule(name: &str) -> Option<fn(&DeepKey) -> bool> {
    let predicate: fn(&DeepKey) -> bool = match name {
        "vxlan_vni_any" => |k| k.outer.ether_type == 0x0800 && k.tunnel.layers.contains(TunnelLayers::VXLAN),
        "gre_ipv4" => |k| k.outer.vlan_tpid == 0 && k.tunnel.gre_protocol == 0x0800,
        _ => return None,
    };
    Some(predicate)
}

/// The rules of RULES.tsv in terms of a key. `None`: a rule about tunnels.
fn rule(name: &str) -> Option<fn(&FlowKey) -> bool> {
    fn untagged(key: &FlowKey, ether_type: u16) -> bool {
        !key.layers.contains(Layers::VLAN) && key.ether_type == ether_type
    }
    fn v4(key: &FlowKey) -> bool {
        untagged(key, 0x0800) && key.layers.contains(Layers::IPV4)
    }
    fn v6(key: &FlowKey) -> bool {
        untagged(key, 0x86dd) && key.layers.contains(Layers::IPV6)
    }
    fn udp4(key: &FlowKey, dst_port: u16) -> bool {
        v4(key) && key.layers.contains(Layers::UDP) && key.dst_port == dst_port
    }
    fn tcp4(key: &FlowKey) -> bool {
        v4(key) && key.layers.contains(Layers::TCP)
    }
    let predicate: fn(&FlowKey) -> bool = match name {
        "all" => |_| true,
        "eth_mcast" => |k| k.dst_mac.is_multicast(),
        "eth_bcast" => |k| k.dst_mac.is_broadcast(),
        "et_arp" => |k| untagged(k, 0x0806),
        "et_ipv4" => |k| untagged(k, 0x0800),
        "et_ipv6" => |k| untagged(k, 0x86dd),
        "et_vlan8100" => |k| k.vlan_tpid == 0x8100,
        "et_svlan88a8" => |k| k.vlan_tpid == 0x88a8,
        "et_mpls" => |k| untagged(k, 0x8847),
        "et_pppoes" => |k| untagged(k, 0x8864),
        "et_lldp" => |k| untagged(k, 0x88cc),
        "et_slow" => |k| untagged(k, 0x8809),
        "et_ptp" => |k| untagged(k, 0x88f7),
        "len_frame" => |k| !k.layers.contains(Layers::VLAN) && k.ether_type <= 1500,
        "v4_tcp" => |k| v4(k) && k.protocol == 6,
        "v4_udp" => |k| v4(k) && k.protocol == 17,
        "v4_icmp" => |k| v4(k) && k.protocol == 1,
        "v4_igmp" => |k| v4(k) && k.protocol == 2,
        "v4_gre" => |k| v4(k) && k.protocol == 47,
        "v4_esp" => |k| v4(k) && k.protocol == 50,
        "v4_ah" => |k| v4(k) && k.protocol == 51,
        "v4_sctp" => |k| v4(k) && k.protocol == 132,
        "v4_6in4" => |k| v4(k) && k.protocol == 41,
        "v4_frag" => |k| v4(k) && k.layers.contains(Layers::FRAGMENT),
        "v4_frag_later" => |k| v4(k) && k.layers.contains(Layers::LATER_FRAGMENT),
        "v4_opts" => |k| v4(k) && k.layers.contains(Layers::IP_OPTIONS),
        "v4_mcast_dst" => |k| v4(k) && k.dst_ip[0] & 0xf0 == 224,
        "v4_src_10" => |k| v4(k) && k.src_ip[0] == 10,
        "v4_dst_192_168" => |k| v4(k) && k.dst_ip[..2] == [192, 168],
        "v4_udp_dp53" => |k| udp4(k, 53),
        "v4_udp_dp4789" => |k| udp4(k, 4789),
        "v4_udp_dp6081" => |k| udp4(k, 6081),
        "v4_udp_dp2152" => |k| udp4(k, 2152),
        "v4_udp_dp4500" => |k| udp4(k, 4500),
        "v4_udp_dp320" => |k| udp4(k, 320),
        "v4_tcp_dp80" => |k| tcp4(k) && k.dst_port == 80,
        "v4_tcp_dp22" => |k| tcp4(k) && k.dst_port == 22,
        "v4_tcp_dp_1024plus" => |k| tcp4(k) && k.dst_port >= 1024,
        "v4_tcp_syn" => |k| tcp4(k) && k.tcp_flags & 0x12 == 2,
        "v6_nh_tcp" => |k| v6(k) && k.protocol == 6,
        "v6_nh_udp" => |k| v6(k) && k.protocol == 17,
        "v6_nh_icmp6" => |k| v6(k) && k.protocol == 58,
        "v6_nh_hbh" => |k| v6(k) && k.protocol == 0,
        "v6_nh_frag" => |k| v6(k) && k.protocol == 44,
        "v6_nh_route" => |k| v6(k) && k.protocol == 43,
        "v6_nh_esp" => |k| v6(k) && k.protocol == 50,
        "v6_mcast_dst" => |k| v6(k) && k.dst_ip[0] == 0xff,
        "v6_src_fe80" => |k| v6(k) && k.src_ip[0] == 0xfe && k.src_ip[1] & 0xc0 == 0x80,
        "v6_tcp_dp21" => |k| v6(k) && k.layers.contains(Layers::TCP) && k.dst_port == 21,
        "v6_udp_dp53" => |k| v6(k) && k.layers.contains(Layers::UDP) && k.dst_port == 53,
        "vlan_ipv4" => {
            |k| k.vlan_tpid == 0x8100 && !k.layers.contains(Layers::INNER_VLAN) && k.ether_type == 0x0800
        }
        "vlan_id_1_99" => |k| k.vlan_tpid == 0x8100 && k.vlan_id().is_some_and(|id| (1..=99).contains(&id)),
        "vlan_id_100plus" => |k| k.vlan_tpid == 0x8100 && k.vlan_id().is_some_and(|id| id >= 100),
        "qinq8100" => |k| k.vlan_tpid == 0x8100 && k.inner_vlan_tpid == 0x8100,
        "vxlan_vni_any" | "gre_ipv4" => return None,
        _ => panic!("RULES.tsv has a rule {name} that this test does not know"),
    };
    Some(predicate)
}

/// Where tshark and libpcap differ (malformed headers), the parser is as strict as tshark.
#[test]
fn rules_count_what_tshark_counts() {
    let Some(folder) = corpora("pcaps") else { return };
    let expected = fs::read_to_string(folder.join("EXPECTED.tsv")).unwrap();
    let expected: BTreeMap<(&str, &str), usize> = rows(&expected)
        .iter()
        .map(|row| ((row["file"], row["rule"]), row["tshark"].parse().unwrap()))
        .collect();
    let rules = fs::read_to_string(folder.join("RULES.tsv")).unwrap();
    let mut counted = 0;
    for (name, contents) in &captures(&folder) {
        let keys: Vec<DeepKey> = frames(contents).into_iter().map(DeepKey::of).collect();
        for row in &rows(&rules) {
            let packets = match (rule(row["rule"]), tunnel_rule(row["rule"])) {
                (Some(predicate), _) => keys.iter().filter(|key| predicate(&key.outer)).count(),
                (None, Some(predicate)) => keys.iter().filter(|key| predicate(key)).count(),
                (None, None) => panic!("{} is about nothing", row["rule"]),
            };
            let wanted = expected.get(&(name.as_str(), row["rule"])).copied().unwrap_or(0);
            assert_eq!(packets, wanted, "{name}: {}", row["rule"]);
            counted += packets;
        }
    }
    assert!(counted > 0);
}

#[test]
fn malformed_captures_are_noted() {
    let Some(folder) = corpora("pcaps") else { return };
    let captures = captures(&folder);
    for (name, anomaly) in [
        ("tcpdump__ipv4_invalid_hdr_length.pcap", Anomaly::Ipv4HeaderLength),
        ("tcpdump__ipv6-bad-version.pcap", Anomaly::Ipv6Version),
        ("zeek__trunc_ip4-trunc.pcap", Anomaly::Ipv4Truncated),
    ] {
        let found: Vec<Anomaly> =
            frames(&captures[name]).into_iter().filter_map(|frame| parse(frame).anomaly).collect();
        assert!(found.contains(&anomaly), "{name}: {found:?}");
    }
}

/// The tunnels that tcpdump 4.99 prints of these captures.
#[test]
fn captured_tunnels_are_what_tcpdump_prints() {
    let Some(folder) = corpora("pcaps") else { return };
    let captures = captures(&folder);
    let tunnels = |name: &str| -> Vec<DeepKey> {
        frames(&captures[name])
            .into_iter()
            .map(DeepKey::of)
            .filter(|key| !key.tunnel.layers.is_empty())
            .collect()
    };
    let esp = tunnels("tcpdump__02-sunrise-sunset-esp.pcap");
    assert_eq!(esp.len(), 8);
    assert!(esp.iter().all(|key| key.tunnel.layers == TunnelLayers::ESP));
    assert_eq!((esp[2].tunnel.esp_spi, esp[2].tunnel.esp_seq), (0x1234_5678, 3));

    let vxlan = tunnels("tcpdump__vxlan.pcap");
    assert_eq!(vxlan.len(), 10);
    assert!(vxlan.iter().all(|key| key.tunnel.vxlan_vni == 100));
    assert_eq!(vxlan[0].tunnel.inner.dst_mac.to_string(), "00:30:88:01:00:02");
    assert_eq!((vxlan[0].tunnel.inner.protocol, vxlan[1].tunnel.inner.ether_type), (1, 0x0806));

    let gre = tunnels("tcpdump__various_gre.pcap");
    assert_eq!(gre.len(), 30);
    assert!(gre.iter().all(|key| key.tunnel.layers.contains(TunnelLayers::GRE)));
    assert!(gre.iter().any(|key| key.tunnel.gre_key == 0x28));

    let mpls = tunnels("zeek__mixed-vlan-mpls.pcap");
    assert_eq!(mpls.len(), 11);
    assert!(
        mpls.iter().all(|key| key.tunnel.mpls_depth == 1 && key.tunnel.inner.layers.contains(Layers::TCP))
    );
    let telnet = &mpls[0].tunnel;
    assert_eq!((telnet.mpls[0] >> 12, telnet.mpls[0] >> 9 & 7, telnet.mpls[0] & 0xff), (29, 6, 255));
    assert_eq!((telnet.inner.src_port, telnet.inner.dst_port), (11001, 23));

    let [four_in_six] = tunnels("zeek__tunnels_4in6.pcap")[..] else { panic!("one packet") };
    let inner = four_in_six.tunnel.inner;
    assert_eq!(inner.src_addr(), Some([70, 55, 213, 211].into()));
    assert_eq!((inner.src_port, inner.dst_port, inner.tcp_flags), (31337, 80, 2));
    let [six_in_four] = tunnels("zeek__tunnels_6in4.pcap")[..] else { panic!("one packet") };
    let inner = six_in_four.tunnel.inner;
    assert_eq!(inner.dst_addr(), "cafe::babe".parse().ok());
    assert_eq!((inner.src_port, inner.dst_port), (30000, 13000));
}

#[test]
fn every_cut_of_every_captured_frame_parses() {
    let Some(folder) = corpora("pcaps") else { return };
    for (name, contents) in &captures(&folder) {
        for frame in frames(contents) {
            let whole = parse(frame);
            for length in 0..frame.len().min(128) {
                let cut = parse(&frame[..length]);
                assert!(whole.key.layers.contains(cut.key.layers), "{name}: {length} bytes of {whole:?}");
                assert!(usize::from(cut.l3_offset.max(cut.l4_offset)) <= length, "{name}: {cut:?}");
                let tunnel = packet::parse_tunnel(&frame[..length], &cut).layers;
                let whole = packet::parse_tunnel(frame, &whole).layers;
                assert!(whole.contains(tunnel), "{name}: {length} bytes of {whole:?}");
            }
        }
    }
}

//! The language against real captures: every rule of the corpora's RULES.tsv, written as a policy of that one
//! rule; the number of packets that it matches is compared with the number from tshark. Runs if
//! `STEERD_CORPORA` names the directory of the corpora.

use std::collections::{BTreeMap, BTreeSet};

use device_model::DeviceModel;
use packet::DeepKey;
use policy::Source;
use program::RuleId;
use test_support::{captures, corpora, frames};

/// Name in RULES.tsv, and the match that says it. An untagged rule there looks at the first ethertype.
const RULES: [(&str, &str); 56] = [
    ("all", "any = true"),
    ("eth_mcast", "dst_mac = 'multicast'"),
    ("eth_bcast", "dst_mac = 'broadcast'"),
    ("et_arp", "vlan = 'none', ethertype = 'arp'"),
    ("et_ipv4", "vlan = 'none', ethertype = 'ipv4'"),
    ("et_ipv6", "vlan = 'none', ethertype = 'ipv6'"),
    ("et_vlan8100", "vlan_tpid = 0x8100"),
    ("et_svlan88a8", "vlan_tpid = 0x88a8"),
    ("et_mpls", "vlan = 'none', ethertype = 'mpls'"),
    ("et_pppoes", "vlan = 'none', ethertype = 'pppoe_session'"),
    ("et_lldp", "vlan = 'none', ethertype = 'lldp'"),
    ("et_slow", "vlan = 'none', ethertype = 'slow'"),
    ("et_ptp", "vlan = 'none', ethertype = 'ptp'"),
    ("len_frame", "vlan = 'none', ethertype = '0-1500'"),
    ("v4_tcp", "vlan = 'none', family = 'ipv4', protocol = 'tcp'"),
    ("v4_udp", "vlan = 'none', family = 'ipv4', protocol = 'udp'"),
    ("v4_icmp", "vlan = 'none', family = 'ipv4', protocol = 'icmp'"),
    ("v4_igmp", "vlan = 'none', family = 'ipv4', protocol = 'igmp'"),
    ("v4_gre", "vlan = 'none', family = 'ipv4', protocol = 'gre'"),
    ("v4_esp", "vlan = 'none', family = 'ipv4', protocol = 'esp'"),
    ("v4_ah", "vlan = 'none', family = 'ipv4', protocol = 'ah'"),
    ("v4_sctp", "vlan = 'none', family = 'ipv4', protocol = 'sctp'"),
    ("v4_6in4", "vlan = 'none', family = 'ipv4', protocol = 41"),
    ("v4_frag", "vlan = 'none', family = 'ipv4', fragment = 'any'"),
    ("v4_frag_later", "vlan = 'none', family = 'ipv4', fragment = 'later'"),
    ("v4_opts", "vlan = 'none', ip_options = true"),
    ("v4_mcast_dst", "vlan = 'none', dst = '224.0.0.0/4'"),
    ("v4_src_10", "vlan = 'none', src = '10.0.0.0/8'"),
    ("v4_dst_192_168", "vlan = 'none', dst = '192.168.0.0/16'"),
    ("v4_udp_dp53", "vlan = 'none', family = 'ipv4', protocol = 'udp', dst_port = 53"),
    ("v4_udp_dp4789", "vlan = 'none', family = 'ipv4', protocol = 'udp', dst_port = 4789"),
    ("v4_udp_dp6081", "vlan = 'none', family = 'ipv4', protocol = 'udp', dst_port = 6081"),
    ("v4_udp_dp2152", "vlan = 'none', family = 'ipv4', protocol = 'udp', dst_port = 2152"),
    ("v4_udp_dp4500", "vlan = 'none', family = 'ipv4', protocol = 'udp', dst_port = 4500"),
    ("v4_udp_dp320", "vlan = 'none', family = 'ipv4', protocol = 'udp', dst_port = 320"),
    ("v4_tcp_dp80", "vlan = 'none', family = 'ipv4', protocol = 'tcp', dst_port = 80"),
    ("v4_tcp_dp22", "vlan = 'none', family = 'ipv4', protocol = 'tcp', dst_port = 22"),
    ("v4_tcp_dp_1024plus", "vlan = 'none', family = 'ipv4', protocol = 'tcp', dst_port = '1024-65535'"),
    ("v4_tcp_syn", "vlan = 'none', family = 'ipv4', tcp_flags = 'syn,!ack'"),
    ("v6_nh_tcp", "vlan = 'none', family = 'ipv6', protocol = 'tcp'"),
    ("v6_nh_udp", "vlan = 'none', family = 'ipv6', protocol = 'udp'"),
    ("v6_nh_icmp6", "vlan = 'none', family = 'ipv6', protocol = 'icmpv6'"),
    ("v6_nh_hbh", "vlan = 'none', family = 'ipv6', protocol = 'hop_by_hop'"),
    ("v6_nh_frag", "vlan = 'none', family = 'ipv6', protocol = 'fragment'"),
    ("v6_nh_route", "vlan = 'none', family = 'ipv6', protocol = 'routing'"),
    ("v6_nh_esp", "vlan = 'none', family = 'ipv6', protocol = 'esp'"),
    ("v6_mcast_dst", "vlan = 'none', dst = 'ff00::/8'"),
    ("v6_src_fe80", "vlan = 'none', src = 'fe80::/10'"),
    ("v6_tcp_dp21", "vlan = 'none', family = 'ipv6', protocol = 'tcp', dst_port = 21"),
    ("v6_udp_dp53", "vlan = 'none', family = 'ipv6', protocol = 'udp', dst_port = 53"),
    ("vlan_ipv4", "vlan_tpid = 0x8100, inner_vlan = 'none', ethertype = 'ipv4'"),
    ("vlan_id_1_99", "vlan = '1-99'"),
    ("vlan_id_100plus", "vlan = '100-4095'"),
    ("vxlan_vni_any", "vlan = 'none', family = 'ipv4', vxlan_vni = '0-0xffffff'"),
    ("gre_ipv4", "vlan = 'none', family = 'ipv4', gre_protocol = 'ipv4'"),
    ("qinq8100", "vlan_tpid = 0x8100, inner_vlan_tpid = 0x8100"),
];

#[test]
fn captures_are_counted_as_tshark_counts_them() {
    let Some(folder) = corpora("pcaps") else { return };
    let table = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let listed = table("RULES.tsv");
    let listed: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    let sayable: Vec<&str> = RULES.iter().map(|(name, _)| *name).collect();
    let unknown: Vec<_> = listed.iter().filter(|name| !sayable.contains(name)).collect();
    assert!(unknown.is_empty(), "rules that are not said: {unknown:?}");

    let mut expected: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in table("EXPECTED.tsv").lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        expected.insert((columns[0].to_owned(), columns[1].to_owned()), columns[2].parse().unwrap());
    }
    let captures = captures(&folder);
    let named: BTreeSet<&String> = expected.keys().map(|(file, _)| file).collect();
    let missing: Vec<_> = named.iter().filter(|file| !captures.contains_key(**file)).collect();
    assert!(!named.is_empty() && missing.is_empty(), "EXPECTED.tsv speaks of {missing:?}");
    let mut wrong = Vec::new();
    for (name, matches) in RULES {
        let text = format!(
            "version = 1\n[groups.g]\nworkers = [0]\n[[rules]]\nname = 'rule'\nmatch = {{ {matches} }}\naction = {{ steer = 'g' }}\n"
        );
        let (policy, _) = policy::parse(&Source::new(name, text), &policy::NoFiles).unwrap();
        let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).unwrap();
        for (file, bytes) in &captures {
            let claims = |frame: &&&[u8]| program.explain_deep(&DeepKey::of(frame)).outcome.rule == RuleId(0);
            let counted = frames(bytes).iter().filter(claims).count();
            let wanted = expected.get(&(file.clone(), name.to_owned())).copied().unwrap_or(0);
            if counted != wanted {
                wrong.push(format!("{file} {name}: counted {counted}, tshark {wanted}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! The kernel's structure, as a C compiler lays it out from linux/ethtool.h.

use std::process::Command;

use nic_filters::{Destination, FieldBits, Filter, FilterKind, FilterMatch, Ledger, LedgerFilter};
use packet::Field;

/// Filters, and the C statements that make them in `r`.
fn examples() -> Vec<(Filter, Option<u32>, &'static str)> {
    let bits = |field, value, mask| FieldBits { field, value, mask };
    let filter = |kind, fields: &[FieldBits], destination| Filter {
        matches: FilterMatch::new(kind, fields.iter().copied()),
        destination,
    };
    vec![
        (
            filter(
                FilterKind::Udp4,
                &[
                    bits(Field::SrcV4, 0x0a00_0000, 0xffff_ff00),
                    bits(Field::DstV4, 0xc000_0201, 0xffff_ffff),
                    bits(Field::SrcPort, 0x1000, 0xf000),
                    bits(Field::DstPort, 53, 0xffff),
                    bits(Field::Tos, 0xb8, 0xfc),
                ],
                Destination::Queue(5),
            ),
            Some(7),
            "r.fs.flow_type = UDP_V4_FLOW; r.fs.location = 7; r.fs.ring_cookie = 5;
             r.fs.h_u.udp_ip4_spec.ip4src = htonl(0x0a000000); r.fs.m_u.udp_ip4_spec.ip4src = htonl(0xffffff00);
             r.fs.h_u.udp_ip4_spec.ip4dst = htonl(0xc0000201); r.fs.m_u.udp_ip4_spec.ip4dst = htonl(0xffffffff);
             r.fs.h_u.udp_ip4_spec.psrc = htons(0x1000); r.fs.m_u.udp_ip4_spec.psrc = htons(0xf000);
             r.fs.h_u.udp_ip4_spec.pdst = htons(53); r.fs.m_u.udp_ip4_spec.pdst = htons(0xffff);
             r.fs.h_u.udp_ip4_spec.tos = 0xb8; r.fs.m_u.udp_ip4_spec.tos = 0xfc;",
        ),
        (
            filter(
                FilterKind::Ip4,
                &[bits(Field::Protocol, 1, 0xff), bits(Field::VlanId, 100, 0xfff), bits(Field::VlanPriority, 5, 7)],
                Destination::Drop,
            ),
            None,
            "r.fs.flow_type = IPV4_USER_FLOW | FLOW_EXT; r.fs.location = RX_CLS_LOC_ANY;
             r.fs.ring_cookie = RX_CLS_FLOW_DISC; r.fs.h_u.usr_ip4_spec.ip_ver = ETH_RX_NFC_IP4;
             r.fs.h_u.usr_ip4_spec.proto = 1; r.fs.m_u.usr_ip4_spec.proto = 0xff;
             r.fs.h_ext.vlan_tci = htons(5 << 13 | 100); r.fs.m_ext.vlan_tci = htons(0xefff);",
        ),
        (
            filter(
                FilterKind::Tcp6,
                &[
                    bits(Field::DstV6, 0x2001_0db8_0000_0000_0000_0000_0000_0001, u128::MAX),
                    bits(Field::DstPort, 443, 0xffff),
                    bits(Field::DstMac, 0x0200_5e00_0001, 0xffff_ffff_ffff),
                ],
                Destination::Context(3),
            ),
            Some(0),
            "r.fs.flow_type = TCP_V6_FLOW | FLOW_MAC_EXT | FLOW_RSS; r.rss_context = 3;
             r.fs.h_u.tcp_ip6_spec.ip6dst[0] = htonl(0x20010db8); r.fs.h_u.tcp_ip6_spec.ip6dst[3] = htonl(1);
             memset(r.fs.m_u.tcp_ip6_spec.ip6dst, 0xff, 16);
             r.fs.h_u.tcp_ip6_spec.pdst = htons(443); r.fs.m_u.tcp_ip6_spec.pdst = htons(0xffff);
             memcpy(r.fs.h_ext.h_dest, \"\\x02\\x00\\x5e\\x00\\x00\\x01\", 6); memset(r.fs.m_ext.h_dest, 0xff, 6);",
        ),
        (
            filter(
                FilterKind::Ip6,
                &[bits(Field::Protocol, 58, 0xff), bits(Field::Tos, 0x20, 0xe0), bits(Field::SrcV6, 0xfe80 << 112, 0xffc0 << 112)],
                Destination::Queue(0),
            ),
            Some(1),
            "r.fs.flow_type = IPV6_USER_FLOW; r.fs.location = 1;
             r.fs.h_u.usr_ip6_spec.l4_proto = 58; r.fs.m_u.usr_ip6_spec.l4_proto = 0xff;
             r.fs.h_u.usr_ip6_spec.tclass = 0x20; r.fs.m_u.usr_ip6_spec.tclass = 0xe0;
             r.fs.h_u.usr_ip6_spec.ip6src[0] = htonl(0xfe800000); r.fs.m_u.usr_ip6_spec.ip6src[0] = htonl(0xffc00000);",
        ),
        (
            filter(
                FilterKind::Ether,
                &[bits(Field::SrcMac, 0x0200_5e00_0002, 0xffff_ffff_0000), bits(Field::EtherType, 0x88cc, 0xffff)],
                Destination::Drop,
            ),
            Some(2),
            "r.fs.flow_type = ETHER_FLOW; r.fs.location = 2; r.fs.ring_cookie = RX_CLS_FLOW_DISC;
             memcpy(r.fs.h_u.ether_spec.h_source, \"\\x02\\x00\\x5e\\x00\\x00\\x00\", 6); memset(r.fs.m_u.ether_spec.h_source, 0xff, 4);
             r.fs.h_u.ether_spec.h_proto = htons(0x88cc); r.fs.m_u.ether_spec.h_proto = htons(0xffff);",
        ),
    ]
}

/// The bytes of a filter, which the ledger has in hexadecimal.
fn encoded(filter: &Filter, location: Option<u32>) -> String {
    let filters = vec![LedgerFilter { location, filter: filter.clone() }];
    let ledger = Ledger { filters, contexts: Vec::new() };
    let json = serde_json::to_value(&ledger).expect("plain data");
    let read: Ledger = serde_json::from_value(json.clone()).expect("the same data");
    assert_eq!(read, ledger, "decoding gives the filter that was encoded");
    json["filters"][0]["block"].as_str().expect("text").to_owned()
}

#[test]
fn filters_have_the_bytes_that_a_c_compiler_gives_them() {
    let mut source = "#include <stdio.h>\n#include <string.h>\n#include <stddef.h>\n#include <arpa/inet.h>\n#include <linux/ethtool.h>\n\
                      static void print(const struct ethtool_rxnfc *r) { for (size_t i = 0; i < sizeof *r; i++) \
                      printf(\"%02x\", ((const unsigned char *)r)[i]); puts(\"\"); }\nint main(void) {\n"
        .to_owned();
    for (_, _, statements) in examples() {
        source.push_str("{ struct ethtool_rxnfc r; memset(&r, 0, sizeof r);\n");
        source.push_str(statements);
        source.push_str("\nprint(&r); }\n");
    }
    source.push_str("printf(\"%zu %zu\\n\", sizeof(struct ethtool_rxnfc), offsetof(struct ethtool_rxnfc, rule_locs)); return 0; }\n");
    let folder = tempfile::tempdir().expect("a folder");
    let (file, program) = (folder.path().join("rules.c"), folder.path().join("rules"));
    std::fs::write(&file, source).expect("written");
    match Command::new("cc").arg("-Wall").arg("-o").arg(&program).arg(&file).output() {
        Ok(built) => assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => {
            return test_support::not_run(
                "filters_have_the_bytes_that_a_c_compiler_gives_them",
                &error.to_string(),
            );
        }
    }
    let output = Command::new(&program).output().expect("it runs").stdout;
    let output = String::from_utf8(output).expect("text");
    let mut lines = output.lines();
    for ((filter, location, _), line) in examples().iter().zip(lines.by_ref()) {
        assert_eq!(encoded(filter, *location), line, "{filter}");
    }
    assert_eq!(lines.next(), Some("192 188"), "the size of the structure, and where locations begin");
}

#[test]
fn filters_read_like_those_of_ethtool() {
    let texts: Vec<String> = examples().iter().map(|(filter, _, _)| filter.to_string()).collect();
    assert_eq!(
        texts[0],
        "udp4 src 10.0.0.0/24 dst 192.0.2.1 tos 184/0xfc src_port 4096/0xf000 dst_port 53: queue 5"
    );
    assert_eq!(texts[1], "ip4 vlan 100 vlan_priority 5 protocol icmp: drop");
    assert_eq!(texts[4], "ether src_mac 02:00:5e:00:00:00/ff:ff:ff:ff:00:00 ethertype lldp: drop");
}

/// A library that answers the ioctl of ethtool(8) in the place of the kernel: an empty table whose driver
/// takes any location, and the bytes of each rule on stderr.
const RECORDER: &str = r#"
#include <stdarg.h>
#include <stdio.h>
#include <net/if.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <sys/syscall.h>
#include <unistd.h>
int ioctl(int fd, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    struct ifreq *interface = va_arg(list, struct ifreq *);
    va_end(list);
    struct ethtool_rxnfc *rules = request == SIOCETHTOOL ? (void *)interface->ifr_data : 0;
    if (rules && rules->cmd == ETHTOOL_GRXCLSRLCNT) {
        rules->rule_cnt = 0;
        rules->data = 16 | RX_CLS_LOC_SPECIAL;
        return 0;
    }
    if (rules && rules->cmd == ETHTOOL_SRXCLSRLINS) {
        for (unsigned i = 0; i < sizeof *rules; i++)
            fprintf(stderr, "%02x", ((unsigned char *)rules)[i]);
        return 0;
    }
    return syscall(SYS_ioctl, fd, request, interface);
}
"#;

/// The filters of [`examples`] as arguments of `ethtool -N`, whose masks have the bits that do not count.
const ARGUMENTS: [&str; 5] = [
    "flow-type udp4 src-ip 10.0.0.0 m 0.0.0.255 dst-ip 192.0.2.1 src-port 0x1000 m 0x0fff dst-port 53 tos 0xb8 m 0x03 \
     action 5 loc 7",
    "flow-type ip4 l4proto 1 vlan 0xa064 m 0x1000 action -1",
    "flow-type tcp6 dst-ip 2001:db8::1 dst-port 443 dst-mac 02:00:5e:00:00:01 context 3 loc 0",
    "flow-type ip6 src-ip fe80:: m 3f:ffff:ffff:ffff:ffff:ffff:ffff:ffff tclass 0x20 m 0x1f l4proto 58 action 0 loc 1",
    "flow-type ether src 02:00:5e:00:00:00 m 00:00:00:00:ff:ff proto 0x88cc action -1 loc 2",
];

#[test]
fn filters_have_the_bytes_that_ethtool_sends() {
    let name = "filters_have_the_bytes_that_ethtool_sends";
    let folder = tempfile::tempdir().expect("a folder");
    let (file, library) = (folder.path().join("recorder.c"), folder.path().join("recorder.so"));
    std::fs::write(&file, RECORDER).expect("written");
    match Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file).output() {
        Ok(built) => assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => return test_support::not_run(name, &error.to_string()),
    }
    for ((filter, location, _), arguments) in examples().iter().zip(ARGUMENTS) {
        let mut ethtool = Command::new("ethtool");
        ethtool.env("LD_PRELOAD", &library).args(["-N", "lo"]).args(arguments.split(' '));
        let output = match ethtool.output() {
            Ok(output) => output,
            Err(error) => return test_support::not_run(name, &error.to_string()),
        };
        let sent = String::from_utf8(output.stderr).expect("text");
        // ethtool(8) leaves what is not of this command as it was: `flow_type` and `data` before the rule,
        // and what is behind the context.
        let rule = |block: &str| block[32..376].to_owned();
        assert!(output.status.success() && sent.len() == 384, "{sent}");
        assert_eq!(rule(&encoded(filter, *location)), rule(&sent), "{filter}");
    }
}

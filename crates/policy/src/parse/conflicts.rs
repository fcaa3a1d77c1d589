//! Keys of one match that no packet can meet together. What is refused here is a slip of the pen; what is
//! left and still matches nothing (an empty set, say) gets a warning from `check`.

use packet::{EtherType, IpProtocol};
use program::{Family, Fragments, Match, RangeSet, VlanMatch};

use super::matches::Spans;
use super::reader::Reader;

/// One finding: the key to point at, what is wrong, what to do.
type Finding = (&'static str, String, &'static str);

/// Reports every conflict of a match whose keys are each fine alone.
pub(super) fn check(reader: &mut Reader, matches: &Match, spans: &Spans) {
    let mut findings = Vec::new();
    tag_protocols(matches, &mut findings);
    vlans(matches, &mut findings);
    families(matches, spans, &mut findings);
    protocols(matches, &mut findings);
    tunnels(matches, spans, &mut findings);
    fragments(matches, &mut findings);
    for (key, message, hint) in findings {
        let span = spans.get(key).cloned().unwrap_or(0..0);
        reader.error_with(span, message, "cannot be met together with the rest", hint);
    }
}

/// Warns of what a packet may have, but hardly any has.
pub(super) fn warn(reader: &mut Reader, matches: &Match, spans: &Spans) {
    let mut warn = |key: &str, message: &str, label: &str, hint: &str| {
        let place = reader.place(spans.get(key).cloned().unwrap_or(0..0));
        reader.push(place.warning(message, label).hint(hint));
    };
    let reserved = RangeSet::single(RESERVED_VLAN);
    for (key, vlan) in [("vlan", &matches.vlan), ("inner_vlan", &matches.inner_vlan)] {
        if *vlan == Some(VlanMatch::Ids(reserved.clone())) {
            let message = "no frame should have VLAN 4095: the id is reserved";
            warn(
                key,
                message,
                "reserved by IEEE 802.1Q",
                "ids are 1 to 4094; 0 is a priority without a VLAN",
            );
        }
    }
    if let Some(types) = &matches.ethertype
        && let Some(tag) = TAG_PROTOCOLS.into_iter().find(|tag| *types == RangeSet::single(*tag))
    {
        let message = format!(
            "ethertype {tag:#06x} is that of a VLAN tag, and `ethertype` is what stands behind the tags"
        );
        warn(
            "ethertype",
            &message,
            "never there but behind two tags",
            "write vlan = \"any\", or `vlan_tpid`",
        );
    }
}

/// An id that means something to devices alone (IEEE 802.1Q, table 9-2).
const RESERVED_VLAN: u16 = 0x0fff;

/// Tag protocols that are read as such; any other is an ethertype.
const TAG_PROTOCOLS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

fn tag_protocols(matches: &Match, findings: &mut Vec<Finding>) {
    for (key, tpids) in [("vlan_tpid", &matches.vlan_tpid), ("inner_vlan_tpid", &matches.inner_vlan_tpid)] {
        let Some(tpids) = tpids.as_ref().filter(|tpids| !tpids.is_empty()) else { continue };
        if !TAG_PROTOCOLS.into_iter().any(|tpid| tpids.contains(tpid)) {
            let message = format!("`{key}` is of no VLAN tag that is recognised");
            findings.push((key, message, "write 0x8100, 0x88a8 or 0x9100; other types are `ethertype`"));
        }
    }
}

fn vlans(matches: &Match, findings: &mut Vec<Finding>) {
    let inner_tagged = matches!(matches.inner_vlan, Some(VlanMatch::Any | VlanMatch::Ids(_)))
        || matches.inner_vlan_tpid.is_some();
    if matches.vlan == Some(VlanMatch::None) {
        let key = match matches {
            Match { vlan_priority: Some(_), .. } => "vlan_priority",
            Match { vlan_tpid: Some(_), .. } => "vlan_tpid",
            Match { inner_vlan_tpid: Some(_), .. } => "inner_vlan_tpid",
            _ if inner_tagged => "inner_vlan",
            _ => return,
        };
        let message = format!("`{key}` speaks of a tag that `vlan = \"none\"` excludes");
        findings.push((key, message, "remove one of them"));
    } else if matches.inner_vlan == Some(VlanMatch::None) && matches.inner_vlan_tpid.is_some() {
        let message = "`inner_vlan_tpid` speaks of a tag that `inner_vlan = \"none\"` excludes".to_owned();
        findings.push(("inner_vlan_tpid", message, "remove one of them"));
    }
}

/// Which IP versions are still possible: IPv4, IPv6.
fn possible(matches: &Match) -> (bool, bool) {
    let implied = matches.implied_family();
    let mut v4 = implied != Some(Family::V6) && matches.family != Some(Family::V6);
    let mut v6 = implied != Some(Family::V4) && matches.family != Some(Family::V4);
    for addresses in [&matches.src, &matches.dst].into_iter().flatten() {
        // An empty set is a warning, not a conflict.
        if !addresses.is_empty() {
            v4 &= !addresses.v4.is_empty();
            v6 &= !addresses.v6.is_empty();
        }
    }
    (v4, v6)
}

/// Keys that only one IP version has.
const OF_IPV4: [&str; 2] = ["ip_options", "ip_flags"];
const OF_IPV6: [&str; 3] = ["flow_label", "hop_limit", "traffic_class"];

/// Writes down the IP version that a key means without saying it.
pub(super) fn imply_family(matches: &mut Match, spans: &Spans) {
    if matches.family.is_none() && OF_IPV6.iter().any(|key| spans.contains_key(key)) {
        matches.family = Some(Family::V6);
    }
}

/// A key of one version beside a key of the other.
fn versions(matches: &Match, spans: &Spans, findings: &mut Vec<Finding>) {
    let first = |keys: &[&'static str]| keys.iter().find(|key| spans.contains_key(*key)).copied();
    let (v4_key, v6_key) = (first(&OF_IPV4), first(&OF_IPV6));
    match (v4_key, v6_key, matches.family) {
        (Some("ip_options"), _, Some(Family::V6)) => {
            let message = "`ip_options` is of IPv4, `family` is ipv6".to_owned();
            findings.push(("ip_options", message, "IPv6 has extension headers: see `protocol`"));
        }
        (Some(key), _, Some(Family::V6)) => {
            findings.push((key, format!("`{key}` is of IPv4, `family` is ipv6"), "remove one of them"));
        }
        (_, Some(key), Some(Family::V4)) => {
            findings.push((key, format!("`{key}` is of IPv6, `family` is ipv4"), "remove one of them"));
        }
        (Some(v4_key), Some(v6_key), _) => {
            let message = format!("`{v4_key}` is of IPv4, `{v6_key}` of IPv6");
            findings.push((v6_key, message, "write a rule for each version"));
        }
        (_, Some(v6_key), None) => {
            for (key, addresses) in [("src", &matches.src), ("dst", &matches.dst)] {
                if addresses.as_ref().is_some_and(|set| set.v6.is_empty() && !set.v4.is_empty()) {
                    let message = format!("`{v6_key}` is of IPv6, and `{key}` has IPv4 only");
                    findings.push((key, message, "remove one of them"));
                }
            }
        }
        _ => {}
    }
}

fn families(matches: &Match, spans: &Spans, findings: &mut Vec<Finding>) {
    versions(matches, spans, findings);
    if !findings.is_empty() {
        return;
    }
    let (v4, v6) = possible(matches);
    if !v4 && !v6 {
        for (key, addresses) in [("src", &matches.src), ("dst", &matches.dst)] {
            let Some(addresses) = addresses else { continue };
            let v4_key = OF_IPV4.iter().find(|key| spans.contains_key(*key));
            let other = match (matches.family, v4_key) {
                (Some(Family::V4), _) if addresses.v4.is_empty() => {
                    "`family` is ipv4, and `KEY` has IPv6 only"
                }
                (Some(Family::V6), _) if addresses.v6.is_empty() => {
                    "`family` is ipv6, and `KEY` has IPv4 only"
                }
                (_, Some(v4_key)) if addresses.v4.is_empty() => {
                    let message = format!("`{v4_key}` is of IPv4, and `{key}` has IPv6 only");
                    return findings.push((key, message, "remove one of them"));
                }
                _ => continue,
            };
            return findings.push((key, other.replace("KEY", key), "remove one of them"));
        }
        let message = "`src` and `dst` have no IP version in common".to_owned();
        return findings.push(("dst", message, "write a rule for each version"));
    }
    let Some(types) = matches.ethertype.as_ref().filter(|_| matches.needs_ip()) else { return };
    let v4 = v4 && types.contains(EtherType::IPV4.0);
    let v6 = v6 && types.contains(EtherType::IPV6.0);
    if !v4 && !v6 && !types.is_empty() {
        let message = "`ethertype` excludes the IP packets that the other keys ask for".to_owned();
        findings.push(("ethertype", message, "remove it: IP keys imply the ethertype"));
    }
}

fn protocols(matches: &Match, findings: &mut Vec<Finding>) {
    let Some(protocols) = matches.protocol.as_ref().filter(|protocols| !protocols.is_empty()) else { return };
    let tcp = protocols.contains(IpProtocol::TCP.0);
    let udp = protocols.contains(IpProtocol::UDP.0);
    if matches.tcp_flags.is_some() && !tcp {
        let message = "`tcp_flags` needs TCP, and `protocol` excludes it".to_owned();
        findings.push(("tcp_flags", message, "write protocol = \"tcp\", or leave it out"));
    } else if !tcp && !udp {
        let key = match matches {
            Match { dst_port: Some(_), .. } => "dst_port",
            Match { src_port: Some(_), .. } => "src_port",
            _ => return,
        };
        let message = format!("`{key}` needs TCP or UDP, and `protocol` excludes both");
        findings.push((key, message, "write protocol = \"tcp\" or \"udp\", or leave it out for both"));
    }
}

/// What a tunnel's key needs of the outer packet.
struct Carrier {
    keys: &'static [&'static str],
    name: &'static str,
    protocol: IpProtocol,
    udp_port: Option<u16>,
}

const CARRIERS: [Carrier; 3] = [
    Carrier { keys: &["esp_spi", "esp_seq"], name: "ESP", protocol: IpProtocol::ESP, udp_port: None },
    Carrier {
        keys: &["vxlan_vni"],
        name: "VXLAN",
        protocol: IpProtocol::UDP,
        udp_port: Some(packet::VXLAN_UDP_PORT),
    },
    Carrier {
        keys: &["gre_protocol", "gre_key", "gre_flags"],
        name: "GRE",
        protocol: IpProtocol::GRE,
        udp_port: None,
    },
];

fn tunnels(matches: &Match, spans: &Spans, findings: &mut Vec<Finding>) {
    let mut named: Option<(&str, &str)> = None;
    for carrier in &CARRIERS {
        let Some(key) = carrier.keys.iter().find(|key| spans.contains_key(*key)).copied() else { continue };
        let name = carrier.name;
        if let Some((other_key, other)) = named {
            let message = format!("`{other_key}` is of {other}, `{key}` of {name}: a packet is not both");
            return findings.push((key, message, "write a rule for each"));
        }
        named = Some((key, name));
        if matches.protocol.as_ref().is_some_and(|set| !set.is_empty() && !set.contains(carrier.protocol.0)) {
            let message = format!("`{key}` is of {name}, and `protocol` excludes it");
            return findings.push(("protocol", message, "remove it: the other key implies it"));
        }
        let ports = matches.dst_port.as_ref().filter(|ports| !ports.is_empty());
        match carrier.udp_port {
            Some(port) if ports.is_some_and(|ports| !ports.contains(port)) => {
                let message = format!("`{key}` is of {name}, and `dst_port` excludes its UDP port {port}");
                return findings.push(("dst_port", message, "remove it: the other key implies it"));
            }
            None if matches.needs_transport() => {
                let message = format!("`{key}` is of {name}, which has neither ports nor TCP flags");
                return findings.push((key, message, "those of the packet inside go into `inner`"));
            }
            _ => {}
        }
        if matches.ethertype.as_ref().is_some_and(|types| {
            !types.is_empty() && !types.contains(EtherType::IPV4.0) && !types.contains(EtherType::IPV6.0)
        }) {
            let message = format!("`{key}` is of {name}, and `ethertype` excludes IP");
            return findings.push(("ethertype", message, "remove it: the other key implies it"));
        }
        if name == "ESP" && matches.inner.is_some() {
            let message = "what ESP carries is encrypted".to_owned();
            return findings.push(("inner", message, "match the SPI alone"));
        }
        if name != "GRE" && matches.mpls.is_some() {
            let message = format!("`mpls` is not of {name}");
            return findings.push((
                "mpls",
                message,
                "labels behind an inner Ethernet header go into `inner`",
            ));
        }
    }
    if matches.needs_tunnel() && matches.fragment == Some(Fragments::LATER) {
        let message = "later fragments have no tunnel header".to_owned();
        findings.push(("fragment", message, "match them by address and protocol, in a rule of their own"));
    }
}

fn fragments(matches: &Match, findings: &mut Vec<Finding>) {
    let Some(fragment) = matches.fragment else { return };
    if fragment == Fragments::LATER && matches.needs_transport() {
        let message = "later fragments have neither ports nor TCP flags".to_owned();
        let hint = "match them by address and protocol, in a rule of their own";
        return findings.push(("fragment", message, hint));
    }
    let only_v6 = possible(matches) == (false, true);
    if !only_v6 || fragment.contains(Fragments::WHOLE) {
        return;
    }
    // The first next header of an IPv6 fragment is the fragment header; what is behind it is not read.
    let excludes_header = matches.protocol.as_ref().is_some_and(|set| !set.contains(IpProtocol::FRAGMENT.0));
    if excludes_header || matches.needs_transport() {
        let message = "IPv6 fragments have no protocol but `fragment` (44), and no ports".to_owned();
        findings.push(("fragment", message, "match them by address alone"));
    }
}

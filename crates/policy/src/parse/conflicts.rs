//! Keys of one match that no packet can meet together. What is refused here is a slip of the pen; what is
//! left and still matches nothing (an empty set, say) gets a warning from `check`.

use packet::{EtherType, IpProtocol};

use crate::policy::{Family, Fragments, Match, VlanMatch};

use super::reader::Reader;
use super::rules::Spans;

/// One finding: the key to point at, what is wrong, what to do.
type Finding = (&'static str, String, &'static str);

/// Reports every conflict of a match whose keys are each fine alone.
pub(super) fn check(reader: &mut Reader, matches: &Match, spans: &Spans) {
    let mut findings = Vec::new();
    tag_protocols(matches, &mut findings);
    vlans(matches, &mut findings);
    families(matches, &mut findings);
    protocols(matches, &mut findings);
    fragments(matches, &mut findings);
    for (key, message, hint) in findings {
        let span = spans.get(key).cloned().unwrap_or(0..0);
        reader.error_with(span, message, "cannot be met together with the rest", hint);
    }
}

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
    let mut v4 = matches.family != Some(Family::V6);
    let mut v6 = matches.family != Some(Family::V4) && matches.ip_options.is_none();
    for addresses in [&matches.src, &matches.dst].into_iter().flatten() {
        // An empty set is a warning, not a conflict.
        if !addresses.is_empty() {
            v4 &= !addresses.v4.is_empty();
            v6 &= !addresses.v6.is_empty();
        }
    }
    (v4, v6)
}

fn families(matches: &Match, findings: &mut Vec<Finding>) {
    if matches.ip_options.is_some() && matches.family == Some(Family::V6) {
        let message = "`ip_options` is of IPv4, `family` is ipv6".to_owned();
        return findings.push(("ip_options", message, "IPv6 has extension headers: see `protocol`"));
    }
    let (v4, v6) = possible(matches);
    if !v4 && !v6 {
        for (key, addresses) in [("src", &matches.src), ("dst", &matches.dst)] {
            let Some(addresses) = addresses else { continue };
            let other = match (matches.family, matches.ip_options) {
                (Some(Family::V4), _) if addresses.v4.is_empty() => {
                    "`family` is ipv4, and `KEY` has IPv6 only"
                }
                (Some(Family::V6), _) if addresses.v6.is_empty() => {
                    "`family` is ipv6, and `KEY` has IPv4 only"
                }
                (_, Some(_)) if addresses.v4.is_empty() => "`ip_options` is of IPv4, and `KEY` has IPv6 only",
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

//! A packet in one short line: what `explain` shows of each, and `check` and `diff` of those that show what
//! they claim. Only what is unusual is told beside addresses, ports and tunnels.

use std::fmt::Write as _;
use std::net::SocketAddr;

use packet::{DeepKey, EtherType, FlowKey, IpProtocol, Layers, MacAddr, TCP_FLAGS, TunnelLayers};
use policy::Witness;

/// What most packets have.
const USUAL_TTL: u8 = 64;
const USUAL_TCP_FLAGS: u8 = 0x10;
/// What made-up packets have.
const USUAL_MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];

/// `10.0.0.1:1024 > 192.0.2.53:53 udp, vlan 42`
pub(crate) fn describe(key: &DeepKey) -> String {
    let mut out = packet(&key.outer, true);
    let tunnel = &key.tunnel;
    let has = |layer| tunnel.layers.contains(layer);
    // Strings take text.
    if has(TunnelLayers::ESP) {
        let _ = write!(out, ", spi {:#x} sequence {}", tunnel.esp_spi, tunnel.esp_seq);
    }
    if has(TunnelLayers::VXLAN) {
        let _ = write!(out, ", vxlan {}", tunnel.vxlan_vni);
    }
    if has(TunnelLayers::GRE) {
        let _ = write!(out, ", gre {}", EtherType(tunnel.gre_protocol));
    }
    if has(TunnelLayers::GRE_KEY) {
        let _ = write!(out, " key {}", tunnel.gre_key);
    }
    if has(TunnelLayers::MPLS) {
        let depth = usize::from(tunnel.mpls_depth).min(tunnel.mpls.len());
        let labels: Vec<String> =
            tunnel.mpls[..depth].iter().map(|entry| (entry >> 12).to_string()).collect();
        let _ = write!(out, ", mpls {}", labels.join(" "));
    }
    if has(TunnelLayers::INNER) {
        let _ = write!(out, ", inside {}", packet(&tunnel.inner, has(TunnelLayers::INNER_ETHERNET)));
    }
    out
}

/// The same of a made-up packet, whose addresses on the link are told where they matter.
pub(crate) fn witness(witness: &Witness) -> String {
    let key = witness.key();
    let mut out = describe(&key);
    let outer = &key.outer;
    let is_ip = outer.layers.intersects(Layers::IPV4 | Layers::IPV6);
    let is_usual = USUAL_MACS.contains(&outer.src_mac) && USUAL_MACS.contains(&outer.dst_mac);
    if is_ip && !is_usual {
        let _ = write!(out, ", {} > {}", outer.src_mac, outer.dst_mac);
    }
    out
}

fn packet(key: &FlowKey, has_ethernet: bool) -> String {
    let has = |layers| key.layers.intersects(layers);
    let mut out = match (key.src_addr(), key.dst_addr()) {
        (Some(src), Some(dst)) if has(Layers::TCP | Layers::UDP) => {
            let src = SocketAddr::new(src, key.src_port);
            let dst = SocketAddr::new(dst, key.dst_port);
            format!("{src} > {dst} {}", IpProtocol(key.protocol))
        }
        (Some(src), Some(dst)) => format!("{src} > {dst} {}", IpProtocol(key.protocol)),
        _ if has_ethernet => {
            format!("{} > {} ethertype {}", key.src_mac, key.dst_mac, EtherType(key.ether_type))
        }
        _ => "no header that is known".to_owned(),
    };
    if has(Layers::TCP) && key.tcp_flags != USUAL_TCP_FLAGS {
        let names = TCP_FLAGS.iter().filter(|(_, bit)| key.tcp_flags & bit != 0).map(|(name, _)| *name);
        let names: Vec<&str> = names.collect();
        let _ = write!(out, " [{}]", names.join("+"));
    }
    if has(Layers::IPV4 | Layers::IPV6) {
        of_ip(key, &mut out);
    }
    if let Some(vlan) = key.vlan_id() {
        let _ = write!(out, ", vlan {vlan}");
        if key.vlan_tci >> 13 != 0 {
            let _ = write!(out, " priority {}", key.vlan_tci >> 13);
        }
    }
    if has(Layers::INNER_VLAN) {
        let _ = write!(out, ", inner vlan {}", key.inner_vlan_tci & 0x0fff);
    }
    out
}

fn of_ip(key: &FlowKey, out: &mut String) {
    let has = |layer| key.layers.contains(layer);
    if has(Layers::LATER_FRAGMENT) {
        out.push_str(", a later fragment");
    } else if has(Layers::FRAGMENT) {
        out.push_str(", a first fragment");
    }
    if key.tos != 0 {
        let _ = write!(out, ", tos {:#04x}", key.tos);
    }
    if key.ttl != USUAL_TTL {
        let _ = write!(out, ", ttl {}", key.ttl);
    }
    if key.flow_label != 0 {
        let _ = write!(out, ", flow label {:#x}", key.flow_label);
    }
    if key.ip_flags & 2 != 0 {
        out.push_str(", df");
    }
    if has(Layers::IP_OPTIONS) {
        out.push_str(", options");
    }
}

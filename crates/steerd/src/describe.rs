//! A packet in one short line, for `explain` and for the examples of `check` and `diff`: addresses, ports,
//! tunnels, and other fields if their values are unusual. The fields are those of [`packet::FIELDS`], named
//! as in the language.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;

use packet::build::FrameBuilder;
use packet::{DeepKey, EtherType, Field, FlowKey, Form, IpProtocol, Layers, MacAddr, TunnelLayers};
use policy::Witness;

/// The addresses of witness packets.
const USUAL_MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
/// The flags of a segment within a connection.
const USUAL_TCP_FLAGS: u8 = 0x10;

/// A packet with usual values in all fields; such values are not shown.
static USUAL: LazyLock<FlowKey> = LazyLock::new(|| {
    let unspecified = Ipv4Addr::UNSPECIFIED;
    let builder = FrameBuilder::new().vlan(EtherType::VLAN, 0).vlan(EtherType::VLAN, 0);
    FlowKey::of(&builder.ipv4(unspecified, unspecified).tcp(0, 0, USUAL_TCP_FLAGS).build())
});

/// `10.0.0.1:1024 > 192.0.2.53:53 udp, vlan 42`
pub(crate) fn describe(key: &DeepKey) -> String {
    let mut out = packet(&key.outer, true);
    let tunnel = &key.tunnel;
    for (field, value) in tunnel.fields() {
        push(&mut out, field, value);
    }
    let depth = usize::from(tunnel.mpls_depth).min(tunnel.mpls.len());
    if depth > 0 {
        let labels: Vec<String> =
            tunnel.mpls[..depth].iter().map(|entry| (entry >> 12).to_string()).collect();
        let _ = write!(out, ", mpls {}", labels.join("+"));
    }
    if tunnel.layers.contains(TunnelLayers::INNER) {
        let has_ethernet = tunnel.layers.contains(TunnelLayers::INNER_ETHERNET);
        let _ = write!(out, ", inside {}", packet(&tunnel.inner, has_ethernet));
    }
    out
}

/// A witness packet; its MAC addresses are shown if they matter.
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
        _ => "no known header".to_owned(),
    };
    if has(Layers::LATER_FRAGMENT) {
        out.push_str(", a later fragment");
    } else if has(Layers::FRAGMENT) {
        out.push_str(", a first fragment");
    }
    for (field, value) in key.fields(has_ethernet) {
        let is_usual = match field.row().form {
            // Shown at the beginning of the line.
            Form::Mac | Form::Address | Form::Protocol | Form::Port => true,
            Form::EtherType if field.row().header == packet::Header::Ethernet => true,
            Form::VlanId => false,
            _ => value == field.in_packet(&USUAL),
        };
        if !is_usual {
            push(&mut out, field, value);
        }
    }
    if has(Layers::IP_OPTIONS) {
        out.push_str(", ip_options");
    }
    out
}

/// `, tcp_flags syn+ack`
fn push(out: &mut String, field: Field, value: u128) {
    let text = match field.row().form {
        Form::Flags(known) => {
            let names = known.iter().filter(|(_, bit)| value & u128::from(*bit) != 0).map(|(name, _)| *name);
            names.collect::<Vec<_>>().join("+")
        }
        _ => field.text(value),
    };
    let text = if text.is_empty() { "none" } else { &text };
    // Writing to a string does not fail.
    let _ = write!(out, ", {} {text}", field.name());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_values_are_shown_by_the_names_of_the_language() {
        let builder = || FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let text = |builder: FrameBuilder| describe(&DeepKey::of(&builder.build()));
        assert_eq!(text(builder().tcp(1, 80, USUAL_TCP_FLAGS)), "10.0.0.1:1 > 10.0.0.2:80 tcp");
        let unusual = builder().vlan(EtherType::VLAN, 5 << 13 | 42).ttl(1).ip_flags(2).tcp(1, 80, 0x12);
        let expected =
            "10.0.0.1:1 > 10.0.0.2:80 tcp, vlan 42, vlan_priority 5, ttl 1, ip_flags df, tcp_flags syn+ack";
        assert_eq!(text(unusual), expected);
        let inner = builder().udp(1, 53).build();
        let tunnel = builder().vxlan(42, &inner);
        let expected =
            "10.0.0.1:49152 > 10.0.0.2:4789 udp, vxlan_vni 42, inside 10.0.0.1:1 > 10.0.0.2:53 udp";
        assert_eq!(text(tunnel), expected);
    }
}

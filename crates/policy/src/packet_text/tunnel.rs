//! The tunnel of a packet that is given by its fields: "vxlan_vni=42,inner.dst=10.0.0.1". The headers that
//! carry a tunnel are implied as in policies; a packet has at most one tunnel.

use packet::{
    BOTTOM_OF_STACK, DeepKey, EtherType, ExtendedKey, FlowKey, GRE_FLAGS, GRE_HAS_KEY, Header, Layers,
    MAX_MPLS_LABELS, MacAddr, TunnelKey, TunnelLayers,
};

use super::{Given, ipv6_names, names_of as names_of_packet, packet_key};

/// The prefix of the inner packet's fields.
pub(super) const INNER: &str = "inner.";
/// The label stack, which is not a field of the table.
pub(super) const LABELS: &str = "mpls";
/// The default protocol in GRE: for experiments (IEEE 802).
const EXPERIMENTAL: EtherType = EtherType(0x88b5);
/// Transparent Ethernet bridging.
const ETHERNET_IN_GRE: EtherType = EtherType(0x6558);
const DEFAULT_TTL: u32 = 64;
const MAX_LABEL: u32 = 0xf_ffff;

/// The names of the fields of these tunnel headers.
fn names_of(is_wanted: impl Fn(Header) -> bool) -> Vec<&'static str> {
    let rows = packet::FIELDS.iter().filter(|row| row.header.is_tunnel() && is_wanted(row.header));
    rows.map(|row| row.name).collect()
}

/// All names of a tunnel's fields.
pub(super) fn names() -> Vec<&'static str> {
    let mut names = names_of(|_| true);
    names.push(LABELS);
    names
}

pub(super) fn is_field(name: &str) -> bool {
    names().contains(&name)
}

/// The tunnel that the fields belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Esp,
    Vxlan,
    Gre,
    /// After the Ethernet header, or after UDP.
    Mpls {
        in_udp: bool,
    },
    IpInIp {
        v6: bool,
    },
}

/// The key of a packet and its tunnel.
pub(super) fn deep_key(given: &Given<'_>) -> Result<DeepKey, String> {
    let inside: Vec<(&str, &str)> = given
        .0
        .iter()
        .filter_map(|(name, value)| name.strip_prefix(INNER).map(|name| (name, *value)))
        .collect();
    let inside = Given(inside);
    let outer = given.0.iter().filter(|(name, _)| !name.starts_with(INNER) && !is_field(name));
    let mut outer = Given(outer.copied().collect());
    let Some(kind) = kind(given, &inside)? else {
        return Ok(DeepKey { outer: packet_key(&outer)?, tunnel: TunnelKey::default() });
    };
    imply(&mut outer, kind)?;
    let outer = packet_key(&outer)?;
    if outer.layers.contains(Layers::LATER_FRAGMENT) {
        return Err("fragment: a later fragment shows no tunnel".into());
    }
    if outer.has_extension_headers() {
        return Err("fragment: a tunnel behind an IPv6 extension header is not read".into());
    }
    let inner = if inside.0.is_empty() { None } else { Some(packet_key(&inside)?) };
    let mut tunnel = headers(given, kind, inner.as_ref(), &inside)?;
    if let Some(inner) = inner {
        put_inside(&mut tunnel, kind, inner, &inside)?;
    }
    Ok(DeepKey { outer, tunnel })
}

fn kind(given: &Given<'_>, inside: &Given<'_>) -> Result<Option<Kind>, String> {
    let esp = given.any(&names_of(|header| header == Header::Esp));
    let vxlan = given.any(&names_of(|header| header == Header::Vxlan));
    let gre = given.any(&names_of(|header| matches!(header, Header::Gre | Header::GreKey)));
    // GRE carries labels, too.
    let mpls = given.any(&[LABELS]).filter(|_| gre.is_none());
    let named: Vec<&str> = [esp, vxlan, gre, mpls].into_iter().flatten().collect();
    if let [first, second, ..] = named[..] {
        return Err(format!("{second}: a packet has one tunnel, and {first} is a field of another"));
    }
    Ok(match named.first() {
        Some(_) if esp.is_some() => Some(Kind::Esp),
        Some(_) if vxlan.is_some() => Some(Kind::Vxlan),
        Some(_) if gre.is_some() => Some(Kind::Gre),
        Some(_) => {
            let over_ip = ["src", "dst", "protocol", "src_port", "dst_port", "family"];
            Some(Kind::Mpls { in_udp: given.any(&over_ip).is_some() })
        }
        None if inside.0.is_empty() => None,
        None => {
            let says_v6 = |(name, value): &(&str, &str)| match *name {
                "src" | "dst" => value.contains(':'),
                "family" => *value == "ipv6",
                name => ipv6_names().contains(&name),
            };
            Some(Kind::IpInIp { v6: inside.0.iter().any(says_v6) })
        }
    })
}

/// Adds the outer headers that the tunnel implies; other values are an error.
fn imply(outer: &mut Given<'_>, kind: Kind) -> Result<(), String> {
    let implied: &[(&str, &str)] = match kind {
        Kind::Esp => &[("protocol", "50")],
        Kind::Vxlan => &[("protocol", "17"), ("dst_port", "4789")],
        Kind::Gre => &[("protocol", "47")],
        Kind::Mpls { in_udp: true } => &[("protocol", "17"), ("dst_port", "6635")],
        Kind::Mpls { in_udp: false } => &[("ethertype", "0x8847")],
        Kind::IpInIp { v6: false } => &[("protocol", "4")],
        Kind::IpInIp { v6: true } => &[("protocol", "41")],
    };
    for (name, value) in implied {
        match outer.text(name) {
            None => outer.0.push((name, value)),
            Some(text) => {
                let number = |text: &str| text.parse::<packet::IpProtocol>().ok();
                let is_same = text == *value
                    || (*name == "protocol" && number(text) == number(value))
                    || (*name == "ethertype" && outer.ether_type(name)? == Some(EtherType::MPLS));
                if !is_same {
                    return Err(format!("{name}: the tunnel needs {value}, not \"{text}\""));
                }
            }
        }
    }
    Ok(())
}

/// The tunnel's own headers.
fn headers(
    given: &Given<'_>,
    kind: Kind,
    inner: Option<&FlowKey>,
    inside: &Given<'_>,
) -> Result<TunnelKey, String> {
    let mut key = TunnelKey::default();
    match kind {
        Kind::Esp => {
            key.layers = TunnelLayers::ESP;
            key.esp_spi = given.number("esp_spi", u32::MAX)?.unwrap_or(0);
            key.esp_seq = given.number("esp_seq", u32::MAX)?.unwrap_or(0);
        }
        Kind::Vxlan => {
            key.layers = TunnelLayers::VXLAN;
            key.vxlan_vni = given.number("vxlan_vni", 0xff_ffff)?.unwrap_or(0);
        }
        Kind::Gre => gre(given, inner, inside, &mut key)?,
        Kind::Mpls { .. } => {}
        Kind::IpInIp { .. } => key.layers = TunnelLayers::IP_IN_IP,
    }
    if let Some(text) = given.text("mpls") {
        key.layers |= TunnelLayers::MPLS;
        labels(text, &mut key)?;
    }
    Ok(key)
}

fn gre(
    given: &Given<'_>,
    inner: Option<&FlowKey>,
    inside: &Given<'_>,
    key: &mut TunnelKey,
) -> Result<(), String> {
    let has_ethernet = inside.any(&["src_mac", "dst_mac", "vlan", "ethertype"]).is_some();
    let carried = match inner {
        _ if given.text("mpls").is_some() => EtherType::MPLS,
        Some(_) if has_ethernet => ETHERNET_IN_GRE,
        Some(inner) => EtherType(inner.ether_type),
        None => EXPERIMENTAL,
    };
    let said = given.ether_type("gre_protocol")?;
    key.layers = TunnelLayers::GRE;
    key.gre_protocol = said.unwrap_or(carried).0;
    let mut flags = given.flags("gre_flags", &GRE_FLAGS)?.unwrap_or(0);
    if let Some(number) = given.number("gre_key", u32::MAX)? {
        flags |= GRE_HAS_KEY;
        key.gre_key = number;
    }
    if flags & GRE_HAS_KEY != 0 {
        key.layers |= TunnelLayers::GRE_KEY;
    }
    key.gre_flags = u16::from(flags) << 8;
    Ok(())
}

/// `100+200`: from the top.
fn labels(text: &str, key: &mut TunnelKey) -> Result<(), String> {
    let expected =
        || format!("mpls: \"{text}\" is not one to {MAX_MPLS_LABELS} labels up to {MAX_LABEL} joined by +");
    let labels: Option<Vec<u32>> =
        text.split('+').map(|label| label.parse().ok().filter(|label| *label <= MAX_LABEL)).collect();
    let labels = labels.filter(|labels| labels.len() <= MAX_MPLS_LABELS).ok_or_else(expected)?;
    for (entry, label) in key.mpls.iter_mut().zip(&labels) {
        *entry = label << 12 | DEFAULT_TTL;
    }
    if let Some(last) = key.mpls.get_mut(labels.len().saturating_sub(1)) {
        *last |= BOTTOM_OF_STACK;
    }
    key.mpls_depth = u8::try_from(labels.len()).unwrap_or(u8::MAX);
    Ok(())
}

/// The packet inside, with an Ethernet header of its own where the tunnel carries one.
fn put_inside(tunnel: &mut TunnelKey, kind: Kind, inner: FlowKey, inside: &Given<'_>) -> Result<(), String> {
    if kind == Kind::Esp {
        return Err("inner: what ESP carries is encrypted".into());
    }
    let has_ethernet =
        kind == Kind::Vxlan || (kind == Kind::Gre && EtherType(tunnel.gre_protocol) == ETHERNET_IN_GRE);
    if let Some(name) = inside.any(&names_of_packet(Header::is_extended)) {
        return Err(format!("inner.{name}: extension headers of the packet inside are not read"));
    }
    tunnel.layers |= TunnelLayers::INNER;
    tunnel.inner = inner;
    tunnel.inner.extended = ExtendedKey::default();
    tunnel.inner.layers -= Layers::EXTENDED_TCP | Layers::EXTENDED_UDP | Layers::EXTENDED_ICMPV6;
    if has_ethernet {
        tunnel.layers |= TunnelLayers::INNER_ETHERNET;
        return Ok(());
    }
    if let Some(name) = inside.any(&["src_mac", "dst_mac", "vlan", "ethertype"]) {
        return Err(format!("inner.{name}: the packet inside has no Ethernet header"));
    }
    let expected = if inner.layers.contains(Layers::IPV6) { EtherType::IPV6 } else { EtherType::IPV4 };
    let said = EtherType(tunnel.gre_protocol);
    if kind == Kind::Gre && tunnel.mpls_depth == 0 && said != expected {
        return Err(format!("gre_protocol: {said} is not what the packet inside is"));
    }
    tunnel.inner.src_mac = MacAddr::default();
    tunnel.inner.dst_mac = MacAddr::default();
    tunnel.inner.ether_type = 0;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::key_of_text;
    use super::*;
    use packet::build::{FrameBuilder, mpls_label};

    fn ends(builder: FrameBuilder, net: u8) -> FrameBuilder {
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        let address = |last| IpAddr::from([10, net, 0, last]);
        builder.ethernet(mac(2), mac(1)).ip(address(1), address(2))
    }

    fn inside() -> FrameBuilder {
        ends(FrameBuilder::new(), 7).tcp(1, 443, 0x10)
    }

    const INSIDE: &str =
        "inner.src=10.7.0.1,inner.dst=10.7.0.2,inner.protocol=tcp,inner.src_port=1,inner.dst_port=443";
    const OUTSIDE: &str = "src=10.0.0.1,dst=10.0.0.2";

    #[test]
    fn fields_make_the_key_that_parsing_the_frame_makes() {
        let outer = || ends(FrameBuilder::new(), 0);
        let frames = [
            (outer().udp(0, 4789).vxlan(42, &inside().build()), "vxlan_vni=42,src_port=49152"),
            (outer().gre(EtherType::IPV4, Some(7), &inside().build_packet()), "gre_key=7"),
            (
                outer().gre(ETHERNET_IN_GRE, None, &inside().build()),
                "gre_protocol=0x6558,inner.dst_mac=02:00:00:00:00:02",
            ),
            (outer().ip_in_ip(&inside().build_packet()), "ttl=64"),
        ];
        for (frame, fields) in frames {
            let text = format!("{OUTSIDE},{fields},{INSIDE}");
            assert_eq!(key_of_text(&text), Ok(DeepKey::of(&frame.build())), "{text}");
        }
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        let labels = [mpls_label(100, 0) | 64, mpls_label(200, 0) | 64];
        let frame = FrameBuilder::new().ethernet(mac(2), mac(1)).mpls(&labels, &inside().build_packet());
        let key = DeepKey::of(&frame.build());
        let made = key_of_text(&format!("mpls=100+200,{INSIDE}")).expect("key");
        let numbers = |key: &DeepKey| key.tunnel.mpls.map(|entry| (entry >> 12, entry & BOTTOM_OF_STACK));
        assert_eq!((made.outer, made.tunnel.inner), (key.outer, key.tunnel.inner));
        assert_eq!((made.tunnel.layers, numbers(&made)), (key.tunnel.layers, numbers(&key)));
        let frame = outer().esp(0x1000, 5, &[0; 16]);
        let text = format!("{OUTSIDE},esp_spi=0x1000,esp_seq=5");
        assert_eq!(key_of_text(&text), Ok(DeepKey::of(&frame.build())));
    }
}

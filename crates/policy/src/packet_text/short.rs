//! The short notation of a packet, for tables and examples: addresses, ports and protocol, then other fields
//! if their values are unusual: `10.0.0.1:1024 > 192.0.2.53:53 udp, vlan 42`. The packet inside a tunnel
//! follows behind `inside`.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

use packet::build::FrameBuilder;
use packet::{
    DeepKey, EtherType, Field, FlowKey, Form, Header, IpProtocol, Layers, MacAddr, PacketFlow, TunnelLayers,
};

use super::tunnel::{INNER, LABELS};
use super::{FRAGMENT, NO_FLAGS, OPTIONS, key_of_text};

/// The words between a packet and the one inside it.
const INSIDE: &str = ", inside ";
/// The segment within a connection that a packet given by its fields is.
pub(super) const USUAL_TCP_FLAGS: u8 = 0x10;

/// A packet with usual values in all fields; such values are not shown.
static USUAL: LazyLock<FlowKey> = LazyLock::new(|| {
    let unspecified = Ipv4Addr::UNSPECIFIED;
    let builder = FrameBuilder::new().vlan(EtherType::VLAN, 0).vlan(EtherType::VLAN, 0);
    FlowKey::of(&builder.ipv4(unspecified, unspecified).tcp(0, 0, USUAL_TCP_FLAGS).build())
});

/// The end of a packet of which this notation leaves something out. A packet that ends in it is not read.
const MORE: &str = ", ...";

/// The echo requests that ICMP and ICMPv6 messages given by their fields are: the last behind an extension
/// header.
static ECHO_REQUESTS: LazyLock<[FlowKey; 3]> = LazyLock::new(|| {
    let [v4, v6] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let ip = |address: IpAddr| FrameBuilder::new().ip(address, address);
    [ip(v4), ip(v6), ip(v6).extension(IpProtocol::HOP_BY_HOP)]
        .map(|packet| FlowKey::of(&packet.icmp_echo(0, 0).build()))
});

/// The packet that has usual values in the fields of a header.
fn usual(header: Header) -> &'static FlowKey {
    let [v4, v6, extended] = &*ECHO_REQUESTS;
    match header {
        Header::Icmp => v4,
        Header::Icmpv6 => v6,
        Header::ExtendedIcmpv6 => extended,
        _ => &USUAL,
    }
}

/// A packet in the short notation, which [`key_of_text`] reads. MAC addresses are left out where there are IP
/// addresses. A packet of which more is left out, as of one that is cut off within a header, ends in `...`.
///
/// ```
/// let key = policy::key_of_text("src=10.0.0.1,dst=192.0.2.53,protocol=udp,dst_port=53,vlan=42")?;
/// assert_eq!(policy::short_packet(&key), "10.0.0.1:0 > 192.0.2.53:53 udp, vlan 42");
/// # Ok::<(), String>(())
/// ```
pub fn short_packet(key: &DeepKey) -> String {
    marked(written(key, false), key)
}

/// The short notation with the MAC addresses, if they are not those that a packet given by its fields has.
pub(crate) fn short_packet_with_macs(key: &DeepKey) -> String {
    marked(written(key, true), key)
}

/// The text with its end, if it leaves out more of the packet than MAC addresses.
fn marked(text: String, key: &DeepKey) -> String {
    let is_same = key_of_text(&text).is_ok_and(|read| without_macs(read) == without_macs(*key));
    if is_same { text } else { text + MORE }
}

/// The key without the MAC addresses of IP packets.
fn without_macs(mut key: DeepKey) -> DeepKey {
    for packet in [&mut key.outer, &mut key.tunnel.inner] {
        if packet.src_addr().is_some() {
            (packet.src_mac, packet.dst_mac) = (MacAddr::default(), MacAddr::default());
        }
    }
    key
}

fn written(key: &DeepKey, has_macs: bool) -> String {
    let mut out = packet(&key.outer, true, |_| true);
    for field in [Field::SrcMac, Field::DstMac] {
        let value = field.in_packet(&key.outer);
        if has_macs && key.outer.src_addr().is_some() && value != field.in_packet(&USUAL) {
            push(&mut out, field, value);
        }
    }
    let tunnel = &key.tunnel;
    for (field, value) in tunnel.fields() {
        push(&mut out, field, value);
    }
    if let Some(labels) = tunnel.labels() {
        let _ = write!(out, ", {LABELS} {labels}");
    }
    if tunnel.layers.contains(TunnelLayers::INNER) {
        let has_ethernet = tunnel.layers.contains(TunnelLayers::INNER_ETHERNET);
        out.push_str(INSIDE);
        out.push_str(&packet(&tunnel.inner, has_ethernet, Header::is_inside_tunnels));
    }
    out
}

fn packet(key: &FlowKey, has_ethernet: bool, may_have: fn(Header) -> bool) -> String {
    let has = |layers| key.layers.intersects(layers);
    let mut out = match PacketFlow::of(key) {
        PacketFlow::Ethernet { .. } if !has_ethernet => "no known header".to_owned(),
        flow => flow.to_string(),
    };
    if has(Layers::LATER_FRAGMENT) {
        let _ = write!(out, ", {FRAGMENT} later");
    } else if has(Layers::FRAGMENT) {
        let _ = write!(out, ", {FRAGMENT} first");
    }
    for (field, value) in key.fields(has_ethernet) {
        let is_shown = match field.row().form {
            // At the beginning of the line.
            Form::Address | Form::Protocol | Form::Port => field.row().header.is_extended(),
            Form::EtherType if field.row().header == Header::Ethernet => false,
            Form::Mac => false,
            Form::VlanId => true,
            _ => value != field.in_packet(usual(field.row().header)),
        };
        if is_shown && may_have(field.row().header) {
            push(&mut out, field, value);
        }
    }
    if has(Layers::IP_OPTIONS) {
        let _ = write!(out, ", {OPTIONS} true");
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
    let text = if text.is_empty() { NO_FLAGS } else { &text };
    // Writing to a string does not fail.
    let _ = write!(out, ", {} {text}", field.name());
}

/// Whether it is the short notation of a packet rather than a list of fields.
pub(super) fn is_short(text: &str) -> bool {
    text.contains('>')
}

/// The fields of a packet in the short notation.
pub(super) fn fields(text: &str) -> Result<String, String> {
    if text.trim_end().ends_with(MORE.trim_start_matches(", ")) {
        return Err(
            "\"...\" stands for what the text leaves out of the packet (hint: give the frame, by --hex)"
                .into(),
        );
    }
    let mut fields = Vec::new();
    for (depth, packet) in text.split(INSIDE).enumerate() {
        let prefix = *["", INNER].get(depth).ok_or("a packet has one tunnel, and \"inside\" once")?;
        let mut parts = packet.split(',').map(str::trim).filter(|part| !part.is_empty());
        let flow = parts.next().unwrap_or_default();
        let mut add = |name: &str, value: &str| fields.push(format!("{prefix}{name}={value}"));
        add_flow(flow, &mut add).ok_or_else(|| {
            format!(
                "\"{flow}\" is not of the form \"10.0.0.1:1024 > 10.0.0.2:53 udp\", \"10.0.0.1 > 10.0.0.2 icmp\" \
                 or \"02:00:00:00:00:01 > 02:00:00:00:00:02 ethertype arp\""
            )
        })?;
        for part in parts {
            let (name, value) = part.split_once(' ').ok_or_else(|| {
                format!("\"{part}\" is not of the form \"field value\" (behind \"{flow}\")")
            })?;
            add(name, value);
        }
    }
    Ok(fields.join(","))
}

/// Adds the fields of the beginning of a packet.
fn add_flow(flow: &str, add: &mut impl FnMut(&str, &str)) -> Option<()> {
    let words: Vec<&str> = flow.split_whitespace().collect();
    let (src, dst, ports) = match words[..] {
        [src, ">", dst, protocol] => {
            add("protocol", protocol);
            (src, dst, Field::ports_of(protocol.parse().unwrap_or_default()))
        }
        [src, ">", dst, "ethertype", ether_type] => {
            let _: [MacAddr; 2] = [src.parse().ok()?, dst.parse().ok()?];
            add("src_mac", src);
            add("dst_mac", dst);
            add("ethertype", ether_type);
            return Some(());
        }
        _ => return None,
    };
    for (text, address, port) in [(src, "src", ports[0]), (dst, "dst", ports[1])] {
        if let Ok(end) = text.parse::<SocketAddr>() {
            add(address, &end.ip().to_string());
            add(port.name(), &end.port().to_string());
        } else {
            add(address, &text.parse::<IpAddr>().ok()?.to_string());
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use packet::build::mpls_label;

    use super::*;

    #[test]
    fn unusual_values_are_shown_by_the_names_of_the_language() {
        let builder = || FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let text = |builder: FrameBuilder| short_packet(&DeepKey::of(&builder.build()));
        assert_eq!(text(builder().tcp(1, 80, USUAL_TCP_FLAGS)), "10.0.0.1:1 > 10.0.0.2:80 tcp");
        let unusual = builder().vlan(EtherType::VLAN, 5 << 13 | 42).ttl(1).ip_flags(2).tcp(1, 80, 0x12);
        let expected =
            "10.0.0.1:1 > 10.0.0.2:80 tcp, vlan 42, vlan_priority 5, ttl 1, ip_flags df, tcp_flags syn+ack";
        assert_eq!(text(unusual), expected);
        let sctp = "10.0.0.1:2905 > 10.0.0.2:36412 sctp";
        assert_eq!(text(builder().sctp(2905, 36412)), sctp);
        assert_eq!(key_of_text(sctp), Ok(DeepKey::of(&builder().sctp(2905, 36412).build())));
        let inner = builder().udp(1, 53).build();
        let tunnel = builder().vxlan(42, &inner);
        let expected =
            "10.0.0.1:49152 > 10.0.0.2:4789 udp, vxlan_vni 42, inside 10.0.0.1:1 > 10.0.0.2:53 udp";
        assert_eq!(text(tunnel), expected);
        let [from, to] = [MacAddr([2, 0, 0, 0, 0, 9]), MacAddr([2, 0, 0, 0, 0, 2])];
        let macs = builder().ethernet(to, from).udp(1, 53);
        let key = DeepKey::of(&macs.build());
        assert_eq!(short_packet(&key), "10.0.0.1:1 > 10.0.0.2:53 udp");
        assert_eq!(short_packet_with_macs(&key), "10.0.0.1:1 > 10.0.0.2:53 udp, src_mac 02:00:00:00:00:09");
    }

    #[test]
    fn a_packet_of_which_something_is_left_out_says_so_and_is_not_read() {
        let builder = || FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut cut = builder().tcp(1, 80, USUAL_TCP_FLAGS).build();
        cut.truncate(38);
        let class = FrameBuilder::new().mpls(&[mpls_label(200, 5)], &builder().build_packet()).build();
        for frame in [cut, class] {
            let text = short_packet(&DeepKey::of(&frame));
            assert!(text.ends_with(", ..."), "{text}");
            assert!(key_of_text(&text).is_err_and(|error| error.contains("--hex")), "{text}");
        }
    }

    #[test]
    fn a_packet_that_cannot_be_read_is_refused_with_its_part_named() {
        for (text, named) in [
            ("10.0.0.1 > 10.0.0.2", "\"10.0.0.1 > 10.0.0.2\""),
            ("10.0.0.1:1 > elsewhere udp", "elsewhere"),
            ("10.0.0.1 > 02:00:00:00:00:01 ethertype arp", "ethertype arp"),
            ("10.0.0.1:1 > 10.0.0.2:2 udp, vlan", "\"vlan\""),
            ("10.0.0.1:1 > 10.0.0.2:2 udp, colour red", "colour"),
            ("10.0.0.1:1 > 10.0.0.2:2 icmp", "src_port"),
            (
                "10.0.0.1 > 10.0.0.2 udp, inside 10.0.0.1 > 10.0.0.2 udp, inside 10.0.0.1 > 10.0.0.2 udp",
                "one tunnel",
            ),
        ] {
            let error = key_of_text(text).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}

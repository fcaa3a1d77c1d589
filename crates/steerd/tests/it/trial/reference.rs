//! The linear reference matcher: evaluates a policy rule by rule and field by field. It shares no code with
//! the compiler, with the workers' predicates or with `explain`; of the policy crate it uses only sets'
//! `contains`.

use std::net::Ipv6Addr;

use packet::build::FrameBuilder;
use packet::{DeepKey, Field, Field as F, FlowKey, Layers as L, TunnelKey, TunnelLayers as T};
use policy::Policy;
use policy::policy::{Action, Direction, RuleDefinition};
use program::{Family, Fragments, Match};

/// The rules that copy a packet, and the rule that decides it; `None`: the policy's default, or no rule for a
/// sent packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) copies: Vec<usize>,
    pub(crate) last: Option<usize>,
}

/// The result of a policy for a received or sent packet.
pub(crate) fn meaning(policy: &Policy, direction: Direction, key: &DeepKey) -> Meaning {
    meaning_by(policy, direction, |rule| meets(&rule.matches, &key.outer, &key.tunnel))
}

/// The meaning if all rules skip IPv6 extension headers, of a policy that does not say so.
pub(crate) fn meaning_skipping(
    policy: &Policy,
    direction: Direction,
    frame: &[u8],
    key: &DeepKey,
) -> Meaning {
    meaning_by(policy, direction, |rule| {
        let stops = rule.direction == Direction::Egress
            || matches!(rule.action, Action::Sniff(_))
            || rule.matches.needs_tunnel();
        match stops {
            true => meets(&rule.matches, &key.outer, &key.tunnel),
            false => meets_skipping(&rule.matches, frame, key),
        }
    })
}

fn meaning_by(policy: &Policy, direction: Direction, matches: impl Fn(&RuleDefinition) -> bool) -> Meaning {
    let mut meaning = Meaning { copies: Vec::new(), last: None };
    for (index, rule) in policy.rules.iter().enumerate() {
        let sniffs = matches!(rule.action, Action::Sniff(_));
        let comes_here = sniffs || (rule.direction == direction && meaning.last.is_none());
        if comes_here && matches(rule) {
            match rule.action {
                Action::Copy(_) | Action::Sniff(_) => meaning.copies.push(index),
                _ => meaning.last = Some(index),
            }
        }
    }
    // A dropped packet does not pass the port: sniffers get no copy.
    if direction == Direction::Egress && !leaves(policy, &meaning) {
        meaning.copies.clear();
    }
    meaning
}

/// Whether a sent packet leaves; `default` applies to received packets only.
pub(crate) fn leaves(policy: &Policy, meaning: &Meaning) -> bool {
    meaning.last.is_none_or(|index| policy.rules[index].action != Action::Drop)
}

fn all<T>(field: &Option<T>, holds: impl Fn(&T) -> bool) -> bool {
    field.as_ref().is_none_or(holds)
}

/// Whether the presence, protocol and id of a tag match.
fn tag(m: &Match, [id, tpid]: [Field; 2], wanted: Option<bool>, is_there: bool, values: [u16; 2]) -> bool {
    let c_tag = is_there && (m.has(tpid) || values[1] == 0x8100);
    wanted.is_none_or(|wanted| wanted == is_there)
        && all(&m.get(tpid), |set| is_there && set.contains(values[1].into()))
        && all(&m.get(id), |set| c_tag && set.contains((values[0] & 0xfff).into()))
}

#[rustfmt::skip]
fn meets(m: &Match, k: &FlowKey, t: &TunnelKey) -> bool {
    let has = |layers| k.layers.intersects(layers);
    let (ip, port, within) = (has(L::IPV4 | L::IPV6), has(L::TCP | L::UDP), |layer| t.layers.contains(layer));
    let piece = if has(L::LATER_FRAGMENT) { Fragments::LATER } else if has(L::FRAGMENT) { Fragments::FIRST } else { Fragments::WHOLE };
    let number = |field, is_there, value: u32| all(&m.get(field), |set| is_there && set.contains(value));
    // Packets left to the kernel by ports include those without ports: later fragments and truncated headers.
    let portless = m.or_no_ports && ip && !port && matches!(k.protocol, 6 | 17);
    let (extended, port_behind) = (has(L::IPV6) && EXTENSIONS.contains(&k.protocol), has(L::EXTENDED_TCP | L::EXTENDED_UDP));
    let portless_behind = m.or_no_ports && extended && !port_behind && matches!(k.extended.protocol, 6 | 17);
    all(&m.dst_mac, |set| set.contains(k.dst_mac)) && all(&m.src_mac, |set| set.contains(k.src_mac))
        && number(F::EtherType, true, k.ether_type.into())
        && tag(m, [F::VlanId, F::VlanTpid], m.vlan, has(L::VLAN), [k.vlan_tci, k.vlan_tpid])
        && tag(m, [F::InnerVlanId, F::InnerVlanTpid], m.inner_vlan, has(L::INNER_VLAN), [k.inner_vlan_tci, k.inner_vlan_tpid])
        && number(F::VlanPriority, has(L::VLAN) && (m.has(F::VlanTpid) || k.vlan_tpid == 0x8100), (k.vlan_tci >> 13).into())
        && all(&m.family, |family| has(if *family == Family::V4 { L::IPV4 } else { L::IPV6 }))
        && all(&m.src, |set| k.src_addr().is_some_and(|address| set.contains(address)))
        && all(&m.dst, |set| k.dst_addr().is_some_and(|address| set.contains(address)))
        && number(F::Protocol, ip, k.protocol.into()) && number(F::Tos, ip, k.tos.into())
        && number(F::Ttl, ip, k.ttl.into()) && number(F::FlowLabel, has(L::IPV6), k.flow_label)
        && number(F::IpFlags, has(L::IPV4), k.ip_flags.into())
        && all(&m.ip_options, |wanted| has(L::IPV4) && has(L::IP_OPTIONS) == *wanted)
        && all(&m.fragment, |set| ip && set.contains(piece))
        && (portless || number(F::SrcPort, port, k.src_port.into()) && number(F::DstPort, port, k.dst_port.into()))
        && number(F::TcpFlags, has(L::TCP), k.tcp_flags.into())
        && number(F::SctpSrcPort, has(L::SCTP), k.src_port.into()) && number(F::SctpDstPort, has(L::SCTP), k.dst_port.into())
        && number(F::IcmpType, has(L::ICMP), k.icmp_type.into()) && number(F::IcmpCode, has(L::ICMP), k.icmp_code.into())
        && number(F::Icmpv6Type, has(L::ICMPV6), k.icmp_type.into()) && number(F::Icmpv6Code, has(L::ICMPV6), k.icmp_code.into())
        && number(F::ExtProtocol, extended, k.extended.protocol.into())
        && (portless_behind || number(F::ExtSrcPort, port_behind, k.extended.src_port.into()) && number(F::ExtDstPort, port_behind, k.extended.dst_port.into()))
        && number(F::ExtTcpFlags, has(L::EXTENDED_TCP), k.extended.tcp_flags.into())
        && number(F::ExtIcmpv6Type, has(L::EXTENDED_ICMPV6), k.extended.icmp_type.into()) && number(F::ExtIcmpv6Code, has(L::EXTENDED_ICMPV6), k.extended.icmp_code.into())
        && number(F::EspSpi, within(T::ESP), t.esp_spi) && number(F::EspSeq, within(T::ESP), t.esp_seq)
        && number(F::VxlanVni, within(T::VXLAN), t.vxlan_vni)
        && number(F::GreProtocol, within(T::GRE), t.gre_protocol.into())
        && number(F::GreKey, within(T::GRE_KEY), t.gre_key)
        && number(F::GreFlags, within(T::GRE), (t.gre_flags >> 8).into())
        && all(&m.mpls, |stack| within(T::MPLS) && stack.len() <= usize::from(t.mpls_depth) && stack.iter().zip(&t.mpls).all(|(label, entry)| label.matches(*entry)))
        && all(&m.inner, |inner| within(T::INNER) && (within(T::INNER_ETHERNET) || !(inner.needs_ethernet() || inner.mpls.is_some())) && meets(inner, &t.inner, &inside(t)))
}

/// The numbers of extension headers that rules skip.
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];

/// The key of a frame behind its extension headers: the first header that is none, or that is not read, is
/// taken for the one behind the IP header.
fn skipped(frame: &[u8], key: &FlowKey) -> FlowKey {
    if !key.layers.contains(L::IPV6) || !EXTENSIONS.contains(&key.protocol) {
        return *key;
    }
    let tags = key.layers.iter().filter(|layer| [L::VLAN, L::INNER_VLAN].contains(layer)).count();
    let ip = &frame[14 + 4 * tags..];
    let length = usize::from(ip[4]) << 8 | usize::from(ip[5]);
    let end = if length == 0 { ip.len() } else { ip.len().min(40 + length) };
    let (mut at, mut protocol, mut is_later) = (40, key.protocol, false);
    for _ in 0..8 {
        if !EXTENSIONS.contains(&protocol) || is_later || at + 8 > end {
            break;
        }
        let bytes = match protocol {
            44 => 8,
            51 => 4 * usize::from(ip[at + 1]) + 8,
            _ => 8 * usize::from(ip[at + 1]) + 8,
        };
        if at + bytes > end {
            break;
        }
        is_later = protocol == 44 && (ip[at + 2] != 0 || ip[at + 3] > 7);
        protocol = ip[at];
        at += bytes;
    }
    if EXTENSIONS.contains(&protocol) || is_later {
        return FlowKey { protocol, ..*key };
    }
    // What follows, as a packet without extension headers.
    let upper = FrameBuilder::new().ipv6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let upper = upper.protocol(packet::IpProtocol(protocol)).payload(&ip[at..end]);
    let found = FlowKey::of(&upper.build());
    let layers = key.layers | found.layers & (L::TCP | L::UDP | L::ICMPV6);
    let FlowKey { src_port, dst_port, tcp_flags, icmp_type, icmp_code, .. } = found;
    FlowKey { layers, protocol, src_port, dst_port, tcp_flags, icmp_type, icmp_code, ..*key }
}

/// Whether a rule that skips extension headers matches.
fn meets_skipping(m: &Match, frame: &[u8], key: &DeepKey) -> bool {
    let protocols = m.get(F::Protocol).filter(|set| !(0..=255).all(|number| set.contains(number)));
    // A rule without conditions on what follows looks at no header behind them.
    let is_on_headers =
        [F::SrcPort, F::DstPort, F::TcpFlags, F::Icmpv6Type, F::Icmpv6Code].iter().any(|field| m.has(*field));
    let others = protocols.is_none_or(|set| {
        (0..=255u8).any(|number| set.contains(number.into()) && !EXTENSIONS.contains(&number))
    });
    match (protocols.is_some() || is_on_headers) && others {
        true => meets(m, &skipped(frame, &key.outer), &key.tunnel),
        false => meets(m, &key.outer, &key.tunnel),
    }
}

/// The tunnel's headers as the packet inside has them: one label at most.
fn inside(t: &TunnelKey) -> TunnelKey {
    let layers = if t.inner_mpls == 0 { T::empty() } else { T::MPLS };
    TunnelKey { layers, mpls: [t.inner_mpls, 0, 0, 0], mpls_depth: 1, ..TunnelKey::default() }
}

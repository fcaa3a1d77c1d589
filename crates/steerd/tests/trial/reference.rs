//! The linear reference matcher: evaluates a policy rule by rule and field by field. It shares no code with the
//! compiler, with the workers' predicates or with `explain`; of the policy crate it uses only sets' `contains`.

use packet::{DeepKey, Field, Field as F, FlowKey, Layers as L, TunnelKey, TunnelLayers as T};
use policy::Policy;
use policy::policy::{Action, Direction};
use program::{Family, Fragments, Match};

/// The rules that copy a packet, and the rule that decides it; `None`: the policy's default, or no rule for a sent
/// packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) copies: Vec<usize>,
    pub(crate) last: Option<usize>,
}

/// The result of a policy for a received or sent packet.
pub(crate) fn meaning(policy: &Policy, direction: Direction, key: &DeepKey) -> Meaning {
    let mut meaning = Meaning { copies: Vec::new(), last: None };
    for (index, rule) in policy.rules.iter().enumerate() {
        let sniffs = matches!(rule.action, Action::Sniff(_));
        let comes_here = sniffs || (rule.direction == direction && meaning.last.is_none());
        if comes_here && meets(&rule.matches, &key.outer, &key.tunnel) {
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

/// The tunnel's headers as the packet inside has them: one label at most.
fn inside(t: &TunnelKey) -> TunnelKey {
    let layers = if t.inner_mpls == 0 { T::empty() } else { T::MPLS };
    TunnelKey { layers, mpls: [t.inner_mpls, 0, 0, 0], mpls_depth: 1, ..TunnelKey::default() }
}

//! The judge: what a policy means for a packet, read line by line and field by field. It shares no code with the
//! compiler, with the workers' predicates or with `explain`; of the policy crate it uses only sets' `contains`.

use packet::{DeepKey, FlowKey, Layers as L, TunnelKey, TunnelLayers as T};
use policy::Policy;
use policy::policy::{Action, Direction};
use program::{Family, Fragments, Match, RangeSet, VlanMatch};

/// Who hears of a packet, and the rule that ends its way; `None`: the policy's default, or for a sent packet
/// no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) copies: Vec<usize>,
    pub(crate) last: Option<usize>,
}

/// What a policy says of a packet that is received, or sent.
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
    // What does not leave does not pass the port: there is nothing to hear.
    if direction == Direction::Egress && !leaves(policy, &meaning) {
        meaning.copies.clear();
    }
    meaning
}

/// Whether a sent packet gets out; `default` is about received ones.
pub(crate) fn leaves(policy: &Policy, meaning: &Meaning) -> bool {
    meaning.last.is_none_or(|index| policy.rules[index].action != Action::Drop)
}

fn all<T>(field: &Option<T>, holds: impl Fn(&T) -> bool) -> bool {
    field.as_ref().is_none_or(holds)
}

fn tag(
    wanted: &Option<VlanMatch>,
    tpids: &Option<RangeSet<u16>>,
    is_there: bool,
    tpid: u16,
    id: u16,
) -> bool {
    let c_tag = is_there && (tpids.is_some() || tpid == 0x8100);
    all(tpids, |set| is_there && set.contains(tpid))
        && all(wanted, |wanted| match wanted {
            VlanMatch::None => !is_there,
            VlanMatch::Any => is_there,
            VlanMatch::Ids(ids) => c_tag && ids.contains(id & 0xfff),
        })
}

#[rustfmt::skip]
fn meets(m: &Match, k: &FlowKey, t: &TunnelKey) -> bool {
    let has = |layers| k.layers.intersects(layers);
    let (ip, port, within) = (has(L::IPV4 | L::IPV6), has(L::TCP | L::UDP), |layer| t.layers.contains(layer));
    let piece = if has(L::LATER_FRAGMENT) { Fragments::LATER } else if has(L::FRAGMENT) { Fragments::FIRST } else { Fragments::WHOLE };
    // What is left to the kernel by ports is so without ports, too: later fragments and headers that are cut off.
    let portless = m.or_no_ports && ip && !port && matches!(k.protocol, 6 | 17);
    all(&m.dst_mac, |set| set.contains(k.dst_mac)) && all(&m.src_mac, |set| set.contains(k.src_mac))
        && all(&m.ethertype, |set| set.contains(k.ether_type))
        && tag(&m.vlan, &m.vlan_tpid, has(L::VLAN), k.vlan_tpid, k.vlan_tci)
        && tag(&m.inner_vlan, &m.inner_vlan_tpid, has(L::INNER_VLAN), k.inner_vlan_tpid, k.inner_vlan_tci)
        && all(&m.vlan_priority, |set| has(L::VLAN) && (m.vlan_tpid.is_some() || k.vlan_tpid == 0x8100) && set.contains((k.vlan_tci >> 13) as u8))
        && all(&m.family, |family| has(if *family == Family::V4 { L::IPV4 } else { L::IPV6 }))
        && all(&m.src, |set| k.src_addr().is_some_and(|address| set.contains(address)))
        && all(&m.dst, |set| k.dst_addr().is_some_and(|address| set.contains(address)))
        && all(&m.protocol, |set| ip && set.contains(k.protocol)) && all(&m.tos, |set| ip && set.contains(k.tos))
        && all(&m.ttl, |set| ip && set.contains(k.ttl)) && all(&m.flow_label, |set| has(L::IPV6) && set.contains(k.flow_label))
        && all(&m.ip_flags, |set| has(L::IPV4) && set.contains(k.ip_flags))
        && all(&m.ip_options, |wanted| has(L::IPV4) && has(L::IP_OPTIONS) == *wanted)
        && all(&m.fragment, |set| ip && set.contains(piece))
        && (portless || all(&m.src_port, |set| port && set.contains(k.src_port)) && all(&m.dst_port, |set| port && set.contains(k.dst_port)))
        && all(&m.tcp_flags, |set| has(L::TCP) && set.contains(k.tcp_flags))
        && all(&m.esp_spi, |set| within(T::ESP) && set.contains(t.esp_spi)) && all(&m.esp_seq, |set| within(T::ESP) && set.contains(t.esp_seq))
        && all(&m.vxlan_vni, |set| within(T::VXLAN) && set.contains(t.vxlan_vni))
        && all(&m.gre_protocol, |set| within(T::GRE) && set.contains(t.gre_protocol))
        && all(&m.gre_key, |set| within(T::GRE_KEY) && set.contains(t.gre_key))
        && all(&m.gre_flags, |set| within(T::GRE) && set.contains((t.gre_flags >> 8) as u8))
        && all(&m.mpls, |stack| within(T::MPLS) && stack.len() <= usize::from(t.mpls_depth) && stack.iter().zip(&t.mpls).all(|(label, entry)| label.matches(*entry)))
        && all(&m.inner, |inner| within(T::INNER) && (within(T::INNER_ETHERNET) || !(inner.needs_ethernet() || inner.mpls.is_some())) && meets(inner, &t.inner, &inside(t)))
}

/// The tunnel's headers as the packet inside has them: one label at most.
fn inside(t: &TunnelKey) -> TunnelKey {
    let layers = if t.inner_mpls == 0 { T::empty() } else { T::MPLS };
    TunnelKey { layers, mpls: [t.inner_mpls, 0, 0, 0], mpls_depth: 1, ..TunnelKey::default() }
}

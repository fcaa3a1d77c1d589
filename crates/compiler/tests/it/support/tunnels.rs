//! Clauses about tunnels and the packet inside, each with its text and its meaning, and the tunnels of the
//! packets that they are tried with.

use std::sync::Arc;

use packet::build::{FrameBuilder, label_stack, mpls_label};
use packet::{DeepKey, EtherType, TunnelKey, TunnelLayers as T};
use proptest::prelude::*;
use proptest::sample::select;

use super::clauses::{Clause, Meaning, packet_clauses};

fn tunnel(text: impl Into<String>, holds: impl Fn(&TunnelKey) -> bool + Send + Sync + 'static) -> Clause {
    Clause { text: text.into(), meaning: Meaning::Tunnel(Arc::new(holds)), is_link: false }
}

fn has(key: &TunnelKey, layers: T) -> bool {
    key.layers.contains(layers)
}

/// One clause; a packet has one tunnel.
pub(crate) fn clause() -> impl Strategy<Value = Clause> {
    let label = |key: &TunnelKey, place: usize| key.mpls[place] >> 12;
    let deep = |key: &TunnelKey, labels: u8| has(key, T::MPLS) && key.mpls_depth >= labels;
    let headers = select(vec![
        tunnel("esp_spi = 7", |key| has(key, T::ESP) && key.esp_spi == 7),
        tunnel("esp_spi = \"1-100\"", |key| has(key, T::ESP) && (1..=100).contains(&key.esp_spi)),
        tunnel("esp_seq = { not = 0 }", |key| has(key, T::ESP) && key.esp_seq != 0),
        tunnel("vxlan_vni = [1, \"7-100\"]", |key| {
            has(key, T::VXLAN) && matches!(key.vxlan_vni, 1 | 7..=100)
        }),
        tunnel("vxlan_vni = { not = 7 }", |key| has(key, T::VXLAN) && key.vxlan_vni != 7),
        tunnel("gre_key = \"0-7\"", |key| has(key, T::GRE_KEY) && key.gre_key <= 7),
        tunnel("gre_key = 0", |key| has(key, T::GRE_KEY) && key.gre_key == 0),
        tunnel("gre_protocol = \"ipv4\"", |key| has(key, T::GRE) && key.gre_protocol == 0x0800),
        tunnel("gre_flags = \"!key\"", |key| has(key, T::GRE) && key.gre_flags & 0x2000 == 0),
        tunnel("gre_protocol = 0x6558, gre_flags = \"key\"", |key| {
            has(key, T::GRE) && key.gre_protocol == 0x6558 && key.gre_flags & 0x2000 != 0
        }),
        tunnel("mpls = \"any\"", move |key| deep(key, 1)),
        tunnel("mpls = 16", move |key| deep(key, 1) && label(key, 0) == 16),
        tunnel("mpls = [\"0-15\", 16]", move |key| {
            deep(key, 2) && label(key, 0) <= 15 && label(key, 1) == 16
        }),
        tunnel("mpls = [{ label = \"15-16\", tc = \"0-3\", bottom = true }]", move |key| {
            let (class, bottom) = (key.mpls[0] >> 9 & 7, key.mpls[0] >> 8 & 1);
            deep(key, 1) && matches!(label(key, 0), 15 | 16) && class <= 3 && bottom == 1
        }),
    ]);
    let inner = packet_clauses().prop_map(|clauses| inside(&clauses));
    let labelled = tunnel("inner = { mpls = 16 }", |key| {
        has(key, T::INNER | T::INNER_ETHERNET) && key.inner_mpls != 0 && key.inner_mpls >> 12 == 16
    });
    prop_oneof![4 => headers, 4 => inner, 1 => Just(labelled)]
}

/// The clauses of the packet inside.
fn inside(clauses: &[Clause]) -> Clause {
    let texts: Vec<&str> = clauses.iter().map(|clause| clause.text.as_str()).collect();
    let text = if texts.is_empty() { "any = true".to_owned() } else { texts.join(", ") };
    let has_link = clauses.iter().any(|clause| clause.is_link);
    let clauses = clauses.to_vec();
    tunnel(format!("inner = {{ {text} }}"), move |key| {
        let inner = DeepKey { outer: key.inner, tunnel: TunnelKey::default() };
        has(key, T::INNER)
            && (!has_link || has(key, T::INNER_ETHERNET))
            && clauses.iter().all(|clause| clause.holds(&inner))
    })
}

/// How a packet is put into another.
#[derive(Clone, Debug)]
pub(crate) enum Wrapping {
    Vxlan(u32),
    Gre { protocol: EtherType, key: Option<u32>, labels: Vec<u32> },
    Mpls(Vec<u32>),
    LabelledVxlan(u32, Vec<u32>),
    Esp(u32, u32),
    IpInIp,
}

pub(crate) fn wrapping() -> impl Strategy<Value = Wrapping> {
    let number = || select(vec![0u32, 1, 7, 8, 100]);
    let label = (select(vec![0u32, 15, 16]), 0u8..6).prop_map(|(label, class)| mpls_label(label, class));
    let labels = || prop::collection::vec(label.clone(), 1..4);
    let protocol = select(vec![EtherType(0x6558), EtherType::IPV4, EtherType::MPLS]);
    prop_oneof![
        2 => number().prop_map(Wrapping::Vxlan),
        3 => (protocol, prop::option::of(number()), labels())
            .prop_map(|(protocol, key, labels)| Wrapping::Gre { protocol, key, labels }),
        2 => labels().prop_map(Wrapping::Mpls),
        1 => (number(), labels()).prop_map(|(vni, labels)| Wrapping::LabelledVxlan(vni, labels)),
        1 => (number(), number()).prop_map(|(spi, seq)| Wrapping::Esp(spi, seq)),
        1 => Just(Wrapping::IpInIp),
    ]
}

impl Wrapping {
    pub(crate) fn wrap(&self, outer: FrameBuilder, inner: &FrameBuilder) -> FrameBuilder {
        match self {
            Self::Vxlan(vni) => outer.vxlan(*vni, &inner.build()),
            Self::Gre { protocol: EtherType::MPLS, key, labels } => {
                outer.gre(EtherType::MPLS, *key, &label_stack(labels, &inner.build_packet()))
            }
            Self::Gre { protocol: EtherType::IPV4, key, .. } => {
                outer.gre(EtherType::IPV4, *key, &inner.build_packet())
            }
            Self::Gre { protocol, key, .. } => outer.gre(*protocol, *key, &inner.build()),
            Self::Mpls(labels) => outer.mpls(labels, &inner.build_packet()),
            Self::LabelledVxlan(vni, labels) => {
                outer.vxlan(*vni, &FrameBuilder::new().mpls(labels, &inner.build_packet()).build())
            }
            Self::Esp(spi, seq) => outer.esp(*spi, *seq, &[]),
            Self::IpInIp => outer.ip_in_ip(&inner.build_packet()),
        }
    }
}

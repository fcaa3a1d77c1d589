//! What a rule asks of a frame and its tunnel, and which frames meet it, said without [`TunnelMatcher`].

use packet::cube;
use packet::{FlowKey, Layers, TunnelKey, TunnelLayers};
use proptest::prelude::*;

use super::condition::{Condition, condition, key};
use crate::{Matcher, Presence, TunnelMatcher};

/// One thing that a rule can ask of a tunnel, apart from [`TunnelMatcher`] so that the reference shares
/// nothing with it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Outer(Condition),
    Inner(Condition),
    Vni(u32, u32),
    Spi(u32, u32),
    GreKey(u32, u32),
    GreProtocol(u16),
    Label(usize, u32, u32),
    InnerLabel(u32),
}

impl Asked {
    pub(super) fn write(self, matcher: &mut Matcher, tunnel: &mut TunnelMatcher) {
        match self {
            Self::Outer(condition) => condition.write(matcher),
            Self::Inner(condition) => {
                tunnel.require(Presence::INNER);
                condition.write(&mut tunnel.inner);
            }
            Self::Vni(value, mask) => {
                _ = tunnel.require(Presence::VXLAN).field(&[cube::VXLAN_VNI], value.into(), mask.into());
            }
            Self::Spi(value, mask) => {
                _ = tunnel.require(Presence::ESP).field(&[cube::ESP_SPI], value.into(), mask.into());
            }
            Self::GreKey(value, mask) => {
                _ = tunnel.require(Presence::GRE).field(&[cube::GRE_KEY], value.into(), mask.into());
            }
            Self::GreProtocol(value) => {
                _ = tunnel.require(Presence::GRE).field(&[cube::GRE_PROTOCOL], value.into(), 0xffff);
            }
            Self::Label(place, value, mask) => {
                tunnel.require(Presence::MPLS_OVER_ETHERNET).label(place, value, mask);
            }
            Self::InnerLabel(value) => _ = tunnel.require(Presence::INNER_MPLS).inner_label(value, !0),
        }
    }

    pub(super) fn holds(self, key: &FlowKey, tunnel: &TunnelKey) -> bool {
        let has = |layer| tunnel.layers.contains(layer);
        match self {
            Self::Outer(condition) => condition.holds(key),
            Self::Inner(condition) => has(TunnelLayers::INNER) && condition.holds(&tunnel.inner),
            Self::Vni(value, mask) => has(TunnelLayers::VXLAN) && (tunnel.vxlan_vni ^ value) & mask == 0,
            Self::Spi(value, mask) => has(TunnelLayers::ESP) && (tunnel.esp_spi ^ value) & mask == 0,
            Self::GreKey(value, mask) => {
                has(TunnelLayers::GRE)
                    && (mask == 0 || has(TunnelLayers::GRE_KEY))
                    && (tunnel.gre_key ^ value) & mask == 0
            }
            Self::GreProtocol(value) => has(TunnelLayers::GRE) && tunnel.gre_protocol == value,
            Self::Label(place, value, mask) => {
                let behind_ethernet = !has(TunnelLayers::GRE) && !key.layers.contains(Layers::UDP);
                behind_ethernet
                    && usize::from(tunnel.mpls_depth) > place
                    && (tunnel.mpls[place] ^ value) & mask == 0
            }
            Self::InnerLabel(value) => tunnel.inner_mpls != 0 && tunnel.inner_mpls == value,
        }
    }

    /// The frame with what is asked for, as far as one frame can have it beside what others ask for.
    pub(super) fn met_by(self, (key, mut tunnel): (FlowKey, TunnelKey)) -> (FlowKey, TunnelKey) {
        let put = |field: &mut u32, value: u32, mask: u32| *field = *field & !mask | value & mask;
        match self {
            Self::Outer(condition) => return (condition.met_by(key), tunnel),
            Self::Inner(condition) => {
                tunnel.layers |= TunnelLayers::INNER;
                tunnel.inner = condition.met_by(tunnel.inner);
            }
            Self::Vni(value, mask) => {
                tunnel.layers |= TunnelLayers::VXLAN;
                put(&mut tunnel.vxlan_vni, value, mask);
            }
            Self::Spi(value, mask) => {
                tunnel.layers |= TunnelLayers::ESP;
                put(&mut tunnel.esp_spi, value, mask);
            }
            Self::GreKey(value, mask) => {
                tunnel.layers |= TunnelLayers::GRE | TunnelLayers::GRE_KEY;
                put(&mut tunnel.gre_key, value, mask);
            }
            Self::GreProtocol(value) => {
                tunnel.layers |= TunnelLayers::GRE;
                tunnel.gre_protocol = value;
            }
            Self::Label(place, value, mask) => {
                tunnel.layers |= TunnelLayers::MPLS;
                tunnel.mpls_depth = tunnel.mpls_depth.max(place as u8 + 1);
                put(&mut tunnel.mpls[place], value, mask);
            }
            Self::InnerLabel(value) => {
                tunnel.layers |= TunnelLayers::INNER | TunnelLayers::INNER_ETHERNET;
                tunnel.inner_mpls = value;
            }
        }
        (key, tunnel)
    }

    /// Whether both can hold of no frame because they ask for different values of one bit.
    pub(super) fn contradicts(self, other: Self) -> bool {
        let differ = |a: (u32, u32), b: (u32, u32)| (a.0 ^ b.0) & a.1 & b.1 != 0;
        match (self, other) {
            (Self::Outer(a), Self::Outer(b)) | (Self::Inner(a), Self::Inner(b)) => a.contradicts(b),
            (Self::Vni(a, m), Self::Vni(b, n))
            | (Self::Spi(a, m), Self::Spi(b, n))
            | (Self::GreKey(a, m), Self::GreKey(b, n)) => differ((a, m), (b, n)),
            (Self::Label(place, a, m), Self::Label(other, b, n)) => place == other && differ((a, m), (b, n)),
            (Self::GreProtocol(a), Self::GreProtocol(b)) => a != b,
            (Self::InnerLabel(a), Self::InnerLabel(b)) => a != b,
            _ => false,
        }
    }
}

pub(super) fn asked() -> impl Strategy<Value = Asked> {
    let mask = || prop::sample::select(vec![0u32, 1, 3, !0]);
    prop_oneof![
        3 => condition().prop_map(Asked::Outer),
        3 => condition().prop_map(Asked::Inner),
        2 => (0u32..4, mask()).prop_map(|(value, mask)| Asked::Vni(value, mask)),
        1 => (0u32..4, mask()).prop_map(|(value, mask)| Asked::Spi(value, mask)),
        1 => (0u32..4, mask()).prop_map(|(value, mask)| Asked::GreKey(value, mask)),
        1 => (0u16..4).prop_map(Asked::GreProtocol),
        1 => (0usize..4, 0u32..4, mask()).prop_map(|(place, value, mask)| Asked::Label(place, value, mask)),
        1 => (1u32..4).prop_map(Asked::InnerLabel),
    ]
}

/// Keys as the parser makes them, as far as the matcher relies on it: what is absent is zero.
pub(super) fn tunnel() -> impl Strategy<Value = TunnelKey> {
    let inner = || key().prop_map(|inner| (TunnelLayers::INNER, inner));
    let inner = || prop_oneof![Just((TunnelLayers::empty(), FlowKey::default())), inner()];
    prop_oneof![
        2 => Just(TunnelKey::default()),
        2 => (0u32..4, 0u32..4, inner()).prop_map(|(vxlan_vni, inner_mpls, (more, inner))| TunnelKey {
            layers: TunnelLayers::VXLAN | more,
            vxlan_vni,
            inner_mpls,
            inner,
            ..TunnelKey::default()
        }),
        1 => (0u32..4).prop_map(|esp_spi| TunnelKey {
            layers: TunnelLayers::ESP,
            esp_spi,
            ..TunnelKey::default()
        }),
        1 => (prop::option::of(0u32..4), 0u16..4, inner()).prop_map(|(gre_key, gre_protocol, (more, inner))| {
            let with_key = if gre_key.is_some() { TunnelLayers::GRE_KEY } else { TunnelLayers::empty() };
            TunnelKey {
                layers: TunnelLayers::GRE | with_key | more,
                gre_protocol,
                gre_key: gre_key.unwrap_or(0),
                inner,
                ..TunnelKey::default()
            }
        }),
        1 => (prop::array::uniform4(0u32..4), 1u8..5, inner()).prop_map(|(labels, mpls_depth, (more, inner))| {
            let mpls = std::array::from_fn(|at| if at < mpls_depth.into() { labels[at] } else { 0 });
            TunnelKey { layers: TunnelLayers::MPLS | more, mpls, mpls_depth, inner, ..TunnelKey::default() }
        }),
    ]
}

//! Parsing any bytes as a frame with a tunnel is total, and the headers that it reports lie inside the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::{DeepKey, HashFields, Layers, MAX_MPLS_LABELS, RssKey, Toeplitz, TunnelLayers};

fuzz_target!(|frame: &[u8]| {
    let parsed = packet::parse(frame);
    let layers = parsed.key.layers;
    assert!(usize::from(parsed.l3_offset) <= frame.len());
    assert!(usize::from(parsed.l4_offset) <= frame.len());
    check_layers(layers);
    let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
    let hash = toeplitz.hash_key(&parsed.key, HashFields::all());
    if !layers.intersects(Layers::IPV4 | Layers::IPV6) {
        assert_eq!(hash, 0, "nothing to hash outside IP");
    }

    let tunnel = packet::parse_tunnel(frame, &parsed);
    let has = |layer| tunnel.layers.contains(layer);
    check_layers(tunnel.inner.layers);
    assert!(usize::from(tunnel.mpls_depth) <= MAX_MPLS_LABELS);
    assert_eq!(has(TunnelLayers::MPLS), tunnel.mpls_depth > 0);
    assert!(has(TunnelLayers::INNER) || tunnel.inner.layers.is_empty(), "a packet inside is announced");
    assert!(has(TunnelLayers::INNER) || !has(TunnelLayers::INNER_ETHERNET | TunnelLayers::IP_IN_IP));
    assert!(has(TunnelLayers::GRE) || !has(TunnelLayers::GRE_KEY));
    assert!(tunnel.vxlan_vni < 1 << 24);
    let encapsulations = TunnelLayers::ESP | TunnelLayers::GRE | TunnelLayers::VXLAN | TunnelLayers::IP_IN_IP;
    assert!((tunnel.layers & encapsulations).iter().count() <= 1, "one tunnel at most");
    let deep = DeepKey { outer: parsed.key, tunnel };
    toeplitz.hash_deep(&deep, HashFields::all());
    assert_eq!(deep, DeepKey::of(frame));
});

fn check_layers(layers: Layers) {
    assert!(!layers.contains(Layers::IPV4 | Layers::IPV6), "one network layer at most");
    assert!(!layers.contains(Layers::TCP | Layers::UDP), "one transport at most");
}

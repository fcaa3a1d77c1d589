//! Any bytes are a frame: parsing them is total, and what it claims to have found lies inside them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::{HashFields, Layers, RssKey, Toeplitz};

fuzz_target!(|frame: &[u8]| {
    let parsed = packet::parse(frame);
    let layers = parsed.key.layers;
    assert!(usize::from(parsed.l3_offset) <= frame.len());
    assert!(usize::from(parsed.l4_offset) <= frame.len());
    assert!(!layers.contains(Layers::IPV4 | Layers::IPV6), "one network layer at most");
    assert!(!layers.contains(Layers::TCP | Layers::UDP), "one transport at most");
    let hash = Toeplitz::new(&RssKey::SYMMETRIC).hash_key(&parsed.key, HashFields::all());
    if !layers.intersects(Layers::IPV4 | Layers::IPV6) {
        assert_eq!(hash, 0, "nothing to hash outside IP");
    }
});

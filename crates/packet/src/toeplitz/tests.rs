//! The hash against the published vectors and against the definition, bit by bit.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::Layers;

/// The definition: for every set bit of the input, the 32 key bits from there on.
fn bitwise(key: &RssKey, input: &[u8]) -> u32 {
    let key_bit = |i: usize| u32::from(key.0[i / 8] >> (7 - i % 8) & 1);
    let mut hash = 0;
    for i in 0..input.len() * 8 {
        if input[i / 8] >> (7 - i % 8) & 1 == 1 {
            hash ^= (0..32).fold(0, |window, j| window << 1 | key_bit(i + j));
        }
    }
    hash
}

fn tcp_key(src: &str, src_port: u16, dst: &str, dst_port: u16) -> FlowKey {
    let mut key = FlowKey { src_port, dst_port, ..FlowKey::default() };
    for (text, octets) in [(src, &mut key.src_ip), (dst, &mut key.dst_ip)] {
        match text.parse().unwrap() {
            IpAddr::V4(v4) => {
                key.layers = Layers::IPV4 | Layers::TCP;
                octets[..4].copy_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => {
                key.layers = Layers::IPV6 | Layers::TCP;
                *octets = v6.octets();
            }
        }
    }
    key
}

/// From "Verifying the RSS hash calculation" in the Windows driver documentation.
#[test]
fn published_vectors() {
    let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
    for (src, src_port, dst, dst_port, l3, l3l4) in [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ] {
        let key = tcp_key(src, src_port, dst, dst_port);
        assert_eq!(toeplitz.hash_key(&key, HashFields::L3), l3, "{src} {dst}");
        assert_eq!(toeplitz.hash_key(&key, HashFields::L3L4), l3l4, "{src}:{src_port} {dst}:{dst_port}");
    }
}

#[test]
fn nothing_to_hash_is_zero() {
    let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
    let key = tcp_key("66.9.149.187", 2794, "161.142.100.80", 1766);
    assert_eq!(toeplitz.hash(&[]), 0);
    assert_eq!(toeplitz.hash_key(&key, HashFields::IPV6 | HashFields::UDP), 0);
    assert_eq!(toeplitz.hash_key(&FlowKey::default(), HashFields::all()), 0);
}

#[test]
fn keys_read_back_with_and_without_colons() {
    let text = RssKey::MICROSOFT.to_string();
    assert!(text.starts_with("6d5a56da255b0ec2") && text.len() == 80);
    assert_eq!(text.parse(), Ok(RssKey::MICROSOFT));
    let octets: Vec<String> = RssKey::SYMMETRIC.0.iter().map(|octet| format!("{octet:02X}")).collect();
    assert_eq!(octets.join(":").parse(), Ok(RssKey::SYMMETRIC));
    assert_eq!(RssKey::SYMMETRIC.to_string(), "6d5a".repeat(20));
}

#[test]
fn keys_of_another_shape_are_refused() {
    let good = RssKey::MICROSOFT.to_string();
    let late_colon = format!("{}:{}", &good[..4], &good[4..]);
    let octets: Vec<String> = RssKey::MICROSOFT.0.iter().map(|octet| format!("{octet:02x}")).collect();
    let one_dash = octets.join(":").replacen("56:", "56-", 1);
    let one_colon = format!("{}:{}", &good[..2], &good[2..]);
    for text in [
        "",
        &good[..79],
        &good[..78],
        &format!("{good}00"),
        &good.replace("56", "5g"),
        &good.replace("56", "+6"),
        &good.replace("56", "é"),
        &late_colon,
        &one_colon,
        &one_dash,
    ] {
        assert!(matches!(text.parse::<RssKey>(), Err(PacketTextError::RssKey { .. })), "{text} was taken");
    }
}

proptest! {
    #[test]
    fn tables_equal_the_definition(key in proptest::collection::vec(any::<u8>(), RSS_KEY_BYTES), input in proptest::collection::vec(any::<u8>(), 0..=HASH_INPUT_BYTES)) {
        let key = RssKey(key.try_into().unwrap());
        prop_assert_eq!(Toeplitz::new(&key).hash(&input), bitwise(&key, &input));
    }

    #[test]
    fn the_symmetric_key_hashes_both_directions_alike(src in any::<[u8; 16]>(), dst in any::<[u8; 16]>(), ports in any::<(u16, u16)>(), v6 in any::<bool>()) {
        let layers = if v6 { Layers::IPV6 } else { Layers::IPV4 } | Layers::TCP;
        let key = FlowKey { layers, src_ip: src, dst_ip: dst, src_port: ports.0, dst_port: ports.1, ..FlowKey::default() };
        let back = FlowKey { layers, src_ip: dst, dst_ip: src, src_port: ports.1, dst_port: ports.0, ..FlowKey::default() };
        let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
        for fields in [HashFields::L3, HashFields::L3L4, HashFields::TCP] {
            prop_assert_eq!(toeplitz.hash_key(&key, fields), toeplitz.hash_key(&back, fields));
        }
    }
}

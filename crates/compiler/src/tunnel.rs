//! What a match asks of tunnels, as cubes: ESP, VXLAN, GRE, MPLS and the packet inside. Called by `expand`;
//! knows where each header may stand, and adds what devices do not add by themselves (the UDP port of
//! VXLAN, the protocol of ESP).

use packet::{EtherType, MPLS_UDP_PORT};
use program::{Match, MplsEntry};

use super::cube::{
    Cube, DST_PORT, ESP_SEQ, ESP_SPI, ETHER_TYPE, Field, GRE_FLAGS, GRE_KEY, GRE_PROTOCOL, HAS_ESP, HAS_GRE,
    HAS_INNER, HAS_IPV4, HAS_IPV6, HAS_MPLS, HAS_UDP, HAS_VXLAN, MPLS_TOP, VXLAN_VNI,
};
use super::expand::{Factors, Level, one_field, packet_factors, patterns, prefixes};

/// The K bit: there is a key (RFC 2890).
pub(super) const GRE_HAS_KEY: u64 = 0x20;

/// Whether the tunnel itself stands behind an IP header.
pub(super) fn needs_ip(matches: &Match) -> bool {
    needs_esp(matches) || matches.vxlan_vni.is_some() || needs_gre(matches)
}

fn needs_esp(matches: &Match) -> bool {
    matches.esp_spi.is_some() || matches.esp_seq.is_some()
}

fn needs_gre(matches: &Match) -> bool {
    matches.gre_protocol.is_some() || matches.gre_key.is_some() || matches.gre_flags.is_some()
}

/// The factors of a match's tunnel keys, `inner` included.
pub(super) fn factors(matches: &Match, factors: &mut Factors) {
    if needs_esp(matches) {
        factors.list("esp", layer(HAS_ESP));
    }
    if let Some(set) = &matches.esp_spi {
        factors.range("esp_spi", one_field(ESP_SPI, prefixes(set, 32)));
    }
    if let Some(set) = &matches.esp_seq {
        factors.range("esp_seq", one_field(ESP_SEQ, prefixes(set, 32)));
    }
    if let Some(set) = &matches.vxlan_vni {
        factors.list("vxlan", layer(HAS_VXLAN));
        factors.range("vxlan_vni", one_field(VXLAN_VNI, prefixes(set, 24)));
    }
    gre(matches, factors);
    if let Some(stack) = &matches.mpls {
        mpls(stack, factors);
    }
    if let Some(inner) = &matches.inner {
        factors.list("inner", layer(HAS_INNER));
        if inner.mpls.is_some() {
            factors.finish("inner.mpls");
        }
        // Only VXLAN surely carries an Ethernet header.
        let level = Level { inside: true, has_ethernet: matches.vxlan_vni.is_some() };
        packet_factors(inner, level, inner.needs_ip(), factors);
    }
}

fn gre(matches: &Match, factors: &mut Factors) {
    if needs_gre(matches) {
        factors.list("gre", layer(HAS_GRE));
    }
    if let Some(set) = &matches.gre_protocol {
        factors.range("gre_protocol", one_field(GRE_PROTOCOL, prefixes(set, 16)));
    }
    if let Some(set) = &matches.gre_key {
        factors.list("gre_key", one_field(GRE_FLAGS, [(GRE_HAS_KEY, GRE_HAS_KEY)]));
        factors.range("gre_key", one_field(GRE_KEY, prefixes(set, 32)));
    }
    if let Some(set) = &matches.gre_flags {
        factors.range("gre_flags", one_field(GRE_FLAGS, patterns(set, 8)));
    }
}

/// A label stack stands behind an Ethernet header, GRE or UDP; the device looks at its top.
fn mpls(stack: &[MplsEntry], factors: &mut Factors) {
    factors.list("mpls", mpls_places());
    if let Some(top) = stack.first() {
        mpls_entry(top, factors);
    }
    if stack.len() > 1 {
        factors.finish("mpls");
    }
}

fn mpls_places() -> Vec<Cube> {
    let types = [EtherType::MPLS, EtherType::MPLS_MULTICAST];
    let ethernet =
        types.map(|ether_type| Cube::ANY.with(ETHER_TYPE, u64::from(ether_type.0), ETHER_TYPE.ones()));
    let over_ip = [HAS_IPV4, HAS_IPV6].into_iter().flat_map(|ip| {
        let udp = Cube::ANY.layer(ip, true).and_then(|cube| cube.layer(HAS_UDP, true));
        let udp = udp.and_then(|cube| cube.with(DST_PORT, u64::from(MPLS_UDP_PORT), DST_PORT.ones()));
        let gre = types.map(|carried| {
            let gre = Cube::ANY.layer(ip, true)?.layer(HAS_GRE, true)?;
            gre.with(GRE_PROTOCOL, u64::from(carried.0), GRE_PROTOCOL.ones())
        });
        gre.into_iter().chain([udp])
    });
    let places = ethernet.into_iter().chain(over_ip);
    places.filter_map(|cube| cube?.layer(HAS_MPLS, true)?.closed()).collect()
}

/// The parts of an entry multiply: each is a factor, so that they are counted before there are too many.
fn mpls_entry(entry: &MplsEntry, factors: &mut Factors) {
    let bottom = entry.bottom.map(|bottom| vec![(u64::from(bottom), 1)]);
    for (shift, part) in [
        (12, entry.label.as_ref().map(|set| prefixes(set, 20))),
        (9, entry.tc.as_ref().map(|set| prefixes(set, 3))),
        (8, bottom),
        (0, entry.ttl.as_ref().map(|set| prefixes(set, 8))),
    ] {
        if let Some(pairs) = part {
            let shifted = pairs.into_iter().map(|(value, mask)| (value << shift, mask << shift));
            factors.range("mpls", one_field(MPLS_TOP, shifted));
        }
    }
}

fn layer(field: Field) -> Vec<Cube> {
    Cube::ANY.layer(field, true).and_then(Cube::closed).into_iter().collect()
}

//! Makes cubes legal for a device: conditions on fields that it refuses are removed, and the keys that the
//! worker must test instead are listed with the device's errno. All decisions follow from the device model.
//!
//! Removing a condition only widens a cube, so the result always covers the match.

use std::collections::HashSet;

use device_model::DeviceModel;
use packet::cube::{
    Cube, DST_MAC, DST_PORT, ESP_SEQ, ETHER_TYPE, GRE_FLAGS, GRE_KEY, HAS_ESP, HAS_GRE, HAS_INNER, HAS_IPV4,
    HAS_IPV6, HAS_MPLS, HAS_TCP, HAS_UDP, HAS_VXLAN, LEVEL_SLOTS, MPLS_TOP, PROTOCOL, RESERVED_FLAG, SRC_MAC,
    SRC_PORT, Slot, TUNNEL_SLOTS, VLAN_TCI,
};
use packet::{FIELDS, Field, GRE_HAS_KEY};
use program::{Errno, Feature, Match, UndecidedKey, UndecidedReason};

/// The bit of the first octet that makes an address a group's.
const GROUP_BIT: u64 = 1 << 40;

/// The cubes that cover a match. The default is that of a match without packets.
#[derive(Clone, Debug, Default)]
pub struct Expansion {
    /// None: no packet can match.
    pub cubes: Vec<Cube>,
    /// The keys that the cubes do not match exactly.
    pub software: Vec<UndecidedKey>,
}

/// Removes from the cubes of a match the conditions that the device refuses.
pub(crate) fn legalize(expansion: &mut Expansion, matches: &Match, profile: &DeviceModel) {
    let mut notes = Vec::new();
    let mut changed = false;
    for cube in &mut expansion.cubes {
        let legalized = legalized(*cube, matches, profile, &mut notes);
        changed |= legalized != *cube;
        *cube = legalized;
    }
    if changed {
        let mut seen = HashSet::new();
        expansion.cubes.retain(|cube| seen.insert((cube.value, cube.mask)));
    }
    for note in notes {
        if !expansion.software.iter().any(|known| known.key == note.key) {
            expansion.software.push(note);
        }
    }
}

/// Why the device cannot match a cube exactly; `None` if it can.
pub(crate) fn refusal(cube: &Cube, profile: &DeviceModel) -> Option<UndecidedReason> {
    let mut notes = Vec::new();
    // The keys of the match do not matter here.
    let legal = legalized(*cube, &Match::default(), profile, &mut notes);
    let why = notes.first().map(|note| note.why);
    why.or_else(|| (legal != *cube).then_some(UndecidedReason::NoSpec))
}

/// The smallest cube that a flow of this device can match and that contains the given one.
pub(crate) fn matchable(cube: &Cube, profile: &DeviceModel) -> Cube {
    let present = cube.without_absences().closed().unwrap_or(*cube);
    legalized(present, &Match::default(), profile, &mut Vec::new())
}

/// A cube that is being made legal.
struct Legalizer<'f> {
    cube: Cube,
    /// The match of the cube, for the keys in messages.
    matches: &'f Match,
    profile: &'f DeviceModel,
    notes: &'f mut Vec<UndecidedKey>,
}

fn legalized(cube: Cube, matches: &Match, profile: &DeviceModel, notes: &mut Vec<UndecidedKey>) -> Cube {
    let nothing_to_do = profile.refusals.is_empty() && !profile.multicast_ignores_priority;
    if nothing_to_do && !cube.has(HAS_INNER) && cube.mask_of(RESERVED_FLAG) == 0 {
        return cube;
    }
    let mut legalizer = Legalizer { cube: cube.without_absences(), matches, profile, notes };
    legalizer.tunnel();
    legalizer.network();
    legalizer.link();
    // Removing conditions causes no contradiction.
    legalizer.cube.closed().unwrap_or(cube)
}

/// The headers of a tunnel.
struct Tunnel {
    layer: Slot,
    /// The feature that a flow with its fields needs, and the key that is reported without it.
    feature: (Feature, &'static str),
    /// The feature and the key of a flow with a spec that matches none of its fields.
    without_fields: (Feature, &'static str),
}

const TUNNELS: [Tunnel; 4] = [
    Tunnel {
        layer: HAS_ESP,
        feature: (Feature::Esp, "esp_spi"),
        without_fields: (Feature::AnyEsp, "esp_seq"),
    },
    Tunnel {
        layer: HAS_VXLAN,
        feature: (Feature::Vxlan, "vxlan_vni"),
        without_fields: (Feature::AnyVxlan, "vxlan_vni"),
    },
    Tunnel {
        layer: HAS_GRE,
        feature: (Feature::Gre, "gre_protocol"),
        without_fields: (Feature::AnyGre, "gre_flags"),
    },
    Tunnel { layer: HAS_MPLS, feature: (Feature::Mpls, "mpls"), without_fields: (Feature::AnyMpls, "mpls") },
];

impl Tunnel {
    fn slots(&self) -> impl Iterator<Item = Slot> + Clone {
        let layer = self.layer;
        let rows = FIELDS.iter().filter(move |row| row.header.tunnel_layer() == Some(layer));
        // A label stack is not in the table of fields.
        rows.flat_map(|row| row.slots).copied().chain((layer == HAS_MPLS).then_some(MPLS_TOP))
    }
}

impl Legalizer<'_> {
    /// Removes fields if the device refuses the feature and the cube has a condition on one of them.
    fn refuse(&mut self, feature: Feature, key: &str, fields: impl IntoIterator<Item = Slot> + Clone) {
        let Some(refusal) = self.profile.refusal(feature) else { return };
        if fields.clone().into_iter().any(|field| self.cube.mask_of(field) != 0) {
            let errno = refusal.errno;
            self.clear(fields);
            self.note(key, UndecidedReason::Refused { feature, errno });
        }
    }

    fn clear(&mut self, fields: impl IntoIterator<Item = Slot>) {
        self.cube = fields.into_iter().fold(self.cube, Cube::without);
    }

    fn note(&mut self, key: &str, why: UndecidedReason) {
        if !self.notes.iter().any(|note| note.key == key) {
            self.notes.push(UndecidedKey { key: key.to_owned(), why });
        }
    }

    fn tunnel(&mut self) {
        self.refuse(Feature::EspSeq, "esp_seq", [ESP_SEQ]);
        self.gre_flags();
        for tunnel in &TUNNELS {
            let (feature, key) = tunnel.feature;
            self.refuse(feature, key, [tunnel.layer].into_iter().chain(tunnel.slots()));
        }
        let inside = LEVEL_SLOTS.into_iter().map(Slot::inside);
        self.refuse(Feature::Inner, "inner", inside.clone().chain([HAS_INNER]));
        if self.cube.has(HAS_INNER) && inside.clone().all(|field| self.cube.mask_of(field) == 0) {
            self.clear([HAS_INNER]);
            self.note("inner", UndecidedReason::NoSpec);
        }
        if self.cube.has(HAS_INNER) {
            self.inner();
        }
        self.presence();
    }

    /// The packet inside: what the device refuses of an outer header it refuses here as well.
    fn inner(&mut self) {
        if self.cube.has(HAS_IPV6.inside())
            && let Some(refusal) = self.profile.refusal(Feature::Ipv6)
        {
            let errno = refusal.errno;
            self.clear(LEVEL_SLOTS.into_iter().filter(|slot| slot.is_network()).map(Slot::inside));
            self.note("inner.family", UndecidedReason::Refused { feature: Feature::Ipv6, errno });
        }
        self.ip_fields("inner.", Slot::inside);
        if ![HAS_TCP, HAS_UDP].into_iter().any(|layer| self.cube.has(layer.inside())) {
            self.refuse(Feature::Protocol, "inner.protocol", [PROTOCOL.inside()]);
        }
        self.refuse(Feature::SrcMac, "inner.src_mac", [SRC_MAC.inside()]);
    }

    /// The fields of the IP header of one packet.
    fn ip_fields(&mut self, prefix: &str, at: fn(Slot) -> Slot) {
        let is_ipv6 = self.cube.has(at(HAS_IPV6));
        for field in Field::all().filter(|field| field.row().header.is_ip()) {
            if let Some(feature) = Feature::of_ip_field(field, is_ipv6)
                && !self.profile.allows(feature)
            {
                let key = format!("{prefix}{}", field.name());
                self.refuse(feature, &key, field.row().slots.iter().copied().map(at));
            }
        }
        self.reserved_flag(prefix, at(RESERVED_FLAG));
    }

    /// Removes tunnel headers without conditions on their fields if the device ignores such specs: its flow
    /// would match all packets whose IP or UDP header announces the tunnel, truncated ones included. A packet
    /// inside is only found behind a complete tunnel header, so matching it is enough.
    fn presence(&mut self) {
        for tunnel in &TUNNELS {
            let (feature, key) = tunnel.without_fields;
            let is_bare = self.cube.has(tunnel.layer)
                && !self.cube.has(HAS_INNER)
                && tunnel.slots().all(|field| self.cube.mask_of(field) == 0);
            if is_bare && !self.profile.allows(feature) {
                self.clear([tunnel.layer]);
                self.note(
                    key_of(self.matches, tunnel.layer).unwrap_or(key),
                    UndecidedReason::PresenceIgnored { feature },
                );
            }
        }
    }

    /// Legalizes TCP and UDP headers, but the condition stays, because it selects the hash variant and so the
    /// queue pair. The flow also matches packets without the header, such as later fragments.
    fn ports(&mut self) {
        let inner = self.matches.inner.as_deref();
        let outer = (self.matches, "", [HAS_TCP, HAS_UDP, SRC_PORT, DST_PORT]);
        let inner = inner.map(|inner| (inner, "inner.", outer.2.map(Slot::inside)));
        for (matches, prefix, [tcp, udp, src_port, dst_port]) in [Some(outer), inner].into_iter().flatten() {
            let Some(port) = [Field::DstPort, Field::SrcPort].into_iter().find(|port| matches.has(*port))
            else {
                continue;
            };
            let is_bare = (self.cube.has(tcp) || self.cube.has(udp))
                && self.cube.mask_of(src_port) | self.cube.mask_of(dst_port) == 0;
            if is_bare && !self.profile.allows(Feature::AnyPorts) {
                self.note(
                    &format!("{prefix}{}", port.name()),
                    UndecidedReason::PresenceIgnored { feature: Feature::AnyPorts },
                );
            }
        }
    }

    /// `enum ib_ipv4_flags` (rdma/ib_verbs.h of the kernel) names the other two and not this one.
    fn reserved_flag(&mut self, prefix: &str, flag: Slot) {
        if self.cube.mask_of(flag) != 0 {
            self.clear([flag]);
            self.note(&format!("{prefix}{}", Field::IpFlags.name()), UndecidedReason::NoSpec);
        }
    }

    /// Without the K bit, a device also matches a key of 0 in packets without a key.
    fn gre_flags(&mut self) {
        if let Some(refusal) = self.profile.refusal(Feature::GreFlags) {
            let why = UndecidedReason::Refused { feature: Feature::GreFlags, errno: refusal.errno };
            let flags = self.cube.mask_of(GRE_FLAGS);
            let key = self.cube.mask_of(GRE_KEY);
            self.clear([GRE_FLAGS]);
            let brought_along = flags == u64::from(GRE_HAS_KEY) && key != 0;
            if flags != 0 && !brought_along {
                let written =
                    [Field::GreFlags, Field::GreKey].into_iter().find(|field| self.matches.has(*field));
                self.note(written.unwrap_or(Field::GreKey).name(), why);
            }
            if key != 0 && self.cube.value_of(GRE_KEY) == 0 {
                self.note("gre_key", why);
            }
        }
    }

    fn network(&mut self) {
        if self.cube.has(HAS_IPV6)
            && let Some(refusal) = self.profile.refusal(Feature::Ipv6)
        {
            let errno = refusal.errno;
            let own = LEVEL_SLOTS.into_iter().filter(|field| field.is_network());
            self.clear(own.chain(LEVEL_SLOTS.map(Slot::inside)).chain(TUNNEL_SLOTS));
            self.note("family", UndecidedReason::Refused { feature: Feature::Ipv6, errno });
            return;
        }
        self.ip_fields("", |slot| slot);
        self.ports();
        let implied = [HAS_TCP, HAS_UDP, HAS_GRE].into_iter().any(|layer| self.cube.has(layer));
        if !implied {
            self.refuse(Feature::Protocol, "protocol", [PROTOCOL]);
        }
    }

    fn link(&mut self) {
        self.refuse(Feature::SrcMac, "src_mac", [SRC_MAC]);
        self.refuse(Feature::Vlan, "vlan", [VLAN_TCI]);
        let is_ip = self.cube.has(HAS_IPV4) || self.cube.has(HAS_IPV6);
        // An IP spec implies the type.
        if !is_ip {
            self.refuse(Feature::EtherType, "ethertype", [ETHER_TYPE]);
        }
        let (value, mask) = (self.cube.value_of(DST_MAC), self.cube.mask_of(DST_MAC));
        let only_multicast = value & mask & GROUP_BIT != 0;
        if self.profile.multicast_ignores_priority && only_multicast && mask != GROUP_BIT {
            let octets = mask & !GROUP_BIT;
            self.cube = self.cube.without(DST_MAC).with(DST_MAC, value, octets).unwrap_or(self.cube);
            self.note("dst_mac", UndecidedReason::Multicast);
        }
    }
}

/// The first key of the match that needs this layer of a tunnel.
fn key_of(matches: &Match, layer: Slot) -> Option<&'static str> {
    let mut fields = matches.values().map(|(field, _)| field);
    fields.find(|field| field.row().header.tunnel_layer() == Some(layer)).map(Field::name)
}

/// Whether the cube matches only multicast, so that a device with `multicast_ignores_priority` applies its
/// flow after all others.
pub(crate) fn is_multicast_only(cube: &Cube) -> bool {
    cube.value_of(DST_MAC) & cube.mask_of(DST_MAC) & GROUP_BIT != 0
}

/// Whether this device applies the cube's flow after all others.
pub(crate) fn comes_last(cube: &Cube, profile: &DeviceModel) -> bool {
    profile.multicast_ignores_priority && is_multicast_only(cube)
}

/// The cube widened to unicast and multicast, so that the device respects its priority.
pub(crate) fn without_group_bit(cube: &Cube) -> Cube {
    let mask = cube.mask_of(DST_MAC) & !GROUP_BIT;
    let open = cube.without_absences().without(DST_MAC);
    open.with(DST_MAC, cube.value_of(DST_MAC), mask).and_then(Cube::closed).unwrap_or(open)
}

/// The test that a worker must make on a device without flow tags.
pub(crate) fn no_tags(profile: &DeviceModel) -> UndecidedKey {
    let errno = profile.refusal(Feature::Tag).map_or(Errno::Eopnotsupp, |refusal| refusal.errno);
    UndecidedKey {
        key: "flow tags".to_owned(),
        why: UndecidedReason::Refused { feature: Feature::Tag, errno },
    }
}

//! Cubes to what one device can be told: fields that it refuses are taken out of them, and the keys that
//! the worker must finish instead are named with the device's errno. Called by `expand` and `exceptions`;
//! decides by the rows of the profile alone.

use std::collections::HashSet;

use device_model::DeviceProfile;
use program::{Errno, Feature, Match, Unfinished, Why};

use super::cube::{
    Cube, DST_MAC, DST_PORT, ESP_SEQ, ESP_SPI, ETHER_TYPE, FLOW_LABEL, Field, GRE_FLAGS, GRE_KEY,
    GRE_PROTOCOL, HAS_ESP, HAS_GRE, HAS_INNER, HAS_IPV4, HAS_IPV6, HAS_MPLS, HAS_TCP, HAS_UDP, HAS_VXLAN,
    IP_FLAGS, LEVEL_FIELDS, MPLS_TOP, PROTOCOL, RESERVED_FLAG, SRC_MAC, SRC_PORT, TOS, TTL, TUNNEL_FIELDS,
    VLAN_TCI, VXLAN_VNI,
};
use super::expand::Expansion;
use super::tunnel::GRE_HAS_KEY;

/// The bit of the first octet that makes an address a group's.
const GROUP_BIT: u64 = 1 << 40;

/// Takes out of the expansion of a match what the device refuses.
pub(super) fn fit(expansion: &mut Expansion, matches: &Match, profile: &DeviceProfile) {
    let mut notes = Vec::new();
    let mut changed = false;
    for cube in &mut expansion.cubes {
        let fitted = fitted(*cube, matches, profile, &mut notes);
        changed |= fitted != *cube;
        *cube = fitted;
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

/// Why the device cannot be told a cube as it is; `None` if it can.
pub(super) fn refusal(cube: &Cube, profile: &DeviceProfile) -> Option<Why> {
    let mut notes = Vec::new();
    // Which keys are meant is nobody's question here.
    let told = fitted(*cube, &Match::default(), profile, &mut notes);
    let why = notes.first().map(|note| note.why);
    why.or_else(|| (told != *cube).then_some(Why::NoWords))
}

/// The least that a flow of this device takes which takes all of a cube.
pub(super) fn tellable(cube: &Cube, profile: &DeviceProfile) -> Cube {
    let told = cube.told().closed().unwrap_or(*cube);
    fitted(told, &Match::default(), profile, &mut Vec::new())
}

/// A cube on its way to what a device takes.
struct Fitting<'f> {
    cube: Cube,
    /// What the cube came from: the operator is told the keys that he wrote.
    matches: &'f Match,
    profile: &'f DeviceProfile,
    notes: &'f mut Vec<Unfinished>,
}

fn fitted(cube: Cube, matches: &Match, profile: &DeviceProfile, notes: &mut Vec<Unfinished>) -> Cube {
    let nothing_to_do = profile.refusals.is_empty() && !profile.multicast_ignores_priority;
    if nothing_to_do && !cube.has(HAS_INNER) && cube.mask_of(RESERVED_FLAG) == 0 {
        return cube;
    }
    let mut fitting = Fitting { cube: cube.told(), matches, profile, notes };
    fitting.tunnel();
    fitting.network();
    fitting.link();
    // Fewer masks contradict each other no more than more did.
    fitting.cube.closed().unwrap_or(cube)
}

impl Fitting<'_> {
    /// Takes fields out if the device refuses the feature and the cube asks for it.
    fn refuse(&mut self, feature: Feature, key: &str, fields: &[Field]) {
        let Some(refusal) = self.profile.refusal(feature) else { return };
        if fields.iter().any(|field| self.cube.mask_of(*field) != 0) {
            let errno = refusal.errno;
            self.clear(fields);
            self.note(key, Why::Refused { feature, errno });
        }
    }

    fn clear(&mut self, fields: &[Field]) {
        self.cube = fields.iter().fold(self.cube, |cube, field| cube.without(*field));
    }

    fn note(&mut self, key: &str, why: Why) {
        if !self.notes.iter().any(|note| note.key == key) {
            self.notes.push(Unfinished { key: key.to_owned(), why });
        }
    }

    fn tunnel(&mut self) {
        self.refuse(Feature::EspSeq, "esp_seq", &[ESP_SEQ]);
        self.refuse(Feature::Esp, "esp_spi", &[HAS_ESP, ESP_SPI, ESP_SEQ]);
        self.refuse(Feature::Vxlan, "vxlan_vni", &[HAS_VXLAN, VXLAN_VNI]);
        self.refuse(Feature::Mpls, "mpls", &[HAS_MPLS, MPLS_TOP]);
        self.gre();
        let inside: Vec<Field> = LEVEL_FIELDS.iter().map(|field| field.inside()).collect();
        let all: Vec<Field> = inside.iter().copied().chain([HAS_INNER]).collect();
        self.refuse(Feature::Inner, "inner", &all);
        let says_something = inside.iter().any(|field| self.cube.mask_of(*field) != 0);
        if self.cube.has(HAS_INNER) && !says_something {
            self.clear(&[HAS_INNER]);
            self.note("inner", Why::NoWords);
        }
        if self.cube.has(HAS_INNER) {
            self.refuse(Feature::Ttl, "inner.ttl", &[TTL.inside()]);
            self.refuse(Feature::IpFlags, "inner.ip_flags", &[IP_FLAGS.inside()]);
            self.reserved_flag("inner.ip_flags", RESERVED_FLAG.inside());
        }
        self.headers();
    }

    /// A device that reads a spec of no field as none would take all that the carrier announces, cut or not:
    /// that is what it is told then. A packet inside is behind a whole header only, so asking for it does.
    fn headers(&mut self) {
        let (esp, gre) = (esp_key(self.matches), gre_key(self.matches));
        let headers: [(Feature, &str, Field, &[Field]); 4] = [
            (Feature::AnyEsp, esp, HAS_ESP, &[ESP_SPI, ESP_SEQ]),
            (Feature::AnyVxlan, "vxlan_vni", HAS_VXLAN, &[VXLAN_VNI]),
            (Feature::AnyGre, gre, HAS_GRE, &[GRE_PROTOCOL, GRE_KEY, GRE_FLAGS]),
            (Feature::AnyMpls, "mpls", HAS_MPLS, &[MPLS_TOP]),
        ];
        for (feature, key, header, fields) in headers {
            let is_bare = self.cube.has(header) && fields.iter().all(|field| self.cube.mask_of(*field) == 0);
            if is_bare && !self.cube.has(HAS_INNER) && !self.profile.allows(feature) {
                self.clear(&[header]);
                self.note(key, Why::Unseen { feature });
            }
        }
    }

    /// The same of TCP and UDP. The flow stays as it is, for the sake of its queue pair: what it takes beside,
    /// later fragments among them, meets no other flows than these packets do.
    fn ports(&mut self) {
        let inner = self.matches.inner.as_deref();
        let outer = (self.matches, "", [HAS_TCP, HAS_UDP, SRC_PORT, DST_PORT]);
        let inner = inner.map(|inner| (inner, "inner.", outer.2.map(Field::inside)));
        for (matches, prefix, [tcp, udp, src_port, dst_port]) in [Some(outer), inner].into_iter().flatten() {
            let key = match (&matches.dst_port, &matches.src_port) {
                (Some(_), _) => "dst_port",
                (_, Some(_)) => "src_port",
                _ => continue,
            };
            let is_bare = (self.cube.has(tcp) || self.cube.has(udp))
                && self.cube.mask_of(src_port) | self.cube.mask_of(dst_port) == 0;
            if is_bare && !self.profile.allows(Feature::AnyPorts) {
                self.note(&format!("{prefix}{key}"), Why::Unseen { feature: Feature::AnyPorts });
            }
        }
    }

    /// `enum ib_ipv4_flags` (rdma/ib_verbs.h of the kernel) names the other two and not this one.
    fn reserved_flag(&mut self, key: &str, flag: Field) {
        if self.cube.mask_of(flag) != 0 {
            self.clear(&[flag]);
            self.note(key, Why::NoWords);
        }
    }

    /// A key of 0 is also what a device reads where there is none, unless it is asked for the K bit.
    fn gre(&mut self) {
        if let Some(refusal) = self.profile.refusal(Feature::GreFlags) {
            let why = Why::Refused { feature: Feature::GreFlags, errno: refusal.errno };
            let flags = self.cube.mask_of(GRE_FLAGS);
            let key = self.cube.mask_of(GRE_KEY);
            self.clear(&[GRE_FLAGS]);
            let brought_along = flags == GRE_HAS_KEY && key != 0;
            if flags != 0 && !brought_along {
                let written = if self.matches.gre_flags.is_some() { "gre_flags" } else { "gre_key" };
                self.note(written, why);
            }
            if key != 0 && self.cube.value_of(GRE_KEY) == 0 {
                self.note("gre_key", why);
            }
        }
        self.refuse(Feature::Gre, "gre_protocol", &[HAS_GRE, GRE_PROTOCOL, GRE_KEY, GRE_FLAGS]);
    }

    fn network(&mut self) {
        if self.cube.has(HAS_IPV6)
            && let Some(refusal) = self.profile.refusal(Feature::Ipv6)
        {
            let errno = refusal.errno;
            let own = LEVEL_FIELDS.iter().filter(|field| field.is_network());
            let inside = LEVEL_FIELDS.iter().map(|field| field.inside());
            let fields: Vec<Field> = own.copied().chain(inside).chain(TUNNEL_FIELDS).collect();
            self.clear(&fields);
            self.note("family", Why::Refused { feature: Feature::Ipv6, errno });
            return;
        }
        self.refuse(Feature::Tos, "tos", &[TOS]);
        let life = if self.cube.has(HAS_IPV6) { Feature::HopLimit } else { Feature::Ttl };
        self.refuse(life, "ttl", &[TTL]);
        self.refuse(Feature::IpFlags, "ip_flags", &[IP_FLAGS]);
        self.reserved_flag("ip_flags", RESERVED_FLAG);
        self.refuse(Feature::FlowLabel, "flow_label", &[FLOW_LABEL]);
        self.ports();
        let implied = [HAS_TCP, HAS_UDP, HAS_GRE].into_iter().any(|layer| self.cube.has(layer));
        if !implied {
            self.refuse(Feature::Protocol, "protocol", &[PROTOCOL]);
        }
    }

    fn link(&mut self) {
        self.refuse(Feature::SrcMac, "src_mac", &[SRC_MAC]);
        self.refuse(Feature::Vlan, "vlan", &[VLAN_TCI]);
        let is_ip = self.cube.has(HAS_IPV4) || self.cube.has(HAS_IPV6);
        // An IP spec says the type by itself.
        if !is_ip {
            self.refuse(Feature::EtherType, "ethertype", &[ETHER_TYPE]);
        }
        let (value, mask) = (self.cube.value_of(DST_MAC), self.cube.mask_of(DST_MAC));
        let only_multicast = value & mask & GROUP_BIT != 0;
        if self.profile.multicast_ignores_priority && only_multicast && mask != GROUP_BIT {
            let octets = mask & !GROUP_BIT;
            self.cube = self.cube.without(DST_MAC).with(DST_MAC, value, octets).unwrap_or(self.cube);
            self.note("dst_mac", Why::Multicast);
        }
    }
}

/// The key that asks for an ESP header.
fn esp_key(matches: &Match) -> &'static str {
    if matches.esp_spi.is_some() { "esp_spi" } else { "esp_seq" }
}

/// The key that asks for a GRE header.
fn gre_key(matches: &Match) -> &'static str {
    match (&matches.gre_protocol, &matches.gre_key) {
        (Some(_), _) => "gre_protocol",
        (_, Some(_)) => "gre_key",
        _ => "gre_flags",
    }
}

/// Whether the device, by `multicast_ignores_priority`, takes the cube's flow after all others.
pub(super) fn is_multicast_only(cube: &Cube) -> bool {
    cube.value_of(DST_MAC) & cube.mask_of(DST_MAC) & GROUP_BIT != 0
}

/// Whether this device takes the cube's flow after all others.
pub(super) fn comes_last(cube: &Cube, profile: &DeviceProfile) -> bool {
    profile.multicast_ignores_priority && is_multicast_only(cube)
}

/// The cube without what makes it multicast only, for where its place matters.
pub(super) fn any_cast(cube: &Cube) -> Cube {
    let mask = cube.mask_of(DST_MAC) & !GROUP_BIT;
    let open = cube.told().without(DST_MAC);
    open.with(DST_MAC, cube.value_of(DST_MAC), mask).and_then(Cube::closed).unwrap_or(open)
}

/// What the worker finishes where the device tells it nothing of the flow.
pub(super) fn no_tags(profile: &DeviceProfile) -> Unfinished {
    let errno = profile.refusal(Feature::Tag).map_or(Errno::Eopnotsupp, |refusal| refusal.errno);
    Unfinished { key: "flow tags".to_owned(), why: Why::Refused { feature: Feature::Tag, errno } }
}

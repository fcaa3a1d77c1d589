//! Small random policies and all packets that they may distinguish: for each key that a policy uses, frames
//! with a value of each segment into which the keys' values divide the field, and of each combination of
//! these. All headers of the frames are whole, but for a first fragment whose header continues in the next.

use std::collections::HashSet;
use std::fmt::Write as _;

use packet::build::{FrameBuilder, mpls_label};
use packet::{BRIDGED_ETHERNET, DeepKey, EtherType, Field, IpProtocol, Layers, MPLS_UDP_PORT, MacAddr};

/// Numbers without a pattern; the same for the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// One of these.
    fn pick<'v, T>(&mut self, values: &'v [T]) -> &'v T {
        &values[self.below(values.len())]
    }

    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// A key of the language with some conditions on it, and the frames that these distinguish.
struct Axis {
    conditions: &'static [&'static str],
    /// The frames with each of the values, of one frame.
    frames: fn(&FrameBuilder) -> Vec<FrameBuilder>,
}

const AXES: [Axis; 16] = [
    Axis {
        conditions: &[
            "tcp_flags = 'syn'",
            "tcp_flags = 'syn,!ack'",
            "tcp_flags = 'syn,fin'",
            "tcp_flags = 'fin,ack'",
            "tcp_flags = ['psh', 'urg']",
            "tcp_flags = 'ece,cwr'",
            "tcp_flags = '!ack,!rst'",
            "tcp_flags = 'ack'",
        ],
        frames: |frame| values(frame, Field::TcpFlags, &(0..=255).collect::<Vec<_>>()),
    },
    Axis {
        conditions: &[
            "dst_port = 22",
            "dst_port = [80, 8081]",
            "dst_port = '1-1023'",
            "dst_port = { not = 22 }",
            "dst_port = [9, 53, 443, 8081]",
            "dst_port = 9",
        ],
        frames: |frame| values(frame, Field::DstPort, &[0, 1, 9, 22, 53, 80, 443, 1024, 4789, 8081, 9000]),
    },
    Axis {
        conditions: &["src_port = 49152", "src_port = '1024-65535'", "src_port = { not = [53, 49152] }"],
        frames: |frame| values(frame, Field::SrcPort, &[1, 53, 1024, 49152]),
    },
    Axis {
        conditions: &[
            "icmp_type = 8",
            "icmp_type = [0, 3, 11]",
            "icmp_type = { not = 8 }",
            "icmp_type = 3, icmp_code = 4",
        ],
        frames: |frame| {
            let types = message_types(frame, Layers::ICMP, &[0, 3, 5, 8, 11]);
            types.iter().flat_map(|frame| values(frame, Field::IcmpCode, &[0, 4])).collect()
        },
    },
    Axis {
        conditions: &[
            "icmpv6_type = [133, 134, 135, 136, 137]",
            "icmpv6_type = 135",
            "icmpv6_type = { not = 128 }",
            "icmpv6_type = '1-4'",
        ],
        frames: |frame| message_types(frame, Layers::ICMPV6, &[0, 2, 128, 129, 133, 135, 137, 143]),
    },
    Axis {
        conditions: &[
            "src = '192.0.2.0/24'",
            "src = '192.0.2.1'",
            "src = ['192.0.2.1', '2001:db8::/32']",
            "src = { not = '192.0.2.0/24' }",
            "src = '2001:db8::1'",
        ],
        frames: |frame| addresses(frame, [Field::SrcV4, Field::SrcV6]),
    },
    Axis {
        conditions: &[
            "dst = '192.0.2.0/24'",
            "dst = '192.0.2.1'",
            "dst = ['192.0.2.1', '2001:db8::/32']",
            "dst = { not = ['192.0.2.1', '2001:db8::1'] }",
            "dst = '198.51.100.1'",
        ],
        frames: |frame| addresses(frame, [Field::DstV4, Field::DstV6]),
    },
    Axis {
        conditions: &["ttl = 64", "ttl = '1-63'", "ttl = { not = 64 }", "hop_limit = 255"],
        frames: |frame| values(frame, Field::Ttl, &[0, 1, 64, 128, 255]),
    },
    Axis { conditions: &["vlan = 5", "vlan = 'none'", "vlan = 'any'", "vlan = '0-5'"], frames: tags },
    Axis { conditions: &["inner_vlan = 6", "inner_vlan = 'none'", "inner_vlan = 'any'"], frames: tags },
    Axis {
        conditions: &["fragment = 'later'", "fragment = 'first'", "fragment = 'none'", "fragment = 'any'"],
        frames: |frame| {
            let parts = [(0, true), (8, true), (8, false)];
            let parts = parts.map(|(offset, more)| frame.clone().fragment(offset, more));
            [frame.clone()].into_iter().chain(parts).collect()
        },
    },
    Axis {
        conditions: &["ip_options = true", "ip_options = false"],
        frames: |frame| {
            // Frames of other headers ignore them.
            vec![frame.clone(), frame.clone().ip_options(&[1, 1, 1, 0])]
        },
    },
    Axis {
        conditions: &[
            "protocol = 'tcp'",
            "protocol = 'udp'",
            "protocol = ['tcp', 'udp']",
            "protocol = { not = 'tcp' }",
            "protocol = 'icmp'",
            "protocol = 'icmpv6'",
            "protocol = 'ospf'",
            "family = 'ipv4'",
            "family = 'ipv6'",
        ],
        frames: |frame| vec![frame.clone()],
    },
    Axis {
        conditions: &[
            "ethertype = 'arp'",
            "ethertype = 0x88b5",
            "ethertype = 'ipv6'",
            "ethertype = { not = 'ipv4' }",
        ],
        frames: |frame| vec![frame.clone()],
    },
    Axis {
        conditions: &[
            "dst_mac = '02:00:00:00:00:02'",
            "dst_mac = { not = '02:00:00:00:00:02' }",
            "dst_mac = 'multicast'",
        ],
        frames: |frame| values(frame, Field::DstMac, &[0x0200_0000_0002, 0x0200_0000_0003, 0x0100_5e00_0001]),
    },
    Axis {
        conditions: &[
            "vxlan_vni = 7",
            "vxlan_vni = '1-7'",
            "vxlan_vni = 7, inner.dst_port = 22",
            "inner.tcp_flags = 'syn'",
            "inner.protocol = 'tcp'",
            "inner.fragment = 'later'",
            "inner.ttl = 64, vxlan_vni = 8",
        ],
        frames: tunnels,
    },
];

fn values(frame: &FrameBuilder, field: Field, values: &[u128]) -> Vec<FrameBuilder> {
    values.iter().map(|value| frame.clone().set(field, *value)).collect()
}

/// The messages of one version of ICMP; other frames do not change.
fn message_types(frame: &FrameBuilder, layer: Layers, types: &[u128]) -> Vec<FrameBuilder> {
    match DeepKey::of(&frame.build()).outer.layers.contains(layer) {
        true => values(frame, Field::IcmpType, types),
        false => vec![frame.clone()],
    }
}

fn addresses(frame: &FrameBuilder, [v4, v6]: [Field; 2]) -> Vec<FrameBuilder> {
    let v4_values = [0xc000_0201, 0xc000_0209, 0xc633_6401, 0x0a00_0001];
    let v6_values = [0x2001_0db8 << 96 | 1, 0x2001_0db8 << 96 | 9, 0xfd00 << 112 | 1];
    // Frames of the other version do not change.
    values(frame, v4, &v4_values).iter().flat_map(|frame| values(frame, v6, &v6_values)).collect()
}

fn tags(frame: &FrameBuilder) -> Vec<FrameBuilder> {
    let lists: [&[(EtherType, u16)]; 8] = [
        &[],
        &[(EtherType::VLAN, 5)],
        &[(EtherType::VLAN, 4)],
        &[(EtherType::VLAN, 6)],
        &[(EtherType::SVLAN, 5)],
        &[(EtherType::VLAN, 5), (EtherType::VLAN, 6)],
        &[(EtherType::SVLAN, 5), (EtherType::VLAN, 6)],
        &[(EtherType::VLAN, 6), (EtherType::SVLAN, 6)],
    ];
    let tagged = |list: &[(EtherType, u16)]| {
        list.iter().fold(frame.clone(), |frame, (tpid, tci)| frame.vlan(*tpid, *tci))
    };
    lists.into_iter().map(tagged).collect()
}

/// The frame itself, and tunnels with packets inside that follow headers like its own.
fn tunnels(frame: &FrameBuilder) -> Vec<FrameBuilder> {
    let mut frames = vec![frame.clone()];
    // UDP to the ports of VXLAN and MPLS whose payload is something else.
    frames.push(frame.clone().set(Field::DstPort, 4789).payload(&[0; 16]));
    frames.push(frame.clone().set(Field::DstPort, MPLS_UDP_PORT.into()).payload(&[0; 3]));
    let key = DeepKey::of(&frame.build()).outer;
    let insides = insides();
    let labels = [mpls_label(16, 0)];
    if key.layers.contains(Layers::UDP) && key.dst_port == 9 {
        for vni in [0, 3, 7, 8] {
            frames.extend(insides.iter().map(|inside| frame.clone().vxlan(vni, &inside.build())));
        }
        frames.extend(insides.iter().map(|inside| frame.clone().mpls(&labels, &inside.build_packet())));
    }
    if key.protocol == IpProtocol::OSPF.0 && key.layers.intersects(Layers::IPV4 | Layers::IPV6) {
        for inside in &insides {
            let (packet, is_v6) = (inside.build_packet(), DeepKey::of(&inside.build()).outer.layers);
            let inner = if is_v6.contains(Layers::IPV6) { EtherType::IPV6 } else { EtherType::IPV4 };
            frames.push(frame.clone().gre(inner, None, &packet));
            frames.push(frame.clone().gre(BRIDGED_ETHERNET, Some(7), &inside.build()));
            frames.push(frame.clone().ip_in_ip(&packet));
        }
    }
    if key.ether_type == EtherType::ARP.0 {
        frames.extend(insides.iter().map(|inside| frame.clone().mpls(&labels, &inside.build_packet())));
    }
    frames
}

/// Packets inside tunnels.
fn insides() -> Vec<FrameBuilder> {
    let (v4, v6) = (v4(), v6());
    vec![
        v4.clone().tcp(1, 22, 0x02),
        v4.clone().tcp(1, 22, 0x10),
        v4.clone().tcp(1, 23, 0x12),
        v6.clone().tcp(1, 23, 0x02),
        v6.clone().tcp(1, 22, 0x10),
        v4.clone().udp(1, 22),
        v6.clone().udp(1, 23),
        v4.clone().ttl(1).tcp(1, 22, 0x02),
        v4.clone().ttl(1).udp(1, 23),
        v4.clone().fragment(8, false).tcp(1, 22, 0x02),
        v4.clone().fragment(8, false).protocol(IpProtocol::OSPF),
        v6.clone().fragment(8, false).tcp(1, 22, 0x02),
        v4.protocol(IpProtocol::OSPF),
        v6.protocol(IpProtocol::OSPF),
    ]
}

fn ethernet() -> FrameBuilder {
    FrameBuilder::new().ethernet(MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]))
}

fn v4() -> FrameBuilder {
    ethernet().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 1].into()).ttl(64)
}

fn v6() -> FrameBuilder {
    ethernet().ipv6((0x2001_0db8 << 96 | 1).into(), (0x2001_0db8 << 96 | 2).into()).ttl(64)
}

/// Frames of every stack of headers that the conditions distinguish.
fn kinds() -> Vec<FrameBuilder> {
    let behind = |network: &FrameBuilder| -> Vec<FrameBuilder> {
        let of = |protocol: IpProtocol| network.clone().protocol(protocol);
        vec![
            of(IpProtocol::TCP).tcp(49_152, 9, 0x10),
            of(IpProtocol::UDP).udp(49_152, 9),
            of(IpProtocol::OSPF),
            of(IpProtocol(253)),
        ]
    };
    let mut kinds = Vec::new();
    for (network, own, other) in
        [(v4(), IpProtocol::ICMP, IpProtocol::ICMPV6), (v6(), IpProtocol::ICMPV6, IpProtocol::ICMP)]
    {
        for network in [network.clone(), network.clone().fragment(8, false)] {
            kinds.extend(behind(&network));
            kinds.push(network.clone().protocol(own).icmp(128, 0));
        }
        kinds.push(network.protocol(other));
    }
    // The first eight bytes of a TCP header, of which the next fragment has the others.
    kinds.push(v4().fragment(0, true).protocol(IpProtocol::TCP).payload(&[0; 8]));
    // Destination options, and a fragment header of a packet that is whole.
    for header in [IpProtocol(60), IpProtocol::FRAGMENT] {
        let extended = v6().extension(header);
        kinds.extend(behind(&extended));
        kinds.push(extended.protocol(IpProtocol::ICMPV6).icmp(128, 0));
    }
    kinds.extend([EtherType::ARP, EtherType(0x88b5)].map(|other| ethernet().ether_type(other)));
    kinds
}

/// A policy and every packet that it may distinguish.
pub(crate) struct Sample {
    pub(crate) text: String,
    pub(crate) keys: Vec<DeepKey>,
}

impl Sample {
    pub(crate) fn random(random: &mut Random) -> Self {
        let mut axes: Vec<&Axis> = Vec::new();
        for _ in 0..=random.below(3) {
            let axis = random.pick(&AXES);
            if !axes.iter().any(|own| std::ptr::eq(*own, axis)) {
                axes.push(axis);
            }
        }
        // Packets with a tunnel come before the keys that change their outer headers.
        axes.sort_by_key(|axis| !axis.conditions[0].starts_with("vxlan"));
        let default = *random.pick(&["kernel", "kernel", "drop", "main"]);
        let mut text = format!("version = 1\ndefault = \"{default}\"\n[groups.main]\nworkers = \"all\"\n");
        for index in 0..=random.below(5) {
            let used = axes.iter().filter(|_| random.below(3) > 0).collect::<Vec<_>>();
            let mut conditions: Vec<&str> = used.iter().map(|axis| *random.pick(axis.conditions)).collect();
            // A protocol or a version, beside the others.
            if random.below(3) == 0 && !conditions.iter().any(|one| one.starts_with(['p', 'f'])) {
                conditions.push(*random.pick(AXES[12].conditions));
            }
            let keys = if conditions.is_empty() { "any = true".to_owned() } else { conditions.join(", ") };
            let action = *random.pick(&["\"kernel\"", "\"kernel\"", "\"drop\"", "\"steer main\""]);
            writeln!(text, "[[rules]]\nname = \"r{index}\"\nmatch = {{ {keys} }}\naction = {action}")
                .expect("strings take text");
        }
        let frames = axes
            .iter()
            .fold(kinds(), |frames, axis| frames.iter().flat_map(|frame| (axis.frames)(frame)).collect());
        let mut seen = HashSet::new();
        let mut keys: Vec<DeepKey> = frames.iter().map(|frame| DeepKey::of(&frame.build())).collect();
        keys.retain(|key| seen.insert(*key));
        Self { text, keys }
    }
}

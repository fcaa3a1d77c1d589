//! Random rules subtracted from each other, judged packet by packet by the specs that a device would be
//! given.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::build::FrameBuilder;
use packet::{DeepKey, EtherType, IpProtocol, MacAddr};
use policy::{NoFiles, Source};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;
use crate::cover::expand::expand;
use crate::specs::{Reading, chain};

const PAIRS: usize = 600;
const FRAMES: usize = 60;

/// Values of each key, near each other.
const KEYS: [(&str, &[&str]); 16] = [
    (
        "dst",
        &[
            "192.0.2.1",
            "192.0.2.0/24",
            "192.0.2.0-192.0.2.5",
            "2001:db8::1",
            "2001:db8::/64",
            "0.0.0.0/0",
            "::/0",
        ],
    ),
    ("src", &["192.0.2.7", "192.0.0.0/16", "2001:db8::/127", "224.0.0.0/4"]),
    ("protocol", &["'tcp'", "'udp'", "'ospf'", "'0-17'", "{ not = 'tcp' }", "'0-255'", "'gre'"]),
    ("dst_port", &["22", "'1-65535'", "'0-65535'", "{ not = [22, 80] }", "'20-25'"]),
    ("src_port", &["179", "'1024-65535'"]),
    ("tos", &["0xb8", "'0-0x1f'"]),
    ("ttl", &["255", "'1-64'"]),
    ("flow_label", &["7", "'0-9'"]),
    ("ip_flags", &["'!mf'", "'df'"]),
    ("vlan", &["5", "'4-9'", "'0-4095'"]),
    ("vlan_priority", &["'3-6'"]),
    ("dst_mac", &["'02:00:00:00:00:01'", "'multicast'", "'02:00:00:00:00:00/ff:ff:ff:ff:ff:f0'"]),
    ("ethertype", &["'arp'", "'ipv4'", "{ not = ['ipv4', 'ipv6'] }", "'0x0800-0x08ff'"]),
    ("gre_key", &["5", "'0-255'"]),
    ("gre_protocol", &["0x6558", "'0-65535'"]),
    ("vxlan_vni", &["7", "'0-255'"]),
];

/// The text of a match of a few keys, most of them common ones.
fn match_text() -> impl Strategy<Value = String> {
    let key = prop_oneof![3 => 0..5usize, 1 => 5..KEYS.len()];
    let inner = prop::option::weighted(
        0.15,
        select(vec![
            "{ dst = '10.0.0.0/8' }",
            "{ family = 'ipv4' }",
            "{ dst = '10.1.0.0/16', protocol = 'udp' }",
        ]),
    );
    (vec((key, any::<prop::sample::Index>()), 0..4), inner).prop_map(|(keys, inner)| {
        let mut pairs: BTreeMap<&str, String> = BTreeMap::new();
        for (key, value) in keys {
            let (name, values) = KEYS[key];
            let value = values[value.index(values.len())];
            let is_address = name == "dst" || name == "src";
            pairs.insert(name, if is_address { format!("'{value}'") } else { value.to_owned() });
        }
        pairs.extend(inner.map(|inner| ("inner", inner.to_owned())));
        let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        if pairs.is_empty() { "any = true".to_owned() } else { pairs.join(", ") }
    })
}

/// The cubes that cover a match, if a policy may have it and the device decides it alone.
fn cubes(text: &str, profile: &DeviceModel) -> Option<Vec<Cube>> {
    let text = format!("version = 1\n[[rules]]\nname = 'r'\nmatch = {{ {text} }}\naction = 'drop'\n");
    let (policy, _) = policy::parse(&Source::new("random.toml", text), &NoFiles).ok()?;
    let expansion = expand(&policy.rules[0].matches, Direction::Ingress, profile).ok()?;
    expansion.software.is_empty().then_some(expansion.cubes)
}

fn address() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    let v4 = || {
        let near = (0u8..9).prop_map(|last| Ipv4Addr::new(192, 0, 2, last));
        prop_oneof![4 => near, 1 => select(vec![Ipv4Addr::new(192, 0, 3, 1), Ipv4Addr::new(224, 0, 0, 5)])]
    };
    let v6 = || {
        let near = (0u16..3).prop_map(|last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
        prop_oneof![4 => near, 1 => Just(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1))]
    };
    let v4 = (v4(), v4()).prop_map(|(src, dst)| (IpAddr::V4(src), IpAddr::V4(dst)));
    let v6 = (v6(), v6()).prop_map(|(src, dst)| (IpAddr::V6(src), IpAddr::V6(dst)));
    prop_oneof![2 => v4, 1 => v6]
}

/// Frames with what the keys ask for, some cut short, some with fields a bit off.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let macs = select(vec![[2u8, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9], [1, 0, 0x5e, 0, 0, 5], [0xff; 6]]);
    let tag = prop::option::weighted(
        0.3,
        (select(vec![0x8100u16, 0x8100, 0x88a8]), select(vec![5u16, 4, 6, 0xa005, 200])),
    );
    let ports = || select(vec![0u16, 1, 20, 22, 23, 80, 179, 1024, 4789]);
    let odd =
        (select(vec![0u8, 0xb8, 0x1f]), select(vec![0u8, 1, 64, 255]), 0u8..8, select(vec![0u32, 7, 9]));
    let fragment = prop::option::weighted(0.2, (0u16..2, any::<bool>()));
    let ether_type = select(vec![0x0806u16, 0x0800, 0x86dd, 0x08ff, 100]);
    let body = (0u8..8, ports(), ports(), select(vec![1u8, 6, 17, 47, 89]), 0u32..9, ether_type);
    let cut = prop::option::weighted(0.15, 0usize..80);
    (macs, tag, prop::option::weighted(0.85, address()), odd, fragment, body, cut).prop_map(
        |(
            mac,
            tag,
            network,
            (tos, ttl, flags, label),
            fragment,
            (kind, src, dst, protocol, number, ty),
            cut,
        )| {
            let mut frame =
                FrameBuilder::new().ethernet(MacAddr(mac), MacAddr([2, 0, 0, 0, 0, 3])).payload(&[0; 24]);
            if let Some((tpid, control)) = tag {
                frame = frame.vlan(EtherType(tpid), control);
            }
            let inner = FrameBuilder::new().ip(
                IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1)),
                IpAddr::V4(Ipv4Addr::new(10, number as u8 & 1, 0, 1)),
            );
            let inner = inner.udp(src, dst).build();
            let mut bytes = match network {
                None => frame.ether_type(EtherType(ty)).build(),
                Some((from, to)) => {
                    frame = frame.ip(from, to).tos(tos).ttl(ttl).ip_flags(flags).flow_label(label);
                    if let Some((offset, more)) = fragment {
                        frame = frame.fragment(offset, more);
                    }
                    match kind {
                        0..=2 => frame.tcp(src, dst, 2).build(),
                        3 => frame.udp(src, dst).build(),
                        4 => frame.vxlan(number, &inner).build(),
                        5 => frame.gre(EtherType(0x6558), (number > 3).then_some(number), &inner).build(),
                        _ => frame.protocol(IpProtocol(protocol)).build(),
                    }
                }
            };
            bytes.truncate(cut.unwrap_or(bytes.len()));
            bytes
        },
    )
}

/// Whether a packet meets all specs of a cube's flow.
fn takes(cube: &Cube, key: &DeepKey, profile: &DeviceModel) -> bool {
    chain(cube, Reading::of(profile)).matches(key)
}

/// The cases that the trial has met, so that an empty one is seen.
#[derive(Debug, Default)]
struct Met {
    cut: usize,
    refused: usize,
    pieces: usize,
    in_hole: usize,
    in_piece: usize,
}

fn trial(profile: &DeviceModel) -> Met {
    let mut runner = TestRunner::deterministic();
    let mut met = Met::default();
    let mut value = |strategy: &BoxedStrategy<(String, String, Vec<Vec<u8>>)>| {
        strategy.new_tree(&mut runner).expect("nothing is filtered").current()
    };
    let pairs = (match_text(), match_text(), vec(frame(), FRAMES)).boxed();
    for _ in 0..PAIRS {
        let (exception, later, frames) = value(&pairs);
        let (Some(holes), Some(flows)) = (cubes(&exception, profile), cubes(&later, profile)) else {
            continue;
        };
        let fields = fields(holes.iter());
        let keys: Vec<DeepKey> = frames.iter().map(|frame| DeepKey::of(frame)).collect();
        for (hole, flow) in holes.iter().flat_map(|hole| flows.iter().map(move |flow| (hole, flow))) {
            if !hole.overlaps(flow) {
                continue;
            }
            let pieces = missing_header(flow, hole).map(|()| around(flow, hole, &fields));
            let is_matchable = |piece: &Cube| can_be_matched(piece, flow, profile).is_ok();
            let Some(pieces) = pieces.ok().filter(|pieces| pieces.iter().all(is_matchable)) else {
                met.refused += 1;
                continue;
            };
            met.cut += 1;
            met.pieces += pieces.len();
            assert!(pieces.len() <= bits_beyond(hole, flow), "{exception} out of {later}");
            for key in &keys {
                let taken = pieces.iter().filter(|piece| takes(piece, key, profile)).count();
                let (in_flow, in_hole) = (takes(flow, key, profile), takes(hole, key, profile));
                let wanted = usize::from(in_flow && !in_hole);
                assert_eq!(taken, wanted, "{exception} out of {later} for {key:?}");
                met.in_hole += usize::from(in_flow && in_hole);
                met.in_piece += wanted;
            }
        }
    }
    met
}

#[test]
fn pieces_match_each_packet_outside_the_hole_once() {
    for profile in [DeviceModel::ideal(), DeviceModel::mlx5(), DeviceModel::mlx4()] {
        let met = trial(&profile);
        println!("{}: {met:?}", profile.name);
        assert!(met.cut > 100 && met.refused > 50 && met.pieces > 500, "{}: {met:?}", profile.name);
        assert!(met.in_hole > 100 && met.in_piece > 100, "{}: {met:?}", profile.name);
    }
}

/// The matches of each rule's flows once the exceptions are subtracted.
fn subtracted(rules: &str, profile: &DeviceModel) -> Vec<Vec<Cube>> {
    let text = format!("version = 1\n[groups.main]\nworkers = 'all'\nhash = 'none'\n{rules}");
    let (policy, _) = policy::parse(&Source::new("subtracted.toml", text), &NoFiles).expect("a policy");
    let job = Job::new(&policy, profile, 1);
    let (rules, _) = crate::cover::cover(job.policy, job.profile);
    let (rules, exceptions) = subtract(&job, rules, true);
    let cubes = |index| exceptions.flow_cubes(&rules, RuleId::of(index)).unwrap_or_default().to_vec();
    (0..rules.len()).map(cubes).collect()
}

#[test]
fn ports_are_subtracted_although_packets_without_ports_are_too_many_pieces() {
    // The device has room for few copies, so the packets without ports stay in the flow that copies.
    let device = DeviceModel { max_copies: Some(4), ..DeviceModel::ideal() };
    let rules = "[[rules]]\nname = 'ssh'\nmatch = { dst = ['192.0.2.1', '198.51.100.1'], protocol = 'tcp', dst_port = 22 }
        action = 'kernel'
        [[rules]]\nname = 'copied'\nmatch = { dst = '192.0.2.1' }\naction = { copy = 'main' }
        [[rules]]\nname = 'range'\nmatch = { dst = '198.51.100.1', protocol = 'tcp', dst_port = '16-23' }
        action = { steer = 'main' }\n";
    let cubes = subtracted(rules, &device);
    let [ssh, copied, range] = &cubes[..] else { panic!("three rules") };
    assert_eq!((copied.len(), range.len()), (1, 3), "16-19, 20-21 and 23");
    assert!(!ssh.is_empty() && ssh.iter().all(|kept| kept.overlaps(&copied[0])));
}

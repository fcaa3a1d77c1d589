//! Packets that a policy leaves to the kernel and that a worker receives: which policies lose some, on which
//! devices. `analysis::lost_exceptions` on compiled programs, for single cases and against brute force over a
//! universe of packets.

use std::collections::BTreeMap;

use analysis::lost_exceptions;
use compiler::compile;
use device_model::DeviceModel;
use packet::DeepKey;
use policy::{NoFiles, Policy, Source};
use program::Verdict;
use reports::report;

use crate::support::universe::{Random, Sample};

const WORKERS: usize = 2;

fn policy(text: &str) -> Policy {
    let text = format!("version = 1\n{text}\n");
    let parsed = policy::parse(&Source::new("lost.toml", &text), &NoFiles);
    parsed.unwrap_or_else(|problems| panic!("{problems}\n{text}")).0
}

/// The group and rules of a name, a match and an action.
fn rules(head: &str, rules: &[(&str, &str, &str)]) -> Policy {
    let rules = rules.iter().map(|(name, matches, action)| {
        format!("[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = '{action}'\n")
    });
    policy(&format!("{head}\n[groups.main]\nworkers = 'all'\n{}", rules.collect::<String>()))
}

const CONTROL: (&str, &str, &str) =
    ("control", "dst = '192.0.2.10', protocol = 'tcp', dst_port = [22, 179, 6443, 10250]", "kernel");
const NODE: (&str, &str, &str) = ("rest-of-node", "dst = '192.0.2.10'", "steer main");
const SYN: (&str, &str, &str) =
    ("syn", "protocol = 'tcp', dst_port = 443, tcp_flags = 'syn,!ack'", "steer main");

/// The rules of which a packet is lost, each with the one that takes it; every witness is looked at.
fn lost(policy: &Policy, profile: &DeviceModel) -> Vec<(String, String)> {
    let program = compile(policy, profile, WORKERS).expect("it fits");
    let named = |rule: program::RuleId| program.rules[rule.index()].name.to_string();
    let analysis::LostExceptions { found, not_decided } = lost_exceptions(policy, &program);
    assert_eq!(not_decided, []);
    for lost in &found {
        let explained = program.explain_deep(&DeepKey::of(&lost.witness.frame));
        assert_eq!((explained.outcome.rule, explained.outcome.verdict), (lost.rule, Verdict::Kernel));
        assert!(explained.is_lost_exception() && !explained.reaches_host(), "{explained:?}");
    }
    found.iter().map(|lost| (named(lost.rule), named(lost.taken_by))).collect()
}

#[test]
fn four_ports_are_subtracted_from_a_later_rule() {
    for profile in [DeviceModel::mlx5(), DeviceModel::ideal()] {
        for exception in ["protocol = 'tcp'", "protocol = 'icmp'", "protocol = ['tcp', 'udp'], dst_port = 53"]
        {
            let own = ("own", &*format!("dst = '192.0.2.10', {exception}"), "kernel");
            let policy = rules("", &[CONTROL, own, NODE]);
            assert_eq!(lost(&policy, &profile), [], "{exception} on {}", profile.name);
            let report = report(&policy, &profile, WORKERS, None);
            assert_eq!(report.rules[0].flows, 0);
            assert!(report.rules[2].flows < 200, "{} flows", report.rules[2].flows);
        }
    }
}

/// No flow says that there is no tag, so an exception for a tag cannot be cut out of all else.
#[test]
fn an_exception_that_stays_with_a_worker_is_lost() {
    let tagged = ("tagged", "vlan = 5", "kernel");
    for profile in [DeviceModel::mlx5(), DeviceModel::ideal()] {
        let refused = rules("default = 'main'", &[tagged]);
        assert_eq!(lost(&refused, &profile), [("tagged".to_owned(), "tagged".to_owned())]);

        let allowing = rules("default = 'main'\nallow_lost_exceptions = true", &[tagged]);
        let allowed = report(&allowing, &profile, WORKERS, None);
        assert_eq!(lost(&allowing, &profile).len(), 1);
        let warns =
            |message: &str| message.contains("`tagged` belong to the host, but a worker receives them");
        assert!(allowed.warnings.iter().any(|warning| warns(&warning.message)), "{:?}", allowed.warnings);
    }
}

#[test]
fn unmatched_packets_in_a_coarse_flow_are_lost_to_the_default() {
    for profile in [DeviceModel::mlx5(), DeviceModel::ideal()] {
        let alone = rules("", &[SYN]);
        assert_eq!(lost(&alone, &profile), [("default".to_owned(), "syn".to_owned())]);
        // The remedy: the rest of the port goes somewhere.
        let whole = rules("", &[SYN, ("port", "protocol = 'tcp', dst_port = 443", "drop")]);
        assert_eq!(lost(&whole, &profile), []);
        // A default that takes all loses nothing.
        assert_eq!(lost(&rules("default = 'drop'", &[SYN]), &profile), []);
    }
}

#[test]
fn each_kind_of_coarse_match_is_found() {
    let mlx5 = DeviceModel::mlx5();
    for matches in [
        "fragment = 'later'",
        "ip_options = true",
        "vlan = 'none'",
        "inner_vlan = 'any'",
        "dst = '192.0.2.1', ttl = '1-64'",
        "protocol = 'udp', ip_flags = 'df'",
        "dst_port = 53, tcp_flags = 'syn'",
    ] {
        let found = lost(&rules("", &[("coarse", matches, "steer main")]), &mlx5);
        assert_eq!(found, [("default".to_owned(), "coarse".to_owned())], "{matches}");
    }
    for matches in ["dst_port = 53", "vlan = 5", "src = '10.0.0.0/8', protocol = { not = 'icmp' }"] {
        assert_eq!(lost(&rules("", &[("exact", matches, "steer main")]), &mlx5), [], "{matches}");
    }
}

/// A policy that locks its operator out: no device can match untagged SSH, so the flow of the rest takes it
/// as well.
#[test]
fn an_exception_that_stays_with_a_worker_is_permitted_with_a_kernel_sink() {
    let ssh = ("ssh", "dst = '192.0.2.10', protocol = 'tcp', dst_port = 22, vlan = 'none'", "kernel");
    let sink = "[sinks.host]\nkind = 'kernel'\ninterface = 'host0'";
    for profile in [DeviceModel::mlx5(), DeviceModel::ideal()] {
        let refused = lost(&rules("", &[ssh, NODE]), &profile);
        assert_eq!(refused.iter().map(|(rule, _)| rule.as_str()).collect::<Vec<_>>(), ["ssh"]);

        let returning = rules(sink, &[ssh, NODE]);
        let accepted = report(&returning, &profile, WORKERS, None);
        assert_eq!(lost(&returning, &profile), []);
        let warns = |text: &str| accepted.warnings.iter().any(|warning| warning.message.contains(text));
        assert!(!warns("from the kernel") && !warns("belong to the host"), "{:?}", accepted.warnings);
        let frame = packet::build::FrameBuilder::new();
        let frame = frame.ipv4([198, 51, 100, 1].into(), [192, 0, 2, 10].into()).tcp(40_000, 22, 2).build();
        let program = compile(&returning, &profile, WORKERS).expect("it fits");
        let explained = program.explain_deep(&DeepKey::of(&frame));
        assert_eq!(explained.outcome.verdict, Verdict::Kernel);
        assert!(explained.returned && explained.reaches_host(), "{explained:?}");

        // A group with the sink gives its packets to the host as well; another does not.
        for (sinks, reaches) in [("['host']", true), ("[]", false)] {
            let text = format!("default = 'main'\n{sink}\n[groups.main]\nworkers = 'all'\nsinks = {sinks}");
            let program = compile(&policy(&text), &profile, WORKERS).expect("it fits");
            let explained = program.explain_deep(&DeepKey::of(&frame));
            assert_eq!((explained.returned, explained.reaches_host()), (reaches, reaches), "{explained:?}");
        }
    }
}

/// Later fragments of what is left to the kernel by ports go to the kernel, too.
#[test]
fn packets_without_ports_are_left_to_the_kernel_with_the_exception() {
    let frame = |offset| {
        let frame = packet::build::FrameBuilder::new();
        let frame =
            frame.ipv4([198, 51, 100, 1].into(), [192, 0, 2, 10].into()).fragment(offset, offset == 0);
        DeepKey::of(&frame.tcp(1, 80, 2).build())
    };
    let program = compile(&rules("", &[CONTROL, NODE]), &DeviceModel::mlx5(), WORKERS).expect("it fits");
    let named = |key: &DeepKey| {
        let explained = program.explain_deep(key);
        (program.rules[explained.outcome.rule.index()].name.to_string(), explained.reaches_host())
    };
    assert_eq!(named(&frame(0)), ("rest-of-node".to_owned(), false));
    assert_eq!(named(&frame(8)), ("control".to_owned(), true));
}

/// An mlx4 steers no IPv6: the flow of such a rule takes every frame.
#[test]
fn a_coarse_flow_beside_many_exact_ones_is_found() {
    let sources: Vec<String> = (1..40).map(|last| format!("'192.0.2.{last}'")).collect();
    let both = format!("src = [{}, '2001:db8::/32']", sources.join(", "));
    let found = lost(&rules("", &[("blocked", &both, "drop")]), &DeviceModel::mlx4());
    assert_eq!(found, [("default".to_owned(), "blocked".to_owned())]);
}

/// A device cannot match ports behind extension headers, so flows give all packets with such headers to
/// workers.
#[test]
fn exceptions_behind_extension_headers_are_found() {
    let hosts = ("hosts", "dst = '2001:db8::/32'", "steer main");
    for matches in [
        "protocol = 'tcp', dst_port = 22",
        "protocol = 'udp', src_port = '4000-4100', dst_port = 53",
        "protocol = 'tcp', dst_port = 22, tcp_flags = 'ack,!syn'",
        "icmpv6_type = 135",
        "icmpv6_type = 1, icmpv6_code = 4",
        "protocol = 'ospf'",
        "protocol = 'tcp'",
    ] {
        let head = "ipv6_extensions = 'skip'\ndefault = 'drop'";
        let policy = rules(head, &[("own", matches, "kernel"), hosts]);
        for profile in [DeviceModel::mlx5(), DeviceModel::ideal()] {
            let found = lost(&policy, &profile);
            let names: Vec<&str> = found.iter().map(|(rule, _)| rule.as_str()).collect();
            assert!(names.contains(&"own~extensions"), "{matches} on {}: {names:?}", profile.name);
        }
        let kept = format!("{head}\n[sinks.host]\nkind = 'kernel'\ninterface = 'host0'");
        let policy = rules(&kept, &[("own", matches, "kernel"), hosts]);
        assert_eq!(lost(&policy, &DeviceModel::mlx5()), [], "{matches}");
    }
}

/// Later fragments have the protocol of the packet, and no port by which the rule could exclude them.
#[test]
fn later_fragments_behind_extension_headers_are_found() {
    let own =
        ("own", "family = 'ipv6', protocol = 'fragment', fragment = 'later', ext_protocol = 'udp'", "kernel");
    let hosts = ("hosts", "dst = '2001:db8::/32'", "steer main");
    let found = lost(&rules("default = 'drop'", &[own, hosts]), &DeviceModel::mlx5());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "own");
}

/// A policy that loses packets.
struct LosingPolicy {
    /// Name, match and action.
    rules: Vec<[String; 3]>,
    /// A rule of which packets are lost.
    lost: &'static str,
}

impl LosingPolicy {
    fn new(rules: &[(&str, &str, &str)], lost: &'static str) -> Self {
        let rules = rules.iter().map(|(name, matches, action)| [*name, *matches, *action].map(str::to_owned));
        Self { rules: rules.collect(), lost }
    }
}

/// An earlier rule takes the usual value of a field; the flow of the last rule takes the others, which are
/// the default's.
fn usual_packets_are_taken() -> Vec<LosingPolicy> {
    let mut all = Vec::new();
    for earlier in [
        "src = '192.0.2.0/24'",
        "src = '192.0.2.1'",
        "src = ['192.0.2.0/24', '198.51.100.0/24', '203.0.113.0/24']",
        "src = '2001:db8::/32'",
        "src = ['192.0.2.0/24', '2001:db8::/32']",
        "dst = '198.51.100.0/24'",
        "dst = '198.51.100.1'",
        "dst = '2001:db8::/32'",
        "dst = ['198.51.100.0/24', '2001:db8::/32']",
        "dst_port = 9",
        "src_port = 49152",
        "src_port = '1024-65535'",
        "src_port = { not = 53 }",
        "ttl = 64",
        "ttl = { not = 1 }",
        "dst_mac = '02:00:00:00:00:02'",
        "src_mac = '02:00:00:00:00:01'",
        "tos = 0",
    ] {
        for taken in ["drop", "steer main"] {
            let bad =
                [("earlier", earlier, "drop"), ("bad", "protocol = 'tcp', tcp_flags = 'syn,fin'", taken)];
            all.push(LosingPolicy::new(&bad, "default"));
        }
    }
    all
}

/// An exception by what no device matches, before a rule that takes the rest.
fn rare_packets_are_excepted() -> Vec<LosingPolicy> {
    let mut all = Vec::new();
    for flags in
        ["psh", "urg", "ece", "cwr", "fin,ack", "ece,cwr", "fin,psh,urg", "rst,!ack", "!syn,!ack,!rst"]
    {
        let own = format!("dst_port = 22, tcp_flags = '{flags}'");
        all.push(LosingPolicy::new(&[("own", &own, "kernel"), ("rest", "protocol = 'tcp'", "drop")], "own"));
    }
    for (own, rest) in [
        ("icmpv6_type = [133, 134, 135, 136, 137]", "family = 'ipv6'"),
        ("icmpv6_type = 135", "protocol = 'icmpv6', family = 'ipv6'"),
        ("icmpv6_type = '133-137'", "dst = '2001:db8::/32'"),
        ("icmpv6_type = 2", "family = 'ipv6'"),
        ("icmpv6_type = 1, icmpv6_code = 4", "family = 'ipv6'"),
        ("icmpv6_type = { not = 128 }", "family = 'ipv6'"),
        ("icmp_type = 3, icmp_code = 4", "dst = '192.0.2.0/24'"),
        ("icmp_type = 8", "protocol = 'icmp'"),
        ("icmp_type = [0, 3, 11]", "protocol = 'icmp', dst = '198.51.100.0/24'"),
        ("icmp_type = '200-255'", "protocol = 'icmp'"),
        ("hop_limit = 255, tcp_flags = 'syn'", "family = 'ipv6'"),
        ("hop_limit = 1, dst = 'ff02::/16', fragment = 'first'", "family = 'ipv6'"),
        ("ip_options = true, ttl = 1", "family = 'ipv4'"),
        ("fragment = 'first', src = '203.0.113.9'", "src = '203.0.113.0/24'"),
        ("vlan = 'none', dst_port = 8443", "dst_port = [443, 8443], protocol = 'tcp'"),
        ("dst_port = 22, tcp_flags = 'syn', src = { not = '192.0.2.0/24' }", "protocol = 'tcp'"),
        ("dst_port = { not = 9 }, tcp_flags = 'syn'", "protocol = 'tcp'"),
        ("src_port = { not = 49152 }, tcp_flags = 'syn'", "protocol = 'tcp'"),
        ("dst = { not = '198.51.100.1' }, tcp_flags = 'syn'", "protocol = 'tcp'"),
        ("ttl = { not = 64 }, tcp_flags = 'syn'", "protocol = 'tcp'"),
        ("tcp_flags = 'syn', dst_port = [9001, 9002, 9003, 9004]", "protocol = 'tcp'"),
        ("vxlan_vni = 7, inner.tcp_flags = 'fin'", "vxlan_vni = 7"),
        ("vxlan_vni = 9, inner.dst_port = 8081, inner.fragment = 'first'", "vxlan_vni = 9"),
        ("vxlan_vni = 9, inner.ttl = 3, inner.ip_options = true", "vxlan_vni = '1-16'"),
    ] {
        all.push(LosingPolicy::new(&[("own", own, "kernel"), ("rest", rest, "drop")], "own"));
    }
    all
}

/// Policies of which a list has one value that the rule before does not take: each of them, in turn; then of
/// networks of twelve lengths.
fn one_value_is_left() -> Vec<LosingPolicy> {
    let mut all = Vec::new();
    for kept in 0..12 {
        let taken: Vec<String> =
            (0..12).filter(|port| *port != kept).map(|port| (8000 + 3 * port).to_string()).collect();
        let listed: Vec<String> = (0..12).map(|port| (8000 + 3 * port).to_string()).collect();
        let earlier = format!("dst_port = [{}]", taken.join(", "));
        let flags = format!("dst_port = [{}], tcp_flags = 'syn'", listed.join(", "));
        all.push(LosingPolicy::new(
            &[("earlier", &earlier, "drop"), ("web", &flags, "steer main")],
            "default",
        ));
    }
    for kept in [0, 5, 8, 9, 11] {
        let network = |place: usize| format!("'{}.0.0.0/{}'", 20 + place, 8 + place);
        let list =
            |places: &mut dyn Iterator<Item = usize>| places.map(network).collect::<Vec<_>>().join(", ");
        let earlier = format!("src = [{}]", list(&mut (0..12).filter(|place| *place != kept)));
        let flags = format!("src = [{}], tcp_flags = 'syn'", list(&mut (0..12)));
        all.push(LosingPolicy::new(
            &[("earlier", &earlier, "drop"), ("web", &flags, "steer main")],
            "default",
        ));
    }
    let web = [
        ("plain", "dst_port = 80", "drop"),
        ("web", "dst_port = [80, 8081], tcp_flags = 'syn'", "steer main"),
    ];
    all.push(LosingPolicy::new(&web, "default"));
    all
}

/// An exception by the hop limit, which an mlx5 does not match.
#[test]
fn an_exception_by_the_hop_limit_is_found() {
    for own in ["hop_limit = 255", "hop_limit = 1, dst = 'ff02::/16'", "ttl = { not = 64 }"] {
        let list = [("own", own, "kernel"), ("rest", "family = 'ipv6'", "drop")];
        let found = lost(&rules("", &list), &DeviceModel::mlx5());
        assert!(found.iter().any(|(rule, _)| rule == "own"), "{own}: {found:?}");
    }
}

#[test]
fn lost_packets_that_differ_from_usual_ones_are_found() {
    let groups = [usual_packets_are_taken(), rare_packets_are_excepted(), one_value_is_left()];
    let policies: Vec<LosingPolicy> = groups.into_iter().flatten().collect();
    assert!(policies.len() >= 70, "{}", policies.len());
    for profile in [DeviceModel::mlx5(), DeviceModel::ideal()] {
        let mut missed = Vec::new();
        for policy in &policies {
            let list: Vec<(&str, &str, &str)> =
                policy.rules.iter().map(|[name, matches, action]| (&**name, &**matches, &**action)).collect();
            let found = lost(&rules("", &list), &profile);
            if !found.iter().any(|(rule, _)| rule == policy.lost) {
                missed.push(format!("{list:?}: {found:?}"));
            }
        }
        assert!(missed.is_empty(), "on {}: {missed:#?}", profile.name);
    }
}

/// Frames that end in a header are of no use to a host: rules for all types of messages, or all TCP flags,
/// take the rest.
#[test]
fn packets_with_cut_headers_are_not_counted() {
    for profile in [DeviceModel::mlx5(), DeviceModel::ideal()] {
        for (some, others) in [
            ("icmpv6_type = '0-127'", "icmpv6_type = '128-255'"),
            ("icmpv6_type = 128", "icmpv6_type = { not = 128 }"),
        ] {
            let (one, other) = (("some", some, "drop"), ("others", others, "drop"));
            assert_eq!(lost(&rules("", &[one, other]), &profile), [], "{some} on {}", profile.name);
            assert_eq!(lost(&rules("", &[one]), &profile).len(), 1, "{some} on {}", profile.name);
        }
        // Later fragments have neither type nor flags, nor have all first fragments flags; they are of use.
        for (some, others, is_ideal_too) in [
            ("icmp_type = '0-7'", "icmp_type = '8-255'", true),
            ("protocol = 'tcp', tcp_flags = 'syn'", "protocol = 'tcp', tcp_flags = '!syn'", false),
        ] {
            if profile.name == "ideal" && !is_ideal_too {
                continue;
            }
            let policy = rules("", &[("some", some, "drop"), ("others", others, "drop")]);
            let program = compile(&policy, &profile, WORKERS).expect("it fits");
            let [only] = &lost_exceptions(&policy, &program).found[..] else { panic!("{some}") };
            let layers = only.witness.key().outer.layers;
            assert!(layers.contains(packet::Layers::FRAGMENT), "{}", only.witness);
            assert!(!layers.intersects(packet::Layers::TCP | packet::Layers::ICMP), "{}", only.witness);
        }
    }
}

/// The first eight bytes of a TCP header have no flags; the host reassembles the packet.
#[test]
fn first_fragments_of_tcp_headers_are_found() {
    let (syn, others) = ("protocol = 'tcp', tcp_flags = 'syn'", "protocol = 'tcp', tcp_flags = '!syn'");
    let later = ("later", "fragment = 'later'", "kernel");
    let policy = rules("", &[later, ("syn", syn, "drop"), ("others", others, "drop")]);
    let program = compile(&policy, &DeviceModel::mlx5(), WORKERS).expect("it fits");
    let found = lost_exceptions(&policy, &program).found;
    let first =
        found.iter().find(|lost| lost.rule == program.default_rule()).expect("the default loses some");
    let layers = first.witness.key().outer.layers;
    assert!(layers.contains(packet::Layers::FRAGMENT), "{}", first.witness);
    assert!(!layers.intersects(packet::Layers::LATER_FRAGMENT | packet::Layers::TCP), "{}", first.witness);
}

/// A datagram without a payload may have any port.
#[test]
fn empty_datagrams_to_the_mpls_port_are_found() {
    let labels = ("labels", "protocol = 'udp', dst_port = 6635, mpls = 'any'", "steer main");
    let found = lost(&rules("", &[labels]), &DeviceModel::mlx5());
    assert_eq!(found, [("default".to_owned(), "labels".to_owned())]);
}

/// Masks of MAC addresses that cross in too many ways for the analysis.
#[test]
fn what_exceeds_a_limit_is_not_decided() {
    let bits = |bits: &[u32]| {
        let value: u64 = bits.iter().map(|bit| 1u64 << bit).sum();
        let bytes: Vec<String> = value.to_be_bytes()[2..].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("'{0}/{0}'", bytes.join(":"))
    };
    let pairs: Vec<String> = (0..24).map(|pair| bits(&[2 * pair, 2 * pair + 1])).collect();
    let ones: Vec<String> = (0..48).map(|bit| bits(&[bit])).collect();
    let pairs = format!("src_mac = {{ not = [{}] }}, dst_port = 80", pairs.join(", "));
    let ones = format!("src_mac = [{}], dst_port = 81", ones.join(", "));
    let syn = ("syn", "protocol = 'tcp', dst_port = 80, tcp_flags = 'syn'", "drop");
    let policy = rules("", &[("pairs", &pairs, "drop"), ("ones", &ones, "steer main"), syn]);
    for profile in [DeviceModel::mlx5(), DeviceModel::ideal()] {
        let program = compile(&policy, &profile, WORKERS).expect("it fits");
        let analysis::LostExceptions { found, not_decided } = lost_exceptions(&policy, &program);
        let [open] = &not_decided[..] else { panic!("{not_decided:?}") };
        assert_eq!((open.rule, found), (program.default_rule(), Vec::new()));
        assert!(open.why.contains("masks of MAC addresses cross"), "{}", open.why);
    }
}

/// How many random policies are compared with brute force: `STEERD_LOST_POLICIES`, or few.
fn policies_to_try() -> usize {
    std::env::var("STEERD_LOST_POLICIES").ok().and_then(|number| number.parse().ok()).unwrap_or(200)
}

/// The rules of which packets are lost, exactly: none is missed and none is named without reason.
fn brute_force_finds_the_same(profile: &DeviceModel, seed: u64) {
    let mut random = Random::of(seed);
    let (mut tried, mut losing, mut packets, mut lost_packets, mut rules_found) = (0, 0, 0, 0, 0);
    while tried < policies_to_try() {
        let Sample { text, keys } = Sample::random(&mut random);
        // Keys may contradict each other.
        let Ok((policy, _)) = policy::parse(&Source::new("random.toml", &text), &NoFiles) else { continue };
        let Ok(program) = compile(&policy, profile, WORKERS) else { continue };
        tried += 1;
        let analysis::LostExceptions { found, not_decided } = lost_exceptions(&policy, &program);
        assert_eq!(not_decided, [], "{text}");
        let mut wanted = BTreeMap::new();
        for key in &keys {
            let explained = program.explain_deep(key);
            if explained.is_lost_exception() {
                lost_packets += 1;
                wanted.entry(explained.outcome.rule).or_insert(key);
            }
        }
        for lost in &found {
            let explained = program.explain_deep(&lost.witness.key());
            assert!(explained.is_lost_exception(), "{text}\n{}", lost.witness);
            assert_eq!((explained.outcome.rule, explained.rule), (lost.rule, lost.taken_by), "{text}");
            let anomaly = packet::parse(&lost.witness.frame).anomaly;
            // The next fragment of such a witness has the rest of the header.
            let is_fragment = lost.witness.key().outer.layers.contains(packet::Layers::FRAGMENT);
            assert!(anomaly.is_none() || is_fragment, "{anomaly:?}: {}", lost.witness);
            assert!(wanted.contains_key(&lost.rule), "no false alarm: {text}\n{}", lost.witness);
        }
        for (rule, key) in &wanted {
            let is_found = found.iter().any(|lost| lost.rule == *rule);
            assert!(is_found, "{rule} loses {} on {}:\n{text}\n{program}", key.describe(), profile.name);
        }
        packets += keys.len();
        losing += usize::from(!found.is_empty());
        rules_found += found.len();
    }
    eprintln!(
        "{}: {tried} policies, {losing} of them lose packets of {rules_found} rules; {packets} packets tried, {lost_packets} lost",
        profile.name
    );
    assert!(losing * 10 > tried && losing * 10 < tried * 9, "{losing} of {tried}");
}

#[test]
fn an_ideal_device_loses_exactly_what_brute_force_finds() {
    brute_force_finds_the_same(&DeviceModel::ideal(), 1);
}

#[test]
fn an_mlx5_loses_exactly_what_brute_force_finds() {
    brute_force_finds_the_same(&DeviceModel::mlx5(), 2);
}

#[test]
fn an_mlx4_loses_exactly_what_brute_force_finds() {
    brute_force_finds_the_same(&DeviceModel::mlx4(), 3);
}

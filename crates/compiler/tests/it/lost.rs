//! Packets that a policy leaves to the kernel and that a worker receives: which policies lose some, on which devices,
//! and what is reported.

use compiler::{compile, lost_exceptions, report};
use device_model::DeviceProfile;
use packet::DeepKey;
use policy::{NoFiles, Policy, Severity, Source};
use program::Verdict;

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
fn lost(policy: &Policy, profile: &DeviceProfile) -> Vec<(String, String)> {
    let program = compile(policy, profile, WORKERS).expect("it fits");
    let named = |rule: program::RuleId| program.rules[rule.index()].name.clone();
    let found = lost_exceptions(policy, profile, &program);
    for lost in &found {
        let explained = program.explain_deep(&DeepKey::of(&lost.witness.frame));
        assert_eq!((explained.outcome.rule, explained.outcome.verdict), (lost.rule, Verdict::Kernel));
        assert!(explained.is_lost_exception() && !explained.reaches_host(), "{explained:?}");
    }
    found.iter().map(|lost| (named(lost.rule), named(lost.taken_by))).collect()
}

#[test]
fn four_ports_are_subtracted_from_a_later_rule() {
    for profile in [DeviceProfile::mlx5(), DeviceProfile::ideal()] {
        for exception in ["protocol = 'tcp'", "protocol = 'icmp'", "protocol = ['tcp', 'udp'], dst_port = 53"]
        {
            let own = ("own", &*format!("dst = '192.0.2.10', {exception}"), "kernel");
            let policy = rules("", &[CONTROL, own, NODE]);
            assert_eq!(lost(&policy, &profile), [], "{exception} on {}", profile.name);
            let report = report(&policy, &profile, WORKERS, None);
            assert!(report.problems.is_empty() && report.rules[0].flows == 0, "{:?}", report.problems);
            assert!(report.rules[2].flows < 200, "{} flows", report.rules[2].flows);
        }
    }
}

/// No flow says that there is no tag, so an exception for a tag cannot be cut out of all else.
#[test]
fn an_exception_that_stays_with_a_worker_is_an_error_with_its_packet() {
    let tagged = ("tagged", "vlan = 5", "kernel");
    for profile in [DeviceProfile::mlx5(), DeviceProfile::ideal()] {
        let refused = report(&rules("default = 'main'", &[tagged]), &profile, WORKERS, None);
        let [problem] = &refused.problems[..] else { panic!("{:?}", refused.problems) };
        assert_eq!(problem.severity, Severity::Error);
        assert!(problem.message.contains("`tagged`") && problem.message.contains("`default`"), "{problem}");
        assert!(problem.message.contains("vlan = 5"), "{problem}");
        let hint = problem.hint.as_deref().expect("a remedy");
        assert!(hint.contains("without a tag") && hint.contains("allow_lost_exceptions = true"), "{hint}");

        let allowing = rules("default = 'main'\nallow_lost_exceptions = true", &[tagged]);
        let allowed = report(&allowing, &profile, WORKERS, None);
        assert!(allowed.problems.is_empty() && allowed.lost_exceptions.len() == 1);
        let warns =
            |message: &str| message.contains("`tagged` belong to the host, but a worker receives them");
        assert!(allowed.warnings.iter().any(|warning| warns(&warning.message)), "{:?}", allowed.warnings);
    }
}

#[test]
fn unmatched_packets_in_a_coarse_flow_are_lost_to_the_default() {
    for profile in [DeviceProfile::mlx5(), DeviceProfile::ideal()] {
        let alone = rules("", &[SYN]);
        assert_eq!(lost(&alone, &profile), [("default".to_owned(), "syn".to_owned())]);
        let report = report(&alone, &profile, WORKERS, None);
        assert!(
            report.problems[0].hint.as_ref().is_some_and(|hint| hint.contains("tcp_flags")),
            "{report:?}"
        );
        // The remedy: the rest of the port goes somewhere.
        let whole = rules("", &[SYN, ("port", "protocol = 'tcp', dst_port = 443", "drop")]);
        assert_eq!(lost(&whole, &profile), []);
        // A default that takes all loses nothing.
        assert_eq!(lost(&rules("default = 'drop'", &[SYN]), &profile), []);
    }
}

#[test]
fn each_kind_of_coarse_match_is_found() {
    let mlx5 = DeviceProfile::mlx5();
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

/// A policy that locks its operator out: no device can match untagged SSH, so the flow of the rest takes it as well.
#[test]
fn an_exception_that_stays_with_a_worker_is_permitted_with_a_kernel_sink() {
    let ssh = ("ssh", "dst = '192.0.2.10', protocol = 'tcp', dst_port = 22, vlan = 'none'", "kernel");
    let sink = "[sinks.host]\nkind = 'kernel'\ninterface = 'host0'";
    for profile in [DeviceProfile::mlx5(), DeviceProfile::ideal()] {
        let refused = report(&rules("", &[ssh, NODE]), &profile, WORKERS, None);
        let [problem] = &refused.problems[..] else { panic!("{:?}", refused.problems) };
        assert!(problem.message.contains("`ssh`") && problem.message.contains("`rest-of-node`"), "{problem}");
        let hint = problem.hint.as_deref().expect("a remedy");
        assert!(hint.contains("kind = \"kernel\""), "{hint}");

        let returning = rules(sink, &[ssh, NODE]);
        let accepted = report(&returning, &profile, WORKERS, None);
        assert!(accepted.problems.is_empty() && accepted.lost_exceptions.is_empty(), "{accepted:?}");
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
    let program = compile(&rules("", &[CONTROL, NODE]), &DeviceProfile::mlx5(), WORKERS).expect("it fits");
    let named = |key: &DeepKey| {
        let explained = program.explain_deep(key);
        (program.rules[explained.outcome.rule.index()].name.clone(), explained.reaches_host())
    };
    assert_eq!(named(&frame(0)), ("rest-of-node".to_owned(), false));
    assert_eq!(named(&frame(8)), ("control".to_owned(), true));
}

/// An mlx4 steers no IPv6: the flow of such a rule takes every frame.
#[test]
fn a_coarse_flow_beside_many_exact_ones_is_found() {
    let sources: Vec<String> = (1..40).map(|last| format!("'192.0.2.{last}'")).collect();
    let both = format!("src = [{}, '2001:db8::/32']", sources.join(", "));
    let found = lost(&rules("", &[("blocked", &both, "drop")]), &DeviceProfile::mlx4());
    assert_eq!(found, [("default".to_owned(), "blocked".to_owned())]);
}

/// A device cannot match ports behind extension headers, so flows give all packets with such headers to workers.
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
        for profile in [DeviceProfile::mlx5(), DeviceProfile::ideal()] {
            let found = lost(&policy, &profile);
            let names: Vec<&str> = found.iter().map(|(rule, _)| rule.as_str()).collect();
            assert!(names.contains(&"own~extensions"), "{matches} on {}: {names:?}", profile.name);
            let refused = report(&policy, &profile, WORKERS, None);
            assert_eq!(refused.problems.len(), found.len(), "{:?}", refused.problems);
        }
        let kept = format!("{head}\n[sinks.host]\nkind = 'kernel'\ninterface = 'host0'");
        let policy = rules(&kept, &[("own", matches, "kernel"), hosts]);
        assert_eq!(lost(&policy, &DeviceProfile::mlx5()), [], "{matches}");
    }
}

/// Later fragments have the protocol of the packet, and no port by which the rule could exclude them.
#[test]
fn later_fragments_behind_extension_headers_are_found() {
    let own =
        ("own", "family = 'ipv6', protocol = 'fragment', fragment = 'later', ext_protocol = 'udp'", "kernel");
    let hosts = ("hosts", "dst = '2001:db8::/32'", "steer main");
    let found = lost(&rules("default = 'drop'", &[own, hosts]), &DeviceProfile::mlx5());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "own");
}

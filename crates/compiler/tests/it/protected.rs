//! Protected packets that a policy leaves to the host and a program does not:
//! `analysis::protection_on_device` on compiled programs, against packets at the boundaries of random rules,
//! and against the lost exceptions.

use std::cell::Cell;

use analysis::{Protected, protection, protection_on_device};
use device_model::DeviceModel;
use packet::DeepKey;
use policy::protect::{KINDS, Kind, ProtectedMatch};
use policy::{NoFiles, Policy, Source};
use program::{Match, Predicate, Program};
use proptest::prelude::*;
use proptest::test_runner::{TestRunner, contextualize_config};

use crate::support::packets::packet_key;
use crate::support::rules::{Act, Rule, Rules, policy, rules};

const WORKERS: usize = 4;

fn parsed(text: &str) -> Policy {
    let text = format!("version = 1\n{text}\n[groups.g]\nworkers = 'all'\n");
    let parsed = policy::parse(&Source::new("protected.toml", &text), &NoFiles);
    parsed.unwrap_or_else(|problems| panic!("{problems}\n{text}")).0
}

/// The protected matches of which a packet misses the host on a device, each with the rule of the flow.
fn missed(text: &str, profile: &DeviceModel) -> Vec<(String, String)> {
    let policy = parsed(text);
    let program = compiler::compile(&policy, profile, WORKERS).expect("it fits");
    let by_policy = protection(&policy);
    assert!(by_policy.iter().all(|found| *found == Protected::Safe), "{by_policy:?}");
    let found = protection_on_device(&policy, &program, &by_policy);
    let missed = policy.protect.iter().flatten().zip(found).filter_map(|(protected, found)| match found {
        Protected::Safe => None,
        Protected::NotDecided(why) => panic!("{why}"),
        Protected::Missed(missed) => {
            let key = missed.witness.key();
            assert!(Predicate::of(&protected.matches).matches_deep(&key), "{}", missed.witness);
            assert!(program.explain_deep(&key).is_lost_exception(), "{}", missed.witness);
            Some((protected.name.clone(), program.rules[missed.taken_by.index()].name.to_string()))
        }
    });
    missed.collect()
}

/// Each policy leaves the packets to the host, and its flows take them: the device cannot match what tells
/// them apart.
#[test]
fn protected_packets_in_coarse_flows_are_found() {
    let rule = |name: &str, matches: &str, action: &str| {
        format!("[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = '{action}'\n")
    };
    let mlx5 = DeviceModel::mlx5();
    let later = rule("later", "dst = '192.0.2.1', fragment = 'later'", "steer g");
    for (protect, rules, wanted) in [
        ("ports = ['22/tcp']\nprotocols = []", later.clone(), Some("later")),
        ("ports = 22\naddresses = '192.0.2.2'\nprotocols = []", later, None),
        ("", rule("echo", "icmpv6_type = 128", "drop"), Some("echo")),
        ("", rule("echo", "icmp_type = 8", "drop"), None),
        ("", rule("web", "protocol = 'tcp', dst_port = 80", "steer g"), None),
        ("ports = 80\nvlan = 'none'\nprotocols = []", rule("tagged", "vlan = 'any'", "drop"), Some("tagged")),
    ] {
        let text = format!("allow_lost_exceptions = true\n[protect]\n{protect}\n{rules}");
        let found = missed(&text, &mlx5);
        let names: Vec<&str> = found.iter().map(|(_, taker)| taker.as_str()).collect();
        assert_eq!(names.first().copied(), wanted, "{text}");
        // The protected kinds of neighbour discovery are in one flow with the echo requests.
        if wanted == Some("echo") {
            assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["nd", "ra"]);
        }
    }
    // A frame type is left out of the flows of the default; a message type is not.
    let kept = rule("arp", "ethertype = 'arp'", "kernel") + &rule("nd", "icmpv6_type = '134-136'", "kernel");
    let text = |protocols: &str| {
        format!("default = 'g'\nallow_lost_exceptions = true\n[protect]\nprotocols = ['{protocols}']\n{kept}")
    };
    assert_eq!(missed(&text("arp"), &mlx5), []);
    assert_eq!(missed(&text("nd"), &mlx5).len(), 1);
}

/// The rules with which protected packets are compared, and the packets that are tried.
#[derive(Clone, Debug)]
struct Trial {
    rules: Rules,
    protected: Rules,
    keys: Vec<DeepKey>,
}

fn trial() -> impl Strategy<Value = Trial> {
    (rules(5), rules(3), prop::collection::vec(packet_key(), 48)).prop_map(|(rules, protected, keys)| Trial {
        rules,
        protected,
        keys,
    })
}

/// The matches of some rules, and the kinds that hosts need.
fn protected_matches(rules: &[Rule]) -> Vec<Match> {
    let own = rules.iter().filter_map(|rule| policy(std::slice::from_ref(rule), Act::Kernel).ok());
    let own = own.flat_map(|policy| policy.rules).map(|rule| Match { or_no_ports: false, ..rule.matches });
    own.chain(KINDS.iter().map(Kind::matches)).collect()
}

fn compiled(rules: &[Rule], default: Act, profile: &DeviceModel) -> Option<(Policy, Program)> {
    let mut policy = policy(rules, default).ok()?;
    policy.allow_lost_exceptions = true;
    let program = compiler::compile(&policy, profile, WORKERS).ok()?;
    Some((policy, program))
}

/// Missed exactly if a packet misses the host, with a packet that does.
fn missed_exactly_if_a_packet_is(profile: &DeviceModel) {
    let (tried, found_missed, by_flows) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let count = |of: &Cell<u32>| of.set(of.get() + 1);
    let config = ProptestConfig { cases: 384, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new(contextualize_config(config));
    let result = runner.run(&trial(), |Trial { rules, protected, keys }| {
        let rules = rules.on(profile);
        let Some((mut policy, program)) = compiled(&rules.rules, rules.default, profile) else {
            return Ok(());
        };
        let place = policy.default_place.clone();
        let matches = protected_matches(&protected.rules).into_iter();
        let protect =
            matches.map(|matches| ProtectedMatch { name: "p".to_owned(), matches, place: place.clone() });
        policy.protect = Some(protect.collect());
        let by_policy = protection(&policy);
        let on_device = protection_on_device(&policy, &program, &by_policy);
        let lost = analysis::lost_exceptions(&policy, &program).found;
        let lost: Vec<DeepKey> = lost.iter().map(|lost| lost.witness.key()).collect();
        for (protected, (found, before)) in
            policy.protect.iter().flatten().zip(on_device.iter().zip(&by_policy))
        {
            count(&tried);
            let predicate = Predicate::of(&protected.matches);
            match found {
                Protected::NotDecided(why) => prop_assert!(false, "{}", why),
                Protected::Missed(missed) => {
                    count(&found_missed);
                    let key = missed.witness.key();
                    let explained = program.explain_deep(&key);
                    prop_assert!(predicate.matches_deep(&key), "{}", missed.witness);
                    prop_assert!(!explained.reaches_host(), "{}\n{}", missed.witness, program);
                    if *before == Protected::Safe {
                        count(&by_flows);
                        prop_assert!(explained.is_lost_exception(), "{}\n{}", missed.witness, program);
                    }
                }
                Protected::Safe => {
                    for key in keys.iter().chain(&lost).filter(|key| predicate.matches_deep(key)) {
                        prop_assert!(
                            program.explain_deep(key).reaches_host(),
                            "{}\n{program}",
                            key.describe()
                        );
                    }
                }
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|failed| panic!("{failed}"));
    let (tried, found_missed, by_flows) = (tried.get(), found_missed.get(), by_flows.get());
    assert!(tried > 500 && found_missed > 50 && by_flows >= 5, "{tried}, {found_missed}, {by_flows}");
}

#[test]
fn protected_packets_miss_an_ideal_device_exactly_if_one_does() {
    missed_exactly_if_a_packet_is(&DeviceModel::ideal());
}

#[test]
fn protected_packets_miss_an_mlx5_exactly_if_one_does() {
    missed_exactly_if_a_packet_is(&DeviceModel::mlx5());
}

#[test]
fn protected_packets_miss_an_mlx4_exactly_if_one_does() {
    missed_exactly_if_a_packet_is(&DeviceModel::mlx4());
}

//! Policies compiled for traffic: where a device cannot decide all packets in hardware, it decides those of the rules that
//! have most packets.

use compiler::{Job, RuleCounter, Weights};
use device_model::DeviceProfile;
use packet::DeepKey;
use packet::build::FrameBuilder;
use policy::{NoFiles, Policy, Source};
use program::{Class, Program, RuleId};

/// Rules at the end, each of which needs one flow more to be decided in hardware.
const LAST: u8 = 4;

/// On two priorities, the flow of `b` comes after that of `a`, and those of the last rules after that of `b`.
fn chain() -> Policy {
    let rule = |name: &str, keys: &str| {
        format!(
            "[[rules]]\nname = '{name}'\nmatch = {{ protocol = 'udp', {keys} }}\naction = {{ steer = 'g' }}\n"
        )
    };
    let mut text = "version = 1\n[groups.g]\nworkers = [0]\nhash = 'none'\n".to_owned();
    text += &rule("a", "dst = '192.0.2.1', dst_port = 7");
    text += &rule("b", "src = '198.51.100.1'");
    for last in 0..LAST {
        text += &rule(&format!("c{last}"), &format!("dst = '192.0.2.{}'", 10 + last));
    }
    policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
}

/// A device with room for one flow more than there are rules.
fn device() -> DeviceProfile {
    DeviceProfile { priorities: 4, max_flows: Some(2 * (2 + u32::from(LAST) + 1)), ..DeviceProfile::ideal() }
}

/// So many packets of the last rules.
fn traffic(packets: [usize; LAST as usize]) -> Vec<DeepKey> {
    let to = |last: usize| {
        let dst = [192, 0, 2, 10 + last as u8];
        DeepKey::of(&FrameBuilder::new().ip([203, 0, 113, 1].into(), dst.into()).udp(1, 2).build())
    };
    packets.into_iter().enumerate().flat_map(|(last, count)| vec![to(last); count]).collect()
}

fn weights(policy: &Policy, traffic: &[DeepKey]) -> Weights {
    let mut counter = RuleCounter::new(policy);
    traffic.iter().for_each(|key| counter.add(key));
    counter.weights()
}

fn in_hardware(program: &Program, traffic: &[DeepKey]) -> usize {
    let class = |key| program.explain_deep(key).class.and_then(|class| program.class(class));
    traffic.iter().filter(|key| class(key).is_some_and(Class::is_exact)).count()
}

#[test]
fn the_rules_with_most_packets_are_decided_in_hardware() {
    let (policy, device) = (chain(), device());
    let job = Job::new(&policy, &device, 1);
    let unweighted = job.compile().expect("it fits");
    for heavy in 0..usize::from(LAST) {
        let mut packets = [1; LAST as usize];
        packets[heavy] = 10;
        let traffic = traffic(packets);
        let weights = weights(&policy, &traffic);
        assert_eq!((weights.of(RuleId::of(2 + heavy)), weights.of(RuleId::of(0))), (10, 0));
        let program = job.weighted(Some(&weights)).compile().expect("it fits");
        assert_eq!(in_hardware(&program, &traffic), 10, "{program}");
        let otherwise = if heavy == 0 { 10 } else { 1 };
        assert_eq!(in_hardware(&unweighted, &traffic), otherwise, "{unweighted}");
    }
}

#[test]
fn a_reload_for_the_same_traffic_changes_nothing() {
    let (policy, device) = (chain(), device());
    let weights = weights(&policy, &traffic([1, 2, 3, 4]));
    let job = Job::new(&policy, &device, 1).weighted(Some(&weights));
    let program = job.compile().expect("it fits");
    assert_eq!(job.compile().expect("it fits"), program);
    assert_eq!(job.beside(Some(&program)).compile().expect("it fits"), program);
}

#[test]
fn a_pair_of_rules_in_the_way_is_found() {
    let (policy, device) = (chain(), device());
    let weights = weights(&policy, &traffic([6, 3, 1, 0]));
    let job = Job::new(&policy, &device, 1).weighted(Some(&weights));
    let program = job.compile().expect("it fits");
    let savings = job.savings(&program);
    // The first of the last rules is decided in hardware; of the others the second one has most packets.
    assert_eq!((savings[0].earlier, savings[0].later), (RuleId::of(1), RuleId::of(3)), "{savings:?}");
    assert!((savings[0].percent - 30.0).abs() < 0.01, "{savings:?}");
    let key = savings[0].witness.as_ref().expect("a packet").key();
    let matches = |rule: usize| program::Predicate::of(&policy.rules[rule].matches).matches_deep(&key);
    assert!(matches(1) && matches(3));
}

//! Policies compiled for traffic: where a device cannot decide all packets in hardware, it decides those of
//! the rules that have most packets, counted in a capture or by a daemon.

use compiler::{Job, Weights};
use device_model::DeviceModel;
use packet::DeepKey;
use packet::build::FrameBuilder;
use policy::{NoFiles, Policy, Source};
use program::{Class, Program, RuleId};
use proptest::prelude::*;
use reports::{Check, RuleCounter};

/// Rules at the end, each of which needs one flow more to be decided in hardware.
const LAST: u8 = 4;

fn rule(name: &str, keys: &str, group: &str) -> String {
    format!(
        "[[rules]]\nname = '{name}'\nmatch = {{ protocol = 'udp', {keys} }}\naction = {{ steer = '{group}' }}\n"
    )
}

fn parse(rules: &str) -> Policy {
    let group = |name| format!("[groups.{name}]\nworkers = [0]\nhash = 'none'\n");
    let text = format!("version = 1\n{}{}{rules}", group("g"), group("h"));
    policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
}

/// On two priorities, the flow of `b` comes after that of `a`, and those of the last rules after that of `b`,
/// which steers to this group.
fn chain_with(group: &str) -> Policy {
    let mut rules = rule("a", "dst = '192.0.2.1', dst_port = 7", "g");
    rules += &rule("b", "src = '198.51.100.1'", group);
    for last in 0..LAST {
        rules += &rule(&format!("c{last}"), &format!("dst = '192.0.2.{}'", 10 + last), "g");
    }
    parse(&rules)
}

fn chain() -> Policy {
    chain_with("g")
}

/// A device with room for one flow more than there are rules.
fn device() -> DeviceModel {
    DeviceModel { priorities: 3, max_flows: Some(2 * (2 + u32::from(LAST) + 1)), ..DeviceModel::ideal() }
}

/// A number of packets of the last rules.
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

/// Without flow tags one class decides all packets, and the warnings are about the flows that a device with
/// tags has.
#[test]
fn warnings_about_a_device_without_tags_depend_on_the_weights() {
    let policy = chain_with("h");
    let device = DeviceModel { tag_bits: 0, ..device() };
    for heavy in 0..usize::from(LAST) {
        let mut packets = [1; LAST as usize];
        packets[heavy] = 10;
        let weights = weights(&policy, &traffic(packets));
        let job = Job::new(&policy, &device, 1).weighted(Some(&weights));
        let warnings = Check::of(&job, &job.compile().expect("it fits")).warnings;
        let stays = |last: usize| format!("packets of `c{last}` that turn out to belong to `b` stay with");
        let warned: Vec<usize> = (0..usize::from(LAST))
            .filter(|last| warnings.iter().any(|warning| warning.message.contains(&stays(*last))))
            .collect();
        let others: Vec<usize> = (0..usize::from(LAST)).filter(|last| *last != heavy).collect();
        assert_eq!(warned, others, "{warnings:?}");
    }
}

/// Rules on the ports of four addresses, of which the first two belong to the first half of the rules.
#[test]
fn the_rules_with_fewest_packets_are_left_to_workers() {
    let keys = |index: usize| format!("dst = '192.0.2.{}', dst_port = {index}", index / 2);
    let rules: Vec<String> = (0..8).map(|index| rule(&format!("r{index}"), &keys(index), "g")).collect();
    let policy = parse(&rules.concat());
    // All rules have eight flows, and a program may use half of the device's: five and a cover.
    let device = DeviceModel { max_flows: Some(12), ..DeviceModel::ideal() };
    let packet = |rule: usize| {
        let ip = FrameBuilder::new().ip([203, 0, 113, 1].into(), [192, 0, 2, rule as u8 / 2].into());
        DeepKey::of(&ip.udp(1, rule as u16).build())
    };
    let all: Vec<DeepKey> = (0..8).map(packet).collect();
    for (heavy, light) in [(&all[4..], &all[..4]), (&all[..4], &all[4..])] {
        let weights = weights(&policy, heavy);
        let program = Job::new(&policy, &device, 1).weighted(Some(&weights)).compile().expect("it fits");
        assert_eq!((in_hardware(&program, heavy), in_hardware(&program, light)), (4, 1), "{program}");
        let deciding = all.iter().map(|key| program.explain_deep(key).outcome.rule.index());
        assert!(deciding.eq(0..8), "{program}");
    }
}

fn counted(counters: [Option<u64>; 7]) -> Option<Vec<u64>> {
    let weights = Weights::of_counters(&chain(), &counters, &[])?;
    Some(weights.packets().to_vec())
}

#[test]
fn weights_of_counters_are_parts_rounded_to_powers_of_two() {
    let some = |packets: [u64; 7]| packets.map(Some);
    let whole = counted(some([0, 0, 1000, 2000, 4000, 9000, 0])).expect("packets");
    assert_eq!(whole, [0, 0, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 0]);
    // The same parts of more packets, and parts that differ by a few percent.
    assert_eq!(counted(some([0, 0, 7000, 14_000, 28_000, 63_000, 0])).as_ref(), Some(&whole));
    assert_eq!(counted(some([0, 0, 1040, 1950, 4100, 8950, 0])).as_ref(), Some(&whole));
    assert_eq!(counted(some([0; 7])), None, "nothing was counted");
    assert_eq!(counted([None; 7]), None);
}

/// `a` matches fewest packets, then the last rules, then `b`, which leaves open more bits than they do; all
/// of them more than none.
#[test]
fn a_rule_without_a_counter_has_a_weight_by_what_it_matches() {
    let mean = (1u64 << 20) / 5;
    let weights =
        counted([None, Some(100), Some(100), Some(100), Some(100), None, Some(100)]).expect("packets");
    assert_eq!(weights[1..5], [mean.next_power_of_two(); 4]);
    assert!(weights[0] < weights[5] && weights[5] <= 2 * mean, "{weights:?}");
    assert!(weights[0] > 0);
}

/// Counters that differ by a twentieth each: parts by less than a ninth.
fn slightly_changed() -> impl Strategy<Value = ([u64; 7], [u64; 7])> {
    let counter = prop_oneof![1 => Just(0), 6 => (7u32..30).prop_flat_map(|bits| 1u64 << bits..2 << bits)];
    let change = prop::array::uniform7(-50i64..=50);
    (prop::array::uniform7(counter), change).prop_map(|(before, change)| {
        let after = std::array::from_fn(|rule| {
            let packets = before[rule];
            packets.saturating_add_signed(packets.cast_signed() * change[rule] / 1000)
        });
        (before, after)
    })
}

proptest! {
    #[test]
    fn a_small_change_of_the_counters_keeps_all_weights((before, after) in slightly_changed()) {
        let policy = chain();
        let of = |counters: [u64; 7], previous: &[Option<u64>]| {
            Weights::of_counters(&policy, &counters.map(Some), previous)
        };
        let Some(weights) = of(before, &[]) else { return Ok(()) };
        let previous: Vec<Option<u64>> = weights.packets().iter().copied().map(Some).collect();
        prop_assert_eq!(of(after, &previous), Some(weights), "{:?} {:?}", before, after);
    }
}

/// Two rules whose parts are near the middle of two powers of two, one above and one below.
#[test]
fn a_small_change_of_the_counters_moves_no_rule() {
    let (policy, device) = (chain(), device());
    let flows = |weights: &Weights| {
        let program = Job::new(&policy, &device, 1).weighted(Some(weights)).compile().expect("it fits");
        format!("{:?}", program.flows)
    };
    let of = |counters: [u64; 7], previous: &[Option<u64>]| {
        Weights::of_counters(&policy, &counters.map(Some), previous).expect("packets")
    };
    let (before, after) = ([0, 0, 360, 350, 0, 0, 290], [0, 0, 350, 360, 0, 0, 290]);
    let weights = of(before, &[]);
    let previous: Vec<Option<u64>> = weights.packets().iter().copied().map(Some).collect();
    assert_eq!(flows(&of(after, &previous)), flows(&weights));
    assert_ne!(flows(&of(after, &[])), flows(&weights), "without the previous weights");
    // A rule that has four times as many packets gets another weight.
    let grown = of([0, 0, 360, 1400, 0, 0, 290], &previous);
    assert_ne!(grown.packets()[3], weights.packets()[3]);
}

/// A copy counts packets that another rule decides.
#[test]
fn rules_that_only_copy_have_no_weight() {
    let copy = rule("copy", "dst_port = 7", "g").replace("steer", "copy");
    let policy = parse(&[copy, rule("a", "dst_port = 7", "g"), rule("b", "dst_port = 8", "g")].concat());
    let counted = |counters: [u64; 4]| {
        let weights = Weights::of_counters(&policy, &counters.map(Some), &[])?;
        Some(weights.packets().to_vec())
    };
    assert_eq!(counted([600, 600, 600, 0]), Some(vec![0, 1 << 19, 1 << 19, 0]));
    assert_eq!(counted([600, 0, 0, 0]), None, "no rule has decided a packet");
}

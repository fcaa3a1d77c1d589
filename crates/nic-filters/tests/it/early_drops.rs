//! Drop filters below programs for workers: at each step of a change the NIC drops only packets that the
//! policies in force drop, and of which nobody gets a copy.

use std::collections::{BTreeMap, BTreeSet};

use device_model::DeviceModel;
use nic_filters::{
    Destination, DropRefusal, EarlyDrops, FieldBits, Filter, FilterKind, FilterMatch, FilterModel,
    FilterRoom, ListedFilter, ModelledNic, NicDecision, RuleRefusal, WantedDrops, drops,
};
use packet::{Field, FlowKey};
use policy::policy::Action;
use policy::{NoFiles, Policy, Source};
use program::{Predicate, Program, RuleId};

use crate::support::{MemoryStore, Numbers, QUEUES, model, packets, rule, ternary};

type Tested = EarlyDrops<ModelledNic, MemoryStore>;

const WORKERS: usize = 2;
/// The actions of random rules; "copying" and "sniffing" are replaced by a copy and a sniffer. Beside a
/// sniffer there are no filters, so few policies have one.
const ACTIONS: [&str; 9] = ["drop", "drop", "drop", "drop", "one", "kernel", "two", "copying", "sniffing"];

/// A policy with a group for each of two workers.
fn policy(rules: &str) -> Policy {
    let rules =
        rules.replace("steer = 'copying'", "copy = 'two'").replace("steer = 'sniffing'", "sniff = 'two'");
    let text = format!("version = 1\n[groups.one]\nworkers = [0]\n[groups.two]\nworkers = [1]\n{rules}");
    policy::parse(&Source::new("drops.toml", text), &NoFiles).expect("a policy").0
}

/// A policy and its program for a device.
struct Compiled {
    policy: Policy,
    program: Program,
}

impl Compiled {
    fn of(rules: &str, device: &str) -> Option<Self> {
        let (policy, device) = (policy(rules), DeviceModel::named_or_file(device).expect("built in"));
        let program = compiler::compile(&policy, &device, WORKERS).ok()?;
        Some(Self { policy, program })
    }

    /// A random policy that the device can run.
    fn random(numbers: &mut Numbers, device: &str) -> Self {
        loop {
            let count = 3 + numbers.below(6);
            let is_exact = numbers.below(2) == 0;
            let actions = if numbers.below(4) == 0 { &ACTIONS[..] } else { &ACTIONS[..8] };
            if let Some(compiled) = Self::of(&numbers.policy(count, actions, is_exact), device) {
                return compiled;
            }
        }
    }

    /// Whether the policy drops a packet, and nobody gets a copy of it: by its rules in their order.
    fn may_drop(&self, key: &FlowKey) -> bool {
        let matching = || self.policy.rules.iter().filter(|rule| Predicate::of(&rule.matches).matches(key));
        if matching().any(|rule| matches!(rule.action, Action::Sniff(_))) {
            return false;
        }
        matching().next().is_some_and(|rule| rule.action == Action::Drop)
    }
}

/// The packets that the NIC drops, or may drop, are dropped by all of these policies; returns their number.
fn assert_right(
    nic: &ModelledNic,
    filters: &BTreeMap<u32, Filter>,
    in_force: &[&Compiled],
    keys: &[FlowKey],
) -> usize {
    let is_dropped = |key: &&FlowKey| nic.decisions(filters, key).contains(&NicDecision::Drop);
    let dropped: Vec<&FlowKey> = keys.iter().filter(is_dropped).collect();
    for key in &dropped {
        assert!(in_force.iter().all(|compiled| compiled.may_drop(key)), "{key:?}\n{filters:#?}");
    }
    dropped.len()
}

fn open(nic: &ModelledNic, store: &MemoryStore, model: &FilterModel) -> Tested {
    EarlyDrops::open(nic.clone(), store.clone(), model.clone(), store.ledger()).expect("the NIC has filters")
}

fn all_models() -> Vec<FilterModel> {
    let names = FilterModel::names().into_iter().map(model);
    names.filter(|model| model.drops).chain([ternary()]).collect()
}

fn foreign() -> Filter {
    let bits = FieldBits { field: Field::DstPort, value: 9999, mask: 0xffff };
    Filter { matches: FilterMatch::new(FilterKind::Udp4, [bits]), destination: Destination::Queue(7) }
}

/// The filters for these rules on the device without limits.
fn wanted(rules: &[String], model: &FilterModel, room: FilterRoom) -> (WantedDrops, Program) {
    let compiled = Compiled::of(&rules.concat(), "ideal").expect("it has no limits");
    (drops(&compiled.program, model, room, &[]), compiled.program)
}

#[test]
fn the_nic_drops_only_packets_that_the_policy_drops() {
    let (keys, mut numbers) = (packets(), Numbers::new(11));
    for model in all_models() {
        let mut dropped = 0;
        for device in ["ideal", "mlx5", "mlx4", "conservative"] {
            for _ in 0..20 {
                let compiled = Compiled::random(&mut numbers, device);
                let nic = ModelledNic::new(model.clone(), QUEUES);
                let mut early = open(&nic, &MemoryStore::default(), &model);
                early.begin(&compiled.program).expect("nothing fails");
                early.finish();
                let figures = early.figures();
                assert_eq!((figures.missing, figures.surplus, figures.why), (0, 0, None), "{}", model.name);
                dropped += assert_right(&nic, &nic.filters(), &[&compiled], &keys);
            }
        }
        assert!(dropped > 1000, "{}: {dropped} packets", model.name);
    }
}

/// A change of the program, with calls that fail; returns the policies of which flows may be in force after
/// it.
fn change<'c>(
    early: &mut Tested,
    nic: &ModelledNic,
    before: Vec<&'c Compiled>,
    next: &'c Compiled,
    end: usize,
    keys: &[FlowKey],
) -> Vec<&'c Compiled> {
    let check = |in_force: &[&Compiled]| {
        for filters in nic.take_history().iter().chain([&nic.filters()]) {
            assert_right(nic, filters, in_force, keys);
        }
    };
    let both = [before.clone(), vec![next]].concat();
    let begun = early.begin(&next.program);
    check(&before);
    if begun.is_err() {
        early.abandon(true);
        check(&before);
        return before;
    }
    // The program is installed now.
    check(&both);
    let after = match end {
        0 => {
            early.abandon(true);
            before
        }
        1 => {
            early.abandon(false);
            both
        }
        _ => {
            early.finish();
            vec![next]
        }
    };
    check(&after);
    let _ = early.restore();
    check(&after);
    after
}

#[test]
fn each_step_of_random_changes_is_right_also_if_calls_fail() {
    let keys: Vec<FlowKey> = packets().into_iter().step_by(5).collect();
    let mut numbers = Numbers::new(12);
    for model in all_models() {
        let programs: Vec<Compiled> = (0..12).map(|_| Compiled::random(&mut numbers, "mlx5")).collect();
        for _ in 0..6 {
            let nic = ModelledNic::new(model.clone(), QUEUES);
            nic.place(3, Some(foreign()));
            let mut early = open(&nic, &MemoryStore::default(), &model);
            let none = Compiled::of("", "mlx5").expect("no rules");
            let mut in_force = vec![&none];
            for _ in 0..12 {
                nic.fail((0..12).filter(|_| numbers.below(4) == 0).collect::<Vec<_>>());
                let next = numbers.of(&programs);
                in_force = change(&mut early, &nic, in_force, next, numbers.below(6), &keys);
            }
            nic.fail([]);
            let last = numbers.of(&programs);
            in_force = change(&mut early, &nic, in_force, last, 2, &keys);
            assert_eq!(in_force.len(), 1);
            assert_eq!((early.figures().missing, early.figures().surplus), (0, 0), "{}", model.name);
            early.end().expect("all go");
            assert_eq!(nic.filters(), BTreeMap::from([(3, foreign())]), "{}", model.name);
        }
    }
}

#[test]
fn a_process_that_is_killed_at_any_call_leaves_nothing_behind_for_good() {
    let keys: Vec<FlowKey> = packets().into_iter().step_by(3).collect();
    let compiled = |rules: &[String]| Compiled::of(&rules.concat(), "ideal").expect("no limits");
    let drop = |name: &str, port: u16| {
        rule(name, &format!("family = 'ipv4', protocol = 'udp', dst_port = {port}"), "drop")
    };
    let old = compiled(&[drop("a", 53), drop("b", 80)]);
    let new = compiled(&[drop("b", 80), drop("c", 81), drop("d", 443)]);
    for model in all_models() {
        for killed in 0..10 {
            let nic = ModelledNic::new(model.clone(), QUEUES);
            nic.place(3, Some(foreign()));
            let store = MemoryStore::default();
            let mut early = open(&nic, &store, &model);
            early.begin(&old.program).expect("nothing fails");
            early.finish();
            assert_eq!(nic.filters().len(), 3);
            // From this call on nothing reaches the NIC.
            nic.fail(killed..1000);
            store.end_with_call(&nic, killed);
            if early.begin(&new.program).is_ok() {
                early.finish();
            }
            std::mem::drop(early);
            let store = store.of_next_process();
            nic.fail([]);
            let mut next = open(&nic, &store, &model);
            assert_eq!(next.carving().foreign().expect("listed").len(), 1, "{}: {killed}", model.name);
            next.begin(&old.program).expect("nothing fails");
            assert_right(&nic, &nic.filters(), &[&old], &keys);
            next.finish();
            assert_eq!(nic.filters().len(), 3, "{}: {killed}", model.name);
            assert_right(&nic, &nic.filters(), &[&old], &keys);
            next.end().expect("all go");
            assert_eq!(nic.filters(), BTreeMap::from([(3, foreign())]), "{}: {killed}", model.name);
            assert!(store.ledger().is_empty());
        }
    }
}

#[test]
fn filters_that_stay_are_not_touched_by_a_change() {
    let model = model("mlx5");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut early = open(&nic, &MemoryStore::default(), &model);
    let dns = rule("dns", "family = 'ipv4', protocol = 'udp', dst_port = 53", "drop");
    let web = rule("web", "family = 'ipv4', protocol = 'tcp', dst_port = 80", "drop");
    let both = Compiled::of(&[dns.clone(), web.clone()].concat(), "ideal").expect("no limits");
    early.begin(&both.program).expect("nothing fails");
    early.finish();
    let before = nic.filters();
    nic.fail([]);
    // The order of the rules is another one, and a rule for workers comes.
    let steer = rule("steer", "family = 'ipv4', protocol = 'udp', dst_port = 123", "one");
    let other = Compiled::of(&[web, steer, dns].concat(), "ideal").expect("no limits");
    early.begin(&other.program).expect("nothing fails");
    early.finish();
    assert_eq!((nic.calls(), nic.filters()), (0, before));
}

#[test]
fn a_filter_that_cannot_be_removed_refuses_the_change_and_the_others_come_back() {
    let model = model("mlx5");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut early = open(&nic, &MemoryStore::default(), &model);
    let drop = |port: u16, action: &str| {
        let keys = format!("family = 'ipv4', protocol = 'udp', dst_port = {port}");
        rule(&format!("r{port}"), &keys, action)
    };
    let old = Compiled::of(&[drop(53, "drop"), drop(80, "drop")].concat(), "ideal").expect("no limits");
    let new = Compiled::of(&[drop(53, "one"), drop(80, "two")].concat(), "ideal").expect("no limits");
    early.begin(&old.program).expect("nothing fails");
    early.finish();
    let matches = |nic: &ModelledNic| -> BTreeSet<String> {
        nic.filters().values().map(|filter| filter.matches.to_string()).collect()
    };
    let before = matches(&nic);
    nic.fail([1]);
    early.begin(&new.program).expect_err("the second removal fails");
    assert_eq!(nic.filters().len(), 1);
    early.abandon(true);
    assert_eq!(matches(&nic), before);
    early.begin(&new.program).expect("nothing fails");
    assert!(nic.filters().is_empty());
    // The device has refused the new program, and flows of it are left.
    early.abandon(false);
    early.restore().expect("nothing fails");
    assert!(nic.filters().is_empty(), "the new program steers these packets");
}

#[test]
fn filters_that_vanish_are_inserted_again_and_counted() {
    let model = model("mlx5");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut early = open(&nic, &MemoryStore::default(), &model);
    let dns = rule("dns", "protocol = 'udp', dst_port = 53", "drop");
    let compiled = Compiled::of(&dns, "ideal").expect("no limits");
    early.begin(&compiled.program).expect("nothing fails");
    early.finish();
    assert_eq!(early.figures().rules, BTreeMap::from([(RuleId(0), 2)]));
    let before = nic.filters();
    nic.reset();
    early.restore().expect("nothing fails");
    assert_eq!((nic.filters(), early.figures().restored), (before, 2));
    // An insertion that fails is tried again.
    nic.reset();
    nic.fail([1]);
    early.restore().expect("the rest is right");
    let figures = early.figures();
    assert_eq!((figures.filters(), figures.missing, figures.restored), (1, 1, 3));
    assert!(figures.why.is_some());
    early.restore().expect("nothing fails");
    let figures = early.figures();
    assert_eq!((figures.filters(), figures.missing, figures.restored, figures.why), (2, 0, 4, None));
}

#[test]
fn a_filter_that_the_driver_alters_is_removed_and_the_others_stay() {
    let model = model("mlx5");
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut early = open(&nic, &MemoryStore::default(), &model);
    let rules = [
        rule("source", "family = 'ipv4', protocol = 'udp', src_port = 53", "drop"),
        rule("web", "family = 'ipv4', protocol = 'tcp', dst_port = 80", "drop"),
    ];
    let compiled = Compiled::of(&rules.concat(), "ideal").expect("no limits");
    nic.ignore(Field::SrcPort);
    early.begin(&compiled.program).expect("nothing fails");
    early.finish();
    let figures = early.figures();
    assert_eq!((figures.filters(), figures.missing, figures.surplus), (1, 1, 0));
    assert!(figures.why.is_some_and(|why| why.contains("does not compare all")));
    // If it cannot be removed at once, it is removed at the next comparison.
    nic.reset();
    nic.fail([1]);
    early.restore().expect("nothing fails");
    assert_eq!(early.figures().surplus, 1, "it drops packets of others");
    early.restore().expect("nothing fails");
    assert_eq!((early.figures().surplus, early.figures().filters(), nic.filters().len()), (0, 1, 1));
}

#[test]
fn filters_that_a_failed_change_keeps_away_come_back() {
    let drop_port = |name: &str, port: u16| {
        rule(name, &format!("family = 'ipv4', protocol = 'udp', dst_port = {port}"), "drop")
    };
    let (mdns, ntp) = (drop_port("mdns", 5353), drop_port("ntp", 123));
    let program = |rules: &str| Compiled::of(rules, "ideal").expect("no limits").program;
    let mlx5 = model("mlx5");
    let nic = ModelledNic::new(mlx5.clone(), QUEUES);
    let mut early = open(&nic, &MemoryStore::default(), &mlx5);
    early.begin(&program(&(mdns + &ntp))).expect("nothing fails");
    early.finish();
    // Flows of both policies are left, of which the new one does not drop mDNS.
    early.begin(&program(&ntp)).expect("nothing fails");
    early.abandon(false);
    let figures = early.figures();
    assert_eq!((figures.filters(), figures.missing, nic.filters().len()), (1, 1, 1));
    assert!(figures.why.is_some());
    // Another change fails, and leaves no flows.
    early.begin(&program(&ntp)).expect("nothing fails");
    early.abandon(true);
    let figures = early.figures();
    assert_eq!((figures.filters(), figures.missing, figures.why), (2, 0, None));
}

#[test]
fn a_table_that_is_full_takes_the_first_rules() {
    let rules: Vec<String> = (0..6)
        .map(|at| {
            let keys = format!("family = 'ipv4', protocol = 'udp', dst_port = {}", 1000 + at);
            rule(&format!("r{at}"), &keys, "drop")
        })
        .collect();
    let mlx5 = model("mlx5");
    let room = FilterRoom { filters: Some(4), ..FilterRoom::default() };
    let (found, program) = wanted(&rules, &mlx5, room);
    assert_eq!(found.filters.filters.len(), 4);
    assert!(found.refused.values().all(|why| *why == DropRefusal::NoRoom { needed: 1, most: 4 }));
    assert_eq!(found, drops(&program, &mlx5, room, &[]), "the same again");
    // The driver says that it has less room than its model.
    let nic = ModelledNic::new(FilterModel { filters: Some(2), ..mlx5.clone() }, QUEUES);
    let mut early = open(&nic, &MemoryStore::default(), &FilterModel { filters: None, ..mlx5 });
    early.begin(&program).expect("nothing fails");
    early.finish();
    assert_eq!((early.figures().filters(), early.figures().missing), (2, 0));
}

#[test]
fn the_reason_is_named_for_rules_that_the_nic_does_not_drop() {
    let udp = |name: &str, keys: &str, action: &str| {
        rule(name, &format!("family = 'ipv4', protocol = 'udp'{keys}"), action)
    };
    let reason = |rules: &[String], model: &FilterModel| {
        let (found, program) = wanted(rules, model, FilterRoom::default());
        let (rule, why) = found.refused.into_iter().next().expect("a refusal");
        (program.rules[rule.index()].name.to_string(), why.explain(&program), why)
    };
    let mlx5 = model("mlx5");
    let steered = [udp("dns", ", dst_port = 53", "one"), udp("lan", ", dst = '10.0.0.0/8'", "drop")];
    let (name, text, why) = reason(&steered, &mlx5);
    assert_eq!((&*name, why), ("lan", DropRefusal::Shared { other: RuleId(0) }));
    assert!(text.contains("`dns`"), "{text}");
    let copied = [udp("seen", "", "drop"), rule("all", "any = true", "one").replace("steer", "copy")];
    let (found, _) = wanted(&copied, &mlx5, FilterRoom::default());
    assert!(found.refused.is_empty(), "a copy of what is left after the drop");
    let copied = [copied[1].clone(), copied[0].clone()];
    assert!(matches!(reason(&copied, &mlx5).2, DropRefusal::Shared { .. }));
    let sniffed = [udp("seen", "", "drop"), rule("all", "any = true", "one").replace("steer", "sniff")];
    assert!(matches!(reason(&sniffed, &mlx5).2, DropRefusal::Shared { .. }), "a sniffer gets all packets");
    let flags = [rule("syn", "protocol = 'tcp', tcp_flags = 'syn'", "drop")];
    let why = reason(&flags, &mlx5).2;
    assert!(matches!(why, DropRefusal::Match(RuleRefusal::NeedsWorker { .. })), "{why:?}");
    let v6 = [rule("v6", "family = 'ipv6', protocol = 'udp', dst_port = 53", "drop")];
    assert!(matches!(reason(&v6, &model("ixgbe")).2, DropRefusal::Match(RuleRefusal::Kind(_))));
    let masks = [udp("port", ", dst_port = 53", "drop"), udp("host", ", dst = '10.0.0.1'", "drop")];
    let (name, _, why) = reason(&masks, &model("ixgbe"));
    assert_eq!((&*name, why), ("host", DropRefusal::OtherMasks));
    let (_, _, why) = reason(&masks, &model("cautious"));
    assert_eq!(why, DropRefusal::NoDrops);
}

#[test]
fn filters_of_others_are_left_alone() {
    let rules = rule("r", "family = 'ipv4', protocol = 'udp', dst_port = [53, 9999]", "drop");
    let program = Compiled::of(&rules, "ideal").expect("no limits").program;
    let others = [ListedFilter { location: 7, filter: Ok(foreign()) }];
    let found = drops(&program, &model("mlx5"), FilterRoom::default(), &others);
    assert_eq!(found.filters.filters.len(), 1);
    assert_eq!(found.refused[&RuleId(0)], DropRefusal::Taken { location: 7 });
    let rules = rule("r", "family = 'ipv4', protocol = 'udp', dst = '10.0.0.1'", "drop");
    let program = Compiled::of(&rules, "ideal").expect("no limits").program;
    let found = drops(&program, &model("ixgbe"), FilterRoom::default(), &others);
    assert_eq!(found.refused[&RuleId(0)], DropRefusal::OtherMasks);
}

//! ClassBench rule sets on devices with room for few flows or masks: the compiler chooses the flows that save
//! workers most time. Runs if `STEERD_CORPORA` names the directory of the corpora.

use std::collections::{BTreeSet, HashSet};
use std::io::Write as _;
use std::path::Path;

use compiler::{FlowGroups, Job, Weights};
use device_model::DeviceModel;
use policy::{NoFiles, Policy, Source};
use program::Program;

use crate::budgets::{SETS_1K, Set, compile, hardware_share};

/// An mlx5 with room for so many masks and flows.
pub(crate) fn mlx5_with(max_shapes: Option<u32>, max_flows: Option<u32>) -> DeviceModel {
    DeviceModel { max_shapes, max_flows, ..DeviceModel::mlx5() }
}

fn masks(program: &Program) -> usize {
    program.flows.iter().map(program::Flow::shape).collect::<HashSet<_>>().len()
}

/// The flows of one rule in a program for a device with all room.
struct RuleFlows {
    flows: usize,
    masks: BTreeSet<String>,
    /// The earlier rules that overlap it.
    before: Vec<usize>,
}

fn flows_by_rule(set: &Set) -> Vec<RuleFlows> {
    let roomy = DeviceModel { priorities: 1 << 16, priority_table: None, ..mlx5_with(None, None) };
    let program = compile(&set.policy, &roomy);
    let before = |rule: usize| {
        let earlier = set.lines[..rule].iter().enumerate();
        earlier.filter(|(_, other)| other.overlaps(&set.lines[rule])).map(|(other, _)| other).collect()
    };
    let empty = |rule| RuleFlows { flows: 0, masks: BTreeSet::new(), before: before(rule) };
    let mut rules: Vec<RuleFlows> = (0..set.lines.len()).map(empty).collect();
    for flow in &program.flows {
        if let Some(rule) = rules.get_mut(flow.rule.index()) {
            rule.flows += 1;
            rule.masks.insert(format!("{:?}", flow.shape()));
        }
    }
    rules
}

/// The share of packets whose rules a simple choice has: of the rules whose earlier overlapping ones are
/// chosen, the one with most packets for the part of the device that it takes, as long as there is room.
fn floor(set: &Set, expected: &[usize], most_masks: usize, most_flows: usize) -> f64 {
    let rules = flows_by_rule(set);
    let mut packets = vec![0u32; rules.len() + 1];
    expected.iter().for_each(|rule| packets[*rule] += 1);
    let (mut chosen, mut masks, mut flows) = (vec![false; rules.len()], BTreeSet::new(), 0);
    loop {
        let part = |rule: usize| {
            let new = rules[rule].masks.difference(&masks).count();
            let has_room = masks.len() + new <= most_masks && flows + rules[rule].flows <= most_flows;
            let part = new as f64 / most_masks as f64 + rules[rule].flows as f64 / most_flows as f64;
            has_room.then(|| f64::from(packets[rule]) / part.max(1e-9))
        };
        let open = (0..rules.len())
            .filter(|rule| !chosen[*rule] && rules[*rule].before.iter().all(|before| chosen[*before]));
        let rated = open.filter_map(|rule| Some((part(rule)?, rule)));
        let Some((_, best)) = rated.max_by(|one, other| one.0.total_cmp(&other.0)) else { break };
        chosen[best] = true;
        masks.extend(rules[best].masks.iter().cloned());
        flows += rules[best].flows;
    }
    let of_chosen: u32 = (0..rules.len()).filter(|rule| chosen[*rule]).map(|rule| packets[rule]).sum();
    f64::from(of_chosen) / expected.len() as f64
}

#[test]
fn most_packets_stay_with_few_masks_and_flows() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for (name, goal) in [("acl1_1k", 0.9), ("fw1_1k", 0.75)] {
        let set = Set::read(&folder.join(name), 1);
        let program = compile(&set.policy, &mlx5_with(Some(64), Some(8000)));
        let share = hardware_share(&set, &set.expected(), &program);
        println!("{name}: {share}");
        assert!(masks(&program) <= 64 && program.flows.len() <= 4000);
        assert!(share >= goal, "{name}: {share} < {goal}");
    }
}

#[test]
fn no_simple_choice_keeps_more_packets() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for name in SETS_1K {
        let set = Set::read(&folder.join(name), 1);
        let expected = set.expected();
        for (masks, flows) in [(16, 1000), (64, 4000), (128, 1000)] {
            let model = mlx5_with(Some(masks), Some(2 * flows));
            let share = hardware_share(&set, &expected, &compile(&set.policy, &model));
            let floor = floor(&set, &expected, masks as usize, flows as usize);
            println!("{name}, {masks} masks, {flows} flows: {share}, simple choice {floor}");
            assert!(share >= floor, "{name}, {masks} masks, {flows} flows: {share} < {floor}");
        }
    }
}

/// The mean nanoseconds of workers and of groups, for packets drawn from the rules.
fn cost_ns(policy: &Policy, program: &Program, ns_per_group: f64) -> f64 {
    let groups = FlowGroups::of(program, &DeviceModel::mlx5()).expect("groups of flows");
    let shares = reports::shares(policy, program, Some(&groups)).all;
    shares.worker_ns_per_packet() + ns_per_group * shares.groups_per_packet().unwrap_or(0.0)
}

#[test]
fn groups_that_cost_time_are_fewer() {
    let Some(folder) = test_support::corpora("rules") else { return };
    // As the import of a set allows it.
    let policy = Policy { allow_lost_exceptions: true, ..Set::read(&folder.join("acl1_1k"), 1).policy };
    let of_price = |ns| {
        let model = DeviceModel { ns_per_group: Some(ns), ..DeviceModel::mlx5() };
        compile(&policy, &model)
    };
    let free = of_price(0);
    assert_eq!(free, compile(&policy, &DeviceModel::mlx5()));
    let priced = of_price(10);
    assert!(masks(&priced) < masks(&free));
    let [free, priced] = [free, priced].map(|program| cost_ns(&policy, &program, 10.0));
    println!("{priced} ns instead of {free}");
    assert!(priced < free / 2.0, "{priced} ns, {free} for groups without a price");
}

/// The price of a second of installing, in nanoseconds per packet: what the device saves a worker, by the
/// seconds of a minute.
const NS_PER_INSTALL_SECOND: f64 = 69.4 / 60.0;

/// On a device that makes few flows in a second, fewer flows are split.
#[test]
fn flows_of_slow_devices_cost_more() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let policy = Set::read(&folder.join("acl1_1k"), 1).policy;
    let rules_flows = compile(&policy, &DeviceModel::mlx5()).flows.len() as u32;
    // Both may have as many flows: a device may always make twice those of the rules.
    let of_rate = |flows_per_second| {
        let few = mlx5_with(Some(24), Some(4 * rules_flows));
        compile(&policy, &DeviceModel { flows_per_second, ..few })
    };
    const RATE: u32 = 100;
    let [fast, slow] = [None, Some(RATE)].map(of_rate);
    let cost = |program: &Program| {
        let seconds = program.flows.len() as f64 / f64::from(RATE);
        cost_ns(&policy, program, 0.0) + NS_PER_INSTALL_SECOND * seconds
    };
    println!("{} and {} flows, {} and {} ns", fast.flows.len(), slow.flows.len(), cost(&fast), cost(&slow));
    assert!(slow.flows.len() < fast.flows.len() && cost(&slow) < cost(&fast));
}

#[test]
fn few_masks_stay_whatever_groups_cost() {
    let text = "version = 1\n[groups.g]\nworkers = 'all'\n[[rules]]\nname = 'dns'\n\
        match = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'g' }\n\
        [[rules]]\nname = 'scan'\nmatch = { src = '198.51.100.0/24' }\naction = 'drop'\n";
    let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
    let model = DeviceModel { ns_per_group: Some(10), ..DeviceModel::mlx5() };
    assert_eq!(compile(&policy, &model), compile(&policy, &DeviceModel::mlx5()));
}

#[test]
fn a_priority_has_no_more_groups_than_the_model() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for (name, max_groups) in [("acl1_1k", 32), ("acl_1k", 32), ("acl5_1k", 8)] {
        let set = Set::read(&folder.join(name), 1);
        let model = DeviceModel { max_groups: Some(max_groups), ..DeviceModel::mlx5() };
        let program = compile(&set.policy, &model);
        let share = hardware_share(&set, &set.expected(), &program);
        let groups = FlowGroups::of(&program, &DeviceModel::mlx5()).expect("groups of flows");
        println!(
            "{name}, {max_groups} groups: {share}, {} flows, {:?}",
            program.flows.len(),
            groups.by_priority
        );
        assert!(groups.by_priority.values().all(|groups| *groups <= u64::from(max_groups)));
        assert!(share > 0.2, "{name}: {share}");
    }
}

/// A rule of one flow.
#[derive(Clone, Copy)]
struct Networks {
    /// Source and destination, each with the length of its prefix.
    prefixes: [(u32, u32); 2],
    weight: u64,
}

impl Networks {
    /// Whether both match some packet; with `inside` whether the other matches all packets of this one.
    fn meets(&self, other: &Self, inside: bool) -> bool {
        self.prefixes.iter().zip(&other.prefixes).all(|((one, length), (other, other_length))| {
            let shared = *length.min(other_length);
            one >> (32 - shared) == other >> (32 - shared) && (!inside || other_length <= length)
        })
    }

    fn text(&self, number: usize) -> String {
        let [src, dst] = self.prefixes.map(|(address, length)| {
            format!("{}/{length}", std::net::Ipv4Addr::from_bits(address >> (32 - length) << (32 - length)))
        });
        format!(
            "[[rules]]\nname = 'r{number}'\nmatch = {{ src = '{src}', dst = '{dst}' }}\n\
             action = {{ steer = 'g' }}\n"
        )
    }
}

/// The most weight of so many rules, each chosen with all earlier ones that overlap it, by trying all sets.
fn best_weight(rules: &[Networks], most: u32) -> u64 {
    let is_possible = |set: &u32| {
        let chosen = |rule: usize| set >> rule & 1 == 1;
        let before =
            |rule: usize| (0..rule).filter(move |earlier| rules[*earlier].meets(&rules[rule], false));
        set.count_ones() <= most
            && (0..rules.len()).filter(|rule| chosen(*rule)).all(|rule| before(rule).all(chosen))
    };
    let weight = |set: u32| {
        let chosen = rules.iter().enumerate().filter(|(rule, _)| set >> rule & 1 == 1);
        chosen.map(|(_, rule)| rule.weight).sum()
    };
    (0..1 << rules.len()).filter(is_possible).map(weight).max().unwrap_or(0)
}

/// The choice of flows on small devices, compared with the best of all choices.
#[test]
fn few_choices_are_much_worse_than_the_best() {
    const RULES: usize = 8;
    let mut seed = 1u64;
    let mut next = |below: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32 % below
    };
    let (mut ours, mut best) = (0, 0);
    for _ in 0..100 {
        let mut rules: Vec<Networks> = Vec::new();
        while rules.len() < RULES {
            let mut prefix = || (10 << 24 | next(2) << 16 | next(8) << 13, [17, 18, 19][next(3) as usize]);
            let rule = Networks { prefixes: [prefix(), prefix()], weight: u64::from(next(100)) + 1 };
            // One inside an earlier one has no packets.
            if !rules.iter().any(|earlier| rule.meets(earlier, true)) {
                rules.push(rule);
            }
        }
        let head = "version = 1\n[groups.g]\nworkers = [0]\nhash = 'none'\n".to_owned();
        let text = rules.iter().enumerate().fold(head, |text, (number, rule)| text + &rule.text(number));
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        let weights = Weights::new(rules.iter().map(|rule| rule.weight).collect());
        for most in [2, 4, 6] {
            // One flow more is for a cover.
            let device = DeviceModel { max_flows: Some(2 * (most + 1)), ..DeviceModel::ideal() };
            let program = Job::new(&policy, &device, 1).weighted(Some(&weights)).compile().expect("it fits");
            let decided = rules.iter().zip(&program.rules).filter(|(_, rule)| rule.undecided.is_empty());
            let weight: u64 = decided.map(|(rule, _)| rule.weight).sum();
            let most_weight = best_weight(&rules, most);
            assert!(weight <= most_weight, "{weight} > {most_weight}: {program}");
            ours += weight;
            best += most_weight;
        }
    }
    println!("{ours} of {best}");
    assert!(ours * 100 >= best * 99, "{ours} of {best}");
}

/// A program of a set, as rows of the tables of docs/explanation/few-priorities.md.
struct TableRow {
    set: String,
    room: &'static str,
    flows: usize,
    masks: usize,
    groups: FlowGroups,
    shares: reports::Share,
    in_hardware: f64,
    took: std::time::Duration,
}

impl TableRow {
    fn of(folder: &Path, name: &str, room: &'static str, model: &DeviceModel) -> Self {
        let set = Set::read(&folder.join(name), 1);
        let expected = set.expected();
        // As the import of a set allows it.
        let policy = Policy { allow_lost_exceptions: true, ..set.policy.clone() };
        let started = test_support::CpuTime::now();
        let program = compile(&policy, model);
        let took = started.elapsed();
        let groups = FlowGroups::of(&program, model).expect("groups of flows");
        Self {
            set: name.to_owned(),
            room,
            flows: program.flows.len(),
            masks: masks(&program),
            shares: reports::shares(&policy, &program, Some(&groups)).all,
            groups,
            in_hardware: hardware_share(&set, &expected, &program),
            took,
        }
    }

    fn passed(&self) -> f64 {
        self.shares.groups_per_packet().unwrap_or(0.0)
    }

    fn seconds(&self) -> f64 {
        self.groups.install_seconds.unwrap_or(0.0)
    }

    /// A row about a device with all room.
    fn of_all_room(&self) -> String {
        let Self { set, flows, groups, .. } = self;
        format!("| {set} | {flows} | {} | {:.0} | {:.1} s |\n", groups.groups, self.passed(), self.seconds())
    }

    fn of_room(&self) -> String {
        let Self { set, room, flows, masks, groups, shares, .. } = self;
        format!(
            "| {set} | {room} | {flows} | {masks} | {} | {:.0} | {:.0} | {:.1} % | {:.1} s | {} |\n",
            groups.groups,
            self.passed(),
            shares.worker_ns_per_packet(),
            100.0 * self.in_hardware,
            self.seconds(),
            self.took.as_millis(),
        )
    }
}

/// The devices of the second table.
fn rooms() -> Vec<(&'static str, DeviceModel)> {
    let of_groups = |max_groups| DeviceModel { max_groups: Some(max_groups), ..DeviceModel::mlx5() };
    vec![
        ("all", DeviceModel::mlx5()),
        ("128 masks, 8,000 flows", mlx5_with(Some(128), Some(8000))),
        ("64 masks, 8,000 flows", mlx5_with(Some(64), Some(8000))),
        ("16 masks, 8,000 flows", mlx5_with(Some(16), Some(8000))),
        ("64 masks", mlx5_with(Some(64), None)),
        ("8,000 flows", mlx5_with(None, Some(8000))),
        ("2,000 flows", mlx5_with(None, Some(2000))),
        ("128 groups a priority", of_groups(128)),
        ("32 groups a priority", of_groups(32)),
        ("1 ns for a group", DeviceModel { ns_per_group: Some(1), ..DeviceModel::mlx5() }),
    ]
}

#[test]
#[ignore = "prints two tables of docs/explanation/few-priorities.md: run with --release"]
fn table_of_few_flows() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let mut all = "| set | flows | flow groups: a packet without a flow passes | packets drawn from the rules, on average | \
                   time to install at 5,000 a second |\n|---|---|---|---|---|\n"
        .to_owned();
    let mut few = "| set | room of the device | flows | masks | groups | groups that a packet passes | ns of a worker | \
                   in hardware | time to install | ms |\n|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for name in SETS_1K.into_iter().chain([LARGE_SET]) {
        let of_set = |(words, _): &(&str, DeviceModel)| name != LARGE_SET || LARGE_SET_ROOMS.contains(words);
        for (words, model) in rooms().into_iter().filter(of_set) {
            let row = TableRow::of(&folder, name, words, &model);
            if words == "all" {
                all.push_str(&row.of_all_room());
            }
            few.push_str(&row.of_room());
        }
    }
    let _ = std::io::stderr().write_all(format!("{all}\n{few}").as_bytes());
}

const LARGE_SET: &str = "acl1_10k";
const LARGE_SET_ROOMS: [&str; 2] = ["all", "64 masks, 8,000 flows"];

#[test]
#[ignore = "for the peak of memory: run it alone, with --release, below `command time -v`"]
fn large_set_with_few_masks() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for (words, model) in rooms().into_iter().filter(|(words, _)| LARGE_SET_ROOMS.contains(words)) {
        let row = TableRow::of(&folder, LARGE_SET, words, &model);
        assert!(row.took.as_secs() < 60, "{words}: {:?}", row.took);
        println!("{}", row.of_room());
    }
}

//! ClassBench rule sets on devices with room for few flows or masks: the compiler chooses the flows that save
//! workers most time. Runs if `STEERD_CORPORA` names the directory of the corpora.

use std::collections::{BTreeSet, HashSet};
use std::io::Write as _;
use std::path::Path;

use compiler::{FlowGroups, Job, Weights};
use device_model::DeviceModel;
use packet::build::FrameBuilder;
use packet::{DeepKey, MacAddr};
use policy::{NoFiles, Policy, Source};
use program::Program;

use crate::budgets::{SETS_1K, Set, compile, hardware_share};

/// An mlx5 with room for so many masks and flows.
fn mlx5_with(max_shapes: Option<u32>, max_flows: Option<u32>) -> DeviceModel {
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
    let shares = compiler::shares(policy, program, Some(&groups)).all;
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

fn row(folder: &Path, name: &str, words: &str, model: &DeviceModel) -> String {
    let set = Set::read(&folder.join(name), 1);
    let expected = set.expected();
    let started = test_support::CpuTime::now();
    let program = compile(&set.policy, model);
    let took = started.elapsed();
    let groups = FlowGroups::of(&program, model).expect("groups of flows");
    let shares = compiler::shares(&set.policy, &program, Some(&groups)).all;
    format!(
        "| {name} | {words} | {} | {} | {} | {} | {:.0} | {:.0} | {:.1} % | {:.1} | {} |\n",
        program.flows.len(),
        masks(&program),
        program.priorities_used,
        groups.groups,
        shares.groups_per_packet().unwrap_or(0.0),
        shares.worker_ns_per_packet(),
        100.0 * hardware_share(&set, &expected, &program),
        groups.install_seconds.unwrap_or(0.0),
        took.as_millis(),
    )
}

#[test]
#[ignore = "prints a table of docs/explanation/few-priorities.md: run with --release"]
fn table_of_few_flows() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let columns = "set | room | flows | masks | priorities | groups | hops | ns | in hardware | seconds | ms";
    let mut table = format!("| {columns} |\n|{}\n", "---|".repeat(11));
    for name in SETS_1K.into_iter().chain(["acl1_10k"]) {
        for (words, masks, flows) in [
            ("all", None, None),
            ("128 masks, 8,000 flows", Some(128), Some(8000)),
            ("64 masks", Some(64), None),
            ("64 masks, 8,000 flows", Some(64), Some(8000)),
            ("8,000 flows", None, Some(8000)),
            ("2,000 flows", None, Some(2000)),
            ("16 masks, 8,000 flows", Some(16), Some(8000)),
        ] {
            table.push_str(&row(&folder, name, words, &mlx5_with(masks, flows)));
        }
        for max_groups in [128, 32] {
            let model = DeviceModel { max_groups: Some(max_groups), ..DeviceModel::mlx5() };
            table.push_str(&row(&folder, name, &format!("{max_groups} groups a priority"), &model));
        }
        for ns in [1, 10] {
            let model = DeviceModel { ns_per_group: Some(ns), ..DeviceModel::mlx5() };
            table.push_str(&row(&folder, name, &format!("{ns} ns a group"), &model));
        }
    }
    let _ = std::io::stderr().write_all(table.as_bytes());
}

fn parsed(rules: &str) -> Policy {
    let text = format!(
        "version = 1\nallow_lost_exceptions = true\n[groups.g]\nworkers = \"all\"\n[groups.a]\nworkers = \"all\"\n{rules}"
    );
    policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
}

/// The name of the rule that decides a frame.
fn rule_of(program: &Program, frame: &[u8]) -> String {
    let explained = program.explain_deep(&DeepKey::of(frame));
    program.rules[explained.outcome.rule.index()].name.to_string()
}

/// Rules of this policy decide these frames, on an mlx5 with any number of masks and flows that will do.
fn check_decisions(policy: &Policy, frames: &[(&str, Vec<u8>)]) {
    let mut covered = 0;
    for masks in 1..12 {
        for flows in [4, 8, 16, 64, 1_000] {
            let profile = mlx5_with(Some(masks), Some(flows));
            let Ok(program) = compiler::compile(policy, &profile, 2) else { continue };
            covered += usize::from(program.flows.iter().any(|flow| flow.rule == program.default_rule()));
            for (rule, frame) in frames {
                assert_eq!(rule_of(&program, frame), *rule, "{masks} masks, {flows} flows\n{program}");
            }
        }
    }
    assert!(covered > 2, "{covered} programs with covers");
}

/// Rules of many masks, which meet no packet of another rule.
fn many_masks() -> String {
    let rule = |number: u32| {
        format!(
            "[[rules]]\nname = 'm{number}'\naction = 'drop'\n\
             match = {{ protocol = 'udp', src = '128.0.0.0/{}', dst_port = {} }}\n",
            8 + number,
            2_000 + number
        )
    };
    (0..16).map(rule).collect()
}

/// A rule that leaves packets to the kernel has flows for the part of them that an inseparable rule takes.
#[test]
fn covers_leave_packets_to_the_kernel() {
    let policy = parsed(
        &("[[rules]]\nname = 'ssh'\nmatch = { protocol = 'tcp', dst_port = 22 }\naction = 'kernel'\n\
         [[rules]]\nname = 'net'\nmatch = { src = '10.1.0.0/16' }\naction = { steer = 'g' }\n\
         [[rules]]\nname = 'web'\nmatch = { protocol = 'tcp', dst = '192.0.2.0/24' }\naction = { steer = 'g' }\n"
            .to_owned()
            + &many_masks()),
    );
    let tcp = |src: [u8; 4], dst: [u8; 4], port| {
        FrameBuilder::new().ipv4(src.into(), dst.into()).tcp(5, port, 2).build()
    };
    let (far, near, server) = ([172, 16, 0, 1], [10, 1, 0, 1], [192, 0, 2, 1]);
    check_decisions(
        &policy,
        &[
            ("ssh", tcp(far, server, 22)),
            ("ssh", tcp(near, server, 22)),
            ("net", tcp(near, server, 80)),
            ("web", tcp(far, server, 80)),
        ],
    );
}

/// The device applies flows for multicast alone after all others.
#[test]
fn covers_do_not_hide_multicast_rules() {
    let policy = parsed(
        &("[[rules]]\nname = 'mdns'\naction = { steer = 'a' }\n\
         match = { dst_mac = 'multicast', protocol = 'udp', dst_port = 5353 }\n\
         [[rules]]\nname = 'web'\nmatch = { protocol = 'udp', dst_port = 80 }\naction = { steer = 'g' }\n\
         [[rules]]\nname = 'ports'\nmatch = { protocol = 'udp', dst_port = '7-79' }\naction = 'drop'\n"
            .to_owned()
            + &many_masks()),
    );
    let udp = |mac: [u8; 6], src_port, dst_port| {
        let frame = FrameBuilder::new()
            .ethernet(MacAddr(mac), MacAddr([2, 0, 0, 0, 0, 9]))
            .ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        frame.udp(src_port, dst_port).build()
    };
    let (group, host) = ([1, 0, 0x5e, 0, 0, 0xfb], [2, 0, 0, 0, 0, 1]);
    check_decisions(
        &policy,
        &[
            ("mdns", udp(group, 5_353, 5_353)),
            ("mdns", udp(group, 8, 5_353)),
            ("web", udp(group, 8, 80)),
            ("web", udp(host, 900, 80)),
            ("ports", udp(host, 9, 9)),
            ("ports", udp(group, 9, 9)),
        ],
    );
}

/// Covers would take packets from the host that nobody gives back, only to spare hops.
#[test]
fn hops_are_not_spared_with_the_host_s_packets() {
    let rule = |number: u32| {
        let (length, port) = (9 + number % 20, 1_000 + number);
        format!(
            "[[rules]]\nname = 'r{number}'\naction = 'drop'\n\
             match = {{ protocol = 'udp', src = '10.0.0.0/{length}', dst_port = {port} }}\n"
        )
    };
    let rules: String = (0..60).map(rule).collect();
    let allowed = parsed(&rules);
    let strict = Policy { allow_lost_exceptions: false, ..allowed.clone() };
    let dear = DeviceModel { ns_per_group: Some(500), ..DeviceModel::mlx5() };
    let has_covers = |policy: &Policy| {
        let program = compiler::compile(policy, &dear, 2).expect("it compiles");
        program.flows.iter().any(|flow| flow.rule == program.default_rule())
    };
    assert!(has_covers(&allowed) && !has_covers(&strict));
}

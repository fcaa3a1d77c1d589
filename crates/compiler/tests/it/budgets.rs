//! ClassBench rule sets on devices with few priorities: every set compiles, every packet has the outcome of
//! its first matching rule, and most packets are decided in hardware. Runs if `STEERD_CORPORA` names the
//! directory of the corpora.

use std::collections::{HashMap, HashSet};
use std::hint::black_box;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use device_model::DeviceModel;
use packet::build::FrameBuilder;
use packet::cube::{Cube, DST_IPV4, DST_PORT, HAS_IPV4, HAS_TCP, HAS_UDP, PROTOCOL, SRC_IPV4, SRC_PORT};
use packet::{DeepKey, FlowKey};
use policy::import::{ClassBench, classbench_with};
use policy::{NoFiles, Policy, Source};
use program::{Class, Decide, Outcome, Placement, Predicate, Program, Step};

pub(crate) const SETS_1K: [&str; 5] = ["acl_1k", "acl1_1k", "acl5_1k", "fw1_1k", "ipc1_1k"];
const SETS_10K: [&str; 2] = ["acl1_10k", "ipc1_10k"];
/// The least share of packets decided in hardware, of those drawn from the rules.
const GOAL: f64 = 0.9;

/// Compilations of which the fastest counts.
const ROUNDS: usize = 3;

/// A rule set as a policy, and packets drawn from its rules.
pub(crate) struct Set {
    pub(crate) policy: Policy,
    packets: Vec<DeepKey>,
    pub(crate) lines: Vec<Line>,
}

impl Set {
    pub(crate) fn read(path: &Path, per_rule: usize) -> Self {
        Self::of(&std::fs::read_to_string(path).expect("the set can be read"), per_rule)
    }

    fn of(text: &str, per_rule: usize) -> Self {
        let imported = classbench_with(text, ClassBench { tcp_flags: false }).expect("a filter set");
        let source = Source::new("set.toml", imported.policy_toml);
        let (policy, _) = policy::parse(&source, &NoFiles).expect("an imported policy parses");
        let mut random = Random(1);
        let lines = text.lines().filter(|line| line.starts_with('@'));
        let lines: Vec<Line> = lines.map(Line::of).collect();
        let packets = lines.iter().flat_map(|line| line.drawn(per_rule, &mut random)).collect();
        Self { policy, packets, lines }
    }

    /// Leaves about so many packets: to find the first rule of one, all are tried in turn.
    fn with_few_packets(mut self, count: usize) -> Self {
        let stride = self.packets.len().div_ceil(count);
        self.packets = self.packets.into_iter().step_by(stride).collect();
        self
    }

    /// The length of the longest chain of earlier rules, each of which overlaps the next, up to a rule that
    /// overlaps it; by rule.
    fn chains(&self) -> Vec<u32> {
        let mut chains: Vec<u32> = Vec::with_capacity(self.lines.len());
        for line in &self.lines {
            let earlier = self.lines.iter().zip(&chains);
            let longest = earlier.filter(|(other, _)| line.overlaps(other)).map(|(_, chain)| chain + 1).max();
            chains.push(longest.unwrap_or(0));
        }
        chains
    }

    /// The first rule that matches each packet, by trying all in turn.
    pub(crate) fn expected(&self) -> Vec<usize> {
        let predicates: Vec<Predicate> =
            self.policy.rules.iter().map(|rule| Predicate::of(&rule.matches)).collect();
        let first = |key| predicates.iter().position(|predicate| predicate.matches_deep(key));
        self.packets.iter().map(|key| first(key).unwrap_or(predicates.len())).collect()
    }
}

/// A linear congruential generator: the packets are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) % most
    }

    /// A value of a range, every other time one of its ends.
    fn within(&mut self, (low, high): (u64, u64)) -> u64 {
        match self.below(4) {
            0 => low,
            1 => high,
            _ => low + self.below(high - low + 1),
        }
    }
}

/// One line of a set.
pub(crate) struct Line {
    /// Source, destination, source ports, destination ports, protocols.
    ranges: [(u64, u64); 5],
}

impl Line {
    fn of(text: &str) -> Self {
        let columns: Vec<&str> = text.trim_start_matches('@').split_whitespace().collect();
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let prefix = |text: &str| {
            let (address, length) = text.split_once('/').expect("a prefix");
            let address = u64::from(address.parse::<std::net::Ipv4Addr>().expect("an address").to_bits());
            let host = (1u64 << (32 - number(length))) - 1;
            (address & !host, address | host)
        };
        let ports = |low: usize, high: usize| (number(columns[low]), number(columns[high]));
        let protocol = columns[8]
            .strip_suffix("/0xFF")
            .map(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a protocol"));
        let protocols = protocol.map_or((0, 255), |protocol| (protocol, protocol));
        Self { ranges: [prefix(columns[0]), prefix(columns[1]), ports(2, 4), ports(5, 7), protocols] }
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let pairs = self.ranges.iter().zip(&other.ranges);
        pairs.fold(true, |all, (one, other)| all & (one.0 <= other.1) & (other.0 <= one.1))
    }

    /// The logarithm of the number of packets that it matches.
    fn bits(&self) -> f64 {
        self.ranges.iter().map(|(low, high)| ((high - low + 1) as f64).log2()).sum()
    }

    /// Packets of it.
    fn drawn(&self, count: usize, random: &mut Random) -> Vec<DeepKey> {
        let [src, dst, src_ports, dst_ports, protocols] = self.ranges;
        let packets = (0..count).map(|_| {
            let either = [6, 17][random.below(2) as usize];
            let protocol = if protocols.0 < protocols.1 { either } else { protocols.0 };
            let mut cube = Cube::ANY.layer(HAS_IPV4, true)?;
            cube = cube.with(SRC_IPV4, random.within(src), SRC_IPV4.ones())?;
            cube = cube.with(DST_IPV4, random.within(dst), DST_IPV4.ones())?;
            cube = cube.with(PROTOCOL, protocol, PROTOCOL.ones())?;
            let layers = [(6, HAS_TCP), (17, HAS_UDP)];
            if let Some(layer) = layers.into_iter().find(|(number, _)| *number == protocol) {
                cube = cube.layer(layer.1, true)?;
                cube = cube.with(SRC_PORT, random.within(src_ports), SRC_PORT.ones())?;
                cube = cube.with(DST_PORT, random.within(dst_ports), DST_PORT.ones())?;
            }
            Some(DeepKey::of(&cube.closed()?.frame()))
        });
        packets.map(|key| key.expect("a packet of the line")).collect()
    }
}

/// Checks the outcome of every packet. Returns the share of those that the device decides.
pub(crate) fn hardware_share(set: &Set, expected: &[usize], program: &Program) -> f64 {
    let mut in_hardware = 0;
    for (key, expected) in set.packets.iter().zip(expected) {
        let explained = program.explain_deep(key);
        assert_eq!(explained.outcome.rule.index(), *expected, "{key:?}");
        let class = explained.class.and_then(|class| program.class(class));
        in_hardware += usize::from(class.is_none_or(program::Class::is_exact));
    }
    in_hardware as f64 / set.packets.len() as f64
}

pub(crate) fn compile(policy: &Policy, profile: &DeviceModel) -> Program {
    let program = compiler::compile(policy, profile, 4);
    program.unwrap_or_else(|problems| panic!("{}: {problems}", profile.name))
}

/// Devices refuse a flow whose match is installed at its priority, with EEXIST.
fn assert_no_two_flows_are_equal(program: &Program) {
    let mut known = HashMap::new();
    for flow in &program.flows {
        let specs: Vec<String> = flow.specs.iter().map(|spec| format!("{spec:?}")).collect();
        if let Some(other) = known.insert((flow.priority, specs), flow) {
            panic!("{other:?}\n{flow:?}");
        }
    }
}

/// An mlx5 of which a program may use so many priorities.
fn mlx5_with(priorities: u32) -> DeviceModel {
    DeviceModel { priorities: priorities + 1, ..DeviceModel::mlx5() }
}

fn models() -> [DeviceModel; 3] {
    [DeviceModel::ideal(), DeviceModel::mlx5(), DeviceModel::mlx4()]
}

/// The processor time that this thread takes for a compilation, in milliseconds: the least of some, as other
/// processes share caches and cores.
fn compile_ms(policy: &Policy, profile: &DeviceModel) -> f64 {
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
    };
    let rounds = (0..ROUNDS).map(|_| {
        let started = now();
        let _ = compile(policy, profile);
        now() - started
    });
    rounds.fold(f64::INFINITY, f64::min)
}

/// The result of a set on a model, as a row of the table in docs/explanation/few-priorities.md.
fn row(name: &str, set: &Set, expected: &[usize], profile: &DeviceModel) -> String {
    let took_ms = compile_ms(&set.policy, profile);
    let mut program = None;
    let memory = allocation_counter::measure(|| program = Some(compile(&set.policy, profile)));
    let program = program.expect("it was compiled");
    let share = hardware_share(set, expected, &program);
    let all = reports::shares(&set.policy, &program, None).all;
    let masks: HashSet<_> = program.flows.iter().map(program::Flow::shape).collect();
    let kept_mb = memory.bytes_current as f64 / 1e6;
    format!(
        "| {name} | {} | {} | {:.1} % | {:.1} % | {:.1} | {:.0} | {} | {} | {} | {kept_mb:.1} | {took_ms:.0} |\n",
        set.policy.rules.len(),
        profile.name,
        100.0 * share,
        100.0 - all.hybrid_percent().unwrap_or(0.0),
        all.comparisons_per_packet(),
        all.worker_ns_per_packet(),
        program.priorities_used,
        masks.len(),
        program.flows.len(),
    )
}

#[test]
fn most_packets_of_1k_sets_are_decided_in_hardware() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for name in SETS_1K {
        let set = Set::read(&folder.join(name), 1);
        let expected = set.expected();
        for priorities in [8, 15] {
            let program = compile(&set.policy, &mlx5_with(priorities));
            let share = hardware_share(&set, &expected, &program);
            assert!(share >= GOAL, "{name} with {priorities} priorities: {share}");
        }
    }
}

/// The set of a firewall of more networks: each line of fw1_1k for so many networks, duplicates left out.
fn for_networks(text: &str, networks: u64) -> String {
    let prefix = |text: &str, network: u64| {
        let (address, length) = text.split_once('/').expect("a prefix");
        let (address, length): (std::net::Ipv4Addr, u32) =
            (address.parse().expect("an address"), length.parse().expect("a length"));
        if network == 0 || length == 0 {
            return text.to_owned();
        }
        let address = u64::from(address.to_bits());
        let other = (address >> 16) * 2_654_435_761 + network * 40_503 * 65_537;
        let moved = (other >> 8 & 0xffff) << 16 | address & 0xffff;
        let kept = moved & !((1u64 << (32 - length)) - 1);
        format!("{}/{length}", std::net::Ipv4Addr::from_bits(kept as u32))
    };
    let mut seen = HashSet::new();
    let mut lines = String::new();
    for line in text.lines().filter(|line| line.starts_with('@')) {
        let columns: Vec<&str> = line.trim_start_matches('@').split_whitespace().collect();
        for network in 0..networks {
            let (src, dst) = (prefix(columns[0], network), prefix(columns[1], network));
            let moved = format!("@{src}\t{dst}\t{}\n", columns[2..].join("\t"));
            if seen.insert(moved.clone()) {
                lines += &moved;
            }
        }
    }
    lines
}

/// Without flows of their own for packets that rules share, a device decides in hardware what has a shorter
/// chain of earlier overlapping rules than there are priorities. That is compared on an mlx5 with room for
/// all masks; on an mlx5 as it is, masks may cost some rules, but no packets.
#[test]
fn no_fewer_rules_and_packets_are_decided_in_hardware_than_with_short_chains() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for name in SETS_1K.into_iter().chain(SETS_10K) {
        let set = Set::read(&folder.join(name), 1).with_few_packets(1000);
        let (expected, chains) = (set.expected(), set.chains());
        for priorities in [8, 15] {
            let is_short = |rule: usize| chains.get(rule).is_none_or(|chain| *chain < priorities);
            let short = (0..chains.len()).filter(|rule| is_short(*rule)).count();
            let least_rules = short as f64 / chains.len() as f64;
            let of_short = expected.iter().filter(|rule| is_short(**rule)).count();
            let least_packets = of_short as f64 / expected.len() as f64;
            let share = |profile: DeviceModel| {
                let program = compile(&set.policy, &profile);
                (rules_in_hardware(&program), hardware_share(&set, &expected, &program))
            };
            let mlx5 = mlx5_with(priorities);
            let (rules, packets) = share(DeviceModel { priority_table: None, ..mlx5.clone() });
            assert!(rules >= least_rules, "{name} with {priorities} priorities: {rules} < {least_rules}");
            assert!(
                packets >= least_packets,
                "{name} with {priorities} priorities: {packets} < {least_packets}"
            );
            let (_, packets) = share(mlx5);
            assert!(
                packets >= least_packets,
                "{name} on an mlx5 with {priorities}: {packets} < {least_packets}"
            );
        }
    }
}

/// The packets of 10,000 rules of a firewall on an mlx5: the flows of the first rank have 1,800 masks, for
/// which one priority has no room.
#[test]
fn many_masks_of_one_rank_leave_the_priorities_to_the_others() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let text = std::fs::read_to_string(folder.join("fw1_1k")).expect("the set can be read");
    let set = Set::of(&for_networks(&text, 12), 1).with_few_packets(1000);
    let (expected, chains, mlx5) = (set.expected(), set.chains(), DeviceModel::mlx5());
    let is_short = |rule: usize| chains.get(rule).is_none_or(|chain| *chain < mlx5.priorities_per_program());
    let of_short = expected.iter().filter(|rule| is_short(**rule)).count();
    let least = of_short as f64 / expected.len() as f64;
    let share = hardware_share(&set, &expected, &compile(&set.policy, &mlx5));
    assert!(share >= least, "{share} < {least}");
}

/// One second of processor time for 10,000 rules, and 50 ms for any number: in a release build on one core of
/// an AMD EPYC, ipc1_10k takes 0.87 s and fw1_1k 0.09 s. Tests are optimized less, and run beside others.
#[test]
fn every_set_compiles_in_time() {
    const SCALE: f64 = if cfg!(debug_assertions) { 3.0 } else { 1.0 };
    let Some(folder) = test_support::corpora("rules") else { return };
    for name in SETS_1K.into_iter().chain(SETS_10K) {
        let set = Set::read(&folder.join(name), 0);
        let most_ms = SCALE * (50.0 + set.policy.rules.len() as f64 / 10.0);
        let took_ms = compile_ms(&set.policy, &DeviceModel::mlx5());
        println!("{name}: {took_ms:.0} ms of {most_ms:.0}");
        assert!(took_ms <= most_ms, "{name}: {took_ms} ms, not {most_ms}");
    }
}

/// The share of rules of which the device decides all packets.
fn rules_in_hardware(program: &Program) -> f64 {
    let (_, rules) = program.rules.split_last().expect("a default");
    let in_hardware = rules.iter().filter(|rule| rule.placement == Placement::Hardware).count();
    in_hardware as f64 / rules.len() as f64
}

#[test]
fn every_set_compiles_for_every_model() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for name in SETS_1K.into_iter().chain(SETS_10K) {
        let set = Set::read(&folder.join(name), 1).with_few_packets(300);
        let expected = set.expected();
        for profile in models() {
            let program = compile(&set.policy, &profile);
            hardware_share(&set, &expected, &program);
            println!("{name} for {}: {} flows", profile.name, program.flows.len());
        }
    }
}

/// The conditions on TCP flags and a last rule for all other packets are what the sets above lack; the soft
/// NIC has room for fewer masks than the device that it imitates.
#[test]
fn every_set_can_be_installed() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for name in SETS_1K.into_iter().chain(SETS_10K) {
        let text = std::fs::read_to_string(folder.join(name)).expect("the set can be read");
        let imported =
            classbench_with(&text, ClassBench { tcp_flags: true }).expect("a filter set").policy_toml;
        let group = imported.lines().find_map(|line| line.strip_prefix("[groups.")?.strip_suffix(']'));
        let group = group.expect("an imported policy has a group");
        let rest =
            format!("[[rules]]\nname = 'rest'\nmatch = {{ any = true }}\naction = {{ steer = '{group}' }}\n");
        let (policy, _) =
            policy::parse(&Source::new("set.toml", imported.clone() + &rest), &NoFiles).expect("it parses");
        for profile in models() {
            assert_no_two_flows_are_equal(&compile(&policy, &profile));
            assert_no_two_flows_are_equal(&compile(&policy, &profile.in_software()));
        }
    }
}

#[test]
#[ignore = "prints the table of docs/explanation/few-priorities.md: run with --release, alone"]
fn table_of_all_sets() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let columns = "set | rules | model | ends | space | compared | ns | priorities | masks | flows | MB | ms";
    let mut table = format!("| {columns} |\n|{}\n", "---|".repeat(12));
    for name in SETS_1K.into_iter().chain(SETS_10K) {
        let set = Set::read(&folder.join(name), 1);
        let expected = set.expected();
        models().iter().for_each(|profile| table.push_str(&row(name, &set, &expected, profile)));
    }
    let _ = std::io::stderr().write_all(table.as_bytes());
}

#[test]
#[ignore = "prints the shares in docs/explanation/few-priorities.md, by priorities: run with --release"]
fn volumes_as_weights() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let mut table = "| set | priorities | rules alike | by volume |\n|---|---|---|---|\n".to_owned();
    for name in SETS_1K.into_iter().chain(SETS_10K) {
        let set = Set::read(&folder.join(name), 1);
        let expected = set.expected();
        let bits: Vec<f64> = set.lines.iter().map(Line::bits).collect();
        let most = bits.iter().copied().fold(0.0, f64::max);
        let volumes = bits.iter().map(|bits| (62.0 + bits - most).exp2() as u64).collect();
        let volumes = compiler::Weights::new(volumes);
        for priorities in [4, 8, 15] {
            let profile = mlx5_with(priorities);
            let shares = [None, Some(&volumes)].map(|weights| {
                let program = compiler::Job::new(&set.policy, &profile, 4).weighted(weights).compile();
                100.0 * hardware_share(&set, &expected, &program.expect("it fits"))
            });
            let row = format!("| {name} | {priorities} | {:.1} % | {:.1} % |\n", shares[0], shares[1]);
            table.push_str(&row);
        }
    }
    let _ = std::io::stderr().write_all(table.as_bytes());
}

/// Nanoseconds of one call, the least of some rounds over all keys.
fn least_ns<K>(keys: &[K], mut call: impl FnMut(&K)) -> f64 {
    let rounds = (0..20 * ROUNDS).map(|_| {
        let started = Instant::now();
        keys.iter().for_each(&mut call);
        started.elapsed().as_secs_f64() * 1e9 / keys.len() as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "prints the numbers of crates/compiler/src/cost.rs: run with --release, alone"]
fn costs_of_decisions() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let set = Set::read(&folder.join("acl1_10k"), 1);
    // The workers of an mlx4 compare each packet with the whole policy.
    let program = compile(&set.policy, &DeviceModel::mlx4());
    let class = program.classes.iter().flatten().find(|class| !class.is_exact()).expect("a hybrid class");
    assert!(class.has_index(), "a class of many rules");
    let keys: Vec<FlowKey> = set.packets.iter().map(|key| key.outer).collect();
    let search = least_ns(&keys, |key| _ = black_box(class.resolve_by_index(black_box(key))));
    let few = first_steps(&program, class);
    let compare = least_ns(&keys, |key| _ = black_box(few.resolve(black_box(key)))) / 8.0;
    let ip = FrameBuilder::new().ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let frames: Vec<Vec<u8>> = (0..1000).map(|port| ip.clone().udp(port, 53).build()).collect();
    let parse = least_ns(&frames, |frame| _ = black_box(FlowKey::of(black_box(frame))));
    let line = format!("parse {parse:.1} ns, compare {compare:.1} ns per rule, search {search:.1} ns\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The first eight steps of a class.
fn first_steps(program: &Program, class: &Class) -> Class {
    let Decide::Software(steps, _) = &class.decide else { panic!("an exact class") };
    let outcome = Outcome { rule: program.default_rule(), verdict: program.default };
    let steps: Vec<Step> = steps.iter().take(8).cloned().collect();
    Class { rule: class.rule, decide: Decide::Software(steps.into(), outcome) }
}

//! ClassBench rule sets on devices with few priorities: every set compiles, every packet has the outcome of its first
//! matching rule, and most packets are decided in hardware. Runs if `STEERD_CORPORA` names the directory of the corpora.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use device_model::DeviceProfile;
use packet::DeepKey;
use packet::cube::{Cube, DST_IPV4, DST_PORT, HAS_IPV4, HAS_TCP, HAS_UDP, PROTOCOL, SRC_IPV4, SRC_PORT};
use policy::import::{ClassBench, classbench_with};
use policy::{NoFiles, Policy, Source};
use program::{Predicate, Program};

const SETS_1K: [&str; 5] = ["acl_1k", "acl1_1k", "acl5_1k", "fw1_1k", "ipc1_1k"];
const SETS_10K: [&str; 2] = ["acl1_10k", "ipc1_10k"];
/// The least share of packets decided in hardware, of those drawn from the rules.
const GOAL: f64 = 0.9;

/// A rule set as a policy, and packets drawn from its rules.
struct Set {
    policy: Policy,
    packets: Vec<DeepKey>,
}

impl Set {
    fn read(path: &Path, per_rule: usize) -> Self {
        let text = std::fs::read_to_string(path).expect("the set can be read");
        let imported = classbench_with(&text, ClassBench { tcp_flags: false });
        let source = Source::new("set.toml", imported.policy_toml);
        let (policy, _) = policy::parse(&source, &NoFiles).expect("an imported policy parses");
        let mut random = Random(1);
        let lines = text.lines().filter(|line| line.starts_with('@'));
        let packets = lines.flat_map(|line| drawn(line, per_rule, &mut random)).collect();
        Self { policy, packets }
    }

    /// The first rule that matches each packet, by trying all in turn.
    fn expected(&self) -> Vec<usize> {
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

/// Packets of one line of a set.
fn drawn(line: &str, count: usize, random: &mut Random) -> Vec<DeepKey> {
    let columns: Vec<&str> = line.trim_start_matches('@').split_whitespace().collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let prefix = |text: &str| {
        let (address, length) = text.split_once('/').expect("a prefix");
        let address = u64::from(address.parse::<std::net::Ipv4Addr>().expect("an address").to_bits());
        let host = (1u64 << (32 - number(length))) - 1;
        (address & !host, address | host)
    };
    let (src, dst) = (prefix(columns[0]), prefix(columns[1]));
    let ports = [(2, 4), (5, 7)].map(|(low, high)| (number(columns[low]), number(columns[high])));
    let protocol = columns[8]
        .strip_suffix("/0xFF")
        .map(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a protocol"));
    let packets = (0..count).map(|_| {
        let protocol = protocol.unwrap_or([6, 17][random.below(2) as usize]);
        let mut cube = Cube::ANY.layer(HAS_IPV4, true)?;
        cube = cube.with(SRC_IPV4, random.within(src), SRC_IPV4.ones())?;
        cube = cube.with(DST_IPV4, random.within(dst), DST_IPV4.ones())?;
        cube = cube.with(PROTOCOL, protocol, PROTOCOL.ones())?;
        if let Some(layer) = [(6, HAS_TCP), (17, HAS_UDP)].into_iter().find(|(number, _)| *number == protocol)
        {
            cube = cube.layer(layer.1, true)?;
            cube = cube.with(SRC_PORT, random.within(ports[0]), SRC_PORT.ones())?;
            cube = cube.with(DST_PORT, random.within(ports[1]), DST_PORT.ones())?;
        }
        Some(DeepKey::of(&cube.closed()?.frame()))
    });
    packets.map(|key| key.expect("a packet of the line")).collect()
}

/// Checks the outcome of every packet. Returns the share of those that the device decides.
fn hardware_share(set: &Set, expected: &[usize], program: &Program) -> f64 {
    let mut in_hardware = 0;
    for (key, expected) in set.packets.iter().zip(expected) {
        let explained = program.explain_deep(key);
        assert_eq!(explained.outcome.rule.index(), *expected, "{key:?}");
        let class = explained.class.and_then(|class| program.class(class));
        in_hardware += usize::from(class.is_none_or(program::Class::is_exact));
    }
    in_hardware as f64 / set.packets.len() as f64
}

fn compile(policy: &Policy, profile: &DeviceProfile) -> (Duration, Program) {
    let started = Instant::now();
    let program = compiler::compile(policy, profile, 4);
    let took = started.elapsed();
    (took, program.unwrap_or_else(|problems| panic!("{}: {problems}", profile.name)))
}

/// An mlx5 of which a program may use so many priorities.
fn mlx5_with(priorities: u32) -> DeviceProfile {
    DeviceProfile { priorities: 2 * priorities, ..DeviceProfile::mlx5() }
}

fn models() -> [DeviceProfile; 3] {
    [DeviceProfile::ideal(), DeviceProfile::mlx5(), DeviceProfile::mlx4()]
}

/// What became of a set on a model, as a row of the table in docs/reference/device-models.md.
fn row(name: &str, set: &Set, expected: &[usize], profile: &DeviceProfile) -> String {
    let (took, program) = compile(&set.policy, profile);
    let share = hardware_share(set, expected, &program);
    let all = compiler::shares(&set.policy, &program).all;
    let masks: HashSet<_> = program.flows.iter().map(program::Flow::shape).collect();
    format!(
        "| {name} | {} | {} | {:.1} % | {:.1} % | {:.1} | {} | {} | {} | {:.0} ms |\n",
        set.policy.rules.len(),
        profile.name,
        100.0 * share,
        100.0 - all.hybrid_percent().unwrap_or(0.0),
        all.questions_per_packet(),
        program.priorities_used,
        masks.len(),
        program.flows.len(),
        1e3 * took.as_secs_f64(),
    )
}

#[test]
fn most_packets_of_1k_sets_are_decided_in_hardware() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for name in SETS_1K {
        let set = Set::read(&folder.join(name), 1);
        let expected = set.expected();
        for priorities in [8, 15] {
            let (_, program) = compile(&set.policy, &mlx5_with(priorities));
            let share = hardware_share(&set, &expected, &program);
            assert!(share >= GOAL, "{name} with {priorities} priorities: {share}");
        }
    }
}

#[test]
fn every_set_compiles_for_every_model() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for name in SETS_1K.into_iter().chain(SETS_10K) {
        let mut set = Set::read(&folder.join(name), 1);
        // To find the first rule of a packet, all are tried in turn.
        let stride = set.packets.len().div_ceil(300);
        set.packets = set.packets.into_iter().step_by(stride).collect();
        let expected = set.expected();
        for profile in models() {
            let (took, program) = compile(&set.policy, &profile);
            hardware_share(&set, &expected, &program);
            println!("{name} for {}: {} flows, {took:?}", profile.name, program.flows.len());
        }
    }
}

#[test]
#[ignore = "prints the table of docs/reference/device-models.md: run with --release, alone"]
fn table_of_all_sets() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let columns = "set | rules | model | at the ends of ranges | of all packets of the rules | comparisons | priorities \
                   | masks | flows | compile time";
    let mut table = format!("| {columns} |\n|{}\n", "---|".repeat(10));
    for name in SETS_1K.into_iter().chain(SETS_10K) {
        let set = Set::read(&folder.join(name), 1);
        let expected = set.expected();
        models().iter().for_each(|profile| table.push_str(&row(name, &set, &expected, profile)));
    }
    let _ = std::io::stderr().write_all(table.as_bytes());
}

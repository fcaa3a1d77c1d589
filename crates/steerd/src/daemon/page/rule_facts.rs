//! Facts about the rules of a policy that take long to compute: an example packet of each, and the share of
//! packets that the device decides. A thread of its own computes them when they are first asked for, so that
//! no request waits for them and a daemon without a reader computes nothing.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use analysis::Deciders;
use policy::policy::{Action, Direction};
use policy::{Policy, Witness};
use program::{DEFAULT_RULE, Placement, Program, Rule};
use reports::Share;
use serde::Serialize;

use crate::daemon::board::PolicyInForce;
use crate::policy_file::{self, Inputs};

/// How long the facts about a policy are computed. The steps before the search for examples are limited by
/// their work, and the last one that begins in this time may end later.
const TIME: Duration = Duration::from_secs(4);
/// How long nothing is computed after that: this many times the time that it took.
const PAUSE_PER_WORK: u32 = 4;
/// The nice value of the thread (sched(7)): of a core that a worker needs, too, it gets about a tenth.
const NICE: i32 = 10;

/// The facts by the names of the rules.
pub(super) type FactsOfRules = HashMap<String, RuleFact>;

/// The facts about one rule.
#[derive(Debug)]
pub(super) struct RuleFact {
    /// The file that has the rule.
    pub(super) file: Arc<str>,
    pub(super) hardware_share: Option<f64>,
    pub(super) example: Option<ExamplePacket>,
}

/// A packet that a rule decides.
#[derive(Debug, Serialize)]
pub(super) struct ExamplePacket {
    /// The packet in one short line.
    text: String,
    /// The packet in the notation of `steerd explain --packet`; if that cannot express it, the frame as for
    /// `--hex`.
    packet: String,
}

/// The facts about the program that was asked for last.
#[derive(Debug, Default)]
pub(in crate::daemon) struct RuleFacts(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The generation of the program that the facts are about: rules at run time change it, too.
    generation: u64,
    facts: Option<Arc<FactsOfRules>>,
    is_computing: bool,
    /// When the next facts may be computed.
    pause_end: Option<Instant>,
}

impl RuleFacts {
    /// The facts about a policy in force; `None`: they are being computed, or will be.
    pub(super) fn of(&self, policy: &Arc<PolicyInForce>) -> Option<Arc<FactsOfRules>> {
        let mut known = lock(&self.0);
        if known.generation == policy.generation && known.facts.is_some() {
            return known.facts.clone();
        }
        let is_paused = known.pause_end.is_some_and(|end| Instant::now() < end);
        if !known.is_computing && !is_paused {
            let (inputs, program) = (Arc::clone(&policy.inputs), Arc::clone(&policy.program));
            let in_force = Arc::downgrade(policy);
            let computing = Computing { place: Arc::clone(&self.0), generation: policy.generation };
            let compute = move || {
                // On Linux that of this thread only (setpriority(2)). Without it the work takes as long.
                let _ = rustix::process::setpriority_process(None, NICE);
                let is_wanted = || in_force.strong_count() > 0;
                computing.end(|| compute(&inputs, &program, TIME, &is_wanted));
            };
            // Without a thread a later request tries again.
            known.is_computing = Builder::new().name("rule facts".into()).spawn(compute).is_ok();
        }
        None
    }
}

/// The computation of the facts about one program.
struct Computing {
    place: Arc<Mutex<Known>>,
    generation: u64,
}

impl Computing {
    /// Notes the facts. If the computation panics there are none, and it is not tried again for the program.
    fn end(&self, compute: impl FnOnce() -> FactsOfRules) {
        let begun = Instant::now();
        let facts = catch_unwind(AssertUnwindSafe(compute)).unwrap_or_default();
        let mut known = lock(&self.place);
        known.generation = self.generation;
        known.facts = Some(Arc::new(facts));
        known.is_computing = false;
        known.pause_end = Some(Instant::now() + PAUSE_PER_WORK * begun.elapsed());
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The facts that are known after `time`, or when they are not wanted any more. There are none if the texts
/// of the policy are not kept.
fn compute(inputs: &Inputs, program: &Program, time: Duration, is_wanted: &dyn Fn() -> bool) -> FactsOfRules {
    let begun = Instant::now();
    let left = || is_wanted().then(|| time.saturating_sub(begun.elapsed())).filter(|left| !left.is_zero());
    let Some(Ok(read)) = policy_file::load_inputs(inputs) else { return FactsOfRules::new() };
    let policy = &read.policy;
    let shares = if left().is_some() { hardware_shares(policy, program) } else { HashMap::new() };
    let mut examples = HashMap::new();
    for direction in [Direction::Ingress, Direction::Egress] {
        examples.extend(examples_of(policy, program, direction, &left));
    }
    let mut facts = FactsOfRules::new();
    let mut file: Arc<str> = "".into();
    let names = policy.rules.iter().map(|rule| (rule.name.as_str(), rule.name_place.file()));
    let default = (DEFAULT_RULE, policy.default_place.file());
    for (index, (name, place)) in names.chain([default]).enumerate() {
        if *file != *place {
            file = place.into();
        }
        let fact = RuleFact {
            file: Arc::clone(&file),
            hardware_share: shares.get(name).copied(),
            example: examples.remove(&index),
        };
        facts.insert(name.to_owned(), fact);
    }
    facts
}

/// The part of the packets of each rule, by its name, that the device decides alone.
fn hardware_shares<'p>(policy: &Policy, program: &'p Program) -> HashMap<&'p str, f64> {
    let shares = reports::shares(policy, program, None).rules;
    let in_hardware = |percent: f64| 1.0 - percent / 100.0;
    // A rule of which no packet was drawn counts by its placement.
    let share = |(rule, drawn): (&Rule, &Share)| match rule.placement {
        Placement::Hybrid { .. } => Some(drawn.hybrid_percent().map_or(0.0, in_hardware)),
        Placement::Hardware => drawn.hybrid_percent().map(in_hardware),
    };
    let rules = program.rules.iter().zip(&shares);
    rules.filter_map(|pair| Some((pair.0.name.as_ref(), share(pair)?))).collect()
}

/// A packet of each rule of a direction, by the index of the rule, the default last. `left`: the time for
/// this, if there is any.
fn examples_of(
    policy: &Policy,
    program: &Program,
    direction: Direction,
    left: &dyn Fn() -> Option<Duration>,
) -> Vec<(usize, ExamplePacket)> {
    let is_here = |index: &usize| match policy.rules.get(*index) {
        Some(rule) => {
            rule.direction == direction && !matches!(rule.action, Action::Copy(_) | Action::Sniff(_))
        }
        None => direction == Direction::Ingress,
    };
    let rules: Vec<usize> = (0..=policy.rules.len()).filter(is_here).collect();
    if rules.is_empty() || left().is_none() {
        return Vec::new();
    }
    let deciders = Deciders::of(policy, direction, std::iter::empty());
    let Some(time) = left() else { return Vec::new() };
    let deciders = deciders.within(time);
    let example = |index| {
        deciders.renew();
        let witness = deciders.example(index)?;
        // Rules at run time are in the program and not in the policy.
        let name = policy.rules.get(index).map_or(DEFAULT_RULE, |rule| &rule.name);
        let is_right = decides(program, direction, &witness, name);
        is_right.then(|| (index, ExamplePacket::of(&witness)))
    };
    rules.into_iter().take_while(|_| left().is_some()).filter_map(example).collect()
}

/// Whether a rule of the program decides a packet.
fn decides(program: &Program, direction: Direction, packet: &Witness, rule: &str) -> bool {
    let decided = match direction {
        Direction::Ingress => Some(program.explain_deep(&packet.key()).outcome.rule),
        Direction::Egress => program.explain_sent(&packet.key()).rule,
    };
    decided.and_then(|id| program.rules.get(id.index())).is_some_and(|decided| decided.name == rule)
}

impl ExamplePacket {
    fn of(witness: &Witness) -> Self {
        let text = witness.to_string();
        let is_same = policy::key_of_text(&text).is_ok_and(|key| key == witness.key());
        let packet = if is_same { text.clone() } else { witness.hex() };
        Self { text, packet }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use device_model::DeviceModel;
    use policy::Source;

    use super::*;
    use crate::policy_file::Read;

    const POLICY: &str = "version = 1\ndefault = 'kernel'\n[groups.every]\nworkers = 'all'\n\
        [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'every' }\n\
        [[rules]]\nname = 'syn'\nmatch = { protocol = 'tcp', tcp_flags = 'syn,!ack' }\naction = 'drop'\n\
        [[rules]]\nname = 'never'\nmatch = { protocol = 'udp', dst_port = 53, src = '192.0.2.1' }\naction = 'drop'\n\
        [[rules]]\nname = 'tunnel'\nmatch = { protocol = 'udp', vxlan_vni = 42 }\naction = 'drop'\n";

    fn read(text: &str) -> (Read, Program) {
        let none = BTreeMap::new();
        let read = policy_file::parse(&Source::new("p.toml", text), &none, &none).expect("a policy");
        let program = compiler::compile(&read.policy, &DeviceModel::ideal(), 2).expect("a program");
        (read, program)
    }

    fn facts() -> (Policy, Program, FactsOfRules) {
        let (read, program) = read(POLICY);
        let facts = compute(&read.inputs, &program, Duration::from_secs(3600), &|| true);
        (read.policy, program, facts)
    }

    #[test]
    fn every_example_is_explained_by_its_rule() {
        let (policy, program, facts) = facts();
        let mut explained = 0;
        for rule in policy.rules.iter().map(|rule| rule.name.as_str()).chain([DEFAULT_RULE]) {
            let Some(example) = &facts[rule].example else {
                assert_eq!(rule, "never", "only a rule without packets has no example");
                continue;
            };
            let packet = &example.packet;
            let key = match packet.contains('>') {
                true => policy::key_of_text(packet),
                false => reports::key_of_hex(packet),
            };
            let decided = program.explain_deep(&key.expect("a packet")).outcome.rule;
            assert_eq!(program.rules[decided.index()].name, rule, "{example:?}");
            explained += 1;
        }
        assert_eq!(explained, 4);
    }

    /// A rule at run time is in the program before the rules of the policy.
    #[test]
    fn a_packet_that_another_rule_of_the_program_decides_is_no_example() {
        let (read, _) = read(POLICY);
        let first = "[[rules]]\nname = 'blocked'\nmatch = { protocol = 'udp' }\naction = 'drop'\n";
        let program = self::read(&POLICY.replacen("[[rules]]", &format!("{first}[[rules]]"), 1)).1;
        let facts = compute(&read.inputs, &program, Duration::from_secs(3600), &|| true);
        assert!(facts["dns"].example.is_none(), "{facts:?}");
        assert!(facts["syn"].example.is_some(), "{facts:?}");
    }

    #[test]
    fn nothing_is_looked_for_without_time_or_a_reader() {
        let (read, program) = read(POLICY);
        for (time, is_wanted) in [(Duration::ZERO, true), (Duration::from_secs(3600), false)] {
            let facts = compute(&read.inputs, &program, time, &|| is_wanted);
            assert_eq!(&*facts["dns"].file, "p.toml");
            let is_bare = |fact: &RuleFact| fact.example.is_none() && fact.hardware_share.is_none();
            assert!(facts.values().all(is_bare), "{facts:?}");
        }
    }

    #[test]
    fn a_computation_that_fails_is_over_for_its_program() {
        let facts = RuleFacts::default();
        lock(&facts.0).is_computing = true;
        let computing = Computing { place: Arc::clone(&facts.0), generation: 7 };
        computing.end(|| panic!("as the test wants it"));
        let known = lock(&facts.0);
        assert!(!known.is_computing && known.generation == 7 && known.facts.is_some(), "{known:?}");
    }

    #[test]
    fn the_share_in_hardware_is_that_of_the_device() {
        let (_, _, facts) = facts();
        let share = |rule: &str| facts[rule].hardware_share;
        // No device matches TCP flags.
        assert_eq!((share("dns"), share("syn")), (Some(1.0), Some(0.0)));
        assert_eq!(&*facts["dns"].file, "p.toml");
    }
}

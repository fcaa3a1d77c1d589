//! Random policies on every personality: what a compiled policy really does with packets at its rules' edges is
//! what the policy means, read line by line, and what `explain` says of it.

#[path = "../../policy/tests/analysis_support/mod.rs"]
mod analysis_support;
#[path = "support/notebook.rs"]
mod notebook;
#[path = "trial/reference.rs"]
mod reference;
#[path = "trial/rig.rs"]
mod rig;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use packet::{DeepKey, Toeplitz};
use policy::policy::{Action, Direction, Match};
use policy::space::{self, match_text};
use policy::{
    ClassTag, Decide, DeviceProfile, Explanation, FlowAction, FlowKind, NoFiles, Outcome, Policy, Program,
    RuleId, Source, Verdict, WorkerId,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use reference::{Meaning, meaning};
use rig::{Arrival, Rig};
use softnic::Personality;

const WORKERS: u32 = 4;
/// Policies for each personality, and frames for each policy beside those that the analysis finds.
const POLICIES: u64 = 150;
const FRAMES: usize = 60;
/// A slow machine tries fewer policies, but never fewer than these.
const POLICIES_LEAST: u64 = 30;
const PATIENCE: Duration = Duration::from_secs(20);
/// What comes shorter is no frame (a runt), of which no policy speaks.
const FRAME_BYTES_LEAST: usize = 14;

const GROUPS: &str = "[groups.g0]\nworkers = 'all'\n[groups.g1]\nworkers = [1, 2]\nhash = 'l3'\n\
    symmetric = false\n[groups.g2]\nworkers = [3]\nhash = 'none'\n";

type Line = (Match, Action, Direction);

/// What the personalities' trials have met, so that an empty trial is seen.
#[derive(Debug, Default)]
struct Met {
    policies: u64,
    refused: u64,
    hybrid: u64,
    packets: u64,
    delivered: u64,
    copies: u64,
    dropped_by_device: u64,
    left: u64,
    by_workers: u64,
    why_refused: BTreeMap<String, u64>,
}

#[test]
fn an_ideal_device_does_what_the_policy_means() {
    let met = trial(Personality::Ideal);
    assert!(met.copies > 100 && met.dropped_by_device > 100 && met.by_workers > 50, "{met:#?}");
    assert!(met.refused * 10 < met.policies, "{met:#?}");
}

#[test]
fn an_mlx5_does_what_the_policy_means() {
    let met = trial(Personality::Mlx5);
    assert!(met.copies > 100 && met.dropped_by_device > 100 && met.by_workers > 50, "{met:#?}");
    assert!(met.refused * 2 < met.policies, "{met:#?}");
}

#[test]
fn an_mlx4_does_what_the_policy_means() {
    let met = trial(Personality::Mlx4);
    assert!(met.by_workers > 50, "{met:#?}");
    assert!(met.refused * 4 < met.policies * 3, "{met:#?}");
}

fn trial(personality: Personality) -> Met {
    let profile = DeviceProfile::by_name(personality.name()).expect("a profile of its name").in_software();
    let mut rig = Rig::new(personality, WORKERS);
    let mut met = Met::default();
    let (started, seeds) = (Instant::now(), seeds());
    for seed in seeds {
        if met.policies >= POLICIES_LEAST && started.elapsed() > PATIENCE {
            println!("{}: out of time after {} policies", profile.name, met.policies);
            break;
        }
        // Names the seed if anything in it panics; a test that passes keeps quiet.
        println!("{}: STEERD_TRIAL_SEED={seed}", profile.name);
        met.policies += 1;
        one(&mut rig, &profile, seed, &mut met);
    }
    println!("{}: {met:#?} in {:?}", profile.name, started.elapsed());
    assert!(met.delivered > 100 && met.left > 100, "{met:#?}");
    met
}

/// All, or the one that the environment names.
fn seeds() -> Vec<u64> {
    let named = std::env::var("STEERD_TRIAL_SEED").ok().map(|seed| vec![seed.parse().expect("a number")]);
    named.unwrap_or_else(|| (0..POLICIES).collect())
}

/// One policy and its packets.
fn one(rig: &mut Rig, profile: &DeviceProfile, seed: u64, met: &mut Met) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let lines = value(&mut runner, &analysis_support::rules(7));
    let default = value(&mut runner, &analysis_support::fate());
    let lines = lines.into_iter().map(|line| sayable(line, seed.is_multiple_of(2)));
    let lines: Vec<Line> = lines.filter(|line| fits(line, profile, met)).collect();
    let text = text(&lines, default);
    let policy = parse(&text).unwrap_or_else(|bad| panic!("{bad}\n{text}"));
    let program = match policy::compile(&policy, profile, WORKERS as usize) {
        Ok(program) => Arc::new(program),
        Err(bad) => {
            met.refused += 1;
            *met.why_refused.entry(bad.list[0].message.clone()).or_default() += 1;
            return;
        }
    };
    met.hybrid += u64::from(program.classes.iter().flatten().any(|class| !class.is_exact()));
    rig.install(&program)
        .unwrap_or_else(|error| panic!("what compiles must install: {error}\n{text}\n{program}"));
    let mut frames = edges(&policy);
    frames.extend((0..FRAMES).map(|_| value(&mut runner, &analysis_support::packets::frame())));
    for frame in frames.iter().filter(|frame| frame.len() >= FRAME_BYTES_LEAST) {
        let key = DeepKey::of(frame);
        met.packets += 1;
        let case = Case { policy: &policy, program: &program, key, frame, text: &text };
        case.judge(&rig.send(frame), met);
    }
}

fn value<S: Strategy>(runner: &mut TestRunner, strategy: &S) -> S::Value {
    strategy.new_tree(runner).expect("nothing is filtered").current()
}

/// As the language allows it: what the host sends is dropped or passed; and, on `plain` devices, without
/// what few devices can.
fn sayable((matches, action, direction): Line, plain: bool) -> Line {
    match (action, direction) {
        (Action::Copy(group) | Action::Sniff(group), _) if plain => {
            (matches, Action::Steer(group), Direction::Ingress)
        }
        (_, Direction::Egress) if plain => (matches, action, Direction::Ingress),
        (Action::Sniff(_), _) => (matches, action, Direction::Ingress),
        (Action::Drop, Direction::Egress) => (matches, action, direction),
        (_, Direction::Egress) => (matches, Action::Pass, direction),
        _ => (matches, action, direction),
    }
}

/// Whether the rule alone can be said and done: a refusal of it is no news in company.
fn fits(line: &Line, profile: &DeviceProfile, met: &mut Met) -> bool {
    let Ok(policy) = parse(&text(std::slice::from_ref(line), Action::Kernel)) else { return false };
    let compiled = policy::compile(&policy, profile, WORKERS as usize);
    if let Err(bad) = &compiled {
        *met.why_refused.entry(format!("alone: {}", bad.list[0].message)).or_default() += 1;
    }
    compiled.is_ok()
}

fn parse(text: &str) -> Result<Policy, policy::Diagnostics> {
    policy::parse(&Source::new("trial.toml", text), &NoFiles).map(|(policy, _)| policy)
}

fn text(lines: &[Line], default: Action) -> String {
    let default = match default {
        Action::Steer(group) => format!("g{}", group.0),
        Action::Drop => "drop".to_owned(),
        _ => "kernel".to_owned(),
    };
    let mut text = format!("version = 1\ndefault = '{default}'\n{GROUPS}");
    for (index, (matches, action, direction)) in lines.iter().enumerate() {
        let action = match action {
            Action::Steer(group) => format!("{{ steer = 'g{}' }}", group.0),
            Action::Copy(group) => format!("{{ copy = 'g{}' }}", group.0),
            Action::Sniff(group) => format!("{{ sniff = 'g{}' }}", group.0),
            Action::Drop => "'drop'".to_owned(),
            Action::Kernel => "'kernel'".to_owned(),
            Action::Pass => "'pass'".to_owned(),
        };
        let matches = match_text(matches);
        let direction = if *direction == Direction::Egress { "direction = 'egress'\n" } else { "" };
        writeln!(text, "[[rules]]\nname = 'r{index}'\nmatch = {matches}\naction = {action}\n{direction}")
            .expect("a String");
    }
    text
}

/// Packets that the analysis thinks worth looking at: of each rule, and of each pair that shares some.
fn edges(policy: &Policy) -> Vec<Vec<u8>> {
    let analysis = space::analyse(policy, &mut |_| {});
    let mut frames = Vec::new();
    for rule in analysis.rules {
        if let space::Reach::Reached(witness) = rule.reach {
            frames.push(witness.frame);
        }
        if let space::Need::Needed(witness) = rule.need {
            frames.push(witness.frame);
        }
        let pairs = rule.conflicts.listed.into_iter().chain(rule.overlaps.listed);
        frames.extend(pairs.map(|pair| pair.witness.frame));
    }
    frames
}

/// One packet under one policy.
struct Case<'c> {
    policy: &'c Policy,
    program: &'c Program,
    key: DeepKey,
    frame: &'c [u8],
    text: &'c str,
}

impl Case<'_> {
    fn judge(&self, arrival: &Arrival, met: &mut Met) {
        let (meant, explained) = (meaning(self.policy, &self.key), self.program.explain_deep(&self.key));
        let fail = |what: &str| -> ! {
            panic!(
                "{what}\nframe {:02x?}\nkey {:?}\nmeant {meant:?}\nexplained {explained:?}\narrived {arrival:?}\n{}\n{}",
                self.frame, self.key, self.text, self.program
            )
        };
        if self.told(&explained) != self.wanted(&meant) {
            fail("explain does not say what the policy means");
        }
        if self.arrived(arrival, &explained) != self.wanted(&meant) {
            fail("what happened is not what the policy means");
        }
        if let Err(what) = self.deliveries(arrival, &explained) {
            fail(what);
        }
        met.delivered += u64::from(explained.worker.is_some());
        met.copies += meant.copies.len() as u64;
        met.dropped_by_device += u64::from(arrival.dropped_by.is_some());
        met.left += arrival.unmatched;
        let class = explained.class.and_then(|class| self.program.class(class));
        met.by_workers += u64::from(class.is_some_and(|class| !class.is_exact()));
    }

    /// The reading as rules and verdicts: copies by rule, then the end.
    fn wanted(&self, meant: &Meaning) -> (Vec<RuleId>, Outcome) {
        let verdict = |action: Action| match action {
            Action::Steer(group) | Action::Copy(group) | Action::Sniff(group) => Verdict::Deliver(group),
            Action::Drop => Verdict::Drop,
            Action::Kernel | Action::Pass => Verdict::Kernel,
        };
        let last = meant.last.map_or(self.policy.default, |index| self.policy.rules[index].action);
        let rule = RuleId::of(meant.last.unwrap_or(self.policy.rules.len()));
        let copies = meant.copies.iter().map(|index| RuleId::of(*index)).collect();
        (copies, Outcome { rule, verdict: verdict(last) })
    }

    fn told(&self, explained: &Explanation) -> (Vec<RuleId>, Outcome) {
        let outcomes = explained.copies.iter().map(|copy| copy.outcome);
        (copies(outcomes), explained.outcome)
    }

    /// The same from what really happened. A packet that was left to the kernel bears no name; `explain` gives one.
    fn arrived(&self, arrival: &Arrival, explained: &Explanation) -> (Vec<RuleId>, Outcome) {
        let is_copy = |outcome: &Outcome| {
            let rule = self.policy.rules.get(outcome.rule.index());
            rule.is_some_and(|rule| matches!(rule.action, Action::Copy(_) | Action::Sniff(_)))
        };
        let outcomes = arrival.seen.iter().map(|seen| seen.outcome);
        let (heard, ends): (Vec<Outcome>, Vec<Outcome>) = outcomes.partition(is_copy);
        let by_device = arrival.dropped_by.iter().map(|name| {
            let rule = self.program.rules.iter().position(|rule| rule.name == *name).expect("its rule");
            Outcome { rule: RuleId::of(rule), verdict: Verdict::Drop }
        });
        let ends: Vec<Outcome> = ends.into_iter().chain(by_device).collect();
        assert!(ends.len() <= 1, "a packet ends once: {arrival:?}\n{}", self.text);
        let left = Outcome { rule: explained.outcome.rule, verdict: Verdict::Kernel };
        (copies(heard.into_iter()), ends.first().copied().unwrap_or(left))
    }

    /// Workers, tags and bytes, each delivery for itself.
    fn deliveries(&self, arrival: &Arrival, explained: &Explanation) -> Result<(), &'static str> {
        let told = explained.worker.map(|worker| (worker, explained.class, explained.outcome));
        let copies = explained.copies.iter().filter_map(|copy| {
            let hears = self.program.flows[copy.flow].kind == FlowKind::Sniffer;
            Some((copy.worker?, copy.class.filter(|_| !hears), copy.outcome))
        });
        let mut told: Vec<_> = told.into_iter().chain(copies).map(order).collect();
        let mut seen: Vec<_> = arrival
            .seen
            .iter()
            .map(|seen| order((seen.worker, ClassTag::decode(seen.tag).map(|tag| tag.class), seen.outcome)))
            .collect();
        if self.program.untagged.is_some() && seen.iter().all(|(_, class, _)| class.is_none()) {
            told.iter_mut().for_each(|told| told.1 = None);
        }
        told.sort_unstable();
        seen.sort_unstable();
        if told != seen {
            return Err("workers, tags or copies are not as explained");
        }
        if arrival.seen.iter().any(|seen| seen.bytes != self.frame) {
            return Err("a packet changed on its way");
        }
        if arrival.unmatched > 0 && explained.flow.is_some() {
            return Err("it was left to the kernel and taken");
        }
        self.spreading(explained)
    }

    /// However a group is cut into queues, it spreads as one with all its fields would.
    fn spreading(&self, explained: &Explanation) -> Result<(), &'static str> {
        let Some(flow) = explained.flow.map(|flow| &self.program.flows[flow]) else { return Ok(()) };
        let FlowAction::Steer { queue, class } = flow.action else { return Ok(()) };
        let group_id = self.program.queues[queue.index()].group;
        let group = &self.program.groups[group_id.index()];
        let hash = Toeplitz::new(&group.key).hash_deep(&self.key, group.fields);
        if explained.worker != Some(group.table[hash as usize % group.table.len()]) {
            return Err("the worker is not its group's choice");
        }
        let is_exact = matches!(self.program.class(class).map(|class| &class.decide), Some(Decide::Exact(_)));
        match explained.outcome.verdict {
            Verdict::Deliver(wanted) if is_exact && wanted != group_id => {
                Err("a group got what another was meant to get")
            }
            _ => Ok(()),
        }
    }
}

/// The rules whose copies somebody wants; the others were made in excess and are thrown away.
fn copies(outcomes: impl Iterator<Item = Outcome>) -> Vec<RuleId> {
    let wanted = outcomes.filter(|outcome| matches!(outcome.verdict, Verdict::Deliver(_)));
    let mut rules: Vec<_> = wanted.map(|outcome| outcome.rule).collect();
    rules.sort_unstable();
    rules
}

type Delivered = (WorkerId, Option<policy::ClassId>, Outcome);

/// Something that can be sorted.
fn order((worker, class, outcome): Delivered) -> (WorkerId, Option<policy::ClassId>, (RuleId, String)) {
    (worker, class, (outcome.rule, format!("{:?}", outcome.verdict)))
}

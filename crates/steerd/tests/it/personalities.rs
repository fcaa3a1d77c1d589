//! Random policies on every personality: packets at the edges of rules are treated as the linear reference
//! matcher and `explain` predict.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::analysis_support;
use crate::support::notebook::Seen;
use crate::trial::case::Case;
use crate::trial::draw::{Flavour, GROUPS, Line, edges, in_words, parse, sayable, text};
use crate::trial::reference::{Meaning, meaning, meaning_skipping};
use crate::trial::rig::Rig;
use device_model::DeviceModel;
use packet::DeepKey;
use packet::build::FrameBuilder;
use policy::Policy;
use policy::policy::{Action, Direction};
use program::{Program, RuleId, Verdict, WorkerId};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use softnic::Personality;

const WORKERS: u32 = 4;
/// Policies for each personality, and frames for each policy in addition to those that the analysis finds.
const POLICIES: u64 = 600;
const FRAMES: usize = 60;
/// The most rules of one policy.
const RULES: usize = 12;
/// The least number of policies, on slow machines.
const POLICIES_LEAST: u64 = 120;
const PATIENCE: Duration = Duration::from_secs(20);
/// Shorter frames are runts, which are dropped before any rule.
const FRAME_BYTES_LEAST: usize = 14;

/// Counts of what was tested, so that a trial that tests nothing fails.
#[derive(Debug, Default)]
struct Met {
    policies: u64,
    refused: u64,
    /// Rules; rules that the language refuses; rules that the device refuses even alone.
    lines: u64,
    lines_not_said: u64,
    lines_refused: u64,
    hybrid: u64,
    packets: u64,
    delivered: u64,
    copies: u64,
    dropped_by_device: u64,
    left: u64,
    by_workers: u64,
    /// Deliveries that the samples of rules left out.
    not_sampled: u64,
    /// The packets that the host sent and that were kept.
    kept_by_rule: u64,
    passed_by_rule: u64,
    passed: u64,
    heard: u64,
    /// Packets of other rules than without `ipv6_extensions = "skip"`.
    skipped: u64,
    why_refused: BTreeMap<String, u64>,
}

#[test]
fn an_ideal_device_follows_the_policy() {
    let met = trial(Personality::Ideal);
    met.check_all_ways();
    assert!(met.refused * 10 < met.policies && met.lines_refused * 100 < met.lines, "{met:#?}");
}

#[test]
fn an_mlx5_follows_the_policy() {
    let met = trial(Personality::Mlx5);
    met.check_all_ways();
    assert!(met.refused * 8 < met.policies && met.lines_refused * 100 < met.lines, "{met:#?}");
}

/// An mlx4 refuses only rules that its flows cannot express.
#[test]
fn an_mlx4_follows_the_policy() {
    let met = trial(Personality::Mlx4);
    assert!(met.by_workers > 50 && met.passed == met.packets, "{met:#?}");
    let has_none = |why: &String| {
        let features = ["DONT_TRAP", "SNIFFER", "EGRESS"];
        features.iter().any(|feature| why.contains(feature) && why.contains("which `mlx4` does not support"))
    };
    assert!(met.refused == 0 && met.why_refused.keys().all(has_none), "{met:#?}");
}

/// Rules in a chain: on two priorities and with room for one flow more, one of the last four rules is decided
/// in hardware.
const CHAIN: &str = "version = 1\n[groups.g]\nworkers = 4\nhash = 'none'\n\
    [[rules]]\nname = 'a'\nmatch = { protocol = 'udp', dst = '192.0.2.1', dst_port = 7 }\naction = { steer = 'g' }\n\
    [[rules]]\nname = 'b'\nmatch = { protocol = 'udp', src = '198.51.100.1' }\naction = { steer = 'g' }\n";

/// The share of a capture that is reported is the share of its packets that arrive with the tag of an exact
/// class; it is greater if the policy is compiled for the capture.
#[test]
fn the_share_of_a_capture_is_what_the_device_decides() {
    let last = (0..4).map(|last| {
        format!(
            "[[rules]]\nname = 'c{last}'\nmatch = {{ protocol = 'udp', dst = '192.0.2.1{last}' }}\naction = {{ steer = 'g' }}\n"
        )
    });
    let policy = parse(&format!("{CHAIN}{}", last.collect::<String>())).expect("a policy");
    let to = |last: u8| {
        let ip = FrameBuilder::new().ip([203, 0, 113, 1].into(), [192, 0, 2, 10 + last].into());
        ip.udp(1, 2).build()
    };
    let capture: Vec<Vec<u8>> = [to(0), to(1), to(2)].into_iter().chain(vec![to(3); 7]).collect();
    let mut counter = reports::RuleCounter::new(&policy);
    capture.iter().for_each(|frame| counter.add(&DeepKey::of(frame)));
    let weights = counter.weights();
    let profile = DeviceModel { priorities: 3, max_flows: Some(14), ..DeviceModel::ideal() };
    let job = compiler::Job::new(&policy, &profile, WORKERS as usize);
    for (job, in_hardware) in [(job, 1), (job.weighted(Some(&weights)), 7)] {
        let program = Arc::new(job.compile().expect("it fits"));
        let mut rig = Rig::new(Personality::Ideal, WORKERS, 1);
        rig.install(&program).expect("it fits");
        let mut shares = reports::TrafficShares::new(&program, capture.len() as u64);
        let mut decisions = reports::Decisions::new(&program);
        let mut counted = 0;
        for frame in &capture {
            shares.add(decisions.of(&DeepKey::of(frame)), frame.len() as u64);
            let arrival = rig.send(frame);
            let tag = program::ClassId::of_tag(arrival.seen[0].tag).expect("a tag");
            counted += u64::from(program.class(tag).is_some_and(program::Class::is_exact));
        }
        assert_eq!((shares.all.in_hardware.packets, counted), (in_hardware, in_hardware), "{program}");
    }
}

/// No device matches ports of SCTP: it delivers all of SCTP to a worker, which decides.
#[test]
fn sctp_ports_are_decided_end_to_end() {
    let text = format!(
        "version = 1\n{GROUPS}[[rules]]\nname = 's1ap'\nmatch = {{ sctp_dst_port = 36412 }}\naction = {{ steer = 'g2' }}\n\
         [[rules]]\nname = 'rest'\nmatch = {{ protocol = 'sctp' }}\naction = 'drop'\n"
    );
    let policy = parse(&text).expect("a policy");
    let v4 = FrameBuilder::new().ip([203, 0, 113, 1].into(), [192, 0, 2, 10].into());
    let v6 = FrameBuilder::new()
        .ip([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2].into());
    for personality in [Personality::Ideal, Personality::Mlx5] {
        let profile = DeviceModel::by_name(personality.name()).expect("a profile of its name").in_software();
        let program = Arc::new(compiler::compile(&policy, &profile, WORKERS as usize).expect("it fits"));
        let mut rig = Rig::new(personality, WORKERS, 1);
        rig.install(&program).expect("it fits");
        for ip in [&v4, &v6] {
            for (frame, wanted) in [
                (ip.clone().sctp(7, 36412), Some("s1ap")),
                (ip.clone().sctp(36412, 7), Some("rest")),
                (ip.clone().udp(7, 36412), None),
            ] {
                let arrival = rig.send(&frame.payload(&[0; 16]).build());
                let rule =
                    arrival.seen.first().map(|seen| program.rules[seen.outcome.rule.index()].name.as_str());
                assert_eq!((rule, arrival.unmatched == 0), (wanted, wanted.is_some()), "{program}");
            }
        }
    }
}

fn trial(personality: Personality) -> Met {
    let profile = DeviceModel::by_name(personality.name()).expect("a profile of its name").in_software();
    let mut rigs =
        [1, 2].map(|ports| (Rig::new(personality, WORKERS, ports), profile.clone().on_ports(ports.into())));
    let mut met = Met::default();
    let (started, (seeds, patience)) = (Instant::now(), seeds());
    for seed in seeds {
        if met.policies >= POLICIES_LEAST && started.elapsed() > patience {
            println!("{}: out of time after {} policies", profile.name, met.policies);
            break;
        }
        // Shown if the test panics: names the seed.
        println!("{}: STEERD_TRIAL_SEED={seed}", profile.name);
        met.policies += 1;
        let (rig, profile) = &mut rigs[usize::from(seed % 5 == 0)];
        one(rig, profile, seed, &mut met);
    }
    println!("{}: {met:#?} in {:?}", profile.name, started.elapsed());
    assert!(met.not_sampled > 50 && met.skipped > 50, "{met:#?}");
    assert!(met.delivered > 100 && met.left > 100 && met.passed > 100, "{met:#?}");
    assert!(met.lines_not_said * 10 < met.lines, "{met:#?}");
    met
}

/// The usual seeds within the time limit, or all that the environment names, one (`7`) or many (`600..2600`).
fn seeds() -> (Range<u64>, Duration) {
    let Ok(named) = std::env::var("STEERD_TRIAL_SEED") else { return (0..POLICIES, PATIENCE) };
    let number = |seed: &str| seed.parse::<u64>().expect("a number");
    let seeds = match named.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&named)..number(&named) + 1,
    };
    (seeds, Duration::MAX)
}

/// One policy and its packets.
fn one(rig: &mut Rig, profile: &DeviceModel, seed: u64, met: &mut Met) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let lines = value(&mut runner, &analysis_support::rules(RULES));
    let default = value(&mut runner, &analysis_support::fate());
    let lines = sayable(lines, Flavour::of(seed)).into_iter();
    let lines: Vec<Line> = lines.filter_map(|line| alone(line, profile, met)).collect();
    let text = text(&lines, default);
    // A copy must not follow a rule that skips extension headers.
    let plain = (seed.is_multiple_of(2) && Flavour::of(seed) != Flavour::Mixed)
        .then(|| parse(&text).expect("a policy"));
    let text = if plain.is_some() { format!("ipv6_extensions = 'skip'\n{text}") } else { text };
    let mut policy = parse(&text).unwrap_or_else(|bad| panic!("{bad}\n{text}"));
    for (rule, index) in policy.rules.iter_mut().zip(seed..) {
        if matches!(rule.action, Action::Steer(_) | Action::Copy(_) | Action::Sniff(_)) && index % 3 == 0 {
            rule.policing.sample = 2 + (seed % 3) as u32;
        }
    }
    let installed = rig.installed();
    let compiled = compiler::compile_with(&policy, profile, WORKERS as usize, installed.as_deref());
    let program = match compiled {
        Ok(program) => program,
        Err(bad) => {
            met.refused += 1;
            *met.why_refused.entry(bad.list[0].message.clone()).or_default() += 1;
            return;
        }
    };
    met.hybrid += u64::from(program.classes.iter().flatten().any(|class| !class.is_exact()));
    let program = started_and_reloaded(rig, &policy, profile, program)
        .unwrap_or_else(|error| panic!("what compiles must install and reload: {error}\n{text}"));
    let mut samples = Samples::default();
    let mut frames = edges(&policy);
    frames.extend((0..FRAMES).map(|_| value(&mut runner, &analysis_support::packets::frame())));
    for frame in frames.iter().filter(|frame| frame.len() >= FRAME_BYTES_LEAST) {
        let key = DeepKey::of(frame);
        met.packets += 1;
        if let Some(plain) = &plain {
            met.note_skipped(plain, &policy, frame, &key);
        }
        let case = Case { policy: &policy, program: &program, key, frame, text: &text };
        met.note_received(&case, rig, &mut samples);
        met.note_sent(&case, rig, &mut samples);
    }
}

/// Puts a program on the device, and then the program that a reload of the unchanged policy makes; returns
/// that.
pub(crate) fn started_and_reloaded(
    rig: &mut Rig,
    policy: &Policy,
    profile: &DeviceModel,
    program: Program,
) -> Result<Arc<Program>, String> {
    let program = Arc::new(program);
    rig.install(&program).map_err(|error| format!("start: {error}\n{program}"))?;
    let again = compiler::compile_with(policy, profile, rig.worker_count(), Some(&program));
    let again = Arc::new(again.map_err(|bad| format!("compiling again: {bad}"))?);
    if let Some(conflict) = compiler::reload_conflict(&program, &again, profile) {
        return Err(format!("reload: {conflict:?}"));
    }
    rig.install(&again).map_err(|error| format!("reload: {error}\n{again}"))?;
    Ok(again)
}

/// How many packets of each rule each worker has had, in a linear model of `sample`.
#[derive(Default)]
struct Samples(BTreeMap<(WorkerId, RuleId), u32>);

impl Samples {
    /// Checks that exactly the packets that are not in the sample of their rule were dropped, and gives them
    /// the verdict that they would have in it. Returns how many there were.
    fn check(&mut self, program: &Program, seen: &mut [Seen]) -> u64 {
        let mut left_out = 0;
        for seen in seen {
            let rule = &program.rules[seen.outcome.rule.index()];
            let sample = rule.policing.sample;
            if sample < 2 || seen.outcome.verdict == Verdict::Filtered {
                continue;
            }
            let count = self.0.entry((seen.worker, seen.outcome.rule)).or_default();
            let wanted = if count.is_multiple_of(sample) { rule.action } else { Verdict::Drop };
            assert_eq!(
                seen.outcome.verdict, wanted,
                "packet {count} of `{}`, 1 in {sample}\n{program}",
                rule.name
            );
            *count += 1;
            left_out += u64::from(wanted == Verdict::Drop);
            seen.outcome.verdict = rule.action;
        }
        left_out
    }
}

impl Met {
    /// Enough cases of everything that only some devices support were tested.
    fn check_all_ways(&self) {
        assert!(self.copies > 100 && self.dropped_by_device > 100 && self.by_workers > 50, "{self:#?}");
        assert!(self.kept_by_rule > 500 && self.passed_by_rule > 200 && self.heard > 500, "{self:#?}");
    }

    /// Compares the rules that a policy with `ipv6_extensions = "skip"` consists of with the meaning of that
    /// key.
    fn note_skipped(&mut self, plain: &Policy, policy: &Policy, frame: &[u8], key: &DeepKey) {
        let named = |policy: &Policy, meaning: Meaning| {
            let rules = meaning.copies.into_iter().chain(meaning.last);
            let name =
                |index: usize| policy.rules[index].name.split('~').next().unwrap_or_default().to_owned();
            rules.map(name).collect::<Vec<_>>()
        };
        for direction in [Direction::Ingress, Direction::Egress] {
            let parts = named(policy, meaning(policy, direction, key));
            let whole = named(plain, meaning_skipping(plain, direction, frame, key));
            assert_eq!(parts, whole, "frame {frame:02x?}\nkey {key:?}\n{:#?}", policy.rules);
            let stopping = named(plain, meaning(plain, direction, key));
            self.skipped += u64::from(stopping != whole);
        }
    }

    /// Receives the frame.
    fn note_received(&mut self, case: &Case<'_>, rig: &mut Rig, samples: &mut Samples) {
        let mut arrival = rig.send(case.frame);
        self.not_sampled += samples.check(case.program, &mut arrival.seen);
        let explained = case.received(&arrival);
        self.delivered += u64::from(explained.worker.is_some());
        let wanted = |copy: &&program::Copied| copy.outcome.verdict != Verdict::Filtered;
        self.copies += explained.copies.iter().filter(wanted).count() as u64;
        self.dropped_by_device += u64::from(arrival.dropped_by.is_some());
        self.left += arrival.unmatched;
        let class = explained.class.and_then(|class| case.program.class(class));
        self.by_workers += u64::from(class.is_some_and(|class| !class.is_exact()));
    }

    /// Sends the same frame.
    fn note_sent(&mut self, case: &Case<'_>, rig: &mut Rig, samples: &mut Samples) {
        let mut departure = rig.send_out(case.frame);
        self.not_sampled += samples.check(case.program, &mut departure.seen);
        let explained = case.sent(&departure);
        match (explained.rule, explained.leaves) {
            (Some(_), false) => self.kept_by_rule += 1,
            (Some(_), true) => self.passed_by_rule += 1,
            (None, _) => self.passed += 1,
        }
        self.heard += departure.seen.len() as u64;
    }
}

fn value<S: Strategy>(runner: &mut TestRunner, strategy: &S) -> S::Value {
    strategy.new_tree(runner).expect("nothing is filtered").current()
}

/// The rule, if language and device accept it alone; otherwise a policy with it would be refused, too.
/// Workers see no sent packets, so keys that few devices can match are removed from egress rules.
fn alone(mut line: Line, profile: &DeviceModel, met: &mut Met) -> Option<Line> {
    let refusal = |line: &Line| {
        let policy = parse(&text(std::slice::from_ref(line), Action::Kernel)).map_err(|_| None)?;
        let compiled = compiler::compile(&policy, profile, WORKERS as usize);
        compiled.map(|_| ()).map_err(|bad| Some(bad.list[0].message.clone()))
    };
    met.lines += 1;
    if line.2 == Direction::Egress && matches!(refusal(&line), Err(Some(_))) {
        line.0 = in_words(line.0);
    }
    match refusal(&line) {
        Ok(()) => return Some(line),
        Err(None) => met.lines_not_said += 1,
        Err(Some(why)) => {
            met.lines_refused += 1;
            *met.why_refused.entry(format!("alone: {why}")).or_default() += 1;
        }
    }
    None
}

//! Runs the tests of a policy: each packet, set of packets or capture against what the test expects.
//!
//! The rule that decides a packet is the first of the policy that matches it, so the answer is the same on
//! every device. Two answers are those of a program: the worker of a packet, and whether the host sees what
//! the policy leaves to it. Sets of packets are decided exactly by `analysis`, never by trying packets.

mod capture;
pub(crate) mod coverage;
pub(crate) mod mutate;
mod requirement;
mod wish;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use analysis::{Deciders, EveryPacket, Missed, Protected, protection_on_device};
use packet::DeepKey;
use policy::policy::{Action, Direction};
use policy::policy_test::{Expected, PolicyTest, TestedPackets};
use policy::protect::ProtectedMatch;
use policy::{Diagnostic, Policy};
use program::{DEFAULT_RULE, DescriptionText, Match, Predicate, Program};
use serde::Serialize;

use crate::policy_file;
use crate::settings::PolicySource;
use crate::terminal::numbers::{counted, number};
use crate::traffic::UnreadableCapture;
pub(crate) use requirement::RequiredTests;
use wish::Wish;

const HINT: &str = "correct the rules, or what the test expects";

/// The result of one test.
pub(crate) struct TestResult<'p> {
    pub(crate) test: &'p PolicyTest,
    /// The expectations that are not met, or not decided.
    pub(crate) failures: Vec<Diagnostic>,
    pub(crate) took: Duration,
}

impl TestResult<'_> {
    pub(crate) fn has_passed(&self) -> bool {
        self.failures.is_empty()
    }
}

/// The numbers of tests, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TestCounts {
    passed: usize,
    failed: usize,
}

impl From<&TestSummary> for TestCounts {
    fn from(summary: &TestSummary) -> Self {
        Self { passed: summary.passed, failed: summary.failed }
    }
}

/// The numbers of tests that passed and failed, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestSummary {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) failures: Vec<Diagnostic>,
}

impl TestSummary {
    /// The tests of a policy that `program` is of, or that has none.
    pub(crate) fn of(policy: &Policy, folder: &Path, program: Option<&Program>) -> Self {
        Self::run(TestBench::of(policy, folder, program), |_| true)
    }

    /// The tests that are chosen.
    fn run<'p>(bench: TestBench<'p>, is_chosen: impl Fn(&PolicyTest) -> bool) -> Self {
        let mut summary = Self::default();
        for result in bench.run(is_chosen) {
            *(if result.has_passed() { &mut summary.passed } else { &mut summary.failed }) += 1;
            summary.failures.extend(result.failures);
        }
        summary
    }
}

/// The findings of the tests of a policy.
pub(crate) struct TestFindings {
    /// The error that the settings require tests and there are none.
    pub(crate) requirement: Option<Diagnostic>,
    /// `None`: there is no program.
    pub(crate) tests: Option<TestSummary>,
}

impl TestFindings {
    pub(crate) fn of(source: &PolicySource, policy: &Policy, program: Option<&Program>) -> Self {
        Self {
            requirement: RequiredTests::missing(source, policy),
            tests: program.map(|program| TestSummary::of(policy, &source.folder(), Some(program))),
        }
    }

    /// The tests that failed.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Diagnostic> {
        self.tests.iter().flat_map(|tests| &tests.failures)
    }
}

impl fmt::Display for TestSummary {
    /// `3 tests passed, 1 failed`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed", counted(self.passed as u64, "test", "tests"))?;
        match self.failed {
            0 => Ok(()),
            failed => write!(f, ", {} failed", number(failed as u64)),
        }
    }
}

/// Whether a worker, or a device, decides what a test of the policy expects.
pub(crate) fn needs_program(policy: &Policy) -> bool {
    policy.tests.iter().any(is_of_device)
}

/// Whether a worker, or a device, decides what the test expects.
fn is_of_device(test: &PolicyTest) -> bool {
    test.expected.worker.is_some() || test.expected.host.is_some()
}

/// The name of a test in messages: its own, or the packets that it is about.
pub(crate) fn title(test: &PolicyTest) -> String {
    let own = test.name.clone();
    own.unwrap_or_else(|| match &test.packets {
        TestedPackets::Packet(key) => policy::short_packet(key),
        TestedPackets::Every(matches) => format!("every {}", analysis::match_text(matches)),
        TestedPackets::Capture(file) => format!("capture {}", file.display()),
    })
}

/// The tests of a policy, and what they ask.
pub(crate) struct TestBench<'p> {
    pub(crate) policy: &'p Policy,
    /// The directory of captures.
    folder: &'p Path,
    program: Option<&'p Program>,
    /// The predicates of all rules; made for the first packet.
    predicates: OnceCell<Vec<Predicate>>,
    /// By direction: received, sent; `None`: no test of a set is about it.
    deciders: [Option<Deciders<'p>>; 2],
    /// The packets of the captures that were read, by rule.
    captures: RefCell<BTreeMap<PathBuf, Result<Vec<u64>, UnreadableCapture>>>,
    limit: Option<TimeLimit>,
}

/// The time that all tests together may take.
#[derive(Clone, Copy, Debug)]
struct TimeLimit {
    /// The whole time, for messages.
    whole: Duration,
    end: Instant,
}

impl TimeLimit {
    fn is_over(self) -> bool {
        Instant::now() >= self.end
    }
}

impl<'p> TestBench<'p> {
    pub(crate) fn of(policy: &'p Policy, folder: &'p Path, program: Option<&'p Program>) -> Self {
        let deciders = [Direction::Ingress, Direction::Egress].map(|direction| {
            let sets = || policy.tests.iter().filter(|test| test.direction == direction).filter_map(set_of);
            sets().next().is_some().then(|| Deciders::of(policy, direction, sets()))
        });
        let captures = RefCell::default();
        Self { policy, folder, program, predicates: OnceCell::new(), deciders, captures, limit: None }
    }

    /// Tests that are not decided within the limit fail.
    fn within(self, limit: TimeLimit) -> Self {
        let left = limit.end.saturating_duration_since(Instant::now());
        let deciders = self.deciders.map(|of_direction| of_direction.map(|deciders| deciders.within(left)));
        Self { deciders, limit: Some(limit), ..self }
    }

    /// Runs the tests that are chosen.
    pub(crate) fn run(mut self, is_chosen: impl Fn(&PolicyTest) -> bool) -> Vec<TestResult<'p>> {
        let policy = self.policy;
        let run = |test: &'p PolicyTest| {
            let begun = Instant::now();
            TestResult { test, failures: self.failures(test), took: begun.elapsed() }
        };
        policy.tests.iter().filter(|test| is_chosen(test)).map(run).collect()
    }

    /// The expectations of a test that are not met.
    pub(crate) fn failures(&mut self, test: &PolicyTest) -> Vec<Diagnostic> {
        if let Some(late) = self.late(test) {
            return vec![late];
        }
        let failures = match &test.packets {
            TestedPackets::Packet(key) => self.of_packet(test, key),
            TestedPackets::Every(matches) => self.of_every(test, matches),
            TestedPackets::Capture(file) => capture::failures(self.policy, test, self.capture(file)),
        };
        // What is not decided, or a capture that is not read to its end, may be due to the time alone.
        match self.late(test) {
            Some(late) if !failures.is_empty() => vec![late],
            _ => failures,
        }
    }

    /// The failure of a test for which there is no time left.
    fn late(&self, test: &PolicyTest) -> Option<Diagnostic> {
        let limit = self.limit.filter(|limit| limit.is_over())?;
        let seconds = limit.whole.as_secs_f64();
        let message = format!("{} is not decided: the tests took longer than {seconds} s", named(test));
        let hint = "`steerd test` shows the time of each test with --format json";
        Some(test.place.error(message, "this test").hint(hint))
    }

    /// The packets of a capture by the rule that decides them. Each capture is read once.
    pub(crate) fn capture(&self, file: &Path) -> Result<Vec<u64>, UnreadableCapture> {
        let path = self.folder.join(file);
        let end = self.limit.map(|limit| limit.end);
        let mut captures = self.captures.borrow_mut();
        let read = || capture::packets_by_rule(self.policy, &path, end);
        captures.entry(path.clone()).or_insert_with(read).clone()
    }

    fn of_packet(&self, test: &PolicyTest, key: &DeepKey) -> Vec<Diagnostic> {
        let rule = self.rule_of(key, test.direction);
        let decided = decided(self.policy, test, rule);
        let explained = self.program.map(|program| program.explain_deep(key));
        let is_lost = explained.as_ref().is_some_and(program::Explanation::is_lost_exception);
        let mut failures = Vec::new();
        for wish in Wish::all(self.policy, test) {
            if is_lost && wish.is_host == Some(true) {
                let message = format!(
                    "{} fails: the policy leaves the packet to the host, but on this device a worker receives it and cannot \
                     give it back",
                    named(test)
                );
                let hint = "`steerd explain` names the flow that takes it";
                failures.push(wish.place.error(message, "expected here").hint(hint));
            } else if !wish.accepts(rule) {
                let message =
                    format!("{} fails: {decided} decides the packet, and {}", named(test), wish.wanted);
                failures.push(wish.place.error(message, "expected here").hint(HINT));
            }
        }
        if let Some(Expected { value: wanted, place }) = &test.expected.worker {
            let Some(explained) = explained else {
                failures.push(place.error(format!("{} fails: {NO_WORKERS}", named(test)), "not known"));
                return failures;
            };
            let worker = explained.worker.map(|worker| worker.0);
            if worker != Some(*wanted) && !self.is_of_run_time(&explained) {
                let found = worker.map_or("no worker".to_owned(), |worker| format!("worker {worker}"));
                let message = format!(
                    "{} fails: {found} receives the packet, and worker {wanted} is expected: {decided} decides it",
                    named(test)
                );
                let hint = "the hash of the group chooses the worker, see `steerd explain`; --workers is their number";
                failures.push(place.error(message, "expected here").hint(hint));
            }
        }
        failures
    }

    /// Whether a rule at run time decides a packet. The test is about the policy, and such a rule must not be
    /// why a policy is refused.
    fn is_of_run_time(&self, explained: &program::Explanation) -> bool {
        let name = |program: &'p Program| Some(&program.rules.get(explained.outcome.rule.index())?.name);
        self.program.and_then(name).is_some_and(|name| policy_file::is_quoted(name))
    }

    fn of_every(&mut self, test: &PolicyTest, matches: &Match) -> Vec<Diagnostic> {
        let policy = self.policy;
        let mut failures = Vec::new();
        let mut wishes = Wish::all(policy, test);
        wishes.extend(Wish::of_only_worker(policy, test));
        let Some(deciders) = &mut self.deciders[usize::from(test.direction == Direction::Egress)] else {
            return failures;
        };
        deciders.renew();
        for wish in &wishes {
            match deciders.every_packet(matches, wish.accepted.clone()) {
                EveryPacket::Accepted => {}
                EveryPacket::NoPacket => {
                    let message = format!("{} fails: the test is about no packet", named(test));
                    let hint = "correct the conditions; a set with `allow_empty` may be empty now";
                    return vec![test.place.error(message, "no packet meets these").hint(hint)];
                }
                EveryPacket::Except(Missed { taken_by, witness }) => {
                    let message = format!(
                        "{} fails: {} decides {}, and {}",
                        named(test),
                        decided(policy, test, taken_by.index()),
                        witness,
                        wish.wanted
                    );
                    failures.push(wish.place.error(message, "expected here of every packet").hint(HINT));
                }
                EveryPacket::NotDecided(why) => {
                    let message = format!("{} is not decided: {why}", named(test));
                    let hint = "make the set smaller, or write tests of single packets";
                    failures.push(wish.place.error(message, "expected here of every packet").hint(hint));
                }
            }
        }
        if failures.is_empty() {
            failures.extend(self.lost_of(test, matches));
        }
        failures
    }

    /// The failure of a set that the host is to see, if a flow of the device takes some of its packets.
    fn lost_of(&self, test: &PolicyTest, matches: &Match) -> Option<Diagnostic> {
        let host = test.expected.host.as_ref().filter(|host| host.value)?;
        let protected =
            ProtectedMatch { name: "tests".to_owned(), matches: matches.clone(), place: host.place.clone() };
        let policy = Policy { protect: Some(vec![protected]), ..self.policy.clone() };
        match protection_on_device(&policy, self.program?, &[Protected::Safe]).pop()? {
            Protected::Safe => None,
            Protected::Missed(missed) => {
                let message = format!(
                    "{} fails: the policy leaves {} to the host, but on this device a worker receives it and cannot give it \
                     back",
                    named(test),
                    missed.witness
                );
                let hint = "`steerd explain` names the flow that takes it";
                Some(host.place.error(message, "expected here of every packet").hint(hint))
            }
            Protected::NotDecided(why) => {
                let message = format!("{} is not decided: {why}", named(test));
                Some(host.place.error(message, "expected here of every packet"))
            }
        }
    }

    /// The first rule that decides a packet, or the number of rules for the default.
    pub(crate) fn rule_of(&self, key: &DeepKey, direction: Direction) -> usize {
        let all = || self.policy.rules.iter().map(|rule| Predicate::of(&rule.matches)).collect();
        let predicates = self.predicates.get_or_init(all);
        let mut rules = self.policy.rules.iter().zip(predicates);
        let decides = |(rule, predicate): (&policy::policy::RuleDefinition, &Predicate)| {
            let is_final = !matches!(rule.action, Action::Copy(_) | Action::Sniff(_));
            rule.direction == direction && is_final && predicate.matches_deep(key)
        };
        rules.position(decides).unwrap_or(self.policy.rules.len())
    }
}

const NO_WORKERS: &str = "no worker is known, as the policy has no program here";

fn set_of(test: &PolicyTest) -> Option<&Match> {
    match &test.packets {
        TestedPackets::Every(matches) => Some(&**matches),
        TestedPackets::Packet(_) | TestedPackets::Capture(_) => None,
    }
}

/// The test in a sentence.
fn named(test: &PolicyTest) -> String {
    test.name.as_ref().map_or_else(|| "the test".to_owned(), |name| format!("the test \"{name}\""))
}

/// The first line of a description behind a comma: `, "Public web servers"`. A long one is cut.
fn quoted(description: &DescriptionText) -> String {
    const SHOWN: usize = 80;
    let line = description.lines().next().unwrap_or_default();
    let cut = if line.chars().count() > SHOWN || description.lines().count() > 1 { "..." } else { "" };
    let shown: String = line.chars().take(SHOWN).collect();
    format!(", \"{shown}{cut}\"")
}

/// The rule with this index in a sentence, and its action; the default for the number of rules.
fn decided(policy: &Policy, test: &PolicyTest, rule: usize) -> String {
    if rule >= policy.rules.len() && test.direction == Direction::Egress {
        return "no egress rule (pass when sent)".to_owned();
    }
    let action = reports::written_action(policy, rule);
    match policy.rules.get(rule) {
        Some(rule) => {
            let about = rule.description.as_ref().map(quoted).unwrap_or_default();
            format!("the rule `{}` (line {}, {action}{about})", rule.name, rule.name_place.line())
        }
        None => format!("the {DEFAULT_RULE} ({action})"),
    }
}

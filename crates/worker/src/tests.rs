//! A worker's handle and its classifier together, without a device: how programs give way to each
//! other and how their totals live on.

use std::collections::HashSet;
use std::sync::Arc;

use program::{
    ChangeStage, Class, ClassId, Decide, GroupId, Outcome, Program, RETIRED_RULES, Rule, RuleId, Verdict,
    WorkerId,
};

use crate::batch::Batch;
use crate::classifier::Classifier;
use crate::{Disposition, Publication, Traffic, WorkerControl};

/// The most completions that may be outstanding in these tests.
const OUTSTANDING: u32 = 8;

fn outcome(rule: usize) -> Outcome {
    Outcome { rule: RuleId::of(rule), verdict: Verdict::Deliver(GroupId(0)) }
}

/// A program with one exact class per name.
pub(crate) fn program(names: &[&str]) -> Arc<Program> {
    let rule = |name: &&str| Rule::in_hardware(*name, Verdict::Deliver(GroupId(0)), 1);
    let class = |index| Some(Class { rule: RuleId::of(index), decide: Decide::Exact(outcome(index)) });
    Arc::new(Program {
        rules: names.iter().map(rule).collect(),
        groups: Vec::new(),
        sinks: Vec::new(),
        queues: Vec::new(),
        flows: Vec::new(),
        classes: (0..names.len()).map(class).collect(),
        untagged: None,
        exceptions: Vec::new(),
        runtime: None,
        recorder: None,
        default: Verdict::Kernel,
        priorities_used: 0,
    })
}

struct Rig {
    control: WorkerControl,
    classifier: Classifier,
    batch: Batch,
}

impl Rig {
    fn new() -> Self {
        Self {
            control: WorkerControl::new(WorkerId(0), crate::runtime_rules::runtime_rules().0),
            classifier: Classifier::new(OUTSTANDING),
            batch: Batch::new(1, 1),
        }
    }

    fn begin(&self, names: &[&str]) -> Publication {
        self.control.publish(&ChangeStage::Begin(program(names)))
    }

    fn enforce(&self) -> Publication {
        self.control.publish(&ChangeStage::Enforce)
    }

    /// Replaces the program, up to the release of the one before, by a worker that takes no packets.
    fn replace(&mut self, names: &[&str]) {
        self.begin(names);
        self.idle();
        self.enforce();
        self.idle();
        self.control.release();
        self.idle();
    }

    /// An iteration that took `completions` and saw the queue empty or not.
    fn iteration(&mut self, completions: usize, drained: bool) {
        self.classifier.refresh(&self.control.shared().mailbox, &self.batch);
        self.batch.completions = completions;
        self.batch.drained = drained;
    }

    /// Iterations in which whatever is published is applied.
    fn idle(&mut self) {
        (0..3).for_each(|_| self.iteration(0, true));
    }

    /// The names of the first rule of each program that the worker knows, the one in force first.
    fn programs(&self) -> Vec<&str> {
        let rules = self.classifier.tables().map(|table| table.program().rules.first());
        rules.map(|rule| rule.map_or("", |rule| rule.name.as_str())).collect()
    }

    /// One packet for class 0, as the loop would count it.
    fn packet(&self, bytes: u64) {
        self.packet_of(0, bytes);
    }

    fn packet_of(&self, class: usize, bytes: u64) {
        let map = self.classifier.map().expect("published");
        let (_, table) = map.table_of(ClassId::of(class)).expect("a class of a program");
        table.tally(&outcome(class)).expect("a rule of the program").add(1, bytes);
    }

    fn delivered(&self, name: &str) -> Traffic {
        self.control.snapshot().rule(name, Disposition::Delivered)
    }
}

#[test]
fn the_first_program_is_taken_at_once() {
    let mut rig = Rig::new();
    let begun = rig.begin(&["web"]);
    assert!(!rig.control.acknowledged(begun));
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(begun));
    assert_eq!(rig.programs(), ["web"]);
}

#[test]
fn a_number_of_both_programs_means_the_first_until_the_second_counts() {
    let mut rig = Rig::new();
    rig.replace(&["old"]);
    rig.begin(&["new", "also new"]);
    rig.idle();
    assert_eq!(rig.programs(), ["old", "new"]);
    rig.packet(1);
    rig.packet_of(1, 10);
    rig.enforce();
    rig.idle();
    assert_eq!(rig.programs(), ["new", "old"]);
    rig.packet(100);
    let bytes = ["old", "new", "also new"].map(|name| rig.delivered(name).bytes);
    assert_eq!(bytes, [1, 100, 10]);
}

#[test]
fn a_change_that_is_given_up_leaves_the_first_in_force() {
    let mut rig = Rig::new();
    rig.replace(&["old"]);
    rig.begin(&["new"]);
    rig.enforce();
    rig.idle();
    rig.packet(1);
    rig.control.publish(&ChangeStage::GoBack);
    rig.idle();
    assert_eq!(rig.programs(), ["old", "new"]);
    rig.packet(10);
    rig.control.release();
    rig.idle();
    assert_eq!(rig.programs(), ["old"]);
    rig.packet(100);
    assert_eq!(["old", "new"].map(|name| rig.delivered(name).bytes), [110, 1]);
}

#[test]
fn a_map_is_drained_before_it_goes() {
    let mut rig = Rig::new();
    rig.replace(&["web"]);
    rig.begin(&[]);
    rig.idle();
    rig.iteration(3, false);
    let next = rig.enforce();
    rig.iteration(3, false);
    rig.iteration(3, false);
    assert!(!rig.control.acknowledged(next), "only 3 of {OUTSTANDING} taken since, and never seen empty");
    rig.packet(60);
    rig.iteration(0, true);
    assert!(!rig.control.acknowledged(next), "6 taken");
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(next), "seen empty");
    rig.control.release();
    rig.idle();
    assert_eq!(rig.programs(), [""]);
    assert_eq!(rig.delivered("web"), Traffic { packets: 1, bytes: 60 });
}

#[test]
fn a_busy_queue_counts_as_drained_after_as_many_completions_as_it_holds() {
    let mut rig = Rig::new();
    rig.begin(&["web"]);
    rig.iteration(0, true);
    let next = rig.enforce();
    rig.iteration(4, false);
    rig.iteration(4, false);
    assert!(!rig.control.acknowledged(next));
    rig.iteration(4, false);
    assert!(rig.control.acknowledged(next));
}

#[test]
fn a_worker_that_does_not_answer_is_sent_the_last_programs_only() {
    let mut rig = Rig::new();
    rig.replace(&["first"]);
    rig.packet(60);
    for _ in 0..1000 {
        rig.begin(&["passed over"]);
        rig.enforce();
    }
    rig.begin(&["a"]);
    let last = rig.enforce();
    let rules: Vec<_> = rig.control.snapshot().rules.into_iter().map(|rule| rule.name).collect();
    assert_eq!(rules, ["a", "first", "passed over"], "the last two, and the one that the worker has");
    rig.iteration(1, true);
    rig.packet(60);
    assert_eq!(rig.delivered("first").packets, 2, "it counts until its map is drained");
    rig.iteration(0, true);
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(last));
    rig.packet(60);
    assert_eq!(["first", "passed over", "a"].map(|name| rig.delivered(name).packets), [2, 0, 1]);
}

#[test]
fn a_stage_over_one_that_is_drained_waits_for_it() {
    let mut rig = Rig::new();
    rig.begin(&["old"]);
    rig.enforce();
    rig.iteration(1, false);
    let begun = rig.begin(&["new"]);
    rig.iteration(1, false);
    let enforced = rig.enforce();
    rig.packet(100);
    rig.iteration(0, true);
    assert_eq!(rig.programs(), ["old"]);
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(begun) && !rig.control.acknowledged(enforced));
    rig.packet(10);
    rig.idle();
    assert!(rig.control.acknowledged(enforced));
    rig.packet(1);
    assert_eq!(["old", "new"].map(|name| rig.delivered(name).bytes), [110, 1]);
}

#[test]
fn totals_of_a_rule_add_up_over_all_programs_that_had_it() {
    let mut rig = Rig::new();
    let mut expected = 0;
    for round in 0..10 {
        rig.replace(&["web", "dns"]);
        for _ in 0..=round {
            rig.packet(1);
            expected += 1;
            assert_eq!(rig.delivered("web").packets, expected);
        }
        rig.begin(&["dns"]);
        rig.enforce();
        assert_eq!(rig.delivered("web").packets, expected, "while it drains");
        rig.idle();
        rig.control.release();
        rig.idle();
        assert_eq!(rig.delivered("web").packets, expected, "when it is folded");
    }
    assert_eq!(rig.delivered("dns").packets, 0);
}

#[test]
fn the_worker_never_frees_a_table_and_control_does() {
    let mut rig = Rig::new();
    rig.replace(&["web"]);
    let watched = Arc::downgrade(rig.classifier.tables().next().expect("published"));
    rig.begin(&[]);
    rig.enforce();
    rig.idle();
    rig.control.release();
    rig.idle();
    assert!(watched.upgrade().is_some(), "the handle still holds it for its totals");
    let _ = rig.control.snapshot();
    assert!(watched.upgrade().is_none(), "folded and freed by the reader");
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{prefix}{index:06}")).collect()
}

impl Rig {
    /// Another program, and what it meets: one packet for every rule.
    fn run_all(&mut self, names: &[String]) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.replace(&names);
        (0..names.len()).for_each(|rule| self.packet_of(rule, 1));
    }
}

#[test]
fn no_total_goes_backwards_however_many_rules_a_policy_has() {
    let mut rig = Rig::new();
    let names = names("rule", 17_000);
    for round in 1..=3 {
        rig.run_all(&names);
        let snapshot = rig.control.snapshot();
        assert_eq!(snapshot.rules.len(), names.len());
        assert!(snapshot.rules.iter().all(|rule| rule.traffic.packets == round), "round {round}");
    }
}

#[test]
fn past_rules_that_counted_nothing_are_not_kept() {
    let mut rig = Rig::new();
    rig.replace(&["idle", "also idle"]);
    rig.run_all(&names("busy", 1));
    rig.run_all(&[]);
    let names: Vec<_> = rig.control.snapshot().rules.into_iter().map(|rule| rule.name).collect();
    assert_eq!(names, ["busy000000"]);
}

#[test]
fn past_rules_are_summed_under_one_name_but_not_those_that_are_kept() {
    let mut rig = Rig::new();
    let live = names("live", 3);
    for round in 0..10 {
        rig.run_all(&[live.clone(), names(&format!("past{round}-"), 5)].concat());
    }
    rig.run_all(&live);
    rig.run_all(&live);
    let kept = names("past9-", 5);
    let keep = live.iter().chain(&kept).map(String::as_str).collect();
    rig.control.retire_rules(&keep);
    let after = rig.control.snapshot();
    assert_eq!(after.rules.len(), live.len() + kept.len() + 1);
    assert!(live.iter().all(|name| after.rule(name, Disposition::Delivered).packets == 12));
    assert!(kept.iter().all(|name| after.rule(name, Disposition::Delivered).packets == 1));
    assert_eq!(after.rule(RETIRED_RULES, Disposition::Delivered).packets, 9 * 5);
    assert_eq!(after.total(Disposition::Delivered).packets, 12 * 3 + 10 * 5, "nothing is lost");
    rig.control.retire_rules(&keep);
    assert_eq!(rig.control.snapshot(), after, "once is enough");
}

#[test]
fn the_program_before_goes_once_waiting_packets_are_judged() {
    let mut rig = Rig::new();
    rig.replace(&["old", "gone"]);
    rig.begin(&["new"]);
    rig.enforce();
    rig.idle();
    let released = rig.control.release();
    rig.iteration(1, false);
    rig.packet_of(1, 60);
    assert!(!rig.control.acknowledged(released), "packets may wait");
    rig.iteration(0, true);
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(released));
    assert_eq!(rig.programs(), ["new"]);
    assert_eq!(rig.delivered("gone").packets, 1);
    rig.begin(&["newer"]);
    rig.enforce();
    rig.idle();
    rig.packet(60);
    assert_eq!((rig.delivered("newer").packets, rig.delivered("gone").packets), (1, 1));
}

#[test]
fn a_program_that_is_released_is_held_no_longer() {
    let mut rig = Rig::new();
    let old = program(&["old"]);
    rig.control.publish(&ChangeStage::Begin(Arc::clone(&old)));
    rig.enforce();
    rig.idle();
    rig.replace(&["new"]);
    rig.control.retire_rules(&HashSet::new());
    assert_eq!(Arc::strong_count(&old), 1);
}

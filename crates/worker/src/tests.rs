//! A worker's handle and its classifier together, without a device: how programs give way to each
//! other and how their totals live on.

use std::collections::HashSet;
use std::sync::Arc;

use program::{
    Class, Decide, GroupId, Outcome, Placement, Policing, Program, RETIRED_RULES, Rule, RuleId, Verdict,
    WorkerId,
};

use crate::batch::Batch;
use crate::classifier::Classifier;
use crate::{Band, Disposition, Traffic, WorkerControl};

/// The most completions that may be outstanding in these tests.
const OUTSTANDING: u32 = 8;

fn outcome(rule: usize) -> Outcome {
    Outcome { rule: RuleId::of(rule), verdict: Verdict::Deliver(GroupId(0)) }
}

/// A program with one exact class per name.
pub(crate) fn program(names: &[&str]) -> Arc<Program> {
    let rule = |name: &&str| Rule {
        name: (*name).to_owned(),
        action: Verdict::Deliver(GroupId(0)),
        line: 1,
        placement: Placement::Hardware,
        count: true,
        flows: 1,
        undecided: Vec::new(),
        sinks: Vec::new(),
        policing: Policing::default(),
    };
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
            control: WorkerControl::new(WorkerId(0), Vec::new()),
            classifier: Classifier::new(OUTSTANDING),
            batch: Batch::new(1, 1),
        }
    }

    /// An iteration that took `completions` and saw the queue empty or not.
    fn iteration(&mut self, completions: usize, drained: bool) {
        self.classifier.refresh(&self.control.shared().mailbox, &self.batch);
        self.batch.completions = completions;
        self.batch.drained = drained;
    }

    /// One packet for class 0 of a band, as the loop would count it.
    fn packet(&self, band: Band, bytes: u64) {
        self.packet_of(band, 0, bytes);
    }

    fn packet_of(&self, band: Band, rule: usize, bytes: u64) {
        let table = self.classifier.table(band).expect("published");
        table.tally(&outcome(rule)).expect("a rule of the program").add(1, bytes);
    }

    fn delivered(&self, name: &str) -> Traffic {
        self.control.snapshot().rule(name, Disposition::Delivered)
    }
}

#[test]
fn an_empty_band_takes_its_program_at_once() {
    let mut rig = Rig::new();
    let generation = rig.control.publish(Band::A, program(&["web"]));
    assert!(!rig.control.acknowledged(generation));
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(generation));
    assert!(rig.classifier.table(Band::A).is_some());
    assert!(rig.classifier.table(Band::B).is_none());
}

#[test]
fn a_band_is_drained_before_its_program_goes() {
    let mut rig = Rig::new();
    rig.control.publish(Band::A, program(&["web"]));
    rig.iteration(3, false);
    let next = rig.control.publish(Band::A, program(&[]));
    rig.iteration(3, false);
    rig.iteration(3, false);
    assert!(!rig.control.acknowledged(next), "only 3 of {OUTSTANDING} taken since, and never seen empty");
    rig.packet(Band::A, 60);
    rig.iteration(0, true);
    assert!(!rig.control.acknowledged(next), "6 taken");
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(next), "seen empty");
    assert!(rig.classifier.table(Band::A).is_some_and(|table| table.program().rules.is_empty()));
    assert_eq!(rig.delivered("web"), Traffic { packets: 1, bytes: 60 });
}

#[test]
fn a_busy_queue_counts_as_drained_after_as_many_completions_as_it_holds() {
    let mut rig = Rig::new();
    rig.control.publish(Band::B, program(&["web"]));
    rig.iteration(0, true);
    let next = rig.control.publish(Band::B, program(&[]));
    rig.iteration(4, false);
    rig.iteration(4, false);
    assert!(!rig.control.acknowledged(next));
    rig.iteration(4, false);
    assert!(rig.control.acknowledged(next));
}

#[test]
fn a_worker_that_does_not_answer_is_sent_the_last_programs_only() {
    let mut rig = Rig::new();
    rig.control.publish(Band::A, program(&["first"]));
    rig.iteration(0, true);
    rig.packet(Band::A, 60);
    for _ in 0..1000 {
        rig.control.publish(Band::A, program(&["passed over"]));
        rig.control.publish(Band::B, program(&["passed over"]));
    }
    rig.control.publish(Band::A, program(&["a"]));
    let last = rig.control.publish(Band::B, program(&["b"]));
    let rules: Vec<_> = rig.control.snapshot().rules.into_iter().map(|rule| rule.name).collect();
    assert_eq!(rules, ["a", "b", "first"]);
    rig.iteration(1, true);
    rig.packet(Band::A, 60);
    assert_eq!(rig.delivered("first").packets, 2, "it counts until its place is drained");
    rig.iteration(0, true);
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(last));
    rig.packet(Band::A, 60);
    rig.packet(Band::B, 60);
    assert_eq!(["first", "a", "b"].map(|name| rig.delivered(name).packets), [2, 1, 1]);
}

#[test]
fn a_program_over_a_live_one_waits_for_the_drain_and_later_commands_for_both() {
    let mut rig = Rig::new();
    rig.control.publish(Band::A, program(&["old"]));
    rig.iteration(1, false);
    let replaced = rig.control.publish(Band::A, program(&["new"]));
    let other = rig.control.publish(Band::B, program(&["other"]));
    rig.iteration(1, false);
    rig.packet(Band::A, 100);
    assert!(rig.classifier.table(Band::B).is_none());
    rig.iteration(0, true);
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(replaced) && rig.control.acknowledged(other));
    rig.packet(Band::A, 10);
    rig.packet(Band::B, 1);
    let bytes = ["old", "new", "other"].map(|name| rig.delivered(name).bytes);
    assert_eq!(bytes, [100, 10, 1]);
}

#[test]
fn totals_of_a_rule_add_up_over_all_programs_that_had_it() {
    let mut rig = Rig::new();
    let mut expected = 0;
    for round in 0..10 {
        let band = if round % 2 == 0 { Band::A } else { Band::B };
        rig.control.publish(band, program(&["web", "dns"]));
        rig.iteration(0, true);
        rig.iteration(0, true);
        for _ in 0..=round {
            rig.packet(band, 1);
            expected += 1;
            assert_eq!(rig.delivered("web").packets, expected);
        }
        rig.control.publish(band, program(&["dns"]));
        assert_eq!(rig.delivered("web").packets, expected, "while it drains");
        rig.iteration(0, true);
        rig.iteration(0, true);
        assert_eq!(rig.delivered("web").packets, expected, "when it is folded");
    }
    assert_eq!(rig.delivered("dns").packets, 0);
}

#[test]
fn the_worker_never_frees_a_table_and_control_does() {
    let mut rig = Rig::new();
    rig.control.publish(Band::A, program(&["web"]));
    rig.iteration(0, true);
    let watched = Arc::downgrade(rig.classifier.table(Band::A).expect("published"));
    rig.control.publish(Band::A, program(&[]));
    rig.iteration(0, true);
    rig.iteration(0, true);
    assert!(watched.upgrade().is_some(), "the handle still holds it for its totals");
    let _ = rig.control.snapshot();
    assert!(watched.upgrade().is_none(), "folded and freed by the reader");
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{prefix}{index:06}")).collect()
}

impl Rig {
    /// Another program in band A, and what it meets: one packet for every rule.
    fn run_all(&mut self, names: &[String]) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.control.publish(Band::A, program(&names));
        self.iteration(0, true);
        self.iteration(0, true);
        (0..names.len()).for_each(|rule| self.packet_of(Band::A, rule, 1));
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
    rig.control.publish(Band::A, program(&["idle", "also idle"]));
    rig.iteration(0, true);
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
fn a_band_is_emptied_once_waiting_packets_are_judged() {
    let mut rig = Rig::new();
    rig.control.publish(Band::A, program(&["old"]));
    rig.iteration(0, true);
    let program_b = program(&["new"]);
    rig.control.publish(Band::B, Arc::clone(&program_b));
    rig.iteration(0, true);
    let cleared = rig.control.clear(Band::A);
    rig.iteration(1, false);
    rig.packet(Band::A, 60);
    assert!(!rig.control.acknowledged(cleared), "packets may wait");
    rig.iteration(0, true);
    rig.iteration(0, true);
    assert!(rig.control.acknowledged(cleared) && rig.classifier.table(Band::A).is_none());
    assert_eq!(rig.delivered("old").packets, 1);
    assert!(Arc::ptr_eq(rig.classifier.table(Band::B).expect("stays").program(), &program_b));
    // The band can be used again.
    rig.control.publish(Band::A, program(&["newer"]));
    rig.iteration(0, true);
    rig.packet(Band::A, 60);
    assert_eq!((rig.delivered("newer").packets, rig.delivered("old").packets), (1, 1));
}

#[test]
fn an_emptied_band_holds_its_program_no_longer() {
    let mut rig = Rig::new();
    let old = program(&["old"]);
    rig.control.publish(Band::A, Arc::clone(&old));
    rig.iteration(0, true);
    rig.control.publish(Band::B, program(&["new"]));
    rig.iteration(0, true);
    rig.control.clear(Band::A);
    (0..3).for_each(|_| rig.iteration(0, true));
    rig.control.retire_rules(&HashSet::new());
    assert_eq!(Arc::strong_count(&old), 1);
}

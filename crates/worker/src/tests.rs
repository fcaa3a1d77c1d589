//! A worker's handle and its classifier together, without a device: how programs give way to each
//! other and how their totals live on.

use std::sync::Arc;

use policy::{Class, Decide, GroupId, Outcome, Placement, Program, Rule, RuleId, Verdict, WorkerId};

use crate::batch::Batch;
use crate::classifier::Classifier;
use crate::control::RETIRED_RULES_MAX;
use crate::{Band, ClassTable, Disposition, FORGOTTEN, Traffic, WorkerControl};

/// What completions may be outstanding in these tests.
const OUTSTANDING: u32 = 8;

fn outcome(rule: usize) -> Outcome {
    Outcome { rule: RuleId::of(rule), verdict: Verdict::Deliver(GroupId(0)) }
}

/// A program with one exact class per name.
fn table(names: &[&str]) -> Arc<ClassTable> {
    let rule = |name: &&str| Rule {
        name: (*name).to_owned(),
        action: Verdict::Deliver(GroupId(0)),
        line: 1,
        placement: Placement::Hardware,
        count: true,
        flows: 1,
    };
    let class = |index| Class { decide: Decide::Exact(outcome(index)) };
    Arc::new(ClassTable::new(Arc::new(Program {
        rules: names.iter().map(rule).collect(),
        groups: Vec::new(),
        queues: Vec::new(),
        flows: Vec::new(),
        classes: (0..names.len()).map(class).collect(),
        default: Verdict::Kernel,
        priorities_used: 0,
    })))
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

    /// A turn that took `completions` and saw the queue empty or not.
    fn turn(&mut self, completions: usize, drained: bool) {
        self.classifier.refresh(&self.control.shared().mailbox, &self.batch);
        self.batch.completions = completions;
        self.batch.drained = drained;
    }

    /// One packet for class 0 of a band, as the loop would count it.
    fn packet(&self, band: Band, bytes: u64) {
        let table = self.classifier.table(band).expect("published");
        table.tally(&outcome(0)).expect("rule 0").add(1, bytes);
    }

    fn delivered(&self, name: &str) -> Traffic {
        self.control.snapshot().rule(name, Disposition::Delivered)
    }
}

#[test]
fn an_empty_band_takes_its_program_at_once() {
    let mut rig = Rig::new();
    let generation = rig.control.publish(Band::A, Some(table(&["web"])));
    assert!(!rig.control.acknowledged(generation));
    rig.turn(0, true);
    assert!(rig.control.acknowledged(generation));
    assert!(rig.classifier.table(Band::A).is_some());
    assert!(rig.classifier.table(Band::B).is_none());
}

#[test]
fn a_band_is_drained_before_its_program_goes() {
    let mut rig = Rig::new();
    rig.control.publish(Band::A, Some(table(&["web"])));
    rig.turn(3, false);
    let retired = rig.control.publish(Band::A, None);
    rig.turn(3, false);
    rig.turn(3, false);
    assert!(!rig.control.acknowledged(retired), "only 3 of {OUTSTANDING} taken since, and never seen empty");
    rig.packet(Band::A, 60);
    rig.turn(0, true);
    assert!(!rig.control.acknowledged(retired), "6 taken");
    rig.turn(0, true);
    assert!(rig.control.acknowledged(retired), "seen empty");
    assert!(rig.classifier.table(Band::A).is_none());
    assert_eq!(rig.delivered("web"), Traffic { packets: 1, bytes: 60 });
}

#[test]
fn a_busy_queue_counts_as_drained_after_as_many_completions_as_it_holds() {
    let mut rig = Rig::new();
    rig.control.publish(Band::B, Some(table(&["web"])));
    rig.turn(0, true);
    let retired = rig.control.publish(Band::B, None);
    rig.turn(4, false);
    rig.turn(4, false);
    assert!(!rig.control.acknowledged(retired));
    rig.turn(4, false);
    assert!(rig.control.acknowledged(retired));
}

#[test]
fn a_program_over_a_live_one_waits_for_the_drain_and_later_commands_for_both() {
    let mut rig = Rig::new();
    rig.control.publish(Band::A, Some(table(&["old"])));
    rig.turn(1, false);
    let replaced = rig.control.publish(Band::A, Some(table(&["new"])));
    let other = rig.control.publish(Band::B, Some(table(&["other"])));
    rig.turn(1, false);
    rig.packet(Band::A, 100);
    assert!(rig.classifier.table(Band::B).is_none());
    rig.turn(0, true);
    rig.turn(0, true);
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
        rig.control.publish(band, Some(table(&["web", "dns"])));
        rig.turn(0, true);
        for _ in 0..=round {
            rig.packet(band, 1);
            expected += 1;
            assert_eq!(rig.delivered("web").packets, expected);
        }
        rig.control.publish(band, None);
        assert_eq!(rig.delivered("web").packets, expected, "while it drains");
        rig.turn(0, true);
        rig.turn(0, true);
        assert_eq!(rig.delivered("web").packets, expected, "when it is folded");
    }
    assert_eq!(rig.delivered("dns").packets, 0);
}

#[test]
fn the_worker_never_frees_a_table_and_control_does() {
    let mut rig = Rig::new();
    let table = table(&["web"]);
    let watched = Arc::downgrade(&table);
    rig.control.publish(Band::A, Some(table));
    rig.turn(0, true);
    rig.control.publish(Band::A, None);
    rig.turn(0, true);
    rig.turn(0, true);
    assert!(watched.upgrade().is_some(), "the handle still holds it for its totals");
    let _ = rig.control.snapshot();
    assert!(watched.upgrade().is_none(), "folded and freed by the reader");
}

#[test]
fn names_of_past_rules_are_bounded_but_not_their_sum() {
    let mut rig = Rig::new();
    let mut packets = 0;
    let names: Vec<String> = (0..RETIRED_RULES_MAX + 3).map(|index| format!("rule{index:05}")).collect();
    for chunk in names.chunks(RETIRED_RULES_MAX / 4) {
        let names: Vec<&str> = chunk.iter().map(String::as_str).collect();
        rig.control.publish(Band::A, Some(table(&names)));
        rig.turn(0, true);
        rig.turn(0, true);
        rig.packet(Band::A, 1);
        packets += 1;
    }
    rig.control.publish(Band::A, None);
    rig.turn(0, true);
    rig.turn(0, true);
    let snapshot = rig.control.snapshot();
    assert_eq!(snapshot.total(Disposition::Delivered).packets, packets);
    assert_eq!(snapshot.rule(FORGOTTEN, Disposition::Delivered).packets, 1);
    assert!(snapshot.rules.len() <= RETIRED_RULES_MAX + 1);
}

//! Finding the rule of a packet, beside `dpdk-test-acl` and the classifiers of CutSplit's program with the
//! same rules and the same flows; these ignore TCP flags.
//!
//! The soft NIC's flow table is private. Its cost is that of the engine per frame of a trace with the rules,
//! less that of the same trace with one rule, which matches every packet. Both deliver every frame to the
//! same worker.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use softnic::Drive;
use steerd_benches::Rig;
use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::competitors::{AclAlgorithm, Classifier, CutSplitProgram, Outcomes, Step};
use steerd_benches::rules::RuleSet;
use steerd_benches::table::Row;

use super::inputs::{Inputs, Traffic, one_rule};
use super::{CORE, PULSE, SIZES, own_command};

pub(crate) const TABLE: &str = "lookup";
const OWN: &str = "steerd";
const MILLISECONDS: u64 = 200;
/// Packets that `dpdk-test-acl` classifies in a round.
const PACKETS: usize = 4_000_000;
const FEW: Traffic = Traffic::Flows(1000);
/// CutSplit's program, which goes through a trace ten times with each classifier, would take a minute.
const MANY: Traffic = Traffic::Flows(1_000_000);
const RANDOM: Traffic = Traffic::Random(100_000);

const SETS: [(&str, &[Traffic]); 3] = [
    ("acl1_10k", &[FEW, Traffic::Flows(100_000), MANY, RANDOM]),
    ("ipc1_10k", &[FEW, Traffic::Flows(100_000), RANDOM]),
    ("fw1_1k", &[FEW, Traffic::Flows(100_000), RANDOM]),
];

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    let program = CutSplitProgram::find();
    for (name, traffics) in SETS {
        match inputs.set(name) {
            Ok(set) => {
                for traffic in traffics {
                    cases.push(own(inputs, &set, *traffic));
                    cases.extend(AclAlgorithm::ALL.map(|algorithm| acl(inputs, &set, *traffic, algorithm)));
                    if let (Ok(program), false) = (&program, *traffic == MANY) {
                        cases.extend(classifiers(inputs, program, &set, *traffic));
                    }
                }
            }
            Err(why) => cases.push(Case::missing(row(OWN, name, "all flows"), &why)),
        }
    }
    if let Err(why) = &program {
        let row = |classifier: Classifier| row(classifier.name(), "acl1_10k", "all flows");
        cases.extend(Classifier::ALL.map(|classifier| Case::missing(row(classifier), why)));
    }
    cases
}

fn row(program: &str, set: &str, traffic: &str) -> Row {
    let mut row = Row::new(TABLE, format!("{set}, {traffic}: {program}"), 0, "ns");
    row.command = own_command(TABLE);
    row
}

fn own<'i>(inputs: &'i Inputs, set: &RuleSet, traffic: Traffic) -> Case<'i> {
    let mut row = row(OWN, &set.name, &traffic.name());
    let replay = match inputs.replay(set, traffic, SIZES[0]) {
        Ok(replay) => replay,
        Err(why) => return Case::missing(row, &why),
    };
    row.note = format!("{} flows", replay.flows);
    let [mut rules, mut single] = [set, &one_rule()]
        .map(|rules| Rig::replaying(&replay.capture, &rules.delivering().policy_text(), Drive::Manual, None));
    Case::new(row, move || {
        let time = inputs.round(MILLISECONDS);
        let [rules, single] = [&mut rules, &mut single].map(|rig| rig.alternate(PULSE, time).engine_ns);
        Ok(rules - single)
    })
}

fn acl<'i>(inputs: &'i Inputs, set: &RuleSet, traffic: Traffic, algorithm: AclAlgorithm) -> Case<'i> {
    let mut row = row(&format!("rte_acl {}", algorithm.name()), &set.name, &traffic.name());
    let files: Result<(PathBuf, PathBuf), String> = inputs.acl(set, traffic);
    let flows = inputs.replay(set, traffic, SIZES[0]).map(|replay| replay.flows);
    let (rules, trace, flows) = match (files, flows) {
        (Ok((rules, trace)), Ok(flows)) => (rules, trace, flows),
        (Err(why), _) | (_, Err(why)) => return Case::missing(row, &why),
    };
    let sizes = (flows, (PACKETS / flows.max(1)).max(1));
    row.command = algorithm.command(CORE, &rules, &trace, sizes);
    Case::new(row, move || algorithm.nanoseconds(CORE, &rules, &trace, sizes))
}

/// All classifiers of the program, which runs once in a round: the first case that asks for a figure of it
/// starts it.
fn classifiers<'i>(
    inputs: &'i Inputs,
    program: &CutSplitProgram,
    set: &RuleSet,
    traffic: Traffic,
) -> Vec<Case<'i>> {
    let files = inputs.classbench(set, traffic);
    let outcomes = Rc::new(RefCell::new(Outcomes::new()));
    // Updates do not depend on the trace.
    let steps = if traffic == FEW { &[Step::Lookup, Step::Update][..] } else { &[Step::Lookup] };
    let mut cases = Vec::new();
    for step in steps {
        let asked = Classifier::ALL.into_iter().filter(|asked| *step == Step::Lookup || asked.has_updates());
        for classifier in asked {
            let question = if *step == Step::Lookup { &traffic.name() } else { "a rule inserted or deleted" };
            let mut row = row(classifier.name(), &set.name, question);
            let (rules, trace) = match files.clone() {
                Ok(files) => files,
                Err(why) => {
                    cases.push(Case::missing(row, &why));
                    continue;
                }
            };
            row.command = program.command(CORE, &rules, &trace);
            let (program, outcomes, key) = (program.clone(), Rc::clone(&outcomes), (classifier, *step));
            cases.push(Case::new(row, move || {
                let mut outcomes = outcomes.borrow_mut();
                if !outcomes.contains_key(&key) {
                    *outcomes = program.measure(CORE, &rules, &trace)?;
                }
                outcomes.remove(&key).unwrap_or_else(|| Err("no figure".to_owned()))
            }));
        }
    }
    cases
}

/// Ours beside each algorithm.
pub(crate) fn ratios(_: &Inputs, rows: &[Row]) -> Vec<Ratio> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let mut ratios = Vec::new();
    for own in &rows {
        let Some(question) = own.what.strip_suffix(OWN) else { continue };
        let others = rows.iter().filter(|row| row.what.starts_with(question) && row.what != own.what);
        ratios.extend(others.map(|other| Ratio::of(own, other)));
    }
    ratios
}

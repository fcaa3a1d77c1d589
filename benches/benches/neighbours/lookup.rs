//! Finding the rule of a packet, beside `dpdk-test-acl` with the same rules and the same flows.
//!
//! The soft NIC's flow table is private. Its cost is that of the engine per frame of a trace with the rules, less that of
//! the same trace with one rule, which matches every packet. Both deliver every frame to the same worker.

use std::path::PathBuf;

use softnic::Drive;
use steerd_benches::Rig;
use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::competitors::AclAlgorithm;
use steerd_benches::rules::RuleSet;
use steerd_benches::table::Row;

use super::inputs::{Inputs, Traffic, one_rule};
use super::{CORE, PULSE, SIZES, own_command};

pub(crate) const TABLE: &str = "lookup";
const OWN: &str = "steerd";
const MILLISECONDS: u64 = 200;
/// Packets that `dpdk-test-acl` classifies in a round.
const PACKETS: usize = 4_000_000;
const RANDOM: Traffic = Traffic::Random(100_000);

const SETS: [(&str, &[Traffic]); 3] = [
    ("acl1_10k", &[Traffic::Flows(1000), Traffic::Flows(100_000), Traffic::Flows(1_000_000), RANDOM]),
    ("ipc1_10k", &[Traffic::Flows(1000), Traffic::Flows(100_000), RANDOM]),
    ("fw1_1k", &[Traffic::Flows(100_000), RANDOM]),
];

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    for (name, traffics) in SETS {
        match inputs.set(name) {
            Ok(set) => {
                for traffic in traffics {
                    cases.push(own(inputs, &set, *traffic));
                    cases.extend(AclAlgorithm::ALL.map(|algorithm| acl(inputs, &set, *traffic, algorithm)));
                }
            }
            Err(why) => cases.push(Case::missing(row(OWN, name, "all flows"), &why)),
        }
    }
    let why = "its sources (github.com/lyxocs/CutSplit) are not at hand";
    cases.push(Case::missing(row("CutSplit", "acl1_10k", "all flows"), why));
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

/// Ours beside each algorithm.
pub(crate) fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let mut ratios = Vec::new();
    for own in &rows {
        let Some(question) = own.what.strip_suffix(OWN) else { continue };
        let others = rows.iter().filter(|row| row.what.starts_with(question) && row.what.contains("rte_acl"));
        ratios.extend(others.map(|other| Ratio::of(own, other)));
    }
    ratios
}

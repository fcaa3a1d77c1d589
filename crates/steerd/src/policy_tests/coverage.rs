//! The coverage of a policy by its tests: which rules a test reaches, and how much of their packets some test
//! makes a demand on. A rule that no test reaches gets a proposal, which records what the policy does now.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use analysis::Deciders;
use packet::DeepKey;
use policy::policy::{Action, Direction};
use policy::policy_test::TestedPackets;
use policy::{Policy, Witness};
use program::{DEFAULT_RULE, Match, Predicate};
use serde::Serialize;

use super::{TestBench, set_of};
use crate::traffic::{UnreadableCapture, for_each_key};

/// The coverage of a policy.
#[derive(Debug, Serialize)]
pub(crate) struct Coverage {
    /// The rules that decide packets, the default last. Copies are not tested.
    pub(crate) rules: Vec<RuleCoverage>,
    /// The packets of a capture; `None`: none is given.
    pub(crate) traffic: Option<TrafficCoverage>,
}

/// The coverage of one rule.
#[derive(Debug, Serialize)]
pub(crate) struct RuleCoverage {
    pub(crate) rule: String,
    pub(crate) line: u32,
    /// The tests of which it decides a packet.
    pub(crate) tests: usize,
    /// The part of its packets that tests are about.
    pub(crate) packets: TestedPart,
    /// A test that can be added to the policy; `None`: a test reaches it or may do so, or it
    /// decides no packet.
    pub(crate) proposal: Option<String>,
}

/// A part of the packets that a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TestedPart {
    /// Each of them is in a set of a test.
    All,
    Some,
    None,
    /// Not decided within the limits of the analysis.
    Unknown,
}

impl TestedPart {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Some => "some",
            Self::None => "none",
            Self::Unknown => "unknown",
        }
    }
}

/// The packets of a capture on which tests make a demand.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct TrafficCoverage {
    pub(crate) packets: u64,
    /// Those that are in a set of a test, or have all header fields of the packet of one.
    pub(crate) tested: u64,
}

impl Coverage {
    /// The coverage by the tests of a policy, whose captures are in `folder`.
    pub(crate) fn of(
        policy: &Policy,
        folder: &Path,
        traffic: Option<&Path>,
    ) -> Result<Self, UnreadableCapture> {
        let mut rules = Vec::new();
        for direction in [Direction::Egress, Direction::Ingress] {
            rules.extend(of_direction(policy, folder, direction));
        }
        rules.sort_by_key(|(index, _)| *index);
        let rules = rules.into_iter().map(|(_, rule)| rule).collect();
        Ok(Self { rules, traffic: traffic.map(|path| of_traffic(policy, path)).transpose()? })
    }
}

/// The rules of one direction with their indices.
fn of_direction(policy: &Policy, folder: &Path, direction: Direction) -> Vec<(usize, RuleCoverage)> {
    let tests = || policy.tests.iter().filter(|test| test.direction == direction);
    let sets: Vec<&Match> = tests().filter_map(set_of).collect();
    let deciders = Deciders::of(policy, direction, sets.iter().copied());
    let bench = TestBench::of(policy, folder, None);
    let mut reached: BTreeMap<usize, usize> = BTreeMap::new();
    // Whether tests may reach other rules, too.
    let mut is_open = false;
    for test in tests() {
        let rules: Vec<usize> = match &test.packets {
            TestedPackets::Packet(key) => vec![bench.rule_of(key, direction)],
            TestedPackets::Every(matches) => {
                let found = deciders.of_match(matches);
                is_open |= found.is_open;
                found.rules.into_keys().map(program::RuleId::index).collect()
            }
            // A capture that cannot be read is a failed test.
            TestedPackets::Capture(file) => bench
                .capture(file)
                .unwrap_or_default()
                .into_iter()
                .enumerate()
                .filter(|(_, packets)| *packets > 0)
                .map(|(rule, _)| rule)
                .collect(),
        };
        rules.into_iter().for_each(|rule| *reached.entry(rule).or_default() += 1);
    }
    let is_here = |index: &usize| match policy.rules.get(*index) {
        Some(rule) => {
            rule.direction == direction && !matches!(rule.action, Action::Copy(_) | Action::Sniff(_))
        }
        None => direction == Direction::Ingress,
    };
    let cover = |index: usize| {
        let tests = reached.get(&index).copied().unwrap_or(0);
        let packets = match tests {
            0 if is_open => TestedPart::Unknown,
            0 => TestedPart::None,
            _ => match deciders.are_all_in(index, &sets) {
                Some(true) => TestedPart::All,
                Some(false) => TestedPart::Some,
                None => TestedPart::Unknown,
            },
        };
        let rule = policy.rules.get(index);
        let example = (packets == TestedPart::None).then(|| deciders.example(index)).flatten();
        let covered = RuleCoverage {
            rule: rule.map_or(DEFAULT_RULE, |rule| &rule.name).to_owned(),
            line: rule.map_or(policy.default_place.line(), |rule| rule.name_place.line()),
            tests,
            packets,
            proposal: example.map(|witness| proposal(&bench, index, direction, &witness)),
        };
        (index, covered)
    };
    (0..=policy.rules.len()).filter(is_here).map(cover).collect()
}

fn of_traffic(policy: &Policy, path: &Path) -> Result<TrafficCoverage, UnreadableCapture> {
    let received = || policy.tests.iter().filter(|test| test.direction == Direction::Ingress);
    let sets: Vec<Predicate> = received().filter_map(set_of).map(Predicate::of).collect();
    let keys: HashSet<DeepKey> = received()
        .filter_map(|test| match &test.packets {
            TestedPackets::Packet(key) => Some(**key),
            TestedPackets::Every(_) | TestedPackets::Capture(_) => None,
        })
        .collect();
    let mut coverage = TrafficCoverage::default();
    for_each_key(path, &mut |key, _| {
        let is_tested = keys.contains(key) || sets.iter().any(|set| set.matches_deep(key));
        coverage.packets += 1;
        coverage.tested += u64::from(is_tested);
    })?;
    Ok(coverage)
}

/// A test with a packet of a rule that expects what the policy does now.
fn proposal(bench: &TestBench<'_>, rule: usize, direction: Direction, witness: &Witness) -> String {
    let policy = bench.policy;
    let name = policy.rules.get(rule).map_or(DEFAULT_RULE, |rule| rule.name.as_str());
    let action = match (policy.rules.get(rule), direction) {
        (Some(rule), _) => rule.action,
        (None, Direction::Ingress) => policy.default,
        (None, Direction::Egress) => Action::Pass,
    };
    let expected = match action {
        Action::Drop => "expect = \"drop\"".to_owned(),
        Action::Kernel => "expect = \"kernel\"".to_owned(),
        Action::Pass => "expect = \"pass\"".to_owned(),
        Action::Steer(group) | Action::Copy(group) | Action::Sniff(group) => {
            let name = policy.groups.get(group.index()).map_or("?", |group| group.name.as_str());
            format!("group = \"{name}\"")
        }
    };
    let sent = if direction == Direction::Egress { "direction = \"egress\"\n" } else { "" };
    let packet = packet_line(witness, &|key| bench.rule_of(key, direction) == rule);
    format!("[[tests]]\n{packet}\n{sent}rule = \"{name}\"\n{expected}\n")
}

/// A witness as `packet`, or as `frame` if that notation has no text for it. Addresses of the Ethernet header
/// are left out if the packet is then still decided as before, which `is_decided` tells.
fn packet_line(witness: &Witness, is_decided: &dyn Fn(&DeepKey) -> bool) -> String {
    let key = witness.key();
    let is_same = |fields: &[&str]| {
        policy::key_of_text(&fields.join(",")).is_ok_and(|read| {
            let mut same = read;
            (same.outer.src_mac, same.outer.dst_mac) = (key.outer.src_mac, key.outer.dst_mac);
            same == key && is_decided(&read)
        })
    };
    let described = key.describe();
    let mut fields: Vec<&str> = described.split(',').collect();
    if !is_same(&fields) {
        return format!("frame = \"{}\"", witness.hex());
    }
    // Fields with the values that packets have anyway are left out.
    let mut index = 0;
    while index < fields.len() {
        let field = fields.remove(index);
        if !is_same(&fields) {
            fields.insert(index, field);
            index += 1;
        }
    }
    format!("packet = \"{}\"", fields.join(","))
}

//! The tests of captures: every packet is counted by the rule that decides it, and everything that a test can
//! expect of it follows from that rule.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use policy::policy::Action;
use policy::policy_test::{CountedPackets, PolicyTest};
use policy::{Diagnostic, Policy};
use reports::RuleCounter;

use super::wish::{Wish, is_rule};
use super::{HINT, decided, named};
use crate::terminal::numbers::{counted, number};
use crate::traffic::{UnreadableCapture, for_each_key_until};

/// The most rules that a message names.
const SHOWN_RULES: usize = 3;

/// The packets of a capture by the rule that decides them, the default last. An `end` that passes meanwhile
/// is an error.
pub(super) fn packets_by_rule(
    policy: &Policy,
    path: &Path,
    end: Option<Instant>,
) -> Result<Vec<u64>, UnreadableCapture> {
    let mut counter = RuleCounter::new(policy);
    for_each_key_until(path, end, &mut |key, _| counter.add(key))?;
    Ok(counter.weights().packets().to_vec())
}

/// The expectations of the test that the capture does not meet.
pub(super) fn failures(
    policy: &Policy,
    test: &PolicyTest,
    packets: Result<Vec<u64>, UnreadableCapture>,
) -> Vec<Diagnostic> {
    let packets = match packets {
        Ok(packets) => packets,
        Err(UnreadableCapture { path, message }) => {
            let message = format!("{} fails: {}: {message}", named(test), path.display());
            let hint = "the path is relative to the policy file that names it";
            return vec![test.place.error(message, "this capture").hint(hint)];
        }
    };
    let mut failures = Vec::new();
    for wish in Wish::all(policy, test) {
        let wrong: Vec<(usize, u64)> = packets
            .iter()
            .enumerate()
            .filter(|(rule, packets)| **packets > 0 && !wish.accepts(*rule))
            .map(|(rule, packets)| (rule, *packets))
            .collect();
        if wrong.is_empty() {
            continue;
        }
        let sum = wrong.iter().map(|(_, packets)| packets).sum();
        let mut deciders = String::new();
        for (index, (rule, packets)) in wrong.iter().take(SHOWN_RULES).enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            // Strings take text.
            let _ = write!(deciders, "{comma}{} by {}", number(*packets), decided(policy, test, *rule));
        }
        if wrong.len() > SHOWN_RULES {
            deciders.push_str(", ...");
        }
        let message = format!(
            "{} fails: of {} in the capture {} decided otherwise, {deciders}; for each {}",
            named(test),
            counted(packets.iter().sum(), "packet", "packets"),
            counted(sum, "is", "are"),
            wish.wanted
        );
        failures.push(wish.place.error(message, "expected here of every packet").hint(HINT));
    }
    for count in &test.counts {
        let found = count_of(policy, &packets, &count.counted);
        if found != count.packets {
            let message = format!(
                "{} fails: the capture has {} {}, and {} expected",
                named(test),
                counted(found, "packet", "packets"),
                which(policy, &count.counted),
                counted(count.packets, "is", "are")
            );
            failures.push(count.place.error(message, "expected here").hint(HINT));
        }
    }
    failures
}

/// How many of the packets, by rule, are counted.
fn count_of(policy: &Policy, packets: &[u64], counted: &CountedPackets) -> u64 {
    let is_counted = |rule: usize| {
        let action = policy.rules.get(rule).map_or(policy.default, |rule| rule.action);
        match counted {
            CountedPackets::All => true,
            CountedPackets::Action(expected) => expected.is_of(action),
            CountedPackets::Host => analysis::host_sees(policy, rule) == Some(true),
            CountedPackets::Rule(expected) => is_rule(policy, expected, rule),
            CountedPackets::Group(group) => action == Action::Steer(*group),
        }
    };
    packets.iter().enumerate().filter(|(rule, _)| is_counted(*rule)).map(|(_, packets)| packets).sum()
}

fn which(policy: &Policy, counted: &CountedPackets) -> String {
    match counted {
        CountedPackets::All => "in all".to_owned(),
        CountedPackets::Action(action) => format!("of rules with the action `{}`", action.word()),
        CountedPackets::Host => "that the host sees".to_owned(),
        CountedPackets::Rule(rule) => format!("of the rule `{}`", rule.name),
        CountedPackets::Group(group) => {
            let name = policy.groups.get(group.index()).map_or("?", |group| group.name.as_str());
            format!("of the group `{name}`")
        }
    }
}

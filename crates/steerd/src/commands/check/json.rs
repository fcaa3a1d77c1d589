//! `check --format json`: one object, described in docs/reference/commands/check.md.

use analysis::{Need, Pairs, Protected, Reach, Relation, RuleAnalysis};
use compiler::{Capacity, FlowGroups, Obstacle};
use policy::Witness;
use policy::{Diagnostic, MAX_DIAGNOSTICS};
use program::{Program, RuleDeciders, RuleId, SinkId, SinkSpec};
use reports::{DeviceRoom, RuleReport, Shares, TrafficShare};
use serde::Serialize;

use super::interface::{DecidedPackets, OnInterface};
use super::nic_drops::DropsOfPort;
use super::start::StartAnswer;
use super::{Checked, CountedShare, Unanswered};
use crate::daemon::placement::Placement;
use crate::daemon::preflight::Findings;
use crate::policy_tests::TestCounts;
use crate::state::PortClaims;
use crate::terminal::output::{self, OutputError};

#[derive(Default, Serialize)]
struct Answer<'c> {
    policy: String,
    /// The SHA-256 of the text, the files and the variables, as the running daemon reports it; `null` if the
    /// policy has syntax errors.
    sha256: Option<&'c str>,
    profile: &'c str,
    /// `null` if the policy has syntax errors.
    workers: Option<usize>,
    /// Whether the device can run the policy; findings that --deny names are in `denied`.
    ok: bool,
    denied: &'c [String],
    rules: &'c [RuleReport],
    /// Where packets drawn from the rules are decided; `null`: there is no program.
    shares: Option<&'c Shares>,
    /// Where the packets of a capture are decided; `null`: none is given, or there is no program.
    traffic: Option<Traffic<'c>>,
    /// Where the packets that a daemon has counted would be decided; `null`: none was asked.
    counted: Option<CountedShare>,
    sinks: Vec<SinkLine<'c>>,
    capacity: Option<&'c Capacity>,
    flow_groups: Option<&'c FlowGroups>,
    /// The room for rules at run time; `null`: there is no program, or none may be in the device.
    device_rules: Option<&'c DeviceRoom>,
    obstacles: &'c [Obstacle],
    /// Packets that rules leave to the kernel but workers receive.
    lost_exceptions: Vec<LostLine<'c>>,
    /// The outcome of the packets of each protected match.
    protected: Vec<ProtectedPackets<'c>>,
    /// The tests of the policy; `null`: there is no program.
    tests: Option<TestCounts>,
    /// `null`: skipped.
    analysis: Option<Analysis<'c>>,
    diagnostics: Vec<&'c Diagnostic>,
    /// Warnings about the device of the settings.
    device_warnings: &'c [String],
    /// The errors and warnings of a start with the settings; `null`: not asked.
    start: Option<StartAnswer<'c>>,
    /// Who decides on a network interface; `null`: the device is none, or there is no program.
    interface: Option<Interface<'c>>,
    omitted_diagnostics: usize,
}

#[derive(Serialize)]
struct Traffic<'c> {
    /// The packets of the capture; those in `all` are fewer if they were drawn from a long one.
    capture_packets: u64,
    all: &'c TrafficShare,
    /// The default last.
    rules: Vec<RuleTraffic<'c>>,
}

#[derive(Serialize)]
struct RuleTraffic<'c> {
    rule: &'c str,
    #[serde(flatten)]
    share: &'c TrafficShare,
}

#[derive(Serialize)]
struct Interface<'c> {
    ports: Vec<InterfacePort<'c>>,
    /// Where interrupts and packets of the interfaces go, beside the cores of workers and engines.
    placement: Option<&'c Placement>,
    /// Queues without a socket, in words; then `ok` is false.
    unserved_queues: &'c [String],
    /// The default last.
    rules: Vec<RuleOnInterface<'c>>,
    /// The drop rules that filters of the NIC carry out, by port; empty: no port has nic_filters = "drop".
    nic_drops: &'c [DropsOfPort],
    /// How exactly the XDP program represents what the flows claim; `null`: it does not take all flows.
    claims: Option<PortClaims>,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    claims_problem: Option<String>,
    /// The packets of a capture by who decides them; `null`: none is given.
    traffic: Option<DecidedTraffic<'c>>,
}

#[derive(Serialize)]
struct InterfacePort<'c> {
    port: u8,
    interface: &'c str,
}

#[derive(Serialize)]
struct RuleOnInterface<'c> {
    rule: &'c str,
    /// Who decides its packets ("nic", "xdp_program", "engine", "worker"), and whether the host receives
    /// them.
    #[serde(flatten)]
    deciders: &'c RuleDeciders,
}

#[derive(Serialize)]
struct DecidedTraffic<'c> {
    /// One of so many packets was examined; the numbers are of these.
    one_in: u64,
    all: DecidedPackets,
    /// The default last.
    rules: Vec<DecidedOfRule<'c>>,
    /// The packets that the XDP program redirects beyond what flows claim.
    beyond_claims: u64,
}

#[derive(Serialize)]
struct DecidedOfRule<'c> {
    rule: &'c str,
    #[serde(flatten)]
    decided: DecidedPackets,
}

#[derive(Serialize)]
struct SinkLine<'c> {
    #[serde(flatten)]
    sink: &'c SinkSpec,
    /// The rules whose packets it gets.
    rules: Vec<&'c str>,
}

#[derive(Serialize)]
struct LostLine<'c> {
    rule: &'c str,
    /// The rule whose flow takes the packet.
    taken_by: &'c str,
    witness: &'c Witness,
}

#[derive(Serialize)]
struct ProtectedPackets<'c> {
    /// The name in `[protect]`: that of a protocol, or the key.
    name: &'c str,
    line: u32,
    /// "safe", "missed" or "not_decided".
    reach: &'static str,
    /// The rule that takes packets of it, on this device or on any.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_by: Option<&'c str>,
    /// A packet that misses the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    witness: Option<&'c Witness>,
}

#[derive(Serialize)]
struct Analysis<'c> {
    not_decided: usize,
    rules: Vec<Rule<'c>>,
}

#[derive(Serialize)]
struct Rule<'c> {
    rule: &'c str,
    line: u32,
    /// "reached", "shadowed", "impossible" or "not_decided".
    reach: &'static str,
    /// The earlier rules that match all its packets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shadowed_by: Vec<&'c str>,
    /// A packet that reaches it.
    witness: Option<&'c Witness>,
    /// `null`: not decided.
    redundant: Option<bool>,
    /// A packet that would be treated differently without it.
    needed_for: Option<&'c Witness>,
    /// Earlier rules with another action that match some of its packets.
    conflicts: Others<'c>,
    /// Earlier rules with the same action that match some of its packets.
    overlaps: Others<'c>,
}

#[derive(Serialize)]
struct Others<'c> {
    count: usize,
    listed: Vec<Other<'c>>,
}

#[derive(Serialize)]
struct Other<'c> {
    earlier: &'c str,
    /// "exception", "shadow", "same" or "correlation".
    relation: &'static str,
    witness: &'c Witness,
}

pub(super) fn print(checked: &Checked, denied: &[String]) -> Result<(), OutputError> {
    let report = &checked.findings.report;
    let all = || checked.problems().chain(&checked.findings.warnings);
    let diagnostics: Vec<&Diagnostic> = all().take(MAX_DIAGNOSTICS).collect();
    let found = all().count();
    output::print_json(&Answer {
        policy: checked.source.to_string(),
        sha256: Some(&checked.sha256),
        profile: &report.device,
        workers: Some(checked.workers),
        ok: checked.is_ok(),
        protected: checked.protected(),
        tests: checked.tests.tests.as_ref().map(TestCounts::from),
        lost_exceptions: checked
            .findings
            .lost
            .found
            .iter()
            .map(|lost| LostLine {
                rule: checked.rule_name(lost.rule),
                taken_by: checked.rule_name(lost.taken_by),
                witness: &lost.witness,
            })
            .collect(),
        denied,
        rules: &report.rules,
        shares: report.shares.as_ref(),
        traffic: checked.traffic.as_ref().map(|traffic| Traffic {
            capture_packets: traffic.capture_packets,
            all: &traffic.all,
            rules: traffic
                .rules
                .iter()
                .enumerate()
                .map(|(index, share)| RuleTraffic { rule: checked.rule_name(RuleId::of(index)), share })
                .collect(),
        }),
        counted: checked.counted,
        sinks: report.program.as_ref().map(|program| checked.sinks(program)).unwrap_or_default(),
        capacity: report.capacity.as_ref(),
        flow_groups: report.flow_groups.as_ref(),
        device_rules: checked.findings.room.as_ref(),
        obstacles: &report.obstacles,
        analysis: checked.findings.analysis.as_ref().map(|analysis| Analysis {
            not_decided: analysis.not_decided,
            rules: analysis.rules.iter().enumerate().map(|(index, rule)| checked.rule(index, rule)).collect(),
        }),
        omitted_diagnostics: found - diagnostics.len(),
        diagnostics,
        device_warnings: &checked.device_warnings,
        start: checked.start.as_ref().map(StartAnswer::of),
        interface: checked.interface.as_ref().map(|interface| checked.on_interface(interface)),
    })
}

/// Prints what was found by a check that ended before its answer.
pub(super) fn unanswered(unanswered: &Unanswered, start: Option<&Findings>) -> Result<(), OutputError> {
    let of_settings = unanswered.error.of_settings().map(|problems| &problems.diagnostics);
    let diagnostics = of_settings.unwrap_or(&unanswered.diagnostics);
    output::print_json(&Answer {
        policy: unanswered.policy.clone(),
        profile: &unanswered.profile,
        diagnostics: diagnostics.list.iter().collect(),
        omitted_diagnostics: diagnostics.omitted,
        start: start.map(StartAnswer::of),
        ..Answer::default()
    })
}

impl Checked {
    fn sinks<'c>(&'c self, program: &'c Program) -> Vec<SinkLine<'c>> {
        let line = |(index, sink)| SinkLine {
            sink,
            rules: self.rules_of_sink(program, SinkId::of(index)).collect(),
        };
        program.sinks.iter().enumerate().map(line).collect()
    }

    fn on_interface<'c>(&'c self, on: &'c OnInterface) -> Interface<'c> {
        let name = |index: usize| self.rule_name(RuleId::of(index));
        let ports = on.ports.iter().map(|on| InterfacePort { port: on.port, interface: &on.interface });
        let rules = on.rules.iter().enumerate();
        let rules = rules.map(|(index, deciders)| RuleOnInterface { rule: name(index), deciders });
        let traffic = on.traffic.as_ref().map(|traffic| DecidedTraffic {
            one_in: traffic.one_in,
            all: traffic.all,
            rules: (traffic.rules.iter().enumerate())
                .map(|(index, decided)| DecidedOfRule { rule: name(index), decided: *decided })
                .collect(),
            beyond_claims: traffic.beyond_claims,
        });
        Interface {
            ports: ports.collect(),
            placement: on.placement.as_ref(),
            unserved_queues: &on.unserved_queues,
            rules: rules.collect(),
            nic_drops: &on.nic_drops,
            claims: on.claims.as_ref().ok().map(|report| PortClaims::of(*report)),
            claims_problem: on.claims.as_ref().err().map(ToString::to_string),
            traffic,
        }
    }

    fn protected(&self) -> Vec<ProtectedPackets<'_>> {
        let protected = self.policy.protect.iter().flatten().zip(&self.findings.protection.found);
        let packets = protected.map(|(protected, found)| {
            let (reach, missed) = match found {
                Protected::Safe => ("safe", None),
                Protected::Missed(missed) => ("missed", Some(missed)),
                Protected::NotDecided(_) => ("not_decided", None),
            };
            ProtectedPackets {
                name: &protected.name,
                line: protected.place.line(),
                reach,
                taken_by: missed.map(|missed| self.rule_name(missed.taken_by)),
                witness: missed.map(|missed| &missed.witness),
            }
        });
        packets.collect()
    }

    fn rule<'c>(&'c self, index: usize, found: &'c RuleAnalysis) -> Rule<'c> {
        let name = |rule: &RuleId| self.rule_name(*rule);
        let (reach, shadowed_by, witness) = match &found.reach {
            Reach::Reached(witness) => ("reached", Vec::new(), Some(witness)),
            Reach::Impossible => ("impossible", Vec::new(), None),
            Reach::Shadowed(takers) => ("shadowed", takers.iter().map(name).collect(), None),
            Reach::NotDecided(_) => ("not_decided", Vec::new(), None),
        };
        let (redundant, needed_for) = match &found.need {
            Need::Needed(witness) => (Some(false), Some(witness)),
            Need::Redundant => (Some(true), None),
            Need::NotDecided(_) => (None, None),
        };
        Rule {
            rule: self.rule_name(RuleId::of(index)),
            line: self.policy.rules.get(index).map_or(0, |rule| rule.name_place.line()),
            reach,
            shadowed_by,
            witness,
            redundant,
            needed_for,
            conflicts: self.others(&found.conflicts),
            overlaps: self.others(&found.overlaps),
        }
    }

    fn others<'c>(&'c self, pairs: &'c Pairs) -> Others<'c> {
        let listed = pairs.listed.iter().map(|pair| Other {
            earlier: self.rule_name(pair.earlier),
            relation: relation(pair.relation),
            witness: &pair.witness,
        });
        Others { count: pairs.count, listed: listed.collect() }
    }
}

fn relation(relation: Relation) -> &'static str {
    match relation {
        Relation::Exception => "exception",
        Relation::Shadow => "shadow",
        Relation::Same => "same",
        Relation::Correlation => "correlation",
    }
}

//! What `steerd test` finds beside the results: the coverage of the rules, and changes that no test notices.

use std::fmt::Write as _;

use policy::Witness;
use serde::Serialize;

use super::TestedPolicy;
use crate::cli::TestArgs;
use crate::commands::Error;
use crate::policy_tests::coverage::{Coverage, TestedPart};
use crate::policy_tests::mutate::{Mutations, TestedDevice, mutations};
use crate::terminal::numbers::{counted, number, percent_of};
use crate::terminal::output::Progress;
use crate::terminal::table::Grid;

/// The findings that were asked for.
#[derive(Default, Serialize)]
pub(super) struct MoreFindings {
    #[serde(skip_serializing_if = "Option::is_none")]
    coverage: Option<Coverage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Changes>,
}

/// The changes of rules, one at a time.
#[derive(Serialize)]
struct Changes {
    /// Why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<&'static str>,
    noticed: usize,
    without_effect: usize,
    not_decided: usize,
    not_tried: usize,
    not_noticed: Vec<UnnoticedChange>,
}

#[derive(Serialize)]
struct UnnoticedChange {
    line: u32,
    change: String,
    witness: Witness,
}

pub(super) fn of(args: &TestArgs, tested: &TestedPolicy, failed: usize) -> Result<MoreFindings, Error> {
    let TestedPolicy { policy, folder, profile, workers, .. } = tested;
    let coverage =
        args.coverage.then(|| Coverage::of(policy, folder, args.traffic.as_deref())).transpose()?;
    let changes = args.mutate.then(|| match failed {
        0 => {
            let mut progress = Progress::new();
            let device = TestedDevice { profile, workers: *workers };
            mutations(policy, folder, &device, args.mutate_time, &mut |at| progress.show(at)).into()
        }
        _ => Changes { skipped: Some("tests fail without any change"), ..Mutations::default().into() },
    });
    Ok(MoreFindings { coverage, changes })
}

impl From<Mutations> for Changes {
    fn from(found: Mutations) -> Self {
        let Mutations { noticed, survivors, without_effect, not_decided, not_tried } = found;
        let not_noticed = survivors.into_iter().map(|survivor| UnnoticedChange {
            line: survivor.line,
            change: survivor.change,
            witness: survivor.witness,
        });
        let not_noticed = not_noticed.collect();
        Self { skipped: None, noticed, without_effect, not_decided, not_tried, not_noticed }
    }
}

impl MoreFindings {
    pub(super) fn text(&self) -> String {
        let coverage = self.coverage.as_ref().map(coverage_text).unwrap_or_default();
        let changes = self.changes.as_ref().map(changes_text).unwrap_or_default();
        format!("{coverage}{changes}")
    }
}

fn coverage_text(coverage: &Coverage) -> String {
    let mut grid = Grid::new(&["line", "rule", "tests", "its packets in tests"]);
    for rule in &coverage.rules {
        let line = rule.line.to_string();
        grid.row(vec![line, rule.rule.clone(), rule.tests.to_string(), rule.packets.word().to_owned()]);
    }
    let reached = coverage.rules.iter().filter(|rule| rule.tests > 0).count();
    let whole = coverage.rules.iter().filter(|rule| rule.packets == TestedPart::All).count();
    let mut out = format!("\n{}", grid.text());
    // Strings take text.
    let _ = writeln!(
        out,
        "\ntests reach {reached} of {}, and all packets of {whole}",
        counted(coverage.rules.len() as u64, "rule", "rules")
    );
    if let Some(traffic) = coverage.traffic {
        let packets = counted(traffic.packets, "packet", "packets");
        let _ = writeln!(
            out,
            "of {packets} in the capture tests are about {} ({})",
            number(traffic.tested),
            percent_of(traffic.tested, traffic.packets)
        );
    }
    let proposals: Vec<&String> = coverage.rules.iter().filter_map(|rule| rule.proposal.as_ref()).collect();
    if !proposals.is_empty() {
        let _ = writeln!(
            out,
            "\n# Tests of the other rules. They record what the policy does now, not what it should do: read each before you add it."
        );
        proposals.iter().for_each(|proposal| {
            let _ = write!(out, "\n{proposal}");
        });
    }
    out
}

fn changes_text(changes: &Changes) -> String {
    if let Some(why) = changes.skipped {
        return format!("\nno rule was changed: {why}\n");
    }
    let mut out = String::new();
    if !changes.not_noticed.is_empty() {
        out.push_str("\nchanges that no test notices, each with a packet that it treats differently\n");
    }
    for UnnoticedChange { line, change, witness } in &changes.not_noticed {
        let _ = writeln!(out, "  line {line}: {change}\n      {}", witness);
    }
    let missed = changes.not_noticed.len();
    let _ = writeln!(
        out,
        "\n{} with an effect, {} noticed, {missed} not",
        counted((changes.noticed + missed) as u64, "change", "changes"),
        changes.noticed
    );
    for (count, why) in [
        (changes.not_decided, "were not noticed, and it is not known whether they have an effect"),
        (changes.not_tried, "were not tried for lack of time (--mutate-time)"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "{count} more {why}");
        }
    }
    out
}

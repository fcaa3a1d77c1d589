//! Which rules of two policies a device decides elsewhere: `diff --profile` and `diff --workers`. Rules are the
//! same if their names are.

use std::collections::{BTreeMap, BTreeSet};

use compiler::{Decided, Report, RuleReport};
use device_model::DeviceProfile;
use policy::Policy;
use serde::Serialize;

use crate::table::Grid;

/// Described in docs/commands.md.
#[derive(Serialize)]
pub(super) struct Placement {
    profile: String,
    workers: usize,
    before: Whole,
    after: Whole,
    rules: Vec<Moved>,
}

/// Whether the device can run a policy.
#[derive(PartialEq, Eq, Serialize)]
struct Whole {
    ok: bool,
    /// Why not, beside impossible rules.
    obstacles: Vec<String>,
}

/// A rule that is decided elsewhere, or that only one policy has.
#[derive(Serialize)]
struct Moved {
    rule: String,
    /// `null`: the policy has no such rule.
    before: Option<Placed>,
    after: Option<Placed>,
}

#[derive(Serialize)]
struct Placed {
    decided: Decided,
    reason: Option<String>,
}

impl Placement {
    pub(super) fn of(old: &Policy, new: &Policy, profile: &DeviceProfile, workers: usize) -> Self {
        let [before, after] = [old, new].map(|policy| compiler::report(policy, profile, workers, None));
        Self {
            profile: profile.name.clone(),
            workers,
            rules: moved(&before, &after),
            before: Whole::of(&before),
            after: Whole::of(&after),
        }
    }

    /// Whether there is no difference.
    pub(super) fn is_same(&self) -> bool {
        self.rules.is_empty() && self.before == self.after
    }

    pub(super) fn text(&self) -> String {
        let workers = if self.workers == 1 { "worker" } else { "workers" };
        let mut out = format!("\non {} with {} {workers}:", self.profile, self.workers);
        if self.is_same() {
            out.push_str(" every rule is decided where it was\n");
            return out;
        }
        out.push('\n');
        for (side, whole) in [("before", &self.before), ("after", &self.after)] {
            if !whole.ok {
                let obstacles = whole.obstacles.iter().map(|obstacle| format!(": {obstacle}"));
                out.push_str(&format!("{side}: impossible{}\n", obstacles.collect::<String>()));
            }
        }
        let mut grid = Grid::new(&["rule", "before", "after", "why"]);
        for moved in &self.rules {
            let reason = moved.after.as_ref().and_then(|placed| placed.reason.clone());
            let placed =
                |placed: &Option<Placed>| placed.as_ref().map_or("-", |placed| words(placed.decided));
            grid.row(vec![
                moved.rule.clone(),
                placed(&moved.before).to_owned(),
                placed(&moved.after).to_owned(),
                reason.unwrap_or_default(),
            ]);
        }
        if !self.rules.is_empty() {
            out.push_str(&grid.text());
        }
        out
    }
}

impl Whole {
    fn of(report: &Report) -> Self {
        let obstacles =
            report.obstacles.iter().map(|obstacle| format!("{}: {}", obstacle.reason, obstacle.limit));
        Self { ok: report.program.is_some(), obstacles: obstacles.collect() }
    }
}

fn words(decided: Decided) -> &'static str {
    match decided {
        Decided::Hardware => "hardware",
        Decided::PartlyHybrid => "partly hybrid",
        Decided::Hybrid => "hybrid",
        Decided::Impossible => "impossible",
        Decided::Unknown => "not known",
    }
}

/// In the order of the new policy; rules that are gone come last.
fn moved(before: &Report, after: &Report) -> Vec<Moved> {
    let old: BTreeMap<&str, &RuleReport> =
        before.rules.iter().map(|rule| (rule.name.as_str(), rule)).collect();
    let new: BTreeSet<&str> = after.rules.iter().map(|rule| rule.name.as_str()).collect();
    let placed = |rule: &RuleReport| Placed { decided: rule.decided, reason: rule.reason.clone() };
    let changed = after.rules.iter().filter_map(|rule| {
        let before = old.get(rule.name.as_str());
        let is_changed = before.is_none_or(|before| before.decided != rule.decided);
        is_changed.then(|| Moved {
            rule: rule.name.clone(),
            before: before.map(|before| placed(before)),
            after: Some(placed(rule)),
        })
    });
    let gone = before.rules.iter().filter(|rule| !new.contains(rule.name.as_str())).map(|rule| Moved {
        rule: rule.name.clone(),
        before: Some(placed(rule)),
        after: None,
    });
    changed.chain(gone).collect()
}

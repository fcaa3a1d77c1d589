//! The traffic that two policies treat differently, as the JSON of `steerd diff` and of the API.

pub(crate) mod sinks;

use std::time::Duration;

use analysis::{Change, Detail, Diff, GroupChange, OpenPair, PairSummary};
use policy::Policy;
use policy::policy::Direction;
use serde::Serialize;

use crate::policy_file;
use crate::policy_file::descriptions::{self, DescriptionChange};
use crate::terminal::output::Versioned;
use sinks::SinkChange;

/// The answer, with where rules are decided as `P`. Described in docs/reference/commands/diff.md.
#[derive(Serialize)]
pub(crate) struct Report<'d, P> {
    old: String,
    new: String,
    /// `null`: not decided.
    equal: Option<bool>,
    groups: &'d [GroupChange],
    sinks: &'d [SinkChange],
    /// They do not count for `equal`.
    descriptions: &'d [DescriptionChange],
    /// `null`: neither a device model nor a number of workers was given.
    placement: Option<&'d P>,
    pairs: Vec<Directed<&'d PairSummary>>,
    regions: Vec<Directed<&'d Change>>,
    not_decided: usize,
    open: Vec<Directed<&'d OpenPair>>,
    stopped: Option<&'d str>,
}

#[derive(Serialize)]
struct Directed<T> {
    direction: &'static str,
    #[serde(flatten)]
    what: T,
}

impl<'d, P> Report<'d, P> {
    pub(crate) fn of(
        [old, new]: [String; 2],
        found: &'d Diff,
        groups: &'d [GroupChange],
        sinks: &'d [SinkChange],
        descriptions: &'d [DescriptionChange],
        placement: Option<&'d P>,
    ) -> Self {
        Self {
            old,
            new,
            groups,
            sinks,
            descriptions,
            placement,
            equal: match (found.pairs.is_empty() && sinks.is_empty(), found.is_whole()) {
                (false, _) => Some(false),
                (true, true) => Some(true),
                (true, false) => None,
            },
            pairs: found.pairs.iter().map(|what| Directed { direction: way(what.direction), what }).collect(),
            regions: found
                .regions
                .iter()
                .map(|what| Directed { direction: way(what.direction), what })
                .collect(),
            not_decided: found.not_decided,
            open: found.open.iter().map(|what| Directed { direction: way(what.direction), what }).collect(),
            stopped: found.stopped.as_deref(),
        }
    }
}

/// The longest comparison for a client of the API: any reader may ask for one, and it takes a core.
const API_TIME: Duration = Duration::from_secs(5);

/// The object of `--format json`, without placement.
pub(crate) fn json(names: [String; 2], old: &Policy, new: &Policy, all: bool) -> serde_json::Result<Vec<u8>> {
    let detail = Detail { time: Some(API_TIME), ..detail(all) };
    let found = analysis::diff_in_detail(old, new, detail, &mut |_| {});
    let workers = policy_file::workers_named(old).max(policy_file::workers_named(new));
    let groups = analysis::changed_groups(old, new, workers);
    let sinks = sinks::changes(old, new);
    let descriptions = descriptions::changes(old, new);
    let report = Report::<()>::of(names, &found, &groups, &sinks, &descriptions, None);
    serde_json::to_vec(&Versioned::new(&report))
}

/// How much of the differences is listed.
pub(crate) fn detail(all: bool) -> Detail {
    if all { Detail::FULL } else { Detail::SHORT }
}

/// The direction as a key of JSON.
pub(crate) const fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

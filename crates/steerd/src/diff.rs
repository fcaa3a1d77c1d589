//! `steerd diff OLD NEW`: which traffic changes hands between two policies, as regions of packets in the
//! language with a packet of each. Texts are not compared, devices not asked. The exit code is diff(1)'s.

use std::fmt::Write as _;

use policy::Policy;
use policy::policy::Direction;
use policy::space::{self, Change, Diff, Effect, PairSummary};
use serde::Serialize;

use crate::cli::{DiffArgs, Format};
use crate::error::Error;
use crate::paint::{Paint, Tone};
use crate::progress::Progress;
use crate::settings::PolicySource;
use crate::table::{Grid, counted};
use crate::{Answer, describe, output, policy_file, target};

/// Described in docs/commands.md.
#[derive(Serialize)]
struct Report<'d> {
    old: String,
    new: String,
    /// `null`: not found out.
    equal: Option<bool>,
    pairs: &'d [PairSummary],
    regions: Vec<Region<'d>>,
    not_decided: usize,
}

#[derive(Serialize)]
struct Region<'d> {
    direction: &'static str,
    #[serde(flatten)]
    change: &'d Change,
}

pub(crate) fn run(args: &DiffArgs) -> Result<Answer, Error> {
    compare(args).map_err(|error| match error {
        error @ (Error::Policy { .. } | Error::NotDecided(_)) => Error::Compare(Box::new(error)),
        other => other,
    })
}

fn compare(args: &DiffArgs) -> Result<Answer, Error> {
    let source = |path: &std::path::PathBuf| {
        PolicySource::file(path.clone(), args.variables.set.iter().cloned().collect())
    };
    let sources = [source(&args.old), source(&args.new)];
    // Both are read before either is complained of: all problems at once.
    let [old, new] = sources.each_ref().map(read);
    let (old, new) = (old?, new?);
    let found = {
        let mut progress = Progress::new();
        space::diff(&old, &new, &mut |at| progress.show(at))
    };
    let [old, new] = sources.map(|source| source.to_string());
    match args.format {
        Format::Json => output::print_json(&Report {
            equal: match (found.pairs.is_empty(), found.not_decided) {
                (false, _) => Some(false),
                (true, 0) => Some(true),
                (true, _) => None,
            },
            old,
            new,
            pairs: &found.pairs,
            regions: found.regions.iter().map(|change| Region { direction: way(change), change }).collect(),
            not_decided: found.not_decided,
        })?,
        Format::Text => output::print(&text(&old, &new, &found, Paint::stdout()))?,
    }
    match (found.pairs.is_empty(), found.not_decided) {
        (false, _) => Ok(Answer::No),
        (true, 0) => Ok(Answer::Yes),
        (true, open) => {
            let most = space::MAX_COMPARISONS;
            Err(Error::NotDecided(format!(
                "{open} pairs of rules would take more than {most} comparisons of regions each"
            )))
        }
    }
}

fn read(source: &PolicySource) -> Result<Policy, Error> {
    policy_file::load(source).map(|(policy, _)| policy).map_err(|diagnostics| {
        output::print_diagnostics(&diagnostics);
        target::policy_error(source, &diagnostics)
    })
}

fn way(change: &Change) -> &'static str {
    match change.direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

fn text(old: &str, new: &str, found: &Diff, paint: Paint) -> String {
    if found.pairs.is_empty() {
        return match found.not_decided {
            0 => format!("{old} and {new} treat every packet alike\n"),
            _ => String::new(),
        };
    }
    let mut out = format!("{}\n{}\n", paint.text(Tone::Bad, &format!("--- {old}")), {
        paint.text(Tone::Good, &format!("+++ {new}"))
    });
    let mut last: Option<(&Effect, &Effect)> = None;
    for change in &found.regions {
        let pair = (&change.before, &change.after);
        if last != Some(pair) {
            let head = format!("{} => {}", effect(&change.before), effect(&change.after));
            let _ = writeln!(out, "\n{}", paint.text(Tone::Head, &head));
            last = Some(pair);
        }
        let sent = if change.direction == Direction::Egress { "sent: " } else { "" };
        let _ = writeln!(out, "  {sent}{}", change.region);
        let example = format!("e.g. {}", describe::witness(&change.witness));
        let _ = writeln!(out, "      {}", paint.text(Tone::Aside, &example));
    }
    let mut grid = Grid::new(&["before", "after", "regions"]);
    for pair in &found.pairs {
        grid.row(vec![effect(&pair.before), effect(&pair.after), regions(pair)]);
    }
    let _ = write!(out, "\n{}", grid.text());
    if found.not_decided > 0 {
        let _ = writeln!(
            out,
            "\nof {} not all was found out in time",
            counted(found.not_decided as u64, "pair of rules", "pairs of rules")
        );
    }
    out
}

/// No more are described than these limits; that there are more is said, not how many.
fn regions(pair: &PairSummary) -> String {
    let is_cut = pair.regions >= space::MAX_REGIONS_PER_PAIR || pair.regions == 0;
    if is_cut { format!("{}+", pair.regions) } else { pair.regions.to_string() }
}

/// `web: deliver to web`
fn effect(effect: &Effect) -> String {
    match effect.name.as_str() {
        "" => effect.action.clone(),
        name => format!("{name}: {}", effect.action),
    }
}

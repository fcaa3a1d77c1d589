//! Exact sets of packets: which rules shadow which, what two policies do differently, each with a packet that
//! shows it. Nothing here is sampled or guessed; what takes too long is said not to be decided.
//!
//! The way through: `field` and `kind` say what packets there are, `axes` cuts the values that matter into
//! segments and turns each match into `cell`s, `search` finds packets that one cell has and others have not,
//! and `analysis` and `diff` ask it. `witness` makes packets into frames and `region` sets of packets into
//! matches. Nothing takes without bound: every limit is a named constant, and what strikes one says so. Pure; only `steerd check` and `steerd diff` call it, never the packet path.
//!
//! ```
//! use policy::{NoFiles, Source};
//!
//! let policy = |port| {
//!     let text = format!("version = 1\ndefault = 'kernel'\n\
//!         [[rules]]\nname = 'dns'\nmatch = {{ dst_port = {port} }}\naction = 'drop'\n");
//!     policy::parse(&Source::new("dns.toml", text), &NoFiles).map(|(policy, _)| policy)
//! };
//! let diff = analysis::diff(&policy(53)?, &policy(54)?, &mut |_| {});
//! // Port 54 is dropped from now on, port 53 no longer; each change comes with a frame that shows it.
//! assert_eq!(diff.pairs.len(), 2);
//! let shown = diff.regions[0].witness.fields();
//! assert!(shown.contains("dst_port = 54"), "{shown}");
//! # Ok::<(), policy::Diagnostics>(())
//! ```
#![forbid(unsafe_code)]

mod analysis;
mod axes;
mod cell;
mod common;
mod diff;
mod domain;
mod field;
mod groups;
mod grow;
mod index;
mod kind;
mod lane;
mod mac;
mod pairs;
mod region;
mod search;
mod set;
mod tell;
mod terms;
mod text;
mod witness;

pub use analysis::{Analysis, MAX_LISTED_PAIRS, Need, Pair, Pairs, Reach, Relation, RuleAnalysis, analyse};
pub use axes::MAX_CELLS;
pub use diff::{Change, Detail, Diff, Effect, Names, OpenPair, PairSummary, diff, diff_in_detail};
pub use diff::{MAX_COUNTED_REGIONS, MAX_NAMED_OPEN, MAX_NAMED_RULES, MAX_PAIRS, MAX_TOLD_VALUES};
pub use groups::{GroupChange, KeyChange, ShareChange, changed_groups};
pub use region::Region;
pub use search::{MAX_COMPARISONS, MAX_COMPARISONS_IN_ALL};
pub use text::match_text;

/// How far a long question has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being looked at: `rules` or `changes`.
    pub stage: &'static str,
    /// How many of them are done.
    pub done: usize,
    /// How many there are.
    pub total: usize,
}

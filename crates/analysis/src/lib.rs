//! Exact analysis of policies: which rules shadow which, which packets two policies treat differently, and
//! which packets of the host a program gives to workers (`protect`, `lost`), each with an example packet.
//! Nothing is sampled or guessed; a question that exceeds its limit is reported as not decided.
//!
//! A policy's matches are converted (`conditions`) to products of sets (`product`) over the constrained
//! fields (`dimensions`) and header stacks (`stack_set`). `search` decides whether a product has packets
//! outside of others; `shadowing` and `diff` are built on that. `region` and `match_text` write products in
//! the policy language. Every limit is a named constant. For `steerd check`, `steerd diff`, start and reload;
//! never used on the packet path.
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
//! // Port 54 is dropped now, port 53 no longer.
//! assert_eq!(diff.pairs.len(), 2);
//! let shown = diff.regions[0].witness.to_string();
//! assert!(shown.contains(":54 tcp"), "{shown}");
//! # Ok::<(), policy::Diagnostics>(())
//! ```
#![forbid(unsafe_code)]

mod conditions;
mod cut_headers;
mod deciders;
mod diff;
mod dimensions;
mod interval_set;
mod lost;
mod mac_layout;
mod match_text;
mod product;
mod products;
mod protect;
mod region;
mod rule_list;
mod runtime_protection;
mod search;
mod shadowing;
mod stack_set;
mod suspects;

pub use deciders::{Deciders, DecidingRules, EveryPacket};
pub use diff::{
    Change, Detail, Diff, Effect, GroupChange, KeyChange, MAX_COUNTED_REGIONS, MAX_NAMED_OPEN,
    MAX_NAMED_RULES, MAX_PAIRS, MAX_SHOWN_VALUES, MetRules, Names, OpenPair, PacketComparison, PairSummary,
    ShareChange, changed_groups, diff, diff_in_detail,
};
pub use lost::{LostException, LostExceptions, OpenException, lost_exceptions};
pub use match_text::match_text;
pub use products::MAX_PRODUCTS;
pub use protect::{
    Missed, Protected, UnreachableKind, forms_of_workers, host_sees, protection, protection_from_rule,
    protection_on_device, unreachable_kinds,
};
pub use region::Region;
pub use runtime_protection::RuntimeProtection;
pub use search::{MAX_COMPARISONS, MAX_COMPARISONS_IN_ALL};
pub use shadowing::{Analysis, MAX_LISTED_PAIRS, Need, Pair, Pairs, Reach, Relation, RuleAnalysis, analyse};

/// The progress of a long analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The stage of the analysis: `rules` or `changes`.
    pub stage: &'static str,
    /// The number done.
    pub done: usize,
    /// The total number.
    pub total: usize,
}

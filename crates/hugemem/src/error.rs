//! The crate's one error type.

use crate::Warning;
use crate::warning::Size;

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not the name of a page kind.
    #[error("`{text}` is not a kind of page: write huge_1g, huge_2m, transparent or plain")]
    PageKind {
        /// What was given.
        text: String,
    },
    /// A size of 0 or beyond [`crate::MAX_ARENA_BYTES`].
    #[error("arena {label}: a size of {bytes} bytes is not between 1 and {}", crate::MAX_ARENA_BYTES)]
    Size {
        /// Who the arena was for.
        label: String,
        /// The size that was asked for.
        bytes: usize,
    },
    /// No page kind was allowed.
    #[error("arena {label}: the list of page kinds is empty; `plain` is always there to be tried last")]
    NoPageKind {
        /// Who the arena was for.
        label: String,
    },
    /// Every allowed page kind was refused.
    #[error("arena {label}: none of the allowed page kinds gives {}:{}", Size(*.bytes), listed(.refused))]
    Map {
        /// Who the arena was for.
        label: String,
        /// The size that was asked for.
        bytes: usize,
        /// Each refusal with its remedy and what the kernel said, in the order tried.
        refused: Vec<Warning>,
    },
}

fn listed(warnings: &[Warning]) -> String {
    warnings.iter().map(|warning| format!("\n  {warning}")).collect()
}

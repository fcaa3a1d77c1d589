//! The crate's one error type.

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not the name of a page kind.
    #[error("`{text}` is not a kind of page: write huge_1g, huge_2m, transparent or plain")]
    PageKind {
        /// What was given.
        text: String,
    },
}

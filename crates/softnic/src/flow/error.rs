//! Why a flow is not taken. The provider makes an errno of it.

use super::FlowId;

/// Why a flow was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FlowError {
    /// The id is in use.
    #[error("flow {0:?} is already in the table")]
    DuplicateId(FlowId),
    /// No frame can match: two specs ask for different values of one field.
    #[error("two specs of the flow contradict each other")]
    Contradiction,
    /// DONT_TRAP has no meaning for this kind.
    #[error("DONT_TRAP cannot be combined with this kind of flow")]
    DontTrapKind,
    /// The same match exists at the same priority with another fate (drop against delivery) or, where that matters, tag.
    #[error("flow {0:?} has the same match and priority, and one of the two drops or has another tag")]
    Conflict(FlowId),
    /// The device that this one stands for has no entry left for this mask at this priority.
    #[error("the device has no room for another match with this mask at this priority")]
    NoSpace,
    /// A limit of the table.
    #[error("the table already holds {limit} {what}")]
    Full {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

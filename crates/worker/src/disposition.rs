//! How a worker disposed of a packet that a rule decides.

use program::Verdict;

/// How a packet was disposed of, without the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Disposition {
    /// Delivered to a group.
    Delivered,
    /// Dropped by a rule, in software.
    Dropped,
    /// Left to the kernel by the policy, but received by the worker, which cannot return it: lost.
    LostException,
    /// Left to the kernel by the policy, received by the worker, and handed to the sink that returns it.
    Returned,
    /// A copy of a packet that its rule does not match, discarded.
    Filtered,
    /// Beyond the limit of its rule, dropped.
    RateLimited,
    /// Not in the sample of its rule, dropped.
    NotSampled,
}

impl Disposition {
    /// All of them, in the order of their indices.
    pub const ALL: [Self; 7] = [
        Self::Delivered,
        Self::Dropped,
        Self::LostException,
        Self::Returned,
        Self::Filtered,
        Self::RateLimited,
        Self::NotSampled,
    ];

    /// The name of the reason as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Dropped => "dropped",
            Self::LostException => "lost_exception",
            Self::Returned => "returned",
            Self::Filtered => "filtered",
            Self::RateLimited => "rate_limited",
            Self::NotSampled => "not_sampled",
        }
    }
}

impl Disposition {
    /// `returns`: whether a sink returns packets to the kernel.
    pub(crate) fn of(verdict: Verdict, returns: bool) -> Self {
        match verdict {
            Verdict::Deliver(_) => Self::Delivered,
            Verdict::Drop => Self::Dropped,
            Verdict::Kernel if returns => Self::Returned,
            Verdict::Kernel => Self::LostException,
            Verdict::Filtered => Self::Filtered,
        }
    }
}

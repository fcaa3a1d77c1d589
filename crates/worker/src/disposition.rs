//! How a worker disposed of a packet that a rule decides.

use program::Verdict;

use crate::labels::labels;

labels! {
    /// How a packet was disposed of, without the destination.
    #[derive(PartialOrd, Ord)]
    pub enum Disposition {
        /// Delivered to a group.
        Delivered = "delivered",
        /// Dropped by a rule, in software.
        Dropped = "dropped",
        /// Left to the kernel by the policy, but received by the worker, which cannot return it: lost.
        LostException = "lost_exception",
        /// Left to the kernel by the policy, received by the worker, and handed to the sink that returns it.
        Returned = "returned",
        /// A copy of a packet that its rule does not match, discarded.
        Filtered = "filtered",
        /// Beyond the limit of its rule, dropped.
        RateLimited = "rate_limited",
        /// Beyond a limit that its source shared with others, because the rule's table of sources was full;
        /// dropped.
        SourceOverflow = "source_overflow",
        /// Not in the sample of its rule, dropped.
        NotSampled = "not_sampled",
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

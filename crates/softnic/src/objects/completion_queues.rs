//! Completion queues.

use crate::errno::{EINVAL, EOPNOTSUPP, Verb};
use crate::personality::CompletionRules;

/// `IBV_CQ_ATTR_MODERATE`, the only attribute there is.
const ATTR_MODERATE: u32 = 1;

/// Checks a change of moderation.
pub(crate) fn check_moderation(mask: u32, count: u16, period_us: u16, rules: &CompletionRules) -> Verb<()> {
    // The kernel (ib_uverbs_ex_modify_cq): nothing to do is EINVAL, anything unknown EOPNOTSUPP.
    if mask == 0 {
        return Err(EINVAL);
    }
    if mask != ATTR_MODERATE {
        return Err(EOPNOTSUPP);
    }
    if count > rules.max_moderation_count || period_us > rules.max_moderation_period_us {
        return Err(EINVAL);
    }
    Ok(())
}

//! The workers of a policy: how many it names, and policies that have none.

use policy::policy::Workers;
use policy::{Diagnostic, Policy};

/// The number of workers that the policy needs: its highest worker number plus one.
#[must_use]
pub fn workers_named(policy: &Policy) -> usize {
    let highest = |workers: &Workers| match workers {
        Workers::All => 0,
        Workers::Listed(shares) => shares.iter().map(|share| share.worker as usize).max().unwrap_or(0),
    };
    policy.groups.iter().map(|group| highest(&group.workers)).max().unwrap_or(0) + 1
}

/// The error that a policy which carves queues has where there are workers.
#[must_use]
pub fn without_workers(policy: &Policy) -> Option<Diagnostic> {
    let group = policy.groups.iter().find(|group| group.has_queues)?;
    let message = format!("the group `{}` has queues of an interface, and here are workers", group.name);
    let hint = "`steerd run --interface NAME` and `steerd check` take such a policy";
    Some(group.place.error(message, "this group").hint(hint))
}

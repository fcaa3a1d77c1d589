//! The objects of the device, as every front end makes, changes and removes them: the checks of kernel and
//! driver, the counts of users, and what an object takes with it when it goes.
//!
//! A front end has its own handles and its own formats; these functions know slots of [`State`] alone. They
//! either carry out all of a request or leave everything as it was.
//!
//! A slot does not show which context the object belongs to: a front end whose clients name objects by
//! numbers asks `is_owned` before it changes one.

pub mod attributes;
pub mod channels;
pub mod completion_queues;
pub mod contexts;
pub mod counters;
pub mod domains;
pub(crate) mod flow_attr;
pub mod flows;
pub mod queue_pairs;
pub mod regions;
pub mod rss;
pub mod tables;
pub mod work_queues;

use rustix::thread::{CapabilitySet, capabilities};

pub use crate::state::State;

/// Whether the calling thread has a privilege, like the kernel's `capable`.
#[must_use]
pub fn has_capability(wanted: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

#[cfg(test)]
mod tests;

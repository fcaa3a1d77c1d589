//! What the calling thread is privileged to do, as the kernel's `capable` has it.

pub(crate) use rustix::thread::CapabilitySet;
use rustix::thread::capabilities;

pub(crate) fn has_capability(wanted: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

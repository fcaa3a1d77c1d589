//! When memory that the program no longer reaches may be written again.
//!
//! XDP programs run inside an RCU read-side section: with softirqs disabled in the receive path of a driver,
//! under `rcu_read_lock` in generic mode and in `bpf_test_run`. A grace period of RCU that begins after a
//! reference was replaced ends only when every program that may have read the old reference has ended; what
//! starts later reads the new one.
//!
//! The kernel waits for such a grace period when user space replaces a map inside a map, with one processor
//! and with many, with `nohz_full` and with PREEMPT_RT: `maybe_wait_bpf_programs` in kernel/bpf/syscall.c
//! calls `synchronize_rcu` so that "userspace, when we return to it, knows that all programs that could be
//! running use the new map value" (since Linux 4.20). [`KernelGrace`] has two maps for this alone.
//! membarrier(2) is no substitute: it refuses under `nohz_full`, and returns at once where there is one
//! processor. A wait takes some 11 ms (Linux 6.18, two processors that are in use).

use std::io;

use crate::map_in_map::OuterMap;

/// How to wait for the end of programs that run.
pub(crate) trait GracePeriod: Send {
    /// Waits until every program that ran when it was called has ended; `false` if that cannot be known.
    fn wait(&mut self) -> bool;
}

/// The kernel's grace periods.
#[derive(Debug)]
pub(crate) struct KernelGrace {
    outer: OuterMap,
    has_noted_failure: bool,
}

impl KernelGrace {
    /// Makes the maps, and waits once.
    ///
    /// # Errors
    /// The kernel has no maps in maps, or refuses them.
    pub(crate) fn new() -> io::Result<Self> {
        let outer = OuterMap::new()?;
        outer.replace_inner()?;
        Ok(Self { outer, has_noted_failure: false })
    }
}

impl GracePeriod for KernelGrace {
    fn wait(&mut self) -> bool {
        let Err(error) = self.outer.replace_inner() else { return true };
        if !self.has_noted_failure {
            self.has_noted_failure = true;
            tracing::error!(%error, "the kernel refuses to wait for XDP programs: memory of claims is not used again");
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use test_support::not_run;

    use super::*;

    #[test]
    fn the_kernel_waits_as_often_as_it_is_asked() {
        let mut grace = match KernelGrace::new() {
            Ok(grace) => grace,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                return not_run("grace periods", &error.to_string());
            }
            Err(error) => panic!("{error}"),
        };
        assert!((0..10).all(|_| grace.wait()));
    }
}

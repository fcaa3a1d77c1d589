//! When memory that the program no longer reaches may be written again.
//!
//! XDP programs run inside an RCU read-side section (`bpf_prog_run_xdp` in the receive path of every driver,
//! `netif_receive_generic_xdp`, `bpf_test_run`). A grace period of RCU that begins after a reference was
//! replaced ends only when every program that may have read the old reference has ended; what starts later
//! reads the new one.
//!
//! With a single processor membarrier(2) returns at once, as on it no program can run while this thread does:
//! programs run with softirqs disabled, and so are not preempted. That does not hold for a kernel with
//! PREEMPT_RT. With `nohz_full` membarrier(2) fails: then nothing is ever reused.

use crate::memory::wait_for_programs;

/// How to wait for the end of programs that run.
pub(crate) trait GracePeriod: Send {
    /// Waits until every program that ran when it was called has ended; `false` if that cannot be known.
    fn wait(&mut self) -> bool;
}

/// The kernel's grace periods.
#[derive(Debug, Default)]
pub(crate) struct KernelGrace;

impl GracePeriod for KernelGrace {
    fn wait(&mut self) -> bool {
        wait_for_programs().is_ok()
    }
}

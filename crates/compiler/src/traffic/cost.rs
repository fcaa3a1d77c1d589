//! The time that a worker takes for a packet, by how the packet is decided. The numbers were measured on the
//! software NIC, on two cores of an AMD EPYC; no NIC was measured. They compare policies with one another and
//! do not predict the rate of a machine, for which `steerd run --stage-times` measures.

use program::{Class, Decide};

/// Picoseconds, so that sums are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CostModel {
    /// To take a packet from the completion queue, find its class, count it and post its buffer again.
    /// `make bench ARGS='--bench neighbours -- one-core'`, "worker alone".
    receive: u64,
    /// To parse a packet of a hybrid class. This and the following numbers are printed by
    /// `cargo test --release -p compiler --test it -- --ignored --nocapture costs_of_decisions`.
    parse: u64,
    /// To compare a packet with one rule, in a class of few rules.
    compare: u64,
    /// To find the rule of a packet by an index, in a class of many rules.
    search: u64,
}

const MEASURED: CostModel = CostModel { receive: 10_600, parse: 14_400, compare: 9_200, search: 55_000 };

const PS_PER_NS: f64 = 1e3;

/// The time that a worker takes for a packet of a class, in picoseconds. `comparisons` is the number of rules
/// that the packet is compared with, if it is known. Packets without a class reach no worker.
pub(crate) fn worker_ps(class: Option<&Class>, comparisons: Option<u64>) -> u64 {
    let CostModel { receive, parse, compare, search } = MEASURED;
    match class {
        None => 0,
        Some(Class { decide: Decide::Exact(_), .. }) => receive,
        Some(class) if class.has_index() => receive + parse + search,
        Some(_) => receive + parse + compare * comparisons.unwrap_or(0),
    }
}

/// The time of a worker that is saved if the device decides a packet instead of a class of many rules, in
/// picoseconds. A worker also receives packets that the device steers to it.
pub(crate) fn saved_ps(is_dropped: bool) -> u64 {
    let CostModel { receive, parse, search, .. } = MEASURED;
    parse + search + if is_dropped { receive } else { 0 }
}

/// The seconds for which a policy is expected to stay on a device. It is the exchange rate between time to
/// install and time per packet: while a policy is installed, its packets count as if workers decided all of
/// them, and that time is spread over the packets of so many seconds.
const POLICY_STAYS_SECONDS: f64 = 60.0;

/// The time per packet, in picoseconds, that so many seconds to install are worth: some 1.2 ns for each.
pub(crate) fn install_ps(seconds: f64) -> f64 {
    seconds * saved_ps(false) as f64 / POLICY_STAYS_SECONDS
}

/// The mean time per packet in nanoseconds; 0 if there are no packets.
pub(crate) fn mean_ns(ps: u64, packets: u64) -> f64 {
    ps as f64 / PS_PER_NS / packets.max(1) as f64
}

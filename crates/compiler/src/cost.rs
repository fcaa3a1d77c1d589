//! What a packet costs the worker that receives it, by how it is decided. The numbers were measured on the software NIC, on two
//! cores of an AMD EPYC; no NIC was measured. They compare policies with one another and do not predict the rate of a
//! machine, for which `steerd run --profile` measures.

use program::{Class, ClassIndex, Decide};

/// Picoseconds, so that sums are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CostModel {
    /// For every packet: to take it from the completion queue, find its class, count it and post its buffer again.
    /// `make bench ARGS='--bench neighbours -- one-core'`, "worker alone".
    receive: u64,
    /// For a packet of a hybrid class, to parse it. This and the following numbers are printed by
    /// `cargo test --release -p compiler --test budgets -- --ignored --nocapture costs_of_decisions`.
    parse: u64,
    /// For each rule that it is compared with, in a class of few rules.
    compare: u64,
    /// To find its rule in a class of many rules, by an index.
    search: u64,
}

const MEASURED: CostModel = CostModel { receive: 10_600, parse: 14_400, compare: 9_200, search: 55_000 };

const PS_PER_NS: f64 = 1e3;

/// The time that a worker takes for a packet of a class, in picoseconds; `comparisons`: with so many rules. Packets without
/// a class reach no worker.
pub(crate) fn worker_ps(class: Option<&Class>, comparisons: Option<u64>) -> u64 {
    let CostModel { receive, parse, compare, search } = MEASURED;
    match class {
        None => 0,
        Some(Class { decide: Decide::Exact(_), .. }) => receive,
        Some(class) if ClassIndex::serves(class) => receive + parse + search,
        Some(_) => receive + parse + compare * comparisons.unwrap_or(0),
    }
}

/// The mean of so many packets in nanoseconds; 0 for none.
pub(crate) fn mean_ns(ps: u64, packets: u64) -> f64 {
    ps as f64 / PS_PER_NS / packets.max(1) as f64
}

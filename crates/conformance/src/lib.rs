//! One suite of cases for `ibv_alloc_parent_domain`, `ibv_create_qp_ex`, `ibv_create_cq_ex`, `ibv_create_flow` and their
//! companions, through the safe crate `verbs`, on whatever device stands behind it.
//!
//! A case is a row of data: verb, field, value, what is expected of each personality and why, and a function that tries
//! it. The binary runs all of them, on a soft NIC or on a device; `steerd-probe`, which `steerd devices --probe` runs, those that disturb
//! nobody ([`probe`]); docs/conformance.md is written from them. What is compared with is worked out in here a second time
//! ([`independent`]), never asked of the crates under test. Nothing here is on a packet path.
#![forbid(unsafe_code)]

/// Ends a case unless the condition holds: the device took what it was given and did something else.
macro_rules! ensure {
    ($condition:expr, $($said:tt)+) => {
        if !$condition {
            return Err($crate::Failure::Differs(format!($($said)+)));
        }
    };
}

/// Opens a batch on a sender.
macro_rules! open {
    ($sender:ident) => {
        match $sender.pair.start_send(&mut $sender.pool) {
            Some(batch) => batch,
            None => return Err(Failure::Differs("no batch could be opened".into())),
        }
    };
}

mod absent;
mod actions;
mod bench;
mod case;
mod completion_fields;
mod completion_reads;
mod consistency;
mod counters;
mod create_cq_ex;
mod create_flags;
mod create_flow;
mod create_qp_ex;
mod doc;
mod events;
mod expected;
mod filters;
pub mod independent;
mod ip_filters;
mod open_masks;
mod order;
mod parent_domain;
mod posting;
mod receiver;
mod report;
mod rss;
mod segments;
mod send_operations;
mod sender;
mod sending;
pub mod soft;
mod tunnels;
mod work_queue;

pub use absent::{ABSENT, Absent};
pub use bench::{Bench, Peer};
pub use case::{Case, Failure, Needs, Outcome, Verb};
pub use doc::markdown;
pub use expected::{Answer, Expected};
pub use report::{Report, Row, Verdict, judge, probe, run};

/// Every case, in the order in which they are listed.
pub fn cases() -> Vec<Case> {
    let families: [fn() -> Vec<Case>; 19] = [
        parent_domain::cases,
        create_qp_ex::cases,
        send_operations::cases,
        sending::cases,
        segments::cases,
        posting::cases,
        rss::cases,
        work_queue::cases,
        create_cq_ex::cases,
        completion_fields::cases,
        completion_reads::cases,
        events::cases,
        create_flow::cases,
        order::cases,
        consistency::cases,
        filters::cases,
        tunnels::cases,
        open_masks::cases,
        actions::cases,
    ];
    families.iter().flat_map(|family| family()).chain(counters::cases()).collect()
}

//! One suite of cases for `ibv_alloc_parent_domain`, `ibv_create_qp_ex`, `ibv_create_cq_ex`,
//! `ibv_create_flow` and their companions, through the safe crate `verbs`, on a soft NIC or on a hardware
//! device.
//!
//! A case is a row of data: verb, field, value, the expected answer of each personality with its source, and
//! a function that tests it. The binary `conformance` runs all cases. `steerd-probe`, which `steerd devices
//! --probe` runs, is limited to those that do not affect other users of the device ([`probe`]).
//! docs/generated/conformance.md is generated from the cases. Expected packets and hashes are computed in
//! this crate ([`independent`]), not by the crates under test.
#![forbid(unsafe_code)]
#![allow(clippy::too_many_lines, reason = "the long functions are tables, a row per case")]

/// Fails a case unless the condition holds: the device accepted the request and did something else.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Failure::Differs(format!($($message)+)));
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

mod actions;
mod bench;
mod case;
mod completion_reads;
mod consistency;
mod counters;
mod create_cq_ex;
mod create_flow;
mod create_qp_ex;
mod doc;
mod endpoints;
mod events;
mod filters;
pub mod independent;
pub mod libmlx5;
pub mod link;
pub mod model;
mod model_file;
mod open_masks;
mod order;
pub mod origin;
pub mod packet_peer;
mod parent_domain;
pub mod reach;
mod report;
mod rss;
mod sending;
pub mod soft;
mod tunnels;
mod work_queue;

pub use bench::{Bench, Peer};
pub use case::{Answer, Case, Expected, Failure, Needs, Outcome, Verb};
pub use doc::{ABSENT, Absent, markdown};
pub use report::{Report, Row, Verdict, judge, probe, run};

/// Every case, in the order of reports and of the document.
pub fn cases() -> Vec<Case> {
    let families: [fn() -> Vec<Case>; 19] = [
        parent_domain::cases,
        create_qp_ex::cases,
        create_qp_ex::send_operations,
        sending::cases,
        sending::segmentation,
        sending::posting,
        rss::cases,
        work_queue::cases,
        create_cq_ex::cases,
        create_cq_ex::completion_fields,
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

//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

mod added_rule;
mod budgets;
mod classbench;
mod corpora;
mod covers;
mod deciders;
mod exceptions;
mod explain;
mod few_flows;
mod golden;
mod judge;
mod lost;
mod models;
mod multicast;
mod protected;
mod reference_page;
mod robust;
mod support;
mod tags;
mod weights;

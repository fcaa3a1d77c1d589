//! The integration tests of this crate, one binary: linking each file on its own takes longer than running
//! it.

mod allocations;
mod engine_threads;
mod faults;
mod handover;
mod ports;
mod safe_events;
mod safe_objects;
mod safe_sending;
mod safe_tunnels;
mod sleeping;
mod stalls;
mod verbs_egress;
mod verbs_lifetimes;
mod verbs_objects;
mod verbs_personalities;
mod verbs_sending;
mod verbs_steering;
mod verbs_support;
mod verbs_traffic;
mod waiting;
mod watching;

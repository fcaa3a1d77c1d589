//! The limits of the device, as `ibv_query_device_ex` reports and front ends enforce them.

use wire::MAX_MTU_BYTES;

use crate::ring::MAX_SLOTS;

/// Ports of one device.
pub(crate) const MAX_PORTS: usize = 8;
/// The smallest MTU a port can have: what IPv4 demands of any link.
pub(crate) const MIN_MTU_BYTES: u32 = 68;
/// The MTUs that a port can have.
pub const PORT_MTU_BYTES: std::ops::RangeInclusive<u32> = MIN_MTU_BYTES..=MAX_MTU_BYTES;
/// `IBV_SYSFS_NAME_MAX` without the NUL.
pub(crate) const MAX_NAME_BYTES: usize = 63;

/// Open contexts.
pub(crate) const MAX_CONTEXTS: usize = 1_024;
/// Protection and parent domains.
pub(crate) const MAX_DOMAINS: usize = 65_536;
/// Memory regions.
pub const MAX_REGIONS: usize = 65_536;
/// Completion queues.
pub(crate) const MAX_CQS: usize = 16_384;
/// Entries of a completion queue.
pub(crate) const MAX_CQE: u32 = MAX_SLOTS;
/// Completion vectors. There are no interrupts to spread, so they differ in nothing.
pub(crate) const COMP_VECTORS: u32 = 8;
/// Completion channels of all contexts.
pub(crate) const MAX_CHANNELS: usize = 16_384;
/// Work queues, and receive sides of plain queue pairs.
pub(crate) const MAX_QUEUES: usize = 16_384;
/// Work requests of a queue, whatever the personality allows.
pub(crate) const MAX_WR: u32 = device_model::software::MAX_RECEIVES;
/// Scatter/gather elements of a work request.
pub const MAX_SGE: u32 = 4;
/// Bytes of a send that can travel in the work request, as with ConnectX-5: a send request has 1024 bytes
/// (`max_wqe_sz_sq`), of which a raw packet's segments take 48 and the length 4 (rdma-core
/// providers/mlx5/verbs.c, `mlx5_calc_send_wqe`).
pub const MAX_INLINE_BYTES: u32 = 972;
/// Bytes of a TCP stream that one request can have segmented, as with ConnectX-4.
pub(crate) const MAX_TSO_BYTES: u32 = 1 << 18;
/// The most segments of a request: the device is held by one request no longer than by a few bursts of whole
/// frames.
pub const MAX_TSO_SEGMENTS: u32 = 1 << 12;
/// Bytes of headers before each of its segments.
pub const MAX_TSO_HEADER_BYTES: u16 = 512;
/// The fastest rate a queue pair can be held to, in kilobits per second.
pub(crate) const MAX_RATE_KBPS: u32 = 100_000_000;
/// Indirection tables.
pub(crate) const MAX_TABLES: usize = 65_536;
/// Queue pairs.
pub(crate) const MAX_QPS: usize = 65_536;
/// Counter sets.
pub(crate) const MAX_COUNTERS: usize = 65_536;
/// Counter points of one set.
pub const MAX_COUNTER_POINTS: usize = 32;
/// Specs of a flow, actions included (`IB_FLOW_SPEC_SUPPORT_LAYERS`).
pub const MAX_SPECS: u8 = 10;
/// Bytes of a Toeplitz key.
pub(crate) const RSS_KEY_BYTES: u8 = 40;

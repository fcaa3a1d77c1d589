//! Safe libibverbs for raw packet steering: queues, RSS, flows and counters, on the unmodified library.
//!
//! The only crate that calls libibverbs. Handles own a native object and keep what it depends on alive, so any drop
//! order is right; queues are split into a shared part, which other objects hang on, and an owner's part, which polls
//! or posts and is used from one thread at a time. The packet path ([`CompletionQueue::poll`], [`FramePool`],
//! [`ReceiveQueue::post`], [`RawQueuePair::send`]) neither allocates nor returns errors to handle per packet.
//!
//! Not here: connected transports, what packets mean.

mod allocator;
mod attributes;
mod chain;
mod channel;
mod clock;
mod completion;
mod completion_queue;
mod context;
mod counters;
mod device;
mod domain;
mod error;
mod event;
mod flow;
mod frame;
mod inline;
mod leak;
mod lent;
mod memory;
mod pause;
mod queue_pair;
mod raw_queue_pair;
mod rss;
mod shared_receive_queue;
#[cfg(test)]
mod testing;
mod work_completion;
mod work_queue;

pub use allocator::{Allocation, AllocationRequest, DomainAllocator, StableMemory};
pub use attributes::{
    DeviceAttributes, DeviceCaps, HashFields, LinkLayer, ModerationCaps, PortAttributes, PortState,
    RawPacketCaps, RssCaps, TsoCaps,
};
pub use channel::{CompletionChannel, CompletionEvent};
pub use clock::Clock;
pub use completion::{Completion, CompletionFields, CompletionFlags, FlowTag, Opcode, Status};
pub use completion_queue::{
    Batch, CompletionQueue, CompletionQueueBuilder, CompletionQueueHandle, MAX_COMPLETIONS,
};
pub use context::Context;
pub use counters::{CounterPoint, CounterValues, Counters, ReadFlags};
pub use device::{CreateChannel, Device, DeviceList, Guid, PortNumber, Provider, QueueNumber};
pub use domain::{Domain, ParentDomain, ProtectionDomain, ThreadDomain};
pub use error::{Error, Result};
pub use event::{AsyncEvent, EventKind, EventSource};
pub use flow::{
    EspAction, EspFlags, EspMatch, EthernetMatch, Flow, FlowAction, FlowAttr, FlowKind, FlowSpec, FlowTarget,
    GreMatch, Ipv4ExtMatch, Ipv4Match, Ipv6Match, MAX_AES_KEY_BYTES, MAX_SPECS, MplsMatch, PlacedSpec,
    PortMatch, VxlanMatch,
};
pub use frame::{Frame, FramePool, MAX_FRAMES};
/// The C structure that a [`Provider`] lists.
pub use ibverbs_sys::ibv_device;
/// The C structures that a [`CreateChannel`] function makes a channel of.
pub use ibverbs_sys::{ibv_comp_channel, ibv_context};
pub use lent::MAX_POOLS;
pub use memory::{Access, MemoryRegion, Reregistration};
pub use queue_pair::{
    QueuePairAttributes, QueuePairCaps, QueuePairFlags, QueuePairKind, QueuePairState, SendOperations,
};
pub use raw_queue_pair::{
    IdleRawQueuePair, MAX_SEND_PARTS, MAX_SENDS, RawQueuePair, RawQueuePairBuilder, RawQueuePairHandle,
    SendBatch, SendFlags, SendRequest,
};
pub use rss::{
    HASH_KEY_BYTES, HashConfig, HashFunction, IndirectionTable, MAX_TABLE_ENTRIES, RssQueuePair,
    RssQueuePairBuilder,
};
pub use shared_receive_queue::SharedReceiveQueue;
pub use work_completion::WorkCompletion;
pub use work_queue::{
    MAX_RECEIVES, ReceiveQueue, WorkQueue, WorkQueueBuilder, WorkQueueFlags, WorkQueueState,
};

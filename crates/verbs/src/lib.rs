//! Safe libibverbs for raw packet steering: queues, RSS, flows and counters, on the unmodified library.
//!
//! The only crate that calls libibverbs. Handles own a native object and keep its parents alive, so every
//! drop order is correct. Queues have a shared part, which other objects keep alive, and an owner's part,
//! which polls or posts and is used from one thread at a time. The packet path ([`CompletionQueue::poll`],
//! [`FramePool`], [`ReceiveQueue::post`], [`RawQueuePair::send`]) neither allocates nor returns errors to
//! handle per packet.
//!
//! Four verbs are covered completely: every field and flag of `ibv_create_qp_ex` ([`RawQueuePairBuilder`],
//! [`RssQueuePairBuilder`], [`SendOperations`], [`SendBatch`], [`SharedReceiveQueue`]), `ibv_create_cq_ex`
//! ([`CompletionQueueBuilder`], [`CompletionFields`], [`CompletionChannel`], [`WorkCompletion`]),
//! `ibv_create_flow` ([`FlowAttr`], [`FlowSpec`], [`ActionSpec`], [`FlowAction`], [`Counters`]) and
//! `ibv_alloc_parent_domain` ([`ParentDomain`], [`DomainAllocator`]). The daemon uses a part of them. The
//! rest is public because the `conformance` crate tests every field, flag and enum value on a device
//! (docs/generated/conformance.md is the table): the senders ([`RawQueuePair`] and its batches), one-by-one
//! polling ([`CompletionQueue::poll_classic`]), channels and moderation, [`Clock`], [`CounterPoint`], states
//! and flags of queues, and the readers of completions. Connected transports, remote memory access and
//! changes of a memory registration are not covered.
//!
//! ```
//! use wire::NullWire;
//! use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
//! use softnic_verbs::SoftNic;
//! use verbs::{
//!     ActionSpec, CompletionFields, CompletionQueue, DeviceList, Domain, FlowHandle, FlowAttr, FlowKind, FlowSpec, FlowTag,
//!     FlowTarget, HashConfig, HashFields, IndirectionTable, PortMatch, PortNumber, ProtectionDomain, RssQueuePair,
//!     WorkQueue,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A device in software; `DeviceList::system` lists those of the machine.
//! let ports = vec![PortConfig { wire: Box::new(NullWire), mtu_bytes: 1500 }];
//! let (name, personality, drive) = ("soft0".to_owned(), Personality::Ideal, Drive::Manual);
//! let nic = SoftNic::create(SoftNicConfig { name, personality, ports, drive })?;
//! let context = DeviceList::of(&nic)?.find("soft0").expect("it is listed").open()?;
//!
//! // Packets are spread over work queues by their addresses.
//! let domain = Domain::from(ProtectionDomain::new(&context)?);
//! let fields = CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG;
//! let mut completions = CompletionQueue::builder(&context, 64).fields(fields).build()?;
//! let (queue, _receives) = WorkQueue::builder(&domain, &completions.handle()).max_receives(64).build()?;
//! queue.ready()?;
//! let table = IndirectionTable::new(&context, &[queue])?;
//! let hash = HashConfig { key: [0x6d; 40], fields: HashFields::SRC_IPV4 | HashFields::DST_IPV4 };
//! let pair = RssQueuePair::new(&domain, &table, &hash)?;
//!
//! // UDP packets to port 53 go there, and their completions carry tag 7.
//! let port = |dst_port| PortMatch { src_port: 0, dst_port };
//! let attr = FlowAttr::new(FlowKind::Normal, PortNumber(1))
//!     .spec(FlowSpec::Udp { value: port(53), mask: port(u16::MAX) })
//!     .action(ActionSpec::Tag(FlowTag(7)));
//! let _flow = FlowHandle::create(&FlowTarget::from(pair), &attr)?;
//! assert!(completions.poll().is_none());
//! # Ok(())
//! # }
//! ```

mod allocator;
mod attributes;
mod chain;
mod channel;
mod completion;
mod completion_fields;
mod completion_queue;
mod completion_queue_handle;
mod context;
mod counter_point;
mod counters;
mod device;
mod device_port;
mod direct;
mod domain;
mod errno;
mod error;
mod event;
mod flow;
mod frame;
mod inline;
mod leak;
mod memory;
mod number;
mod pause;
mod queue_pair;
mod queue_pools;
mod raw_queue_pair;
mod rdma_netlink;
mod receive;
mod rss;
mod send_operations;
#[cfg(test)]
mod testing;
mod work_queue;

pub use allocator::{Allocation, AllocationRequest, DomainAllocator, StableMemory};
pub use attributes::{
    DeviceAttributes, HashFields, LinkLayer, ModerationCaps, PortAttributes, PortState, RawPacketCaps,
    RssCaps, TsoCaps,
};
pub use channel::{CompletionChannel, CompletionEvent};
pub use completion::{Completion, CompletionFlags, CompletionStatus, FlowTag, Opcode, WorkCompletion};
pub use completion_fields::CompletionFields;
pub use completion_queue::{CompletionBatch, CompletionQueue, CompletionQueueBuilder, MAX_COMPLETIONS};
pub use completion_queue_handle::CompletionQueueHandle;
pub use context::{Clock, Context};
pub use counter_point::CounterPoint;
pub use counters::{CounterValues, Counters, ReadFlags};
pub use device::{DeviceList, Guid, ListedDevice};
pub use device_port::{DevicePort, SYSFS_CLASSES, SYSFS_DEVICES};
pub use direct::{DirectProvider, DirectReceive, DirectRefusal};
pub use domain::{Domain, ParentDomain, ProtectionDomain, ThreadDomain};
pub use errno::VerbsErrno;
pub use error::{Result, VerbsError};
pub use event::{AsyncEvent, EventKind, EventSource};
pub use flow::{
    ActionSpec, EspAction, EspFlags, FlowAction, FlowAttr, FlowHandle, FlowKind, FlowTarget,
    accepted_priorities,
};
pub use flow_spec::{
    EspMatch, EthernetMatch, FlowSpec, GreMatch, Ipv4ExtMatch, Ipv4Match, Ipv6Match, MplsMatch, PortMatch,
    VxlanMatch,
};
pub use frame::{Frame, FramePool, RegisteredFrames};
pub use ibv_provider::{CreateChannel, Provider};
/// The C structure that a [`Provider`] lists.
pub use ibverbs_sys::ibv_device;
/// The C structures that a [`CreateChannel`] function makes a channel of.
pub use ibverbs_sys::{ibv_comp_channel, ibv_context};
pub use memory::{Access, MemoryRegion};
pub use number::{PortNumber, QueueNumber};
pub use queue_pair::{QueuePairAttributes, QueuePairCaps, QueuePairFlags, QueuePairKind, QueuePairState};
pub use queue_pools::MAX_POOLS;
pub use raw_queue_pair::{
    CompletedSend, IdleRawQueuePair, MAX_SEND_PARTS, Pieces, QueuedSend, RawQueuePair, RawQueuePairBuilder,
    RawQueuePairHandle, SENDS_PER_COMPLETION, SendBatch, SendFlags, SendRequest,
};
pub use rdma_netlink::open_contexts;
pub use receive::{Arrival, Polled, Receive, ReceivePath, TakeReceives, VerbsReceive};
pub use rss::{
    HASH_KEY_BYTES, HashConfig, HashFunction, IndirectionTable, RssQueuePair, RssQueuePairBuilder,
};
pub use send_operations::SendOperations;
pub use work_queue::{
    MAX_RECEIVES, ReceiveQueue, SharedReceiveQueue, WorkQueue, WorkQueueBuilder, WorkQueueFlags,
    WorkQueueState,
};

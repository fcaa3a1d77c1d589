//! Safe libibverbs for raw packet steering: signatures first, bodies follow.
#![allow(missing_docs, clippy::todo, unused_variables, clippy::needless_pass_by_value)]
#![allow(clippy::missing_safety_doc)]
use std::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::ops::DerefMut;
use std::sync::Arc;

pub use ibverbs_sys::ibv_device;
use stable_deref_trait::StableDeref;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot create a flow on {device} port {port}, priority {priority}: {source}")]
    CreateFlow { device: String, port: PortNumber, priority: u16, source: io::Error },
}
impl Error {
    pub fn errno(&self) -> Option<i32> {
        todo!()
    }
}

/// # Safety
/// Returns NULL with `errno` set, or a list `ibv_free_device_list` can release, like `mlx5dv_get_vfio_device_list`.
pub unsafe trait Provider: Send + Sync {
    fn device_list(&self, count: &mut c_int) -> *mut *mut ibv_device;
}
pub struct DeviceList(());
impl DeviceList {
    pub fn system() -> Result<Self> {
        todo!()
    }
    pub fn of(provider: &dyn Provider) -> Result<Self> {
        todo!()
    }
    pub fn iter(&self) -> impl Iterator<Item = Device<'_>> {
        std::iter::empty()
    }
    pub fn find(&self, name: &str) -> Option<Device<'_>> {
        todo!()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guid(pub u64);
pub struct Device<'list>(PhantomData<&'list DeviceList>);
impl Device<'_> {
    pub fn name(&self) -> &str {
        todo!()
    }
    pub fn guid(&self) -> Guid {
        todo!()
    }
    pub fn open(&self) -> Result<Arc<Context>> {
        todo!()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortNumber(pub u8);
impl std::fmt::Display for PortNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RawPacketCaps: u32 { const CVLAN_STRIPPING = 1; const SCATTER_FCS = 2; const IP_CSUM = 4; const DELAY_DROP = 8; }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct HashFields: u64 {
        const SRC_IPV4 = 1; const DST_IPV4 = 2; const SRC_IPV6 = 4; const DST_IPV6 = 8;
        const SRC_PORT_TCP = 16; const DST_PORT_TCP = 32; const SRC_PORT_UDP = 64; const DST_PORT_UDP = 128;
        const IPSEC_SPI = 256; const INNER = 1 << 31;
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 { const LOCAL_WRITE = 1; const RELAXED_ORDERING = 1 << 20; }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CompletionFields: u64 {
        const BYTE_LEN = 1; const QP_NUM = 4; const COMPLETION_TIMESTAMP = 128; const CVLAN = 256; const FLOW_TAG = 512;
        const COMPLETION_TIMESTAMP_WALLCLOCK = 2048;
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CompletionFlags: u32 { const IP_CSUM_OK = 4; }
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 { const IP_CSUM = 16; }
}

#[derive(Clone, Debug)]
pub struct RssCaps {
    pub raw_packet: bool,
    pub max_tables: u32,
    pub max_table_size: u32,
    pub fields: HashFields,
    pub toeplitz: bool,
}
#[derive(Clone, Debug)]
pub struct DeviceAttributes {
    pub fw_ver: String,
    pub node_guid: Guid,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_mr_bytes: u64,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub physical_ports: u32,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock_khz: u64,
    pub max_wq_type_rq: u32,
    pub raw_packet_caps: RawPacketCaps,
    pub rss_caps: RssCaps,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    Nop,
    Down,
    Init,
    Armed,
    Active,
    ActiveDefer,
    Unknown(u32),
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    Unspecified,
    InfiniBand,
    Ethernet,
    Unknown(u32),
}
#[derive(Clone, Debug)]
pub struct PortAttributes {
    pub state: PortState,
    pub link_layer: LinkLayer,
    pub max_mtu_bytes: Option<u32>,
    pub active_mtu_bytes: Option<u32>,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    PortActive,
    PortError,
    DeviceFatal,
    CompletionQueueError,
    QueuePairFatal,
    WorkQueueFatal,
    Other(u32),
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    Device,
    Port(PortNumber),
    CompletionQueue { handle: u32 },
    QueuePair { number: u32 },
    WorkQueue { number: u32 },
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    pub kind: EventKind,
    pub source: EventSource,
}

pub struct Context(());
impl Context {
    pub fn name(&self) -> &str {
        todo!()
    }
    pub fn attributes(&self) -> Result<DeviceAttributes> {
        todo!()
    }
    pub fn port(&self, port: PortNumber) -> Result<PortAttributes> {
        todo!()
    }
    pub fn raw_clock(&self) -> Result<u64> {
        todo!()
    }
    pub fn async_event(&self) -> Result<Option<AsyncEvent>> {
        todo!()
    }
}

pub struct ProtectionDomain(());
impl ProtectionDomain {
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        todo!()
    }
}
pub struct ThreadDomain(());
impl ThreadDomain {
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        todo!()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRequest {
    pub bytes: usize,
    pub align: usize,
    pub resource_type: u64,
}
pub enum Allocation {
    Memory(Box<dyn StableMemory>),
    UseDefault,
    Refused,
}
pub trait DomainAllocator: Send + Sync {
    fn allocate(&self, request: &AllocationRequest) -> Allocation;
}
pub trait StableMemory: StableDeref + DerefMut<Target = [u8]> + Send {}
impl<T: StableDeref + DerefMut<Target = [u8]> + Send> StableMemory for T {}
pub struct ParentDomain(());
impl ParentDomain {
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        thread: Option<&Arc<ThreadDomain>>,
        allocator: Option<Box<dyn DomainAllocator>>,
    ) -> Result<Arc<Self>> {
        todo!()
    }
}
#[derive(Clone)]
pub enum Domain {
    Protection(Arc<ProtectionDomain>),
    Parent(Arc<ParentDomain>),
}
impl From<Arc<ProtectionDomain>> for Domain {
    fn from(domain: Arc<ProtectionDomain>) -> Self {
        Self::Protection(domain)
    }
}
impl From<Arc<ParentDomain>> for Domain {
    fn from(domain: Arc<ParentDomain>) -> Self {
        Self::Parent(domain)
    }
}
impl Domain {
    pub fn context(&self) -> &Arc<Context> {
        todo!()
    }
}

pub struct MemoryRegion(());
impl MemoryRegion {
    pub fn register(domain: &Domain, memory: impl StableMemory + 'static, access: Access) -> Result<Self> {
        todo!()
    }
    pub fn lkey(&self) -> u32 {
        todo!()
    }
    pub fn bytes(&self) -> usize {
        todo!()
    }
}
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Frame(());
pub struct FramePool(());
impl FramePool {
    pub fn new(region: MemoryRegion, frame_bytes: u32) -> Result<Self> {
        todo!()
    }
    pub fn take(&mut self) -> Option<Frame> {
        todo!()
    }
    pub fn release(&mut self, frame: Frame) {
        todo!()
    }
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        todo!()
    }
    pub fn bytes_mut<'a>(&'a mut self, frame: &'a mut Frame) -> &'a mut [u8] {
        todo!()
    }
    pub fn reclaim(&mut self, completion: &Completion<'_>) -> Option<Frame> {
        todo!()
    }
    pub fn frame_count(&self) -> usize {
        todo!()
    }
    pub fn frame_bytes(&self) -> u32 {
        todo!()
    }
    pub fn free_count(&self) -> usize {
        todo!()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    Success,
    LocalLength,
    LocalProtection,
    Flushed,
    General,
    Fatal,
    Unknown(u32),
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    Send,
    Receive,
    Unknown(u32),
}
/// A flow tag: 24 bits on every known device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowTag(pub u32);

pub struct CompletionQueue(PhantomData<std::cell::Cell<()>>);
pub struct CompletionQueueHandle(());
pub struct CompletionQueueBuilder(());
impl CompletionQueue {
    pub fn builder(context: &Arc<Context>, entries: u32) -> CompletionQueueBuilder {
        todo!()
    }
    pub fn handle(&self) -> Arc<CompletionQueueHandle> {
        todo!()
    }
    pub fn poll(&mut self) -> Option<Batch<'_>> {
        todo!()
    }
    pub fn entries(&self) -> u32 {
        todo!()
    }
    pub fn poll_errors(&self) -> u64 {
        todo!()
    }
}
impl CompletionQueueBuilder {
    pub fn fields(self, fields: CompletionFields) -> Self {
        todo!()
    }
    pub fn single_threaded(self, on: bool) -> Self {
        todo!()
    }
    pub fn ignore_overrun(self, on: bool) -> Self {
        todo!()
    }
    pub fn domain(self, domain: &Domain) -> Self {
        todo!()
    }
    pub fn build(self) -> Result<CompletionQueue> {
        todo!()
    }
}
pub struct Batch<'cq>(PhantomData<&'cq mut CompletionQueue>);
impl Batch<'_> {
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Completion<'_>> {
        todo!()
    }
}
pub struct Completion<'b>(PhantomData<&'b ()>);
impl Completion<'_> {
    pub fn wr_id(&self) -> u64 {
        todo!()
    }
    pub fn status(&self) -> Status {
        todo!()
    }
    pub fn is_success(&self) -> bool {
        todo!()
    }
    pub fn opcode(&self) -> Opcode {
        todo!()
    }
    pub fn vendor_error(&self) -> u32 {
        todo!()
    }
    pub fn byte_len(&self) -> Option<u32> {
        todo!()
    }
    pub fn flow_tag(&self) -> Option<FlowTag> {
        todo!()
    }
    pub fn timestamp(&self) -> Option<u64> {
        todo!()
    }
    pub fn wallclock_ns(&self) -> Option<u64> {
        todo!()
    }
    pub fn cvlan(&self) -> Option<u16> {
        todo!()
    }
    pub fn checksum_ok(&self) -> Option<bool> {
        todo!()
    }
    pub fn wc_flags(&self) -> CompletionFlags {
        todo!()
    }
    pub fn qp_num(&self) -> Option<u32> {
        todo!()
    }
}

pub struct WorkQueue(());
pub struct WorkQueueBuilder(());
pub struct ReceiveQueue(PhantomData<std::cell::Cell<()>>);
impl WorkQueue {
    pub fn builder(domain: &Domain, completions: &Arc<CompletionQueueHandle>) -> WorkQueueBuilder {
        todo!()
    }
    /// Moves the queue to RDY, once. Receives can be posted from then on, not before.
    pub fn ready(&self) -> Result<()> {
        todo!()
    }
    pub fn number(&self) -> u32 {
        todo!()
    }
}
impl WorkQueueBuilder {
    pub fn max_receives(self, max_receives: u32) -> Self {
        todo!()
    }
    pub fn build(self) -> Result<(Arc<WorkQueue>, ReceiveQueue)> {
        todo!()
    }
}
impl ReceiveQueue {
    /// Posts from the end of `frames`; what did not fit stays in it.
    pub fn post(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize {
        todo!()
    }
    pub fn work_queue(&self) -> &Arc<WorkQueue> {
        todo!()
    }
    pub fn max_receives(&self) -> u32 {
        todo!()
    }
}

pub struct IndirectionTable(());
impl IndirectionTable {
    pub fn new(context: &Arc<Context>, queues: &[Arc<WorkQueue>]) -> Result<Arc<Self>> {
        todo!()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashConfig {
    pub key: [u8; 40],
    pub fields: HashFields,
}
pub struct RssQueuePair(());
impl RssQueuePair {
    pub fn new(domain: &Domain, table: &Arc<IndirectionTable>, hash: &HashConfig) -> Result<Arc<Self>> {
        todo!()
    }
}

pub struct RawQueuePair(PhantomData<std::cell::Cell<()>>);
pub struct RawQueuePairHandle(());
pub struct RawQueuePairBuilder(());
/// A raw queue pair in RESET.
pub struct IdleRawQueuePair(());
impl RawQueuePair {
    pub fn builder(
        domain: &Domain,
        send_completions: &Arc<CompletionQueueHandle>,
        receive_completions: &Arc<CompletionQueueHandle>,
    ) -> RawQueuePairBuilder {
        todo!()
    }
    pub fn handle(&self) -> Arc<RawQueuePairHandle> {
        todo!()
    }
    pub fn number(&self) -> u32 {
        todo!()
    }
    pub fn send(
        &mut self,
        pool: &mut FramePool,
        frame: Frame,
        bytes: usize,
        flags: SendFlags,
    ) -> std::result::Result<(), Frame> {
        todo!()
    }
    pub fn post_receives(&mut self, pool: &mut FramePool, frames: &mut Vec<Frame>) -> usize {
        todo!()
    }
}
impl RawQueuePairBuilder {
    pub fn max_sends(self, max_sends: u32) -> Self {
        todo!()
    }
    pub fn max_receives(self, max_receives: u32) -> Self {
        todo!()
    }
    pub fn build(self) -> Result<IdleRawQueuePair> {
        todo!()
    }
}
impl IdleRawQueuePair {
    pub fn to_rts(self, port: PortNumber) -> Result<RawQueuePair> {
        todo!()
    }
}

#[derive(Clone)]
pub enum FlowTarget {
    Rss(Arc<RssQueuePair>),
    Raw(Arc<RawQueuePairHandle>),
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowKind {
    Normal,
    AllDefault,
    MulticastDefault,
    Sniffer,
}
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EthernetMatch {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub ether_type: u16,
    pub vlan_tag: u16,
}
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ipv4Match {
    pub src: u32,
    pub dst: u32,
}
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ipv4ExtMatch {
    pub src: u32,
    pub dst: u32,
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    pub flags: u8,
}
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ipv6Match {
    pub src: [u8; 16],
    pub dst: [u8; 16],
    pub flow_label: u32,
    pub next_hdr: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
}
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortMatch {
    pub src_port: u16,
    pub dst_port: u16,
}
#[derive(Clone)]
pub enum FlowSpec {
    Ethernet { value: EthernetMatch, mask: EthernetMatch },
    Ipv4 { value: Ipv4Match, mask: Ipv4Match },
    Ipv4Ext { value: Ipv4ExtMatch, mask: Ipv4ExtMatch },
    Ipv6 { value: Ipv6Match, mask: Ipv6Match },
    Tcp { value: PortMatch, mask: PortMatch },
    Udp { value: PortMatch, mask: PortMatch },
    Tag(FlowTag),
    Drop,
    Count(Arc<Counters>),
}
#[derive(Clone)]
pub struct FlowAttr(());
impl FlowAttr {
    pub fn new(kind: FlowKind, port: PortNumber) -> Self {
        todo!()
    }
    pub fn priority(self, priority: u16) -> Self {
        todo!()
    }
    pub fn dont_trap(self, on: bool) -> Self {
        todo!()
    }
    pub fn spec(self, spec: FlowSpec) -> Self {
        todo!()
    }
}
pub struct Flow(());
impl Flow {
    pub fn create(target: &FlowTarget, attr: &FlowAttr) -> Result<Self> {
        todo!()
    }
}
pub struct Counters(());
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterValues {
    pub packets: u64,
    pub bytes: u64,
}
impl Counters {
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        todo!()
    }
    pub fn read(&self) -> Result<CounterValues> {
        todo!()
    }
}

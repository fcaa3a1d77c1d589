//! Builds what a worker owns, in the order of dependencies: arena, the frames' memory in it, domains,
//! completion queue, work queue, frames; then the work queue is made ready and filled. Runs once, before the
//! worker's thread exists. The arena is on the NUMA node of the worker's core, and the driver's rings go into
//! it as well ([`ArenaAllocator`]).

use std::sync::{Arc, Mutex, PoisonError};

use hugemem::{Arena, ArenaForecast, ArenaOptions, Block, HugememWarning};
use program::{Program, SinkKind, SourceLimit, WorkerId};
use verbs::{
    Access, Allocation, AllocationRequest, CompletionChannel, CompletionFields, CompletionQueue, Context,
    DirectProvider, DirectReceive, Domain, DomainAllocator, FramePool, MemoryRegion, ParentDomain,
    PortNumber, ProtectionDomain, ReceivePath, ThreadDomain, VerbsErrno, VerbsReceive, WorkQueue,
};

use crate::batch::Batch;
use crate::error::Object;
use crate::idle::Events;
use crate::receiver::{Receiver, refill_at};
use crate::sinks::cache_bytes;
use crate::stats::Stats;
use crate::transmitter::SENDS_MAX;
use crate::{Error, Idle, ReceiveKind, ServedPort, Warning, WorkerConfig};

/// Bytes in the arena for one entry of any ring: the largest in use is a 64-byte work request, and
/// drivers round the number of entries up to a power of two.
const RING_ENTRY_BYTES: usize = 64;
/// Doorbell records and rounding to pages.
const RING_SLACK_BYTES: usize = 256 << 10;
/// Frames start on pages of their own.
const FRAMES_ALIGN: usize = 4096;
/// Frames are whole cache lines, or neighbours would share one.
const FRAME_ALIGN: u32 = 64;
/// An Ethernet header behind two VLAN tags.
const HEADER_BYTES: u32 = 14 + 2 * 4;
/// The MTU of Ethernet. Verbs round an MTU down to a power of two, so a reported 1024 is taken as 1500.
const ETHERNET_MTU_BYTES: u32 = 1500;

/// The parts of a worker, with warnings where they differ from the configuration.
pub(crate) struct Parts {
    pub(crate) receiver: Receiver,
    pub(crate) domain: Domain,
    pub(crate) warnings: Vec<Warning>,
}

/// Makes everything except the counters, without posting frames.
pub(crate) fn assemble(context: &Arc<Context>, config: &WorkerConfig) -> Result<Parts, Error> {
    config.check()?;
    let config = &WorkerConfig { frames: frames_within(context, config.frames), ..config.clone() };
    let limits = context.attributes().map_err(refused(config.id, Object::Attributes))?;
    receives_fit(config, limits.max_qp_wr)?;
    let entries = completion_entries(config, limits.max_cqe)?;
    let arena = map_arena(config, entries)?;
    let mut parts = assemble_in(&arena, context, config, entries)?;
    parts.warnings.extend(arena.warnings().iter().map(|warning| Warning::Memory(warning.to_string())));
    for &port in &config.ports {
        parts.warnings.extend(short_frames(context, config, port)?);
    }
    Ok(parts)
}

fn assemble_in(
    arena: &Arc<Arena>,
    context: &Arc<Context>,
    config: &WorkerConfig,
    entries: u32,
) -> Result<Parts, Error> {
    let id = config.id;
    // Before any ring: a ring outside the arena costs locality, but a worker cannot run without its frames.
    let memory = frame_memory(config, arena)?;
    let (allocator, shortfalls) = ArenaAllocator::new(arena);
    let mut warnings = Vec::new();
    let (domain, parent) = domains(context, id, allocator, &mut warnings)?;
    let channel = event_channel(context, config, &mut warnings);
    let parents =
        QueueParents { context, domain: &domain, parent: parent.as_ref(), channel: channel.as_ref() };
    let (path, work_queue) = receive_path(&parents, config, entries, &mut warnings)?;
    let pool = frame_pool(config, memory, &domain)?;
    work_queue.ready().map_err(refused(id, Object::ReadyWorkQueue))?;

    warnings.append(&mut shortfalls.lock().unwrap_or_else(PoisonError::into_inner));
    let refill_at = refill_at(pool.frame_count(), config.batch);
    let events = channel.map(Events::new);
    let receiver = Receiver { path, work_queue, pool, limit: config.batch, refill_at, events };
    Ok(Parts { receiver, domain, warnings })
}

/// Posts every frame of the pool.
pub(crate) fn first_fill(receiver: &mut Receiver, stats: &Stats, id: WorkerId) -> Result<Batch, Error> {
    let frames = receiver.pool.frame_count();
    let mut batch = Batch::new(frames, receiver.limit);
    while let Some(frame) = receiver.pool.take() {
        batch.frames.push(frame);
    }
    receiver.refill(&mut batch, stats);
    if batch.frames.is_empty() {
        Ok(batch)
    } else {
        Err(Error::FirstFill { worker: id, posted: frames - batch.frames.len(), frames })
    }
}

fn refused(worker: WorkerId, object: Object) -> impl FnOnce(verbs::VerbsError) -> Error {
    move |source| Error::Verb { worker, object, source: Box::new(source) }
}

/// All frames can be posted at once. 0: the device reports no limit.
fn receives_fit(config: &WorkerConfig, limit: u32) -> Result<(), Error> {
    if limit > 0 && config.frames > limit {
        return Err(Error::ReceiveLimit { worker: config.id, frames: config.frames, limit });
    }
    Ok(())
}

/// The number of frames, where so many are wanted and each has an entry of the completion queue. For a power
/// of two a device that gives queues one entry less than a power of two would make one of twice the size, so
/// there is one frame less.
fn frames_within(context: &Arc<Context>, wanted: u32) -> u32 {
    // libmlx5 and libmlx4 round the entries plus one up (`align_queue_size`): two become three.
    let rounds_up = || {
        let queue = CompletionQueue::builder(context, 2).build();
        queue.is_ok_and(|queue| queue.entries() == 3)
    };
    let would_double = wanted > 1 && wanted.is_power_of_two() && rounds_up();
    wanted - u32::from(would_double)
}

fn completion_entries(config: &WorkerConfig, limit: u32) -> Result<u32, Error> {
    let wanted = config.frames;
    if wanted > limit {
        return Err(Error::CompletionLimit { worker: config.id, wanted, limit });
    }
    Ok(wanted)
}

/// A warning if the port may receive packets that are longer than a frame; none if its MTU is not known.
fn short_frames(
    context: &Context,
    config: &WorkerConfig,
    port: ServedPort,
) -> Result<Option<Warning>, Error> {
    let ServedPort { number: port, mtu_bytes } = port;
    let attributes = context.port(PortNumber(port)).map_err(refused(config.id, Object::Port))?;
    let of_verbs = || attributes.active_mtu_bytes.map(|mtu_bytes| mtu_bytes.max(ETHERNET_MTU_BYTES));
    let Some(mtu_bytes) = mtu_bytes.or_else(of_verbs) else { return Ok(None) };
    let packet_bytes = mtu_bytes.saturating_add(HEADER_BYTES);
    let frame_bytes = frame_bytes(config);
    Ok((frame_bytes < packet_bytes).then_some(Warning::ShortFrames { port, frame_bytes, packet_bytes }))
}

fn frame_bytes(config: &WorkerConfig) -> u32 {
    spread_bytes(config.frame_bytes)
}

/// The length of frames that hold `bytes`: an odd number of cache lines, so that the first lines of
/// successive frames are in different sets of a cache, whose number is a power of two. Frames of 2,048 bytes
/// would begin in a 32nd of the sets.
pub(crate) fn spread_bytes(bytes: u32) -> u32 {
    let lines = bytes.div_ceil(FRAME_ALIGN);
    (lines | 1) * FRAME_ALIGN
}

fn frames_total_bytes(config: &WorkerConfig) -> usize {
    config.frames as usize * frame_bytes(config) as usize
}

/// The bytes of a worker's arena: its frames, and the rings of its queues. Sinks that send make their queues
/// later, in what is left: two rings for each entry.
fn arena_bytes(config: &WorkerConfig, cq_entries: u32) -> usize {
    let entries: usize = [config.frames, cq_entries, 2 * SENDS_MAX.min(config.frames)]
        .iter()
        .map(|n| n.next_power_of_two() as usize)
        .sum();
    frames_total_bytes(config) + entries * RING_ENTRY_BYTES + RING_SLACK_BYTES
}

fn arena_options(config: &WorkerConfig, cq_entries: u32) -> ArenaOptions {
    config.arena(arena_bytes(config, cq_entries))
}

fn map_arena(config: &WorkerConfig, cq_entries: u32) -> Result<Arc<Arena>, Error> {
    let options = arena_options(config, cq_entries);
    Arena::map(&options).map_err(|source| Error::Arena { worker: config.id, bytes: options.bytes, source })
}

/// Adds the memory of a worker to a forecast. Returns the refusals before the kind of page that it would get.
/// Nothing is mapped.
///
/// # Errors
/// A setting is out of its range, or there is no memory for the worker.
pub fn forecast_memory(
    config: &WorkerConfig,
    forecast: &mut ArenaForecast,
) -> Result<Vec<HugememWarning>, Error> {
    config.check()?;
    let options = arena_options(config, config.frames);
    let refused = forecast.add(&options);
    refused.map_err(|source| Error::Arena { worker: config.id, bytes: options.bytes, source })
}

/// Adds the tables of a program to a forecast: on each worker those of the sources of limits, and those of
/// the flows that sinks export.
///
/// # Errors
/// There is no memory for all of them together.
pub fn forecast_tables(program: &Program, workers: usize, forecast: &mut ArenaForecast) -> Result<(), Error> {
    let limits = program.rules.iter().filter_map(|rule| rule.policing.per_source());
    let exports = program.sinks.iter().filter_map(|sink| match &sink.kind {
        SinkKind::Count(options) => options.export.as_ref(),
        _ => None,
    });
    let each = limits.map(SourceLimit::table_bytes).chain(exports.map(cache_bytes));
    let bytes = each.sum::<u64>().saturating_mul(workers as u64);
    if bytes == 0 {
        return Ok(());
    }
    forecast.add_memory(bytes).map_err(|source| Error::Tables { bytes, source })
}

/// The domain of the queues. A device without thread domains (mlx4 sets neither `alloc_td` nor
/// `alloc_parent_domain`) locks its queues, and puts them into memory of its own.
fn domains(
    context: &Arc<Context>,
    id: WorkerId,
    allocator: ArenaAllocator,
    warnings: &mut Vec<Warning>,
) -> Result<(Domain, Option<Arc<ParentDomain>>), Error> {
    let protection = ProtectionDomain::new(context).map_err(refused(id, Object::ProtectionDomain))?;
    let thread = match ThreadDomain::new(context) {
        Ok(thread) => thread,
        Err(source) if source.errno() == Some(VerbsErrno::EOPNOTSUPP.0) => {
            warnings.push(Warning::NoThreadDomain { reason: source.to_string() });
            return Ok((Domain::from(protection), None));
        }
        Err(source) => return Err(refused(id, Object::ThreadDomain)(source)),
    };
    let parent = ParentDomain::new(&protection, Some(&thread), Some(Box::new(allocator)))
        .map_err(refused(id, Object::ParentDomain))?;
    Ok((Domain::from(&parent), Some(parent)))
}

/// Where the device reports completions to a worker that sleeps.
fn event_channel(
    context: &Arc<Context>,
    config: &WorkerConfig,
    warnings: &mut Vec<Warning>,
) -> Option<Arc<CompletionChannel>> {
    if config.idle == Idle::Spin {
        return None;
    }
    let made = CompletionChannel::new(context);
    made.inspect_err(|error| warnings.push(Warning::NoEvents { reason: error.to_string() })).ok()
}

/// The objects that a worker's queues are made of.
struct QueueParents<'p> {
    context: &'p Arc<Context>,
    domain: &'p Domain,
    parent: Option<&'p Arc<ParentDomain>>,
    channel: Option<&'p Arc<CompletionChannel>>,
}

/// The receive queue and its completion queue.
fn receive_path(
    parents: &QueueParents<'_>,
    config: &WorkerConfig,
    entries: u32,
    warnings: &mut Vec<Warning>,
) -> Result<(ReceivePath, Arc<WorkQueue>), Error> {
    let make = || {
        let completions = completion_queue(parents, config, entries)?;
        let (work_queue, queue) = WorkQueue::builder(parents.domain, &completions.handle())
            .max_receives(config.frames)
            .build()
            .map_err(refused(config.id, Object::WorkQueue))?;
        Ok((completions, work_queue, queue))
    };
    if config.receive == ReceiveKind::Direct {
        let made = match DirectProvider::of(parents.context) {
            Ok(provider) => {
                let (completions, work_queue, queue) = make()?;
                DirectReceive::new(&provider, completions, queue).map(|direct| (direct, work_queue))
            }
            Err(refusal) => Err(refusal),
        };
        match made {
            Ok((direct, work_queue)) => return Ok((ReceivePath::Direct(Box::new(direct)), work_queue)),
            Err(refusal) => warnings.push(Warning::NotDirect { reason: refusal.to_string() }),
        }
    }
    let (completions, work_queue, queue) = make()?;
    Ok((ReceivePath::Verbs(VerbsReceive::new(completions, queue)), work_queue))
}

/// The best completion queue that the device supports: some devices refuse to ignore overruns, and mlx4 has
/// no flow tags (its programs have one class for all packets).
fn completion_queue(
    parents: &QueueParents<'_>,
    config: &WorkerConfig,
    entries: u32,
) -> Result<CompletionQueue, Error> {
    let QueueParents { context, parent, channel, .. } = *parents;
    let mut fields = CompletionFields::BYTE_LEN;
    if config.timestamps {
        fields |= CompletionFields::COMPLETION_TIMESTAMP;
    }
    let vector = config.completion_vector_of(context.completion_vectors());
    let build = |ignore_overrun, fields| {
        let builder = CompletionQueue::builder(context, entries)
            .fields(fields)
            .completion_vector(vector)
            .single_threaded(true)
            .ignore_overrun(ignore_overrun);
        let builder = match channel {
            Some(channel) => builder.channel(channel, 0),
            None => builder,
        };
        match parent {
            Some(parent) => builder.domain(parent).build(),
            None => builder.build(),
        }
    };
    let tagged = fields | CompletionFields::FLOW_TAG;
    let made = match build(config.ignore_overrun, tagged) {
        Err(_) if config.ignore_overrun => build(false, tagged),
        made => made,
    };
    let made = match made {
        Err(source) if source.errno() == Some(VerbsErrno::EOPNOTSUPP.0) => build(false, fields),
        made => made,
    };
    made.map_err(refused(config.id, Object::CompletionQueue))
}

fn frame_memory(config: &WorkerConfig, arena: &Arc<Arena>) -> Result<Block, Error> {
    let bytes = frames_total_bytes(config);
    arena.carve(bytes, FRAMES_ALIGN).ok_or(Error::FrameMemory { worker: config.id, bytes })
}

fn frame_pool(config: &WorkerConfig, memory: Block, domain: &Domain) -> Result<FramePool, Error> {
    let region = MemoryRegion::register(domain, memory, frame_access(config))
        .map_err(refused(config.id, Object::MemoryRegion))?;
    FramePool::new(region, frame_bytes(config)).map_err(refused(config.id, Object::FramePool))
}

/// The accesses of the device to frames.
fn frame_access(config: &WorkerConfig) -> Access {
    let mut access = Access::LOCAL_WRITE;
    access.set(Access::RELAXED_ORDERING, config.relaxed_ordering);
    access
}

/// Allocations that did not fit into the arena, shared with the worker that is being built.
pub(crate) type Shortfalls = Arc<Mutex<Vec<Warning>>>;

/// The parent domain's allocator. Holds the arena for as long as the domain lives.
pub(crate) struct ArenaAllocator {
    arena: Arc<Arena>,
    shortfalls: Shortfalls,
}

impl ArenaAllocator {
    pub(crate) fn new(arena: &Arc<Arena>) -> (Self, Shortfalls) {
        let shortfalls = Shortfalls::default();
        (Self { arena: Arc::clone(arena), shortfalls: Arc::clone(&shortfalls) }, shortfalls)
    }
}

impl DomainAllocator for ArenaAllocator {
    /// If the arena is full, the driver uses memory of its own, which costs locality only.
    fn allocate(&self, request: &AllocationRequest) -> Allocation {
        match self.arena.carve(request.bytes, request.align) {
            Some(block) => Allocation::Memory(Box::new(block)),
            None => {
                let warning = Warning::OutsideArena { bytes: request.bytes };
                self.shortfalls.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
                Allocation::UseDefault
            }
        }
    }
}

#[cfg(test)]
mod tests;

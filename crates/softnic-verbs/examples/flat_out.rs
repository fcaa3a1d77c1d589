//! How many packets a second the engine delivers, flat out from the in-memory generator to one consumer that
//! polls, counts and posts again: engine on core 0, consumer on core 1, and both on one core by turns.
//!
//! `cargo run --release -p softnic-verbs --example flat_out [SECONDS] [FRAMES] [one|two|both]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use hugemem::{Arena, ArenaOptions, PageKind};
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{
    Access, ActionSpec, CompletionFields, CompletionQueue, DeviceList, Domain, FlowAttr, FlowHandle,
    FlowKind, FlowSpec, FlowTag, FlowTarget, Frame, FramePool, HashConfig, HashFields, IndirectionTable,
    Ipv4ExtMatch, MemoryRegion, ParentDomain, PortNumber, ProtectionDomain, ReceiveQueue, RssQueuePair,
    ThreadDomain, WorkQueue,
};
use wire::{GeneratorConfig, GeneratorWire};

type Failure = Box<dyn std::error::Error>;

/// An odd number of cache lines: with a power of two the first lines of all buffers would share a few cache
/// sets.
const BUFFER_BYTES: u32 = 33 * 64;

/// A consumer with everything it owns, dropped in this order.
struct Consumer {
    _flow: FlowHandle,
    receives: ReceiveQueue,
    cq: CompletionQueue,
    pool: FramePool,
    spare: Vec<Frame>,
}

impl Consumer {
    fn new(nic: &SoftNic, frames: u32) -> Result<Self, Failure> {
        let list = DeviceList::of(nic)?;
        let context = list.find("softnic0").ok_or("no device")?.open()?;
        let pd = ProtectionDomain::new(&context)?;
        let td = ThreadDomain::new(&context)?;
        let domain = Domain::from(&ParentDomain::new(&pd, Some(&td), None)?);
        let fields = CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG;
        let cq = CompletionQueue::builder(&context, frames).fields(fields).single_threaded(true).build()?;
        let (queue, receives) = WorkQueue::builder(&domain, &cq.handle()).max_receives(frames).build()?;
        queue.ready()?;
        let bytes = frames as usize * BUFFER_BYTES as usize;
        let pages = vec![PageKind::Huge2M, PageKind::Transparent, PageKind::Plain];
        let arena = Arena::map(&ArenaOptions { bytes, pages, numa_node: None, label: "frames".to_owned() })?;
        let block = arena.carve(bytes, 4096).ok_or("arena too small")?;
        let region = MemoryRegion::register(&Domain::from(&pd), block, Access::LOCAL_WRITE)?;
        let mut pool = FramePool::new(region, BUFFER_BYTES)?;
        let table = IndirectionTable::new(&context, &[Arc::clone(&queue)])?;
        let key = packet::RssKey::SYMMETRIC.0;
        let fields =
            HashFields::SRC_IPV4 | HashFields::DST_IPV4 | HashFields::SRC_PORT_UDP | HashFields::DST_PORT_UDP;
        let target = FlowTarget::Rss(RssQueuePair::new(&domain, &table, &HashConfig { key, fields })?);
        let any = Ipv4ExtMatch::default();
        let attr = FlowAttr::new(FlowKind::Normal, PortNumber(1))
            .spec(FlowSpec::Ipv4Ext { value: any, mask: any })
            .action(ActionSpec::Tag(FlowTag(7)));
        let flow = FlowHandle::create(&target, &attr)?;
        let mut spare = Vec::with_capacity(frames as usize);
        spare.extend(std::iter::from_fn(|| pool.take()));
        let mut consumer = Self { _flow: flow, receives, cq, pool, spare };
        consumer.receives.post(&mut consumer.pool, &mut consumer.spare);
        Ok(consumer)
    }

    /// Polls one batch and posts its buffers again; answers how many there were.
    fn turn(&mut self, most: usize) -> usize {
        let mut polled = 0;
        if let Some(mut batch) = self.cq.poll() {
            while let Some(completion) = batch.next() {
                polled += 1;
                std::hint::black_box((completion.byte_len(), completion.flow_tag()));
                self.spare.extend(self.pool.reclaim(completion));
                if polled == most {
                    break;
                }
            }
        }
        if polled > 0 {
            self.receives.post(&mut self.pool, &mut self.spare);
        }
        polled
    }
}

fn nic(frame_bytes: u32, drive: Drive) -> Result<SoftNic, Failure> {
    let config: GeneratorConfig = serde_json::from_value(serde_json::json!({
        "rate": "flat-out",
        "flows": [{ "src": "10.0.0.0/16", "protocol": "udp", "frame_bytes": frame_bytes, "count": 1024 }]
    }))?;
    Ok(SoftNic::create(SoftNicConfig {
        name: "softnic0".to_owned(),
        personality: Personality::Ideal,
        ports: vec![PortConfig { wire: Box::new(GeneratorWire::open(&config)?), mtu_bytes: 1500 }],
        drive,
    })?)
}

/// Runs `turn` for `time` and prints the best and the median of short windows: a shared machine steals whole
/// slices.
fn measure(what: &str, frame_bytes: u32, time: Duration, mut turn: impl FnMut() -> u64) {
    const WINDOW: Duration = Duration::from_millis(20);
    let (start, mut rates) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let (window, mut packets) = (Instant::now(), 0);
        while window.elapsed() < WINDOW {
            packets += turn();
        }
        rates.push(packets as f64 / window.elapsed().as_secs_f64() / 1e6);
    }
    rates.sort_unstable_by(f64::total_cmp);
    let (best, median) =
        (rates.last().copied().unwrap_or(0.0), rates.get(rates.len() / 2).copied().unwrap_or(0.0));
    println!("{what:<12} {frame_bytes:>5} B  best {best:>6.2} Mpps, median {median:>6.2} Mpps");
}

fn one_core(frame_bytes: u32, frames: u32, time: Duration) -> Result<(), Failure> {
    let nic = nic(frame_bytes, Drive::Manual)?;
    let mut consumer = Consumer::new(&nic, frames)?;
    measure("one core", frame_bytes, time, || {
        (0..64)
            .map(|_| {
                nic.pump(64);
                consumer.turn(64) as u64
            })
            .sum()
    });
    Ok(())
}

fn two_cores(frame_bytes: u32, frames: u32, time: Duration) -> Result<(), Failure> {
    /// After a poll that found less than half a batch the consumer waits this long, so that completions
    /// gather and cache lines change cores less often.
    const BACKOFF_SPINS: u32 = 40;
    let mut set = rustix::thread::CpuSet::new();
    set.set(1);
    rustix::thread::sched_setaffinity(None, &set)?;
    let nic = nic(frame_bytes, Drive::Thread { core: Some(0) })?;
    let mut consumer = Consumer::new(&nic, frames)?;
    let before = nic.port_stats(1);
    let start = Instant::now();
    measure("two cores", frame_bytes, time, || {
        (0..256)
            .map(|_| {
                let polled = consumer.turn(64);
                if polled < 32 {
                    (0..BACKOFF_SPINS).for_each(|_| std::hint::spin_loop());
                }
                polled as u64
            })
            .sum()
    });
    let (elapsed, after) = (start.elapsed(), nic.port_stats(1));
    let received = after.rx_frames - before.rx_frames;
    let starved = after.out_of_buffer - before.out_of_buffer;
    let rate = received as f64 / elapsed.as_secs_f64() / 1e6;
    println!("    the engine took {rate:.2} Mpps, and {starved} of {received} frames met no buffer");
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(Ok(2.0), |text| text.parse::<f64>())?;
    let frames = arguments.next().map_or(Ok(1024), |text| text.parse::<u32>())?;
    let time = Duration::from_secs_f64(seconds);
    let cores = arguments.next().unwrap_or_else(|| "both".to_owned());
    for frame_bytes in [64, 1518] {
        if cores != "one" {
            // Its own thread: the pin ends with it.
            std::thread::scope(|scope| {
                let worker =
                    scope.spawn(|| two_cores(frame_bytes, frames, time).map_err(|error| error.to_string()));
                worker.join().map_err(|_| "the consumer panicked".to_owned())?
            })?;
        }
        if cores != "two" {
            one_core(frame_bytes, frames, time)?;
        }
    }
    Ok(())
}

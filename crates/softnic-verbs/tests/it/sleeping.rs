//! The engine's thread sleeps while there is no work, and wakes for all that is work.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::verbs_support::{FRAME_BYTES, PORT, pool, udp};
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use test_support::Sleeps;
use verbs::{CompletionQueue, DeviceList, Domain, ProtectionDomain, RawQueuePair, SendFlags};
use wire::{Burst, Rate, RxFrame, TransmitError, Wire, WireConfig};

const PATIENCE: Duration = Duration::from_secs(30);
/// An engine that has had nothing to do for this long sleeps as long as it ever does.
const PAUSE: Duration = Duration::from_millis(120);
/// The engine's sleeps without work: on wires that announce frames, and, the longest, on wires that have to
/// be asked.
const HEARTBEAT: Duration = Duration::from_millis(20);
const LONGEST_NAP: Duration = Duration::from_millis(4);
/// An engine polls after a frame for 256 passes; some more are those of the sleeps after it.
const PASSES_PER_FRAME: u64 = 300;

/// A wire that shows nothing: the engine has to ask it.
struct Silent;

impl Wire for Silent {
    fn receive<'w>(&'w mut self, _: &mut Burst<'w>) {}

    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "silent".to_owned()
    }
}

/// One frame at a time, as soon as the engine asks for it.
struct Single {
    wanted: Arc<AtomicU64>,
    given: u64,
    frame: Vec<u8>,
}

impl Wire for Single {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        if self.given < self.wanted.load(Ordering::Acquire) {
            self.given += 1;
            burst.push(RxFrame::new(&self.frame));
        }
    }

    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "single".to_owned()
    }
}

fn nic(name: &str, wires: Vec<Box<dyn Wire>>) -> SoftNic {
    let ports = wires.into_iter().map(|wire| PortConfig { wire, mtu_bytes: 1500 });
    SoftNic::create(SoftNicConfig {
        name: name.to_owned(),
        personality: Personality::Ideal,
        ports: ports.collect(),
        drive: Drive::Thread { core: None },
    })
    .unwrap()
}

fn wire(short: &str) -> Box<dyn Wire> {
    short.parse::<WireConfig>().unwrap().open().unwrap()
}

fn generator(per_second: u64) -> Box<dyn Wire> {
    let WireConfig::Generator(mut config) = "generator".parse().unwrap() else { panic!("a generator") };
    config.rate = Rate::FramesPerSecond(per_second);
    WireConfig::Generator(config).open().unwrap()
}

/// Counts passes and sleeps of an engine for two seconds. Prints its part of a core, which depends on the
/// machine.
fn idle(name: &str, wires: Vec<Box<dyn Wire>>) -> (Sleeps, u64) {
    let nic = nic(name, wires);
    std::thread::sleep(PAUSE);
    let frames = nic.port_stats(1).rx_frames;
    let mut percent = 0.0;
    let passes = || nic.engine_passes()[0];
    // Its progress shows that it is alive.
    let counted = Sleeps::count(name, 10, passes, || {
        percent = test_support::thread_cpu_percent(name, Duration::from_secs(2));
    });
    println!("{name}: {percent:.3} % of a core, {counted:?}");
    (counted, nic.port_stats(1).rx_frames - frames)
}

#[test]
fn an_engine_without_work_sleeps_in_almost_every_pass() {
    let (idle_null, _) = idle("idle-null", vec![wire("null"), wire("loopback")]);
    assert!(idle_null.iterations <= 2 * idle_null.fitting(HEARTBEAT), "{idle_null:?}");
    assert!(idle_null.sleeps * 2 >= idle_null.iterations, "{idle_null:?}");

    let (idle_rate, frames) = idle("idle-rate", vec![generator(10)]);
    let limit = 2 * idle_rate.fitting(HEARTBEAT) + (frames + 1) * PASSES_PER_FRAME;
    assert!(idle_rate.iterations <= limit, "{frames} frames, {idle_rate:?}");
    assert!(idle_rate.sleeps >= frames, "{frames} frames, {idle_rate:?}");

    let (idle_polled, _) = idle("idle-polled", vec![Box::new(Silent)]);
    assert!(idle_polled.iterations <= 2 * idle_polled.fitting(LONGEST_NAP), "{idle_polled:?}");
    assert!(idle_polled.sleeps * 2 >= idle_polled.iterations, "{idle_polled:?}");
}

#[test]
fn a_send_wakes_the_engine() {
    let nic = nic("wake-send", vec![wire("null")]);
    let context = DeviceList::of(&nic).unwrap().find("wake-send").unwrap().open().unwrap();
    let pd = ProtectionDomain::new(&context).unwrap();
    let domain = Domain::from(&pd);
    let mut pool = pool(&domain, 16, FRAME_BYTES);
    let mut cq = CompletionQueue::builder(&context, 64).build().unwrap();
    let mut pair = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle())
        .max_sends(16)
        .build()
        .unwrap()
        .to_rts(PORT)
        .unwrap();
    let bytes = udp(1, 2);
    std::thread::sleep(PAUSE);
    let mut times = Vec::new();
    test_support::assert_wakes("wake-send", HEARTBEAT, || {
        let mut frame = pool.take().unwrap();
        pool.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(&bytes);
        let begun = Instant::now();
        assert!(pair.send(&mut pool, frame, bytes.len(), SendFlags::empty()).is_ok());
        let frame = loop {
            if let Some(mut open) = cq.poll()
                && let Some(completion) = open.next()
            {
                break pool.reclaim(completion).ok().unwrap();
            }
            assert!(begun.elapsed() < PATIENCE, "the engine sleeps on");
            std::thread::yield_now();
        };
        times.push(begun.elapsed());
        pool.release(frame);
    });
    times.sort();
    println!("from posting to the completion: median {:?}", times[times.len() / 2]);
}

/// A wire without a descriptor is asked more often than once in a heartbeat, after a long pause too.
#[test]
fn a_polled_wire_is_asked_again_after_naps() {
    let wanted = Arc::new(AtomicU64::new(0));
    let single = Single { wanted: Arc::clone(&wanted), given: 0, frame: udp(1, 2) };
    let nic = nic("wake-polled", vec![Box::new(single)]);
    std::thread::sleep(PAUSE);
    let (passes, started) = (|| nic.engine_passes()[0], Instant::now());
    loop {
        let pause = || std::thread::sleep(HEARTBEAT * 2);
        let counted = Sleeps::count("wake-polled", 1, passes, pause);
        // A busy machine makes naps longer, but nothing makes sleeps of a heartbeat shorter.
        if counted.iterations > 2 * counted.fitting(HEARTBEAT) {
            println!("naps after a pause: {counted:?}");
            break;
        }
        assert!(started.elapsed() < PATIENCE, "no naps: {counted:?}");
    }
    wanted.store(1, Ordering::Release);
    let begun = Instant::now();
    while nic.port_stats(1).rx_frames < 1 {
        assert!(begun.elapsed() < PATIENCE, "the frame is not taken");
        std::thread::yield_now();
    }
}

#[test]
fn a_sleeping_engine_stops_at_once() {
    let nic = nic("stop-asleep", vec![wire("null")]);
    std::thread::sleep(PAUSE);
    assert!(nic.stop_within(PATIENCE));
}

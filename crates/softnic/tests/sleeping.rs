//! The engine's thread sleeps while there is no work, and wakes for all that is work.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod verbs_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use softnic::wire::{Burst, Rate, RxFrame, TransmitError, Wire, WireConfig};
use softnic::{Drive, Personality, PortConfig, SoftNic, SoftNicConfig};
use verbs::{CompletionQueue, Context, DeviceList, Domain, ProtectionDomain, RawQueuePair, SendFlags};
use verbs_support::{FRAME_BYTES, PORT, pool, udp};

const PATIENCE: Duration = Duration::from_secs(30);
/// An engine that has had nothing to do for this long sleeps as long as it ever does.
const PAUSE: Duration = Duration::from_millis(120);

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

/// The engine's part of a core, in percent.
fn idle_percent(name: &str, wires: Vec<Box<dyn Wire>>) -> f64 {
    let nic = nic(name, wires);
    std::thread::sleep(PAUSE);
    let passes = nic.engine_passes().unwrap();
    let percent = test_support::thread_cpu_percent(name, Duration::from_secs(2));
    let passes = nic.engine_passes().unwrap() - passes;
    println!("{name}: {percent:.3} % of a core, {passes} passes in 2 s");
    assert!(passes >= 10, "its progress shows that it is alive");
    percent
}

#[test]
fn an_idle_engine_uses_less_than_one_percent_of_a_core() {
    assert!(idle_percent("idle-null", vec![wire("null"), wire("loopback")]) < 1.0);
    assert!(idle_percent("idle-rate", vec![generator(10)]) < 1.0);
    // It wakes 250 times a second; on a virtual machine with busy neighbours a wake-up may cost some 50 us.
    assert!(idle_percent("idle-polled", vec![Box::new(Silent)]) < 3.0);
}

/// Sends one frame after a pause. The time is that from posting to the completion.
fn wake_up_times(context: &Arc<Context>, rounds: usize) -> Vec<Duration> {
    let pd = ProtectionDomain::new(context).unwrap();
    let domain = Domain::from(&pd);
    let mut pool = pool(&domain, 16, FRAME_BYTES);
    let mut cq = CompletionQueue::builder(context, 64).build().unwrap();
    let mut pair = RawQueuePair::builder(&domain, &cq.handle(), &cq.handle())
        .max_sends(16)
        .build()
        .unwrap()
        .to_rts(PORT)
        .unwrap();
    let bytes = udp(1, 2);
    let mut times = Vec::new();
    for _ in 0..rounds {
        std::thread::sleep(PAUSE);
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
    }
    times.sort();
    times
}

#[test]
fn a_send_wakes_the_engine() {
    let nic = nic("wake-send", vec![wire("null")]);
    let context = DeviceList::of(&nic).unwrap().find("wake-send").unwrap().open().unwrap();
    let times = wake_up_times(&context, 15);
    println!("from posting to the completion: {:?} to {:?}, median {:?}", times[0], times[14], times[7]);
    // On a busy machine some are late. Without wake-ups they would be anywhere in the 20 ms of a heartbeat.
    assert!(times[2] < Duration::from_millis(1), "{times:?}");
}

/// A wire without a descriptor is asked at least once in four milliseconds.
#[test]
fn a_frame_on_a_polled_wire_is_taken_within_a_nap() {
    let wanted = Arc::new(AtomicU64::new(0));
    let single = Single { wanted: Arc::clone(&wanted), given: 0, frame: udp(1, 2) };
    let nic = nic("wake-polled", vec![Box::new(single)]);
    let mut times = Vec::new();
    for round in 1..=15 {
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        wanted.store(round, Ordering::Release);
        while nic.port_stats(1).rx_frames < round {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        times.push(begun.elapsed());
    }
    times.sort();
    println!("until the frame is received: {:?} to {:?}, median {:?}", times[0], times[14], times[7]);
    assert!(times[2] < Duration::from_millis(5), "{times:?}");
}

#[test]
fn a_sleeping_engine_stops_at_once() {
    let nic = nic("stop-asleep", vec![wire("null")]);
    std::thread::sleep(PAUSE);
    assert!(nic.stop_within(PATIENCE));
}

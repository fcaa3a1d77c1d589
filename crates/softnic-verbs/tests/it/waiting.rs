//! Waiting on a soft NIC with an engine thread: no completion is missed while waiting, and every context
//! receives the events of links and queues.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::verbs_support::*;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{
    AsyncEvent, CompletionChannel, CompletionFields, CompletionQueue, Context, DeviceList, Domain, EventKind,
    EventSource, FlowHandle, PortState, ProtectionDomain,
};
use wire::{Burst, RxFrame, TransmitError, Wire, WireState};

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);

/// The test's end of a [`Line`].
#[derive(Clone, Default)]
struct Remote {
    frames: Arc<Mutex<VecDeque<Vec<u8>>>>,
    unplugged: Arc<AtomicBool>,
}

/// A wire that can be unplugged.
struct Line {
    remote: Remote,
    current: Vec<Vec<u8>>,
}

impl Wire for Line {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let mut frames = self.remote.frames.lock().unwrap();
        let count = frames.len().min(burst.capacity_left());
        self.current = frames.drain(..count).collect();
        for frame in &self.current {
            assert!(burst.push(RxFrame::new(frame)));
        }
    }

    fn transmit(&mut self, _: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn state(&self) -> WireState {
        if self.remote.unplugged.load(Ordering::Relaxed) { WireState::Down } else { WireState::Live }
    }

    fn describe(&self) -> String {
        "line".to_owned()
    }

    fn mtu_bytes(&self) -> u32 {
        1500
    }
}

fn nic(remotes: &[&Remote]) -> SoftNic {
    let ports = remotes.iter().map(|remote| {
        let line = Line { remote: (*remote).clone(), current: Vec::new() };
        PortConfig { wire: Box::new(line), mtu_bytes: 1500 }
    });
    SoftNic::create(SoftNicConfig {
        name: "softnic0".to_owned(),
        personality: Personality::Ideal,
        ports: ports.collect(),
        drive: Drive::Thread { core: None },
    })
    .unwrap()
}

fn open(nic: &SoftNic) -> Arc<Context> {
    DeviceList::of(nic).unwrap().find("softnic0").unwrap().open().unwrap()
}

/// The next asynchronous event.
fn event(context: &Context) -> AsyncEvent {
    let start = Instant::now();
    loop {
        if let Some(event) = context.async_event().unwrap() {
            return event;
        }
        assert!(start.elapsed() < PATIENCE, "no event");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn arming_before_the_last_poll_misses_no_completion() {
    const FRAMES: usize = 3_000;
    let remote = Remote::default();
    let nic = nic(&[&remote]);
    let context = open(&nic);
    let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
    let channel = CompletionChannel::new(&context).unwrap();
    let fields = CompletionFields::BYTE_LEN | CompletionFields::FLOW_TAG;
    let cq = CompletionQueue::builder(&context, 256).fields(fields).channel(&channel, 1).build().unwrap();
    let mut receiver = Receiver::with_cq(&domain, cq, 128);
    let _flow = FlowHandle::create(&single(&domain, &receiver.queue), &ipv4_flow()).unwrap();

    let done = Arc::new(AtomicUsize::new(0));
    let so_far = Arc::clone(&done);
    let injector = std::thread::spawn(move || {
        for index in 0..FRAMES {
            // Never more than there are buffers: a frame that is dropped wakes nobody.
            while index - so_far.load(Ordering::Relaxed) >= 64 {
                std::thread::yield_now();
            }
            remote.frames.lock().unwrap().push_back(udp(1, 2));
            // At all distances from the engine's next look and the receiver's next sleep.
            for _ in 0..(index * 7919) % 4_001 {
                std::hint::spin_loop();
            }
            if index % 64 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    let (mut received, mut events) = (0, 0);
    while received < FRAMES {
        receiver.cq.request_notification(false).unwrap();
        let packets = receiver.drain().len();
        received += packets;
        done.store(received, Ordering::Relaxed);
        if packets == 0 && received < FRAMES {
            assert!(channel.wait(Some(PATIENCE)).unwrap().is_some(), "asleep after {received} of {FRAMES}");
            events += 1;
        }
    }
    injector.join().unwrap();
    assert!(events > 0, "nobody ever slept, so nothing was tried");
    nic.stop();
    assert_eq!(nic.port_stats(1).delivered, FRAMES as u64);
}

#[test]
fn a_period_ends_although_nothing_more_comes() {
    let remote = Remote::default();
    let nic = nic(&[&remote]);
    let context = open(&nic);
    let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
    let channel = CompletionChannel::new(&context).unwrap();
    let cq = CompletionQueue::builder(&context, 64).channel(&channel, 1).build().unwrap();
    let mut receiver = Receiver::with_cq(&domain, cq, 16);
    let _flow = FlowHandle::create(&single(&domain, &receiver.queue), &ipv4_flow()).unwrap();
    receiver.cq.moderate(100, 30_000).unwrap();
    receiver.cq.request_notification(false).unwrap();
    let start = Instant::now();
    remote.frames.lock().unwrap().push_back(udp(1, 2));
    assert!(channel.wait(Some(PATIENCE)).unwrap().is_some());
    assert!(start.elapsed() >= Duration::from_millis(30), "held back for {:?}", start.elapsed());
}

#[test]
fn every_context_hears_of_a_link_that_goes_and_comes() {
    let (first, second) = (Remote::default(), Remote::default());
    let nic = nic(&[&first, &second]);
    let contexts = [open(&nic), open(&nic)];
    let second_port = verbs::PortNumber(2);
    for (unplugged, kind, state) in
        [(true, EventKind::PortError, PortState::Down), (false, EventKind::PortActive, PortState::Active)]
    {
        second.unplugged.store(unplugged, Ordering::Relaxed);
        for context in &contexts {
            let event = event(context);
            assert_eq!(event, AsyncEvent { kind, source: EventSource::Port(second_port) });
            assert_eq!(context.port(second_port).unwrap().state, state);
            assert_eq!(context.port(PORT).unwrap().state, PortState::Active);
        }
    }
    assert_eq!(contexts[0].async_event().unwrap(), None, "once for each change");
}

#[test]
fn an_overrun_sends_events_for_the_queue_and_its_users() {
    let remote = Remote::default();
    let nic = nic(&[&remote]);
    let context = open(&nic);
    let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
    let cq = CompletionQueue::builder(&context, 4).build().unwrap();
    let bystander = Receiver::new(&domain, 8);
    let receiver = Receiver::with_cq(&domain, cq, 8);
    let _flow = FlowHandle::create(&single(&domain, &receiver.queue), &ipv4_flow()).unwrap();
    remote.frames.lock().unwrap().extend((0..6).map(|_| udp(1, 2)));
    assert_eq!(event(&context).kind, EventKind::CompletionQueueError);
    let source = EventSource::WorkQueue { number: receiver.queue.number() };
    assert_eq!(event(&context), AsyncEvent { kind: EventKind::WorkQueueFatal, source });
    assert_eq!(context.async_event().unwrap(), None, "queues elsewhere live on");
    drop((receiver, bystander));
}

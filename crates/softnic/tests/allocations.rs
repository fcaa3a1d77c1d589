//! No allocation in the engine once it is warm: not for deliveries, copies, drops, sends, or frames that find no place.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod verbs_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use softnic::wire::{GeneratorConfig, GeneratorWire};
use softnic::{Drive, Personality, PortConfig, SoftNic, SoftNicConfig};
use verbs::{Counters, DeviceList, Domain, Flow, FlowAttr, FlowKind, FlowSpec, ProtectionDomain};
use verbs_support::{PORT, Receiver, single, udp_flow};

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
}
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting the calls of a thread that asked for it.
struct Counting;

fn note() {
    if COUNTING.try_with(Cell::get).unwrap_or(false) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to `System` unchanged; noting it neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps `alloc`'s contract, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note();
        // SAFETY: `memory` came from `System.alloc` with this layout, as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls to the allocator during `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = CALLS.load(Ordering::Relaxed);
    COUNTING.set(true);
    work();
    COUNTING.set(false);
    CALLS.load(Ordering::Relaxed) - before
}

#[test]
fn the_engine_does_not_allocate_once_it_is_warm() {
    let config: GeneratorConfig = serde_json::from_value(serde_json::json!({
        "rate": "flat-out",
        "flows": [
            { "src": "10.0.0.0/16", "dst_ports": "53", "count": 4096 },
            { "src": "10.1.0.0/16", "dst_ports": "54", "count": 64 },
            { "src": "10.2.0.0/16", "dst_ports": "55", "frame_bytes": 1400 },
            { "src": "2001:db8::/64", "dst": "2001:db8::1", "dst_ports": "56" }
        ]
    }))
    .unwrap();
    let nic = SoftNic::create(SoftNicConfig {
        name: "softnic0".to_owned(),
        personality: Personality::Ideal,
        ports: vec![PortConfig { wire: Box::new(GeneratorWire::open(&config).unwrap()), mtu_bytes: 1500 }],
        drive: Drive::Manual,
    })
    .unwrap();
    let context = DeviceList::of(&nic).unwrap().find("softnic0").unwrap().open().unwrap();
    let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
    let (mut first, mut second) = (Receiver::new(&domain, 128), Receiver::new(&domain, 16));
    let counters = Counters::new(&context).unwrap();
    let to_first = single(&domain, &first.queue);
    let to_second = single(&domain, &second.queue);
    let drop = udp_flow(54, 0).spec(FlowSpec::Drop).spec(FlowSpec::Count(counters.clone()));
    let _flows = [
        Flow::create(&to_first, &udp_flow(53, 1)).unwrap(),
        Flow::create(&to_second, &udp_flow(53, 2)).unwrap(),
        Flow::create(&to_first, &drop).unwrap(),
        Flow::create(&to_second, &udp_flow(55, 3)).unwrap(),
        Flow::create(&to_second, &FlowAttr::new(FlowKind::Sniffer, PORT)).unwrap(),
    ];
    let mut turn = |counted: bool| {
        let mut calls = 0;
        let pump = || {
            nic.pump(64);
        };
        if counted {
            calls = allocations(pump);
        } else {
            pump();
        }
        first.drain();
        second.drain();
        calls
    };
    (0..8).for_each(|_| assert_eq!(turn(false), 0));
    assert_eq!((0..200).map(|_| turn(true)).sum::<u64>(), 0);
    let stats = nic.port_stats(1);
    assert_eq!(stats.rx_frames, stats.dispositions());
    assert!(stats.delivered > 0 && stats.replicated > 0 && stats.flow_dropped > 0, "{stats:?}");
    assert!(counters.read().unwrap().packets > 0);
}

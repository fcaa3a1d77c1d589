//! No allocation in a worker's turn once it runs: not for packets, not for hybrid classes, not while a
//! program is taken over or retired.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use packet::build::FrameBuilder;
use support::Rig;
use worker::{Band, Disposition};

thread_local! {
    static COUNTING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting calls of the thread that asked for it.
struct Counting;

fn note() {
    if COUNTING.try_with(std::cell::Cell::get).unwrap_or(false) {
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

const POLICY: &str = r#"
version = 1
default = "steer every"
[groups.every]
workers = "all"
hash = "l3l4"
[[rules]]
name = "syn"
match = { protocol = "tcp", dst_port = 80, tcp_flags = "syn,!ack" }
action = "drop"
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "every" }
"#;

fn traffic() -> impl Iterator<Item = Vec<u8>> {
    (0..300u16).map(|port| {
        let frame = FrameBuilder::new().ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1));
        match port % 3 {
            0 => frame.udp(port, 53).build(),
            1 => frame.tcp(port, 80, 0x02).build(),
            _ => frame.tcp(port, 80, 0x10).build(),
        }
    })
}

#[test]
fn a_turn_never_allocates() {
    assert!(allocations(|| drop(std::hint::black_box(vec![1u8]))) >= 2, "the counting works");

    let mut rig = Rig::unwitnessed(1, 1);
    let program = rig.install(POLICY);
    let workers = Rc::clone(&rig.workers);
    let control = workers.borrow()[0].control();
    let mut counted = 0;
    for round in 0..6 {
        rig.send(1, traffic());
        while rig.nic.pump(64) > 0 {}
        if round == 2 || round == 4 {
            control.publish(Band::B, Arc::clone(&program));
        }
        let worker = &mut workers.borrow_mut()[0];
        let calls = allocations(|| while worker.step() > 0 {});
        assert_eq!(calls, 0, "round {round}");
        assert_eq!(
            allocations(|| (0..100).for_each(|_| assert_eq!(worker.step(), 0))),
            0,
            "idle turns of round {round}"
        );
        counted += 300;
        let snapshot = control.snapshot();
        assert_eq!(snapshot.received.packets, counted);
        assert_eq!(snapshot.rule("syn", Disposition::Dropped).packets, counted / 3);
    }
    rig.balance();
}

//! No allocation in a worker's iteration once it runs: not for packets, not for hybrid classes, not while a
//! program is taken over or retired.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;

use crate::support::Rig;
use packet::build::FrameBuilder;
use worker::{ChangeStage, Disposition};

/// Calls to the allocator by this thread during `work`: what it took, and what it gave back.
fn allocations(work: impl FnOnce()) -> u64 {
    let counted = allocation_counter::measure(work);
    counted.count_total + counted.count_total.wrapping_add_signed(-counted.count_current)
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
fn an_iteration_never_allocates() {
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
            control.publish(&ChangeStage::Begin(Arc::clone(&program)));
        }
        let worker = &mut workers.borrow_mut()[0];
        let calls = allocations(|| while worker.step() > 0 {});
        assert_eq!(calls, 0, "round {round}");
        assert_eq!(
            allocations(|| (0..400).for_each(|_| assert_eq!(worker.step(), 0))),
            0,
            "idle iterations of round {round}"
        );
        counted += 300;
        let snapshot = control.snapshot();
        assert_eq!(snapshot.received.packets, counted);
        assert_eq!(snapshot.rule("syn", Disposition::Dropped).packets, counted / 3);
    }
    assert!(control.snapshot().batches.count() > 1000, "the distributions were published meanwhile");
    rig.balance();
}

//! Several ports on one engine: none starves the others, and what a wire lost shows in its port's books.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use wire::{Burst, ReceiveCounters, RxFrame, TransmitError, Wire};

/// Always has one more frame, and has lost as many as it is told.
struct Flood {
    lost: Arc<AtomicU64>,
}

impl Wire for Flood {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        while burst.capacity_left() > 0 {
            burst.push(RxFrame::new(&[0xaa; 60]));
        }
    }

    fn transmit(&mut self, _frame: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "flood".to_owned()
    }

    fn mtu_bytes(&self) -> u32 {
        1500
    }

    fn receive_counters(&self) -> ReceiveCounters {
        ReceiveCounters { lost: self.lost.load(Ordering::Relaxed), ..ReceiveCounters::default() }
    }
}

fn nic(ports: usize, lost: &Arc<AtomicU64>, drive: Drive) -> SoftNic {
    let port = || PortConfig { wire: Box::new(Flood { lost: Arc::clone(lost) }), mtu_bytes: 1500 };
    SoftNic::create(SoftNicConfig {
        name: "softnic0".to_owned(),
        personality: Personality::Ideal,
        ports: (0..ports).map(|_| port()).collect(),
        drive,
    })
    .unwrap()
}

#[test]
fn ports_that_never_run_dry_get_equal_parts() {
    let nic = nic(3, &Arc::default(), Drive::Manual);
    for frames in [1, 1, 1, 7, 64, 65, 300, 4096, 10_000] {
        assert_eq!(nic.pump(frames), frames);
    }
    let received = [1, 2, 3].map(|port| nic.port_stats(port).rx_frames);
    assert_eq!(received.iter().sum::<u64>(), 14_535);
    let (least, most) = (received.iter().min().unwrap(), received.iter().max().unwrap());
    assert!(most - least <= 64 * 9, "a burst a pass is all that one may be ahead: {received:?}");
}

#[test]
fn losses_of_a_wire_are_counted_and_no_disposition() {
    let lost = Arc::new(AtomicU64::new(0));
    let nic = nic(1, &lost, Drive::Thread { core: None });
    lost.store(41, Ordering::Relaxed);
    nic.stop();
    let stats = nic.port_stats(1);
    assert_eq!(stats.wire_lost, 41);
    assert_eq!(stats.rx_frames, stats.dispositions());
}

//! An engine that does not come back from its wire: its passes stand still, and nobody waits for it without
//! end.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use wire::{Burst, TransmitError, Wire};

const PATIENCE: Duration = Duration::from_secs(20);

/// Says when its first burst begins, and blocks there until the other end of the second channel is gone.
struct Stuck(Sender<()>, Receiver<()>);

impl Wire for Stuck {
    fn receive<'w>(&'w mut self, _: &mut Burst<'w>) {
        let _ = self.0.send(());
        let _ = self.1.recv();
    }

    fn transmit(&mut self, _frame: &[u8]) -> Result<(), TransmitError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "stuck".to_owned()
    }

    fn mtu_bytes(&self) -> u32 {
        1500
    }
}

fn nic(drive: Drive, wire: Box<dyn Wire>) -> SoftNic {
    SoftNic::create(SoftNicConfig {
        name: "softnic0".to_owned(),
        personality: Personality::Ideal,
        ports: vec![PortConfig { wire, mtu_bytes: 1500 }],
        drive,
    })
    .unwrap()
}

/// A soft NIC whose engine is stuck; it goes on when what is given with it is dropped.
fn stuck_nic() -> (SoftNic, Sender<()>) {
    let (begun, begins) = channel();
    let (release, held) = channel();
    let nic = nic(Drive::Thread { core: None }, Box::new(Stuck(begun, held)));
    begins.recv_timeout(PATIENCE).unwrap();
    (nic, release)
}

#[test]
fn passes_stand_still_while_the_engine_is_stuck_and_a_stop_is_bounded() {
    let (nic, release) = stuck_nic();
    assert_eq!(nic.engine_passes(), [0], "stuck in the first pass");
    drop(release);
    let begun = Instant::now();
    while nic.engine_passes() == [0] {
        assert!(begun.elapsed() < PATIENCE, "it does not go on");
    }
    assert!(nic.stop_within(PATIENCE));

    let (nic, release) = stuck_nic();
    assert!(!nic.stop_within(Duration::from_millis(20)), "it is left running");
    drop(nic);
    drop(release);
}

#[test]
fn an_engine_without_a_thread_has_no_progress_to_watch() {
    let nic = nic(Drive::Manual, Box::new(wire::NullWire));
    nic.pump(1);
    assert_eq!((nic.engine_passes(), nic.stop_within(Duration::ZERO)), (Vec::new(), true));
}

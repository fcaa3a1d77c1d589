//! A measurement: packets per second from this sink to testpmd, beside two testpmd joined by net_memif.
//!
//! `cargo test --release -p worker --lib app::tests::rate -- --ignored --nocapture`, on a machine with two idle cores.

use super::testpmd::Testpmd;
use super::*;

const SECONDS: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;
/// As many as testpmd sends at once.
const BATCH: u32 = 32;
/// Rings that last for some time, where the two processes share cores.
const LOG2_RINGS: u8 = 12;

fn frames() -> Vec<Vec<u8>> {
    let mut frames = flows(BATCH);
    frames.iter_mut().for_each(|frame| frame.resize(64, 0));
    frames
}

/// The time of a worker for one packet, in nanoseconds: the least of many batches, so that other load does not count.
fn cost(mode: AppMode, clients: usize) -> f64 {
    let mut fixture = fixture(1, |options| options.mode = mode);
    let mut clients: Vec<Peer> = (0..clients).map(|_| fixture.connect(1)).collect();
    let sent = frames();
    let times = (0..20_000).map(|_| {
        let begun = Instant::now();
        fixture.endpoints[0].deliver_all(&sent);
        let time = begun.elapsed();
        let received: usize = clients.iter_mut().map(|client| drain(client).len()).sum();
        assert!(received >= sent.len());
        time
    });
    times.min().unwrap_or_default().as_secs_f64() * 1e9 / f64::from(BATCH)
}

/// From the sink to testpmd, which drops what it receives.
fn sink_to_testpmd() -> Option<f64> {
    let mut fixture = fixture(1, |_| {});
    let mut testpmd = Testpmd::start_as("client", &fixture.path(), "rxonly", 1, LOG2_RINGS)?;
    testpmd.command("start");
    eventually("testpmd connects", || fixture.number("clients") == 1);
    let sent = frames();
    let (begun, before) = (Instant::now(), fixture.traffic().delivered.packets);
    while begun.elapsed() < SECONDS {
        fixture.endpoints[0].deliver_all(&sent);
    }
    let delivered = fixture.traffic().delivered.packets - before;
    Some(delivered as f64 / begun.elapsed().as_secs_f64())
}

/// From one testpmd to another one.
fn testpmd_to_testpmd() -> Option<f64> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let mut sender = Testpmd::start_as("server", &socket, "txonly", 1, LOG2_RINGS)?;
    eventually("testpmd listens", || socket.exists());
    let mut receiver = Testpmd::start_as("client", &socket, "rxonly", 1, LOG2_RINGS)?;
    receiver.command("start");
    sender.command("start");
    eventually("packets arrive", || receiver.traffic().0 > 0);
    let (begun, before) = (Instant::now(), receiver.traffic().0);
    std::thread::sleep(SECONDS);
    let received = receiver.traffic().0 - before;
    Some(received as f64 / begun.elapsed().as_secs_f64())
}

#[test]
#[ignore = "a measurement"]
fn hand_off_beside_net_memif() {
    for (mode, clients) in [(AppMode::Copy, 1), (AppMode::Copy, 2), (AppMode::Share, 1), (AppMode::Share, 2)]
    {
        println!("{mode:?} with {clients} clients: {:.0} ns of the worker per packet", cost(mode, clients));
    }
    for round in 1..=ROUNDS {
        let (Some(sink), Some(memif)) = (sink_to_testpmd(), testpmd_to_testpmd()) else { return };
        println!(
            "round {round}: sink to testpmd {:.2} Mpps, testpmd to testpmd {:.2} Mpps, ratio {:.2}",
            sink / 1e6,
            memif / 1e6,
            sink / memif
        );
    }
}

//! Frames that clients send: by a port of a soft NIC that is driven by hand, and the share of each client.

use softnic_verbs::SoftNic;
use verbs::Domain;

use super::*;
use crate::FrameBudget;
use crate::sinks::Station;
use crate::sinks::outgoing::END_PATIENCE;

const MTU: u32 = 1500;

/// A sink with one worker that sends by port 2.
struct Sending {
    fixture: Fixture,
    nic: SoftNic,
    sent: Arc<SinkCounters>,
}

fn sending(name: &str, mtu_bytes: Option<u32>) -> Sending {
    sending_until(name, mtu_bytes, END_PATIENCE)
}

/// With the time that the end waits for sends in flight.
fn sending_until(name: &str, mtu_bytes: Option<u32>, end_patience: Duration) -> Sending {
    let (nic, context) = crate::receiver::tests::nic(name, MTU);
    let parts = crate::assembly::assemble(&context, &crate::receiver::tests::config()).unwrap();
    let domains: [Domain; 1] = [parts.domain];
    let environment = Environment {
        context: &context,
        domains: &domains,
        budgets: &[Arc::new(FrameBudget::new(16))],
        ports: &[1, 2],
        stations: &[Station { port: 2, mac: None, mtu_bytes, interface_index: None }],
        others: None,
    };
    let folder = tempfile::tempdir().unwrap();
    let options = AppSink { transmit: true, port: Some(2), ..options(folder.path()) };
    let (port, mut transmits) = transmits("apps", &options, &environment).unwrap();
    transmits.iter_mut().flatten().for_each(|transmit| transmit.outgoing.end_patience = end_patience);
    let sent = Arc::clone(&transmits[0].as_ref().unwrap().outgoing.counters);
    let (app, endpoints) = start("apps", &options, Some(port), transmits).unwrap();
    Sending { fixture: Fixture { folder, app, endpoints }, nic, sent }
}

impl Sending {
    fn step(&mut self) {
        self.fixture.endpoints[0].take();
        self.nic.pump(64);
    }

    /// The packets that were sent and dropped of those that were taken, when nothing is in flight any more.
    fn counted(&mut self) -> (u64, Vec<(SinkDrop, u64)>) {
        eventually("nothing is in flight", || {
            self.step();
            self.sent.read().in_flight() == 0
        });
        let traffic = self.sent.read();
        let dropped = traffic.dropped.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(traffic.delivered.packets, self.nic.port_stats(2).tx_frames, "what the port has sent");
        assert_eq!(traffic.delivered.bytes, self.nic.port_stats(2).tx_bytes);
        (traffic.delivered.packets, dropped)
    }
}

fn send(client: &mut Peer, ring: usize, frames: &[Vec<u8>]) {
    for frame in frames {
        assert_eq!(client.senders[ring].put(frame), Ok(Put::Done));
    }
    client.publish(ring);
}

fn frame(bytes: usize) -> Vec<u8> {
    FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(1, 2).frame_bytes(bytes).build()
}

#[test]
fn frames_of_clients_leave_by_the_port() {
    let mut sending = sending("apptx0", None);
    let mut client = sending.fixture.connect(2);
    for round in 1..=40 {
        send(&mut client, 0, &vec![frame(60); 10]);
        send(&mut client, 1, &vec![frame(1514); 10]);
        assert_eq!(sending.counted(), (20 * round, Vec::new()));
    }
    assert_eq!(sending.fixture.number("returned"), 800);
    assert_eq!(sending.fixture.number("port"), 2);
    assert_eq!(sending.nic.port_stats(1).tx_frames, 0);
}

#[test]
fn what_the_port_does_not_take_is_dropped_by_reason() {
    let mut sending = sending("apptx1", Some(1400));
    let mut client = sending.fixture.connect(1);
    let tagged = FrameBuilder::new().vlan(packet::EtherType::VLAN, 3);
    let tagged = tagged.ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(1, 2).frame_bytes(1418).build();
    send(&mut client, 0, &[frame(1414), tagged, frame(1415), frame(1514), vec![0; 9000], vec![2; 13]]);
    let dropped = vec![(SinkDrop::TooLong, 3), (SinkDrop::TooShort, 1)];
    assert_eq!(sending.counted(), (2, dropped));
    let returned = ["returned", "returned_too_long"].map(|name| sending.fixture.of_client(0, name));
    assert_eq!(returned, [3, 3]);
    sending.fixture.app.tick(&Ports { down: &[2], stations: &[] });
    send(&mut client, 0, &vec![frame(60); 5]);
    let (sent, dropped) = sending.counted();
    assert_eq!((sent, dropped.contains(&(SinkDrop::Down, 5))), (2, true), "{dropped:?}");
    sending.fixture.app.tick(&Ports::default());
    send(&mut client, 0, &vec![frame(60); 5]);
    assert_eq!(sending.counted().0, 7);
}

/// While the device takes nothing, frames stay in the ring of the client; none is lost.
#[test]
fn a_port_that_stalls_makes_clients_wait() {
    let mut sending = sending("apptx2", None);
    let mut client = sending.fixture.connect(1);
    let mut accepted = 0;
    for _ in 0..100 {
        while client.senders[0].put(&frame(60)) == Ok(Put::Done) {
            accepted += 1;
        }
        client.publish(0);
        sending.fixture.endpoints[0].take();
    }
    let full = sending.fixture.number("returned");
    assert_eq!((full, accepted), (256, 256 + (1 << LOG2)), "as many as can be in flight, and the ring");
    assert_eq!(sending.counted(), (accepted, Vec::new()));
}

#[test]
fn a_failed_queue_pair_is_replaced_and_sends_again() {
    let mut sending = sending("apptx3", None);
    let mut client = sending.fixture.connect(1);
    let port = sending.fixture.app.port.as_ref().unwrap();
    port.fail_all();
    send(&mut client, 0, &vec![frame(60); 5]);
    let (sent, dropped) = sending.counted();
    assert_eq!((sent, dropped), (0, vec![(SinkDrop::TxFailed, 5)]));
    send(&mut client, 0, &vec![frame(60); 7]);
    sending.step();
    assert_eq!(sending.fixture.number("returned"), 5, "frames wait for the repair");
    sending.step();
    sending.fixture.app.tick(&Ports::default());
    assert_eq!(sending.fixture.number("queue_pairs_replaced"), 1);
    eventually("the rest is sent", || {
        sending.step();
        sending.sent.read().delivered.packets == 7
    });
}

/// Packets that are in flight when the sink is closed are counted.
#[test]
fn counters_add_up_when_the_sink_is_closed() {
    let mut sending = sending_until("apptx4", None, Duration::ZERO);
    let mut client = sending.fixture.connect(1);
    send(&mut client, 0, &vec![frame(60); 9]);
    sending.fixture.endpoints[0].take();
    sending.fixture.endpoints.clear();
    let traffic = sending.sent.read();
    assert_eq!((traffic.in_flight(), traffic.offered.packets), (0, 9), "{traffic:?}");
}

#[test]
fn completions_are_looked_for_soon_while_sends_are_in_flight() {
    let mut sending = sending("apptx5", None);
    let mut client = sending.fixture.connect(1);
    assert_eq!(sending.fixture.endpoints[0].poll_interval(), None, "it has not seen the client yet");
    send(&mut client, 0, &vec![frame(60); 9]);
    sending.fixture.endpoints[0].take();
    drop(client);
    eventually("the client left", || sending.fixture.number("clients") == 0);
    sending.fixture.endpoints[0].take();
    let interval = |sending: &Sending| sending.fixture.endpoints[0].poll_interval();
    let first = interval(&sending).expect("sends are in flight");
    assert!(first <= Duration::from_micros(100), "{first:?}");
    let later = std::iter::repeat_with(|| interval(&sending)).take(20).last().flatten();
    assert_eq!(later, Some(crate::sink::POLL_INTERVAL), "a port that stalls is looked at less often");
    assert_eq!(sending.counted(), (9, Vec::new()));
    assert_eq!(interval(&sending), None);
}

/// A sink that is removed completes its sends, and takes nothing more.
#[test]
fn a_removed_sink_counts_what_was_sent() {
    let mut sending = sending("apptx6", None);
    let mut client = sending.fixture.connect(1);
    send(&mut client, 0, &vec![frame(60); 9]);
    sending.fixture.endpoints[0].take();
    sending.fixture.endpoints[0].retire();
    send(&mut client, 0, &vec![frame(60); 9]);
    assert!(sending.fixture.endpoints[0].holds_frames());
    assert_eq!(sending.counted(), (9, Vec::new()), "what came later was not taken");
    assert!(!sending.fixture.endpoints[0].holds_frames());
}

#[test]
fn an_endpoint_that_is_dropped_waits_for_its_sends() {
    let mut sending = sending_until("apptx7", None, PATIENCE);
    let mut client = sending.fixture.connect(1);
    send(&mut client, 0, &vec![frame(60); 9]);
    sending.fixture.endpoints[0].take();
    let endpoints = std::mem::take(&mut sending.fixture.endpoints);
    let dropped = std::thread::spawn(move || drop(endpoints));
    // As an engine with a thread of its own.
    while !dropped.is_finished() {
        sending.nic.pump(1);
        std::thread::sleep(Duration::from_millis(1));
    }
    let traffic = sending.sent.read();
    assert_eq!((traffic.delivered.packets, traffic.in_flight()), (9, 0), "{traffic:?}");
}

/// Clients with many full rings and one with a single frame: the frame is taken in the first iteration, and
/// those with more get the same amounts.
#[test]
fn a_client_with_full_rings_takes_no_share_of_others() {
    const ROUNDS: usize = 40;
    let mut fixture = fixture(1, |_| {});
    let mut greedy = [fixture.connect(16), fixture.connect(2), fixture.connect(1)];
    let mut modest = fixture.connect(1);
    let returned = |fixture: &Fixture, client: usize| fixture.of_client(client, "returned");
    for round in 1..=ROUNDS as u64 {
        for client in &mut greedy {
            for ring in 0..client.senders.len() {
                while client.senders[ring].put(&[7; 1500]) == Ok(Put::Done) {}
                client.publish(ring);
            }
        }
        send(&mut modest, 0, &[vec![7; 60]]);
        fixture.endpoints[0].take();
        assert_eq!(returned(&fixture, 3), round, "it waits for nobody");
    }
    let all: Vec<u64> = (0..3).map(|client| returned(&fixture, client)).collect();
    let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
    assert!(*least * 2 > *most, "{all:?}");
    let bytes: u64 = all.iter().sum::<u64>() * 1500;
    assert!(bytes <= ROUNDS as u64 * ((128 << 10) + 1500), "an iteration is bounded: {all:?}");
}

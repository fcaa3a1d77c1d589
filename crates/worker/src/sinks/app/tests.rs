//! The sink with clients in this process: modes, back-pressure, hostile clients, access, and clients that
//! come and go.

use std::path::Path;
use std::time::{Duration, Instant};

use packet::build::FrameBuilder;
use program::AppMode;
use shm::memif::client::{Client as Peer, ClientError, Config};
use shm::memif::ring::{Put, TakenFrame, Violation, ring_bytes};

use super::endpoint::Frames;
use super::*;
use crate::sink::{SinkCounters, SinkDrop, SinkTraffic};

mod testpmd;
mod transmit;

const PATIENCE: Duration = Duration::from_secs(60);
/// Rings of the clients here: 2^LOG2 descriptors.
const LOG2: u8 = 5;

impl Frames for [Vec<u8>] {
    fn each(&self, mut visit: impl FnMut(&[u8])) {
        self.iter().for_each(|frame| visit(frame));
    }
}

impl Endpoint {
    fn deliver_all(&mut self, frames: &[Vec<u8>]) {
        struct All<'f>(&'f [Vec<u8>]);
        impl Frames for All<'_> {
            fn each(&self, visit: impl FnMut(&[u8])) {
                self.0.each(visit);
            }
        }
        self.deliver(&All(frames));
    }
}

/// A sink with its folder.
struct Fixture {
    folder: tempfile::TempDir,
    app: App,
    endpoints: Vec<Endpoint>,
}

fn options(folder: &Path) -> AppSink {
    AppSink::new(folder.join("app.sock"))
}

fn fixture(workers: usize, change: impl FnOnce(&mut AppSink)) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    change(&mut options);
    let (app, endpoints) = start("apps", &options, None, (0..workers).map(|_| None).collect()).unwrap();
    Fixture { folder, app, endpoints }
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Fixture {
    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("app.sock")
    }

    fn connect(&self, rings: u16) -> Peer {
        let before = self.number("connected");
        let config = Config { rings, log2_ring_size: LOG2, timeout: PATIENCE, ..Config::default() };
        let client = Peer::connect(&self.path(), &config).unwrap();
        eventually("the client is in the status", || self.number("connected") > before);
        client
    }

    /// The connected clients as the status shows them.
    fn clients(&self) -> Vec<SinkStatus> {
        self.app.status().list("connected_clients").to_vec()
    }

    fn number(&self, name: &str) -> u64 {
        self.app.status().number(name).unwrap()
    }

    /// A number of one connected client, by its place.
    fn of_client(&self, client: usize, name: &str) -> u64 {
        self.clients()[client].number(name).unwrap()
    }

    fn traffic(&self) -> SinkTraffic {
        let mut counters = self.endpoints.iter().map(|endpoint| endpoint.counters.read());
        let mut sum = counters.next().unwrap();
        counters.for_each(|counters| sum += &counters);
        assert_eq!(sum.in_flight(), 0, "every packet is delivered or dropped: {sum:?}");
        sum
    }

    fn dropped(&self, reason: SinkDrop) -> u64 {
        self.traffic().dropped[reason as usize].1
    }
}

fn flows(count: u32) -> Vec<Vec<u8>> {
    let frame = |flow: u32| {
        let [a, b, c, d] = (0x0a00_0000 + flow).to_be_bytes();
        FrameBuilder::new().ipv4([a, b, c, d].into(), [192, 0, 2, 1].into()).udp(1024, 53).build()
    };
    (0..count).map(frame).collect()
}

fn drain(client: &mut Peer) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut to = vec![0; 65_536];
    for ring in &mut client.receivers {
        while let TakenFrame::Frame(length) = ring.take(&mut to).unwrap() {
            frames.push(to[..length].to_vec());
        }
        ring.publish().unwrap();
    }
    frames
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

#[test]
fn in_mode_copy_each_client_gets_every_packet() {
    let mut fixture = fixture(1, |_| {});
    let (mut first, mut second) = (fixture.connect(1), fixture.connect(2));
    for _ in 0..10 {
        let sent = flows(20);
        fixture.endpoints[0].deliver_all(&sent);
        assert_eq!(drain(&mut first), sent);
        assert_eq!(drain(&mut second), sent);
    }
    let traffic = fixture.traffic();
    assert_eq!((traffic.offered.packets, traffic.delivered.packets), (200, 200), "a packet counts once");
    assert_eq!(traffic.offered.bytes, traffic.delivered.bytes);
    assert_eq!((fixture.of_client(1, "delivered"), fixture.of_client(1, "ring_full")), (200, 0));
}

#[test]
fn in_mode_share_each_client_gets_whole_flows() {
    let mut fixture = fixture(1, |options| options.mode = AppMode::Share);
    let mut clients = vec![fixture.connect(1), fixture.connect(1), fixture.connect(1)];
    let all = sorted(flows(24));
    let deliver = |fixture: &mut Fixture, clients: &mut Vec<Peer>| -> Vec<Vec<Vec<u8>>> {
        fixture.endpoints[0].deliver_all(&all);
        clients.iter_mut().map(drain).collect()
    };
    let before = deliver(&mut fixture, &mut clients);
    assert_eq!(sorted(before.concat()), all, "each packet once");
    assert!(before.iter().all(|frames| !frames.is_empty()), "{:?}", before.iter().map(Vec::len));
    assert_eq!(deliver(&mut fixture, &mut clients), before, "a flow stays with its client");
    clients.remove(1).close("done");
    eventually("the client left", || fixture.number("left") == 1);
    let after = deliver(&mut fixture, &mut clients);
    assert_eq!(sorted(after.concat()), all);
    for (client, flows) in [(0, &before[0]), (1, &before[2])] {
        assert!(flows.iter().all(|flow| after[client].contains(flow)), "flows of other clients stay");
    }
    assert_eq!(fixture.traffic().delivered.packets, 72);
}

#[test]
fn what_cannot_be_delivered_is_counted_by_reason() {
    let mut fixture = fixture(1, |_| {});
    fixture.endpoints[0].deliver_all(&flows(3));
    assert_eq!(fixture.dropped(SinkDrop::NoClient), 3);
    let mut client = fixture.connect(1);
    let size = 1 << LOG2;
    fixture.endpoints[0].deliver_all(&flows(size + 8));
    assert_eq!((fixture.dropped(SinkDrop::RingFull), drain(&mut client).len() as u32), (8, size));
    fixture.endpoints[0].deliver_all(&[vec![0; 2048 * size as usize + 1], vec![0; 60]]);
    assert_eq!((fixture.dropped(SinkDrop::TooLong), drain(&mut client).len()), (1, 1));
    // A second client that takes everything: now the first one's full ring concerns only itself.
    let mut second = fixture.connect(1);
    for _ in 0..10 {
        fixture.endpoints[0].deliver_all(&flows(8));
        assert_eq!(drain(&mut second).len(), 8);
    }
    assert_eq!(fixture.dropped(SinkDrop::RingFull), 8, "delivered to the second");
    assert_eq!(fixture.of_client(0, "ring_full"), 56);
}

#[test]
fn a_chain_carries_a_frame_longer_than_a_buffer() {
    let mut fixture = fixture(1, |_| {});
    let mut client = fixture.connect(1);
    let long: Vec<u8> = (0..9000u32).map(|at| (at % 251) as u8).collect();
    fixture.endpoints[0].deliver_all(std::slice::from_ref(&long));
    assert_eq!(drain(&mut client), [long]);
}

#[test]
fn frames_of_clients_are_taken_and_counted() {
    let mut fixture = fixture(2, |_| {});
    let mut client = fixture.connect(3);
    for ring in 0..3 {
        for _ in 0..5 {
            assert_eq!(client.senders[ring].put(&[7; 100]), Ok(Put::Done));
        }
        client.publish(ring);
    }
    for endpoint in &mut fixture.endpoints {
        endpoint.take();
    }
    assert_eq!(fixture.number("returned"), 15);
    for _ in 0..1 << LOG2 {
        assert_eq!(client.senders[0].put(&[7; 100]), Ok(Put::Done), "the descriptors came back");
    }
    client.publish(0);
    fixture.endpoints[0].take();
    assert_eq!(client.senders[1].put(&[7; 20_000]), Ok(Put::Done));
    client.publish(1);
    for endpoint in &mut fixture.endpoints {
        endpoint.take();
    }
    assert_eq!((fixture.of_client(0, "returned"), fixture.of_client(0, "returned_too_long")), (47, 1));
}

/// The values that a client can write into its memory, and the violation that is found. Ring 0 to the server
/// is at 0, the ring to the client behind it; see `shm::memif::ring` for the layout.
fn lies() -> Vec<(&'static str, Violation, usize, Vec<u8>)> {
    let to_client = ring_bytes(LOG2);
    let descriptor = to_client + 128;
    let each = |at: usize, field: Vec<u8>| (at, field);
    let head = each(to_client + 6, (1u16 << LOG2).wrapping_add(1).to_ne_bytes().to_vec());
    let region = each(descriptor + 2, 9u16.to_ne_bytes().to_vec());
    let length = each(descriptor + 4, 10u32.to_ne_bytes().to_vec());
    let too_far = each(descriptor + 8, u32::MAX.to_ne_bytes().to_vec());
    let sends = each(6, 60_000u16.to_ne_bytes().to_vec());
    vec![
        ("head", Violation::Index, head.0, head.1),
        ("region", Violation::Region, region.0, region.1),
        ("length", Violation::Length, length.0, length.1),
        ("offset", Violation::Offset, too_far.0, too_far.1),
        ("head of the ring to the server", Violation::Index, sends.0, sends.1),
    ]
}

#[test]
fn a_client_that_lies_is_disconnected_and_harms_nobody() {
    for (what, violation, at, bytes) in lies() {
        let mut fixture = fixture(1, |_| {});
        let (mut honest, liar) = (fixture.connect(1), fixture.connect(1));
        assert!(liar.memory().write(at, &bytes));
        let mut received = 0;
        eventually(what, || {
            fixture.endpoints[0].deliver_all(&flows(4));
            fixture.endpoints[0].take();
            received += drain(&mut honest).len() as u64;
            fixture.number("violations") == 1
        });
        let traffic = fixture.traffic();
        assert_eq!((received, traffic.delivered.packets), (traffic.offered.packets, received), "{what}");
        assert_eq!(fixture.number("clients"), 1);
        let status = fixture.app.status();
        let gone = &status.list("gone_clients")[0];
        assert_eq!(gone.number("id"), Some(2));
        assert!(gone.text("name").is_some_and(|name| name.starts_with("steerd-client/memif0")), "{gone:?}");
        assert_eq!(gone.number("process"), Some(u64::from(std::process::id())));
        assert_eq!(gone.text("reason"), Some(&*format!("disconnected: {violation}")));
        eventually(
            "the client learns the reason",
            || matches!(liar.check(), Err(ClientError::Closed { reason }) if reason == violation.to_string()),
        );
    }
}

#[test]
fn random_memory_of_a_client_is_survived() {
    let mut fixture = fixture(1, |_| {});
    let mut honest = fixture.connect(1);
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32
    };
    let rings = 2 * ring_bytes(LOG2);
    let mut received = 0;
    for _ in 0..60 {
        let liar = fixture.connect(1);
        for _ in 0..20 {
            let at = random() as usize % rings;
            let _ = liar.memory().write(at, &random().to_ne_bytes());
            fixture.endpoints[0].deliver_all(&flows(4));
            fixture.endpoints[0].take();
            received += drain(&mut honest).len() as u64;
        }
    }
    let traffic = fixture.traffic();
    assert_eq!((received, traffic.delivered.packets), (traffic.offered.packets, received));
    assert!(fixture.number("violations") > 10, "{:?}", fixture.app.status());
}

#[test]
fn workers_that_share_a_ring_take_turns() {
    const ROUNDS: u64 = 300;
    let mut fixture = fixture(3, |_| {});
    let mut client = fixture.connect(1);
    let endpoints = std::mem::take(&mut fixture.endpoints);
    let counters: Vec<_> = endpoints.iter().map(|endpoint| Arc::clone(&endpoint.counters)).collect();
    let sent = flows(8);
    let received = std::thread::scope(|scope| {
        let workers: Vec<_> = endpoints
            .into_iter()
            .map(|mut endpoint| {
                let sent = &sent;
                scope.spawn(move || (0..ROUNDS).for_each(|_| endpoint.deliver_all(sent)))
            })
            .collect();
        let mut received = 0;
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            received += drain(&mut client).len() as u64;
        }
        received + drain(&mut client).len() as u64
    });
    let mut delivered = 0;
    for counters in counters {
        let traffic = counters.read();
        assert_eq!((traffic.in_flight(), traffic.offered.packets), (0, ROUNDS * 8));
        delivered += traffic.delivered.packets;
    }
    assert_eq!(received, delivered, "what workers counted as delivered has arrived, whole");
}

#[test]
fn the_memory_of_a_client_that_left_is_unmapped_when_workers_gave_it_up() {
    let mut fixture = fixture(1, |_| {});
    let client = fixture.connect(1);
    fixture.endpoints[0].deliver_all(&flows(1));
    let shared = Arc::downgrade(&fixture.app.shared.clients()[0]);
    drop(client);
    eventually("the client left", || fixture.number("clients") == 0);
    std::thread::sleep(Duration::from_millis(30));
    assert!(shared.upgrade().is_some(), "the worker still has it");
    fixture.endpoints[0].take();
    eventually("it is unmapped", || shared.strong_count() == 0);
}

#[test]
fn clients_that_come_and_go_a_hundred_times_disturb_nobody() {
    let mut fixture = fixture(1, |options| options.clients = 4);
    let mut steady = fixture.connect(1);
    let mut endpoint = fixture.endpoints.remove(0);
    let counters = Arc::clone(&endpoint.counters);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let received = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let sent = flows(8);
            while !stop.load(Ordering::Relaxed) {
                endpoint.deliver_all(&sent);
                endpoint.take();
                std::thread::yield_now();
            }
        });
        let reader = scope.spawn(|| {
            let mut received = 0;
            while !stop.load(Ordering::Relaxed) {
                received += drain(&mut steady).len() as u64;
                std::thread::yield_now();
            }
            received
        });
        for round in 0..100 {
            let before = fixture.number("left");
            let mut client = fixture.connect(1);
            let _ = drain(&mut client);
            if round % 2 == 0 {
                client.close("done");
            } else {
                drop(client);
            }
            eventually("it left", || fixture.number("left") > before);
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        reader.join().unwrap()
    });
    let received = received + drain(&mut steady).len() as u64;
    let traffic = counters.read();
    assert_eq!(traffic.in_flight(), 0);
    assert_eq!((fixture.of_client(0, "id"), fixture.of_client(0, "delivered")), (1, received));
    assert_eq!((fixture.number("clients"), fixture.number("connected")), (1, 101));
    drop(endpoint);
}

#[test]
fn the_number_of_clients_is_limited() {
    let fixture = fixture(1, |options| options.clients = 1);
    let _client = fixture.connect(1);
    let error = Peer::connect(&fixture.path(), &Config::default()).unwrap_err();
    assert!(matches!(&error, ClientError::Closed { reason } if reason.contains("1 clients are")), "{error}");
    assert_eq!((fixture.number("denied"), fixture.number("clients")), (1, 1));
}

#[test]
fn a_client_that_wants_too_much_memory_is_refused() {
    let fixture = fixture(1, |options| options.client_mib = 1);
    let error = Peer::connect(&fixture.path(), &Config::default()).unwrap_err();
    assert!(
        matches!(&error, ClientError::Closed { reason } if reason.contains("1048576 are allowed")),
        "{error}"
    );
    assert_eq!(fixture.number("failed_handshakes"), 1);
}

#[test]
fn a_handshake_that_stalls_ends() {
    let fixture = fixture(1, |_| {});
    let silent = shm::Channel::connect(&fixture.path()).unwrap();
    let begun = Instant::now();
    eventually("the server closes the connection", || matches!(silent.receive(), shm::Received::End));
    assert!(begun.elapsed() >= server::HANDSHAKE);
    let _client = fixture.connect(1);
}

#[test]
fn the_work_for_clients_per_iteration_is_bounded_and_goes_round() {
    let mut fixture = fixture(1, |options| options.rings = 8);
    // Eight rings of 2^10 descriptors full of frames of one descriptor, from clients that do not wait for
    // anything.
    let config = Config { rings: 8, log2_ring_size: 10, timeout: PATIENCE, ..Config::default() };
    let mut clients: Vec<_> = (0..3).map(|_| Peer::connect(&fixture.path(), &config).unwrap()).collect();
    eventually("they are connected", || fixture.number("clients") == 3);
    for client in &mut clients {
        for ring in 0..8 {
            while client.senders[ring].put(&[7; 60]) == Ok(Put::Done) {}
            client.publish(ring);
        }
    }
    let mut before = 0;
    for _ in 0..3 * 8 {
        fixture.endpoints[0].take();
        let returned = fixture.number("returned");
        assert!(returned - before <= 256, "{returned}");
        before = returned;
    }
    let returned: Vec<u64> = (0..3).map(|client| fixture.of_client(client, "returned")).collect();
    assert!(returned.iter().all(|returned| *returned > 0), "each has its turn: {returned:?}");
}

#[test]
fn a_client_that_chains_without_end_or_empty_pieces_is_disconnected() {
    for (pieces, length) in [(2000, 1u32), (2, 0)] {
        let mut fixture = fixture(1, |options| options.ring_size = 1 << 14);
        let config = Config { log2_ring_size: 14, buffer_bytes: 64, timeout: PATIENCE, ..Config::default() };
        let mut liar = Peer::connect(&fixture.path(), &config).unwrap();
        eventually("it is connected", || fixture.number("clients") == 1);
        // One frame of many descriptors, of which the last has a byte.
        for piece in 0..pieces {
            assert_eq!(liar.senders[0].put(&[7]), Ok(Put::Done));
            let descriptor = 128 + 16 * piece;
            if piece < pieces - 1 {
                assert!(liar.memory().write(descriptor, &1u16.to_ne_bytes()));
                assert!(liar.memory().write(descriptor + 4, &length.to_ne_bytes()));
            }
        }
        liar.publish(0);
        fixture.endpoints[0].take();
        eventually("it is disconnected", || fixture.number("violations") == 1);
        assert_eq!(fixture.number("returned"), 0);
    }
}

#[test]
fn without_free_descriptors_the_thread_waits_and_accepts_later() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::time::{ClockId, clock_gettime};
    if !test_support::is_alone(
        "sinks::app::tests::without_free_descriptors_the_thread_waits_and_accepts_later",
    ) {
        return;
    }
    let fixture = fixture(1, |_| {});
    let path = fixture.path();
    let before = getrlimit(Resource::Nofile);
    let client = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    // As many as poll(2) has at least, and all of them are used.
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).unwrap();
    rustix::net::connect(&client, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    let cpu = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
    let begun = cpu();
    std::thread::sleep(Duration::from_millis(500));
    let used = cpu() - begun;
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(used < Duration::from_millis(100), "{used:?} in 500 ms");
    let channel = shm::Channel::from(client);
    eventually("it is accepted", || matches!(channel.receive(), shm::Received::Message(..)));
}

/// A TCP socket whose close waits as long as the other end, which is returned too, takes nothing.
fn slow_to_close() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other_end, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&sender, Some(PATIENCE)).unwrap();
    sender.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut sender, &[0; 65_536]).is_ok() {}
    (sender, other_end)
}

#[test]
fn files_that_close_slowly_delay_nobody() {
    use std::os::fd::AsFd;
    // A child process that another test starts would have copies of the sockets, and wait in exec.
    if !test_support::is_alone("sinks::app::tests::files_that_close_slowly_delay_nobody") {
        return;
    }
    let fixture = fixture(1, |options| options.clients = 2);
    let honest = fixture.connect(1);
    // The sink may have closed a connection before anything is sent (EPIPE). Then the next one is tried,
    // until one has passed the file on.
    let send = |message| {
        let (slow, other_end) = slow_to_close();
        let mut sent = None;
        eventually("a connection takes the file", || {
            let channel = shm::Channel::connect(&fixture.path()).unwrap();
            match channel.send(&message, Some(slow.as_fd())) {
                Err(rustix::io::Errno::PIPE) => false,
                result => {
                    result.unwrap();
                    sent = Some(channel);
                    true
                }
            }
        });
        // The sink may have closed it already, and then this close waits.
        std::thread::spawn(move || drop(slow));
        (sent, other_end)
    };
    let begun = Instant::now();
    // One that is refused by its message, and one that is denied.
    let mut ends = vec![send(shm::memif::message::Message::Ack)];
    eventually("it is refused", || fixture.number("failed_handshakes") == 1);
    let second = fixture.connect(1);
    ends.push(send(shm::memif::message::Message::Ack));
    eventually("it is denied", || fixture.number("denied") > 0);
    drop(second);
    eventually("the second client left", || fixture.number("clients") == 1);
    let _third = fixture.connect(1);
    assert!(honest.check().is_ok());
    drop(fixture.app);
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    drop(ends);
}

/// Runs `act` on a thread of another user. The kernel takes the credentials of the thread (unix(7),
/// SO_PEERCRED).
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> Option<T> {
    let act = || {
        let (uid, gid) = (rustix::process::Uid::from_raw(user), rustix::process::Gid::from_raw(user));
        rustix::thread::set_thread_groups(&[]).ok()?;
        rustix::thread::set_thread_res_gid(gid, gid, gid).ok()?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).ok()?;
        Some(act())
    };
    let result = std::thread::scope(|scope| scope.spawn(act).join().unwrap());
    if result.is_none() {
        test_support::not_run("access of other users to a sink", "it needs root");
    }
    result
}

/// A user who connects and sends nothing leaves handshakes for others.
#[test]
fn a_user_cannot_have_all_handshakes() {
    use std::os::unix::fs::PermissionsExt;
    let other = 65_534;
    let fixture = fixture(1, |options| {
        (options.uids, options.socket_mode, options.clients) = (vec![other], 0o666, 64);
    });
    std::fs::set_permissions(fixture.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = fixture.path();
    let connect = || (0..12).map(|_| shm::Channel::connect(&path).unwrap()).collect::<Vec<_>>();
    let Some(silent) = as_user(other, connect) else { return };
    eventually("those beyond the limit are refused", || fixture.number("denied") >= 4);
    let _own = fixture.connect(1);
    assert_eq!(fixture.number("clients"), 1);
    drop(silent);
}

/// Handshakes that are not completed take no place of a client, and one user has a part of them only.
#[test]
fn unfinished_handshakes_keep_nobody_out() {
    use std::os::unix::fs::PermissionsExt;
    let users = [65_531, 65_532, 65_533, 65_534];
    let fixture = fixture(1, |options| {
        (options.uids, options.socket_mode, options.clients) = (users.to_vec(), 0o666, 2);
    });
    std::fs::set_permissions(fixture.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = fixture.path();
    // While the queue of the socket is full, connecting fails with EAGAIN.
    let connection = |_| {
        let mut channel = None;
        eventually("there is room in the socket", || {
            channel = shm::Channel::connect(&path).ok();
            channel.is_some()
        });
        channel.unwrap()
    };
    let silent = || (0..server::USER_PENDING_MAX).map(connection);
    let mut held = Vec::new();
    let begun = Instant::now();
    for user in &users[1..] {
        let Some(channels) = as_user(*user, || silent().collect::<Vec<_>>()) else { return };
        held.extend(channels);
    }
    let connect = || Peer::connect(&path, &Config::default()).unwrap();
    let other = as_user(users[0], connect);
    held.extend(as_user(users[0], || silent().collect::<Vec<_>>()).unwrap());
    let _own = fixture.connect(1);
    assert_eq!(fixture.number("clients"), 2);
    if begun.elapsed() < server::HANDSHAKE {
        assert_eq!(fixture.number("denied"), 0);
    }
    drop((held, other));
}

#[test]
fn handshakes_at_the_same_time_do_not_exceed_the_places() {
    let fixture = fixture(1, |options| options.clients = 1);
    let path = fixture.path();
    let results: Vec<_> = std::thread::scope(|scope| {
        let connect = || Peer::connect(&path, &Config::default());
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(connect)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        let text = error.to_string();
        assert!(text.contains("1 clients are connected already"), "{text}");
    }
    assert_eq!((fixture.number("clients"), fixture.number("denied")), (1, 5));
}

#[test]
fn only_allowed_users_and_groups_connect() {
    use std::os::unix::fs::PermissionsExt;
    let other = 65_534;
    for (uids, gids, allowed) in [
        (vec![], vec![], false),
        (vec![other], vec![], true),
        (vec![], vec![other], true),
        (vec![1], vec![1], false),
    ] {
        let fixture = fixture(1, |options| {
            (options.uids, options.gids, options.socket_mode) = (uids.clone(), gids.clone(), 0o666);
        });
        std::fs::set_permissions(fixture.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let path = fixture.path();
        let connect = || Peer::connect(&path, &Config::default());
        let Some(result) = as_user(other, connect) else { return };
        match result {
            Ok(_) => assert!(allowed, "{uids:?} {gids:?}"),
            Err(ClientError::Closed { reason }) => {
                assert!(!allowed && reason.contains("user 65534"), "{uids:?} {gids:?}: {reason}");
                assert_eq!(fixture.number("denied"), 1);
            }
            Err(error) => panic!("{error}"),
        }
        let _own = fixture.connect(1);
    }
}

#[test]
fn a_sleeping_client_is_woken() {
    let mut fixture = fixture(1, |_| {});
    let mut client = fixture.connect(1);
    let waiting = std::thread::spawn(move || {
        let begun = Instant::now();
        client.wait(PATIENCE).unwrap();
        (begun.elapsed(), drain(&mut client).len())
    });
    std::thread::sleep(Duration::from_millis(50));
    fixture.endpoints[0].deliver_all(&flows(1));
    let (waited, received) = waiting.join().unwrap();
    assert!(received == 1 && waited < PATIENCE / 2, "{received} after {waited:?}");
}

#[test]
fn the_socket_comes_back_and_can_change_its_owner() {
    let fixture = fixture(1, |_| {});
    std::fs::remove_file(fixture.path()).unwrap();
    eventually("it listens again", || fixture.path().exists());
    let client = fixture.connect(1);
    // A reload with other options of the sink: the new one opens before the old one is closed.
    let changed = AppSink { clients: 3, ..options(fixture.folder.path()) };
    let (next, _endpoints) = start("apps", &changed, None, vec![None]).unwrap();
    assert!(client.check().is_ok(), "clients stay until the old sink is closed");
    let path = fixture.path();
    let folder = fixture.folder;
    drop(fixture.app);
    // Dropping waits for the thread for a limited time only.
    eventually("the old sink closes its connections", || match client.check() {
        Ok(()) => false,
        Err(ClientError::Closed { reason }) => reason == "the sink is closed",
        Err(error) => panic!("{error}"),
    });
    let _client = Peer::connect(&path, &Config::default()).unwrap();
    eventually("it is with the new one", || next.status().number("clients") == Some(1));
    drop((next, folder));
    assert!(!path.exists());
}

#[test]
fn delivering_allocates_nothing() {
    let mut fixture = fixture(1, |options| options.mode = AppMode::Share);
    let _client = fixture.connect(1);
    let sent = flows(crate::BATCH_MAX as u32);
    fixture.endpoints[0].deliver_all(&sent);
    let counted = allocation_counter::measure(|| {
        fixture.endpoints[0].deliver_all(&sent);
        fixture.endpoints[0].take();
    });
    assert_eq!(counted.count_total, 0);
}

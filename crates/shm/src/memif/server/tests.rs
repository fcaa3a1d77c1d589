//! The handshake: what a correct client sends, every wrong message, and clients over a real socket.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

use super::*;
use crate::memif::client::{Client, ClientError, Config};
use crate::memif::ring::{Put, TakenFrame, ring_bytes};
use crate::{Channel, Closer, Interrupt, Listener, Received};

const LIMITS: ClientLimits = ClientLimits { rings: 2, log2_ring_size: 4, bytes: 1 << 20 };

fn file() -> Option<OwnedFd> {
    Some(Interrupt::new().unwrap().as_fd().try_clone_to_owned().unwrap())
}

fn init() -> Message {
    Message::Init(Init { version: VERSION, id: 7, mode: ETHERNET, secret: [0; 24], name: "app".to_owned() })
}

/// Memory with the magic numbers of rings at these offsets.
fn region(bytes: usize, rings: &[usize]) -> Option<OwnedFd> {
    let (memory, file) = Memory::create("test", bytes).unwrap();
    for ring in rings {
        assert!(memory.write(*ring, &super::super::ring::COOKIE.to_ne_bytes()));
    }
    Some(file)
}

fn ring(direction: RingDirection, index: u16, offset: u32) -> AddRing {
    AddRing { direction, index, region: 0, offset, log2_size: 4 }
}

fn add(direction: RingDirection, index: u16, offset: u32) -> Message {
    Message::AddRing(ring(direction, index, offset))
}

fn play(steps: Vec<(Message, Option<OwnedFd>)>) -> Result<Option<Box<Connection>>, HandshakeRefusal> {
    let mut negotiation = Negotiation::new(LIMITS);
    for (message, file) in steps {
        match negotiation.receive(message, file.map(ForeignFile::from), "if")? {
            HandshakeStep::Reply(reply) => assert_eq!(reply, Message::Ack),
            HandshakeStep::Established(reply, connection) => {
                assert_eq!(reply, Message::Connected("if".to_owned()));
                return Ok(Some(connection));
            }
        }
    }
    Ok(None)
}

fn connect() -> Message {
    Message::Connect("eth0".to_owned())
}

#[test]
fn a_correct_client_is_connected() {
    let connection = play(vec![
        (init(), None),
        (Message::AddRegion { index: 0, bytes: 8192 }, region(8192, &[0, 4096])),
        (add(RingDirection::C2s, 0, 0), file()),
        (add(RingDirection::S2c, 0, 4096), file()),
        (connect(), None),
    ])
    .unwrap()
    .unwrap();
    assert_eq!((connection.name.as_str(), connection.interface.as_str(), connection.id), ("app", "eth0", 7));
    let rings = (connection.senders.len(), connection.interrupts.len(), connection.receivers.len());
    assert_eq!((rings, connection.bytes, connection.senders[0].size()), ((1, 1, 1), 8192, 16));
}

#[test]
fn every_wrong_message_is_refused_with_its_reason() {
    let good = || (Message::AddRegion { index: 0, bytes: 8192 }, region(8192, &[0, 4096]));
    let wrong_init = |change: fn(&mut Init)| {
        let Message::Init(mut wanted) = init() else { unreachable!() };
        change(&mut wanted);
        vec![(Message::Init(wanted), None)]
    };
    let after_init = |more: Vec<(Message, Option<OwnedFd>)>| {
        std::iter::once((init(), None)).chain(more).collect::<Vec<_>>()
    };
    let with_ring =
        |ring: AddRing| after_init(vec![good(), (Message::AddRing(ring), file()), (connect(), None)]);
    let s2c = ring(RingDirection::S2c, 0, 0);
    let plain = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&plain, 8192).unwrap();
    for (steps, reason) in [
        (vec![(connect(), None)], "unexpected message CONNECT"),
        (vec![good()], "unexpected message ADD_REGION"),
        (vec![(add(RingDirection::S2c, 0, 0), file())], "unexpected message ADD_RING"),
        (vec![(Message::Ack, None)], "unexpected message ACK"),
        (after_init(vec![(init(), None)]), "unexpected message INIT"),
        (wrong_init(|init| init.version = 0x100), "version 0x100 is not supported"),
        (wrong_init(|init| init.mode = 1), "mode 1 is not supported"),
        (after_init(vec![(good().0, None)]), "ADD_REGION without a file"),
        (
            after_init(vec![(Message::AddRegion { index: 1, bytes: 1 }, file())]),
            "index 1 of a region where 0",
        ),
        (
            after_init(vec![(Message::AddRegion { index: 0, bytes: (1 << 20) + 1 }, file())]),
            "1048576 are allowed",
        ),
        (after_init(vec![(Message::AddRegion { index: 0, bytes: u64::MAX }, file())]), "are allowed"),
        (after_init(vec![good(), (Message::AddRegion { index: 1, bytes: u64::MAX }, file())]), "are allowed"),
        (after_init(vec![(good().0, file())]), "must be a memfd"),
        (after_init(vec![(good().0, Some(plain))]), "F_SEAL_SHRINK"),
        (after_init(vec![(good().0, region(4096, &[]))]), "4096 bytes was announced as 8192"),
        (after_init(vec![(add(RingDirection::S2c, 0, 0), None)]), "ADD_RING without a file"),
        (with_ring(AddRing { index: 1, ..s2c }), "index 1 of a ring where 0"),
        (with_ring(AddRing { log2_size: 5, ..s2c }), "2^5 descriptors where 2^4"),
        (with_ring(AddRing { log2_size: 255, ..s2c }), "2^255 descriptors"),
        (with_ring(AddRing { region: 1, ..s2c }), "ring 0: a descriptor names an unknown region"),
        (with_ring(AddRing { offset: 8192 - 16, ..s2c }), "ring 0: a buffer is outside"),
        (with_ring(AddRing { offset: 16, ..s2c }), "ring 0 has not the magic number"),
        (with_ring(AddRing { direction: RingDirection::C2s, ..s2c }), "no ring to receive"),
        (after_init(vec![good(), (connect(), None)]), "no ring to receive"),
        (vec![(Message::Disconnect(1, "bye".to_owned()), None)], "closed the connection: bye"),
    ] {
        let text = format!("{:?}", steps.iter().map(|step| &step.0).collect::<Vec<_>>());
        let error = play(steps).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
        assert!(error.len() <= 95, "it fits into a message: {error}");
    }
}

#[test]
fn regions_and_rings_are_limited_in_number() {
    let regions = (0..=REGIONS_MAX).map(|index| (Message::AddRegion { index, bytes: 16 }, region(16, &[])));
    let error = play(std::iter::once((init(), None)).chain(regions).collect()).unwrap_err();
    assert!(matches!(error, HandshakeRefusal::TooMany { objects: "regions", limit: REGIONS_MAX }), "{error}");
    let rings = (0..3).map(|index| (add(RingDirection::C2s, index, 0), file()));
    let error = play(std::iter::once((init(), None)).chain(rings).collect()).unwrap_err();
    assert!(matches!(error, HandshakeRefusal::TooMany { objects: "rings", limit: 2 }), "{error}");
}

/// A server for one client.
fn serve(listener: &Listener, limits: ClientLimits) -> Result<(Channel, Box<Connection>), HandshakeRefusal> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut negotiation = Negotiation::new(limits);
    let mut channel: Option<Channel> = None;
    while Instant::now() < deadline {
        let Some(channel) = &mut channel else {
            channel = listener.accept().unwrap();
            if let Some(channel) = &channel {
                channel.send(&negotiation.hello("server"), None).unwrap();
            }
            continue;
        };
        let Received::Message(message, file) = channel.receive() else { continue };
        match negotiation.receive(message, file, "if0") {
            Ok(HandshakeStep::Reply(reply)) => channel.send(&reply, None).unwrap(),
            Ok(HandshakeStep::Established(reply, connection)) => {
                channel.send(&reply, None).unwrap();
                let socket = channel.as_fd().try_clone_to_owned().unwrap();
                return Ok((Channel::from(socket), connection));
            }
            Err(refusal) => {
                channel.send(&Message::Disconnect(1, refusal.to_string()), None).unwrap();
                return Err(refusal);
            }
        }
    }
    panic!("no client");
}

fn with_server<T: Send>(
    limits: ClientLimits,
    client: impl FnOnce(&Path) -> T + Send,
) -> (Result<(Channel, Box<Connection>), HandshakeRefusal>, T) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = Listener::bind(&path, 0o600, &Closer::start().unwrap()).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| client(&path));
        (serve(&listener, limits), client.join().unwrap())
    })
}

#[test]
fn client_and_server_agree_on_the_smaller_sizes() {
    let config = Config { rings: 3, log2_ring_size: 12, ..Config::default() };
    let limits = ClientLimits { rings: 2, log2_ring_size: 5, bytes: 1 << 20 };
    let (served, client) = with_server(limits, |path| Client::connect(path, &config));
    let (_channel, mut connection) = served.unwrap();
    let mut client = client.unwrap();
    assert_eq!((client.server.as_str(), client.interface.as_str()), ("server", "if0"));
    assert_eq!((client.receivers.len(), client.senders.len()), (2, 2));
    assert_eq!((connection.senders.len(), connection.senders[1].size()), (2, 32));
    let mut to = [0; 4096];
    for ring in [0, 1] {
        assert_eq!(connection.senders[ring].put(&[ring as u8; 3000]), Ok(Put::Done));
        let _ = connection.senders[ring].publish();
        assert_eq!(client.receivers[ring].take(&mut to), Ok(TakenFrame::Frame(3000)));
        assert!(to[..3000].iter().all(|byte| *byte == ring as u8));
        assert_eq!(client.senders[ring].put(&[9; 3000]), Ok(Put::Done));
        client.publish(ring);
        assert_eq!(connection.receivers[ring].take(&mut to), Ok(TakenFrame::Frame(3000)));
    }
    let least = 2 * 2 * (ring_bytes(5) as u64 + 32 * 2048);
    assert_eq!(connection.bytes, least);
}

#[test]
fn a_refused_client_learns_the_reason() {
    let limits = ClientLimits { bytes: 1000, ..LIMITS };
    let (served, client) = with_server(limits, |path| Client::connect(path, &Config::default()));
    assert!(matches!(served.unwrap_err(), HandshakeRefusal::TooLarge { limit: 1000, .. }));
    let error = client.unwrap_err();
    assert!(
        matches!(&error, ClientError::Closed { reason } if reason.contains("1000 are allowed")),
        "{error}"
    );
}

#[test]
fn both_sides_notice_the_end_of_the_other() {
    let connect = |path: &Path| Client::connect(path, &Config::default()).unwrap();
    let (served, client) = with_server(ClientLimits { bytes: 64 << 20, ..LIMITS }, connect);
    let (channel, _connection) = served.unwrap();
    assert!(client.check().is_ok());
    channel.send(&Message::Disconnect(0, "restart".to_owned()), None).unwrap();
    assert!(matches!(client.check(), Err(ClientError::Closed { reason }) if reason == "restart"));
    client.close("done");
    assert!(
        matches!(channel.receive(), Received::Message(Message::Disconnect(0, reason), _) if reason == "done")
    );
    assert!(matches!(channel.receive(), Received::End));
}

#[test]
fn a_waiting_client_is_woken() {
    let connect = |path: &Path| Client::connect(path, &Config::default()).unwrap();
    let (served, mut client) = with_server(ClientLimits { bytes: 64 << 20, ..LIMITS }, connect);
    let (channel, mut connection) = served.unwrap();
    let begun = Instant::now();
    client.wait(Duration::from_millis(20)).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(20), "nothing to wake it");
    let woken = std::thread::spawn(move || {
        let begun = Instant::now();
        client.wait(Duration::from_secs(20)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "woken by the frame");
        let first = client.receivers[0].take(&mut [0; 64]);
        client.wait(Duration::from_secs(20)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "woken by the end of the connection");
        first
    });
    std::thread::sleep(Duration::from_millis(50));
    connection.senders[0].put(&[1; 60]).unwrap();
    assert!(connection.senders[0].publish(), "the client waits");
    crate::Signaller::new().unwrap().signal(connection.interrupts[0].as_fd()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop((channel, connection));
    assert_eq!(woken.join().unwrap(), Ok(TakenFrame::Frame(60)));
}

#[test]
fn impossible_values_of_a_client_are_errors() {
    let good = Config::default();
    for config in [
        Config { rings: 0, ..good.clone() },
        Config { rings: RINGS_MAX + 1, ..good.clone() },
        Config { log2_ring_size: 15, ..good.clone() },
        Config { buffer_bytes: 63, ..good.clone() },
    ] {
        let error = Client::connect(Path::new("/nonexistent"), &config).unwrap_err();
        assert!(matches!(error, ClientError::Config { .. }), "{error}");
    }
    let error = Client::connect(Path::new("/nonexistent/s"), &good).unwrap_err();
    assert!(matches!(error, ClientError::Connect { source: rustix::io::Errno::NOENT, .. }), "{error}");
}

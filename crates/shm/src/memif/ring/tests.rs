//! Rings between two sides in one process: order, wrapping, chains, hostile peers.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::message::RingDirection;
use super::*;

const LOG2: u8 = 3;
const SIZE: u16 = 1 << LOG2;
const BUFFER: u32 = 128;

fn place(direction: RingDirection) -> AddRing {
    let offset = if direction == RingDirection::C2s { 0 } else { ring_bytes(LOG2) as u32 };
    AddRing { direction, index: 0, region: 0, offset, log2_size: LOG2 }
}

fn regions() -> Regions {
    let bytes = 2 * ring_bytes(LOG2) + 2 * usize::from(SIZE) * BUFFER as usize;
    Regions(Arc::new([Memory::create("test", bytes).unwrap().0]))
}

fn buffers(direction: RingDirection) -> Buffers {
    let rings = 2 * ring_bytes(LOG2) as u32;
    let other = if direction == RingDirection::C2s { 0 } else { u32::from(SIZE) * BUFFER };
    Buffers { region: 0, offset: rings + other, buffer_bytes: BUFFER }
}

fn to_client() -> (ServerSender, ClientReceiver) {
    let (regions, place) = (regions(), place(RingDirection::S2c));
    let mut client = ClientReceiver::new(regions.clone(), &place, buffers(RingDirection::S2c)).unwrap();
    let server = ServerSender::new(regions, &place).unwrap();
    client.publish().unwrap();
    (server, client)
}

fn to_server() -> (ClientSender, ServerReceiver) {
    let (regions, place) = (regions(), place(RingDirection::C2s));
    let client = ClientSender::new(regions.clone(), &place, buffers(RingDirection::C2s)).unwrap();
    (client, ServerReceiver::new(regions, &place).unwrap())
}

fn frame(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(3).wrapping_add(seed)).collect()
}

#[test]
fn frames_arrive_as_they_were_sent_in_both_directions() {
    let (mut server, mut client) = to_client();
    let (mut sender, mut receiver) = to_server();
    let mut to = [0; 2048];
    for round in 0..100u8 {
        for bytes in [1, 60, 128, 129, 256, 800, 1024] {
            let frame = frame(bytes, round);
            assert_eq!(server.put(&frame), Ok(Put::Done));
            assert_eq!(client.take(&mut to), Ok(TakenFrame::Empty), "not before publish");
            assert!(!server.publish(), "the client polls");
            assert_eq!(client.take(&mut to), Ok(TakenFrame::Frame(bytes)));
            assert_eq!(to[..bytes], frame);
            client.publish().unwrap();
            assert_eq!(sender.put(&frame), Ok(Put::Done));
            assert!(!sender.publish(), "the server polls");
            assert_eq!(receiver.take(&mut to), Ok(TakenFrame::Frame(bytes)));
            assert_eq!(to[..bytes], frame);
            receiver.publish();
        }
    }
    assert_eq!(client.take(&mut to), Ok(TakenFrame::Empty));
    assert_eq!(receiver.take(&mut to), Ok(TakenFrame::Empty));
}

#[test]
fn a_full_ring_takes_nothing_and_loses_nothing() {
    let (mut server, mut client) = to_client();
    for number in 0..SIZE {
        assert_eq!(server.put(&frame(64, number as u8)), Ok(Put::Done));
    }
    assert_eq!(server.put(&[0; 64]), Ok(Put::Full));
    let _ = server.publish();
    let mut to = [0; 256];
    for number in 0..SIZE {
        assert_eq!(client.take(&mut to), Ok(TakenFrame::Frame(64)));
        assert_eq!(to[..64], frame(64, number as u8));
    }
    assert_eq!(server.put(&[0; 64]), Ok(Put::Full), "the buffers are not posted again yet");
    client.publish().unwrap();
    assert_eq!(server.put(&[0; 64]), Ok(Put::Done));

    let (mut sender, mut receiver) = to_server();
    for _ in 0..SIZE {
        assert_eq!(sender.put(&[7; 64]), Ok(Put::Done));
    }
    assert_eq!(sender.put(&[7; 64]), Ok(Put::Full));
    let _ = sender.publish();
    assert_eq!(receiver.take(&mut to), Ok(TakenFrame::Frame(64)));
    assert_eq!(sender.put(&[7; 64]), Ok(Put::Full));
    receiver.publish();
    assert_eq!(sender.put(&[7; 64]), Ok(Put::Done));
}

#[test]
fn a_chain_that_finds_too_few_buffers_is_not_begun() {
    let (mut server, mut client) = to_client();
    for _ in 0..SIZE - 2 {
        server.put(&frame(64, 1)).unwrap();
    }
    assert_eq!(server.put(&frame(300, 2)), Ok(Put::Full), "three buffers are needed");
    assert_eq!(server.put(&frame(200, 3)), Ok(Put::Done), "two are left");
    let _ = server.publish();
    let mut to = [0; 2048];
    for _ in 0..SIZE - 2 {
        assert_eq!(client.take(&mut to), Ok(TakenFrame::Frame(64)));
    }
    assert_eq!(client.take(&mut to), Ok(TakenFrame::Frame(200)));
    assert_eq!(to[..200], frame(200, 3));
}

#[test]
fn frames_longer_than_the_ring_or_the_receiver_are_not_passed() {
    let (mut server, mut client) = to_client();
    let most = usize::from(SIZE) * BUFFER as usize;
    assert_eq!(server.put(&vec![1; most + 1]), Ok(Put::TooLong));
    let (mut sender, mut receiver) = to_server();
    assert_eq!(sender.put(&vec![1; most + 1]), Ok(Put::TooLong));
    assert_eq!(sender.put(&[]), Ok(Put::TooLong), "an empty frame");
    let mut to = [0; 256];
    assert_eq!([sender.put(&[1; 257]), sender.put(&[2; 60])], [Ok(Put::Done); 2]);
    let _ = sender.publish();
    assert_eq!(receiver.take(&mut to), Ok(TakenFrame::TooLong(257)));
    assert_eq!((receiver.take(&mut to), to[..60] == [2; 60]), (Ok(TakenFrame::Frame(60)), true));
    assert_eq!(server.put(&[1; 257]), Ok(Put::Done));
    let _ = server.publish();
    assert_eq!(client.take(&mut to), Ok(TakenFrame::TooLong(257)));
}

#[test]
fn an_interrupt_is_wanted_only_between_arm_and_disarm() {
    let (mut server, mut client) = to_client();
    assert_eq!(client.arm(), Ok(false));
    assert!(!server.publish(), "without a frame");
    server.put(&[1; 64]).unwrap();
    assert!(server.publish());
    assert_eq!(client.arm(), Ok(true), "a frame waits");
    client.disarm();
    server.put(&[1; 64]).unwrap();
    assert!(!server.publish());
}

fn set(ring: &Ring, at: usize, value: u16) {
    ring.store(at, value);
}

#[test]
fn invalid_indices_are_found() {
    for index in [SIZE + 1, 0x8000, u16::MAX] {
        let (mut server, client) = to_client();
        set(&client.ring, HEAD_OFFSET, index);
        assert_eq!(server.put(&[0; 64]), Err(Violation::Index), "{index}");
        let (sender, mut receiver) = to_server();
        set(&sender.ring, HEAD_OFFSET, index);
        assert_eq!(receiver.take(&mut [0; 64]), Err(Violation::Index), "{index}");
        let (server, mut client) = to_client();
        set(&server.ring, TAIL_OFFSET, index);
        assert_eq!(client.take(&mut [0; 64]), Err(Violation::Index), "{index}");
        let (mut sender, receiver) = to_server();
        for _ in 0..SIZE {
            sender.put(&[1; 64]).unwrap();
        }
        // Behind what was sent by more than the ring holds, or ahead of it.
        set(&receiver.ring, TAIL_OFFSET, index);
        assert_eq!(sender.put(&[0; 64]), Err(Violation::Index), "{index}");
    }
}

#[test]
fn invalid_descriptors_for_the_server_are_found() {
    let end = regions().0[0].bytes() as u32;
    let good = Descriptor { flags: 0, region: 0, length: BUFFER, offset: end - BUFFER };
    for (descriptor, to_client_result, to_server_result) in [
        (good, Ok(Put::Done), Ok(TakenFrame::Frame(BUFFER as usize))),
        (Descriptor { region: 1, ..good }, Err(Violation::Region), Err(Violation::Region)),
        (Descriptor { region: u16::MAX, ..good }, Err(Violation::Region), Err(Violation::Region)),
        (Descriptor { offset: end - BUFFER + 1, ..good }, Err(Violation::Offset), Err(Violation::Offset)),
        (Descriptor { offset: u32::MAX, ..good }, Err(Violation::Offset), Err(Violation::Offset)),
        (Descriptor { length: u32::MAX, ..good }, Err(Violation::Offset), Err(Violation::Offset)),
        (Descriptor { length: 63, ..good }, Err(Violation::Length), Ok(TakenFrame::Frame(63))),
        (Descriptor { length: 0, ..good }, Err(Violation::Length), Err(Violation::Length)),
        (Descriptor { flags: NEXT, ..good }, Ok(Put::Done), Err(Violation::Chain)),
    ] {
        let (mut server, client) = to_client();
        client.ring.write_descriptor(0, descriptor).unwrap();
        assert_eq!(server.put(&[1; 60]), to_client_result, "{descriptor:?}");
        let (sender, mut receiver) = to_server();
        sender.ring.write_descriptor(0, descriptor).unwrap();
        set(&sender.ring, HEAD_OFFSET, 1);
        assert_eq!(receiver.take(&mut [0; 256]), to_server_result, "{descriptor:?}");
    }
}

#[test]
fn invalid_lengths_for_the_client_are_found() {
    for (length, flags, expected) in [
        (BUFFER, 0, Ok(TakenFrame::Frame(128))),
        (BUFFER + 1, 0, Err(Violation::Offset)),
        (u32::MAX, 0, Err(Violation::Offset)),
        (0, 0, Err(Violation::Length)),
        (60, NEXT, Err(Violation::Chain)),
    ] {
        let (server, mut client) = to_client();
        // Region and offset are not the server's to choose, so the client ignores them.
        let descriptor = Descriptor { flags, region: 9, length, offset: u32::MAX };
        server.ring.write_descriptor(0, descriptor).unwrap();
        set(&server.ring, TAIL_OFFSET, 1);
        assert_eq!(client.take(&mut [0; 256]), expected, "{descriptor:?}");
    }
}

#[test]
fn rings_outside_of_their_region_are_refused() {
    let end = regions().0[0].bytes() as u32;
    let good = place(RingDirection::S2c);
    for bad in [
        AddRing { region: 1, ..good },
        AddRing { offset: end, ..good },
        AddRing { offset: u32::MAX - 15, ..good },
        AddRing { offset: 8, ..good },
        AddRing { log2_size: LOG2_RING_SIZE_MAX, ..good },
        AddRing { log2_size: LOG2_RING_SIZE_MAX + 1, ..good },
        AddRing { log2_size: 255, ..good },
    ] {
        assert!(ServerSender::new(regions(), &bad).is_err(), "{bad:?}");
        assert!(ServerReceiver::new(regions(), &bad).is_err(), "{bad:?}");
    }
    let last = AddRing { offset: end - ring_bytes(LOG2) as u32, ..good };
    assert!(ServerSender::new(regions(), &last).is_ok(), "up to the last byte");
}

#[test]
fn two_threads_pass_everything_in_order() {
    const FRAMES: u32 = 20_000;
    let (mut server, mut client) = to_client();
    let writer = std::thread::spawn(move || {
        for number in 0..FRAMES {
            let mut bytes = vec![number as u8; 14 + (number as usize * 31) % 900];
            bytes[..4].copy_from_slice(&number.to_ne_bytes());
            while server.put(&bytes).unwrap() != Put::Done {
                let _ = server.publish();
                std::thread::yield_now();
            }
            let _ = server.publish();
        }
    });
    let mut to = [0; 2048];
    for number in 0..FRAMES {
        let length = loop {
            match client.take(&mut to).unwrap() {
                TakenFrame::Frame(length) => break length,
                _ => std::thread::yield_now(),
            }
        };
        client.publish().unwrap();
        assert_eq!(length, 14 + (number as usize * 31) % 900);
        assert_eq!(to[..4], number.to_ne_bytes());
        assert!(to[4..length].iter().all(|byte| *byte == number as u8));
    }
    writer.join().unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize),
    Publish,
    Take,
    Post,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1usize..1500).prop_map(Step::Put),
        3 => Just(Step::Publish),
        4 => Just(Step::Take),
        3 => Just(Step::Post),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// Any sequence of operations of both sides against a queue: what was put and published comes out, in
    /// order.
    #[test]
    fn a_ring_is_a_bounded_queue(steps in steps()) {
        let (mut server, mut client) = to_client();
        let (mut sent, mut visible) = (VecDeque::new(), VecDeque::new());
        let mut to = [0; 2048];
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(bytes) => {
                    let frame = frame(bytes, number as u8);
                    match server.put(&frame).unwrap() {
                        Put::Done => sent.push_back(frame),
                        Put::Full => {}
                        Put::TooLong => prop_assert!(bytes > 1024),
                    }
                }
                Step::Publish => {
                    let _ = server.publish();
                    visible.append(&mut sent);
                }
                Step::Take => match client.take(&mut to).unwrap() {
                    TakenFrame::Frame(length) => prop_assert_eq!(Some(to[..length].to_vec()), visible.pop_front()),
                    TakenFrame::Empty => prop_assert!(visible.is_empty()),
                    TakenFrame::TooLong(length) => prop_assert!(false, "{}", length),
                },
                Step::Post => client.publish().unwrap(),
            }
        }
    }

    /// A client that fills the memory with anything gets a frame, a refusal or a violation, and nothing else
    /// happens.
    #[test]
    fn random_memory_of_a_client_is_survived(
        garbage in proptest::collection::vec(any::<u8>(), 2 * ring_bytes(LOG2)),
        head in 0u16..=SIZE + 1,
        writes in proptest::collection::vec((0usize..2600, any::<u16>()), 0..40),
    ) {
        let (mut server, _client) = to_client();
        let (_sender, mut receiver) = to_server();
        for ring in [&server.ring, &receiver.ring] {
            prop_assert!(ring.memory().unwrap().write(0, &garbage));
            set(ring, HEAD_OFFSET, head);
        }
        let mut to = [0; 2048];
        for (at, value) in writes {
            let _ = server.put(&to[..usize::from(value) % 1500 + 1]);
            let _ = server.publish();
            let taken = receiver.take(&mut to);
            prop_assert!(taken != Ok(TakenFrame::Frame(0)));
            receiver.publish();
            for ring in [&server.ring, &receiver.ring] {
                let _ = ring.memory().unwrap().write(at, &value.to_ne_bytes());
            }
        }
    }
}

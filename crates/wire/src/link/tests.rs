//! Two ends in one process: handshake, frames of every length, overload, exit, and invalid peers.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ring::{RING_BYTES, RingReceiver, RingSender, SharedMemory};
use super::*;

fn config(end: LinkEnd) -> LinkConfig {
    // Tests run in parallel, in threads and in processes: each has a link of its own.
    let thread = std::thread::current().name().unwrap_or("test").replace("::", ".");
    let tail = thread.len().saturating_sub(28);
    LinkConfig { name: format!("{}.{}", std::process::id(), &thread[tail..]).parse().unwrap(), end }
}

fn open(end: LinkEnd) -> LinkWire {
    LinkWire::open(&config(end)).unwrap()
}

fn drain(wire: &mut LinkWire) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    wire.receive(&mut burst);
    burst.iter().map(|frame| frame.bytes.to_vec()).collect()
}

fn pair() -> (LinkWire, LinkWire) {
    let (mut a, mut b) = (open(LinkEnd::A), open(LinkEnd::B));
    for _ in 0..4 * BURSTS_PER_HANDSHAKE {
        drain(&mut a);
        drain(&mut b);
    }
    assert_eq!([a.state(), b.state()], [WireState::Live; 2], "the handshake is complete");
    (a, b)
}

fn frame(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_add(seed)).collect()
}

#[test]
fn frames_of_every_length_come_out_as_they_went_in_both_ways() {
    let (mut a, mut b) = pair();
    for bytes in [14, 15, 60, 64, 1514, 9000, MAX_FRAME_BYTES] {
        for round in 0..3 {
            let (there, back) = (frame(bytes, round), frame(bytes, round + 100));
            assert_eq!(a.transmit(&there), Ok(()));
            assert_eq!(b.transmit(&back), Ok(()));
            a.flush();
            b.flush();
            assert_eq!(drain(&mut b), [there]);
            assert_eq!(drain(&mut a), [back]);
        }
    }
    assert_eq!(a.transmit(&[0; MAX_FRAME_BYTES + 1]), Err(TransmitError::TooLong));
    assert_eq!(a.transmit(&[0; 13]), Err(TransmitError::TooShort));
    assert_ne!(a.mac(), b.mac());
}

#[test]
fn nothing_arrives_before_it_is_flushed() {
    let (mut a, mut b) = pair();
    a.transmit(&frame(60, 0)).unwrap();
    assert!(drain(&mut b).is_empty());
    a.flush();
    assert_eq!(drain(&mut b).len(), 1);
}

#[test]
fn an_end_without_peer_is_up_and_sends_nothing() {
    let mut a = open(LinkEnd::A);
    assert_eq!(a.state(), WireState::Live);
    assert_eq!(a.transmit(&frame(60, 0)), Err(TransmitError::Down));
}

#[test]
fn the_second_end_is_down_until_the_handshake() {
    for (first, second) in [(LinkEnd::A, LinkEnd::B), (LinkEnd::B, LinkEnd::A)] {
        let mut first = open(first);
        let mut second = open(second);
        assert_eq!([first.state(), second.state()], [WireState::Live, WireState::Down]);
        for _ in 0..4 * BURSTS_PER_HANDSHAKE {
            drain(&mut first);
            drain(&mut second);
        }
        assert_eq!([first.state(), second.state()], [WireState::Live; 2]);
        assert_eq!(second.transmit(&frame(60, 0)), Ok(()));
    }
}

#[test]
fn an_end_can_be_opened_once() {
    let _a = open(LinkEnd::A);
    let error = LinkWire::open(&config(LinkEnd::A)).unwrap_err();
    assert!(matches!(error, WireError::LinkTaken { end: 'a', .. }), "{error}");
    let (name, holder) = (config(LinkEnd::A).name.to_string(), format!("process {}", std::process::id()));
    assert!(error.to_string().contains(&name) && error.to_string().contains(&holder), "{error}");
}

#[test]
fn a_check_takes_no_end_and_finds_what_opening_finds() {
    let config = config(LinkEnd::A);
    LinkWire::check(&config).unwrap();
    let a = LinkWire::open(&config).unwrap();
    let opened = LinkWire::open(&config).unwrap_err();
    assert_eq!(LinkWire::check(&config).unwrap_err().to_string(), opened.to_string());
    let b = crate::LinkConfig { end: LinkEnd::B, ..config };
    LinkWire::check(&b).unwrap();
    assert!(LinkWire::open(&b).is_ok());
    drop(a);
}

/// A process that only queries the owner does not become a peer.
#[test]
fn a_third_party_disturbs_neither_an_end_alone_nor_a_pair() {
    let mut a = open(LinkEnd::A);
    for _ in 0..20 {
        assert!(LinkWire::open(&config(LinkEnd::A)).is_err());
        for _ in 0..BURSTS_PER_CHECK {
            drain(&mut a);
        }
        assert_eq!(a.state(), WireState::Live, "no peer was accepted");
    }
    let mut b = open(LinkEnd::B);
    for round in 0..20 {
        for end in [LinkEnd::A, LinkEnd::B] {
            assert!(matches!(LinkWire::open(&config(end)), Err(WireError::LinkTaken { .. })));
        }
        for _ in 0..BURSTS_PER_CHECK {
            drain(&mut a);
            drain(&mut b);
        }
        assert_eq!([a.state(), b.state()], [WireState::Live; 2], "round {round}");
    }
    a.transmit(&frame(60, 1)).unwrap();
    a.flush();
    assert_eq!(drain(&mut b), [frame(60, 1)]);
}

/// Runs `test` while another user has bound the name of an end.
fn while_another_user_holds(end: LinkEnd, test: impl FnOnce()) {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let other_user = rustix::process::Uid::from_raw(65_534);
    let name =
        format!("softnic/link/{}/{}/{}", rustix::process::geteuid().as_raw(), config(end).name, end.letter());
    let bind_name = move || {
        // For this thread only; the kernel records the user that calls listen (unix(7), SO_PEERCRED).
        rustix::thread::set_thread_res_uid(other_user, other_user, other_user)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty(), None)?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&socket, 8).map(|()| socket)
    };
    match std::thread::spawn(bind_name).join().unwrap() {
        Ok(_socket) => test(),
        Err(error) => {
            test_support::not_run("a link's name held by another user", &format!("it needs root: {error}"));
        }
    }
}

#[test]
fn a_name_held_by_another_user_is_an_error_that_names_link_and_user() {
    for end in [LinkEnd::A, LinkEnd::B] {
        let config = config(end);
        while_another_user_holds(end, || {
            for own in [LinkEnd::A, LinkEnd::B] {
                let error = LinkWire::open(&LinkConfig { end: own, ..config.clone() }).unwrap_err();
                assert!(matches!(error, WireError::LinkForeign { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains(&format!("link `{}`", config.name)), "{text}");
                assert!(text.contains(&format!("end `{}`", end.letter())), "{text}");
                assert!(text.contains("of user 65534"), "{text}");
            }
        });
    }
}

/// A process of another user that binds the name later gets no session.
#[test]
fn a_peer_of_another_user_is_rejected() {
    for own in [LinkEnd::A, LinkEnd::B] {
        let mut wire = open(own);
        while_another_user_holds(own.other(), || {
            for _ in 0..4 * BURSTS_PER_HANDSHAKE {
                drain(&mut wire);
            }
            assert_eq!(wire.transmit(&frame(60, 0)), Err(TransmitError::Down), "no session");
        });
    }
}

#[test]
fn the_ring_wraps_and_refuses_frames_when_full() {
    let (mut a, mut b) = pair();
    let long = frame(MAX_FRAME_BYTES, 7);
    let mut accepted = 0;
    while a.transmit(&long).is_ok() {
        accepted += 1;
    }
    assert!((400..=RING_BYTES as usize / MAX_FRAME_BYTES).contains(&accepted), "{accepted}");
    assert_eq!(a.transmit(&long), Err(TransmitError::QueueFull));
    a.flush();
    let mut expected: VecDeque<Vec<u8>> = std::iter::repeat_n(long, accepted).collect();
    for round in 0..3000u32 {
        let next = frame(14 + (round as usize * 97) % 9000, round as u8);
        if a.transmit(&next).is_ok() {
            expected.push_back(next);
        }
        a.flush();
        if round % 40 == 0 {
            for bytes in drain(&mut b) {
                assert_eq!(Some(bytes), expected.pop_front());
            }
        }
    }
    while let Some(next) = expected.pop_front() {
        let received = drain(&mut b);
        assert_eq!(received.first(), Some(&next));
        for bytes in &received[1..] {
            assert_eq!(Some(bytes), expected.pop_front().as_ref());
        }
    }
    assert!(drain(&mut b).is_empty());
}

#[test]
fn frames_sent_before_a_peer_exits_are_received_and_its_end_is_free_again() {
    let (mut a, mut b) = pair();
    a.transmit(&frame(60, 1)).unwrap();
    b.transmit(&frame(60, 2)).unwrap();
    a.flush();
    b.flush();
    drop(a);
    let mut received = 0;
    for _ in 0..2 * BURSTS_PER_CHECK {
        received += drain(&mut b).len();
    }
    assert_eq!((received, b.state()), (1, WireState::Down));
    assert_eq!(b.transmit_losses(), 1, "frames that the peer did not receive");
    let mut a = open(LinkEnd::A);
    for _ in 0..4 * BURSTS_PER_HANDSHAKE {
        drain(&mut a);
        drain(&mut b);
    }
    assert_eq!(b.state(), WireState::Live);
    a.transmit(&frame(60, 3)).unwrap();
    a.flush();
    assert_eq!(drain(&mut b), [frame(60, 3)]);
}

fn memory() -> Arc<SharedMemory> {
    Arc::new(SharedMemory::create("test").unwrap().0)
}

#[test]
fn invalid_indices_and_lengths_of_a_producer_are_found() {
    let mut to = vec![0; MAX_FRAME_BYTES];
    for (produced, header) in [
        (RING_BYTES + 16, 60),
        (8, 60),
        (u32::MAX - 15, 60),
        (16, 60),
        (16, MAX_FRAME_BYTES as u64 + 1),
        (RING_BYTES, MAX_FRAME_BYTES as u64 + 1),
        (RING_BYTES, u64::MAX),
        (RING_BYTES, 1 << 32 | 60),
        (RING_BYTES - 16, u64::from(u32::MAX)),
        // Nothing but what is skipped: a peer could go on with that for ever.
        (RING_BYTES, u64::from(u32::MAX)),
        // No Ethernet header.
        (RING_BYTES, 13),
        (RING_BYTES, 0),
    ] {
        let memory = memory();
        memory.set_produced(0, produced);
        memory.set_header(0, 0, header);
        let taken = RingReceiver::new(memory, 0).take(&mut to);
        assert_eq!(taken, Err(Invalid), "produced {produced}, header {header:#x}");
    }
}

#[test]
fn a_record_across_the_end_of_the_ring_is_invalid() {
    let memory = memory();
    let mut sender = RingSender::new(Arc::clone(&memory), 0);
    let mut receiver = RingReceiver::new(Arc::clone(&memory), 0);
    let mut to = vec![0; MAX_FRAME_BYTES];
    // Records of 4096 bytes, up to the last one.
    for _ in 0..RING_BYTES / 4096 - 1 {
        assert_eq!(sender.put(&[1; 4088]), Ok(true));
        sender.publish();
        assert_eq!(receiver.take(&mut to), Ok(Some(4088)));
        receiver.publish();
    }
    memory.set_header(0, RING_BYTES - 4096, 5000);
    memory.set_produced(0, RING_BYTES + 4096);
    assert_eq!(receiver.take(&mut to), Err(Invalid));
}

#[test]
fn frames_before_an_invalid_record_are_received() {
    let memory = memory();
    let mut sender = RingSender::new(Arc::clone(&memory), 0);
    let mut receiver = RingReceiver::new(Arc::clone(&memory), 0);
    assert_eq!([sender.put(&frame(60, 1)), sender.put(&frame(60, 2))], [Ok(true); 2]);
    memory.set_header(0, 160, 13);
    memory.set_produced(0, 240);
    let mut frames = vec![0; BURST_FRAMES * MAX_FRAME_BYTES];
    let (places, result) = receiver.take_burst(&mut frames, BURST_FRAMES);
    assert_eq!(result, Err(Invalid));
    let seen: Vec<_> = places.into_iter().map(|place| frames[place].to_vec()).collect();
    assert_eq!(seen, [frame(60, 1), frame(60, 2)]);
    assert_eq!(sender.untaken(), 0, "the sender counts the received ones");
}

#[test]
fn invalid_indices_of_a_consumer_are_found() {
    let memory = memory();
    let mut sender = RingSender::new(Arc::clone(&memory), 0);
    while sender.put(&[0; 4088]) == Ok(true) {}
    memory.set_consumed(0, RING_BYTES + 4096);
    assert_eq!(sender.put(&[0; 4088]), Err(Invalid));
    memory.set_taken(0, 5);
    assert_eq!(sender.untaken(), u64::from(RING_BYTES / 4096) - 5);
    memory.set_taken(0, u32::MAX);
    assert!(sender.untaken() <= u64::from(RING_BYTES / 4096));
}

#[test]
fn two_threads_pass_everything_in_order() {
    const FRAMES: u32 = 20_000;
    let memory = memory();
    let mut sender = RingSender::new(Arc::clone(&memory), 1);
    let mut receiver = RingReceiver::new(memory, 1);
    let writer = std::thread::spawn(move || {
        for number in 0..FRAMES {
            let mut bytes = vec![number as u8; 14 + (number as usize * 31) % 4000];
            bytes[..4].copy_from_slice(&number.to_ne_bytes());
            while !sender.put(&bytes).unwrap() {
                sender.publish();
                std::thread::yield_now();
            }
            sender.publish();
        }
    });
    let mut to = vec![0; MAX_FRAME_BYTES];
    for number in 0..FRAMES {
        let length = loop {
            match receiver.take(&mut to).unwrap() {
                Some(length) => break length,
                None => std::thread::yield_now(),
            }
        };
        receiver.publish();
        assert_eq!(length, 14 + (number as usize * 31) % 4000);
        assert_eq!(to[..4], number.to_ne_bytes());
        assert!(to[4..length].iter().all(|byte| *byte == number as u8));
    }
    writer.join().unwrap();
}

//! What leaves by `ibv_post_send`: whole frames, pieces, inline data, checksums; what a full queue and one in ERR answer.

use verbs::{Opcode, SendFlags, Status};

use crate::bench::{ipv4, udp};
use crate::independent::internet_checksum;
use crate::sender::Sender;
use crate::sending::left;
use crate::{Bench, Case, Expected, Needs, Outcome, Verb};

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::WrPost, row, run).needs(Needs::Peer);
    vec![
        case(["ibv_post_send", "a frame", "verbs::RawQueuePair::send", "it leaves as it is"], post_send),
        case(
            [
                "ibv_post_send",
                "three pieces",
                "verbs::RawQueuePair::send_gathered",
                "they leave as one frame, in order",
            ],
            gathered,
        ),
        case(
            [
                "ibv_post_send",
                "IBV_SEND_INLINE",
                "verbs::RawQueuePair::send_inline",
                "a copy leaves, whatever becomes of the bytes",
            ],
            post_inline,
        ),
        case(
            [
                "ibv_post_send",
                "IBV_SEND_INLINE beyond max_inline_data",
                "verbs::RawQueuePair::send_inline",
                "refused",
            ],
            inline_too_long,
        )
        .expect(Expected::refused(
            libc::ENOMEM,
            "rdma-core mlx5 qp.c and mlx4 qp.c: inline data beyond the queue pair's is ENOMEM",
        )),
        case(
            [
                "ibv_post_send",
                "IBV_SEND_SIGNALED",
                "verbs::SendFlags::UNSIGNALLED",
                "a send without it completes unseen",
            ],
            unsignalled,
        ),
        case(
            [
                "ibv_post_send",
                "IBV_SEND_IP_CSUM: UDP over IPv4",
                "verbs::SendFlags::IP_CSUM",
                "both checksums are filled in",
            ],
            checksum_udp,
        ),
        case(
            [
                "ibv_post_send",
                "IBV_SEND_IP_CSUM: TCP over IPv4",
                "verbs::SendFlags::IP_CSUM",
                "both checksums are filled in",
            ],
            checksum_tcp,
        ),
        case(
            [
                "ibv_post_send",
                "more than the queue holds",
                "verbs::RawQueuePair::last_refusal",
                "refused: the queue is full",
            ],
            full,
        )
        .needs(Needs::Sends)
        .expect(Expected::refused(libc::ENOMEM, "rdma-core mlx5 qp.c and mlx4 qp.c: a full queue is ENOMEM")),
        case(
            [
                "ibv_post_send",
                "in ERR",
                "verbs::RawQueuePair::to_error",
                "it completes as flushed, nothing leaves",
            ],
            flushed,
        ),
    ]
}

fn post_send(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::new(bench, |pair| pair)?;
    let bytes = udp(1, 7);
    sender.send(&bytes, SendFlags::empty())?;
    left(bench, &[bytes])?;
    let seen = sender.completions(bench, 1)?;
    ensure!(seen[0].0 == Status::Success && seen[0].1 == Opcode::Send, "{seen:?}");
    Ok(())
}

fn gathered(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::new(bench, |pair| pair.max_send_parts(3))?;
    let bytes = udp(1, 7);
    let one = sender.frame(&bytes)?;
    let pieces = [0..14, 14..34, 34..bytes.len()];
    let flags = SendFlags::empty();
    if sender.pair.send_gathered(&mut sender.pool, one, &pieces, flags).is_err() {
        return Err(sender.refusal());
    }
    left(bench, &[bytes])
}

fn post_inline(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::new(bench, |pair| pair.max_inline_bytes(128))?;
    let (mut bytes, expected) = (udp(1, 7), udp(1, 7));
    if !sender.pair.send_inline(5, &bytes, SendFlags::empty()) {
        return Err(sender.refusal());
    }
    bytes.fill(0xee);
    left(bench, &[expected])?;
    let seen = sender.completions(bench, 1)?;
    ensure!(seen[0].2 == Some(5), "{seen:?}");
    Ok(())
}

fn inline_too_long(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::new(bench, |pair| pair.max_inline_bytes(64))?;
    let room = sender.pair.caps().max_inline_bytes as usize;
    let bytes = ipv4().udp(1, 2).payload(&vec![0; room]).build();
    if sender.pair.send_inline(5, &bytes, SendFlags::empty()) { Ok(()) } else { Err(sender.refusal()) }
}

fn unsignalled(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::new(bench, |pair| pair.max_inline_bytes(128))?;
    let bytes = udp(1, 7);
    for (token, flags) in [(1, SendFlags::UNSIGNALLED), (2, SendFlags::empty())] {
        if !sender.pair.send_inline(token, &bytes, flags) {
            return Err(sender.refusal());
        }
    }
    left(bench, &[bytes.clone(), bytes])?;
    let seen = sender.completions(bench, 1)?;
    ensure!(seen[0].2 == Some(2), "{seen:?}");
    Ok(())
}

/// Sends a frame whose checksums are zero, and expects them right.
fn filled_in(bench: &Bench<'_>, mut bytes: Vec<u8>, protocol: u8, at: usize) -> Outcome {
    let expected = {
        bytes[24..26].fill(0);
        bytes[at..at + 2].fill(0);
        let mut expected = bytes.clone();
        let sum = internet_checksum(&[&bytes[14..34]]);
        expected[24..26].copy_from_slice(&sum.to_be_bytes());
        let length = ((bytes.len() - 34) as u16).to_be_bytes();
        let sum = internet_checksum(&[&bytes[26..34], &[0, protocol, length[0], length[1]], &bytes[34..]]);
        expected[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        expected
    };
    let mut sender = Sender::new(bench, |pair| pair)?;
    sender.send(&bytes, SendFlags::IP_CSUM)?;
    left(bench, &[expected])?;
    sender.send(&bytes, SendFlags::empty())?;
    left(bench, &[bytes])
}

fn checksum_udp(bench: &Bench<'_>) -> Outcome {
    filled_in(bench, udp(1, 7), 17, 40)
}

fn checksum_tcp(bench: &Bench<'_>) -> Outcome {
    filled_in(bench, ipv4().tcp(1, 7, 0x10).payload(&[3; 33]).build(), 6, 50)
}

fn full(bench: &Bench<'_>) -> Outcome {
    let operations = |pair: verbs::RawQueuePairBuilder| pair.max_sends(4).max_inline_bytes(128);
    let mut sender = Sender::new(bench, operations)?;
    for token in 0..=sender.pair.caps().max_sends {
        // Never completed visibly, so that no place becomes free again.
        if !sender.pair.send_inline(token, &udp(1, 7), SendFlags::UNSIGNALLED) {
            return Err(sender.refusal());
        }
    }
    Ok(())
}

fn flushed(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::new(bench, |pair| pair)?;
    sender.pair.to_error()?;
    sender.send(&udp(1, 7), SendFlags::empty())?;
    let seen = sender.completions(bench, 1)?;
    ensure!(seen[0].0 == Status::Flushed, "{seen:?}");
    left(bench, &[])
}

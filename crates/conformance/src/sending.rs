//! Sent frames: batches of `ibv_qp_ex`, `ibv_post_send`, and TCP segmentation by both. Segments and checksums
//! are compared with results computed in this crate.

use verbs::{CompletionStatus, Opcode, SendFlags, SendOperations};

use crate::bench::{frame, ipv4, udp, v4, v6};
use crate::endpoints::{SEND_FRAMES, Sender};
use crate::independent::internet_checksum;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

pub(crate) const BATCHES: Expected = Expected::WORKS
    .mlx4(Answer::UNSUPPORTED)
    .because("rdma-core mlx4 verbs.c: MLX4_CREATE_QP_SUP_COMP_MASK has no send_ops_flags");

pub(crate) fn cases() -> Vec<Case> {
    let batch = |row, run| Case::new(Verb::WrPost, row, run).needs(Needs::Peer).expect(BATCHES);
    vec![
        batch(
            [
                "ibv_qp_ex.wr_start",
                "an empty batch",
                "verbs::RawQueuePair::start_send",
                "the batch completes and sends nothing",
            ],
            empty,
        ),
        batch(
            [
                "ibv_qp_ex.wr_send",
                "ibv_qp_ex.wr_set_sge",
                "verbs::SendRequest::frame",
                "the frame is sent when the batch completes, not before",
            ],
            set_sge,
        ),
        batch(
            [
                "ibv_qp_ex.wr_set_sge_list",
                "three pieces",
                "verbs::SendRequest::gather",
                "they are sent as one frame, in order",
            ],
            set_sge_list,
        ),
        batch(
            [
                "ibv_qp_ex.wr_set_inline_data",
                "82 bytes",
                "verbs::SendRequest::inline",
                "a copy is sent, even if the bytes change afterwards",
            ],
            inline,
        ),
        batch(
            [
                "ibv_qp_ex.wr_set_inline_data_list",
                "two pieces",
                "verbs::SendRequest::inline_list",
                "they are sent as one frame, in order",
            ],
            inline_list,
        ),
        batch(
            [
                "ibv_qp_ex.wr_complete",
                "three requests",
                "verbs::SendBatch::complete",
                "all are sent in order, each completes",
            ],
            complete,
        ),
        batch(
            [
                "ibv_qp_ex.wr_complete",
                "three requests, the last one with IBV_SEND_SIGNALED",
                "verbs::RawQueuePair::reclaim",
                "all are sent in order, one completion gives all frames back",
            ],
            last_signalled,
        ),
        batch(
            [
                "ibv_qp_ex.wr_complete",
                "one request more than the queue holds",
                "verbs::SendBatch::complete",
                "nothing is sent: ENOMEM",
            ],
            overfull,
        )
        .expect(
            Expected::refused(libc::ENOMEM, "ibv_wr_post(3): errors are returned by ibv_wr_complete")
                .mlx4(Answer::UNSUPPORTED),
        ),
        batch(
            [
                "ibv_qp_ex.wr_abort",
                "two requests",
                "verbs::SendBatch::abort",
                "nothing is sent, nothing completes",
            ],
            abort,
        ),
    ]
}

/// Checks what left.
pub(crate) fn left(bench: &Bench<'_>, expected: &[Vec<u8>]) -> Outcome {
    let sent = bench.sent();
    ensure!(sent == expected, "{} frames left instead of {}, or others", sent.len(), expected.len());
    Ok(())
}

/// A frame that a request did not take.
pub(crate) fn refused(_: verbs::Frame) -> Failure {
    Failure::Differs("a request was refused".into())
}

fn empty(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::batched(bench)?;
    let batch = open!(sender);
    ensure!(batch.is_empty(), "it is not empty");
    ensure!(matches!(batch.complete(), Ok(0)), "it has requests, or fails");
    left(bench, &[])
}

fn set_sge(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::batched(bench)?;
    let bytes = udp(1, 7);
    let one = sender.frame(&bytes)?;
    let mut batch = open!(sender);
    batch.send(SendFlags::empty()).frame(one, bytes.len()).map_err(refused)?;
    left(bench, &[])?;
    ensure!(matches!(batch.complete(), Ok(1)), "it does not complete");
    left(bench, &[bytes])?;
    let seen = sender.completions(bench, 1)?;
    ensure!(seen[0].0 == CompletionStatus::Success && seen[0].1 == Opcode::Send, "{seen:?}");
    Ok(())
}

fn set_sge_list(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::batched(bench)?;
    let bytes = udp(1, 7);
    let one = sender.frame(&bytes)?;
    let mut batch = open!(sender);
    let pieces = [0..14, 14..34, 34..bytes.len()];
    batch.send(SendFlags::empty()).gather(one, &pieces).map_err(refused)?;
    ensure!(matches!(batch.complete(), Ok(1)), "it does not complete");
    left(bench, &[bytes])
}

fn inline(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::batched(bench)?;
    let (mut bytes, expected) = (udp(1, 7), udp(1, 7));
    let mut batch = open!(sender);
    ensure!(batch.send(SendFlags::empty()).inline(9, &bytes), "a request was refused");
    bytes.fill(0xee);
    ensure!(matches!(batch.complete(), Ok(1)), "it does not complete");
    left(bench, &[expected])?;
    let seen = sender.completions(bench, 1)?;
    ensure!(seen[0].2 == Some(9), "{seen:?}");
    Ok(())
}

fn inline_list(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::batched(bench)?;
    let bytes = udp(1, 7);
    let (head, tail) = bytes.split_at(33);
    let mut batch = open!(sender);
    ensure!(batch.send(SendFlags::empty()).inline_list(9, &[head, tail]), "a request was refused");
    ensure!(matches!(batch.complete(), Ok(1)), "it does not complete");
    left(bench, &[bytes])
}

fn complete(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::batched(bench)?;
    let (one, two, three) = (udp(1, 7), udp(2, 7), udp(3, 7));
    let (first, second) = (sender.frame(&one)?, sender.frame(&two)?);
    let mut batch = open!(sender);
    batch.send(SendFlags::empty()).frame(first, one.len()).map_err(refused)?;
    batch.send(SendFlags::empty()).frame(second, two.len()).map_err(refused)?;
    ensure!(batch.send(SendFlags::empty()).inline(3, &three), "a request was refused");
    ensure!(matches!(batch.complete(), Ok(3)), "it does not complete");
    left(bench, &[one, two, three])?;
    let seen: Vec<_> = sender.completions(bench, 3)?.into_iter().map(|seen| seen.2).collect();
    ensure!(seen == [None, None, Some(3)], "{seen:?}");
    ensure!(sender.pool.free_count() == SEND_FRAMES, "frames are lost");
    Ok(())
}

/// More often than the queue is long.
fn last_signalled(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::batched(bench)?;
    let packets = [udp(1, 7), udp(2, 7), udp(3, 7)];
    for _ in 0..2 * sender.pair.caps().max_sends {
        let frames = packets.iter().map(|packet| sender.frame(packet)).collect::<Result<Vec<_>, _>>()?;
        let mut batch = open!(sender);
        for (index, (frame, packet)) in frames.into_iter().zip(&packets).enumerate() {
            let is_last = index + 1 == packets.len();
            let flags = if is_last { SendFlags::empty() } else { SendFlags::UNSIGNALLED };
            batch.send(flags).frame(frame, packet.len()).map_err(refused)?;
        }
        ensure!(matches!(batch.complete(), Ok(3)), "it does not complete");
        left(bench, &packets)?;
        let reports = sender.reports(bench)?;
        let lengths = packets.each_ref().map(|packet| (packet.len(), CompletionStatus::Success));
        ensure!(reports == [lengths.to_vec()], "{reports:?} instead of one completion of three packets");
        ensure!(sender.pool.free_count() == SEND_FRAMES, "frames are lost");
    }
    Ok(())
}

fn overfull(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::batched(bench)?;
    let room = sender.pair.caps().max_sends;
    let mut batch = open!(sender);
    for token in 0..=room {
        batch.send(SendFlags::empty()).inline(token, &udp(1, 7));
    }
    match batch.complete() {
        Ok(_) => Ok(()),
        Err(error) => {
            left(bench, &[])?;
            Err(Failure::Refused(error.raw_os_error().unwrap_or(0)))
        }
    }
}

fn abort(bench: &Bench<'_>) -> Outcome {
    let mut sender = Sender::batched(bench)?;
    let bytes = udp(1, 7);
    let one = sender.frame(&bytes)?;
    let mut batch = open!(sender);
    batch.send(SendFlags::empty()).frame(one, bytes.len()).map_err(refused)?;
    ensure!(batch.send(SendFlags::empty()).inline(1, &bytes), "a request was refused");
    batch.abort();
    left(bench, &[])?;
    sender.completions(bench, 0)?;
    ensure!(sender.pool.free_count() == SEND_FRAMES, "frames are lost");
    // The queue is as before.
    sender.send(&bytes, SendFlags::empty())?;
    left(bench, &[bytes])
}

pub(crate) fn segmentation() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::WrPost, row, run).needs(Needs::Peer);
    vec![
        case(
            [
                "ibv_qp_ex.wr_send_tso",
                "IPv4, 1000 bytes by 400",
                "verbs::SendBatch::tso",
                "each segment equals the one computed by the suite",
            ],
            tso_batch,
        )
        .expect(BATCHES),
        case(
            [
                "ibv_send_wr.tso",
                "IPv4, 1000 bytes by 400",
                "verbs::RawQueuePair::send_tso",
                "each segment equals the one computed by the suite",
            ],
            tso_ipv4,
        ),
        case(
            [
                "ibv_send_wr.tso",
                "IPv6, 1000 bytes by 333",
                "verbs::RawQueuePair::send_tso",
                "each segment equals the one computed by the suite",
            ],
            tso_ipv6,
        ),
    ]
}

/// Bytes of stream, none like its neighbour.
fn stream(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// Headers for a stream from port 40000 to 443, whose numbers are about to wrap; FIN and PSH are for the last
/// segment.
fn headers(version: u8) -> Vec<u8> {
    let builder = if version == 4 { frame().ipv4(v4(1), v4(2)) } else { frame().ipv6(v6(1), v6(2)) };
    let mut headers = builder.tcp(40_000, 443, 0x10 | 0x08 | 0x01).build();
    headers.truncate(l4(version) + 20);
    let sequence = l4(version) + 4;
    headers[sequence..sequence + 4].copy_from_slice(&0xffff_ff00_u32.to_be_bytes());
    headers
}

fn l4(version: u8) -> usize {
    14 + if version == 4 { 20 } else { 40 }
}

/// The segments that must leave, from RFC 9293, RFC 791 and RFC 8200.
fn segments(headers: &[u8], version: u8, stream: &[u8], mss: usize) -> Vec<Vec<u8>> {
    let (l3, l4) = (14, l4(version));
    let put =
        |frame: &mut Vec<u8>, at: usize, word: u16| frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let last = stream.len().div_ceil(mss) - 1;
    let segment = |(index, part): (usize, &[u8])| {
        let mut frame = [headers, part].concat();
        let (ip_bytes, tcp_bytes) = ((frame.len() - l3) as u16, (frame.len() - l4) as u16);
        let sequence = 0xffff_ff00_u32.wrapping_add((index * mss) as u32);
        frame[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
        if index != last {
            frame[l4 + 13] &= !(0x08 | 0x01);
        }
        let addresses = if version == 4 {
            put(&mut frame, l3 + 2, ip_bytes);
            let id = word(headers, l3 + 4).wrapping_add(index as u16);
            put(&mut frame, l3 + 4, id);
            put(&mut frame, l3 + 10, 0);
            let sum = internet_checksum(&[&frame[l3..l4]]);
            put(&mut frame, l3 + 10, sum);
            l3 + 12..l4
        } else {
            put(&mut frame, l3 + 4, tcp_bytes);
            l3 + 8..l4
        };
        put(&mut frame, l4 + 16, 0);
        let pseudo = [0, 6, (tcp_bytes >> 8) as u8, tcp_bytes as u8];
        let sum = internet_checksum(&[&frame[addresses], &pseudo, &frame[l4..]]);
        put(&mut frame, l4 + 16, sum);
        frame
    };
    stream.chunks(mss).enumerate().map(segment).collect()
}

fn tso_batch(bench: &Bench<'_>) -> Outcome {
    let operations = SendOperations::SEND | SendOperations::TSO;
    let mut sender = Sender::new(bench, |pair| pair.send_operations(operations).max_tso_header(128))?;
    let (headers, stream) = (headers(4), stream(1000));
    let whole = [&headers[..], &stream].concat();
    let one = sender.frame(&whole)?;
    let mut batch = open!(sender);
    let request = batch.tso(SendFlags::IP_CSUM, headers.len() as u16, 400);
    request.frame(one, whole.len()).map_err(refused)?;
    ensure!(matches!(batch.complete(), Ok(1)), "it does not complete");
    left(bench, &segments(&headers, 4, &stream, 400))?;
    let seen = sender.completions(bench, 1)?;
    ensure!(seen[0].1 == Opcode::SegmentedSend || seen[0].1 == Opcode::Send, "{seen:?}");
    Ok(())
}

fn tso_post(bench: &Bench<'_>, version: u8, mss: u16) -> Outcome {
    let mut sender = Sender::new(bench, |pair| pair.max_tso_header(128))?;
    let (headers, stream) = (headers(version), stream(1000));
    let whole = [&headers[..], &stream].concat();
    let one = sender.frame(&whole)?;
    let Sender { pair, pool, .. } = &mut sender;
    let header_bytes = headers.len() as u16;
    if let Err(frame) = pair.send_tso(pool, one, header_bytes, whole.len(), mss, SendFlags::IP_CSUM) {
        sender.pool.release(frame);
        return Err(sender.refusal());
    }
    left(bench, &segments(&headers, version, &stream, usize::from(mss)))
}

fn tso_ipv4(bench: &Bench<'_>) -> Outcome {
    tso_post(bench, 4, 400)
}

fn tso_ipv6(bench: &Bench<'_>) -> Outcome {
    tso_post(bench, 6, 333)
}

pub(crate) fn posting() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::WrPost, row, run).needs(Needs::Peer);
    vec![
        case(
            ["ibv_post_send", "a frame", "verbs::RawQueuePair::send", "the frame is sent unchanged"],
            post_send,
        ),
        case(
            [
                "ibv_post_send",
                "three pieces",
                "verbs::RawQueuePair::send_gathered",
                "they are sent as one frame, in order",
            ],
            gathered,
        ),
        case(
            [
                "ibv_post_send",
                "IBV_SEND_INLINE",
                "verbs::RawQueuePair::send_inline",
                "a copy is sent, even if the bytes change afterwards",
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
                "a send without it completes without a completion",
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
                "the send completes as flushed, nothing is sent",
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
    ensure!(seen[0].0 == CompletionStatus::Success && seen[0].1 == Opcode::Send, "{seen:?}");
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
    ensure!(seen[0].0 == CompletionStatus::Flushed, "{seen:?}");
    left(bench, &[])
}

//! Segmentation: one request, many frames, by `ibv_qp_ex` and by `ibv_post_send`; each compared with what is worked out here.

use verbs::{Opcode, SendFlags, SendOperations};

use crate::bench::{frame, v4, v6};
use crate::independent::internet_checksum;
use crate::sender::Sender;
use crate::sending::{BATCHES, left, refused};
use crate::{Bench, Case, Failure, Needs, Outcome, Verb};

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::WrPost, row, run).needs(Needs::Peer);
    vec![
        case(
            [
                "ibv_qp_ex.wr_send_tso",
                "IPv4, 1000 bytes by 400",
                "verbs::SendBatch::tso",
                "each segment is the one worked out here",
            ],
            tso_batch,
        )
        .expect(BATCHES),
        case(
            [
                "ibv_send_wr.tso",
                "IPv4, 1000 bytes by 400",
                "verbs::RawQueuePair::send_tso",
                "each segment is the one worked out here",
            ],
            tso_ipv4,
        ),
        case(
            [
                "ibv_send_wr.tso",
                "IPv6, 1000 bytes by 333",
                "verbs::RawQueuePair::send_tso",
                "each segment is the one worked out here",
            ],
            tso_ipv6,
        ),
    ]
}

/// Bytes of stream, none like its neighbour.
fn stream(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// Headers for a stream from port 40000 to 443, whose numbers are about to wrap; FIN and PSH are for the last segment.
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

/// What must leave: segment by segment, from RFC 9293, RFC 791 and RFC 8200.
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
    let bytes = (headers.len() as u16, whole.len());
    if let Err(frame) = sender.pair.send_tso(&mut sender.pool, one, bytes, mss, SendFlags::IP_CSUM) {
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

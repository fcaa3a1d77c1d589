//! What leaves by the functions of `ibv_qp_ex`; `posting` has `ibv_post_send`, `segments` the segmentation of both.

use verbs::{Opcode, SendFlags, Status};

use crate::bench::udp;
use crate::sender::{FRAMES, Sender};
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

const NOT_THERE: Answer = Answer::Refused(libc::EOPNOTSUPP);
pub(crate) const BATCHES: Expected = Expected::WORKS
    .mlx4(NOT_THERE)
    .because("rdma-core mlx4 verbs.c: MLX4_CREATE_QP_SUP_COMP_MASK has no send_ops_flags");

pub(crate) fn cases() -> Vec<Case> {
    let batch = |row, run| Case::new(Verb::WrPost, row, run).needs(Needs::Peer).expect(BATCHES);
    vec![
        batch(
            [
                "ibv_qp_ex.wr_start",
                "an empty batch",
                "verbs::RawQueuePair::start_send",
                "it completes, and sends nothing",
            ],
            empty,
        ),
        batch(
            [
                "ibv_qp_ex.wr_send",
                "ibv_qp_ex.wr_set_sge",
                "verbs::SendRequest::frame",
                "the frame leaves when the batch completes, not before",
            ],
            set_sge,
        ),
        batch(
            [
                "ibv_qp_ex.wr_set_sge_list",
                "three pieces",
                "verbs::SendRequest::gather",
                "they leave as one frame, in order",
            ],
            set_sge_list,
        ),
        batch(
            [
                "ibv_qp_ex.wr_set_inline_data",
                "82 bytes",
                "verbs::SendRequest::inline",
                "a copy leaves, whatever becomes of the bytes",
            ],
            inline,
        ),
        batch(
            [
                "ibv_qp_ex.wr_set_inline_data_list",
                "two pieces",
                "verbs::SendRequest::inline_list",
                "they leave as one frame, in order",
            ],
            inline_list,
        ),
        batch(
            [
                "ibv_qp_ex.wr_complete",
                "three requests",
                "verbs::SendBatch::complete",
                "all leave in order, each completes",
            ],
            complete,
        ),
        batch(
            [
                "ibv_qp_ex.wr_complete",
                "one request more than the queue holds",
                "verbs::SendBatch::complete",
                "nothing leaves: ENOMEM",
            ],
            overfull,
        )
        .expect(
            Expected::refused(libc::ENOMEM, "ibv_wr_post(3): errors are told by ibv_wr_complete")
                .mlx4(NOT_THERE),
        ),
        batch(
            [
                "ibv_qp_ex.wr_abort",
                "two requests",
                "verbs::SendBatch::abort",
                "nothing leaves, nothing completes",
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
    ensure!(seen[0].0 == Status::Success && seen[0].1 == Opcode::Send, "{seen:?}");
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
    ensure!(sender.pool.free_count() == FRAMES, "frames are lost");
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
    ensure!(sender.pool.free_count() == FRAMES, "frames are lost");
    // The queue is as before.
    sender.send(&bytes, SendFlags::empty())?;
    left(bench, &[bytes])
}

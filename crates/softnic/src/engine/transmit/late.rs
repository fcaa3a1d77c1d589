//! Requests whose frames the wire took and the medium refused, when their completions are written already.
//!
//! Between the pass that sent them and this the state was unlocked. Completions are written again only if
//! nobody has published them since, nor added others behind them. Who changes an object publishes first, so
//! the queues are the same then, and the application has seen neither the completions nor the place of the
//! requests. Otherwise they stay successes, and the loss shows in the port's counters alone.

use arrayvec::ArrayVec;

use super::FRAMES_PER_PASS;
use crate::formats::{Completions, Sends};
use crate::state::{QpKind, QpState, State};
use crate::work::{Cqe, SEND_SEGMENTS, SEND_SIGNALED, SendHeader, Status, WorkOpcode};

/// Queue pairs of one pass of which losses are reported.
const MAX_HANDED: usize = 32;

/// The requests that were handed to the wire in a pass, in its order.
pub(super) type HandedList = ArrayVec<Handed, MAX_HANDED>;

/// Requests that one queue pair has handed to the wire in one pass.
#[derive(Clone, Copy, Default)]
pub(super) struct Handed {
    slot: u32,
    cq: u32,
    /// The number of requests, at most [`FRAMES_PER_PASS`], and a bit for each that failed already.
    requests: u32,
    refused: u64,
    /// The first completion, and behind the last one.
    completions: u32,
    completions_end: u32,
}

impl Handed {
    /// Begins the record of a queue pair, before its first request.
    pub(super) fn begin(state: &State, slot: u32) -> Self {
        let cq = match state.qps.get(slot) {
            Some(QpState { kind: QpKind::Raw { send, .. }, .. }) => send.cq,
            _ => u32::MAX,
        };
        let completions = state.cqs.get(cq).map_or(0, |cq| cq.producer.position());
        Self { slot, cq, completions, ..Self::default() }
    }

    /// Notes the next requests, with a bit for each that failed.
    pub(super) fn note(&mut self, requests: u32, refused: u64) {
        self.refused |= refused.checked_shl(self.requests).unwrap_or(0);
        self.requests += requests;
    }

    /// Ends the record after the last request; `None` if no completion can be written again.
    pub(super) fn end(mut self, state: &State) -> Option<Self> {
        let Some(QpState { kind: QpKind::Raw { send, .. }, .. }) = state.qps.get(self.slot) else {
            return None;
        };
        let Sends::Own(_) = &send.consumer else { return None };
        self.completions_end = state.cqs.get(self.cq)?.producer.position();
        (self.requests > 0).then_some(self)
    }
}

/// Lets the last requests fail, as many as frames were lost: which these are is not known.
#[cold]
pub(super) fn fail_last(state: &mut State, handed: &HandedList, mut lost: u64) {
    for handed in handed.iter().rev() {
        if lost == 0 {
            return;
        }
        lost -= u64::from(fail_last_of(state, handed, lost));
    }
}

/// Lets at most `lost` of the requests of a queue pair fail; returns how many.
fn fail_last_of(state: &mut State, handed: &Handed, lost: u64) -> u32 {
    // Published since, or failed.
    if !state.unpublished_sends.contains(&handed.slot) || !state.senders.contains(&handed.slot) {
        return 0;
    }
    let State { qps, cqs, unpublished_cqs, .. } = state;
    let Some(QpState { kind: QpKind::Raw { send, .. }, number, .. }) = qps.get_mut(handed.slot) else {
        return 0;
    };
    let Some(cq) = cqs.get_mut(handed.cq).filter(|cq| send.cq == handed.cq && !cq.failed) else { return 0 };
    let (Sends::Own(requests), Completions::Own(producer)) = (&send.consumer, &mut cq.producer) else {
        return 0;
    };
    let written = handed.completions_end.wrapping_sub(handed.completions);
    if producer.position() != handed.completions_end || written > handed.requests {
        return 0;
    }
    let mut before = ArrayVec::<Cqe, FRAMES_PER_PASS>::new();
    for nth in 0..written {
        // SAFETY: this side wrote it and has not published it; the slots are aligned `Cqe`s.
        before.push(unsafe { producer.peek(handed.completions.wrapping_add(nth)).cast().read() });
    }
    if before.iter().any(Cqe::is_receive) {
        return 0;
    }
    let accepted = (0..handed.requests).rev().filter(|nth| handed.refused >> nth & 1 == 0);
    let failing = accepted.take(usize::try_from(lost).unwrap_or(usize::MAX));
    let failing = failing.fold(0_u64, |bits, nth| bits | 1 << nth);
    let slots = requests.slots_from(requests.position().wrapping_sub(handed.requests));
    producer.rewind(handed.completions);
    let mut spare = producer.room_for(handed.requests).saturating_sub(written);
    let mut before = before.into_iter().peekable();
    let mut write = |cqe: Cqe| {
        // SAFETY: there was room for what was written before, and `spare` counts the rest, so the slot is the
        // producer's; slots are aligned `Cqe`s.
        unsafe { producer.slot().cast::<Cqe>().write(cqe) };
        producer.advance();
    };
    for nth in 0..handed.requests {
        // SAFETY: the request was not given back, so its slot is this side's; slots begin with the header.
        let header = unsafe { slots.at(nth).cast::<SendHeader>().read() };
        let is_signaled = send.signal_all || header.flags & SEND_SIGNALED != 0;
        let is_written = is_signaled || handed.refused >> nth & 1 != 0;
        let old = before.next_if(|cqe| is_written && cqe.wr_id == header.wr_id);
        if failing >> nth & 1 == 0 {
            old.into_iter().for_each(&mut write);
        } else if old.is_some() || spare > 0 {
            spare -= u32::from(old.is_none());
            let is_stream = header.flags & SEND_SEGMENTS != 0;
            let opcode = if is_stream { WorkOpcode::Segments } else { WorkOpcode::Send };
            write(Cqe::failed(header.wr_id, opcode, Status::General, *number));
        }
    }
    // None, unless the application wrote to requests that it has posted.
    before.for_each(write);
    if !cq.unpublished {
        cq.unpublished = true;
        unpublished_cqs.push(handed.cq);
    }
    failing.count_ones()
}

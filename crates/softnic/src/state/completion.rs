//! The engine's side of completion queues: completions in, overruns, and the events that wake waiting
//! threads.
//!
//! Part of [`State`]; called by the engine and by the ops that flush. Events are looked at when a burst is
//! published, under the device's mutex. A queue is armed without it ([`Wish`]), but for personalities whose
//! arming counts what is not polled ([`State::arm_from_consumer`]): on hardware that is a write to a
//! doorbell, and a thread that polls must not wait for others. The engine publishes completions and then
//! loads the wish; the application stores the wish and then polls; a sequentially consistent fence stands
//! between the two steps of each side. Of two such fences one is first, so either the poll sees the
//! completion or the engine sees the wish and raises the event: the pattern of `ibv_get_cq_event(3)` (event,
//! arm, poll until empty) loses nothing. With the exception named above, completions that were published
//! before the queue was armed raise none by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};

use super::{QpKind, QpState, QueueState, State};
use crate::clock;
use crate::events::CompletionEvents;
use crate::formats::Completions;
use crate::ring::RingProducer;
use crate::slab::Slab;
use crate::work::Cqe;

/// The engine's side of a completion queue.
pub(crate) struct CqState {
    pub(crate) owner: u32,
    pub(crate) users: u32,
    pub(crate) producer: Completions,
    /// The interrupt that its events would come by (`comp_vector`).
    pub(crate) vector: u32,
    pub(crate) ignore_overrun: bool,
    /// An overrun happened: the queue takes nothing any more.
    pub(crate) failed: bool,
    pub(crate) unpublished: bool,
    /// Set by the consumer when it first asks for flags: only then are checksums verified.
    pub(crate) wants_checksums: Arc<AtomicBool>,
    /// Whether those of packets of work queues are reported.
    pub(crate) checksums_of_work_queues: bool,
    /// The application's `ibv_cq`, for events, and how many asynchronous ones were sent.
    pub(crate) native: u64,
    pub(crate) events: u32,
    pub(crate) notice: Notice,
}

/// A completion channel.
pub(crate) struct ChannelState {
    pub(crate) owner: u32,
    /// Completion queues that report to it.
    pub(crate) users: u32,
    /// The application's `ibv_comp_channel`.
    pub(crate) native: u64,
    pub(crate) events: CompletionEvents,
}

/// The event that the application waits for (`ibv_req_notify_cq`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    #[default]
    No,
    /// The next completion that failed, or of a datagram whose sender wants it. No raw packet carries such a
    /// bit.
    Solicited,
    /// The next completion.
    Any,
}

/// The event that the application last asked for: shared by both sides of the queue.
#[derive(Clone, Debug, Default)]
pub struct Wish(Arc<AtomicU8>);

impl Wish {
    const SOLICITED: u8 = 1;
    const ANY: u8 = 2;

    /// Arms the queue for one event. A wish for any completion outweighs one for a failed one.
    #[inline]
    pub fn arm(&self, solicited_only: bool) {
        self.0.fetch_max(if solicited_only { Self::SOLICITED } else { Self::ANY }, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// To be called after completions were published.
    #[inline]
    fn take(&self) -> Armed {
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) == 0 {
            return Armed::No;
        }
        match self.0.swap(0, Ordering::Relaxed) {
            Self::SOLICITED => Armed::Solicited,
            _ => Armed::Any,
        }
    }
}

/// When the application is notified of completions.
#[derive(Default)]
pub(crate) struct Notice {
    pub(crate) channel: Option<u32>,
    wish: Wish,
    armed: Armed,
    /// Where the producer stood when completions were last published.
    published: u32,
    /// Where the producer stood when completions were last counted.
    counted: u32,
    /// Completions since the queue was armed, and the time of the first.
    waiting: u32,
    since_ns: u64,
    /// Completions per event, and how long fewer may wait (`ibv_modify_cq`). Both 0: an event at once.
    count: u16,
    period_us: u16,
    /// The queue is in the list of queues with an event to come.
    listed: bool,
    /// Completion events sent.
    pub(crate) events: u32,
}

impl Notice {
    pub(crate) fn of(wish: Wish, channel: Option<u32>) -> Self {
        Self { wish, channel, ..Self::default() }
    }

    pub(crate) fn moderate(&mut self, count: u16, period_us: u16) {
        (self.count, self.period_us) = (count, period_us);
    }

    /// Whether the completions that wait are enough, or have waited long enough.
    fn is_due(&self, now_ns: u64) -> bool {
        let by_count = u32::from(self.count).max(u32::from(self.period_us == 0));
        let waited_ns = now_ns.saturating_sub(self.since_ns);
        let in_time = self.period_us != 0 && waited_ns >= u64::from(self.period_us) * 1_000;
        (by_count != 0 && self.waiting >= by_count) || in_time
    }
}

impl CqState {
    /// Shows the application what was completed. Returns whether it waits for an event.
    #[inline]
    fn publish(&mut self) -> bool {
        self.unpublished = false;
        self.producer.publish();
        if self.notice.channel.is_some() {
            self.take_wish();
            self.notice.published = self.producer.position();
        }
        self.notice.armed != Armed::No
    }

    /// Takes what the application waits for, if it asked since the last look. It asks for what it has not
    /// seen: a foreign queue names the first such completion, and may have shown it
    /// already. Where it waited for solicited completions and now waits for any, those from there on were
    /// counted as such, and count anew.
    #[inline]
    fn take_wish(&mut self) {
        if let Completions::Foreign(ring) = &self.producer {
            let Some(arm) = ring.take_arm() else { return };
            self.notice.published = arm.from;
            if self.notice.armed == Armed::Solicited && !arm.solicited_only {
                self.notice.armed = Armed::No;
            }
            self.arm(if arm.solicited_only { Armed::Solicited } else { Armed::Any });
            return;
        }
        let wish = self.notice.wish.take();
        if wish != Armed::No {
            self.arm(wish);
        }
    }

    fn arm(&mut self, wish: Armed) {
        if self.notice.armed == Armed::No {
            self.notice.counted = self.notice.published;
            self.notice.waiting = 0;
        }
        if self.notice.armed != Armed::Any {
            self.notice.armed = wish;
        }
    }

    /// Goes on with another ring, into which the completions of this one were moved.
    pub(crate) fn replace(&mut self, producer: &mut RingProducer) {
        if let Completions::Own(own) = &mut self.producer {
            std::mem::swap(own, producer);
        }
        self.notice.counted = self.producer.position();
        self.notice.published = self.notice.counted;
    }

    /// The completions since the last count that the application waits for.
    fn fresh(&mut self) -> u32 {
        let end = self.producer.position();
        let mut index = std::mem::replace(&mut self.notice.counted, end);
        if self.notice.armed == Armed::Any {
            return end.wrapping_sub(index);
        }
        let mut solicited = 0;
        while index != end {
            solicited += u32::from(self.producer.is_solicited(index));
            index = index.wrapping_add(1);
        }
        solicited
    }

    /// Counts the published completions of an armed queue, and sends the event if it is time.
    #[cold]
    fn announce(&mut self, slot: u32, channels: &Slab<ChannelState>, waiting: &mut Vec<u32>) {
        let fresh = self.fresh();
        if fresh == 0 {
            return;
        }
        let now_ns = clock::steady_ns();
        if self.notice.waiting == 0 {
            self.notice.since_ns = now_ns;
        }
        self.notice.waiting = self.notice.waiting.saturating_add(fresh);
        let raised = self.notice.is_due(now_ns) && self.raise(channels);
        if !raised && !self.notice.listed {
            self.notice.listed = true;
            waiting.push(slot);
        }
    }

    /// Sends the event. Returns whether it went, or can never go.
    fn raise(&mut self, channels: &Slab<ChannelState>) -> bool {
        let channel = self.notice.channel.and_then(|slot| channels.get(slot));
        let sent = channel.is_none_or(|channel| channel.events.send(self.native));
        if sent {
            self.notice.events += u32::from(channel.is_some());
            self.notice.armed = Armed::No;
            self.notice.waiting = 0;
        }
        sent
    }
}

impl State {
    /// Adds a completion queue, with room to note it without allocating.
    pub(crate) fn insert_cq(&mut self, cq: CqState) -> Option<u32> {
        let slot = self.cqs.insert(cq)?;
        let wanted = self.cqs.slot_count();
        for list in [&mut self.unpublished_cqs, &mut self.waiting_cqs, &mut self.watched_cqs] {
            list.reserve(wanted.saturating_sub(list.len()));
        }
        Some(slot)
    }

    /// Takes a completion queue out.
    pub(crate) fn remove_cq(&mut self, slot: u32) -> Option<CqState> {
        let cq = self.cqs.remove(slot)?;
        self.waiting_cqs.retain(|waiting| *waiting != slot);
        self.watched_cqs.retain(|watched| *watched != slot);
        if let Some(channel) = cq.notice.channel.and_then(|channel| self.channels.get_mut(channel)) {
            channel.users -= 1;
        }
        Some(cq)
    }

    /// Whether a completion can be written.
    pub(crate) fn has_room_for_completion(&mut self, cq_slot: u32) -> bool {
        self.cqs.get_mut(cq_slot).is_some_and(|cq| !cq.failed && cq.producer.has_room(1))
    }

    /// Writes a completion. Returns whether there was room; an overrun of a queue that does not ignore it is
    /// fatal for the queue, and reported.
    #[inline]
    pub(crate) fn complete(&mut self, cq_slot: u32, cqe: &Cqe) -> bool {
        let Some(cq) = self.cqs.get_mut(cq_slot) else { return false };
        if cq.failed || !cq.producer.has_room(1) {
            self.overrun(cq_slot);
            return false;
        }
        cq.producer.write(cqe);
        if !cq.unpublished {
            cq.unpublished = true;
            self.unpublished_cqs.push(cq_slot);
        }
        true
    }

    /// Notes that a completion queue had no room. One that ignores it loses the completion: where hardware
    /// writes over the oldest one, the newest is lost here. For any other it is the end, and for the queues
    /// that complete to it (`ibv_poll_cq(3)`: "the CQ cannot be used"; InfiniBand specification, Local Work
    /// Queue Catastrophic Error).
    #[cold]
    pub(crate) fn overrun(&mut self, cq_slot: u32) {
        let Some(cq) = self.cqs.get_mut(cq_slot) else { return };
        if cq.failed || cq.ignore_overrun {
            return;
        }
        cq.failed = true;
        let (owner, native) = (cq.owner, cq.native);
        let sent = self.notify(owner, ibverbs_sys::IBV_EVENT_CQ_ERR, native);
        if let Some(cq) = self.cqs.get_mut(cq_slot) {
            cq.events += sent;
        }
        for slot in (0..self.queues.slot_count()).filter_map(|slot| u32::try_from(slot).ok()) {
            if self.queues.get(slot).is_some_and(|queue| queue.cq == cq_slot) {
                self.fail_running_queue(slot);
            }
        }
        for slot in (0..self.qps.slot_count()).filter_map(|slot| u32::try_from(slot).ok()) {
            let receives = self.qps.get(slot).and_then(|qp| match &qp.kind {
                QpKind::Raw { queue, send } if send.cq == cq_slot => Some(*queue),
                _ => None,
            });
            if let Some(queue) = receives {
                self.fail_running_queue(queue);
            }
        }
    }

    /// Fails a queue unless it has failed already, or was never started: RESET is 0 for work queues and queue
    /// pairs.
    fn fail_running_queue(&mut self, slot: u32) {
        let runs = |queue: &QueueState| queue.native_state.load(Ordering::Relaxed) != 0;
        if self.queues.get(slot).is_some_and(runs) && !self.failed_queues.contains(&slot) {
            self.fail_queue(slot);
        }
    }

    /// Shows the applications what this burst consumed, and then what it completed: a thread that sees a
    /// completion may count on the place of its request.
    pub(crate) fn publish(&mut self) {
        for slot in self.unpublished_sends.drain(..) {
            if let Some(QpState { kind: QpKind::Raw { send, .. }, .. }) = self.qps.get(slot) {
                send.consumer.publish();
            }
        }
        let Self { unpublished_queues, queues, unpublished_cqs, cqs, channels, waiting_cqs, .. } = self;
        for slot in unpublished_queues.drain(..) {
            if let Some(queue) = queues.get_mut(slot) {
                queue.unpublished = false;
                queue.consumer.publish();
            }
        }
        for slot in unpublished_cqs.drain(..) {
            if let Some(cq) = cqs.get_mut(slot)
                && cq.publish()
            {
                cq.announce(slot, channels, waiting_cqs);
            }
        }
    }

    /// Arms a queue of which the published completions that are not polled count as well, and sends their
    /// event. Under the mutex, so that the engine has not sent it already.
    #[cold]
    pub(crate) fn arm_from_consumer(&mut self, slot: u32, solicited_only: bool) {
        let Self { cqs, channels, waiting_cqs, .. } = self;
        let Some(cq) = cqs.get_mut(slot).filter(|cq| cq.notice.channel.is_some()) else { return };
        let Completions::Own(producer) = &cq.producer else { return };
        let end = cq.notice.published;
        let unpolled = end.wrapping_sub(producer.consumed()).min(producer.limit());
        if cq.notice.armed == Armed::Solicited && !solicited_only {
            // They were counted as solicited ones, and count anew.
            cq.notice.armed = Armed::No;
        }
        cq.notice.published = end.wrapping_sub(unpolled);
        cq.arm(if solicited_only { Armed::Solicited } else { Armed::Any });
        cq.announce(slot, channels, waiting_cqs);
        cq.notice.published = end;
    }

    /// Looks for queues that were armed after their completions were shown, and sends their events.
    #[cold]
    pub(crate) fn look_for_arms(&mut self) {
        let Self { cqs, channels, waiting_cqs, watched_cqs, .. } = self;
        for slot in watched_cqs {
            if let Some(cq) = cqs.get_mut(*slot) {
                cq.take_wish();
                if cq.notice.armed != Armed::No {
                    cq.announce(*slot, channels, waiting_cqs);
                }
            }
        }
    }

    /// Sends the events whose time has come, and those that a full channel had no room for.
    #[cold]
    pub(crate) fn raise_waiting(&mut self) {
        let Self { cqs, channels, waiting_cqs, .. } = self;
        let now_ns = clock::steady_ns();
        waiting_cqs.retain(|slot| {
            let Some(cq) = cqs.get_mut(*slot) else { return false };
            let waits = cq.notice.armed != Armed::No && cq.notice.waiting != 0;
            cq.notice.listed = waits && !(cq.notice.is_due(now_ns) && cq.raise(channels));
            cq.notice.listed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(count: u16, period_us: u16, waiting: u32) -> Notice {
        Notice { count, period_us, waiting, since_ns: 1_000_000, ..Notice::default() }
    }

    #[test]
    fn without_moderation_one_completion_is_enough() {
        assert!(notice(0, 0, 1).is_due(1_000_000));
        assert!(!notice(0, 0, 0).is_due(1_000_000));
    }

    #[test]
    fn an_event_comes_by_count_or_by_time_whichever_is_first() {
        assert!(!notice(4, 50, 3).is_due(1_049_999));
        assert!(notice(4, 50, 4).is_due(1_000_000));
        assert!(notice(4, 50, 1).is_due(1_050_000));
        assert!(!notice(4, 0, 3).is_due(u64::MAX), "no period: only the count");
        assert!(!notice(0, 50, 100).is_due(1_049_999), "no count: only the period");
    }
}

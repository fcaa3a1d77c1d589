//! The ring of one worker's recorder: slots of equal length in words that readers share. The worker writes
//! each packet over the oldest one and never waits; readers copy slots meanwhile and find out which of them
//! were overwritten.
//!
//! Each slot is a sequence lock (Boehm, "Can seqlocks get along with programming language memory models?",
//! MSPC 2012). The packet with number `n`, from 0, is in slot `n` modulo their count. Its sequence word is
//! `2n + 1` while the packet is written, and `2n + 2` when it is complete. The writer stores the odd number
//! before a release fence and the words behind it; a reader that copies one of these words and then passes an
//! acquire fence sees that number, or a later one. So a copy is whole if the sequence is `2n + 2` before and
//! after it. Numbers are never used twice, so a slot that was written anew meanwhile is not taken for the old
//! one.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use program::{GroupId, Outcome, RuleId, Verdict};

use crate::sink::SlotSet;

/// The words of a slot before the octets of the packet: the sequence and a [`PacketHead`].
const HEAD_WORDS: usize = 1 + PacketHead::WORDS;
/// The octets of a word.
const WORD_BYTES: usize = size_of::<u64>();

/// The facts about a recorded packet, without its octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketHead {
    /// Nanoseconds since 1970.
    pub(super) time_ns: u64,
    /// The program that decided it.
    pub(super) generation: u64,
    pub(super) outcome: Outcome,
    /// The places of the sinks that got it.
    pub(super) sinks: SlotSet,
    /// The length of the packet.
    pub(super) original_bytes: u32,
    /// The octets that are kept.
    pub(super) kept_bytes: u32,
}

impl PacketHead {
    const WORDS: usize = 6;

    #[inline]
    fn to_words(self) -> [u64; Self::WORDS] {
        let verdict = match self.outcome.verdict {
            Verdict::Drop => 0,
            Verdict::Kernel => 1,
            Verdict::Filtered => 2,
            Verdict::Deliver(group) => 3 | u64::from(group.0) << 32,
        };
        [
            self.time_ns,
            self.generation,
            verdict,
            self.outcome.rule.0.into(),
            self.sinks.bits(),
            u64::from(self.original_bytes) << 32 | u64::from(self.kept_bytes),
        ]
    }

    fn of_words(words: [u64; Self::WORDS]) -> Self {
        let [time_ns, generation, verdict, rule, sinks, bytes] = words;
        let verdict = match verdict as u32 {
            0 => Verdict::Drop,
            1 => Verdict::Kernel,
            2 => Verdict::Filtered,
            _ => Verdict::Deliver(GroupId((verdict >> 32) as u32)),
        };
        Self {
            time_ns,
            generation,
            outcome: Outcome { rule: RuleId(rule as u32), verdict },
            sinks: SlotSet::of_bits(sinks),
            original_bytes: (bytes >> 32) as u32,
            kept_bytes: bytes as u32,
        }
    }
}

/// The words of a slot that keeps so many octets of a packet.
pub(super) fn slot_words(snap_bytes: usize) -> usize {
    HEAD_WORDS + snap_bytes.div_ceil(WORD_BYTES)
}

/// The shared part of a ring.
#[derive(Debug)]
pub(super) struct SlotRing<W> {
    words: W,
    snap_bytes: usize,
    /// How many packets were written so far; those in the slots are the last of them.
    written: AtomicU64,
}

impl<W: Deref<Target = [AtomicU64]>> SlotRing<W> {
    /// A ring in these words, which are 0.
    pub(super) fn new(words: W, snap_bytes: usize) -> Arc<Self> {
        Arc::new(Self { words, snap_bytes, written: AtomicU64::new(0) })
    }

    /// The most packets that it keeps.
    pub(super) fn slots(&self) -> u64 {
        (self.words.len() / slot_words(self.snap_bytes)) as u64
    }

    /// How many packets were written so far.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Acquire)
    }

    /// The numbers of the packets in the slots.
    pub(super) fn kept(&self) -> Range<u64> {
        let end = self.written();
        end.saturating_sub(self.slots())..end
    }

    /// The time of the oldest packet, if it is not overwritten meanwhile.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        let kept = self.kept();
        if kept.is_empty() {
            return None;
        }
        self.copy(kept.start, &mut Vec::new()).map(|head| head.time_ns)
    }

    /// Copies a packet, and puts its octets in the place of those in `bytes`. `None`: it was overwritten.
    pub(super) fn copy(&self, number: u64, bytes: &mut Vec<u8>) -> Option<PacketHead> {
        let slot_words = slot_words(self.snap_bytes);
        let place = (number % self.slots()) as usize * slot_words;
        let (sequence, words) = self.words.get(place..place + slot_words)?.split_first()?;
        let complete = 2 * number + 2;
        if sequence.load(Acquire) != complete {
            return None;
        }
        let head = PacketHead::of_words(std::array::from_fn(|word| words[word].load(Relaxed)));
        // A head that is being overwritten may have any length.
        let kept = (head.kept_bytes as usize).min(self.snap_bytes);
        bytes.clear();
        let body = words[PacketHead::WORDS..].iter().take(kept.div_ceil(WORD_BYTES));
        bytes.extend(body.flat_map(|word| word.load(Relaxed).to_ne_bytes()));
        bytes.truncate(kept);
        fence(Acquire);
        (sequence.load(Relaxed) == complete).then_some(head)
    }
}

/// The writer of a ring; there is one.
#[derive(Debug)]
pub(super) struct RingWriter<W> {
    ring: Arc<SlotRing<W>>,
    /// The number of the next packet, and the first word of its slot.
    number: u64,
    place: usize,
}

impl<W: Deref<Target = [AtomicU64]>> RingWriter<W> {
    /// The writer of a new ring.
    pub(super) fn new(ring: &Arc<SlotRing<W>>) -> Self {
        Self { ring: Arc::clone(ring), number: 0, place: 0 }
    }

    /// Writes a packet over the oldest one; `head` without the number of octets that are kept.
    #[inline]
    pub(super) fn push(&mut self, head: PacketHead, bytes: &[u8]) {
        let snap_bytes = self.ring.snap_bytes;
        let slot_words = slot_words(snap_bytes);
        let kept = bytes.get(..snap_bytes).unwrap_or(bytes);
        let head = PacketHead { kept_bytes: kept.len() as u32, ..head };
        let end = self.place + slot_words;
        let Some([sequence, words @ ..]) = self.ring.words.get(self.place..end) else { return };
        sequence.store(2 * self.number + 1, Relaxed);
        fence(Release);
        let (of_head, body) = words.split_at(PacketHead::WORDS);
        of_head.iter().zip(head.to_words()).for_each(|(place, word)| place.store(word, Relaxed));
        let (whole, rest) = kept.as_chunks::<WORD_BYTES>();
        body.iter().zip(whole).for_each(|(place, word)| place.store(u64::from_ne_bytes(*word), Relaxed));
        if let (false, Some(place)) = (rest.is_empty(), body.get(whole.len())) {
            let mut word = [0; WORD_BYTES];
            word[..rest.len()].copy_from_slice(rest);
            place.store(u64::from_ne_bytes(word), Relaxed);
        }
        sequence.store(2 * self.number + 2, Release);
        self.number += 1;
        self.place = if end + slot_words > self.ring.words.len() { 0 } else { end };
    }

    /// Lets readers see the packets that were written.
    #[inline]
    pub(super) fn publish(&self) {
        self.ring.written.store(self.number, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Words = Box<[AtomicU64]>;

    const SNAP_BYTES: usize = 13;

    fn ring(slots: usize) -> (RingWriter<Words>, Arc<SlotRing<Words>>) {
        // A remainder that is too short for another slot.
        let words = slots * slot_words(SNAP_BYTES) + 1;
        let ring = SlotRing::new((0..words).map(|_| AtomicU64::new(0)).collect::<Words>(), SNAP_BYTES);
        (RingWriter::new(&ring), ring)
    }

    /// A head of which every field follows from the number.
    fn head(number: u64) -> PacketHead {
        let verdicts = [Verdict::Drop, Verdict::Kernel, Verdict::Filtered, Verdict::Deliver(GroupId(7))];
        PacketHead {
            time_ns: number << 40,
            generation: number,
            outcome: Outcome { rule: RuleId(number as u32), verdict: verdicts[number as usize % 4] },
            sinks: SlotSet::of_bits(1 << (number % 64)),
            original_bytes: number as u32 + 1500,
            kept_bytes: (number as u32 % 20).min(SNAP_BYTES as u32),
        }
    }

    fn body(number: u64) -> Vec<u8> {
        (0..number % 20).map(|byte| (number ^ byte) as u8).collect()
    }

    fn push(writer: &mut RingWriter<Words>, number: u64) {
        writer.push(PacketHead { kept_bytes: 0, ..head(number) }, &body(number));
        writer.publish();
    }

    #[test]
    fn the_last_packets_are_kept_whole() {
        let (mut writer, ring) = ring(5);
        assert_eq!((ring.kept(), ring.oldest_ns()), (0..0, None));
        for number in 0..23 {
            push(&mut writer, number);
            assert_eq!(ring.kept(), number.saturating_sub(4)..number + 1);
            assert_eq!(ring.oldest_ns(), Some(head(ring.kept().start).time_ns));
            for kept in ring.kept() {
                let mut bytes = vec![9; 3];
                assert_eq!(ring.copy(kept, &mut bytes), Some(head(kept)), "{kept} after {number}");
                let whole = body(kept);
                assert_eq!(bytes, whole[..whole.len().min(SNAP_BYTES)]);
            }
        }
        assert_eq!(ring.copy(17, &mut Vec::new()), None, "overwritten");
        assert_eq!(ring.copy(23, &mut Vec::new()), None, "not written yet");
    }

    /// Miri runs it with few packets, in many orders of the two threads' steps.
    #[test]
    fn a_copy_is_never_torn() {
        let most = if cfg!(miri) { 60 } else { 400_000 };
        let (mut writer, ring) = ring(3);
        let mut copied = 0;
        std::thread::scope(|scope| {
            scope.spawn(move || (0..most).for_each(|number| push(&mut writer, number)));
            let mut bytes = Vec::new();
            while ring.written() < most {
                for number in ring.kept() {
                    if let Some(found) = ring.copy(number, &mut bytes) {
                        let whole = body(number);
                        assert_eq!(found, head(number));
                        assert_eq!(bytes, whole[..whole.len().min(SNAP_BYTES)], "packet {number}");
                        copied += 1;
                    }
                }
            }
        });
        let last = ring.kept().filter(|number| ring.copy(*number, &mut Vec::new()).is_some()).count();
        assert_eq!(last, 3, "{copied} were copied meanwhile");
    }

    #[test]
    fn a_packet_that_is_being_written_is_refused() {
        let (mut writer, ring) = ring(2);
        (0..2).for_each(|number| push(&mut writer, number));
        ring.words[0].store(2 * 2 + 1, Relaxed);
        assert_eq!(ring.copy(0, &mut Vec::new()), None);
        assert_eq!(ring.copy(1, &mut Vec::new()), Some(head(1)));
    }
}

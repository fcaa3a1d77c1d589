//! From a tag to an outcome: the class tables of the two bands, and how one gives way to another.
//! Called by the worker's loop only. A packet of an exact class is never parsed; one of a hybrid
//! class is, and only there are anomalies seen.

use std::sync::Arc;

use packet::DeepKey;
use program::{Band, Class, ClassId, ClassTag, Decide};
use verbs::FramePool;

use crate::batch::{self, Batch};
use crate::mailbox::{Command, Mailbox, Publication};
use crate::stats::{DropReason, Stats};
use crate::table::ClassTable;

/// The programs that packets may still carry tags of.
#[derive(Debug)]
pub(crate) struct Classifier {
    bands: [Option<Arc<ClassTable>>; 2],
    /// The band that was published last.
    latest: Band,
    /// Everything up to here was carried out.
    seen: Publication,
    draining: Option<Draining>,
    /// Completions that can be waiting at once.
    outstanding_max: u64,
}

/// A command whose band still has a table that waiting completions may need. Completions come in
/// order, so once the queue was seen empty, or as many were taken as it can hold, all that were
/// waiting when the command was seen have been classified.
#[derive(Debug)]
struct Draining {
    command: Command,
    left: u64,
}

impl Classifier {
    pub(crate) fn new(outstanding_max: u32) -> Self {
        Self {
            bands: [None, None],
            latest: Band::A,
            seen: Publication::default(),
            draining: None,
            outstanding_max: u64::from(outstanding_max),
        }
    }

    /// Takes over what control published. One atomic read per turn when there is nothing new.
    #[inline]
    pub(crate) fn refresh(&mut self, mailbox: &Mailbox, last: &Batch) {
        if mailbox.newer_than(self.seen) {
            self.turn_page(mailbox, last);
        }
    }

    #[cold]
    fn turn_page(&mut self, mailbox: &Mailbox, last: &Batch) {
        if let Some(mut draining) = self.draining.take() {
            draining.left = draining.left.saturating_sub(last.completions as u64);
            if draining.left > 0 && !last.drained {
                self.draining = Some(draining);
                return;
            }
            self.carry_out(draining.command, mailbox);
        }
        while let Some(command) = mailbox.take() {
            if self.bands[command.band.index()].is_some() {
                self.draining = Some(Draining { command, left: self.outstanding_max });
                return;
            }
            self.carry_out(command, mailbox);
        }
    }

    /// The old table is let go before the acknowledgement: control frees it, never this thread.
    fn carry_out(&mut self, command: Command, mailbox: &Mailbox) {
        if command.table.is_some() {
            self.latest = command.band;
        }
        self.bands[command.band.index()] = command.table;
        self.seen = command.publication;
        mailbox.acknowledge(command.publication);
    }

    /// Gives every packet of the batch its outcome and counts it, under its rule or with a reason.
    pub(crate) fn classify(&self, batch: &mut Batch, pool: &FramePool, stats: &Stats) {
        let Batch { frames, packets, .. } = batch;
        for packet in packets {
            let tag = packet.tag.map(|tag| tag.0);
            let Some((table, (class, is_deep))) = self.class_of(tag, stats) else { continue };
            let outcome = match &class.decide {
                Decide::Exact(outcome) => *outcome,
                Decide::Software(..) => {
                    let frame = batch::bytes(frames, pool, packet);
                    let parsed = packet::parse(frame);
                    if let Some(anomaly) = parsed.anomaly {
                        stats.anomaly(anomaly);
                    }
                    if is_deep {
                        let tunnel = packet::parse_tunnel(frame, &parsed);
                        class.resolve_deep(&DeepKey { outer: parsed.key, tunnel })
                    } else {
                        class.resolve(&parsed.key)
                    }
                }
            };
            let Some(tally) = table.tally(&outcome) else {
                stats.dropped(DropReason::UnknownClass);
                continue;
            };
            tally.add(1, u64::from(packet.bytes));
            packet.outcome = Some(outcome);
        }
    }

    #[inline]
    fn class_of(&self, tag: Option<u32>, stats: &Stats) -> Option<(&ClassTable, (&Class, bool))> {
        let known = match tag.and_then(ClassTag::decode) {
            Some(tag) => self.bands[tag.band.index()].as_deref().map(|table| (table, tag.class)),
            None if tag.unwrap_or(0) == 0 => self.untagged(),
            None => None,
        };
        let Some((table, class)) = known else {
            stats.dropped(DropReason::UnknownTag);
            return None;
        };
        let class = table.class(class);
        if class.is_none() {
            stats.dropped(DropReason::UnknownClass);
        }
        class.map(|class| (table, class))
    }

    /// What packets without a tag are, by the latest program that knows. Their flow does not say which
    /// program it belongs to, and while one follows another the new one judges them.
    #[inline]
    fn untagged(&self) -> Option<(&ClassTable, ClassId)> {
        let bands = [self.latest, self.latest.other()];
        bands.into_iter().find_map(|band| {
            let table = self.bands[band.index()].as_deref()?;
            Some((table, table.untagged()?))
        })
    }

    /// The program of a band, for whoever owns the worker.
    pub(crate) fn table(&self, band: Band) -> Option<&Arc<ClassTable>> {
        self.bands[band.index()].as_ref()
    }
}

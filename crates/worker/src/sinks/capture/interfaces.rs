//! Which interface of a capture the packets of a rule belong to, and what has become of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::pcapng::{self, Statistics};

/// The rules of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) generation: u64,
    /// The digest of the policy's text; empty if it is not known.
    pub(super) policy: String,
    /// The rules by index: the name, and whether the sink gets the rule's packets.
    pub(super) rules: Vec<(String, bool)>,
}

/// The description of the interface of a rule.
pub(super) fn description(rule: &str) -> String {
    format!("packets of the steerd rule {rule}")
}

/// The rule of a record.
pub(super) type RuleKey = (u64, u32);

/// One rule, whatever generations it is in: a rule of the same name is the same interface.
#[derive(Debug)]
struct Interface {
    name: String,
    /// The number in the current file, once its description is written.
    number: Option<u32>,
    statistics: Statistics,
    /// Lost since the last packet that was taken out of the ring.
    lost: u64,
    /// Packets that are not written yet, and the losses that their blocks mention.
    unwritten: u64,
    mentioned: u64,
}

/// The interfaces of the current file.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    names: Vec<Arc<Names>>,
    list: Vec<Interface>,
    /// Places in `list`.
    by_rule: HashMap<RuleKey, usize>,
    last: Option<(RuleKey, usize)>,
    /// Descriptions in the current file.
    described: u32,
}

impl Interfaces {
    /// The names of the programs that can have packets, the newest last.
    pub(super) fn learn(&mut self, names: Vec<Arc<Names>>) {
        self.names = names;
        self.by_rule.clear();
        self.last = None;
    }

    /// The newest program.
    pub(super) fn newest(&self) -> Option<&Arc<Names>> {
        self.names.last()
    }

    /// The place of a rule's interface, for the other functions.
    pub(super) fn of(&mut self, rule: RuleKey) -> usize {
        if let Some((_, place)) = self.last.filter(|(last, _)| *last == rule) {
            return place;
        }
        let place = match self.by_rule.get(&rule) {
            Some(place) => *place,
            None => self.find(rule),
        };
        self.last = Some((rule, place));
        place
    }

    #[cold]
    fn find(&mut self, rule: RuleKey) -> usize {
        let (generation, index) = rule;
        let names = self.names.iter().rev().find(|names| names.generation == generation);
        let name = names.and_then(|names| names.rules.get(index as usize)).map(|(name, _)| name.clone());
        let name = name.unwrap_or_else(|| format!("rule {index} of generation {generation}"));
        let place = self.place_of(name);
        self.by_rule.insert(rule, place);
        place
    }

    fn place_of(&mut self, name: String) -> usize {
        if let Some(place) = self.list.iter().position(|interface| interface.name == name) {
            return place;
        }
        self.list.push(Interface {
            name,
            number: None,
            statistics: Statistics::default(),
            lost: 0,
            unwritten: 0,
            mentioned: 0,
        });
        self.list.len() - 1
    }

    /// The names of the rules whose packets the sink gets now.
    pub(super) fn expected(&mut self) -> Vec<usize> {
        let Some(newest) = self.names.last().cloned() else { return Vec::new() };
        let rules = newest.rules.iter().filter(|(_, is_captured)| *is_captured);
        rules.map(|(name, _)| self.place_of(name.clone())).collect()
    }

    /// Appends the description of an interface if the file has none yet, and returns its number.
    #[inline]
    pub(super) fn number(&mut self, place: usize, snap_bytes: u32, out: &mut Vec<u8>) -> u32 {
        let interface = &mut self.list[place];
        *interface.number.get_or_insert_with(|| {
            pcapng::interface(out, &interface.name, &description(&interface.name), snap_bytes);
            self.described += 1;
            self.described - 1
        })
    }

    /// Packets are to be written: how many were lost before the first.
    #[inline]
    pub(super) fn taken(&mut self, place: usize, packets: u64) -> u64 {
        let interface = &mut self.list[place];
        interface.statistics.received += packets;
        interface.statistics.accepted += packets;
        interface.unwritten += packets;
        interface.mentioned += interface.lost;
        std::mem::take(&mut interface.lost)
    }

    /// Packets were lost after they were accepted, or left out by sampling.
    pub(super) fn missed(&mut self, place: usize, lost: u64, skipped: u64) {
        let interface = &mut self.list[place];
        interface.statistics.received += lost + skipped;
        interface.statistics.accepted += lost;
        interface.statistics.dropped += lost;
        interface.lost += lost;
    }

    /// Everything that was taken is written.
    pub(super) fn flushed(&mut self) {
        for interface in &mut self.list {
            interface.statistics.written += std::mem::take(&mut interface.unwritten);
            interface.mentioned = 0;
        }
    }

    /// Notes that packets could not be written, and that the file has ended without statistics. The losses
    /// are counted in the next.
    pub(super) fn failed(&mut self) {
        self.described = 0;
        for interface in &mut self.list {
            let packets = std::mem::take(&mut interface.unwritten);
            interface.lost += packets + std::mem::take(&mut interface.mentioned);
            interface.number = None;
            interface.statistics =
                Statistics { received: packets, accepted: packets, dropped: packets, written: 0 };
        }
    }

    /// Appends the statistics of every interface of the file.
    pub(super) fn statistics(&self, from_ns: u64, to_ns: u64, out: &mut Vec<u8>) {
        for interface in &self.list {
            if let Some(number) = interface.number {
                pcapng::statistics(out, number, from_ns, to_ns, &interface.statistics);
            }
        }
    }

    /// The room that [`Interfaces::statistics`] needs.
    pub(super) fn statistics_bytes(&self) -> u64 {
        u64::from(self.described) * pcapng::STATISTICS_BLOCK_BYTES as u64
    }

    /// The file has ended, with its statistics. Interfaces that have losses to be mentioned stay; places
    /// change.
    pub(super) fn file_ended(&mut self) {
        self.described = 0;
        self.by_rule.clear();
        self.last = None;
        self.list.retain(|interface| interface.lost > 0);
        for interface in &mut self.list {
            interface.number = None;
            interface.statistics = Statistics::default();
        }
    }
}

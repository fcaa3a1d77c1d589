//! How many flows, queue pairs, tables and counters a device has: objects are created until one is refused.

use std::sync::Arc;

use device_model::{Feature, Limit};
use verbs::{Counters, FlowSpec, HashConfig, HashFields, IndirectionTable, Ipv4Match, RssQueuePair};

use super::{Finder, Note, SPREAD, Seen};
use crate::Failure;
use crate::bench::v4;
use crate::endpoints::KEY;

impl Finder<'_> {
    /// Flows that differ in one address, those that differ in their masks, and those that copy.
    pub(super) fn flows(&mut self) -> Result<(), Failure> {
        let spread = self.profile.priorities.clamp(1, SPREAD);
        let (port, bounds) = (self.bench.flow(), self.bounds);
        let address = |number: u32| {
            let value = Ipv4Match { src: 0, dst: number };
            let mask = Ipv4Match { src: 0, dst: u32::MAX };
            let priority = (number % spread) as u16;
            port.clone().spec(FlowSpec::Ipv4 { value, mask }).priority(priority)
        };
        let masked = |number: u32| {
            let mask = Ipv4Match { src: number + 1, dst: v4(0).into() };
            let value = Ipv4Match { src: 0, dst: v4(0).into() };
            let priority = (number % spread) as u16;
            port.clone().spec(FlowSpec::Ipv4 { value, mask }).priority(priority)
        };
        let flows = self.fill(bounds.flows, |number| self.create(&address(number)));
        self.profile.max_flows =
            self.count("max_flows", Limit::Flows, flows, (self.fallback.max_flows, None));
        let flows = self.fill(bounds.flows, |number| self.create(&masked(number)));
        self.profile.max_shapes =
            self.count("max_shapes", Limit::Shapes, flows, (self.fallback.max_shapes, None));
        if !self.profile.allows(Feature::Copy) {
            self.profile.max_copies = self.fallback.max_copies;
            self.note("max_copies", Note::Follows("copies are refused"));
        } else {
            let flows = self.fill(bounds.copies, |number| self.create(&address(number).dont_trap(true)));
            self.profile.max_copies =
                self.count("max_copies", Limit::Copies, flows, (self.fallback.max_copies, None));
        }
        for key in ["priority_table", "max_groups"] {
            self.keep(key, "filling a priority would leave other users no room");
        }
        Ok(())
    }

    pub(super) fn objects(&mut self) -> Result<(), Failure> {
        let Some((_, receiver)) = &self.target else { return Ok(()) };
        let (domain, queue) = (receiver.queue.domain().clone(), Arc::clone(&receiver.queue));
        let table = || Ok(IndirectionTable::new(domain.context(), &[Arc::clone(&queue)])?);
        let shared = match table() {
            Ok(shared) => shared,
            Err(failure) => {
                let why = Seen::from(Err(failure)).words();
                self.keep("max_queues", why.clone());
                self.keep("max_tables", why);
                return Ok(());
            }
        };
        let hash = HashConfig { key: KEY, fields: HashFields::empty() };
        let pairs = self.fill(self.bounds.objects, |_| Ok(RssQueuePair::new(&domain, &shared, &hash)?));
        let tables = self.fill(self.bounds.objects, |_| table());
        let attributes = &self.bench.attributes;
        let (pairs_reported, tables_reported) = (attributes.max_qp, attributes.rss_caps.max_tables);
        // Beside those that were tried there is the queue pair that flows go to, and its table and the shared
        // one.
        let beside = |filled: Filled, held: u32| Filled { made: filled.made + held, ..filled };
        let known = (self.fallback.max_queues, Some(pairs_reported));
        self.profile.max_queues = self.count("max_queues", Limit::Queues, beside(pairs, 1), known);
        let known = (self.fallback.max_tables, Some(tables_reported));
        self.profile.max_tables = self.count("max_tables", Limit::Tables, beside(tables, 2), known);
        Ok(())
    }

    pub(super) fn counters(&mut self) -> Result<(), Failure> {
        let counters = self.fill(self.bounds.objects, |_| Ok(Counters::new(&self.bench.context)?));
        let known = (self.fallback.max_counters, None);
        self.profile.max_counters = self.count("max_counters", Limit::Counters, counters, known);
        Ok(())
    }

    /// Creates objects until one is refused, and destroys all.
    fn fill<T>(&self, bound: u32, create: impl Fn(u32) -> Result<T, Failure>) -> Filled {
        let mut all = Vec::new();
        for number in 0..bound {
            match create(number) {
                Ok(object) => all.push(object),
                Err(failure) => return Filled { made: number, refusal: Some(failure) },
            }
        }
        Filled { made: bound, refusal: None }
    }

    /// The limit of what was filled, or what the fallback knows, or what the device reports.
    fn count(
        &mut self,
        key: &str,
        limit: Limit,
        filled: Filled,
        (fallback, reported): (Option<u32>, Option<u32>),
    ) -> Option<u32> {
        let made = filled.made;
        match filled.refusal.map(|failure| Seen::from(Err(failure))) {
            // Too few for a program, and for the reader of the file: others may hold the rest.
            Some(seen @ Seen::Refused(_)) if made < least(limit) => {
                self.keep(key, format!("{made} can be created, the next is {}", seen.words()));
                return fallback;
            }
            Some(Seen::Refused(errno)) => {
                self.beyond(limit, errno);
                let words = if made == 0 { "none can be created" } else { "" };
                self.note(key, Note::Tried(words.into()));
                return Some(made);
            }
            Some(seen) => {
                self.keep(key, seen.words());
                return fallback;
            }
            None => {}
        }
        let words = format!("{made} can be created; more were not tried");
        match (reported.filter(|reported| *reported > 0), fallback.filter(|fallback| *fallback > made)) {
            (Some(reported), _) => {
                self.note(key, Note::Reported(words));
                Some(reported.max(made))
            }
            (None, Some(fallback)) => {
                self.keep(key, words);
                Some(fallback)
            }
            (None, None) => {
                self.note(key, Note::Tried(words));
                None
            }
        }
    }
}

/// The least that a model of a device that steers can have (`device_model`, profile/load.rs).
fn least(limit: Limit) -> u32 {
    match limit {
        Limit::Flows | Limit::Queues | Limit::Tables => 2,
        Limit::Shapes => 1,
        _ => 0,
    }
}

/// The result of creating many objects.
struct Filled {
    made: u32,
    refusal: Option<Failure>,
}

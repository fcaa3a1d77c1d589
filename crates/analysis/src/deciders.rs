//! Which rules decide the packets of a match: the questions behind the tests of a policy and their coverage.
//!
//! A test of a set of packets expects something of the rule that decides them, so it names the rules that are
//! right. It fails exactly if a packet of the set is decided by another rule, which `protect` answers for
//! rules that leave packets to the host; the search is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use policy::policy::Direction;
use policy::{Policy, Witness};
use program::{Match, RuleId};

use crate::product::Product;
use crate::protect::{Missed, Protected, RuleView, covers};
use crate::rule_list::{Entry, is_final};
use crate::search::{Cover, Free};

/// The rules of one direction of a policy, in the space of some matches.
///
/// ```
/// use policy::policy::Direction;
/// use policy::{NoFiles, Source};
///
/// let text = "version = 1\n[[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = 'drop'\n";
/// let (policy, _) = policy::parse(&Source::new("dns.toml", text), &NoFiles)?;
/// let ports = policy::parse_match("ports", "protocol = 'udp', dst_port = '53-54'")?;
/// let mut deciders = analysis::Deciders::of(&policy, Direction::Ingress, [&ports].into_iter());
/// // The default decides packets to port 54, and only those of the rule are wanted.
/// let analysis::EveryPacket::Except(other) = deciders.every_packet(&ports, vec![true, false]) else {
///     panic!("port 54")
/// };
/// assert_eq!(other.witness.key().outer.dst_port, 54);
/// # Ok::<(), policy::Diagnostics>(())
/// ```
pub struct Deciders<'p> {
    view: RuleView<'p>,
}

/// Whether every packet of a match is decided by one of some rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EveryPacket {
    /// Each is.
    Accepted,
    /// No packet meets the match.
    NoPacket,
    /// This packet is decided by another rule.
    Except(Missed),
    /// Not decided within the limits; the reason.
    NotDecided(String),
}

/// The rules that decide the packets of a match.
#[derive(Clone, Debug, Default)]
pub struct DecidingRules {
    /// The rules, each with a packet.
    pub rules: BTreeMap<RuleId, Witness>,
    /// Whether there may be others.
    pub is_open: bool,
}

impl<'p> Deciders<'p> {
    /// `matches`: those that questions are about.
    pub fn of(policy: &'p Policy, direction: Direction, matches: impl Iterator<Item = &'p Match>) -> Self {
        Self { view: RuleView::with(policy, direction, matches, Vec::new()) }
    }

    /// Returns the same with an end of the work after this time.
    #[must_use]
    pub fn within(self, time: Duration) -> Self {
        let Self { mut view } = self;
        view.space = view.space.within(Some(time));
        Self { view }
    }

    /// Lets the next questions take as many comparisons as the first ones.
    pub fn renew(&self) {
        self.view.space.renew();
    }

    /// Whether every packet of a match is decided by a rule that is accepted: by index, the default last.
    pub fn every_packet(&mut self, matches: &Match, accepted: Vec<bool>) -> EveryPacket {
        if self.view.space.dimensions.products(matches).is_empty() {
            return EveryPacket::NoPacket;
        }
        self.view.leaves = accepted;
        match self.view.missed(matches) {
            Protected::Safe => EveryPacket::Accepted,
            Protected::Missed(missed) => EveryPacket::Except(missed),
            Protected::NotDecided(why) => EveryPacket::NotDecided(why),
        }
    }

    /// The rules that decide the packets of a match.
    #[must_use]
    pub fn of_match(&self, matches: &Match) -> DecidingRules {
        let mut found = DecidingRules::default();
        for product in self.view.space.dimensions.products(matches) {
            self.add_deciders(&product, &|_| true, &mut found);
        }
        found
    }

    /// A packet that a rule decides, or the default for the index behind the rules. `None`: there is none, or
    /// none was found within the limits.
    #[must_use]
    pub fn example(&self, rule: usize) -> Option<Witness> {
        let mut found = DecidingRules::default();
        for product in self.products(rule) {
            self.add_deciders(&product, &|entry| entry.rule as usize == rule, &mut found);
        }
        found.rules.remove(&RuleId::of(rule))
    }

    /// Whether all packets that a rule decides meet one of some matches; `None`: not decided.
    #[must_use]
    pub fn are_all_in(&self, rule: usize, matches: &[&Match]) -> Option<bool> {
        let space = &self.view.space;
        let sets: Vec<Product> =
            matches.iter().flat_map(|matches| space.dimensions.products(matches)).collect();
        for product in self.products(rule) {
            let near = self.view.rules.near(space, &product);
            let mut taken = covers(&near, |entry| is_final(entry.action) && (entry.rule as usize) < rule);
            taken.extend(sets.iter().map(|product| Cover { rule: u32::MAX, product }));
            match space.free_of(&product, &taken, &mut BTreeSet::new()) {
                Free::None => {}
                Free::Product(_) => return Some(false),
                Free::NotDecided(_) => return None,
            }
        }
        Some(true)
    }

    /// The packets that a rule matches.
    fn products(&self, rule: usize) -> Vec<Product> {
        let RuleView { policy, space, .. } = &self.view;
        match policy.rules.get(rule) {
            Some(rule) => space.dimensions.products(&rule.matches),
            None => vec![space.dimensions.everything()],
        }
    }

    /// Adds the rules, of those that are wanted, that decide packets of a product.
    fn add_deciders(&self, product: &Product, is_wanted: &dyn Fn(&Entry) -> bool, found: &mut DecidingRules) {
        let space = &self.view.space;
        let near = self.view.rules.near(space, product);
        let finals = near.iter().enumerate().filter(|(_, entry)| is_final(entry.action));
        for (place, entry) in finals.filter(|(_, entry)| is_wanted(entry)) {
            let rule = RuleId::of(entry.rule as usize);
            if found.rules.contains_key(&rule) {
                continue;
            }
            let target = space.both(product, &entry.product);
            let earlier = covers(&near[..place], |entry| is_final(entry.action));
            match space.free_of(&target, &earlier, &mut BTreeSet::new()) {
                Free::None => {}
                Free::NotDecided(_) => found.is_open = true,
                Free::Product(free) => match free.witness(&space.dimensions) {
                    Some(witness) => _ = found.rules.insert(rule, witness),
                    None => found.is_open = true,
                },
            }
        }
    }
}

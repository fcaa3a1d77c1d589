//! The whole table against a linear reference: every answer to an insert, every lookup, of received and of
//! sent frames, with tunnels and without, on devices with and without entries that flows share.

use packet::{DeepKey, FlowKey, TunnelKey};
use proptest::prelude::*;

use super::asked::{Asked, asked, tunnel};
use super::condition::{Condition, key};
use crate::*;

type Frame = (FlowKey, TunnelKey);

/// A tag, or 0, with the flow that it is in.
type Hit = (u32, u32);

#[derive(Clone, Debug)]
struct TestRule {
    rule: FlowRule,
    asks: Vec<Asked>,
    /// The tag of the half for multicast, where an ALL_DEFAULT flow has one.
    multicast_tag: Option<u32>,
}

/// Frames and rules of different ones never meet.
type Side = (u8, bool);

impl TestRule {
    fn side(&self) -> Side {
        (self.rule.port, self.rule.egress)
    }

    fn sniffs(&self) -> bool {
        self.rule.kind == FlowKind::Sniffer
    }

    fn passes(&self) -> bool {
        self.rule.dont_trap && !self.sniffs()
    }

    fn level(&self) -> (FlowKind, u16) {
        (self.rule.kind, self.rule.priority)
    }

    /// The conditions that the rule has in the end: multicast defaults also ask for a multicast address,
    /// sniffers for nothing.
    fn all_asks(&self) -> Vec<Asked> {
        const GROUP_BIT: [u8; 6] = [1, 0, 0, 0, 0, 0];
        let mut asks = self.asks.clone();
        match self.rule.kind {
            FlowKind::MulticastDefault => asks.push(Asked::Outer(Condition::DstMac(GROUP_BIT, GROUP_BIT))),
            FlowKind::Sniffer => asks.clear(),
            FlowKind::Normal | FlowKind::AllDefault => {}
        }
        asks
    }

    fn holds(&self, (key, tunnel): &Frame) -> bool {
        self.all_asks().iter().all(|asks| asks.holds(key, tunnel))
    }

    /// Equal matches are equal images; whether images are right is what the rest of the test establishes.
    fn shares_entry(&self, other: &Self) -> bool {
        let images = |test: &Self| {
            let (mut matcher, mut tunnel) = (Matcher::any(), TunnelMatcher::default());
            test.all_asks().iter().for_each(|asks| asks.write(&mut matcher, &mut tunnel));
            (matcher, tunnel)
        };
        self.side() == other.side()
            && !self.sniffs()
            && self.passes() == other.passes()
            && self.level() == other.level()
            && images(self) == images(other)
    }

    /// The second entry of an ALL_DEFAULT flow on a device where it is two entries.
    fn multicast_half(&self, device: &TableRules) -> Option<Self> {
        let mut half = self.clone();
        (half.rule.kind, half.rule.actions.tag) = (FlowKind::MulticastDefault, self.multicast_tag);
        let has_half = device.all_default_is_two && self.rule.kind == FlowKind::AllDefault;
        (has_half && !half.contradicts_itself()).then_some(half)
    }

    fn contradicts_itself(&self) -> bool {
        let asks = self.all_asks();
        asks.iter().any(|a| asks.iter().any(|b| a.contradicts(*b)))
    }

    fn hit(&self) -> Hit {
        (self.rule.id.0, self.rule.actions.tag.unwrap_or(0))
    }
}

/// The reference: every rule of the side, one after the other. Returns verdict and sniffers.
fn linear(device: &TableRules, rules: &[TestRule], side: Side, frame: &Frame) -> (Vec<Hit>, Vec<Hit>) {
    let mut found: Vec<&TestRule> =
        rules.iter().filter(|test| test.side() == side && test.holds(frame)).collect();
    found.sort_by_key(|test| (test.level(), !test.rule.dont_trap, test.rule.order));
    let trap = found.iter().copied().find(|test| !test.sniffs() && !test.passes());
    let (mut copies, mut taken): (Vec<&TestRule>, Vec<&TestRule>) = Default::default();
    let target = |test: &TestRule| test.rule.actions.target;
    for test in found.iter().copied().filter(|test| !test.sniffs()) {
        if test.passes() {
            let comes_late = trap.is_some_and(|trap| trap.level() < test.level());
            let rivals = copies.iter().filter(|other| other.level() == test.level());
            let excluded = rivals.into_iter().any(|other| {
                device.one_copy_per_priority && (!other.shares_entry(test) || target(other) == target(test))
            });
            if !comes_late && !excluded {
                copies.push(test);
            }
        } else if trap.is_some_and(|trap| trap.shares_entry(test))
            && taken.iter().all(|other| target(other) != target(test))
        {
            taken.push(test);
        }
    }
    let mut sniffers: Vec<&TestRule> = found.iter().copied().filter(|test| test.sniffs()).collect();
    sniffers.sort_by_key(|test| test.rule.order);
    let hits = |tests: &[&TestRule]| tests.iter().map(|test| test.hit()).collect::<Vec<_>>();
    ([hits(&copies), hits(&taken)].concat(), hits(&sniffers))
}

/// The answer that inserting a rule must give: the tag that it gets.
fn verdict_on(device: &TableRules, rules: &[TestRule], test: &TestRule) -> Result<Option<u32>, FlowError> {
    let (rule, own) = (&test.rule, test.rule.actions.tag);
    if rule.dont_trap && matches!(rule.kind, FlowKind::MulticastDefault | FlowKind::AllDefault) {
        return Err(FlowError::DontTrapKind);
    }
    if test.contradicts_itself() {
        return Err(FlowError::Contradiction);
    }
    let count = |is: fn(&TestRule) -> bool| {
        rules.iter().filter(|other| other.side() == test.side() && is(other)).count()
    };
    let full = |what, limit, of| Err(FlowError::Full { what, limit, of });
    if test.sniffs() {
        let many = count(TestRule::sniffs) >= MAX_SNIFFERS;
        return if many { full("sniffers on this port", MAX_SNIFFERS, Limit::Sniffers) } else { Ok(own) };
    }
    let mut group: Vec<&TestRule> = rules.iter().filter(|other| other.shares_entry(test)).collect();
    group.sort_by_key(|other| other.rule.order);
    let mut tag = own;
    if let Some(first) = group.first() {
        let conflict = Err(FlowError::Conflict(first.rule.id));
        if !test.passes() && first.rule.actions.drop != rule.actions.drop {
            return conflict;
        }
        if device.one_tag_per_match {
            let common = first.rule.actions.tag.unwrap_or(0);
            tag = Some(common);
            if own.is_some_and(|own| own != common) {
                return conflict;
            }
        }
    }
    if test.passes() {
        let many = count(TestRule::passes) >= MAX_DONT_TRAP;
        return if many {
            full("DONT_TRAP flows on this port", MAX_DONT_TRAP, Limit::Copies)
        } else {
            Ok(tag)
        };
    }
    let mut targets: Vec<QpSlot> = group.iter().map(|other| other.rule.actions.target).collect();
    targets.sort_by_key(|target| target.0);
    targets.dedup();
    if targets.len() >= MAX_REPLICAS && !targets.contains(&rule.actions.target) {
        return full("queue pairs of this match and priority", MAX_REPLICAS, Limit::Flows);
    }
    Ok(tag)
}

#[derive(Clone, Debug)]
enum Step {
    Insert {
        rule: TestRule,
        old: bool,
    },
    /// The match, kind and priority of a rule that is there, with another fate.
    InsertLike(prop::sample::Index, Actions),
    Remove(prop::sample::Index),
    Lookup(Side, Box<Frame>),
    /// A lookup of a frame that meets the conditions of a rule.
    LookupFor(prop::sample::Index, Box<Frame>),
}

fn actions() -> impl Strategy<Value = Actions> {
    let tag = prop_oneof![2 => Just(None), 1 => (0u32..3).prop_map(Some)];
    (tag, prop::bool::weighted(0.2), 0u32..3).prop_map(|(tag, drop, target)| Actions {
        tag,
        drop,
        counter: None,
        target: QpSlot(target),
    })
}

fn rule() -> impl Strategy<Value = TestRule> {
    let kind = prop_oneof![
        8 => Just((FlowKind::Normal, false)),
        2 => Just((FlowKind::Normal, true)),
        1 => Just((FlowKind::MulticastDefault, false)),
        1 => Just((FlowKind::AllDefault, false)),
        1 => Just((FlowKind::Sniffer, false)),
    ];
    let asks = prop::collection::vec(asked(), 0..4);
    (kind, 1u8..3, 0u16..3, prop::bool::weighted(0.3), asks, actions()).prop_map(
        |((kind, egress), port, priority, dont_trap, asks, actions)| {
            let (mut matcher, mut tunnel) = (Matcher::any(), TunnelMatcher::default());
            asks.iter().for_each(|asks| asks.write(&mut matcher, &mut tunnel));
            let rule = FlowRule {
                id: FlowId(0),
                kind,
                port,
                egress,
                priority,
                dont_trap,
                order: 0,
                matcher,
                tunnel: Some(Box::new(tunnel)),
                actions,
            };
            TestRule { rule, asks, multicast_tag: actions.tag }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let side = (1u8..3, prop::bool::weighted(0.2));
    let frame = || (key(), tunnel()).prop_map(Box::new);
    prop_oneof![
        4 => (rule(), any::<bool>()).prop_map(|(rule, old)| Step::Insert { rule, old }),
        2 => (index(), actions()).prop_map(|(like, actions)| Step::InsertLike(like, actions)),
        2 => index().prop_map(Step::Remove),
        2 => (side, frame()).prop_map(|(side, frame)| Step::Lookup(side, frame)),
        6 => (index(), frame()).prop_map(|(rule, frame)| Step::LookupFor(rule, frame)),
    ]
}

/// The table, the reference, and the frames seen so far.
struct Both {
    device: TableRules,
    table: FlowTable,
    rules: Vec<TestRule>,
    seen: Vec<(Side, Box<Frame>)>,
}

impl Both {
    fn insert(&mut self, mut test: TestRule, number: usize, old: bool) -> Result<(), TestCaseError> {
        test.rule.id = FlowId(number as u32);
        // Age usually grows with insertion; a rule older than those present must be placed right as well.
        test.rule.order = if old { 10_000 - number as u64 } else { 10_000 + number as u64 };
        test.multicast_tag = test.rule.actions.tag;
        let entries = self.entries();
        let expected = verdict_on(&self.device, &entries, &test).and_then(|tag| {
            let half = test.multicast_half(&self.device);
            Ok((tag, half.map_or(Ok(None), |half| verdict_on(&self.device, &entries, &half))?))
        });
        prop_assert_eq!(self.table.insert(test.rule.clone()), expected.map(|_| ()));
        if let Ok((tag, multicast_tag)) = expected {
            (test.rule.actions.tag, test.multicast_tag) = (tag, multicast_tag);
            self.rules.push(test);
        }
        Ok(())
    }

    fn take(&mut self, step: Step, number: usize) -> Result<(), TestCaseError> {
        let is_empty = self.rules.is_empty();
        match step {
            Step::InsertLike(..) | Step::Remove(_) if is_empty => {}
            Step::Insert { rule, old } => self.insert(rule, number, old)?,
            Step::InsertLike(like, actions) => {
                let mut test = like.get(&self.rules).clone();
                test.rule.actions = actions;
                self.insert(test, number, false)?;
            }
            Step::Remove(index) => {
                let gone = self.rules.swap_remove(index.index(self.rules.len()));
                prop_assert!(self.table.remove(gone.rule.id));
                prop_assert!(!self.table.remove(gone.rule.id));
            }
            Step::LookupFor(_, frame) if is_empty => self.seen.push(((1, false), frame)),
            Step::LookupFor(index, frame) => {
                let test = index.get(&self.rules);
                let frame = test.all_asks().iter().fold(*frame, |frame, asks| asks.met_by(frame));
                self.seen.push((test.side(), Box::new(frame)));
            }
            Step::Lookup(side, frame) => self.seen.push((side, frame)),
        }
        Ok(())
    }

    fn look_up(&mut self, (port, egress): Side, frame: &Frame) -> (Vec<Hit>, Vec<Hit>) {
        let mut matches = Matches::new();
        let (key, tunnel) = frame;
        if egress {
            self.table.lookup_sent(port, key, || *tunnel, &mut matches);
        } else {
            self.table.lookup(port, key, || *tunnel, &mut matches);
        }
        let hits = matches.as_slice();
        let verdict = hits.iter().take_while(|hit| hit.kind != FlowKind::Sniffer).count();
        let ids = |hits: &[FlowHit]| -> Vec<Hit> {
            hits.iter().map(|hit| (hit.flow.0, hit.actions.tag.unwrap_or(0))).collect()
        };
        (ids(&hits[..verdict]), ids(&hits[verdict..]))
    }

    /// Frames of one port by the burst, which have to get what each gets alone.
    fn look_up_together(&mut self, port: u8) -> Result<(), TestCaseError> {
        let frames: Vec<Frame> =
            self.seen.iter().filter(|(side, _)| *side == (port, false)).map(|(_, frame)| **frame).collect();
        let mut verdicts = vec![Verdict::NOTHING; frames.len()];
        let images: Vec<MatchKey> = frames.iter().map(|(key, _)| MatchKey::of(key)).collect();
        let parse = |at: usize| DeepKey { outer: frames[at].0, tunnel: frames[at].1 };
        self.table.classify_burst(port, &images, parse, &mut verdicts);
        let mut together = Matches::new();
        let mut alone = Matches::new();
        for ((key, tunnel), verdict) in frames.iter().zip(verdicts) {
            self.table.lookup(port, key, || *tunnel, &mut alone);
            let Some(table) = self.table.of_port(port) else {
                prop_assert_eq!(alone.as_slice(), []);
                continue;
            };
            let parse = || DeepKey { outer: *key, tunnel: *tunnel };
            table.expand(verdict, &MatchKey::of(key), parse, &mut together);
            prop_assert_eq!(together.as_slice(), alone.as_slice());
            if let Some((target, tag)) = table.plain(verdict).filter(|_| table.decides_alone()) {
                let [only] = together.as_slice() else { panic!("one flow: {together:?}") };
                let actions = Actions { target, drop: false, tag: only.actions.tag, counter: None };
                prop_assert_eq!((only.actions, only.is_copy), (actions, false));
                prop_assert_eq!(only.actions.tag.unwrap_or(0), tag);
            }
        }
        Ok(())
    }

    /// The rules as a device has them.
    fn entries(&self) -> Vec<TestRule> {
        let halves = self.rules.iter().filter_map(|test| test.multicast_half(&self.device));
        self.rules.iter().cloned().chain(halves).collect()
    }

    /// The last frames once more: what the caches held must not answer for what has changed.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        const FRAMES: usize = 8;
        let entries = self.entries();
        for at in self.seen.len().saturating_sub(FRAMES)..self.seen.len() {
            let (side, frame) = self.seen[at].clone();
            let expected = linear(&self.device, &entries, side, &frame);
            prop_assert_eq!(self.look_up(side, &frame), expected);
        }
        prop_assert_eq!(self.table.len(), self.rules.len());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_table_agrees_with_the_linear_reference(
        shares in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let device = TableRules {
            one_tag_per_match: shares,
            one_copy_per_priority: shares,
            all_default_is_two: shares,
            ..TableRules::default()
        };
        let mut both = Both { device, table: FlowTable::new(device), rules: Vec::new(), seen: Vec::new() };
        for (number, step) in steps.into_iter().enumerate() {
            both.take(step, number)?;
            both.compare()?;
        }
        for port in 1..3 {
            both.look_up_together(port)?;
        }
    }
}

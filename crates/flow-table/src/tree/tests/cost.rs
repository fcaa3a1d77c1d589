//! What a lookup costs with real filter sets: the trees beside a tuple space alone, in the same run. Run with
//! `cargo test --release -p flow-table --lib -- --ignored --nocapture lookups_cost`.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use packet::{FlowKey, Layers};

use super::super::super::key::{Image, MatchKey, Matcher};
use super::super::super::shape::{Precedence, Ranked};
use super::super::super::space::Space;
use super::super::super::{Actions, FlowId, FlowKind, FlowRule, FlowTable, QpSlot};
use super::super::{BURST, Trees, Winners};
use super::classbench::{Numbers, rules};
use crate::left_right::LeftRight;

const SETS: [&str; 4] = ["acl1_10k", "ipc1_10k", "fw1_1k", "acl5_1k"];
/// Frames between two looks at the clock.
const CHUNK: usize = 2048;

/// A frame that meets a rule.
fn meeting(matcher: &Matcher, numbers: &mut Numbers) -> MatchKey {
    let free = MatchKey(std::array::from_fn(|word| !matcher.mask().0[word]));
    let mut image = random(numbers).masked(&free).union(matcher.value());
    // One of the transport layers, as the protocol has it.
    let protocol = image.0[0] >> 40 & 0xff;
    image.0[0] &= !(3 << 60);
    image.0[0] |= u64::from(protocol == 6) << 61 | u64::from(protocol == 17) << 60;
    image
}

/// A frame of random addresses and ports.
fn random(numbers: &mut Numbers) -> MatchKey {
    let [addresses, ports, more] = std::array::from_fn(|_| numbers.draw());
    let mut key = FlowKey { layers: Layers::IPV4, ether_type: 0x0800, ttl: 64, ..FlowKey::default() };
    key.src_ip[..4].copy_from_slice(&addresses.to_be_bytes()[..4]);
    key.dst_ip[..4].copy_from_slice(&addresses.to_be_bytes()[4..]);
    (key.src_port, key.dst_port) = (ports as u16, (ports >> 16) as u16);
    let (protocol, layer) = if more & 1 == 0 { (6, Layers::TCP) } else { (17, Layers::UDP) };
    (key.protocol, key.layers) = (protocol, key.layers | layer);
    MatchKey::of(&key)
}

/// Looks frames up and adds up what it finds.
type Lookup<'c> = Box<dyn Fn(&[MatchKey]) -> u64 + 'c>;

/// One way to look frames up, and the least time that each chunk took.
struct Contestant<'c> {
    name: &'static str,
    lookup: Lookup<'c>,
    least: Vec<Duration>,
}

impl Contestant<'_> {
    fn pass(&mut self, images: &[MatchKey]) -> u64 {
        let chunks = images.len().div_ceil(CHUNK);
        self.least.resize(chunks, Duration::MAX);
        let mut sum = 0u64;
        for (least, chunk) in self.least.iter_mut().zip(images.chunks(CHUNK)) {
            let started = Instant::now();
            sum = sum.wrapping_add((self.lookup)(black_box(chunk)));
            *least = started.elapsed().min(*least);
        }
        sum
    }

    fn ns_per_frame(&self, frames: usize) -> f64 {
        self.least.iter().sum::<Duration>().as_secs_f64() * 1e9 / frames as f64
    }
}

fn group(found: Option<Ranked>) -> u64 {
    found.map_or(0, |ranked| u64::from(ranked.group) + 1)
}

fn contestants<'c>(space: &'c Space<MatchKey>, grown: &'c Trees, fresh: &'c Trees) -> Vec<Contestant<'c>> {
    fn one_by_one<'c>(search: impl Fn(&MatchKey) -> Option<Ranked> + 'c) -> Lookup<'c> {
        Box::new(move |images| images.iter().map(|image| group(search(image))).sum())
    }
    fn in_bursts(trees: &Trees) -> Lookup<'_> {
        Box::new(|images| {
            let mut sum = 0;
            for images in images.chunks(BURST) {
                let mut winners = Winners::NONE;
                trees.search_burst(images, &mut winners);
                sum += (0..images.len()).map(|at| group(winners.ranked(at))).sum::<u64>();
            }
            sum
        })
    }
    let contestant = |name, lookup| Contestant { name, lookup, least: Vec::new() };
    vec![
        contestant("tuple space", one_by_one(|image| space.search(image, None).0)),
        contestant("trees as grown, in bursts", in_bursts(grown)),
        contestant("trees, one by one", one_by_one(|image| fresh.search(image))),
        contestant("trees, in bursts", in_bursts(fresh)),
    ]
}

/// Trees that the rules were added to one by one.
fn grown(rules: &[(Matcher, u16)]) -> Trees {
    let mut trees = Trees::default();
    for (matcher, ranked) in ranked_rules(rules) {
        trees.add(matcher.value(), matcher.mask(), ranked);
    }
    trees
}

fn ranked_rules(rules: &[(Matcher, u16)]) -> impl Iterator<Item = (&Matcher, Ranked)> {
    (0u32..).zip(rules).map(|(group, (matcher, priority))| {
        let precedence = Precedence::new(FlowKind::Normal, *priority, group.into());
        (matcher, Ranked { precedence, group })
    })
}

/// The costs of building, memory and updates of a set.
fn describe(set: &str, rules: &[(Matcher, u16)], fresh: &mut Trees) -> String {
    let started = Instant::now();
    fresh.rebuild(super::IPV4);
    let built = started.elapsed();
    let mut updates: Vec<Duration> = Vec::new();
    for (matcher, ranked) in ranked_rules(rules).step_by(7) {
        let started = Instant::now();
        fresh.remove(matcher.value(), matcher.mask(), ranked);
        fresh.add(matcher.value(), matcher.mask(), ranked);
        updates.push(started.elapsed());
    }
    updates.sort_unstable();
    let family = &fresh.families[super::IPV4];
    let depths: Vec<_> = family.trees.iter().map(|tree| (tree.class, tree.depth)).collect();
    format!(
        "{set}: {} rules, {} masks; built in {built:?}; {} KiB; trees and depths {depths:?}; {} masks in no tree; removed and added in {:?} (median), {:?} (most)\n",
        rules.len(),
        fresh.masks(),
        family.pool.bytes() / 1024,
        family.overflow.len(),
        updates[updates.len() / 2],
        updates[updates.len() - 1],
    )
}

#[test]
#[ignore = "timing: run with --release"]
fn lookups_cost() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for set in SETS {
        let rules = rules(&folder.join(set));
        let (grown, mut fresh, mut space) = (grown(&rules), grown(&rules), Space::default());
        for (matcher, ranked) in ranked_rules(&rules) {
            space.add(matcher.value(), matcher.mask(), ranked);
        }
        let mut text = describe(set, &rules, &mut fresh);
        let mut numbers = Numbers(7);
        let mut of_rules = |flows: usize| -> Vec<MatchKey> {
            let rule = |numbers: &mut Numbers| &rules[numbers.draw() as usize % rules.len()].0;
            (0..flows).map(|_| meeting(rule(&mut numbers), &mut numbers)).collect()
        };
        let mut loads =
            vec![("10^3", of_rules(1000)), ("10^5", of_rules(100_000)), ("10^6", of_rules(1_000_000))];
        loads.push(("random", (0..100_000).map(|_| random(&mut numbers)).collect()));
        for (load, images) in loads {
            let mut contestants = contestants(&space, &grown, &fresh);
            for _ in 0..(1_000_000 / images.len()).clamp(3, 20) {
                let sums: Vec<u64> =
                    contestants.iter_mut().map(|contestant| contestant.pass(&images)).collect();
                assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
            }
            let _ = write!(text, "  {load:6}");
            for contestant in contestants {
                let cost = contestant.ns_per_frame(images.len());
                let _ = write!(text, "  {}: {cost:.1}", contestant.name);
            }
            let _ = writeln!(text);
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// The memory of both copies of a flow table, with the rules, as the allocator counts it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
#[ignore = "prints figures"]
fn print_the_memory_of_both_copies() {
    let in_use = || {
        // SAFETY: fills in a structure of numbers.
        let heap = unsafe { libc::mallinfo2() };
        heap.uordblks + heap.hblkhd
    };
    let Some(folder) = test_support::corpora("rules") else { return };
    for set in ["acl1_10k", "ipc1_10k"] {
        let rules = rules(&folder.join(set));
        let before = in_use();
        let flows = LeftRight::new([FlowTable::default(), FlowTable::default()]);
        for (id, (matcher, priority)) in (0u32..).zip(&rules) {
            let rule = Arc::new(FlowRule {
                id: FlowId(id),
                kind: FlowKind::Normal,
                port: 1,
                egress: false,
                priority: *priority,
                dont_trap: false,
                order: id.into(),
                matcher: *matcher,
                tunnel: None,
                actions: Actions { tag: Some(id), drop: false, counter: None, target: QpSlot(0) },
            });
            flows.writer().change(|table| table.add(Arc::clone(&rule))).expect("there is room");
        }
        let bytes = in_use() - before;
        let text = format!(
            "{set}: {} flows, {:.1} MB, {} bytes for each\n",
            rules.len(),
            bytes as f64 / 1e6,
            bytes / rules.len()
        );
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

//! What a lookup costs with real filter sets: the trees beside a tuple space alone, in the same run. Run with
//! `cargo test --release -p softnic --lib -- --ignored --nocapture lookups_cost`.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write as _;
use std::time::{Duration, Instant};

use packet::{FlowKey, Layers};

use super::super::super::FlowKind;
use super::super::super::key::{Image, MatchKey, Matcher};
use super::super::super::shape::{Precedence, Ranked};
use super::super::super::space::Space;
use super::super::{BURST, Trees};
use super::classbench::{Numbers, rules};

const SETS: [&str; 5] = ["acl1_10k", "ipc1_10k", "fw1_1k", "acl5_1k", "acl1_1k"];
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

/// One way to look frames up, and the least time that each chunk took.
struct Contestant<'c> {
    name: &'static str,
    lookup: Box<dyn Fn(&[MatchKey]) -> u64 + 'c>,
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

fn contestants<'c>(trees: &'c Trees, space: &'c Space<MatchKey>) -> Vec<Contestant<'c>> {
    let contestant = |name, lookup| Contestant { name, lookup, least: Vec::new() };
    vec![
        contestant("trees", Box::new(|images| images.iter().map(|image| group(trees.search(image))).sum())),
        contestant(
            "trees, bursts",
            Box::new(|images| {
                let mut sum = 0;
                for images in images.chunks(BURST) {
                    let mut winners = [None; BURST];
                    trees.search_burst(images, &mut winners);
                    sum += winners.into_iter().map(group).sum::<u64>();
                }
                sum
            }),
        ),
    ]
}

#[test]
#[ignore = "timing: run with --release"]
fn lookups_cost() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let mut text = String::new();
    for set in std::env::var("SETS").unwrap_or_default().split_whitespace() {
        let rules = rules(&folder.join(set));
        let (mut trees, mut space) = (Trees::default(), Space::default());
        let started = Instant::now();
        for (group, (matcher, priority)) in (0u32..).zip(&rules) {
            let precedence = Precedence::new(FlowKind::Normal, *priority, group.into());
            trees.add(matcher.value(), matcher.mask(), Ranked { precedence, group });
            while let Some(rebuild) = trees.start_rebuild() {
                trees.finish_rebuild(rebuild.build());
            }
        }
        let inserted = started.elapsed();
        for (group, (matcher, priority)) in (0u32..).zip(&rules) {
            let precedence = Precedence::new(FlowKind::Normal, *priority, group.into());
            space.add(matcher.value(), matcher.mask(), Ranked { precedence, group });
        }
        let started = Instant::now();
        trees.families[super::IPV4].debt = usize::MAX / 2;
        let rebuild = trees.start_rebuild().expect("one is due");
        let copied = started.elapsed();
        let rebuilt = rebuild.build();
        let built = started.elapsed();
        if std::env::var_os("FRESH").is_some() {
            trees.finish_rebuild(rebuilt);
        }
        let family = &trees.families[super::IPV4];
        let _ = writeln!(
            text,
            "{set}: {} rules, {} masks, inserted {inserted:?}, copied {copied:?}, built {built:?}, {} bytes, {} blocks, \
             {} nodes, trees {:?}, {} masks not in trees",
            rules.len(),
            trees.masks(),
            family.pool.bytes(),
            family.pool.blocks(),
            family.pool.nodes.len(),
            family.trees,
            family.overflow.len(),
        );
        for tree in &family.trees {
            let mut open = vec![(tree.root, 0usize)];
            let mut hist = std::collections::BTreeMap::<(usize, u32), usize>::new();
            while let Some((at, d)) = open.pop() {
                let node = family.pool.nodes[at as usize];
                if node.is_leaf() {
                    let run = node.run();
                    *hist.entry((d, if run.first == 0 { 0 } else { run.blocks })).or_default() += 1;
                } else {
                    open.extend((0..1 << node.mask.count_ones()).map(|c| (node.base + c, d + 1)));
                }
            }
            let _ = writeln!(text, "   class {} {hist:?}", tree.class);
        }
        let mut numbers = Numbers(7);
        let mut of_rules =
            |flows: usize| -> Vec<MatchKey> {
                (0..flows)
                    .map(|_| meeting(&rules[numbers.draw() as usize % rules.len()].0, &mut numbers))
                    .collect()
            };
        let mut loads = vec![("10^3", of_rules(1000)), ("10^5", of_rules(100_000)), ("10^6", of_rules(1_000_000))];
        loads.remove(2);
        loads.push(("random", (0..100_000).map(|_| random(&mut numbers)).collect()));
        for (load, images) in loads {
            let mut contestants = contestants(&trees, &space);
            for _ in 0..(3_000_000 / images.len()).clamp(3, 15) {
                let sums: Vec<u64> =
                    contestants.iter_mut().map(|contestant| contestant.pass(&images)).collect();
                assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
            }
            for contestant in contestants {
                let cost = contestant.ns_per_frame(images.len());
                let _ = write!(text, "  {load} {}: {cost:.1}", contestant.name);
            }
            let _ = writeln!(text);
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
        text.clear();
    }
}

//! Samples of fixed packets.

use std::net::IpAddr;
use std::time::Duration;

use analysis::{Detail, Diff, Effect, PacketComparison};
use device_model::DeviceModel;
use packet::DeepKey;
use packet::build::FrameBuilder;
use policy::policy::Direction;
use policy::{NoFiles, Policy, Source};
use program::{Program, RUNTIME_RULES};
use reports::{Amount, Decision};

use super::report::{LiveReport, SampleFacts, Unseen};
use super::tally::{Tally, met};
use super::text;
use crate::api::model::{TraceLine, TracedPackets};

const OLD: &str = "version = 1
allow_lost_exceptions = true
[groups.a]
workers = [0]
[groups.b]
workers = [1]
[[rules]]
name = \"scan\"
match = { src = \"198.51.100.0/24\" }
action = \"drop\"
[[rules]]
name = \"seen\"
match = { dst = \"192.0.2.53\" }
action = { copy = \"b\" }
[[rules]]
name = \"dns\"
match = { protocol = \"udp\", dst_port = 53 }
action = \"steer a\"
[[rules]]
name = \"web\"
match = { protocol = \"tcp\", dst_port = 443 }
action = \"steer a\"
sample = 2
[[rules]]
name = \"guard\"
direction = \"egress\"
match = { protocol = \"udp\", dst_port = 25 }
action = \"drop\"
";

/// Two policies with their programs for two workers.
struct Scene {
    policies: [Policy; 2],
    programs: [Program; 2],
    found: Diff,
}

impl Scene {
    fn new(old: &str, new: &str) -> Self {
        let policies =
            [old, new].map(|text| policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0);
        let model = DeviceModel::ideal();
        let programs =
            policies.each_ref().map(|policy| compiler::compile(policy, &model, 2).expect("it fits"));
        let found = analysis::diff_in_detail(&policies[0], &policies[1], Detail::SHORT, &mut |_| {});
        Self { policies, programs, found }
    }

    /// The old policy with queries to the other worker, no copies, fewer scans and egress rules, and pings.
    fn of_changes() -> Self {
        let ping = "[[rules]]\nname = \"ping\"\nmatch = { protocol = \"icmp\" }\naction = \"steer b\"\n";
        let new = OLD.replacen("steer a", "steer b", 1).replace("198.51.100.0/24", "198.51.100.0/25");
        let new = new.replace("dst = \"192.0.2.53\"", "dst = \"192.0.2.54\"").replace("= 25", "= 26");
        Self::new(OLD, &(new + ping))
    }

    fn tally(&self) -> Tally<'_> {
        Tally::new(self.policies.each_ref(), self.programs.each_ref(), 7)
    }

    fn report(&self, tally: &Tally<'_>, traced: TracedPackets) -> LiveReport {
        let facts = SampleFacts { seconds: 10.0, ended_early: false, one_in: 100, generation: 7, traced };
        LiveReport::of(facts, tally, &self.found, &self.policies[0])
    }
}

/// A packet from this address to another one.
fn frame(src: [u8; 4], dst: [u8; 4]) -> FrameBuilder {
    FrameBuilder::new().ip(IpAddr::from(src), IpAddr::from(dst))
}

/// The line of a packet of 100 bytes in a trace of generation 7.
fn line(frame: &[u8], rule: &str) -> TraceLine {
    TraceLine {
        packet: policy::short_packet(&DeepKey::of(frame)),
        head: frame.iter().map(|byte| format!("{byte:02x}")).collect(),
        bytes: 100,
        generation: 7,
        rule: rule.to_owned(),
        ..TraceLine::default()
    }
}

fn query() -> Vec<u8> {
    frame([10, 0, 0, 1], [192, 0, 2, 53]).udp(7, 53).build()
}

/// 50 queries, two of 40 web packets and one scan that moves, of 100.
fn added(tally: &mut Tally<'_>) {
    let web = frame([10, 0, 0, 1], [192, 0, 2, 80]).tcp(7, 443, 16).build();
    let scan = frame([198, 51, 100, 200], [192, 0, 2, 80]).tcp(7, 443, 2).build();
    let other = frame([10, 0, 0, 1], [192, 0, 2, 80]).udp(7, 9).build();
    for (count, frame, rule) in
        [(50, &query(), "dns"), (39, &web, "web"), (1, &scan, "scan"), (10, &other, "default")]
    {
        (0..count).for_each(|_| tally.add(&line(frame, rule), Duration::from_secs(1)));
    }
}

const ALL: TracedPackets = TracedPackets { kernel: true, dropped: true };

#[test]
fn packets_count_for_their_changes() {
    let scene = Scene::of_changes();
    let mut tally = scene.tally();
    added(&mut tally);
    let own = &tally.own;
    let amount = |packets| Amount { packets, bytes: 100 * packets };
    assert_eq!((own.all, own.moved), (amount(100), amount(51)));
    let changed: Vec<_> = own
        .changes
        .iter()
        .map(|([before, after], packets)| {
            let words = |effect: &Effect| format!("{} {}", effect.name, effect.action);
            (words(before), words(after), packets.amount.packets, packets.other_worker)
        })
        .collect();
    let row = |before: &str, after: &str, packets, other_worker| {
        (before.to_owned(), after.to_owned(), packets, other_worker)
    };
    let expected = [
        row("scan drop", "web steer to a", 1, 0),
        row("seen copy to b", "dns no such copy", 50, 50),
        row("dns steer to a", "dns steer to b", 50, 50),
    ];
    assert_eq!(changed, expected);
    let packets = own.workers.values().map(|load| load.map(|load| load.packets)).collect::<Vec<_>>();
    assert_eq!(packets, [[89, 40], [50, 50]], "copies are packets of their worker");
    assert!(own.workers.values().flatten().all(|load| load.picoseconds > load.packets), "{own:?}");
}

#[test]
fn packets_of_other_decisions_are_not_compared() {
    let scene = Scene::of_changes();
    let mut tally = scene.tally();
    let at = Duration::from_secs(2);
    let query = line(&query(), "dns");
    let add = |tally: &mut Tally<'_>, line: &TraceLine| tally.add(line, at);
    add(&mut tally, &query);
    add(&mut tally, &TraceLine { is_copy: true, rule: "seen".to_owned(), ..query.clone() });
    for rule in [RUNTIME_RULES, "(block-1)"] {
        add(&mut tally, &TraceLine { rule: rule.to_owned(), ..query.clone() });
    }
    add(&mut tally, &TraceLine { rule: "web".to_owned(), ..query.clone() });
    add(&mut tally, &TraceLine { head: query.head[..60].to_owned(), ..query.clone() });
    add(&mut tally, &TraceLine { head: "0011".to_owned(), left_out: 9, ..query.clone() });
    add(&mut tally, &TraceLine { generation: 8, ..query.clone() });
    add(&mut tally, &TraceLine { generation: 9, rule: RUNTIME_RULES.to_owned(), ..query.clone() });
    let own = &tally.own;
    assert_eq!((own.all.packets, own.at_run_time, own.differing, own.unreadable), (1, 2, 1, 2));
    assert_eq!((tally.lines, tally.copies, tally.left_out, tally.later_since), (9, 1, 9, Some(at)));
    let report = scene.report(&tally, ALL);
    assert_eq!((report.not_compared.other_generations, report.seconds), (2, 2.0));
    // Nine lines stand for 18, each of a hundred, in the two seconds before the later generation.
    assert!((report.packets_per_second - 100.0).abs() < 1e-9, "{report:?}");
    tally.merge_later();
    assert_eq!((tally.own.all.packets, tally.own.at_run_time, tally.later_since), (2, 3, None));
    assert_eq!(scene.report(&tally, ALL).not_compared.other_generations, 0);
}

/// `diff` finds the regions without packets, and the sample packets without regions.
#[test]
fn a_packet_of_each_region_has_its_change() {
    let sniffed = |text: &str| {
        text.replace("{ copy = \"b\" }", "{ sniff = \"b\" }").replace("dst = \"192.0.2.53\"", "any = true")
    };
    let renamed = OLD.replace("groups.a", "groups.c").replace("steer a", "steer c");
    let changed = Scene::of_changes();
    let [old, new] = [OLD.to_owned(), OLD.replacen("workers = [0]", "workers = [0, 1]", 1)];
    let no_sniffer = sniffed(OLD)
        .replace("any = true", "dst = \"192.0.2.9\"")
        .replace("{ sniff = \"b\" }", "{ copy = \"b\" }");
    for scene in [
        changed,
        Scene::new(&old, &new),
        Scene::new(&sniffed(OLD), &no_sniffer),
        Scene::new(&no_sniffer, &sniffed(OLD)),
        Scene::new(OLD, &OLD.replace("name = \"web\"", "name = \"http\"")),
    ] {
        let comparison = PacketComparison::of(&scene.policies[0], &scene.policies[1]);
        let received: Vec<_> =
            scene.found.regions.iter().filter(|region| region.direction == Direction::Ingress).collect();
        assert!(scene.found.is_whole() && !received.is_empty(), "{:?}", scene.found);
        for region in received {
            let key = region.witness.key();
            let [before, after] = scene.programs.each_ref().map(|program| met(&Decision::of(program, &key)));
            let changes = comparison.changes(&before, &after);
            let expected = [region.before.clone(), region.after.clone()];
            assert!(changes.contains(&expected), "{}: {changes:?}, not {expected:?}", region.witness);
        }
    }
    let same = Scene::new(OLD, &renamed);
    let mut tally = same.tally();
    added(&mut tally);
    assert!(same.found.is_empty() && tally.own.moved.packets == 0, "another name of a group is no change");
}

#[test]
fn figures_have_intervals_or_a_reason() {
    let scene = Scene::of_changes();
    let mut tally = scene.tally();
    added(&mut tally);
    insta::assert_snapshot!("live_all_traced", text::of(&scene.report(&tally, ALL), true));
    let workers_only = scene.report(&tally, TracedPackets::default());
    insta::assert_snapshot!("live_workers_only", text::of(&workers_only, true));
    for change in &workers_only.changes {
        let expected = match (change.direction, change.before.name.as_str()) {
            ("egress", _) => Some(Unseen::Sent),
            (_, "default") => Some(Unseen::Kernel),
            (_, "scan") => Some(Unseen::Dropped),
            (_, "seen") => Some(Unseen::Copies),
            _ => None,
        };
        assert_eq!(change.not_seen, expected, "{change:?}");
        assert_eq!(
            change.share.is_none(),
            expected.is_some(),
            "never a figure of what is not seen: {change:?}"
        );
    }
}

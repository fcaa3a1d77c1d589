//! Valid policies that are hard to analyse: the answer comes within bounds, and undecided questions are
//! reported with the reason.

use std::fmt::Write as _;
use std::time::Duration;

use analysis::{MAX_PAIRS, MAX_SHOWN_VALUES, Need, Reach, analyse, diff};
use policy::{NoFiles, Policy, Source};

/// The longest that one question may take in a slow build on a busy machine.
const ANSWER_TIME: Duration = Duration::from_secs(60);

fn read(rules: &str) -> Policy {
    let text = format!("version = 1\n[groups.a]\nworkers = [0]\n[groups.b]\nworkers = [1]\n{rules}");
    policy::parse(&Source::new("made.toml", text), &NoFiles).expect("it parses").0
}

fn rule(name: &str, matches: &str, action: &str) -> String {
    format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = {action}\n")
}

/// A MAC address whose mask is its own bits.
fn bits(bits: &[u32]) -> String {
    let value: u64 = bits.iter().map(|bit| 1u64 << bit).sum();
    let bytes: Vec<String> = value.to_be_bytes()[2..].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{0}/{0}\"", bytes.join(":"))
}

/// None of 24 pairs of bits together: two to the 24 products of bits, if each bit counts alone.
fn crossed_macs() -> String {
    let pairs: Vec<String> = (0..24).map(|pair| bits(&[2 * pair, 2 * pair + 1])).collect();
    let ones: Vec<String> = (0..48).map(|bit| bits(&[bit])).collect();
    let pairs =
        rule("pairs", &format!("src_mac = {{ not = [{}] }}, dst_port = 80", pairs.join(", ")), "\"drop\"");
    let ones = rule("ones", &format!("src_mac = [{}], dst_port = 81", ones.join(", ")), "{ steer = \"a\" }");
    format!("{pairs}{ones}")
}

#[test]
fn masks_that_cross_in_too_many_ways_are_not_decided() {
    let started = test_support::CpuTime::now();
    let text = crossed_macs()
        + &rule("web", "dst_port = 80", "\"drop\"")
        + &rule("dns", "dst_port = 53", "\"drop\"");
    let policy = read(&text);
    let analysis = analyse(&policy, &mut |_| {});
    let [pairs, _, web, dns] = &analysis.rules[..] else { panic!("four rules") };
    let Reach::NotDecided(why) = &pairs.reach else { panic!("{:?}", pairs.reach) };
    assert!(why.contains("masks of MAC addresses cross"), "{why}");
    // Packets of it may or may not be left for `web`; what is far from it is decided.
    assert!(matches!(web.reach, Reach::NotDecided(_)) && web.overlaps.is_open, "{web:?}");
    assert!(matches!(dns.reach, Reach::Reached(_)) && !dns.is_open(), "{dns:?}");
    assert!(analysis.not_decided >= 2);

    assert!(diff(&policy, &policy, &mut |_| {}).is_empty(), "the same is the same");
    let other =
        read(&text.replace("\"drop\"\n[[rules]]\nname = \"ones\"", "\"kernel\"\n[[rules]]\nname = \"ones\""));
    let found = diff(&policy, &other, &mut |_| {});
    assert!(found.pairs.is_empty() && !found.is_empty());
    assert!(found.not_decided > 0 && found.open.iter().all(|pair| pair.why == *why), "{:?}", found.open);
    assert!(started.elapsed() < ANSWER_TIME, "{:?}", started.elapsed());
}

#[test]
fn the_search_stops_at_the_most_pairs_of_rules() {
    let grid = |key: &str, action: &str| {
        let mut text = String::new();
        for index in 0..300 {
            text += &rule(
                &format!("r{index}"),
                &format!("{key} = \"10.0.{}.{}/32\"", index / 256, index % 256),
                action,
            );
        }
        read(&text)
    };
    let (old, new) = (grid("src", "\"drop\""), grid("dst", "{ steer = \"a\" }"));
    let started = test_support::CpuTime::now();
    let found = diff(&old, &new, &mut |_| {});
    assert!(started.elapsed() < ANSWER_TIME, "{:?}", started.elapsed());
    assert_eq!(found.pairs.len(), MAX_PAIRS);
    assert!(!found.is_whole() && found.stopped.as_deref().is_some_and(|why| why.contains("pairs of rules")));
}

#[test]
fn repeated_long_lists_are_not_listed() {
    let policy = |action: &str| {
        let mut blocked = String::new();
        for index in 0..40_000u32 {
            write!(blocked, "\"10.{}.{}.{}\", ", index >> 15, index >> 7 & 255, index << 1 & 255)
                .expect("a String");
        }
        let mut text = rule("blocked", &format!("src = [{blocked}]"), "\"drop\"");
        for port in 0..80 {
            text += &rule(&format!("r{port}"), &format!("dst_port = {port}"), action);
        }
        read(&text)
    };
    let (old, new) = (policy("{ steer = \"a\" }"), policy("{ steer = \"b\" }"));
    let started = test_support::CpuTime::now();
    let found = diff(&old, &new, &mut |_| {});
    assert!(started.elapsed() < ANSWER_TIME, "{:?}", started.elapsed());
    assert_eq!((found.pairs.len(), found.is_whole()), (80, true));
    // Every pair is reported; not every region can list all values.
    assert!(
        found.pairs.iter().all(|pair| pair.but_for.listed == ["blocked"] && pair.regions + pair.more == 1)
    );
    assert!(found.regions.len() < 80 && found.regions.len() as u64 >= MAX_SHOWN_VALUES / 80_000);
    let within = found.pairs.iter().filter(|pair| pair.within.len() == 1).count();
    assert_eq!(within, 80, "what two rules share is short");
}

/// All but so many addresses, others for each rule.
fn all_but(key: &str, count: u32, index: u32) -> String {
    let mut listed = String::new();
    for place in 0..count {
        let [_, a, b, c] = (40 * place + 2 * (place * (index + 3) % 19)).to_be_bytes();
        write!(listed, "\"10.{a}.{b}.{c}\", ").expect("a String");
    }
    format!("{key} = {{ not = [{listed}] }}")
}

#[test]
fn long_exclusions_are_answered_within_bounds() {
    let started = test_support::CpuTime::now();
    let actions = ["\"drop\"", "{ steer = \"a\" }", "{ steer = \"b\" }"];
    let rules = |count: u32, matches: &dyn Fn(u32) -> String| -> String {
        (0..count)
            .map(|index| rule(&format!("r{index}"), &matches(index), actions[index as usize % 3]))
            .collect()
    };
    // What a few take is decided.
    let few = analyse(&read(&rules(6, &|index| all_but("src", 20_000, index))), &mut |_| {});
    assert_eq!(few.not_decided, 0);
    assert!(few.rules.iter().all(|rule| !matches!(rule.reach, Reach::NotDecided(_))));
    // These would take minutes.
    let two = |index| format!("{}, {}", all_but("src", 10_000, index), all_but("dst", 10_000, index + 7));
    let many = analyse(&read(&rules(60, &two)), &mut |_| {});
    assert!(many.not_decided > 0);
    let is_reported = |rule: &analysis::RuleAnalysis| matches!(&rule.reach, Reach::NotDecided(why) if why.contains("comparisons of header regions"));
    assert!(many.rules.iter().any(is_reported));
    assert!(started.elapsed() < ANSWER_TIME, "{:?}", started.elapsed());
}

#[test]
fn a_rule_that_nothing_comes_to_is_not_needed() {
    let policy = read(
        &(rule("all", "family = \"ipv4\"", "\"drop\"") + &rule("never", "dst = \"10.0.0.0/8\"", "\"drop\"")),
    );
    let analysis = analyse(&policy, &mut |_| {});
    assert!(matches!(analysis.rules[1].reach, Reach::Shadowed(_)));
    assert_eq!(analysis.rules[1].need, Need::Redundant);
}

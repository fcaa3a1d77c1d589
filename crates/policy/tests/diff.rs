//! What `space::diff` claims, held to the linear reader: every region by its witness and by packets in it, every
//! packet that is treated differently by the regions, and what is printed by reading it back.

mod analysis_support;

use std::collections::BTreeSet;

use packet::DeepKey;
use policy::policy::{Action, Direction, Match};
use policy::space::{Change, Detail, Diff, Effect, PairSummary, analyse, diff, diff_in_detail, match_text};
use policy::{GroupId, NoFiles, Policy, Predicate, Source};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use analysis_support::packets::frame;
use analysis_support::{action, fate, matches, policy, rules, treatment};

type Rules = Vec<(Match, Action, Direction)>;

/// Another policy that is near: rules swapped, left out, changed, added.
fn near(rules: Rules) -> impl Strategy<Value = Rules> {
    let change = (0u8..5, any::<Index>(), any::<Index>(), matches(), action());
    prop::collection::vec(change, 0..4).prop_map(move |changes| {
        let mut near = rules.clone();
        for (what, one, other, matches, action) in changes {
            if near.is_empty() {
                continue;
            }
            let (one, other) = (one.index(near.len()), other.index(near.len()));
            match what {
                0 => near.swap(one, other),
                1 => _ = near.remove(one),
                2 => near[one].1 = action,
                3 => near[one].0 = matches,
                _ => near.insert(one, (matches, action, near[other].2)),
            }
        }
        near
    })
}

/// What leaves the host is dropped, or let pass as an exception.
fn legal(mut rules: Rules) -> Rules {
    for (_, action, direction) in &mut rules {
        if matches!((&action, &direction), (Action::Steer(_) | Action::Kernel, Direction::Egress)) {
            *action = Action::Pass;
        }
    }
    rules
}

fn two() -> impl Strategy<Value = (Policy, Policy)> {
    let defaults = prop_oneof![4 => fate().prop_map(|one| (one, one)), 1 => (fate(), fate())];
    (rules(7).prop_flat_map(|rules| (near(rules.clone()), Just(rules))), defaults)
        .prop_map(|((new, old), defaults)| (policy(legal(old), defaults.0), policy(legal(new), defaults.1)))
}

fn holds(matches: &Match, key: &DeepKey) -> bool {
    Predicate::of(matches).matches_deep(key)
}

fn differs(old: &Policy, new: &Policy, direction: Direction, key: &DeepKey) -> bool {
    treatment(old, direction, key, None) != treatment(new, direction, key, None)
}

fn parse(text: &str) -> Result<Policy, String> {
    policy::parse(&Source::new("printed.toml", text), &NoFiles)
        .map(|(policy, _)| policy)
        .map_err(|e| e.to_string())
}

/// A policy of one rule that drops, as text.
fn text_of(matches: &Match) -> String {
    format!("version = 1\n[[rules]]\nname = 'r0'\nmatch = {}\naction = 'drop'\n", match_text(matches))
}

fn same(one: &Policy, other: &Policy) -> Diff {
    diff(one, other, &mut |_| {})
}

/// Frames, and packets that come to the rules of either policy.
fn keys(old: &Policy, new: &Policy, frames: Vec<Vec<u8>>) -> Vec<DeepKey> {
    let mut keys: Vec<DeepKey> = frames.into_iter().map(|frame| DeepKey::of(&frame)).collect();
    for policy in [old, new] {
        let analysis = analyse(policy, &mut |_| {});
        keys.extend(analysis.rules.iter().filter_map(|rule| match &rule.reach {
            policy::space::Reach::Reached(witness) => Some(witness.key()),
            _ => None,
        }));
    }
    keys
}

/// Whether it differs what becomes of a packet, but for those that only hear it: those are told of once, with
/// what comes in.
fn differs_in_itself(old: &Policy, new: &Policy, direction: Direction, key: &DeepKey) -> bool {
    let of = |policy: &Policy| {
        let mut treatment = treatment(policy, direction, key, None);
        if direction == Direction::Egress {
            treatment.copies.retain(|copy| copy.starts_with("copy"));
        }
        treatment
    };
    of(old) != of(new)
}

/// Whether the rule of an effect, if there is one but the default, has the packet.
fn is_of_rule(policy: &Policy, effect: &Effect, key: &DeepKey) -> bool {
    let rule = effect.rule.and_then(|id| policy.rules.get(id.index()));
    rule.is_none_or(|rule| holds(&rule.matches, key))
}

/// Whether a rule of that name has the packet, on either side.
fn is_of(policy: &Policy, name: &str, key: &DeepKey) -> bool {
    policy.rules.iter().any(|rule| rule.name == name && holds(&rule.matches, key))
}

const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn regions_are_what_is_treated_differently(
        (old, new) in two(),
        frames in prop::collection::vec(frame(), 48),
    ) {
        let found = same(&old, &new);
        prop_assert_eq!(found.not_decided, 0);
        prop_assert_eq!(found.is_empty(), found.regions.is_empty());
        let mut told = BTreeSet::new();
        for change in &found.regions {
            let whole = (change.direction == Direction::Egress, &change.before, &change.after, change.region.to_string());
            prop_assert!(change.region.only.is_some() || told.insert(whole), "{} is told twice", change.region);
            let key = change.witness.key();
            prop_assert!(holds(&change.region.matches, &key), "{} is not of {}", change.witness, change.region);
            prop_assert!(differs(&old, &new, change.direction, &key), "{} in {}", change.witness, change.region);
        }
        let mut keys = keys(&old, &new, frames);
        keys.extend(found.regions.iter().map(|change| change.witness.key()));
        for (key, direction) in keys.iter().flat_map(|key| DIRECTIONS.map(|direction| (key, direction))) {
            let of = |change: &&Change| change.direction == direction && holds(&change.region.matches, key);
            let told = found.regions.iter().any(|change| of(&change) && change.region.only.is_none());
            let maybe = found.regions.iter().any(|change| of(&change));
            prop_assert!(!told || differs(&old, &new, direction, key), "{key:?} is told of and treated alike");
            let differs = differs_in_itself(&old, &new, direction, key);
            prop_assert!(maybe || !differs, "{key:?} is treated differently and not told of");
        }
    }

    /// What two rules share changes hands, but for what the rules that are named take first.
    #[test]
    fn pairs_are_what_they_share_but_for_what_others_take(
        (old, new) in two(),
        frames in prop::collection::vec(frame(), 48),
    ) {
        let found = same(&old, &new);
        for pair in &found.pairs {
            prop_assert!(differs(&old, &new, pair.direction, &pair.witness.key()), "{}", pair.witness);
            prop_assert!(!pair.within.is_empty() && pair.regions + pair.rest > 0);
            prop_assert_eq!(pair.but_for.count, pair.but_for.listed.len());
        }
        for (key, direction) in keys(&old, &new, frames).iter().flat_map(|key| DIRECTIONS.map(|direction| (key, direction))) {
            let has = |pair: &&PairSummary| {
                pair.direction == direction && pair.within.iter().any(|within| holds(&within.matches, key))
            };
            let differs_here = differs_in_itself(&old, &new, direction, key);
            prop_assert!(!differs_here || found.pairs.iter().any(|pair| has(&pair)), "{key:?} is in no pair");
            for pair in found.pairs.iter().filter(has) {
                let is_taken = pair.but_for.listed.iter().any(|name| is_of(&old, name, key) || is_of(&new, name, key));
                let is_whole = pair.within.iter().all(|within| within.only.is_none());
                let is_shared = is_of_rule(&old, &pair.before, key) && is_of_rule(&new, &pair.after, key);
                prop_assert!(is_shared || !is_whole, "{key:?} is not of both rules of {pair:?}");
                let differs = differs(&old, &new, direction, key);
                prop_assert!(is_taken || !is_whole || differs, "{key:?} stays, though {pair:?}");
            }
        }
    }

    /// All regions are the same packets as the few, and no fewer regions.
    #[test]
    fn all_regions_hold_what_a_few_hold((old, new) in two(), frames in prop::collection::vec(frame(), 48)) {
        let few = diff_in_detail(&old, &new, Detail { regions_per_pair: 2, regions: 4096 }, &mut |_| {});
        let all = diff_in_detail(&old, &new, Detail::FULL, &mut |_| {});
        prop_assert_eq!(few.pairs.len(), all.pairs.len());
        for (few, all) in few.pairs.iter().zip(&all.pairs) {
            prop_assert_eq!((&few.before, &few.after), (&all.before, &all.after));
            prop_assert_eq!((all.more, all.rest), (0, 0));
            prop_assert!(few.is_open || few.regions + few.more == all.regions, "{few:?}");
        }
        for (key, direction) in keys(&old, &new, frames).iter().flat_map(|key| DIRECTIONS.map(|direction| (key, direction))) {
            let of = |change: &&Change| change.direction == direction && holds(&change.region.matches, key);
            let may_be_within = few.regions.iter().any(|change| of(&change));
            let is_within = all.regions.iter().any(|change| of(&change) && change.region.only.is_none());
            prop_assert!(may_be_within || !is_within, "{key:?}");
        }
    }

    /// Neither the names nor the order of groups make a difference.
    #[test]
    fn groups_by_other_names_are_the_same(rules in rules(7), default in fate(), turn in 0u32..3) {
        let old = policy(rules, default);
        let mut new = old.clone();
        let turned = |action: Action| match action {
            Action::Steer(group) => Action::Steer(GroupId((group.0 + turn) % 3)),
            Action::Copy(group) => Action::Copy(GroupId((group.0 + turn) % 3)),
            Action::Sniff(group) => Action::Sniff(GroupId((group.0 + turn) % 3)),
            other => other,
        };
        new.groups.rotate_right(turn as usize);
        for rule in &mut new.rules {
            rule.action = turned(rule.action);
        }
        new.default = turned(new.default);
        prop_assert!(same(&old, &new).is_empty());
        // Groups that are like each other are told apart by their names, of which one may be new.
        new.groups[0].name = "renamed".to_owned();
        prop_assert!(same(&old, &new).is_empty());
    }

    #[test]
    fn what_is_printed_reads_back(matches in matches(), (old, new) in two()) {
        let changes = same(&old, &new).regions;
        let exact = changes.iter().filter(|change| change.region.only.is_none());
        let regions = exact.map(|change| (&change.region.matches, true)).chain([(&matches, false)]);
        for (matches, must_parse) in regions {
            let text = text_of(matches);
            match parse(&text) {
                Ok(read) => {
                    let mut made = policy(vec![(matches.clone(), Action::Drop, Direction::Ingress)], read.default);
                    made.groups.clear();
                    let found = same(&made, &read);
                    prop_assert!(found.is_empty(), "{text}\n{:?}", found.regions.iter().map(|c| c.region.to_string()).collect::<Vec<_>>());
                }
                Err(problems) => prop_assert!(!must_parse || problems.contains("met together"), "{text}\n{problems}"),
            }
        }
    }

    #[test]
    fn a_policy_is_itself(rules in rules(9), default in fate()) {
        let policy = policy(rules, default);
        prop_assert!(same(&policy, &policy).is_empty());
    }

    /// Splitting a rule in two by a port changes nothing, and neither does moving a rule past one it does not meet.
    #[test]
    fn other_words_for_the_same_are_the_same(rules in rules(6).prop_filter("some", |rules| !rules.is_empty()), at in any::<Index>(), port in select(vec![1u16, 53, 1024])) {
        let mut rules = rules;
        let at = at.index(rules.len());
        let whole = policy::RangeSet::of(vec![(0, u16::MAX)]);
        let ports = rules[at].0.dst_port.get_or_insert(whole).clone();
        let mut split = rules.clone();
        let mut lower = split[at].clone();
        lower.0.dst_port = Some(ports.intersect(&policy::RangeSet::of(vec![(0, port)])));
        split[at].0.dst_port = Some(ports.intersect(&policy::RangeSet::of(vec![(port, u16::MAX)])));
        split.insert(at, lower);
        let found = same(&policy(rules, Action::Kernel), &policy(split, Action::Kernel));
        prop_assert!(found.is_empty(), "{:?}", found.regions.iter().map(|c| c.region.to_string()).collect::<Vec<_>>());
    }
}

fn read(text: &str) -> Policy {
    parse(&format!(
        "version = 1\ndefault = 'kernel'\n[groups.a]\nworkers = [0]\n[groups.b]\nworkers = [1]\n{text}"
    ))
    .expect("it parses")
}

fn changes(old: &str, new: &str) -> Vec<String> {
    let found = same(&read(old), &read(new));
    let line = |change: &policy::space::Change| {
        format!("{}: {} -> {}", change.region, change.before.action, change.after.action)
    };
    found.regions.iter().map(line).collect()
}

const WEB: &str =
    "[[rules]]\nname = 'web'\nmatch = { protocol = 'tcp', dst_port = [80, 443] }\naction = { steer = 'a' }\n";

#[test]
fn a_hole_is_one_not() {
    let office = format!(
        "[[rules]]\nname = 'office'\nmatch = {{ src = '10.0.0.0/8', protocol = 'tcp', dst_port = [80, 443] }}\naction = {{ steer = 'b' }}\n{WEB}"
    );
    assert_eq!(
        changes(WEB, &office),
        ["{ src = \"10.0.0.0/8\", protocol = \"tcp\", dst_port = [80, 443] }: steer to a -> steer to b"]
    );
    let moved = WEB.replace("443", "8443");
    assert_eq!(
        changes(WEB, &moved),
        [
            "{ protocol = \"tcp\", dst_port = 8443 }: kernel -> steer to a",
            "{ protocol = \"tcp\", dst_port = 443 }: steer to a -> kernel"
        ]
    );
    let before =
        format!("[[rules]]\nname = 'lab'\nmatch = {{ src = '10.1.0.0/16' }}\naction = 'drop'\n{WEB}");
    let after = before.replace("steer = 'a'", "steer = 'b'");
    assert_eq!(
        changes(&before, &after),
        [
            "{ src = { not = \"10.1.0.0/16\" }, protocol = \"tcp\", dst_port = [80, 443] }: steer to a -> steer to b"
        ]
    );
    assert_eq!(
        changes(&before, ""),
        [
            "{ src = \"10.1.0.0/16\" }: drop -> kernel",
            "{ src = { not = \"10.1.0.0/16\" }, protocol = \"tcp\", dst_port = [80, 443] }: steer to a -> kernel"
        ]
    );
}

#[test]
fn a_group_with_other_workers_is_another_group() {
    let old = read(WEB);
    let new = parse(&format!(
        "version = 1\ndefault = 'kernel'\n[groups.a]\nworkers = [0, 1]\n[groups.b]\nworkers = [1]\n{WEB}"
    ))
    .unwrap();
    assert_eq!(same(&old, &new).pairs.len(), 1);
    let renumbered = parse(&format!(
        "version = 1\ndefault = 'kernel'\n[groups.b]\nworkers = [1]\n[groups.a]\nworkers = [0]\n{WEB}"
    ))
    .unwrap();
    assert_eq!(renumbered.rules[0].action, Action::Steer(GroupId(1)));
    assert!(same(&old, &renumbered).is_empty());
}

const GROUPS: &str = "version = 1\ndefault = 'kernel'\n";

#[test]
fn a_group_is_the_same_by_any_name_and_another_by_any_other_table() {
    let with =
        |groups: &str, to: &str| parse(&format!("{GROUPS}{groups}{}", WEB.replace("'a'", to))).unwrap();
    let old = with("[groups.a]\nworkers = [0, 1]\n[groups.b]\nworkers = [0, 1]\nhash = 'l3'\n", "'a'");
    for (groups, to, is_same) in [
        ("[groups.c]\nworkers = [0, 1]\n", "'c'", true),
        ("[groups.a]\nweights = { 0 = 3, 1 = 3 }\n", "'a'", true),
        ("[groups.a]\nweights = { 0 = 3, 1 = 2 }\n", "'a'", false),
        ("[groups.a]\nworkers = [1, 0]\n", "'a'", false),
        ("[groups.a]\nworkers = [0, 1]\nhash = 'l3'\n", "'a'", false),
        ("[groups.a]\nworkers = [0, 1]\ntable_size = 64\n", "'a'", false),
        ("[groups.a]\nworkers = 'all'\n", "'a'", false),
        // The name is still there, and of another group.
        ("[groups.a]\nworkers = [0, 1]\n[groups.b]\nworkers = [0, 1]\nhash = 'l3'\n", "'b'", false),
        ("[groups.b]\nworkers = [0, 1]\n", "'b'", false),
    ] {
        assert_eq!(same(&old, &with(groups, to)).is_empty(), is_same, "{groups}");
    }
}

/// The groups of the new policy have other numbers than those of the old one.
#[test]
fn a_default_is_called_by_its_own_group() {
    let group = |name: &str, worker: u32| format!("[groups.{name}]\nworkers = [{worker}]\n");
    let old = parse(&format!("version = 1\ndefault = 'drop'\n{}", group("a", 0))).unwrap();
    let text = format!("version = 1\ndefault = {{ steer = 'b' }}\n{}{}", group("c", 2), group("b", 1));
    let found = same(&old, &parse(&text).unwrap());
    let actions: Vec<(&str, &str)> =
        found.pairs.iter().map(|pair| (&pair.before.action[..], &pair.after.action[..])).collect();
    assert_eq!(actions, [("drop", "steer to b")]);
}

#[test]
fn a_list_of_both_versions_is_one_region() {
    let old = "[[rules]]\nname = 'bad'\nmatch = { src = ['198.51.100.0/24', '2001:db8:bad::/48'] }\naction = 'drop'\n";
    let web = "[[rules]]\nname = 'web'\nmatch = { dst = ['192.0.2.80', '2001:db8::80'], protocol = 'tcp', dst_port = 80 }\naction = { steer = 'a' }\n";
    assert_eq!(
        changes(old, &format!("{old}{web}")),
        [
            "{ src = { not = [\"198.51.100.0/24\", \"2001:db8:bad::/48\"] }, dst = [\"192.0.2.80\", \"2001:db8::80\"], protocol = \"tcp\", dst_port = 80 }: kernel -> steer to a"
        ]
    );
}

/// What changes hands has no IPv4 in it, so it says nothing of the addresses that the rule has there.
#[test]
fn a_pair_is_within_its_rules() {
    let tunnelled =
        "[[rules]]\nname = 'ipip'\nmatch = { dst = '::/0', protocol = 4 }\naction = { steer = 'a' }\n";
    let with = |src: &str, action: &str| {
        let rule = format!("[[rules]]\nname = 'lab'\nmatch = {{ src = {src} }}\naction = {action}\n");
        read(&format!("{tunnelled}{rule}"))
    };
    let found =
        same(&with("['10.0.0.0/8', '::/0']", "{ copy = 'a' }"), &with("'10.0.0.0/8'", "{ steer = 'a' }"));
    let lost = found.pairs.iter().find(|pair| pair.after.name == "default").expect("a copy is lost");
    let within: Vec<String> = lost.within.iter().map(ToString::to_string).collect();
    assert_eq!(within, ["{ src = [\"10.0.0.0/8\", \"::/0\"] }"]);
}

/// Nobody asks which fragments of IPv6 are first ones, so none are told apart.
#[test]
fn all_fragments_are_told_where_no_rule_parts_them() {
    let whole = "[[rules]]\nname = 'whole'\nmatch = { fragment = 'none' }\naction = 'drop'\n";
    let all = "[[rules]]\nname = 'all'\nmatch = { family = 'ipv6' }\naction = 'drop'\n";
    assert_eq!(
        changes(whole, &format!("{whole}{all}")),
        ["{ family = \"ipv6\", fragment = \"any\" }: kernel -> drop"]
    );
}

/// What is around either of the two first rules has the same packets of IPv6.
#[test]
fn no_region_is_told_twice() {
    let rule = |name: &str, matches: &str, action: &str| {
        format!("[[rules]]\nname = '{name}'\nmatch = {{ {matches} }}\naction = {action}\n")
    };
    let with = |action: &str| {
        let few = rule("few", "dst = '::/0', tos = '0-9'", "{ steer = 'a' }");
        let later = rule("later", "src_mac = '02:00:00:00:00:01', fragment = 'later'", "{ steer = 'a' }");
        format!("{few}{later}{}", rule("esp", "protocol = 'esp'", action))
    };
    assert_eq!(
        changes(&with("'drop'"), &with("'kernel'")),
        [
            "{ src_mac = { not = [\"02:00:00:00:00:01\"] }, family = \"ipv4\", protocol = \"esp\" }: drop -> kernel",
            "{ family = \"ipv6\", protocol = \"esp\", tos = \"10-255\" }: drop -> kernel",
            "{ family = \"ipv4\", protocol = \"esp\", fragment = [\"none\", \"first\"] }: drop -> kernel"
        ]
    );
}

/// Masks of addresses that cross make a rule of many parts.
#[test]
fn a_pair_of_many_parts_is_within_one_match() {
    let masks: Vec<String> = (0..5)
        .map(|bit| 1 << bit)
        .map(|bit| format!("'00:00:00:00:00:{bit:02x}/00:00:00:00:00:{bit:02x}'"))
        .collect();
    let masks = masks.join(", ");
    let rule = format!(
        "[[rules]]\nname = 'odd'\nmatch = {{ dst_mac = [{masks}], src_mac = [{masks}], tos = 4 }}\naction = 'drop'\n"
    );
    let (old, new) = (read(""), read(&rule));
    let within = |detail| {
        let found = diff_in_detail(&old, &new, detail, &mut |_| {});
        found.pairs[0].within.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(within(Detail::FULL).len() > Detail::SHORT.regions_per_pair);
    assert_eq!(within(Detail::SHORT), ["{ tos = 4 } # only part of it"]);
}

/// An address of IPv4 inside is found behind UDP, GRE and labels, too.
#[test]
fn a_tunnel_without_a_key_of_its_own_is_told_by_its_protocol() {
    let others = "[[rules]]\nname = 'others'\nmatch = { protocol = ['udp', 'gre'] }\naction = 'drop'\n";
    let tunnelled = format!(
        "{others}[[rules]]\nname = 'tunnelled'\nmatch = {{ family = 'ipv6', inner = {{ src = '10.0.0.0/8' }} }}\naction = {{ steer = 'a' }}\n"
    );
    assert_eq!(
        changes(others, &tunnelled),
        [
            "{ family = \"ipv6\", protocol = \"ipv4\", inner = { src = \"10.0.0.0/8\" } }: kernel -> steer to a"
        ]
    );
}

/// Rules that each take one port of one network, before a rule for everything.
fn crossing(count: usize, last: &str) -> Policy {
    let mut text = String::new();
    for index in 0..count {
        text.push_str(&format!(
            "[[rules]]\nname = 'r{index}'\nmatch = {{ src = '10.0.{index}.0/24', dst_port = {index} }}\naction = 'drop'\n"
        ));
    }
    read(&format!("{text}[[rules]]\nname = 'last'\nmatch = {{ family = 'ipv4' }}\naction = {last}\n"))
}

#[test]
fn what_is_not_told_region_by_region_is_counted() {
    let (old, new) = (crossing(40, "'drop'"), crossing(40, "{ steer = 'a' }"));
    let few = same(&old, &new);
    let all = diff_in_detail(&old, &new, Detail::FULL, &mut |_| {});
    let [short] = &few.pairs[..] else { panic!("one pair: {:?}", few.pairs) };
    let [full] = &all.pairs[..] else { panic!("one pair: {:?}", all.pairs) };
    assert_eq!((short.regions, short.is_open), (Detail::SHORT.regions_per_pair - 1, false));
    assert!(full.regions > Detail::SHORT.regions_per_pair);
    assert_eq!((short.regions + short.more, full.more), (full.regions, 0));
    assert_eq!(short.within.iter().map(ToString::to_string).collect::<Vec<_>>(), ["{ family = \"ipv4\" }"]);
    assert_eq!((short.but_for.count, short.but_for.listed.len()), (40, policy::space::MAX_NAMED_RULES));
    assert_eq!(few.regions.len(), short.regions + short.rest);
    assert!(few.regions.iter().any(|change| change.region.only.is_some()), "one stands for the others");
    assert!(all.regions.iter().filter(|change| change.region.only.is_none()).count() > 16);
}

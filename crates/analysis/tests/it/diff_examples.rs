//! Examples of the exact output of `diff`.

use analysis::{Detail, Diff, diff, diff_in_detail};
use policy::policy::Action;
use policy::{NoFiles, Policy, Source};
use program::GroupId;

fn parse(text: &str) -> Result<Policy, String> {
    policy::parse(&Source::new("printed.toml", text), &NoFiles)
        .map(|(policy, _)| policy)
        .map_err(|e| e.to_string())
}

fn same(one: &Policy, other: &Policy) -> Diff {
    diff(one, other, &mut |_| {})
}

fn read(text: &str) -> Policy {
    parse(&format!(
        "version = 1\ndefault = 'kernel'\n[groups.a]\nworkers = [0]\n[groups.b]\nworkers = [1]\n{text}"
    ))
    .expect("it parses")
}

fn changes(old: &str, new: &str) -> Vec<String> {
    let found = same(&read(old), &read(new));
    let line = |change: &analysis::Change| {
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

/// The packets that change hands are not IPv4, so the region does not contain the addresses that the rule has
/// there.
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

/// No rule distinguishes the first fragments of IPv6, so regions do not either.
#[test]
fn fragments_are_one_region_where_no_rule_distinguishes_them() {
    let whole = "[[rules]]\nname = 'whole'\nmatch = { fragment = 'none' }\naction = 'drop'\n";
    let all = "[[rules]]\nname = 'all'\nmatch = { family = 'ipv6' }\naction = 'drop'\n";
    assert_eq!(
        changes(whole, &format!("{whole}{all}")),
        ["{ family = \"ipv6\", fragment = \"any\" }: kernel -> drop"]
    );
}

/// The regions around either of the two first rules have the same packets of IPv6.
#[test]
fn no_region_is_listed_twice() {
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
fn a_tunnel_without_a_key_in_the_language_is_written_by_its_protocol() {
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
fn regions_that_are_not_listed_are_counted() {
    let (old, new) = (crossing(40, "'drop'"), crossing(40, "{ steer = 'a' }"));
    let few = same(&old, &new);
    let all = diff_in_detail(&old, &new, Detail::FULL, &mut |_| {});
    let [short] = &few.pairs[..] else { panic!("one pair: {:?}", few.pairs) };
    let [full] = &all.pairs[..] else { panic!("one pair: {:?}", all.pairs) };
    assert_eq!((short.regions, short.is_open), (Detail::SHORT.regions_per_pair - 1, false));
    assert!(full.regions > Detail::SHORT.regions_per_pair);
    assert_eq!((short.regions + short.more, full.more), (full.regions, 0));
    assert_eq!(short.within.iter().map(ToString::to_string).collect::<Vec<_>>(), ["{ family = \"ipv4\" }"]);
    assert_eq!((short.but_for.count, short.but_for.listed.len()), (40, analysis::MAX_NAMED_RULES));
    assert_eq!(few.regions.len(), short.regions + short.rest);
    assert!(few.regions.iter().any(|change| change.region.only.is_some()), "one stands for the others");
    assert!(all.regions.iter().filter(|change| change.region.only.is_none()).count() > 16);
}

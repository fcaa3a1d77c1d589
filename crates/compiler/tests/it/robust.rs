//! Any text gives a policy or diagnostics, never a crash, and never takes long.

use std::collections::BTreeMap;

use device_model::DeviceModel;
use packet::FlowKey;
use packet::build::FrameBuilder;
use policy::{MAX_DIAGNOSTICS, Source};
use proptest::prelude::*;

const GOOD: [&str; 4] = [
    include_str!("../../../policy/tests/policies/service.toml"),
    include_str!("../../../policy/tests/policies/hybrid.toml"),
    include_str!("../../../policy/tests/policies/link.toml"),
    include_str!("../../../policy/tests/policies/slips.toml"),
];

fn run(text: &str, set: &str) {
    let source = Source::new("any.toml", text);
    let files = BTreeMap::from([("blocked.txt".to_owned(), set.to_owned())]);
    let problems = match policy::parse(&source, &files) {
        Err(problems) => problems,
        Ok((policy, warnings)) => match compiler::compile(&policy, &DeviceModel::ideal(), 4) {
            Err(problems) => problems,
            Ok(program) => {
                assert!(!program.to_string().is_empty());
                let mut all =
                    reports::Check::of(&compiler::Job::new(&policy, &DeviceModel::ideal(), 4), &program)
                        .warnings;
                all.extend(warnings);
                return render(&all.into());
            }
        },
    };
    assert!(problems.has_errors());
    render(&problems);
}

/// Every place must be printable and lie within its text.
fn render(problems: &policy::Diagnostics) {
    assert!(problems.list.len() <= MAX_DIAGNOSTICS);
    assert!(problems.list.iter().all(|problem| problem.line >= 1 && problem.column >= 1));
    let handler = miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::none());
    for report in problems.report().iter().take(3) {
        handler.render_report(&mut String::new(), report.as_ref()).expect("a report can be shown");
    }
}

/// One edit of a text at a place given in parts of its length.
#[derive(Clone, Debug)]
enum Edit {
    Insert(u16, String),
    Remove(u16, u8),
    Double(u16, u8),
}

fn edit() -> impl Strategy<Value = Edit> {
    let token = prop::sample::select(vec![
        "\"",
        "'",
        "[",
        "]",
        "{",
        "}",
        "=",
        ".",
        "\n",
        "[[rules]]\n",
        "[sets]\n",
        "0",
        "-1",
        "9999999999999999999",
        "1.5",
        "true",
        "inf",
        "1979-05-27",
        "\"\\u0000\"",
        "é",
        "-",
        "/",
        "::",
        "x = ",
        "any",
        "none",
        "#",
        ",",
        "0x",
        "\"any\"",
        "[]",
        "{}",
        "\"-\"",
        "\"::/0\"",
        "\"0.0.0.0/0\"",
        "\"0-65535\"",
    ]);
    prop_oneof![
        3 => (any::<u16>(), token).prop_map(|(at, token)| Edit::Insert(at, token.to_owned())),
        1 => (any::<u16>(), "\\PC{0,6}").prop_map(|(at, text)| Edit::Insert(at, text)),
        2 => (any::<u16>(), 1u8..40).prop_map(|(at, count)| Edit::Remove(at, count)),
        1 => (any::<u16>(), 1u8..120).prop_map(|(at, count)| Edit::Double(at, count)),
    ]
}

fn apply(text: &str, edit: &Edit) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let place = |at: u16| usize::from(at) * chars.len() / (usize::from(u16::MAX) + 1);
    match edit {
        Edit::Insert(at, token) => {
            let at = place(*at);
            chars.splice(at..at, token.chars());
        }
        Edit::Remove(at, count) => {
            let at = place(*at);
            chars.drain(at..(at + usize::from(*count)).min(chars.len()));
        }
        Edit::Double(at, count) => {
            let at = place(*at);
            let piece = chars[at..(at + usize::from(*count)).min(chars.len())].to_vec();
            chars.splice(at..at, piece);
        }
    }
    chars.into_iter().collect()
}

/// Every key of a match, as the schema lists them.
fn match_keys() -> Vec<String> {
    let schema = policy::schema();
    let keys = schema["$defs"]["match"]["properties"].as_object().expect("a match has keys");
    keys.keys().cloned().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text_does_not_crash(text in "\\PC{0,300}", set in "\\PC{0,60}") {
        run(&text, &set);
    }

    #[test]
    fn mutated_policies_do_not_crash(
        good in prop::sample::select(GOOD.to_vec()),
        edits in prop::collection::vec(edit(), 1..6),
        set in "([0-9a-f:./#\n -]{0,12}\n){0,4}",
    ) {
        let text = edits.iter().fold(good.to_owned(), |text, edit| apply(&text, edit));
        run(&text, &set);
    }

    #[test]
    fn any_value_of_any_key_does_not_crash(
        key in prop::sample::select(match_keys()),
        value in "[0-9a-f:./x!,-]{0,20}",
        negated in any::<bool>(),
        inside in any::<bool>(),
    ) {
        let value = if negated { format!("{{ not = \"{value}\" }}") } else { format!("\"{value}\"") };
        let keys = format!("{key} = {value}");
        let keys = if inside { format!("inner = {{ {keys} }}") } else { keys };
        run(&format!("version = 1\n[[rules]]\nname = \"x\"\nmatch = {{ {keys} }}\naction = \"drop\"\n"), "");
    }

    #[test]
    fn any_two_keys_do_not_crash(
        keys in prop::collection::vec(prop::sample::select(match_keys()), 2..5),
        value in prop::sample::select(vec!["0", "1", "47", "\"any\"", "\"none\"", "\"df\"", "\"syn\"", "\"10.0.0.0/8\"", "true",
            "\"ipv6\"", "{ not = 1 }", "\"2001:db8::/32\"", "{ dst_port = 1 }", "\"key\"", "[1, 2]"]),
        more in prop::sample::select(vec!["6", "17", "\"ipv4\"", "\"later\"", "{ not = \"::/0\" }", "4789", "0x0800"]),
    ) {
        let keys: Vec<String> = keys
            .iter()
            .enumerate()
            .map(|(index, key)| format!("{key} = {}", if index % 2 == 0 { value } else { more }))
            .collect();
        run(&format!("version = 1\n[[rules]]\nname = \"x\"\nmatch = {{ {} }}\naction = \"drop\"\n", keys.join(", ")), "");
    }
}

#[test]
fn thousands_of_problems_are_counted_not_listed() {
    let mut text = "version = 1\n".to_owned();
    for _ in 0..2000 {
        text.push_str("[[rules]]\nnmae = \"x\"\n");
    }
    let problems = policy::parse(&Source::new("many.toml", text), &policy::NoFiles).unwrap_err();
    assert_eq!(problems.list.len(), MAX_DIAGNOSTICS);
    assert_eq!(problems.omitted, 4 * 2000 - MAX_DIAGNOSTICS);
    assert!(problems.to_string().ends_with("\nand 7900 more"));
}

#[test]
fn a_missing_file_is_a_diagnostic() {
    let problems = policy::load("/nonexistent/policy.toml").unwrap_err();
    assert!(
        problems.to_string().starts_with("/nonexistent/policy.toml:1:1: error: cannot read the policy: ")
    );
}

#[test]
fn many_unused_sets_are_no_error() {
    let mut text = "version = 1\n[sets]\n".to_owned();
    (0..300).for_each(|index| text.push_str(&format!("s{index} = [1]\n")));
    let (_, warnings) = policy::parse(&Source::new("sets.toml", text), &policy::NoFiles).unwrap();
    assert_eq!(warnings.len(), MAX_DIAGNOSTICS);
}

/// A rule of 4,096 flows per name; the addresses are apart, so that none is needless.
fn large_rules(count: usize) -> String {
    let mut text = "version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n".to_owned();
    for index in 0..count {
        let ports: Vec<String> = (0..2048).map(|port| (2 * port + 1).to_string()).collect();
        text.push_str(&format!(
            "[[rules]]\nname = \"r{index}\"\nmatch = {{ family = \"ipv4\", src = \"10.{}.{}.0/24\", dst_port = [{}] }}\naction = {{ steer = \"g\" }}\n",
            index / 256,
            index % 256,
            ports.join(", "),
        ));
    }
    text
}

#[test]
fn too_many_flows_are_reported_once_and_at_once() {
    let policy = policy::parse(&Source::new("large.toml", large_rules(80)), &policy::NoFiles).unwrap().0;
    let started = test_support::CpuTime::now();
    let problems = compiler::compile(&policy, &DeviceModel::ideal(), 1).unwrap_err();
    assert_eq!(problems.list.len(), 1, "{problems}");
    assert!(problems.list[0].message.contains("more than 262144 flows"));
    // 64 rules fit; the one beyond is named.
    assert_eq!(problems.list[0].line, 5 + 4 * 64 + 2);
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn rules_beyond_the_limit_of_flows_are_not_expanded() {
    // The last rule would take too many combinations; nothing comes to it.
    let mut text = large_rules(65);
    text.push_str("[[rules]]\nname = \"last\"\nmatch = { src_port = \"1-65534\", dst_port = \"1-65534\", tos = \"1-254\", src = \"0.0.0.1-255.255.255.254\" }\naction = \"drop\"\n");
    let policy = policy::parse(&Source::new("large.toml", text), &policy::NoFiles).unwrap().0;
    let problems = compiler::compile(&policy, &DeviceModel::ideal(), 1).unwrap_err();
    assert_eq!(problems.list.len(), 1, "{problems}");
    assert!(problems.list[0].message.contains("more than 262144 flows"));
}

#[test]
fn errors_are_listed_before_warnings() {
    let mut text = "version = 1\n".to_owned();
    for index in 0..MAX_DIAGNOSTICS + 20 {
        text.push_str(&format!("[groups.g{index}]\nworkers = [0, 1]\nhash = \"none\"\n"));
    }
    text.push_str("[[rules]]\nname = \"x\"\nmatch = { dst_prot = 1 }\naction = \"drop\"\n");
    let problems = policy::parse(&Source::new("many.toml", text), &policy::NoFiles).unwrap_err();
    assert_eq!((problems.list.len(), problems.omitted), (MAX_DIAGNOSTICS, 21));
    assert!(problems.to_string().contains("unknown key `dst_prot`"), "{problems}");
}

#[test]
fn invalid_values_are_parsed_as_fast_as_valid_ones() {
    let started = test_support::CpuTime::now();
    let many = "\"x\", ".repeat(400_000);
    let text = format!(
        "version = 1\n[[rules]]\nname = \"x\"\nmatch = {{ dst_port = [{many}] }}\naction = \"drop\"\n"
    );
    let problems = policy::parse(&Source::new("many.toml", text), &policy::NoFiles).unwrap_err();
    assert_eq!(problems.list.len() + problems.omitted, 400_000);
    // A set that is named again and again is read only until the list is full.
    let items = "\"1:2\", ".repeat(100_000);
    let names = "\"s\", ".repeat(100_000);
    let text = format!(
        "version = 1\n[sets]\ns = [{items}]\n[[rules]]\nname = \"x\"\nmatch = {{ dst_port = [{names}] }}\naction = \"drop\"\n"
    );
    let problems = policy::parse(&Source::new("many.toml", text), &policy::NoFiles).unwrap_err();
    assert!(problems.has_errors());
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn set_files_that_are_no_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("sets")).unwrap();
    for file in ["/dev/zero", "sets", "missing.txt"] {
        let path = folder.join("policy.toml");
        let text = format!(
            "version = 1\n[sets]\nb = {{ file = \"{file}\" }}\n[[rules]]\nname = \"x\"\nmatch = {{ src = \"b\" }}\naction = \"drop\"\n"
        );
        std::fs::write(&path, text).unwrap();
        let problems = policy::load(&path).unwrap_err().to_string();
        assert!(problems.contains(&folder.join(file).display().to_string()), "{problems}");
        let is_refused = problems.contains("not a regular file");
        assert_eq!(is_refused, file != "missing.txt", "{problems}");
    }
}

/// The most CPU time that a policy may take that needs wider flows: 8 to 16 s were measured, by how
/// busy the other processors of the host are.
const WIDE_TIME: std::time::Duration = std::time::Duration::from_secs(30);

/// The most CPU time that one text may take, however it is made: a release build takes a fraction of a
/// second.
const TEXT_TIME: std::time::Duration = std::time::Duration::from_secs(10);

#[test]
fn no_text_takes_long() {
    let rule = |matches: &str| {
        format!("version = 1\n[[rules]]\nname = \"x\"\nmatch = {{ {matches} }}\naction = \"drop\"\n")
    };
    let many = |item: &str, count: usize| item.repeat(count);
    let deep = |open: &str, close: &str| format!("{}1{}", many(open, 50_000), many(close, 50_000));
    let sets: String = (0..20_000).map(|index| format!("s{index} = [{index}]\n")).collect();
    let names: String = (0..20_000).map(|index| format!("\"s{index}\", ")).collect();
    let groups: String = (0..2_000).map(|index| format!("[groups.g{index}]\nworkers = [0]\n")).collect();
    let steers: String = (0..20_000)
        .map(|index| {
            format!("[[rules]]\nname = \"r{index}\"\nmatch = {{ any = true }}\naction = \"steer h{index}\"\n")
        })
        .collect();
    let variables: String = (0..20_000).map(|index| format!("v{index} = {index}\n")).collect();
    for (what, text) in [
        ("nested lists", rule(&format!("dst_port = {}", deep("[", "]")))),
        ("nested negations", rule(&format!("dst_port = {}", deep("{ not = ", " }")))),
        ("nested packets", rule(&deep("inner = { ttl = 1, ", " }"))),
        ("dotted keys", format!("version = 1\n{}x = 1\n", many("a.", 100_000))),
        (
            "many sets",
            format!("version = 1\n[sets]\n{sets}{}", &rule(&format!("dst_port = [{names}]"))[12..]),
        ),
        ("unknown groups", format!("version = 1\n{groups}{steers}")),
        ("exclusions", rule(&format!("dst_port = [{}]", many("{ not = 1 }, ", 100_000)))),
        ("addresses", rule(&format!("src = [{}]", many("\"10.0.0.1\", { not = \"10.0.0.1\" }, ", 100_000)))),
        (
            "masks",
            rule(&format!(
                "src_mac = [{}]",
                many("\"00:00:00:00:00:01\", { not = \"02:00:00:00:00:00/02:00:00:00:00:00\" }, ", 30_000)
            )),
        ),
        ("flags", rule(&format!("tcp_flags = [{}]", many("\"syn,!ack\", ", 100_000)))),
        (
            "unknown variables",
            format!(
                "version = 1\n[variables]\n{variables}{}",
                &rule(&format!("dst_port = [{}]", many("\"${w1}\", ", 100_000)))[12..]
            ),
        ),
        ("one long text", rule(&format!("dst_port = \"{}\"", many("${a}", 500_000)))),
        ("open variables", rule(&format!("dst_port = \"{}\"", many("${", 500_000)))),
        ("unclosed", many("[", 100_000)),
        ("newlines", many("\n", 2_000_000)),
        ("equal signs", many("=\n", 200_000)),
    ] {
        let started = test_support::CpuTime::now();
        let result = policy::parse(&Source::new("long.toml", text), &policy::NoFiles);
        let time = started.elapsed();
        assert!(time < TEXT_TIME, "{what}: {time:?}");
        assert!(
            result.is_err()
                || what == "exclusions"
                || what == "addresses"
                || what == "flags"
                || what == "many sets"
                || what == "masks",
            "{what}"
        );
    }
}

#[test]
fn the_values_of_all_rules_have_a_limit() {
    let values: String = (0..100_000u32).map(|index| format!("{}\n", index % 65_536)).collect();
    let files = BTreeMap::from([("x.txt".to_owned(), values)]);
    let mut text = "version = 1\n[sets]\nx = { file = \"x.txt\" }\n".to_owned();
    for index in 0..400 {
        text.push_str(&format!(
            "[[rules]]\nname = \"r{index}\"\nmatch = {{ dst_port = \"x\" }}\naction = \"drop\"\n"
        ));
    }
    let started = test_support::CpuTime::now();
    let problems = policy::parse(&Source::new("large.toml", text), &files).unwrap_err();
    assert_eq!(problems.list.len(), 1, "{problems}");
    assert!(problems.list[0].message.contains("more than 16777216 values in total"), "{problems}");
    assert!(started.elapsed() < TEXT_TIME, "{:?}", started.elapsed());
}

/// Rules that a worker finishes, each of one match.
fn hybrid_rules(matches: impl Iterator<Item = String>) -> policy::Policy {
    let mut text = "version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n".to_owned();
    for (index, matches) in matches.enumerate() {
        text.push_str(&format!(
            "[[rules]]\nname = \"r{index}\"\nmatch = {{ fragment = \"none\", {matches} }}\naction = {{ steer = \"g\" }}\n"
        ));
    }
    policy::parse(&Source::new("hybrid.toml", text), &policy::NoFiles).expect("it parses").0
}

#[test]
fn thousands_of_hybrid_rules_are_decided_at_once() {
    // Two addresses that have nothing in common, so that only a look at both tells rules apart.
    let address = |index: u32| std::net::Ipv4Addr::from(index.wrapping_mul(0x9e37_79b1));
    let two = |index: u32| format!("src = [\"{}\", \"{}\"]", address(2 * index), address(2 * index + 1));
    let policy = hybrid_rules((0..10_000).map(two));
    let started = test_support::CpuTime::now();
    let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).unwrap();
    assert!(started.elapsed() < TEXT_TIME, "{:?}", started.elapsed());
    let asks_itself_alone = |class: &program::Class| matches!(&class.decide, program::Decide::Software(steps, _) if steps.len() == 1);
    assert_eq!(program.classes.iter().flatten().filter(|class| asks_itself_alone(class)).count(), 10_000);
}

/// A UDP packet between hosts of 10.0.0.0/8.
fn udp((src, dst): (u32, u32), (src_port, dst_port): (u16, u16)) -> FlowKey {
    let address = |host: u32| std::net::Ipv4Addr::from(0x0a00_0000 + host);
    FlowKey::of(&FrameBuilder::new().ipv4(address(src), address(dst)).udp(src_port, dst_port).build())
}

/// Compiles in time, to classes of at most 2^24 steps in all, and every packet has the outcome of its first
/// rule.
fn is_compiled_with_wider_flows(policy: &policy::Policy, profile: &DeviceModel, packets: &[FlowKey]) {
    let started = test_support::CpuTime::now();
    let program = compiler::compile(policy, profile, 1).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(started.elapsed() < WIDE_TIME, "{:?}", started.elapsed());
    let steps_of = |class: &program::Class| match &class.decide {
        program::Decide::Software(steps, _) => steps.len(),
        program::Decide::Exact(_) => 0,
    };
    let steps: usize = program.classes.iter().flatten().map(steps_of).sum();
    assert!(steps <= 1 << 24, "{steps}");
    let rules: Vec<_> = policy.rules.iter().map(|rule| program::Predicate::of(&rule.matches)).collect();
    for packet in packets {
        let first = rules.iter().position(|rule| rule.matches(packet)).unwrap_or(rules.len());
        assert_eq!(program.explain(packet).outcome.rule.index(), first, "{packet:?}");
    }
}

#[test]
fn wider_flows_spare_steps_beyond_the_limit() {
    // Every source meets every destination: none has too many steps, together they have.
    let network = |key: &str, index: usize| format!("{key} = \"10.0.{}.{}\"", index / 256, index % 256);
    let sources = (0..4110).map(|index| network("src", index));
    let policy = hybrid_rules(sources.chain((0..4100).map(|index| network("dst", index))));
    let packets: Vec<FlowKey> = (0..200).map(|n| udp((n * 41 % 8192, n * 97 % 8192), (1, 2))).collect();
    is_compiled_with_wider_flows(&policy, &DeviceModel::ideal(), &packets);
}

#[test]
fn wider_flows_spare_comparisons_beyond_the_limit() {
    // After fifteen nested rules no priority is left, and every source port meets every destination port.
    let mut text = "version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n".to_owned();
    let nested = (0..15).map(|index| format!("src = \"10.0.0.0/{}\"", 32 - index));
    let ports = |key: &'static str| (0..4200).map(move |port| format!("{key} = {port}"));
    for (index, key) in nested.chain(ports("src_port")).chain(ports("dst_port")).enumerate() {
        text.push_str(&format!(
            "[[rules]]\nname = \"r{index}\"\nmatch = {{ family = \"ipv4\", protocol = \"udp\", {key} }}\n\
             action = {{ steer = \"g\" }}\n"
        ));
    }
    let (policy, _) = policy::parse(&Source::new("ports.toml", text), &policy::NoFiles).expect("it parses");
    let port = |n: u32| (n % 8192) as u16;
    let packets: Vec<FlowKey> = (0..200).map(|n| udp((n, n), (port(n * 41), port(n * 97)))).collect();
    is_compiled_with_wider_flows(&policy, &DeviceModel::mlx5(), &packets);
}

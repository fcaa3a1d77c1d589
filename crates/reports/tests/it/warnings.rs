//! Warnings about compiled policies, and the steps of their rules.

use compiler::Job;
use device_model::DeviceModel;
use policy::{NoFiles, Source};
use reports::{Check, protection_warning};

fn warnings(text: &str) -> Vec<String> {
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &NoFiles).expect("a good policy");
    let program = compiler::compile(&policy, &DeviceModel::ideal(), 4).expect("a policy that fits");
    Check::of(&Job::new(&policy, &DeviceModel::ideal(), 4), &program)
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect()
}

const SCAN: &str = "[groups.g]\nworkers = [0]\n[[rules]]\nname = \"scan\"\nmatch = { tcp_flags = \"syn,fin\" }\naction = \"drop\"\n";

#[test]
fn packets_that_a_hybrid_rule_keeps_from_the_host_are_named() {
    let found = warnings(&format!("version = 1\n{SCAN}"));
    let told = |warning: &&String| warning.contains("takes packets of other rules from the kernel");
    let warning = found.iter().find(told).expect("all of TCP leaves the host");
    assert!(warning.contains("`scan`") && warning.contains("`ipv4 | tcp`, `ipv6 | tcp`"), "{warning}");
    // Where nothing is left to the kernel nothing is taken from it.
    let dropping = warnings(&format!("version = 1\ndefault = \"drop\"\n{SCAN}"));
    assert_eq!(dropping.iter().filter(told).count(), 0, "{dropping:?}");
}

#[test]
fn a_rule_that_takes_arp_is_warned_of_under_any_default() {
    let policy = |default: &str, ether_type: &str| {
        let text = format!(
            "version = 1\ndefault = \"{default}\"\n[groups.g]\nworkers = [0]\n[[rules]]\nname = \"rest\"\n\
             match = {{ ethertype = {{ not = [{ether_type}] }} }}\naction = {{ steer = \"g\" }}\n"
        );
        policy::parse(&Source::new("policy.toml", text), &NoFiles).expect("a good policy").0
    };
    let warning = |default, types| protection_warning(&policy(default, types)).map(|found| found.to_string());
    let found = warning("kernel", "\"ipv4\", \"ipv6\"").expect("no ARP");
    let words = "policy.toml:7:9: warning: the host receives none of these packets: ARP (the rule `rest` takes, for example, ";
    assert!(found.starts_with(words), "{found}");
    assert_eq!(warning("kernel", "\"ipv4\", \"ipv6\", \"arp\""), None);
    let found = warning("drop", "\"ipv4\", \"ipv6\"").expect("nothing");
    assert!(found.contains("`rest`") && found.contains("DHCP (the default takes"), "{found}");
}

#[test]
fn the_rule_that_matches_all_packets_of_another_is_named() {
    let rule = |name: &str, matches: &str| {
        format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = {{ steer = \"g\" }}\n")
    };
    let text = [
        "version = 1\n[groups.g]\nworkers = [0]\n".to_owned(),
        rule("pieces", "family = \"ipv4\", fragment = \"later\""),
        rule("all", "family = \"ipv4\""),
        rule("again", "family = \"ipv4\""),
        rule("lost", "dst = \"192.0.2.0/24\""),
    ];
    let found = warnings(&text.concat());
    let lost = found.iter().find(|warning| warning.contains("`lost` never matches")).unwrap();
    assert!(lost.contains("go to `all` before it"), "{lost}");
}

#[test]
fn an_exception_without_flows_is_not_reported_as_unreachable() {
    let text = "version = 1\n[[rules]]\nname = \"ssh\"\nmatch = { dst = \"192.0.2.1\", dst_port = 22 }\n\
                action = \"kernel\"\n[[rules]]\nname = \"rest\"\nmatch = { dst = \"198.51.100.0/24\" }\n\
                action = \"drop\"\n";
    assert_eq!(warnings(text), [""; 0]);
}

#[test]
fn the_list_of_rules_that_never_match_is_limited() {
    let mut text =
        "version = 1\n[[rules]]\nname = \"all\"\nmatch = { any = true }\naction = \"drop\"\n".to_owned();
    for index in 0..policy::MAX_DIAGNOSTICS + 7 {
        text.push_str(&format!(
            "[[rules]]\nname = \"r{index}\"\nmatch = {{ tos = {index} }}\naction = \"drop\"\n"
        ));
    }
    let found = warnings(&text);
    assert_eq!(found.len(), policy::MAX_DIAGNOSTICS + 1);
    assert!(found.last().unwrap().contains("7 more rules never match"), "{found:?}");
}

#[test]
fn the_group_of_a_hybrid_drop_is_used_and_named() {
    let text = format!("version = 1\ndefault = \"drop\"\n{SCAN}");
    assert_eq!(warnings(&text), [""; 0]);
    let (policy, _) = policy::parse(&Source::new("policy.toml", text), &NoFiles).expect("a good policy");
    let program = compiler::compile(&policy, &DeviceModel::ideal(), 4).expect("a policy that fits");
    let shown = program.to_string();
    assert!(shown.contains("tcp_flags: the device matches more, a worker of `g` decides"), "{shown}");
}

#[test]
fn the_steps_of_a_class_are_counted_and_limited() {
    let policy = |rules: usize| {
        let mut text = "version = 1\n[groups.g]\nworkers = [0]\nhash = \"none\"\n".to_owned();
        for index in 0..rules {
            text.push_str(&format!("[[rules]]\nname = \"r{index}\"\nmatch = {{ tcp_flags = \"syn\" }}\naction = {{ steer = \"g\" }}\n"));
        }
        policy::parse(&Source::new("policy.toml", text), &NoFiles).unwrap().0
    };
    let few = policy(3);
    let program = compiler::compile(&few, &DeviceModel::ideal(), 1).unwrap();
    let steps: Vec<u32> = Check::of(&Job::new(&few, &DeviceModel::ideal(), 1), &program)
        .rules
        .iter()
        .map(|rule| rule.steps)
        .collect();
    // The flows of the first rule take the packets of all.
    assert_eq!(steps, [3, 0, 0, 0]);

    let many = policy(5000);
    let program = compiler::compile(&many, &DeviceModel::ideal(), 1).unwrap();
    assert_eq!(Check::of(&Job::new(&many, &DeviceModel::ideal(), 1), &program).rules[0].steps, 5000);
}

/// The average rate is kept, as workers count parts of packets; a burst has whole packets.
#[test]
fn bursts_with_less_than_a_packet_for_each_worker_are_warned_of() {
    let ideal = DeviceModel::ideal();
    let warnings = |keys: &str| -> Vec<String> {
        let text = format!(
            "version = 1\n[sinks.s]\nkind = 'count'\n[groups.g]\nworkers = 'all'\n[[rules]]\nname = 'x'\n\
             match = {{ protocol = 'udp' }}\naction = {{ steer = 'g' }}\nsinks = ['s']\n{keys}\n"
        );
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).unwrap();
        let program = compiler::compile(&policy, &ideal, 8).unwrap();
        let found = Check::of(&Job::new(&policy, &ideal, 8), &program).warnings;
        found.into_iter().map(|warning| warning.message).collect()
    };
    assert_eq!(
        warnings("limit = '1/s'\nburst = 4"),
        [
            "after a pause 8 packets of `x` pass at once, not 4: each of its 8 workers lets one through at least"
        ]
    );
    // 64 packets at once without `burst`.
    for keys in ["limit = '1/s'", "limit = '1/s'\nburst = 8", "limit = '10k/s'\nburst = 9", "sample = 9"] {
        assert_eq!(warnings(keys), Vec::<String>::new(), "{keys}");
    }
}

/// The flow of the first rule matches packets of the second one, whose workers are others.
#[test]
fn limits_that_workers_of_other_groups_exceed_are_warned_of() {
    let ideal = DeviceModel::ideal();
    let warnings = |other: &str| -> Vec<String> {
        let text = format!(
            "version = 1\n[sinks.s]\nkind = 'count'\n[groups.g]\nworkers = [0, 1]\n[groups.h]\nworkers = [2]\n\
             [[rules]]\nname = 'syn'\nmatch = {{ protocol = 'tcp', tcp_flags = 'syn' }}\naction = {{ steer = '{other}' }}\nsinks = ['s']\n\
             [[rules]]\nname = 'x'\nmatch = {{ protocol = 'tcp' }}\naction = {{ steer = 'g' }}\nsinks = ['s']\nlimit = '1k/s'\n\
             [[rules]]\nname = 'rest'\nmatch = {{ any = true }}\naction = {{ steer = 'h' }}\nsinks = ['s']\n"
        );
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).unwrap();
        let program = compiler::compile(&policy, &ideal, 3).unwrap();
        let found = Check::of(&Job::new(&policy, &ideal, 3), &program).warnings;
        let found = found.into_iter().map(|warning| warning.message);
        found.filter(|message| message.contains("may pass in a second")).collect()
    };
    assert_eq!(
        warnings("h"),
        [
            "up to 1500 packets of `x` may pass in a second, not 1000: a worker of another group receives some of them, too"
        ]
    );
    assert_eq!(warnings("g"), Vec::<String>::new());
}

#[test]
fn rules_that_the_device_drops_are_not_recorded() {
    let noted = |recorder: &str| {
        let text = format!(
            "version = 1\n{recorder}[groups.g]\nworkers = [0]\n\
             [[rules]]\nname = \"ssh\"\nmatch = {{ dst_port = 22, protocol = \"tcp\" }}\naction = \"kernel\"\n\
             [[rules]]\nname = \"scan\"\nmatch = {{ src = \"198.51.100.0/24\" }}\naction = \"drop\"\n\
             [[rules]]\nname = \"web\"\nmatch = {{ dst_port = 443, protocol = \"tcp\" }}\naction = \"steer g\"\n"
        );
        warnings(&text).into_iter().filter(|warning| warning.contains("recorder")).collect::<Vec<_>>()
    };
    assert_eq!(noted(""), [""; 0]);
    let all = noted("[recorder]\nmemory = \"1 MiB\"\n");
    assert!(
        all.len() == 1 && all[0].contains("does not see packets of `scan` that the device drops"),
        "{all:?}"
    );
    let listed = |rules: &str| noted(&format!("[recorder]\nmemory = \"1 MiB\"\nrules = [{rules}]\n"));
    assert_eq!(listed("\"web\""), [""; 0]);
    let left = listed("\"ssh\", \"scan\"");
    assert!(left[0].contains("of `ssh` and of 1 more"), "{left:?}");
}

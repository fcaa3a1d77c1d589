//! Policies compiled for device models at and between the ends of what a file may say: no panic, in bounded
//! time, and one error for a device that cannot steer.

use std::path::Path;
use std::time::Duration;

use device_model::{DeviceModel, Feature};
use policy::{NoFiles, Policy, Source};
use proptest::prelude::*;
use reports::Decided;

/// The most time for one of the policies: a machine may be busy.
const TIME: Duration = Duration::from_secs(20);

fn policies() -> Vec<Policy> {
    let head = "version = 1\n[groups.g]\nworkers = \"all\"\nhash = \"l3l4\"\n[groups.one]\nworkers = [0]\nhash = \"none\"\n";
    let rule = |name: &str, keys: &str, action: &str| {
        format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {keys} }}\naction = {action}\n")
    };
    let all = [
        rule("dns", "protocol = \"udp\", dst_port = 53", "{ steer = \"g\" }"),
        rule(
            "range",
            "protocol = \"tcp\", dst_port = \"1000-1999\", src = \"10.0.0.0/8\"",
            "{ steer = \"one\" }",
        ),
        rule("not", "protocol = \"tcp\", src = \"10.1.0.0/16\"", "\"kernel\""),
        rule("drop", "dst = \"192.0.2.0/24\", ttl = \"0-4\"", "\"drop\""),
        rule("v6", "family = \"ipv6\", traffic_class = 184", "{ steer = \"g\" }"),
        rule("tunnel", "vxlan_vni = 7, inner.protocol = \"udp\"", "{ steer = \"one\" }"),
        rule("group", "dst_mac = \"01:00:5e:00:00:01\"", "{ steer = \"one\" }"),
        rule("mpls", "mpls = [{ label = 9 }]", "{ steer = \"one\" }"),
    ];
    let chain: Vec<String> = (0..12)
        .map(|n| {
            rule(
                &format!("c{n}"),
                &format!("src = \"10.{n}.0.0/16\", dst_port = \"{n}-{}\"", 900 + n),
                "{ steer = \"g\" }",
            )
        })
        .collect();
    let texts = [all.concat(), all[..1].concat(), chain.concat(), String::new()];
    let parse = |text: &String| {
        let source = Source::new("p.toml", format!("{head}{text}"));
        policy::parse(&source, &NoFiles).unwrap_or_else(|problems| panic!("{problems}")).0
    };
    texts.iter().map(parse).collect()
}

/// A number of a range, at its ends as often as between.
fn number(least: u32, most: u32) -> impl Strategy<Value = u32> {
    prop_oneof![Just(least), Just(most), least..=most, least..=least.saturating_add(40).min(most)]
}

fn limit(least: u32) -> impl Strategy<Value = Option<u32>> {
    prop_oneof![Just(None), number(least, u32::MAX).prop_map(Some)]
}

prop_compose! {
    /// The text of a file.
    fn model()(
        (priorities, max_specs, max_table) in (number(2, 1 << 16), number(1, 255), number(1, 1 << 16)),
        tag_bits in prop_oneof![Just(0), Just(24), Just(32)],
        limits in (limit(2), limit(1), limit(2), limit(2), limit(1), limit(0), limit(0)),
        table in prop::option::of((number(1, 1 << 20), number(1, 64))),
        flags in prop::array::uniform4(any::<bool>()),
        refused in prop::collection::vec((prop::sample::select(Feature::ALL.to_vec()), prop::sample::select(vec!["EINVAL", "SILENT", "EREMOTEIO"])), 0..12),
    ) -> String {
        let mut text = format!(
            "name = \"nic\"\npriorities = {priorities}\nmax_specs = {max_specs}\nmax_table = {max_table}\ntag_bits = {tag_bits}\n"
        );
        let (flows, shapes, queues, tables, receives, counters, copies) = limits;
        for (key, value) in [
            ("max_flows", flows), ("max_shapes", shapes), ("max_queues", queues), ("max_tables", tables),
            ("max_receives", receives), ("max_counters", counters), ("max_copies", copies),
        ] {
            if let Some(value) = value {
                text += &format!("{key} = {value}\n");
            }
        }
        if let Some((entries, groups)) = table {
            let groups = groups.min(entries);
            text += &format!("priority_table = {{ entries = {entries}, groups = {groups}, group_entries = {} }}\n", entries / groups);
        }
        for (key, on) in ["hash_field_exclusive", "hash_field_pairs", "table_consecutive", "multicast_ignores_priority"].iter().zip(flags) {
            text += &format!("{key} = {on}\n");
        }
        let mut seen = Vec::new();
        text += "refusals = [\n";
        for (feature, errno) in refused {
            if !seen.contains(&feature) {
                seen.push(feature);
                let feature = serde_json::to_value(feature).expect("plain data");
                text += &format!("{{ feature = {feature}, errno = \"{errno}\", source = \"x\" }},\n");
            }
        }
        text + "]\n"
    }
}

proptest! {
    #[test]
    fn any_model_that_is_read_can_be_compiled_for(text in model()) {
        let profile = DeviceModel::parse(Path::new("nic.toml"), &text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        for policy in policies() {
            let started = test_support::CpuTime::now();
            let report = reports::report(&policy, &profile, 3, None);
            prop_assert!(started.elapsed() < TIME, "{:?} for\n{text}", started.elapsed());
            prop_assert_eq!(report.program.is_none(), !report.problems.is_empty());
            if let Some(program) = &report.program {
                prop_assert!(profile.can_steer());
                prop_assert!(u32::from(program.priorities_used) <= profile.priorities_per_program());
                prop_assert!(profile.max_flows.is_none_or(|most| program.flows.len() <= most as usize));
                prop_assert!(profile.max_queues.is_none_or(|most| program.queues.len() <= most as usize));
            }
        }
    }
}

#[test]
fn a_device_that_cannot_steer_is_refused_once_with_its_reason() {
    for name in ["mana", "bnxt_re"] {
        let profile = DeviceModel::by_name(name).expect("built in");
        for policy in policies() {
            let problems = compiler::compile(&policy, &profile, 2).expect_err("no flows");
            assert_eq!(problems.list.len(), 1, "{problems}");
            let text = problems.to_string();
            for words in
                [name, "cannot steer", "no flows", "EOPNOTSUPP", "use one whose driver has ibv_create_flow"]
            {
                assert!(text.contains(words), "{words} in: {text}");
            }
            let report = reports::report(&policy, &profile, 2, None);
            assert_eq!(report.obstacles.len(), 1);
            assert_eq!(report.rules.len(), policy.rules.len());
            assert!(
                report.rules.iter().all(|rule| rule.decided == Decided::Unknown && rule.reason.is_none())
            );
        }
    }
}

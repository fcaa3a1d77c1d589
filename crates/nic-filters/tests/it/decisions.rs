//! The decisions of a NIC compared with the policy, rule by rule.

use nic_filters::{CarveRefusal, Carving, FilterModel, Ledger, ModelledNic, RuleRefusal};
use packet::FlowKey;
use policy::Policy;

use crate::support::{
    MemoryStore, Numbers, QUEUES, carved, decided, decision, model, packets, policy, room, rule, ternary,
};

/// The NIC with the filters of a policy.
fn installed(policy: &Policy, model: &FilterModel) -> Result<ModelledNic, CarveRefusal> {
    let wanted = carved(policy, model)?;
    let nic = ModelledNic::new(model.clone(), QUEUES);
    let mut carving =
        Carving::open(nic.clone(), MemoryStore::default(), model.clone(), Ledger::default()).expect("opens");
    let summary = carving.change(&wanted).expect("the NIC takes what its model allows");
    assert_eq!(summary.inserted, wanted.filters.len());
    Ok(nic)
}

fn assert_decides(nic: &ModelledNic, policy: &Policy, keys: &[FlowKey]) {
    let filters = nic.filters();
    for key in keys {
        assert_eq!(decided(nic, &filters, key), Some(decision(policy, key)), "{key:?}\n{filters:#?}");
    }
}

#[test]
fn captured_packets_meet_the_rules_of_the_policy() {
    let Some(folder) = test_support::corpora("pcaps") else { return };
    let rules = [
        rule("kernel-dns", "protocol = 'udp', dst_port = 53, dst = '10.0.0.0/8'", "kernel"),
        rule("dns", "protocol = 'udp', dst_port = 53", "one"),
        rule("web", "protocol = 'tcp', dst_port = [80, 443, 8080]", "many"),
        rule("high", "protocol = 'tcp', src_port = '1024-2047'", "two"),
        rule("v6", "family = 'ipv6', src = 'fe80::/10', protocol = 'icmpv6'", "drop"),
        rule("lan", "src = '192.168.0.0/16'", "two"),
        rule("lldp", "ethertype = 'lldp'", "drop"),
    ];
    let policy = policy(&rules.concat());
    let nic = installed(&policy, &ternary()).expect("a ternary memory has all of these");
    let mut met = 0;
    for (_, file) in test_support::captures(&folder) {
        let keys: Vec<FlowKey> = test_support::frames(&file).into_iter().map(FlowKey::of).collect();
        assert_decides(&nic, &policy, &keys);
        met += keys.iter().filter(|key| decision(&policy, key) != nic_filters::NicDecision::Kernel).count();
    }
    assert!(met > 100, "{met} captured packets meet a rule");
}

#[test]
fn random_policies_decide_alike_where_locations_order_filters() {
    let (keys, mut numbers) = (packets(), Numbers::new(1));
    let mut carvable = 0;
    for _ in 0..60 {
        let rules = numbers.policy(8, &["one", "two", "many", "drop", "kernel"], false);
        let policy = policy(&rules);
        if let Ok(nic) = installed(&policy, &ternary()) {
            assert_decides(&nic, &policy, &keys);
            carvable += 1;
        }
    }
    assert!(carvable > 50, "{carvable} policies");
}

#[test]
fn random_policies_decide_alike_or_are_refused_without_an_order() {
    let (keys, mut numbers) = (packets(), Numbers::new(2));
    for name in ["mlx5", "ixgbe", "mlx4", "bnxt", "fbnic", "cautious"] {
        let (model, mut carvable) = (model(name), 0);
        for _ in 0..60 {
            let actions: &[&str] = if model.has_contexts { &["one", "many"] } else { &["one"] };
            let policy = policy(&numbers.policy(2, actions, true));
            if let Ok(nic) = installed(&policy, &model) {
                assert_decides(&nic, &policy, &keys);
                carvable += 1;
            }
        }
        assert!(carvable > 5, "{name}: {carvable} policies");
    }
}

#[test]
fn fields_that_are_only_compared_whole_become_several_filters() {
    let policy = policy(&rule(
        "r",
        "family = 'ipv4', protocol = 'udp', dst = '10.0.0.0/30', dst_port = '80-81'",
        "one",
    ));
    let wanted = carved(&policy, &model("mlx4")).expect("8 filters");
    assert_eq!(wanted.filters.len(), 8);
    assert_decides(&installed(&policy, &model("mlx4")).expect("room"), &policy, &packets());
    assert_eq!(carved(&policy, &model("mlx5")).expect("masks").filters.len(), 1);
}

fn refusal(rules: &[String], model: &FilterModel) -> Option<RuleRefusal> {
    carved(&policy(&rules.concat()), model).expect_err("no NIC can").rules.into_values().next()
}

#[test]
fn what_no_filter_can_do_is_refused_with_the_reason() {
    let one = |matches: &str, name: &str| refusal(&[rule("r", matches, "one")], &model(name));
    let needs_worker = |found: &Option<RuleRefusal>| matches!(found, Some(RuleRefusal::NeedsWorker { .. }));
    assert!(needs_worker(&one("protocol = 'tcp', tcp_flags = 'syn'", "mlx5")), "no field");
    assert!(needs_worker(&one("ttl = 1", "mlx5")), "no field in the structure");
    assert!(matches!(
        one("family = 'ipv4', protocol = 'udp', dst = '10.0.0.0/8'", "mlx4"),
        Some(RuleRefusal::Mask { .. })
    ));
    assert!(matches!(one("family = 'ipv4', protocol = 'icmp'", "bnxt"), Some(RuleRefusal::Kind(_))));
    let overlapping = |group| {
        [
            rule("a", "protocol = 'udp', dst_port = 53", "one"),
            rule("b", "protocol = 'udp', dst = '10.0.0.1'", group),
        ]
    };
    assert!(
        matches!(refusal(&overlapping("two"), &model("mlx5")), Some(RuleRefusal::Overlap { .. })),
        "no order"
    );
    assert!(carved(&policy(&overlapping("one").concat()), &model("mlx5")).is_ok(), "no order is needed");
    let overlapping = overlapping("two");
    assert!(carved(&policy(&overlapping.concat()), &ternary()).is_ok());
    let masks = [
        rule("a", "family = 'ipv4', protocol = 'udp', dst_port = 53", "one"),
        rule("b", "family = 'ipv4', protocol = 'tcp', dst = '10.0.0.1'", "one"),
    ];
    assert!(matches!(refusal(&masks, &model("ixgbe")), Some(RuleRefusal::OtherMasks { .. })));
    let many = [rule("r", "family = 'ipv4', protocol = 'udp', dst_port = 53", "many")];
    assert_eq!(refusal(&many, &model("ixgbe")), Some(RuleRefusal::NoContexts));
    let far = policy(&rule("r", "protocol = 'udp', dst_port = 53", "many"));
    let program = compiler::compile(&far, &model("mlx5").device(room(5)), 8).expect("compiles");
    let refused = nic_filters::carve(&program, &model("mlx5"), room(5)).expect_err("there are 5 queues");
    let found = refused.rules.into_values().next().expect("one rule");
    assert_eq!(found, RuleRefusal::NoQueue { queue: 5, queues: 5 });
    assert!(found.explain(&program).0.contains("no queue 5"));
}

#[test]
fn more_filters_than_half_of_the_table_are_refused() {
    let carved = |range: &str| {
        let text = format!("family = 'ipv4', protocol = 'udp', dst_port = '{range}'");
        let (policy, model) = (policy(&rule("r", &text, "one")), model("mlx4"));
        let program = compiler::compile(&policy, &model.device(room(QUEUES)), QUEUES as usize);
        nic_filters::carve(&program.expect("few flows"), &model, room(QUEUES))
    };
    let refused = carved("256-511").expect_err("256 filters");
    assert_eq!((refused.too_many, refused.rules.len()), (Some(128), 0));
    assert_eq!(carved("256-383").expect("128 filters").filters.len(), 128);
}

#[test]
fn an_unknown_table_has_a_named_limit() {
    let model = FilterModel { filters: None, ..model("mlx4") };
    let rules: Vec<String> = (1..=17)
        .map(|subnet| {
            let text = format!("family = 'ipv4', protocol = 'udp', dst = '10.0.{subnet}.0/24'");
            rule(&format!("r{subnet}"), &text, "one")
        })
        .collect();
    assert_eq!(carved(&policy(&rules.concat()), &model).expect_err("17 times 256").too_many, Some(4096));
    assert_eq!(carved(&policy(&rules[..16].concat()), &model).expect("16 times 256").filters.len(), 4096);
}

//! The trace of a rule set: for every packet `explain` names the rule that is first to match it.

use std::sync::Arc;

use crate::support;
use device_model::DeviceModel;
use packet::{EtherType, FlowKey, Layers};
use policy::import::{ClassBench, classbench_with};
use policy::{NoFiles, Source};

/// Source, destination, ports and protocol; ports count for TCP and UDP alone.
fn key(line: &str) -> FlowKey {
    let columns: Vec<u32> = line.split_whitespace().map(|column| column.parse().expect("a number")).collect();
    let address = |number: u32| {
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&number.to_be_bytes());
        octets
    };
    let low = |number: u32| u16::try_from(number).expect("16 bits");
    let transport = match columns[4] {
        6 => Layers::TCP,
        17 => Layers::UDP,
        _ => Layers::empty(),
    };
    FlowKey {
        layers: Layers::IPV4 | transport,
        ether_type: EtherType::IPV4.0,
        src_ip: address(columns[0]),
        dst_ip: address(columns[1]),
        protocol: u8::try_from(columns[4]).expect("8 bits"),
        src_port: low(columns[2]),
        dst_port: low(columns[3]),
        ..FlowKey::default()
    }
}

#[test]
fn explain_names_the_expected_rule_for_every_packet_of_the_trace() {
    let Some(rules) = support::corpora("rules") else { return };
    let read = |name: &str| std::fs::read_to_string(rules.join(name)).expect("the corpora are there");
    // The expectations leave TCP flags out.
    let imported = classbench_with(&read("acl_1k"), ClassBench { tcp_flags: false }).expect("a filter set");
    let source: Arc<Source> = Arc::new(Source::new("acl_1k", imported.policy_toml));
    let (policy, _) = policy::parse(&source, &NoFiles).expect("a policy");
    let trace = read("acl_1k_trace");
    let packets: Vec<FlowKey> = trace.lines().map(key).collect();
    for profile in [DeviceModel::ideal(), DeviceModel::mlx5()] {
        let Ok(program) = compiler::compile(&policy, &profile, 1) else {
            assert_ne!(profile.name, "ideal", "it must fit there");
            continue;
        };
        let mut compared = 0;
        for line in read("acl_1k_expected.tsv").lines() {
            let mut columns = line.split('\t').map(|column| column.parse::<usize>().expect("a number"));
            let (packet, first) = (columns.next().expect("a line"), columns.next().expect("a rule"));
            let outcome = program.explain(&packets[packet]).outcome;
            let name = &program.rules[outcome.rule.index()].name;
            assert_eq!(*name, format!("r{first}"), "{}: line {packet}", profile.name);
            compared += 1;
        }
        assert_eq!(compared, packets.len());
    }
}

//! On a software NIC whose model has `ns_per_group`, packets pass the groups of flows that the compiler
//! predicts for the program.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::{Feed, ScriptWire, nic_of, small};
use compiler::FlowGroups;
use control::{Controller, Device, DeviceSelector};
use device_model::{DeviceModel, PriorityTable};
use packet::build::FrameBuilder;
use packet::{FlowKey, MacAddr};
use policy::{NoFiles, Source};
use program::{FlowKind, Program};
use softnic::{Drive, Personality};
use softnic_verbs::SoftNic;
use worker::Worker;

/// Flows of many masks and several priorities, flows that copy, and one for multicast alone.
const POLICY: &str = r#"
version = 1
[groups.a]
workers = [0]
hash = "none"
[[rules]]
name = "copied"
match = { protocol = "udp", dst_port = 7 }
action = { copy = "a" }
[[rules]]
name = "mdns"
match = { dst_mac = "multicast", protocol = "udp", dst_port = 5353 }
action = { steer = "a" }
[[rules]]
name = "host"
match = { dst = "10.1.2.3" }
action = "drop"
[[rules]]
name = "pair"
match = { src = "10.0.0.0/24", dst = "10.1.2.0/24" }
action = { steer = "a" }
[[rules]]
name = "web"
match = { protocol = "tcp", dst_port = 80 }
action = { steer = "a" }
[[rules]]
name = "networks"
match = { dst = ["10.1.0.0/16", "10.64.0.0/11", "10.128.0.0/12", "10.160.0.0/12"] }
action = { steer = "a" }
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "a" }
[[rules]]
name = "far"
match = { src = "10.0.0.0/8", dst = "10.0.0.0/8" }
action = "drop"
"#;

fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for dst in [
        [10, 1, 2, 3],
        [10, 1, 2, 4],
        [10, 1, 9, 9],
        [10, 65, 0, 1],
        [10, 165, 0, 1],
        [10, 3, 0, 1],
        [192, 0, 2, 1],
    ] {
        for src in [[10, 0, 0, 1], [10, 0, 7, 1], [192, 0, 2, 9]] {
            for mac in [[2, 0, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 0xfb]] {
                let frame = || {
                    let ethernet = FrameBuilder::new().ethernet(MacAddr(mac), MacAddr([2, 0, 0, 0, 0, 9]));
                    ethernet.ipv4(src.into(), dst.into())
                };
                frames.extend([7, 53, 5353].map(|port| frame().udp(1, port).build()));
                frames.push(frame().tcp(1, 80, 2).build());
            }
        }
    }
    frames
}

/// A soft NIC with a program of the policy that is compiled for it.
struct Stage {
    nic: SoftNic,
    feed: Feed,
    program: Arc<Program>,
}

impl Stage {
    /// Calls `body` while the program is installed.
    fn with(name: &str, model: &DeviceModel, body: impl FnOnce(&Self)) {
        let feed = Feed::default();
        let nic = nic_of(Personality::of(model.clone()), name, Drive::Manual, vec![ScriptWire::of(&feed)]);
        let device = Device::open(&DeviceSelector::named(name), Some(&nic)).expect("the soft NIC opens");
        let worker = Worker::new(device.context(), small(0)).expect("a worker");
        let mut controller =
            Controller::new(&device, vec![1], vec![worker.work_queue()]).expect("a controller");
        let (policy, _) = policy::parse(&Source::new("p.toml", POLICY), &NoFiles).expect("a policy");
        let program = compiler::compile(&policy, &model.clone().in_software(), 1).expect("a program");
        let program = Arc::new(program);
        controller.install(Arc::clone(&program), &mut |_| Ok(())).expect("it is installed");
        let stage = Self { nic, feed, program };
        body(&stage);
        controller.clear().expect("it is removed");
    }

    /// The groups that one frame passes.
    fn groups_of(&self, frame: &[u8]) -> u64 {
        let before = self.nic.groups_passed();
        self.feed.lock().expect("feed").push_back(frame.to_vec());
        self.nic.pump(1);
        self.nic.groups_passed() - before
    }
}

/// Two groups for each priority, then groups of one flow.
fn model(ns_per_group: Option<u32>) -> DeviceModel {
    DeviceModel {
        name: "groups".to_owned(),
        priority_table: Some(PriorityTable { entries: 256, groups: 2, group_entries: 16 }),
        ns_per_group,
        multicast_ignores_priority: true,
        ..DeviceModel::ideal()
    }
}

#[test]
fn packets_pass_the_predicted_groups() {
    let model = model(Some(1));
    Stage::with("groups0", &model, |stage| {
        let program = &stage.program;
        assert!(program.flows.iter().any(|flow| flow.kind == FlowKind::Copy) && program.priorities_used > 1);
        let groups = FlowGroups::of(program, &model).expect("the model has groups");
        let mut passed = BTreeSet::new();
        for frame in frames() {
            let explained = program.explain(&FlowKey::of(&frame));
            let expected = groups.passed(explained.flow);
            assert_eq!(stage.groups_of(&frame), expected, "{explained:?}\n{program}");
            passed.insert(expected);
        }
        assert!(passed.len() > 6 && passed.contains(&groups.passed(None)), "{passed:?}");
    });
}

#[test]
fn groups_without_a_price_are_not_counted() {
    for (name, price) in [("groups1", None), ("groups2", Some(0))] {
        Stage::with(name, &model(price), |stage| {
            let all: u64 = frames().iter().map(|frame| stage.groups_of(frame)).sum();
            assert_eq!((all, stage.nic.port_stats(1).rx_frames), (0, frames().len() as u64));
        });
    }
}

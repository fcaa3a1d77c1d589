//! A daemon with two soft NICs: what one receives leaves by the other.

use crate::support::{stderr, stdout, steerd};
use packet::build::FrameBuilder;

const POLICY: &str = r#"
version = 1
default = "kernel"
[sinks.out]
kind = "forward"
device = "softnic1"
port = 1
[groups.main]
workers = "all"
sinks = "out"
[[rules]]
name = "udp"
match = { protocol = "udp" }
action = { steer = "main" }
"#;

const SETTINGS: &str = r#"
[policy]
file = "p.toml"
[http]
listen = "off"
[api]
enabled = false
[workers]
cores = 2
pages = ["plain"]
[[softnic.ports]]
wire = { kind = "pcap", path = "in.pcap", mode = "once" }
[[softnic.others]]
name = "softnic1"
ports = [{ wire = { kind = "pcap", path = "none.pcap", mode = "once", output = "out.pcap" } }]
"#;

#[test]
fn packets_leave_by_a_second_soft_nic() {
    const COUNT: u16 = 500;
    let folder = tempfile::tempdir().expect("folder");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("written");
    let udp =
        |port| FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(port, 7).build();
    let frames: Vec<_> = (1..=COUNT).map(udp).collect();
    write("in.pcap", &test_support::capture(&frames));
    write("none.pcap", &test_support::capture(&[]));
    write("p.toml", POLICY.as_bytes());
    write("s.toml", SETTINGS.as_bytes());
    // It ends when the capture does.
    let mut command = steerd();
    command.args(["run", "--format", "json", "--config"]).arg(folder.path().join("s.toml"));
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(summary["accounting"]["matches"], true, "{summary:#}");
    let other = &summary["other_devices"][0];
    assert_eq!((&other["name"], &other["engine_stalled"]), (&"softnic1".into(), &false.into()));
    assert_eq!((&other["ports"][0]["sent_packets"], &other["ports"][0]["port"]), (&COUNT.into(), &1.into()));
    let sent = std::fs::read(folder.path().join("out.pcap")).expect("the output");
    let mut missing = frames.iter().filter(|frame| !sent.windows(frame.len()).any(|part| part == *frame));
    assert!(missing.next().is_none());
}

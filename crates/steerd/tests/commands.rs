//! check, explain and devices: what they print and what they exit with.

mod support;

use std::path::Path;
use std::process::Output;

use packet::build::FrameBuilder;
use packet::{EtherType, MacAddr};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use support::{config, stderr, stdout, steerd};

/// In config/policies, so that file names in the output do not depend on where the repository is.
fn run(args: &[&str]) -> Output {
    steerd().current_dir(config().join("policies")).args(args).output().expect("the binary runs")
}

fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(args)).expect("JSON")
}

#[test]
fn check_says_for_every_rule_where_it_is_decided() {
    insta::assert_snapshot!("check_demo", ok(&["check", "demo.toml"]));
    insta::assert_snapshot!("check_dns_farm", ok(&["check", "dns-farm.toml"]));
}

#[test]
fn check_in_json_says_the_same() {
    let report = json(&["check", "demo.toml", "--format", "json"]);
    assert_eq!(report["ok"], true);
    let rules = report["check"]["rules"].as_array().expect("rules");
    let placement = |name: &str| {
        let rule = rules.iter().find(|rule| rule["name"] == name).expect(name);
        rule["placement"]["kind"].as_str().expect("kind").to_owned()
    };
    assert_eq!(placement("web-syn"), "hybrid");
    assert_eq!(placement("dns"), "hardware");
}

#[test]
fn a_broken_policy_is_answered_with_all_its_problems_and_exit_code_1() {
    let folder = tempfile::tempdir().expect("folder");
    let policy =
        "version = 1\n[[rules]]\nname = \"a\"\nmatch = { dst_prot = 53 }\naction = { steer = \"nobody\" }\n";
    std::fs::write(folder.path().join("broken.toml"), policy).expect("written");
    let output = steerd().current_dir(folder.path()).args(["check", "broken.toml"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let errors = stderr(&output);
    assert!(errors.contains("broken.toml:4:"), "{errors}");
    assert!(errors.contains("dst_prot") && errors.contains("nobody"), "both at once: {errors}");
    assert!(errors.contains("steerd: broken.toml: 2 errors in the policy"), "{errors}");
    let output = steerd()
        .current_dir(folder.path())
        .args(["check", "broken.toml", "--format", "json"])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["ok"], false);
    assert_eq!(report["diagnostics"].as_array().map(Vec::len), Some(2), "{report:#}");
}

#[test]
fn a_policy_that_is_not_there_is_an_error() {
    let output = run(&["check", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nowhere.toml"), "{}", stderr(&output));
}

const DNS: &str = "src=10.1.0.1,dst=192.0.2.53,protocol=udp,src_port=1024,dst_port=53";

#[test]
fn explain_follows_a_packet_to_its_worker() {
    insta::assert_snapshot!("explain_dns", ok(&["explain", "demo.toml", "--packet", DNS]));
    let syn = "src=10.2.0.1,dst=192.0.2.80,protocol=tcp,src_port=1,dst_port=443,tcp_flags=syn";
    insta::assert_snapshot!("explain_syn", ok(&["explain", "demo.toml", "--packet", syn]));
    let scan = "src=198.51.100.9,dst=192.0.2.80,protocol=tcp,dst_port=443";
    insta::assert_snapshot!("explain_scan", ok(&["explain", "demo.toml", "--packet", scan]));
    insta::assert_snapshot!("explain_arp", ok(&["explain", "demo.toml", "--packet", "ethertype=arp"]));
}

fn dns_frame() -> FrameBuilder {
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    let address = |text: &str| text.parse().expect("address");
    FrameBuilder::new().ethernet(mac(1), mac(2)).ip(address("10.1.0.1"), address("192.0.2.53")).udp(1024, 53)
}

#[test]
fn a_packet_in_hexadecimal_is_the_same_packet() {
    let hex: String = dns_frame().build().iter().map(|byte| format!("{byte:02x} ")).collect();
    let from_hex = json(&["explain", "demo.toml", "--format", "json", "--hex", &hex]);
    let from_fields = json(&["explain", "demo.toml", "--format", "json", "--packet", DNS]);
    assert_eq!(from_hex, from_fields);
    assert_eq!(from_hex["rule"], "dns");
    assert!(from_hex["worker"].is_u64(), "{from_hex}");
}

#[test]
fn a_frame_without_an_ethernet_header_is_nobodys() {
    for hex in ["0000", "00112233445566778899aabbcc"] {
        let output = run(&["explain", "demo.toml", "--hex", hex]);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        assert!(stderr(&output).contains("runt"), "{}", stderr(&output));
    }
    let output = run(&["explain", "demo.toml", "--hex", "00112233445566778899aabbccdd"]);
    assert!(output.status.success(), "14 bytes are a header: {}", stderr(&output));
}

#[test]
fn a_reader_that_goes_away_hides_no_failure() {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("broken.toml"), "version = 1\nrulez = []\n").expect("written");
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("pipe");
        drop(reader);
        writer
    };
    let mut command = steerd();
    command.current_dir(folder.path()).args(["check", "broken.toml", "--format", "json"]).stdout(closed());
    assert_eq!(command.status().expect("it runs").code(), Some(1), "the policy is still broken");
    let mut command = steerd();
    command.current_dir(config().join("policies")).args(["check", "demo.toml"]).stdout(closed());
    assert_eq!(command.status().expect("it runs").code(), Some(0), "as with `| head`");
}

#[test]
fn an_absent_device_is_not_approved() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("s.toml");
    std::fs::write(&path, "[device]\nname = \"mlx5_99\"\n[workers]\ncores = 2\n").expect("written");
    let path = path.to_str().expect("path");
    for command in [&["check"][..], &["explain", "--packet", DNS]] {
        let mut args = command.to_vec();
        args.extend(["--config", path, "demo.toml"]);
        let output = run(&args);
        assert_eq!(output.status.code(), Some(4), "{}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains("device"), "{}", stderr(&output));
        args.extend(["--profile", "ideal"]);
        assert!(run(&args).status.success(), "{args:?}: for a device that need not be there");
    }
}

fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let file = std::fs::File::create(path).expect("created");
    let mut writer = PcapWriter::new(file).expect("header");
    for frame in frames {
        let length = u32::try_from(frame.len()).expect("length");
        let packet = PcapPacket::new(std::time::Duration::ZERO, length, frame);
        writer.write_packet(&packet).expect("packet");
    }
}

#[test]
fn a_capture_is_summed_up_per_rule_and_worker() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("c.pcap");
    let tagged = dns_frame().vlan(EtherType::VLAN, 42).build();
    write_pcap(&path, &[dns_frame().build(), dns_frame().build(), tagged, vec![0; 10]]);
    let path = path.to_str().expect("path");
    let summary = json(&["explain", "demo.toml", "--pcap", path, "--format", "json"]);
    assert_eq!(summary["packets"], 4);
    assert_eq!(summary["runts"], 1);
    assert_eq!(summary["rules"]["dns"]["deliver"]["packets"], 3, "{summary}");
    let each = ok(&["explain", "demo.toml", "--pcap", path, "--each"]);
    assert_eq!(each.lines().filter(|line| line.contains("rule=dns ")).count(), 3, "{each}");
    assert!(each.contains("without an Ethernet header: 1"), "{each}");
}

#[test]
fn explain_refuses_what_it_cannot_understand() {
    for (args, part) in [
        (["--packet", "dst_port=53"], "protocol"),
        (["--packet", "colour=red"], "colour"),
        (["--hex", "zz"], "hexadecimal"),
        (["--pcap", "demo.toml"], "pcap"),
        (["--pcap", "nowhere.pcap"], "nowhere.pcap"),
    ] {
        let output = run(&["explain", "demo.toml", args[0], args[1]]);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let errors = stderr(&output);
        assert!(errors.contains(part), "{args:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn devices_lists_the_soft_nic_of_the_settings() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("s.toml");
    let text = "[softnic]\nname = \"mysoft\"\n[[softnic.ports]]\nwire = { kind = \"null\" }\n";
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("path");
    let devices = json(&["devices", "--config", path, "--format", "json"]);
    let found = devices.as_array().expect("list").iter().find(|device| device["name"] == "mysoft");
    assert_eq!(found.expect("mysoft")["ports"], 1);
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    assert_eq!(run(&["run", "--for", "soon"]).status.code(), Some(2));
    assert_eq!(run(&["steer"]).status.code(), Some(2));
}

#[test]
fn help_lists_the_exit_codes() {
    let help = ok(&["--help"]);
    assert!(help.contains("Exit codes:") && help.contains("second Ctrl-C"), "{help}");
}

//! `steerd explain --pcap`: the summary of a capture.

use packet::build::FrameBuilder;
use packet::{EtherType, MacAddr};

use super::rig::{dns_frame, json, ok, policies, run, run_in, write_pcap};
use crate::support::{stderr, stdout};

#[test]
fn a_capture_is_summed_by_rule_and_worker() {
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

/// The link-type word holds the length of the check sequence in its upper bits (pcap-savefile(5)).
#[test]
fn frame_check_sequences_are_removed() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("c.pcap");
    let frame = dns_frame().build();
    write_pcap(&path, &[[&frame[..], &[0xde, 0xad, 0xbe, 0xef]].concat()]);
    let plain = std::fs::read(&path).expect("written");
    for (word, fcs_bytes) in [(1u32, 0), (0x4000_0001, 0), (0x2400_0001, 4)] {
        let mut file = plain.clone();
        file[20..24].copy_from_slice(&if plain[0] == 0xa1 { word.to_be_bytes() } else { word.to_le_bytes() });
        std::fs::write(&path, file).expect("written");
        let path = path.to_str().expect("path");
        let summary = json(&["explain", "demo.toml", "--pcap", path, "--format", "json"]);
        let bytes = &summary["rules"]["dns"]["deliver"]["bytes"];
        assert_eq!(*bytes, frame.len() + 4 - fcs_bytes, "{word:#010x}: {summary}");
    }
}

#[test]
fn a_summary_has_the_balance_of_each_group() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("c.pcap");
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    let frame = |client: u8| {
        let (src, dst) = ([10, 0, 0, client].into(), [192, 0, 2, 80].into());
        FrameBuilder::new().ethernet(mac(1), mac(2)).ipv4(src, dst).tcp(1024, 443, 0x10).build()
    };
    let frames: Vec<Vec<u8>> = (0..200).map(frame).collect();
    write_pcap(&path, &frames);
    let path = path.to_str().expect("path");
    let summary = json(&["explain", "ipfix-tap.toml", "--pcap", path, "--format", "json"]);
    assert_eq!(summary["rules"]["tap"]["copy"]["packets"], 200, "{summary:#}");
    assert_eq!(summary["rules"]["front"]["deliver"]["packets"], 200);
    assert_eq!(summary["workers"]["2"]["packets"], 200, "all copies");
    let largest = summary["balance"]["front"]["largest_to_mean"].as_f64().expect("a ratio");
    assert!((1.0..1.5).contains(&largest), "{summary:#}");
    let text = ok(&["explain", "ipfix-tap.toml", "--pcap", path]);
    assert!(text.contains("largest/mean") && text.contains("50%"), "{text}");
}

#[test]
fn a_capture_of_sent_packets_is_summed() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("c.pcap");
    let frame = |src: [u8; 4], port| {
        FrameBuilder::new().ipv4(src.into(), [198, 51, 100, 1].into()).tcp(1024, port, 0x10).build()
    };
    let (ours, relay) = ([192, 0, 2, 7], [192, 0, 2, 10]);
    write_pcap(&path, &[frame(ours, 25), frame(ours, 443), frame(relay, 443), frame([10, 0, 0, 1], 443)]);
    let path = path.to_str().expect("path");
    let args = ["explain", "egress-guard.toml", "--pcap", path, "--direction", "egress"];
    let summary = json(&[&args[..], &["--format", "json"]].concat());
    assert_eq!(summary["rules"]["no-mail"]["drop"]["packets"], 1, "{summary:#}");
    assert_eq!(summary["rules"]["no-spoofing"]["drop"]["packets"], 1, "{summary:#}");
    assert_eq!(summary["no_rule"]["packets"], 2, "{summary:#}");
    assert_eq!(summary["workers"], serde_json::json!({}), "no worker gets what is sent");
    let each = ok(&[&args[..], &["--each"]].concat());
    assert!(each.contains("1  rule=no-mail action=drop") && each.contains("sent by the host"), "{each}");
    // A sniffer gets copies of sent packets.
    let sniffing = "version = 1\n[groups.ear]\nworkers = [0, 1]\n[[rules]]\nname = \"hear\"\n\
        match = { protocol = \"tcp\" }\naction = { sniff = \"ear\" }\n[[rules]]\nname = \"no-mail\"\n\
        match = { dst_port = 25 }\naction = \"drop\"\ndirection = \"egress\"\n";
    let folder = policies(&[("p", sniffing)]);
    let output =
        run_in(&folder, &["explain", "p", "--pcap", path, "--direction", "egress", "--format", "json"]);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(summary["rules"]["hear"]["copy"]["packets"], 3, "{summary:#}");
    assert_eq!(summary["workers"]["0"]["packets"], 3, "{summary:#}");
}

#[test]
fn a_truncated_capture_is_summed_up_to_its_end() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("c.pcap");
    write_pcap(&path, &[dns_frame().build(), dns_frame().build()]);
    let whole = std::fs::read(&path).expect("written");
    std::fs::write(&path, &whole[..whole.len() - 3]).expect("cut");
    let output = run(&["explain", "demo.toml", "--pcap", path.to_str().expect("path")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("after packet 1: the file ends"), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("model    ideal\n1 packet\n"), "{}", stdout(&output));
}

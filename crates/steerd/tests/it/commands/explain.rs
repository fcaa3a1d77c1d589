//! `steerd explain` of one packet.

use super::rig::{DNS, dns_frame, json, ok, run};
use crate::support::{stderr, stdout};

#[test]
fn explain_follows_a_packet_to_its_worker() {
    insta::assert_snapshot!("explain_dns", ok(&["explain", "demo.toml", "--packet", DNS]));
    let syn = "src=10.2.0.1,dst=192.0.2.80,protocol=tcp,src_port=1,dst_port=443,tcp_flags=syn";
    insta::assert_snapshot!("explain_syn", ok(&["explain", "demo.toml", "--packet", syn]));
    let scan = "src=198.51.100.9,dst=192.0.2.80,protocol=tcp,dst_port=443";
    insta::assert_snapshot!("explain_scan", ok(&["explain", "demo.toml", "--packet", scan]));
    insta::assert_snapshot!("explain_arp", ok(&["explain", "demo.toml", "--packet", "ethertype=arp"]));
}

#[test]
fn fields_and_hexadecimal_give_the_same_answer() {
    let hex: String = dns_frame().build().iter().map(|byte| format!("{byte:02x} ")).collect();
    let from_hex = json(&["explain", "demo.toml", "--format", "json", "--hex", &hex]);
    let from_fields = json(&["explain", "demo.toml", "--format", "json", "--packet", DNS]);
    assert_eq!(from_hex, from_fields);
    assert_eq!(from_hex["rule"], "dns");
    assert!(from_hex["worker"].is_u64(), "{from_hex}");
}

#[test]
fn a_frame_without_an_ethernet_header_is_refused() {
    for hex in ["0000", "00112233445566778899aabbcc"] {
        let output = run(&["explain", "demo.toml", "--hex", hex]);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        assert!(stderr(&output).contains("runt"), "{}", stderr(&output));
    }
    let output = run(&["explain", "demo.toml", "--hex", "00112233445566778899aabbccdd"]);
    assert!(output.status.success(), "14 bytes are a header: {}", stderr(&output));
}

#[test]
fn explain_looks_into_tunnels_and_shows_copies() {
    let packet = "dst=192.0.2.1,vxlan_vni=5000,inner.dst=10.50.1.1,inner.protocol=tcp,inner.dst_port=443";
    let fate = json(&["explain", "vxlan-tenants.toml", "--packet", packet, "--format", "json"]);
    assert_eq!(fate["rule"], "tenant-5000-web", "{fate:#}");
    let web = "dst=192.0.2.80,protocol=tcp,dst_port=443";
    let fate = json(&["explain", "ipfix-tap.toml", "--packet", web, "--format", "json"]);
    assert_eq!(fate["rule"], "front");
    assert_eq!(fate["copies"][0]["rule"], "tap");
    assert_eq!(fate["copies"][0]["worker"], 2);
    insta::assert_snapshot!("explain_copy", ok(&["explain", "ipfix-tap.toml", "--packet", web]));
}

#[test]
fn explain_has_the_verdict_of_the_xdp_program() {
    for (packet, verdict, text) in [
        ("src=192.0.2.2,protocol=udp,dst_port=9000", "redirect", "the engine delivers it to the worker"),
        ("src=192.0.2.2,protocol=tcp,dst_port=8080", "drop", "the program drops and counts it"),
        ("src=192.0.2.2,protocol=tcp,dst_port=8000", "pass", "it never leaves the host's network stack"),
    ] {
        let asked = ["explain", "live.toml", "--packet", packet];
        let with = |more: &[&'static str]| [&asked[..], more].concat();
        assert_eq!(json(&with(&["--xdp", "--format", "json"]))["xdp"], verdict);
        assert!(json(&with(&["--format", "json"])).get("xdp").is_none());
        let line = format!("xdp      {verdict}: {text}\n");
        let shown = ok(&with(&["--xdp"]));
        assert!(shown.contains(&line), "{shown}");
    }
}

/// Without flow tags another rule's flow may have delivered the packet.
#[test]
fn explain_shows_that_a_packet_stays_with_its_worker() {
    let syn = "src=10.2.0.1,dst=192.0.2.80,protocol=tcp,src_port=1,dst_port=443,tcp_flags=syn";
    let text = ok(&["explain", "demo.toml", "--packet", syn, "--model", "mlx4"]);
    assert!(text.contains("deliver to web") && text.contains("group    dns: the packet stays"), "{text}");
}

/// egress-guard: only the relay sends mail, and no foreign source address is sent.
#[test]
fn explain_follows_sent_packets() {
    let sent = |fields: &str| {
        let fields = format!("{fields},dst=198.51.100.1,protocol=tcp,dst_port=25");
        json(&[
            "explain",
            "egress-guard.toml",
            "--direction",
            "egress",
            "--packet",
            &fields,
            "--format",
            "json",
        ])
    };
    for (fields, rule, leaves) in [
        ("src=192.0.2.25", "mail-by-relay", true),
        ("src=192.0.2.7", "no-mail", false),
        ("src=10.0.0.1", "no-mail", false),
    ] {
        let fate = sent(fields);
        assert_eq!((&fate["rule"], &fate["leaves"]), (&rule.into(), &leaves.into()), "{fields}: {fate:#}");
    }
    let arp = ["explain", "egress-guard.toml", "--direction", "egress", "--packet", "ethertype=arp"];
    let text = ok(&arp);
    assert!(text.contains("no egress rule"), "{text}");
    let received = ok(&["explain", "egress-guard.toml", "--packet", "src=10.0.0.1,dst=192.0.2.7"]);
    assert!(received.contains("default"), "egress rules do not match received packets: {received}");
    let output = run(&[&arp[..], &["--model", "mlx4"]].concat());
    // The device cannot run the policy; what the policy means is explained all the same.
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("EGRESS"), "{}", stderr(&output));
    assert!(stdout(&output).contains("no egress rule"), "{}", stdout(&output));
}

/// An answer for another model than that of the device says so, and leaves out what the device would decide.
#[test]
fn every_answer_names_its_model() {
    let web = "dst=192.0.2.80,protocol=tcp,dst_port=443";
    let explain = ["explain", "egress-guard.toml", "--packet", web];
    let text = ok(&explain);
    assert!(text.starts_with("model    ideal\n") && text.contains("\nworker "), "{text}");
    let refused = [&explain[..], &["--model", "mlx4"]].concat();
    let text = ok(&refused);
    assert!(text.starts_with("model    ideal, as `mlx4` cannot run this policy: "), "{text}");
    for device in ["\ndecided ", "\ntag ", "\nqueue ", "\nworker "] {
        assert!(!text.contains(device), "{text}");
    }
    let answer = json(&[&refused[..], &["--format", "json"]].concat());
    assert_eq!((&answer["model"], &answer["refused_by"]), (&"ideal".into(), &"mlx4".into()), "{answer:#}");
    assert!(answer["rule"].is_string(), "{answer:#}");
    for device in ["decided_in", "tag", "queue", "worker"] {
        assert!(answer[device].is_null(), "{answer:#}");
    }
    let answer = json(&[&explain[..], &["--format", "json"]].concat());
    assert_eq!(answer["model"], "ideal");
    assert!(answer.get("refused_by").is_none(), "{answer:#}");
}

#[test]
fn explain_refuses_invalid_packets() {
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

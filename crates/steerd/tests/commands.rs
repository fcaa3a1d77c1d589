//! check, explain and devices: what they print and what they exit with.

mod support;

use std::path::Path;
use std::process::Output;

use packet::build::FrameBuilder;
use packet::{EtherType, MacAddr};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use support::{config, stderr, stdout, steerd};

/// In config/examples, so that file names in the output do not depend on where the repository is.
fn run(args: &[&str]) -> Output {
    steerd().current_dir(config().join("examples")).args(args).output().expect("the binary runs")
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
    let rules = report["rules"].as_array().expect("rules");
    let placement = |name: &str| {
        let rule = rules.iter().find(|rule| rule["name"] == name).expect(name);
        rule["decided"].as_str().expect("decided").to_owned()
    };
    assert_eq!(report["analysis"]["not_decided"], 0);
    assert_eq!(report["capacity"]["rows"][0]["limit"], "priorities");
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
    command.current_dir(config().join("examples")).args(["check", "demo.toml"]).stdout(closed());
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

const POLICY: &str = "version = 1\n[groups.one]\nworkers = [0]\n\n[[rules]]\nname = \"web\"\n\
     match = { dst = \"192.0.2.0/24\", protocol = \"tcp\", dst_port = 80 }\naction = { steer = \"one\" }\n";

/// A folder with these policies.
fn policies(texts: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    for (name, text) in texts {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

fn run_in(folder: &tempfile::TempDir, args: &[&str]) -> Output {
    steerd().current_dir(folder.path()).args(args).output().expect("the binary runs")
}

const SHADOWED: &str = "\n[[rules]]\nname = \"late\"\n\
     match = { dst = \"192.0.2.7\", protocol = \"tcp\", dst_port = 80 }\naction = \"drop\"\n";

#[test]
fn check_fails_for_what_is_denied() {
    let shadowed = format!("{POLICY}{SHADOWED}");
    let hybrid = POLICY.replace("dst_port = 80", "dst_port = 80, tcp_flags = \"syn\"");
    let folder = policies(&[("ok.toml", POLICY), ("late.toml", &shadowed), ("hybrid.toml", &hybrid)]);
    for (args, code) in [
        (&["ok.toml", "--deny", "warnings,hybrid,shadowed"][..], 0),
        (&["late.toml"], 0),
        (&["late.toml", "--deny", "hybrid"], 0),
        (&["late.toml", "--deny", "shadowed"], 1),
        (&["late.toml", "--deny", "warnings"], 1),
        (&["hybrid.toml"], 0),
        (&["hybrid.toml", "--deny", "hybrid"], 1),
        (&["ok.toml", "--deny", "shadowed", "--no-analysis"], 2),
        (&["ok.toml", "--deny", "everything"], 2),
    ] {
        let output = run_in(&folder, &[&["check"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}{}", stdout(&output), stderr(&output));
    }
    let output = run_in(&folder, &["check", "late.toml", "--deny", "shadowed", "--format", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["ok"], true, "the device can do it all the same");
    assert_eq!(report["denied"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["analysis"]["rules"][1]["shadowed_by"][0], "web");
    let output = run_in(&folder, &["check", "late.toml"]);
    let warnings = stderr(&output).matches("never matches").count();
    assert_eq!(warnings, 1, "said once: {}", stderr(&output));
}

#[test]
fn check_without_the_analysis_says_nothing_of_it() {
    let folder = policies(&[("ok.toml", POLICY)]);
    let text = |args: &[&str]| stdout(&run_in(&folder, args));
    assert!(text(&["check", "ok.toml"]).contains("rules among themselves"));
    assert!(!text(&["check", "ok.toml", "--no-analysis"]).contains("rules among themselves"));
}

#[test]
fn nothing_but_a_terminal_gets_colours() {
    let folder = policies(&[("ok.toml", POLICY)]);
    let output = run_in(&folder, &["check", "ok.toml"]);
    assert!(!stdout(&output).contains('\x1b') && !stderr(&output).contains('\x1b'));
}

#[test]
fn the_schema_needs_no_policy() {
    let schema = json(&["check", "--print-schema"]);
    assert!(schema["properties"]["rules"].is_object(), "{schema:#}");
    assert_eq!(run(&["check", "--print-schema", "demo.toml"]).status.code(), Some(2), "it stands alone");
}

#[test]
fn diff_tells_who_loses_which_packets() {
    let wider = POLICY.replace("192.0.2.0/24", "192.0.2.0/23");
    // The same otherwise: two halves, an order that makes no difference.
    let halves = format!(
        "{}{}",
        POLICY.replace("192.0.2.0/24", "192.0.2.128/25"),
        "[[rules]]\nname = \"lower\"\nmatch = { dst = \"192.0.2.0/25\", protocol = \"tcp\", dst_port = 80 }\n\
         action = { steer = \"one\" }\n"
    );
    let folder =
        policies(&[("a", POLICY), ("wider", &wider), ("halves", &halves), ("broken", "version = 2\n")]);
    let equal = run_in(&folder, &["diff", "a", "halves"]);
    assert_eq!(equal.status.code(), Some(0), "{}{}", stdout(&equal), stderr(&equal));
    assert!(stdout(&equal).contains("treat every packet alike"));
    let different = run_in(&folder, &["diff", "a", "wider"]);
    assert_eq!(different.status.code(), Some(1));
    insta::assert_snapshot!("diff_wider", stdout(&different));
    assert!(stderr(&different).is_empty(), "that they differ is no failure: {}", stderr(&different));
    let report = run_in(&folder, &["diff", "a", "wider", "--format", "json"]);
    assert_eq!(report.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["equal"], false);
    assert_eq!(report["pairs"][0]["after"]["name"], "web", "{report:#}");
    assert!(report["regions"][0]["witness"]["frame"].is_string(), "{report:#}");
    for args in [["diff", "a", "broken"], ["diff", "a", "nowhere"]] {
        let output = run_in(&folder, &args);
        assert_eq!(output.status.code(), Some(2), "as diff(1): {}", stderr(&output));
        assert!(!stderr(&output).is_empty());
    }
}

/// What `diff` shows is a packet that the two policies treat differently, by `explain`.
#[test]
fn the_witness_of_a_difference_is_explained_differently() {
    let wider = POLICY.replace("192.0.2.0/24", "192.0.2.0/23");
    let folder = policies(&[("a", POLICY), ("b", &wider)]);
    let report = run_in(&folder, &["diff", "a", "b", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let frame = report["regions"][0]["witness"]["frame"].as_str().expect("hexadecimal");
    let explained = |policy| {
        let output = run_in(&folder, &["explain", policy, "--hex", frame, "--format", "json"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")["rule"].clone()
    };
    assert_eq!((explained("a"), explained("b")), ("default".into(), "web".into()));
}

#[test]
fn import_writes_a_policy_and_tells_what_is_lost() {
    let filters = "@10.0.0.0/8\t192.0.2.1/32\t0 : 65535\t80 : 80\t0x06/0xFF\t0x0000/0x0000\n";
    let folder = policies(&[("set", filters), ("odd", "Filter: 3\n\tRule Type: SCTP over IPv9\n")]);
    let output = run_in(&folder, &["import", "classbench", "set", "-o", "set.toml"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).is_empty());
    let output = run_in(&folder, &["check", "set.toml"]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let output = run_in(&folder, &["import", "ethtool", "odd"]);
    assert!(output.status.success(), "what does not carry over is told: {}", stderr(&output));
    assert!(stderr(&output).contains("odd:"), "{}", stderr(&output));
    let output = run_in(&folder, &["import", "classbench", "nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nowhere"), "{}", stderr(&output));
}

#[test]
fn import_reads_standard_input() {
    let mut child = steerd()
        .args(["import", "classbench", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let filters = b"@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t53 : 53\t0x11/0xFF\n";
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), filters).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && stdout(&output).contains("10.0.0.0/8"), "{}", stdout(&output));
}

/// Every rule set is imported and checked; what does not fit is said for each profile.
#[test]
fn rule_sets_of_the_corpora_are_imported_and_checked() {
    let Some(rules) = support::corpora("rules") else { return };
    let folder = tempfile::tempdir().expect("folder");
    for name in ["acl_1k", "acl1_1k", "acl5_1k", "fw1_1k", "ipc1_1k"] {
        let policy = format!("{name}.toml");
        let set = rules.join(name);
        let output = run_in(&folder, &["import", "classbench", set.to_str().expect("path"), "-o", &policy]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        for profile in ["ideal", "mlx5", "mlx4"] {
            let args = ["check", &policy, "--profile", profile, "--no-analysis", "--format", "json"];
            let output = run_in(&folder, &args);
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let ok = report["ok"] == true;
            assert!(ok || profile != "ideal", "{name}: {}", stderr(&output));
            assert_eq!(output.status.code(), Some(i32::from(!ok)), "{name} {profile}: {}", stderr(&output));
            let named = report["obstacles"].as_array().is_some_and(|list| !list.is_empty())
                || report["rules"]
                    .as_array()
                    .expect("rules")
                    .iter()
                    .any(|rule| rule["decided"] == "impossible")
                || report["diagnostics"].as_array().is_some_and(|list| !list.is_empty());
            assert!(ok || named, "{name} {profile}: not said what does not fit");
        }
    }
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
fn a_summary_says_how_even_the_load_is() {
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
    assert!(text.contains("largest/mean") && text.contains("50 %"), "{text}");
}

/// Where a device tells nothing of flows, another rule's flow may have brought the packet.
#[test]
fn explain_says_that_a_packet_stays_with_the_worker_that_has_it() {
    let syn = "src=10.2.0.1,dst=192.0.2.80,protocol=tcp,src_port=1,dst_port=443,tcp_flags=syn";
    let text = ok(&["explain", "demo.toml", "--packet", syn, "--profile", "mlx4"]);
    assert!(text.contains("deliver to web") && text.contains("group    dns: the packet stays"), "{text}");
}

/// egress-guard: mail by the relay alone, and nothing from addresses that are not ours.
#[test]
fn explain_says_what_becomes_of_what_the_host_sends() {
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
    assert!(received.contains("default"), "egress rules say nothing of what is received: {received}");
    let output = run(&[&arp[..], &["--profile", "mlx4"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("EGRESS"), "{}", stderr(&output));
}

#[test]
fn a_capture_of_what_the_host_sends_is_summed_up() {
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
    // A sniffer hears what leaves.
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
fn a_cut_capture_is_summed_up_as_far_as_it_goes() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("c.pcap");
    write_pcap(&path, &[dns_frame().build(), dns_frame().build()]);
    let whole = std::fs::read(&path).expect("written");
    std::fs::write(&path, &whole[..whole.len() - 3]).expect("cut");
    let output = run(&["explain", "demo.toml", "--pcap", path.to_str().expect("path")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("after packet 1: the file ends"), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("1 packet\n"), "{}", stdout(&output));
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
fn a_probe_says_what_a_device_answers() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("s.toml");
    let text = "[softnic]\nname = \"mysoft\"\n[[softnic.ports]]\nwire = { kind = \"null\" }\n";
    std::fs::write(&path, text).expect("written");
    let args = ["devices", "--config", path.to_str().expect("path"), "--probe", "mysoft"];
    let report = json(&[&args[..], &["--format", "json"]].concat());
    let rows = report["rows"].as_array().expect("rows");
    let seen = |value: &str| {
        let row = rows.iter().find(|row| row["value"] == value).expect("a row");
        row["seen"].as_str().expect("text").to_owned()
    };
    assert_eq!(seen("IBV_FLOW_ATTR_NORMAL"), "works");
    assert_eq!(seen("IBV_QP_CREATE_SOURCE_QPN"), "refused: EINVAL");
    assert!(rows.iter().all(|row| row["verdict"] == "ok"), "{report:#}");
    let text = ok(&args);
    assert!(text.contains("mysoft: ") && text.contains("0 are promised and not kept"), "{text}");
    assert_eq!(run(&["devices", "--probe", "nosuch"]).status.code(), Some(4));
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

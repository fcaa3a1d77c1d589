//! `steerd check`: its output and its exit codes.

use packet::build::FrameBuilder;

use super::rig::{DNS, POLICY, dns_frame, json, ok, policies, run, run_in, write_pcap};
use rustix::process::Signal;

use crate::support::{Daemon, config, stderr, stdout, steerd};

#[test]
fn check_shows_where_every_rule_is_decided() {
    insta::assert_snapshot!("check_demo", ok(&["check", "demo.toml"]));
    insta::assert_snapshot!("check_dns_farm", ok(&["check", "dns-farm.toml"]));
}

#[test]
fn check_in_json_has_the_same_findings() {
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
fn check_for_an_interface_shows_who_decides() {
    let interface = ["check", "live.toml", "--interface", "no-such-if", "--workers", "2", "--no-analysis"];
    let text = ok(&interface);
    // What follows are the cores of this machine.
    let (text, placement) = text.split_once("\nplacement\n").expect("the placement");
    insta::assert_snapshot!("check_interface", text);
    assert!(placement.starts_with("  no-such-if is not on this host: "), "{placement}");
    let report = json(&[&interface[..], &["--format", "json"]].concat());
    insta::assert_snapshot!("check_interface_json", format!("{:#}", report["interface"]["rules"]));
    let elsewhere = json(&["check", "live.toml", "--workers", "2", "--no-analysis", "--format", "json"]);
    assert!(elsewhere["interface"].is_null(), "{elsewhere:#}");
}

/// The engine decides one of four packets of the capture.
#[test]
fn check_shows_who_decides_the_packets_of_a_capture() {
    let folder = policies(&[("p.toml", DECIDED)]);
    let udp =
        |port| FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [192, 0, 2, 1].into()).udp(9, port).build();
    write_pcap(&folder.path().join("traffic.pcap"), &[udp(53), udp(9), udp(9), udp(7)]);
    let args =
        ["check", "p.toml", "--interface", "no-such-if", "--traffic", "traffic.pcap", "--format", "json"];
    let report = run_in(&folder, &args);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let traffic = &report["interface"]["traffic"];
    let decided = |packets: u64, [nic, xdp_program, engine, worker, host]: [u64; 5]| {
        serde_json::json!({
            "packets": packets, "nic": nic, "xdp_program": xdp_program, "engine": engine, "worker": worker,
            "host": host,
        })
    };
    assert_eq!(traffic["all"], decided(4, [0, 3, 1, 0, 1]), "{traffic:#}");
    let mut scan = decided(2, [0, 2, 0, 0, 0]);
    scan["rule"] = "scan".into();
    assert_eq!(traffic["rules"][0], scan);
    assert_eq!((&traffic["one_in"], &traffic["beyond_claims"]), (&1.into(), &0.into()));
    let text = stdout(&run_in(&folder, &args[..6]));
    assert!(text.contains("who decides the capture's 4 packets"), "{text}");
    let with_filters = [&args[..], &["--nic-filters", "drop", "--filter-model", "mlx5"]].concat();
    let report = run_in(&folder, &with_filters);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["interface"]["traffic"]["all"], decided(4, [2, 1, 1, 0, 1]), "{report:#}");
}

const DECIDED: &str = "version = 1\ndefault = 'kernel'\n[groups.g]\nworkers = 'all'\n\
     [[rules]]\nname = 'scan'\nmatch = { protocol = 'udp', dst_port = 9 }\naction = 'drop'\n\
     [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'g' }\n";

#[test]
fn all_problems_of_a_policy_are_reported_with_exit_code_1() {
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
fn a_missing_policy_is_an_error() {
    let output = run(&["check", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nowhere.toml"), "{}", stderr(&output));
}

const SHADOWED: &str = "\n[[rules]]\nname = \"late\"\n\
     match = { dst = \"192.0.2.7\", protocol = \"tcp\", dst_port = 80 }\naction = \"drop\"\n";

#[test]
fn check_fails_for_denied_findings() {
    let shadowed = format!("{POLICY}{SHADOWED}");
    let losing = POLICY.replace("dst_port = 80", "dst_port = 80, tcp_flags = \"syn\"");
    let hybrid = losing.replace("version = 1", "version = 1\nallow_lost_exceptions = true");
    let counted = "[groups.one]\nsinks = \"sizes\"";
    let counting = POLICY.replace("[groups.one]", counted) + "[sinks.sizes]\nkind = \"count\"\n";
    let folder = policies(&[
        ("ok.toml", &counting),
        ("late.toml", &shadowed),
        ("hybrid.toml", &hybrid),
        ("losing.toml", &losing),
        ("sink.toml", &(counting.clone() + "[sinks.nowhere]\nkind = \"count\"\n")),
    ]);
    for (args, code) in [
        (&["ok.toml", "--deny", "warnings,hybrid,shadowed"][..], 0),
        (&["sink.toml"], 0),
        (&["sink.toml", "--deny", "warnings"], 1),
        (&["late.toml"], 0),
        (&["late.toml", "--deny", "hybrid"], 0),
        (&["late.toml", "--deny", "shadowed"], 1),
        (&["late.toml", "--deny", "warnings"], 1),
        (&["hybrid.toml"], 0),
        (&["losing.toml"], 1),
        (&["hybrid.toml", "--deny", "hybrid"], 1),
        (&["hybrid.toml", "--deny", "hybrid=5%"], 1),
        (&["hybrid.toml", "--deny", "hybrid=100%"], 0),
        (&["ok.toml", "--deny", "hybrid=0%"], 0),
        (&["ok.toml", "--deny", "shadowed=5%"], 2),
        (&["ok.toml", "--deny", "hybrid=105%"], 2),
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

/// SYNs are rare among the packets drawn from the rules, and common in the capture.
#[test]
fn check_counts_where_the_packets_of_a_capture_are_decided() {
    let syn =
        "[[rules]]\nname = \"syn\"\nmatch = { protocol = \"tcp\", tcp_flags = \"syn\" }\naction = \"drop\"\n";
    let dns = "[[rules]]\nname = \"dns\"\nmatch = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"one\" }\n";
    let tcp = "[[rules]]\nname = \"tcp\"\nmatch = { protocol = \"tcp\" }\naction = { steer = \"one\" }\n";
    let policy = format!("version = 1\n[groups.one]\nworkers = [0]\n{syn}{dns}{tcp}");
    let folder = policies(&[("p.toml", &policy)]);
    let at = |name: &str| folder.path().join(name);
    let dns = dns_frame().build();
    let segment = |flags| dns_frame().tcp(1024, 80, flags).build();
    let other = dns_frame().udp(1, 2).build();
    let frames = [vec![dns.clone(); 6], vec![segment(2); 2], vec![segment(16)], vec![other]].concat();
    write_pcap(&at("mixed.pcap"), &frames);
    write_pcap(&at("dns.pcap"), &[dns]);
    let report = |capture: &str| {
        let args = ["check", "p.toml", "--traffic", capture, "--format", "json"];
        serde_json::from_slice::<serde_json::Value>(&run_in(&folder, &args).stdout).expect("JSON")
    };
    let traffic = &report("mixed.pcap")["traffic"];
    let packets = |of: &serde_json::Value| {
        ["all", "in_hardware", "by_workers", "left"].map(|key| of[key]["packets"].as_u64().expect("a number"))
    };
    assert_eq!(packets(&traffic["all"]), [10, 6, 3, 1], "{traffic:#}");
    assert_eq!(packets(&traffic["rules"][0]), [2, 0, 2, 0], "{traffic:#}");
    assert_eq!(
        (&traffic["rules"][3]["rule"], packets(&traffic["rules"][3])),
        (&"default".into(), [1, 0, 0, 1])
    );
    let bytes: usize = frames.iter().map(Vec::len).sum();
    assert_eq!(traffic["all"]["all"]["bytes"], bytes as u64);
    assert_eq!(traffic["capture_packets"], 10);
    let text = stdout(&run_in(&folder, &["check", "p.toml", "--traffic", "mixed.pcap"]));
    assert!(text.contains("of the capture's 10 packets") && text.contains("30.0% ("), "{text}");
    for (capture, most, code) in [("mixed.pcap", "29%", 1), ("mixed.pcap", "30%", 0), ("dns.pcap", "0%", 0)] {
        let deny = format!("hybrid={most}");
        let output = run_in(&folder, &["check", "p.toml", "--traffic", capture, "--deny", &deny]);
        assert_eq!(output.status.code(), Some(code), "{capture} {most}: {}", stderr(&output));
    }
}

#[test]
fn captures_without_usable_packets_are_refused() {
    let folder = policies(&[("p.toml", POLICY)]);
    let at = |name: &str| folder.path().join(name);
    write_pcap(&at("empty.pcap"), &[]);
    write_pcap(&at("arp.pcap"), &[dns_frame().ether_type(packet::EtherType::ARP).build()]);
    write_pcap(&at("whole.pcap"), &[dns_frame().build()]);
    let whole = std::fs::read(at("whole.pcap")).expect("read");
    std::fs::write(at("truncated.pcap"), &whole[..whole.len() - 3]).expect("written");
    std::fs::write(at("text.pcap"), "this is no capture at all, only text").expect("written");
    for (capture, reason) in [
        ("empty.pcap", "the capture has no packets"),
        ("arp.pcap", "the capture has no IP packets"),
        ("truncated.pcap", "after packet 0: the file ends in the middle"),
        ("text.pcap", "not a pcap or pcapng file"),
        ("none.pcap", "cannot read the capture"),
        (".", "cannot read the capture"),
    ] {
        let output = run_in(&folder, &["check", "p.toml", "--traffic", capture]);
        assert_eq!(output.status.code(), Some(1), "{capture}: {}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{capture}: {}", stderr(&output));
    }
}

#[test]
fn a_quiet_check_prints_errors_only() {
    let shadowed = format!("{POLICY}{SHADOWED}");
    let broken = POLICY.replace("dst_port", "dst_prot");
    let folder = policies(&[("ok.toml", POLICY), ("late.toml", &shadowed), ("broken.toml", &broken)]);
    for (args, code, stderr_lines) in [
        (&["ok.toml"][..], 0, 0),
        (&["late.toml"], 0, 0),
        (&["late.toml", "--deny", "shadowed"], 1, 1),
        (&["late.toml", "--deny", "warnings"], 1, 1),
        // The error and the final line.
        (&["broken.toml"], 1, 2),
    ] {
        let output = run_in(&folder, &[&["check", "--quiet"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{args:?}");
        assert_eq!(stderr(&output).lines().count(), stderr_lines, "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn check_without_the_analysis_prints_no_findings() {
    let folder = policies(&[("ok.toml", POLICY)]);
    let text = |args: &[&str]| stdout(&run_in(&folder, args));
    assert!(text(&["check", "ok.toml"]).contains("rule interactions"));
    assert!(!text(&["check", "ok.toml", "--no-analysis"]).contains("rule interactions"));
}

#[test]
fn the_schema_needs_no_policy() {
    let schema = json(&["check", "--print-schema"]);
    assert!(schema["properties"]["rules"].is_object(), "{schema:#}");
    assert_eq!(run(&["check", "--print-schema", "demo.toml"]).status.code(), Some(2), "it stands alone");
}

/// On a device without flow tags all packets have one class, but a flow matches only some of them.
#[test]
fn each_rule_that_brings_other_packets_to_its_workers_is_warned_of_once() {
    let scada = std::fs::read_to_string(config().join("examples/scada.toml")).expect("it is there");
    let scada = scada.replacen("version = 1", "version = 1\nallow_lost_exceptions = true", 1);
    let warnings = |policy: &str| {
        let folder = policies(&[("scada.toml", policy)]);
        let output = run_in(&folder, &["check", "scada.toml", "--model", "mlx4"]);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let found = warnings(&scada);
    assert_eq!(found.lines().count(), 1, "{found}");
    let parts = [
        "`goose` takes packets of other rules from the kernel",
        "those of `control`",
        "workers of `protection`",
    ];
    assert!(parts.iter().all(|part| found.contains(part)), "{found}");
    // Each remedy removes its part of the warning.
    let claimed =
        format!("{scada}\n[[rules]]\nname = \"rest\"\nmatch = {{ vlan = 10 }}\naction = \"drop\"\n");
    let found = warnings(&claimed);
    assert!(!found.contains("kernel") && found.contains("belong to `control`"), "{found}");
    let found = warnings(&scada.replace("steer = \"protection\"", "steer = \"inspect\""));
    assert!(found.contains("kernel") && !found.contains("control"), "{found}");
}

/// The exception is lost only for IPv6; the remedy is to restrict the rule to IPv4.
#[test]
fn an_exception_lost_for_ipv6_is_kept_when_restricted_to_ipv4() {
    let policy = "version = 1\n[groups.main]\nworkers = [0]\n\
        [[rules]]\nname = \"management\"\n\
        match = { src = \"10.0.0.0/8\", dst = \"192.0.2.1\", protocol = \"tcp\", dst_port = 22 }\naction = \"kernel\"\n\
        [[rules]]\nname = \"others\"\nmatch = { protocol = \"tcp\", dst_port = 22 }\naction = { steer = \"main\" }\n";
    let mended = policy.replace("match = { protocol", "match = { family = \"ipv4\", protocol");
    let folder = policies(&[("p", policy), ("mended", &mended)]);
    let management = |policy| {
        let output = run_in(&folder, &["check", policy, "--model", "mlx4", "--format", "json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["rules"][0].clone()
    };
    let rule = management("p");
    let remedy = rule["remedy"].as_str().expect("a remedy");
    assert!(remedy.contains("family = \"ipv4\" in `others`"), "{rule:#}");
    let rule = management("mended");
    assert!(rule["decided"] == "hardware" && rule["remedy"].is_null(), "{rule:#}");
}

/// Flows on multicast alone share one table of an mlx5, whatever their program. Those of a policy that fills
/// it stay where they are when the policy is loaded again; other flows for them have no room.
#[test]
fn a_policy_that_fills_the_table_of_multicast_is_reloaded_as_it_is() {
    let alone = POLICY.replace("version = 1\n", "version = 1\ndefault_multicast = \"one\"\n");
    let small = "name = \"small\"\npriorities = 64\nmax_specs = 10\nmax_table = 64\ntag_bits = 24\n\
                 multicast_ignores_priority = true\n\
                 priority_table = { entries = 2, groups = 1, group_entries = 1 }\n";
    let folder = policies(&[("alone", &alone), ("small.toml", small)]);
    let output = run_in(&folder, &["check", "alone", "--model", "small.toml"]);
    assert!(output.status.success() && !stderr(&output).contains("multicast"), "{}", stderr(&output));
    let mut command = steerd();
    command.env("STEERD_SOFTNIC__PERSONALITY", "./small.toml").current_dir(folder.path());
    let mut daemon = Daemon::start_command(command.args(["run", "--demo", "--policy", "alone"]));
    daemon.signal(Signal::HUP);
    daemon.wait_for("alone is in force", 1);
    let dropping = POLICY.replace("version = 1\n", "version = 1\ndefault_multicast = \"drop\"\n");
    std::fs::write(folder.path().join("alone"), dropping).expect("a policy");
    daemon.signal(Signal::HUP);
    daemon.wait_for("the previous policy stays in force", 1);
    assert!(daemon.log().contains("use fewer ranges"), "{}", daemon.log());
}

/// The parts of a limit, in the output of the commands that describe a policy.
#[test]
fn limits_and_samples_are_shown_with_the_parts_of_workers() {
    let limited = POLICY.replace("workers = [0]", "weights = { 0 = 3, 1 = 1 }\ntable_size = 8")
        + "limit = \"10k/s\"\nsample = 7\n";
    let folder = policies(&[("p.toml", &limited), ("free.toml", &limited.replace("sample = 7", ""))]);
    let text = |args: &[&str]| stdout(&run_in(&folder, args));
    let shown = text(&["check", "p.toml"]);
    assert!(shown.contains("deliver to one, 1 in 7, at most 10k/s"), "{shown}");
    assert!(shown.contains("worker 0: 7500/s, burst 750; worker 1: 2500/s, burst 250"), "{shown}");
    let report: serde_json::Value =
        serde_json::from_str(&text(&["check", "p.toml", "--format", "json"])).expect("JSON");
    let policing = &report["rules"][0]["policing"];
    assert_eq!(
        (&policing["sample"], &policing["workers"][1]["packets_per_second"]),
        (&7.into(), &2500.0.into())
    );
    assert_eq!(report["rules"][0]["decided"], "hardware", "workers do not decide which rule matches");
    assert!(report["rules"][1]["policing"].is_null(), "{report:#}");

    let web = "src=198.51.100.1,dst=192.0.2.1,protocol=tcp,src_port=1,dst_port=80";
    let explained = text(&["explain", "p.toml", "--packet", web]);
    let (worker, part) =
        if explained.contains("worker   0") { (0, "7500/s, burst 750") } else { (1, "2500/s, burst 250") };
    let line = format!("passes   1 in 7, at most 10k/s; this worker: {part}\n");
    assert!(explained.contains(&line) && explained.contains(&format!("worker   {worker}")), "{explained}");

    let output = run_in(&folder, &["diff", "p.toml", "free.toml"]);
    assert_eq!(output.status.code(), Some(1), "a difference: {}", stdout(&output));
    let shown = stdout(&output);
    assert!(shown.contains("rule `web`: sample: 7 => none\n"), "{shown}");
    assert!(
        shown.contains("no packet moves to another rule or group") && !shown.contains("alike"),
        "{shown}"
    );
}

/// A limit of each source, in the output of the commands that describe a policy.
#[test]
fn limits_of_sources_are_shown_with_their_memory() {
    let limited = POLICY.to_owned() + "limit = \"10Mbit/s\"\nper = { source_ipv4 = 24, sources = 100 }\n";
    let folder = policies(&[("p.toml", &limited), ("free.toml", POLICY)]);
    let text = |args: &[&str]| stdout(&run_in(&folder, args));
    let shown = text(&["check", "p.toml"]);
    assert!(shown.contains("deliver to one, at most 10Mbit/s per source (IPv4 /24, IPv6 /64)"), "{shown}");
    let memory = "room for 100 sources on each worker of the daemon: 6.25KiB of memory each";
    assert!(shown.contains(memory), "{shown}");
    let report: serde_json::Value =
        serde_json::from_str(&text(&["check", "p.toml", "--format", "json"])).expect("JSON");
    let policing = &report["rules"][0]["policing"];
    let expected = serde_json::json!({
        "sample": 1,
        "limit": {
            "bits_per_second": 10_000_000, "burst_bytes": 125_000,
            "per_source": { "ipv4_bits": 24, "ipv6_bits": 64, "sources": 100 },
        },
        "source_table_bytes": 6400,
        "workers": [{ "worker": 0, "bits_per_second": 10_000_000.0, "burst_bytes": 125_000 }],
    });
    assert_eq!(*policing, expected);
    let web = "src=198.51.100.77,dst=192.0.2.1,protocol=tcp,src_port=1,dst_port=80";
    let explained = text(&["explain", "p.toml", "--packet", web]);
    let line = "passes   at most 10Mbit/s per source (IPv4 /24, IPv6 /64); this worker: 10Mbit/s, burst 125kB; \
                its source: 198.51.100.0/24\n";
    assert!(explained.contains(line), "{explained}");
    let shown = text(&["diff", "free.toml", "p.toml"]);
    let per = "rule `web`: per: none => { source_ipv4 = 24, sources = 100 }\n";
    assert!(shown.contains(per) && shown.contains("rule `web`: limit: none => 10Mbit/s\n"), "{shown}");
}

/// Descriptions, in the output of the commands that describe a policy.
#[test]
fn descriptions_are_shown_and_are_no_difference() {
    let described = POLICY.replace("workers = [0]", "workers = [0]\ndescription = \"the only one\"")
        + "description = \"\"\"\nPublic web servers.\nAsk first.\n\"\"\"\n";
    let failing = described.clone()
        + "[[tests]]\npacket = \"dst=192.0.2.1,protocol=tcp,dst_port=80\"\nexpect = \"drop\"\n";
    let folder = policies(&[("p.toml", POLICY), ("described.toml", &described), ("failing.toml", &failing)]);
    let text = |args: &[&str]| stdout(&run_in(&folder, args));
    let shown = text(&["check", "described.toml"]);
    assert!(shown.contains("        Public web servers.\n        Ask first.\n"), "{shown}");
    let json = |args: &[&str]| serde_json::from_str::<serde_json::Value>(&text(args)).expect("JSON");
    let report = json(&["check", "described.toml", "--format", "json"]);
    assert_eq!(report["rules"][0]["description"], "Public web servers.\nAsk first.");
    let web = "dst=192.0.2.1,protocol=tcp,dst_port=80";
    let explained = text(&["explain", "described.toml", "--packet", web]);
    assert!(explained.contains("about    Public web servers.\nabout    Ask first.\n"), "{explained}");

    let output = run_in(&folder, &["diff", "p.toml", "described.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let shown = stdout(&output);
    assert!(shown.contains("treat every packet alike\n"), "{shown}");
    let change = "rule `web`: description: none => \"Public web servers. / Ask first.\"\n";
    assert!(shown.contains(change) && shown.contains("group `one`: description: none"), "{shown}");
    assert!(shown.ends_with("descriptions change no flow and no packet\n"), "{shown}");
    let report = json(&["diff", "p.toml", "described.toml", "--format", "json"]);
    assert_eq!(
        (&report["equal"], &report["descriptions"][1]["after"]),
        (&true.into(), &"the only one".into())
    );

    let xml = folder.path().join("out.xml");
    let output = run_in(&folder, &["test", "failing.toml", "--junit", &xml.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(10), "{output:?}");
    let xml = std::fs::read_to_string(&xml).expect("written");
    assert!(xml.contains("Public web servers...."), "{xml}");
}

#[test]
fn a_device_that_cannot_steer_is_one_error_with_its_reason() {
    let folder = policies(&[("p.toml", POLICY), ("q.toml", &POLICY.replace("80", "81"))]);
    for (name, source) in [("mana", "mana_ctx_ops"), ("bnxt_re", "bnxt_re_create_flow")] {
        let output = run_in(&folder, &["check", "--model", name, "p.toml"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let shown = stderr(&output);
        assert_eq!(shown.matches("cannot steer").count(), 1, "{shown}");
        for words in ["no flows that match packets", source, "EOPNOTSUPP", "or the software NIC"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert!(stdout(&output).contains(&format!("impossible on {name}")), "{}", stdout(&output));
        // What the policy means does not depend on the device.
        let explained = run_in(&folder, &["explain", "p.toml", "--model", name, "--packet", DNS]);
        let left_out = format!("as `{name}` cannot run this policy");
        assert!(stdout(&explained).contains(&left_out), "{}{}", stdout(&explained), stderr(&explained));
        let output = run_in(&folder, &["diff", "p.toml", "q.toml", "--model", name]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[test]
fn mistakes_in_a_model_file_have_a_line_and_a_remedy() {
    let model = "name = \"nic\"\npriorities = 8\nmax_specs = 4\nmax_table = 64\ntag_bits = 24\n";
    for (text, words) in [
        (model.replace("= 8", "= 4294967296"), "nic.toml:2: priorities: invalid value"),
        (format!("{model}max_queues = 0\n"), "nic.toml:6: max_queues: 0 is outside 2..="),
        (format!("{model}colour = 1\n"), "nic.toml:6: colour: unknown field `colour`"),
        (format!("{model}refusals = [{{ feature = "), "nic.toml:6: "),
    ] {
        let folder = policies(&[("p.toml", POLICY), ("nic.toml", &text)]);
        for command in ["check", "size"] {
            let output = run_in(&folder, &[command, "--model", "nic.toml", "p.toml"]);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let shown = stderr(&output);
            assert!(shown.contains(words) && shown.contains("hint"), "{command}: {words}: {shown}");
        }
    }
}

/// A device of two priorities for each program and room for one flow more than the policy has.
const FEW: &str =
    "name = \"few\"\npriorities = 3\nmax_specs = 10\nmax_table = 256\ntag_bits = 24\nmax_flows = 14\n";

#[test]
fn a_policy_is_compiled_for_a_capture() {
    let udp = |name: &str, keys: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nmatch = {{ protocol = \"udp\", {keys} }}\naction = {{ steer = \"one\" }}\n"
        )
    };
    let mut policy = "version = 1\n[groups.one]\nworkers = [0]\nhash = \"none\"\n".to_owned();
    policy += &udp("a", "dst = \"192.0.2.1\", dst_port = 7");
    policy += &udp("b", "src = \"198.51.100.1\"");
    (0..4).for_each(|last| policy += &udp(&format!("c{last}"), &format!("dst = \"192.0.2.1{last}\"")));
    let settings = |traffic: &str| {
        format!(
            "[policy]\nfile = \"p.toml\"\n{traffic}[workers]\ncores = 1\n[softnic]\nports = [{{ wire = {{ kind = \"null\" }} }}]\n"
        )
    };
    let folder = policies(&[
        ("p.toml", &policy),
        ("few.toml", FEW),
        ("s.toml", &settings("traffic = \"c.pcap\"\n")),
        ("none.toml", &settings("traffic = \"none.pcap\"\n")),
    ]);
    let to = |last: u8| {
        let ip = dns_frame().ip([203, 0, 113, 1].into(), [192, 0, 2, 10 + last].into());
        ip.udp(1, 2).build()
    };
    let frames: Vec<Vec<u8>> = [to(0), to(1), to(2)].into_iter().chain(vec![to(3); 7]).collect();
    write_pcap(&folder.path().join("c.pcap"), &frames);
    let check = |args: &[&str]| {
        let args = [&["check", "--model", "few.toml", "--format", "json", "--no-analysis"], args].concat();
        let output = run_in(&folder, &args);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        answer
    };
    let hardware = |answer: &serde_json::Value| {
        let rules = answer["rules"].as_array().expect("rules").iter();
        let rules = rules.filter(|rule| rule["decided"] == "hardware" && rule["name"] != "default");
        rules.map(|rule| rule["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let (plain, weighted) = (check(&["p.toml"]), check(&["p.toml", "--traffic", "c.pcap"]));
    assert!(hardware(&plain).contains(&"c0".to_owned()), "{plain:#}");
    assert!(hardware(&weighted).contains(&"c3".to_owned()), "{weighted:#}");
    assert_eq!(weighted["traffic"]["all"]["in_hardware"]["packets"], 7);
    assert!(weighted["traffic"]["all"]["worker_ps"].as_u64().is_some_and(|ps| ps > 0));
    // The daemon's settings name the same capture.
    let settled = check(&["--config", "s.toml"]);
    assert_eq!((&settled["sha256"], hardware(&settled)), (&weighted["sha256"], hardware(&weighted)));
    assert_ne!(settled["sha256"], plain["sha256"]);
    let missing = run_in(&folder, &["check", "--config", "none.toml"]);
    assert_eq!(missing.status.code(), Some(1));
    let message = stderr(&missing);
    assert!(message.contains("setting policy.traffic: ") && message.contains("none.pcap"), "{message}");
    assert!(message.contains("hint: correct the path") && !message.contains("editcap"), "{message}");
}

/// The device has room for 50 flows of a policy.
const SMALL_DEVICE: &str = "name = \"small\"\npriorities = 64\nmax_flows = 100\nmax_specs = 10\n\
    max_table = 128\ntag_bits = 24\n";

#[test]
fn check_refuses_more_rules_at_run_time_than_the_device_has_room_for() {
    let given = |rules: &str| {
        format!(
            "version = 1\ndefault = \"kernel\"\n[groups.one]\nworkers = [0]\n[runtime]\nbefore = \"ip\"\n\
             matches = [\"src/24 dst/32\"]\nactions = [\"drop\"]\n{rules}\n[[rules]]\nname = \"ip\"\n\
             match = {{ family = \"ipv4\" }}\naction = {{ steer = \"one\" }}\n"
        )
    };
    let (many, few, usual) = (given("device_rules = 100"), given("device_rules = 40"), given(""));
    let files =
        [("many.toml", &*many), ("few.toml", &few), ("usual.toml", &usual), ("small.toml", SMALL_DEVICE)];
    let folder = policies(&files);
    let check = |policy: &str, more: &[&str]| {
        run_in(&folder, &[&["check", policy, "--model", "small.toml"], more].concat())
    };
    let refused = check("many.toml", &[]);
    assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
    let (text, errors) = (stdout(&refused), stderr(&refused));
    let expected = "many.toml:5:2: error: with 100 rules at run time in the device, the policy needs 101 flows, \
                    `small` has 50 for it (EINVAL) (write device_rules = 49)";
    assert!(errors.contains(expected), "{errors}");
    assert!(
        text.contains("no room for the rules at run time") && text.contains("there is room for 49"),
        "{text}"
    );
    let fits = check("few.toml", &[]);
    assert!(fits.status.success(), "{}", stderr(&fits));
    let row = |text: &str, head: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(head)).expect(head);
        line[head.len()..].split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row(&stdout(&fits), "src/24 dst (IPv4)"), ["40", "40", "1", "1"]);
    assert_eq!(row(&stdout(&fits), "all forms, with the policy")[..4], ["40", "41", "of", "50"]);
    let json = check("few.toml", &["--format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!((&json["device_rules"]["fit"], &json["ok"]), (&40.into(), &true.into()), "{json:#}");
    // A number that is not given is lowered.
    let lowered = check("usual.toml", &[]);
    assert!(lowered.status.success(), "{}", stderr(&lowered));
    assert!(
        stderr(&lowered).contains("at most 49 rules at run time will be in the device"),
        "{}",
        stderr(&lowered)
    );
}

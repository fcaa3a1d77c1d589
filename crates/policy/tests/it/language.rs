//! The meaning of the language: frames are parsed and compared with one match at a time. Also negation,
//! priorities, included files and variables.

use std::collections::BTreeMap;
use std::net::IpAddr;

use packet::build::FrameBuilder;
use packet::{DeepKey, Field, FlowKey, IpProtocol};
use policy::policy::{Action, Direction, Policy};
use policy::protect::ProtectedMatch;
use policy::{Diagnostic, Diagnostics, LoadOptions, NoFiles, Source};
use program::{LimitUnit, Policing, Predicate, RateLimit, RecorderRing, RecorderTrigger, SourceLimit};

type Files = BTreeMap<String, String>;

fn with(text: &str, files: &Files, options: &LoadOptions) -> Result<(Policy, Vec<Diagnostic>), Diagnostics> {
    policy::parse_with(&Source::new("main.toml", text), files, options)
}

fn files(list: &[(&str, &str)]) -> Files {
    list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn good(text: &str, files: &Files) -> Policy {
    with(text, files, &LoadOptions::default()).unwrap_or_else(|problems| panic!("{problems}\n{text}")).0
}

fn problems(text: &str, files: &Files) -> String {
    with(text, files, &LoadOptions::default()).expect_err(text).to_string()
}

fn rule(name: &str, matches: &str) -> String {
    format!("[[rules]]\nname = \"{name}\"\nmatch = {{ {matches} }}\naction = \"drop\"\n")
}

fn predicate(matches: &str) -> Predicate {
    let text = format!("version = 1\n{}", rule("x", matches));
    let (policy, _) =
        policy::parse(&Source::new("x.toml", text), &NoFiles).unwrap_or_else(|bad| panic!("{bad}"));
    Predicate::of(&policy.rules[0].matches)
}

/// Whether a frame meets a match.
fn meets(frame: &[u8], matches: &str) -> bool {
    predicate(matches).matches_deep(&DeepKey::of(frame))
}

fn ipv4() -> FrameBuilder {
    FrameBuilder::new().ip(IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]))
}

fn ipv6() -> FrameBuilder {
    FrameBuilder::new()
        .ip(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]))
}

#[track_caller]
fn table(frame: &[u8], wanted: &[(&str, bool)]) {
    for (matches, is_met) in wanted {
        assert_eq!(meets(frame, matches), *is_met, "{matches}: {}", predicate(matches));
    }
}

#[test]
fn negation_needs_the_header() {
    let udp = ipv4().udp(1000, 80).build();
    table(
        &udp,
        &[
            ("dst_port = { not = 80 }", false),
            ("dst_port = { not = [22, \"443-444\"] }", true),
            ("dst_port = [\"1-100\", { not = 80 }]", false),
            ("dst_port = [\"1-100\", { not = 81 }]", true),
            ("src = { not = \"10.0.0.0/8\" }", false),
            ("src = { not = \"2001:db8::/32\" }", true),
            ("src = [\"10.0.0.0/8\", { not = \"10.0.0.0/31\" }]", false),
            ("protocol = { not = \"tcp\" }", true),
            ("ethertype = { not = \"arp\" }", true),
            ("vlan = { not = 5 }", false),
            ("tcp_flags = { not = \"syn\" }", false),
            ("icmp_type = { not = 8 }", false),
            ("dst_mac = { not = \"multicast\" }", true),
            ("fragment = { not = \"any\" }", true),
            ("inner = { dst_port = { not = 80 } }", false),
        ],
    );
    let arp = FrameBuilder::new().ether_type(packet::EtherType::ARP).payload(&[0; 28]).build();
    table(
        &arp,
        &[
            ("src = { not = \"10.0.0.0/8\" }", false),
            ("ttl = { not = 0 }", false),
            ("ethertype = { not = \"ipv4\" }", true),
        ],
    );
    table(
        &ipv6().tcp(1, 80, 0x02).build(),
        &[
            ("src = { not = \"10.0.0.0/8\" }", true),
            ("tcp_flags = { not = [\"syn,ack\", \"rst\"] }", true),
            ("tcp_flags = { not = [\"syn,!ack\", \"rst\"] }", false),
        ],
    );
}

#[test]
fn macs_are_excluded_by_mask() {
    let frame = |last: u8| {
        let mac = |last| packet::MacAddr([2, 0, 0, 0, 0, last]);
        FrameBuilder::new().ethernet(mac(last), mac(9)).payload(&[0; 46]).build()
    };
    let matches = "dst_mac = [\"02:00:00:00:00:00/ff:ff:ff:ff:ff:f0\", { not = [\"02:00:00:00:00:05\", \"02:00:00:00:00:08/ff:ff:ff:ff:ff:f8\"] }]";
    for last in 0..=32 {
        assert_eq!(meets(&frame(last), matches), last < 8 && last != 5, "{last}");
    }
}

#[test]
fn network_fields_match_packets() {
    let v4 = ipv4().tos(0xb9).udp(1, 2).build();
    let key = FlowKey::of(&v4);
    table(
        &v4,
        &[
            ("dscp = \"ef\", ecn = \"ect1\"", true),
            ("dscp = \"ef\", ecn = \"ce\"", false),
            ("ecn = { not = \"ect1\" }", false),
            ("tos = 0xb9", true),
            ("traffic_class = 0xb9", false),
            (&format!("ttl = {}", key.ttl), true),
            (&format!("ttl = {{ not = {} }}", key.ttl), false),
            (&format!("hop_limit = {}", key.ttl), false),
            ("ip_flags = \"!mf\"", key.ip_flags & 1 == 0),
            ("ip_flags = [\"df\", \"!df\"]", true),
            ("ip_flags = \"mf\"", key.ip_flags & 1 == 1),
            ("flow_label = \"0-0xfffff\"", false),
        ],
    );
    let v6 = ipv6().tos(0xb8).udp(1, 2).build();
    let key = FlowKey::of(&v6);
    table(
        &v6,
        &[
            ("traffic_class = 0xb8", true),
            (&format!("hop_limit = {}", key.ttl), true),
            (&format!("flow_label = {}", key.flow_label), true),
            (&format!("flow_label = {{ not = {} }}", key.flow_label), false),
            ("ip_flags = \"!mf\"", false),
        ],
    );
    let piece = ipv4().fragment(0, true).udp(1, 2).build();
    table(
        &piece,
        &[
            ("fragment = [\"none\", \"first\"]", true),
            ("fragment = { not = \"first\" }", false),
            ("fragment = { not = \"later\" }", true),
            ("ip_flags = \"mf\"", true),
        ],
    );
}

/// A key as `parse_tunnel` gives it, without a frame: every field on its own.
#[test]
fn tunnel_fields_match_packets() {
    use packet::{Layers, TunnelKey, TunnelLayers};
    let key = |tunnel: TunnelKey| {
        let outer = FlowKey { layers: Layers::IPV4, ether_type: 0x0800, ..FlowKey::default() };
        DeepKey { outer, tunnel }
    };
    let meets = |tunnel, matches: &str| predicate(matches).matches_deep(&key(tunnel));
    let esp = TunnelKey { layers: TunnelLayers::ESP, esp_spi: 7, esp_seq: 9, ..TunnelKey::default() };
    assert!(meets(esp, "esp_spi = 7, esp_seq = \"9-10\""));
    assert!(!meets(esp, "esp_spi = { not = 7 }") && !meets(esp, "vxlan_vni = 0"));
    let gre = TunnelKey {
        layers: TunnelLayers::GRE | TunnelLayers::GRE_KEY,
        gre_flags: 0x2000,
        gre_protocol: 0x0800,
        gre_key: 5,
        ..TunnelKey::default()
    };
    assert!(meets(gre, "gre_key = 5, gre_protocol = \"ipv4\", gre_flags = \"key,!checksum\""));
    assert!(!meets(gre, "gre_flags = \"checksum\"") && !meets(gre, "gre_key = { not = 5 }"));
    let keyless = TunnelKey { layers: TunnelLayers::GRE, gre_protocol: 0x0800, ..TunnelKey::default() };
    assert!(!meets(keyless, "gre_key = 0") && meets(keyless, "gre_flags = \"!key\""));
    let entry = |label: u32, tc: u32, bottom: u32, ttl: u32| label << 12 | tc << 9 | bottom << 8 | ttl;
    let mpls = TunnelKey {
        layers: TunnelLayers::MPLS,
        mpls: [entry(100, 3, 0, 64), entry(200, 0, 1, 63), 0, 0],
        mpls_depth: 2,
        ..TunnelKey::default()
    };
    for (matches, is_met) in [
        ("mpls = 100", true),
        ("mpls = \"any\"", true),
        ("mpls = [100, 200]", true),
        ("mpls = [200]", false),
        ("mpls = [[99, 100], \"any\"]", true),
        ("mpls = [\"any\", \"any\", \"any\"]", false),
        ("mpls = { not = 100 }", false),
        ("mpls = [{ tc = 3, ttl = 64, bottom = false }, { label = 200, bottom = true }]", true),
        ("mpls = { label = 100, bottom = true }", false),
    ] {
        assert_eq!(meets(mpls, matches), is_met, "{matches}");
    }
    let inner = TunnelKey {
        layers: TunnelLayers::VXLAN | TunnelLayers::INNER | TunnelLayers::INNER_ETHERNET,
        vxlan_vni: 5000,
        inner_mpls: entry(7, 0, 1, 1),
        inner: FlowKey::of(&ipv4().tcp(1, 443, 0x02).build()),
        ..TunnelKey::default()
    };
    for (matches, is_met) in [
        ("vxlan_vni = 5000, inner = { dst = \"192.0.2.0/24\", dst_port = 443 }", true),
        ("vxlan_vni = { not = 5000 }", false),
        ("inner = { any = true }", true),
        ("inner = { dst_port = 80 }", false),
        ("inner = { mpls = 7 }", true),
        ("inner = { mpls = 8 }", false),
        ("dst_port = 443", false),
    ] {
        assert_eq!(meets(inner, matches), is_met, "{matches}");
    }
    // Without an inner Ethernet header there is no inner type to be anything.
    let bare = TunnelKey { layers: TunnelLayers::IP_IN_IP | TunnelLayers::INNER, ..TunnelKey::default() };
    assert!(
        meets(bare, "inner = { any = true }") && !meets(bare, "inner = { ethertype = { not = \"arp\" } }")
    );
}

#[test]
fn predicates_on_tunnels_need_the_tunnel() {
    assert!(predicate("inner = { any = true }").needs_tunnel());
    assert!(predicate("mpls = \"any\"").needs_tunnel());
    assert!(!predicate("protocol = \"gre\"").needs_tunnel());
    // If the tunnel was not parsed, conditions on it do not match.
    assert!(!predicate("vxlan_vni = 0").matches(&FlowKey::default()));
    let shown = predicate("vxlan_vni = 5, inner = { dst_port = 80 }").to_string();
    assert_eq!(
        shown,
        "any and vxlan+inner and vxlan_vni 5 and inner tcp|udp and inner dst_port 80"
            .trim_start_matches("any and ")
    );
}

#[test]
fn priorities_come_before_the_order_of_the_text() {
    let text = [
        "version = 1\n".to_owned(),
        rule("a", "tos = 1"),
        rule("b", "tos = 2") + "priority = -5\n",
        rule("c", "tos = 3"),
        rule("d", "tos = 4") + "priority = -5\n",
    ]
    .concat();
    let names: Vec<String> = good(&text, &Files::new()).rules.into_iter().map(|rule| rule.name).collect();
    assert_eq!(names, ["b", "d", "a", "c"]);
}

#[test]
fn actions_and_directions() {
    let text = "version = 1\ndefault_multicast = \"g\"\n[groups.g]\nworkers = [0]\n\
        [[rules]]\nname = \"a\"\nmatch = { any = true }\naction = { copy = \"g\" }\n\
        [[rules]]\nname = \"b\"\nmatch = { any = true }\naction = \"sniff g\"\n\
        [[rules]]\nname = \"c\"\nmatch = { any = true }\naction = \"kernel\"\n\
        [[rules]]\nname = \"d\"\nmatch = { any = true }\naction = \"pass\"\ndirection = \"egress\"\n";
    let rules = good(text, &Files::new()).rules;
    let group = program::GroupId(0);
    let actions: Vec<_> = rules.iter().map(|rule| (rule.action, rule.direction)).collect();
    let ingress = Direction::Ingress;
    assert_eq!(
        actions,
        [
            (Action::Copy(group), ingress),
            (Action::Sniff(group), ingress),
            (Action::Kernel, ingress),
            (Action::Pass, Direction::Egress),
            (Action::Steer(group), ingress),
        ]
    );
    assert!(rules[4].multicast_default && rules[4].name == "default_multicast");
}

#[test]
fn included_files_share_names_and_come_first() {
    let files = files(&[
        (
            "lib/base.toml",
            &format!(
                "version = 1\nincludes = [\"sets/hosts.toml\"]\n[groups.g]\nworkers = [0]\n{}",
                rule("base", "src = \"hosts\"")
            ),
        ),
        ("lib/sets/hosts.toml", "version = 1\n[sets]\nhosts = { file = \"hosts.txt\" }\n"),
        ("lib/sets/hosts.txt", "10.0.0.1\n"),
    ]);
    // The second time is no second reading.
    let text = format!(
        "version = 1\nincludes = [\"lib/base.toml\", \"lib/sets/hosts.toml\"]\ndefault = \"g\"\n{}",
        rule("main", "dst = \"hosts\"")
    );
    let policy = good(&text, &files);
    let names: Vec<&str> = policy.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["base", "main"]);
    assert_eq!(policy.rules[0].place.file(), "lib/base.toml");
    assert_eq!(policy.source.name, "main.toml");
}

#[test]
fn sets_name_other_sets() {
    let text = format!(
        "version = 1\n[sets]\nevery = [\"servers\", \"hosts\", \"10.9.0.1\"]\nservers = [\"web\", \"10.0.0.3\"]\n\
         web = [\"10.0.0.1\", \"10.0.0.2\"]\nhosts = {{ file = \"hosts.txt\" }}\n{}",
        rule("x", "src = \"every\", dst = { not = \"servers\" }")
    );
    let policy = good(&text, &files(&[("hosts.txt", "10.8.0.1\n")]));
    let matches = &policy.rules[0].matches;
    let src = matches.src.as_ref().expect("src").to_string();
    assert_eq!(src, "10.0.0.1/32,10.0.0.2/31,10.8.0.1/32,10.9.0.1/32");
    let dst = matches.dst.as_ref().expect("dst");
    assert!(!dst.contains(IpAddr::from([10, 0, 0, 2])) && dst.contains(IpAddr::from([10, 0, 0, 4])));
}

#[test]
fn sets_in_a_cycle_are_refused_by_name() {
    let sets = |list: &str| format!("version = 1\n[sets]\n{list}\n{}", rule("x", "src = \"a\""));
    let message = problems(
        &sets("a = [\"10.0.0.1\", \"b\"]\nb = [\"c\"]\nc = [\"b\", \"a\"]\nd = [\"d\"]"),
        &Files::new(),
    );
    for wanted in [
        "main.toml:5:6: error: sets contain one another: `b` contains `c` contains `b` (remove one of these names)",
        "main.toml:5:11: error: sets contain one another: `a` contains `b` contains `c` contains `a` (remove",
        "main.toml:6:6: error: sets contain one another: `d` contains `d` (remove",
    ] {
        assert!(message.contains(wanted), "{wanted}\n{message}");
    }
    assert_eq!(message.lines().count(), 3, "{message}");
    let long: String = (0..2000).map(|index| format!("s{index} = [\"s{}\"]\n", (index + 1) % 2000)).collect();
    let message = problems(&sets(&format!("a = [\"s0\"]\n{long}")), &Files::new());
    assert!(message.contains("`s7` contains ... contains `s0`"), "{message}");
}

#[test]
fn errors_in_nested_sets_are_reported_at_their_items() {
    let text = format!(
        "version = 1\n[sets]\na = [\"b\", \"bb\", \"f\"]\nb = [\"10.0.0.300\", \"10.0.0.1\"]\nports = [80, \"a\"]\n\
         f = {{ file = \"f.txt\" }}\n{}",
        rule("x", "src = \"a\", dst_port = \"ports\"")
    );
    let message = problems(&text, &files(&[("f.txt", "10.0.0.2\nb\n")]));
    for wanted in [
        "f.txt:2:1: error: this line of the set `f` is not an address (a file contains values only",
        "main.toml:3:11: error: `bb` in the set `a` is neither an address nor a set (did you mean the set `b`?)",
        "main.toml:4:6: error: `10.0.0.300` in the set `b` is not an address",
        "main.toml:3:6: error: no item of the set `b` is a port (its first item is `10.0.0.300`",
    ] {
        assert!(message.contains(wanted), "{wanted}\n{message}");
    }
}

#[test]
fn sets_that_multiply_are_read_once() {
    let mut text = "version = 1\n[sets]\ns0 = [1]\n".to_owned();
    (1..2000).for_each(|index| text.push_str(&format!("s{index} = [\"s{0}\", \"s{0}\"]\n", index - 1)));
    let policy = good(&(text + &rule("x", "dst_port = \"s1999\"")), &Files::new());
    assert_eq!(policy.rules[0].matches.get(Field::DstPort).expect("ports").to_string(), "1");
}

#[test]
fn problems_are_reported_in_their_own_file() {
    let files = files(&[
        (
            "a.toml",
            "version = 1\n[groups.g]\nworkers = [0]\n[[rules]]\nname = \"x\"\nmatch = { dst_prot = 1 }\naction = \"drop\"\n",
        ),
        ("b.toml", "version = 1\ndefault = \"drop\"\n[groups.g]\nworkers = [1]\n"),
    ]);
    let text = format!(
        "version = 1\ndefault = \"kernel\"\nincludes = [\"a.toml\", \"b.toml\"]\n{}",
        rule("x", "tos = 1")
    );
    let message = problems(&text, &files);
    for wanted in [
        "a.toml:6:11: error: unknown key `dst_prot` (did you mean `dst_port`?)",
        "b.toml:3:9: error: another group is called `g` (the first is on line 2 of a.toml)",
        "main.toml:5:8: error: another rule is called `x` (the first is on line 5 of a.toml)",
        "main.toml:2:11: error: `default` is given twice (the first is on line 2 of b.toml)",
    ] {
        assert!(message.contains(wanted), "{wanted}\n{message}");
    }
}

#[test]
fn cycles_and_missing_files_are_reported() {
    let cycle = files(&[
        ("a.toml", "version = 1\nincludes = [\"./b.toml\"]\n"),
        ("b.toml", "version = 1\nincludes = [\"a.toml\"]\n"),
        ("self.toml", "version = 1\nincludes = [\"x/../self.toml\"]\n"),
        ("x/../self.toml", "version = 1\n"),
    ]);
    let message = problems("version = 1\nincludes = [\"a.toml\"]\n", &cycle);
    assert!(message.contains("`a.toml` includes `b.toml` includes `a.toml`"), "{message}");
    assert!(message.starts_with("b.toml:2:13: error: files include one another"), "{message}");
    let message = problems("version = 1\nincludes = [\"self.toml\"]\n", &cycle);
    assert!(message.contains("`self.toml` includes `x/../self.toml`"), "{message}");
    let message =
        problems("version = 1\nincludes = [\"main.toml\"]\n", &files(&[("main.toml", "version = 1\n")]));
    assert!(message.contains("`main.toml` includes `main.toml`"), "{message}");
    let message = problems("version = 1\nincludes = [\"none.toml\", 5]\n", &Files::new());
    assert!(message.contains("cannot read the included file: no such file"), "{message}");
    assert!(message.contains("an included file must be a string"), "{message}");
}

/// Names that the missing file may define are not reported; other problems are.
#[test]
fn a_file_that_cannot_be_read_hides_no_other_problem() {
    let text = format!(
        "version = 1\nincludes = [\"none.toml\", \"broken.toml\", \"good.toml\"]\n[sets]\nbad = {{ file = \"none.txt\" }}\n\
         odd = [\"10.0.0.300\"]\n{}{}{}",
        rule("x", "src = [\"theirs\", \"odd\"], dst = \"${their_host}\", dst_prot = 1"),
        rule("y", "src = \"bad\", dst_port = \"1-\"").replace("\"drop\"", "\"steer theirs\""),
        rule("z", "src = [\"10.0.0.1/8\", \"odf\"]").replace("\"drop\"", "\"dorp\""),
    );
    let files = files(&[("broken.toml", "version = 1\nx\n"), ("good.toml", "version = 1\nsest = 1\n")]);
    let message = problems(&text, &files);
    let places: Vec<&str> =
        message.lines().map(|line| line.split(": error").next().expect("a place")).collect();
    assert_eq!(
        places,
        [
            "broken.toml:2:2",
            "good.toml:2:1",
            "main.toml:2:13",
            "main.toml:4:16",
            "main.toml:5:8",
            "main.toml:8:59",
            "main.toml:12:35",
            "main.toml:16:18",
            "main.toml:16:32",
            "main.toml:17:10",
        ],
        "{message}"
    );
}

#[test]
fn an_unknown_variable_is_reported_once_at_its_use() {
    let message = problems(
        &format!(
            "version = 1\n[groups.g]\nworkers = \"${{a}}\"\n[sets]\ns = [\"${{b}}\"]\n{}",
            rule("x", "src = \"s\", dst = \"${c}.${d}.${c}\", family = \"${e}\"")
                .replace("\"drop\"", "\"steer ${f}\"")
        ),
        &Files::new(),
    );
    let names: Vec<&str> = message
        .lines()
        .filter_map(|line| line.split("unknown variable `").nth(1)?.split('`').next())
        .collect();
    assert_eq!(names, ["a", "b", "c", "d", "e", "f"], "{message}");
    assert_eq!(message.lines().count(), names.len(), "{message}");
}

#[test]
fn includes_have_limits() {
    let chain: Files = (0..20)
        .map(|index| (format!("{index}.toml"), format!("version = 1\nincludes = [\"{}.toml\"]\n", index + 1)))
        .collect();
    let message = problems("version = 1\nincludes = [\"0.toml\"]\n", &chain);
    assert!(message.contains("more than 8 deep"), "{message}");
    let wide: Files = (0..300).map(|index| (format!("{index}.toml"), "version = 1\n".to_owned())).collect();
    let names: Vec<String> = (0..300).map(|index| format!("\"{index}.toml\"")).collect();
    let message = problems(&format!("version = 1\nincludes = [{}]\n", names.join(", ")), &wide);
    assert!(message.contains("at most 256 files"), "{message}");
}

fn given(list: &[(&str, &str)]) -> LoadOptions {
    LoadOptions { variables: files(list) }
}

#[test]
fn variables_are_substituted() {
    let text = format!(
        "version = 1\n[variables]\nport = 80\nhosts = [\"10.0.0.1\", \"10.0.0.2\"]\nnet = \"192.0.2\"\n{}",
        rule("x", "dst_port = \"${port}\", src = \"${hosts}\", dst = \"${net}.0/24\", ttl = \"0-${ttl}\"")
    );
    let read = |list: &[(&str, &str)]| with(&text, &Files::new(), &given(list));
    let (policy, warnings) = read(&[("ttl", "64"), ("net", "198.51.100")]).unwrap();
    let matches = &policy.rules[0].matches;
    assert_eq!(matches.get(Field::DstPort).unwrap().to_string(), "80");
    assert_eq!(matches.src.as_ref().unwrap().to_string(), "10.0.0.1/32,10.0.0.2/32");
    assert_eq!(matches.dst.as_ref().unwrap().to_string(), "198.51.100.0/24");
    assert_eq!(matches.get(Field::Ttl).unwrap().to_string(), "0-64");
    assert!(warnings.is_empty(), "{warnings:?}");
    // A list from outside, and one too many.
    let (policy, warnings) = read(&[("ttl", "64"), ("port", "[1, 2]"), ("prot", "7")]).unwrap();
    assert_eq!(policy.rules[0].matches.get(Field::DstPort).unwrap().to_string(), "1-2");
    assert!(warnings[0].message.contains("`prot` is given a value but is never used"), "{warnings:?}");
    let message = read(&[]).unwrap_err().to_string();
    assert!(message.contains("main.toml:8:11") || message.contains("unknown variable `ttl`"), "{message}");
}

#[test]
fn the_outermost_default_of_a_variable_wins() {
    let files = files(&[(
        "site.toml",
        &format!(
            "version = 1\n[variables]\nport = 1\nother = 9\n{}",
            rule("x", "dst_port = [\"${port}\", \"${other}\"]")
        ),
    )]);
    let text = "version = 1\nincludes = [\"${file}.toml\"]\n[variables]\nport = 2\nfile = \"site\"\n";
    let ports = |list: &[(&str, &str)]| {
        let (policy, _) = with(text, &files, &given(list)).unwrap_or_else(|bad| panic!("{bad}"));
        policy.rules[0].matches.get(Field::DstPort).unwrap().to_string()
    };
    assert_eq!(ports(&[]), "2,9");
    assert_eq!(ports(&[("port", "3")]), "3,9");
}

#[test]
fn substitutions_have_a_limit() {
    let hosts: Vec<String> =
        (0..20_000).map(|index| format!("\"10.0.{}.{}\"", index / 256 % 256, index % 256)).collect();
    let mut text = format!("version = 1\n[variables]\nhosts = [{}]\n", hosts.join(", "));
    (0..200).for_each(|index| text.push_str(&rule(&format!("r{index}"), "src = \"${hosts}\"")));
    let message = problems(&text, &Files::new());
    assert!(message.contains("take more than 16777216 bytes"), "{message}");
    assert_eq!(message.matches("bytes").count(), 1, "{message}");
}

#[test]
fn icmp_messages_are_matched_by_type_and_code() {
    let unreachable = ipv4().icmp(3, 1);
    table(
        &unreachable.build(),
        &[
            ("icmp_type = 3", true),
            ("icmp_type = 3, icmp_code = \"0-1\"", true),
            ("icmp_type = 3, icmp_code = { not = 1 }", false),
            ("icmp_type = \"4-255\"", false),
            ("icmpv6_type = 3", false),
        ],
    );
    table(&ipv6().icmp(135, 0).build(), &[("icmpv6_type = 135", true), ("icmp_type = 135", false)]);
    // Type, code and checksum have to be there.
    let frame = unreachable.build();
    table(&frame[..14 + 20 + 3], &[("icmp_type = 3", false), ("protocol = \"icmp\"", true)]);
    table(
        &unreachable.fragment(1, false).build(),
        &[("icmp_type = 3", false), ("protocol = \"icmp\"", true)],
    );
    // IPv6 has an ICMP of its own.
    table(
        &ipv6().protocol(packet::IpProtocol::ICMP).payload(&[8, 0, 0, 0]).build(),
        &[("icmp_type = 8", false)],
    );
}

#[test]
fn sctp_ports_have_keys_of_their_own() {
    let setup = ipv4().sctp(2905, 36412);
    table(
        &setup.build(),
        &[
            ("sctp_dst_port = 36412", true),
            ("sctp_dst_port = \"36412-36422\", sctp_src_port = { not = 9 }, protocol = \"sctp\"", true),
            ("sctp_dst_port = 2905", false),
            ("dst_port = 36412", false),
            ("src_port = 2905", false),
        ],
    );
    table(&ipv6().sctp(1, 2).build(), &[("sctp_src_port = 1", true), ("sctp_dst_port = 1", false)]);
    table(&ipv4().udp(1, 2).build(), &[("sctp_src_port = 1", false)]);
    // The whole common header has to be there, and later fragments have none.
    let (cut, later) = (setup.build(), setup.fragment(1, false).build());
    for frame in [&cut[..14 + 20 + 11], &later] {
        table(frame, &[("sctp_dst_port = \"0-65535\"", false), ("protocol = \"sctp\"", true)]);
    }
    let extended = ipv6().extension(packet::IpProtocol::HOP_BY_HOP).sctp(1, 2).build();
    table(&extended, &[("sctp_src_port = 1", false), ("ext_protocol = \"sctp\"", true)]);
}

#[test]
fn two_keys_become_two_rules_only_without_further_contrary_keys() {
    let keys = |matches: &str| {
        let text = format!("version = 1\n[[rules]]\nname = 'a'\nmatch = {{ {matches} }}\naction = 'drop'\n");
        let refused = policy::parse(&Source::new("p.toml", text), &NoFiles).map(|_| ()).expect_err(matches);
        refused.list.iter().find_map(|problem| problem.separate_keys.clone())
    };
    let two = keys("dst_port = 53, sctp_dst_port = 36412").expect("two keys");
    assert_eq!(two, ["dst_port", "sctp_dst_port"]);
    // A rule for each of two keys would leave one with `icmp_code` or `tcp_flags` alone.
    assert_eq!(keys("dst_port = 53, icmp_type = 8, icmp_code = 0"), None);
    assert_eq!(keys("dst_port = 53, tcp_flags = 'syn', sctp_dst_port = 36412"), None);
    assert_eq!(keys("icmp_type = 8, icmp_code = 0, icmpv6_type = 128"), None);
}

/// The packets that a policy protects, as `name: match`.
fn protected(text: &str) -> Option<Vec<String>> {
    let files = std::collections::BTreeMap::from([(
        "site.toml".to_owned(),
        "version = 1\n[protect]\nports = '179/tcp'\nprotocols = []\n".to_owned(),
    )]);
    let rule = "[[rules]]\nname = 'x'\nmatch = { dst_port = 80 }\naction = 'drop'\n";
    let source = Source::new("p.toml", format!("version = 1\n{text}\n{rule}"));
    let (policy, warnings) =
        policy::parse(&source, &files).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    let list = policy.protect?;
    let line = |one: &ProtectedMatch| format!("{}: {}", one.name, Predicate::of(&one.matches));
    Some(list.iter().map(line).collect())
}

#[test]
fn protect_lists_packets_by_port_address_tag_and_protocol() {
    assert_eq!(protected(""), None);
    assert_eq!(protected("[protect]\nprotocols = []"), Some(Vec::new()));
    let names = |text: &str| -> Vec<String> {
        let list = protected(text).expect("[protect]");
        list.iter().map(|line| line.split(':').next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(names("[protect]"), ["arp", "nd", "ra"]);
    assert_eq!(
        names("[protect]\nprotocols = ['arp', 'ospf', 'ARP', 'lldp', 103]"),
        ["arp", "ospf", "lldp", "103"]
    );
    // Ports that TCP and UDP share are one row, others one for each.
    let none = "[protect]\nprotocols = []\n";
    assert_eq!(names(&format!("{none}ports = ['22/tcp', '53', '22/udp']")), ["ports"]);
    assert_eq!(
        names(&format!("{none}ports = ['22/tcp', 53]\nremote_ports = 443")),
        ["ports", "ports", "remote_ports"]
    );
    assert_eq!(names(&format!("{none}ports = [53, '2905/sctp']")), ["ports", "ports"]);
    let sctp =
        protected(&format!("{none}ports = '2905/SCTP'\nremote_ports = '36412/sctp'")).expect("[protect]");
    for (line, value) in sctp.iter().zip(["sctp_dst_port 2905", "sctp_src_port 36412"]) {
        assert!(line.contains(value), "{sctp:?}");
    }
    assert_eq!(sctp.len(), 2);
    // Addresses alone protect all packets to them.
    assert_eq!(names(&format!("{none}addresses = '192.0.2.1'")), ["addresses"]);
    assert_eq!(names(&format!("{none}sources = '192.0.2.1'\nports = 22")), ["ports"]);
    assert_eq!(
        names(&format!("{none}matches = [{{ vlan = 7 }}, {{ dst_port = 1 }}]")),
        ["matches", "matches"]
    );
    let one = |text: &str| protected(&format!("{none}{text}")).expect("[protect]").join("\n");
    let tagged = one("ports = '22/tcp'\naddresses = '192.0.2.1'\nvlan = 'none'");
    for part in ["22", "192.0.2.1", "tcp"] {
        assert!(tagged.contains(part), "{tagged}");
    }
    // Neighbour discovery of the host alone: its addresses, their groups, and the group of all nodes.
    let own = protected("[protect]\nown_addresses = ['2001:db8::12:3456', 'fe80::/126']").expect("[protect]");
    assert!(!own[0].contains("ff02"), "ARP names no address: {own:?}");
    for line in &own[1..] {
        for part in ["2001:db8::12:3456", "fe80::", "ff02::1", "ff02::1:ff12:3456", "ff02::1:ff00:0"] {
            assert!(line.contains(part), "no {part} in {line}");
        }
    }
    let unused = "version = 1\n[protect]\nown_addresses = '2001:db8::1'\nprotocols = 'arp'\n";
    let (_, warnings) = policy::parse(&Source::new("p.toml", unused), &NoFiles).expect("a policy");
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert!(warnings.iter().any(|text| text.contains("`own_addresses` has no effect")), "{warnings:?}");
    // Included files add to it.
    assert_eq!(
        names("includes = ['site.toml']\n[protect]\nports = 22"),
        ["ports", "arp", "nd", "ra", "ports"]
    );
}

#[test]
fn both_ip_versions_can_be_listed() {
    let both = "family = ['ipv4', 'ipv6']";
    let arp = FrameBuilder::new().ether_type(packet::EtherType::ARP).build();
    assert!(
        meets(&ipv4().udp(1, 2).build(), both)
            && meets(&ipv6().protocol(packet::IpProtocol(99)).build(), both)
    );
    assert!(!meets(&arp, both));
    assert!(!meets(&ipv6().udp(1, 2).build(), "family = ['ipv4', 'ipv4']"));
    let with_others = "family = ['ipv4', 'ipv6'], dst_port = 2";
    assert!(meets(&ipv6().udp(1, 2).build(), with_others) && !meets(&ipv4().udp(1, 3).build(), with_others));
    let problems = problems(&format!("version = 1\n{}", rule("x", "family = []")), &files(&[]));
    assert!(problems.contains("`family` is an empty list"), "{problems}");
}

/// The table of a group with these keys, and the workers that a policy with it needs.
fn table_of(keys: &str) -> Vec<u32> {
    let policy = good(&format!("version = 1\n[groups.g]\n{keys}\ntable_size = 8\n"), &files(&[]));
    policy::spread::table_of(&policy.groups[0], 8).iter().map(|worker| worker.0).collect()
}

#[test]
fn workers_are_counted_and_weighted() {
    assert_eq!(table_of("workers = 3"), [0, 1, 2, 0, 1, 2, 0, 1]);
    assert_eq!(table_of("workers = 2\nweights = { 1 = 3 }"), [1, 0, 1, 1, 1, 0, 1, 1]);
    assert_eq!(table_of("weights = { 0 = 0, 1 = 1, 5 = 1 }"), [1, 5, 1, 5, 1, 5, 1, 5]);
    for (keys, problem) in [
        ("weights = { 0 = 0, 1 = 0 }", "every worker of the group has weight 0"),
        ("workers = 0", "the number of workers is out of range"),
        ("workers = 5000", "the number of workers is out of range"),
        ("workers = 2\nweights = { 2 = 1 }", "worker 2 has a weight but is not in the group"),
    ] {
        let message = problems(&format!("version = 1\n[groups.g]\n{keys}\n"), &files(&[]));
        assert!(message.contains(problem), "{keys}: {message}");
    }
}

/// The warnings about a policy with these lines, whose group `g` has these keys.
fn cautions(keys: &str, lines: &str) -> Vec<String> {
    let text = format!("version = 1\n{lines}\n[groups.g]\nworkers = \"all\"\n{keys}\n");
    let (_, warnings) =
        with(&text, &files(&[]), &LoadOptions::default()).unwrap_or_else(|bad| panic!("{bad}"));
    warnings.into_iter().map(|warning| warning.message).collect()
}

#[test]
fn policies_that_part_packets_are_warned_of() {
    let to_group = |matches: &str| {
        format!("rules = [{{ name = \"x\", match = {{ {matches} }}, action = {{ steer = \"g\" }} }}]")
    };
    for (keys, lines, wanted) in [
        ("", to_group("fragment = 'any'"), "hashes ports, which fragments do not have"),
        ("symmetric = true", to_group("vxlan_vni = 7"), "hashes the ports of the tunnel"),
        ("symmetric = true", to_group("mpls = 7"), "hashes the ports of the tunnel"),
    ] {
        let found = cautions(keys, &lines);
        assert!(found.len() == 1 && found[0].contains(wanted), "{lines}: {found:?}");
    }
    for (keys, lines) in [
        ("hash = 'l3'", to_group("fragment = 'any'")),
        ("", to_group("fragment = 'none'")),
        ("", to_group("dst_port = 53")),
        ("", to_group("vxlan_vni = 7")),
        ("hash = 'l3'\nsymmetric = true", to_group("vxlan_vni = 7")),
        ("", to_group("mpls = 7")),
        ("symmetric = true", to_group("mpls = 7, ethertype = 0x8847")),
        ("symmetric = true", to_group("mpls = 7, gre_protocol = 0x8847")),
    ] {
        assert_eq!(cautions(keys, &lines), Vec::<String>::new(), "{lines}");
    }
}

/// The part that a rule with this action and these keys lets through, or the problem.
fn policing(action: &str, keys: &str) -> Result<Policing, String> {
    let text = format!(
        "version = 1\n[groups.g]\nworkers = 'all'\n[[rules]]\nname = 'x'\nmatch = {{ protocol = 'udp' }}\n\
         action = {action}\n{keys}\n"
    );
    let read = with(&text, &files(&[]), &LoadOptions::default());
    read.map(|(policy, _)| policy.rules[0].policing).map_err(|bad| bad.to_string())
}

#[test]
fn rules_have_limits_and_samples() {
    let limit = |rate, burst| Some(RateLimit { burst, ..RateLimit::of_packets(rate) });
    let bits = |rate, burst| Some(RateLimit { burst, ..RateLimit::of(LimitUnit::Bits, rate) });
    let per = |ipv4_bits, ipv6_bits, sources| {
        let per_source = Some(SourceLimit { ipv4_bits, ipv6_bits, sources });
        Some(RateLimit { per_source, ..RateLimit::of_packets(10_000) })
    };
    for (keys, sample, wanted) in [
        ("", 1, None),
        ("sample = 100", 100, None),
        ("limit = '500/s'", 1, limit(500, 64)),
        ("limit = '10k/s'", 1, limit(10_000, 1000)),
        ("limit = '1G/s'\nsample = 2", 2, limit(1_000_000_000, 100_000_000)),
        ("limit = '3M/s'\nburst = 7", 1, limit(3_000_000, 7)),
        ("limit = '2/s'\nburst = 35942400", 1, limit(2, 35_942_400)),
        ("limit = '64kbit/s'", 1, bits(64_000, 65_536)),
        ("limit = '100Mbit/s'", 1, bits(100_000_000, 1_250_000)),
        ("limit = '1Tbit/s'\nburst = '3MB'", 1, bits(1_000_000_000_000, 3_000_000)),
        ("limit = '8kbit/s'\nburst = '1B'", 1, bits(8_000, 1)),
        ("limit = '10k/s'\nper = 'source'", 1, per(32, 64, 16_384)),
        ("limit = '10k/s'\nper = { source_ipv4 = 24, sources = 64 }", 1, per(24, 64, 64)),
        ("limit = '10k/s'\nper = { source_ipv6 = 128 }", 1, per(32, 128, 16_384)),
        ("limit = '10k/s'\nper = {}", 1, per(32, 64, 16_384)),
    ] {
        for action in ["'steer g'", "{ copy = 'g' }", "'sniff g'"] {
            assert_eq!(policing(action, keys), Ok(Policing { sample, limit: wanted }), "{action} {keys}");
        }
    }
}

#[test]
fn limits_and_samples_without_a_meaning_are_refused() {
    for (action, keys, wanted) in [
        ("'steer g'", "limit = 500", "`limit` must be a string such as \"10k/s\""),
        ("'steer g'", "limit = '500'", "`500` is not a rate"),
        ("'steer g'", "limit = '10 k/s'", "`10 k/s` is not a rate"),
        ("'steer g'", "limit = '10K/s'", "`10K/s` is not a rate"),
        ("'steer g'", "limit = 'k/s'", "`k/s` is not a rate"),
        ("'steer g'", "limit = '0/s'", "`limit` is out of range"),
        ("'steer g'", "limit = '2G/s'", "`limit` is out of range"),
        ("'steer g'", "limit = '99999999999/s'", "`limit` is out of range"),
        ("'steer g'", "sample = 0", "`sample` is out of range"),
        ("'steer g'", "limit = '100 Mbit/s'", "`100 Mbit/s` is not a rate"),
        ("'steer g'", "limit = '100Mb/s'", "`100Mb/s` is not a rate"),
        ("'steer g'", "limit = '7999bit/s'", "write a rate from \"8kbit/s\" to \"1Tbit/s\""),
        ("'steer g'", "limit = '2Tbit/s'", "`limit` is out of range"),
        ("'steer g'", "limit = '99999999999999999999Tbit/s'", "`limit` is out of range"),
        ("'steer g'", "limit = '1Mbit/s'\nburst = 1000", "must be a number of bytes, with the unit"),
        ("'steer g'", "limit = '1Mbit/s'\nburst = '64k'", "write bytes: \"1500B\", \"64kB\", \"2MB\""),
        ("'steer g'", "limit = '1Mbit/s'\nburst = '0B'", "write a burst from 1B to 1TB"),
        ("'steer g'", "limit = '8kbit/s'\nburst = '20GB'", "more than 8kbit/s lets through in 208 days"),
        ("'steer g'", "limit = '1k/s'\nburst = '64kB'", "`burst` of a limit on packets must be a number"),
        ("'steer g'", "per = 'source'", "`per` needs a `limit`"),
        ("'steer g'", "limit = '1/s'\nper = 'flow'", "`per` must be \"source\" or a table"),
        ("'steer g'", "limit = '1/s'\nper = 24", "`per` must be \"source\" or a table"),
        ("'steer g'", "limit = '1/s'\nper = { source_ipv4 = 33 }", "`source_ipv4` is out of range"),
        ("'steer g'", "limit = '1/s'\nper = { ipv4 = 24 }", "unknown key `ipv4`"),
        ("'steer g'", "limit = '1/s'\nper = { sources = 63 }", "write a number from 64 to 1048576"),
        ("'drop'", "per = 'source'", "`per` has no effect on a rule that drops all its packets"),
        ("'steer g'", "bandwidth = '1Mbit/s'", "write limit = \"100Mbit/s\""),
        ("'steer g'", "burst = 10", "`burst` needs a `limit`"),
        ("'steer g'", "limit = '1/s'\nburst = 0", "`burst` is out of range"),
        ("'steer g'", "limit = '2/s'\nburst = 35942401", "`burst` is more than 2/s lets through in 208 days"),
        ("'steer g'", "rate = '1/s'", "write limit = \"10k/s\""),
        ("'drop'", "limit = '1/s'", "no effect on a rule that drops all its packets"),
        ("'kernel'", "sample = 2", "not possible for packets that stay with the kernel"),
        ("'pass'\ndirection = 'egress'", "limit = '1/s'", "not possible for packets that the host sends"),
    ] {
        let message = policing(action, keys).expect_err(keys);
        assert!(message.contains(wanted), "{action} {keys}: {message}");
    }
}

#[test]
fn the_sources_of_all_rules_have_a_limit() {
    let rules = |count: u32| -> String {
        let rule = |n| {
            format!(
                "[[rules]]\nname = 'r{n}'\nmatch = {{ dst_port = {n} }}\naction = 'steer g'\nlimit = '1/s'\n\
                 per = {{ sources = 1048576 }}\n"
            )
        };
        let rules: String = (1..=count).map(rule).collect();
        format!("version = 1\n[groups.g]\nworkers = 'all'\n{rules}")
    };
    let read = |text: &str| with(text, &files(&[]), &LoadOptions::default());
    assert!(read(&rules(4)).is_ok());
    let refused = read(&rules(5)).expect_err("too many").to_string();
    assert!(refused.contains("room for 5242880 sources, a policy for at most 4194304"), "{refused}");
}

#[test]
fn rules_and_groups_have_descriptions() {
    let read = |group: &str, rule: &str| {
        let text = format!(
            "version = 1\n[groups.g]\nworkers = 'all'\n{group}\n[[rules]]\nname = 'x'\n\
             match = {{ protocol = 'udp' }}\naction = 'steer g'\n{rule}\n"
        );
        with(&text, &files(&[]), &LoadOptions::default()).map_err(|bad| bad.to_string())
    };
    let (policy, warnings) =
        read("description = 'of two'", "description = \"\"\"\none\ntwo é\n\"\"\"").expect("a policy");
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(policy.groups[0].description.as_deref(), Some("of two"));
    assert_eq!(policy.rules[0].description.as_deref(), Some("one\ntwo é"));
    let (policy, _) = read("", "").expect("a policy");
    assert_eq!((&policy.groups[0].description, &policy.rules[0].description), (&None, &None));
    let long = format!("description = '{}'", "x".repeat(1025));
    for (rule, wanted) in [
        ("description = 1", "`description` must be a string"),
        ("description = ' '", "`description` is not possible: it is empty"),
        ("description = \"a\\u001b[2J\"", "it contains the control character U+001B"),
        ("description = \"a\\u202eb\"", "it contains the control character U+202E"),
        (&*long, "it has 1025 bytes, at most 1024 are allowed"),
        ("comment = 'x'", "write `description`"),
    ] {
        for (group, rule) in [(rule, ""), ("", rule)] {
            let message = read(group, rule).expect_err(wanted);
            assert!(message.contains(wanted), "{message}");
        }
    }
}

#[test]
fn fields_behind_extension_headers_match_packets() {
    let extended = || ipv6().extension(IpProtocol::HOP_BY_HOP).extension(IpProtocol::DESTINATION_OPTIONS);
    let syn = [
        ("ext_protocol = \"tcp\"", true),
        ("ext_protocol = { not = \"udp\" }", true),
        ("ext_dst_port = 22, ext_src_port = \"1024-65535\"", true),
        ("ext_dst_port = { not = 22 }", false),
        ("ext_tcp_flags = \"syn,!ack\", protocol = \"hop_by_hop\"", true),
        ("ext_icmpv6_type = \"0-255\"", false),
        ("dst_port = 22", false),
        ("protocol = \"tcp\"", false),
    ];
    table(&extended().tcp(1024, 22, 2).build(), &syn);
    let ping = [("ext_icmpv6_type = 128, ext_icmpv6_code = 0", true), ("ext_tcp_flags = \"!syn\"", false)];
    table(&extended().icmp_echo(1, 1).build(), &ping);
    let without =
        [("ext_dst_port = 22", false), ("ext_protocol = \"0-255\"", false), ("dst_port = 22", true)];
    table(&ipv6().tcp(1024, 22, 2).build(), &without);
    let ah = [("ext_protocol = \"0-255\"", false), ("protocol = \"ah\"", true)];
    table(&ipv4().protocol(IpProtocol::AH).payload(&[6; 40]).build(), &ah);
    let first = [("ext_dst_port = 53, fragment = \"first\"", true), ("fragment = \"none\"", false)];
    table(&ipv6().fragment(0, true).udp(1, 53).build(), &first);
    let later =
        [("ext_protocol = \"udp\", fragment = \"later\"", true), ("ext_dst_port = \"0-65535\"", false)];
    table(&ipv6().fragment(1, true).protocol(IpProtocol::UDP).payload(&[0; 16]).build(), &later);
}

/// The rules of a policy with one rule, and its warnings.
fn skipping(top: &str, rule: &str) -> (Vec<String>, Vec<String>) {
    let text = format!("version = 1\n{top}\n[groups.g]\nworkers = 1\n[[rules]]\nname = \"r\"\n{rule}\n");
    let (policy, warnings) =
        with(&text, &Files::new(), &LoadOptions::default()).unwrap_or_else(|bad| panic!("{bad}\n{text}"));
    let rules = policy.rules.iter().map(|rule| format!("{}: {}", rule.name, Predicate::of(&rule.matches)));
    (rules.collect(), warnings.into_iter().map(|warning| warning.message).collect())
}

#[test]
fn rules_that_skip_extension_headers_have_a_part_behind_them() {
    let ssh = "match = { dst = \"2001:db8::/32\", protocol = \"tcp\", dst_port = 22 }\naction = \"drop\"";
    let (rules, warnings) = skipping("", &format!("{ssh}\nipv6_extensions = \"skip\""));
    assert_eq!(
        rules,
        [
            "r: tcp|udp and protocol tcp and dst_port 22 and dst 2001:db8::/32",
            "r~extensions: ipv6 and extended_tcp|extended_udp and protocol hop_by_hop,43-44,ah,destination_options and ext_protocol tcp and ext_dst_port 22 and dst 2001:db8::/32",
        ]
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(skipping("ipv6_extensions = \"skip\"", ssh).0, rules);
    assert_eq!(skipping("", ssh).0, rules[..1]);
    let stops = format!("{ssh}\nipv6_extensions = \"stop\"");
    assert_eq!(skipping("ipv6_extensions = \"skip\"", &stops).0, rules[..1]);
    let twice = files(&[("other.toml", "version = 1\nipv6_extensions = \"stop\"\n")]);
    let text = "version = 1\nincludes = [\"other.toml\"]\nipv6_extensions = \"skip\"\n";
    assert!(problems(text, &twice).contains("`ipv6_extensions` is given twice"));
}

/// The number of an extension header is a protocol of IPv4 packets, and of IPv6 packets whose headers cannot
/// be read to their end.
#[test]
fn protocols_that_are_extension_headers_are_of_ipv4_or_of_headers_that_are_not_read() {
    let top = "ipv6_extensions = \"skip\"";
    let (rules, _) = skipping(top, "match = { protocol = [\"udp\", \"ah\"] }\naction = \"drop\"");
    let [ipv4, ipv6, behind] = &rules[..] else { panic!("{rules:?}") };
    assert_eq!([ipv4, ipv6], ["r: ipv4 and protocol udp,ah", "r~ipv6: ipv6 and protocol udp"]);
    assert!(behind.ends_with("ext_protocol udp,ah"), "{behind}");
    let (rules, _) =
        skipping(top, "match = { family = \"ipv6\", protocol = [\"udp\", \"ah\"] }\naction = \"drop\"");
    assert_eq!((rules.len(), &*rules[0]), (2, "r: ipv6 and protocol udp"));
    let typed = "match = { ethertype = \"ipv6\", protocol = { not = \"udp\" } }\naction = \"drop\"";
    let (rules, _) = skipping(top, typed);
    let [ipv6, behind] = &rules[..] else { panic!("{rules:?}") };
    assert!(ipv6.starts_with("r: ipv6 and ") && behind.starts_with("r~extensions: "), "{rules:?}");
}

#[test]
fn a_rule_with_a_part_behind_extension_headers_has_one_warning() {
    let rule =
        "rules = [{ name = 'x', match = { fragment = 'first', dst_port = 53 }, action = { steer = 'g' } }]";
    let stops = cautions("", rule);
    assert_eq!(stops.len(), 1, "{stops:?}");
    assert_eq!(cautions("", &format!("ipv6_extensions = 'skip'\n{rule}")), stops);
}

#[test]
fn rules_that_cannot_skip_extension_headers_say_why() {
    for (lines, why) in [
        ("match = { dst = \"192.0.2.1\", dst_port = 53 }\naction = \"drop\"", "IPv4 packets only"),
        ("match = { ethertype = \"ipv4\", dst_port = 53 }\naction = \"drop\"", "IPv4 packets only"),
        ("match = { icmp_type = 8 }\naction = \"drop\"", "IPv4 packets only"),
        ("match = { sctp_dst_port = 2905 }\naction = \"drop\"", "SCTP are not read behind extension headers"),
        ("match = { dst = \"2001:db8::1\" }\naction = \"drop\"", "no condition is on what follows"),
        ("match = { family = [\"ipv4\", \"ipv6\"] }\naction = \"drop\"", "no condition is on what follows"),
        ("match = { protocol = \"ah\" }\naction = \"drop\"", "extension headers themselves"),
        ("match = { ext_dst_port = 53 }\naction = \"drop\"", "extension headers or on a tunnel"),
        (
            "match = { vxlan_vni = 5, protocol = \"udp\" }\naction = \"drop\"",
            "extension headers or on a tunnel",
        ),
        ("match = { dst_port = 53 }\naction = \"drop\"\ndirection = \"egress\"", "does not get sent packets"),
        ("match = { dst_port = 53 }\naction = { sniff = \"g\" }", "a sniffer gets all packets"),
    ] {
        let (rules, warnings) = skipping("", &format!("{lines}\nipv6_extensions = \"skip\""));
        assert_eq!(rules.len(), 1, "{lines}");
        assert!(warnings.iter().any(|warning| warning.contains(why)), "{lines}: {warnings:?}");
        // The key of the policy is for the rules on which it has an effect.
        let (rules, warnings) = skipping("ipv6_extensions = \"skip\"", lines);
        assert_eq!(rules.len(), 1, "{lines}");
        assert!(!warnings.iter().any(|warning| warning.contains("ipv6_extensions")), "{warnings:?}");
    }
}

#[test]
fn contradictions_behind_extension_headers_are_refused() {
    for (matches, message) in [
        ("ext_dst_port = 22, dst_port = 22", "no packet has both"),
        ("ext_tcp_flags = \"syn\", ext_icmpv6_type = 1", "no packet has both"),
        ("icmpv6_type = 128, ext_dst_port = 22", "no packet has both"),
        ("icmpv6_type = 128, ext_icmpv6_type = 128", "no packet has both"),
        (
            "ext_protocol = \"udp\", ext_tcp_flags = \"syn\"",
            "`ext_tcp_flags` needs TCP, and `ext_protocol` excludes it",
        ),
        (
            "protocol = \"tcp\", ext_dst_port = 22",
            "`ext_dst_port` needs IPv6 extension headers, and `protocol` excludes it",
        ),
        ("family = \"ipv4\", ext_dst_port = 22", "`ext_dst_port` is an IPv6 field, but `family` is ipv4"),
        ("fragment = \"later\", ext_dst_port = 22", "later fragments have no TCP, UDP, SCTP or ICMP header"),
        ("esp_spi = 1, ext_dst_port = 22", "`ext_dst_port` cannot be combined with a tunnel"),
        ("inner = { ext_dst_port = 22 }", "`ext_dst_port` is a field of the outer packet"),
    ] {
        let text = format!("version = 1\n{}", rule("x", matches));
        let problems = problems(&text, &Files::new());
        assert!(problems.contains(message), "{matches}: {problems}");
    }
}

#[test]
fn rules_at_run_time_have_a_place_forms_and_actions() {
    let policy = |runtime: &str| {
        let text = format!(
            "version = 1\n[groups.a]\nworkers = 'all'\n[[rules]]\nname = 'x'\nmatch = {{ dst_port = 80 }}\naction = 'drop'\n\
             [[rules]]\nname = 'first'\npriority = -1\nmatch = {{ dst_port = 81 }}\naction = 'drop'\n{runtime}"
        );
        policy::parse(&Source::new("p.toml", text), &NoFiles)
    };
    let good = "[runtime]\nbefore = 'x'\nmatches = ['src dst', 'dst_port protocol', 'src/48']\n\
        actions = ['drop', 'steer a', { steer = 'a' }]\nrules = 9\ndevice_rules = 20\nowners = { 1000 = 5 }\n";
    let (read, _) = policy(good).expect("a policy");
    let runtime = read.runtime.expect("[runtime]");
    assert_eq!(runtime.before, 1, "in the final order of the rules");
    let forms: Vec<String> = runtime.forms.iter().map(ToString::to_string).collect();
    assert_eq!(forms, ["src dst (IPv4)", "src dst (IPv6)", "protocol dst_port", "src/48 (IPv6)"]);
    let actions: Vec<&str> = runtime.actions.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(actions, ["drop", "steer a"]);
    assert_eq!((runtime.rules_max, runtime.device_rules_max, runtime.owners[&1000]), (9, 9, 5));
    let least = "[runtime]\nmatches = ['src']\nactions = ['drop']\n";
    let (read, _) = policy(least).expect("a policy");
    assert_eq!(read.runtime.expect("[runtime]").before, 2, "the default");
    for (runtime, message) in [
        ("[runtime]\nactions = ['drop']\n", "`runtime` has no `matches`"),
        ("[runtime]\nmatches = ['src']\n", "`runtime` has no `actions`"),
        ("[runtime]\nmatches = []\nactions = ['drop']\n", "`matches` has 0 forms"),
        ("[runtime]\nmatches = ['sorce']\nactions = ['drop']\n", "unknown field `sorce`"),
        ("[runtime]\nmatches = ['src', 'src']\nactions = ['drop']\n", "the same fields are listed before"),
        (
            "[runtime]\nmatches = ['src/24 dst/64']\nactions = ['drop']\n",
            "the lengths are of different IP versions",
        ),
        ("[runtime]\nmatches = ['src']\nactions = ['copy a']\n", "a rule at run time cannot copy"),
        ("[runtime]\nmatches = ['src']\nactions = ['steer b']\n", "unknown group `b`"),
        ("[runtime]\nbefore = 'y'\nmatches = ['src']\nactions = ['drop']\n", "unknown rule `y`"),
        ("[runtime]\nmatches = ['src']\nactions = ['drop']\nowners = { bob = 1 }\n", "`bob` is no user id"),
        ("[runtime]\nmatches = ['src']\nactions = ['drop']\nrules = 9_000_000\n", "`rules` is out of range"),
        ("[runtime]\nmatches = ['src']\nactions = ['drop']\nafter = 'x'\n", "unknown key `after`"),
    ] {
        let refused = policy(runtime).expect_err(runtime).to_string();
        assert!(refused.contains(message), "{runtime}: {refused}");
    }
}

#[test]
fn a_recorder_names_rules_and_conditions() {
    let policy = |recorder: &str| {
        let text = format!(
            "version = 1\n[sinks.s]\nkind = 'count'\n[groups.a]\nworkers = 'all'\nsinks = 's'\n\
             [[rules]]\nname = 'x'\nmatch = {{ dst_port = 80 }}\naction = 'steer a'\n{recorder}"
        );
        policy::parse(&Source::new("p.toml", text), &NoFiles).map(|(policy, _)| policy.recorder)
    };
    assert!(policy("").expect("a policy").is_none());
    let read = |text: &str| policy(text).expect("a policy").expect("[recorder]").recorder;
    let least = read("[recorder]\nmemory = '1 MiB'\n");
    assert_eq!(least.ring, RecorderRing { memory_bytes: 1 << 20, snap_bytes: 128 });
    assert!(least.rules.is_none() && least.triggers.is_empty());
    let most = read(
        "[recorder]\nmemory = '1024GiB'\nsnap = 14\nrules = ['default', 'x']\n\
         [[recorder.triggers]]\nsink = 's'\ndrops_per_second = 1\n\
         [[recorder.triggers]]\nrule = 'x'\npackets_per_second = 4_000_000_000\n\
         [[recorder.triggers]]\nworker_stalls = true\n",
    );
    assert_eq!(most.ring, RecorderRing { memory_bytes: 1 << 40, snap_bytes: 14 });
    assert_eq!(most.rules.expect("a list"), ["default", "x"]);
    let triggers = [
        RecorderTrigger::SinkDrops { sink: "s".to_owned(), per_second: 1 },
        RecorderTrigger::RulePackets { rule: "x".to_owned(), per_second: 4_000_000_000 },
        RecorderTrigger::WorkerStalls,
    ];
    assert_eq!(most.triggers, triggers);
    let no_condition = "the trigger has no single condition";
    for (lines, message) in [
        ("snap = 64", "`recorder` has no `memory`"),
        ("memory = '256 MB'", "`256 MB` is not a size"),
        ("memory = ' MiB'", "` MiB` is not a size"),
        ("memory = '0 MiB'", "`memory` is out of range"),
        ("memory = '1025 GiB'", "`memory` is out of range"),
        ("memory = '99999999999999999999 GiB'", "`memory` is out of range"),
        ("memory = 256", "`memory` must be a string"),
        ("memory = '1 MiB'\nsnap = 13", "`snap` is out of range"),
        ("memory = '1 MiB'\nrules = []", "`rules` names no rule"),
        ("memory = '1 MiB'\nrules = ['y']", "unknown rule `y`"),
        ("memory = '1 MiB'\nrule = 'x'", "unknown key `rule`"),
        ("memory = '1 MiB'\ntriggers = [{ sink = 't', drops_per_second = 1 }]", "unknown sink `t`"),
        ("memory = '1 MiB'\ntriggers = [{ rule = 'y', packets_per_second = 1 }]", "unknown rule `y`"),
        ("memory = '1 MiB'\ntriggers = [{ rule = 'x', packets_per_second = 0 }]", "is out of range"),
        ("memory = '1 MiB'\ntriggers = [{ rule = 'x', drops_per_second = 1 }]", no_condition),
        ("memory = '1 MiB'\ntriggers = [{ rule = 'x' }]", no_condition),
        ("memory = '1 MiB'\ntriggers = [{}]", no_condition),
        ("memory = '1 MiB'\ntriggers = [{ worker_stalls = false }]", "the trigger is off"),
    ] {
        let refused = policy(&format!("[recorder]\n{lines}\n")).expect_err(lines).to_string();
        assert!(refused.contains(message), "{lines}: {refused}");
    }
}

#[test]
fn sets_may_limit_how_much_they_change() {
    let text = "version = 1\n[sets]\na = { items = ['10.0.0.1', 'b'], max_change = 20 }\nb = ['10.0.0.2', '10.0.0.3']\n\
        [[rules]]\nname = 'x'\nmatch = { src = 'a' }\naction = 'drop'\n";
    let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
    let [size] = policy.set_sizes.as_slice() else { panic!("{:?}", policy.set_sizes) };
    assert_eq!((size.name.as_str(), size.values, size.max_change_percent), ("a", 3, 20));
    let too_much = |before: usize| size.changes_too_much(before);
    assert_eq!([2, 3, 4, 0].map(too_much), [true, false, true, true]);
}

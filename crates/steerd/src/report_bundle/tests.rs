//! No address, MAC address or secret of the inputs is in a bundle, and a redacted policy compiles to as many
//! flows as the policy.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use device_model::DeviceModel;
use packet::MacAddr;
use proptest::prelude::*;

use super::address_map::AddressMap;
use super::*;
use crate::policy_file::InputFile;

const TOKEN: &str = "correct-horse-battery-staple";

/// The addresses of a network.
#[derive(Clone, Debug)]
struct Network {
    hosts: Vec<Ipv4Addr>,
    hosts6: Vec<Ipv6Addr>,
    macs: Vec<MacAddr>,
    /// Networks with the lengths of their prefixes; their host bits are zero.
    prefixes: Vec<(Ipv4Addr, u8)>,
    /// The first address of ranges of up to 256.
    ranges: Vec<(Ipv4Addr, u8)>,
}

/// An address outside the ranges that every network has, and of such bits that a short one is not met by
/// chance.
fn host() -> impl Strategy<Value = Ipv4Addr> {
    (0x1000_0000u32..0xdfff_ffff).prop_map(Ipv4Addr::from).prop_filter("not common", |address| {
        !address.is_loopback() && address.octets().iter().all(|byte| *byte > 9)
    })
}

fn network() -> impl Strategy<Value = Network> {
    let host6 = (0x2000u16..0x3fff, any::<u64>(), any::<u64>()).prop_map(|(first, high, low)| {
        Ipv6Addr::from(
            (u128::from(first) << 112) | (u128::from(high >> 16) << 64) | u128::from(low | 1 << 60),
        )
    });
    let mac = any::<[u8; 5]>()
        .prop_map(|rest| MacAddr([0x9c, rest[0] | 1, rest[1], rest[2], rest[3] | 1, rest[4]]));
    let prefix = (host(), 16u8..=30).prop_map(|(address, length)| {
        let mask = u32::MAX << (32 - u32::from(length));
        (Ipv4Addr::from(u32::from(address) & mask), length)
    });
    (
        prop::collection::vec(host(), 1..6),
        prop::collection::vec(host6, 1..4),
        prop::collection::vec(mac, 1..4),
        prop::collection::vec(prefix, 1..8),
        prop::collection::vec((host(), 1u8..=255), 1..3),
    )
        .prop_map(|(hosts, hosts6, macs, prefixes, ranges)| Network {
            hosts,
            hosts6,
            macs,
            prefixes,
            ranges,
        })
}

impl Network {
    /// A policy about all of it; ranges only if their overlaps do not matter.
    fn policy(&self, has_ranges: bool) -> String {
        let mut text = format!(
            "version = 1 # for {}\n[groups.g]\nworkers = [0]\n[sets.bad]\nfile = \"bad.txt\"\n[sinks.tap]\nkind = \"count\"\n",
            self.hosts[0]
        );
        let mut rule = |keys: String| {
            let number = text.matches("[[rules]]").count();
            let _ =
                write!(text, "[[rules]]\nname = \"r{number}\"\nmatch = {{ {keys} }}\naction = \"drop\"\n");
        };
        for (address, length) in &self.prefixes {
            rule(format!("src = \"{address}/{length}\""));
        }
        for host in &self.hosts6 {
            let network = Ipv6Addr::from(u128::from(*host) >> 64 << 64);
            rule(format!("dst = \"{network}/64\", protocol = \"udp\""));
            rule(format!("dst = \"{host}\""));
        }
        for mac in &self.macs {
            rule(format!("src_mac = \"{mac}\""));
        }
        for (first, more) in self.ranges.iter().filter(|_| has_ranges) {
            rule(format!("dst = \"{first}-{}\"", last(*first, *more)));
        }
        rule("dst = \"bad\", protocol = \"tcp\"".to_owned());
        text
    }

    fn set_file(&self) -> String {
        self.hosts.iter().map(|host| format!("{host} # of {host}\n")).collect()
    }

    /// A log with the addresses in the forms that programs print.
    fn log(&self) -> String {
        let mut text =
            format!("Authorization: Bearer {TOKEN}\nGET /metrics?token={TOKEN} 200\nread {TOKEN}\n");
        for host in &self.hosts {
            let _ = writeln!(
                text,
                "peer {host}: refused, {host}:9464 (src={host}) \"\\n{host}\" [{host}]. {host}-x x-{host}."
            );
        }
        for host in &self.hosts6 {
            let _ = writeln!(text, "to [{host}]:80, {host}/64 via {host}%eth0 <{host}>");
        }
        for mac in &self.macs {
            let hyphens = mac.to_string().replace(':', "-");
            let digits = mac.to_string().replace(':', "");
            let _ = writeln!(text, "link/ether {mac} {hyphens} enx{digits}: mac={mac}, rocex{digits}");
        }
        text
    }

    /// The forms of the addresses that may be in no file.
    fn private_words(&self) -> Vec<String> {
        let mut words = vec![TOKEN.to_owned()];
        words.extend(self.hosts.iter().map(ToString::to_string));
        words.extend(self.hosts6.iter().map(ToString::to_string));
        words.extend(self.prefixes.iter().map(|(address, length)| format!("{address}/{length}")));
        for (first, more) in &self.ranges {
            words.extend([first.to_string(), last(*first, *more).to_string()]);
        }
        for mac in &self.macs {
            let mac = mac.to_string();
            words.extend([mac.replace(':', "-"), mac.replace(':', ""), mac]);
        }
        words
    }

    fn inputs(&self, has_ranges: bool) -> Inputs {
        let file = InputFile { text: Some(self.set_file()), ..InputFile::default() };
        Inputs {
            text: Some(self.policy(has_ranges)),
            files: [("bad.txt".to_owned(), file)].into(),
            ..Inputs::default()
        }
    }

    fn bundle(&self, key: u8) -> ReportBundle {
        let mut redactor = Redactor::new(AddressMap::with_key(key));
        redactor.add_secret(TOKEN);
        redactor.add_name("build-host7", "this-host");
        let state = serde_json::json!({
            "log": self.log(),
            "flows": self.prefixes.iter().map(|(address, length)| format!("ipv4 src {address}/{length}")).collect::<Vec<_>>(),
            "by_source": { self.hosts[0].to_string(): 123_456_789_012_u64 },
            "session_token": "another secret",
        });
        let settings = format!(
            "# {}\n[http]\nlisten = \"{}:9464\"\ntoken_file = \"/etc/steerd/token\"\n[policy.variables]\nsite = \"10.20\"\n",
            self.hosts[0], self.hosts[0]
        );
        let parts = vec![
            ("policy".to_owned(), RawPart::Policy(Box::new(self.inputs(true)))),
            ("settings.toml".to_owned(), RawPart::Settings(settings)),
            ("state.json".to_owned(), RawPart::Json(state)),
            ("journal.txt".to_owned(), RawPart::Text(format!("{}\non build-host7\n", self.log()))),
            ("history.json".to_owned(), RawPart::Absent(format!("{} does not answer", self.hosts[0]))),
        ];
        ReportBundle::of(RawBundle { parts, redactor })
    }
}

fn last(first: Ipv4Addr, more: u8) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first).saturating_add(more.into()))
}

/// Whether a word is in a text, but not as the middle of a longer number.
fn has_word(text: &str, word: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_hexdigit();
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_digit) && !text[at + word.len()..].starts_with(is_digit))
}

/// The number of flows of a policy for an mlx5.
fn flows(text: &str, files: &BTreeMap<String, String>) -> usize {
    let source = policy::Source::new("policy.toml", text);
    let (policy, _) = policy::parse(&source, files).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
    let program = compiler::compile(&policy, &DeviceModel::mlx5(), 1);
    program.unwrap_or_else(|problems| panic!("{problems:?}\n{text}")).flows.len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_private_is_in_a_bundle(network in network(), key: u8) {
        let bundle = network.bundle(key);
        let words = network.private_words();
        prop_assert!(bundle.files().count() >= 5);
        for (name, text) in bundle.files() {
            for word in words.iter().map(String::as_str).chain(["another secret", "10.20\"", "build-host7"]) {
                prop_assert!(!has_word(text, word), "{word} is in {name}:\n{text}");
            }
        }
        let remarks: Vec<&str> = bundle.parts.iter().filter_map(|part| part.remark.as_deref()).collect();
        prop_assert!(remarks.iter().all(|remark| words.iter().all(|word| !has_word(remark, word))), "{remarks:?}");
    }

    #[test]
    fn a_redacted_policy_has_as_many_flows(network in network(), key: u8) {
        let inputs = network.inputs(false);
        let redactor = Redactor::new(AddressMap::with_key(key));
        let redacted = policy_text::of_inputs(&inputs, &redactor).expect("texts");
        let files: BTreeMap<String, String> = redacted
            .iter()
            .map(|file| (file.name.trim_start_matches("policy/").to_owned(), file.text.clone()))
            .collect();
        let before: BTreeMap<String, String> =
            inputs.files.iter().map(|(name, file)| (name.clone(), file.text.clone().expect("kept"))).collect();
        prop_assert_eq!(flows(&files["policy.toml"], &files), flows(&inputs.text.expect("kept"), &before));
    }
}

#[test]
fn the_policies_of_the_examples_have_as_many_flows() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/examples");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).expect("examples").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let source = crate::settings::PolicySource::file(path.clone(), BTreeMap::new());
        let Ok(read) = crate::policy_file::load(&source) else { continue };
        let redactor = Redactor::new(AddressMap::with_key(5));
        let redacted = policy_text::of_inputs(&read.inputs, &redactor).expect("texts");
        let files: BTreeMap<String, String> = redacted
            .iter()
            .map(|file| (file.name.trim_start_matches("policy/").to_owned(), file.text.clone()))
            .collect();
        let Ok(before) = compiler::compile(&read.policy, &DeviceModel::ideal(), 4) else { continue };
        let source = policy::Source::new("policy.toml", files["policy.toml"].as_str());
        let (policy, _) = policy::parse(&source, &files)
            .unwrap_or_else(|problems| panic!("{}: {problems:?}\n{}", path.display(), files["policy.toml"]));
        let after = compiler::compile(&policy, &DeviceModel::ideal(), 4).expect("as before");
        assert_eq!(after.flows.len(), before.flows.len(), "{}", path.display());
        compared += 1;
    }
    assert!(compared >= 5, "{compared}");
}

#[test]
fn an_address_has_one_name_in_all_files() {
    let mut redactor = Redactor::new(AddressMap::with_key(9));
    redactor.add_secret(TOKEN);
    let name = |text: &str| redactor.text(text);
    let new = name("10.20.30.40");
    assert_ne!(new, "10.20.30.40");
    assert_eq!(name("src 10.20.30.40, x"), format!("src {new}, x"));
    assert_eq!(name("10.20.30.40:53 > x"), format!("{new}:53 > x"));
    assert_eq!(name("tcp_10.20.30.40_x"), format!("tcp_{new}_x"));
    // A prefix of the address is that of its new name.
    let network = name("10.20.30.0/24");
    let third = |text: &str| text.rsplit_once('.').expect("dots").0.to_owned();
    assert_eq!(third(network.trim_end_matches("/24")), third(&new));
    let mac = name("9c:63:c0:aa:01:02");
    assert_eq!(name("enx9c63c0aa0102 9c63.c0aa.0102"), {
        let digits = mac.replace(':', "");
        format!("enx{digits} {}.{}.{}", &digits[..4], &digits[4..8], &digits[8..])
    });
    let masked = name("10.20.30.0/255.255.255.0");
    assert_eq!(masked, network.replace("/24", "/255.255.255.0"));
}

#[test]
fn addresses_in_unusual_forms_are_replaced() {
    let redactor = Redactor::new(AddressMap::with_key(9));
    for (text, address, before, behind) in [
        ("10.1.2.3/10.4.5.6", "10.4.5.6", "", ""),
        ("9c:63:c0:aa:01:02/9c:63:c0:aa:01:03", "9c:63:c0:aa:01:03", "", ""),
        ("10.1.2.0/255.255.255.0", "10.1.2.0", "", "/255.255.255.0"),
        ("cam-9c-63-c0-aa-01-02-front", "9c-63-c0-aa-01-02", "cam-", "-front"),
        ("dst:2001:db8:77::9", "2001:db8", "dst:", ""),
        ("10.1.2.3.443", "10.1.2.3", "", ".443"),
    ] {
        let new = redactor.text(text);
        assert!(!new.contains(address), "{text}: {new}");
        assert!(new.starts_with(before) && new.ends_with(behind), "{text}: {new}");
    }
    let mask = redactor.text("01:00:00:00:00:00/01:00:00:00:00:00");
    assert!(mask.ends_with("/01:00:00:00:00:00"), "{mask}");
}

#[test]
fn a_word_of_many_parts_takes_no_deep_recursion() {
    let text = "x-".repeat(200_000);
    assert_eq!(Redactor::new(AddressMap::with_key(9)).text(&text), text);
}

#[test]
fn names_in_a_policy_are_no_secrets_and_descriptions_are_left_out() {
    let text = "version = 1\n[groups.token]\nworkers = [0]\n[sets]\npassword = [\"192.0.2.0/24\"]\n[[rules]]\n\
                name = \"r\"\ndescription = \"of a customer\"\nmatch = { src = \"password\" }\naction = \"drop\"\n";
    let redactor = Redactor::new(AddressMap::with_key(9));
    let inputs = Inputs { text: Some(text.to_owned()), ..Inputs::default() };
    let redacted = policy_text::of_inputs(&inputs, &redactor).expect("texts").remove(0).text;
    assert!(redacted.contains("[groups.token]") && redacted.contains("/24"), "{redacted}");
    assert!(!redacted.contains("customer") && !redacted.contains("removed"), "{redacted}");
    let value = serde_json::json!({ "token": { "packets": 1 }, "api_token": "x", "descriptions": ["a"] });
    let expected = serde_json::json!({ "token": { "packets": 1 }, "api_token": "removed" });
    assert_eq!(redactor.json(value), expected);
}

#[test]
fn short_names_of_hosts_are_replaced_as_words() {
    let mut redactor = Redactor::new(AddressMap::with_key(9));
    redactor.add_name("gw", "this-host");
    redactor.add_name("", "host-1");
    assert_eq!(redactor.text("gw: at gw.lan, gw_rule gws"), "this-host: at this-host.lan, gw_rule gws");
}

#[test]
fn facts_that_are_no_addresses_stay() {
    let redactor = Redactor::new(AddressMap::with_key(9));
    for text in [
        "/usr/lib/libibverbs.so.1.14.50.0",
        "firmware 22.35.2000, kernel 6.8.0-45-generic",
        "2026-12-01T12:03:39.123456Z steerd[77]: steerd::daemon: ready",
        "mask 0xffffffffffff, 255.255.255.0, ff:ff:ff:00:00:00",
        "0.0.0.0 127.0.0.1 [::1]:80 255.255.255.255 ff:ff:ff:ff:ff:ff",
        "packets 123456789012, 1234567890123456",
        "mlx5_core 0000:c1:00.0, 15b3:101d, cores 0-3,8",
        "sha256 0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0",
        "token_file = /etc/steerd/token",
    ] {
        assert_eq!(redactor.text(text), text);
    }
}

#[test]
fn the_manifest_names_what_is_absent() {
    let parts = vec![
        ("a.txt".to_owned(), RawPart::Text("a\n".to_owned())),
        ("b.json".to_owned(), RawPart::Absent("nobody answers at 10.1.2.3".to_owned())),
        ("long.txt".to_owned(), RawPart::Text("0123456\n".repeat(PART_BYTES_MAX / 8 + 1))),
    ];
    let bundle = ReportBundle::of(RawBundle { parts, redactor: Redactor::new(AddressMap::with_key(1)) });
    let files: BTreeMap<&str, &str> = bundle.files().collect();
    assert_eq!(files.keys().copied().collect::<Vec<_>>(), ["a.txt", "long.txt", "manifest.txt"]);
    assert_eq!(files["long.txt"].len(), PART_BYTES_MAX);
    let manifest = files["manifest.txt"];
    assert!(manifest.contains("absent  b.json  (nobody answers at "), "{manifest}");
    assert!(!manifest.contains("10.1.2.3") && manifest.contains("cut off"), "{manifest}");
}

#[test]
fn an_unredacted_bundle_says_so_and_has_no_secrets() {
    let mut redactor = Redactor::of_secrets();
    redactor.add_secret(TOKEN);
    redactor.add_name("build-host7", "this-host");
    let text = format!("10.1.2.3 on build-host7 {TOKEN}\npassword: x y\n");
    let parts = vec![("a.txt".to_owned(), RawPart::Text(text))];
    let bundle = ReportBundle::of(RawBundle { parts, redactor });
    let files: BTreeMap<&str, &str> = bundle.files().collect();
    assert_eq!(files["a.txt"], "10.1.2.3 on build-host7 removed\npassword: removed\n");
    assert!(files["manifest.txt"].contains("NOT redacted"));
}

#[test]
fn ip_addresses_of_all_kinds_are_replaced() {
    let redactor = Redactor::new(AddressMap::with_key(2));
    for text in [
        "10.20.30.40",
        "fe80::9e63:c0ff:feaa:102",
        "::ffff:10.20.30.40",
        "n10.20.30.40n",
        "9c63.c0aa.0102",
        "80:00:02:08:fe:80:00:00",
        "0c42:a103:0065:1234",
        "rocex0c42a10300651234",
        "0x9c63c0aa0102",
        "a9:c:63:c0:aa:1",
    ] {
        let new = redactor.text(text);
        assert_ne!(new, text);
        assert_eq!(redactor.text(text), new);
        assert!(!new.contains("c0aa") && !new.contains("20.30") && !new.contains("a103"), "{text}: {new}");
    }
    let IpAddr::V6(new) = redactor.text("fe80::9e63:c0ff:feaa:102").parse().expect("an address") else {
        panic!("IPv6")
    };
    assert!(new.is_unicast_link_local());
}

//! Conversion of listings and filter sets of other tools: the resulting policy is equivalent, or a note names
//! the difference. The filter sets are those of `STEERD_CORPORA`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use packet::{DeepKey, FlowKey, Layers};
use policy::import::{self, ClassBench, Imported};
use policy::policy::{Action, Policy, Workers};
use policy::{NoFiles, Source};
use program::Predicate;
use proptest::prelude::*;

fn parsed(imported: &Imported) -> Policy {
    let source = Source::new("imported.toml", imported.policy_toml.clone());
    match policy::parse(&source, &NoFiles) {
        Ok((policy, _)) => policy,
        Err(problems) => panic!("{problems}\n{}", imported.policy_toml),
    }
}

fn shown(imported: &Imported) -> String {
    parsed(imported);
    let notes = imported.notes.iter().fold(String::new(), |mut text, note| {
        writeln!(text, "{note}").expect("strings take text");
        text
    });
    format!("{}---\n{notes}", imported.policy_toml)
}

#[test]
fn filters_that_ethtool_lists() {
    insta::assert_snapshot!(shown(
        &import::ethtool(include_str!("../listings/ntuple.txt")).expect("the format")
    ));
}

#[test]
fn tables_that_ethtool_lists() {
    insta::assert_snapshot!(shown(
        &import::ethtool(include_str!("../listings/rxfh.txt")).expect("the format")
    ));
}

/// The listings are as operators paste them: with commands, tables of contexts, functions and hash fields
/// between.
#[test]
fn listings_of_three_drivers() {
    insta::assert_snapshot!(
        "mlx5",
        shown(&import::ethtool(include_str!("../listings/mlx5.txt")).expect("the format"))
    );
    insta::assert_snapshot!(
        "ixgbe",
        shown(&import::ethtool(include_str!("../listings/ixgbe.txt")).expect("the format"))
    );
    insta::assert_snapshot!(
        "i40e",
        shown(&import::ethtool(include_str!("../listings/i40e.txt")).expect("the format"))
    );
}

#[test]
fn classbench_filters_of_every_kind_and_invalid_ones() {
    let text = "# a comment\n\
        @10.0.0.0/8\t192.0.2.53/32\t0 : 65535\t53 : 53\t0x11/0xFF\t0x0000/0x0000\t\n\
        @0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00 0x0000/0x0000\n\
        @10.1.2.3/16 0.0.0.0/0 1024 : 65535 80 : 80 0x06/0xFF 0x0200/0x1200\n\
        @0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x01/0xFF 0x0800/0xff00\n\
        @0.0.0.0/0 0.0.0.0/0 7 : 7 0 : 65535 0x2f/0xFF 0x0000/0x0000\n\
        @0.0.0.0/0 0.0.0.0/0 7 : 9 0 : 65535 0/0\n\
        @2001:db8::1/33 ::/0 0 : 65535 0 : 65535 0x10/0xF0\n\
        @10.0.0.0/8 ::/0 0 : 65535 0 : 65535 0x06/0xFF\n\
        @10.0.0.0/33 0.0.0.0/0 0 : 65535 0 : 65535 0x06/0xFF\n\
        @10.0.0.0/8 0.0.0.0/0 9 : 8 0 : 65535 0x06/0xFF\n\
        @10.0.0.0/8\n";
    insta::assert_snapshot!(shown(&import::classbench(text).expect("the format")));
}

#[test]
fn an_empty_listing_gives_a_policy() {
    for text in [
        "Filter:",
        "Filter: 1",
        "4 RX rings available\nTotal 0 rules\n",
        "RX flow hash indirection table for eth0 with 2 RX ring(s):",
    ] {
        parsed(&import::ethtool(text).expect("the format"));
    }
}

#[test]
fn text_of_another_format_is_refused() {
    for text in
        ["", "\n\n", "@", "{\"nftables\": []}", "table inet filter {\n}\n", "ethtool: bad command line\n"]
    {
        let refused = import::classbench(text).expect_err(text);
        assert!(refused.message.starts_with("not a ClassBench filter set"), "{refused}");
        let refused = import::ethtool(text).expect_err(text);
        assert!(refused.message.starts_with("not a listing of ethtool"), "{refused}");
    }
}

#[test]
fn a_filters_location_is_its_precedence() {
    let filter = |location: u32, port: u32| {
        format!(
            "Filter: {location}\n\tRule Type: UDP over IPv4\n\tDest port: {port} mask: 0x0\n\tAction: Drop\n\n"
        )
    };
    let imported =
        import::ethtool(&[filter(9, 53), filter(2, 80), filter(2, 81)].concat()).expect("the format");
    let names: Vec<String> = parsed(&imported).rules.into_iter().map(|rule| rule.name).collect();
    assert_eq!(names, ["filter-2", "filter-2.2", "filter-9"]);
}

/// A converted filter matches what the device's filter matches, bit by bit: bits set in the mask are not
/// compared.
#[test]
fn masks_are_converted_as_the_device_reads_them() {
    let text = "Filter: 0\n\tRule Type: TCP over IPv4\n\tSrc IP addr: 10.0.0.4 mask: 0.0.2.3\n\
        \tDest port: 4096 mask: 0xf0f\n\tVLAN: 0x2005 mask: 0x1ff0\n\tAction: Direct to queue 3\n";
    let imported = import::ethtool_with(text, Some("host0")).expect("the format");
    let policy = parsed(&imported);
    assert_eq!(imported.notes, []);
    let predicate = Predicate::of(&policy.rules[0].matches);
    for bits in 0..1u32 << 16 {
        let (port, address) = (bits as u16, 0x0a00_0000 | bits & 0x3ff);
        let key = FlowKey {
            layers: Layers::IPV4 | Layers::TCP | Layers::VLAN,
            ether_type: 0x0800,
            vlan_tpid: 0x8100,
            vlan_tci: 0x2005,
            protocol: 6,
            src_ip: {
                let [a, b, c, d] = address.to_be_bytes();
                [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
            },
            dst_port: port,
            ..FlowKey::default()
        };
        let wanted = (address ^ 0x0a00_0004) & !0x203 == 0 && (port ^ 4096) & !0xf0f == 0;
        assert_eq!(predicate.matches(&key), wanted, "{address:#x} {port}");
        assert!(!predicate.matches(&FlowKey { vlan_tci: 0x4005, ..key }));
    }
}

/// A filter of the importer's usual kind with these lines.
fn udp_filter(lines: &str) -> Imported {
    let listing = format!(
        "4 RX rings available\nTotal 1 rules\n\nFilter: 3\n\tRule Type: UDP over IPv4\n\
         \tSrc IP addr: 0.0.0.0 mask: 255.255.255.255\n\tDest IP addr: 198.51.100.7 mask: 0.0.0.0\n\
         \tTOS: 0x0 mask: 0xff\n\tSrc port: 0 mask: 0xffff\n\tDest port: 4791 mask: 0x0\n{lines}"
    );
    import::ethtool_with(&listing, Some("host0")).expect("the format")
}

fn notes(imported: &Imported) -> String {
    imported.notes.iter().map(|note| note.message.as_str()).collect::<Vec<_>>().join("\n")
}

/// The listings are as ethtool 6.1 and 6.14 print them: of a filter for IP packets, this mask alone has the
/// bits that are compared.
#[test]
fn the_destination_mac_of_a_udp_filter_is_compared_under_its_mask() {
    for (mask, rule) in [
        ("FF:FF:FF:FF:FF:FF", "dst_mac = \"02:00:5e:10:00:01\""),
        ("FF:FF:FF:00:00:00", "dst_mac = \"02:00:5e:00:00:00/ff:ff:ff:00:00:00\""),
    ] {
        let line = format!("\tDest MAC addr: 02:00:5E:10:00:01 mask: {mask}\n\tAction: Direct to queue 2\n");
        let imported = udp_filter(&line);
        assert!(shown(&imported).contains(rule), "{}", imported.policy_toml);
        assert_eq!(imported.notes, []);
    }
}

/// i40e lists filters without masks, ethtool then shows each value as one that is not compared.
#[test]
fn a_filter_whose_mask_ignores_a_listed_value_is_left_out() {
    for line in [
        "Src MAC addr: 02:00:5E:10:00:01 mask: FF:FF:FF:FF:FF:FF",
        "Dest MAC addr: 02:00:5E:10:00:01 mask: 00:00:00:00:00:00",
        "VLAN: 0x5 mask: 0xffff",
        "User-defined: 0xffffffff00000000 mask: 0xffffffffffffffff",
    ] {
        let imported = udp_filter(&format!("\t{line}\n\tAction: Direct to queue 2\n"));
        assert!(parsed(&imported).rules.is_empty(), "{line}: {}", imported.policy_toml);
        assert!(notes(&imported).contains("compares none of it"), "{line}: {}", notes(&imported));
    }
    let listing = "Filter: 1\n\tRule Type: TCP over IPv4\n\tSrc IP addr: 192.0.2.1 mask: 255.255.255.255\n\
        \tDest port: 80 mask: 0xffff\n\tAction: Drop\n";
    assert!(parsed(&import::ethtool(listing).expect("the format")).rules.is_empty());
}

/// `ethtool -N eth0 flow-type udp4 ... vlan 5` compares all bits of the tag.
#[test]
fn a_vlan_without_a_mask_is_its_id_and_priority() {
    let imported = udp_filter(
        "\tVLAN EtherType: 0x0 mask: 0xffff\n\tVLAN: 0x5 mask: 0x0\n\
         \tUser-defined: 0x0 mask: 0xffffffffffffffff\n\tAction: Direct to queue 2\n",
    );
    assert!(shown(&imported).contains("vlan = 5, vlan_priority = 0"), "{}", imported.policy_toml);
    assert!(notes(&imported).contains("drop-eligible bit"), "{}", notes(&imported));
    let marked = udp_filter("\tVLAN: 0x1005 mask: 0x0\n\tAction: Direct to queue 2\n");
    assert!(parsed(&marked).rules.is_empty(), "the bit itself: {}", marked.policy_toml);
}

/// The kernel receives the packets of ethtool's queues, the filters that drop aside.
#[test]
fn filters_that_leave_packets_to_the_kernel_are_noted() {
    let filter = |location: u32, action: &str| {
        format!(
            "Filter: {location}\n\tRule Type: UDP over IPv4\n\tDest port: 53 mask: 0x0\n\tAction: {action}\n\n"
        )
    };
    let listing =
        [filter(1, "Drop"), filter(2, "Direct to queue 3"), filter(3, "Direct to RSS Context 1")].concat();
    let imported = import::ethtool(&listing).expect("the format");
    let of_filters: Vec<&str> =
        imported.notes.iter().map(|note| &*note.message).filter(|text| text.starts_with("filter")).collect();
    assert!(of_filters[0].starts_with("filter 2 leaves packets to the kernel, on queue 3"), "{of_filters:?}");
    assert!(
        of_filters[1].starts_with("filter 3 leaves packets to the kernel, on the queues of RSS context 1")
    );
    assert_eq!(of_filters.len(), 2);
    let returning = import::ethtool_with(&listing, Some("host0")).expect("the format");
    assert!(!notes(&returning).contains("leaves packets"), "{}", notes(&returning));
    let policy = parsed(&returning);
    assert!(policy.groups.iter().all(|group| !group.sinks.is_empty()), "{}", returning.policy_toml);
}

#[test]
fn rss_contexts_are_read_as_ethtool_6_14_prints_them() {
    for (action, offset) in [
        ("Direct to RSS Context 1", None),
        ("Direct to RSS Context 1 (queue base offset: 4)", Some("offset 4")),
    ] {
        let imported = udp_filter(&format!("\tAction: {action}\n"));
        assert!(shown(&imported).contains("action = { steer = \"rss-1\" }"), "{}", imported.policy_toml);
        let notes = notes(&imported);
        assert_eq!(notes.contains("offset"), offset.is_some(), "{notes}");
        assert!(offset.is_none_or(|offset| notes.contains(offset)), "{notes}");
    }
}

/// The notes on a device without filters (tg3), on a filter that could not be read, and on one that ethtool
/// does not know.
#[test]
fn filters_that_ethtool_could_not_list_are_noted() {
    let tg3 = "4 RX rings available\nrxclass: Cannot get RX class rule count: Operation not supported\n\
        RX classification rule retrieval failed\n";
    let refused = import::ethtool(tg3).expect_err("no filter");
    assert!(refused.line == 2 && refused.message.contains("Operation not supported"), "{refused}");
    let tables = "\nRX flow hash indirection table for eth0 with 2 RX ring(s):\n    0:      0     1\n";
    let imported = import::ethtool(&format!("{tg3}{tables}")).expect("the format");
    let notes_of_tg3 = notes(&imported);
    assert!(notes_of_tg3.contains("Operation not supported"), "{notes_of_tg3}");
    assert!(!notes_of_tg3.contains("not understood"), "{notes_of_tg3}");
    let missing =
        import::ethtool("Total 2 rules\n\nFilter: 1\n\tRule Type: UDP over IPv4\n\tAction: Drop\n\n")
            .expect("the format");
    assert!(notes(&missing).contains("announces 2 filters and has 1"), "{}", notes(&missing));
}

#[test]
fn a_line_that_a_filter_has_twice_is_a_reason_to_leave_it_out() {
    let listing = "Filter: 1\n\tRule Type: UDP over IPv4\n\tDest port: 53 mask: 0x0\n\tDest port: 54 mask: 0x0\n\
        \tAction: Drop\n";
    let imported = import::ethtool(listing).expect("the format");
    assert!(parsed(&imported).rules.is_empty() && notes(&imported).contains("listed twice"));
}

#[test]
fn filter_sets_with_tcp_flags_allow_lost_exceptions() {
    let set = "@0.0.0.0/0 0.0.0.0/0 0 : 65535 80 : 80 0x06/0xFF 0x0200/0x1200\n";
    let imported = import::classbench(set).expect("the format");
    assert!(parsed(&imported).allow_lost_exceptions, "{}", imported.policy_toml);
    assert!(notes(&imported).contains("allow_lost_exceptions"), "{}", notes(&imported));
    let without = import::classbench_with(set, ClassBench { tcp_flags: false }).expect("the format");
    assert!(!parsed(&without).allow_lost_exceptions, "{}", without.policy_toml);
}

#[test]
fn shares_of_a_table_are_weights() {
    let imported = import::ethtool(include_str!("../listings/rxfh.txt")).expect("the format");
    let policy = parsed(&imported);
    let Workers::Listed(shares) = &policy.groups[1].workers else { panic!("{:?}", policy.groups) };
    let shares: Vec<_> = shares.iter().map(|share| (share.worker, share.weight)).collect();
    assert_eq!(shares, [(0, 6), (1, 1), (2, 1)]);
}

#[test]
fn unicode_spaces_separate_columns() {
    let import =
        import::classbench("@\u{2000}10.0.0.0/8\u{2000}0.0.0.0/0 0 : 65535 53 : 53 0x11/0xff\n@\u{2000}!\n")
            .expect("the format");
    assert_eq!((parsed(&import).rules.len(), import.notes.len()), (1, 1));
}

#[test]
fn a_filter_with_an_address_of_the_other_family_is_left_out() {
    let listing = "Filter: 1\n\tRule Type: TCP over IPv4\n\tSrc IP addr: ::1 mask: ::\n\tAction: Drop\n";
    let import = import::ethtool(listing).expect("the format");
    let policy = parsed(&import);
    assert!(policy.rules.is_empty(), "{policy:?}");
    let is_reported = import.notes.iter().any(|note| note.message.contains("not an IPv4 address"));
    assert!(is_reported, "{:?}", import.notes);
}

proptest! {
    #[test]
    fn any_text_imports_to_a_policy(text in "\\PC{0,200}", words in prop::collection::vec(prop::sample::select(vec![
        "Filter: 1\n", "Filter: x\n", "Rule Type: TCP over IPv4\n", "Rule Type: Raw IPv6\n", "Flow Type: Raw Ethernet\n",
        "Src IP addr: 10.0.0.0 mask: 0.255.0.255\n", "Dest IP addr: ::1 mask: ::\n", "Src port: 7 mask: 0xfff1\n",
        "VLAN: 0x1 mask: 0x0\n", "VLAN EtherType: 0x8100 mask: 0x0\n", "Ethertype: 0x8100 mask: 0x0\n",
        "Action: Direct to queue 4096\n", "Action: Direct to queue 4095\n", "Action: Drop\n", "RSS Context ID: 7\n",
        "RX flow hash indirection table for x with 2 RX ring(s), context 7:\n", "0: 1 2 3\n", "0: 1 1 99999\n", "RSS hash key:\n",
        "aa:bb\n", "RSS hash function:\n", "xor: on\n", "SPI: -1 mask: 0x0\n", "Rule Type: IPSEC ESP over IPv6\n",
        "Protocol: 17 mask: 0x0\n", "L4 bytes: 0x350035 mask: 0xffff\n", "TOS: 0x1 mask: 0xfe\n",
    ]), 0..24)) {
        let imported = [import::ethtool(&text), import::classbench(&text), import::ethtool(&words.concat())];
        imported.into_iter().flatten().for_each(|imported| {
            parsed(&imported);
        });
    }

    #[test]
    fn any_filter_set_imports_to_a_policy(lines in prop::collection::vec(
        "@?[0-9]{1,3}(\\.[0-9]{1,3}){3}/[0-9]{1,2} [0-9a-f:]{0,9}/[0-9]{1,3} [0-9]{1,5} : [0-9]{1,5} [0-9]{1,5} : [0-9]{1,5} 0x[0-9a-f]{1,2}/0x[0-9a-f]{2} 0x[0-9a-f]{4}/0x[0-9a-f]{4}",
        0..8,
    )) {
        if let Ok(imported) = import::classbench(&lines.join("\n")) {
            parsed(&imported);
        }
    }
}

#[test]
fn every_filter_set_is_a_policy() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let mut sets = Vec::new();
    for folder in [folder.clone(), folder.join("dpdk-test-acl")] {
        for entry in std::fs::read_dir(folder).expect("the corpora are there") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_set =
                !name.contains("trace") && !name.contains("expected") && !name.starts_with("LICENSE");
            if path.is_file() && is_set {
                sets.push((name, std::fs::read_to_string(&path).expect("a set")));
            }
        }
    }
    assert!(sets.len() >= 8, "{sets:?}");
    for (name, text) in sets {
        let filters = text.lines().filter(|line| line.starts_with('@')).count();
        for options in [ClassBench::default(), ClassBench { tcp_flags: false }] {
            let imported = import::classbench_with(&text, options).expect("the format");
            let policy = parsed(&imported);
            assert_eq!(policy.rules.len(), filters, "{name}: {:?}", imported.notes);
            assert!(imported.notes.iter().all(|note| !note.message.contains("left out: ")), "{name}");
            assert!(policy.rules.iter().all(|rule| matches!(rule.action, Action::Steer(_))));
        }
    }
}

/// Line, first match, ... of `acl_1k_expected.tsv`, which ignores TCP flags.
#[test]
fn the_first_rule_of_every_packet_of_the_trace_is_the_expected_one() {
    let Some(folder) = test_support::corpora("rules") else { return };
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("the corpora are there");
    let imported =
        import::classbench_with(&read("acl_1k"), ClassBench { tcp_flags: false }).expect("the format");
    let policy = parsed(&imported);
    let predicates: Vec<Predicate> = policy.rules.iter().map(|rule| Predicate::of(&rule.matches)).collect();
    let trace = read("acl_1k_trace");
    let packets: Vec<FlowKey> = trace.lines().map(trace_key).collect();
    let mut compared = BTreeMap::new();
    for line in read("acl_1k_expected.tsv").lines() {
        let mut columns = line.split('\t').map(|column| column.parse::<usize>().expect("a number"));
        let (packet, first) = (columns.next().unwrap(), columns.next().unwrap());
        let key = DeepKey { outer: packets[packet], ..DeepKey::default() };
        let found = predicates.iter().position(|predicate| predicate.matches_deep(&key)).unwrap();
        assert_eq!(policy.rules[found].name, format!("r{first}"), "line {packet}");
        *compared.entry(found).or_insert(0) += 1;
    }
    assert!(compared.len() > 100, "the trace meets {} rules only", compared.len());
}

/// Source, destination, ports, protocol; ports count for TCP and UDP alone.
fn trace_key(line: &str) -> FlowKey {
    let columns: Vec<u64> = line.split_whitespace().map(|column| column.parse().expect("a number")).collect();
    let address = |number: u64| {
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&(number as u32).to_be_bytes());
        octets
    };
    let transport = match columns[4] {
        6 => Layers::TCP,
        17 => Layers::UDP,
        _ => Layers::empty(),
    };
    FlowKey {
        layers: Layers::IPV4 | transport,
        ether_type: 0x0800,
        src_ip: address(columns[0]),
        dst_ip: address(columns[1]),
        src_port: columns[2] as u16,
        dst_port: columns[3] as u16,
        protocol: columns[4] as u8,
        ..FlowKey::default()
    }
}

//! No name of verbs.h is without a row: its enumerators and the members of its structures are read from the
//! header.

use std::collections::BTreeSet;

use conformance::{ABSENT, cases};

const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// The enumerations of the four verbs and their companions.
const ENUMS: &[&str] = &[
    "ibv_parent_domain_init_attr_mask",
    "ibv_qp_create_flags",
    "ibv_qp_create_send_ops_flags",
    "ibv_qp_init_attr_mask",
    "ibv_qp_type",
    "ibv_rx_hash_function_flags",
    "ibv_rx_hash_fields",
    "ibv_create_cq_wc_flags",
    "ibv_create_cq_attr_flags",
    "ibv_cq_init_attr_mask",
    "ibv_flow_attr_type",
    "ibv_flow_flags",
    "ibv_flow_spec_type",
    "ibv_wq_type",
    "ibv_wq_init_attr_mask",
    "ibv_wq_flags",
    "ibv_wq_state",
    "ibv_wq_attr_mask",
    "ibv_ind_table_init_attr_mask",
    "ibv_counter_description",
    "ibv_read_counters_flags",
    "ibv_send_flags",
    "ibv_cq_attr_mask",
    "ibv_values_mask",
];

/// The structures of the verbs, and the functions of `ibv_qp_ex`.
const STRUCTS: &[&str] = &[
    "ibv_parent_domain_init_attr",
    "ibv_td_init_attr",
    "ibv_qp_init_attr_ex",
    "ibv_qp_cap",
    "ibv_rx_hash_conf",
    "ibv_cq_init_attr_ex",
    "ibv_moderate_cq",
    "ibv_modify_cq_attr",
    "ibv_flow_attr",
    "ibv_flow_eth_filter",
    "ibv_flow_ipv4_filter",
    "ibv_flow_ipv4_ext_filter",
    "ibv_flow_ipv6_filter",
    "ibv_flow_esp_filter",
    "ibv_flow_tcp_udp_filter",
    "ibv_flow_gre_filter",
    "ibv_flow_mpls_filter",
    "ibv_flow_tunnel_filter",
    "ibv_flow_spec_action_tag",
    "ibv_flow_spec_action_drop",
    "ibv_flow_spec_action_handle",
    "ibv_flow_spec_counter_action",
    "ibv_wq_init_attr",
    "ibv_wq_attr",
    "ibv_rwq_ind_table_init_attr",
    "ibv_counters_init_attr",
    "ibv_counter_attach_attr",
    "ibv_values_ex",
];

/// The text between the braces of a declaration, without comments.
fn body(header: &str, declaration: &str) -> String {
    let start = header.find(&format!("\n{declaration} {{")).unwrap_or_else(|| panic!("no {declaration}"));
    let rest = &header[start..];
    let (from, to) = (rest.find('{').expect("a body") + 1, rest.find("\n};").expect("its end"));
    let mut text = String::new();
    for (i, piece) in rest[from..to].split("/*").enumerate() {
        let piece = if i == 0 { piece } else { piece.split_once("*/").map_or("", |(_, after)| after) };
        text.push_str(piece);
    }
    text
}

fn identifiers(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

fn enumerators(header: &str, name: &str) -> Vec<String> {
    let body = body(header, &format!("enum {name}"));
    body.split(',').filter_map(|item| identifiers(item).next()).map(str::to_owned).collect()
}

fn members(header: &str, name: &str) -> Vec<String> {
    let body = body(header, &format!("struct {name}"));
    let member = |declaration: &str| {
        let last = match declaration.split_once("(*") {
            Some((_, function)) => identifiers(function).next(),
            None => identifiers(declaration.split('[').next().unwrap_or("")).next_back(),
        };
        last.map(|last| format!("{name}.{last}"))
    };
    body.split(';').filter_map(member).collect()
}

fn header() -> Option<String> {
    let text = std::fs::read_to_string(HEADER).ok();
    if text.is_none() {
        test_support::not_run("names of verbs", &format!("there is no {HEADER} (package libibverbs-dev)"));
    }
    text
}

fn covered() -> BTreeSet<String> {
    let rows = cases();
    let names = rows.iter().flat_map(|case| case.names().map(str::to_owned));
    names.chain(ABSENT.iter().map(|absent| absent.name.to_owned())).collect()
}

#[test]
fn every_name_of_the_header_has_a_row() {
    let Some(header) = header() else { return };
    let mut names: Vec<String> = ENUMS.iter().flat_map(|name| enumerators(&header, name)).collect();
    names.extend(STRUCTS.iter().flat_map(|name| members(&header, name)));
    let functions = members(&header, "ibv_qp_ex");
    names.extend(functions.into_iter().filter(|name| name.starts_with("ibv_qp_ex.wr_")));
    names.retain(|name| !["ibv_qp_ex.wr_id", "ibv_qp_ex.wr_flags"].contains(&name.as_str()));
    names.push("IBV_ALLOCATOR_USE_DEFAULT".into());
    assert!(names.len() > 200, "{} names were read", names.len());
    let covered = covered();
    let missing: Vec<_> = names.iter().filter(|name| !covered.contains(*name)).collect();
    assert!(missing.is_empty(), "without a row: {missing:#?}");
}

#[test]
fn readers_of_completions_have_rows() {
    let Some(header) = header() else { return };
    let readers = members(&header, "ibv_cq_ex");
    let readers = readers.iter().filter_map(|name| name.strip_prefix("ibv_cq_ex.read_"));
    let covered = covered();
    // Those of other transports are the rows of the flags that ask for them.
    let others = ["imm_data", "src_qp", "slid", "sl", "dlid_path_bits", "tm_info"];
    let mut count = 0;
    for reader in readers.filter(|reader| !others.contains(reader)) {
        assert!(covered.contains(&format!("ibv_wc_read_{reader}")), "no row for {reader}");
        count += 1;
    }
    assert!(count >= 8, "{count} readers");
}

#[test]
fn names_that_are_said_are_in_the_header() {
    let Some(header) = header() else { return };
    // Newer than the header of Debian 12.
    let newer = [
        "IBV_QP_EX_WITH_FLUSH",
        "ibv_qp_ex.wr_flush",
        "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC",
    ];
    for name in covered() {
        let constant = name.starts_with("IBV_");
        let last = name.rsplit('.').next().unwrap_or("");
        let declared = identifiers(&header).any(|word| word == last);
        let said = constant || name.contains('.');
        assert!(!said || declared || newer.contains(&name.as_str()), "{name} is not in {HEADER}");
    }
}

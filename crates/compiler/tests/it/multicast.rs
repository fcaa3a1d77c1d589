//! A device that applies flows that match only multicast after all others, in one priority: what it can run
//! in the order of the policy, and what is refused.

use device_model::{DeviceModel, PriorityTable};
use policy::{Diagnostics, NoFiles, Source};
use program::Program;

const GROUPS: &str = "version = 1\n[groups.g]\nworkers = 'all'\n";

fn compile(rules: &str, profile: &DeviceModel) -> Result<Program, Diagnostics> {
    let text = format!("{GROUPS}{rules}");
    let (policy, _) = policy::parse(&Source::new("groups.toml", text), &NoFiles).expect("it parses");
    compiler::compile(&policy, profile, 4)
}

fn rule(name: usize, matches: &str, action: &str) -> String {
    format!("[[rules]]\nname = 'r{name}'\nmatch = {{ {matches} }}\n{action}\n")
}

#[test]
fn sent_multicast_is_not_overtaken_by_a_later_rule() {
    let groups = rule(0, "dst_mac = 'multicast'", "action = 'drop'\ndirection = 'egress'");
    let host = rule(1, "dst = '10.0.0.1'", "action = 'pass'\ndirection = 'egress'");
    let policy = format!("{groups}{host}");
    assert!(compile(&policy, &DeviceModel::ideal()).is_ok());
    let refused = compile(&policy, &DeviceModel::mlx5()).expect_err("r1 would take them").to_string();
    assert!(refused.contains("`r1` would take packets that are sent by `r0` before it"), "{refused}");
    let behind = format!("{host}{groups}");
    assert!(compile(&behind, &DeviceModel::mlx5()).is_ok());
}

#[test]
fn flows_that_match_only_multicast_share_one_priority() {
    let table = PriorityTable { entries: 26, groups: 6, group_entries: 4 };
    let device = DeviceModel { priority_table: Some(table), ..DeviceModel::mlx5() };
    let tags =
        |tags: &str| rule(0, &format!("dst_mac = 'multicast', vlan = [{tags}]"), "action = { steer = 'g' }");
    // A mask for each of the group's seven variants: six have groups, the flows of the last stand alone.
    let fits = compile(&tags("1, 3"), &device).expect("two stand beside the groups");
    assert_eq!((fits.flows.len(), fits.priorities_used), (14, 1));
    let refused = compile(&tags("1, 3, 5"), &device).expect_err("a third does not").to_string();
    assert!(refused.contains("no room for all flows that match only multicast"), "{refused}");
    assert!(refused.contains("ENOSPC"), "{refused}");
}

/// All packets of the protocol and those with ports are one match there: a second flow would take each once
/// more.
#[test]
fn variants_with_equal_matches_are_one_flow() {
    let udp = rule(0, "dst_mac = 'multicast', protocol = 'udp'", "action = { steer = 'g' }");
    let flows = |device: &DeviceModel| compile(&udp, device).expect("it fits").flows.len();
    assert_eq!((flows(&DeviceModel::mlx5()), flows(&DeviceModel::ideal())), (2, 4));
}

//! `steerd doctor`: exit codes and output.

use crate::support::{stderr, stdout, steerd};

use super::rig::{policies, run_in};

const SOFT: &str =
    "[workers]\ncores = 1\npages = [\"plain\"]\n[[softnic.ports]]\nwire = { kind = \"null\" }\n";

#[test]
fn a_soft_nic_needs_nothing_of_the_host() {
    let folder = policies(&[("s.toml", SOFT)]);
    let output = run_in(&folder, &["doctor", "--config", "s.toml", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let facts = answer["facts"].as_array().expect("facts");
    assert!(
        facts.iter().any(|fact| fact["name"] == "device" && fact["value"] == "software NIC"),
        "{answer:#}"
    );
    // Each check is in exactly one of these, or has findings or unread items.
    let ids = |list: &str, key: Option<&str>| -> Vec<String> {
        let list = answer[list].as_array().expect(list);
        let id =
            |item: &serde_json::Value| key.map_or(item, |key| &item[key]).as_str().expect("an id").to_owned();
        list.iter().map(id).collect()
    };
    let (fine, skipped) = (ids("fine", None), ids("inapplicable", Some("id")));
    assert!(fine.iter().all(|id| !skipped.contains(id)), "{fine:?} {skipped:?}");
    for id in ["model", "eswitch", "memlock", "capabilities"] {
        assert!(skipped.iter().any(|skipped| skipped == id), "{id}: {skipped:?}");
    }
    let text = run_in(&folder, &["doctor", "--config", "s.toml"]);
    assert!(stdout(&text).contains("\n0 must, "), "{}", stdout(&text));
}

#[test]
fn a_missing_device_must_be_changed() {
    let folder = policies(&[
        ("s.toml", "[device]\nname = \"mlx5_99\"\n[workers]\ncores = 1\n"),
        ("b.toml", "x = 1\n"),
    ]);
    let output = run_in(&folder, &["doctor", "--config", "s.toml"]);
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("must    device: there is no RDMA device mlx5_99\n"), "{text}");
    assert!(text.contains("\n        => steerd devices"), "{text}");
    assert!(stderr(&output).contains("that must be changed"), "{}", stderr(&output));
    assert_eq!(run_in(&folder, &["doctor", "--config", "b.toml"]).status.code(), Some(3));
}

/// The interface of a packet socket is examined by the kernel's own answers.
#[test]
fn a_live_interface_is_examined() {
    let settings = SOFT.replace("kind = \"null\"", "kind = \"af_packet\", interface = \"lo\"");
    let folder = policies(&[("s.toml", &settings)]);
    let mut command = steerd();
    command.current_dir(folder.path()).args(["doctor", "--config", "s.toml", "--json"]);
    let output = command.output().expect("it runs");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let fine = answer["fine"].as_array().expect("ids");
    for id in ["interface", "filters", "bond"] {
        assert!(fine.iter().any(|fine| fine == id), "{id}: {answer:#}");
    }
}

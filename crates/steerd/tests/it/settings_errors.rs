//! The messages about wrong settings: all at once, each with its place and a remedy.

use std::process::Stdio;

use crate::support::{stderr, steerd};

/// One mistake of each kind.
const WRONG: &str = r#"[device]
name = 7
ports = [1, "two"]
promiscuous = "yes"
recieve = "verbs"

[workers]
cores = true
frames = -1
frame_bytes = "large"
batch = 1000
pages = ["huge_3m", "plain"]
idle = "lazy"
idle_us = "100"
timestamps = 1

[softnic]
personality = "ideel"
mode = "inlined"
threads = 9223372036854775808

[[softnic.ports]]
wire = { kind = "generater", rate = 5 }

[[softnic.ports]]
wire = { kind = "af_packet", interfase = "eth0", ring_frames = "4096" }
mtu_bytes = "jumbo"

[[softnic.ports]]
wire = { interface = "eth0" }

[[softnic.ports]]
wire = "null"

[[softnic.ports]]
mtu_bytes = 1500

[htttp]
listen = "127.0.0.1:1"

[http]
listen = "nowhere"
hosts = "node7"

[api]
mode = "rw"
admins = ["root"]

[log]
filter = "debgu"
target = "sterr"

[health]
stall_ms = 1

[state]
folder = []
"#;

fn printed(text: &str, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("s.toml"), text).expect("written");
    let mut command = steerd();
    command.current_dir(folder.path()).args(["check", "--config", "s.toml"]).stdin(Stdio::null());
    let output = command.envs(variables.iter().copied()).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn all_mistakes_are_reported_at_once_with_place_and_remedy() {
    let variables = [
        ("STEERD_WORKERS__IDEL", "spin"),
        ("STEERD_HEALTH__STALL_MS", "soon"),
        ("STEERD_LOG_FORMAT", "json"),
    ];
    let text = printed(WRONG, &variables);
    for of_serde in
        ["invalid type", "invalid value", "unknown field", "unknown variant", "missing field", "expected"]
    {
        assert!(!text.contains(of_serde), "{of_serde:?} in:\n{text}");
    }
    insta::assert_snapshot!("settings_errors", text);
}

#[test]
fn values_that_do_not_fit_together_have_the_place_that_sets_them() {
    let text = "[device]\nports = [0, 0]\n[workers]\ncores = [1, 1]\nframe_bytes = 100\n[softnic]\nmode = \"inline\"\n\
                core = 5000\nfaults = \"quake@1\"\n[[softnic.ports]]\nwire = { kind = \"null\" }\n[[softnic.ports]]\n\
                wire = { kind = \"null\" }\nmtu_bytes = 10\nnic_filters = \"drop\"\n[health]\nstall_ms = 99\n\
                [http]\nhosts = [\"http://node7\"]\n";
    let text = printed(text, &[("STEERD_WORKERS__BATCH", "1000"), ("STEERD_LOG__FILTER", "debgu")]);
    insta::assert_snapshot!("settings_values", text);
}

#[test]
fn a_text_that_is_not_toml_is_reported_as_in_a_policy() {
    let text = printed("[workers\nframes = 64\n[http]\nlisten = \"off\nhosts = []\n", &[]);
    insta::assert_snapshot!("settings_syntax", text);
    let text = printed("workers:\n  frames: 64\n", &[]);
    insta::assert_snapshot!("settings_yaml", text);
}

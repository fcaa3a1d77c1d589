//! The time to compile ClassBench rule sets. Runs if `STEERD_CORPORA` names the directory of the corpora;
//! times are only meaningful in release builds on an idle machine.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use device_model::DeviceModel;
use policy::{NoFiles, Source};
use program::Program;

const SETS: [&str; 6] = ["acl_1k", "acl1_1k", "acl5_1k", "fw1_1k", "ipc1_1k", "acl1_10k"];

/// A line of a set, `@src dst lo : hi lo : hi proto/mask flags/mask`, as a rule; TCP flags are left out.
fn rule(index: usize, line: &str) -> String {
    let columns: Vec<&str> = line.trim_start_matches('@').split_whitespace().collect();
    let mut keys = vec!["family = \"ipv4\"".to_owned()];
    for (key, address) in [("src", columns[0]), ("dst", columns[1])] {
        if !address.ends_with("/0") {
            keys.push(format!("{key} = \"{address}\""));
        }
    }
    for (key, low, high) in [("src_port", columns[2], columns[4]), ("dst_port", columns[5], columns[7])] {
        if (low, high) != ("0", "65535") {
            keys.push(format!("{key} = \"{low}-{high}\""));
        }
    }
    if let Some(protocol) = columns[8].strip_suffix("/0xFF") {
        let protocol = u8::from_str_radix(protocol.trim_start_matches("0x"), 16).expect("a protocol");
        keys.push(format!("protocol = {protocol}"));
    }
    let action = if index % 3 == 2 { "\"drop\"" } else { "{ steer = \"g\" }" };
    format!("[[rules]]\nname = \"r{index}\"\nmatch = {{ {} }}\naction = {action}\n", keys.join(", "))
}

fn policy_text(set: &Path) -> String {
    let lines = std::fs::read_to_string(set).expect("the set can be read");
    let mut text = "version = 1\n[groups.g]\nworkers = \"all\"\n".to_owned();
    for (index, line) in lines.lines().enumerate() {
        text.write_str(&rule(index, line)).expect("strings take text");
    }
    text
}

fn compile(text: &str, profile: &DeviceModel) -> (Duration, Duration, Result<Program, policy::Diagnostics>) {
    let started = Instant::now();
    let (policy, _) = policy::parse(&Source::new("set.toml", text), &NoFiles).expect("it parses");
    let parsed = started.elapsed();
    let started = Instant::now();
    let program = compiler::compile(&policy, profile, 4);
    (parsed, started.elapsed(), program)
}

#[test]
#[ignore = "timing: run with --release, alone"]
fn compiling_is_fast() {
    let Some(folder) = test_support::corpora("rules") else { return };
    for set in SETS {
        let text = policy_text(&folder.join(set));
        let (parsed, compiled, program) = compile(&text, &DeviceModel::ideal());
        let program = program.unwrap_or_else(|problems| panic!("{set}: {problems}"));
        let shapes: HashSet<_> = program.flows.iter().map(program::Flow::shape).collect();
        let (flows, priorities) = (program.flows.len(), program.priorities_used);
        let what = format!("{flows} flows, {priorities} priorities, {} masks", shapes.len());
        let _ = writeln!(std::io::stderr(), "{set}: parse {parsed:?}, compile {compiled:?}: {what}");
    }
}

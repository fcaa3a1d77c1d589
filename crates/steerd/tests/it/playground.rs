//! The program of the playground gives the answers of `check`, `explain` and `diff`.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::examples::examples;
use crate::support::{config, steerd};

/// The answer of the program that is built beside steerd.
fn answer(question: &Value) -> Value {
    let steerd = steerd();
    let program = Path::new(steerd.get_program()).with_file_name("playground");
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}: cargo build -p playground", program.display()));
    child.stdin.take().expect("piped").write_all(question.to_string().as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The standard output of a command in the folder of the examples.
fn printed(arguments: &[&str]) -> String {
    let mut command = steerd();
    let output = command.current_dir(config().join("examples")).args(arguments).output().expect("it runs");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// An example, if it names no other file and has workers.
fn question(example: &str) -> Option<Value> {
    let text = std::fs::read_to_string(config().join("examples").join(example)).expect("the example");
    let is_alone = !text.contains("file =") && !text.contains("includes =") && !text.contains("queues =");
    is_alone.then(|| json!({ "name": example, "text": text }))
}

#[test]
fn the_playground_checks_as_the_command_does() {
    let mut compared = 0;
    for example in examples() {
        let Some(policy) = question(&example) else { continue };
        for model in ["ideal", "mlx5"] {
            let answer = answer(&json!({ "ask": "check", "policy": policy, "model": model }));
            let printed = printed(&["check", &example, "--model", model, "--json"]);
            let printed: Value = serde_json::from_str(&printed).expect("JSON");
            for key in ["ok", "rules", "shares", "capacity", "obstacles", "workers", "diagnostics"] {
                assert_eq!(answer[key], printed[key], "{example} on {model}: {key}");
            }
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn the_playground_explains_as_the_command_does() {
    let policy = question("demo.toml").expect("it names no file");
    for packet in
        ["10.2.0.7:40000 > 192.0.2.80:443 tcp", "src=198.51.100.7", "10.0.0.1 > 10.0.0.2 icmp, vlan 42"]
    {
        let asked =
            json!({ "ask": "explain", "policy": policy, "model": "mlx5", "workers": 2, "packet": packet });
        let arguments = ["explain", "demo.toml", "--model", "mlx5", "--workers", "2", "--packet", packet];
        let printed = printed(&arguments);
        let (model, rest) = printed.split_once('\n').expect("lines");
        assert!(model.starts_with("model "), "{model}");
        assert_eq!(answer(&asked)["text"], rest, "{packet}");
    }
}

#[test]
fn the_playground_compares_as_the_command_does() {
    let old = question("demo.toml").expect("it names no file");
    let text = old["text"].as_str().expect("a text").replace("action = \"drop\"", "action = \"kernel\"");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("new.toml");
    std::fs::write(&file, &text).expect("written");
    let printed = printed(&["diff", "demo.toml", file.to_str().expect("a path"), "--json"]);
    let printed: Value = serde_json::from_str(&printed).expect("JSON");
    let answer = answer(&json!({ "ask": "diff", "old": old, "new": { "name": "new.toml", "text": text } }));
    assert_eq!(answer["equal"], printed["equal"]);
    let both = [&answer, &printed].map(|one| one["pairs"].as_array().expect("pairs").clone());
    assert!(!both[0].is_empty() && both[0].len() == both[1].len(), "{answer}");
    for (mine, theirs) in both[0].iter().zip(&both[1]) {
        for key in ["before", "after", "witness", "within"] {
            assert_eq!(mine[key], theirs[key], "{key}");
        }
    }
}

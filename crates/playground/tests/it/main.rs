//! Questions as a page sends them, and texts that are none.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

const POLICY: &str = "version = 1\ndefault = 'kernel'\n[groups.web]\nworkers = 'all'\n\
    [[rules]]\nname = 'https'\nmatch = { protocol = 'tcp', dst_port = 443 }\naction = { steer = 'web' }\n";

/// The answer, and whether the program ends with success.
fn answer_to(question: &[u8]) -> (Value, bool) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_playground"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program runs");
    // A question that is too long is not read to its end.
    let _ = child.stdin.take().expect("piped").write_all(question);
    let output = child.wait_with_output().expect("it ends");
    (serde_json::from_slice(&output.stdout).expect("JSON"), output.status.success())
}

fn answer(question: &Value) -> Value {
    let (answer, is_ok) = answer_to(question.to_string().as_bytes());
    assert_eq!(is_ok, answer.get("error").is_none(), "{answer}");
    answer
}

fn error(question: &Value) -> String {
    let answer = answer(question);
    answer["error"].as_str().unwrap_or_else(|| panic!("no error: {answer}")).to_owned()
}

fn policy(text: &str) -> Value {
    json!({ "text": text })
}

#[test]
fn what_is_no_question_is_refused() {
    for text in [&b""[..], b"{}", b"[1", b"\xff\xfe", br#"{"ask":"delete"}"#, br#"{"ask":"check"}"#] {
        let (answer, is_ok) = answer_to(text);
        let error = answer["error"].as_str().expect("an error");
        assert!(!is_ok && error.starts_with("this is no question"), "{error}");
    }
    let (answer, is_ok) = answer_to(&vec![b' '; (16 << 20) + 1]);
    let error = answer["error"].as_str().expect("an error");
    assert!(!is_ok && error.contains("more than 16777216 bytes"), "{error}");
}

#[test]
fn a_device_is_a_name_or_a_text() {
    let ask = |model: Value| {
        let mut question = json!({ "ask": "check", "policy": policy(POLICY) });
        question.as_object_mut().expect("an object").extend(model.as_object().expect("an object").clone());
        question
    };
    assert_eq!(answer(&ask(json!({ "model": "mlx4" })))["model"], "mlx4");
    assert!(error(&ask(json!({ "model": "cx9" }))).contains("mlx5"), "the names are listed");
    assert!(error(&ask(json!({ "model": "/etc/passwd" }))).contains("is a path"));
    assert!(error(&ask(json!({ "model": "mlx5", "model_text": "" }))).contains("not both"));
    assert!(error(&ask(json!({ "model_text": "x = 1" }))).contains("model.toml:1"));
    for workers in [0, 257] {
        assert!(error(&ask(json!({ "workers": workers }))).contains("give 1 to 256"));
    }
    assert_eq!(answer(&ask(json!({ "workers": 256 })))["workers"], 256);
    let models = answer(&json!({ "ask": "models" }));
    assert!(models["models"].as_array().expect("a list").contains(&json!("mlx5")));
}

#[test]
fn policies_with_errors_have_diagnostics() {
    let broken = POLICY.replace("'tcp'", "'tpc'");
    let answered = answer(&json!({ "ask": "check", "policy": policy(&broken) }));
    assert_eq!((&answered["ok"], &answered["diagnostics"][0]["line"]), (&json!(false), &json!(7)));
    assert!(answered["excerpts"].as_str().expect("a text").contains("tpc"));
    let explained = answer(&json!({ "ask": "explain", "policy": policy(&broken), "packet": "dst_port=1" }));
    assert_eq!(explained["diagnostics"][0]["line"], 7);
    let compared = answer(&json!({ "ask": "diff", "old": policy(POLICY), "new": policy(&broken) }));
    assert_eq!((&compared["policy"], &compared["diagnostics"][0]["line"]), (&json!("new"), &json!(7)));
    let queues = "version = 1\n[groups.q]\nqueues = [1]\n[[rules]]\nname = 'r'\n\
        match = { protocol = 'udp' }\naction = { steer = 'q' }\n";
    let carved = answer(&json!({ "ask": "check", "policy": policy(queues) }));
    let message = carved["diagnostics"][0]["message"].as_str().expect("a message");
    assert!(carved["ok"] == false && message.contains("queues of an interface"), "{carved}");
    let packet = error(&json!({ "ask": "explain", "policy": policy(POLICY), "packet": "nonsense" }));
    assert!(packet.contains("nonsense"), "{packet}");
}

#[test]
fn files_come_with_the_question() {
    let text = POLICY.replace("default", "sets = { ours = { file = 'ours.txt' } }\ndefault");
    let text = text.replace("dst_port = 443", "dst = 'ours'");
    let given = |files: Value| json!({ "ask": "check", "policy": { "text": text, "files": files } });
    let found = answer(&given(json!({ "ours.txt": "192.0.2.1\n192.0.2.2\n" })));
    assert_eq!(found["ok"], true, "{found}");
    let missing = answer(&given(json!({})));
    let message = missing["diagnostics"][0]["message"].as_str().expect("a message");
    assert!(message.contains("cannot read the set"), "{message}");
}

//! `steerd lsp` as an editor uses it: the real program, over pipes.

mod client;

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::support::{config, run, stderr};
use client::{Client, framed};

const URI: &str = "file:///policies/web.policy.toml";

/// A policy without findings; the comment has characters of several code units.
const POLICY: &str = r#"# Büro 𝄞
version = 1
[sets]
offices = ["198.51.100.0/24", "203.0.113.7"]
[sinks.seen]
kind = "count"
[groups.rx]
workers = "all"
sinks = ["seen"]
[[rules]]
name = "dns"
match = { dst_port = 53, protocol = "udp", src = "offices" }
action = { steer = "rx" }
[[rules]]
name = "telnet"
match = { dst_port = 23, protocol = "tcp" }
action = "drop"
[[tests]]
packet = "dst=192.0.2.53,protocol=tcp,dst_port=23"
expect = "drop"
rule = "telnet"
"#;

/// The line and the UTF-16 column of the beginning of a text in another.
fn place_of(text: &str, part: &str) -> (usize, usize) {
    let at = text.find(part).unwrap_or_else(|| panic!("no {part:?}"));
    let line = text[..at].matches('\n').count();
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    (line, text[start..at].encode_utf16().count())
}

/// The text in a range of the protocol.
fn text_in(text: &str, range: &Value) -> String {
    let offset = |position: &Value| {
        let number = |key: &str| usize::try_from(position[key].as_u64().expect("a number")).expect("small");
        let start: usize = text.split_inclusive('\n').take(number("line")).map(str::len).sum();
        let units: Vec<u16> = text[start..].encode_utf16().take(number("character")).collect();
        start + String::from_utf16(&units).expect("no character is split").len()
    };
    text[offset(&range["start"])..offset(&range["end"])].to_owned()
}

/// The text after the edits of one document, the last first.
fn edited(text: &str, edits: &Value) -> String {
    let mut text = text.to_owned();
    let mut edits = edits.as_array().expect("a list").clone();
    edits.sort_by_key(|edit| {
        let start = &edit["range"]["start"];
        std::cmp::Reverse((start["line"].as_u64(), start["character"].as_u64()))
    });
    for edit in edits {
        let (start, end) = (&edit["range"]["start"], &edit["range"]["end"]);
        let before = text_in(&text, &json!({ "start": { "line": 0, "character": 0 }, "end": start }));
        let marked = text_in(&text, &json!({ "start": start, "end": end }));
        let behind = text[before.len() + marked.len()..].to_owned();
        text = before + edit["newText"].as_str().expect("a text") + &behind;
    }
    text
}

fn messages(found: &[Value]) -> Vec<&str> {
    found.iter().map(|one| one["message"].as_str().expect("a message")).collect()
}

/// The fix that is offered at a range.
fn only_fix(client: &mut Client, range: &Value) -> Value {
    let fixes = client.request(
        "textDocument/codeAction",
        json!({ "textDocument": { "uri": URI }, "range": range, "context": { "diagnostics": [] } }),
    );
    let [fix] = &fixes.as_array().expect("a list")[..] else { panic!("one fix: {fixes}") };
    fix.clone()
}

#[test]
fn a_quick_fix_writes_two_rules() {
    let mut client = Client::initialized(&json!({}));
    let rule =
        "[[rules]]\nname = \"ping\"\nmatch = { icmp_type = 8, icmpv6_type = 128 }\naction = \"drop\"\n";
    let broken = format!("{POLICY}{rule}");
    client.open(URI, &broken);
    let found = client.diagnostics(URI, 1);
    assert!(messages(&found)[0].contains("(write a rule for each version)"), "{found:#?}");
    let fix = only_fix(&mut client, &found[0]["range"]);
    assert_eq!(fix["title"], "write a rule with `icmp_type` and one with `icmpv6_type`");
    let fixed = edited(&broken, &fix["edit"]["documentChanges"][0]["edits"]);
    assert!(
        fixed.ends_with("name = \"ping-2\"\nmatch = { icmpv6_type = 128 }\naction = \"drop\"\n"),
        "{fixed}"
    );
    client.change(URI, 2, &fixed);
    assert!(client.diagnostics(URI, 2).iter().all(|one| one["severity"] != 1), "{fixed}");
    client.shut_down();
}

#[test]
fn a_quick_fix_makes_a_policy_valid() {
    let mut client = Client::initialized(&json!({}));
    let broken = POLICY.replace("{ dst_port = 53,", "{ 'dst_prot' = 53,");
    client.open(URI, &broken);
    let found = client.diagnostics(URI, 1);
    assert_eq!(messages(&found), ["unknown key `dst_prot` (did you mean `dst_port`?)"]);
    assert_eq!(text_in(&broken, &found[0]["range"]), "'dst_prot'");
    let fix = only_fix(&mut client, &found[0]["range"]);
    assert_eq!(fix["title"], "replace `dst_prot` by `dst_port`");
    let change = &fix["edit"]["documentChanges"][0];
    assert_eq!(change["textDocument"], json!({ "uri": URI, "version": 1 }));
    let fixed = edited(&broken, &change["edits"]);
    client.change(URI, 2, &fixed);
    assert_eq!(client.diagnostics(URI, 2), Vec::<Value>::new());
    client.shut_down();
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("policy.toml");
    std::fs::write(&path, &fixed).expect("written");
    let checked = run(&["check", path.to_str().expect("path"), "--deny", "warnings"]);
    assert!(checked.status.success(), "{}", stderr(&checked));
}

#[test]
fn ranges_count_units_of_utf16() {
    let mut client = Client::initialized(&json!({}));
    let text = POLICY.replace("expect = \"drop\"", "expect = \"drop\"\nname = 'ü𝄞'\nrulle = 'ü𝄞'");
    let text =
        text.replace("kind = \"count\"", "kind = 'count' # 𝄞\n").replace("[\"seen\"]", "[\"\", \"𝄞\"]");
    client.open(URI, &text);
    let found = client.diagnostics(URI, 1);
    let marked: Vec<String> = found.iter().map(|one| text_in(&text, &one["range"])).collect();
    assert!(marked.contains(&"\"𝄞\"".to_owned()) && marked.contains(&"rulle".to_owned()), "{found:#?}");
    client.shut_down();
}

#[test]
fn findings_are_those_of_check() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("policy.toml");
    let text = POLICY.replace("expect = \"drop\"", "expect = \"kernel\"")
        + "[[rules]]\nname = \"late\"\nmatch = { dst_port = 23, protocol = \"tcp\", src = \"192.0.2.1\" }\naction = { steer = \"rx\" }\n";
    std::fs::write(&path, &text).expect("written");
    let path = path.to_str().expect("path");
    let checked = run(&["check", path, "--model", "mlx4", "--format", "json"]);
    let checked: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    let expected: Vec<String> = checked["diagnostics"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| {
            let hint = one["hint"].as_str().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{}{hint}", one["message"].as_str().expect("a message"))
        })
        .collect();
    assert!(expected.len() > 1, "{checked:#}");
    let mut client = Client::initialized(&json!({ "model": "mlx4" }));
    let uri = format!("file://{path}");
    client.open(&uri, &text);
    let test = client.findings(&uri, 1, "test");
    assert!(expected.contains(&messages(&test)[0].to_owned()), "{test:#?}\n{expected:#?}");
    client.change(&uri, 2, &format!("{text}# changed\n"));
    let warnings = client.findings(&uri, 2, "warning");
    for message in messages(&warnings) {
        assert!(expected.contains(&message.to_owned()), "{message}\n{expected:#?}");
    }
    let shadowed =
        warnings.iter().find(|one| one["message"].as_str().is_some_and(|text| text.contains("`late`")));
    let related = &shadowed.expect("the shadowed rule")["relatedInformation"][0];
    assert_eq!(text_in(&text, &related["location"]["range"]), "\"telnet\"");
    client.shut_down();
}

#[test]
fn the_device_model_is_a_setting() {
    let mut client = Client::initialized(&json!({ "steerd": { "model": "mlx4" } }));
    client.open(URI, POLICY);
    let found = client.findings(URI, 1, "hybrid");
    assert!(
        messages(&found)
            .iter()
            .any(|message| message
                .contains("workers decide packets of `telnet`: family: the device refuses IPv6")),
        "{found:#?}"
    );
    client.notify(
        "workspace/didChangeConfiguration",
        json!({ "settings": { "steerd": { "model": "ideal" } } }),
    );
    while client.diagnostics(URI, 1).iter().any(|one| one["code"] == "hybrid") {}
    client.notify("workspace/didChangeConfiguration", json!({ "settings": { "model": "mlx99" } }));
    let shown = client.take(|message| message["method"] == "window/showMessage");
    assert!(shown["params"]["message"].as_str().is_some_and(|text| text.contains("mlx99")), "{shown}");
    client.shut_down();
}

#[test]
fn open_sets_and_includes_are_used() {
    let folder = tempfile::tempdir().expect("folder");
    let uri = |name: &str| format!("file://{}", folder.path().join(name).display());
    std::fs::write(folder.path().join("set.txt"), "192.0.2.1\n").expect("written");
    let part = "version = 1\n[sets]\nlisted = { file = \"set.txt\" }\n[groups.rx]\nworkers = \"all\"\n";
    std::fs::write(folder.path().join("part.toml"), part).expect("written");
    let main = "version = 1\nincludes = [\"part.toml\"]\n[[rules]]\nname = \"r\"\nmatch = { src = \"listed\" }\naction = { steer = \"rx\" }\n";
    let mut client = Client::initialized(&json!({}));
    client.open(&uri("main.toml"), main);
    assert_eq!(client.diagnostics(&uri("main.toml"), 1), Vec::<Value>::new());
    // What the editor has, and the file has not.
    client.open(&uri("set.txt"), "192.0.2.1\nnonsense\n");
    let found = client.diagnostics(&uri("set.txt"), 1);
    assert!(messages(&found)[0].contains("is not"), "{found:#?}");
    client.change(&uri("set.txt"), 2, "192.0.2.1\n");
    assert_eq!(client.diagnostics(&uri("set.txt"), 2), Vec::<Value>::new());
    client.open(&uri("part.toml"), &part.replace("groups.rx", "groups.ry"));
    while client.diagnostics(&uri("main.toml"), 1).is_empty() {}
    // The definition is in the other file.
    client.change(&uri("part.toml"), 2, part);
    let (line, character) = place_of(main, "\"rx\"");
    let found = client.at("textDocument/definition", &uri("main.toml"), (line, character + 1));
    assert_eq!(
        (&found[0]["uri"], text_in(part, &found[0]["range"])),
        (&json!(uri("part.toml")), "rx".to_owned())
    );
    client.shut_down();
}

#[test]
fn names_are_explained_and_completed() {
    let mut client = Client::initialized(&json!({ "model": "mlx5" }));
    client.open(URI, POLICY);
    while client.at("textDocument/hover", URI, place_of(POLICY, "dns\""))["contents"]["value"]
        .as_str()
        .is_none_or(|text| !text.contains("on mlx5"))
    {
        client.diagnostics(URI, 1);
    }
    let mut hover = |part: &str| {
        let found = client.at("textDocument/hover", URI, place_of(POLICY, part));
        found["contents"]["value"].as_str().unwrap_or_default().to_owned()
    };
    let rule = hover("dns\"");
    assert!(rule.contains("example: `") && rule.contains("priority "), "{rule}");
    assert!(hover("offices\" }").contains("198.51.100.0/24, 203.0.113.7"));
    assert!(hover("rx\" }").contains("workers: all"));
    assert!(hover("seen\"]").contains("kind: count"));
    let field = hover("dst_port");
    assert!(field.contains("16 bits") && field.contains("Devices can match it"), "{field}");
    assert!(hover("workers =").contains("Its workers"));
    let text = POLICY.replace("src = \"offices\" }", "src = \"o\", dst = , ip_fl }");
    client.change(URI, 2, &text);
    let mut labels = |part: &str, offset: usize| -> Vec<String> {
        let (line, character) = place_of(&text, part);
        let all = client.at("textDocument/completion", URI, (line, character + offset));
        let label = |item: &Value| item["label"].as_str().expect("a label").to_owned();
        all.as_array().expect("a list").iter().map(label).collect()
    };
    let is_in = |label: &str, labels: &[String]| labels.iter().any(|one| one == label);
    assert!(is_in("offices", &labels("o\", dst", 1)));
    assert!(is_in("offices", &labels("dst = ,", 6)));
    assert!(is_in("ip_flags", &labels("ip_fl }", 5)));
    assert!(is_in("icmpv6", &labels("udp\"", 0)));
    assert!(is_in("rx", &labels("rx\" }", 1)));
    assert!(is_in("seen", &labels("seen\"]", 2)));
    assert!(is_in("telnet", &labels("rule = \"telnet", 9)));
    assert!(is_in("direction", &labels("expect =", 0)));
    client.shut_down();
}

#[test]
fn names_are_found_and_renamed() {
    let mut client = Client::initialized(&json!({}));
    client.open(URI, POLICY);
    let position = |part: &str| {
        let (line, character) = place_of(POLICY, part);
        json!({ "line": line, "character": character })
    };
    let context = json!({ "includeDeclaration": true });
    let found = client.request(
        "textDocument/references",
        json!({ "textDocument": { "uri": URI }, "position": position("rx]"), "context": context }),
    );
    let marked: Vec<String> =
        found.as_array().expect("a list").iter().map(|one| text_in(POLICY, &one["range"])).collect();
    assert_eq!(marked, ["rx", "rx"]);
    let rename =
        |name: &str| json!({ "textDocument": { "uri": URI }, "position": position("rx]"), "newName": name });
    let renamed = client.request("textDocument/rename", rename("front.rx"));
    let text = edited(POLICY, &renamed["documentChanges"][0]["edits"]);
    assert!(text.contains("[groups.\"front.rx\"]") && text.contains("{ steer = \"front.rx\" }"), "{text}");
    let id = client.ask("textDocument/rename", rename("two words"));
    assert!(client.answer(id)["error"]["message"].as_str().is_some_and(|text| text.contains("not a name")));
    let symbols = client.request("textDocument/documentSymbol", json!({ "textDocument": { "uri": URI } }));
    let names: Vec<&str> =
        symbols.as_array().expect("a list").iter().map(|one| one["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["offices", "seen", "rx", "dns", "telnet"]);
    client.shut_down();
}

#[test]
fn hints_show_where_rules_are_decided() {
    let mut client = Client::initialized(&json!({ "model": "mlx5" }));
    client.open(URI, POLICY);
    client.diagnostics(URI, 1);
    let range = json!({ "start": { "line": 0, "character": 0 }, "end": { "line": 99, "character": 0 } });
    let hints = loop {
        let ask = json!({ "textDocument": { "uri": URI }, "range": range });
        let hints = client.request("textDocument/inlayHint", ask);
        if hints.as_array().is_some_and(|hints| !hints.is_empty()) {
            break hints;
        }
        client.diagnostics(URI, 1);
    };
    let label = hints[1]["label"].as_str().expect("a label");
    assert!(label.contains("flow") && label.contains("hardware"), "{hints}");
    client.shut_down();
}

#[test]
fn settings_of_helix_start_a_session() {
    let path = config().join("../deploy/editors/helix-languages.toml");
    let text = std::fs::read_to_string(path).expect("the settings");
    let settings: toml::Table = toml::from_str(&text).expect("TOML");
    let server = &settings["language-server"]["steerd"];
    assert_eq!((server["command"].as_str(), server["args"][0].as_str()), (Some("steerd"), Some("lsp")));
    let model = server["config"]["model"].as_str().expect("a model");
    Client::initialized(&json!({ "model": model })).shut_down();
}

#[test]
fn requests_need_a_session() {
    let mut client = Client::start(&[]);
    let code = |client: &mut Client, method: &str| {
        let id = client.ask(method, json!({}));
        client.answer(id)["error"]["code"].as_i64()
    };
    assert_eq!(code(&mut client, "textDocument/hover"), Some(-32002));
    client.request("initialize", json!({ "capabilities": {} }));
    assert_eq!(code(&mut client, "textDocument/nothing"), Some(-32601));
    assert_eq!(code(&mut client, "textDocument/hover"), Some(-32602));
    assert_eq!(code(&mut client, "initialize"), Some(-32600));
    client.request("shutdown", Value::Null);
    assert_eq!(code(&mut client, "textDocument/hover"), Some(-32600));
    client.notify("exit", Value::Null);
    assert_eq!(client.end().0.code(), Some(0));
}

#[test]
fn an_exit_without_shutdown_fails() {
    let mut client = Client::initialized(&json!({}));
    client.notify("exit", Value::Null);
    let (status, text) = client.end();
    assert_eq!((status.code(), &*text), (Some(1), "steerd: lsp: the session ended without `shutdown`\n"));
    let client = Client::initialized(&json!({}));
    assert_eq!(client.end().0.code(), Some(1), "the editor is gone");
}

#[test]
fn malformed_messages_are_answered() {
    let mut client = Client::initialized(&json!({}));
    for (body, code) in [("{", -32700), ("[1]", -32600), ("{\"id\":1.5,\"method\":\"x\"}", -32600)] {
        client.write(&framed(body));
        let answer = client.take(|message| message["id"].is_null() && message.get("error").is_some());
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    client.notify("textDocument/didChange", json!({ "textDocument": { "uri": URI } }));
    client.take(|message| message["method"] == "window/showMessage");
    client.shut_down();
    let long = format!("X: {}\r\n\r\n", "x".repeat(100_000));
    for text in
        ["Content-Length: twelve\r\n\r\n{}", "Content-Length: 99999999999999999999\r\n\r\n{}", "\r\n", &long]
    {
        let mut client = Client::initialized(&json!({}));
        client.write(text);
        let answer = client.take(|message| message["id"].is_null());
        assert_eq!(answer["error"]["code"], -32700, "{answer}");
        let (status, stderr) = client.end();
        assert_eq!(status.code(), Some(7), "{stderr}");
        assert!(stderr.starts_with("steerd: lsp: a message has "), "{stderr}");
    }
}

/// Either the cancellation comes first, or the answer.
#[test]
fn cancelled_requests_have_one_answer() {
    let mut client = Client::initialized(&json!({}));
    client.open(URI, POLICY);
    let position = json!({ "line": 0, "character": 0 });
    let params = json!({ "textDocument": { "uri": URI }, "position": position });
    let request = json!({ "jsonrpc": "2.0", "id": 77, "method": "textDocument/hover", "params": params });
    let cancel = json!({ "jsonrpc": "2.0", "method": "$/cancelRequest", "params": { "id": 77 } });
    client.write(&(framed(&request.to_string()) + &framed(&cancel.to_string())));
    let answer = client.answer(77);
    assert!(answer["error"]["code"] == -32800 || answer["result"].is_null(), "{answer}");
    // The answer to the next request is the next answer.
    let id = client.ask("shutdown", Value::Null);
    let next = client.take(|message| message.get("id").is_some() && message.get("method").is_none());
    assert_eq!(next["id"], id);
}

#[test]
fn typing_in_a_large_policy_is_answered() {
    let mut text = "version = 1\n[groups.rx]\nworkers = \"all\"\n".to_owned();
    for rule in 0..10_000 {
        let (high, low) = (rule / 256, rule % 256);
        let _ = write!(
            text,
            "[[rules]]\nname = \"r{rule}\"\nmatch = {{ dst = \"10.0.{high}.{low}\" }}\naction = {{ steer = \"rx\" }}\n"
        );
    }
    let mut client = Client::initialized(&json!({}));
    client.open(URI, &text);
    let end = json!({ "line": 40_003, "character": 0 });
    for version in 2..22 {
        let edit = json!({ "range": { "start": end, "end": end }, "text": "x" });
        let document = json!({ "uri": URI, "version": version });
        client
            .notify("textDocument/didChange", json!({ "textDocument": document, "contentChanges": [edit] }));
    }
    // Answered before the check of the text, which is not valid now, has ended or even begun.
    let symbols = client.request("textDocument/documentSymbol", json!({ "textDocument": { "uri": URI } }));
    assert_eq!(symbols.as_array().map(Vec::len), Some(10_001));
    let found = client.diagnostics(URI, 21);
    assert_eq!(found.len(), 1, "{found:#?}");
    // What was typed in one go was checked at most twice: once when it was opened, if that was slow.
    client.request("shutdown", Value::Null);
    let checks = client.published(URI);
    assert!(checks <= 3, "{checks} results for 20 changes");
}

#[test]
fn every_example_is_checked_as_by_check() {
    let folder = config().join("examples");
    let mut client = Client::initialized(&json!({}));
    for example in crate::examples::examples() {
        let path = folder.join(&example);
        let text = std::fs::read_to_string(&path).expect("an example");
        let uri = format!("file://{}", path.display());
        client.open(&uri, &text);
        let expected = run(&["check", path.to_str().expect("path"), "--quiet"]).status.success();
        let found = last_diagnostics(&mut client, &uri);
        let errors: Vec<&Value> = found.iter().filter(|one| one["severity"] == 1).collect();
        assert_eq!(errors.is_empty(), expected, "{example}: {errors:#?}");
        client.notify("textDocument/didClose", json!({ "textDocument": { "uri": uri } }));
    }
    client.shut_down();
}

/// The findings of the whole check: those that were published before there were hints.
fn last_diagnostics(client: &mut Client, uri: &str) -> Vec<Value> {
    let range = json!({ "start": { "line": 0, "character": 0 }, "end": { "line": 9999, "character": 0 } });
    let mut found = client.diagnostics(uri, 1);
    loop {
        let ask = json!({ "textDocument": { "uri": uri }, "range": range });
        let hints = client.request("textDocument/inlayHint", ask);
        if hints.as_array().is_some_and(|hints| !hints.is_empty()) {
            return client.last_published(uri).unwrap_or(found);
        }
        found = client.diagnostics(uri, 1);
    }
}

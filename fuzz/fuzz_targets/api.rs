//! Any request line and body of the local API gives a call or a refusal with a status and a short text. The
//! router behind it needs a daemon; what reads the requests does not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use request::{Call, PolicyBody, Refused};

// It is a module of a program, not of a library.
#[allow(dead_code)]
#[path = "../../crates/steerd/src/api/request.rs"]
mod request;

/// The longest text of a refusal: it shows only the first characters of what the client sent.
const WHY_BYTES_MAX: usize = 1024;

fuzz_target!(|input: (&str, &str, Option<&str>, &[u8])| {
    let (method, path, query, body) = input;
    match request::call(method, path, query) {
        Ok(call) => {
            assert!(!call.is_privileged() || !matches!(method, "GET" | "HEAD"), "{call:?} by {method}");
            assert!(call.body_bytes_max() <= request::BODY_BYTES_MAX);
            if let Call::Flows { rule: Some(rule) } = call {
                assert!(!rule.is_empty());
            }
        }
        Err(refused) => check(&refused),
    }
    match request::body::<PolicyBody>(body) {
        Ok(parsed) => {
            let text = serde_json::to_vec(&parsed).expect("it has only strings");
            assert_eq!(request::body::<PolicyBody>(&text).expect("its own text"), parsed);
        }
        Err(refused) => check(&refused),
    }
});

fn check(refused: &Refused) {
    assert!((400..500).contains(&refused.status), "{refused}");
    assert!(!refused.why.is_empty() && refused.why.len() <= WHY_BYTES_MAX, "{} bytes", refused.why.len());
    assert_eq!(refused.status == 405, refused.allow.is_some());
}

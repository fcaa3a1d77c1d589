//! Parsing any text gives a policy or diagnostics within a bounded time; a compiled policy explains every
//! packet. The first text may include the second or read a set from it; the second is also imported as a
//! listing.
#![no_main]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use device_model::DeviceModel;
use libfuzzer_sys::fuzz_target;
use packet::DeepKey;
use policy::{NoFiles, Source, import};
use program::Predicate;

/// The time limit for a text of the fuzzer's size, with sanitizers and on a busy machine.
const TEXT_TIME: Duration = Duration::from_secs(5);

fuzz_target!(|data: (&str, &str, &[u8])| {
    let (text, other, frame) = data;
    for imported in [import::ethtool(other), import::classbench(other)].into_iter().flatten() {
        let source = Source::new("imported.toml", imported.policy_toml);
        assert!(policy::parse(&source, &NoFiles).is_ok(), "{source:?}");
    }
    let files =
        BTreeMap::from([("a.toml".to_owned(), other.to_owned()), ("a.txt".to_owned(), other.to_owned())]);
    let started = Instant::now();
    let parsed = policy::parse(&Source::new("fuzz.toml", text), &files);
    assert!(started.elapsed() < TEXT_TIME, "{:?}", started.elapsed());
    let Ok((policy, _)) = parsed else { return };
    let key = DeepKey::of(frame);
    for rule in &policy.rules {
        let predicate = Predicate::of(&rule.matches);
        // Without tunnels the shallow key gives the same explanation.
        if !predicate.needs_tunnel() {
            assert_eq!(predicate.matches(&key.outer), predicate.matches_deep(&key));
        }
        let _ = predicate.to_string();
    }
    let Ok(program) = compiler::compile(&policy, &DeviceModel::ideal(), 4) else { return };
    let explained = program.explain_deep(&key);
    assert!(explained.outcome.rule.index() < program.rules.len());
});

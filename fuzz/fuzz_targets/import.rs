//! Any text is a ClassBench or an ethtool listing, or is skipped with a note: what comes out is a policy that parses,
//! within a bounded time.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use policy::{NoFiles, Source, import};

/// The longest that a text of the fuzzer's size may take, sanitizers and a busy machine included.
const TEXT_TIME: Duration = Duration::from_secs(5);

fuzz_target!(|text: &str| {
    let started = Instant::now();
    for imported in [import::ethtool(text), import::classbench(text)] {
        let source = Source::new("imported.toml", imported.policy_toml);
        assert!(policy::parse(&source, &NoFiles).is_ok(), "{source:?}");
    }
    assert!(started.elapsed() < TEXT_TIME, "{:?}", started.elapsed());
});

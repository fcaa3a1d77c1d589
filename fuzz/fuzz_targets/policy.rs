//! Any text is a policy or a list of diagnostics; what compiles explains every packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::FlowKey;
use policy::{DeviceProfile, NoFiles, Source};

fuzz_target!(|data: (&str, &[u8])| {
    let (text, frame) = data;
    let Ok((policy, _)) = policy::parse(&Source::new("fuzz.toml", text), &NoFiles) else { return };
    let Ok(program) = policy::compile(&policy, &DeviceProfile::ideal(), 4) else { return };
    let explained = program.explain(&FlowKey::of(frame));
    assert!(explained.outcome.rule.index() < program.rules.len());
});

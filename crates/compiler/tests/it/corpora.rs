//! The language against real captures: every rule of the corpora's RULES.tsv, written as a policy of that one
//! rule; the number of packets that it matches is compared with the number from tshark. Runs if
//! `STEERD_CORPORA` names the directory of the corpora.

use std::collections::{BTreeMap, BTreeSet};

use device_model::DeviceModel;
use packet::DeepKey;
use policy::Source;
use program::RuleId;
use test_support::{CAPTURE_RULES, captures, corpora, frames};

#[test]
fn captures_are_counted_as_tshark_counts_them() {
    let Some(folder) = corpora("pcaps") else { return };
    let table = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let listed = table("RULES.tsv");
    let listed: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    let sayable: Vec<&str> = CAPTURE_RULES.iter().map(|(name, _)| *name).collect();
    let unknown: Vec<_> = listed.iter().filter(|name| !sayable.contains(name)).collect();
    assert!(unknown.is_empty(), "rules that are not said: {unknown:?}");

    let mut expected: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in table("EXPECTED.tsv").lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        expected.insert((columns[0].to_owned(), columns[1].to_owned()), columns[2].parse().unwrap());
    }
    let captures = captures(&folder);
    let named: BTreeSet<&String> = expected.keys().map(|(file, _)| file).collect();
    let missing: Vec<_> = named.iter().filter(|file| !captures.contains_key(**file)).collect();
    assert!(!named.is_empty() && missing.is_empty(), "EXPECTED.tsv speaks of {missing:?}");
    let mut wrong = Vec::new();
    for (name, matches) in CAPTURE_RULES {
        let text = format!(
            "version = 1\n[groups.g]\nworkers = [0]\n[[rules]]\nname = 'rule'\nmatch = {{ {matches} }}\naction = {{ steer = 'g' }}\n"
        );
        let (policy, _) = policy::parse(&Source::new(name, text), &policy::NoFiles).unwrap();
        let program = compiler::compile(&policy, &DeviceModel::ideal(), 1).unwrap();
        for (file, bytes) in &captures {
            let claims = |frame: &&&[u8]| program.explain_deep(&DeepKey::of(frame)).outcome.rule == RuleId(0);
            let counted = frames(bytes).iter().filter(claims).count();
            let wanted = expected.get(&(file.clone(), name.to_owned())).copied().unwrap_or(0);
            if counted != wanted {
                wrong.push(format!("{file} {name}: counted {counted}, tshark {wanted}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

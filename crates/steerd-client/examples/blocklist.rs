//! Keeps rules at run time for the addresses of a list: those of the list are dropped, and those that are not
//! in it any more are let through again.
//!
//! `cargo run -p steerd-client --features api --example blocklist -- /run/steerd/api.sock addresses.txt`: the
//! file has an address in each line. The policy needs `matches = ["src"]` and `actions = ["drop"]` in
//! `[runtime]`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use steerd_client::api::{ApiClient, ApiError, RuleBody, RuleChanges, RuleMatch, RulesChanged};

/// The ids of the rules of this program begin so.
const PREFIX: &str = "blocklist-";
/// The most rules of a call. The list of the daemon, which this program compares with, has at most 10,000.
const RULES_MAX: usize = 5_000;

/// Brings the rules to the state of the list. Returns what has changed, and the addresses that the daemon
/// refuses with the reasons.
pub(crate) fn follow(steerd: &ApiClient, list: &str) -> Result<(RulesChanged, Vec<String>), ApiError> {
    let mut rules: BTreeMap<String, RuleBody> = BTreeMap::new();
    let mut refused = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.parse::<IpAddr>() {
            Ok(_) if rules.len() == RULES_MAX => {
                refused.push(format!("{line}: the list has more than {RULES_MAX} addresses"));
            }
            Ok(address) => {
                let id = format!("{PREFIX}{address}");
                let rule =
                    RuleBody::new(RuleMatch::default().src(address), "drop").id(&id).comment("blocklist");
                rules.insert(id, rule);
            }
            Err(_) => refused.push(format!("{line}: no address")),
        }
    }
    let listed = steerd.rules()?;
    let ids = listed.rules.into_iter().filter_map(|row| row.rule.id);
    let gone: Vec<String> = ids.filter(|id| id.starts_with(PREFIX) && !rules.contains_key(id)).collect();
    // All of a call is done, or nothing: what is refused is left out at the next attempt.
    loop {
        let changes = RuleChanges {
            remove: gone.clone(),
            add: rules.values().cloned().collect(),
            ..RuleChanges::default()
        };
        match steerd.change(&changes) {
            Ok(changed) => return Ok((changed, refused)),
            Err(ApiError::Refused { failure, .. })
                if failure.refused.iter().any(|rule| rules.contains_key(&rule.id)) =>
            {
                for rule in &failure.refused {
                    rules.remove(&rule.id);
                    refused.push(format!("{}: {}", rule.id, rule.error));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, file] = arguments.as_slice() else {
        eprintln!("usage: blocklist SOCKET FILE");
        return ExitCode::FAILURE;
    };
    let list = match std::fs::read_to_string(Path::new(file)) {
        Ok(list) => list,
        Err(error) => {
            eprintln!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    };
    match ApiClient::new(socket).and_then(|steerd| follow(&steerd, &list)) {
        Ok((changed, refused)) => {
            refused.iter().for_each(|line| eprintln!("{line}"));
            println!("{} addresses added, {} removed", changed.added, changed.removed);
            if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

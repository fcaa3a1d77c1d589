//! Whether a log filter means what it says.
//!
//! `EnvFilter` takes any bare word for the name of a module, and a module that does not exist logs nothing: a mistyped
//! level would silence the log without an error.

use tracing_subscriber::EnvFilter;

/// The levels, and `off` for nothing.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The crates of this program that log.
const CRATES: &[&str] = &[
    "steerd",
    "analysis",
    "compiler",
    "conformance",
    "control",
    "device_model",
    "hugemem",
    "packet",
    "policy",
    "program",
    "softnic",
    "verbs",
    "worker",
    "axum",
    "hyper",
    "mio",
    "tokio",
];

/// # Errors
/// What is wrong with the filter, and what can be written instead.
pub(crate) fn check(filter: &str) -> Result<(), String> {
    filter.split(',').try_for_each(check_directive)?;
    // What is left to be wrong: the brackets of spans.
    filter.parse::<EnvFilter>().map(drop).map_err(|error| format!("not a filter: {error}"))
}

/// `level`, `module` or `module=level`; a module may name spans in brackets.
fn check_directive(directive: &str) -> Result<(), String> {
    let is_level = |word: &str| LEVELS.contains(&word.to_ascii_lowercase().as_str());
    let levels = LEVELS.join(", ");
    let (module, level) = match directive.rsplit_once('=') {
        Some((module, level)) => (module, Some(level)),
        None => (directive, None),
    };
    if let Some(level) = level.filter(|level| !is_level(level)) {
        return Err(format!("`{level}` is not a level: write one of {levels}"));
    }
    if level.is_none() && is_level(directive) {
        return Ok(());
    }
    let root = module.split(['[', ':']).next().unwrap_or_default();
    if CRATES.contains(&root) {
        return Ok(());
    }
    let crates = CRATES.join(", ");
    Err(match level {
        None => format!("`{directive}` is neither a level ({levels}) nor a module ({crates})"),
        Some(_) => format!("`{root}` is not a module that logs: write one of {crates}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_silence_the_log_by_mistake_is_refused() {
        for good in
            ["info", "INFO", "off", "steerd=debug,info", "warn,softnic=trace", "worker::turn=debug", "policy"]
        {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, named) in [
            ("debgu", "`debgu` is neither a level (off, error, warn, info, debug, trace)"),
            ("steerd=debgu", "`debgu` is not a level: write one of off, error"),
            ("stered=debug", "`stered` is not a module that logs: write one of steerd"),
            ("info,worker=loud", "`loud`"),
            ("", "``"),
            ("info,", "``"),
            ("warn, softnic=trace", "` softnic`"),
            ("3", "`3`"),
        ] {
            let error = check(bad).expect_err(bad);
            assert!(error.contains(named), "{bad}: {error}");
        }
    }

    #[test]
    fn every_crate_of_the_workspace_is_known() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for entry in std::fs::read_dir(crates).expect("crates/") {
            let name = entry.expect("an entry").file_name().to_string_lossy().replace('-', "_");
            // A program of its own, which logs nothing here.
            if name != "softnic_door" {
                assert!(CRATES.contains(&name.as_str()), "{name} is missing in CRATES");
            }
        }
    }
}

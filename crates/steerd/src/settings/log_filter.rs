//! The check of `log.filter`. The log itself accepts a filter that names an unknown module, and hides its
//! lines.

use tracing_subscriber::filter::Targets;

/// The levels, and `off` for nothing.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The crates that log.
const CRATES: &[&str] = &[
    "steerd",
    "analysis",
    "balance",
    "compiler",
    "conformance",
    "control",
    "device_model",
    "hugemem",
    "nic_filters",
    "packet",
    "policy",
    "program",
    "reports",
    "softnic",
    "softnic_verbs",
    "verbs",
    "wire",
    "worker",
    "xdp",
    "axum",
    "hyper",
    "mio",
    "tokio",
];

/// # Errors
/// The fault of the filter, and the remedy.
pub(super) fn check_filter(filter: &str) -> Result<(), String> {
    filter.split(',').try_for_each(check_directive)?;
    filter.parse::<Targets>().map(drop).map_err(|error| format!("not a filter: {error}"))
}

/// `level`, `module` or `module=level`.
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
    let root = module.split(':').next().unwrap_or_default();
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
    fn mistyped_filters_are_refused() {
        for good in
            ["info", "INFO", "off", "steerd=debug,info", "warn,softnic=trace", "worker::turn=debug", "policy"]
        {
            assert_eq!(check_filter(good), Ok(()), "{good}");
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
            ("steerd[span]=debug", "`steerd[span]` is not a module"),
        ] {
            let error = check_filter(bad).expect_err(bad);
            assert!(error.contains(named), "{bad}: {error}");
        }
    }

    #[test]
    fn every_crate_of_the_workspace_is_known() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for entry in std::fs::read_dir(crates).expect("crates/") {
            let name = entry.expect("an entry").file_name().to_string_lossy().replace('-', "_");
            // Separate programs and what they alone use, plain types, tables, a trait, sleep, shared memory,
            // interfaces, fixtures.
            let silent = [
                "softnic_preload",
                "softnic_mlx5",
                "flow_spec",
                "flow_table",
                "ibv_provider",
                "parking",
                "playground",
                "policy_lsp",
                "ring_cursor",
                "test_support",
                "tracepoints",
                "shm",
                "tap",
                "regular_file",
                "steerd_client",
            ];
            let is_known = silent.contains(&name.as_str()) || CRATES.contains(&name.as_str());
            assert!(is_known, "{name} is missing in CRATES");
        }
    }
}

//! `steerd report`: writes a bundle for a bug report, without what identifies the network.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;

use crate::api::model::Status;
use crate::cli::ReportArgs;
use crate::commands::{Error, client, doctor, healthcheck};
use crate::doctor::SystemFiles;
use crate::message::chain;
use crate::report_bundle::{self, BundlePart, BundleSources, ReportBundle};
use crate::settings::{self, Listen, Loaded, Request};
use crate::terminal::numbers::{bytes, number};
use crate::terminal::output::{self, Priority};

/// The most bytes of the metrics that are read.
const METRICS_BYTES_MAX: u64 = 16 << 20;

/// Described in docs/reference/commands/report.md.
#[derive(Debug, Serialize)]
struct WrittenReport<'r> {
    file: &'r Path,
    is_redacted: bool,
    parts: &'r [BundlePart],
}

pub(crate) fn run(args: &ReportArgs) -> Result<(), Error> {
    let api = &args.api;
    let request =
        Request { file: api.config.clone(), api_socket: api.api_socket.clone(), ..Request::default() };
    // Settings with problems are a reason for a report.
    let loaded = settings::load(&request);
    let problems = || {
        loaded.as_ref().err().map(|problems| {
            let lines: Vec<String> = problems.diagnostics.list.iter().map(ToString::to_string).collect();
            lines.join("\n") + "\n"
        })
    };
    let client = match &loaded {
        Ok(_) => client::connect(api),
        Err(_) => client::connect_without_settings(api),
    };
    let client = client.map_err(|error| error.to_string());
    let ask = |path: &str| {
        let client = client.as_ref().map_err(Clone::clone)?;
        client.get::<Value>(path).map_err(|error| error.to_string())
    };
    let doctor = match &loaded {
        Ok(loaded) => {
            serde_json::to_value(doctor::examine(&loaded.settings, api)).map_err(|error| error.to_string())
        }
        Err(_) => Err("the settings have problems".to_owned()),
    };
    let metrics = |token: &str| metrics(loaded.as_ref().ok(), ask("/v1/status").ok(), token);
    let bundle = report_bundle::collect(&BundleSources {
        files: &SystemFiles::of_host(),
        settings_file: api.config.as_deref(),
        loaded: loaded.as_ref().map_err(|_| problems().unwrap_or_default()),
        doctor,
        api: &ask,
        metrics: &metrics,
        is_redacted: !args.no_redact,
    })?;
    let path = args.file.clone().unwrap_or_else(default_name);
    report_bundle::write(&bundle, &path, args.force)?;
    if args.output.is_json() {
        let written = WrittenReport { file: &path, is_redacted: bundle.is_redacted, parts: &bundle.parts };
        output::print_json(&written)?;
    } else {
        output::print(&text(&bundle, &path))?;
    }
    output::print_message(Priority::Warning, warning(&bundle));
    Ok(())
}

fn default_name() -> PathBuf {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("steerd-report-{}.tar.gz", number(since.as_secs())).into()
}

/// The metrics of the daemon: at the address in its status, else at that of the settings. There another
/// program may listen, so the token is not sent.
fn metrics(loaded: Option<&Loaded>, status: Option<Value>, token: &str) -> Result<String, String> {
    let status: Option<Status> = status.and_then(|status| serde_json::from_value(status).ok());
    let of_daemon = status.and_then(|status| status.http?.parse().ok());
    let of_settings = loaded.and_then(|loaded| match loaded.settings.http.listen {
        Listen::On(address) if address.port() != 0 => Some(address),
        Listen::On(_) | Listen::Off => None,
    });
    let (address, token) = match (of_daemon, of_settings) {
        (Some(address), _) => (address, token),
        (None, Some(address)) => (address, ""),
        (None, None) => return Err("no daemon names the address of its pages".to_owned()),
    };
    let address = healthcheck::reachable(address);
    let answer = healthcheck::ask(address, "/metrics", token, METRICS_BYTES_MAX)
        .map_err(|error| format!("{address} does not answer: {}", chain(&error)))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        status => {
            let [status, body] = [status.unwrap_or("nothing"), body].map(healthcheck::shortened);
            Err(format!("{address} answers {status}: {body}"))
        }
    }
}

/// The parts, and what is missing.
fn text(bundle: &ReportBundle, path: &Path) -> String {
    let mut text = format!("{}\n", path.display());
    for part in &bundle.parts {
        let length = if part.is_present() { bytes(part.bytes as u64) } else { "absent".to_owned() };
        let remark = part.remark.as_deref().map_or_else(String::new, |remark| format!("  ({remark})"));
        text += &output::plain(&format!("{length:>8}  {}{remark}", part.name));
        text.push('\n');
    }
    text
}

fn warning(bundle: &ReportBundle) -> &'static str {
    match bundle.is_redacted {
        true => {
            "warning: read the report before you send it: names that you gave to rules, groups, sinks and files are in it"
        }
        false => {
            "warning: NOT redacted: the report has the addresses and names of your network; send it to nobody whom you do \
             not trust"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_nobody_are_absent() {
        let refused = metrics(None, None, "").expect_err("no address");
        assert!(refused.contains("no daemon"), "{refused}");
        let status = serde_json::json!({ "http": "not an address" });
        assert!(metrics(None, Some(status), "").is_err());
    }
}

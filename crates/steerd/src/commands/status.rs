//! `steerd status`: what the running daemon does, without asking the device.

use std::time::Duration;

use crate::api::model::Status;
use crate::cli::StatusArgs;
use crate::commands::{Error, client};
use crate::terminal::numbers::{counted, duration, number};
use crate::terminal::output;
use crate::terminal::style::{Colors, Style};

pub(crate) fn run(args: &StatusArgs) -> Result<(), Error> {
    let client = client::connect(&args.api)?;
    if args.output.is_json() {
        let answer: serde_json::Value = client.get("/v1/status")?;
        return Ok(output::print_json(&answer)?);
    }
    Ok(output::print(&text(&client.get("/v1/status")?, Colors::stdout()))?)
}

fn text(status: &Status, colors: Colors) -> String {
    let Status { device, policy, health, .. } = status;
    let up = duration(Duration::from_secs_f64(status.uptime_seconds.max(0.0)));
    let kind = if device.soft { " (soft NIC)" } else { "" };
    let ports: Vec<String> = device.ports.iter().map(ToString::to_string).collect();
    let mut lines = vec![
        format!("steerd {}, process {}, up {up}", status.version, status.pid),
        format!(
            "device   {}{kind}, limits of {}, {}, port {}",
            device.name,
            device.profile,
            counted(status.workers as u64, "worker", "workers"),
            ports.join(", "),
        ),
        format!("policy   {}", policy.source),
        format!(
            "         generation {}, {}, {}, {}",
            policy.generation,
            counted(policy.rules as u64, "rule", "rules"),
            counted(policy.flows as u64, "flow", "flows"),
            counted(policy.warning_count as u64, "warning", "warnings"),
        ),
        format!("         sha256 {}", policy.sha256),
        format!(
            "         {}, {} failed",
            counted(policy.reloads_succeeded, "reload", "reloads"),
            number(policy.reloads_failed)
        ),
    ];
    if let Some(number) = policy.past {
        let line = format!(
            "         policy {number} of the history, not what the file says now: see `steerd diff --running`"
        );
        lines.push(colors.text(Style::Warning, &line));
    }
    if let Some(error) = policy.last_error.as_ref().filter(|_| !policy.last_reload_successful) {
        lines
            .push(colors.text(Style::Bad, &format!("         last reload failed: {}", output::plain(error))));
    }
    let health = match &health.problem {
        None => match &health.degraded {
            None => colors.text(Style::Good, "ready"),
            Some(degraded) => colors.text(Style::Warning, &format!("ready, {degraded}")),
        },
        Some(problem) => colors.text(Style::Bad, problem),
    };
    lines.push(format!("health   {health}"));
    for sink in &status.sinks {
        let details: Vec<String> =
            sink.status.iter().map(|(key, value)| format!("{key} {}", output::plain(value))).collect();
        lines.push(
            format!("sink     {} ({}) {}", sink.name, sink.kind, details.join(", ")).trim_end().to_owned(),
        );
    }
    lines.join("\n") + "\n"
}

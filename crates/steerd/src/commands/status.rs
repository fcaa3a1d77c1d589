//! `steerd status`: what the running daemon does, without asking the device.

use std::time::Duration;

use worker::sinks::{SinkStatus, StatusValue};

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
        let values = values(&sink.status);
        lines.push(format!("sink     {} ({}) {values}", sink.name, sink.kind).trim_end().to_owned());
        let lists = sink.status.iter().filter_map(|(name, value)| match value {
            StatusValue::List(list) => Some((name, list)),
            StatusValue::Number(_) | StatusValue::Text(_) => None,
        });
        for (name, list) in lists {
            let line =
                |entry: &SinkStatus| format!("         {}: {}", name.replace('_', " "), self::values(entry));
            lines.extend(list.iter().map(line));
        }
    }
    lines.join("\n") + "\n"
}

/// The numbers and texts of a status in one line. Clients choose their names, so they are printed as plain
/// text.
fn values(status: &SinkStatus) -> String {
    let value = |(name, value): (&str, &StatusValue)| match value {
        StatusValue::Number(value) => Some(format!("{name} {}", number(*value))),
        StatusValue::Text(text) => Some(format!("{name} {}", output::plain(text))),
        StatusValue::List(_) => None,
    };
    status.iter().filter_map(value).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::model::Sink;

    #[test]
    fn each_client_has_a_line() {
        let client = |id: u64, name: &str| SinkStatus::default().with("id", id).with("name", name);
        let clients = vec![client(1, "suricata"), client(4, "bad\u{1b}[31mname")];
        let status = SinkStatus::default()
            .with("clients", 2_u64)
            .with("connected_clients", clients)
            .with("error", "none");
        let sink = Sink { name: "ids".into(), kind: "app".into(), attached_to: None, status };
        let text = text(&Status { sinks: vec![sink], ..Status::default() }, Colors::stdout());
        let lines: Vec<&str> = text.lines().rev().take(3).collect();
        assert_eq!(lines[2], "sink     ids (app) clients 2, error none");
        assert_eq!(lines[1], "         connected clients: id 1, name suricata");
        assert!(lines[0].starts_with("         connected clients: id 4, name bad"), "{text}");
        assert!(!lines[0].contains('\u{1b}'), "a client colours no terminal: {text:?}");
    }
}

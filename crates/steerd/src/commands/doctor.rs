//! `steerd doctor`: what to change on this host, in order of importance.

use std::io::ErrorKind;

use steerd_client::api::ApiError;

use crate::api::model::Status;
use crate::cli::{ApiArgs, DoctorArgs};
use crate::commands::{Error, client};
use crate::doctor::{
    self, ExaminedSetup, FindingLevel, HostExamination, HostFinding, HostView, KernelAnswers, SystemFiles,
    UnreadFile, UnreadItem,
};
use crate::service_unit::ServiceUnit;
use crate::settings::{self, Problems, Request, Settings};
use crate::terminal::numbers::{counted, number};
use crate::terminal::output;
use crate::terminal::style::{Layout, Style};

/// The columns of a level, with the blank behind it.
const LEVEL_COLUMNS: usize = 8;

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Error> {
    let api = &args.api;
    let settings = settings_of(api, args.interface.clone())?;
    let examination = examine(&settings, api);
    if args.output.is_json() {
        output::print_json(&examination)?;
    } else {
        output::print(&text(&examination, Layout::stdout()))?;
    }
    match examination.count(FindingLevel::Must) {
        0 => Ok(()),
        count => Err(Error::Host { found: counted(count as u64, "finding", "findings") }),
    }
}

/// Examines this host for the settings, and for the daemon that answers at their socket.
pub(crate) fn examine(settings: &Settings, api: &ApiArgs) -> HostExamination {
    let files = SystemFiles::of_host();
    let daemon = daemon(api);
    // A daemon without a settings file has that of its option.
    let interface = daemon.as_ref().ok().and_then(Option::as_ref).and_then(interface_of);
    let interface = interface.filter(|_| api.config.is_none() && !settings.chooses_soft());
    let of_daemon = interface.and_then(|name| settings_of(api, Some(name)).ok());
    let settings = of_daemon.as_ref().unwrap_or(settings);
    let mut setup = ExaminedSetup::of(settings, &files, daemon.map(|status| status.map(|status| status.pid)));
    setup.service = api.config.as_ref().and_then(|_| ServiceUnit::installed());
    doctor::examine(&HostView { files: &files, answers: &KernelAnswers, setup: &setup })
}

/// The settings of these arguments, for an interface as `run --interface` has them.
fn settings_of(api: &ApiArgs, interface: Option<String>) -> Result<Settings, Problems> {
    let (file, api_socket) = (api.config.clone(), api.api_socket.clone());
    Ok(settings::load(&Request { file, api_socket, interface, ..Request::default() })?.settings)
}

/// The interface that a daemon enforces its policy on by AF_XDP.
fn interface_of(status: &Status) -> Option<String> {
    status.wires.iter().find_map(|wire| Some(wire.split_once(" (af_xdp")?.0.to_owned()))
}

/// The status of the daemon that answers at the socket; `None`: no daemon has the socket.
fn daemon(api: &ApiArgs) -> Result<Option<Status>, UnreadFile> {
    let answer = client::connect(api).and_then(|client| Ok(client.get::<Status>("/v1/status")?));
    match answer {
        Ok(status) => Ok(Some(status)),
        Err(error) => of_failure(&error).map_or(Ok(None), Err),
    }
}

/// The reason why it is not known whether a daemon runs; `None`: no daemon has the socket.
fn of_failure(error: &Error) -> Option<UnreadFile> {
    let remedy = match error {
        Error::Api(ApiError::Unreachable { source, .. }) => match source.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => return None,
            ErrorKind::PermissionDenied => "run `steerd doctor` as root or as a member of the socket's group",
            _ => "see the error; `systemctl status steerd` shows whether a daemon runs",
        },
        Error::Api(ApiError::NotUnderstood { .. }) => "run `steerd doctor` of the daemon's version",
        _ => "see the error; `systemctl status steerd` shows whether a daemon runs",
    };
    let why = error.to_string();
    let why = why.split_once(" (hint: ").map_or(why.as_str(), |(why, _)| why).to_owned();
    Some(UnreadFile { path: "status of the daemon".to_owned(), why, remedy: remedy.to_owned() })
}

/// The examination for people. Files of the host and names of its devices are shown without what a terminal
/// would obey.
pub(crate) fn text(examination: &HostExamination, layout: Layout) -> String {
    let facts: Vec<String> =
        examination.facts.iter().map(|fact| format!("{} {}", fact.name, fact.value)).collect();
    let mut text = output::plain(&facts.join(", ")).into_owned() + "\n";
    for finding in &examination.findings {
        text.push('\n');
        text += &of_finding(finding, layout);
    }
    if !examination.unread.is_empty() {
        text.push('\n');
        text += &layout.lines(Style::Warning, "", "not read, and so not known to be right:");
        examination.unread.iter().for_each(|item| text += &of_unread(item, layout));
    }
    let counts: Vec<String> = FindingLevel::ALL
        .iter()
        .map(|level| format!("{} {}", number(examination.count(*level) as u64), level.name()))
        .collect();
    let HostExamination { fine, unread, inapplicable, .. } = examination;
    text += &format!(
        "\n{}; {} fine, {} not applicable, {} not read\n",
        counts.join(", "),
        counted(fine.len() as u64, "check", "checks"),
        number(inapplicable.len() as u64),
        number(unread.len() as u64),
    );
    text
}

/// Three lines: the problem, the reason, the command.
fn of_finding(finding: &HostFinding, layout: Layout) -> String {
    let HostFinding { id, level, problem, reason, command } = finding;
    let style = match level {
        FindingLevel::Must => Style::Bad,
        FindingLevel::Should => Style::Warning,
        FindingLevel::Note => Style::Dim,
    };
    let indent = " ".repeat(LEVEL_COLUMNS);
    let before = format!("{:LEVEL_COLUMNS$}", level.name());
    let mut text = layout.lines_after(style, &before, &indent, &output::plain(&format!("{id}: {problem}")));
    text += &layout.lines(Style::Dim, &indent, reason);
    // A command is not broken: it would be copied with the line break.
    text += &format!("{indent}=> {}\n", output::plain(command));
    text
}

fn of_unread(item: &UnreadItem, layout: Layout) -> String {
    let UnreadItem { id, item, why, remedy } = item;
    let line = format!("{id}: {item}: {why} (hint: {remedy})");
    layout.lines(Style::Plain, "  ", &output::plain(&line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{HostFact, InapplicableCheck};

    #[test]
    fn only_an_absent_daemon_is_no_daemon() {
        let failure = |kind: ErrorKind| {
            of_failure(&Error::Api(ApiError::Unreachable { path: "/run/api".into(), source: kind.into() }))
        };
        assert_eq!(failure(ErrorKind::NotFound), None);
        assert_eq!(failure(ErrorKind::ConnectionRefused), None);
        let denied = failure(ErrorKind::PermissionDenied).expect("not known");
        assert!(denied.remedy.contains("root") && !denied.why.contains("hint"), "{denied:?}");
        let silent = Error::Api(ApiError::Silent { path: "/run/api".into(), why: "late".to_owned() });
        assert!(of_failure(&silent).is_some());
    }

    #[test]
    fn the_interface_of_a_daemon_is_known() {
        let of = |wires: &[&str]| {
            let wires = wires.iter().map(|wire| (*wire).to_owned()).collect();
            interface_of(&Status { wires, ..Status::default() })
        };
        assert_eq!(of(&["eth0 (af_xdp, native, copy mode, 1 queue)"]), Some("eth0".to_owned()));
        assert_eq!(of(&["eth0 (af_packet)", "generator"]), None);
    }

    #[test]
    fn findings_have_their_command_on_a_line() {
        let finding = HostFinding {
            id: "governor",
            level: FindingLevel::Should,
            problem: "cores 2-3 have the frequency governor `powersave`".to_owned(),
            reason: "a core that was idle is slow at first",
            command: "cpupower -c 2-3 frequency-set -g performance".to_owned(),
        };
        let unread = UnreadItem {
            id: "swap",
            item: "/proc/swaps".to_owned(),
            why: "Permission denied\x1b".to_owned(),
            remedy: "run `steerd doctor` as root".to_owned(),
        };
        let examination = HostExamination {
            facts: vec![HostFact { name: "kernel", value: "6.12.1".to_owned() }],
            findings: vec![finding],
            unread: vec![unread],
            inapplicable: vec![InapplicableCheck { id: "clock", why: String::new() }],
            fine: vec!["numa", "device"],
        };
        let expected = "kernel 6.12.1\n\nshould  governor: cores 2-3 have the frequency governor `powersave`\n        \
                        a core that was idle is slow at first\n        => cpupower -c 2-3 frequency-set -g performance\n\n\
                        not read, and so not known to be right:\n  swap: /proc/swaps: Permission denied\\u{1b} \
                        (hint: run `steerd doctor` as root)\n\n0 must, 1 should, 0 note; 2 checks fine, 1 not applicable, \
                        1 not read\n";
        assert_eq!(text(&examination, Layout::stdout()), expected);
    }
}

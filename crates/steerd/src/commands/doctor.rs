//! `steerd doctor`: what to change on this host, in order of importance.

use crate::api::model::Status;
use crate::cli::{ApiArgs, DoctorArgs};
use crate::commands::{Error, client};
use crate::doctor::{
    self, ExaminedSetup, FindingLevel, HostExamination, HostFinding, HostView, KernelAnswers, SystemFiles,
    UnreadItem,
};
use crate::settings::{self, Request, Settings};
use crate::terminal::numbers::{counted, number};
use crate::terminal::output;
use crate::terminal::style::{Layout, Style};

/// The columns of a level, with the blank behind it.
const LEVEL_COLUMNS: usize = 8;

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Error> {
    let api = &args.api;
    let request =
        Request { file: api.config.clone(), api_socket: api.api_socket.clone(), ..Request::default() };
    let settings = settings::load(&request)?.settings;
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
    let status = client::connect(api).ok().and_then(|client| client.get::<Status>("/v1/status").ok());
    let setup = ExaminedSetup::of(settings, &files, status.map(|status| status.pid));
    doctor::examine(&HostView { files: &files, answers: &KernelAnswers, setup: &setup })
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

//! Errors of the commands, `run` included, and their exit codes (listed in `steerd --help`).

use std::io;
use std::path::PathBuf;

use steerd_client::api::ApiError;

use crate::commands::top::UnknownColumn;
use crate::daemon;
use crate::daemon::signals::EXIT_FAILED;
use crate::hardware_report::ReportError;
use crate::message::{Hinted, NoSignals, NoThread, chain};
use crate::policy_file::{PolicyErrors, TRAFFIC_HINT};
use crate::report_bundle::BundleError;
use crate::settings::{LengthError, Problems, TooManyFrames};
use crate::terminal::output::OutputError;
use crate::traffic::UnreadableCapture;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Settings(#[from] Problems),
    #[error(transparent)]
    Policy(#[from] PolicyErrors),
    /// A problem that `--deny` names was found.
    #[error("{file}: {found}")]
    Denied { file: String, found: String },
    /// The device cannot run the policy.
    #[error("{file}: {found}")]
    Impossible { file: String, found: String },
    /// The findings have been printed already.
    #[error("doctor: {found} that must be changed")]
    Host { found: String },
    #[error("report: {0}")]
    Bundle(#[from] BundleError),
    /// The failures have been printed already.
    #[error("{failed} of the policy failed")]
    Tests { failed: String },
    #[error("test: cannot write {}: {source}", path.display())]
    JUnit { path: PathBuf, source: io::Error },
    /// The policies cannot be compared; the exit code is diff(1)'s.
    #[error("{0}")]
    Compare(Box<Error>),
    #[error("lsp: {0}")]
    LanguageServer(String),
    /// The client of the language server is gone, or has not asked for a shutdown.
    #[error("lsp: the session ended without `shutdown`")]
    SessionCutOff,
    #[error("{0}")]
    NotDecided(String),
    #[error("import: {}: {message}", path.display())]
    Import { path: PathBuf, message: String },
    /// A rule at run time that is none.
    #[error("rule: {0}")]
    Rule(String),
    #[error("explain: {0}")]
    Packet(String),
    #[error("top: {0}")]
    Column(#[from] UnknownColumn),
    #[error(transparent)]
    Capture(#[from] UnreadableCapture),
    /// The capture that the settings name.
    #[error("setting policy.traffic: {}", Hinted::of(&chain(.0)).or(TRAFFIC_HINT))]
    Traffic(UnreadableCapture),
    /// The probe is a program of its own.
    #[error(
        "cannot run {}: {source} (hint: `cargo build --release --package conformance --bin steerd-probe`, and install it \
         beside steerd)",
        program.display()
    )]
    Probe { program: PathBuf, source: io::Error },
    #[error("devices --report: {}", chain(.0))]
    Report(ReportError),
    #[error(
        "devices --report: interrupted; the report has what was found before, and all its flows are removed"
    )]
    ReportInterrupted,
    #[error("{0}")]
    InvalidReport(String),
    #[error(transparent)]
    Frames(#[from] TooManyFrames),
    #[error(transparent)]
    Lengths(#[from] LengthError),
    /// The message begins with the setting.
    #[error("{0}")]
    Cores(String),
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The diagnostics have been printed already.
    #[error("{policy} is refused, the previous policy stays in force: {why}")]
    ReloadRefused { policy: String, why: String },
    /// Nothing is refused: the policy in force stays, confirmed or not.
    #[error("confirm: {0}")]
    NotConfirmed(String),
    #[error("not healthy: {0}")]
    Unhealthy(String),
    #[error(transparent)]
    Thread(#[from] NoThread),
    #[error(transparent)]
    Signals(#[from] NoSignals),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Daemon(#[from] daemon::Error),
}

/// The exit codes of `run` that are not those of the other commands, which are first. systemd shows 3 to 7 by
/// the names of the Linux Standard Base, "not implemented" for 3, and those of sysexits.h by what they are
/// (systemd.exec(5), "PROCESS EXIT CODES").
const OF_SERVICE: [(u8, u8); 5] = [
    // EX_CONFIG
    (3, 78),
    // EX_UNAVAILABLE
    (4, 69),
    // EX_OSERR
    (5, 71),
    // EX_CANTCREAT
    (6, 73),
    // EX_SOFTWARE
    (7, EXIT_FAILED as u8),
];

impl Error {
    /// The problems of the settings, if they are the reason; they are to be printed before the error.
    pub(crate) fn of_settings(&self) -> Option<&Problems> {
        match self {
            Self::Settings(problems) | Self::Daemon(daemon::Error::Settings(problems)) => Some(problems),
            Self::Compare(error) => error.of_settings(),
            _ => None,
        }
    }

    /// The exit code of `run`.
    pub(crate) fn service_exit_code(&self) -> u8 {
        let code = self.exit_code();
        OF_SERVICE.iter().find(|(of_command, _)| *of_command == code).map_or(code, |(_, of_run)| *of_run)
    }

    /// The exit code of the other commands.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Policy(_)
            | Self::Denied { .. }
            | Self::Impossible { .. }
            | Self::Host { .. }
            | Self::Import { .. }
            | Self::Unhealthy(_)
            | Self::ReloadRefused { .. }
            | Self::NotConfirmed(_)
            | Self::SessionCutOff
            | Self::Packet(_)
            | Self::Rule(_)
            | Self::Capture(_)
            | Self::InvalidReport(_)
            | Self::Traffic(_) => 1,
            Self::Compare(_) | Self::NotDecided(_) | Self::Column(_) => 2,
            Self::Settings(problems) => of_settings(problems),
            Self::Frames(_) => 3,
            Self::Report(ReportError::Interrupted) | Self::ReportInterrupted => 7,
            Self::Lengths(_) | Self::Probe { .. } | Self::Report(_) => 4,
            Self::Cores(_) => 5,
            Self::Thread(_)
            | Self::Signals(_)
            | Self::Output(_)
            | Self::JUnit { .. }
            | Self::Bundle(_)
            | Self::LanguageServer(_) => 7,
            Self::Tests { .. } => 10,
            Self::Api(_) => 8,
            Self::Daemon(error) => of_daemon(error),
        }
    }
}

fn of_settings(problems: &Problems) -> u8 {
    // The text of the file may be right.
    if problems.are_unreadable { 9 } else { 3 }
}

fn of_daemon(error: &daemon::Error) -> u8 {
    use daemon::Error;
    match error {
        Error::Policy(_) => 1,
        Error::Settings(problems) => of_settings(problems),
        Error::Model(_)
        | Error::FilterModel { .. }
        | Error::Personality(_)
        | Error::Frames(_)
        | Error::TooFewQueues { .. }
        | Error::NoNicDrops { .. }
        | Error::NoQueues
        | Error::QueuesAndDrops => 3,
        // The MTUs are those of the host now: before the network is configured they may be others.
        Error::Lengths(_)
        | Error::NoDevice(_)
        | Error::Wire { .. }
        | Error::Promiscuous { .. }
        | Error::SoftNic { .. }
        | Error::LibMlx5(_)
        | Error::SilentPeer { .. }
        | Error::Device(_)
        | Error::Carving(_)
        | Error::NicDrops { .. }
        | Error::Sink(_)
        | Error::Install(_) => 4,
        Error::Worker(_) | Error::Cores(_) => 5,
        Error::Http(_) | Error::Api(_) => 6,
        Error::PolicyUnreadable { .. } => 9,
        Error::WorkerDied(_)
        | Error::AccountingMismatch(_)
        | Error::DeviceFailed(_)
        | Error::DeviceGone(_)
        | Error::CompletionQueue(_)
        | Error::ReceiveQueue { .. }
        | Error::EngineDied(_)
        | Error::DataplaneDied
        | Error::HttpEnded
        | Error::PollFails(_)
        | Error::Stopping
        | Error::StillRunning(_)
        | Error::Log(_)
        | Error::Thread(_)
        | Error::Signals(_)
        | Error::Watch(_)
        | Error::Output(_) => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_while_it_runs_share_an_exit_code() {
        let failed = [
            daemon::Error::AccountingMismatch(String::new()),
            daemon::Error::DeviceFailed(String::new()),
            daemon::Error::DeviceGone(String::new()),
            daemon::Error::CompletionQueue(String::new()),
            daemon::Error::EngineDied(String::new()),
            daemon::Error::DataplaneDied,
            daemon::Error::HttpEnded,
            daemon::Error::PollFails(1),
        ];
        assert!(failed.into_iter().all(|error| Error::from(error).service_exit_code() == 70));
    }

    #[test]
    fn codes_of_the_service_are_not_shown_as_others() {
        // Of the LSB, and of systemd itself.
        let is_taken = |code: u8| (3..=7).contains(&code) || code >= 200;
        for code in (0..=10).chain([130]) {
            let of_run =
                OF_SERVICE.iter().find(|(of_command, _)| *of_command == code).map_or(code, |row| row.1);
            assert!(!is_taken(of_run), "{code} becomes {of_run}");
        }
    }
}

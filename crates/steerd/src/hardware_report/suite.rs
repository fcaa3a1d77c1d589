//! The parts of a report that `steerd-probe` (crate `conformance`) finds: it runs as a child, prints an
//! object, and is killed if the report is interrupted. It ends by itself when its standard input ends, so
//! also when this process is killed. The kernel then removes its objects.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::{ProbeEvidence, ReportError, RowVerdict, SuiteEvidence, SuiteRow};

/// The program, which is in the directory of this one.
pub(crate) const PROBE: &str = "steerd-probe";
/// The text of a row whose case did what was asked.
const WORKS: &str = "works";
const STEP: Duration = Duration::from_millis(20);
/// The bound on flows of `--quick`.
const QUICK_FLOWS: &str = "64";

/// The device of a child, as its arguments.
#[derive(Clone, Debug)]
pub(super) enum ProbedDevice {
    /// The personality of a software NIC.
    Soft(String),
    Real {
        name: String,
        port: u8,
    },
}

/// The output of `--evidence probe`.
#[derive(Debug, Deserialize)]
struct ProbeAnswer {
    model: String,
    report: SuiteAnswer,
}

/// The output of `--evidence peer`.
#[derive(Debug, Deserialize)]
struct PeerAnswer {
    is_reached: bool,
}

/// The output of a part that could not be found.
#[derive(Debug, Deserialize)]
struct FailedAnswer {
    error: String,
}

/// A report of the suite.
#[derive(Debug, Deserialize)]
struct SuiteAnswer {
    rows: Vec<RowAnswer>,
}

/// A row, as far as a report has it.
#[derive(Debug, Deserialize)]
struct RowAnswer {
    verb: String,
    field: String,
    value: String,
    expected: Option<String>,
    seen: String,
    verdict: RowVerdict,
}

impl From<RowAnswer> for SuiteRow {
    fn from(row: RowAnswer) -> Self {
        let RowAnswer { verb, field, value, expected, seen, verdict } = row;
        Self { verb, field, value, expected, seen, verdict }
    }
}

/// Finds the model and the answers of a device.
///
/// # Errors
/// The program cannot be run or fails, or the report is interrupted.
pub(super) fn probe(
    device: &ProbedDevice,
    is_quick: bool,
    is_stopped: &dyn Fn() -> bool,
) -> Result<ProbeEvidence, ReportError> {
    let more: &[&str] = if is_quick { &["--max-flows", QUICK_FLOWS] } else { &[] };
    let answer: ProbeAnswer = ask(device, &[&["--evidence", "probe"], more].concat(), is_stopped)?;
    let rows: Vec<SuiteRow> = answer.report.rows.into_iter().map(SuiteRow::from).collect();
    Ok(ProbeEvidence {
        tried: rows.len() as u32,
        works: rows.iter().filter(|row| row.seen == WORKS).count() as u32,
        broken: count(&rows, RowVerdict::Mismatch),
        model: answer.model,
        answers: rows.into_iter().filter(|row| row.seen != WORKS).collect(),
    })
}

/// Checks that flows can be made and that a frame of the peer arrives; a software NIC has a peer in any case.
///
/// # Errors
/// None arrives; else as for [`probe`].
pub(super) fn reach(
    device: &ProbedDevice,
    peer: Option<&str>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<(), ReportError> {
    let PeerAnswer { is_reached } =
        ask(device, &[&["--evidence", "peer"], &of_peer(peer)[..]].concat(), is_stopped)?;
    if is_reached { Ok(()) } else { Err(ReportError::ProbeAnswer("no frame of the peer arrives".to_owned())) }
}

/// The arguments for a peer.
fn of_peer(peer: Option<&str>) -> Vec<&str> {
    peer.iter().flat_map(|peer| ["--peer", peer]).collect()
}

/// Runs every case of the suite on a device with this peer; a software NIC has one in any case.
///
/// # Errors
/// As for [`probe`].
pub(super) fn suite(
    device: &ProbedDevice,
    peer: Option<&str>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<SuiteEvidence, ReportError> {
    let answer: SuiteAnswer =
        ask(device, &[&["--evidence", "suite"], &of_peer(peer)[..]].concat(), is_stopped)?;
    let rows: Vec<SuiteRow> = answer.rows.into_iter().map(SuiteRow::from).collect();
    Ok(SuiteEvidence {
        rows: rows.len() as u32,
        as_expected: count(&rows, RowVerdict::Ok),
        recorded: count(&rows, RowVerdict::Recorded),
        mismatches: count(&rows, RowVerdict::Mismatch),
        not_run: count(&rows, RowVerdict::NotRun),
        differences: rows.into_iter().filter(|row| row.verdict != RowVerdict::Ok).collect(),
    })
}

/// The rows with this verdict.
pub(super) fn count(rows: &[SuiteRow], verdict: RowVerdict) -> u32 {
    rows.iter().filter(|row| row.verdict == verdict).count() as u32
}

/// Runs the program beside this one and reads its answer.
fn ask<T: for<'de> Deserialize<'de>>(
    device: &ProbedDevice,
    arguments: &[&str],
    is_stopped: &dyn Fn() -> bool,
) -> Result<T, ReportError> {
    let failed = |program: &PathBuf, source| ReportError::Probe { program: program.clone(), source };
    let own = std::env::current_exe().map_err(|source| failed(&PathBuf::from(PROBE), source))?;
    let program = own.with_file_name(PROBE);
    let mut command = Command::new(&program);
    command.args(arguments).arg("--until-eof").stdin(Stdio::piped()).stdout(Stdio::piped());
    match device {
        ProbedDevice::Soft(personality) => command.args(["--soft", personality]),
        ProbedDevice::Real { name, port } => command.args(["--port", &port.to_string(), "--", name]),
    };
    let mut child = command.spawn().map_err(|source| failed(&program, source))?;
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.map(|mut stdout| stdout.read_to_string(&mut text));
        read.transpose().map(|_| text)
    });
    let code = wait(&mut child, is_stopped).map_err(|source| failed(&program, source))?;
    let text =
        reader.join().unwrap_or_else(|_| Ok(String::new())).map_err(|source| failed(&program, source))?;
    match code {
        ChildEnding::Stopped => Err(ReportError::Interrupted),
        ChildEnding::Failed(status) => Err(ReportError::ProbeFailed(failure(&text, status))),
        ChildEnding::Success => {
            serde_json::from_str(&text).map_err(|error| ReportError::ProbeAnswer(error.to_string()))
        }
    }
}

/// The message of a child that has failed.
fn failure(text: &str, status: ExitStatus) -> String {
    let answer = serde_json::from_str::<FailedAnswer>(text);
    answer.map_or_else(|_| format!("it ended with {status} and no message"), |answer| answer.error)
}

/// The end of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildEnding {
    Success,
    Failed(ExitStatus),
    Stopped,
}

/// Waits for the end of a child, and brings it about if the report is interrupted.
fn wait(child: &mut Child, is_stopped: &dyn Fn() -> bool) -> std::io::Result<ChildEnding> {
    loop {
        let status = child.try_wait()?;
        // A terminal sends its signal to the child as well.
        if is_stopped() {
            if status.is_none() {
                child.kill()?;
                child.wait()?;
            }
            return Ok(ChildEnding::Stopped);
        }
        match status {
            Some(status) if status.success() => return Ok(ChildEnding::Success),
            Some(status) => return Ok(ChildEnding::Failed(status)),
            None => std::thread::sleep(STEP),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Instant;

    use super::*;

    #[test]
    fn an_interrupted_child_is_ended() {
        let begun = Instant::now();
        let mut child = Command::new("sleep").arg("60").spawn().expect("it runs");
        let asked = Cell::new(0);
        let is_stopped = || {
            asked.set(asked.get() + 1);
            asked.get() > 2
        };
        assert_eq!(wait(&mut child, &is_stopped).expect("waited"), ChildEnding::Stopped);
        assert!(child.try_wait().expect("waited").is_some(), "it has ended");
        assert!(begun.elapsed() < Duration::from_secs(30));
        let ended = |program: &str| {
            let mut child = Command::new(program).spawn().expect("it runs");
            wait(&mut child, &|| false).expect("waited")
        };
        assert_eq!(ended("true"), ChildEnding::Success);
        let ChildEnding::Failed(status) = ended("false") else { panic!("it fails") };
        assert_eq!(failure("", status), "it ended with exit status: 1 and no message");
        assert_eq!(failure("{\"error\":\"no device\"}\n", status), "no device");
    }
}

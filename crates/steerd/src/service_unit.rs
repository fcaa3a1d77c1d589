//! The unit of the service, as systemd and its journal describe it: what a start of the service may do,
//! whether it runs, and why it has failed.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const UNIT: &str = "steerd";
/// The most entries of the journal that are read, and the most bytes of a program's output.
const JOURNAL_LINES: &str = "1000";
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// The entries among which the last message of the daemon is.
const LAST_LINES: &str = "20";
/// How long systemctl or journalctl may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two looks whether it has ended.
const END_STEP: Duration = Duration::from_millis(5);
/// The properties that decide a start (org.freedesktop.systemd1(5)).
const PROPERTIES: &str = "LoadState,ActiveState,SubState,Result,ExecMainStatus,NRestarts,UnitFileState,User,StateDirectory,\
                          AmbientCapabilities,CapabilityBoundingSet,RestrictAddressFamilies,SystemCallFilter,LimitMEMLOCK";
/// The folder of StateDirectory= (systemd.exec(5)).
const STATE_FOLDERS: &str = "/var/lib";

/// The properties of the unit, with its drop-ins, and the last error of its process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceUnit {
    properties: BTreeMap<String, String>,
    last_error: Option<String>,
}

impl ServiceUnit {
    /// The unit of this host; `None`: there is none, or systemd does not answer.
    pub(crate) fn installed() -> Option<Self> {
        let mut unit = Self::of(&shown().ok()?);
        if unit.property("LoadState") != "loaded" {
            return None;
        }
        if unit.problem().is_some() {
            let journal = entries(LAST_LINES, "cat").unwrap_or_default();
            unit.last_error = journal.lines().find(|line| line.starts_with("steerd: ")).map(str::to_owned);
        }
        Some(unit)
    }

    /// The unit with these properties, as `systemctl show` prints them.
    pub(crate) fn of(shown: &str) -> Self {
        let pairs = shown.lines().filter_map(|line| line.split_once('='));
        let properties = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { properties, last_error: None }
    }

    fn property(&self, name: &str) -> &str {
        self.properties.get(name).map_or("", String::as_str)
    }

    /// Returns whether a property that lists what is allowed, or after `~` what is not, allows an item.
    fn allows(&self, property: &str, item: &str) -> bool {
        let Some(list) = self.properties.get(property) else { return true };
        let (list, is_allowed) = match list.strip_prefix('~') {
            Some(denied) => (denied, false),
            None => (list.as_str(), true),
        };
        // A system call may have its own error behind a colon.
        let is_listed = list.split_whitespace().any(|word| word.split(':').next() == Some(item));
        is_listed == is_allowed
    }

    /// The settings that its drop-in lacks for these capabilities and, if `is_xdp`, for AF_XDP.
    pub(crate) fn lacks(&self, capabilities: &[(&str, u32)], is_xdp: bool) -> Vec<String> {
        let mut lacks = Vec::new();
        let sets = match self.property("User") {
            "" | "root" | "0" => &["CapabilityBoundingSet"][..],
            _ => &["AmbientCapabilities", "CapabilityBoundingSet"],
        };
        for set in sets {
            let missing = capabilities.iter().map(|(name, _)| *name);
            let missing: Vec<&str> = missing.filter(|name| !self.allows(set, &name.to_lowercase())).collect();
            if !missing.is_empty() {
                lacks.push(format!("{set}={}", missing.join(" ")));
            }
        }
        for (property, item) in [("RestrictAddressFamilies", "AF_XDP"), ("SystemCallFilter", "bpf")] {
            if is_xdp && !self.allows(property, item) {
                lacks.push(format!("{property}={item}"));
            }
        }
        lacks
    }

    /// Returns whether its process may lock so much memory.
    pub(crate) fn may_lock(&self, bytes: u64) -> bool {
        // "infinity" is no number.
        self.property("LimitMEMLOCK").parse::<u64>().map_or(true, |limit| limit >= bytes)
    }

    /// The folder of its state; `None`: it has none.
    pub(crate) fn state_folder(&self) -> Option<PathBuf> {
        let name =
            self.property("StateDirectory").split([' ', ':']).next().filter(|name| !name.is_empty())?;
        Some(Path::new(STATE_FOLDERS).join(name))
    }

    /// The reason why it does not run although it was started, with the last error of its process.
    pub(crate) fn problem(&self) -> Option<String> {
        // Or auto-restart-queued.
        let is_waiting = self.property("SubState").starts_with("auto-restart");
        if self.property("ActiveState") != "failed" && !is_waiting {
            return None;
        }
        let tries = if is_waiting { ", is tried again" } else { "" };
        let error = self.last_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        let [result, status] = ["Result", "ExecMainStatus"].map(|name| self.property(name));
        Some(format!("{result}, exit status {status}{tries}{error}"))
    }
}

/// The properties of the unit.
fn shown() -> Result<String, String> {
    let property = format!("--property={PROPERTIES}");
    output_of(Command::new("systemctl").args(["show", UNIT, &property, "--no-pager"]), TIMEOUT)
}

/// The unit with its drop-ins, without the values of [`SECRETS`], and its properties.
///
/// # Errors
/// There is no systemctl, or no unit.
pub(crate) fn text() -> Result<String, String> {
    let files = output_of(Command::new("systemctl").args(["cat", UNIT, "--no-pager"]), TIMEOUT)?;
    Ok(without_secrets(&files) + "\n" + &shown()?)
}

/// Settings whose values may be secrets.
const SECRETS: [&str; 2] = ["Environment", "SetCredential"];

/// The text of unit files without the values of [`SECRETS`], also in settings that are commented out, and
/// without the lines that continue them. Comments between these lines do not end a setting
/// (systemd.syntax(7)).
fn without_secrets(files: &str) -> String {
    let (mut text, mut continues, mut is_setting) = (String::new(), false, false);
    for line in files.lines() {
        let setting = line.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '#' | ';'));
        let is_comment = line.trim_start().starts_with(['#', ';']);
        let name = setting.split('=').next().unwrap_or_default().trim();
        let is_secret = SECRETS.contains(&name);
        if is_secret {
            text += &format!("{name}=removed\n");
            is_setting = !is_comment || continues && is_setting;
        } else if !continues {
            text += &format!("{line}\n");
        }
        let goes_on = line.trim_end().ends_with('\\') || continues && is_setting && is_comment;
        continues = (continues || is_secret) && goes_on;
    }
    text
}

/// The last entries of the unit in the journal, the newest first, so that the oldest ones are cut off.
///
/// # Errors
/// There is no journalctl, or it does not answer in time, or has no entries.
pub(crate) fn journal() -> Result<String, String> {
    entries(JOURNAL_LINES, "short-iso")
}

/// The last entries of the journal, at most `lines`, in a format of journalctl(1).
fn entries(lines: &str, format: &str) -> Result<String, String> {
    let mut command = Command::new("journalctl");
    command.args(["--unit", UNIT, "--lines", lines, "--reverse", "--no-pager", "--no-hostname"]);
    output_of(command.args(["--output", format]), TIMEOUT)
}

/// The output of a program that ends in time, with a line about what is missing or has failed.
fn output_of(command: &mut Command, timeout: Duration) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let begun = Instant::now();
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let stdout = child.stdout.take();
    let (sender, receiver) = mpsc::channel();
    let read = move || {
        let mut bytes = Vec::new();
        let read = stdout.map(|stdout| stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes));
        // The receiver is gone after the time.
        let _ = sender.send(read.transpose().map(|_| bytes));
    };
    let thread = std::thread::Builder::new().spawn(read);
    let answer = match thread {
        Ok(_) => receiver.recv_timeout(timeout).map_err(|_| format!("{name} did not answer in time")),
        Err(error) => Err(format!("{name}: {error}")),
    };
    let is_whole = matches!(&answer, Ok(Ok(bytes)) if (bytes.len() as u64) < OUTPUT_BYTES_MAX);
    while is_whole && begun.elapsed() < timeout && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(END_STEP);
    }
    // It has ended, or is late, or has more output than is read.
    let _ = child.kill();
    let status = child.wait().ok().filter(|status| is_whole && !status.success());
    let failure = status.map_or_else(String::new, |status| format!("{name}: {status}"));
    let bytes = answer?.map_err(|error: io::Error| format!("{name}: {error}"))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.trim() {
        "" | "-- No entries --" => {
            let failure = if failure.is_empty() { failure } else { format!("; {failure}") };
            Err(format!("{name} shows no entries of {UNIT} to this user{failure}"))
        }
        _ if !is_whole => Ok(text + "\n(cut off: older entries are left out)\n"),
        _ if !failure.is_empty() => Ok(format!("{text}({failure})\n")),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "LoadState=loaded\nActiveState=inactive\nSubState=dead\nUser=steerd\nStateDirectory=steerd\n\
                         AmbientCapabilities=cap_net_raw\nCapabilityBoundingSet=cap_net_raw\nLimitMEMLOCK=65536\n\
                         RestrictAddressFamilies=AF_UNIX AF_INET\nSystemCallFilter=read write\n";

    #[test]
    fn a_unit_lacks_what_is_not_listed() {
        let unit = ServiceUnit::of(SHOWN);
        let needed = [("CAP_NET_RAW", 13), ("CAP_BPF", 39)];
        let drop_in = [
            "AmbientCapabilities=CAP_BPF",
            "CapabilityBoundingSet=CAP_BPF",
            "RestrictAddressFamilies=AF_XDP",
            "SystemCallFilter=bpf",
        ];
        assert_eq!(unit.lacks(&needed, true), drop_in);
        assert_eq!(unit.lacks(&needed[..1], false), [""; 0]);
        assert_eq!((unit.may_lock(65536), unit.may_lock(65537)), (true, false));
        assert_eq!(unit.state_folder(), Some("/var/lib/steerd".into()));
        let open = ServiceUnit::of(
            "User=\nAmbientCapabilities=\nCapabilityBoundingSet=cap_net_raw cap_bpf\nRestrictAddressFamilies=~\n\
             SystemCallFilter=~mount\nLimitMEMLOCK=infinity\n",
        );
        assert_eq!(open.lacks(&needed, true), [""; 0]);
        assert!(open.may_lock(u64::MAX) && open.state_folder().is_none());
    }

    #[test]
    fn a_failed_unit_has_its_reason() {
        let mut failed = ServiceUnit::of("ActiveState=failed\nResult=exit-code\nExecMainStatus=78\n");
        failed.last_error = Some("steerd: 1 error in the settings".to_owned());
        let problem = failed.problem().expect("it has failed");
        assert_eq!(problem, "exit-code, exit status 78: steerd: 1 error in the settings");
        let waiting = "ActiveState=activating\nSubState=auto-restart\nResult=exit-code\nExecMainStatus=69\n";
        assert!(ServiceUnit::of(waiting).problem().expect("it waits").contains("is tried again"));
        assert_eq!(ServiceUnit::of(SHOWN).problem(), None);
    }

    #[test]
    fn secrets_of_unit_files_are_removed() {
        let files =
            "[Service]\nEnvironment=A=secret \\\n  B=secret\nUser=steerd\nSetCredential=token:secret\n";
        let expected = "[Service]\nEnvironment=removed\nUser=steerd\nSetCredential=removed\n";
        assert_eq!(without_secrets(files), expected);
        let commented = "Environment=A=secret \\\n# a comment\n  B=secret \\\n\
                         ;Environment=C=secret\n  D=secret\nUser=steerd\n";
        assert_eq!(without_secrets(commented), "Environment=removed\nEnvironment=removed\nUser=steerd\n");
        let disabled = "# Environment=A=secret \\\n#   B=secret\nUser=steerd\n# a comment\n";
        assert_eq!(without_secrets(disabled), "Environment=removed\nUser=steerd\n# a comment\n");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let shell = |script: &str, timeout| output_of(Command::new("sh").args(["-c", script]), timeout);
        assert_eq!(shell("echo entry", TIMEOUT), Ok("entry\n".to_owned()));
        assert!(shell("exit 1", TIMEOUT).expect_err("nothing").contains("no entries"));
        assert_eq!(shell("echo entry; exit 3", TIMEOUT), Ok("entry\n(sh: exit status: 3)\n".to_owned()));
        let many = shell("yes entry", TIMEOUT).expect("the beginning");
        assert!(many.ends_with("left out)\n"), "{}", many.len());
        let late = shell("exec sleep 1000", Duration::from_millis(50)).expect_err("it waits");
        assert!(late.contains("in time"), "{late}");
        assert!(output_of(&mut Command::new("/no/such/program"), TIMEOUT).is_err());
    }
}

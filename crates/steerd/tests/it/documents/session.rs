//! Runs the commands of a page in a scratch folder of its own, and compares their output.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::output::{LineComparison, is_as_shown, renewed};
use super::page::{DocumentPage, PageBlock, ShownCommand, root};
use super::traffic::demo_capture;
use crate::support::{Daemon, not_run, stderr, steerd};
use test_support::namespaces::isolated;

/// Folders of a host, which are below the scratch folder instead.
const HOST_FOLDERS: [&str; 4] = ["/etc/steerd", "/run/steerd", "/var/lib/steerd", "/srv"];
const SOCKET: &str = "run/steerd/api.sock";
/// The address of the HTTP server in all pages.
const ADDRESS: &str = "127.0.0.1:9464";
/// The most lines of an output that a failure shows.
const MAX_LINES: usize = 80;
/// What ends the output of a command, before its exit code.
const END: char = '\u{1e}';
/// Defines what commands of a page may call. `steerd run` without an end goes on in the background until the
/// end of its block.
const PREAMBLE: &str = r#"exec 2>&1
sudo() { "$@"; }
in_background() {
  stop
  "$@" >.run.log 2>&1 & running=$!
  for ((tries = 0; tries < 600; tries++)); do
    grep -q "$until" .run.log && break
    kill -0 $running 2>/dev/null || break
    sleep 0.05
  done
  cat .run.log
  grep -q "$until" .run.log || { running=; false; }
}
stop() {
  [ -z "$running" ] || { kill -TERM $running && wait $running || { echo "the daemon of the block ends with $?"; cat .run.log; }; }
  running=
}
ended() { local code=$?; printf '\036%d\n' $code; return $code; }
"#;
/// The state of a page whose blocks are run, one after the other.
pub(super) struct PageSession<'p> {
    page: &'p DocumentPage,
    folder: tempfile::TempDir,
    /// The arguments of the daemon that runs.
    daemon: Option<(String, Daemon)>,
}

/// The result of the blocks of a page.
#[derive(Default)]
pub(super) struct PageOutcome {
    pub(super) failures: Vec<String>,
    pub(super) edits: Vec<PageEdit>,
}

/// Lines of a page that are to be replaced, because the output is another one now.
pub(super) struct PageEdit {
    /// The place of the first line, from 0.
    pub(super) first_line: usize,
    /// The number of lines.
    pub(super) count: usize,
    pub(super) lines: Vec<String>,
}

impl<'p> PageSession<'p> {
    pub(super) fn new(page: &'p DocumentPage) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for entry in std::fs::read_dir(root()).expect("the repository") {
            let entry = entry.expect("an entry");
            let name = entry.file_name();
            if !["target", ".git"].iter().any(|left_out| name == *left_out) {
                symlink(entry.path(), folder.path().join(name)).expect("a link");
            }
        }
        for path in HOST_FOLDERS {
            std::fs::create_dir_all(folder.path().join(&path[1..])).expect("a folder");
        }
        Self { page, folder, daemon: None }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A text of the page with the places of the scratch folder and of the daemon.
    fn here(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for path in HOST_FOLDERS {
            text = text.replace(path, &format!("{}{path}", self.path().display()));
        }
        match &self.daemon {
            Some((_, daemon)) => text.replace(ADDRESS, &daemon.address().to_string()),
            None => text,
        }
    }

    /// The opposite of [`here`](Self::here).
    fn as_on_the_page(&self, text: &str) -> String {
        let text = text.replace(&self.path().display().to_string(), "");
        match &self.daemon {
            Some((_, daemon)) => text.replace(&daemon.address().to_string(), ADDRESS),
            None => text,
        }
    }

    /// Makes the files that the comments of a block name.
    pub(super) fn write_files(&self, block: &PageBlock) {
        for file in block.list("files") {
            let (name, source) = file.split_once('=').unwrap_or_else(|| {
                panic!("{}: `files: {file}`: write NAME = SOURCE", self.page.place(block))
            });
            self.write(name.trim(), &self.content(source.trim(), block));
        }
        for file in block.values("file") {
            let (name, text) = file.split_once('\n').unwrap_or((file, ""));
            self.write(name.trim(), self.here(&format!("{text}\n")).as_bytes());
        }
    }

    pub(super) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path().join(name.trim_start_matches('/'));
        let folder = path.parent().expect("a folder");
        std::fs::create_dir_all(folder).expect("a folder");
        let (folder, scratch) = (folder.canonicalize(), self.path().canonicalize());
        assert!(
            folder.expect("a folder").starts_with(scratch.expect("a folder")),
            "{}: `{name}` would be a file of the repository",
            self.page.name
        );
        std::fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    fn content(&self, source: &str, block: &PageBlock) -> Vec<u8> {
        if source == "demo capture" {
            return demo_capture();
        }
        let Some((page, number)) = source.rsplit_once("block ") else {
            let text = std::fs::read_to_string(root().join(source));
            let text = text.unwrap_or_else(|error| panic!("{}: {source}: {error}", self.page.place(block)));
            return self.here(&text).into_bytes();
        };
        let number = number.parse().unwrap_or_else(|_| panic!("{}: {source}", self.page.place(block)));
        let text = match page.trim() {
            "" => self.page.toml_block(number),
            other => DocumentPage::read(other).toml_block(number),
        };
        self.here(&text).into_bytes()
    }

    /// Runs a block, unless its comments leave it out.
    pub(super) fn run(&mut self, block: &PageBlock, outcome: &mut PageOutcome) {
        if block.value("not run").is_some() || block.value("run by").is_some() {
            return;
        }
        let place = self.page.place(block);
        if block.comments.is_empty() {
            // Commands of a page may install packages or stop services: none is run unless a comment says so.
            outcome.failures.push(format!(
                "{place}: nothing says how the commands are run: write <!-- run --> above the block, or another \
                 comment of crates/steerd/tests/it/documents/page.rs"
            ));
            return;
        }
        if let Some(why) = missing(block).or_else(|| self.obstacle(block)) {
            return not_run(&place, &why);
        }
        self.write_files(block);
        self.start_daemon(block);
        let commands = block.commands();
        let output = self.execute(block, &commands);
        let mut parts = output.split(END);
        let mut text = parts.next().unwrap_or_default();
        let exits: Vec<&str> = block.list("exit").collect();
        for (at, shown) in commands.iter().enumerate() {
            let Some((code, next)) = parts.next().and_then(|part| part.split_once('\n')) else {
                outcome.failures.push(format!("{place}: `{}` did not end:\n{text}", shown.command));
                return;
            };
            let expected = exits.get(at).copied().unwrap_or("0");
            if code != expected {
                outcome.failures.push(format!(
                    "{place}: `{}` exits with {code}, not with {expected}:\n{text}",
                    shown.command
                ));
            }
            self.compare(block, shown, text, outcome);
            text = next;
        }
        if !text.is_empty() {
            outcome.failures.push(format!("{place}: {text}"));
        }
    }

    /// The reason why the namespaces of a block cannot be made here, if they cannot.
    fn obstacle(&self, block: &PageBlock) -> Option<String> {
        let setup = self.here(block.value("namespace")?);
        let tried =
            isolated().args(["bash", "-c", &setup]).current_dir(self.path()).output().expect("unshare");
        (!tried.status.success()).then(|| stderr(&tried).trim().to_owned())
    }

    /// Runs the commands in one shell; returns their output, with the code of each behind [`END`].
    fn execute(&self, block: &PageBlock, commands: &[ShownCommand]) -> String {
        let until = block.value("until").unwrap_or("steering on");
        let mut script = format!("{PREAMBLE}until='{until}'\n");
        for hidden in block.values("before") {
            let _ = writeln!(script, "{{\n{}\n}} >&2 || exit", self.here(hidden));
        }
        for shown in commands {
            let command = self.here(&shown.command);
            let _ = writeln!(script, "{}\nended", in_background(&command));
        }
        script.push_str("stop\n");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "60"]);
        match block.value("namespace") {
            None => command.arg("bash"),
            Some(setup) => {
                let setup = self.here(setup);
                script = format!("{{ {setup}; }} || exit\n{script}");
                let isolated = isolated();
                command.arg(isolated.get_program()).args(isolated.get_args()).arg("bash")
            }
        };
        let binary = PathBuf::from(steerd().get_program());
        let others = std::env::var("PATH").expect("PATH");
        let path = format!("{}:{others}:/usr/sbin:/sbin", binary.parent().expect("a folder").display());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("STEERD_") {
                command.env_remove(name);
            }
        }
        // In namespaces of its own the block has all ports.
        let starts_daemon = commands.iter().any(|shown| is_start(&shown.command));
        if starts_daemon && block.value("namespace").is_none() {
            command.env("STEERD_HTTP__LISTEN", "127.0.0.1:0");
        }
        let ran = command
            .args(["-c", &script])
            .current_dir(self.path())
            .env("PATH", path)
            .envs([("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("NO_COLOR", "1")])
            .env("HOME", self.path())
            .env("STEERD_API__SOCKET", self.path().join(SOCKET))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .output()
            .expect("timeout(1) runs");
        let text = self.as_on_the_page(&String::from_utf8_lossy(&ran.stdout));
        let lines = text.split_inclusive('\n').filter(|line| !line.starts_with("Running as user \"root\""));
        // Of timeout(1) and unshare(1): the shell has no stderr of its own.
        lines.chain([&*String::from_utf8_lossy(&ran.stderr)]).collect()
    }

    fn compare(&self, block: &PageBlock, shown: &ShownCommand, text: &str, outcome: &mut PageOutcome) {
        // A page that shows nothing of a command leaves all of it out.
        if shown.output.is_empty() {
            return;
        }
        let comparison = match block.value("varies") {
            None => LineComparison::Exact,
            Some("numbers") => LineComparison::WithoutNumbers,
            Some(other) => panic!("{}: `varies: {other}`: write numbers", self.page.place(block)),
        };
        let lines: Vec<&str> = text.lines().collect();
        if is_as_shown(&lines, &shown.output, comparison) {
            return;
        }
        outcome.failures.push(format!(
            "{}:{}: the output of `{}` is another one. The page shows\n{}\nand the program prints\n{}\n\
             Correct the page, by STEERD_UPDATE_DOCS=1 if the program is right.\n",
            self.page.name,
            shown.first_line + 1,
            shown.command,
            shown.output.join("\n"),
            lines.iter().take(MAX_LINES).copied().collect::<Vec<_>>().join("\n"),
        ));
        outcome.edits.push(PageEdit {
            first_line: shown.first_line,
            count: shown.output.len(),
            lines: renewed(&lines, &shown.output, comparison),
        });
    }

    /// Starts the daemon that a block asks for, unless it runs since an earlier block.
    fn start_daemon(&mut self, block: &PageBlock) {
        let Some(arguments) = block.value("daemon") else { return };
        if self.daemon.as_ref().is_some_and(|(running, _)| running == arguments) {
            return;
        }
        self.daemon = None;
        let mut command = steerd();
        command
            .arg("run")
            .args(self.here(arguments).split_whitespace())
            .current_dir(self.path())
            .env("STEERD_API__ENABLED", "true")
            .env("STEERD_API__SOCKET", self.path().join(SOCKET));
        self.daemon = Some((arguments.to_owned(), Daemon::start_command(&mut command)));
    }

    /// Ends the daemon of the page, which must end in order.
    pub(super) fn end(self, outcome: &mut PageOutcome) {
        if let Some((_, daemon)) = self.daemon {
            let (status, summary, log) = daemon.terminate();
            if !status.success() {
                outcome.failures.push(format!("{}: the daemon: {status}\n{summary}{log}", self.page.name));
            }
        }
    }
}

/// The reason why a block cannot run on this machine.
fn missing(block: &PageBlock) -> Option<String> {
    let folder = PathBuf::from(steerd().get_program()).parent().expect("a folder").to_owned();
    let paths = std::env::var("PATH").unwrap_or_default();
    let is_there = |program: &str| {
        if program == "root" {
            return rustix::process::geteuid().is_root();
        }
        let others = paths.split(':').chain(["/usr/sbin", "/sbin"]).map(Path::new);
        others.chain([&*folder]).any(|folder| folder.join(program).exists())
    };
    let program = block.list("needs").find(|program| !is_there(program))?;
    Some(match program {
        "root" => "it needs root".to_owned(),
        "softnic" => "softnic is not built: cargo build -p softnic-preload".to_owned(),
        program => format!("{program} is not installed: .ci/deps test"),
    })
}

/// Returns whether the command starts a daemon in this process.
fn is_start(command: &str) -> bool {
    command.contains("steerd run ") && !command.contains("exec ")
}

/// The command as a part of the script: a daemon without an end goes on in the background.
fn in_background(command: &str) -> String {
    if !is_start(command) || command.contains(" --for ") {
        return command.to_owned();
    }
    let command = command.replace("sudo steerd run", "steerd run");
    command.replacen("steerd run", "in_background steerd run", 1)
}

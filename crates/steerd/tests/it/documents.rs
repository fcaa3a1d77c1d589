//! The documentation: every command of a `console` block does what its page shows, and every policy of a
//! `toml` block is one. [`page`] has the comments above a block that declare what it needs, or why it is not
//! run.
//!
//! `STEERD_UPDATE_DOCS=1 cargo test -p steerd --test it documents` writes the present outputs into the pages.

mod check;
mod output;
mod page;
mod session;
mod site;
mod symptoms;
mod traffic;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use self::page::{DocumentPage, PageBlock, ShownCommand, root};
use self::session::{PageOutcome, PageSession};
use crate::support::{Daemon, PATIENCE, Patience, not_run, steerd};

/// The groups of pages, each run by a test, by how their paths begin. The longest beginning counts.
const GROUPS: [&str; 6] = [
    "",
    "docs/how-to/",
    "docs/reference/",
    "docs/reference/commands/",
    "docs/reference/commands/daemon",
    "docs/reference/policy/",
];

/// The names of all pages whose blocks are run: the Markdown files of the folder docs without the generated
/// ones, and two of the root.
fn page_names() -> Vec<String> {
    let mut names = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    add_pages(Path::new("docs"), &mut names);
    names.sort();
    names
}

fn add_pages(folder: &Path, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() && path != Path::new("docs/generated") {
            add_pages(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            names.push(path.display().to_string());
        }
    }
}

/// Runs the blocks of the pages of a group.
fn run_group(group: &str) {
    let group_of = |name: &str| {
        GROUPS.iter().filter(|begin| name.starts_with(**begin)).max_by_key(|begin| begin.len()).copied()
    };
    let mut failures = Vec::new();
    for name in page_names().iter().filter(|name| group_of(name) == Some(group)) {
        failures.extend(run_page(name));
    }
    assert!(failures.is_empty(), "{} failures\n\n{}", failures.len(), failures.join("\n\n"));
}

/// Runs the blocks of a page; returns the failures.
fn run_page(name: &str) -> Vec<String> {
    let page = DocumentPage::read(name);
    let mut outcome = PageOutcome::default();
    let mut session = PageSession::new(&page);
    for block in &page.blocks {
        match &*block.language {
            "console" => session.run(block, &mut outcome),
            "toml" => outcome.failures.extend(check::problem(&page, block, &session)),
            _ => {}
        }
    }
    session.end(&mut outcome);
    if std::env::var_os("STEERD_UPDATE_DOCS").is_some() && !outcome.edits.is_empty() {
        let mut lines = page.lines.clone();
        // From the end, so that the places of the others stay.
        for edit in outcome.edits.into_iter().rev() {
            lines.splice(edit.first_line..edit.first_line + edit.count, edit.lines);
        }
        std::fs::write(root().join(name), lines.join("\n") + "\n").expect("the page is written");
    }
    outcome.failures
}

#[test]
fn the_pages_of_the_root_are_true() {
    run_group("");
}

#[test]
fn the_pages_for_tasks_are_true() {
    run_group("docs/how-to/");
}

#[test]
fn the_reference_pages_are_true() {
    run_group("docs/reference/");
}

#[test]
fn the_pages_of_commands_are_true() {
    run_group("docs/reference/commands/");
}

#[test]
fn the_page_of_the_daemon_is_true() {
    run_group("docs/reference/commands/daemon");
}

#[test]
fn the_pages_of_the_language_are_true() {
    run_group("docs/reference/policy/");
}

/// Returns whether the sources of these tests have a test of this path.
fn is_test(path: &str) -> bool {
    let Some((module, test)) = path.rsplit_once("::") else { return false };
    let folder = root().join("crates/steerd/tests/it").join(module.replace("::", "/"));
    let Ok(source) = std::fs::read_to_string(folder.with_extension("rs")) else { return false };
    let Some((before, _)) = source.split_once(&format!("\nfn {test}()")) else { return false };
    // Attributes and comments are between two items.
    before.rsplit("\n\n").next().is_some_and(|lines| lines.lines().any(|line| line == "#[test]"))
}

#[test]
fn blocks_that_are_not_run_have_reasons() {
    let (mut without, mut left_out) = (Vec::new(), 0);
    for name in page_names() {
        let page = DocumentPage::read(&name);
        for block in &page.blocks {
            let problem = match (block.value("not run").or(block.value("not checked")), block.value("run by"))
            {
                (Some(reason), None) => {
                    left_out += 1;
                    (reason.split_whitespace().count() < 2).then_some("write the reason in words")
                }
                (None, Some(test)) => (!is_test(test)).then_some("there is no such test"),
                (Some(_), Some(_)) => Some("either a test runs the block, or none"),
                (None, None) => None,
            };
            without.extend(problem.map(|problem| format!("{}: {problem}", page.place(block))));
        }
    }
    assert!(without.is_empty(), "{}", without.join("\n"));
    // Counted by hand: whoever adds one sees how many there are.
    assert!(left_out <= 50, "{left_out} blocks are not run: run the new one, or one of the others");
}

#[test]
fn comments_above_blocks_are_read() {
    let text = "text\n\n<!-- files: a.toml = block 1, b = demo capture -->\n<!-- file: c\nx = 1\ny\n-->\n```console\n$ cat c\n```\n";
    let page = DocumentPage::parse("p.md", text);
    let [block] = &page.blocks[..] else { panic!("one block") };
    assert_eq!(block.list("files").collect::<Vec<_>>(), ["a.toml = block 1", "b = demo capture"]);
    assert_eq!(block.value("file"), Some("c\nx = 1\ny"));
    let [ShownCommand { command, output, first_line }] = &block.commands()[..] else { panic!("one command") };
    assert_eq!((command.as_str(), output.len(), *first_line), ("cat c", 0, 9));
    assert!(is_test("documents::comments_above_blocks_are_read") && !is_test("documents::run_page"));
}

/// All commands of a page.
fn commands(page: &DocumentPage) -> Vec<ShownCommand> {
    let blocks = page.blocks.iter().filter(|block| block.language == "console");
    blocks.flat_map(PageBlock::commands).collect()
}

/// The change of the policy in the tutorial, whose command sends a signal to each daemon of the host.
#[test]
fn the_tutorial_changes_its_policy() {
    let page = DocumentPage::read("docs/tutorial.md");
    let session = PageSession::new(&page);
    let all = commands(&page);
    let named = |name: &'static str| all.iter().filter(move |shown| shown.command.starts_with(name));
    session.write("policy.toml", page.toml_block(1).as_bytes());
    session.write("steerd.toml", page.toml_block(2).as_bytes());
    let mut command = steerd();
    command.current_dir(session.path()).args(["run", "--config", "steerd.toml"]);
    let mut daemon = Daemon::start_command(&mut command);
    let folder = Path::new(env!("CARGO_BIN_EXE_steerd")).parent().expect("a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").expect("PATH"));
    let shell = |shown: &ShownCommand| {
        let bash = Command::new("bash")
            .args(["-c", &shown.command])
            .current_dir(session.path())
            .env("PATH", &path)
            .output();
        let output = bash.expect("bash");
        assert!(output.status.success() && output.stderr.is_empty(), "{shown:?}: {output:?}");
    };
    ["cp ", "cat ", "steerd check new"].into_iter().flat_map(named).for_each(shell);
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force", 1);
    let Some(metrics) = named("curl ").next() else { panic!("the metrics") };
    let served = daemon.page("/metrics").1;
    for line in &metrics.output {
        let name = line.rsplit_once(' ').expect("a value").0;
        assert!(served.lines().any(|line| line.starts_with(name)), "{name}:\n{served}");
    }
    let log = daemon.log();
    assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");
    let (status, summary, log) = daemon.terminate();
    assert!(status.success() && summary.contains("\npacket accounting matches\n"), "{summary}\n{log}");
}

/// The recipe for testpmd, with a socket of the test's own.
#[test]
fn the_recipe_for_testpmd_receives_packets() {
    let folder = tempfile::tempdir().expect("folder");
    let all = commands(&DocumentPage::read("docs/how-to/receive-in-an-application.md"));
    let shown = all.into_iter().find(|shown| shown.command.contains("dpdk-testpmd"));
    let ShownCommand { command, output, .. } = shown.expect("the command");
    assert_eq!(output, ["testpmd> show port stats all", "testpmd> quit"]);
    if Command::new("dpdk-testpmd").arg("--version").output().is_err() {
        return not_run("the recipe for testpmd", "install dpdk-dev");
    }
    let example = crate::support::config().join("examples/app-sharing.toml");
    let example = std::fs::read_to_string(example).expect("the example");
    let at = folder.path().display().to_string();
    let policy = folder.path().join("p.toml");
    std::fs::write(&policy, example.replace("/run/steerd", &at)).expect("written");
    let daemon = Daemon::start(&["--demo", "--policy", policy.to_str().expect("path")]);
    let prefix = format!("dpdk-testpmd --file-prefix=steerd-recipe-{}", std::process::id());
    let command = command.strip_prefix("sudo ").unwrap_or(&command).replace("/run/steerd", &at);
    let mut child = Command::new("bash")
        .args(["-c", &format!("exec {}", command.replacen("dpdk-testpmd", &prefix, 1))])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash");
    let mut patience = Patience::new(2 * PATIENCE);
    let delivered = || {
        let state = daemon.state();
        let sinks = state["sinks"].as_array().expect("sinks");
        let resolver = sinks.iter().find(|sink| sink["name"] == "resolver").expect("the sink");
        let workers = resolver["workers"].as_array().expect("workers");
        workers.iter().filter_map(|worker| worker["delivered_packets"].as_u64()).sum::<u64>()
    };
    while delivered() < 1000 {
        let ended = child.try_wait().expect("its status");
        assert!(ended.is_none() && !patience.is_over(), "{ended:?}: {:#}", daemon.state()["sinks"]);
        std::thread::sleep(Duration::from_millis(100));
    }
    use std::io::Write as _;
    child.stdin.take().expect("piped").write_all(b"quit\n").expect("written");
    let status = child.wait().expect("ended");
    assert!(status.success(), "{status}");
}

//! The commands of the documentation: each does what its page shows.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{Daemon, PATIENCE, Patience, not_run, steerd};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The contents of the blocks of a page in this language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let begin = format!("\n```{language}\n");
    page.split(&*begin).skip(1).filter_map(|rest| Some(rest.split_once("\n```")?.0)).collect()
}

/// A command of a console block, with the lines of a here-document, and what the page shows of its output.
struct Shown {
    command: String,
    output: Vec<String>,
}

fn commands(block: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut is_open = false;
    for line in block.lines() {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) if !is_open => {
                is_open = command.contains("<<'END'") || command.ends_with('\\');
                all.push(Shown { command: command.to_owned(), output: Vec::new() });
            }
            (_, Some(last)) if is_open => {
                last.command.push_str(&format!("\n{line}"));
                let is_document = last.command.contains("<<'END'");
                is_open = if is_document { line != "END" } else { line.ends_with('\\') };
            }
            (_, Some(last)) => last.output.push(line.to_owned()),
            (_, None) => panic!("a block begins with output: {line}"),
        }
    }
    all
}

/// Whether the lines are the expected ones, where `...` is any number of lines.
fn is_as_shown(lines: &[&str], expected: &[String]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=lines.len()).any(|skipped| is_as_shown(&lines[skipped..], rest))
        }
        Some((first, rest)) => lines
            .split_first()
            .is_some_and(|(line, lines)| line.trim_end() == first && is_as_shown(lines, rest)),
    }
}

/// Runs a command with the binary of the test in the path; nothing may be on stderr.
fn run(folder: &Path, Shown { command, output }: &Shown) {
    let binary = PathBuf::from(steerd().get_program());
    let others = std::env::var("PATH").expect("PATH");
    let path = format!("{}:{others}", binary.parent().expect("a folder").display());
    let ran = Command::new("bash").args(["-c", command]).current_dir(folder).env("PATH", path).output();
    let ran = ran.expect("bash");
    let text = String::from_utf8_lossy(&ran.stdout);
    let lines: Vec<&str> = text.lines().collect();
    // A page that shows nothing of a command leaves all of it out.
    assert!(output.is_empty() || is_as_shown(&lines, output), "{command}: {output:#?}\n{text}");
    assert!(ran.stderr.is_empty(), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn the_tutorial_prints_what_it_shows() {
    let (page, folder) = (page("tutorial.md"), tempfile::tempdir().expect("folder"));
    let [policy, settings] = blocks(&page, "toml")[..] else { panic!("policy and settings") };
    std::fs::write(folder.path().join("policy.toml"), format!("{policy}\n")).expect("written");
    std::fs::write(folder.path().join("steerd.toml"), format!("{settings}\n")).expect("written");
    let all: Vec<Shown> = blocks(&page, "console").into_iter().flat_map(commands).collect();
    let named =
        |name: &str| -> Vec<&Shown> { all.iter().filter(|shown| shown.command.starts_with(name)).collect() };
    for name in ["steerd check policy", "steerd explain", "cp ", "cat ", "steerd diff"] {
        let [shown] = named(name)[..] else { panic!("{name}") };
        run(folder.path(), shown);
    }
    assert_eq!(named("steerd run --config steerd.toml").len(), 1);
    let mut command = steerd();
    command.current_dir(folder.path()).args(["run", "--config", "steerd.toml"]);
    let mut daemon = Daemon::start_command(&mut command);
    named("steerd check new").iter().for_each(|shown| run(folder.path(), shown));
    daemon.signal(Signal::HUP);
    daemon.wait_for("is in force", 1);
    let [metrics] = named("curl ")[..] else { panic!("the metrics") };
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

#[test]
fn the_pages_about_tests_show_what_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all: Vec<Shown> = {
        let page = page("reference/commands/test.md");
        blocks(&page, "console").into_iter().flat_map(commands).collect()
    };
    assert_eq!(all.len(), 2);
    all.iter().for_each(|shown| run(&root, shown));
    let (page, folder) = (page("reference/policy/tests.md"), tempfile::tempdir().expect("folder"));
    let [policy, ..] = blocks(&page, "toml")[..] else { panic!("the policy") };
    std::fs::write(folder.path().join("policy.toml"), policy).expect("written");
    let [Shown { command, output }] = &commands(blocks(&page, "console")[0])[..] else { panic!("a command") };
    assert_eq!(command, "steerd test policy.toml");
    let ran = steerd().args(["test", "policy.toml"]).current_dir(folder.path()).output().expect("it runs");
    let text = [&ran.stdout[..], &ran.stderr[..]].concat();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    // The page breaks the line of the error.
    let printed = format!("{}steerd: 1 test of the policy failed\n", output.join("\n") + "\n");
    assert_eq!(words(&String::from_utf8_lossy(&text)), words(&printed));
}

/// The recipe for testpmd, with a socket of the test's own.
#[test]
fn the_recipe_for_testpmd_receives_packets() {
    let folder = tempfile::tempdir().expect("folder");
    let page = page("how-to/receive-in-an-application.md");
    let block = blocks(&page, "console").into_iter().find(|block| block.contains("dpdk-testpmd"));
    let all = commands(block.expect("the recipe"));
    let shown = all.into_iter().find(|shown| shown.command.contains("dpdk-testpmd"));
    let Shown { command, output } = shown.expect("the command");
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

//! Daemons whose soft NICs are connected by a link: either may start first, either may restart, a third is
//! refused, and the wait for a peer that does not answer is bounded.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Daemon, stderr, steerd};
use rustix::process::Signal;

const POLICY: &str = "version = 1\n[groups.everyone]\nworkers = \"all\"\n[[rules]]\nname = \"dns\"\n\
                      match = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"everyone\" }\n";

/// Settings for one end of a link that only this test uses.
struct Link {
    folder: tempfile::TempDir,
    name: String,
}

impl Link {
    fn new(test: &str) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::write(folder.path().join("p.toml"), POLICY).expect("written");
        Self { folder, name: format!("{test}.{}", std::process::id()) }
    }

    fn settings(&self, end: char) -> PathBuf {
        let path = self.folder.path().join(format!("{end}.toml"));
        let text = format!(
            "[policy]\nfile = \"p.toml\"\n[workers]\ncores = 1\npages = [\"plain\"]\n[[softnic.ports]]\n\
             wire = {{ kind = \"link\", name = \"{}\", end = \"{end}\" }}\n",
            self.name
        );
        std::fs::write(&path, text).expect("written");
        path
    }

    fn command(&self, end: char) -> Command {
        let mut command = steerd();
        command.args(["run", "--config"]).arg(self.settings(end));
        command
    }

    fn start(&self, end: char) -> Daemon {
        Daemon::start_command(&mut self.command(end))
    }

    /// Runs a daemon that must be refused.
    fn refused(&self, end: char) -> String {
        let output = self.command(end).stdin(Stdio::null()).output().expect("it ends");
        assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
        stderr(&output)
    }
}

fn is_ready(daemon: &Daemon) {
    daemon.until_page("/readyz", &(200, "ready\n".into()));
}

#[test]
fn two_daemons_connect_in_any_order_of_starts_and_restarts() {
    for (first, second) in [('a', 'b'), ('b', 'a')] {
        let link = Link::new("meet");
        let mut one = link.start(first);
        is_ready(&one);
        let mut two = link.start(second);
        one.wait_for("the peer at end", 1);
        is_ready(&one);
        is_ready(&two);

        // A third daemon finds both ends in use.
        for end in [first, second] {
            let holder = if end == first { one.pid() } else { two.pid() };
            let error = link.refused(end);
            for part in
                [&format!("link `{}`", link.name), &format!("end `{end}`"), &format!("process {holder}")]
            {
                assert!(error.contains(part), "no {part} in {error}");
            }
        }
        is_ready(&one);

        // The second daemon ends and restarts.
        assert!(two.terminate().0.success());
        one.until_page("/readyz", &(503, format!("not ready: port 1 ({}) is down\n", link.name)));
        assert_eq!(one.page("/healthz").0, 200, "to start again would not help");
        two = link.start(second);
        is_ready(&one);
        is_ready(&two);

        // The first daemon is killed and restarts.
        one.signal(Signal::KILL);
        two.wait_for("the peer is gone", 1);
        drop(one);
        one = link.start(first);
        is_ready(&one);
        is_ready(&two);
        for daemon in [one, two] {
            let (status, summary, log) = daemon.terminate();
            assert!(status.success(), "{log}");
            assert!(summary.contains("\npacket accounting matches\n"), "{summary}");
        }
    }
}

/// A process that holds an end of the link is stopped as by Ctrl-Z.
#[test]
fn the_wait_for_a_silent_peer_is_bounded_and_names_it() {
    let link = Link::new("silent");
    let silent = link.start('a');
    silent.signal(Signal::STOP);
    let begun = Instant::now();
    let error = link.refused('b');
    let elapsed = begun.elapsed();
    silent.signal(Signal::CONT);
    assert!((Duration::from_secs(9)..Duration::from_secs(28)).contains(&elapsed), "{elapsed:?}");
    let holder = format!("held by process {}", silent.pid());
    for part in ["waiting up to 10 s", &format!("link `{}`", link.name), "end `a`", &holder] {
        assert!(error.contains(part), "no {part} in {error}");
    }
    assert!(silent.terminate().0.success());
}

#[test]
fn a_signal_ends_the_wait_for_a_peer() {
    let link = Link::new("deaf");
    let silent = link.start('a');
    silent.signal(Signal::STOP);
    let mut child = link.command('b').stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut log = std::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut text = String::new();
    while !text.contains("waiting up to") {
        assert!(std::io::BufRead::read_line(&mut log, &mut text).expect("log") > 0, "it ended: {text}");
    }
    let begun = Instant::now();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).expect("signal");
    let status = child.wait().expect("the end");
    assert!(status.success() && begun.elapsed() < Duration::from_secs(8), "{status}, {:?}", begun.elapsed());
    silent.signal(Signal::CONT);
}

/// Reads the packets of a generator and forwards them by the link.
fn forwarding(link: &Link) -> Command {
    let write =
        |name: &str, text: &str| std::fs::write(link.folder.path().join(name), text).expect("written");
    write(
        "f.toml",
        "version = 1\n[sinks.out]\nkind = \"forward\"\ndevice = \"softnic1\"\nport = 1\n[groups.main]\nworkers = \"all\"\n\
         sinks = \"out\"\n[[rules]]\nname = \"udp\"\nmatch = { protocol = \"udp\" }\naction = { steer = \"main\" }\n",
    );
    let wire = "wire = { kind = \"generator\", rate = 100000, total = 300000, flows = [{ protocol = \"udp\", \
                frame_bytes = 1000 }] }";
    write(
        "f-settings.toml",
        &format!(
            "[policy]\nfile = \"f.toml\"\n[http]\nlisten = \"off\"\n[api]\nenabled = false\n[workers]\ncores = 1\n\
             pages = [\"plain\"]\n[[softnic.ports]]\n{wire}\n[[softnic.others]]\nname = \"softnic1\"\n\
             ports = [{{ wire = {{ kind = \"link\", name = \"{}\", end = \"b\" }} }}]\n",
            link.name
        ),
    );
    let mut command = steerd();
    command.args(["run", "--format", "json", "--config"]).arg(link.folder.path().join("f-settings.toml"));
    command
}

/// The link's ring has room for about 4,000 of the 300,000 packets: those are delivered, all others dropped.
#[test]
fn packets_that_a_stopped_peer_does_not_take_are_not_delivered() {
    let link = Link::new("stopped");
    let mut peer = link.start('a');
    is_ready(&peer);
    let mut command = forwarding(&link);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    peer.wait_for("the peer at end", 1);
    peer.signal(Signal::STOP);
    let output = child.wait_with_output().expect("it ends");
    peer.signal(Signal::CONT);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let sink = &summary["sinks"][0]["workers"][0];
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_default();
    let (offered, delivered) = (number(&sink["offered_packets"]), number(&sink["delivered_packets"]));
    let dropped: u64 = sink["dropped_packets"].as_object().expect("reasons").values().map(number).sum();
    let sent = number(&summary["other_devices"][0]["ports"][0]["sent_packets"]);
    assert_eq!(offered, delivered + dropped, "{sink:#}");
    assert_eq!(delivered, sent, "{sink:#}");
    assert!(number(&sink["dropped_packets"]["tx_full"]) > 1_000, "{sink:#}");
}

//! fail2ban itself, with the action of deploy/: its log file, its client and its database, against the real
//! daemon.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{POLICY, deploy, ids, tools, until};
use crate::api::Place;
use crate::support::{Daemon, stderr, stdout, steerd};

/// A fail2ban with one jail, which bans the addresses of lines "failed login from ADDRESS".
struct Fail2ban {
    place: Place,
    tools: PathBuf,
    server: Option<Child>,
}

impl Fail2ban {
    /// `None`, after `not_run`, if fail2ban is not there. `ban_time` is that of the jail.
    fn new(test: &str, database: &str, ban_time: &str) -> Option<Self> {
        let tools = tools(test, "usr/bin/fail2ban-server")?;
        let place = Place::new(POLICY);
        for folder in ["etc", "etc/action.d", "etc/filter.d", "state"] {
            std::fs::create_dir(place.path(folder)).expect("a folder");
        }
        let path = |name: &str| place.path(name).display().to_string();
        let text = format!(
            "[DEFAULT]\nloglevel = INFO\nlogtarget = {}\nsyslogsocket = auto\nsocket = {}\npidfile = {}\n\
             dbfile = {database}\ndbmaxmatches = 10\ndbpurgeage = 1d\n[Definition]\n[Thread]\n",
            path("fail2ban.log"),
            path("fail2ban.sock"),
            path("fail2ban.pid"),
        );
        place.write("etc/fail2ban.conf", &text);
        place.write("etc/filter.d/logins.conf", "[Definition]\nfailregex = ^ failed login from <HOST>$\n");
        let action = std::fs::read_to_string(deploy("fail2ban/steerd.conf")).expect("the action");
        place.write("etc/action.d/steerd.conf", &action);
        let text = format!(
            "[logins]\nenabled = true\nfilter = logins\nlogpath = {}\nbackend = polling\nusedns = no\n\
             maxretry = 1\nfindtime = 10m\nbantime = {ban_time}\nignoreself = false\n\
             action = steerd[steerd=\"{}\", stamp=\"{}\"]\n",
            path("logins.log"),
            steerd().get_program().to_string_lossy(),
            path("stamp"),
        );
        place.write("etc/jail.conf", &text);
        place.write("logins.log", "");
        Some(Self { place, tools, server: None })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.tools.join("usr/bin").join(program));
        command.env("PYTHONPATH", self.tools.join("usr/lib/python3/dist-packages"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("STEERD_API__SOCKET", self.place.socket()).stdin(Stdio::null());
        command.arg("-c").arg(self.place.path("etc")).arg("-s").arg(self.place.path("fail2ban.sock"));
        command.arg("-p").arg(self.place.path("fail2ban.pid"));
        command
    }

    fn start(&mut self) {
        let mut command = self.command("fail2ban-server");
        let server = command.args(["-f", "start"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.server = Some(server.expect("fail2ban starts"));
        self.until_logged("Jail 'logins' started");
    }

    fn client(&self, args: &[&str]) -> String {
        let output = self.command("fail2ban-client").args(args).output().expect("the client runs");
        assert!(output.status.success(), "{args:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output)
    }

    /// Stops it as its service does, which ends all bans.
    fn stop(&mut self) {
        self.client(&["stop"]);
        let status = self.server.take().expect("it runs").wait().expect("its end");
        assert!(status.success(), "{}", self.log());
        std::fs::write(self.place.path("fail2ban.log"), "").expect("a new log");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.place.path("fail2ban.log")).unwrap_or_default()
    }

    fn until_logged(&self, text: &str) {
        until(|| self.log().contains(text), || format!("no {text:?} in\n{}", self.log()));
    }

    /// Waits until exactly these addresses have rules.
    fn until_banned(&self, addresses: &[&str]) {
        let wanted: Vec<String> = addresses.iter().map(|ip| format!("f2b-logins-{ip}")).collect();
        until(
            || ids(&self.place) == wanted,
            || format!("{:?}, not {wanted:?}\n{}", ids(&self.place), self.log()),
        );
    }

    /// Writes a line of a failure that happened now.
    fn fail(&self, address: &str) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs();
        let log = std::fs::OpenOptions::new().append(true).open(self.place.path("logins.log"));
        let line = format!("{now} failed login from {address}\n");
        log.and_then(|mut log| log.write_all(line.as_bytes())).expect("written");
    }

    /// A later failure bans the address again.
    fn fail_until_banned(&self, address: &str) {
        let id = format!("f2b-logins-{address}");
        let is_banned = || {
            self.fail(address);
            // Many failures a second keep fail2ban from its actions.
            std::thread::sleep(Duration::from_secs(1));
            ids(&self.place).contains(&id)
        };
        until(is_banned, || self.log());
    }

    fn rule(&self, address: &str) -> Value {
        self.place.get(&format!("/v1/rules?id=f2b-logins-{address}"))["rules"][0].clone()
    }
}

impl Drop for Fail2ban {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn start(place: &Place) -> Daemon {
    Daemon::start_command(&mut place.quiet_daemon())
}

/// A daemon that keeps its rules over restarts.
fn start_with_state(place: &Place) -> Daemon {
    Daemon::start_command(place.quiet_daemon().env("STEERD_STATE__FOLDER", place.path("state")))
}

#[test]
fn addresses_are_banned_and_unbanned() {
    let Some(mut fail2ban) = Fail2ban::new("fail2ban: addresses are banned and unbanned", "None", "1h")
    else {
        return;
    };
    let _daemon = start(&fail2ban.place);
    fail2ban.start();
    fail2ban.fail("192.0.2.7");
    fail2ban.fail("2001:db8::7");
    fail2ban.until_banned(&["192.0.2.7", "2001:db8::7"]);
    let list = fail2ban.place.ok(&["rule", "list"]);
    let first = list.lines().next().unwrap_or_default();
    assert!(first.starts_with("f2b-logins-192.0.2.7: src 192.0.2.7 -> drop, in "), "{list}");
    assert!(first.ends_with(" # fail2ban logins"), "{list}");
    let ends = fail2ban.rule("192.0.2.7")["ends_in_seconds"].as_f64().expect("a time to live");
    assert!((3600.0..=3660.0).contains(&ends), "an hour and at most a minute: {ends}");

    fail2ban.client(&["set", "logins", "unbanip", "192.0.2.7"]);
    fail2ban.until_banned(&["2001:db8::7"]);
    // An operator bans by hand, a network too if the policy allows that.
    fail2ban.client(&["set", "logins", "banip", "192.0.2.8", "198.51.100.0/24"]);
    fail2ban.until_banned(&["192.0.2.8", "2001:db8::7"]);
    fail2ban.until_logged("the policy does not allow rules that compare src/24 (IPv4)");
    // A stop ends all bans.
    fail2ban.stop();
    assert_eq!(ids(&fail2ban.place), [""; 0]);
}

#[test]
fn a_ban_time_that_is_over_or_endless() {
    let Some(mut fail2ban) = Fail2ban::new("fail2ban: a ban time that is over or endless", "None", "3")
    else {
        return;
    };
    let _daemon = start(&fail2ban.place);
    fail2ban.start();
    fail2ban.fail("192.0.2.7");
    fail2ban.until_banned(&["192.0.2.7"]);
    fail2ban.until_banned(&[]);
    fail2ban.client(&["set", "logins", "bantime", "-1"]);
    fail2ban.fail("192.0.2.8");
    fail2ban.until_banned(&["192.0.2.8"]);
    assert_eq!(fail2ban.rule("192.0.2.8")["ends_in_seconds"], json!(null));
    // More than steerd takes as a time to live.
    fail2ban.client(&["set", "logins", "bantime", "9999999999"]);
    fail2ban.fail("192.0.2.9");
    fail2ban.until_banned(&["192.0.2.8", "192.0.2.9"]);
    assert_eq!(fail2ban.rule("192.0.2.9")["ends_in_seconds"], json!(null));
}

#[test]
fn a_restart_of_fail2ban_restores_its_bans() {
    let test = "fail2ban: a restart restores its bans";
    let Some(mut fail2ban) = Fail2ban::new(test, "database.sqlite3", "1h") else { return };
    let database = fail2ban.place.path("database.sqlite3").display().to_string();
    let text = std::fs::read_to_string(fail2ban.place.path("etc/fail2ban.conf")).expect("settings");
    fail2ban.place.write("etc/fail2ban.conf", &text.replace("database.sqlite3", &database));
    let _daemon = start(&fail2ban.place);
    fail2ban.start();
    for address in ["192.0.2.7", "192.0.2.8", "2001:db8::7"] {
        fail2ban.fail(address);
    }
    fail2ban.until_banned(&["192.0.2.7", "192.0.2.8", "2001:db8::7"]);
    fail2ban.stop();
    assert_eq!(ids(&fail2ban.place), [""; 0]);
    fail2ban.start();
    fail2ban.until_banned(&["192.0.2.7", "192.0.2.8", "2001:db8::7"]);
    fail2ban.until_logged("Restore Ban 192.0.2.7");

    // Killed, it leaves the rules, and bans the same addresses again.
    let mut server = fail2ban.server.take().expect("it runs");
    server.kill().expect("killed");
    server.wait().expect("its end");
    fail2ban.place.write("fail2ban.log", "");
    let _ = std::fs::remove_file(fail2ban.place.path("fail2ban.sock"));
    fail2ban.start();
    fail2ban.until_logged("Restore Ban 2001:db8::7");
    fail2ban.until_banned(&["192.0.2.7", "192.0.2.8", "2001:db8::7"]);
    fail2ban.client(&["unban", "--all"]);
    fail2ban.until_banned(&[]);
    assert!(!fail2ban.log().contains("ERROR"), "{}", fail2ban.log());
}

#[test]
fn bans_survive_a_restart_of_steerd() {
    let test = "fail2ban: bans survive a restart of steerd";
    let Some(mut fail2ban) = Fail2ban::new(test, "None", "1h") else { return };
    let daemon = start_with_state(&fail2ban.place);
    fail2ban.start();
    fail2ban.fail("192.0.2.7");
    fail2ban.until_banned(&["192.0.2.7"]);
    let (status, _, log) = daemon.terminate();
    assert!(status.success(), "{log}");

    // While steerd is down: neither a ban nor an unban.
    fail2ban.fail("192.0.2.8");
    fail2ban.until_logged("Error banning 192.0.2.8");
    fail2ban.until_logged("api.sock: No such file or directory");
    fail2ban.client(&["set", "logins", "unbanip", "192.0.2.7"]);
    let _daemon = start_with_state(&fail2ban.place);
    fail2ban.until_banned(&["192.0.2.7"]);
    let ends = fail2ban.rule("192.0.2.7")["ends_in_seconds"].as_f64().expect("a time to live");
    assert!(ends <= 3660.0, "nobody else ends it: {ends}");

    fail2ban.fail_until_banned("192.0.2.8");
    fail2ban.until_logged("Reban 192.0.2.8");
    // An address that it has banned again is unbanned.
    fail2ban.fail("192.0.2.7");
    until(|| fail2ban.log().matches(" Ban 192.0.2.7").count() == 2, || fail2ban.log());
    fail2ban.client(&["set", "logins", "unbanip", "192.0.2.7"]);
    fail2ban.until_banned(&["192.0.2.8"]);
    fail2ban.stop();
    assert_eq!(ids(&fail2ban.place), [""; 0]);
}

#[test]
fn bans_that_a_restart_of_steerd_has_lost_are_made_again() {
    let test = "fail2ban: bans that a restart of steerd has lost are made again";
    let Some(mut fail2ban) = Fail2ban::new(test, "None", "1h") else { return };
    let mut daemon = start(&fail2ban.place);
    fail2ban.start();
    fail2ban.fail("192.0.2.7");
    fail2ban.until_banned(&["192.0.2.7"]);
    for _ in 0..2 {
        drop(daemon);
        daemon = start(&fail2ban.place);
        assert_eq!(ids(&fail2ban.place), [""; 0]);
        fail2ban.fail_until_banned("192.0.2.7");
    }
    drop(daemon);
}

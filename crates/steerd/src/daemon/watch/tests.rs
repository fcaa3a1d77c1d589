//! The thread on real files: what it passes on, and what not.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use crossbeam::channel::RecvTimeoutError;

use super::*;

/// The longest wait for a change, enough for a loaded machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// The time of a test in which nothing is to be passed on.
const SILENCE: Duration = Duration::from_millis(400);

/// Short times, and long ones for waits that are never to be over in a test.
const PATIENCE: Patience = Patience {
    settle: Duration::from_millis(50),
    broken: Duration::from_millis(150),
    open: Duration::from_secs(3600),
    longest: Duration::from_secs(3600),
    poll: Duration::from_millis(100),
};

fn policy(rule: &str) -> String {
    format!(
        "version = 1\n[[rules]]\nname = \"{rule}\"\nmatch = {{ protocol = \"udp\" }}\naction = \"drop\"\n"
    )
}

fn watched(path: &Path, patience: Patience, folders: Folders) -> PolicyWatch {
    let source = PolicySource::file(path.to_owned(), BTreeMap::new());
    let files = WatchedFiles::with(&source, patience, folders).expect("descriptors");
    files.start().expect("a thread")
}

fn watch(path: &Path) -> PolicyWatch {
    watched(path, PATIENCE, Folders::open())
}

fn names_of(changed: &ExaminedPolicy) -> Vec<String> {
    let read = changed.read.as_ref().unwrap_or_else(|found| panic!("{found}"));
    read.policy.rules.iter().map(|rule| rule.name.to_string()).collect()
}

/// The names of the rules of the next policy.
fn next(watch: &PolicyWatch) -> Vec<String> {
    names_of(&watch.changes().recv_timeout(DEADLINE).expect("a change"))
}

/// The names of the rules of the next policy that can be used: a folder may be seen before its file.
fn next_usable(watch: &PolicyWatch) -> Vec<String> {
    loop {
        let changed = watch.changes().recv_timeout(DEADLINE).expect("a change");
        if changed.read.is_ok() {
            return names_of(&changed);
        }
    }
}

fn is_silent(watch: &PolicyWatch) -> bool {
    watch.changes().recv_timeout(SILENCE).is_err_and(|error| error == RecvTimeoutError::Timeout)
}

/// Replaces a file by a rename.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("written");
    fs::rename(new, path).expect("renamed");
}

#[test]
fn a_renamed_file_is_a_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, policy("first")).expect("written");
    let watch = watch(&path);
    replace(&path, &policy("second"));
    assert_eq!(next(&watch), ["second"]);
    replace(&path, &policy("second"));
    fs::write(folder.path().join("other.toml"), "version = 1\n").expect("written");
    assert!(is_silent(&watch), "the same content, and another file");
    // Somebody else has put another policy in force.
    watch.forget();
    replace(&path, &policy("second"));
    assert_eq!(next(&watch), ["second"]);
    replace(&path, &policy("third"));
    assert_eq!(next(&watch), ["third"]);
}

/// A change as kubelet makes it (pkg/volume/util/atomic_writer.go): a new folder, a new link, and a rename of
/// the link.
#[test]
fn a_config_map_is_switched() {
    let folder = tempfile::tempdir().expect("a folder");
    let publish = |name: &str, rule: &str| {
        let versions = folder.path().join(name);
        fs::create_dir(&versions).expect("made");
        fs::write(versions.join("policy.toml"), policy(rule)).expect("written");
        symlink(name, folder.path().join("..data_tmp")).expect("made");
        fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).expect("renamed");
    };
    publish("..2026_12_01_1", "first");
    let path = folder.path().join("policy.toml");
    symlink("..data/policy.toml", &path).expect("made");
    let watch = watch(&path);
    for (version, before) in [(2, 1), (3, 2), (4, 3)] {
        publish(&format!("..2026_12_01_{version}"), &format!("rule-{version}"));
        fs::remove_dir_all(folder.path().join(format!("..2026_12_01_{before}"))).expect("removed");
        assert_eq!(next(&watch), [format!("rule-{version}")]);
    }
    assert!(is_silent(&watch));
}

#[test]
fn a_file_written_in_halves_is_read_when_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, policy("first")).expect("written");
    let watch = watch(&path);
    // The first half is a policy, too.
    let mut file = File::create(&path).expect("opened");
    file.write_all(policy("second").as_bytes()).expect("written");
    assert!(is_silent(&watch), "the file is open");
    file.write_all(policy("third").replace("version = 1\n", "").as_bytes()).expect("written");
    drop(file);
    assert_eq!(next(&watch), ["second", "third"]);
    assert!(is_silent(&watch));
}

#[test]
fn a_writer_of_the_old_file_delays_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, policy("first")).expect("written");
    let watch = watch(&path);
    let mut old = OpenOptions::new().append(true).open(&path).expect("opened");
    old.write_all(b"# open\n").expect("written");
    replace(&path, &policy("second"));
    old.write_all(b"# still open\n").expect("written");
    assert_eq!(next(&watch), ["second"]);
}

#[test]
fn half_a_policy_is_not_reported_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, policy("first")).expect("written");
    let watch = watched(&path, Patience { broken: Duration::from_secs(3600), ..PATIENCE }, Folders::open());
    let text = policy("second");
    let (half, rest) = text.split_at(text.len() / 2);
    fs::write(&path, half).expect("written");
    assert!(is_silent(&watch), "it cannot be used");
    OpenOptions::new().append(true).open(&path).expect("opened").write_all(rest.as_bytes()).expect("written");
    assert_eq!(next(&watch), ["second"]);
    fs::remove_file(&path).expect("removed");
    assert!(is_silent(&watch), "it may be made again");
    fs::write(&path, policy("third")).expect("written");
    assert_eq!(next(&watch), ["third"]);
}

#[test]
fn a_broken_policy_is_passed_on_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, policy("first")).expect("written");
    let watch = watch(&path);
    let is_broken = |text: &str| {
        replace(&path, text);
        watch.changes().recv_timeout(DEADLINE).expect("a change").read.is_err()
    };
    assert!(is_broken("version = \n"));
    replace(&path, "version = \n");
    assert!(is_silent(&watch), "known already");
    assert!(is_broken("version = = \n"), "another error");
    replace(&path, &policy("first"));
    assert_eq!(next(&watch), ["first"], "it is to clear the error");
    fs::remove_file(&path).expect("removed");
    assert!(watch.changes().recv_timeout(DEADLINE).expect("a change").read.is_err(), "missing");
}

#[test]
fn set_files_and_includes_are_watched() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    let set = folder.path().join("lists/bad.txt");
    let text = policy("first").replace("protocol = \"udp\"", "src = \"bad\"")
        + "[sets]\nbad = { file = \"lists/bad.txt\" }\n";
    fs::write(&path, &text).expect("written");
    let watch = watch(&path);
    fs::create_dir(folder.path().join("lists")).expect("made");
    replace(&set, "192.0.2.1\n");
    assert_eq!(next(&watch), ["first"], "the set is there");
    replace(&set, "192.0.2.2\n");
    assert_eq!(next(&watch), ["first"]);
    replace(&path, &text.replace("version = 1\n", "version = 1\nincludes = [\"more.toml\"]\n"));
    assert!(watch.changes().recv_timeout(DEADLINE).expect("a change").read.is_err(), "the file is missing");
    replace(&folder.path().join("more.toml"), &policy("more"));
    assert_eq!(next(&watch), ["more", "first"]);
    replace(&path, &policy("alone"));
    assert_eq!(next(&watch), ["alone"]);
    replace(&set, "192.0.2.3\n");
    assert!(is_silent(&watch), "the policy does not name it any more");
}

#[test]
fn a_thousand_changes_are_few_policies() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, policy("first")).expect("written");
    let watch = watch(&path);
    for number in 0..1000 {
        replace(&path, &policy(&format!("r{number}")));
    }
    let begun = Instant::now();
    let mut passed = 1;
    while next(&watch) != ["r999"] {
        passed += 1;
        assert!(begun.elapsed() < DEADLINE);
    }
    assert!(passed <= 100, "{passed}");
    assert!(is_silent(&watch));
}

#[test]
fn changes_that_never_pause_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, policy("first")).expect("written");
    let patience =
        Patience { settle: Duration::from_secs(3600), longest: Duration::from_millis(200), ..PATIENCE };
    let watch = watched(&path, patience, Folders::open());
    let begun = Instant::now();
    let mut number = 0;
    while watch.changes().is_empty() {
        number += 1;
        replace(&path, &policy(&format!("r{number}")));
        assert!(begun.elapsed() < DEADLINE);
    }
    assert!(next(&watch)[0].starts_with('r'));
}

#[test]
fn a_folder_that_is_replaced_is_watched() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("steerd");
    let path = folder.join("policy.toml");
    fs::create_dir(&folder).expect("made");
    fs::write(&path, policy("first")).expect("written");
    let watch = watch(&path);
    let next_to_it = root.path().join("new");
    fs::create_dir(&next_to_it).expect("made");
    fs::write(next_to_it.join("policy.toml"), policy("second")).expect("written");
    fs::rename(&folder, root.path().join("old")).expect("renamed");
    fs::rename(&next_to_it, &folder).expect("renamed");
    assert_eq!(next_usable(&watch), ["second"]);
    fs::write(root.path().join("old/policy.toml"), policy("old")).expect("written");
    replace(&path, &policy("third"));
    assert_eq!(next(&watch), ["third"]);
    fs::remove_dir_all(&folder).expect("removed");
    assert!(watch.changes().recv_timeout(DEADLINE).expect("a change").read.is_err(), "it is gone");
    fs::create_dir(&folder).expect("made");
    fs::write(&path, policy("fourth")).expect("written");
    assert_eq!(next_usable(&watch), ["fourth"]);
}

#[test]
fn without_reports_files_are_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, policy("first")).expect("written");
    let watch = watched(&path, PATIENCE, Folders::refused());
    replace(&path, &policy("second"));
    assert_eq!(next(&watch), ["second"]);
    replace(&path, &policy("third"));
    assert_eq!(next(&watch), ["third"]);
    assert!(is_silent(&watch));
}

#[test]
fn a_policy_nobody_has_taken_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, policy("first")).expect("written");
    let watch = watch(&path);
    replace(&path, &policy("second"));
    let begun = Instant::now();
    while watch.changes().is_empty() {
        assert!(begun.elapsed() < DEADLINE);
        std::thread::yield_now();
    }
    replace(&path, &policy("third"));
    // The second may be taken at the moment at which it is replaced.
    let passed: Vec<_> =
        std::iter::from_fn(|| Some(next(&watch))).take_while(|names| names != &["third"]).collect();
    assert!(passed.len() <= 1, "{passed:?}");
}

#[test]
fn more_changes_than_are_listed_are_a_change() {
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a number");
    let most: usize = most.trim().parse().expect("a number");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    fs::write(&path, "").expect("written");
    let mut folders = Folders::open();
    assert_eq!(folders.watch(std::slice::from_ref(&path)), None);
    // Two reports for each: the name goes, and comes back.
    for _ in 0..=most / 2 {
        fs::rename(&path, folder.path().join("other")).expect("renamed");
        fs::rename(folder.path().join("other"), &path).expect("renamed");
    }
    let reports = folders.reports();
    assert!(reports.has_lost_some && reports.has_changes, "{reports:?}");
    assert_eq!(folders.reports(), folders::Reports::default());
}

//! Captures of a process of its own, which is this test binary again: one that is killed, and one whose disk
//! is full.

use std::process::{Child, Stdio};

use super::*;

/// The folder for the tests that only a test above starts.
const FOLDER: &str = "STEERD_TEST_CAPTURE_FOLDER";

/// A command that runs one test of this binary.
fn command(program: &[&str], test: &str, folder: &Path) -> Command {
    let name = format!("{}::{test}", module_path!().split_once("::").expect("a crate and a module").1);
    let binary = std::env::current_exe().expect("the test binary");
    let mut words = program.iter().map(std::ffi::OsStr::new).chain([binary.as_os_str()]);
    let mut command = Command::new(words.next().expect("there is the binary"));
    command.args(words).args(["--exact", &name, "--ignored", "--nocapture"]).env(FOLDER, folder);
    command
}

fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os(FOLDER).expect("a test above starts this one"))
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "a_killed_process_leaves_a_readable_file starts it"]
fn captures_until_it_is_killed() {
    let mut rig = Rig::files(&options(&folder()), 1);
    for number in 0.. {
        rig.push(0, 1, &[(0, number, vec![number as u8; 1400])]);
        if number % 50 == 49 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_killed_process_leaves_a_readable_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&[], "captures_until_it_is_killed", folder.path());
    let child = Killed(command.stdout(Stdio::null()).spawn().expect("this binary runs"));
    let begun = Instant::now();
    let is_long = || files_in(folder.path()).iter().any(|file| fs::metadata(file).unwrap().len() > 1 << 20);
    while !is_long() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing was captured");
        thread::sleep(Duration::from_millis(10));
    }
    drop(child); // SIGKILL
    let files = files_in(folder.path());
    let bytes = fs::read(&files[0]).unwrap();
    let whole = whole_blocks(&bytes);
    let packets = content(&bytes[..whole]).packets;
    assert!(packets.len() > 500, "{}", packets.len());
    let in_order = packets.iter().zip(0..).all(|(packet, number)| packet.1 == number);
    assert!(in_order, "no packet is missing");

    // Normally the file ends with a whole block; a write that was interrupted leaves a part, as here.
    let torn = folder.path().join("torn.pcapng");
    fs::write(&torn, &bytes[..whole - 700]).unwrap();
    let output =
        Command::new("tshark").args(["-T", "fields", "-e", "frame.number", "-r"]).arg(&torn).output();
    let Ok(output) = output else {
        test_support::not_run("reading a torn capture by tshark", "tshark is not installed");
        return;
    };
    let read = String::from_utf8(output.stdout).unwrap().lines().count();
    assert_eq!(read, packets.len() - 1, "all but the torn one");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("cut short"), "{errors}");
    let output =
        Command::new("capinfos").args(["-c", "-M"]).arg(&torn).output().expect("it comes with tshark");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("Number of packets:   {read}")), "{text}");
}

/// The length of the blocks that are whole.
fn whole_blocks(file: &[u8]) -> usize {
    let mut at = 0;
    while let Some(length) = file.get(at + 4..at + 8) {
        let length = u32::from_ne_bytes(length.try_into().unwrap()) as usize;
        if file.len() - at < length {
            break;
        }
        at += length;
    }
    at
}

#[test]
#[ignore = "a_full_disk_is_counted_and_capturing_goes_on_when_there_is_room starts it"]
fn captures_to_a_small_disk() {
    let folder = folder();
    let filler = folder.join("filler");
    let mut rig = Rig::files(&options(&folder), 1);
    let mut number = 0;
    let mut push = |rig: &mut Rig| {
        let packets: Vec<_> = (number..number + 50).map(|number| (0, number, vec![1; 1400])).collect();
        number += 50;
        rig.push(0, 1, &packets);
        rig.wait_until_settled();
    };
    push(&mut rig);
    let _ = fs::write(&filler, vec![0; 8 << 20]); // as much as there is
    while dropped(&rig.traffic(), SinkDrop::DiskFull) == 0 {
        push(&mut rig);
    }
    let error = rig.hub.shared.status().error.clone();
    assert!(error.is_some_and(|error| error.contains("No space left")));
    let delivered = rig.traffic().delivered.packets;

    fs::remove_file(&filler).unwrap();
    rig.wait_until("capturing again", |_| rig.hub.shared.status().error.is_none());
    push(&mut rig);
    let traffic = rig.end();
    assert_eq!(traffic.delivered.packets, delivered + 50);
    let files = files_in(&folder);
    let contents: Vec<_> = files.iter().map(|file| content(&fs::read(file).unwrap())).collect();
    let found: usize = contents.iter().map(|content| content.packets.len()).sum();
    assert_eq!(found as u64, traffic.delivered.packets, "what is counted as delivered is in the files");
    let mentioned: u64 = contents.iter().flat_map(|content| &content.packets).map(|packet| packet.3).sum();
    assert_eq!(mentioned, dropped(&traffic, SinkDrop::DiskFull), "what was lost is mentioned in the files");
    println!("captured {} packets around a full disk", traffic.delivered.packets);
}

#[test]
fn a_full_disk_is_counted_and_capturing_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    // The file system is mounted in a name space of the child only.
    let script = r#"mount -t tmpfs -o size=2m tmpfs "$STEERD_TEST_CAPTURE_FOLDER" || exit 77; exec "$@""#;
    let is_root = rustix::process::geteuid().is_root();
    let unshare: &[&str] = if is_root { &["unshare", "-m"] } else { &["unshare", "-rm"] };
    let program = [unshare, &["sh", "-c", script, "sh"]].concat();
    let output = command(&program, "captures_to_a_small_disk", folder.path()).output();
    let output = match output {
        Ok(output) if output.status.code() != Some(77) && !is_refused(&output.stderr) => output,
        _ => {
            test_support::not_run("a capture to a full disk", "a file system cannot be mounted");
            return;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("around a full disk"), "{text}{errors}");
}

fn is_refused(errors: &[u8]) -> bool {
    String::from_utf8_lossy(errors).contains("unshare failed")
}

#[test]
fn tshark_shows_the_packets_of_a_stream_while_it_lasts() {
    use std::io::{BufRead, BufReader};
    let mut command = Command::new("tshark");
    command.args(["-i", "-", "-l", "-T", "fields", "-e", "frame.interface_name", "-e", "frame.len"]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = child else {
        test_support::not_run("a live capture by tshark", "tshark is not installed");
        return;
    };
    let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut child = Killed(child);
    let (send, lines) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| drop(send.send(line)));
    });
    let mut rig = Rig::new(&CaptureSink::default(), 1, Output::Stream(Box::new(stdin)));
    rig.push(0, 1, &[(0, 1, vec![1; 60]), (1, 2, vec![1; 61])]);
    let shown = || lines.recv_timeout(Duration::from_secs(20)).expect("tshark shows a packet");
    assert_eq!([shown(), shown()], ["dns\t60", "ssh\t61"]);
    rig.push(0, 1, &[(1, 3, vec![1; 62])]);
    assert_eq!(shown(), "ssh\t62");
    rig.end(); // closes the pipe
    assert!(child.0.wait().expect("it ends by itself").success());
    reader.join().expect("the reader ends");
}

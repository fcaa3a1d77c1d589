//! Helpers: calls of commands, policies, frames, captures. No assertions about behaviour.

use std::path::Path;
use std::process::Output;

use packet::build::FrameBuilder;
use pcap_file::pcap::{PcapPacket, PcapWriter};

use crate::support::{config, stderr, stdout, steerd};

/// Runs in config/examples, so that file names in the output do not depend on the repository's path.
pub(crate) fn run(args: &[&str]) -> Output {
    steerd().current_dir(config().join("examples")).args(args).output().expect("the binary runs")
}

pub(crate) fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

pub(crate) fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(args)).expect("JSON")
}

pub(crate) const DNS: &str = "src=10.1.0.1,dst=192.0.2.53,protocol=udp,src_port=1024,dst_port=53";

pub(crate) fn dns_frame() -> FrameBuilder {
    let address = |text: &str| text.parse().expect("address");
    FrameBuilder::new().ip(address("10.1.0.1"), address("192.0.2.53")).udp(1024, 53)
}

pub(crate) fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let file = std::fs::File::create(path).expect("created");
    let mut writer = PcapWriter::new(file).expect("header");
    for frame in frames {
        let length = u32::try_from(frame.len()).expect("length");
        let packet = PcapPacket::new(std::time::Duration::ZERO, length, frame);
        writer.write_packet(&packet).expect("packet");
    }
}

pub(crate) const POLICY: &str = "version = 1\n[groups.one]\nworkers = [0]\n\n[[rules]]\nname = \"web\"\n\
     match = { dst = \"192.0.2.0/24\", protocol = \"tcp\", dst_port = 80 }\naction = { steer = \"one\" }\n";

/// A folder with these policies.
pub(crate) fn policies(texts: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    for (name, text) in texts {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

pub(crate) fn run_in(folder: &tempfile::TempDir, args: &[&str]) -> Output {
    steerd().current_dir(folder.path()).args(args).output().expect("the binary runs")
}

/// Runs the command with standard input.
pub(crate) fn piped(folder: &tempfile::TempDir, args: &[&str], input: &str) -> Output {
    use std::io::Write;
    use std::process::Stdio;
    let mut command = steerd();
    command.current_dir(folder.path()).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that does not read it may have ended.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

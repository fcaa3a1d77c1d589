//! The rows on rdma-core's own mlx5 provider (`softnic exec --method mlx5`), against the record that the
//! document shows.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use conformance::libmlx5::RECORD;
use test_support::not_run;

const CONFORMANCE: &str = env!("CARGO_BIN_EXE_conformance");

#[test]
fn the_record_is_what_the_rows_answer() {
    let launcher = Path::new(CONFORMANCE).with_file_name("softnic");
    let what = "the conformance suite on rdma-core's mlx5 provider";
    let Ok(listed) = Command::new(&launcher).arg("list").output() else {
        return not_run(what, "softnic is not built: cargo build -p softnic-preload");
    };
    let list = String::from_utf8_lossy(&listed.stdout);
    let method = list.lines().find(|line| line.trim().starts_with("mlx5 ")).unwrap_or("").trim();
    if !method.ends_with("works") {
        return not_run(what, method);
    }
    if std::fs::metadata("/proc/self").map_or(1, |process| process.uid()) != 0 {
        return not_run(what, "flows need CAP_NET_RAW");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("record");
    let link = format!("record-{}", std::process::id());
    let output = Command::new(&launcher)
        .args(["exec", "--method", "mlx5", "--mtu", "1500", "--wire", &format!("link:{link}:a"), "--"])
        .args([CONFORMANCE, "--device", "mlx5_0", "--link", &link, "--record"])
        .arg(&file)
        .output()
        .expect("the launcher runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let now = std::fs::read_to_string(&file).expect("written");
    let others = |one: &str, other: &str| -> Vec<String> {
        one.lines().filter(|line| !other.lines().any(|known| known == *line)).map(str::to_owned).collect()
    };
    let (new, gone) = (others(&now, RECORD), others(RECORD, &now));
    assert!(now == RECORD, "make conformance-libmlx5\nnew: {new:#?}\nnot any more: {gone:#?}");
}

//! A program in C that arms a completion queue while a poll of it is open, on the two providers with the
//! limits of an mlx5.

use crate::support;
use std::path::Path;
use std::process::Command;

/// Builds the program in a folder; `None`, reported, without a C compiler or libibverbs' header.
fn program(folder: &Path) -> Option<std::path::PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/arm_in_batch.c");
    let program = folder.join("arm_in_batch");
    let output = Command::new("cc").arg("-o").arg(&program).arg(source).arg("-libverbs").output();
    let problem = match output {
        Ok(output) if output.status.success() => return Some(program),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => format!("cc: {error}"),
    };
    test_support::not_run("arming in an open poll", &problem);
    None
}

#[test]
fn a_queue_that_is_armed_in_an_open_poll_gives_its_event_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path()) else { return };
    for (method, exactly) in [("preload", "roughly"), ("mlx5", "exact")] {
        if method == "mlx5" && !support::is_installed("arming in an open poll on libmlx5") {
            continue;
        }
        let output = Command::new(env!("CARGO_BIN_EXE_softnic"))
            .args(["exec", "--method", method, "--personality", "mlx5", "--mtu", "1500", "--"])
            .arg(&program)
            .arg(exactly)
            .output()
            .expect("the launcher runs");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success() && out == "as expected\n",
            "{method}: {}\n{out}\n{err}",
            output.status
        );
    }
}

//! rdma-core's own test-suite (Debian: python3-pyverbs, its tests in the documentation of rdma-core), by the plugin method.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::Running;
use crate::{Case, Outcome};

const LIMIT: Duration = Duration::from_secs(300);
const PYTHON: &str = "/usr/bin/python3";
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The stock suite ends with a segmentation fault in this one, on any device that has no SRQ.
const EXCLUDED: &str = "test_mem_align_srq_excq_rc_traffic";
/// What a device that has raw packets and nothing else can pass.
const LEAST_OK: usize = 55;

/// Runs all tests of the folder in its first argument but the one in its second.
const DRIVER: &str = "
import os, sys, unittest
from importlib.machinery import SourceFileLoader
folder, excluded = sys.argv[1:3]
del sys.argv[1:3]
sys.path[:0] = [folder, os.path.dirname(folder)]
tests = SourceFileLoader('tests', os.path.join(folder, '__init__.py')).load_module()
from args_parser import parser
parser.parse_args()
def leaves(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from leaves(test)
        else:
            yield test
loaded = unittest.defaultTestLoader.loadTestsFromModule(tests)
suite = unittest.TestSuite(test for test in leaves(loaded) if excluded not in test.id())
result = unittest.TextTestRunner(verbosity=2).run(suite)
missed = len(result.failures) + len(result.errors)
passed = result.testsRun - missed - len(result.skipped) - len(result.expectedFailures)
print('TALLY', passed, len(result.failures), len(result.errors), len(result.skipped))
";

pub(crate) fn case(report: &Path) -> Case {
    let report = report.to_owned();
    Case::new("rdma-core's test-suite", move |launcher| {
        let text = run_suite(launcher)?;
        fs::write(report.join("pyverbs.txt"), &text).map_err(|error| error.to_string())?;
        judge(&text)
    })
}

fn run_suite(launcher: &Path) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let suite = unpack(folder.path())?;
    let mut command = Command::new(launcher);
    command.args(["exec", "--method", "plugin", "--wire", "loopback", "--"]);
    command.args([PYTHON, "-c", DRIVER]).arg(&suite).arg(EXCLUDED);
    command.args(["--dev", "softnic0", "--port", "1", "--gid", "0"]);
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(folder.path());
    Running::start(&mut command, "the suite")?.finish(LIMIT)?.success()
}

/// Copies the tests, which Debian has gzipped, to a folder of their own.
fn unpack(to: &Path) -> Result<PathBuf, String> {
    let failed =
        |error: std::io::Error| format!("{SUITE}: {error} (apt-get install rdma-core python3-pyverbs)");
    let suite = to.join("tests");
    fs::create_dir(&suite).map_err(failed)?;
    for entry in fs::read_dir(SUITE).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(name) = path.file_name() else { continue };
        fs::copy(&path, suite.join(name)).map_err(failed)?;
        if path.extension().is_some_and(|extension| extension == "gz") {
            let unzipped = Command::new("gzip").arg("-d").arg(suite.join(name)).status().map_err(failed)?;
            if !unzipped.success() {
                return Err(format!("gzip -d {}: {unzipped}", path.display()));
            }
        }
    }
    Ok(suite)
}

fn judge(text: &str) -> Outcome {
    let tally = text.lines().find_map(|line| line.strip_prefix("TALLY ")).ok_or("the suite did not end")?;
    let numbers: Vec<usize> = tally.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[passed, failures, errors, skipped] = numbers.as_slice() else {
        return Err(format!("no tally in {tally:?}"));
    };
    let summary = format!("{passed} ok, {failures} failures, {errors} errors, {skipped} skipped");
    if passed >= LEAST_OK && failures + errors == 0 {
        return Ok(summary);
    }
    let missed = text.lines().filter(|line| line.ends_with("... FAIL") || line.ends_with("... ERROR"));
    let missed: Vec<_> = missed.collect();
    Err(format!("{summary}; {LEAST_OK} ok are wanted\n{}", missed.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_is_judged() {
        assert_eq!(
            judge("x ... ok\nTALLY 55 0 0 217\n").unwrap(),
            "55 ok, 0 failures, 0 errors, 217 skipped"
        );
        assert!(judge("TALLY 54 0 0 218\n").unwrap_err().contains("55 ok are wanted"));
        assert!(judge("a ... ok\nb ... FAIL\nTALLY 80 1 0 100\n").unwrap_err().ends_with("b ... FAIL"));
        assert!(judge("TALLY 80 0 1 100\n").is_err());
        assert!(judge("Segmentation fault").is_err());
    }
}

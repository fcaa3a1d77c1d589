//! rdma-core's own test-suite (Debian: python3-pyverbs, its tests in the documentation of rdma-core), on this
//! crate's provider and on rdma-core's own mlx5 provider.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::method::{MLX5, Method, PLUGIN};
use crate::process::Running;
use crate::{Case, Outcome};

const LIMIT: Duration = Duration::from_secs(300);
const PYTHON: &str = "/usr/bin/python3";
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The stock suite ends with a segmentation fault in this one, on any device that has no SRQ.
const EXCLUDED: &str = "test_mem_align_srq_excq_rc_traffic";

/// The expected result of the suite by a method.
struct Expectation {
    method: Method,
    name: &'static str,
    /// Tests that pass.
    least_ok: usize,
    /// The only tests that end with an error.
    errors: &'static [&'static str],
}

const EXPECTATIONS: [Expectation; 2] = [
    Expectation {
        method: PLUGIN,
        name: "rdma-core's test-suite",
        // What a device that has raw packets and nothing else can pass.
        least_ok: 55,
        errors: &[],
    },
    Expectation {
        method: MLX5,
        name: "rdma-core's test-suite with that of mlx5",
        least_ok: 47,
        // See docs/reference/clients.md.
        errors: &[
            // They create a queue pair for connections and are not skipped where there are none.
            "tests.test_mlx5_huge_page.ResourcesOnHugePageTest.test_obj_on_huge",
            "tests.test_mlx5_huge_page.ResourcesOnHugePageTest.test_prefer_obj_on_huge",
        ],
    },
];

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
print('ERRORS', *(test.id() for test, _ in result.errors))
print('TALLY', passed, len(result.failures), len(result.errors), len(result.skipped))
";

pub(crate) fn cases(report: &Path) -> Vec<Case> {
    let case = |expected: &'static Expectation| {
        let file = report.join(format!("pyverbs-{}.txt", expected.method.name));
        Case::new(format!("{} ({})", expected.name, expected.method.name), move |launcher| {
            let text = run_suite(launcher, expected)?;
            fs::write(&file, &text).map_err(|error| error.to_string())?;
            judge(&text, expected)
        })
    };
    EXPECTATIONS.iter().map(case).collect()
}

fn run_suite(launcher: &Path, expected: &Expectation) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let suite = unpack(folder.path())?;
    let mut command = expected.method.exec(launcher, "loopback");
    command.args([PYTHON, "-c", DRIVER]).arg(&suite).arg(EXCLUDED);
    command.args(["--dev", expected.method.device, "--port", "1", "--gid", "0"]);
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

fn judge(text: &str, expected: &Expectation) -> Outcome {
    let line = |name| text.lines().find_map(|line: &str| line.strip_prefix(name));
    let tally = line("TALLY ").ok_or("the suite did not end")?;
    let numbers: Vec<usize> = tally.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[passed, failures, errors, skipped] = numbers.as_slice() else {
        return Err(format!("no tally in {tally:?}"));
    };
    let summary = format!("{passed} ok, {failures} failures, {errors} errors, {skipped} skipped");
    let seen: BTreeSet<_> = line("ERRORS").unwrap_or_default().split_whitespace().collect();
    let known: BTreeSet<_> = expected.errors.iter().copied().collect();
    if passed >= expected.least_ok && failures == 0 && seen == known {
        return Ok(summary);
    }
    let mut missed: Vec<_> =
        text.lines().filter(|line| line.ends_with("... FAIL")).map(str::to_owned).collect();
    missed.extend(seen.difference(&known).map(|name| format!("{name} ... ERROR")));
    missed.extend(
        known.difference(&seen).map(|name| format!("{name}: no error any more, remove it from the list")),
    );
    Err(format!("{summary}; {} ok are wanted\n{}", expected.least_ok, missed.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_ERROR: Expectation = Expectation { method: PLUGIN, name: "", least_ok: 55, errors: &["a.b"] };

    #[test]
    fn a_tally_is_judged() {
        let expected = Expectation { errors: &[], ..ONE_ERROR };
        let judge = |text| judge(text, &expected);
        assert_eq!(
            judge("x ... ok\nERRORS\nTALLY 55 0 0 217\n").unwrap(),
            "55 ok, 0 failures, 0 errors, 217 skipped"
        );
        assert!(judge("TALLY 54 0 0 218\n").unwrap_err().contains("55 ok are wanted"));
        assert!(judge("a ... ok\nb ... FAIL\nTALLY 80 1 0 100\n").unwrap_err().ends_with("b ... FAIL"));
        assert!(judge("ERRORS a.b\nTALLY 80 0 1 100\n").unwrap_err().ends_with("a.b ... ERROR"));
        assert!(judge("Segmentation fault").is_err());
    }

    #[test]
    fn errors_are_those_of_the_list() {
        assert!(judge("ERRORS a.b\nTALLY 55 0 1 0\n", &ONE_ERROR).is_ok());
        assert!(judge("ERRORS a.c\nTALLY 55 0 1 0\n", &ONE_ERROR).unwrap_err().contains("a.c ... ERROR"));
        assert!(
            judge("ERRORS\nTALLY 55 0 0 0\n", &ONE_ERROR).unwrap_err().contains("a.b: no error any more")
        );
    }
}

//! `steerd test`: runs the tests of policies. One line a test on stdout, the failures with their places on
//! stderr; all policies are tested before the command ends.

mod junit;
mod more;
mod report;

use std::path::PathBuf;

use compiler::Job;
use device_model::DeviceModel;
use policy::{Diagnostics, Policy};
use program::Program;

use super::target::{COUNTED_ELSEWHERE, Target};
use crate::cli::{Format, PolicyArgs, TestArgs};
use crate::commands::Error;
use crate::commands::check::refuse_argument;
use crate::policy_file::{self, PolicyErrors};
use crate::policy_tests::{TestBench, needs_program};
use crate::settings::Traffic;
use crate::terminal::numbers::counted;
use crate::terminal::output::{self, Priority};
use report::{PolicyReport, TestLine};

/// A policy with its tests, and what they need.
struct TestedPolicy {
    /// The name in messages.
    name: String,
    policy: Policy,
    /// The directory of captures.
    folder: PathBuf,
    profile: DeviceModel,
    workers: usize,
    /// The program that the device would run, if a test needs it; `None` for a policy that carves queues.
    program: Option<Program>,
}

pub(crate) fn run(args: &TestArgs) -> Result<(), Error> {
    if args.prints_junit() && args.printed.format() == Format::Json {
        let message = "--junit - and JSON cannot both be printed";
        refuse_argument(clap::error::ErrorKind::ArgumentConflict, message);
    }
    let given: Vec<Option<PathBuf>> = match args.policies.is_empty() {
        true => vec![None],
        false => args.policies.iter().cloned().map(Some).collect(),
    };
    let mut reports = Vec::new();
    let mut broken = None;
    for policy in given {
        // With the settings alone it is the name of the policy as soon as they are read.
        let mut name = policy.as_ref().or(args.config.as_ref()).map(|path| path.display().to_string());
        let mut tests = Vec::new();
        let report = tested(args, policy, &mut name).and_then(|tested| report_of(args, &tested, &mut tests));
        reports.push(report.unwrap_or_else(|error| {
            let report = PolicyReport::broken(name.unwrap_or_default(), tests, error.to_string());
            broken.get_or_insert(error);
            report
        }));
    }
    if args.printed.format() == Format::Json {
        report::print_json(&reports)?;
    }
    match &args.junit {
        None => {}
        Some(_) if args.prints_junit() => output::print(&junit::text(&reports))?,
        Some(path) => std::fs::write(path, junit::text(&reports))
            .map_err(|source| Error::JUnit { path: path.clone(), source })?,
    }
    let failed: usize = reports.iter().map(PolicyReport::failed).sum();
    match (broken, failed) {
        (Some(error), _) => Err(error),
        (None, 0) => Ok(()),
        (None, failed) => Err(Error::Tests { failed: counted(failed as u64, "test", "tests") }),
    }
}

/// Reads a policy, and compiles it if a test needs its program; prints the diagnostics if that fails. Sets
/// the name of the policy as soon as it is known.
fn tested(
    args: &TestArgs,
    policy: Option<PathBuf>,
    name: &mut Option<String>,
) -> Result<TestedPolicy, Error> {
    let args = PolicyArgs {
        policy,
        variables: args.variables.clone(),
        config: args.config.clone(),
        workers: args.workers,
        model: args.model.clone(),
        printed: args.printed,
    };
    let Target { source, device, workers, .. } = Target::of(&args)?;
    *name = Some(source.to_string());
    let refused = |diagnostics: Diagnostics| {
        output::print_diagnostics(&diagnostics);
        Error::from(PolicyErrors::of(&source, &diagnostics))
    };
    let mut read = policy_file::load(&source).map_err(refused)?;
    let workers = workers.unwrap_or_else(|| policy_file::workers_named(&read.policy));
    let profile = device.profile;
    let program = match needs_program(&read.policy) && !read.policy.carves_queues() {
        true => {
            if source.traffic == Some(Traffic::Counters) {
                output::print_message(Priority::Warning, COUNTED_ELSEWHERE);
            }
            let weights = read.weights(source.traffic.as_ref(), None).map_err(Error::Traffic)?;
            let job = Job::new(&read.policy, &profile, workers).weighted(weights.as_ref());
            Some(job.compile().map_err(refused)?)
        }
        false => None,
    };
    let policy = read.policy;
    let (name, folder) = (source.to_string(), source.folder());
    Ok(TestedPolicy { name, policy, folder, profile, workers, program })
}

/// Runs the tests of a policy, and prints a line for each. `lines` gets their results if an error follows.
fn report_of(
    args: &TestArgs,
    tested: &TestedPolicy,
    lines: &mut Vec<TestLine>,
) -> Result<PolicyReport, Error> {
    let TestedPolicy { name, policy, folder, program, .. } = tested;
    let results = TestBench::of(policy, folder, program.as_ref()).run(|_| true);
    let mut failures = Diagnostics::default();
    for failure in results.iter().flat_map(|result| &result.failures) {
        failures.push(failure.clone());
    }
    let mut report = PolicyReport::of(name.clone(), results.into_iter().map(TestLine::of).collect());
    let print = |report: &PolicyReport| {
        if args.printed.format() == Format::Text {
            if !args.prints_junit() {
                output::print(&report.text())?;
            }
            output::print_diagnostics(&failures);
        }
        Ok::<_, Error>(())
    };
    match more::of(args, tested, report.failed()) {
        Ok(more) => report.more = more,
        Err(error) => {
            let printed = print(&report);
            *lines = report.tests;
            return printed.and(Err(error));
        }
    }
    print(&report)?;
    Ok(report)
}

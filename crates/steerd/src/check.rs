//! `steerd check`: what a device makes of a policy, rule by rule, and everything that is wrong with it.
//! Compiles only; a real device of the settings is asked for its limits, nothing is put on it.

use std::io::IsTerminal;

use policy::{Check, DeviceProfile, Diagnostic, Diagnostics, Placement};
use serde::Serialize;

use crate::cli::{CheckArgs, Format, PolicyArgs, Profile};
use crate::error::Error;
use crate::policy_file::{self, Compiled, error_count};
use crate::settings::{self, PolicySource, Request};
use crate::table::Grid;
use crate::{cores, output, plant};

#[derive(Serialize)]
struct Report<'r> {
    policy: String,
    profile: &'r str,
    workers: usize,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Check>,
    priorities: Option<u16>,
    diagnostics: &'r [Diagnostic],
    omitted_diagnostics: usize,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), Error> {
    let Target { source, profile, workers } = target(&args.policy)?;
    let compiled = policy_file::compile(&source, &profile, workers);
    match args.policy.format {
        Format::Json => report_json(&source, &profile, workers, &compiled)?,
        Format::Text => match &compiled {
            Ok(compiled) => report_text(&source, &profile, compiled)?,
            Err(diagnostics) => print_diagnostics(diagnostics),
        },
    }
    compiled.map(|_| ()).map_err(|diagnostics| policy_error(&source, &diagnostics))
}

/// Also `explain`'s first step: the program, or the diagnostics on stderr.
pub(crate) fn compile(args: &PolicyArgs) -> Result<Compiled, Error> {
    let Target { source, profile, workers } = target(args)?;
    policy_file::compile(&source, &profile, workers).map_err(|diagnostics| {
        print_diagnostics(&diagnostics);
        policy_error(&source, &diagnostics)
    })
}

pub(crate) fn policy_error(source: &PolicySource, diagnostics: &Diagnostics) -> Error {
    Error::Policy { file: source.to_string(), errors: error_count(diagnostics) }
}

/// With excerpts for a person, in plain lines for a program.
pub(crate) fn print_diagnostics(diagnostics: &Diagnostics) {
    if std::io::stderr().is_terminal() {
        for report in diagnostics.report() {
            output::complain(&format!("{report:?}"));
        }
        if diagnostics.omitted > 0 {
            output::complain(&format!("and {} more", diagnostics.omitted));
        }
    } else {
        output::complain(&diagnostics.to_string());
    }
}

/// What is compiled, and for which device.
struct Target {
    source: PolicySource,
    profile: DeviceProfile,
    /// `None`: as many as the policy names.
    workers: Option<usize>,
}

fn target(args: &PolicyArgs) -> Result<Target, Error> {
    let mut workers = args.workers.map(|workers| workers as usize);
    let wanted = args.profile.map(|Profile::Ideal| DeviceProfile::ideal());
    let Some(file) = &args.config else {
        let source = PolicySource::File(args.policy.clone().unwrap_or_default());
        return Ok(Target { source, profile: wanted.unwrap_or_else(DeviceProfile::ideal), workers });
    };
    let request = Request { file: Some(file.clone()), policy: args.policy.clone(), ..Request::default() };
    let loaded = settings::load(&request).map_err(Error::Settings)?;
    let settings = &loaded.settings;
    if workers.is_none() {
        let cores = cores::assign(&settings.workers.cores, settings.softnic.core, &cores::available());
        workers = Some(cores.map_err(Error::Cores)?.len());
    }
    let profile = wanted.map_or_else(|| plant::profile(settings), Ok)?;
    Ok(Target { source: loaded.policy, profile, workers })
}

fn report_json(
    source: &PolicySource,
    profile: &DeviceProfile,
    workers: Option<usize>,
    compiled: &Result<Compiled, Diagnostics>,
) -> Result<(), Error> {
    let ok = compiled.as_ref().ok();
    output::print_json(&Report {
        policy: source.to_string(),
        profile: &profile.name,
        workers: ok.map_or(workers.unwrap_or(0), |compiled| compiled.workers),
        ok: ok.is_some(),
        check: ok.map(|compiled| Check {
            warnings: Vec::new(),
            ..policy::check(&compiled.policy, &compiled.program)
        }),
        priorities: ok.map(|compiled| compiled.program.priorities_used),
        diagnostics: match compiled {
            Ok(compiled) => &compiled.warnings,
            Err(diagnostics) => &diagnostics.list,
        },
        omitted_diagnostics: compiled.as_ref().err().map_or(0, |diagnostics| diagnostics.omitted),
    })
}

fn report_text(source: &PolicySource, profile: &DeviceProfile, compiled: &Compiled) -> Result<(), Error> {
    let check = policy::check(&compiled.policy, &compiled.program);
    let mut grid = Grid::new(&["line", "rule", "action", "flows", "decided in"]);
    for rule in &check.rules {
        let placement = match &rule.placement {
            Placement::Hardware => "hardware".into(),
            Placement::Hybrid { reason } => format!("hybrid: {reason}"),
        };
        grid.row(vec![
            if rule.line > 0 { rule.line.to_string() } else { "-".into() },
            rule.name.clone(),
            rule.action.clone(),
            rule.flows.to_string(),
            placement,
        ]);
    }
    let mut out = grid.text();
    for warning in &compiled.warnings {
        out.push_str(&format!("{warning}\n"));
    }
    let program = &compiled.program;
    out.push_str(&format!(
        "\n{source}: ok on a device of profile {}: {} flows on {} priorities, {} queue pairs, {} workers\n",
        profile.name,
        program.flows.len(),
        program.priorities_used,
        program.queues.len(),
        compiled.workers,
    ));
    output::print(&out)
}

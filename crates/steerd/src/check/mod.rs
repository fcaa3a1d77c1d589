//! `steerd check`: what a device makes of a policy, rule by rule, everything that is wrong or suspicious in
//! it, and what it takes of the device. Compiles only; nothing is put on a device. `text` and `json` print what
//! is found here, and `--deny` decides by it.

mod findings;
mod json;
mod text;

use analysis::Analysis;
use compiler::{Decided, Report};
use policy::{Diagnostic, Diagnostics, Policy};

use crate::cli::{CheckArgs, Cli, Deny, Format};
use crate::error::Error;
use crate::paint::Page;
use crate::progress::Progress;
use crate::settings::PolicySource;
use crate::table::counted;
use crate::target::{self, Target};
use crate::{Answer, deeds, output, policy_file};

/// All that is known of a policy that can be read.
struct Checked {
    source: PolicySource,
    workers: usize,
    policy: Policy,
    report: Report,
    /// `None`: left out.
    analysis: Option<Analysis>,
    /// What the operator may not have meant: of the text, of the program and of the analysis.
    warnings: Vec<Diagnostic>,
    /// What the operator should know of the device that the settings name.
    device_warnings: Vec<String>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<Answer, Error> {
    if args.print_schema {
        return output::print_plain_json(&policy::schema()).map(|()| Answer::Yes);
    }
    if args.no_analysis && args.deny.contains(&Deny::Shadowed) {
        let kind = clap::error::ErrorKind::ArgumentConflict;
        let message = "--deny shadowed needs the analysis that --no-analysis leaves out";
        <Cli as clap::CommandFactory>::command().error(kind, message).exit();
    }
    let Target { source, device, workers } = Target::of(&args.policy)?;
    let profile = &device.profile;
    let format = args.policy.format;
    let (policy, warnings) = match policy_file::load(&source) {
        Ok(loaded) => loaded,
        Err(diagnostics) => {
            match format {
                Format::Json => json::unreadable(&source, &profile.name, &diagnostics)?,
                Format::Text if args.quiet => output::print_diagnostics(&errors_of(&diagnostics)),
                Format::Text => output::print_diagnostics(&diagnostics),
            }
            return Err(target::policy_error(&source, &diagnostics));
        }
    };
    let workers = workers.unwrap_or_else(|| policy_file::workers_named(&policy));
    let mut report = compiler::report(&policy, profile, workers, None);
    for (index, rule) in report.rules.iter_mut().enumerate() {
        rule.action = deeds::written(&policy, index);
    }
    // Quietly it is only done for what --deny names and it decides.
    let is_wanted = !args.quiet || args.deny.iter().any(|what| *what != Deny::Hybrid);
    let analysis = (is_wanted && !args.no_analysis).then(|| {
        let mut progress = Progress::new();
        analysis::analyse(&policy, &mut |at| progress.show(at))
    });
    let warnings = findings::warnings(&policy, &report, analysis.as_ref(), warnings);
    let device_warnings = report.program.as_ref().map(|program| device.warnings(program)).unwrap_or_default();
    let checked = Checked { source, workers, policy, report, analysis, warnings, device_warnings };
    let denied = checked.denied(&args.deny);
    match format {
        Format::Json => json::print(&checked, &denied)?,
        Format::Text => {
            let mut all = checked.report.problems.clone();
            if !args.quiet {
                all.extend(checked.warnings.iter().cloned());
            }
            output::print_diagnostics(&Diagnostics::from(all));
            if !args.quiet {
                checked
                    .device_warnings
                    .iter()
                    .for_each(|warning| output::complain(&format!("warning: {warning}")));
                output::print(&text::of(&checked, Page::stdout()))?;
            }
        }
    }
    if checked.report.program.is_none() {
        let found = format!("impossible on {}", checked.report.device);
        return Err(Error::Denied { file: checked.source.to_string(), found });
    }
    if !checked.report.problems.is_empty() {
        let found = lost_exceptions(&checked.report);
        return Err(Error::Denied { file: checked.source.to_string(), found });
    }
    if denied.is_empty() {
        return Ok(Answer::Yes);
    }
    Err(Error::Denied { file: checked.source.to_string(), found: denied.join(", ") })
}

/// Without the warnings. Those that were left out of the list are still counted.
fn errors_of(diagnostics: &Diagnostics) -> Diagnostics {
    let mut errors = diagnostics.clone();
    errors.list.retain(|one| one.severity == policy::Severity::Error);
    errors
}

/// What is wrong with a policy that compiles.
fn lost_exceptions(report: &Report) -> String {
    let rules = counted(report.lost_exceptions.len() as u64, "rule", "rules");
    format!("lost exceptions of {rules} on {}", report.device)
}

impl Checked {
    /// What was found of what is denied, in words.
    fn denied(&self, deny: &[Deny]) -> Vec<String> {
        let found = |what: &Deny| -> (usize, &str) {
            match what {
                Deny::Warnings => (self.warnings.len(), "warnings"),
                Deny::Hybrid => (self.hybrid(), "hybrid rules"),
                Deny::Shadowed => (self.dead(), "rules never reached, or not known to be"),
            }
        };
        let mut wanted = deny.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let found = wanted.iter().map(found).filter(|(count, _)| *count > 0);
        found.map(|(count, what)| format!("{what}: {count} (denied)")).collect()
    }

    fn hybrid(&self) -> usize {
        let is_hybrid = |decided: Decided| matches!(decided, Decided::Hybrid | Decided::PartlyHybrid);
        self.report.rules.iter().filter(|rule| is_hybrid(rule.decided)).count()
    }

    fn dead(&self) -> usize {
        let rules = self.analysis.iter().flat_map(|analysis| &analysis.rules);
        rules.filter(|rule| rule.is_dead() || findings::is_open(rule)).count()
    }

    fn rule_name(&self, rule: program::RuleId) -> &str {
        self.policy.rules.get(rule.index()).map_or(program::DEFAULT_RULE, |rule| rule.name.as_str())
    }
}

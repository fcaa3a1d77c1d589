//! `steerd check`: how a device would run a policy, rule by rule, with all errors, warnings and the capacity
//! that it needs; for a network interface also who decides them (`interface`). Nothing is put on a device.
//! `text` and `json` print the result.

mod as_user;
mod carving;
mod interface;
mod json;
mod nic_drops;
mod start;
mod text;

use std::path::Path;

use analysis::Analysis;
use compiler::{Job, Weights};
use policy::{Diagnostic, Diagnostics, Policy};
use program::{Program, SinkId};
use reports::{Decisions, PolicyFindings, TrafficSample, TrafficShares};
use serde::Serialize;

use self::interface::OnInterface;
use self::nic_drops::DropsOfPort;
use super::target::{self, Target};
use crate::cli::{ApiArgs, CheckArgs, Cli, Deny, Format, NicFilterUse, TrafficArg};
use crate::commands::{Error, client};
use crate::daemon::preflight::{self, Findings, Installation};
use crate::policy_file::{Counters, PolicyErrors};
use crate::policy_tests::TestFindings;
use crate::service_unit::ServiceUnit;
use crate::settings::{PolicySource, Settings, StateSettings, Traffic};
use crate::terminal::numbers::counted;
use crate::terminal::output::{self, OutputError, Priority, Progress};
use crate::terminal::style::Layout;
use crate::traffic;
use crate::{daemon, policy_file};
pub(super) use text::{decided_words, reasons_of};

/// The result for a policy without syntax errors.
struct Checked {
    source: PolicySource,
    /// The SHA-256 of the text, the files and the variables.
    sha256: String,
    workers: usize,
    policy: Policy,
    findings: PolicyFindings,
    tests: TestFindings,
    /// Warnings about the device of the settings.
    device_warnings: Vec<String>,
    /// The findings about a start with the settings; `None`: there are none, or they are for another host.
    start: Option<Findings>,
    /// Where the packets of a capture are decided; `None`: none is given, or there is no program.
    traffic: Option<TrafficShares>,
    /// The share of the packets that a daemon has counted; `None`: none is asked.
    counted: Option<CountedShare>,
    /// `None`: the device is no network interface, or there is no program.
    interface: Option<OnInterface>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), Error> {
    if args.print_schema {
        return Ok(output::print_plain_json(&policy::schema())?);
    }
    refuse_conflict(args);
    let Some(user) = &args.user else { return check(args) };
    as_user::with_rights_of(user, || check(args)).unwrap_or_else(|why| {
        refuse_argument(clap::error::ErrorKind::ValueValidation, &format!("--user: {why}"))
    })
}

fn check(args: &CheckArgs) -> Result<(), Error> {
    let mut start = None;
    let of_check = match answered(args, &mut start) {
        Ok(verdict) => verdict.err(),
        Err(unanswered) => {
            unanswered.print(args, start.as_ref())?;
            Some(unanswered.error)
        }
    };
    start::ended(start.unwrap_or_default(), of_check)
}

/// A check that ended before its answer.
#[derive(Debug)]
struct Unanswered {
    error: Error,
    /// The policy, and the device that it was to be compiled for, as far as they are known.
    policy: String,
    profile: String,
    /// The problems of the policy.
    diagnostics: Diagnostics,
}

impl From<Error> for Box<Unanswered> {
    fn from(error: Error) -> Self {
        let diagnostics = Diagnostics::default();
        Self::new(Unanswered { error, policy: String::new(), profile: String::new(), diagnostics })
    }
}

impl Unanswered {
    /// Prints what was found, but for the error and for the problems of the settings, which are printed with
    /// the error as text.
    fn print(&self, args: &CheckArgs, start: Option<&Findings>) -> Result<(), OutputError> {
        if args.policy.printed.format() == Format::Json {
            return json::unanswered(self, start);
        }
        match args.quiet {
            true => output::print_diagnostics(&errors_of(&self.diagnostics)),
            false => {
                output::print_diagnostics(&self.diagnostics);
                start.into_iter().for_each(start::print_notes);
            }
        }
        Ok(())
    }
}

/// The verdict, once the answer is printed.
type Verdict = Result<(), Error>;

/// Finds what a start with the settings would report, and checks the policy.
fn answered(args: &CheckArgs, start: &mut Option<Findings>) -> Result<Verdict, Box<Unanswered>> {
    let mut loaded = target::settings_of(&args.policy, args.interface.as_deref(), args.nic_filters)?;
    if let Some(loaded) = loaded.as_mut().filter(|_| args.user.is_some()) {
        take_folder_of_unit(&mut loaded.settings.state);
    }
    let of_settings = loaded.as_ref().map(|loaded| loaded.policy.clone());
    let here = loaded.as_ref().filter(|_| is_start(args));
    *start = here.map(|loaded| preflight::of_settings(&loaded.settings, args.filter_model.as_ref()));
    let target = Target::with(&args.policy, loaded, args.offline).map_err(|error| {
        let mut unanswered = Box::<Unanswered>::from(error);
        // The problems of its text are reported, too.
        if let Some(source) = of_settings.filter(|_| start.is_some()) {
            unanswered.policy = source.to_string();
            unanswered.diagnostics = policy_file::load(&source).err().unwrap_or_default();
        }
        unanswered
    })?;
    let (policy, profile) = (target.source.to_string(), target.device.profile.name.clone());
    check_policy(args, target, start)
        .map_err(|unanswered| Box::new(Unanswered { policy, profile, ..*unanswered }))
}

/// Puts the folder of the installed unit in place of that of the service, if it is not known. systemd makes a
/// folder that is not there at the first start.
fn take_folder_of_unit(state: &mut StateSettings) {
    if state.is_of_service() && state.folder().is_none() {
        let folder = ServiceUnit::installed().and_then(|unit| unit.state_folder());
        let folder = folder.filter(|folder| folder.exists());
        state.folder = folder.unwrap_or_else(|| std::mem::take(&mut state.folder));
    }
}

/// Checks the policy for its device, adds the findings about a start with it, and prints the answer.
fn check_policy(
    args: &CheckArgs,
    target: Target,
    start: &mut Option<Findings>,
) -> Result<Verdict, Box<Unanswered>> {
    let Target { mut source, device, workers, settings } = target;
    source.traffic = args.traffic.as_ref().map(traffic_of).or(source.traffic);
    let counters = counters(args)?;
    let profile = &device.profile;
    let mut read = read(args, &source)?;
    if read.policy.carves_queues() {
        return match start {
            Some(_) => Err(refused_queues(&source, &read.policy)),
            None => Ok(carving::run(args, &source, settings.as_deref(), &read)),
        };
    }
    if args.filter_model.is_some() && !uses_nic_filters(settings.as_deref()) {
        return Err(Error::Daemon(daemon::Error::NoQueues).into());
    }
    let of_traffic = if args.traffic.is_some() { Error::Capture } else { Error::Traffic };
    let weights = read.weights(source.traffic.as_ref(), counters.as_ref()).map_err(of_traffic)?;
    let policy_file::Read { policy, warnings, inputs } = read;
    let workers = workers.unwrap_or_else(|| policy_file::workers_named(&policy));
    let job = Job::new(&policy, profile, workers).weighted(weights.as_ref());
    let findings = PolicyFindings::of(&job, warnings, !args.quiet);
    let tests = TestFindings::of(&source, &policy, findings.report.program.as_ref());
    let analysis = analysed(args, &policy);
    let findings = findings.analysed(&policy, analysis);
    let report = &findings.report;
    let device_warnings = report.program.as_ref().map(|program| device.warnings(program)).unwrap_or_default();
    let packets = || weights.iter().flat_map(compiler::Weights::packets).sum();
    let traffic = capture(args).zip(report.program.as_ref());
    let traffic = traffic.map(|(path, program)| shares_of_traffic(path, packets(), program)).transpose()?;
    let interface = settings.as_deref().zip(report.program.as_ref());
    let interface = interface
        .map(|(settings, program)| {
            interface::of(settings, program, capture(args), args.filter_model.as_ref())
        })
        .transpose()?
        .flatten();
    if let (Some(start), Some(settings), Some(program)) = (start.as_mut(), &settings, &report.program) {
        let half = profile.with_half_of_the_priorities();
        let half = || Job::new(&policy, &half, workers).weighted(weights.as_ref()).compile().ok();
        let (inputs, set_sizes) = (&inputs, &*policy.set_sizes);
        let installation =
            Installation { settings, profile, program, inputs, set_sizes, workers, half: &half };
        start.extend(preflight::of_program(&installation));
    }
    let counted = counters.map(|counters| CountedShare::of(&job, report.program.as_ref(), &counters));
    let checked = Checked {
        source,
        sha256: inputs.sha256.clone(),
        workers,
        policy,
        findings,
        tests,
        device_warnings,
        start: start.take(),
        traffic,
        counted,
        interface,
    };
    let answered = checked.answer(args);
    *start = checked.start;
    Ok(answered)
}

/// The packets that an argument names.
fn traffic_of(arg: &TrafficArg) -> Traffic {
    match arg {
        TrafficArg::Capture(path) => Traffic::Capture(path.clone()),
        TrafficArg::Running => Traffic::Counters,
    }
}

/// Why a policy that carves queues is refused where a start has workers.
fn refused_queues(source: &PolicySource, policy: &Policy) -> Box<Unanswered> {
    let diagnostics = Diagnostics::from(policy_file::without_workers(policy).into_iter().collect::<Vec<_>>());
    let error = Error::Policy(PolicyErrors::of(source, &diagnostics));
    Box::new(Unanswered { diagnostics, ..*Box::<Unanswered>::from(error) })
}

/// Reads the policy.
fn read(args: &CheckArgs, source: &PolicySource) -> Result<policy_file::Read, Box<Unanswered>> {
    policy_file::load(source).map_err(|diagnostics| {
        let error = match is_start(args) && diagnostics.is_unreadable() {
            true => Error::Daemon(daemon::Error::PolicyUnreadable { file: source.to_string() }),
            false => PolicyErrors::of(source, &diagnostics).into(),
        };
        Box::new(Unanswered { diagnostics, ..*Box::<Unanswered>::from(error) })
    })
}

/// The analysis of the rules. With --quiet it runs only if --deny needs it.
fn analysed(args: &CheckArgs, policy: &Policy) -> Option<Analysis> {
    let is_wanted =
        !args.quiet || args.deny.iter().any(|what| !matches!(what, Deny::Hybrid | Deny::HybridShare(_)));
    (is_wanted && !args.no_analysis).then(|| {
        let mut progress = Progress::new();
        analysis::analyse(policy, &mut |at| progress.show(at))
    })
}

/// Whether a port uses the filters of its NIC for drop rules.
fn uses_nic_filters(settings: Option<&Settings>) -> bool {
    let ports = settings.map(Settings::xdp_ports).unwrap_or_default();
    ports.iter().any(|port| port.nic_filters == NicFilterUse::Drop)
}

/// Whether the answer is about a start with the settings on this host.
fn is_start(args: &CheckArgs) -> bool {
    args.policy.config.is_some() && args.policy.model.is_none() && !args.offline
}

/// Ends the process if arguments contradict each other.
fn refuse_conflict(args: &CheckArgs) {
    if args.no_analysis && args.deny.contains(&Deny::Shadowed) {
        let message = "--deny shadowed needs the analysis that --no-analysis skips";
        refuse_argument(clap::error::ErrorKind::ArgumentConflict, message);
    }
}

/// Ends the process because of an argument.
pub(crate) fn refuse_argument(kind: clap::error::ErrorKind, message: &str) -> ! {
    <Cli as clap::CommandFactory>::command().error(kind, message).exit()
}

/// The capture that --traffic names.
fn capture(args: &CheckArgs) -> Option<&Path> {
    match &args.traffic {
        Some(TrafficArg::Capture(path)) => Some(path),
        Some(TrafficArg::Running) | None => None,
    }
}

/// The counters of the daemon that --traffic names.
fn counters(args: &CheckArgs) -> Result<Option<Counters>, Error> {
    if args.traffic != Some(TrafficArg::Running) {
        return Ok(None);
    }
    let (config, api_socket) = (args.policy.config.clone(), args.api_socket.clone());
    let client = client::connect(&ApiArgs { config, api_socket })?;
    Ok(Some(Counters::of_top(client.get("/v1/top")?)))
}

/// Where the packets that the rules of a daemon have counted would be decided.
#[derive(Clone, Copy, Debug, Serialize)]
struct CountedShare {
    /// The packets of rules that the policy has.
    packets: u64,
    /// The rules of the policy for which the daemon has no counter, the default among them.
    rules_without_counter: usize,
    /// Estimated: the packets of each rule are taken to be those that it matches, equally many of each kind.
    /// `None`: no packet was counted, or there is no program.
    in_hardware_percent: Option<f64>,
}

impl CountedShare {
    fn of(job: &Job<'_>, program: Option<&Program>, counters: &Counters) -> Self {
        let by_rule = counters.by_rule(job.policy);
        let packets = by_rule.iter().flatten().fold(0u64, |sum, packets| sum.saturating_add(*packets));
        let weights = Weights::new(by_rule.iter().map(|packets| packets.unwrap_or(0)).collect());
        let program = program.filter(|_| packets > 0);
        Self {
            packets,
            rules_without_counter: by_rule.iter().filter(|packets| packets.is_none()).count(),
            in_hardware_percent: program
                .and_then(|program| reports::hardware_percent(job.policy, program, &weights)),
        }
    }
}

/// Where the packets of a capture, so many in all, are decided.
fn shares_of_traffic(path: &Path, packets: u64, program: &Program) -> Result<TrafficShares, Error> {
    let mut shares = TrafficShares::new(program, packets);
    let (mut decisions, mut sample) = (Decisions::new(program), TrafficSample::of(packets));
    traffic::for_each_key(path, &mut |key, packet| {
        if sample.takes() {
            shares.add(decisions.of(key), packet.wire_bytes);
        }
    })?;
    Ok(shares)
}

/// The errors alone; omitted diagnostics are still counted.
fn errors_of(diagnostics: &Diagnostics) -> Diagnostics {
    let mut errors = diagnostics.clone();
    errors.list.retain(|one| one.severity == policy::Severity::Error);
    errors
}

impl Checked {
    /// Prints the answer; the error is the verdict.
    fn answer(&self, args: &CheckArgs) -> Verdict {
        let denied = self.denied(&args.deny);
        match args.policy.printed.format() {
            Format::Json => json::print(self, &denied)?,
            Format::Text => self.print(args.quiet)?,
        }
        self.verdict(&denied)
    }

    fn print(&self, quiet: bool) -> Result<(), OutputError> {
        let mut all: Vec<Diagnostic> = self.problems().cloned().collect();
        if !quiet {
            all.extend(self.findings.warnings.iter().cloned());
        }
        output::print_diagnostics(&Diagnostics::from(all));
        for error in self.interface_errors() {
            output::print_error(&format!("error: {error}"));
        }
        if quiet {
            return Ok(());
        }
        for warning in &self.device_warnings {
            output::print_message(Priority::Warning, &format!("warning: {warning}"));
        }
        self.start.iter().for_each(start::print_notes);
        output::print(&text::of(self, Layout::stdout()))
    }

    /// An error if the device cannot run the policy, or if something is denied.
    fn verdict(&self, denied: &[String]) -> Verdict {
        let file = self.source.to_string();
        match &self.findings.report.program {
            None => Err(Error::Impossible {
                file,
                found: format!("impossible on {}", self.findings.report.device),
            }),
            Some(_) if !self.is_installable() => Err(Error::Impossible { file, found: self.refusal() }),
            Some(_) if denied.is_empty() => Ok(()),
            Some(_) => Err(Error::Denied { file, found: denied.join(", ") }),
        }
    }

    /// Why the policy is refused, with places.
    fn problems(&self) -> impl Iterator<Item = &Diagnostic> {
        self.findings.problems().chain(&self.tests.requirement).chain(self.tests.failures())
    }

    /// Why the interfaces of the ports cannot be used.
    fn interface_errors(&self) -> impl Iterator<Item = String> + '_ {
        let claims = self.interface.iter().filter_map(|interface| interface.claims.as_ref().err());
        let filters = self.filter_problems().map(str::to_owned);
        self.unserved_queues().iter().cloned().chain(filters).chain(claims.map(ToString::to_string))
    }

    /// The queues of network interfaces without a socket.
    fn unserved_queues(&self) -> &[String] {
        self.interface.as_ref().map(|interface| &*interface.unserved_queues).unwrap_or_default()
    }

    /// Why NICs have no filters for drop rules, unless that is among the findings about the start.
    fn filter_problems(&self) -> impl Iterator<Item = &str> {
        let interface = self.interface.iter().filter(|_| self.start.is_none());
        let ports = interface.flat_map(|interface| &interface.nic_drops);
        ports.filter_map(DropsOfPort::problem)
    }

    /// Whether it compiles, loses no exceptions and no protected packets, rules at run time have room,
    /// each queue of an interface has a socket, and each NIC has the filters that it is to have.
    fn is_installable(&self) -> bool {
        self.findings.report.program.is_some()
            && self.problems().next().is_none()
            && self.interface_errors().next().is_none()
    }

    /// Whether the policy can be installed and a start with the settings would succeed.
    fn is_ok(&self) -> bool {
        self.is_installable() && self.start.as_ref().is_none_or(|start| start.errors.is_empty())
    }

    /// The number of all warnings.
    fn warning_count(&self) -> usize {
        let of_start = self.start.as_ref().map_or(0, |start| start.warnings.len());
        self.findings.warnings.len() + self.device_warnings.len() + of_start
    }

    /// Why a policy that compiles is refused, in short.
    fn refusal(&self) -> String {
        let mut found = Vec::new();
        if !self.findings.lost.errors.is_empty() {
            let rules = counted(self.findings.lost.errors.len() as u64, "rule", "rules");
            let known = if self.findings.lost.found.is_empty() {
                "lost exceptions not decided"
            } else {
                "lost exceptions"
            };
            found.push(format!("{known} of {rules}"));
        }
        if !self.findings.protection.errors.is_empty() {
            found.push("protected packets may miss the host".to_owned());
        }
        if let Some(tests) = self.tests.tests.as_ref().filter(|tests| tests.failed > 0) {
            found.push(tests.to_string());
        }
        if !self.findings.room_errors.is_empty() {
            found.push("no room for the rules at run time".to_owned());
        }
        if self.tests.requirement.is_some() {
            found.push("no tests".to_owned());
        }
        if !self.unserved_queues().is_empty() {
            found.push("receive queues without a socket".to_owned());
        }
        if self.filter_problems().next().is_some() {
            found.push("no filters of the NIC that drop".to_owned());
        }
        if self.interface.as_ref().is_some_and(|interface| interface.claims.is_err()) {
            found.push("more claims than the XDP program takes".to_owned());
        }
        format!("{} on {}", found.join(", "), self.findings.report.device)
    }

    /// The findings that --deny names.
    fn denied(&self, deny: &[Deny]) -> Vec<String> {
        let count = |count: usize, what: &str| (count > 0).then(|| format!("{what}: {count} (denied)"));
        let found = |what: &Deny| match what {
            Deny::Warnings => count(self.warning_count(), "warnings"),
            Deny::Hybrid => count(self.findings.hybrid(), "hybrid rules"),
            Deny::HybridShare(most) => self.excess_hybrid(f64::from(*most) / 100.0),
            Deny::Shadowed => count(self.findings.dead(), "rules never reached, or not decided"),
        };
        let mut wanted = deny.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.iter().filter_map(found).collect()
    }

    /// The finding that workers decide more packets than this percentage: of the capture, or of those that a
    /// daemon has counted, or else, also if it has counted none, of those drawn from the rules.
    fn excess_hybrid(&self, most: f64) -> Option<String> {
        let in_hardware = self.counted.as_ref().and_then(|counted| counted.in_hardware_percent);
        let percent = match (&self.traffic, in_hardware) {
            (Some(traffic), _) => traffic.all.hybrid_percent()?,
            (None, Some(percent)) => 100.0 - percent,
            (None, None) => self.findings.report.shares.as_ref()?.all.hybrid_percent()?,
        };
        (percent > most)
            .then(|| format!("packets that workers decide: {percent:.1}%, {most}% allowed (denied)"))
    }

    /// The names of the rules whose packets a sink gets.
    fn rules_of_sink<'p>(&self, program: &'p Program, sink: SinkId) -> impl Iterator<Item = &'p str> {
        let rules = program.rules.iter().filter(move |rule| rule.sinks.contains(&sink));
        rules.map(|rule| rule.name.as_str())
    }

    fn rule_name(&self, rule: program::RuleId) -> &str {
        self.policy.rules.get(rule.index()).map_or(program::DEFAULT_RULE, |rule| rule.name.as_str())
    }
}

//! One change of the policy in force, on a thread of its own: read, compiled, checked, installed, recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{FlowChanges, PlanSummary};
use device_model::DeviceModel;
use policy::policy::SetSize;
use policy::{Diagnostic, Diagnostics, Place, Policy, Severity, Source};

use super::{Done, Origin, Parts, Trial};
use crate::api::model::{ChangedFlows, PlanReport, Verdict};
use crate::api::request::ReloadBody;
use crate::daemon::board::PolicyInForce;
use crate::daemon::dataplane::{Cause, LATE_PACKET_GRACE};
use crate::daemon::history::PastPolicy;
use crate::daemon::observer::{Observer, unix_seconds};
use crate::daemon::rules::{DeviceChoice, FormFacts, Rules, TrialStage};
use crate::daemon::{Error, notify};
use crate::message::chain;
use crate::policy_file::{self, Compiled, Counters, PolicyChange, Read, Running};
use crate::policy_tests::RequiredTests;
use crate::settings::Traffic;

/// A change to make.
pub(super) struct Work {
    pub(super) parts: Parts,
    pub(super) origin: Origin,
    pub(super) by: String,
    /// The policy in force is on trial.
    pub(super) is_on_trial: bool,
}

/// The result of a change.
enum Outcome {
    Installed { flows: FlowChanges, trial: Option<Box<Trial>> },
    DryRun(Box<PlanReport>),
}

impl Work {
    pub(super) fn run(self) -> Done {
        let begun = Instant::now();
        let observer = &self.parts.observer;
        let source = observer.board.read().policy.source.to_string();
        let source = match &self.origin {
            Origin::File(_) | Origin::Changed(_) => source,
            Origin::Past(policy) => format!("{source} as policy {} of the history", policy.number),
        };
        let is_dry_run = matches!(self.origin, Origin::File(ReloadBody { dry_run: true, .. }));
        let not_followed = match &self.origin {
            // Before the policy, which may name a worker that is added.
            Origin::File(_) if !is_dry_run => self.parts.worker_settings.follow(&self.parts),
            _ => Vec::new(),
        };
        match self.change(&source) {
            Ok(Accepted { outcome: Outcome::DryRun(plan), warnings, .. }) => {
                let plan = Some(*plan);
                let verdict =
                    Verdict { dry_run: true, plan, ..verdict(observer, begun, None, warnings.into()) };
                notify::ready("the policy in force stays: the reload was only tried");
                Done { verdict, trial: None, ends_trial: false }
            }
            Ok(Accepted { outcome: Outcome::Installed { flows, trial }, mut warnings, before }) => {
                warnings.extend(not_followed.into_iter().map(not_of_settings));
                observer.board.reload_succeeded();
                let FlowChanges { installed, removed, kept } = flows;
                let flows = ChangedFlows { installed, removed, kept };
                let milliseconds = begun.elapsed().as_millis();
                // Before it is reported: what the comparison needs is then free again.
                let difference = self.record(milliseconds, flows, trial.is_some(), &before);
                tracing::info!("reload: {source} is in force after {milliseconds} ms ({flows})");
                notify::ready(&format!("reloaded {source}"));
                let confirm_seconds = trial.as_ref().map(|trial| trial.time.as_secs_f64());
                let verdict = Verdict {
                    flows: Some(flows),
                    difference: Some(difference),
                    confirm_seconds,
                    ..verdict(observer, begun, None, warnings.into())
                };
                Done { verdict, trial: trial.map(|trial| *trial), ends_trial: true }
            }
            Err(refused) if refused.is_stopping || is_dry_run => {
                let verdict = verdict(observer, begun, Some(refused.why), refused.diagnostics);
                notify::ready("the policy in force stays");
                Done { verdict: Verdict { dry_run: is_dry_run, ..verdict }, trial: None, ends_trial: false }
            }
            Err(mut refused) => {
                let warnings = not_followed.into_iter().map(not_of_settings);
                warnings.for_each(|warning| refused.diagnostics.push(warning));
                Done { verdict: failed(observer, refused, begun), trial: None, ends_trial: false }
            }
        }
    }

    fn change(&self, source: &str) -> Result<Accepted, Refused> {
        let Parts { observer, rules, history, .. } = &self.parts;
        let options = match &self.origin {
            Origin::File(options) => *options,
            Origin::Changed(_) => ReloadBody::default(),
            // Who goes back wants the sets as they were.
            Origin::Past(_) => ReloadBody { force: true, ..ReloadBody::default() },
        };
        let read = self.read(&observer.board.read().policy, source)?;
        let tests = self.test(&observer.board.read().policy, &read, source)?;
        let facts = rules.facts(&read.policy, false);
        // Held until the policy is in force: nobody changes rules at run time meanwhile.
        let mut locked = Some(rules.lock());
        let before = Arc::clone(&observer.board.read().policy);
        if !options.force
            && let Some(why) = changed_too_much(&before.set_sizes, &read.policy.set_sizes)
        {
            let why = format!("{why} (hint: if that is right, `steerd reload --force`)");
            return Err(Refused { diagnostics: read.warnings.into(), ..Refused::because(why) });
        }
        if options.confirm_seconds.is_some()
            && history.back(0).is_none_or(|before| before.inputs.text.is_none())
        {
            let why = "the policy in force could not come back, as its text is too long to be kept (hint: reload \
                       without --confirm)";
            return Err(Refused { diagnostics: read.warnings.into(), ..Refused::because(why.to_owned()) });
        }
        let choose = |locked: &Rules| locked.choose(&read.policy, &before.program, facts.as_ref());
        let mut choice = locked.as_deref().map(choose).unwrap_or_default();
        if options.dry_run {
            // Nothing is changed, so nobody has to wait.
            locked = None;
        }
        let mut read = Some(read);
        let (outcome, mut warnings) = loop {
            // Kept for another attempt if there can be one.
            let is_last = choice.rules().is_empty();
            let Some(own) = (if is_last { read.take() } else { read.clone() }) else {
                return Err(Refused::because(format!("{source} is refused")));
            };
            match self.attempt(&before, source, own, &choice, tests.as_ref(), options) {
                Ok(done) => break done,
                Err(refused) => self.reduce(&mut choice, source, refused)?,
            }
        };
        let stage = match &self.origin {
            Origin::Past(_) if self.is_on_trial => TrialStage::Ends,
            Origin::File(_) if options.confirm_seconds.is_some() => TrialStage::Begins,
            Origin::File(_) | Origin::Changed(_) | Origin::Past(_) => TrialStage::None,
        };
        let outcome = match outcome {
            Attempted::DryRun(report) => Outcome::DryRun(report),
            Attempted::Installed { mut flows, is_half } => {
                if let Some(mut locked) = locked {
                    locked.note_open(&choice);
                    rules.follow_policy(&mut locked, &choice.left_out, &before.program, stage);
                }
                if is_half {
                    match self.with_all_priorities(source, facts.as_ref()) {
                        Ok(second) => flows = flows.then(second),
                        Err(why) => warnings.push(of_half(source, &why)),
                    }
                }
                if let Some(facts) = facts {
                    let in_force = Arc::clone(&observer.board.read().policy);
                    rules.lock().set_protection(facts.into_protection(), &in_force);
                }
                let trial = options.confirm_seconds.and_then(|seconds| {
                    let time = Duration::try_from_secs_f64(seconds).ok()?;
                    Some(Box::new(Trial {
                        ends: Instant::now() + time,
                        time,
                        before: history.back(0)?,
                        is_over: false,
                    }))
                });
                Outcome::Installed { flows, trial }
            }
        };
        policy_file::log(&warnings, 0);
        Ok(Accepted { outcome, warnings, before })
    }

    /// Reads the policy.
    fn read(&self, before: &PolicyInForce, source: &str) -> Result<Read, Refused> {
        let read = match &self.origin {
            Origin::File(_) => policy_file::load(&before.source),
            Origin::Changed(changed) => changed.read.clone(),
            Origin::Past(policy) => policy_file::load_inputs(&policy.inputs).ok_or_else(|| {
                Refused::because(format!("the text of policy {} of the history is not kept", policy.number))
            })?,
        };
        read.map_err(|diagnostics| {
            log_refused(&diagnostics);
            Refused::by(diagnostics, source)
        })
    }

    /// Runs the tests of a policy of the file, if the settings require them; returns those that are to run on
    /// the program. A policy that comes back has been in force, and must be able to come back.
    fn test(
        &self,
        before: &PolicyInForce,
        read: &Read,
        source: &str,
    ) -> Result<Option<RequiredTests>, Refused> {
        if matches!(self.origin, Origin::Past(_)) {
            return Ok(None);
        }
        RequiredTests::of(&before.source, read).map(Some).map_err(|diagnostics| {
            log_refused(&diagnostics);
            Refused::by(diagnostics, source)
        })
    }

    /// Leaves rules at run time out after a policy was refused with them. A policy that comes back has
    /// precedence over all of them; else an error of the device, which may be transient, is no reason to
    /// lose rules.
    ///
    /// # Errors
    /// No rule can be left out: the policy is refused.
    fn reduce(&self, choice: &mut DeviceChoice, source: &str, refused: Refused) -> Result<(), Refused> {
        let may_lose = matches!(self.origin, Origin::Past(_)) || refused.is_by_analysis;
        if !refused.is_stopping && choice.reduce(&refused.diagnostics, may_lose) {
            let why = &refused.why;
            tracing::warn!("{source} is tried again with fewer rules at run time in the device: {why}");
            return Ok(());
        }
        log_refused(&refused.diagnostics);
        Err(refused)
    }

    /// Installs the policy with these rules at run time in the device, or nothing.
    fn attempt(
        &self,
        before: &PolicyInForce,
        source: &str,
        read: Read,
        choice: &DeviceChoice,
        tests: Option<&RequiredTests>,
        options: ReloadBody,
    ) -> Result<(Attempted, Vec<Diagnostic>), Refused> {
        let Parts { observer, commands, .. } = &self.parts;
        let profile = observer.opened.profile(observer.worker_count());
        let compiled = self.compile(before, source, read, choice, &profile)?;
        let tested = tests.map_or(Ok(()), |tests| tests.finish(Some(&compiled.program)));
        tested.map_err(|diagnostics| Refused::by(diagnostics, source))?;
        let mut warnings = compiled.warnings.clone();
        let inputs = Arc::clone(&compiled.inputs);
        let half = || {
            let read = policy_file::load_inputs(&inputs)?.map_err(|found| Refused::by(found, source));
            let half = profile.with_half_of_the_priorities();
            Some(read.and_then(|read| self.compile(before, source, read, choice, &half)))
        };
        if options.dry_run {
            let change = difference(before, &compiled);
            let summary = match commands.preview(Arc::clone(&compiled.program)) {
                Err(error) if error.is_for_room() => match half() {
                    Some(Ok(half)) => commands.preview(half.program),
                    _ => Err(error),
                },
                summary => summary,
            };
            let summary = summary.map_err(|error| refused_by_device(&error, &warnings))?;
            let report = report(observer, summary, change.as_ref(), before);
            return Ok((Attempted::DryRun(Box::new(report)), warnings));
        }
        let is_on_trial = options.confirm_seconds.is_some();
        if is_on_trial && let Err(why) = self.parts.history.start_trial(&inputs) {
            warnings.push(not_saved("a restart would put the policy on trial in force for good", &why));
        }
        let (flows, is_half) = match commands.install(compiled, Cause::Policy) {
            Err(error) if error.is_for_room() => match half() {
                Some(Ok(half)) => {
                    tracing::warn!("reload: {}; {source} gets half of the priorities first", chain(&error));
                    (commands.install(half, Cause::Policy), true)
                }
                _ => (Err(error), false),
            },
            installed => (installed, false),
        };
        let flows = flows.map_err(|error| {
            // What ends the daemon may be due to the policy.
            if is_on_trial && !matches!(error, Error::DataplaneDied | Error::Stopping) {
                self.parts.history.drop_trial();
            }
            refused_by_device(&error, &warnings)
        })?;
        Ok((Attempted::Installed { flows, is_half }, warnings))
    }

    /// Installs a policy again that is in force with half of the device's priorities, which find free ones
    /// beside any other. Rules at run time can be changed until it begins. Returns the flows that it touches.
    ///
    /// # Errors
    /// Why the policy stays as it is.
    fn with_all_priorities(&self, source: &str, facts: Option<&FormFacts>) -> Result<FlowChanges, String> {
        let Parts { observer, commands, rules, .. } = &self.parts;
        // Packets on their way may still come by flows of the policy before.
        std::thread::sleep(LATE_PACKET_GRACE);
        let mut locked = rules.lock();
        let now = Arc::clone(&observer.board.read().policy);
        let profile = observer.opened.profile(observer.worker_count());
        let read = policy_file::load_inputs(&now.inputs).and_then(Result::ok);
        let read = read.ok_or_else(|| "its text cannot be read again".to_owned())?;
        let choice = locked.choose(&read.policy, &now.program, facts);
        let whole = self.compile(&now, source, read, &choice, &profile).map_err(|refused| refused.why)?;
        let flows = commands.install(whole, Cause::Priorities).map_err(|error| chain(&error))?;
        locked.note_open(&choice);
        rules.follow_policy(&mut locked, &choice.left_out, &now.program, TrialStage::None);
        Ok(flows)
    }

    fn compile(
        &self,
        before: &PolicyInForce,
        source: &str,
        read: Read,
        choice: &DeviceChoice,
        profile: &DeviceModel,
    ) -> Result<Compiled, Refused> {
        let observer = &self.parts.observer;
        let set = Arc::clone(&observer.board.read().workers);
        let traffic = before.source.traffic.as_ref();
        let counters = (traffic == Some(&Traffic::Counters))
            .then(|| Counters::of_state(&observer.state(), before.weights.clone()));
        let device_rules = |_: &Policy| choice.rules().to_vec();
        // Half of the priorities are only a step on the way.
        let proves_room = profile.priorities == observer.opened.profile(observer.worker_count()).priorities;
        let running = Running {
            program: &before.program,
            absent: &set.absent(),
            counters,
            device_rules: &device_rules,
            proves_room,
        };
        let workers = set.known();
        let past = match &self.origin {
            Origin::File(_) | Origin::Changed(_) => None,
            Origin::Past(policy) => Some(policy.number),
        };
        let compiled = match &self.origin {
            Origin::Past(policy) if matches!(traffic, Some(Traffic::Capture(_))) => {
                compile_past(policy, read, traffic, profile, workers, &running)
            }
            Origin::File(_) | Origin::Changed(_) | Origin::Past(_) => {
                policy_file::compile_read(read, traffic, profile, Some(workers), Some(&running))
            }
        };
        let compiled = compiled.and_then(Compiled::into_installable);
        let compiled = compiled
            .map(|compiled| compiled.of_past(past))
            .map_err(|diagnostics| Refused { is_by_analysis: true, ..Refused::by(diagnostics, source) })?;
        if let Some(obstacle) = compiler::reload_conflict(&before.program, &compiled.program, profile) {
            let errno = obstacle.errno.map_or_else(String::new, |errno| format!(" ({errno})"));
            let compiler::Obstacle { reason, limit, remedy, .. } = obstacle;
            let why = format!("{source}: {reason}: {limit}{errno} (hint: {remedy})");
            return Err(Refused { diagnostics: compiled.warnings.into(), ..Refused::because(why) });
        }
        Ok(compiled)
    }

    /// Adds the policy to the history; returns the difference from the one before.
    fn record(
        &self,
        milliseconds: u128,
        flows: ChangedFlows,
        is_unconfirmed: bool,
        before: &PolicyInForce,
    ) -> String {
        let now = Arc::clone(&self.parts.observer.board.read().policy);
        let parsed = |policy: &PolicyInForce| Some(policy_file::load_inputs(&policy.inputs)?.ok()?.policy);
        let change = parsed(before).zip(parsed(&now)).map(|(old, new)| PolicyChange::between(&old, &new));
        let difference =
            change.map_or_else(|| "the text is too long to be compared".to_owned(), |change| change.words());
        self.parts.history.add(PastPolicy {
            number: 0,
            is_unconfirmed,
            at_seconds: unix_seconds(),
            by: self.by.clone(),
            inputs: Arc::clone(&now.inputs),
            difference: difference.clone(),
            milliseconds: u64::try_from(milliseconds).unwrap_or(u64::MAX),
            flows: Some(flows),
            weights: now.weights.clone(),
        });
        difference
    }
}

/// The result of an attempt.
enum Attempted {
    Installed {
        flows: FlowChanges,
        /// With half of the device's priorities; the others are still to come.
        is_half: bool,
    },
    DryRun(Box<PlanReport>),
}

struct Accepted {
    outcome: Outcome,
    warnings: Vec<Diagnostic>,
    /// The policy in force when the change began.
    before: Arc<PolicyInForce>,
}

/// Why a policy is refused.
pub(super) struct Refused {
    /// In one line.
    why: String,
    diagnostics: Diagnostics,
    /// The daemon is ending.
    is_stopping: bool,
    /// The policy was refused before the device was asked.
    is_by_analysis: bool,
}

impl Refused {
    pub(super) fn because(why: String) -> Self {
        Self { why, diagnostics: Diagnostics::default(), is_stopping: false, is_by_analysis: false }
    }

    fn by(diagnostics: Diagnostics, source: &str) -> Self {
        let first = diagnostics.list.iter().find(|one| one.severity == Severity::Error);
        let first = first.map_or_else(String::new, |diagnostic| format!(", the first: {diagnostic}"));
        let why = format!("{} in {source}{first}", policy_file::error_count(&diagnostics));
        Self { diagnostics, ..Self::because(why) }
    }
}

/// Logs errors first: they are why a policy is refused, and only the first lines are logged.
fn log_refused(diagnostics: &Diagnostics) {
    let (errors, warnings): (Vec<_>, Vec<_>) =
        diagnostics.list.iter().cloned().partition(|one| one.severity == Severity::Error);
    policy_file::log(&[errors.as_slice(), &warnings].concat(), diagnostics.omitted);
}

/// The first set that a policy changes by more than it allows, in words.
pub(in crate::daemon) fn changed_too_much(before: &[SetSize], after: &[SetSize]) -> Option<String> {
    let last = |name: &str| before.iter().find(|set| set.name == name).map(|set| set.values);
    let (set, was) = after.iter().find_map(|set| {
        let was = last(&set.name)?;
        set.changes_too_much(was).then_some((set, was))
    })?;
    let SetSize { name, values, max_change_percent } = set;
    Some(format!(
        "the set `{name}` has {values} values instead of {was}, a change of more than max_change = {max_change_percent} \
         percent"
    ))
}

/// The difference of a compiled policy from the one in force; `None`: a text is not kept.
fn difference(before: &PolicyInForce, compiled: &Compiled) -> Option<(Policy, PolicyChange)> {
    let old = policy_file::load_inputs(&before.inputs)?.ok()?.policy;
    let new = policy_file::load_inputs(&compiled.inputs)?.ok()?.policy;
    let change = PolicyChange::between(&old, &new);
    Some((old, change))
}

fn report(
    observer: &Observer,
    summary: PlanSummary,
    change: Option<&(Policy, PolicyChange)>,
    before: &PolicyInForce,
) -> PlanReport {
    let profile = observer.opened.profile(observer.worker_count());
    let counters = Counters::of_state(&observer.state(), before.weights.clone());
    let touched = change.and_then(|(old, change)| change.touched(old, &counters));
    let words = change.map(|(_, change)| change.words());
    PlanReport { touched_share: touched, difference: words, ..PlanReport::of(&summary, &profile) }
}

/// Compiles a policy of the history for the packets for which it was compiled before. After a restart these
/// are counted in the capture again, and if that cannot be read there are none.
fn compile_past(
    policy: &PastPolicy,
    read: Read,
    traffic: Option<&Traffic>,
    profile: &DeviceModel,
    workers: usize,
    running: &Running<'_>,
) -> Result<Compiled, Diagnostics> {
    let mut read = read;
    let weights = if policy.weights.is_empty() {
        read.weights(traffic, None).unwrap_or_else(|error| {
            tracing::warn!("policy {} of the history is compiled without: {}", policy.number, chain(&error));
            None
        })
    } else {
        // The hash covers the packets.
        read.inputs = Arc::clone(&policy.inputs);
        Counters::of_weights(policy.weights.clone()).weights(&read.policy)
    };
    policy_file::compile_weighted(read, weights.as_ref(), profile, Some(workers), Some(running))
}

/// The warning that a policy could not get the other half of the priorities.
fn of_half(source: &str, why: &str) -> Diagnostic {
    let message = format!("{source} is in force with half of the device's priorities only: {why}");
    outside("the device").warning(message, "half of the priorities")
}

/// The warning that a reload has not followed the settings.
fn not_of_settings(why: String) -> Diagnostic {
    outside("the settings").warning(why, "not followed")
}

/// The place of a diagnostic about something that is outside of the policy.
fn outside(what: &str) -> Place {
    Place::new(&Arc::new(Source::new(what, "")), 0..0)
}

/// A policy that the dataplane has not installed.
fn refused_by_device(error: &Error, warnings: &[Diagnostic]) -> Refused {
    let is_stopping = matches!(error, Error::Stopping);
    Refused { is_stopping, diagnostics: warnings.to_vec().into(), ..Refused::because(chain(error)) }
}

/// The cost of putting a policy that was read in the place of the one in force.
pub(in crate::daemon) fn plan(parts: &Parts, read: &Read) -> Result<PlanReport, Diagnostics> {
    let Parts { observer, commands, rules, .. } = parts;
    let before = Arc::clone(&observer.board.read().policy);
    // The rules are not locked while the policy is analysed and compiled: whoever may only read must not
    // hold up changes.
    let facts = rules.facts(&read.policy, true);
    let mut choice = rules.lock().choose(&read.policy, &before.program, facts.as_ref());
    let counters = Counters::of_weights(before.weights.clone());
    let set = Arc::clone(&observer.board.read().workers);
    let workers = set.known();
    let profile = observer.opened.profile(observer.worker_count());
    let weights = counters.weights(&read.policy);
    let half = profile.with_half_of_the_priorities();
    let mut offered = &profile;
    loop {
        let device_rules = |_: &Policy| choice.rules().to_vec();
        let running = Running {
            program: &before.program,
            absent: &set.absent(),
            counters: None,
            device_rules: &device_rules,
            proves_room: std::ptr::eq(offered, &profile),
        };
        let weights = weights.as_ref();
        let compiled =
            policy_file::compile_weighted(read.clone(), weights, offered, Some(workers), Some(&running));
        let compiled = match compiled.and_then(Compiled::into_installable) {
            Err(diagnostics) if !choice.reduce(&diagnostics, true) => return Err(diagnostics),
            Err(_) => continue,
            Ok(compiled) => compiled,
        };
        let change = difference(&before, &compiled);
        match commands.preview(Arc::clone(&compiled.program)) {
            Ok(summary) => return Ok(report(observer, summary, change.as_ref(), &before)),
            Err(error) if error.is_for_room() && !std::ptr::eq(offered, &half) => offered = &half,
            Err(error) => {
                return Err(Diagnostics::from(vec![outside("the device").error(chain(&error), "refused")]));
            }
        }
    }
}

pub(super) fn failed(observer: &Observer, refused: Refused, begun: Instant) -> Verdict {
    let source = &observer.board.read().policy.source;
    let Refused { why, diagnostics, .. } = refused;
    observer.board.reload_failed(&why);
    tracing::error!("reload: {why}");
    tracing::error!("reload: {source} is refused, the previous policy stays in force");
    notify::ready(&format!("reload of {source} failed, the previous policy stays in force"));
    verdict(observer, begun, Some(why), diagnostics)
}

/// The verdict on a request that cannot begin; no reload has failed.
pub(super) fn refused_at_once(observer: &Observer, why: String) -> Verdict {
    tracing::error!("{why}");
    verdict(observer, Instant::now(), Some(why), Diagnostics::default())
}

/// The verdict that a policy is confirmed; `saved`: whether a restart will know it.
pub(super) fn confirmed(policy: &PolicyInForce, saved: &Result<(), String>) -> Verdict {
    let warn = |why: &String| not_saved("the policy is confirmed until a restart only", why);
    let warnings: Vec<Diagnostic> = saved.as_ref().err().map(warn).into_iter().collect();
    verdict_on(policy, Instant::now(), None, warnings.into())
}

/// Logs that the history is not saved; returns the warning.
fn not_saved(consequence: &str, why: &str) -> Diagnostic {
    tracing::error!("{why}");
    outside("the history").warning(format!("{consequence}: {why}"), "not saved")
}

/// The verdict with the policy that is in force now; `error`: why the new one is refused.
fn verdict(observer: &Observer, begun: Instant, error: Option<String>, diagnostics: Diagnostics) -> Verdict {
    verdict_on(&observer.board.read().policy, begun, error, diagnostics)
}

fn verdict_on(
    policy: &PolicyInForce,
    begun: Instant,
    error: Option<String>,
    diagnostics: Diagnostics,
) -> Verdict {
    let in_force = policy.for_api();
    Verdict {
        accepted: error.is_none(),
        source: in_force.source,
        generation: in_force.generation,
        sha256: in_force.inputs.sha256.clone(),
        milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        error,
        text: diagnostics.to_string(),
        excerpts: diagnostics.excerpts(),
        omitted_diagnostics: diagnostics.omitted,
        diagnostics: serde_json::to_value(diagnostics.list).unwrap_or_default(),
        ..Verdict::default()
    }
}

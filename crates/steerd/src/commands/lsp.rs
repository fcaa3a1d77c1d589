//! `steerd lsp`: a language server for policies, over standard input and output. `policy-lsp` has the
//! protocol and the documents; here policies are checked as `check` does, with the texts of the editor.

mod findings;
mod rule_notes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use compiler::{Job, Weights};
use device_model::DeviceModel;
use nic_filters::{FilterModel, FilterRoom};
use policy::{SetLoader, Source};
use policy_lsp::{CheckedPolicy, OpenFiles, OpenPolicy, PolicyChecker, ServerSettings, SessionEnd};
use reports::PolicyFindings;

use super::target::{self, Target};
use crate::carving::CarvedPolicy;
use crate::cli::{LspArgs, OutputArgs, PolicyArgs, VariableArgs};
use crate::commands::Error;
use crate::policy_file::{self, Read};
use crate::policy_tests::{TestFindings, TestSummary};
use crate::settings::{PolicySource, PolicyText, Traffic};
use findings::{errors_in_text, of_carved, of_policy, warnings_of_text};

/// Serves one client until it ends the session.
pub(crate) fn run(args: &LspArgs) -> Result<(), Error> {
    let of_command_line = ServerSettings {
        model: args.model.clone(),
        workers: args.workers,
        variables: args.variables.set.iter().cloned().collect(),
        config: args.config.as_ref().map(|path| path.display().to_string()),
        inlay_hints: None,
    };
    let mut checker = EditorChecker { of_command_line, target: CheckTarget::default() };
    checker.configure(&ServerSettings::default(), None).map_err(Error::LanguageServer)?;
    let output = io::stdout().lock();
    match policy_lsp::serve(io::stdin(), output, env!("CARGO_PKG_VERSION"), checker) {
        Ok(SessionEnd::Exit) => Ok(()),
        Ok(SessionEnd::WithoutShutdown) => Err(Error::SessionCutOff),
        Err(error) => Err(Error::LanguageServer(error.to_string())),
    }
}

/// Checks the policies of an editor.
struct EditorChecker {
    /// The settings of the command line; those of the client override them.
    of_command_line: ServerSettings,
    target: CheckTarget,
}

/// The device and the values that policies are checked for.
struct CheckTarget {
    profile: DeviceModel,
    /// `None`: as many as the policy names.
    workers: Option<usize>,
    variables: BTreeMap<String, String>,
    traffic: Option<Traffic>,
    requires_tests: bool,
}

impl Default for CheckTarget {
    fn default() -> Self {
        let (profile, variables) = (DeviceModel::default(), BTreeMap::new());
        Self { profile, workers: None, variables, traffic: None, requires_tests: false }
    }
}

impl CheckTarget {
    /// The target of these settings, as `check` with the same options has it for another host.
    fn of(settings: &ServerSettings, folder: Option<&Path>) -> Result<Self, String> {
        let relative_to = |name: &str| folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
        let model = settings.model.as_deref().map(|name| {
            // Files of models have a folder or an ending; other names are those of built-in models.
            let is_file = name.contains('/') || name.ends_with(".toml");
            let name = if is_file { relative_to(name).display().to_string() } else { name.to_owned() };
            crate::cli::parse_model(&name)
        });
        let model = model.transpose().map_err(|why| format!("setting `model`: {why}"))?;
        if settings.workers.is_some_and(|workers| !(1..=MAX_WORKERS).contains(&workers)) {
            return Err(format!("setting `workers`: write a number from 1 to {MAX_WORKERS}"));
        }
        let args = PolicyArgs {
            policy: None,
            variables: VariableArgs { set: settings.variables.clone().into_iter().collect() },
            config: settings.config.as_deref().map(relative_to),
            workers: settings.workers,
            model,
            printed: OutputArgs::default(),
        };
        let of_config = |error: Error| {
            let problems = error.of_settings().map(|problems| format!(": {}", problems.diagnostics));
            format!("setting `config`: {error}{}", problems.unwrap_or_default())
        };
        let loaded = target::settings_of(&args, None, None).map_err(of_config)?;
        let Target { source, device, workers, .. } = Target::with(&args, loaded, true).map_err(of_config)?;
        Ok(Self {
            profile: device.profile,
            workers,
            variables: source.variables,
            // The counters are those of a daemon, which may run elsewhere.
            traffic: source.traffic.filter(|traffic| *traffic != Traffic::Counters),
            requires_tests: source.requires_tests,
        })
    }
}

/// The most workers that a policy is compiled for.
const MAX_WORKERS: u32 = 1024;

/// Loads files, and notes which were asked for.
struct NotingFiles {
    files: OpenFiles,
    seen: RefCell<BTreeSet<PathBuf>>,
}

impl SetLoader for NotingFiles {
    fn load(&self, file: &str) -> io::Result<Source> {
        self.seen.borrow_mut().insert(self.files.path(file));
        self.files.load(file)
    }
}

impl PolicyChecker for EditorChecker {
    fn configure(&mut self, settings: &ServerSettings, folder: Option<&Path>) -> Result<(), String> {
        let own = &self.of_command_line;
        let mut variables = own.variables.clone();
        variables.extend(settings.variables.clone());
        let settings = ServerSettings {
            model: settings.model.clone().or_else(|| own.model.clone()),
            workers: settings.workers.or(own.workers),
            variables,
            config: settings.config.clone().or_else(|| own.config.clone()),
            inlay_hints: settings.inlay_hints,
        };
        self.target = CheckTarget::of(&settings, folder)?;
        Ok(())
    }

    fn check(
        &mut self,
        policy: &OpenPolicy,
        is_current: &dyn Fn() -> bool,
        publish: &mut dyn FnMut(CheckedPolicy),
    ) -> Option<CheckedPolicy> {
        let files = NotingFiles { files: policy.files(), seen: RefCell::default() };
        let read = policy_file::parse(&policy.source(), &files, &self.target.variables);
        let files = files.seen.into_inner();
        if !is_current() {
            return None;
        }
        let checked = match read {
            Err(problems) => errors_in_text(&problems),
            Ok(read) => {
                publish(CheckedPolicy { files: files.clone(), ..warnings_of_text(&read.warnings) });
                self.check_read(policy, read, is_current)?
            }
        };
        Some(CheckedPolicy { files, ..checked })
    }
}

impl EditorChecker {
    /// Checks a policy without errors in its text; `None`: nobody waits for it any more.
    fn check_read(
        &self,
        open: &OpenPolicy,
        mut read: Read,
        is_current: &dyn Fn() -> bool,
    ) -> Option<CheckedPolicy> {
        let target = &self.target;
        let source = PolicySource {
            // Only the folder is used: the text was read.
            text: PolicyText::File(open.path.clone()),
            variables: target.variables.clone(),
            traffic: target.traffic.clone(),
            requires_tests: target.requires_tests,
        };
        if read.policy.carves_queues() {
            let model = FilterModel::by_driver("");
            let carved = CarvedPolicy::of(&read, &model, FilterRoom::default());
            let tests = TestSummary::of(&read.policy, &source.folder(), None);
            return Some(of_carved(&carved, &tests));
        }
        let weights = match read.weights(source.traffic.as_ref(), None) {
            Ok(weights) => weights,
            Err(error) => {
                let problems = policy_file::unreadable_traffic(source.traffic.as_ref(), &error);
                return Some(errors_in_text(&problems));
            }
        };
        self.compile(&source, read, weights.as_ref(), is_current)
    }

    fn compile(
        &self,
        source: &PolicySource,
        read: Read,
        weights: Option<&Weights>,
        is_current: &dyn Fn() -> bool,
    ) -> Option<CheckedPolicy> {
        let Read { policy, warnings, .. } = read;
        let workers = self.target.workers.unwrap_or_else(|| policy_file::workers_named(&policy));
        let job = Job::new(&policy, &self.target.profile, workers).weighted(weights);
        let findings = PolicyFindings::of(&job, warnings, false);
        let tests = TestFindings::of(source, &policy, findings.report.program.as_ref());
        if !is_current() {
            return None;
        }
        let analysis = analysis::analyse(&policy, &mut |_| {});
        Some(of_policy(&policy, &findings.analysed(&policy, Some(analysis)), &tests))
    }
}

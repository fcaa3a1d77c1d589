//! The answers. A policy with errors has an answer, too: its diagnostics.

use analysis::{Change, Detail, Diff, GroupChange, PairSummary};
use compiler::{Capacity, Job, Obstacle};
use device_model::DeviceModel;
use policy::policy::Direction;
use policy::{Diagnostic, Diagnostics, Policy};
use program::Program;
use reports::{ExplainedPacket, PolicyFindings, ProtectedNames, RuleReport, Shares};
use serde::Serialize;

use crate::question::{PolicyFiles, PolicyOnDevice};

/// The device models that have a name.
#[derive(Serialize)]
pub(crate) struct Models {
    models: &'static [&'static str],
}

impl Models {
    pub(crate) const fn known() -> Self {
        Self { models: &DeviceModel::NAMES }
    }
}

/// The problems of a policy: each of them, and all as `steerd check` prints them.
#[derive(Serialize)]
pub(crate) struct Problems {
    diagnostics: Vec<Diagnostic>,
    /// How many more there are.
    omitted_diagnostics: usize,
    excerpts: String,
}

impl From<Diagnostics> for Problems {
    fn from(found: Diagnostics) -> Self {
        Self { excerpts: found.excerpts(), omitted_diagnostics: found.omitted, diagnostics: found.list }
    }
}

impl Problems {
    /// The problems of a policy for workers, if it has errors.
    fn of_refused(policy: &Policy) -> Option<Self> {
        let queues = reports::without_workers(policy)?;
        Some(Diagnostics::from(vec![queues]).into())
    }
}

/// The answer to `check`.
#[derive(Serialize)]
pub(crate) struct CheckAnswer {
    /// Whether the device can run the policy.
    ok: bool,
    model: String,
    /// `null`: the policy cannot be read.
    workers: Option<usize>,
    /// The needs of the program; `null`: there is none.
    program: Option<ProgramSize>,
    /// One entry per rule, the default last.
    rules: Vec<RuleReport>,
    shares: Option<Shares>,
    capacity: Option<Capacity>,
    /// Why the policy as a whole is impossible on the device.
    obstacles: Vec<Obstacle>,
    #[serde(flatten)]
    problems: Problems,
}

#[derive(Serialize)]
struct ProgramSize {
    flows: usize,
    priorities: u32,
    queue_pairs: usize,
}

impl ProgramSize {
    fn of(program: &Program) -> Self {
        Self {
            flows: program.flows.len(),
            priorities: program.priorities_used.into(),
            queue_pairs: program.queues.len(),
        }
    }
}

impl CheckAnswer {
    fn refused(model: DeviceModel, problems: Problems) -> Self {
        Self {
            ok: false,
            model: model.name,
            workers: None,
            program: None,
            rules: Vec::new(),
            shares: None,
            capacity: None,
            obstacles: Vec::new(),
            problems,
        }
    }
}

/// Whether a device can run a policy, and where each rule is decided.
///
/// # Errors
/// The question makes no sense, in words.
pub(crate) fn check(device: &PolicyOnDevice) -> Result<CheckAnswer, String> {
    let model = device.model()?;
    let (policy, of_text) = match device.parse() {
        Ok(parsed) => parsed,
        Err(diagnostics) => return Ok(CheckAnswer::refused(model, diagnostics.into())),
    };
    if let Some(problems) = Problems::of_refused(&policy) {
        return Ok(CheckAnswer::refused(model, problems));
    }
    let workers = device.workers(&policy)?;
    let job = Job::new(&policy, &model, workers);
    let analysis = analysis::analyse(&policy, &mut |_| {});
    let findings = PolicyFindings::of(&job, of_text, false).analysed(&policy, Some(analysis));
    let found: Vec<Diagnostic> = findings.problems().chain(&findings.warnings).cloned().collect();
    let is_ok = findings.report.program.is_some() && findings.problems().next().is_none();
    let report = findings.report;
    Ok(CheckAnswer {
        ok: is_ok,
        model: report.device,
        workers: Some(workers),
        program: report.program.as_ref().map(ProgramSize::of),
        rules: report.rules,
        shares: report.shares,
        capacity: report.capacity,
        obstacles: report.obstacles,
        problems: Diagnostics::from(found).into(),
    })
}

/// The answer to `explain`.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum ExplainAnswer {
    Explained {
        /// The lines of `steerd explain`.
        text: String,
        packet: ExplainedPacket,
    },
    Refused(Problems),
}

/// The treatment of a packet that is received.
///
/// # Errors
/// The question makes no sense, or the packet is none, in words.
pub(crate) fn explain(device: &PolicyOnDevice, packet: &str) -> Result<ExplainAnswer, String> {
    let model = device.model()?;
    let (policy, _) = match device.parse() {
        Ok(parsed) => parsed,
        Err(diagnostics) => return Ok(ExplainAnswer::Refused(diagnostics.into())),
    };
    if let Some(problems) = Problems::of_refused(&policy) {
        return Ok(ExplainAnswer::Refused(problems));
    }
    let key = policy::key_of_text(packet)?;
    let program = match Job::new(&policy, &model, device.workers(&policy)?).compile() {
        Ok(program) => program,
        Err(diagnostics) => return Ok(ExplainAnswer::Refused(diagnostics.into())),
    };
    let protected = ProtectedNames::of(&policy);
    let packet = ExplainedPacket::of(&program, &protected, Direction::Ingress, &key, false);
    Ok(ExplainAnswer::Explained { text: packet.text(&program), packet })
}

/// The answer to `diff`.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum DiffAnswer {
    Compared {
        /// `null`: not decided.
        equal: Option<bool>,
        groups: Vec<GroupChange>,
        /// The pairs of rules between which packets move.
        pairs: Vec<PairSummary>,
        /// The packets that move, pair by pair.
        regions: Vec<Change>,
        not_decided: usize,
    },
    Refused {
        /// The policy with the errors: "old" or "new".
        policy: &'static str,
        name: String,
        #[serde(flatten)]
        problems: Problems,
    },
}

/// The packets that two policies treat differently.
pub(crate) fn diff(old: &PolicyFiles, new: &PolicyFiles) -> DiffAnswer {
    let parsed = |policy, files: &PolicyFiles| match files.parse() {
        Ok((parsed, _)) => Ok(parsed),
        Err(found) => {
            Err(DiffAnswer::Refused { policy, name: files.name().to_owned(), problems: found.into() })
        }
    };
    match (parsed("old", old), parsed("new", new)) {
        (Ok(old), Ok(new)) => compared(&old, &new),
        (Err(refused), _) | (_, Err(refused)) => refused,
    }
}

fn compared(old: &Policy, new: &Policy) -> DiffAnswer {
    let found = analysis::diff_in_detail(old, new, Detail::SHORT, &mut |_| {});
    let equal = match (found.pairs.is_empty(), found.is_whole()) {
        (false, _) => Some(false),
        (true, true) => Some(true),
        (true, false) => None,
    };
    let workers = reports::workers_named(old).max(reports::workers_named(new));
    let groups = analysis::changed_groups(old, new, workers);
    let Diff { pairs, regions, not_decided, .. } = found;
    DiffAnswer::Compared { equal, groups, pairs, regions, not_decided }
}

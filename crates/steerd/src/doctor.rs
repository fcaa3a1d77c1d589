//! The examination of a host for `steerd doctor`: what of the host keeps steerd from starting or slows it,
//! in order of importance, each with the command that changes it. docs/reference/commands/doctor.md lists the
//! checks with their sources.
//!
//! Invariants: a check reads files of the host only by [`SystemFiles`], and asks the kernel only by
//! [`HostAnswers`], so that tests have hosts of their own; it changes nothing; and what it cannot read is
//! listed as not read, so that a check without findings has read all that it needs.

mod answers;
mod device;
mod interface;
mod interrupts;
mod memory;
mod processor;
mod rights;
mod setup;
mod system_files;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub(crate) use answers::{HostAnswers, KernelAnswers};
pub(crate) use setup::ExaminedSetup;
pub(crate) use system_files::{SystemFiles, UnreadFile};

/// The importance of a finding; the most important level is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingLevel {
    /// A start fails, or packets are not steered as the policy says.
    Must,
    /// Packets are late or lost under load.
    Should,
    /// A fact that matters for some uses.
    Note,
}

impl FindingLevel {
    /// All levels, the most important one first.
    pub(crate) const ALL: [Self; 3] = [Self::Must, Self::Should, Self::Note];

    /// The name in output.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Must => "must",
            Self::Should => "should",
            Self::Note => "note",
        }
    }
}

/// A property of the host that is to be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostFinding {
    /// The id of the check.
    pub(crate) id: &'static str,
    pub(crate) level: FindingLevel,
    pub(crate) problem: String,
    /// The effect on steerd, in one line.
    pub(crate) reason: &'static str,
    /// The command, or the setting, that changes it.
    pub(crate) command: String,
}

/// A file or an answer of the kernel that a check needs and that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct UnreadItem {
    /// The id of the check.
    pub(crate) id: &'static str,
    /// The path of the file, or a name of the question.
    pub(crate) item: String,
    pub(crate) why: String,
    /// The right, or the change, with which it can be read.
    pub(crate) remedy: String,
}

/// A check that does not apply to this host or these settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct InapplicableCheck {
    pub(crate) id: &'static str,
    pub(crate) why: String,
}

/// A fact about the host or the device, for the heading of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostFact {
    pub(crate) name: &'static str,
    pub(crate) value: String,
}

/// The result of all checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct HostExamination {
    pub(crate) facts: Vec<HostFact>,
    /// In order of importance: by level, then in the order of the checks.
    pub(crate) findings: Vec<HostFinding>,
    pub(crate) unread: Vec<UnreadItem>,
    pub(crate) inapplicable: Vec<InapplicableCheck>,
    /// The ids of the checks that have read all that they need and have found nothing.
    pub(crate) fine: Vec<&'static str>,
}

impl HostExamination {
    /// The number of findings of a level.
    pub(crate) fn count(&self, level: FindingLevel) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }
}

/// Everything that a check may look at.
pub(crate) struct HostView<'h> {
    pub(crate) files: &'h SystemFiles,
    pub(crate) answers: &'h dyn HostAnswers,
    pub(crate) setup: &'h ExaminedSetup,
}

/// The notes of one check.
struct CheckNotes {
    id: &'static str,
    facts: Vec<HostFact>,
    findings: Vec<HostFinding>,
    unread: Vec<UnreadItem>,
    inapplicable: Option<String>,
}

impl CheckNotes {
    fn new(id: &'static str) -> Self {
        Self { id, facts: Vec::new(), findings: Vec::new(), unread: Vec::new(), inapplicable: None }
    }

    /// Adds a finding.
    fn find(
        &mut self,
        level: FindingLevel,
        problem: impl Into<String>,
        reason: &'static str,
        command: impl Into<String>,
    ) {
        let (problem, command) = (problem.into(), command.into());
        self.findings.push(HostFinding { id: self.id, level, problem, reason, command });
    }

    /// The value that was read; what could not be read is noted, and gives `None`.
    fn take<T>(&mut self, read: Result<Option<T>, UnreadFile>) -> Option<T> {
        match read {
            Ok(value) => value,
            Err(UnreadFile { path, why, remedy }) => {
                self.unread.push(UnreadItem { id: self.id, item: path, why, remedy });
                None
            }
        }
    }

    /// Notes a question that the kernel did not answer.
    fn unanswered(&mut self, question: impl Into<String>, error: &std::io::Error) {
        let (why, remedy) = (error.to_string(), system_files::remedy(error));
        self.unread.push(UnreadItem { id: self.id, item: question.into(), why, remedy });
    }

    /// Returns whether it is known if a daemon runs; notes the reason if it is not. What a running daemon
    /// holds cannot be told from what other programs hold then.
    fn knows_daemon(&mut self, setup: &ExaminedSetup) -> bool {
        let Some(unread) = &setup.daemon_error else { return true };
        self.take::<()>(Err(unread.clone()));
        false
    }

    /// Notes why the check does not apply.
    fn skip(&mut self, why: impl Into<String>) {
        self.inapplicable = Some(why.into());
    }

    fn fact(&mut self, name: &'static str, value: impl Into<String>) {
        self.facts.push(HostFact { name, value: value.into() });
    }
}

/// A check by its id.
struct HostCheck {
    id: &'static str,
    examine: fn(&HostView<'_>, &mut CheckNotes),
}

const fn check(id: &'static str, examine: fn(&HostView<'_>, &mut CheckNotes)) -> HostCheck {
    HostCheck { id, examine }
}

/// All checks, those of a start first.
const CHECKS: &[HostCheck] = &[
    check("device", device::presence),
    check("model", device::model),
    check("verbs-device", rights::verbs_device),
    check("capabilities", rights::capabilities),
    check("service", rights::service),
    check("eswitch", device::eswitch),
    check("interface", interface::state),
    check("xdp", interface::xdp_program),
    check("mtu", interface::lengths),
    check("cores", processor::cores),
    check("memlock", memory::locked),
    check("hugepages", memory::hugepages),
    check("transparent", memory::transparent),
    check("numa", interrupts::nodes),
    check("interrupts", interrupts::affinity),
    check("irqbalance", interrupts::balancer),
    check("isolation", processor::isolation),
    check("idle-states", processor::idle_states),
    check("governor", processor::governor),
    check("clock", processor::clock),
    check("bond", interface::bond),
    check("offloads", interface::offloads),
    check("filters", interface::filters),
    check("vlan-filter", interface::vlan_filter),
    check("promiscuous", interface::promiscuous),
    check("swap", memory::swap),
];

/// Makes all checks.
pub(crate) fn examine(view: &HostView<'_>) -> HostExamination {
    let mut examination = HostExamination::default();
    for HostCheck { id, examine } in CHECKS {
        let mut notes = CheckNotes::new(id);
        examine(view, &mut notes);
        let CheckNotes { facts, findings, unread, inapplicable, .. } = notes;
        match inapplicable {
            Some(why) => examination.inapplicable.push(InapplicableCheck { id, why }),
            None if findings.is_empty() && unread.is_empty() => examination.fine.push(id),
            None => {}
        }
        examination.facts.extend(facts);
        examination.findings.extend(findings);
        examination.unread.extend(unread);
    }
    // The sort keeps the order of the checks within a level.
    examination.findings.sort_by_key(|finding| finding.level);
    examination
}

//! A case: a row of data, the function that tests it, and the expected answer of each personality with its
//! source.

use std::fmt;

use softnic::Personality;
use verbs::VerbsErrno;

use crate::Bench;

/// A verb, with its companions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // each is named after its verb
pub enum Verb {
    AllocParentDomain,
    CreateQpEx,
    WrPost,
    RxHash,
    CreateWq,
    CreateCqEx,
    PollCq,
    CreateFlow,
    Counters,
}

impl Verb {
    /// All of them, in the order of the document.
    pub const ALL: [Self; 9] = [
        Self::AllocParentDomain,
        Self::CreateQpEx,
        Self::WrPost,
        Self::RxHash,
        Self::CreateWq,
        Self::CreateCqEx,
        Self::PollCq,
        Self::CreateFlow,
        Self::Counters,
    ];
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AllocParentDomain => "ibv_alloc_parent_domain",
            Self::CreateQpEx => "ibv_create_qp_ex",
            Self::WrPost => "ibv_wr_start",
            Self::RxHash => "ibv_create_rwq_ind_table",
            Self::CreateWq => "ibv_create_wq",
            Self::CreateCqEx => "ibv_create_cq_ex",
            Self::PollCq => "ibv_start_poll",
            Self::CreateFlow => "ibv_create_flow",
            Self::Counters => "ibv_create_counters",
        })
    }
}

/// The parts of device and peer that a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needs {
    /// Objects that do not affect other users: part of the probe.
    Objects,
    /// Objects that take packets from other users while they exist.
    Port,
    /// A send queue whose packets may be sent.
    Sends,
    /// Frames sent to the device.
    Frames,
    /// Frames sent to the device, and the frames that it sends.
    Peer,
}

/// Why a case did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The verb failed with this errno.
    Refused(i32),
    /// The verb succeeded without any effect.
    Ignored,
    /// The verb succeeded and something else happened; or a step before it failed.
    Differs(String),
    /// The verb succeeded; its effect could not be observed, for this reason.
    Unobserved(&'static str),
    /// The case could not be run.
    NotRun(&'static str),
}

impl From<verbs::VerbsError> for Failure {
    fn from(error: verbs::VerbsError) -> Self {
        error.errno().map_or_else(|| Self::Differs(error.to_string()), Self::Refused)
    }
}

/// The outcome of a case; `Ok` means that the device did what was asked.
pub type Outcome = Result<(), Failure>;

/// A row.
#[derive(Clone, Copy)]
pub struct Case {
    /// The verb it is about.
    pub verb: Verb,
    /// The C name: `structure.member`, or a function.
    pub field: &'static str,
    /// The value: a constant of verbs.h, or a description.
    pub value: &'static str,
    /// The item of the safe crate.
    pub offered: &'static str,
    /// The behaviour that the case checks.
    pub shows: &'static str,
    /// The expected answer of each personality.
    pub expected: Expected,
    /// The parts of device and peer that the case needs.
    pub needs: Needs,
    /// Runs the case.
    pub run: fn(&Bench<'_>) -> Outcome,
}

impl Case {
    /// A case that works everywhere and needs only objects.
    pub(crate) const fn new(
        verb: Verb,
        [field, value, offered, shows]: [&'static str; 4],
        run: fn(&Bench<'_>) -> Outcome,
    ) -> Self {
        let expected = Expected::WORKS;
        Self { verb, field, value, offered, shows, expected, needs: Needs::Objects, run }
    }

    pub(crate) const fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    pub(crate) const fn expect(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }

    /// The names of verbs.h that the row is about.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let names =
            |text: &'static str| text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
        names(self.field).chain(names(self.value)).filter(|name| !name.is_empty())
    }
}

/// The answer of a device to a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The device does what was asked.
    Works,
    /// The device accepts the request, without any effect.
    Ignored,
    /// The device refuses with this errno.
    Refused(i32),
    /// The device accepts the request and does something else, or refuses it without an errno; the source
    /// says what.
    Differs,
}

impl Answer {
    /// Refused: the device, its driver or the kernel does not have the operation.
    pub(crate) const UNSUPPORTED: Self = Self::Refused(libc::EOPNOTSUPP);
    /// Refused as an invalid argument.
    pub(crate) const INVALID: Self = Self::Refused(libc::EINVAL);
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.pad("works"),
            Self::Ignored => f.pad("ignored"),
            Self::Refused(errno) => f.pad(&format!("refused: {}", errno_name(*errno))),
            Self::Differs => f.pad("differs"),
        }
    }
}

/// The answers of the personalities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    ideal: Answer,
    mlx5: Answer,
    mlx4: Answer,
    /// The source of refusals: manual page, kernel file or provider file.
    pub source: &'static str,
    /// Where a real mlx5 device may differ from the soft NIC that imitates it, and why; empty if nothing is
    /// known.
    pub mlx5_varies: &'static str,
}

impl Expected {
    /// Works everywhere.
    pub const WORKS: Self = Self::all(Answer::Works);

    pub(crate) const fn all(answer: Answer) -> Self {
        Self { ideal: answer, mlx5: answer, mlx4: answer, source: "", mlx5_varies: "" }
    }

    /// Refused everywhere with one errno.
    pub(crate) const fn refused(errno: i32, source: &'static str) -> Self {
        Self::all(Answer::Refused(errno)).because(source)
    }

    pub(crate) const fn ideal(mut self, answer: Answer) -> Self {
        self.ideal = answer;
        self
    }

    pub(crate) const fn mlx5(mut self, answer: Answer) -> Self {
        self.mlx5 = answer;
        self
    }

    pub(crate) const fn mlx4(mut self, answer: Answer) -> Self {
        self.mlx4 = answer;
        self
    }

    pub(crate) const fn because(mut self, source: &'static str) -> Self {
        self.source = source;
        self
    }

    pub(crate) const fn mlx5_varies(mut self, by: &'static str) -> Self {
        self.mlx5_varies = by;
        self
    }

    /// The answer of one personality.
    pub fn of(&self, personality: Personality) -> Answer {
        match personality {
            Personality::Mlx5 => self.mlx5,
            Personality::Mlx4 => self.mlx4,
            _ => self.ideal,
        }
    }

    /// Whether a personality refuses or ignores it.
    pub fn any_refusal(&self) -> bool {
        [self.ideal, self.mlx5, self.mlx4].iter().any(|answer| *answer != Answer::Works)
    }
}

/// The name of an errno that a verb returns.
pub(crate) fn errno_name(errno: i32) -> String {
    VerbsErrno(errno).name().map_or_else(|| format!("errno {errno}"), str::to_owned)
}

//! What a case is: a row, and a function that tries it.

use std::fmt;

use crate::{Bench, Expected};

/// A verb, or its companions.
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

/// What a case needs of the device and of what it is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needs {
    /// Objects that nobody else notices: part of the probe.
    Objects,
    /// Objects that take packets from others as long as they are there.
    Port,
    /// A send queue whose packets may leave.
    Sends,
    /// Frames that come to the device.
    Frames,
    /// Frames that come to it, and a look at what it sends.
    Peer,
}

/// How a case ended otherwise than by doing what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The verb said no, with this errno.
    Refused(i32),
    /// The verb said yes, and nothing came of it.
    Ignored,
    /// The verb said yes, and something else came of it; or the ground for the case could not be prepared.
    Differs(String),
    /// It could not be tried.
    NotRun(&'static str),
}

impl From<verbs::Error> for Failure {
    fn from(error: verbs::Error) -> Self {
        error.errno().map_or_else(|| Self::Differs(error.to_string()), Self::Refused)
    }
}

/// How a case ended; `Ok`: what was asked was done.
pub type Outcome = Result<(), Failure>;

/// A row.
#[derive(Clone, Copy)]
pub struct Case {
    /// The verb it is about.
    pub verb: Verb,
    /// What of it, in C's words: `structure.member`, or a function.
    pub field: &'static str,
    /// With what value: a constant of verbs.h, or in words.
    pub value: &'static str,
    /// Where the safe crate offers it.
    pub offered: &'static str,
    /// What is seen to happen.
    pub shows: &'static str,
    /// What is expected of each personality.
    pub expected: Expected,
    /// What it takes.
    pub needs: Needs,
    /// Tries it.
    pub run: fn(&Bench<'_>) -> Outcome,
}

impl Case {
    /// A case that works everywhere and needs no more than objects.
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
        let words =
            |text: &'static str| text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
        words(self.field).chain(words(self.value)).filter(|word| !word.is_empty())
    }
}

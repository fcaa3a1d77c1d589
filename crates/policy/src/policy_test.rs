//! `[[tests]]`: packets, and the decision that the policy is to make about them. Tests are data beside the
//! rules: they never change the program that a policy compiles to.

use std::path::PathBuf;

use packet::DeepKey;
use program::{GroupId, Match};

use crate::diagnostics::Place;
use crate::policy::{Action, Direction};

/// One `[[tests]]`.
#[derive(Clone, Debug)]
pub struct PolicyTest {
    /// The name in messages; `None`: the text has none.
    pub name: Option<String>,
    /// The packets that the test is about.
    pub packets: TestedPackets,
    /// Whether they are received or sent.
    pub direction: Direction,
    /// The decision that each of them is to meet.
    pub expected: Expectation,
    /// The numbers of packets of a capture.
    pub counts: Vec<ExpectedCount>,
    /// The place of the packets.
    pub place: Place,
}

/// The packets of a test.
#[derive(Clone, Debug)]
pub enum TestedPackets {
    /// One packet.
    Packet(Box<DeepKey>),
    /// Every packet that meets these conditions.
    Every(Box<Match>),
    /// Every packet of a file, which is relative to the folder of the main policy file.
    Capture(PathBuf),
}

/// A value that a test expects, and its place.
#[derive(Clone, Debug)]
pub struct Expected<T> {
    /// The value.
    pub value: T,
    /// The place in the text.
    pub place: Place,
}

/// The decision that a test expects; `None` where any is right.
#[derive(Clone, Debug, Default)]
pub struct Expectation {
    /// The action.
    pub action: Option<Expected<ExpectedAction>>,
    /// The rule that decides.
    pub rule: Option<Expected<ExpectedRule>>,
    /// The group that gets the packet.
    pub group: Option<Expected<GroupId>>,
    /// Whether the host sees it.
    pub host: Option<Expected<bool>>,
    /// The worker that receives it.
    pub worker: Option<Expected<u32>>,
}

impl Expectation {
    /// Whether nothing is expected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { action, rule, group, host, worker } = self;
        action.is_none() && rule.is_none() && group.is_none() && host.is_none() && worker.is_none()
    }
}

/// An action as tests expect it: that of a rule without its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedAction {
    /// The packet is dropped.
    Drop,
    /// It is left to the host.
    Kernel,
    /// A worker of a group gets it.
    Steer,
    /// It is sent.
    Pass,
}

impl ExpectedAction {
    /// The actions by their words.
    pub const WORDS: [(&'static str, Self); 4] =
        [("drop", Self::Drop), ("kernel", Self::Kernel), ("steer", Self::Steer), ("pass", Self::Pass)];

    /// Whether a rule with this action decides so.
    #[must_use]
    pub fn is_of(self, action: Action) -> bool {
        matches!(
            (self, action),
            (Self::Drop, Action::Drop)
                | (Self::Kernel, Action::Kernel)
                | (Self::Steer, Action::Steer(_))
                | (Self::Pass, Action::Pass)
        )
    }

    /// The word in the language.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, action)| *action == self).map_or("?", |(word, _)| word)
    }
}

/// A rule by the name that its text has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedRule {
    /// The name, or that of the default.
    pub name: String,
    /// The names of the rules that it becomes: more than one with `ipv6_extensions = "skip"`.
    pub rules: Vec<String>,
}

/// A number of packets of a capture that a test expects.
#[derive(Clone, Debug)]
pub struct ExpectedCount {
    /// The packets that are counted.
    pub counted: CountedPackets,
    /// The number of packets.
    pub packets: u64,
    /// The place in the text.
    pub place: Place,
}

/// The packets of a capture that a number is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountedPackets {
    /// All of them.
    All,
    /// The packets of rules with this action.
    Action(ExpectedAction),
    /// The packets that the host sees.
    Host,
    /// The packets that a rule decides.
    Rule(ExpectedRule),
    /// The packets of a group.
    Group(GroupId),
}

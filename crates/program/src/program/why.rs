//! Why a device does not decide a key alone, and in which words that is said. Filled in by `compiler`, read by
//! reports; decides nothing.

use serde::Serialize;

use crate::feature::{Errno, Feature};
use crate::ids::RuleId;

/// A key of a match that the device does not decide alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// As the policy calls it.
    pub key: String,
    /// Why not.
    pub why: Why,
}

/// Why a device does not decide a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Why {
    /// No spec of verbs speaks of it.
    NoWords,
    /// The device refuses such a spec.
    Refused {
        /// What it refuses.
        feature: Feature,
        /// How it says so.
        errno: Errno,
    },
    /// No value of the header is asked for, and then the device does not look whether it is there.
    Unseen {
        /// What it does not look for.
        feature: Feature,
    },
    /// It takes too many masks together with what else the rule asks for.
    TooMany {
        /// How many it takes by itself.
        masks: usize,
        /// How many combinations that makes with the rule's other ranges, or with those and its lists.
        combinations: usize,
        /// How many there may be.
        most: usize,
        /// Whether lists are counted among them.
        with_lists: bool,
    },
    /// The device takes flows on multicast alone after all others.
    Multicast,
    /// No flow leaves to the host what a later one takes, and that cannot be told to leave it out.
    KernelException {
        /// The first rule whose flows would take it; beyond all rules, the default.
        by: RuleId,
        /// Why these do not leave it out.
        untold: Untold,
    },
}

/// Why packets that are the host's cannot be left out of a later rule's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Untold {
    /// The device does not match them exactly.
    Inexact,
    /// The later rule takes packets without such a header too: that one is not there has no words.
    Header {
        /// An IP header.
        ip: bool,
        /// A TCP or UDP header.
        ports: bool,
    },
    /// The same of a tunnel's header, or of the packet inside.
    Tunnel,
    /// The same of a tag.
    Tag,
    /// No flow says what is left.
    NoWords,
    /// The device refuses what it would be told.
    Refused {
        /// What it refuses.
        feature: Feature,
        /// How it says so.
        errno: Errno,
    },
    /// What is left is multicast alone, which the device takes after all others.
    Multicast,
    /// The pieces would be too many.
    TooMany {
        /// How many there would be.
        pieces: usize,
        /// How many there may be.
        most: usize,
    },
    /// The program would not fit the device.
    NoRoom,
}

impl Why {
    /// In words that go behind a key.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::NoWords => "the device has no words for it".to_owned(),
            Self::Refused { feature, errno: Errno::Silent } => {
                format!("the device ignores {} without a word", feature.name())
            }
            Self::Refused { feature, errno } => format!("the device refuses {} ({errno})", feature.name()),
            Self::Unseen { feature } => format!("the device does not look for {}", feature.name()),
            Self::TooMany { masks, combinations, most, with_lists } => {
                let others = if *with_lists { "ranges and lists" } else { "ranges" };
                format!(
                    "{masks} masks: with the rule's other {others} {combinations} combinations, more than {most}"
                )
            }
            Self::Multicast => "the device takes flows on multicast alone after all others".to_owned(),
            Self::KernelException { untold, .. } => format!("a later rule {}", untold.words()),
        }
    }

    /// Whether it concerns packets that the device matches exactly and the host does not get all the same.
    #[must_use]
    pub fn keeps_from_host(&self) -> bool {
        matches!(self, Self::KernelException { untold, .. } if *untold != Untold::Inexact)
    }

    /// What the device would have answered, if it had been asked.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::NoWords | Self::Unseen { .. } | Self::TooMany { .. } | Self::Multicast => None,
            Self::KernelException { untold: Untold::Refused { errno, .. }, .. } => Some(*errno),
            Self::KernelException { .. } => None,
        }
    }
}

impl Untold {
    /// In words that go behind the later rule's name.
    #[must_use]
    pub fn words(&self) -> String {
        let without = |what| format!("takes packets without {what} too, and no flow can ask for those alone");
        match self {
            Self::Inexact => "takes packets that the device cannot tell from these".to_owned(),
            Self::Header { ip: true, .. } => without("an IP header"),
            Self::Header { ip: false, .. } => without("ports (fragments)"),
            Self::Tunnel => without("such a tunnel"),
            Self::Tag => without("a tag"),
            Self::NoWords => "takes these, and no flow says all but them".to_owned(),
            Self::Refused { feature, errno: Errno::Silent } => {
                format!("would have to leave them out by {}, which the device ignores", feature.name())
            }
            Self::Refused { feature, errno } => {
                format!(
                    "would have to leave them out by {}, which the device refuses ({errno})",
                    feature.name()
                )
            }
            Self::Multicast => "would be left with multicast alone, which the device takes last".to_owned(),
            Self::TooMany { pieces, most } => {
                format!("would be cut into {pieces} pieces more, {most} are the most")
            }
            Self::NoRoom => "would be cut into more flows than fit the device".to_owned(),
        }
    }
}

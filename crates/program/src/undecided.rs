//! The reasons why a device does not decide a key of a match, with their texts. The compiler records them for
//! reports; nothing else depends on them.

use crate::feature::{Errno, Feature};
use crate::ids::RuleId;

/// A key of a match that the device does not decide, so that a worker has to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecidedKey {
    /// The name of the key in the policy.
    pub key: String,
    /// The reason.
    pub why: UndecidedReason,
}

/// Why a device does not decide a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndecidedReason {
    /// No spec of verbs has the field.
    NoSpec,
    /// The device refuses such a spec.
    Refused {
        /// The refused feature.
        feature: Feature,
        /// The error.
        errno: Errno,
    },
    /// The match asks for a header with any values, and the device ignores a spec with an empty mask.
    PresenceIgnored {
        /// The feature that the device does not check for.
        feature: Feature,
    },
    /// The key takes too many masks in combination with the rule's other keys.
    TooMany {
        /// The number of masks that this key alone takes.
        masks: usize,
        /// How many combinations these make with the rule's other ranges, or ranges and lists.
        combinations: usize,
        /// The limit of combinations.
        most: usize,
        /// Whether lists are counted among them.
        with_lists: bool,
    },
    /// The device matches multicast-only flows after all others.
    Multicast,
    /// The device has too few flows or masks for the exact flows of all rules.
    NoCapacity,
    /// The device has too few priorities to put flows of earlier rules before those of this rule.
    Order {
        /// The first of these earlier rules.
        first: RuleId,
        /// How many there are; 0: the rule drops by a worker because others of its kind need one.
        rules: usize,
    },
    /// The packets are the host's, but a flow of a later rule matches them too and cannot exclude them.
    KernelException {
        /// The first rule with such a flow; the default comes after all rules.
        by: RuleId,
        /// Why the flow cannot exclude them.
        inseparable: Inseparable,
    },
}

/// Why the flows of a later rule cannot exclude packets that are the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inseparable {
    /// The device does not match them exactly.
    Inexact,
    /// The later rule also matches packets without this header, and the absence of a header cannot be
    /// matched.
    Header {
        /// An IP header.
        ip: bool,
        /// A TCP or UDP header.
        ports: bool,
    },
    /// A tunnel header, or the packet inside.
    Tunnel,
    /// A VLAN tag.
    Tag,
    /// No spec of verbs can match the rest.
    NoSpec,
    /// The device refuses the specs that would match the rest.
    Refused {
        /// The refused feature.
        feature: Feature,
        /// The error.
        errno: Errno,
    },
    /// The rest is multicast only, which the device matches after all others.
    Multicast,
    /// The flows would be split into too many pieces.
    TooMany {
        /// How many there would be.
        pieces: usize,
        /// The limit.
        most: usize,
    },
    /// The program would not fit the device.
    NoCapacity,
}

impl UndecidedKey {
    /// Whether it is a condition on IPv6, which the device does not match.
    #[must_use]
    pub fn lacks_ipv6(&self) -> bool {
        matches!(self.why, UndecidedReason::Refused { feature: Feature::Ipv6, .. })
    }
}

impl UndecidedReason {
    /// A text that follows the name of the key.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::NoSpec => "the device cannot match this field".to_owned(),
            Self::Refused { feature, errno: Errno::Silent } => {
                format!("the device silently ignores {}", feature.name())
            }
            Self::Refused { feature, errno } => format!("the device refuses {} ({errno})", feature.name()),
            Self::PresenceIgnored { feature } => format!("the device does not check for {}", feature.name()),
            Self::TooMany { masks, combinations, most, with_lists } => {
                let others = if *with_lists { "ranges and lists" } else { "ranges" };
                format!(
                    "it takes {masks} masks, {combinations} combinations with the rule's other {others}, and the limit is {most}"
                )
            }
            Self::Multicast => "the device matches multicast-only flows after all others".to_owned(),
            Self::NoCapacity => "the device has too few flows or masks for all rules".to_owned(),
            Self::Order { rules: 0, .. } => {
                "the device has too few priorities to drop its packets in hardware".to_owned()
            }
            Self::Order { rules, .. } => {
                format!("the device has too few priorities to put {rules} earlier rules before it")
            }
            Self::KernelException { inseparable, .. } => format!("a later rule {}", inseparable.words()),
        }
    }

    /// Whether packets that the device matches exactly, and that are the host's, do not reach the host.
    #[must_use]
    pub fn keeps_from_host(&self) -> bool {
        matches!(self, Self::KernelException { inseparable, .. } if *inseparable != Inseparable::Inexact)
    }

    /// The error that the device would give.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::NoSpec
            | Self::PresenceIgnored { .. }
            | Self::TooMany { .. }
            | Self::Multicast
            | Self::NoCapacity
            | Self::Order { .. } => None,
            Self::KernelException { inseparable: Inseparable::Refused { errno, .. }, .. } => Some(*errno),
            Self::KernelException { .. } => None,
        }
    }
}

impl Inseparable {
    /// A text that follows the name of the later rule.
    #[must_use]
    pub fn words(&self) -> String {
        let without = |what| format!("also matches packets without {what}, and no flow can match only those");
        match self {
            Self::Inexact => "also matches packets that the device cannot distinguish from these".to_owned(),
            Self::Header { ip: true, .. } => without("an IP header"),
            Self::Header { ip: false, .. } => without("ports (fragments)"),
            Self::Tunnel => without("such a tunnel"),
            Self::Tag => without("a tag"),
            Self::NoSpec => "also matches these, and no flow can exclude them".to_owned(),
            Self::Refused { feature, errno: Errno::Silent } => {
                format!("would have to exclude them by {}, which the device ignores", feature.name())
            }
            Self::Refused { feature, errno } => {
                format!(
                    "would have to exclude them by {}, which the device refuses ({errno})",
                    feature.name()
                )
            }
            Self::Multicast => "would be left with multicast only, which the device matches last".to_owned(),
            Self::TooMany { pieces, most } => {
                format!("would be split into {pieces} more parts, and the limit is {most}")
            }
            Self::NoCapacity => "would be split into more flows than fit the device".to_owned(),
        }
    }
}

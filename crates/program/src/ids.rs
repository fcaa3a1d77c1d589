//! The ids by which the parts of a program refer to each other. Each is an index into the vector of the same
//! name in `Program`, except [`WorkerId`], which the settings define.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $letter:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The position in the program's vector.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The id of the part at `index`; saturates, which the limits of programs rule out.
            #[must_use]
            pub fn of(index: usize) -> Self {
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    )*};
}

ids! {
    /// A rule of the policy, in its order; the last one is the pseudo rule `default`.
    RuleId, "r";
    /// A group of workers, in the policy's order.
    GroupId, "g";
    /// A class: what a worker does with a packet of one flow tag.
    ClassId, "c";
    /// A receive-side-scaling queue pair of one group.
    QueueId, "q";
    /// A place where packets go.
    SinkId, "s";
    /// A worker, as numbered by the settings.
    WorkerId, "w";
}

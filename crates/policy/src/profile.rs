//! What a device can do, as data. The compiler reads limits from here and never asks which vendor
//! made the device; `control` fills one in from a device's own answers.

use serde::{Deserialize, Serialize};

/// The limits of a device, as far as the compiler cares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// What diagnostics call it.
    pub name: String,
    /// How many flow priorities there are, from 0. Half of them is one program's: a reload needs both.
    pub priorities: u32,
    /// The most flows it holds, if it says.
    pub max_flows: Option<u32>,
    /// The most specs of one flow, the two actions (tag, counter) included.
    pub max_specs: u32,
    /// Whether a queue pair takes the hash fields of one variant only (v4 or v6; TCP or UDP).
    pub hash_field_exclusive: bool,
    /// The longest indirection table, in entries.
    pub max_table: u32,
    /// The most queue pairs with an indirection table, if it says.
    pub max_queues: Option<u32>,
}

impl DeviceProfile {
    /// What the verbs interface can say at all. Hash fields stay exclusive, so that the program is the
    /// one that real devices get.
    #[must_use]
    pub fn ideal() -> Self {
        Self {
            name: "ideal".to_owned(),
            priorities: 65_536,
            max_flows: None,
            max_specs: 10,
            hash_field_exclusive: true,
            max_table: 4096,
            max_queues: None,
        }
    }

    /// Priorities that one program may use, the other half being the next program's while it comes in.
    #[must_use]
    pub fn priorities_per_program(&self) -> u32 {
        (self.priorities / 2).clamp(1, 1 << 15)
    }

    /// Flows that one program may use, by the same reasoning.
    #[must_use]
    pub fn flows_per_program(&self) -> Option<usize> {
        self.max_flows.map(|most| (most / 2) as usize)
    }

    /// Queue pairs that one program may use, by the same reasoning.
    #[must_use]
    pub fn queues_per_program(&self) -> Option<usize> {
        self.max_queues.map(|most| (most / 2) as usize)
    }
}

impl Default for DeviceProfile {
    fn default() -> Self {
        Self::ideal()
    }
}

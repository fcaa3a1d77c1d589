//! What the operator wrote, checked and resolved, but not yet cut to any device: the output of `parse`,
//! the input of `compiler`. Sets are already expanded into their values and group names into ids.

use std::sync::Arc;

use packet::{HashFields, RssKey};
use program::{GroupId, Match};

use crate::diagnostics::Place;
use crate::source::Source;

/// The most groups of one policy.
pub const MAX_GROUPS: usize = 1024;
/// The most values of one set, or of one list.
pub const MAX_SET_VALUES: usize = 1 << 20;
/// The most values that all rules of a policy have together, sets counted wherever they are named.
pub const MAX_TOTAL_VALUES: usize = 1 << 24;
/// The longest name of a rule, group or set, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The highest number of a worker: beyond every machine, below what a table can hold.
pub const MAX_WORKER: u32 = 4095;
/// The largest share of a worker.
pub const MAX_WEIGHT: u32 = 65_535;
/// The longest indirection table that the language admits, in entries.
pub const MAX_TABLE_SIZE: u32 = 1 << 16;
/// The length of a group's indirection table unless it says otherwise, in entries.
pub const DEFAULT_TABLE_SIZE: u32 = 128;

/// The name of the rule that `default_multicast` becomes.
pub const DEFAULT_MULTICAST: &str = "default_multicast";

/// A policy whose every name is known and every value in range.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Its text, for diagnostics.
    pub source: Arc<Source>,
    /// In the order of the text.
    pub groups: Vec<GroupDefinition>,
    /// The first match wins: by `priority`, and within one in the order of the text.
    pub rules: Vec<RuleDefinition>,
    /// What happens to packets that no rule claims.
    pub default: Action,
    /// Where `default` stands, or the start of the file.
    pub default_place: Place,
    /// Whether `default` was written.
    pub default_given: bool,
    /// Whether packets that it leaves to the kernel may be lost in workers.
    pub allow_lost_exceptions: bool,
}

/// `[groups.NAME]`.
#[derive(Clone, Debug)]
pub struct GroupDefinition {
    /// The name.
    pub name: String,
    /// The workers and their shares.
    pub workers: Workers,
    /// What is hashed.
    pub fields: HashFields,
    /// The Toeplitz key.
    pub key: RssKey,
    /// Whether both directions of a connection meet.
    pub symmetric: bool,
    /// Entries of the indirection table, a power of two; `None`: what the workers and the device suggest.
    pub table_size: Option<u32>,
    /// Where its name stands.
    pub place: Place,
}

/// Who is in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workers {
    /// Every configured worker, equally.
    All,
    /// These, with a share each, and where each is written.
    Listed(Vec<WorkerShare>),
}

/// One worker of a group.
#[derive(Clone, Debug)]
pub struct WorkerShare {
    /// The worker's number in the settings.
    pub worker: u32,
    /// Its share of the table, relative to the others'.
    pub weight: u32,
    /// Where it stands.
    pub place: Place,
}

impl PartialEq for WorkerShare {
    fn eq(&self, other: &Self) -> bool {
        (self.worker, self.weight) == (other.worker, other.weight)
    }
}

impl Eq for WorkerShare {}

/// One `[[rules]]`.
#[derive(Clone, Debug)]
pub struct RuleDefinition {
    /// The name, unique.
    pub name: String,
    /// Which packets it claims.
    pub matches: Match,
    /// What it does with them.
    pub action: Action,
    /// Which way they go.
    pub direction: Direction,
    /// Lower ones go first; `Policy::rules` is sorted by it already.
    pub priority: i32,
    /// Whether its counters are exported.
    pub count: bool,
    /// Whether this is the policy's `default_multicast`: the last rule, on all multicast that no other claims.
    pub multicast_default: bool,
    /// Where its match stands.
    pub place: Place,
    /// Where its name stands.
    pub name_place: Place,
}

/// What a rule, or the default, does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Spread over a group's workers.
    Steer(GroupId),
    /// Drop.
    Drop,
    /// Leave to the host.
    Kernel,
    /// Give a copy to a group (`IBV_FLOW_ATTR_FLAGS_DONT_TRAP`); the packet goes on to the later rules.
    Copy(GroupId),
    /// Let a group hear all that passes the port, both ways (`IBV_FLOW_ATTR_SNIFFER`); it goes on as if unheard.
    Sniff(GroupId),
    /// Let it leave the host, counted: only of egress rules, as an exception to a later drop.
    Pass,
}

/// Which way a rule's packets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// What the port receives.
    #[default]
    Ingress,
    /// What the host sends (`IBV_FLOW_ATTR_FLAGS_EGRESS`).
    Egress,
}

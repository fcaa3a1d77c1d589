//! The flow table: which flows a received frame belongs to, and so what the engine does with it.
//!
//! The provider inserts and removes [`FlowRule`]s (one per `ibv_flow`) under the device's mutex; the engine asks
//! [`FlowTable::lookup`] once per frame. The table never looks at frame bytes and never allocates during a lookup.
//!
//! # What a lookup costs
//! One hash and one compare for a frame like one of the last few thousand. For others, one hash and one probe (some 40
//! ns) for each *shape*, which is a mask that rules share: best priority first, until no other can win, passing over those
//! that ask for layers which the frame lacks. So the cost grows with the different masks, up to [`MAX_SHAPES`], and not
//! with the number of rules.
//!
//! # Which rules a frame gets
//! The rules of the frame's port that match are taken in order of kind (normal, multicast default, all default), then
//! priority (0 first), then age (oldest first):
//! - The first one that traps decides. Rules with the same match, kind and priority on other queue pairs each get a copy;
//!   on the same queue pair the oldest stands in for all of them.
//! - DONT_TRAP rules take a copy if they stand no later in kind and priority than the deciding rule.
//! - Sniffers take a copy of every received frame, whatever the verdict. Sent frames, of which mlx5 gives sniffers a copy
//!   too, do not pass this table: that is not there yet.

mod cache;
mod key;
mod port;
mod shape;
#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;
use packet::FlowKey;

use cache::ExactCache;
pub(crate) use key::{MatchKey, Matcher};
use port::PortTable;

/// The most flows that a table holds. That many take 75 MiB; each is inserted within some 2 us, and the one insert for
/// which the largest list has to grow within some 2 ms, during which the engine waits.
pub(crate) const MAX_FLOWS: usize = 1 << 17;
/// The most different masks among the flows of one port that trap. A frame that the cache does not know and that all of
/// them could match costs some 20 us.
pub(crate) const MAX_SHAPES: usize = 512;
/// The most queue pairs that one match can be replicated to.
pub(crate) const MAX_REPLICAS: usize = 32;
/// The most DONT_TRAP flows of one port.
pub(crate) const MAX_DONT_TRAP: usize = 16;
/// The most sniffers of one port.
pub(crate) const MAX_SNIFFERS: usize = 16;
/// The most flows that one frame can get: the limits above make more impossible.
pub(crate) const MAX_MATCHES: usize = MAX_REPLICAS + MAX_DONT_TRAP + MAX_SNIFFERS;

/// Names a flow for as long as it is in the table; below [`MAX_FLOWS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FlowId(pub(crate) u32);

/// Names the counters that a flow's packets are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CounterId(pub(crate) u32);

/// Names the queue pair that a flow's packets go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QpSlot(pub(crate) u32);

/// The kinds of `enum ibv_flow_attr_type`, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FlowKind {
    /// `IBV_FLOW_ATTR_NORMAL`.
    Normal,
    /// `IBV_FLOW_ATTR_MC_DEFAULT`: multicast frames that no normal rule trapped.
    MulticastDefault,
    /// `IBV_FLOW_ATTR_ALL_DEFAULT`: frames that nothing else trapped.
    AllDefault,
    /// `IBV_FLOW_ATTR_SNIFFER`: a copy of every received frame, of sent ones not yet.
    Sniffer,
}

/// What happens to the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Actions {
    /// The tag that completions report.
    pub(crate) tag: Option<u32>,
    /// Whether they are dropped instead of delivered.
    pub(crate) drop: bool,
    /// What counts them.
    pub(crate) counter: Option<CounterId>,
    /// Where they go.
    pub(crate) target: QpSlot,
}

/// One flow, as the provider inserts it.
#[derive(Clone, Debug)]
pub(crate) struct FlowRule {
    /// Its name; unique in the table.
    pub(crate) id: FlowId,
    /// Its kind.
    pub(crate) kind: FlowKind,
    /// The port it applies to.
    pub(crate) port: u8,
    /// Its priority; 0 comes first. Sniffers have none.
    pub(crate) priority: u16,
    /// Whether frames go on to later rules after this one took a copy.
    pub(crate) dont_trap: bool,
    /// When it was created, relative to the other rules: unique, growing.
    pub(crate) order: u64,
    /// The frames it is about. Multicast defaults need not ask for a multicast address, sniffers match everything.
    pub(crate) matcher: Matcher,
    /// What happens to them.
    pub(crate) actions: Actions,
}

/// One flow that a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowHit {
    /// The flow.
    pub(crate) flow: FlowId,
    /// Its kind: [`FlowKind::Sniffer`] marks copies that do not bear on the verdict.
    pub(crate) kind: FlowKind,
    /// What to do.
    pub(crate) actions: Actions,
}

/// The flows of one frame: first those of the verdict in order of precedence, then the sniffers. Without any of the
/// verdict the frame is left to the kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matches {
    hits: ArrayVec<FlowHit, MAX_MATCHES>,
}

impl Matches {
    /// No flows.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn clear(&mut self) {
        self.hits.clear();
    }

    /// Appends; the limits of the table keep the sum within [`MAX_MATCHES`].
    fn add(&mut self, hit: FlowHit) {
        self.hits.push(hit);
    }

    /// All flows of the frame.
    pub(crate) fn as_slice(&self) -> &[FlowHit] {
        &self.hits
    }
}

/// Why a flow was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FlowError {
    /// The id is in use.
    #[error("flow {0:?} is already in the table")]
    DuplicateId(FlowId),
    /// No frame can match: two specs ask for different values of one field.
    #[error("two specs of the flow contradict each other")]
    Contradiction,
    /// DONT_TRAP has no meaning for this kind.
    #[error("DONT_TRAP cannot be combined with this kind of flow")]
    DontTrapKind,
    /// The same match exists at the same priority with another fate (drop against delivery).
    #[error("flow {0:?} has the same match and priority, and one of the two drops")]
    Conflict(FlowId),
    /// A limit of the table.
    #[error("the table already holds {limit} {what}")]
    Full {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// All flows of a device.
#[derive(Debug, Default)]
pub(crate) struct FlowTable {
    /// By id.
    rules: Vec<Option<Box<FlowRule>>>,
    /// By port number, as far as ports have flows.
    ports: Vec<PortTable>,
    cache: ExactCache,
}

impl FlowTable {
    /// An empty table.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a flow; the next lookup sees it.
    ///
    /// # Errors
    /// Why it was not taken; the table is as before.
    pub(crate) fn insert(&mut self, mut rule: FlowRule) -> Result<(), FlowError> {
        match rule.kind {
            FlowKind::MulticastDefault => {
                rule.matcher.dst_mac(GROUP_BIT, GROUP_BIT);
            }
            FlowKind::Sniffer => (rule.matcher, rule.priority) = (Matcher::any(), 0),
            FlowKind::Normal | FlowKind::AllDefault => {}
        }
        if rule.dont_trap && matches!(rule.kind, FlowKind::MulticastDefault | FlowKind::AllDefault) {
            return Err(FlowError::DontTrapKind);
        }
        if rule.matcher.is_contradictory() {
            return Err(FlowError::Contradiction);
        }
        let place = rule.id.0 as usize;
        if place >= MAX_FLOWS {
            return Err(FlowError::Full { what: "flows", limit: MAX_FLOWS });
        }
        if self.rules.get(place).is_some_and(Option::is_some) {
            return Err(FlowError::DuplicateId(rule.id));
        }
        self.port_mut(rule.port).insert(&rule)?;
        if self.rules.len() <= place {
            self.rules.resize(place + 1, None);
        }
        self.rules[place] = Some(Box::new(rule));
        self.cache.invalidate();
        Ok(())
    }

    /// Removes a flow; no later lookup finds it. Answers whether it was there.
    pub(crate) fn remove(&mut self, id: FlowId) -> bool {
        let rule = self.rules.get_mut(id.0 as usize).and_then(Option::take);
        let Some(rule) = rule else { return false };
        self.port_mut(rule.port).remove(&rule);
        self.cache.invalidate();
        true
    }

    /// Puts the flows of a frame that arrived on `port` into `matches`, in place of what was there.
    #[inline]
    pub(crate) fn lookup(&mut self, port: u8, key: &FlowKey, matches: &mut Matches) {
        matches.clear();
        let Some(table) = self.ports.get(usize::from(port)) else { return };
        // Fields that no rule of the port names would only split what shares one verdict.
        let image = MatchKey::of(key).masked(table.relevant());
        let verdict = self.cache.find_or_insert(port, &image, || table.classify(&image));
        table.expand(verdict, matches);
    }

    /// The number of flows.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.rules.iter().flatten().count()
    }

    fn port_mut(&mut self, port: u8) -> &mut PortTable {
        let index = usize::from(port);
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, PortTable::default);
        }
        &mut self.ports[index]
    }
}

/// The bit that makes a MAC address a group address (IEEE 802-2014, 8.2.2).
const GROUP_BIT: [u8; 6] = [1, 0, 0, 0, 0, 0];

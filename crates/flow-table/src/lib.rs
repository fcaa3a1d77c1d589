//! The flow table: which flows a received frame belongs to, and so what the engine does with it.
//!
//! The provider inserts and removes [`FlowRule`]s (one per `ibv_flow`); engines ask
//! [`FlowTable::classify_burst`] once per burst, several at a time, which `port` answers from the
//! structures of the frames' port. The device has the table twice, so that they never wait for a change
//! ([`LeftRight`]). The table never looks at frame bytes, except for rules about tunnels, and never
//! allocates during a lookup. [`FlowTable::lookup`] is the same for one frame.
//!
//! # What a lookup costs
//! For rules about the outer packet, a walk down at most four decision trees for each of IPv4, IPv6 and other
//! rules, and the rules of those leaves compared together whose first rule could win (`tree`). It grows
//! little with the number of rules and of masks, and no cache is in front of it.
//! [`FlowTable::classify_burst`] looks up to 64 frames up side by side. With the 13 300 rules of ClassBench's
//! acl1_10k and 10^5 flows that takes some 20 ns a frame with AVX-512, a tuple space alone more than 1000 ns
//! (`tree/tests/cost.rs`, on a busy machine, two hyperthreads of one core).
//!
//! Rules that the trees have no room for, and rules about tunnels, are in tuple spaces: one hash and one
//! probe (some 40 ns) for each *shape*, which is a mask that rules share, best priority first, until no other
//! can win, passing over those that ask for layers which the frame lacks. Frames with tunnels have an
//! exact-match cache in front, one for each port.
//!
//! # Which rules a frame gets
//! The rules of the frame's port that match are taken in order of kind (normal, multicast default, all
//! default), then priority (0 first), then age (oldest first):
//! - The first one that traps decides. Rules with the same match, kind and priority on other queue pairs each
//!   get a copy; on the same queue pair the oldest represents all of them.
//! - DONT_TRAP rules take a copy if they are no later in kind and priority than the deciding rule.
//! - Sniffers take a copy of every frame, received or sent, whatever the verdict.
//!
//! Sent frames have tables of their own: those of EGRESS flows, whose queue pairs get nothing.
//!
//! # Tunnels
//! Rules about tunnels and what is inside have wider images, in a tuple space of their own. Only while a port
//! has such a rule are its frames parsed for tunnels, and only frames that have one are looked up with the
//! wider image, in a cache of their own. So these rules cost nothing where there are none.
//!
//! ```
//! use flow_table::{Actions, FlowId, FlowKind, FlowRule, FlowTable, Matcher, Matches, QpSlot};
//! use packet::{FlowKey, TunnelKey};
//!
//! let mut table = FlowTable::default();
//! table.insert(FlowRule {
//!     id: FlowId(1),
//!     kind: FlowKind::Normal,
//!     port: 1,
//!     egress: false,
//!     priority: 0,
//!     dont_trap: false,
//!     order: 0,
//!     matcher: Matcher::any(),
//!     tunnel: None,
//!     actions: Actions { tag: Some(7), drop: false, counter: None, target: QpSlot(3) },
//! })?;
//! let mut matches = Matches::new();
//! table.lookup(1, &FlowKey::default(), TunnelKey::default, &mut matches);
//! assert_eq!(matches.as_slice()[0].actions.target, QpSlot(3));
//! # Ok::<(), flow_table::FlowError>(())
//! ```

mod cache;
mod capacity;
mod deep;
mod directory;
mod key;
mod left_right;
mod port;
mod shape;
mod space;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;

use arrayvec::ArrayVec;
use device_model::{Limit, PriorityTable};
use packet::cube::DST_MAC;
use packet::{DeepKey, FlowKey, TunnelKey};

use cache::ExactCache;
pub use cache::Verdict;
use deep::DeepImage;
pub use deep::{Presence, TunnelMatcher};
pub use key::{MatchKey, Matcher};
pub use left_right::{LeftRight, LeftRightWriter};
pub use port::PortTable;
use tree::BURST;

/// The most flows that a table holds.
pub const MAX_FLOWS: usize = device_model::software::MAX_FLOWS as usize;
/// The most different masks among the flows of one port that trap. Were all of them about tunnels, a frame
/// that the cache does not know and that all could match would cost some 160 us.
pub const MAX_SHAPES: usize = device_model::software::MAX_MASKS as usize;
/// The most queue pairs that one match can be replicated to.
const MAX_REPLICAS: usize = 32;
/// The most DONT_TRAP flows of one port.
pub const MAX_DONT_TRAP: usize = device_model::software::MAX_COPIES as usize;
/// The most sniffers of one port.
const MAX_SNIFFERS: usize = 16;
/// The most flows that one frame can get: the limits above make more impossible.
pub const MAX_MATCHES: usize = MAX_REPLICAS + MAX_DONT_TRAP + MAX_SNIFFERS;

/// Names a flow for as long as it is in the table; below [`MAX_FLOWS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u32);

/// Names the counters that a flow's packets are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterId(pub u32);

/// Names the queue pair that a flow's packets go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpSlot(pub u32);

/// The kinds of `enum ibv_flow_attr_type`, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowKind {
    /// `IBV_FLOW_ATTR_NORMAL`.
    Normal,
    /// `IBV_FLOW_ATTR_MC_DEFAULT`: multicast frames that no normal rule trapped.
    MulticastDefault,
    /// `IBV_FLOW_ATTR_ALL_DEFAULT`: frames that nothing else trapped.
    AllDefault,
    /// `IBV_FLOW_ATTR_SNIFFER`: a copy of every frame.
    Sniffer,
}

/// The treatment of a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// The tag that completions report.
    pub tag: Option<u32>,
    /// Whether they are dropped instead of delivered.
    pub drop: bool,
    /// The counter of these packets.
    pub counter: Option<CounterId>,
    /// Where they go.
    pub target: QpSlot,
}

/// One flow, as the provider inserts it.
#[derive(Clone, Debug)]
pub struct FlowRule {
    /// The name of the flow; unique in the table.
    pub id: FlowId,
    /// The kind of the flow.
    pub kind: FlowKind,
    /// The port it applies to.
    pub port: u8,
    /// Whether it applies to sent frames.
    pub egress: bool,
    /// The priority; 0 comes first. Sniffers have none.
    pub priority: u16,
    /// Whether frames go on to later rules after this one took a copy.
    pub dont_trap: bool,
    /// When it was created, relative to the other rules: unique, growing.
    pub order: u64,
    /// The frames it is about. Multicast defaults need not ask for a multicast address, sniffers match
    /// everything.
    pub matcher: Matcher,
    /// The conditions on the packets' tunnels, if any.
    pub tunnel: Option<Box<TunnelMatcher>>,
    /// The treatment of matching packets.
    pub actions: Actions,
}

impl FlowRule {
    /// The rule as a table takes it.
    ///
    /// # Errors
    /// It makes no sense on any device.
    pub fn checked(mut self) -> Result<Self, FlowError> {
        match self.kind {
            FlowKind::MulticastDefault => {
                self.matcher.field(&[DST_MAC], GROUP_BIT, GROUP_BIT);
            }
            FlowKind::Sniffer => {
                (self.matcher, self.tunnel, self.priority) = (Matcher::any(), None, 0);
            }
            FlowKind::Normal | FlowKind::AllDefault => {}
        }
        if self.dont_trap && matches!(self.kind, FlowKind::MulticastDefault | FlowKind::AllDefault) {
            return Err(FlowError::DontTrapKind);
        }
        let has_tunnel = self.tunnel.as_ref().is_some_and(|tunnel| !tunnel.is_any());
        self.tunnel.take_if(|_| !has_tunnel);
        let contradictory = self.tunnel.as_ref().is_some_and(|tunnel| tunnel.is_contradictory());
        if contradictory || self.matcher.is_contradictory() {
            return Err(FlowError::Contradiction);
        }
        Ok(self)
    }
}

/// How a device differs from a table that has room and takes what makes sense.
#[derive(Clone, Copy, Debug)]
pub struct TableRules {
    /// Whether flows with the same match and priority must agree in their tags.
    pub one_tag_per_match: bool,
    /// Whether a frame meets only one match of each priority also where it goes on: of several DONT_TRAP
    /// flows that match, those with the match of the oldest take a copy.
    pub one_copy_per_priority: bool,
    /// Whether an ALL_DEFAULT flow is two entries, of which the one for multicast is like that of an
    /// MC_DEFAULT flow: multicast frames go to both.
    pub all_default_is_two: bool,
    /// How many matches there can be at one priority.
    pub groups: Option<PriorityTable>,
    /// The most flows of the table; at most [`MAX_FLOWS`].
    pub max_flows: usize,
    /// The most different masks among the flows of a port; at most [`MAX_SHAPES`].
    pub max_shapes: usize,
    /// The most DONT_TRAP flows of a port; at most [`MAX_DONT_TRAP`].
    pub max_copies: usize,
}

impl Default for TableRules {
    fn default() -> Self {
        Self {
            one_tag_per_match: false,
            one_copy_per_priority: false,
            all_default_is_two: false,
            groups: None,
            max_flows: MAX_FLOWS,
            max_shapes: MAX_SHAPES,
            max_copies: MAX_DONT_TRAP,
        }
    }
}

/// One flow that a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHit {
    /// The flow.
    pub flow: FlowId,
    /// The kind of the flow.
    pub kind: FlowKind,
    /// Whether it takes a copy and the frame goes on: a DONT_TRAP flow or a sniffer.
    pub is_copy: bool,
    /// The treatment of matching packets.
    pub actions: Actions,
}

/// The flows of one frame: first those of the verdict in order of precedence, then the sniffers. Without any
/// of the verdict the frame is left to the kernel.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    hits: ArrayVec<FlowHit, MAX_MATCHES>,
}

impl Matches {
    /// No flows.
    pub fn new() -> Self {
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
    pub fn as_slice(&self) -> &[FlowHit] {
        &self.hits
    }
}

/// Why a flow was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// The id is in use.
    #[error("flow {0:?} is already in the table")]
    DuplicateId(FlowId),
    /// No frame can match: two specs ask for different values of one field.
    #[error("two specs of the flow contradict each other")]
    Contradiction,
    /// DONT_TRAP has no meaning for this kind.
    #[error("DONT_TRAP cannot be combined with this kind of flow")]
    DontTrapKind,
    /// A flow with the same match and priority has another action (drop or deliver) or, where that matters,
    /// tag.
    #[error("flow {0:?} has the same match and priority, and one of the two drops or has another tag")]
    Conflict(FlowId),
    /// The device that this one imitates has no entry left for this mask at this priority.
    #[error("the device has no room for another match with this mask at this priority")]
    NoSpace,
    /// A limit of the table.
    #[error("the table already holds {limit} {what}")]
    Full {
        /// The objects that there are too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
        /// The limit of a device model that this is.
        of: Limit,
    },
}

/// All flows of a device.
#[derive(Debug, Default)]
pub struct FlowTable {
    /// The flows, by id.
    flows: Vec<Option<Arc<FlowRule>>>,
    /// The tables for received frames, by port number, as far as ports have flows.
    ports: Vec<PortTable>,
    /// The tables for sent frames, by port number.
    egress: Vec<PortTable>,
    rules: TableRules,
}

impl FlowTable {
    /// An empty table.
    #[must_use]
    pub fn new(rules: TableRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Checks and adds a flow; the next lookup finds it.
    ///
    /// # Errors
    /// Why it was not taken; the table is as before.
    pub fn insert(&mut self, rule: FlowRule) -> Result<(), FlowError> {
        self.add(Arc::new(rule.checked()?))
    }

    /// Adds a flow that was checked; the next lookup sees it.
    ///
    /// # Errors
    /// Why it was not taken; the table is as before.
    pub fn add(&mut self, rule: Arc<FlowRule>) -> Result<(), FlowError> {
        let place = rule.id.0 as usize;
        let limit = self.rules.max_flows;
        if place >= limit {
            return Err(FlowError::Full { what: "flows", limit, of: Limit::Flows });
        }
        if self.flows.get(place).is_some_and(Option::is_some) {
            return Err(FlowError::DuplicateId(rule.id));
        }
        let half = self.multicast_half(&rule);
        let port = self.port_mut(rule.port, rule.egress);
        port.insert(&rule)?;
        if let Some(Err(error)) = half.map(|half| port.insert(&half)) {
            port.remove(&rule);
            return Err(error);
        }
        if self.flows.len() <= place {
            self.flows.resize(place + 1, None);
        }
        self.flows[place] = Some(rule);
        Ok(())
    }

    /// Removes a flow; no later lookup finds it. Returns whether it was there.
    pub fn remove(&mut self, id: FlowId) -> bool {
        let rule = self.flows.get_mut(id.0 as usize).and_then(Option::take);
        let Some(rule) = rule else { return false };
        let half = self.multicast_half(&rule);
        let port = self.port_mut(rule.port, rule.egress);
        port.remove(&rule);
        if let Some(half) = half {
            port.remove(&half);
        }
        true
    }

    /// Puts the flows of a frame that arrived on `port` into `matches`, in place of what was there. `tunnel`
    /// parses the frame's tunnel, and is asked only if some flow of the port is about tunnels.
    pub fn lookup(&self, port: u8, key: &FlowKey, tunnel: impl FnOnce() -> TunnelKey, matches: &mut Matches) {
        matches.clear();
        let Some(table) = self.ports.get(usize::from(port)) else { return };
        find(table, key, tunnel, matches);
    }

    /// Decides over a burst of frames that arrived on `port`, one verdict for each image: at less cost than
    /// one lookup for each. `parse` parses a frame and its tunnel by its place in the burst, and is asked
    /// only if some flow of the port is about tunnels.
    pub fn classify_burst(
        &self,
        port: u8,
        images: &[MatchKey],
        mut parse: impl FnMut(usize) -> DeepKey,
        verdicts: &mut [Verdict],
    ) {
        let Some(table) = self.ports.get(usize::from(port)) else { return verdicts.fill(Verdict::NOTHING) };
        if let Some(relevant) = table.deep_relevant() {
            let mut recent = table.recent();
            for (at, (image, verdict)) in images.iter().zip(verdicts).enumerate() {
                let DeepKey { outer, tunnel } = parse(at);
                *verdict = find_deep(table, recent.as_deref_mut(), &outer, image, &tunnel, relevant);
            }
            return;
        }
        for (images, verdicts) in images.chunks(BURST).zip(verdicts.chunks_mut(BURST)) {
            table.classify_burst(images, verdicts);
        }
    }

    /// The flows of the frames that arrive on a port; `None` if it never had any.
    #[inline]
    pub fn of_port(&self, port: u8) -> Option<&PortTable> {
        self.ports.get(usize::from(port))
    }

    /// [`lookup`](Self::lookup) for a frame that is to be sent; without sniffers, which see it whatever
    /// becomes of it.
    #[inline]
    pub fn lookup_sent(
        &self,
        port: u8,
        key: &FlowKey,
        tunnel: impl FnOnce() -> TunnelKey,
        matches: &mut Matches,
    ) {
        matches.clear();
        let Some(table) = self.egress.get(usize::from(port)) else { return };
        find(table, key, tunnel, matches);
    }

    /// Whether any flow is about the frames sent through a port.
    #[inline]
    pub fn has_egress(&self, port: u8) -> bool {
        self.egress.get(usize::from(port)).is_some_and(|table| !table.is_empty())
    }

    /// How many flows take copies of every frame of a port.
    #[inline]
    pub fn sniffer_count(&self, port: u8) -> usize {
        self.ports.get(usize::from(port)).map_or(0, PortTable::sniffer_count)
    }

    /// Puts what takes copies of every frame of a port into `matches`, in place of what was there.
    pub fn sniffers(&self, port: u8, matches: &mut Matches) {
        matches.clear();
        if let Some(table) = self.ports.get(usize::from(port)) {
            table.sniff(matches);
        }
    }

    /// The multicast half of an ALL_DEFAULT flow, on a device where that is an entry of its own.
    fn multicast_half(&self, rule: &FlowRule) -> Option<FlowRule> {
        if rule.kind != FlowKind::AllDefault || !self.rules.all_default_is_two {
            return None;
        }
        let mut half = FlowRule { kind: FlowKind::MulticastDefault, ..rule.clone() };
        half.matcher.field(&[DST_MAC], GROUP_BIT, GROUP_BIT);
        (!half.matcher.is_contradictory()).then_some(half)
    }

    /// The number of flows.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.flows.iter().flatten().count()
    }

    fn port_mut(&mut self, port: u8, egress: bool) -> &mut PortTable {
        let ports = if egress { &mut self.egress } else { &mut self.ports };
        let index = usize::from(port);
        if ports.len() <= index {
            ports.resize_with(index + 1, || PortTable::new(self.rules));
        }
        &mut ports[index]
    }
}

#[inline]
fn find(table: &PortTable, key: &FlowKey, tunnel: impl FnOnce() -> TunnelKey, matches: &mut Matches) {
    let image = MatchKey::of(key);
    let tunnel = table.deep_relevant().map_or_else(TunnelKey::default, |_| tunnel());
    let verdict = match table.deep_relevant() {
        Some(relevant) => find_deep(table, table.recent().as_deref_mut(), key, &image, &tunnel, relevant),
        None => table.classify(&image, None),
    };
    table.expand(verdict, &image, || DeepKey { outer: *key, tunnel }, matches);
}

/// On a port with rules about tunnels: the cache is never shared with frames without.
#[inline(never)]
fn find_deep(
    table: &PortTable,
    recent: Option<&mut ExactCache<DeepImage>>,
    key: &FlowKey,
    image: &MatchKey,
    tunnel: &TunnelKey,
    relevant: &DeepImage,
) -> Verdict {
    let Some(deep) = DeepImage::of_tunnel(image, key, tunnel, relevant) else {
        return table.classify(image, None);
    };
    let classify = || table.classify(&deep.outer, Some(&deep));
    match recent {
        Some(cache) => cache.find_or_insert(&deep, classify),
        None => classify(),
    }
}

/// The bit that makes a MAC address a group address (IEEE 802-2014, 8.2.2).
pub const GROUP_BIT: u128 = 1 << 40;

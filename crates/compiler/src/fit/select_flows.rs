//! The choice of flows where the device has room for fewer than there are. Flows are split into flows of
//! other masks, or left to workers, one mask or one flow at a time and the cheapest first, until the rest
//! fits. Wide *cover* flows behind all chosen ones lead the packets of the others to a worker, whose class
//! compares them with the rules of these.
//!
//! Why it is right: a flow is only left to workers together with all later flows that share packets with it,
//! but for packets that still earlier flows take. So the first flow of a packet, in the order of the policy,
//! is chosen, and then all chosen flows with the packet decide as before; or it is not, and then no flow with
//! the packet is chosen, and the packet meets a cover. The rules at the end that match packets by their
//! headers alone come behind the covers, as the default does: they overlap nearly all flows.
//!
//! The cost of a step is the time that workers take for the packets of the flows that it leaves to them. A
//! flow has a price, so that splitting flows of a rare mask is compared with leaving them to workers: the
//! time in which the device makes it ([`install_ps`]), and a part of the room, for which several prices are
//! tried. The choice of most value is taken, less the time to install.
//!
//! The time to install is also bounded (`most_split_flows`). As a price alone it would be outweighed by much
//! traffic, but until a policy is installed the device decides by the one before, and how long that may take
//! is no question of nanoseconds. The bound counts the flows before this choice; masks are merged after it,
//! with a bound of their own. A flow that is not split costs its place, and in comparisons of whole programs
//! the time to install it.

mod covers;
mod graph;
mod reduce;

use program::RuleId;

use crate::cost::install_ps;
use crate::cover::CoveredRule;
use crate::cube::Image;
use crate::flow_groups::most_split_flows;
use crate::job::Job;
use crate::rank::lower::Lowered;
use crate::rank::order::RankedFlows;
use crate::specs::Reading;

use graph::{Graph, GraphLimits, Items};
use reduce::{MaskClass, Reduction};

/// The prices of a flow that are tried, in parts of the mean value that a flow needs to have where the device
/// is full.
const PRICES: [f64; 8] = [0.5, 1.0, 0.35, 0.25, 0.17, 0.12, 0.06, 0.03];

/// The part of the device that is kept free for covers: one in so many flows and masks.
const COVER_PART: usize = 16;

/// The room for the flows of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// The most different masks.
    pub(crate) masks: usize,
    /// The most flows.
    pub(crate) flows: usize,
    /// The most ranks.
    pub(crate) ranks: u32,
}

/// Chooses flows for the room, of those that [`order`](crate::rank::order) has kept.
pub(crate) fn select_flows(job: &Job<'_>, rules: &[CoveredRule], flows: &RankedFlows, room: Room) -> Lowered {
    let mut items = Items::of(job, flows);
    let graph = Graph::of(&items.candidates(flows), GraphLimits::MOST);
    let has_graph = items.keep_first(graph.len());
    let most_flows = most_split_flows(job.profile, items.list.len() + items.fixed_flows());
    let room = Room { flows: room.flows.min(most_flows), ..room };
    let reserve = covers::reserve(job, &flows.lowered, &items, room);
    let inner = Room {
        masks: room.masks.saturating_sub(reserve.masks),
        flows: room.flows.saturating_sub(reserve.flows),
        ranks: room.ranks.saturating_sub(reserve.ranks),
    };
    let chosen = if has_graph { best_choice(job, &graph, &items, inner) } else { None };
    let covered = chosen.and_then(|chosen| covers::cover_flows(job, rules, flows, &items, &chosen, room));
    covered.unwrap_or_else(|| {
        let nothing = Choice::nothing(&items);
        covers::cover_everything(job, rules, flows, &items, &nothing)
    })
}

/// The masks into which chosen flows are split, by item; `None`: a worker decides its packets.
struct Choice {
    into: Vec<Option<Image>>,
    /// The time of workers that it saves, less the time to install, both in the unit of [`graph::Item`].
    value: f64,
}

/// The prices of a flow, in the unit of [`graph::Item`].
#[derive(Clone, Copy)]
struct FlowPrice {
    /// The part of the room that it takes.
    room: f64,
    /// The time in which the device makes it.
    install: f64,
}

impl FlowPrice {
    fn sum(self) -> f64 {
        self.room + self.install
    }
}

/// The time in which the device makes a flow, as a price.
fn install_price(job: &Job<'_>) -> f64 {
    let seconds = job.profile.flows_per_second.map_or(0.0, |rate| 1.0 / f64::from(rate.max(1)));
    // Values are sums over all packets, of which each rule has as many as its weight.
    let rules = (0..job.policy.rules.len()).map(RuleId::of);
    let packets = rules.map(|rule| job.weights.map_or(1.0, |weights| weights.of(rule) as f64)).sum::<f64>();
    install_ps(seconds) * packets
}

impl Choice {
    /// No more flows than must be chosen: the pinned ones, with all before them, some of which precede them.
    fn nothing(items: &Items) -> Self {
        let pinned = items.list.iter().rposition(|item| item.is_pinned).map_or(0, |last| last + 1);
        let mask = |(place, item): (usize, &graph::Item)| (place < pinned).then_some(item.key.mask);
        Self { into: items.list.iter().enumerate().map(mask).collect(), value: 0.0 }
    }

    /// The flows that are left to workers.
    fn left<'i>(&self, items: &'i Items) -> impl Iterator<Item = &'i graph::Item> {
        let open = items.list.iter().zip(&self.into).filter(|(_, into)| into.is_none());
        open.map(|(item, _)| item).chain(&items.beyond)
    }
}

/// The choice of most value for any of the prices; `None`: what has to be chosen does not fit.
fn best_choice(job: &Job<'_>, graph: &Graph, items: &Items, room: Room) -> Option<Choice> {
    let classes = MaskClass::all(items, Reading::of(job.profile));
    // Without too many masks, no flow is split.
    let prices = if classes.len() <= room.masks { &PRICES[..1] } else { &PRICES[..] };
    let total: f64 = items.list.iter().map(|item| item.value).sum();
    let install = install_price(job);
    let of_price = |price: &f64| {
        let price = FlowPrice { room: price * total / room.flows.max(1) as f64, install };
        Reduction::new(items, graph, classes.clone(), price).choose(room)
    };
    let choices = prices.iter().filter_map(of_price);
    choices.reduce(|best, other| if other.value > best.value { other } else { best })
}

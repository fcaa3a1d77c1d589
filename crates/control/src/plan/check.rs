//! Examines a plan before it is carried out, by the rules of [`plan()`](super::plan()) alone: it shares no
//! code with what makes plans, but for the digests of flows ([`FlowDigest`], which flows without a class do
//! not have), the grouping of flows ([`Runs`]) and the room in small tables ([`TableFill`]). So it does not
//! find a fault of the digests: their own test does.

use device_model::TableFill;
use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use program::{Correspondence, Flow, FlowAction, FlowDigest, FlowFront, FlowKind, Program, QueueId};

use super::runs::Runs;
use super::{PlacedProgram, Plan, PlanStep};
use crate::plan_fault::PlanFault;
use crate::{DigestedProgram, Limits};

/// A plan that keeps the rules. The controller carries out no other.
#[derive(Debug)]
pub struct CheckedPlan(Plan);

impl CheckedPlan {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.0
    }
}

impl Plan {
    /// Examines the plan from `installed` to `new`.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub(super) fn check(
        self,
        installed: Option<PlacedProgram<'_>>,
        new: &DigestedProgram,
        limits: &Limits,
    ) -> Result<CheckedPlan, PlanFault> {
        let planned = self.levels.len().min(self.kept.len());
        if planned != new.flows.len() || self.levels.len() != self.kept.len() {
            return Err(PlanFault::Length { planned, flows: new.flows.len() });
        }
        if let Some(flow) = self.levels.iter().position(|level| *level > limits.last_level()) {
            return Err(PlanFault::Level(flow, self.levels[flow]));
        }
        let common = installed.map(|old| Correspondence::of(old.program, new));
        check_kept(&self, installed.as_ref(), new.digests(), limits)?;
        if let Some((old, common)) = installed.zip(common.as_ref()) {
            check_meanings(&self.kept, old.program, new, common)?;
        }
        check_precedence(&self.levels, new, limits)?;
        DeviceDuringPlan::of(&self, installed, new, common, limits).follow()?;
        Ok(CheckedPlan(self))
    }
}

/// Whether a flow's priority counts: a sniffer has none, and some devices apply multicast last.
fn is_ordered(flow: &FlowDigest, limits: &Limits) -> bool {
    let is_last = limits.multicast_ignores_priority && flow.is_multicast_only;
    flow.kind != FlowKind::Sniffer && !is_last
}

/// Every flow that is said to stay is on the device, as the new program needs it, and no two are one.
fn check_kept(
    plan: &Plan,
    installed: Option<&PlacedProgram<'_>>,
    new: &[FlowDigest],
    limits: &Limits,
) -> Result<(), PlanFault> {
    let (digests, levels) =
        installed.map_or_else(Default::default, |old| (old.program.digests(), old.levels));
    let mut is_used = vec![false; levels.len()];
    for (index, kept) in plan.kept.iter().enumerate() {
        let Some(kept) = *kept else { continue };
        let is_there = digests.get(kept).zip(levels.get(kept)).is_some_and(|(before, level)| {
            let same_level = *level == plan.levels[index] || !is_ordered(&new[index], limits);
            before.is_same_flow(&new[index]) && same_level
        });
        if !is_there || std::mem::replace(&mut is_used[kept], true) {
            return Err(PlanFault::NotThere(index));
        }
    }
    Ok(())
}

/// A number that means something else has flows only that both programs have, or no tag.
fn check_meanings(
    kept: &[Option<usize>],
    old: &Program,
    new: &Program,
    common: &Correspondence<'_>,
) -> Result<(), PlanFault> {
    let mut flows = vec![true; old.flows.len()];
    kept.iter().flatten().for_each(|flow| flows[*flow] = false);
    let gone = old.flows.iter().zip(&flows).filter(|(_, is_gone)| **is_gone).map(|(flow, _)| flow);
    let come = new.flows.iter().zip(kept).filter(|(_, kept)| kept.is_none()).map(|(flow, _)| flow);
    let mut examined = HashSet::new();
    for flow in gone.chain(come) {
        let FlowAction::Steer { class, .. } = flow.action else { continue };
        let is_untagged = [old.untagged, new.untagged] == [Some(class); 2];
        let classes = old.class(class).zip(new.class(class)).filter(|_| !is_untagged);
        if let Some((before, after)) = classes.filter(|_| examined.insert(class))
            && !common.is_same_class(before, after)
        {
            return Err(PlanFault::Meaning(class.0));
        }
    }
    Ok(())
}

/// Of any two flows that share packets, the one that the program puts first has the higher level. Only a copy
/// may have the level of a flow behind it that takes the packets; a device may make one copy for each level.
fn check_precedence(levels: &[u16], new: &DigestedProgram, limits: &Limits) -> Result<(), PlanFault> {
    let group = |(flow, level): (&FlowDigest, &u16)| {
        is_ordered(flow, limits).then_some((flow.kind, flow.priority, *level))
    };
    let groups = Runs::of(new.digests().iter().zip(levels).map(group));
    let front = |flow: usize| (flow, new.flows[flow].front());
    let keys = groups.keys();
    for above in &keys {
        for below in keys.iter().filter(|below| is_violated(*above, **below)) {
            let seconds: Vec<(usize, FlowFront)> = groups.of_key(*below).map(front).collect();
            for (first, of_first) in groups.of_key(*above).map(front) {
                for (second, of_second) in &seconds {
                    if of_first.is_apart(of_second) {
                        continue;
                    }
                    let cube = |flow: usize| new.flows[flow].cube();
                    if cube(first).zip(cube(*second)).is_some_and(|(one, other)| one.overlaps(other)) {
                        return Err(PlanFault::Precedence(first, *second));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whether flows like the first, which the program puts before flows like the second, are not above them.
fn is_violated(first: (FlowKind, u16, u16), second: (FlowKind, u16, u16)) -> bool {
    let ((first, first_priority, first_level), (second, priority, level)) = (first, second);
    let same_side = (first == FlowKind::Egress) == (second == FlowKind::Egress);
    let is_before_and_not_above = match (first == FlowKind::Copy, second == FlowKind::Copy) {
        (true, false) => first_priority <= priority && first_level > level,
        _ => first_priority < priority && first_level >= level,
    };
    same_side && is_before_and_not_above
}

/// Whether a device or a worker decides the packets of a flow by that flow's own tag.
fn decides_by_tag(program: &Program, flow: &Flow) -> bool {
    let is_tagged = match flow.action {
        FlowAction::Steer { .. } => program.tagged_class(flow).is_some(),
        FlowAction::Drop | FlowAction::Pass => true,
    };
    is_tagged && flow.kind != FlowKind::Sniffer && flow.kind != FlowKind::Copy
}

/// A match, by its digest, at a level.
type Place = (u64, Option<u16>);

/// Whether a flow is applied behind all others, its level, and whether it takes its packets.
type Order = (bool, u16, bool);

/// Flows without an order are never said to clash: the device decides.
fn place(flow: &FlowDigest, level: u16, limits: &Limits) -> Place {
    (flow.matches, is_ordered(flow, limits).then_some(level))
}

/// The device while a plan is carried out.
struct DeviceDuringPlan<'p> {
    plan: &'p Plan,
    installed: Option<PlacedProgram<'p>>,
    new: &'p DigestedProgram,
    common: Option<Correspondence<'p>>,
    /// The digests of the flows of each program.
    old_digests: &'p [FlowDigest],
    new_digests: &'p [FlowDigest],
    limits: &'p Limits,
    is_begun: bool,
    is_enforced: bool,
    /// By flow of the new program.
    is_in: Vec<bool>,
    /// By flow of the old program.
    is_out: Vec<bool>,
    /// The flow of the new program that each flow of the old one is, if it stays.
    stays: Vec<Option<usize>>,
    /// The new flows that come, by match; made when it is needed.
    coming: Option<HashMap<u64, usize>>,
    /// The places of flows that come, with how many flows there have each.
    places: HashMap<Place, usize>,
    /// The queue pairs of the new program that are there.
    queues: Vec<bool>,
    tables: Vec<bool>,
    /// The order of the last flow that was installed, and of the last that was removed.
    last_in: Order,
    last_out: Order,
    /// The tables of the device, each with the flows of one kind and level.
    fill: HashMap<(FlowKind, u16), TableFill<u64>>,
    /// The fronts of the flows of each program; made when they are needed.
    old_fronts: Option<Vec<FlowFront>>,
    new_fronts: Option<Vec<FlowFront>>,
}

impl<'p> DeviceDuringPlan<'p> {
    fn of(
        plan: &'p Plan,
        installed: Option<PlacedProgram<'p>>,
        new: &'p DigestedProgram,
        common: Option<Correspondence<'p>>,
        limits: &'p Limits,
    ) -> Self {
        let is_kept = |queue: usize| {
            let (queue, kept) = (QueueId::of(queue), plan.kept_queue(QueueId::of(queue)));
            common.zip(kept).is_some_and(|(common, old)| common.is_same_queue(old, queue))
        };
        let old = installed.map_or(&[][..], |old| &old.program.flows);
        let mut device = Self {
            plan,
            installed,
            new,
            common,
            old_digests: installed.map_or(&[], |old| old.program.digests()),
            new_digests: new.digests(),
            limits,
            is_begun: false,
            is_enforced: false,
            is_in: plan.kept.iter().map(Option::is_some).collect(),
            is_out: vec![false; old.len()],
            stays: vec![None; old.len()],
            coming: None,
            places: HashMap::new(),
            queues: (0..new.queues.len()).map(is_kept).collect(),
            tables: vec![false; plan.tables.len()],
            last_in: (false, 0, false),
            last_out: (true, u16::MAX, true),
            fill: HashMap::new(),
            old_fronts: None,
            new_fronts: None,
        };
        for (index, kept) in plan.kept.iter().enumerate() {
            kept.iter().for_each(|kept| device.stays[*kept] = Some(index));
        }
        // Of all others nothing is asked.
        let comes = plan.steps().filter_map(|step| match step {
            PlanStep::InstallFlow { flow } => Some(flow).filter(|flow| *flow < new.flows.len()),
            _ => None,
        });
        device.places = comes.map(|flow| (device.new_place(flow), 0)).collect();
        let matches: HashSet<u64> = device.places.keys().map(|(matches, _)| *matches).collect();
        for (index, flow) in device.old_digests.iter().enumerate() {
            if matches.contains(&flow.matches)
                && let Some(there) = device.places.get_mut(&device.old_place(index))
            {
                *there += 1;
            }
        }
        device
    }

    fn new_place(&self, flow: usize) -> Place {
        place(&self.new_digests[flow], self.plan.levels[flow], self.limits)
    }

    fn old_place(&self, flow: usize) -> Place {
        place(&self.old_digests[flow], self.old_level(flow), self.limits)
    }

    fn old_level(&self, flow: usize) -> u16 {
        self.installed.and_then(|old| old.levels.get(flow).copied()).unwrap_or(0)
    }

    fn order(&self, flow: &FlowDigest, level: u16) -> Order {
        if is_ordered(flow, self.limits) {
            (false, level, flow.kind != FlowKind::Copy)
        } else {
            (true, 0, true)
        }
    }

    fn follow(mut self) -> Result<(), PlanFault> {
        for step in self.plan.steps() {
            match step {
                PlanStep::Begin if !self.is_begun => self.is_begun = true,
                PlanStep::Enforce if self.is_begun && !self.is_enforced => self.enforce()?,
                PlanStep::Begin | PlanStep::Enforce => return Err(PlanFault::Stage),
                PlanStep::CreateTable { table } => match self.tables.get_mut(table) {
                    Some(made) => *made = true,
                    None => return Err(PlanFault::Stage),
                },
                PlanStep::CreateQueue { queue } => self.create_queue(queue)?,
                PlanStep::CreateCounter { .. } => {}
                PlanStep::InstallFlow { flow } => self.install(flow)?,
                PlanStep::RemoveFlow { flow } => self.remove(flow)?,
            }
        }
        if !self.is_enforced {
            return Err(PlanFault::Stage);
        }
        if let Some(missing) = self.is_in.iter().position(|is_in| !is_in) {
            return Err(PlanFault::Installed(missing));
        }
        let is_left = |(is_out, stays): (&bool, &Option<usize>)| !is_out && stays.is_none();
        match self.is_out.iter().zip(&self.stays).position(is_left) {
            Some(left) => Err(PlanFault::Removed(left)),
            None => Ok(()),
        }
    }

    /// From here on old flows go, so that all new ones must be there, but for a sniffer.
    fn enforce(&mut self) -> Result<(), PlanFault> {
        let is_missing = |(flow, is_in): (&FlowDigest, &bool)| !is_in && flow.kind != FlowKind::Sniffer;
        if let Some(flow) = self.new_digests.iter().zip(&self.is_in).position(is_missing) {
            return Err(PlanFault::Installed(flow));
        }
        self.is_enforced = true;
        Ok(())
    }

    fn create_queue(&mut self, queue: QueueId) -> Result<(), PlanFault> {
        let spec = self.new.queues.get(queue.index()).ok_or(PlanFault::Stage)?;
        let made = self.plan.table_of(queue).is_some_and(|table| self.tables[table]);
        let old = self.installed.map_or(&[][..], |old| &old.program.queues);
        if !made && old.iter().all(|known| known.table != spec.table) {
            return Err(PlanFault::Stage);
        }
        self.queues[queue.index()] = true;
        Ok(())
    }

    fn install(&mut self, index: usize) -> Result<(), PlanFault> {
        let flow = self.new.flows.get(index).ok_or(PlanFault::Installed(index))?;
        let level = self.plan.levels[index];
        let is_sniffer = flow.kind == FlowKind::Sniffer;
        let order = self.order(&self.new_digests[index], level);
        let is_early = !self.is_begun || (!is_sniffer && (self.is_enforced || order < self.last_in));
        if is_early || std::mem::replace(&mut self.is_in[index], true) {
            return Err(PlanFault::Installed(index));
        }
        if !is_sniffer {
            self.last_in = order;
        }
        if let FlowAction::Steer { queue, .. } = flow.action
            && self.queues.get(queue.index()) != Some(&true)
        {
            return Err(PlanFault::NoQueue(index));
        }
        let place = self.new_place(index);
        let there = self.places.entry(place).or_default();
        *there += 1;
        if *there > 1 && (is_sniffer || place.1.is_some()) {
            return Err(PlanFault::Clash(index));
        }
        if self.has_room(index, level) { Ok(()) } else { Err(PlanFault::NoRoom(index)) }
    }

    /// Takes a place in the table of a level, where the old flows are all the time.
    fn has_room(&mut self, index: usize, level: u16) -> bool {
        let (limits, digest) = (self.limits, &self.new_digests[index]);
        let Some(table) = limits.priority_table.filter(|_| is_ordered(digest, limits)) else { return true };
        let (old, levels) = (self.old_digests, self.installed.map_or(&[][..], |old| old.levels));
        let fill = self.fill.entry((digest.kind, level)).or_insert_with(|| {
            let at_level = old.iter().zip(levels).filter(|(_, of)| **of == level).map(|(known, _)| known);
            let beside = at_level.filter(|known| known.kind == digest.kind && is_ordered(known, limits));
            TableFill::with(table, beside.map(|known| known.mask))
        });
        fill.add(&digest.mask)
    }

    fn remove(&mut self, index: usize) -> Result<(), PlanFault> {
        let old = self.installed.map_or(&[][..], |old| &old.program.flows);
        let flow = old.get(index).ok_or(PlanFault::Removed(index))?;
        let level = self.old_level(index);
        let order = self.order(&self.old_digests[index], level);
        let is_early = match self.is_enforced {
            true => flow.kind != FlowKind::Sniffer && order > self.last_out,
            false => !self.is_replaced(index, level),
        };
        if is_early || self.stays[index].is_some() || std::mem::replace(&mut self.is_out[index], true) {
            return Err(PlanFault::Removed(index));
        }
        if self.is_enforced && flow.kind != FlowKind::Sniffer {
            self.last_out = order;
        }
        if let Some(there) = self.places.get_mut(&self.old_place(index)) {
            *there = there.saturating_sub(1);
        }
        Ok(())
    }

    /// Whether a new flow that covers the old one is there, and no old flow between them gets a packet. All
    /// that the new program puts before a flow is there once that flow is.
    fn is_replaced(&mut self, index: usize, level: u16) -> bool {
        let Some(old) = self.installed else { return false };
        let flow = &old.program.flows[index];
        let (new, plan, limits, digests) = (self.new, self.plan, self.limits, self.new_digests);
        let coming = self.coming.get_or_insert_with(|| {
            let comes = |(index, flow): &(usize, &FlowDigest)| {
                let is_by_tag = || decides_by_tag(new, &new.flows[*index]);
                plan.kept[*index].is_none() && is_ordered(flow, limits) && is_by_tag()
            };
            let mut first: HashMap<u64, usize> = HashMap::new();
            for (index, flow) in digests.iter().enumerate().filter(comes) {
                let known = first.entry(flow.matches).or_insert(index);
                if plan.levels[index] < plan.levels[*known] {
                    *known = index;
                }
            }
            first
        });
        let known = &self.old_digests[index];
        if !is_ordered(known, limits) || !decides_by_tag(old.program, flow) {
            return false;
        }
        let same = coming.get(&known.matches).copied().filter(|by| self.is_in[*by]);
        same.is_some_and(|by| !self.uncovers_an_old_flow(index, level, plan.levels[by]))
            || self
                .first_cover(index)
                .is_some_and(|by| !self.uncovers_an_old_flow(index, level, plan.levels[by]))
    }

    /// The flow of the highest level, of the new ones that came and are there, that matches all packets of an
    /// old one.
    fn first_cover(&mut self, index: usize) -> Option<usize> {
        let (flow, new) = (&self.installed?.program.flows[index], self.new);
        let fronts = self.new_fronts.get_or_insert_with(|| new.flows.iter().map(Flow::front).collect());
        let (front, cube) = (flow.front(), flow.cube()?);
        let covers = new.flows.iter().zip(fronts).enumerate().filter(|(by, (cover, of_cover))| {
            self.is_in[*by]
                && self.plan.kept[*by].is_none()
                && !front.is_apart(of_cover)
                && is_ordered(&self.new_digests[*by], self.limits)
                && decides_by_tag(new, cover)
                && (cover.kind == FlowKind::Egress) == (flow.kind == FlowKind::Egress)
                && cover.cube().is_some_and(|cover| cover.contains(cube))
        });
        covers.map(|(by, _)| by).min_by_key(|by| self.plan.levels[*by])
    }

    /// Whether an old flow behind one that goes, up to the level of the new one that covers it, shares
    /// packets with it and is not a flow of the new program that means the same.
    fn uncovers_an_old_flow(&mut self, index: usize, level: u16, until: u16) -> bool {
        let Some((old, common)) = self.installed.zip(self.common).filter(|_| level < until) else {
            return false;
        };
        let limits = self.limits;
        let flows = &old.program.flows;
        let fronts = self.old_fronts.get_or_insert_with(|| flows.iter().map(Flow::front).collect());
        let (flow, new) = (&flows[index], self.new);
        let (front, cube) = (fronts[index], flow.cube());
        flows.iter().zip(old.levels).zip(&*fronts).enumerate().any(|(other, ((known, of), of_known))| {
            (level < *of && *of <= until)
                && !front.is_apart(of_known)
                && is_ordered(&self.old_digests[other], limits)
                && !self.is_out[other]
                && (known.kind == FlowKind::Egress) == (flow.kind == FlowKind::Egress)
                && !self.stays[other].is_some_and(|stays| {
                    let is_steered = matches!(known.action, FlowAction::Steer { .. });
                    !is_steered || common.is_same_class_of(known, &new.flows[stays])
                })
                && cube.zip(known.cube()).is_some_and(|(one, other)| one.overlaps(other))
        })
    }
}

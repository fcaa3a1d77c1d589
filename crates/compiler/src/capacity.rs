//! What a program takes of a device, before anything is installed: flows, masks, priorities, counters, queue
//! pairs and tables against their limits. Called by `compile`, which refuses by it, and by `check`, which
//! shows it. Counts; changes nothing.

use std::collections::HashSet;

use device_model::{DeviceProfile, Limit};
use program::{Errno, Flow, FlowAction, FlowKind, Program, Spec, WorkerId};
use serde::Serialize;

use crate::{ByMask, Obstacle};

/// A program against a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// What the device is called.
    pub device: String,
    /// One row for each thing that can run out.
    pub rows: Vec<CapacityRow>,
    /// Each priority that has flows.
    pub priorities: Vec<PriorityUse>,
}

/// One thing that can run out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CapacityRow {
    /// Which limit.
    pub limit: Limit,
    /// What is counted, in words.
    pub what: &'static str,
    /// What the program takes.
    pub used: u64,
    /// What the program before takes beside it while both are there.
    pub previous: u64,
    /// What there is for both; `None`: the device does not say.
    pub most: Option<u64>,
    /// What the device answers beyond it.
    pub errno: Errno,
}

/// The flows of one priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PriorityUse {
    /// Counted from 0 within the program.
    pub priority: u16,
    /// How many flows.
    pub flows: u64,
    /// How many different masks they have.
    pub shapes: u64,
    /// The most flows of one mask.
    pub largest_shape: u64,
    /// The most masks with more than one flow, and flows in each, if the device limits them.
    pub most: Option<(u32, u32)>,
}

/// The masks of a program's flows, numbered, so that each is written out once.
struct Masks {
    /// By flow its mask's number; `None` for what has no mask.
    of_flows: Vec<Option<usize>>,
    /// By number how many flows have the mask.
    flows: Vec<usize>,
    /// How many masks flows have that take packets; those of copies are not kept by mask.
    taking: usize,
    /// How many more the program before has.
    previous: usize,
}

impl Masks {
    fn of(program: &Program, previous: Option<&Program>) -> Self {
        let mut numbers: ByMask<(FlowKind, usize, Vec<Spec>), usize> = ByMask::default();
        let mut masks = Self { of_flows: Vec::new(), flows: Vec::new(), taking: 0, previous: 0 };
        for flow in &program.flows {
            let next = masks.flows.len();
            let number =
                (flow.kind != FlowKind::Sniffer).then(|| *numbers.entry(flow.shape()).or_insert(next));
            if number == Some(next) {
                masks.flows.push(0);
                masks.taking += usize::from(takes(flow));
            }
            if let Some(number) = number {
                masks.flows[number] += 1;
            }
            masks.of_flows.push(number);
        }
        for flow in previous.iter().flat_map(|previous| &previous.flows).filter(|flow| takes(flow)) {
            let next = masks.flows.len();
            let number = *numbers.entry(flow.shape()).or_insert(next + masks.previous);
            masks.previous += usize::from(number == next + masks.previous);
        }
        masks
    }

    /// The first flow of the mask that fewest have.
    fn rarest<'p>(&self, program: &'p Program) -> Option<&'p Flow> {
        let taking = program.flows.iter().zip(&self.of_flows).filter(|(flow, _)| takes(flow));
        taking.min_by_key(|(_, number)| number.map(|number| self.flows[number])).map(|(flow, _)| flow)
    }
}

impl Capacity {
    /// What `program` takes, beside `previous` if that is on the device.
    #[must_use]
    pub fn of(program: &Program, profile: &DeviceProfile, previous: Option<&Program>) -> Self {
        Self::with(&Masks::of(program, previous), program, profile, previous)
    }

    fn with(masks: &Masks, program: &Program, profile: &DeviceProfile, previous: Option<&Program>) -> Self {
        let before = |count: &dyn Fn(&Program) -> usize| previous.map_or(0, count) as u64;
        let row = |limit, what, count: &dyn Fn(&Program) -> usize, most: Option<u64>| CapacityRow {
            limit,
            what,
            used: count(program) as u64,
            previous: before(count),
            most,
            errno: profile.errno(limit),
        };
        // Priorities are halved already: each program has its own half.
        let own = |limit, what, used: u64, most| CapacityRow {
            limit,
            what,
            used,
            previous: 0,
            most,
            errno: profile.errno(limit),
        };
        let wide = |most: Option<u32>| most.map(u64::from);
        let priorities = u64::from(profile.priorities_per_program());
        let specs = program.flows.iter().map(|flow| flow.specs.len() + actions(flow)).max().unwrap_or(0);
        let longest = program.queues.iter().map(|queue| queue.table.len()).max().unwrap_or(0);
        let tags = if profile.has_tags() { program::CLASSES_MAX } else { 1 };
        let rows = vec![
            own(Limit::Priorities, "priorities", u64::from(program.priorities_used), Some(priorities)),
            row(Limit::Flows, "flows", &|program| program.flows.len(), wide(profile.max_flows)),
            CapacityRow {
                previous: masks.previous as u64,
                ..own(Limit::Shapes, "mask shapes", masks.taking as u64, wide(profile.max_shapes))
            },
            own(Limit::Specs, "specs of one flow", specs as u64, Some(u64::from(profile.max_specs))),
            row(Limit::Queues, "queue pairs", &|program| program.queues.len(), wide(profile.max_queues)),
            row(Limit::Tables, "indirection tables", &tables, wide(profile.max_tables)),
            own(Limit::Tables, "entries of one table", longest as u64, Some(u64::from(profile.max_table))),
            row(Limit::Counters, "counters", &counters, wide(profile.max_counters)),
            row(Limit::Copies, "flows that copy", &copies, wide(profile.max_copies)),
            own(Limit::Sniffers, "flows that sniff", sniffers(program) as u64, Some(1)),
            own(Limit::Tags, "classes", program.classes.len() as u64, Some(u64::from(tags))),
        ];
        Self { device: profile.name.clone(), rows, priorities: by_priority(masks, program, profile) }
    }

    /// The row of a limit.
    #[must_use]
    pub fn row(&self, limit: Limit) -> Option<&CapacityRow> {
        self.rows.iter().find(|row| row.limit == limit)
    }

    /// What the device has too little of for the program, each with a label for the rule that is blamed.
    pub(crate) fn obstacles(
        program: &Program,
        profile: &DeviceProfile,
        previous: Option<&Program>,
    ) -> Vec<(Obstacle, &'static str)> {
        let masks = Masks::of(program, previous);
        let capacity = Self::with(&masks, program, profile, previous);
        let exceeded = capacity.rows.iter().filter(|row| row.exceeds());
        let blamed = exceeded.map(|row| match blamed(row, &masks, program) {
            Some((rule, label)) => (Obstacle { rule: Some(rule), ..capacity.obstacle(row) }, label),
            None => (capacity.obstacle(row), ""),
        });
        blamed.collect()
    }

    fn obstacle(&self, row: &CapacityRow) -> Obstacle {
        let most = row.most.unwrap_or(0);
        let before = match row.previous {
            0 => String::new(),
            previous => format!(" beside {previous} of the program before"),
        };
        let remedy = match row.limit {
            Limit::Queues => "hash = \"l3\" takes three queue pairs per group, \"none\" one",
            Limit::Shapes => "use fewer different prefix lengths, port ranges and keys",
            Limit::Tables => "give groups the same workers and table sizes, so that they share tables",
            Limit::Copies => "copy by fewer values: each takes a flow",
            Limit::Counters => "write fewer rules that drop",
            _ => "write fewer rules",
        };
        Obstacle {
            rule: None,
            reason: format!(
                "the policy takes {} {}{before}, `{}` has {most}",
                row.used, row.what, self.device
            ),
            limit: format!("{most} {}", row.what),
            errno: Some(row.errno),
            remedy: remedy.to_owned(),
        }
    }
}

impl CapacityRow {
    /// Whether it does not fit. Counters that are missing cost counts, no packets: that is no reason to refuse.
    #[must_use]
    pub fn exceeds(&self) -> bool {
        self.limit != Limit::Counters && self.most.is_some_and(|most| self.used + self.previous > most)
    }

    /// Whether this program and another one like it would not fit together, as a reload needs.
    #[must_use]
    pub fn blocks_a_reload(&self) -> bool {
        let doubled = matches!(self.limit, Limit::Flows | Limit::Queues | Limit::Copies)
            || (self.limit == Limit::Tables && self.what != "entries of one table");
        doubled && self.most.is_some_and(|most| self.used * 2 > most)
    }
}

/// The rule that a shortage shows best, if it is not the groups' or everybody's.
fn blamed(row: &CapacityRow, masks: &Masks, program: &Program) -> Option<(usize, &'static str)> {
    let (flow, label) = match row.limit {
        Limit::Shapes => (masks.rarest(program), "one of its masks is the rarest"),
        Limit::Copies => {
            let mut copies = program.flows.iter().filter(|flow| flow.kind == FlowKind::Copy);
            let room = row.most.unwrap_or(0).saturating_sub(row.previous);
            (copies.nth(usize::try_from(room).unwrap_or(usize::MAX)), "up to here they fit")
        }
        _ => return None,
    };
    let rule = flow?.rule;
    (rule != program.default_rule()).then_some((rule.index(), label))
}

/// The tag or the destination that is none, and a counter.
fn actions(flow: &Flow) -> usize {
    match (flow.kind, flow.action) {
        (FlowKind::Sniffer, _) => 0,
        (_, FlowAction::Steer { .. }) => 1,
        (_, FlowAction::Drop) => 2,
        (_, FlowAction::Pass) => 1,
    }
}

fn takes(flow: &Flow) -> bool {
    matches!(flow.kind, FlowKind::Normal | FlowKind::Egress)
}

fn tables(program: &Program) -> usize {
    program.queues.iter().map(|queue| &queue.table).collect::<HashSet<&Vec<WorkerId>>>().len()
}

fn counters(program: &Program) -> usize {
    let counted = program.flows.iter().filter(|flow| !matches!(flow.action, FlowAction::Steer { .. }));
    counted.map(|flow| flow.rule).collect::<HashSet<_>>().len()
}

fn copies(program: &Program) -> usize {
    program.flows.iter().filter(|flow| flow.kind == FlowKind::Copy).count()
}

fn sniffers(program: &Program) -> usize {
    program.flows.iter().filter(|flow| flow.kind == FlowKind::Sniffer).count()
}

fn by_priority(masks: &Masks, program: &Program, profile: &DeviceProfile) -> Vec<PriorityUse> {
    let flows = program.flows.iter().zip(&masks.of_flows);
    let mut found: Vec<(u16, usize)> =
        flows.filter_map(|(flow, number)| Some((flow.priority, (*number)?))).collect();
    found.sort_unstable();
    let most = profile.priority_table.map(|table| (table.groups, table.group_entries));
    let uses = found.chunk_by(|one, other| one.0 == other.0).map(|flows| {
        let shapes = flows.chunk_by(|one, other| one.1 == other.1).map(<[_]>::len);
        PriorityUse {
            priority: flows[0].0,
            flows: flows.len() as u64,
            shapes: shapes.clone().count() as u64,
            largest_shape: shapes.max().unwrap_or(0) as u64,
            most,
        }
    });
    uses.collect()
}

use super::*;
use crate::{EntrySample, largest_to_mean};

const SECOND: u64 = NS_PER_S;

/// A group with its traffic: the load of each entry, which its worker takes in full.
#[derive(Clone)]
struct Traffic {
    table: Vec<WorkerId>,
    workers: Vec<WorkerId>,
    entries: Vec<EntrySample>,
}

impl Traffic {
    /// A table by turns, with many small flows in each entry.
    fn new(workers: u32, loads: &[u64]) -> Self {
        let all: Vec<WorkerId> = (0..workers).map(WorkerId).collect();
        let table = all.iter().copied().cycle().take(loads.len()).collect();
        let entry = |load: &u64| EntrySample { cost: *load, largest_flow: load / 1000, is_idle: false };
        Self { table, workers: all, entries: loads.iter().map(entry).collect() }
    }

    fn busy(&self) -> BTreeMap<WorkerId, u64> {
        let mut busy: BTreeMap<WorkerId, u64> = self.workers.iter().map(|worker| (*worker, 0)).collect();
        for (worker, entry) in self.table.iter().zip(&self.entries) {
            *busy.get_mut(worker).expect("a worker") += entry.cost;
        }
        busy
    }

    fn step(&mut self, balancer: &mut Balancer, now_ns: u64) -> GroupStep {
        let busy_ns = self.busy();
        let group = GroupSample { table: &self.table, workers: &self.workers, entries: &self.entries };
        let period = PeriodSample { now_ns, period_ns: SECOND, busy_ns: &busy_ns, groups: &[group] };
        let step = balancer.step(&period).remove(0);
        for moved in &step.moves {
            assert_eq!(self.table[moved.entry], moved.from);
            self.table[moved.entry] = moved.to;
        }
        assert_eq!(step.after_ns, self.busy(), "the prediction");
        step
    }
}

fn balancer() -> Balancer {
    Balancer::new(BalanceLimits::default())
}

fn ms(loads: &[u64]) -> Vec<u64> {
    loads.iter().map(|load| load * 1_000_000).collect()
}

#[test]
fn an_uneven_group_becomes_even() {
    // Worker 0 has the heavy entries: 800 of 1000 ms, the others 160.
    let loads: Vec<u64> = (0..64).map(|entry| if entry % 4 == 0 { 50 } else { 10 }).collect();
    let mut traffic = Traffic::new(4, &ms(&loads));
    let mut balancer = balancer();
    assert!(traffic.step(&mut balancer, SECOND).moves.len() > 4);
    // Where no move helps, two workers differ by less than an entry.
    let busy = traffic.busy();
    assert!(busy.values().max() < busy.values().min().map(|least| least + 50_000_000).as_ref(), "{busy:?}");
    for second in 2..30 {
        assert_eq!(traffic.step(&mut balancer, second * SECOND).moves, [], "second {second}");
    }
}

#[test]
fn equally_full_workers_do_not_oscillate() {
    // Two entries each. Up to 15% by chance, in turn on one worker and the other.
    let mut balancer = balancer();
    for second in 1..200 {
        let (more, less) = if second % 2 == 0 { (345, 255) } else { (255, 345) };
        let step = Traffic::new(2, &ms(&[more, less, more, less])).step(&mut balancer, second * SECOND);
        assert_eq!((step.moves.len(), step.end), (0, StepEnd::Balanced), "second {second}");
    }
}

#[test]
fn an_entry_that_would_only_swap_loads_stays() {
    let mut traffic = Traffic::new(2, &ms(&[800, 10]));
    traffic.entries[0].largest_flow = 400_000_000;
    let step = traffic.step(&mut balancer(), SECOND);
    assert_eq!((step.moves.len(), step.end), (0, StepEnd::NoGain));
    assert!(step.elephants.is_empty(), "two flows of 400 can be split, by another key");
}

#[test]
fn an_elephant_is_named_and_left_alone() {
    // A flow of 700 of 1000 on one of four workers, with small entries beside it.
    let loads = [700, 80, 10, 10, 60, 80, 10, 10, 50, 80, 10, 0];
    let mut traffic = Traffic::new(4, &ms(&loads));
    traffic.entries[0].largest_flow = traffic.entries[0].cost;
    let mut balancer = balancer();
    let first = traffic.step(&mut balancer, SECOND);
    assert_eq!(first.elephants, [ElephantFlow { entry: 0, worker: WorkerId(0), load_ns: 700_000_000 }]);
    assert_eq!(first.end, StepEnd::Elephant);
    assert!(first.moves.iter().all(|moved| moved.entry != 0), "{first:#?}");
    assert_eq!(first.after_ns[&WorkerId(0)], 700_000_000, "it has a worker for itself");
    let others =
        first.after_ns.iter().filter(|(worker, _)| worker.0 != 0).map(|(worker, load)| (*worker, *load));
    assert!(largest_to_mean(&others.collect()).is_some_and(|ratio| ratio < 1.3), "{first:#?}");
    for second in 2..30 {
        assert_eq!(traffic.step(&mut balancer, second * SECOND).moves, [], "second {second}");
    }
}

#[test]
fn idle_entries_move_before_small_and_large() {
    let mut traffic = Traffic::new(2, &ms(&[100, 0, 100, 0, 100, 0, 100, 0]));
    traffic.entries[0].largest_flow = 90_000_000;
    traffic.entries[4].is_idle = true;
    traffic.entries[6].largest_flow = 90_000_000;
    let step = traffic.step(&mut balancer(), SECOND);
    let order: Vec<(usize, MoveOrder)> = step.moves.iter().map(|moved| (moved.entry, moved.order)).collect();
    assert_eq!(order, [(4, MoveOrder::Idle), (2, MoveOrder::Small)]);
    let mut traffic = Traffic::new(2, &ms(&[300, 0, 300, 0]));
    traffic.entries[0].largest_flow = 290_000_000;
    traffic.entries[2].largest_flow = 290_000_000;
    assert_eq!(traffic.step(&mut balancer(), SECOND).moves[0].order, MoveOrder::Large, "the last resort");
}

#[test]
fn moves_are_limited_by_step_and_second() {
    let limits = BalanceLimits { moves_per_step: 4, moves_per_second: 6, ..BalanceLimits::default() };
    let mut traffic = Traffic::new(2, &ms(&[10, 0].repeat(64)));
    let mut balancer = Balancer::new(limits);
    let moves = |traffic: &mut Traffic, balancer: &mut Balancer, now_ns| {
        let step = traffic.step(balancer, now_ns);
        (step.moves.len(), step.end)
    };
    assert_eq!(moves(&mut traffic, &mut balancer, SECOND), (4, StepEnd::MovesUsed));
    assert_eq!(moves(&mut traffic, &mut balancer, SECOND), (2, StepEnd::MovesUsed));
    assert_eq!(moves(&mut traffic, &mut balancer, SECOND + SECOND / 3), (2, StepEnd::MovesUsed));
    assert_eq!(
        moves(&mut traffic, &mut balancer, 100 * SECOND),
        (4, StepEnd::MovesUsed),
        "nothing is saved up"
    );
    let mut none = Balancer::new(BalanceLimits { moves_per_second: 0, ..limits });
    assert_eq!(moves(&mut traffic, &mut none, SECOND), (0, StepEnd::MovesUsed));
}

#[test]
fn a_moved_entry_stays_for_a_while() {
    let mut balancer = balancer();
    let mut traffic = Traffic::new(2, &ms(&[200, 0, 200, 0, 200, 0]));
    let moved = traffic.step(&mut balancer, SECOND).moves;
    assert_eq!(moved.iter().map(|moved| moved.entry).collect::<Vec<_>>(), [0]);
    // The hot spot is now on the other worker, in this entry and another one.
    for (entry, cost) in traffic.entries.iter_mut().zip(ms(&[250, 250, 50, 0, 50, 0])) {
        entry.cost = cost;
    }
    let first_move = |now_ns| traffic.clone().step(&mut balancer.clone(), now_ns).moves[0].entry;
    assert_eq!((first_move(5 * SECOND), first_move(11 * SECOND)), (1, 0));
}

#[test]
fn idle_workers_and_missing_samples_move_nothing() {
    let idle = Traffic::new(2, &ms(&[100, 0, 50, 0])).step(&mut balancer(), SECOND);
    assert_eq!((idle.moves.len(), idle.end), (0, StepEnd::NotBusy), "the fullest is busy for 15%");
    let alone = Traffic::new(1, &ms(&[900, 50])).step(&mut balancer(), SECOND);
    assert_eq!((alone.moves.len(), alone.end), (0, StepEnd::OneWorker));
    let table = [WorkerId(0), WorkerId(1)];
    let group = GroupSample { table: &table, workers: &table, entries: &[EntrySample::default(); 2] };
    let busy_ns = [(WorkerId(0), 900_000_000)].into();
    let period = PeriodSample { now_ns: SECOND, period_ns: SECOND, busy_ns: &busy_ns, groups: &[group] };
    let step = balancer().step(&period).remove(0);
    assert_eq!((step.moves.len(), step.end), (0, StepEnd::NotSampled));
    assert!(balancer().step(&PeriodSample { groups: &[], ..period }).is_empty());
}

/// Loads of shared workers are of all groups, and a group moves entries to its own workers only.
#[test]
fn groups_with_shared_workers_move_once() {
    let both = [WorkerId(0), WorkerId(1)];
    let entries = [EntrySample { cost: 100_000_000, largest_flow: 0, is_idle: false }; 4];
    let table = [WorkerId(0); 4];
    let first = GroupSample { table: &table, workers: &both, entries: &entries };
    let busy_ns = [(WorkerId(0), 800_000_000), (WorkerId(1), 0)].into();
    let period =
        PeriodSample { now_ns: SECOND, period_ns: SECOND, busy_ns: &busy_ns, groups: &[first, first] };
    let steps = balancer().step(&period);
    assert_eq!(steps.iter().map(|step| step.moves.len()).collect::<Vec<_>>(), [4, 0]);
    assert!(
        steps
            .iter()
            .all(|step| step.after_ns == [(WorkerId(0), 400_000_000), (WorkerId(1), 400_000_000)].into())
    );
    let alone = GroupSample { workers: &both[..1], ..first };
    let steps = balancer().step(&PeriodSample { groups: &[alone], ..period });
    assert_eq!((steps[0].moves.len(), steps[0].end), (0, StepEnd::OneWorker));
}

#[test]
fn extreme_loads_do_not_overflow() {
    let mut traffic = Traffic::new(2, &[u64::MAX / 4, 1, u64::MAX / 4, 1]);
    let step = traffic.step(&mut balancer(), u64::MAX);
    assert_eq!(step.moves.len(), 1, "{step:#?}");
}

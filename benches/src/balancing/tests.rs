use super::*;

const SEEDS: [u64; 2] = [1, 2];

/// Runs without balancing, with that of steerd and with RSS++.
fn runs(scenario: &Scenario, seed: u64) -> [SimulatedRun; 3] {
    let strategies: [&mut dyn BalanceStrategy; 3] =
        [&mut FixedTable, &mut SteerdBalancer::default(), &mut RssPlusPlus];
    strategies.map(|strategy| simulate(scenario, strategy, seed))
}

fn for_all(check: impl Fn(&Scenario, u64, String)) {
    for scenario in scenarios() {
        for seed in SEEDS {
            check(&scenario, seed, format!("{}, seed {seed}", scenario.name));
        }
    }
}

fn steerd_run(scenario: &Scenario, seed: u64) -> SimulatedRun {
    simulate(scenario, &mut SteerdBalancer::default(), seed)
}

/// The factors are those of the documentation.
#[test]
fn balancing_is_not_worse_than_others() {
    for_all(|scenario, seed, place| {
        let [fixed, steerd, rsspp] = runs(scenario, seed);
        let (ratio, loss) = (steerd.imbalance_p95(), steerd.loss());
        assert!(loss <= fixed.loss() + 0.001, "{place}: loss {loss} and {} without", fixed.loss());
        if scenario.shifts_every.is_none() {
            assert!(ratio <= fixed.imbalance_p95() * 1.02, "{place}: {ratio} and {}", fixed.imbalance_p95());
            let (settled, theirs) = (steerd.settled_imbalance(), rsspp.settled_imbalance());
            assert!(settled <= theirs * 1.25, "{place}: {settled} and {theirs} with RSS++");
        }
        assert!(loss <= rsspp.loss() + 0.02, "{place}: loss {loss} and {} with RSS++", rsspp.loss());
    });
}

#[test]
fn steady_traffic_is_balanced_soon() {
    for_all(|scenario, seed, place| {
        if scenario.shifts_every.is_none() {
            let steerd = steerd_run(scenario, seed);
            let steps = steerd.steps_until_balanced();
            assert!(steps.is_some_and(|steps| steps <= 5), "{place}: {steps:?}, {:?}", steerd.imbalances);
        }
    });
}

/// Moves of entries to and fro would be as frequent at the end as at the start. Workers with equal loads,
/// whose samples differ by chance, have none.
#[test]
fn steady_traffic_needs_few_moves_later() {
    for_all(|scenario, seed, place| {
        let steerd = steerd_run(scenario, seed);
        if scenario.shifts_every.is_none() {
            let (early, late) = steerd.moves.split_at(PERIODS / 2);
            let (early, late): (usize, usize) = (early.iter().sum(), late.iter().sum());
            assert!(late * 2 <= early, "{place}: {:?}", steerd.moves);
        }
        if scenario.workers == 2 {
            assert_eq!(steerd.table_changes(), 0, "{place}: {:?}", steerd.moves);
        }
    });
}

#[test]
fn packets_are_lost_or_take_their_time() {
    let mut queue = WorkerQueue::default();
    let taken = (0..2000).filter_map(|_| queue.receive(0, 1000)).count();
    assert_eq!(taken, QUEUE_PACKETS);
    assert_eq!(queue.end_period(100_000), 100_000, "busy for the whole period");
    assert_eq!(queue.end_period(2_000_000), QUEUE_PACKETS as u64 * 1000 - 100_000, "and until all have left");
    assert_eq!(queue.receive(2_000_000, 1000), Some(2_001_000));
}

#[test]
fn a_moved_flow_can_be_reordered() {
    struct Swap;
    impl BalanceStrategy for Swap {
        fn moves(&mut self, period: &SimulatedPeriod<'_>) -> Vec<(usize, WorkerId)> {
            let other = |worker: &WorkerId| WorkerId((worker.0 + 1) % period.workers.len() as u32);
            period.table.iter().map(other).enumerate().collect()
        }
    }
    let scenario = scenarios().into_iter().find(|scenario| scenario.name == "Zipf 1.2").expect("it is there");
    assert!(simulate(&scenario, &mut Swap, 1).reordered > 0);
    assert_eq!(simulate(&scenario, &mut FixedTable, 1).reordered, 0, "one queue keeps the order");
}

//! `make bench ARGS='--bench balance'`: imbalance, loss, reordering and changes of the table in a simulation,
//! without balancing, with that of steerd and with RSS++ on the same packets. Medians of seeds. The figures
//! are in docs/explanation/balance.md.
#![forbid(unsafe_code)]

use steerd_benches::balancing::{
    BALANCED, BalanceStrategy, FixedTable, PERIODS, RssPlusPlus, SimulatedRun, SteerdBalancer, scenarios,
    simulate,
};
use steerd_benches::median;

const SEEDS: u64 = 5;

fn main() {
    println!(
        "simulated, {PERIODS} periods of 1 s, medians of {SEEDS} seeds; balanced: at most {BALANCED} of the least\n"
    );
    println!(
        "| traffic | strategy | imbalance, p95 | at the end | least | steps | lost | reordered | moves | table changes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for scenario in scenarios() {
        let row_of = |name: &str, strategy: fn() -> Box<dyn BalanceStrategy>| {
            let runs: Vec<SimulatedRun> =
                (1..=SEEDS).map(|seed| simulate(&scenario, &mut *strategy(), seed)).collect();
            println!("| {} | {name} | {} |", scenario.name, row(&runs).join(" | "));
        };
        row_of("none", || Box::new(FixedTable));
        row_of("steerd", || Box::new(SteerdBalancer::default()));
        row_of("RSS++", || Box::new(RssPlusPlus));
    }
}

/// The cells of a strategy.
fn row(runs: &[SimulatedRun]) -> [String; 8] {
    let of = |figure: &dyn Fn(&SimulatedRun) -> f64| median(runs.iter().map(figure).collect());
    let steps = of(&|run| run.steps_until_balanced().map_or(f64::INFINITY, |steps| steps as f64));
    [
        format!("{:.2}", of(&SimulatedRun::imbalance_p95)),
        format!("{:.2}", of(&SimulatedRun::settled_imbalance)),
        format!("{:.2}", of(&|run| median(run.least.clone()))),
        if steps.is_finite() { format!("{steps:.0}") } else { "never".to_owned() },
        format!("{:.2} %", 100.0 * of(&SimulatedRun::loss)),
        format!("{:.0}", of(&|run| run.reordered as f64)),
        format!("{:.0}", of(&|run| run.moves.iter().sum::<usize>() as f64)),
        format!("{:.0}", of(&|run| run.table_changes() as f64)),
    ]
}

//! The whole daemon on a soft NIC that refuses what an mlx5 refuses, beside one that takes every flow
//! (`ideal`), with the same rules and the same traffic. On `mlx5` rules that do not fit are decided by the
//! worker, behind a wide flow: less to look up for the engine, more for the worker. The soft NIC's engine
//! does in software what a NIC does in hardware, so the rows compare what the two programs cost, and are not
//! the speed of a NIC.

use std::time::Duration;

use device_model::DeviceModel;
use packet::DeepKey;
use policy::{NoFiles, Source};
use reports::{Decisions, TrafficShare, TrafficShares};
use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::daemon::{Daemon, DaemonOptions, Provider};
use steerd_benches::rules::RuleSet;
use steerd_benches::table::Row;

use super::inputs::{Inputs, Traffic, looped};
use super::{CORE, OTHER_CORE, SIZES, own_command};

pub(crate) const TABLE: &str = "personalities";
const SETS: [&str; 5] = ["acl1_1k", "fw1_1k", "ipc1_1k", "acl1_10k", "ipc1_10k"];
const TRAFFICS: [Traffic; 2] = [Traffic::Flows(1000), Traffic::Flows(100_000)];
const IDEAL: &str = "ideal";
const MLX5: &str = "mlx5";
const MILLISECONDS: u64 = 500;
const WARM_UP: Duration = Duration::from_millis(150);
/// Packets of a trace of which it is found out where they are decided.
const SAMPLE: usize = 1000;

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    for name in SETS {
        let set = match inputs.set(name) {
            Ok(set) => set,
            Err(why) => {
                cases.push(Case::missing(row(name, "all flows", MLX5), &why));
                continue;
            }
        };
        for traffic in TRAFFICS {
            let personalities = [(IDEAL, DeviceModel::ideal()), (MLX5, DeviceModel::mlx5().in_software())];
            cases
                .extend(personalities.map(|(name, profile)| daemon(inputs, &set, traffic, (name, &profile))));
        }
    }
    cases
}

fn row(set: &str, traffic: &str, personality: &str) -> Row {
    let mut row = Row::new(TABLE, format!("{set}, {traffic}: {personality}"), SIZES[0], "Mpps");
    row.command = own_command(TABLE);
    row
}

fn daemon<'i>(
    inputs: &'i Inputs,
    set: &RuleSet,
    traffic: Traffic,
    (personality, profile): (&'static str, &DeviceModel),
) -> Case<'i> {
    let mut row = row(&set.name, &traffic.name(), personality);
    let replay = match inputs.replay(set, traffic, SIZES[0]) {
        Ok(replay) => replay,
        Err(why) => return Case::missing(row, &why),
    };
    let policy = set.delivering().policy_text();
    row.note = match share(&policy, profile, set, traffic) {
        Ok(share) => words(&share),
        Err(why) => return Case::missing(row, &why),
    };
    Case::new(row, move || {
        let options = DaemonOptions {
            wire: looped(&replay.capture),
            second_wire: None,
            policy: &policy,
            personality,
            provider: Provider::SoftNic,
            engine_core: CORE,
            worker_core: OTHER_CORE,
        };
        let daemon = Daemon::start(&inputs.subfolder(TABLE)?, &options)?;
        std::thread::sleep(WARM_UP);
        daemon.rate(inputs.round(MILLISECONDS)).map(|rate| rate / 1e6)
    })
}

/// Where the packets of the trace are decided, of a sample that is evenly spread, by the program that the
/// daemon compiles.
fn share(
    policy: &str,
    profile: &DeviceModel,
    set: &RuleSet,
    traffic: Traffic,
) -> Result<TrafficShare, String> {
    let source = Source::new("bench.toml", policy);
    let (policy, _) = policy::parse(&source, &NoFiles).map_err(|_| "the policy is not valid".to_owned())?;
    let program =
        compiler::compile(&policy, profile, 1).map_err(|_| "the policy does not compile".to_owned())?;
    let trace = traffic.trace(set);
    let (mut shares, mut decisions) =
        (TrafficShares::new(&program, trace.len() as u64), Decisions::new(&program));
    for frame in trace.frames(SIZES[0]).step_by((trace.len() / SAMPLE).max(1)) {
        shares.add(decisions.of(&DeepKey::of(&frame)), frame.len() as u64);
    }
    Ok(shares.all)
}

fn words(share: &TrafficShare) -> String {
    let percent = share.in_hardware.packets as f64 * 100.0 / share.all.packets.max(1) as f64;
    let text = format!("{percent:.1} % in hardware");
    if share.by_workers.packets == 0 {
        return text;
    }
    format!(
        "{text}, the others by the worker, compared with {:.1} rules each",
        share.comparisons_per_packet()
    )
}

/// `mlx5` beside `ideal`.
pub(crate) fn ratios(_: &Inputs, rows: &[Row]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    for own in &rows {
        let Some(question) = own.what.strip_suffix(MLX5) else { continue };
        let ideal = rows.iter().find(|row| row.what.strip_suffix(IDEAL) == Some(question));
        ratios.extend(ideal.map(|ideal| Ratio::of(own, ideal)));
    }
    ratios
}

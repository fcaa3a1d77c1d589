//! The worker of a daemon on the soft NIC's own provider of libibverbs and on rdma-core's unmodified one for
//! an mlx5, over a model of that device (`softnic exec --method mlx5`), by the functions of that provider and
//! directly (`device.receive`): the cost of a real NIC's polling code. The rest of the worker is the same.
//!
//! By the worker's own times: poll, classify and count, one rule, which matches every packet. The model
//! writes completions and reads posted buffers from the provider's rings, as the device would, on the other
//! core. Where it is slower than the worker, batches are small, and a packet costs more than it would at the
//! worker's full rate.

use std::time::Duration;

use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::daemon::{Daemon, DaemonOptions, Provider};
use steerd_benches::table::Row;

use super::inputs::{Inputs, Traffic, looped, one_rule};
use super::{CORE, OTHER_CORE, SIZES, own_command};

pub(crate) const TABLE: &str = "providers";
const OWN: &str = "worker on the soft NIC's provider";
const MLX5: &str = "worker on rdma-core's mlx5 provider";
const DIRECT: &str = "worker on rdma-core's mlx5 provider, direct";
const TRAFFIC: Traffic = Traffic::Flows(1000);
const MILLISECONDS: u64 = 500;
const WARM_UP: Duration = Duration::from_millis(150);

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let kinds = [(OWN, Provider::SoftNic), (MLX5, Provider::Mlx5), (DIRECT, Provider::Mlx5Direct)];
    SIZES.into_iter().flat_map(|bytes| kinds.map(|kind| worker(inputs, kind, bytes))).collect()
}

fn worker<'i>(inputs: &'i Inputs, (what, provider): (&str, Provider), bytes: u32) -> Case<'i> {
    let mut row = Row::new(TABLE, what, bytes, "ns");
    row.command = own_command(TABLE);
    let replay = match inputs.set("acl1_1k").and_then(|set| inputs.replay(&set, TRAFFIC, bytes)) {
        Ok(replay) => replay,
        Err(why) => return Case::missing(row, &why),
    };
    let policy = one_rule().delivering().policy_text();
    Case::new(row, move || {
        let options = DaemonOptions {
            wire: looped(&replay.capture),
            second_wire: None,
            policy: &policy,
            personality: "mlx5",
            provider,
            engine_core: CORE,
            worker_core: OTHER_CORE,
        };
        let daemon = Daemon::start(&inputs.subfolder(TABLE)?, &options)?;
        std::thread::sleep(WARM_UP);
        daemon.worker_ns(inputs.round(MILLISECONDS))
    })
}

/// rdma-core's, used in both ways, beside the soft NIC's.
pub(crate) fn ratios(_: &Inputs, rows: &[Row]) -> Vec<Ratio> {
    let find = |what: &str, bytes| rows.iter().find(|row| row.what == what && row.frame_bytes == bytes);
    let mlx5 = SIZES.into_iter().flat_map(|bytes| [(MLX5, bytes), (DIRECT, bytes)]);
    let pairs = mlx5.filter_map(|(what, bytes)| find(what, bytes).zip(find(OWN, bytes)));
    pairs.map(|(mlx5, own)| Ratio::of(mlx5, own)).collect()
}

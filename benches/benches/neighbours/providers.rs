//! The worker of a daemon on the soft NIC's own provider of libibverbs and on rdma-core's unmodified one for
//! an mlx5, over a model of that device (`softnic exec --method mlx5`), by the functions of that provider and
//! directly (`device.receive`): the cost of a real NIC's polling code. The rest of the worker is the same.
//!
//! Poll, classify and count, one rule, which matches every packet; and with the sink `forward`. The model
//! writes completions and reads posted buffers from the provider's rings, as the device would, on the other
//! core.
//!
//! Twice: with a full queue, which is what limits the worker's rate, by a process of this program for each
//! round ([`BackloggedWorker`]); and a daemon that keeps up, by its worker's own times. There, batches are
//! small where the model is slower than the worker, each completion is fetched from the other core as soon
//! as it is written, and a packet costs more than it would at the worker's full rate.

use std::time::Duration;

use steerd_benches::comparison::{Case, Ratio};
use steerd_benches::daemon::{Daemon, DaemonOptions, Provider};
use steerd_benches::full_queue::{BackloggedWorker, run_client};
use steerd_benches::table::Row;

use super::inputs::{Inputs, Traffic, looped, one_rule};
use super::{CORE, OTHER_CORE, SIZES, own_command, pin};

pub(crate) const TABLE: &str = "providers";
/// With this argument the program is the process of a round.
pub(crate) const FULL_QUEUE: &str = "--full-queue";
const PROVIDERS: [(Provider, &str); 3] = [
    (Provider::SoftNic, "the soft NIC's provider"),
    (Provider::Mlx5, "rdma-core's mlx5 provider"),
    (Provider::Mlx5Direct, "rdma-core's mlx5 provider, direct"),
];
const TRAFFIC: Traffic = Traffic::Flows(1000);
const MILLISECONDS: u64 = 500;
const WARM_UP: Duration = Duration::from_millis(150);
/// The device needs less than a quarter of a microsecond for a packet.
const FILL_TIME: Duration = Duration::from_millis(2);
/// The longest frame that can be sent has 1514 bytes.
const FULL_QUEUE_SIZES: [u32; 2] = [64, 1514];

/// The work of the worker, which is measured.
#[derive(Clone, Copy)]
enum Work {
    FullQueue,
    FullQueueForwarding,
    KeepingUp,
}

impl Work {
    const ALL: [Self; 3] = [Self::FullQueue, Self::FullQueueForwarding, Self::KeepingUp];

    fn row(self, provider: &str) -> String {
        match self {
            Self::FullQueue => format!("full queue, {provider}"),
            Self::FullQueueForwarding => format!("full queue, sink forward, {provider}"),
            Self::KeepingUp => format!("keeping up, {provider}"),
        }
    }

    fn sizes(self) -> [u32; 2] {
        if matches!(self, Self::KeepingUp) { SIZES } else { FULL_QUEUE_SIZES }
    }
}

pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    for work in Work::ALL {
        for bytes in work.sizes() {
            cases.extend(PROVIDERS.map(|(provider, name)| {
                let mut row = Row::new(TABLE, work.row(name), bytes, "ns");
                row.command = own_command(TABLE);
                match work {
                    Work::KeepingUp => keeping_up(inputs, row, provider),
                    _ => full_queue(inputs, row, provider, work),
                }
            }));
        }
    }
    cases
}

fn full_queue<'i>(inputs: &'i Inputs, row: Row, provider: Provider, work: Work) -> Case<'i> {
    let bytes = row.frame_bytes;
    Case::new(row, move || {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let index = PROVIDERS.iter().position(|(known, _)| *known == provider).unwrap_or_default();
        let forwards = matches!(work, Work::FullQueueForwarding);
        let milliseconds = inputs.round(MILLISECONDS).as_millis();
        let words = [index.to_string(), bytes.to_string(), milliseconds.to_string(), forwards.to_string()];
        let words: Vec<_> =
            [program.display().to_string(), FULL_QUEUE.to_owned()].into_iter().chain(words).collect();
        let printed = run_client(provider, bytes, &[CORE, OTHER_CORE], &words)?;
        let ns = printed.lines().find_map(|line| line.strip_prefix("ns ")?.parse().ok());
        ns.ok_or(printed)
    })
}

/// The process of a round: prints nanoseconds for a packet.
pub(crate) fn run_full_queue(words: &[&str]) {
    pin(OTHER_CORE);
    let [index, bytes, milliseconds] = [0, 1, 2].map(|nth| words[nth].parse::<u32>().expect("a number"));
    let mut worker = BackloggedWorker::on(PROVIDERS[index as usize].0, bytes, CORE, FILL_TIME);
    if words[3] == "true" {
        worker = worker.forwarding();
    }
    let time = Duration::from_millis(u64::from(milliseconds));
    let ns = worker.packet_ns(WARM_UP).and_then(|_| worker.packet_ns(time));
    match (ns, worker.dropped()) {
        (Ok(ns), 0) => println!("ns {ns}"),
        (Err(why), _) => println!("{why}"),
        // The device did not get to send them in time.
        (_, dropped) => println!("the sink dropped {dropped} packets"),
    }
}

fn keeping_up<'i>(inputs: &'i Inputs, row: Row, provider: Provider) -> Case<'i> {
    let replay = match inputs.set("acl1_1k").and_then(|set| inputs.replay(&set, TRAFFIC, row.frame_bytes)) {
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
    let [(_, own), others @ ..] = PROVIDERS;
    let find = |what: String, bytes| rows.iter().find(|row| row.what == what && row.frame_bytes == bytes);
    let mut ratios = Vec::new();
    for work in Work::ALL {
        for bytes in work.sizes() {
            for (_, other) in others {
                let pair = find(work.row(other), bytes).zip(find(work.row(own), bytes));
                ratios.extend(pair.map(|(other, own)| Ratio::of(other, own)));
            }
        }
    }
    ratios
}

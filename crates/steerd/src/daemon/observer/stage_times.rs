//! What the engine of a soft NIC and the workers spend their time on, for `steerd run --stage-times`. The
//! measurements are samples; here they become the time of a whole run by stage, its share, and its part of a
//! packet.

use softnic::{EngineProfile, EngineStage, OwnedNic};
use worker::{WorkerProfile, WorkerSnapshot};

use crate::state::{StageTime, ThreadProfile};

/// The stage that is no work.
const IDLE: &str = "idle";

/// `None` without `--stage-times`.
pub(super) fn of(nic: Option<&OwnedNic>, workers: &[WorkerSnapshot]) -> Option<Vec<ThreadProfile>> {
    let engines = nic.map(OwnedNic::profiles).unwrap_or_default();
    let is_one = engines.len() == 1;
    let engines = (1..).zip(&engines).map(|(number, profile)| {
        engine(if is_one { "engine".to_owned() } else { format!("engine {number}") }, profile)
    });
    let workers = workers.iter().filter_map(|worker| Some(self::worker(worker, worker.profile.as_ref()?)));
    let threads: Vec<ThreadProfile> = engines.chain(workers).collect();
    (!threads.is_empty()).then_some(threads)
}

/// From the timed passes to all.
fn engine(name: String, profile: &EngineProfile) -> ThreadProfile {
    let all = |sampled: u64| scaled(sampled, profile.passes, profile.timed);
    let (received, sent) = (all(profile.received), all(profile.sent));
    let stages = profile.stages.iter().map(|(stage, ns)| {
        let packets = match stage {
            EngineStage::Send => sent,
            EngineStage::Idle => 0,
            _ => received,
        };
        (stage.name().to_owned(), all(*ns), packets)
    });
    thread(name, received.max(sent), profile.timed, stages.collect())
}

fn worker(snapshot: &WorkerSnapshot, profile: &WorkerProfile) -> ThreadProfile {
    let packets = snapshot.received.packets;
    let stages = profile.stages.iter().map(|(stage, ns)| {
        let packets = if stage == IDLE { 0 } else { packets };
        (stage.clone(), *ns, packets)
    });
    thread(format!("worker {}", snapshot.id.0), packets, profile.timed, stages.collect())
}

/// `stages`: the name of each, its nanoseconds, and the packets among which they are divided.
#[allow(clippy::cast_precision_loss)]
fn thread(thread: String, packets: u64, timed: u64, stages: Vec<(String, u64, u64)>) -> ThreadProfile {
    let whole_ns: u64 = stages.iter().map(|(_, ns, _)| ns).sum();
    let stages = stages.into_iter().map(|(stage, ns, packets)| StageTime {
        stage,
        ns,
        share: ns as f64 / whole_ns.max(1) as f64,
        ns_per_packet: (packets > 0).then(|| ns as f64 / packets as f64),
    });
    ThreadProfile { thread, packets, timed, stages: stages.collect() }
}

fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = (u128::from(value) * u128::from(numerator)).checked_div(denominator.into());
    scaled.and_then(|scaled| u64::try_from(scaled).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_passes_stands_for_all() {
        let ns = |stage: EngineStage| match stage {
            EngineStage::Receive => 100,
            EngineStage::Send => 30,
            EngineStage::Idle => 270,
            _ => 0,
        };
        let stages = EngineStage::ALL.map(|stage| (stage, ns(stage)));
        let profile = engine(
            "engine".to_owned(),
            &EngineProfile { stages, received: 10, sent: 3, timed: 2, passes: 128 },
        );
        assert_eq!((profile.packets, profile.timed), (640, 2));
        let stage =
            |name: &str| profile.stages.iter().find(|stage| stage.stage == name).expect("each is there");
        let receive = stage("receive");
        assert_eq!((receive.ns, receive.share, receive.ns_per_packet), (6400, 0.25, Some(10.0)));
        assert_eq!(stage("send").ns_per_packet, Some(10.0), "of a packet that was sent");
        assert_eq!((stage("idle").share, stage("idle").ns_per_packet), (0.675, None));
    }

    #[test]
    fn without_a_timed_pass_there_is_no_time() {
        let stages = EngineStage::ALL.map(|stage| (stage, 0));
        let profile =
            engine("engine".to_owned(), &EngineProfile { stages, received: 0, sent: 0, timed: 0, passes: 7 });
        assert!(profile.stages.iter().all(|stage| stage.ns == 0 && stage.share == 0.0));
    }
}

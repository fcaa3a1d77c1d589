//! Engine and application on two threads, handing a few buffers round and round.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use crate::verbs_support::{FRAME_BYTES, ipv4_flow, pool, single};
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{CompletionQueue, DeviceList, Domain, FlowHandle, Frame, ProtectionDomain, WorkQueue};
use wire::{GeneratorConfig, GeneratorWire};

const FRAMES: u32 = 64;

#[test]
fn buffers_go_round_between_the_engines_thread_and_the_applications() {
    let config: GeneratorConfig = serde_json::from_value(serde_json::json!({ "flows": [{}] })).unwrap();
    let nic = SoftNic::create(SoftNicConfig {
        name: "softnic0".to_owned(),
        personality: Personality::Ideal,
        ports: vec![PortConfig { wire: Box::new(GeneratorWire::open(&config).unwrap()), mtu_bytes: 1500 }],
        drive: Drive::Thread { core: None },
    })
    .unwrap();
    let context = DeviceList::of(&nic).unwrap().find("softnic0").unwrap().open().unwrap();
    let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
    let mut cq = CompletionQueue::builder(&context, FRAMES).build().unwrap();
    let (queue, mut receives) =
        WorkQueue::builder(&domain, &cq.handle()).max_receives(FRAMES).build().unwrap();
    queue.ready().unwrap();
    let mut pool = pool(&domain, FRAMES as usize, FRAME_BYTES);
    let mut spare: Vec<Frame> = std::iter::from_fn(|| pool.take()).collect();
    let _flow = FlowHandle::create(&single(&domain, &queue), &ipv4_flow()).unwrap();
    receives.post(&mut pool, &mut spare);
    assert!(spare.is_empty());
    let (start, mut packets) = (Instant::now(), 0u32);
    while packets < 50_000 && start.elapsed() < Duration::from_secs(20) {
        if let Some(mut batch) = cq.poll() {
            while let Some(completion) = batch.next() {
                spare.push(pool.reclaim(completion).unwrap());
                packets += 1;
            }
        }
        receives.post(&mut pool, &mut spare);
        assert!(spare.is_empty(), "after {packets} packets a completed receive still has its place");
    }
    assert!(packets >= 50_000, "only {packets} packets in {:?}", start.elapsed());
    nic.stop();
    let stats = nic.port_stats(1);
    assert_eq!(stats.rx_frames, stats.dispositions());
    // The generator runs before the flow is there.
    assert_eq!(stats.rx_frames, stats.unmatched + stats.delivered + stats.out_of_buffer, "{stats:?}");
    while let Some(mut batch) = cq.poll() {
        while batch.next().is_some() {
            packets += 1;
        }
    }
    assert_eq!(u64::from(packets), stats.delivered, "every delivery was completed once");
}

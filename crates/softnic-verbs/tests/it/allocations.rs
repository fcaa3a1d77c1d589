//! No allocation in the engine once it is warm: not for deliveries, copies, drops, sends, or frames that find
//! no place.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::verbs_support::{PORT, Receiver, single, udp_flow};
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use verbs::{ActionSpec, Counters, DeviceList, Domain, FlowAttr, FlowHandle, FlowKind, ProtectionDomain};
use wire::{GeneratorConfig, GeneratorWire};

/// Calls to the allocator by this thread during `work`: what it took, and what it gave back.
fn allocations(work: impl FnOnce()) -> u64 {
    let counted = allocation_counter::measure(work);
    counted.count_total + counted.count_total.wrapping_add_signed(-counted.count_current)
}

#[test]
fn the_engine_does_not_allocate_once_it_is_warm() {
    let config: GeneratorConfig = serde_json::from_value(serde_json::json!({
        "rate": "flat-out",
        "flows": [
            { "src": "10.0.0.0/16", "dst_ports": "53", "count": 4096 },
            { "src": "10.1.0.0/16", "dst_ports": "54", "count": 64 },
            { "src": "10.2.0.0/16", "dst_ports": "55", "frame_bytes": 1400 },
            { "src": "2001:db8::/64", "dst": "2001:db8::1", "dst_ports": "56" }
        ]
    }))
    .unwrap();
    let nic = SoftNic::create(SoftNicConfig {
        name: "softnic0".to_owned(),
        personality: Personality::Ideal,
        ports: vec![PortConfig { wire: Box::new(GeneratorWire::open(&config).unwrap()), mtu_bytes: 1500 }],
        drive: Drive::Manual,
    })
    .unwrap();
    let context = DeviceList::of(&nic).unwrap().find("softnic0").unwrap().open().unwrap();
    let domain = Domain::from(&ProtectionDomain::new(&context).unwrap());
    let (mut first, mut second) = (Receiver::new(&domain, 128), Receiver::new(&domain, 16));
    let counters = Counters::new(&context).unwrap();
    let to_first = single(&domain, &first.queue);
    let to_second = single(&domain, &second.queue);
    let drop = udp_flow(54, 0).action(ActionSpec::Drop).action(ActionSpec::Count(counters.clone()));
    let _flows = [
        FlowHandle::create(&to_first, &udp_flow(53, 1)).unwrap(),
        FlowHandle::create(&to_second, &udp_flow(53, 2)).unwrap(),
        FlowHandle::create(&to_first, &drop).unwrap(),
        FlowHandle::create(&to_second, &udp_flow(55, 3)).unwrap(),
        FlowHandle::create(&to_second, &FlowAttr::new(FlowKind::Sniffer, PORT)).unwrap(),
    ];
    let mut turn = |counted: bool| {
        let mut calls = 0;
        let pump = || {
            nic.pump(64);
        };
        if counted {
            calls = allocations(pump);
        } else {
            pump();
        }
        first.drain();
        second.drain();
        calls
    };
    (0..8).for_each(|_| assert_eq!(turn(false), 0));
    assert_eq!((0..200).map(|_| turn(true)).sum::<u64>(), 0);
    let stats = nic.port_stats(1);
    assert_eq!(stats.rx_frames, stats.dispositions());
    assert!(stats.delivered > 0 && stats.replicated > 0 && stats.flow_dropped > 0, "{stats:?}");
    assert!(counters.read().unwrap().packets > 0);
}

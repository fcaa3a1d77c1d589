use super::*;

/// A host with two NUMA nodes of four cores: an interface `eth0` on node 0 with two queues and interrupts,
/// one of virtio, and a veth.
fn host() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, format!("{text}\n")).expect("written");
    };
    for (node, cores) in [(0, "0-3"), (1, "4-7")] {
        write(&format!("sys/devices/system/node/node{node}/cpulist"), cores);
    }
    write("sys/devices/system/node/possible", "0-1");
    let net = "sys/class/net";
    write(&format!("{net}/eth0/device/numa_node"), "0");
    for (interrupt, allowed, effective) in [(24, "0-7", "1"), (25, "0-7", "5"), (26, "2", "")] {
        write(&format!("{net}/eth0/device/msi_irqs/{interrupt}"), "msix");
        write(&format!("proc/irq/{interrupt}/smp_affinity_list"), allowed);
        write(&format!("proc/irq/{interrupt}/effective_affinity_list"), effective);
    }
    // One without a handler.
    write(&format!("{net}/eth0/device/msi_irqs/27"), "msix");
    write(&format!("{net}/eth0/queues/rx-0/rps_cpus"), "00");
    write(&format!("{net}/eth0/queues/rx-1/rps_cpus"), "0e");
    write(&format!("{net}/eth0/queues/tx-0/xps_cpus"), "ff");
    // `device` is a link to a folder of the device that has the interrupts.
    write("sys/devices/pci/virtio0/vendor", "0x1af4");
    write("sys/devices/pci/numa_node", "-1");
    write("sys/devices/pci/msi_irqs/24", "msix");
    fs::create_dir_all(folder.path().join(net).join("eth1")).expect("made");
    let link = folder.path().join(net).join("eth1/device");
    std::os::unix::fs::symlink("../../../devices/pci/virtio0", link).expect("linked");
    write(&format!("{net}/veth0/queues/rx-0/rps_cpus"), "0");
    folder
}

fn cores(list: &str) -> CoreSet {
    CoreSet::of_list(list).expect("a list")
}

#[test]
fn a_device_has_a_node_interrupts_and_rps() {
    let host = host();
    let eth0 = InterfacePlacement::read(host.path(), "eth0", Some(&[0, 1, 0, 1]));
    let interrupt = |interrupt, list| InterruptPlacement { interrupt, cores: cores(list) };
    let expected = InterfacePlacement {
        interface: "eth0".to_owned(),
        present: true,
        has_device: true,
        numa_node: Some(0),
        receive_queues: 2,
        rss: Some([(0, 2), (1, 2)].into()),
        interrupts: vec![interrupt(24, "1"), interrupt(25, "5"), interrupt(26, "2")],
        rps: vec![RpsPlacement { queue: 1, cores: cores("1-3") }],
    };
    assert_eq!(eth0, expected);
    assert_eq!(
        eth0.line(),
        "eth0 is on NUMA node 0; 2 receive queues, an RSS table of 4 entries for queues 0-1; interrupts 24 on 1, 25 on 5, \
         26 on 2; RPS of queue 1 to 1-3"
    );
    let eth1 = InterfacePlacement::read(host.path(), "eth1", None);
    assert_eq!((eth1.numa_node, eth1.interrupts), (None, vec![interrupt(24, "1")]));
}

#[test]
fn absent_facts_are_named() {
    let host = host();
    let line = |name: &str| InterfacePlacement::read(host.path(), name, None).line();
    assert_eq!(
        line("veth0"),
        "veth0 has no device, and so no NUMA node and no interrupts; 1 receive queue, no RSS table; RPS off"
    );
    for name in ["eth9", "", "..", "eth0/device"] {
        assert!(line(name).contains("is not on this host"), "{name}");
    }
}

#[test]
fn a_bad_placement_has_the_command_that_mends_it() {
    let host = host();
    let nodes = Nodes::read(host.path());
    let of = |name, workers: &[Option<usize>], engines: &[Option<usize>]| {
        let interface = InterfacePlacement::read(host.path(), name, None);
        Placement::beside(vec![interface], &nodes, workers, engines)
    };
    let found = of("eth0", &[Some(2), Some(6)], &[Some(3)]);
    let problems: Vec<String> =
        found.problems.iter().map(|found| format!("{} => {}", found.problem, found.remedy)).collect();
    let irq = |number| format!("`echo 0-1 > /proc/irq/{number}/smp_affinity_list` (and no irqbalance)");
    assert_eq!(
        problems,
        [
            "worker 1 is on core 6 of NUMA node 1, and eth0 on NUMA node 0 => workers.cores with cores of NUMA node 0: 0-3"
                .to_owned(),
            format!("interrupt 25 of eth0 goes to cores of another NUMA node: 5 => {}", irq(25)),
            format!("interrupt 26 of eth0 goes to core 2, where worker 0 runs => {}", irq(26)),
            "RPS moves packets of queue 1 of eth0 to core 2, where worker 0 runs => `echo 2 > \
             /sys/class/net/eth0/queues/rx-1/rps_cpus`"
                .to_owned(),
        ]
    );
    assert_eq!(
        found.lines()[1],
        "worker 0 on core 2 (NUMA node 0), worker 1 on core 6 (NUMA node 1), engine on core 3 (NUMA node 0)"
    );
    let all = of("eth0", &[Some(0), Some(1), Some(2), Some(3)], &[]);
    assert!(all.problems[0].remedy.contains("none left for interrupts"), "{:?}", all.problems);
    assert_eq!(of("veth0", &[Some(2), None], &[None]).problems, []);
    assert_eq!(of("eth1", &[Some(2)], &[None]).problems, []);
}

#[test]
fn queues_without_a_socket_are_named_with_their_packets() {
    let queues = |receive_queues, rss: Option<Vec<(u32, u32)>>| InterfacePlacement {
        interface: "eth0".to_owned(),
        receive_queues,
        rss: rss.map(|rss| rss.into_iter().collect()),
        ..InterfacePlacement::default()
    };
    assert_eq!(queues(AF_XDP_MAX_QUEUES, None).unserved_queues(), None);
    let text =
        queues(144, Some((0..144).map(|queue| (queue, 1)).collect())).unserved_queues().expect("16 of them");
    assert!(text.contains("queues 128 to 143 would be missed; they have 11.1% of the RSS table"), "{text}");
    assert!(text.ends_with("(hint: `ethtool -L eth0 combined 128`)"), "{text}");
    let text = queues(129, None).unserved_queues().expect("one");
    assert!(text.contains("not known which part"), "{text}");
}

//! The books: every packet that a port received is in exactly one counter, and this adds them up.
//!
//! `Plant::state` calls it with what it has read, and says how many packets may have been on their way
//! where. It reads nothing itself; once traffic has ended it forgives no packet.

use serde::Serialize;

use crate::state::{PortCounters, PortState, RuleState, WorkerState};

/// One equation. It holds when `difference` is zero, or packets that were on their way explain it: the
/// left side may then be ahead by as many, and never the right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) left: u64,
    pub(crate) right: u64,
    pub(crate) difference: i64,
    /// How many packets may have been on their way.
    pub(crate) on_their_way: u64,
    pub(crate) balanced: bool,
}

/// How many packets may be on their way where; nothing once traffic has ended. Where the two sides of
/// an equation are read at one moment nothing can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flight {
    /// From ports to workers: in queues, or delivered while this was read.
    pub(crate) handed_over: u64,
    /// Dropped by ports while the drop rules were read.
    pub(crate) dropped: u64,
    /// Sent packets dropped by ports while the rules were read.
    pub(crate) sent_dropped: u64,
    /// Taken by a worker and not judged yet, or taken while it was read; in the order of the workers.
    pub(crate) judged: Vec<u64>,
    /// The drop rules could not be read now: nothing is held against them.
    pub(crate) drops_unknown: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Books {
    pub(crate) entries: Vec<Entry>,
    /// Received by ports. What only ports count is `None` if they do not: unknown is not zero.
    pub(crate) received: Option<u64>,
    /// Lost on the wire before that; also part of `lost`.
    pub(crate) wire_lost: u64,
    pub(crate) delivered: u64,
    pub(crate) rule_dropped: u64,
    pub(crate) kernel: Option<u64>,
    /// The kernel's by the policy, but received by workers; not part of `kernel` or `lost`.
    pub(crate) lost_exceptions: u64,
    /// Copies that no rule asked for, discarded by workers.
    pub(crate) filtered: u64,
    pub(crate) lost: u64,
    /// Copies that ports handed over beside what became of the packets.
    pub(crate) replicated: Option<u64>,
    /// What was received and is not yet in the counter of what became of it: `received + wire_lost + replicated`
    /// less all of the above. Not yet taken by a worker, not yet judged by it, or dropped in a port since the
    /// drop rules were read.
    pub(crate) in_flight: Option<i64>,
    pub(crate) balanced: bool,
    /// Whether the device counts what its ports receive; otherwise only the workers' part is checked.
    pub(crate) ports_counted: bool,
}

/// What frames the wire lost before the port had them are called among its losses.
pub(crate) const WIRE: &str = "wire";

pub(crate) fn add_up(
    ports: &[PortState],
    rules: &[RuleState],
    workers: &[WorkerState],
    flight: &Flight,
) -> Books {
    let counted: Option<Vec<&PortCounters>> = ports.iter().map(|port| port.counters.as_ref()).collect();
    let counted = counted.filter(|ports| !ports.is_empty());
    let sum = |of: fn(&PortCounters) -> u64| counted.iter().flatten().map(|port| of(port)).sum::<u64>();
    let dropped_by_rules: u64 = rules.iter().map(|rule| rule.dropped_packets).sum();
    let mut entries = Vec::new();
    // The left side of these entries is ahead by packets that still have to be counted on the right.
    let mut in_flight = 0;
    if counted.is_some() {
        entries.extend(ports.iter().filter_map(port_entry));
        let received_by_workers: u64 = workers.iter().map(|worker| worker.received_packets).sum();
        let handed_over = entry(
            "ports delivered = workers received".to_owned(),
            sum(|port| port.delivered_packets + port.replicated_packets),
            received_by_workers,
            flight.handed_over,
        );
        in_flight += handed_over.difference;
        entries.push(handed_over);
    }
    if counted.is_some() && !flight.drops_unknown {
        let dropped_by_workers: u64 = workers.iter().map(|worker| worker.dropped_packets).sum();
        let name = "ports dropped by rule = drop rules counted".to_owned();
        let in_device = dropped_by_rules.saturating_sub(dropped_by_workers);
        let dropped = entry(name, sum(|port| port.rule_dropped_packets), in_device, flight.dropped);
        in_flight += dropped.difference;
        entries.push(dropped);
        let by_rules: u64 = rules.iter().map(|rule| rule.sent_dropped_packets).sum();
        let name = "ports dropped when sent = egress rules counted".to_owned();
        entries.push(entry(name, sum(|port| port.sent_dropped_packets), by_rules, flight.sent_dropped));
    }
    for (index, worker) in workers.iter().enumerate() {
        let accounted = worker.delivered_packets
            + worker.dropped_packets
            + worker.lost_exception_packets
            + worker.filtered_packets
            + worker.lost_packets.values().sum::<u64>();
        let name = format!(
            "worker {}: received = delivered + dropped + filtered + lost + lost exceptions",
            worker.worker
        );
        let judged = flight.judged.get(index).copied().unwrap_or(0);
        let judged = entry(name, worker.received_packets, accounted, judged);
        in_flight += judged.difference;
        entries.push(judged);
    }
    let by_rules = rules.iter().map(|rule| rule.delivered_packets).sum();
    let delivered = workers.iter().map(|worker| worker.delivered_packets).sum();
    entries.push(entry("workers delivered = rules delivered".to_owned(), delivered, by_rules, 0));
    let by_ports = |of: fn(&PortCounters) -> u64| counted.is_some().then(|| sum(of));
    Books {
        received: by_ports(|port| port.received_packets),
        wire_lost: ports.iter().filter_map(|port| port.lost_packets.get(WIRE)).sum(),
        delivered,
        rule_dropped: dropped_by_rules,
        kernel: by_ports(|port| port.kernel_packets),
        lost_exceptions: workers.iter().map(|worker| worker.lost_exception_packets).sum(),
        filtered: workers.iter().map(|worker| worker.filtered_packets).sum(),
        lost: ports.iter().flat_map(|port| port.lost_packets.values()).sum::<u64>()
            + workers.iter().flat_map(|worker| worker.lost_packets.values()).sum::<u64>(),
        replicated: by_ports(|port| port.replicated_packets),
        in_flight: counted.is_some().then_some(in_flight),
        balanced: entries.iter().all(|entry| entry.balanced),
        ports_counted: counted.is_some(),
        entries,
    }
}

/// A port's counters are read at one moment: nothing is on its way between them.
fn port_entry(port: &PortState) -> Option<Entry> {
    let counters = port.counters.as_ref()?;
    let arrived = counters.received_packets + port.lost_packets.get(WIRE).copied().unwrap_or(0);
    let disposed = counters.delivered_packets
        + counters.rule_dropped_packets
        + counters.kernel_packets
        + port.lost_packets.values().sum::<u64>();
    let name =
        format!("port {}: received + lost on the wire = delivered + dropped + lost + kernel", port.port);
    Some(entry(name, arrived, disposed, 0))
}

impl Books {
    /// The verdict, in one line.
    pub(crate) fn verdict(&self) -> String {
        if !self.balanced {
            let wrong = self.entries.iter().filter(|entry| !entry.balanced);
            let wrong: Vec<String> = wrong
                .map(|entry| {
                    format!(
                        "{} is off by {} ({} against {})",
                        entry.name, entry.difference, entry.left, entry.right
                    )
                })
                .collect();
            return format!("NOT balanced: {}", wrong.join("; "));
        }
        match self.in_flight {
            None => "balanced for the workers (this device does not count what its ports receive)".into(),
            Some(0) => "balanced".into(),
            Some(packets) => format!("balanced, {packets} packets on their way"),
        }
    }
}

fn entry(name: String, left: u64, right: u64, on_their_way: u64) -> Entry {
    // Counts of packets are far from 2^63.
    let difference = i64::try_from(i128::from(left) - i128::from(right)).unwrap_or(i64::MAX);
    let balanced = u64::try_from(difference).is_ok_and(|ahead| ahead <= on_their_way);
    Entry { name, left, right, difference, on_their_way, balanced }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> (PortState, RuleState, RuleState, WorkerState) {
        let port = PortState {
            port: 1,
            counters: Some(PortCounters {
                received_packets: 100,
                delivered_packets: 60,
                rule_dropped_packets: 25,
                kernel_packets: 10,
                ..PortCounters::default()
            }),
            lost_packets: [("out_of_buffer", 5), (WIRE, 3)].into(),
            ..PortState::default()
        };
        let steer = RuleState { delivered_packets: 57, dropped_packets: 2, ..RuleState::default() };
        let drop = RuleState { dropped_packets: 25, ..RuleState::default() };
        let worker = WorkerState {
            received_packets: 60,
            delivered_packets: 57,
            dropped_packets: 2,
            lost_packets: [("unknown_tag", 1)].into(),
            ..WorkerState::default()
        };
        (port, steer, drop, worker)
    }

    #[test]
    fn a_complete_account_balances() {
        let (port, steer, drop, worker) = scene();
        let books = add_up(&[port], &[steer, drop], &[worker], &Flight::default());
        assert!(books.balanced, "{}", books.verdict());
        assert_eq!(books.verdict(), "balanced");
        assert_eq!(
            (books.received, books.delivered, books.rule_dropped, books.kernel, books.lost),
            (Some(100), 57, 27, Some(10), 9)
        );
        assert_eq!(books.delivered + books.rule_dropped + 10 + books.lost, 100 + 3);
        assert_eq!(books.wire_lost, 3);
    }

    #[test]
    fn one_packet_missing_anywhere_is_seen() {
        fn counters(port: &mut PortState) -> &mut PortCounters {
            port.counters.as_mut().expect("counted")
        }
        let spoil: [fn(&mut PortState, &mut RuleState, &mut RuleState, &mut WorkerState); 6] = [
            |port, _, _, _| counters(port).received_packets += 1,
            |port, _, _, _| counters(port).kernel_packets += 1,
            |_, steer, _, _| steer.delivered_packets -= 1,
            |_, _, drop, _| drop.dropped_packets -= 1,
            |_, _, _, worker| worker.received_packets -= 1,
            |_, _, _, worker| worker.lost_packets.clear(),
        ];
        for (i, spoil) in spoil.into_iter().enumerate() {
            let (mut port, mut steer, mut drop, mut worker) = scene();
            spoil(&mut port, &mut steer, &mut drop, &mut worker);
            let books = add_up(&[port], &[steer, drop], &[worker], &Flight::default());
            assert!(!books.balanced, "spoiling {i} went unseen");
            assert!(books.verdict().starts_with("NOT balanced: "), "{}", books.verdict());
        }
    }

    #[test]
    fn packets_on_their_way_are_no_error_while_traffic_flows() {
        let (port, mut steer, drop, mut worker) = scene();
        worker.received_packets -= 3;
        worker.delivered_packets -= 3;
        steer.delivered_packets -= 3;
        let (ports, rules, workers) = ([port], [steer, drop], [worker]);
        let flight = |handed_over| Flight { handed_over, ..Flight::default() };
        let books = add_up(&ports, &rules, &workers, &flight(3));
        assert_eq!(books.verdict(), "balanced, 3 packets on their way");
        assert!(!add_up(&ports, &rules, &workers, &flight(2)).balanced, "more than can be on their way");
    }

    /// Wherever packets wait to be counted, they are in flight: nothing that was received is in no figure.
    #[test]
    fn what_was_received_is_counted_or_in_flight() {
        let (mut port, mut steer, drop, mut worker) = scene();
        // 4 wait in queues, 2 were taken and not judged, 1 was dropped after the drop rule was read; 6 copies were
        // handed over beside, of which the worker filtered one out.
        let counters = port.counters.as_mut().expect("counted");
        counters.received_packets += 4 + 2 + 1;
        counters.delivered_packets += 4 + 2;
        counters.rule_dropped_packets += 1;
        counters.replicated_packets += 6;
        worker.received_packets += 2 + 6;
        worker.delivered_packets += 5;
        worker.filtered_packets += 1;
        steer.delivered_packets += 5;
        steer.filtered_packets += 1;
        let flight = Flight { handed_over: 4, dropped: 1, judged: vec![2], ..Flight::default() };
        let books = add_up(&[port], &[steer, drop], &[worker], &flight);
        assert!(books.balanced, "{}", books.verdict());
        assert_eq!((books.in_flight, books.filtered, books.replicated), (Some(7), 1, Some(6)));
        let counted = books.delivered + books.rule_dropped + 10 + books.filtered + books.lost;
        assert_eq!(107 + books.wire_lost + 6, counted + 7);
    }

    /// What room there is for packets on their way is no room for errors of another kind.
    #[test]
    fn no_traffic_explains_an_error_elsewhere() {
        type Spoil = fn(&mut PortState, &mut RuleState, &mut RuleState, &mut WorkerState);
        let spoil: [Spoil; 5] = [
            |port, _, _, _| port.lost_packets.clear(),
            |_, steer, _, _| steer.delivered_packets -= 1,
            |_, _, drop, _| drop.dropped_packets += 1,
            |_, _, _, worker| worker.received_packets += 1,
            |_, _, _, worker| worker.lost_packets.insert("bad_frame", 1).map_or((), |_| ()),
        ];
        for (i, spoil) in spoil.into_iter().enumerate() {
            let (mut port, mut steer, mut drop, mut worker) = scene();
            spoil(&mut port, &mut steer, &mut drop, &mut worker);
            // Everything that may be ahead may be so by much; nothing may be behind.
            let flight = Flight {
                handed_over: 4096,
                dropped: 4096,
                sent_dropped: 4096,
                judged: vec![0],
                drops_unknown: false,
            };
            assert!(
                !add_up(&[port], &[steer, drop], &[worker], &flight).balanced,
                "spoiling {i} went unseen"
            );
        }
    }

    #[test]
    fn drop_rules_that_could_not_be_read_are_not_held_against_anything() {
        let (port, steer, mut drop, worker) = scene();
        drop.dropped_packets -= 20;
        let (ports, rules, workers) = ([port], [steer, drop], [worker]);
        let unknown = Flight { drops_unknown: true, ..Flight::default() };
        assert!(add_up(&ports, &rules, &workers, &unknown).balanced);
        assert!(!add_up(&ports, &rules, &workers, &Flight::default()).balanced);
    }

    #[test]
    fn without_port_counters_only_the_workers_are_checked() {
        let (port, steer, drop, worker) = scene();
        let port = PortState { counters: None, ..port };
        let books = add_up(&[port], &[steer, drop], &[worker], &Flight::default());
        assert!(books.balanced && !books.ports_counted);
        let by_ports = (books.received, books.kernel, books.replicated, books.in_flight);
        assert_eq!(by_ports, (None, None, None, None), "unknown is not zero");
        assert!(books.verdict().contains("does not count"), "{}", books.verdict());
    }
}

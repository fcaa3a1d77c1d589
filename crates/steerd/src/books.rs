//! The books: every packet that a port received is in exactly one counter, and this adds them up.
//!
//! `Plant::state` calls it with what it has read, and says how many packets may have moved
//! meanwhile. It reads nothing itself; once traffic has ended it forgives no packet.

use serde::Serialize;

use crate::state::{PortState, RuleState, WorkerState};

/// One equation. It holds when `difference` is zero, or explained by packets on their way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) left: u64,
    pub(crate) right: u64,
    pub(crate) difference: i64,
    pub(crate) balanced: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Books {
    pub(crate) entries: Vec<Entry>,
    /// Received by ports.
    pub(crate) received: u64,
    pub(crate) delivered: u64,
    pub(crate) rule_dropped: u64,
    pub(crate) kernel: u64,
    pub(crate) lost: u64,
    /// Copies that a port made beyond what it received.
    pub(crate) replicated: u64,
    pub(crate) in_flight: i64,
    pub(crate) balanced: bool,
    /// Whether the device counts what its ports receive; otherwise only the workers' part is checked.
    pub(crate) ports_counted: bool,
}

/// `slack`: how many packets may be on their way, or counted on one side only because they moved
/// while the counters were read: 0 once traffic has ended, and then every equation is exact.
///
/// `drops_are_fresh`: whether the drop rules were read with the rest; otherwise nothing is held against them.
pub(crate) fn add_up(
    ports: &[PortState],
    rules: &[RuleState],
    workers: &[WorkerState],
    drops_are_fresh: bool,
    slack: u64,
) -> Books {
    let mut entries = Vec::new();
    let mut in_flight = 0;
    for port in ports {
        let disposed = port.delivered_packets
            + port.rule_dropped_packets
            + port.kernel_packets
            + port.lost_packets.values().sum::<u64>();
        let name = format!("port {}: received = delivered + dropped + lost + kernel", port.port);
        entries.push(entry(name, port.received_packets, disposed, slack));
    }
    let received_by_workers: u64 = workers.iter().map(|worker| worker.received_packets).sum();
    let dropped_by_workers: u64 = workers.iter().map(|worker| worker.dropped_packets).sum();
    let dropped_by_rules: u64 = rules.iter().map(|rule| rule.dropped_packets).sum();
    if !ports.is_empty() {
        let handed_over = ports.iter().map(|port| port.delivered_packets + port.replicated_packets).sum();
        let name = "ports delivered = workers received".to_owned();
        let handed_over = entry(name, handed_over, received_by_workers, slack);
        in_flight = handed_over.difference;
        entries.push(handed_over);
    }
    if !ports.is_empty() && drops_are_fresh {
        let dropped = ports.iter().map(|port| port.rule_dropped_packets).sum();
        let name = "ports dropped by rule = drop rules counted".to_owned();
        entries.push(entry(name, dropped, dropped_by_rules.saturating_sub(dropped_by_workers), slack));
    }
    for worker in workers {
        let accounted = worker.delivered_packets
            + worker.dropped_packets
            + worker.kernel_packets
            + worker.lost_packets.values().sum::<u64>();
        let name = format!("worker {}: received = delivered + dropped + lost + kernel", worker.worker);
        entries.push(entry(name, worker.received_packets, accounted, slack));
    }
    let by_rules = rules.iter().map(|rule| rule.delivered_packets).sum();
    let delivered = workers.iter().map(|worker| worker.delivered_packets).sum();
    let name = "workers delivered = rules delivered".to_owned();
    entries.push(entry(name, delivered, by_rules, slack));
    Books {
        received: ports.iter().map(|port| port.received_packets).sum(),
        delivered,
        rule_dropped: dropped_by_rules,
        kernel: ports.iter().map(|port| port.kernel_packets).sum::<u64>()
            + workers.iter().map(|worker| worker.kernel_packets).sum::<u64>(),
        lost: ports.iter().flat_map(|port| port.lost_packets.values()).sum::<u64>()
            + workers.iter().flat_map(|worker| worker.lost_packets.values()).sum::<u64>(),
        replicated: ports.iter().map(|port| port.replicated_packets).sum(),
        in_flight,
        balanced: entries.iter().all(|entry| entry.balanced),
        ports_counted: !ports.is_empty(),
        entries,
    }
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
        match (self.ports_counted, self.in_flight) {
            (false, _) => {
                "balanced for the workers (this device does not count what its ports receive)".into()
            }
            (true, 0) => "balanced".into(),
            (true, packets) => format!("balanced, {packets} packets on their way"),
        }
    }
}

fn entry(name: String, left: u64, right: u64, slack: u64) -> Entry {
    // Counts of packets are far from 2^63.
    let difference = i64::try_from(i128::from(left) - i128::from(right)).unwrap_or(i64::MAX);
    Entry { name, left, right, difference, balanced: difference.unsigned_abs() <= slack }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> (PortState, RuleState, RuleState, WorkerState) {
        let port = PortState {
            port: 1,
            received_packets: 100,
            delivered_packets: 60,
            rule_dropped_packets: 25,
            kernel_packets: 10,
            lost_packets: [("out_of_buffer", 5)].into(),
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
        let books = add_up(&[port], &[steer, drop], &[worker], true, 0);
        assert!(books.balanced, "{}", books.verdict());
        assert_eq!(books.verdict(), "balanced");
        assert_eq!(
            (books.received, books.delivered, books.rule_dropped, books.kernel, books.lost),
            (100, 57, 27, 10, 6)
        );
        assert_eq!(books.delivered + books.rule_dropped + books.kernel + books.lost, books.received);
    }

    #[test]
    fn one_packet_missing_anywhere_is_seen() {
        let spoil: [fn(&mut PortState, &mut RuleState, &mut RuleState, &mut WorkerState); 6] = [
            |port, _, _, _| port.received_packets += 1,
            |port, _, _, _| port.kernel_packets += 1,
            |_, steer, _, _| steer.delivered_packets -= 1,
            |_, _, drop, _| drop.dropped_packets -= 1,
            |_, _, _, worker| worker.received_packets -= 1,
            |_, _, _, worker| worker.lost_packets.clear(),
        ];
        for (i, spoil) in spoil.into_iter().enumerate() {
            let (mut port, mut steer, mut drop, mut worker) = scene();
            spoil(&mut port, &mut steer, &mut drop, &mut worker);
            let books = add_up(&[port], &[steer, drop], &[worker], true, 0);
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
        let books = add_up(&ports, &rules, &workers, true, 3);
        assert_eq!(books.verdict(), "balanced, 3 packets on their way");
        assert!(!add_up(&ports, &rules, &workers, true, 2).balanced, "more than can be on their way");
    }

    #[test]
    fn without_port_counters_only_the_workers_are_checked() {
        let (_, steer, drop, worker) = scene();
        let books = add_up(&[], &[steer, drop], &[worker], true, 0);
        assert!(books.balanced);
        assert!(books.verdict().contains("does not count"), "{}", books.verdict());
    }
}

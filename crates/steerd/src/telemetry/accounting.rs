//! The packet accounting: every packet that a port received has exactly one outcome, and the counters must
//! add up.
//!
//! The runtime calls [`check`] with the counters it has read and with how many packets may have been in
//! flight between them. Nothing is read here. Once traffic has ended nothing is in flight, and every equation
//! must hold exactly.

use crate::outcome::{self, PacketOutcome, Totals};
use crate::port_counters::PortCounters;
use crate::state::{Accounting, Equation, LOST_ON_WIRE, PortState, RuleState, WorkerState};

/// How many packets may be in flight, by place; none once traffic has ended. Both sides of all other
/// equations are read at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// From ports to workers: in queues, or delivered while the counters were read.
    pub(crate) handed_over: u64,
    /// Dropped by ports while the counters of drop rules were read.
    pub(crate) dropped: u64,
    /// Sent packets dropped by ports while the counters of egress rules were read.
    pub(crate) sent_dropped: u64,
    /// Received by a worker and not classified yet, or received while its counters were read; in worker
    /// order.
    pub(crate) unclassified: Vec<u64>,
    /// The counters of drop rules could not be read: equations with them are left out.
    pub(crate) drops_unknown: bool,
    /// Dropped packets that the counters of removed drop rules may lack for good.
    pub(crate) uncounted_drops: u64,
}

/// Adds up the counters and checks every equation.
pub(crate) fn check(
    ports: &[PortState],
    rules: &[RuleState],
    workers: &[WorkerState],
    in_flight: &InFlight,
) -> Accounting {
    let counted: Option<Vec<&PortCounters>> = ports.iter().map(|port| port.counters.as_ref()).collect();
    let counted = counted.filter(|ports| !ports.is_empty());
    let sum = |of: fn(&PortCounters) -> u64| counted.iter().flatten().map(|port| of(port)).sum::<u64>();
    let dropped_by_rules: Option<u64> =
        rules.iter().map(|rule| rule.outcomes[PacketOutcome::Dropped].packets).sum();
    let by_workers =
        |outcome: PacketOutcome| workers.iter().map(|worker| worker.outcomes[outcome]).sum::<u64>();
    let mut equations = Vec::new();
    // The left side of these equations is ahead by the packets that are still to be counted on the right.
    let mut ahead = 0;
    if counted.is_some() {
        equations.extend(ports.iter().filter_map(port_equation));
        let received_by_workers: u64 = workers.iter().map(|worker| worker.received_packets).sum();
        let handed_over = equation(
            "ports delivered = workers received".to_owned(),
            sum(|port| port.delivered_packets + port.replicated_packets),
            received_by_workers,
            in_flight.handed_over,
        );
        ahead += handed_over.difference;
        equations.push(handed_over);
    }
    if let Some(dropped_by_rules) = dropped_by_rules
        && counted.is_some()
        && !in_flight.drops_unknown
    {
        let dropped_by_workers = by_workers(PacketOutcome::Dropped);
        let name = "ports dropped by rule = drop rules counted".to_owned();
        let in_device = dropped_by_rules.saturating_sub(dropped_by_workers);
        let limit = in_flight.dropped + in_flight.uncounted_drops;
        let dropped = equation(name, sum(|port| port.rule_dropped_packets), in_device, limit);
        ahead += dropped.difference;
        equations.push(dropped);
        let by_rules: u64 =
            rules.iter().filter_map(|rule| rule.outcomes[PacketOutcome::SentDropped].packets).sum();
        let name = "ports dropped when sent = egress rules counted".to_owned();
        equations.push(equation(
            name,
            sum(|port| port.sent_dropped_packets),
            by_rules,
            in_flight.sent_dropped + in_flight.uncounted_drops,
        ));
    }
    for (index, worker) in workers.iter().enumerate() {
        let unclassified = in_flight.unclassified.get(index).copied().unwrap_or(0);
        let received = worker_equation(worker, unclassified);
        ahead += received.difference;
        equations.push(received);
    }
    let by_rules = rules.iter().filter_map(|rule| rule.outcomes[PacketOutcome::Delivered].packets).sum();
    let delivered = by_workers(PacketOutcome::Delivered);
    equations.push(equation("workers delivered = rules delivered".to_owned(), delivered, by_rules, 0));
    let by_ports = |of: fn(&PortCounters) -> u64| counted.is_some().then(|| sum(of));
    let mut outcomes = Totals::default();
    outcome::of_workers().for_each(|(outcome, _)| outcomes[outcome] = Some(by_workers(outcome)));
    outcomes[PacketOutcome::Dropped] = dropped_by_rules;
    outcomes[PacketOutcome::Kernel] = by_ports(|port| port.kernel_packets);
    Accounting {
        received: by_ports(|port| port.received_packets),
        wire_lost: ports.iter().filter_map(|port| port.lost_packets.get(LOST_ON_WIRE)).sum(),
        outcomes,
        lost: ports.iter().flat_map(|port| port.lost_packets.values()).sum::<u64>()
            + workers.iter().flat_map(|worker| worker.lost_packets.values()).sum::<u64>(),
        replicated: by_ports(|port| port.replicated_packets),
        in_flight: counted.is_some().then_some(ahead),
        matches: match equations.iter().all(|equation| equation.holds) {
            true if in_flight.drops_unknown && counted.is_some() => None,
            all_hold => Some(all_hold),
        },
        uncounted_drops_limit: in_flight.uncounted_drops,
        ports_counted: counted.is_some(),
        equations,
    }
}

/// `unclassified`: how many packets the worker may have received and not classified.
fn worker_equation(worker: &WorkerState, unclassified: u64) -> Equation {
    let accounted = worker.outcomes.sum() + worker.lost_packets.values().sum::<u64>();
    let outcomes: Vec<String> = outcome::worker_names().collect();
    let name = format!("worker {}: received = {} + lost", worker.worker, outcomes.join(" + "));
    equation(name, worker.received_packets, accounted, unclassified)
}

/// A port's counters are read at one moment: nothing is in flight between them.
fn port_equation(port: &PortState) -> Option<Equation> {
    let counters = port.counters.as_ref()?;
    let arrived = counters.received_packets + port.lost_packets.get(LOST_ON_WIRE).copied().unwrap_or(0);
    let disposed = counters.outcomes() + port.lost_packets.values().sum::<u64>();
    let name =
        format!("port {}: received + lost on the wire = delivered + dropped + lost + kernel", port.port);
    Some(equation(name, arrived, disposed, 0))
}

impl Accounting {
    /// Dropped by workers because of limits and samples of rules.
    pub(crate) fn policed(&self) -> u64 {
        PacketOutcome::POLICED.into_iter().filter_map(|outcome| self.outcomes[outcome]).sum()
    }

    /// The result, in one line.
    pub(crate) fn verdict(&self) -> String {
        if self.matches == Some(false) {
            let wrong = self.equations.iter().filter(|equation| !equation.holds);
            let wrong: Vec<String> = wrong
                .map(|Equation { name, left, right, difference, .. }| {
                    format!("{name}: {left} against {right}, off by {difference}")
                })
                .collect();
            return format!("packet accounting mismatch: {}", wrong.join("; "));
        }
        if self.matches.is_none() {
            return "packet accounting not checked: the counters of drop rules could not be read".to_owned();
        }
        let scope = match self.in_flight {
            None => " for the workers (this device does not count what its ports receive)".to_owned(),
            Some(0) => String::new(),
            Some(packets) if self.uncounted_drops_limit > 0 => format!(
                ", {packets} packets in flight or dropped by removed rules (at most {} of these)",
                self.uncounted_drops_limit
            ),
            Some(packets) => format!(", {packets} packets in flight"),
        };
        format!("packet accounting matches{scope}")
    }
}

fn equation(name: String, left: u64, right: u64, in_flight_limit: u64) -> Equation {
    // Counts of packets are far from 2^63.
    let difference = i64::try_from(i128::from(left) - i128::from(right)).unwrap_or(i64::MAX);
    let holds = u64::try_from(difference).is_ok_and(|ahead| ahead <= in_flight_limit);
    Equation { name, left, right, difference, in_flight_limit, holds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Count;

    fn packets(rule: &mut RuleState, outcome: PacketOutcome) -> &mut u64 {
        rule.outcomes[outcome].packets.as_mut().expect("known")
    }

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
            lost_packets: [("out_of_buffer", 5), (LOST_ON_WIRE, 3)].into(),
            ..PortState::default()
        };
        let steer = RuleState {
            outcomes: [
                (PacketOutcome::Delivered, Count::of(57, 0)),
                (PacketOutcome::Dropped, Count::of(2, 0)),
            ]
            .into(),
            ..RuleState::default()
        };
        let drop = RuleState {
            outcomes: [(PacketOutcome::Dropped, Count::of(25, 0))].into(),
            ..RuleState::default()
        };
        let worker = WorkerState {
            received_packets: 60,
            lost_packets: [("unknown_tag", 1)].into(),
            outcomes: [(PacketOutcome::Delivered, 57), (PacketOutcome::Dropped, 2)].into(),
            ..WorkerState::default()
        };
        (port, steer, drop, worker)
    }

    #[test]
    fn complete_counters_match() {
        let (port, steer, drop, worker) = scene();
        let accounting = check(&[port], &[steer, drop], &[worker], &InFlight::default());
        assert_eq!(accounting.matches, Some(true), "{}", accounting.verdict());
        assert_eq!(accounting.verdict(), "packet accounting matches");
        let [delivered, dropped, kernel] =
            [PacketOutcome::Delivered, PacketOutcome::Dropped, PacketOutcome::Kernel]
                .map(|outcome| accounting.outcomes[outcome]);
        assert_eq!(
            (accounting.received, delivered, dropped, kernel),
            (Some(100), Some(57), Some(27), Some(10))
        );
        assert_eq!(accounting.lost, 9);
        assert_eq!(57 + 27 + 10 + accounting.lost, 100 + 3);
        assert_eq!(accounting.wire_lost, 3);
    }

    #[test]
    fn one_missing_packet_is_a_mismatch() {
        fn counters(port: &mut PortState) -> &mut PortCounters {
            port.counters.as_mut().expect("counted")
        }
        let spoil: [fn(&mut PortState, &mut RuleState, &mut RuleState, &mut WorkerState); 6] = [
            |port, _, _, _| counters(port).received_packets += 1,
            |port, _, _, _| counters(port).kernel_packets += 1,
            |_, steer, _, _| *packets(steer, PacketOutcome::Delivered) -= 1,
            |_, _, drop, _| *packets(drop, PacketOutcome::Dropped) -= 1,
            |_, _, _, worker| worker.received_packets -= 1,
            |_, _, _, worker| worker.lost_packets.clear(),
        ];
        for (i, spoil) in spoil.into_iter().enumerate() {
            let (mut port, mut steer, mut drop, mut worker) = scene();
            spoil(&mut port, &mut steer, &mut drop, &mut worker);
            let accounting = check(&[port], &[steer, drop], &[worker], &InFlight::default());
            assert_eq!(accounting.matches, Some(false), "mismatch {i} was not found");
            assert!(
                accounting.verdict().starts_with("packet accounting mismatch: "),
                "{}",
                accounting.verdict()
            );
        }
    }

    #[test]
    fn packets_in_flight_are_not_a_mismatch() {
        let (port, mut steer, drop, mut worker) = scene();
        worker.received_packets -= 3;
        worker.outcomes[PacketOutcome::Delivered] -= 3;
        *packets(&mut steer, PacketOutcome::Delivered) -= 3;
        let (ports, rules, workers) = ([port], [steer, drop], [worker]);
        let in_flight = |handed_over| InFlight { handed_over, ..InFlight::default() };
        let accounting = check(&ports, &rules, &workers, &in_flight(3));
        assert_eq!(accounting.verdict(), "packet accounting matches, 3 packets in flight");
        let accounting = check(&ports, &rules, &workers, &in_flight(2));
        assert_eq!(accounting.matches, Some(false), "more than can be in flight");
    }

    /// Packets that wait to be counted are in flight, wherever they wait: no received packet is in no figure.
    #[test]
    fn received_packets_are_counted_or_in_flight() {
        let (mut port, mut steer, drop, mut worker) = scene();
        // 4 wait in queues, 2 were received and not classified, 1 was dropped after the drop rule was read; 6
        // copies were handed over as well, of which the worker filtered out one.
        let counters = port.counters.as_mut().expect("counted");
        counters.received_packets += 4 + 2 + 1;
        counters.delivered_packets += 4 + 2;
        counters.rule_dropped_packets += 1;
        counters.replicated_packets += 6;
        worker.received_packets += 2 + 6;
        worker.outcomes[PacketOutcome::Delivered] += 5;
        worker.outcomes[PacketOutcome::Filtered] += 1;
        *packets(&mut steer, PacketOutcome::Delivered) += 5;
        *packets(&mut steer, PacketOutcome::Filtered) += 1;
        let in_flight = InFlight { handed_over: 4, dropped: 1, unclassified: vec![2], ..InFlight::default() };
        let accounting = check(&[port], &[steer, drop], &[worker], &in_flight);
        assert_eq!(accounting.matches, Some(true), "{}", accounting.verdict());
        let filtered = accounting.outcomes[PacketOutcome::Filtered].expect("known");
        assert_eq!((accounting.in_flight, filtered, accounting.replicated), (Some(7), 1, Some(6)));
        let dropped = accounting.outcomes[PacketOutcome::Dropped].expect("known");
        let delivered = accounting.outcomes[PacketOutcome::Delivered].expect("known");
        let counted = delivered + dropped + 10 + filtered + accounting.lost;
        assert_eq!(107 + accounting.wire_lost + 6, counted + 7);
    }

    /// The allowance for packets in flight hides no mismatch of another kind.
    #[test]
    fn packets_in_flight_explain_no_other_mismatch() {
        type Spoil = fn(&mut PortState, &mut RuleState, &mut RuleState, &mut WorkerState);
        let spoil: [Spoil; 5] = [
            |port, _, _, _| port.lost_packets.clear(),
            |_, steer, _, _| *packets(steer, PacketOutcome::Delivered) -= 1,
            |_, _, drop, _| *packets(drop, PacketOutcome::Dropped) += 1,
            |_, _, _, worker| worker.received_packets += 1,
            |_, _, _, worker| worker.lost_packets.insert("bad_frame", 1).map_or((), |_| ()),
        ];
        for (i, spoil) in spoil.into_iter().enumerate() {
            let (mut port, mut steer, mut drop, mut worker) = scene();
            spoil(&mut port, &mut steer, &mut drop, &mut worker);
            // Every left side may be far ahead; none may be behind.
            let in_flight = InFlight {
                handed_over: 4096,
                dropped: 4096,
                sent_dropped: 4096,
                unclassified: vec![0],
                drops_unknown: false,
                uncounted_drops: 4096,
            };
            let accounting = check(&[port], &[steer, drop], &[worker], &in_flight);
            assert_eq!(accounting.matches, Some(false), "mismatch {i} was not found");
        }
    }

    /// Packets that a rule does not let through are neither delivered nor dropped by the rule.
    #[test]
    fn policed_packets_have_outcomes_of_their_own() {
        let (port, mut steer, drop, mut worker) = scene();
        worker.outcomes[PacketOutcome::Delivered] -= 30;
        *packets(&mut steer, PacketOutcome::Delivered) -= 30;
        (worker.outcomes[PacketOutcome::RateLimited], *packets(&mut steer, PacketOutcome::RateLimited)) =
            (20, 20);
        (worker.outcomes[PacketOutcome::NotSampled], *packets(&mut steer, PacketOutcome::NotSampled)) =
            (10, 10);
        assert_eq!(steer.packets(), 27 + 2 + 30);
        let (ports, rules) = ([port], [steer, drop]);
        let accounting = check(&ports, &rules, &[worker.clone()], &InFlight::default());
        assert_eq!(accounting.matches, Some(true), "{}", accounting.verdict());
        let policed = [PacketOutcome::RateLimited, PacketOutcome::NotSampled]
            .map(|outcome| accounting.outcomes[outcome]);
        assert_eq!((policed, accounting.policed()), ([Some(20), Some(10)], 30));
        worker.outcomes[PacketOutcome::NotSampled] -= 1;
        assert_eq!(check(&ports, &rules, &[worker], &InFlight::default()).matches, Some(false));
    }

    #[test]
    fn unread_drop_counters_are_not_checked() {
        let (port, steer, mut drop, worker) = scene();
        *packets(&mut drop, PacketOutcome::Dropped) = 5;
        let (ports, rules, workers) = ([port], [steer, drop], [worker]);
        let unknown = InFlight { drops_unknown: true, ..InFlight::default() };
        let accounting = check(&ports, &rules, &workers, &unknown);
        assert_eq!(accounting.matches, None, "nothing is claimed");
        assert!(
            accounting.verdict().starts_with("packet accounting not checked"),
            "{}",
            accounting.verdict()
        );
        assert_eq!(check(&ports, &rules, &workers, &InFlight::default()).matches, Some(false));
        let never_read =
            RuleState { outcomes: [(PacketOutcome::Dropped, Count::UNKNOWN)].into(), ..RuleState::default() };
        let accounting = check(&ports, &[rules[0].clone(), never_read], &workers, &unknown);
        let dropped = accounting.outcomes[PacketOutcome::Dropped];
        assert_eq!((dropped, accounting.matches), (None, None), "unknown is not zero");
    }

    /// Packets that removed rules have dropped and no counter has are no mismatch, up to the limit.
    #[test]
    fn drops_without_a_counter_are_limited() {
        let (mut port, steer, drop, worker) = scene();
        let counters = port.counters.as_mut().expect("counted");
        (counters.received_packets, counters.rule_dropped_packets) = (103, 28);
        let (ports, rules, workers) = ([port], [steer, drop], [worker]);
        let limit = |uncounted_drops| InFlight { uncounted_drops, ..InFlight::default() };
        let accounting = check(&ports, &rules, &workers, &limit(4));
        assert!(
            accounting.verdict().ends_with("dropped by removed rules (at most 4 of these)"),
            "{}",
            accounting.verdict()
        );
        assert_eq!(accounting.matches, Some(true));
        assert_eq!(check(&ports, &rules, &workers, &limit(2)).matches, Some(false));
    }

    #[test]
    fn without_port_counters_only_the_workers_are_checked() {
        let (port, steer, drop, worker) = scene();
        let port = PortState { counters: None, ..port };
        let accounting = check(&[port], &[steer, drop], &[worker], &InFlight::default());
        assert_eq!((accounting.matches, accounting.ports_counted), (Some(true), false));
        let by_ports = (
            accounting.received,
            accounting.outcomes[PacketOutcome::Kernel],
            accounting.replicated,
            accounting.in_flight,
        );
        assert_eq!(by_ports, (None, None, None, None), "unknown is not zero");
        assert!(accounting.verdict().contains("does not count"), "{}", accounting.verdict());
    }
}

//! The counters of ports, in one table: the state, the metrics and their reference are made of its rows, and
//! the sum of outcomes in the accounting. A new counter is a row here, beside the place that counts it,
//! [`PortStats`]. A new disposition is a row in both; a new reason to lose packets is a row there only.

use serde::Serialize;
use softnic::PortStats;

/// How a counter of ports is shown in the metrics.
#[derive(Clone, Copy)]
pub(crate) struct PortMetric {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) read: fn(&PortCounters) -> u64,
}

/// Makes [`PortCounters`] and the metrics of rows: each is the key in the state, of which the name of the
/// metric is made, the number of [`PortStats`], and the help text; `outcome` marks those that each received
/// packet is in exactly one of, if it is not lost. The groups divide the metrics, in their order.
macro_rules! port_counters {
    ($($group:ident { $($key:ident = $source:ident $($outcome:ident)?, $help:literal;)* })*) => {
        /// What a port counts but for its losses.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub(crate) struct PortCounters {
            $($(#[doc = $help] pub(crate) $key: u64,)*)*
        }

        impl PortCounters {
            /// The received packets that were not lost, whatever their outcome.
            pub(crate) fn outcomes(&self) -> u64 {
                let mut sum = 0;
                $($($({
                    let $outcome = self.$key;
                    sum += $outcome;
                })?)*)*
                sum
            }
        }

        impl From<&PortStats> for PortCounters {
            fn from(stats: &PortStats) -> Self {
                Self { $($($key: stats.$source,)*)* }
            }
        }

        $(pub(crate) static $group: &[PortMetric] = &[$(PortMetric {
            name: concat!("steerd_port_", stringify!($key), "_total"),
            help: $help,
            read: |port| port.$key,
        },)*];)*
    };
}

port_counters! {
    RECEIVED {
        received_packets = rx_frames, "Packets received from the wire.";
        received_bytes = rx_bytes, "Bytes received from the wire.";
        delivered_packets = delivered outcome, "Packets handed to workers.";
        replicated_packets = replicated,
            "Copies of packets handed to workers, in addition to the packets' own outcome.";
        rule_dropped_packets = flow_dropped outcome, "Packets dropped by rules in the device.";
        kernel_packets = unmatched outcome, "Unmatched packets, left to the kernel, copied or not.";
        given_back_packets = given_back,
            "Packets that the wire af_xdp had taken from the kernel and gave back; they are among the kernel's.";
        beyond_claims_packets = beyond_claims,
            "Packets that the wire af_xdp took from the kernel although it is not known whether a flow wants them.";
        passed_packets = passed,
            "Packets that the XDP program of the wire af_xdp left to the kernel; the port has not received them.";
        xdp_dropped_packets = dropped_by_wire,
            "Packets that the XDP program of the wire af_xdp dropped; they are among those dropped by rules.";
    }
    SPLIT_AND_SENT {
        split_packets = split_frames,
            "Merged frames (GRO, segmentation offload) that the port split into the packets that it received.";
        split_segments = split_segments,
            "Packets that the port made of merged frames; they are among the received packets.";
        sent_packets = tx_frames, "Packets sent.";
        sent_bytes = tx_bytes, "Bytes sent.";
        send_errors = tx_errors, "Sends that failed.";
        sent_dropped_packets = tx_flow_dropped, "Sent packets dropped by egress rules before the wire.";
        lost_copies = copies_lost,
            "Copies lost for lack of room; their packets' own outcome is counted separately.";
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Counters with a different number in each field.
    pub(crate) fn distinct_stats() -> PortStats {
        PortStats {
            rx_frames: 1,
            rx_bytes: 2,
            delivered: 3,
            replicated: 4,
            flow_dropped: 5,
            unmatched: 6,
            given_back: 7,
            beyond_claims: 8,
            passed: 9,
            dropped_by_wire: 10,
            split_frames: 11,
            split_segments: 12,
            tx_frames: 13,
            tx_bytes: 14,
            tx_errors: 15,
            tx_flow_dropped: 16,
            copies_lost: 17,
            out_of_buffer: 18,
            cq_overrun: 19,
            oversize: 20,
            runt: 21,
            queue_not_ready: 22,
            memory_fault: 23,
            wire_lost: 24,
            datagrams_lost: 25,
            not_given_back_generic: 26,
            not_given_back_too_long: 27,
            not_given_back_refused: 28,
        }
    }

    #[test]
    fn outcomes_and_losses_are_the_dispositions_of_the_device() {
        let stats = distinct_stats();
        let lost: u64 = stats.losses().map(|(_, frames)| frames).sum();
        assert_eq!(PortCounters::from(&stats).outcomes() + lost, stats.dispositions());
    }
}

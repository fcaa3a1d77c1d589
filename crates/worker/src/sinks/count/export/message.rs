//! Messages of IPFIX (RFC 7011): the templates, the records, and the message that they are put into.
//!
//! All information elements are of IANA's registry. There are three templates of flows, for IPv4, IPv6 and
//! other frames, and an options template for records that were not sent (RFC 7011, 4.3).

use packet::PacketFlow;

use super::super::flow::unpack;
use super::FlowRecord;

/// The version of IPFIX.
const VERSION: u16 = 10;
const HEADER_BYTES: usize = 16;
const SET_HEADER_BYTES: usize = 4;
/// The numbers of sets with templates (RFC 7011, 3.3.2). Data sets have the number of their template.
const TEMPLATE_SET: u16 = 2;
const OPTIONS_TEMPLATE_SET: u16 = 3;
const FIRST_DATA_SET: u16 = 256;
/// A field of any length (RFC 7011, 7).
const VARIABLE: u16 = u16::MAX;
/// The longest name in a record; a longer one is cut off, so that every record fits into the smallest
/// message.
const NAME_BYTES_MAX: usize = 200;

/// A field of a template: the number of its information element, and its bytes.
#[derive(Clone, Copy)]
struct TemplateField {
    element: u16,
    bytes: u16,
}

const fn field(element: u16, bytes: u16) -> TemplateField {
    TemplateField { element, bytes }
}

/// A template: its number, fields, and how many of them, the first, are its scope.
pub(super) struct Template {
    id: u16,
    scope_fields: u16,
    fields: &'static [TemplateField],
}

impl Template {
    pub(super) const ALL: [&'static Self; 4] = [&IPV4, &IPV6, &ETHERNET, &NOT_SENT];

    /// The set that it is sent in, and its bytes.
    pub(super) fn encode(&self) -> (u16, Vec<u8>) {
        let mut bytes = Vec::new();
        push(&mut bytes, &self.id.to_be_bytes());
        // There are few fields.
        push(&mut bytes, &(self.fields.len() as u16).to_be_bytes());
        let set = if self.scope_fields > 0 {
            push(&mut bytes, &self.scope_fields.to_be_bytes());
            OPTIONS_TEMPLATE_SET
        } else {
            TEMPLATE_SET
        };
        for field in self.fields {
            push(&mut bytes, &field.element.to_be_bytes());
            push(&mut bytes, &field.bytes.to_be_bytes());
        }
        (set, bytes)
    }
}

/// The flows of IPv4. [`encode_flow`] writes the fields in this order.
static IPV4: Template = Template {
    id: 256,
    scope_fields: 0,
    fields: &[
        field(8, 4),          // sourceIPv4Address
        field(12, 4),         // destinationIPv4Address
        field(4, 1),          // protocolIdentifier
        field(7, 2),          // sourceTransportPort
        field(11, 2),         // destinationTransportPort
        field(6, 2),          // tcpControlBits
        field(89, 1),         // forwardingStatus
        field(136, 1),        // flowEndReason
        field(10, 4),         // ingressInterface
        field(152, 8),        // flowStartMilliseconds
        field(153, 8),        // flowEndMilliseconds
        field(2, 8),          // packetDeltaCount
        field(1, 8),          // octetDeltaCount
        field(335, VARIABLE), // selectorName
    ],
};

/// The flows of IPv6, with the fields of those of IPv4.
static IPV6: Template = Template {
    id: 257,
    scope_fields: 0,
    fields: &[
        field(27, 16), // sourceIPv6Address
        field(28, 16), // destinationIPv6Address
        field(4, 1),
        field(7, 2),
        field(11, 2),
        field(6, 2),
        field(89, 1),
        field(136, 1),
        field(10, 4),
        field(152, 8),
        field(153, 8),
        field(2, 8),
        field(1, 8),
        field(335, VARIABLE),
    ],
};

/// The other frames. Their octets include the Ethernet header.
static ETHERNET: Template = Template {
    id: 258,
    scope_fields: 0,
    fields: &[
        field(56, 6),  // sourceMacAddress
        field(80, 6),  // destinationMacAddress
        field(256, 2), // ethernetType
        field(89, 1),
        field(136, 1),
        field(10, 4),
        field(152, 8),
        field(153, 8),
        field(2, 8),
        field(352, 8), // layer2OctetDeltaCount
        field(335, VARIABLE),
    ],
};

/// The flows that were not sent since the start (RFC 7011, 4.3).
static NOT_SENT: Template = Template {
    id: 259,
    scope_fields: 1,
    fields: &[
        field(144, 4), // exportingProcessId
        field(166, 8), // notSentFlowTotalCount
        field(167, 8), // notSentPacketTotalCount
        field(168, 8), // notSentOctetTotalCount
    ],
};

/// The packets of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowSums {
    pub(super) flows: u64,
    pub(super) packets: u64,
    pub(super) octets: u64,
}

impl std::ops::AddAssign for FlowSums {
    fn add_assign(&mut self, other: Self) {
        self.flows += other.flows;
        self.packets += other.packets;
        self.octets += other.octets;
    }
}

/// The contents of a record beside the counts of the worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowContext<'c> {
    /// The name of the rule.
    pub(super) rule: &'c str,
    /// The forwarding status (RFC 7270, 4.12).
    pub(super) forwarding_status: u8,
    /// The index of the interface; 0 if it is not known.
    pub(super) ingress_interface: u32,
    /// The time, in milliseconds since the epoch, from which those of records count.
    pub(super) origin_epoch_ms: u64,
}

fn push(bytes: &mut Vec<u8>, more: &[u8]) {
    bytes.extend_from_slice(more);
}

/// Writes the record of a flow; returns its set.
pub(super) fn encode_flow(record: &FlowRecord, context: &FlowContext<'_>, bytes: &mut Vec<u8>) -> u16 {
    bytes.clear();
    let set = match unpack(record.flow) {
        PacketFlow::Ip { src, dst, protocol, ports } => {
            let set = match (src, dst) {
                (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
                    push(bytes, &src.octets());
                    push(bytes, &dst.octets());
                    IPV4.id
                }
                (src, dst) => {
                    for address in [src, dst] {
                        let address = match address {
                            std::net::IpAddr::V4(address) => address.to_ipv6_mapped(),
                            std::net::IpAddr::V6(address) => address,
                        };
                        push(bytes, &address.octets());
                    }
                    IPV6.id
                }
            };
            let (src_port, dst_port) = ports.unwrap_or_default();
            push(bytes, &[protocol]);
            push(bytes, &src_port.to_be_bytes());
            push(bytes, &dst_port.to_be_bytes());
            push(bytes, &u16::from(record.control_bits).to_be_bytes());
            set
        }
        PacketFlow::Ethernet { src, dst, ether_type } => {
            push(bytes, &src.0);
            push(bytes, &dst.0);
            push(bytes, &ether_type.to_be_bytes());
            ETHERNET.id
        }
    };
    push(bytes, &[context.forwarding_status, record.end_reason as u8]);
    push(bytes, &context.ingress_interface.to_be_bytes());
    for ms in [record.first_ms, record.last_ms] {
        push(bytes, &context.origin_epoch_ms.saturating_add(ms).to_be_bytes());
    }
    push(bytes, &record.packets.to_be_bytes());
    push(bytes, &record.octets.to_be_bytes());
    let mut name_bytes = context.rule.len().min(NAME_BYTES_MAX);
    while !context.rule.is_char_boundary(name_bytes) {
        name_bytes -= 1;
    }
    let name = &context.rule[..name_bytes];
    // Shorter than 255, the first length that needs two more bytes (RFC 7011, 7).
    push(bytes, &[name.len() as u8]);
    push(bytes, name.as_bytes());
    set
}

/// Writes the record of the flows that were not sent; returns its set.
pub(super) fn encode_not_sent(process: u32, sums: FlowSums, bytes: &mut Vec<u8>) -> u16 {
    bytes.clear();
    push(bytes, &process.to_be_bytes());
    for count in [sums.flows, sums.packets, sums.octets] {
        push(bytes, &count.to_be_bytes());
    }
    NOT_SENT.id
}

/// A message that grows until it is sent.
#[derive(Debug)]
pub(super) struct MessageBuilder {
    bytes: Vec<u8>,
    /// The number and the place of the last set.
    open_set: Option<(u16, usize)>,
    /// The records with data in it.
    records: u32,
    /// The records with data of the messages before, modulo 2^32.
    sequence: u32,
    observation_domain: u32,
    bytes_max: usize,
}

impl MessageBuilder {
    pub(super) fn new(observation_domain: u32) -> Self {
        let bytes = vec![0; HEADER_BYTES];
        Self { bytes, open_set: None, records: 0, sequence: 0, observation_domain, bytes_max: 0 }
    }

    /// Begins a session: its sequence numbers begin with 0, and its messages have at most so many bytes.
    pub(super) fn begin_session(&mut self, bytes_max: usize) {
        self.sequence = 0;
        self.limit(bytes_max);
    }

    /// Limits the bytes of later messages.
    pub(super) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.min(usize::from(u16::MAX));
    }

    /// Returns whether a record has room.
    pub(super) fn has_room(&self, set: u16, record: &[u8]) -> bool {
        let is_open = self.open_set.is_some_and(|(open, _)| open == set);
        let header = if is_open { 0 } else { SET_HEADER_BYTES };
        self.bytes.len() + header + record.len() <= self.bytes_max
    }

    /// Adds a record, or a template, to a set. The caller has asked whether there is room; an empty message
    /// takes any record.
    pub(super) fn add(&mut self, set: u16, record: &[u8]) {
        if self.open_set.is_none_or(|(open, _)| open != set) {
            self.close_set();
            self.open_set = Some((set, self.bytes.len()));
            push(&mut self.bytes, &set.to_be_bytes());
            push(&mut self.bytes, &[0, 0]);
        }
        push(&mut self.bytes, record);
        if set >= FIRST_DATA_SET {
            self.records += 1;
        }
    }

    fn close_set(&mut self) {
        if let Some((_, start)) = self.open_set.take() {
            let length = (self.bytes.len() - start) as u16;
            self.bytes[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
        }
    }

    /// The whole message; `None` if it is empty.
    pub(super) fn finish(&mut self, export_seconds: u32) -> Option<&[u8]> {
        self.close_set();
        let length = self.bytes.len();
        if length == HEADER_BYTES {
            return None;
        }
        let (head, _) = self.bytes.split_first_chunk_mut::<HEADER_BYTES>()?;
        head[..2].copy_from_slice(&VERSION.to_be_bytes());
        head[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        head[4..8].copy_from_slice(&export_seconds.to_be_bytes());
        head[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        head[12..].copy_from_slice(&self.observation_domain.to_be_bytes());
        Some(&self.bytes)
    }

    /// Begins the next message. The sequence numbers count the records that were sent.
    pub(super) fn begin_next(&mut self, was_sent: bool) {
        if was_sent {
            self.sequence = self.sequence.wrapping_add(self.records);
        }
        self.bytes.truncate(HEADER_BYTES);
        self.open_set = None;
        self.records = 0;
    }
}

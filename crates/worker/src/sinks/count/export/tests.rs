//! Flows from the cache of a worker to the messages that a collector gets, read by a decoder of its own.

use std::collections::HashMap;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream, UdpSocket};

use packet::build::FrameBuilder;
use program::FlowCollector;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// A record: its values by information element.
type Record = HashMap<u16, Vec<u8>>;

/// The state of a collector in a session.
#[derive(Default)]
struct Decoder {
    templates: HashMap<u16, Vec<(u16, u16)>>,
    /// The records with data so far.
    records: Vec<(u16, Record)>,
    messages: usize,
    template_messages: usize,
}

impl Decoder {
    /// Reads a message; panics if anything in it is not as RFC 7011 has it.
    fn message(&mut self, bytes: &[u8]) {
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        assert_eq!((word(0), usize::from(word(2))), (10, bytes.len()));
        assert_eq!(long(8) as usize, self.records.len(), "the sequence number is that of the records before");
        assert_eq!(long(12), 7, "the observation domain");
        self.messages += 1;
        let mut at = 16;
        while at < bytes.len() {
            let (set, end) = (word(at), at + usize::from(word(at + 2)));
            let body = &bytes[at + 4..end];
            match set {
                2 | 3 => self.read_templates(set == 3, body),
                set => self.read_records(set, body),
            }
            at = end;
        }
        assert_eq!(at, bytes.len());
    }

    fn read_templates(&mut self, has_scope: bool, mut body: &[u8]) {
        self.template_messages += usize::from(!has_scope);
        let next = |body: &mut &[u8]| {
            let (head, rest) = body.split_first_chunk::<2>().expect("two bytes");
            *body = rest;
            u16::from_be_bytes(*head)
        };
        while !body.is_empty() {
            let (id, count) = (next(&mut body), next(&mut body));
            if has_scope {
                assert_eq!(next(&mut body), 1, "fields of the scope");
            }
            let fields: Vec<(u16, u16)> = (0..count).map(|_| (next(&mut body), next(&mut body))).collect();
            self.templates.insert(id, fields);
        }
    }

    fn read_records(&mut self, set: u16, mut body: &[u8]) {
        let fields = self.templates.get(&set).expect("the template came before").clone();
        while !body.is_empty() {
            let mut record = Record::new();
            for (element, length) in &fields {
                let length = match *length {
                    u16::MAX => {
                        let (length, rest) = body.split_first().expect("a length");
                        body = rest;
                        usize::from(*length)
                    }
                    length => usize::from(length),
                };
                let (value, rest) = body.split_at(length);
                record.insert(*element, value.to_vec());
                body = rest;
            }
            self.records.push((set, record));
        }
    }

    /// The records of flows.
    fn flows(&self) -> Vec<&Record> {
        self.records.iter().filter(|(set, _)| *set < 259).map(|(_, record)| record).collect()
    }

    /// The last report of flows that were not sent.
    fn not_sent(&self) -> Option<u64> {
        let report = self.records.iter().rev().find(|(set, _)| *set == 259)?;
        Some(number(&report.1, 166))
    }
}

fn number(record: &Record, element: u16) -> u64 {
    record[&element].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn text(record: &Record, element: u16) -> String {
    String::from_utf8(record[&element].clone()).expect("text")
}

fn options(collector: &str) -> FlowExport {
    let collector: FlowCollector = collector.parse().expect("a collector");
    FlowExport { observation_domain: 7, flows: 64, ..FlowExport::new(collector) }
}

fn udp(client: u16, payload_bytes: usize) -> Vec<u8> {
    FrameBuilder::new()
        .ipv4([10, 0, 0, 1].into(), [192, 0, 2, 53].into())
        .udp(1024 + client, 53)
        .frame_bytes(42 + payload_bytes)
        .build()
}

fn rule(number: u32) -> RuleOfFlow {
    RuleOfFlow { generation: 1, rule: number, is_dropped: false }
}

/// A cache without a thread behind it, and the end of its ring.
fn cache(options: &FlowExport, room: usize) -> (FlowCache, rtrb::Consumer<FlowRecord>, Arc<NotSent>) {
    let (producer, consumer) = rtrb::RingBuffer::new(room);
    let not_sent = Arc::new(NotSent::default());
    let cache = FlowCache::new(options, Instant::now(), producer, Arc::clone(&not_sent)).expect("memory");
    (cache, consumer, not_sent)
}

fn count(cache: &mut FlowCache, frame: &[u8], rule: RuleOfFlow) {
    cache.count(frame, &packet::parse(frame), rule);
}

#[test]
fn packets_of_a_flow_are_one_record() {
    let (mut cache, mut ring, _) = cache(&options("ipfix://192.0.2.1"), 64);
    cache.set_now_ms(100);
    count(&mut cache, &udp(1, 20), rule(0));
    count(&mut cache, &udp(2, 20), rule(0));
    cache.set_now_ms(250);
    count(&mut cache, &udp(1, 30), rule(0));
    count(&mut cache, &udp(1, 30), rule(3));
    let dropped = RuleOfFlow { is_dropped: true, ..rule(3) };
    count(&mut cache, &udp(1, 30), dropped);
    cache.retire();
    assert!(cache.is_flushing() && cache.poll() && !cache.is_flushing() && !cache.poll());
    let mut records: Vec<FlowRecord> = std::iter::from_fn(|| ring.pop().ok()).collect();
    assert_eq!(records.len(), 4, "rules and drops have flows of their own: {records:?}");
    records.sort_by_key(|record| std::cmp::Reverse(record.packets));
    let FlowRecord { packets, octets, first_ms, last_ms, end_reason, .. } = records[0];
    // The octets of IP, without the Ethernet header.
    assert_eq!((packets, octets), (2, 28 + 20 + 28 + 30));
    assert_eq!((first_ms, last_ms, end_reason), (100, 250, FlowEndReason::ForcedEnd));
}

#[test]
fn octets_are_those_of_the_packet() {
    let (mut cache, mut ring, _) = cache(&options("ipfix://192.0.2.1"), 64);
    let mut padded = udp(1, 4);
    padded.resize(60, 0);
    let v6 = FrameBuilder::new()
        .ipv6("2001:db8::1".parse().expect("address"), "2001:db8::2".parse().expect("address"))
        .udp(1, 2)
        .frame_bytes(100)
        .build();
    let arp = [&[2; 12][..], &[0x08, 0x06], &[0; 46]].concat();
    let mut segment =
        FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [192, 0, 2, 1].into()).tcp(1, 2, 2).build();
    segment.resize(60, 0);
    let mut cut = udp(2, 500);
    cut.truncate(100);
    for (frame, octets) in [(padded, 32), (segment, 40), (v6, 86), (arp, 60), (cut, 86)] {
        count(&mut cache, &frame, rule(0));
        cache.retire();
        cache.poll();
        assert_eq!(ring.pop().expect("a record").octets, octets, "{frame:02x?}");
        cache.resume();
    }
}

#[test]
fn flows_end_by_time_and_by_their_flags() {
    let options = FlowExport { active_seconds: 30, idle_seconds: 10, ..options("ipfix://192.0.2.1") };
    let (mut cache, mut ring, _) = cache(&options, 64);
    let tcp = |port: u16, flags: u8| {
        FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [192, 0, 2, 1].into()).tcp(port, 80, flags).build()
    };
    let mut ended = |cache: &mut FlowCache, now_ms: u64| -> Vec<FlowEndReason> {
        cache.set_now_ms(now_ms);
        cache.scan();
        std::iter::from_fn(|| ring.pop().ok()).map(|record| record.end_reason).collect()
    };
    assert_eq!(ended(&mut cache, 1000), []);
    count(&mut cache, &udp(1, 20), rule(0));
    count(&mut cache, &tcp(5, 0x02), rule(0));
    count(&mut cache, &tcp(5, 0x11), rule(0));
    assert_eq!(ended(&mut cache, 1900), []);
    assert_eq!(ended(&mut cache, 3000), [FlowEndReason::EndOfFlow]);
    // Packets each 5 seconds keep the other one, until it has been active for long enough.
    for now_ms in [6000, 11_000, 16_000, 21_000, 26_000, 30_000] {
        assert_eq!(ended(&mut cache, now_ms), []);
        count(&mut cache, &udp(1, 20), rule(0));
    }
    assert_eq!(ended(&mut cache, 32_000), [FlowEndReason::ActiveTimeout]);
    count(&mut cache, &udp(1, 20), rule(0));
    assert_eq!(ended(&mut cache, 41_000), []);
    assert_eq!(ended(&mut cache, 43_000), [FlowEndReason::IdleTimeout]);
    assert_eq!(ended(&mut cache, 100_000), []);
}

#[test]
fn a_scan_after_a_pause_is_done_in_parts() {
    let options = FlowExport { flows: 8192, idle_seconds: 1, ..options("ipfix://192.0.2.1") };
    let (mut cache, mut ring, _) = cache(&options, 500);
    for client in 0..500 {
        count(&mut cache, &udp(client, 20), rule(0));
    }
    cache.set_now_ms(10_000);
    let mut ended = || {
        cache.scan();
        std::iter::from_fn(|| ring.pop().ok()).count()
    };
    // A quarter of the 1024 sets each.
    let parts: Vec<usize> = (0..4).map(|_| ended()).collect();
    assert!(parts[0] < 500, "{parts:?}");
    assert_eq!(parts.iter().sum::<usize>(), 500);
}

#[test]
fn every_packet_is_in_a_record_or_not_sent() {
    let (mut cache, mut ring, not_sent) = cache(&options("ipfix://192.0.2.1"), 500);
    for client in 0..3000 {
        count(&mut cache, &udp(client, 20), rule(0));
        count(&mut cache, &udp(client, 20), rule(0));
    }
    assert!(not_sent.read().flows > 0, "the ring is full");
    let evicted: Vec<FlowRecord> = std::iter::from_fn(|| ring.pop().ok()).collect();
    assert!(evicted.iter().all(|record| record.end_reason == FlowEndReason::LackOfResources));
    cache.retire();
    while cache.is_flushing() {
        cache.poll();
    }
    let left = std::iter::from_fn(|| ring.pop().ok());
    let sent: u64 = evicted.into_iter().chain(left).map(|record| record.packets).sum();
    let lost = not_sent.read();
    assert_eq!((sent + lost.packets, lost.octets), (6000, lost.packets * 48));
}

#[test]
fn flows_that_a_worker_leaves_behind_are_not_sent() {
    let (mut cache, _ring, not_sent) = cache(&options("ipfix://192.0.2.1"), 500);
    count(&mut cache, &udp(1, 20), rule(0));
    drop(cache);
    assert_eq!(not_sent.read(), FlowSums { flows: 1, packets: 1, octets: 48 });
}

#[test]
fn counting_a_flow_allocates_nothing() {
    let (mut cache, _ring, _) = cache(&options("ipfix://192.0.2.1"), 500);
    let frames: Vec<Vec<u8>> = (0..200).map(|client| udp(client, 20)).collect();
    let counted = allocation_counter::measure(|| {
        for frame in &frames {
            cache.begin();
            count(&mut cache, frame, rule(0));
            cache.poll();
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn messages_are_bounded_and_numbered() {
    let mut builder = MessageBuilder::new(7);
    builder.begin_session(484);
    let mut decoder = Decoder::default();
    for template in Template::ALL {
        let (set, bytes) = template.encode();
        assert!(builder.has_room(set, &bytes), "all templates fit into the smallest message");
        builder.add(set, &bytes);
    }
    decoder.message(builder.finish(1).expect("a message"));
    builder.begin_next(true);
    assert!(builder.finish(1).is_none(), "an empty message is not sent");
    let long_name = "ä".repeat(300);
    let context =
        FlowContext { rule: &long_name, forwarding_status: 64, ingress_interface: 3, origin_epoch_ms: 5 };
    let flow = super::super::flow::pack(&packet::parse(&udp(1, 20)).key);
    let record = FlowRecord {
        flow,
        rule: rule(0),
        packets: 1,
        octets: 2,
        first_ms: 3,
        last_ms: 4,
        control_bits: 0,
        end_reason: FlowEndReason::IdleTimeout,
    };
    let (mut bytes, mut in_last) = (Vec::new(), 0);
    for _ in 0..20 {
        let set = encode_flow(&record, &context, &mut bytes);
        if !builder.has_room(set, &bytes) {
            let message = builder.finish(2).expect("a message");
            assert!(message.len() <= 484);
            decoder.message(message);
            builder.begin_next(true);
            in_last = 0;
        }
        assert!(builder.has_room(set, &bytes), "a record fits into an empty message");
        builder.add(set, &bytes);
        in_last += 1;
    }
    decoder.message(builder.finish(2).expect("a message"));
    assert_eq!(decoder.records.len(), 20);
    assert_eq!(text(decoder.flows()[0], 335), "ä".repeat(100), "the name is cut between two characters");
    // A message that was not sent leaves the numbers as they are.
    builder.begin_next(false);
    let set = encode_flow(&record, &context, &mut bytes);
    builder.add(set, &bytes);
    let message = builder.finish(3).expect("a message");
    assert_eq!(u32::from_be_bytes(message[8..12].try_into().expect("four bytes")), 20 - in_last);
}

/// A program with the rules that a cache of the tests counts for.
fn program() -> (Arc<Program>, Arc<SinkMap>) {
    let text = "version = 1\n[sinks.flows]\nkind = 'count'\n[sinks.out]\nkind = 'forward'\nport = 1\n\
        [groups.g]\nworkers = [0]\nsinks = ['flows']\n[[rules]]\nname = 'dns'\nmatch = { dst_port = 53, protocol = 'udp' }\n\
        action = 'steer g'\n[[rules]]\nname = 'mirror'\nmatch = { dst_port = 54, protocol = 'udp' }\naction = 'steer g'\n\
        sinks = ['flows', 'out']\n[[rules]]\nname = 'scan'\nmatch = { dst_port = 55, protocol = 'udp' }\naction = 'drop'\n";
    let source = policy::Source::new("p.toml", text);
    let (policy, _) = policy::parse(&source, &policy::NoFiles).expect("a policy");
    let program = compiler::compile(&policy, &device_model::DeviceModel::ideal(), 1).expect("a program");
    let map = SinkMap::new(1, &program, &[]);
    (Arc::new(program), Arc::new(map))
}

/// Receives messages until this is true of the decoder.
fn receive_until(
    decoder: &mut Decoder,
    mut receive: impl FnMut() -> Vec<u8>,
    is_done: impl Fn(&Decoder) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !is_done(decoder) {
        assert!(
            Instant::now() < deadline,
            "{} messages, {} records",
            decoder.messages,
            decoder.records.len()
        );
        decoder.message(&receive());
    }
}

fn datagram(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let length = socket.recv(&mut buffer).expect("a message");
    buffer.truncate(length);
    buffer
}

/// The next connection, whose reads have a timeout.
fn accepted(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("set");
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("set");
                stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
                return stream;
            }
            Err(error) => {
                let may_come = error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline;
                assert!(may_come, "no connection: {error}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn collector() -> (UdpSocket, FlowExport) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let options = options(&format!("ipfix://{}", socket.local_addr().expect("address")));
    (socket, options)
}

#[test]
fn a_collector_gets_the_flows_of_all_workers() {
    let (socket, options) = collector();
    let (hub, mut caches) = start("flows", &options, 9, 2).expect("started");
    let (program, map) = program();
    hub.announce(&map, &program);
    let begun_ms = now_ns() / 1_000_000;
    let dropped = RuleOfFlow { is_dropped: true, ..rule(2) };
    let limited = RuleOfFlow { is_dropped: true, ..rule(0) };
    for (worker, client, rule) in
        [(0, 1, rule(0)), (0, 2, rule(1)), (1, 3, dropped), (1, 4, limited), (1, 5, rule(99))]
    {
        caches[worker].begin();
        count(&mut caches[worker], &udp(client, 20), rule);
        count(&mut caches[worker], &udp(client, 20), rule);
    }
    for cache in &mut caches {
        cache.retire();
        cache.poll();
    }
    let mut decoder = Decoder::default();
    receive_until(&mut decoder, || datagram(&socket), |decoder| decoder.flows().len() == 5);
    let mut seen: Vec<(u64, String, u64)> = Vec::new();
    for record in decoder.flows() {
        assert_eq!((number(record, 8), number(record, 12)), (0x0a00_0001, 0xc000_0235));
        assert_eq!((number(record, 4), number(record, 11), number(record, 10)), (17, 53, 9));
        assert_eq!((number(record, 2), number(record, 1), number(record, 136)), (2, 96, 4));
        let (first, last) = (number(record, 152), number(record, 153));
        assert!(begun_ms.saturating_sub(1000) <= first && first <= last, "{begun_ms} {first} {last}");
        assert!(last <= now_ns() / 1_000_000 + 1000);
        seen.push((number(record, 7) - 1024, text(record, 335), number(record, 89)));
    }
    seen.sort();
    let expected =
        [(1, "dns", 192), (2, "mirror", 64), (3, "scan", 130), (4, "dns", 138), (5, "(unknown)", 192)];
    assert_eq!(seen, expected.map(|(client, rule, status)| (client, rule.to_owned(), status)));
    assert_eq!(decoder.not_sent(), Some(0), "the report comes with the templates");
    // The thread counts a message after it has sent it.
    let deadline = Instant::now() + PATIENCE;
    while hub.statistics().flows < 5 {
        assert!(Instant::now() < deadline, "{:?}", hub.status());
        std::thread::sleep(Duration::from_millis(5));
    }
    let statistics = hub.statistics();
    assert_eq!((statistics.flows, statistics.lost_flows, statistics.errors), (5, 0, 0));
    assert!(statistics.is_connected && hub.status().text("state") == Some("sending"), "{:?}", hub.status());
}

#[test]
fn templates_are_sent_again_over_udp() {
    let (socket, options) = collector();
    let options = FlowExport { template_seconds: 1, ..options };
    let (_hub, _caches) = start("flows", &options, 0, 1).expect("started");
    let mut decoder = Decoder::default();
    receive_until(&mut decoder, || datagram(&socket), |decoder| decoder.template_messages >= 3);
    assert!(decoder.flows().is_empty());
}

#[test]
fn a_collector_over_tcp_gets_whole_messages() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let options = options(&format!("ipfix+tcp://{}", listener.local_addr().expect("address")));
    let (hub, mut caches) = start("flows", &options, 0, 1).expect("started");
    let mut stream = accepted(&listener);
    for client in 0..500 {
        count(&mut caches[0], &udp(client, 20), rule(0));
    }
    caches[0].retire();
    caches[0].poll();
    let message = || {
        let mut head = [0; 4];
        stream.read_exact(&mut head).expect("a header");
        let mut message = head.to_vec();
        message.resize(usize::from(u16::from_be_bytes([head[2], head[3]])), 0);
        stream.read_exact(&mut message[4..]).expect("the rest");
        message
    };
    let mut decoder = Decoder::default();
    receive_until(&mut decoder, message, |decoder| decoder.flows().len() == 500);
    assert_eq!(hub.statistics().lost_flows, 0);
    drop(hub);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the end of the connection");
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn what_no_collector_takes_is_counted_and_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("address");
    drop(listener);
    let options = options(&format!("ipfix+tcp://{address}"));
    let (hub, mut caches) = start("flows", &options, 0, 1).expect("started");
    let until = |what: &str, is_done: &dyn Fn(&ExportStatistics) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_done(&hub.statistics()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", hub.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until("it fails", &|statistics| statistics.errors > 0 && hub.status().text("error").is_some());
    assert_eq!(hub.status().text("state"), Some("failing"));
    assert!(hub.status().text("error").is_some_and(|error| error.contains("refused")), "{:?}", hub.status());
    for client in 0..10 {
        count(&mut caches[0], &udp(client, 20), rule(0));
    }
    caches[0].retire();
    caches[0].poll();
    until("they are lost", &|statistics| statistics.lost_flows == 10 && statistics.lost_packets == 10);
    // Somebody listens there now, and is told.
    let listener = TcpListener::bind(address).expect("bound again");
    let mut stream = accepted(&listener);
    let message = || {
        let mut head = [0; 4];
        stream.read_exact(&mut head).expect("a header");
        let mut message = head.to_vec();
        message.resize(usize::from(u16::from_be_bytes([head[2], head[3]])), 0);
        stream.read_exact(&mut message[4..]).expect("the rest");
        message
    };
    let mut decoder = Decoder::default();
    receive_until(&mut decoder, message, |decoder| decoder.not_sent() == Some(10));
    until("it works", &|statistics| statistics.is_connected && hub.status().text("error").is_none());
}

#[test]
fn a_refusal_by_udp_is_an_error_until_somebody_listens() {
    let (socket, options) = collector();
    let address = socket.local_addr().expect("address");
    drop(socket);
    // Each message of templates shows the refusal of the one before.
    let options = FlowExport { template_seconds: 1, ..options };
    let (hub, _caches) = start("flows", &options, 0, 1).expect("started");
    let deadline = Instant::now() + PATIENCE;
    while hub.status().text("error").is_none() {
        assert!(Instant::now() < deadline, "{:?}", hub.status());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(hub.status().text("error"), Some(REFUSED));
    let socket = UdpSocket::bind(address).expect("bound again");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    assert!(!datagram(&socket).is_empty());
    while !hub.statistics().is_connected {
        assert!(Instant::now() < deadline, "{:?}", hub.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

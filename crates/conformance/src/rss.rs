//! Receive side scaling: `rwq_ind_tbl` and `rx_hash_conf` of `ibv_create_qp_ex`, compared with a hash
//! computed in this crate.

use std::sync::Arc;

use packet::{EtherType, IpProtocol};
use verbs::{
    CompletionFields, CompletionQueue, HashConfig, HashFields, HashFunction, IndirectionTable,
    QueuePairFlags, RssQueuePair, RssQueuePairBuilder, WorkQueueFlags,
};

use crate::bench::{frame, ipv4, unprepared};
use crate::endpoints::{KEY, Receiver};
use crate::independent::toeplitz;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

/// Queues that are hashed to.
const QUEUES: usize = 4;

const F: &str = "ibv_rx_hash_conf.rx_hash_fields_mask";

/// Source only with destination, ports only with addresses.
const WHOLE: Expected = Expected::WORKS
    .mlx4(Answer::UNSUPPORTED)
    .because("kernel mlx4 qp.c, `set_qp_rss`: source with destination, ports with addresses");
/// One family, one transport.
const ONE: Expected = Expected::WORKS
    .mlx5(Answer::INVALID)
    .because("kernel mlx5 qp.c, `create_rss_raw_qp_tir`: one family, one transport");
const NEITHER: Expected = Expected::WORKS.mlx5(Answer::INVALID).mlx4(Answer::UNSUPPORTED);

pub(crate) fn cases() -> Vec<Case> {
    let mut all = objects();
    all.extend(fields());
    all
}

fn objects() -> Vec<Case> {
    let table = |row, run| Case::new(Verb::RxHash, row, run);
    let new = "verbs::IndirectionTable::new";
    vec![
        table(["ibv_rwq_ind_table_init_attr.log_ind_tbl_size", "0 to 3", new, "a table of each size is created"], table_sizes),
        table(["ibv_rwq_ind_table_init_attr.log_ind_tbl_size", "the device's largest", new, "a table of rss_caps.max_rwq_indirection_table_size entries"], largest_table),
        table(["ibv_rwq_ind_table_init_attr.log_ind_tbl_size", "one more than the device's largest", new, "refused"], beyond_largest)
            .expect(Expected::refused(libc::EINVAL, "ibv_create_rwq_ind_table(3); kernel mlx5 qp.c, `mlx5_ib_create_rwq_ind_table`, mlx4 qp.c: max_rss_tbl_sz")),
        table(["ibv_rwq_ind_table_init_attr.ind_tbl", "the same queue in several places", new, "weights: the queue fills several entries"], repeated)
            .expect(Expected::WORKS.mlx4(Answer::INVALID).because("kernel mlx4 qp.c, `mlx4_ib_create_rwq_ind_table`: consecutive queues only")),
        table(["ibv_rwq_ind_table_init_attr.ind_tbl", "the low bits of the hash choose the entry", new, "each of four queues receives the packets of its hashes"], field::<{ HashFields::from_bits_retain(3).bits() }>).needs(Needs::Frames),
        table(["ibv_qp_init_attr_ex.rwq_ind_tbl", "IBV_QP_INIT_ATTR_IND_TABLE", "verbs::RssQueuePair::builder", "a queue pair over a table is created"], made),
        table(["ibv_qp_init_attr_ex.rx_hash_conf", "IBV_QP_INIT_ATTR_RX_HASH", "verbs::RssQueuePairBuilder::hash", "a queue pair with a hash is created"], made),
        table(["ibv_rx_hash_conf.rx_hash_function", "IBV_RX_HASH_FUNC_TOEPLITZ", "verbs::HashFunction::Toeplitz", "the function of Microsoft's verification vectors"], vectors).needs(Needs::Frames),
        table(["ibv_rx_hash_conf.rx_hash_function", "2", "verbs::HashFunction::Unknown", "refused"], other_function)
            .expect(Expected::all(Answer::UNSUPPORTED).ideal(Answer::INVALID).because("kernel mlx5 qp.c, `create_rss_raw_qp_tir`; mlx4 qp.c, `set_qp_rss`")),
        table(["ibv_rx_hash_conf.rx_hash_key_len", "40", "verbs::HASH_KEY_BYTES", "the object is created"], made),
        table(["ibv_rx_hash_conf.rx_hash_key_len", "16", "verbs::RssQueuePairBuilder::key", "refused"], short_key)
            .expect(Expected::all(Answer::INVALID).mlx4(Answer::UNSUPPORTED).because("kernel mlx5 qp.c: 40 bytes; rdma-core mlx4 verbs.c, `mlx4_cmd_create_qp_ex_rss`")),
        table(["ibv_rx_hash_conf.rx_hash_key", "another key", "verbs::RssQueuePairBuilder::key", "a different hash, that of this key"], other_key).needs(Needs::Frames),
        table(["ibv_qp_init_attr_ex.create_flags", "IBV_QP_CREATE_CVLAN_STRIPPING on an RSS queue pair", "verbs::RssQueuePairBuilder::flags", "refused: work queues have this setting"], flags)
            .expect(Expected::all(Answer::INVALID).mlx4(Answer::UNSUPPORTED).because("kernel mlx5 qp.c, `create_rss_raw_qp_tir`; mlx4 qp.c, `_mlx4_ib_create_qp_rss`")),
        table(["ibv_qp_init_attr_ex.rwq_ind_tbl", "a table destroyed while in use (EBUSY in C)", "verbs::RssQueuePair", "the queue pair keeps it and continues to receive"], kept).needs(Needs::Frames),
    ]
}

const SRC4: u64 = HashFields::SRC_IPV4.bits();
const DST4: u64 = HashFields::DST_IPV4.bits();
const SRC6: u64 = HashFields::SRC_IPV6.bits();
const DST6: u64 = HashFields::DST_IPV6.bits();
const SRC_TCP: u64 = HashFields::SRC_PORT_TCP.bits();
const DST_TCP: u64 = HashFields::DST_PORT_TCP.bits();
const SRC_UDP: u64 = HashFields::SRC_PORT_UDP.bits();
const DST_UDP: u64 = HashFields::DST_PORT_UDP.bits();
const SPI: u64 = HashFields::IPSEC_SPI.bits();
const INNER: u64 = HashFields::INNER.bits();

fn fields() -> Vec<Case> {
    const SOME: &str = "verbs::HashFields";
    vec![
        set::<SRC4>("IBV_RX_HASH_SRC_IPV4", "verbs::HashFields::SRC_IPV4", WHOLE),
        set::<DST4>("IBV_RX_HASH_DST_IPV4", "verbs::HashFields::DST_IPV4", WHOLE),
        set::<SRC6>("IBV_RX_HASH_SRC_IPV6", "verbs::HashFields::SRC_IPV6", WHOLE),
        set::<DST6>("IBV_RX_HASH_DST_IPV6", "verbs::HashFields::DST_IPV6", WHOLE),
        set::<SRC_TCP>("IBV_RX_HASH_SRC_PORT_TCP", "verbs::HashFields::SRC_PORT_TCP", WHOLE),
        set::<DST_TCP>("IBV_RX_HASH_DST_PORT_TCP", "verbs::HashFields::DST_PORT_TCP", WHOLE),
        set::<SRC_UDP>("IBV_RX_HASH_SRC_PORT_UDP", "verbs::HashFields::SRC_PORT_UDP", WHOLE),
        set::<DST_UDP>("IBV_RX_HASH_DST_PORT_UDP", "verbs::HashFields::DST_PORT_UDP", WHOLE),
        set::<{ SRC4 | DST4 }>("IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4", SOME, Expected::WORKS),
        set::<{ SRC6 | DST6 }>("IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6", SOME, Expected::WORKS),
        set::<{ SRC4 | DST4 | SRC_TCP | DST_TCP }>("IPv4 addresses and TCP ports", SOME, Expected::WORKS),
        set::<{ SRC4 | DST4 | SRC_UDP | DST_UDP }>("IPv4 addresses and UDP ports", SOME, Expected::WORKS),
        set::<{ SRC6 | DST6 | SRC_TCP | DST_TCP }>("IPv6 addresses and TCP ports", SOME, Expected::WORKS),
        set::<{ SRC6 | DST6 | SRC_UDP | DST_UDP }>("IPv6 addresses and UDP ports", SOME, Expected::WORKS),
        set::<{ SRC4 | DST4 | SRC6 | DST6 }>("addresses of both families", SOME, ONE),
        set::<{ SRC4 | DST4 | SRC_TCP | DST_TCP | SRC_UDP | DST_UDP }>("IPv4 addresses, TCP and UDP ports", SOME, ONE),
        set::<0xff>("all eight", SOME, ONE),
        set::<{ SRC_TCP | DST_TCP | SRC_UDP | DST_UDP }>("ports alone", SOME, NEITHER.because("as the rows above: one transport; ports with addresses")),
        set::<SPI>("IBV_RX_HASH_IPSEC_SPI", "verbs::HashFields::IPSEC_SPI",
            Expected::WORKS.mlx5(Answer::UNSUPPORTED).mlx4(Answer::UNSUPPORTED).mlx5_varies("the firmware decides, with an errno of its own").because("kernel mlx5 qp.c, `create_rss_raw_qp_tir`: passed on without a check; mlx4 qp.c, `set_qp_rss`: unknown bits")),
        set::<{ INNER | SRC4 | DST4 }>("IBV_RX_HASH_INNER", "verbs::HashFields::INNER",
            Expected::WORKS.mlx5(Answer::UNSUPPORTED).mlx4(Answer::UNSUPPORTED).because("kernel mlx5 qp.c: needs MLX5_QP_FLAG_TUNNEL_OFFLOADS, which only mlx5dv sets; mlx4 qp.c: unknown bits")),
        Case::new(Verb::RxHash, [F, "0 with a table of one", SOME, "all packets arrive at the one queue"], none).needs(Needs::Frames),
        Case::new(Verb::RxHash, [F, "0 with a table of two", SOME, "refused"], none_of_two)
            .expect(Expected::refused(libc::EINVAL, "kernel mlx5 qp.c: no fields only with a table of one")),
    ]
}

const fn set<const BITS: u64>(value: &'static str, offered: &'static str, expected: Expected) -> Case {
    Case::new(
        Verb::RxHash,
        [F, value, offered, "each packet arrives at the queue of the hash computed by the suite"],
        field::<BITS>,
    )
    .needs(Needs::Frames)
    .expect(expected)
}

/// Receivers over one table, in the order of its entries.
struct Spread {
    receivers: Vec<Receiver>,
    table: Arc<IndirectionTable>,
}

impl Spread {
    fn over(bench: &Bench<'_>, queues: usize) -> Result<Self, Failure> {
        let receiver = |_| {
            let cq = CompletionQueue::builder(&bench.context, 256).fields(CompletionFields::BYTE_LEN).build();
            let cq = cq.map_err(unprepared)?;
            Receiver::with(bench, &bench.domain(), cq, WorkQueueFlags::empty())
        };
        let mut receivers = (0..queues).map(receiver).collect::<Result<Vec<_>, _>>()?;
        // Some devices want consecutive numbers (kernel mlx4 qp.c, `mlx4_ib_create_rwq_ind_table`).
        receivers.sort_by_key(|receiver| receiver.queue.number());
        let entries: Vec<_> = receivers.iter().map(|receiver| Arc::clone(&receiver.queue)).collect();
        let table = IndirectionTable::new(&bench.context, &entries)?;
        Ok(Self { receivers, table })
    }

    fn pair(
        &self,
        bench: &Bench<'_>,
        key: &[u8; 40],
        fields: HashFields,
    ) -> Result<Arc<RssQueuePair>, Failure> {
        Ok(RssQueuePair::new(&bench.domain(), &self.table, &HashConfig { key: *key, fields })?)
    }
}

/// A packet, and what of it can be hashed, in the order of the hash's input.
struct Sample {
    frame: Vec<u8>,
    /// The fields it has, with their bytes.
    input: Vec<(u64, Vec<u8>)>,
}

impl Sample {
    /// The bytes of the packet that are hashed.
    fn hashed(&self, fields: u64) -> Vec<u8> {
        let chosen = self.input.iter().filter(|(field, _)| fields & field != 0);
        chosen.flat_map(|(_, bytes)| bytes.clone()).collect()
    }
}

/// Packets of each kind that there are fields for; `i` makes them differ.
fn samples(fields: u64) -> Vec<Sample> {
    (0..8_u8).flat_map(|i| of_each_kind(i, fields)).collect()
}

fn of_each_kind(i: u8, fields: u64) -> Vec<Sample> {
    let (src4, dst4) = ([192, 0, 2, i.wrapping_mul(37)], [198, 51, 100, i.wrapping_mul(91)]);
    let v6 = |salt: u8| {
        let mut address = [0u8; 16];
        address[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
        address[15] = i.wrapping_mul(salt);
        address
    };
    let (src6, dst6) = (v6(53), v6(29));
    let (src_port, dst_port) = (1024 + 77 * u16::from(i), 8000 - 13 * u16::from(i));
    let four = || vec![(SRC4, src4.to_vec()), (DST4, dst4.to_vec())];
    let six = || vec![(SRC6, src6.to_vec()), (DST6, dst6.to_vec())];
    let ports = |src, dst| [(src, src_port.to_be_bytes().to_vec()), (dst, dst_port.to_be_bytes().to_vec())];
    let with = |mut list: Vec<(u64, Vec<u8>)>, more: &[(u64, Vec<u8>)]| {
        list.extend_from_slice(more);
        list
    };
    let (tcp, udp) = (ports(SRC_TCP, DST_TCP), ports(SRC_UDP, DST_UDP));
    let ip4 = || frame().ipv4(src4.into(), dst4.into());
    let ip6 = || frame().ipv6(src6.into(), dst6.into());
    let inner = ip4().udp(src_port, dst_port).build();
    if fields & INNER != 0 {
        let outer = ipv4().vxlan(5, &inner).build();
        return vec![Sample { frame: outer, input: with(four(), &udp) }];
    }
    let spi = 0x1000 + u32::from(i);
    vec![
        Sample { frame: ip4().tcp(src_port, dst_port, 2).build(), input: with(four(), &tcp) },
        Sample { frame: inner, input: with(four(), &udp) },
        Sample { frame: ip6().tcp(src_port, dst_port, 2).build(), input: with(six(), &tcp) },
        Sample { frame: ip6().udp(src_port, dst_port).build(), input: with(six(), &udp) },
        Sample { frame: ip4().protocol(IpProtocol(1)).payload(&[i; 40]).build(), input: four() },
        Sample {
            frame: ip4().esp(spi, 1, &[i; 40]).build(),
            input: with(four(), &[(SPI, spi.to_be_bytes().to_vec())]),
        },
        Sample { frame: frame().ether_type(EtherType(0x88b5)).payload(&[i; 60]).build(), input: Vec::new() },
    ]
}

/// Sends the samples, and expects each in the queue of its hash.
fn spread(bench: &Bench<'_>, key: &[u8; 40], fields: u64) -> Outcome {
    let mut spread = Spread::over(bench, QUEUES)?;
    let pair = spread.pair(bench, key, HashFields::from_bits_retain(fields))?;
    let _flow = verbs::FlowHandle::create(&pair.into(), &bench.flow()).map_err(unprepared)?;
    for sample in samples(fields) {
        let hash = toeplitz(key, &sample.hashed(fields & !INNER));
        let expected = hash as usize % QUEUES;
        bench.deliver([sample.frame.clone()]);
        for (index, receiver) in spread.receivers.iter_mut().enumerate() {
            let came = receiver.frames()?.len();
            let wanted = usize::from(index == expected);
            ensure!(
                came == wanted,
                "{came} packets in queue {index}; the hash {hash:#010x} selects {expected}"
            );
        }
    }
    Ok(())
}

fn field<const BITS: u64>(bench: &Bench<'_>) -> Outcome {
    spread(bench, &KEY, BITS)
}

fn other_key(bench: &Bench<'_>) -> Outcome {
    let mut key = KEY;
    key.reverse();
    spread(bench, &key, SRC4 | DST4 | SRC_TCP | DST_TCP)
}

/// Source address and port, destination address and port, hash.
type Vector = ([u8; 4], u16, [u8; 4], u16, u32);

/// "Verifying the RSS hash calculation", Windows driver documentation: the addresses and ports, and the hash
/// of both.
const VECTORS: [Vector; 5] = [
    ([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766, 0x51cc_c178),
    ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xc626_b0ea),
    ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0x5c2b_394a),
    ([38, 27, 205, 30], 48228, [209, 142, 163, 6], 2217, 0xafc7_327f),
    ([153, 39, 163, 191], 44251, [202, 188, 127, 2], 1303, 0x10e8_28a2),
];

fn vectors(bench: &Bench<'_>) -> Outcome {
    let mut spread = Spread::over(bench, QUEUES)?;
    let pair = spread.pair(bench, &KEY, HashFields::from_bits_retain(SRC4 | DST4 | SRC_TCP | DST_TCP))?;
    let _flow = verbs::FlowHandle::create(&pair.into(), &bench.flow()).map_err(unprepared)?;
    for (src, src_port, dst, dst_port, hash) in VECTORS {
        bench.deliver([frame().ipv4(src.into(), dst.into()).tcp(src_port, dst_port, 2).build()]);
        for (index, receiver) in spread.receivers.iter_mut().enumerate() {
            let wanted = usize::from(index == hash as usize % QUEUES);
            ensure!(receiver.frames()?.len() == wanted, "{hash:#010x} is not in its queue");
        }
    }
    Ok(())
}

fn none(bench: &Bench<'_>) -> Outcome {
    let mut spread = Spread::over(bench, 1)?;
    let pair = spread.pair(bench, &KEY, HashFields::empty())?;
    let _flow = verbs::FlowHandle::create(&pair.into(), &bench.flow()).map_err(unprepared)?;
    let samples = samples(0);
    bench.deliver(samples.iter().take(20).map(|sample| sample.frame.clone()));
    let came = spread.receivers[0].frames()?.len();
    ensure!(came == 20, "{came} packets of 20");
    Ok(())
}

fn none_of_two(bench: &Bench<'_>) -> Outcome {
    Spread::over(bench, 2)?.pair(bench, &KEY, HashFields::empty())?;
    Ok(())
}

fn table_sizes(bench: &Bench<'_>) -> Outcome {
    for log in 0..=3 {
        let table = Spread::over(bench, 1 << log)?.table;
        ensure!(table.size() == 1 << log, "{} entries", table.size());
    }
    Ok(())
}

/// Queues for tables of devices that take each queue once.
const MAX_OWN_QUEUES: usize = 1024;

/// A table over one queue; where queues must be consecutive, over as many as there are entries.
pub(crate) fn table_of(bench: &Bench<'_>, entries: usize) -> Outcome {
    let cq = CompletionQueue::builder(&bench.context, 16).build().map_err(unprepared)?;
    let queue = || {
        let queue = verbs::WorkQueue::builder(&bench.domain(), &cq.handle()).build();
        queue.map(|(queue, _)| queue).map_err(unprepared)
    };
    let refused = match IndirectionTable::new(&bench.context, &vec![queue()?; entries]) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if entries > MAX_OWN_QUEUES {
        return Err(refused.into());
    }
    // More than needed: other processes may hold numbers in between.
    let mut queues = (0..2 * entries).map(|_| queue()).collect::<Result<Vec<_>, _>>()?;
    queues.sort_by_key(|queue| queue.number());
    let consecutive = |run: &&[Arc<verbs::WorkQueue>]| {
        run.windows(2).all(|pair| pair[1].number().0 == pair[0].number().0 + 1)
    };
    let run = queues.windows(entries).find(consecutive).unwrap_or(&queues[..entries]);
    IndirectionTable::new(&bench.context, run)?;
    Ok(())
}

fn largest_table(bench: &Bench<'_>) -> Outcome {
    let entries = bench.attributes.rss_caps.max_table_size;
    ensure!(entries > 0, "the device reports 0");
    table_of(bench, entries as usize)
}

fn beyond_largest(bench: &Bench<'_>) -> Outcome {
    table_of(bench, 2 * bench.attributes.rss_caps.max_table_size as usize)
}

pub(crate) fn repeated(bench: &Bench<'_>) -> Outcome {
    let cq = CompletionQueue::builder(&bench.context, 16).build().map_err(unprepared)?;
    let (queue, _receives) =
        verbs::WorkQueue::builder(&bench.domain(), &cq.handle()).build().map_err(unprepared)?;
    let table = IndirectionTable::new(&bench.context, &vec![queue; 4])?;
    ensure!(table.size() == 4, "{} entries", table.size());
    Ok(())
}

/// A queue pair over two queues, with something else asked for.
fn build(bench: &Bench<'_>, set: impl FnOnce(RssQueuePairBuilder) -> RssQueuePairBuilder) -> Outcome {
    let spread = Spread::over(bench, 2)?;
    let hash = HashConfig { key: KEY, fields: HashFields::from_bits_retain(SRC4 | DST4) };
    set(RssQueuePair::builder(&bench.domain(), &spread.table).hash(&hash)).build()?;
    Ok(())
}

fn made(bench: &Bench<'_>) -> Outcome {
    build(bench, |pair| pair)
}

fn other_function(bench: &Bench<'_>) -> Outcome {
    build(bench, |pair| pair.function(HashFunction::Unknown(2)))
}

fn short_key(bench: &Bench<'_>) -> Outcome {
    build(bench, |pair| pair.key(&KEY[..16]))
}

fn flags(bench: &Bench<'_>) -> Outcome {
    build(bench, |pair| pair.flags(QueuePairFlags::CVLAN_STRIPPING))
}

fn kept(bench: &Bench<'_>) -> Outcome {
    let Spread { mut receivers, table } = Spread::over(bench, 1)?;
    let hash = HashConfig { key: KEY, fields: HashFields::empty() };
    let pair = RssQueuePair::new(&bench.domain(), &table, &hash)?;
    drop(table);
    let flow = verbs::FlowHandle::create(&pair.into(), &bench.flow()).map_err(unprepared)?;
    bench.deliver([crate::bench::udp(1, 2)]);
    ensure!(receivers[0].frames()?.len() == 1, "nothing came");
    drop(flow);
    Ok(())
}

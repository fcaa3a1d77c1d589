//! The functions that poll a completion queue and read a completion, and the clock of timestamps.

use std::time::{Duration, SystemTime};

use verbs::{CompletionFields, CompletionQueue};

use crate::bench::{frame, ipv4, udp};
use crate::endpoints::Receiver;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

/// How far two clocks that are read one after the other may differ on a busy machine.
const SLACK: Duration = Duration::from_millis(100);

pub(crate) fn cases() -> Vec<Case> {
    let read = |row, run| Case::new(Verb::PollCq, row, run).needs(Needs::Frames);
    let mlx4 = Expected::WORKS
        .mlx4(Answer::UNSUPPORTED)
        .because("rdma-core mlx4 verbs.c: CREATE_CQ_SUPPORTED_WC_FLAGS");
    vec![
        read(
            [
                "ibv_wc_read_byte_len",
                "60 to 1500 bytes",
                "verbs::Completion::byte_len",
                "the length of each packet",
            ],
            lengths,
        ),
        read(
            [
                "ibv_wc_read_qp_num",
                "through a work queue",
                "verbs::Completion::qp_num",
                "the number of the work queue",
            ],
            number,
        )
        .expect(
            Expected::WORKS
                .mlx5(Answer::Differs)
                .because("rdma-core mlx5 cq.c, `mlx5_cq_read_wc_qp_num` and `mlx5_cq_read_flow_tag`: one word, which has the tag"),
        ),
        read(
            [
                "ibv_wc_read_flow_tag",
                "a flow with a tag, and one without",
                "verbs::Completion::flow_tag",
                "the tag, and 0",
            ],
            tags,
        )
        .expect(mlx4),
        read(
            [
                "ibv_wc_read_cvlan",
                "a stripped tag",
                "verbs::Completion::cvlan",
                "the tag control information",
            ],
            cvlan,
        )
        .expect(mlx4),
        read(
            [
                "ibv_wc_read_completion_ts",
                "ten packets",
                "verbs::Completion::timestamp",
                "timestamps never decrease, within the device's mask",
            ],
            timestamps,
        ),
        read(
            [
                "ibv_wc_read_completion_ts",
                "converted",
                "verbs::Clock::system_time",
                "the time of day, and the time between two packets",
            ],
            conversion,
        ),
        read(
            [
                "ibv_wc_read_completion_wallclock_ns",
                "a packet",
                "verbs::Completion::wallclock_ns",
                "the time of day",
            ],
            wall_clock,
        )
        .expect(mlx4),
        read(
            [
                "ibv_wc_read_wc_flags",
                "IBV_WC_IP_CSUM_OK",
                "verbs::Completion::checksum_ok",
                "set for correct checksums, clear for a wrong IP, UDP or TCP checksum (soft NIC: from the first query on)",
            ],
            checksums,
        )
        .expect(
            Expected::WORKS
                .mlx5(Answer::Differs)
                .because("rdma-core mlx5 cq.c, `handle_responder_lazy`: the flag is valid for queue pairs alone, and never set through a work queue"),
        ),
        read(
            [
                "ibv_wc_read_opcode",
                "ibv_wc_read_vendor_err",
                "verbs::Completion::opcode",
                "a receive, without a vendor error",
            ],
            opcode,
        )
        .expect(
            Expected::WORKS
                .mlx5(Answer::Differs)
                .because("rdma-core mlx5 cq.c, `mlx5_cq_read_wc_vendor_err`: without an error a byte of the timestamp"),
        ),
        read(
            [
                "ibv_start_poll",
                "ibv_next_poll, ibv_end_poll",
                "verbs::CompletionQueue::poll",
                "every completion once, in order",
            ],
            polling,
        ),
        read(
            [
                "ibv_poll_cq",
                "on the same queue",
                "verbs::CompletionQueue::poll_classic",
                "every completion once, in order",
            ],
            classic,
        ),
        Case::new(
            Verb::PollCq,
            [
                "ibv_values_ex.comp_mask",
                "IBV_VALUES_MASK_RAW_CLOCK",
                "verbs::Context::raw_clock",
                "the device returns a clock value",
            ],
            raw_clock,
        ),
        Case::new(
            Verb::PollCq,
            [
                "ibv_values_ex.raw_clock",
                "read twice",
                "verbs::Context::raw_clock",
                "the clock advances at the device's rate",
            ],
            raw_clock_rate,
        ),
    ]
}

/// The packets that a receiver with these completion fields receives.
fn seen(
    bench: &Bench<'_>,
    fields: CompletionFields,
    frames: Vec<Vec<u8>>,
) -> Result<(Vec<crate::endpoints::Packet>, Receiver), Failure> {
    let mut receiver = Receiver::with_fields(bench, fields)?;
    let _flow =
        receiver.flow(&bench.flow()).map_err(|failure| Failure::Differs(format!("no flow: {failure:?}")))?;
    let count = frames.len();
    for frame in frames {
        bench.deliver([frame]);
    }
    let packets = receiver.drain()?;
    ensure!(packets.len() == count, "{} packets of {count}", packets.len());
    Ok((packets, receiver))
}

fn lengths(bench: &Bench<'_>) -> Outcome {
    let frames: Vec<_> =
        [60, 61, 512, 1500].map(|bytes| ipv4().udp(1, 2).frame_bytes(bytes).build()).to_vec();
    let lengths: Vec<_> = frames.iter().map(Vec::len).collect();
    ensure!(lengths == [60, 61, 512, 1500], "the packets are {lengths:?} bytes long");
    // The soft NIC begins to look when a queue is asked for the first time.
    let (_, mut receiver) = seen(bench, CompletionFields::BYTE_LEN, vec![udp(1, 2)])?;
    let _flow = receiver.flow(&bench.flow())?;
    bench.deliver(frames);
    let packets = receiver.drain()?;
    let received: Vec<_> = packets.iter().map(|packet| packet.bytes.len()).collect();
    ensure!(received == lengths, "{received:?}");
    Ok(())
}

fn number(bench: &Bench<'_>) -> Outcome {
    let (packets, receiver) = seen(bench, CompletionFields::QP_NUM, vec![udp(1, 2)])?;
    let number = receiver.queue.number().0;
    ensure!(packets[0].qp_num == Some(number), "{:?} instead of {number}", packets[0].qp_num);
    Ok(())
}

fn tags(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::with_fields(bench, CompletionFields::FLOW_TAG)?;
    let target = receiver.target()?;
    for (attr, tag) in
        [(bench.flow().action(verbs::ActionSpec::Tag(verbs::FlowTag(77))), 77), (bench.flow(), 0)]
    {
        let _flow = verbs::FlowHandle::create(&target, &attr)?;
        bench.deliver([udp(1, 2)]);
        let packets = receiver.drain()?;
        ensure!(packets.len() == 1 && packets[0].tag == Some(tag), "{:?} instead of {tag}", packets.first());
    }
    Ok(())
}

fn cvlan(bench: &Bench<'_>) -> Outcome {
    let fields = CompletionFields::BYTE_LEN | CompletionFields::CVLAN;
    let cq = CompletionQueue::builder(&bench.context, 128).fields(fields).build()?;
    let strip = verbs::WorkQueueFlags::CVLAN_STRIPPING;
    let mut receiver = Receiver::with(bench, &bench.domain(), cq, strip)?;
    let _flow = receiver.flow(&bench.flow())?;
    bench.deliver([frame().vlan(packet::EtherType(0x8100), 0xa123).payload(&[1; 60]).build()]);
    let packets = receiver.drain()?;
    ensure!(packets.len() == 1 && packets[0].cvlan == Some(0xa123), "{packets:x?}");
    Ok(())
}

fn timestamps(bench: &Bench<'_>) -> Outcome {
    let frames = (0..10).map(|i| udp(i, 2)).collect();
    let (packets, _) = seen(bench, CompletionFields::COMPLETION_TIMESTAMP, frames)?;
    let times: Vec<u64> = packets.iter().filter_map(|packet| packet.timestamp).collect();
    ensure!(times.len() == 10, "{} timestamps of 10", times.len());
    let mask = bench.attributes.completion_timestamp_mask;
    ensure!(times.iter().all(|time| time & !mask == 0), "outside of the mask {mask:#x}: {times:x?}");
    let forward = |pair: &[u64]| pair[1].wrapping_sub(pair[0]) & mask < mask / 2;
    ensure!(times.windows(2).all(forward), "they go back: {times:?}");
    Ok(())
}

fn conversion(bench: &Bench<'_>) -> Outcome {
    let before = SystemTime::now();
    let clock = bench.context.clock()?;
    let (first, _) = seen(bench, CompletionFields::COMPLETION_TIMESTAMP, vec![udp(1, 2)])?;
    std::thread::sleep(Duration::from_millis(20));
    let (second, _) = seen(bench, CompletionFields::COMPLETION_TIMESTAMP, vec![udp(1, 2)])?;
    let after = SystemTime::now();
    let (Some(first), Some(second)) = (first[0].timestamp, second[0].timestamp) else {
        return Err(Failure::Differs("no timestamps".into()));
    };
    for timestamp in [first, second] {
        let at = clock.system_time(timestamp);
        let near = at.is_some_and(|at| at + SLACK >= before && at <= after + SLACK);
        ensure!(near, "{at:?} is not between {before:?} and {after:?}");
    }
    let apart = clock.between(first, second);
    let most = after.duration_since(before).unwrap_or_default() + SLACK;
    ensure!(apart >= Duration::from_millis(20) && apart <= most, "{apart:?} apart");
    Ok(())
}

fn wall_clock(bench: &Bench<'_>) -> Outcome {
    let before = SystemTime::now();
    let (packets, _) = seen(bench, CompletionFields::COMPLETION_TIMESTAMP_WALLCLOCK, vec![udp(1, 2)])?;
    let after = SystemTime::now();
    let at = packets[0].wallclock_ns.map(|nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos));
    let near = at.is_some_and(|at| at + SLACK >= before && at <= after + SLACK);
    ensure!(near, "{at:?} is not between {before:?} and {after:?}");
    Ok(())
}

fn raw_clock(bench: &Bench<'_>) -> Outcome {
    bench.context.raw_clock()?;
    Ok(())
}

fn raw_clock_rate(bench: &Bench<'_>) -> Outcome {
    let clock = bench.context.clock()?;
    let (start, first) = (std::time::Instant::now(), bench.context.raw_clock()?);
    // A clock that is read from memory is some milliseconds late on a busy machine.
    std::thread::sleep(Duration::from_millis(100));
    let second = bench.context.raw_clock()?;
    let (apart, most) = (clock.between(first, second), start.elapsed());
    ensure!(apart >= Duration::from_millis(75), "{apart:?} in {most:?}");
    ensure!(apart <= most + SLACK, "{apart:?} in {most:?}");
    Ok(())
}

/// A frame with a byte turned over.
fn broken(mut frame: Vec<u8>, at: usize) -> Vec<u8> {
    frame[at] ^= 0xff;
    frame
}

fn checksums(bench: &Bench<'_>) -> Outcome {
    ensure!(
        bench.attributes.raw_packet_caps.contains(verbs::RawPacketCaps::IP_CSUM),
        "the device does not report that it verifies checksums"
    );
    let tcp = ipv4().tcp(1, 2, 0x10).payload(&[9; 40]).build();
    let frames = vec![udp(1, 2), tcp.clone(), broken(udp(1, 2), 24), broken(udp(1, 2), 40), broken(tcp, 50)];
    // The soft NIC begins to look when a queue is asked for the first time.
    let (_, mut receiver) = seen(bench, CompletionFields::BYTE_LEN, vec![udp(1, 2)])?;
    let _flow = receiver.flow(&bench.flow())?;
    bench.deliver(frames);
    let packets = receiver.drain()?;
    let checked: Vec<_> = packets.iter().map(|packet| packet.checksum_ok).collect();
    ensure!(checked == [true, true, false, false, false].map(Some), "{checked:?}");
    Ok(())
}

fn opcode(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow())?;
    // A byte of a clock may be 0 once.
    for port in 0..8 {
        bench.deliver([udp(port, 2)]);
        let Some(mut batch) = receiver.cq.poll() else { return Err(Failure::Differs("nothing came".into())) };
        let Some(completion) = batch.next() else { return Err(Failure::Differs("nothing came".into())) };
        ensure!(completion.opcode() == verbs::Opcode::Receive, "{:?}", completion.opcode());
        ensure!(completion.vendor_error() == 0, "{:#x}", completion.vendor_error());
    }
    Ok(())
}

fn polling(bench: &Bench<'_>) -> Outcome {
    let frames: Vec<_> = (0..20).map(|i| udp(i, 2)).collect();
    let (packets, mut receiver) = seen(bench, CompletionFields::BYTE_LEN, frames.clone())?;
    ensure!(packets.iter().map(|packet| &packet.bytes).eq(&frames), "not in order");
    ensure!(receiver.cq.poll().is_none(), "something is left");
    Ok(())
}

fn classic(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow())?;
    bench.deliver((0..5).map(|i| udp(i, 2)));
    let mut list = Vec::new();
    let counts = [3, 100, 100].map(|most| receiver.cq.poll_classic(&mut list, most));
    ensure!(counts == [3, 2, 0], "{counts:?} completions");
    for (i, completion) in (0..).zip(list) {
        let bytes = completion.byte_len() as usize;
        let Ok(frame) = receiver.pool.reclaim_classic(completion) else {
            return Err(Failure::Differs("a completion names no posted frame".into()));
        };
        ensure!(receiver.pool.bytes(&frame)[..bytes] == udp(i, 2), "not in order");
        receiver.pool.release(frame);
    }
    bench.deliver([udp(9, 2)]);
    ensure!(receiver.frames()? == [udp(9, 2)], "the batch after it has something else");
    Ok(())
}

//! `ibv_create_counters` and the COUNT action: packets and bytes of flows.

use std::sync::Arc;

use verbs::{ActionSpec, CounterPoint, CounterValues, Counters, FlowSpec, ReadFlags};

use crate::bench::udp;
use crate::endpoints::Receiver;
use crate::filters::any_ipv4;
use crate::{Answer, Bench, Case, Expected, Needs, Outcome, Verb};

pub(crate) fn cases() -> Vec<Case> {
    let none =
        Expected::WORKS.mlx4(Answer::UNSUPPORTED).because("rdma-core mlx4 mlx4.c sets no `create_counters`");
    let case = |row, run| Case::new(Verb::Counters, row, run).expect(none);
    let counts = |row, run| case(row, run).needs(Needs::Frames);
    let points = "verbs::Counters::with_points";
    let refused = |errno, source| Expected::refused(errno, source).mlx4(Answer::UNSUPPORTED);
    vec![
        case(["ibv_create_counters", "ibv_destroy_counters", "verbs::Counters::new", "the object is created and destroyed"], made),
        counts(["ibv_flow_spec_counter_action.counters", "IBV_FLOW_SPEC_ACTION_COUNT", "verbs::ActionSpec::Count", "matching packets are counted and received; others are not counted"], counted),
        counts(["ibv_flow_spec_counter_action.counters", "beside DROP", "verbs::ActionSpec::Count", "dropped packets are counted"], dropped),
        counts(["ibv_flow_spec_counter_action.counters", "shared by two flows", "verbs::ActionSpec::Count", "the sum of both"], shared),
        counts(["ibv_counter_attach_attr.counter_desc", "IBV_COUNTER_PACKETS", "verbs::CounterPoint::Packets", "packets"], counted),
        counts(["ibv_counter_attach_attr.counter_desc", "IBV_COUNTER_BYTES", "verbs::CounterPoint::Bytes", "bytes, from the Ethernet header on"], counted),
        case(["ibv_counter_attach_attr.counter_desc", "7", "verbs::CounterPoint::Unknown", "refused"], unknown_point)
            .expect(Expected::all(Answer::UNSUPPORTED).because("kernel mlx5 counters.c, `mlx5_ib_flow_counters_set_data`; rdma-core mlx5 verbs.c, `mlx5_attach_counters_point_flow`: ENOTSUP")),
        counts(["ibv_counter_attach_attr.index", "bytes at 0, packets at 1", points, "each value at its index"], indexed),
        counts(["ibv_counter_attach_attr.index", "packets twice at 2", "verbs::Counters::attach", "their sum; 0 at an index without a counter point"], summed),
        case(["ibv_attach_counters_point_flow", "after a flow was bound", "verbs::Counters::attach", "refused"], attached_late)
            .expect(refused(libc::EBUSY, "rdma-core mlx5 verbs.c, `mlx5_attach_counters_point_flow`: EBUSY once bound")),
        counts(["ibv_read_counters", "IBV_READ_COUNTERS_ATTR_PREFER_CACHED", "verbs::ReadFlags::PREFER_CACHED", "a clock value"], cached),
        case(["ibv_read_counters", "with no flow bound", "verbs::Counters::read", "zeros, or refused"], idle)
            .expect(none.mlx5(Answer::Refused(libc::EINVAL)).because("kernel uverbs_std_types_counters.c: EINVAL before a flow counts; mlx4 has none")),
        case(["ibv_read_counters", "fewer values than points", "verbs::Counters::values", "refused"], too_few)
            .expect(refused(libc::EINVAL, "ibv_read_counters(3); kernel mlx5 counters.c")),
        counts(["ibv_destroy_counters", "destroyed while in use (EBUSY in C)", "verbs::Counters", "the flow keeps them and continues to count"], kept),
    ]
}

fn made(bench: &Bench<'_>) -> Outcome {
    Counters::new(&bench.context)?;
    Ok(())
}

fn bytes(frames: &[Vec<u8>]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

fn check(counters: &Counters, packets: u64, bytes: u64) -> Outcome {
    let seen = counters.read()?;
    ensure!(seen == CounterValues { packets, bytes }, "{seen:?} instead of {packets} packets, {bytes} bytes");
    Ok(())
}

fn counted(bench: &Bench<'_>) -> Outcome {
    let counters = Counters::new(&bench.context)?;
    let mut receiver = Receiver::new(bench)?;
    let attr = bench.flow().spec(any_ipv4()).action(ActionSpec::Count(Arc::clone(&counters)));
    let _flow = receiver.flow(&attr)?;
    let frames = [udp(1, 2), crate::bench::ipv4().udp(1, 2).frame_bytes(900).build()];
    let other = crate::bench::ipv6().udp(1, 2).build();
    bench.deliver(frames.iter().cloned().chain([other]));
    check(&counters, 2, bytes(&frames))?;
    let came = receiver.frames()?;
    ensure!(came == frames, "{} frames came, or others", came.len());
    Ok(())
}

fn dropped(bench: &Bench<'_>) -> Outcome {
    let counters = Counters::new(&bench.context)?;
    let mut receiver = Receiver::new(bench)?;
    let attr = bench.flow().action(ActionSpec::Drop).action(ActionSpec::Count(Arc::clone(&counters)));
    let _flow = receiver.flow(&attr)?;
    let frames = [udp(1, 2), udp(3, 4)];
    bench.deliver(frames.iter().cloned());
    check(&counters, 2, bytes(&frames))?;
    ensure!(receiver.frames()?.is_empty(), "what is dropped came");
    Ok(())
}

/// To one UDP port each.
fn to_port(bench: &Bench<'_>, dst_port: u16, counters: &Arc<Counters>) -> verbs::FlowAttr {
    let port = |dst_port| verbs::PortMatch { src_port: 0, dst_port };
    let udp = FlowSpec::Udp { value: port(dst_port), mask: port(0xffff) };
    bench.flow().spec(any_ipv4()).spec(udp).action(ActionSpec::Count(Arc::clone(counters)))
}

fn shared(bench: &Bench<'_>) -> Outcome {
    let counters = Counters::new(&bench.context)?;
    let receiver = Receiver::new(bench)?;
    let _flows =
        [receiver.flow(&to_port(bench, 7, &counters))?, receiver.flow(&to_port(bench, 8, &counters))?];
    let frames = [udp(1, 7), udp(1, 8), udp(2, 8)];
    bench.deliver(frames.iter().cloned().chain([udp(1, 9)]));
    check(&counters, 3, bytes(&frames))
}

fn unknown_point(bench: &Bench<'_>) -> Outcome {
    Counters::with_points(&bench.context, &[CounterPoint::Unknown(7)])?;
    Ok(())
}

fn read(bench: &Bench<'_>, flags: ReadFlags) -> Outcome {
    let counters = Counters::with_points(&bench.context, &[CounterPoint::Bytes, CounterPoint::Packets])?;
    let receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow().action(ActionSpec::Count(Arc::clone(&counters))))?;
    let frames = [udp(1, 2), udp(3, 4), udp(5, 6)];
    bench.deliver(frames.iter().cloned());
    let mut values = [0; 2];
    counters.values(flags, &mut values)?;
    ensure!(values == [bytes(&frames), 3], "{values:?}");
    Ok(())
}

fn indexed(bench: &Bench<'_>) -> Outcome {
    read(bench, ReadFlags::empty())
}

fn summed(bench: &Bench<'_>) -> Outcome {
    let counters = Counters::with_points(&bench.context, &[])?;
    for _ in 0..2 {
        counters.attach(CounterPoint::Packets, 2)?;
    }
    let receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow().action(ActionSpec::Count(Arc::clone(&counters))))?;
    bench.deliver([udp(1, 2), udp(3, 4), udp(5, 6)]);
    let mut values = [9; 4];
    counters.values(ReadFlags::empty(), &mut values)?;
    ensure!(values == [0, 0, 6, 0], "{values:?}");
    Ok(())
}

fn cached(bench: &Bench<'_>) -> Outcome {
    read(bench, ReadFlags::PREFER_CACHED)
}

fn attached_late(bench: &Bench<'_>) -> Outcome {
    let counters = Counters::new(&bench.context)?;
    let receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow().action(ActionSpec::Count(Arc::clone(&counters))))?;
    counters.attach(CounterPoint::Packets, 2)?;
    Ok(())
}

fn idle(bench: &Bench<'_>) -> Outcome {
    check(&*Counters::new(&bench.context)?, 0, 0)
}

fn too_few(bench: &Bench<'_>) -> Outcome {
    let counters = Counters::new(&bench.context)?;
    let receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow().action(ActionSpec::Count(Arc::clone(&counters))))?;
    counters.values(ReadFlags::empty(), &mut [0])?;
    Ok(())
}

fn kept(bench: &Bench<'_>) -> Outcome {
    let counters = Counters::new(&bench.context)?;
    let mut receiver = Receiver::new(bench)?;
    let flow = receiver.flow(&bench.flow().action(ActionSpec::Count(Arc::clone(&counters))))?;
    let weak = Arc::downgrade(&counters);
    drop(counters);
    bench.deliver([udp(1, 2)]);
    ensure!(receiver.frames()?.len() == 1, "nothing came");
    let Some(counters) = weak.upgrade() else {
        return Err(crate::Failure::Differs("the counters went before their flow".into()));
    };
    check(&counters, 1, udp(1, 2).len() as u64)?;
    drop(flow);
    drop(counters);
    ensure!(weak.upgrade().is_none(), "the counters stayed behind their flow");
    Ok(())
}

//! Completion channels: `ibv_req_notify_cq`, `ibv_get_cq_event`, `ibv_ack_cq_events`, `ibv_modify_cq`.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use verbs::{CompletionChannel, CompletionFields, CompletionQueue, WorkQueueFlags};

use crate::bench::{udp, unprepared};
use crate::endpoints::Receiver;
use crate::{Answer, Bench, Case, Expected, Failure, Needs, Outcome, Verb};

/// Longer than an event takes that is there.
const SHORT: Option<Duration> = Some(Duration::from_millis(20));
/// How long an event may take that must come.
const LONG: Option<Duration> = Some(Duration::from_secs(10));

pub(crate) fn cases() -> Vec<Case> {
    let case = |row, run| Case::new(Verb::CreateCqEx, row, run);
    let event = |row, run| case(row, run).needs(Needs::Frames);
    let moderate = "verbs::CompletionQueue::moderate";
    let too_much = Expected::WORKS
        .mlx5(Answer::Refused(libc::EINVAL))
        .because("kernel mlx5 cq.c, `mlx5_ib_modify_cq`: MLX5_MAX_CQ_PERIOD");
    vec![
        case(
            [
                "ibv_create_comp_channel",
                "ibv_destroy_comp_channel",
                "verbs::CompletionChannel::new",
                "the object is created, its descriptor is not readable, and it is destroyed",
            ],
            channel,
        ),
        event(
            [
                "ibv_cq_init_attr_ex.channel",
                "a channel",
                "verbs::CompletionQueueBuilder::channel",
                "the requested event is delivered there, once",
            ],
            once,
        ),
        event(
            [
                "ibv_cq_init_attr_ex.cq_context",
                "two queues on one channel",
                "verbs::CompletionEvent::token",
                "each event names its queue",
            ],
            tokens,
        ),
        event(
            [
                "ibv_cq_init_attr_ex.channel",
                "NULL",
                "verbs::CompletionQueue::poll",
                "a queue without a channel is polled",
            ],
            without,
        ),
        event(
            [
                "ibv_req_notify_cq",
                "before the packet",
                "verbs::CompletionQueue::request_notification",
                "one event",
            ],
            once,
        ),
        event(
            [
                "ibv_req_notify_cq",
                "after the packet",
                "verbs::CompletionQueue::request_notification",
                "no event for earlier completions",
            ],
            late,
        )
        .expect(
            Expected::WORKS
                .mlx5(Answer::Differs)
                .because("rdma-core mlx5 cq.c, `mlx5_arm_cq`: from the index of the consumer on, an event for what was not polled"),
        ),
        event(["ibv_req_notify_cq", "never", "verbs::CompletionChannel::event", "no event"], never),
        event(
            [
                "ibv_req_notify_cq",
                "solicited_only",
                "verbs::CompletionQueue::request_notification",
                "no event for a received packet, one for a failure",
            ],
            solicited,
        ),
        event(
            [
                "ibv_get_cq_event",
                "a thread that waits",
                "verbs::CompletionChannel::wait",
                "the thread wakes up",
            ],
            wakes,
        ),
        event(
            [
                "ibv_ack_cq_events",
                "destroying the queue afterwards",
                "verbs::CompletionChannel::event",
                "the queue is destroyed at once",
            ],
            acknowledged,
        ),
        event(
            [
                "ibv_ack_cq_events",
                "destroying a queue with unread events",
                "verbs::CompletionChannel::event",
                "its events are discarded",
            ],
            unread,
        ),
        case(
            ["ibv_modify_cq_attr.moderate", "IBV_CQ_ATTR_MODERATE", moderate, "accepted within cq_mod_caps"],
            moderation,
        ),
        event(
            [
                "ibv_moderate_cq.cq_count",
                "4, without a time limit",
                moderate,
                "an event only after four completions",
            ],
            counted,
        ),
        event(
            [
                "ibv_moderate_cq.cq_period",
                "1000 microseconds and 100 packets",
                moderate,
                "an event after the time has passed",
            ],
            timed,
        ),
        case(
            ["ibv_moderate_cq.cq_period", "65535 microseconds", moderate, "beyond 4095 on mlx5: refused"],
            longest,
        )
        .expect(too_much),
    ]
}

/// A receiver that reports to a channel.
fn receiver(bench: &Bench<'_>, channel: &Arc<CompletionChannel>, token: usize) -> Result<Receiver, Failure> {
    let cq = CompletionQueue::builder(&bench.context, 128).fields(CompletionFields::BYTE_LEN);
    let cq = cq.channel(channel, token).build()?;
    Receiver::with(bench, &bench.domain(), cq, WorkQueueFlags::empty())
}

/// A channel, a receiver on it, and a flow to that.
fn ready(bench: &Bench<'_>) -> Result<(Arc<CompletionChannel>, Receiver, verbs::FlowHandle), Failure> {
    let channel = CompletionChannel::new(&bench.context)?;
    let receiver = receiver(bench, &channel, 42)?;
    let flow = receiver.flow(&bench.flow())?;
    Ok((channel, receiver, flow))
}

fn token(event: Option<verbs::CompletionEvent>) -> Option<usize> {
    event.map(|event| event.token)
}

fn channel(bench: &Bench<'_>) -> Outcome {
    let channel = CompletionChannel::new(&bench.context)?;
    let _fd = channel.as_fd();
    ensure!(channel.event()?.is_none(), "a new channel has an event");
    Ok(())
}

fn once(bench: &Bench<'_>) -> Outcome {
    let (channel, mut receiver, _flow) = ready(bench)?;
    receiver.cq.request_notification(false)?;
    bench.deliver([udp(1, 2), udp(3, 4)]);
    let seen = token(channel.wait(LONG)?);
    ensure!(seen == Some(42), "{seen:?}");
    ensure!(channel.event()?.is_none(), "one request, two events");
    ensure!(receiver.drain()?.len() == 2, "packets are lost");
    Ok(())
}

fn tokens(bench: &Bench<'_>) -> Outcome {
    let channel = CompletionChannel::new(&bench.context)?;
    let mut receivers = [receiver(bench, &channel, 1)?, receiver(bench, &channel, 2)?];
    for (index, wanted) in [(1, 2), (0, 1)] {
        let receiver = &mut receivers[index];
        receiver.cq.request_notification(false)?;
        let _flow = receiver.flow(&bench.flow())?;
        bench.deliver([udp(1, 2)]);
        let seen = token(channel.wait(LONG)?);
        ensure!(seen == Some(wanted), "{seen:?} instead of {wanted}");
    }
    Ok(())
}

fn without(bench: &Bench<'_>) -> Outcome {
    let mut receiver = Receiver::new(bench)?;
    let _flow = receiver.flow(&bench.flow())?;
    bench.deliver([udp(1, 2)]);
    ensure!(receiver.drain()?.len() == 1, "nothing came");
    Ok(())
}

fn late(bench: &Bench<'_>) -> Outcome {
    let (channel, mut receiver, _flow) = ready(bench)?;
    bench.deliver([udp(1, 2)]);
    receiver.cq.request_notification(false)?;
    ensure!(channel.wait(SHORT)?.is_none(), "an event for what was there before");
    bench.deliver([udp(3, 4)]);
    ensure!(channel.wait(LONG)?.is_some(), "no event for what came after");
    Ok(())
}

fn never(bench: &Bench<'_>) -> Outcome {
    let (channel, _receiver, _flow) = ready(bench)?;
    bench.deliver([udp(1, 2)]);
    ensure!(channel.wait(SHORT)?.is_none(), "an event without a request");
    Ok(())
}

/// A work queue that fails is the nearest thing to a solicited event that raw packets have.
fn solicited(bench: &Bench<'_>) -> Outcome {
    let (channel, mut receiver, _flow) = ready(bench)?;
    receiver.cq.request_notification(true)?;
    bench.deliver([udp(1, 2)]);
    ensure!(channel.wait(SHORT)?.is_none(), "an event for an unsolicited packet");
    receiver.queue.to_error().map_err(unprepared)?;
    ensure!(channel.wait(LONG)?.is_some(), "no event for what failed");
    Ok(())
}

fn wakes(bench: &Bench<'_>) -> Outcome {
    let (channel, mut receiver, _flow) = ready(bench)?;
    receiver.cq.request_notification(false)?;
    let seen = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| channel.wait(LONG));
        bench.deliver([udp(1, 2)]);
        waiter.join()
    });
    let Ok(seen) = seen else { return Err(Failure::Differs("the waiting thread ended badly".into())) };
    let seen = token(seen?);
    ensure!(seen == Some(42), "{seen:?}");
    Ok(())
}

fn acknowledged(bench: &Bench<'_>) -> Outcome {
    let (channel, mut receiver, flow) = ready(bench)?;
    receiver.cq.request_notification(false)?;
    bench.deliver([udp(1, 2)]);
    ensure!(channel.wait(LONG)?.is_some(), "no event");
    drop((flow, receiver));
    ensure!(channel.event()?.is_none(), "an event of a queue that is gone");
    Ok(())
}

fn unread(bench: &Bench<'_>) -> Outcome {
    let (channel, mut receiver, flow) = ready(bench)?;
    receiver.cq.request_notification(false)?;
    bench.deliver([udp(1, 2)]);
    drop((flow, receiver));
    ensure!(channel.event()?.is_none(), "an event of a queue that is gone");
    Ok(())
}

fn moderation(bench: &Bench<'_>) -> Outcome {
    let caps = bench.attributes.cq_moderation;
    ensure!(caps.max_count > 0 && caps.max_period_us > 0, "{caps:?}");
    let cq = CompletionQueue::builder(&bench.context, 16).build().map_err(unprepared)?;
    cq.moderate(16.min(caps.max_count), 100.min(caps.max_period_us))?;
    cq.moderate(0, 0)?;
    Ok(())
}

fn counted(bench: &Bench<'_>) -> Outcome {
    let (channel, mut receiver, _flow) = ready(bench)?;
    receiver.cq.moderate(4, bench.attributes.cq_moderation.max_period_us)?;
    receiver.cq.request_notification(false)?;
    bench.deliver((0..4).map(|i| udp(i, 2)));
    ensure!(channel.wait(LONG)?.is_some(), "no event for four");
    Ok(())
}

fn timed(bench: &Bench<'_>) -> Outcome {
    let (channel, mut receiver, _flow) = ready(bench)?;
    receiver.cq.moderate(100, 1000)?;
    receiver.cq.request_notification(false)?;
    bench.deliver([udp(1, 2)]);
    // The device has to be driven for time to pass there.
    for _ in 0..1000 {
        std::thread::sleep(Duration::from_millis(2));
        bench.deliver([]);
        if channel.event()?.is_some() {
            return Ok(());
        }
    }
    Err(Failure::Differs("no event after two seconds".into()))
}

fn longest(bench: &Bench<'_>) -> Outcome {
    let cq = CompletionQueue::builder(&bench.context, 16).build().map_err(unprepared)?;
    cq.moderate(1, u16::MAX)?;
    Ok(())
}

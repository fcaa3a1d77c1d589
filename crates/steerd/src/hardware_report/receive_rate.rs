//! The rate at which one worker receives, with flows of other masks before the one that its frames match.
//!
//! The worker is the one of the daemon, with a program of one rule. Its flow is installed here rather than by
//! `control`, so that its priority and the masks before it are known.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device_model::DeviceModel;
use packet::build::FrameBuilder;
use program::{ChangeStage, FlowAction, Program, WorkerId};
use verbs::{
    ActionSpec, FlowAttr, FlowTag, FlowTarget, HashConfig, HashFields, IndirectionTable, Ipv4Match,
    RssQueuePair,
};
use worker::{Idle, ServedPort, Worker, WorkerConfig, WorkerControl, WorkerHandle};

use super::flow_rate::{AddressMatch, InstalledFlows, OTHER_ADDRESSES, flow, one_of_each, per_second};
use super::target::{OpenTarget, SOURCE_MAC, SendTimes, TEST_MAC};
use super::{ReceiveEvidence, ReceivePoint, ReportError};

/// The lengths of frames, without FCS.
const FRAME_BYTES: [u32; 3] = [64, 256, 1500];
/// The numbers of masks before the flow of the frames.
const MASKS: [u32; 4] = [1, 8, 64, 512];
const TIMES: SendTimes = SendTimes { warm_up: Duration::from_millis(200), measured: Duration::from_secs(1) };
const QUICK_TIMES: SendTimes =
    SendTimes { warm_up: Duration::from_millis(10), measured: Duration::from_millis(30) };
/// The time for the frames of a check.
const CHECK_TIMES: SendTimes = SendTimes { warm_up: Duration::ZERO, measured: Duration::from_millis(1) };
/// The time without a packet after which none is on its way any more.
const SETTLE: Duration = Duration::from_millis(200);
const STEP: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(5);
const KEY: [u8; 40] = [0x6d; 40];
const DISCARD: u16 = 9;

/// Measures all points.
///
/// # Errors
/// The device refuses a worker, or its flow; or no frame arrives.
pub(super) fn measure(
    target: &mut OpenTarget,
    model: &DeviceModel,
    is_quick: bool,
    steps: &mut dyn FnMut(&str),
    is_stopped: &dyn Fn() -> bool,
) -> Result<Option<ReceiveEvidence>, ReportError> {
    let Some(source) = target.source.as_ref().map(|source| source.name().to_owned()) else { return Ok(None) };
    let rig = ReceiveRig::start(target, model)?;
    if let Err(error) = rig.check(target, is_stopped) {
        rig.stop();
        return Err(error);
    }
    let mut points = Vec::new();
    let measured = MASKS.iter().take_while(|_| !is_stopped()).try_for_each(|masks| {
        steps(&format!("receive rate behind {masks} masks"));
        rig.measure_behind(*masks, target, is_quick, is_stopped, &mut points)
    });
    rig.stop();
    measured.map(|()| Some(ReceiveEvidence { source, points }))
}

/// A worker that runs, and the queue that its flows go to.
struct ReceiveRig {
    worker: WorkerHandle,
    control: WorkerControl,
    queue: FlowTarget,
    traffic: FlowAttr,
    /// The priority of the flows before.
    before: u16,
}

impl ReceiveRig {
    fn start(target: &OpenTarget, model: &DeviceModel) -> Result<Self, ReportError> {
        let program = program(model)?;
        let last = u16::try_from(model.priorities.saturating_sub(1)).unwrap_or(u16::MAX);
        let dst = u32::from(OTHER_ADDRESSES) | 1;
        let address =
            AddressMatch { value: Ipv4Match { src: 0, dst }, mask: Ipv4Match { src: 0, dst: u32::MAX } };
        let mut traffic = flow(target.port, last, address);
        if let Some(FlowAction::Steer { class, .. }) = program.flows.first().map(|flow| flow.action)
            && let Some(tag) = class.tag()
            && model.tag_bits > 0
        {
            traffic = traffic.action(ActionSpec::Tag(FlowTag(tag)));
        }
        let config = WorkerConfig {
            ports: vec![ServedPort { number: target.port.0, mtu_bytes: target.mtu_bytes }],
            idle: Idle::Spin,
            polls_drive_device: target.polls_drive_device,
            ..WorkerConfig::new(WorkerId(0))
        };
        let worker = Worker::new(&target.context, config).map_err(ReportError::Worker)?;
        let hash = HashConfig { key: KEY, fields: HashFields::empty() };
        let queue = IndirectionTable::new(&target.context, &[worker.work_queue()])
            .and_then(|table| RssQueuePair::new(&worker.domain(), &table, &hash))
            .map_err(ReportError::Verbs)?;
        let control = worker.control();
        let rig = Self {
            worker: worker.spawn().map_err(ReportError::Worker)?,
            control,
            queue: queue.into(),
            traffic,
            before: last.saturating_sub(1),
        };
        let begun = rig.control.publish(&ChangeStage::Begin(Arc::new(program)));
        let enforced = rig.control.wait(begun, PATIENCE).then(|| rig.control.publish(&ChangeStage::Enforce));
        match enforced.is_some_and(|stage| rig.control.wait(stage, PATIENCE)) {
            true => Ok(rig),
            false => Err(ReportError::SilentWorker),
        }
    }

    /// Checks that a frame of the source arrives.
    fn check(&self, target: &mut OpenTarget, is_stopped: &dyn Fn() -> bool) -> Result<(), ReportError> {
        let Some(source) = &mut target.source else { return Ok(()) };
        let mut traffic = InstalledFlows::default();
        traffic.add(&self.queue, &self.traffic).map_err(ReportError::Verbs)?;
        let start = self.received();
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && !is_stopped() {
            let sent = source.send(&frame(FRAME_BYTES[0]), CHECK_TIMES, &|| self.received(), is_stopped);
            if self.settled(start, sent.total) > 0 {
                return Ok(());
            }
        }
        Err(ReportError::UnreachedPort { peer: source.peer().to_owned(), port: target.port.0 })
    }

    /// Adds the points of all lengths behind so many masks, as far as the device takes them.
    fn measure_behind(
        &self,
        masks: u32,
        target: &mut OpenTarget,
        is_quick: bool,
        is_stopped: &dyn Fn() -> bool,
        points: &mut Vec<ReceivePoint>,
    ) -> Result<(), ReportError> {
        let mut before = InstalledFlows::default();
        let attrs = (0..masks).map(|number| flow(target.port, self.before, one_of_each(number)));
        let _refused =
            attrs.take_while(|_| !is_stopped()).find_map(|attr| before.add(&self.queue, &attr).err());
        let mut traffic = InstalledFlows::default();
        traffic.add(&self.queue, &self.traffic).map_err(ReportError::Verbs)?;
        let Some(source) = &mut target.source else { return Ok(()) };
        for frame_bytes in FRAME_BYTES {
            let frame = frame(frame_bytes);
            let start = self.received();
            let times = if is_quick { QUICK_TIMES } else { TIMES };
            let sent = source.send(&frame, times, &|| self.received(), is_stopped);
            if is_stopped() {
                break;
            }
            points.push(ReceivePoint {
                frame_bytes,
                masks_wanted: masks,
                masks: before.len(),
                milliseconds: sent.elapsed.as_millis() as u64,
                sent: sent.total,
                received: self.settled(start, sent.total),
                sent_per_second: per_second(sent.sent, sent.elapsed),
                received_per_second: per_second(sent.received, sent.elapsed),
                is_sender_limited: sent.is_sender_limited,
            });
        }
        Ok(())
    }

    /// The packets that the worker has counted for its rule.
    fn received(&self) -> u64 {
        self.control.snapshot().received.packets
    }

    /// The packets since `start`, once all that were sent are there or no more come.
    fn settled(&self, start: u64, sent: u64) -> u64 {
        let until = Instant::now() + PATIENCE;
        let (mut last, mut since) = (self.received(), Instant::now());
        while last - start < sent && since.elapsed() < SETTLE && Instant::now() < until {
            std::thread::sleep(STEP);
            let now = self.received();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        last - start
    }

    /// Ends the worker; its queues go before the device is closed.
    fn stop(self) {
        let Self { worker, queue, .. } = self;
        worker.stop();
        drop(queue);
        if let Err(error) = worker.join() {
            tracing::warn!("the worker of the report: {error}");
        }
    }
}

/// The program of the worker: every test frame is counted.
fn program(model: &DeviceModel) -> Result<Program, ReportError> {
    let text = format!(
        "version = 1\n[groups.test]\nworkers = [0]\n[[rules]]\nname = \"test\"\n\
         match = {{ dst_mac = \"{TEST_MAC}\" }}\naction = {{ steer = \"test\" }}\n"
    );
    let source = policy::Source::new("report", text.as_str());
    let (policy, _) =
        policy::parse(&source, &policy::NoFiles).map_err(|error| ReportError::Program(error.to_string()))?;
    compiler::compile(&policy, model, 1).map_err(|error| ReportError::Program(error.to_string()))
}

/// A test frame, which matches the flow of the worker and no flow before it.
fn frame(frame_bytes: u32) -> Vec<u8> {
    let dst = Ipv4Addr::from(u32::from(OTHER_ADDRESSES) | 1);
    let src = Ipv4Addr::from(u32::from(OTHER_ADDRESSES) | 2);
    FrameBuilder::new()
        .ethernet(TEST_MAC, SOURCE_MAC)
        .ipv4(src, dst)
        .udp(DISCARD, DISCARD)
        .frame_bytes(frame_bytes as usize)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use softnic::Personality;

    #[test]
    fn test_frames_have_their_lengths() {
        for frame_bytes in FRAME_BYTES {
            assert_eq!(frame(frame_bytes).len(), frame_bytes as usize);
        }
    }

    #[test]
    fn flows_before_match_no_test_frame() {
        let (src, dst) = (u32::from(OTHER_ADDRESSES) | 2, u32::from(OTHER_ADDRESSES) | 1);
        for number in 0..512 {
            let AddressMatch { value, mask } = one_of_each(number);
            assert!(src & mask.src != value.src || dst & mask.dst != value.dst, "{number}");
        }
    }

    #[test]
    fn a_worker_receives_what_is_sent() {
        for personality in [Personality::Ideal, Personality::Mlx5, Personality::Mlx4] {
            let mut target = OpenTarget::soft("receive0", personality).expect("a soft NIC");
            let measured = measure(&mut target, &personality.model(), true, &mut |_| (), &|| false);
            let evidence = match measured {
                Ok(evidence) => evidence.expect("a source"),
                Err(ReportError::Verbs(error)) if error.errno() == Some(1) => {
                    return test_support::not_run("receive rates", "needs CAP_NET_RAW");
                }
                Err(error) => panic!("{personality}: {error}"),
            };
            assert_eq!(evidence.points.len(), FRAME_BYTES.len() * MASKS.len(), "{personality}");
            for point in evidence.points {
                assert!(!point.is_sender_limited, "the generator is never the limit: {point:?}");
                assert!((1..1000).contains(&point.milliseconds), "{personality}: {point:?}");
                assert!(point.sent > 0 && point.received > 0, "{personality}: {point:?}");
                assert!(point.received <= point.sent, "{personality}: {point:?}");
            }
        }
    }
}

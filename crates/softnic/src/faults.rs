//! Faults of the device, made on purpose: a work queue, a link or the whole device fails, as hardware may
//! fail at any time, so that programs can be tested with it.
//!
//! A fault is made at once ([`OwnedNic::fail_work_queue`], [`OwnedNic::set_link`],
//! [`OwnedNic::fail_device`]), or by a [`FaultPlan`] after so many received frames. The plan is carried out by the engines between two
//! passes.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::errno::{EIO, Verb};
use crate::nic::OwnedNic;
use crate::shared::NicShared;
use crate::state::{QpKind, QueueOwner, QueueState};

/// The fate of the frames that are posted to a work queue when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedFrames {
    /// Each has a completion: flushed.
    Flushed,
    /// They have no completion, as long as the queue is not in RESET.
    Kept,
}

/// The most faults of a plan.
const FAULTS_MAX: usize = 16;

/// Faults to come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan(Vec<PlannedFault>);

/// A fault of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlannedFault {
    kind: FaultKind,
    /// How many frames the ports have received before it.
    after_frames: u64,
    /// After how many further frames it is made again.
    every_frames: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    /// The first work queue that is ready.
    WorkQueue(FailedFrames),
    /// The queue pair that has sent the longest.
    SendQueue,
    /// The link of the first port goes down, for this time or for good.
    Link(Option<Duration>),
    Device(DeviceLoss),
}

/// The end of a device, as its users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceLoss {
    /// The event `IBV_EVENT_DEVICE_FATAL` comes first.
    Reported,
    /// The events end without one. Current kernels do not do this ([`OwnedNic::remove_device`]).
    Silent,
}

/// The text is no plan of faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlanError(String);

impl fmt::Display for FaultPlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no fault (hint: queue@FRAMES, stuck-queue@FRAMES, send-queue@FRAMES, link@FRAMES, device@FRAMES or removal@FRAMES; of queues also \
             queue@FRAMES/FRAMES, again after so many more; of links also link@FRAMES+MILLISECONDS, how long it is \
             down; at most {FAULTS_MAX}, with commas between them)",
            self.0
        )
    }
}

impl std::error::Error for FaultPlanError {}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    /// The faults of a text, such as `queue@1000/500,link@3000+200`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let faults = text.split(',').map(str::trim).filter(|fault| !fault.is_empty());
        let faults =
            faults.map(|fault| PlannedFault::read(fault).ok_or_else(|| FaultPlanError(fault.into())));
        let faults = faults.collect::<Result<Vec<_>, _>>()?;
        if faults.len() > FAULTS_MAX { Err(FaultPlanError(text.into())) } else { Ok(Self(faults)) }
    }
}

impl PlannedFault {
    fn read(text: &str) -> Option<Self> {
        let (kind, when) = text.split_once('@')?;
        let ((when, every), pause) = match when.split_once('+') {
            Some((when, pause)) => ((when, None), Some(pause)),
            None => (when.split_once('/').map_or((when, None), |(when, every)| (when, Some(every))), None),
        };
        let pause = pause.map(|pause| pause.parse().map(Duration::from_millis)).transpose().ok()?;
        let every_frames = every.map(str::parse::<u64>).transpose().ok()?;
        let kind = match kind {
            "queue" => FaultKind::WorkQueue(FailedFrames::Flushed),
            "stuck-queue" => FaultKind::WorkQueue(FailedFrames::Kept),
            "send-queue" => FaultKind::SendQueue,
            "link" => FaultKind::Link(pause),
            "device" => FaultKind::Device(DeviceLoss::Reported),
            "removal" => FaultKind::Device(DeviceLoss::Silent),
            _ => return None,
        };
        let is_queue = matches!(kind, FaultKind::WorkQueue(_) | FaultKind::SendQueue);
        let is_link = matches!(kind, FaultKind::Link(_));
        let fits = (every_frames.is_none() || is_queue) && (pause.is_none() || is_link);
        (fits && every_frames != Some(0)).then_some(Self {
            kind,
            after_frames: when.parse().ok()?,
            every_frames,
        })
    }
}

/// The faults of a plan that were not made yet.
#[derive(Debug)]
pub(crate) struct PendingFaults(Mutex<Pending>);

#[derive(Debug)]
struct Pending {
    faults: Vec<PlannedFault>,
    /// When the link of the first port comes up again.
    link_up: Option<Instant>,
}

impl PendingFaults {
    pub(crate) fn new(FaultPlan(faults): FaultPlan) -> Self {
        Self(Mutex::new(Pending { faults, link_up: None }))
    }

    /// Makes the faults that are due; called by an engine between two passes.
    #[cold]
    pub(crate) fn carry_out(&self, nic: &NicShared) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.link_up.is_some_and(|at| Instant::now() >= at) {
            pending.link_up = None;
            nic.set_link(1, true);
        }
        let received = nic.ports.iter().map(|port| port.counters.read().rx_frames).sum::<u64>();
        let Pending { faults, link_up } = &mut *pending;
        faults.retain_mut(|fault| {
            if received < fault.after_frames {
                return true;
            }
            let is_made = match fault.kind {
                FaultKind::WorkQueue(frames) => nic.fail_first_queue(frames),
                FaultKind::SendQueue => nic.fail_first_sender(),
                FaultKind::Link(pause) => {
                    nic.set_link(1, false);
                    *link_up = pause.map(|pause| Instant::now() + pause);
                    true
                }
                FaultKind::Device(loss) => {
                    nic.fail_device(loss);
                    true
                }
            };
            if !is_made {
                // There is no ready queue yet, or it is being recovered.
                return true;
            }
            fault.after_frames = received.saturating_add(fault.every_frames.unwrap_or(0));
            fault.every_frames.is_some()
        });
    }
}

impl NicShared {
    /// # Errors
    /// EIO once the device has failed.
    #[inline]
    pub fn check_alive(&self) -> Verb<()> {
        if self.is_lost.load(Ordering::Relaxed) { Err(EIO) } else { Ok(()) }
    }

    fn fail_first_queue(&self, frames: FailedFrames) -> bool {
        let number = self.first_ready_queue();
        number.is_some_and(|number| self.fail_work_queue(number, frames))
    }

    fn fail_first_sender(&self) -> bool {
        let mut state = self.control();
        let pair = state.senders.first().and_then(|slot| state.qps.get(*slot));
        let queue = pair.and_then(|pair| match &pair.kind {
            QpKind::Raw { queue, .. } => Some(*queue),
            QpKind::Rss { .. } => None,
        });
        queue.is_some_and(|queue| {
            state.fail_queue(queue);
            true
        })
    }

    fn first_ready_queue(&self) -> Option<u32> {
        let state = self.control_without_wakeup();
        let is_ready = |queue: &&QueueState| queue.kind == QueueOwner::WorkQueue && queue.ready;
        state.queues.iter().map(|(_, queue)| queue).find(is_ready).map(|queue| queue.number)
    }

    fn fail_work_queue(&self, number: u32, frames: FailedFrames) -> bool {
        let mut state = self.control();
        let is_it =
            |queue: &QueueState| queue.kind == QueueOwner::WorkQueue && queue.number == number && queue.ready;
        let slot = state.queues.iter().find(|(_, queue)| is_it(queue)).map(|(slot, _)| slot);
        let Some(slot) = slot else { return false };
        state.fail_queue(slot);
        if frames == FailedFrames::Kept {
            state.failed_queues.retain(|failed| *failed != slot);
        }
        true
    }

    fn set_link(&self, port: u8, is_up: bool) -> bool {
        let port = self.port(port);
        if let Some(port) = port {
            port.is_unplugged.store(!is_up, Ordering::Relaxed);
            self.wakeups.iter().for_each(parking::Wakeup::notify);
        }
        port.is_some()
    }

    fn fail_device(&self, loss: DeviceLoss) {
        if self.is_lost.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut state = self.control();
        let slots = state.queues.iter().map(|(slot, _)| slot).collect::<Vec<_>>();
        for slot in slots {
            if let Some(queue) = state.queues.get_mut(slot) {
                queue.ready = false;
            }
        }
        state.senders.clear();
        state.failed_queues.clear();
        for (slot, context) in state.contexts.iter() {
            if loss == DeviceLoss::Reported {
                state.notify(slot, ibverbs_sys::IBV_EVENT_DEVICE_FATAL, 0);
            }
            context.events.end();
        }
    }
}

impl OwnedNic {
    /// Puts a work queue that is ready into its error state, as a fault of the device does: its context gets
    /// the event `IBV_EVENT_WQ_FATAL`. `false`: there is no such queue.
    pub fn fail_work_queue(&self, number: u32, frames: FailedFrames) -> bool {
        self.nic().fail_work_queue(number, frames)
    }

    /// Takes the link of a port (from 1) down, so that it receives nothing, or brings it up again, as far as
    /// its wire is up. `false`: there is no such port.
    pub fn set_link(&self, port: u8, is_up: bool) -> bool {
        self.nic().set_link(port, is_up)
    }

    /// Lets the device fail for good, as one does that is removed or whose driver is reset: all contexts get
    /// the event `IBV_EVENT_DEVICE_FATAL` and no other one after it, no frame is received or sent, no
    /// completion comes, and all verbs fail with EIO (kernel core/uverbs_main.c,
    /// `ib_uverbs_free_hw_resources`).
    pub fn fail_device(&self) {
        self.nic().fail_device(DeviceLoss::Reported);
    }

    /// Takes the device away, as [`OwnedNic::fail_device`] does, but without an event: the events of all
    /// contexts end.
    ///
    /// This fault has no known counterpart in current kernels, which deliver `IBV_EVENT_DEVICE_FATAL` when a
    /// driver is removed, too (kernel core/uverbs_std_types_async_fd.c, `uverbs_async_event_destroy_uobj`).
    /// It stands for a library or kernel that does not report the loss.
    pub fn remove_device(&self) {
        self.nic().fail_device(DeviceLoss::Silent);
    }

    /// Makes the faults of a plan as the device receives frames. Only the first plan of a device counts.
    pub fn plan_faults(&self, plan: FaultPlan) {
        if !plan.0.is_empty() {
            let _ = self.nic().faults.set(PendingFaults::new(plan));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_and_wrong_ones_named() {
        let plan: FaultPlan = "queue@1000/500, link@30+200,device@7,stuck-queue@1,send-queue@2,removal@9"
            .parse()
            .expect("a plan");
        let fault = |kind, after_frames, every_frames| PlannedFault { kind, after_frames, every_frames };
        let pause = Some(Duration::from_millis(200));
        let expected = [
            fault(FaultKind::WorkQueue(FailedFrames::Flushed), 1000, Some(500)),
            fault(FaultKind::Link(pause), 30, None),
            fault(FaultKind::Device(DeviceLoss::Reported), 7, None),
            fault(FaultKind::WorkQueue(FailedFrames::Kept), 1, None),
            fault(FaultKind::SendQueue, 2, None),
            fault(FaultKind::Device(DeviceLoss::Silent), 9, None),
        ];
        assert_eq!(plan.0, expected);
        assert_eq!("".parse(), Ok(FaultPlan::default()));
        for wrong in
            ["queue", "queue@", "queue@1/0", "queue@1+5", "link@1/5", "device@1/2", "fire@1", "link@1+"]
        {
            let refused = wrong.parse::<FaultPlan>().expect_err(wrong);
            assert!(refused.to_string().starts_with(&format!("`{wrong}` is no fault")), "{refused}");
        }
        let many = ["queue@1"; FAULTS_MAX + 1].join(",");
        assert!(many.parse::<FaultPlan>().is_err());
    }
}

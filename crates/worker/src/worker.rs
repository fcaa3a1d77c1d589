//! A worker: the body of the polling loop ([`Worker::step`]), and the pinned thread that runs it
//! ([`Worker::spawn`]). Tests and benches call the steps one by one. A step neither waits for a lock nor
//! allocates or logs. It calls the kernel only to wake the sleeping thread of a sink; few steps read the
//! clock ([`crate::regime`]). The thread sleeps between steps that have no work ([`crate::idle`]). The owner
//! of the thread stops it and gets the worker back, so that flows can be removed before the queues they point
//! at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use parking::join_within;
use program::{Program, WorkerId};
use verbs::{Context, Domain, RegisteredFrames, WorkQueue};

use crate::assembly::{Parts, assemble, first_fill};
use crate::batch::Batch;
use crate::classifier::Classifier;
use crate::distribution::IterationRecorder;
use crate::idle::{self, Backoff, SleepLimits};
use crate::latency::{DeviceClock, LatencyMeter};
use crate::receiver::Receiver;
use crate::recovery::Recovery;
use crate::regime::{Monotonic, Regime, Stopwatch};
use crate::runtime_rules::{RuntimeRulesOfWorker, runtime_rules};
use crate::sink::{FrameBudget, Sink, Slots};
use crate::{Error, ReceiveKind, Warning, WorkerConfig, WorkerControl};

/// All that one polling thread owns.
pub struct Worker {
    config: WorkerConfig,
    control: WorkerControl,
    classifier: Classifier,
    batch: Batch,
    recorder: IterationRecorder,
    stopwatch: Stopwatch,
    /// If completions have timestamps that can be converted.
    latency: Option<LatencyMeter>,
    sinks: Slots,
    runtime: RuntimeRulesOfWorker,
    budget: Arc<FrameBudget>,
    recovery: Recovery,
    receiver: Receiver,
    domain: Domain,
}

impl Worker {
    /// Builds all that a worker owns on the device, and fills its receive queue.
    ///
    /// # Errors
    /// The part that could not be created, why, and what to do about it. Everything made before it is
    /// released.
    pub fn new(context: &Arc<Context>, config: WorkerConfig) -> Result<Self, Error> {
        let Parts { mut receiver, domain, warnings } = assemble(context, &config)?;
        let (feed, runtime) = runtime_rules();
        let control = WorkerControl::new(config.id, feed);
        warnings.into_iter().for_each(|warning| control.warn(warning));
        let batch = first_fill(&mut receiver, &control.shared().stats, config.id)?;
        let classifier = Classifier::new(receiver.path.completion_entries());
        let recorder = IterationRecorder::default();
        let mut stopwatch = Stopwatch::new(Monotonic(control.shared().clock.origin));
        if config.profile {
            stopwatch.time_sinks();
            control.shared().stats.details.is_on.store(true, Ordering::Relaxed);
        }
        let latency = if config.timestamps { latency(context, &control) } else { None };
        let budget =
            Arc::new(FrameBudget::new(u32::try_from(receiver.pool.frame_count()).unwrap_or(u32::MAX)));
        Ok(Self {
            config,
            control,
            classifier,
            batch,
            recorder,
            stopwatch,
            latency,
            sinks: Slots::default(),
            runtime,
            budget,
            recovery: Recovery::default(),
            receiver,
            domain,
        })
    }

    /// Shows every decided packet to `observer` from the next iteration on, whatever sinks its program has.
    #[must_use]
    pub fn with_observer(mut self, observer: Box<dyn Sink>) -> Self {
        self.sinks.observe(observer);
        self
    }

    /// Which worker this is.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.config.id
    }

    /// The configuration of the worker.
    #[must_use]
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// The number of frames, one less than configured where the device would double the completion queue.
    #[must_use]
    pub fn frame_count(&self) -> u64 {
        self.receiver.pool.frame_count() as u64
    }

    /// The queue for indirection tables. They must be released before the worker.
    #[must_use]
    pub fn work_queue(&self) -> Arc<WorkQueue> {
        Arc::clone(&self.receiver.work_queue)
    }

    /// How it receives, which may not be what was configured.
    #[must_use]
    pub fn receive(&self) -> ReceiveKind {
        if self.receiver.path.is_direct() { ReceiveKind::Direct } else { ReceiveKind::Verbs }
    }

    /// The domain of its queues, for further queues that only its thread uses.
    #[must_use]
    pub fn domain(&self) -> Domain {
        self.domain.clone()
    }

    /// How many of its frames its sinks may have at once.
    #[must_use]
    pub fn frame_budget(&self) -> Arc<FrameBudget> {
        Arc::clone(&self.budget)
    }

    /// The memory of its frames, for devices that send them.
    #[must_use]
    pub fn frames(&self) -> RegisteredFrames {
        self.receiver.pool.registered()
    }

    /// A handle for other threads.
    #[must_use]
    pub fn control(&self) -> WorkerControl {
        self.control.clone()
    }

    /// The programs by which packets are classified now, the one in force first.
    pub fn programs(&self) -> impl Iterator<Item = &Arc<Program>> {
        self.classifier.tables().map(|table| table.program())
    }

    /// One iteration of the loop; returns the number of completions taken.
    pub fn step(&mut self) -> usize {
        let shared = self.control.shared();
        let regimes = &shared.stats.regimes;
        self.stopwatch.begin(regimes);
        self.sinks.refresh(&shared.sinks);
        self.classifier.refresh(&shared.mailbox, &self.batch);
        let (classifier, last) = (&self.classifier, &self.batch);
        self.runtime.refresh(|| classifier.packets_of_two_programs(last));
        self.receiver.poll(&mut self.batch, &shared.stats);
        let now_ns = self.stopwatch.polled(self.batch.completions, regimes);
        self.measure_latency(now_ns);
        let stats = &self.control.shared().stats;
        let (mut now_ns, stopwatch) = (now_ns, &mut self.stopwatch);
        let mut now = || *now_ns.get_or_insert_with(|| stopwatch.now_ns());
        let is_observed = self.sinks.is_observed();
        let rules = self.runtime.table();
        let pool = &self.receiver.pool;
        self.classifier.classify(&mut self.batch, pool, is_observed, stats, &mut now, rules);
        self.stopwatch.stage(Regime::Classify);
        self.batch.sinks_worked =
            self.sinks.run(&mut self.batch, &mut self.receiver.pool, &mut self.stopwatch);
        if self.batch.completions == 0 {
            self.stopwatch.received_nothing(self.batch.sinks_worked, &self.control.shared().stats.regimes);
        }
        self.stopwatch.stage(Regime::Sink);
        self.batch.end_packets();
        let stats = &self.control.shared().stats;
        self.receiver.refill(&mut self.batch, stats);
        if stats.queue_failed() {
            self.recovery.advance(&mut self.receiver, &mut self.batch, stats);
        }
        self.record();
        self.batch.completions
    }

    /// Records how long the batch's packets have waited, if it is one to measure. `now_ns` is the time if it
    /// was read.
    #[inline]
    fn measure_latency(&mut self, now_ns: Option<u64>) {
        if let Some(latency) = &mut self.latency
            && self.batch.completions > 0
            && latency.is_due()
        {
            let shared = self.control.shared();
            latency.refresh(&shared.clock);
            let now_ns = now_ns.unwrap_or_else(|| self.stopwatch.now_ns());
            let negative = &shared.stats.negative_latencies;
            latency.record(&self.batch.timestamps, now_ns, self.recorder.latencies(), negative);
        }
    }

    /// Runs iterations until the queue is empty, or as many completions were taken as it can hold; then until
    /// sinks have given their frames back, for a limited time.
    pub(crate) fn drain(&mut self) {
        let most = self.receiver.path.completion_entries() as usize;
        let deadline = Instant::now() + DRAIN_PATIENCE;
        let mut taken = 0;
        while taken < most {
            taken += self.step();
            if self.batch.drained || Instant::now() >= deadline {
                break;
            }
        }
        self.sinks.retire();
        let deadline = Instant::now() + SENDS_PATIENCE;
        while self.sinks.holds_frames() && Instant::now() < deadline {
            self.step();
            thread::sleep(Duration::from_micros(1));
        }
    }

    /// Frees its sinks, which count what they still have in flight. To be called after the loop has ended and
    /// their hubs are dropped; may wait for sends.
    pub fn free_sinks(&mut self) {
        self.sinks.free_all(&mut self.batch.frames, &mut self.receiver.pool);
    }

    /// Sleeps until there is work, unless there is already; see [`crate::idle`]. `sleeps` is how often it has
    /// slept since there was work.
    fn sleep(&mut self, stop: &AtomicBool, sleeps: u32) {
        let shared = Arc::clone(self.control.shared());
        let wakeup = shared.wakeup.as_deref();
        let (interval, polls_drive_device) = (self.sinks.poll_interval(), self.config.polls_drive_device);
        let wishes = SleepLimits { interval, sleeps, polls_drive_device };
        let Receiver { events, path, .. } = &mut self.receiver;
        let longest = idle::prepare(events.as_mut(), path, wakeup, wishes);
        // What came before this is found now, and what comes later ends the wait.
        self.step();
        let is_behind = self.classifier.is_behind(&shared.mailbox)
            || self.sinks.is_behind(&shared.sinks)
            || self.runtime.is_behind();
        if !self.batch.worked() && !is_behind && !stop.load(Ordering::Relaxed) {
            self.recorder.publish(&shared.stats.distributions);
            idle::wait(self.receiver.events.as_mut(), wakeup, longest);
            // So that readers see the time of a worker whose iterations are rare.
            self.stopwatch.close(&shared.stats.regimes);
        }
        if let Some(wakeup) = wakeup {
            wakeup.end_sleep();
        }
    }

    fn record(&mut self) {
        let stats = &self.control.shared().stats;
        stats.poll_errors.raise(self.receiver.path.poll_errors());
        stats.iterations.add(1);
        stats.empty_iterations.add(u64::from(self.batch.completions == 0));
        let elapsed_ns = self.stopwatch.end(&stats.regimes, &stats.details);
        // Only those of iterations with packets are recorded.
        let elapsed_ns = elapsed_ns.filter(|_| self.batch.completions > 0);
        self.recorder.end(elapsed_ns, self.batch.completions, &stats.distributions);
    }

    /// Publishes what was recorded and not yet published; called after the last iteration.
    pub(crate) fn finish(&mut self) {
        let stats = &self.control.shared().stats;
        self.stopwatch.close(&stats.regimes);
        self.recorder.finish(&stats.distributions);
    }
}

/// The first relation of the clocks; a warning if there is none.
fn latency(context: &Arc<Context>, control: &WorkerControl) -> Option<LatencyMeter> {
    match DeviceClock::open(context).and_then(|mut clock| clock.read()) {
        Ok(relation) => {
            control.set_clock(relation);
            Some(LatencyMeter::default())
        }
        Err(error) => {
            control.warn(Warning::NoDeviceClock { reason: error.to_string() });
            None
        }
    }
}

/// How long a worker that ends waits for an empty queue: another thread may use it, or it cannot be polled.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);
/// How long a worker that ends waits for sends in flight.
const SENDS_PATIENCE: Duration = Duration::from_millis(500);

/// A running worker. Dropping it asks the thread to stop without waiting for it.
#[derive(Debug)]
pub struct WorkerHandle {
    control: WorkerControl,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Worker>>,
}

impl Worker {
    /// Runs the loop on a thread of its own, pinned if the configuration asks for it.
    ///
    /// # Errors
    /// The thread could not be started; the worker is released.
    pub fn spawn(self) -> Result<WorkerHandle, Error> {
        let control = self.control();
        let worker = self.id();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name(format!("worker-{}", worker.0))
            .spawn(move || self.run(&stopped))
            .map_err(|source| Error::Spawn { worker, source })?;
        Ok(WorkerHandle { control, stop, thread: Some(thread) })
    }

    fn run(mut self, stop: &AtomicBool) -> Self {
        self.control.shared().thread.begin();
        if let Some(core) = self.config().core
            && !core_affinity::set_for_current(CoreId { id: core })
        {
            self.control().warn(Warning::NotPinned { core });
        }
        let mut idle = Backoff::new(self.config.idle);
        while !stop.load(Ordering::Relaxed) {
            self.step();
            if self.batch.worked() {
                idle.reset();
            } else if let Some(sleeps) = idle.next(Instant::now).take() {
                self.sleep(stop, sleeps);
            }
        }
        self.drain();
        self.finish();
        self.control.shared().thread.end();
        self
    }
}

impl WorkerHandle {
    /// Which worker this is.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.control.id()
    }

    /// The handle for programs and counters.
    #[must_use]
    pub fn control(&self) -> WorkerControl {
        self.control.clone()
    }

    /// Whether the thread has ended, asked to or not.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks the loop to end. It first takes every completion that is waiting.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.control.wake();
    }

    /// Stops the thread and waits for it; returns the worker with its queues.
    ///
    /// # Errors
    /// The thread panicked; its queues are released.
    pub fn join(mut self) -> Result<Worker, Error> {
        self.end(|thread| Some(thread.join()))
    }

    /// Like [`WorkerHandle::join`], but waits at most until `deadline`. A thread that has not ended by then
    /// keeps running with all that it owns: its queues and frames are released when it ends, or with the
    /// process.
    ///
    /// # Errors
    /// The thread panicked, or is still running.
    pub fn join_by(mut self, deadline: Instant) -> Result<Worker, Error> {
        self.end(|thread| join_within(thread, deadline.saturating_duration_since(Instant::now())))
    }

    /// Stops the thread and returns its worker by `join`, which returns `None` for a thread that still runs.
    fn end(
        &mut self,
        join: impl FnOnce(JoinHandle<Worker>) -> Option<thread::Result<Worker>>,
    ) -> Result<Worker, Error> {
        self.stop();
        let worker = self.id();
        let message = match self.thread.take().map(join) {
            None => "already joined".to_owned(),
            Some(None) => return Err(Error::StillRunning { worker }),
            Some(Some(Ok(ended))) => return Ok(ended),
            Some(Some(Err(payload))) => panic_message(payload.as_ref()),
        };
        Err(Error::Panicked { worker, message })
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

//! A worker and its turn: the hot loop's body. Driven by its thread ([`Worker::spawn`]), or turn by
//! turn by tests and benches. Nothing in a turn waits for a lock, allocates, calls the kernel or logs; few
//! turns read the clock.

use std::sync::Arc;
use std::time::Instant;

use program::{Program, WorkerId};
use verbs::{Context, RawQueuePair, WorkQueue};

use crate::assembly::{Parts, assemble, first_fill};
use crate::batch::Batch;
use crate::classifier::Classifier;
use crate::config::Backoff;
use crate::distribution::TurnRecorder;
use crate::receiver::Receiver;
use crate::sink::{Deliveries, Sink};
use crate::{Band, Error, WorkerConfig, WorkerControl};

/// Everything that one polling thread owns.
pub struct Worker {
    config: WorkerConfig,
    control: WorkerControl,
    classifier: Classifier,
    batch: Batch,
    recorder: TurnRecorder,
    sink: Option<Box<dyn Sink>>,
    /// Released before the completion queue that it reports to.
    sender: Option<RawQueuePair>,
    receiver: Receiver,
}

impl Worker {
    /// Builds all that a worker owns on the device, and fills its receive queue.
    ///
    /// # Errors
    /// Which part could not be had, why, and what to do about it. Nothing stays behind.
    pub fn new(context: &Arc<Context>, config: WorkerConfig) -> Result<Self, Error> {
        let Parts { mut receiver, sender, warnings } = assemble(context, &config)?;
        let control = WorkerControl::new(config.id, Vec::new());
        warnings.into_iter().for_each(|warning| control.warn(warning));
        let batch = first_fill(&mut receiver, &control.shared().stats, config.id)?;
        let classifier = Classifier::new(receiver.completions.entries());
        let recorder = TurnRecorder::default();
        Ok(Self { config, control, classifier, batch, recorder, sink: None, sender, receiver })
    }

    /// Gives the decided packets to `sink` from the next turn on.
    #[must_use]
    pub fn with_sink(mut self, sink: Box<dyn Sink>) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Which worker this is.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.config.id
    }

    /// What it was built from.
    #[must_use]
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// The queue that indirection tables refer to. They are to go before the worker does.
    #[must_use]
    pub fn work_queue(&self) -> Arc<WorkQueue> {
        Arc::clone(&self.receiver.work_queue)
    }

    /// A handle for everybody else.
    #[must_use]
    pub fn control(&self) -> WorkerControl {
        self.control.clone()
    }

    /// Whether the device gave it a queue to send with.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.sender.is_some()
    }

    /// The program that packets of `band` are judged by now.
    #[must_use]
    pub fn program(&self, band: Band) -> Option<&Arc<Program>> {
        self.classifier.table(band).map(|table| table.program())
    }

    /// One turn of the loop; returns the completions it took.
    pub fn step(&mut self) -> usize {
        let begun = self.recorder.begin();
        let shared = self.control.shared();
        self.classifier.refresh(&shared.mailbox, &self.batch);
        self.receiver.poll(&mut self.batch, &shared.stats);
        self.classifier.classify(&mut self.batch, &self.receiver.pool, &shared.stats);
        self.run_sink();
        self.receiver.refill(&mut self.batch, &self.control.shared().stats);
        self.record(begun);
        self.batch.completions
    }

    /// Turns until the queue is empty, or as many completions were taken as it can hold.
    pub(crate) fn drain(&mut self) {
        let most = self.receiver.completions.entries() as usize;
        let mut taken = 0;
        while taken < most {
            taken += self.step();
            if self.batch.drained {
                return;
            }
        }
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.config.idle)
    }

    fn run_sink(&mut self) {
        if let Some(sink) = &mut self.sink
            && !self.batch.packets.is_empty()
        {
            sink.run(Deliveries { batch: &self.batch, pool: &self.receiver.pool });
        }
    }

    fn record(&mut self, begun: Option<Instant>) {
        let stats = &self.control.shared().stats;
        stats.poll_errors.raise(self.receiver.completions.poll_errors());
        stats.turns.add(1);
        stats.empty_turns.add(u64::from(self.batch.completions == 0));
        self.recorder.end(begun, self.batch.completions, &stats.distributions);
    }

    /// After the last turn: what was recorded is there to be read, whole.
    pub(crate) fn finish(&mut self) {
        self.recorder.finish(&self.control.shared().stats.distributions);
    }
}

//! A worker on its own pinned thread. The owner stops it, joins it and gets the worker back, so that
//! flows can go before the queues they point at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use program::WorkerId;

use crate::turn::Worker;
use crate::{Error, Warning, WorkerControl};

/// How long [`WorkerHandle::join_by`] rests between looks.
const JOIN_STEP: Duration = Duration::from_millis(1);

/// A running worker. Dropping it asks the thread to stop without waiting for it.
#[derive(Debug)]
pub struct WorkerHandle {
    control: WorkerControl,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Worker>>,
}

impl Worker {
    /// Runs the loop on a thread of its own, pinned where the configuration says so.
    ///
    /// # Errors
    /// The thread could not be started; the worker is released.
    pub fn spawn(self) -> Result<WorkerHandle, Error> {
        let control = self.control();
        let worker = self.id();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(format!("worker-{}", worker.0))
            .spawn(move || self.run(&stopped))
            .map_err(|source| Error::Spawn { worker, source })?;
        Ok(WorkerHandle { control, stop, thread: Some(thread) })
    }

    fn run(mut self, stop: &AtomicBool) -> Self {
        if let Some(core) = self.config().core
            && !core_affinity::set_for_current(CoreId { id: core })
        {
            self.control().warn(Warning::NotPinned { core });
        }
        let mut idle = self.backoff();
        while !stop.load(Ordering::Relaxed) {
            let completions = self.step();
            idle.after(completions);
        }
        self.drain();
        self.finish();
        self
    }
}

impl WorkerHandle {
    /// Which worker this is.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.control.id()
    }

    /// The handle for programs and books.
    #[must_use]
    pub fn control(&self) -> WorkerControl {
        self.control.clone()
    }

    /// Whether the thread has come to its end, asked for or not.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks the loop to end. It first takes every completion that is waiting.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Stops and waits; gives back the worker with its queues still alive.
    ///
    /// # Errors
    /// The thread panicked; its queues are gone with it.
    pub fn join(mut self) -> Result<Worker, Error> {
        self.stop();
        let worker = self.id();
        let thread = self.thread.take();
        thread
            .map_or_else(
                || Err("already joined".to_owned()),
                |thread| thread.join().map_err(|payload| panic_message(payload.as_ref())),
            )
            .map_err(|message| Error::Panicked { worker, message })
    }
}

impl WorkerHandle {
    /// Like [`WorkerHandle::join`], but waits at most until `deadline`. A thread that has not ended by then keeps
    /// running with all that it owns: its queues and frames are released when it ends, or with the process.
    ///
    /// # Errors
    /// The thread panicked, or is still running.
    pub fn join_by(self, deadline: Instant) -> Result<Worker, Error> {
        self.stop();
        while !self.is_finished() {
            if Instant::now() >= deadline {
                return Err(Error::StillRunning { worker: self.id() });
            }
            std::thread::sleep(JOIN_STEP);
        }
        self.join()
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

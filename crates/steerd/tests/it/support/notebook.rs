//! Workers that record their packets, for tests that follow single packets.

use std::sync::{Arc, Mutex};

use control::Device;
use program::{Outcome, WorkerId};
use worker::{Deliveries, Sink, Worker, WorkerConfig};

/// A packet that a worker received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) worker: WorkerId,
    pub(crate) tag: u32,
    pub(crate) outcome: Outcome,
    pub(crate) bytes: Vec<u8>,
}

/// A worker of the device that records in `seen`, with `frames` buffers of 16 KiB.
pub(crate) fn worker(device: &Device, id: WorkerId, frames: u32, seen: &Arc<Mutex<Vec<Seen>>>) -> Worker {
    let mut config = WorkerConfig::new(id);
    (config.frames, config.frame_bytes) = (frames, 16_384);
    config.pages = vec![hugemem::PageKind::Plain];
    let notebook = Notebook { worker: id, pages: Arc::clone(seen) };
    Worker::new(device.context(), config).expect("a worker").with_observer(Box::new(notebook))
}

struct Notebook {
    worker: WorkerId,
    pages: Arc<Mutex<Vec<Seen>>>,
}

impl Sink for Notebook {
    fn run(&mut self, deliveries: &mut Deliveries<'_>) {
        let mut pages = self.pages.lock().expect("no thread panicked");
        pages.extend(deliveries.iter().map(|delivery| Seen {
            worker: self.worker,
            tag: delivery.tag.0,
            outcome: delivery.outcome,
            bytes: delivery.bytes.to_vec(),
        }));
    }
}

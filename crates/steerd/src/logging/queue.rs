//! Log lines on their way to a thread that writes them.
//!
//! Whoever logs never waits: a line that finds the queue full is dropped and counted. Once lines are taken again the
//! log itself says how many are missing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, Sender};

/// Lines that can wait. The errors of a large policy fit, at about 100 bytes each.
const LINES_MAX: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct Queue {
    entries: Sender<Entry>,
    dropped: Arc<AtomicU64>,
}

enum Entry {
    Line(Vec<u8>),
    /// All lines before it are written when this is dropped.
    Flush {
        _done: Sender<()>,
    },
}

impl Queue {
    /// Starts the thread. `write` may take as long as it likes; what it cannot write is dropped and counted.
    pub(super) fn start(
        write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
        dropped: &Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (entries, taken) = channel::bounded(LINES_MAX);
        let counted = Arc::clone(dropped);
        std::thread::Builder::new().name("log".into()).spawn(move || write_all(&taken, write, &counted))?;
        Ok(Self { entries, dropped: Arc::clone(dropped) })
    }

    pub(super) fn push(&self, line: Vec<u8>) {
        if self.entries.try_send(Entry::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until what was pushed before is written, at most for `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let (done, written) = channel::bounded(0);
        if self.entries.send_timeout(Entry::Flush { _done: done }, patience).is_ok() {
            // It answers by going away.
            let _ = written.recv_deadline(deadline);
        }
    }
}

fn write_all(entries: &Receiver<Entry>, mut write: impl FnMut(&[u8]) -> io::Result<()>, dropped: &AtomicU64) {
    let mut reported = 0;
    for entry in entries {
        let Entry::Line(line) = entry else { continue };
        if write(&line).is_err() {
            dropped.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let missing = dropped.load(Ordering::Relaxed) - reported;
        if missing > 0 && entries.is_empty() {
            reported += missing;
            // By this thread's own queue, which is empty: in whatever form the log has.
            tracing::warn!("{missing} log lines are missing here: they were not taken in time");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn lines_come_out_in_their_order_and_a_flush_waits_for_them() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&written);
        let write = move |line: &[u8]| {
            lines.lock().expect("lines").push(line.to_vec());
            Ok(())
        };
        let queue = Queue::start(write, &Arc::default()).expect("a thread");
        (0..100u8).for_each(|line| queue.push(vec![line]));
        queue.flush(PATIENCE);
        assert!(written.lock().expect("lines").iter().map(|line| line[0]).eq(0..100));
    }

    #[test]
    fn a_writer_that_hangs_holds_up_nobody_and_what_it_does_not_take_is_counted() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let dropped = Arc::default();
        let write = move |_: &[u8]| {
            // Until the other end is gone.
            let _ = held.recv();
            Ok(())
        };
        let queue = Queue::start(write, &dropped).expect("a thread");
        // One is in the writer's hands, or waits in the queue with the others.
        (0..LINES_MAX + 11).for_each(|_| queue.push(Vec::new()));
        let missing = dropped.load(Ordering::Relaxed);
        assert!((10..=11).contains(&missing), "{missing}");
        queue.flush(Duration::from_millis(10));
        drop(release);
        queue.flush(PATIENCE);
        assert_eq!(dropped.load(Ordering::Relaxed), missing);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let dropped = Arc::default();
        let queue = Queue::start(|_| Err(io::ErrorKind::BrokenPipe.into()), &dropped).expect("a thread");
        (0..3).for_each(|_| queue.push(Vec::new()));
        queue.flush(PATIENCE);
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
    }
}

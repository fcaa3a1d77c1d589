//! Log set-up: tracing to stderr (around the live table, if there is one) or to journald.
//!
//! Called once by `daemon`, before anything else starts. Whoever logs only formats the line: a thread of its own
//! ([`queue`]) writes it, so that a reader of stderr that does not read holds up nobody.

mod filter;
mod journal;
mod queue;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::paint;
use crate::screen::Screen;
use crate::settings;
use crate::settings::{LogFormat, LogTarget};
pub(crate) use filter::check as check_filter;
use queue::Queue;

/// The started log, for those who end it or count what it lost.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    queue: Queue,
    dropped: Arc<AtomicU64>,
}

impl Log {
    /// Lines that were not written because nobody took those before them.
    pub(crate) fn dropped_lines(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines so far are written, at most for `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        self.queue.flush(patience);
    }
}

/// The filter has been checked with the settings. Without journald's socket, stderr serves.
///
/// # Errors
/// The writer's thread cannot be started, or there is a log already.
pub(crate) fn start(settings: &settings::Log, screen: &Screen) -> io::Result<Log> {
    let dropped = Arc::default();
    let filter = EnvFilter::try_new(&settings.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let journal = match settings.target {
        LogTarget::Stderr => None,
        LogTarget::Journald => Some(journal::connect()),
    };
    let (queue, layer, failed) = match journal {
        Some(Ok(socket)) => {
            let queue = Queue::start(move |line| socket.send(line).map(drop), &dropped)?;
            (queue.clone(), journal::layer(queue), None)
        }
        journal => {
            let screen = screen.clone();
            let queue = Queue::start(move |line| screen.log(line), &dropped)?;
            let lines = Lines(queue.clone());
            (queue, stderr_layer(settings.format, lines), journal.and_then(Result::err))
        }
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init().map_err(io::Error::other)?;
    if let Some(error) = failed {
        tracing::warn!("journald cannot be reached, logging to stderr instead: {error}");
    }
    Ok(Log { queue, dropped })
}

fn stderr_layer(format: LogFormat, lines: Lines) -> Box<dyn Layer<Registry> + Send + Sync> {
    // `log_internal_errors(false)`: a complaint on stderr that stderr cannot be written to would panic.
    let layer = fmt::layer().log_internal_errors(false).with_writer(lines);
    match format {
        LogFormat::Text => layer.with_target(false).with_ansi(paint::is_wanted(&io::stderr())).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_span_list(false).boxed(),
    }
}

/// Every event's text becomes one entry of the queue.
struct Lines(Queue);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter(&self.0)
    }
}

struct LineWriter<'a>(&'a Queue);

impl Write for LineWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

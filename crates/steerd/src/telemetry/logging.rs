//! The log: tracing events to stderr, around the live table if there is one, or to journald.
//!
//! Logging never blocks: an event is formatted and put into a bounded queue, and a thread writes it, so that
//! a reader of stderr that does not read delays nobody. A line that finds the queue full is dropped and
//! counted; once lines are written again, the log reports how many are missing.

use std::fmt::{Debug, Write as _};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, Sender};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::settings::{self, LogFormat, LogTarget};
use crate::terminal::output;
use crate::terminal::screen::Screen;
use crate::terminal::style;

/// The running log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    queue: Queue,
    dropped: Arc<AtomicU64>,
}

impl Log {
    /// Lines that were dropped.
    pub(crate) fn dropped_lines(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines so far are written, for at most `timeout`.
    pub(crate) fn flush(&self, timeout: Duration) {
        self.queue.flush(timeout);
    }
}

/// Starts the log. The filter has been checked with the settings. If journald cannot be reached, stderr is
/// used.
///
/// # Errors
/// The writer's thread cannot be started, or there is a log already.
pub(crate) fn start(settings: &settings::Log, screen: &Screen) -> io::Result<Log> {
    let dropped = Arc::default();
    let filter = settings.filter.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let is_for_journal = match settings.target {
        LogTarget::Journald => true,
        // Entries have priorities there, and one time. Lines of JSON have them themselves.
        LogTarget::Stderr => settings.format == LogFormat::Text && output::stderr_is_journal(),
    };
    let journal = is_for_journal.then(connect_journal);
    let (queue, layer, failed) = match journal {
        Some(Ok(socket)) => {
            let queue = Queue::start(move |line| socket.send(line).map(drop), &dropped)?;
            (queue.clone(), journal_layer(queue), None)
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
        warn_of_stderr(&error);
    }
    Ok(Log { queue, dropped })
}

/// Logs a warning if the log would go to stderr although the settings want another target.
pub(crate) fn check(settings: &settings::Log) {
    if settings.target == LogTarget::Journald
        && let Err(error) = connect_journal()
    {
        warn_of_stderr(&error);
    }
}

fn warn_of_stderr(error: &io::Error) {
    tracing::warn!("journald cannot be reached, logging to stderr instead: {error}");
}

fn stderr_layer(format: LogFormat, lines: Lines) -> Box<dyn Layer<Registry> + Send + Sync> {
    // An internal error that cannot be written to stderr would panic.
    let layer = fmt::layer().log_internal_errors(false).with_writer(lines);
    match format {
        LogFormat::Text => layer.with_target(false).with_ansi(style::is_wanted(&io::stderr())).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_span_list(false).boxed(),
    }
}

/// Puts the text of each event into the queue.
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

const SOCKET: &str = "/run/systemd/journal/socket";
/// The longest value: datagrams are limited (net.core.wmem_max, by default 208 KiB).
const VALUE_BYTES_MAX: usize = 48 << 10;

/// A socket connected to journald.
fn connect_journal() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(SOCKET)?;
    Ok(socket)
}

fn journal_layer<S: Subscriber + for<'s> LookupSpan<'s>>(queue: Queue) -> Box<dyn Layer<S> + Send + Sync> {
    Journal(queue).boxed()
}

struct Journal(Queue);

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.0.push(datagram(event));
    }
}

fn datagram(event: &Event<'_>) -> Vec<u8> {
    let metadata = event.metadata();
    let mut fields = Fields(Vec::with_capacity(256));
    // syslog(3): 3 is an error, 4 a warning, 5 notable, 6 informational, 7 for debugging.
    let priority = match *metadata.level() {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "5",
        Level::DEBUG => "6",
        Level::TRACE => "7",
    };
    fields.put("PRIORITY", priority);
    fields.put("SYSLOG_IDENTIFIER", "steerd");
    fields.put("TARGET", metadata.target());
    if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
        fields.put("CODE_FILE", file);
        fields.put("CODE_LINE", &line.to_string());
    }
    event.record(&mut fields);
    fields.0
}

struct Fields(Vec<u8>);

impl Fields {
    /// The form with a length, which takes any value: name, line feed, 64-bit little-endian length, value,
    /// line feed.
    fn put(&mut self, name: &str, value: &str) {
        let value = &value.as_bytes()[..value.len().min(VALUE_BYTES_MAX)];
        self.0.extend(name.as_bytes());
        self.0.push(b'\n');
        self.0.extend((value.len() as u64).to_le_bytes());
        self.0.extend(value);
        self.0.push(b'\n');
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.put("MESSAGE", value),
            // Journald takes capitals, digits and underscores; the letter keeps its own fields apart from
            // these.
            name => self.put(&format!("F_{}", name.to_ascii_uppercase().replace('.', "_")), value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

/// The most lines that wait. The errors of a large policy fit, at about 100 bytes each.
const LINES_MAX: usize = 4096;

#[derive(Clone, Debug)]
struct Queue {
    entries: Sender<Entry>,
    dropped: Arc<AtomicU64>,
}

enum Entry {
    Line(Vec<u8>),
    /// All lines before it have been written when this is dropped.
    Flush {
        _done: Sender<()>,
    },
}

impl Queue {
    /// Starts the thread. `write` may block; what it fails to write is dropped and counted.
    fn start(
        write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
        dropped: &Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (entries, taken) = channel::bounded(LINES_MAX);
        let counted = Arc::clone(dropped);
        std::thread::Builder::new().name("log".into()).spawn(move || write_all(&taken, write, &counted))?;
        Ok(Self { entries, dropped: Arc::clone(dropped) })
    }

    fn push(&self, line: Vec<u8>) {
        if self.entries.try_send(Entry::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all lines before are written, for at most `timeout`.
    fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let (done, written) = channel::bounded(0);
        if self.entries.send_timeout(Entry::Flush { _done: done }, timeout).is_ok() {
            // The channel closes when the thread drops the entry.
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
            // Goes through this thread's own queue, which is empty, so that the line has the log's format.
            tracing::warn!("{missing} log lines are missing here: they could not be written in time");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Reads a datagram as journald does.
    fn fields(mut datagram: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while let Some(end) = datagram.iter().position(|byte| *byte == b'\n') {
            let name = String::from_utf8(datagram[..end].to_vec()).expect("a name");
            let (length, rest) = datagram[end + 1..].split_at(8);
            let length =
                usize::try_from(u64::from_le_bytes(length.try_into().expect("8 bytes"))).expect("fits");
            fields.insert(name, String::from_utf8(rest[..length].to_vec()).expect("a value"));
            assert_eq!(rest[length], b'\n');
            datagram = &rest[length + 1..];
        }
        fields
    }

    #[test]
    fn events_keep_their_fields() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("socket");
        let journald = UnixDatagram::bind(&path).expect("bound");
        journald.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
        let socket = UnixDatagram::unbound().expect("socket");
        socket.connect(&path).expect("connected");
        let queue = Queue::start(move |line| socket.send(line).map(drop), &std::sync::Arc::default());
        let subscriber = tracing_subscriber::registry().with(journal_layer(queue.expect("a thread")));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(worker = 3, "two\nlines");
        });
        let mut buffer = [0; 4096];
        let bytes = journald.recv(&mut buffer).expect("a datagram");
        let fields = fields(&buffer[..bytes]);
        let field = |name: &str| fields.get(name).map(String::as_str);
        assert_eq!(field("MESSAGE"), Some("two\nlines"));
        assert_eq!((field("PRIORITY"), field("F_WORKER")), (Some("4"), Some("3")));
        assert_eq!(field("SYSLOG_IDENTIFIER"), Some("steerd"));
        assert!(field("CODE_FILE").is_some_and(|file| file.ends_with("logging.rs")));
    }

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn lines_keep_their_order_and_a_flush_waits_for_them() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&written);
        let write = move |line: &[u8]| {
            lines.lock().expect("lines").push(line.to_vec());
            Ok(())
        };
        let queue = Queue::start(write, &Arc::default()).expect("a thread");
        (0..100u8).for_each(|line| queue.push(vec![line]));
        queue.flush(TIMEOUT);
        assert!(written.lock().expect("lines").iter().map(|line| line[0]).eq(0..100));
    }

    #[test]
    fn a_blocked_writer_delays_nobody_and_dropped_lines_are_counted() {
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
        queue.flush(TIMEOUT);
        assert_eq!(dropped.load(Ordering::Relaxed), missing);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let dropped = Arc::default();
        let queue = Queue::start(|_| Err(io::ErrorKind::BrokenPipe.into()), &dropped).expect("a thread");
        (0..3).for_each(|_| queue.push(Vec::new()));
        queue.flush(TIMEOUT);
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
    }
}

//! Log events in journald's own format, with their fields (systemd.journal-fields(7), and "Native Journal Protocol" in
//! systemd's documentation).
//!
//! An event becomes one datagram. The queue's thread sends it, so that a journald that is stuck holds up nobody.

use std::fmt::{Debug, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::queue::Queue;

const SOCKET: &str = "/run/systemd/journal/socket";
/// What one value may have: datagrams are limited (net.core.wmem_max, by default 208 KiB).
const VALUE_BYTES_MAX: usize = 48 << 10;

/// A socket that journald listens to.
pub(super) fn connect() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(SOCKET)?;
    Ok(socket)
}

pub(super) fn layer<S: Subscriber + for<'s> LookupSpan<'s>>(queue: Queue) -> Box<dyn Layer<S> + Send + Sync> {
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
    /// The form with a length, which takes any value: name, line feed, 64-bit little-endian length, value, line feed.
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
            // Journald takes capitals, digits and underscores; the letter keeps its own fields apart from these.
            name => self.put(&format!("F_{}", name.to_ascii_uppercase().replace('.', "_")), value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;
    use tracing_subscriber::layer::SubscriberExt;

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
        let subscriber = tracing_subscriber::registry().with(layer(queue.expect("a thread")));
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
        assert!(field("CODE_FILE").is_some_and(|file| file.ends_with("journal.rs")));
    }
}

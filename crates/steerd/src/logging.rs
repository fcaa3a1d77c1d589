//! Log set-up: tracing to stderr (around the live table, if there is one) or to journald.
//!
//! Called once by `daemon`, before anything else starts. It never logs itself.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::output;
use crate::screen::Screen;
use crate::settings::{Log, LogTarget};

/// The filter has been checked with the settings. Without journald's socket, stderr serves.
pub(crate) fn start(log: &Log, screen: &Screen) {
    let filter = EnvFilter::try_new(&log.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    let journald = match log.target {
        LogTarget::Stderr => None,
        LogTarget::Journald => Some(tracing_journald::layer()),
    };
    let started = match journald {
        Some(Ok(layer)) => registry.with(layer.with_syslog_identifier("steerd".into())).try_init(),
        failed => {
            let layer = fmt::layer()
                .with_target(false)
                .with_ansi(io::stderr().is_terminal())
                // Not to complain on stderr that stderr cannot be written to: that would panic.
                .log_internal_errors(false)
                .with_writer(AroundTable(screen.clone()));
            let started = registry.with(layer).try_init();
            if let Some(Err(error)) = failed {
                tracing::warn!(%error, "journald cannot be reached: logging to stderr");
            }
            started
        }
    };
    if let Err(error) = started {
        output::complain(&format!("steerd: logging cannot be started: {error}"));
    }
}

/// Takes the live table off the terminal for the time of a line.
struct AroundTable(Screen);

impl<'a> MakeWriter<'a> for AroundTable {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter(&self.0)
    }
}

struct LineWriter<'a>(&'a Screen);

impl Write for LineWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.log(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

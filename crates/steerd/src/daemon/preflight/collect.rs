//! Warnings as texts: those that the code of a start logs, where there is no log.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Calls a function; returns what it has logged as warnings and errors, each once, in order.
pub(super) fn collected<T>(examine: impl FnOnce() -> T) -> (T, Vec<String>) {
    let warnings = Warnings::default();
    let subscriber = tracing_subscriber::registry().with(warnings.clone());
    let examined = tracing::subscriber::with_default(subscriber, examine);
    let texts = std::mem::take(&mut *warnings.0.lock().unwrap_or_else(PoisonError::into_inner));
    (examined, texts)
}

#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // More severe levels are lower.
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut text = Message::default();
        event.record(&mut text);
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !texts.contains(&text.0) {
            texts.push(text.0);
        }
    }
}

/// The text of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_errors_are_collected_once() {
        let (value, warnings) = collected(|| {
            tracing::info!("a line");
            for _ in 0..2 {
                tracing::warn!("few {}", "pages");
            }
            tracing::error!("lost");
            7
        });
        assert_eq!((value, warnings), (7, vec!["few pages".to_owned(), "lost".to_owned()]));
    }
}

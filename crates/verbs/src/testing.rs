//! What the tests of several modules share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Does not compile if the type is `Send`: then either trait applies.
macro_rules! assert_not_send {
    ($type:ty) => {
        const _: fn() = || {
            trait Ambiguous<Which> {
                fn which() {}
            }
            struct ForSend;
            impl<T: ?Sized> Ambiguous<()> for T {}
            impl<T: ?Sized + Send> Ambiguous<ForSend> for T {}
            let _ = <$type as Ambiguous<_>>::which;
        };
    };
}

pub(crate) use assert_not_send;

/// How many events `run` logs in this thread.
pub(crate) fn events_logged(run: impl FnOnce()) -> usize {
    let count = Arc::default();
    tracing::subscriber::with_default(Counting(Arc::clone(&count)), run);
    count.load(Ordering::Relaxed)
}

struct Counting(Arc<AtomicUsize>);

impl Subscriber for Counting {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

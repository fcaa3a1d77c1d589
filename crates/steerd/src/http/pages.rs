//! The pages that show the state, rendered off the request path by a thread of their own.
//!
//! A page is rendered when somebody asks for it and the last one is out of date, once for all who wait, and shared
//! as [`Bytes`]: the number of requests changes neither the work nor the memory. A page that takes long to render
//! is kept longer, so that rendering never takes more than a fifth of a core.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io};

use hyper::body::Bytes;
use tokio::sync::watch;

use crate::metrics;
use crate::output::Versioned;
use crate::state::State;

/// How long a page is served before it is rendered anew.
const LIFE: Duration = Duration::from_secs(1);
/// Or, if that is longer, so many times what it took to render it.
const LIFE_PER_WORK: u32 = 4;
/// How long a request waits for its page. Below the exchange's own timeout, so that the client gets an answer.
const PATIENCE: Duration = Duration::from_secs(8);

/// Where the state comes from.
pub(crate) trait Source: Send + Sync {
    /// May take long: a device may be asked.
    fn state(&self) -> Arc<State>;

    /// Grows when the policy in force changes: what was rendered before is then out of date.
    fn changes(&self) -> u64;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Metrics,
    State,
}

impl Page {
    const ALL: [Self; 2] = [Self::Metrics, Self::State];

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Metrics => prometheus::TEXT_FORMAT,
            Self::State => "application/json",
        }
    }

    fn render(self, state: &State) -> Result<Bytes, String> {
        match self {
            Self::Metrics => metrics::render(state).map(Bytes::from).map_err(|error| error.to_string()),
            Self::State => {
                serde_json::to_vec(&Versioned::new(state)).map(Bytes::from).map_err(|error| error.to_string())
            }
        }
    }
}

#[derive(Clone)]
struct Rendered {
    bytes: Bytes,
    until: Instant,
    /// What [`Source::changes`] gave before the state was asked for.
    changes: u64,
}

/// What requests and the renderer share about one page.
struct Slot {
    wanted: AtomicBool,
    rendered: watch::Sender<Option<Rendered>>,
}

/// The requests' side. Dropping it ends the renderer.
pub(super) struct Pages {
    slots: Arc<[Slot; Page::ALL.len()]>,
    source: Arc<dyn Source>,
    wake: SyncSender<()>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl Pages {
    pub(super) fn start(source: Arc<dyn Source>) -> io::Result<(Self, JoinHandle<()>)> {
        let slot = |_| Slot { wanted: AtomicBool::new(false), rendered: watch::Sender::new(None) };
        let slots = Arc::new(Page::ALL.map(slot));
        let (wake, woken) = mpsc::sync_channel(1);
        let renderer = {
            let (slots, source) = (Arc::clone(&slots), Arc::clone(&source));
            std::thread::Builder::new().name("pages".into()).spawn(move || {
                for () in woken {
                    for page in Page::ALL {
                        slots[page as usize].render(page, &*source);
                    }
                }
            })?
        };
        Ok((Self { slots, source, wake }, renderer))
    }

    /// The page as it is, if it is up to date, or as soon as it has been rendered.
    pub(super) async fn rendered(&self, page: Page) -> Result<Bytes, &'static str> {
        let wait = tokio::time::timeout(PATIENCE, self.up_to_date(page));
        wait.await.unwrap_or(Err("the state is not available: the device does not answer in time\n"))
    }

    async fn up_to_date(&self, page: Page) -> Result<Bytes, &'static str> {
        let slot = &self.slots[page as usize];
        let since = self.source.changes();
        let mut rendered = slot.rendered.subscribe();
        loop {
            if let Some(page) = rendered.borrow_and_update().as_ref()
                && page.changes >= since
                && Instant::now() < page.until
            {
                return Ok(page.bytes.clone());
            }
            slot.wanted.store(true, Ordering::Release);
            // Full: it has been woken, and has not looked yet.
            let _ = self.wake.try_send(());
            rendered.changed().await.map_err(|_| "the state is not available\n")?;
        }
    }
}

impl Slot {
    fn render(&self, page: Page, source: &dyn Source) {
        if !self.wanted.swap(false, Ordering::AcqRel) {
            return;
        }
        let changes = source.changes();
        // Somebody may have asked while it was rendered for the others.
        let fresh = |last: &Rendered| last.changes >= changes && Instant::now() < last.until;
        if self.rendered.borrow().as_ref().is_some_and(fresh) {
            return;
        }
        let begun = Instant::now();
        match page.render(&source.state()) {
            Ok(bytes) => {
                let until = Instant::now() + LIFE.max(LIFE_PER_WORK * begun.elapsed());
                self.rendered.send_replace(Some(Rendered { bytes, until, changes }));
            }
            Err(error) => tracing::error!("page {page:?} cannot be rendered: {error}"),
        }
    }
}

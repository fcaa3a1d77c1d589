//! The pages that show the state, rendered by a thread of their own for all servers.
//!
//! A page is rendered when a client requests it and the last one is outdated: once for all clients that wait,
//! and shared as [`Bytes`]. The number of requests changes neither work nor memory. A page that takes long to
//! render is kept longer, so that rendering never takes more than a fifth of a core. An outdated page is
//! freed: with thousands of rules it is larger than the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io};

use hyper::body::Bytes;
use serde::Serialize;
use tokio::sync::watch;

use crate::server;
use crate::state::State;
use crate::telemetry::metrics;
use crate::telemetry::top::Sampler;
use crate::terminal::output::Versioned;

/// How long a page is served before it is rendered again.
const LIFE: Duration = Duration::from_secs(1);
/// Or, if that is longer, this many times the time that rendering took.
const LIFE_PER_WORK: u32 = 4;
/// How long a request waits for its page. Less than the exchange's timeout, so that the client gets an
/// answer.
const TIMEOUT: Duration = Duration::from_secs(8);

/// The source of the state.
pub(crate) trait Source: Send + Sync {
    /// May take long, as it may query the device.
    fn state(&self) -> Arc<State>;

    /// Grows when the policy in force changes, which makes earlier pages outdated.
    fn changes(&self) -> u64;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Metrics,
    State,
    Top,
}

impl Page {
    const ALL: [Self; 3] = [Self::Metrics, Self::State, Self::Top];

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Metrics => prometheus::TEXT_FORMAT,
            Self::State | Self::Top => "application/json",
        }
    }

    fn render(self, state: &State, sampler: &mut Sampler) -> Result<Bytes, String> {
        match self {
            Self::Metrics => metrics::render(state).map(Bytes::from).map_err(|error| error.to_string()),
            Self::State => json(state),
            Self::Top => json(&sampler.top(state)),
        }
    }
}

fn json(value: &impl Serialize) -> Result<Bytes, String> {
    serde_json::to_vec(&Versioned::new(value)).map(Bytes::from).map_err(|error| error.to_string())
}

#[derive(Clone)]
struct Rendered {
    bytes: Bytes,
    until: Instant,
    /// [`Source::changes`] before the state was read.
    changes: u64,
}

/// State of one page, shared by requests and the renderer.
struct Slot {
    wanted: AtomicBool,
    rendered: watch::Sender<Option<Rendered>>,
}

/// The side of the requests.
pub(crate) struct Pages {
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
    pub(crate) fn start(source: Arc<dyn Source>) -> io::Result<(Arc<Self>, Renderer)> {
        let slot = |_| Slot { wanted: AtomicBool::new(false), rendered: watch::Sender::new(None) };
        let slots = Arc::new(Page::ALL.map(slot));
        let (wake, woken) = mpsc::sync_channel(1);
        let stopping = Arc::new(AtomicBool::new(false));
        let thread = {
            let stopping = Arc::clone(&stopping);
            let (slots, source) = (Arc::clone(&slots), Arc::clone(&source));
            let mut sampler = Sampler::default();
            std::thread::Builder::new().name("pages".into()).spawn(move || {
                loop {
                    let kept_until = slots.iter().filter_map(Slot::kept_until).min();
                    let wait = kept_until.map(|until| until.saturating_duration_since(Instant::now()));
                    match wait
                        .map_or_else(|| woken.recv().map_err(Into::into), |wait| woken.recv_timeout(wait))
                    {
                        Ok(()) if stopping.load(Ordering::Acquire) => return,
                        Ok(()) => Page::ALL
                            .into_iter()
                            .for_each(|page| slots[page as usize].render(page, &*source, &mut sampler)),
                        Err(RecvTimeoutError::Timeout) => slots.iter().for_each(Slot::drop_outdated),
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            })?
        };
        let renderer = Renderer { thread, stopping, wake: wake.clone() };
        Ok((Arc::new(Self { slots, source, wake }), renderer))
    }

    /// Returns the page once it is up to date.
    pub(crate) async fn rendered(&self, page: Page) -> Result<Bytes, &'static str> {
        let wait = tokio::time::timeout(TIMEOUT, self.up_to_date(page));
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
            // Full: the renderer has been woken and has not started yet.
            let _ = self.wake.try_send(());
            rendered.changed().await.map_err(|_| "the state is not available\n")?;
        }
    }
}

/// The thread that renders.
#[derive(Debug)]
pub(crate) struct Renderer {
    thread: JoinHandle<()>,
    stopping: Arc<AtomicBool>,
    wake: SyncSender<()>,
}

impl Renderer {
    /// Whether its thread has exited unexpectedly.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Also while threads of connections still have the [`Pages`]. `false`: it did not end within `timeout`,
    /// because it waits for the device.
    pub(crate) fn stop(self, timeout: Duration) -> bool {
        self.stopping.store(true, Ordering::Release);
        // Full: it has been woken already.
        let _ = self.wake.try_send(());
        server::joined(self.thread, timeout)
    }
}

impl Slot {
    fn kept_until(&self) -> Option<Instant> {
        self.rendered.borrow().as_ref().map(|page| page.until)
    }

    fn drop_outdated(&self) {
        if self.kept_until().is_some_and(|until| until <= Instant::now()) {
            self.rendered.send_replace(None);
        }
    }

    fn render(&self, page: Page, source: &dyn Source, sampler: &mut Sampler) {
        if !self.wanted.swap(false, Ordering::AcqRel) {
            return;
        }
        let changes = source.changes();
        // It may have been requested again while it was rendered for others.
        let fresh = |last: &Rendered| last.changes >= changes && Instant::now() < last.until;
        if self.rendered.borrow().as_ref().is_some_and(fresh) {
            return;
        }
        let begun = Instant::now();
        match page.render(&source.state(), sampler) {
            Ok(bytes) => {
                let until = Instant::now() + LIFE.max(LIFE_PER_WORK * begun.elapsed());
                self.rendered.send_replace(Some(Rendered { bytes, until, changes }));
            }
            Err(error) => tracing::error!("page {page:?} cannot be rendered: {error}"),
        }
    }
}

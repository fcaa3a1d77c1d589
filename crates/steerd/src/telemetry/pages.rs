//! The pages that show the state and the policy, rendered by a thread of their own for all servers.
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
use policy::policy::Direction;
use serde::Serialize;
use tokio::sync::watch;

use crate::server;
use crate::state::State;
use crate::telemetry::live;
use crate::telemetry::metrics;
use crate::telemetry::top::Sampler;
use crate::terminal::output::Versioned;

/// How long a state or a page is served before it is made again.
pub(crate) const LIFE: Duration = Duration::from_secs(1);
/// Or, if that is longer, this many times the time that rendering took.
const LIFE_PER_WORK: u32 = 4;
/// How long a request waits for its page. Less than the exchange's timeout, so that the client gets an
/// answer.
const TIMEOUT: Duration = Duration::from_secs(8);

/// The source of the state and of the policy.
pub(crate) trait Source: Send + Sync {
    /// May take long, as it may query the device.
    fn state(&self) -> Arc<State>;

    /// Grows when the policy in force changes, which makes earlier pages outdated.
    fn changes(&self) -> u64;

    /// The policy in force as JSON; `state`: of the daemon now.
    ///
    /// # Errors
    /// It cannot be written.
    fn policy(&self, state: &State) -> Result<Vec<u8>, String>;

    /// The policies that were in force as JSON.
    ///
    /// # Errors
    /// They cannot be written.
    fn history(&self) -> Result<Vec<u8>, String>;

    /// The explanation, as JSON, of a packet that is given by its fields or as a frame in hexadecimal. Does
    /// not query the device.
    ///
    /// # Errors
    /// The text is no packet.
    fn explain(&self, packet: &str, direction: Direction) -> Result<Vec<u8>, String>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Metrics,
    State,
    Top,
    /// The state as an event of a stream.
    Live,
    Policy,
    History,
}

impl Page {
    const ALL: [Self; 6] = [Self::Metrics, Self::State, Self::Top, Self::Live, Self::Policy, Self::History];

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Metrics => prometheus::TEXT_FORMAT,
            Self::State | Self::Top | Self::Policy | Self::History => "application/json",
            Self::Live => "text/event-stream",
        }
    }

    fn render(self, source: &dyn Source, state: &State, sampler: &mut Sampler) -> Result<Bytes, String> {
        match self {
            Self::Metrics => metrics::render(state).map(Bytes::from).map_err(|error| error.to_string()),
            Self::State => json(state),
            Self::Top => json(&sampler.top(state)),
            Self::Live => live::event(state).map(Bytes::from).map_err(|error| error.to_string()),
            Self::Policy => source.policy(state).map(Bytes::from),
            Self::History => source.history().map(Bytes::from),
        }
    }
}

fn json(value: &impl Serialize) -> Result<Bytes, String> {
    serde_json::to_vec(&Versioned::new(value)).map(Bytes::from).map_err(|error| error.to_string())
}

/// A state, or a page of one.
#[derive(Clone)]
struct Made<T> {
    content: T,
    until: Instant,
    /// [`Source::changes`] before the state was read.
    changes: u64,
}

impl<T> Made<T> {
    fn is_fresh(&self, changes: u64) -> bool {
        self.changes >= changes && Instant::now() < self.until
    }
}

/// One thing that requests ask for and the renderer makes.
struct Slot<T> {
    wanted: AtomicBool,
    made: watch::Sender<Option<Made<T>>>,
}

struct Slots {
    /// All pages of about the same time are made of one state.
    state: Slot<Arc<State>>,
    pages: [Slot<Bytes>; Page::ALL.len()],
}

/// The side of the requests.
pub(crate) struct Pages {
    slots: Arc<Slots>,
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
        let slots = Arc::new(Slots { state: Slot::new(), pages: Page::ALL.map(|_| Slot::new()) });
        let (wake, woken) = mpsc::sync_channel(1);
        let stopping = Arc::new(AtomicBool::new(false));
        let thread = {
            let stopping = Arc::clone(&stopping);
            let (slots, source) = (Arc::clone(&slots), Arc::clone(&source));
            let mut sampler = Sampler::default();
            std::thread::Builder::new().name("pages".into()).spawn(move || {
                loop {
                    let wait =
                        slots.kept_until().map(|until| until.saturating_duration_since(Instant::now()));
                    match wait
                        .map_or_else(|| woken.recv().map_err(Into::into), |wait| woken.recv_timeout(wait))
                    {
                        Ok(()) if stopping.load(Ordering::Acquire) => return,
                        Ok(()) => slots.make(&*source, &mut sampler),
                        Err(RecvTimeoutError::Timeout) => slots.drop_outdated(),
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
        self.up_to_date(&self.slots.pages[page as usize]).await
    }

    /// Returns the state once it is up to date.
    pub(crate) async fn state(&self) -> Result<Arc<State>, &'static str> {
        self.up_to_date(&self.slots.state).await
    }

    /// The explanation of a packet: see [`Source::explain`].
    pub(crate) fn explain(&self, packet: &str, direction: Direction) -> Result<Vec<u8>, String> {
        self.source.explain(packet, direction)
    }

    async fn up_to_date<T: Clone>(&self, slot: &Slot<T>) -> Result<T, &'static str> {
        let made = async {
            let since = self.source.changes();
            let mut made = slot.made.subscribe();
            loop {
                if let Some(made) = made.borrow_and_update().as_ref().filter(|made| made.is_fresh(since)) {
                    return Ok(made.content.clone());
                }
                slot.wanted.store(true, Ordering::Release);
                // Full: the renderer has been woken and has not started yet.
                let _ = self.wake.try_send(());
                made.changed().await.map_err(|_| "the state is not available\n")?;
            }
        };
        let made = tokio::time::timeout(TIMEOUT, made).await;
        made.unwrap_or(Err("the state is not available: the device does not answer in time\n"))
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

impl Slots {
    fn kept_until(&self) -> Option<Instant> {
        let pages = self.pages.iter().filter_map(Slot::kept_until);
        pages.chain(self.state.kept_until()).min()
    }

    fn drop_outdated(&self) {
        self.state.drop_outdated();
        self.pages.iter().for_each(Slot::drop_outdated);
    }

    fn make(&self, source: &dyn Source, sampler: &mut Sampler) {
        // Pages that were asked for again while they were made for others are not made again.
        if self.state.takes_request(source) {
            self.fresh_state(source);
        }
        for page in Page::ALL {
            let slot = &self.pages[page as usize];
            if !slot.takes_request(source) {
                continue;
            }
            let begun = Instant::now();
            let Made { content: state, changes, .. } = self.fresh_state(source);
            match page.render(source, &state, sampler) {
                Ok(content) => {
                    let until = Instant::now() + LIFE.max(LIFE_PER_WORK * begun.elapsed());
                    slot.made.send_replace(Some(Made { content, until, changes }));
                }
                Err(error) => tracing::error!("page {page:?} cannot be rendered: {error}"),
            }
        }
    }

    /// The last state, or one that is made now.
    fn fresh_state(&self, source: &dyn Source) -> Made<Arc<State>> {
        let changes = source.changes();
        let last = self.state.made.borrow().clone();
        last.filter(|last| last.is_fresh(changes)).unwrap_or_else(|| {
            let content = source.state();
            let made = Made { content, until: Instant::now() + LIFE, changes };
            self.state.made.send_replace(Some(made.clone()));
            made
        })
    }
}

impl<T> Slot<T> {
    fn new() -> Self {
        Self { wanted: AtomicBool::new(false), made: watch::Sender::new(None) }
    }

    /// Whether it was asked for and what there is is outdated.
    fn takes_request(&self, source: &dyn Source) -> bool {
        let changes = source.changes();
        self.wanted.swap(false, Ordering::AcqRel)
            && !self.made.borrow().as_ref().is_some_and(|made| made.is_fresh(changes))
    }

    fn kept_until(&self) -> Option<Instant> {
        self.made.borrow().as_ref().map(|made| made.until)
    }

    fn drop_outdated(&self) {
        if self.kept_until().is_some_and(|until| until <= Instant::now()) {
            self.made.send_replace(None);
        }
    }
}

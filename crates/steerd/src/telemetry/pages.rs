//! The pages that show the state and the policy, rendered by threads of their own for all servers: one for
//! the state, and one for the policy, whose texts may be long, so that they delay no scrape.
//!
//! A page is rendered when a client requests it and the last one is outdated: once for all clients that wait,
//! and shared as [`Bytes`]. The number of requests changes neither work nor memory. A page that takes long to
//! render is kept longer, so that a thread never takes more than a fifth of a core. An outdated page is
//! freed: with thousands of rules it is larger than the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io};

use hyper::body::Bytes;
use policy::policy::Direction;
use serde::Serialize;
use tokio::sync::watch;

use crate::rates::Rates;
use crate::server;
use crate::state::State;
use crate::telemetry::live;
use crate::telemetry::metrics::{self, open_metrics};
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

    /// The rules of the policy in force as JSON. Does not query the device.
    ///
    /// # Errors
    /// They cannot be written.
    fn policy(&self) -> Result<Vec<u8>, String>;

    /// The texts of the policy in force as JSON.
    ///
    /// # Errors
    /// They cannot be written.
    fn policy_texts(&self) -> Result<Vec<u8>, String>;

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
    /// The metrics in Prometheus' text format.
    Metrics,
    /// The metrics in the text format of OpenMetrics.
    OpenMetrics,
    State,
    Top,
    /// The state as an event of a stream.
    Live,
    Policy,
    PolicyTexts,
    History,
}

/// The thread that renders a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    State,
    Policy,
}

impl Part {
    const ALL: [Self; 2] = [Self::State, Self::Policy];

    const fn thread_name(self) -> &'static str {
        match self {
            Self::State => "pages",
            Self::Policy => "policy pages",
        }
    }

    const fn timed_out(self) -> &'static str {
        match self {
            Self::State => "the state is not available: the device does not answer in time\n",
            Self::Policy => "the policy is not available: its pages are not rendered in time\n",
        }
    }

    fn pages(self) -> impl Iterator<Item = Page> {
        Page::ALL.into_iter().filter(move |page| page.part() == self)
    }
}

impl Page {
    const ALL: [Self; 8] = [
        Self::Metrics,
        Self::OpenMetrics,
        Self::State,
        Self::Top,
        Self::Live,
        Self::Policy,
        Self::PolicyTexts,
        Self::History,
    ];

    const fn part(self) -> Part {
        match self {
            Self::Metrics | Self::OpenMetrics | Self::State | Self::Top | Self::Live => Part::State,
            Self::Policy | Self::PolicyTexts | Self::History => Part::Policy,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Metrics => prometheus::TEXT_FORMAT,
            Self::OpenMetrics => open_metrics::CONTENT_TYPE,
            Self::State | Self::Top | Self::Policy | Self::PolicyTexts | Self::History => "application/json",
            Self::Live => "text/event-stream",
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
    /// [`Source::changes`] before it was made.
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
    wakes: Wakes,
}

/// The channels that wake the thread of each part.
type Wakes = [SyncSender<()>; Part::ALL.len()];

/// Wakes the thread of a part.
fn wake(wakes: &Wakes, part: Part) {
    // Full: it has been woken and has not started yet.
    let _ = wakes[part as usize].try_send(());
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl Pages {
    pub(crate) fn start(source: Arc<dyn Source>) -> io::Result<(Arc<Self>, Renderer)> {
        let slots = Arc::new(Slots { state: Slot::new(), pages: Page::ALL.map(|_| Slot::new()) });
        let stopping = Arc::new(AtomicBool::new(false));
        let start = |part: Part| {
            let (wake, woken) = mpsc::sync_channel(1);
            let stopping = Arc::clone(&stopping);
            let (slots, source) = (Arc::clone(&slots), Arc::clone(&source));
            let thread = std::thread::Builder::new().name(part.thread_name().into());
            let thread = thread.spawn(move || slots.serve(part, &*source, &woken, &stopping))?;
            Ok::<_, io::Error>((thread, wake))
        };
        let [(of_state, wake_state), (of_policy, wake_policy)] = [start(Part::State)?, start(Part::Policy)?];
        let wakes = [wake_state, wake_policy];
        let renderer = Renderer { threads: [of_state, of_policy], stopping, wakes: wakes.clone() };
        Ok((Arc::new(Self { slots, source, wakes }), renderer))
    }

    /// Returns the page once it is up to date.
    pub(crate) async fn rendered(&self, page: Page) -> Result<Bytes, &'static str> {
        self.up_to_date(&self.slots.pages[page as usize], page.part()).await
    }

    /// Returns the state once it is up to date.
    pub(crate) async fn state(&self) -> Result<Arc<State>, &'static str> {
        self.up_to_date(&self.slots.state, Part::State).await
    }

    /// The explanation of a packet: see [`Source::explain`].
    pub(crate) fn explain(&self, packet: &str, direction: Direction) -> Result<Vec<u8>, String> {
        self.source.explain(packet, direction)
    }

    async fn up_to_date<T: Clone>(&self, slot: &Slot<T>, part: Part) -> Result<T, &'static str> {
        let made = async {
            let since = self.source.changes();
            let mut made = slot.made.subscribe();
            loop {
                if let Some(made) = made.borrow_and_update().as_ref().filter(|made| made.is_fresh(since)) {
                    return Ok(made.content.clone());
                }
                slot.wanted.store(true, Ordering::Release);
                wake(&self.wakes, part);
                made.changed().await.map_err(|_| "the state is not available\n")?;
            }
        };
        let made = tokio::time::timeout(TIMEOUT, made).await;
        made.unwrap_or(Err(part.timed_out()))
    }
}

/// The counts of the last pages that show rates.
#[derive(Default)]
struct LastCounts {
    top: Sampler,
    live: Rates,
}

/// The threads that render.
#[derive(Debug)]
pub(crate) struct Renderer {
    threads: [JoinHandle<()>; Part::ALL.len()],
    stopping: Arc<AtomicBool>,
    wakes: Wakes,
}

impl Renderer {
    /// Whether one of its threads has exited unexpectedly.
    pub(crate) fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends the threads, even while connections still have the [`Pages`]. `false`: a thread did not end
    /// within `timeout`, because it waits for the device.
    pub(crate) fn stop(self, timeout: Duration) -> bool {
        self.stopping.store(true, Ordering::Release);
        Part::ALL.into_iter().for_each(|part| wake(&self.wakes, part));
        let end = Instant::now() + timeout;
        let left = || end.saturating_duration_since(Instant::now());
        let mut all = true;
        for thread in self.threads {
            all &= server::joined(thread, left());
        }
        all
    }
}

impl Slots {
    /// Makes the pages of a part when they are wanted, until the end.
    fn serve(&self, part: Part, source: &dyn Source, woken: &Receiver<()>, stopping: &AtomicBool) {
        let mut last = LastCounts::default();
        loop {
            let wait = self.kept_until(part).map(|until| until.saturating_duration_since(Instant::now()));
            match wait.map_or_else(|| woken.recv().map_err(Into::into), |wait| woken.recv_timeout(wait)) {
                Ok(()) if stopping.load(Ordering::Acquire) => return,
                Ok(()) => self.make(part, source, &mut last),
                Err(RecvTimeoutError::Timeout) => self.drop_outdated(part),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// The state, for the part that it belongs to.
    fn state_of(&self, part: Part) -> Option<&Slot<Arc<State>>> {
        (part == Part::State).then_some(&self.state)
    }

    fn kept_until(&self, part: Part) -> Option<Instant> {
        let pages = part.pages().filter_map(|page| self.pages[page as usize].kept_until());
        pages.chain(self.state_of(part).and_then(Slot::kept_until)).min()
    }

    fn drop_outdated(&self, part: Part) {
        self.state_of(part).into_iter().for_each(Slot::drop_outdated);
        part.pages().for_each(|page| self.pages[page as usize].drop_outdated());
    }

    fn make(&self, part: Part, source: &dyn Source, last: &mut LastCounts) {
        // Pages that were asked for again while they were made for others are not made again.
        if self.state_of(part).is_some_and(|state| state.takes_request(source)) {
            self.fresh_state(source);
        }
        for page in part.pages() {
            let slot = &self.pages[page as usize];
            if !slot.takes_request(source) {
                continue;
            }
            let (begun, changes) = (Instant::now(), source.changes());
            match self.render(page, source, last) {
                Ok(content) => {
                    let until = Instant::now() + LIFE.max(LIFE_PER_WORK * begun.elapsed());
                    slot.made.send_replace(Some(Made { content, until, changes }));
                }
                Err(error) => tracing::error!("page {page:?} cannot be rendered: {error}"),
            }
        }
    }

    fn render(&self, page: Page, source: &dyn Source, last: &mut LastCounts) -> Result<Bytes, String> {
        let state = || self.fresh_state(source);
        match page {
            Page::Metrics => metrics::render(&state()).map(Bytes::from).map_err(|error| error.to_string()),
            Page::OpenMetrics => Ok(metrics::render_open(&state()).into()),
            Page::State => json(&state()),
            Page::Top => json(&last.top.top(&state())),
            Page::Live => {
                let state = state();
                let event = live::event(&state, &last.live.update_workers(&state));
                event.map(Bytes::from).map_err(|error| error.to_string())
            }
            Page::Policy => source.policy().map(Bytes::from),
            Page::PolicyTexts => source.policy_texts().map(Bytes::from),
            Page::History => source.history().map(Bytes::from),
        }
    }

    /// The last state, or one that is made now.
    fn fresh_state(&self, source: &dyn Source) -> Arc<State> {
        let changes = source.changes();
        let last = self.state.made.borrow().clone();
        let last = last.filter(|last| last.is_fresh(changes)).map(|last| last.content);
        last.unwrap_or_else(|| {
            let content = source.state();
            let made = Made { content: Arc::clone(&content), until: Instant::now() + LIFE, changes };
            self.state.made.send_replace(Some(made));
            content
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

//! `steerd run`: start-up in order, the run loop, shutdown in reverse.
//!
//! Nothing is put on a device before everything that can be refused beforehand has been tried: the
//! settings, signals, the HTTP address, the device and its ports, the workers, the policy. Whatever
//! fails, `Drop` takes back what was made. Packets never pass through here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use control::EventKind;
use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};

use crate::books::Books;
use crate::bounded::within;
use crate::cli::{Format, RunArgs};
use crate::error::{Error, chain};
use crate::health::{Change, Monitor};
use crate::http::{self, Bound, Server};
use crate::logging::Log;
use crate::plant::{Builder, Ended, Plant, Threads};
use crate::reload::Reloader;
use crate::screen::Screen;
use crate::settings::{self, Listen, Loaded, Request};
use crate::signals::{self, Event, Signals};
use crate::table::{self, Rates};
use crate::{logging, notify, output, policy_file, summary, target};

/// How often the table is drawn, and the workers looked after.
const TICK: Duration = Duration::from_secs(1);
/// How often a line is logged where there is no table.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// How long the end waits for a page that is being rendered, for the table and for the log: see also `plant`.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);
const VIEW_PATIENCE: Duration = Duration::from_secs(1);
const LOG_PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &RunArgs) -> Result<(), Error> {
    // Before there is another thread. Packets are not allocated, and little else is while they flow.
    hugemem::use_one_heap();
    let signals = signals::listen().map_err(Error::Signals)?;
    let loaded = settings::load(&Request::from(args)).map_err(Error::Settings)?;
    let screen = Screen::new(args.format == Format::Text);
    let log = logging::start(&loaded.settings.log, &screen).map_err(Error::Log)?;
    let result = steer(args, &loaded, &signals, &screen, &log);
    log.flush(LOG_PATIENCE);
    result
}

fn steer(
    args: &RunArgs,
    loaded: &Loaded,
    signals: &Signals,
    screen: &Screen,
    log: &Log,
) -> Result<(), Error> {
    let bound = bind(loaded)?;
    let Some((plant, threads)) = start(loaded, signals, log)? else { return Ok(()) };
    // Of the memory that it took to compile the policy.
    hugemem::release_free_heap();
    let server = serve(bound, &plant)?;
    let status = format!("steering on {} with {}", plant.opened().device.name(), plant.policy_source());
    tracing::info!("{status}");
    notify::ready(&status);

    let view = View::start(&plant, screen)?;
    let stall = Duration::from_millis(loaded.settings.health.stall_ms);
    let ended = Daemon {
        plant: Arc::clone(&plant),
        threads: &threads,
        server: server.as_ref(),
        view: &view,
        signals,
        stall,
    }
    .run(args);
    let shown = Shown { server, view, screen, log, signals };
    stop(args.format, &plant, threads, shown, ended)
}

fn bind(loaded: &Loaded) -> Result<Option<Bound>, Error> {
    let Listen::On(address) = loaded.settings.http.listen else { return Ok(None) };
    let bound = http::bind(address, &loaded.settings.http)?;
    tracing::info!("http://{}/metrics", bound.address);
    Ok(Some(bound))
}

/// Everything that packets need, from the device to the flows; `None` if it was told to end meanwhile,
/// which is looked for between the stages, as each may take long.
fn start(loaded: &Loaded, signals: &Signals, log: &Log) -> Result<Option<(Arc<Plant>, Threads)>, Error> {
    let builder = Builder::new(&loaded.settings, log, &|| signals.stop().is_some());
    if stopped(signals) {
        return Ok(None);
    }
    let builder = builder?;
    let (device, workers) = (&builder.opened().device, builder.worker_count());
    let compiled = policy_file::compile(&loaded.policy, &device.profile(workers), Some(workers), None)
        .and_then(policy_file::Compiled::into_installable)
        .map_err(|diagnostics| {
            output::print_diagnostics(&diagnostics);
            target::policy_error(&loaded.policy, &diagnostics)
        })?;
    if stopped(signals) {
        return Ok(None);
    }
    policy_file::log(&compiled.warnings, 0);
    let about_device = builder.opened().warnings(&compiled.program);
    about_device.iter().for_each(|warning| tracing::warn!("{warning}"));
    tracing::info!(
        "{}: {}, {}, {}",
        device.name(),
        table::counted(compiled.program.flows.len() as u64, "flow", "flows"),
        table::counted(compiled.program.queues.len() as u64, "queue pair", "queue pairs"),
        table::counted(workers as u64, "worker", "workers"),
    );
    for (index, wire) in builder.opened().wires().iter().enumerate() {
        tracing::info!("port {}: {wire}", index + 1);
    }
    builder.start(loaded.policy.clone(), compiled).map(Some)
}

fn stopped(signals: &Signals) -> bool {
    let asked = signals.stop();
    if let Some(why) = asked {
        tracing::info!("{why}: ending before anything was steered");
    }
    asked.is_some()
}

fn serve(bound: Option<Bound>, plant: &Arc<Plant>) -> Result<Option<Server>, Error> {
    let Some(bound) = bound else { return Ok(None) };
    let source = Arc::clone(plant) as Arc<dyn http::Source>;
    Ok(Some(bound.serve(source, Arc::clone(&plant.health))?))
}

/// What the run loop looks after.
struct Daemon<'d> {
    plant: Arc<Plant>,
    threads: &'d Threads,
    server: Option<&'d Server>,
    view: &'d View,
    signals: &'d Signals,
    /// A part that makes no progress for so long is stalled.
    stall: Duration,
}

impl Daemon<'_> {
    /// Until a signal, the end of the given time, the last frame of wires that end, or the death of a worker or of
    /// the HTTP server.
    fn run(&self, args: &RunArgs) -> Result<(), Error> {
        let mut watchdog = notify::Watchdog::new();
        let tick = watchdog.interval().map_or(TICK, |interval| TICK.min(interval / 2));
        let ticks = channel::tick(tick);
        let deadline = args.run_for.map_or_else(channel::never, channel::after);
        let mut reloader = Reloader::new(Arc::clone(&self.plant));
        let mut polls = Polls::default();
        let mut monitor = Monitor::new(self.stall);
        loop {
            // Before the wait: a signal may have come, and its wake-up gone, before this began.
            match self.signals.take() {
                Some(Event::Reload) => reloader.begin(),
                Some(Event::Stop { why }) => {
                    tracing::info!("{why}: draining (a second Ctrl-C ends at once)");
                    return Ok(());
                }
                None => {}
            }
            channel::select! {
                recv(self.signals.wake()) -> _ => {}
                recv(reloader.over()) -> done => reloader.ended(done.is_ok()),
                recv(deadline) -> _ => return Ok(()),
                recv(ticks) -> _ => {
                    if let Some(worker) = self.threads.dead() {
                        return Err(Error::WorkerDied(worker));
                    }
                    if self.plant.engine_died() {
                        return Err(Error::EngineDied);
                    }
                    if self.server.is_some_and(Server::has_ended) {
                        return Err(Error::HttpEnded);
                    }
                    if let Some(worker) = polls.failing(self.plant.poll_errors()) {
                        return Err(Error::PollFails(worker));
                    }
                    self.look_at_device_events()?;
                    self.look_at_progress(&mut monitor);
                    watchdog.feed(self.plant.progress());
                    self.view.show();
                    if !args.keep_running && self.plant.wires_finished() {
                        tracing::info!("no port can receive anything more: ending (--keep-running goes on)");
                        return Ok(());
                    }
                }
            }
        }
    }

    fn look_at_progress(&self, monitor: &mut Monitor) {
        let plant = &self.plant;
        let changes = monitor.look(Instant::now(), &plant.progress(), plant.ports_down(), &plant.health);
        changes.iter().for_each(Change::log);
    }

    /// A port that loses its link is worth a line; steering goes on when the link is back. What does not
    /// come back is the end: systemd starts anew.
    fn look_at_device_events(&self) -> Result<(), Error> {
        let context = self.plant.opened().device.context();
        loop {
            match context.async_event() {
                Ok(Some(event)) if is_fatal(event.kind) => {
                    return Err(Error::DeviceFailed(event.to_string()));
                }
                Ok(Some(event)) => tracing::warn!("the device reports: {event}"),
                Ok(None) => return Ok(()),
                Err(error) => {
                    tracing::debug!("no device events: {}", chain(&error));
                    return Ok(());
                }
            }
        }
    }
}

/// Whether a queue or the whole device is beyond repair (ibv_get_async_event(3)).
fn is_fatal(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::DeviceFatal
            | EventKind::WorkQueueFatal
            | EventKind::CompletionQueueError
            | EventKind::QueuePairFatal
    )
}

/// Polls that the device refuses: one may be a slip, those that go on are a broken completion queue, and
/// a worker that turns without ever receiving looks well.
#[derive(Debug, Default)]
struct Polls {
    errors: Vec<u64>,
    grown: Vec<bool>,
}

impl Polls {
    /// The first worker whose errors have grown since the last look, and had before it.
    fn failing(&mut self, errors: Vec<u64>) -> Option<u32> {
        let before = |worker: usize| self.errors.get(worker).copied().unwrap_or(0);
        let grown: Vec<bool> = errors.iter().enumerate().map(|(worker, now)| *now > before(worker)).collect();
        let failing = grown.iter().zip(&self.grown).position(|(now, before)| *now && *before);
        (self.errors, self.grown) = (errors, grown);
        failing.and_then(|worker| u32::try_from(worker).ok())
    }
}

/// The live table, or a line in the log now and then, by a thread of its own: the state may be long in coming, and
/// the terminal may not take what is drawn. The run loop waits for neither.
struct View {
    look: Sender<()>,
    /// Disconnected once the thread has ended.
    over: Receiver<()>,
}

impl View {
    fn start(plant: &Arc<Plant>, screen: &Screen) -> Result<Self, Error> {
        let (look, looks) = channel::bounded(1);
        let (ended, over) = channel::bounded(0);
        let (plant, screen) = (Arc::clone(plant), screen.clone());
        let draw = move || {
            let _ended: Sender<()> = ended;
            let (mut rates, mut logged) = (Rates::default(), Instant::now());
            for () in looks {
                if screen.is_terminal() {
                    let state = plant.state();
                    let rates = rates.update(&state);
                    screen.draw(|rows| table::live(&state, &rates, rows));
                } else if logged.elapsed() >= LINE_INTERVAL {
                    logged = Instant::now();
                    let state = plant.state();
                    let line = table::line(&state, &rates.update(&state));
                    tracing::info!("{line}");
                    notify::status(&line);
                }
            }
        };
        std::thread::Builder::new().name("view".into()).spawn(draw).map_err(Error::Thread)?;
        Ok(Self { look, over })
    }

    /// Asks for a new picture; does nothing while the last one is still being drawn.
    fn show(&self) {
        let _ = self.look.try_send(());
    }

    /// Returns `false` if the thread did not end within `patience`.
    fn stop(self, patience: Duration) -> bool {
        drop(self.look);
        self.over.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }
}

/// What reports on the running daemon.
struct Shown<'d> {
    server: Option<Server>,
    view: View,
    screen: &'d Screen,
    log: &'d Log,
    signals: &'d Signals,
}

fn stop(
    format: Format,
    plant: &Arc<Plant>,
    threads: Threads,
    shown: Shown<'_>,
    ended: Result<(), Error>,
) -> Result<(), Error> {
    let Shown { server, view, screen, log, signals } = shown;
    notify::stopping();
    let Ended { state, ran_for, errors, mut hung } = threads.stop(plant);
    if server.is_some_and(|server| !server.stop(SERVER_PATIENCE)) {
        hung.push("the HTTP server".into());
    }
    if !view.stop(VIEW_PATIENCE) {
        hung.push("the view".into());
    }
    if !hung.is_empty() {
        // What still runs uses what the plant owns: that is left to the end of the process.
        std::mem::forget(Arc::clone(plant));
    }
    log.flush(LOG_PATIENCE);
    let drawn = screen.clone();
    let _ = within("clear screen", VIEW_PATIENCE, move || drawn.clear());
    // Nobody reads what is printed on a terminal that has hung up, and to write there is an error.
    let printed = match &state {
        Some(state) if !signals.terminal_is_gone() => summary::print(format, state, ran_for),
        _ => Ok(()),
    };
    let unbalanced = state.as_ref().filter(|_| hung.is_empty()).and_then(|state| unbalanced(&state.books));
    let hung = (!hung.is_empty()).then(|| Error::StillRunning(hung.join(", ")));
    first_of(ended.err().into_iter().chain(hung).chain(errors).chain(unbalanced).chain(printed.err()))
}

/// Packets that nobody can account for are a failure of steerd's, whatever else went well.
fn unbalanced(books: &Books) -> Option<Error> {
    (!books.balanced).then(|| Error::Unbalanced(books.verdict()))
}

/// What the process ends with; the others are only logged.
fn first_of(mut failures: impl Iterator<Item = Error>) -> Result<(), Error> {
    let first = failures.next();
    failures.for_each(|error| tracing::error!("{error}"));
    first.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_back_is_the_end() {
        for kind in [EventKind::DeviceFatal, EventKind::WorkQueueFatal, EventKind::CompletionQueueError] {
            assert!(is_fatal(kind), "{kind:?}");
        }
        assert!(!is_fatal(EventKind::PortError), "a link comes back");
        assert_eq!(Error::DeviceFailed(String::new()).exit_code(), 7);
        assert_eq!(Error::EngineDied.exit_code(), 7);
        assert_eq!(Error::HttpEnded.exit_code(), 7);
    }

    #[test]
    fn polls_that_go_on_failing_are_a_broken_queue() {
        let mut polls = Polls::default();
        assert_eq!(polls.failing(vec![0, 0]), None);
        assert_eq!(polls.failing(vec![0, 1]), None, "once");
        assert_eq!(polls.failing(vec![0, 1]), None, "and no more");
        assert_eq!(polls.failing(vec![0, 2]), None);
        assert_eq!(polls.failing(vec![0, 9]), Some(1));
        assert_eq!(Error::PollFails(1).exit_code(), 7);
    }

    #[test]
    fn packets_without_an_account_are_a_failure() {
        let books = Books { balanced: false, ..Books::default() };
        let error = first_of(unbalanced(&books).into_iter()).expect_err("a failure");
        assert_eq!(error.exit_code(), 7);
        assert!(error.to_string().starts_with("books: NOT balanced"), "{error}");
        let earlier = [Error::WorkerDied(1)].into_iter().chain(unbalanced(&books));
        assert!(matches!(first_of(earlier), Err(Error::WorkerDied(1))), "the first is the cause");
        let books = Books { balanced: true, ..Books::default() };
        assert!(first_of(unbalanced(&books).into_iter()).is_ok());
    }
}

//! `steerd top`: rules, workers, sinks, ports, flows and drops of the running daemon with their rates, once a
//! second.
//!
//! On a terminal a screen that scrolls, sorts and filters; elsewhere one table of each kind. One thread asks
//! the daemon, so that keys are answered while it does not; another owns the screen, so that the command ends
//! while the terminal does not answer.

mod history;
mod layout;
mod print;
mod screen;
mod tables;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam::channel::{self, Receiver, RecvTimeoutError};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use steerd_client::api::{ApiClient, ApiError};

use crate::cli::TopArgs;
use crate::commands::{Error, client};
use crate::message::{NoSignals, NoThread};
use crate::telemetry::top::Top;
use crate::terminal::hang_up::Terminals;
use crate::terminal::output::OutputError;
use crate::terminal::{self, output};
use print::Selection;
use screen::{Next, Screen};
pub(crate) use tables::UnknownColumn;

/// Between two samples. A page of the daemon is made at most once a second.
const INTERVAL: Duration = Duration::from_millis(1050);
/// How long a key waits for the screen at most, and the screen for an answer.
const STEP: Duration = Duration::from_millis(100);
/// How long the screen may take to end after a signal.
const SCREEN_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &TopArgs) -> Result<(), Error> {
    let selection = selection(args)?;
    let client = client::connect(&args.api)?;
    // The first answer is an average over a long time.
    let first = ask(&client)?;
    let terminals = Terminals::open();
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb;
    let is_once = args.once || args.rows.is_some() || args.output.is_json();
    if is_terminal && !is_once {
        let screen = Screen::new(first, &selection);
        return watch(client, screen, terminals);
    }
    std::thread::sleep(INTERVAL);
    let top = ask(&client)?;
    if args.output.is_json() {
        return Ok(output::print_json(&print::selected(top, &selection))?);
    }
    Ok(output::print(&print::text(&top, &selection, print::width_of_stdout()))?)
}

/// The tables, rows and order that the options ask for.
fn selection(args: &TopArgs) -> Result<Selection, UnknownColumn> {
    let order = |name: &String| args.page.unwrap_or_default().order_by(name, args.reverse);
    Ok(Selection {
        page: args.page,
        sort: args.sort.as_ref().map(order).transpose()?,
        filter: args.filter.clone().unwrap_or_default(),
        rows: args.rows.map(|rows| usize::try_from(rows).unwrap_or(usize::MAX)),
    })
}

fn ask(client: &ApiClient) -> Result<Top, ApiError> {
    client.get("/v1/top")
}

/// Answers of the daemon, one each second.
fn answers(client: ApiClient) -> Result<Receiver<Result<Top, ApiError>>, Error> {
    let (sender, answers) = channel::bounded(1);
    let poll = move || {
        loop {
            std::thread::sleep(INTERVAL);
            if sender.send(ask(&client)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("answers".into()).spawn(poll).map_err(NoThread)?;
    Ok(answers)
}

/// Shows the screen on a thread of its own until a key, a signal or the end of the terminal ends it.
///
/// That thread can be out of reach: the reader of keys never returns from a terminal that has hung up, and a
/// terminal that accepts no output (after Ctrl-S) holds who draws. So it is left to the end of the process
/// then.
fn watch(client: ApiClient, screen: Screen, terminals: Terminals) -> Result<(), Error> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(NoSignals)?;
    }
    let answers = answers(client)?;
    let (done, result) = channel::bounded(1);
    let is_ended = Arc::clone(&ended);
    let show = move || {
        // An error means that nobody waits any more.
        let _ = done.send(show(screen, &answers, &is_ended));
    };
    let thread = std::thread::Builder::new().name("screen".into()).spawn(show).map_err(NoThread)?;
    let mut left = SCREEN_TIMEOUT;
    loop {
        match result.recv_timeout(STEP) {
            Ok(_) if terminals.hung_up() => return Ok(()),
            Ok(result) => return result.map_err(|error| OutputError(error).into()),
            Err(RecvTimeoutError::Disconnected) => {
                return thread.join().map_err(|panic| std::panic::resume_unwind(panic));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if terminals.hung_up() {
            return Ok(());
        }
        if ended.load(Ordering::Relaxed) {
            left = left.saturating_sub(STEP);
        }
        if left.is_zero() {
            let _ = ratatui::crossterm::terminal::disable_raw_mode();
            terminal::screen::write_leave_at_once();
            return Ok(());
        }
    }
}

/// Draws and obeys keys until one of them, or `ended`, ends it.
fn show(mut screen: Screen, answers: &Receiver<Result<Top, ApiError>>, ended: &AtomicBool) -> io::Result<()> {
    // Also restores the terminal if the program panics.
    let mut terminal = ratatui::try_init()?;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(error);
        }
        match wait(&mut screen, answers, ended) {
            Ok(Next::Draw) => {}
            Ok(Next::Quit) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    result
}

/// Waits until something has changed.
fn wait(
    screen: &mut Screen,
    answers: &Receiver<Result<Top, ApiError>>,
    ended: &AtomicBool,
) -> io::Result<Next> {
    loop {
        if ended.load(Ordering::Relaxed) {
            return Ok(Next::Quit);
        }
        if let Ok(answer) = answers.try_recv() {
            screen.update(answer.map_err(|error| error.to_string()));
            return Ok(Next::Draw);
        }
        if event::poll(STEP)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => return Ok(screen.key(key)),
                Event::Resize(..) => return Ok(Next::Draw),
                _ => {}
            }
        }
    }
}

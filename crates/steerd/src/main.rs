//! steerd: steers packets past the kernel to pinned workers, according to a TOML policy.
//!
//! The command line is parsed, one module runs the command, and an error becomes one line on stderr and an
//! exit code. `daemon` is where `steerd run` begins; ARCHITECTURE.md describes the path from there.
#![forbid(unsafe_code)]

mod address_text;
mod api;
mod carving;
mod cli;
mod commands;
mod daemon;
mod doctor;
mod effects;
mod hardware_report;
mod message;
mod outcome;
mod policy_diff;
mod policy_file;
mod policy_tests;
mod port_counters;
mod rates;
mod report_bundle;
mod server;
mod service_unit;
mod settings;
mod state;
mod state_file;
mod telemetry;
mod terminal;
mod traffic;
mod whole_file;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use cli::{Cli, Command};
use commands::{
    Error, Outcome, balance, capture, check, devices, diff, explain, flows, healthcheck, history, import,
    lsp, plan, record, reload, report, rule, size, status, test, top, trace, worker,
};
use daemon::{shutdown, signals};
use terminal::output::{self, OutputError};

/// The allocator returns freed memory to the kernel at once (`.cargo/config.toml`): a reload frees most of
/// what it has allocated.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static HEAP: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How long writing the error may take.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    signals::hold();
    if output::stderr_is_journal() {
        std::panic::set_hook(Box::new(print_panic));
    }
    let command = parsed().command;
    let is_service = matches!(command, Command::Run(_));
    if !is_service {
        signals::release();
    }
    let result = match command {
        Command::Run(args) => daemon::run(&args).map(|()| Outcome::Success).map_err(Error::Daemon),
        Command::Check(args) => check::run(&args).map(|()| Outcome::Success),
        Command::Balance(args) => balance::run(&args).map(|()| Outcome::Success),
        Command::Size(args) => size::run(&args).map(|()| Outcome::Success),
        Command::Explain(args) => explain::run(&args).map(|()| Outcome::Success),
        Command::Diff(args) => diff::run(&args),
        Command::Test(args) => test::run(&args).map(|()| Outcome::Success),
        Command::Import(args) => import::run(&args).map(|()| Outcome::Success),
        Command::Lsp(args) => lsp::run(&args).map(|()| Outcome::Success),
        Command::Doctor(args) => commands::doctor::run(&args).map(|()| Outcome::Success),
        Command::Report(args) => report::run(&args).map(|()| Outcome::Success),
        Command::Devices(args) => devices::run(&args).map(|()| Outcome::Success),
        Command::Healthcheck(args) => healthcheck::run(&args).map(|()| Outcome::Success),
        Command::Status(args) => status::run(&args).map(|()| Outcome::Success),
        Command::Reload(args) => reload::run(&args).map(|()| Outcome::Success),
        Command::Confirm(args) => reload::confirm(&args).map(|()| Outcome::Success),
        Command::Rollback(args) => reload::rollback(&args).map(|()| Outcome::Success),
        Command::History(args) => history::run(&args).map(|()| Outcome::Success),
        Command::Plan(args) => plan::run(&args).map(|()| Outcome::Success),
        Command::Rule(args) => rule::run(&args).map(|()| Outcome::Success),
        Command::Worker(args) => worker::run(&args).map(|()| Outcome::Success),
        Command::Top(args) => top::run(&args).map(|()| Outcome::Success),
        Command::Capture(args) => capture::run(&args).map(|()| Outcome::Success),
        Command::Trace(args) => trace::run(&args),
        Command::Record(args) => record::run(&args).map(|()| Outcome::Success),
        Command::Flows(args) => flows::run(&args).map(|()| Outcome::Success),
        Command::Generate { folder } => {
            let generated =
                cli::generate(&folder, settings::DEFAULTS).map_err(|error| Error::Output(OutputError(error)));
            generated.map(|()| Outcome::Success)
        }
    };
    match result {
        Ok(outcome) => ExitCode::from(outcome as u8),
        Err(error) => {
            let text = format!("steerd: {error}");
            let problems =
                error.of_settings().map(|problems| problems.diagnostics.clone()).unwrap_or_default();
            // A reader of stderr that does not read must not delay the exit.
            let _ = shutdown::within("stderr", STDERR_TIMEOUT, move || {
                output::print_diagnostics(&problems);
                output::print_error(&text);
            });
            ExitCode::from(if is_service { error.service_exit_code() } else { error.exit_code() })
        }
    }
}

/// The command line. An error of it, or a text that it asks for, is printed here and ends the process.
fn parsed() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        if error.use_stderr() && output::stderr_is_journal() {
            output::print_error(&error.to_string());
            std::process::exit(error.exit_code());
        }
        error.exit()
    })
}

/// Prints a panic as the standard library does, with the priority of an error.
fn print_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    output::print_error(&format!("thread '{}' {panic}", thread.name().unwrap_or("<unnamed>")));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        output::print_error(&backtrace.to_string());
    }
}

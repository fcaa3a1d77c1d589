//! steerd: steers packets past the kernel to pinned workers, as a TOML policy says.
//!
//! The command line is parsed, one module does the command, and an error becomes one line on stderr
//! and an exit code. `daemon` is where `steerd run` begins; ARCHITECTURE.md walks the way from there.
#![forbid(unsafe_code)]

mod books;
mod bounded;
mod check;
mod cli;
mod cores;
mod daemon;
mod deeds;
mod describe;
mod devices;
mod diff;
mod error;
mod explain;
mod gate;
mod generate;
mod health;
mod healthcheck;
mod http;
mod import;
mod logging;
mod metrics;
mod notify;
mod output;
mod paint;
mod plant;
mod policy_file;
mod process;
mod progress;
mod reload;
mod screen;
mod settings;
mod signals;
mod state;
mod summary;
mod table;
mod target;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use cli::{Cli, Command};

/// How long the last line may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => daemon::run(&args).map(|()| Answer::Yes),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args).map(|()| Answer::Yes),
        Command::Diff(args) => diff::run(&args),
        Command::Import(args) => import::run(&args).map(|()| Answer::Yes),
        Command::Devices(args) => devices::run(&args).map(|()| Answer::Yes),
        Command::Healthcheck(args) => healthcheck::run(&args).map(|()| Answer::Yes),
        Command::Generate { folder } => generate::run(&folder).map(|()| Answer::Yes),
    };
    match result {
        Ok(answer) => ExitCode::from(answer as u8),
        Err(error) => {
            let text = format!("steerd: {error}");
            // Nor does the end wait for a reader of stderr that does not read.
            let _ = bounded::within("last words", LAST_WORDS, move || output::complain(&text));
            ExitCode::from(error.exit_code())
        }
    }
}

/// What a command that did its work has found, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Answer {
    Yes = 0,
    No = 1,
}

//! steerd: steers packets past the kernel to pinned workers, as a TOML policy says.
//!
//! The command line is parsed, one module does the command, and an error becomes one line on stderr
//! and an exit code. `daemon` is where `steerd run` begins; ARCHITECTURE.md walks the way from there.
#![forbid(unsafe_code)]

mod books;
mod check;
mod cli;
mod cores;
mod daemon;
mod devices;
mod error;
mod explain;
mod gate;
mod http;
mod logging;
mod metrics;
mod notify;
mod output;
mod plant;
mod policy_file;
mod process;
mod reload;
mod screen;
mod settings;
mod signals;
mod state;
mod summary;
mod table;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => daemon::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Devices(args) => devices::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("steerd: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

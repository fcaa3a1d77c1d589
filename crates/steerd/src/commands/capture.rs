//! `steerd capture RULE -w FILE`: packets of a rule of the running daemon as pcapng, until Ctrl-C or a limit.

mod blocks;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use steerd_client::api::CaptureNext;

use crate::api::request::CaptureBody;
use crate::cli::CaptureArgs;
use crate::commands::{Error, client};
use crate::message::NoSignals;
use crate::policy_file::is_standard_input;
use crate::terminal::output::{self, OutputError};
use crate::terminal::table::counted;
use blocks::Blocks;

pub(crate) fn run(args: &CaptureArgs) -> Result<(), Error> {
    let client = client::connect(&args.api)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A reader of the output that does not read delays the regular end: a second signal ends at once.
        flag::register_conditional_default(signal, Arc::clone(&ended)).map_err(NoSignals)?;
        flag::register(signal, Arc::clone(&ended)).map_err(NoSignals)?;
    }
    let body = CaptureBody { rule: args.rule.clone(), snap: args.snap, one_in: args.one_in };
    let deadline = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let is_over = || ended.load(Ordering::Relaxed) || deadline.is_some_and(|end| Instant::now() >= end);
    let mut blocks = Blocks::new(args.count);
    let mut file: Option<Box<dyn Write>> = None;
    let written = client.capture(&body, is_over, |bytes| {
        // Made with the first bytes, so that a refused capture leaves no file.
        let file = match &mut file {
            Some(file) => file,
            None => file.insert(create(&args.write)?),
        };
        file.write_all(blocks.take(bytes)?)?;
        file.flush()?;
        Ok(if blocks.is_full() { CaptureNext::Stop } else { CaptureNext::More })
    })?;
    match written {
        // Whoever read the pipe has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.map_err(OutputError)?,
    }
    output::print_error(&format!("{} captured", counted(blocks.packets(), "packet", "packets")));
    Ok(())
}

fn create(path: &Path) -> io::Result<Box<dyn Write>> {
    if is_standard_input(path) {
        return Ok(Box::new(io::stdout().lock()));
    }
    Ok(Box::new(File::create(path)?))
}

//! `steerd capture RULE -w FILE`: packets of a rule of the running daemon as pcapng, or with `--dropped`
//! those that are dropped or lost, until Ctrl-C or a limit.

pub(super) mod blocks;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use steerd_client::api::CaptureNext;

use super::ending::Ending;
use crate::api::request::CaptureBody;
use crate::cli::CaptureArgs;
use crate::commands::{Error, client};
use crate::policy_file::is_standard_input;
use crate::terminal::numbers::counted;
use crate::terminal::output::{self, OutputError, Priority};
use blocks::Blocks;

pub(crate) fn run(args: &CaptureArgs) -> Result<(), Error> {
    let client = client::connect(&args.api)?;
    let ending = Ending::after(args.seconds.map(Duration::from_secs))?;
    let (rule, matches) =
        if args.dropped { (None, args.packets.clone()) } else { (args.packets.clone(), None) };
    let body = CaptureBody { rule, dropped: args.dropped, matches, snap: args.snap, one_in: args.one_in };
    let mut blocks = Blocks::new(args.count);
    let mut file: Option<Box<dyn Write>> = None;
    let written = client.capture(
        &body,
        || ending.is_over(),
        |bytes| {
            // Made with the first bytes, so that a refused capture leaves no file.
            let file = match &mut file {
                Some(file) => file,
                None => file.insert(create(&args.write)?),
            };
            file.write_all(blocks.take(bytes)?)?;
            file.flush()?;
            Ok(if blocks.is_full() { CaptureNext::Stop } else { CaptureNext::More })
        },
    )?;
    match written {
        // Whoever read the pipe has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.map_err(OutputError)?,
    }
    let captured = counted(blocks.packets(), "packet", "packets");
    output::print_message(Priority::Info, &format!("{captured} captured"));
    Ok(())
}

fn create(path: &Path) -> io::Result<Box<dyn Write>> {
    if is_standard_input(path) {
        return Ok(Box::new(io::stdout().lock()));
    }
    Ok(Box::new(File::create(path)?))
}

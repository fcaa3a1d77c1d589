//! `steerd record -w FILE`: the packets that the recorder of the running daemon has kept, as pcapng.

use std::io::{self, Write};

use steerd_client::api::CaptureNext;

use super::capture::blocks::Blocks;
use super::ending::Ending;
use crate::api::request::RecordBody;
use crate::cli::RecordArgs;
use crate::commands::{Error, client};
use crate::policy_file::is_standard_input;
use crate::terminal::numbers::counted;
use crate::terminal::output::{self, OutputError, Priority};
use crate::whole_file::WholeFile;

pub(crate) fn run(args: &RecordArgs) -> Result<(), Error> {
    let client = client::connect(&args.api)?;
    let ending = Ending::after(None)?;
    let last_seconds = args.last.map(|last| last.as_secs_f64());
    let body = RecordBody { matches: args.matches.clone(), last_seconds };
    let mut blocks = Blocks::new(None);
    let mut target: Option<RecordTarget> = None;
    let written = client.record(
        &body,
        || ending.is_over(),
        |bytes| {
            // Made with the first bytes, so that a refused record leaves no file.
            let target = match &mut target {
                Some(target) => target,
                None => target.insert(RecordTarget::create(args)?),
            };
            target.write_all(blocks.take(bytes)?)?;
            Ok(CaptureNext::More)
        },
    )?;
    match written.and_then(|()| target.map_or(Ok(()), |target| target.finish(ending.is_over()))) {
        // Whoever read the pipe has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.map_err(OutputError)?,
    }
    let recorded = counted(blocks.packets(), "packet", "packets");
    output::print_message(Priority::Info, &format!("{recorded} written"));
    Ok(())
}

/// Where the record is written.
enum RecordTarget {
    Output(io::Stdout),
    File(WholeFile),
}

impl RecordTarget {
    fn create(args: &RecordArgs) -> io::Result<Self> {
        match is_standard_input(&args.write) {
            true => Ok(Self::Output(io::stdout())),
            false => WholeFile::create(&args.write).map(Self::File),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Output(output) => output.write_all(bytes),
            Self::File(file) => file.write_all(bytes),
        }
    }

    /// Puts the file in its place. A record that was interrupted is no whole one.
    fn finish(self, is_interrupted: bool) -> io::Result<()> {
        match self {
            _ if is_interrupted => Err(io::ErrorKind::Interrupted.into()),
            Self::Output(mut output) => output.flush(),
            Self::File(file) => file.finish(),
        }
    }
}

//! Man pages and shell completions, out of the description of the command line. `make install` calls it; it is hidden
//! from `--help`, as no operator needs it.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::error::Error;

/// Writes `steerd.1`, `steerd-run.1`, ... and the completions into a folder.
pub(crate) fn run(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(Error::Output)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(Error::Output)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut Cli::command(), "steerd", folder).map_err(Error::Output)?;
    }
    Ok(())
}

//! Other programs that load rules: `nft` into a network namespace of its own, `ovs-ofctl` into a virtual
//! switch of its own. Both start what they need, end it by its process, and touch nothing of the machine's.
//! They answer `Err` with the reason where the machine has not got them.

mod nft;
mod ovs;

use std::io;
use std::process::{Command, Output};

pub use nft::{Namespace, linear, mapped};
pub use ovs::{Switch, flows};

/// Seconds until a rival is given up.
const PATIENCE_S: &str = "60";

/// The output of a program that succeeded, or what it said.
fn run(command: &mut Command) -> Result<Output, String> {
    let shown = format!("{command:?}");
    let short = |text: &[u8]| String::from_utf8_lossy(text).lines().next().unwrap_or_default().to_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(output),
        Ok(output) => Err(format!("{}: {}", output.status, short(&output.stderr))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("there is no {shown}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

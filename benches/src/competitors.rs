//! Other programs that do the same work. They load rules: `nft` into a new network namespace, `ovs-ofctl`
//! into a new virtual switch, and `tc` at an interface of this process's own. They classify packets:
//! `dpdk-test-acl`, CutSplit, Open vSwitch. They move packets: testpmd, and programs that capture. The
//! processes that they need are started and ended here; the machine's own configuration is not changed. `Err`
//! is the reason why a program cannot run on this machine.

mod acl;
mod capture;
mod cutsplit;
pub mod nft;
mod ovs;
mod tc;
mod testpmd;

use std::io;
use std::process::{Command, Output};

pub use acl::AclAlgorithm;
pub use capture::{Capture, CaptureTool, packets_in, processor_time};
pub use cutsplit::{Classifier, CutSplitProgram, Outcomes, Step};
pub use nft::{Namespace, ingress, linear, load_here, mapped};
pub use ovs::{Datapath, Switch, flows};
pub use tc::tc_batch;
pub use testpmd::{Testpmd, TestpmdOptions};

/// The variables of the environment that name a folder with such a program.
pub const FOLDERS: [&str; 2] = [cutsplit::FOLDER, ovs::ROOT];

/// Seconds after which a load is ended.
const TIMEOUT_S: &str = "60";

/// The output of a program that succeeded, or its error message.
fn run(command: &mut Command) -> Result<Output, String> {
    let shown = format!("{command:?}");
    let short = |text: &[u8]| String::from_utf8_lossy(text).lines().next().unwrap_or_default().to_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(output),
        Ok(output) => Err(format!("{}: {}", output.status, short(&output.stderr))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("there is no {}", command.get_program().display()))
        }
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

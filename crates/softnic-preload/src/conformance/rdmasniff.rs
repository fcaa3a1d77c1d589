//! libpcap's capture from RDMA devices (pcap-rdmasniff.c): its own program, linked with it and not with us,
//! counts what a sniffer flow copies. Distributions build libpcap without it; `make conformance
//! LIBPCAP=checkout` builds it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::method::{MLX5, Method, PLUGIN, PRELOAD};
use crate::process::{Running, run};
use crate::{Case, Outcome};

/// A folder with libpcap's test programs, built with RDMA support.
const VARIABLE: &str = "SOFTNIC_LIBPCAP";
const LIMIT: Duration = Duration::from_secs(60);
/// Beyond what a capture without packets has.
const ENOUGH_BYTES: u64 = 4096;
const STEP: Duration = Duration::from_millis(10);

/// Without libpcap there are no rows, and a message.
pub(crate) fn cases() -> Vec<Case> {
    let Some(folder) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        println!("NOT RUN: libpcap rdmasniff: no checkout of libpcap (make conformance LIBPCAP=checkout)");
        return Vec::new();
    };
    let mut cases = Vec::new();
    for method in [PLUGIN, PRELOAD, MLX5] {
        let folder = folder.clone();
        let case = move |launcher: &Path| list(launcher, &folder, method);
        cases.push(Case::new(format!("libpcap rdmasniff: list ({})", method.name), case));
    }
    for method in [PLUGIN, MLX5] {
        let folder = folder.clone();
        let case = move |launcher: &Path| capture(launcher, &folder, method);
        cases.push(Case::new(format!("libpcap rdmasniff: capture ({})", method.name), case));
    }
    cases
}

fn list(launcher: &Path, folder: &Path, method: Method) -> Outcome {
    let mut command = method.exec(launcher, "null");
    command.arg(folder.join("findalldevstest"));
    let text = run(&mut command, "findalldevstest", LIMIT)?;
    let line = text.lines().find(|line| line.contains(method.device));
    line.map(|line| line.trim().to_owned()).ok_or(format!("no {} in\n{text}", method.device))
}

/// Captures generated traffic until the capture has packets: the program runs for ever.
fn capture(launcher: &Path, folder: &Path, method: Method) -> Outcome {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = scratch.path().join("sniffed.pcap");
    let mut command = method.exec(launcher, "generator:100000");
    command.arg(folder.join("writecaptest")).args(["-i", method.device, "-w"]).arg(&file);
    let capture = Running::start(&mut command, "writecaptest")?;
    let until = Instant::now() + LIMIT;
    loop {
        let bytes = std::fs::metadata(&file).map_or(0, |found| found.len());
        if bytes >= ENOUGH_BYTES {
            return Ok(format!("{bytes} bytes of capture"));
        }
        if Instant::now() > until {
            return Err(format!("{bytes} bytes of capture after {LIMIT:?}\n{}", capture.text()));
        }
        std::thread::sleep(STEP);
    }
}

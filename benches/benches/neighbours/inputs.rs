//! What all programs get: rule sets, policies and captures of their traffic, in one folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};
use steerd_benches::competitors::FOLDERS;
use steerd_benches::rules::{RuleSet, generated};
use steerd_benches::trace::Trace;

/// Keeps the files there, so that the commands of the rows can be repeated.
const FOLDER: &str = "STEERD_BENCH_FOLDER";
/// Few and short rounds: whether everything works, not how fast.
const QUICK: &str = "STEERD_BENCH_QUICK";

/// Packets to classify, one of each flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// So many flows drawn from the rules.
    Flows(usize),
    /// So many random flows, which mostly match the last rule only.
    Random(usize),
}

impl Traffic {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Flows(flows) => format!("10^{} flows", flows.ilog10()),
            Self::Random(_) => "random packets".to_owned(),
        }
    }

    pub(crate) fn trace(self, set: &RuleSet) -> Trace {
        match self {
            Self::Flows(flows) => Trace::of(&set.rules, flows),
            Self::Random(flows) => Trace::random(flows),
        }
    }
}

/// The files of a trace.
#[derive(Clone)]
pub(crate) struct Replay {
    pub(crate) capture: PathBuf,
    pub(crate) flows: usize,
}

pub(crate) struct Inputs {
    pub(crate) folder: PathBuf,
    corpora: Option<PathBuf>,
    pub(crate) rounds: usize,
    pub(crate) is_quick: bool,
    /// Deletes the folder.
    _temporary: Option<tempfile::TempDir>,
}

impl Inputs {
    pub(crate) fn new() -> Self {
        let (folder, temporary) = match std::env::var_os(FOLDER).map(PathBuf::from) {
            Some(folder) => {
                std::fs::create_dir_all(&folder).expect("the folder can be made");
                let folder = folder.canonicalize().expect("it was made");
                // Of an earlier run, which may have had other rules or may have been interrupted.
                captures(&folder).for_each(|file| std::fs::remove_file(file).expect("it can be removed"));
                (folder, None)
            }
            None => {
                let mut builder = tempfile::Builder::new();
                builder.prefix("steerd-bench");
                let made = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
                let made = made.expect("a temporary folder");
                (made.path().to_owned(), Some(made))
            }
        };
        let is_quick = std::env::var_os(QUICK).is_some();
        let corpora = std::env::var_os("STEERD_CORPORA").map(PathBuf::from);
        let rounds = if is_quick { 2 } else { 5 };
        Self { folder, corpora, rounds, is_quick, _temporary: temporary }
    }

    /// The variables of the environment that name folders, for commands that are the same on every machine.
    pub(crate) fn variables(&self) -> Value {
        let given = FOLDERS.map(|name| (name.to_owned(), std::env::var(name).unwrap_or_default()));
        let own = (FOLDER.to_owned(), self.folder.display().to_string());
        given
            .into_iter()
            .chain([own])
            .map(|(name, folder)| (name, folder.into()))
            .collect::<Map<_, _>>()
            .into()
    }

    /// How long a figure is measured.
    pub(crate) fn round(&self, milliseconds: u64) -> Duration {
        Duration::from_millis(if self.is_quick { milliseconds / 5 } else { milliseconds })
    }

    /// The rules of ClassBench, or made-up ones of the same number in place of its access lists.
    pub(crate) fn set(&self, name: &str) -> Result<RuleSet, String> {
        let Some(corpora) = &self.corpora else {
            return match name {
                "acl1_1k" => Ok(generated(1000)),
                "acl1_10k" => Ok(generated(10_000)),
                _ => Err("STEERD_CORPORA does not name a folder of rule sets".to_owned()),
            };
        };
        let file = corpora.join("rules").join(name);
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        RuleSet::read(name, &text).ok_or_else(|| format!("{}: not ClassBench filters", file.display()))
    }

    /// One frame of `bytes` for each flow, as a capture file. It is written once.
    pub(crate) fn replay(&self, set: &RuleSet, traffic: Traffic, bytes: u32) -> Result<Replay, String> {
        let capture = self.file(set, &format!("{}-{bytes}.pcap", traffic.name()));
        let trace = traffic.trace(set);
        if !capture.exists() {
            trace.write_pcap(&capture, bytes).map_err(|error| format!("{}: {error}", capture.display()))?;
        }
        Ok(Replay { capture, flows: trace.len() })
    }

    /// The rules and the flows as `dpdk-test-acl` reads them.
    pub(crate) fn acl(&self, set: &RuleSet, traffic: Traffic) -> Result<(PathBuf, PathBuf), String> {
        let rules = self.file(set, "rules");
        let trace = self.file(set, &format!("{}.trace", traffic.name()));
        std::fs::write(&rules, set.delivering().filters_text()).map_err(|error| error.to_string())?;
        traffic.trace(set).write_acl(&trace).map_err(|error| error.to_string())?;
        Ok((rules, trace))
    }

    /// The rules and the flows as ClassBench writes them, each flow with its rule.
    pub(crate) fn classbench(&self, set: &RuleSet, traffic: Traffic) -> Result<(PathBuf, PathBuf), String> {
        let (rules, trace) =
            (self.file(set, "rules"), self.file(set, &format!("{}.classbench", traffic.name())));
        let delivering = set.delivering();
        std::fs::write(&rules, delivering.filters_text()).map_err(|error| error.to_string())?;
        traffic.trace(set).write_classbench(&trace, &delivering.rules).map_err(|error| error.to_string())?;
        Ok((rules, trace))
    }

    /// A folder of its own for a process.
    pub(crate) fn subfolder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        Ok(folder)
    }

    fn file(&self, set: &RuleSet, name: &str) -> PathBuf {
        self.folder.join(format!("{}-{name}", set.name).replace(' ', "-"))
    }
}

fn captures(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().filter_map(|file| Some(file.ok()?.path()));
    files.filter(|file| file.extension().is_some_and(|extension| extension == "pcap"))
}

/// No rules, to which [`RuleSet::delivering`] adds one.
pub(crate) fn one_rule() -> RuleSet {
    RuleSet { name: "1 rule".to_owned(), rules: Vec::new() }
}

/// The wire of a daemon that replays a capture without end.
pub(crate) fn looped(capture: &Path) -> String {
    format!("{{ kind = 'pcap', path = '{}', mode = 'loop' }}", capture.display())
}

//! The machine that a bench runs on: its processor, and whether anything else runs on it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long the processors are observed before each round.
const WINDOW: Duration = Duration::from_millis(250);
/// The share of all processors that other processes may use: two ticks of the kernel's clock on two
/// processors.
const BUSY_MAX: f64 = 0.05;

/// Waits before each round until nothing else runs.
pub struct Gate {
    patience_left: Duration,
    rounds: usize,
    waited: usize,
    busy: usize,
    worst: f64,
    begun: Option<Ticks>,
}

/// Of all processors since the machine was started.
#[derive(Clone, Copy)]
struct Ticks {
    all: f64,
    busy: f64,
    stolen: f64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::read(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of /proc/stat (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal.
    fn read(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<f64> = line.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
        let all: f64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { all, busy: all - idle, stolen: *ticks.get(7)? })
    }
}

impl Gate {
    /// Waits for `patience` at most, all rounds together.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self { patience_left: patience, rounds: 0, waited: 0, busy: 0, worst: 0.0, begun: Ticks::now() }
    }

    /// Returns when the machine is idle, or when the patience is used up.
    pub fn wait(&mut self) {
        self.rounds += 1;
        let begun = Instant::now();
        let mut share = busy_share();
        self.waited += usize::from(share > BUSY_MAX);
        while share > BUSY_MAX && begun.elapsed() < self.patience_left {
            std::thread::sleep(WINDOW);
            share = busy_share();
        }
        // The observation of an idle machine takes no patience.
        self.patience_left = self.patience_left.saturating_sub(begun.elapsed().saturating_sub(2 * WINDOW));
        self.busy += usize::from(share > BUSY_MAX);
        self.worst = self.worst.max(share);
    }

    /// Whether a round began on a busy machine, or the hypervisor took processors away.
    #[must_use]
    pub fn is_provisional(&self) -> bool {
        self.busy > 0 || self.stolen() > BUSY_MAX
    }

    fn stolen(&self) -> f64 {
        let Some((from, to)) = self.begun.zip(Ticks::now()) else { return 0.0 };
        (to.stolen - from.stolen) / (to.all - from.all).max(1.0)
    }

    /// One line about the conditions of the run.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { rounds, waited, busy, worst, .. } = self;
        let stolen = self.stolen() * 100.0;
        if self.is_provisional() {
            format!(
                "machine busy: figures are provisional ({busy} of {rounds} rounds began while other processes used up to \
                 {:.0} % of all processors; the hypervisor took {stolen:.1} %)",
                worst * 100.0
            )
        } else {
            format!(
                "machine idle before each of {rounds} rounds (waited for {waited}); the hypervisor took {stolen:.1} %"
            )
        }
    }

    /// The same for other programs.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "provisional": self.is_provisional(), "conditions": self.text(), "rounds": self.rounds, "rounds_waited": self.waited,
            "rounds_begun_busy": self.busy, "busy_share_most": self.worst, "stolen_share": self.stolen(),
        })
    }
}

/// The share of all processors that was used during a window. 1 if the kernel does not report it.
fn busy_share() -> f64 {
    let before = Ticks::now();
    std::thread::sleep(WINDOW);
    let Some((from, to)) = before.zip(Ticks::now()) else { return 1.0 };
    (to.busy - from.busy) / (to.all - from.all).max(1.0)
}

/// The model of the processors, their number, and the kernel without what its builder has added to its
/// release.
#[must_use]
pub fn description() -> String {
    let model = cpu_line("model name").unwrap_or_else(|| "unknown processor".to_owned());
    // Not of the cores that this thread may use: it is pinned.
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let count = text.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.split('-').next().unwrap_or_default().trim();
    format!("{count} processors {model}, Linux {kernel}")
}

/// The day and the commit that a bench is run at, as far as date(1) and git(1) tell.
#[must_use]
pub fn day_and_commit() -> String {
    let first_line = |program: &str, arguments: &[&str]| {
        let output = std::process::Command::new(program).args(arguments).output().ok()?;
        let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !line.is_empty()).then_some(line)
    };
    let day = first_line("date", &["-u", "+%F"]).unwrap_or_else(|| "an unknown day".to_owned());
    let commit = first_line("git", &["rev-parse", "--short", "HEAD"]);
    commit.map_or(day.clone(), |commit| format!("{day}, commit {commit}"))
}

/// Whether the processors have a feature, by the name of /proc/cpuinfo.
#[must_use]
pub fn has_feature(name: &str) -> bool {
    cpu_line("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == name))
}

fn cpu_line(key: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The unused reserved huge pages of 2 MiB, in MiB.
#[must_use]
pub fn free_huge_mib() -> u64 {
    let text = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    text.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0) * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle_and_stolen_time_is_busy() {
        let ticks = Ticks::read("cpu  10 0 5 70 10 1 2 2 0 0\ncpu0 1 1").expect("ticks");
        assert_eq!((ticks.all, ticks.busy, ticks.stolen), (100.0, 20.0, 2.0));
    }
}

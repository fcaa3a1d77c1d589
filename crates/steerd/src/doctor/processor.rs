//! Checks of the processor: the workers' cores exist and are theirs alone, run at full speed, wake up soon,
//! and have a fast clock.

use super::{CheckNotes, FindingLevel, HostView, UnreadFile};
use crate::daemon::placement::CoreSet;
use crate::settings::IdleMode;

/// A core that takes longer to leave an idle state delays the next packet by more than a batch takes.
const EXIT_LATENCY_US_MAX: u64 = 10;
/// Clock sources that the vDSO reads without a system call (arch/x86/include/asm/vdso/clocksource.h,
/// drivers/clocksource/arm_arch_timer.c).
const FAST_CLOCKS: [&str; 5] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase"];
const CPUS: &str = "/sys/devices/system/cpu";

/// The cores of the settings exist and are allowed.
pub(super) fn cores(view: &HostView<'_>, notes: &mut CheckNotes) {
    if let Some(error) = &view.setup.core_error {
        notes.find(
            FindingLevel::Must,
            error.clone(),
            "a worker is pinned to its core, or does not start",
            "workers.cores in the settings; with isolated cores: systemctl edit steerd: [Service] CPUAffinity=CORES",
        );
    }
}

/// The pinned cores; skips the check if there are none.
fn pinned(view: &HostView<'_>, notes: &mut CheckNotes) -> Option<Vec<usize>> {
    let cores = view.setup.worker_cores();
    if cores.is_empty() {
        notes.skip("no worker is pinned to a core");
        return None;
    }
    Some(cores)
}

/// Nothing else runs on the workers' cores: neither other programs, nor the timer, nor RCU callbacks
/// (Documentation/admin-guide/kernel-parameters.txt: isolcpus, nohz_full, rcu_nocbs).
pub(super) fn isolation(view: &HostView<'_>, notes: &mut CheckNotes) {
    let Some(cores) = pinned(view, notes) else { return };
    let isolated = notes.take(view.files.cores(&format!("{CPUS}/isolated"))).unwrap_or_default();
    let tickless = notes.take(view.files.cores(&format!("{CPUS}/nohz_full"))).unwrap_or_default();
    let command_line = notes.take(view.files.text("/proc/cmdline")).unwrap_or_default();
    let offloaded = match without_callbacks(&command_line) {
        Ok(cores) => cores,
        Err(unread) => notes.take(Err(unread)).unwrap_or_default(),
    };
    let online = notes.take(view.files.cores(&format!("{CPUS}/online"))).unwrap_or_default();
    if !notes.unread.is_empty() {
        // A missing answer would be taken for a core that is not isolated.
        return;
    }
    let lacking =
        |set: &CoreSet| cores.iter().copied().filter(|core| !set.contains(*core)).collect::<CoreSet>();
    // nohz_full implies rcu_nocbs.
    let offloaded: CoreSet = offloaded.iter().chain(tickless.iter()).collect();
    let missing: Vec<String> = [("isolcpus", &isolated), ("nohz_full", &tickless), ("rcu_nocbs", &offloaded)]
        .into_iter()
        .map(|(name, set)| (name, lacking(set)))
        .filter(|(_, lacking)| !lacking.is_empty())
        .map(|(name, lacking)| format!("{name} without {lacking}"))
        .collect();
    if missing.is_empty() {
        return;
    }
    let all: CoreSet = cores.iter().copied().collect();
    let command = if online.iter().all(|core| all.contains(core)) {
        "workers.cores in the settings: leave the system a core, as all of this host are for workers"
            .to_owned()
    } else {
        format!(
            "kernel command line: isolcpus={all} nohz_full={all} rcu_nocbs={all}; then CPUAffinity={all} for steerd"
        )
    };
    let level = if view.setup.idle == IdleMode::Spin { FindingLevel::Should } else { FindingLevel::Note };
    notes.find(
        level,
        format!("cores of workers are shared with the system: {}", missing.join(", ")),
        "other threads, the timer and RCU callbacks interrupt a worker, and packets wait meanwhile",
        command,
    );
}

/// The cores of rcu_nocbs= in a kernel command line; without a value or with "all" every core.
fn without_callbacks(command_line: &str) -> Result<CoreSet, UnreadFile> {
    // The last one counts; rcu_nocbs_poll is another parameter.
    let value = |word: &'_ str| match word.split_once('=') {
        Some(("rcu_nocbs", list)) => Some(list.to_owned()),
        None if word == "rcu_nocbs" => Some("all".to_owned()),
        _ => None,
    };
    let Some(list) = command_line.split_whitespace().filter_map(value).next_back() else {
        return Ok(CoreSet::default());
    };
    if list == "all" {
        return Ok((0..=usize::from(u16::MAX)).collect());
    }
    CoreSet::of_list(&list).ok_or_else(|| UnreadFile {
        path: "/proc/cmdline".to_owned(),
        why: format!("rcu_nocbs={list} is not a plain list of cores"),
        remedy: "write it as a list such as 2-5".to_owned(),
    })
}

/// A sleeping worker's core leaves its idle state soon (Documentation/admin-guide/pm/cpuidle.rst).
pub(super) fn idle_states(view: &HostView<'_>, notes: &mut CheckNotes) {
    if view.setup.idle == IdleMode::Spin {
        return notes.skip("workers.idle = \"spin\": the cores of workers are never idle");
    }
    let Some(cores) = pinned(view, notes) else { return };
    let mut deep: Vec<usize> = Vec::new();
    let mut deepest: Option<(u64, String)> = None;
    let mut has_states = false;
    for core in &cores {
        let folder = format!("{CPUS}/cpu{core}/cpuidle");
        for state in notes.take(view.files.names(&folder)).unwrap_or_default() {
            if !state.starts_with("state") {
                continue;
            }
            has_states = true;
            let file = |name: &str| format!("{folder}/{state}/{name}");
            let latency_us = notes.take(view.files.number(&file("latency"))).unwrap_or(0);
            let is_disabled = notes.take(view.files.number(&file("disable"))).unwrap_or(0) != 0;
            if latency_us <= EXIT_LATENCY_US_MAX || is_disabled {
                continue;
            }
            let name = notes.take(view.files.text(&file("name"))).unwrap_or(state);
            deep.push(*core);
            if deepest.as_ref().is_none_or(|(most, _)| latency_us > *most) {
                deepest = Some((latency_us, name));
            }
        }
    }
    let Some((latency_us, name)) = deepest else {
        if !has_states && notes.unread.is_empty() {
            notes.skip("the kernel shows no idle states, as in most virtual machines");
        }
        return;
    };
    // A limit of some process on this host (Documentation/power/pm_qos_interface.rst): 32 bits.
    let limit = notes.take(view.files.bytes("/dev/cpu_dma_latency"));
    let limit = limit.and_then(|bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?)));
    if limit
        .is_some_and(|limit_us| u64::try_from(limit_us).is_ok_and(|limit_us| limit_us <= EXIT_LATENCY_US_MAX))
    {
        return;
    }
    deep.dedup();
    let deep: CoreSet = deep.into_iter().collect();
    let level = if view.setup.idle == IdleMode::Relaxed { FindingLevel::Note } else { FindingLevel::Should };
    notes.find(
        level,
        format!("cores {deep} may enter the idle state {name}, which takes {latency_us} us to leave"),
        "a worker that sleeps gets its next packet that much later",
        format!("cpupower -c {deep} idle-set -D {EXIT_LATENCY_US_MAX}, or workers.idle = \"spin\""),
    );
}

/// The cores run at their full frequency (Documentation/admin-guide/pm/cpufreq.rst).
pub(super) fn governor(view: &HostView<'_>, notes: &mut CheckNotes) {
    let Some(mut cores) = pinned(view, notes) else { return };
    cores.extend(view.setup.engines.iter().flatten());
    let mut slow: Vec<usize> = Vec::new();
    let mut found = None;
    let mut has_governor = false;
    for core in cores {
        let path = format!("{CPUS}/cpu{core}/cpufreq/scaling_governor");
        let Some(governor) = notes.take(view.files.text(&path)) else { continue };
        has_governor = true;
        if governor != "performance" {
            slow.push(core);
            found.get_or_insert(governor);
        }
    }
    match found {
        None if !has_governor && notes.unread.is_empty() => {
            notes.skip("the kernel shows no frequency governor, as in most virtual machines");
        }
        None => {}
        Some(governor) => {
            let slow: CoreSet = slow.into_iter().collect();
            notes.find(
                FindingLevel::Should,
                format!("cores {slow} have the frequency governor `{governor}`"),
                "a core that was idle is slow at first, and packets are lost at the beginning of a burst",
                format!("cpupower -c {slow} frequency-set -g performance"),
            );
        }
    }
}

/// The clock is read without a system call (Documentation/virt/kvm/x86/timekeeping.rst).
pub(super) fn clock(view: &HostView<'_>, notes: &mut CheckNotes) {
    const FOLDER: &str = "/sys/devices/system/clocksource/clocksource0";
    let Some(current) = notes.take(view.files.text(&format!("{FOLDER}/current_clocksource"))) else {
        if notes.unread.is_empty() {
            notes.skip("the kernel shows no clock source");
        }
        return;
    };
    if FAST_CLOCKS.contains(&current.as_str()) {
        return;
    }
    let available =
        notes.take(view.files.text(&format!("{FOLDER}/available_clocksource"))).unwrap_or_default();
    let fast = available.split_whitespace().find(|name| FAST_CLOCKS.contains(name));
    let command = match fast {
        Some(fast) => format!("echo {fast} > {FOLDER}/current_clocksource"),
        None => "dmesg | grep -i tsc: the kernel has found the TSC unstable, or the host does not offer one"
            .to_owned(),
    };
    notes.find(
        FindingLevel::Should,
        format!("the clock source is `{current}`"),
        "each reading of the clock is a system call or an access to a slow device",
        command,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rcu_nocbs_is_a_list_or_all() {
        let cores = |line: &str| without_callbacks(line).map(|cores| cores.contains(5));
        assert_eq!(cores("ro quiet"), Ok(false));
        assert_eq!(cores("ro rcu_nocbs=2-5 quiet"), Ok(true));
        assert_eq!(cores("rcu_nocbs=2-5 rcu_nocbs=7"), Ok(false), "the last one counts");
        assert_eq!(cores("rcu_nocbs"), Ok(true));
        assert_eq!(cores("rcu_nocbs=all"), Ok(true));
        assert_eq!(cores("rcu_nocbs_poll"), Ok(false));
        assert!(cores("rcu_nocbs=2-N").expect_err("no list").why.contains("2-N"));
    }
}

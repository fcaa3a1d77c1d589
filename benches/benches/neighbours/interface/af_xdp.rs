//! The same veth pair received by the daemon through AF_XDP, and by its sockets alone; and rules that drop,
//! which its XDP program enforces, beside a program that drops every packet without a look at it, and nft at
//! ingress with the same rules.
//!
//! The XDP programs run in the driver of the pair. The sockets alone are the soft NIC's wire, whose program
//! has one claim, in a loop that only counts frames. A rate of drops is that of the packets that the
//! interface has received: all that were sent but for those that found its queue full.

use std::path::PathBuf;
use std::process::Command;

use wire::{AfXdpConfig, AfXdpWire, XdpMode, ZeroCopy};
use xdp::{Claim, ClaimAction};

use super::*;

const OWN: &str = "daemon, AF_XDP";
const SOCKETS: &str = "AF_XDP sockets of the daemon, only counted";
const OWN_DROPS: &str = "daemon, AF_XDP, drops in the program";
const ALL_DROPPED: &str = "XDP program that drops all";
const NFT_DROPS: &str = "nft ingress, drops";
/// The start of a row's name, before the rules.
const PROGRAM_TIME: &str = "XDP program of the daemon, time for a packet";
/// Rule sets of many masks, and of many rules.
const COSTLY_SETS: [&str; 4] = ["acl1_1k", "fw1_1k", "ipc1_1k", "acl1_10k"];
/// The source of the program that drops all.
const DROP_ALL: &str = "__attribute__((section(\"xdp\"), used)) int drop_all(void *context) { return 1; }\n\
                        char _license[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
/// After the name of a row.
const SHARE: &str = ", share of the program";

pub(super) fn cases<'c>(inputs: &'c Inputs, veth: &Result<(), String>) -> Vec<Case<'c>> {
    let mut cases = Vec::new();
    for bytes in SIZES {
        let counts: &[usize] = if bytes == SIZES[0] { &[1, usize::MAX] } else { &[1] };
        cases.extend(counts.iter().map(|count| by_daemon(inputs, *count, bytes, veth.clone())));
        let veth = veth.clone();
        cases.push(receiver(SOCKETS, bytes, move || {
            veth.clone()?;
            by_sockets(inputs, bytes)
        }));
    }
    let (name, all) = some_rules(inputs, usize::MAX);
    let without_flags = all.as_ref().map(RuleSet::without_tcp_flags).map_err(Clone::clone);
    let unflagged = format!("{name} without TCP flags");
    for (name, rules) in [(one_rule().name, Ok(one_rule())), (name, all), (unflagged, without_flags)] {
        let dropping = rules.map(|rules| dropping(&rules));
        cases.push(own_drops(inputs, &name, dropping.clone(), veth.clone()));
        cases.push(nft_drops(inputs, &name, dropping, veth.clone()));
    }
    cases.push(all_dropped(inputs, veth.clone()));
    let sets = [Ok(one_rule())].into_iter().chain(COSTLY_SETS.map(|name| inputs.set(name)));
    cases.extend(sets.map(|set| program_cost(inputs, set, veth.clone())));
    cases
}

fn wire_text() -> String {
    format!("{{ kind = 'af_xdp', interface = '{RECEIVER}', mode = 'native' }}")
}

/// The daemon with so many rules of acl1_1k, or all, one of which is for all other packets.
fn by_daemon(inputs: &Inputs, count: usize, bytes: u32, veth: Result<(), String>) -> Case<'_> {
    let (name, rules) = delivered_rules(inputs, count);
    let policy = rules.map(|rules| rules.delivering().policy_text());
    receiver(&format!("{OWN}, {name}"), bytes, move || {
        veth.clone()?;
        received_by_daemon(inputs, &policy.clone()?, wire_text(), bytes)
    })
}

fn by_sockets(inputs: &Inputs, bytes: u32) -> Result<Received, String> {
    let config = AfXdpConfig {
        interface: RECEIVER.to_owned(),
        promiscuous: false,
        ring_frames: 4096,
        mode: XdpMode::Native,
        zero_copy: ZeroCopy::Auto,
        busy_poll: false,
    };
    let mut wire = AfXdpWire::open(&config).map_err(|error| error.to_string())?;
    let mut claims = wire.claims().ok_or("the wire has no claims")?;
    let every = Claim::new(Default::default(), Default::default());
    claims.add(&every, 0, ClaimAction::Redirect).map_err(|error| error.to_string())?;
    counted_by_wire(inputs, &mut wire, bytes)
}

/// The rules, all of which drop, with one for all other packets.
fn dropping(rules: &RuleSet) -> RuleSet {
    let rules = rules.delivering();
    let drops = rules.rules.iter().map(|rule| Rule { verdict: Verdict::Drop, ..*rule }).collect();
    RuleSet { rules: drops, ..rules }
}

/// The daemon with these rules, all of which drop, and the share of the packets that its program drops.
fn own_drops<'c>(
    inputs: &'c Inputs,
    name: &str,
    rules: Result<RuleSet, String>,
    veth: Result<(), String>,
) -> Case<'c> {
    let what = format!("{OWN_DROPS}, {name}");
    let rows = vec![row(what.clone(), "Mpps"), row(format!("{what}{SHARE}"), "% of the packets")];
    let run = Box::new(move || {
        veth.clone()?;
        let policy = rules.clone()?.policy_text();
        let daemon = Daemon::start(&inputs.subfolder("xdp-drops")?, &options(&policy, wire_text()))?;
        let counts =
            || Ok::<_, String>((daemon.dropped_by_program()?, namespace::received_packets(RECEIVER)?));
        let (dropped_before, received_before) = counts()?;
        let rate = kernel_rate(inputs)?;
        let (dropped, received) = counts()?;
        let share = (dropped - dropped_before) / (received - received_before) as f64;
        Ok(vec![rate, share * 100.0])
    });
    Case { rows, run }
}

/// The time that the program needs for a packet, by the rules that it drops packets of, with packets of these
/// rules. Of one rule it is mostly that of reading the headers.
fn program_cost(inputs: &Inputs, set: Result<RuleSet, String>, veth: Result<(), String>) -> Case<'_> {
    let name =
        set.as_ref().map_or_else(Clone::clone, |set| format!("{}, {} rules", set.name, set.rules.len()));
    Case::new(row(format!("{PROGRAM_TIME}, {name}"), "ns"), move || {
        veth.clone()?;
        let set = dropping(&set.clone()?);
        let policy = set.policy_text();
        let daemon = Daemon::start(&inputs.subfolder("xdp-cost")?, &options(&policy, wire_text()))?;
        // The trees of claims are built anew when no more claims come.
        std::thread::sleep(WARM_UP);
        let _counted = CountedRuns::new()?;
        let _sending = Sending::of(&set.rules, SIZES[0])?;
        std::thread::sleep(WARM_UP);
        let before = daemon.program_runs()?;
        std::thread::sleep(inputs.round(MILLISECONDS));
        let after = daemon.program_runs()?;
        match after.runs - before.runs {
            0 => Err("the program has not run".to_owned()),
            runs => Ok((after.ns - before.ns) as f64 / runs as f64),
        }
    })
}

/// The kernel counts the runs of programs and their time as long as this is there.
struct CountedRuns {
    /// The switch as it was.
    before: String,
}

impl CountedRuns {
    const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

    fn new() -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", Self::SWITCH);
        let before = std::fs::read_to_string(Self::SWITCH).map_err(failed)?;
        std::fs::write(Self::SWITCH, "1").map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for CountedRuns {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::SWITCH, &self.before);
    }
}

fn nft_drops<'c>(
    inputs: &'c Inputs,
    name: &str,
    rules: Result<RuleSet, String>,
    veth: Result<(), String>,
) -> Case<'c> {
    Case::new(row(format!("{NFT_DROPS}, {name}"), "Mpps"), move || {
        veth.clone()?;
        at_ingress(inputs, &rules.clone()?.rules)
    })
}

fn all_dropped(inputs: &Inputs, veth: Result<(), String>) -> Case<'_> {
    Case::new(row(ALL_DROPPED.to_owned(), "Mpps"), move || {
        veth.clone()?;
        let object = drop_all_object(inputs)?;
        run("ip", &["link", "set", "dev", RECEIVER, "xdpdrv", "object", &object, "section", "xdp"])?;
        let rate = kernel_rate(inputs);
        run("ip", &["link", "set", "dev", RECEIVER, "xdpdrv", "off"])?;
        rate
    })
}

/// Compiles the program that drops all.
fn drop_all_object(inputs: &Inputs) -> Result<String, String> {
    let path = |name: &str| -> PathBuf { inputs.folder.join(name) };
    let (source, object) = (path("drop-all.c"), path("drop-all.o"));
    std::fs::write(&source, DROP_ALL).map_err(|error| error.to_string())?;
    let [source, object] = [source, object].map(|path| path.display().to_string());
    run("clang", &["-target", "bpf", "-O2", "-g", "-c", &source, "-o", &object])?;
    Ok(object)
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("{program}: {}", message.trim()))
}

/// The daemon beside its sockets alone, and its drops beside those of the others.
pub(super) fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let find = |what: &str, bytes: u32| rows.iter().find(|row| row.what == what && row.frame_bytes == bytes);
    let mut ratios = Vec::new();
    for own in rows.iter().filter(|row| row.what.starts_with(OWN) && !row.unit.starts_with('%')) {
        let others = match own.what.strip_prefix(OWN_DROPS) {
            Some(rules) => vec![ALL_DROPPED.to_owned(), format!("{NFT_DROPS}{rules}")],
            None => vec![format!("{SOCKETS}{}", if own.unit == "ns" { PER_PACKET } else { "" })],
        };
        let others = others.iter().filter_map(|what| find(what, own.frame_bytes));
        ratios.extend(others.map(|other| Ratio::of(own, other)));
    }
    ratios
}

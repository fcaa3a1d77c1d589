//! The command line, and the man pages and completions made from it.
//!
//! `main` hands each command to the module that runs it. What the commands print is described in
//! docs/reference/commands.md.

mod exit_status;
mod manual;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use device_model::DeviceModel;
use nic_filters::FilterModel;
use serde::Deserialize;

/// Steers packets past the kernel to pinned workers, according to a TOML policy.
#[derive(Debug, Parser)]
#[command(name = "steerd", version, about, after_help = exit_status::help(exit_status::ALL), max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put the policy on the device and run the workers until SIGTERM or Ctrl-C.
    Run(RunArgs),
    /// Show for every rule of a policy whether and how the device can apply it.
    Check(CheckArgs),
    /// Show how the packets of a capture load the workers, how many workers a rate needs, and which hash key
    /// and weights balance them better.
    Size(SizeArgs),
    /// Show which entries of the indirection tables a balancer would move to other workers, for the packets
    /// of a capture; nothing is moved.
    Balance(BalanceArgs),
    /// Show where a packet (or every packet of a capture) would go, and why.
    Explain(ExplainArgs),
    /// Show which traffic two policies treat differently, as regions of packets with an example of each.
    Diff(DiffArgs),
    /// Run the tests of policies: packets, sets of packets and captures, and the decisions that they are to
    /// meet.
    Test(TestArgs),
    /// Convert the rules of another tool to a policy.
    Import(ImportArgs),
    /// Serve an editor: a language server for policies over standard input and output.
    Lsp(LspArgs),
    /// List libibverbs' devices and the soft NIC of the settings.
    Devices(DevicesArgs),
    /// Examine this host, and show what to change so that steerd starts and keeps up, the most important
    /// first, each with its command; exit code 1 if something must be changed.
    Doctor(DoctorArgs),
    /// Write a file for a bug report: versions, settings, policy, the answers of the running daemon and facts
    /// of the host, with other addresses and without secrets.
    Report(ReportArgs),
    /// Request /healthz of the running daemon; exit code 0 if it is healthy, 1 if not.
    Healthcheck(HealthcheckArgs),
    /// Show what the running daemon does: device, policy in force, health, sinks.
    Status(StatusArgs),
    /// Let the running daemon read its policy again, and wait for its verdict.
    Reload(ReloadArgs),
    /// Keep the policy of the last `steerd reload --confirm`.
    Confirm(ConfirmArgs),
    /// Let an earlier policy come back, by default the one before.
    Rollback(RollbackArgs),
    /// List the policies that were in force: when, by whom, with which difference and at which cost.
    History(HistoryArgs),
    /// Show what it would cost to put a policy in the place of the running one, or of another one: flows,
    /// calls, time.
    Plan(PlanArgs),
    /// Add, remove and list rules of the running daemon, as far as its policy allows them.
    Rule(RuleArgs),
    /// Add, drain and list workers of the running daemon.
    Worker(WorkerArgs),
    /// Show rules, workers, sinks, ports, flows and drops of the running daemon with their rates, once a
    /// second; on a terminal until q is pressed, elsewhere once.
    Top(TopArgs),
    /// List the flows that the running daemon has installed, with their rules, queues and packets.
    Flows(FlowsArgs),
    /// Write the packets of a rule of the running daemon, or those that are dropped, to a file or a pipe as
    /// pcapng, until Ctrl-C or a limit.
    Capture(CaptureArgs),
    /// Show the ways that packets take through the running daemon, and compare each with the way that
    /// `explain` computes; exit code 1 if one differs.
    Trace(TraceArgs),
    /// Write the packets that the recorder of the running daemon has kept to a file or a pipe as pcapng.
    Record(RecordArgs),
    /// Write man pages and shell completions into a folder.
    #[command(hide = true)]
    Generate {
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::help(exit_status::RUN))]
pub(crate) struct RunArgs {
    /// The settings file [default: built-in settings only].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The policy file; overrides policy.file of the settings.
    #[arg(value_name = "POLICY", conflicts_with = "policy_flag", value_parser = parse_policy_path)]
    pub(crate) policy: Option<PathBuf>,
    /// The policy file, as POLICY.
    #[arg(long = "policy", id = "policy_flag", value_name = "FILE", value_parser = parse_policy_path)]
    pub(crate) policy_flag: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) variables: VariableArgs,
    /// Run the built-in demonstration: a soft NIC fed by a packet generator.
    #[arg(long, conflicts_with = "config")]
    pub(crate) demo: bool,
    /// Enforce the policy on a network interface, whatever its driver, by AF_XDP: packets that the policy
    /// steers or drops leave the kernel, all others never leave it.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["config", "demo", "device"])]
    pub(crate) interface: Option<String>,
    /// Let the NIC drop packets of drop rules by its own filters, where they can: such packets reach no core,
    /// and are not counted by rule. All others are left to the XDP program and the workers [default: off].
    #[arg(long, value_enum, value_name = "off|drop", requires = "interface")]
    pub(crate) nic_filters: Option<NicFilterUse>,
    /// The filter model of a policy whose groups have queues, or of --nic-filters drop.
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_filter_model, requires = "interface")]
    #[arg(help = filter_model_help("that of the driver"))]
    pub(crate) filter_model: Option<FilterModel>,
    /// End after this time, e.g. 500ms, 10s, 2m, 1h.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) run_for: Option<Duration>,
    /// Keep running when no port can receive anything more: after a capture played once, or traffic with a
    /// total.
    #[arg(long)]
    pub(crate) keep_running: bool,
    /// Measure what the engine and the workers spend their time on, by stage, and add it to the summary.
    #[arg(long, alias = "profile")]
    pub(crate) stage_times: bool,
    #[command(flatten)]
    pub(crate) printed: OutputArgs,
    /// The device to use; overrides device.name.
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// The HTTP address for metrics and state, "off" for none; overrides http.listen.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// The unix socket of the local API; overrides api.socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) api_socket: Option<PathBuf>,
    /// What to log, e.g. debug or steerd=debug,info; overrides log.filter.
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct VariableArgs {
    /// The value of a policy variable; overrides policy.variables of the settings. May be given several
    /// times.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub(crate) set: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    /// The policy file, "-" for standard input [default: policy.file of the settings given by --config].
    #[arg(value_name = "POLICY", required_unless_present = "config")]
    pub(crate) policy: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) variables: VariableArgs,
    /// The settings file, for the number of workers and the device.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The number of workers to compile for [default: that of the settings, else as many as the policy
    /// names].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: Option<u32>,
    /// Compile for a device model instead of the device of the settings, which then need not exist: ideal,
    /// mlx5 (ConnectX-4 and later), mlx4 (ConnectX-3), mana, bnxt_re, conservative, or a file that describes
    /// a device.
    #[arg(long, alias = "profile", value_name = "NAME|FILE", value_parser = parse_model)]
    pub(crate) model: Option<DeviceModel>,
    #[command(flatten)]
    pub(crate) printed: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::help(exit_status::CHECK))]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// A pcap or pcapng file with typical traffic, or "running" for the packets that the rules of the running
    /// daemon have counted: decide such packets in hardware rather than others, and show where they are
    /// decided [default: policy.traffic of the settings, which is not shown].
    #[arg(long, value_name = "CAPTURE|running", value_parser = parse_traffic)]
    pub(crate) traffic: Option<TrafficArg>,
    /// Check for a network interface, as `run --interface` puts the policy on it: also show for each rule who
    /// decides its packets, and whether the host receives them. The interface need not exist. For a policy
    /// whose groups have queues: for the driver, the queues and the room for filters of this interface.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["config", "model"])]
    pub(crate) interface: Option<String>,
    /// The unix socket of the API of the daemon that --traffic running asks; overrides api.socket of the
    /// settings.
    #[arg(long, value_name = "PATH")]
    pub(crate) api_socket: Option<PathBuf>,
    /// Fail on any of these: "warnings", "hybrid" rules, "hybrid=5%" where workers decide more of the packets
    /// of --traffic, without it of those drawn from the rules, or rules that are "shadowed" by others.
    #[arg(long, value_parser = parse_deny, value_delimiter = ',', value_name = "FINDING")]
    pub(crate) deny: Vec<Deny>,
    /// Print errors only: nothing on standard output, and no warnings. What --deny names still fails.
    #[arg(short, long, conflicts_with_all = ["format", "json"])]
    pub(crate) quiet: bool,
    /// With --interface: also show which drop rules the filters of the NIC carry out, as `run --nic-filters`
    /// does, and why not the others.
    #[arg(long, value_enum, value_name = "off|drop", requires = "interface")]
    pub(crate) nic_filters: Option<NicFilterUse>,
    /// The filter model of a policy whose groups have queues, or of ports with nic_filters = "drop".
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_filter_model)]
    #[arg(help = filter_model_help("that of the driver of --interface, without which it is `cautious`"))]
    pub(crate) filter_model: Option<FilterModel>,
    /// Skip the analysis of shadowed, redundant, conflicting and overlapping rules.
    #[arg(long)]
    pub(crate) no_analysis: bool,
    /// The settings of --config are for another host: leave out what a start needs of the host.
    #[arg(long, requires = "config")]
    pub(crate) offline: bool,
    /// With --config: check with the rights of this user on files and folders, as whom the daemon will run.
    /// Only root can.
    #[arg(long, value_name = "USER", requires = "config")]
    pub(crate) user: Option<String>,
    /// Print a JSON Schema of the language for editors, and nothing else.
    #[arg(long, exclusive = true)]
    pub(crate) print_schema: bool,
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::help(exit_status::TEST))]
pub(crate) struct TestArgs {
    /// The policy files, "-" for standard input [default: policy.file of the settings given by --config].
    #[arg(value_name = "POLICY", required_unless_present = "config")]
    pub(crate) policies: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) variables: VariableArgs,
    /// The settings file, for the number of workers and the device.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The number of workers, for tests of the worker [default: that of the settings, else as many as the
    /// policy names].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: Option<u32>,
    /// The device model, for tests of the worker and the host [default: the device of the settings, else
    /// ideal].
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_model)]
    pub(crate) model: Option<DeviceModel>,
    /// Also show which rules no test reaches, with a test for each that records what the policy does now, and
    /// how much of the packets of each rule tests are about.
    #[arg(long)]
    pub(crate) coverage: bool,
    /// A pcap or pcapng file: show of how many of its packets a test demands the decision.
    #[arg(long, value_name = "CAPTURE", requires = "coverage")]
    pub(crate) traffic: Option<PathBuf>,
    /// Change each rule in turn, and list the changes that no test notices, with a packet for each.
    #[arg(long)]
    pub(crate) mutate: bool,
    /// How long --mutate may take for a policy, e.g. 500ms, 10s, 2m, 1h.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s", requires = "mutate")]
    pub(crate) mutate_time: Duration,
    /// Also write the results to this file as JUnit XML; "-" for standard output, in place of the text.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) printed: OutputArgs,
}

impl TestArgs {
    /// Whether standard output has the results as JUnit XML alone.
    pub(crate) fn prints_junit(&self) -> bool {
        self.junit.as_deref() == Some(Path::new("-"))
    }
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::help(exit_status::LSP))]
pub(crate) struct LspArgs {
    /// The device model that policies are checked for: ideal, mlx5, mlx4, mana, bnxt_re, conservative, or a
    /// file that describes a device. Settings of the editor override this and the other options.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) model: Option<String>,
    /// The number of workers to compile for [default: that of the settings, else as many as the policy
    /// names].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: Option<u32>,
    #[command(flatten)]
    pub(crate) variables: VariableArgs,
    /// The settings file of a daemon, for the number of workers, the device and the variables.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Accepted, because some editors add it: there is no other way to talk to the server.
    #[arg(long, hide = true)]
    pub(crate) stdio: bool,
}

/// The packets that a policy is checked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrafficArg {
    Capture(PathBuf),
    /// The packets that the running daemon has counted.
    Running,
}

#[allow(clippy::unnecessary_wraps)]
fn parse_traffic(text: &str) -> Result<TrafficArg, std::convert::Infallible> {
    Ok(if text == "running" { TrafficArg::Running } else { TrafficArg::Capture(text.into()) })
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: steerd size --traffic typical.pcap --ns-per-packet 150 --times 10 policy.toml"
)]
pub(crate) struct SizeArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// A pcap or pcapng file with typical traffic; the policy is compiled for it, as by the setting
    /// policy.traffic.
    #[arg(long, value_name = "CAPTURE")]
    pub(crate) traffic: PathBuf,
    /// The time that a worker takes for a packet, in nanoseconds, as measured on the machine (steerd run
    /// --stage-times). Without it neither the number of workers nor losses are computed.
    #[arg(long, value_name = "NS", value_parser = parse_positive)]
    pub(crate) ns_per_packet: Option<f64>,
    /// The rate of all packets that the port receives, in packets per second [default: that of the capture].
    #[arg(long, value_name = "PPS", value_parser = parse_positive)]
    pub(crate) rate: Option<f64>,
    /// The factor of the rate.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = parse_positive)]
    pub(crate) times: f64,
    /// The load of the busiest worker that the recommended number of workers allows, as a percentage of its
    /// capacity.
    #[arg(long, value_name = "PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) max_load: u32,
    /// How many hash keys to try.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub(crate) keys: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: steerd balance --dry-run --traffic typical.pcap policy.toml")]
pub(crate) struct BalanceArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Show the moves and make none; required, because this version makes none.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// A pcap or pcapng file with typical traffic; the policy is compiled for it, as by the setting
    /// policy.traffic.
    #[arg(long, value_name = "CAPTURE")]
    pub(crate) traffic: PathBuf,
}

/// Findings that `check` can fail on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deny {
    Warnings,
    Hybrid,
    /// More packets decided by workers than so many hundredths of a percent.
    HybridShare(u32),
    Shadowed,
}

fn parse_deny(text: &str) -> Result<Deny, String> {
    let share = |text: &str| {
        let percent: f64 = text.strip_suffix('%')?.parse().ok()?;
        (0.0..=100.0).contains(&percent).then(|| Deny::HybridShare((percent * 100.0).round() as u32))
    };
    match text.split_once('=') {
        None => match text {
            "warnings" => Ok(Deny::Warnings),
            "hybrid" => Ok(Deny::Hybrid),
            "shadowed" => Ok(Deny::Shadowed),
            _ => Err("write warnings, hybrid, hybrid=5% or shadowed".to_owned()),
        },
        Some(("hybrid", text)) => {
            share(text).ok_or_else(|| "write a percentage from 0 to 100, such as hybrid=5%".to_owned())
        }
        Some(_) => Err("only hybrid takes a percentage, such as hybrid=5%".to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::help(exit_status::DIFF))]
pub(crate) struct DiffArgs {
    /// The old policy; "-" for standard input, for one of the two. With --running or --live the new one.
    #[arg(value_name = "OLD")]
    pub(crate) old: PathBuf,
    /// The new policy.
    #[arg(value_name = "NEW", required_unless_present_any = ["running", "live"], conflicts_with_all = ["running", "live"])]
    pub(crate) new: Option<PathBuf>,
    /// Compare with the policy that the running daemon has in force, as it was read, with its variables.
    #[arg(long)]
    pub(crate) running: bool,
    /// Compare as --running does, and count in a sample of the packets that the daemon receives how many each
    /// change would move; nothing is installed.
    #[arg(long)]
    pub(crate) live: bool,
    /// The time of the sample, at most 1h; Ctrl-C ends it earlier.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_sample_time, default_value = "30s", requires = "live")]
    pub(crate) sample_time: Duration,
    /// Sample one of this many packets [default: by their rate, so that there are about 1000 in a second].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "live")]
    pub(crate) one_in: Option<u32>,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) variables: VariableArgs,
    /// Also list rules that move between device and workers on a device model: ideal, mlx5, mlx4, mana,
    /// bnxt_re, conservative, or a file that describes a device [default with --workers: ideal; of --live:
    /// that of the daemon].
    #[arg(long, alias = "profile", value_name = "NAME|FILE", value_parser = parse_model)]
    pub(crate) model: Option<DeviceModel>,
    /// The number of workers that "all" means; also show rules that are decided elsewhere [default: as many
    /// as the policies name; of --live: that of the daemon].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: Option<u32>,
    /// Describe all regions, up to 4,096 of each pair of rules and 65,536 in all, not 16 and 4,096.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) printed: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Unsupported lines are reported on stderr; the exit code is still 0. Input of another format, or cut off, \
gives exit code 1 and no policy."
)]
pub(crate) struct ImportArgs {
    /// The format of the rules.
    #[arg(value_enum, value_name = "KIND")]
    pub(crate) kind: Import,
    /// The files, one after the other; "-" for standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Where the policy goes [default: standard output].
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["format", "json"])]
    pub(crate) output: Option<PathBuf>,
    /// nft: convert this base chain alone, as TABLE/NAME or FAMILY/TABLE/NAME [default: all base chains that
    /// received packets to the host meet].
    #[arg(long, value_name = "TABLE/NAME")]
    pub(crate) chain: Option<String>,
    /// nft: the interface of the port; rules of other interfaces do not apply [default: rules of any
    /// interface but lo may apply].
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// nft: an address of the host, once for each of them; chains of the hook input decide about packets to
    /// these alone [default: about all packets, and nothing is dropped there if the host forwards packets].
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Vec<IpAddr>,
    /// nft: take TCP connection requests (SYN without ACK) for packets of no connection, with the state new;
    /// rules behind one that accepts packets of connections then drop requests [default: are comments].
    #[arg(long)]
    pub(crate) syn_is_new: bool,
    /// Add a group of all workers, for rules that no device decides alone.
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// Add a sink of kind kernel, which returns packets to the host by this TAP interface.
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) kernel_sink: Option<String>,
    #[command(flatten)]
    pub(crate) printed: OutputArgs,
}

/// Formats that `import` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Import {
    /// A ClassBench filter set.
    Classbench,
    /// The output of `ethtool -n` and `ethtool --show-rxfh`.
    Ethtool,
    /// The output of `nft -j list ruleset`.
    Nft,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["packet", "hex", "pcap"]))]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// A packet by its fields, e.g. src=10.0.0.1,protocol=udp,dst_port=53; for tunnels vxlan_vni, gre_key,
    /// mpls, esp_spi, ..., and the fields of the inner packet with "inner." before them. An unknown name is
    /// answered with a list of all names.
    #[arg(long, value_name = "FIELD=VALUE,...")]
    pub(crate) packet: Option<String>,
    /// A frame in hexadecimal, starting with the destination MAC address; blanks and colons are ignored.
    #[arg(long, value_name = "BYTES")]
    pub(crate) hex: Option<String>,
    /// A pcap or pcapng file: a summary per rule and per worker.
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// With --pcap: a line for every packet.
    #[arg(long, requires = "pcap")]
    pub(crate) each: bool,
    /// The verdict of the XDP program on received packets, too, where the policy is enforced on a network
    /// interface (`run --interface`, the wire af_xdp): pass, drop, or redirect to the engine.
    #[arg(long, conflicts_with = "direction")]
    pub(crate) xdp: bool,
    /// The direction: received by the port, or sent by the host. Only egress rules and sniffers apply to sent
    /// packets.
    #[arg(long, value_enum, value_name = "DIRECTION", default_value_t = DirectionArg::Ingress)]
    pub(crate) direction: DirectionArg,
}

/// The direction of a packet, as in rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectionArg {
    Ingress,
    Egress,
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::help(exit_status::DOCTOR))]
pub(crate) struct DoctorArgs {
    /// Examine the host for `run --interface NAME` [default: without --config, the interface of the running
    /// daemon].
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The file, a tar archive in gzip for its owner alone [default: steerd-report-SECONDS.tar.gz].
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Replace a file of this name.
    #[arg(long)]
    pub(crate) force: bool,
    /// Keep addresses, names of hosts and comments. Secrets are removed all the same.
    #[arg(long)]
    pub(crate) no_redact: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HealthcheckArgs {
    /// The settings file of the daemon, for http.listen [default: built-in settings only].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The address to connect to; overrides http.listen.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
}

/// The running daemon that a command talks to.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ApiArgs {
    /// The settings file of the daemon, for api.socket [default: built-in settings only].
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The unix socket of the daemon's API; overrides api.socket.
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) api_socket: Option<PathBuf>,
}

/// The form of what a command prints. The same options for all commands.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct OutputArgs {
    /// The output format.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The same as --format json.
    #[arg(long, global = true, conflicts_with = "format")]
    json: bool,
}

impl OutputArgs {
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { self.format }
    }

    pub(crate) fn is_json(self) -> bool {
        self.format() == Format::Json
    }
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::help(exit_status::RELOAD))]
pub(crate) struct ReloadArgs {
    /// Let the policy before come back after this time unless `steerd confirm` comes, e.g. 60s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "dry_run")]
    pub(crate) confirm: Option<Duration>,
    /// Show what the reload would do and cost, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Reload although a set has changed by more than its max_change.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::help(exit_status::RELOAD))]
pub(crate) struct ConfirmArgs {
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::help(exit_status::RELOAD))]
pub(crate) struct RollbackArgs {
    /// How many policies to go back; `steerd history` lists them. Left out: the policy before, unless that
    /// was not confirmed.
    #[arg(value_name = "N")]
    pub(crate) back: Option<usize>,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The new policy, "-" for standard input.
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
    /// The old policy; without it the one that the running daemon has in force.
    #[arg(long, value_name = "OLD")]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) variables: VariableArgs,
    /// The device model to plan for, with --from.
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_model, requires = "from", default_value = "mlx5")]
    pub(crate) model: DeviceModel,
    /// The number of workers, with --from [default: as many as the policies name].
    #[arg(long, value_name = "N", requires = "from", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: Option<u32>,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RuleArgs {
    #[command(subcommand)]
    pub(crate) command: RuleCommand,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RuleCommand {
    /// Add a rule, which acts when the command returns: steerd rule add --action drop src=192.0.2.1
    Add(RuleAddArgs),
    /// Add the rules of a file, one JSON object per line as docs/reference/api.md describes it; "-" for
    /// standard input.
    Load {
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Remove rules by their ids, or one by its match.
    Del {
        /// The ids, as `rule list` shows them: the id that `rule add` was given, or else the match, as in
        /// src:192.0.2.1. FIELD=VALUE arguments, as of `rule add`, are the match of one rule.
        #[arg(value_name = "ID|FIELD=VALUE", required = true)]
        ids: Vec<String>,
    },
    /// List all rules with their packets, or one.
    List {
        #[arg(value_name = "ID|FIELD=VALUE")]
        id: Option<String>,
    },
    /// Remove all rules; for users that are not admins, their own.
    Flush {
        /// Only the rules of this user id.
        #[arg(long, value_name = "UID")]
        owner: Option<u32>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RuleAddArgs {
    /// The packets: src, dst, protocol, src_port, dst_port, vlan, each as FIELD=VALUE.
    #[arg(value_name = "FIELD=VALUE", required = true, value_parser = parse_variable)]
    pub(crate) matches: Vec<(String, String)>,
    /// What it does with them: "drop", "kernel" or "steer GROUP".
    #[arg(long, value_name = "ACTION")]
    pub(crate) action: String,
    /// The id, by which the rule is replaced and removed [default: the match].
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Apply it to the other direction of the connection too.
    #[arg(long)]
    pub(crate) both: bool,
    /// Remove it after this time, e.g. 30s, 10m, 1h.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
    /// Remove it when no packet has matched for this time.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) idle: Option<Duration>,
    /// Any text, which `rule list` shows.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) comment: String,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(subcommand)]
    pub(crate) command: WorkerCommand,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Put the first spare worker to work: it gets its part of the traffic when the command returns.
    Add {
        /// The core that it is pinned to [default: none].
        #[arg(value_name = "CORE")]
        core: Option<usize>,
    },
    /// Let a worker finish what it has, and make it spare: it gets no new packets when the command returns.
    Drain {
        #[arg(value_name = "N")]
        worker: u32,
    },
    /// List the workers with their cores, groups and packets.
    List,
}

/// A page of `steerd top`, in the order of the keys that show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopPage {
    #[default]
    Rules,
    Workers,
    Sinks,
    Ports,
    Flows,
    Drops,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The page to begin with; where it prints once, the only one [default: begin with rules, print all].
    #[arg(long, value_enum, value_name = "PAGE")]
    pub(crate) page: Option<TopPage>,
    /// Sort the rows of the page by this column, such as packets/s: numbers from the largest, texts from A.
    #[arg(long, value_name = "COLUMN", requires = "page")]
    pub(crate) sort: Option<String>,
    /// Reverse the order.
    #[arg(long, requires = "sort")]
    pub(crate) reverse: bool,
    /// Only rows that have this text, in capitals or not, in one of their columns of text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Print at most N rows of each page, once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rows: Option<u32>,
    /// Print once, on a terminal too: rates over about a second.
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: steerd capture dns -w - | tshark -i -")]
pub(crate) struct CaptureArgs {
    /// A rule of the policy in force whose packets workers receive. With --dropped packets by the keys of a
    /// `match` of a policy, e.g. 'dst_port = 53, src = "10.0.0.0/8"'; by default all.
    #[arg(value_name = "RULE|MATCH", required_unless_present = "dropped")]
    pub(crate) packets: Option<String>,
    /// Packets that are dropped by the device or by a worker, or lost before a worker or a kernel sink got
    /// them, each with the reason as a comment.
    #[arg(long)]
    pub(crate) dropped: bool,
    /// The file; "-" for standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,
    /// The most bytes of a packet that are written.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) snap: Option<u32>,
    /// End after this many packets.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after this many seconds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(crate) seconds: Option<u64>,
    /// Write one of this many packets.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) one_in: Option<u32>,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: steerd trace 'protocol = \"udp\", dst_port = 53'")]
pub(crate) struct TraceArgs {
    /// The packets, by the keys of a `match` of a policy, e.g. 'dst_port = 53, src = "10.0.0.0/8"'; by
    /// default all.
    #[arg(value_name = "MATCH")]
    pub(crate) matches: Option<String>,
    /// End after this many packets.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,
    /// End after this many seconds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(crate) seconds: Option<u64>,
    /// Show one of this many packets.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) one_in: Option<u32>,
    /// Only packets that are dropped by the device or by a worker, or lost before a worker or a kernel sink
    /// got them.
    #[arg(long)]
    pub(crate) dropped: bool,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: steerd record --last 10s 'dst_port = 53' -w before.pcapng")]
pub(crate) struct RecordArgs {
    /// The packets, by the keys of a `match` of a policy, e.g. 'dst_port = 53, src = "10.0.0.0/8"'; by
    /// default all.
    #[arg(value_name = "MATCH")]
    pub(crate) matches: Option<String>,
    /// Only packets of this last time; by default all that are kept.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) last: Option<Duration>,
    /// The file, which is replaced as a whole; "-" for standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: PathBuf,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FlowsArgs {
    /// Only the flows of this rule.
    #[arg(long, value_name = "NAME")]
    pub(crate) rule: Option<String>,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// The settings file whose soft NIC is listed too.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Try every field and value of the verbs on this device, with objects that affect no other program, show
    /// the results, and write a device model, which `--model` reads.
    #[arg(long, value_name = "NAME")]
    pub(crate) probe: Option<String>,
    /// Find out what the receive filters (ntuple rules) of this interface match, by filters that no real
    /// packet matches, and print a filter model, which --filter-model reads. The interface must have no
    /// filters.
    #[arg(long, value_name = "INTERFACE", conflicts_with_all = ["probe", "format", "json"])]
    pub(crate) probe_filters: Option<String>,
    /// Measure this device, or that of this interface, and print a report as TOML: what it is, its model and
    /// answers, and how fast it installs flows. Without --peer, no packet of others is touched.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["probe", "probe_filters", "output", "format", "json"])]
    pub(crate) report: Option<String>,
    /// With --report: an interface that reaches the port of the device (a cable, or another function of the
    /// NIC), or `link:NAME`. The whole conformance suite and the receive rate of a worker are in the report
    /// then. The port must have no other traffic.
    #[arg(long, value_name = "INTERFACE", requires = "report")]
    pub(crate) peer: Option<String>,
    /// With --report: fewer flows and shorter times, to try it out.
    #[arg(long, requires = "report")]
    pub(crate) quick: bool,
    /// Check reports that `--report` has printed; exit code 1 if one has a problem.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["probe", "probe_filters", "report", "output", "format", "json"])]
    pub(crate) validate_report: Vec<PathBuf>,
    /// The file for the model, which must not exist; "-" prints the model in place of the results. [default:
    /// NAME.toml]
    #[arg(long, value_name = "FILE", requires = "probe")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) printed: OutputArgs,
}

/// The use of the receive filters of a port's interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NicFilterUse {
    /// None.
    #[default]
    Off,
    /// The NIC drops packets of drop rules where its filters can.
    Drop,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// The help of --filter-model. `default`: the model without the option.
fn filter_model_help(default: &str) -> String {
    let names = FilterModel::names().join(", ");
    format!(
        "For a policy whose groups have queues, and for the filters of the NIC below drop rules: the filter model, a name \
         ({names}) or a file [default: {default}]"
    )
}

/// A filter model by name or from a file.
fn parse_filter_model(text: &str) -> Result<FilterModel, String> {
    use std::error::Error as _;
    FilterModel::named_or_file(text).map_err(|error| match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })
}

/// A device model by name or from a file; errors with their causes, of which clap prints only the first.
pub(crate) fn parse_model(text: &str) -> Result<DeviceModel, String> {
    use std::error::Error as _;
    DeviceModel::named_or_file(text).map_err(|error| match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })
}

/// The path of a policy that is read again at each reload.
fn parse_policy_path(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => {
            Err("a reload reads the policy again, which standard input does not allow: name a file"
                .to_owned())
        }
        path => Ok(path.into()),
    }
}

/// `name=value`
fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err("expected a name and a value, e.g. uplink=42".to_owned()),
    }
}

/// A finite number greater than 0.
fn parse_positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("must be greater than 0".to_owned()) }
}

/// `500ms`, `10s`, `2m`, `1h`; a bare number means seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 =
        number.parse().map_err(|_| "expected a number and a unit: 500ms, 10s, 2m, 1h".to_owned())?;
    let milliseconds_per_unit = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("unknown unit '{unit}': use ms, s, m or h")),
    };
    let milliseconds = number.checked_mul(milliseconds_per_unit).ok_or("too long")?;
    if milliseconds == 0 {
        return Err("must be longer than zero".into());
    }
    Ok(Duration::from_millis(milliseconds))
}

/// The longest sample of live packets.
const SAMPLE_TIME_MAX: Duration = Duration::from_secs(3600);

fn parse_sample_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        time if time > SAMPLE_TIME_MAX => Err("must be at most 1h".to_owned()),
        time => Ok(time),
    }
}

/// Writes the man pages and the completions into a folder. `settings`: the documented default settings.
pub(crate) fn generate(folder: &Path, settings: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    manual::generate(Cli::command(), settings, folder)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut Cli::command(), "steerd", folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("7"), Ok(Duration::from_secs(7)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        for bad in ["", "s", "0s", "10 s", "3d", "-1s", "99999999999999999999s", "18446744073709551615h"] {
            assert!(parse_duration(bad).is_err(), "{bad:?} must be refused");
        }
        assert_eq!(parse_sample_time("1h"), Ok(SAMPLE_TIME_MAX));
        assert!(parse_sample_time("3601s").is_err());
    }

    #[test]
    fn demo_and_config_exclude_each_other() {
        assert!(Cli::try_parse_from(["steerd", "run", "--demo", "--config", "x"]).is_err());
        assert!(Cli::try_parse_from(["steerd", "run", "--demo", "--for", "2s"]).is_ok());
        assert!(Cli::try_parse_from(["steerd", "check"]).is_err());
        assert!(Cli::try_parse_from(["steerd", "check", "--config", "x"]).is_ok());
        assert!(Cli::try_parse_from(["steerd", "explain", "p", "--hex", "00", "--pcap", "f"]).is_err());
    }
}

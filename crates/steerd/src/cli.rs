//! The command line: what an operator can type, and nothing else.
//!
//! `main` parses it and hands each command to the module that does the work. This file reads no
//! file and decides nothing; exit codes are documented here because `--help` prints them, and what the
//! commands print is described in docs/commands.md.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

const EXIT_CODES: &str = "\
Exit codes:
  0  success; diff: the policies do the same
  1  the policy has errors, the device cannot hold it, or check finds what --deny names;
     diff: the policies differ; explain and import: the input cannot be read;
     healthcheck: the daemon is not healthy, or does not answer
  2  the command line is wrong; diff: a policy has errors, or no answer was found
  3  the settings are wrong (file, STEERD_ variable or flag)
  4  the device: not there, port down, no permission, too few queues
  5  a worker: core not present, not enough memory or memory lock
  6  the HTTP address cannot be used
  7  something failed while running
  130  ended at once by a second Ctrl-C";

const CHECK_EXIT_CODES: &str = "\
Exit codes, for pipelines:
  0  the device can do it, and nothing that --deny names was found
  1  the policy has errors, the device cannot do it, or --deny names what was found
  2  the command line is wrong
  3  the settings are wrong
  4  the device of the settings is not there";

const DIFF_EXIT_CODES: &str = "\
Exit codes, as diff(1)'s:
  0  both policies treat every packet alike, however they are written
  1  they differ; with --profile or --workers also: a rule is decided elsewhere
  2  a policy has errors, or it would take too long to tell";

/// Steers packets past the kernel to pinned workers, as a TOML policy says.
#[derive(Debug, Parser)]
#[command(name = "steerd", version, about, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put the policy on the device and run the workers until SIGTERM or Ctrl-C.
    Run(RunArgs),
    /// Say for every rule of a policy whether and how the device can do it.
    Check(CheckArgs),
    /// Say where a packet (or every packet of a capture) would go, and why.
    Explain(ExplainArgs),
    /// Say which traffic two policies treat differently, as regions of packets with an example of each.
    Diff(DiffArgs),
    /// Write the rules of another tool as a policy.
    Import(ImportArgs),
    /// List libibverbs' devices and the soft NIC of the settings.
    Devices(DevicesArgs),
    /// Ask the running daemon for /healthz; exit code 0 if it is healthy, 1 if not.
    Healthcheck(HealthcheckArgs),
    /// Write man pages and shell completions into a folder.
    #[command(hide = true)]
    Generate {
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The settings file [default: built-in settings only].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The policy file; overrides policy.file of the settings.
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) variables: VariableArgs,
    /// Run the built-in demonstration: a soft NIC fed by a packet generator.
    #[arg(long, conflicts_with = "config")]
    pub(crate) demo: bool,
    /// End by itself after this time, e.g. 500ms, 10s, 2m, 1h.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) run_for: Option<Duration>,
    /// Go on when no port can receive anything more: a capture that is played once, or traffic with a total.
    #[arg(long)]
    pub(crate) keep_running: bool,
    /// How to print the summary; with json there is no live table.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// The device to steer on; overrides device.name.
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// The HTTP address for metrics and state, "off" for none; overrides http.listen.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// What to log, e.g. debug or steerd=debug,info; overrides log.filter.
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct VariableArgs {
    /// The value of a variable of the policy, before that of policy.variables in the settings; may be
    /// given several times.
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
    /// The settings file that says how many workers there are.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How many workers to compile for [default: the settings', else what the policy names].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: Option<u32>,
    /// Compile for a device of this kind instead of the settings' own, which need not be there then.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) profile: Option<Profile>,
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = CHECK_EXIT_CODES)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Fail if there is any of these: "warnings", "hybrid" rules, or rules that are "shadowed" by others.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FINDING")]
    pub(crate) deny: Vec<Deny>,
    /// Print errors only: nothing on standard output, and no warnings. What --deny names still fails.
    #[arg(short, long, conflicts_with = "format")]
    pub(crate) quiet: bool,
    /// Leave out how rules lie to each other: which are never reached, needless or in conflict.
    #[arg(long)]
    pub(crate) no_analysis: bool,
    /// Print a JSON Schema of the language for editors, and nothing else.
    #[arg(long, exclusive = true)]
    pub(crate) print_schema: bool,
}

/// What `check` can be told to fail for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Deny {
    Warnings,
    Hybrid,
    Shadowed,
}

#[derive(Debug, Args)]
#[command(after_help = DIFF_EXIT_CODES)]
pub(crate) struct DiffArgs {
    /// The policy before; "-" for standard input, of one of the two.
    #[arg(value_name = "OLD")]
    pub(crate) old: PathBuf,
    /// The policy after.
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
    #[command(flatten)]
    pub(crate) variables: VariableArgs,
    /// Also say which rules are decided elsewhere on a device of this kind [default with --workers: ideal].
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) profile: Option<Profile>,
    /// How many workers "all" are; also say which rules are decided elsewhere [default: what the policies name].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: Option<u32>,
    /// Describe all regions, up to 4,096 of each pair of rules and 65,536 in all, not 16 and 4,096.
    #[arg(long)]
    pub(crate) all: bool,
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "What does not carry over is told on stderr, by line; that is no failure.")]
pub(crate) struct ImportArgs {
    /// What the rules are written as.
    #[arg(value_enum, value_name = "KIND")]
    pub(crate) kind: Import,
    /// The files, one after the other; "-" for standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Where the policy goes [default: standard output].
    #[arg(short, long, value_name = "FILE", conflicts_with = "format")]
    pub(crate) output: Option<PathBuf>,
    /// How to print the answer: the policy itself, or an object with the policy and what does not carry over.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

/// What `import` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Import {
    /// A ClassBench filter set.
    Classbench,
    /// What `ethtool -n` and `ethtool --show-rxfh` print.
    Ethtool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["packet", "hex", "pcap"]))]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// A packet by its fields, e.g. src=10.0.0.1,protocol=udp,dst_port=53; of tunnels vxlan_vni, gre_key,
    /// mpls, esp_spi, ..., and with "inner." before them those of the packet inside. A wrong name is
    /// answered with all there are.
    #[arg(long, value_name = "FIELD=VALUE,...")]
    pub(crate) packet: Option<String>,
    /// A frame in hexadecimal, from the destination MAC on; blanks and colons are ignored.
    #[arg(long, value_name = "BYTES")]
    pub(crate) hex: Option<String>,
    /// A pcap or pcapng file: a summary per rule and per worker.
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// With --pcap: a line for every packet.
    #[arg(long, requires = "pcap")]
    pub(crate) each: bool,
    /// Which way it goes: received by the port, or sent by the host. Of what is sent only egress rules and
    /// sniffers speak; all else leaves.
    #[arg(long, value_enum, value_name = "DIRECTION", default_value_t = Way::Ingress)]
    pub(crate) direction: Way,
}

/// The way of a packet, as rules call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    Ingress,
    Egress,
}

#[derive(Debug, Args)]
pub(crate) struct HealthcheckArgs {
    /// The settings file of the daemon, for http.listen [default: built-in settings only].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The address to ask; overrides http.listen.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// The settings file whose soft NIC is listed too.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Try every field and value of the verbs on this device, by objects that disturb nobody, and say what it answers.
    #[arg(long, value_name = "NAME")]
    pub(crate) probe: Option<String>,
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

/// The devices whose limits are known without asking one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Takes whatever the verbs API can say, as the soft NIC does.
    Ideal,
    /// ConnectX-4 and later, BlueField.
    Mlx5,
    /// ConnectX-3.
    Mlx4,
    /// A device that is not known: what all known ones can do.
    Conservative,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// `name=value`
fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err("a name and a value are wanted: uplink=42".to_owned()),
    }
}

/// `500ms`, `10s`, `2m`, `1h`; a bare number means seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 =
        number.parse().map_err(|_| "a number and a unit are wanted: 500ms, 10s, 2m, 1h".to_owned())?;
    let milliseconds_per_unit = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("unknown unit '{unit}': use ms, s, m or h")),
    };
    let milliseconds = number.checked_mul(milliseconds_per_unit).ok_or("too long")?;
    if milliseconds == 0 {
        return Err("must be longer than nothing".into());
    }
    Ok(Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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

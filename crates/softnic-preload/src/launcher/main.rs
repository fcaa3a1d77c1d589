//! `softnic`: runs a command that finds a soft NIC through its own, unmodified libibverbs.
//!
//! `softnic exec --wire link:x:a -- ibv_devinfo`. It sets up the device, then becomes the command: the exit
//! code is the command's, and nothing is left behind, because the plugin's files live in a mount namespace of
//! the command's own.

#![forbid(unsafe_code)]

mod plugin;
mod report;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use device_model::{BaseModel, DeviceModel};
use softnic::lazy_nic::{METHOD_MLX5, Settings, variable};
use softnic_verbs::preload::launch::{self, LaunchError};

/// The exit code of a shell for a command that it cannot find, or not run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// An error before the command runs.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Settings(#[from] softnic::SoftNicError),
    #[error(transparent)]
    Launch(LaunchError),
    #[error("{0}; use --method plugin")]
    NotPreloadable(LaunchError),
    #[error("the plugin method cannot be set up: {reason}; --method preload needs no privilege")]
    Plugin { reason: String },
    #[error("the mlx5 method cannot be used: {reason}")]
    Mlx5 { reason: String },
    #[error("{step}")]
    Step { step: String, source: std::io::Error },
    #[error("{command}")]
    Command { command: String, source: std::io::Error },
}

#[derive(Parser)]
#[command(
    name = "softnic",
    version,
    about = "Run programs with a soft NIC under their unmodified libibverbs"
)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a command that sees a soft NIC
    Exec(Exec),
    /// List which methods work here, for this user, and what the options take
    List,
    /// Set the plugin method up and end: whether it works (used by `exec` and `list`)
    #[command(hide = true)]
    Probe,
    /// Write the man pages into a folder
    #[command(hide = true)]
    Generate {
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

#[derive(Args)]
struct Exec {
    /// How the command gets the device
    #[arg(long, alias = "door", value_enum, default_value_t = Method::Auto)]
    method: Method,
    #[command(flatten)]
    device: DeviceOptions,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Each overrides a variable of the same name, `SOFTNIC_WIRE` for `--wire`; the option wins.
#[derive(Args)]
struct DeviceOptions {
    /// The other end of the port: `null`, `loopback`, `generator[:RATE]`, `pcap:FILE`, `af_packet:INTERFACE`,
    /// `af_xdp:INTERFACE`, `link:NAME:a|b`, or a table as in steerd's settings
    #[arg(long)]
    wire: Option<String>,
    /// The device's name [default: softnic0, or mlx5_0 with the method mlx5]
    #[arg(long)]
    name: Option<String>,
    /// What the device refuses: `ideal`, `mlx5`, `mlx4`, or the file of a device model [default: ideal, or
    /// mlx5 with that method]
    #[arg(long)]
    personality: Option<String>,
    /// Bytes of the port's MTU [default: what the wire can carry]
    #[arg(long)]
    mtu: Option<String>,
    /// The core of the device's engine [default: any]
    #[arg(long)]
    core: Option<String>,
    /// Seconds that opening the device waits until the wire is up [default: 2]
    #[arg(long)]
    wait: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Method {
    /// plugin where it works, otherwise preload
    Auto,
    /// A provider that the library itself finds, in a private mount namespace
    Plugin,
    /// Functions that come before the library's: no namespace, no privilege
    Preload,
    /// rdma-core's own mlx5 provider over a model of a ConnectX: no namespace, no privilege
    Mlx5,
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::UnfitPath { .. } => Self::NotPreloadable(error),
            LaunchError::NoMlx5 => Self::Mlx5 { reason: error.to_string() },
            error => Self::Launch(error),
        }
    }
}

impl DeviceOptions {
    /// The variables that the options stand for.
    fn variables(&self) -> Vec<(&'static str, String)> {
        // The command may change its folder before it opens the device.
        let personality = self.personality.as_ref().map(|name| match std::path::absolute(name) {
            Ok(path) if DeviceModel::is_path(name) => path.to_string_lossy().into_owned(),
            _ => name.clone(),
        });
        let wire = self.wire.as_ref().map(|wire| match wire.strip_prefix("pcap:").map(std::path::absolute) {
            Some(Ok(path)) => format!("pcap:{}", path.display()),
            _ => wire.clone(),
        });
        let all = [
            (variable::WIRE, &wire),
            (variable::NAME, &self.name),
            (variable::PERSONALITY, &personality),
            (variable::MTU, &self.mtu),
            (variable::CORE, &self.core),
            (variable::WAIT, &self.wait),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
    }

    fn settings(&self, method: Method) -> Result<Settings, Error> {
        let variables = self.variables();
        let given = |name: &str| {
            if name == variable::METHOD {
                return (method == Method::Mlx5).then(|| METHOD_MLX5.to_owned());
            }
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
        };
        let inherited = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
        // The method of a launcher that this one was started under is not inherited.
        let is_given = |name: &str| name == variable::METHOD;
        Ok(Settings::read(|name| {
            given(name).or_else(|| if is_given(name) { None } else { inherited(name) })
        })?)
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().action {
        Action::Exec(exec) => run(&exec),
        Action::List => report::print(),
        // Whatever the settings: those are not what is tried.
        Action::Probe => launch::library()
            .map_err(Error::from)
            .and_then(|library| plugin::enter(&Settings::read(|_| None)?, &library)),
        Action::Generate { folder } => clap_mangen::generate_to(Cli::command(), &folder).map_err(|source| {
            Error::Step { step: format!("cannot write into {}", folder.display()), source }
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            softnic::lazy_nic::print_error(&error);
            ExitCode::from(match &error {
                Error::Command { source, .. } if source.kind() == std::io::ErrorKind::NotFound => NOT_FOUND,
                _ => NOT_RUNNABLE,
            })
        }
    }
}

/// Becomes the command. Returns only if that fails.
fn run(exec: &Exec) -> Result<(), Error> {
    let settings = exec.device.settings(exec.method)?;
    let library = launch::library()?;
    if exec.method == Method::Mlx5 {
        check_mlx5(&settings)?;
    }
    let plugin = match exec.method {
        Method::Auto => plugin::probe().is_ok(),
        Method::Plugin => {
            plugin::probe().map_err(|reason| Error::Plugin { reason })?;
            true
        }
        Method::Preload | Method::Mlx5 => false,
    };
    let Some((program, arguments)) = exec.command.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).envs(exec.device.variables());
    if plugin {
        plugin::enter(&settings, &library)?;
        command.env(variable::METHOD, "plugin").env("SYSFS_PATH", plugin::SYSFS);
        // The older name for the same list would win.
        command.env("IBV_DRIVERS", plugin::DRIVER).env_remove("RDMAV_DRIVERS");
        command.envs([launch::preloading(Path::new(plugin::LIBRARY))?]);
    } else if exec.method == Method::Mlx5 {
        command.envs(launch::mlx5_variables(&library)?);
    } else {
        command.env(variable::METHOD, "preload").envs([launch::preloading(&library)?]);
    }
    let source = command.exec();
    Err(Error::Command { command: program.to_string_lossy().into_owned(), source })
}

/// Refuses what a device below rdma-core's mlx5 provider cannot be.
fn check_mlx5(settings: &Settings) -> Result<(), Error> {
    if settings.personality.model().personality != BaseModel::Mlx5 {
        let reason = format!("its device has the personality mlx5, not {}", settings.personality);
        return Err(Error::Mlx5 { reason });
    }
    Ok(launch::check_mlx5()?)
}

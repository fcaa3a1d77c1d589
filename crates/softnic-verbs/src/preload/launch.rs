//! How a program is started with the shared library preloaded: where the library is, what must be installed,
//! and the variables of its environment. Used by the launcher, and by programs that start themselves again.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use softnic::lazy_nic::{METHOD_MLX5, variable};

use super::sysfs::MLX5_ROOT;

/// Names the library outright.
const LIBRARY: &str = "SOFTNIC_LIBRARY";
/// Where it may be from the program's folder: cargo's two places, then that of a package.
const PLACES: [&str; 3] =
    ["libsoftnic_preload.so", "deps/libsoftnic_preload.so", "../lib/softnic/libsoftnic-rdmav34.so"];

/// With it libibverbs loads rdma-core's mlx5 provider (the default of `IBV_CONFIG_DIR`).
const MLX5_DRIVER: &str = "/etc/libibverbs.d/mlx5.driver";

/// The variables of ld.so(8) and of libibverbs.
const LD_PRELOAD: &str = "LD_PRELOAD";
const SYSFS_PATH: &str = "SYSFS_PATH";

/// Why a program cannot be started with the library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The library is not there.
    #[error("the library {names} is not beside {}: build it (cargo build -p softnic-preload), or name it in SOFTNIC_LIBRARY", exe.display())]
    NoLibrary {
        /// The places that were looked at, from the program's folder.
        names: String,
        /// The program.
        exe: PathBuf,
    },
    /// The library that the environment names is not there.
    #[error("{LIBRARY}={}", path.display())]
    NamedLibrary {
        /// The name.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The program does not know its own file.
    #[error("this program's own file cannot be found")]
    OwnFile {
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The dynamic linker cannot preload a library of that path.
    #[error("{} cannot be preloaded: the dynamic linker takes no path with a space or a colon", path.display())]
    UnfitPath {
        /// The library.
        path: PathBuf,
    },
    /// rdma-core's mlx5 provider is not there.
    #[error(
        "rdma-core's mlx5 provider is not installed: there is no {MLX5_DRIVER} (package ibverbs-providers)"
    )]
    NoMlx5,
}

/// The library; of several the newest, because cargo keeps one of its two copies behind.
///
/// # Errors
/// No library was found.
pub fn library() -> Result<PathBuf, LaunchError> {
    if let Some(path) = std::env::var_os(LIBRARY).map(PathBuf::from) {
        return path.canonicalize().map_err(|source| LaunchError::NamedLibrary { path, source });
    }
    let exe = std::env::current_exe().map_err(|source| LaunchError::OwnFile { source })?;
    let folder = exe.parent().unwrap_or(&exe).to_owned();
    let found = PLACES.iter().filter_map(|place| {
        let path = folder.join(place).canonicalize().ok()?;
        let modified = path.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        Some((modified, path))
    });
    let newest = found.max_by_key(|(modified, _)| *modified);
    newest.map(|(_, path)| path).ok_or_else(|| LaunchError::NoLibrary { names: PLACES.join(" or "), exe })
}

/// Checks that the dynamic linker can preload a library of this path (ld.so(8), LD_PRELOAD).
///
/// # Errors
/// The path has a space or a colon.
pub fn check_path(library: &Path) -> Result<(), LaunchError> {
    if library.to_string_lossy().contains([' ', ':']) {
        return Err(LaunchError::UnfitPath { path: library.to_owned() });
    }
    Ok(())
}

/// Checks that rdma-core's mlx5 provider is installed.
///
/// # Errors
/// It is not installed.
pub fn check_mlx5() -> Result<(), LaunchError> {
    if Path::new(MLX5_DRIVER).exists() { Ok(()) } else { Err(LaunchError::NoMlx5) }
}

/// The variable with which the dynamic linker preloads a library, before those that it preloads already.
///
/// # Errors
/// As [`check_path`].
pub fn preloading(library: &Path) -> Result<(&'static str, OsString), LaunchError> {
    check_path(library)?;
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(LD_PRELOAD).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    Ok((LD_PRELOAD, list))
}

/// The variables with which the preloaded library answers rdma-core's mlx5 provider, besides the device's
/// own.
///
/// # Errors
/// As [`check_path`].
pub fn mlx5_variables(library: &Path) -> Result<[(&'static str, OsString); 3], LaunchError> {
    Ok([(variable::METHOD, METHOD_MLX5.into()), (SYSFS_PATH, MLX5_ROOT.into()), preloading(library)?])
}

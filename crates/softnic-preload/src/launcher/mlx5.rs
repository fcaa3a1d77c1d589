//! rdma-core's own mlx5 provider: what must be there for it, and which settings go with it. The preloaded library does the rest.

use std::path::Path;

use softnic::Personality;
use softnic::preload::Settings;

use crate::Error;

/// With it libibverbs loads the provider (rdma-core's default of `IBV_CONFIG_DIR`).
const DRIVER: &str = "/etc/libibverbs.d/mlx5.driver";

/// Whether the provider is installed; otherwise why not.
pub(crate) fn probe() -> Result<(), String> {
    if Path::new(DRIVER).exists() {
        return Ok(());
    }
    Err(format!(
        "rdma-core's mlx5 provider is not installed: there is no {DRIVER} (package ibverbs-providers)"
    ))
}

/// Refuses settings that a device below that provider cannot have.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    if settings.personality != Personality::Mlx5 {
        let reason = format!("its device has the personality mlx5, not {}", settings.personality);
        return Err(Error::Mlx5 { reason });
    }
    probe().map_err(|reason| Error::Mlx5 { reason })
}

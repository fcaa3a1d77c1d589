//! The launcher's methods: the name of the device that a program sees by each, and command lines.

use std::path::Path;
use std::process::Command;

/// A method of the launcher.
#[derive(Clone, Copy)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) device: &'static str,
}

pub(crate) const PLUGIN: Method = Method { name: "plugin", device: "softnic0" };
pub(crate) const PRELOAD: Method = Method { name: "preload", device: "softnic0" };
/// rdma-core's own provider.
pub(crate) const MLX5: Method = Method { name: "mlx5", device: "mlx5_0" };

impl Method {
    /// `softnic exec` up to the command, which the caller adds.
    pub(crate) fn exec(self, launcher: &Path, wire: &str) -> Command {
        let mut command = Command::new(launcher);
        command.args(["exec", "--method", self.name, "--wire", wire, "--"]);
        command
    }
}

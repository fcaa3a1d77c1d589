//! What libibverbs reads of sysfs about one device (rdma-core libibverbs/init.c, verbs.c): written to a tree
//! in the command's mount namespace (plugin), or answered by the preloaded library (mlx5).

use std::fmt::Write as _;

use softnic::lazy_nic::{LazyNic, Settings};
use softnic::objects::attributes::{DEFAULT_PKEY, GIDS, LINK_LOCAL, PKEYS};

use crate::device::SYSFS_ABI;

/// `PCI_VENDOR_ID_MELLANOX` and ConnectX-5, which rdma-core's mlx5 provider looks for.
const MLX5_MODALIAS: &str = "pci:v000015B3d00001017sv000015B3sd00000001bc02sc00i00";

/// The numbers of /dev/full, which is in the place of a device's command channel.
pub const COMMAND_DEVICE: (u32, u32) = (1, 7);

/// Where the tree for rdma-core's mlx5 provider seems to be (`SYSFS_PATH`). There is no such folder.
pub const MLX5_ROOT: &str = "/sys/softnic-mlx5";

/// Which provider the library is to find for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// This crate's own, which goes by the device's name.
    Own,
    /// rdma-core's, which goes by the numbers on the PCI bus.
    Mlx5,
}

/// The files of the tree, by their paths from its root, with a line each.
#[must_use]
pub fn files(settings: &Settings, provider: Provider) -> Vec<(String, String)> {
    let name = &settings.name;
    let channel = "class/infiniband_verbs/uverbs0";
    let device = format!("class/infiniband/{name}");
    let port = format!("{device}/ports/1");
    let guid = LazyNic::new(settings.clone()).guid();
    let mut files = vec![
        // IB_USER_VERBS_ABI_VERSION of rdma/ib_user_verbs.h.
        ("class/infiniband_verbs/abi_version".to_owned(), "6".to_owned()),
        (format!("{channel}/ibdev"), name.clone()),
        (format!("{channel}/dev"), format!("{}:{}", COMMAND_DEVICE.0, COMMAND_DEVICE.1)),
        (format!("{channel}/abi_version"), SYSFS_ABI.to_string()),
        (format!("{device}/node_type"), "1: CA".to_owned()),
        (format!("{device}/node_guid"), quads(&[guid])),
    ];
    if provider == Provider::Mlx5 {
        files.push((format!("{device}/device/modalias"), MLX5_MODALIAS.to_owned()));
    }
    for index in 0..GIDS {
        // The link-local GID of the port; the others are empty.
        let gid = if index == 0 { [LINK_LOCAL, guid] } else { [0, 0] };
        files.push((format!("{port}/gids/{index}"), quads(&gid)));
        files.push((format!("{port}/gid_attrs/types/{index}"), "RoCE v2".to_owned()));
        // There is no interface behind the port, and the library wants the name of one that exists.
        files.push((format!("{port}/gid_attrs/ndevs/{index}"), "lo".to_owned()));
    }
    for index in 0..PKEYS {
        files.push((format!("{port}/pkeys/{index}"), format!("{DEFAULT_PKEY:#06x}")));
    }
    files
}

/// `0073:6fff:fe66:7400`, as sysfs prints GUIDs and GIDs.
fn quads(words: &[u64]) -> String {
    let mut text = String::new();
    for word in words {
        for shift in [48, 32, 16, 0] {
            let separator = if text.is_empty() { "" } else { ":" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}{:04x}", (word >> shift) & 0xffff);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_and_gids_are_written_as_sysfs_does() {
        assert_eq!(quads(&[0x0073_6fff_fe66_7400]), "0073:6fff:fe66:7400");
        assert_eq!(quads(&[0xfe80 << 48, 1]), "fe80:0000:0000:0000:0000:0000:0000:0001");
    }

    #[test]
    fn the_tree_names_the_device_everywhere_the_library_looks() {
        let settings = Settings::read(|name| (name == "SOFTNIC_NAME").then(|| "left".to_owned())).unwrap();
        let own = files(&settings, Provider::Own);
        let read = |path: &str| own.iter().find(|(file, _)| file == path).map(|(_, line)| line.as_str());
        assert_eq!(read("class/infiniband_verbs/uverbs0/ibdev"), Some("left"));
        assert_eq!(read("class/infiniband/left/node_type"), Some("1: CA"));
        let zero = "0000:0000:0000:0000:0000:0000:0000:0000";
        assert_eq!(read("class/infiniband/left/ports/1/gids/1"), Some(zero));
        assert_eq!(read("class/infiniband/left/ports/1/pkeys/0"), Some("0xffff"));
        assert_eq!(read("class/infiniband/left/device/modalias"), None);
        assert!(files(&settings, Provider::Mlx5).len() == own.len() + 1);
    }
}

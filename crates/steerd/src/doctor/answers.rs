//! Questions to the kernel that no file answers: features and filters of an interface (the ethtool ioctl),
//! its XDP program (rtnetlink), the mode of an eswitch (devlink).

use std::io;

use wire::{RxFilterSocket, WireError};

use crate::daemon::device::{self, EswitchMode};

/// The kernel, or that of a test.
pub(crate) trait HostAnswers {
    /// The mode of the eswitch of an RDMA device.
    ///
    /// # Errors
    /// Devlink does not answer, or does not know the device.
    fn eswitch(&self, device: &str) -> io::Result<EswitchMode>;

    /// Returns whether a feature of an interface is active; `None`: the kernel does not know it.
    ///
    /// # Errors
    /// The interface does not answer.
    fn has_feature(&self, interface: &str, feature: &str) -> io::Result<Option<bool>>;

    /// The number of receive filters (ntuple rules) of an interface.
    ///
    /// # Errors
    /// The interface does not answer.
    fn filters(&self, interface: &str) -> io::Result<usize>;

    /// The number of the XDP program of an interface, by the number of the interface.
    ///
    /// # Errors
    /// The kernel does not answer.
    fn xdp_program(&self, index: u32) -> io::Result<Option<u32>>;
}

/// The kernel of this host.
pub(crate) struct KernelAnswers;

impl HostAnswers for KernelAnswers {
    fn eswitch(&self, device: &str) -> io::Result<EswitchMode> {
        device::eswitch_mode(device)
    }

    fn has_feature(&self, interface: &str, feature: &str) -> io::Result<Option<bool>> {
        open(interface)?.has_feature(feature)
    }

    fn filters(&self, interface: &str) -> io::Result<usize> {
        match open(interface)?.locations() {
            Ok(locations) => Ok(locations.used.len()),
            // The driver has no filters.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn xdp_program(&self, index: u32) -> io::Result<Option<u32>> {
        xdp::attached_program(index)
    }
}

fn open(interface: &str) -> io::Result<RxFilterSocket> {
    RxFilterSocket::open(interface).map_err(|error: WireError| io::Error::other(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_answers() {
        let kernel = KernelAnswers;
        assert_eq!(kernel.filters("lo").expect("it has none"), 0);
        assert_eq!(kernel.has_feature("lo", "no-such-feature").expect("it answers"), None);
        assert!(kernel.has_feature("no-such-if", "rx-lro").is_err());
        assert_eq!(kernel.eswitch("no-such-device").expect_err("no device").kind(), io::ErrorKind::NotFound);
    }
}

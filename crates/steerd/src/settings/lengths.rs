//! The lengths that have to agree: the MTU of a live interface, that of its port, and the frames of the
//! workers.
//!
//! Each is derived from the one before unless the settings name it. A named one that differs is refused,
//! because packets would be lost as `oversize`. The kernel is asked for the MTU of an interface at start and
//! by `check --config`.

use softnic::PORT_MTU_BYTES;
use wire::{MergedFrames, WireConfig};

use super::types::{FrameBytes, Settings, SoftNic, SoftNicPort, Workers};

/// An Ethernet header and two VLAN tags, beyond the MTU.
const HEADER_BYTES: u32 = 14 + 2 * 4;
/// Room behind the longest packet, in which the sink `forward` makes headers with a further tag.
const HEADROOM_BYTES: u32 = 64;
/// Derived frames start at multiples of a cache line, and are not smaller than this.
const FRAME_ALIGN: u32 = 64;
const FRAME_BYTES_LEAST: u32 = 2048;
/// Room for the longest frame that Linux has merged.
const MERGED_FRAME_BYTES: u32 = 65_536;
/// The MTU of a port whose wire has none of its own, that of Ethernet.
const MTU_DEFAULT: u32 = 1500;

/// Two lengths that do not agree.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LengthError {
    #[error(
        "{place}: mtu_bytes = {mtu_bytes}, and the MTU of {interface} is {interface_mtu_bytes}: they must be equal \
         (hint: leave mtu_bytes out, or ip link set dev {interface} mtu {mtu_bytes})"
    )]
    PortMtu { place: String, mtu_bytes: u32, interface: String, interface_mtu_bytes: u32 },
    #[error(
        "{place}: the MTU of {interface} is {interface_mtu_bytes}, and a port carries {most} at most (hint: ip link set dev \
         {interface} mtu {most}, or mtu_bytes = {most} if longer packets may be lost as oversize)"
    )]
    InterfaceMtu { place: String, interface: String, interface_mtu_bytes: u32, most: u32 },
    #[error(
        "workers.frame_bytes = {frame_bytes}, and the MTU of port {port} is {mtu_bytes}: packets of up to {needed} bytes with \
         header and VLAN tags would be lost as oversize (hint: workers.frame_bytes = \"auto\", or {needed} or more)"
    )]
    FrameBytes { frame_bytes: u32, port: u8, mtu_bytes: u32, needed: u32 },
}

/// The MTU of a port, by the port's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortMtu {
    pub(crate) port: u8,
    pub(crate) mtu_bytes: u32,
}

impl SoftNicPort {
    /// The configured MTU, or that of the live interface as it is now, in bytes.
    pub(crate) fn mtu_bytes(&self) -> u32 {
        let of_wire = || {
            let live = self.wire.live_interface();
            live.map_or(MTU_DEFAULT, |live| {
                live.mtu_bytes.clamp(*PORT_MTU_BYTES.start(), *PORT_MTU_BYTES.end())
            })
        };
        self.mtu_bytes.unwrap_or_else(of_wire)
    }

    fn takes_merged(&self) -> bool {
        matches!(&self.wire, WireConfig::AfPacket(wire) if wire.merged == MergedFrames::Whole)
    }

    /// Compares the configured MTU with that of the live interface. One that cannot be opened is an error of
    /// the start.
    fn check(&self, nic: &str, port: usize) -> Result<(), LengthError> {
        let interface = match &self.wire {
            WireConfig::AfPacket(wire) => wire.interface.clone(),
            WireConfig::AfXdp(wire) => wire.interface.clone(),
            _ => return Ok(()),
        };
        let Some(live) = self.wire.live_interface() else { return Ok(()) };
        let most = *PORT_MTU_BYTES.end();
        let place = format!("soft NIC {nic}, port {port}");
        match self.mtu_bytes {
            Some(mtu_bytes) if mtu_bytes != live.mtu_bytes.min(most) => {
                Err(LengthError::PortMtu { place, mtu_bytes, interface, interface_mtu_bytes: live.mtu_bytes })
            }
            None if live.mtu_bytes > most => {
                Err(LengthError::InterfaceMtu { place, interface, interface_mtu_bytes: live.mtu_bytes, most })
            }
            _ => Ok(()),
        }
    }
}

impl SoftNic {
    /// Whether a port takes merged frames whole.
    pub(super) fn takes_merged(&self) -> bool {
        self.ports.iter().any(SoftNicPort::takes_merged)
    }
}

impl Settings {
    /// Compares the MTU of each port on a live interface with that of the interface.
    ///
    /// # Errors
    /// They differ: the numbers, and what to change.
    pub(crate) fn check_mtus(&self) -> Result<(), LengthError> {
        let own = self.chooses_soft().then_some((&self.softnic.name, &self.softnic.ports));
        let others = self.softnic.others.iter().map(|other| (&other.name, &other.ports));
        for (nic, ports) in own.into_iter().chain(others) {
            (1..).zip(ports).try_for_each(|(number, port)| port.check(nic, number))?;
        }
        Ok(())
    }

    /// The MTUs of the ports in use, if the soft NIC is chosen.
    pub(crate) fn soft_mtus(&self) -> Vec<PortMtu> {
        let of_port = |port: &u8| {
            let soft = self.softnic.ports.get(usize::from(*port).checked_sub(1)?)?;
            Some(PortMtu { port: *port, mtu_bytes: soft.mtu_bytes() })
        };
        self.device.ports.iter().filter_map(of_port).collect()
    }

    /// The bytes of each frame of a worker that receives by these ports.
    ///
    /// # Errors
    /// `workers.frame_bytes` has no room for the longest packet of a port.
    pub(crate) fn frame_bytes(&self, ports: &[PortMtu]) -> Result<u32, LengthError> {
        let takes_merged = self.chooses_soft() && self.softnic.takes_merged();
        self.workers.frame_bytes_for(ports, takes_merged)
    }
}

impl Workers {
    fn frame_bytes_for(&self, ports: &[PortMtu], takes_merged: bool) -> Result<u32, LengthError> {
        let longest = ports.iter().max_by_key(|port| port.mtu_bytes);
        // Longer packets are in no frame, whatever a driver states as its MTU.
        let needed = longest.map_or(0, |port| port.mtu_bytes.min(MERGED_FRAME_BYTES) + HEADER_BYTES);
        match (self.frame_bytes, longest) {
            (FrameBytes::Auto, _) if takes_merged => Ok(MERGED_FRAME_BYTES),
            (FrameBytes::Auto, _) => {
                let bytes = (needed + HEADROOM_BYTES).next_multiple_of(FRAME_ALIGN);
                Ok(bytes.clamp(FRAME_BYTES_LEAST, MERGED_FRAME_BYTES))
            }
            (FrameBytes::Bytes(frame_bytes), Some(PortMtu { port, mtu_bytes }))
                if frame_bytes < needed.min(MERGED_FRAME_BYTES) =>
            {
                Err(LengthError::FrameBytes {
                    frame_bytes,
                    port: *port,
                    mtu_bytes: *mtu_bytes,
                    needed: needed.min(MERGED_FRAME_BYTES),
                })
            }
            (FrameBytes::Bytes(frame_bytes), _) => Ok(frame_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(frame_bytes: FrameBytes, mtus: &[u32], takes_merged: bool) -> Result<u32, String> {
        let workers = Workers { frame_bytes, ..Workers::default() };
        let ports: Vec<_> =
            (1..).zip(mtus).map(|(port, mtu_bytes)| PortMtu { port, mtu_bytes: *mtu_bytes }).collect();
        workers.frame_bytes_for(&ports, takes_merged).map_err(|error| error.to_string())
    }

    #[test]
    fn frames_have_room_for_the_longest_packet_of_every_port() {
        assert_eq!(frames(FrameBytes::Auto, &[1500], false), Ok(2048));
        assert_eq!(frames(FrameBytes::Auto, &[1500, 9000], false), Ok(9088));
        assert_eq!(frames(FrameBytes::Auto, &[], false), Ok(2048), "no MTU is known");
        assert_eq!(frames(FrameBytes::Auto, &[u32::MAX], false), Ok(MERGED_FRAME_BYTES));
        assert_eq!(frames(FrameBytes::Auto, &[1500], true), Ok(MERGED_FRAME_BYTES));
        assert_eq!(frames(FrameBytes::Bytes(1522), &[1500], false), Ok(1522));
        let error = frames(FrameBytes::Bytes(2048), &[1500, 9000], false).expect_err("too small");
        for part in ["workers.frame_bytes = 2048", "MTU of port 2 is 9000", "9022", "hint"] {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    }
}

//! A network interface of this host as the peer of a device: the other end of a cable, or another function of
//! the same NIC.
//!
//! Frames are sent and seen by an AF_PACKET socket. Only frames to or from the addresses of the cases are
//! looked at, and only such frames are sent, so the traffic of others on the interface stays as it is. A
//! device cannot be asked whether it has processed what is on the wire: the peer waits for a fixed time.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use wire::{
    AfPacketConfig, AfPacketWire, HandOver, MergedFrames, Promiscuous, TransmitError, Wire as _, WireError,
};

use verbs::SYSFS_CLASSES;

use crate::Peer;
use crate::bench::MAC;
use crate::link::receive_all;

/// How long frames take to the device and its completions to memory, with much to spare.
const SETTLE: Duration = Duration::from_millis(60);
/// The pause of a call that sends nothing, in which sent frames arrive: cases make several while they wait.
const GLANCE: Duration = Duration::from_millis(10);
/// The longest wait for room in the queue of the interface.
const PATIENCE: Duration = Duration::from_secs(1);
/// Frames that the kernel holds for the peer.
const RING_FRAMES: u32 = 4096;
/// The bytes that the two addresses of the cases share.
const SHARED_BYTES: usize = 5;

/// The flag of loopback interfaces (linux/if.h), and the base of the text of `flags` (net/core/net-sysfs.c).
const IFF_LOOPBACK: u32 = 8;
const FLAGS_BASE: u32 = 16;

/// Why an interface is no peer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PeerError {
    #[error("{0} is the device's own interface (hint: name the interface at the other end of its port)")]
    Own(String),
    #[error("{0} is a loopback interface, which reaches no port of a device (hint: name another interface)")]
    Loopback(String),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// An interface that can reach the device under test.
pub struct PacketPeer {
    end: Mutex<PacketPeerEnd>,
    /// Lets frames to the address of the cases pass the device's own filter of addresses.
    _promiscuous: Option<Promiscuous>,
}

struct PacketPeerEnd {
    wire: AfPacketWire,
    /// The frames that the device has sent since the last call.
    sent: Vec<Vec<u8>>,
}

impl PacketPeer {
    /// Opens the interface of the peer. `device`: the interface of the device under test, if it has one; both
    /// are promiscuous until this is dropped.
    ///
    /// # Errors
    /// An interface is unknown, down or not Ethernet, or the device's own; or CAP_NET_RAW is missing.
    pub fn open(interface: &str, device: Option<&str>) -> Result<Self, PeerError> {
        if device == Some(interface) {
            return Err(PeerError::Own(interface.to_owned()));
        }
        if is_loopback(Path::new(SYSFS_CLASSES), interface) {
            return Err(PeerError::Loopback(interface.to_owned()));
        }
        let wire = AfPacketWire::open(&AfPacketConfig {
            interface: interface.to_owned(),
            promiscuous: true,
            ring_frames: RING_FRAMES,
            merged: MergedFrames::default(),
            hand_over: HandOver::default(),
            busy_poll: false,
        })?;
        let promiscuous = device.map(Promiscuous::hold).transpose()?;
        Ok(Self { end: Mutex::new(PacketPeerEnd { wire, sent: Vec::new() }), _promiscuous: promiscuous })
    }
}

/// Returns whether the kernel shows this flag for the interface.
fn is_loopback(classes: &Path, interface: &str) -> bool {
    let text = std::fs::read_to_string(classes.join("net").join(interface).join("flags"));
    let text = text.unwrap_or_default();
    let flags = u32::from_str_radix(text.trim().trim_start_matches("0x"), FLAGS_BASE).unwrap_or(0);
    flags & IFF_LOOPBACK != 0
}

impl PacketPeerEnd {
    fn send(&mut self, frame: &[u8]) {
        let until = Instant::now() + PATIENCE;
        // What does not go out is missed by the case.
        while self.wire.transmit(frame) == Err(TransmitError::QueueFull) && Instant::now() < until {
            self.wire.flush();
            std::thread::sleep(GLANCE);
        }
    }

    fn collect(&mut self) {
        receive_all(&mut self.wire, |frame| {
            if is_ours(frame) {
                self.sent.push(frame.to_vec());
            }
        });
    }
}

/// Returns whether the frame is to or from an address of the cases.
fn is_ours(frame: &[u8]) -> bool {
    let begins_at = |place: usize| frame.get(place..place + SHARED_BYTES) == MAC.get(..SHARED_BYTES);
    begins_at(0) || begins_at(MAC.len())
}

impl Peer for PacketPeer {
    fn deliver(&self, frames: Vec<Vec<u8>>) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        for frame in &frames {
            end.send(frame);
        }
        end.wire.flush();
        std::thread::sleep(if frames.is_empty() { GLANCE } else { SETTLE });
        end.collect();
    }

    fn sent(&self) -> Option<Vec<Vec<u8>>> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        end.collect();
        Some(std::mem::take(&mut end.sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{OTHER_MAC, udp};

    #[test]
    fn only_frames_of_cases_are_seen() {
        let ours = udp(1, 2);
        assert!(is_ours(&ours));
        assert_eq!(MAC.get(..SHARED_BYTES), OTHER_MAC.get(..SHARED_BYTES));
        let mut foreign = ours.clone();
        foreign[..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2]);
        assert!(!is_ours(&foreign));
        assert!(!is_ours(&ours[..4]), "a frame that is too short");
    }

    #[test]
    fn interfaces_without_device_are_refused() {
        let refused =
            |interface, device| PacketPeer::open(interface, device).err().map(|error| error.to_string());
        let own = refused("eth0", Some("eth0")).expect("refused");
        assert!(own.contains("eth0 is the device's own interface"), "{own}");
        let loopback = refused("lo", Some("eth0")).expect("refused");
        assert!(loopback.contains("lo is a loopback interface"), "{loopback}");
        let folder = tempfile::tempdir().expect("folder");
        std::fs::create_dir_all(folder.path().join("net/eth0")).expect("made");
        std::fs::write(folder.path().join("net/eth0/flags"), "0x1003\n").expect("written");
        assert!(!is_loopback(folder.path(), "eth0") && !is_loopback(folder.path(), "nosuch"));
    }
}

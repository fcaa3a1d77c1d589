//! The test bench of a case: an open device and, if there is one, the peer at the other end of its port.
//!
//! Flows of cases match a locally administered MAC address that is not in use, so that a device in use loses
//! no packets. Only cases with [`crate::Needs::Port`] receive other packets.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use packet::MacAddr;
use packet::build::FrameBuilder;
use verbs::{
    Access, Context, DeviceAttributes, Domain, EthernetMatch, FlowAttr, FlowKind, FlowSpec, FramePool,
    MemoryRegion, PortNumber, ProtectionDomain,
};

use crate::{Failure, Needs, Outcome};

/// The destination of all frames: locally administered and not in use.
pub(crate) const MAC: [u8; 6] = [0x02, 0x73, 0x74, 0x65, 0x65, 0x72];
/// The source address of the test frames.
pub(crate) const OTHER_MAC: [u8; 6] = [0x02, 0x73, 0x74, 0x65, 0x65, 0x00];
/// Bytes of a frame in a pool.
pub(crate) const FRAME_BYTES: u32 = 2048;

/// The other end of a port.
pub trait Peer {
    /// Sends these frames to the device and returns once it has processed them.
    fn deliver(&self, frames: Vec<Vec<u8>>);

    /// The frames that the device has sent since the last call; `None` if they cannot be observed.
    fn sent(&self) -> Option<Vec<Vec<u8>>>;
}

/// A device, its attributes and its peer.
pub struct Bench<'p> {
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<ProtectionDomain>,
    pub(crate) port: PortNumber,
    pub(crate) attributes: DeviceAttributes,
    peer: Option<&'p dyn Peer>,
}

impl<'p> Bench<'p> {
    /// A bench on an open device, with or without a peer.
    ///
    /// # Errors
    /// The device cannot be queried, or refuses a protection domain.
    pub fn new(context: &Arc<Context>, port: PortNumber, peer: Option<&'p dyn Peer>) -> verbs::Result<Self> {
        let (pd, attributes) = (ProtectionDomain::new(context)?, context.attributes()?);
        Ok(Self { context: Arc::clone(context), pd, port, attributes, peer })
    }

    /// Why a case with these needs cannot be run on this bench.
    pub(crate) fn lacks(&self, needs: Needs) -> Option<&'static str> {
        match needs {
            Needs::Objects | Needs::Port | Needs::Sends => None,
            Needs::Frames if self.peer.is_none() => Some("needs a peer that sends"),
            Needs::Peer if self.peer.and_then(Peer::sent).is_none() => Some("needs a peer that sees"),
            Needs::Frames | Needs::Peer => None,
        }
    }

    /// Ends a case whose verb has succeeded and that sends frames next, if there is no peer.
    pub(crate) fn needs_peer(&self) -> Outcome {
        self.lacks(Needs::Frames).map_or(Ok(()), |why| Err(Failure::Unobserved(why)))
    }

    pub(crate) fn domain(&self) -> Domain {
        Domain::from(&self.pd)
    }

    /// Sends these frames to the device.
    pub(crate) fn deliver(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        if let Some(peer) = self.peer {
            peer.deliver(frames.into_iter().collect());
        }
    }

    /// The frames that the device has sent since the last call.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        self.deliver([]);
        self.peer.and_then(Peer::sent).unwrap_or_default()
    }

    /// Forgets what earlier cases have sent.
    pub(crate) fn forget_sent(&self) {
        let _ = self.peer.and_then(Peer::sent);
    }

    /// A normal flow on the bench's own address.
    pub(crate) fn flow(&self) -> FlowAttr {
        FlowAttr::new(FlowKind::Normal, self.port).spec(to_us())
    }

    pub(crate) fn pool(&self, domain: &Domain, frames: usize) -> Result<FramePool, Failure> {
        let memory = vec![0u8; frames * FRAME_BYTES as usize];
        let region = MemoryRegion::register(domain, memory, Access::LOCAL_WRITE).map_err(unprepared)?;
        FramePool::new(region, FRAME_BYTES).map_err(unprepared)
    }
}

/// The filter for the bench's own address.
pub(crate) fn to_us() -> FlowSpec {
    FlowSpec::Ethernet {
        value: EthernetMatch { dst_mac: MAC, ..EthernetMatch::default() },
        mask: EthernetMatch { dst_mac: [0xff; 6], ..EthernetMatch::default() },
    }
}

/// A frame to the bench's own address.
pub(crate) fn frame() -> FrameBuilder {
    FrameBuilder::new().ethernet(MacAddr(MAC), MacAddr(OTHER_MAC))
}

/// An IPv4 frame to it.
pub(crate) fn ipv4() -> FrameBuilder {
    frame().ipv4(v4(1), v4(2))
}

/// An IPv6 frame to it.
pub(crate) fn ipv6() -> FrameBuilder {
    frame().ipv6(v6(1), v6(2))
}

/// A UDP frame to it.
pub(crate) fn udp(src_port: u16, dst_port: u16) -> Vec<u8> {
    ipv4().udp(src_port, dst_port).payload(&[0x5a; 40]).build()
}

/// An address for documentation (RFC 5737).
pub(crate) fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, last)
}

/// An address for documentation (RFC 3849).
pub(crate) fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
}

/// The failure of a step that the case depends on but does not test.
#[allow(clippy::needless_pass_by_value)] // as a function of `map_err`
pub(crate) fn unprepared(error: verbs::VerbsError) -> Failure {
    Failure::Differs(format!("not prepared: {error}"))
}

//! The check that frames of a peer arrive at a port, before cases depend on it: one flow, a few frames.

use crate::bench::udp;
use crate::endpoints::Receiver;
use crate::{Bench, Failure};

/// Frames that are sent at once.
const FRAMES: u16 = 4;
/// Attempts with a pause between them: a switch may learn where the port is.
const ATTEMPTS: usize = 10;

/// Why the check cannot be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ReachError {
    #[error("flows need the capability CAP_NET_RAW (hint: run this as root, or `setcap cap_net_raw=ep`)")]
    NotPermitted,
    #[error("the device takes no flow for the frames of the peer: {0}")]
    Refused(String),
}

/// Returns whether a frame of the bench's peer arrives.
///
/// # Errors
/// The device refuses a queue or the flow.
pub fn is_reached(bench: &Bench<'_>) -> Result<bool, ReachError> {
    let refused = |failure| match failure {
        Failure::Refused(libc::EPERM) => ReachError::NotPermitted,
        Failure::Refused(errno) => {
            let name = verbs::VerbsErrno(errno).name();
            ReachError::Refused(name.map_or_else(|| format!("errno {errno}"), str::to_owned))
        }
        Failure::Differs(text) => ReachError::Refused(text),
        other => ReachError::Refused(format!("{other:?}")),
    };
    let mut receiver = Receiver::new(bench).map_err(refused)?;
    let _flow = receiver.flow(&bench.flow()).map_err(refused)?;
    for _ in 0..ATTEMPTS {
        let frames: Vec<Vec<u8>> = (1..=FRAMES).map(|number| udp(number, number)).collect();
        bench.deliver(frames.clone());
        let received = receiver.frames().map_err(refused)?;
        if received.iter().any(|frame| frames.contains(frame)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Peer;
    use crate::soft::SoftDevice;
    use softnic::Personality;
    use verbs::PortNumber;

    /// An interface at which no device is.
    struct Unplugged;

    impl Peer for Unplugged {
        fn deliver(&self, _: Vec<Vec<u8>>) {}

        fn sent(&self) -> Option<Vec<Vec<u8>>> {
            Some(Vec::new())
        }
    }

    #[test]
    fn only_a_connected_peer_reaches() {
        let device = SoftDevice::new(Personality::Mlx5).expect("a soft NIC");
        let reached = |peer: &dyn Peer| {
            is_reached(&Bench::new(device.context(), PortNumber(1), Some(peer)).expect("a bench"))
        };
        match (reached(&device), reached(&Unplugged)) {
            (Err(ReachError::NotPermitted), _) => test_support::not_run("reach", "needs CAP_NET_RAW"),
            (soft, unplugged) => {
                assert!(soft.expect("a flow"));
                assert!(!unplugged.expect("a flow"));
            }
        }
    }
}

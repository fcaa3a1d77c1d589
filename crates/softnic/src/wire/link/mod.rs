//! A link to a soft NIC in another process (or this one), over memory that both share.
//!
//! The two ends of a link have its name and a letter, `a` or `b`. Like a port at a switch, an end whose peer never came is
//! up, and what it sends is counted as an error: programs look at the port once, when they start, and one has to be first.
//! The end that comes second is down until both have met, which takes milliseconds if the first one's engine turns.
//! When the peer goes the link is down until another process takes that end; what the peer sent before is still received,
//! and what it has not taken counts as lost. Both processes run as the same user, in one network namespace. The memory
//! and the names vanish with the processes, however these end.

mod config;
mod lane;
mod loopback;
mod meeting;
#[cfg(test)]
mod tests;

use packet::MacAddr;

pub use config::{LinkConfig, LinkEnd, LinkName};
pub use loopback::LoopbackWire;
pub use meeting::LinkPeer;

use self::lane::Lie;
use self::meeting::{Seat, Session};
use super::{BURST_FRAMES, Burst, MAX_FRAME_BYTES, RxFrame, TransmitError, Wire, WireError, WireState};

/// An end alone looks for its peer after this many bursts; for an idle engine some milliseconds.
const BURSTS_PER_MEETING: u32 = 64;
/// The peer is looked after, with a system call, after this many bursts, with frames or without.
const BURSTS_PER_CHECK: u32 = 1024;

/// One end of a link.
#[derive(Debug)]
pub struct LinkWire {
    config: LinkConfig,
    /// Released before the session, whose end the peer takes for the sign that this seat is free.
    seat: Seat,
    session: Option<Session>,
    /// The peer is gone; what it sent before is still to be received.
    ending: bool,
    /// Without a session: a peer was here and went, or is there and not met yet.
    missing: bool,
    /// Bursts since the peer was last looked for, or after.
    bursts: u32,
    /// Where a burst's frames are copied to, one after the other.
    frames: Box<[u8]>,
    /// Sessions that ended because the peer wrote nonsense; at least a frame each was lost.
    lies: u64,
    /// Frames that were sent and that no peer has taken before it went.
    untaken: u64,
}

impl LinkWire {
    /// Takes the end; the peer is met later.
    ///
    /// # Errors
    /// Another process has this end, or the system denies a socket.
    pub fn open(config: &LinkConfig) -> Result<Self, WireError> {
        let mut wire = Self {
            seat: Seat::take(config)?,
            config: config.clone(),
            session: None,
            ending: false,
            missing: false,
            bursts: 0,
            frames: vec![0; BURST_FRAMES * MAX_FRAME_BYTES].into_boxed_slice(),
            lies: 0,
            untaken: 0,
        };
        wire.look_for_peer();
        wire.missing = wire.session.is_none() && wire.seat.peer_is_there();
        Ok(wire)
    }

    /// Looks for the peer, or after it, when it is time to.
    fn look_around(&mut self) {
        self.bursts += 1;
        match &self.session {
            None if self.bursts >= BURSTS_PER_MEETING => {
                self.bursts = 0;
                self.look_for_peer();
            }
            Some(session) if self.bursts >= BURSTS_PER_CHECK => {
                self.bursts = 0;
                self.ending = self.ending || !session.is_alive();
            }
            _ => {}
        }
    }

    fn look_for_peer(&mut self) {
        self.session = self.seat.meet();
        if let Some(peer) = self.session.as_ref().and_then(Session::peer) {
            tracing::info!(
                "link `{}`: the peer at end `{}` is {peer}",
                self.config.name,
                self.config.end.other().letter()
            );
        }
    }

    fn end_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.untaken += session.sender.untaken();
            self.missing = true;
            tracing::warn!(
                "link `{}`: the peer is gone; the link is down until there is another",
                self.config.name
            );
        }
        self.ending = false;
    }
}

impl Wire for LinkWire {
    fn tend(&mut self) {
        self.look_around();
    }

    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        self.look_around();
        let Some(session) = &mut self.session else { return };
        let room = burst.capacity_left();
        let (places, told) = session.receiver.take_burst(&mut self.frames, room);
        if told.is_err() {
            self.lies += 1;
            self.end_session();
        } else if places.is_empty() && self.ending && room > 0 {
            self.end_session();
        }
        for place in places {
            burst.push(RxFrame::new(&self.frames[place]));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, MAX_FRAME_BYTES)?;
        let Some(session) = self.session.as_mut().filter(|_| !self.ending) else {
            return Err(TransmitError::Down);
        };
        match session.sender.put(frame) {
            Ok(true) => Ok(()),
            Ok(false) => Err(TransmitError::QueueFull),
            Err(Lie) => {
                self.lies += 1;
                self.end_session();
                Err(TransmitError::Down)
            }
        }
    }

    fn flush(&mut self) {
        if let Some(session) = &self.session {
            session.sender.publish();
        }
    }

    fn state(&self) -> WireState {
        let up = if self.session.is_some() { !self.ending } else { !self.missing };
        if up { WireState::Live } else { WireState::Down }
    }

    fn describe(&self) -> String {
        format!("{} (link, end {})", self.config.name, self.config.end.letter())
    }

    fn mac(&self) -> MacAddr {
        self.config.station()
    }

    fn mtu_bytes(&self) -> u32 {
        9_216
    }

    fn losses(&self) -> u64 {
        self.lies
    }

    fn transmit_losses(&self) -> u64 {
        self.untaken
    }
}

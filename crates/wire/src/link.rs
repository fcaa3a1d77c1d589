//! A link to a soft NIC in another process (or this one), over memory that both share.
//!
//! The two ends of a link have its name and a letter, `a` or `b`. The end that is opened first is up although
//! it has no peer, because programs query the port state once, when they start; frames sent without a peer
//! are counted as errors. The end that is opened second is down until the handshake is complete, some
//! milliseconds if the engine of the first end runs. When the peer exits, the link is down until another
//! process opens that end; frames that the peer sent before are still received, and frames that it has not
//! received count as lost. Both processes run as the same user, in one network namespace. The kernel frees
//! the memory and the socket names when the processes exit.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use packet::MacAddr;
use serde::Deserialize;

use self::handshake::{Endpoint, Session};
use self::ring::Invalid;
use super::{
    BURST_FRAMES, Burst, MAX_FRAME_BYTES, ReceiveCounters, RxFrame, TransmitError, Wire, WireError, WireState,
};

mod handshake;
pub(super) mod ring;
#[cfg(test)]
mod tests;

/// Without a session, the handshake is tried every so many bursts; for an idle engine some milliseconds.
const BURSTS_PER_HANDSHAKE: u32 = 16;
/// With a session, a system call checks every so many bursts that the peer is alive; for an idle engine some
/// tenths of a second.
const BURSTS_PER_CHECK: u32 = 256;

/// One end of a link.
#[derive(Debug)]
pub struct LinkWire {
    config: LinkConfig,
    /// Dropped before the session: the peer takes the end of the session as the sign that this endpoint is
    /// free.
    endpoint: Endpoint,
    session: Option<Session>,
    /// The peer is gone; frames that it sent before may still be in the ring.
    closing: bool,
    /// Without a session: the peer is gone, or its handshake is not complete.
    down: bool,
    /// Bursts since the last handshake attempt or check.
    bursts: u32,
    /// The frames of a burst, copied one after the other.
    frames: Box<[u8]>,
    /// Sessions that ended because the peer wrote invalid data; each lost at least one frame.
    violations: u64,
    /// Sent frames that the peer had not received when it exited.
    untaken: u64,
}

impl LinkWire {
    /// Checks that the end can be claimed.
    pub(crate) fn check(config: &LinkConfig) -> Result<(), WireError> {
        Endpoint::check(config)
    }

    /// Claims the end; the handshake with the peer comes later.
    ///
    /// # Errors
    /// Another process has this end open, or the system refuses a socket.
    pub fn open(config: &LinkConfig) -> Result<Self, WireError> {
        let mut wire = Self {
            endpoint: Endpoint::take(config)?,
            config: config.clone(),
            session: None,
            closing: false,
            down: false,
            bursts: 0,
            frames: vec![0; BURST_FRAMES * MAX_FRAME_BYTES].into_boxed_slice(),
            violations: 0,
            untaken: 0,
        };
        wire.look_for_peer();
        wire.down = wire.session.is_none() && wire.endpoint.peer_exists();
        Ok(wire)
    }

    /// Whether the peer has received every frame that was sent.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.sender.untaken() == 0)
    }

    /// Tries the handshake, or checks that the peer is alive, when it is due.
    fn check_peer(&mut self) {
        self.bursts += 1;
        match &self.session {
            None if self.bursts >= BURSTS_PER_HANDSHAKE => {
                self.bursts = 0;
                self.look_for_peer();
            }
            Some(session) if self.bursts >= BURSTS_PER_CHECK => {
                self.bursts = 0;
                self.closing = self.closing || !session.is_alive();
            }
            _ => {}
        }
    }

    fn look_for_peer(&mut self) {
        self.session = self.endpoint.connect_once();
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
            self.down = true;
            tracing::warn!(
                "link `{}`: the peer is gone; the link is down until there is another",
                self.config.name
            );
        }
        self.closing = false;
    }
}

impl Wire for LinkWire {
    fn tend(&mut self) {
        self.check_peer();
    }

    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        self.check_peer();
        let Some(session) = &mut self.session else { return };
        let room = burst.capacity_left();
        let (places, result) = session.receiver.take_burst(&mut self.frames, room);
        if result.is_err() {
            self.violations += 1;
            self.end_session();
        } else if places.is_empty() && self.closing && room > 0 {
            self.end_session();
        }
        for place in places {
            burst.push(RxFrame::new(&self.frames[place]));
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, MAX_FRAME_BYTES)?;
        let Some(session) = self.session.as_mut().filter(|_| !self.closing) else {
            return Err(TransmitError::Down);
        };
        match session.sender.put(frame) {
            Ok(true) => Ok(()),
            Ok(false) => Err(TransmitError::QueueFull),
            Err(Invalid) => {
                self.violations += 1;
                self.end_session();
                Err(TransmitError::Down)
            }
        }
    }

    fn has_room(&mut self) -> bool {
        // A peer that writes invalid indices is found out when a frame is put.
        let session = self.session.as_mut().filter(|_| !self.closing);
        session.is_none_or(|session| session.sender.takes_longest().unwrap_or(true))
    }

    fn flush(&mut self) {
        if let Some(session) = &self.session {
            session.sender.publish();
        }
    }

    fn state(&self) -> WireState {
        let up = if self.session.is_some() { !self.closing } else { !self.down };
        if up { WireState::Live } else { WireState::Down }
    }

    fn describe(&self) -> String {
        self.config.describe()
    }

    fn mac(&self) -> MacAddr {
        self.config.station()
    }

    fn receive_counters(&self) -> ReceiveCounters {
        ReceiveCounters { lost: self.violations, ..ReceiveCounters::default() }
    }

    fn transmit_losses(&self) -> u64 {
        self.untaken
    }
}

// The settings of a link, and what follows from its name alone: the addresses of its ends.

/// The longest name of a link: it is part of a socket address, whose length is limited.
const MAX_NAME_BYTES: usize = 40;

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// The link's name, the same at both ends.
    pub name: LinkName,
    /// `a` or `b`.
    pub end: LinkEnd,
}

/// Which end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum LinkEnd {
    /// The one that listens.
    A,
    /// The one that connects.
    B,
}

impl LinkEnd {
    /// `a` or `b`.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::A => 'a',
            Self::B => 'b',
        }
    }

    /// The end of the peer.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl FromStr for LinkEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            _ => Err(format!("`{text}` is no end of a link: write `a` or `b`")),
        }
    }
}

impl TryFrom<String> for LinkEnd {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The name of a link: 1 to 40 letters, digits, `_`, `-` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct LinkName(String);

impl FromStr for LinkName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "a link's name has 1 to {MAX_NAME_BYTES} letters, digits, `_`, `-` and `.`; `{text}` is none"
        ))
    }
}

impl TryFrom<String> for LinkName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Deref for LinkName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LinkConfig {
    /// The station address of this end: locally administered, of the link's name and the end's letter.
    #[must_use]
    pub fn station(&self) -> MacAddr {
        // FNV-1a, folded: the links of one machine should differ, and a name's addresses stay the same.
        let hash = self
            .name
            .bytes()
            .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let [a, b, c, d] = hash.to_be_bytes();
        let end = match self.end {
            LinkEnd::A => 0x0a,
            LinkEnd::B => 0x0b,
        };
        MacAddr([0x02, 0x73, 0x6f, a ^ c, b ^ d, end])
    }

    /// A description of the wire for a log line.
    pub(super) fn describe(&self) -> String {
        format!("{} (link, end {})", self.name, self.end.letter())
    }
}

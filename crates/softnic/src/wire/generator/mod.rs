//! Generated traffic: frames made once from a description, then replayed by a shuffled schedule at a rate.
//!
//! For demonstrations, tests and benches. The same settings give the same frames in the same order. Replaying copies
//! nothing and allocates nothing; a paced generator reads the clock once per burst. Sent frames vanish.

mod pacer;
mod rng;
#[cfg(test)]
mod tests;
mod traffic;

use std::time::Instant;

use packet::MacAddr;

use self::pacer::Pacer;
use self::traffic::Reel;
use super::{
    Burst, GeneratorConfig, MAX_FRAME_BYTES, Rate, RxFrame, SOFT_MAC, TransmitError, Wire, WireError,
    WireState,
};

/// A port that receives generated traffic.
#[derive(Debug)]
pub struct GeneratorWire {
    reel: Reel,
    /// The next place of the schedule.
    place: usize,
    pacer: Pacer,
    /// The first burst's time, from which the pacer counts.
    started: Option<Instant>,
    /// Frames still to come; `None` without end.
    left: Option<u64>,
    description: String,
}

impl GeneratorWire {
    /// Builds the frames and the schedule.
    ///
    /// # Errors
    /// Which flow cannot be built and why.
    pub fn open(config: &GeneratorConfig) -> Result<Self, WireError> {
        if config.rate == Rate::FramesPerSecond(0) {
            return Err(WireError::Generator {
                problem: "`rate` is 0: write \"flat-out\" or a number".to_owned(),
            });
        }
        let flows = config.flows.len();
        let description = match config.rate {
            Rate::FlatOut => format!("generator ({flows} flows, flat-out)"),
            Rate::FramesPerSecond(rate) => format!("generator ({flows} flows, {rate}/s)"),
        };
        Ok(Self {
            reel: Reel::record(config)?,
            place: 0,
            pacer: Pacer::new(config.rate),
            started: None,
            left: config.total,
            description,
        })
    }

    fn elapsed_ns(&mut self) -> u128 {
        if !self.pacer.needs_clock() {
            return 0;
        }
        let now = Instant::now();
        now.duration_since(*self.started.get_or_insert(now)).as_nanos()
    }
}

impl Wire for GeneratorWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let room = burst.capacity_left();
        let wanted = self.left.map_or(room, |left| room.min(usize::try_from(left).unwrap_or(room)));
        let elapsed_ns = self.elapsed_ns();
        let frames = self.pacer.grant(elapsed_ns, wanted);
        if let Some(left) = &mut self.left {
            *left -= frames as u64;
        }
        for _ in 0..frames {
            burst.push(RxFrame::new(self.reel.frame(self.place)));
            self.place += 1;
            if self.place == self.reel.len() {
                self.place = 0;
            }
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, MAX_FRAME_BYTES)
    }

    fn flush(&mut self) {}

    fn state(&self) -> WireState {
        if self.left == Some(0) { WireState::Finished } else { WireState::Live }
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn mac(&self) -> MacAddr {
        SOFT_MAC
    }

    fn mtu_bytes(&self) -> u32 {
        9_216
    }
}

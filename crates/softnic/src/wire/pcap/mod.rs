//! Recorded captures, replayed from memory: once, over and over, or with their own gaps.
//!
//! For tests against corpora and for reproducing what happened elsewhere. Frames are stamped when they are replayed, not
//! with the time of their capture. Replaying copies and allocates nothing; sent frames go to a capture file or vanish.

mod file;
mod link;
mod tape;
#[cfg(test)]
mod tests;
mod writer;

use std::time::Instant;

use packet::MacAddr;

pub use self::file::open_capture;
pub use self::link::CaptureLink;
use self::tape::Tape;
use self::writer::Writer;
use super::{
    Burst, MAX_FRAME_BYTES, PcapConfig, PcapMode, RxFrame, SOFT_MAC, TransmitError, Wire, WireError,
    WireState,
};

/// A port that replays captures.
#[derive(Debug)]
pub struct PcapWire {
    tape: Tape,
    /// The next packet.
    place: usize,
    mode: PcapMode,
    speed: f64,
    /// The first burst's time, from which `paced` counts.
    started: Option<Instant>,
    output: Option<Writer>,
    description: String,
}

impl PcapWire {
    /// Loads the captures and makes the file for sent packets.
    ///
    /// # Errors
    /// Which file and packet, and why.
    pub fn open(config: &PcapConfig) -> Result<Self, WireError> {
        let setting = |problem: &str| {
            Err(WireError::CaptureSetting { path: config.path.clone(), problem: problem.to_owned() })
        };
        if !(config.speed.is_finite() && config.speed > 0.0) {
            return setting("`speed` is a factor above 0, 1.0 for the recorded speed");
        }
        let tape = Tape::load(&config.path)?;
        if tape.len() == 0 && config.mode == PcapMode::Loop {
            return setting("it holds no packet, so there is nothing to loop over");
        }
        let output = match &config.output {
            None => None,
            Some(path) => {
                let failed = |source| WireError::WriteCapture { path: path.clone(), source };
                let same = path
                    .canonicalize()
                    .ok()
                    .zip(config.path.canonicalize().ok())
                    .is_some_and(|(a, b)| a == b);
                if same {
                    return setting("`output` names the same file, which would be overwritten");
                }
                Some(Writer::create(path).map_err(failed)?)
            }
        };
        let mode = match config.mode {
            PcapMode::Once => "once".to_owned(),
            PcapMode::Loop => "loop".to_owned(),
            PcapMode::Paced => format!("paced at {}", config.speed),
        };
        let description = format!("pcap {} ({} packets, {mode})", config.path.display(), tape.len());
        Ok(Self {
            tape,
            place: 0,
            mode: config.mode,
            speed: config.speed,
            started: None,
            output,
            description,
        })
    }

    /// What is due by now on the tape's time line.
    fn position_ns(&mut self) -> u64 {
        if self.mode != PcapMode::Paced {
            return u64::MAX;
        }
        let now = Instant::now();
        let elapsed = now.duration_since(*self.started.get_or_insert(now));
        // A cast from float saturates.
        (elapsed.as_nanos() as f64 * self.speed) as u64
    }
}

impl Wire for PcapWire {
    fn receive<'w>(&'w mut self, burst: &mut Burst<'w>) {
        let position_ns = self.position_ns();
        for _ in 0..burst.capacity_left() {
            if self.place == self.tape.len() {
                if self.mode != PcapMode::Loop {
                    return;
                }
                self.place = 0;
            }
            if self.tape.due_ns(self.place) > position_ns {
                return;
            }
            burst.push(RxFrame::new(self.tape.packet(self.place)));
            self.place += 1;
        }
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        TransmitError::check_length(frame, MAX_FRAME_BYTES)?;
        if let Some(output) = &mut self.output {
            output.write(frame);
        }
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(output) = &mut self.output {
            output.flush();
        }
    }

    fn state(&self) -> WireState {
        let ended = self.mode != PcapMode::Loop && self.place == self.tape.len();
        if ended { WireState::Finished } else { WireState::Live }
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

    fn transmit_losses(&self) -> u64 {
        self.output.as_ref().map_or(0, Writer::lost_frames)
    }
}

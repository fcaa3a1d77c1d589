//! Recorded captures, replayed from memory: once, over and over, or with their own gaps.
//!
//! For tests against corpora and for reproducing what happened elsewhere. Frames are stamped when they are
//! replayed, not with the time of their capture. Replaying copies and allocates nothing; sent frames go to a
//! capture file or vanish.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

pub use self::reader::{CaptureError, CaptureReader, CapturedPacket};
use self::recording::Recording;
use self::writer::Writer;
use super::{
    Burst, MAX_FRAME_BYTES, PcapConfig, PcapMode, SleepHint, TransmitError, Wire, WireError, WireState,
};

mod link;
mod reader;
mod recording;
#[cfg(test)]
mod tests;
mod writer;

/// A port that replays captures.
#[derive(Debug)]
pub struct PcapWire {
    recording: Recording,
    /// The next packet.
    place: usize,
    mode: PcapMode,
    speed: f64,
    /// The first burst's time, from which `paced` counts.
    started: Option<Instant>,
    output: Option<Writer>,
    description: String,
}

/// The output cannot be written.
fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> WireError {
    move |source| WireError::WriteCapture { path: path.to_owned(), source }
}

impl PcapWire {
    /// Loads the captures, and checks that the file for sent packets can be made.
    pub(crate) fn check(config: &PcapConfig) -> Result<(), WireError> {
        Self::load(config)?;
        config.output.as_deref().map_or(Ok(()), |path| writer::check(path).map_err(unwritable(path)))
    }

    /// Loads the captures.
    fn load(config: &PcapConfig) -> Result<Recording, WireError> {
        let setting = |problem: &str| {
            Err(WireError::CaptureSetting { path: config.path.clone(), problem: problem.to_owned() })
        };
        if !(config.speed.is_finite() && config.speed > 0.0) {
            return setting("`speed` is a factor above 0, 1.0 for the recorded speed");
        }
        let recording = Recording::load(&config.path)?;
        if recording.len() == 0 && config.mode == PcapMode::Loop {
            return setting("it holds no packet, so there is nothing to loop over");
        }
        let same = |path: &Path| {
            let same = path.canonicalize().ok().zip(config.path.canonicalize().ok());
            same.is_some_and(|(output, input)| output == input)
        };
        if config.output.as_deref().is_some_and(same) {
            return setting("`output` names the same file, which would be overwritten");
        }
        Ok(recording)
    }

    /// Loads the captures and makes the file for sent packets.
    ///
    /// # Errors
    /// Which file and packet, and why.
    pub fn open(config: &PcapConfig) -> Result<Self, WireError> {
        let recording = Self::load(config)?;
        let output = config.output.as_deref().map(|path| Writer::create(path).map_err(unwritable(path)));
        let output = output.transpose()?;
        let mode = match config.mode {
            PcapMode::Once => "once".to_owned(),
            PcapMode::Loop => "loop".to_owned(),
            PcapMode::Paced => format!("paced at {}", config.speed),
        };
        let description = format!("pcap {} ({} packets, {mode})", config.path.display(), recording.len());
        Ok(Self {
            recording,
            place: 0,
            mode: config.mode,
            speed: config.speed,
            started: None,
            output,
            description,
        })
    }

    /// The position on the recording's time line that is due by now.
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
        while burst.capacity_left() > 0 {
            if self.place == self.recording.len() {
                if self.mode != PcapMode::Loop {
                    return;
                }
                self.place = 0;
            }
            let due = self.recording.due(self.place, burst.capacity_left(), position_ns);
            if due == 0 {
                return;
            }
            self.recording.fill(self.place, due, burst);
            self.place += due;
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
        let ended = self.mode != PcapMode::Loop && self.place == self.recording.len();
        if ended { WireState::Finished } else { WireState::Live }
    }

    fn sleep_hint(&mut self) -> SleepHint {
        if self.state() == WireState::Finished {
            return SleepHint::NEVER;
        }
        if self.mode != PcapMode::Paced {
            return SleepHint::Poll;
        }
        let left_ns = self.recording.due_ns(self.place).saturating_sub(self.position_ns());
        // A cast from float saturates.
        SleepHint::Within(Duration::from_nanos((left_ns as f64 / self.speed) as u64))
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn transmit_losses(&self) -> u64 {
        self.output.as_ref().map_or(0, Writer::lost_frames)
    }
}

/// Opens a capture for reading, which must be a regular file.
///
/// # Errors
/// It is not a regular file, or the system refuses.
pub fn open_capture(path: &Path) -> io::Result<File> {
    regular_file::open(path).map_err(with_hint)
}

/// The error of a file that is not opened.
fn with_hint(error: regular_file::FileError) -> io::Error {
    match error {
        regular_file::FileError::NotRegular(_) => {
            let hint = "name a file: pipes and devices are not read or written";
            io::Error::new(io::ErrorKind::InvalidInput, format!("{error} (hint: {hint})"))
        }
        error => error.into(),
    }
}

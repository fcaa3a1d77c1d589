//! The lines of a trace, from the bytes of the daemon's answer.

use std::io;

use steerd_client::api::{ApiError, CaptureNext};

use crate::api::model::TraceLine;

/// Splits an answer into lines, up to the line at which the caller stops.
#[derive(Debug, Default)]
pub(in crate::commands) struct TraceLines {
    /// The start of a line whose end has not come.
    unfinished: Vec<u8>,
    is_stopped: bool,
    not_understood: Option<serde_json::Error>,
}

impl TraceLines {
    /// Passes each line that the next bytes complete to `each`, parsed and as it was sent.
    ///
    /// # Errors
    /// The error of `each`.
    pub(in crate::commands) fn take(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(TraceLine, &[u8]) -> io::Result<CaptureNext>,
    ) -> io::Result<CaptureNext> {
        for byte in bytes {
            if self.is_stopped {
                break;
            }
            if *byte != b'\n' {
                self.unfinished.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.unfinished);
            match serde_json::from_slice(&line) {
                Ok(traced) => self.is_stopped = each(traced, &line)? == CaptureNext::Stop,
                Err(error) => {
                    self.not_understood = Some(error);
                    self.is_stopped = true;
                }
            }
        }
        Ok(if self.is_stopped { CaptureNext::Stop } else { CaptureNext::More })
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// A line was none of a trace.
    pub(in crate::commands) fn finish(self) -> Result<(), ApiError> {
        let not_understood = |why: serde_json::Error| ApiError::NotUnderstood {
            path: "/v1/traces".into(),
            why: why.to_string(),
        };
        self.not_understood.map_or(Ok(()), |why| Err(not_understood(why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the lines in these bytes, given in pieces, up to `last`.
    fn numbers(text: &str, piece_bytes: usize, last: u64) -> (Vec<u64>, Result<(), ApiError>) {
        let (mut lines, mut numbers) = (TraceLines::default(), Vec::new());
        for bytes in text.as_bytes().chunks(piece_bytes) {
            let taken = lines.take(bytes, |traced, _| {
                numbers.push(traced.number);
                Ok(if traced.number == last { CaptureNext::Stop } else { CaptureNext::More })
            });
            taken.expect("no output fails");
        }
        (numbers, lines.finish())
    }

    #[test]
    fn lines_are_complete_whatever_the_pieces() {
        let line = |number| {
            let traced = TraceLine { number, ..TraceLine::default() };
            serde_json::to_string(&traced).expect("JSON") + "\n"
        };
        let text = line(1) + &line(2) + &line(3);
        for piece_bytes in [1, 7, text.len()] {
            assert_eq!(numbers(&text, piece_bytes, 9).0, [1, 2, 3]);
            assert_eq!(numbers(&text, piece_bytes, 2).0, [1, 2], "the caller has enough");
        }
        let (read, ended) = numbers(&(line(1) + "{}\n" + &line(2)), 64, 9);
        assert_eq!((read, ended.is_err()), (vec![1], true), "a line of another program");
    }
}

//! Answers one question about a policy: is it good for a device (`check`), what happens to a packet
//! (`explain`), what does another policy change (`diff`). The question is read from standard input, the
//! answer is written to standard output, both as JSON. Nothing else is touched, so that the program runs
//! wherever WASI does, such as in the browser on the page of the playground. docs/playground.md describes
//! both.
#![forbid(unsafe_code)]

mod answer;
mod question;

use std::io::{self, Write as _};
use std::process::ExitCode;

use question::Question;

/// The most bytes of a question.
const MAX_BYTES: u64 = 16 << 20;

fn main() -> ExitCode {
    let answer = match regular_file::read_bounded(io::stdin().lock(), MAX_BYTES) {
        Ok(bytes) => answer_to(&bytes),
        Err(error) => Err(format!("the question cannot be read: {error}")),
    };
    let (text, code) = match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(problem) => (serde_json::json!({ "error": problem }).to_string(), ExitCode::FAILURE),
    };
    match writeln!(io::stdout().lock(), "{text}") {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The answer as JSON.
///
/// # Errors
/// The question is not one, in words.
fn answer_to(bytes: &[u8]) -> Result<String, String> {
    let question: Question =
        serde_json::from_slice(bytes).map_err(|error| format!("this is no question: {error}"))?;
    let text = match question {
        Question::Models => serde_json::to_string(&answer::Models::known()),
        Question::Check(device) => serde_json::to_string(&answer::check(&device)?),
        Question::Explain { device, packet } => serde_json::to_string(&answer::explain(&device, &packet)?),
        Question::Diff { old, new } => serde_json::to_string(&answer::diff(&old, &new)),
    };
    text.map_err(|error| error.to_string())
}

//! The texts of errors in one line: an error with its sources, a message with its hint, and what the system
//! lacks.

use std::io;

use rustix::io::Errno;

/// The hint where the system has no thread, or no descriptor, left for the process; else nothing.
pub(crate) fn lacking(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN | Errno::NOMEM) => {
            " (hint: raise the limits of threads and memory: TasksMax=, LimitNPROC=, LimitAS= and MemoryMax= of the \
             service, `ulimit -u`, `ulimit -v`)"
        }
        Some(Errno::MFILE | Errno::NFILE) => {
            " (hint: raise the limit of file descriptors: LimitNOFILE= of the service, `ulimit -n`)"
        }
        _ => "",
    }
}

/// The system starts no thread for this process.
#[derive(Debug, thiserror::Error)]
#[error("no thread can be started: {}{}", .0, lacking(.0))]
pub(crate) struct NoThread(pub(crate) io::Error);

/// The process cannot handle signals.
#[derive(Debug, thiserror::Error)]
#[error("signals cannot be received: {}{}", .0, lacking(.0))]
pub(crate) struct NoSignals(pub(crate) io::Error);

/// A message of which the hint is known, as it must have one only.
#[derive(Debug)]
pub(crate) struct Hinted {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Hinted {
    /// Splits a message that ends with its hint, if it has one.
    pub(crate) fn of(text: &str) -> Self {
        let parts = text.strip_suffix(')').and_then(|text| text.split_once(" (hint: "));
        let (message, hint) = parts.map_or((text, None), |(message, hint)| (message, Some(hint.to_owned())));
        Self { message: message.to_owned(), hint }
    }

    /// With this hint if it has none.
    pub(crate) fn or(mut self, hint: &str) -> Self {
        self.hint.get_or_insert_with(|| hint.to_owned());
        self
    }
}

impl std::fmt::Display for Hinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " (hint: {hint})"))
    }
}

/// The error and those of its sources that its text does not repeat, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let part = error.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = error.source();
    }
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").replace(":; ", ": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer{0}")]
    struct Outer(&'static str, #[source] io::Error);

    #[test]
    fn sources_are_not_repeated() {
        let inner = || io::Error::other("inner");
        assert_eq!(chain(&Outer("", inner())), "outer: inner");
        assert_eq!(chain(&Outer(": inner", inner())), "outer: inner");
        assert_eq!(chain(&Outer(" of:\n  one\n  two", inner())), "outer of: one; two: inner");
    }
}

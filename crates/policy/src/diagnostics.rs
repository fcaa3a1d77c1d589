//! What is wrong with a policy, where, and what to do. Every stage adds to one list, so that an operator
//! sees all problems at once; the list prints as plain `file:line:column` lines, as a miette report with
//! source excerpts, or as JSON. It never prints by itself.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{LabeledSpan, NamedSource, SourceCode};
use serde::Serialize;

use crate::source::Source;

/// Problems beyond this number are counted, not listed: a wrong file may have one per line.
pub const MAX_DIAGNOSTICS: usize = 100;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// The policy can be used, but perhaps does not do what was meant.
    Warning,
}

/// One problem.
#[derive(Clone, Serialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one line.
    pub message: String,
    /// The file, as the source names it.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// What the marked text is.
    pub label: String,
    /// What to do about it.
    pub hint: Option<String>,
    #[serde(skip)]
    span: Range<usize>,
    #[serde(skip)]
    source: Arc<NamedSource<Arc<Source>>>,
}

/// A place in a source: what a diagnostic points at.
#[derive(Clone, Debug)]
pub struct Place {
    source: Arc<Source>,
    span: Range<usize>,
}

impl Place {
    /// The bytes `span` of `source`.
    #[must_use]
    pub fn new(source: &Arc<Source>, span: Range<usize>) -> Self {
        Self { source: Arc::clone(source), span }
    }

    /// The name of its file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// Whether it is in this very text.
    pub(crate) fn is_in(&self, source: &Arc<Source>) -> bool {
        Arc::ptr_eq(&self.source, source)
    }

    /// Line of its start, from 1.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.source.line(self.span.start)
    }

    /// An error here.
    #[must_use]
    pub fn error(&self, message: impl Into<String>, label: impl Into<String>) -> Diagnostic {
        self.diagnostic(Severity::Error, message.into(), label.into())
    }

    /// A warning here.
    #[must_use]
    pub fn warning(&self, message: impl Into<String>, label: impl Into<String>) -> Diagnostic {
        self.diagnostic(Severity::Warning, message.into(), label.into())
    }

    fn diagnostic(&self, severity: Severity, message: String, label: String) -> Diagnostic {
        let message = printable(message);
        let (line, column) = self.source.position(self.span.start);
        let text = &self.source.text;
        let source = NamedSource::new(self.source.name.clone(), Arc::clone(&self.source));
        Diagnostic {
            severity,
            message,
            file: self.source.name.clone(),
            line,
            column,
            label,
            hint: None,
            span: self.span.start.min(text.len())..self.span.end.min(text.len()),
            source: Arc::new(source),
        }
    }
}

impl Diagnostic {
    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(printable(hint.into()));
        self
    }
}

/// Without control characters: a terminal or a log would obey those that a message quotes.
fn printable(text: String) -> String {
    match text.contains(char::is_control) {
        true => text.replace(char::is_control, "\u{fffd}"),
        false => text,
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{}:{}:{}: {severity}: {}", self.file, self.line, self.column, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Diagnostic {}

/// The same problem as miette wants it: the message alone, place and hint apart.
#[derive(Debug)]
struct Excerpt(Diagnostic);

impl Excerpt {
    /// Whether its file may be shown.
    fn has_text(&self) -> bool {
        self.0.source.inner().may_be_quoted()
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { file, line, column, message, .. } = &self.0;
        // Where there is an excerpt, the place stands above it.
        match self.has_text() {
            true => f.write_str(message),
            false => write!(f, "{file}:{line}:{column}: {message}"),
        }
    }
}

impl std::error::Error for Excerpt {}

impl miette::Diagnostic for Excerpt {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.0.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.hint.as_ref().map(|hint| Box::new(hint) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.has_text().then_some(&*self.0.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.0.span.clone();
        let label = LabeledSpan::new(Some(self.0.label.clone()), span.start, span.len());
        Some(Box::new(std::iter::once(label)))
    }
}

impl SourceCode for Source {
    fn read_span<'a>(
        &'a self,
        span: &miette::SourceSpan,
        context_lines_before: usize,
        context_lines_after: usize,
    ) -> Result<Box<dyn miette::SpanContents<'a> + 'a>, miette::MietteError> {
        self.text.read_span(span, context_lines_before, context_lines_after)
    }
}

/// Everything that is wrong, in the order of the text. As an error it says all of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diagnostics {
    /// At most [`MAX_DIAGNOSTICS`].
    pub list: Vec<Diagnostic>,
    /// How many more there were.
    pub omitted: usize,
    #[serde(skip)]
    errors: usize,
}

impl Diagnostics {
    /// Adds one, or counts it when there are too many. A warning makes room for an error.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let severity = diagnostic.severity;
        self.push_with(severity, || diagnostic);
    }

    /// The same for one that is made only if it is listed: finding its column and its hint takes longer
    /// than finding that something is wrong.
    pub fn push_with(&mut self, severity: Severity, make: impl FnOnce() -> Diagnostic) {
        let is_error = severity == Severity::Error;
        self.errors += usize::from(is_error);
        if self.list.len() >= MAX_DIAGNOSTICS {
            self.omitted += 1;
            // Each error takes the place of one warning, so this looks through the list that often at most.
            let has_warnings = self.errors - usize::from(is_error) < self.list.len() && is_error;
            let last = || self.list.iter().rposition(|other| other.severity == Severity::Warning);
            let Some(warning) = has_warnings.then(last).flatten() else { return };
            self.list.remove(warning);
        }
        self.list.push(make());
    }

    /// Whether anything in it is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// How many errors there were, listed or not.
    pub fn error_count(&self) -> usize {
        self.errors
    }

    /// Whether there is nothing to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Sorts by place; equal places keep their order.
    pub fn sort(&mut self) {
        self.list.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    }

    /// With source excerpts, labels and hints: what a person at a terminal wants.
    #[must_use]
    pub fn report(&self) -> Vec<miette::Report> {
        self.list.iter().map(|diagnostic| miette::Report::new(Excerpt(diagnostic.clone()))).collect()
    }
}

impl From<Vec<Diagnostic>> for Diagnostics {
    fn from(list: Vec<Diagnostic>) -> Self {
        let mut diagnostics = Self::default();
        list.into_iter().for_each(|diagnostic| diagnostics.push(diagnostic));
        diagnostics
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{diagnostic}")?;
        }
        if self.omitted > 0 {
            write!(f, "\nand {} more", self.omitted)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

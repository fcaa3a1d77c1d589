//! The problems of a policy, with their places and remedies. The parser and the compiler add to one list, so
//! that an operator sees all problems at once. The list has four forms: plain `file:line:column` lines,
//! miette reports with source excerpts, the same reports as text without colours, and JSON.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};
use serde::Serialize;

use crate::hint::{ProblemHint, TextReplacement};
use crate::source::Source;

/// The most problems that are listed; further ones are counted. A wrong file may have a problem per line.
pub const MAX_DIAGNOSTICS: usize = 100;

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// The policy can be used, but may not do what was meant.
    Warning,
}

/// A problem of a policy, its place and its remedy.
#[derive(Clone, Serialize)]
pub struct Diagnostic {
    /// The severity of the problem.
    pub severity: Severity,
    /// The problem, in one line.
    pub message: String,
    /// The file, as the source names it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// A label for the marked text.
    pub label: String,
    /// The remedy.
    pub hint: Option<String>,
    /// The replacement that carries the remedy out, if it is one of text.
    #[serde(skip)]
    pub replacement: Option<TextReplacement>,
    /// The keys of the rule that become one rule each, in the order of the rules, if that is the remedy.
    #[serde(skip)]
    pub separate_keys: Option<[String; 2]>,
    /// Other places that the problem is about, each with its part in it.
    #[serde(skip)]
    pub related: Vec<(Place, String)>,
    /// Whether the system could not open or read a file.
    #[serde(skip)]
    is_of_unreadable_file: bool,
    /// The marked bytes.
    #[serde(skip)]
    span: Range<usize>,
    #[serde(skip)]
    source: Arc<NamedSource<Arc<Source>>>,
}

/// A place in a source that a diagnostic points at.
#[derive(Clone, Debug)]
pub struct Place {
    source: Arc<Source>,
    span: Range<usize>,
}

impl PartialEq for Place {
    /// Whether both are the same bytes of the same source.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.source, &other.source) && self.span == other.span
    }
}

impl Eq for Place {}

impl Place {
    /// The bytes `span` of `source`.
    #[must_use]
    pub fn new(source: &Arc<Source>, span: Range<usize>) -> Self {
        Self { source: Arc::clone(source), span }
    }

    /// The name of the file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// The source.
    #[must_use]
    pub fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// The marked bytes of the source.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The marked text; `None`: the source is shorter.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.source.text.get(self.span.clone())
    }

    /// A part of this place, by its offsets from the start.
    pub(crate) fn part(&self, part: Range<usize>) -> Self {
        let start = self.span.start;
        Self::new(&self.source, start + part.start..start + part.end)
    }

    /// Whether this place is in `source`, the same object.
    pub(crate) fn is_in(&self, source: &Arc<Source>) -> bool {
        Arc::ptr_eq(&self.source, source)
    }

    /// The line of its start, from 1.
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
        let (message, label) = (printable(message), printable(label));
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
            replacement: None,
            separate_keys: None,
            related: Vec::new(),
            is_of_unreadable_file: false,
            span: self.span.start.min(text.len())..self.span.end.min(text.len()),
            source: Arc::new(source),
        }
    }
}

impl Diagnostic {
    /// Adds the remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<ProblemHint>) -> Self {
        let hint: ProblemHint = hint.into();
        self.replacement = hint.replacement(&self.place());
        self.separate_keys = hint.separate_keys().cloned();
        self.hint = Some(printable(hint.into()));
        self
    }

    /// Adds another place that the problem is about, and its part in it.
    #[must_use]
    pub fn related(mut self, place: &Place, part: impl Into<String>) -> Self {
        self.related.push((place.clone(), printable(part.into())));
        self
    }

    /// The place of the problem.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { source: Arc::clone(self.source.inner()), span: self.span.clone() }
    }

    /// Marks the problem as one of a file that the system could not open or read, unless the error is about
    /// the type, size or content of the file.
    #[must_use]
    pub(crate) fn caused_by(mut self, error: &io::Error) -> Self {
        self.is_of_unreadable_file = !matches!(
            error.kind(),
            io::ErrorKind::InvalidInput
                | io::ErrorKind::InvalidData
                | io::ErrorKind::FileTooLarge
                | io::ErrorKind::Unsupported
        );
        self
    }
}

/// Replaces control characters by U+FFFD, so that a quoted text cannot control a terminal.
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
        f.write_str(&self.file)?;
        if self.source.inner().has_lines() {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {severity}: {}", self.message)?;
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

/// An adapter to miette, which takes the message, the place and the hint separately.
#[derive(Debug)]
struct Excerpt(Diagnostic);

impl Excerpt {
    /// Whether the text of its file may be shown.
    fn may_quote(&self) -> bool {
        self.0.source.inner().may_be_quoted()
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { file, line, column, message, source, .. } = &self.0;
        // With an excerpt miette prints the place; without one the message contains it.
        match self.may_quote() {
            true => f.write_str(message),
            false if source.inner().has_lines() => write!(f, "{file}:{line}:{column}: {message}"),
            false => write!(f, "{file}: {message}"),
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
        self.may_quote().then_some(&*self.0.source as &dyn SourceCode)
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

/// The problems of a policy, sorted by place after [`Diagnostics::sort`]. Its `Display` lists all of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diagnostics {
    /// At most [`MAX_DIAGNOSTICS`].
    pub list: Vec<Diagnostic>,
    /// The number of problems that are counted but not listed.
    pub omitted: usize,
    #[serde(skip)]
    error_count: usize,
    #[serde(skip)]
    is_unreadable: bool,
}

impl Diagnostics {
    /// Whether the system could not open or read a file. Then the policy may be valid, and readable later.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        self.is_unreadable
    }

    /// Adds one. If the list is full, an error replaces the last warning; any other problem is only counted.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let severity = diagnostic.severity;
        self.is_unreadable |= diagnostic.is_of_unreadable_file;
        self.push_with(severity, || diagnostic);
    }

    /// Adds a problem that is made only if it is listed: finding its column and its hint takes longer
    /// than finding that something is wrong.
    pub fn push_with(&mut self, severity: Severity, make: impl FnOnce() -> Diagnostic) {
        let is_error = severity == Severity::Error;
        self.error_count += usize::from(is_error);
        if self.list.len() >= MAX_DIAGNOSTICS {
            self.omitted += 1;
            // The list is searched at most once for each warning in it.
            let replaces_warning = is_error && self.error_count - 1 < self.list.len();
            let last = || self.list.iter().rposition(|other| other.severity == Severity::Warning);
            let Some(warning) = replaces_warning.then(last).flatten() else { return };
            self.list.remove(warning);
        }
        self.list.push(make());
    }

    /// Whether there was an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.error_count > 0
    }

    /// The number of errors, listed or not.
    pub fn error_count(&self) -> usize {
        self.error_count
    }

    /// Whether there are no problems.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Sorts by place; equal places keep their order.
    pub fn sort(&mut self) {
        self.list.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    }

    /// The listed problems as reports with source excerpts, labels and hints, for a terminal.
    #[must_use]
    pub fn report(&self) -> Vec<miette::Report> {
        self.list.iter().map(|diagnostic| miette::Report::new(Excerpt(diagnostic.clone()))).collect()
    }

    /// The problems as text without colours, for a client that prints them.
    #[must_use]
    pub fn excerpts(&self) -> String {
        let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor()).with_links(false);
        let mut text = String::new();
        for diagnostic in &self.list {
            // Writing to a String does not fail; a problem whose excerpt cannot be read is left out.
            let _ = handler.render_report(&mut text, &Excerpt(diagnostic.clone()));
        }
        if self.omitted > 0 {
            text.push_str(&format!("and {} more\n", self.omitted));
        }
        text
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

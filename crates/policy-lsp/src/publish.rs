//! Findings as diagnostics of the protocol, by document.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lsp_types::{
    Diagnostic, DiagnosticRelatedInformation, DiagnosticSeverity, DiagnosticTag, Location, NumberOrString,
    Range,
};
use policy::Place;

use crate::checker::{CheckedPolicy, FindingLevel, PolicyFinding};
use crate::position::{CodeUnits, LineIndex};
use crate::workspace::Workspace;

/// The name of the program that has the findings, in editors.
const SOURCE: &str = "steerd";

/// A finding, and its diagnostic.
pub(crate) struct PlacedFinding<'f> {
    /// `None`: it is the number of findings that are not listed.
    pub(crate) finding: Option<&'f PolicyFinding>,
    pub(crate) diagnostic: Diagnostic,
}

/// The findings of all policies by the file that they are in. A file that several policies include has those
/// of all, each once.
pub(crate) fn by_file(workspace: &Workspace) -> BTreeMap<PathBuf, Vec<PlacedFinding<'_>>> {
    let mut found: BTreeMap<PathBuf, Vec<PlacedFinding<'_>>> = BTreeMap::new();
    for (policy, checked) in workspace.results() {
        let mut lines = Lines::default();
        for finding in &checked.findings {
            let (file, diagnostic) = placed(workspace, policy, finding, &mut lines);
            let of_file = found.entry(file).or_default();
            if of_file.iter().all(|other| other.diagnostic != diagnostic) {
                of_file.push(PlacedFinding { finding: Some(finding), diagnostic });
            }
        }
        if let Some(more) = omitted(checked) {
            found.entry(policy.clone()).or_default().push(more);
        }
    }
    found
}

/// The number of findings that are not listed has no place of its own.
fn omitted(checked: &CheckedPolicy) -> Option<PlacedFinding<'_>> {
    let finding = checked.findings.first().filter(|_| checked.omitted > 0)?;
    let message = format!("and {} more problems, which are not listed", checked.omitted);
    let (severity, source) = (Some(severity(finding.level)), Some(SOURCE.to_owned()));
    let diagnostic = Diagnostic { severity, source, message, ..Diagnostic::default() };
    Some(PlacedFinding { finding: None, diagnostic })
}

/// The indices of the lines of sources that were met, by the address of the text.
#[derive(Default)]
struct Lines(BTreeMap<usize, LineIndex>);

impl Lines {
    fn range(&mut self, place: &Place, units: CodeUnits) -> Range {
        let text = &place.source().text;
        let index = self.0.entry(text.as_ptr() as usize).or_insert_with(|| LineIndex::of(text));
        index.range(text, &place.span(), units)
    }
}

/// The file of a finding, and its diagnostic there.
fn placed(
    workspace: &Workspace,
    policy: &Path,
    finding: &PolicyFinding,
    lines: &mut Lines,
) -> (PathBuf, Diagnostic) {
    let place = finding.diagnostic.place();
    let file = policy::plain_path(Path::new(place.file()));
    let is_document = file.is_absolute() || workspace.buffer(&file).is_some();
    let hint = finding.diagnostic.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    let message = format!("{}{hint}", finding.diagnostic.message);
    let related = |(place, part): &(Place, String), lines: &mut Lines| {
        let uri = workspace.uri(&policy::plain_path(Path::new(place.file())))?;
        let location = Location { uri, range: lines.range(place, workspace.units) };
        Some(DiagnosticRelatedInformation { location, message: part.clone() })
    };
    let related: Vec<_> = finding.diagnostic.related.iter().filter_map(|one| related(one, lines)).collect();
    let diagnostic = Diagnostic {
        range: if is_document { lines.range(&place, workspace.units) } else { Range::default() },
        severity: Some(severity(finding.level)),
        code: Some(NumberOrString::String(finding.code.to_owned())),
        source: Some(SOURCE.to_owned()),
        // A setting has its name as its place.
        message: if is_document { message } else { format!("{}: {message}", place.file()) },
        related_information: (!related.is_empty()).then_some(related),
        tags: (finding.level == FindingLevel::Unnecessary).then(|| vec![DiagnosticTag::UNNECESSARY]),
        ..Diagnostic::default()
    };
    (if is_document { file } else { policy.to_owned() }, diagnostic)
}

fn severity(level: FindingLevel) -> DiagnosticSeverity {
    match level {
        FindingLevel::Error => DiagnosticSeverity::ERROR,
        FindingLevel::Warning => DiagnosticSeverity::WARNING,
        FindingLevel::Information => DiagnosticSeverity::INFORMATION,
        FindingLevel::Unnecessary => DiagnosticSeverity::HINT,
    }
}

//! The open documents, the results of their last checks, and the files that belong to one policy.

use std::cell::{OnceCell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsp_types::{TextDocumentContentChangeEvent, Uri};
use policy::{MAX_INCLUDED_FILES, SetLoader};

use crate::buffer::TextBuffer;
use crate::checker::{CheckedPolicy, OpenFiles, RuleNote, ServerSettings};
use crate::file_uri::{path_of, uri_of};
use crate::outline::{NameKind, NameUse, Outline};
use crate::position::{CodeUnits, LineIndex};

/// The texts of the open documents, by path.
pub(crate) type OpenTexts = Arc<BTreeMap<PathBuf, Arc<str>>>;

/// The documents of the editor.
#[derive(Default)]
pub(crate) struct Workspace {
    buffers: BTreeMap<PathBuf, TextBuffer>,
    /// The number of the last change of each document. Versions of the client begin anew when a document is
    /// opened again.
    revisions: BTreeMap<PathBuf, u64>,
    last_revision: u64,
    /// The results of checks, by the path of the policy.
    results: BTreeMap<PathBuf, CheckedPolicy>,
    /// The revisions of the documents that the result of each policy was made from.
    result_revisions: BTreeMap<PathBuf, BTreeMap<PathBuf, u64>>,
    /// Files that are not open, as they were when they were first needed after the last change or save of a
    /// document.
    closed_files: RefCell<BTreeMap<PathBuf, ClosedFile>>,
    pub(crate) units: CodeUnits,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) settings: ServerSettings,
}

/// A file that no document has.
struct ClosedFile {
    text: Arc<str>,
    outline: Arc<Outline>,
}

/// One file of a policy.
pub(crate) struct PolicyFile {
    pub(crate) path: PathBuf,
    pub(crate) text: Arc<str>,
    pub(crate) outline: Arc<Outline>,
    /// The lines of the text, from the first range on.
    lines: OnceCell<LineIndex>,
}

/// The definition of a name.
pub(crate) struct Definition<'f> {
    pub(crate) file: &'f PolicyFile,
    pub(crate) name: &'f NameUse,
}

impl Workspace {
    pub(crate) fn open(&mut self, uri: Uri, version: i32, text: String) {
        let path = path_of(&uri);
        self.buffers.insert(path.clone(), TextBuffer::new(uri, version, text));
        self.touch(path);
    }

    /// Applies changes; returns whether the document is open.
    pub(crate) fn change(
        &mut self,
        uri: &Uri,
        version: i32,
        changes: Vec<TextDocumentContentChangeEvent>,
    ) -> bool {
        let path = path_of(uri);
        let Some(buffer) = self.buffers.get_mut(&path) else { return false };
        buffer.apply(version, changes, self.units);
        self.touch(path);
        true
    }

    pub(crate) fn close(&mut self, uri: &Uri) -> PathBuf {
        let path = path_of(uri);
        self.forget_files();
        self.buffers.remove(&path);
        self.revisions.remove(&path);
        self.results.remove(&path);
        self.result_revisions.remove(&path);
        path
    }

    /// Forgets the files that are not open, which may be others now.
    pub(crate) fn forget_files(&mut self) {
        self.closed_files.get_mut().clear();
    }

    fn touch(&mut self, path: PathBuf) {
        self.forget_files();
        self.last_revision += 1;
        self.revisions.insert(path, self.last_revision);
    }

    pub(crate) fn buffer(&self, path: &Path) -> Option<&TextBuffer> {
        self.buffers.get(path)
    }

    pub(crate) fn revisions(&self) -> BTreeMap<PathBuf, u64> {
        self.revisions.clone()
    }

    pub(crate) fn texts(&self) -> OpenTexts {
        let text = |(path, buffer): (&PathBuf, &TextBuffer)| (path.clone(), Arc::clone(buffer.text()));
        Arc::new(self.buffers.iter().map(text).collect())
    }

    /// The URI of a document or a file.
    pub(crate) fn uri(&self, path: &Path) -> Option<Uri> {
        self.buffer(path).map(|buffer| buffer.uri.clone()).or_else(|| uri_of(path))
    }

    /// The open policies that are checked: those that no other one includes. Other open documents are files
    /// of sets.
    pub(crate) fn policies(&self) -> Vec<PathBuf> {
        let is_policy = |path: &&PathBuf| !path.is_absolute() || path.extension() == Some(OsStr::new("toml"));
        let names = |policy: &PathBuf, file: &PathBuf| {
            self.results.get(policy).is_some_and(|checked| checked.files.contains(file))
        };
        let is_part = |path: &&PathBuf| {
            let mut others = self.buffers.keys().filter(|other| other != path);
            // Of two files that include each other both are checked, so that the error is shown.
            others.any(|other| names(other, path) && !names(path, other))
        };
        self.buffers.keys().filter(is_policy).filter(|path| !is_part(path)).cloned().collect()
    }

    /// Keeps the result of a check of documents with these revisions, and drops those of documents that are
    /// no policies of their own.
    pub(crate) fn keep(&mut self, path: PathBuf, checked: CheckedPolicy, revisions: BTreeMap<PathBuf, u64>) {
        self.result_revisions.insert(path.clone(), revisions);
        self.results.insert(path, checked);
        let policies: BTreeSet<PathBuf> = self.policies().into_iter().collect();
        self.results.retain(|path, _| policies.contains(path));
        self.result_revisions.retain(|path, _| policies.contains(path));
    }

    /// Returns whether a document is another one now than in a result with findings about it. A check of the
    /// document as it is now has been ordered.
    pub(crate) fn is_outdated(&self, path: &Path) -> bool {
        self.results.iter().any(|(policy, checked)| {
            let is_part = policy == path || checked.files.contains(path);
            let checked_revision = self.result_revisions.get(policy).and_then(|of| of.get(path));
            is_part && checked_revision != self.revisions.get(path)
        })
    }

    pub(crate) fn result(&self, policy: &Path) -> Option<&CheckedPolicy> {
        self.results.get(policy)
    }

    pub(crate) fn results(&self) -> impl Iterator<Item = (&PathBuf, &CheckedPolicy)> {
        self.results.iter()
    }

    /// The policy that a document belongs to, which may be its own.
    fn policy_of(&self, path: &Path) -> PathBuf {
        let including = self.results.iter().find(|(_, checked)| checked.files.contains(path));
        match self.results.contains_key(path) {
            true => path.to_owned(),
            false => including.map_or_else(|| path.to_owned(), |(policy, _)| policy.clone()),
        }
    }

    /// The facts about the rules in the policy of a document, by name.
    pub(crate) fn notes(&self, path: &Path) -> BTreeMap<&str, &RuleNote> {
        let rules = self.results.get(&self.policy_of(path)).map(|checked| &*checked.rules);
        rules.unwrap_or_default().iter().map(|note| (&*note.name, note)).collect()
    }

    /// The files of the policy that a document belongs to: the policy first, then what it includes.
    pub(crate) fn files_of(&self, path: &Path) -> Vec<PolicyFile> {
        let texts = self.texts();
        let mut found: Vec<PolicyFile> = Vec::new();
        let mut left = VecDeque::from([self.policy_of(path)]);
        while let Some(path) = left.pop_front() {
            if found.len() >= MAX_INCLUDED_FILES || found.iter().any(|file| file.path == path) {
                continue;
            }
            let Some(file) = self.file(path, &texts) else { continue };
            let folder = file.path.parent().unwrap_or(Path::new("")).to_owned();
            let files = OpenFiles::new(folder, Arc::clone(&texts));
            left.extend(file.outline.includes.iter().map(|name| files.path(name)));
            found.push(file);
        }
        found
    }

    fn file(&self, path: PathBuf, texts: &OpenTexts) -> Option<PolicyFile> {
        if let Some(buffer) = self.buffer(&path) {
            let (text, outline) = (Arc::clone(buffer.text()), Arc::clone(buffer.outline()));
            return Some(PolicyFile { path, text, outline, lines: OnceCell::new() });
        }
        let mut closed = self.closed_files.borrow_mut();
        let file = match closed.entry(path.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let text = self.set_text(&path, texts)?;
                let outline = Arc::new(Outline::of(&text));
                unknown.insert(ClosedFile { text, outline })
            }
        };
        let (text, outline) = (Arc::clone(&file.text), Arc::clone(&file.outline));
        Some(PolicyFile { path, text, outline, lines: OnceCell::new() })
    }

    /// The text of a file that a policy names.
    pub(crate) fn set_text(&self, path: &Path, texts: &OpenTexts) -> Option<Arc<str>> {
        let files = OpenFiles::new(PathBuf::new(), Arc::clone(texts));
        files.load(path.to_str()?).ok().map(|source| source.text.into())
    }
}

impl PolicyFile {
    /// The range of some bytes.
    pub(crate) fn range(&self, span: &std::ops::Range<usize>, units: CodeUnits) -> lsp_types::Range {
        self.lines.get_or_init(|| LineIndex::of(&self.text)).range(&self.text, span, units)
    }
}

/// The definitions of a kind in all files.
pub(crate) fn definitions<'f>(
    files: &'f [PolicyFile],
    kind: NameKind,
) -> impl Iterator<Item = Definition<'f>> {
    files
        .iter()
        .flat_map(move |file| file.outline.definitions(kind).map(move |name| Definition { file, name }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn included_files_are_parsed_once_per_version() {
        let folder = tempfile::tempdir().expect("folder");
        let included = folder.path().join("more.toml");
        std::fs::write(&included, "[sets]\na = [1]\n").expect("written");
        let path = folder.path().join("p.toml");
        let uri = uri_of(&path).expect("a URI");
        let mut workspace = Workspace::default();
        workspace.open(uri.clone(), 1, "includes = ['more.toml']\n".to_owned());
        let outline = |workspace: &Workspace| {
            let files = workspace.files_of(&path);
            Arc::clone(&files.last().filter(|file| file.path == included).expect("it is included").outline)
        };
        let first = outline(&workspace);
        std::fs::write(&included, "[sets]\nb = [1]\n").expect("written");
        assert!(Arc::ptr_eq(&first, &outline(&workspace)));
        let change = TextDocumentContentChangeEvent {
            range: None,
            range_length: None,
            text: "includes = ['more.toml'] # \n".to_owned(),
        };
        assert!(workspace.change(&uri, 2, vec![change]));
        let second = outline(&workspace);
        assert_eq!(second.definitions(NameKind::Set).map(|set| &*set.name).collect::<Vec<_>>(), ["b"]);
        std::fs::remove_file(&included).expect("removed");
        workspace.forget_files();
        assert_eq!(workspace.files_of(&path).len(), 1);
    }
}

//! The site that `make docs` builds of the pages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::page::root;

/// The pages below docs/, and those that only the site has.
fn pages(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(root().join("docs").join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.insert(path);
        }
    }
}

#[test]
fn the_summary_lists_each_page_once() {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).expect("docs/SUMMARY.md");
    let mut listed = BTreeSet::new();
    for link in summary.split("](").skip(1) {
        let path = link.split_once(')').expect("the end of a link").0;
        assert!(listed.insert(PathBuf::from(path)), "docs/SUMMARY.md lists {path} twice");
    }
    let mut expected = BTreeSet::new();
    pages(Path::new(""), &mut expected);
    expected.remove(Path::new("SUMMARY.md"));
    let missing: Vec<_> = expected.difference(&listed).collect();
    let others: Vec<_> = listed.difference(&expected).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
    assert!(others.is_empty(), "docs/SUMMARY.md lists pages that do not exist: {others:?}");
}

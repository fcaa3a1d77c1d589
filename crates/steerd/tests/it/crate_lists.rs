//! The lists of crates in ARCHITECTURE.md and CONTRIBUTING.md against the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The names of crates.
type Names = BTreeSet<String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A crate of the workspace below `crates`.
struct WorkspaceCrate {
    folder: PathBuf,
    /// The crates of the workspace that it needs for more than its tests.
    dependencies: Names,
}

fn workspace() -> BTreeMap<String, WorkspaceCrate> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--offline", "--no-deps", "--format-version", "1"]).current_dir(root());
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let packages = list(&metadata["packages"]).into_iter().map(|package| {
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let dependencies = list(&package["dependencies"]).into_iter();
        let own = dependencies.filter(|one| one["kind"].is_null() && !one["path"].is_null());
        let dependencies = own.map(|one| text(&one["name"])).collect();
        let folder = manifest.parent().expect("a manifest is in a folder").to_owned();
        (text(&package["name"]), WorkspaceCrate { folder, dependencies })
    });
    packages.filter(|(_, one)| one.folder.parent().is_some_and(|above| above.ends_with("crates"))).collect()
}

/// The names of a list with commas.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

/// The names between backquotes in the first sentence of a page that begins so.
fn named_after(page: &str, beginning: &str) -> Names {
    let sentence = page.split_once(beginning).expect("the page has the sentence").1;
    let sentence = sentence.split_once('.').expect("the sentence ends").0;
    sentence.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_listed_dependencies_are_those_of_cargo() {
    let architecture = page("ARCHITECTURE.md");
    let block = architecture.split("\n```\n").nth(1).expect("the first block lists dependencies");
    let mut listed: BTreeMap<String, Names> = BTreeMap::new();
    for line in block.lines() {
        let line = line.split_once('(').map_or(line, |(list, _)| list).trim();
        let (crates, dependencies) =
            line.split_once("  ").unwrap_or_else(|| panic!("no two columns: {line}"));
        let dependencies: Names =
            names(dependencies).filter(|name| *name != "-").map(str::to_owned).collect();
        listed.extend(names(crates).map(|name| (name.to_owned(), dependencies.clone())));
    }
    let mut found: BTreeMap<String, Names> =
        workspace().into_iter().map(|(name, one)| (name, one.dependencies)).collect();
    // Only tests depend on it, and it depends on no crate.
    assert_eq!(found.remove("test-support"), Some(Names::new()));
    assert_eq!(listed, found);
}

#[test]
fn the_listed_crates_alone_allow_unsafe() {
    let forbids = |one: &WorkspaceCrate| {
        let roots = ["src/lib.rs", "src/main.rs"].map(|file| one.folder.join(file));
        let text = roots.iter().find_map(|file| std::fs::read_to_string(file).ok()).expect("a crate root");
        text.contains("#![forbid(unsafe_code)]")
    };
    let allowing: Names =
        workspace().into_iter().filter(|(_, one)| !forbids(one)).map(|(name, _)| name).collect();
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        assert_eq!(named_after(&page(name), "`unsafe` is allowed in "), allowing, "{name}");
    }
}

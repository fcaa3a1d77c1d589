//! `make install` into a folder: every file is installed, the installed binary works, and what installed
//! files name is installed too.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::image::Image;
use crate::support::{not_run, stderr, stdout};

/// The files that a release needs beside the others: see `make install`.
const FILES: &[&str] = &[
    "usr/bin/steerd",
    "usr/bin/softnic",
    "usr/bin/steerd-probe",
    "usr/lib/softnic/libsoftnic-rdmav34.so",
    "usr/lib/softnic/libsoftnic-rdmav65.so",
    "usr/lib/systemd/system/steerd.service",
    "usr/lib/sysusers.d/steerd.conf",
    "etc/steerd/steerd.toml",
    "etc/steerd/policy.toml",
    "usr/share/man/man1/steerd.1",
    "usr/share/man/man1/steerd-run.1",
    "usr/share/man/man1/steerd-check.1",
    "usr/share/man/man1/steerd-reload.1",
    "usr/share/man/man1/steerd-probe.1",
    "usr/share/man/man1/softnic.1",
    "usr/share/man/man5/steerd.toml.5",
    "usr/share/man/man5/steerd-policy.5",
    "usr/share/bash-completion/completions/steerd",
    "usr/share/fish/vendor_completions.d/steerd.fish",
    "usr/share/zsh/site-functions/_steerd",
    "usr/share/doc/steerd/README.md",
    "usr/share/doc/steerd/copyright",
    "usr/share/doc/steerd/third-party.txt",
    "usr/share/doc/steerd/docs/README.md",
    "usr/share/doc/steerd/examples/dns-farm.toml",
    "usr/share/doc/steerd/deploy/prometheus/steerd.rules.yml",
];

/// Files of examples, which commands or operators make.
const MADE: &[&str] = &["/etc/steerd/mlx5_0.toml"];

fn make(root: &Path, built: &Path, target: &str, more: &[&str]) {
    let output = Command::new("make")
        .args(["--no-print-directory", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), target])
        .args(["PREFIX=/usr", &format!("DESTDIR={}", root.display()), &format!("BUILT={}", built.display())])
        .args(more)
        .env_remove("MAKEFLAGS")
        .output()
        .expect("make");
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn the_installation_is_complete_and_works() {
    let built = Path::new(env!("CARGO_BIN_EXE_steerd")).parent().expect("its folder");
    if ["softnic", "libsoftnic_preload.so", "steerd-probe"].iter().any(|file| !built.join(file).exists()) {
        return not_run(
            "make install-files",
            "softnic, its plugin and the probe are not built: cargo build -p softnic-preload -p conformance",
        );
    }
    let root = tempfile::tempdir().expect("folder");
    let root = root.path();
    // The drop-in of earlier releases, with which the policy would be read twice at a reload.
    let drop_in = root.join("usr/lib/systemd/system/steerd.service.d/reload.conf");
    std::fs::create_dir_all(drop_in.parent().expect("a folder")).expect("created");
    std::fs::write(&drop_in, "").expect("written");
    make(root, built, "third-party", &[]);
    make(root, built, "install-files", &[]);
    assert!(!drop_in.exists());
    assert!(!root.join("usr/share/doc/steerd/deploy/report-kit").exists(), "it needs a checkout");
    for file in FILES {
        assert!(root.join(file).metadata().is_ok_and(|file| file.len() > 0), "{file} is missing");
    }
    check_named_files(root);
    for page in files(&root.join("usr/share/doc/steerd"))
        .iter()
        .filter(|file| file.extension() == Some("md".as_ref()))
    {
        let text = std::fs::read_to_string(page).expect("a page");
        assert!(!text.lines().any(|line| line.starts_with("<!--") || line == "-->"), "{}", page.display());
    }
    let read = |file: &str| std::fs::read_to_string(root.join(file)).expect(file);
    let mode = |file: &str| root.join(file).metadata().expect(file).permissions().mode() & 0o777;
    assert_eq!((mode("usr/bin/steerd"), mode("etc/steerd/steerd.toml")), (0o755, 0o644));
    assert!(read("usr/share/man/man1/steerd.1").contains(".TH steerd 1"));
    assert!(read("usr/share/man/man1/steerd-run.1").contains("demo"));
    assert!(!root.join("usr/share/man/man1/steerd-generate.1").exists(), "it is hidden");

    check_image(root);

    // The installed binary with the installed settings.
    let check = Command::new(root.join("usr/bin/steerd"))
        .args(["check", "--model", "ideal", "--config"])
        .arg(root.join("etc/steerd/steerd.toml"))
        .output()
        .expect("it runs");
    assert!(check.status.success(), "{}", stderr(&check));
    assert!(stdout(&check).contains("etc/steerd/policy.toml: ok"), "{}", stdout(&check));

    // A second installation keeps changed settings.
    std::fs::write(root.join("etc/steerd/policy.toml"), "# changed").expect("written");
    make(root, built, "install-files", &["PREFIX=/opt/s"]);
    let page = read("opt/s/share/man/man1/steerd.1");
    assert!(page.contains("/opt/s/share/doc/steerd") && !page.contains("/usr/share"), "{page}");
    assert_eq!(read("etc/steerd/policy.toml"), "# changed");
    let unit = read("opt/s/lib/systemd/system/steerd.service");
    assert!(unit.contains("\nExecStart=/opt/s/bin/steerd run --config /etc/steerd/steerd.toml\n"), "{unit}");
    assert!(
        unit.contains("\nExecReload=/opt/s/bin/steerd reload --config /etc/steerd/steerd.toml\n"),
        "{unit}"
    );

    make(root, built, "uninstall", &["PREFIX=/opt/s"]);
    make(root, built, "uninstall", &[]);
    let left = FILES.iter().filter(|file| root.join(file).exists()).copied().collect::<Vec<_>>();
    assert_eq!(left, ["etc/steerd/steerd.toml", "etc/steerd/policy.toml"]);
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries
        .flat_map(|entry| match entry.file_type().expect("its type").is_dir() {
            true => files(&entry.path()),
            false => vec![entry.path()],
        })
        .collect()
}

/// The paths in a text that are below one of these folders.
fn paths<'t>(text: &'t str, folders: &[&str]) -> Vec<&'t str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_end_matches(['.', '/']));
    words.filter(|word| folders.iter().any(|folder| word.starts_with(folder))).collect()
}

/// The targets of a page's links, without anchors and other hosts.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains([':', ' ']))
}

/// Checks that the files which installed pages, settings and the unit name are installed, too.
fn check_named_files(root: &Path) {
    let mut found = 0;
    let mut missing = Vec::new();
    for file in files(root).iter().filter(|file| !file.starts_with(root.join("usr/bin"))) {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        // The dashes of man pages.
        let text = text.replace("\\-", "-");
        for path in paths(&text, &["/etc/steerd/", "/usr/share/doc/steerd/", "/usr/lib/softnic/"]) {
            found += 1;
            if !MADE.contains(&path) && !root.join(&path[1..]).exists() {
                missing.push(format!("{}: {path}", file.display()));
            }
        }
        if file.extension().is_some_and(|extension| extension == "md") {
            for link in links(&text) {
                found += 1;
                if !file.parent().expect("a folder").join(link).exists() {
                    missing.push(format!("{}: {link}", file.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(found > 100, "{found} paths and links");
}

/// Makes the container image of an installation, and runs its demonstration as the user of the image.
fn check_image(root: &Path) {
    let folder = tempfile::tempdir().expect("folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/image");
    let output = Command::new(script).arg(root).arg(folder.path()).output().expect("the script runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let archive = stdout(&output);
    let image = Image::unpack(Path::new(archive.trim()), folder.path());
    let arguments = ["run", "--demo", "--for", "300ms", "--listen", "off"];
    let Some(output) = image.run(&arguments) else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).ends_with("\npacket accounting matches\n"), "{}", stdout(&output));
    let Some(output) = image.run(&["check", "--config", "/etc/steerd/steerd.toml", "--model", "ideal"])
    else {
        return;
    };
    assert!(output.status.success(), "{}", stderr(&output));
}

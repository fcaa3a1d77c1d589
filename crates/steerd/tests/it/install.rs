//! `make install` into a folder: every file is installed, and the installed binary works.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

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
    "usr/share/bash-completion/completions/steerd",
    "usr/share/fish/vendor_completions.d/steerd.fish",
    "usr/share/zsh/site-functions/_steerd",
    "usr/share/doc/steerd/README.md",
];

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
    make(root, built, "install-files", &[]);
    assert!(!drop_in.exists());
    for file in FILES {
        assert!(root.join(file).metadata().is_ok_and(|file| file.len() > 0), "{file} is missing");
    }
    let read = |file: &str| std::fs::read_to_string(root.join(file)).expect(file);
    let mode = |file: &str| root.join(file).metadata().expect(file).permissions().mode() & 0o777;
    assert_eq!((mode("usr/bin/steerd"), mode("etc/steerd/steerd.toml")), (0o755, 0o644));
    assert!(read("usr/share/man/man1/steerd.1").contains(".TH steerd 1"));
    assert!(read("usr/share/man/man1/steerd-run.1").contains("demo"));
    assert!(!root.join("usr/share/man/man1/steerd-generate.1").exists(), "it is hidden");

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

//! Policies with mistakes and all of their diagnostics: place, problem and remedy. The folder `wrong` has a
//! policy for each kind of mistake; the diagnostics are snapshots.

use std::path::Path;

use policy::{Folder, NoFiles, Source};

/// The diagnostics of a file of the folder.
fn error_of(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong");
    let text = std::fs::read_to_string(folder.join(name)).expect("the file is there");
    // Names without the folder: it is elsewhere on every machine.
    let message = match policy::parse(&Source::new(name, text), &Folder(folder.clone())) {
        Ok((_, warnings)) => panic!("{name} is taken: {warnings:?}"),
        Err(problems) => problems.to_string(),
    };
    message.replace(&format!("{}/", folder.display()), "")
}

#[test]
fn every_mistake_is_reported_with_its_remedy() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong");
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    names.sort();
    assert!(names.len() >= 25, "{names:?}");
    for name in names {
        insta::assert_snapshot!(name.trim_end_matches(".toml"), error_of(&name));
    }
}

const SLIP: &str = "version = 1\n[[rules]]\nname = \"x\"\nmatch = { dst_prot = 80 }\naction = \"drop\"\n";

/// Line ends, byte order marks and tabs of other systems shift no place.
#[test]
fn texts_of_other_systems_are_read() {
    let wanted = "error: unknown key `dst_prot` (did you mean `dst_port`?)";
    for (text, column) in [
        (SLIP.to_owned(), 11),
        (SLIP.replace('\n', "\r\n"), 11),
        (format!("\u{feff}{SLIP}"), 11),
        (SLIP.replace("{ dst", "{\tdst"), 11),
        (SLIP.replace("match", "\tmatch"), 12),
        (SLIP.trim_end().to_owned(), 11),
    ] {
        let problems = policy::parse(&Source::new("p.toml", text.clone()), &NoFiles).expect_err(&text);
        assert_eq!(problems.to_string(), format!("p.toml:4:{column}: {wanted}"), "{text:?}");
    }
}

/// Files that are not text, are not regular or are too large give one line.
#[test]
fn files_that_are_not_policies_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("policy.toml");
    let error_of = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("written");
        policy::load(&path).expect_err("it is no policy").to_string()
    };
    assert!(
        error_of(b"version = 1\n# Stra\xdfe\n").contains("policy.toml:2:7: error: this byte is not UTF-8")
    );
    assert!(error_of(b"\xff\xfev\0e\0r\0").contains("this is UTF-16"));
    assert!(error_of(b"").contains("has no `version`"));
    assert!(error_of(b"version = 1\n\0\0\n").contains("policy.toml:2:"));
    // Without blocks on the disk.
    let large = std::fs::File::create(&path).expect("created");
    large.set_len(policy::MAX_FILE_BYTES + 1).expect("extended");
    let error = policy::load(&path).expect_err("it is no policy").to_string();
    assert!(error.contains("more than the 67108864 bytes"), "{error}");
    assert!(policy::load(folder.path()).expect_err("a folder").to_string().contains("this is a directory"));
}

/// Problems are reported where they begin, not where the TOML parser fails.
#[test]
fn unclosed_and_invisible_characters_are_reported_at_their_place() {
    let rule = "[[rules]]\nname = \"x\"\nmatch = { src = \"10.0.0.1\" }\naction = \"drop\"\n";
    let text = |from: &str, to: &str| format!("version = 1\n{}{rule}", rule.replace(from, to));
    for (text, wanted) in [
        (text(" }", ""), "4:9: error: not TOML: this `{` is never closed (write `}` where it ends)"),
        (
            text("\"10.0.0.1\" }", "[\"10.0.0.1\","),
            "4:17: error: not TOML: this `[` is never closed (write `]`",
        ),
        (text(" }", " ]"), "4:28: error: not TOML: `]` closes the `{` of line 4, column 9 (write `}`)"),
        (
            text("\"10.0.0.1\"", "[\"10.0.0.1\""),
            "4:29: error: not TOML: `}` closes the `[` of line 4, column 17",
        ),
        (text("\"x\"", "\"x"), "3:8: error: not TOML: this string is never closed (write \" at its end)"),
        (text("\"x\"", "'''x"), "3:8: error: not TOML: this string is never closed (write ''' at its end)"),
        (text("\"x\"", "\"\u{1}x\""), "3:9: error: control character U+0001 in the text (remove it"),
        (text("name", "# \u{7}\nname"), "3:3: error: control character U+0007 in the text"),
        (text("\n", "\r"), "2:10: error: a carriage return without a newline (save the file with Unix (LF)"),
        (text("name", "na\0me"), "3:3: error: the file contains a NUL byte: this is not text"),
        (
            text("match", "\u{a0}match"),
            "4:1: error: U+00A0 is not whitespace in TOML (replace it with a space",
        ),
        (text("match", "\u{200b}match"), "4:1: error: U+200B is not whitespace in TOML"),
        (
            text("\"10.0.0.1\"", "\u{201c}10.0.0.1\u{201d}"),
            "4:17: error: not TOML: string values must be quoted (write it in straight quotes: \"10.0.0.1\")",
        ),
    ] {
        let message =
            policy::parse(&Source::new("p.toml", text.clone()), &NoFiles).expect_err(&text).to_string();
        assert!(message.starts_with(&format!("p.toml:{wanted}")), "{text}\n{message}");
        assert_eq!(message.lines().count(), 1, "no guesses behind it: {message}");
    }
    // A missing comma is none of these.
    let comma = text("\"10.0.0.1\"", "\"10.0.0.1\" dst = \"10.0.0.1\"");
    let message = policy::parse(&Source::new("p.toml", comma), &NoFiles).expect_err("no comma").to_string();
    assert!(message.contains("missing comma"), "{message}");
}

/// Control characters are not printed.
#[test]
fn messages_have_no_control_characters() {
    let text = "version = 1\n[groups.g]\nworkers = [0]\nhash = \"\\u001b[31m\"\n[[rules]]\nname = \"x\"\n\
                match = { src = \"\\u0007\", \"a\\u001bb\" = 1 }\naction = \"\\u001b\"\n";
    let message =
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect_err("it is no policy").to_string();
    assert!(message.lines().count() > 2, "{message:?}");
    assert!(!message.contains(|c: char| c.is_control() && c != '\n'), "{message:?}");
}

#[test]
fn a_set_file_may_begin_with_a_byte_order_mark() {
    let files = std::collections::BTreeMap::from([(
        "s.txt".to_owned(),
        "\u{feff}10.0.0.1\r\n10.0.0.2\r\n".to_owned(),
    )]);
    let text = "version = 1\n[sets]\ns = { file = \"s.txt\" }\n[[rules]]\nname = \"x\"\nmatch = { src = \"s\" }\naction = \"drop\"\n";
    let (policy, _) = policy::parse(&Source::new("p.toml", text), &files).expect("it is a policy");
    let src = policy.rules[0].matches.src.as_ref().expect("src").to_string();
    assert_eq!(src, "10.0.0.1/32,10.0.0.2/32");
}

#[test]
fn unusual_values_get_a_warning() {
    let warnings = |matches: &str| {
        let text = SLIP.replace("dst_prot = 80", matches);
        let (_, warnings) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("it is a policy");
        warnings.iter().map(|warning| warning.message.clone()).collect::<Vec<_>>().join("\n")
    };
    assert!(warnings("vlan = 4095").contains("reserved"));
    assert!(warnings("ethertype = 0x8100").contains("VLAN tag"));
    for usual in ["vlan = \"1-4095\"", "vlan = 0", "ethertype = [\"arp\", 0x8100]", "ethertype = \"ipv4\""] {
        assert_eq!(warnings(usual), "", "{usual}");
    }
}

#[test]
fn an_unreadable_file_is_noted_beyond_the_listed_errors() {
    let wrong: String = (0..150).map(|set| format!("a{set:03} = {{ kind = 1 }}\n")).collect();
    let text = format!("version = 1\n[sets]\n{wrong}z = {{ file = 'no.txt' }}\n");
    let folder = tempfile::tempdir().expect("a folder");
    let parsed = policy::parse(&Source::new("p.toml", text), &Folder(folder.path().into()));
    let errors = parsed.expect_err("it has errors");
    assert!(errors.omitted > 0 && !errors.to_string().contains("no.txt"), "{errors}");
    assert!(errors.is_unreadable());
}

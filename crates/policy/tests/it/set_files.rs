//! Files that a policy names: empty and truncated lists are reported, files that are not lists are not
//! quoted, and reading something that is not a regular file does not block.

use std::collections::BTreeMap;
use std::path::Path;

use policy::{Diagnostics, NoFiles, Source};

const RULE: &str = "[[rules]]\nname = \"x\"\nmatch = { src = \"s\" }\naction = \"drop\"\n";

type Parsed = Result<Vec<String>, Diagnostics>;

fn parse(text: &str, files: &[(&str, &str)]) -> Parsed {
    let files: BTreeMap<String, String> =
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let (_, warnings) = policy::parse(&Source::new("p.toml", text), &files)?;
    Ok(warnings.iter().map(ToString::to_string).collect())
}

/// A policy with one rule on the set `s`.
fn with_set(set: &str, file: &str) -> Parsed {
    parse(&format!("version = 1\n[sets]\ns = {set}\n{RULE}"), &[("s.txt", file)])
}

fn refused(parsed: Parsed) -> String {
    parsed.expect_err("it is refused").to_string()
}

#[test]
fn an_empty_set_is_an_error_unless_it_may_be_empty() {
    for text in ["", "\n", "# all gone\n", "\u{feff}", " \r\n"] {
        let message = refused(with_set("{ file = \"s.txt\" }", text));
        let wanted = "p.toml:3:14: error: the set `s` is empty: the file `s.txt` has no values (fill the file, \
                      or write allow_empty = true if it may be empty)";
        assert_eq!(message, wanted, "{text:?}");
        let allowed = with_set("{ file = \"s.txt\", allow_empty = true }", text).expect("allowed");
        assert!(allowed.iter().any(|one| one.contains("warning: the set `s` is empty")), "{allowed:?}");
    }
    for set in ["[]", "{ items = [] }", "{ items = [], allow_empty = false }"] {
        assert!(refused(with_set(set, "")).contains("the set `s` is an empty list"), "{set}");
    }
    with_set("{ items = [], allow_empty = true }", "").expect("allowed");
    // A list that comes from outside may be as empty as a file.
    let variable = format!("version = 1\n[variables]\nlist = []\n[sets]\ns = \"${{list}}\"\n{RULE}");
    assert!(refused(parse(&variable, &[])).contains("is an empty list"));
    // Used or not: the file is as empty.
    let unused = "version = 1\n[sets]\ns = { file = \"s.txt\" }\n[[rules]]\nname = \"x\"\nmatch = { any = true }\naction = \"drop\"\n";
    assert!(refused(parse(unused, &[("s.txt", "")])).contains("has no values"));
}

#[test]
fn a_set_with_fewer_values_than_it_must_have_is_an_error() {
    let file = "{ file = \"s.txt\", min_items = 3 }";
    with_set(file, "10.0.0.1\n10.0.0.2\n10.0.0.3\n").expect("three");
    let message = refused(with_set(file, "10.0.0.1\n10.0.0.2\n"));
    assert!(
        message.contains("p.toml:3:35: error: the set `s` has 2 values, fewer than min_items = 3"),
        "{message}"
    );
    with_set("{ items = [\"10.0.0.1\"], min_items = 1 }", "").expect("one");
    // Values of the sets that it names count, each set once.
    let nested = |least: u32| {
        parse(
            &format!(
                "version = 1\n[sets]\ns = {{ items = [\"f\", \"f\", \"10.0.0.9\"], min_items = {least} }}\n\
                 f = {{ file = \"s.txt\" }}\n{RULE}"
            ),
            &[("s.txt", "10.0.0.1\n10.0.0.2\n")],
        )
    };
    nested(3).expect("three");
    assert!(refused(nested(4)).contains("the set `s` has 3 values"));
    for (set, wanted) in [
        ("{ file = \"s.txt\", min_items = 0 }", "`min_items` is out of range"),
        ("{ file = \"s.txt\", min_items = 1, allow_empty = true }", "cannot be empty"),
        ("{ min_items = 1 }", "neither `file` nor `items`"),
        ("{ file = \"s.txt\", items = [\"10.0.0.1\"] }", "both `file` and `items`"),
    ] {
        assert!(refused(with_set(set, "10.0.0.1\n")).contains(wanted), "{set}");
    }
}

/// A set file that ends within 192.0.2.17 still has an address.
#[test]
fn a_set_file_without_a_final_newline_gets_a_warning() {
    let warnings = with_set("{ file = \"s.txt\" }", "10.0.0.1\n192.0.2.1").expect("a policy");
    let wanted = "s.txt:2:1: warning: the last line has no newline: the file may have been cut off";
    assert!(warnings.iter().any(|one| one.starts_with(wanted)), "{warnings:?}");
    assert_eq!(with_set("{ file = \"s.txt\" }", "10.0.0.1\n192.0.2.1\n").expect("a policy"), [""; 0]);
}

#[test]
fn includes_of_nothing_get_a_warning() {
    let main = |includes: &str| {
        format!(
            "version = 1\nincludes = {includes}\n[[rules]]\nname = \"x\"\nmatch = {{ any = true }}\naction = \"drop\"\n"
        )
    };
    let message = parse(&main("[]"), &[]).expect("a policy").join("\n");
    assert!(message.contains("p.toml:2:12: warning: `includes` is an empty list"), "{message}");
    for text in ["version = 1\n", "version = 1\n[sets]\n", "version = 1\nrules = []\n"] {
        let message = parse(&main("[\"i.toml\"]"), &[("i.toml", text)]).expect("a policy").join("\n");
        assert!(message.contains("i.toml:1:1: warning: the included file defines nothing"), "{message}");
    }
    assert!(refused(parse(&main("[\"i.toml\"]"), &[("i.toml", "")])).contains("has no `version`"));
}

/// All that is shown of diagnostics, by any way.
fn shown(problems: &Diagnostics) -> String {
    let handler = miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::none());
    let mut all = format!("{problems}\n{}\n", serde_json::to_string(problems).expect("JSON"));
    for report in problems.report() {
        handler.render_report(&mut all, report.as_ref()).expect("a report can be shown");
    }
    all
}

#[test]
fn a_file_that_is_not_a_list_is_not_quoted() {
    let texts = [
        "root:$6$s3cr3t:20228:0:99999:7:::\ndaemon:*:20228:0:99999:7:::\n",
        "s3cr3t\n",
        "10.0.0.1\ns3cr3t\n",
        "8157034962-s3cr3t\n",
        "TOKEN=s3cr3t # s3cr3t\n",
        "\"s3cr3t\"\n",
        "a s3cr3t\u{1}\0\n",
        "s3cr3t = 1\ns3cr3t = 1\n",
        "x = s3cr3t\n",
        "[s3cr3t\n",
        "x = { s3cr3t = \"s3cr3t\"\n",
        "token = \"s3cr3t\"\n",
        "version = 1\ns3cr3t = \"s3cr3t\"\n",
        "version = 5\ns3cr3t = \"s3cr3t\"\n",
        "version = \"s3cr3t\"\n",
        "s3cr3t: s3cr3t\n",
        "{ \"s3cr3t\": 1 }\n",
    ];
    for text in texts {
        for key in ["src", "dst_port", "protocol", "src_mac", "tcp_flags", "vlan"] {
            let policy = format!("version = 1\n[sets]\ns = {{ file = \"f\" }}\n{}", RULE.replace("src", key));
            let problems = parse(&policy, &[("f", text)]).expect_err("it is no list");
            let all = shown(&problems);
            assert!(!all.contains("s3cr3t") && !all.contains("8157034962"), "{text:?} as {key}:\n{all}");
        }
        let include = format!("version = 1\nincludes = [\"f\"]\n{}", RULE.replace("\"s\"", "\"10.0.0.1\""));
        let problems = parse(&include, &[("f", text)]).expect_err("it is no policy");
        let all = shown(&problems);
        assert!(!all.contains("s3cr3t") && !all.contains("8157034962"), "{text:?} as an include:\n{all}");
        // The place is still reported.
        assert!(problems.to_string().contains("f:"), "{problems}");
    }
}

/// A line that is nearly an address is quoted: a file that is not a list does not have such lines.
#[test]
fn a_wrong_address_in_a_file_is_quoted() {
    let message = refused(with_set("{ file = \"s.txt\" }", "10.0.0.1\n10.1.2.3/24\n"));
    let wanted =
        "s.txt:2:1: error: `10.1.2.3/24` in the set `s` is not an address (it has bits beyond its prefix";
    assert!(message.contains(wanted), "{message}");
    // An included policy is quoted as the main one is.
    let include = format!("version = 1\nincludes = [\"i\"]\n{}", RULE.replace("\"s\"", "\"10.0.0.1\""));
    let problems = parse(&include, &[("i", "version = 1\n[groups.g]\nworkres = [0]\n")]).expect_err("a slip");
    assert!(problems.to_string().contains("i:3:1: error: unknown key `workres`"), "{problems}");
    assert!(shown(&problems).contains("workres = [0]"), "the line is shown: {}", shown(&problems));
}

/// Nobody writes into the FIFO, and /dev/zero has no end: a test that hangs or runs out of memory is a failed
/// one.
#[test]
fn files_that_are_not_regular_are_refused_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("a FIFO");
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let policy = folder.path().join("p.toml");
    let error_of = |text: String| {
        std::fs::write(&policy, text).expect("written");
        policy::load(&policy).expect_err("refused").to_string()
    };
    let path = |path: &Path| path.display().to_string();
    for (name, what) in [
        (".".to_owned(), "a directory"),
        (path(&fifo), "a FIFO"),
        (path(&socket), "a socket"),
        ("/dev/zero".to_owned(), "a device"),
    ] {
        let wanted = format!("this is {what}, not a regular file");
        let set = error_of(format!("version = 1\n[sets]\ns = {{ file = \"{name}\" }}\n{RULE}"));
        assert!(set.contains(":3:14: error: cannot read the set: ") && set.contains(&wanted), "{set}");
        let include = error_of(format!("version = 1\nincludes = [\"{name}\"]\n"));
        assert!(include.contains(":2:13: error: cannot read the included file: "), "{include}");
        assert!(include.contains(&wanted), "{include}");
        let main = match name.as_str() {
            "." => policy::load(folder.path()),
            name => policy::load(name),
        };
        let main = main.expect_err("refused").to_string();
        assert!(main.contains(&wanted) && main.contains("or - for standard input"), "{main}");
    }
    let odd = policy::parse(
        &Source::new("p.toml", format!("version = 1\n[sets]\ns = {{ file = \"a\\u001bb\" }}\n{RULE}")),
        &policy::Folder(folder.path().to_owned()),
    );
    let odd = odd.expect_err("refused").to_string();
    assert!(odd.contains("its name has a control character") && !odd.contains('\u{1b}'), "{odd:?}");
}

#[test]
fn a_text_from_a_reader_has_a_limit_and_a_name() {
    let text = "version = 1\n[[rules]]\nname = \"x\"\nmatch = { any = true }\naction = \"drop\"\n";
    let source = policy::read_source("(standard input)", text.as_bytes()).expect("a text");
    policy::parse(&source, &NoFiles).expect("a policy");
    let endless = policy::read_source("(standard input)", std::io::repeat(b' ')).expect_err("no end");
    assert!(endless.to_string().contains("more than the 67108864 bytes"), "{endless}");
    let latin = policy::read_source("-", &b"version = 1\n# Stra\xdfe\n"[..]).expect_err("Latin-1");
    assert!(
        latin.to_string().starts_with("-:2:7: error: this byte is not UTF-8 (save it as UTF-8"),
        "{latin}"
    );
}

/// The lines are like those of another kind of list: the policy is wrong, or the file.
#[test]
fn a_file_of_another_kind_of_values_is_named_with_its_line() {
    let message = refused(with_set("{ file = \"s.txt\" }", "# ports\n\n22\n443\n"));
    let wanted = "p.toml:6:17: error: no item of the set `s` is an address (its first value is in s.txt:3; ";
    assert!(message.starts_with(wanted), "{message}");
}

/// The form in which `ipset save` and logs of IPv6 sockets write IPv4 addresses; no packet has them.
#[test]
fn ipv4_mapped_addresses_are_refused_with_the_ipv4_form() {
    let why = "no packet has an IPv4-mapped address, which stands for IPv4 in programs only";
    let message = refused(with_set("{ file = \"s.txt\" }", "192.0.2.1\n::ffff:198.51.100.0/120\n"));
    let wanted = format!(
        "s.txt:2:1: error: `::ffff:198.51.100.0/120` in the set `s` is not an address ({why}: write 198.51.100.0/24)"
    );
    assert_eq!(message, wanted);
    // A list of nothing else is not of another kind.
    let message = refused(with_set("{ file = \"s.txt\" }", "::ffff:198.51.100.1\n::ffff:198.51.100.2\n"));
    assert!(message.contains("s.txt:1:1: ") && message.contains("write 198.51.100.2)"), "{message}");
    for matches in [
        "src = '::ffff:198.51.100.1'",
        "dst = { not = '::ffff:c633:6401' }",
        "dst = ['2001:db8::1', '::ffff:198.51.100.1-::ffff:198.51.100.9']",
        "inner = { src = '::ffff:198.51.100.1' }",
    ] {
        let text = format!("version = 1\n[[rules]]\nname = 'x'\nmatch = {{ {matches} }}\naction = 'drop'\n");
        assert!(refused(parse(&text, &[])).contains(why), "{matches}");
    }
    let all = format!("version = 1\n[sets]\ns = ['::ffff:0:0/96', '100::/64']\n{RULE}");
    parse(&all, &[]).expect("a list of what must not be on a wire");
}

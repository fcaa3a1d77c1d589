//! The man pages: those of the commands are made from the command line, steerd.toml(5) from the documented
//! defaults, steerd-policy(5) from the schema of the language.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use serde_json::{Map, Value};

use super::exit_status;

/// The fields of the title: an empty date, which a page of a command line does not have, and the name of the
/// collection.
const NO_DATE: &str = "\"\"";
const MANUAL: &str = "steerd manual";
/// The name and the version of the program.
const SOURCE: &str = concat!("steerd ", env!("CARGO_PKG_VERSION"));

/// Commands by their names, each with command lines and what they are for.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "steerd",
        &[
            ("steerd run --demo", "Try it out: generated traffic on a NIC in software."),
            ("steerd check --config /etc/steerd/steerd.toml", "Check the policy of the service."),
            ("steerd status", "Show what the running daemon does."),
        ],
    ),
    (
        "steerd run",
        &[
            ("steerd run --config /etc/steerd/steerd.toml", "Run as the service does."),
            ("steerd run --demo --for 10s", "Run the demonstration for ten seconds."),
            ("steerd run --interface eth0 policy.toml", "Enforce a policy on a network interface."),
        ],
    ),
    (
        "steerd check",
        &[
            ("steerd check --model mlx5 --workers 2 policy.toml", "Check a policy for a device model."),
            (
                "steerd check --config /etc/steerd/steerd.toml --deny warnings,shadowed",
                "Fail on warnings and on rules that no packet reaches.",
            ),
        ],
    ),
    (
        "steerd size",
        &[(
            "steerd size --traffic typical.pcap --ns-per-packet 150 --times 10 policy.toml",
            "Show the load of the workers at ten times the rate of a capture.",
        )],
    ),
    (
        "steerd balance",
        &[(
            "steerd balance --dry-run --traffic typical.pcap policy.toml",
            "Show the moves that would even out the load of the workers.",
        )],
    ),
    (
        "steerd explain",
        &[
            (
                "steerd explain policy.toml --packet src=10.0.0.1,protocol=udp,dst_port=53",
                "Show where a packet goes.",
            ),
            ("steerd explain policy.toml --pcap typical.pcap", "Show where the packets of a capture go."),
        ],
    ),
    (
        "steerd diff",
        &[
            ("steerd diff old.toml new.toml", "Compare two policies."),
            ("steerd diff --live new.toml --for 30s", "Count the live packets that a policy would move."),
            ("steerd diff --running new.toml", "Compare a policy with the one in force."),
        ],
    ),
    ("steerd test", &[("steerd test --coverage policy.toml", "Run the tests of a policy.")]),
    ("steerd import", &[("steerd import nft ruleset.json", "Convert the output of nft -j list ruleset.")]),
    ("steerd lsp", &[("steerd lsp --model mlx5", "Serve an editor, for a device model.")]),
    (
        "steerd devices",
        &[
            ("steerd devices", "List the devices of this host."),
            ("steerd devices --probe mlx5_0", "Find the limits of a device, and write its model."),
        ],
    ),
    (
        "steerd doctor",
        &[("steerd doctor --config /etc/steerd/steerd.toml", "Show what to change on this host.")],
    ),
    (
        "steerd report",
        &[("steerd report --config /etc/steerd/steerd.toml", "Write a file for a bug report.")],
    ),
    ("steerd healthcheck", &[("steerd healthcheck --listen 127.0.0.1:9464", "Ask whether it is healthy.")]),
    ("steerd status", &[("steerd status --json", "Print the state for a program.")]),
    (
        "steerd reload",
        &[
            ("steerd reload --dry-run", "Show what a reload would do."),
            ("steerd reload --confirm 60s", "Go back after a minute unless steerd confirm comes."),
        ],
    ),
    ("steerd confirm", &[("steerd confirm", "Keep the policy that was reloaded with --confirm.")]),
    ("steerd rollback", &[("steerd rollback 2", "Go back by two policies.")]),
    ("steerd history", &[("steerd history", "List the policies that were in force.")]),
    ("steerd plan", &[("steerd plan new.toml", "Show the cost of a new policy.")]),
    (
        "steerd rule",
        &[("steerd rule add --action drop --ttl 10m src=192.0.2.1", "Drop a source for ten minutes.")],
    ),
    (
        "steerd worker",
        &[
            ("steerd worker drain 1", "Let worker 1 finish, and give its traffic to the others."),
            ("steerd worker add 5", "Put a spare worker to work on core 5."),
        ],
    ),
    (
        "steerd top",
        &[
            ("steerd top", "Show rates until q is pressed."),
            ("steerd top --page rules --sort packets/s --rows 10", "Print the ten busiest rules."),
            ("steerd top --page drops --once", "Print where packets are lost, and why."),
        ],
    ),
    ("steerd flows", &[("steerd flows", "List the installed flows.")]),
    (
        "steerd capture",
        &[("steerd capture dns --write dns.pcapng --count 1000", "Capture packets of a rule.")],
    ),
    ("steerd trace", &[("steerd trace --count 10", "Show the ways of ten packets.")]),
    (
        "steerd record",
        &[("steerd record --last 10s --write before.pcapng", "Write the packets of the last ten seconds.")],
    ),
];

/// The files of the service.
const FILES: &[(&str, &str)] = &[
    ("/etc/steerd/steerd.toml", "The settings of the service, see steerd.toml(5)."),
    ("/etc/steerd/policy.toml", "Its policy, see steerd-policy(5)."),
    ("/run/steerd/api.sock", "The socket of its API, which the commands about the running daemon use."),
    ("/var/lib/steerd", "Its state: rules at run time, records, and the policies that were in force."),
    ("/usr/share/doc/steerd", "The documentation, with example policies in examples."),
];

/// Writes `steerd.1`, `steerd-run.1`, ..., `steerd.toml.5` and `steerd-policy.5` into a folder. `settings`:
/// the documented default settings.
pub(super) fn generate(command: Command, settings: &str, folder: &Path) -> io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    generate_commands(&command, folder)?;
    fs::write(folder.join("steerd.toml.5"), settings_page(settings).render())?;
    fs::write(folder.join("steerd-policy.5"), policy_page(&policy::schema()).render())
}

fn generate_commands(command: &Command, folder: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        generate_commands(subcommand, folder)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    fs::write(folder.join(format!("{name}.1")), command_page(command)?)
}

fn command_page(command: &Command) -> io::Result<Vec<u8>> {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let man = Man::new(command.clone()).date(NO_DATE).source(SOURCE).manual(MANUAL);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let mut usage = Roff::new();
    usage.control("SH", ["SYNOPSIS"]);
    usage.text(synopsis(command, name));
    usage.to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|subcommand| !subcommand.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    if name == "steerd" {
        section(
            &mut rest,
            "ENVIRONMENT",
            &["A variable such as STEERD_HTTP__LISTEN overrides a setting, see steerd.toml(5)."],
        );
    }
    exit_status_section(&mut rest, command, name);
    files_section(&mut rest, name);
    examples_section(&mut rest, name);
    section(
        &mut rest,
        "SEE ALSO",
        &[if name == "steerd" {
            "steerd.toml(5), steerd-policy(5), softnic(1), /usr/share/doc/steerd/docs/README.md"
        } else {
            "steerd(1), steerd.toml(5), steerd-policy(5)"
        }],
    );
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// The command with its options and their values.
fn synopsis(command: &Command, name: &str) -> Vec<Inline> {
    let mut line = vec![bold(name)];
    let shown = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "help" && arg.get_id() != "version";
    let options = command.get_arguments().filter(shown).filter(|arg| !arg.is_positional());
    for arg in options.chain(command.get_positionals().filter(shown)) {
        line.push(roman(if arg.is_required_set() { " " } else { " [" }));
        line.extend(arg.get_long().map(|long| bold(format!("--{long}"))));
        let takes_values = arg.get_num_args().is_some_and(|count| count.takes_values());
        if takes_values {
            let names = arg.get_value_names().unwrap_or_default();
            line.extend(arg.get_long().map(|_| roman(" ")));
            line.push(italic(names.join(" ")));
        }
        line.push(roman(if arg.is_required_set() { "" } else { "]" }));
        let is_list = matches!(arg.get_action(), clap::ArgAction::Append);
        line.extend(is_list.then(|| roman(" ...")));
    }
    line.extend(command.has_subcommands().then(|| italic(" command")));
    line
}

fn exit_status_section(page: &mut Roff, command: &Command, name: &str) {
    page.control("SH", ["EXIT STATUS"]);
    let Some(codes) = exit_status::of(name) else {
        page.text([roman("See steerd(1).")]);
        let notes = command.get_after_help().filter(|notes| !notes.to_string().starts_with("Example"));
        if let Some(notes) = notes {
            section(page, "NOTES", &[&notes.to_string()]);
        }
        return;
    };
    for (code, meaning) in codes {
        entry(page, &code.to_string(), &meaning.replace('\n', " "));
    }
}

fn files_section(page: &mut Roff, name: &str) {
    if !matches!(name, "steerd" | "steerd run") {
        return;
    }
    page.control("SH", ["FILES"]);
    FILES.iter().for_each(|(file, about)| entry(page, file, about));
}

fn examples_section(page: &mut Roff, name: &str) {
    let Some((_, examples)) = EXAMPLES.iter().find(|(command, _)| *command == name) else { return };
    page.control("SH", ["EXAMPLES"]);
    examples.iter().for_each(|(line, about)| entry(page, line, about));
}

/// A section of paragraphs.
fn section(page: &mut Roff, title: &str, paragraphs: &[&str]) {
    page.control("SH", [title]);
    for (index, paragraph) in paragraphs.iter().enumerate() {
        if index > 0 {
            page.control("PP", []);
        }
        page.text([roman(*paragraph)]);
    }
}

/// A term and its description.
fn entry(page: &mut Roff, term: &str, about: &str) {
    page.control("TP", []);
    page.text([bold(term)]);
    page.text([roman(about)]);
}

/// The begin of a page of section 5.
fn file_page(name: &str, about: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", [name, "5", NO_DATE, SOURCE, MANUAL]);
    section(&mut page, "NAME", &[&format!("{name} - {about}")]);
    page
}

/// steerd.toml(5): each key with its default and the comment before it.
fn settings_page(settings: &str) -> Roff {
    let mut page = file_page("steerd.toml", "settings of the packet-steering daemon steerd");
    section(&mut page, "SYNOPSIS", &["/etc/steerd/steerd.toml"]);
    page.control("SH", ["DESCRIPTION"]);
    let mut comment: Vec<&str> = Vec::new();
    for line in settings.lines() {
        if let Some(text) = line.strip_prefix('#') {
            comment.push(text.strip_prefix(' ').unwrap_or(text));
            continue;
        }
        if line.starts_with('[') {
            comments(&mut page, &std::mem::take(&mut comment));
            page.control("SH", [line]);
        } else if line.is_empty() {
            comments(&mut page, &std::mem::take(&mut comment));
        } else {
            page.control("TP", []);
            page.text([bold(line)]);
            comments(&mut page, &std::mem::take(&mut comment));
        }
    }
    page.control("SH", ["FILES"]);
    FILES.iter().for_each(|(file, about)| entry(&mut page, file, about));
    section(&mut page, "SEE ALSO", &["steerd(1), steerd-run(1), steerd-policy(5)"]);
    page
}

/// The lines of a comment: TOML is an entry of its own, an indented list stays as it is, and prose is filled.
fn comments(page: &mut Roff, lines: &[&str]) {
    let mut is_list = false;
    for line in lines {
        let is_toml = line.starts_with("[[") || line.split(' ').nth(1) == Some("=");
        let in_list = line.starts_with("  ") && !line.starts_with("    ");
        if in_list != is_list {
            page.control(if in_list { "nf" } else { "fi" }, []);
            is_list = in_list;
        }
        if is_toml {
            page.control("TP", []);
            page.text([bold(*line)]);
        } else if in_list {
            page.text([roman(*line)]);
        } else if line.is_empty() {
            page.control("PP", []);
        } else {
            // Columns are for the file alone.
            page.text([roman(line.split_whitespace().collect::<Vec<_>>().join(" "))]);
        }
    }
    if is_list {
        page.control("fi", []);
    }
}

/// The tables of the language, in the order of the page: their names in the schema, and their titles.
const TABLES: &[(&str, &str)] = &[
    ("set_file", "SETS FROM FILES"),
    ("set_table", "SETS WITH LIMITS"),
    ("sink", "SINKS"),
    ("group", "GROUPS"),
    ("rule", "RULES"),
    ("match", "MATCHES"),
    ("mpls_entry", "MATCHES OF AN MPLS LABEL"),
    ("per", "LIMITS OF SOURCES"),
    ("inner_match", "MATCHES OF THE INNER PACKET"),
    ("not", "NEGATED VALUES"),
    ("action", "ACTIONS"),
    ("default", "THE DEFAULT"),
    ("vlan_change", "CHANGES OF VLAN TAGS"),
    ("protect", "PROTECTED PACKETS"),
    ("runtime", "RULES AT RUN TIME"),
    ("recorder", "THE RECORDER"),
    ("trigger", "TRIGGERS OF THE RECORDER"),
    ("test", "TESTS"),
    ("counts", "COUNTS OF A TEST"),
];

/// steerd-policy(5): each key of each table.
fn policy_page(schema: &Value) -> Roff {
    let mut page = file_page("steerd-policy", "policy language of the packet-steering daemon steerd");
    section(&mut page, "SYNOPSIS", &["/etc/steerd/policy.toml"]);
    section(
        &mut page,
        "DESCRIPTION",
        &[
            "A policy is a TOML file that says which packets leave the kernel and where they go. The first rule that matches \
         a packet decides it; packets that no rule matches have the default.",
            "This page lists all keys. The guide to the language, with examples, is \
         /usr/share/doc/steerd/docs/reference/policy.md; example policies are in /usr/share/doc/steerd/examples. \
         steerd-check(1) checks a policy and shows what a device does with it.",
        ],
    );
    page.control("SH", ["KEYS OF THE FILE"]);
    keys(&mut page, schema);
    for (name, title) in TABLES {
        page.control("SH", [*title]);
        tables(&mut page, &schema["$defs"][*name]);
    }
    section(&mut page, "SEE ALSO", &["steerd-check(1), steerd-explain(1), steerd-test(1), steerd.toml(5)"]);
    page
}

/// The keys of a table, or of each form that it may have.
fn tables(page: &mut Roff, definition: &Value) {
    if definition["properties"].is_object() {
        return keys(page, definition);
    }
    for form in forms(definition) {
        if let Some(kind) = form["properties"]["kind"]["const"].as_str() {
            page.control("SS", [format!("kind {kind}").as_str()]);
        }
        keys(page, form);
    }
}

/// The forms of a value that are tables.
fn forms(definition: &Value) -> impl Iterator<Item = &Value> {
    let forms = ["anyOf", "oneOf"].into_iter().filter_map(|of| definition[of].as_array()).flatten();
    forms.flat_map(|form| match form["oneOf"].as_array().or(form["anyOf"].as_array()) {
        Some(inner) => inner.iter().collect::<Vec<_>>(),
        None => vec![form],
    })
}

fn keys(page: &mut Roff, table: &Value) {
    let required = table["required"].as_array().map_or(&[][..], Vec::as_slice);
    let none = Map::new();
    for (name, value) in table["properties"].as_object().unwrap_or(&none) {
        let note = if required.iter().any(|key| key == name) { " (required)" } else { "" };
        page.control("TP", []);
        page.text([bold(name), roman(note)]);
        page.text([roman(value["description"].as_str().unwrap_or_default())]);
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Cli;
    use super::*;

    #[test]
    fn every_example_is_a_command_line() {
        for (command, examples) in EXAMPLES {
            for (line, _) in *examples {
                assert!(line.starts_with(command), "{line}");
                let parsed = Cli::try_parse_from(line.split(' '));
                assert!(parsed.is_ok(), "{line}: {}", parsed.expect_err("an error"));
            }
        }
    }

    #[test]
    fn every_command_has_an_example() {
        let command = Cli::command();
        for shown in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = format!("steerd {}", shown.get_name());
            assert!(EXAMPLES.iter().any(|(command, _)| *command == name), "{name}");
        }
    }

    #[test]
    fn the_synopsis_has_the_values_of_options() {
        let mut command = Cli::command();
        command.build();
        let reload = command.find_subcommand("reload").expect("a command");
        let page = String::from_utf8(command_page(reload).expect("a page")).expect("UTF-8");
        assert!(page.contains("[\\fB\\-\\-confirm\\fR \\fITIME\\fR]"), "{page}");
        assert!(page.contains(".SH EXIT STATUS") || page.contains(".SH \"EXIT STATUS\""), "{page}");
        assert!(!page.contains("EXTRA"), "{page}");
    }

    #[test]
    fn every_table_of_the_schema_is_on_the_page_of_the_language() {
        let schema = policy::schema();
        let page = policy_page(&schema).render();
        let mut found = 0;
        for (name, definition) in schema["$defs"].as_object().expect("definitions") {
            let has_keys = definition["properties"].is_object()
                || forms(definition).any(|form| form["properties"].is_object());
            assert_eq!(TABLES.iter().any(|(table, _)| table == name), has_keys, "{name}");
            let tables = definition["properties"].as_object().into_iter();
            for key in tables.flat_map(Map::keys) {
                assert!(page.contains(&format!("\\fB{key}\\fR")), "{name}.{key}");
                found += 1;
            }
        }
        assert!(found > 50, "{found} keys");
    }
}

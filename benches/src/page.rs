//! The tables of docs/explanation/performance.md from the JSON of a run, as Markdown: nothing on that page is copied by hand.

use std::fmt::Write as _;

use serde_json::Value;

use crate::table::digits;

/// All tables of a run of the bench `neighbours`, with its conditions, ratios and commands.
#[must_use]
pub fn tables(run: &Value) -> String {
    let mut text = String::new();
    let conditions = string(&run["conditions"], "conditions");
    paragraph(
        &mut text,
        &format!("Measured with `{}` on {}.", string(run, "command"), string(run, "machine")),
    );
    let provisional = run["conditions"]["provisional"] == true;
    paragraph(&mut text, &if provisional { format!("**{conditions}**") } else { conditions.to_owned() });
    paragraph(
        &mut text,
        "![millions of packets per second from core to core, frames of 64 bytes](neighbours.svg)",
    );
    let rows = run["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        let name = string(row, "table");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        let of_table: Vec<&Value> = rows.iter().filter(|row| row["table"] == name).collect();
        table(&mut text, name, &of_table);
        commands(&mut text, &of_table);
    }
    ratios(&mut text, run["ratios"].as_array().map_or(&[][..], Vec::as_slice));
    text
}

/// The lines of a page between which the tables stand.
const BEGIN: &str = "<!-- tables: begin -->\n";
const END: &str = "<!-- tables: end -->\n";

/// The page with these tables in place of earlier ones; `None` if it has no place for them.
#[must_use]
pub fn filled(page: &str, tables: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{}\n\n{END}{after}", tables.trim()))
}

fn string<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn paragraph(text: &mut String, words: &str) {
    write!(text, "{words}\n\n").expect("a String");
}

fn table(text: &mut String, name: &str, rows: &[&Value]) {
    write!(text, "### {name}\n\n| what | frame | median | least to most | |\n|---|---|---|---|---|\n")
        .expect("a String");
    for row in rows {
        let what = string(row, "what");
        let frame = row["frame_bytes"].as_u64().filter(|bytes| *bytes > 0);
        let frame = frame.map_or(String::new(), |bytes| format!("{bytes} B"));
        if let Some(median) = row["median"].as_f64() {
            let spread = format!("{} to {}", number(&row["least"]), number(&row["most"]));
            let median = format!("{} {}", digits(median), string(row, "unit"));
            writeln!(text, "| {what} | {frame} | {median} | {spread} | {} |", string(row, "note"))
                .expect("a String");
        } else {
            let why = string(row, "not_measured").replace('|', "/");
            writeln!(text, "| {what} | {frame} | not measured | | {why} |").expect("a String");
        }
    }
    text.push('\n');
}

fn ratios(text: &mut String, ratios: &[Value]) {
    if ratios.is_empty() {
        return;
    }
    text.push_str("### How many times as fast\n\n| what | median | least to most |\n|---|---|---|\n");
    for ratio in ratios {
        let what = string(ratio, "what");
        match ratio["median"].as_f64() {
            Some(median) => {
                let spread = format!("{} to {}", number(&ratio["least"]), number(&ratio["most"]));
                writeln!(text, "| {what} | {} | {spread} |", digits(median)).expect("a String");
            }
            None => writeln!(text, "| {what} | not measured | |").expect("a String"),
        }
    }
    text.push('\n');
}

/// The commands of the rows that other programs ran, each once.
fn commands(text: &mut String, rows: &[&Value]) {
    let mut seen: Vec<&str> = Vec::new();
    for row in rows {
        let command = string(row, "command");
        if !command.is_empty() && !seen.contains(&command) {
            seen.push(command);
        }
    }
    if !seen.is_empty() {
        write!(text, "Commands:\n\n```console\n{}\n```\n\n", seen.join("\n")).expect("a String");
    }
}

fn number(value: &Value) -> String {
    value.as_f64().map_or(String::new(), digits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn new_tables_replace_the_old_ones_only() {
        let page = format!("a\n{BEGIN}old\n{END}z\n");
        let once = filled(&page, "new\n").expect("a place");
        assert_eq!(once, format!("a\n{BEGIN}\nnew\n\n{END}z\n"));
        assert_eq!(filled(&once, "new\n"), Some(once));
        assert_eq!(filled("a page", "new"), None);
    }

    #[test]
    fn a_busy_machine_and_a_missing_program_are_on_the_page() {
        let run = json!({
            "machine": "m", "command": "make bench",
            "conditions": { "provisional": true, "conditions": "machine busy: figures are provisional" },
            "rows": [
                { "table": "lookup", "what": "ours", "frame_bytes": 64, "unit": "ns", "median": 12.34, "least": 1.0, "most": 20.0 },
                { "table": "lookup", "what": "theirs", "frame_bytes": 64, "unit": "ns", "not_measured": "no program", "command": "x -y" },
            ],
            "ratios": [{ "what": "ours beside theirs", "not_measured": "no program" }],
        });
        let text = tables(&run);
        assert!(text.contains("**machine busy: figures are provisional**"), "{text}");
        assert!(text.contains("| ours | 64 B | 12.3 ns | 1.00 to 20.0 |  |"), "{text}");
        assert!(text.contains("| theirs | 64 B | not measured | | no program |"), "{text}");
        assert!(text.contains("```console\nx -y\n```"), "{text}");
    }
}

//! docs/generated/measurements.md from the JSON of a run: nothing on that page is copied by hand.

use std::fmt::Write as _;

use serde_json::Value;

use crate::table::digits;

/// What the page says before the tables.
const HEAD: &str = "# Measurements

Written by the bench `neighbours`: see [performance](../explanation/performance.md#beside-what-you-would-take-instead) for what is compared with
what, under which conditions, and why. Absolute figures are those of one machine in one run; only ratios are claims.

";

/// The page: all tables of a run of the bench `neighbours`, with its conditions, ratios and commands.
#[must_use]
pub fn page(run: &Value) -> String {
    let mut text = HEAD.to_owned();
    let conditions = string(&run["conditions"], "conditions");
    paragraph(
        &mut text,
        &format!(
            "Measured with `{}` on {}, {}.",
            string(run, "command"),
            string(run, "machine"),
            string(run, "day_and_commit")
        ),
    );
    let provisional = run["conditions"]["provisional"] == true;
    paragraph(&mut text, &if provisional { format!("**{conditions}**") } else { conditions.to_owned() });
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
        commands(&mut text, &of_table, &run["variables"]);
    }
    ratios(&mut text, run["ratios"].as_array().map_or(&[][..], Vec::as_slice));
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn string<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn paragraph(text: &mut String, words: &str) {
    write!(text, "{words}\n\n").expect("a String");
}

fn table(text: &mut String, name: &str, rows: &[&Value]) {
    write!(text, "## {name}\n\n| what | frame | median | least to most | |\n|---|---|---|---|---|\n")
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
    text.push_str("## How many times as fast\n\n| what | median | least to most |\n|---|---|---|\n");
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

/// The commands of the rows that other programs ran, each once, folded away. Folders that variables of the
/// environment name are written as these variables.
fn commands(text: &mut String, rows: &[&Value], variables: &Value) {
    let mut seen: Vec<String> = Vec::new();
    for row in rows {
        let mut command = string(row, "command").to_owned();
        for (variable, folder) in variables.as_object().into_iter().flatten() {
            if let Some(folder) = folder.as_str().filter(|folder| !folder.is_empty()) {
                command = command.replace(folder, &format!("${variable}"));
            }
        }
        if !command.is_empty() && !seen.contains(&command) {
            seen.push(command);
        }
    }
    if !seen.is_empty() {
        let commands = seen.join("\n");
        write!(text, "<details><summary>Commands</summary>\n\n```console\n{commands}\n```\n\n</details>\n\n")
            .expect("a String");
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
    fn a_busy_machine_and_a_missing_program_are_on_the_page() {
        let run = json!({
            "machine": "m", "day_and_commit": "2026-01-01", "command": "make bench",
            "conditions": { "provisional": true, "conditions": "machine busy: figures are provisional" },
            "rows": [
                { "table": "lookup", "what": "ours", "frame_bytes": 64, "unit": "ns", "median": 12.34, "least": 1.0, "most": 20.0 },
                { "table": "lookup", "what": "theirs", "frame_bytes": 64, "unit": "ns", "not_measured": "no program", "command": "x -y /tmp/a/rules" },
            ],
            "variables": { "FOLDER": "/tmp/a", "UNSET": "" },
            "ratios": [{ "what": "ours beside theirs", "not_measured": "no program" }],
        });
        let text = page(&run);
        assert!(text.contains("**machine busy: figures are provisional**"), "{text}");
        assert!(text.contains("| ours | 64 B | 12.3 ns | 1.00 to 20.0 |  |"), "{text}");
        assert!(text.contains("| theirs | 64 B | not measured | | no program |"), "{text}");
        assert!(text.contains("```console\nx -y $FOLDER/rules\n```"), "{text}");
    }
}

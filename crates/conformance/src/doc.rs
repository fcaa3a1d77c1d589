//! docs/conformance.md, out of the suite: no row is written by hand.

use std::fmt::Write;

use softnic::Personality;

use crate::{ABSENT, Case, Verb, cases};

const HEAD: &str = "\
# Conformance

<!-- Written by `cargo run -p conformance -- --write-docs`; a test fails when it is stale. -->

Every field and every enum value of `ibv_alloc_parent_domain`, `ibv_create_qp_ex`, `ibv_create_cq_ex`, `ibv_create_flow`
and their companions: where the safe crate offers it, what the suite sees happen, and what a device of each kind answers.
`make conformance` tries every row on the soft NIC's three personalities, `STEERD_TEST_DEVICE=NAME make conformance` on a
device, and `steerd devices --probe NAME` those rows that disturb nobody (marked with •). A test holds the list of names
against `/usr/include/infiniband/verbs.h`.

*works*: done, and seen to be done. *ignored*: accepted, without any effect. *refused*: with this errno, as the source in
the last column has it. *on a device*: what a real mlx5 device does otherwise than the soft NIC that plays it, or does by a
capability of its firmware that no verb reports.

The columns of mlx5 and mlx4 are read out of the sources that the last column names, and are not measured: nobody has run the
suite on such a device so far. What a source does not say but lets one conclude is called *inferred* there. A row that a
device contradicts is a mistake in the soft NIC's personality and in the compiler's profile of that name.
";

/// The whole document.
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    let all = cases();
    for verb in Verb::ALL {
        let rows: Vec<&Case> = all.iter().filter(|case| case.verb == verb).collect();
        let _ = write!(
            text,
            "\n## {verb}\n\n| field | value | offered by | what is seen | ideal | mlx5 | mlx4 | source |\n|---|---|---|---|---|---|---|---|\n"
        );
        rows.iter().for_each(|case| row(&mut text, case));
        for absent in ABSENT.iter().filter(|absent| absent.verb == verb) {
            let _ = writeln!(text, "| `{}` | | not offered | {} | - | - | - | |", absent.name, absent.why);
        }
    }
    let _ = write!(text, "\n{} cases.\n", all.len());
    text
}

fn row(text: &mut String, case: &Case) {
    let [ideal, mlx5, mlx4] = Personality::ALL.map(|personality| case.expected.of(personality));
    let mlx5 = match case.expected.mlx5_varies {
        "" => mlx5.to_string(),
        by => format!("{mlx5}; on a device: {by}"),
    };
    let probed = if case.needs == crate::Needs::Objects { "• " } else { "" };
    let _ = writeln!(
        text,
        "| `{}` | {} | `{}` | {probed}{} | {ideal} | {mlx5} | {mlx4} | {} |",
        case.field,
        value(case.value),
        case.offered,
        case.shows,
        case.expected.source,
    );
}

/// Constants as code, words as words.
fn value(value: &str) -> String {
    let word = |word: &str| {
        if word.starts_with("IBV_") { format!("`{word}`") } else { word.replace('|', "\\|") }
    };
    value.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

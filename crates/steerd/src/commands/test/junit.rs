//! The results as JUnit XML, which build servers read: a `testsuite` for each policy, a `testcase` for each
//! test.

use std::fmt::Write as _;

use super::report::{PolicyReport, TestLine};

/// The document.
pub(super) fn text(reports: &[PolicyReport]) -> String {
    let sum = |of: fn(&PolicyReport) -> usize| reports.iter().map(of).sum::<usize>();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Strings take text.
    let _ = writeln!(
        out,
        "<testsuites name=\"steerd test\" tests=\"{}\" failures=\"{}\" errors=\"{}\">",
        sum(|report| report.tests.len() + errors(report)),
        sum(PolicyReport::failed),
        sum(errors)
    );
    for report in reports {
        suite(report, &mut out);
    }
    out.push_str("</testsuites>\n");
    out
}

fn errors(report: &PolicyReport) -> usize {
    usize::from(report.error.is_some())
}

fn suite(report: &PolicyReport, out: &mut String) {
    let seconds: f64 = report.tests.iter().map(|test| test.seconds).sum();
    let _ = writeln!(
        out,
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" time=\"{seconds:.3}\">",
        escaped(&report.policy),
        report.tests.len() + errors(report),
        report.failed(),
        errors(report)
    );
    if let Some(error) = &report.error {
        let policy = escaped(&report.policy);
        let _ = writeln!(
            out,
            "    <testcase name=\"the policy is tested\" classname=\"{policy}\"><error message=\"{}\"/></testcase>",
            escaped(error)
        );
    }
    for test in &report.tests {
        case(report, test, out);
    }
    out.push_str("  </testsuite>\n");
}

fn case(report: &PolicyReport, test: &TestLine, out: &mut String) {
    let _ = write!(
        out,
        "    <testcase name=\"{}\" classname=\"{}\" file=\"{}\" line=\"{}\" time=\"{:.3}\"",
        escaped(&test.name),
        escaped(&report.policy),
        escaped(&test.file),
        test.line,
        test.seconds
    );
    if test.passed {
        out.push_str("/>\n");
        return;
    }
    out.push_str(">\n");
    let message = test.failures.first().map(|failure| failure.message.as_str()).unwrap_or_default();
    let whole: Vec<String> = test.failures.iter().map(ToString::to_string).collect();
    let _ = writeln!(
        out,
        "      <failure message=\"{}\" type=\"failed\">{}</failure>\n    </testcase>",
        escaped(message),
        escaped(&whole.join("\n"))
    );
}

/// The text in an attribute or an element. XML 1.0 has no way to write most control characters.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\n' => out.push_str("&#10;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(
            escaped("a<b> & \"c\"\n'd'\u{1b}"),
            "a&lt;b&gt; &amp; &quot;c&quot;&#10;&apos;d&apos;\u{fffd}"
        );
    }
}

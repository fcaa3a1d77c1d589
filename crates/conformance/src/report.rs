//! Runs cases and reports the results, as text or for serialisation.

use std::sync::Arc;

use serde::Serialize;
use softnic::Personality;
use verbs::{Context, PortNumber};

use crate::case::errno_name;
use crate::{Answer, Bench, Case, Failure, Needs, Outcome, cases};

/// The result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The answer is the expected one.
    Ok,
    /// Nothing is expected of the device: it did what was asked, ignored it or refused it.
    Recorded,
    /// Not as expected, or the device accepted the request and did something else.
    Mismatch,
    /// Not run.
    NotRun,
}

/// A case that was run.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the fields of `Case`, as text
pub struct Row {
    pub verb: String,
    pub field: &'static str,
    pub value: &'static str,
    pub offered: &'static str,
    pub shows: &'static str,
    /// The expected answer; absent for a device of unknown kind.
    pub expected: Option<String>,
    pub seen: String,
    pub verdict: Verdict,
    /// The source of the expectation.
    pub source: &'static str,
}

/// The results of a device.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Report {
    pub device: String,
    pub port: u8,
    pub rows: Vec<Row>,
}

impl Report {
    /// The number of rows with this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// Whether the device was seen to do as expected: some row is as expected, none is a mismatch, and none
    /// is only recorded.
    pub fn passed(&self) -> bool {
        let is_none = |verdict| self.count(verdict) == 0;
        is_none(Verdict::Mismatch) && is_none(Verdict::Recorded) && !is_none(Verdict::Ok)
    }

    /// A line for each row and the summary. Rows that are as expected are included only if `verbose`.
    pub fn text(&self, verbose: bool) -> String {
        let mut text = String::new();
        for row in self.rows.iter().filter(|row| verbose || row.verdict != Verdict::Ok) {
            let mark = match row.verdict {
                Verdict::Ok => "ok      ",
                Verdict::Recorded => "recorded",
                Verdict::Mismatch => "MISMATCH",
                Verdict::NotRun => "NOT RUN ",
            };
            let expected = row.expected.as_deref().unwrap_or("-");
            text.push_str(&format!(
                "{mark}  {:<24}  {:<42}  {:<46}  {expected:<20}  {}\n",
                row.verb, row.field, row.value, row.seen
            ));
        }
        text.push_str(&format!("{}\n", self.summary()));
        text
    }

    /// One line; for a device of unknown kind with what to do for expectations.
    pub fn summary(&self) -> String {
        let mut text = format!(
            "{}: {} cases, {} as expected, {} mismatches, {} not run",
            self.device,
            self.rows.len(),
            self.count(Verdict::Ok),
            self.count(Verdict::Mismatch),
            self.count(Verdict::NotRun),
        );
        let recorded = self.count(Verdict::Recorded);
        if recorded > 0 {
            text.push_str(&format!(
                ", {recorded} recorded: no answers are expected of its driver (hint: --personality names some)"
            ));
        }
        text
    }
}

/// Compares an outcome with the expected answer, if there is one.
pub fn judge(outcome: &Outcome, expected: Option<Answer>) -> (Verdict, String) {
    let (answer, seen) = match outcome {
        Ok(()) => (Answer::Works, Answer::Works.to_string()),
        Err(Failure::Ignored) => (Answer::Ignored, Answer::Ignored.to_string()),
        Err(Failure::Refused(errno)) => (Answer::Refused(*errno), Answer::Refused(*errno).to_string()),
        Err(Failure::Differs(how)) => (Answer::Differs, format!("differs: {how}")),
        Err(Failure::Unobserved(why)) => {
            return (Verdict::NotRun, format!("accepted, effect not observed: {why}"));
        }
        Err(Failure::NotRun(why)) => return (Verdict::NotRun, format!("not run: {why}")),
    };
    match expected {
        Some(expected) if expected == answer => (Verdict::Ok, seen),
        // uverbs_cmd.c asks for the capability before anything else.
        _ if answer == Answer::Refused(libc::EPERM) => {
            (Verdict::NotRun, format!("not run: {}, needs CAP_NET_RAW", errno_name(libc::EPERM)))
        }
        None if answer != Answer::Differs => (Verdict::Recorded, seen),
        _ => (Verdict::Mismatch, seen),
    }
}

/// Runs the cases that `wanted` selects. Without a personality there are no expectations: refusals are
/// reported only.
pub fn run(bench: &Bench<'_>, personality: Option<Personality>, wanted: impl Fn(&Case) -> bool) -> Report {
    let rows = cases().iter().filter(|case| wanted(case)).map(|case| row(bench, personality, case)).collect();
    Report { device: bench.context.name().into(), port: bench.port.0, rows }
}

fn row(bench: &Bench<'_>, personality: Option<Personality>, case: &Case) -> Row {
    let expected = personality.map(|personality| case.expected.of(personality));
    let outcome = match bench.lacks(case.needs) {
        Some(why) => Err(Failure::NotRun(why)),
        None => {
            bench.forget_sent();
            (case.run)(bench)
        }
    };
    let (verdict, seen) = judge(&outcome, expected);
    let expected = expected.map(|expected| expected.to_string());
    Row {
        verb: case.verb.to_string(),
        field: case.field,
        value: case.value,
        offered: case.offered,
        shows: case.shows,
        expected,
        seen,
        verdict,
        source: case.expected.source,
    }
}

/// Runs the cases that do not affect other users: they create objects and destroy them at once, and flows
/// match an unused address.
///
/// # Errors
/// The device cannot be queried.
pub fn probe(context: &Arc<Context>, port: u8) -> verbs::Result<Report> {
    let bench = Bench::new(context, PortNumber(port), None)?;
    Ok(run(&bench, None, |case| case.needs == Needs::Objects))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_expected_is_ok() {
        let works = Some(Answer::Works);
        let refused = Some(Answer::Refused(libc::EINVAL));
        let no = |errno| Err(Failure::Refused(errno));
        assert_eq!(judge(&Ok(()), works).0, Verdict::Ok);
        assert_eq!(judge(&Ok(()), refused).0, Verdict::Mismatch);
        assert_eq!(judge(&no(libc::EINVAL), refused).0, Verdict::Ok);
        assert_eq!(judge(&no(libc::ENOMEM), refused).0, Verdict::Mismatch);
        assert_eq!(judge(&no(libc::EPERM), refused).0, Verdict::NotRun);
        assert_eq!(judge(&Err(Failure::Ignored), works).0, Verdict::Mismatch);
        assert_eq!(judge(&no(libc::ENOMEM), None).0, Verdict::Recorded, "nothing is expected");
        assert_eq!(judge(&Ok(()), None).0, Verdict::Recorded, "nothing is expected");
        assert_eq!(judge(&no(libc::EPERM), None).0, Verdict::NotRun, "the kernel has refused it");
        let differs = Err(Failure::Differs("so".into()));
        assert_eq!(judge(&differs, None).0, Verdict::Mismatch, "accepted, but something else was done");
    }

    #[test]
    fn a_report_passes_only_with_rows_that_are_as_expected() {
        let report = |verdicts: &[Verdict]| {
            let row = |verdict: &Verdict| Row {
                verb: String::new(),
                field: "",
                value: "",
                offered: "",
                shows: "",
                expected: None,
                seen: String::new(),
                verdict: *verdict,
                source: "",
            };
            Report { device: "nic".into(), port: 1, rows: verdicts.iter().map(row).collect() }
        };
        assert!(report(&[Verdict::Ok, Verdict::NotRun]).passed());
        for verdicts in [
            &[Verdict::Ok, Verdict::Mismatch][..],
            &[Verdict::Recorded],
            &[Verdict::Ok, Verdict::Recorded],
            &[Verdict::NotRun],
            &[],
        ] {
            assert!(!report(verdicts).passed(), "{verdicts:?}");
        }
        let summary = report(&[Verdict::Recorded]).summary();
        assert!(summary.contains("0 as expected") && summary.contains("1 recorded"), "{summary}");
    }
}

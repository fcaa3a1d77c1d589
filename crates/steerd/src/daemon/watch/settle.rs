//! The end of a change of files: they are quiet, nobody has one open that he has written to, and the policy
//! can be used.

use std::time::{Duration, Instant};

use super::Patience;
use crate::policy_file::ExaminedPolicy;

/// A change that is not read yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// The time of the first change. It stays while `first` moves on.
    begun: Instant,
    first: Instant,
    last: Instant,
    /// Whether somebody has a file open that he has written to.
    pub(super) is_written: bool,
    /// The hash of a reading that has to be made again, after the time for a policy that cannot be used, or
    /// because nothing shows whether the files are quiet.
    read: Option<String>,
    /// The time after the last change after which it is read again.
    again: Option<Duration>,
    /// Whether a warning has named the file that somebody keeps open.
    is_warned_of: bool,
}

/// The decision on a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The files are read again later.
    Wait,
    /// The policy is as before.
    Nothing,
    /// The policy is to be put in force.
    Pass,
}

impl Pending {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            begun: now,
            first: now,
            last: now,
            is_written: false,
            read: None,
            again: None,
            is_warned_of: false,
        }
    }

    /// Notes a change.
    pub(super) fn note(&mut self, now: Instant) {
        if self.is_written {
            // However long a file takes to be written, it is quiet before it is read.
            self.first = now;
        }
        self.last = now;
        self.again = None;
    }

    /// The time at which the files are to be read.
    pub(super) fn due(&self, patience: &Patience) -> Instant {
        if self.is_written {
            return self.last + patience.open;
        }
        let quiet = self.last + self.again.unwrap_or(patience.settle);
        // Without a pause between changes they are never quiet.
        quiet.min((self.first + patience.longest).max(self.last))
    }

    /// Returns `true` once, if a file that is written to has delayed the reading for longer than changes
    /// without a pause may.
    pub(super) fn begins_to_warn(&mut self, now: Instant, patience: &Patience) -> bool {
        let is_late = self.is_written && self.begun + patience.longest <= now;
        is_late && !std::mem::replace(&mut self.is_warned_of, true)
    }

    /// Decides on a reading that was due. `has_changed`: it is another policy than the one passed on before.
    /// `is_sure`: changes during the reading are reported.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        examined: &ExaminedPolicy,
        has_changed: bool,
        is_sure: bool,
        patience: &Patience,
    ) -> Step {
        let is_repeated = self.read.as_ref() == Some(&examined.sha256);
        self.read = Some(examined.sha256.clone());
        if !is_sure && !is_repeated {
            *self = Self { first: now, last: now, again: None, ..self.clone() };
            return Step::Wait;
        }
        if !has_changed {
            return Step::Nothing;
        }
        if examined.read.is_err() && now < self.last + patience.broken {
            self.first = now;
            self.again = Some(patience.broken);
            return Step::Wait;
        }
        Step::Pass
    }
}

#[cfg(test)]
mod tests {
    use policy::{NoFiles, Source};

    use super::*;
    use crate::policy_file;

    fn examined(text: &str) -> ExaminedPolicy {
        let read = policy_file::parse(&Source::new("p.toml", text), &NoFiles, &Default::default());
        ExaminedPolicy { read, files: Vec::new(), sha256: text.to_owned() }
    }

    fn at(begun: Instant, milliseconds: u64) -> Instant {
        begun + Duration::from_millis(milliseconds)
    }

    #[test]
    fn quiet_files_are_read_once() {
        let (begun, patience) = (Instant::now(), Patience::default());
        let mut pending = Pending::new(begun);
        pending.note(at(begun, 300));
        assert_eq!(pending.due(&patience), at(begun, 800));
        let good = examined("version = 1\n");
        assert_eq!(pending.judge(at(begun, 800), &good, true, true, &patience), Step::Pass);
        assert_eq!(pending.judge(at(begun, 800), &good, false, true, &patience), Step::Nothing);
    }

    #[test]
    fn changes_without_a_pause_are_read_in_the_end() {
        let (begun, patience) = (Instant::now(), Patience::default());
        let mut pending = Pending::new(begun);
        for step in 0..200 {
            pending.note(at(begun, step * 100));
            let due = pending.due(&patience);
            assert_eq!(due > at(begun, step * 100), step < 100, "{step}");
        }
    }

    #[test]
    fn a_file_that_is_being_written_is_waited_for() {
        let (begun, patience) = (Instant::now(), Patience::default());
        let mut pending = Pending { is_written: true, ..Pending::new(begun) };
        pending.note(at(begun, 60_000));
        assert_eq!(pending.due(&patience), at(begun, 70_000), "it may never be closed");
        pending.note(at(begun, 61_000));
        pending.is_written = false;
        assert_eq!(pending.due(&patience), at(begun, 61_500));
    }

    #[test]
    fn a_file_that_stays_open_is_warned_of_once() {
        let (begun, patience) = (Instant::now(), Patience::default());
        let mut pending = Pending { is_written: true, ..Pending::new(begun) };
        let mut warnings = Vec::new();
        for second in 0..30 {
            pending.note(at(begun, second * 1000));
            if pending.begins_to_warn(at(begun, second * 1000), &patience) {
                warnings.push(second);
            }
        }
        assert_eq!(warnings, [10]);
        let mut closed = Pending::new(begun);
        assert!(!closed.begins_to_warn(at(begun, 60_000), &patience), "no file is open");
    }

    #[test]
    fn a_broken_policy_is_passed_on_after_longer() {
        let (begun, patience) = (Instant::now(), Patience::default());
        let mut pending = Pending::new(begun);
        let broken = examined("version = \n");
        assert_eq!(pending.judge(at(begun, 500), &broken, true, true, &patience), Step::Wait);
        assert_eq!(pending.due(&patience), at(begun, 2000));
        let mut mended = pending.clone();
        mended.note(at(begun, 900));
        assert_eq!(mended.due(&patience), at(begun, 1400));
        assert_eq!(
            mended.judge(at(begun, 1400), &examined("version = 1\n"), true, true, &patience),
            Step::Pass
        );
        assert_eq!(pending.judge(at(begun, 2000), &broken, true, true, &patience), Step::Pass);
    }

    #[test]
    fn without_reports_two_readings_have_to_agree() {
        let (begun, patience) = (Instant::now(), Patience::default());
        let mut pending = Pending::new(begun);
        let half = examined("version = 1\n");
        let whole = examined("version = 1\ndefault = 'kernel'\n");
        assert_eq!(pending.judge(at(begun, 500), &half, true, false, &patience), Step::Wait);
        assert_eq!(pending.due(&patience), at(begun, 1000));
        assert_eq!(pending.judge(at(begun, 1000), &whole, true, false, &patience), Step::Wait);
        assert_eq!(pending.judge(at(begun, 1500), &whole, true, false, &patience), Step::Pass);
    }
}

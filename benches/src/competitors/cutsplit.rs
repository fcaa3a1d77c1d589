//! The program of github.com/lyxocs/CutSplit (Apache-2.0), which runs the classifiers `CutTSS`, `PSTSS`,
//! `PartitionSort` and `CutSplit` one after the other on a file of rules and a trace, and times them itself.
//! Its sources are not part of this repository: a variable of the environment names a folder with them.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;

/// The variable of the environment with the folder of its sources.
pub(super) const FOLDER: &str = "STEERD_CUTSPLIT";
/// Of leaves, and of the lengths of prefixes that count as small: those that its README gives.
const PARAMETERS: &str = "-b 8 -t 20";
/// It keeps arrays on its stack that are as long as a trace.
const STACK_BYTES: u32 = 81_920 * 1024;
const TIMEOUT_S: &str = "300";

/// A classifier of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Classifier {
    /// Li et al., JSAC 2020.
    CutTss,
    /// Tuple space search with tuples sorted by priority, as in Open vSwitch (Pfaff et al., NSDI 2015).
    Pstss,
    /// Yingchareonthawornchai et al., ICNP 2016.
    PartitionSort,
    /// Li et al., INFOCOM 2018.
    CutSplit,
}

impl Classifier {
    /// In the program's order.
    pub const ALL: [Self; 4] = [Self::CutTss, Self::Pstss, Self::PartitionSort, Self::CutSplit];

    /// Its name in the program's output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CutTss => "CutTSS",
            Self::Pstss => "PSTSS",
            Self::PartitionSort => "PartitionSort",
            Self::CutSplit => "CutSplit",
        }
    }

    /// Whether the program measures how long a rule takes to insert or delete.
    #[must_use]
    pub fn has_updates(self) -> bool {
        self != Self::CutSplit
    }
}

/// What the program measures of a classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Finding the rule of a packet: the mean of ten passes through the trace.
    Lookup,
    /// Inserting or deleting a rule, at random, after that: the mean of as many as there are rules.
    Update,
}

/// The program.
#[derive(Clone, Debug)]
pub struct CutSplitProgram {
    path: PathBuf,
}

/// Nanoseconds, or why there is no figure.
pub type Outcomes = HashMap<(Classifier, Step), Result<f64, String>>;

impl CutSplitProgram {
    /// The program in the folder that the environment names. It is built there if it is missing.
    ///
    /// # Errors
    /// The variable is not set, or the program cannot be built.
    pub fn find() -> Result<Self, String> {
        let folder = std::env::var_os(FOLDER).map(PathBuf::from).ok_or_else(|| {
            format!("{FOLDER} does not name a folder with the sources of github.com/lyxocs/CutSplit")
        })?;
        // The bench runs in another folder than the command of the user.
        let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
        let path = folder.join("main");
        if !path.exists() {
            eprintln!("building {} ...", path.display());
            run(Command::new("make").arg("-C").arg(&folder))?;
        }
        Ok(Self { path })
    }

    /// The arguments for a shell.
    #[must_use]
    pub fn command(&self, core: usize, rules: &Path, trace: &Path) -> String {
        format!(
            "prlimit --stack={STACK_BYTES} timeout {TIMEOUT_S} taskset -c {core} stdbuf --output=L {} {PARAMETERS} \
             -r {} -e {} -c 1 -u 1",
            self.path.display(),
            rules.display(),
            trace.display()
        )
    }

    /// Runs all classifiers. One that is missing was not reached; the first such one ended the program.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn measure(&self, core: usize, rules: &Path, trace: &Path) -> Result<Outcomes, String> {
        let line = self.command(core, rules, trace);
        let mut words = line.split(' ');
        let output = Command::new(words.next().unwrap_or_default()).args(words).output();
        let output = output.map_err(|error| format!("prlimit: {error}"))?;
        let mut outcomes = outcomes(&String::from_utf8_lossy(&output.stdout));
        let end = match (output.status.code(), output.status.signal()) {
            (Some(0), _) => "wrote no result".to_owned(),
            (Some(124), _) => format!("had not finished after {TIMEOUT_S} s"),
            // `timeout` ends by the signal of its child, or with 128 and more.
            (Some(code), _) if code > 128 => format!("was ended by signal {}", code - 128),
            (_, Some(signal)) => format!("was ended by signal {signal}"),
            _ => format!("failed: {}", output.status),
        };
        for classifier in Classifier::ALL {
            for step in [Step::Lookup, Step::Update] {
                let missing = || Err(format!("the program {end} before this figure"));
                outcomes.entry((classifier, step)).or_insert_with(missing);
            }
        }
        Ok(outcomes)
    }
}

/// The figures of its output, below the headings of steps and classifiers.
fn outcomes(text: &str) -> Outcomes {
    let (mut found, mut step, mut classifier, mut wrong) = (Outcomes::new(), None, None, None);
    for line in text.lines() {
        if line.starts_with("****") {
            let steps = [(" Classification ", Step::Lookup), (" Update ", Step::Update)];
            step = steps.into_iter().find(|(name, _)| line.contains(name)).map(|(_, step)| step);
        } else if !line.starts_with('\t') && !line.is_empty() {
            classifier = Classifier::ALL.into_iter().find(|classifier| classifier.name() == line);
            wrong = None;
        } else if let Some((_, rest)) = line.split_once(" packets are classified, ") {
            wrong = rest.split(' ').next().filter(|count| *count != "0").map(str::to_owned);
        } else if let Some(microseconds) = average(line) {
            let Some(key) = classifier.zip(step) else { continue };
            let figure = match &wrong {
                Some(count) => Err(format!("it gave {count} packets to a later rule than the first")),
                None => Ok(microseconds * 1e3),
            };
            found.insert(key, figure);
        }
    }
    found
}

/// `Average classification time: 0.142789 us`
fn average(line: &str) -> Option<f64> {
    let line = line.trim_start();
    let rest = ["classification", "update"]
        .into_iter()
        .find_map(|step| line.strip_prefix(&format!("Average {step} time: ")))?;
    rest.strip_suffix(" us")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_belong_to_the_classifier_and_step_above_them() {
        let text = "**************** Construction ****************\nCutTSS\n\tConstruction time: 1.7 ms\n\
            **************** Classification ****************\n\tThe number of packet in the trace file = 1000\n\
            HyperSplit\n\tAverage classification time: 0.082 us\n\
            CutTSS\n\t10000 packets are classified, 0 of them are misclassified\n\
            \tTotal classification time: 0.1 s\n\tAverage classification time: 0.142 us\n\
            PSTSS\n\t10000 packets are classified, 7 of them are misclassified\n\tAverage classification time: 0.5 us\n\
            \n**************** Update ****************\nPSTSS\n\tAverage update time: 0.25 us\n";
        let found = outcomes(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[&(Classifier::CutTss, Step::Lookup)], Ok(142.0));
        assert_eq!(found[&(Classifier::Pstss, Step::Update)], Ok(250.0));
        let wrong = found[&(Classifier::Pstss, Step::Lookup)].as_ref().unwrap_err();
        assert!(wrong.contains("7 packets"), "{wrong}");
    }

    #[test]
    fn a_classifier_that_ends_the_program_and_those_after_it_have_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("main");
        let script = "#!/bin/sh\necho '**** Classification ****'\necho CutTSS\n\
            printf '\\tAverage classification time: 0.5 us\\n'\nkill -SEGV $$\n";
        std::fs::write(&path, script).unwrap();
        run(Command::new("chmod").arg("755").arg(&path)).unwrap();
        let found = CutSplitProgram { path }.measure(0, Path::new("rules"), Path::new("trace")).unwrap();
        assert_eq!(found[&(Classifier::CutTss, Step::Lookup)], Ok(500.0));
        for missing in [(Classifier::Pstss, Step::Lookup), (Classifier::CutTss, Step::Update)] {
            let why = found[&missing].as_ref().unwrap_err();
            assert!(why.contains("signal 11"), "{why}");
        }
    }
}

//! `dpdk-test-acl` (Debian's package `dpdk-dev`): DPDK's classifier with the same rules and the same flows.

use std::path::Path;
use std::process::Command;

use crate::machine;

/// A way to search, which the processor has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclAlgorithm {
    /// 32 packets at a time.
    Avx512,
    /// 16 packets at a time.
    Avx2,
}

impl AclAlgorithm {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Avx512, Self::Avx2];

    /// Its name for `dpdk-test-acl`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512x32",
            Self::Avx2 => "avx2",
        }
    }

    fn features(self) -> &'static [&'static str] {
        match self {
            Self::Avx512 => &["avx512f", "avx512bw", "avx512vl", "avx512cd"],
            Self::Avx2 => &["avx2"],
        }
    }

    /// The arguments for a shell.
    #[must_use]
    pub fn command(self, core: usize, rules: &Path, trace: &Path, (flows, passes): (usize, usize)) -> String {
        format!(
            "dpdk-test-acl --no-pci --no-telemetry --no-huge -m 1024 -l {core} --force-max-simd-bitwidth=512 -- \
             --rulesf={} --tracef={} --tracenum={flows} --iter={passes} --verbose=0 --alg={}",
            rules.display(),
            trace.display(),
            self.name()
        )
    }

    /// Nanoseconds per packet of `passes` through a trace of `flows`. Building its tables does not count.
    ///
    /// # Errors
    /// The processor does not know it, or the program is missing or fails.
    pub fn nanoseconds(
        self,
        core: usize,
        rules: &Path,
        trace: &Path,
        sizes: (usize, usize),
    ) -> Result<f64, String> {
        if let Some(missing) = self.features().iter().find(|name| !machine::has_feature(name)) {
            return Err(format!("the processor has no {missing}"));
        }
        let line = self.command(core, rules, trace, sizes);
        let mut words = line.split(' ');
        let output = super::run(Command::new(words.next().unwrap_or_default()).args(words))?;
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        per_second(&text).map(|rate| 1e9 / rate).ok_or_else(|| "dpdk-test-acl wrote no result".to_owned())
    }
}

/// `search_ip5tuples  @lcore 1: 20 iterations, 20000 pkts, .., 41.14 cycles/pkt, 63197143.49 pkt/sec`
fn per_second(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("search_ip5tuples ") && line.contains("pkt/sec"))?;
    line.rsplit(", ").next()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_last_figure() {
        let text = "iter:5\nsearch_ip5tuples  @lcore 1: 20 iterations, 20000 pkts, 1 categories, 822822 cycles \
                    (0.00 sec), 41.14 cycles/pkt, 63197143.49 pkt/sec\n";
        assert_eq!(per_second(text), Some(63_197_143.49));
        assert_eq!(per_second("EAL: no memory"), None);
    }
}

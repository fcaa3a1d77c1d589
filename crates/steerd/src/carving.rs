//! A policy that carves queues, compiled for the filters of an interface.
//!
//! `check` and the daemon use it, so that they agree on which rules a NIC takes.

use std::sync::Arc;

use compiler::Job;
use nic_filters::{CarveRefusal, FilterModel, FilterRoom, WantedFilters, carve};
use policy::policy::Action;
use policy::{Diagnostic, Diagnostics, Policy};
use program::{Program, RuleId};
use reports::{LostReport, ProtectionReport};

use crate::policy_file::{Read, workers_named};

/// A policy on the filters of an interface.
#[derive(Debug)]
pub(crate) struct CarvedPolicy {
    /// `None`: the compiler has found problems.
    pub(crate) program: Option<Arc<Program>>,
    /// The filters, or why there are none.
    pub(crate) filters: Result<WantedFilters, CarveRefusal>,
    /// Why the policy is refused.
    pub(crate) problems: Diagnostics,
    pub(crate) warnings: Vec<Diagnostic>,
}

impl CarvedPolicy {
    /// Compiles a policy with groups of queues.
    pub(crate) fn of(read: &Read, model: &FilterModel, room: FilterRoom) -> Self {
        let policy = &read.policy;
        let mut warnings = read.warnings.clone();
        // Whether the queues exist is found with the filters: the compiler's words are about workers.
        let device = model.device(room);
        let job = Job::new(policy, &device, workers_named(policy));
        let program = match job.compile() {
            Ok(program) => program,
            Err(problems) => {
                return Self { program: None, filters: Err(CarveRefusal::default()), problems, warnings };
            }
        };
        let filters = carve(&program, model, room);
        let mut problems = Vec::new();
        if let Err(refused) = &filters {
            problems.extend(refusals(policy, &program, model, refused));
        }
        if problems.is_empty() {
            problems.extend(LostReport::errors(policy, &program));
            problems.extend(ProtectionReport::of(&job, Some(&program)).errors);
            // Queues of rules may be the kernel's; those of the default would be all of them.
            let takes_all = policy.default != Action::Kernel;
            warnings.extend(takes_all.then(|| reports::protection_warning(policy)).flatten());
        }
        Self { program: Some(Arc::new(program)), filters, problems: Diagnostics::from(problems), warnings }
    }

    /// The filters, if the policy can be put on the interface.
    pub(crate) fn into_filters(self) -> Result<(WantedFilters, Vec<Diagnostic>), Diagnostics> {
        match self.filters {
            Ok(filters) if !self.problems.has_errors() => Ok((filters, self.warnings)),
            _ => Err(self.problems),
        }
    }
}

/// The refusals of rules, at their places.
fn refusals<'r>(
    policy: &'r Policy,
    program: &'r Program,
    model: &'r FilterModel,
    refused: &'r CarveRefusal,
) -> impl Iterator<Item = Diagnostic> + 'r {
    let of_rules = refused.rules.iter().map(move |(rule, why)| {
        let (reason, remedy) = why.explain(program);
        let (name, place) = rule_of(policy, *rule);
        let message = format!("the filters of `{}` cannot carry out {name}: {reason}", model.name);
        place.error(message, "this rule").hint(remedy)
    });
    let of_table = refused.too_many.iter().map(move |most| {
        let message = format!(
            "the policy needs more filters of `{}` than {most}, the limit: half of the table (the other half is for a \
             reload)",
            model.name
        );
        let hint = "write fewer rules, or fewer values where a field is compared whole";
        policy.default_place.error(message, "").hint(hint)
    });
    of_rules.chain(of_table)
}

/// The name of a rule in a message, and its place.
fn rule_of(policy: &Policy, rule: RuleId) -> (String, &policy::Place) {
    match policy.rules.get(rule.index()) {
        Some(rule) => (format!("the rule `{}`", rule.name), &rule.place),
        None => ("the default".to_owned(), &policy.default_place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_file;
    use policy::{NoFiles, Source};

    fn carved(text: &str, model: &str) -> CarvedPolicy {
        let text = Source::new("carve.toml", format!("version = 1\n[groups.zc]\nqueues = [4]\n{text}"));
        let read = policy_file::parse(&text, &NoFiles, &std::collections::BTreeMap::new()).expect("a policy");
        let model = FilterModel::by_name(model).expect("built in");
        CarvedPolicy::of(&read, &model, FilterRoom { queues: Some(8), ..FilterRoom::default() })
    }

    const DNS: &str =
        "[[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'zc' }\n";

    #[test]
    fn a_refusal_names_rule_limit_and_remedy() {
        let flags = DNS.replace("protocol = 'udp', dst_port = 53", "protocol = 'tcp', tcp_flags = 'syn'");
        let problems = carved(&flags, "mlx5").into_filters().expect_err("no NIC compares TCP flags");
        let text = problems.list[0].to_string();
        assert!(text.contains("the rule `dns`") && text.contains("`tcp_flags`"), "{text}");
        assert_eq!(problems.list[0].line, 6, "the place of the match");
        let all = "default = 'drop'\n".to_owned() + DNS;
        let text = all.replace("default = 'drop'\n", "")
            + "[[rules]]\nname = 'rest'\nmatch = { any = true }\naction = 'drop'\n";
        let problems = carved(&text, "mlx5").into_filters().expect_err("a filter of every packet");
        assert!(problems.list.iter().any(|one| one.message.contains("the rule `rest`")), "{problems:?}");
    }

    #[test]
    fn protected_packets_are_not_carved() {
        let protect = "[protect]\nmatches = [{ protocol = 'udp', dst_port = 53 }]\n";
        let problems = carved(&format!("{DNS}{protect}"), "mlx5").into_filters().expect_err("it takes them");
        assert!(problems.has_errors());
        assert!(carved(DNS, "mlx5").into_filters().is_ok());
    }
}

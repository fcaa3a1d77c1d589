//! Lost exceptions for operators: the results of the analysis as diagnostics. `check`, start and reload
//! refuse a policy that leaves packets to the kernel which a worker receives and cannot give back, and a
//! policy for which that is not decided, unless it allows them.

use analysis::{LostException, LostExceptions, OpenException};
use compiler::exclusion_remedy;
use policy::{Diagnostic, Place, Policy};
use program::{Program, Rule, RuleId, UndecidedKey, UndecidedReason};

use crate::report::{are_only_keys, undecided};

/// The remedies for lost exceptions of any kind.
const REMEDIES: &str = "add [sinks.host] with kind = \"kernel\" so that workers give such packets back, or write \
    allow_lost_exceptions = true at the top of the policy";

/// The rules of which packets are lost.
#[derive(Default)]
pub struct LostReport {
    /// The rules, each with an example.
    pub found: Vec<LostException>,
    /// Why the policy is refused.
    pub errors: Vec<Diagnostic>,
}

impl LostReport {
    /// All lost exceptions, and those that the policy does not allow as errors.
    #[must_use]
    pub fn of(policy: &Policy, program: &Program) -> Self {
        let LostExceptions { found, not_decided } = analysis::lost_exceptions(policy, program);
        if policy.allow_lost_exceptions {
            return Self { found, errors: Vec::new() };
        }
        let lost = found.iter().map(|lost| refused(policy, program, lost));
        let errors = lost.chain(not_decided.iter().map(|open| not_known(policy, program, open))).collect();
        Self { found, errors }
    }

    /// The errors alone, without a search if the policy allows all.
    #[must_use]
    pub fn errors(policy: &Policy, program: &Program) -> Vec<Diagnostic> {
        if policy.allow_lost_exceptions { Vec::new() } else { Self::of(policy, program).errors }
    }
}

fn refused(policy: &Policy, program: &Program, lost: &LostException) -> Diagnostic {
    let taken_by = taken_reason(policy, program, lost.taken_by);
    let message = format!(
        "packets that `{}` leaves to the kernel are lost: {} take them, and a worker cannot give them back, for example {}",
        name(program, lost.rule),
        taken_by.flows(),
        lost.witness
    );
    let hint = format!("{}: {} (`steerd check` shows more), or {REMEDIES}", taken_by.reason, taken_by.remedy);
    place(policy, lost.taken_by, lost.rule).error(message, "the host would not see these").hint(hint)
}

fn not_known(policy: &Policy, program: &Program, open: &OpenException) -> Diagnostic {
    let taker = name(program, open.taken_by);
    let message = format!(
        "it is not known whether packets that `{}` leaves to the kernel are lost: flows of `{taker}` may take some of them, \
         and a worker could not give them back",
        name(program, open.rule)
    );
    let hint = format!(
        "{}: write fewer overlapping rules before `{taker}`, leave keys that the device does not match out of it, {REMEDIES}",
        open.why
    );
    place(policy, open.taken_by, open.rule).error(message, "refused, because it is not known").hint(hint)
}

fn name(program: &Program, rule: RuleId) -> &str {
    program.rules.get(rule.index()).map_or("?", |rule| rule.name.as_str())
}

/// The place of the rule whose flow takes a packet, or else of the rule that leaves it to the kernel.
fn place(policy: &Policy, taken_by: RuleId, rule: RuleId) -> &Place {
    let rule = policy.rules.get(taken_by.index()).or_else(|| policy.rules.get(rule.index()));
    rule.map_or(&policy.default_place, |rule| &rule.place)
}

/// Why flows of a rule take packets that belong to the host.
pub(crate) struct TakenReason {
    /// The rule that takes packets like these: this one, a later one of which the device cannot exclude them,
    /// or the first one for which wide flows do it.
    pub(crate) later: String,
    /// Whether these flows are wide ones for a rule without flows of its own.
    is_covered: bool,
    /// The ability that the device lacks.
    pub(crate) reason: String,
    /// The change of the policy that is the remedy.
    pub(crate) remedy: String,
}

impl TakenReason {
    /// The flows that take the packets.
    pub(crate) fn flows(&self) -> String {
        if self.is_covered {
            format!("wide flows for `{}`", self.later)
        } else {
            format!("flows of `{}`", self.later)
        }
    }
}

/// The reason, from what the compiler noted about the rule.
pub(crate) fn taken_reason(policy: &Policy, program: &Program, rule: RuleId) -> TakenReason {
    let reasons = undecided(program, rule.index());
    let kept = reasons.iter().find_map(|note| match note.why {
        UndecidedReason::KernelException { by, inseparable } => Some((by, inseparable)),
        _ => None,
    });
    if let Some((by, inseparable)) = kept {
        let later = name(program, by).to_owned();
        let reason = format!("`{later}` {}", inseparable.words());
        // The device matches every frame in place of the rule's IPv6.
        let lacks_ipv6 = undecided(program, by.index()).iter().any(UndecidedKey::lacks_ipv6);
        let named = (by != program.default_rule()).then_some(&*later);
        let remedy = exclusion_remedy(named, inseparable, lacks_ipv6);
        return TakenReason { later, is_covered: false, reason, remedy };
    }
    let keys: Vec<String> =
        reasons.iter().map(|note| format!("{} ({})", note.key, note.why.words())).collect();
    let reason = format!("the device does not decide {}", keys.join(", "));
    if rule == program.default_rule()
        && let Some(covered) = covered_reason(program)
    {
        // The default's flows may match too much by themselves as well.
        let is_own = reasons.iter().any(|note| !matches!(note.why, UndecidedReason::NoCapacity));
        let notes = if is_own { format!(", and {reason}") } else { String::new() };
        return TakenReason { reason: covered.reason + &notes, ..covered };
    }
    let later = name(program, rule).to_owned();
    let matches = policy.rules.get(rule.index()).map(|rule| &rule.matches);
    let undecided_keys: Vec<&str> = reasons.iter().map(|note| &*note.key).collect();
    let has_others = |matches| !are_only_keys(matches, &undecided_keys);
    let keys = match matches.is_none_or(has_others) {
        true => format!("leave these keys of `{later}` out"),
        false => format!("add keys to `{later}` that the device matches, such as `dst`"),
    };
    let remedy = format!("{keys}, or steer or drop the other packets by a later rule");
    TakenReason { later, is_covered: false, reason, remedy }
}

/// The reason where wide flows take packets for rules that the device has no room for.
fn covered_reason(program: &Program) -> Option<TakenReason> {
    let has_no_room =
        |rule: &&Rule| rule.undecided.iter().any(|note| matches!(note.why, UndecidedReason::NoCapacity));
    let mut left = program.rules.iter().filter(has_no_room);
    let later = left.next()?.name.to_string();
    let more = match left.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(TakenReason {
        reason: format!(
            "the device has too few flows or masks for `{later}`{more}, whose packets wide flows lead to a worker"
        ),
        later,
        is_covered: true,
        remedy: "write fewer rules, or rules with the same keys and prefix lengths".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use device_model::DeviceModel;
    use policy::{NoFiles, Source};

    use super::*;

    /// Wide flows for rules without room belong to the default, which has no reason of its own.
    #[test]
    fn lost_packets_of_wide_flows_have_a_reason() {
        let rule = |number: u32| {
            format!(
                "[[rules]]\nname = 'r{number}'\naction = 'drop'\n\
                 match = {{ protocol = 'udp', src = '10.0.0.0/{}', dst_port = {number} }}\n",
                9 + number
            )
        };
        let text =
            format!("version = 1\n[groups.g]\nworkers = [0]\n{}", (0..12).map(rule).collect::<String>());
        let (policy, _) = policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy");
        let few = DeviceModel { max_shapes: Some(4), max_flows: Some(16), ..DeviceModel::mlx5() };
        let program = compiler::compile(&policy, &few, 1).expect("it fits");
        let errors: Vec<String> =
            LostReport::of(&policy, &program).errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let words = [
            "packets that `default` leaves to the kernel are lost",
            "wide flows for `r",
            "too few flows or masks for `r",
            "lead to a worker: write fewer rules",
        ];
        assert!(words.iter().all(|words| errors[0].contains(words)), "{}", errors[0]);
    }
}

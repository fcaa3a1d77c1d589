//! Facts about the rules of a policy that take long to compute: an example packet of each, and the share of
//! packets that the device decides. A thread of its own computes them when they are first asked for, so that
//! no request waits for them and a daemon without a reader computes nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use analysis::Deciders;
use policy::policy::{Action, Direction};
use policy::{Policy, Witness};
use program::{DEFAULT_RULE, Placement, Program, Rule};
use reports::Share;
use serde::Serialize;

use crate::daemon::board::PolicyInForce;
use crate::policy_file::{self, Inputs};

/// How long examples are looked for in all, in each direction. Rules of large policies may have none.
const EXAMPLES_TIME: Duration = Duration::from_secs(2);

/// The facts by the names of the rules.
pub(super) type FactsOfRules = HashMap<String, RuleFact>;

/// The facts about one rule.
#[derive(Debug)]
pub(super) struct RuleFact {
    /// The file that has the rule.
    pub(super) file: Arc<str>,
    pub(super) hardware_share: Option<f64>,
    pub(super) example: Option<ExamplePacket>,
}

/// A packet that a rule decides.
#[derive(Debug, Serialize)]
pub(super) struct ExamplePacket {
    /// The packet in one short line.
    text: String,
    /// The packet in the notation of `steerd explain --packet`; if that cannot express it, the frame as for
    /// `--hex`.
    packet: String,
}

/// The facts about the policy that was asked for last.
#[derive(Debug, Default)]
pub(in crate::daemon) struct RuleFacts(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    sha256: String,
    facts: Option<Arc<FactsOfRules>>,
    is_computing: bool,
}

impl RuleFacts {
    /// The facts about a policy; `None`: they are being computed.
    pub(super) fn of(&self, policy: &PolicyInForce) -> Option<Arc<FactsOfRules>> {
        let mut known = lock(&self.0);
        if known.sha256 == policy.inputs.sha256 && known.facts.is_some() {
            return known.facts.clone();
        }
        if !known.is_computing {
            let (inputs, program) = (Arc::clone(&policy.inputs), Arc::clone(&policy.program));
            let place = Arc::clone(&self.0);
            let compute = move || {
                // Cleared also if the analysis panics.
                let computing = Computing(place);
                let facts = compute(&inputs, &program);
                let mut known = lock(&computing.0);
                known.sha256.clone_from(&inputs.sha256);
                known.facts = Some(Arc::new(facts));
            };
            // Without a thread the next request tries again.
            known.is_computing = Builder::new().name("rule facts".into()).spawn(compute).is_ok();
        }
        None
    }
}

/// Notes at its end that nothing is being computed.
struct Computing(Arc<Mutex<Known>>);

impl Drop for Computing {
    fn drop(&mut self) {
        lock(&self.0).is_computing = false;
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No facts if the texts of the policy are not kept.
fn compute(inputs: &Inputs, program: &Program) -> FactsOfRules {
    let Some(Ok(read)) = policy_file::load_inputs(inputs) else { return FactsOfRules::new() };
    let policy = &read.policy;
    let mut examples = HashMap::new();
    for direction in [Direction::Ingress, Direction::Egress] {
        examples.extend(examples_of(policy, direction));
    }
    let shares = reports::shares(policy, program, None).rules;
    let in_hardware = |percent: f64| 1.0 - percent / 100.0;
    // A rule of which no packet was drawn counts by its placement.
    let share = |(rule, drawn): (&Rule, &Share)| match rule.placement {
        Placement::Hybrid { .. } => Some(drawn.hybrid_percent().map_or(0.0, in_hardware)),
        Placement::Hardware => drawn.hybrid_percent().map(in_hardware),
    };
    let rules = program.rules.iter().zip(&shares);
    let shares: HashMap<&str, f64> =
        rules.filter_map(|pair| Some((pair.0.name.as_ref(), share(pair)?))).collect();
    let mut facts = FactsOfRules::new();
    let mut file: Arc<str> = "".into();
    let names = policy.rules.iter().map(|rule| (rule.name.as_str(), rule.name_place.file()));
    let default = (DEFAULT_RULE, policy.default_place.file());
    for (index, (name, place)) in names.chain([default]).enumerate() {
        if *file != *place {
            file = place.into();
        }
        let fact = RuleFact {
            file: Arc::clone(&file),
            hardware_share: shares.get(name).copied(),
            example: examples.remove(&index),
        };
        facts.insert(name.to_owned(), fact);
    }
    facts
}

/// A packet of each rule of a direction, by the index of the rule, the default last.
fn examples_of(policy: &Policy, direction: Direction) -> Vec<(usize, ExamplePacket)> {
    let is_here = |index: &usize| match policy.rules.get(*index) {
        Some(rule) => {
            rule.direction == direction && !matches!(rule.action, Action::Copy(_) | Action::Sniff(_))
        }
        None => direction == Direction::Ingress,
    };
    let rules: Vec<usize> = (0..=policy.rules.len()).filter(is_here).collect();
    if rules.is_empty() {
        return Vec::new();
    }
    let deciders = Deciders::of(policy, direction, std::iter::empty()).within(EXAMPLES_TIME);
    let example = |index| {
        deciders.renew();
        Some((index, ExamplePacket::of(&deciders.example(index)?)))
    };
    rules.into_iter().filter_map(example).collect()
}

impl ExamplePacket {
    fn of(witness: &Witness) -> Self {
        let text = witness.to_string();
        let is_same = policy::key_of_text(&text).is_ok_and(|key| key == witness.key());
        let packet = if is_same { text.clone() } else { witness.hex() };
        Self { text, packet }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use device_model::DeviceModel;
    use policy::Source;

    use super::*;
    use crate::explained;

    const POLICY: &str = "version = 1\ndefault = 'kernel'\n[groups.every]\nworkers = 'all'\n\
        [[rules]]\nname = 'dns'\nmatch = { protocol = 'udp', dst_port = 53 }\naction = { steer = 'every' }\n\
        [[rules]]\nname = 'syn'\nmatch = { protocol = 'tcp', tcp_flags = 'syn,!ack' }\naction = 'drop'\n\
        [[rules]]\nname = 'never'\nmatch = { protocol = 'udp', dst_port = 53, src = '192.0.2.1' }\naction = 'drop'\n\
        [[rules]]\nname = 'tunnel'\nmatch = { protocol = 'udp', vxlan_vni = 42 }\naction = 'drop'\n";

    fn facts() -> (Policy, Program, FactsOfRules) {
        let none = BTreeMap::new();
        let read = policy_file::parse(&Source::new("p.toml", POLICY), &none, &none).expect("a policy");
        let program = compiler::compile(&read.policy, &DeviceModel::ideal(), 2).expect("a program");
        let facts = compute(&read.inputs, &program);
        (read.policy, program, facts)
    }

    #[test]
    fn every_example_is_explained_by_its_rule() {
        let (policy, program, facts) = facts();
        let mut explained = 0;
        for rule in policy.rules.iter().map(|rule| rule.name.as_str()).chain([DEFAULT_RULE]) {
            let Some(example) = &facts[rule].example else {
                assert_eq!(rule, "never", "only a rule without packets has no example");
                continue;
            };
            let packet = &example.packet;
            let key = match packet.contains('>') {
                true => policy::key_of_text(packet),
                false => explained::key_of_hex(packet),
            };
            let decided = program.explain_deep(&key.expect("a packet")).outcome.rule;
            assert_eq!(program.rules[decided.index()].name, rule, "{example:?}");
            explained += 1;
        }
        assert_eq!(explained, 4);
    }

    #[test]
    fn the_share_in_hardware_is_that_of_the_device() {
        let (_, _, facts) = facts();
        let share = |rule: &str| facts[rule].hardware_share;
        // No device matches TCP flags.
        assert_eq!((share("dns"), share("syn")), (Some(1.0), Some(0.0)));
        assert_eq!(&*facts["dns"].file, "p.toml");
    }
}

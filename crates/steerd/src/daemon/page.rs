//! The documents of the page at `/` that need more than the state: the policy in force with an example packet
//! of each rule, its texts, the history with the differences between its policies, and the explanation of
//! a packet. docs/reference/page.md describes their keys.

mod rule_facts;
mod text_diff;

use std::time::{Duration, Instant};

use policy::policy::Direction;
use program::{DescriptionText, RuleDeciders};
use reports::ExplainedPacket;
use serde::Serialize;

use crate::api::model::HistoryEntry;
use crate::daemon::board::PolicyInForce;
use crate::daemon::history::History;
use crate::daemon::observer::Observer;
use crate::effects::Effect;
use crate::policy_file::Inputs;
use crate::state::RuleState;
use crate::terminal::output::Versioned;
pub(super) use rule_facts::RuleFacts;
use rule_facts::{ExamplePacket, FactsOfRules, RuleFact};
use text_diff::TextDifference;

/// The most bytes of text of a policy that the page shows: a browser has to lay it out.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// How long texts of the history are compared in all; of the policies before, no difference is known.
const DIFFERENCES_TIME: Duration = Duration::from_millis(200);

/// The policy in force.
#[derive(Serialize)]
struct PolicyDocument<'s> {
    source: &'s str,
    generation: u64,
    sha256: &'s str,
    /// Whether the examples and shares are known: they are computed after the first request.
    is_complete: bool,
    rules: Vec<PolicyRule<'s>>,
}

/// The texts of the policy in force.
#[derive(Serialize)]
struct TextsDocument<'s> {
    sha256: &'s str,
    /// The policy itself, then the files that it names.
    files: Vec<PolicyFile<'s>>,
}

#[derive(Serialize)]
struct PolicyFile<'s> {
    name: &'s str,
    /// `null`: the texts are too long together.
    text: Option<&'s str>,
}

#[derive(Serialize)]
struct PolicyRule<'s> {
    name: &'s str,
    /// `null`: the rule has none.
    description: Option<&'s DescriptionText>,
    action: &'s str,
    effect: Effect,
    placement: &'s str,
    /// The file that has the rule, with its line; `null`: not known, or it is in none.
    file: Option<&'s str>,
    line: u32,
    #[serde(flatten)]
    deciders: Option<&'s RuleDeciders>,
    /// The part of the packets drawn from the rules, and decided by this one, that the device decides alone,
    /// from 0 to 1.
    hardware_share: Option<f64>,
    /// A packet that the rule decides; `null`: none was found.
    example: Option<&'s ExamplePacket>,
}

impl<'s> PolicyRule<'s> {
    fn of(rule: &'s RuleState, fact: Option<&'s RuleFact>) -> Self {
        Self {
            name: &rule.name,
            description: rule.description.as_ref(),
            action: &rule.action,
            effect: rule.effect,
            placement: rule.placement,
            file: fact.map(|fact| &*fact.file),
            line: rule.line,
            deciders: rule.deciders.as_ref(),
            hardware_share: fact.and_then(|fact| fact.hardware_share),
            example: fact.and_then(|fact| fact.example.as_ref()),
        }
    }
}

/// The policy in force as JSON.
pub(super) fn policy(observer: &Observer, facts: &RuleFacts) -> Result<Vec<u8>, serde_json::Error> {
    // One reading, so that rules and facts are those of one program.
    let published = observer.board.read();
    let policy = &published.policy;
    let known = facts.of(policy);
    let no_facts = FactsOfRules::default();
    let facts = known.as_deref().unwrap_or(&no_facts);
    let rules = observer.rules(&published);
    let document = PolicyDocument {
        source: &policy.source.to_string(),
        generation: policy.generation,
        sha256: &policy.inputs.sha256,
        is_complete: known.is_some(),
        rules: rules.iter().map(|rule| PolicyRule::of(rule, facts.get(&rule.name))).collect(),
    };
    serde_json::to_vec(&Versioned::new(&document))
}

/// The texts of the policy in force as JSON.
pub(super) fn policy_texts(inputs: &Inputs) -> Result<Vec<u8>, serde_json::Error> {
    let document = TextsDocument { sha256: &inputs.sha256, files: files(inputs) };
    serde_json::to_vec(&Versioned::new(&document))
}

fn files(inputs: &Inputs) -> Vec<PolicyFile<'_>> {
    let named = inputs.files.iter().map(|(name, file)| (name.as_str(), file.text.as_deref()));
    let all = || [(inputs.name.as_str(), inputs.text.as_deref())].into_iter().chain(named.clone());
    let bytes: usize = all().filter_map(|(_, text)| text).map(str::len).sum();
    let is_short = bytes <= TEXT_BYTES_MAX;
    all().map(|(name, text)| PolicyFile { name, text: text.filter(|_| is_short) }).collect()
}

/// The policies that were in force, with what changed in their texts.
#[derive(Serialize)]
struct HistoryDocument {
    policies: Vec<PastEntry>,
}

#[derive(Serialize)]
struct PastEntry {
    #[serde(flatten)]
    entry: HistoryEntry,
    /// From the policy before; `null`: there is none, or one of the texts is not kept.
    text_difference: Option<TextDifference>,
}

/// The history as JSON.
pub(super) fn history(history: &History) -> Result<Vec<u8>, serde_json::Error> {
    let past = history.entries_with_inputs();
    let before = past.iter().skip(1).map(|(_, inputs)| Some(inputs)).chain([None]);
    let end = Instant::now() + DIFFERENCES_TIME;
    let policies = past.iter().zip(before).map(|((entry, inputs), before)| PastEntry {
        entry: entry.clone(),
        text_difference: before.and_then(|before| TextDifference::between(before, inputs, end)),
    });
    serde_json::to_vec(&Versioned::new(&HistoryDocument { policies: policies.collect() }))
}

/// The answer of `steerd explain` for the policy in force.
#[derive(Serialize)]
struct ExplanationDocument<'a> {
    model: &'a str,
    generation: u64,
    /// The answer as the command prints it.
    text: &'a str,
    #[serde(flatten)]
    packet: &'a ExplainedPacket,
}

/// Explains a packet, by its fields, in the short notation or as a frame in hexadecimal.
///
/// # Errors
/// The text is no packet.
pub(super) fn explain(observer: &Observer, packet: &str, direction: Direction) -> Result<Vec<u8>, String> {
    let is_frame = !packet.contains(['=', '>']);
    let key = if is_frame { reports::key_of_hex(packet) } else { policy::key_of_text(packet) }?;
    let published = observer.board.read();
    let PolicyInForce { program, protected, generation, .. } = &*published.policy;
    let has_xdp = observer.opened.has_xdp_program();
    let packet = ExplainedPacket::of(program, protected, direction, &key, has_xdp);
    let document = ExplanationDocument {
        model: &observer.opened.profile(observer.worker_count()).name,
        generation: *generation,
        text: &packet.text(program),
        packet: &packet,
    };
    serde_json::to_vec(&Versioned::new(&document)).map_err(|error| error.to_string())
}

//! The rules at run time as the API takes and lists them, for both sides.

use std::time::Duration;

use program::RuntimeMatch;
use serde::Deserialize;
use steerd_client::api;
pub(crate) use steerd_client::api::{RefusedRule, RulesChanged};

use super::request::{Refused, check_entries, entries};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    /// Whether they may change what runs.
    pub(crate) is_admin: bool,
}

/// A rule as a client gives it.
pub(crate) type RuleBody = api::RuleBody<RuntimeMatch>;
/// GET /v1/rules.
pub(crate) type RuleList = api::RuleList<RuntimeMatch>;
pub(crate) type RuleRow = api::RuleRow<RuntimeMatch>;

/// The id of a rule, or the one that a rule without has.
pub(crate) fn rule_id(body: &RuleBody) -> String {
    let of_match = || body.matches.to_string().split(' ').collect::<Vec<_>>().join(":");
    body.id.clone().unwrap_or_else(of_match)
}

/// The time to live and the idle time-out of a rule; `None`: one of them is no time.
pub(crate) fn rule_times(body: &RuleBody) -> Option<[Option<Duration>; 2]> {
    let time = |seconds: Option<f64>| match seconds {
        None => Some(None),
        Some(seconds) => Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= LONGEST).map(Some),
    };
    Some([time(body.ttl_seconds)?, time(body.idle_seconds)?])
}

/// The longest time of a rule.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// POST /v1/rules/changes, as the daemon reads it: all of it is done, or nothing. Clients write
/// [`api::RuleChanges`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleChanges {
    /// Removes all rules first: a user's own ones, or for those who may change what runs all.
    #[serde(default)]
    pub(crate) flush: bool,
    /// With `flush`: only the rules of this user.
    #[serde(default)]
    pub(crate) owner: Option<u32>,
    /// Removes the rules with these ids.
    #[serde(default, deserialize_with = "entries")]
    pub(crate) remove: Vec<String>,
    /// Then adds these.
    #[serde(default, deserialize_with = "entries")]
    pub(crate) add: Vec<RuleBody>,
}

impl RuleChanges {
    /// Refuses lists that are too long.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        check_entries("remove", self.remove.len())?;
        check_entries("add", self.add.len())
    }
}

/// Why changes are refused.
#[derive(Debug)]
pub(crate) struct ChangesRefused {
    pub(crate) refused: Refused,
    /// The rules that it is about; empty: it is about all of the call.
    pub(crate) rules: Vec<RefusedRule>,
}

/// The most refusals that the text of an answer has.
const SHOWN: usize = 5;
/// The most characters of an id in a refusal, which a client has sent.
const SHOWN_ID: usize = 128;

impl ChangesRefused {
    /// The refusal of some rules. The text of the answer has their errors.
    pub(crate) fn of_rules(status: u16, rules: Vec<RefusedRule>) -> Self {
        let sentences = rules.iter().map(|rule| rule.error.clone()).take(SHOWN).collect();
        Self::with_sentences(status, rules, sentences)
    }

    /// The refusal of some rules, with sentences for the text of the answer.
    pub(crate) fn with_sentences(
        status: u16,
        mut rules: Vec<RefusedRule>,
        mut sentences: Vec<String>,
    ) -> Self {
        sentences.truncate(SHOWN);
        sentences.dedup();
        for rule in &mut rules {
            rule.id = rule.id.chars().take(SHOWN_ID).collect();
        }
        Self { refused: Refused::new(status, sentences.join("; ")), rules }
    }
}

impl From<Refused> for ChangesRefused {
    fn from(refused: Refused) -> Self {
        Self { refused, rules: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::request::ENTRIES_MAX;

    #[test]
    fn lists_have_a_limit() {
        let changes =
            |list: String| -> RuleChanges { serde_json::from_str(&list).expect("its syntax is right") };
        let ids = |count: usize| format!("{{\"remove\": [{}]}}", vec!["\"\""; count].join(","));
        assert_eq!(changes(ids(ENTRIES_MAX)).check(), Ok(()));
        let many = changes(ids(3 * ENTRIES_MAX));
        assert_eq!((many.remove.len(), many.remove.capacity() <= 2 * ENTRIES_MAX), (ENTRIES_MAX + 1, true));
        assert_eq!(many.check().expect_err("too many").status, 413);
    }

    #[test]
    fn a_rule_without_an_id_is_named_by_its_match() {
        let text = r#"{"match": {"src": "192.0.2.1", "protocol": "tcp", "dst_port": 22}, "action": "drop"}"#;
        let body: RuleBody = serde_json::from_str(text).expect(text);
        assert_eq!(rule_id(&body), "src:192.0.2.1:protocol:tcp:dst_port:22");
        assert_eq!(rule_times(&body), Some([None, None]));
        for seconds in [-1.0, f64::NAN, f64::INFINITY, 1e18] {
            assert_eq!(
                rule_times(&RuleBody { ttl_seconds: Some(seconds), ..body.clone() }),
                None,
                "{seconds}"
            );
        }
    }

    #[test]
    fn the_daemon_reads_what_clients_write() {
        let matches = api::RuleMatch::default()
            .src([192, 0, 2, 1])
            .dst_prefix([198, 51, 100, 0], 24)
            .protocol(6)
            .src_port(1)
            .dst_port(2)
            .vlan(3);
        let rule = api::RuleBody::new(matches, "drop").id("a").both_directions().comment("text");
        let rule = rule.ttl(Duration::from_secs(1)).idle(Duration::from_millis(500));
        let written = api::RuleChanges { flush: true, owner: Some(7), ..api::RuleChanges::default() };
        let text = serde_json::to_string(&written.remove_rule("b").add_rule(rule)).expect("JSON");
        let read: RuleChanges = serde_json::from_str(&text).expect(&text);
        assert_eq!((read.flush, read.owner, read.remove), (true, Some(7), vec!["b".to_owned()]));
        let body = &read.add[0];
        assert_eq!(
            body.matches.to_string(),
            "src 192.0.2.1 dst 198.51.100.0/24 protocol tcp src_port 1 dst_port 2 vlan 3"
        );
        assert_eq!(rule_times(body), Some([Some(Duration::from_secs(1)), Some(Duration::from_millis(500))]));
        assert_eq!((rule_id(body), body.both, body.comment.as_str()), ("a".to_owned(), true, "text"));
        // And the other way: what the daemon lists.
        let row = RuleRow { rule: body.clone(), owner: 7, ..RuleRow::default() };
        let text = serde_json::to_string(&RuleList { count: 1, rules: vec![row] }).expect("JSON");
        let list: api::RuleList = serde_json::from_str(&text).expect(&text);
        assert_eq!((list.rules[0].owner, list.rules[0].rule.id.as_deref()), (7, Some("a")));
    }
}

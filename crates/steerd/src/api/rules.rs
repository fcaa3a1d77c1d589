//! The rules at run time as the API takes and lists them, for both sides.

use std::time::Duration;

use program::RuntimeMatch;
use serde::{Deserialize, Serialize};

use super::request::{Refused, check_entries, entries};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    /// Whether they may change what runs.
    pub(crate) is_admin: bool,
}

/// A rule as a client gives it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleBody {
    /// `None`: the match with its values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "match")]
    pub(crate) matches: RuntimeMatch,
    pub(crate) action: String,
    /// Whether it applies to the other direction of the connection too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) both: bool,
    /// The seconds after which it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_seconds: Option<f64>,
    /// The seconds after its last packet at which it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) comment: String,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

impl RuleBody {
    /// The id, or the one that a rule without has.
    pub(crate) fn id(&self) -> String {
        let of_match = || self.matches.to_string().split(' ').collect::<Vec<_>>().join(":");
        self.id.clone().unwrap_or_else(of_match)
    }

    /// The time to live and the idle time-out; `None`: one of them is no time.
    pub(crate) fn times(&self) -> Option<[Option<Duration>; 2]> {
        let time = |seconds: Option<f64>| match seconds {
            None => Some(None),
            Some(seconds) => {
                Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= LONGEST).map(Some)
            }
        };
        Some([time(self.ttl_seconds)?, time(self.idle_seconds)?])
    }
}

/// The longest time of a rule.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// POST /v1/rules/changes: all of it is done, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleChanges {
    /// Removes all rules first: a user's own ones, or for those who may change what runs all.
    #[serde(default)]
    pub(crate) flush: bool,
    /// With `flush`: only the rules of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// The answer to changes that were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RulesChanged {
    pub(crate) added: usize,
    /// The rules that were there; their times began again.
    pub(crate) unchanged: usize,
    pub(crate) removed: usize,
    /// The rules to remove that were not there.
    pub(crate) absent: usize,
    /// The rules that there are now.
    pub(crate) rules: usize,
    /// The rules of them that act in the device.
    pub(crate) in_device: usize,
    pub(crate) microseconds: u64,
}

/// GET /v1/rules.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RuleList {
    /// How many rules there are.
    pub(crate) count: usize,
    /// The first of them by id.
    pub(crate) rules: Vec<RuleRow>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RuleRow {
    #[serde(flatten)]
    pub(crate) rule: RuleBody,
    /// The user id.
    pub(crate) owner: u32,
    /// "workers", "device", "both", or "nowhere" if only the device can enforce it and has not taken it.
    pub(crate) acts_in: String,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// The seconds until its time to live is over.
    pub(crate) ends_in_seconds: Option<f64>,
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
        assert_eq!(body.id(), "src:192.0.2.1:protocol:tcp:dst_port:22");
        assert_eq!(body.times(), Some([None, None]));
        for seconds in [-1.0, f64::NAN, f64::INFINITY, 1e18] {
            assert_eq!(RuleBody { ttl_seconds: Some(seconds), ..body.clone() }.times(), None, "{seconds}");
        }
    }
}

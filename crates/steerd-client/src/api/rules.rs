//! Rules at run time as clients give and get them. docs/reference/api.md describes the keys.
//!
//! The type of the match is a parameter: a client builds a [`RuleMatch`], and the daemon, which has to
//! understand its values, reads a type of its own.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The packets of a rule: each field has one value. Without a field no rule is possible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RuleMatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    src: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dst: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dst_port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
}

impl RuleMatch {
    /// Compares the source address.
    #[must_use]
    pub fn src(self, address: impl Into<IpAddr>) -> Self {
        Self { src: Some(address.into().to_string()), ..self }
    }

    /// Compares the source address with a prefix; `address` has only zeros behind its `length` bits.
    #[must_use]
    pub fn src_prefix(self, address: impl Into<IpAddr>, length: u8) -> Self {
        Self { src: Some(format!("{}/{length}", address.into())), ..self }
    }

    /// Compares the destination address.
    #[must_use]
    pub fn dst(self, address: impl Into<IpAddr>) -> Self {
        Self { dst: Some(address.into().to_string()), ..self }
    }

    /// Compares the destination address with a prefix; `address` has only zeros behind its `length` bits.
    #[must_use]
    pub fn dst_prefix(self, address: impl Into<IpAddr>, length: u8) -> Self {
        Self { dst: Some(format!("{}/{length}", address.into())), ..self }
    }

    /// Compares the IPv4 protocol or the first IPv6 next header; TCP is 6, UDP is 17.
    #[must_use]
    pub fn protocol(self, number: u8) -> Self {
        Self { protocol: Some(number.to_string()), ..self }
    }

    /// Compares the source port of TCP and UDP.
    #[must_use]
    pub fn src_port(self, port: u16) -> Self {
        Self { src_port: Some(port), ..self }
    }

    /// Compares the destination port of TCP and UDP.
    #[must_use]
    pub fn dst_port(self, port: u16) -> Self {
        Self { dst_port: Some(port), ..self }
    }

    /// Compares the identifier of the outer 802.1Q tag.
    #[must_use]
    pub fn vlan(self, identifier: u16) -> Self {
        Self { vlan: Some(identifier), ..self }
    }
}

/// A rule as a client gives it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleBody<M = RuleMatch> {
    /// The id, by which the rule is replaced and removed; `None`: the match with its values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The packets.
    #[serde(rename = "match")]
    pub matches: M,
    /// One of the actions that the policy lists: `drop`, `kernel`, or `steer` and a group.
    pub action: String,
    /// Whether it applies to the other direction of the connection too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub both: bool,
    /// The seconds after which it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<f64>,
    /// The seconds after its last packet at which it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<f64>,
    /// Any text of at most 256 bytes without control characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(value: &bool) -> bool {
    !value
}

impl<M: Default> RuleBody<M> {
    /// A rule for these packets, which stays until it is removed.
    #[must_use]
    pub fn new(matches: M, action: &str) -> Self {
        Self { matches, action: action.to_owned(), ..Self::default() }
    }

    /// Sets the id.
    #[must_use]
    pub fn id(self, id: &str) -> Self {
        Self { id: Some(id.to_owned()), ..self }
    }

    /// Applies the rule to the other direction of the connection too.
    #[must_use]
    pub fn both_directions(self) -> Self {
        Self { both: true, ..self }
    }

    /// Lets it end after this time, counted from the last call that adds it.
    #[must_use]
    pub fn ttl(self, time: Duration) -> Self {
        Self { ttl_seconds: Some(time.as_secs_f64()), ..self }
    }

    /// Lets it end when no packet has matched for this time.
    #[must_use]
    pub fn idle(self, time: Duration) -> Self {
        Self { idle_seconds: Some(time.as_secs_f64()), ..self }
    }

    /// Sets the text that lists show.
    #[must_use]
    pub fn comment(self, text: &str) -> Self {
        Self { comment: text.to_owned(), ..self }
    }
}

/// Changes of rules that are made together, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RuleChanges<M = RuleMatch> {
    /// Removes all rules; for users who are not admins, their own.
    pub flush: bool,
    /// With `flush`: only the rules of this user id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// The ids of rules to remove, at most 65,536. One that is not there is no error.
    pub remove: Vec<String>,
    /// The rules to add, at most 65,536. One with the id of another rule replaces it.
    pub add: Vec<RuleBody<M>>,
}

impl<M> RuleChanges<M> {
    /// Adds a rule.
    #[must_use]
    pub fn add_rule(mut self, rule: RuleBody<M>) -> Self {
        self.add.push(rule);
        self
    }

    /// Removes a rule.
    #[must_use]
    pub fn remove_rule(mut self, id: &str) -> Self {
        self.remove.push(id.to_owned());
        self
    }
}

/// The answer to changes that were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesChanged {
    /// The rules that were added or changed.
    pub added: usize,
    /// The rules that were there; their times began again.
    pub unchanged: usize,
    /// The rules that were removed.
    pub removed: usize,
    /// The rules to remove that were not there.
    pub absent: usize,
    /// The rules that there are now.
    pub rules: usize,
    /// The rules of them that act in the device.
    pub in_device: usize,
    /// How long the daemon took.
    pub microseconds: u64,
}

/// A list of rules at run time, by id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleList<M = RuleMatch> {
    /// How many rules there are.
    pub count: usize,
    /// The first of them by id.
    pub rules: Vec<RuleRow<M>>,
}

/// A rule at run time with its owner and its packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleRow<M = RuleMatch> {
    /// The rule as its owner gave it, with its id.
    #[serde(flatten)]
    pub rule: RuleBody<M>,
    /// The user id.
    pub owner: u32,
    /// "workers", "device", "both", or "nowhere" if only the device can enforce it and has not taken it.
    pub acts_in: String,
    /// The packets that it has decided.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
    /// The seconds until its time to live is over.
    pub ends_in_seconds: Option<f64>,
}

/// A change that the daemon refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRule {
    /// The place in [`RuleChanges::add`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add: Option<usize>,
    /// The place in [`RuleChanges::remove`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove: Option<usize>,
    /// The id of the rule, of which the first 128 characters.
    pub id: String,
    /// Why it is refused.
    pub error: String,
    /// If it takes packets that `[protect]` leaves to the host: such a packet, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub witness: Option<String>,
}

/// The answer of the daemon to a call that it refuses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApiFailure {
    /// Why, in a sentence.
    pub error: String,
    /// If it is about some of the rules of a call: these, at most 1,024 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedRule>,
    /// If it is about a policy: the diagnostics, with the keys of `check --format json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnostics: Option<serde_json::Value>,
    /// The diagnostics as text, a line each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

//! The local API of a running `steerd`, blocking: rules at run time, and reloads of the policy. Needs the
//! feature `api`.
//!
//! ```no_run
//! use std::net::Ipv4Addr;
//! use std::time::Duration;
//!
//! use steerd_client::api::{ApiClient, ApiError, RuleBody, RuleChanges, RuleMatch};
//!
//! # fn main() -> Result<(), ApiError> {
//! let steerd = ApiClient::new("/run/steerd/api.sock")?;
//! let scanner = RuleMatch::default().src(Ipv4Addr::new(198, 51, 100, 7));
//! let rule = RuleBody::new(scanner, "drop").id("scan-1").ttl(Duration::from_secs(600)).comment("port scan");
//! match steerd.change(&RuleChanges::default().add_rule(rule).remove_rule("scan-0")) {
//!     Ok(changed) => println!("{} added, {} rules", changed.added, changed.rules),
//!     // All of a call is done, or nothing.
//!     Err(ApiError::Refused { failure, .. }) => {
//!         for rule in &failure.refused {
//!             println!("{}: {} {:?}", rule.id, rule.error, rule.witness);
//!         }
//!     }
//!     Err(error) => return Err(error),
//! }
//! for row in steerd.rules()?.rules {
//!     println!("{:?}: {} packets", row.rule.id, row.packets);
//! }
//! # Ok(())
//! # }
//! ```

mod connection;
mod rules;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use connection::{ApiClient, ApiError, CaptureNext};
pub use rules::{ApiFailure, RefusedRule, RuleBody, RuleChanges, RuleList, RuleMatch, RuleRow, RulesChanged};

/// The version of all JSON that steerd prints and serves (docs/reference/commands.md). It is raised when a
/// key is removed or changes its meaning; new keys do not raise it.
pub const FORMAT: u32 = 3;
/// The header of an answer that is a capture, with its number.
pub const CAPTURE_HEADER: &str = "steerd-capture";
/// The longest wait for an answer that takes the daemon no work.
pub const SHORT: Duration = Duration::from_secs(30);
/// The longest wait for an answer that installs a policy; systemd's own limits are shorter (TimeoutStartSec=
/// of the unit).
pub const LONG: Duration = Duration::from_secs(600);

/// How a policy is read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReloadOptions {
    /// The policy before comes back after so many seconds, unless the new one is confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm_seconds: Option<f64>,
    /// Nothing is done.
    pub dry_run: bool,
    /// Reload although a set has changed by more than its `max_change`.
    pub force: bool,
}

/// The daemon's verdict on a reload.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ReloadVerdict {
    /// Whether the policy is in force; if not, the previous one still is.
    pub accepted: bool,
    /// Why it is refused, in one line.
    pub error: Option<String>,
    /// The diagnostics, a line each.
    #[serde(default)]
    pub text: String,
    /// The number of the policy that is in force now.
    pub generation: u64,
    /// The hash of that policy.
    pub sha256: String,
    /// The rules that differ from the policy before, in words.
    #[serde(default)]
    pub difference: Option<String>,
}

impl ApiClient {
    /// Makes all of the changes, or none. When it returns, packets meet the changed rules.
    ///
    /// # Errors
    /// [`ApiError::Refused`] has the rules that are refused, each with the reason.
    pub fn change<M: Serialize>(&self, changes: &RuleChanges<M>) -> Result<RulesChanged, ApiError> {
        self.post("/v1/rules/changes", changes, LONG)
    }

    /// Lists the rules by id, at most 10,000 of them; [`RuleList::count`] is the number of all.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn rules(&self) -> Result<RuleList, ApiError> {
        self.get("/v1/rules")
    }

    /// Returns one rule; `None`: there is no rule with this id.
    ///
    /// # Errors
    /// The daemon does not answer, or the id has characters of its own in a URL.
    pub fn rule(&self, id: &str) -> Result<Option<RuleRow>, ApiError> {
        match self.get::<RuleList>(&format!("/v1/rules?id={id}")) {
            Ok(list) => Ok(list.rules.into_iter().next()),
            Err(ApiError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes all rules, or those of one user id; for users who are not admins, their own.
    ///
    /// # Errors
    /// The daemon refuses, or does not answer.
    pub fn flush(&self, owner: Option<u32>) -> Result<RulesChanged, ApiError> {
        self.change(&RuleChanges::<RuleMatch> { flush: true, owner, ..RuleChanges::default() })
    }

    /// Reads the policy again and waits for the verdict.
    ///
    /// # Errors
    /// The daemon does not answer, or this user may not reload. A policy that is refused is no error here,
    /// see [`ReloadVerdict::accepted`].
    pub fn reload(&self, options: &ReloadOptions) -> Result<ReloadVerdict, ApiError> {
        self.post("/v1/reload", options, LONG)
    }
}

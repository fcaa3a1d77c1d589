//! The operations that the API offers on the running daemon.

use std::io;

use program::{CaptureSink, SinkKind, SinkSpec, Verdict};
use steerd_client::api::ApiFailure;
use worker::Slot;
use worker::sinks::capture;

use crate::api::model::PlanReport;
use crate::api::request::{CaptureBody, Refused};
use crate::api::rules::{Caller, ChangesRefused, RuleChanges, RuleList, RulesChanged};
use crate::api::{self, InForce, model};
use crate::daemon::reload::{self, Parts};
use crate::policy_file::{self, Read};
use crate::state::State;

pub(super) struct Service {
    pub(super) parts: Parts,
}

impl api::Daemon for Service {
    fn status(&self) -> model::Status {
        self.parts.observer.status()
    }

    fn in_force(&self) -> InForce {
        self.parts.observer.board.read().policy.for_api()
    }

    fn attach(
        &self,
        id: u64,
        asked: &CaptureBody,
        stream: Box<dyn io::Write + Send>,
    ) -> Result<Slot, Refused> {
        let CaptureBody { rule, snap, one_in } = asked;
        self.check_captured(rule)?;
        let options = CaptureSink {
            snap_bytes: snap
                .map_or(CaptureSink::SNAP_BYTES_MAX, |snap| snap.clamp(1, CaptureSink::SNAP_BYTES_MAX)),
            one_in: one_in.map_or(1, |one_in| one_in.max(1)),
            ..CaptureSink::default()
        };
        let unavailable = |error: &dyn std::fmt::Display| Refused::new(503, error.to_string());
        // No sink of a policy has such a name.
        let name = format!("(capture {id})");
        let context = self.parts.observer.opened.device.context();
        let workers = self.parts.observer.worker_count();
        let opened = capture::to_writer(stream, &name, rule, &options, context, workers);
        let opened = opened.map_err(|error| unavailable(&error))?;
        let definition = SinkSpec { name, kind: SinkKind::Capture(options) };
        self.parts.commands.attach(definition, rule, opened).map_err(|error| unavailable(&error))
    }

    fn detach(&self, slot: Slot) {
        self.parts.commands.detach(slot);
    }

    fn history(&self) -> model::History {
        model::History { policies: self.parts.history.entries() }
    }

    fn plan(&self, read: Read) -> Result<PlanReport, ApiFailure> {
        let name = read.inputs.name.clone();
        reload::plan(&self.parts, &read).map_err(|diagnostics| ApiFailure {
            error: format!("{name}: {} in the policy", policy_file::error_count(&diagnostics)),
            refused: Vec::new(),
            text: Some(diagnostics.to_string()),
            diagnostics: serde_json::to_value(diagnostics.list).ok(),
        })
    }

    fn may_change_rules(&self, caller: Caller) -> Result<(), Refused> {
        self.parts.rules.may_change(caller)
    }

    fn change_rules(&self, caller: Caller, changes: RuleChanges) -> Result<RulesChanged, ChangesRefused> {
        self.parts.rules.change(caller, changes)
    }

    fn rules(&self, id: Option<&str>, state: &State) -> Result<RuleList, Refused> {
        self.parts.rules.list(id, state)
    }
}

impl Service {
    /// Only packets that a worker delivers can be captured.
    fn check_captured(&self, name: &str) -> Result<(), Refused> {
        let published = self.parts.observer.board.read();
        match published.policy.program.rules.iter().find(|rule| rule.name == name) {
            None => Err(Refused::new(404, format!("the policy in force has no rule `{name}`"))),
            Some(rule) if matches!(rule.action, Verdict::Deliver(_)) => Ok(()),
            Some(_) => Err(Refused::new(
                409,
                format!(
                    "no worker delivers packets of the rule `{name}` (hint: capture a copy of them: action = {{ copy = \"GROUP\" }})"
                ),
            )),
        }
    }
}

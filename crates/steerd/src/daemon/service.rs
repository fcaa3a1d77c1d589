//! The operations that the API and the pages offer on the running daemon.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use policy::policy::Direction;
use program::{CaptureSink, CountSink, Predicate, SinkKind, SinkSpec, Verdict};
use steerd_client::api::ApiFailure;
use worker::Slot;
use worker::sinks::recorder::{RecordFilter, since_ns};
use worker::sinks::trace::{self, TraceOptions};
use worker::sinks::{Opened, capture};

use crate::api::model::PlanReport;
use crate::api::request::{CaptureBody, RecordBody, Refused, TraceBody, WorkerChange};
use crate::api::rules::{Caller, ChangesRefused, RuleChanges, RuleList, RulesChanged};
use crate::api::{self, Asked, InForce, model};
use crate::daemon::page::{self, RuleFacts};
use crate::daemon::reload::{self, Parts};
use crate::daemon::sinks::AttachedTo;
use crate::daemon::trace::{TraceForm, TraceWriter};
use crate::daemon::workers;
use crate::policy_file::{self, Read};
use crate::state::State;
use crate::telemetry::pages::Source;

pub(super) struct Service {
    parts: Parts,
    facts: RuleFacts,
    /// The address of the pages for monitoring.
    http: Option<SocketAddr>,
    /// Shared with the thread that writes a record, if there is one.
    recording: Arc<()>,
}

impl Service {
    pub(super) fn new(parts: Parts, http: Option<SocketAddr>) -> Self {
        Self { parts, facts: RuleFacts::default(), http, recording: Arc::default() }
    }
}

impl Source for Service {
    fn state(&self) -> Arc<State> {
        Arc::new(self.parts.observer.state())
    }

    fn changes(&self) -> u64 {
        self.parts.observer.board.read().changes
    }

    fn policy(&self) -> Result<Vec<u8>, String> {
        page::policy(&self.parts.observer, &self.facts).map_err(|error| error.to_string())
    }

    fn policy_texts(&self) -> Result<Vec<u8>, String> {
        let policy = &self.parts.observer.board.read().policy;
        page::policy_texts(&policy.inputs).map_err(|error| error.to_string())
    }

    fn history(&self) -> Result<Vec<u8>, String> {
        page::history(&self.parts.history).map_err(|error| error.to_string())
    }

    fn explain(&self, packet: &str, direction: Direction) -> Result<Vec<u8>, String> {
        page::explain(&self.parts.observer, packet, direction)
    }
}

impl api::Daemon for Service {
    fn status(&self) -> model::Status {
        let http = self.http.map(|address| address.to_string());
        model::Status { http, ..self.parts.observer.status() }
    }

    fn in_force(&self) -> InForce {
        self.parts.observer.board.read().policy.for_api()
    }

    fn attach(
        &self,
        id: u64,
        asked: &Asked,
        stream: Box<dyn io::Write + Send>,
    ) -> Result<Option<Slot>, Refused> {
        match asked {
            Asked::Capture(asked) => self.capture(id, asked, stream).map(Some),
            Asked::Trace(asked) => {
                let written =
                    Written { name: &format!("(trace {id})"), form: TraceForm::Lines, snap_bytes: 0 };
                self.trace(&written, asked, stream).map(Some)
            }
            Asked::Record(asked) => self.record(asked, stream).map(|()| None),
        }
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

    fn workers(&self) -> model::WorkerList {
        workers::list(&self.parts.observer)
    }

    fn change_workers(&self, change: WorkerChange, by: &str) -> Result<model::WorkersChanged, Refused> {
        workers::change(&self.parts, change, by)
    }
}

/// The packets that the keys of a match choose; `None`: all.
fn predicate(matches: Option<&str>) -> Result<Option<Predicate>, Refused> {
    let matches = matches.map(|text| policy::parse_match("match", text)).transpose();
    let matches = matches.map_err(|found| {
        // The text around the conditions is not the caller's, so a place in it means nothing.
        let first = found.list.into_iter().next();
        let hint = first.as_ref().and_then(|problem| problem.hint.as_deref());
        let hint = hint.map_or_else(String::new, |hint| format!(" (hint: {hint})"));
        Refused::new(
            400,
            format!("match: {}{hint}", first.map_or_else(String::new, |problem| problem.message)),
        )
    })?;
    Ok(matches.as_ref().map(Predicate::of))
}

/// How a trace is written.
struct Written<'n> {
    /// The name of its sink, which no sink of a policy has.
    name: &'n str,
    form: TraceForm,
    /// The most bytes of each packet.
    snap_bytes: u32,
}

impl Service {
    fn capture(
        &self,
        id: u64,
        asked: &CaptureBody,
        stream: Box<dyn io::Write + Send>,
    ) -> Result<Slot, Refused> {
        let CaptureBody { rule, dropped, matches, snap, one_in } = asked;
        let snap_bytes =
            snap.map_or(CaptureSink::SNAP_BYTES_MAX, |snap| snap.clamp(1, CaptureSink::SNAP_BYTES_MAX));
        let rule = match (rule, matches, dropped) {
            (None, matches, true) => {
                let asked = TraceBody { matches: matches.clone(), one_in: *one_in, dropped: true };
                let written =
                    Written { name: &format!("(capture {id})"), form: TraceForm::Pcapng, snap_bytes };
                return self.trace(&written, &asked, stream);
            }
            (Some(rule), None, false) => rule,
            _ => {
                let why = "a capture has a `rule`, or `dropped` = true and may then have a `match`";
                return Err(Refused::new(400, why));
            }
        };
        self.check_captured(rule)?;
        let options = CaptureSink {
            snap_bytes,
            one_in: one_in.map_or(1, |one_in| one_in.max(1)),
            ..CaptureSink::default()
        };
        // No sink of a policy has such a name.
        let name = format!("(capture {id})");
        let context = self.parts.observer.opened.device.context();
        let workers = self.parts.observer.worker_count();
        let opened = capture::to_writer(stream, &name, rule, &options, context, workers);
        let definition = SinkSpec { name, kind: SinkKind::Capture(options) };
        self.attach_opened(definition, AttachedTo::Rule(rule.clone()), opened)
    }

    fn trace(
        &self,
        written: &Written<'_>,
        asked: &TraceBody,
        stream: Box<dyn io::Write + Send>,
    ) -> Result<Slot, Refused> {
        let options = TraceOptions {
            matches: predicate(asked.matches.as_deref())?,
            one_in: asked.one_in.map_or(1, |one_in| one_in.max(1)),
            only_dropped: asked.dropped,
            frame_bytes: written.snap_bytes,
        };
        let observer = &self.parts.observer;
        let name = written.name.to_owned();
        let writer = TraceWriter::new(&name, written.form, stream, observer, &options);
        let writer = writer.map_err(|error| Refused::new(409, error.to_string()))?;
        let context = observer.opened.device.context();
        let opened = trace::open(Box::new(writer), &options, context, observer.worker_count());
        let definition = SinkSpec { name, kind: SinkKind::Count(CountSink::default()) };
        self.attach_opened(definition, AttachedTo::All, opened)
    }

    /// Copies the packets of the recorder, and writes them on a thread of its own.
    fn record(&self, asked: &RecordBody, mut stream: Box<dyn io::Write + Send>) -> Result<(), Refused> {
        let matches = predicate(asked.matches.as_deref())?;
        let last = asked.last_seconds.map(Duration::try_from_secs_f64).transpose();
        let last = last.map_err(|error| Refused::new(400, format!("last_seconds: {error}")))?;
        let recorder = self.parts.observer.board.read().sinks.recorder();
        let recorder = recorder.ok_or_else(|| {
            let why = "the policy in force has no recorder (hint: add [recorder] with `memory`, and reload)";
            Refused::new(409, why)
        })?;
        // One at a time, as each takes the memory of a copy.
        let recording = Arc::clone(&self.recording);
        if Arc::strong_count(&recording) > 2 {
            return Err(Refused::new(503, "another record is being written (hint: try again later)"));
        }
        let record = recorder.copy(&RecordFilter { since_ns: last.map_or(0, since_ns), matches });
        let record = record.map_err(|error| {
            let why = format!(
                "no memory for a copy of the packets: {error} (hint: ask for fewer: `last_seconds`, `match`)"
            );
            Refused::new(503, why)
        })?;
        // A client that leaves ends it.
        let write = move || {
            let _ = record.write("packets that the recorder has kept", &mut stream);
            drop(recording);
        };
        let thread = std::thread::Builder::new().name("record".to_owned()).spawn(write);
        thread.map(drop).map_err(|error| Refused::new(503, error.to_string()))
    }

    fn attach_opened(
        &self,
        definition: SinkSpec,
        packets: AttachedTo,
        opened: io::Result<Opened>,
    ) -> Result<Slot, Refused> {
        let unavailable = |error: &dyn std::fmt::Display| Refused::new(503, error.to_string());
        let opened = opened.map_err(|error| unavailable(&error))?;
        self.parts.commands.attach(definition, packets, opened).map_err(|error| unavailable(&error))
    }

    /// Only packets that a worker delivers can be captured.
    fn check_captured(&self, name: &str) -> Result<(), Refused> {
        let published = self.parts.observer.board.read();
        match published.policy.program.rules.iter().find(|rule| rule.name == name) {
            None => Err(Refused::new(404, format!("the policy in force has no rule `{name}`"))),
            Some(rule) if matches!(rule.action, Verdict::Deliver(_)) => Ok(()),
            Some(rule) => {
                let hint = match rule.action {
                    Verdict::Drop => {
                        "capture dropped packets by the keys of their match: `steerd capture --dropped MATCH`"
                    }
                    _ => "capture a copy of them: action = { copy = \"GROUP\" }",
                };
                let message = format!("no worker delivers packets of the rule `{name}` (hint: {hint})");
                Err(Refused::new(409, message))
            }
        }
    }
}

//! Answers the requests of the local API.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Sender, TrySendError};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use policy::{Diagnostics, Policy, Source};
use program::Program;
use serde::Serialize;
use steerd_client::api::{self, ApiFailure};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use worker::Slot;

use super::captures::{Asked, Captures};
use super::flows;
use super::model::{File, History, PlanReport, PolicyText, Status, Verdict, WorkerList, WorkersChanged};
use super::request::{
    self, Call, NoOptions, PATHS, PolicyBody, Refused, ReloadBody, RollbackBody, WorkerChange,
};
use super::rules::{Caller, ChangesRefused, RefusedRule, RuleChanges, RuleList, RulesChanged};
use crate::policy_diff;
use crate::policy_file::{self, Inputs, KEPT_BYTES_MAX};
use crate::server::{Answer, Limits, Peer, Router, whole, with};
use crate::state::State;
use crate::telemetry::pages::{Page, Pages};
use crate::terminal::output::Versioned;

/// The number of the capture that an answer is.
pub(super) const CAPTURE_HEADER: HeaderName = HeaderName::from_static(api::CAPTURE_HEADER);
/// How long a client may leave its answer unread: whoever looks at a capture may pause.
const WRITE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a request is not given up for others: reloads and comparisons of large policies take that long.
const BUSY_TIME: Duration = Duration::from_secs(60);
/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The most comparisons of policies at once: each takes a core and the memory of two policies.
const DIFFS_MAX: usize = 1;
/// The most lists of flows that are made at once: each may query the device and take the memory of a long
/// answer. More wait.
const LISTS_MAX: usize = 4;
/// The most changes of rules at once, of owners of rules and of those who may change what runs: each may
/// have a long body, and one is made at a time.
const CHANGES_MAX: usize = 2;

/// The operations that the API needs of the daemon.
pub(crate) trait Daemon: Send + Sync {
    /// Does not ask the device.
    fn status(&self) -> Status;

    fn in_force(&self) -> InForce;

    /// Lets a new capture or trace with this number write to `stream`. Waits for the workers. `None`: of a
    /// record, which ends by itself.
    fn attach(
        &self,
        id: u64,
        asked: &Asked,
        stream: Box<dyn io::Write + Send>,
    ) -> Result<Option<Slot>, Refused>;

    /// Ends it. Waits for the workers.
    fn detach(&self, slot: Slot);

    /// The policies that were in force.
    fn history(&self) -> History;

    /// The cost of a policy; it is compiled, and nothing is done. An inner error: its diagnostics.
    fn plan(&self, read: policy_file::Read) -> Result<PlanReport, ApiFailure>;

    /// Refuses a caller who may change no rule at run time. Does not wait.
    fn may_change_rules(&self, caller: Caller) -> Result<(), Refused>;

    /// Changes rules at run time. Waits for the workers, and for the device where that has to follow.
    fn change_rules(&self, caller: Caller, changes: RuleChanges) -> Result<RulesChanged, ChangesRefused>;

    /// The rules at run time, or the one with this id; `state`: of the daemon now.
    fn rules(&self, id: Option<&str>, state: &State) -> Result<RuleList, Refused>;

    /// All workers. Does not ask the device.
    fn workers(&self) -> WorkerList;

    /// Changes which workers are in service. Waits for the device and the workers.
    fn change_workers(&self, change: WorkerChange, by: &str) -> Result<WorkersChanged, Refused>;
}

/// The policy in force.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    pub(crate) source: String,
    pub(crate) generation: u64,
    pub(crate) inputs: Arc<Inputs>,
    pub(crate) program: Arc<Program>,
}

/// A client that waits for the verdict of a reload.
pub(crate) type Waiter = oneshot::Sender<Verdict>;

/// A change of the policy in force that somebody asks for.
#[derive(Debug)]
pub(crate) struct ReloadRequest {
    pub(crate) wanted: Wanted,
    /// Who asks, for the log and the history.
    pub(crate) by: String,
    pub(crate) waiter: Option<Waiter>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// The policy is read again.
    Reload(ReloadBody),
    /// A policy of the history comes back.
    Back(RollbackBody),
    /// The last reload is confirmed.
    Confirm,
}

/// The parts of the daemon that the API uses.
pub(crate) struct Links {
    pub(crate) daemon: Arc<dyn Daemon>,
    pub(crate) pages: Arc<Pages>,
    /// To the run loop.
    pub(crate) reloads: Sender<ReloadRequest>,
}

pub(super) struct Api {
    links: Links,
    own_uid: u32,
    admins: Vec<u32>,
    diffs: Semaphore,
    lists: Semaphore,
    changes: Semaphore,
    admin_changes: Semaphore,
    captures: Arc<Captures>,
}

impl Router for Api {
    const LIMITS: Limits =
        Limits { name: "api", exchange: None, busy: BUSY_TIME, write: WRITE_TIMEOUT, half_close: false };

    async fn answer(&self, request: Request<Incoming>, peer: Option<Peer>) -> Answer {
        match self.called(request, peer).await {
            Ok(answer) => answer,
            Err(failed) => failed.answer(),
        }
    }
}

/// Why a request is not answered, as JSON.
struct Failed {
    refused: Refused,
    diagnostics: Option<Diagnostics>,
    rules: Vec<RefusedRule>,
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        Self { refused, diagnostics: None, rules: Vec::new() }
    }
}

impl From<ChangesRefused> for Failed {
    fn from(ChangesRefused { refused, rules }: ChangesRefused) -> Self {
        Self { refused, diagnostics: None, rules }
    }
}

impl Failed {
    fn answer(self) -> Answer {
        let Self { refused, diagnostics, rules } = self;
        let failure = ApiFailure {
            error: refused.why,
            refused: rules,
            text: diagnostics.as_ref().map(ToString::to_string),
            diagnostics: diagnostics.and_then(|found| serde_json::to_value(found.list).ok()),
        };
        let mut answer = json(&failure);
        *answer.status_mut() = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_REQUEST);
        if let Some(allow) = refused.allow {
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
        }
        answer
    }
}

impl Api {
    pub(super) fn new(links: Links, admins: Vec<u32>) -> Self {
        let own_uid = rustix::process::geteuid().as_raw();
        let captures = Arc::new(Captures::new(Arc::clone(&links.daemon)));
        let (diffs, lists) = (Semaphore::new(DIFFS_MAX), Semaphore::new(LISTS_MAX));
        let (changes, admin_changes) = (Semaphore::new(CHANGES_MAX), Semaphore::new(CHANGES_MAX));
        Self { links, own_uid, admins, diffs, lists, changes, admin_changes, captures }
    }

    async fn called(&self, request: Request<Incoming>, peer: Option<Peer>) -> Result<Answer, Failed> {
        let (head, incoming) = request.into_parts();
        let call = request::call(head.method.as_str(), head.uri.path(), head.uri.query())?;
        if call.is_privileged() {
            self.permit(peer)?;
        }
        Ok(match call {
            Call::Index => json(&BTreeMap::from([("paths", PATHS)])),
            Call::Status => computed(|| json(&self.links.daemon.status()))?,
            Call::State => self.page(Page::State).await?,
            Call::Top => self.page(Page::Top).await?,
            Call::Policy => json(&policy_text(&self.links.daemon.in_force())),
            Call::Flows { rule } => self.flows(rule).await?,
            Call::Rules { id } => {
                let _permit = self.lists.acquire().await.map_err(|error| internal(&error))?;
                let state =
                    self.links.pages.state().await.map_err(|why| Refused::new(503, why.trim_end()))?;
                computed(|| self.links.daemon.rules(id, &state).map(|list| json(&list)))??
            }
            Call::ChangeRules => self.change_rules(incoming, call.body_bytes_max(), peer).await?,
            Call::Workers => json(&self.links.daemon.workers()),
            Call::ChangeWorkers => self.change_workers(incoming, call.body_bytes_max(), peer).await?,
            Call::Reload => {
                let bytes = body(incoming, call.body_bytes_max()).await?;
                let asked: ReloadBody = request::options(&bytes)?;
                check_time(asked.confirm_seconds)?;
                self.reload(Wanted::Reload(asked), peer).await?
            }
            Call::Confirm => {
                let bytes = body(incoming, call.body_bytes_max()).await?;
                request::options::<NoOptions>(&bytes)?;
                self.reload(Wanted::Confirm, peer).await?
            }
            Call::Rollback => {
                let bytes = body(incoming, call.body_bytes_max()).await?;
                let asked: RollbackBody = request::options(&bytes)?;
                self.reload(Wanted::Back(asked), peer).await?
            }
            Call::History => json(&self.links.daemon.history()),
            Call::StartCapture => {
                let bytes = body(incoming, call.body_bytes_max()).await?;
                self.start(|| request::body(&bytes).map(Asked::Capture), "application/x-pcapng")?
            }
            Call::StartTrace => {
                let bytes = body(incoming, call.body_bytes_max()).await?;
                self.start(|| request::options(&bytes).map(Asked::Trace), "application/x-ndjson")?
            }
            Call::Record => {
                let bytes = body(incoming, call.body_bytes_max()).await?;
                self.start(|| request::options(&bytes).map(Asked::Record), "application/x-pcapng")?
            }
            Call::StopCapture { id } => match computed(|| self.captures.stop(id))? {
                true => json(&BTreeMap::from([("stopped", id)])),
                false => return Err(Refused::new(404, format!("no capture or trace {id} is running")).into()),
            },
            Call::Diff => {
                // Before the body is read, so that the bodies of those that wait take no memory. Held to the
                // end of the comparison, which does not end when the client leaves.
                let permit = self.diffs.try_acquire();
                let _permit =
                    permit.map_err(|_| busy("another comparison is running (hint: try again later)"))?;
                let bytes = body(incoming, call.body_bytes_max()).await?;
                self.diff(bytes)?
            }
            Call::Plan => {
                let permit = self.diffs.try_acquire();
                let _permit =
                    permit.map_err(|_| busy("another comparison is running (hint: try again later)"))?;
                let bytes = body(incoming, call.body_bytes_max()).await?;
                self.plan(bytes)?
            }
        })
    }

    /// Who changes rules at run time; the policy decides what they may.
    fn caller(&self, peer: Option<Peer>) -> Result<Caller, Refused> {
        match peer {
            Some(peer) => Ok(Caller { uid: peer.uid, is_admin: self.permit(Some(peer)).is_ok() }),
            None => Err(Refused::new(403, "a client without a user id may not change rules")),
        }
    }

    /// Whether the client may change what runs.
    fn permit(&self, peer: Option<Peer>) -> Result<(), Refused> {
        let uid = peer.map(|peer| peer.uid);
        if uid.is_some_and(|uid| uid == 0 || uid == self.own_uid || self.admins.contains(&uid)) {
            return Ok(());
        }
        let who = uid.map_or_else(|| "a client without a user id".to_owned(), |uid| format!("user id {uid}"));
        Err(Refused::new(
            403,
            format!(
                "{who} may read but not change: that takes root, user id {} (the daemon's) or one of api.admins in the \
                 settings",
                self.own_uid
            ),
        ))
    }

    async fn page(&self, page: Page) -> Result<Answer, Refused> {
        let bytes = self.links.pages.rendered(page).await;
        let bytes = bytes.map_err(|why| Refused::new(503, why.trim_end()))?;
        Ok(with(whole(bytes), CONTENT_TYPE, page.content_type()))
    }

    async fn flows(&self, rule: Option<&str>) -> Result<Answer, Failed> {
        let _permit = self.lists.acquire().await.map_err(|error| internal(&error))?;
        // A reload may come between the two.
        let (in_force, state) = loop {
            let state = self.links.pages.state().await.map_err(|why| Refused::new(503, why.trim_end()))?;
            let in_force = self.links.daemon.in_force();
            if in_force.generation == state.policy.generation {
                break (in_force, state);
            }
        };
        let answer = computed(|| flows::of(&in_force, &state, rule).map(|flows| json(&flows)));
        Ok(answer??)
    }

    async fn change_rules(
        &self,
        incoming: Incoming,
        bytes_max: usize,
        peer: Option<Peer>,
    ) -> Result<Answer, Failed> {
        let caller = self.caller(peer)?;
        // Before anything of it is read.
        self.links.daemon.may_change_rules(caller)?;
        // The bodies of those that wait take no memory. Owners of rules, who may be slow, do not hold up
        // those who may change what runs.
        let changes = if caller.is_admin { &self.admin_changes } else { &self.changes };
        let _permit = changes.acquire().await.map_err(|error| internal(&error))?;
        let bytes = body(incoming, bytes_max).await?;
        let changed = computed(|| {
            let changes: RuleChanges = request::body(&bytes)?;
            changes.check()?;
            self.links.daemon.change_rules(caller, changes).map_err(Failed::from)
        });
        Ok(json(&changed??))
    }

    async fn change_workers(
        &self,
        incoming: Incoming,
        body_bytes_max: usize,
        peer: Option<Peer>,
    ) -> Result<Answer, Refused> {
        let bytes = body(incoming, body_bytes_max).await?;
        let change: WorkerChange = request::body(&bytes)?;
        let changed = computed(|| self.links.daemon.change_workers(change, &asker(peer)))??;
        Ok(json(&changed))
    }

    /// Waits for the daemon's verdict. The reload goes on if the client goes away.
    async fn reload(&self, wanted: Wanted, peer: Option<Peer>) -> Result<Answer, Refused> {
        let (waiter, verdict) = oneshot::channel();
        let request = ReloadRequest { wanted, by: asker(peer), waiter: Some(waiter) };
        self.links.reloads.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => busy("too many reloads are waiting"),
            TrySendError::Disconnected(_) => busy(ENDING),
        })?;
        let verdict = verdict.await.map_err(|_| busy(ENDING))?;
        Ok(json(&verdict))
    }

    /// The answer is the capture, and its number is in a header.
    fn start(
        &self,
        asked: impl FnOnce() -> Result<Asked, Refused>,
        content_type: &'static str,
    ) -> Result<Answer, Failed> {
        let started = computed(|| self.captures.start(&asked()?));
        let (id, packets) = started??;
        let mut answer = with(Response::new(packets.boxed()), CONTENT_TYPE, content_type);
        answer.headers_mut().insert(CAPTURE_HEADER, HeaderValue::from(id));
        Ok(answer)
    }

    fn plan(&self, bytes: Bytes) -> Result<Answer, Failed> {
        let in_force = self.links.daemon.in_force();
        computed(move || {
            let asked: PolicyBody = request::body(&bytes)?;
            drop(bytes);
            asked.check()?;
            let variables = asked.variables.as_ref().unwrap_or(&in_force.inputs.variables);
            let source = Source::new(asked.name.as_str(), asked.text);
            let read = policy_file::parse(&source, &asked.files, variables);
            let read = read.map_err(|diagnostics| wrong_policy(&source, diagnostics))?;
            match self.links.daemon.plan(read) {
                Ok(report) => Ok(json(&report)),
                Err(failure) => {
                    let mut answer = json(&failure);
                    *answer.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
                    Ok(answer)
                }
            }
        })?
    }

    fn diff(&self, bytes: Bytes) -> Result<Answer, Failed> {
        let in_force = self.links.daemon.in_force();
        computed(move || {
            let asked: PolicyBody = request::body(&bytes)?;
            drop(bytes);
            asked.check()?;
            let old = running(&in_force.inputs)?;
            let variables = asked.variables.as_ref().unwrap_or(&in_force.inputs.variables);
            let new = parsed(&Source::new(asked.name.as_str(), asked.text), &asked.files, variables)?;
            let names = [in_force.source, asked.name];
            let answer = policy_diff::json(names, &old, &new, asked.all);
            Ok(answer.map_or_else(|error| Failed::from(internal(&error)).answer(), json_bytes))
        })?
    }
}

const ENDING: &str = "the daemon is ending";

/// Who asks, for the log and the history.
fn asker(peer: Option<Peer>) -> String {
    peer.map_or_else(|| "a client".to_owned(), |peer| format!("user {}", peer.uid))
}

fn busy(why: &str) -> Refused {
    Refused::new(503, why)
}

fn internal(error: &dyn std::fmt::Display) -> Refused {
    Refused::new(500, error.to_string())
}

/// Runs what takes long: on the thread of the connection, which serves no other client. A client that leaves
/// does not end it; so its connection and its permit count until its end.
fn computed<T>(work: impl FnOnce() -> T) -> Result<T, Refused> {
    // As with a thread of its own, of what a panic leaves half done others see only what is behind locks.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| internal(&"the request failed: see the daemon's log"))
}

/// The policy in force, parsed from what is kept of it.
fn running(inputs: &Inputs) -> Result<Policy, Failed> {
    let too_large = || {
        let why = format!("the policy in force has more than {KEPT_BYTES_MAX} bytes: its text is not kept");
        Refused::new(409, why)
    };
    let read = policy_file::load_inputs(inputs).ok_or_else(too_large)?;
    read.map(|read| read.policy)
        .map_err(|diagnostics| wrong_policy(&Source::new(inputs.name.as_str(), ""), diagnostics))
}

fn parsed(
    source: &Source,
    files: &BTreeMap<String, String>,
    variables: &BTreeMap<String, String>,
) -> Result<Policy, Failed> {
    let read = policy_file::parse(source, files, variables);
    read.map(|read| read.policy).map_err(|diagnostics| wrong_policy(source, diagnostics))
}

fn wrong_policy(source: &Source, diagnostics: Diagnostics) -> Failed {
    let why = format!("{}: {} in the policy", source.name, policy_file::error_count(&diagnostics));
    Failed { refused: Refused::new(422, why), diagnostics: Some(diagnostics), rules: Vec::new() }
}

/// The longest time that a reload waits for its confirmation.
const CONFIRM_MAX: Duration = Duration::from_secs(24 * 3600);

fn check_time(seconds: Option<f64>) -> Result<(), Refused> {
    let is_good = |seconds: f64| {
        Duration::try_from_secs_f64(seconds).is_ok_and(|time| !time.is_zero() && time <= CONFIRM_MAX)
    };
    match seconds {
        Some(seconds) if !is_good(seconds) => {
            Err(Refused::new(400, "confirm_seconds is more than 0 and at most 86400"))
        }
        _ => Ok(()),
    }
}

fn policy_text(in_force: &InForce) -> PolicyText {
    let inputs = &in_force.inputs;
    let files = inputs
        .files
        .iter()
        .map(|(name, file)| (name.clone(), File { sha256: file.sha256.clone(), text: file.text.clone() }));
    PolicyText {
        source: in_force.source.clone(),
        generation: in_force.generation,
        sha256: inputs.sha256.clone(),
        text: inputs.text.clone(),
        files: files.collect(),
        variables: inputs.variables.clone(),
    }
}

/// The whole body, at most `max` bytes, within [`BODY_TIMEOUT`].
async fn body(incoming: Incoming, max: usize) -> Result<Bytes, Refused> {
    let too_large = || Refused::new(413, format!("the body may have at most {max} bytes"));
    // Refused before it is sent, if its length is announced.
    if incoming.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    match timeout(BODY_TIMEOUT, Limited::new(incoming, max).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Refused::new(400, format!("the body cannot be read: {error}"))),
        Err(_) => {
            Err(Refused::new(408, format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs())))
        }
    }
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(&Versioned::new(value)) {
        Ok(bytes) => json_bytes(bytes),
        Err(error) => {
            let mut answer = whole(format!("{error}\n"));
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            answer
        }
    }
}

fn json_bytes(bytes: Vec<u8>) -> Answer {
    with(whole(bytes), CONTENT_TYPE, "application/json")
}

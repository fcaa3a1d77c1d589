//! The server: one thread reads messages, one checks policies, and this one answers. Answers come from the
//! documents and the last results, so that none waits for a check.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;

use crossbeam::channel::{Receiver, select, unbounded};
use lsp_server::{ErrorCode, Message, Notification, Request, RequestId, Response};
use lsp_types::{
    CodeActionKind, CodeActionOptions, CodeActionParams, CodeActionProviderCapability, CompletionOptions,
    CompletionParams, DidChangeTextDocumentParams, DidCloseTextDocumentParams, DidOpenTextDocumentParams,
    DocumentSymbolParams, GotoDefinitionParams, HoverParams, HoverProviderCapability, InlayHintParams,
    MessageType, OneOf, PositionEncodingKind, PublishDiagnosticsParams, ReferenceParams, RenameOptions,
    RenameParams, SaveOptions, ServerCapabilities, ShowMessageParams, TextDocumentPositionParams,
    TextDocumentSyncCapability, TextDocumentSyncKind, TextDocumentSyncOptions, TextDocumentSyncSaveOptions,
    Uri,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::checker::{CheckedPolicy, FindingLevel, PolicyChecker, SETTING_NAMES, ServerSettings};
use crate::file_uri::path_of;
use crate::position::CodeUnits;
use crate::transport::{self, Incoming, TransportError};
use crate::worker::{CheckThread, Snapshot, WorkOrder, WorkResult};
use crate::workspace::Workspace;
use crate::{completion, fixes, navigation, publish};

/// The section of the client's settings.
const SECTION: &str = "steerd";

/// The way in which a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client sent `shutdown` and `exit`.
    Exit,
    /// The client sent `exit` without `shutdown`, or the input ended.
    WithoutShutdown,
}

/// A session cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The input cannot be read further.
    #[error(transparent)]
    Input(#[from] TransportError),
    /// The output cannot be written.
    #[error("cannot write a message: {0}")]
    Output(#[from] io::Error),
    /// There can be no further thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The thread that checks policies has ended.
    #[error("the check of a policy failed unexpectedly")]
    CheckEnded,
}

/// An answer to a request.
type Answer = Result<Value, RequestError>;

/// Why a request has no result.
struct RequestError {
    code: ErrorCode,
    message: String,
}

/// The stage of the session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    BeforeInitialize,
    Running,
    ShutDown,
}

struct Server<W> {
    output: W,
    version: &'static str,
    stage: Stage,
    workspace: Workspace,
    checks: CheckThread,
    /// The policies that the last order was about.
    ordered: Vec<PathBuf>,
    /// The files that have findings in the editor.
    published: BTreeSet<PathBuf>,
    /// Whether the client asks for hints again when it is told to.
    refreshes_hints: bool,
    /// Whether the client answers `workspace/configuration`.
    has_configuration: bool,
    last_id: i32,
    /// The request for the settings that is not answered yet.
    settings_request: Option<RequestId>,
}

/// Serves one client until it ends the session. `version`: that of the program.
///
/// # Errors
/// The framing of the input is wrong, the output is closed, or a thread cannot be started.
pub fn serve(
    input: impl Read + Send + 'static,
    output: impl Write,
    version: &'static str,
    checker: impl PolicyChecker,
) -> Result<SessionEnd, ServerError> {
    let (sender, received) = unbounded();
    let read = move || {
        let mut reader = BufReader::new(input);
        loop {
            let incoming = transport::read(&mut reader);
            let is_last = !matches!(incoming, Ok(Some(_)));
            if sender.send(incoming).is_err() || is_last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("lsp-read".to_owned()).spawn(read).map_err(ServerError::Thread)?;
    let server = Server {
        output,
        version,
        stage: Stage::BeforeInitialize,
        workspace: Workspace::default(),
        checks: CheckThread::start(checker).map_err(ServerError::Thread)?,
        ordered: Vec::new(),
        published: BTreeSet::new(),
        refreshes_hints: false,
        has_configuration: false,
        last_id: 0,
        settings_request: None,
    };
    server.run(&received)
}

/// A body that was read, the end of the input, or why it cannot be read further.
type ReadResult = Result<Option<Incoming>, TransportError>;

impl<W: Write> Server<W> {
    fn run(mut self, received: &Receiver<ReadResult>) -> Result<SessionEnd, ServerError> {
        let results = self.checks.results.clone();
        loop {
            select! {
                recv(received) -> read => {
                    let first = read.unwrap_or(Ok(None));
                    // What has arrived already may cancel a request.
                    let waiting = std::iter::once(first).chain(received.try_iter());
                    if let Some(end) = self.take_all(waiting.collect())? {
                        return Ok(end);
                    }
                }
                recv(results) -> result => match result {
                    Ok(result) => self.take_result(result)?,
                    Err(_) => return Err(ServerError::CheckEnded),
                }
            }
        }
    }

    /// Takes what has arrived, in order; the end of the session if it has come.
    fn take_all(&mut self, waiting: VecDeque<ReadResult>) -> Result<Option<SessionEnd>, ServerError> {
        let mut cancelled = cancelled(&waiting);
        for read in waiting {
            let incoming = match read {
                Ok(Some(incoming)) => incoming,
                Ok(None) => return Ok(Some(SessionEnd::WithoutShutdown)),
                Err(error) => {
                    let code = ErrorCode::ParseError as i32;
                    let error_of_client = json!({ "code": code, "message": error.to_string() });
                    let answer = json!({ "jsonrpc": "2.0", "id": null, "error": error_of_client });
                    transport::write_value(&mut self.output, &answer)?;
                    return Err(error.into());
                }
            };
            match incoming {
                Incoming::Malformed(answer) => transport::write_value(&mut self.output, &answer)?,
                Incoming::Message(Message::Request(request)) => {
                    let is_cancelled = cancelled.remove(&request.id);
                    self.request(request, is_cancelled)?;
                }
                Incoming::Message(Message::Notification(notification)) => {
                    if notification.method == "exit" {
                        let is_shut_down = self.stage == Stage::ShutDown;
                        let end = if is_shut_down { SessionEnd::Exit } else { SessionEnd::WithoutShutdown };
                        return Ok(Some(end));
                    }
                    self.notification(notification)?;
                }
                Incoming::Message(Message::Response(response)) => self.response(response)?,
            }
        }
        Ok(None)
    }

    fn send(&mut self, message: impl Into<Message>) -> io::Result<()> {
        message.into().write(&mut self.output)
    }

    fn notify(&mut self, method: &str, params: impl Serialize) -> io::Result<()> {
        self.send(Notification { method: method.to_owned(), params: serde_json::to_value(params)? })
    }

    /// Sends a request to the client.
    fn ask(&mut self, method: &str, params: Value) -> io::Result<RequestId> {
        self.last_id += 1;
        let id = RequestId::from(self.last_id);
        self.send(Request { id: id.clone(), method: method.to_owned(), params })?;
        Ok(id)
    }

    fn show_error(&mut self, message: String) -> io::Result<()> {
        self.notify("window/showMessage", ShowMessageParams { typ: MessageType::ERROR, message })
    }

    fn request(&mut self, request: Request, is_cancelled: bool) -> io::Result<()> {
        let Request { id, method, params } = request;
        let answer = match (self.stage, &*method) {
            _ if is_cancelled => refused(ErrorCode::RequestCanceled, "cancelled"),
            (Stage::BeforeInitialize, "initialize") => self.initialize(&params),
            (Stage::BeforeInitialize, _) => {
                refused(ErrorCode::ServerNotInitialized, "the first request is `initialize`")
            }
            (Stage::Running, "shutdown") => {
                self.stage = Stage::ShutDown;
                Ok(Value::Null)
            }
            (Stage::Running, "initialize") => {
                refused(ErrorCode::InvalidRequest, "the server is initialized already")
            }
            (Stage::Running, _) => answer(&self.workspace, &method, params),
            (Stage::ShutDown, _) => refused(ErrorCode::InvalidRequest, "the server is shut down"),
        };
        self.send(match answer {
            Ok(result) => Response { id, response_result: Ok(result) },
            Err(RequestError { code, message }) => Response::new_err(id, code as i32, message),
        })
    }

    /// Answers `initialize`.
    fn initialize(&mut self, params: &Value) -> Answer {
        let offered = params.pointer("/capabilities/general/positionEncodings").cloned().unwrap_or_default();
        let offered: Vec<PositionEncodingKind> = serde_json::from_value(offered).unwrap_or_default();
        self.workspace.units = CodeUnits::chosen(&offered);
        let folder = params.pointer("/workspaceFolders/0/uri").or_else(|| params.get("rootUri"));
        let folder: Option<Uri> = folder.and_then(|uri| uri.as_str()?.parse().ok());
        self.workspace.folder = folder.map(|uri| path_of(&uri)).filter(|path| path.is_absolute());
        let can = |pointer: &str| params.pointer(pointer) == Some(&Value::Bool(true));
        self.refreshes_hints = can("/capabilities/workspace/inlayHint/refreshSupport");
        self.has_configuration = can("/capabilities/workspace/configuration");
        let given = params.get("initializationOptions").cloned().unwrap_or_default();
        // A client whose settings have a wrong form corrects them and starts again. A model or a file that
        // cannot be used is reported later, as after a change.
        let settings =
            settings_of(given).map_err(|message| RequestError { code: ErrorCode::InvalidParams, message })?;
        self.use_settings(settings);
        self.stage = Stage::Running;
        value(json!({
            "capabilities": capabilities(self.workspace.units),
            "serverInfo": { "name": "steerd", "version": self.version },
        }))
    }

    /// Hands the settings to the checker. They are kept once it has accepted them.
    fn use_settings(&mut self, settings: ServerSettings) {
        let order = WorkOrder::Configure(Box::new(settings), self.workspace.folder.clone());
        // A thread that has ended is noticed by its results.
        let _ = self.checks.orders.send(order);
    }

    fn notification(&mut self, notification: Notification) -> io::Result<()> {
        let Notification { method, params } = notification;
        if self.stage != Stage::Running {
            return Ok(());
        }
        match &*method {
            "textDocument/didOpen" => {
                if let Some(DidOpenTextDocumentParams { text_document: document }) = self.read(params)? {
                    self.workspace.open(document.uri, document.version, document.text);
                    self.order(false);
                }
            }
            "textDocument/didChange" => {
                let Some(DidChangeTextDocumentParams { text_document, content_changes }) =
                    self.read(params)?
                else {
                    return Ok(());
                };
                let (uri, version) = (text_document.uri, text_document.version);
                match self.workspace.change(&uri, version, content_changes) {
                    true => self.order(false),
                    false => self.show_error(format!("{} is not open", uri.as_str()))?,
                }
            }
            "textDocument/didClose" => {
                if let Some(DidCloseTextDocumentParams { text_document }) = self.read(params)? {
                    self.workspace.close(&text_document.uri);
                    self.order(false);
                    self.publish()?;
                }
            }
            // Captures and files of sets may be others now.
            "textDocument/didSave" | "workspace/didChangeWatchedFiles" => self.order(true),
            "workspace/didChangeConfiguration" => self.changed_settings(&params)?,
            _ => {}
        }
        Ok(())
    }

    /// The parameters of a notification; wrong ones are reported, because a notification has no answer.
    fn read<T: DeserializeOwned>(&mut self, params: Value) -> io::Result<Option<T>> {
        match serde_json::from_value(params) {
            Ok(params) => Ok(Some(params)),
            Err(error) => {
                self.show_error(format!("steerd does not understand a notification: {error}"))?;
                Ok(None)
            }
        }
    }

    fn changed_settings(&mut self, params: &Value) -> io::Result<()> {
        let given = params.get("settings").cloned().unwrap_or_default();
        if given.is_null() && self.has_configuration {
            let items = json!({ "items": [{ "section": SECTION }] });
            self.settings_request = Some(self.ask("workspace/configuration", items)?);
            return Ok(());
        }
        match has_settings(&given) {
            true => self.apply_settings(given),
            false => Ok(()),
        }
    }

    fn apply_settings(&mut self, given: Value) -> io::Result<()> {
        let given = given.get(SECTION).cloned().unwrap_or(given);
        // Some clients send this at their start although they have no settings; those of `initialize` stay.
        let is_empty =
            given.as_object().is_some_and(Map::is_empty) || given.as_array().is_some_and(Vec::is_empty);
        if given.is_null() || is_empty {
            return Ok(());
        }
        match settings_of(given) {
            Ok(settings) => {
                self.use_settings(settings);
                self.order(true);
                Ok(())
            }
            Err(problem) => self.show_error(problem),
        }
    }

    fn response(&mut self, response: Response) -> io::Result<()> {
        if self.settings_request.as_ref() != Some(&response.id) {
            return Ok(());
        }
        self.settings_request = None;
        let given =
            response.response_result.ok().and_then(|result| result.get(0).cloned()).unwrap_or_default();
        self.apply_settings(given)
    }

    /// Orders a check of the policies as they are now.
    fn order(&mut self, is_forced: bool) {
        if is_forced {
            self.workspace.forget_files();
        }
        self.ordered = self.workspace.policies();
        self.checks.check(Snapshot {
            policies: self.ordered.clone(),
            texts: self.workspace.texts(),
            revisions: self.workspace.revisions(),
            is_forced,
        });
    }

    fn take_result(&mut self, result: WorkResult) -> io::Result<()> {
        let (path, revisions, policy, is_last) = match result {
            WorkResult::Settings(Ok(settings)) => {
                self.workspace.settings = *settings;
                return Ok(());
            }
            WorkResult::Settings(Err(problem)) => return self.show_error(problem),
            WorkResult::Checked { path, revisions, policy, is_last } => (path, revisions, *policy, is_last),
        };
        let is_current = self.workspace.revisions().get(&path) == revisions.get(&path);
        // The findings of a device come and go with each partial result that follows a whole one.
        let is_wanted = is_last || self.workspace.result(&path).is_none_or(has_errors);
        // A check of the newer text is ordered already.
        if !is_current || !is_wanted {
            return Ok(());
        }
        self.workspace.keep(path, policy, revisions);
        // A document that turns out to be a part of another policy is not checked by itself.
        if self.workspace.policies() != self.ordered {
            self.order(false);
        }
        self.publish()?;
        if is_last && self.refreshes_hints {
            self.ask("workspace/inlayHint/refresh", Value::Null)?;
        }
        Ok(())
    }

    /// Sends the findings of all documents, and removes those of documents that have none any more. Documents
    /// that have changed since their check keep what the client has: the findings are of another version.
    fn publish(&mut self) -> io::Result<()> {
        let found = publish::by_file(&self.workspace).into_iter();
        let mut found: BTreeMap<PathBuf, Vec<_>> = found
            .map(|(path, placed)| (path, placed.into_iter().map(|one| one.diagnostic).collect()))
            .collect();
        let mut files: BTreeSet<PathBuf> = found.keys().cloned().collect();
        let checked = self.workspace.results().map(|(path, _)| path.clone());
        let all: BTreeSet<PathBuf> = self.published.union(&files).cloned().chain(checked).collect();
        for path in all {
            let diagnostics = found.remove(&path).unwrap_or_default();
            if self.workspace.is_outdated(&path) {
                match self.published.contains(&path) {
                    true => files.insert(path),
                    false => files.remove(&path),
                };
                continue;
            }
            let Some(uri) = self.workspace.uri(&path) else { continue };
            let version = self.workspace.buffer(&path).map(|buffer| buffer.version);
            self.notify(
                "textDocument/publishDiagnostics",
                PublishDiagnosticsParams { uri, diagnostics, version },
            )?;
        }
        self.published = files;
        Ok(())
    }
}

fn has_errors(checked: &CheckedPolicy) -> bool {
    checked.findings.iter().any(|finding| finding.level == FindingLevel::Error)
}

/// The requests that a later message cancels.
fn cancelled(waiting: &VecDeque<ReadResult>) -> BTreeSet<RequestId> {
    let id = |read: &ReadResult| match read {
        Ok(Some(Incoming::Message(Message::Notification(one)))) if one.method == "$/cancelRequest" => {
            serde_json::from_value(one.params.get("id")?.clone()).ok()
        }
        _ => None,
    };
    waiting.iter().filter_map(id).collect()
}

/// Returns whether settings that a client sends on its own concern this server: some clients send those of
/// all servers.
fn has_settings(given: &Value) -> bool {
    let has = |name: &str| given.get(name).is_some();
    !given.is_object() || has(SECTION) || SETTING_NAMES.into_iter().any(has)
}

/// The settings of a client: the section, or an object that has it.
fn settings_of(given: Value) -> Result<ServerSettings, String> {
    let given = given.get(SECTION).cloned().unwrap_or(given);
    if given.is_null() {
        return Ok(ServerSettings::default());
    }
    serde_json::from_value(given).map_err(|error| {
        format!(
            "the settings of the steerd language server are wrong: {error} (hint: docs/reference/commands/lsp.md lists them)"
        )
    })
}

fn capabilities(units: CodeUnits) -> ServerCapabilities {
    let characters = ["\"", "'", "[", "{", " ", "="].map(str::to_owned).to_vec();
    ServerCapabilities {
        position_encoding: Some(units.kind()),
        text_document_sync: Some(TextDocumentSyncCapability::Options(TextDocumentSyncOptions {
            open_close: Some(true),
            change: Some(TextDocumentSyncKind::INCREMENTAL),
            save: Some(TextDocumentSyncSaveOptions::SaveOptions(SaveOptions { include_text: Some(false) })),
            ..TextDocumentSyncOptions::default()
        })),
        hover_provider: Some(HoverProviderCapability::Simple(true)),
        completion_provider: Some(CompletionOptions {
            trigger_characters: Some(characters),
            ..CompletionOptions::default()
        }),
        definition_provider: Some(OneOf::Left(true)),
        references_provider: Some(OneOf::Left(true)),
        document_symbol_provider: Some(OneOf::Left(true)),
        code_action_provider: Some(CodeActionProviderCapability::Options(CodeActionOptions {
            code_action_kinds: Some(vec![CodeActionKind::QUICKFIX]),
            ..CodeActionOptions::default()
        })),
        rename_provider: Some(OneOf::Right(RenameOptions {
            prepare_provider: Some(true),
            work_done_progress_options: lsp_types::WorkDoneProgressOptions::default(),
        })),
        inlay_hint_provider: Some(OneOf::Left(true)),
        ..ServerCapabilities::default()
    }
}

fn refused(code: ErrorCode, message: &str) -> Answer {
    Err(RequestError { code, message: message.to_owned() })
}

fn value(result: impl Serialize) -> Answer {
    serde_json::to_value(result)
        .map_err(|error| RequestError { code: ErrorCode::InternalError, message: error.to_string() })
}

fn params<T: DeserializeOwned>(params: Value) -> Result<T, RequestError> {
    serde_json::from_value(params)
        .map_err(|error| RequestError { code: ErrorCode::InvalidParams, message: error.to_string() })
}

/// Answers a request about documents.
fn answer(workspace: &Workspace, method: &str, given: Value) -> Answer {
    let path = |uri: &Uri| path_of(uri);
    match method {
        "textDocument/hover" => {
            let at = params::<HoverParams>(given)?.text_document_position_params;
            value(navigation::hover(workspace, &path(&at.text_document.uri), at.position))
        }
        "textDocument/completion" => {
            let at = params::<CompletionParams>(given)?.text_document_position;
            value(completion::complete(workspace, &path(&at.text_document.uri), at.position))
        }
        "textDocument/definition" => {
            let at = params::<GotoDefinitionParams>(given)?.text_document_position_params;
            value(navigation::definition(workspace, &path(&at.text_document.uri), at.position))
        }
        "textDocument/references" => {
            let ReferenceParams { text_document_position: at, context, .. } = params(given)?;
            let path = path(&at.text_document.uri);
            value(navigation::references(workspace, &path, at.position, context.include_declaration))
        }
        "textDocument/prepareRename" => {
            let at: TextDocumentPositionParams = params(given)?;
            value(navigation::rename_target(workspace, &path(&at.text_document.uri), at.position))
        }
        "textDocument/rename" => {
            let RenameParams { text_document_position: at, new_name, .. } = params(given)?;
            let path = path(&at.text_document.uri);
            let renamed = navigation::rename(workspace, &path, at.position, &new_name);
            value(renamed.map_err(|message| RequestError { code: ErrorCode::RequestFailed, message })?)
        }
        "textDocument/documentSymbol" => {
            let document = params::<DocumentSymbolParams>(given)?.text_document;
            value(navigation::symbols(workspace, &path(&document.uri)))
        }
        "textDocument/codeAction" => {
            let CodeActionParams { text_document, range, context, .. } = params(given)?;
            let is_wanted = context.only.is_none_or(|kinds| {
                kinds.iter().any(|kind| [CodeActionKind::EMPTY, CodeActionKind::QUICKFIX].contains(kind))
            });
            let fixes = is_wanted.then(|| fixes::fixes(workspace, &path(&text_document.uri), range));
            value(fixes.unwrap_or_default())
        }
        "textDocument/inlayHint" => {
            let InlayHintParams { text_document, range, .. } = params(given)?;
            let is_wanted = workspace.settings.inlay_hints != Some(false);
            let hints = is_wanted.then(|| fixes::hints(workspace, &path(&text_document.uri), range));
            value(hints.unwrap_or_default())
        }
        _ => refused(ErrorCode::MethodNotFound, &format!("there is no method {method}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelled_requests_are_found() {
        let cancel = |id: Value| {
            let params = json!({ "id": id });
            let method = "$/cancelRequest".to_owned();
            Ok(Some(Incoming::Message(Notification { method, params }.into())))
        };
        let waiting = VecDeque::from([cancel(json!(1)), cancel(json!("a")), cancel(json!(null)), Ok(None)]);
        let expected = BTreeSet::from([RequestId::from(1), RequestId::from("a".to_owned())]);
        assert_eq!(cancelled(&waiting), expected);
    }

    #[test]
    fn settings_of_other_servers_are_ignored() {
        assert!(has_settings(&json!({ "steerd": {} })) && has_settings(&json!({ "workers": 2 })));
        assert!(!has_settings(&json!({ "rust-analyzer": {} })) && !has_settings(&json!({})));
    }

    #[test]
    fn settings_have_a_section_or_none() {
        for given in [json!({ "model": "mlx5" }), json!({ "steerd": { "model": "mlx5" } })] {
            assert_eq!(settings_of(given).expect("settings").model.as_deref(), Some("mlx5"));
        }
        assert_eq!(settings_of(Value::Null), Ok(ServerSettings::default()));
        assert!(settings_of(json!({ "workers": "four" })).is_err_and(|error| error.contains("invalid type")));
    }
}

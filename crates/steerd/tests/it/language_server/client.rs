//! A client of `steerd lsp`: it speaks the protocol over pipes with the real program.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{PATIENCE, Patience, steerd};

/// A running server; killed when dropped.
pub(crate) struct Client {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    /// Messages that were read and not taken.
    kept: Vec<Value>,
    last_id: i64,
}

/// The frame of a body.
pub(crate) fn framed(body: &str) -> String {
    format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

/// The next message of a server; `None`: its output has ended.
fn read_message(reader: &mut impl BufRead) -> Option<Value> {
    let mut length = None;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("stdout");
        match line.trim_end() {
            "" if line.is_empty() => return None,
            "" => break,
            line => {
                length = line.strip_prefix("Content-Length: ").map(|bytes| bytes.parse().expect("a number"));
            }
        }
    }
    let mut body = vec![0; length.expect("a length")];
    reader.read_exact(&mut body).expect("a body");
    Some(serde_json::from_slice(&body).expect("JSON"))
}

impl Client {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = steerd();
        command.arg("lsp").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            while let Some(message) = read_message(&mut stdout) {
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, messages, kept: Vec::new(), last_id: 0 }
    }

    /// Starts it and initializes the session with these settings.
    pub(crate) fn initialized(settings: &Value) -> Self {
        let mut client = Self::start(&[]);
        let result = client.request(
            "initialize",
            json!({ "capabilities": {}, "processId": null, "initializationOptions": settings }),
        );
        assert_eq!(result["capabilities"]["positionEncoding"], "utf-16", "{result}");
        client.notify("initialized", json!({}));
        client
    }

    pub(crate) fn write(&mut self, text: &str) {
        let input = self.input.as_mut().expect("it is open");
        // A server that has ended is seen by its status.
        let _ = input.write_all(text.as_bytes()).and_then(|()| input.flush());
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        let mut body = json!({ "jsonrpc": "2.0", "method": method });
        body["params"] = params;
        self.write(&framed(&body.to_string()));
    }

    /// Sends a request and returns its id.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> i64 {
        self.last_id += 1;
        let mut body = json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method });
        body["params"] = params;
        self.write(&framed(&body.to_string()));
        self.last_id
    }

    /// The answer to a request.
    pub(crate) fn answer(&mut self, id: i64) -> Value {
        self.take(|message| message["id"] == id && message.get("method").is_none())
    }

    /// The result of a request, which must succeed.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        let answer = self.answer(id);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The first message that is wanted; the others are kept.
    pub(crate) fn take(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.kept.iter().position(&is_wanted) {
            return self.kept.remove(at);
        }
        let mut patience = Patience::new(PATIENCE);
        loop {
            match self.messages.recv_timeout(Duration::from_millis(100)) {
                Ok(message) if is_wanted(&message) => return message,
                Ok(message) => self.kept.push(message),
                Err(RecvTimeoutError::Timeout) => assert!(!patience.is_over(), "{:#?}", self.kept),
                Err(RecvTimeoutError::Disconnected) => panic!("the server has ended: {:#?}", self.kept),
            }
        }
    }

    pub(crate) fn open(&mut self, uri: &str, text: &str) {
        let document = json!({ "uri": uri, "languageId": "toml", "version": 1, "text": text });
        self.notify("textDocument/didOpen", json!({ "textDocument": document }));
    }

    /// Replaces the whole text.
    pub(crate) fn change(&mut self, uri: &str, version: i64, text: &str) {
        let document = json!({ "uri": uri, "version": version });
        self.notify(
            "textDocument/didChange",
            json!({ "textDocument": document, "contentChanges": [{ "text": text }] }),
        );
    }

    /// The findings of a version of a document.
    pub(crate) fn diagnostics(&mut self, uri: &str, version: i64) -> Vec<Value> {
        let message = self.take(|message| {
            let params = &message["params"];
            message["method"] == "textDocument/publishDiagnostics"
                && params["uri"] == uri
                && params["version"] == version
        });
        message["params"]["diagnostics"].as_array().expect("a list").clone()
    }

    /// The findings of a version that are wanted, once there are some: those of the text come first.
    pub(crate) fn findings(&mut self, uri: &str, version: i64, code: &str) -> Vec<Value> {
        loop {
            let all = self.diagnostics(uri, version).into_iter();
            let found: Vec<Value> = all.filter(|one| one["code"] == code).collect();
            if !found.is_empty() {
                return found;
            }
        }
    }

    /// How often findings of a document were published and not taken.
    pub(crate) fn published(&self, uri: &str) -> usize {
        self.kept_findings(uri).count()
    }

    /// The last findings of a document that were published and not taken.
    pub(crate) fn last_published(&self, uri: &str) -> Option<Vec<Value>> {
        self.kept_findings(uri).last()?["params"]["diagnostics"].as_array().cloned()
    }

    fn kept_findings(&self, uri: &str) -> impl Iterator<Item = &Value> {
        let is_it = move |message: &&Value| {
            message["method"] == "textDocument/publishDiagnostics" && message["params"]["uri"] == uri
        };
        self.kept.iter().filter(is_it)
    }

    /// The answer at a position of a document.
    pub(crate) fn at(&mut self, method: &str, uri: &str, position: (usize, usize)) -> Value {
        let (line, character) = position;
        let position = json!({ "line": line, "character": character });
        self.request(method, json!({ "textDocument": { "uri": uri }, "position": position }))
    }

    /// Ends the session properly.
    pub(crate) fn shut_down(mut self) {
        assert_eq!(self.request("shutdown", Value::Null), Value::Null);
        self.notify("exit", Value::Null);
        let (status, stderr) = self.end();
        assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
    }

    /// Closes the input and returns the status and what was printed.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        self.input = None;
        let mut patience = Patience::new(PATIENCE);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("child") {
                break status;
            }
            assert!(!patience.is_over(), "the server has not ended");
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut text = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut text).expect("stderr");
        (status, text)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

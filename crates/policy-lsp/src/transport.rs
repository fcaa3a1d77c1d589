//! The framing of messages: a header with the length, and a body of JSON. `lsp-server` can read it, too, but
//! without a bound on the header, and it reserves what `Content-Length` announces; a message that is no JSON
//! ends its reader. Here both parts are bounded and such a message is answered.

use std::io::{self, BufRead, Read, Write};

use lsp_server::{ErrorCode, Message, RequestId};
use serde_json::{Value, json};

/// The most bytes of a header.
const MAX_HEADER_BYTES: u64 = 8 << 10;
/// The most bytes of a body: a policy has at most 64 MiB, which JSON may escape.
const MAX_BODY_BYTES: u64 = 256 << 20;

/// The stream cannot be read further: where the next message begins is not known.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The stream failed.
    #[error("cannot read a message: {0}")]
    Read(#[from] io::Error),
    /// The stream ended within a message.
    #[error("the stream ends within a message")]
    Truncated,
    /// The header is longer than any that a client sends.
    #[error("a message has a header of more than {MAX_HEADER_BYTES} bytes")]
    LongHeader,
    /// A line of the header is none.
    #[error("a message has the header line {0:?}, which is not NAME: VALUE")]
    BadHeader(String),
    /// The header has no length.
    #[error("a message has no Content-Length")]
    NoLength,
    /// The length is no number of bytes that a message may have.
    #[error("a message has the Content-Length {0:?}; it must be a number up to {MAX_BODY_BYTES}")]
    BadLength(String),
}

/// A body that was read.
#[derive(Debug)]
pub(crate) enum Incoming {
    Message(Message),
    /// It is no message; the answer to it.
    Malformed(Value),
}

/// Reads the next body; `None`: the stream has ended.
///
/// # Errors
/// The stream fails, or its framing is wrong.
pub(crate) fn read(reader: &mut impl BufRead) -> Result<Option<Incoming>, TransportError> {
    let Some(length) = read_header(reader)? else { return Ok(None) };
    // It grows with what arrives, so that a length alone takes no memory.
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    if (body.len() as u64) < length {
        return Err(TransportError::Truncated);
    }
    Ok(Some(decode(&body)))
}

/// Reads a header and returns the length of the body.
fn read_header(reader: &mut impl BufRead) -> Result<Option<u64>, TransportError> {
    let mut header = reader.take(MAX_HEADER_BYTES);
    let mut length = None;
    let mut is_first = true;
    loop {
        let mut line = Vec::new();
        header.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\n") {
            return match (header.limit(), is_first && line.is_empty()) {
                (0, _) => Err(TransportError::LongHeader),
                (_, true) => Ok(None),
                (_, false) => Err(TransportError::Truncated),
            };
        }
        is_first = false;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            return length.ok_or(TransportError::NoLength).map(Some);
        }
        let Some((name, value)) = line.split_once(':') else {
            return Err(TransportError::BadHeader(line.chars().take(80).collect()));
        };
        if name.eq_ignore_ascii_case("Content-Length") {
            let bytes = value.trim().parse().ok().filter(|bytes| *bytes <= MAX_BODY_BYTES);
            let bad = || TransportError::BadLength(value.trim().chars().take(80).collect());
            length = Some(bytes.ok_or_else(bad)?);
        }
    }
}

/// A body as a message, or the answer to one that is none.
fn decode(body: &[u8]) -> Incoming {
    let value: Value = match serde_json::from_slice(body) {
        Ok(value) => value,
        Err(error) => return malformed(&Value::Null, ErrorCode::ParseError, &format!("not JSON: {error}")),
    };
    let id = value.get("id").cloned().unwrap_or(Value::Null);
    let has_id = !id.is_null();
    match serde_json::from_value(value) {
        // A request with an id of another type would be taken for a notification and have no answer.
        Ok(Message::Notification(_)) if has_id => {
            malformed(&id, ErrorCode::InvalidRequest, "the id is neither a string nor a number of 32 bits")
        }
        Ok(message) => Incoming::Message(message),
        Err(_) => {
            malformed(&id, ErrorCode::InvalidRequest, "neither a request, nor a notification, nor an answer")
        }
    }
}

fn malformed(id: &Value, code: ErrorCode, message: &str) -> Incoming {
    let id = if serde_json::from_value::<RequestId>(id.clone()).is_ok() { id } else { &Value::Null };
    Incoming::Malformed(json!({
        "jsonrpc": "2.0",
        "id": id,
        "error": { "code": code as i32, "message": message },
    }))
}

/// Writes a message that `lsp-server` has no type for.
///
/// # Errors
/// The stream fails.
pub(crate) fn write_value(writer: &mut impl Write, value: &Value) -> io::Result<()> {
    let body = value.to_string();
    write!(writer, "Content-Length: {}\r\n\r\n{body}", body.len())?;
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(bytes: &[u8]) -> (Vec<Incoming>, Option<TransportError>) {
        let (mut reader, mut all) = (bytes, Vec::new());
        loop {
            match read(&mut reader) {
                Ok(Some(incoming)) => all.push(incoming),
                Ok(None) => return (all, None),
                Err(error) => return (all, Some(error)),
            }
        }
    }

    fn framed(body: &str) -> String {
        format!("Content-Length: {}\r\n\r\n{body}", body.len())
    }

    #[test]
    fn malformed_bodies_are_answered() {
        let bodies = [
            ("{", "null", -32700),
            ("[]", "null", -32600),
            ("{}", "null", -32600),
            ("{\"id\":1.5,\"method\":\"x\"}", "null", -32600),
            ("{\"id\":7,\"method\":7}", "7", -32600),
            ("\u{fffd}", "null", -32700),
        ];
        let text: String = bodies.iter().map(|(body, ..)| framed(body)).collect();
        let (all, error) = read_all((text + &framed("{\"method\":\"exit\"}")).as_bytes());
        assert!(error.is_none(), "{error:?}");
        for ((body, id, code), incoming) in bodies.iter().zip(&all) {
            let Incoming::Malformed(answer) = incoming else { panic!("{body}: {incoming:?}") };
            assert_eq!((&*answer["id"].to_string(), answer["error"]["code"].as_i64()), (*id, Some(*code)));
        }
        assert!(matches!(all.last(), Some(Incoming::Message(Message::Notification(_)))));
    }

    #[test]
    fn wrong_framing_ends_the_stream() {
        let long = format!("X: {}\r\n", "x".repeat(9000));
        for (text, expected) in [
            ("Content-Length: x\r\n\r\n{}", "it must be a number"),
            ("Content-Length: -1\r\n\r\n{}", "it must be a number"),
            ("Content-Length: 99999999999\r\n\r\n{}", "it must be a number"),
            ("Content-Length: 200000000\r\n\r\n{}", "within a message"),
            ("Content-Length\r\n\r\n{}", "not NAME: VALUE"),
            ("Content-Type: x\r\n\r\n{}", "no Content-Length"),
            ("Content-Length: 2", "within a message"),
            (&long, "more than 8192 bytes"),
        ] {
            let (all, error) = read_all(text.as_bytes());
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(all.is_empty() && error.contains(expected), "{text:.40}: {error}");
        }
        assert!(read_all(b"").1.is_none());
    }
}

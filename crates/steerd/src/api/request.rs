//! The requests of the local API: from a method, a path and a body to a [`Call`], without sockets.
//! fuzz/fuzz_targets/api.rs includes this file, so it uses nothing of the crate.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The paths and what they answer, for GET /.
pub(crate) const PATHS: &[(&str, &str)] = &[
    ("GET", "/v1/status"),
    ("GET", "/v1/state"),
    ("GET", "/v1/top"),
    ("GET", "/v1/policy"),
    ("GET", "/v1/flows"),
    ("GET", "/v1/rules"),
    ("POST", "/v1/rules/changes"),
    ("GET", "/v1/workers"),
    ("POST", "/v1/workers/changes"),
    ("POST", "/v1/diff"),
    ("POST", "/v1/reload"),
    ("POST", "/v1/confirm"),
    ("POST", "/v1/rollback"),
    ("POST", "/v1/plan"),
    ("GET", "/v1/history"),
    ("POST", "/v1/captures"),
    ("POST", "/v1/traces"),
    ("POST", "/v1/records"),
    ("DELETE", "/v1/captures/ID"),
];

/// The only version.
const VERSION: &str = "v1";

/// The most bytes of a body: the texts of two kept policies, escaped.
pub(crate) const BODY_BYTES_MAX: usize = 48 << 20;
/// The most bytes of a body that has only options.
const OPTIONS_BYTES_MAX: usize = 64 << 10;

/// The most characters of an error about a body.
const SHOWN_ERROR: usize = 200;

/// The call that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call<'r> {
    Index,
    Status,
    State,
    Top,
    Policy,
    /// The flows of all rules, or of one.
    Flows {
        rule: Option<&'r str>,
    },
    /// The rules at run time, or one of them.
    Rules {
        id: Option<&'r str>,
    },
    ChangeRules,
    /// The workers, with those that are spare.
    Workers,
    ChangeWorkers,
    Diff,
    /// The cost of a policy of the caller.
    Plan,
    Reload,
    /// The policy of the last reload stays.
    Confirm,
    /// A policy of the history comes back.
    Rollback,
    History,
    StartCapture,
    StartTrace,
    /// The packets that the recorder has kept.
    Record,
    /// Stops a capture or a trace; their numbers are of one sequence.
    StopCapture {
        id: u64,
    },
}

impl Call<'_> {
    /// Whether it changes what runs, or shows packets.
    pub(crate) fn is_privileged(self) -> bool {
        let reloads = matches!(self, Self::Reload | Self::Confirm | Self::Rollback | Self::ChangeWorkers);
        let shows = matches!(self, Self::StartCapture | Self::StartTrace | Self::Record);
        reloads || shows || matches!(self, Self::StopCapture { .. })
    }

    /// The most bytes of its body.
    pub(crate) fn body_bytes_max(self) -> usize {
        match self {
            Self::Diff | Self::Plan | Self::ChangeRules => BODY_BYTES_MAX,
            _ => OPTIONS_BYTES_MAX,
        }
    }
}

/// Why a request is not answered: an HTTP status and a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) why: String,
    /// The methods of the path, for the header Allow.
    pub(crate) allow: Option<&'static str>,
}

impl Refused {
    pub(crate) fn new(status: u16, why: impl Into<String>) -> Self {
        Self { status, why: why.into(), allow: None }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.why)
    }
}

/// The call of a request line; `query` is what follows the question mark of the target.
pub(crate) fn call<'r>(method: &str, path: &str, query: Option<&'r str>) -> Result<Call<'r>, Refused> {
    let (call, allow) = match path {
        "/" => (Call::Index, "GET, HEAD"),
        "/v1/status" => (Call::Status, "GET, HEAD"),
        "/v1/state" => (Call::State, "GET, HEAD"),
        "/v1/top" => (Call::Top, "GET, HEAD"),
        "/v1/policy" => (Call::Policy, "GET, HEAD"),
        "/v1/flows" => (Call::Flows { rule: None }, "GET, HEAD"),
        "/v1/rules" => (Call::Rules { id: None }, "GET, HEAD"),
        "/v1/rules/changes" => (Call::ChangeRules, "POST"),
        "/v1/workers" => (Call::Workers, "GET, HEAD"),
        "/v1/workers/changes" => (Call::ChangeWorkers, "POST"),
        "/v1/diff" => (Call::Diff, "POST"),
        "/v1/plan" => (Call::Plan, "POST"),
        "/v1/reload" => (Call::Reload, "POST"),
        "/v1/confirm" => (Call::Confirm, "POST"),
        "/v1/rollback" => (Call::Rollback, "POST"),
        "/v1/history" => (Call::History, "GET, HEAD"),
        "/v1/captures" => (Call::StartCapture, "POST"),
        "/v1/traces" => (Call::StartTrace, "POST"),
        "/v1/records" => (Call::Record, "POST"),
        _ => match path.strip_prefix("/v1/captures/").map(str::parse) {
            Some(Ok(id)) => (Call::StopCapture { id }, "DELETE"),
            _ => return Err(unknown(path)),
        },
    };
    if !allow.split(", ").any(|one| one == method) {
        let why = format!("{path} takes {allow}, not {}", shown(method));
        return Err(Refused { status: 405, why, allow: Some(allow) });
    }
    match (call, query) {
        (_, None | Some("")) => Ok(call),
        (Call::Flows { .. }, Some(query)) => match query.split_once('=') {
            Some(("rule", rule)) if is_name(rule) => Ok(Call::Flows { rule: Some(rule) }),
            _ => Err(Refused::new(400, "the only parameter of /v1/flows is rule=NAME")),
        },
        (Call::Rules { .. }, Some(query)) => match query.split_once('=') {
            Some(("id", id)) if is_id(id) => Ok(Call::Rules { id: Some(id) }),
            _ => Err(Refused::new(400, "the only parameter of /v1/rules is id=ID")),
        },
        (_, Some(_)) => Err(Refused::new(400, format!("{path} has no parameters"))),
    }
}

/// Names of rules need no escapes in a query.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.~".contains(c))
}

/// Ids of rules at run time that need no escapes.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && !"%&+#".contains(c))
}

/// An answer that names the path which was probably meant.
fn unknown(path: &str) -> Refused {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let is_version = |part: &str| {
        part.strip_prefix('v')
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let known =
        |name: &str| PATHS.iter().map(|(_, path)| *path).find(|path| path.ends_with(&format!("/{name}")));
    let why = match parts[..] {
        [version, ..] if is_version(version) && version != VERSION => {
            format!("this daemon serves version {VERSION} of the API, not {}", shown(version))
        }
        [.., last] if known(last).is_some() => {
            format!("no such path (hint: {})", known(last).unwrap_or_default())
        }
        _ => "no such path (hint: GET / lists the paths)".to_owned(),
    };
    Refused::new(404, why)
}

/// The first characters of what a client sent, for an error.
fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

/// A policy of the caller and the files that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyBody {
    /// The name in the answer.
    #[serde(default = "caller")]
    pub(crate) name: String,
    pub(crate) text: String,
    /// The texts of included files and set files, by the name in the policy.
    #[serde(default, deserialize_with = "texts")]
    pub(crate) files: BTreeMap<String, String>,
    /// `None`: those of the policy in force.
    #[serde(default, deserialize_with = "maybe_texts")]
    pub(crate) variables: Option<BTreeMap<String, String>>,
    /// Describe more regions, as `diff --all` does.
    #[serde(default)]
    pub(crate) all: bool,
}

fn caller() -> String {
    "(the caller's policy)".to_owned()
}

/// How a policy is to be read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReloadBody {
    /// The policy before comes back after so many seconds unless the new one is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) confirm_seconds: Option<f64>,
    /// Only say what the reload would do.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Reload although a set has changed by more than its `max_change`.
    #[serde(default)]
    pub(crate) force: bool,
}

/// The policy that is to come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RollbackBody {
    /// The one that was in force so many policies ago; `None`: the last one, unless it was not confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) back: Option<usize>,
    /// The number of the policy that the caller saw in force; if it is another one now, nothing is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) in_force: Option<u64>,
}

/// A capture of the packets of a rule, or of packets that are dropped or lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CaptureBody {
    /// The rule; `None`: dropped packets are captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<String>,
    /// Whether dropped packets are captured, in place of those of a rule.
    #[serde(default)]
    pub(crate) dropped: bool,
    /// The keys of a `match` of a policy, for dropped packets; `None`: all.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub(crate) matches: Option<String>,
    /// The most bytes of a packet; `None`: all.
    #[serde(default)]
    pub(crate) snap: Option<u32>,
    /// One of this many packets is taken; `None`: all.
    #[serde(default)]
    pub(crate) one_in: Option<u32>,
}

/// A change of the workers in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum WorkerChange {
    /// The first spare worker gets its part of the groups' tables.
    Add {
        /// The core that it is pinned to; `None`: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        core: Option<usize>,
    },
    /// A worker in service gives its part to the others and becomes spare.
    Drain { worker: u32 },
}

/// A trace of packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceBody {
    /// The keys of a `match` of a policy; `None`: all packets.
    #[serde(default, rename = "match")]
    pub(crate) matches: Option<String>,
    /// One of this many packets is shown; `None`: all.
    #[serde(default)]
    pub(crate) one_in: Option<u32>,
    /// Only packets that are dropped or lost.
    #[serde(default)]
    pub(crate) dropped: bool,
}

/// A record: packets that the recorder has kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordBody {
    /// The keys of a `match` of a policy; `None`: all packets.
    #[serde(default, rename = "match")]
    pub(crate) matches: Option<String>,
    /// Only packets of so many last seconds; `None`: all that are kept.
    #[serde(default)]
    pub(crate) last_seconds: Option<f64>,
}

/// The most entries of a list of a body, as each takes more memory than its text.
pub(crate) const ENTRIES_MAX: usize = 65_536;

/// Reads a list of a body, of which entries beyond one more than [`ENTRIES_MAX`] are skipped.
pub(crate) fn entries<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Entries<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut entries = Vec::new();
            while entries.len() <= ENTRIES_MAX
                && let Some(entry) = list.next_element()?
            {
                entries.push(entry);
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(entries)
        }
    }

    deserializer.deserialize_seq(Entries(PhantomData))
}

/// Reads a table of texts of a body in the same way.
pub(crate) fn texts<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Texts;

    impl<'de> Visitor<'de> for Texts {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with texts")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut texts = BTreeMap::new();
            while texts.len() <= ENTRIES_MAX
                && let Some((name, text)) = map.next_entry()?
            {
                texts.insert(name, text);
            }
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(texts)
        }
    }

    deserializer.deserialize_map(Texts)
}

/// Reads a table of texts, or `null`.
fn maybe_texts<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    #[derive(Deserialize)]
    struct Given(#[serde(deserialize_with = "texts")] BTreeMap<String, String>);
    Ok(Option::<Given>::deserialize(deserializer)?.map(|Given(texts)| texts))
}

/// Refuses a list with more than [`ENTRIES_MAX`] entries.
pub(crate) fn check_entries(name: &str, entries: usize) -> Result<(), Refused> {
    if entries <= ENTRIES_MAX {
        return Ok(());
    }
    Err(Refused::new(
        413,
        format!("`{name}` may have at most {ENTRIES_MAX} entries (hint: make several calls)"),
    ))
}

impl PolicyBody {
    /// Refuses too many files or variables.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        check_entries("files", self.files.len())?;
        check_entries("variables", self.variables.as_ref().map_or(0, BTreeMap::len))
    }
}

/// Reads a JSON body.
pub(crate) fn body<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T, Refused> {
    serde_json::from_slice(bytes).map_err(|error| {
        // It may quote what the client sent.
        let error: String = error.to_string().chars().take(SHOWN_ERROR).collect();
        Refused::new(400, format!("the body is not valid: {error}"))
    })
}

/// Reads the options of a request that needs none: no body, `null` and an empty object are the usual ones.
pub(crate) fn options<'b, T: Deserialize<'b> + Default>(bytes: &'b [u8]) -> Result<T, Refused> {
    if bytes.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    if bytes.trim_ascii().starts_with(b"[") {
        return Err(Refused::new(400, "the body is not an object"));
    }
    Ok(body::<Option<T>>(bytes)?.unwrap_or_default())
}

/// The options of a request without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoOptions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_path_is_known() {
        for (method, path) in PATHS {
            let path = path.replace("ID", "7");
            assert!(call(method, &path, None).is_ok(), "{method} {path}");
            let other = if *method == "GET" { "POST" } else { "GET" };
            let refused = call(other, &path, None).expect_err("another method");
            assert_eq!((refused.status, refused.allow.is_some()), (405, true), "{path}");
        }
    }

    #[test]
    fn wrong_paths_get_hints() {
        let why =
            |path: &str| call("GET", path, None).map_err(|refused| refused.to_string()).expect_err(path);
        assert_eq!(why("/v2/status"), "404: this daemon serves version v1 of the API, not v2");
        assert_eq!(why("/status"), "404: no such path (hint: /v1/status)");
        assert_eq!(why("/api/v1/state"), "404: no such path (hint: /v1/state)");
        for path in ["", "*", "/v1", "/v1/", "/v1/status/", "//", "/v/status/x"] {
            assert!(why(path).starts_with("404"), "{path}");
        }
        assert!(why(&format!("/v9{}", "9".repeat(5000))).len() < 200, "what the client sent is cut");
    }

    #[test]
    fn flows_can_be_those_of_one_rule() {
        assert_eq!(
            call("GET", "/v1/flows", Some("rule=web.a-1~ipv6")),
            Ok(Call::Flows { rule: Some("web.a-1~ipv6") })
        );
        for query in ["rule=", "rule=a%20b", "x=1", "rule"] {
            assert_eq!(call("GET", "/v1/flows", Some(query)).expect_err(query).status, 400);
        }
        assert_eq!(call("GET", "/v1/status", Some("x=1")).expect_err("no parameters").status, 400);
    }

    #[test]
    fn bodies_are_checked() {
        let body = |text: &str| body::<PolicyBody>(text.as_bytes());
        assert_eq!(body(r#"{"text": "version = 1"}"#).expect("valid").text, "version = 1");
        for text in
            ["", "{", "[]", "{}", r#"{"text": 1}"#, r#"{"text": "", "txet": ""}"#, "{\"text\": \"\"} x"]
        {
            assert_eq!(body(text).expect_err(text).status, 400);
        }
        for text in ["", " \n", "null", "{}", " {} "] {
            assert_eq!(options::<NoOptions>(text.as_bytes()), Ok(NoOptions {}), "{text}");
            assert_eq!(options(text.as_bytes()), Ok(ReloadBody::default()), "{text}");
            assert_eq!(options(text.as_bytes()), Ok(RollbackBody::default()), "{text}");
        }
        for text in ["{", "[]", "1", "version = 1", r#"{"policy": "p.toml"}"#, "\0"] {
            assert_eq!(options::<NoOptions>(text.as_bytes()).expect_err(text).status, 400);
            assert_eq!(options::<ReloadBody>(text.as_bytes()).expect_err(text).status, 400);
        }
        let null = body(r#"{"text": "", "variables": null, "files": {"a": "b"}}"#).expect("valid");
        assert_eq!((null.variables, null.files.len()), (None, 1));
        let many =
            (0..=ENTRIES_MAX + 9).map(|number| format!("\"{number}\": \"\"")).collect::<Vec<_>>().join(",");
        for key in ["files", "variables"] {
            let many =
                body(&format!("{{\"text\": \"\", \"{key}\": {{{many}}}}}")).expect("its syntax is right");
            let refused = many.check().expect_err("too many");
            assert_eq!(refused.status, 413, "{refused}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(body(&deep).expect_err("nested").status, 400);
    }
}

//! A language server for policies. It knows the documents of an editor, the names in them and the keys of the
//! language; findings come from a [`PolicyChecker`], which runs on a thread of its own and is given up when
//! the text changes. No answer waits for a check.
//!
//! ```
//! use policy_lsp::{CheckedPolicy, OpenPolicy, PolicyChecker, ServerSettings, SessionEnd, serve};
//!
//! struct NoFindings;
//!
//! impl PolicyChecker for NoFindings {
//!     fn configure(&mut self, _: &ServerSettings, _: Option<&std::path::Path>) -> Result<(), String> {
//!         Ok(())
//!     }
//!
//!     fn check(
//!         &mut self,
//!         _: &OpenPolicy,
//!         _: &dyn Fn() -> bool,
//!         _: &mut dyn FnMut(CheckedPolicy),
//!     ) -> Option<CheckedPolicy> {
//!         Some(CheckedPolicy::default())
//!     }
//! }
//!
//! let input = b"Content-Length: 33\r\n\r\n{\"jsonrpc\":\"2.0\",\"method\":\"exit\"}";
//! let end = serve(&input[..], std::io::sink(), "0", NoFindings)?;
//! assert_eq!(end, SessionEnd::WithoutShutdown);
//! # Ok::<(), policy_lsp::ServerError>(())
//! ```
#![forbid(unsafe_code)]

mod buffer;
mod checker;
mod completion;
mod cursor;
mod file_uri;
mod fixes;
mod markdown;
mod navigation;
mod outline;
mod position;
mod publish;
mod rule_split;
mod server;
mod transport;
mod vocabulary;
mod worker;
mod workspace;

pub use checker::{
    CheckedPolicy, FindingLevel, OpenFiles, OpenPolicy, PolicyChecker, PolicyFinding, RuleNote,
    ServerSettings,
};
pub use server::{ServerError, SessionEnd, serve};
pub use transport::TransportError;

//! The names by which the packets of one program are described.

use std::borrow::Cow;
use std::sync::Arc;

use program::{Program, RUNTIME_RULES, Verdict};

use super::ring::PacketHead;
use crate::sink::SinkMap;

/// The names of a program, which may no longer be in use.
#[derive(Debug)]
pub(super) struct ProgramNames {
    map: Arc<SinkMap>,
    /// The rules by index; behind them all rules at run time.
    rules: Vec<Box<str>>,
    groups: Vec<Box<str>>,
    sinks: Vec<Box<str>>,
    /// The sink that returns packets to the kernel.
    kernel_sink: Option<Box<str>>,
}

impl ProgramNames {
    pub(super) fn of(map: &Arc<SinkMap>, program: &Program) -> Self {
        let at_run_time = program.runtime.iter().map(|_| RUNTIME_RULES);
        let rules = program.rules.iter().map(|rule| rule.name.as_str()).chain(at_run_time);
        let kernel_sink = program.kernel_sink().and_then(|id| program.sink(id));
        Self {
            map: Arc::clone(map),
            rules: rules.map(Box::from).collect(),
            groups: program.groups.iter().map(|group| group.name.as_str().into()).collect(),
            sinks: program.sinks.iter().map(|sink| sink.name.as_str().into()).collect(),
            kernel_sink: kernel_sink.map(|sink| sink.name.as_str().into()),
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.map.generation()
    }

    /// The name of a packet's rule, and its outcome. `names`: those of its program, if they are known.
    pub(super) fn describe<'n>(names: Option<&'n Self>, head: &PacketHead) -> (Cow<'n, str>, String) {
        let rule = head.outcome.rule;
        let name = names.and_then(|names| names.rules.get(rule.index()));
        let name = name.map_or_else(
            || Cow::Owned(format!("rule {} of generation {}", rule.0, head.generation)),
            |name| Cow::Borrowed(&**name),
        );
        let outcome = match (head.outcome.verdict, names) {
            (Verdict::Deliver(group), Some(names)) => {
                let group = names.groups.get(group.index()).map_or("?", |group| group);
                let sinks = names.map.sinks_in(head.sinks).filter_map(|id| names.sinks.get(id.index()));
                let sinks = sinks.map(|sink| &**sink).collect::<Vec<_>>().join(", ");
                match sinks.is_empty() {
                    true => format!("delivered to {group}, no sink"),
                    false => format!("delivered to {group}, sinks {sinks}"),
                }
            }
            (Verdict::Deliver(_), None) => "delivered".to_owned(),
            (Verdict::Drop, _) => "dropped by a worker".to_owned(),
            (Verdict::Kernel, Some(Self { kernel_sink: Some(sink), .. })) => {
                format!("returned to the kernel by sink {sink}")
            }
            (Verdict::Kernel, Some(_)) => "left to the kernel, lost".to_owned(),
            (Verdict::Kernel, None) => "left to the kernel".to_owned(),
            (Verdict::Filtered, _) => "a copy that its rule does not match".to_owned(),
        };
        (name, outcome)
    }
}

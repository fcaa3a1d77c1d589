//! What a device and its workers run, as plain data: ids, flow specs, flows, queues, groups, classes and
//! predicates. The compiler makes a [`Program`], `control` installs it on a device, workers run its classes.
//!
//! A program does not refer to the policy's text, and the crate opens no device and reads no file.
//! [`Program::explain`] gives what a program does with one packet. The sets and matches that the language
//! shares with predicates ([`RangeSet`], [`ByteSet`], [`Match`]) are here because this is the lowest crate
//! that needs them.
//!
//! ```
//! use packet::{Field, FlowKey, build::FrameBuilder};
//! use program::{ClassId, Match, Predicate, RangeSet};
//!
//! // The predicate of a match, on the headers of two frames.
//! let web = Match::default().with(Field::DstPort, RangeSet::of(vec![(80, 80), (443, 443)]));
//! let predicate = Predicate::of(&web);
//! let frame = FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 1].into());
//! assert!(predicate.matches(&FlowKey::of(&frame.clone().udp(1024, 443).build())));
//! assert!(!predicate.matches(&FlowKey::of(&frame.udp(1024, 53).build())));
//!
//! // A flow tag holds a class.
//! let class = ClassId(7);
//! assert_eq!(class.tag().and_then(ClassId::of_tag), Some(class));
//! ```
#![forbid(unsafe_code)]

mod byte_set;
mod correspondence;
mod deciders;
mod description;
mod explain;
mod feature;
mod flow_cube;
mod flow_digest;
mod flow_export;
mod flow_packets;
mod ids;
mod indexed_class;
mod matching;
mod outcome;
mod policed_rule;
mod policing;
mod predicate;
mod print;
mod program;
mod question;
mod ranges;
mod recorder;
mod rule_name;
mod runtime;
mod sink;
mod spec_chain;
mod step_index;
mod steps;
mod tag;
mod undecided;
mod xdp_verdict;

pub use byte_set::ByteSet;
pub use correspondence::Correspondence;
pub use deciders::{Decider, HostReception, RuleDeciders};
pub use description::{DescriptionFault, DescriptionText};
pub use explain::{Copied, Explanation, SentExplanation};
pub use feature::{Errno, Feature};
pub use flow_digest::{DanglingFlow, FlowDigest};
pub use flow_export::{CollectorError, CollectorTransport, FlowCollector, FlowExport};
pub use flow_packets::FlowPackets;
pub use flow_spec::FlowSpec;
pub use ids::{ClassId, GroupId, QueueId, RuleId, SinkId, WorkerId};
pub use matching::{Addresses, C_TAG, Family, FieldValues, Fragments, Macs, MaskedMac, Match, MplsEntry};
pub use outcome::{Outcome, Step, Verdict};
pub use policed_rule::PolicedRule;
pub use policing::{LimitPart, LimitShare, LimitUnit, Policing, RateLimit, SourceKey, SourceLimit};
pub use predicate::Predicate;
pub use program::{
    Class, DEFAULT_RULE, Decide, Exception, Flow, FlowAction, FlowKind, Group, HashVariant, MAX_RULES,
    Placement, Program, RETIRED_RULES, RssQueue, Rule,
};
pub use ranges::{RangeSet, Word};
pub use recorder::{RECORDER_RULES_MAX, RECORDER_TRIGGERS_MAX, RecorderRing, RecorderSpec, RecorderTrigger};
pub use rule_name::RuleName;
pub use runtime::{
    AddressPrefix, AddressPrefixError, ProtocolNumber, RUNTIME_ACTIONS_MAX, RUNTIME_FORMS_MAX, RUNTIME_RULES,
    RUNTIME_RULES_MAX, RuntimeAction, RuntimeChange, RuntimeEntry, RuntimeFields, RuntimeForm, RuntimeHeader,
    RuntimeKey, RuntimeMatch, RuntimeMatchError, RuntimeRules, RuntimeSecret,
};
pub use sink::{
    APP_CLIENT_MIB, APP_CLIENTS_MAX, APP_RING_SIZES, APP_RINGS_MAX, AppMode, AppSink, CaptureSink, CountSink,
    ForwardMode, ForwardSink, KernelSink, MAX_SINKS, MAX_TOP_FLOWS, SinkKind, SinkSpec, TapMac, VlanChange,
};
pub use spec_chain::{FlowFront, SpecChain};
pub use steps::{StepList, Steps};
pub use tag::{CLASSES_MAX, ChangeStage, TAG_BITS};
pub use undecided::{Inseparable, UndecidedKey, UndecidedReason};
pub use xdp_verdict::XdpVerdict;

//! What a device and its workers run, as plain data: ids, flow specs, flows, queues, groups, classes and
//! predicates. The compiler makes a [`Program`], `control` puts it on a device, workers run its classes.
//!
//! A program contains nothing of the policy's text, opens no device and reads no file. [`Program::explain`] says what
//! a program does with one packet. The sets and matches that the language shares with predicates ([`RangeSet`],
//! [`ByteSet`], [`Match`]) are here because this is the lowest crate that needs them.
//!
//! ```
//! use packet::{FlowKey, build::FrameBuilder};
//! use program::{Band, ClassId, ClassTag, Match, Predicate, RangeSet};
//!
//! // The predicate of a match, on the headers of two frames.
//! let web = Match { dst_port: Some(RangeSet::of(vec![(80, 80), (443, 443)])), ..Match::default() };
//! let predicate = Predicate::of(&web);
//! let frame = FrameBuilder::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 1].into());
//! assert!(predicate.matches(&FlowKey::of(&frame.clone().udp(1024, 443).build())));
//! assert!(!predicate.matches(&FlowKey::of(&frame.udp(1024, 53).build())));
//!
//! // A flow tag names a class and the half of the priorities that its program has.
//! let tag = ClassTag { band: Band::A, class: ClassId(7) };
//! assert_eq!(tag.encode().and_then(ClassTag::decode), Some(tag));
//! ```
#![forbid(unsafe_code)]

mod byte_set;
mod explain;
mod feature;
mod ids;
mod matching;
mod predicate;
mod print;
mod program;
mod ranges;
mod spec;
mod tag;

pub use byte_set::ByteSet;
pub use explain::{Copied, Explanation, SentExplanation};
pub use feature::{Errno, Feature};
pub use ids::{ClassId, GroupId, QueueId, RuleId, WorkerId};
pub use matching::{Addresses, C_TAG, Family, Fragments, Macs, MaskedMac, Match, MplsEntry, VlanMatch};
pub use predicate::Predicate;
pub use program::{
    Class, DEFAULT_RULE, Decide, Exception, Flow, FlowAction, FlowKind, Group, HashVariant, MAX_RULES,
    Outcome, Placement, Program, RETIRED_RULES, RssQueue, Rule, Step, Unfinished, Untold, Verdict, Why,
};
pub use ranges::{RangeSet, Word};
pub use spec::{
    EspMatch, EthernetMatch, GreMatch, Ipv4Match, Ipv6Match, MplsMatch, PortMatch, Spec, VxlanMatch,
};
pub use tag::{Band, CLASSES_MAX, ClassTag};

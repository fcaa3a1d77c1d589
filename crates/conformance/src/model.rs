//! Finds the device model of a device by trying: limits, refusals and the order of flows.
//!
//! Objects are created and destroyed again, at most [`Bounds`] of a kind at a time, and flows match an unused
//! address, so that no packet of another user is touched. A row that cannot be tried (it needs frames, or a
//! privilege) is that of the *fallback*: the model of the device's driver, or the conservative one. A
//! [`Note`] for each row says how it is known.
//!
//! The first flow is on a plain queue pair: on a device without flows the creation of an RSS queue pair can
//! take the packets of the whole port (mana), so none is created there.

use std::collections::BTreeMap;
use std::sync::Arc;

use device_model::{DeviceModel, Emulation, Errno, Feature, Limit, LimitRow, Origin, RefusalRow};
use softnic::Personality;
use verbs::{
    ActionSpec, CompletionQueue, Counters, FlowAttr, FlowHandle, FlowTag, FlowTarget, HashConfig, HashFields,
    IndirectionTable, PortNumber, RssQueuePair, WorkQueue,
};

use crate::bench::unprepared;
use crate::endpoints::{KEY, Receiver};
use crate::filters::{any_ipv4, any_udp};
use crate::origin::origin;
use crate::rss::{repeated, table_of};
use crate::soft::SoftDevice;
use crate::tunnels::network;
use crate::{Bench, Failure, Outcome, cases};

pub use crate::model_file::text;

mod counts;
mod features;

/// How many objects of a kind the probe creates at most. A limit above is not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Flows, and flows with different masks.
    pub flows: u32,
    /// Queue pairs, indirection tables and counters.
    pub objects: u32,
    /// Flows that copy.
    pub copies: u32,
}

impl Default for Bounds {
    /// Few enough for a second or two, and for other users of the device to have room beside them.
    fn default() -> Self {
        Self { flows: 1024, objects: 256, copies: 64 }
    }
}

/// How a row of a model is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The value was found by trying. Empty, or with what was found beside the value.
    Tried(String),
    /// The device reports it, and it was not reached by trying.
    Reported(String),
    /// Not by trying, for this reason: it is that of the fallback.
    Fallback(String),
    /// The value follows from another row.
    Follows(&'static str),
}

/// A model, and how each row of it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundModel {
    /// The model. Its name is that of the device.
    pub profile: DeviceModel,
    /// The model that has the rows that could not be tried.
    pub fallback: String,
    /// The notes by key; rows of lists as "refusals.ttl" and "limits.flows".
    pub notes: BTreeMap<String, Note>,
}

/// The most priorities: all that `ibv_flow_attr.priority` can name.
const MAX_PRIORITIES: u32 = 1 << 16;
/// The most entries of a table that is tried.
const MAX_TABLE: u32 = 1 << 16;
/// Priorities that many flows are spread over, so that the table of one does not limit all.
const SPREAD: u32 = 16;
/// The largest tag.
const TAG_BITS: u32 = 32;
/// Flows of classes have tags this wide at least.
const LEAST_TAG_BITS: u32 = 24;

const NO_PRIVILEGE: &str = "needs CAP_NET_RAW";

/// The result of a trial.
enum Seen {
    Works,
    /// Accepted without an effect.
    Ignored,
    Refused(i32),
    /// Accepted; whether it has an effect is unknown, and why.
    Unobserved(String),
    /// Unknown, and why.
    Unseen(String),
}

impl From<Outcome> for Seen {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Self::Works,
            Err(Failure::Ignored) => Self::Ignored,
            Err(Failure::Refused(libc::EPERM)) => Self::Unseen(NO_PRIVILEGE.into()),
            Err(Failure::Refused(errno)) => Self::Refused(errno),
            Err(Failure::Unobserved(why)) => Self::Unobserved(why.into()),
            Err(Failure::NotRun(why)) => Self::Unseen(why.into()),
            Err(Failure::Differs(how)) => Self::Unseen(how),
        }
    }
}

/// Finds the model of a device. `progress` is called before each step with its number from 1, the number of
/// steps, and its name.
///
/// # Errors
/// The device cannot even create a protection domain or a completion queue.
pub fn find(
    bench: &Bench<'_>,
    fallback: &DeviceModel,
    bounds: Bounds,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<FoundModel, Failure> {
    // The length of tables and the combinations of hash fields are found, or taken over.
    let emulation =
        Emulation { firmware_sets_max_table: false, hashes_any_fields: false, ..fallback.emulation.clone() };
    let profile = DeviceModel {
        name: bench.context.name().to_owned(),
        emulation,
        refusals: Vec::new(),
        dependences: Vec::new(),
        // Is not tried, and differs by firmware.
        flows_per_second: None,
        ns_per_group: None,
        ..fallback.clone()
    };
    let mut finder =
        Finder { bench, fallback, bounds, profile, notes: BTreeMap::new(), target: None, stopped: None };
    for (number, (name, step)) in (1..).zip(STEPS) {
        progress(number, STEPS.len(), name);
        step(&mut finder)?;
        if finder.stopped.is_some() || !finder.profile.can_steer() {
            break;
        }
    }
    finder.rest();
    let Finder { profile, notes, .. } = finder;
    Ok(FoundModel { profile, fallback: fallback.name.clone(), notes })
}

/// The file of config/device-model-probed.toml: the soft NIC as an mlx5.
///
/// # Errors
/// The soft NIC cannot be made or tried.
pub fn example() -> Result<String, Box<dyn std::error::Error>> {
    let device = SoftDevice::new(Personality::Mlx5)?;
    let bench = Bench::new(device.context(), PortNumber(1), Some(&device))?;
    let found = find(&bench, &DeviceModel::mlx5(), Bounds::default(), &mut |_, _, _| ());
    let mut found = found.map_err(|failure| format!("the soft NIC cannot be tried: {failure:?}"))?;
    let masks_refused = std::mem::take(&mut found.profile.device.masks_refused);
    let mut device = Origin { masks_refused, ..origin(device.context(), "softnic")? };
    "1970-01-01".clone_into(&mut device.date);
    "libibverbs.so".clone_into(&mut device.libibverbs);
    "softnic".clone_into(&mut device.firmware);
    found.profile.device = device;
    Ok(text(&found))
}

type Step = fn(&mut Finder<'_>) -> Result<(), Failure>;

/// In an order in which each uses what those before have found.
const STEPS: [(&str, Step); 12] = [
    ("whether it steers", |finder| finder.steering()),
    ("priorities", |finder| finder.priorities()),
    ("fields, actions and kinds of flows", |finder| finder.features()),
    ("flow tags", |finder| finder.tags()),
    ("specs of a flow", |finder| finder.specs()),
    ("order of multicast flows", |finder| finder.multicast()),
    ("hash fields", |finder| finder.hashes()),
    ("indirection tables", |finder| finder.tables()),
    ("receive queues", |finder| finder.receives()),
    ("numbers of flows and masks", |finder| finder.flows()),
    ("numbers of queue pairs and tables", |finder| finder.objects()),
    ("numbers of counters", |finder| finder.counters()),
];

struct Finder<'b> {
    bench: &'b Bench<'b>,
    fallback: &'b DeviceModel,
    bounds: Bounds,
    profile: DeviceModel,
    notes: BTreeMap<String, Note>,
    /// Where flows go, with what receives there.
    target: Option<(FlowTarget, Receiver)>,
    /// Why nothing can be tried.
    stopped: Option<String>,
}

/// The keys of a model that are not lists, but for its name and what follows from the name of the fallback.
pub(crate) const KEYS: [&str; 19] = [
    "priorities",
    "max_specs",
    "tag_bits",
    "max_flows",
    "max_shapes",
    "priority_table",
    "max_groups",
    "ns_per_group",
    "max_copies",
    "multicast_ignores_priority",
    "hash_field_exclusive",
    "hash_field_pairs",
    "max_table",
    "table_consecutive",
    "max_tables",
    "max_queues",
    "max_receives",
    "max_counters",
    "roce_port",
];

impl Finder<'_> {
    fn note(&mut self, key: impl Into<String>, note: Note) {
        self.notes.insert(key.into(), note);
    }

    fn tried(&mut self, key: &str) {
        self.note(key, Note::Tried(String::new()));
    }

    /// Keeps the row of the fallback.
    fn keep(&mut self, key: &str, why: impl Into<String>) {
        self.note(key, Note::Fallback(why.into()));
    }

    fn refuse(&mut self, feature: Feature, errno: i32) {
        let (errno, unknown) = known(errno);
        let source = "found by trying".to_owned();
        self.profile.refusals.push(RefusalRow { feature, errno, source });
        self.note(row(feature), Note::Tried(unknown));
    }

    /// The errno beyond a limit.
    fn beyond(&mut self, limit: Limit, errno: i32) {
        let (errno, unknown) = known(errno);
        let found = LimitRow { limit, errno, source: "found by trying".to_owned() };
        match self.profile.limits.iter_mut().find(|row| row.limit == limit) {
            Some(row) => *row = found,
            None => self.profile.limits.push(found),
        }
        self.note(format!("limits.{}", limit_name(limit)), Note::Tried(unknown));
    }

    /// Fills in the fallback's values where no step has found one.
    fn rest(&mut self) {
        let why = self.stopped.clone().unwrap_or_else(|| "there is no trial of it".into());
        for key in KEYS {
            self.notes.entry(key.to_owned()).or_insert_with(|| Note::Fallback(why.clone()));
        }
        for limit in self.profile.limits.iter().map(|row| row.limit) {
            let key = format!("limits.{}", limit_name(limit));
            let why = self.stopped.clone().unwrap_or_else(|| "the limit was not reached".into());
            self.notes.entry(key).or_insert(Note::Fallback(why));
        }
    }

    fn create(&self, attr: &FlowAttr) -> Result<FlowHandle, Failure> {
        match &self.target {
            Some((target, _)) => Ok(FlowHandle::create(target, attr)?),
            None => Err(Failure::Differs("there is no queue pair".into())),
        }
    }

    fn accepts(&self, attr: &FlowAttr) -> Outcome {
        self.create(attr).map(drop)
    }

    /// A flow on a plain queue pair, then what steerd has beside it: a work queue, a table and an RSS queue
    /// pair.
    fn steering(&mut self) -> Result<(), Failure> {
        let bench = self.bench;
        let plain = crate::create_qp_ex::make(bench, |pair| pair)
            .and_then(|pair| Ok(FlowHandle::create(&pair.handle().into(), &bench.flow())?));
        let seen = match plain.map(drop).into() {
            Seen::Works => {
                let made = Receiver::new(bench).and_then(|receiver| Ok((receiver.target()?, receiver)));
                made.map(|made| self.target = Some(made)).into()
            }
            seen => seen,
        };
        match seen {
            Seen::Works | Seen::Ignored => self.tried("steering"),
            Seen::Refused(errno) => {
                self.refuse(Feature::Normal, errno);
                self.cannot_steer();
            }
            // The rows of the fallback stay, those of features among them.
            Seen::Unobserved(why) | Seen::Unseen(why) => {
                self.profile.refusals.clone_from(&self.fallback.refusals);
                self.profile.dependences.clone_from(&self.fallback.dependences);
                for refusal in &self.fallback.refusals {
                    self.keep(&row(refusal.feature), why.clone());
                }
                self.stopped = Some(why);
            }
        }
        Ok(())
    }

    /// None of what flows need.
    fn cannot_steer(&mut self) {
        let own = &mut self.profile;
        (own.priorities, own.max_specs, own.tag_bits) = (0, 0, 0);
        (own.max_flows, own.max_counters, own.max_copies) = (Some(0), Some(0), Some(0));
        (own.priority_table, own.multicast_ignores_priority) = (None, false);
        own.max_groups = None;
        for key in ["priorities", "max_specs", "tag_bits", "max_flows", "max_counters", "max_copies"] {
            self.note(key, Note::Follows("there are no flows"));
        }
        for key in ["hash_field_exclusive", "hash_field_pairs", "max_table", "table_consecutive"] {
            self.keep(key, "without flows an RSS queue pair may take the packets of the port");
        }
    }

    fn priorities(&mut self) -> Result<(), Failure> {
        let mut refusal = None;
        let found = verbs::accepted_priorities(MAX_PRIORITIES, |priority| {
            match self.accepts(&self.bench.flow().priority(priority)) {
                Ok(()) => Ok(true),
                Err(Failure::Refused(errno)) => {
                    refusal = Some(errno);
                    Ok(false)
                }
                Err(failure) => Err(failure),
            }
        })?;
        if found < 2 {
            self.refuse(Feature::Normal, refusal.unwrap_or(libc::EINVAL));
            self.note(row(Feature::Normal), Note::Tried("one priority: a reload needs two".into()));
            self.cannot_steer();
            return Ok(());
        }
        self.profile.priorities = found;
        self.tried("priorities");
        if let Some(errno) = refusal {
            self.beyond(Limit::Priorities, errno);
        }
        Ok(())
    }

    fn tags(&mut self) -> Result<(), Failure> {
        if !self.profile.allows(Feature::Tag) {
            self.profile.tag_bits = 0;
            self.note("tag_bits", Note::Follows("flow tags are refused"));
            return Ok(());
        }
        let tag = |bits: u32| FlowTag(u32::MAX >> (u32::BITS - bits));
        let works = |bits| self.accepts(&self.bench.flow().action(ActionSpec::Tag(tag(bits))));
        let mut found = (0, None);
        for bits in 1..=TAG_BITS {
            match works(bits).into() {
                Seen::Works | Seen::Ignored => found = (bits, None),
                Seen::Refused(errno) => {
                    found.1 = Some(errno);
                    break;
                }
                Seen::Unobserved(why) | Seen::Unseen(why) => {
                    self.keep("tag_bits", why);
                    return Ok(());
                }
            }
        }
        let (bits, errno) = found;
        let enough = bits >= LEAST_TAG_BITS;
        self.profile.tag_bits = if enough { bits } else { 0 };
        let words = if enough { String::new() } else { format!("{bits} bits are too few for steerd") };
        self.note("tag_bits", Note::Tried(words));
        if let Some(errno) = errno {
            self.beyond(Limit::Tags, errno);
        }
        Ok(())
    }

    /// A chain of as many specs as the device matches: the first that is refused is one too many.
    fn specs(&mut self) -> Result<(), Failure> {
        let chain = self.chain();
        let most = chain.len() as u32;
        for (specs, attr) in (1..).zip(chain) {
            match self.accepts(&attr) {
                Ok(()) => {}
                Err(Failure::Refused(errno)) => {
                    self.profile.max_specs = (specs - 1).max(1);
                    self.tried("max_specs");
                    self.beyond(Limit::Specs, errno);
                    return Ok(());
                }
                Err(failure) => {
                    self.keep("max_specs", Seen::from(Err(failure)).words());
                    return Ok(());
                }
            }
        }
        self.profile.max_specs = self.fallback.max_specs.max(most);
        self.keep("max_specs", format!("{most} work, and a flow of this device cannot have more"));
        Ok(())
    }

    /// Flows of one spec, of two and so on, of what the device does not refuse.
    fn chain(&self) -> Vec<FlowAttr> {
        let allows = |feature| self.profile.allows(feature);
        let mut chain = vec![self.bench.flow()];
        let mut add = |extend: &dyn Fn(FlowAttr) -> FlowAttr| {
            let last = chain.last().cloned();
            chain.extend(last.map(extend));
        };
        add(&|attr| attr.spec(any_ipv4()));
        add(&|attr| attr.spec(any_udp()));
        if allows(Feature::Vxlan) && allows(Feature::Inner) {
            add(&|attr| attr.spec(network(7, 0x00ff_ffff)));
            add(&|attr| attr.inner(crate::bench::to_us()));
            add(&|attr| attr.inner(any_ipv4()));
            add(&|attr| attr.inner(any_udp()));
        }
        if allows(Feature::Tag) {
            add(&|attr| attr.action(ActionSpec::Tag(FlowTag(3))));
        }
        if let Some(counters) = Counters::new(&self.bench.context).ok().filter(|_| allows(Feature::Count)) {
            add(&|attr| attr.action(ActionSpec::Count(Arc::clone(&counters))));
        }
        if allows(Feature::Drop) {
            add(&|attr| attr.action(ActionSpec::Drop));
        }
        chain
    }

    fn multicast(&mut self) -> Result<(), Failure> {
        let all = cases();
        let case = all.iter().find(|case| case.value == "multicast at 0, everything from a sender at 5");
        let seen = match case {
            Some(case) if self.bench.lacks(case.needs).is_none() => (case.run)(self.bench).into(),
            _ => Seen::Unseen("needs a peer that sends".into()),
        };
        match seen {
            Seen::Works => self.profile.multicast_ignores_priority = false,
            Seen::Ignored => self.profile.multicast_ignores_priority = true,
            seen => {
                self.keep("multicast_ignores_priority", seen.words());
                return Ok(());
            }
        }
        self.tried("multicast_ignores_priority");
        Ok(())
    }

    /// A queue pair that hashes these fields.
    fn hashes_fields(&self, fields: HashFields) -> Outcome {
        let Some((_, receiver)) = &self.target else { return Ok(()) };
        let domain = receiver.queue.domain();
        let table =
            IndirectionTable::new(domain.context(), &[Arc::clone(&receiver.queue)]).map_err(unprepared)?;
        RssQueuePair::new(domain, &table, &HashConfig { key: KEY, fields })?;
        Ok(())
    }

    fn hashes(&mut self) -> Result<(), Failure> {
        let ipv6 = HashFields::SRC_IPV6 | HashFields::DST_IPV6;
        for (key, fields) in
            [("hash_field_exclusive", ADDRESSES | ipv6), ("hash_field_pairs", HashFields::SRC_IPV4)]
        {
            let refused = match self.hashes_fields(fields).into() {
                Seen::Works => false,
                Seen::Refused(_) => true,
                seen => {
                    self.keep(key, seen.words());
                    continue;
                }
            };
            match key {
                "hash_field_exclusive" => self.profile.hash_field_exclusive = refused,
                _ => self.profile.hash_field_pairs = refused,
            }
            self.tried(key);
        }
        Ok(())
    }

    /// The most entries of a table, from a number that may be too small or too large, and the refusal of
    /// more.
    fn largest_table(&self, start: u32) -> Result<(u32, Option<i32>), Failure> {
        let refused = |entries: u32| refusal(table_of(self.bench, entries as usize));
        let (mut entries, mut errno) = (start, None);
        while entries > 1
            && let Some(refused) = refused(entries)?
        {
            (entries, errno) = (entries / 2, Some(refused));
        }
        while errno.is_none() && entries < MAX_TABLE {
            errno = refused(2 * entries)?;
            if errno.is_none() {
                entries *= 2;
            }
        }
        Ok((entries, errno))
    }

    fn tables(&mut self) -> Result<(), Failure> {
        let reported = self.bench.attributes.rss_caps.max_table_size;
        let start = 1 << reported.clamp(1, MAX_TABLE).ilog2();
        match self.largest_table(start) {
            Ok((entries, errno)) => {
                self.profile.max_table = entries;
                self.tried("max_table");
                if let Some(errno) = errno {
                    self.beyond(Limit::Tables, errno);
                }
            }
            Err(failure) if reported == 0 => self.keep("max_table", Seen::from(Err(failure)).words()),
            Err(failure) => {
                self.profile.max_table = start;
                self.note("max_table", Note::Reported(Seen::from(Err(failure)).words()));
            }
        }
        match repeated(self.bench).into() {
            Seen::Works => self.profile.table_consecutive = false,
            Seen::Refused(_) => self.profile.table_consecutive = true,
            seen => {
                self.keep("table_consecutive", seen.words());
                return Ok(());
            }
        }
        self.tried("table_consecutive");
        Ok(())
    }

    fn receives(&mut self) -> Result<(), Failure> {
        let cq = CompletionQueue::builder(&self.bench.context, 16).build().map_err(unprepared)?;
        let refused = |receives: u32| {
            let queue = WorkQueue::builder(&self.bench.domain(), &cq.handle()).max_receives(receives);
            refusal(queue.build().map(drop).map_err(Failure::from))
        };
        let reported = self.bench.attributes.max_qp_wr;
        if reported == 0 {
            self.profile.max_receives = self.fallback.max_receives;
            self.keep("max_receives", "the device reports none");
            return Ok(());
        }
        // The first refused one is in `least..=most`.
        let (mut least, mut most) = (1, reported + 1);
        let mut next = reported;
        while least < most {
            match refused(next) {
                Ok(None) => least = next + 1,
                Ok(Some(_)) => most = next,
                Err(failure) => {
                    self.profile.max_receives = Some(reported);
                    self.note("max_receives", Note::Reported(Seen::from(Err(failure)).words()));
                    return Ok(());
                }
            }
            next = least.midpoint(most);
        }
        if least == 1 {
            self.profile.max_receives = self.fallback.max_receives;
            self.keep("max_receives", "not even one was accepted");
            return Ok(());
        }
        self.profile.max_receives = Some(least - 1);
        self.tried("max_receives");
        Ok(())
    }
}

/// The errno of a refusal, or `None` for what works.
fn refusal(outcome: Outcome) -> Result<Option<i32>, Failure> {
    match outcome {
        Ok(()) => Ok(None),
        Err(Failure::Refused(errno)) => Ok(Some(errno)),
        Err(failure) => Err(failure),
    }
}

impl Seen {
    fn words(&self) -> String {
        match self {
            Self::Works => "it works".into(),
            Self::Ignored => "it is ignored".into(),
            Self::Refused(errno) => format!("refused: {}", crate::case::errno_name(*errno)),
            Self::Unobserved(why) | Self::Unseen(why) => why.clone(),
        }
    }
}

const ADDRESSES: HashFields = HashFields::SRC_IPV4.union(HashFields::DST_IPV4);

/// The key of a feature's note.
pub(crate) fn row(feature: Feature) -> String {
    format!("refusals.{}", feature_name(feature))
}

/// The name of a feature in model files.
pub(crate) fn feature_name(feature: Feature) -> String {
    word(&feature)
}

pub(crate) fn limit_name(limit: Limit) -> String {
    word(&limit)
}

pub(crate) fn errno_name(errno: Errno) -> String {
    word(&errno)
}

/// The word of a value in a file.
pub(crate) fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The errno as models have it; for another one EINVAL, and words with its name.
fn known(errno: i32) -> (Errno, String) {
    let name = crate::case::errno_name(errno);
    let known: Option<Errno> = serde_json::from_value(serde_json::Value::String(name.clone())).ok();
    known
        .map_or_else(|| (Errno::Einval, format!("the device answers {name}")), |errno| (errno, String::new()))
}

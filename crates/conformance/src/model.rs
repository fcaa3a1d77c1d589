//! Finds the device model of a device by trying: limits, refusals and the order of flows.
//!
//! Objects are created and destroyed again, at most [`Bounds`] of a kind at a time, and flows match an unused address, so that
//! no packet of another user is touched. A row that cannot be tried (it needs frames, or a privilege) is that of the
//! *fallback*: the model of the device's driver, or the conservative one. A [`Note`] for each row says how it is known.
//!
//! The first flow is on a plain queue pair: on a device without flows the creation of an RSS queue pair can take the
//! packets of the whole port (mana), so none is created there.

use std::collections::BTreeMap;
use std::sync::Arc;

use device_model::{DeviceProfile, Emulation, Errno, Feature, Limit, LimitRow, Origin, Refusal};
use softnic::Personality;
use verbs::{
    ActionSpec, CompletionQueue, Counters, Flow, FlowAttr, FlowSpec, FlowTag, FlowTarget, HashConfig,
    HashFields, IndirectionTable, Ipv4Match, PortNumber, RssQueuePair, WorkQueue,
};

use crate::bench::{unprepared, v4};
use crate::endpoints::{KEY, Receiver};
use crate::filters::{any_ipv4, any_udp};
use crate::origin::origin;
use crate::rss::{repeated, table_of};
use crate::soft::SoftDevice;
use crate::tunnels::network;
use crate::{Bench, Case, Failure, Outcome, cases};

pub use crate::model_file::text;

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
    /// By trying. Empty, or with what was found beside the value.
    Tried(String),
    /// The device reports it, and it was not reached by trying.
    Reported(String),
    /// Not by trying, for this reason: it is that of the fallback.
    Fallback(String),
    /// It follows from another row.
    Follows(&'static str),
}

/// A model, and how each row of it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundModel {
    /// The model. Its name is that of the device.
    pub profile: DeviceProfile,
    /// The model that has the rows that could not be tried.
    pub fallback: String,
    /// By key; rows of lists as "refusals.ttl" and "limits.flows".
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

/// Finds the model of a device. `progress` is called before each step with its number from 1, the number of steps, and
/// its name.
///
/// # Errors
/// The device cannot even create a protection domain or a completion queue.
pub fn find(
    bench: &Bench<'_>,
    fallback: &DeviceProfile,
    bounds: Bounds,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<FoundModel, Failure> {
    // The length of tables and the combinations of hash fields are found, or taken over.
    let emulation =
        Emulation { firmware_sets_max_table: false, hashes_any_fields: false, ..fallback.emulation.clone() };
    let profile = DeviceProfile {
        name: bench.context.name().to_owned(),
        emulation,
        refusals: Vec::new(),
        dependences: Vec::new(),
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
    let found = find(&bench, &DeviceProfile::mlx5(), Bounds::default(), &mut |_, _, _| ());
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
    fallback: &'b DeviceProfile,
    bounds: Bounds,
    profile: DeviceProfile,
    notes: BTreeMap<String, Note>,
    /// Where flows go, with what receives there.
    target: Option<(FlowTarget, Receiver)>,
    /// Why nothing can be tried.
    stopped: Option<String>,
}

/// The keys of a model that are not lists, but for its name and what follows from the name of the fallback.
pub(crate) const KEYS: [&str; 16] = [
    "priorities",
    "max_specs",
    "tag_bits",
    "max_flows",
    "max_shapes",
    "priority_table",
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
        self.profile.refusals.push(Refusal { feature, errno, source });
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

    /// What no step has found is the fallback's.
    fn rest(&mut self) {
        let why = self.stopped.clone().unwrap_or_else(|| "it was not tried".into());
        for key in KEYS {
            self.notes.entry(key.to_owned()).or_insert_with(|| Note::Fallback(why.clone()));
        }
        for limit in self.profile.limits.iter().map(|row| row.limit) {
            let key = format!("limits.{}", limit_name(limit));
            let why = self.stopped.clone().unwrap_or_else(|| "the limit was not reached".into());
            self.notes.entry(key).or_insert(Note::Fallback(why));
        }
    }

    fn create(&self, attr: &FlowAttr) -> Result<Flow, Failure> {
        match &self.target {
            Some((target, _)) => Ok(Flow::create(target, attr)?),
            None => Err(Failure::Differs("there is no queue pair".into())),
        }
    }

    fn accepts(&self, attr: &FlowAttr) -> Outcome {
        self.create(attr).map(drop)
    }

    /// A flow on a plain queue pair, then what steerd has beside it: a work queue, a table and an RSS queue pair.
    fn steering(&mut self) -> Result<(), Failure> {
        let bench = self.bench;
        let plain = crate::create_qp_ex::make(bench, |pair| pair)
            .and_then(|pair| Ok(Flow::create(&pair.handle().into(), &bench.flow())?));
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
        for key in ["priorities", "max_specs", "tag_bits", "max_flows", "max_counters", "max_copies"] {
            self.note(key, Note::Follows("there are no flows"));
        }
        for key in ["hash_field_exclusive", "hash_field_pairs", "max_table", "table_consecutive"] {
            self.keep(key, "without flows an RSS queue pair may take the packets of the port");
        }
    }

    fn priorities(&mut self) -> Result<(), Failure> {
        let works = |priority: u32| self.accepts(&self.bench.flow().priority(priority as u16));
        // The first refused one is in `least..=most`; all below `least` are accepted.
        let (mut least, mut most, mut refusal) = (1, MAX_PRIORITIES, None);
        let mut next = MAX_PRIORITIES - 1;
        while least < most {
            match works(next) {
                Ok(()) => least = next + 1,
                Err(Failure::Refused(errno)) => (most, refusal) = (next, Some(errno)),
                Err(failure) => return Err(failure),
            }
            next = least.midpoint(most);
        }
        if least < 2 {
            self.refuse(Feature::Normal, refusal.unwrap_or(libc::EINVAL));
            self.note(row(Feature::Normal), Note::Tried("one priority: a reload needs two".into()));
            self.cannot_steer();
            return Ok(());
        }
        self.profile.priorities = least;
        self.tried("priorities");
        if let Some(errno) = refusal {
            self.beyond(Limit::Priorities, errno);
        }
        Ok(())
    }

    fn features(&mut self) -> Result<(), Failure> {
        let all = cases();
        for feature in Feature::ALL {
            // The base feature comes before, so it is known here.
            if let Some(base) = base(feature).and_then(|base| self.profile.refusal(base)).cloned() {
                self.without(feature, &base);
                continue;
            }
            match self.seen(feature, &all) {
                None => {}
                Some(Seen::Works) => self.tried(&row(feature)),
                Some(Seen::Refused(errno)) => self.refuse(feature, errno),
                Some(Seen::Ignored) => {
                    let source = "found by trying: accepted, without an effect".to_owned();
                    self.profile.refusals.push(Refusal { feature, errno: Errno::Silent, source });
                    self.tried(&row(feature));
                }
                Some(Seen::Unobserved(why)) => self.unobserved(feature, &why),
                Some(Seen::Unseen(why)) => self.unseen(feature, &why),
            }
        }
        self.profile.device.masks_refused = self.refused_masks(&all);
        if !self.profile.allows(Feature::Tag) && self.profile.allows(Feature::Sniffer) {
            let source = "follows: without flow tags its copies cannot be distinguished from other packets";
            let (feature, errno) = (Feature::Sniffer, Errno::Silent);
            self.profile.refusals.push(Refusal { feature, errno, source: source.to_owned() });
            self.note(row(feature), Note::Follows("there are no flow tags"));
        }
        Ok(())
    }

    /// The masks of some bits that have no effect or are refused, of fields that the device matches.
    fn refused_masks(&self, all: &[Case]) -> Vec<String> {
        let tried =
            MASKS.into_iter().filter(|(feature, ..)| feature.is_none_or(|one| self.profile.allows(one)));
        let refused = tried.filter_map(|(_, field, value)| {
            let case = all.iter().find(|case| (case.field, case.value) == (field, value))?;
            match (case.run)(self.bench).into() {
                seen @ (Seen::Refused(_) | Seen::Ignored) => {
                    Some(format!("{field}, {value}: {}", seen.words()))
                }
                Seen::Works | Seen::Unobserved(_) | Seen::Unseen(_) => None,
            }
        });
        refused.collect()
    }

    /// A part of something that is refused. That a header is there without its fields is not asked for then.
    fn without(&mut self, feature: Feature, base: &Refusal) {
        if matches!(feature, Feature::AnyEsp | Feature::AnyVxlan | Feature::AnyGre | Feature::AnyMpls) {
            return;
        }
        let source = format!("follows from {}", feature_name(base.feature));
        self.profile.refusals.push(Refusal { feature, errno: base.errno, source });
        self.note(row(feature), Note::Follows("what it is a part of is refused"));
    }

    /// A feature that was accepted is not refused; that it has no effect only the fallback knows.
    fn unobserved(&mut self, feature: Feature, why: &str) {
        if self.fallback.refusal(feature).is_some_and(|refusal| refusal.errno != Errno::Silent) {
            return self.note(row(feature), Note::Tried("accepted; its effect was not seen".into()));
        }
        self.unseen(feature, why);
    }

    /// The row of the fallback for a feature that could not be tried.
    fn unseen(&mut self, feature: Feature, why: &str) {
        self.profile.refusals.extend(self.fallback.refusal(feature).cloned());
        self.keep(&row(feature), why);
    }

    /// What a device does with a feature; `None` for those of other steps.
    fn seen(&self, feature: Feature, all: &[Case]) -> Option<Seen> {
        let bench = self.bench;
        if let Some((field, value)) = case_of(feature) {
            let case = all.iter().find(|case| (case.field, case.value) == (field, value))?;
            return Some(match (bench.lacks(case.needs), self.creation(feature)) {
                // Creating the flow is a part of the case.
                (Some(why), Some(attr)) => self.only_created(&attr, why),
                (Some(_), None) if feature == Feature::Sniffer => {
                    Seen::Unseen("it would copy the packets of other users".into())
                }
                _ => (case.run)(bench).into(),
            });
        }
        match feature {
            Feature::Count => Some(self.counts().into()),
            Feature::HashInner => Some(self.hashes_fields(HashFields::INNER | ADDRESSES).into()),
            Feature::HashSpi => Some(self.hashes_fields(HashFields::IPSEC_SPI | ADDRESSES).into()),
            _ => None,
        }
    }

    fn only_created(&self, attr: &FlowAttr, why: &str) -> Seen {
        match self.accepts(attr).into() {
            Seen::Works => Seen::Unobserved(why.to_owned()),
            seen => seen,
        }
    }

    /// The flow of a case that cannot be run without frames.
    fn creation(&self, feature: Feature) -> Option<FlowAttr> {
        let flow = self.bench.flow();
        match feature {
            Feature::Tag => Some(flow.action(ActionSpec::Tag(FlowTag(1)))),
            Feature::Drop => Some(flow.spec(any_ipv4()).action(ActionSpec::Drop)),
            Feature::Copy => Some(flow.dont_trap(true)),
            Feature::Egress => Some(flow.egress(true).action(ActionSpec::Drop)),
            _ => None,
        }
    }

    fn counts(&self) -> Outcome {
        let counters = Counters::new(&self.bench.context)?;
        self.accepts(&self.bench.flow().action(ActionSpec::Count(counters)))
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

    /// The most entries of a table, from a number that may be too small or too large, and the refusal of more.
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

    /// Flows that differ in one address, those that differ in their masks, and those that copy.
    fn flows(&mut self) -> Result<(), Failure> {
        let spread = self.profile.priorities.clamp(1, SPREAD);
        let (port, bounds) = (self.bench.flow(), self.bounds);
        let address = |number: u32| {
            let value = Ipv4Match { src: 0, dst: number };
            let mask = Ipv4Match { src: 0, dst: u32::MAX };
            let priority = (number % spread) as u16;
            port.clone().spec(FlowSpec::Ipv4 { value, mask }).priority(priority)
        };
        let masked = |number: u32| {
            let mask = Ipv4Match { src: number + 1, dst: v4(0).into() };
            let value = Ipv4Match { src: 0, dst: v4(0).into() };
            let priority = (number % spread) as u16;
            port.clone().spec(FlowSpec::Ipv4 { value, mask }).priority(priority)
        };
        let flows = self.fill(bounds.flows, |number| self.create(&address(number)));
        self.profile.max_flows =
            self.count("max_flows", Limit::Flows, flows, (self.fallback.max_flows, None));
        let flows = self.fill(bounds.flows, |number| self.create(&masked(number)));
        self.profile.max_shapes =
            self.count("max_shapes", Limit::Shapes, flows, (self.fallback.max_shapes, None));
        if !self.profile.allows(Feature::Copy) {
            self.profile.max_copies = self.fallback.max_copies;
            self.note("max_copies", Note::Follows("copies are refused"));
        } else {
            let flows = self.fill(bounds.copies, |number| self.create(&address(number).dont_trap(true)));
            self.profile.max_copies =
                self.count("max_copies", Limit::Copies, flows, (self.fallback.max_copies, None));
        }
        self.keep("priority_table", "filling a priority would leave other users no room");
        Ok(())
    }

    fn objects(&mut self) -> Result<(), Failure> {
        let Some((_, receiver)) = &self.target else { return Ok(()) };
        let (domain, queue) = (receiver.queue.domain().clone(), Arc::clone(&receiver.queue));
        let table = || Ok(IndirectionTable::new(domain.context(), &[Arc::clone(&queue)])?);
        let shared = match table() {
            Ok(shared) => shared,
            Err(failure) => {
                let why = Seen::from(Err(failure)).words();
                self.keep("max_queues", why.clone());
                self.keep("max_tables", why);
                return Ok(());
            }
        };
        let hash = HashConfig { key: KEY, fields: HashFields::empty() };
        let pairs = self.fill(self.bounds.objects, |_| Ok(RssQueuePair::new(&domain, &shared, &hash)?));
        let tables = self.fill(self.bounds.objects, |_| table());
        let attributes = &self.bench.attributes;
        let (pairs_reported, tables_reported) = (attributes.max_qp, attributes.rss_caps.max_tables);
        // Beside those that were tried there is the queue pair that flows go to, and its table and the shared one.
        let beside = |filled: Filled, held: u32| Filled { made: filled.made + held, ..filled };
        let known = (self.fallback.max_queues, Some(pairs_reported));
        self.profile.max_queues = self.count("max_queues", Limit::Queues, beside(pairs, 1), known);
        let known = (self.fallback.max_tables, Some(tables_reported));
        self.profile.max_tables = self.count("max_tables", Limit::Tables, beside(tables, 2), known);
        Ok(())
    }

    fn counters(&mut self) -> Result<(), Failure> {
        let counters = self.fill(self.bounds.objects, |_| Ok(Counters::new(&self.bench.context)?));
        let known = (self.fallback.max_counters, None);
        self.profile.max_counters = self.count("max_counters", Limit::Counters, counters, known);
        Ok(())
    }

    /// Creates objects until one is refused, and destroys all.
    fn fill<T>(&self, bound: u32, create: impl Fn(u32) -> Result<T, Failure>) -> Filled {
        let mut all = Vec::new();
        for number in 0..bound {
            match create(number) {
                Ok(object) => all.push(object),
                Err(failure) => return Filled { made: number, refusal: Some(failure) },
            }
        }
        Filled { made: bound, refusal: None }
    }

    /// The limit of what was filled, or what the fallback knows, or what the device reports.
    fn count(
        &mut self,
        key: &str,
        limit: Limit,
        filled: Filled,
        (fallback, reported): (Option<u32>, Option<u32>),
    ) -> Option<u32> {
        let made = filled.made;
        match filled.refusal.map(|failure| Seen::from(Err(failure))) {
            // Too few for a program, and for the reader of the file: others may hold the rest.
            Some(seen @ Seen::Refused(_)) if made < least(limit) => {
                self.keep(key, format!("{made} can be created, the next is {}", seen.words()));
                return fallback;
            }
            Some(Seen::Refused(errno)) => {
                self.beyond(limit, errno);
                let words = if made == 0 { "none can be created" } else { "" };
                self.note(key, Note::Tried(words.into()));
                return Some(made);
            }
            Some(seen) => {
                self.keep(key, seen.words());
                return fallback;
            }
            None => {}
        }
        let words = format!("{made} can be created; more were not tried");
        match (reported.filter(|reported| *reported > 0), fallback.filter(|fallback| *fallback > made)) {
            (Some(reported), _) => {
                self.note(key, Note::Reported(words));
                Some(reported.max(made))
            }
            (None, Some(fallback)) => {
                self.keep(key, words);
                Some(fallback)
            }
            (None, None) => {
                self.note(key, Note::Tried(words));
                None
            }
        }
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

/// The least that a model of a device that steers can have (`device_model`, profile/load.rs).
fn least(limit: Limit) -> u32 {
    match limit {
        Limit::Flows | Limit::Queues | Limit::Tables => 2,
        Limit::Shapes => 1,
        _ => 0,
    }
}

/// What creating many objects came to.
struct Filled {
    made: u32,
    refusal: Option<Failure>,
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

/// As in files.
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

/// What a feature is a part of.
fn base(feature: Feature) -> Option<Feature> {
    Some(match feature {
        Feature::HopLimit | Feature::FlowLabel => Feature::Ipv6,
        Feature::EspSeq | Feature::AnyEsp => Feature::Esp,
        Feature::AnyVxlan => Feature::Vxlan,
        Feature::GreFlags | Feature::AnyGre => Feature::Gre,
        Feature::AnyMpls => Feature::Mpls,
        Feature::Inner => Feature::Vxlan,
        _ => return None,
    })
}

/// The cases of masks of some bits, and the features that they are of.
const MASKS: [(Option<Feature>, &str, &str); 5] = [
    (None, "ibv_flow_eth_filter.dst_mac", "a mask of some bits"),
    (Some(Feature::Vlan), "ibv_flow_eth_filter.vlan_tag", "a priority, any VLAN"),
    (None, "ibv_flow_ipv4_filter.dst_ip", "a prefix of 25 bits"),
    (None, "ibv_flow_tcp_udp_filter.dst_port", "a mask of some bits"),
    (Some(Feature::Mpls), "ibv_flow_mpls_filter.label", "traffic class 5"),
];

/// The field and value of the case that tries a feature.
pub(crate) fn case_of(feature: Feature) -> Option<(&'static str, &'static str)> {
    const TYPE: &str = "ibv_flow_spec.type";
    Some(match feature {
        Feature::SrcMac => ("ibv_flow_eth_filter.src_mac", "an address"),
        Feature::EtherType => ("ibv_flow_eth_filter.ether_type", "0x88b5"),
        Feature::Vlan => ("ibv_flow_eth_filter.vlan_tag", "a VLAN"),
        Feature::Ipv6 => (TYPE, "IBV_FLOW_SPEC_IPV6"),
        Feature::Protocol => ("ibv_flow_ipv4_ext_filter.proto", "17"),
        Feature::Tos => ("ibv_flow_ipv4_ext_filter.tos", "0xb8"),
        Feature::Ttl => ("ibv_flow_ipv4_ext_filter.ttl", "3"),
        Feature::HopLimit => ("ibv_flow_ipv6_filter.hop_limit", "3"),
        Feature::IpFlags => ("ibv_flow_ipv4_ext_filter.flags", "don't fragment"),
        Feature::FlowLabel => ("ibv_flow_ipv6_filter.flow_label", "0x12345"),
        Feature::Esp => ("ibv_flow_esp_filter.spi", "4"),
        Feature::EspSeq => ("ibv_flow_esp_filter.seq", "9"),
        Feature::Vxlan => ("ibv_flow_tunnel_filter.tunnel_id", "77"),
        Feature::Gre => ("ibv_flow_gre_filter.protocol", "0x0800"),
        Feature::GreFlags => ("ibv_flow_gre_filter.c_ks_res0_ver", "the key flag"),
        Feature::Mpls => ("ibv_flow_mpls_filter.label", "label 9"),
        Feature::Inner => (TYPE, "IBV_FLOW_SPEC_IPV4 | IBV_FLOW_SPEC_INNER"),
        Feature::AnyEsp => (TYPE, "IBV_FLOW_SPEC_ESP without masks"),
        Feature::AnyVxlan => (TYPE, "IBV_FLOW_SPEC_VXLAN_TUNNEL without masks"),
        Feature::AnyGre => (TYPE, "IBV_FLOW_SPEC_GRE without masks"),
        Feature::AnyMpls => (TYPE, "IBV_FLOW_SPEC_MPLS without masks"),
        Feature::AnyPorts => (TYPE, "IBV_FLOW_SPEC_UDP without masks"),
        Feature::Tag => ("ibv_flow_spec_action_tag.tag_id", "1"),
        Feature::Drop => (TYPE, "IBV_FLOW_SPEC_ACTION_DROP"),
        Feature::Copy => ("ibv_flow_attr.flags", "IBV_FLOW_ATTR_FLAGS_DONT_TRAP"),
        Feature::Sniffer => ("ibv_flow_attr.type", "IBV_FLOW_ATTR_SNIFFER"),
        Feature::Egress => ("ibv_flow_attr.flags", "IBV_FLOW_ATTR_FLAGS_EGRESS, DROP"),
        Feature::Normal | Feature::Count | Feature::HashInner | Feature::HashSpi => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_names_a_case_of_the_suite() {
        let all = cases();
        for feature in Feature::ALL {
            let Some((field, value)) = case_of(feature) else { continue };
            assert!(all.iter().any(|case| (case.field, case.value) == (field, value)), "{feature:?}");
        }
        for (_, field, value) in MASKS {
            assert!(all.iter().any(|case| (case.field, case.value) == (field, value)), "{field}: {value}");
        }
    }
}

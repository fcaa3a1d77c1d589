//! A device model: the limits of a device, and what it refuses to match or do.

mod load;

use std::sync::LazyLock;

use program::{Errno, Feature};
use serde::{Deserialize, Serialize};

pub use load::LoadError;

use crate::software;

/// A device model: the limits and refusals of a device. All numbers are those of the whole device. In a file,
/// keys that are optional here or have a default may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceModel {
    /// The name in diagnostics.
    pub name: String,
    /// How many flow priorities there are, from 0, at most 65,536. A program leaves one free, for flows that
    /// a reload changes.
    pub priorities: u32,
    /// The most flows it holds on all ports, if known. One program may use half of them, and has its flows on
    /// each port.
    pub max_flows: Option<u32>,
    /// The most different masks of the flows of a port, if there is a limit over all priorities. Programs
    /// share the masks that they have in common.
    pub max_shapes: Option<u32>,
    /// The size of the flow table of one priority, if it is limited.
    pub priority_table: Option<PriorityTable>,
    /// The most groups of flows of one priority, if known, for devices with a
    /// [`DeviceModel::priority_table`]: flows of one mask are a group, and each flow beyond the groups of the
    /// table is one.
    #[serde(default)]
    pub max_groups: Option<u32>,
    /// The nanoseconds that a packet takes to pass a group of flows, if known. The compiler leaves flows to
    /// workers whose groups cost packets more than that saves workers. The software NIC takes as long.
    #[serde(default)]
    pub ns_per_group: Option<u32>,
    /// The most specs of one flow, the two actions (tag, counter) included.
    pub max_specs: u32,
    /// Whether a queue pair takes the hash fields of one variant only (v4 or v6; TCP or UDP).
    #[serde(default)]
    pub hash_field_exclusive: bool,
    /// Whether source and destination are hashed together or not at all.
    #[serde(default)]
    pub hash_field_pairs: bool,
    /// The longest indirection table, in entries.
    pub max_table: u32,
    /// Whether a table must name workers that follow each other, each once.
    #[serde(default)]
    pub table_consecutive: bool,
    /// The most queue pairs with an indirection table, if known.
    pub max_queues: Option<u32>,
    /// The most indirection tables, if known.
    pub max_tables: Option<u32>,
    /// The most packets that one receive queue holds (`max_qp_wr`), if known.
    #[serde(default)]
    pub max_receives: Option<u32>,
    /// The most counters, if known.
    pub max_counters: Option<u32>,
    /// The most flows of a port that copy, if there is a limit. One program may use half of them.
    pub max_copies: Option<u32>,
    /// How many flows a second the device creates or destroys, if known: for predictions of how long a change
    /// takes.
    #[serde(default)]
    pub flows_per_second: Option<u32>,
    /// How wide a flow tag is; 0: completions do not name the flow.
    pub tag_bits: u32,
    /// Flows that match multicast only come after all others, whatever their priority.
    #[serde(default)]
    pub multicast_ignores_priority: bool,
    /// The UDP destination port of RoCE v2, if the device has RoCE: where that is enabled, its RDMA transport
    /// may take packets to this port and the device's own addresses before any flow.
    #[serde(default)]
    pub roce_port: Option<u16>,
    /// The matches and actions that the device refuses, at most one row per feature.
    #[serde(default)]
    pub refusals: Vec<RefusalRow>,
    /// The abilities that only some devices of this kind have, depending on firmware or configuration; found
    /// out by trying. A feature that is refused as well is refused by devices that do not report it.
    #[serde(default)]
    pub dependences: Vec<Dependence>,
    /// The errno beyond each limit; EINVAL where there is no row.
    #[serde(default)]
    pub limits: Vec<LimitRow>,
    /// The personality that the software NIC has in all that the model does not describe.
    #[serde(default)]
    pub personality: BaseModel,
    /// The attributes that only the software NIC needs to behave like the device. In a file, what is left out
    /// is as in [`DeviceModel::personality`].
    #[serde(default)]
    pub emulation: Emulation,
    /// Where a model that was found by trying comes from.
    #[serde(default)]
    pub device: Origin,
    /// The number of ports that a program is installed on: the settings name them, not the file of a model.
    #[serde(skip, default = "one_port")]
    pub ports: u32,
}

fn one_port() -> u32 {
    1
}

/// A personality of the software NIC: the built-in models for which it knows every attribute of queues and
/// domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BaseModel {
    /// Everything that libibverbs can express.
    #[default]
    Ideal,
    /// ConnectX-4 and later.
    Mlx5,
    /// ConnectX-3.
    Mlx4,
}

/// The device that a model was found on, as documentation; nothing depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Origin {
    /// The name of the device in libibverbs.
    pub name: String,
    /// The kernel driver of the device.
    pub driver: String,
    /// The firmware of the device.
    pub firmware: String,
    /// The file name of the library, which has its release.
    pub libibverbs: String,
    /// The day.
    pub date: String,
    /// The capabilities that it reports, as C names them.
    pub capabilities: Vec<String>,
    /// Masks of some bits that it refuses or ignores, of fields that it matches whole. The compiler does not
    /// know of such devices.
    pub masks_refused: Vec<String>,
}

/// How a device and its driver create flows, beyond what the compiler has to know. The software NIC imitates
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Emulation {
    /// Whether the calling thread needs CAP_NET_RAW, else EPERM.
    pub needs_net_raw: bool,
    /// The answer to an unknown `ibv_flow_attr.type`.
    pub unknown_type: Errno,
    /// The answer to an unknown bit of `ibv_flow_attr.flags`.
    pub unknown_flag: Errno,
    /// The answer to an unknown action.
    pub unknown_action: Errno,
    /// The answer to DONT_TRAP with SNIFFER, if it is refused: it would change nothing.
    pub dont_trap_with_sniffer: Option<Errno>,
    /// The answer to DONT_TRAP with EGRESS, if it is refused.
    pub dont_trap_with_egress: Option<Errno>,
    /// Whether DONT_TRAP is only for priority 0 and at most one Ethernet spec, of the multicast bit.
    pub dont_trap_is_promiscuous: bool,
    /// Whether the specs of default flows and sniffers are checked and then ignored. Otherwise matching specs
    /// on them are EINVAL and actions work.
    pub ignores_specs_of_defaults: bool,
    /// Whether default flows of one kind all have the same priority, whatever they ask for.
    pub ignores_priority_of_defaults: bool,
    /// Whether sniffers get received packets only; otherwise also what is sent.
    pub sniffs_received_only: bool,
    /// Whether a value may have no bits outside its mask, else EINVAL.
    pub values_within_masks: bool,
    /// Whether an EtherType beside an IP spec must be matched whole and be that of the spec, else EINVAL.
    pub whole_ether_type_beside_ip: bool,
    /// Whether a protocol beside a spec that implies one must be matched whole, else EINVAL.
    pub whole_protocol_beside_transport: bool,
    /// How many labels of a stack can be matched, else EOPNOTSUPP.
    pub max_labels: u8,
    /// Whether counters can be read while no flow is bound to them, else EINVAL.
    pub reads_idle_counters: bool,
    /// Whether flows with the same match and priority must agree in their tags.
    pub one_tag_per_match: bool,
    /// Whether a packet meets only one match of each priority also where it goes on: of several DONT_TRAP
    /// flows that match, those with the match of the oldest take a copy.
    pub one_copy_per_priority: bool,
    /// Whether an ALL_DEFAULT flow is two entries, of which the one for multicast is like that of an
    /// MC_DEFAULT flow: multicast packets go to both.
    pub all_default_is_two: bool,
    /// Whether any hash fields can be combined, although [`DeviceModel::hash_field_exclusive`].
    pub hashes_any_fields: bool,
    /// Whether `rx_hash_fields_mask` has the inner headers although hashing them is refused.
    pub reports_inner_hash: bool,
    /// Whether [`DeviceModel::max_table`] is an estimate, because the firmware decides.
    pub firmware_sets_max_table: bool,
}

impl Default for Emulation {
    fn default() -> Self {
        Self {
            needs_net_raw: false,
            unknown_type: Errno::Einval,
            unknown_flag: Errno::Einval,
            unknown_action: Errno::Eopnotsupp,
            dont_trap_with_sniffer: None,
            dont_trap_with_egress: None,
            dont_trap_is_promiscuous: false,
            ignores_specs_of_defaults: false,
            ignores_priority_of_defaults: false,
            sniffs_received_only: false,
            values_within_masks: false,
            whole_ether_type_beside_ip: false,
            whole_protocol_beside_transport: false,
            max_labels: u8::MAX,
            reads_idle_counters: false,
            one_tag_per_match: false,
            one_copy_per_priority: false,
            all_default_is_two: false,
            hashes_any_fields: false,
            reports_inner_hash: false,
            firmware_sets_max_table: false,
        }
    }
}

/// How the flows of one priority are stored: entries of equal masks in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriorityTable {
    /// The most flows of one priority.
    pub entries: u32,
    /// How many different masks get a group; every later one is a single flow.
    pub groups: u32,
    /// The most flows of such a group.
    pub group_entries: u32,
}

/// Something that a device does not match or do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusalRow {
    /// The feature.
    pub feature: Feature,
    /// The errno; [`Errno::Silent`] where it is ignored without an error.
    pub errno: Errno,
    /// Where this can be read.
    pub source: String,
}

/// Something that a driver offers if the device has a capability that no verb reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dependence {
    /// The feature.
    pub feature: Feature,
    /// The driver's name of the capability.
    pub capability: String,
    /// Where this can be read.
    pub source: String,
}

/// The errno of a device beyond a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitRow {
    /// Which limit.
    pub limit: Limit,
    /// The errno.
    pub errno: Errno,
    /// Where this can be read.
    pub source: String,
}

/// A limit with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// [`DeviceModel::priorities`].
    Priorities,
    /// [`DeviceModel::max_flows`].
    Flows,
    /// [`DeviceModel::max_shapes`].
    Shapes,
    /// [`DeviceModel::priority_table`].
    PriorityTable,
    /// [`DeviceModel::max_specs`].
    Specs,
    /// [`DeviceModel::max_queues`].
    Queues,
    /// [`DeviceModel::max_tables`] and [`DeviceModel::max_table`].
    Tables,
    /// [`DeviceModel::max_counters`].
    Counters,
    /// [`DeviceModel::tag_bits`].
    Tags,
    /// [`DeviceModel::max_copies`].
    Copies,
    /// One flow that sniffs: packets of two could not be told apart by a tag.
    Sniffers,
}

impl DeviceModel {
    /// The names of the models that [`by_name`](Self::by_name) knows.
    pub const NAMES: [&'static str; 6] = ["ideal", "mlx5", "mlx4", "mana", "bnxt_re", "conservative"];

    /// The names of built-in models, each with its hardware, for messages.
    pub const KNOWN: &'static str = "ideal (all of the verbs API), mlx5 (ConnectX-4 and later), mlx4 (ConnectX-3), \
        mana (Azure), bnxt_re (NetXtreme), conservative (any other)";

    /// Kernel drivers whose devices are known, and the names of their models. The driver of a subfunction has
    /// a suffix ("mlx5_core.sf"). The devices of bnxt_re belong to the Ethernet driver.
    pub const DRIVERS: [(&'static str, &'static str); 4] =
        [("mlx5_core", "mlx5"), ("mlx4_core", "mlx4"), ("mana", "mana"), ("bnxt_en", "bnxt_re")];

    /// Everything that libibverbs can express, within the limits of the software NIC. Hash fields stay
    /// exclusive, so that a program is the same as for real devices.
    #[must_use]
    pub fn ideal() -> Self {
        BUILT_IN[0].clone()
    }

    /// ConnectX-4 and later.
    #[must_use]
    pub fn mlx5() -> Self {
        BUILT_IN[1].clone()
    }

    /// ConnectX-3.
    #[must_use]
    pub fn mlx4() -> Self {
        BUILT_IN[2].clone()
    }

    /// The built-in model of a base personality.
    #[must_use]
    pub fn of_base(base: BaseModel) -> Self {
        match base {
            BaseModel::Ideal => Self::ideal(),
            BaseModel::Mlx5 => Self::mlx5(),
            BaseModel::Mlx4 => Self::mlx4(),
        }
    }

    /// For an unknown device: the tightest of each limit, and all refusals, of `mlx5` and `mlx4`, the devices
    /// that steer.
    #[must_use]
    pub fn conservative() -> Self {
        BUILT_IN[5].clone()
    }

    /// The model of the devices of a kernel driver, if it is known.
    #[must_use]
    pub fn by_driver(driver: &str) -> Option<Self> {
        let family = driver.split('.').next()?;
        let (_, model) = Self::DRIVERS.iter().find(|(name, _)| *name == family)?;
        Self::by_name(model)
    }

    /// One of [`NAMES`](Self::NAMES).
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        BUILT_IN.iter().find(|profile| profile.name == name).cloned()
    }

    /// The row that refuses a feature; `None` if the device has it.
    #[must_use]
    pub fn refusal(&self, feature: Feature) -> Option<&RefusalRow> {
        self.refusals.iter().find(|refusal| refusal.feature == feature)
    }

    /// The capability that a feature needs, if only some devices of the kind have it.
    #[must_use]
    pub fn dependence(&self, feature: Feature) -> Option<&Dependence> {
        self.dependences.iter().find(|dependence| dependence.feature == feature)
    }

    /// Whether the device has a feature.
    #[must_use]
    pub fn allows(&self, feature: Feature) -> bool {
        self.refusal(feature).is_none()
    }

    /// Whether the device steers at all: it has flows that match packets.
    #[must_use]
    pub fn can_steer(&self) -> bool {
        self.allows(Feature::Normal)
    }

    /// The errno beyond a limit; EINVAL where nothing is known.
    #[must_use]
    pub fn errno(&self, limit: Limit) -> Errno {
        self.limits.iter().find(|row| row.limit == limit).map_or(Errno::Einval, |row| row.errno)
    }

    /// Returns the limits on the software NIC, which imitates the device but holds no more flows, masks and
    /// copies than [`software`] allows. The size of its receive queues does not depend on the device that it
    /// imitates. It has no RDMA transport that takes packets.
    #[must_use]
    pub fn in_software(self) -> Self {
        Self {
            max_flows: least(self.max_flows, Some(software::MAX_FLOWS)),
            max_shapes: least(self.max_shapes, Some(software::MAX_MASKS)),
            max_copies: least(self.max_copies, Some(software::MAX_COPIES)),
            flows_per_second: None,
            max_receives: Some(software::MAX_RECEIVES),
            roce_port: None,
            ..self
        }
    }

    /// Returns this device with programs on so many of its ports; at least one.
    #[must_use]
    pub fn on_ports(self, ports: usize) -> Self {
        Self { ports: u32::try_from(ports).unwrap_or(u32::MAX).max(1), ..self }
    }

    /// Returns the limits that both devices have; beyond one it answers like the first.
    fn strictest(name: &str, a: Self, b: Self) -> Self {
        let mut refusals = a.refusals;
        for refusal in b.refusals {
            match refusals.iter_mut().find(|own| own.feature == refusal.feature) {
                Some(own) if refusal.errno == Errno::Silent => *own = refusal,
                Some(_) => {}
                None => refusals.push(refusal),
            }
        }
        Self {
            name: name.to_owned(),
            priorities: a.priorities.min(b.priorities),
            max_flows: least(a.max_flows, b.max_flows),
            max_shapes: least(a.max_shapes, b.max_shapes),
            priority_table: a.priority_table.or(b.priority_table),
            max_groups: least(a.max_groups, b.max_groups),
            ns_per_group: a.ns_per_group.max(b.ns_per_group),
            max_specs: a.max_specs.min(b.max_specs),
            hash_field_exclusive: a.hash_field_exclusive || b.hash_field_exclusive,
            hash_field_pairs: a.hash_field_pairs || b.hash_field_pairs,
            max_table: a.max_table.min(b.max_table),
            table_consecutive: a.table_consecutive || b.table_consecutive,
            max_queues: least(a.max_queues, b.max_queues),
            max_tables: least(a.max_tables, b.max_tables),
            max_counters: least(a.max_counters, b.max_counters),
            max_copies: least(a.max_copies, b.max_copies),
            flows_per_second: least(a.flows_per_second, b.flows_per_second),
            max_receives: least(a.max_receives, b.max_receives),
            tag_bits: a.tag_bits.min(b.tag_bits),
            multicast_ignores_priority: a.multicast_ignores_priority || b.multicast_ignores_priority,
            roce_port: a.roce_port.or(b.roce_port),
            dependences: [a.dependences, b.dependences].concat(),
            refusals,
            limits: a.limits,
            personality: a.personality,
            emulation: a.emulation,
            device: Origin::default(),
            ports: one_port(),
        }
    }

    /// The flow table of one priority with no more groups than [`DeviceModel::max_groups`].
    #[must_use]
    pub fn flow_table(&self) -> Option<PriorityTable> {
        let table = self.priority_table?;
        let Some(most) = self.max_groups else { return Some(table) };
        let groups = table.groups.min(most);
        let singles = table.single_entries().min(most - groups);
        let entries = groups.saturating_mul(table.group_entries).saturating_add(singles);
        Some(PriorityTable { entries, groups, ..table })
    }

    /// Flows that copy which one program may use; the other half is the next program's during a reload.
    #[must_use]
    pub fn copies_per_program(&self) -> Option<usize> {
        self.max_copies.map(|most| (most / 2) as usize)
    }

    /// Priorities that one program may use. A flow whose action changes in a reload cannot have the priority
    /// that it had, so one is left free.
    #[must_use]
    pub fn priorities_per_program(&self) -> u32 {
        self.priorities.saturating_sub(1).clamp(1, u32::from(u16::MAX))
    }

    /// The model with as few priorities that a program has at most half of those of the device. Such a
    /// program finds free ones beside any other.
    #[must_use]
    pub fn with_half_of_the_priorities(&self) -> Self {
        Self { priorities: (self.priorities / 2).max(1) + 1, ..self.clone() }
    }

    /// Flows that one program may use on each of its ports; the other half is the next program's during a
    /// reload.
    #[must_use]
    pub fn flows_per_program(&self) -> Option<usize> {
        self.max_flows.map(|most| (most / 2 / self.ports) as usize)
    }

    /// Queue pairs that one program may use, by the same reasoning.
    #[must_use]
    pub fn queues_per_program(&self) -> Option<usize> {
        self.max_queues.map(|most| (most / 2) as usize)
    }

    /// Indirection tables that one program may use, by the same reasoning.
    #[must_use]
    pub fn tables_per_program(&self) -> Option<usize> {
        self.max_tables.map(|most| (most / 2) as usize)
    }

    /// Whether a completion names the flow that took a packet. Without it workers classify every packet by
    /// the whole policy.
    #[must_use]
    pub fn has_tags(&self) -> bool {
        self.tag_bits > 0 && self.allows(Feature::Tag)
    }
}

/// The smaller of two limits, where absent means unlimited.
fn least(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    a.into_iter().chain(b).min()
}

/// The models of [`DeviceModel::NAMES`], in that order.
static BUILT_IN: LazyLock<[DeviceModel; 6]> = LazyLock::new(|| {
    let [mlx5, mlx4] = [load::built_in("mlx5", MLX5), load::built_in("mlx4", MLX4)];
    let [mana, bnxt_re] = [load::built_in("mana", MANA), load::built_in("bnxt_re", BNXT_RE)];
    let conservative = DeviceModel::strictest("conservative", mlx5.clone(), mlx4.clone());
    [load::built_in("ideal", IDEAL).in_software(), mlx5, mlx4, mana, bnxt_re, conservative]
});
const IDEAL: &str = include_str!("../models/ideal.toml");
const MLX5: &str = include_str!("../models/mlx5.toml");
const MLX4: &str = include_str!("../models/mlx4.toml");
const MANA: &str = include_str!("../models/mana.toml");
const BNXT_RE: &str = include_str!("../models/bnxt_re.toml");

impl Default for DeviceModel {
    fn default() -> Self {
        Self::ideal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_profiles_name_the_source_of_each_row() {
        for name in DeviceModel::NAMES {
            let profile = DeviceModel::by_name(name).expect("it is listed");
            assert_eq!(profile.name, name);
            for refusal in &profile.refusals {
                assert!(!refusal.source.is_empty());
                let same = profile.refusals.iter().filter(|other| other.feature == refusal.feature);
                assert_eq!(same.count(), 1, "{:?} twice", refusal.feature);
            }
            let known: Vec<Limit> = profile.limits.iter().map(|row| row.limit).collect();
            assert_eq!(known.len(), 11, "{name}: a limit without its errno");
        }
        assert_eq!(DeviceModel::by_name("mlx6"), None);
    }

    #[test]
    fn the_conservative_profile_is_at_most_what_every_device_allows() {
        let conservative = DeviceModel::conservative();
        let most = |limit: Option<u32>| limit.unwrap_or(u32::MAX);
        for known in [DeviceModel::mlx5(), DeviceModel::mlx4()] {
            assert!(known.refusals.iter().all(|refusal| !conservative.allows(refusal.feature)));
            assert!(conservative.priorities <= known.priorities && conservative.tag_bits <= known.tag_bits);
            assert!(conservative.max_specs <= known.max_specs && conservative.max_table <= known.max_table);
            assert!(most(conservative.max_counters) <= most(known.max_counters));
            assert!(most(conservative.max_copies) <= most(known.max_copies));
            assert!(conservative.priority_table.is_some() || known.priority_table.is_none());
            let switches = |profile: &DeviceModel| {
                [
                    profile.hash_field_exclusive,
                    profile.hash_field_pairs,
                    profile.table_consecutive,
                    profile.multicast_ignores_priority,
                ]
            };
            assert!(switches(&known).iter().zip(switches(&conservative)).all(|(known, own)| own || !known));
        }
        let silent = conservative.refusal(Feature::SrcMac).expect("mlx4 ignores it");
        assert_eq!(silent.errno, Errno::Silent);
    }

    #[test]
    fn a_table_has_few_groups() {
        let table =
            |max_groups| DeviceModel { max_groups, ..DeviceModel::mlx5() }.flow_table().expect("a table");
        assert_eq!(Some(table(None)), DeviceModel::mlx5().priority_table);
        let sizes =
            [2, 6, 128].map(|most| table(Some(most))).map(|table| (table.groups, table.single_entries()));
        assert_eq!(sizes, [(2, 0), (6, 0), (6, 122)]);
        assert_eq!(table(Some(u32::MAX)), table(None));
    }

    #[test]
    fn drivers_choose_models_by_their_family() {
        for (driver, name) in DeviceModel::DRIVERS {
            assert_eq!(DeviceModel::by_driver(driver).expect("a model").name, name);
        }
        assert_eq!(DeviceModel::by_driver("mlx5_core.sf"), Some(DeviceModel::mlx5()));
        assert_eq!(DeviceModel::by_driver("mlx5_corex"), None);
    }

    #[test]
    fn devices_without_flows_cannot_steer() {
        for (name, steers) in
            [("ideal", true), ("mlx4", true), ("conservative", true), ("mana", false), ("bnxt_re", false)]
        {
            assert_eq!(DeviceModel::by_name(name).expect("built in").can_steer(), steers, "{name}");
        }
    }

    #[test]
    fn a_profile_is_the_same_after_json() {
        for name in DeviceModel::NAMES {
            let profile = DeviceModel::by_name(name).expect("it is listed");
            let json = serde_json::to_string(&profile).expect("plain data");
            assert_eq!(serde_json::from_str::<DeviceModel>(&json).expect("the same data"), profile);
        }
    }
}

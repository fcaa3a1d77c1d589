//! A filter model: what the receive filters of a driver match and do, as data with its sources. The compiler
//! sees it as a device model, the rest is checked when flows become filters.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use device_model::{DeviceModel, RefusalRow};
use packet::{Field, Header};
use program::{Errno, Feature};
use serde::{Deserialize, Serialize};

use crate::filter::{FieldBits, FilterKind};
use crate::nic::FilterRoom;
use crate::wire_format::has_place;

/// The most bytes of a model file.
const MAX_BYTES: u64 = 1 << 20;
/// Where it can be read that no NIC has filters for a field, if this structure lacks it.
const STRUCTURE: &str = "linux: include/uapi/linux/ethtool.h, struct ethtool_rx_flow_spec";
/// The priorities that the compiler may use: enough for every table. Whether the NIC can order the filters is
/// examined when flows become filters.
const RANKS: u32 = 65_536;

/// The properties of the receive filters of a driver: the packets that they match, and what they do with
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterModel {
    /// The name in diagnostics.
    pub name: String,
    /// The kernel drivers whose NICs it describes.
    #[serde(default)]
    pub drivers: Vec<String>,
    /// The source of this statement: a file, or the way in which it was found.
    pub source: String,
    /// The size of the table; `None`: only the driver knows it.
    #[serde(default)]
    pub filters: Option<u32>,
    /// The order between filters that match the same packet.
    #[serde(default)]
    pub order: FilterOrder,
    /// Whether the driver chooses the location of a filter, and refuses a chosen one.
    #[serde(default)]
    pub driver_chooses_location: bool,
    /// Whether all filters must have the same kind of masks: one set of masks for TCP and UDP.
    #[serde(default)]
    pub one_mask: bool,
    /// Whether two filters may have the same match. If not, a filter whose destination changes is removed
    /// before the new one is inserted.
    #[serde(default)]
    pub takes_equal_matches: bool,
    /// Whether a filter may drop.
    #[serde(default)]
    pub drops: bool,
    /// Whether a filter may have an RSS context as its destination.
    #[serde(default)]
    pub has_contexts: bool,
    /// Whether the destination address of a frame can be compared beside IP headers (`FLOW_MAC_EXT`).
    #[serde(default)]
    pub has_mac_beside_ip: bool,
    /// The kinds of filters.
    pub kinds: Vec<FilterKind>,
    /// The fields that can be compared, at most one row each; those of the language by their names there.
    pub fields: Vec<FieldRow>,
}

/// The order between filters that match the same packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterOrder {
    /// Nothing that can be chosen.
    #[default]
    None,
    /// The location: the lowest wins.
    Location,
}

/// The comparison of a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldRow {
    /// The name of the field in the language of policies.
    pub field: String,
    /// The masks.
    pub mask: MaskRule,
    /// The source of this statement: a file, or the way in which it was found.
    pub source: String,
}

/// The masks that a field may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaskRule {
    /// The whole field.
    Whole,
    /// A prefix of the field.
    Prefix,
    /// Any bits.
    Any,
}

impl MaskRule {
    /// Returns whether a mask is allowed.
    pub(crate) fn allows(self, bits: &FieldBits) -> bool {
        match self {
            Self::Whole => bits.is_whole(),
            Self::Prefix => bits.is_prefix(),
            Self::Any => true,
        }
    }

    /// A description for messages.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Whole => "only single values",
            Self::Prefix => "only prefixes",
            Self::Any => "any bits",
        }
    }
}

/// Why a filter model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Neither a built-in model nor a path.
    #[error("no filter model is called {name:?} (hint: name {known}, or a file like ./nic.toml)", known = FilterModel::names().join(", "))]
    UnknownName {
        /// The name.
        name: String,
    },
    /// The file cannot be read.
    #[error("{}: cannot be read", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The contents are not a filter model.
    #[error("{}: {problem} (hint: `steerd devices --probe-filters` writes such a file)", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
}

/// The built-in models; the last is for drivers that are not known.
static BUILT_IN: LazyLock<Vec<FilterModel>> = LazyLock::new(|| {
    let models = [
        ("mlx5.toml", include_str!("../models/mlx5.toml")),
        ("mlx4.toml", include_str!("../models/mlx4.toml")),
        ("ixgbe.toml", include_str!("../models/ixgbe.toml")),
        ("bnxt.toml", include_str!("../models/bnxt.toml")),
        ("fbnic.toml", include_str!("../models/fbnic.toml")),
        ("cautious.toml", include_str!("../models/cautious.toml")),
    ];
    models
        .into_iter()
        .map(|(file, text)| match FilterModel::parse(Path::new(file), text) {
            Ok(model) => model,
            Err(error) => unreachable!("a test reads all built-in models: {error}"),
        })
        .collect()
});

impl FilterModel {
    /// The names of the built-in models.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        BUILT_IN.iter().map(|model| model.name.as_str()).collect()
    }

    /// A built-in model.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        BUILT_IN.iter().find(|model| model.name == name).cloned()
    }

    /// The model of a kernel driver; that for unknown ones otherwise.
    #[must_use]
    pub fn by_driver(driver: &str) -> Self {
        let known = BUILT_IN.iter().find(|model| model.drivers.iter().any(|known| known == driver));
        known.or(BUILT_IN.last()).cloned().unwrap_or_else(|| unreachable!("there is a last model"))
    }

    /// A built-in model by its name, or the model of a file: whatever has a `/` or ends with `.toml`.
    ///
    /// # Errors
    /// There is none, or the file is no model.
    pub fn named_or_file(name: &str) -> Result<Self, ModelError> {
        if !DeviceModel::is_path(name) {
            return Self::by_name(name).ok_or_else(|| ModelError::UnknownName { name: name.to_owned() });
        }
        let file = PathBuf::from(name);
        let bytes = regular_file::read(&file, MAX_BYTES)
            .map_err(|error| ModelError::Read { file: file.clone(), source: io::Error::other(error) })?;
        Self::parse(&file, &String::from_utf8_lossy(&bytes))
    }

    /// A model from the text of a file, which is named in errors.
    ///
    /// # Errors
    /// The text is no model.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ModelError> {
        let invalid = |problem: String| ModelError::Invalid { file: file.to_owned(), problem };
        // The text of the error has lines of the file, which may be any file.
        let model: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            invalid(format!("line {}: {}", before.matches('\n').count() + 1, error.message()))
        })?;
        model.check().map_err(invalid)?;
        Ok(model)
    }

    /// The first contradiction.
    fn check(&self) -> Result<(), String> {
        if self.filters == Some(0) || self.kinds.is_empty() {
            return Err("a NIC without filters needs no model".to_owned());
        }
        if self.order == FilterOrder::Location && self.driver_chooses_location {
            return Err("order = \"location\" needs locations that can be chosen".to_owned());
        }
        if self.order == FilterOrder::Location && !self.takes_equal_matches {
            return Err("order = \"location\" needs takes_equal_matches = true".to_owned());
        }
        for (index, row) in self.fields.iter().enumerate() {
            let places = Field::all().filter(|field| field.name() == row.field);
            let is_known =
                places.into_iter().any(|field| FilterKind::ALL.iter().any(|kind| has_place(*kind, field)));
            if !is_known {
                return Err(format!("filters have no field {:?}", row.field));
            }
            if self.fields[..index].iter().any(|other| other.field == row.field) {
                return Err(format!("two rows for {:?}", row.field));
            }
        }
        Ok(())
    }

    /// The row of a field; `None`: it cannot be compared.
    #[must_use]
    pub fn row(&self, field: Field) -> Option<&FieldRow> {
        self.fields.iter().find(|row| row.field == field.name())
    }

    /// The filters as a device, for the compiler.
    ///
    /// A filter is a flow without a tag and a counter. The device model has both all the same: the classes of
    /// a program show whether the device alone decides, and [`carve`](crate::carve) refuses a program in
    /// which it does not.
    #[must_use]
    pub fn device(&self, room: FilterRoom) -> DeviceModel {
        let has_kind = |kind| self.kinds.contains(&kind);
        let has_ip6 = [FilterKind::Ip6, FilterKind::Tcp6, FilterKind::Udp6].into_iter().any(has_kind);
        let mut refused = vec![
            Feature::Ttl,
            Feature::HopLimit,
            Feature::IpFlags,
            Feature::FlowLabel,
            Feature::Esp,
            Feature::EspSeq,
            Feature::Vxlan,
            Feature::Gre,
            Feature::GreFlags,
            Feature::Mpls,
            Feature::Inner,
            Feature::Copy,
            Feature::Sniffer,
            Feature::Egress,
            Feature::HashInner,
            Feature::HashSpi,
        ];
        let by_fields = [
            (Feature::SrcMac, Field::SrcMac),
            (Feature::EtherType, Field::EtherType),
            (Feature::Vlan, Field::VlanId),
            (Feature::Tos, Field::Tos),
        ];
        refused.extend(
            by_fields.iter().filter(|(_, field)| self.row(*field).is_none()).map(|(feature, _)| *feature),
        );
        refused.extend((!has_ip6).then_some(Feature::Ipv6));
        refused.extend((!self.drops).then_some(Feature::Drop));
        let refusal =
            |feature| RefusalRow { feature, errno: Errno::Eopnotsupp, source: STRUCTURE.to_owned() };
        // A filter of a transport protocol without ports compares the number in the IP header.
        let silent =
            [Feature::AnyPorts, Feature::AnyEsp, Feature::AnyVxlan, Feature::AnyGre, Feature::AnyMpls];
        let silent = silent.map(|feature| RefusalRow { errno: Errno::Silent, ..refusal(feature) });
        DeviceModel {
            name: self.name.clone(),
            priorities: RANKS,
            max_flows: room.filters.or(self.filters),
            max_shapes: None,
            priority_table: None,
            max_groups: None,
            ns_per_group: None,
            hash_field_exclusive: false,
            hash_field_pairs: false,
            table_consecutive: false,
            max_queues: None,
            max_tables: None,
            max_receives: None,
            max_counters: None,
            max_copies: None,
            multicast_ignores_priority: false,
            roce_port: None,
            refusals: refused.into_iter().map(refusal).chain(silent).collect(),
            dependences: Vec::new(),
            ..DeviceModel::ideal()
        }
    }

    /// Returns whether the field can be compared in a filter of this kind.
    pub(crate) fn has_field(&self, kind: FilterKind, field: Field) -> bool {
        let is_beside_ip = field.row().header == Header::Ethernet && kind != FilterKind::Ether;
        self.row(field).is_some() && has_place(kind, field) && (!is_beside_ip || self.has_mac_beside_ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_models_name_their_sources_and_have_drivers_of_their_own() {
        let mut drivers = Vec::new();
        for model in BUILT_IN.iter() {
            assert!(!model.source.is_empty() && model.fields.iter().all(|row| !row.source.is_empty()));
            drivers.extend(&model.drivers);
            assert_eq!(FilterModel::by_name(&model.name).as_ref(), Some(model));
        }
        let all = drivers.len();
        drivers.sort();
        drivers.dedup();
        assert_eq!(drivers.len(), all);
        assert_eq!(FilterModel::by_driver("no-such-driver").name, "cautious");
        assert_eq!(FilterModel::by_driver("ixgbe").name, "ixgbe");
    }

    #[test]
    fn the_cautious_model_demands_no_more_than_any_other() {
        let cautious = FilterModel::by_driver("no-such-driver");
        for model in BUILT_IN.iter() {
            assert!(cautious.kinds.iter().all(|kind| model.kinds.contains(kind)), "{}", model.name);
            for row in &cautious.fields {
                assert_eq!(row.mask, MaskRule::Whole);
                assert!(model.fields.iter().any(|other| other.field == row.field), "{}", model.name);
            }
        }
        assert_eq!(cautious.order, FilterOrder::None);
        assert!(!cautious.takes_equal_matches && !cautious.drops && !cautious.has_contexts);
    }

    #[test]
    fn a_model_is_the_same_after_toml() {
        for model in BUILT_IN.iter() {
            let text = toml::to_string(model).expect("plain data");
            assert_eq!(&FilterModel::parse(Path::new("m.toml"), &text).expect("the same data"), model);
        }
    }

    #[test]
    fn contradictions_are_named() {
        let text = |keys: &str| format!("name = 'x'\nsource = 'y'\nkinds = ['udp4']\n{keys}");
        let problem =
            |keys: &str| FilterModel::parse(Path::new("m.toml"), &text(keys)).unwrap_err().to_string();
        assert!(
            problem("fields = [{ field = 'ttl', mask = 'any', source = 's' }]").contains("no field \"ttl\"")
        );
        assert!(
            problem("fields = []\norder = 'location'\ndriver_chooses_location = true").contains("chosen")
        );
        assert!(problem("fields = []\nfilters = 0").contains("no model"));
    }

    #[test]
    fn lines_of_a_file_that_is_no_model_are_not_shown() {
        let error = FilterModel::parse(Path::new("shadow"), "# users\nroot:$6$secret:19000:0\n").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("shadow: line 2: ") && !text.contains("secret"), "{text}");
    }
}

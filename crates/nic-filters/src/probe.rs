//! A filter model found by trying: filters that no real packet matches are inserted and removed.
//!
//! Every filter asks for documentation addresses (RFC 5737, RFC 3849, RFC 7042), so that no packet is
//! diverted. A filter counts as refused if the driver answers that it cannot take it, or lists it
//! differently; other errors, such as a missing capability, end the search. An order cannot be found without
//! packets, so the model has none.

use packet::Field;

use crate::filter::{Destination, FieldBits, Filter, FilterKind, FilterMatch};
use crate::model::{FieldRow, FilterModel, FilterOrder, MaskRule};
use crate::nic::{EOPNOTSUPP, NicError, NicFilters};

/// A source address, a destination address and a MAC address of documentation.
const SRC_V4: u128 = 0xc633_6401;
const DST_V4: u128 = 0xc000_0201;
const SRC_V6: u128 = 0x2001_0db8_0000_0001_0000_0000_0000_0001;
const DST_V6: u128 = 0x2001_0db8_0000_0002_0000_0000_0000_0001;
const MAC: u128 = 0x0000_5e00_5301;
/// A value for other fields, with ones in each half of a byte.
const VALUE: u128 = 0x9999;

/// Finds the filter model of an interface that has no filters.
///
/// # Errors
/// The interface has filters already, which would change the answers; it takes none; or a test filter could
/// not be removed.
pub fn probe(nic: &mut dyn NicFilters) -> Result<FilterModel, NicError> {
    let facts = nic.facts()?;
    if let Some(listed) = nic.list()?.first() {
        let source = std::io::Error::other(format!("there is a filter at {listed}"));
        let operation = "probing, which needs an empty table,".to_owned();
        return Err(NicError { interface: facts.interface, operation, source });
    }
    let source = format!("found by trying, driver {}", facts.driver);
    let mut trial = Trial { nic, chooses: facts.chooses_locations };
    // A driver that takes special locations may take chosen ones as well.
    if trial.chooses {
        trial.chooses = false;
        let takes = FilterKind::ALL.map(|kind| trial.takes(&[base(kind, Destination::Queue(0))]));
        trial.chooses = !takes.into_iter().collect::<Result<Vec<_>, _>>()?.contains(&true);
    }
    let mut kinds = Vec::new();
    for kind in FilterKind::ALL {
        if trial.takes(&[base(kind, Destination::Queue(0))])? {
            kinds.push(kind);
        }
    }
    if kinds.is_empty() {
        let source = std::io::Error::from_raw_os_error(EOPNOTSUPP);
        let operation = "inserting a filter of any kind".to_owned();
        return Err(NicError { interface: facts.interface, operation, source });
    }
    let mut fields: Vec<FieldRow> = Vec::new();
    for field in Field::all() {
        if fields.iter().any(|row| row.field == field.name()) {
            continue;
        }
        if let Some(mask) = trial.mask_rule(field, &kinds)? {
            fields.push(FieldRow { field: field.name().to_owned(), mask, source: source.clone() });
        }
    }
    let drops = trial.any(&kinds, |kind| vec![base(kind, Destination::Drop)])?;
    let has_mac_beside_ip = trial.any(&kinds, |kind| match kind {
        FilterKind::Ether => Vec::new(),
        _ => vec![with(&base(kind, Destination::Queue(0)), Field::DstMac, MAC, u128::MAX)],
    })?;
    let takes_equal_matches =
        !trial.chooses && trial.any(&kinds, |kind| vec![base(kind, Destination::Queue(0)); 2])?;
    let one_mask = trial.has_one_mask(&kinds, &fields)?;
    let has_contexts = match facts.context_entries {
        Some(entries) => trial.takes_context(&kinds, entries)?,
        None => false,
    };
    Ok(FilterModel {
        name: facts.driver.clone(),
        drivers: vec![facts.driver],
        source,
        filters: facts.filters,
        order: FilterOrder::None,
        driver_chooses_location: trial.chooses,
        one_mask,
        takes_equal_matches,
        drops,
        has_contexts,
        has_mac_beside_ip,
        kinds,
        fields,
    })
}

/// A filter of a kind that no real packet matches.
fn base(kind: FilterKind, destination: Destination) -> Filter {
    let (field, value) = match kind {
        FilterKind::Ether => (Field::DstMac, MAC),
        FilterKind::Ip4 | FilterKind::Tcp4 | FilterKind::Udp4 => (Field::DstV4, DST_V4),
        FilterKind::Ip6 | FilterKind::Tcp6 | FilterKind::Udp6 => (Field::DstV6, DST_V6),
    };
    let matches = FilterMatch::new(kind, [FieldBits { field, value, mask: u128::MAX }]);
    Filter { matches, destination }
}

fn with(filter: &Filter, field: Field, value: u128, mask: u128) -> Filter {
    Filter { matches: filter.matches.with(FieldBits { field, value, mask }), destination: filter.destination }
}

/// The value of a field in test filters.
fn value_of(field: Field) -> u128 {
    match field {
        Field::SrcV4 => SRC_V4,
        Field::DstV4 => DST_V4,
        Field::SrcV6 => SRC_V6,
        Field::DstV6 => DST_V6,
        Field::SrcMac | Field::DstMac => MAC,
        // A protocol that nobody uses: 253 is for experiments (RFC 3692).
        Field::Protocol => 253,
        _ => VALUE & field.max(),
    }
}

struct Trial<'n> {
    nic: &'n mut dyn NicFilters,
    /// Whether the driver chooses locations.
    chooses: bool,
}

impl Trial<'_> {
    /// Returns whether the driver takes these filters together, and lists them as they are. They are removed
    /// again, also after an error.
    fn takes(&mut self, filters: &[Filter]) -> Result<bool, NicError> {
        let mut inserted = Vec::new();
        let mut taken = self.insert_all(filters, &mut inserted);
        for location in inserted {
            if let Err(error) = self.nic.remove(location) {
                taken = taken.and(Err(error));
            }
        }
        taken
    }

    /// Inserts filters until one is refused or listed differently; returns whether all were taken. The
    /// locations are noted also if that fails.
    fn insert_all(&mut self, filters: &[Filter], inserted: &mut Vec<u32>) -> Result<bool, NicError> {
        for (at, filter) in filters.iter().enumerate() {
            let location = (!self.chooses).then_some(at as u32);
            let location = match self.nic.insert(location, filter) {
                Ok(location) => location,
                Err(error) if error.is_refusal() => return Ok(false),
                Err(error) => return Err(error),
            };
            inserted.push(location);
            let listed = self.nic.read(location)?;
            if listed.is_none_or(|listed| listed.filter.as_ref() != Ok(filter)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether the driver takes the filters of any kind; a list without filters is none.
    fn any(
        &mut self,
        kinds: &[FilterKind],
        filters: impl Fn(FilterKind) -> Vec<Filter>,
    ) -> Result<bool, NicError> {
        for kind in kinds {
            let filters = filters(*kind);
            if !filters.is_empty() && self.takes(&filters)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The widest masks of a field; `None`: it is not compared. Where kinds differ, those of the strictest
    /// kind that compares it.
    fn mask_rule(&mut self, field: Field, kinds: &[FilterKind]) -> Result<Option<MaskRule>, NicError> {
        let (value, max) = (value_of(field), field.max());
        let half = field.row().bits / 2;
        // All of the bits, the upper half, and all but the lowest of the upper half and those below.
        let masks = [
            (MaskRule::Whole, max),
            (MaskRule::Prefix, max ^ (max >> half)),
            (MaskRule::Any, max ^ (1u128 << half)),
        ];
        let mut found: Option<MaskRule> = None;
        for kind in kinds {
            let is_own = crate::wire_format::has_place(*kind, field)
                && (field != Field::DstMac || *kind == FilterKind::Ether);
            if !is_own {
                continue;
            }
            let filter = base(*kind, Destination::Queue(0));
            let mut of_kind = None;
            for (rule, mask) in masks {
                // Half of the destination address would match addresses beyond those of documentation.
                let is_base = filter.matches.fields().iter().any(|bits| bits.field == field);
                let narrow = if is_base { narrowed(field, rule, mask) } else { mask };
                if self.takes(&[with(&filter, field, value, narrow)])? {
                    of_kind = Some(rule);
                } else {
                    break;
                }
            }
            found = match (found, of_kind) {
                (Some(a), Some(b)) => Some(strictest(a, b)),
                (a, b) => a.or(b),
            };
        }
        Ok(found)
    }

    /// Returns whether a filter with other masks is refused beside one that is there, although it is taken
    /// alone.
    fn has_one_mask(&mut self, kinds: &[FilterKind], fields: &[FieldRow]) -> Result<bool, NicError> {
        for kind in kinds.iter().filter(|kind| **kind != FilterKind::Ether) {
            let first = base(*kind, Destination::Queue(0));
            for field in [Field::DstPort, Field::SrcV4, Field::SrcV6] {
                if !fields.iter().any(|row| row.field == field.name()) {
                    continue;
                }
                let second = with(&first, field, value_of(field), field.max());
                if self.takes(std::slice::from_ref(&second))? {
                    return Ok(!self.takes(&[first, second])?);
                }
            }
        }
        // Nothing to compare with: the cautious answer.
        Ok(true)
    }

    /// Returns whether a filter may have an RSS context as its destination.
    fn takes_context(&mut self, kinds: &[FilterKind], entries: u32) -> Result<bool, NicError> {
        let context = match self.nic.create_context(&vec![0; entries as usize]) {
            Ok(context) => context,
            Err(error) if error.is_refusal() => return Ok(false),
            Err(error) => return Err(error),
        };
        let takes = self.any(kinds, |kind| vec![base(kind, Destination::Context(context))]);
        let removed = self.nic.remove_context(context);
        takes.and_then(|takes| removed.map(|()| takes))
    }
}

/// A mask of a base field that still asks for documentation addresses.
fn narrowed(field: Field, rule: MaskRule, mask: u128) -> u128 {
    let max = field.max();
    match rule {
        MaskRule::Whole => mask,
        // 192.0.2.0/28, 2001:db8:0:2::1/124, a MAC address without its last four bits.
        MaskRule::Prefix => max ^ 0xf,
        MaskRule::Any => max ^ 0x2,
    }
}

/// The rule that allows fewer masks.
fn strictest(a: MaskRule, b: MaskRule) -> MaskRule {
    let rank = |rule| match rule {
        MaskRule::Whole => 0,
        MaskRule::Prefix => 1,
        MaskRule::Any => 2,
    };
    if rank(a) <= rank(b) { a } else { b }
}

//! Products as matches of the policy language. Nearly every product equals some match. For one that the
//! language cannot express (packets with a truncated TCP header, for example) the smallest match around it is
//! given with a remark.

use std::fmt;
use std::sync::LazyLock;

use packet::stack::{Coordinate, FRAGMENT_CODES, LabelPart, Level, Network, PacketHeaders, Tunnel};
use packet::{Field, Form, Header, IpProtocol, MAX_MPLS_LABELS, mac_address, mac_number};
use program::{Addresses, ByteSet, Family, Fragments, Macs, MaskedMac, Match, MplsEntry, RangeSet, Word};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::dimensions::Dimensions;
use crate::interval_set::IntervalSet;
use crate::match_text::match_text;
use crate::product::Product;
use crate::stack_set::{StackSet, present, with_header};

/// A set of packets in the policy language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// A match that contains all of them.
    pub matches: Match,
    /// Which of the packets that match are in the set; `None`: all.
    pub only: Option<String>,
}

/// The match as an inline table of the policy language, with the restriction as a comment.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match_text(&self.matches))?;
        match &self.only {
            Some(only) => write!(f, " # {only}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Region {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut region = serializer.serialize_struct("Region", 2)?;
        region.serialize_field("match", &match_text(&self.matches))?;
        region.serialize_field("only", &self.only)?;
        region.end()
    }
}

/// The parts of a product that are one match each, as far as the language can express them.
pub(super) fn parts(dimensions: &Dimensions, product: &Product) -> Vec<Product> {
    let mut open = vec![product.clone()];
    let mut whole = Vec::new();
    while let Some(product) = open.pop().filter(|product| !product.is_empty()) {
        match splits(dimensions, &product) {
            Some(parts) => open.extend(parts.into_iter().filter(|part| !part.is_empty())),
            None => whole.push(product),
        }
    }
    whole
}

/// The smallest match around a product, which is one of its [`parts`], and which of its packets are in the
/// product.
pub(super) fn of(dimensions: &Dimensions, product: &Product) -> Region {
    let matches = nearest(dimensions, product);
    let surplus: Vec<Product> =
        dimensions.products(&matches).iter().flat_map(|around| around.minus(product, dimensions)).collect();
    let only = surplus.first().map(|some| {
        words_for(product, &surplus).unwrap_or_else(|| match some.witness(dimensions) {
            Some(other) if !some.is_rough => {
                format!("only part of it; not of it is, say, {other}")
            }
            _ => "only part of it".to_owned(),
        })
    });
    Region { matches, only }
}

/// The union of two products, if it is one match, or if both have the same region anyway.
pub(super) fn joined(dimensions: &Dimensions, one: &Product, other: &Product) -> Option<Product> {
    let both = one.joined(other, dimensions).filter(|both| splits(dimensions, both).is_none())?;
    let region = of(dimensions, &both);
    let is_no_worse =
        region.only.is_none() || [one, other].iter().all(|product| of(dimensions, product) == region);
    is_no_worse.then_some(both)
}

/// Sets of stacks that have a name in remarks.
static NAMED: LazyLock<[(&str, StackSet); 4]> = LazyLock::new(|| {
    let without_ports = |headers: PacketHeaders| !headers.has_ports();
    [
        ("what has no TCP or UDP header", StackSet::of_stacks(|stack| without_ports(stack.outer))),
        ("what is not IP", StackSet::of_stacks(|stack| stack.outer.network == Network::None)),
        (
            "what has no tunnel",
            StackSet::of_stacks(|stack| stack.tunnel == Tunnel::None && stack.labels.is_none()),
        ),
        (
            "what has no TCP or UDP header inside",
            StackSet::of_stacks(|stack| stack.inner.is_none_or(|inner| without_ports(inner.headers))),
        ),
    ]
});

/// A named set of stacks that contains all of some packets and none of others.
pub(super) fn named(some: &StackSet, others: &StackSet) -> Option<(&'static str, StackSet)> {
    NAMED.iter().find(|(_, kinds)| kinds.contains(some) && !kinds.overlaps(others)).copied()
}

/// The remark that separates a product from the surplus of its match, if a named set does.
fn words_for(product: &Product, surplus: &[Product]) -> Option<String> {
    let others = surplus.iter().fold(StackSet::NONE, |all, other| all.or(&other.stacks));
    named(&product.stacks, &others).map(|(words, _)| format!("only {words}"))
}

/// The packets that can meet a condition on the key of a number. Addresses of both IP versions are one key.
pub(super) fn of_key(coordinate: Coordinate) -> StackSet {
    match coordinate {
        Coordinate::Field(field, level) if field.row().form == Form::Address => {
            with_header(Header::Ip, level)
        }
        _ => present(coordinate),
    }
}

/// A product between a part and the whole that contains it: as close to the part as possible without longer
/// lists, and one match. On fields that the part's packets lack, the whole's set is kept.
pub(super) fn narrowed(dimensions: &Dimensions, whole: &Product, part: &Product) -> Product {
    let with = |stacks: StackSet| {
        let mut narrow = Product { stacks, ..whole.clone() };
        for (index, dimension) in dimensions.list.iter().enumerate() {
            let both = part.sets[index].and(&whole.sets[index]);
            let is_longer = both.intervals().len() > whole.sets[index].intervals().len();
            if !is_longer && of_key(dimension.field).contains(&stacks) {
                narrow.sets[index] = both;
            }
        }
        narrow.close(dimensions);
        narrow
    };
    let mut narrow = [part.stacks, whole.stacks].map(with).into_iter();
    let is_one =
        |product: &Product| splits(dimensions, product).is_none() && nearest_is_exact(dimensions, product);
    narrow.find(is_one).unwrap_or_else(|| whole.clone())
}

/// The product in parts, if it is not one match: some packets lack a field that is restricted for others, or
/// the combination of fragments and flags needs several matches.
fn splits(dimensions: &Dimensions, product: &Product) -> Option<Vec<Product>> {
    let with = |stacks: StackSet| product.within(stacks, dimensions);
    for (index, dimension) in dimensions.list.iter().enumerate() {
        let (set, of_key) = (&product.sets[index], of_key(dimension.field));
        if *set == dimension.admitted(&product.stacks, &dimension.all)
            || !product.stacks.overlaps(&dimension.present)
        {
            continue;
        }
        if !of_key.contains(&product.stacks) {
            let parts = product.stacks.minus(&of_key).chain([product.stacks.and(&of_key)]);
            return Some(parts.map(with).collect());
        }
    }
    for level in Level::ALL {
        let Some(index) = dimensions.position(Coordinate::FlagsAndFragment(level), 0) else { continue };
        let v4 = with_header(Header::Ipv4, level);
        if !product.stacks.overlaps(&v4) {
            continue;
        }
        let classes: Vec<Product> = FRAGMENT_CODES
            .iter()
            .map(|code| {
                let mut part = with(product.stacks);
                let codes = dimensions.list[index].set(&[((*code).into(), u128::from(*code) + 7)]);
                part.sets[index] = part.sets[index].and(&codes);
                part.close(dimensions);
                part
            })
            .filter(|part| !part.is_empty())
            .collect();
        let is_one = classes.len() < 2 || nearest_is_exact(dimensions, product);
        if !is_one {
            return Some(classes);
        }
    }
    None
}

fn nearest_is_exact(dimensions: &Dimensions, product: &Product) -> bool {
    matches!(&dimensions.products(&nearest(dimensions, product))[..], [one] if one == product)
}

/// The smallest match around a product: the values of its fields, then every further condition that still
/// contains the product and excludes other packets.
fn nearest(dimensions: &Dimensions, product: &Product) -> Match {
    let mut matches = of_values(dimensions, product);
    let mut around = dimensions.products(&matches);
    for narrower in narrowings(dimensions, product) {
        if matches!(&around[..], [one] if one == product) {
            break;
        }
        // Evaluated alone and intersected, so that long lists of values are not converted again for each.
        let mut alone = bare(&matches);
        narrower(&mut alone);
        let narrow = dimensions.products(&alone);
        let both = around.iter().flat_map(|one| narrow.iter().map(|other| one.and(other, dimensions)));
        let products: Vec<Product> = both.filter(|both| !both.is_empty()).collect();
        let still_around = matches!(&products[..], [one] if one.contains(product, dimensions));
        if still_around && products != around {
            narrower(&mut matches);
            around = products;
        }
    }
    matches
}

/// A match without conditions that has as many labels as another, and an inner match if that has one.
fn bare(matches: &Match) -> Match {
    let stack = |of: &Match| of.mpls.as_ref().map(|stack| vec![MplsEntry::default(); stack.len()]);
    let inner = matches.inner.as_ref().map(|inner| Match { mpls: stack(inner), ..Match::default() });
    Match { mpls: stack(matches), inner: inner.map(Box::new), ..Match::default() }
}

type Narrowing = Box<dyn Fn(&mut Match)>;

const FRAGMENTS: [Fragments; 6] = [
    Fragments::WHOLE,
    Fragments::FIRST,
    Fragments::LATER,
    Fragments::PIECES,
    Fragments::WHOLE.union(Fragments::FIRST),
    Fragments::WHOLE.union(Fragments::LATER),
];

/// The conditions of a match that are not values of a product: which headers there are.
fn narrowings(dimensions: &Dimensions, product: &Product) -> Vec<Narrowing> {
    let mut all: Vec<Narrowing> = Vec::new();
    for level in Level::ALL {
        let mut add = |change: fn(&mut Match)| {
            all.push(Box::new(move |matches: &mut Match| match level {
                Level::Outer => change(matches),
                Level::Inner => change(matches.inner.get_or_insert_default()),
            }));
        };
        add(|matches| matches.family = Some(Family::V4));
        add(|matches| matches.family = Some(Family::V6));
        // A value has an effect only where there is a dimension for it.
        if dimensions.position(Coordinate::Field(Field::Protocol, level), 0).is_some() {
            add(|matches| set_protocol(matches, IpProtocol::TCP));
            add(|matches| set_protocol(matches, IpProtocol::UDP));
        }
        add(|matches| require_header(matches, Header::Ports));
        add(|matches| require_header(matches, Header::Ip));
        add(|matches| require_header(matches, Header::Ethernet));
        add(|matches| require_header(matches, Header::Tcp));
        add(|matches| set_tag(matches, Field::VlanId, false));
        add(|matches| set_tag(matches, Field::VlanId, true));
        add(|matches| set_tag(matches, Field::InnerVlanId, false));
        add(|matches| set_tag(matches, Field::InnerVlanId, true));
        // So do fragments: first ones of IPv6 only where some rule distinguishes them from later ones.
        let is_parted = |field| {
            let dimension = dimensions.position(field, 0).map(|index| &dimensions.list[index]);
            dimension.is_some_and(|dimension| dimension.starts.len() > 1)
                || !product.stacks.overlaps(&present(field))
        };
        if is_parted(Coordinate::FlagsAndFragment(level)) {
            let is_all = is_parted(Coordinate::Fragment6(level));
            let is_restricted =
                |of: &Fragments| is_all || of.contains(Fragments::PIECES) == of.intersects(Fragments::PIECES);
            for fragments in FRAGMENTS.into_iter().filter(is_restricted) {
                all.push(Box::new(move |matches| level_of(matches, level).fragment = Some(fragments)));
            }
        }
        if let Some(flags) = ip_flags(dimensions, product, level) {
            all.push(Box::new(move |matches| level_of(matches, level).set(Field::IpFlags, flags.ranges())));
        }
    }
    for header in [Header::Extended, Header::ExtendedPorts, Header::ExtendedTcp, Header::ExtendedIcmpv6] {
        all.push(Box::new(move |matches| require_header(matches, header)));
    }
    if dimensions.position(Coordinate::Field(Field::ExtProtocol, Level::Outer), 0).is_some() {
        for protocol in [IpProtocol::TCP, IpProtocol::UDP] {
            let protocol = RangeSet::single(protocol.0.into());
            all.push(Box::new(move |matches| matches.set(Field::ExtProtocol, protocol.clone())));
        }
    }
    all.extend(tunnels());
    // Tunnels that have no key in the language.
    if dimensions.position(Coordinate::Field(Field::Protocol, Level::Outer), 0).is_some() {
        for protocol in [IpProtocol::IPV4, IpProtocol::IPV6] {
            all.push(Box::new(move |matches| set_protocol(matches, protocol)));
        }
    }
    all
}

fn set_protocol(matches: &mut Match, protocol: IpProtocol) {
    matches.set(Field::Protocol, RangeSet::single(protocol.0.into()));
}

/// Requires a header, by a condition on one of its fields that any value meets.
fn require_header(matches: &mut Match, header: Header) {
    if let Some(field) = Field::all().find(|field| field.row().header == header && field.is_number()) {
        matches.require(field);
    }
}

/// Requires a VLAN tag or its absence, unless there is a condition on the tag.
fn set_tag(matches: &mut Match, id: Field, is_there: bool) {
    let has_id = matches.has(id);
    let tag = if id == Field::VlanId { &mut matches.vlan } else { &mut matches.inner_vlan };
    if !has_id && tag.is_none() {
        *tag = Some(is_there);
    }
}

fn tunnels() -> Vec<Narrowing> {
    let mut all: Vec<Narrowing> = Vec::new();
    for header in [Header::Esp, Header::Vxlan, Header::Gre, Header::GreKey] {
        all.push(Box::new(move |matches| require_header(matches, header)));
    }
    for depth in 0..=MAX_MPLS_LABELS {
        all.push(Box::new(move |matches| {
            let stack = matches.mpls.get_or_insert_default();
            stack.resize(stack.len().max(depth), MplsEntry::default());
        }));
    }
    for (place, bottom) in (0..MAX_MPLS_LABELS).flat_map(|place| [(place, true), (place, false)]) {
        all.push(Box::new(move |matches| {
            if let Some(entry) = matches.mpls.as_mut().and_then(|stack| stack.get_mut(place)) {
                entry.bottom = Some(bottom);
            }
        }));
    }
    all.push(Box::new(|matches| {
        matches.inner.get_or_insert_default().mpls.get_or_insert_default();
    }));
    for bottom in [true, false] {
        all.push(Box::new(move |matches| {
            let stack = matches.inner.get_or_insert_default().mpls.get_or_insert_default();
            stack.resize(1, MplsEntry::default());
            stack[0].bottom = Some(bottom);
        }));
    }
    all
}

/// The flags of the product's IPv4 packets, whole or fragments.
fn ip_flags(dimensions: &Dimensions, product: &Product, level: Level) -> Option<ByteSet> {
    let index = dimensions.position(Coordinate::FlagsAndFragment(level), 0)?;
    let codes = dimensions.list[index].values(&product.sets[index]);
    Some(codes.into_iter().flat_map(|(low, high)| low..=high).map(|code| (code % 8) as u8).collect())
}

/// The match with the product's values, field by field.
fn of_values(dimensions: &Dimensions, product: &Product) -> Match {
    let mut matches = Match::default();
    for (index, dimension) in dimensions.list.iter().enumerate() {
        let set = &product.sets[index];
        let is_restricted = *set != dimension.admitted(&product.stacks, &dimension.all);
        if is_restricted && product.stacks.overlaps(&dimension.present) {
            put(dimensions, product, index, &mut matches);
        }
    }
    // An id or a priority implies an 802.1Q tag, unless there is a condition on the TPID.
    for level in Level::ALL {
        if level == Level::Inner && matches.inner.is_none() {
            continue;
        }
        let matches = level_of(&mut matches, level);
        if matches.outer_tpid().is_some() {
            matches.require(Field::VlanTpid);
        }
        if matches.inner_tpid().is_some() {
            matches.require(Field::InnerVlanTpid);
        }
    }
    matches
}

/// Adds the values of one dimension to a match.
fn put(dimensions: &Dimensions, product: &Product, index: usize, matches: &mut Match) {
    let dimension = &dimensions.list[index];
    let values = dimension.values(&product.sets[index]);
    match dimension.field {
        Coordinate::Label(part, level, place) => {
            let entry = label(matches, level, place);
            let slot = match part {
                LabelPart::Label => &mut entry.label,
                LabelPart::Class => &mut entry.tc,
                LabelPart::Ttl => &mut entry.ttl,
            };
            *slot = Some(ranges(&values));
        }
        Coordinate::Options(level) => level_of(matches, level).ip_options = Some(values == [(1, 1)]),
        // Found by `narrowings`.
        Coordinate::FlagsAndFragment(_) | Coordinate::Fragment6(_) => {}
        Coordinate::Field(field, level) => {
            let matches = level_of(matches, level);
            match (field, field.row().form) {
                (Field::DstMac, _) => matches.dst_mac = macs(dimensions, product, dimension.field),
                (Field::SrcMac, _) => matches.src_mac = macs(dimensions, product, dimension.field),
                (_, Form::Address) => {
                    let of_field = |(versions, _): &([Field; 2], _)| versions.contains(&field);
                    let Some((versions, _)) = matches.addresses().into_iter().find(of_field) else { return };
                    let set =
                        addresses(dimensions, product, versions.map(|field| Coordinate::Field(field, level)));
                    let is_src = versions.contains(&Field::SrcV4);
                    *if is_src { &mut matches.src } else { &mut matches.dst } = Some(set);
                }
                (Field::GreFlags, _) => {
                    // The routing bit is never set; a flag that no rule asks for is not to be printed.
                    let set = ByteSet::of(&ranges(&values));
                    let both: ByteSet = (0..=u8::MAX).filter(|byte| set.contains(byte & !0x40)).collect();
                    matches.set(field, both.ranges());
                }
                _ => matches.set(field, ranges(&values)),
            }
        }
    }
}

fn label(matches: &mut Match, level: Level, place: u8) -> &mut MplsEntry {
    let stack = level_of(matches, level).mpls.get_or_insert_default();
    let place = usize::from(place);
    stack.resize(stack.len().max(place + 1), MplsEntry::default());
    &mut stack[place]
}

fn ranges<T: Word>(values: &[(u128, u128)]) -> RangeSet<T> {
    RangeSet::of(values.iter().map(|(low, high)| (T::narrow(*low), T::narrow(*high))).collect())
}

/// The addresses of both versions; none of a version that the product has no packets of.
fn addresses(dimensions: &Dimensions, product: &Product, [v4, v6]: [Coordinate; 2]) -> Addresses {
    let values = |coordinate: Coordinate| match dimensions.position(coordinate, 0) {
        _ if !product.stacks.overlaps(&present(coordinate)) => Vec::new(),
        Some(index) => dimensions.list[index].values(&product.sets[index]),
        None => vec![(0, coordinate.max())],
    };
    Addresses { v4: ranges(&values(v4)), v6: ranges(&values(v6)) }
}

/// The addresses of a MAC field, which may have several dimensions: the product over the dimensions of the
/// wanted prefixes, or of the unwanted ones where these are fewer.
fn macs(dimensions: &Dimensions, product: &Product, field: Coordinate) -> Option<Macs> {
    let layout = dimensions.layout(field)?;
    let first = dimensions.position(field, 0)?;
    let mut wanted = vec![MaskedMac::ANY];
    let mut unwanted = Vec::new();
    for part in 0..layout.parts.len() {
        let dimension = &dimensions.list[first + part];
        let (set, bits) = (&product.sets[first + part], layout.parts[part].len() as u32);
        let prefixes = |set: &IntervalSet| -> Vec<MaskedMac> {
            let ranges: RangeSet<u128> = RangeSet::of(dimension.values(set));
            let masked = |(value, mask): (u128, u128)| MaskedMac {
                value: mac_address(layout.scatter(part, value as u64)),
                mask: mac_address(layout.scatter(part, mask as u64)),
            };
            ranges.prefixes(bits).into_iter().map(masked).collect()
        };
        let (inside, outside) = (prefixes(set), prefixes(&dimension.all.minus(set)));
        if outside.len() < inside.len() {
            unwanted.extend(outside);
        } else {
            wanted = wanted.iter().flat_map(|one| inside.iter().map(|other| both(one, other))).collect();
        }
    }
    let mut macs = Macs::of(wanted);
    macs.none_of = Macs::of(unwanted).any_of;
    Some(macs)
}

/// The conjunction of two masked addresses with disjoint masks.
fn both(one: &MaskedMac, other: &MaskedMac) -> MaskedMac {
    let or = |a, b| mac_address((mac_number(a) | mac_number(b)) as u64);
    MaskedMac { value: or(one.value, other.value), mask: or(one.mask, other.mask) }
}

/// The match of the packet itself, or of the packet inside.
fn level_of(matches: &mut Match, level: Level) -> &mut Match {
    match level {
        Level::Outer => matches,
        Level::Inner => matches.inner.get_or_insert_default(),
    }
}

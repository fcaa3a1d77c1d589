//! Cells as matches of the language. Nearly every cell is exactly some match; what the language has no word for
//! (a TCP header that is cut off, say) is told beside the smallest match around it. `grow`, `pairs` and `tell` ask;
//! which packets are told of is none of its business.

use std::fmt;
use std::sync::LazyLock;

use packet::{IpProtocol, MAX_MPLS_LABELS};
use program::{ByteSet, Family, Fragments, Match, MplsEntry, RangeSet, VlanMatch};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::axes::Axes;
use super::cell::Cell;
use super::field::{FRAGMENT_CODES, Field, Level};
use super::kind::{Network, Packet, Structure, Transport, Tunnel, present};
use super::text::match_text;
use super::witness;

mod values;

use values::{level_of, of_values};

/// A set of packets in the language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// All of them meet this.
    pub matches: Match,
    /// Which of the packets that meet it are meant; `None`: all.
    pub only: Option<String>,
}

/// The match as the inline table that the language reads, with what it cannot say as a comment behind.
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

/// The parts of a cell for which there is one match each.
pub(super) fn parts(axes: &Axes, cell: &Cell) -> Vec<Cell> {
    let mut open = vec![cell.clone()];
    let mut whole = Vec::new();
    while let Some(cell) = open.pop().filter(|cell| !cell.is_empty()) {
        match splits(axes, &cell) {
            Some(parts) => open.extend(parts.into_iter().filter(|part| !part.is_empty())),
            None => whole.push(cell),
        }
    }
    whole
}

/// The smallest match around a cell that is one of its parts, and which of its packets are meant.
pub(super) fn of(axes: &Axes, cell: &Cell) -> Region {
    let matches = nearest(axes, cell);
    let surplus: Vec<Cell> =
        axes.cells(&matches).iter().flat_map(|around| around.minus(cell, axes)).collect();
    let only = surplus.first().map(|some| {
        words_for(cell, &surplus).unwrap_or_else(|| match witness::of(axes, some) {
            Some(other) if !some.is_rough => {
                format!("only part of it; not of it is, say, {}", other.fields())
            }
            _ => "only part of it".to_owned(),
        })
    });
    Region { matches, only }
}

/// Two cells as one, if it is one match, or if the language tells the two by the same words.
pub(super) fn joined(axes: &Axes, one: &Cell, other: &Cell) -> Option<Cell> {
    let both = one.joined(other, axes).filter(|both| splits(axes, both).is_none())?;
    let told = of(axes, &both);
    let is_no_worse = told.only.is_none() || [one, other].iter().all(|cell| of(axes, cell) == told);
    is_no_worse.then_some(both)
}

/// Kinds that there are words for.
static NAMED: LazyLock<[(&str, Structure); 4]> = LazyLock::new(|| {
    let without_ports = |packet: Packet| packet.transport == Transport::None;
    [
        ("what has no TCP or UDP header", Structure::kinds(|kind| without_ports(kind.packet))),
        ("what is not IP", Structure::kinds(|kind| kind.packet.network == Network::None)),
        ("what has no tunnel", Structure::kinds(|kind| kind.tunnel == Tunnel::None && kind.stack.is_none())),
        (
            "what has no TCP or UDP header inside",
            Structure::kinds(|kind| kind.inside.is_none_or(|inside| without_ports(inside.packet))),
        ),
    ]
});

/// Of the kinds that there are words for those that have all of some packets and none of others.
pub(super) fn named(some: &Structure, others: &Structure) -> Option<(&'static str, Structure)> {
    NAMED.iter().find(|(_, kinds)| kinds.contains(some) && !kinds.overlaps(others)).copied()
}

/// What tells a cell from all that is around it, if there are words for it.
fn words_for(cell: &Cell, surplus: &[Cell]) -> Option<String> {
    let others = surplus.iter().fold(Structure::NONE, |all, other| all.or(&other.structure));
    named(&cell.structure, &others).map(|(words, _)| format!("only {words}"))
}

const LEVELS: [Level; 2] = [Level::Outer, Level::Inner];

/// The packets that a condition on the field is about: it leaves the others of them alone. Addresses of both
/// versions are one key.
pub(super) fn of_key(field: Field) -> Structure {
    match field {
        Field::Src4(level) | Field::Src6(level) | Field::Dst4(level) | Field::Dst6(level) => {
            present(Field::Tos(level))
        }
        _ => present(field),
    }
}

/// A cell around some part of another and within it, as near to the part as takes no longer lists, and one match
/// only. Of a field that the part's packets lack its set says nothing, so the whole's holds there.
pub(super) fn narrowed(axes: &Axes, whole: &Cell, part: &Cell) -> Cell {
    let with = |structure: Structure| {
        let mut narrow = Cell { structure, ..whole.clone() };
        for (index, axis) in axes.list.iter().enumerate() {
            let both = part.sets[index].and(&whole.sets[index]);
            let is_longer = both.intervals().len() > whole.sets[index].intervals().len();
            if !is_longer && of_key(axis.field).contains(&structure) {
                narrow.sets[index] = both;
            }
        }
        narrow.close(axes);
        narrow
    };
    let mut narrow = [part.structure, whole.structure].map(with).into_iter();
    let is_one = |cell: &Cell| splits(axes, cell).is_none() && nearest_is_exact(axes, cell);
    narrow.find(is_one).unwrap_or_else(|| whole.clone())
}

/// The same cell in parts, if no one match can be it: some packets lack a field that others are told by, or
/// fragments and flags go together in a way that takes several.
fn splits(axes: &Axes, cell: &Cell) -> Option<Vec<Cell>> {
    let with = |structure: Structure| cell.within(structure, axes);
    for (index, axis) in axes.list.iter().enumerate() {
        let (set, of_key) = (&cell.sets[index], of_key(axis.field));
        if *set == axis.admitted(&cell.structure, &axis.all) || !cell.structure.overlaps(&axis.present) {
            continue;
        }
        if !of_key.contains(&cell.structure) {
            let parts = cell.structure.minus(&of_key).chain([cell.structure.and(&of_key)]);
            return Some(parts.map(with).collect());
        }
    }
    for level in LEVELS {
        let Some(index) = axes.position(Field::FlagsAndFragment(level), 0) else { continue };
        let v4 = present(Field::Src4(level));
        if !cell.structure.overlaps(&v4) {
            continue;
        }
        let classes: Vec<Cell> = FRAGMENT_CODES
            .iter()
            .map(|code| {
                let mut part = with(cell.structure);
                let codes = axes.list[index].set(&[((*code).into(), u128::from(*code) + 7)]);
                part.sets[index] = part.sets[index].and(&codes);
                part.close(axes);
                part
            })
            .filter(|part| !part.is_empty())
            .collect();
        let is_one = classes.len() < 2 || nearest_is_exact(axes, cell);
        if !is_one {
            return Some(classes);
        }
    }
    None
}

fn nearest_is_exact(axes: &Axes, cell: &Cell) -> bool {
    matches!(&axes.cells(&nearest(axes, cell))[..], [one] if one == cell)
}

/// The smallest match around a cell: its fields' values, and then what else narrows it down.
fn nearest(axes: &Axes, cell: &Cell) -> Match {
    let mut matches = of_values(axes, cell);
    let mut around = axes.cells(&matches);
    for narrower in narrowings(axes, cell) {
        if matches!(&around[..], [one] if one == cell) {
            break;
        }
        // Long lists of values are not gone through again for each.
        let mut alone = bare(&matches);
        narrower(&mut alone);
        let narrow = axes.cells(&alone);
        let both = around.iter().flat_map(|one| narrow.iter().map(|other| one.and(other, axes)));
        let cells: Vec<Cell> = both.filter(|both| !both.is_empty()).collect();
        let still_around = matches!(&cells[..], [one] if one.contains(cell, axes));
        if still_around && cells != around {
            narrower(&mut matches);
            around = cells;
        }
    }
    matches
}

/// A match that asks for nothing, with room for the labels and the inside of another.
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

/// What a match can ask beyond values: which headers there are.
fn narrowings(axes: &Axes, cell: &Cell) -> Vec<Narrowing> {
    let mut all: Vec<Narrowing> = Vec::new();
    for level in LEVELS {
        let mut add = |change: fn(&mut Match)| {
            all.push(Box::new(move |matches: &mut Match| match level {
                Level::Outer => change(matches),
                Level::Inner => change(matches.inner.get_or_insert_default()),
            }));
        };
        add(|matches| matches.family = Some(Family::V4));
        add(|matches| matches.family = Some(Family::V6));
        // A value counts only where there is an axis for it.
        if axes.position(Field::Protocol(level), 0).is_some() {
            add(|matches| matches.protocol = Some(RangeSet::single(IpProtocol::TCP.0)));
            add(|matches| matches.protocol = Some(RangeSet::single(IpProtocol::UDP.0)));
        }
        add(|matches| {
            let all = || RangeSet::of(vec![(0, u16::MAX)]);
            matches.src_port = Some(matches.src_port.clone().unwrap_or_else(all));
        });
        add(|matches| {
            let all = || RangeSet::of(vec![(0, u8::MAX)]);
            matches.protocol = Some(matches.protocol.clone().unwrap_or_else(all));
        });
        add(|matches| {
            let all = || RangeSet::of(vec![(0, u16::MAX)]);
            matches.ethertype = Some(matches.ethertype.clone().unwrap_or_else(all));
        });
        add(|matches| matches.tcp_flags = Some(matches.tcp_flags.unwrap_or(ByteSet::ALL)));
        add(|matches| matches.vlan = Some(matches.vlan.clone().unwrap_or(VlanMatch::None)));
        add(|matches| matches.vlan = Some(matches.vlan.clone().unwrap_or(VlanMatch::Any)));
        add(|matches| matches.inner_vlan = Some(matches.inner_vlan.clone().unwrap_or(VlanMatch::None)));
        add(|matches| matches.inner_vlan = Some(matches.inner_vlan.clone().unwrap_or(VlanMatch::Any)));
        // So do fragments: the first ones of IPv6 only where some rule parts them from later ones.
        let is_parted = |field| {
            let axis = axes.position(field, 0).map(|index| &axes.list[index]);
            axis.is_some_and(|axis| axis.starts.len() > 1) || !cell.structure.overlaps(&present(field))
        };
        if is_parted(Field::FlagsAndFragment(level)) {
            let is_all = is_parted(Field::Fragment6(level));
            let is_told =
                |of: &Fragments| is_all || of.contains(Fragments::PIECES) == of.intersects(Fragments::PIECES);
            for fragments in FRAGMENTS.into_iter().filter(is_told) {
                all.push(Box::new(move |matches| level_of(matches, level).fragment = Some(fragments)));
            }
        }
        if let Some(flags) = ip_flags(axes, cell, level) {
            all.push(Box::new(move |matches| level_of(matches, level).ip_flags = Some(flags)));
        }
    }
    all.extend(tunnels());
    // Tunnels that have no key of their own.
    if axes.position(Field::Protocol(Level::Outer), 0).is_some() {
        for protocol in [IpProtocol::IPV4, IpProtocol::IPV6] {
            all.push(Box::new(move |matches| matches.protocol = Some(RangeSet::single(protocol.0))));
        }
    }
    all
}

fn tunnels() -> Vec<Narrowing> {
    let mut all: Vec<Narrowing> = Vec::new();
    let words = || RangeSet::of(vec![(0, u32::MAX)]);
    let types = || RangeSet::of(vec![(0, u16::MAX)]);
    all.push(Box::new(move |matches| matches.esp_spi = Some(matches.esp_spi.clone().unwrap_or_else(words))));
    let identifiers = || RangeSet::of(vec![(0, 0xff_ffff)]);
    all.push(Box::new(move |matches| {
        matches.vxlan_vni = Some(matches.vxlan_vni.clone().unwrap_or_else(identifiers));
    }));
    all.push(Box::new(move |matches| {
        matches.gre_protocol = Some(matches.gre_protocol.clone().unwrap_or_else(types));
    }));
    all.push(Box::new(move |matches| matches.gre_key = Some(matches.gre_key.clone().unwrap_or_else(words))));
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

/// The flags that the cell's IPv4 packets have, whatever fragments they are.
fn ip_flags(axes: &Axes, cell: &Cell, level: Level) -> Option<ByteSet> {
    let index = axes.position(Field::FlagsAndFragment(level), 0)?;
    let codes = axes.list[index].values(&cell.sets[index]);
    Some(codes.into_iter().flat_map(|(low, high)| low..=high).map(|code| (code % 8) as u8).collect())
}

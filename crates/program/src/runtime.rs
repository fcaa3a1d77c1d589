//! Rules at run time: rules that are added and removed while a program runs, without compiling it again.
//!
//! They stand before one rule of the policy: a packet that an earlier rule decides does not meet them. Each
//! compares a few header fields by value, all fields of one *form*. The policy lists the forms, and the first
//! form that has a rule for a packet decides. Rules of one form have different values, so no two of them
//! match the same packet, and a worker looks a packet up at most once for each form.

use std::fmt;
use std::hash::BuildHasher as _;
use std::net::IpAddr;

use packet::{EtherType, Field, FlowKey, Layers};
use serde::{Deserialize, Serialize};

use crate::ids::{RuleId, SinkId};
use crate::matching::{Addresses, Family, Match};
use crate::outcome::Verdict;
use crate::ranges::RangeSet;

/// The name under which workers count the packets that rules at run time decide. No rule of a policy can have
/// it, because names have no brackets.
pub const RUNTIME_RULES: &str = "(rules at run time)";
/// The most forms of a program: each costs a packet one more lookup.
pub const RUNTIME_FORMS_MAX: usize = 16;
/// The most actions of a program, those of the program before included.
pub const RUNTIME_ACTIONS_MAX: usize = 64;
/// The most rules at run time.
pub const RUNTIME_RULES_MAX: u32 = 1 << 22;

/// The rules at run time that a program allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeRules {
    /// The rule that they stand before.
    pub before: RuleId,
    /// The forms; the first that has a rule for a packet decides.
    pub forms: Vec<RuntimeForm>,
    /// The actions, by their number. `None` is an action of the previous program only: rules keep the number.
    pub actions: Vec<Option<RuntimeAction>>,
    /// Whether the packets of a rule meet rules at run time first, by the rule's number.
    pub subject: Vec<bool>,
    /// The most rules.
    pub rules_max: u32,
    /// The most rules of them that act in the device.
    pub device_rules_max: u32,
}

/// An action that a rule at run time may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeAction {
    /// The text in the policy: `drop`, `kernel`, or `steer` and a group.
    pub text: String,
    /// The verdict on the packets.
    pub verdict: Verdict,
    /// Where the packets go that are delivered.
    pub sinks: Vec<SinkId>,
    /// The forms, by index, of which workers receive every packet that such a rule changes something for;
    /// only the device can enforce rules of the others. The compiler leaves it empty: the analysis of the
    /// policy tells it.
    pub by_workers: Vec<bool>,
}

impl RuntimeRules {
    /// The number of an action.
    #[must_use]
    pub fn action(&self, text: &str) -> Option<u8> {
        let is_it =
            |action: &Option<RuntimeAction>| action.as_ref().is_some_and(|action| action.text == text);
        self.actions.iter().position(is_it).and_then(|number| u8::try_from(number).ok())
    }

    /// Whether workers can enforce a rule without the device, in both directions if it has both.
    #[must_use]
    pub fn is_enforced_by_workers(&self, action: u8, matches: &RuntimeMatch, both_directions: bool) -> bool {
        let Some(Some(action)) = self.actions.get(usize::from(action)) else { return false };
        let by_workers = |matches: &RuntimeMatch| {
            let fields = matches.fields().ok();
            let form = self.forms.iter().position(|form| Some(form.fields()) == fields);
            form.and_then(|form| action.by_workers.get(form)).copied().unwrap_or(false)
        };
        by_workers(matches) && (!both_directions || by_workers(&matches.reversed()))
    }

    /// Gives the actions the numbers that they have in the program before. A number that only that one uses
    /// stays free.
    pub fn keep_numbers(&mut self, before: &Self) {
        let mut wanted: Vec<RuntimeAction> = self.actions.drain(..).flatten().collect();
        let mut same = |old: &Option<RuntimeAction>| {
            let text = old.as_ref().map(|old| &old.text)?;
            let place = wanted.iter().position(|action| action.text == *text)?;
            Some(wanted.remove(place))
        };
        self.actions = before.actions.iter().map(&mut same).collect();
        for action in wanted {
            let is_free = |number: &usize| {
                self.actions[*number].is_none() && before.actions.get(*number).is_none_or(Option::is_none)
            };
            match (0..self.actions.len()).find(is_free) {
                Some(number) => self.actions[number] = Some(action),
                None => self.actions.push(Some(action)),
            }
        }
    }
}

/// The header fields that the rules of a form compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuntimeForm {
    /// The bits that are compared, in the order of [`RuntimeHeader`].
    mask: [u64; WORDS],
    needs: Parts,
    code: u32,
}

/// The number of words of a [`RuntimeHeader`].
const WORDS: usize = 5;
/// The places in the last word.
const SRC_PORT: u32 = 48;
const DST_PORT: u32 = 32;
const PROTOCOL: u32 = 24;
const VLAN: u32 = 0;

bitflags::bitflags! {
    /// The parts that a packet has, or that a form needs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    struct Parts: u8 {
        const V4 = 1;
        const V6 = 1 << 1;
        const IP = 1 << 2;
        const PORTS = 1 << 3;
        const VLAN = 1 << 4;
    }
}

/// The fields of a form as the policy lists them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuntimeFields {
    /// The length of the compared prefix of the source address in bits; 0: none.
    pub src: u8,
    /// The length of the compared prefix of the destination address, in the same way.
    pub dst: u8,
    /// Whether the addresses are of IPv6; `None`: no address is compared.
    pub is_v6: Option<bool>,
    /// Whether the protocol is compared.
    pub protocol: bool,
    /// Whether the source port of TCP and UDP is compared.
    pub src_port: bool,
    /// Whether the destination port of TCP and UDP is compared.
    pub dst_port: bool,
    /// Whether the identifier of the outer 802.1Q tag is compared.
    pub vlan: bool,
}

impl RuntimeFields {
    fn code(self) -> u32 {
        let family = match self.is_v6 {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        };
        let flag = |is_set: bool, place: u32| u32::from(is_set) << place;
        u32::from(self.src)
            | u32::from(self.dst) << 8
            | family << 16
            | flag(self.protocol, 18)
            | flag(self.src_port, 19)
            | flag(self.dst_port, 20)
            | flag(self.vlan, 21)
    }

    fn of_code(code: u32) -> Self {
        let flag = |place: u32| code >> place & 1 == 1;
        Self {
            src: code as u8,
            dst: (code >> 8) as u8,
            is_v6: [None, Some(false), Some(true), None][(code >> 16 & 3) as usize],
            protocol: flag(18),
            src_port: flag(19),
            dst_port: flag(20),
            vlan: flag(21),
        }
    }
}

impl RuntimeFields {
    /// All packets that have the fields, so that a rule of this form can match them.
    #[must_use]
    pub fn to_match(self) -> Match {
        let family = self.is_v6.map(|is_v6| if is_v6 { Family::V6 } else { Family::V4 });
        let mut matches = Match { family, ..Match::default() };
        let fields = [
            (self.protocol, Field::Protocol),
            (self.src_port, Field::SrcPort),
            (self.dst_port, Field::DstPort),
            (self.vlan, Field::VlanId),
        ];
        fields.iter().filter(|(is_needed, _)| *is_needed).for_each(|(_, field)| matches.require(*field));
        matches
    }
}

impl fmt::Display for RuntimeFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.is_v6 == Some(true) { 128 } else { 32 };
        let address = |name: &str, length: u8| match length {
            0 => None,
            length if length == whole => Some(name.to_owned()),
            length => Some(format!("{name}/{length}")),
        };
        let named = |is_there: bool, name: &str| is_there.then(|| name.to_owned());
        let fields = [
            address("src", self.src),
            address("dst", self.dst),
            named(self.protocol, "protocol"),
            named(self.src_port, "src_port"),
            named(self.dst_port, "dst_port"),
            named(self.vlan, "vlan"),
        ];
        let family = match self.is_v6 {
            None => "",
            Some(false) => " (IPv4)",
            Some(true) => " (IPv6)",
        };
        write!(f, "{}{family}", fields.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

impl RuntimeForm {
    /// The form that compares these fields.
    #[must_use]
    pub fn of(fields: RuntimeFields) -> Self {
        let is_v6 = fields.is_v6 == Some(true);
        let prefix = |length: u8| match length {
            0 => 0,
            length if is_v6 => u128::MAX << (128 - u32::from(length.min(128))),
            length => u128::MAX << (128 - u32::from(length.min(32))),
        };
        let [src, dst] = [fields.src, fields.dst].map(prefix);
        let bits = |is_set: bool, ones: u64, place: u32| if is_set { ones << place } else { 0 };
        let rest = bits(fields.src_port, 0xffff, SRC_PORT)
            | bits(fields.dst_port, 0xffff, DST_PORT)
            | bits(fields.protocol, 0xff, PROTOCOL)
            | bits(fields.vlan, 0xfff, VLAN);
        let part = |is_needed: bool, part: Parts| if is_needed { part } else { Parts::empty() };
        let needs = part(fields.is_v6 == Some(false), Parts::V4)
            | part(is_v6, Parts::V6)
            | part(fields.protocol, Parts::IP)
            | part(fields.src_port || fields.dst_port, Parts::PORTS)
            | part(fields.vlan, Parts::VLAN);
        let [src_high, src_low] = halves(src);
        let [dst_high, dst_low] = halves(dst);
        Self { mask: [src_high, src_low, dst_high, dst_low, rest], needs, code: fields.code() }
    }

    /// The fields that it compares.
    #[must_use]
    pub fn fields(&self) -> RuntimeFields {
        RuntimeFields::of_code(self.code)
    }

    /// The key by which a rule of this form matches the packet; `None` if no rule of the form can.
    #[must_use]
    #[inline]
    pub fn key(&self, header: &RuntimeHeader) -> Option<RuntimeKey> {
        if !header.has.contains(self.needs) {
            return None;
        }
        let mut words = header.words;
        words.iter_mut().zip(self.mask).for_each(|(word, mask)| *word &= mask);
        Some(RuntimeKey { words, code: self.code })
    }

    /// The part of a key, of this form or of `other`, that both forms compare. If the parts of two keys
    /// differ, no packet has both keys. `None`: no packet has keys of both forms.
    #[must_use]
    pub fn common_part(&self, other: &Self, key: &RuntimeKey) -> Option<RuntimeKey> {
        let families = (self.needs | other.needs) & (Parts::V4 | Parts::V6);
        if families == Parts::V4 | Parts::V6 {
            return None;
        }
        let words = std::array::from_fn(|word| key.words[word] & self.mask[word] & other.mask[word]);
        Some(RuntimeKey { words, code: 0 })
    }
}

const fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

/// The header fields of a packet that rules at run time can compare.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeHeader {
    words: [u64; WORDS],
    has: Parts,
}

impl RuntimeHeader {
    /// The fields of a packet's outer headers.
    #[must_use]
    #[inline]
    pub fn of(key: &FlowKey) -> Self {
        let part = |layers: Layers, part: Parts| {
            if key.layers.intersects(layers) { part } else { Parts::empty() }
        };
        let is_tagged = key.layers.contains(Layers::VLAN) && key.vlan_tpid == EtherType::VLAN.0;
        let has = part(Layers::IPV4, Parts::V4 | Parts::IP)
            | part(Layers::IPV6, Parts::V6 | Parts::IP)
            | part(Layers::TCP | Layers::UDP, Parts::PORTS)
            | if is_tagged { Parts::VLAN } else { Parts::empty() };
        let vlan = if is_tagged { key.vlan_tci & 0xfff } else { 0 };
        let rest = u64::from(key.src_port) << SRC_PORT
            | u64::from(key.dst_port) << DST_PORT
            | u64::from(key.protocol) << PROTOCOL
            | u64::from(vlan) << VLAN;
        let [src_high, src_low] = halves(u128::from_be_bytes(key.src_ip));
        let [dst_high, dst_low] = halves(u128::from_be_bytes(key.dst_ip));
        Self { words: [src_high, src_low, dst_high, dst_low, rest], has }
    }
}

/// The form of a rule at run time and the values that it compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuntimeKey {
    words: [u64; WORDS],
    code: u32,
}

impl RuntimeKey {
    /// A hash of all bits. Each factor of a product has a word of the secret in it, so nobody who does not
    /// know the secret can choose keys that make a factor zero, or that share a hash.
    #[must_use]
    #[inline]
    pub fn hash(&self, secret: &RuntimeSecret) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let [a, b, c, d, e] = self.words;
        let [first, second, third, fourth, fifth, sixth] = secret.0;
        // These two do not wait for each other.
        let src = fold(a ^ first, b ^ second);
        let dst = fold(c ^ third, d ^ fourth);
        fold(src ^ e ^ fifth, dst ^ u64::from(self.code) ^ sixth)
    }
}

/// The random numbers that a hash of a [`RuntimeKey`] depends on. Senders of packets and owners of rules
/// choose keys, and must not be able to predict which of them collide.
#[derive(Clone, Copy)]
pub struct RuntimeSecret([u64; SECRET_WORDS]);

const SECRET_WORDS: usize = 6;

impl RuntimeSecret {
    /// A secret that no other caller has.
    #[must_use]
    pub fn random() -> Self {
        // The standard library seeds it from the system's random numbers.
        let state = std::hash::RandomState::new();
        Self(std::array::from_fn(|word| state.hash_one(word)))
    }
}

impl fmt::Debug for RuntimeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuntimeSecret")
    }
}

/// A rule at run time as workers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeEntry {
    /// The place of its counter, which no other rule has at the same time.
    pub slot: u32,
    /// The packets.
    pub key: RuntimeKey,
    /// The number of the action in the program.
    pub action: u8,
}

/// A change of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeChange {
    /// Adds a rule. No other rule has its key.
    Add(RuntimeEntry),
    /// Removes the rule of a slot.
    Remove {
        /// The slot.
        slot: u32,
    },
}

impl RuntimeChange {
    /// The slot that is filled or freed.
    #[must_use]
    pub fn slot(&self) -> u32 {
        match self {
            Self::Add(entry) => entry.slot,
            Self::Remove { slot } => *slot,
        }
    }
}

/// A prefix of addresses, written as the address, a slash and a length; a whole address needs no length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressPrefix {
    /// The first address.
    pub address: IpAddr,
    /// The length in bits.
    pub length: u8,
}

impl AddressPrefix {
    fn bits(self) -> u128 {
        match self.address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        }
    }

    fn whole(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }
}

/// The text is no address and no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no address or prefix: write 192.0.2.1, 192.0.2.0/24 or 2001:db8::1")]
pub struct AddressPrefixError(String);

impl std::str::FromStr for AddressPrefix {
    type Err = AddressPrefixError;

    fn from_str(text: &str) -> Result<Self, AddressPrefixError> {
        let refused = || AddressPrefixError(text.chars().take(60).collect());
        let (address, length) =
            text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| refused())?;
        let whole = Self::whole(address);
        let length = length.map_or(Ok(whole), |length| length.parse().map_err(|_| refused()))?;
        let prefix = Self { address, length };
        let is_canonical = length > 0 && length <= whole && {
            let host = if length == whole { 0 } else { u128::MAX >> (128 - u32::from(whole - length)) };
            let low = prefix.bits() >> (128 - u32::from(whole));
            low & host == 0
        };
        if is_canonical { Ok(prefix) } else { Err(refused()) }
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.length == Self::whole(self.address) {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.length)
        }
    }
}

impl Serialize for AddressPrefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AddressPrefix {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The match of a rule at run time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeMatch {
    /// Source address or prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<AddressPrefix>,
    /// Destination address or prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<AddressPrefix>,
    /// IPv4 protocol or first IPv6 next header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ProtocolNumber>,
    /// Source port of TCP or UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src_port: Option<u16>,
    /// Destination port of TCP or UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<u16>,
    /// Identifier of the outer 802.1Q tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

/// An IP protocol, in text by its number or as `tcp`, `udp`, `icmp`, `icmpv6` or `sctp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProtocolNumber(pub u8);

const PROTOCOL_NAMES: [(&str, u8); 5] = [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58), ("sctp", 132)];

impl fmt::Display for ProtocolNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOL_NAMES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl std::str::FromStr for ProtocolNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = PROTOCOL_NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        let number = named.map(|(_, number)| *number).or_else(|| text.parse().ok());
        number.map(Self).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            format!("\"{shown}\" is no protocol: write tcp, udp, icmp, icmpv6, sctp or a number up to 255")
        })
    }
}

impl Serialize for ProtocolNumber {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProtocolNumber {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written<'w> {
            Number(u8),
            #[serde(borrow)]
            Name(std::borrow::Cow<'w, str>),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Self(number)),
            Written::Name(name) => name.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Why a match at run time is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeMatchError {
    /// Source and destination are of different IP versions.
    #[error("`src` and `dst` are of different IP versions")]
    MixedVersions,
    /// There is no field.
    #[error("the match has no field")]
    Empty,
    /// The identifier has more than 12 bits.
    #[error("`vlan` is beyond 4095")]
    Vlan,
}

impl RuntimeMatch {
    /// The fields that it compares.
    ///
    /// # Errors
    /// No packet can match, or every packet does.
    pub fn fields(&self) -> Result<RuntimeFields, RuntimeMatchError> {
        let version = |prefix: AddressPrefix| prefix.address.is_ipv6();
        let is_v6 = match (self.src.map(version), self.dst.map(version)) {
            (Some(src), Some(dst)) if src != dst => return Err(RuntimeMatchError::MixedVersions),
            (src, dst) => src.or(dst),
        };
        if self.vlan.is_some_and(|vlan| vlan > 0xfff) {
            return Err(RuntimeMatchError::Vlan);
        }
        let fields = RuntimeFields {
            src: self.src.map_or(0, |prefix| prefix.length),
            dst: self.dst.map_or(0, |prefix| prefix.length),
            is_v6,
            protocol: self.protocol.is_some(),
            src_port: self.src_port.is_some(),
            dst_port: self.dst_port.is_some(),
            vlan: self.vlan.is_some(),
        };
        if fields == RuntimeFields::default() { Err(RuntimeMatchError::Empty) } else { Ok(fields) }
    }

    /// The key by which workers find the rule.
    ///
    /// # Errors
    /// As [`RuntimeMatch::fields`].
    pub fn key(&self) -> Result<RuntimeKey, RuntimeMatchError> {
        let code = self.fields()?.code();
        let [src_high, src_low] = halves(self.src.map_or(0, AddressPrefix::bits));
        let [dst_high, dst_low] = halves(self.dst.map_or(0, AddressPrefix::bits));
        let rest = u64::from(self.src_port.unwrap_or(0)) << SRC_PORT
            | u64::from(self.dst_port.unwrap_or(0)) << DST_PORT
            | u64::from(self.protocol.map_or(0, |protocol| protocol.0)) << PROTOCOL
            | u64::from(self.vlan.unwrap_or(0)) << VLAN;
        Ok(RuntimeKey { words: [src_high, src_low, dst_high, dst_low, rest], code })
    }

    /// The match of the same packets in the other direction of a connection.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { src: self.dst, dst: self.src, src_port: self.dst_port, dst_port: self.src_port, ..*self }
    }

    /// The packets as a match of the policy language.
    #[must_use]
    pub fn to_match(&self) -> Match {
        let addresses = |prefix: AddressPrefix| match prefix.address {
            IpAddr::V4(first) => {
                let ones = u32::MAX.checked_shr(prefix.length.into()).unwrap_or(0);
                let first = first.to_bits();
                Addresses { v4: RangeSet::of(vec![(first, first | ones)]), v6: RangeSet::default() }
            }
            IpAddr::V6(first) => {
                let ones = u128::MAX.checked_shr(prefix.length.into()).unwrap_or(0);
                let first = first.to_bits();
                Addresses { v4: RangeSet::default(), v6: RangeSet::of(vec![(first, first | ones)]) }
            }
        };
        let mut matches =
            Match { src: self.src.map(addresses), dst: self.dst.map(addresses), ..Match::default() };
        let fields = [
            (Field::Protocol, self.protocol.map(|protocol| u32::from(protocol.0))),
            (Field::SrcPort, self.src_port.map(u32::from)),
            (Field::DstPort, self.dst_port.map(u32::from)),
            (Field::VlanId, self.vlan.map(u32::from)),
        ];
        for (field, value) in fields {
            if let Some(value) = value {
                matches.set(field, RangeSet::single(value));
            }
        }
        matches
    }
}

impl fmt::Display for RuntimeMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address =
            |name: &str, prefix: Option<AddressPrefix>| prefix.map(|prefix| format!("{name} {prefix}"));
        let number = |name: &str, value: Option<u16>| value.map(|value| format!("{name} {value}"));
        let fields = [
            address("src", self.src),
            address("dst", self.dst),
            self.protocol.map(|protocol| format!("protocol {protocol}")),
            number("src_port", self.src_port),
            number("dst_port", self.dst_port),
            number("vlan", self.vlan),
        ];
        f.write_str(&fields.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use packet::build::FrameBuilder;
    use proptest::prelude::*;

    use super::*;
    use crate::Predicate;

    fn matches() -> impl Strategy<Value = RuntimeMatch> {
        let address = (0u8..3, 0u8..4, prop::sample::select(vec![8u8, 24, 32, 64, 128]));
        let prefix = |kind: (u8, u8, u8), is_v6: bool| {
            let (present, host, length) = kind;
            let length = if is_v6 { length.max(64) } else { length.min(32) };
            let text = match (is_v6, length) {
                (false, 8) => "192.0.0.0/8".to_owned(),
                (false, 24) => "192.0.2.0/24".to_owned(),
                (false, _) => format!("192.0.2.{host}"),
                (true, 64) => "2001:db8::/64".to_owned(),
                (true, _) => format!("2001:db8::{host}"),
            };
            (present > 0).then(|| text.parse().expect(&text))
        };
        let flags = (0u8..3, 0u8..3, 0u8..3, 0u8..3);
        (any::<bool>(), address.clone(), address, flags).prop_map(move |(is_v6, src, dst, flags)| {
            let port = |flag: u8| (flag > 0).then_some(1000 + u16::from(flag));
            RuntimeMatch {
                src: prefix(src, is_v6),
                dst: prefix(dst, is_v6),
                protocol: [None, Some(ProtocolNumber(6)), Some(ProtocolNumber(17))][usize::from(flags.0)],
                src_port: port(flags.1),
                dst_port: port(flags.2),
                vlan: (flags.3 > 0).then_some(u16::from(flags.3)),
            }
        })
    }

    fn frames() -> impl Strategy<Value = Vec<u8>> {
        (any::<bool>(), any::<bool>(), 0u8..4, 0u8..4, 1000u16..1003, 1000u16..1003, 0u16..3).prop_map(
            |(is_v6, is_tcp, src, dst, src_port, dst_port, vlan)| {
                let frame = FrameBuilder::new();
                let frame = if vlan > 0 { frame.vlan(EtherType::VLAN, vlan) } else { frame };
                let frame = if is_v6 {
                    let address = |host: u8| format!("2001:db8::{host}").parse().expect("an address");
                    frame.ipv6(address(src), address(dst))
                } else {
                    frame.ipv4([192, 0, 2, src].into(), [192, 0, 2, dst].into())
                };
                let frame =
                    if is_tcp { frame.tcp(src_port, dst_port, 0x10) } else { frame.udp(src_port, dst_port) };
                frame.build()
            },
        )
    }

    proptest! {
        #[test]
        fn a_key_matches_as_the_language_does(rule in matches(), frame in frames()) {
            let Ok(fields) = rule.fields() else { return Ok(()) };
            let key = rule.key().expect("it has fields");
            let packet = FlowKey::of(&frame);
            let found = RuntimeForm::of(fields).key(&RuntimeHeader::of(&packet)) == Some(key);
            prop_assert_eq!(found, Predicate::of(&rule.to_match()).matches(&packet), "{}", rule);
        }

        #[test]
        fn keys_of_a_packet_have_a_common_part(one in matches(), other in matches(), frame in frames()) {
            let (Ok(fields), Ok(others)) = (one.fields(), other.fields()) else { return Ok(()) };
            let (form, another) = (RuntimeForm::of(fields), RuntimeForm::of(others));
            let part = |rule: &RuntimeMatch| form.common_part(&another, &rule.key().expect("it has fields"));
            let packet = FlowKey::of(&frame);
            let has_both =
                [one, other].iter().all(|rule| Predicate::of(&rule.to_match()).matches(&packet));
            let parts = (part(&one), part(&other));
            prop_assert!(!has_both || (parts.0.is_some() && parts.0 == parts.1), "{} {}", one, other);
        }

        #[test]
        fn a_match_survives_json(rule in matches()) {
            let text = serde_json::to_string(&rule).expect("it is plain data");
            prop_assert_eq!(serde_json::from_str::<RuntimeMatch>(&text).expect(&text), rule);
        }
    }

    /// Sources that made the products of an earlier hash zero: 1000 of each kind had the hash 0.
    #[test]
    fn chosen_sources_have_different_hashes() {
        let families: [fn(u128) -> u128; 3] = [
            |number| 0x2001_0db8 << 96 | number << 64 | 0x6659_fd93_d6e8_feb8,
            |number| 0x9e37_79b9_7f4a_7c15 << 64 | number,
            |number| 0x2001_0db8 << 96 | number,
        ];
        for (family, source) in families.into_iter().enumerate() {
            let secret = RuntimeSecret::random();
            let mut chains = std::collections::HashMap::new();
            for number in 0..1000 {
                let src = AddressPrefix { address: IpAddr::V6(source(number).into()), length: 128 };
                let key = RuntimeMatch { src: Some(src), ..RuntimeMatch::default() }.key().expect("a field");
                *chains.entry(key.hash(&secret) as u32 & 0x7ff).or_insert(0) += 1;
            }
            let longest = chains.values().max().copied();
            assert!(longest < Some(16), "family {family}: {longest:?} of 1000 keys in one of 2048 buckets");
        }
    }

    #[test]
    fn prefixes_have_no_host_bits() {
        for text in ["192.0.2.0/24", "192.0.2.1", "2001:db8::/32", "::/1", "10.0.0.0/8"] {
            assert_eq!(text.parse::<AddressPrefix>().expect(text).to_string(), text);
        }
        for text in ["192.0.2.1/24", "10.0.0.0/0", "1.2.3.4/33", "", "::1/64", "192.0.2.0/-1", "a/8"] {
            assert!(text.parse::<AddressPrefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn actions_keep_their_numbers() {
        let action = |text: &str| {
            Some(RuntimeAction {
                text: text.to_owned(),
                verdict: Verdict::Drop,
                sinks: Vec::new(),
                by_workers: Vec::new(),
            })
        };
        let rules = |actions: &[&str]| RuntimeRules {
            before: RuleId(0),
            forms: Vec::new(),
            actions: actions.iter().map(|text| action(text)).collect(),
            subject: Vec::new(),
            rules_max: 1,
            device_rules_max: 0,
        };
        let old = rules(&["drop", "kernel", "steer a"]);
        let mut new = rules(&["steer b", "kernel"]);
        new.keep_numbers(&old);
        assert_eq!(new.action("kernel"), old.action("kernel"));
        assert_eq!(new.action("steer b"), Some(3), "the numbers of the program before are not taken");
        let mut third = rules(&["drop", "steer b"]);
        third.keep_numbers(&new);
        assert_eq!((third.action("steer b"), third.action("drop")), (Some(3), Some(0)));
    }
}

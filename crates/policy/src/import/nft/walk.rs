//! The walk through the base chains and the chains that they call, as the kernel does it for all packets at
//! once.
//!
//! Rules of the policy are written in the order of the walk, and the first that matches decides. So packets
//! that a rule does not decide need nothing: they meet what is written next. Only packets that skip rules
//! (`return` under a condition, `accept` before further base chains) are decided at once: what they meet
//! instead is written there, for them alone.

mod bases;

use serde_json::{Map, Value};

use super::super::{Imported, WrongFormat, quoted};
use super::NftOptions;
use super::condition::{Condition, Context, Doubt, Packets, alternatives};
use super::connection::{PacketClass, PacketClasses, Tracking};
use super::ruleset::{Base, Chain, Hook, Name, Rule, Ruleset, Sets, TEXT, statements};
use super::text::rule_text;
use super::writer::{DROP, KERNEL, Writer};
use bases::TRANSLATIONS;

/// Chains that call each other deeper than this; the kernel's limit.
const MAX_DEPTH: usize = 16;
/// Rules that inlining may add. Chains can call each other so that there is no end in sight.
const MAX_INLINED: usize = 1 << 14;
/// Statements within each other that are followed, for packets that skip rules. It bounds the stack.
const MAX_NESTED: usize = 64;
/// The priority in the hook prerouting of connection tracking.
const TRACKING: i64 = -200;
/// The priority at which fragments are put together for it.
const DEFRAGMENTATION: i64 = -400;
/// The priority at which destinations are translated, of all packets of a connection.
const DESTINATION_TRANSLATION: i64 = -100;
/// Statements that neither end a rule nor change what later rules match.
const WITHOUT_VERDICT: [&str; 14] = [
    "counter",
    "comment",
    "log",
    "continue",
    "notrack",
    "flow",
    "dup",
    "last",
    "secmark",
    "ct helper",
    "ct timeout",
    "ct expectation",
    "set",
    "map",
];
/// Statements that let a rule match only some of its packets.
const CONDITIONS: [&str; 4] = ["limit", "quota", "ct count", "meter"];
/// The result of a part of the walk for the packets that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A part of the packets may meet the next rule.
    Next,
    /// All leave the chain.
    EndOfChain,
    /// None is left.
    Decided,
}

/// A place in the walk: a chain, and where packets go that leave it.
#[derive(Clone, Copy)]
struct At<'p, 'v> {
    chain: Name<'v>,
    /// `None`: a base chain.
    after: Option<&'p Rest<'p, 'v>>,
    depth: usize,
}

/// A rule, and those behind it.
struct Rest<'p, 'v> {
    at: At<'p, 'v>,
    rules: &'p [Rule<'v>],
    /// The name of the rule in the policy, and in messages.
    name: String,
    place: String,
}

/// A chain that a rule calls.
struct Called<'c, 'v> {
    name: Name<'v>,
    chain: &'c Chain<'v>,
    is_goto: bool,
}

/// A place that may accept all packets of a base chain but those of some classes.
#[derive(Clone)]
struct Missing {
    place: String,
    excluded: PacketClasses,
}

/// The base chain that is converted.
#[derive(Clone, Default)]
struct Current {
    /// The place in the order.
    index: usize,
    /// All packets that meet it.
    entry: Condition,
    doubts: u32,
    drops: bool,
    is_reassembled: bool,
    tracking: Tracking,
    is_nat: bool,
    /// A rule that may accept any packet of it, but for some classes.
    missing: Option<Missing>,
    /// Whether its rules have decided all packets.
    is_over: bool,
}

pub(super) struct Walk<'r, 'v> {
    ruleset: &'r Ruleset<'v>,
    options: &'r NftOptions,
    order: Vec<(Base, Name<'v>)>,
    /// Whether a chain or a later one may drop packets.
    drops_from: Vec<bool>,
    /// A forward chain that accepts packets: those to other hosts must not be dropped by chains of hook
    /// input.
    forwards: Option<String>,
    /// A chain that translates addresses: packets of its connections have other destinations from
    /// [`DESTINATION_TRANSLATION`] on, and may be forwarded although they are to the host.
    translates: Option<String>,
    tracking: Tracking,
    writer: Writer,
    sets: Sets<'v>,
    current: Current,
    /// A rule that may let any packet pass all chains.
    sealed: Option<String>,
    is_full: bool,
    /// How deep the walk is within what is written for packets that skip rules.
    inlined: usize,
    /// Statements within each other that the walk is in.
    nested: usize,
    /// Rules and pairs that may still be looked at.
    left: usize,
}

impl<'r, 'v> Walk<'r, 'v> {
    pub(super) fn new(ruleset: &'r Ruleset<'v>, options: &'r NftOptions) -> Result<Self, WrongFormat> {
        let mut walk = Self {
            ruleset,
            options,
            order: Vec::new(),
            drops_from: Vec::new(),
            forwards: None,
            translates: None,
            tracking: Tracking::of(ruleset, options.is_syn_new),
            writer: Writer::default(),
            sets: Sets::default(),
            current: Current::default(),
            sealed: None,
            is_full: false,
            inlined: 0,
            nested: 0,
            left: ruleset.rules + MAX_INLINED,
        };
        walk.choose_bases()?;
        Ok(walk)
    }

    pub(super) fn base_chains(&mut self) {
        if self.options.interface.is_some() && !self.order.is_empty() {
            self.writer.leave_tagged();
        }
        let all = Packets::of(Condition::default());
        self.run(0, &all);
    }

    pub(super) fn finish(self) -> Imported {
        self.writer.finish(&self.sets, self.options.is_syn_new)
    }

    /// The base chains from this one on, for some packets.
    fn run(&mut self, first: usize, packets: &Packets) {
        for index in first..self.order.len() {
            if self.is_full {
                return;
            }
            self.base(index, packets);
        }
    }

    fn base(&mut self, index: usize, packets: &Packets) {
        let (base, name) = self.order[index].clone();
        let Some(packets) = Condition::of_family(name.0).ok().and_then(|family| packets.and(&family)) else {
            return;
        };
        if base.hook != Hook::Input || self.options.addresses.is_empty() {
            return self.base_for(index, &base, name, &packets);
        }
        for own in Condition::to_any_of(&self.options.addresses) {
            if let Some(packets) = packets.and(&own) {
                self.base_for(index, &base, name, &packets);
            }
        }
    }

    /// A base chain for packets that meet it.
    fn base_for(&mut self, index: usize, base: &Base, name: Name<'v>, packets: &Packets) {
        let is_input = base.hook == Hook::Input;
        let is_after = |priority| is_input || (base.hook == Hook::Prerouting && base.priority > priority);
        let current = Current {
            index,
            entry: packets.upper.clone(),
            doubts: packets.doubts,
            drops: base.drops,
            is_reassembled: is_after(DEFRAGMENTATION),
            tracking: self.tracking.in_chain(is_after(TRACKING)),
            is_nat: base.is_nat,
            missing: self.missing_before(base),
            is_over: false,
        };
        let outer = std::mem::replace(&mut self.current, current);
        self.sets.enter(self.ruleset, name);
        let at = At { chain: name, after: None, depth: 0 };
        let ruleset = self.ruleset;
        let rules = ruleset.chains.get(&name).map_or(&[][..], |chain| &chain.rules);
        let outcome = self.rules(at, rules, packets);
        if outcome != Outcome::Decided && !self.current.is_over && base.drops {
            let place = format!("the policy of chain {}", shown(name));
            let rule = if self.order.len() == 1 { "policy".to_owned() } else { format!("policy-{}", name.2) };
            self.drop(&rule, &place, packets);
        }
        self.current = outer;
        if let Some((_, name)) = self.order.get(self.current.index) {
            let name = *name;
            self.sets.enter(self.ruleset, name);
        }
    }

    /// The reason why packets may not meet a base chain, or meet it with another destination.
    fn missing_before(&self, base: &Base) -> Option<Missing> {
        if base.hook == Hook::Input && self.is_all_forwarded() {
            return Some(Missing { place: self.forwards.clone()?, excluded: PacketClasses::default() });
        }
        let (is_behind_flows, is_translated) = match base.hook {
            Hook::Ingress => (self.ruleset.flow_table.is_none_or(|first| first <= base.priority), false),
            Hook::Prerouting => (true, base.priority >= DESTINATION_TRANSLATION),
            _ => (true, true),
        };
        let flow_table =
            (self.tracking.has_flow_table() && is_behind_flows).then(|| "a flow table".to_owned());
        let place = flow_table.or_else(|| self.translates.clone().filter(|_| is_translated))?;
        Some(Missing { place, excluded: self.tracking.unconnected() })
    }

    /// Takes note of a place that may accept all packets of the base chain but those of some classes.
    fn may_accept_all(&mut self, place: &str, excluded: PacketClasses) {
        let before = self.current.missing.as_ref().map(|missing| missing.excluded);
        let both = before.map_or(excluded, |before| before.and(excluded));
        if before != Some(both) {
            self.current.missing = Some(Missing { place: place.to_owned(), excluded: both });
        }
    }

    /// The rules of a chain, or its rest.
    fn rules(&mut self, at: At<'_, 'v>, rules: &[Rule<'v>], packets: &Packets) -> Outcome {
        for (index, rule) in rules.iter().enumerate() {
            if self.current.is_over {
                return Outcome::Decided;
            }
            if self.stops() {
                return Outcome::Next;
            }
            let rest = Rest {
                at,
                rules: rules.get(index + 1..).unwrap_or_default(),
                name: format!("{}-{}", at.chain.2, handle(rule)),
                place: format!("rule {} of {} (`{}`)", handle(rule), shown(at.chain), rule_text(rule)),
            };
            let list: Vec<(&'v str, &'v Value)> = statements(rule).collect();
            match self.statements(&rest, &list, packets.clone(), packets) {
                Outcome::Next => {}
                other => return other,
            }
        }
        Outcome::Next
    }

    /// Counts a rule or a pair, unless there were too many. What is written for some packets alone also ends
    /// where no rule may drop them any more.
    fn stops(&mut self) -> bool {
        if self.inlined > 0 && (self.is_all_missing() || self.sealed.is_some()) {
            return true;
        }
        if !self.writer.is_full() && self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.writer.note("from here on rules are left out: there are too many".to_owned());
        self.is_full = true;
        true
    }

    /// The rest of a rule, for packets that its statements so far match; `outer`: those that meet the rule.
    fn statements(
        &mut self,
        rest: &Rest<'_, 'v>,
        list: &[(&'v str, &'v Value)],
        packets: Packets,
        outer: &Packets,
    ) -> Outcome {
        if self.nested == MAX_NESTED {
            self.leave(rest, &packets, "too many rules skip others");
            return decided_if(is_all(&packets, outer));
        }
        self.nested += 1;
        let outcome = self.each_statement(rest, list, packets, outer);
        self.nested -= 1;
        outcome
    }

    fn each_statement(
        &mut self,
        rest: &Rest<'_, 'v>,
        list: &[(&'v str, &'v Value)],
        mut packets: Packets,
        outer: &Packets,
    ) -> Outcome {
        for (index, (kind, body)) in list.iter().enumerate() {
            let following = list.get(index + 1..).unwrap_or_default();
            match *kind {
                TEXT => return self.leave(rest, &packets, "a statement that nft prints as text"),
                "match" => {
                    if let Some(elements) = alternatives(body, &self.sets) {
                        for element in elements {
                            if self.stops() {
                                return Outcome::Next;
                            }
                            let mut one = packets.clone();
                            if self.compare(&mut one, &body["left"], element) {
                                self.statements(rest, following, one, outer);
                            }
                        }
                        return Outcome::Next;
                    }
                    let context = context(&self.sets, self.options, &self.current);
                    if !packets.add(body, &context) {
                        if !Packets::of(Condition::default()).add(body, &context) && !is_on_interface(body) {
                            let reason = Doubt::Other("it matches nothing".to_owned());
                            self.writer.differs(&rest.place, "is left out", &reason);
                        }
                        return Outcome::Next;
                    }
                }
                "vmap" => return self.map(rest, body, following, &packets, outer),
                "mangle" if is_on_packet(body) => {
                    return self.leave(rest, &packets, "it changes packets");
                }
                "set" | "map" if body.get("stmt").is_some() => packets.doubt(Doubt::Other(
                    "packets beyond a limit meet the next rule, which the `limit` of a policy drops"
                        .to_owned(),
                )),
                kind if CONDITIONS.contains(&kind) => packets.doubt(Doubt::Other(format!(
                    "packets beyond the `{kind}` meet the next rule, and a policy would drop them"
                ))),
                "xt" if body.get("type").and_then(Value::as_str) == Some("match") => {
                    packets.doubt(Doubt::Other("`xt` is not supported".to_owned()));
                }
                "mangle" => {}
                kind if WITHOUT_VERDICT.contains(&kind) => {}
                kind => return self.verdict(rest, kind, body, &packets, outer),
            }
        }
        Outcome::Next
    }

    fn compare(&self, packets: &mut Packets, left: &Value, right: &Value) -> bool {
        packets.compare("==", left, right, &context(&self.sets, self.options, &self.current))
    }

    /// A verdict map. Its values do not overlap, so each pair is a rule of its own.
    fn map(
        &mut self,
        rest: &Rest<'_, 'v>,
        map: &'v Value,
        following: &[(&'v str, &'v Value)],
        packets: &Packets,
        outer: &Packets,
    ) -> Outcome {
        let data = &map["data"];
        let pairs: Vec<&'v Value> = match data.as_str() {
            Some(named) => match self.sets.elements(named.trim_start_matches('@')) {
                Some(pairs) => pairs,
                None => return self.leave(rest, packets, "its map is not listed"),
            },
            None => data.pointer("/set").and_then(Value::as_array).into_iter().flatten().collect(),
        };
        let changes = self.sets.expiring(data).is_some();
        let (others, rest_of_keys): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|pair| pair[0] != "*");
        let is_final = |pair: &&Value| pair.pointer("/1/accept").or(pair.pointer("/1/drop")).is_some();
        let is_exact = others.iter().all(is_final);
        let mut doubts = packets.doubts;
        for pair in others.into_iter().chain(rest_of_keys) {
            if self.stops() {
                return Outcome::Next;
            }
            let Some((kind, body)) =
                pair.get(1).and_then(Value::as_object).and_then(|verdict| verdict.iter().next())
            else {
                continue;
            };
            let mut one = packets.clone();
            if changes {
                one.doubt(Doubt::Other("its map changes while nft runs".to_owned()));
            }
            if pair[0] != "*" {
                if !self.compare(&mut one, &map["key"], &pair[0]) {
                    continue;
                }
                doubts = doubts.max(one.doubts);
            } else if !is_exact || doubts > packets.doubts {
                one.doubt(Doubt::Other(
                    "the other values of its map may go on with the next rule".to_owned(),
                ));
            }
            let outcome = match kind.as_str() {
                "continue" => self.statements(rest, following, one, outer),
                kind => self.verdict(rest, kind, body, &one, outer),
            };
            if outcome != Outcome::Next {
                return outcome;
            }
        }
        Outcome::Next
    }

    fn verdict(
        &mut self,
        rest: &Rest<'_, 'v>,
        kind: &str,
        body: &'v Value,
        packets: &Packets,
        outer: &Packets,
    ) -> Outcome {
        let at = rest.at;
        let is_all = is_all(packets, outer);
        let (name, place) = (&*rest.name, &*rest.place);
        let is_own_doubt = packets.doubts != outer.doubts;
        match kind {
            "accept" => self.accept(name, place, packets, is_own_doubt),
            "drop" if self.current.is_nat => {}
            "drop" if packets.lower.is_none() && !is_own_doubt => return Outcome::Next,
            "drop" => self.drop(name, place, packets),
            "reject" => {
                let reason = Doubt::Other("`reject` answers packets, which the policy cannot".to_owned());
                self.writer.differs(place, "is left out", &reason);
                return Outcome::Next;
            }
            "return" if is_all => return Outcome::EndOfChain,
            "return" => {
                self.note_doubt(place, packets, is_own_doubt);
                let is_dropped = at.after.is_none() && self.current.drops;
                if packets.upper == self.current.entry && !is_dropped {
                    self.may_accept_all(place, packets.excluded);
                    return Outcome::Next;
                }
                self.decide_at_once(|walk| walk.leave_chain(&at, packets));
                return Outcome::Next;
            }
            "jump" | "goto" => {
                let target = body.get("target").and_then(Value::as_str).unwrap_or_default();
                let ruleset = self.ruleset;
                let chain =
                    ruleset.chains.get(&(at.chain.0, at.chain.1, target)).filter(|chain| chain.is_listed);
                let Some(chain) = chain else {
                    return self.leave(rest, packets, &format!("the chain {} is not listed", quoted(target)));
                };
                if at.depth == MAX_DEPTH {
                    return self.leave(rest, packets, "chains call each other too deep");
                }
                self.note_doubt(place, packets, is_own_doubt);
                let called =
                    Called { name: (at.chain.0, at.chain.1, target), chain, is_goto: kind == "goto" };
                return self.call(rest, &called, packets, is_all);
            }
            kind if TRANSLATIONS.contains(&kind) => {
                return self.leave(rest, packets, "later chains see other addresses or ports");
            }
            "snat" | "masquerade" => {}
            other => {
                return self.leave(rest, packets, &format!("`{}` is not supported", quoted(other)));
            }
        }
        decided_if(is_all)
    }

    /// A chain that another one calls.
    fn call(
        &mut self,
        rest: &Rest<'_, 'v>,
        called: &Called<'_, 'v>,
        packets: &Packets,
        is_all: bool,
    ) -> Outcome {
        let is_goto = called.is_goto;
        let after = if is_goto { rest.at.after } else { Some(rest) };
        let at = At { chain: called.name, after, depth: rest.at.depth + 1 };
        let outcome = self.rules(at, &called.chain.rules, packets);
        match outcome {
            Outcome::Decided if is_all => Outcome::Decided,
            Outcome::Decided => Outcome::Next,
            _ if !is_goto => Outcome::Next,
            _ if is_all => Outcome::EndOfChain,
            _ if rest.rules.is_empty() => Outcome::Next,
            _ if packets.upper == self.current.entry => {
                self.may_accept_all(&rest.place, packets.excluded);
                Outcome::Next
            }
            _ => {
                let at = rest.at;
                self.decide_at_once(|walk| walk.leave_chain(&at, packets));
                Outcome::Next
            }
        }
    }

    /// Writes what packets that skip rules meet instead.
    fn decide_at_once(&mut self, write: impl FnOnce(&mut Self)) {
        let (missing, is_over) = (self.current.missing.take(), std::mem::take(&mut self.current.is_over));
        let sealed = self.sealed.take();
        self.current.missing.clone_from(&missing);
        self.sealed.clone_from(&sealed);
        self.inlined += 1;
        write(self);
        self.inlined -= 1;
        (self.current.missing, self.current.is_over, self.sealed) = (missing, is_over, sealed);
    }

    /// Packets that leave a chain, as if it ended here, and are decided then.
    fn leave_chain(&mut self, at: &At<'_, 'v>, packets: &Packets) {
        if let Some(rest) = at.after {
            match self.rules(rest.at, rest.rules, packets) {
                Outcome::Decided => {}
                _ => self.leave_chain(&rest.at, packets),
            }
            return;
        }
        let name = format!("{}-end", at.chain.2);
        let place = format!("the end of chain {}", shown(at.chain));
        match self.current.drops && !self.may_not_drop() {
            true => self.drop(&name, &place, packets),
            false => self.continue_after(&name, &place, packets),
        }
    }

    /// Returns whether a place may accept all packets of the base chain.
    fn is_all_missing(&self) -> bool {
        self.current.missing.as_ref().is_some_and(|missing| missing.excluded.is_empty())
    }

    fn may_not_drop(&self) -> bool {
        self.is_all_missing() || self.sealed.is_some() || self.is_full
    }

    /// Packets that a base chain accepts: the further ones decide.
    fn accept(&mut self, name: &str, place: &str, packets: &Packets, is_own_doubt: bool) {
        let is_whole_chain = packets.upper == self.current.entry;
        if is_own_doubt && let Some(doubt) = &packets.doubt {
            self.writer.differs(place, "may accept fewer packets, all of which stay with the kernel", doubt);
        }
        if is_whole_chain && packets.doubts != self.current.doubts {
            return self.may_accept_all(place, packets.excluded);
        }
        if is_whole_chain && self.inlined == 0 {
            if !self.drops_after() {
                self.keep(name, place, packets);
            }
            self.current.is_over = true;
            return;
        }
        self.continue_after(name, place, packets);
    }

    /// Whether a base chain behind the current one may drop packets.
    fn drops_after(&self) -> bool {
        self.drops_from.get(self.current.index + 1).copied().unwrap_or(false)
    }

    /// The further base chains decide about these packets; then they stay with the kernel.
    fn continue_after(&mut self, name: &str, place: &str, packets: &Packets) {
        if self.drops_after() && !self.may_not_drop_for(packets) && self.nested < MAX_NESTED {
            let next = self.current.index + 1;
            self.decide_at_once(|walk| walk.run(next, packets));
        }
        self.keep(name, place, packets);
    }

    /// Whether a rule may let all of these packets pass.
    fn may_not_drop_for(&self, packets: &Packets) -> bool {
        self.sealed.is_some() || self.is_full || packets.lower.is_none()
    }

    /// A rule whose packets stay with the kernel, whatever later rules of the rule set are.
    fn leave(&mut self, rest: &Rest<'_, 'v>, packets: &Packets, reason: &str) -> Outcome {
        let reason = Doubt::Other(reason.to_owned());
        self.writer.differs(&rest.place, "leaves its packets to the kernel", &reason);
        let mut packets = packets.clone();
        // Its verdict on the first packet of a connection is that on all.
        if self.current.is_nat {
            packets.upper = packets.upper.of_connections();
        }
        if packets.upper == self.current.entry {
            self.sealed.get_or_insert_with(|| rest.place.clone());
        } else {
            self.keep(&rest.name, &rest.place, &packets);
        }
        Outcome::Next
    }

    /// Writes a rule that leaves packets to the kernel.
    fn keep(&mut self, name: &str, place: &str, packets: &Packets) {
        let parts = match packets.excluded.contains(PacketClass::Request) {
            true => packets.upper.without_requests(),
            false => vec![packets.upper.clone()],
        };
        for condition in parts {
            if let Err(reason) = self.writer.push(name, &condition, KERNEL, &self.sets, None) {
                self.writer.differs(place, "is left out", &Doubt::Other(reason));
                self.sealed.get_or_insert_with(|| place.to_owned());
            }
        }
    }

    /// Writes a rule that drops the packets that the rule set drops for certain.
    fn drop(&mut self, name: &str, place: &str, packets: &Packets) {
        let doubt = packets.doubt.clone().unwrap_or(Doubt::Other("it does not always match".to_owned()));
        let Some(lower) = &packets.lower else {
            return self.writer.differs(place, "is left out", &doubt);
        };
        if !lower.expiring.is_empty() {
            let sets: Vec<&str> = lower.expiring.iter().map(String::as_str).collect();
            self.writer.note(format!(
                "{place} drops the elements that {} has now: they expire in nft, but not in the policy (hint: import again)",
                quoted(&sets.join(", "))
            ));
        } else if *lower != packets.upper {
            self.writer.differs(place, "drops fewer packets", &doubt);
        }
        let full = self.is_full.then_some("a rule beyond the limit");
        let mut missing = self.sealed.as_deref().or(full);
        let mut in_force = None;
        if let (None, Some(other)) = (missing, &self.current.missing) {
            in_force = lower.only(other.excluded);
            missing = in_force.is_none().then_some(&*other.place);
            if in_force.as_ref().is_some_and(|in_force| in_force != lower) {
                self.writer.drops_requests(place, &other.place);
            }
        }
        if missing.is_some() && self.inlined > 0 {
            return;
        }
        let dropped = in_force.as_ref().unwrap_or(lower);
        if let Err(reason) = self.writer.push(name, dropped, DROP, &self.sets, missing) {
            self.writer.differs(place, "is left out", &Doubt::Other(reason));
        }
    }

    /// Notes that it is not known which packets a call or a return is for.
    fn note_doubt(&mut self, place: &str, packets: &Packets, is_own_doubt: bool) {
        if is_own_doubt && let Some(doubt) = &packets.doubt {
            self.writer.differs(place, "may be for fewer packets: what is accepted there stays with the kernel, what is dropped is left out", doubt);
        }
    }
}

fn context<'c, 'v>(sets: &'c Sets<'v>, options: &'c NftOptions, current: &Current) -> Context<'c, 'v> {
    Context {
        sets,
        interface: options.interface.as_deref(),
        is_reassembled: current.is_reassembled,
        tracking: current.tracking,
        addresses: &options.addresses,
    }
}

/// Whether these are all packets that meet a rule.
fn is_all(packets: &Packets, outer: &Packets) -> bool {
    packets.upper == outer.upper && packets.doubts == outer.doubts
}

fn decided_if(is_all: bool) -> Outcome {
    if is_all { Outcome::Decided } else { Outcome::Next }
}

fn is_on_interface(body: &Value) -> bool {
    let key = body.pointer("/left/meta/key").and_then(Value::as_str);
    matches!(key, Some("iif" | "iifname"))
}

/// Whether a statement that sets something sets a part of the packet.
fn is_on_packet(mangle: &Value) -> bool {
    mangle.pointer("/key/payload").is_some()
}

fn handle(rule: &Map<String, Value>) -> u64 {
    rule.get("handle").and_then(Value::as_u64).unwrap_or(0)
}

fn shown(name: Name<'_>) -> String {
    quoted(&format!("{} {} {}", name.0, name.1, name.2))
}

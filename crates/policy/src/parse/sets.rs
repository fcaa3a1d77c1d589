//! `[sets]`: named lists, inline or from files, and the lists of values in matches that may name them. A set
//! has no type: its items are parsed as the kind of value of the key that names the set, or are names of
//! other sets.

mod items;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::diagnostics::{Place, Severity};
use crate::hint::ProblemHint;
use crate::keys;
use crate::policy::{MAX_SET_VALUES, MAX_TOTAL_VALUES, SetSize};

use super::files::Files;
use super::reader::{Names, Reader, Table, Value, entries, integer_of, nearest};
use super::values::{Kind, Refused, hints, is_keyword};
use items::{Items, Limits, Written};

/// All sets of a policy.
pub(super) struct Sets {
    list: Vec<Set>,
    /// The indices by name.
    index: BTreeMap<String, usize>,
    names: Names,
    /// How many values all rules have read so far; `None` once there were too many.
    read: Option<usize>,
}

struct Set {
    name: String,
    place: Place,
    items: Items,
    /// `None`: the items could not be read.
    limits: Option<Limits>,
    used: bool,
    /// Kinds of values for which the set's items were refused already: that is reported once, not per use.
    reported: Vec<&'static str>,
}

/// The values of a key before they are combined into a set.
pub(super) struct Parts<T> {
    /// `None`: all values, because the key has exclusions only.
    pub(super) included: Option<Vec<T>>,
    pub(super) excluded: Vec<T>,
}

impl Sets {
    pub(super) fn new() -> Self {
        Self { list: Vec::new(), index: BTreeMap::new(), names: Names::default(), read: Some(0) }
    }

    /// Reads the `[sets]` of one file.
    pub(super) fn read(&mut self, reader: &mut Reader, value: &Value<'_>, files: &mut Files<'_>) {
        let Some(table) = reader.table(value, "`sets`") else { return };
        for (key, value) in entries(table) {
            let name: &str = key.get_ref();
            let place = reader.place(key.span());
            if !reader.is_valid_name(name, key.span(), "the set") {
                continue;
            }
            if is_keyword(name) {
                let message = format!("a set cannot be called `{name}`");
                reader.error_with(key.span(), message, "this word is a value", "choose another name");
                continue;
            }
            if !self.names.is_new(reader, name, key.span(), "set") {
                continue;
            }
            let (items, limits) = match items::read(reader, value, files) {
                Some(Written { items, limits }) => (items, Some(limits)),
                None => (Items::Inline(Arc::clone(&reader.source), Vec::new()), None),
            };
            self.index.insert(name.to_owned(), self.list.len());
            let name = name.to_owned();
            self.list.push(Set { name, place, items, limits, used: false, reported: Vec::new() });
        }
    }

    /// Reports sets with fewer values than they must have. A list that another program writes may be empty or
    /// truncated by mistake, and the policy would be loaded without its values.
    pub(super) fn refuse_too_small(&self, reader: &mut Reader) {
        for (index, set) in self.list.iter().enumerate() {
            let Some(limits) = &set.limits else { continue };
            let name = &set.name;
            if set.items.len() == 0 && !limits.allow_empty {
                let message = format!("the set `{name}` {}", limits.what);
                let error = limits.place.error(message, "no values");
                reader.push(error.hint(match set.items {
                    Items::File(..) => "fill the file, or write allow_empty = true if it may be empty",
                    Items::Inline(..) => "write { items = [], allow_empty = true } if it may be empty",
                }));
            } else if let Some((least, place)) = &limits.least {
                let count = self.count(index);
                if count < *least {
                    let values = if count == 1 { "value" } else { "values" };
                    let message =
                        format!("the set `{name}` has {count} {values}, fewer than min_items = {least}");
                    let error = place.error(message, "the required number");
                    reader.push(error.hint("write the missing values, or a lower min_items"));
                }
            }
        }
    }

    /// The sets whose size a reload may change only so much.
    pub(super) fn sizes(&self) -> Vec<SetSize> {
        let size = |(index, set): (usize, &Set)| {
            let max_change_percent = set.limits.as_ref()?.max_change?;
            Some(SetSize { name: set.name.clone(), values: self.count(index), max_change_percent })
        };
        self.list.iter().enumerate().filter_map(size).collect()
    }

    /// How many values a set has, including those of the sets that it names; each set counts once.
    fn count(&self, set: usize) -> usize {
        let mut count = 0;
        let mut seen = BTreeSet::from([set]);
        let mut open = vec![set];
        while let Some(set) = open.pop().and_then(|set| self.list.get(set)) {
            for item in 0..set.items.len() {
                match self.named_by(set, item) {
                    None => count += 1,
                    Some(other) if seen.insert(other) => open.push(other),
                    Some(_) => {}
                }
            }
        }
        count
    }

    /// Warns of sets that nothing names, and of empty ones that something does.
    pub(super) fn warn(&self, reader: &mut Reader) {
        for set in &self.list {
            let name = &set.name;
            if !set.used {
                let warning = set.place.warning(format!("the set `{name}` is never used"), "defined here");
                reader.push(warning.hint("remove it, or name it in a match"));
            } else if set.items.len() == 0 {
                let warning = set.place.warning(format!("the set `{name}` is empty"), "defined here");
                reader.push(warning.hint("no packet matches it, and excluding it excludes nothing"));
            }
        }
    }

    /// The values of a match key: one, a list, names of sets, each also as `{ not = ... }`.
    ///
    /// `None` if no value could be read, which was reported.
    pub(super) fn values<K: Kind>(
        &mut self,
        reader: &mut Reader,
        value: &Value<'_>,
        key: &str,
        kind: &K,
    ) -> Option<Parts<K::Value>> {
        // The limit was exceeded, which was reported.
        self.read?;
        let mut list = List { key, kind, tried: 0 };
        let (mut included, mut excluded) = (Vec::new(), Vec::new());
        let mut has_included = false;
        for item in list.items(reader, value)? {
            if let Some(table) = item.get_ref().as_table() {
                let not = negated(reader, item, table)?;
                for item in list.items(reader, not)? {
                    list.item(self, reader, item, &mut excluded)?;
                }
            } else {
                has_included = true;
                list.item(self, reader, item, &mut included)?;
            }
        }
        Some(Parts { included: has_included.then_some(included), excluded })
    }
}

/// The value of `{ not = ... }`.
fn negated<'v, 't>(reader: &mut Reader, item: &Value<'_>, table: &'v Table<'t>) -> Option<&'v Value<'t>> {
    reader.refuse_unknown_keys(table, keys::NOT, "a table in the place of a value");
    let not = table.get("not");
    if not.is_none() && table.is_empty() {
        reader.error_with(item.span(), "the table is empty", "no value", "write { not = VALUE }");
    }
    not
}

/// Reads the values of one key.
struct List<'k, K> {
    key: &'k str,
    kind: &'k K,
    /// How many values were parsed; refused ones count, because they take as long.
    tried: usize,
}

impl<K: Kind> List<'_, K> {
    /// The items of a list, or the single value.
    fn items<'v, 't>(&self, reader: &mut Reader, value: &'v Value<'t>) -> Option<&'v [Value<'t>]> {
        match value.get_ref().as_array() {
            Some(array) if array.is_empty() => {
                let message = format!("`{}` is an empty list", self.key);
                let hint = "leave the key out to match every packet";
                reader.error_with(value.span(), message, "matches no packet", hint);
                None
            }
            Some(array) => Some(&**array),
            None => Some(std::slice::from_ref(value)),
        }
    }

    /// Reads one literal or one set; `None` if a limit is exceeded.
    fn item(
        &mut self,
        sets: &mut Sets,
        reader: &mut Reader,
        value: &Value<'_>,
        values: &mut Vec<K::Value>,
    ) -> Option<()> {
        let tried = self.literal_or_set(sets, reader, value, values);
        self.tried += tried;
        sets.read = sets.read.map(|read| read + tried).filter(|read| *read <= MAX_TOTAL_VALUES);
        let (message, label) = if self.tried > MAX_SET_VALUES {
            (format!("`{}` has more than {MAX_SET_VALUES} values", self.key), "too many")
        } else if sets.read.is_none() {
            (format!("the rules have more than {MAX_TOTAL_VALUES} values in total"), "limit exceeded here")
        } else {
            return Some(());
        };
        reader.error(value.span(), message, label);
        None
    }

    fn literal_or_set(
        &self,
        sets: &mut Sets,
        reader: &mut Reader,
        value: &Value<'_>,
        values: &mut Vec<K::Value>,
    ) -> usize {
        let Some(text) = scalar(value) else {
            let key = self.key;
            if value.get_ref().as_table().is_some_and(|table| table.contains_key("not")) {
                let hint = "write the values to match without `not`";
                reader.error_with(value.span(), "`not` cannot contain `not`", "the inner one", hint);
                return 1;
            }
            reader.wrong_type(value, &format!("`{key}`"), "a string, a number or a list of them");
            return 1;
        };
        let text = text.trim();
        match self.kind.parse(text) {
            Ok(literal) => values.push(literal),
            // A variable that is unknown, which was reported.
            Err(_) if text.contains("${") => {}
            Err(refused) => match sets.index.get(text) {
                Some(set) => {
                    let named = reader.place(value.span());
                    return self.expand(sets, reader, *set, named, values);
                }
                None => {
                    let place = reader.place(value.span());
                    sets.refuse(reader, &place, text, self.kind, None, refused);
                }
            },
        }
        1
    }

    /// Reads the values of a set and of the sets that it names, each set once; returns how many were parsed.
    fn expand(
        &self,
        sets: &mut Sets,
        reader: &mut Reader,
        set: usize,
        named: Place,
        values: &mut Vec<K::Value>,
    ) -> usize {
        let mut tried = 0;
        let mut seen = BTreeSet::from([set]);
        let mut open = vec![(set, named)];
        while let Some((set, named)) = open.pop() {
            let (count, others) = sets.read_as(reader, set, &named, self.kind, values);
            tried += count.max(1);
            if self.tried + tried > MAX_SET_VALUES {
                break;
            }
            open.extend(others.into_iter().filter(|(other, _)| seen.insert(*other)));
        }
        tried
    }
}

impl Sets {
    /// Reads the items of one set as values of a kind; returns how many there are and the sets among them.
    ///
    /// `named` is where the set was named.
    fn read_as<K: Kind>(
        &mut self,
        reader: &mut Reader,
        set: usize,
        named: &Place,
        kind: &K,
        values: &mut Vec<K::Value>,
    ) -> (usize, Vec<(usize, Place)>) {
        let Some(this) = self.list.get_mut(set) else { return (0, Vec::new()) };
        this.used = true;
        let count = this.items.len();
        let is_news = !this.reported.contains(&kind.name());
        let this = &self.list[set];
        values.reserve(count);
        let mut others = Vec::new();
        let mut refused = Vec::new();
        for index in 0..count {
            match kind.parse(this.items.text(index)) {
                Ok(value) => values.push(value),
                Err(why) => match self.named_by(this, index) {
                    Some(other) => others.push((other, this.items.place(index))),
                    // A variable that is unknown, which was reported.
                    None if this.items.text(index).contains("${") => {}
                    None => refused.push((index, why)),
                },
            }
        }
        if refused.is_empty() || !is_news {
            return (count, others);
        }
        // Items with a hint of their own are of this kind, and written wrongly.
        if count > 1 && refused.len() == count && refused.iter().all(|(_, why)| why.0.is_none()) {
            // The set is of another kind and was named by mistake: the error points at the use, not at every
            // item.
            let message = format!("no item of the set `{}` is {}", this.name, kind.name());
            let hint = match this.items {
                Items::Inline(..) => {
                    format!("its first item is `{}`; {}", shortened(this.items.text(0)), kind.hint())
                }
                Items::File(..) => {
                    let place = this.items.place(0);
                    format!("its first value is in {}:{}; {}", place.file(), place.line(), kind.hint())
                }
            };
            let error = named.error(message, format!("expects {}", kind.name()));
            reader.push(error.hint(hint));
        } else {
            for (index, why) in refused {
                let place = this.items.place(index);
                self.refuse(reader, &place, this.items.text(index), kind, Some(this), why);
            }
        }
        self.list[set].reported.push(kind.name());
        (count, others)
    }

    /// The set that an item names; items of files are values only.
    fn named_by(&self, set: &Set, item: usize) -> Option<usize> {
        match set.items {
            Items::Inline(..) => self.index.get(set.items.text(item)).copied(),
            Items::File(..) => None,
        }
    }

    /// Reports an item of a match or a set that is neither a value nor a set.
    fn refuse<K: Kind>(
        &self,
        reader: &mut Reader,
        place: &Place,
        text: &str,
        kind: &K,
        within: Option<&Set>,
        refused: Refused,
    ) {
        let is_of_a_file = within.is_some_and(|set| matches!(set.items, Items::File(..)));
        let may_be_a_set = looks_like_a_name(text) && refused.0.is_none() && !is_of_a_file;
        let others = || {
            let others = self.list.iter().filter(|set| within.is_none_or(|within| within.name != set.name));
            others.map(|set| set.name.as_str())
        };
        if may_be_a_set && !reader.reports_unknown(text, others()) {
            return;
        }
        if is_of_a_file && !looks_like_an_address(text) {
            return reader.diagnostics.push_with(Severity::Error, || {
                let hint = match self.index.contains_key(text) {
                    true => {
                        "a file contains values only: define a third set that names the file's set and this one".into()
                    }
                    false => hints::of_any_kind(text, true).unwrap_or_else(|| kind.hint().into()),
                };
                let of_set = within.map(|set| format!(" of the set `{}`", set.name)).unwrap_or_default();
                place.error(format!("this line{of_set} is not {}", kind.name()), "this line").hint(hint)
            });
        }
        reader.diagnostics.push_with(Severity::Error, || {
            let near = nearest(text, others()).filter(|_| may_be_a_set);
            let of_set = within.map(|set| format!(" in the set `{}`", set.name)).unwrap_or_default();
            let shown = shortened(text);
            let message = match may_be_a_set {
                true => format!("`{shown}`{of_set} is neither {} nor a set", kind.name()),
                false => format!("`{shown}`{of_set} is not {}", kind.name()),
            };
            let hint = match (refused.0, near) {
                (Some(better), _) => better,
                (None, Some(near)) => {
                    ProblemHint::word(format!("did you mean the set `{near}`?"), text, near)
                }
                (None, None) => hints::of_any_kind(text, is_of_a_file)
                    .or_else(|| kind.hint_for(text))
                    .or_else(|| hints::several(text))
                    .unwrap_or_else(|| kind.hint().into()),
            };
            place.error(message, format!("not {}", kind.name())).hint(hint)
        });
    }
}

/// Sets that name one another in a cycle. Whoever reads a set reads each set that it names once, so a cycle
/// does no harm there.
impl Sets {
    /// Reports sets that name one another in a cycle.
    pub(super) fn refuse_cycles(&self, reader: &mut Reader) {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Open,
            Done,
        }
        let mut states = vec![State::New; self.list.len()];
        for start in 0..self.list.len() {
            // From `start` down to the set that is being looked at, each with its next item.
            let mut path = match states[start] {
                State::Done => Vec::new(),
                _ => vec![(start, 0)],
            };
            while let Some((set, next)) = path.last_mut() {
                let (set, item) = (*set, *next);
                *next += 1;
                states[set] = State::Open;
                if item == self.list[set].items.len() {
                    states[set] = State::Done;
                    path.pop();
                    continue;
                }
                match self.named_by(&self.list[set], item).map(|other| (other, states[other])) {
                    Some((other, State::New)) => path.push((other, 0)),
                    Some((other, State::Open)) => {
                        let cycle = path.iter().map(|(set, _)| *set).skip_while(|set| *set != other);
                        self.refuse_cycle(reader, &self.list[set].items.place(item), &cycle);
                    }
                    Some((_, State::Done)) | None => {}
                }
            }
        }
    }

    /// `cycle` leads from the set that is named at `place` to the one that names it there.
    fn refuse_cycle(
        &self,
        reader: &mut Reader,
        place: &Place,
        cycle: &(impl Iterator<Item = usize> + Clone),
    ) {
        /// How many names of a long cycle a message has.
        const SHOWN: usize = 8;
        reader.diagnostics.push_with(Severity::Error, || {
            let name = |set: usize| format!("`{}`", self.list[set].name);
            let mut names: Vec<String> = cycle.clone().take(SHOWN).map(name).collect();
            names.extend(cycle.clone().nth(SHOWN).map(|_| "...".to_owned()));
            names.extend(cycle.clone().next().map(name));
            let message = format!("sets contain one another: {}", names.join(" contains "));
            place.error(message, "closes the cycle").hint("remove one of these names")
        });
    }
}

/// Whether a line of a file is nearly an address. Other lines are not quoted in messages: the file may not be
/// a list at all, and the reader of the message may not be allowed to see it.
fn looks_like_an_address(text: &str) -> bool {
    match text.split_once('-') {
        Some((first, last)) => is_nearly_an_address(first.trim()) && is_nearly_an_address(last.trim()),
        None => is_nearly_an_address(text),
    }
}

fn is_nearly_an_address(text: &str) -> bool {
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    let octets = || address.split('.');
    let is_octet = |octet: &str| (1..=3).contains(&octet.len()) && octet.bytes().all(|b| b.is_ascii_digit());
    let is_address = address.parse::<IpAddr>().is_ok() || (octets().count() == 4 && octets().all(is_octet));
    is_address && length.len() <= 3 && length.bytes().all(|byte| byte.is_ascii_digit())
}

fn looks_like_a_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The text of a string, or of a number in decimal; the kind parses both.
fn scalar<'v>(value: &'v Value<'_>) -> Option<Cow<'v, str>> {
    match value.get_ref().as_str() {
        Some(text) => Some(Cow::Borrowed(text)),
        None => integer_of(value).map(|number| Cow::Owned(number.to_string())),
    }
}

/// An item for a message: truncated, without control characters.
pub(super) fn shortened(text: &str) -> String {
    const SHOWN: usize = 48;
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => text[..cut].chars().map(printable).chain("...".chars()).collect(),
        None => text.chars().map(printable).collect(),
    }
}

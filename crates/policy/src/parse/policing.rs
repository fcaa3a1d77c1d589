//! Reading `limit`, `burst` and `sample` of a rule: how many of its packets workers let through.

use program::{Policing, RateLimit};

use crate::policy::Action;

use super::reader::{Reader, Table, Value};
use super::sets::shortened;

/// The units of rates.
const UNITS: [(&str, u32); 3] = [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];

/// Reads the keys; `action` is that of the rule, if it is known.
pub(super) fn read(reader: &mut Reader, table: &Table<'_>, action: Option<Action>) -> Option<Policing> {
    for key in ["limit", "burst", "sample"] {
        if let (Some(value), Some(action)) = (table.get(key), action) {
            refuse_without_worker(reader, key, value, action)?;
        }
    }
    let sample = match table.get("sample") {
        Some(value) => reader.integer(value, "`sample`", 1, u32::MAX)?,
        None => 1,
    };
    let (least, most) = (*RateLimit::PACKETS.start(), *RateLimit::PACKETS.end());
    let burst = match table.get("burst") {
        Some(value) if !table.contains_key("limit") => {
            let hint = "write limit = \"10k/s\", or leave `burst` out";
            reader.error_with(value.span(), "`burst` needs a `limit`", "of no limit", hint);
            return None;
        }
        Some(value) => Some(reader.integer(value, "`burst`", least, most)?),
        None => None,
    };
    let limit = match table.get("limit") {
        Some(value) => {
            let usual = RateLimit::of(rate(reader, value)?);
            refuse_long_burst(reader, table.get("burst"), burst, usual)?;
            Some(RateLimit { burst_packets: burst.unwrap_or(usual.burst_packets), ..usual })
        }
        None => None,
    };
    Some(Policing { sample, limit })
}

/// Refuses a burst that takes longer to be earned than workers can count.
fn refuse_long_burst(
    reader: &mut Reader,
    value: Option<&Value<'_>>,
    burst: Option<u32>,
    limit: RateLimit,
) -> Option<()> {
    let most = u64::from(limit.packets_per_second) * RateLimit::LONGEST_BURST_SECONDS;
    let (Some(value), Some(burst)) = (value, burst) else { return Some(()) };
    if u64::from(burst) <= most {
        return Some(());
    }
    let message = format!("`burst` is more than {limit} lets through in 208 days");
    let hint = format!("write burst = {most} or less");
    reader.error_with(value.span(), &message, "too many packets", &hint);
    None
}

/// Refuses a key of a rule whose packets no worker hands on.
fn refuse_without_worker(reader: &mut Reader, key: &str, value: &Value<'_>, action: Action) -> Option<()> {
    let (message, hint) = match action {
        Action::Steer(_) | Action::Copy(_) | Action::Sniff(_) => return Some(()),
        Action::Drop => (
            format!("`{key}` has no effect on a rule that drops all its packets"),
            "to drop only some of them, steer the packets to a group in this rule",
        ),
        Action::Kernel => (
            format!("`{key}` is not possible for packets that stay with the kernel: no worker receives them"),
            "steer them to a group with a sink of kind `kernel`, by which a worker returns those that it lets through",
        ),
        Action::Pass => (
            format!("`{key}` is not possible for packets that the host sends: no worker receives them"),
            "leave it out: the device passes or drops all of them",
        ),
    };
    reader.error_with(value.span(), message, "not possible for this action", hint);
    None
}

/// Packets per second: `"500/s"`, `"10k/s"`.
fn rate(reader: &mut Reader, value: &Value<'_>) -> Option<u32> {
    const HINT: &str = "write packets per second with or without k, M or G: \"500/s\", \"10k/s\"";
    let Some(text) = value.get_ref().as_str() else {
        let message = "`limit` must be a string such as \"10k/s\"";
        let label = format!("this is of type {}", value.get_ref().type_str());
        reader.error_with(value.span(), message, label, HINT);
        return None;
    };
    let number = text.strip_suffix("/s").map(|number| {
        let unit = UNITS.into_iter().find_map(|(name, unit)| Some((number.strip_suffix(name)?, unit)));
        unit.unwrap_or((number, 1))
    });
    let number =
        number.filter(|(digits, _)| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()));
    let Some((digits, unit)) = number else {
        let message = format!("`{}` is not a rate", shortened(text));
        reader.error_with(value.span(), message, "not packets per second", HINT);
        return None;
    };
    let rate = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    let rate = rate.filter(|rate| RateLimit::PACKETS.contains(rate));
    if rate.is_none() {
        let hint = "write a rate from \"1/s\" to \"1G/s\"; the action \"drop\" lets nothing through";
        reader.error_with(value.span(), "`limit` is out of range", "this rate", hint);
    }
    rate
}

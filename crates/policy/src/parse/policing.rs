//! Reading `limit`, `burst`, `per` and `sample` of a rule: how many of its packets workers let through.

use program::{LimitUnit, Policing, RateLimit, SourceLimit};

use crate::keys;
use crate::policy::Action;

use super::reader::{Reader, Table, Value, integer_of};
use super::sets::shortened;

/// The decimal prefixes of rates and bursts.
const PREFIXES: [(&str, u64); 4] =
    [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000)];

/// The hint for a `limit` of the wrong form.
const RATE_HINT: &str =
    "write packets per second (\"500/s\", \"10k/s\") or bits per second (\"64kbit/s\", \"100Mbit/s\")";

/// Reads the keys; `action` is that of the rule, if it is known.
pub(super) fn read(reader: &mut Reader, table: &Table<'_>, action: Option<Action>) -> Option<Policing> {
    for key in ["limit", "burst", "per", "sample"] {
        if let (Some(value), Some(action)) = (table.get(key), action) {
            refuse_without_worker(reader, key, value, action)?;
        }
    }
    let sample = match table.get("sample") {
        Some(value) => reader.integer(value, "`sample`", 1, u32::MAX)?,
        None => 1,
    };
    let limit = match table.get("limit") {
        Some(value) => {
            let usual = rate(reader, value)?;
            let burst = match table.get("burst") {
                Some(value) => burst(reader, value, usual)?,
                None => usual.burst,
            };
            let per_source = match table.get("per") {
                Some(value) => Some(per_source(reader, value)?),
                None => None,
            };
            Some(RateLimit { burst, per_source, ..usual })
        }
        None => {
            for key in ["burst", "per"] {
                if let Some(value) = table.get(key) {
                    let hint = format!("write limit = \"10k/s\", or leave `{key}` out");
                    reader.error_with(value.span(), format!("`{key}` needs a `limit`"), "of no limit", hint);
                    return None;
                }
            }
            None
        }
    };
    Some(Policing { sample, limit })
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

/// A number with or without a decimal prefix, before `suffix`; `None`: the text has another form. The inner
/// `None`: the number is too large.
fn prefixed(text: &str, suffix: &str) -> Option<Option<u64>> {
    let number = text.strip_suffix(suffix)?;
    let scaled = PREFIXES.into_iter().find_map(|(name, unit)| Some((number.strip_suffix(name)?, unit)));
    let (digits, unit) = scaled.unwrap_or((number, 1));
    let is_number = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
    is_number.then(|| digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)))
}

/// Packets or bits per second, with the usual burst: `"500/s"`, `"10k/s"`, `"100Mbit/s"`.
fn rate(reader: &mut Reader, value: &Value<'_>) -> Option<RateLimit> {
    let Some(text) = value.get_ref().as_str() else {
        let message = "`limit` must be a string such as \"10k/s\" or \"100Mbit/s\"";
        let label = format!("this is of type {}", value.get_ref().type_str());
        reader.error_with(value.span(), message, label, RATE_HINT);
        return None;
    };
    let of_bits = prefixed(text, "bit/s").map(|number| (LimitUnit::Bits, number));
    let found = of_bits.or_else(|| prefixed(text, "/s").map(|number| (LimitUnit::Packets, number)));
    let Some((unit, number)) = found else {
        let message = format!("`{}` is not a rate", shortened(text));
        reader.error_with(value.span(), message, "neither packets nor bits per second", RATE_HINT);
        return None;
    };
    let rate = number.filter(|number| unit.rates().contains(number));
    if rate.is_none() {
        let hint = match unit {
            LimitUnit::Packets => {
                "write a rate from \"1/s\" to \"1G/s\"; the action \"drop\" lets nothing through"
            }
            LimitUnit::Bits => {
                "write a rate from \"8kbit/s\" to \"1Tbit/s\"; the action \"drop\" lets nothing through"
            }
        };
        reader.error_with(value.span(), "`limit` is out of range", "this rate", hint);
    }
    rate.map(|rate| RateLimit::of(unit, rate))
}

/// A number of packets, or for a limit on bits a text of bytes: `"64kB"`.
fn burst(reader: &mut Reader, value: &Value<'_>, limit: RateLimit) -> Option<u64> {
    let number = match limit.unit {
        LimitUnit::Packets => match integer_of(value) {
            Some(number) => u64::try_from(number).ok(),
            None if value.get_ref().is_integer() => None,
            None => {
                reader.wrong_type(value, "`burst` of a limit on packets", "a number");
                return None;
            }
        },
        LimitUnit::Bits => {
            const HINT: &str = "write bytes: \"1500B\", \"64kB\", \"2MB\"";
            let text = value.get_ref().as_str();
            let Some(number) = text.and_then(|text| prefixed(text, "B")) else {
                let message = "`burst` of a limit on bits must be a number of bytes, with the unit";
                reader.error_with(value.span(), message, "not bytes", HINT);
                return None;
            };
            number
        }
    };
    let range = limit.unit.bursts();
    let Some(burst) = number.filter(|burst| range.contains(burst)) else {
        let [least, most] = [range.start(), range.end()].map(|burst| limit.unit.burst_text(*burst));
        let hint = format!("write a burst from {least} to {most}");
        reader.error_with(value.span(), "`burst` is out of range", "this number", hint);
        return None;
    };
    let most = limit.longest_burst();
    if burst > most {
        let message = format!("`burst` is more than {} lets through in 208 days", limit.rate_text());
        let hint = match limit.unit {
            LimitUnit::Packets => format!("write burst = {most} or less"),
            LimitUnit::Bits => format!("write burst = \"{}\" or less", limit.unit.burst_text(most)),
        };
        reader.error_with(value.span(), &message, "too much", &hint);
        return None;
    }
    Some(burst)
}

/// `"source"`, or a table of what a source is.
fn per_source(reader: &mut Reader, value: &Value<'_>) -> Option<SourceLimit> {
    const HINT: &str =
        "write per = \"source\", or per = { source_ipv4 = 24, source_ipv6 = 56, sources = 1000 }";
    let mut limit = SourceLimit::default();
    if let Some(table) = value.get_ref().as_table() {
        reader.refuse_unknown_keys(table, keys::PER, "`per`");
        let (least, most) = (*SourceLimit::SOURCES.start(), *SourceLimit::SOURCES.end());
        if let Some(value) = table.get("source_ipv4") {
            limit.ipv4_bits = reader.integer(value, "`source_ipv4`", 1, 32)? as u8;
        }
        if let Some(value) = table.get("source_ipv6") {
            limit.ipv6_bits = reader.integer(value, "`source_ipv6`", 1, 128)? as u8;
        }
        if let Some(value) = table.get("sources") {
            limit.sources = reader.integer(value, "`sources`", least, most)?;
        }
    } else if value.get_ref().as_str() != Some("source") {
        let label = match value.get_ref().as_str() {
            Some(text) => format!("`{}` is not possible", shortened(text)),
            None => format!("this is of type {}", value.get_ref().type_str()),
        };
        reader.error_with(value.span(), "`per` must be \"source\" or a table", label, HINT);
        return None;
    }
    Some(limit)
}

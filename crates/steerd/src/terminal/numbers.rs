//! Numbers as text: counts, rates, amounts of bytes, shares and times.

use std::time::Duration;

/// `1234567` as `1 234 567`.
pub(crate) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// `1 flow`, `1 234 flows`
pub(crate) fn counted(value: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(value), if value == 1 { one } else { many })
}

/// Packets per second with three significant figures: `950`, `12.3 k`, `1.48 M`.
pub(crate) fn rate(per_second: f64) -> String {
    scaled(per_second, 1000.0, &["", " k", " M", " G"])
}

pub(crate) fn bytes(value: u64) -> String {
    #[allow(clippy::cast_precision_loss)]
    scaled(value as f64, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"])
}

/// A dash if unknown.
pub(crate) fn known(value: Option<u64>) -> String {
    value.map_or_else(|| "-".into(), number)
}

pub(crate) fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}{}", units[unit])
}

pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    format!("{} %", u128::from(part) * 100 / u128::from(whole))
}

pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{}.{} s", seconds, time.subsec_millis() / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn singular_and_plural() {
        let flows = |value| counted(value, "flow", "flows");
        assert_eq!([flows(0), flows(1), flows(1234)], ["0 flows", "1 flow", "1 234 flows"]);
    }

    #[test]
    fn figures_are_formatted_for_reading() {
        assert_eq!(number(0), "0");
        assert_eq!(number(999), "999");
        assert_eq!(number(1_234_567), "1 234 567");
        assert_eq!(rate(950.4), "950");
        assert_eq!(rate(12_345.0), "12.3 k");
        assert_eq!(rate(1_482_000.0), "1.48 M");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(percent(1, 0), "-");
        assert_eq!(percent(99, 100), "99 %");
        assert_eq!(duration(Duration::from_millis(2_340)), "2.3 s");
        assert_eq!(duration(Duration::from_secs(3_725)), "1 h 2 min");
    }
}

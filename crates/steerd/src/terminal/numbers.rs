//! Numbers as text: counts, rates, amounts of bytes, shares and times. The units of all but times follow
//! without a blank, so that each number is one word of a table.

use std::time::Duration;

/// The digits alone, so that other programs can read columns of numbers.
pub(crate) fn number(value: u64) -> String {
    value.to_string()
}

/// `1 flow`, `1234 flows`
pub(crate) fn counted(value: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(value), if value == 1 { one } else { many })
}

/// Packets per second with three significant figures: `950`, `12.3k`, `1.48M`.
pub(crate) fn rate(per_second: f64) -> String {
    scaled(per_second, 1000.0, &["", "k", "M", "G"])
}

pub(crate) fn bytes(value: u64) -> String {
    #[allow(clippy::cast_precision_loss)]
    scaled(value as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
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

/// A share with one decimal: `12.5%`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// The share of a part in a whole; 0.0% of nothing.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn percent_of(part: u64, whole: u64) -> String {
    percent(part as f64 / whole.max(1) as f64)
}

/// The parts of a whole in percent, rounded so that they and what is left of the whole add up to 100 (by the
/// largest remainders); dashes if the whole is 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
pub(crate) fn shares(parts: &[f64], whole: f64, decimals: u32) -> Vec<String> {
    if whole <= 0.0 {
        return vec!["-".to_owned(); parts.len()];
    }
    let scale = 10_u32.pow(decimals);
    let hundred = u64::from(100 * scale);
    let left = (whole - parts.iter().sum::<f64>()).max(0.0);
    let exact: Vec<f64> = parts.iter().chain([&left]).map(|part| part / whole * hundred as f64).collect();
    let mut rounded: Vec<u64> = exact.iter().map(|part| part.floor() as u64).collect();
    let missing = hundred.saturating_sub(rounded.iter().sum());
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.sort_by(|a, b| exact[*b].fract().total_cmp(&exact[*a].fract()));
    for index in order.into_iter().take(missing as usize) {
        rounded[index] += 1;
    }
    let text = |units: &u64| format!("{:.*}%", decimals as usize, *units as f64 / f64::from(scale));
    rounded.iter().take(parts.len()).map(text).collect()
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
        assert_eq!([flows(0), flows(1), flows(1234)], ["0 flows", "1 flow", "1234 flows"]);
    }

    #[test]
    fn shares_add_up_to_a_hundred() {
        assert_eq!(shares(&[1.0, 1.0, 1.0], 3.0, 0), ["34%", "33%", "33%"]);
        assert_eq!(shares(&[1.0, 1.0, 1.0], 3.0, 1), ["33.4%", "33.3%", "33.3%"]);
        assert_eq!(shares(&[1.0, 1.0], 6.0, 0), ["17%", "17%"], "what is left has 66%");
        assert_eq!(shares(&[0.0, 5.0], 5.0, 0), ["0%", "100%"]);
        assert_eq!(shares(&[0.0, 0.0], 0.0, 0), ["-", "-"]);
    }

    #[test]
    fn figures_are_formatted_for_reading() {
        assert_eq!(number(0), "0");
        assert_eq!(number(999), "999");
        assert_eq!(number(1_234_567), "1234567");
        assert_eq!(rate(950.4), "950");
        assert_eq!(rate(12_345.0), "12.3k");
        assert_eq!(rate(1_482_000.0), "1.48M");
        assert_eq!(bytes(512), "512B");
        assert_eq!(bytes(1536), "1.50KiB");
        assert_eq!(percent(0.98765), "98.8%");
        assert_eq!([percent_of(1, 8), percent_of(0, 0)], ["12.5%", "0.0%"]);
        assert_eq!(duration(Duration::from_millis(2_340)), "2.3 s");
        assert_eq!(duration(Duration::from_secs(3_725)), "1 h 2 min");
    }
}

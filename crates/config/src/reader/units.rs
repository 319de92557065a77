//! Durations and sizes in the configuration file: an integer with a mandatory unit.

use std::time::Duration;

use domain::time::millis::whole_millis;

/// Duration units in milliseconds, smallest first.
const DURATIONS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Size units in bytes, smallest first.
const SIZES: [(&str, u64); 6] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
];

/// The texts that [`duration`] and [`size`] parse, as regular expressions of JSON Schema.
pub(crate) const DURATION_PATTERN: &str = "^[0-9]+(ms|s|m|h|d)$";
pub(crate) const SIZE_PATTERN: &str = "^[0-9]+(B|KiB|MiB|GiB|TiB|PiB)$";

/// Parses `250ms`, `30s`, `5m`, `1h` or `30d`. Fractions such as `1.5s` are not allowed.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    quantity(text, &DURATIONS).map(Duration::from_millis)
}

/// Parses `512B`, `32KiB`, `4MiB`, `1GiB`, `1TiB` or `1PiB` into bytes; the units are powers of
/// 1024.
pub(crate) fn size(text: &str) -> Option<usize> {
    quantity(text, &SIZES)?.try_into().ok()
}

/// Formats a duration for [`duration`], in whole milliseconds or a larger unit.
pub(crate) fn duration_text(duration: Duration) -> String {
    if duration.is_zero() {
        return "0s".to_owned();
    }
    text(whole_millis(duration), &DURATIONS)
}

/// Formats a number of bytes for [`size`].
pub(crate) fn size_text(bytes: usize) -> String {
    text(bytes as u64, &SIZES)
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Writes `quantity` in the largest unit that divides it.
fn text(quantity: u64, units: &[(&str, u64)]) -> String {
    let divides =
        |(_, factor): &&(&str, u64)| quantity >= *factor && quantity.is_multiple_of(*factor);
    let (unit, factor) = units.iter().rfind(divides).unwrap_or(&units[0]);
    format!("{}{unit}", quantity / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_without_a_known_unit_is_rejected() {
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("30d"), Some(Duration::from_secs(2_592_000)));
        assert_eq!(size("4MiB"), Some(4 << 20));
        assert_eq!(size("32KiB"), Some(32 << 10));
        for bad in ["", "5", "s", "1.5s", "-1s", "5 s", "5S", "99999999999999999999s", "1d "] {
            assert_eq!(duration(bad), None, "{bad}");
        }
        for bad in ["4M", "4mib", "4 MiB", "99999999999GiB"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn formatted_quantities_parse_to_the_same_value() {
        for (text, millis) in
            [("0s", 0), ("1ms", 1), ("1500ms", 1500), ("1s", 1000), ("5m", 300_000)]
        {
            let value = Duration::from_millis(millis);
            assert_eq!(duration_text(value), text);
            assert_eq!(duration(text), Some(value));
        }
        for (text, bytes) in [("0B", 0), ("1023B", 1023), ("64KiB", 64 << 10), ("1PiB", 1 << 50)] {
            assert_eq!(size_text(bytes), text);
            assert_eq!(size(text), Some(bytes));
        }
    }
}

//! Durations and sizes as the file spells them: a number with its unit, always.

use std::time::Duration;

const DURATIONS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads `250ms`, `30s`, `5m`, `1h`, `30d`; fractions as in `1.5s` are not allowed.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    quantity(text, &DURATIONS).map(Duration::from_millis)
}

/// Reads `512B`, `32KiB`, `4MiB`, `1GiB`: bytes in powers of 1024.
pub(crate) fn size(text: &str) -> Option<usize> {
    quantity(text, &SIZES)?.try_into().ok()
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_never_guessed() {
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
}

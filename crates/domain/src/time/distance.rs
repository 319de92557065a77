//! How far a time is from now, for people.

use std::time::SystemTime;

/// Returns how far a time is from now, in its greatest unit.
pub fn distance(time: SystemTime, now: SystemTime) -> String {
    let (seconds, is_past) = match now.duration_since(time) {
        Ok(since) => (since.as_secs(), true),
        Err(until) => (until.duration().as_secs(), false),
    };
    let (count, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..3600 => (seconds / 60, "min"),
        3600..172_800 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "days"),
    };
    match (count, is_past) {
        (0, _) => "just now".to_owned(),
        (_, true) => format!("{count} {unit} ago"),
        (_, false) => format!("in {count} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_distance_is_in_its_greatest_unit() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let of = |seconds| distance(now - Duration::from_secs(seconds), now);
        let distances = [0, 1, 59, 60, 3599, 3600, 172_799, 172_800].map(of);
        let expected = [
            "just now",
            "1 s ago",
            "59 s ago",
            "1 min ago",
            "59 min ago",
            "1 h ago",
            "47 h ago",
            "2 days ago",
        ];
        assert_eq!(distances, expected);
        assert_eq!(distance(now + Duration::from_secs(90), now), "in 1 min");
    }
}

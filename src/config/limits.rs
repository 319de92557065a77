//! `[[limits]]`: how often whom may ask what.

use std::num::NonZeroU32;
use std::time::Duration;

use super::access::action_of;
use super::reader::Section;
use super::views::{all, globs};
use crate::domain::glob::Glob;
use crate::domain::method::{Countable, Method};

/// One limit: a bucket for each combination of what it counts by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limit {
    pub name: String,
    /// Nothing: one bucket for all.
    pub per: Vec<Per>,
    pub(crate) methods: Vec<Countable>,
    /// Over ids of callers; one of them must match.
    pub callers: Vec<Glob>,
    /// Time in which one more is allowed.
    pub interval: Duration,
    /// How many may come at once.
    pub burst: NonZeroU32,
    /// Whether it counts every request, before anything is known of it but its address.
    pub before_authentication: bool,
}

/// What a limit counts by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Per {
    Address,
    Caller,
    Method,
    Prompt,
    Upstream,
}

const PER: [(&str, Per); 5] = [
    ("caller", Per::Caller),
    ("upstream", Per::Upstream),
    ("prompt", Per::Prompt),
    ("method", Per::Method),
    ("address", Per::Address),
];

pub(super) fn read_all(root: &mut Section<'_>) -> Vec<Limit> {
    let mut limits: Vec<Limit> = Vec::new();
    for (index, mut table) in root.tables("limits").into_iter().enumerate() {
        let limit = read(&mut table, index);
        if let Some(limit) = limit {
            if limits.iter().any(|other| other.name == limit.name) {
                table.mistake("name", "another limit has this name already");
            }
            limits.push(limit);
        }
        table.finish();
    }
    limits
}

fn read(table: &mut Section<'_>, index: usize) -> Option<Limit> {
    let name = table.text("name", &format!("limit {}", index + 1));
    let per = table.choices("per", &PER);
    let mut methods = Vec::new();
    for text in table.texts("methods") {
        match Countable::parse(&text).or_else(|| action_of(&text).map(Countable::Call)) {
            Some(method) => methods.push(method),
            None => {
                let known = Countable::ALL.map(|known| format!("{:?}", known.as_str())).join(", ");
                table.mistake("methods", format!("{text:?} is not one of {known}"));
            }
        }
    }
    let is_narrowed = !methods.is_empty() || table.has("callers");
    if methods.is_empty() {
        methods = Method::ALL.map(Countable::Call).to_vec();
    }
    let callers = globs(table, "callers").unwrap_or_else(all);
    let (count, interval) =
        table.required("rate", "a rate such as \"10/s\", \"600/m\" or \"1000/h\"", rate)?;
    let burst = table.count("burst", count as usize, 1..=1_000_000);
    let burst = NonZeroU32::new(u32::try_from(burst).unwrap_or(u32::MAX))?;
    let before_authentication = per == [Per::Address] && !is_narrowed;
    Some(Limit { name, per, methods, callers, interval, burst, before_authentication })
}

/// Reads a count and its unit of time; returns the count, and the time for each.
fn rate(text: &str) -> Option<(u32, Duration)> {
    let (count, unit) = text.split_once('/')?;
    let count: u32 = count.parse().ok().filter(|count| (1..=1_000_000).contains(count))?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return None,
    };
    Some((count, Duration::from_secs(unit) / count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counts_in_a_unit_of_time() {
        assert_eq!(rate("600/m"), Some((600, Duration::from_millis(100))));
        assert_eq!(rate("1/d"), Some((1, Duration::from_secs(86_400))));
        for bad in ["", "600", "0/s", "-1/s", "1/w", "1.5/s", "600 / m", "1000001/s"] {
            assert_eq!(rate(bad), None, "{bad}");
        }
    }
}

//! `[[limits]]`: rate limits.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::reader::Section;
use crate::server::views::{all, globs};
use ::access::parse_action;
use domain::protocol::method::{Countable, Method};
use domain::text::glob::Glob;

/// A rate limit, counted by GCRA.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limit {
    /// Unique; given to the client when a request is refused.
    pub name: String,
    /// Bucket key: one bucket for each combination of these parts. Empty: one bucket for all.
    pub per: Vec<Per>,
    /// Counted requests: by default the calls.
    pub methods: Vec<Countable>,
    /// Patterns of caller ids; a caller is counted if one matches.
    pub callers: Vec<Glob>,
    /// Emission interval: time after which one more request is allowed.
    pub interval: Duration,
    /// Requests that are allowed at once.
    pub burst: NonZeroU32,
    /// Whether every HTTP request is counted before its credential is checked. True for a limit by
    /// address alone.
    pub before_authentication: bool,
}

/// Part of a bucket key.
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

/// The keys of `[[limits]]`.
const KEYS: &str = r#"
name, such as "gets per caller": Name that the client gets when a request is refused: 1 to 64 letters,
    digits, signs and inner spaces, without commas, `"` and `\`. Not set: `limit` and its position.
per = [], such as ["caller"]: Key of the buckets: one for each combination of `caller`, `upstream`,
    `prompt`, `method` and `address`. `[]`: one bucket for all.
methods, such as ["prompts/get"]: Counted calls: `prompts/list`, `prompts/get`,
    `completion/complete`, or `list`, `get`, `complete`; those for skills: `skills/list`,
    `skills/get`, `resources/read`, `resources/directory/read`; of `[passthrough]`: `passthrough` for all, or one
    such as `tools/call`. Counted requests about sessions: `initialize`, `ping`,
    `subscriptions/listen`, `stream` (a GET that opens a stream) and `delete` (a DELETE that
    terminates a session). Not set: all calls.
callers, such as ["ci-*"]: Patterns of the ids of callers that are counted. Not set: all.
rate, such as "600/m": Requests in a unit of time, `s`, `m`, `h` or `d`, spread evenly.
burst: Requests that are allowed at once. Not set: the count of `rate`.
"#;

pub(crate) fn read_all(root: &mut Section<'_>) -> Vec<Limit> {
    let mut limits: Vec<Limit> = Vec::new();
    for (index, mut table) in root.tables("limits").into_iter().enumerate() {
        if let Some(limit) = read(&mut table, index) {
            if limits.iter().any(|other| other.name == limit.name) {
                table.mistake("name", "another limit already has this name; set another one");
            }
            limits.push(limit);
        }
        table.finish();
    }
    limits
}

/// The name of a limit without one, by its position from 0.
pub fn default_limit_name(index: usize) -> String {
    format!("limit {}", index + 1)
}

fn read(table: &mut Section<'_>, index: usize) -> Option<Limit> {
    table.explain(KEYS);
    table.reject_empty(&["methods", "callers"]);
    let name = table.name().unwrap_or_else(|| default_limit_name(index));
    let per = table.choices("per", &PER);
    let mut methods = Vec::new();
    for text in table.texts("methods") {
        let known = methods.len();
        methods.extend(Countable::named(&text));
        if text == "passthrough" {
            methods.extend(Countable::PASSTHROUGH);
        } else if methods.len() == known {
            methods.extend(parse_action(&text).map(Countable::Call));
        }
        if methods.len() == known {
            let known = Countable::ALL.map(|known| format!("{:?}", known.as_str())).join(", ");
            let message = format!(
                "{text:?} is not one of {known}, or \"list\", \"get\", \"complete\" for short, or \"passthrough\""
            );
            table.mistake("methods", message);
        }
    }
    let is_narrowed = !methods.is_empty() || table.has("callers");
    if methods.is_empty() {
        methods =
            Method::ALL.map(Countable::Call).into_iter().chain(Countable::PASSTHROUGH).collect();
    }
    let callers = globs(table, "callers").unwrap_or_else(all);
    let rule = "a rate such as \"10/s\", \"600/m\", \"1000/h\" or \"5000/d\", of 1 to 1000000";
    let rate = table.required("rate", rule, rate);
    let burst = table.optional_count("burst", 1..=1_000_000);
    let Rate { count, interval } = rate?;
    let burst = burst.unwrap_or(count as usize);
    let burst = NonZeroU32::new(u32::try_from(burst).unwrap_or(u32::MAX))?;
    let before_authentication = per == [Per::Address] && !is_narrowed;
    Some(Limit { name, per, methods, callers, interval, burst, before_authentication })
}

/// A number of requests per unit of time, spread evenly.
#[derive(Debug, Eq, PartialEq)]
struct Rate {
    count: u32,
    /// The unit of time divided by `count`.
    interval: Duration,
}

/// Parses a count and a unit of time, such as `600/m`.
fn rate(text: &str) -> Option<Rate> {
    let (count, unit) = text.split_once('/')?;
    let count: u32 = count.parse().ok().filter(|count| (1..=1_000_000).contains(count))?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return None,
    };
    Some(Rate { count, interval: Duration::from_secs(unit) / count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_count_per_unit_of_time() {
        let expect = |count, interval| Some(Rate { count, interval });
        assert_eq!(rate("600/m"), expect(600, Duration::from_millis(100)));
        assert_eq!(rate("1/d"), expect(1, Duration::from_secs(86_400)));
        for bad in ["", "600", "0/s", "-1/s", "1/w", "1.5/s", "600 / m", "1000001/s"] {
            assert_eq!(rate(bad), None, "{bad}");
        }
    }
}

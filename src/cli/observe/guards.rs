//! `promptgate guards`: tries a guard on a text, and reports what guards have found.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::audit::read_input;
use super::find::{search, wanted};
use crate::cli::shared::args::{ConfigFile, FindQuery};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::load;
use crate::cli::shared::output::{Column, print, print_json, table_or};
use audit::search::Find;

/// Most records that a report counts.
const MAX_RECORDS: usize = 100_000;

/// Shows what a guard finds in standard input.
pub(crate) fn test(name: &str, file: &ConfigFile) -> Result<(), Failure> {
    let config = load(&file.config)?;
    let guard = config.guards.iter().find(|guard| guard.name == name).ok_or_else(|| {
        let names: Vec<_> = config.guards.iter().map(|guard| guard.name.as_str()).collect();
        Failure::new(format!("there is no guard {name:?}; there are: {}", names.join(", ")))
    })?;
    if guard.http.is_some() {
        let how = "its hook decides: set mode to observe, and read `promptgate guards report`";
        return Err(Failure::new(format!("guard {name:?} has no patterns; {how}")));
    }
    let text = read_input()?;
    let text = String::from_utf8_lossy(&text);
    let found = guard.patterns.find(&text);
    let mut out = String::new();
    // Each place is counted from the beginning of the text.
    for finding in found.iter().take(100) {
        let before = &text[..finding.place.start];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        out += &format!("line {line}, column {column}: {}\n", finding.code);
    }
    out += match (found.is_empty(), guard.patterns.masks) {
        (true, _) => "allowed",
        (false, false) => "denied",
        (false, true) => "masked",
    };
    if !(found.is_empty() || guard.is_enforced) {
        out += ", once the mode is enforce";
    }
    print(&out)
}

/// Counts the records of guards, by guard, outcome, reason code, caller and prompt.
pub(crate) fn report(query: &FindQuery) -> Result<(), Failure> {
    let wanted = Find { event: Some("guard".into()), ..wanted(query, "7d")? };
    let (found, _) = search(query, &wanted, MAX_RECORDS)?;
    let mut counts = BTreeMap::<_, u64>::new();
    for entry in &found.entries {
        let member = |name: &str| entry.members.get(name).and_then(Value::as_str);
        let own = [member("guard"), entry.outcome.as_deref(), member("code")];
        *counts.entry((own, entry.caller.as_deref(), entry.name.as_deref())).or_default() += 1;
    }
    let mut rows: Vec<_> = counts.into_iter().collect();
    rows.sort_by_key(|(_, count)| Reverse(*count));
    let row = |(([guard, outcome, code], caller, name), count): (([_; 3], _, _), _)| {
        json!({"guard": guard, "outcome": outcome, "code": code, "caller": caller, "name": name,
            "count": count})
    };
    let rows: Vec<_> = rows.into_iter().map(row).collect();
    if query.json {
        return print_json(&json!(rows));
    }
    let columns = [("GUARD", "guard"), ("OUTCOME", "outcome"), ("CODE", "code")];
    let more = [("CALLER", "caller"), ("PROMPT", "name"), ("COUNT", "count")];
    let columns = [columns, more].concat().into_iter().map(|(head, of)| Column::new(head, of));
    let columns: Vec<_> = columns.collect();
    let more = if found.complete { "" } else { "\nthere is more: a shorter --since counts all" };
    print(&(table_or("No guard has found anything in this time.", &columns, &rows) + more))
}

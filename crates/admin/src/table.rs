//! Tables, described once for all their forms: pages, the terminal and CSV. A row is a JSON object,
//! as the admin API and `--json` have it.

use serde_json::Value;

use domain::name::is_hidden;

/// A column of a table.
#[derive(Clone, Copy)]
pub struct Column {
    /// The heading in the terminal; empty where the terminal leaves the column out.
    pub heading: &'static str,
    /// The heading on a page; empty where pages leave the column out.
    pub title: &'static str,
    /// Member of the row's object, behind the members that it is nested in: `lastHour.p50Ms`.
    pub member: &'static str,
    pub kind: CellKind,
}

/// The notation of the cells of a column.
#[derive(Clone, Copy)]
pub enum CellKind {
    Text,
    Number,
    /// A duration in milliseconds.
    Millis,
    /// A time (RFC 3339).
    Time,
    /// A notation of the terminal alone. The value is `Null` if the member is absent.
    Terminal(fn(&Value) -> String),
}

impl Column {
    /// Makes a column of texts, in the terminal alone.
    pub const fn new(heading: &'static str, member: &'static str) -> Self {
        Self { heading, title: "", member, kind: CellKind::Text }
    }

    /// Sets the kind of the cells.
    pub const fn of(self, kind: CellKind) -> Self {
        Self { kind, ..self }
    }

    /// Adds the column to pages.
    pub const fn titled(self, title: &'static str) -> Self {
        Self { title, ..self }
    }

    /// Returns the value of its cell in a row, `Null` if there is none.
    pub fn value<'a>(&self, row: &'a Value) -> &'a Value {
        self.member.split('.').fold(row, |value, member| &value[member])
    }

    /// Whether pages align its cells as numbers.
    pub fn is_number(&self) -> bool {
        matches!(self.kind, CellKind::Number | CellKind::Millis)
    }
}

/// The characters that begin a formula, also in full width, which spreadsheets take for the same.
const FORMULA: [char; 10] = ['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠'];

/// Returns rows as comma-separated values (RFC 4180). The columns have the names of their members,
/// in snake case; `end` ends a line.
pub fn csv(members: &[&str], rows: &[Value], end: &str) -> String {
    let line = |cells: Vec<String>| cells.join(",") + end;
    let names = line(members.iter().map(|member| snake_case(member)).collect());
    let row = |row: &Value| line(members.iter().map(|member| csv_value(&row[member])).collect());
    names + &rows.iter().map(row).collect::<String>()
}

fn snake_case(member: &str) -> String {
    let parts = |c: char| [c.is_ascii_uppercase().then_some('_'), Some(c.to_ascii_lowercase())];
    member.chars().flat_map(parts).flatten().collect()
}

fn csv_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => csv_text(text),
        other => other.to_string(),
    }
}

/// Returns a text as one cell. A text that a spreadsheet would take for a formula is written behind
/// an apostrophe, and hidden characters as their numbers.
fn csv_text(text: &str) -> String {
    let mut cell = String::with_capacity(text.len());
    if text.starts_with(FORMULA) {
        cell.push('\'');
    }
    for c in text.chars() {
        if is_hidden(c) && !matches!(c, '\n' | '\t') {
            cell.extend(c.escape_unicode());
        } else {
            cell.push(c);
        }
    }
    let needs_quotes = cell.contains([',', '"', '\n']);
    if needs_quotes { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_written_under_the_names_of_their_members() {
        let rows = [json!({"key": "a,b", "p50Ms": 2.0, "uses": 3, "last": null}), json!({})];
        let table = csv(&["key", "uses", "p50Ms", "last"], &rows, "\r\n");
        assert_eq!(table, "key,uses,p50_ms,last\r\n\"a,b\",3,2.0,\r\n,,,\r\n");
    }

    #[test]
    fn a_cell_may_be_nested() {
        let column = Column::new("P50", "lastHour.p50Ms");
        assert_eq!(column.value(&json!({"lastHour": {"p50Ms": 1.5}})), 1.5);
        assert!(column.value(&json!({"lastHour": null})).is_null());
    }

    #[test]
    fn a_cell_is_text_whatever_it_begins_with() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a,\"b\"", "\"a,\"\"b\"\"\""),
            ("=cmd|x", "'=cmd|x"),
            ("+1,2", "\"'+1,2\""),
            ("=HYPERLINK(\"x\")", "\"'=HYPERLINK(\"\"x\"\")\""),
            ("＝1", "'＝1"),
            ("＠a", "'＠a"),
            ("\r=1", "'\\u{d}=1"),
            ("a\u{1b}[2J\u{202e}", "a\\u{1b}[2J\\u{202e}"),
            ("\u{202e}=1", "\\u{202e}=1"),
        ] {
            assert_eq!(csv_text(text), expected, "{text:?}");
        }
    }
}

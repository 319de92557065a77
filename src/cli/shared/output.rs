//! Output on a terminal. Text of upstreams and clients is escaped, so that it cannot control the
//! terminal.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use super::args::Output;
use super::failure::Failure;
pub(crate) use admin::table::{CellKind, Column};
use domain::name::is_hidden;

impl Output {
    /// Prints `json` with `--json`, else `text`.
    pub(crate) fn print(&self, json: &Value, text: &str) -> Result<(), Failure> {
        if self.json { print_json(json) } else { print(text) }
    }
}

/// Prints JSON, laid out for people, without a character that controls a terminal.
pub(crate) fn print_json(json: &Value) -> Result<(), Failure> {
    print(&printable_json(&format!("{json:#}")))
}

/// Returns JSON text with control and hidden characters escaped (RFC 8259, section 7): they occur
/// in its strings alone, but for line feeds. The value is the same.
pub(crate) fn printable_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_hidden(c) && c != '\n' {
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units).iter();
            out.extend(units.map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    out
}

/// Prints a text and a line feed to standard output. A reader that closed the pipe (`| head`) is
/// not an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Returns the text with control and hidden characters escaped, except line feed and tab.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) && !matches!(c, '\n' | '\t') {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns the text as one line: control and hidden characters are escaped, also line feed and tab.
pub(crate) fn printable_line(text: &str) -> String {
    printable(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Whether text on standard output may have styles: on a terminal, unless `NO_COLOR` is set
/// (no-color.org).
pub(crate) fn is_styled() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

/// Returns the width of the terminal on standard output, in characters; `None` where it is no
/// terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    #[cfg(unix)]
    {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
        Some(usize::from(size.ws_col)).filter(|width| *width > 0)
    }
    #[cfg(not(unix))]
    None
}

/// Cuts a line to a width, in characters, and marks the cut by an ellipsis.
pub(crate) fn fitted(line: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if line.chars().count() > width => {
            let cut: String = line.chars().take(width.saturating_sub(1)).collect();
            cut + "…"
        }
        _ => line.to_owned(),
    }
}

/// Returns a number with its noun.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns a number of prompts with its noun.
pub(crate) fn prompts(count: usize) -> String {
    counted(count, "prompt")
}

/// Describes the repairs to the messages of an upstream, by its row; empty if there are none.
pub(crate) fn repaired(row: &Value) -> String {
    let repairs = row["repairs"].as_object().into_iter().flatten();
    let repairs: Vec<_> = repairs.map(|(kind, count)| format!("{count} {kind}")).collect();
    let mark = if repairs.is_empty() { "" } else { "repaired: " };
    format!("{mark}{}", printable(&repairs.join(", ")))
}

/// Returns a JSON value as the text of a table cell. Lists and objects stand in one line.
fn cell(kind: CellKind, value: &Value) -> String {
    let text = |value| cell(CellKind::Text, value);
    match (kind, value) {
        (CellKind::Terminal(written), value) => written(value),
        (CellKind::Millis, Value::Number(millis)) => {
            format!("{:.1}ms", millis.as_f64().unwrap_or_default())
        }
        (_, Value::Null) => "-".to_owned(),
        (_, Value::String(text)) => printable_line(text),
        (_, Value::Bool(true)) => "yes".to_owned(),
        (_, Value::Bool(false)) => "no".to_owned(),
        (_, Value::Number(number)) => number.to_string(),
        (_, Value::Array(all)) if all.is_empty() => "-".to_owned(),
        (_, Value::Array(all)) => all.iter().map(text).collect::<Vec<_>>().join(", "),
        (_, Value::Object(all)) => {
            let pair =
                |(name, value): (&String, _)| format!("{}={}", printable_line(name), text(value));
            all.iter().map(pair).collect::<Vec<_>>().join(", ")
        }
    }
}

/// Returns the elements of a JSON array; an empty slice if the value is no array.
pub(crate) fn elements(array: &Value) -> &[Value] {
    array.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the table of the objects, or `none` where there is no object.
pub(crate) fn table_or(none: &str, columns: &[Column], objects: &[Value]) -> String {
    if objects.is_empty() { none.to_owned() } else { table(columns, objects) }
}

/// Returns a table with a line of headings and a line for each object.
pub(crate) fn table(columns: &[Column], objects: &[Value]) -> String {
    let mut rows: Vec<Vec<String>> =
        vec![columns.iter().map(|column| column.heading.to_owned()).collect()];
    for object in objects {
        rows.push(columns.iter().map(|own| cell(own.kind, own.value(object))).collect());
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..columns.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns a number of seconds in the largest unit that it fills, rounded down: `12s`, `3m`, `2h`,
/// `5d`. `-` if the value is not a number.
pub(crate) fn age(secs: &Value) -> String {
    let Some(secs) = secs.as_u64() else {
        return "-".to_owned();
    };
    match secs {
        0..60 => format!("{secs}s"),
        60..3_600 => format!("{}m", secs / 60),
        3_600..86_400 => format!("{}h", secs / 3_600),
        _ => format!("{}d", secs / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31m\tb\n\u{202e}"), "a\\u{1b}[31m\tb\n\\u{202e}");
        let name = Column::new("NAME", "name");
        let forged = table(&[name], &[json!({"name": "a\n4711  ok\t\u{1b}"})]);
        assert_eq!(forged, "NAME\na\\n4711  ok\\t\\u{1b}");
    }

    #[test]
    fn json_is_the_same_value_without_control_and_hidden_characters() {
        let value = json!({"a\u{9b}31m": ["b\u{202e}\u{1b}\n\t", "\u{e0041}\u{7f}", "é😀\"\\"]});
        let printed = printable_json(&format!("{value:#}"));
        assert!(!printed.chars().any(|c| is_hidden(c) && c != '\n'), "{printed:?}");
        assert!(printed.contains("a\\u009b31m") && printed.contains("é😀"), "{printed}");
        assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), value);
    }

    #[test]
    fn a_table_has_headings_and_aligned_columns() {
        let columns = [
            Column::new("UPSTREAM", "upstream"),
            Column::new("AGE", "ageSecs").of(CellKind::Terminal(age)),
            Column::new("NOTIFIES", "listChanged"),
        ];
        let rows = [
            json!({"upstream": "a-long-name", "ageSecs": 192, "listChanged": true}),
            json!({"upstream": "b\u{1b}", "listChanged": false}),
        ];
        let expected = "UPSTREAM     AGE  NOTIFIES\n\
                        a-long-name  3m   yes\n\
                        b\\u{1b}      -    no";
        assert_eq!(table(&columns, &rows), expected);
    }

    #[test]
    fn a_cell_shows_what_is_nested_and_lists_in_one_line() {
        let columns = [
            Column::new("P50", "hour.p50Ms").of(CellKind::Millis),
            Column::new("LABELS", "labels"),
            Column::new("VERSIONS", "versions"),
        ];
        let rows = [
            json!({"hour": {"p50Ms": 2}, "labels": {"a": 1, "b": "\n"}, "versions": [1, "x"]}),
            json!({"hour": {}, "labels": {}, "versions": []}),
        ];
        let expected = "P50    LABELS     VERSIONS\n\
                        2.0ms  a=1, b=\\n  1, x\n\
                        -                 -";
        assert_eq!(table_or("none", &columns, &rows), expected);
        assert_eq!(table_or("none", &columns, elements(&Value::Null)), "none");
    }

    #[test]
    fn a_line_is_cut_to_the_terminal() {
        assert_eq!(fitted("abcdef", Some(6)), "abcdef");
        assert_eq!(fitted("abcdefg", Some(6)), "abcde…");
        assert_eq!(fitted("abcdefg", None), "abcdefg");
    }

    #[test]
    fn an_age_is_written_in_its_largest_unit() {
        let ages =
            [(0, "0s"), (59, "59s"), (60, "1m"), (7_199, "1h"), (7_200, "2h"), (432_000, "5d")];
        for (secs, text) in ages {
            assert_eq!(age(&json!(secs)), text);
        }
        assert_eq!(age(&Value::Null), "-");
    }
}

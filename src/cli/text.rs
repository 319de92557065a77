//! Text of strangers on a terminal: shown, but never obeyed.

use std::io::{self, Write};

use serde_json::Value;

use super::Failure;
use crate::domain::name::is_hidden;

/// Prints a line to standard output; a reader that went away (`| head`) is no failure.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write: {error}")))
        }
        _ => Ok(()),
    }
}

/// The text with every control or hidden character, but line feed and tab, made visible.
pub(super) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hidden(c) && !matches!(c, '\n' | '\t') {
            true => out.extend(c.escape_unicode()),
            false => out.push(c),
        }
    }
    out
}

/// Members of objects under their names, in columns as wide as they need to be.
pub(super) fn columns(names: &[&str], objects: &[Value]) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Bool(flag) => if *flag { "yes" } else { "no" }.to_owned(),
        other => other.to_string(),
    };
    let mut rows = vec![names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()];
    rows.extend(objects.iter().map(|row| names.iter().map(|name| text(&row[*name])).collect()));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..names.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31m\tb\n\u{202e}"), "a\\u{1b}[31m\tb\n\\u{202e}");
    }
}

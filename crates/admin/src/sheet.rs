//! Tables for spreadsheets (RFC 4180).

use domain::name::is_hidden;

/// The characters that begin a formula, also in full width, which spreadsheets take for the same.
const FORMULA: [char; 10] = ['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠'];

/// Returns a text as one cell. A text that a spreadsheet would take for a formula is written behind
/// an apostrophe, and hidden characters as their numbers.
pub fn cell(text: &str) -> String {
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
    use super::*;

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
            assert_eq!(cell(text), expected, "{text:?}");
        }
    }
}

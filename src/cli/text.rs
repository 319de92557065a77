//! Text of strangers on a terminal: shown, but never obeyed.

use std::io::{self, Write};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31m\tb\n\u{202e}"), "a\\u{1b}[31m\tb\n\\u{202e}");
    }
}

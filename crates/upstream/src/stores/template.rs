//! The template languages of stores, limited to inserting arguments as text. All other features are
//! refused, and never rendered differently than the store's library would.

use domain::fault::excerpt;
use serde::{Deserialize, Serialize};

use library::TemplatePiece;

/// A template language.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Format {
    /// `{{ name }}` (MLflow, Langfuse, Mustache of Phoenix).
    Braces,
    /// `{name}`, where `{{` and `}}` are braces (f-strings of Python).
    FString,
    /// No variables.
    Plain,
}

/// Longest name of a variable, in bytes.
const MAX_NAME: usize = 256;

impl Format {
    /// Returns the name of the format for the source of a prompt.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Braces => "braces",
            Self::FString => "f-string",
            Self::Plain => "plain",
        }
    }
}

/// Reads a template.
pub(super) fn pieces(format: Format, template: &str) -> Result<Vec<TemplatePiece>, String> {
    match format {
        Format::Braces => braces(template),
        Format::FString => f_string(template),
        Format::Plain => Ok(vec![TemplatePiece::Text(template.to_owned())]),
    }
}

fn braces(template: &str) -> Result<Vec<TemplatePiece>, String> {
    let mut pieces = Pieces::default();
    let mut rest = template;
    while let Some(start) = rest.find("{{") {
        let inside = &rest[start + 2..];
        let name = inside.find("}}").map(|end| inside[..end].trim_ascii());
        let escaped = rest[..start].ends_with('\\');
        let Some(name) = name.filter(|name| is_path(name) && !escaped) else {
            return Err(not_a_variable(&rest[start..]));
        };
        pieces.text(&rest[..start]);
        pieces.argument(name);
        rest = inside.find("}}").map_or("", |end| &inside[end + 2..]);
    }
    pieces.text(rest);
    Ok(pieces.done())
}

fn f_string(template: &str) -> Result<Vec<TemplatePiece>, String> {
    let mut pieces = Pieces::default();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        pieces.text(&rest[..at]);
        let here = &rest[at..];
        if here.starts_with("{{") || here.starts_with("}}") {
            pieces.text(&here[..1]);
            rest = &here[2..];
            continue;
        }
        let name = here.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let Some((name, after)) = name.filter(|(name, _)| is_name(name)) else {
            return Err(not_a_variable(here));
        };
        pieces.argument(name);
        rest = after;
    }
    pieces.text(rest);
    Ok(pieces.done())
}

fn not_a_variable(from: &str) -> String {
    let shown: String = from.chars().take(40).collect();
    format!("its text has {:?}, which is no plain variable", excerpt(&shown))
}

fn is_name(name: &str) -> bool {
    let mut characters = name.chars();
    let first = characters.next().is_some_and(|c| c.is_alphabetic() || c == '_');
    first && characters.all(|c| c.is_alphanumeric() || c == '_') && name.len() <= MAX_NAME
}

/// Whether a name consists of names joined by dots, which the store treats as one variable.
fn is_path(name: &str) -> bool {
    name.len() <= MAX_NAME && name.split('.').all(is_name)
}

#[derive(Default)]
struct Pieces {
    read: Vec<TemplatePiece>,
    text: String,
}

impl Pieces {
    fn text(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn argument(&mut self, name: &str) {
        self.end_text();
        self.read.push(TemplatePiece::Argument(name.to_owned()));
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            self.read.push(TemplatePiece::Text(std::mem::take(&mut self.text)));
        }
    }

    fn done(mut self) -> Vec<TemplatePiece> {
        self.end_text();
        self.read
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes a template as it was read: a text as it is, an argument in angle brackets.
    fn read(format: Format, template: &str) -> Result<String, String> {
        let pieces = pieces(format, template)?.into_iter();
        Ok(pieces
            .map(|piece| match piece {
                TemplatePiece::Text(text) => text,
                TemplatePiece::Argument(name) => format!("<{name}>"),
            })
            .collect())
    }

    #[test]
    fn variables_are_found_and_the_rest_stays_as_it_is() {
        for (format, template, expected) in [
            (Format::Braces, "Sum up {{ text }} as {{style}}.", "Sum up <text> as <style>."),
            (Format::Braces, "{{ user.name }}{{a}}", "<user.name><a>"),
            (Format::Braces, "{\"a\": {\"b\": 1}} {x} }}", "{\"a\": {\"b\": 1}} {x} }}"),
            (Format::FString, "{a}: {{literal}} {_b1}", "<a>: {literal} <_b1>"),
            (Format::FString, "}}{{", "}{"),
            (Format::Plain, "{{ x }} {y} {% z %}", "{{ x }} {y} {% z %}"),
            (Format::Braces, "{% x %} {#y}", "{% x %} {#y}"),
            (Format::Braces, "", ""),
        ] {
            assert_eq!(read(format, template).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_is_more_than_a_variable_is_refused_and_named() {
        for (format, template, named) in [
            (Format::Braces, "{{ x | upper }}", "{{ x | upper }}"),
            (Format::Braces, "{{#items}}x{{/items}}", "{{#items}}"),
            (Format::Braces, "{{{ raw }}}", "{{{ raw"),
            (Format::Braces, "{{> part }}", "{{> part"),
            (Format::Braces, "\\{{ x }}", "{{ x }}"),
            (Format::Braces, "{{ x", "{{ x"),
            (Format::Braces, "{{}}", "{{}}"),
            (Format::Braces, "{{ a..b }}", "a..b"),
            (Format::FString, "{x!r}", "{x!r}"),
            (Format::FString, "{x:>9}", "{x:>9}"),
            (Format::FString, "{0}", "{0}"),
            (Format::FString, "{x.y}", "{x.y}"),
            (Format::FString, "a } b", "} b"),
            (Format::FString, "{", "{"),
        ] {
            let refused = read(format, template).unwrap_err();
            assert!(refused.contains(named), "{template}: {refused}");
        }
        let long = format!("{{{{ {} }}}}", "x".repeat(MAX_NAME + 1));
        assert!(read(Format::Braces, &long).is_err());
    }

    proptest! {
        #[test]
        fn no_template_breaks_the_reader(template in "[{}%# a.\\\\é]{0,24}") {
            for format in [Format::Braces, Format::FString, Format::Plain] {
                let _ = pieces(format, &template);
            }
        }
    }
}

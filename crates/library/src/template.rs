//! Checks templates when their file is read: a slip must not stay hidden until the first get.

use std::collections::HashSet;

use minijinja::machinery::{Span, Token, tokenize};
use minijinja::{Environment, ErrorKind};

use super::budget::{NO_FUNCTIONS, is_filter};
use domain::text::similar::suggestion;

/// Block statements of a library, which need an end.
const BLOCKS: [&str; 3] = ["if", "for", "with"];

/// Longest name that is searched for in single braces, or compared with the arguments, in bytes.
const BRACED: usize = 100;

/// Words of the engine, and the words for authors.
const PLAIN_WORDS: [(&str, &str); 6] = [
    ("unexpected end of string", "a quotation mark is not closed"),
    ("unexpected end of comment", "`{#` is not closed by `#}`"),
    ("unexpected character", "a sign that has no meaning here; quotation marks must be straight"),
    ("unexpected identifier", "two words follow each other: a name has no spaces"),
    ("unexpected `=`", "`=` sets a variable: write `==` to compare"),
    ("unknown statement end", "an end without its beginning, such as `{% if … %}`, before it"),
];

/// A slip in a template.
#[derive(Debug)]
pub(super) struct Slip {
    /// Place in the template, in bytes.
    pub offset: usize,
    pub message: String,
}

/// Checks that a template uses only declared arguments, and existing tests and functions, as
/// [`super::scan`] does for filters. Without the check, a misspelt variable would be rendered as an
/// empty text, and a misspelt test would fail each get. `used` are the template's variables that it
/// does not set.
pub(super) fn check(
    environment: &Environment<'_>,
    template: &str,
    used: &HashSet<String>,
    declared: &HashSet<&str>,
) -> Result<(), Slip> {
    let tokens: Vec<_> = tokens(template).collect();
    let globals: HashSet<&str> = environment.globals().map(|(name, _)| name).collect();
    let is_known = |name: &str| declared.contains(name) || globals.contains(name);
    for (index, (token, span)) in tokens.iter().enumerate() {
        let Token::Ident(name) = token else { continue };
        let before = |back: usize| index.checked_sub(back).map(|at| &tokens[at].0);
        let after = |ahead: usize| tokens.get(index + ahead).map(|(token, _)| token);
        let message = match before(1) {
            Some(Token::Pipe) => None,
            Some(Token::Ident("is")) if *name != "not" => unknown_test(environment, name),
            Some(Token::Ident("not")) if matches!(before(2), Some(Token::Ident("is"))) => {
                unknown_test(environment, name)
            }
            Some(Token::Dot) => match (before(2), after(1)) {
                (Some(Token::Ident(argument)), Some(Token::ParenOpen))
                    if declared.contains(argument) =>
                {
                    Some(no_method(argument, name))
                }
                _ => None,
            },
            _ if !used.contains(*name) || is_known(name) => None,
            _ if NO_FUNCTIONS.contains(name) => {
                Some(format!("the function `{name}` is not available in a library"))
            }
            _ if matches!(after(1), Some(Token::ParenOpen)) => {
                Some(format!("there is no function `{name}`"))
            }
            _ => Some(undeclared(name, declared)),
        };
        if let Some(message) = message {
            return Err(Slip { offset: span.start_offset as usize, message });
        }
    }
    Ok(())
}

/// Whether an engine offers a filter.
pub(super) fn has_filter(environment: &Environment<'_>, name: &str) -> bool {
    let applied = environment.empty_state().apply_filter(name, &[]);
    !applied.is_err_and(|error| error.kind() == ErrorKind::UnknownFilter)
}

fn undeclared(name: &str, declared: &HashSet<&str>) -> String {
    let text = format!("the text uses {{{{ {name} }}}}, which is no argument");
    let short = declared.iter().copied().filter(|name| name.len() <= BRACED && !name.contains('-'));
    let short = short.take(BRACED);
    match suggestion(name.get(..BRACED).unwrap_or(name), short) {
        near if near == "." => format!("{text}: declare it, such as `arguments: [{name}]`"),
        near => text + &near,
    }
}

fn unknown_test(environment: &Environment<'_>, name: &str) -> Option<String> {
    let performed = environment.empty_state().perform_test(name, &[]);
    let is_unknown = performed.is_err_and(|error| error.kind() == ErrorKind::UnknownTest);
    is_unknown.then(|| format!("there is no test `{name}`"))
}

fn no_method(argument: &str, name: &str) -> String {
    let instead = if is_filter(name) {
        format!("; write {{{{ {argument} | {name} }}}}")
    } else {
        String::new()
    };
    format!("`{argument}.{name}(…)`: an argument is a text, which has no methods{instead}")
}

/// Describes a mistake that the engine found, without its place.
pub(super) fn mistake(error: &minijinja::Error) -> String {
    let detail = error.detail().unwrap_or_default();
    match PLAIN_WORDS.iter().find(|(words, _)| detail.contains(words)) {
        Some((_, plain)) => (*plain).to_owned(),
        None => format!("template: {}: {detail}", error.kind()),
    }
}

/// Returns a slip, or that of a tag before it, or of a block, whose end is missing.
pub(super) fn unclosed(template: &str, slip: Slip) -> Slip {
    let tags = [("{{", "}}"), ("{%", "%}")];
    for (offset, _) in template[..slip.offset].match_indices('{') {
        let tag = &template[offset..];
        let Some((open, close)) = tags.iter().find(|(open, _)| tag.starts_with(open)) else {
            continue;
        };
        if tag[2..].split('{').next().is_some_and(|inside| !inside.contains(close)) {
            return Slip { offset, message: format!("`{open}` is not closed by `{close}`") };
        }
    }
    let Some((offset, block)) = open_block(template) else { return slip };
    let message = format!("`{{% {block} %}}` has no `{{% end{block} %}}` in this message");
    Slip { offset, message }
}

/// Returns the block that is still open at the end of `beginning`, a prefix of a template, and the
/// place of its name, in bytes.
pub(super) fn open_block(beginning: &str) -> Option<(usize, &'static str)> {
    let mut open = Vec::new();
    let mut begins = false;
    for (token, span) in tokens(beginning) {
        let is_named = std::mem::replace(&mut begins, matches!(token, Token::BlockStart));
        let Token::Ident(word) = token else { continue };
        if !is_named {
            continue;
        }
        if let Some(block) = BLOCKS.iter().find(|block| **block == word) {
            open.push((span.start_offset as usize, *block));
        } else if open.last().is_some_and(|(_, block)| word.strip_prefix("end") == Some(block)) {
            open.pop();
        }
    }
    open.pop()
}

/// Returns the arguments in single braces, with their places in bytes: people who know the format
/// strings of other languages expect replacement.
pub(super) fn single_braces<'a>(
    template: &str,
    declared: &HashSet<&'a str>,
) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (token, span) in tokens(template) {
        let Token::TemplateData(text) = token else { continue };
        for (at, _) in text.match_indices('{') {
            let inside = &text.as_bytes()[at + 1..];
            let end = inside.iter().take(BRACED).position(|byte| *byte == b'}');
            let inside = end.and_then(|end| text.get(at + 1..at + 1 + end));
            if let Some(name) = inside.and_then(|inside| declared.get(inside)) {
                found.push((span.start_offset as usize + at, *name));
            }
        }
    }
    found
}

/// Returns the tokens before the first invalid one.
fn tokens(template: &str) -> impl Iterator<Item = (Token<'_>, Span)> {
    tokenize(template, false, minijinja::syntax::SyntaxConfig::default()).map_while(Result::ok)
}

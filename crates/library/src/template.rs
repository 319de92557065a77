//! Checks templates when their file is read: a slip must not stay hidden until the first get.

use std::collections::HashSet;

use minijinja::machinery::{Span, Token, tokenize};
use minijinja::{Environment, ErrorKind};

use super::budget::{NO_FUNCTIONS, is_filter};

/// Block statements of a library, which need an end.
const BLOCKS: [&str; 3] = ["if", "for", "with"];

/// Longest name that is searched for in single braces, in bytes.
const BRACED: usize = 100;

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
            _ => Some(format!("the text uses {{{{ {name} }}}}, which is no argument")),
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
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    format!("template: {}{detail}", error.kind())
}

/// Returns the block that is still open at the end of `beginning`, a prefix of a template.
pub(super) fn open_block(beginning: &str) -> Option<&'static str> {
    let mut open = Vec::new();
    let mut begins = false;
    for (token, _) in tokens(beginning) {
        let is_named = std::mem::replace(&mut begins, matches!(token, Token::BlockStart));
        let Token::Ident(word) = token else { continue };
        if !is_named {
            continue;
        }
        if let Some(block) = BLOCKS.iter().find(|block| **block == word) {
            open.push(*block);
        } else if word.strip_prefix("end").is_some_and(|block| BLOCKS.contains(&block)) {
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

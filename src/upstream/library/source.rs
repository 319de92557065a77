//! The source form of a library prompt: Markdown with YAML front matter, split into messages.
//!
//! The *source* is split before anything is rendered, so no argument can forge a message.

use serde::Deserialize;

/// What stands between the `---` lines.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FrontMatter {
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    #[serde(default)]
    pub arguments: Vec<ArgumentSpec>,
    pub icons: Option<serde_json::Value>,
    /// Handed to clients as `_meta.version`.
    pub version: Option<Version>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArgumentSpec {
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    #[serde(default)]
    pub required: bool,
    /// What completion offers.
    #[serde(default)]
    pub choices: Vec<String>,
}

/// `version: 2` means the same as `version: "2"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Version {
    Number(serde_json::Number),
    Text(String),
}

/// Who speaks a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    Assistant,
    User,
}

/// One piece of a message's source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Piece {
    /// A template, rendered into text content.
    Template(String),
    /// `{{ embed("file.md") }}`: the file as content of its own.
    Embed(String),
}

/// A prompt's source, split.
#[derive(Debug)]
pub(crate) struct Source {
    pub front: FrontMatter,
    pub messages: Vec<(Role, Piece)>,
}

impl Role {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Role::Assistant => "assistant",
            Role::User => "user",
        }
    }
}

impl Source {
    /// Reads a file; nothing if it has no front matter, which makes it material for `embed`.
    ///
    /// # Errors
    /// What is wrong with a file that wants to be a prompt.
    pub(crate) fn read(text: &str) -> Option<Result<Self, String>> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.split_inclusive('\n');
        if lines.next()?.trim_end() != FENCE {
            return None;
        }
        let mut front = String::new();
        let closed = lines.by_ref().any(|line| {
            let ends = line.trim_end() == FENCE;
            if !ends {
                front.push_str(line);
            }
            ends
        });
        if !closed {
            return Some(Err("the front matter has no closing ---".to_owned()));
        }
        let body: String = lines.collect();
        Some(Self::parse(&front, &body))
    }

    fn parse(front: &str, body: &str) -> Result<Self, String> {
        let front: FrontMatter =
            serde_yaml_ng::from_str(front).map_err(|e| format!("front matter: {e}"))?;
        let mut messages = Vec::new();
        for (role, part) in split_messages(body)? {
            messages.extend(split_embeds(&part)?.into_iter().map(|piece| (role, piece)));
        }
        match messages.is_empty() {
            true => Err("the prompt has no text".to_owned()),
            false => Ok(Self { front, messages }),
        }
    }
}

const FENCE: &str = "---";

/// Splits at `## user` and `## assistant` headings outside fenced code. Without any, the whole
/// body is one message of the user.
fn split_messages(body: &str) -> Result<Vec<(Role, String)>, String> {
    let mut parts: Vec<(Option<Role>, String)> = vec![(None, String::new())];
    let mut code: Option<&str> = None;
    for line in body.split_inclusive('\n') {
        let trimmed = line.trim();
        let fence = ["```", "~~~"].into_iter().find(|fence| trimmed.starts_with(fence));
        code = match (code, fence) {
            (None, opened) => opened,
            (Some(open), Some(fence)) if open == fence => None,
            (open, _) => open,
        };
        match heading(trimmed).filter(|_| code.is_none()) {
            Some(role) => parts.push((Some(role), String::new())),
            None => {
                if let Some((_, part)) = parts.last_mut() {
                    part.push_str(line);
                }
            }
        }
    }
    let has_headings = parts.len() > 1;
    let mut messages = Vec::new();
    for (role, part) in parts {
        let part = part.trim();
        match role {
            _ if part.is_empty() => {}
            None if has_headings => {
                return Err("text before the first `## user` or `## assistant`".to_owned());
            }
            role => messages.push((role.unwrap_or(Role::User), part.to_owned())),
        }
    }
    Ok(messages)
}

fn heading(line: &str) -> Option<Role> {
    match line.strip_prefix("##")?.trim().to_ascii_lowercase().as_str() {
        "user" => Some(Role::User),
        "assistant" => Some(Role::Assistant),
        _ => None,
    }
}

/// Cuts `{{ embed("…") }}` out of a message's source.
fn split_embeds(part: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = part;
    while let Some(start) = find_embed(rest) {
        let expression = &rest[start..];
        let end = expression.find("}}").ok_or("an `{{ embed(` is not closed")?;
        let inside = expression[2..end].trim().trim_matches('-').trim();
        let name = inside
            .strip_prefix("embed(")
            .and_then(|call| call.strip_suffix(')'))
            .and_then(|literal| unquote(literal.trim()))
            .ok_or_else(|| format!("`{inside}`: embed takes one literal file name"))?;
        push_template(&mut pieces, &rest[..start]);
        pieces.push(Piece::Embed(name.to_owned()));
        rest = &expression[end + 2..];
    }
    push_template(&mut pieces, rest);
    Ok(pieces)
}

/// Where the next `{{ embed(` starts.
fn find_embed(text: &str) -> Option<usize> {
    let mut starts = text.match_indices("{{").map(|(at, _)| at);
    starts.find(|&at| text[at + 2..].trim_start_matches('-').trim_start().starts_with("embed("))
}

fn unquote(literal: &str) -> Option<&str> {
    let quote = literal.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inside = literal.get(1..literal.len() - 1).filter(|_| literal.len() >= 2)?;
    (literal.ends_with(quote) && !inside.contains([quote, '\\'])).then_some(inside)
}

fn push_template(pieces: &mut Vec<Piece>, text: &str) {
    let text = text.trim();
    if !text.is_empty() {
        pieces.push(Piece::Template(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Source, String> {
        Source::read(text).expect("front matter")
    }

    fn template(text: &str) -> Piece {
        Piece::Template(text.to_owned())
    }

    #[test]
    fn headings_split_messages_but_not_inside_code() {
        let source = read(
            "---\nname: a\n---\n## user\nHi\n```\n## assistant\n```\n## Assistant\nHello\n## user\n\n",
        )
        .unwrap();
        let expected = [
            (Role::User, template("Hi\n```\n## assistant\n```")),
            (Role::Assistant, template("Hello")),
        ];
        assert_eq!(source.messages, expected);
    }

    #[test]
    fn without_headings_the_body_is_one_message() {
        let source = read("---\r\nname: a\r\n---\r\n# Title\r\ntext\r\n").unwrap();
        assert_eq!(source.messages, [(Role::User, template("# Title\r\ntext"))]);
    }

    #[test]
    fn embeds_are_cut_out() {
        let source =
            read("---\nname: a\n---\nSee {{ embed(\"x/y.md\") }} and\n{{embed('z.png')}}\n");
        let pieces: Vec<_> = source.unwrap().messages.into_iter().map(|(_, p)| p).collect();
        let expected = [
            template("See"),
            Piece::Embed("x/y.md".into()),
            template("and"),
            Piece::Embed("z.png".into()),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("---\nname: a\n", "closing"),
            ("---\ntitle: a\n---\nx", "missing field `name`"),
            ("---\nname: a\nnmae: b\n---\nx", "unknown field"),
            ("---\nname: a\n---\n \n", "no text"),
            ("---\nname: a\n---\nx\n## user\ny", "before the first"),
            ("---\nname: a\n---\n{{ embed(file) }}", "literal"),
            ("---\nname: a\n---\n{{ embed(\"a\"", "not closed"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
        assert!(Source::read("# Just a file\n").is_none());
        assert!(Source::read("").is_none());
    }
}

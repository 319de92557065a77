//! Source files of library prompts: Markdown with YAML front matter, split into messages.
//!
//! The *source* is split before it is rendered, so no argument can forge a message.

use serde::{Deserialize, Deserializer};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Options, SnippetMode, UserMessageFormatter};

/// The front matter of a file: the YAML between two `---` lines.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FrontMatter {
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    #[serde(default, deserialize_with = "list")]
    pub arguments: Vec<ArgumentSpec>,
    pub icons: Option<serde_json::Value>,
    /// Clients get it as `_meta.version`.
    pub version: Option<SourceVersion>,
}

/// A declared argument of a prompt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArgumentSpec {
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    #[serde(default)]
    pub required: bool,
    /// The values for `completion/complete`.
    #[serde(default, deserialize_with = "list")]
    pub choices: Vec<String>,
}

/// The version of a prompt: `version: 2` means the same as `version: "2"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum SourceVersion {
    Number(serde_json::Number),
    Text(String),
}

/// The role of a message (MCP 2025-11-25, prompts).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MessageRole {
    Assistant,
    User,
}

/// One piece of a message's source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum SourcePiece {
    /// A template, rendered into text content.
    Template(String),
    /// `{{ embed("file.md") }}`: the file name; the file becomes a message of its own.
    Embed(String),
}

/// A prompt's source, split into its front matter and its messages.
#[derive(Debug)]
pub(crate) struct ParsedSource {
    pub front: FrontMatter,
    pub messages: Vec<(MessageRole, SourcePiece)>,
}

impl MessageRole {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            MessageRole::Assistant => "assistant",
            MessageRole::User => "user",
        }
    }
}

impl ParsedSource {
    /// Reads a file. `None` if it has no front matter: then it is no prompt, but `embed` may name
    /// it.
    ///
    /// # Errors
    /// The reason, when a file with front matter is no valid prompt.
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
        let front = read_front_matter(front)?;
        let mut messages = Vec::new();
        for (role, part) in split_messages(body)? {
            messages.extend(split_embeds(&part)?.into_iter().map(|piece| (role, piece)));
        }
        if messages.is_empty() {
            Err("the prompt has no text".to_owned())
        } else if messages.len() > MAX_MESSAGES {
            Err(format!("the prompt has more than {MAX_MESSAGES} messages"))
        } else {
            Ok(Self { front, messages })
        }
    }
}

/// Most messages of one prompt, each of which is a template of its own.
const MAX_MESSAGES: usize = 1_000;

/// First and last line of the front matter.
const FENCE: &str = "---";

/// Most YAML nodes (values, lists and mappings) of one front matter, including the nodes that
/// aliases repeat: enough for a thousand arguments with ten choices each, and aliases of aliases
/// fail before they take much memory.
const MAX_NODES: usize = 20_000;

fn read_front_matter(yaml: &str) -> Result<FrontMatter, String> {
    // Line numbers are those of the file, whose first line is the fence.
    let rendering = serde_saphyr::render_options! {
        formatter: &UserMessageFormatter,
        snippets: SnippetMode::Off,
        line_offset: 1,
    };
    serde_saphyr::from_str_with_options(yaml, options())
        .map_err(|error| format!("front matter: {}", error.render_with_options(rendering)))
}

/// Reads a list; a key without a value is an empty list.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(yaml: D) -> Result<Vec<T>, D::Error> {
    Option::deserialize(yaml).map(Option::unwrap_or_default)
}

/// Returns the parser options for the core schema of YAML 1.2: `yes` and `007` are text. Duplicate
/// keys and merge keys are errors.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MAX_NODES },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        ignore_binary_tag_for_string: true,
        non_finite_float_policy: NonFiniteFloatPolicy::Reject,
        with_snippet: false,
    }
}

/// The line that opens fenced code (CommonMark, section 4.5).
#[derive(Clone, Copy)]
struct Fence {
    mark: char,
    length: usize,
}

impl Fence {
    fn opened_by(line: &str) -> Option<Self> {
        let mark = line.chars().next().filter(|mark| ['`', '~'].contains(mark))?;
        let rest = line.trim_start_matches(mark);
        let length = line.len() - rest.len();
        // The info string after backticks has no backtick: it would be a code span (CommonMark,
        // section 6.1).
        (length >= 3 && !(mark == '`' && rest.contains('`'))).then_some(Self { mark, length })
    }

    fn is_closed_by(self, line: &str) -> bool {
        line.len() >= self.length && line.chars().all(|c| c == self.mark)
    }
}

/// Splits the body at `## user` and `## assistant` headings outside fenced code. Without such a
/// heading the body is one message of the user.
///
/// # Errors
/// When there is text before the first heading.
fn split_messages(body: &str) -> Result<Vec<(MessageRole, String)>, String> {
    let mut parts: Vec<(Option<MessageRole>, String)> = vec![(None, String::new())];
    let mut code: Option<Fence> = None;
    for line in body.split_inclusive('\n') {
        let trimmed = line.trim();
        code = match code {
            None => Fence::opened_by(trimmed),
            Some(open) if open.is_closed_by(trimmed) => None,
            open => open,
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
            role => messages.push((role.unwrap_or(MessageRole::User), part.to_owned())),
        }
    }
    Ok(messages)
}

fn heading(line: &str) -> Option<MessageRole> {
    match line.strip_prefix("##")?.trim().to_ascii_lowercase().as_str() {
        "user" => Some(MessageRole::User),
        "assistant" => Some(MessageRole::Assistant),
        _ => None,
    }
}

/// Splits a message's source into templates and `{{ embed("…") }}`.
///
/// # Errors
/// When an `embed` is not closed, or its argument is not one literal file name.
fn split_embeds(part: &str) -> Result<Vec<SourcePiece>, String> {
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
        pieces.push(SourcePiece::Embed(name.to_owned()));
        rest = &expression[end + 2..];
    }
    push_template(&mut pieces, rest);
    Ok(pieces)
}

/// Returns the offset of the next `{{ embed(`, in bytes.
fn find_embed(text: &str) -> Option<usize> {
    let mut starts = text.match_indices("{{").map(|(at, _)| at);
    starts.find(|&at| text[at + 2..].trim_start_matches('-').trim_start().starts_with("embed("))
}

fn unquote(literal: &str) -> Option<&str> {
    let quote = literal.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inside = literal.get(1..literal.len() - 1).filter(|_| literal.len() >= 2)?;
    (literal.ends_with(quote) && !inside.contains([quote, '\\'])).then_some(inside)
}

fn push_template(pieces: &mut Vec<SourcePiece>, text: &str) {
    let text = text.trim();
    if !text.is_empty() {
        pieces.push(SourcePiece::Template(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ParsedSource, String> {
        ParsedSource::read(text).expect("front matter")
    }

    fn template(text: &str) -> SourcePiece {
        SourcePiece::Template(text.to_owned())
    }

    #[test]
    fn headings_split_messages_but_not_inside_code() {
        let source = read(
            "---\nname: a\n---\n## user\nHi\n```\n## assistant\n```\n## Assistant\nHello\n## user\n\n",
        )
        .unwrap();
        let expected = [
            (MessageRole::User, template("Hi\n```\n## assistant\n```")),
            (MessageRole::Assistant, template("Hello")),
        ];
        assert_eq!(source.messages, expected);
    }

    #[test]
    fn code_ends_with_a_fence_that_is_long_enough_and_backticks_in_a_line_open_none() {
        let nested = "````\n```\n## assistant\n```\n````";
        let text = format!("---\nname: a\n---\n## user\n{nested}\n## assistant\nHello\n");
        let expected =
            [(MessageRole::User, template(nested)), (MessageRole::Assistant, template("Hello"))];
        assert_eq!(read(&text).unwrap().messages, expected);

        let inline = "```x``` means x\n``` and this too`";
        let text = format!("---\nname: a\n---\n## user\n{inline}\n## assistant\nHello\n");
        let expected =
            [(MessageRole::User, template(inline)), (MessageRole::Assistant, template("Hello"))];
        assert_eq!(read(&text).unwrap().messages, expected);
        let info = "~~~rust ignore\n## assistant\n~~~ not closed by this\n~~~~";
        let text = format!("---\nname: a\n---\n## user\n{info}\n## assistant\nHello\n");
        let expected =
            [(MessageRole::User, template(info)), (MessageRole::Assistant, template("Hello"))];
        assert_eq!(read(&text).unwrap().messages, expected);
    }

    #[test]
    fn without_headings_the_body_is_one_message() {
        let source = read("---\r\nname: a\r\n---\r\n# Title\r\ntext\r\n").unwrap();
        assert_eq!(source.messages, [(MessageRole::User, template("# Title\r\ntext"))]);
    }

    #[test]
    fn embeds_are_cut_out() {
        let source =
            read("---\nname: a\n---\nSee {{ embed(\"x/y.md\") }} and\n{{embed('z.png')}}\n");
        let pieces: Vec<_> = source.unwrap().messages.into_iter().map(|(_, p)| p).collect();
        let expected = [
            template("See"),
            SourcePiece::Embed("x/y.md".into()),
            template("and"),
            SourcePiece::Embed("z.png".into()),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn front_matter_keeps_the_text_of_its_scalars() {
        for text in [
            "yes",
            "no",
            "on",
            "y",
            "1",
            "1.0",
            "1.10",
            "007",
            "0x1F",
            "1_000",
            "-3",
            "1e3",
            ".inf",
            "true",
            "2024-01-01",
            "12:30",
            "=",
            "<<",
            "48x48",
            "C:\\dir",
        ] {
            let yaml = format!(
                "---\nname: {text}\ntitle: {text}\narguments:\n- name: {text}\n  choices: [{text}]\n---\nx"
            );
            let front = read(&yaml).unwrap().front;
            assert_eq!((front.name.as_str(), front.title.as_deref()), (text, Some(text)));
            let argument = &front.arguments[0];
            assert_eq!(
                (argument.name.as_str(), argument.choices.as_slice()),
                (text, &[text.to_owned()][..])
            );
        }
    }

    #[test]
    fn a_version_is_a_number_or_text() {
        for (yaml, expected) in [
            ("2", "number 2"),
            ("1.0", "number 1.0"),
            ("0x10", "number 16"),
            ("-3", "number -3"),
            ("1e3", "number 1000.0"),
            ("\"2\"", "text 2"),
            ("!!str 2", "text 2"),
            ("1.2.3", "text 1.2.3"),
            ("007", "text 007"),
            ("1_000", "text 1_000"),
            ("yes", "text yes"),
            ("2024-01-01", "text 2024-01-01"),
            ("~", "none"),
            ("true", "error"),
            ("[1]", "error"),
            (".nan", "error"),
        ] {
            let found = match read(&format!("---\nname: a\nversion: {yaml}\n---\nx")) {
                Err(_) => "error".to_owned(),
                Ok(ParsedSource { front: FrontMatter { version: None, .. }, .. }) => {
                    "none".to_owned()
                }
                Ok(ParsedSource { front: FrontMatter { version: Some(version), .. }, .. }) => {
                    match version {
                        SourceVersion::Number(number) => format!("number {number}"),
                        SourceVersion::Text(text) => format!("text {text}"),
                    }
                }
            };
            assert_eq!(found, expected, "{yaml}");
        }
    }

    #[test]
    fn a_flag_is_true_or_false() {
        let required = |flag: &str| {
            let yaml = format!("---\nname: a\narguments:\n- name: x\n  required: {flag}\n---\nx");
            read(&yaml).map(|source| source.front.arguments[0].required)
        };
        assert_eq!((required("true"), required("False")), (Ok(true), Ok(false)));
        for flag in ["yes", "on", "y", "1", "", "~"] {
            assert!(required(flag).unwrap_err().contains("line 5"), "{flag}");
        }
    }

    #[test]
    fn keys_without_a_value_are_as_good_as_none() {
        let front =
            read("---\nname: a\ntitle:\nicons: ~\nversion:\narguments:\n---\nx").unwrap().front;
        assert!(front.title.is_none() && front.icons.is_none() && front.version.is_none());
        assert!(front.arguments.is_empty());
    }

    #[test]
    fn icons_are_json() {
        let yaml = "---\nname: a\nicons: [{src: s, sizes: [48x48], n: 1, f: 1.5, y: yes, t: true, z: ~, 1: k}]\n---\nx";
        let expected = serde_json::json!([{"src": "s", "sizes": ["48x48"], "n": 1, "f": 1.5,
            "y": "yes", "t": true, "z": null, "1": "k"}]);
        assert_eq!(read(yaml).unwrap().front.icons, Some(expected));
    }

    #[test]
    fn aliases_repeat_values_within_bounds() {
        let front = read("---\nname: &n a\ntitle: *n\n---\nx").unwrap().front;
        assert_eq!(front.title.as_deref(), Some("a"));
        // Nine times nine times nine …: a billion values in 300 bytes.
        let mut bomb = "---\nname: a\nicons:\n- &a0 [x]\n".to_owned();
        for level in 1..10 {
            let inner = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb.push_str(&format!("- &a{level} [{inner}]\n"));
        }
        assert!(read(&(bomb + "---\nx")).unwrap_err().starts_with("front matter: "));
        let long = format!(
            "---\nname: &n {}\nicons: [{}]\n---\nx",
            "n".repeat(100_000),
            "*n, ".repeat(1_000)
        );
        assert!(read(&long).is_err(), "a hundred megabytes in a hundred kilobytes");
        let deep =
            format!("---\nname: a\nicons: {}{}\n---\nx", "[".repeat(10_000), "]".repeat(10_000));
        assert!(read(&deep).is_err());
        assert!(read("---\nname: a\nicons: &i [*i]\n---\nx").is_err());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("---\nname: a\n", "closing"),
            ("---\ntitle: a\n---\nx", "missing field `name`"),
            ("---\nname: a\nnmae: b\n---\nx", "unknown field `nmae`"),
            ("---\nname: a\nnmae: b\n---\nx", "line 3, column 1"),
            ("---\nname: a\narguments:\n- {name: x, must: true}\n---\nx", "unknown field `must`"),
            ("---\nname: a\nname: b\n---\nx", "`name` is not allowed here at line 3"),
            ("---\nname: a\narguments:\n- name: x\n  \"name\": y\n---\nx", "at line 5"),
            ("---\nname: a\nicons: [{src: x, src: y}]\n---\nx", "duplicate"),
            ("---\nname: a\n<<: {title: b}\n---\nx", "merge key"),
            ("---\nname: a\ntitle: *b\n---\nx", "line 3"),
            ("---\nname:\n---\nx", "null"),
            ("---\nname: a\ntitle: [b]\n---\nx", "line 3, column 8"),
            ("---\nname: a\n---\n \n", "no text"),
            ("---\nname: a\n---\nx\n## user\ny", "before the first"),
            ("---\nname: a\n---\n{{ embed(file) }}", "literal"),
            ("---\nname: a\n---\n{{ embed(\"a\"", "not closed"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
        assert!(ParsedSource::read("# Just a file\n").is_none());
        assert!(ParsedSource::read("").is_none());
    }
}

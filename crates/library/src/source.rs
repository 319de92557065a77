//! Source files of library prompts: Markdown with YAML front matter, split into messages.
//!
//! The *source* is split before it is rendered, so no argument can forge a message.

use std::fmt;
use std::ops::Range;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Options;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy};

use super::place::Remark;
use super::template::open_block;
use super::yaml_mistake::yaml_mistake;
use domain::text::similar::is_typing_error;

/// The front matter of a file: the YAML between two `---` lines.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FrontMatter {
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    #[serde(default, deserialize_with = "arguments")]
    pub arguments: Vec<ArgumentSpec>,
    pub icons: Option<serde_json::Value>,
    /// The version, which clients get as `_meta.version`.
    pub version: Option<SourceVersion>,
    /// `None`: `## system` does not start a message.
    pub system: Option<SystemRole>,
}

/// The role of messages under `## system`, which MCP does not define.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SystemRole {
    AsUser,
}

/// A declared argument of a prompt.
#[derive(Debug, Default, Deserialize)]
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
pub enum MessageRole {
    Assistant,
    User,
}

/// One piece of a message's source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum SourcePiece {
    /// A template, rendered into text content.
    Template(String),
    /// `{{ embed("file.md") }}`: the file name; the file becomes a separate message.
    Embed(String),
}

/// A message of a source.
#[derive(Debug)]
pub(crate) struct SourceMessage {
    pub role: MessageRole,
    pub piece: SourcePiece,
    /// Place in the text of the file, in bytes.
    pub start: usize,
}

/// A prompt's source, split into its front matter and its messages.
#[derive(Debug)]
pub(crate) struct ParsedSource<'a> {
    pub front: FrontMatter,
    pub messages: Vec<SourceMessage>,
    /// The text of the file.
    pub text: &'a str,
    /// Likely slips in the body.
    pub remarks: Vec<Remark>,
}

impl SourceVersion {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

impl MessageRole {
    pub fn as_str(self) -> &'static str {
        match self {
            MessageRole::Assistant => "assistant",
            MessageRole::User => "user",
        }
    }
}

impl<'a> ParsedSource<'a> {
    /// Reads a file. `None` without front matter: the file is not a prompt then, but `embed` may
    /// name it.
    pub(super) fn read(text: &'a str) -> Option<Result<Self, Remark>> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let split = split_front(text)?;
        Some(split.and_then(|(front, body)| Self::parse(text, front, body)))
    }

    /// Reads the front matter, and the body from an offset on.
    fn parse(text: &'a str, front: &str, body: usize) -> Result<Self, Remark> {
        let front: FrontMatter = read_front_matter(front)?;
        let mut messages = Vec::new();
        let mut remarks = Vec::new();
        for (role, part) in split_messages(text, body, front.system, &mut remarks)? {
            let pieces = split_embeds(text, part)?.into_iter();
            messages.extend(pieces.map(|(piece, start)| SourceMessage { role, piece, start }));
        }
        if messages.is_empty() {
            let why = "the prompt has no text: write it below the front matter";
            Err(Remark::at(text, body, why))
        } else if messages.len() > MAX_MESSAGES {
            Err(format!("the prompt has more than {MAX_MESSAGES} messages").into())
        } else {
            Ok(Self { front, messages, text, remarks })
        }
    }
}

/// Splits a text into its front matter and the offset of the body; `None` without front matter.
fn split_front(text: &str) -> Option<Result<(&str, usize), Remark>> {
    let opening = text.split_inclusive('\n').next()?;
    if opening.trim_end() != FENCE {
        return None;
    }
    let mut end = opening.len();
    for line in text[end..].split_inclusive('\n') {
        if line.trim_end() == FENCE {
            return Some(Ok((&text[opening.len()..end], end + line.len())));
        }
        end += line.len();
    }
    let why = "the front matter, which begins here, has no closing ---";
    Some(Err(Remark::placed(1, 1, why)))
}

/// Returns a remark on a file without front matter that was probably meant to be a prompt.
pub(super) fn missed_prompt(text: &str) -> Option<Remark> {
    let first = text.trim_start_matches(|c: char| c.is_whitespace() || "-–—".contains(c));
    let is_key = ["name:", "title:", "description:"].iter().any(|key| first.starts_with(key));
    let why = "looks like front matter, but the first line is not `---`, so it is no prompt";
    let empty = || text.trim().is_empty().then(|| "is empty, so it is no prompt".into());
    is_key.then(|| Remark::placed(1, 1, why)).or_else(empty)
}

/// Returns the place of a declared argument in the text of its file, in bytes: the first word
/// behind `arguments` that is its name.
pub(super) fn argument_place(text: &str, name: &str) -> usize {
    let from = text.find("\narguments").unwrap_or(0);
    let in_word = |c: char| c.is_alphanumeric() || "_-".contains(c);
    let is_word = |at: &usize| {
        !text[..*at].ends_with(in_word) && !text[at + name.len()..].starts_with(in_word)
    };
    let mut places = text[from..].match_indices(name).map(|(at, _)| from + at);
    places.find(is_word).unwrap_or(0)
}

/// Most remarks on one file: an author does not read more at once.
pub(super) const MAX_REMARKS: usize = 20;

/// Reads all of a skill's front matter: hosts know other keys than those of prompts.
pub(super) fn front_matter_value(text: &str) -> Result<serde_json::Value, Remark> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let missing = || Err("begins with no front matter: a line of ---".into());
    read_front_matter(split_front(text).unwrap_or_else(missing)?.0)
}

/// Most messages of one prompt, each of which is a separate template.
const MAX_MESSAGES: usize = 1_000;

/// First and last line of the front matter.
const FENCE: &str = "---";

/// Most YAML nodes (values, lists and mappings) of one front matter, including the nodes that
/// aliases repeat: enough for a thousand arguments with ten choices each, and aliases of aliases
/// fail before they take much memory.
const MAX_NODES: usize = 20_000;

fn read_front_matter<T: DeserializeOwned>(yaml: &str) -> Result<T, Remark> {
    serde_saphyr::from_str_with_options(yaml, options()).map_err(|error| {
        let text = format!("front matter: {}", yaml_mistake(&error, yaml));
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        match error.location() {
            // The fence is the line before the front matter.
            Some(place) => Remark::placed(number(place.line()) + 1, number(place.column()), text),
            None => text.into(),
        }
    })
}

/// Reads a list; a key without a value is an empty list.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(yaml: D) -> Result<Vec<T>, D::Error> {
    Option::deserialize(yaml).map(Option::unwrap_or_default)
}

/// Reads the arguments: a plain name is an argument without further keys.
fn arguments<'de, D: Deserializer<'de>>(yaml: D) -> Result<Vec<ArgumentSpec>, D::Error> {
    let arguments = Option::<Vec<ArgumentForm>>::deserialize(yaml)?.unwrap_or_default();
    Ok(arguments.into_iter().map(|argument| argument.0).collect())
}

/// An argument as a mapping, or as a plain name.
struct ArgumentForm(ArgumentSpec);

impl<'de> Deserialize<'de> for ArgumentForm {
    fn deserialize<D: Deserializer<'de>>(yaml: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = ArgumentForm;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an argument, such as `code` or `{name: code, required: true}`")
            }

            fn visit_str<E>(self, name: &str) -> Result<ArgumentForm, E> {
                Ok(ArgumentForm(ArgumentSpec { name: name.to_owned(), ..ArgumentSpec::default() }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ArgumentForm, A::Error> {
                ArgumentSpec::deserialize(MapAccessDeserializer::new(map)).map(ArgumentForm)
            }
        }
        yaml.deserialize_any(Forms)
    }
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

/// Splits the body, which begins at an offset, at `## user` and `## assistant` headings outside
/// fenced code. Without such a heading the body is one message of the user.
fn split_messages(
    text: &str,
    body: usize,
    system: Option<SystemRole>,
    remarks: &mut Vec<Remark>,
) -> Result<Vec<(MessageRole, Range<usize>)>, Remark> {
    let mut parts: Vec<(Option<MessageRole>, Range<usize>)> = vec![(None, body..body)];
    let mut code: Option<Fence> = None;
    let mut unknown_role = None;
    let mut at = body;
    for line in text[body..].split_inclusive('\n') {
        let start = at;
        at += line.len();
        let trimmed = line.trim();
        code = match code {
            None => Fence::opened_by(trimmed),
            Some(open) if open.is_closed_by(trimmed) => None,
            open => open,
        };
        if code.is_none() && is_missed_role(trimmed) && remarks.len() < MAX_REMARKS {
            let what = format!("`{trimmed}` starts no message: write `## user` or `## assistant`");
            remarks.push(Remark::at(text, start, what));
        }
        let role = match heading(trimmed).filter(|_| code.is_none()) {
            Some(Heading::System) if system.is_none() => {
                unknown_role.get_or_insert(start);
                None
            }
            Some(Heading::User | Heading::System) => Some(MessageRole::User),
            Some(Heading::Assistant) => Some(MessageRole::Assistant),
            None => None,
        };
        match (role, parts.last_mut()) {
            (None, Some((_, part))) => part.end = at,
            (role, _) => parts.push((role, at..at)),
        }
    }
    let has_headings = parts.len() > 1;
    let mut messages = Vec::new();
    for (role, part) in parts {
        let part = trimmed(text, part);
        match role {
            _ if part.is_empty() => {}
            None if has_headings => return Err(before_first(text, &part, unknown_role)),
            role => messages.push((role.unwrap_or(MessageRole::User), part)),
        }
    }
    Ok(messages)
}

/// Returns the mistake of a text before the first heading; `system` is the place of a `## system`.
fn before_first(text: &str, part: &Range<usize>, system: Option<usize>) -> Remark {
    match system.filter(|system| part.contains(system)) {
        Some(at) => Remark::at(
            text,
            at,
            "`## system`: MCP knows the roles user and assistant only; `system: as_user` in the \
             front matter makes it a message of the user",
        ),
        None => Remark::at(text, part.start, "text before the first `## user` or `## assistant`"),
    }
}

/// A heading that may start a message.
enum Heading {
    User,
    Assistant,
    System,
}

fn heading(line: &str) -> Option<Heading> {
    match line.strip_prefix("##")?.trim().to_ascii_lowercase().as_str() {
        "user" => Some(Heading::User),
        "assistant" => Some(Heading::Assistant),
        "system" => Some(Heading::System),
        _ => None,
    }
}

/// Whether a line is a heading that was probably meant to start a message.
fn is_missed_role(line: &str) -> bool {
    let is_short = line.len() < 40 && line.starts_with('#') && heading(line).is_none();
    let word = line.trim_matches(['#', '*', ':', ' ']).to_ascii_lowercase();
    let is_role = || ["user", "assistant", "human", "ai"].contains(&&*word);
    is_short && (is_role() || is_typing_error(&word, "assistant"))
}

/// Returns a part of a text without surrounding white space.
fn trimmed(text: &str, part: Range<usize>) -> Range<usize> {
    let whole = &text[part.clone()];
    let start = part.start + (whole.len() - whole.trim_start().len());
    start..start + whole.trim().len()
}

/// Splits a message's source into templates and `{{ embed("…") }}`, each with its place.
fn split_embeds(text: &str, part: Range<usize>) -> Result<Vec<(SourcePiece, usize)>, Remark> {
    let mut pieces = Vec::new();
    let mut rest = part.clone();
    while let Some(start) = find_embed(&text[rest.clone()]).map(|at| rest.start + at) {
        let wrong = |message: String| Remark::at(text, start, message);
        let expression = &text[start..part.end];
        let end =
            expression.find("}}").ok_or_else(|| wrong("an `{{ embed(` is not closed".into()))?;
        let inside = expression[2..end].trim().trim_matches('-').trim();
        let name = inside
            .strip_prefix("embed(")
            .and_then(|call| call.strip_suffix(')'))
            .and_then(|literal| unquote(literal.trim()))
            .ok_or_else(|| wrong(format!("`{inside}`: embed takes one quoted file name")))?;
        // Before a valid embed, all blocks must be closed.
        if let Some((_, block)) = open_block(&text[rest.start..start]) {
            return Err(wrong(format!(
                "`{inside}` is inside of a `{{% {block} %}}`; an embed must be outside of blocks, \
                 because the file becomes a message of its own"
            )));
        }
        push_template(&mut pieces, text, rest.start..start);
        pieces.push((SourcePiece::Embed(name.to_owned()), start));
        rest.start = start + end + 2;
    }
    push_template(&mut pieces, text, rest);
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

fn push_template(pieces: &mut Vec<(SourcePiece, usize)>, text: &str, part: Range<usize>) {
    let part = trimmed(text, part);
    if !part.is_empty() {
        pieces.push((SourcePiece::Template(text[part.clone()].to_owned()), part.start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ParsedSource<'_>, String> {
        let read = ParsedSource::read(text).expect("front matter");
        read.map_err(|remark| remark.to_string())
    }

    fn messages(text: &str) -> Vec<(MessageRole, SourcePiece)> {
        let messages = read(text).unwrap().messages.into_iter();
        messages.map(|message| (message.role, message.piece)).collect()
    }

    fn template(text: &str) -> SourcePiece {
        SourcePiece::Template(text.to_owned())
    }

    #[test]
    fn headings_split_messages_but_not_inside_code() {
        let source = messages(
            "---\nname: a\n---\n## user\nHi\n```\n## assistant\n```\n## Assistant\nHello\n## user\n\n",
        );
        let expected = [
            (MessageRole::User, template("Hi\n```\n## assistant\n```")),
            (MessageRole::Assistant, template("Hello")),
        ];
        assert_eq!(source, expected);
    }

    #[test]
    fn code_ends_with_a_fence_that_is_long_enough_and_backticks_in_a_line_open_none() {
        let nested = "````\n```\n## assistant\n```\n````";
        let text = format!("---\nname: a\n---\n## user\n{nested}\n## assistant\nHello\n");
        let expected =
            [(MessageRole::User, template(nested)), (MessageRole::Assistant, template("Hello"))];
        assert_eq!(messages(&text), expected);

        let inline = "```x``` means x\n``` and this too`";
        let text = format!("---\nname: a\n---\n## user\n{inline}\n## assistant\nHello\n");
        let expected =
            [(MessageRole::User, template(inline)), (MessageRole::Assistant, template("Hello"))];
        assert_eq!(messages(&text), expected);
        let info = "~~~rust ignore\n## assistant\n~~~ not closed by this\n~~~~";
        let text = format!("---\nname: a\n---\n## user\n{info}\n## assistant\nHello\n");
        let expected =
            [(MessageRole::User, template(info)), (MessageRole::Assistant, template("Hello"))];
        assert_eq!(messages(&text), expected);
    }

    #[test]
    fn without_headings_the_body_is_one_message() {
        let source = messages("---\r\nname: a\r\n---\r\n# Title\r\ntext\r\n");
        assert_eq!(source, [(MessageRole::User, template("# Title\r\ntext"))]);
    }

    #[test]
    fn embeds_are_cut_out() {
        let source =
            messages("---\nname: a\n---\nSee {{ embed(\"x/y.md\") }} and\n{{embed('z.png')}}\n");
        let pieces: Vec<_> = source.into_iter().map(|(_, piece)| piece).collect();
        let expected = [
            template("See"),
            SourcePiece::Embed("x/y.md".into()),
            template("and"),
            SourcePiece::Embed("z.png".into()),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn an_argument_may_be_its_name_alone() {
        let source = read("---\nname: a\narguments: [code, {name: lang, required: true}]\n---\nx");
        let arguments = source.unwrap().front.arguments;
        let shown: Vec<_> = arguments.iter().map(|a| (a.name.as_str(), a.required)).collect();
        assert_eq!(shown, [("code", false), ("lang", true)]);
    }

    #[test]
    fn a_system_heading_is_a_message_of_the_user_where_the_file_says_so() {
        let body = "## system\nBe brief.\n## user\nHi";
        let text = format!("---\nname: a\nsystem: as_user\n---\n{body}");
        let user = |text| (MessageRole::User, template(text));
        assert_eq!(messages(&text), [user("Be brief."), user("Hi")]);
        let chapter = "Install it.\n## System\nLinux";
        assert_eq!(messages(&format!("---\nname: a\n---\n{chapter}")), [user(chapter)]);
    }

    #[test]
    fn an_embed_after_a_closed_block_is_outside_of_it() {
        let body = "{# {% if #}{% if a %}x{% endif %}{% set b = 1 %}{{ embed('b.md') }}";
        assert_eq!(messages(&format!("---\nname: a\n---\n{body}")).len(), 2);
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
            assert!(required(flag).unwrap_err().starts_with(":5:"), "{flag}");
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
        assert!(read(&(bomb + "---\nx")).unwrap_err().contains("front matter: "));
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
            ("---\ntitle: a\n---\nx", "has no `name`: add a line"),
            (
                "---\nname: a\nnmae: b\n---\nx",
                ":3:1: front matter: unknown key `nmae`; did you mean `name`?",
            ),
            (
                "---\nname: a\narguments:\n- {name: x, must: true}\n---\nx",
                "unknown key `must`; the keys are",
            ),
            (
                "---\nname: a\narguments:\n- name: x\n  requred: true\n---\nx",
                "did you mean `required`?",
            ),
            ("---\nname: a\narguments:\n- [x]\n---\nx", "such as `code` or `{name: code"),
            (
                "---\nname: a\narguments: {code: x}\n---\nx",
                ":3:12: front matter: expected a list, such as",
            ),
            ("---\nname: a\nname: b\n---\nx", ":3:1: front matter: duplicate mapping key `name`"),
            ("---\nname: a\narguments:\n- name: x\n  \"name\": y\n---\nx", ":5:3: "),
            ("---\nname: a\nicons: [{src: x, src: y}]\n---\nx", "duplicate"),
            ("---\nname: a\n<<: {title: b}\n---\nx", "merge key"),
            ("---\nname: a\ntitle: *b\n---\nx", ":3:"),
            ("---\nname:\n---\nx", "`name` has no value"),
            ("---\nname: a\ntitle: [b]\n---\nx", ":3:8: "),
            ("---\nname: a\n---\n \n", "no text"),
            ("---\nname: a\n---\nx\n## user\ny", "before the first"),
            ("---\nname: a\n---\n{{ embed(file) }}", "takes one quoted file name"),
            ("---\nname: a\n---\n{{ embed(\"a\"", "not closed"),
            (
                "---\nname: a\n---\n\n## system\nBe brief.\n## user\ny",
                ":5:1: `## system`: MCP knows",
            ),
            (
                "---\nname: a\n---\nHi\n {% if a %}{{ embed('b.md') }}{% endif %}",
                ":5:12: `embed('b.md')` is inside of a `{% if %}`",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
        assert!(ParsedSource::read("# Just a file\n").is_none());
        assert!(ParsedSource::read("").is_none());
    }
}

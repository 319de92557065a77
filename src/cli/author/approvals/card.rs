//! The card of a first version: its description, arguments and content, as the console shows them.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::desk::Shown;
use crate::cli::shared::output::{elements, printable, printable_line};
use approvals::words::{LineKind, marked_lines};

/// The escape sequences of a terminal for places of arguments.
const PLACE: &str = "\u{1b}[36m";
pub(super) const END: &str = "\u{1b}[0m";

/// Returns the offered version as a card; `None` if its definition is not known.
pub(super) fn card(shown: &Shown, is_styled: bool) -> Option<String> {
    let mut card = Card { out: String::new(), is_styled };
    let object = |digest: &Value| -> Option<Value> {
        serde_json::from_str(&shown.object(digest.as_str()?)?).ok()
    };
    let offered = &shown.json["offered"];
    let entry = object(&offered["definition"])?;
    card.definition(if entry["frontmatter"].is_object() { &entry["frontmatter"] } else { &entry });
    if let Some(source) = object(&offered["source"]) {
        card.block("File", &source["source"]);
        for (name, file) in source["embeds"].as_object().into_iter().flatten() {
            card.block(&format!("Embedded {name}"), file);
        }
    } else {
        for text in elements(&offered["texts"]) {
            card.text(&text["arguments"], &object(&text["digest"])?);
        }
    }
    for (path, digest) in offered["files"].as_object().into_iter().flatten() {
        card.block(path, &object(digest).unwrap_or_default());
    }
    let lines = marked_lines(shown.text("diff"));
    for note in lines.iter().filter(|line| line.kind == LineKind::Note) {
        let _ = writeln!(card.out, "{}", printable(&note.text()));
    }
    Some(card.out)
}

struct Card {
    out: String,
    is_styled: bool,
}

/// The members of a definition that a card shows, or that the heading of the page has.
const SHOWN: [&str; 4] = ["name", "title", "description", "arguments"];

impl Card {
    fn definition(&mut self, definition: &Value) {
        for (heading, member) in [("Title", "title"), ("Description", "description")] {
            if !definition[member].is_null() {
                self.block(heading, &definition[member]);
            }
        }
        for argument in elements(&definition["arguments"]) {
            let is_required = argument["required"] == true;
            let required = if is_required { " (required)" } else { "" };
            let [name, why] =
                ["name", "description"].map(|part| argument[part].as_str().unwrap_or_default());
            let line = format!("Argument {name}{required}: {why}");
            let _ = writeln!(self.out, "{}", printable_line(line.trim_end_matches(": ")));
        }
        let others = definition.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let others: Vec<_> = others.filter(|name| !SHOWN.contains(name)).collect();
        if !others.is_empty() {
            let others = printable_line(&others.join(", "));
            let _ = writeln!(self.out, "The patch has more of its definition: {others}");
        }
    }

    fn text(&mut self, arguments: &Value, text: &Value) {
        let has_arguments = arguments.as_object().is_some_and(|own| !own.is_empty());
        let with = if has_arguments { format!(" with {arguments}") } else { String::new() };
        if !text["description"].is_null() {
            self.block(&format!("Description of the text{with}"), &text["description"]);
        }
        for message in elements(&text["messages"]) {
            let content = &message["content"];
            let is_plain =
                content["type"] == "text" && content.as_object().map(Map::len) == Some(2);
            let shown = if is_plain { &content["text"] } else { content };
            let role = message["role"].as_str().unwrap_or_default();
            self.block(&format!("Text{with}, {role}"), shown);
        }
    }

    /// Writes a value below its heading: a string as its lines, and other values as JSON.
    fn block(&mut self, heading: &str, value: &Value) {
        let json = value.to_string();
        let text = value.as_str().unwrap_or(&json);
        let _ = writeln!(self.out, "{}:", printable_line(heading));
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            let _ = writeln!(self.out, "  {}", with_places(&printable(line), self.is_styled));
        }
    }
}

/// Colours the places of arguments (`{{ name }}`).
pub(super) fn with_places(text: &str, is_styled: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while is_styled
        && let Some((before, after)) = rest.split_once("{{ ")
        && let Some((name, after)) = after.split_once(" }}")
    {
        let _ = write!(out, "{before}{PLACE}{{{{ {name} }}}}{END}");
        rest = after;
    }
    out + rest
}

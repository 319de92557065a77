//! Definitions of tools, as elements of `tools` (MCP 2025-11-25, tools).

use std::borrow::Cow;
use std::collections::HashMap;

use super::{FIND_PROMPT, FIND_SKILL, READ_SKILL, USE_PROMPT};
use crate::json::object::{ObjectWriter, write_object};
use crate::json::{Json, JsonKind, write_str};
use crate::prompts::hidden_text;

/// Longest description of a tool, in bytes: models refuse requests with longer ones.
const MAX_DESCRIPTION: usize = 1024;

/// Most values of one `enum`; more make no useful choice, and large tools cost every request of a
/// model.
const MAX_CHOICES: usize = 256;

/// Appends the tool that represents one prompt. `prompt` is the listed prompt, and `name_of`
/// returns the name of its tool and of the properties, which models restrict alike. Each argument
/// becomes a property of type string; the values that the library lists for the argument
/// (`_meta.choices`) become its `enum`. Other metadata of the prompt is left out: hosts obey some
/// of it on tools.
pub fn write_prompt_tool(
    prompt: Json<'_>,
    tool_name: &str,
    name_of: &dyn Fn(&str) -> String,
    out: &mut String,
) {
    write_object(out, |tool| {
        tool.text("name", tool_name);
        copy(prompt, "title", tool);
        let description = prompt.get("description").and_then(Json::as_str);
        let description =
            description.as_deref().unwrap_or("Gets a prompt: instructions to carry out.");
        tool.text("description", shortened(description));
        tool.object("inputSchema", |schema| write_schema(prompt, name_of, schema));
        write_annotations(tool);
        copy(prompt, "icons", tool);
    });
}

/// Cuts a description at [`MAX_DESCRIPTION`].
pub(super) fn shortened(description: &str) -> &str {
    &description[..description.floor_char_boundary(MAX_DESCRIPTION)]
}

/// Appends the tool `find_prompt`.
pub fn write_find_prompt(out: &mut String) {
    write_object(out, |tool| {
        tool.text("name", FIND_PROMPT).text("title", "Find a prompt");
        tool.text(
            "description",
            "Searches the prompts of this organisation: maintained instructions for recurring tasks. \
             Returns their names, descriptions and arguments, best match first. Get one with use_prompt.",
        );
        tool.json("inputSchema", FIND_INPUT).json("outputSchema", FIND_OUTPUT);
        write_annotations(tool);
    });
}

/// Appends the tool `use_prompt`.
pub fn write_use_prompt(out: &mut String) {
    write_object(out, |tool| {
        tool.text("name", USE_PROMPT).text("title", "Use a prompt");
        tool.text(
            "description",
            "Gets a prompt by its name, with its arguments filled in. Returns the messages of the prompt, \
             each under its role; carry out what they ask.",
        );
        tool.json("inputSchema", USE_INPUT);
        write_annotations(tool);
    });
}

/// Appends the tool `find_skill`.
pub fn write_find_skill(out: &mut String) {
    write_object(out, |tool| {
        tool.text("name", FIND_SKILL).text("title", "Find a skill");
        tool.text(
            "description",
            "Searches the skills of this organisation: maintained instructions with files for recurring \
             tasks. Returns their names and descriptions, best match first. Read one with read_skill.",
        );
        tool.json("inputSchema", FIND_INPUT).json("outputSchema", FOUND_SKILLS);
        write_annotations(tool);
    });
}

/// Appends the tool `read_skill`.
pub fn write_read_skill(out: &mut String) {
    write_object(out, |tool| {
        tool.text("name", READ_SKILL).text("title", "Read a skill");
        tool.text(
            "description",
            "Reads the instructions of a skill by its name, with the list of its other files, or one of \
             these files. Carry out what the instructions ask.",
        );
        tool.json("inputSchema", READ_INPUT);
        write_annotations(tool);
    });
}

const FOUND_SKILLS: &str = r#"{"type":"object","properties":{"skills":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"description":{"type":"string"}},"required":["name","description"]}},"nextCursor":{"type":"string"}},"required":["skills"]}"#;

const READ_INPUT: &str = r#"{"type":"object","properties":{"name":{"type":"string","description":"Name of the skill, as find_skill returns it"},"file":{"type":"string","description":"Path of a file of the skill; its instructions without it"}},"required":["name"]}"#;

const FIND_INPUT: &str = r#"{"type":"object","properties":{"query":{"type":"string","description":"Words to look for in names, titles and descriptions; all without it"},"cursor":{"type":"string","description":"The nextCursor of the page before"}}}"#;

const FIND_OUTPUT: &str = r#"{"type":"object","properties":{"prompts":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"title":{"type":"string"},"description":{"type":"string"},"arguments":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}},"required":["name"]}},"nextCursor":{"type":"string"}},"required":["prompts"]}"#;

const USE_INPUT: &str = r#"{"type":"object","properties":{"name":{"type":"string","description":"Name of the prompt, as find_prompt returns it"},"arguments":{"type":"object","description":"Arguments of the prompt by name; all values are strings","additionalProperties":{"type":"string"}}},"required":["name"]}"#;

/// Tools that represent prompts change nothing.
fn write_annotations(tool: &mut ObjectWriter<'_>) {
    tool.object("annotations", |annotations| {
        annotations.display("readOnlyHint", true);
    });
}

/// Writes the JSON Schema of a prompt's arguments.
fn write_schema(prompt: Json<'_>, name_of: &dyn Fn(&str) -> String, schema: &mut ObjectWriter<'_>) {
    let arguments = || prompt.get("arguments").into_iter().flat_map(Json::elements);
    let listed = listed_choices(prompt);
    schema.text("type", "object").object("properties", |properties| {
        for argument in arguments() {
            let Some(name) = argument.get("name").and_then(Json::as_str) else { continue };
            let key = name_of(&name);
            properties.object(&key, |property| {
                property.text("type", "string");
                match argument.get("title") {
                    Some(title) => property.json("title", title.text()),
                    None if key != *name => property.text("title", &name),
                    None => property,
                };
                if let Some(description) = argument.get("description").and_then(Json::as_str) {
                    property.text("description", shortened(&description));
                }
                if let Some(choices) = choices(&listed, &name) {
                    property.array("enum", choices, |choice, out| write_str(&choice, out));
                }
            });
        }
    });
    let is_required = |a: &Json<'_>| a.get("required").and_then(Json::as_bool) == Some(true);
    let mut required = arguments().filter(is_required).filter_map(|a| a.get("name")?.as_str());
    if let Some(first) = required.next() {
        let names = std::iter::once(first).chain(required);
        schema.array("required", names, |name, out| write_str(&name_of(&name), out));
    }
}

/// Returns the lists of values in the metadata of a prompt, by argument. One search serves all
/// arguments: the rest of the metadata may be long.
pub(super) fn listed_choices(prompt: Json<'_>) -> HashMap<Cow<'_, str>, Json<'_>> {
    let listed = prompt.get("_meta").and_then(|meta| meta.get("choices"));
    let listed = listed.into_iter().flat_map(Json::members);
    listed.filter_map(|(argument, choices)| Some((argument.as_str()?, choices))).collect()
}

/// Returns the values that a prompt lists for an argument, each once; `None` without an array of at
/// most [`MAX_CHOICES`] strings. Any other value from an upstream would make hosts reject the whole
/// list.
pub(super) fn choices(
    listed: &HashMap<Cow<'_, str>, Json<'_>>,
    argument: &str,
) -> Option<Vec<String>> {
    let listed = listed.get(argument)?;
    if listed.elements().nth(MAX_CHOICES).is_some() {
        return None;
    }
    let mut choices: Vec<String> = Vec::new();
    for choice in listed.elements() {
        let choice = choice.as_str().filter(|choice| hidden_text::count(choice) == 0)?;
        if !choices.iter().any(|known| *known == choice) {
            choices.push(choice.into_owned());
        }
    }
    (listed.kind() == JsonKind::Array && !choices.is_empty()).then_some(choices)
}

fn copy(from: Json<'_>, key: &str, to: &mut ObjectWriter<'_>) {
    if let Some(value) = from.get(key) {
        to.json(key, value.text());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tool(prompt: &Value) -> Value {
        let text = prompt.to_string();
        let mut out = String::new();
        let name_of = |name: &str| name.replace(' ', "_");
        write_prompt_tool(Json::parse(text.as_bytes(), 64).unwrap(), "t", &name_of, &mut out);
        serde_json::from_str(&out).unwrap()
    }

    #[test]
    fn arguments_become_a_json_schema() {
        let prompt = json!({"name": "lib__p", "title": "P", "description": "Does p",
            "arguments": [
                {"name": "code", "description": "The change", "required": true},
                {"name": "focus", "title": "Focus", "required": false}],
            "_meta": {"ui": 1, "choices": {"focus": ["speed", "safety", "speed"]}}});
        let expected = json!({"name": "t", "title": "P", "description": "Does p",
            "inputSchema": {"type": "object", "required": ["code"], "properties": {
                "code": {"type": "string", "description": "The change"},
                "focus": {"type": "string", "title": "Focus", "enum": ["speed", "safety"]}}},
            "annotations": {"readOnlyHint": true}});
        assert_eq!(tool(&prompt), expected);
    }

    #[test]
    fn a_prompt_without_arguments_and_description_has_an_empty_schema() {
        let tool = tool(&json!({"name": "p"}));
        assert_eq!(tool["inputSchema"], json!({"type": "object", "properties": {}}));
        assert!(tool["description"].is_string(), "models choose tools by their description");
    }

    #[test]
    fn choices_that_are_no_list_of_texts_are_not_passed_on() {
        for choices in [
            json!({"focus": "speed"}),
            json!({"focus": []}),
            json!({"focus": ["speed", 1]}),
            json!({"focus": ["speed\u{202e}"]}),
            json!(["focus"]),
        ] {
            let prompt = json!({"name": "p", "arguments": [{"name": "focus"}],
                "_meta": {"choices": choices}});
            let focus = tool(&prompt)["inputSchema"]["properties"]["focus"].clone();
            assert_eq!(focus, json!({"type": "string"}), "{choices}");
        }
    }

    #[test]
    fn names_and_descriptions_that_models_refuse_are_changed() {
        let prompt = json!({"name": "p", "description": "\u{e9}".repeat(1000),
            "arguments": [{"name": "user name", "required": true}]});
        let tool = tool(&prompt);
        assert_eq!(tool["description"].as_str().unwrap().len(), 1024);
        let property = json!({"type": "string", "title": "user name"});
        assert_eq!(tool["inputSchema"]["properties"]["user_name"], property);
        assert_eq!(tool["inputSchema"]["required"], json!(["user_name"]));
    }

    #[test]
    fn the_tools_that_stand_for_no_prompt_are_valid_json() {
        let mut out = "[".to_owned();
        write_find_prompt(&mut out);
        out.push(',');
        write_use_prompt(&mut out);
        out.push(',');
        write_find_skill(&mut out);
        out.push(',');
        write_read_skill(&mut out);
        out.push(']');
        let tools: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(tools[0]["name"], "find_prompt");
        assert_eq!(tools[1]["inputSchema"]["required"], json!(["name"]));
        assert_eq!(tools[2]["outputSchema"]["required"], json!(["skills"]));
        assert_eq!(tools[3]["inputSchema"]["required"], json!(["name"]));
    }
}

//! Definitions of tools, as elements of `tools` (MCP 2025-11-25, tools).

use super::{FIND_PROMPT, USE_PROMPT};
use crate::domain::hidden_text;
use crate::domain::json::object::{ObjectWriter, write_object};
use crate::domain::json::{Json, Kind, write_str};

/// Appends the tool that stands for one prompt. `prompt` is the prompt as it is listed, and `tool_name` the
/// name of the tool. Each argument becomes a property of type string; the values that the library lists for it
/// (`_meta.choices`) become its `enum`.
pub(crate) fn write_prompt_tool(prompt: Json<'_>, tool_name: &str, out: &mut String) {
    write_object(out, |tool| {
        tool.text("name", tool_name);
        copy(prompt, "title", tool);
        match prompt.get("description") {
            Some(description) => tool.json("description", description.text()),
            None => tool.text("description", "Gets a prompt: instructions to carry out."),
        };
        tool.object("inputSchema", |schema| write_schema(prompt, schema));
        write_annotations(tool);
        copy(prompt, "icons", tool);
        copy(prompt, "_meta", tool);
    });
}

/// Appends the tool `find_prompt`.
pub(crate) fn write_find_prompt(out: &mut String) {
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
pub(crate) fn write_use_prompt(out: &mut String) {
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

const FIND_INPUT: &str = r#"{"type":"object","properties":{"query":{"type":"string","description":"Words to look for in names, titles and descriptions; all prompts without it"},"cursor":{"type":"string","description":"The nextCursor of the page before"}}}"#;

const FIND_OUTPUT: &str = r#"{"type":"object","properties":{"prompts":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"title":{"type":"string"},"description":{"type":"string"},"arguments":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}},"required":["name"]}},"nextCursor":{"type":"string"}},"required":["prompts"]}"#;

const USE_INPUT: &str = r#"{"type":"object","properties":{"name":{"type":"string","description":"Name of the prompt, as find_prompt returns it"},"arguments":{"type":"object","description":"Arguments of the prompt by name; all values are strings","additionalProperties":{"type":"string"}}},"required":["name"]}"#;

/// Tools that stand for prompts change nothing.
fn write_annotations(tool: &mut ObjectWriter<'_>) {
    tool.object("annotations", |annotations| {
        annotations.display("readOnlyHint", true);
    });
}

/// Writes the JSON Schema of a prompt's arguments.
fn write_schema(prompt: Json<'_>, schema: &mut ObjectWriter<'_>) {
    let arguments = || prompt.get("arguments").into_iter().flat_map(Json::elements);
    schema.text("type", "object").object("properties", |properties| {
        for argument in arguments() {
            let Some(name) = argument.get("name").and_then(Json::as_str) else { continue };
            properties.object(&name, |property| {
                property.text("type", "string");
                copy(argument, "title", property);
                copy(argument, "description", property);
                if let Some(choices) = choices(prompt, &name) {
                    property.json("enum", choices.text());
                }
            });
        }
    });
    let is_required = |a: &Json<'_>| a.get("required").and_then(Json::as_bool) == Some(true);
    let mut required = arguments().filter(is_required).filter_map(|a| a.get("name")?.as_str());
    if let Some(first) = required.next() {
        let names = std::iter::once(first).chain(required);
        schema.array("required", names, |name, out| write_str(&name, out));
    }
}

/// Returns the values that a prompt lists for an argument: an array of strings, not empty. Anything else that
/// an upstream may have put there would make hosts reject the whole list.
pub(super) fn choices<'a>(prompt: Json<'a>, argument: &str) -> Option<Json<'a>> {
    let choices = prompt.get("_meta")?.get("choices")?.get(argument)?;
    let is_choice =
        |choice: Json<'_>| choice.as_str().is_some_and(|choice| hidden_text::count(&choice) == 0);
    let is_usable = choices.kind() == Kind::Array
        && choices.elements().next().is_some()
        && choices.elements().all(is_choice);
    is_usable.then_some(choices)
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
        write_prompt_tool(Json::parse(text.as_bytes(), 64).unwrap(), "t", &mut out);
        serde_json::from_str(&out).unwrap()
    }

    #[test]
    fn arguments_become_a_json_schema() {
        let prompt = json!({"name": "lib__p", "title": "P", "description": "Does p",
            "arguments": [
                {"name": "code", "description": "The change", "required": true},
                {"name": "focus", "title": "Focus", "required": false}],
            "_meta": {"version": 3, "choices": {"focus": ["speed", "safety"]}}});
        let expected = json!({"name": "t", "title": "P", "description": "Does p",
            "inputSchema": {"type": "object", "required": ["code"], "properties": {
                "code": {"type": "string", "description": "The change"},
                "focus": {"type": "string", "title": "Focus", "enum": ["speed", "safety"]}}},
            "annotations": {"readOnlyHint": true},
            "_meta": {"version": 3, "choices": {"focus": ["speed", "safety"]}}});
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
    fn the_pair_is_valid_json() {
        let mut out = "[".to_owned();
        write_find_prompt(&mut out);
        out.push(',');
        write_use_prompt(&mut out);
        out.push(']');
        let tools: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(tools[0]["name"], "find_prompt");
        assert_eq!(tools[1]["inputSchema"]["required"], json!(["name"]));
    }
}

//! A skill as a prompt, for hosts without skills: its definition, and messages with the text of
//! `SKILL.md`.

use crate::json::document::Document;
use crate::json::object::write_object;
use crate::json::{Json, write_str};
use crate::name::Prefix;
use crate::prompts::prompt::Prompt;
use crate::prompts::skill::{Skill, public_uri};

/// The argument of a prompt derived from a skill.
pub const TASK: &str = "task";

/// The JSON depth of a definition or a result: objects in an array.
const DEPTH: usize = 8;

/// Returns the prompt derived from a skill. It is listed under the name of the skill; its raw name,
/// which rules use, is the path of the skill.
pub fn prompt_of(skill: &Skill) -> Prompt {
    let mut text = String::new();
    write_object(&mut text, |prompt| {
        prompt.text("name", skill.name()).text("description", &skill.description());
        prompt.array("arguments", [TASK], |name, out| {
            write_object(out, |argument| {
                argument.text("name", name).text("description", TASK_DESCRIPTION);
            });
        });
    });
    let mut known = Prompt::named(&skill.path);
    known.via = skill.via.clone();
    let read = Json::parse_text(&text, DEPTH).ok().and_then(|json| Prompt::read(json).ok());
    let listed = read.map(|read| read.canonical());
    let listed = listed.and_then(|text| Prompt::approved(Json::accepted(&text), &known));
    listed.unwrap_or(known)
}

const TASK_DESCRIPTION: &str = "What to do with the skill";

/// The parts of the messages of a prompt derived from a skill.
#[derive(Clone, Copy, Debug)]
pub struct SkillMessages<'a> {
    pub skill: &'a Skill,
    pub prefix: &'a Prefix,
    /// The text of `SKILL.md`.
    pub text: &'a str,
    /// The task; empty without one.
    pub task: &'a str,
    /// Whether the client can read the files by their URIs.
    pub reads_files: bool,
}

impl SkillMessages<'_> {
    /// Returns the `GetPromptResult`: the instructions, the other files, and the task. A client
    /// that can read the files gets a link to each file, other clients get the names.
    pub fn result(self) -> Option<Document> {
        let Self { skill, prefix, text, task, reads_files } = self;
        let mut messages = vec![text_content(instructions(text))];
        let own = skill.own_file();
        for file in skill.files.iter().filter(|file| reads_files && Some(*file) != own) {
            let mut link = String::new();
            write_object(&mut link, |link| {
                link.text("type", "resource_link").text("uri", &public_uri(prefix, &file.path));
                link.text("name", skill.path_in_folder(file)).display("size", file.size);
            });
            messages.push(link);
        }
        let names = if reads_files { Vec::new() } else { skill.other_files() };
        if !names.is_empty() {
            let names = names.join("\n- ");
            messages.push(text_content(&format!("Files of this skill:\n- {names}")));
        }
        if !task.is_empty() {
            messages.push(text_content(task));
        }
        let mut out = String::with_capacity(text.len() + 512);
        write_object(&mut out, |result| {
            result.text("description", &skill.description());
            result.array("messages", messages, |content, out| {
                write_object(out, |message| {
                    message.text("role", "user").json("content", &content);
                });
            });
        });
        Document::parse(out.into_bytes(), DEPTH).ok()
    }
}

fn text_content(text: &str) -> String {
    let mut out = String::from("{\"type\":\"text\",\"text\":");
    write_str(text, &mut out);
    out.push('}');
    out
}

/// Returns the text of a `SKILL.md` behind its front matter.
fn instructions(text: &str) -> &str {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.split_inclusive('\n');
    let Some(opening) = lines.next().filter(|line| line.trim_end() == FENCE) else { return text };
    let mut end = opening.len();
    for line in lines {
        end += line.len();
        if line.trim_end() == FENCE {
            return text[end..].trim_start_matches(['\r', '\n']);
        }
    }
    text
}

/// First and last line of the front matter.
const FENCE: &str = "---";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn skill(files: &[&str]) -> Skill {
        let digest = format!("sha256:{}", "0".repeat(64));
        let uris = files.iter().map(|file| format!("skill://acme/tea/{file}"));
        let resources: Vec<_> =
            uris.map(|uri| json!({"uri": uri, "digest": digest, "size": 7})).collect();
        let entry = json!({"uri": "skill://acme/tea/SKILL.md", "resources": resources,
            "frontmatter": {"name": "tea", "description": "Makes\u{202e} tea"}});
        let entry = entry.to_string();
        Skill::read(Json::parse_text(&entry, 8).unwrap()).unwrap()
    }

    fn contents(text: &str, task: &str, reads_files: bool) -> Vec<Value> {
        let skill = skill(&["SKILL.md", "forms/eu.md", "SKILL.md.bak"]);
        let prefix = Prefix::parse("up").unwrap();
        let messages = SkillMessages { skill: &skill, prefix: &prefix, text, task, reads_files };
        let result: Value = serde_json::from_str(messages.result().unwrap().json().text()).unwrap();
        let messages = result["messages"].as_array().unwrap().iter();
        assert!(messages.clone().all(|message| message["role"] == "user"));
        messages.map(|message| message["content"].clone()).collect()
    }

    #[test]
    fn a_skill_is_listed_by_its_name_and_ruled_by_its_path() {
        let prompt = prompt_of(&skill(&["SKILL.md"]));
        assert_eq!((&*prompt.name, prompt.listed_name()), ("acme/tea", "tea"));
        let mut listed = String::new();
        prompt.write("up__tea", &mut listed);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed["description"], "Makes tea", "as descriptions of prompts are shown");
        assert_eq!(listed["arguments"][0]["name"], TASK);
        assert!(prompt.arguments.len() == 1 && !prompt.arguments[0].required);
    }

    #[test]
    fn messages_are_the_instructions_the_files_and_the_task() {
        let text = "---\nname: tea\n---\n\nBoil \"water\".\n---\n";
        let linked = contents(text, "green", true);
        assert_eq!(linked[0], json!({"type": "text", "text": "Boil \"water\".\n---\n"}));
        let link = json!({"type": "resource_link", "uri": "skill://up/acme/tea/forms/eu.md",
            "name": "forms/eu.md", "size": 7});
        assert_eq!(linked[1], link);
        assert_eq!(linked[3], json!({"type": "text", "text": "green"}));
        let named = contents(text, "", false);
        let names = "Files of this skill:\n- forms/eu.md\n- SKILL.md.bak";
        assert_eq!(named[1..], [json!({"type": "text", "text": names})]);
    }

    #[test]
    fn a_text_without_whole_front_matter_is_kept() {
        for text in ["Boil.", "---\nname: x\nBoil.", "--- x\n---\nBoil."] {
            assert_eq!(instructions(text), text);
        }
        assert_eq!(instructions("\u{feff}---\r\na: b\r\n---\r\n\r\nBoil."), "Boil.");
        assert_eq!(instructions("---\na: b\n---"), "");
    }
}

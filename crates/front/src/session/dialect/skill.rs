//! Skills and their files, as the results of their methods and of tools.

use super::result_meta::write_origin;
use super::result_writer::{ResultWriter, write_shared};
use calls::skills::file::only_content;
use catalog::reply::{SkillBody, SkillReply};
use domain::json::Json;
use domain::json::document::Document;
use domain::json::object::write_object;
use domain::prompts::content::is_mime_type;
use domain::text::chunks::{Chunks, Splices};
use domain::tool::result::write_text_block;

/// Writes the entry of a skill, a file or a folder of it (extension for skills).
pub(super) fn skill_result(skill: &SkillReply, writer: ResultWriter<'_>) -> Chunks {
    let SkillReply { body, origin, ttl, scope, is_snapshot } = skill;
    writer.with_capacity(2 << 10).chunks(
        |meta| {
            write_origin(origin, meta);
            if *is_snapshot {
                meta.display("promptgate/snapshot", true);
            }
        },
        |result, splices| {
            match body {
                SkillBody::Entry(entry) => result.json("skill", entry),
                SkillBody::Directory(elements) => {
                    result.written("resources", |out| out.extend(["[", elements, "]"]))
                }
                SkillBody::File { uri, result: file, .. } => result.written("contents", |out| {
                    out.push('[');
                    write_file(uri, file, splices, out);
                    out.push(']');
                }),
            };
            writer.write_cache_hints(ttl.as_millis(), *scope, result);
        },
    )
}

/// Writes a file of a skill as the result of a tool. Behind a `SKILL.md` come the names of the
/// other files.
pub(super) fn skill_tool_result(skill: &SkillReply, writer: ResultWriter<'_>) -> Chunks {
    let SkillReply { body, origin, .. } = skill;
    writer.with_capacity(2 << 10).chunks(
        |meta| write_origin(origin, meta),
        |result, splices| {
            result.written("content", |out| {
                out.push('[');
                if let SkillBody::File { uri, result: file, skill } = body {
                    write_file_block(uri, file, splices, out);
                    let names = skill.as_ref().map(|skill| skill.other_files());
                    if let Some(names) = names.filter(|names| !names.is_empty()) {
                        out.push(',');
                        let names = names.join("\n- ");
                        write_text_block(&format!("Files of this skill:\n- {names}"), out);
                    }
                }
                out.push(']');
            });
        },
    )
}

/// Writes the file that is the only content of an upstream's result, under its public URI.
fn write_file(uri: &str, file: &Document, splices: &mut Splices, out: &mut String) {
    let Some(content) = only_content(file.json()) else { return };
    write_object(out, |out| {
        out.text("uri", uri);
        let mime = content.get("mimeType").and_then(Json::as_str);
        if let Some(mime) = mime.filter(|mime| is_mime_type(mime)) {
            out.text("mimeType", &mime);
        }
        for (key, value) in content.members().filter(|(key, _)| key.is("text") || key.is("blob")) {
            out.rewritten(key, |out| write_shared(value, file, splices, out));
        }
    });
}

/// Writes a file of a skill as content of a tool: a text, or an embedded resource.
fn write_file_block(uri: &str, file: &Document, splices: &mut Splices, out: &mut String) {
    let text = only_content(file.json()).and_then(|content| content.get("text"));
    write_object(out, |block| {
        match text {
            Some(text) => block
                .text("type", "text")
                .written("text", |out| write_shared(text, file, splices, out)),
            None => block
                .text("type", "resource")
                .written("resource", |out| write_file(uri, file, splices, out)),
        };
    });
}

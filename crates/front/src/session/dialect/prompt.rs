//! Prompts, as the results of `prompts/get` and of tools.

use super::result_meta::{write_flags, write_origin};
use super::result_writer::{ResultWriter, write_shared};
use catalog::reply::PromptReply;
use domain::json::object::ObjectWriter;
use domain::json::{Json, JsonKind};
use domain::prompts::call_overlay::{AddedMessage, with_messages};
use domain::text::chunks::{Chunks, Splices};
use domain::tool::result::write_content;
use domain::{protocol::meta, protocol::translate};

/// Writes the result of `prompts/get`.
pub(super) fn prompt_result(prompt: &PromptReply, writer: ResultWriter<'_>) -> Chunks {
    let PromptReply { result: document, origin, overlay, links, .. } = prompt;
    let overlay = overlay.as_deref();
    let revision = writer.revision;
    let from_upstream = document.json();
    writer.with_capacity(from_upstream.text().len().min(4 << 10) + 512).chunks(
        |meta| write_prompt_meta(prompt, meta),
        |result, splices| {
            for (key, value) in from_upstream.members() {
                let is_ours = ["_meta", "resultType"].iter().any(|name| key.is(name));
                if key.is("messages") && translate::applies(value, revision) {
                    result.written("messages", |out| {
                        let linked = with_links(prompt, value);
                        let messages = linked.as_deref().map_or(value, Json::accepted);
                        let messages = with_messages(overlay, messages);
                        translate::write_messages(messages, &origin.name, revision, out);
                    });
                } else if key.is("messages") && (overlay.is_some() || !links.is_empty()) {
                    result.written("messages", |out| write_messages(prompt, value, splices, out));
                } else if !is_ours && value.kind() != JsonKind::Null {
                    result.rewritten(key, |out| write_shared(value, document, splices, out));
                }
            }
        },
    )
}

/// Writes the messages of a prompt as the result of a tool.
pub(super) fn prompt_tool_result(prompt: &PromptReply, writer: ResultWriter<'_>) -> String {
    let PromptReply { result: document, origin, overlay, .. } = prompt;
    let from_upstream = document.json();
    writer.with_capacity(from_upstream.text().len() + 1024).text(
        // Hosts obey some metadata of tools, so no metadata of an upstream is passed on.
        |meta| write_own_meta(prompt, meta),
        |result| {
            result.written("content", |out| match from_upstream.get("messages") {
                Some(messages) => {
                    let linked = with_links(prompt, messages);
                    let messages = linked.as_deref().map_or(messages, Json::accepted);
                    let messages = with_messages(overlay.as_deref(), messages);
                    write_content(messages, &origin.name, writer.revision, out);
                }
                None => out.push_str("[]"),
            });
        },
    )
}

/// Appends the messages of an upstream, a JSON array, with sealed links, and those of the overlays
/// around them.
fn write_messages(
    prompt: &PromptReply,
    messages: Json<'_>,
    splices: &mut Splices,
    out: &mut String,
) {
    let PromptReply { result: document, overlay, links, .. } = prompt;
    let inner = &messages.text()[1..messages.text().len() - 1];
    let is_empty = inner.trim_ascii().is_empty();
    let joined =
        |added: &[AddedMessage]| added.iter().map(AddedMessage::json).collect::<Vec<_>>().join(",");
    let overlay = overlay.as_deref();
    let before = overlay.map(|overlay| joined(overlay.before())).unwrap_or_default();
    let after = overlay.map(|overlay| joined(overlay.after())).unwrap_or_default();
    out.extend(["[", &before]);
    if !before.is_empty() && !is_empty {
        out.push(',');
    }
    links.write(document, inner, splices, out);
    let is_first = is_empty && before.is_empty();
    if !after.is_empty() && !is_first {
        out.push(',');
    }
    out.extend([&after, "]"]);
}

/// Returns a copy of the messages with sealed links, where there are any.
fn with_links(prompt: &PromptReply, messages: Json<'_>) -> Option<String> {
    let PromptReply { result, links, .. } = prompt;
    (!links.is_empty()).then(|| links.applied(result, messages))
}

fn write_prompt_meta(prompt: &PromptReply, meta: &mut ObjectWriter<'_>) {
    if let Some(upstream_meta) = prompt.result.json().get("_meta") {
        meta::write_foreign(upstream_meta, meta);
        // Only libraries and stores have versions; the gateway itself makes their results.
        let config = upstream_meta.get(meta::CONFIG).filter(|_| prompt.origin.version.is_some());
        if let Some(config) = config {
            meta.json(meta::CONFIG, config.text());
        }
    }
    write_own_meta(prompt, meta);
}

fn write_own_meta(prompt: &PromptReply, meta: &mut ObjectWriter<'_>) {
    let PromptReply { origin, flags, .. } = prompt;
    write_origin(origin, meta);
    if prompt.is_snapshot {
        meta.display("promptgate/snapshot", true);
    }
    write_flags(flags, meta);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::session::dialect::ServerIdentity;
    use catalog::reply::ResultOrigin;
    use domain::json::document::Document;
    use domain::protocol::revision::Revision;

    fn reply(revision: Revision, result: &str) -> Value {
        let result = Document::parse(result.as_bytes().to_vec(), 64).unwrap();
        let origin = ResultOrigin {
            upstream: domain::name::UpstreamId::parse("up").unwrap(),
            digest: "sha256:00".into(),
            name: "up__p".into(),
            version: None,
            rollout: None,
        };
        let identity = ServerIdentity::new("gate", None);
        let writer = ResultWriter::new(revision, &identity);
        let text = prompt_result(&PromptReply::of(result, origin), writer);
        serde_json::from_str(&text.into_text()).unwrap()
    }

    #[test]
    fn results_have_the_members_of_their_era_and_pass_unknown_ones() {
        let from_upstream = r#"{"messages":[],"description":"d","x":{"y":null},"resultType":"complete",
            "_meta":{"promptgate/upstream":"evil","io.modelcontextprotocol/serverInfo":{},"k":1}}"#;
        let legacy = reply(Revision::V2025_06_18, from_upstream);
        let meta = json!({"k": 1, "promptgate/upstream": "up", "promptgate/digest": "sha256:00"});
        assert_eq!(legacy, json!({"_meta": meta, "messages": [], "description": "d", "x": {}}));
        let modern = reply(Revision::V2026_07_28, from_upstream);
        assert_eq!(modern["resultType"], "complete");
        assert_eq!(modern["_meta"][meta::SERVER_INFO]["name"], "gate");
        assert_eq!(modern["_meta"]["promptgate/upstream"], "up");
    }
}

//! Messages to a client, written for the client's revision.

use std::fmt::Write as _;

use crate::domain::json::object;
use crate::domain::json::{Json, Kind, write_str};
use crate::domain::jsonrpc::Id;
use crate::domain::method::{CANCELLED, ELICITATION_COMPLETE, LIST_CHANGED, PROGRESS};
use crate::domain::revision::{Era, Revision};
use crate::domain::server_request::{Presentation, ServerRequest};
use crate::domain::{meta, translate};
use crate::router::call_channel::RequestOrigin;
use crate::router::reply::{Completion, InputRequired, ListReply, Origin, Reply};

/// The rules for messages to a client of one revision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dialect {
    revision: Revision,
}

/// The gateway's own implementation info and instructions.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `Implementation` as JSON text.
    server_info: String,
    /// `"instructions":"…",` or an empty string.
    instructions: String,
}

impl Identity {
    /// `name` and `instructions` are `server.name` and `server.instructions`.
    pub fn new(name: &str, instructions: Option<&str>) -> Self {
        let mut server_info = String::from("{\"name\":");
        write_str(name, &mut server_info);
        let version = env!("CARGO_PKG_VERSION");
        let _ = write!(server_info, ",\"version\":\"{version}\"}}");
        let mut member = String::new();
        if let Some(text) = instructions {
            member.push_str("\"instructions\":");
            write_str(text, &mut member);
            member.push(',');
        }
        Self { server_info, instructions: member }
    }
}

impl Dialect {
    /// Returns the dialect of a revision.
    pub fn new(revision: Revision) -> Self {
        Self { revision }
    }

    /// Returns the revision of the dialect.
    pub fn revision(self) -> Revision {
        self.revision
    }

    /// Returns whether an error without a request has `id: null`. From 2025-11-25 on it has no id.
    pub fn writes_null_id(self) -> bool {
        self.revision < Revision::V2025_11_25
    }

    /// Returns whether an unknown method and a missing client capability have an HTTP status of their
    /// own (MCP 2026-07-28, Streamable HTTP). In the legacy era the status is 200.
    pub fn has_error_status(self) -> bool {
        self.revision.era() == Era::Modern
    }

    /// Returns whether a client cancels its call by disconnecting (MCP 2026-07-28, Streamable HTTP).
    pub fn cancels_on_disconnect(self) -> bool {
        self.revision.era() == Era::Modern
    }

    /// Returns whether the revision has JSON-RPC batches (MCP 2025-03-26 only).
    pub fn supports_batches(self) -> bool {
        self.revision == Revision::V2025_03_26
    }

    /// Returns whether a stream starts with an event that has an id and no data, so that the client can
    /// resume the stream from its start (MCP 2025-11-25, Streamable HTTP).
    pub fn has_priming_event(self) -> bool {
        self.revision == Revision::V2025_11_25
    }

    /// Writes `notifications/prompts/list_changed`, for a subscription with its id.
    pub fn list_changed(self, subscription: Option<&Id>) -> String {
        match subscription {
            None => format!(r#"{{"jsonrpc":"2.0","method":"{LIST_CHANGED}"}}"#),
            Some(id) => format!(
                r#"{{"jsonrpc":"2.0","method":"{LIST_CHANGED}","params":{{"_meta":{{"{}":{id}}}}}}}"#,
                meta::SUBSCRIPTION_ID
            ),
        }
    }

    /// Writes `notifications/progress` with the client's token, and with the members that the revision
    /// knows.
    pub fn progress(self, token: &Id, params: Json<'_>) -> String {
        let mut members = String::new();
        for (key, value) in params.members() {
            let key = key.as_str().unwrap_or_default();
            let known = match &*key {
                "progress" | "total" => value.kind() == Kind::Number,
                "message" => value.kind() == Kind::String && self.revision >= Revision::V2025_03_26,
                _ => false,
            };
            if known {
                object::write_json(&key, value.text(), &mut members);
            }
        }
        format!(
            r#"{{"jsonrpc":"2.0","method":"{PROGRESS}","params":{{{members}"progressToken":{token}}}}}"#
        )
    }

    /// Returns whether the revision has `notifications/elicitation/complete`.
    pub fn has_elicitation_complete(self) -> bool {
        self.revision == Revision::V2025_11_25
    }

    /// Writes `notifications/elicitation/complete` (MCP 2025-11-25, URL elicitation).
    pub fn elicitation_complete(self, id: &str) -> String {
        let mut params = String::new();
        object::write_text("elicitationId", id, &mut params);
        let params = params.trim_end_matches(',');
        format!(r#"{{"jsonrpc":"2.0","method":"{ELICITATION_COMPLETE}","params":{{{params}}}}}"#)
    }

    /// Writes a server request as a JSON-RPC request of the gateway.
    pub fn server_request(
        self,
        id: &Id,
        server_request: &ServerRequest,
        origin: &RequestOrigin,
    ) -> String {
        let mut params = String::new();
        server_request
            .write_params(self.presentation(origin, id.text().trim_matches('"')), &mut params);
        let method = server_request.method();
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
    }

    fn presentation<'a>(self, origin: &'a RequestOrigin, id: &'a str) -> Presentation<'a> {
        Presentation {
            upstream: &origin.upstream,
            label: origin.label,
            revision: self.revision,
            id,
        }
    }

    /// Writes `notifications/cancelled`: withdraws a server request, or ends a subscription on a
    /// connection, where there is no stream to close.
    pub fn cancelled(self, id: &Id) -> String {
        format!(r#"{{"jsonrpc":"2.0","method":"{CANCELLED}","params":{{"requestId":{id}}}}}"#)
    }

    /// Writes the first message of a subscription, which names the notifications that the gateway will
    /// send (MCP 2026-07-28, subscriptions).
    pub fn acknowledged(self, subscription: &Id, wants_list_changed: bool) -> String {
        let honoured = if wants_list_changed { "\"promptsListChanged\":true" } else { "" };
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"{}":{subscription}}},"notifications":{{{honoured}}}}}}}"#,
            meta::SUBSCRIPTION_ID
        )
    }

    /// Writes the result of `subscriptions/listen`, which ends the subscription.
    pub fn listen_result(self, subscription: &Id, identity: &Identity) -> String {
        let tag = format!("\"{}\":{subscription},", meta::SUBSCRIPTION_ID);
        let mut out = String::from("{");
        self.write_result_start(identity, &tag, &mut out);
        close(out)
    }

    /// Writes the result of `initialize`.
    pub fn initialize(self, identity: &Identity) -> String {
        let Identity { server_info, instructions } = identity;
        // The capability exists since 2025-03-26. The method is served for 2024-11-05, too.
        let completions = match self.revision {
            Revision::V2024_11_05 => "",
            _ => ",\"completions\":{}",
        };
        format!(
            r#"{{"protocolVersion":"{}",{instructions}"capabilities":{{"prompts":{{"listChanged":true}}{completions}}},"serverInfo":{server_info}}}"#,
            self.revision
        )
    }

    /// Writes the result of `server/discover`, which changes with the configuration only. `ttl_ms` is in
    /// milliseconds.
    pub fn discover(self, identity: &Identity, ttl_ms: u128) -> String {
        let versions: Vec<_> = Revision::modern().map(|r| format!("\"{r}\"")).collect();
        let versions = versions.join(",");
        let instructions = &identity.instructions;
        let mut out = String::from("{");
        self.write_result_start(identity, "", &mut out);
        let _ = write!(
            out,
            r#""supportedVersions":[{versions}],{instructions}"capabilities":{{"prompts":{{"listChanged":true}},"completions":{{}}}},"ttlMs":{ttl_ms},"cacheScope":"public"}}"#
        );
        out
    }

    /// Writes the result of a call.
    pub fn reply(self, reply: &Reply, identity: &Identity) -> String {
        match reply {
            Reply::List(list) => self.list(list, identity),
            Reply::Prompt { result, origin, flags } => {
                let result = result.json();
                let mut meta = String::new();
                if let Some(upstream_meta) = result.get("_meta") {
                    meta::write_foreign(upstream_meta, &mut meta);
                }
                write_origin(origin, &mut meta);
                if let Some(places) = &flags.hidden_text {
                    object::write_json("promptgate/hiddenText", places, &mut meta);
                }
                if let Some(places) = &flags.unsafe_uris {
                    object::write_json("promptgate/unsafeUris", places, &mut meta);
                }
                let mut out = String::with_capacity(result.text().len() + 512);
                out.push('{');
                self.write_result_start(identity, &meta, &mut out);
                for (key, value) in result.members() {
                    let owned = ["_meta", "resultType"].iter().any(|name| key.is(name));
                    if key.is("messages") && translate::is_needed(self.revision) {
                        out.push_str("\"messages\":");
                        translate::write_messages(value, &origin.name, self.revision, &mut out);
                        out.push(',');
                    } else if !owned && value.kind() != Kind::Null {
                        out.push_str(key.text());
                        out.push(':');
                        out.push_str(value.text());
                        out.push(',');
                    }
                }
                close(out)
            }
            Reply::InputRequired(input_required) => self.input_required(input_required, identity),
            Reply::Completion { completion, origin } => {
                let mut meta = String::new();
                write_origin(origin, &mut meta);
                let mut out = String::from("{");
                self.write_result_start(identity, &meta, &mut out);
                write_completion(completion, &mut out);
                close(out)
            }
        }
    }

    /// Writes an `InputRequiredResult` (MCP 2026-07-28, multi-round-trip requests).
    fn input_required(self, input_required: &InputRequired, identity: &Identity) -> String {
        let mut meta = String::new();
        object::write_json(meta::SERVER_INFO, &identity.server_info, &mut meta);
        object::write_text("promptgate/upstream", &input_required.origin.upstream, &mut meta);
        let mut requests = String::new();
        for (key, server_request) in &input_required.server_requests {
            let mut request = format!("{{\"method\":\"{}\",\"params\":", server_request.method());
            server_request
                .write_params(self.presentation(&input_required.origin, key), &mut request);
            request.push('}');
            object::write_json(key, &request, &mut requests);
        }
        let meta = meta.trim_end_matches(',');
        let requests = requests.trim_end_matches(',');
        let state = &input_required.state;
        format!(
            r#"{{"resultType":"input_required","_meta":{{{meta}}},"inputRequests":{{{requests}}},"requestState":"{state}"}}"#
        )
    }

    fn list(self, list: &ListReply, identity: &Identity) -> String {
        let page = list.page();
        let mut out = String::with_capacity(page.elements.len() + 2048);
        out.push('{');
        let mut meta = String::new();
        write_incomplete(list, &mut meta);
        self.write_result_start(identity, &meta, &mut out);
        if self.revision.era() == Era::Modern {
            let ttl = list.ttl.as_millis();
            let scope = list.scope.as_str();
            let _ = write!(out, r#""ttlMs":{ttl},"cacheScope":"{scope}","#);
        }
        out.push_str("\"prompts\":[");
        out.push_str(page.elements);
        out.push_str("],");
        if let Some(cursor) = &list.next_cursor {
            let _ = write!(out, "\"nextCursor\":\"{cursor}\",");
        }
        close(out)
    }

    /// Writes the members at the start of every result: `resultType` in the modern era, and `_meta`. `meta`
    /// contains further members of `_meta`, each followed by a comma.
    fn write_result_start(self, identity: &Identity, meta: &str, out: &mut String) {
        let own = match self.revision.era() {
            Era::Legacy => String::new(),
            Era::Modern => {
                out.push_str("\"resultType\":\"complete\",");
                format!("\"{}\":{},", meta::SERVER_INFO, identity.server_info)
            }
        };
        let members = own + meta;
        if let Some(members) = members.strip_suffix(',') {
            let _ = write!(out, "\"_meta\":{{{members}}},");
        }
    }
}

/// Writes the upstream and the digest of the definition of a prompt.
fn write_origin(origin: &Origin, meta: &mut String) {
    object::write_text("promptgate/upstream", &origin.upstream, meta);
    object::write_text("promptgate/digest", &origin.digest, meta);
}

/// Writes `promptgate/incomplete`: the upstreams whose prompts are stale or missing.
fn write_incomplete(list: &ListReply, meta: &mut String) {
    if list.incomplete.is_empty() {
        return;
    }
    meta.push_str("\"promptgate/incomplete\":[");
    for (i, part) in list.incomplete.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let stale = part.walked_at.is_some();
        let _ = write!(
            meta,
            r#"{comma}{{"upstream":"{}","reason":"{}","stale":{stale}"#,
            part.upstream,
            part.kind.reason()
        );
        if let Some(walked_at) = part.walked_at {
            let age = list.now.duration_since(walked_at).as_millis();
            let _ = write!(meta, ",\"ageMs\":{age}");
        }
        meta.push('}');
    }
    meta.push_str("],");
}

fn write_completion(completion: &Completion, out: &mut String) {
    let Completion { values, total, has_more } = completion;
    let _ = write!(out, "\"completion\":{{\"values\":[{values}]");
    if let Some(total) = total {
        let _ = write!(out, ",\"total\":{total}");
    }
    if let Some(has_more) = has_more {
        let _ = write!(out, ",\"hasMore\":{has_more}");
    }
    out.push_str("},");
}

/// Writes a JSON-RPC response with a result, which is JSON text.
pub(crate) fn result_message(id: &Id, result: &str) -> String {
    let mut out = String::with_capacity(result.len() + 64);
    for part in ["{\"jsonrpc\":\"2.0\",\"id\":", id.text(), ",\"result\":", result, "}"] {
        out.push_str(part);
    }
    out
}

/// Closes an object whose members are each followed by a comma.
fn close(mut out: String) -> String {
    if out.ends_with(',') {
        out.pop();
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::document::Document;

    fn reply(revision: Revision, result: &str) -> Value {
        let result = Document::parse(result.as_bytes().to_vec(), 64).unwrap();
        let origin = Origin {
            upstream: "up".to_owned(),
            digest: "sha256:00".to_owned(),
            name: "up__p".to_owned(),
        };
        let identity = Identity::new("gate", None);
        let text = Dialect::new(revision)
            .reply(&Reply::Prompt { result, origin, flags: Default::default() }, &identity);
        serde_json::from_str(&text).unwrap()
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

    #[test]
    fn initialize_declares_the_capabilities_of_the_revision() {
        let identity = Identity::new("a \"gate\"", Some("Ask \"nicely\""));
        let result = |revision| -> Value {
            serde_json::from_str(&Dialect::new(revision).initialize(&identity)).unwrap()
        };
        let newest = result(Revision::V2025_11_25);
        assert_eq!(
            newest["capabilities"],
            json!({"prompts": {"listChanged": true}, "completions": {}})
        );
        assert_eq!(newest["instructions"], "Ask \"nicely\"");
        assert_eq!(newest["serverInfo"]["name"], "a \"gate\"");
        assert_eq!(
            result(Revision::V2024_11_05)["capabilities"],
            json!({"prompts": {"listChanged": true}})
        );
    }
}

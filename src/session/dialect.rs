//! All that depends on a client's revision when something is written for it.

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

/// How one client is written to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dialect {
    revision: Revision,
}

/// Who the gateway says it is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `Implementation` as JSON text.
    server_info: String,
    /// `"instructions":"…",` or nothing.
    instructions: String,
}

impl Identity {
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
    pub fn new(revision: Revision) -> Self {
        Self { revision }
    }

    pub fn revision(self) -> Revision {
        self.revision
    }

    /// How an error that cannot name its request says so: `id: null`, or no id from 2025-11-25 on.
    pub fn writes_null_id(self) -> bool {
        self.revision < Revision::V2025_11_25
    }

    /// A method that is not served, or a capability that is missing, has an HTTP status of its own
    /// in the modern era; before, HTTP told nothing about it.
    pub fn takes_status_of_errors(self) -> bool {
        self.revision.era() == Era::Modern
    }

    /// Whether a client that goes away cancels its call.
    pub fn cancels_on_disconnect(self) -> bool {
        self.revision.era() == Era::Modern
    }

    /// Whether an array of messages is one request.
    pub fn takes_batches(self) -> bool {
        self.revision == Revision::V2025_03_26
    }

    /// Whether a stream starts with an event that only carries an id.
    pub fn primes_streams(self) -> bool {
        self.revision == Revision::V2025_11_25
    }

    /// The notice that the visible list is another one.
    pub fn list_changed(self, subscription: Option<&Id>) -> String {
        match subscription {
            None => format!(r#"{{"jsonrpc":"2.0","method":"{LIST_CHANGED}"}}"#),
            Some(id) => format!(
                r#"{{"jsonrpc":"2.0","method":"{LIST_CHANGED}","params":{{"_meta":{{"{}":{id}}}}}}}"#,
                meta::SUBSCRIPTION_ID
            ),
        }
    }

    /// How far a call is, under the client's own token.
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

    /// Whether its client can be told that a page is done.
    pub fn has_elicitation_complete(self) -> bool {
        self.revision == Revision::V2025_11_25
    }

    /// The notice that what a page was for is done.
    pub fn elicitation_complete(self, id: &str) -> String {
        let mut params = String::new();
        object::write_text("elicitationId", id, &mut params);
        let params = params.trim_end_matches(',');
        format!(r#"{{"jsonrpc":"2.0","method":"{ELICITATION_COMPLETE}","params":{{{params}}}}}"#)
    }

    /// A question, as a request of ours.
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

    /// Tells that a request is over (stdio, where no stream of its own can be closed).
    pub fn cancelled(self, id: &Id) -> String {
        format!(r#"{{"jsonrpc":"2.0","method":"{CANCELLED}","params":{{"requestId":{id}}}}}"#)
    }

    /// The first message of a subscription: what of it is honoured.
    pub fn acknowledged(self, subscription: &Id, wants: bool) -> String {
        let honoured = if wants { "\"promptsListChanged\":true" } else { "" };
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"{}":{subscription}}},"notifications":{{{honoured}}}}}}}"#,
            meta::SUBSCRIPTION_ID
        )
    }

    /// The result that ends a subscription.
    pub fn listen_result(self, subscription: &Id, identity: &Identity) -> String {
        let tag = format!("\"{}\":{subscription},", meta::SUBSCRIPTION_ID);
        let mut out = String::from("{");
        self.lead(identity, &tag, &mut out);
        close(out)
    }

    /// The result of `initialize`.
    pub fn initialize(self, identity: &Identity) -> String {
        let Identity { server_info, instructions } = identity;
        // The capability exists since 2025-03-26; the method is served before that as well.
        let completions = match self.revision {
            Revision::V2024_11_05 => "",
            _ => ",\"completions\":{}",
        };
        format!(
            r#"{{"protocolVersion":"{}",{instructions}"capabilities":{{"prompts":{{"listChanged":true}}{completions}}},"serverInfo":{server_info}}}"#,
            self.revision
        )
    }

    /// The result of `server/discover`. It only changes with the configuration.
    pub fn discover(self, identity: &Identity, ttl_ms: u128) -> String {
        let versions: Vec<_> = Revision::modern().map(|r| format!("\"{r}\"")).collect();
        let (versions, instructions) = (versions.join(","), &identity.instructions);
        let mut out = String::from("{");
        self.lead(identity, "", &mut out);
        let _ = write!(
            out,
            r#""supportedVersions":[{versions}],{instructions}"capabilities":{{"prompts":{{"listChanged":true}},"completions":{{}}}},"ttlMs":{ttl_ms},"cacheScope":"public"}}"#
        );
        out
    }

    /// The result of a call.
    pub fn reply(self, reply: &Reply, identity: &Identity) -> String {
        match reply {
            Reply::List(list) => self.list(list, identity),
            Reply::Prompt { result, origin, flags } => {
                let result = result.json();
                let mut meta = String::new();
                if let Some(theirs) = result.get("_meta") {
                    meta::write_foreign(theirs, &mut meta);
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
                self.lead(identity, &meta, &mut out);
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
                self.lead(identity, &meta, &mut out);
                write_completion(completion, &mut out);
                close(out)
            }
        }
    }

    /// A result that asks (`InputRequiredResult`).
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
        let (meta, requests) = (meta.trim_end_matches(','), requests.trim_end_matches(','));
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
        self.lead(identity, &meta, &mut out);
        if self.revision.era() == Era::Modern {
            let (ttl, scope) = (list.ttl.as_millis(), list.scope.as_str());
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

    /// What leads every result: `resultType` in the modern era, and `_meta`, whose members come as
    /// `meta`, each followed by a comma.
    fn lead(self, identity: &Identity, meta: &str, out: &mut String) {
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

fn write_origin(origin: &Origin, meta: &mut String) {
    object::write_text("promptgate/upstream", &origin.upstream, meta);
    object::write_text("promptgate/digest", &origin.digest, meta);
}

/// Names the upstreams whose prompts are old or missing.
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

/// The JSON-RPC message that carries a result.
pub(crate) fn result_message(id: &Id, result: &str) -> String {
    let mut out = String::with_capacity(result.len() + 64);
    for part in ["{\"jsonrpc\":\"2.0\",\"id\":", id.text(), ",\"result\":", result, "}"] {
        out.push_str(part);
    }
    out
}

/// Ends an object whose members are each followed by a comma.
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
        let (upstream, digest) = ("up".to_owned(), "sha256:00".to_owned());
        let origin = Origin { upstream, digest, name: "up__p".to_owned() };
        let identity = Identity::new("gate", None);
        let text = Dialect::new(revision)
            .reply(&Reply::Prompt { result, origin, flags: Default::default() }, &identity);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn each_era_gets_what_it_knows_and_the_rest_passes() {
        let theirs = r#"{"messages":[],"description":"d","x":{"y":null},"resultType":"complete",
            "_meta":{"promptgate/upstream":"evil","io.modelcontextprotocol/serverInfo":{},"k":1}}"#;
        let legacy = reply(Revision::V2025_06_18, theirs);
        let meta = json!({"k": 1, "promptgate/upstream": "up", "promptgate/digest": "sha256:00"});
        assert_eq!(legacy, json!({"_meta": meta, "messages": [], "description": "d", "x": {}}));
        let modern = reply(Revision::V2026_07_28, theirs);
        assert_eq!(modern["resultType"], "complete");
        assert_eq!(modern["_meta"][meta::SERVER_INFO]["name"], "gate");
        assert_eq!(modern["_meta"]["promptgate/upstream"], "up");
    }

    #[test]
    fn initialize_declares_what_the_revision_has() {
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

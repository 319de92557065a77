//! Notifications and server requests.

use super::Dialect;
use super::input_required::presentation;
use catalog::reply::RequestOrigin;
use catalog::view_cache::ListKinds;
use domain::json::jsonrpc::{self, Id};
use domain::json::object::ObjectWriter;
use domain::json::{Json, JsonKind};
use domain::protocol::meta;
use domain::protocol::method::{
    CANCELLED, ELICITATION_COMPLETE, MESSAGE, PROGRESS, SUBSCRIPTION_ACKNOWLEDGED,
};
use domain::protocol::revision::Revision;
use domain::protocol::server_request::ServerRequest;
use upstream::passthrough_signals::PassthroughLists;

impl Dialect {
    /// Writes the notification `method` that a list has changed, for a subscription with its id.
    pub fn list_changed(self, method: &str, subscription: Option<&Id>) -> String {
        jsonrpc::notification(method, |params| {
            if let Some(id) = subscription {
                write_subscription(id, params);
            }
        })
    }

    /// Writes `notifications/message` with the members that the protocol defines.
    pub fn log_message(self, params: Json<'_>) -> String {
        jsonrpc::notification(MESSAGE, |out| {
            for (key, value) in params.members() {
                if ["level", "logger", "data"].iter().any(|name| key.is(name)) {
                    out.member(key, value);
                }
            }
        })
    }

    /// Writes `notifications/progress` with the client's progress token and with the members that
    /// the revision defines: `message` exists since MCP 2025-03-26.
    pub fn progress(self, token: &Id, params: Json<'_>) -> String {
        let has_message = self.revision >= Revision::V2025_03_26;
        jsonrpc::notification(PROGRESS, |out| {
            for (key, value) in params.members() {
                let is_known = match key.as_str().as_deref() {
                    Some("progress" | "total") => value.kind() == JsonKind::Number,
                    Some("message") => value.kind() == JsonKind::String && has_message,
                    _ => false,
                };
                if is_known {
                    out.member(key, value);
                }
            }
            out.json("progressToken", token.text());
        })
    }

    /// Writes `notifications/elicitation/complete` (MCP 2025-11-25, URL elicitation).
    pub fn elicitation_complete(self, id: &str) -> String {
        jsonrpc::notification(ELICITATION_COMPLETE, |params| {
            params.text("elicitationId", id);
        })
    }

    /// Writes a server request as a JSON-RPC request of the gateway.
    pub fn server_request(
        self,
        id: &Id,
        server_request: &ServerRequest,
        origin: &RequestOrigin,
    ) -> String {
        let presentation = presentation(self.revision, origin, id.text().trim_matches('"'));
        jsonrpc::message(512, |request| {
            request.json("id", id.text()).text("method", server_request.method());
            request.written("params", |out| server_request.write_params(presentation, out));
        })
    }

    /// Writes `notifications/cancelled`: withdraws a server request, or ends a subscription on a
    /// connection, where there is no stream to close.
    pub fn cancelled(self, id: &Id) -> String {
        jsonrpc::notification(CANCELLED, |params| {
            params.json("requestId", id.text());
        })
    }

    /// Writes the first message of a subscription (MCP 2026-07-28, subscriptions): the
    /// notifications that the gateway will send.
    pub(crate) fn acknowledged(
        self,
        subscription: &Id,
        kinds: ListKinds,
        passthrough: PassthroughLists,
    ) -> String {
        jsonrpc::notification(SUBSCRIPTION_ACKNOWLEDGED, |params| {
            write_subscription(subscription, params);
            params.object("notifications", |granted| {
                if kinds.prompts {
                    granted.display("promptsListChanged", true);
                }
                if kinds.tools || passthrough.tools {
                    granted.display("toolsListChanged", true);
                }
                if passthrough.resources {
                    granted.display("resourcesListChanged", true);
                }
            });
        })
    }
}

fn write_subscription(id: &Id, params: &mut ObjectWriter<'_>) {
    params.object("_meta", |meta| {
        meta.json(meta::SUBSCRIPTION_ID, id.text());
    });
}

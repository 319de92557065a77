//! The keys of `_meta` objects, and which hop may set each of them.

use crate::json::Json;
use crate::json::document::Document;
use crate::json::object::{ObjectWriter, write_object};
use crate::protocol::trace;

/// The prefix of the keys that only the gateway may set. Such keys from a peer are dropped.
pub(crate) const OWN_PREFIX: &str = "promptgate/";
/// The prefix of the keys that MCP reserves. Each hop sets its own values.
pub(crate) const PROTOCOL_PREFIX: &str = "io.modelcontextprotocol/";

pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// The configuration of a prompt from a prompt store, in a result.
pub const CONFIG: &str = "promptgate/config";

/// The URI of the upstream behind a link that is sealed, in the content of a prompt or resource.
pub const URI: &str = "promptgate/uri";

/// The key of the progress token of a request. Each hop sets its own token.
pub const PROGRESS_TOKEN: &str = "progressToken";

/// Copies the members of a peer's `_meta` that the peer may set.
pub fn write_foreign(meta: Json<'_>, out: &mut ObjectWriter<'_>) {
    for (key, value) in meta.members() {
        let name = key.as_str().unwrap_or_default();
        let is_reserved = name.starts_with(OWN_PREFIX)
            || name.starts_with(PROTOCOL_PREFIX)
            || name == PROGRESS_TOKEN;
        // The trace context is read separately. Its parent becomes the span of the gateway if spans
        // are exported.
        if !is_reserved && ![trace::PARENT, trace::STATE, trace::BAGGAGE].contains(&&*name) {
            out.member(key, value);
        }
    }
}

/// Returns a copy of `object` whose `_meta` has only the keys that the sender may set.
pub fn without_reserved(object: Json<'_>) -> Document {
    let mut text = String::with_capacity(object.text().len());
    write_object(&mut text, |out| {
        for (key, value) in object.members() {
            if key.is("_meta") {
                out.object("_meta", |meta| write_foreign(value, meta));
            } else {
                out.member(key, value);
            }
        }
    });
    Document::copy_of(Json::accepted(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_keys_of_a_peer_are_dropped() {
        let meta = r#"{"promptgate/upstream":"evil","\u0070romptgate/x":1,"a":[1],
            "io.modelcontextprotocol/serverInfo":{},"com.example/k":"v"}"#;
        let mut out = String::new();
        let meta = Json::parse(meta.as_bytes(), 64).unwrap();
        write_object(&mut out, |out| write_foreign(meta, out));
        assert_eq!(out, r#"{"a":[1],"com.example/k":"v"}"#);
    }
}

//! `_meta` objects: which keys belong to whom.

use super::json::{Json, write_str};

/// Prefix of the keys that only the gateway may set; whatever a peer sends under it is dropped.
pub const OURS: &str = "promptgate/";
/// Prefix of the keys that the protocol reserves; each hop owns its own.
pub const PROTOCOL: &str = "io.modelcontextprotocol/";

pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// Appends the members of a peer's `_meta` that may pass, each followed by a comma.
pub fn write_foreign(meta: Json<'_>, out: &mut String) {
    for (key, value) in meta.members() {
        let name = key.as_str().unwrap_or_default();
        if !name.starts_with(OURS) && !name.starts_with(PROTOCOL) {
            write_member(key.text(), value.text(), out);
        }
    }
}

/// Appends `"key":"text",`.
pub fn write_text(key: &str, text: &str, out: &mut String) {
    let mut value = String::with_capacity(text.len() + 2);
    write_str(text, &mut value);
    write_member(&format!("\"{key}\""), &value, out);
}

fn write_member(key: &str, value: &str, out: &mut String) {
    for part in [key, ":", value, ","] {
        out.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_sets_our_keys_or_the_protocols() {
        let meta = r#"{"promptgate/upstream":"evil","\u0070romptgate/x":1,"a":[1],
            "io.modelcontextprotocol/serverInfo":{},"com.example/k":"v"}"#;
        let mut out = String::new();
        write_foreign(Json::parse(meta.as_bytes(), 64).unwrap(), &mut out);
        assert_eq!(out, r#""a":[1],"com.example/k":"v","#);
    }
}

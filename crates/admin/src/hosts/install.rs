//! Links that open a host and offer it the entry. A link contains no key, as the entry does not.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::{FileEntry, Host};
use domain::text::percent::encoded;

/// Returns the address that installs the entry in a host, where its documentation has such a form.
pub fn install_link(host: Host, place: &FileEntry, name: &str) -> Option<String> {
    match host {
        Host::Cursor => {
            let entry = STANDARD.encode(place.entry.to_string());
            let (name, entry) = (encoded(name), encoded(&entry));
            Some(format!(
                "cursor://anysphere.cursor-deeplink/mcp/install?name={name}&config={entry}"
            ))
        }
        Host::VsCode => {
            let mut server = place.entry.clone();
            server["name"] = name.into();
            if let Some(input) = &place.input {
                server["inputs"] = json!([input]);
            }
            Some(format!("vscode:mcp/install?{}", encoded(&server.to_string())))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::hosts::{GatewayEndpoint, plan};

    fn link(host: Host) -> Option<String> {
        let gateway = GatewayEndpoint {
            name: "prompts",
            url: "http://localhost:9876/mcp?a=b&c",
            is_view: true,
            needs_key: true,
            has_tools: false,
            config: None,
        };
        install_link(host, &plan(host, &gateway).place?, gateway.name)
    }

    #[test]
    fn a_link_holds_the_entry_with_a_place_for_the_key() {
        let cursor = link(Host::Cursor).unwrap();
        let (begin, config) = cursor.split_once("&config=").unwrap();
        assert_eq!(begin, "cursor://anysphere.cursor-deeplink/mcp/install?name=prompts");
        let config = domain::text::percent::decoded(config).unwrap();
        let config: Value = serde_json::from_slice(&STANDARD.decode(config).unwrap()).unwrap();
        assert_eq!(config["url"], "http://localhost:9876/mcp?a=b&c");
        assert_eq!(config["headers"]["Authorization"], "Bearer ${env:PROMPTGATE_API_KEY}");
        let code = link(Host::VsCode).unwrap();
        let server =
            domain::text::percent::decoded(code.strip_prefix("vscode:mcp/install?").unwrap());
        let server: Value = serde_json::from_str(&server.unwrap()).unwrap();
        assert_eq!((&server["name"], &server["type"]), (&json!("prompts"), &json!("http")));
        assert_eq!(server["headers"]["Authorization"], "Bearer ${input:prompts-key}");
        assert_eq!(server["inputs"][0]["id"], "prompts-key");
        assert_eq!(link(Host::Goose), None);
    }
}

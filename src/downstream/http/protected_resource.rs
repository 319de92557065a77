//! What the endpoints are called where tokens are made for them, and where a client finds whom to
//! ask for one (RFC 9728). All of it comes from the configuration, nothing from a header.

use serde_json::json;

use crate::config::Config;
use crate::domain::fault::TransportFault;

/// The endpoints as protected resources; the main one first.
pub(crate) struct ProtectedResources(Vec<Resource>);

struct Resource {
    /// Where it is served.
    path: String,
    /// Its canonical URI, which is the audience of tokens for it.
    uri: String,
    /// What a client is told of it; absent if no tokens are believed.
    metadata: Option<Metadata>,
}

struct Metadata {
    /// Path of the canonical URI, without a slash at the end.
    public_path: String,
    url: String,
    document: String,
    /// All that are needed, separated by blanks.
    scopes: String,
}

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

impl ProtectedResources {
    pub(crate) fn new(config: &Config) -> Self {
        let server = &config.server;
        let main = (server.path.clone(), server.resource.clone());
        let views = config.views.iter().map(|view| {
            (server.view_path(&view.name), format!("{}/{}", server.resource, view.name))
        });
        let resource = |(path, uri): (String, String)| {
            let metadata = config.auth.jwt.as_ref().map(|jwt| metadata(&uri, server, jwt));
            Resource { path, uri, metadata }
        };
        Self(std::iter::once(main).chain(views).map(resource).collect())
    }

    /// What tokens for this path are made for. Paths that are no endpoint's are the main one's: the
    /// older transport is another way to it.
    pub(crate) fn audience(&self, path: &str) -> &str {
        &self.at(path).uri
    }

    /// The document at a well-known path, if there is one. Nothing for any other path.
    pub(crate) fn document(&self, path: &str) -> Option<Result<String, TransportFault>> {
        let suffix = path.strip_prefix(WELL_KNOWN)?;
        if !suffix.is_empty() && !suffix.starts_with('/') {
            return None;
        }
        let is_meant = |resource: &&Resource| {
            let public = resource.metadata.as_ref().map(|metadata| metadata.public_path.as_str());
            public == Some(suffix) || resource.path == suffix
        };
        let found = match suffix {
            "" => self.0.first(),
            _ => self.0.iter().find(is_meant),
        };
        let metadata = found.and_then(|resource| resource.metadata.as_ref());
        Some(metadata.map(|metadata| metadata.document.clone()).ok_or(TransportFault::NotFound))
    }

    /// What `WWW-Authenticate` says to whoever is refused for this reason; nothing for any other
    /// reason.
    pub(crate) fn challenge(&self, path: &str, fault: &TransportFault) -> Option<String> {
        let error = match fault {
            // Who brings nothing has made no mistake (RFC 6750, section 3.1).
            TransportFault::Unauthenticated { .. } => None,
            TransportFault::Unauthorized { .. } => Some("invalid_token"),
            TransportFault::InsufficientScope => Some("insufficient_scope"),
            _ => return None,
        };
        let Some(metadata) = &self.at(path).metadata else {
            return Some("Bearer".to_owned());
        };
        let mut parts = Vec::new();
        parts.extend(error.map(|error| format!("error=\"{error}\"")));
        parts.push(format!("resource_metadata=\"{}\"", metadata.url));
        if !metadata.scopes.is_empty() {
            parts.push(format!("scope=\"{}\"", metadata.scopes));
        }
        Some(format!("Bearer {}", parts.join(", ")))
    }

    fn at(&self, path: &str) -> &Resource {
        self.0.iter().find(|resource| resource.path == path).unwrap_or(&self.0[0])
    }
}

fn metadata(uri: &str, server: &crate::config::Server, jwt: &crate::config::Jwt) -> Metadata {
    // A canonical URI has an origin and, mostly, a path.
    let after_scheme = uri.find("://").map_or(0, |at| at + 3);
    let path_at = uri[after_scheme..].find('/').map_or(uri.len(), |at| after_scheme + at);
    let (origin, public_path) = uri.split_at(path_at);
    let mut document = json!({
        "resource": uri,
        "resource_name": server.name,
        "authorization_servers": [jwt.issuer],
        "bearer_methods_supported": ["header"],
    });
    if !jwt.scopes.is_empty() {
        document["scopes_supported"] = json!(jwt.scopes);
    }
    Metadata {
        url: format!("{origin}{WELL_KNOWN}{public_path}"),
        public_path: public_path.to_owned(),
        document: document.to_string(),
        scopes: jwt.scopes.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn protected_resources(toml: &str) -> ProtectedResources {
        ProtectedResources::new(&Config::parse("g", toml, Path::new(""), &[]).unwrap())
    }

    const JWT: &str = "[server]\npublic_url = \"https://prompts.example.com/team/mcp\"\n\
        [views.support]\n[auth.jwt]\nissuer = \"https://id.example.com\"\nscopes = [\"a\", \"b\"]\n";

    #[test]
    fn a13_each_endpoint_has_its_own_name_from_the_configuration() {
        let protected_resources = protected_resources(JWT);
        let main = "https://prompts.example.com/team/mcp";
        for path in ["/mcp", "/sse", "/other"] {
            assert_eq!(protected_resources.audience(path), main);
        }
        assert_eq!(protected_resources.audience("/mcp/support"), format!("{main}/support"));
        let resource = |path: &str| {
            let document = protected_resources.document(path)?.ok()?;
            let document: serde_json::Value = serde_json::from_str(&document).unwrap();
            assert_eq!(document["authorization_servers"], json!(["https://id.example.com"]));
            assert_eq!(document["scopes_supported"], json!(["a", "b"]));
            Some(document["resource"].as_str().unwrap().to_owned())
        };
        let well_known = |suffix: &str| resource(&format!("{WELL_KNOWN}{suffix}"));
        for suffix in ["", "/mcp", "/team/mcp"] {
            assert_eq!(well_known(suffix).as_deref(), Some(main), "{suffix}");
        }
        for suffix in ["/mcp/support", "/team/mcp/support"] {
            assert_eq!(well_known(suffix), Some(format!("{main}/support")), "{suffix}");
        }
        assert_eq!(well_known("/mcp/none"), None);
        assert!(protected_resources.document("/.well-known/oauth-protected-resources").is_none());
    }

    #[test]
    fn a7_challenges_say_where_to_ask_and_for_what() {
        let protected_resources = protected_resources(JWT);
        let bad = TransportFault::Unauthorized { why: "" };
        let none = TransportFault::Unauthenticated { wanted: "" };
        let at = "resource_metadata=\"https://prompts.example.com\
            /.well-known/oauth-protected-resource/team/mcp\", scope=\"a b\"";
        let challenge = |fault| protected_resources.challenge("/mcp", &fault);
        assert_eq!(challenge(none.clone()), Some(format!("Bearer {at}")));
        assert_eq!(challenge(bad.clone()), Some(format!("Bearer error=\"invalid_token\", {at}")));
        let scope = challenge(TransportFault::InsufficientScope);
        assert_eq!(scope, Some(format!("Bearer error=\"insufficient_scope\", {at}")));
        assert_eq!(challenge(TransportFault::NotFound), None);
        let view = protected_resources.challenge("/mcp/support", &none).unwrap();
        assert!(view.contains("/team/mcp/support\""), "{view}");
        let plain = self::protected_resources("");
        assert_eq!(plain.challenge("/mcp", &bad).as_deref(), Some("Bearer"));
        assert_eq!(plain.document(WELL_KNOWN), Some(Err(TransportFault::NotFound)));
    }
}

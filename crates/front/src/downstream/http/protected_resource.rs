//! OAuth protected-resource metadata (RFC 9728; MCP 2025-11-25, authorization): the audience of
//! each endpoint, the metadata document and the challenge. All of it comes from the configuration,
//! nothing from a header.

use serde_json::json;

use config::Config;
use domain::fault::TransportFault;

/// The endpoints as protected resources, main endpoint first.
pub(crate) struct ProtectedResources(Vec<EndpointResource>);

struct EndpointResource {
    /// The path at which the gateway serves the endpoint.
    path: String,
    /// Its canonical URI, which is the audience of its tokens (RFC 8707).
    uri: String,
    /// Absent where no tokens are accepted.
    metadata: Option<ResourceMetadata>,
}

pub(crate) struct ResourceMetadata {
    /// The path of the canonical URI, without a trailing slash. Behind a proxy it may differ from
    /// the path of the endpoint.
    public_path: String,
    /// The URL of the document.
    url: String,
    /// The JSON document.
    document: String,
    /// The required scopes, separated by spaces.
    scopes: String,
}

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

impl ProtectedResources {
    /// Builds the metadata of the main endpoint and of each view.
    pub(crate) fn new(config: &Config) -> Self {
        let server = &config.server;
        let resource = |path: String, uri: String| {
            let metadata = config.auth.jwt.as_ref().map(|jwt| metadata(&uri, server, jwt));
            EndpointResource { path, uri, metadata }
        };
        let main = resource(server.path.clone(), server.resource.clone());
        let views = config.views.iter().map(|view| {
            resource(server.view_path(&view.name), format!("{}/{}", server.resource, view.name))
        });
        Self(std::iter::once(main).chain(views).collect())
    }

    /// Returns the audience of tokens for this path. A path that is not an endpoint's belongs to
    /// the main endpoint: HTTP+SSE is another transport of it.
    pub(crate) fn audience(&self, path: &str) -> &str {
        &self.resource(path).uri
    }

    /// Returns the path of an endpoint as clients reach it, which a proxy may have changed.
    pub(crate) fn public_path(&self, path: &str) -> &str {
        origin_and_path(&self.resource(path).uri).1
    }

    /// Returns the metadata document at a well-known path (RFC 9728, section 3). `None` for any
    /// other path.
    pub(crate) fn document(&self, path: &str) -> Option<Result<String, TransportFault>> {
        let suffix = path.strip_prefix(WELL_KNOWN)?;
        // Some clients write the URL of the endpoint with a slash at the end.
        let suffix = suffix.strip_suffix('/').unwrap_or(suffix);
        if !suffix.is_empty() && !suffix.starts_with('/') {
            return None;
        }
        let is_named = |resource: &&EndpointResource| {
            let public = resource.metadata.as_ref().map(|metadata| metadata.public_path.as_str());
            public == Some(suffix) || resource.path == suffix
        };
        let found = if suffix.is_empty() { self.0.first() } else { self.0.iter().find(is_named) };
        let metadata = found.and_then(|resource| resource.metadata.as_ref());
        Some(
            metadata
                .map(|metadata| metadata.document.clone())
                .ok_or_else(TransportFault::not_found),
        )
    }

    /// Returns the value of `WWW-Authenticate` for a refusal that asks for other credentials (RFC
    /// 6750, section 3; RFC 9728, section 5.1). `None` for other faults.
    pub(crate) fn challenge(&self, path: &str, fault: &TransportFault) -> Option<String> {
        let error = match fault {
            // A request without credentials gets no error code (RFC 6750, section 3.1).
            TransportFault::Unauthenticated { .. } => None,
            TransportFault::Unauthorized { .. } => Some("invalid_token"),
            TransportFault::InsufficientScope => Some("insufficient_scope"),
            _ => return None,
        };
        let Some(metadata) = &self.resource(path).metadata else {
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

    fn resource(&self, path: &str) -> &EndpointResource {
        self.0.iter().find(|resource| resource.path == path).unwrap_or(&self.0[0])
    }
}

/// Splits a canonical URI, which has an origin and usually a path.
fn origin_and_path(uri: &str) -> (&str, &str) {
    let after_scheme = uri.find("://").map_or(0, |at| at + 3);
    let path_at = uri[after_scheme..].find('/').map_or(uri.len(), |at| after_scheme + at);
    uri.split_at(path_at)
}

pub(crate) fn metadata(uri: &str, server: &config::Server, jwt: &config::Jwt) -> ResourceMetadata {
    let (origin, public_path) = origin_and_path(uri);
    let mut document = json!({
        "resource": uri,
        "resource_name": server.name,
        "authorization_servers": [jwt.issuer],
        "bearer_methods_supported": ["header"],
    });
    if !jwt.scopes.is_empty() {
        document["scopes_supported"] = json!(jwt.scopes);
    }
    ResourceMetadata {
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
    fn a13_each_endpoint_has_its_own_audience_and_metadata() {
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
        assert_eq!(protected_resources.public_path("/mcp/support"), "/team/mcp/support");
        for suffix in ["", "/", "/mcp", "/mcp/", "/team/mcp"] {
            assert_eq!(well_known(suffix).as_deref(), Some(main), "{suffix}");
        }
        for suffix in ["/mcp/support", "/team/mcp/support"] {
            assert_eq!(well_known(suffix), Some(format!("{main}/support")), "{suffix}");
        }
        assert_eq!(well_known("/mcp/none"), None);
        assert!(protected_resources.document("/.well-known/oauth-protected-resources").is_none());
    }

    #[test]
    fn a7_a_challenge_names_the_metadata_and_the_scopes() {
        let protected_resources = protected_resources(JWT);
        let bad = TransportFault::Unauthorized { why: "".into() };
        let missing = TransportFault::Unauthenticated { wanted: "" };
        let parameters = "resource_metadata=\"https://prompts.example.com\
            /.well-known/oauth-protected-resource/team/mcp\", scope=\"a b\"";
        let challenge = |fault| protected_resources.challenge("/mcp", &fault);
        assert_eq!(challenge(missing.clone()), Some(format!("Bearer {parameters}")));
        assert_eq!(
            challenge(bad.clone()),
            Some(format!("Bearer error=\"invalid_token\", {parameters}"))
        );
        let scope = challenge(TransportFault::InsufficientScope);
        assert_eq!(scope, Some(format!("Bearer error=\"insufficient_scope\", {parameters}")));
        assert_eq!(challenge(TransportFault::not_found()), None);
        let view = protected_resources.challenge("/mcp/support", &missing).unwrap();
        assert!(view.contains("/team/mcp/support\""), "{view}");
        let without_tokens = self::protected_resources("");
        assert_eq!(without_tokens.challenge("/mcp", &bad).as_deref(), Some("Bearer"));
        assert_eq!(without_tokens.document(WELL_KNOWN), Some(Err(TransportFault::not_found())));
    }
}

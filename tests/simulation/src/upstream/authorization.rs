//! The authorization server of an upstream at which callers sign in. A person agrees at once.

use std::collections::HashMap;

use bytes::Bytes;
use http::Response;
use serde_json::json;

use super::{Body, Upstream, json_bytes, status};

/// Codes and refresh tokens are this, and the caller who has signed in.
const CODE: &str = "code-of-";
const REFRESH: &str = "refresh-of-";

impl Upstream {
    pub(super) fn authorization_server(&self, path: &str, body: &[u8]) -> Response<Body> {
        let origin = format!("http://{}", self.0.plan.host);
        let document = match path {
            "/.well-known/oauth-protected-resource/mcp" => json!({
                "resource": format!("{origin}/mcp"), "authorization_servers": [origin]}),
            "/.well-known/oauth-authorization-server" => json!({"issuer": origin,
                "authorization_endpoint": format!("{origin}/authorize"),
                "token_endpoint": format!("{origin}/token"),
                "registration_endpoint": format!("{origin}/register"),
                "code_challenge_methods_supported": ["S256"]}),
            "/register" => json!({"client_id": "gateway"}),
            "/token" => return self.token(body),
            _ => return status(404),
        };
        json_bytes(Bytes::from(document.to_string()))
    }

    fn token(&self, form: &[u8]) -> Response<Body> {
        let form = String::from_utf8_lossy(form);
        let form: HashMap<_, _> = form.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let grants = [("code", CODE), ("refresh_token", REFRESH)];
        let caller = grants.iter().find_map(|(name, prefix)| form.get(name)?.strip_prefix(prefix));
        let Some((caller, vault)) = caller.zip(self.0.vault.get()) else { return status(400) };
        let token = json!({"access_token": vault.secret(caller, &self.0.plan.id),
            "token_type": "Bearer", "refresh_token": format!("{REFRESH}{caller}"),
            "expires_in": vault.lease()});
        json_bytes(Bytes::from(token.to_string()))
    }

    /// The query with which a browser comes back from this URL of a page, at which `caller` has
    /// agreed; `None` for other URLs.
    pub fn agree(&self, url: &str, caller: &str) -> Option<String> {
        let query = url.strip_prefix(&format!("http://{}/authorize?", self.0.plan.host))?;
        let state = query.split('&').find_map(|pair| pair.strip_prefix("state="))?;
        Some(format!("code={CODE}{caller}&state={state}"))
    }
}

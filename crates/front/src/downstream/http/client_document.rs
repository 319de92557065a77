//! The OAuth Client ID Metadata Document of the gateway as a client of authorization servers
//! (draft-ietf-oauth-client-id-metadata-document): its URL is the client id with which the operator
//! and callers sign in to upstreams.

use config::Config;
use logins::sign_in::registration;

/// The document, and the path at which it is served.
pub(crate) struct ClientDocument {
    path: String,
    /// Absent where nobody signs in to an upstream, or the gateway has no public URL of https.
    text: Option<String>,
}

impl ClientDocument {
    pub(crate) fn new(config: &Config) -> Self {
        let mut all = config.upstreams.iter();
        let has_login = all.any(|own| own.login().or(own.caller_sign_in()).is_some());
        let page = config.server.sign_in_page();
        let url = config.server.client_document().filter(|_| has_login);
        Self {
            path: config.server.client_document_path(),
            text: url.map(|url| registration::document(&url, page.as_deref()).to_string()),
        }
    }

    /// Returns the document if it is served at this path.
    pub(crate) fn at(&self, path: &str) -> Option<String> {
        self.text.clone().filter(|_| path == self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_url_of_the_document_is_the_client_id_in_it() {
        let config = |url: &str, credential: &str| {
            let toml = format!(
                "[server]\npath = \"/team\"\npublic_url = \"{url}\"\n\
                 seal_key = {{ value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }}\n\
                 [upstreams.a]\ntransport = \"http\"\nurl = \"https://a.example/mcp\"\n{credential}"
            );
            Config::parse("g", &toml, Path::new(""), &[]).unwrap()
        };
        let login = "credential = { login = {} }\n";
        let document = ClientDocument::new(&config("https://gate.example/mcp", login));
        let text = document.at("/team/client.json").unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["client_id"], "https://gate.example/mcp/client.json");
        assert_eq!(read["token_endpoint_auth_method"], "none");
        assert_eq!(document.at("/team"), None);
        for other in
            [config("http://127.0.0.1:1/mcp", login), config("https://gate.example/mcp", "")]
        {
            assert_eq!(ClientDocument::new(&other).at("/team/client.json"), None);
        }
    }
}

//! `credential = { oauth = … }`: tokens that the gateway gets for itself (OAuth 2.1 client
//! credentials).

use http::Uri;
use jsonwebtoken::{Algorithm, EncodingKey};

use super::jwt::url;
use super::reader::Section;
use super::secret::Secret;

/// How the gateway gets tokens for one upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OAuth {
    pub client_id: String,
    pub proof: ClientProof,
    /// Absent: found out from what the upstream says when it refuses.
    pub token_url: Option<Uri>,
    /// Absent: what the upstream asks for.
    pub scope: Option<String>,
    /// What the token is for (RFC 8707); absent: the upstream's URL.
    pub resource: Option<String>,
}

/// How the gateway proves that it is the client.
#[derive(Clone)]
pub enum ClientProof {
    Secret(Secret),
    /// `private_key_jwt` (RFC 7523)
    Key {
        algorithm: Algorithm,
        key: EncodingKey,
        /// SHA-256 of the key as it was given: equal keys are told by it.
        fingerprint: [u8; 32],
    },
}

impl Eq for ClientProof {}

impl PartialEq for ClientProof {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Secret(one), Self::Secret(other)) => one == other,
            (
                Self::Key { algorithm, fingerprint, .. },
                Self::Key { algorithm: other, fingerprint: others, .. },
            ) => algorithm == other && fingerprint == others,
            _ => false,
        }
    }
}

/// Tells the kind alone.
impl std::fmt::Debug for ClientProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret(redacted)",
            Self::Key { .. } => "Key(redacted)",
        })
    }
}

const ALGORITHMS: [(&str, Algorithm); 9] = super::jwt::ALGORITHMS;

pub(super) fn read(mut section: Section<'_>) -> Option<OAuth> {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let client_id = section.required("client_id", "the id of this gateway as a client", text);
    let secret = section.secret("client_secret", None);
    let private_key = section.secret("private_key", None);
    let algorithm = section.choice("algorithm", Algorithm::ES256, &ALGORITHMS);
    let rule = "a URL with https, or with http on this machine";
    let token_url = section.parsed("token_url", rule, url);
    let scope = section.optional_text("scope").filter(|scope| !scope.is_empty());
    let resource = section.optional_text("resource").filter(|resource| !resource.is_empty());
    let proof = match (secret, private_key) {
        (Some(secret), None) => Some(ClientProof::Secret(secret)),
        (None, Some(pem)) => key(&section, algorithm, &pem),
        _ => {
            section.mistake("", "needs one of client_secret and private_key");
            None
        }
    };
    section.finish();
    Some(OAuth { client_id: client_id?, proof: proof?, token_url, scope, resource })
}

fn key(section: &Section<'_>, algorithm: Algorithm, pem: &Secret) -> Option<ClientProof> {
    use Algorithm::{ES256, ES384, EdDSA};
    let pem = pem.expose().as_bytes();
    let read = match algorithm {
        ES256 | ES384 => EncodingKey::from_ec_pem(pem),
        EdDSA => EncodingKey::from_ed_pem(pem),
        _ => EncodingKey::from_rsa_pem(pem),
    };
    crate::seal::jws::install();
    let signs = |key: &EncodingKey| jsonwebtoken::crypto::sign(b"", key, algorithm).is_ok();
    let key = read.ok().filter(signs);
    if key.is_none() {
        let what = format!("is no PKCS #8 key in PEM that signs with {algorithm:?}");
        section.mistake("private_key", what);
    }
    let fingerprint = crate::seal::sha256(pem);
    key.map(|key| ClientProof::Key { algorithm, key, fingerprint })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, Transport};

    fn parse(oauth: &str) -> Result<OAuth, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let toml = format!(
            "[upstreams.a]\ntransport = \"http\"\nurl = \"https://example.com/mcp\"\n\
             credential = {{ oauth = {{ {oauth} }} }}\n"
        );
        let config = Config::parse("g", &toml, root, &[]).map_err(|e| e.to_string())?;
        match config.upstreams.into_iter().next().map(|upstream| upstream.transport) {
            Some(Transport::Http(http)) => Ok(http.oauth.unwrap()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn k1_k5_a_client_has_one_proof_that_works_and_is_never_shown() {
        let secret = "client_id = \"gate\", client_secret = { value = \"hunter2\" }";
        let oauth = parse(secret).unwrap();
        assert_eq!((oauth.client_id.as_str(), oauth.token_url.is_none()), ("gate", true));
        assert!(!format!("{oauth:?}").contains("hunter2"));
        let file = "private_key = { file = \"tests/gateway/fixtures/rsa.pem\" }";
        let key = format!("client_id = \"gate\", {file}, algorithm = \"RS256\"");
        assert!(matches!(parse(&key).unwrap().proof, ClientProof::Key { .. }));
        let mistake = |oauth: &str| parse(oauth).unwrap_err();
        assert!(mistake(&format!("client_id = \"gate\", {file}")).contains("signs with ES256"));
        assert!(mistake("client_id = \"gate\"").contains("needs one of"));
        assert!(mistake(&format!("{secret}, {file}")).contains("needs one of"));
        assert!(mistake("client_secret = { value = \"x\" }").contains("client_id: is required"));
        let unsafe_url = format!("{secret}, token_url = \"http://id.example.com/t\"");
        assert!(mistake(&unsafe_url).contains("https"));
        let plain = "[upstreams.a]\ntransport = \"http\"\nurl = \"http://example.com/mcp\"\n\
            credential = { oauth = { client_id = \"g\", client_secret = { value = \"s\" } } }\n";
        let error = Config::parse("g", plain, Path::new(""), &[]).unwrap_err().to_string();
        assert!(error.contains("upstreams.a.url: must have https"), "{error}");
    }
}

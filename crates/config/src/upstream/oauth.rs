//! `credential = { oauth = … }`: access tokens that the gateway obtains for an upstream (OAuth
//! 2.1, client credentials grant).

use http::Uri;
use jsonwebtoken::{Algorithm, EncodingKey};

use crate::auth::jwt::{ALGORITHMS, URL_RULE, url};
use crate::reader::secret::Secret;
use crate::reader::{Section, table};

table! {
    /// The client credentials of the gateway at an upstream's authorization server.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct OAuth(section, key) -> Option {
        /// Id of the gateway at the authorization server.
        #[example = "gateway"]
        required pub client_id: String = client_id(section, key);
        /// Token endpoint. Set it with a secret, which is sent there. Not set: it is discovered
        /// from the challenge of the upstream. The metadata must be at the upstream's own origin
        /// and describe that upstream, the issuer must be the requested one, and all URLs must be
        /// HTTPS and public, unless the upstream is on this machine.
        #[example = "https://id.example.com/token"]
        pub token_url: Option<Uri> = section.parsed(key, URL_RULE, url);
        /// Scopes to ask for, separated by spaces. Not set: those that the upstream names.
        #[example = "prompts:read"]
        pub scope: Option<String> = section.given_text(key);
        /// Resource of the token. Not set: the URL of the upstream; `""`: none.
        #[example = "https://prompts.example.com/mcp"]
        pub resource: Option<String> = section.optional_text(key);
        field pub proof: ClientProof = required_proof(section)?;
    }
}

/// Client authentication at the token endpoint.
#[derive(Clone)]
pub enum ClientProof {
    /// `client_secret`.
    Secret(Secret),
    /// `client_secret` with `client_secret_in = "body"`.
    PostedSecret(Secret),
    /// `private_key_jwt` (RFC 7523).
    Key {
        algorithm: Algorithm,
        key: EncodingKey,
        /// SHA-256 of the PEM text. Keys with equal fingerprints are equal.
        fingerprint: [u8; 32],
    },
}

impl ClientProof {
    pub(crate) fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Secret(secret) | Self::PostedSecret(secret) => Some(secret),
            Self::Key { .. } => None,
        }
    }
}

impl Eq for ClientProof {}

impl PartialEq for ClientProof {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Secret(secret), Self::Secret(other))
            | (Self::PostedSecret(secret), Self::PostedSecret(other)) => secret == other,
            (
                Self::Key { algorithm, fingerprint, .. },
                Self::Key { algorithm: other_algorithm, fingerprint: other_fingerprint, .. },
            ) => algorithm == other_algorithm && fingerprint == other_fingerprint,
            _ => false,
        }
    }
}

/// Writes only the kind of the proof.
impl std::fmt::Debug for ClientProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret(redacted)",
            Self::PostedSecret(_) => "PostedSecret(redacted)",
            Self::Key { .. } => "Key(redacted)",
        })
    }
}

/// Reads the id of the gateway as a client.
pub(crate) fn client_id(section: &mut Section<'_>, key: &'static str) -> Option<String> {
    let rule = "the client id of the gateway at the authorization server";
    section.required(key, rule, |text| (!text.is_empty()).then(|| text.to_owned()))
}

pub(crate) fn required_proof(section: &mut Section<'_>) -> Option<ClientProof> {
    let proof = client_proof(section);
    if proof.is_none() && !section.was_read("client_secret") && !section.was_read("private_key") {
        section.mistake("", ONE_PROOF);
    }
    proof
}

/// The keys of the proof of a client.
const PROOF_KEYS: &str = r#"
client_secret: Secret of the gateway.
client_secret_in: `header` (`Basic`, unless the metadata names only `body`), or `body`.
private_key: Instead of a secret: key of the assertions that the gateway signs (`private_key_jwt`),
    PKCS #8 in PEM.
algorithm: Signature algorithm of `private_key`.
"#;

/// Reads `client_secret`, or `private_key` and `algorithm`. `None`: neither is given, or there is a
/// mistake.
pub(crate) fn client_proof(section: &mut Section<'_>) -> Option<ClientProof> {
    section.explain(PROOF_KEYS);
    let secret = section.secret("client_secret");
    let is_posted = section.choice("client_secret_in", false, &[("header", false), ("body", true)]);
    let private_key = section.secret("private_key");
    let algorithm = section.choice("algorithm", Algorithm::ES256, &ALGORITHMS);
    match (secret, private_key) {
        (None, None) => None,
        (Some(secret), None) if is_posted => Some(ClientProof::PostedSecret(secret)),
        (Some(secret), None) => Some(ClientProof::Secret(secret)),
        (None, Some(pem)) => key(section, algorithm, &pem),
        (Some(_), Some(_)) => {
            section.mistake("", ONE_PROOF);
            None
        }
    }
}

const ONE_PROOF: &str = "must have exactly one of client_secret and private_key";

/// Parses a private key, and tests whether it can sign with the algorithm.
fn key(section: &Section<'_>, algorithm: Algorithm, pem: &Secret) -> Option<ClientProof> {
    use Algorithm::{ES256, ES384, EdDSA};
    let pem = pem.expose().as_bytes();
    let parsed = match algorithm {
        ES256 | ES384 => EncodingKey::from_ec_pem(pem),
        EdDSA => EncodingKey::from_ed_pem(pem),
        _ => EncodingKey::from_rsa_pem(pem),
    };
    base::seal::jws::install();
    let signs = |key: &EncodingKey| jsonwebtoken::crypto::sign(b"", key, algorithm).is_ok();
    let key = parsed.ok().filter(signs);
    if key.is_none() {
        let message = format!(
            "is not a PKCS #8 private key in PEM that signs with {algorithm:?}: set `algorithm` to \
             an algorithm of the key"
        );
        section.mistake("private_key", message);
    }
    let fingerprint = base::seal::sha256(pem);
    key.map(|key| ClientProof::Key { algorithm, key, fingerprint })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{TokenCredential, Transport, schema_check};

    fn parse(oauth: &str) -> Result<OAuth, String> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let toml = format!(
            "[upstreams.a]\ntransport = \"http\"\nurl = \"https://example.com/mcp\"\n\
             credential = {{ oauth = {{ {oauth} }} }}\n"
        );
        let config = schema_check::parse("g", &toml, root, &[]).map_err(|e| e.to_string())?;
        match config.upstreams.into_iter().next().map(|upstream| upstream.transport) {
            Some(Transport::Http(http)) => match http.credentials.token {
                Some(TokenCredential::OAuth(oauth)) => Ok(oauth),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn k1_k5_a_client_has_exactly_one_valid_proof_which_is_redacted() {
        let secret = "client_id = \"gate\", client_secret = { value = \"hunter2\" }";
        let oauth = parse(secret).unwrap();
        assert_eq!((oauth.client_id.as_str(), oauth.token_url.is_none()), ("gate", true));
        assert!(!format!("{oauth:?}").contains("hunter2"));
        let file = "private_key = { file = \"tests/gateway/fixtures/rsa.pem\" }";
        let key = format!("client_id = \"gate\", {file}, algorithm = \"RS256\"");
        assert!(matches!(parse(&key).unwrap().proof, ClientProof::Key { .. }));
        let mistake = |oauth: &str| parse(oauth).unwrap_err();
        assert!(mistake(&format!("client_id = \"gate\", {file}")).contains("signs with ES256"));
        assert!(mistake("client_id = \"gate\"").contains("must have exactly one of"));
        assert!(mistake(&format!("{secret}, {file}")).contains("must have exactly one of"));
        assert!(mistake("client_secret = { value = \"x\" }").contains("client_id: is required"));
        let unsafe_url = format!("{secret}, token_url = \"http://id.example.com/t\"");
        assert!(mistake(&unsafe_url).contains("https"));
        let plain = "[upstreams.a]\ntransport = \"http\"\nurl = \"http://example.com/mcp\"\n\
            credential = { oauth = { client_id = \"g\", client_secret = { value = \"s\" } } }\n";
        let error = schema_check::parse("g", plain, Path::new(""), &[]).unwrap_err().to_string();
        assert!(error.contains("upstreams.a.url: must be https"), "{error}");
    }
}

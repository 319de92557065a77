//! Sealed tokens: only this gateway, or a replica with the same key, can make or read them.
//!
//! XChaCha20-Poly1305 with a random nonce; one subkey per kind of token, derived once at load by
//! HKDF-SHA256 (RFC 5869). The subkey depends on kind and version, and the endpoint is associated
//! data, so a token of one kind or endpoint never opens as a token of another. With several keys,
//! the first key seals and all keys open.

pub mod claims;
pub mod hex;
pub mod jws;
mod keys;
pub mod pem;
pub mod provider;
mod webhook;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use provider::hmac;
use sha2::{Digest, Sha256};

use crate::platform::platform;
use domain::approval::markdown;
use domain::prompts::prompt::Prompt;
use domain::text::chunks::Chunks;
pub(crate) use keys::KEY_LEN;
pub use keys::{AuditKey, SealKeys};
pub use webhook::WebhookKey;

/// The kind of a token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TokenKind {
    /// The session of a person at the console.
    Console,
    /// The cursor of a paginated list.
    Cursor,
    /// An SSE event id.
    Event,
    /// A link in a prompt.
    Link,
    /// A sign-in for an upstream.
    Login,
    /// A message of one replica for another.
    Relay,
    /// The description of a replica in its heartbeat.
    Replica,
    /// An `Mcp-Session-Id`.
    Session,
    /// A sign-in at an OpenID provider that has begun.
    SignIn,
    /// A `requestState`.
    State,
    /// A terminated session, for the other replicas.
    Terminated,
}

/// The ciphers that seal and open tokens, derived once from the configured keys.
pub struct Sealer {
    /// For each key, newest first, one cipher per kind of token.
    ciphers: Vec<[XChaCha20Poly1305; TokenKind::ALL.len()]>,
    /// Derived from the newest key.
    names: hmac::Key,
}

const NONCE_LEN: usize = 24;

impl TokenKind {
    const ALL: [TokenKind; 11] = [
        TokenKind::Console,
        TokenKind::Cursor,
        TokenKind::Event,
        TokenKind::Link,
        TokenKind::Login,
        TokenKind::Relay,
        TokenKind::Replica,
        TokenKind::Session,
        TokenKind::SignIn,
        TokenKind::State,
        TokenKind::Terminated,
    ];

    /// Returns the name and the version of the token's layout. A change of the layout needs a new
    /// version: a token of another version does not open.
    fn layout(self) -> (&'static str, u32) {
        match self {
            TokenKind::Console => ("console", 1),
            TokenKind::Cursor => ("cursor", 1),
            TokenKind::Event => ("event", 1),
            TokenKind::Link => ("link", 1),
            TokenKind::Login => ("login", 1),
            TokenKind::Relay => ("relay", 1),
            TokenKind::Replica => ("replica", 1),
            TokenKind::Session => ("session", 2),
            TokenKind::SignIn => ("sign-in", 1),
            TokenKind::State => ("state", 1),
            TokenKind::Terminated => ("terminated", 1),
        }
    }

    /// Returns the version of the token's layout.
    pub fn version(self) -> u32 {
        self.layout().1
    }

    /// Returns the label for the key derivation.
    fn label(self) -> String {
        let (name, version) = self.layout();
        format!("promptgate {name} v{version}")
    }

    /// Returns the maximum length of a token in bytes. A longer token is refused before it is
    /// decoded.
    pub fn max_len(self) -> usize {
        match self {
            // Cookies, which browsers keep up to 4,096 bytes of, with names and attributes (RFC
            // 6265, section 6.1).
            TokenKind::Console | TokenKind::SignIn => 3800,
            // Holds the id of its caller (128 characters of up to 4 bytes), a public name and an
            // upstream's id.
            TokenKind::Cursor => 2048,
            TokenKind::Event => 512,
            // Holds a URI of up to 2 KiB, the id of its caller and names, and stands in a header.
            TokenKind::Link => 8 << 10,
            // Holds a message of up to 16 MiB (`cluster.relay_size`).
            TokenKind::Relay => 24 << 20,
            // Holds two tokens, which some providers make of kilobytes of claims.
            TokenKind::Login => 256 << 10,
            TokenKind::Replica => 2048,
            // Hold the id of their caller.
            TokenKind::Session | TokenKind::Terminated => 1024,
            TokenKind::State => 256 << 10,
        }
    }
}

impl Sealer {
    /// Derives the ciphers of all keys.
    pub fn new(keys: &SealKeys) -> Self {
        let ciphers = keys.iter().map(|key| TokenKind::ALL.map(|kind| derive(key, kind))).collect();
        let names = subkey(keys.newest(), "promptgate names v1");
        Self { ciphers, names: hmac::Key::new(hmac::HMAC_SHA256, &names) }
    }

    /// Returns a blinded name, under which others can count a thing without learning its name: the
    /// first 16 bytes of an HMAC-SHA256. It changes with the newest key.
    pub fn blind(&self, name: &str) -> [u8; 16] {
        let tag = hmac::sign(&self.names, name.as_bytes());
        let mut blind = [0; 16];
        blind.copy_from_slice(&tag.as_ref()[..16]);
        blind
    }

    /// Returns the pseudonym by which the gateways before and behind this installation know it.
    pub fn pseudonym(&self) -> String {
        hex::hex(&self.blind("via")[..8])
    }

    /// Returns a token with the content `plain`, in base64url without padding. It opens only for
    /// the same kind and endpoint.
    pub fn seal(&self, kind: TokenKind, endpoint: &str, plain: &[u8]) -> String {
        let nonce: [u8; NONCE_LEN] = random();
        let payload = Payload { msg: plain, aad: endpoint.as_bytes() };
        let sealed = self.ciphers[0][kind as usize]
            .encrypt(&XNonce::from(nonce), payload)
            // The cipher fails only above 256 GiB of plain text.
            .unwrap_or_default();
        BASE64_URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat())
    }

    /// Returns the content of a token; `None` if the token is too long, altered, not in canonical
    /// base64url, of a different kind or endpoint, or sealed with an unknown key.
    pub fn open(&self, kind: TokenKind, endpoint: &str, token: &str) -> Option<Vec<u8>> {
        if token.len() > kind.max_len() {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let payload = || Payload { msg: sealed, aad: endpoint.as_bytes() };
        self.ciphers
            .iter()
            .find_map(|c| c[kind as usize].decrypt(&XNonce::from(*nonce), payload()).ok())
    }
}

/// Returns bytes from the system's random number generator.
///
/// # Panics
/// If the random number generator fails.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    platform().entropy.fill(&mut bytes);
    bytes
}

/// Returns the SHA-256 digest of the parts, each with its length before it, so that different lists
/// of parts have different input.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// Returns the SHA-256 digest of the bytes (FIPS 180-4).
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Returns the SHA-256 digest of a text in chunks.
pub fn sha256_of(text: &Chunks) -> [u8; 32] {
    let mut hash = Sha256::new();
    text.iter().for_each(|chunk| hash.update(chunk));
    hash.finalize().into()
}

/// Returns the digest as text: `sha256:` and 64 lower-case hexadecimal digits.
pub fn digest_text(digest: &[u8; 32]) -> String {
    format!("sha256:{}", hex::hex(digest))
}

/// Returns the digest of bytes as text; see [`digest_text`].
pub fn sha256_text(bytes: &[u8]) -> String {
    digest_text(&sha256(bytes))
}

/// Returns the digest of a prompt's effective definition: that of its canonical text.
pub fn definition_digest(prompt: &Prompt) -> String {
    sha256_text(prompt.canonical().as_bytes())
}

/// Returns the digest of a prompt's canonical text: that of its Markdown form, which people review.
pub fn prompt_text_digest(text: &str) -> String {
    sha256_text(markdown::write(text).as_bytes())
}

fn derive(key: &[u8; KEY_LEN], kind: TokenKind) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&subkey(key, &kind.label()).into())
}

fn subkey(key: &[u8; KEY_LEN], label: &str) -> [u8; KEY_LEN] {
    let mut subkey = [0; KEY_LEN];
    Hkdf::<Sha256>::new(None, key)
        .expand(label.as_bytes(), &mut subkey)
        .expect("32 bytes are far below the limit of 255 hashes");
    subkey
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sealer(keys: &[u8]) -> Sealer {
        let keys: Vec<_> = keys.iter().map(|&k| [k; KEY_LEN]).collect();
        Sealer::new(&SealKeys::new(keys).unwrap())
    }

    #[test]
    fn tokens_belong_to_kind_endpoint_and_key() {
        let sealer_1 = sealer(&[1]);
        let token = sealer_1.seal(TokenKind::Cursor, "/mcp", b"place");
        assert_eq!(
            sealer_1.open(TokenKind::Cursor, "/mcp", &token).as_deref(),
            Some(&b"place"[..])
        );
        assert_eq!(sealer_1.open(TokenKind::Session, "/mcp", &token), None);
        assert_eq!(sealer_1.open(TokenKind::Cursor, "/mcp/a", &token), None);
        assert_eq!(sealer(&[2]).open(TokenKind::Cursor, "/mcp", &token), None);
        assert_eq!(
            sealer(&[2, 1]).open(TokenKind::Cursor, "/mcp", &token).as_deref(),
            Some(&b"place"[..])
        );
        assert_ne!(sealer(&[1]).seal(TokenKind::Cursor, "/mcp", b"place"), token);
    }

    #[test]
    fn only_the_canonical_spelling_opens() {
        let sealer = sealer(&[1]);
        let token = sealer.seal(TokenKind::Cursor, "", b"ab");
        assert_eq!(sealer.open(TokenKind::Cursor, "", &format!("{token}=")), None);
        assert_eq!(sealer.open(TokenKind::Cursor, "", &format!("{token}\n")), None);
        assert_eq!(sealer.open(TokenKind::Cursor, "", ""), None);
        assert_eq!(sealer.open(TokenKind::Cursor, "", &"A".repeat(10 << 20)), None);
        let long = sealer.seal(TokenKind::Cursor, "", &[0; 1496]);
        assert_eq!(long.len(), 2048);
        assert!(sealer.open(TokenKind::Cursor, "", &long).is_some());
        let longer = sealer.seal(TokenKind::Cursor, "", &[0; 1497]);
        assert_eq!(sealer.open(TokenKind::Cursor, "", &longer), None);
    }

    #[test]
    fn tokens_and_digests_of_earlier_releases_stay_valid() {
        let sealer = sealer(&[7]);
        for (kind, token) in [
            (
                TokenKind::Cursor,
                "MWECF372FlXQkgK1lz8f_o-NVzbfEY3djuhqJ7HVX28Y-SaF8d_ZdyMIsJBUfbNOVZO4POCAc7B2MGgj2jV6An3vktYQ",
            ),
            (
                TokenKind::Event,
                "UA2iXhtZBb560rk_TFbv729WdkD5mVGlg3heaC1oeZxXDFXABRUMlZkKazDjjWG8OfsBTLIkPZ1iAUyO_tbWFcejXHRf",
            ),
            (
                TokenKind::Session,
                "5ofE88bimmjmuDzvWL-9jxwI2QUoJQJd_oreNP2NtXd4XEiWvVuD9b5Oixm321pNWDrMWNnDN-fNMRXXtnkoV8fxkx61",
            ),
            (
                TokenKind::State,
                "ky7yJC5Buyf8yjnVQdqahKXjtUHDdDvz0Uz0EJGSSNWBHFQ3upD-ffLUN0Icr_5VI26bF7c0XOzi7SPblaHuuvQv-xrb",
            ),
        ] {
            let opened = sealer.open(kind, "/mcp", token);
            assert_eq!(opened.as_deref(), Some(&b"a place, a session or a state"[..]), "{kind:?}");
        }
        assert_eq!(
            digest_text(&digest(["a", "bc", ""])),
            "sha256:74f2dff90c16bd75e74ea8ab93e0f683754b4ae5a7e2b6c960734cf5c656341a"
        );
        // FIPS 180-4, the example of one block.
        assert_eq!(
            digest_text(&sha256(b"abc")),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    /// A change of a layout needs a new version, and a new file beside the old one, which its own
    /// test reads. A sign-in at a provider lasts ten minutes: it has none.
    #[test]
    fn every_layout_has_an_example_in_the_repository() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats");
        for kind in TokenKind::ALL.into_iter().filter(|kind| *kind != TokenKind::SignIn) {
            let (name, version) = kind.layout();
            assert!(
                folder.join(format!("{name}-{version}")).is_file(),
                "{name}, version {version}"
            );
        }
    }

    proptest! {
        #[test]
        fn one_flipped_bit_never_opens(plain in prop::collection::vec(any::<u8>(), 0..60), at in any::<usize>(), bit in 0..7u32) {
            let sealer = sealer(&[7]);
            let mut token = sealer.seal(TokenKind::Session, "/mcp", &plain).into_bytes();
            let at = at % token.len();
            token[at] ^= 1 << bit;
            if let Ok(token) = String::from_utf8(token) {
                prop_assert_eq!(sealer.open(TokenKind::Session, "/mcp", &token), None);
            }
        }
    }
}

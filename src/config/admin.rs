//! `[admin]`: the admin API.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::reader::{Section, optional};
use crate::seal;

/// The admin API.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Admin {
    pub listen: SocketAddr,
    /// Whether `listen` is the default: where its port is taken, another free port is used.
    pub is_default: bool,
    /// SHA-256 of the bearer token; always set beyond loopback.
    pub token: Option<[u8; 32]>,
    /// Whether it takes decisions on prompts; only with a token.
    pub write: bool,
}

impl Admin {
    /// Returns the mistake in `admin.token` if the API would be reachable beyond loopback without a
    /// token.
    pub fn exposure(&self) -> Option<&'static str> {
        let is_open = self.token.is_none() && !self.listen.ip().is_loopback();
        is_open.then_some(
            "is required beyond loopback: set it to a secret, or set admin.listen to a loopback address",
        )
    }
}

/// Address of the admin API where the file names none: not the port of Prometheus.
pub(super) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9877);

/// The values of `listen`, for mistakes.
pub(super) const LISTEN_RULE: &str =
    "\"\" or an IP address with a port, such as \"127.0.0.1:9877\"";

/// Returns `None` if `listen` is `""`.
pub(super) fn read(mut section: Section<'_>) -> Option<Admin> {
    let parse = |text: &str| optional(text, |text| text.parse().ok());
    let configured = section.parsed("listen", LISTEN_RULE, parse);
    let is_default = configured.is_none();
    let listen = configured.unwrap_or(Some(DEFAULT_LISTEN));
    let token = section.secret("token").filter(|token| !token.expose().is_empty());
    let token = token.map(|token| seal::sha256(token.expose().as_bytes()));
    let write = section.flag("write", false);
    if write && token.is_none() {
        section.mistake(
            "write",
            "needs admin.token, so that not everyone who reaches the address can decide",
        );
    }
    let admin = listen.map(|listen| Admin { listen, is_default, token, write });
    if let Some(message) = admin.as_ref().and_then(Admin::exposure) {
        section.mistake("token", message);
    }
    section.finish();
    admin
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::schema_check;

    #[test]
    fn k7_an_admin_listener_beyond_loopback_needs_a_token() {
        let parse = |text: &str| schema_check::parse("g", text, Path::new(""), &[]);
        let default = parse("").unwrap().admin.unwrap();
        assert_eq!((default.listen.to_string().as_str(), default.token), ("127.0.0.1:9877", None));
        assert_eq!(parse("[admin]\nlisten = \"\"\n").unwrap().admin, None);
        let open = "[admin]\nlisten = \"0.0.0.0:9877\"\n";
        assert!(parse(open).unwrap_err().to_string().contains("admin.token: is required"));
        let writable = "[admin]\nwrite = true\n";
        assert!(
            parse(writable).unwrap_err().to_string().contains("admin.write: needs admin.token")
        );
        let with_token = format!("{writable}token = {{ value = \"t\" }}\n");
        assert!(parse(&with_token).unwrap().admin.unwrap().write);
        let with_token = format!("{open}token = {{ value = \"t0ken\" }}\n");
        let admin = parse(&with_token).unwrap().admin.unwrap();
        assert!(!format!("{admin:?}").contains("t0ken"));
    }
}

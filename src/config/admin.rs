//! `[admin]`: where the operator looks.

use std::net::SocketAddr;

use super::reader::Section;
use crate::seal;

/// The side that shows how the gateway is, and changes nothing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Admin {
    pub listen: SocketAddr,
    /// SHA-256 of the token, which is needed beyond loopback.
    pub token: Option<[u8; 32]>,
}

impl Admin {
    /// What must not be beyond loopback as it is; nothing if all is well.
    pub fn exposure(&self) -> Option<&'static str> {
        let is_open = self.token.is_none() && !self.listen.ip().is_loopback();
        is_open.then_some("is required beyond loopback, where anybody may look")
    }
}

/// Nothing if `listen` is "".
pub(super) fn read(mut section: Section<'_>) -> Option<Admin> {
    let rule = "\"\" or an address with a port, such as \"127.0.0.1:9090\"";
    let listen = section.parsed("listen", rule, |text| match text.is_empty() {
        true => Some(None),
        false => text.parse().ok().map(Some),
    });
    let listen = listen.unwrap_or_else(|| Some(SocketAddr::from(([127, 0, 0, 1], 9090))));
    let token = section.secret("token", None).filter(|token| !token.expose().is_empty());
    let token = token.map(|token| seal::sha256(token.expose().as_bytes()));
    let admin = listen.map(|listen| Admin { listen, token });
    if let Some(message) = admin.as_ref().and_then(Admin::exposure) {
        section.mistake("token", message);
    }
    section.finish();
    admin
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn k7_beyond_loopback_the_operator_shows_a_token() {
        let parse = |text: &str| Config::parse("g", text, Path::new(""), &[]);
        let default = parse("").unwrap().admin.unwrap();
        assert_eq!((default.listen.to_string().as_str(), default.token), ("127.0.0.1:9090", None));
        assert_eq!(parse("[admin]\nlisten = \"\"\n").unwrap().admin, None);
        let open = "[admin]\nlisten = \"0.0.0.0:9090\"\n";
        assert!(parse(open).unwrap_err().to_string().contains("admin.token: is required"));
        let with_token = format!("{open}token = {{ value = \"t0ken\" }}\n");
        let admin = parse(&with_token).unwrap().admin.unwrap();
        assert!(!format!("{admin:?}").contains("t0ken"));
    }
}

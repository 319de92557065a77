//! The few keys that a client of a running gateway needs, read without the rest: the file may have
//! mistakes elsewhere, and secrets are not needed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use super::error::ConfigError;
use super::reader::raw::Raw;
use super::reader::{Context, Section, optional};
use super::{admin, environment, naming, server, text_or_empty};
use domain::name::{Naming, Prefix};

/// Where a gateway with this configuration file can be reached, and how it names prompts.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// URL of the main endpoint, from this machine.
    pub endpoint: String,
    /// Path of the main endpoint.
    pub path: String,
    /// URL of the admin API; `None` if it is disabled.
    pub admin: Option<String>,
    pub naming: Naming,
    /// Ids of the upstreams.
    pub upstreams: Vec<String>,
    /// Prefixes of the upstreams that set `prefix`, by id.
    pub prefixes: BTreeMap<String, Prefix>,
    /// Names of the views.
    pub views: Vec<String>,
    /// Whether requests need a credential.
    pub needs_credential: bool,
    /// Mistakes in these keys, or that the file is not TOML; the defaults apply instead.
    pub mistakes: Option<ConfigError>,
}

impl Addresses {
    /// Reads the file at `path`, with the overrides in the environment of this process. A file that
    /// does not exist has the defaults. Blocks.
    pub fn load(path: &Path) -> Self {
        let file = path.display().to_string();
        let (text, unreadable) = match text_or_empty(path) {
            Ok(text) => (text, None),
            Err(error) => (String::new(), Some(error)),
        };
        let addresses = Self::parse(&file, &text, &environment());
        Self { mistakes: unreadable.or(addresses.mistakes), ..addresses }
    }

    fn parse(file: &str, text: &str, env: &[(String, String)]) -> Self {
        let raw = Raw::read(file, text, env.iter().cloned());
        let (raw, broken) = match raw {
            Ok(raw) => (raw, None),
            // The overrides still count.
            Err(error) => {
                (Raw::read(file, "", env.iter().cloned()).unwrap_or_default(), Some(error))
            }
        };
        let no_variables = |_: &str| None;
        let context = Context::new(raw.origins, &no_variables, Path::new(""));
        let mut root = Section::root(raw.root, &context);
        let naming = naming(root.section("naming"));
        let mut addresses = read_server(root.section("server"), naming);
        addresses.admin = read_admin(root.section("admin"));
        let mut auth = root.section("auth");
        let has_method = ["api_keys", "jwt", "mtls"].iter().any(|method| auth.has(method));
        let required = auth.flag_or(
            "required",
            has_method,
            &[("auto", has_method), ("true", true), ("false", false)],
        );
        addresses.needs_credential = required;
        auth.ignore_rest();
        for (id, mut upstream) in root.sections("upstreams") {
            let prefix = upstream.parsed("prefix", "a prefix", Prefix::parse);
            addresses.upstreams.push(id.clone());
            addresses.prefixes.extend(prefix.map(|prefix| (id, prefix)));
            upstream.ignore_rest();
        }
        for (name, mut view) in root.sections("views") {
            addresses.views.push(name);
            view.ignore_rest();
        }
        root.ignore_rest();
        addresses.mistakes = context.mistakes.into_result(file, &[]).err().or(broken);
        addresses
    }
}

fn read_server(mut section: Section<'_>, naming: Naming) -> Addresses {
    let listen = server::listen(&mut section);
    let path = server::main_path(&mut section);
    let has_tls = !section.section("tls").text("cert", "").is_empty();
    section.ignore_rest();
    Addresses {
        endpoint: server::url_at(listen, has_tls, &path),
        path,
        admin: None,
        naming,
        upstreams: Vec::new(),
        prefixes: BTreeMap::new(),
        views: Vec::new(),
        needs_credential: false,
        mistakes: None,
    }
}

fn read_admin(mut section: Section<'_>) -> Option<String> {
    let parse = |text: &str| optional(text, |text| text.parse::<SocketAddr>().ok());
    let listen = section.parsed("listen", admin::LISTEN_RULE, parse);
    section.ignore_rest();
    listen
        .unwrap_or(Some(admin::DEFAULT_LISTEN))
        .map(|listen| format!("http://{}", server::from_here(listen)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, env: &[(&str, &str)]) -> Addresses {
        let env: Vec<_> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Addresses::parse("g", text, &env)
    }

    #[test]
    fn what_clients_need_is_read_beside_mistakes_and_missing_secrets() {
        let broken_elsewhere = "[server]\nlisten = \"0.0.0.0:7000\"\npath = \"/p\"\nlisen = 1\n\
            seal_key = { env = \"NOT_SET\" }\ntls = { cert = \"c.pem\", key = \"k.pem\" }\n\
            [admin]\nlisten = \"127.0.0.1:7001\"\ntoken = { env = \"NOT_SET\" }\n\
            [upstreams.a]\ntransport = 7\nprefix = \"short\"\n[views.support]\nprompts = 7\n";
        let addresses = parse(broken_elsewhere, &[]);
        assert_eq!(addresses.endpoint, "https://127.0.0.1:7000/p");
        assert_eq!(addresses.admin.as_deref(), Some("http://127.0.0.1:7001"));
        assert_eq!(addresses.prefixes["a"].as_str(), "short");
        assert_eq!(addresses.views, ["support"]);
        assert_eq!(addresses.mistakes, None);
    }

    #[test]
    fn defaults_count_where_the_keys_themselves_have_mistakes() {
        let wrong = parse("[server]\nlisten = 1\n", &[]);
        assert_eq!(wrong.endpoint, "http://127.0.0.1:8080/mcp");
        assert!(wrong.mistakes.unwrap().to_string().starts_with("g:2: server.listen: must be"));
        let no_toml = parse("[server\n", &[("PROMPTGATE__SERVER__LISTEN", "127.0.0.1:7")]);
        assert_eq!(no_toml.endpoint, "http://127.0.0.1:7/mcp");
        assert!(no_toml.mistakes.is_some());
        assert_eq!(parse("[admin]\nlisten = \"\"\n", &[]).admin, None);
        assert_eq!(parse("", &[]).admin.as_deref(), Some("http://127.0.0.1:9877"));
        let open = parse("[admin]\nlisten = \"[::]:9877\"\n", &[]);
        assert_eq!(open.admin.as_deref(), Some("http://[::1]:9877"));
    }
}

//! Configuration: what the file may say ([`raw`]), read with every mistake at once, into what the
//! gateway runs on ([`Config`]).

mod access;
mod admin;
mod audit;
mod auth;
pub(crate) mod error;
pub(crate) mod raw;
mod jwt;
mod limits;
mod oauth;
mod reader;
pub(crate) mod secret;
mod server;
mod settings;
mod telemetry;
mod tls;
pub(crate) mod units;
mod upstream;
mod views;

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use access::SCHEMA;
pub(crate) use access::{Access, action};
pub(crate) use admin::Admin;
pub(crate) use audit::{Audit, Durability, OnAuditFailure};
#[cfg(test)]
pub(crate) use auth::ApiKey;
pub(crate) use auth::{Auth, Certificate, Identity};
pub(crate) use error::{ConfigError, Mistake, Origin};
pub(crate) use jwt::{Jwt, is_safe};
pub(crate) use limits::{Limit, Per};
pub(crate) use oauth::{ClientProof, OAuth};
pub(crate) use secret::Secret;
pub(crate) use server::{Limits, Server};
pub use settings::Settings;
pub(crate) use settings::{Breaker, OnChangedDefinition};
pub(crate) use telemetry::{LogFormat, Telemetry};
pub(crate) use tls::{Tls, TlsFiles};
pub(crate) use upstream::{Http, Stdio, Transport, Upstream};
pub(crate) use views::View;

use crate::domain::name::{DEFAULT_SEPARATOR, MAX_LENGTH_LIMIT, Naming, is_separator};
use crate::seal;
use reader::{Context, Section};

/// The validated configuration. Every value is in bounds; nothing is left to default later.
#[derive(Clone, Debug)]
pub struct Config {
    /// `sha256:…` of the file, so that it is known which one was used.
    pub digest: String,
    /// Files that were read with it: policies and secrets.
    pub files: Vec<SourceFile>,
    pub server: Server,
    /// Absent: nobody is shown how the gateway is.
    pub admin: Option<Admin>,
    pub auth: Auth,
    /// Absent: everything is allowed.
    pub access: Option<Access>,
    pub limits: Vec<Limit>,
    /// Absent: nothing is recorded.
    pub audit: Option<Audit>,
    pub naming: Naming,
    pub listing: Listing,
    /// In the order of their ids.
    pub upstreams: Vec<Upstream>,
    /// In the order of their names.
    pub views: Vec<View>,
    pub telemetry: Telemetry,
}

/// A file that the configuration was read from, and what was in it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SourceFile {
    pub path: PathBuf,
    pub digest: String,
}

impl SourceFile {
    /// `sha256:…` of what was read, or why nothing could be.
    pub fn digest(read: Result<&[u8], &io::Error>) -> String {
        match read {
            Ok(bytes) => seal::digest_text(&seal::sha256(bytes)),
            Err(error) => error.kind().to_string(),
        }
    }
}

/// How lists are put together and handed out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listing {
    /// Prompts on one page, at least 1.
    pub page_size: usize,
    /// How long after the start a list waits for upstreams that were never seen.
    pub deadline: Duration,
    pub on_failure: OnFailure,
    /// Cap of the `ttlMs` that is handed out.
    pub ttl_max: Duration,
    /// Quiet time before a change is announced, and the longest wait.
    pub settle: Duration,
    pub settle_max: Duration,
    /// Bytes of all views that are kept: the least recently used is dropped first.
    pub views_size: usize,
}

/// What becomes of an upstream's prompts while its list cannot be walked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnFailure {
    /// Lists fail as long as one upstream fails.
    Fail,
    /// Its prompts are left out.
    Omit,
    /// The last good list is served, and marked.
    Stale,
}

impl Config {
    /// Reads the file, with the overrides and secrets of this process's environment.
    ///
    /// # Errors
    /// All mistakes at once; a file that cannot be read is one.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let (key, origin, message) = (String::new(), Origin::Unknown, error.to_string());
            ConfigError { file: file.clone(), mistakes: vec![Mistake { key, origin, message }] }
        })?;
        let base = path.parent().unwrap_or(Path::new(""));
        // A variable that is no text cannot be meant for us.
        let env = std::env::vars_os();
        let env: Vec<_> =
            env.filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect();
        Self::parse(&file, &text, base, &env)
    }

    /// Lets child processes be started by this program, which is the gateway's own (`supervise`).
    pub fn supervise_children(&mut self, program: &Path) {
        for upstream in &mut self.upstreams {
            if let Transport::Stdio(stdio) = &mut upstream.transport {
                stdio.supervisor = Some(program.to_owned());
            }
        }
    }

    /// Reads `text` as the file named `file` in the folder `base`, with these variables.
    pub fn parse(
        file: &str,
        text: &str,
        base: &Path,
        env: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let raw = raw::Raw::read(file, text, env.iter().cloned())?;
        let lookup = |name: &str| env.iter().find(|(key, _)| key == name).map(|(_, v)| v.clone());
        let mistakes = error::Mistakes::new(raw.origins);
        let context = Context { mistakes, env: &lookup, base, files: RefCell::default() };

        let mut root = Section::root(raw.root, &context);
        let naming = naming(root.section("naming"));
        let upstreams = upstream::read_all(&mut root);
        let mut server = root.section("server");
        let tls = tls::read(&mut server);
        let client_ca = tls.as_ref().and_then(|tls| tls.client_ca.clone());
        let auth = auth::read(root.section("auth"), client_ca);
        let access = access::read(root.section("access"), &upstreams, auth.has_method());
        let server = server::read(server, tls, &auth);
        let mut config = Self {
            digest: seal::digest_text(&seal::sha256(text.as_bytes())),
            files: Vec::new(),
            auth,
            access,
            limits: limits::read_all(&mut root),
            audit: audit::read(root.section("audit")),
            admin: admin::read(root.section("admin")),
            listing: listing(root.section("listing")),
            views: views::read_all(&mut root, &server, &upstreams),
            server,
            upstreams,
            telemetry: telemetry::read(root.section("telemetry")),
            naming,
        };
        root.not_yet(&["cluster"]);
        root.finish();
        config.files = context.files.into_inner();
        context.mistakes.into_result(file)?;
        Ok(config)
    }
}

fn naming(mut section: Section<'_>) -> Naming {
    let allowed = "1 to 8 visible ASCII characters, one of them outside a-z, 0-9 and -";
    let parse = |text: &str| is_separator(text).then(|| text.to_owned());
    let separator = section.parsed("separator", allowed, parse);
    let max_length = section.count("max_length", 128, 1..=MAX_LENGTH_LIMIT);
    section.finish();
    Naming::new(separator.as_deref().unwrap_or(DEFAULT_SEPARATOR), max_length)
}

fn listing(mut section: Section<'_>) -> Listing {
    let on_failure =
        [("stale", OnFailure::Stale), ("omit", OnFailure::Omit), ("fail", OnFailure::Fail)];
    let listing = Listing {
        page_size: section.count("page_size", 1_000, 1..=100_000),
        deadline: section.duration("deadline", Duration::from_secs(5), Duration::ZERO),
        on_failure: section.choice("on_failure", OnFailure::Stale, &on_failure),
        ttl_max: section.duration("ttl_max", Duration::from_secs(300), Duration::ZERO),
        settle: section.duration("settle", Duration::from_millis(200), Duration::ZERO),
        settle_max: section.duration("settle_max", Duration::from_secs(2), Duration::ZERO),
        views_size: section.size("views_size", 256 << 20, 1 << 20..=1 << 40),
    };
    if listing.settle > listing.settle_max {
        section.mistake("settle_max", "must not be shorter than listing.settle");
    }
    section.finish();
    listing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        let env = [("TOKEN".to_owned(), "t0ken".to_owned())];
        Config::parse("gateway.toml", text, Path::new(env!("CARGO_MANIFEST_DIR")), &env)
    }

    fn mistakes(text: &str) -> Vec<String> {
        let error = parse(text).unwrap_err();
        error.to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let Config { server, listing, telemetry, .. } = parse("").unwrap();
        let limits = server.limits;
        let secs = Duration::from_secs;
        assert_eq!(server.listen.to_string(), "127.0.0.1:8080");
        assert_eq!((server.path.as_str(), server.name.as_str()), ("/mcp", "promptgate"));
        assert_eq!(server.sse_path.as_deref(), Some("/sse"));
        assert_eq!(
            limits,
            Limits {
                connections: 16384,
                first_byte: secs(5),
                tls_handshake: secs(5),
                head: secs(10),
                head_size: 32 * 1024,
                headers: 100,
                uri_length: 8192,
                body: secs(30),
                body_size: 4 * 1024 * 1024,
                idle: secs(75),
                batch_items: 100,
                json_depth: 64,
                in_flight: 4096,
                in_flight_bytes: 256 * 1024 * 1024,
                streams: 16384,
                streams_per_caller: 1000,
                stream_lifetime: secs(3600),
                keep_alive: secs(15),
                h2_streams: 100,
                session_lifetime: secs(30 * 24 * 3600),
                deleted_sessions: 100_000,
                request: secs(60),
                question_timeout: secs(300),
                question_rounds: 8,
                parked_calls: 256,
                parked_per_caller: 4,
                pre_drain: secs(1),
                grace: secs(30),
            }
        );
        let (deadline, ttl_max) = (secs(5), secs(300));
        let on_failure = OnFailure::Stale;
        let (settle, settle_max) = (Duration::from_millis(200), secs(2));
        let page_size = 1000;
        let views_size = 256 << 20;
        let expected =
            Listing { page_size, deadline, on_failure, ttl_max, settle, settle_max, views_size };
        assert_eq!(listing, expected);
        let expected = Telemetry {
            log: "info".into(),
            log_format: LogFormat::Auto,
            otlp: None,
            trace_sample: 1.0,
            service_name: "promptgate".into(),
            label_values: 1000,
        };
        assert_eq!(telemetry, expected);
    }

    #[test]
    fn an_upstream_takes_its_settings_from_the_defaults_and_overrides_them() {
        let config = parse(
            "[defaults]\ntimeout = \"7s\"\npoll = \"0s\"\n\
             [upstreams.a]\ntransport = \"http\"\nurl = \"https://example.com/mcp\"\n\
             revision = \"2025-06-18\"\ntimeout = \"9s\"\nprefix = \"\"\n\
             credential = { bearer = { env = \"TOKEN\" } }\nheaders = { X-Team = \"platform\" }\n\
             [upstreams.off]\ntransport = \"http\"\nurl = \"http://127.0.0.1/mcp\"\nenabled = false\n",
        )
        .unwrap();
        let [a] = config.upstreams.as_slice() else { panic!("{:?}", config.upstreams) };
        assert!(a.prefix.is_bare());
        assert_eq!(a.settings.timeout, Duration::from_secs(9));
        assert_eq!(a.settings.poll, Duration::ZERO);
        assert_eq!(a.settings.max_pages, 100);
        let Transport::Http(http) = &a.transport else { panic!() };
        assert_eq!(http.headers[0].1.expose(), "Bearer t0ken");
        assert_eq!(http.headers[1].1.expose(), "platform");
        assert!(!format!("{config:?}").contains("t0ken"));
    }

    #[test]
    fn k1_every_mistake_is_told_with_its_line_and_what_is_allowed() {
        let found = mistakes(
            "[server]\n\
             lisen = \"127.0.0.1:1\"\n\
             path = \"mcp\"\n\
             seal_key = { env = \"NOT_SET\" }\n\
             [server.limits]\n\
             body_size = 4\n\
             headers = 5\n\
             [naming]\n\
             separator = \"-\"\n\
             [listing]\n\
             on_failure = \"ignore\"\n\
             [upstreams.A_b]\n\
             transport = \"library\"\n\
             [upstreams.a]\n\
             transport = \"http\"\n\
             url = \"ftp://example.com\"\n\
             [upstreams.b]\n\
             transport = \"library\"\n\
             path = \"src\"\n\
             prefix = \"a\"\n\
             [upstreams.c]\n\
             transport = \"http\"\n\
             [colour]\n\
             red = 1\n",
        );
        let starts = [
            "gateway.toml:2: server.lisen: unknown key; did you mean `listen`?",
            "gateway.toml:3: server.path: must be a path such as",
            "gateway.toml:4: server.seal_key: environment variable NOT_SET is not set",
            "gateway.toml:6: server.limits.body_size: must be a size such as",
            "gateway.toml:7: server.limits.headers: must be a whole number from 10 to 1000",
            "gateway.toml:9: naming.separator: must be 1 to 8 visible",
            "gateway.toml:11: listing.on_failure: must be one of \"stale\", \"omit\", \"fail\"",
            "gateway.toml:12: upstreams.A_b: an upstream id has",
            "gateway.toml:16: upstreams.a.url: must be a URL such as",
            "gateway.toml:21: upstreams.c.url: is required: a URL such as",
            "gateway.toml:23: colour: unknown key; allowed here: ",
        ];
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        for (line, start) in found.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}\n{start}");
        }
    }

    #[test]
    fn k1_two_upstreams_of_one_name_or_prefix_are_refused() {
        let twice = "[upstreams.a]\ntransport = \"library\"\npath = \"src\"\n";
        assert!(mistakes(&[twice, twice].concat())[0].starts_with("gateway.toml:4: "));
        let other = "[upstreams.b]\ntransport = \"library\"\npath = \"src\"\nprefix = \"a\"\n";
        let found = mistakes(&[twice, other].concat());
        assert_eq!(
            found,
            ["gateway.toml:7: upstreams.b.prefix: upstream a has this prefix already"]
        );
    }

    #[test]
    fn keys_of_later_versions_are_refused_not_ignored() {
        let found = mistakes("[cluster]\nredis = \"x\"\n");
        assert_eq!(found.len(), 1);
        assert!(found.iter().all(|line| line.contains("not available in this version")));
    }

    #[test]
    fn k6_beyond_loopback_is_refused_unless_insecure() {
        let open = "[server]\nlisten = \"0.0.0.0:8080\"\n";
        assert!(mistakes(open)[0].contains("beyond loopback"));
        assert!(parse(&format!("{open}insecure = true\n")).is_ok());
        assert!(parse("[server]\nlisten = \"[::1]:8080\"\n").is_ok());
    }

    #[test]
    fn the_environment_gives_numbers_flags_and_lists_as_text() {
        let env = [
            ("PROMPTGATE__LISTING__PAGE_SIZE", "7"),
            ("PROMPTGATE__SERVER__ALLOWED_HOSTS", "A.example, b.example"),
            ("PROMPTGATE__SERVER__INSECURE", "true"),
            ("PROMPTGATE__SERVER__NAME", "123"),
        ];
        let env = env.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let config = Config::parse("g", "", Path::new(""), &env).unwrap();
        assert_eq!(config.listing.page_size, 7);
        assert_eq!(config.server.allowed_hosts, ["a.example", "b.example"]);
        assert_eq!(config.server.name, "123");
        let env = [("PROMPTGATE__LISTING__PAGE_SIZE".to_owned(), "0".to_owned())];
        let error = Config::parse("g", "", Path::new(""), &env).unwrap_err().to_string();
        assert!(error.starts_with("PROMPTGATE__LISTING__PAGE_SIZE: listing.page_size: must be"));
    }
}

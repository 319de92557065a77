//! Configuration. [`raw`] merges the file and the environment into one tree; `reader` checks the
//! tree and collects all mistakes; the result is the validated [`Config`].

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod access;
mod addresses;
mod admin;
mod audit;
mod auth;
mod calls;
mod cluster;
pub mod error;
pub mod durable_file;
mod net;
mod in_use;
pub mod labels;
pub mod lock;
mod overlays;
pub mod removed_protections;
mod reader;
mod records;
mod passthrough;
pub mod reference;
pub mod rollouts;
mod approvals;
#[cfg(test)]
mod schema_check;
mod server;
mod telemetry;
mod upstream;
pub mod variables;

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use access::Access;
pub use addresses::Addresses;
pub use admin::{Admin, Oidc, Usage};
pub use approvals::ApprovalRules;
pub use audit::{Audit, AuditExport, Durability, OnAuditFailure, OnAuditFull};
pub use auth::jwt::{Jwt, is_https_or_loopback};
pub use auth::{ApiKey, Auth, Certificate, Identity};
pub use calls::guards::{Guard, GuardEvent, GuardHook};
pub use calls::limits::{Limit, Per, default_limit_name};
pub use cluster::{Cluster, OnMissing, OnStoreFailure, SharedLimits, StoreCredential, StoreServer};
pub use error::{ConfigError, Origin};
pub use in_use::Setting;
pub use net::Proxies;
pub use net::tls::{Tls, TlsFiles};
pub use reader::key;
pub use reader::secret::Secret;
pub use records::{Records, load_audit, lock_store};
pub use server::Limits;
pub use server::exposure::{Exposure, ToolForm, offers_as_skills};
pub use server::views::View;
pub use server::{Server, from_here};
pub use telemetry::{LogFormat, TelemetrySettings};
pub use upstream::credential::{
    AssertionServer, CALLER, CallerCredential, Credentials, Exchange, IdJag, TokenCredential,
    Vault, Workload, is_reserved_header,
};
pub use upstream::git::Git;
pub use upstream::logins::{AccountLimits, Login, Logins};
pub use upstream::oauth::{ClientProof, OAuth};
pub use upstream::settings::Settings;
pub use upstream::settings::{Breaker, Links};
pub use upstream::webhook::Webhook;
pub use upstream::{Http, Library, PromptStore, Stdio, StoreKind, Transport, UpstreamSettings};

use base::platform::disk;
use base::seal;
use domain::approval::Mode;
use domain::calls::rollout::Rollout;
use domain::name::{DEFAULT_SEPARATOR, MAX_LENGTH_LIMIT, Naming, UpstreamId, is_separator};
use domain::prompts::overlay::Overlay;
use domain::text::text_file;
use net::tls;
use reader::raw;
use reader::schema::Recorder;
use reader::{Context, Section, secs, table};
use server::{exposure, views};
use upstream::Upstreams;
use upstream::logins;

/// The validated configuration. Every value is within its bounds, and all defaults are applied.
#[derive(Clone, Debug)]
pub struct Config {
    /// `sha256:…` of the file, for logs and the audit log.
    pub digest: String,
    /// Other files that were read with the file: policies, secrets and CA certificates.
    pub files: Vec<SourceFile>,
    /// Environment variables whose names begin with `PROMPTGATE_` and that have no effect, sorted.
    pub unused_variables: Vec<String>,
    pub server: Server,
    /// `None`: the admin API is disabled.
    pub admin: Option<Admin>,
    pub auth: Auth,
    /// `None`: no rules are configured, and every caller may use every prompt.
    pub access: Option<Access>,
    pub limits: Vec<Limit>,
    /// The guards in the order of the file.
    pub guards: Vec<Arc<Guard>>,
    /// `None`: the audit log is disabled.
    pub audit: Option<Audit>,
    /// `None`: this replica stands alone.
    pub cluster: Option<Cluster>,
    pub naming: Naming,
    pub listing: Listing,
    /// Bounds on the accounts of callers at upstreams.
    pub accounts: AccountLimits,
    /// The folder, keys and lifetime of operator sign-ins; `None` without `server.seal_key`.
    pub logins: Option<Arc<Logins>>,
    /// The disabled upstreams. Other tables may name them, without effect.
    pub disabled_upstreams: Vec<UpstreamId>,
    /// The enabled upstreams, sorted by id.
    pub upstreams: Vec<UpstreamSettings>,
    /// The upstream of pass-through requests, if it is enabled.
    pub passthrough: Option<UpstreamId>,
    /// The overlays in the order of the file.
    pub overlays: Vec<Overlay>,
    pub approvals: ApprovalRules,
    /// The rollouts by public names of prompts, in the order of the file; at most one for each.
    pub rollouts: Vec<(String, Arc<Rollout>)>,
    /// The views, sorted by name.
    pub views: Vec<View>,
    pub telemetry: TelemetrySettings,
    /// Whether the file ends with the table `[end]`.
    pub has_end: bool,
    /// The text of the file, including the secrets in it.
    text: Secret,
    /// The keys of the file and of the environment, and the defaults of the other keys.
    pub settings: Arc<[Setting]>,
}

/// A file that the configuration references, with the digest of its content. A reload is due when
/// the digest changes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SourceFile {
    pub path: PathBuf,
    /// The digest of the content; see [`SourceFile::digest`].
    pub digest: String,
}

impl SourceFile {
    /// Returns `sha256:…` of the content, or the kind of the error if the file could not be read.
    pub fn digest(read: Result<&[u8], &io::Error>) -> String {
        match read {
            Ok(bytes) => seal::sha256_text(bytes),
            Err(error) => error.kind().to_string(),
        }
    }
}

table! {
    /// `[listing]`: how lists are merged and served.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Listing(section, key) {
        /// Prompts on one page of `prompts/list`. Many clients read only one page.
        pub page_size: usize = section.count(key, 1_000, 1..=100_000);
        /// Time after the start in which a list waits for upstreams that have not answered yet.
        /// After a reload, lists wait that long only while no upstream has a list.
        /// Later, the last good list of an upstream that cannot be listed is served on; stale and
        /// missing upstreams that a caller can see are named in `_meta["promptgate/incomplete"]`.
        pub deadline: Duration = section.duration(key, secs(5), Duration::ZERO);
        /// Upper bound of the `ttlMs` that modern clients receive.
        pub ttl_max: Duration = section.duration(key, secs(300), Duration::ZERO);
        /// Debounce of `list_changed`: the quiet time before a change is announced.
        pub debounce: Duration = section.duration(key, Duration::from_millis(200), Duration::ZERO);
        /// Longest delay of an announcement. At least as long as the debounce.
        pub debounce_max: Duration = section.duration(key, secs(2), Duration::ZERO);
        /// Memory for the lists of callers with rights of their own and of views. The least
        /// recently used list is dropped first and made again when it is asked for. Private lists
        /// may take as much again.
        pub views_size: usize = section.size(key, 256 << 20, 1 << 20..=1 << 40);
    }
}

/// The environment of this process. Variables that are not valid UTF-8 are left out: overrides and
/// secrets are text.
pub(crate) fn environment() -> Vec<(String, String)> {
    let all = std::env::vars_os();
    all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Finds the value of a variable by its name.
fn lookup(env: &[(String, String)]) -> impl Fn(&str) -> Option<String> {
    |name| env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}

/// Returns the text of the file at `path`; an empty text if it does not exist. Blocks.
fn text_or_empty(path: &Path) -> Result<String, ConfigError> {
    match disk::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text.map_err(|error| unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> ConfigError {
    let message = format!("cannot be read: {error}");
    ConfigError::whole_file(path.display().to_string(), Origin::Unknown, message)
}

impl Config {
    /// Reads the file at `path`, with overrides and secrets from the environment of this process.
    /// Blocks.
    ///
    /// # Errors
    /// All mistakes in the configuration, or the error of reading the file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let bytes = disk::read(path).map_err(|error| unreadable(path, &error))?;
        // The digest covers the bytes, as at the next poll.
        let digest = SourceFile::digest(Ok(&bytes));
        let text = text_file::decode(bytes).map_err(|error| {
            ConfigError::whole_file(file.clone(), Origin::Unknown, error.to_string())
        })?;
        let base = path.parent().unwrap_or(Path::new(""));
        let config = Self::parse(&file, &text, base, &environment())?;
        Ok(Self { digest, ..config })
    }

    /// Sets the program that supervises child processes: the gateway's own binary, whose
    /// `supervise` command starts each child.
    pub fn supervise_children(&mut self, program: &Path) {
        for upstream in &mut self.upstreams {
            if let Transport::Stdio(stdio) = &mut upstream.transport {
                stdio.supervisor = Some(program.to_owned());
            }
        }
    }

    /// Parses and validates `text`. `file` names the file in errors, relative paths are resolved
    /// against the directory `base`, and `env` holds the environment variables. Reads the files
    /// that the configuration references, so it blocks.
    ///
    /// # Errors
    /// All mistakes in the configuration.
    pub fn parse(
        file: &str,
        text: &str,
        base: &Path,
        env: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let raw = raw::Raw::read(file, text, env.iter().cloned())?;
        let lookup = lookup(env);
        let settings = in_use::settings(&raw.root, &raw.origins);
        let context = Context::new(raw.origins, &lookup, base);
        let mut config = Self::read(raw.root, text, &context);
        config.files = context.files.take();
        config.settings = settings.into();
        context.mistakes.into_result(file, &config.files)?;
        let looked_up = context.variables.into_inner();
        config.unused_variables = variables::unused(env, &looked_up);
        Ok(config)
    }

    /// Returns the JSON Schema (2020-12) of the configuration file. The schema describes each key
    /// separately; only [`Config::parse`] checks rules between keys.
    pub fn schema() -> serde_json::Value {
        Self::recorded().schema()
    }

    /// Reads one table of every kind, and returns the recorded schema of its keys.
    fn recorded() -> Recorder {
        // Keys are recorded as they are read, so this text has every kind of table.
        let raw = raw::Raw::read("schema", SCHEMA_TABLES, []).unwrap_or_default();
        let recorder = Some(RefCell::default());
        let context = Context { recorder, ..Context::new(raw.origins, &|_| None, Path::new("")) };
        Self::read(raw.root, "", &context);
        context.recorder.map(RefCell::into_inner).unwrap_or_default()
    }

    /// Reads the tree; mistakes go to the context.
    fn read(tree: config::Map<String, config::Value>, text: &str, context: &Context<'_>) -> Self {
        let mut root = Section::root(tree, context);
        root.explain(KEYS);
        let naming = naming(root.section("naming"));
        let Upstreams { list: mut upstreams, disabled, modes } = upstream::read_all(&mut root);
        let proxies = net::read(root.section("net"));
        upstream::use_proxies(&mut upstreams, &proxies);
        let mut server = root.section("server");
        let tls = tls::read(&mut server);
        let client_ca = tls.as_ref().and_then(|tls| tls.client_ca.clone());
        let auth = auth::read(root.section("auth"), client_ca, &proxies);
        let passthrough = passthrough::read(root.section("passthrough"), &mut upstreams, &disabled);
        root.reject("rest", "its name is [passthrough]");
        root.reject("callers", "its name is [[auth.api_keys]]");
        root.reject("rules", "its name is [[access.rules]]");
        let access = access::read(root.section("access"), &upstreams, &disabled, &auth);
        let server = server::read(server, tls, &auth);
        let login = upstream::first_login(&upstreams);
        let logins = logins::read(root.section("logins"), server.seal_keys.as_ref(), login);
        let accounts = logins::accounts(root.section("accounts"));
        let urls = [server.sign_in_page(), server.client_document()];
        upstream::keep_logins(&mut upstreams, logins.as_ref(), urls);
        if let Some(signing_in) =
            upstreams.iter().find(|upstream| upstream.caller_sign_in().is_some())
            && server.sign_in_page().is_none()
            && !root.is_broken("server.public_url")
        {
            let key = format!("upstreams.{}.credential.sign_in", signing_in.id);
            root.mistake(&key, "needs server.public_url, with https or on this machine: callers sign in at a page of the gateway, \
                 which their browsers must reach");
        }
        if let Some(jwt) = &auth.jwt {
            upstream::name_issuer(&mut upstreams, &jwt.issuer);
        } else if let Some(exchanging) =
            upstreams.iter().find(|upstream| upstream.exchanges_tokens())
            && !root.is_broken("auth.jwt")
        {
            let key = format!("upstreams.{}.credential", exchanging.id);
            root.mistake(&key, "needs auth.jwt: without it no caller brings a token to exchange");
        }
        for upstream in &upstreams {
            if upstream.http().is_some_and(|http| server.serves(&http.url)) {
                let key = format!("upstreams.{}.url", upstream.id);
                root.mistake(&key, "is an endpoint of this gateway, which would list its own prompts again and again; remove it");
            }
        }
        // Anyone may get every prompt.
        let is_open = !auth.required && access.is_none();
        let telemetry = TelemetrySettings::read_table(root.section("telemetry"), proxies.clone());
        let views = views::read_all(&mut root, &server, &upstreams, &disabled);
        let mut config = Self {
            digest: seal::sha256_text(text.as_bytes()),
            files: Vec::new(),
            unused_variables: Vec::new(),
            auth,
            access,
            limits: calls::limits::read_all(&mut root),
            guards: calls::guards::read_all(
                &mut root,
                &server,
                (&upstreams, &disabled),
                &views,
                &telemetry,
            ),
            audit: Audit::read_table(root.section("audit"), server.limits.share),
            admin: admin::read(root.section("admin"), &proxies, is_open),
            listing: listing(root.section("listing")),
            accounts,
            logins,
            overlays: overlays::read_all(&mut root, &upstreams, &disabled),
            approvals: approvals::read(root.section("approvals"), &upstreams, modes, &telemetry),
            rollouts: rollouts::read_all(&mut root),
            views,
            cluster: cluster::read(root.section("cluster"), server.seal_keys.is_some()),
            server,
            disabled_upstreams: disabled,
            upstreams,
            passthrough,
            telemetry,
            naming,
            has_end: end(&mut root, text),
            text: Secret::new(text),
            settings: Arc::default(),
        };
        exposure::note_skills(&mut config);
        for key in ["mcpServers", "servers", "mcp_servers"] {
            root.reject(
                key,
                "is the configuration of a host; `promptgate import FILE` converts it to [upstreams.NAME] tables",
            );
        }
        root.finish();
        config
    }

    /// Prepares a configuration for commands that show or change the lock file, and reads the lock
    /// file: if approvals are off for all upstreams, they are compared for all. The command decides
    /// which texts are probed, and waits for upstreams as long as their settings say. Returns
    /// whether approvals are off for all upstreams.
    ///
    /// # Errors
    /// The lock file cannot be read.
    pub fn observe_approvals(&mut self) -> Result<bool, lock::LockError> {
        let approvals = &mut self.approvals;
        approvals.lock = Arc::new(approvals.store.read()?);
        approvals.is_probing = false;
        let are_off =
            self.upstreams.iter().all(|upstream| approvals.mode_of(&upstream.id) == Mode::Off);
        if are_off {
            approvals.mode = Mode::Warn;
            approvals.modes.clear();
        }
        let patience = self.upstreams.iter().map(|upstream| {
            let settings = &upstream.settings;
            settings.startup.max(settings.connect + settings.probe) + settings.walk_timeout
        });
        self.listing.deadline = patience.max().unwrap_or_default().max(self.listing.deadline);
        Ok(are_off)
    }
}

/// The tables of the file.
const KEYS: &str = r#"
server: The listener and the endpoint for clients.
admin: The admin API and the console.
auth: Authentication of callers.
access: Which caller may use which prompt. Without rules every caller may use every prompt.
limits: Rate limits. A call must pass every limit that counts it.
guards: What the texts of calls may hold (docs/guards.md).
cluster: The store that the replicas of one gateway share.
audit: The audit log.
naming: Public names of prompts: the prefix of the upstream, the separator, and the name at the
    upstream.
listing: How lists are merged and served.
net: The way to servers beyond the own network.
defaults: Settings of all upstreams. Each upstream may override each of them.
upstreams: The prompt servers. The name of each table is the id of the upstream, 1 to 64 characters
    of `a-z`, `0-9` and `-`, the first a letter or a digit.
logins: Sign-ins of the operator at upstreams.
accounts: Accounts of callers at upstreams: how many there may be.
passthrough: The upstream for what is not prompts: tools, resources and other methods.
views: More endpoints, each with a part of the catalog. The name of the table ends the path of the
    endpoint, `/mcp/NAME` (below `server.path`).
overlays: Changes of prompts before clients see them. Several for one prompt apply in their order.
approvals: Which versions of prompts may be served.
rollouts: Versions of prompts that a share of the callers gets (docs/versions.md#rollouts).
telemetry: Log, metrics and traces.
end: Always the last table, without keys: the file has not lost its end. Once a gateway has it, a
    reload of a file without it is held back.
"#;

/// One table of every kind, from which the schema is recorded.
const SCHEMA_TABLES: &str = r#"
[upstreams.library]
transport = "library"
path = "."
[upstreams.http]
transport = "http"
credential = { oauth = {}, workload = {}, exchange = { actor = {} }, id_jag = {}, sign_in = {}, vault = {} }
[upstreams.sse]
transport = "sse"
credential = { login = {} }
[upstreams.git]
transport = "git"
[upstreams.stdio]
transport = "stdio"
[upstreams.store]
transport = "mlflow"
[views.view]
[auth.jwt]
[[auth.api_keys]]
[[auth.mtls]]
[[access.rules]]
[[limits]]
[[guards]]
http = {}
[approvals.notify]
[[approvals.probes]]
[[overlays]]
arguments.argument = {}
icons = [{}]
[[rollouts]]
steps = [{}]
rollback = {}
[end]
"#;

/// Reads the table `[end]`, which has no keys and marks the end of the file.
fn end(root: &mut Section<'_>, text: &str) -> bool {
    let has_end = root.has("end");
    if has_end && !text.is_empty() && !removed_protections::ends_with_end(text) {
        root.mistake("end", "must come last: move the tables below it above it");
    }
    root.section("end").finish();
    has_end
}

/// The keys of `[naming]`.
const NAMING_KEYS: &str = r#"
separator: Text between the prefix and the name. The first one in a public name splits it, so
    that two upstreams cannot claim the same name.
max_length: Longest public name, in characters. A prompt with a longer one is left out, with the
    reason in the log.
"#;

fn naming(mut section: Section<'_>) -> Naming {
    section.explain(NAMING_KEYS);
    let allowed = "1 to 8 visible ASCII characters, at least one of them outside a-z, 0-9 and -";
    let parse = |text: &str| is_separator(text).then(|| text.to_owned());
    section.record_text("separator", allowed, Some(DEFAULT_SEPARATOR));
    let separator = section.parsed("separator", allowed, parse);
    let max_length = section.count("max_length", 128, 1..=MAX_LENGTH_LIMIT);
    section.finish();
    Naming::new(separator.as_deref().unwrap_or(DEFAULT_SEPARATOR), max_length)
}

fn listing(mut section: Section<'_>) -> Listing {
    let listing = Listing::read_keys(&mut section);
    if listing.debounce > listing.debounce_max {
        section.mistake("debounce_max", "must be at least as long as listing.debounce");
    }
    section.finish();
    listing
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::calls::fair_share::Share;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        let env = [("TOKEN".to_owned(), "t0ken".to_owned())];
        schema_check::parse(
            "gateway.toml",
            text,
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")),
            &env,
        )
    }

    fn mistakes(text: &str) -> Vec<String> {
        let error = parse(text).unwrap_err();
        error.to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
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
                body: secs(30),
                body_size: 4 * 1024 * 1024,
                idle: secs(75),
                in_flight: 4096,
                in_flight_bytes: 256 * 1024 * 1024,
                streams: 16384,
                streams_per_caller: 1000,
                stream_lifetime: secs(3600),
                keep_alive: secs(15),
                h2_streams: 100,
                session_lifetime: secs(30 * 24 * 3600),
                terminated_sessions: 100_000,
                request: secs(60),
                server_request_timeout: secs(300),
                share: Share::new(0.25),
                body_rate: 8 * 1024,
                pre_drain: secs(1),
                grace: secs(30),
            }
        );
        let expected = Listing {
            page_size: 1000,
            deadline: secs(5),
            ttl_max: secs(300),
            debounce: Duration::from_millis(200),
            debounce_max: secs(2),
            views_size: 256 << 20,
        };
        assert_eq!(listing, expected);
        let expected = TelemetrySettings {
            log: "info".into(),
            log_format: LogFormat::Auto,
            otlp: None,
            trace_sample: 1.0,
            service_name: "promptgate".into(),
            max_prompts: 2000,
            proxies: Proxies::default(),
        };
        assert_eq!(telemetry, expected);
    }

    #[test]
    fn files_are_read_as_windows_writes_them_and_count_by_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        };
        let toml = "[upstreams.a]\r\ntransport = \"http\"\r\nurl = \"https://a.example/mcp\"\r\n\
                    credential = { bearer = { file = \"token\" } }\r\n[end]\r\n";
        let utf16: Vec<u8> =
            format!("\u{feff}{toml}").encode_utf16().flat_map(u16::to_le_bytes).collect();
        write("token", b"\xef\xbb\xbft0ken\r\n");
        let file = folder.path().join("gateway.toml");
        for bytes in [toml.as_bytes(), &utf16] {
            write("gateway.toml", bytes);
            let config = Config::load(&file).unwrap();
            let credentials = &config.upstreams[0].http().unwrap().credentials;
            assert_eq!(credentials.header.as_ref().unwrap().1.expose(), "Bearer t0ken");
            assert_eq!(config.digest, seal::sha256_text(bytes), "or each poll would reload it");
        }
        write("gateway.toml", b"# \xe4\n");
        let mistake = Config::load(&file).unwrap_err().to_string();
        assert!(
            mistake.contains("is not UTF-8 text, from byte 2 on: save it as UTF-8"),
            "{mistake}"
        );
    }

    #[test]
    fn places_of_variables_are_reported_with_the_spelling_that_works() {
        let upstream = |rest: &str| {
            format!(
                "[upstreams.a]\ntransport = \"http\"\nurl = \"https://a.example/mcp\"\n{rest}\n"
            )
        };
        let secret = "write { env = \"KEY\" }, with the whole value in the variable";
        let url = "set the whole value by the variable PROMPTGATE__";
        for (toml, key, remedy) in [
            (upstream("headers = { X-Key = \"${KEY}\" }"), "upstreams.a.headers.X-Key", secret),
            (
                upstream("credential = { bearer = { value = \"$KEY\" } }"),
                "upstreams.a.credential.bearer",
                secret,
            ),
            ("[net]\nproxy = \"%KEY%\"\n".to_owned(), "net.proxy", secret),
            (
                upstream("").replace("a.example", "${HOST}"),
                "upstreams.a.url",
                "PROMPTGATE__UPSTREAMS__A__URL",
            ),
            (upstream("").replace("/mcp", "/${TENANT}/mcp"), "upstreams.a.url", url),
            ("[telemetry]\notlp_endpoint = \"$OTLP\"\n".to_owned(), "telemetry.otlp_endpoint", url),
        ] {
            let found = parse(&toml).unwrap_err().to_string();
            assert!(found.contains(&format!("{key}: has a place for the variable")), "{found}");
            assert!(found.contains(remedy), "{found}");
        }
        let plain = upstream("headers = { X-Price = \"5$\", X-Note = \"a $KEY b\" }");
        assert!(parse(&plain).is_ok());
    }

    #[test]
    fn white_space_around_a_variable_is_not_part_of_it() {
        let toml = "[upstreams.a]\ntransport = \"http\"\nurl = \"https://a.example/mcp\"\n\
                    credential = { bearer = { env = \"KEY\" } }\n";
        let env = [("KEY", " t0ken \r\n"), ("PROMPTGATE__UPSTREAMS__A__TIMEOUT", " 7s\n")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = schema_check::parse("g", toml, Path::new(""), &env).unwrap();
        let credentials = &config.upstreams[0].http().unwrap().credentials;
        assert_eq!(credentials.header.as_ref().unwrap().1.expose(), "Bearer t0ken");
        assert_eq!(config.upstreams[0].settings.timeout, Duration::from_secs(7));
    }

    #[test]
    fn an_upstream_is_switched_off_without_a_change_elsewhere() {
        let upstream = |id: &str| {
            format!("[upstreams.{id}]\ntransport = \"http\"\nurl = \"https://{id}.example/mcp\"\n")
        };
        let rest = "[[access.rules]]\nallow = [\"get\"]\nupstreams = [\"off\"]\n\
             [[overlays]]\nupstream = \"off\"\nprompt = \"p\"\ndrop = true\n\
             [views.only]\nupstreams = [\"off\"]\n[views.both]\nupstreams = [\"on\", \"off\"]\n";
        let toml = format!("{}{}enabled = false\n{rest}", upstream("on"), upstream("off"));
        let config = parse(&toml).unwrap();
        let ids = |ids: &[UpstreamId]| ids.iter().map(UpstreamId::to_string).collect::<Vec<_>>();
        assert_eq!(ids(&config.disabled_upstreams), ["off"]);
        assert_eq!(config.upstreams.len(), 1);
        let views: Vec<_> = config.views.iter().map(|view| ids(&view.upstreams)).collect();
        assert_eq!(views, [vec!["on", "off"], vec!["off"]], "by name, and none serves all");
        let unknown = toml.replace("[\"off\"]\n[[overlays", "[\"of\"]\n[[overlays");
        assert!(parse(&unknown).unwrap_err().to_string().contains("there is no upstream \"of\""));
    }

    #[test]
    fn a_disabled_upstream_may_lack_its_secrets_and_is_else_checked() {
        let unset = "{ env = \"NOT_SET\" }";
        let store = "transport = \"langfuse\"\nurl = \"https://up.example\"\n";
        let key = "oauth = { client_id = \"g\", token_url = \"https://id.example/t\", private_key";
        for credential in [
            format!("bearer = {unset}"),
            format!("header = \"X-Key\", value = {unset}"),
            "bearer = { file = \"no-such-file\" }".to_owned(),
            format!("{key} = {unset} }}"),
        ] {
            let secrets = format!("webhook_secret = {unset}\ncredential = {{ {credential} }}\n");
            let off = format!("[upstreams.off]\nenabled = false\n{store}{secrets}");
            assert_eq!(parse(&off).map_err(|error| error.to_string()).err(), None);
            let both = mistakes(&format!("{off}[upstreams.on]\n{store}{secrets}"));
            assert!(both.len() >= 2, "{both:#?}");
            assert!(both.iter().all(|line| line.contains("upstreams.on.")), "{both:#?}");
            let wrong = mistakes(&format!("{}lisen = 1\n", off.replace("https", "ftp")));
            let of_url = |line: &String| line.contains("upstreams.off.url: must be");
            assert!(wrong.iter().any(of_url) && wrong.last().unwrap().contains("lisen"));
        }
        let git = "[upstreams.off]\nenabled = false\ntransport = \"git\"\n\
                   url = \"https://up.example/r\"\ncredential = { user = \"u\", password = ";
        assert!(parse(&format!("{git}{unset} }}\n")).is_ok());
    }

    #[test]
    fn an_upstream_inherits_the_defaults_and_overrides_them() {
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
        assert_eq!(http.credentials.header.as_ref().unwrap().1.expose(), "Bearer t0ken");
        assert_eq!(http.headers[0].1.expose(), "platform");
        assert!(!format!("{config:?}").contains("t0ken"));
    }

    #[test]
    fn k1_every_mistake_is_reported_with_its_line_and_the_allowed_values() {
        let found = mistakes(
            "[server]\n\
             lisen = \"127.0.0.1:1\"\n\
             path = \"mcp\"\n\
             seal_key = { env = \"NOT_SET\" }\n\
             [server.limits]\n\
             body_size = 4\n\
             streams = 0\n\
             [naming]\n\
             separator = \"-\"\n\
             [listing]\n\
             page_size = 0\n\
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
            "gateway.toml:4: server.seal_key: environment variable NOT_SET is not set. Set it and \
             restart the gateway, or use { file",
            "gateway.toml:6: server.limits.body_size: must be a size such as",
            "gateway.toml:7: server.limits.streams: must be a whole number from 1 to 1000000",
            "gateway.toml:9: naming.separator: must be 1 to 8 visible",
            "gateway.toml:11: listing.page_size: must be a whole number from 1 to 100000",
            "gateway.toml:12: upstreams.A_b: an upstream id must have",
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
    fn k1_one_mistake_is_reported_once_at_its_own_line() {
        let upstreams = "[upstreams.a]\ntransport = \"stdio\"\ncommand = [\"x\"]\n\
                         [upstreams.b]\ntransport = \"stdio\"\ncommand = [\"x\"]\n";
        for (toml, expected) in [
            (
                "[defaults]\nprobe = \"2m\"\n",
                "g.toml:2: defaults.probe: must be shorter than startup",
            ),
            ("[defaults]\nprobe = \"x\"\n", "g.toml:2: defaults.probe: must be a duration"),
            (
                "[defaults.breaker]\nopen_min = \"2m\"\n",
                "g.toml:1: defaults.breaker.open_max: must be at least as long as open_min",
            ),
            (
                "[[limits]]\nname = \"x\"\nrate = \"fast\"\nburst = 3\n",
                "g.toml:3: limits.1.rate: must be a rate such as",
            ),
            (
                "[[limits]]\nrate = \"1/s\"\n[[limits]]\nrate = \"1/s\"\nburst = 0\n",
                "g.toml:5: limits.2.burst: must be a whole number",
            ),
            (
                "[[access.rules]]\nallow = [\"read\"]\n",
                "g.toml:2: access.rules.1.allow: must list one or more of",
            ),
            (
                "[[access.rules]]\nallow = [\"get\"]\ngroups = []\n",
                "g.toml:3: access.rules.1.groups: must hold at least one value",
            ),
            (
                "[[access.rules]]\nallow = [\"get\"]\nupstreams = []\n",
                "g.toml:3: access.rules.1.upstreams: must hold at least one value",
            ),
            (
                "[[limits]]\nrate = \"1/s\"\ncallers = []\n",
                "g.toml:3: limits.1.callers: must hold at least one value",
            ),
            (
                "[[access.rules]]\nallow = [\"get\"]\nupstreams = [\"none\"]\n",
                "g.toml:3: access.rules.1.upstreams: there is no upstream \"none\"",
            ),
            (
                "[[access.rules]]\nallow = [\"get\"]\n[[access.rules]]\n",
                "g.toml:3: access.rules.2: must have exactly one of",
            ),
            (
                "[upstreams.c]\ntransport = \"streamable-http\"\nurl = \"http://a/mcp\"\n",
                "g.toml:2: upstreams.c.transport: must be one of \"library\", \"http\" (Streamable HTTP)",
            ),
            (
                "[upstreams.c]\ntransport = \"stdio\"\ncommand = \"uvx\"\nargs = [\"x\"]\n",
                "g.toml:4: upstreams.c.args: belongs in command: command = [",
            ),
            (
                "[mcpServers.fetch]\ncommand = \"uvx\"\n",
                "g.toml:1: mcpServers: is the configuration of a host; `promptgate import FILE`",
            ),
            ("[server]\nexpose = []\n", "g.toml:2: server.expose: must name \"prompts\""),
        ] {
            let text = toml.to_owned() + upstreams;
            let base = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
            let error = schema_check::parse("g.toml", &text, base, &[]).unwrap_err().to_string();
            assert_eq!(error.lines().count(), 1, "{toml}\n{error}");
            assert!(error.starts_with(expected), "{error}\n{expected}");
        }
    }

    #[test]
    fn k1_a_duplicate_key_is_named_and_json_is_recognised() {
        for (toml, expected) in [
            (
                "[server]\nname = \"a\"\nname = \"b\"\n",
                "gateway.toml:3: duplicate key `name`; remove",
            ),
            (
                "[server]\n[server]\n",
                "gateway.toml:2: duplicate key `server`, which is in line 1 already; ",
            ),
            (
                "[a]\nb = 1\n[b]\n[a]\n",
                "gateway.toml:4: duplicate key `a`, which is in line 1 already; ",
            ),
            ("[a]\nb = 1\n[a.b]\n", "gateway.toml:3: duplicate key `b`; remove"),
            ("[server]\nname = \"a\n", "gateway.toml:2: the text has no closing \" in its line"),
            (
                "[server]\nname = a\n",
                "gateway.toml:2: the value is missing, or is a text without quotes",
            ),
            ("{\"mcpServers\": {}}", "gateway.toml:1: "),
        ] {
            let error = mistakes(toml);
            assert!(error[0].starts_with(expected), "{error:?}");
        }
        assert!(mistakes("{\"mcpServers\": {}}")[0].contains("promptgate import FILE"));
    }

    #[test]
    fn one_mistake_is_one_message() {
        let key = format!("[[auth.api_keys]]\nid = \"ci\"\nhash = \"sha256:{}\"\n", "0".repeat(63));
        let users = "[[access.rules]]\nallow = [\"get\"]\nupstreams = [\"crm\"]\n[views.v]\nupstreams = [\"crm\"]\n\
            [passthrough]\nupstream = \"crm\"\n[[overlays]]\nupstream = \"crm\"\nprompt = \"*\"\ndrop = true\n";
        let renamed = |id| {
            format!(
                "[upstreams.{id}]\ntransport = \"library\"\npath = \".\"\n{}",
                users.replace("crm", id)
            )
        };
        for (text, expected) in [
            (format!("[upstreams.crm]\ntransport = \"streamable-http\"\n{users}"), "gateway.toml:2: upstreams.crm.transport: must be"),
            (format!("[upstreams.crm]\ntransport = \"http\"\n{users}"), "gateway.toml:1: upstreams.crm.url: is required"),
            (renamed("my_crm"), "gateway.toml:1: upstreams.my_crm: an upstream id must have"),
            (format!("[server]\nlisten = \"0.0.0.0:8080\"\n{key}"), "gateway.toml:5: auth.api_keys.1.hash: must be"),
            (format!("{key}[auth]\nrequired = true\n"), "gateway.toml:3: auth.api_keys.1.hash: must be"),
            ("[server]\nseal_key = { value = \"x\" }\n[cluster]\nstore = \"redis://127.0.0.1:1\"\n".to_owned(), "gateway.toml:2: server.seal_key: "),
        ] {
            let found = mistakes(&text);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{text}\n{found:#?}");
        }
    }

    #[test]
    fn a_table_of_the_wrong_kind_is_told_how_it_is_written() {
        for (text, expected) in [
            ("[limits]\nrate = \"1/s\"\n", "limits: must be an array of tables: write [[limits]]"),
            (
                "[access.rules]\nallow = [\"get\"]\n",
                "access.rules: must be an array of tables: write [[access.rules]]",
            ),
            (
                "[[rollouts]]\nprompt = \"a\"\nto = \"b\"\nsteps = {}\n",
                "rollouts.1.steps: must be an array of tables: write [[rollouts.steps]]",
            ),
            (
                "[[upstreams]]\ntransport = \"http\"\n",
                "upstreams: must be a table: write [upstreams.NAME]",
            ),
            (
                "[views]\nupstreams = [\"a\"]\n",
                "views.upstreams: must be a table: write [views.NAME]",
            ),
            ("[[server]]\nname = \"a\"\n", "server: must be a table: write [server]"),
            ("[[callers]]\nid = \"ci\"\n", "callers: its name is [[auth.api_keys]]"),
            (
                "[server.limits]\nshare = 5\n",
                "server.limits.share: must be a number from 0 to 1: 0.05 is 5 %",
            ),
            (
                "[server.limits]\nshare = \"5%\"\n",
                "server.limits.share: must be a number from 0 to 1: 0.05 is 5 %",
            ),
        ] {
            let found = mistakes(text);
            assert!(found.len() == 1 && found[0].ends_with(expected), "{text}\n{found:#?}");
        }
    }

    #[test]
    fn a_misspelt_override_is_named_by_its_variable() {
        let env = [("PROMPTGATE__SERVR__LISTEN".to_owned(), "1".to_owned())];
        let error = Config::parse("gateway.toml", "", Path::new(""), &env).unwrap_err().to_string();
        assert!(error.starts_with("PROMPTGATE__SERVR__LISTEN: servr: unknown key"), "{error}");
    }

    #[test]
    fn bounds_are_reported_in_units_that_the_file_may_use() {
        let found = mistakes(
            "[listing]\nttl_max = 5\n[server.limits]\nidle = \"0s\"\nbody_size = \"2GiB\"\n\
             [audit]\nkeep_size = \"2PiB\"\n",
        );
        let ends = [
            "at least \"0s\"",
            "at least \"1ms\"",
            "from \"1KiB\" to \"1GiB\"",
            "from \"64KiB\" to \"1PiB\"",
        ];
        assert_eq!(found.len(), ends.len(), "{found:#?}");
        for (line, end) in found.iter().zip(ends) {
            assert!(line.ends_with(end), "{line}\n{end}");
        }
        let largest = "[audit]\nkeep_size = \"1PiB\"\n";
        assert_eq!(parse(largest).unwrap().audit.unwrap().keep_size, 1 << 50);
    }

    #[test]
    fn a_mistake_in_a_prompt_store_is_named_with_its_remedy() {
        for (keys, expected) in [
            ("", "gateway.toml:1: upstreams.s.url: is required"),
            ("url = \"http://a/api/2.0\"\n", "url: must be the address before `/api` or `/v1`"),
            ("url = \"http://a/v1/\"\n", "url: must be the address before `/api` or `/v1`"),
            ("url = \"http://a\"\nlabel = \"\"\n", "label: must name an alias, tag or label"),
            ("url = \"http://a\"\nfilter = \"x\"\n", "filter: is not for Phoenix"),
            ("url = \"http://a\"\nsystem = \"drop\"\n", "system: must be one of"),
            ("url = \"http://a\"\nlabels = \"x\"\n", "labels"),
        ] {
            let found = mistakes(&format!("[upstreams.s]\ntransport = \"phoenix\"\n{keys}"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(expected), "{keys}: {found:?}");
        }
        let toml =
            "[upstreams.s]\ntransport = \"mlflow\"\nurl = \"http://a/ml/\"\nlabel = \"qa\"\n";
        let config = parse(toml).unwrap();
        let Transport::Store(store) = &config.upstreams[0].transport else { panic!("no store") };
        assert_eq!((store.kind, store.label.as_str()), (StoreKind::Mlflow, "qa"));
        assert_eq!(config.upstreams[0].transport.name(), "mlflow");
    }

    #[test]
    fn k1_a_duplicate_upstream_id_or_prefix_is_rejected() {
        let twice = "[upstreams.a]\ntransport = \"library\"\npath = \"src\"\n";
        assert!(mistakes(&[twice, twice].concat())[0].starts_with("gateway.toml:4: "));
        let other = "[upstreams.b]\ntransport = \"library\"\npath = \"src\"\nprefix = \"a\"\n";
        let found = mistakes(&[twice, other].concat());
        assert_eq!(
            found,
            [
                "gateway.toml:7: upstreams.b.prefix: upstream a already has this prefix; set another one"
            ]
        );
    }

    #[test]
    fn k6_a_listener_beyond_loopback_without_authentication_needs_insecure() {
        let open = "[server]\nlisten = \"0.0.0.0:8080\"\n";
        assert!(mistakes(open)[0].contains("beyond loopback"));
        assert!(parse(&format!("{open}insecure = true\n")).is_ok());
        assert!(parse("[server]\nlisten = \"[::1]:8080\"\n").is_ok());
    }

    #[test]
    fn variables_give_numbers_booleans_and_lists_as_text() {
        let env = [
            ("PROMPTGATE__LISTING__PAGE_SIZE", "7"),
            ("PROMPTGATE__SERVER__ALLOWED_HOSTS", "A.example, b.example"),
            ("PROMPTGATE__SERVER__INSECURE", "true"),
            ("PROMPTGATE__SERVER__NAME", "123"),
        ];
        let env = env.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let config = schema_check::parse("g", "", Path::new(""), &env).unwrap();
        assert_eq!(config.listing.page_size, 7);
        assert_eq!(config.server.allowed_hosts, ["a.example", "b.example"]);
        assert_eq!(config.server.name, "123");
        let env = [("PROMPTGATE__LISTING__PAGE_SIZE".to_owned(), "0".to_owned())];
        let error = schema_check::parse("g", "", Path::new(""), &env).unwrap_err().to_string();
        assert!(error.starts_with("PROMPTGATE__LISTING__PAGE_SIZE: listing.page_size: must be"));
    }
}

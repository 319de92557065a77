//! `[server]`: the listener, the endpoint and their limits.

pub(crate) mod exposure;
pub(crate) mod views;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::Uri;

use crate::auth::Auth;
use crate::auth::jwt::is_https_or_loopback;
use crate::net::tls::Tls;
use crate::reader::{MILLISECOND, Section, optional, secs, table};
use base::seal::SealKeys;
use domain::calls::fair_share::Share;
use domain::trusted_proxies::TrustedProxies;
use exposure::Exposure;

table! {
    /// The downstream side: listener, endpoint and limits.
    #[derive(Clone, Debug)]
    pub struct Server(section, key, tls: Option<Tls>) {
        /// Address and port of the endpoint. Beyond loopback the gateway starts only with
        /// authentication or `insecure`, and with `[auth.jwt]` only with `public_url`.
        #[default = "127.0.0.1:8080"]
        pub listen: SocketAddr = listen(section);
        /// Path of the MCP endpoint: Streamable HTTP, all revisions.
        #[default = "/mcp"]
        pub path: String = main_path(section);
        /// Path of the older transport, HTTP+SSE of 2024-11-05. `""` disables it. Each message that
        /// is posted has a credential of its own.
        #[default = "/sse"]
        pub sse_path: Option<String> = sse_path(section, key);
        /// URL of the endpoint as clients reach it, with its path. Its host and its origin are
        /// allowed.
        #[default = ""] #[example = "https://prompts.example.com/mcp"]
        pub public_url: Option<Uri> =
            section.parsed(key, PUBLIC_URL_RULE, |text| optional(text, url)).flatten();
        /// Canonical URI of the endpoint (RFC 8707), without a slash at the end: `public_url`, or
        /// else the URL of the listen address. The URI of a view is a path below it.
        field pub resource: String = match &public_url {
            Some(url) => url.to_string().trim_end_matches('/').to_owned(),
            None => format!("{}://{listen}{path}", scheme(tls.is_some())),
        };
        /// Names that are accepted in `Host`, beside loopback names, the listen address and the
        /// host of `public_url`. A name with a port allows only that port. Other hosts get 403.
        #[default = []] #[example = ["prompts.example.com"]]
        pub allowed_hosts: Vec<String> = hosts(section);
        /// Origins of web pages that may call the gateway, beside loopback origins and the origin
        /// of `public_url`. They get CORS headers. Any other `Origin` gets 403.
        #[default = []] #[example = ["https://app.example.com"]]
        pub allowed_origins: Vec<String> = origins(section);
        /// IP addresses or networks of the reverse proxies in front of the gateway. Only their
        /// `X-Forwarded-For` is read, from the right: the first address that is not a trusted proxy
        /// is the client's. A hop that cannot be read ends the search at the proxy behind it.
        #[default = []] #[example = ["10.0.0.0/24"]]
        pub trusted_proxies: TrustedProxies = proxies(section);
        /// `true` serves beyond loopback without authentication, such as behind a proxy that
        /// authenticates.
        pub insecure: bool = section.flag(key, false);
        /// Whether the file itself says that there is no certificate (`server.tls` is given, and
        /// empty).
        field pub is_plain_by_choice: bool = tls.is_none() && section.was_read("tls");
        /// The gateway's certificate. With `cert` and `key` it speaks TLS 1.2 and 1.3, and no plain
        /// HTTP. The files are polled every second. Open connections keep their certificates, and
        /// files that cannot be used leave the previous ones in use, with a warning.
        // `None`: plain HTTP.
        pub tls: Option<Tls> = tls;
        /// 32 bytes in base64, or several keys separated by commas: the first one seals, all open
        /// (rotation). With a key, sessions, cursors and request states survive a restart and are
        /// valid at every replica. While the variable is not set, a random key is used, with a
        /// warning.
        #[default = {"env":"PROMPTGATE_SEAL_KEY"}]
        let seal_key: Option<SealKeys> = seal_keys(section);
        /// `None`: a random key for this process; sealed tokens end with it.
        field pub seal_keys: Option<SealKeys> = seal_key;
        /// Instructions for clients, in `initialize` and `server/discover`.
        #[example = "Prompts of the support team."]
        pub instructions: Option<String> = section.given_text(key);
        /// Name of the server for clients, `serverInfo.name`.
        pub name: String = section.text(key, "promptgate");
        /// `true` answers `tools/list`, `resources/list` and `resources/templates/list` with empty
        /// lists and declares `tools`, because several hosts ask every server for them and give up
        /// on an error. `false` answers −32601.
        pub empty_lists: bool = section.flag(key, true);
        /// Bounds of one client and of all clients together.
        pub limits: Limits = limits(section.section(key));
        /// The exposure of the main endpoint, and of views that do not set it.
        field pub exposure: Exposure = exposure::read(section, &Exposure::default());
    }
}

table! {
    /// Bounds of one client and of all clients together: the keys of `[server.limits]`, and beside
    /// them constants that the admin side and tests set to other values.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Limits(section, key) {
        /// Open connections, never more than half of the open-file limit. At the bound, an idle
        /// connection of the address that has most is closed for an address within its share. An
        /// address beyond its share gives up an idle one of its own, or the new one is closed.
        pub connections: usize = section.count(key, 16_384, 1..=1_000_000);
        /// Time from accept to the first byte. A client speaks first: one that sends nothing for so
        /// long holds a connection for nothing.
        field pub first_byte: Duration = secs(5);
        /// Time from accept to the end of the TLS handshake: two round trips and a signature, on a
        /// bad network.
        field pub tls_handshake: Duration = secs(5);
        /// Time from the first byte of a request to the end of its head, which is one write of a
        /// client. Also the interval of HTTP/2 pings, and the time for an answer.
        field pub head: Duration = secs(10);
        /// Time for a request body to arrive. Beyond it: 408.
        pub body: Duration = section.duration(key, secs(30), MILLISECOND);
        /// Size of a request body. Beyond it: 413.
        pub body_size: usize = section.size(key, 4 << 20, 1 << 10..=1 << 30);
        /// Idle time between two requests on a connection, after which it is closed.
        pub idle: Duration = section.duration(key, secs(75), MILLISECOND);
        /// Requests in flight, over all callers. Beyond it: 503 with `Retry-After`. Calls that wait
        /// for a user's answer move to a second pool of the same size.
        pub in_flight: usize = section.count(key, 4_096, 1..=1_000_000);
        /// Memory for request bodies, at least twice `body_size`, and for results until the client
        /// has taken them. At most a quarter of the memory limit (cgroup) of the process. Beyond
        /// it: 503 with `Retry-After`. Each body counts twice: as it arrives, and as what is kept
        /// of it. Requests to upstreams may need the same amount again.
        pub in_flight_bytes: usize = section.size(key, 256 << 20, 1 << 20..=1 << 40);
        /// Open notification streams. For a new one, the stream without an event for longest of the
        /// caller that has most is closed, once its calls in flight are answered; else 503 with
        /// `Retry-After`.
        pub streams: usize = section.count(key, 16_384, 1..=1_000_000);
        /// Notification streams of one authenticated caller. Beyond it: 429 with `Retry-After`.
        /// Callers without a credential have the `share` of their address alone.
        pub streams_per_caller: usize = section.count(key, 1_000, 1..=1_000_000);
        /// Lifetime of a legacy GET stream or of a stream at `sse_path`. It ends once its calls in
        /// flight are answered, and the client opens another. `"0s"` is no limit.
        pub stream_lifetime: Duration = section.duration(key, secs(3_600), Duration::ZERO);
        /// Time until a response becomes an event stream, and interval of comments on a silent
        /// stream. A client that reads nothing for twice this time is disconnected.
        pub keep_alive: Duration = section.duration(key, secs(15), MILLISECOND);
        /// Concurrent streams of one HTTP/2 connection: as many as RFC 9113 (section 6.5.2)
        /// recommends at least.
        field pub h2_streams: usize = 100;
        /// Age of a legacy session. Then it is 404, and the client initializes again.
        pub session_lifetime: Duration = section.duration(key, secs(2_592_000), secs(1));
        /// Terminated sessions that are remembered (11 MB). A forgotten session would live again
        /// until its token expires.
        field pub terminated_sessions: usize = 100_000;
        /// Deadline of one call, without the time in which a user answers. Beyond it: −32603
        /// `upstream_timeout`.
        pub request: Duration = section.duration(key, secs(60), MILLISECOND);
        /// Time for the client to answer one server request, such as an elicitation. Then a legacy
        /// upstream gets an error (−32603). A modern one gets `{"action":"cancel"}` for an
        /// elicitation; for sampling or roots the call fails with `server_request_unanswered`.
        pub server_request_timeout: Duration = section.duration(key, secs(300), MILLISECOND);
        /// Part of each shared bound that one caller may hold while others want room. More than 0;
        /// `1.0` switches shares off.
        pub share: Share = Share::new(section.fraction(key, 0.25));
        /// The least rate of an upload, in bytes per second, over each window of five seconds; 0 is
        /// no limit. Slower than any network that a gateway is used over.
        field pub body_rate: usize = 8 << 10;
        /// First step of the drain: time after SIGTERM in which new connections are still accepted.
        pub pre_drain: Duration = section.duration(key, secs(1), Duration::ZERO);
        /// Second step of the drain: time for requests in flight to complete.
        pub grace: Duration = section.duration(key, secs(30), Duration::ZERO);
    }
}

impl Limits {
    /// Returns the time after which a client that reads nothing is disconnected: twice
    /// `keep_alive`, so that it has missed two comments.
    pub fn reader_patience(&self) -> Duration {
        self.keep_alive * 2
    }
}

/// The name of the client document below the path of the endpoint. No view can have this name.
const CLIENT_DOCUMENT: &str = "client.json";

/// The name of the page at which callers sign in to upstreams, below the path of the endpoint. No
/// view can have this name.
const SIGN_IN: &str = "sign_in";

/// The path of webhooks below the endpoint, to which the id of an upstream is added.
const HOOKS: &str = "hooks/";

impl Server {
    /// Returns the path of a view.
    pub fn view_path(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Returns the path of the webhooks of all upstreams, with a slash at its end.
    pub fn hooks_path(&self) -> String {
        self.view_path(HOOKS)
    }

    /// Returns the path of the document about the gateway as a client of authorization servers.
    pub fn client_document_path(&self) -> String {
        self.view_path(CLIENT_DOCUMENT)
    }

    /// Returns the path of the page at which callers sign in to upstreams.
    pub fn sign_in_path(&self) -> String {
        self.view_path(SIGN_IN)
    }

    /// Returns the public URL of that page; `None` without a `public_url` that uses https or is on
    /// this machine.
    pub fn sign_in_page(&self) -> Option<String> {
        let url = self.public_url.as_ref().filter(|url| is_https_or_loopback(url));
        url.map(|_| format!("{}/{SIGN_IN}", self.resource))
    }

    /// Returns the public URL of the client document; `None` unless `public_url` uses https.
    pub fn client_document(&self) -> Option<String> {
        let url = self.public_url.as_ref().filter(|url| url.scheme_str() == Some("https"));
        url.map(|_| format!("{}/{CLIENT_DOCUMENT}", self.resource))
    }

    /// Returns the mistakes in `server.listen` that apply only beyond loopback: no authentication,
    /// or tokens without a canonical URI.
    pub fn exposure(&self, auth: &Auth) -> impl Iterator<Item = &'static str> {
        let is_open = !self.listen.ip().is_loopback();
        let is_unauthenticated = is_open && !self.insecure && !auth.required;
        let is_unnamed = is_open && self.public_url.is_none() && auth.jwt.is_some();
        let unauthenticated = is_unauthenticated.then_some(
            "is beyond loopback, but requests need no credential: set auth.api_keys, auth.jwt or \
             server.tls.client_ca, or set server.insecure = true if a proxy in front authenticates",
        );
        let unnamed = is_unnamed.then_some(
            "is beyond loopback, but tokens (auth.jwt) have no audience there: set server.public_url \
             to the URL that clients use",
        );
        unauthenticated.into_iter().chain(unnamed)
    }

    /// Whether a URL is at or below an endpoint of this gateway.
    pub(crate) fn serves(&self, url: &Uri) -> bool {
        let is_below = |path: &str| {
            let rest = url.path().strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_here = || {
            let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
            let address = host.parse().ok().or((host == "localhost").then_some(self.listen.ip()));
            let is_own = |ip: IpAddr| {
                ip == self.listen.ip() || ip.is_loopback() && self.listen.ip().is_unspecified()
            };
            let port =
                url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
            address.is_some_and(is_own) && port == self.listen.port()
        };
        let is_public = || {
            self.public_url.as_ref().is_some_and(|own| {
                own.authority() == url.authority()
                    && match own.path().trim_end_matches('/') {
                        // Other services may share the host.
                        "" => url.path() == "/",
                        path => is_below(path),
                    }
            })
        };
        is_public()
            || is_here() && (is_below(&self.path) || self.sse_path.as_deref().is_some_and(is_below))
    }

    /// Sets `resource` to the URL of the bound address, unless `public_url` is set.
    pub fn name_resource(&mut self, addr: SocketAddr) {
        if self.public_url.is_none() {
            self.resource = self.url_at(addr);
        }
    }

    /// Returns the URL at which a gateway that listens at `addr` can be called from this machine.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        url_at(addr, self.tls.is_some(), &self.path)
    }
}

/// Returns the URL of an endpoint at `path` of a gateway that listens at `addr`, as seen from this
/// machine.
pub(crate) fn url_at(addr: SocketAddr, has_tls: bool, path: &str) -> String {
    format!("{}://{}{path}", scheme(has_tls), from_here(addr))
}

fn scheme(has_tls: bool) -> &'static str {
    if has_tls { "https" } else { "http" }
}

/// Returns the address at which a listener can be reached from this machine: loopback if the
/// listener is bound to all addresses.
pub fn from_here(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

/// Reads `listen`.
pub(crate) fn listen(section: &mut Section<'_>) -> SocketAddr {
    let rule = "an IP address with a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"";
    let listen = section.parsed("listen", rule, |text| text.parse().ok());
    listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8080)))
}

/// Reads `path`.
pub(crate) fn main_path(section: &mut Section<'_>) -> String {
    section
        .parsed("path", &format!("a path such as \"/mcp\", {PATH_RULE}"), path)
        .unwrap_or_else(|| "/mcp".to_owned())
}

fn sse_path(section: &mut Section<'_>, key: &'static str) -> Option<String> {
    let rule = format!("\"\" or a path such as \"/sse\", {PATH_RULE}");
    let parsed = section.parsed(key, &rule, |text| optional(text, path));
    parsed.unwrap_or_else(|| Some("/sse".to_owned()))
}

const PUBLIC_URL_RULE: &str =
    "\"\" or a URL with http or https, such as \"https://prompts.example.com/mcp\"";

/// Environment variable with the seal keys, unless the file names another source; may be unset.
const SEAL_KEY_VARIABLE: &str = "PROMPTGATE_SEAL_KEY";

pub(crate) fn read(mut section: Section<'_>, tls: Option<Tls>, auth: &Auth) -> Server {
    let server = Server::read_keys(&mut section, tls);
    for message in server.exposure(auth).filter(|_| !section.is_broken("auth")) {
        section.mistake("listen", message);
    }
    if server.sse_path.as_ref() == Some(&server.path) {
        section.mistake("sse_path", "must not be the same as server.path");
    }
    section.finish();
    server
}

fn limits(mut section: Section<'_>) -> Limits {
    let limits = Limits::read_keys(&mut section);
    if limits.in_flight_bytes < 2 * limits.body_size {
        let message = "must be at least twice body_size: each body counts as it arrives, and as what \
                       is kept of it";
        section.mistake("in_flight_bytes", message);
    }
    if limits.share == Share::NONE {
        section.mistake("share", "must be greater than 0: no caller would have any room");
    }
    section.finish();
    limits
}

/// The paths that [`path`] accepts, for mistakes.
const PATH_RULE: &str = "at most 128 characters of a-z, A-Z, 0-9, -, ., _, ~ and /, without a slash at \
                         the end";

fn path(text: &str) -> Option<String> {
    let inner = text.strip_prefix('/')?;
    let is_valid = !inner.is_empty()
        && text.len() <= 128
        && !inner.ends_with('/')
        && inner.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~/".contains(&b));
    is_valid.then(|| text.to_owned())
}

fn url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    (is_http && url.host().is_some()).then_some(url)
}

fn hosts(section: &mut Section<'_>) -> Vec<String> {
    let hosts = section.texts("allowed_hosts");
    for host in &hosts {
        let authority: Option<http::uri::Authority> = host.parse().ok();
        if authority.is_none() || host.contains(['/', '@']) {
            let message = format!(
                "{host:?} is not a host name: write it as \"prompts.example.com\", without scheme and path"
            );
            section.mistake("allowed_hosts", message);
        }
    }
    hosts.iter().map(|host| host.to_lowercase()).collect()
}

fn origins(section: &mut Section<'_>) -> Vec<String> {
    let origins = section.texts("allowed_origins");
    for origin in &origins {
        let url: Option<Uri> = origin.parse().ok();
        let is_origin = url.is_some_and(|url| url.scheme().is_some() && url.path() == "/");
        if !is_origin || origin.ends_with('/') {
            let message = format!(
                "{origin:?} is not an origin: write it as \"https://example.com\", without a path"
            );
            section.mistake("allowed_origins", message);
        }
    }
    origins
}

fn proxies(section: &mut Section<'_>) -> TrustedProxies {
    let mut proxies = TrustedProxies::default();
    for text in section.texts("trusted_proxies") {
        if !proxies.add(&text) {
            let message = format!("{text:?} is no IP address, and no network such as 10.0.0.0/8");
            section.mistake("trusted_proxies", message);
        }
    }
    proxies
}

fn seal_keys(section: &mut Section<'_>) -> Option<SealKeys> {
    let text = section.secret_or_variable("seal_key", SEAL_KEY_VARIABLE)?;
    let keys = SealKeys::parse(text.expose());
    keys.map_err(|error| section.mistake("seal_key", error.to_string())).ok()
}

//! `[server]`: where the gateway listens, for whom, and within which bounds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::Uri;

use super::auth::Auth;
use super::reader::Section;
use super::tls::Tls;
use crate::seal::SealKeys;

/// The downstream side.
#[derive(Clone, Debug)]
pub struct Server {
    pub listen: SocketAddr,
    /// Anybody may ask, wherever it listens.
    pub insecure: bool,
    /// Path of the endpoint, `/…` without a slash at the end.
    pub path: String,
    /// Path of the older transport's stream (HTTP+SSE, 2024-11-05), if it is served.
    pub sse_path: Option<String>,
    /// Canonical URI of the endpoint; its host is an allowed one.
    pub public_url: Option<Uri>,
    /// The same as text, without a slash at the end; where it is not set, that of the address that
    /// is listened on. Views have theirs below it.
    pub resource: String,
    /// Beside loopback names, lower case, without port.
    pub allowed_hosts: Vec<String>,
    /// Beside loopback origins, as browsers send them.
    pub allowed_origins: Vec<String>,
    /// Whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpAddr>,
    /// Absent: plain HTTP.
    pub tls: Option<Tls>,
    /// Absent: tokens live as long as the process.
    pub seal_keys: Option<SealKeys>,
    pub instructions: Option<String>,
    /// `serverInfo.name`.
    pub name: String,
    pub limits: Limits,
}

/// What one client, and all together, may take.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    pub connections: usize,
    /// From accept to the first byte.
    pub first_byte: Duration,
    /// From accept to the end of the handshake.
    pub tls_handshake: Duration,
    /// From the first byte of a request to the end of its head.
    pub head: Duration,
    /// Bytes.
    pub head_size: usize,
    pub headers: usize,
    /// Bytes.
    pub uri_length: usize,
    /// From the head to the end of the body.
    pub body: Duration,
    /// Bytes.
    pub body_size: usize,
    /// Between two requests on one connection.
    pub idle: Duration,
    /// Messages of one batch.
    pub batch_items: usize,
    /// Arrays and objects in each other.
    pub json_depth: usize,
    /// Requests at once, over all callers.
    pub in_flight: usize,
    /// Bytes of their bodies, each of which counts twice: as it comes, and as it is kept.
    pub in_flight_bytes: usize,
    /// Open event streams.
    pub streams: usize,
    /// … and of one caller.
    pub streams_per_caller: usize,
    /// Of legacy GET streams; zero is no limit.
    pub stream_lifetime: Duration,
    /// Until an answer becomes a stream, and between comments on a silent one.
    pub keep_alive: Duration,
    pub h2_streams: usize,
    pub session_lifetime: Duration,
    /// How many ended sessions are remembered.
    pub deleted_sessions: usize,
    /// Hard deadline of a call, questions to the user aside.
    pub request: Duration,
    /// How long a user may think.
    pub question_timeout: Duration,
    /// Questions, one after another, in one get.
    pub question_rounds: usize,
    /// Calls that wait while their users visit a page …
    pub parked_calls: usize,
    /// … and of one caller.
    pub parked_per_caller: usize,
    /// After the signal to end: still accepting.
    pub pre_drain: Duration,
    /// Then: how long what is in flight may take.
    pub grace: Duration,
}

impl Limits {
    /// How long a client may take nothing of what is sent to it: it has missed two comments by then.
    pub fn reader_patience(&self) -> Duration {
        self.keep_alive * 2
    }
}

impl Server {
    /// Path of a named endpoint.
    pub fn view_path(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// What must not be beyond loopback as it is; nothing if it listens there or all is well.
    pub fn exposure(&self, auth: &Auth) -> impl Iterator<Item = &'static str> {
        let is_open = !self.listen.ip().is_loopback();
        let nobody_asked = is_open && !self.insecure && !auth.required;
        let nobody_asked = nobody_asked.then_some(
            "listens beyond loopback, where anybody may ask; set auth.api_keys, auth.jwt or server.tls.client_ca, or \
             server.insecure = true if something in front authenticates",
        );
        let no_name = is_open && self.public_url.is_none() && auth.jwt.is_some();
        let no_name = no_name.then_some(
            "listens beyond loopback, so tokens need a name to be made for: set server.public_url to the URL that \
             clients use",
        );
        nobody_asked.into_iter().chain(no_name)
    }

    /// Names the endpoint by where it listens, unless it has a public name.
    pub fn name_resource(&mut self, addr: SocketAddr) {
        if self.public_url.is_none() {
            self.resource = self.url_at(addr);
        }
    }

    /// The URL under which a gateway that listens at `addr` can be asked from this machine.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        let ip = match addr.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", SocketAddr::new(ip, addr.port()), self.path)
    }
}

/// The variable that `seal_key` names unless the file says otherwise. It may be unset.
const SEAL_KEY_VARIABLE: &str = "PROMPTGATE_SEAL_KEY";

pub(super) fn read(mut section: Section<'_>, tls: Option<Tls>, auth: &Auth) -> Server {
    let address = "an address with a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"";
    let listen = section.parsed("listen", address, |t| t.parse().ok());
    let listen = listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8080)));
    let insecure = section.flag("insecure", false);
    let path = section
        .parsed("path", "a path such as \"/mcp\", without a slash at the end", path)
        .unwrap_or_else(|| "/mcp".to_owned());
    let public_url: Option<Uri> = section
        .parsed("public_url", "\"\" or a URL such as \"https://prompts.example.com/mcp\"", url)
        .flatten();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let server = Server {
        listen,
        insecure,
        resource: public_url.as_ref().map_or_else(
            || format!("{scheme}://{listen}{path}"),
            |url| url.to_string().trim_end_matches('/').to_owned(),
        ),
        path,
        public_url,
        sse_path: section
            .parsed("sse_path", "\"\" or a path such as \"/sse\"", optional_path)
            .unwrap_or_else(|| Some("/sse".to_owned())),
        allowed_hosts: hosts(&mut section),
        allowed_origins: origins(&mut section),
        trusted_proxies: proxies(&mut section),
        tls,
        seal_keys: seal_keys(&mut section),
        instructions: section.optional_text("instructions").filter(|t| !t.is_empty()),
        name: section.text("name", "promptgate"),
        limits: limits(section.section("limits")),
    };
    for message in server.exposure(auth) {
        section.mistake("listen", message);
    }
    if server.sse_path.as_ref() == Some(&server.path) {
        section.mistake("sse_path", "must be another path than server.path");
    }
    section.finish();
    server
}

fn limits(mut section: Section<'_>) -> Limits {
    let millis = Duration::from_millis(1);
    let limits = Limits {
        connections: section.count("connections", 16_384, 1..=1_000_000),
        first_byte: section.duration("first_byte", Duration::from_secs(5), millis),
        tls_handshake: section.duration("tls_handshake", Duration::from_secs(5), millis),
        head: section.duration("head", Duration::from_secs(10), millis),
        // hyper needs 8 KiB to read a head at all.
        head_size: section.size("head_size", 32 << 10, 8 << 10..=1 << 20),
        headers: section.count("headers", 100, 10..=1_000),
        uri_length: section.count("uri_length", 8_192, 16..=65_534),
        body: section.duration("body", Duration::from_secs(30), millis),
        body_size: section.size("body_size", 4 << 20, 1 << 10..=1 << 30),
        idle: section.duration("idle", Duration::from_secs(75), millis),
        batch_items: section.count("batch_items", 100, 1..=100_000),
        // The scan is recursive: the stack of a worker thread bounds it.
        json_depth: section.count("json_depth", 64, 8..=256),
        in_flight: section.count("in_flight", 4_096, 1..=1_000_000),
        in_flight_bytes: section.size("in_flight_bytes", 256 << 20, 1 << 20..=1 << 40),
        streams: section.count("streams", 16_384, 1..=1_000_000),
        streams_per_caller: section.count("streams_per_caller", 1_000, 1..=1_000_000),
        stream_lifetime: section.duration(
            "stream_lifetime",
            Duration::from_secs(3_600),
            Duration::ZERO,
        ),
        keep_alive: section.duration("keep_alive", Duration::from_secs(15), millis),
        h2_streams: section.count("h2_streams", 100, 1..=10_000),
        session_lifetime: section.duration(
            "session_lifetime",
            Duration::from_secs(2_592_000),
            Duration::from_secs(1),
        ),
        deleted_sessions: section.count("deleted_sessions", 100_000, 1..=100_000_000),
        request: section.duration("request", Duration::from_secs(60), millis),
        question_timeout: section.duration("question_timeout", Duration::from_secs(300), millis),
        question_rounds: section.count("question_rounds", 8, 1..=100),
        parked_calls: section.count("parked_calls", 256, 0..=100_000),
        parked_per_caller: section.count("parked_per_caller", 4, 0..=100_000),
        pre_drain: section.duration("pre_drain", Duration::from_secs(1), Duration::ZERO),
        grace: section.duration("grace", Duration::from_secs(30), Duration::ZERO),
    };
    if limits.in_flight_bytes < 2 * limits.body_size {
        let message = "must have room for one body of body_size, as it comes and as it is kept";
        section.mistake("in_flight_bytes", message);
    }
    section.finish();
    limits
}

fn path(text: &str) -> Option<String> {
    let inner = text.strip_prefix('/')?;
    let valid = !inner.is_empty()
        && text.len() <= 128
        && !inner.ends_with('/')
        && inner.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~/".contains(&b));
    valid.then(|| text.to_owned())
}

/// Some(None) is the empty text: no such path.
fn optional_path(text: &str) -> Option<Option<String>> {
    match text.is_empty() {
        true => Some(None),
        false => path(text).map(Some),
    }
}

/// Some(None) is the empty text: no public URL.
fn url(text: &str) -> Option<Option<Uri>> {
    if text.is_empty() {
        return Some(None);
    }
    let url: Uri = text.parse().ok()?;
    let http = matches!(url.scheme_str(), Some("http" | "https"));
    (http && url.host().is_some()).then_some(Some(url))
}

fn hosts(section: &mut Section<'_>) -> Vec<String> {
    let hosts = section.texts("allowed_hosts");
    for host in &hosts {
        let authority: Option<http::uri::Authority> = host.parse().ok();
        if authority.is_none() || host.contains(['/', '@']) {
            let message = format!("{host:?} is no host; write it as \"prompts.example.com\"");
            section.mistake("allowed_hosts", message);
        }
    }
    hosts.iter().map(|host| host.to_lowercase()).collect()
}

fn origins(section: &mut Section<'_>) -> Vec<String> {
    let origins = section.texts("allowed_origins");
    for origin in &origins {
        let url: Option<Uri> = origin.parse().ok();
        let plain = url.is_some_and(|u| u.scheme().is_some() && u.path() == "/");
        if !plain || origin.ends_with('/') {
            let message = format!("{origin:?} is no origin; write it as \"https://example.com\"");
            section.mistake("allowed_origins", message);
        }
    }
    origins
}

fn proxies(section: &mut Section<'_>) -> Vec<IpAddr> {
    let mut proxies = Vec::new();
    for text in section.texts("trusted_proxies") {
        match text.parse() {
            Ok(address) => proxies.push(address),
            Err(_) => section.mistake("trusted_proxies", format!("{text:?} is no IP address")),
        }
    }
    proxies
}

fn seal_keys(section: &mut Section<'_>) -> Option<SealKeys> {
    let text = section.secret_or_variable("seal_key", SEAL_KEY_VARIABLE)?;
    SealKeys::parse(text.expose()).map_err(|e| section.mistake("seal_key", e.to_string())).ok()
}

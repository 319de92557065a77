//! `[upstreams.NAME]`: the upstreams and their transports.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Uri};

use super::grants::{self, Grants, Login};
use super::jwt::is_https_or_loopback;
use super::oauth::{self, ClientProof, OAuth};
use super::reader::Section;
use super::secret::Secret;
use super::settings::{Settings, questions, release, settings};
use crate::domain::address_policy::AddressPolicy;
use crate::domain::name::{Prefix, UpstreamId};
use crate::domain::pin::Mode;
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;
use crate::seal::pem::certificates;

/// One upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Upstream {
    pub id: UpstreamId,
    /// Prefix of the public names. Unique among all upstreams, unless it is empty.
    pub prefix: Prefix,
    pub transport: Transport,
    pub settings: Settings,
}

/// Transport of an upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Transport {
    /// Streamable HTTP, with fallback to HTTP+SSE for a server that speaks nothing else.
    Http(Http),
    /// HTTP+SSE (MCP 2024-11-05, transports), without detection.
    Sse(Http),
    /// Markdown files in this directory.
    Library(PathBuf),
    Stdio(Stdio),
}

impl Transport {
    /// Returns the name of the transport in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Transport::Http(_) => "http",
            Transport::Sse(_) => "sse",
            Transport::Library(_) => "library",
            Transport::Stdio(_) => "stdio",
        }
    }
}

/// A child process with the stdio transport.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stdio {
    pub program: String,
    pub arguments: Vec<String>,
    /// Environment variables, beside the few that every child inherits.
    pub env: Vec<(String, Secret)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// The program that supervises the child: it starts the child, and ends it and all its descendants
    /// when the gateway ends. `None`: the gateway itself does so, unless it is killed.
    pub supervisor: Option<PathBuf>,
    /// `None`: detected by the handshake.
    pub revision: Option<Revision>,
}

/// A server over HTTP.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Http {
    /// `http` or `https`, with a host.
    pub url: Uri,
    /// `None`: detected by the handshake.
    pub revision: Option<Revision>,
    /// Header fields of every request, including a static credential.
    pub headers: Vec<(HeaderName, Secret)>,
    /// Access tokens instead of a static credential.
    pub token: Option<TokenCredential>,
    /// Certificates that are trusted beside those of the system, in PEM.
    pub ca: Option<Arc<str>>,
    /// Allowed addresses of the host.
    pub address_policy: AddressPolicy,
}

/// Where access tokens for an upstream come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TokenCredential {
    /// The gateway gets them as itself.
    OAuth(OAuth),
    /// The operator has signed in.
    Login(Login),
}

impl Upstream {
    /// Returns how the operator signs in, if the upstream is called with such a sign-in.
    pub(crate) fn login(&self) -> Option<&Login> {
        match &self.http()?.token {
            Some(TokenCredential::Login(login)) => Some(login),
            _ => None,
        }
    }

    /// Returns the server over HTTP, if the upstream is one.
    pub(crate) fn http(&self) -> Option<&Http> {
        match &self.transport {
            Transport::Http(http) | Transport::Sse(http) => Some(http),
            Transport::Stdio(_) | Transport::Library(_) => None,
        }
    }

    /// Returns the secrets that the upstream, or its authorization server, is called with, in plain text: each as a
    /// whole, and without an authentication scheme before it.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let (values, token): (Vec<&Secret>, _) = match &self.transport {
            Transport::Http(http) | Transport::Sse(http) => {
                (http.headers.iter().map(|(_, value)| value).collect(), http.token.as_ref())
            }
            Transport::Stdio(stdio) => (stdio.env.iter().map(|(_, value)| value).collect(), None),
            Transport::Library(_) => (Vec::new(), None),
        };
        let client_secret = token.and_then(|token| match token {
            TokenCredential::OAuth(OAuth { proof: ClientProof::Secret(secret), .. }) => {
                Some(secret)
            }
            TokenCredential::OAuth(_) => None,
            TokenCredential::Login(login) => login.client_secret.as_ref(),
        });
        let secrets = values.into_iter().chain(client_secret).filter(|value| !value.is_plain());
        let forms = |secret: &Secret| {
            let text = secret.expose();
            let credentials = text.split_once(' ').map(|(_scheme, credentials)| credentials);
            [Some(text), credentials].into_iter().flatten().map(str::to_owned).collect::<Vec<_>>()
        };
        secrets.flat_map(forms).collect()
    }
}

/// The enabled upstreams, sorted by id, and those with their own mode of pins.
pub(super) struct Upstreams {
    pub list: Vec<Upstream>,
    pub modes: BTreeMap<UpstreamId, Mode>,
}

pub(super) fn read_all(root: &mut Section<'_>) -> Upstreams {
    let mut defaults = root.section("defaults");
    let base = settings(&mut defaults, &Settings::default());
    let base_questions = questions(&mut defaults);
    defaults.finish();
    let sections = root.sections("upstreams");
    let mut upstreams = Vec::with_capacity(sections.len());
    let mut modes = BTreeMap::new();
    let mut owners: HashMap<Prefix, UpstreamId> = HashMap::new();
    for (name, mut section) in sections {
        let Some(id) = UpstreamId::parse(&name) else {
            section.mistake("", ID_RULE);
            continue;
        };
        let enabled = section.flag("enabled", true);
        let upstream = read(id.clone(), &mut section, &base, base_questions);
        let mode = release(&mut section, upstream.as_ref().map(|upstream| &upstream.settings));
        modes.extend(mode.map(|mode| (id, mode)));
        section.finish();
        let Some(upstream) = upstream.filter(|_| enabled) else {
            continue;
        };
        let prefix = upstream.prefix.clone();
        if !prefix.is_bare()
            && let Some(other) = owners.insert(prefix, upstream.id.clone())
        {
            let message = format!("upstream {other} already has this prefix; set another one");
            root.mistake(&format!("upstreams.{name}.prefix"), message);
        }
        upstreams.push(upstream);
    }
    Upstreams { list: upstreams, modes }
}

/// Returns the first upstream that the operator signs in for.
pub(super) fn first_login(upstreams: &[Upstream]) -> Option<&UpstreamId> {
    upstreams.iter().find(|upstream| upstream.login().is_some()).map(|upstream| &upstream.id)
}

/// Tells each upstream that the operator signs in for where the sign-in is kept.
pub(super) fn keep_logins(upstreams: &mut [Upstream], grants: Option<&Arc<Grants>>) {
    for Upstream { id, transport, .. } in upstreams {
        if let Transport::Http(Http { token: Some(TokenCredential::Login(login)), .. })
        | Transport::Sse(Http { token: Some(TokenCredential::Login(login)), .. }) = transport
        {
            id.as_str().clone_into(&mut login.upstream);
            login.kept = grants.cloned();
        }
    }
}

const ID_RULE: &str = "an upstream id must have 1 to 64 characters of a-z, 0-9 and -, and start with a \
                       letter or a digit";

fn read(
    id: UpstreamId,
    section: &mut Section<'_>,
    base: &Settings,
    base_questions: Option<ClientCapabilities>,
) -> Option<Upstream> {
    let rule = "\"\" or 1 to 64 characters of a-z, 0-9 and -, starting with a letter or a digit";
    let prefix = section.parsed("prefix", rule, Prefix::parse);
    let prefix = prefix.or_else(|| Prefix::parse(id.as_str()))?;
    let mut settings = settings(section, base);
    let questions = questions(section).or(base_questions);
    let rule = "one of \"library\", \"http\" (Streamable HTTP), \"sse\" (HTTP+SSE), \"stdio\"";
    let Some(read) = section.required_choice("transport", rule, &TRANSPORTS) else {
        // The allowed keys depend on the transport, so the other keys are no further mistakes.
        section.ignore_rest();
        return None;
    };
    let transport = read(section)?;
    settings.questions_by_default = questions.is_none();
    settings.questions = questions.unwrap_or(match transport {
        Transport::Http(_) => ClientCapabilities::FORM,
        // A server request is not correlated with its call here, so calls would run one at a time.
        Transport::Sse(_) | Transport::Stdio(_) | Transport::Library(_) => ClientCapabilities::NONE,
    });
    Some(Upstream { id, prefix, transport, settings })
}

type ReadTransport = fn(&mut Section<'_>) -> Option<Transport>;

const TRANSPORTS: [(&str, ReadTransport); 4] =
    [("library", library), ("http", http), ("sse", sse), ("stdio", stdio)];

fn library(section: &mut Section<'_>) -> Option<Transport> {
    let Some(path) = section.file("path") else {
        section.mistake("path", "is required: the directory of the library");
        return None;
    };
    if !path.is_dir() {
        section.mistake("path", not_a_directory(&path));
    }
    Some(Transport::Library(path))
}

/// Returns the mistake of a path that is not a directory.
fn not_a_directory(path: &Path) -> String {
    format!(
        "{} does not exist or is not a directory; create it or correct the path",
        path.display()
    )
}

fn http(section: &mut Section<'_>) -> Option<Transport> {
    let revision = revision(section);
    http_server(section, revision).map(Transport::Http)
}

/// HTTP+SSE exists in legacy revisions only, so there is nothing to detect.
fn sse(section: &mut Section<'_>) -> Option<Transport> {
    http_server(section, Some(Revision::NEWEST_LEGACY)).map(Transport::Sse)
}

fn http_server(section: &mut Section<'_>, revision: Option<Revision>) -> Option<Http> {
    let rule =
        "a URL such as \"https://prompts.example.com/mcp\", without user, password and fragment";
    let url = section.required("url", rule, url);
    let (header, token) = match credential(section) {
        Some(Credential::Header { name, value }) => (Some((name, value)), None),
        Some(Credential::Token(token)) => (None, Some(token)),
        None => (None, None),
    };
    let mut headers: Vec<_> = header.into_iter().collect();
    for (name, value) in extra_headers(section) {
        if headers.iter().any(|(other, _)| *other == name) {
            let message = "is already set by the credential; remove one of them";
            section.mistake(&format!("headers.{name}"), message);
        } else {
            headers.push((name, value));
        }
    }
    if token.is_some() && url.as_ref().is_some_and(|url| !is_https_or_loopback(url)) {
        section.mistake("url", "must be https, or http on loopback, because tokens are sent to it");
    }
    let address_policy = if section.flag("allow_private", true) {
        AddressPolicy::NotLinkLocal
    } else {
        AddressPolicy::PublicOnly
    };
    if let Some(host) = url.as_ref().and_then(Uri::host)
        && let Err(error) = address_policy.check_host(host)
    {
        section.mistake("url", error.to_string());
    }
    let ca = certificate_authorities(section);
    Some(Http { url: url?, revision, headers, token, ca, address_policy })
}

/// Reads the PEM file in `ca`.
pub(super) fn certificate_authorities(section: &mut Section<'_>) -> Option<Arc<str>> {
    let path = section.file("ca")?;
    let file = path.display().to_string();
    let pem = section.read_file(path).map_err(|error| format!("cannot read {file}: {error}"));
    let checked = pem.and_then(|pem| match certificates(pem.as_bytes()) {
        Ok(_) => Ok(Arc::from(pem)),
        Err(problem) => Err(format!("{file} {problem}")),
    });
    checked.map_err(|message| section.mistake("ca", message)).ok()
}

fn stdio(section: &mut Section<'_>) -> Option<Transport> {
    if section.has("args") {
        let hint = "belongs into command: command = [\"uvx\", \"mcp-server-fetch\"]";
        section.reject("args", hint);
        // A command beside args is a string: not a second mistake.
        section.ignore_rest();
        return None;
    }
    let mut command = section.texts("command").into_iter();
    let program = command.next().filter(|program| !program.is_empty());
    if program.is_none() {
        let rule = "is required: [\"program\", \"argument\", …], which no shell interprets";
        section.mistake("command", rule);
    }
    let cwd = section.folder("cwd");
    if !cwd.is_dir() {
        section.mistake("cwd", not_a_directory(&cwd));
    }
    let env = section.section("env").secrets();
    let revision = revision(section);
    Some(Transport::Stdio(Stdio {
        program: program?,
        arguments: command.collect(),
        env,
        cwd,
        supervisor: None,
        revision,
    }))
}

/// Reads the revision; `None` if it is to be detected.
fn revision(section: &mut Section<'_>) -> Option<Revision> {
    let parse = |text: &str| match text {
        "auto" => Some(None),
        text => Revision::parse(text).map(Some),
    };
    section.parsed("revision", &revisions(), parse).flatten()
}

fn url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let authority = url.authority()?;
    let port_fits = authority.port().is_none() || authority.port_u16().is_some();
    let is_plain = !authority.as_str().contains('@') && !text.contains('#') && port_fits;
    (matches!(url.scheme_str(), Some("http" | "https")) && is_plain).then_some(url)
}

/// Lists the allowed revisions for a mistake.
fn revisions() -> String {
    let names: Vec<_> = Revision::ALL.into_iter().map(|r| format!("\"{r}\"")).collect();
    format!("\"auto\" or one of {}", names.join(", "))
}

/// The gateway's credential at an upstream.
enum Credential {
    Header { name: HeaderName, value: Secret },
    Token(TokenCredential),
}

/// Reads `credential = { bearer = secret }`, `{ header = "X-Api-Key", value = secret }`, `{ oauth = { … } }` or
/// `{ login = { … } }`.
fn credential(section: &mut Section<'_>) -> Option<Credential> {
    let mut credential = section.section("credential");
    let has_oauth = credential.has("oauth");
    let oauth = credential.section("oauth");
    let oauth = has_oauth.then(|| oauth::read(oauth));
    let has_login = credential.has("login");
    let login = credential.section("login");
    let login = has_login.then(|| grants::login(login));
    let bearer = credential.secret("bearer");
    let rule = "the name of a header that promptgate does not set itself, such as \"X-Api-Key\"";
    let name = credential.parsed("header", rule, header_name);
    let value = credential.secret("value");
    let token = match (oauth, login) {
        (Some(_), Some(_)) => {
            credential.mistake("", CREDENTIAL_RULE);
            None
        }
        (Some(oauth), None) => Some(oauth.map(TokenCredential::OAuth)),
        (None, Some(login)) => Some(Some(TokenCredential::Login(login))),
        (None, None) => None,
    };
    let found = match (token, bearer, name, value) {
        (Some(token), None, None, None) => token.map(Credential::Token),
        (None, Some(token), None, None) => {
            let value = Secret::new(format!("Bearer {}", token.expose()));
            Some(Credential::Header { name: http::header::AUTHORIZATION, value })
        }
        (None, None, Some(name), Some(value)) => Some(Credential::Header { name, value }),
        (None, None, None, None) => None,
        _ => {
            credential.mistake("", CREDENTIAL_RULE);
            None
        }
    };
    if let Some(Credential::Header { value, .. }) = &found
        && !is_header_value(value)
    {
        credential.mistake("", "contains characters that an HTTP header must not contain");
    }
    credential.finish();
    found
}

const CREDENTIAL_RULE: &str = "must be { bearer = … }, { header = \"…\", value = … }, { oauth = { client_id = \"…\", … } } or { login = { … } }";

fn extra_headers(section: &mut Section<'_>) -> Vec<(HeaderName, Secret)> {
    let mut headers = Vec::new();
    for (name, value) in section.section("headers").secrets() {
        match header_name(&name) {
            Some(header) if is_header_value(&value) => headers.push((header, value)),
            _ => {
                let message = "must be a valid header that promptgate does not set itself, with a \
                               valid value";
                section.mistake(&format!("headers.{name}"), message);
            }
        }
    }
    headers
}

fn is_header_value(value: &Secret) -> bool {
    HeaderValue::from_str(value.expose()).is_ok()
}

/// Parses the name of a header that the operator may set.
fn header_name(text: &str) -> Option<HeaderName> {
    let name = HeaderName::try_from(text).ok()?;
    (!is_reserved_header(&name)).then_some(name)
}

/// Whether MCP or HTTP defines the header for each request, so that the gateway sets it itself.
pub(crate) fn is_reserved_header(name: &HeaderName) -> bool {
    let reserved =
        ["host", "content-length", "content-type", "accept", "transfer-encoding", "connection"];
    reserved.contains(&name.as_str()) || name.as_str().starts_with("mcp-")
}

//! `[upstreams.…]` and `[defaults]`: who is asked, and how patiently.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Uri};

use super::jwt::is_safe;
use super::oauth::{self, OAuth};
use super::reader::Section;
use super::secret::Secret;
use super::settings::{Settings, questions, settings};
use crate::domain::address_policy::AddressPolicy;
use crate::domain::name::{Prefix, UpstreamId};
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;
use crate::seal::pem::certificates;

/// One upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Upstream {
    pub id: UpstreamId,
    /// Unique among all upstreams unless it is bare.
    pub prefix: Prefix,
    pub transport: Transport,
    pub settings: Settings,
}

/// How an upstream is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Transport {
    /// Streamable HTTP; one that turns out to speak HTTP+SSE is spoken to in that way.
    Http(Http),
    /// HTTP+SSE of 2024-11-05 only.
    Sse(Http),
    /// Prompts from Markdown files in this folder.
    Library(PathBuf),
    Stdio(Stdio),
}

impl Transport {
    /// As the file names it.
    pub fn name(&self) -> &'static str {
        match self {
            Transport::Http(_) => "http",
            Transport::Sse(_) => "sse",
            Transport::Library(_) => "library",
            Transport::Stdio(_) => "stdio",
        }
    }
}

/// A child process that speaks over its standard streams.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stdio {
    pub program: String,
    pub arguments: Vec<String>,
    /// Beside the few variables that every child inherits.
    pub env: Vec<(String, Secret)>,
    pub cwd: PathBuf,
    /// The program that starts it and ends it with all that it has started; absent: the gateway does,
    /// as long as it lives.
    pub supervisor: Option<PathBuf>,
    /// Given: the search for the era is skipped.
    pub revision: Option<Revision>,
}

/// An upstream that is reached over HTTP.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Http {
    /// `http` or `https`, with a host.
    pub url: Uri,
    /// Given: the search for the era is skipped.
    pub revision: Option<Revision>,
    /// Sent with every request, the credential among them.
    pub headers: Vec<(HeaderName, Secret)>,
    /// Tokens that are sent instead of a credential of the file.
    pub oauth: Option<OAuth>,
    /// Certificates trusted beside the public ones, in PEM.
    pub ca: Option<Arc<str>>,
    /// Which addresses the host may have.
    pub address_policy: AddressPolicy,
}

pub(super) fn read_all(root: &mut Section<'_>) -> Vec<Upstream> {
    let mut defaults = root.section("defaults");
    let base = settings(&mut defaults, &Settings::default());
    let base_questions = questions(&mut defaults);
    defaults.finish();
    let sections = root.sections("upstreams");
    let mut upstreams = Vec::with_capacity(sections.len());
    let mut owners: HashMap<Prefix, UpstreamId> = HashMap::new();
    for (name, mut section) in sections {
        let Some(id) = UpstreamId::parse(&name) else {
            section.mistake("", ID_RULE);
            continue;
        };
        let enabled = section.flag("enabled", true);
        let upstream = read(id, &mut section, &base, base_questions);
        section.finish();
        let Some(upstream) = upstream.filter(|_| enabled) else {
            continue;
        };
        let prefix = upstream.prefix.clone();
        if !prefix.is_bare()
            && let Some(other) = owners.insert(prefix, upstream.id.clone())
        {
            let message = format!("upstream {} has this prefix already", other);
            root.mistake(&format!("upstreams.{name}.prefix"), message);
        }
        upstreams.push(upstream);
    }
    upstreams
}

const ID_RULE: &str = "an upstream id has 1 to 64 characters of a-z, 0-9 and -, and starts with \
                       a letter or digit";

fn read(
    id: UpstreamId,
    section: &mut Section<'_>,
    base: &Settings,
    base_questions: Option<ClientCapabilities>,
) -> Option<Upstream> {
    let prefix_rule = "\"\" or characters of a-z, 0-9 and -, starting with a letter or digit";
    let prefix = section.parsed("prefix", prefix_rule, Prefix::parse);
    let prefix = prefix.or_else(|| Prefix::parse(id.as_str()))?;
    let mut settings = settings(section, base);
    let questions = questions(section).or(base_questions);
    let kinds = "\"library\", \"http\", \"sse\" or \"stdio\"";
    let transport = match section.required("transport", kinds, transport_reader) {
        Some(read) => read(section),
        None => {
            // Which keys belong here cannot be told, so none of them is a second mistake.
            section.ignore_rest();
            None
        }
    };
    let transport = transport?;
    settings.questions_by_default = questions.is_none();
    settings.questions = questions.unwrap_or(match transport {
        Transport::Http(_) => ClientCapabilities::FORM,
        // Where nothing tells which call a question belongs to, calls would have to wait.
        Transport::Sse(_) | Transport::Stdio(_) | Transport::Library(_) => ClientCapabilities::NONE,
    });
    if matches!(transport, Transport::Stdio(_)) && settings.probe >= settings.walk_timeout {
        section.mistake("probe", "must be shorter than walk_timeout, in which it is spent");
    }
    Some(Upstream { id, prefix, transport, settings })
}

type ReadTransport = fn(&mut Section<'_>) -> Option<Transport>;

fn transport_reader(name: &str) -> Option<ReadTransport> {
    match name {
        "library" => Some(library),
        "http" => Some(http),
        "sse" => Some(sse),
        "stdio" => Some(stdio),
        _ => None,
    }
}

fn library(section: &mut Section<'_>) -> Option<Transport> {
    let Some(path) = section.file("path") else {
        section.mistake("path", "is required: the folder of the library");
        return None;
    };
    if !path.is_dir() {
        section.mistake("path", format!("{} is not a folder", path.display()));
    }
    Some(Transport::Library(path))
}

fn http(section: &mut Section<'_>) -> Option<Transport> {
    let revision = revision(section);
    reached_over_http(section, revision).map(Transport::Http)
}

/// There is nothing to find out: the older transport has an older handshake.
fn sse(section: &mut Section<'_>) -> Option<Transport> {
    reached_over_http(section, Some(Revision::NEWEST_LEGACY)).map(Transport::Sse)
}

fn reached_over_http(section: &mut Section<'_>, revision: Option<Revision>) -> Option<Http> {
    let rule =
        "a URL such as \"https://prompts.example.com/mcp\", without user, password or fragment";
    let url = section.required("url", rule, url);
    let (mut headers, oauth) = credential(section);
    for (name, value) in extra_headers(section) {
        match headers.iter().any(|(other, _)| *other == name) {
            true => section.mistake("headers", format!("{name} is set by the credential already")),
            false => headers.push((name, value)),
        }
    }
    if oauth.is_some() && url.as_ref().is_some_and(|url| !is_safe(url)) {
        section.mistake("url", "must have https: tokens are not sent where others can read them");
    }
    let address_policy = match section.flag("allow_private", true) {
        true => AddressPolicy::BeyondTheLink,
        false => AddressPolicy::PublicOnly,
    };
    if let Some(Err(error)) =
        url.as_ref().and_then(Uri::host).map(|host| address_policy.check_host(host))
    {
        section.mistake("url", error.to_string());
    }
    let ca = section.file("ca").and_then(|path| {
        let pem = section.read_file(path).map_err(|error| format!("cannot be read: {error}"));
        let usable = pem.and_then(|pem| match certificates(pem.as_bytes()) {
            Ok(_) => Ok(Arc::from(pem)),
            Err(why) => Err(why.to_owned()),
        });
        usable.map_err(|why| section.mistake("ca", why)).ok()
    });
    Some(Http { url: url?, revision, headers, oauth, ca, address_policy })
}

fn stdio(section: &mut Section<'_>) -> Option<Transport> {
    let mut command = section.texts("command").into_iter();
    let program = command.next().filter(|program| !program.is_empty());
    if program.is_none() {
        section
            .mistake("command", "is required: [\"program\", \"argument\", …]; no shell reads it");
    }
    let cwd = section.folder("cwd");
    if !cwd.is_dir() {
        section.mistake("cwd", format!("{} is not a folder", cwd.display()));
    }
    let (env, revision) = (section.section("env").secrets(), revision(section));
    let (arguments, supervisor) = (command.collect(), None);
    let program = program?;
    Some(Transport::Stdio(Stdio { program, arguments, env, cwd, supervisor, revision }))
}

/// The configured revision; absent: it is found out.
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
    let plain = !authority.as_str().contains('@') && !text.contains('#') && port_fits;
    (matches!(url.scheme_str(), Some("http" | "https")) && plain).then_some(url)
}

fn revisions() -> String {
    let names: Vec<_> = Revision::ALL.into_iter().map(|r| format!("\"{r}\"")).collect();
    format!("\"auto\" or one of {}", names.join(", "))
}

/// `credential = { bearer = secret }`, `{ header = "X-Api-Key", value = secret }` or `{ oauth = { …
/// } }`.
fn credential(section: &mut Section<'_>) -> (Vec<(HeaderName, Secret)>, Option<OAuth>) {
    let mut credential = section.section("credential");
    let has_oauth = credential.has("oauth");
    let oauth = credential.section("oauth");
    let oauth = if has_oauth { oauth::read(oauth) } else { None };
    let bearer = credential.secret("bearer", None);
    let rule = "the name of a header, such as \"X-Api-Key\"";
    let header = credential.parsed("header", rule, header_name);
    let value = credential.secret("value", None);
    let found = match (bearer, header, value) {
        (Some(token), None, None) => {
            let value = Secret::new(format!("Bearer {}", token.expose()));
            Some((http::header::AUTHORIZATION, value))
        }
        (None, Some(name), Some(value)) => Some((name, value)),
        (None, None, None) => None,
        _ => {
            credential.mistake("", KINDS);
            None
        }
    };
    if has_oauth && found.is_some() {
        credential.mistake("", KINDS);
    }
    if found.as_ref().is_some_and(|(_, value)| !is_header_value(value)) {
        credential.mistake("", "holds characters that no HTTP header may hold");
    }
    credential.finish();
    (found.into_iter().collect(), oauth)
}

const KINDS: &str =
    "must be { bearer = … }, { header = \"…\", value = … } or { oauth = { client_id = \"…\", … } }";

fn extra_headers(section: &mut Section<'_>) -> Vec<(HeaderName, Secret)> {
    let path = section.path("headers");
    let mut headers = Vec::new();
    for (name, value) in section.section("headers").secrets() {
        match header_name(&name) {
            Some(header) if is_header_value(&value) => headers.push((header, value)),
            _ => {
                section.mistake("headers", format!("{path}.{name} is not a header that may be set"))
            }
        }
    }
    headers
}

fn is_header_value(value: &Secret) -> bool {
    HeaderValue::from_str(value.expose()).is_ok()
}

/// A header that the operator may set: not one that the protocol or the transport owns.
fn header_name(text: &str) -> Option<HeaderName> {
    let owned =
        ["host", "content-length", "content-type", "accept", "transfer-encoding", "connection"];
    let name = HeaderName::try_from(text).ok()?;
    (!owned.contains(&name.as_str()) && !name.as_str().starts_with("mcp-")).then_some(name)
}

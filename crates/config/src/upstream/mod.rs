//! `[upstreams.NAME]`: the upstreams and their transports.

pub(crate) mod credential;
pub(crate) mod git;
pub(crate) mod logins;
pub(crate) mod oauth;
pub(crate) mod settings;
pub(crate) mod webhook;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderName, Uri};

use crate::auth::jwt::is_https_or_loopback;
use crate::labels::{self, DEFAULT_LABEL};
use crate::net::tls::certificate_authorities;
use crate::net::{Proxies, address_policy};
use crate::reader::secret::Secret;
use crate::reader::{MILLISECOND, Section};
use base::platform::disk;
use credential::{CALLER, CallerCredential, Credentials, TokenCredential, extra_headers};
use domain::address_policy::AddressPolicy;
use domain::approval::Mode;
use domain::name::{Prefix, UpstreamId, VERSION_MARK};
use domain::protocol::revision::Revision;
use domain::protocol::server_request::ClientCapabilities;
use git::Git;
use logins::{Login, Logins};
use settings::{Links, Settings, approval, settings};

/// One upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UpstreamSettings {
    pub id: UpstreamId,
    /// Prefix of the public names. Unique among all upstreams, unless it is empty.
    pub prefix: Prefix,
    pub transport: Transport,
    pub settings: Settings,
    pub list_as: ListAs,
    /// Whether `[passthrough]` names the upstream.
    pub is_passthrough: bool,
    /// Whether each skill is also offered as a prompt.
    pub skills_as_prompts: bool,
}

/// The credential with which the list of an upstream is fetched.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ListAs {
    /// The credential of the gateway: all callers share the list.
    #[default]
    Service,
    /// The credential of each caller: each caller has a private list.
    Caller,
}

/// Transport of an upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Transport {
    /// Streamable HTTP, with fallback to HTTP+SSE for a server without it.
    Http(Http),
    /// HTTP+SSE (MCP 2024-11-05, transports), without detection.
    Sse(Http),
    /// Markdown files in a directory.
    Library(Library),
    /// Markdown files in a git repository.
    Git(Git),
    Store(PromptStore),
    Stdio(Stdio),
}

/// A directory of Markdown files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Library {
    pub folder: PathBuf,
    /// The label whose versions are served under the names of their prompts; see
    /// [`LATEST`](crate::labels::LATEST).
    pub label: String,
}

/// A prompt store, whose prompts are served like those of a library.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PromptStore {
    pub kind: StoreKind,
    pub http: Http,
    /// The label, alias or tag whose versions are served.
    pub label: String,
    /// Labels whose versions are additionally served, as versions of the prompts.
    pub labels: Vec<String>,
    /// The prompts to read, in the query syntax of the store; `None` for all.
    pub filter: Option<String>,
    /// Whether messages with roles such as `system`, which MCP lacks, become messages of the user;
    /// otherwise their prompts are left out.
    pub has_system_as_user: bool,
    /// Whether results include the model parameters and response formats of the store.
    pub has_config: bool,
    /// `None`: webhooks are refused.
    pub webhook_secret: Option<Secret>,
    /// Folder for the last good list; `None`: it does not outlast the process.
    pub state: Option<PathBuf>,
}

/// The interface of a prompt store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StoreKind {
    Mlflow,
    Phoenix,
    Langfuse,
}

impl StoreKind {
    /// Returns the name of the transport in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlflow => "mlflow",
            Self::Phoenix => "phoenix",
            Self::Langfuse => "langfuse",
        }
    }
}

impl Transport {
    /// Returns the name of the transport in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Transport::Http(_) => "http",
            Transport::Sse(_) => "sse",
            Transport::Library(_) => "library",
            Transport::Git(_) => "git",
            Transport::Store(store) => store.kind.name(),
            Transport::Stdio(_) => "stdio",
        }
    }

    /// Whether the transport leads to an MCP server; files and prompt stores have prompts only.
    pub(crate) fn is_server(&self) -> bool {
        matches!(self, Transport::Http(_) | Transport::Sse(_) | Transport::Stdio(_))
    }
}

/// A child process with the stdio transport.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stdio {
    pub program: String,
    pub arguments: Vec<String>,
    /// Environment variables in addition to the few that every child inherits.
    pub env: Vec<(String, Secret)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// The program that supervises the child: it starts the child, and ends it and all its
    /// descendants when the gateway ends. `None`: the gateway does so, unless it is killed.
    pub supervisor: Option<PathBuf>,
    /// `None`: detected by the handshake.
    pub revision: Option<Revision>,
    /// `Some`: each caller has a separate child; another child lists the prompts for all.
    pub per_caller: Option<ChildPerCaller>,
}

impl Stdio {
    /// Returns the child process of one caller, with the caller's id in its environment.
    pub fn of_caller(&self, caller: &str) -> Self {
        let named = |(name, value): &(String, Secret)| {
            (name.clone(), Secret::new(value.expose().replace(CALLER, caller)))
        };
        Self { env: self.env.iter().map(named).collect(), ..self.clone() }
    }
}

/// Bounds of the child processes of callers (`per_caller`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ChildPerCaller {
    /// The maximum number of children of all callers, at least 1.
    pub max: usize,
    /// Time without a call after which a child is ended.
    pub idle: Duration,
}

/// A server over HTTP.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Http {
    /// `http` or `https`, with a host.
    pub url: Uri,
    /// `None`: detected by the handshake.
    pub revision: Option<Revision>,
    /// Header fields of every request.
    pub headers: Vec<(HeaderName, Secret)>,
    pub credentials: Credentials,
    /// Certificates that are trusted in addition to those of the system, in PEM.
    pub ca: Option<Arc<str>>,
    /// Allowed addresses of the host. A proxy resolves names itself.
    pub address_policy: AddressPolicy,
    /// `None`: the server, its authorization server and its vault are called directly.
    pub proxies: Option<Proxies>,
}

impl UpstreamSettings {
    /// Returns the operator's sign-in, if the upstream is called with one.
    pub fn login(&self) -> Option<&Login> {
        match &self.http()?.credentials.token {
            Some(TokenCredential::Login(login)) => Some(login),
            _ => None,
        }
    }

    /// Returns the sign-in of each caller, if callers sign in.
    pub fn caller_sign_in(&self) -> Option<&Login> {
        match &self.http()?.credentials.caller {
            Some(CallerCredential::SignIn(login)) => Some(login),
            _ => None,
        }
    }

    /// Returns the place of the sign-ins of callers, or of their tokens that replicas share.
    pub fn caller_logins(&self) -> Option<&Arc<Logins>> {
        match &self.http()?.credentials.caller {
            Some(CallerCredential::SignIn(login)) => login.kept.as_ref(),
            Some(CallerCredential::IdJag(id_jag)) => id_jag.kept.as_ref(),
            _ => None,
        }
    }

    /// Whether the token of each caller is exchanged.
    pub fn exchanges_tokens(&self) -> bool {
        let caller = self.http().and_then(|http| http.credentials.caller.as_ref());
        matches!(caller, Some(CallerCredential::Exchange(_) | CallerCredential::IdJag(_)))
    }

    /// Whether each caller has separate connections.
    pub fn acts_as_caller(&self) -> bool {
        self.http().is_some_and(|http| http.credentials.caller.is_some())
            || self.child_per_caller().is_some()
    }

    /// Whether each caller has a private list.
    pub fn lists_per_caller(&self) -> bool {
        self.list_as == ListAs::Caller
    }

    /// Whether links in the upstream's prompts are sealed. Files and prompt stores have only
    /// embedded resources.
    pub fn seals_links(&self) -> bool {
        self.settings.links == Links::Sealed && self.transport.is_server()
    }

    /// Returns the bounds of the children of callers, if each caller has a separate child.
    pub fn child_per_caller(&self) -> Option<ChildPerCaller> {
        match &self.transport {
            Transport::Stdio(stdio) => stdio.per_caller,
            Transport::Http(_)
            | Transport::Sse(_)
            | Transport::Library(_)
            | Transport::Git(_)
            | Transport::Store(_) => None,
        }
    }

    /// Returns the HTTP server of the upstream, or of its prompt store; `None` without one.
    pub fn http(&self) -> Option<&Http> {
        match &self.transport {
            Transport::Http(http) | Transport::Sse(http) => Some(http),
            Transport::Store(store) => Some(&store.http),
            Transport::Stdio(_) | Transport::Library(_) | Transport::Git(_) => None,
        }
    }

    /// Returns the secret with which the upstream signs webhooks; `None` if webhooks are refused.
    pub fn webhook_secret(&self) -> Option<&Secret> {
        match &self.transport {
            Transport::Git(git) => git.webhook_secret.as_ref(),
            Transport::Store(store) => store.webhook_secret.as_ref(),
            Transport::Http(_)
            | Transport::Sse(_)
            | Transport::Stdio(_)
            | Transport::Library(_) => None,
        }
    }

    fn http_mut(&mut self) -> Option<&mut Http> {
        match &mut self.transport {
            Transport::Http(http) | Transport::Sse(http) => Some(http),
            Transport::Store(store) => Some(&mut store.http),
            Transport::Stdio(_) | Transport::Library(_) | Transport::Git(_) => None,
        }
    }

    fn credentials_mut(&mut self) -> Option<&mut Credentials> {
        self.http_mut().map(|http| &mut http.credentials)
    }

    /// Returns the secrets that the upstream, or its authorization server, is called with, in plain
    /// text: each as a whole, and without an authentication scheme before it.
    pub fn secrets(&self) -> Vec<String> {
        let values: Vec<&Secret> = match &self.transport {
            Transport::Http(http)
            | Transport::Sse(http)
            | Transport::Store(PromptStore { http, .. }) => {
                let headers = http.headers.iter().map(|(_, value)| value);
                headers.chain(http.credentials.secrets()).collect()
            }
            Transport::Stdio(stdio) => stdio.env.iter().map(|(_, value)| value).collect(),
            Transport::Git(git) => git.authorization.iter().chain(&git.password).collect(),
            Transport::Library(_) => Vec::new(),
        };
        let values = values.into_iter().chain(self.webhook_secret());
        let secrets = values.filter(|value| !value.is_plain());
        let forms = |secret: &Secret| {
            let text = secret.expose();
            let credentials = text.split_once(' ').map(|(_scheme, credentials)| credentials);
            [Some(text), credentials].into_iter().flatten().map(str::to_owned).collect::<Vec<_>>()
        };
        secrets.flat_map(forms).collect()
    }
}

/// The result of reading `[upstreams]`: enabled and disabled upstreams, sorted by id, and the
/// upstreams with a mode of approvals.
pub(crate) struct Upstreams {
    pub list: Vec<UpstreamSettings>,
    pub disabled: Vec<UpstreamId>,
    pub modes: BTreeMap<UpstreamId, Mode>,
}

/// The keys of `[upstreams.NAME]` in addition to those of `[defaults]`.
const KEYS: &str = r#"
transport: `library`: Markdown files in a directory. `git`: the same in a repository. `http`:
    Streamable HTTP, with fallback to HTTP+SSE for a server that speaks nothing else. `sse`:
    HTTP+SSE, without detection. `stdio`: a child process. See docs/operating.md#child-processes.
    `mlflow`, `phoenix`, `langfuse`: a prompt store. See docs/sources.md#prompt-stores.
path, such as "prompts": `library`: the directory. Required. See
    docs/sources.md#the-file-format. `git`: the folder in the repository.
url, such as "https://prompts.example.com/mcp": `http` and `sse`: the server. Required. At most two
    redirects (307, 308) to the same origin are followed. A third one is `upstream_protocol_error`,
    any other redirect `upstream_http_error`. `git`: the repository. Required. See
    docs/sources.md#git-repositories. Prompt stores: the address before `/api` or `/v1`.
ref, such as "main": `git`: branch or tag. Not set: the HEAD of the repository.
state: `git`, prompt stores: directory for what is served, in a directory of the upstream's name.
    `""`: the list of a store is not kept.
trusted_keys, such as "signers": `git`: file of allowed signers. A commit, or an annotated tag,
    without a signature of one of them is not served. See docs/sources.md#signatures.
label = "production": Which version of a prompt is served under its name: that of this label in
    `labels.toml` (`library`, `git`), or of this alias (MLflow), tag (Phoenix) or label (Langfuse).
    `"latest"`: the newest ones. See docs/versions.md.
labels, such as ["staging"]: Prompt stores: further aliases, tags or labels. Each prompt is also
    `NAME@LABEL`, in views with `versions`.
filter, such as "tags.team = 'docs'": Which prompts are read. `mlflow`: a search filter of registered
    models. `langfuse`: a tag. Not set: all.
system: Prompt stores: messages of the role `system`, which MCP lacks. `refuse` leaves out their
    prompts, `as_user` makes them messages of the user.
config: Prompt stores: results have the model parameters and response formats of the store, in
    `_meta["promptgate/config"]`.
webhook_secret, such as { env = "WEBHOOK_SECRET" }: `git`, `mlflow` and `langfuse`: secret of the
    webhooks at `server.path` + `/hooks/NAME`, after which the upstream is read at once. Not set:
    webhooks are refused.
command, such as ["uvx", "mcp-server-fetch"]: `stdio`: program and arguments, which no shell
    interprets. Required.
env, such as { LOG_LEVEL = "debug" }: `stdio`: environment variables, texts or secrets. See `inherit` for
    those that are inherited.
cwd, such as "work": `stdio`: working directory. Not set: the directory of the file.
prefix, such as "web": Prefix of the public names. Not set: the id. `""` lists names without a
    prefix: a name that two such upstreams claim is dropped from both, and one that falls under the
    prefix of another upstream is dropped.
expose_skills = [], such as ["prompts"]: `"prompts"` also serves each skill as a prompt with the argument
    `task`. See docs/exposure.md#skills-as-prompts-and-tools.
enabled: `false` disables the upstream. Other tables may still name it.
approval: Mode of approvals for this upstream: `off`, `warn` or `enforce`.
revision = "auto", such as "2025-11-25": MCP revision of the upstream. `"auto"` detects it.
credential: Credential of the gateway at the upstream, or of its callers. See docs/credentials.md.
act_as: `service`: all calls have the credential of the gateway. `caller`: each call has one of its
    own caller, from `exchange`, `id_jag`, `sign_in` or `vault`; another credential is used for the
    list only.
list_as: `service`: one list for all callers. `caller`: each caller has a private list, walked with
    its own credential. See docs/credentials.md#private-lists.
per_caller: `stdio`: each caller has a child process of its own, beside the one that lists the
    prompts. See docs/credentials.md#child-processes-of-callers.
max_children: Child processes of callers, with a share for each (`server.limits.share`). Beyond it the one that was idle longest is ended. If all
    are in use, a call waits for `queue_wait`, then it is `upstream_busy`.
child_idle: Time without a call until the child process of a caller is ended.
headers, such as { X-Team = "platform" }: Additional headers, texts or secrets. Secrets are removed
    from error texts that the upstream sends.
ca = "", such as "upstream-ca.pem": PEM file of certificates that are trusted beside those of the
    system, for `git` instead of them.
allow_private: `false` refuses hosts at addresses that are not public (loopback, private networks,
    the rest of IANA's special-purpose registries). Link-local addresses and metadata services of
    clouds are always refused. The address of the actual connection is checked; behind a proxy, the
    proxy finds it, and only addresses in URLs are checked. `git`: see docs/sources.md#addresses.
proxy: `false` calls the upstream, its authorization server and its vault directly, without the
    proxy of `[net]` or of the environment.
"#;

pub(crate) fn read_all(root: &mut Section<'_>) -> Upstreams {
    let mut defaults = root.section("defaults");
    let base = settings(&mut defaults, &Settings::default());
    defaults.finish();
    let sections = root.sections("upstreams");
    let mut upstreams = Vec::with_capacity(sections.len());
    let mut modes = BTreeMap::new();
    let mut disabled = Vec::new();
    let mut owners: HashMap<Prefix, UpstreamId> = HashMap::new();
    for (name, mut section) in sections {
        let Some(id) = UpstreamId::parse(&name) else {
            section.mistake("", ID_RULE);
            continue;
        };
        section.explain(KEYS);
        let enabled = section.flag("enabled", true);
        let upstream = read(id.clone(), &mut section, &base);
        let mode = approval(&mut section);
        modes.extend(mode.map(|mode| (id.clone(), mode)));
        if !enabled {
            // The upstream may be disabled until its secrets are set.
            section.excuse_unset_secrets();
            disabled.push(id);
        }
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
    Upstreams { list: upstreams, disabled, modes }
}

/// Returns the first upstream with a sign-in of the operator or of callers.
pub(crate) fn first_login(upstreams: &[UpstreamSettings]) -> Option<&UpstreamId> {
    let is_kept =
        |upstream: &&UpstreamSettings| upstream.login().or(upstream.caller_sign_in()).is_some();
    upstreams.iter().find(is_kept).map(|upstream| &upstream.id)
}

/// Sets the place of the sign-ins for each upstream with a sign-in of the operator or of callers,
/// or with tokens that replicas share, and for callers the URLs of the sign-in page and of the
/// client document.
pub(crate) fn keep_logins(
    upstreams: &mut [UpstreamSettings],
    logins: Option<&Arc<Logins>>,
    [page, document]: [Option<String>; 2],
) {
    for upstream in upstreams {
        let id = upstream.id.as_str().to_owned();
        let Some(credentials) = upstream.credentials_mut() else { continue };
        if let Some(TokenCredential::Login(login)) = &mut credentials.token {
            login.upstream.clone_from(&id);
            login.kept = logins.cloned();
        }
        match &mut credentials.caller {
            Some(CallerCredential::SignIn(login)) => {
                login.upstream = id;
                login.kept = logins.cloned();
                login.page = page.clone();
                login.document = document.clone();
            }
            Some(CallerCredential::IdJag(id_jag)) => id_jag.kept = logins.cloned(),
            _ => {}
        }
    }
}

/// Sets the proxies of the upstreams, except those called directly.
pub(crate) fn use_proxies(upstreams: &mut [UpstreamSettings], proxies: &Proxies) {
    let own = upstreams.iter_mut().filter_map(|upstream| match &mut upstream.transport {
        Transport::Http(http) | Transport::Sse(http) => http.proxies.as_mut(),
        Transport::Store(store) => store.http.proxies.as_mut(),
        Transport::Git(git) => git.proxies.as_mut(),
        Transport::Stdio(_) | Transport::Library(_) => None,
    });
    own.for_each(|own| proxies.clone_into(own));
}

/// Sets the issuer of callers' tokens for each upstream with a token exchange.
pub(crate) fn name_issuer(upstreams: &mut [UpstreamSettings], issuer: &str) {
    for credentials in upstreams.iter_mut().filter_map(UpstreamSettings::credentials_mut) {
        if let Some(CallerCredential::Exchange(exchange)) = &mut credentials.caller {
            issuer.clone_into(&mut exchange.issuer);
        }
    }
}

const ID_RULE: &str = "an upstream id must have 1 to 64 characters of a-z, 0-9 and -, and start with a \
                       letter or a digit";

fn read(id: UpstreamId, section: &mut Section<'_>, base: &Settings) -> Option<UpstreamSettings> {
    let rule = "\"\" or 1 to 64 characters of a-z, 0-9 and -, starting with a letter or a digit";
    let prefix = section.parsed("prefix", rule, Prefix::parse);
    let prefix = prefix.or_else(|| Prefix::parse(id.as_str()))?;
    let mut settings = settings(section, base);
    let rule = "one of \"library\", \"http\" (Streamable HTTP), \"sse\" (HTTP+SSE), \"stdio\", \"git\", \
                \"mlflow\", \"phoenix\", \"langfuse\"";
    let meant = section.unread_text("transport").and_then(|named| meant_transport(&named));
    let rule = meant.map_or(rule.to_owned(), |meant| format!("{rule}; write \"{meant}\""));
    let Some(read) = section.required_choice("transport", &rule, &TRANSPORTS) else {
        // The allowed keys depend on the transport, so the other keys are not further mistakes.
        section.ignore_rest();
        return None;
    };
    let mut transport = read(section)?;
    match &mut transport {
        Transport::Git(git) => git.state.push(id.as_str()),
        Transport::Store(store) => store.state.iter_mut().for_each(|state| state.push(id.as_str())),
        _ => {}
    }
    if settings.server_requests_by_default && matches!(transport, Transport::Http(_)) {
        // Elsewhere a server request is not correlated with its call, so that calls would run one
        // at a time.
        settings.server_requests = ClientCapabilities::FORM;
    }
    let choices = [("service", ListAs::Service), ("caller", ListAs::Caller)];
    let list_as = section.choice("list_as", ListAs::Service, &choices);
    let skills_as_prompts = !section.choices("expose_skills", &[("prompts", ())]).is_empty();
    let upstream = UpstreamSettings {
        id,
        prefix,
        transport,
        settings,
        list_as,
        is_passthrough: false,
        skills_as_prompts,
    };
    if list_as == ListAs::Caller {
        check_private_lists(&upstream, section);
    }
    Some(upstream)
}

/// Checks the requirements of `list_as = "caller"`.
fn check_private_lists(upstream: &UpstreamSettings, section: &mut Section<'_>) {
    let credentials = upstream.http().map(|http| &http.credentials);
    let is_shared = |all: &Credentials| all.header.is_some() || all.token.is_some();
    let mistake = if !upstream.acts_as_caller() {
        "\"caller\" needs act_as = \"caller\", or per_caller = true: otherwise callers have no list of their own"
    } else if credentials.is_some_and(is_shared) {
        "\"caller\" leaves nothing to do for the gateway's own credential: remove it, or list as \"service\""
    } else if upstream.prefix.is_bare() {
        "\"caller\" needs a prefix: names without one would collide for some callers only"
    } else {
        return;
    };
    section.mistake("list_as", mistake);
}

/// Returns the transport that an alias means: hosts and SDKs use several names.
fn meant_transport(named: &str) -> Option<&'static str> {
    let word: String = named.chars().filter(char::is_ascii_alphanumeric).collect();
    match word.to_ascii_lowercase().as_str() {
        "streamablehttp" | "httpstream" | "httpstreamable" | "https" | "remote" => Some("http"),
        "httpsse" | "sselegacy" | "eventstream" => Some("sse"),
        "command" | "local" | "process" | "subprocess" => Some("stdio"),
        "files" | "folder" | "markdown" => Some("library"),
        "github" | "gitlab" | "repository" | "repo" => Some("git"),
        "arize" | "arizephoenix" => Some("phoenix"),
        _ => None,
    }
}

type ReadTransport = fn(&mut Section<'_>) -> Option<Transport>;

const TRANSPORTS: [(&str, ReadTransport); 8] = [
    ("library", library),
    ("git", |section| git::read(section).map(Transport::Git)),
    ("http", http),
    ("sse", sse),
    ("stdio", stdio),
    ("mlflow", |section| store(section, StoreKind::Mlflow)),
    ("phoenix", |section| store(section, StoreKind::Phoenix)),
    ("langfuse", |section| store(section, StoreKind::Langfuse)),
];

fn library(section: &mut Section<'_>) -> Option<Transport> {
    let Some(path) = section.file("path") else {
        section.mistake("path", "is required: the directory of the library");
        return None;
    };
    if !disk::is_folder(&path) {
        section.mistake("path", not_a_directory(&path));
    }
    Some(Transport::Library(Library { folder: path, label: labels::key(section) }))
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

/// HTTP+SSE exists in legacy revisions only, so no detection is needed.
fn sse(section: &mut Section<'_>) -> Option<Transport> {
    http_server(section, Some(Revision::NEWEST_LEGACY)).map(Transport::Sse)
}

fn store(section: &mut Section<'_>, kind: StoreKind) -> Option<Transport> {
    let label = section.text("label", DEFAULT_LABEL);
    if label.is_empty() {
        section.mistake("label", "must name an alias, tag or label of the store, or \"latest\"");
    }
    let labels = more_labels(section, &label);
    if kind == StoreKind::Phoenix && section.has("filter") {
        let hint =
            "is not for Phoenix, which lists all prompts; choose some by the `prompts` of a view";
        section.reject("filter", hint);
    }
    if kind == StoreKind::Phoenix && section.has("webhook_secret") {
        section.reject("webhook_secret", "is not for Phoenix, which sends no webhooks");
    }
    let filter = section.optional_text("filter").filter(|filter| !filter.is_empty());
    let system = [("refuse", false), ("as_user", true)];
    let has_system_as_user = section.choice("system", false, &system);
    let has_config = section.flag("config", false);
    let webhook_secret = webhook::incoming(section);
    let state = section.file_or("state", git::STATE);
    let http = http_server(section, None)?;
    if http.credentials.caller.is_some() {
        section
            .mistake("act_as", "must be \"service\": a prompt store has one list for all callers");
    }
    let path = http.url.path().trim_end_matches('/');
    if http.url.query().is_some() || path.ends_with("/v1") || path.contains("/api") {
        let rule = "must be the address before `/api` or `/v1`, such as \"http://127.0.0.1:5000\"";
        section.mistake("url", rule);
    }
    Some(Transport::Store(PromptStore {
        kind,
        http,
        label,
        labels,
        filter,
        has_system_as_user,
        has_config,
        webhook_secret,
        state,
    }))
}

/// The limit of `labels` in addition to `label`: each may cost a request for each prompt.
const MAX_LABELS: usize = 8;

/// Reads the labels whose versions are additionally served.
fn more_labels(section: &mut Section<'_>, label: &str) -> Vec<String> {
    let labels = section.texts("labels");
    let mut seen = HashSet::from([label]);
    let is_one = |one: &String| !one.is_empty() && !one.contains(VERSION_MARK);
    let are_good = labels.iter().all(|one| is_one(one) && seen.insert(one));
    if !are_good || labels.len() > MAX_LABELS {
        let rule = format!(
            "must be at most {MAX_LABELS} labels, each once, without {VERSION_MARK}, other than `label`"
        );
        section.mistake("labels", rule);
    }
    labels
}

fn http_server(section: &mut Section<'_>, revision: Option<Revision>) -> Option<Http> {
    let rule =
        "a URL such as \"https://prompts.example.com/mcp\", without user, password and fragment";
    let url = section.required("url", rule, url);
    let credentials = credential::read(section);
    let headers = extra_headers(section);
    let brings_token = credentials.token.is_some() || credentials.caller.is_some();
    let is_set = |name: &HeaderName| {
        let header = credentials.header.as_ref();
        header.is_some_and(|(other, _)| other == name) || (brings_token && *name == AUTHORIZATION)
    };
    for (name, _) in headers.iter().filter(|(name, _)| is_set(name)) {
        let message = "is already set by the credential; remove one of them";
        section.mistake(&format!("headers.{name}"), message);
    }
    if brings_token && url.as_ref().is_some_and(|url| !is_https_or_loopback(url)) {
        section.mistake("url", "must be https, or http on loopback, because tokens are sent to it");
    }
    let address_policy = address_policy(section, url.as_ref().and_then(Uri::host));
    let ca = certificate_authorities(section);
    let proxies = section.flag("proxy", true).then(Proxies::default);
    Some(Http { url: url?, revision, headers, credentials, ca, address_policy, proxies })
}

fn stdio(section: &mut Section<'_>) -> Option<Transport> {
    if section.has("args") {
        let hint = "belongs in command: command = [\"uvx\", \"mcp-server-fetch\"]";
        section.reject("args", hint);
        // With `args`, a `command` string is not a second mistake.
        section.ignore_rest();
        return None;
    }
    let mut command = section.texts("command").into_iter();
    let program = command.next().filter(|program| !program.is_empty());
    if program.is_none() && !section.is_rejected("command") {
        let rule = "is required: [\"program\", \"argument\", …], which no shell interprets";
        section.mistake("command", rule);
    }
    let cwd = section.folder("cwd");
    if !disk::is_folder(&cwd) {
        section.mistake("cwd", not_a_directory(&cwd));
    }
    let env = section.section("env").secrets();
    let is_per_caller = section.flag("per_caller", false);
    let max = section.count("max_children", 16, 1..=1024);
    let idle = section.duration("child_idle", Duration::from_secs(600), MILLISECOND);
    let per_caller = is_per_caller.then_some(ChildPerCaller { max, idle });
    if per_caller.is_none()
        && let Some((name, _)) = env.iter().find(|(_, value)| value.expose().contains(CALLER))
    {
        let message =
            "has {caller}, which stands for the id of the caller only with per_caller = true";
        section.mistake(&format!("env.{name}"), message);
    }
    let revision = revision(section);
    Some(Transport::Stdio(Stdio {
        program: program?,
        arguments: command.collect(),
        env,
        cwd,
        supervisor: None,
        revision,
        per_caller,
    }))
}

/// Reads the revision; `None` if the handshake detects it.
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

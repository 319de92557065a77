//! `credential` of an upstream: the credential of the gateway, or of each caller.

use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Uri};

use super::logins::{self, Login, Logins};
use super::oauth::{self, ClientProof, OAuth};
use crate::auth::jwt::{URL_RULE, url};
use crate::reader::secret::Secret;
use crate::reader::{Section, table};

/// The credentials for calls of an upstream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Credentials {
    /// A header of each request that is not made for one caller.
    pub header: Option<(HeaderName, Secret)>,
    /// Access tokens instead of a static header.
    pub token: Option<TokenCredential>,
    /// Each caller's own credential (`act_as = "caller"`).
    pub caller: Option<CallerCredential>,
}

impl Credentials {
    /// Returns the secrets that the upstream, or its authorization server, is called with.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let header = self.header.iter().map(|(_, value)| value);
        let token = match &self.token {
            Some(TokenCredential::OAuth(oauth)) => oauth.proof.secret(),
            Some(TokenCredential::Login(login)) => login.client_secret.as_ref(),
            Some(TokenCredential::Workload(_)) | None => None,
        };
        header.chain(token).chain(self.caller.iter().flat_map(CallerCredential::secrets))
    }
}

/// The source of access tokens for an upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TokenCredential {
    /// The gateway gets the tokens as itself.
    OAuth(OAuth),
    /// The operator has signed in.
    Login(Login),
    /// The gateway gets tokens in exchange for a token that its platform keeps renewing.
    Workload(Workload),
}

table! {
    /// `credential = { workload = … }`: a token in a file, such as a projected service account
    /// token or a SPIFFE JWT-SVID, is the assertion of a token request (RFC 7523).
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Workload(section, key) -> Option {
        /// File of the token. Required. Read for each token request.
        #[example = "/var/run/secrets/tokens/code"]
        required pub file: PathBuf = token_file(section, key);
        /// Token endpoint, the only place to which the token is sent.
        #[example = "https://id.example.com/token"]
        required pub token_url: Uri = section.required(key, URL_RULE, url);
        /// Set: the token authenticates this client (`client_credentials`). Not set: the token is
        /// the grant (`jwt-bearer`).
        #[example = "gateway"]
        pub client_id: Option<String> = section.given_text(key);
        /// Audience of the token request.
        #[example = "code"]
        pub audience: Option<String> = section.given_text(key);
        /// Scopes of the token request, separated by spaces.
        #[example = "read"]
        pub scope: Option<String> = section.given_text(key);
        /// Resource of the token request. Not set: the URL of the upstream; `""`: none.
        #[example = "https://code.example.com/mcp"]
        pub resource: Option<String> = section.optional_text(key);
    }
}

/// The source of a caller's own credential for an upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CallerCredential {
    Exchange(Box<Exchange>),
    IdJag(Box<IdJag>),
    /// Each caller signs in in a browser.
    SignIn(Box<Login>),
    Vault(Vault),
}

impl CallerCredential {
    fn secrets(&self) -> Vec<&Secret> {
        let proofs = match self {
            Self::Exchange(exchange) => [exchange.proof.as_ref(), None],
            Self::IdJag(id_jag) => [id_jag.provider.proof.as_ref(), Some(&id_jag.server.proof)],
            Self::SignIn(login) => return login.client_secret.iter().collect(),
            Self::Vault(vault) => return vault.headers.iter().map(|(_, value)| value).collect(),
        };
        proofs.into_iter().flatten().filter_map(ClientProof::secret).collect()
    }
}

table! {
    /// `credential = { exchange = … }`: the token of the caller is exchanged for one for the
    /// upstream (RFC 8693).
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Exchange(section, key) -> Option {
        /// Token endpoint, the only place to which tokens of callers are sent.
        #[example = "https://id.example.com/token"]
        required pub token_url: Uri = section.required(key, URL_RULE, url);
        /// Id of the gateway at the authorization server.
        #[example = "gateway"]
        required pub client_id: String = oauth::client_id(section, key);
        /// Audience of the new token.
        #[example = "code"]
        pub audience: Option<String> = section.given_text(key);
        /// Resource of the new token. Not set: the URL of the upstream, unless there is an
        /// `audience`; `""`: none.
        #[example = "https://code.example.com/mcp"]
        pub resource: Option<String> = section.optional_text(key);
        /// Scopes to ask for, separated by spaces. If the upstream answers `insufficient_scope`,
        /// the call is repeated once with those that it names added.
        #[example = "read"]
        pub scope: Option<String> = section.given_text(key);
        /// Type of the tokens that callers bring: `access_token` or `id_token`.
        pub subject_token_type: &'static str =
            section.choice(key, "access_token", &["access_token", "id_token"].map(|it| (it, it)));
        /// A token of the gateway itself, sent as `actor_token`.
        pub actor: Option<PathBuf> = actor(section, key);
        /// Token requests at a time, for all callers. Calls beyond wait.
        pub requests: usize = section.count(key, REQUESTS, 1..=1024);
        /// `None`: a public client.
        field pub proof: Option<ClientProof> = oauth::client_proof(section);
        /// Issuer of the tokens that callers bring, which is often the same authorization server.
        field pub issuer: String = String::new();
    }
}

table! {
    /// `credential = { id_jag = … }`: the token of the caller is exchanged for an identity
    /// assertion, and that at the upstream's authorization server for an access token.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct IdJag(section, key) -> Option {
        /// The identity provider of the callers: the keys of `exchange`, without `audience`.
        required pub provider: Exchange = assertion_provider(section.section(key));
        /// The upstream's authorization server.
        required pub server: AssertionServer = AssertionServer::read_table(section.section(key));
        /// Where replicas keep the tokens of callers; `None` without `server.seal_key`.
        field pub kept: Option<Arc<Logins>> = None;
    }
}

table! {
    /// `server` of `id_jag`: the upstream's authorization server.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct AssertionServer(section, key) -> Option {
        /// Id of the gateway at this server.
        #[example = "gateway"]
        required pub client_id: String = oauth::client_id(section, key);
        /// Issuer of this server. Set it with a secret, which is sent there. Not set: it is
        /// discovered as for `oauth`.
        #[example = "https://auth.example.com"]
        pub issuer: Option<String> =
            section.parsed(key, URL_RULE, |text| url(text).map(|_| text.to_owned()));
        field pub proof: ClientProof = oauth::required_proof(section)?;
    }
}

fn assertion_provider(mut section: Section<'_>) -> Option<Exchange> {
    section.reject("audience", "is the issuer of the upstream's server: set server.issuer");
    Exchange::read_table(section)
}

table! {
    /// `credential = { vault = … }`: the secret of the caller is looked up by HTTP.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Vault(section, key) -> Option {
        /// URL of the secret. `{caller}` stands for the id of the caller.
        #[example = "https://vault.example.com/v1/kv/data/mcp/{caller}"]
        required pub url: String = section.required(key, VAULT_RULE, vault_url);
        /// Member with the secret, in `data.data`, in `data` or at the top of the answer.
        pub field: String = member(section, key);
        /// Headers of each lookup.
        #[example = { X-Vault-Token = { file = "vault-token" } }]
        pub headers: Vec<(HeaderName, Secret)> = extra_headers(section);
        /// Lookups at a time, for all callers. Calls beyond wait.
        pub requests: usize = section.count(key, REQUESTS, 1..=1024);
    }
}

/// Stands for the percent-encoded id of the caller.
pub const CALLER: &str = "{caller}";

/// Requests to one authorization server or vault at a time, for all callers of an upstream.
const REQUESTS: usize = 16;

/// The keys of `credential`. One of the first five may be given, and one of those of callers.
const KEYS: &str = r#"
bearer: Secret that is sent as `Authorization: Bearer`.
header, such as "X-Api-Key": Name of another header, whose content is `value`.
value: Secret that is sent in `header`.
oauth: Tokens that the gateway gets for itself (OAuth client credentials).
login, such as {}: Sign-in of the operator. See docs/credentials.md#sign-in-of-the-operator.
workload: Tokens for a token that the platform keeps in a file. See
    docs/credentials.md#workload-identity.
exchange: Tokens for the token of each caller. See docs/credentials.md#token-exchange.
sign_in, such as {}: Sign-in of each caller in a browser. See
    docs/credentials.md#sign-in-of-each-caller.
id_jag: Tokens for assertions of the identity provider. See
    docs/credentials.md#identity-assertions.
vault: Secrets of each caller, looked up by HTTP. See docs/credentials.md#secrets-from-a-vault.
user: `git`: the name that is sent with `password`. Most servers take any with a token.
password: `git`: secret that is sent as `Authorization: Basic`, such as an access token.
"#;

/// The user name that git servers expect with an access token.
const GIT_USER: &str = "x-access-token";

/// Reads `credential` of a git repository: the name of a user, and the password.
pub(crate) fn git(section: &mut Section<'_>) -> Option<(String, Secret)> {
    let mut credential = section.section("credential");
    credential.explain(KEYS);
    let user = credential.text("user", GIT_USER);
    let password = credential.secret("password");
    if password.is_none() && credential.was_read("user") {
        credential.mistake("password", "is required: a secret such as { env = \"GIT_TOKEN\" }");
    }
    if user.contains(':') || user.contains(char::is_control) {
        credential.mistake("user", "must not contain a colon or a control character");
    }
    credential.finish();
    Some((user, password?))
}

/// Reads `credential` and `act_as`.
pub(crate) fn read(section: &mut Section<'_>) -> Credentials {
    let acts_as_caller = section.choice("act_as", false, &[("service", false), ("caller", true)]);
    let mut credential = section.section("credential");
    credential.explain(KEYS);
    let caller = caller_credential(&mut credential);
    let token = token_credential(&mut credential);
    let header = header_credential(&mut credential, token.is_some());
    match (acts_as_caller, &caller) {
        (true, ExclusiveTable::Nothing) => section.mistake(
            "act_as",
            "\"caller\" needs credential = { exchange = … }, { id_jag = … }, { sign_in = {} } or { vault = … }: a credential that callers share is never used for them",
        ),
        (false, ExclusiveTable::Valid(_) | ExclusiveTable::Mistaken) => credential.mistake(
            "",
            "exchange, id_jag, sign_in and vault are for calls with each caller's own credential: set act_as = \"caller\"",
        ),
        _ => {}
    }
    credential.finish();
    Credentials { header, token: token.valid(), caller: caller.valid() }
}

/// One of several mutually exclusive tables.
enum ExclusiveTable<T> {
    Nothing,
    /// The table has mistakes, which are reported.
    Mistaken,
    Valid(T),
}

impl<T> ExclusiveTable<T> {
    fn is_some(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    fn valid(self) -> Option<T> {
        match self {
            Self::Valid(value) => Some(value),
            Self::Nothing | Self::Mistaken => None,
        }
    }
}

/// Reads a table if it is present.
fn given<'a, T>(
    credential: &mut Section<'a>,
    key: &'static str,
    read: impl FnOnce(Section<'a>) -> Option<T>,
) -> ExclusiveTable<T> {
    let is_given = credential.has(key);
    let section = credential.section(key);
    if !is_given {
        return ExclusiveTable::Nothing;
    }
    read(section).map_or(ExclusiveTable::Mistaken, ExclusiveTable::Valid)
}

/// Returns the only table that is present; more than one is a mistake.
fn only<T, const N: usize>(
    credential: &Section<'_>,
    all: [ExclusiveTable<T>; N],
    rule: &str,
) -> ExclusiveTable<T> {
    let mut given = all.into_iter().filter(ExclusiveTable::is_some);
    let first = given.next().unwrap_or(ExclusiveTable::Nothing);
    if given.next().is_some() {
        credential.mistake("", rule);
        return ExclusiveTable::Mistaken;
    }
    first
}

fn token_credential(credential: &mut Section<'_>) -> ExclusiveTable<TokenCredential> {
    let all = [
        given(credential, "oauth", |section| {
            OAuth::read_table(section).map(TokenCredential::OAuth)
        }),
        given(credential, "login", |section| Some(TokenCredential::Login(logins::login(section)))),
        given(credential, "workload", |section| {
            Workload::read_table(section).map(TokenCredential::Workload)
        }),
    ];
    only(credential, all, RULE)
}

fn caller_credential(credential: &mut Section<'_>) -> ExclusiveTable<CallerCredential> {
    let all = [
        given(credential, "exchange", |section| {
            Exchange::read_table(section)
                .map(|exchange| CallerCredential::Exchange(Box::new(exchange)))
        }),
        given(credential, "id_jag", |section| {
            IdJag::read_table(section).map(|id_jag| CallerCredential::IdJag(Box::new(id_jag)))
        }),
        given(credential, "sign_in", |section| {
            Some(CallerCredential::SignIn(Box::new(logins::login(section))))
        }),
        given(credential, "vault", |section| {
            Vault::read_table(section).map(CallerCredential::Vault)
        }),
    ];
    only(credential, all, "must have one of exchange, id_jag, sign_in and vault")
}

/// Reads `bearer`, or `header` and `value`.
fn header_credential(
    credential: &mut Section<'_>,
    has_token: bool,
) -> Option<(HeaderName, Secret)> {
    let bearer = credential.secret("bearer");
    let rule = "the name of a header that promptgate does not set itself, such as \"X-Api-Key\"";
    let name = credential.parsed("header", rule, header_name);
    let value = credential.secret("value");
    let header = match (bearer, name, value) {
        (None, None, None) => return None,
        (Some(token), None, None) if !has_token => {
            (http::header::AUTHORIZATION, token.with_prefix("Bearer "))
        }
        (None, Some(name), Some(value)) if !has_token => (name, value),
        _ => {
            credential.mistake("", RULE);
            return None;
        }
    };
    if !is_header_value(&header.1) {
        credential.mistake("", "contains characters that an HTTP header must not contain");
    }
    Some(header)
}

const RULE: &str = "must be { bearer = … }, { header = \"…\", value = … }, { oauth = { client_id = \"…\", … } }, \
                    { login = { … } } or { workload = { file = \"…\", … } }";

fn token_file(section: &mut Section<'_>, key: &'static str) -> Option<PathBuf> {
    let file = section.file(key);
    if file.is_none() {
        section.mistake(key, "is required: the file of the token, which the platform renews");
    }
    file
}

fn actor(section: &mut Section<'_>, key: &'static str) -> Option<PathBuf> {
    let is_given = section.has(key);
    let mut actor = section.section(key);
    actor.explain(ACTOR_KEYS);
    let file = actor.file("file");
    if file.is_none() && is_given {
        actor.mistake("file", "is required: the file of the token of the gateway itself");
    }
    actor.finish();
    file
}

/// The keys of `credential.exchange.actor`.
const ACTOR_KEYS: &str = r#"
file, such as "gateway-token": File of the token. Required. Read for each exchange.
"#;

fn member(section: &mut Section<'_>, key: &'static str) -> String {
    let member = section.text(key, "token");
    if member.is_empty() {
        section.mistake(key, "must be the name of the member that holds the secret");
    }
    member
}

const VAULT_RULE: &str =
    "a URL with https, or with http on loopback, with {caller} as one whole segment of its path";

/// Checks the template of a vault's URL: the id of a caller can only be a segment of the path.
fn vault_url(text: &str) -> Option<String> {
    let filled = url(&text.replace(CALLER, "caller"))?;
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let is_segment = path.split('/').skip(3).any(|segment| segment == CALLER);
    let is_only_segment = path.split('/').all(|part| part == CALLER || !part.contains(CALLER));
    let authority = path.split('/').nth(2)?;
    let is_plain = is_segment && is_only_segment && authority != CALLER && !query.contains(CALLER);
    (is_plain && filled.host().is_some()).then(|| text.to_owned())
}

/// Reads `headers`.
pub(crate) fn extra_headers(section: &mut Section<'_>) -> Vec<(HeaderName, Secret)> {
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
pub fn is_reserved_header(name: &HeaderName) -> bool {
    let reserved =
        ["host", "content-length", "content-type", "accept", "transfer-encoding", "connection"];
    reserved.contains(&name.as_str()) || name.as_str().starts_with("mcp-")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Transport, schema_check};

    const JWT: &str = "[auth.jwt]\nissuer = \"https://id.example.com\"\naudience = [\"gate\"]\n";

    fn parse(act_as: &str, credential: &str) -> Result<Credentials, String> {
        let toml = format!(
            "{JWT}[upstreams.a]\ntransport = \"http\"\nurl = \"https://example.com/mcp\"\n\
             act_as = \"{act_as}\"\ncredential = {{ {credential} }}\n"
        );
        let config = schema_check::parse("g", &toml, Path::new("/etc/g"), &[]);
        let config = config.map_err(|error| error.to_string())?;
        match config.upstreams.into_iter().next().map(|upstream| upstream.transport) {
            Some(Transport::Http(http)) => Ok(http.credentials),
            other => panic!("{other:?}"),
        }
    }

    const EXCHANGE: &str =
        "exchange = { token_url = \"https://id.example.com/token\", client_id = \"gate\" }";
    const ID_JAG: &str = "id_jag = { \
        provider = { token_url = \"https://id.example.com/token\", client_id = \"gate\" }, \
        server = { client_id = \"at-a\", client_secret = { value = \"s\" } } }";
    const VAULT: &str = "vault = { url = \"https://vault.example.com/v1/kv/data/mcp/{caller}\" }";

    #[test]
    fn a_shared_credential_is_never_taken_for_the_caller() {
        for credential in ["", "bearer = { value = \"t\" }"] {
            let mistake = parse("caller", credential).unwrap_err();
            assert!(mistake.contains("upstreams.a.act_as: \"caller\" needs"), "{mistake}");
        }
        for credential in [EXCHANGE, ID_JAG, VAULT] {
            let mistake = parse("service", credential).unwrap_err();
            assert!(mistake.contains("set act_as = \"caller\""), "{mistake}");
        }
        assert!(parse("caller", &format!("{EXCHANGE}, {VAULT}")).unwrap_err().contains("one of"));
        // The list is walked with the operator's.
        let both = parse("caller", &format!("{EXCHANGE}, bearer = {{ value = \"t\" }}")).unwrap();
        assert!(both.header.is_some() && both.caller.is_some());
    }

    #[test]
    fn a_list_of_each_caller_needs_credentials_of_callers_and_a_prefix() {
        let check = |credential: &str, more: &str| {
            let toml = format!(
                "{JWT}[upstreams.a]\ntransport = \"http\"\nurl = \"https://example.com/mcp\"\nlist_as = \"caller\"\n\
                 credential = {{ {credential} }}\n{more}"
            );
            let config = schema_check::parse("g", &toml, Path::new("/etc/g"), &[]);
            config.map_err(|error| error.to_string())
        };
        let as_caller = "act_as = \"caller\"\n";
        let config = check(EXCHANGE, as_caller).unwrap();
        assert!(config.upstreams[0].lists_per_caller());
        let both = format!("{EXCHANGE}, bearer = {{ value = \"t\" }}");
        for (credential, more, what) in [
            (EXCHANGE, "prefix = \"\"\n", "needs a prefix"),
            (EXCHANGE, "approval = \"warn\"\n", "set its approval = \"off\""),
            (&both, "", "the gateway's own credential"),
        ] {
            let mistake = check(credential, &format!("{as_caller}{more}")).unwrap_err();
            assert!(mistake.contains(what), "{mistake}");
        }
        let mistake = check("bearer = { value = \"t\" }", "").unwrap_err();
        assert!(mistake.contains("needs act_as = \"caller\", or per_caller"), "{mistake}");
    }

    #[test]
    fn an_exchange_names_its_endpoint_and_its_client() {
        let Some(CallerCredential::Exchange(exchange)) = parse("caller", EXCHANGE).unwrap().caller
        else {
            panic!("no exchange")
        };
        assert_eq!((exchange.requests, exchange.proof, exchange.actor), (16, None, None));
        let full = EXCHANGE.replace(
            " }",
            ", client_secret = { value = \"s\" }, actor = { file = \"me\" }, requests = 1 }",
        );
        let Some(CallerCredential::Exchange(exchange)) = parse("caller", &full).unwrap().caller
        else {
            panic!("no exchange")
        };
        assert_eq!((exchange.requests, exchange.actor), (1, Some(PathBuf::from("/etc/g/me"))));
        for (from, to, what) in [
            ("https://id", "http://id", "https"),
            (", client_id = \"gate\"", "", "client_id: is required"),
            (" }", ", actor = {} }", "actor.file: is required"),
            (" }", ", requests = 0 }", "requests: must be"),
        ] {
            let mistake = parse("caller", &EXCHANGE.replace(from, to)).unwrap_err();
            assert!(mistake.contains(what), "{mistake}");
        }
    }

    #[test]
    fn an_identity_assertion_has_a_client_at_each_of_two_servers() {
        let credentials = parse("caller", ID_JAG).unwrap();
        assert_eq!(credentials.secrets().count(), 1);
        let Some(CallerCredential::IdJag(id_jag)) = credentials.caller else { panic!("no id_jag") };
        let IdJag { provider, server, .. } = *id_jag;
        assert_eq!((provider.client_id.as_str(), server.client_id.as_str()), ("gate", "at-a"));
        assert!(provider.subject_token_type == "access_token" && server.issuer.is_none());
        for (from, to, what) in [
            (
                "client_id = \"gate\" }",
                "client_id = \"gate\", audience = \"a\" }",
                "set server.issuer",
            ),
            (
                "\"gate\" }",
                "\"gate\", subject_token_type = \"saml2\" }",
                "must be one of \"access_token\", \"id_token\"",
            ),
            (
                ", client_secret = { value = \"s\" }",
                "",
                "server: must have exactly one of client_secret",
            ),
            ("client_id = \"at-a\", ", "", "server.client_id: is required"),
            ("\"at-a\",", "\"at-a\", issuer = \"http://a.example\",", "server.issuer: must be"),
            (
                "token_url = \"https://id.example.com/token\", ",
                "",
                "provider.token_url: is required",
            ),
            ("id_jag = {", "exchange = {}, id_jag = {", "one of exchange, id_jag"),
        ] {
            let text = ID_JAG.replace(from, to);
            assert_ne!(text, ID_JAG);
            let mistake = parse("caller", &text).unwrap_err();
            assert!(mistake.contains(what), "{mistake}");
        }
    }

    #[test]
    fn tokens_are_exchanged_only_where_callers_bring_some() {
        for credential in [EXCHANGE, ID_JAG] {
            let toml = format!(
                "[upstreams.a]\ntransport = \"http\"\nurl = \"https://example.com/mcp\"\n\
                 act_as = \"caller\"\ncredential = {{ {credential} }}\n"
            );
            let mistakes = schema_check::parse("g", &toml, Path::new(""), &[]).unwrap_err();
            let mistakes = mistakes.to_string();
            assert!(mistakes.contains("upstreams.a.credential: needs auth.jwt"), "{mistakes}");
        }
    }

    #[test]
    fn the_caller_is_a_whole_segment_of_a_vaults_path() {
        let vault = |url: &str| parse("caller", &format!("vault = {{ url = \"{url}\" }}"));
        assert!(vault("https://v.example.com/v1/{caller}").is_ok());
        assert!(vault("http://127.0.0.1:8200/v1/{caller}/keys?version=2").is_ok());
        for url in [
            "https://v.example.com/v1/token",
            "https://v.example.com/v1/u-{caller}",
            "https://v.example.com/v1/{caller}.json",
            "https://v.example.com/v1/x?who={caller}",
            "https://v.example.com/{caller}?who={caller}",
            "https://{caller}/v1/{caller}",
            "https://{caller}.example.com/{caller}",
            "http://v.example.com/{caller}",
            "{caller}",
        ] {
            assert!(vault(url).unwrap_err().contains("one whole segment"), "{url}");
        }
    }

    #[test]
    fn a_workload_names_its_file_and_the_endpoint() {
        let file = "workload = { file = \"token\", token_url = \"https://id.example.com/token\" }";
        let Some(TokenCredential::Workload(workload)) = parse("service", file).unwrap().token
        else {
            panic!("no workload")
        };
        assert_eq!(workload.file, Path::new("/etc/g/token"));
        assert_eq!((workload.client_id, workload.resource), (None, None));
        for (from, to, what) in [
            ("file = \"token\", ", "", "file: is required"),
            ("https:", "http:", "token_url: must be"),
        ] {
            let mistake = parse("service", &file.replace(from, to)).unwrap_err();
            assert!(mistake.contains(what), "{mistake}");
        }
        let two = format!("{file}, bearer = {{ value = \"t\" }}");
        assert!(parse("service", &two).unwrap_err().contains("must be { bearer"));
    }
}

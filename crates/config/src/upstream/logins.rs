//! `[logins]` and `credential = { login = … }`: sign-ins of the operator for upstreams;
//! `[accounts]`: bounds of the callers' accounts at upstreams.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::reader::secret::Secret;
use crate::reader::{Section, table};
use base::seal::SealKeys;
use domain::name::UpstreamId;

/// `[logins]`: how sign-ins are kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Logins {
    /// Folder of sealed files, one for each upstream. Not used where `[cluster]` has a store.
    pub path: PathBuf,
    /// The keys that seal the files.
    pub keys: SealKeys,
    /// The time after which an unused sign-in is removed.
    pub idle: Duration,
}

const IDLE: Duration = Duration::from_hours(90 * 24);

/// The minimum of `idle`: a gateway marks its sign-ins as used several times in `idle`.
const SHORTEST_IDLE: Duration = Duration::from_hours(1);

/// The maximum of `idle`: the store counts milliseconds from 1970 on.
const LONGEST_IDLE: Duration = Duration::from_hours(3650 * 24);

table! {
    /// `credential = { login = … }`: the operator signs in once, for all callers of the upstream;
    /// `credential = { sign_in = … }`: each caller signs in.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Login(section, key) {
        /// Id of the upstream.
        field pub upstream: String = String::new();
        /// Scopes to ask for, separated by spaces. Not set: those that the upstream asks for.
        /// `offline_access` is added where the authorization server knows it.
        #[example = "read offline_access"]
        pub scope: Option<String> = section.given_text(key);
        /// A client that you have registered at the authorization server. Not set: the gateway
        /// introduces itself. See docs/credentials.md#client-registration.
        #[example = "gateway"]
        pub client_id: Option<String> = section.given_text(key);
        /// Resource of the token. Not set: that of the upstream's metadata; `""`: none.
        pub resource: Option<String> = section.optional_text(key);
        /// Secret of that client.
        pub client_secret: Option<Secret> = section.secret(key);
        /// `None` only in a configuration with mistakes.
        field pub kept: Option<Arc<Logins>> = None;
        /// URL of the page at which callers sign in; `None` for the operator.
        field pub page: Option<String> = None;
        /// URL of the document about the gateway as a client, for callers.
        field pub document: Option<String> = None;
    }
}

pub(crate) fn login(mut section: Section<'_>) -> Login {
    let login = Login::read_keys(&mut section);
    if login.client_secret.is_some() && login.client_id.is_none() {
        section.mistake("client_secret", "needs client_id: it is the secret of that client");
    }
    section.finish();
    login
}

table! {
    /// `[accounts]`: what callers may have at upstreams that are called as the caller: each an
    /// access token and the connections that are opened with it. Beyond a bound, the one that was
    /// used least recently is ended.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct AccountLimits(section, key, base: Self) -> Default {
        /// Accounts of one caller, at upstreams with `act_as = "caller"` or `per_caller`. Beyond it
        /// the one that was used least recently ends once its calls have ended.
        pub per_caller: usize [100] = section.count(key, base.per_caller, 1..=10_000);
        /// Accounts of all callers, at least `per_caller`. Beyond it as there.
        pub max: usize [100_000] = section.count(key, base.max, 1..=10_000_000);
    }
}

/// The keys of `[logins]`.
const KEYS: &str = r#"
path = "logins": Folder with the sealed files of the operator's sign-ins. Not used with a
    `cluster.store`, which keeps them then. See docs/credentials.md#storage.
idle: Time without use after which a sign-in is forgotten, at most `"3650d"`.
"#;

/// Reads `[logins]`. `login` is an upstream that needs the folder, if there is one.
pub(crate) fn read(
    mut section: Section<'_>,
    keys: Option<&SealKeys>,
    login: Option<&UpstreamId>,
) -> Option<Arc<Logins>> {
    section.explain(KEYS);
    let path = section.file("path").unwrap_or_else(|| section.beside("logins"));
    let idle = section.duration("idle", IDLE, SHORTEST_IDLE);
    if idle > LONGEST_IDLE {
        section.mistake("idle", "must be at most \"3650d\"");
    }
    if let (None, Some(upstream)) = (keys, login)
        && !section.is_broken("server.seal_key")
    {
        section.mistake(
            "path",
            format!(
                "needs server.seal_key, because upstreams.{upstream}.credential is a sign-in: its tokens are kept sealed; \
                 create a key with `openssl rand -base64 32`"
            ),
        );
    }
    section.finish();
    keys.map(|keys| Arc::new(Logins { path, keys: keys.clone(), idle }))
}

/// Reads `[accounts]`.
pub(crate) fn accounts(mut section: Section<'_>) -> AccountLimits {
    let accounts = AccountLimits::read_keys(&mut section, AccountLimits::default());
    if accounts.max < accounts.per_caller {
        section.mistake("max", "must not be less than per_caller");
    }
    section.finish();
    accounts
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Config, TokenCredential, Transport, schema_check};

    const KEY: &str =
        "[server]\nseal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";

    fn parse(head: &str, login: &str) -> Result<Config, String> {
        let toml = format!(
            "{head}[upstreams.wiki]\ntransport = \"http\"\nurl = \"https://wiki.example/mcp\"\n\
             credential = {{ login = {{ {login} }} }}\n"
        );
        schema_check::parse("g", &toml, Path::new("/etc/g"), &[]).map_err(|e| e.to_string())
    }

    fn login(config: &Config) -> &Login {
        match &config.upstreams[0].transport {
            Transport::Http(http) => match &http.credentials.token {
                Some(TokenCredential::Login(login)) => login,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_login_needs_nothing_but_a_seal_key() {
        let config = parse(KEY, "").unwrap();
        let kept = login(&config).kept.clone().unwrap();
        assert_eq!(kept.path, Path::new("/etc/g/logins"));
        assert_eq!(login(&config).upstream, "wiki");
        let elsewhere = format!("{KEY}[logins]\npath = \"/var/logins\"\n");
        let config = parse(&elsewhere, "scope = \"a b\", client_id = \"c\"").unwrap();
        assert_eq!(login(&config).kept.clone().unwrap().path, Path::new("/var/logins"));
        assert_eq!(login(&config).scope.as_deref(), Some("a b"));
        let mistake = parse("", "").unwrap_err();
        assert!(mistake.contains("logins.path: needs server.seal_key"), "{mistake}");
        assert!(mistake.contains("upstreams.wiki"), "{mistake}");
        let secret = "client_secret = { value = \"hunter22\" }";
        assert!(parse(KEY, secret).unwrap_err().contains("needs client_id"));
        let debug = format!("{:?}", parse(KEY, &format!("client_id = \"c\", {secret}")).unwrap());
        assert!(!debug.contains("hunter22"));
    }

    #[test]
    fn callers_sign_in_at_a_page_that_their_browsers_reach() {
        let check = |server: &str| {
            let toml = format!(
                "{server}[upstreams.wiki]\ntransport = \"http\"\nurl = \"https://wiki.example/mcp\"\n\
                 act_as = \"caller\"\ncredential = {{ sign_in = {{}} }}\n"
            );
            schema_check::parse("g", &toml, Path::new("/etc/g"), &[]).map_err(|e| e.to_string())
        };
        let url = |url: &str| format!("{KEY}public_url = \"{url}\"\n");
        let config = check(&url("https://gate.example/mcp")).unwrap();
        let login = config.upstreams[0].caller_sign_in().unwrap();
        assert_eq!(login.page.as_deref(), Some("https://gate.example/mcp/sign_in"));
        assert!(login.kept.is_some() && check(&url("http://127.0.0.1:1/mcp")).is_ok());
        for server in [KEY, &url("http://gate.example/mcp")] {
            let mistake = check(server).unwrap_err();
            assert!(mistake.contains("sign_in: needs server.public_url"), "{mistake}");
        }
        let mistake = check("[server]\npublic_url = \"https://gate.example/mcp\"\n").unwrap_err();
        assert!(mistake.contains("needs server.seal_key"), "{mistake}");
    }

    #[test]
    fn the_idle_time_of_a_sign_in_has_bounds() {
        let idle = |text: &str| {
            let config = parse(&format!("{KEY}[logins]\nidle = \"{text}\"\n"), "");
            config.map(|config| config.logins.unwrap().idle)
        };
        assert_eq!(parse(KEY, "").unwrap().logins.unwrap().idle, Duration::from_secs(90 * 86_400));
        assert_eq!(idle("1h"), Ok(Duration::from_secs(3_600)));
        assert_eq!(idle("3650d"), Ok(Duration::from_secs(3_650 * 86_400)));
        for mistake in [idle("59m"), idle("3651d"), idle("forever")] {
            let mistake = mistake.unwrap_err();
            assert!(mistake.contains("logins.idle"), "{mistake}");
        }
    }

    #[test]
    fn tokens_are_not_sent_in_the_clear() {
        let plain = format!(
            "{KEY}[upstreams.a]\ntransport = \"http\"\nurl = \"http://wiki.example/mcp\"\n\
             credential = {{ login = {{}} }}\n"
        );
        let error = schema_check::parse("g", &plain, Path::new(""), &[]).unwrap_err().to_string();
        assert!(error.contains("upstreams.a.url: must be https"), "{error}");
    }
}

//! Calls of git: only with our configuration, within bounds, at allowed addresses, and with
//! passwords that only git receives.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;

use super::program::{GitCall, bounded};
use super::{GitSource, MAX_TEXT};
use base::platform::platform;
use config::{Git, Secret};
use domain::fault::UpstreamFaultKind as Kind;
use domain::text::percent;
use net::proxy::ProxyRoutes;

/// The variable of the trusted certificates, which overrides `http.sslCAInfo` of git's
/// configuration.
const CA_FILE: &str = "GIT_SSL_CAINFO";

/// Variables that git inherits: for the ssh agent, certificates and temporary files.
const INHERITED: [&str; 6] =
    ["SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", CA_FILE, "TMPDIR", "SYSTEMROOT"];

/// Ignores the configuration of user and system, asks no questions, ignores replace refs.
pub const SET: [(&str, &str); 9] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_SSH_COMMAND", "ssh -oBatchMode=yes -oControlMaster=no -oStrictHostKeyChecking=yes"),
    ("LC_ALL", "C"),
];

/// The configuration of all calls. Signatures are ssh signatures: the other programs do not exist,
/// so that the keys of the gateway's user prove nothing.
const CONFIGURED: [(&str, &str); 15] = [
    ("core.hooksPath", "/dev/null"),
    ("core.attributesFile", "/dev/null"),
    ("core.fsmonitor", "false"),
    // The caches stay below the bound of the address space for any pack.
    ("core.deltaBaseCacheLimit", "32m"),
    ("core.packedGitLimit", "64m"),
    ("core.packedGitWindowSize", "16m"),
    ("credential.helper", ""),
    ("fetch.unpackLimit", "1"),
    ("gc.auto", "0"),
    ("http.followRedirects", "false"),
    ("gpg.format", "ssh"),
    ("gpg.minTrustLevel", "fully"),
    ("gpg.openpgp.program", "/nonexistent"),
    ("gpg.x509.program", "/nonexistent"),
    ("pack.threads", "1"),
];

/// Runs git with pipes that hold passwords: other processes of the user can read arguments and
/// environments. The first line of the input is for descriptor 4, the others for 3.
const WITH_PASSWORDS: &str = r#"exec 3<&0; IFS= read -r proxy <&3
printf 'password=%s\n' "$proxy" | { exec 4<&0 </dev/null; exec "$@"; }"#;

/// The credential helpers that read the passwords (gitcredentials(7)).
const SERVER_HELPER: &str = r#"!f() { test "$1" = get && cat <&3; }; f"#;
const PROXY_HELPER: &str = r#"!f() { test "$1" = get && cat <&4; }; f"#;

/// A key of git's configuration, and its value.
type Setting = (String, String);

impl GitSource {
    /// Returns a call of git on the bare repository.
    pub(super) fn call<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
        input: Vec<u8>,
        max_output: usize,
    ) -> GitCall<'_> {
        GitCall {
            folder: &self.git.state,
            script: cfg!(unix).then(|| bounded("exec \"$@\"")),
            arguments: arguments.into_iter().map(OsString::from).collect(),
            environment: self.environment(Vec::new()),
            input,
            max_output,
        }
    }

    /// Returns a call of git that contacts the remote.
    pub(super) async fn remote_call<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<GitCall<'_>, Kind> {
        let Git { url, user, password, authorization, .. } = &self.git;
        let mut call = self.call(arguments, Vec::new(), MAX_TEXT);
        let mut settings = Vec::new();
        let mut proxy_password = String::new();
        let proxy = self.proxy().map(|proxy| split_password(proxy.expose()));
        match &proxy {
            None => settings.extend(self.checked_addresses().await?),
            Some((url, Some(password))) => {
                settings.extend(helper(url, PROXY_HELPER));
                proxy_password.clone_from(password);
            }
            Some((_, None)) => {}
        }
        match authorization {
            Some(_) if cfg!(unix) => {
                settings.extend(helper(url, SERVER_HELPER));
                // Without a credential, git would ask for one.
                settings.push(("http.proactiveAuth".to_owned(), "basic".to_owned()));
            }
            Some(header) => {
                let header = format!("Authorization: {}", header.expose());
                settings.push(("http.extraHeader".to_owned(), header));
            }
            None => {}
        }
        call.environment = self.environment(settings);
        if let Some((url, _)) = proxy {
            call.environment.push((format!("{}_proxy", self.git.protocol()).into(), url.into()));
        }
        if cfg!(unix) && (password.is_some() || !proxy_password.is_empty()) {
            let password = password.as_ref().map_or("", |password| password.expose());
            let input = format!("{proxy_password}\nusername={user}\npassword={password}\n");
            call.script = Some(bounded(WITH_PASSWORDS));
            call.input = input.into_bytes();
        }
        Ok(call)
    }

    /// Returns the proxy for the server, as for other upstreams.
    fn proxy(&self) -> Option<&Secret> {
        let proxies = self.git.proxies.as_ref()?;
        let url = self.git.url.parse().ok().filter(|_| self.git.protocol().starts_with("http"))?;
        ProxyRoutes::new(proxies).way(&url)?;
        if self.git.protocol() == "https" { proxies.https.as_ref() } else { proxies.http.as_ref() }
    }

    /// Checks the server's addresses. Returns the setting that makes git connect to them.
    async fn checked_addresses(&self) -> Result<Option<Setting>, Kind> {
        let Some((host, port)) = self.git.server() else { return Ok(None) };
        let is_ssh = self.git.protocol() == "ssh";
        let found = match platform().network.resolve(host.trim_matches(['[', ']']), port).await {
            Ok(found) => found,
            // The ssh configuration may define a host of this name.
            Err(_) if is_ssh => return Ok(None),
            Err(error) => return Err(Kind::Unavailable(format!("{host} is not found: {error}"))),
        };
        let mut pinned = Vec::new();
        for address in found.iter().map(|address| address.ip()) {
            let checked = self.git.address_policy.check(address);
            checked.map_err(|error| Kind::Unavailable(error.to_string()))?;
            pinned.push(match address {
                IpAddr::V6(v6) => format!("[{v6}]"),
                IpAddr::V4(v4) => v4.to_string(),
            });
        }
        let pinned = format!("{host}:{port}:{}", pinned.join(","));
        // An IPv6 address in a URL is not a name.
        let is_pinned = !is_ssh && !host.starts_with('[');
        Ok(is_pinned.then(|| ("http.curloptResolve".to_owned(), pinned)))
    }

    /// Returns all variables of git, with further settings.
    fn environment(&self, more: Vec<Setting>) -> Vec<(OsString, OsString)> {
        let Git { state, ca, .. } = &self.git;
        let configured = CONFIGURED.iter().map(|(key, value)| ((*key).to_owned(), value.into()));
        let more = more.into_iter().map(|(key, value)| (key, OsString::from(value)));
        let mut configured: Vec<(String, OsString)> = configured.chain(more).collect();
        let signers = absolute(&state.join("signers"));
        configured.push(("gpg.ssh.allowedSignersFile".to_owned(), signers));
        let mut environment: Vec<(OsString, OsString)> = INHERITED
            .into_iter()
            .filter(|name| ca.is_none() || *name != CA_FILE)
            .filter_map(|name| Some((name.into(), std::env::var_os(name)?)))
            .chain(SET.map(|(name, value)| (name.into(), value.into())))
            .collect();
        let mut set = |name: &str, value: OsString| environment.push((name.into(), value));
        set("GIT_DIR", absolute(&self.repository()));
        set("HOME", absolute(state));
        if ca.is_some() {
            set(CA_FILE, absolute(&state.join("ca.pem")));
        }
        set("GIT_ALLOW_PROTOCOL", self.git.protocol().into());
        set("GIT_CONFIG_COUNT", configured.len().to_string().into());
        for (index, (key, value)) in configured.into_iter().enumerate() {
            set(&format!("GIT_CONFIG_KEY_{index}"), key.into());
            set(&format!("GIT_CONFIG_VALUE_{index}"), value);
        }
        environment
    }
}

/// Returns an absolute path, since git runs in the state folder.
fn absolute(path: &Path) -> OsString {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).into()
}

/// Splits the URL of a proxy into the URL without password, and the password.
fn split_password(url: &str) -> (String, Option<String>) {
    let split = || {
        let (scheme, rest) = url.split_once("://")?;
        let (pair, host) = rest.rsplit_once('@')?;
        let (user, password) = pair.split_once(':')?;
        Some((format!("{scheme}://{user}@{host}"), percent::decoded(password)))
    };
    split().unwrap_or_else(|| (url.to_owned(), None))
}

/// Returns the setting that gives a password only to the server of this URL.
fn helper(url: &str, helper: &str) -> Option<Setting> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split('/').next()?.rsplit('@').next()?;
    Some((format!("credential.{scheme}://{host}.helper"), helper.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_a_proxy_is_split_off_its_url_and_given_to_that_proxy_alone() {
        for (url, without, password) in [
            ("http://ada:p%40ss@proxy:3128/", "http://ada@proxy:3128/", Some("p@ss")),
            ("http://ada@proxy:3128", "http://ada@proxy:3128", None),
            ("http://proxy:3128", "http://proxy:3128", None),
        ] {
            let expected = (without.to_owned(), password.map(str::to_owned));
            assert_eq!(split_password(url), expected, "{url}");
        }
        let (key, _) = helper("http://ada@proxy:3128/", PROXY_HELPER).unwrap();
        assert_eq!(key, "credential.http://proxy:3128.helper");
    }
}

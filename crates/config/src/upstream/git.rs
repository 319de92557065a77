//! `transport = "git"`: a library in a git repository, which the `git` program fetches.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine};
use http::Uri;

use super::credential;
use super::webhook;
use crate::auth::jwt::is_https_or_loopback;
use crate::labels;
use crate::net::tls::certificate_authorities;
use crate::net::{Proxies, address_policy};
use crate::reader::Section;
use crate::reader::secret::Secret;
use domain::address_policy::AddressPolicy;

/// A git repository with the files of a library.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Git {
    /// Has a protocol of [`Git::protocol`], no password and no characters special to git.
    pub url: String,
    /// Name of a branch or a tag, or a full name below `refs/`. `None`: the remote's HEAD.
    pub reference: Option<String>,
    /// Folder of the library in the repository, with forward slashes; empty for all of it.
    pub path: String,
    /// The label, as in a [`Library`](crate::Library).
    pub label: String,
    /// Value of the header `Authorization` (RFC 7617), for http and https.
    pub authorization: Option<Secret>,
    /// The user in `authorization`.
    pub user: String,
    pub password: Option<Secret>,
    pub address_policy: AddressPolicy,
    /// Folder for the repository and the files of the commits that are served.
    pub state: PathBuf,
    /// Content of a file of allowed signers (ssh-keygen(1)). `None`: signatures are not checked.
    pub trusted_keys: Option<Arc<str>>,
    /// Certificates that are trusted instead of those of the system, in PEM.
    pub ca: Option<Arc<str>>,
    /// `None`: the repository is reached directly.
    pub proxies: Option<Proxies>,
    /// `None`: webhooks are refused.
    pub webhook_secret: Option<Secret>,
}

impl Git {
    /// Returns the protocol of the URL as git names it: `https`, `http`, `ssh` or `file`.
    pub fn protocol(&self) -> &'static str {
        protocol(&self.url).unwrap_or("https")
    }

    /// Returns the host and the port of the URL; `None` for a file.
    pub fn server(&self) -> Option<(&str, u16)> {
        server(&self.url)
    }
}

/// The default of `state`, which git upstreams and prompt stores share.
pub(super) const STATE: &str = "git";

const URL_RULE: &str = "\"https://host/repository.git\", \"ssh://git@host/repository.git\", \
                        \"git@host:repository.git\" or \"file:///path\"; without password and \
                        query, and http:// on loopback only";

const REF_RULE: &str =
    "a branch such as \"main\", a tag such as \"v1\", or a full name such as \"refs/tags/v1\"";

const PATH_RULE: &str = "a folder in the repository such as \"prompts\", without `.` and `..`";

/// Reads a git upstream. `state` is the folder of all git upstreams; see [`Git::state`].
pub(crate) fn read(section: &mut Section<'_>) -> Option<Git> {
    let url = section.required("url", URL_RULE, |text| protocol(text).map(|_| text.to_owned()));
    let reference = section.parsed("ref", REF_RULE, |text| is_ref(text).then(|| text.to_owned()));
    let path = section.parsed("path", PATH_RULE, folder_in_repository).unwrap_or_default();
    let label = labels::key(section);
    let credential = credential::git(section);
    let is_http = url.as_ref().is_none_or(|url| url.starts_with("http"));
    if credential.is_some() && !is_http {
        let message =
            "is sent over https only; ssh uses the keys of the user that runs the gateway";
        section.mistake("credential", message);
    }
    let state = section.file_or("state", STATE).unwrap_or_else(|| section.beside(STATE));
    let trusted_keys = trusted_keys(section);
    let ca = certificate_authorities(section);
    let proxies = section.flag("proxy", true).then(Proxies::default);
    let webhook_secret = webhook::incoming(section);
    let authorization = credential.as_ref().map(|(user, password)| {
        let pair = format!("{user}:{}", password.expose());
        Secret::new(format!("Basic {}", BASE64_STANDARD.encode(pair)))
    });
    let (user, password) =
        credential.map(|(user, password)| (user, Some(password))).unwrap_or_default();
    let host = url.as_deref().and_then(server).map(|(host, _)| host);
    let address_policy = address_policy(section, host);
    Some(Git {
        url: url?,
        reference,
        path,
        label,
        authorization,
        user,
        password,
        address_policy,
        state,
        trusted_keys,
        ca,
        proxies,
        webhook_secret,
    })
}

/// Reads the file in `trusted_keys`.
fn trusted_keys(section: &mut Section<'_>) -> Option<Arc<str>> {
    let path = section.file("trusted_keys")?;
    let file = path.display().to_string();
    let text = section.read_file(path).map_err(|error| format!("cannot read {file}: {error}"));
    let checked = text.and_then(|text| match first_wrong_line(&text) {
        None => Ok(Arc::from(text)),
        Some(0) => Err(format!("{file} has no key: {SIGNER}")),
        Some(line) => Err(format!("line {line} of {file} is no allowed signer: {SIGNER}")),
    });
    checked.map_err(|message| section.mistake("trusted_keys", message)).ok()
}

const SIGNER: &str = "write a line such as `ada@example.com ssh-ed25519 AAAA…` for each key";

/// Returns the first line without a key, counted from 1; 0 if the file has no key.
fn first_wrong_line(signers: &str) -> Option<usize> {
    let is_key = |word: &str| ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| word.starts_with(kind));
    let names_key = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.any(is_key) && words.next().is_some()
    };
    let lines = signers.lines().map(str::trim).enumerate();
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).peekable();
    if lines.peek().is_none() {
        return Some(0);
    }
    lines.find(|(_, line)| !names_key(line)).map(|(index, _)| index + 1)
}

/// Returns the protocol of a URL that git may fetch from. A URL that begins with a dash would be an
/// option, and `ext::` a command.
fn protocol(url: &str) -> Option<&'static str> {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "?#\\".contains(c);
    if url.starts_with('-') || url.contains(is_odd) {
        return None;
    }
    if let Some(path) = url.strip_prefix("file://") {
        return (path.len() > 1 && path.starts_with('/')).then_some("file");
    }
    if let Some(rest) = url.strip_prefix("ssh://") {
        let (authority, path) = rest.split_once('/')?;
        return (is_ssh_host(authority) && !path.is_empty()).then_some("ssh");
    }
    if url.contains("://") {
        let parsed: Uri = url.parse().ok()?;
        let is_plain = parsed.authority().is_some_and(|all| !all.as_str().contains('@'));
        let protocol = if parsed.scheme_str() == Some("https") { "https" } else { "http" };
        return (is_plain && is_https_or_loopback(&parsed)).then_some(protocol);
    }
    let (host, path) = url.split_once(':')?;
    // A host of one letter is a drive letter of Windows.
    let is_host = is_ssh_host(host) && host.len() > 1 && !host.contains('/');
    (is_host && !path.is_empty() && !path.starts_with([':', '-'])).then_some("ssh")
}

fn server(url: &str) -> Option<(&str, u16)> {
    let default = match protocol(url)? {
        "https" => 443,
        "http" => 80,
        "ssh" => 22,
        _ => return None,
    };
    let authority = match url.split_once("://") {
        Some((_, rest)) => rest.split('/').next()?,
        None => url.split(':').next()?,
    };
    let host = authority.rsplit('@').next()?;
    // An IPv6 address stands in brackets.
    let split = host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    let (host, port) = split.unwrap_or((host, ""));
    Some((host, port.parse().unwrap_or(default)))
}

/// Whether a text is `host`, `user@host` or `user@host:port`, and not an option of ssh.
fn is_ssh_host(authority: &str) -> bool {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("git", authority));
    let is_name = |text: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        !text.is_empty() && !text.starts_with('-') && text.chars().all(allowed)
    };
    let (host, port) = host.rsplit_once(':').unwrap_or((host, "22"));
    is_name(user) && is_name(host) && port.parse::<u16>().is_ok()
}

/// Whether git accepts a name only as a reference (git-check-ref-format(1)).
fn is_ref(name: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with(".lock");
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "~^:?*[\\".contains(c);
    let has_odd = name.contains(is_odd) || name.contains("..") || name.contains("@{");
    name.split('/').all(is_part) && !has_odd && !name.ends_with('.') && name != "@"
}

fn folder_in_repository(text: &str) -> Option<String> {
    let text = text.trim_end_matches('/');
    let is_normal = |part: Component<'_>| matches!(part, Component::Normal(_));
    let is_folder = Path::new(text).components().all(is_normal) && !text.contains(['\0', '\\']);
    // `Path` drops empty and `.` components.
    let is_spelled_out =
        text.is_empty() || !text.split('/').any(|part| part.is_empty() || part == ".");
    (is_folder && is_spelled_out).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema_check;
    use crate::{Config, ConfigError, Transport};

    fn parse(folder: &Path, keys: &str) -> Result<Config, ConfigError> {
        let toml = format!("[upstreams.team]\ntransport = \"git\"\n{keys}\n");
        schema_check::parse("test", &toml, folder, &[])
    }

    fn mistake(keys: &str) -> String {
        parse(Path::new("."), keys).unwrap_err().mistakes[0].message.clone()
    }

    #[test]
    fn only_urls_that_git_cannot_read_as_a_command_or_an_option_are_taken() {
        for (url, expected) in [
            ("https://git.example.com/team/prompts.git", Some("https")),
            ("http://127.0.0.1:8080/prompts.git", Some("http")),
            ("ssh://git@git.example.com:2222/prompts.git", Some("ssh")),
            ("git@git.example.com:team/prompts.git", Some("ssh")),
            ("git.example.com:prompts.git", Some("ssh")),
            ("file:///srv/prompts.git", Some("file")),
            ("http://git.example.com/prompts.git", None),
            ("https://ada:secret@git.example.com/prompts.git", None),
            ("https://git.example.com/p.git?token=x", None),
            ("ext::sh -c id", None),
            ("ext::id", None),
            ("fd::7", None),
            ("--upload-pack=id", None),
            ("-oProxyCommand=id:x", None),
            ("ssh://-oProxyCommand=id/x", None),
            ("ssh://git@-oProxyCommand/x", None),
            ("git://git.example.com/prompts.git", None),
            ("file://host/prompts.git", None),
            ("C:\\prompts", None),
            ("c:/prompts", None),
            ("prompts.git", None),
            ("/srv/prompts.git", None),
            ("", None),
        ] {
            assert_eq!(protocol(url), expected, "{url}");
        }
    }

    #[test]
    fn the_server_of_each_form_of_a_url_is_found_and_a_refused_address_is_a_mistake() {
        for (url, expected) in [
            ("https://git.example.com/p.git", Some(("git.example.com", 443))),
            ("https://git.example.com:/p.git", Some(("git.example.com", 443))),
            ("https://[fe80::1]:8443/p.git", Some(("[fe80::1]", 8443))),
            ("https://[fe80::1]/p.git", Some(("[fe80::1]", 443))),
            ("http://127.0.0.1:80/p.git", Some(("127.0.0.1", 80))),
            ("ssh://git@git.example.com:2222/p.git", Some(("git.example.com", 2222))),
            ("git@git.example.com:22/p.git", Some(("git.example.com", 22))),
            ("file:///srv/p.git", None),
        ] {
            assert_eq!(server(url), expected, "{url}");
        }
        for url in ["https://169.254.169.254/p.git", "git@169.254.169.254:p.git"] {
            let url = format!("url = \"{url}\"");
            assert!(mistake(&url).contains("is a link-local address"), "{url}");
        }
        let private = "url = \"ssh://10.0.0.1/p.git\"\n";
        assert!(parse(Path::new("."), private).is_ok());
        let mistake = mistake(&format!("{private}allow_private = false"));
        assert!(mistake.contains("is not a public address"), "{mistake}");
    }

    #[test]
    fn names_of_references_and_folders_are_checked() {
        for name in ["main", "v1.2", "team/x", "refs/heads/main"] {
            assert!(is_ref(name), "{name}");
        }
        for name in
            ["", "-x", "a..b", "a b", "a^", "a:b", "/a", "a/", "a//b", "x.lock", "@{1}", "@"]
        {
            assert!(!is_ref(name), "{name}");
        }
        assert_eq!(folder_in_repository("a/.b/").as_deref(), Some("a/.b"));
        assert_eq!(folder_in_repository("").as_deref(), Some(""));
        for path in ["..", "a/../b", "/a", "./a", "a//b", "a\\b"] {
            assert_eq!(folder_in_repository(path), None, "{path}");
        }
    }

    #[test]
    fn a_git_upstream_has_a_folder_of_its_own_and_a_secret_that_is_known_in_all_forms() {
        let keys = "url = \"https://git.example.com/p.git\"\nref = \"main\"\npath = \"lib\"\n\
                    credential = { password = { value = \"s3cret-token\" } }";
        let config = parse(Path::new("/etc/gate"), keys).unwrap();
        let Transport::Git(git) = &config.upstreams[0].transport else { panic!("not git") };
        assert_eq!(git.state, Path::new("/etc/gate/git/team"));
        assert_eq!((git.reference.as_deref(), git.path.as_str()), (Some("main"), "lib"));
        let pair = BASE64_STANDARD.encode("x-access-token:s3cret-token");
        let secrets = config.upstreams[0].secrets();
        assert!(secrets.contains(&pair) && secrets.contains(&"s3cret-token".to_owned()));
        assert!(!format!("{git:?}").contains("s3cret"), "{git:?}");
    }

    #[test]
    fn mistakes_say_what_is_allowed() {
        assert!(mistake("").starts_with("is required: \"https://host"), "{}", mistake(""));
        assert!(mistake("url = \"prompts\"").contains("git@host:repository.git"));
        let file = "url = \"file:///srv/p.git\"\n";
        assert!(mistake(&format!("{file}ref = \"a..b\"")).contains("a branch such as"));
        assert!(mistake(&format!("{file}path = \"../x\"")).contains("a folder in the repository"));
        let secret = "credential = { password = { value = \"x\" } }";
        assert!(mistake(&format!("{file}{secret}")).contains("over https only"));
        assert!(
            mistake(&format!("{file}credential = {{ user = \"x\" }}")).contains("a secret such")
        );
        assert!(mistake(&format!("{file}trusted_keys = \"nowhere\"")).contains("cannot read"));
    }

    #[test]
    fn a_file_of_signers_without_a_key_is_a_mistake() {
        let folder = tempfile::tempdir().unwrap();
        let keys = "url = \"file:///srv/p.git\"\ntrusted_keys = \"signers\"";
        let read = |text: &str| {
            std::fs::write(folder.path().join("signers"), text).unwrap();
            parse(folder.path(), keys).map_err(|error| error.mistakes[0].message.clone())
        };
        let good = "# team\nada@example.com namespaces=\"git\" ssh-ed25519 AAAA\n\n* sk-ssh-x AA\n";
        assert!(read(good).is_ok());
        assert!(read("# nobody\n").unwrap_err().contains("has no key"));
        assert!(read("ssh-ed25519 AAAA\n").unwrap_err().contains("line 1 of"), "no signer");
    }
}

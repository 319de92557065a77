//! `[admin]`: the admin API and the console.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::auth::jwt::{URL_RULE, url};
use super::net::Proxies;
use super::reader::secret::Secret;
use super::reader::{MILLISECOND, Section, optional, secs, table};
use base::seal;
use domain::approval::is_same_name;

table! {
    /// The admin API and the console.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Admin(section, key, proxies: &Proxies, local_tries: bool) {
        /// Address of the admin API, apart from `server.listen`. `""` disables it. If the key is
        /// not set and the port is taken, a free port is used, which the start prints and `status`
        /// finds. It is read at the start only, and not used with `serve --stdio`.
        #[default = "127.0.0.1:9877"]
        let listen: Option<Option<SocketAddr>> =
            section.parsed(key, LISTEN_RULE, |text| optional(text, |text| text.parse().ok()));
        /// Whether `listen` is the default: where its port is taken, another free port is used.
        field pub is_default: bool = listen.is_none();
        field pub listen: SocketAddr = listen.flatten().unwrap_or(DEFAULT_LISTEN);
        /// A secret, sent as `Authorization: Bearer TOKEN` or typed into the sign-in page of the
        /// console. Required beyond loopback, and with `write` and `try_as`. Sessions that began
        /// with it end when it changes.
        let token: Option<Secret> = section.secret(key);
        /// Whether the file says that there is no token: `token = {}`.
        field pub is_open_by_choice: bool = section.was_read("token") && token.is_none();
        /// Tokens of people or programs, each by its name: `tokens.ada = { env = "ADA_TOKEN" }`.
        /// The sender of one is that approver, so that `approvals.approvers = 2` knows two apart.
        /// Needs `token`.
        // SHA-256 of each.
        pub tokens: BTreeMap<String, [u8; 32]> = read_tokens(section, token.as_ref());
        /// SHA-256 of the bearer token; always set beyond loopback.
        field pub token: Option<[u8; 32]> = token.as_ref().map(digest);
        /// `true` accepts decisions on prompts, the end of accounts, and reloads. Needs `token`:
        /// who has it can approve prompts.
        pub write: bool = section.flag(key, false);
        /// `false` serves no pages for people. The API stays.
        pub console: bool = section.flag(key, true);
        /// `true` lets testers try prompts with the rights of other callers and groups. Needs
        /// `token`. See docs/console.md#trying-prompts.
        pub try_as: bool = section.flag(key, false);
        /// Time that a browser stays signed in. See docs/console.md#sessions-and-cookies.
        pub session: Duration = section.duration(key, secs(8 * 3600), MILLISECOND);
        /// Whether visitors without a sign-in may try prompts: all clients may get all of them.
        /// They decide nothing.
        field pub local_tries: bool = local_tries;
        /// Time for making one page or document, without the upstream of a prompt that is tried.
        /// Beyond it: 503.
        pub render_timeout: Duration = section.duration(key, secs(2), MILLISECOND);
        /// Most rows of one page or document.
        pub page_rows: usize = section.count(key, 1000, 1..=100_000);
        /// The index of what was used. See docs/usage.md.
        pub usage: Usage = Usage::read_table(section.section(key));
        /// Sign-in of people at an OpenID provider. See docs/console.md#at-an-openid-provider.
        pub oidc: Option<Oidc> = read_oidc(section.section(key), proxies);
    }
}

table! {
    /// The usage index.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Usage(section, key) {
        /// Folder of the index, which is counted from the audit log. `""`, or no audit log: the
        /// gateway shows no usage.
        pub path: Option<PathBuf> = usage_path(section);
        /// Age at which days of the index are removed.
        pub keep: Duration = section.duration(key, 400 * DAY, DAY);
        /// Size of the index. Beyond it the oldest days are removed.
        pub size: u64 = section.size(key, 256 << 20, 1 << 20..=1 << 40) as u64;
    }
}

table! {
    /// Sign-in of people at an OpenID provider.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Oidc(section, key, proxies: &Proxies) -> Option {
        /// `issuer` of the provider's metadata and `iss` of its ID tokens. A slash at the end of a
        /// host does not count. `""`: people sign in with the token.
        #[default = ""] #[example = "https://id.example.com"]
        required pub issuer: String = issuer(section, key);
        /// Id of the console at the provider. Required with `issuer`.
        pub client_id: String = section.text(key, "");
        /// Secret of the console at the provider, sent as its metadata says. Not set: a public
        /// client, which PKCE alone protects.
        pub client_secret: Option<Secret> = section.secret(key);
        /// Claim of the ID token with the groups of the person: a list of texts, or one text.
        pub groups_claim: String = section.text(key, "groups");
        /// Groups whose members may look. At least one group in all three lists.
        #[default = []]
        pub viewers: Vec<String> = section.texts(key);
        /// Groups whose members may try prompts, too.
        #[default = []]
        pub testers: Vec<String> = section.texts(key);
        /// Groups whose members may decide on prompts, too, with `admin.write`.
        #[default = []]
        pub approvers: Vec<String> = section.texts(key);
        field pub proxies: Proxies = proxies.clone();
    }
}

impl Admin {
    /// Returns the mistake in `admin.token` if the API would be reachable beyond loopback without a
    /// token.
    pub fn exposure(&self) -> Option<&'static str> {
        let is_open = self.token.is_none() && !self.listen.ip().is_loopback();
        is_open.then_some(
            "is required beyond loopback: set it to a secret, or set admin.listen to a loopback address",
        )
    }
}

/// Address of the admin API if the file names no address: not the port of Prometheus.
pub(super) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9877);

/// The values of `listen`, for mistakes.
pub(super) const LISTEN_RULE: &str =
    "\"\" or an IP address with a port, such as \"127.0.0.1:9877\"";

/// A day.
const DAY: Duration = secs(86_400);

/// Returns `None` if `listen` is `""`. `local_tries` is [`Admin::local_tries`].
pub(super) fn read(
    mut section: Section<'_>,
    proxies: &Proxies,
    local_tries: bool,
) -> Option<Admin> {
    let is_disabled = section.unread_text("listen").is_some_and(|text| text.is_empty());
    let admin = Admin::read_keys(&mut section, proxies, local_tries);
    if !is_disabled && admin.token == Some(seal::sha256(b"")) {
        let why = "is empty; set a secret, or write token = {} for no token";
        section.mistake("token", why.to_owned());
    }
    let is_token_rejected = section.is_rejected("token");
    for (key, is_set, what) in
        [("write", admin.write, "decide"), ("try_as", admin.try_as, "use prompts as somebody else")]
    {
        if is_set && admin.token.is_none() && !is_token_rejected {
            let why = format!(
                "needs admin.token, so that not everyone who reaches the address can {what}"
            );
            section.mistake(key, why);
        }
    }
    if let Some(message) = admin.exposure().filter(|_| !is_disabled && !is_token_rejected) {
        section.mistake("token", message);
    }
    section.finish();
    (!is_disabled).then_some(admin)
}

fn digest(token: &Secret) -> [u8; 32] {
    seal::sha256(token.expose().as_bytes())
}

/// Names that records use for visitors without a name.
const NAMELESS: [&str; 3] = ["token", "local", "admin"];

/// Longest name of a token, in bytes.
const MAX_NAME: usize = 64;

/// Reads the tokens with names. Two names of one token would be one person with two votes.
fn read_tokens(section: &mut Section<'_>, shared: Option<&Secret>) -> BTreeMap<String, [u8; 32]> {
    let named = section.section("tokens").secrets();
    if !named.is_empty() && shared.is_none() && !section.is_rejected("token") {
        section.mistake("tokens", "needs admin.token");
    }
    let mut seen: Vec<[u8; 32]> = shared.map(digest).into_iter().collect();
    let mut tokens = BTreeMap::<String, [u8; 32]>::new();
    for (name, token) in named {
        let key = format!("tokens.{name}");
        let token = digest(&token);
        let is_taken = |other: &str| is_same_name(other, &name);
        if name.trim() != name || !(1..=MAX_NAME).contains(&name.len()) {
            section.mistake(&key, format!("must be a name of 1 to {MAX_NAME} bytes"));
        } else if NAMELESS.into_iter().chain(tokens.keys().map(String::as_str)).any(is_taken) {
            section.mistake(&key, "is the name of another visitor; give another name");
        } else if token == seal::sha256(b"") || seen.contains(&token) {
            section.mistake(&key, "is empty or the token of another name; set a token of its own");
        } else {
            seen.push(token);
            tokens.insert(name, token);
        }
    }
    tokens
}

/// Reads the folder of the usage index; `None` if the index is disabled.
pub(super) fn usage_path(section: &mut Section<'_>) -> Option<PathBuf> {
    section.file_or("path", "usage")
}

fn issuer(section: &mut Section<'_>, key: &'static str) -> Option<String> {
    let rule = format!("\"\" or {URL_RULE}");
    let url = |text: &str| url(text).map(|_| text.to_owned());
    section.parsed(key, &rule, |text| optional(text, url)).flatten()
}

/// Returns `None` if `issuer` is `""`.
fn read_oidc(mut section: Section<'_>, proxies: &Proxies) -> Option<Oidc> {
    let oidc = Oidc::read_keys(&mut section, proxies);
    if let Some(Oidc { client_id, viewers, testers, approvers, .. }) = &oidc {
        if client_id.is_empty() {
            section.mistake("client_id", "must be the id of the console at the OpenID provider");
        }
        if viewers.is_empty() && testers.is_empty() && approvers.is_empty() {
            let why = "is empty, like testers and approvers: no one could sign in; name a group";
            section.mistake("viewers", why);
        }
    }
    section.finish();
    oidc
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::schema_check;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn k7_an_admin_listener_beyond_loopback_needs_a_token() {
        let parse = |text: &str| schema_check::parse("g", text, Path::new(""), &[]);
        let default = parse("").unwrap().admin.unwrap();
        assert_eq!((default.listen.to_string().as_str(), default.token), ("127.0.0.1:9877", None));
        assert_eq!(parse("[admin]\nlisten = \"\"\n").unwrap().admin, None);
        let open = "[admin]\nlisten = \"0.0.0.0:9877\"\n";
        assert!(parse(open).unwrap_err().to_string().contains("admin.token: is required"));
        // The file of the secret may have been truncated; on loopback, too, a proxy may be in
        // front.
        let emptied = parse("[admin]\ntoken = { value = \"\" }\n").unwrap_err().to_string();
        assert!(emptied.contains("admin.token: is empty"), "{emptied}");
        assert_eq!(
            parse("[admin]\nlisten = \"\"\ntoken = { value = \"\" }\n").unwrap().admin,
            None
        );
        assert_eq!(parse("[admin]\ntoken = {}\n").unwrap().admin.unwrap().token, None);
        let writable = "[admin]\nwrite = true\n";
        assert!(
            parse(writable).unwrap_err().to_string().contains("admin.write: needs admin.token")
        );
        let with_token = format!("{writable}token = {{ value = \"t\" }}\n");
        assert!(parse(&with_token).unwrap().admin.unwrap().write);
        let with_token = format!("{open}token = {{ value = \"t0ken\" }}\n");
        let admin = parse(&with_token).unwrap().admin.unwrap();
        assert!(!format!("{admin:?}").contains("t0ken"));
    }

    #[test]
    fn each_token_with_a_name_is_of_one_approver() {
        let parse = |text: &str| {
            let text = format!("[admin]\ntoken = {{ value = \"t\" }}\n[admin.tokens]\n{text}");
            schema_check::parse("g", &text, Path::new(""), &[])
        };
        let tokens = parse("ada = \"a\"\nbob = { value = \"b\" }\n").unwrap().admin.unwrap().tokens;
        assert_eq!(tokens.keys().collect::<Vec<_>>(), ["ada", "bob"]);
        for (text, expected) in [
            ("ada = \"a\"\nbob = \"a\"\n", "admin.tokens.bob: is empty or the token of another"),
            ("ada = \"t\"\n", "admin.tokens.ada: is empty or the token of another"),
            ("ada = \"\"\n", "admin.tokens.ada: is empty"),
            ("ada = \"a\"\nADA = \"b\"\n", "admin.tokens.ada: is the name of another visitor"),
            ("token = \"a\"\n", "admin.tokens.token: is the name of another visitor"),
            ("\" ada\" = \"a\"\n", "must be a name of 1 to 64 bytes"),
        ] {
            let mistake = parse(text).unwrap_err().to_string();
            assert!(mistake.contains(expected), "{text}: {mistake}");
        }
        let alone = "[admin.tokens]\nada = \"a\"\n";
        let alone = schema_check::parse("g", alone, Path::new(""), &[]).unwrap_err().to_string();
        assert!(alone.contains("admin.tokens: needs admin.token"), "{alone}");
    }

    #[test]
    fn the_console_has_documented_defaults_and_bounds() {
        let parse = |text: &str| schema_check::parse("g", text, Path::new("conf"), &[]);
        let admin = |text: &str| parse(text).unwrap().admin.unwrap();
        let mistake = |text: &str| parse(text).unwrap_err().to_string();
        let default = admin("");
        assert!(default.console && !default.try_as && default.oidc.is_none());
        assert_eq!((default.session, default.render_timeout), (secs(28_800), secs(2)));
        assert_eq!(default.page_rows, 1000);
        let usage = Usage { path: Some("conf/usage".into()), keep: 400 * DAY, size: 256 << 20 };
        assert_eq!(default.usage, usage);
        assert_eq!(admin("[admin.usage]\npath = \"\"\n").usage.path, None);
        assert_eq!(admin("[admin]\npage_rows = 1\n").page_rows, 1);
        assert!(mistake("[admin]\npage_rows = 0\n").contains("admin.page_rows"));
        assert!(mistake("[admin.usage]\nsize = \"1023KiB\"\n").contains("admin.usage.size"));
        assert!(mistake("[admin.usage]\nkeep = \"23h\"\n").contains("admin.usage.keep"));
        assert!(mistake("[admin]\ntry_as = true\n").contains("admin.try_as: needs admin.token"));
    }

    #[test]
    fn sign_in_needs_a_client_and_a_group() {
        let parse = |text: &str| {
            let text = format!("[admin.oidc]\nissuer = \"https://id.example\"\n{text}");
            schema_check::parse("g", &text, Path::new(""), &[])
        };
        let mistake = |text: &str| parse(text).unwrap_err().to_string();
        let nobody = mistake("client_id = \"console\"\n");
        assert!(nobody.contains("admin.oidc.viewers: is empty"), "{nobody}");
        assert!(mistake("viewers = [\"staff\"]\n").contains("admin.oidc.client_id"));
        let oidc = parse("client_id = \"console\"\napprovers = [\"leads\"]\n").unwrap();
        let oidc = oidc.admin.unwrap().oidc.unwrap();
        assert_eq!((oidc.groups_claim.as_str(), oidc.client_secret), ("groups", None));
        let off = "[admin.oidc]\nissuer = \"\"\n";
        let off = schema_check::parse("g", off, Path::new(""), &[]).unwrap();
        assert_eq!(off.admin.unwrap().oidc, None);
        let plain = "[admin.oidc]\nissuer = \"http://id.example\"\n";
        let plain = schema_check::parse("g", plain, Path::new(""), &[]).unwrap_err().to_string();
        assert!(plain.contains("admin.oidc.issuer"), "{plain}");
    }
}

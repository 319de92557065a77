//! `[net]`: the proxies of a company network.

pub(crate) mod tls;

use http::Uri;

use crate::reader::Section;
use crate::reader::secret::Secret;
use crate::{environment, lookup};
use domain::address_policy::AddressPolicy;

/// The HTTP proxies for servers, except at loopback addresses. A proxy URL may contain a user and a
/// password.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Proxies {
    /// The proxy for `http` URLs; `None`: direct connections.
    pub http: Option<Secret>,
    /// The proxy for `https` URLs; `None`: direct connections.
    pub https: Option<Secret>,
    /// Hosts with direct connections, separated by commas: names with all names below them, IP
    /// addresses, networks, `*`.
    pub direct: String,
}

/// Reads the addresses that an upstream may have. `host` is the host of its URL.
pub(crate) fn address_policy(section: &mut Section<'_>, host: Option<&str>) -> AddressPolicy {
    let policy = if section.flag("allow_private", true) {
        AddressPolicy::NotLinkLocal
    } else {
        AddressPolicy::PublicOnly
    };
    if let Some(Err(error)) = host.map(|host| policy.check_host(host)) {
        section.mistake("url", error.to_string());
    }
    policy
}

impl Proxies {
    /// Returns the proxies in the environment of this process, for commands without a
    /// configuration. Invalid proxies are left out.
    pub fn of_environment() -> Self {
        let env = environment();
        let lookup = lookup(&env);
        let proxy = |name| variable(name, &lookup).filter(|url| is_proxy(url)).map(Secret::new);
        Self { http: proxy(HTTP), https: proxy(HTTPS), direct: direct(&lookup) }
    }
}

/// The variables of proxies and exceptions; each is also read in lower case.
const HTTP: &str = "HTTP_PROXY";
const HTTPS: &str = "HTTPS_PROXY";
const DIRECT: &str = "NO_PROXY";

/// The keys of `[net]`.
const KEYS: &str = r#"
proxy, such as "http://proxy.example.com:3128": HTTP proxy for upstreams, identity providers,
    collectors and webhooks: a URL with `http` or `https`, with a user and a password where the proxy demands
    them, or a secret that holds it. Not set: the variables `HTTPS_PROXY` and `HTTP_PROXY`. `""`
    calls all directly. Loopback addresses and hosts in `NO_PROXY` always are. See
    docs/proxies.md#the-way-out.
"#;

/// The form of a proxy, for mistakes.
const RULE: &str = "the URL of an HTTP proxy, such as \"http://proxy.example.com:3128\" or \
                    \"http://user:password@proxy.example.com:3128\", with special characters of the \
                    password as in a URL (%40 for @)";

pub(crate) fn read(mut section: Section<'_>) -> Proxies {
    section.explain(KEYS);
    let configured = section.text_or_secret("proxy");
    let lookup = |name: &str| section.variable(name);
    let direct = direct(lookup);
    let [http, https] = match configured {
        Some(proxy) if proxy.expose().is_empty() => [None, None],
        Some(proxy) => {
            if !(proxy.expose().contains("://") && is_proxy(proxy.expose())) {
                section.mistake("proxy", format!("must be \"\" or {RULE}"));
            }
            [Some(proxy.clone()), Some(proxy)]
        }
        None => [HTTP, HTTPS].map(|name| {
            let proxy = variable(name, lookup)?;
            if !is_proxy(&proxy) {
                let message = format!(
                    "is not set, and the variable {name} is not {RULE}; correct it, or set net.proxy"
                );
                section.mistake("proxy", message);
            }
            Some(Secret::new(proxy))
        }),
    };
    section.finish();
    Proxies { http, https, direct }
}

/// Returns the value of a variable, or of its name in lower case; `None` if it is empty.
fn variable(name: &str, lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    let value = lookup(name).or_else(|| lookup(&name.to_lowercase()));
    value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Reads the hosts with direct connections. Some programs separate them by blanks, and write
/// `*.example.com` for all names below `example.com`.
fn direct(lookup: impl Fn(&str) -> Option<String>) -> String {
    let hosts = variable(DIRECT, lookup).unwrap_or_default();
    let hosts = hosts.split([',', ' ']).filter(|host| !host.is_empty());
    hosts.map(|host| host.strip_prefix("*.").unwrap_or(host)).collect::<Vec<_>>().join(",")
}

/// Whether a text is a proxy. A text without a scheme means `http`, as other programs read these
/// variables.
fn is_proxy(text: &str) -> bool {
    // Parsing drops the part after `#`, which may be most of a password.
    let url: Option<Uri> = text.parse().ok().filter(|_| !text.contains('#'));
    url.is_some_and(|url| {
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let host = url.host().unwrap_or_default();
        let place = authority.rsplit('@').next();
        let port = place.and_then(|place| place.strip_prefix(host)).unwrap_or_default();
        matches!(url.scheme_str(), None | Some("http" | "https"))
            && !host.is_empty()
            && (port.is_empty() || url.port_u16().is_some())
            && matches!(url.path(), "" | "/")
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::schema_check;

    fn proxies(toml: &str, env: &[(&str, &str)]) -> Result<Proxies, String> {
        let env: Vec<_> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let toml = format!(
            "{toml}\n[upstreams.a]\ntransport = \"http\"\nurl = \"https://a.example/mcp\"\n\
             [upstreams.b]\ntransport = \"http\"\nurl = \"https://b.example/mcp\"\nproxy = false\n"
        );
        let config = schema_check::parse("g", &toml, Path::new(""), &env);
        let config = config.map_err(|error| error.to_string())?;
        let of = |index: usize| config.upstreams[index].http().unwrap().proxies.clone();
        assert_eq!(of(1), None, "switched off for this upstream");
        assert_eq!(of(0).as_ref(), Some(&config.telemetry.proxies));
        Ok(of(0).unwrap())
    }

    fn shown(proxy: &Option<Secret>) -> &str {
        proxy.as_ref().map_or("-", Secret::expose)
    }

    #[test]
    fn the_file_comes_before_the_variables_and_these_may_be_in_lower_case() {
        let env =
            [("HTTPS_PROXY", " http://p:1 "), ("http_proxy", "p2:2"), ("no_proxy", "a, *.b c")];
        let found = proxies("", &env).unwrap();
        assert_eq!((shown(&found.https), shown(&found.http)), ("http://p:1", "p2:2"));
        assert_eq!(found.direct, "a,b,c");
        let found = proxies("[net]\nproxy = \"https://own:3\"", &env).unwrap();
        assert_eq!((shown(&found.https), shown(&found.http)), ("https://own:3", "https://own:3"));
        let found = proxies("[net]\nproxy = \"\"", &env).unwrap();
        assert_eq!((shown(&found.https), shown(&found.http)), ("-", "-"));
        let secret = [("P", "http://u:pw@p:1")];
        let found = proxies("[net]\nproxy = { env = \"P\" }", &secret).unwrap();
        assert_eq!(shown(&found.https), "http://u:pw@p:1");
    }

    #[test]
    fn k5_a_proxy_that_cannot_be_used_is_reported_without_its_password() {
        for (toml, env) in [
            ("[net]\nproxy = \"u:hunter2@p:1\"", [("X", "")]),
            ("[net]\nproxy = \"socks5://u:hunter2@p:1\"", [("X", "")]),
            ("[net]\nproxy = \"http://u:1/hunter2@p:1\"", [("X", "")]),
            ("", [("HTTPS_PROXY", "socks5://u:hunter2@p:1")]),
            ("", [("https_proxy", "http://u:hunter2#@p:1")]),
            ("", [("https_proxy", "http://u:hunter2/@p:1")]),
            ("", [("https_proxy", "u:hunter2")]),
        ] {
            let mistake = proxies(toml, &env).unwrap_err();
            assert!(mistake.contains("net.proxy: "), "{mistake}");
            assert!(mistake.contains("the URL of an HTTP proxy"), "{mistake}");
            assert!(!mistake.contains("hunter2"), "{mistake}");
        }
    }

    #[test]
    fn k5_the_password_of_a_proxy_is_not_among_the_settings() {
        let toml = "[net]\nproxy = \"http://u:hunter2@p:1\"\n";
        let config = schema_check::parse("g", toml, Path::new(""), &[]).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        let setting = config.settings.iter().find(|setting| setting.key == "net.proxy").unwrap();
        assert_eq!(setting.value, "http://(hidden)@p:1");
    }
}

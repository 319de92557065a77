//! `[cluster]`: the store that the replicas of one gateway share, a Redis or Valkey server.

use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::Secret;
use super::reader::{MILLISECOND, Section};
use super::tls::certificate_authorities;

/// How this replica works together with the others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cluster {
    /// The servers to ask for the store, in the order of the file; at least one. Each may be the
    /// store itself, a Sentinel, or a node of a Cluster; its answer to `HELLO` names its kind.
    pub servers: Vec<StoreServer>,
    /// `None`: no credential is sent.
    pub credential: Option<StoreCredential>,
    /// Certificates (PEM) that are trusted in addition to those of the system.
    pub ca: Option<Arc<str>>,
    /// The beginning of all keys and channels.
    pub prefix: String,
    /// Longest time of one operation.
    pub timeout: Duration,
    pub on_missing: OnMissing,
    pub on_failure: OnStoreFailure,
    pub limits: SharedLimits,
    /// Largest message for another replica, in bytes.
    pub relay_size: usize,
    /// The name of this replica; `None`: the host name and a random part.
    pub replica: Option<String>,
}

/// One address of `cluster.store`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoreServer {
    pub host: String,
    pub port: u16,
    /// `rediss://`
    pub is_tls: bool,
    /// The number of the database.
    pub database: i64,
    /// The master's name, if the server is a Sentinel that watches several (`?master=NAME`).
    pub master: Option<String>,
}

/// `cluster.username` and `cluster.password`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoreCredential {
    /// `None`: the user `default`.
    pub username: Option<String>,
    pub password: Secret,
}

/// The behaviour at the start when the store cannot be reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnMissing {
    /// The replica serves, and limits count what reaches it alone.
    Alone,
    /// The gateway does not start.
    Refuse,
}

/// The treatment of requests that a limit counts while the store cannot be reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnStoreFailure {
    /// Each replica counts for itself, with its share of the limit.
    Local,
    Refuse,
}

/// How the replicas count together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SharedLimits {
    /// The store counts each request.
    Exact,
    /// A replica takes cells ahead, which are valid for this long.
    Leased { lease: Duration },
}

const ADDRESS_RULE: &str = "the URL of a Redis or Valkey server, such as \"redis://10.0.0.7:6379\", or rediss:// \
    for TLS, without user and password; a list of them for Sentinel or Cluster";

const PREFIX_RULE: &str = "1 to 64 visible ASCII characters without { and }";

const NAME_RULE: &str = "\"\" or 1 to 64 visible ASCII characters";

/// The keys of `[cluster]`.
const KEYS: &str = r#"
store = "", such as "redis://10.0.0.7:6379": URL of a Redis or Valkey server, with `rediss` for TLS,
    or a list for Sentinel and Cluster. `""`: the replica stands alone. Needs `server.seal_key`.
username: User at the store. `""`: the user `default`.
password: Password at the store.
ca = "", such as "store-ca.pem": PEM file of certificates that are trusted beside those of the
    system.
prefix = "promptgate:": Begins all keys and channels. Gateways that share a server need different
    prefixes or databases.
timeout: Longest time of one operation. It must be longer than a round trip to the store.
on_missing: The store cannot be reached at the start: `alone` starts without it, `refuse` does not
    start.
on_failure: The store cannot be reached later: `local` counts with the share of this replica,
    `refuse` refuses requests that a limit counts after authentication (503 `cluster_unavailable`).
limits: `exact`: the store counts each request. `leased`: a replica takes a part ahead, for busy
    limits.
lease: With `leased`: time for which the part is valid.
relay_size: Largest message for another replica.
replica = "", such as "gate-1": Name of the replica in `status` and logs. `""`: the host name and a
    random part. Set it in the environment.
"#;

/// Returns `None` if `store` is `""`. `has_seal_key`: whether `server.seal_key` is configured.
pub(super) fn read(mut section: Section<'_>, has_seal_key: bool) -> Option<Cluster> {
    section.explain(KEYS);
    let urls = section.text_or_texts("store");
    let servers: Vec<_> =
        urls.iter().filter(|url| !url.is_empty()).map(|url| server(url)).collect();
    if servers.iter().any(Option::is_none) {
        section.mistake("store", format!("must be {ADDRESS_RULE}"));
    }
    let is_visible = |text: &str| {
        (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let is_prefix = |text: &str| is_visible(text) && !text.contains(['{', '}']);
    let prefix =
        section.parsed("prefix", PREFIX_RULE, |text| is_prefix(text).then(|| text.to_owned()));
    let name = |text: &str| (text.is_empty() || is_visible(text)).then(|| text.to_owned());
    let replica = section.parsed("replica", NAME_RULE, name);
    let on_missing = [("alone", OnMissing::Alone), ("refuse", OnMissing::Refuse)];
    let on_failure = [("local", OnStoreFailure::Local), ("refuse", OnStoreFailure::Refuse)];
    let lease = section.duration("lease", Duration::from_millis(100), MILLISECOND);
    let limits = [("exact", SharedLimits::Exact), ("leased", SharedLimits::Leased { lease })];
    let cluster = Cluster {
        servers: servers.into_iter().flatten().collect(),
        credential: credential(&mut section),
        ca: certificate_authorities(&mut section),
        prefix: prefix.unwrap_or_else(|| "promptgate:".to_owned()),
        timeout: section.duration("timeout", Duration::from_millis(50), MILLISECOND),
        on_missing: section.choice("on_missing", OnMissing::Alone, &on_missing),
        on_failure: section.choice("on_failure", OnStoreFailure::Local, &on_failure),
        limits: section.choice("limits", SharedLimits::Exact, &limits),
        relay_size: section.size("relay_size", 1 << 20, 1 << 10..=16 << 20),
        replica: replica.filter(|name| !name.is_empty()),
    };
    let is_used = !cluster.servers.is_empty();
    if is_used && !has_seal_key {
        section.mistake(
            "store",
            "needs server.seal_key, the same for all replicas: they read each other's sessions and cursors; create \
             one with `openssl rand -base64 32`",
        );
    }
    section.finish();
    is_used.then_some(cluster)
}

fn credential(section: &mut Section<'_>) -> Option<StoreCredential> {
    let username = Some(section.text("username", "")).filter(|name| !name.is_empty());
    let password = section.secret("password").filter(|password| !password.expose().is_empty());
    if username.is_some() && password.is_none() && !section.is_rejected("password") {
        section.mistake("password", "is required with cluster.username: set it to a secret");
    }
    Some(StoreCredential { username, password: password? })
}

fn server(text: &str) -> Option<StoreServer> {
    let url = Url::parse(text).ok()?;
    let is_tls = match url.scheme() {
        "redis" => false,
        "rediss" => true,
        _ => return None,
    };
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return None;
    }
    let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let database = match url.path().trim_start_matches('/') {
        "" => 0,
        number => number.parse().ok().filter(|number| *number >= 0)?,
    };
    let mut master = None;
    for (name, value) in url.query_pairs() {
        match &*name {
            "master" if !value.is_empty() => master = Some(value.into_owned()),
            _ => return None,
        }
    }
    (!host.is_empty()).then(|| StoreServer {
        host,
        port: url.port().unwrap_or(6379),
        is_tls,
        database,
        master,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{ConfigError, schema_check};

    const KEY: &str =
        "[server]\nseal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";

    fn parse(cluster: &str) -> Result<Option<Cluster>, ConfigError> {
        let text = format!("{KEY}[cluster]\n{cluster}");
        schema_check::parse("g", &text, Path::new(""), &[]).map(|config| config.cluster)
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        assert_eq!(parse("").unwrap(), None);
        assert_eq!(parse("store = \"\"\n").unwrap(), None);
        let expected = Cluster {
            servers: vec![StoreServer {
                host: "10.0.0.7".to_owned(),
                port: 6379,
                is_tls: false,
                database: 0,
                master: None,
            }],
            credential: None,
            ca: None,
            prefix: "promptgate:".to_owned(),
            timeout: Duration::from_millis(50),
            on_missing: OnMissing::Alone,
            on_failure: OnStoreFailure::Local,
            limits: SharedLimits::Exact,
            relay_size: 1 << 20,
            replica: None,
        };
        assert_eq!(parse("store = \"redis://10.0.0.7\"\n").unwrap(), Some(expected));
    }

    #[test]
    fn several_servers_with_tls_database_and_master_are_read() {
        let text = "store = [\"rediss://a.example:26380/2?master=gate\", \"rediss://[::1]\"]\nlimits = \"leased\"\n\
                    lease = \"1s\"\nusername = \"gate\"\npassword = { value = \"s\" }\n";
        let cluster = parse(text).unwrap().unwrap();
        let [first, second] = &cluster.servers[..] else { panic!("{cluster:?}") };
        assert_eq!((first.host.as_str(), first.port, first.database), ("a.example", 26380, 2));
        assert_eq!((first.is_tls, first.master.as_deref()), (true, Some("gate")));
        assert_eq!((second.host.as_str(), second.port), ("::1", 6379));
        assert_eq!(cluster.limits, SharedLimits::Leased { lease: Duration::from_secs(1) });
        assert_eq!(cluster.credential.unwrap().username.as_deref(), Some("gate"));
    }

    #[test]
    fn mistakes_name_their_keys() {
        for (text, key) in [
            ("store = \"http://a\"\n", "cluster.store"),
            ("store = \"redis://user:secret@a\"\n", "cluster.store"),
            ("store = \"redis://a/x\"\n", "cluster.store"),
            ("store = [\"redis://a\", \"b\"]\n", "cluster.store"),
            ("store = \"redis://a\"\nusername = \"u\"\n", "cluster.password"),
            ("store = \"redis://a\"\nprefix = \"{x}\"\n", "cluster.prefix"),
            ("store = \"redis://a\"\nlease = \"0s\"\n", "cluster.lease"),
            ("store = \"redis://a\"\nrelay_size = \"1B\"\n", "cluster.relay_size"),
        ] {
            let mistakes = parse(text).unwrap_err().to_string();
            assert!(mistakes.contains(key), "{mistakes}");
        }
        let keyless =
            schema_check::parse("g", "[cluster]\nstore = \"redis://a\"\n", Path::new(""), &[]);
        let mistakes = keyless.unwrap_err().to_string();
        assert!(mistakes.contains("cluster.store: needs server.seal_key"), "{mistakes}");
    }
}

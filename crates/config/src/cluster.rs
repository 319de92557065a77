//! `[cluster]`: the store that the replicas of one gateway share, a Redis or Valkey server.

use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::Secret;
use super::net::tls::certificate_authorities;
use super::reader::{MILLISECOND, Section, optional, table};

table! {
    /// How this replica works together with the others.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Cluster(section, key) {
        /// URL of a Redis or Valkey server, with `rediss` for TLS, or a list for Sentinel and
        /// Cluster. `""`: the replica stands alone. Needs `server.seal_key`.
        #[default = ""] #[example = "redis://10.0.0.7:6379"]
        let store: Vec<String> = section.text_or_texts(key);
        /// The servers to ask for the store, in the order of the file; at least one. Each may be
        /// the store itself, a Sentinel, or a node of a Cluster; its answer to `HELLO` names its
        /// kind.
        field pub servers: Vec<StoreServer> = servers(section, &store);
        /// User at the store. `""`: the user `default`.
        let username: String = section.text(key, "");
        /// Password at the store.
        let password: Option<Secret> = section.secret(key);
        /// `None`: no credential is sent.
        field pub credential: Option<StoreCredential> = credential(section, username, password);
        /// PEM file of certificates that are trusted beside those of the system.
        #[default = ""] #[example = "store-ca.pem"]
        pub ca: Option<Arc<str>> = certificate_authorities(section);
        /// Begins all keys and channels. Gateways that share a server need different prefixes or
        /// databases.
        #[default = "promptgate:"]
        pub prefix: String =
            section.parsed(key, PREFIX_RULE, prefix).unwrap_or_else(|| "promptgate:".to_owned());
        /// Longest time of one operation. It must be longer than a round trip to the store.
        pub timeout: Duration = section.duration(key, Duration::from_millis(50), MILLISECOND);
        /// The store cannot be reached at the start: `alone` starts without it, `refuse` does not
        /// start.
        pub on_missing: OnMissing = section.choice(key, OnMissing::Alone, &ON_MISSING);
        /// The store cannot be reached later: `local` counts with the share of this replica,
        /// `refuse` refuses requests that a limit counts after authentication (503
        /// `cluster_unavailable`).
        pub on_failure: OnStoreFailure = section.choice(key, OnStoreFailure::Local, &ON_FAILURE);
        /// `exact`: the store counts each request. `leased`: a replica takes a part ahead, for busy
        /// limits.
        let limits: bool = section.choice(key, false, &[("exact", false), ("leased", true)]);
        /// With `leased`: time for which the part is valid.
        let lease: Duration = section.duration(key, Duration::from_millis(100), MILLISECOND);
        field pub limits: SharedLimits =
            if limits { SharedLimits::Leased { lease } } else { SharedLimits::Exact };
        /// Largest message for another replica.
        pub relay_size: usize = section.size(key, 1 << 20, 1 << 10..=16 << 20);
        /// Name of the replica in `status` and logs. `""`: the host name and a random part. Set it
        /// in the environment.
        #[default = ""] #[example = "gate-1"]
        pub replica: Option<String> =
            section.parsed(key, NAME_RULE, |text| optional(text, name)).flatten();
    }
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
    /// The replica serves, and limits count only the requests that reach this replica.
    Alone,
    /// The gateway does not start.
    Refuse,
}

/// The treatment of requests that a limit counts while the store cannot be reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnStoreFailure {
    /// Each replica counts separately, with its share of the limit.
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

const ON_MISSING: [(&str, OnMissing); 2] =
    [("alone", OnMissing::Alone), ("refuse", OnMissing::Refuse)];

const ON_FAILURE: [(&str, OnStoreFailure); 2] =
    [("local", OnStoreFailure::Local), ("refuse", OnStoreFailure::Refuse)];

const ADDRESS_RULE: &str = "the URL of a Redis or Valkey server, such as \"redis://10.0.0.7:6379\", or rediss:// \
    for TLS, without user and password; a list of them for Sentinel or Cluster";

const PREFIX_RULE: &str = "1 to 64 visible ASCII characters without { and }";

const NAME_RULE: &str = "\"\" or 1 to 64 visible ASCII characters";

/// Returns `None` if `store` is `""`. `has_seal_key`: whether `server.seal_key` is configured.
pub(super) fn read(mut section: Section<'_>, has_seal_key: bool) -> Option<Cluster> {
    let cluster = Cluster::read_keys(&mut section);
    let is_used = !cluster.servers.is_empty();
    if is_used && !has_seal_key && !section.is_broken("server.seal_key") {
        section.mistake(
            "store",
            "needs server.seal_key, the same for all replicas: they read each other's sessions and cursors; create \
             one with `openssl rand -base64 32`",
        );
    }
    section.finish();
    is_used.then_some(cluster)
}

fn servers(section: &mut Section<'_>, urls: &[String]) -> Vec<StoreServer> {
    let servers: Vec<_> =
        urls.iter().filter(|url| !url.is_empty()).map(|url| server(url)).collect();
    if servers.iter().any(Option::is_none) {
        section.mistake("store", format!("must be {ADDRESS_RULE}"));
    }
    servers.into_iter().flatten().collect()
}

fn credential(
    section: &Section<'_>,
    username: String,
    password: Option<Secret>,
) -> Option<StoreCredential> {
    let username = Some(username).filter(|name| !name.is_empty());
    let password = password.filter(|password| !password.expose().is_empty());
    if username.is_some() && password.is_none() && !section.is_rejected("password") {
        section.mistake("password", "is required with cluster.username: set it to a secret");
    }
    Some(StoreCredential { username, password: password? })
}

fn is_visible(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn prefix(text: &str) -> Option<String> {
    (is_visible(text) && !text.contains(['{', '}'])).then(|| text.to_owned())
}

fn name(text: &str) -> Option<String> {
    is_visible(text).then(|| text.to_owned())
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

//! Finds the server that holds the keys: the configured one itself, the master that a Sentinel
//! names, or the primary of a Cluster's shard.
//!
//! The features `sentinel` and `cluster-async` of the crate `redis` open TCP and TLS themselves
//! (`Client::open`), which neither [`base::platform::network`] nor the simulation could replace; a
//! connection of our own can be handed in for a Cluster only, through a hidden function. A
//! `ClusterConnection` also keeps a connection to each node and retries by itself, where one shard
//! has all keys, and each operation has one bound in time behind one circuit breaker.

use std::collections::HashMap;

use redis::{FromRedisValue, RedisError, Value, cmd};
use tokio::time::timeout;

use super::connect::{OPEN_TIMEOUT, Opened, StoreConnector};
use super::push::PushSender;
use config::{Cluster, StoreServer};

/// Why no server can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LocateError {
    #[error("{server}: {error}")]
    Server { server: String, error: RedisError },
    #[error("{server}: {what}")]
    Unusable { server: String, what: String },
}

/// The mode and role of a server, from its answer to `HELLO`.
struct Hello {
    mode: String,
    role: String,
}

/// Returns a connection to the server that holds `key`, with messages of channels to `pushes`. The
/// configured servers are asked in their order.
pub(super) async fn locate(
    connector: &StoreConnector,
    cluster: &Cluster,
    key: &str,
    pushes: &PushSender,
) -> Result<Opened, LocateError> {
    let mut result = Err(unusable("cluster.store", "names no server"));
    for server in &cluster.servers {
        let following = follow(connector, server, key, pushes);
        result = timeout(OPEN_TIMEOUT, following).await.unwrap_or_else(|_| {
            let what = format!("no answer within {} s", OPEN_TIMEOUT.as_secs());
            Err(unusable(&address(server), &what))
        });
        if result.is_ok() {
            return result;
        }
    }
    result
}

/// Asks one server, and follows its directions.
async fn follow(
    connector: &StoreConnector,
    server: &StoreServer,
    key: &str,
    pushes: &PushSender,
) -> Result<Opened, LocateError> {
    let asked = StoreServer { database: 0, ..server.clone() };
    let mut opened = open(connector, &asked, None).await?;
    let hello = hello(&asked, &mut opened).await?;
    let target = match hello.mode.as_str() {
        "sentinel" => master_of(&asked, &mut opened).await?,
        "cluster" => primary_of(&asked, &mut opened, key).await?,
        _ => server.clone(),
    };
    drop(opened);
    let target = StoreServer { database: server.database, ..target };
    let mut opened = open(connector, &target, Some(pushes.clone())).await?;
    match self::hello(&target, &mut opened).await?.role.as_str() {
        "master" => Ok(opened),
        _ => Err(unusable(&address(&target), "is a read-only replica of another server")),
    }
}

async fn open(
    connector: &StoreConnector,
    server: &StoreServer,
    pushes: Option<PushSender>,
) -> Result<Opened, LocateError> {
    connector.open(server, pushes).await.map_err(|error| failed(server, error))
}

async fn hello(server: &StoreServer, opened: &mut Opened) -> Result<Hello, LocateError> {
    let said = cmd("HELLO").query_async::<HashMap<String, Value>>(&mut opened.connection).await;
    let mut said = said.map_err(|error| failed(server, error))?;
    let mut text = |name| {
        let value = said.remove(name).and_then(|value| String::from_redis_value(value).ok());
        value.unwrap_or_default()
    };
    Ok(Hello { mode: text("mode"), role: text("role") })
}

/// Asks a Sentinel for the address of the master.
async fn master_of(server: &StoreServer, opened: &mut Opened) -> Result<StoreServer, LocateError> {
    let connection = &mut opened.connection;
    let name = match &server.master {
        Some(name) => name.clone(),
        None => {
            let masters = cmd("SENTINEL").arg("MASTERS").query_async(connection).await;
            let masters: Vec<HashMap<String, Value>> =
                masters.map_err(|error| failed(server, error))?;
            let names = masters.into_iter().filter_map(|mut master| master.remove("name"));
            let names: Vec<_> =
                names.filter_map(|name| String::from_redis_value(name).ok()).collect();
            match <[String; 1]>::try_from(names) {
                Ok([name]) => name,
                Err(names) => {
                    let what = format!(
                        "watches {} masters ({}): name one in cluster.store, as in \
                         redis://HOST:26379?master=NAME",
                        names.len(),
                        names.join(", ")
                    );
                    return Err(unusable(&address(server), &what));
                }
            }
        }
    };
    let mut question = cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(&name);
    let found = question.query_async::<Option<(String, u16)>>(connection).await;
    let found = found.map_err(|error| failed(server, error))?;
    let Some((host, port)) = found else {
        return Err(unusable(&address(server), &format!("watches no master {name:?}")));
    };
    Ok(StoreServer { host, port, ..server.clone() })
}

/// Asks a node of a Cluster for the primary of the shard that holds `key`.
async fn primary_of(
    server: &StoreServer,
    opened: &mut Opened,
    key: &str,
) -> Result<StoreServer, LocateError> {
    let connection = &mut opened.connection;
    let slot = cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async::<i64>(connection).await;
    let slot = slot.map_err(|error| failed(server, error))?;
    let ranges = cmd("CLUSTER").arg("SLOTS").query_async::<Vec<Vec<Value>>>(connection).await;
    let ranges = ranges.map_err(|error| failed(server, error))?;
    let primary = ranges.into_iter().find_map(|range| primary_in(range, slot));
    let Some((host, port)) = primary else {
        return Err(unusable(&address(server), "no node of the Cluster serves the shard"));
    };
    // A node that does not know its address names no host: the primary is then the queried host.
    let host = host.filter(|host| !matches!(host.as_str(), "" | "?"));
    let host = host.unwrap_or_else(|| server.host.clone());
    Ok(StoreServer { host, port, ..server.clone() })
}

/// Returns the primary of a range of `CLUSTER SLOTS` (first slot, last slot, primary, replicas …)
/// with this slot.
fn primary_in(range: Vec<Value>, slot: i64) -> Option<(Option<String>, u16)> {
    let mut parts = range.into_iter();
    let mut bound = || i64::from_redis_value(parts.next()?).ok();
    let first = bound()?;
    let last = bound()?;
    let Value::Array(primary) = parts.next()? else {
        return None;
    };
    let mut primary = primary.into_iter();
    let host = Option::<String>::from_redis_value(primary.next()?).ok()?;
    let port = u16::from_redis_value(primary.next()?).ok()?;
    (first..=last).contains(&slot).then_some((host, port))
}

fn address(server: &StoreServer) -> String {
    format!("{}:{}", server.host, server.port)
}

fn failed(server: &StoreServer, error: RedisError) -> LocateError {
    LocateError::Server { server: address(server), error }
}

fn unusable(server: &str, what: &str) -> LocateError {
    LocateError::Unusable { server: server.to_owned(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_of_a_slot_is_the_first_node_of_its_range() {
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port)]);
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range = |host| {
            vec![Value::Int(100), Value::Int(200), node(host, 7000), node(text("replica"), 7001)]
        };
        let found = |host, slot| primary_in(range(host), slot);
        assert_eq!(found(text("a"), 100), Some((Some("a".to_owned()), 7000)));
        assert_eq!(found(text("a"), 200), Some((Some("a".to_owned()), 7000)));
        assert_eq!(found(Value::Nil, 150), Some((None, 7000)));
        assert_eq!(found(text("a"), 99), None);
        assert_eq!(found(text("a"), 201), None);
    }
}

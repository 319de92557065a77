//! The status of one upstream, as the admin API and the console show it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use tokio::time::Instant;

use calls::UpstreamStatus;
use domain::fault::UpstreamFaultKind;
use domain::time::millis::whole_millis;

/// The transports of upstreams.
#[cfg(test)]
const TRANSPORTS: [&str; 8] =
    ["http", "sse", "stdio", "library", "git", "mlflow", "phoenix", "langfuse"];

/// The status of one upstream.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct UpstreamRow {
    /// Its id.
    pub upstream: String,
    #[cfg_attr(test, schemars(extend("enum" = TRANSPORTS)))]
    pub transport: &'static str,
    /// The commit that is served of a git repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// `stale`: the last walk of its list failed; the last good list is served. `per_caller`:
    /// callers have separate connections, and private lists.
    #[cfg_attr(test, schemars(extend("enum" = ["connecting", "up", "stale", "down", "per_caller"])))]
    pub state: &'static str,
    #[cfg_attr(test, schemars(extend("enum" = ["legacy", "modern", null])))]
    pub era: Option<&'static str>,
    /// The negotiated revision of MCP.
    pub revision: Option<&'static str>,
    /// Whether the upstream sends `list_changed`.
    pub list_changed: bool,
    /// Prompts of it that are served.
    pub listed: usize,
    /// Elements of its list that a mistake in them or in their names keeps from being served.
    pub left_out: usize,
    /// Prompts that are offered, and held back because they are not approved.
    pub held: usize,
    /// Prompts that wait for a decision.
    pub undecided: usize,
    /// How many prompts wait for approval, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<String>,
    pub last_hour: LastHour,
    pub in_flight: usize,
    pub waiting: usize,
    /// Open: all calls are refused.
    #[cfg_attr(test, schemars(extend("enum" = ["open", "closed"])))]
    pub breaker: &'static str,
    /// Seconds since which it cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_secs: Option<u64>,
    /// Milliseconds until the next attempt, while the breaker is open or the upstream is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_ms: Option<u64>,
    /// Prompts on its list, including invalid ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<usize>,
    /// Pages of its list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<usize>,
    /// Repairs to its messages, by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(test, schemars(extend("additionalProperties" = {"type": "integer", "minimum": 1})))]
    pub repairs: BTreeMap<&'static str, u64>,
    /// How often the gateway has failed to drive it, and has started again.
    pub driver_restarts: u64,
    /// Age of its list in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_secs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<Cow<'static, str>>,
    /// The last lines of its child processes on standard error, and those on standard output that
    /// are no messages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<UpstreamError>,
}

/// The calls that ended in the last hour, or in up to five minutes less. Quantiles are exact within
/// a fifth.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastHour {
    pub calls: u64,
    pub failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95_ms: Option<f64>,
    /// The last HTTP status, where the upstream speaks HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
}

/// Why an upstream cannot be called, or its list is stale or missing.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct UpstreamError {
    pub reason: &'static str,
    pub message: String,
}

impl UpstreamRow {
    /// How many repairs were made to its messages.
    pub(crate) fn repair_count(&self) -> u64 {
        self.repairs.values().sum()
    }

    pub(crate) fn of(status: UpstreamStatus) -> Self {
        let (note, approvals) = (status.note(), status.waiting());
        let is_open = status.breaker_open_until.is_some();
        let next_try = status.breaker_open_until.or(status.outage.and_then(|down| down.next_try));
        let next_try = next_try.map(|at| at.saturating_duration_since(Instant::now()));
        // The lines of the attempt that failed, where there is one: the upstream may have been
        // started again.
        let stderr = match status.failure.as_ref().map(UpstreamFaultKind::stderr) {
            Some(stderr) if !stderr.is_empty() => stderr.to_vec(),
            _ => status.stderr_tail.lines(),
        };
        let error = |kind: UpstreamFaultKind| UpstreamError {
            reason: kind.reason(),
            message: kind.diagnosis(),
        };
        Self {
            upstream: status.id,
            transport: status.transport,
            commit: status.commit.map(|commit| commit.to_string()),
            state: status.state,
            era: status.revision.map(|revision| revision.era_name()),
            revision: status.revision.map(|revision| revision.as_str()),
            list_changed: status.notifies,
            listed: status.listed,
            left_out: status.left_out,
            held: status.held,
            undecided: status.undecided,
            approvals,
            last_hour: LastHour {
                calls: status.recent.calls,
                failures: status.recent.failures,
                p50_ms: status.recent.p50_ms,
                p95_ms: status.recent.p95_ms,
                http_status: status.recent.http_status,
            },
            in_flight: status.load.0,
            waiting: status.load.1,
            breaker: if is_open { "open" } else { "closed" },
            down_secs: status.outage.map(|outage| outage.since.elapsed().as_secs()),
            next_try_ms: next_try.map(whole_millis),
            prompts: status.walk.map(|walk| walk.prompts),
            pages: status.walk.map(|walk| walk.pages),
            repairs: status.repairs,
            driver_restarts: status.driver_restarts,
            age_secs: status.walk.map(|walk| walk.at.elapsed().as_secs()),
            note,
            stderr,
            error: status.failure.map(error),
        }
    }
}

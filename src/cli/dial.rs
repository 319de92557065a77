//! `promptgate check --dial`: asks each upstream, as the gateway would, and says what it found.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::text::{columns, print, printable};
use super::{Failure, load, runtime};
use crate::config::{Config, Upstream};
use crate::domain::call::ForwardedMeta;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::revision::Revision;
use crate::router::refresh::{Refresh, Source};
use crate::upstream::call::correlator::NotificationSinks;
use crate::upstream::connection::connect::Connector;
use crate::upstream::connection::list_pages::Listed;
use crate::upstream::driver::{DriverId, Report, Walked};

pub(super) fn run(path: &Path, as_json: bool) -> Result<(), Failure> {
    let config = load(path)?;
    let runtime = runtime()?;
    let found = runtime.block_on(dial_all(&config));
    runtime.shutdown_background();
    let failed = found.iter().filter(|found| found.outcome.is_err()).count();
    let report = describe(&config, found);
    match as_json {
        true => print(&format!("{report:#}"))?,
        false => print(&table(&report))?,
    }
    match failed {
        0 => Ok(()),
        1 => Err(Failure::new("1 upstream does not answer")),
        n => Err(Failure::new(format!("{n} upstreams do not answer"))),
    }
}

/// What asking one upstream brought.
struct Found {
    transport: &'static str,
    revision: Option<Revision>,
    notifies: bool,
    outcome: Result<Listed, Kind>,
}

/// How long an upstream may take to hear a farewell.
const GOODBYE: Duration = Duration::from_millis(500);

/// How long children may take to end once all is said.
const FAREWELL: Duration = Duration::from_secs(6);

async fn dial_all(config: &Config) -> Vec<Found> {
    let tasks = TaskTracker::new();
    let dial = |upstream: &Upstream| {
        let (upstream, inner) = (Arc::new(upstream.clone()), tasks.clone());
        tasks.spawn(async move { dial(upstream, inner).await })
    };
    let dialled: Vec<_> = config.upstreams.iter().map(dial).collect();
    let mut found = Vec::with_capacity(dialled.len());
    for one in dialled {
        let failed = |_| Found::failed("?", Kind::Reset);
        found.push(one.await.unwrap_or_else(failed));
    }
    tasks.close();
    let _ = timeout(FAREWELL, tasks.wait()).await;
    found
}

async fn dial(upstream: Arc<Upstream>, tasks: TaskTracker) -> Found {
    let transport = upstream.transport.name();
    let (sinks, starting) =
        (NotificationSinks::new(upstream.id.as_str()), Arc::new(Semaphore::new(1)));
    let connector = match Connector::new(upstream.clone(), sinks, tasks, starting) {
        Ok(connector) => connector,
        Err(reason) => return Found::failed(transport, Kind::Unavailable(reason)),
    };
    let connection = match connector.connect().await {
        Ok(connection) => connection,
        Err(kind) => return Found::failed(transport, kind),
    };
    let (revision, transport) = connection.describe();
    let outcome = connection.walk(&upstream.settings, &ForwardedMeta::default()).await;
    let _ = timeout(GOODBYE, connection.close()).await;
    Found { transport, revision, notifies: connection.notifies(), outcome }
}

impl Found {
    fn failed(transport: &'static str, kind: Kind) -> Self {
        Self { transport, revision: None, notifies: false, outcome: Err(kind) }
    }
}

/// Everything that was found, in the form that `--json` prints.
fn describe(config: &Config, found: Vec<Found>) -> Value {
    let sources = config.upstreams.iter().map(|u| Source::new(DriverId::fresh(), u));
    let sources: Vec<_> = sources.collect();
    let drivers: Vec<_> = sources.iter().map(|source| source.driver).collect();
    let mut refresh = Refresh::new(sources, config.naming.clone(), config.listing.on_failure);
    let mut rows = Vec::with_capacity(found.len());
    for ((upstream, found), driver) in config.upstreams.iter().zip(found).zip(drivers) {
        let mut row = json!({
            "upstream": upstream.id.as_str(),
            "transport": found.transport,
            "era": found.revision.map(Revision::era_name),
            "revision": found.revision.map(Revision::as_str),
            "listChanged": found.notifies,
        });
        match &found.outcome {
            Ok(listed) => {
                row["pages"] = listed.pages.into();
                row["prompts"] = (listed.prompts.len() + listed.malformed.len()).into();
            }
            Err(kind) => {
                row["error"] = json!({"reason": kind.reason(), "message": kind.to_string()})
            }
        }
        let outcome = found.outcome.map(|listed| Walked { listed, fresh_for: None });
        refresh.take(Report { driver, outcome }, Instant::now());
        rows.push(row);
    }
    let catalog = refresh.snapshot();
    let counts = catalog.content.counts();
    for (upstream, row) in config.upstreams.iter().zip(&mut rows) {
        row["listed"] = counts.get(&upstream.id).copied().unwrap_or_default().into();
    }
    json!({"upstreams": rows, "leftOut": catalog.content.left_out})
}

fn table(report: &Value) -> String {
    let text = |value: &Value| printable(value.as_str().unwrap_or("-"));
    let names =
        ["upstream", "transport", "era", "revision", "listChanged", "pages", "prompts", "listed"];
    let rows = report["upstreams"].as_array().map_or(&[][..], Vec::as_slice);
    let mut notes = String::new();
    for row in rows {
        if let Some(message) = row["error"]["message"].as_str() {
            let _ = writeln!(notes, "{}: {}", text(&row["upstream"]), printable(message));
        }
    }
    for left_out in report["leftOut"].as_array().into_iter().flatten() {
        let (upstream, name) = (text(&left_out["upstream"]), text(&left_out["name"]));
        let _ = writeln!(notes, "{upstream}: {name:?} is left out: {}", text(&left_out["reason"]));
    }
    let separator = if notes.is_empty() { "" } else { "\n\n" };
    format!("{}{separator}{}", columns(&names, rows), notes.trim_end())
}

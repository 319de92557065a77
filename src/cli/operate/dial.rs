//! `promptgate check --dial`: connects to each upstream as the gateway would, and reports the
//! result.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::check::{warning_lines, warnings};
use super::login::shared_logins;
use crate::app::export_destination;
use crate::cli::shared::args::Output;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::load;
use crate::cli::shared::output::{Column, elements, printable, prompts, repaired, table};
use crate::cli::shared::runtime::runtime;
use base::seal::Sealer;
use catalog::refresh::Refresh;
use catalog::source::UpstreamSource;
use cluster::{ClusterMember, SharedLogins};
use config::{Config, Credentials, Http, UpstreamSettings};
use domain::calls::call::ForwardedMeta;
use domain::fault::UpstreamFaultKind as Kind;
use domain::protocol::revision::Revision;
use domain::protocol::via::Via;
use library::prompt_list::{PromptList, emptiness};
use net::proxy::ProxyRoutes;
use upstream::auth::id_jag;
use upstream::call::correlator::NotificationSinks;
use upstream::connection::connect::Connector;
use upstream::driver::{DriverId, DriverReport, FetchedList};

pub(crate) fn run(path: &Path, output: &Output) -> Result<(), Failure> {
    let config = load(path)?;
    let runtime = runtime()?;
    let progress = if output.json || !io::stderr().is_terminal() {
        DialProgress::Hidden
    } else {
        DialProgress::Shown
    };
    let (dialed, store, export) = runtime.block_on(async {
        let logins = shared_logins(&config)?;
        let dialing = dial_all(&config, logins, progress);
        let exporting = async { Some(export_destination(&config)?.test().await) };
        Ok::<_, Failure>(tokio::join!(dialing, dial_store(&config), exporting))
    })?;
    runtime.shutdown_background();
    let failed = dialed.iter().filter(|dialed| dialed.outcome.is_err()).count();
    let lists: Vec<_> = config.upstreams.iter().zip(&dialed).map(known_list).collect();
    let warnings = warnings(path, &config, &lists);
    let mut report = report(&config, dialed);
    report["warnings"] = json!(warnings);
    if let Some(store) = &store {
        report["cluster"] = json!({"available": store.is_ok(), "error": store.as_ref().err()});
    }
    if let Some(export) = &export {
        report["auditExport"] =
            json!({"available": export.is_ok(), "error": export.as_ref().err()});
    }
    output.print(&report, &(text(&report) + &warning_lines(&warnings)))?;
    match failed {
        0 if matches!(store, Some(Err(_))) => {
            Err(Failure::new("the store of the cluster cannot be used"))
        }
        0 if matches!(export, Some(Err(_))) => {
            Err(Failure::new("the collector of audit.export has not accepted a test record"))
        }
        0 => Ok(()),
        1 => Err(Failure::new("1 upstream does not answer")),
        n => Err(Failure::new(format!("{n} upstreams do not answer"))),
    }
}

/// Returns the list of an upstream; `None` if it is not known, or differs by caller.
fn known_list((upstream, dialed): (&UpstreamSettings, &Dialed)) -> Option<PromptList> {
    dialed.outcome.as_ref().ok().filter(|_| !upstream.lists_per_caller()).cloned()
}

/// Whether the result of each upstream is shown on standard error as soon as it is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum DialProgress {
    Hidden,
    Shown,
}

/// The result of one upstream.
struct Dialed {
    /// The transport in use; `?` if the task panicked.
    transport: &'static str,
    /// The agreed revision. `None` for a library, and without a connection.
    revision: Option<Revision>,
    /// Whether the upstream announces changes of its list.
    notifies: bool,
    /// How many repairs of each kind were made to its messages.
    repairs: BTreeMap<&'static str, u64>,
    outcome: Result<PromptList, Kind>,
    /// Whether the gateways behind the upstream form a circle.
    is_circle: bool,
}

/// Time after which a child process that has written nothing is given up, before `startup`: waiting
/// longer for a mute process only makes CI slow.
const SILENCE: Duration = Duration::from_secs(20);

/// Timeout for closing the session of one upstream: a courtesy that the command does not depend on.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout for all child processes to end: two seconds at the end of input, and at most three more
/// after SIGTERM.
const CHILDREN_TIMEOUT: Duration = Duration::from_secs(6);

async fn dial_all(
    config: &Config,
    logins: Option<Arc<SharedLogins>>,
    progress: DialProgress,
) -> Vec<Dialed> {
    let tasks = TaskTracker::new();
    let keys = config.server.seal_keys.as_ref();
    let own = keys.map(|keys| Via::of_gateway(&Sealer::new(keys).pseudonym(), []));
    let own = own.unwrap_or_default();
    let dial = |upstream: &UpstreamSettings| {
        let upstream = Arc::new(upstream.clone());
        let dialing = dial(upstream.clone(), tasks.clone(), logins.clone(), own.clone());
        tasks.spawn(async move {
            let dialed = dialing.await;
            if progress == DialProgress::Shown {
                eprintln!("{}", dialed.progress_line(&upstream));
            }
            dialed
        })
    };
    if progress == DialProgress::Shown {
        eprintln!("Connecting to {} upstreams …", config.upstreams.len());
    }
    let dialing: Vec<_> = config.upstreams.iter().map(dial).collect();
    let mut dialed = Vec::with_capacity(dialing.len());
    for task in dialing {
        let panicked =
            |error: tokio::task::JoinError| Dialed::failed("?", Kind::Internal(error.to_string()));
        dialed.push(task.await.unwrap_or_else(panicked));
    }
    tasks.close();
    let _ = timeout(CHILDREN_TIMEOUT, tasks.wait()).await;
    dialed
}

/// Connects to the store of the cluster; `None` without `[cluster]`.
async fn dial_store(config: &Config) -> Option<Result<(), String>> {
    match &config.cluster {
        Some(cluster) => Some(ClusterMember::dial(cluster).await),
        None => None,
    }
}

async fn dial(
    upstream: Arc<UpstreamSettings>,
    tasks: TaskTracker,
    logins: Option<Arc<SharedLogins>>,
    own: Via,
) -> Dialed {
    let transport = upstream.transport.name();
    let sinks = NotificationSinks::new(upstream.id.as_str());
    let repairs = sinks.repairs.clone();
    let starting = Arc::new(Semaphore::new(1));
    let connector = |upstream| {
        Connector::new(upstream, sinks.clone(), tasks.clone(), starting.clone(), logins.clone())
    };
    let mut hasty = (*upstream).clone();
    hasty.settings.startup = hasty.settings.startup.min(SILENCE);
    let patient = (upstream.settings.startup > SILENCE).then(|| connector(upstream.clone()).ok());
    let patient = patient.flatten();
    let connector = match connector(Arc::new(hasty)) {
        Ok(connector) => connector,
        Err(reason) => return Dialed::failed(transport, Kind::Unavailable(reason)),
    };
    if let Some(http) = upstream.http()
        && let Err(kind) = id_jag::check(http).await
    {
        return Dialed::failed(transport, kind);
    }
    if upstream.lists_per_caller() {
        // Only callers have a credential for the upstream.
        let outcome = Ok(PromptList::default());
        return Dialed { outcome, ..Dialed::failed(transport, Kind::Timeout) };
    }
    let connected = match connector.connect().await {
        // The child may be busy, for example with a download: it gets its whole time once more.
        Err(kind @ Kind::ChildSilent { .. }) if !kind.stderr().is_empty() => match patient {
            Some(patient) => patient.connect().await,
            None => Err(kind),
        },
        connected => connected,
    };
    let connection = match connected {
        Ok(connection) => connection,
        Err(kind) => return Dialed::failed(transport, kind),
    };
    let (revision, transport) = connection.describe();
    let is_circle = connection.behind().is_some_and(|behind| behind.is_circle(&own));
    let forwarded = ForwardedMeta { via: own, ..ForwardedMeta::default() };
    let outcome = connection.walk(&upstream.settings, &forwarded).await;
    let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
    let repairs = repairs.counted();
    Dialed { transport, revision, notifies: connection.notifies(), repairs, outcome, is_circle }
}

impl Dialed {
    fn failed(transport: &'static str, kind: Kind) -> Self {
        let (repairs, outcome) = (BTreeMap::new(), Err(kind));
        Self { transport, revision: None, notifies: false, repairs, outcome, is_circle: false }
    }

    fn progress_line(&self, upstream: &UpstreamSettings) -> String {
        let id = &upstream.id;
        match &self.outcome {
            Ok(listed) => {
                let count = listed.prompts.len() + listed.malformed.len();
                let note = note(upstream, listed);
                let text = note.map_or_else(|| prompts(count), str::to_owned);
                format!("  {id}: {text}")
            }
            Err(kind) => format!("  {id}: {}", printable(&advised(upstream, kind))),
        }
    }
}

/// Describes a failure, with a remedy where the configuration explains more than the upstream.
fn advised(upstream: &UpstreamSettings, kind: &Kind) -> String {
    let diagnosis = kind.diagnosis();
    let http = upstream.http();
    let scheme = http.and_then(|http| http.url.scheme_str());
    let has_credential = http.is_some_and(|http| http.credentials != Credentials::default());
    match kind {
        Kind::AuthFailed { status } if !has_credential => format!(
            "wants a credential, and none is set (HTTP {status}): set `credential`, such as \
             {{ bearer = {{ env = \"…\" }} }}, or {{ login = {{}} }} to sign in with `promptgate login`"
        ),
        Kind::Unavailable(why) if scheme == Some("https") && why.contains("InvalidContentType") => {
            "speaks no TLS at this port: is it http://?".to_owned()
        }
        Kind::Status { status: 404 | 405, .. }
            if http.is_some_and(|http| http.url.path() == "/") =>
        {
            format!("{diagnosis}; is its endpoint /mcp?")
        }
        Kind::ChildSilent { startup, .. } if *startup < upstream.settings.startup => format!(
            "{diagnosis}; `check --dial` waits {} s for a child that writes nothing, the gateway \
             {} s (startup)",
            startup.as_secs_f64(),
            upstream.settings.startup.as_secs_f64()
        ),
        Kind::Timeout
        | Kind::Reset(_)
        | Kind::ChildSilent { .. }
        | Kind::Status { status: 500, .. }
            if http.is_none_or(|http| http.revision.is_none()) =>
        {
            format!("{diagnosis}; if it fails at requests of other revisions, set its `revision`")
        }
        _ => diagnosis,
    }
}

/// Returns the note for an operator on an upstream that works and lists nothing here.
fn note(upstream: &UpstreamSettings, listed: &PromptList) -> Option<&'static str> {
    if upstream.lists_per_caller() {
        return Some("lists for each caller: not dialed");
    }
    emptiness(listed.pages, listed.prompts.len() + listed.malformed.len())
}

/// Returns all results as `--json` prints them. The lists are merged as in the gateway, to know
/// which prompts are left out.
fn report(config: &Config, dialed: Vec<Dialed>) -> Value {
    let sources =
        config.upstreams.iter().map(|u| UpstreamSource::new(DriverId::fresh(), u, config));
    let sources: Vec<_> = sources.collect();
    let drivers: Vec<_> = sources.iter().map(|source| source.driver).collect();
    let mut refresh = Refresh::new(sources, config.naming.clone());
    let mut rows = Vec::with_capacity(dialed.len());
    for ((upstream, dialed), driver) in config.upstreams.iter().zip(dialed).zip(drivers) {
        let mut row = json!({
            "upstream": upstream.id.as_str(),
            "transport": dialed.transport,
            "era": dialed.revision.map(Revision::era_name),
            "revision": dialed.revision.map(Revision::as_str),
            "listChanged": dialed.notifies,
            "via": upstream.http().map(way),
        });
        if !dialed.repairs.is_empty() {
            row["repairs"] = json!(dialed.repairs);
        }
        if dialed.is_circle {
            row["loop"] = true.into();
        }
        match &dialed.outcome {
            Ok(listed) => {
                row["pages"] = listed.pages.into();
                let prompts = listed.prompts.len() + listed.malformed.len();
                row["prompts"] = prompts.into();
                if let Some(note) = note(upstream, listed) {
                    row["note"] = note.into();
                }
            }
            Err(kind) => {
                row["error"] = json!({"reason": kind.reason(), "message": advised(upstream, kind)});
                if !kind.stderr().is_empty() {
                    row["stderr"] = kind.stderr().into();
                }
            }
        }
        let outcome = dialed.outcome.map(|listed| FetchedList { listed, fresh_for: None });
        refresh.take([DriverReport { driver, outcome }], Instant::now());
        rows.push(row);
    }
    let catalog = refresh.snapshot();
    let counts = catalog.content.counts();
    for (upstream, row) in config.upstreams.iter().zip(&mut rows) {
        row["listed"] = counts.get(&upstream.id).copied().unwrap_or_default().into();
    }
    let left_out = &catalog.content.left_out;
    let look_alikes = &catalog.content.look_alikes;
    json!({"upstreams": rows, "leftOut": left_out, "lookAlikes": look_alikes})
}

/// Returns the proxy that leads to an upstream, or `direct`.
fn way(http: &Http) -> String {
    let routes = http.proxies.as_ref().map(ProxyRoutes::new);
    let proxy = routes.and_then(|routes| routes.way(&http.url));
    proxy.unwrap_or_else(|| "direct".to_owned())
}

/// The columns of the table of upstreams.
const COLUMNS: [Column; 9] = [
    Column::new("UPSTREAM", "upstream"),
    Column::new("TRANSPORT", "transport"),
    Column::new("VIA", "via"),
    Column::new("ERA", "era"),
    Column::new("REVISION", "revision"),
    Column::new("NOTIFIES", "listChanged"),
    Column::new("PAGES", "pages"),
    Column::new("PROMPTS", "prompts"),
    Column::new("LISTED", "listed"),
];

/// The note on an upstream that leads back to this gateway.
const LOOP: &str = "leads back to this gateway, or to itself; calls that come back are refused: \
                    take one of the gateways in the circle out of the upstreams of another";

/// Lines of standard error that are shown of each upstream; `--json` has all that are kept.
const STDERR_LINES: usize = 8;

fn text(report: &Value) -> String {
    let text = |value: &Value| printable(value.as_str().unwrap_or("-"));
    let rows = elements(&report["upstreams"]);
    let mut notes = String::new();
    for row in rows {
        if let Some(message) = row["error"]["message"].as_str().or(row["note"].as_str()) {
            let _ = writeln!(notes, "{}: {}", text(&row["upstream"]), printable(message));
        }
        if row["loop"] == true {
            let _ = writeln!(notes, "{}: {LOOP}", text(&row["upstream"]));
        }
        let repaired = repaired(row);
        if !repaired.is_empty() {
            let _ = writeln!(notes, "{}: {repaired}", text(&row["upstream"]));
        }
        let stderr = elements(&row["stderr"]);
        for line in &stderr[stderr.len().saturating_sub(STDERR_LINES)..] {
            let _ = writeln!(notes, "    | {}", text(line));
        }
    }
    for left_out in elements(&report["leftOut"]) {
        let upstream = text(&left_out["upstream"]);
        let name = text(&left_out["name"]);
        let _ = writeln!(notes, "{upstream}: {name:?} is left out: {}", text(&left_out["reason"]));
    }
    for pair in elements(&report["lookAlikes"]) {
        let shown = |side: &Value| format!("{} ({:?})", text(&side["name"]), text(&side["text"]));
        let _ = writeln!(notes, "{} looks like {}", shown(&pair["one"]), shown(&pair["other"]));
    }
    for (key, name) in [("cluster", "cluster.store"), ("auditExport", "audit.export")] {
        if let Some(error) = report[key]["error"].as_str() {
            let _ = writeln!(notes, "{name}: {}", printable(error));
        } else if report[key]["available"] == true {
            let _ = writeln!(notes, "{name}: available");
        }
    }
    let separator = if notes.is_empty() { "" } else { "\n\n" };
    format!("{}{separator}{}", table(&COLUMNS, rows), notes.trim_end())
}

//! Gauges: the state of the upstreams, of the catalog and of the audit log, and the load of the
//! gateway.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::edition::Edition;
use audit::Audit;
use audit::verify::regular::{RegularOutcome, RegularVerification};
use base::platform::wall_clock;
use calls::rollouts::RolloutStatus;
use calls::{PER_CALLER, UpstreamStatus};
use catalog::approval::ApprovalRow;
use cluster::ClusterMember;
use domain::approval::ApprovalState;
use domain::fault::UpstreamFaultKind as Kind;
use domain::time::unix_time::UnixSeconds;
use front::downstream::{AdmissionUsage, Endpoint, OpenConnections};
use net::certificates::CertificateEnd;
use telemetry::log::Control;
use telemetry::{Telemetry, UPSTREAM};

/// Registers the gauges of the newest edition.
pub(super) fn gateway(telemetry: &Telemetry, edition: &Arc<ArcSwap<Edition>>, audit: &Audit) {
    let upstreams = |what, value: UpstreamGauge| {
        let edition = Arc::downgrade(edition);
        telemetry.gauge(what, move |observe| {
            for status in newest(&edition).iter().flat_map(|edition| edition.router.status()) {
                if let Some(value) = value(&status) {
                    observe(value, &[(UPSTREAM, &status.id)]);
                }
            }
        });
    };
    upstreams(("promptgate.upstream.up", "", "Whether the upstream can be called"), |status| {
        (status.state != PER_CALLER).then(|| flag(status.is_reached()))
    });
    lists(&upstreams);
    upstreams(
        (
            "promptgate.upstream.login.missing",
            "",
            "Whether the upstream needs `promptgate login UPSTREAM`",
        ),
        |status| {
            let failure = status.failure.as_ref();
            let needs_login =
                matches!(failure, Some(Kind::NoToken { fault, .. }) if fault.needs_login());
            status.has_login.then(|| flag(needs_login))
        },
    );
    upstreams(
        (
            "promptgate.upstream.prompts.waiting",
            "{prompt}",
            "Prompts of the upstream that wait for approval",
        ),
        |status| (status.undecided > 0).then_some(status.undecided as f64),
    );
    upstreams(
        ("promptgate.upstream.breaker.open", "", "Whether the circuit breaker is open"),
        |status| {
            let is_open = status.breaker_open_until.is_some_and(|until| until > Instant::now());
            called(status, flag(is_open))
        },
    );
    upstreams(
        ("promptgate.upstream.in_flight", "{call}", "Calls in flight at the upstream"),
        |status| called(status, status.load.0 as f64),
    );
    upstreams(
        ("promptgate.upstream.queued", "{call}", "Calls that wait for a place at the upstream"),
        |status| called(status, status.load.1 as f64),
    );
    catalog(telemetry, edition);
    audit_log(telemetry, audit);
    process(telemetry);
}

/// Registers the gauges of the lists of upstreams.
fn lists(upstreams: &impl Fn((&'static str, &'static str, &'static str), UpstreamGauge)) {
    upstreams(
        ("promptgate.upstream.prompts", "{prompt}", "Listed prompts of the upstream"),
        |status| Some(status.listed as f64),
    );
    upstreams(("promptgate.upstream.list.age", "s", "Age of the list of the upstream"), |status| {
        status.walk.map(|walk| walk.at.elapsed().as_secs_f64())
    });
    upstreams(
        (
            "promptgate.upstream.list.stale",
            "",
            "Whether the list of the upstream is stale or missing",
        ),
        |status| Some(flag(status.failure.is_some())),
    );
    upstreams(
        (
            "promptgate.upstream.removal.held",
            "{prompt}",
            "Prompts of the upstream that stay served although it lists too few",
        ),
        |status| status.held_removal.map(|removal| removal.served as f64),
    );
}

/// Returns the value of one upstream; `None` where the upstream has no such series.
type UpstreamGauge = fn(&UpstreamStatus) -> Option<f64>;

/// The value for an upstream that was called: an upstream without calls has no such series.
fn called(status: &UpstreamStatus, value: f64) -> Option<f64> {
    (status.was_called || value != 0.0).then_some(value)
}

/// Registers the gauge of rollouts.
fn rollouts(telemetry: &Telemetry, edition: &Arc<ArcSwap<Edition>>) {
    let edition = Arc::downgrade(edition);
    let what = "Whether the rollout of the version was rolled back";
    telemetry.gauge(("promptgate.rollout.rolled_back", "", what), move |observe| {
        let Some(edition) = newest(&edition) else { return };
        let catalog = edition.router.catalog();
        let rollouts = edition.router.rollouts().status(&catalog, UnixSeconds::from(wall_clock()));
        for RolloutStatus { prompt, rollout, rolled_back, .. } in &rollouts {
            observe(
                flag(rolled_back.is_some()),
                &[("gen_ai.prompt.name", prompt), ("promptgate.version", &rollout.to)],
            );
        }
    });
}

/// Registers the gauges of the catalog and of calls.
fn catalog(telemetry: &Telemetry, edition: &Arc<ArcSwap<Edition>>) {
    let single = |what, value: fn(&Edition) -> f64| {
        let edition = Arc::downgrade(edition);
        telemetry.gauge(what, move |observe| {
            if let Some(edition) = newest(&edition) {
                observe(value(&edition), &[]);
            }
        });
    };
    single(("promptgate.catalog.prompts", "{prompt}", "Prompts that are listed"), |edition| {
        edition.router.catalog().content.prompt_count() as f64
    });
    rollouts(telemetry, edition);
    single(("promptgate.catalog.left_out", "{prompt}", "Prompts that are left out"), |edition| {
        edition.router.catalog().content.left_out.len() as f64
    });
    let by_state = Arc::downgrade(edition);
    let states = "Prompts that are offered at upstreams with approvals, by state";
    telemetry.gauge(("promptgate.approvals", "{prompt}", states), move |observe| {
        let Some(edition) = newest(&by_state) else { return };
        let catalog = edition.router.catalog();
        let rows = || catalog.approvals.iter().flat_map(|rows| rows.iter());
        for state in
            ApprovalState::ALL.into_iter().filter(|state| *state != ApprovalState::Unchecked)
        {
            let is_so = |row: &&ApprovalRow| row.offered.is_some() && row.decision.state == state;
            let count = rows().filter(is_so).count();
            observe(count as f64, &[("promptgate.state", state.as_str())]);
        }
    });
    let look_alikes = "Pairs of prompts of different upstreams that look alike";
    single(("promptgate.catalog.look_alikes", "{pair}", look_alikes), |edition| {
        edition.router.catalog().content.look_alikes.len() as f64
    });
    single(
        (
            "promptgate.calls.cancellable",
            "{call}",
            "Calls that can be cancelled by their request ids",
        ),
        |edition| edition.sessions.in_flight_calls() as f64,
    );
    single(
        (
            "promptgate.calls.suspended",
            "{call}",
            "Calls that are suspended while the user visits a page",
        ),
        |edition| edition.router.suspended() as f64,
    );
}

/// Registers the gauges of the audit log; absent if the log is disabled.
fn audit_log(telemetry: &Telemetry, audit: &Audit) {
    let single = |what, value: fn(&Audit) -> f64| {
        let audit = audit.clone();
        telemetry.gauge(what, move |observe| {
            if audit.is_on() {
                observe(value(&audit), &[]);
            }
        });
    };
    single(("promptgate.audit.up", "", "Whether the audit log is written"), |audit| {
        flag(audit.is_up())
    });
    single(("promptgate.audit.waiting", "By", "Records that wait to be written"), |audit| {
        audit.waiting_bytes() as f64
    });
    single(("promptgate.audit.size", "By", "Size of all segments of the audit log"), |audit| {
        audit.size() as f64
    });
    let limit = "Size at which records are refused; absent where the oldest segments leave instead";
    let shown = audit.clone();
    telemetry.gauge(("promptgate.audit.size_limit", "By", limit), move |observe| {
        if let Some(limit) = shown.size_limit() {
            observe(limit as f64, &[]);
        }
    });
    single(
        ("promptgate.audit.lag", "s", "Waiting time of the oldest record that waits"),
        |audit| audit.lag().as_secs_f64(),
    );
    let waiting = "Records that the collector has not accepted; 0 without an export";
    single(("promptgate.audit.export.waiting", "{record}", waiting), |audit| {
        audit.export_status().map_or(0.0, |status| status.waiting as f64)
    });
    let lag = "Age of the oldest record that the collector has not accepted";
    single(("promptgate.audit.export.lag", "s", lag), |audit| {
        audit.export_status().map_or(0.0, |status| status.lag.as_secs_f64())
    });
    let refused = "Records that the collector has refused for good since the start";
    single(("promptgate.audit.export.refused", "{record}", refused), |audit| {
        audit.export_status().map_or(0.0, |status| status.refused as f64)
    });
}

/// Registers the gauges of the regular verification; absent before the first.
pub(super) fn verification(telemetry: &Telemetry, verification: &Arc<RegularVerification>) {
    let single = |what, value: fn(&RegularOutcome) -> f64| {
        let verification = verification.clone();
        telemetry.gauge(what, move |observe| {
            if let Some(outcome) = verification.last() {
                observe(value(&outcome), &[]);
            }
        });
    };
    let intact = "Whether the last regular verification found the audit log intact";
    single(("promptgate.audit.verified.intact", "", intact), |outcome| {
        flag(outcome.problems.is_empty())
    });
    let age = "Age of the last regular verification of the audit log";
    single(("promptgate.audit.verified.age", "s", age), |outcome| {
        wall_clock().duration_since(outcome.at).unwrap_or_default().as_secs_f64()
    });
    let records = "Records that the last regular verification of the audit log has read";
    single(("promptgate.audit.verified.records", "{record}", records), |outcome| {
        outcome.records as f64
    });
}

/// Registers the gauge of the gateway's own log.
pub(super) fn log(telemetry: &Telemetry, logs: Control) {
    let dropped = "Lines of the log that were dropped since the start";
    telemetry.gauge(("promptgate.log.lines_dropped", "{line}", dropped), move |observe| {
        observe(logs.dropped_lines() as f64, &[]);
    });
}

/// Registers the gauges of the cluster; absent if this replica stands alone.
pub(super) fn cluster(telemetry: &Telemetry, cluster: &Arc<ClusterMember>) {
    let single = |what, value: fn(&ClusterMember) -> f64| {
        let cluster = Arc::downgrade(cluster);
        telemetry.gauge(what, move |observe| {
            if let Some(cluster) = cluster.upgrade() {
                observe(value(&cluster), &[]);
            }
        });
    };
    let up = ("promptgate.cluster.up", "", "Whether the store of the cluster is available");
    single(up, |cluster| flag(cluster.failure().is_none()));
    let replicas = ("promptgate.cluster.replicas", "{replica}", "Replicas that were seen last");
    single(replicas, |cluster| f64::from(cluster.count().get()));
    let differing = "Other replicas with another configuration file or another catalog";
    single(("promptgate.cluster.differing", "{replica}", differing), |cluster| {
        cluster.differing() as f64
    });
}

/// Registers the gauges of the load of the endpoint.
pub(super) fn endpoint(
    telemetry: &Telemetry,
    endpoint: &Arc<ArcSwap<Endpoint>>,
    open: &Arc<OpenConnections>,
) {
    let admission = |what, value: fn(AdmissionUsage) -> usize| {
        let endpoint = Arc::downgrade(endpoint);
        telemetry.gauge(what, move |observe| {
            if let Some(endpoint) = endpoint.upgrade() {
                observe(value(endpoint.load().usage()) as f64, &[]);
            }
        });
    };
    admission(
        ("promptgate.in_flight", "{call}", "Calls that take a place of server.limits.in_flight"),
        |admission| admission.calls,
    );
    admission(
        ("promptgate.calls.awaiting_input", "{call}", "Calls that wait for a user's answer"),
        |admission| admission.suspended,
    );
    admission(
        (
            "promptgate.in_flight.size",
            "By",
            "Memory of messages, and of results until they are sent",
        ),
        |admission| admission.bytes,
    );
    admission(
        (
            "promptgate.in_flight.size_limit",
            "By",
            "The most memory that messages and results may take",
        ),
        |admission| admission.max_bytes,
    );
    let service = Arc::downgrade(endpoint);
    let remaining = "Time until a certificate ends; negative once it has ended";
    telemetry.gauge(("promptgate.certificate.remaining", "s", remaining), move |observe| {
        let now = wall_clock();
        let own = service.upgrade().map(|endpoint| endpoint.load().certificate_ends());
        for end in own.unwrap_or_default().iter().chain(&CertificateEnd::of_servers(now)) {
            let labels =
                [("promptgate.owner", end.owner.as_str()), ("promptgate.name", &*end.name)];
            observe(end.remaining_secs(now) as f64, &labels);
        }
    });
    admission(("promptgate.streams", "{stream}", "Open notification streams"), |admission| {
        admission.streams
    });
    let open = Arc::downgrade(open);
    telemetry.gauge(
        ("promptgate.connections", "{connection}", "Open connections"),
        move |observe| {
            if let Some(open) = open.upgrade() {
                observe(open.count() as f64, &[]);
            }
        },
    );
}

/// Registers the gauges of the process, which grow without end only if there is a leak.
fn process(telemetry: &Telemetry) {
    // Without a runtime there are no tasks.
    if let Ok(runtime) = Handle::try_current() {
        telemetry.gauge(("promptgate.tasks", "{task}", "Tasks of the runtime"), move |observe| {
            observe(runtime.metrics().num_alive_tasks() as f64, &[]);
        });
    }
    #[cfg(target_os = "linux")]
    {
        telemetry.gauge(("process.memory.usage", "By", "Resident memory"), |observe| {
            if let Some(memory) = resident_memory("self") {
                observe(memory, &[]);
            }
        });
        let what = "Resident memory of the child processes and their descendants";
        telemetry.gauge(("promptgate.children.memory.usage", "By", what), |observe| {
            observe(children_memory(), &[]);
        });
        let what = ("process.open_fds", "{file}", "Open file descriptors");
        telemetry.gauge(what, |observe| {
            if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
                observe(open.count() as f64, &[]);
            }
        });
    }
}

/// Returns the resident memory of a process, in bytes.
#[cfg(target_os = "linux")]
fn resident_memory(process: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: f64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}

/// Returns the resident memory of all descendants of this process, in bytes.
#[cfg(target_os = "linux")]
fn children_memory() -> f64 {
    let mut memory = 0.0;
    let mut parents = vec!["self".to_owned()];
    while let Some(parent) = parents.pop() {
        let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten();
        let children = threads.flatten().map(|thread| thread.path().join("children"));
        for children in children.filter_map(|file| std::fs::read_to_string(file).ok()) {
            parents.extend(children.split_whitespace().map(str::to_owned));
            let each = children.split_whitespace().filter_map(resident_memory);
            memory += each.sum::<f64>();
        }
    }
    memory
}

/// Returns 1 for true.
fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// Returns the newest edition, if the gateway still runs.
fn newest(edition: &Weak<ArcSwap<Edition>>) -> Option<Arc<Edition>> {
    edition.upgrade().map(|edition| edition.load_full())
}
